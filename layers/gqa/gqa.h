/* gqa.h: grouped-query attention and everything that differs from it by a setting.
 *
 *   q = Wq x + bq; k = Wk x + bk; v = Wv x + bv          (H,D) (G,D) (G,D) per token
 *   q, k <- RMSNorm over D of every head                  qk_norm (as Qwen3: before the rotation)
 *   q, k <- rotated by position                           rope; type none: NoPE; rope_dims: the first numbers of a
 *                                                         head alone (GPT-NeoX)
 *   query head h attends to lane h / (H/G) causally, in its document, within `window` positions or the first `sinks`
 *   y = Wo [o_1 .. o_H] + bo
 * MHA is kv_heads = heads, MQA kv_heads = 1. A layer whose kv_from names another has no Wk, Wv and reads that layer's
 * rows. heads = 0 publishes K/V for others and adds nothing itself (YOCO's middle layer).
 * Sources: arXiv:1706.03762 (MHA), arXiv:1911.02150 (MQA), arXiv:2305.13245 (GQA), arXiv:2004.05150 (window),
 * arXiv:2309.17453 (sinks), arXiv:2405.12981 and arXiv:2405.05254 (shared K/V). */
#pragma once
#include "../mixer.h"

typedef struct {
    LayerCfg base;
    int heads, kv_heads, head_dim, window, sinks, rope_dims;
    RopeCfg rope;
    bool qk_norm, qkv_bias, o_bias;
    Rope table; /* derived */
} GqaCfg;

/* What mixers that differ from gqa only in what they keep share with it. */
typedef struct {
    Tensor wq, wk, wv, wo, bq, bk, bv, bo, nq, nk;
} GqaW;
bool gqa_check(void *cfg, Err *); /* of the GqaCfg that cfg begins with; fills its derived members */
void gqa_weights(const void *cfg, void *w, Fields *);
Look gqa_look(const GqaCfg *);
