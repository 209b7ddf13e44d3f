/* adapter.h: delayed eviction by a projection of its own: `decide: adapter` of the mixer dmc, `evict` of the mixer mla.
 * Both call these functions in their passes; dmc.h has the formulas. A lane decides by one element of
 *
 *   u_t = Wd x_t + bd          x: the mixer's input
 *
 * Wd and bd begin as zeros: nothing is evicted, and the model is the plain one. Nothing else of the layer changes, so
 * norms, rotations and latents of every kind are supported. */
#pragma once
#include "layers/mixer.h"

/* Entries of a table of settings, for members of these names. */
/* clang-format off */
#define EVICT_KEYS(cfg)                                                                                               \
    {"delay", KEY_INT, offsetof(cfg, delay), "0", 0, 1 << 20,                                                         \
     "evict: positions that a row stays visible after the decision", 0, 0},                                           \
    {"temperature", KEY_FLOAT, offsetof(cfg, temperature), "0.1", 1e-3, 1e3, "temperature of the soft decisions",     \
     0, 0},                                                                                                           \
    {"offset", KEY_FLOAT, offsetof(cfg, offset), "5", -1e3, 1e3,                                                      \
     "subtracted from what decides; to merge, also added to the importance", 0, 0},                                   \
    {"gain", KEY_FLOAT, offsetof(cfg, gain), "0", 0, 1e6, "factor of what decides; 0: 100 to evict, 1 to merge", 0, 0}
/* clang-format on */
#define EVICT_GAIN 100 /* of `gain: 0`, as published */

/* Declares Wd (lanes,d) and bd (lanes). */
void adapter_fields(Fields *, Tensor *w, Tensor *b, int lanes, int d_model);
/* Decides about the rows of the pass: writes alpha (N,lanes), kv->bias and, for a cache, kv->evicted. Where rows decide
 * about themselves (Decide.itself), past has the u that the cache carries, absent without a history, and the last u is
 * carried on. */
void adapter_decide(Run *, Tensor w, Tensor b, Decide, Tensor x, const Kv *kv, Tensor past, Tensor alpha);
/* The gradient by u (N,lanes), in scratch, with the dtype of the layer's activations: of the masks' gradients, which
 * are complete, and of r->dstat. */
Tensor adapter_backward(Run *, Decide, const Kv *dkv, Tensor alpha, Dtype);
