/* data_spec.h: translates the settings data.* into the arguments of data/. Training and the commands that read a run's
 * data call it. */
#pragma once
#include "data/text.h"
#include "config.h"

/* A StreamSpec with the arrays that its pointers point to. */
typedef struct {
    StreamSpec spec;
    const char *path[PATHS_MAX];
    double weight[PATHS_MAX];
} DataSpec;
/* Fill the spec. The DataCfg must outlive it; the caller sets threads and progress. */
void data_spec(const DataCfg *, DataSpec *);
/* Open data.tokenizer with data.eot; the caller must call tokenizer_close. EXIT_INPUT: as tokenizer_open, or no
 * end-of-text id. */
bool data_tokenizer(const DataCfg *, Tokenizer *, Err *);
