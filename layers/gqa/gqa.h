/* gqa.h: grouped-query attention, and all variants of it that differ only by settings. The mixer gqa uses it; dmc and
 * the readers and writers of Hugging Face models share its settings and weights.
 *
 *   q = Wq x + bq; k = Wk x + bk; v = Wv x + bv          (H,D) (G,D) (G,D) per token
 *   q, k <- RMSNorm over D of every head                  qk_norm (as Qwen3: before the rotation)
 *           RMSNorm over H D and over G D                 qk_norm_wide (as OLMo 2)
 *   q, k <- rotated by position                           rope; type none: NoPE; rope_dims: only the first elements of
 *                                                         a head (GPT-NeoX)
 *   query head h attends to lane h / (H/G) causally, in its document, within `window` positions or the first `sinks`
 *   sink_scores: a softmax has one more term exp(sink_h), without a value (gpt-oss)
 *   o <- o sigmoid(Wg x + bg)                             out_gate (Qwen3-Next)
 *   y = Wo [o_1 .. o_H] + bo
 * MHA is kv_heads = heads, MQA is kv_heads = 1. A layer whose kv_from names another layer has no Wk and Wv and reads
 * that layer's rows. heads = 0 publishes K/V for other layers and adds nothing itself (YOCO's middle layer).
 * Sources: arXiv:1706.03762 (MHA), arXiv:1911.02150 (MQA), arXiv:2305.13245 (GQA), arXiv:2004.05150 (window),
 * arXiv:2309.17453 (sinks), arXiv:2405.12981 and arXiv:2405.05254 (shared K/V). */
#pragma once
#include "layers/mixer.h"

typedef struct {
    LayerCfg base;
    int heads, kv_heads, head_dim, window, sinks, rope_dims;
    RopeCfg rope;
    double scale, soft_cap; /* 0: 1/sqrt(head_dim); no cap */
    bool qk_norm, qk_norm_wide, out_gate, sink_scores, qkv_bias, o_bias;
    Rope table; /* derived */
} GqaCfg;

/* Shared with mixers that differ from gqa only in what their cache keeps. */
typedef struct {
    Tensor wq, wk, wv, wo, bq, bk, bv, bo, nq, nk;
    Tensor wg, bg, sinks; /* out_gate, sink_scores */
} GqaW;
bool gqa_check(void *cfg, Err *); /* checks the GqaCfg that cfg begins with; fills its derived members */
void gqa_weights(const void *cfg, void *w, Fields *);
AttnSpec gqa_attn(const GqaCfg *);
/* Norms the projected heads `raw` if `norm` is present, and rotates them; `rstd` receives what the norm's backward
 * needs. Without a norm `out` is the projection itself. */
void gqa_turn(Run *, const GqaCfg *, RowList rows, Tensor out, Tensor raw, Tensor rstd, Tensor norm);
/* From the gradient g of the heads as attended computes that of the projection, which may be g's own memory. */
Tensor gqa_turn_back(Run *, const GqaCfg *, Tensor dnorm, Tensor g, Tensor raw, Tensor rstd, Tensor norm);
