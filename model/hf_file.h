/* hf_file.h: what the readers and writers of config.json share. Private to model/hf*.c. */
#pragma once
#include "../ops/rope.h"
#include "hf.h"
#include <jansson.h>

typedef struct {
    const char *path;
    const json_t *j;
    Err *e;
} HfFile;

bool hf_given(const json_t *, const char *key); /* there, and not null */
/* Values of f->j, checked; the message names file and key. Absent or null: the default, if there is one (-1: none). */
bool hf_whole(const HfFile *, const char *key, int least, int dflt, int *out);
bool hf_number(const HfFile *, const char *key, double dflt, bool zero, double *out);
bool hf_flag(const HfFile *, const char *key, bool *out);
bool hf_rope_read(const HfFile *, json_t *out); /* rotation in our own terms */
bool hf_supported(const HfFile *);              /* no key that changes the model in a way that is not built */

/* What the model types of the Llama family spell alike: the model's own settings and these. */
typedef struct {
    const char *architecture, *type;
    int heads, kv_heads, head_dim;
    bool bias;
    const RopeCfg *rope;
} HfFamily;
void hf_family_json(json_t *, const ModelCfg *, HfFamily);
/* One kind of this mixer and one swiglu in every layer, nothing shared or scaled; otherwise `why` (may be NULL). */
bool hf_plain(const ModelCfg *, const char *mixer, const char **why);
/* Why transformers' rotation is not ours; NULL: it is. */
const char *hf_rope_differs(const RopeCfg *, int max_positions);

/* hf_deepseek.c: model_type "deepseek_v3" without experts, one mla kind and one swiglu. */
json_t *hf_deepseek_settings(const HfFile *);
void hf_deepseek_json(json_t *, const ModelCfg *);
