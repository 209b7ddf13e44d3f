/* compression.h: the compression loss: it penalises mixers that keep too many cache rows, and reports the compression
 * reached. A training step adds it to the loss if train.compression is set.
 *
 * For every sequence b a mixer reports how many of its rows, over layers, heads and positions, are merged into another
 * row or evicted: sum_b of count_b decisions (STAT_MERGED, ops/run.h), each 0 or 1. With m_b = sum_b / count_b,
 *
 *     loss = weight / B  sum_b max(0, p - m_b)        p = 1 - 1/c
 *     c    = 1 + (target - 1) progress when ramp, else target
 *
 * over the B sequences of the whole batch, so that micro-batches change nothing; progress is that of the stage. The
 * hinge is one-sided and covers all layers together: heads may differ, and more compression costs nothing. Its
 * derivative by sum_b is -weight / (B count_b) where m_b < p, else 0.
 *
 * So a run may miss its target: evaluation makes other decisions, those without noise, and nothing pulls a run back
 * that has passed it. With `exact` decisions count as they would be without noise (RUN_COUNT_STILL, which the owner
 * sets), and too much costs as too little does, with x = |p - m_b| and near = 0.05 (Huber's form):
 *
 *     loss = weight / B  sum_b  x < near ? x^2 / (2 near) : x - near / 2
 *
 * |x| alone pushes with the same force at any distance: a small model swings about its target, and where the swing
 * stops decides what it ends with; and it asks for the median sequence where evaluation has the mean. Near the target
 * the force falls with the distance, so the mean settles. docs/log.md has the figures.
 *
 *     compression achieved = 1 / (1 - sum m / count)     rows made for every row kept, over the whole batch
 * Source: arXiv:2403.09636, section 3.2; the branch dmc of github.com/NVIDIA/Megatron-LM. */
#pragma once
#include "model/workspace.h"

#define COMPRESSION_NEAR 0.05 /* at a target of 4: from 3.3 to 5 */

typedef struct {
    double wanted;     /* p; 0: there is no loss */
    double weight;     /* of one sequence: weight / B */
    bool both;         /* more than p costs, too */
    double sum, count; /* of decisions seen since compression_begin */
    double loss;       /* so far */
} Compression;

/* Begin a pass over one batch of B sequences. cfg NULL: count decisions, without a loss. */
void compression_begin(Compression *, const CompressionCfg *, double progress, int B);
StatLoss compression_stat; /* ctx: a Compression */
/* False: no mixer reported anything. Infinite if every row was merged. */
bool compression_achieved(const Compression *, double *cr);
/* EXIT_INPUT if the target is above 1 and no layer of this model reports decisions. */
bool compression_check(const Model *, const CompressionCfg *, Err *);
