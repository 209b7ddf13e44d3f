/* compression.h: a loss on what mixers report of their caches, and the compression that it reports.
 *
 * Of every sequence b a mixer reports how many of its rows, over layers, heads and positions, merge into another or are
 * given up: sum_b of count_b decisions (STAT_MERGED, ops/run.h), each 0 or 1. With m_b = sum_b / count_b,
 *
 *     loss = weight / B  sum_b max(0, p - m_b)        p = 1 - 1/c
 *     c    = 1 + (target - 1) progress when ramp, else target
 *
 * over the B sequences of the whole batch, so that micro-batches change nothing; progress is that of the stage. The
 * hinge is one-sided and over all layers together: heads may differ, and more compression costs nothing. Its derivative
 * by sum_b is -weight / (B count_b) where m_b < p, else 0.
 *     compression achieved = 1 / (1 - sum m / count)     rows made for every row kept, over the whole batch
 * Source: arXiv:2403.09636, section 3.2; the branch dmc of github.com/NVIDIA/Megatron-LM. */
#pragma once
#include "../model/model.h"

typedef struct {
    double wanted;     /* p; 0: no loss is asked for */
    double weight;     /* of one sequence: weight / B */
    double sum, count; /* of decisions seen since compression_begin */
    double loss;       /* so far */
} Compression;

/* A pass over one batch of B sequences begins. cfg NULL: no loss, decisions are counted alone. */
void compression_begin(Compression *, const CompressionCfg *, double progress, int B);
StatLoss compression_stat; /* ctx: a Compression */
/* False: nothing was reported. Infinite where every row was merged. */
bool compression_achieved(const Compression *, double *cr);
/* A target above 1 needs a layer that reports, in this model: EXIT_INPUT otherwise. */
bool compression_check(const Model *, const CompressionCfg *, Err *);
