/* hf_fla.h: what the files of flash-linear-attention's model types share: the settings between config.json and ours.
 * Private to hf_fla.c, which reads and writes what all of them have, and to hf_fla_types.c, which has the types. */
#pragma once
#include "layers/kda/kda.h"
#include "hf_file.h"

typedef struct {
    HfShape s; /* sizes; line: layers with a state, of any type but kda; state: which these are */
    KdaCfg kda;
    /* Attention of layers without a state, in the order of the first layer that has it: heads, kv_heads, window,
     * qkv_bias, rope.theta. */
    int nspec, spec_of[LAYERS_MAX];
    GqaCfg spec[LAYERS_MAX];
} FlaShape;
/* What the types do not have in common. */
typedef struct {
    const HfType *type;
    const char *mixer;
    int ratio; /* default of hidden_ratio */
    bool (*read)(const HfFile *, FlaShape *);
    json_t *(*kind)(const FlaShape *); /* the settings of the layers with a state */
    /* The settings of such a layer with all widths resolved, in x->s.line or x->kda; false: not of this type. */
    bool (*holds)(const ModelCfg *, const void *cfg, FlaShape *x, const char **why);
    void (*write)(json_t *, const FlaShape *);
} FlaType;

/* Config.json as our settings; the type can hold a model; its config.json. */
json_t *fla_settings(const FlaType *, const HfFile *);
bool fla_is(const FlaType *, const ModelCfg *, const char **why);
void fla_json(const FlaType *, json_t *, const ModelCfg *);
/* As Python has it, null is false. */
bool fla_flag(const HfFile *, const char *key, bool dflt, bool *out);
/* A whole number, by default `heads`: a divisor or a multiple of it. */
bool fla_groups(const HfFile *, const char *key, int heads, bool multiple, int *out);
/* The only rotation that fla has. */
bool fla_turns(const RopeCfg *);
