/* mla.h: multi-head latent attention: the cache holds one short latent per token, from which the keys and values of
 * all heads are built. The mixer mla uses it; the deepseek_v3 reader and conversions read its settings.
 *
 *   u = Wa x + ba                                  (r + G Dr) per token: latent, then G rope keys
 *   c = RMSNorm(u[0:r]); kr_g = rotated(u[r + g Dr ...])
 *   q = Wq x + bq, or Wqb RMSNorm(Wqa x + ba') + bq   (H, Dn + Dr): [qn | qr], qr rotated
 *   [kn_h | v_h] = Wb_h c                          (H, Dn + Dv)
 *   s_ij = scale (qn_i . kn_j + qr_i . kr_j)       head h reads rope key h / (H/G)
 *   o_h = sum_j softmax_j(s_ij) v_j;  y = Wo [g_1 o_1 .. g_H o_H] + bo;  g = sigmoid(Wg x) with out_gate, else 1
 *   scale = (Dn + Dr)^-1/2 m^2, m = 0.1 mscale_all_dim ln(factor) + 1 where both are given (yarn), else 1
 *
 * Stored per token: [c | kr_1 .. kr_G], one row for all heads.
 *
 * The absorbed form gives the same values without computing any head's keys or values. With Wb_h = [Wk_h; Wv_h]
 *   s_ij = scale ([Wk_h^T qn_i | qr_i] . [c_j | kr_j]);  z_h = sum_j softmax_j(s_ij) c_j;  o_h = Wv_h z_h
 * It is attention of H heads to one lane whose value is the first r elements of its key.
 *
 * Training uses the expanded form. The history is read absorbed. A pass reads its own rows in the form that needs
 * fewer FLOPs. G = 1 is DeepSeek's; G > 1 holds a grouped-query model losslessly (r = its values, Dn = 0, a rope key
 * for each of its key heads). A layer whose kv_from names another layer reads that layer's latents through its own Wb;
 * heads = 0 publishes.
 *
 * evict: u_t = Wd x_t + bd decides, as an adapter of dmc (layers/dmc/dmc.h), about the one lane. The mask of row j,
 * [i - j > delay] log(1 - alpha_j+1), is added to s_ij of every head, in both forms, here and in layers that read the
 * latents.
 *
 * Sources: arXiv:2405.04434 section 2.1, arXiv:2412.19437; deepseek-ai/DeepSeek-V3 inference/model.py; names and the
 * norms' eps of 1e-6: transformers modeling_deepseek_v3; out_gate: transformers modeling_bailing_hybrid. */
#pragma once
#include "layers/mixer.h"

typedef struct {
    LayerCfg base;
    int heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim, rope_heads, window, sinks;
    RopeCfg rope;
    bool latent_norm, q_latent_norm, a_bias, q_bias, o_bias, out_gate, evict;
    int delay;
    double temperature, offset, gain; /* of evict; gain 0: EVICT_GAIN */
    Rope q_turn, k_turn;              /* derived */
} MlaCfg;
extern const Mixer mla_mixer;

/* True if a pass of N rows should expand its own keys and values; the `out.n` wanted rows are its queries. With P the
 * pairs of a query and a row of this pass that it sees, the cost per head in multiply-adds is
 *   absorbed  P (2 r + G Dr)                                     absorbing and lifting: out.n r (Dn + Dv)
 *   expanded  P (Dn + Dr + Dv) + N r (Dn + Dv)
 * A history is always read absorbed. So with a history absorbing and lifting is paid in both forms; without one only
 * the absorbed form pays it. */
bool mla_expands(const MlaCfg *, const Batch *, RowList out);
