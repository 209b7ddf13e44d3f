/* mla.h: multi-head latent attention: the cache holds one short latent per token, from which every head's key and value
 * are built.
 *
 *   u = Wa x + ba                                  (r + G Dr) per token: latent, then G rope keys
 *   c = RMSNorm(u[0:r]); kr_g = rotated(u[r + g Dr ...])
 *   q = Wq x + bq, or Wqb RMSNorm(Wqa x + ba') + bq   (H, Dn + Dr): [qn | qr], qr rotated
 *   [kn_h | v_h] = Wb_h c                          (H, Dn + Dv)
 *   s_ij = scale (qn_i . kn_j + qr_i . kr_j)       head h reads rope key h / (H/G)
 *   o_h = sum_j softmax_j(s_ij) v_j;  y = Wo [o_1 .. o_H] + bo
 *   scale = (Dn + Dr)^-1/2 m^2, m = 0.1 mscale_all_dim ln(factor) + 1 where both are given (yarn), else 1
 *
 * Stored per token: [c | kr_1 .. kr_G], one row for all heads.
 *
 * Absorbed, the same numbers without a key or value of any head: with Wb_h = [Wk_h; Wv_h]
 *   s_ij = scale ([Wk_h^T qn_i | qr_i] . [c_j | kr_j]);  z_h = sum_j softmax_j(s_ij) c_j;  o_h = Wv_h z_h
 * which is attention of H heads to one lane whose value is the first r numbers of its key.
 *
 * Training expands; the history is read absorbed; a pass's own rows are read the way that takes fewer FLOPs. G = 1 is
 * DeepSeek's; G > 1 holds a grouped-query model exactly (r = its values, Dn = 0, a rope key for each of its key heads).
 * A layer whose kv_from names another reads that layer's latents through a Wb of its own; heads = 0 publishes.
 *
 * Sources: arXiv:2405.04434 section 2.1, arXiv:2412.19437; deepseek-ai/DeepSeek-V3 inference/model.py; names and the
 * norms' eps of 1e-6: transformers modeling_deepseek_v3. */
#pragma once
#include "../mixer.h"

typedef struct {
    LayerCfg base;
    int heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim, rope_heads, window, sinks;
    RopeCfg rope;
    bool latent_norm, q_latent_norm, a_bias, q_bias, o_bias;
    Rope q_turn, k_turn; /* derived */
} MlaCfg;
extern const Mixer mla_mixer;

/* Whether a pass of N rows expands its own keys and values, of which `out.n` wanted rows make queries. With P the pairs
 * of a query and a row of this pass that it sees, per head and multiply-add:
 *   absorbed  P (2 r + G Dr)                                     absorbing and lifting: out.n r (Dn + Dv)
 *   expanded  P (Dn + Dr + Dv) + N r (Dn + Dv)
 * A history is read absorbed, so that its price is paid in both; without one it counts for the absorbed side alone. */
bool mla_expands(const MlaCfg *, const Batch *, Pick out);
