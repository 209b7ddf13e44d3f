/* rope.h: the frequencies of rotary position embedding with every scaling of Hugging Face's rope_utils.
 *
 * Pair i of a head's n rotated numbers turns by pos * f_i; f_i = theta^(-2i/n) before scaling, or, `inclusive` (YOCO,
 * arXiv:2405.05254: the slowest pair is 1/theta itself), theta^(-i/(n/2-1)) (1 for a single pair). Half-split layout:
 * pair i is (x_i, x_{i+n/2}); interleaved: (x_2i, x_{2i+1}). `factor` multiplies both cos and sin. Sources:
 * arXiv:2104.09864; arXiv:2309.00071 (yarn); transformers modeling_rope_utils (v5 meaning of the fields). */
#pragma once
#include "key.h"

typedef enum { ROPE_DEFAULT, ROPE_NONE, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE } RopeType;
typedef struct {
    int type;
    double theta, factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow, mscale, mscale_all_dim;
    double attention_factor;    /* 0: from the scaling's own rule */
    int original_max_positions; /* L in the formulas; 0: the model's max_positions */
    int length; /* that decides in dynamic and longrope; 0: the model's max_positions, or what model_plan gives */
    bool truncate, interleaved, inclusive;
    Numbers short_factor, long_factor;
} RopeCfg;
extern const Key rope_keys[];

enum { ROPE_PAIRS = 256 };
typedef struct {
    int n;  /* rotated numbers of a head, even, <= 2*ROPE_PAIRS; 0: no rotation */
    int at; /* the first of them in the head; 0 from rope_make */
    bool interleaved;
    double factor;        /* attention factor, on cos and sin alike */
    double f[ROPE_PAIRS]; /* radians per position, n/2 of them */
} Rope;
/* Fill `out` for n rotated numbers of a head in a model of max_positions. False: a field is missing or out of range. */
bool rope_make(Rope *out, const RopeCfg *, int n, int max_positions, Err *);
