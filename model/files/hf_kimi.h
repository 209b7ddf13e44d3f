/* hf_kimi.h: what the types kimi_linear and bailing_hybrid share: both mix layers of Kimi Delta Attention with latent
 * attention, and dense with sparse feed-forward parts. Private to hf_kimi.c and hf_bailing.c. */
#pragma once
#include "hf_file.h"

/* Which layers are sparse: those that mlp_layer_types lists, else those from first_k_dense_replace (by default `first`)
 * on; `alike`: they may not differ. If any is sparse, the settings of experts by the table `keys_of`. */
bool hf_kimi_feeds(const HfFile *, const HfKey *keys_of, int first, bool alike, HfShape *);
/* The latents can be written and, unless this is the first such layer, are those of s->mla, which they become. */
bool hf_kimi_latent(const MlaCfg *, bool first, HfShape *s, const char **why);
/* There are experts, and both types can hold them. Sets s->F where no layer is dense. */
bool hf_kimi_experts(HfShape *, const char **why);
