/* mixer.h: the interface of a sequence mixer (attention and its relatives): a table of three declarations, three
 * computations and a few options. The model calls it for every layer, in training passes and in extend.
 *
 * A new mixer is one folder in layers/ and one line in mixers.c. It then trains, saves, decodes, reports its cache
 * bytes, and every generic test covers it. See docs/add-a-mixer.md. */
#pragma once
#include "ops/rope.h"
#include "kv.h"

/* The first member of the settings of every mixer and feed-forward part. The model fills it, not the user. */
typedef struct {
    int d_model, max_positions;
    double norm_eps;
    bool norm_plus_one; /* norms of the model's kind multiply by 1 + weight */
    bool owner; /* writes the layer's K/V; false: reads those of another layer (kv_from) and has no K/V weights */
} LayerCfg;

typedef struct Mixer {
    const char *name, *source;
    const Key *keys; /* of the settings struct, LayerCfg excluded */
    size_t cfg_size, w_size, s_size;
    /* Check that the settings agree with each other and with LayerCfg, and fill derived members. The message must name
     * the key. */
    bool (*check)(void *cfg, Err *);
    /* Declarations. */
    void (*weights)(const void *cfg, void *w, Fields *);
    void (*saved)(const void *cfg, int N, void *s, Fields *); /* kept for backward, in addition to x and kv */
    void (*rows)(const void *cfg, KvShape *); /* the shape of the rows it stores, or as a reader expects to find */
    /* Computations. x and dx (in.n, d), y and dy (out.n, d).
     * - The owner writes kv, readers read it. Every backward adds its part to dkv; the owner's backward runs last and
     *   consumes the sum.
     * - forward must overwrite y; backward must add to dw, and do with dx and dkv what they say (Into, tensor.h).
     * - forward and extend should share their inner function. extend must read the history of `slot` first.
     * - A mixer with a state reads and writes it in place (kv_state) in extend. Under RUN_HOLD it must only read it:
     *   the model then calls extend again for the accepted rows, and nobody reads their y. */
    void (*forward)(Run *, const void *cfg, const void *w, Tensor x, Kv *kv, void *s, Tensor y);
    void (*backward)(Run *, const void *cfg, const void *w, void *dw, Tensor x, const Kv *kv, const KvInto *dkv,
                     const void *s, Tensor dy, Into dx);
    void (*extend)(Run *, const void *cfg, const void *w, Tensor x, Kv *kv, const Slot *slot, Tensor y);
    /* Forward FLOPs of one token in addition to 2 per weight, at `context` visible positions before windows. */
    double (*flops)(const void *cfg, double context);
    /* The same for a token that is decoded over a cache, if that differs; NULL: as flops. */
    double (*decode_flops)(const void *cfg, double context);
    /* Optional functions; NULL: nothing to do. */
    /* q (out.n, heads, kdim): the queries that extend would give to kv_attend, of x (in.n, d); returns what it would
     * give with them. The model asks for them where a policy guesses a layer's queries from the input of the layer
     * before. */
    AttnSpec (*queries)(Run *, const void *cfg, const void *w, Tensor x, const Kv *kv, Tensor q);
    const Rope *(*turns)(const void *cfg);   /* how queries and keys are rotated; NULL: not at all, or not alike */
    bool (*publishes_only)(const void *cfg); /* y does not exist: the block adds nothing and has no feed-forward part */
    void (*init)(const void *cfg, void *w, uint64_t key); /* fills the fields declared FIELD_OWN, from the key alone */
    bool reads_nothing;                                   /* y does not depend on x: the block has no norm before it */
    bool (*reports)(const void *cfg);                     /* adds STAT_MERGED to every sequence of a training pass */
    /* Called when a training stage with these settings ended: for the weights and for each of the optimizer's moments.
     * Their tensors lie on the device and may be BF16, or absent. */
    void (*stage_end)(Device *, const void *cfg, void *w);
    /* The mixer can run training passes in bf16. Then
     * - x, dx, k, v and the `saved` tensors without FIELD_F32 are all BF16 or all REAL; y and dy are REAL;
     * - dkv has the dtype of k and v, or REAL if several layers add to it;
     * - dx, and a dkv that only this layer adds to, come to be overwritten: each goes to one op, or each of its columns
     *   does. */
    bool takes_bf16;
} Mixer;
extern const Mixer *const mixers[]; /* NULL-ended */
const Mixer *mixer_find(const char *name);

/* The feed-forward part: the same interface without K/V. forward NULL: there is none, nor the norm before it, and
 * nothing but the keys is read. */
typedef struct Ffn {
    const char *name, *source;
    const Key *keys;
    size_t cfg_size, w_size, s_size;
    bool (*check)(void *cfg, Err *);
    void (*weights)(const void *cfg, void *w, Fields *);
    void (*saved)(const void *cfg, int N, void *s, Fields *);
    void (*forward)(Run *, const void *cfg, const void *w, Tensor x, void *s, Tensor y);
    void (*backward)(Run *, const void *cfg, const void *w, void *dw, Tensor x, const void *s, Tensor dy, Into dx);
    /* Optional: how many elements of its matrices a token does not use (experts that were not chosen). */
    size_t (*idle)(const void *cfg);
    /* Values of a pass decide which work the device gets (rows of each expert's products). So passes of one shape
     * differ, and no pass can be replayed as a graph of another. */
    bool varies;
    bool takes_bf16; /* as Mixer.takes_bf16; if several ops add to dx, the first one overwrites it */
} Ffn;
extern const Ffn *const ffns[]; /* NULL-ended */
const Ffn *ffn_find(const char *name);
