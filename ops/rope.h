/* rope.h: computes the frequencies of rotary position embedding, with every scaling of Hugging Face's rope_utils.
 * Mixers call rope_make when their settings are checked; Ops.rope uses the result.
 *
 * Pair i of a head's n rotated elements turns by pos * f_i:
 *   f_i = theta^(-2i/n)             before scaling
 *   f_i = theta^(-i/(n/2-1))        with `inclusive` (YOCO, arXiv:2405.05254): the slowest pair is 1/theta; 1 if n = 2
 *   half-split layout: pair i is (x_i, x_{i+n/2});  interleaved: (x_2i, x_{2i+1})
 * `factor` multiplies both cos and sin.
 * Sources: arXiv:2104.09864; arXiv:2309.00071 (yarn); transformers modeling_rope_utils (v5 meaning of the fields). */
#pragma once
#include "key.h"

typedef enum { ROPE_DEFAULT, ROPE_NONE, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE } RopeType;
typedef struct {
    int type;
    double theta, factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow, mscale, mscale_all_dim;
    double attention_factor;    /* 0: from the scaling's own rule */
    int original_max_positions; /* L in the formulas; 0: the model's max_positions */
    /* the length that selects the factors of dynamic and longrope; 0: the model's max_positions, or model_plan's
     * length */
    int length;
    bool truncate, interleaved, inclusive;
    Numbers short_factor, long_factor;
} RopeCfg;
extern const Key rope_keys[];

enum { ROPE_PAIRS = 256 };
typedef struct {
    int n;  /* rotated elements of a head, even, <= 2*ROPE_PAIRS; 0: no rotation */
    int at; /* the first rotated element of the head; rope_make sets 0 */
    bool interleaved;
    double factor;        /* attention factor, on cos and sin alike */
    double f[ROPE_PAIRS]; /* radians per position, n/2 of them */
} Rope;
/* Fill `out` for n rotated elements of a head in a model of max_positions. False: a field is missing
 * or out of range. */
bool rope_make(Rope *out, const RopeCfg *, int n, int max_positions, Err *);
