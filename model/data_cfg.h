/* data_cfg.h: data.* as what data/ asks for. */
#pragma once
#include "../data/text.h"
#include "config.h"

/* A StreamSpec with the room that its pointers need. */
typedef struct {
    StreamSpec spec;
    const char *path[PATHS_MAX];
    double weight[PATHS_MAX];
} DataSpec;
/* The DataCfg must outlive it; threads and progress are left to the caller. */
void data_spec(const DataCfg *, DataSpec *);
/* data.tokenizer and data.eot; tokenizer_close when done. EXIT_INPUT: as tokenizer_open, and no end-of-text id. */
bool data_tokenizer(const DataCfg *, Tokenizer *, Err *);
