/* mixer.h: the interface of a sequence mixer (attention and its relatives): three declarations, three computations.
 *
 * A mixer is one folder in layers/ and one line in mixers.c; it then trains, saves, decodes, reports its cache and is
 * under every generic test. See docs/add-a-mixer.md. */
#pragma once
#include "../ops/key.h"
#include "kv.h"

/* The first member of every mixer's and feed-forward's settings; filled by the model, not by the user. */
typedef struct {
    int d_model, max_positions;
    double norm_eps;
    bool owner; /* writes the layer's K/V; false: reads those of another layer (kv_from) and has no K/V weights */
} LayerCfg;

typedef struct Mixer {
    const char *name, *source;
    const Key *keys; /* of the settings struct, LayerCfg excluded */
    size_t cfg_size, w_size, s_size;
    /* Settings agree with each other and with LayerCfg? Fills derived members. The message names the key. */
    bool (*check)(void *cfg, Err *);
    /* Declarations. */
    void (*weights)(const void *cfg, void *w, Fields *);
    void (*saved)(const void *cfg, int N, void *s, Fields *); /* kept for backward, beside x and kv */
    void (*rows)(const void *cfg, KvShape *);                 /* what it stores, or as a reader expects to find */
    /* Computations. The owner writes kv, readers read it; every backward adds its share to dkv and the owner's, which
     * comes last, consumes the sum. x and dx (in.n, d), y and dy (out.n, d). forward overwrites y; backward adds to dx
     * and dw. `forward` and `extend` share their inner function; extend reads the history of `slot` first. A mixer with
     * a state reads and writes it in place (kv_state) in extend, but only reads it under RUN_HOLD: the model then calls
     * extend again for the rows that were accepted, whose y nobody reads. */
    void (*forward)(Run *, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y);
    void (*backward)(Run *, const void *cfg, const void *w, void *dw, Tensor x, const Kv *kv, Kv *dkv, const void *s,
                     Tensor dy, Tensor dx);
    void (*extend)(Run *, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y);
    /* Forward FLOPs of one token beyond 2 per weight, at `context` visible positions before windows. */
    double (*flops)(const void *cfg, double context);
    /* The same of a token that is decoded over a cache, where that is another sum; NULL: flops. */
    double (*decode_flops)(const void *cfg, double context);
    /* Optional, NULL where there is nothing to do. */
    bool (*publishes_only)(const void *cfg); /* y does not exist: the block adds nothing and has no feed-forward part */
    void (*init)(const void *cfg, void *w, uint64_t key); /* fills the fields declared FIELD_OWN, by the key alone */
    bool (*reports)(const void *cfg);                     /* adds STAT_MERGED to every sequence of a training pass */
    /* A training stage with these settings ended: called on the weights and on each of the optimizer's moments, whose
     * tensors lie on the device and may be BF16, or absent. */
    void (*stage_end)(Device *, const void *cfg, void *w);
    /* In training passes x, dx, k and v, and what `saved` declares without FIELD_F32, may be BF16, all of them or none,
     * with y and dy in REAL; dkv is like k and v, or REAL where several layers add to it; and dx, and a dkv that only
     * this layer adds to, are fresh (ops.h) and each goes to one op, or each of its columns. */
    bool half;
} Mixer;
extern const Mixer *const mixers[]; /* NULL-ended */
const Mixer *mixer_find(const char *name);

/* The feed-forward part: the same without K/V. */
typedef struct Ffn {
    const char *name, *source;
    const Key *keys;
    size_t cfg_size, w_size, s_size;
    bool (*check)(void *cfg, Err *);
    void (*weights)(const void *cfg, void *w, Fields *);
    void (*saved)(const void *cfg, int N, void *s, Fields *);
    void (*forward)(Run *, const void *cfg, const void *w, Tensor x, void *s, Tensor y);
    void (*backward)(Run *, const void *cfg, const void *w, void *dw, Tensor x, const void *s, Tensor dy, Tensor dx);
    /* Optional: numbers of its matrices that a token does not meet (experts that were not chosen). */
    size_t (*idle)(const void *cfg);
    /* The numbers of a pass decide what it asks of the device (rows of each expert's products): passes of one shape
     * differ, and none is a recording of another. */
    bool varies;
    bool half; /* as Mixer.half; of several ops that add to dx the first finds it fresh */
} Ffn;
extern const Ffn *const ffns[]; /* NULL-ended */
const Ffn *ffn_find(const char *name);
