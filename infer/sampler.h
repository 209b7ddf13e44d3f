/* sampler.h: chooses one token from one row of logits. generate.c calls it for every row of a decoding step.
 *
 * Steps, in this order (that of Hugging Face's generate and of llama.cpp):
 *   1. repetition penalty r: once per distinct token seen in prompt or output, logit > 0: / r, else: * r
 *      (arXiv:1909.05858)
 *   2. temperature t: logits / t; t = 0 stops here with the largest logit (greedy)
 *   3. top-k: the k most probable tokens, exactly k of them
 *   4. top-p: with the rest renormalised, tokens whose strictly preceding mass is < p        (arXiv:1904.09751)
 *   5. min-p: tokens with probability >= min-p times that of the most probable one           (arXiv:2407.01082)
 *   6. renormalise and draw
 * Probabilities are f64 whatever the logits are. Equal logits rank by id, the lower first. A draw is a pure function of
 * (seed, sequence, index of the draw): it does not depend on what else runs in the batch. */
#pragma once
#include "ops/sample.h"
#include "ops/tensor.h"

typedef struct {
    double temperature, top_p, min_p, repetition_penalty;
    int top_k; /* 0: all */
    uint64_t seed;
} Sampler;
/* No step changes anything: temperature 1, top_p 1, min_p 0, penalty 1, top_k 0, seed 1. */
Sampler sampler_default(void);
/* Ranges: 0 <= temperature <= 1e6, 0 < top_p <= 1, 0 <= min_p <= 1, 1e-6 <= penalty <= 1e6, top_k >= 0. The message
 * names the option. */
bool sampler_check(const Sampler *, Err *);

typedef struct {
    int id;
    double p;
} Candidate;
/* Steps 1 to 6 without the draw: the tokens that may be drawn, with their probabilities, into c (room for V); *n of
 * them, at least 1. By falling probability if top-k or top-p is on, else by id. `seen` (V): nonzero for tokens of
 * prompt and output; NULL: none. False (EXIT_RUNTIME) if a logit is NaN or no logit is finite. */
bool sampler_support(const Sampler *, const real *logits, int V, const unsigned char *seen, Candidate *c, int *n,
                     Err *);
/* The token of draw `draw` of sequence `seq`. c: room for V candidates. */
bool sampler_pick(const Sampler *, const real *logits, int V, const unsigned char *seen, uint64_t seq, uint64_t draw,
                  Candidate *c, int *token, Err *);
/* The same, for a device that samples (ops/sample.h), and the meaning of its result. */
SampleRow sampler_row(const Sampler *, uint64_t seq, uint64_t draw);
bool sampler_drawn(const Sampled *, int V, int *token, Err *);
