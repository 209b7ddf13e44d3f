/* hf_granite.c: the model types granite, a llama with factors on embedding, scores, residuals and logits, and olmo2, a
 * llama whose norms are after its parts and over all heads. Source: transformers configuration_granite and
 * modeling_granite, configuration_olmo2 and modeling_olmo2. */
#include "hf_file.h"

static bool plain_read(const HfFile *f, HfShape *s) {
    (void)s;
    return hf_plain_layers(f);
}

/* ---- granite ----------------------------------------------------------------------------------------------------- */

static bool granite_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    if (s->nslide) return hf_no(why, "a window");
    return !s->g.qk_norm || hf_no(why, "qk_norm");
}
static void granite_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    (void)c;
    if (!(s->g.scale > 0)) json_object_set_new(j, "attention_multiplier", json_real(1 / sqrt(s->g.head_dim)));
}

#define AT(member) offsetof(HfShape, member)
static const HfKey granite_table[] = {{"embedding_multiplier", HF_REAL, AT(embed_scale), 1, 1, NULL},
                                      {"residual_multiplier", HF_REAL, AT(residual_scale), 1, 1, NULL},
                                      {"attention_multiplier", HF_REAL, AT(g.scale), 1, 1, NULL},
                                      {"logits_scaling", HF_REAL, AT(logits_divisor), 1, 1, NULL},
                                      {0}};
#undef AT
const HfType hf_granite = {.type = "granite",
                           .architecture = "GraniteForCausalLM",
                           .about = "Granite 3: factors on embedding, scores, residuals and logits",
                           .table = granite_table,
                           .mixer = "gqa",
                           .may = HF_FACTORS | HF_SCORE_SCALE,
                           .read = plain_read,
                           .holds = granite_holds,
                           .write = granite_write,
                           .heads = true,
                           .attention_bias = true,
                           .mlp_bias = true};

/* ---- olmo2 ------------------------------------------------------------------------------------------------------- */

static bool olmo2_read(const HfFile *f, HfShape *s) {
    s->g.qk_norm_wide = true;
    return hf_plain_layers(f);
}
static bool olmo2_holds(const ModelCfg *c, const HfShape *s, const char **why) {
    (void)c;
    if (s->nslide) return hf_no(why, "a window");
    return s->g.qk_norm_wide || hf_no(why, "no qk_norm_wide");
}
static void olmo2_write(json_t *j, const ModelCfg *c, const HfShape *s) {
    (void)c, (void)s;
    json_object_set_new(j, "pad_token_id", json_null());
}
const HfType hf_olmo2 = {.type = "olmo2",
                         .architecture = "Olmo2ForCausalLM",
                         .about = "OLMo 2: norms after each part, norms over all heads",
                         .mixer = "gqa",
                         .may = HF_WIDE_NORM,
                         .norm_place = NORM_POST,
                         .read = olmo2_read,
                         .holds = olmo2_holds,
                         .write = olmo2_write,
                         .eps = 1e-5,
                         .heads = true,
                         .attention_bias = true};
