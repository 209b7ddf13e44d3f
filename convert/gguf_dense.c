/* gguf_dense.c: llama.cpp's gemma2, gemma3, phi3, smollm3, glm4moe and gpt-oss: the models that each computes, and the
 * keys that they have besides those of gguf_arch.c. Source: llama.cpp
 * src/models/{gemma2,gemma3,phi3,smollm3,glm4-moe,openai-moe}.cpp, src/llama-hparams.cpp (set_swa_pattern). */
#include "gguf.h"

static const GqaCfg *gqa_of(const Model *m, int l) { return m->layer[l].cfg; }

const char *gguf_dense(const Model *m) {
    if (m->cfg.norm != NORM_RMS) return NULL;
    for (int l = 0; l < m->L; l++)
        if (strcmp(m->layer[l].kind->mixer->name, "gqa")) return NULL;
    const GqaCfg *g = gqa_of(m, 0);
    const Layer *last = &m->layer[m->L - 1];
    const MoeCfg *moe = last->ffn->ffn == &moe_ffn ? last->fcfg : NULL;
    int turned = 0;
    for (int l = 0; l < m->L; l++) turned += gqa_of(m, l)->table.n > 0;
    if (g->sink_scores || (moe && (moe->expert_bias || moe->limit > 0))) return "gpt-oss";
    if (moe && moe->router == ROUTER_SIGMOID) return "glm4moe";
    if (m->layer[0].ffn->ffn == &geglu_ffn) return g->qk_norm ? "gemma3" : "gemma2";
    if (turned && turned < m->L) return "smollm3";
    return g->rope.type == ROPE_LONGROPE || (g->table.n && g->table.n != g->head_dim) ? "phi3" : NULL;
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static bool period_fits(const Model *m, int period) {
    for (int l = 0; l < m->L; l++)
        if (!gqa_of(m, l)->window != ((l + 1) % period == 0)) return false;
    return true;
}
/* Windows of one width in all layers but every period-th. */
static bool windows_fit(GgufArch *a, const Model *m, int usual, Err *e) {
    for (int l = 0; l < m->L; l++) {
        const GqaCfg *g = gqa_of(m, l);
        if (!g->window) continue;
        if (!a->window) a->window = g->window, a->local = g;
        if (g->window != a->window)
            return gguf_no(e, "window: layer %d looks back %d positions, another %d (its %s has one width)", l,
                           g->window, a->window, a->name);
        if (g->sinks) return gguf_no(e, "sinks: layer %d sees the first positions besides its window", l);
    }
    if (!a->window) return true;
    a->period = usual;
    for (int p = 2; !period_fits(m, a->period) && p <= m->L + 1; p++) a->period = p;
    return period_fits(m, a->period) ||
           gguf_no(e, "window: the layers without one are not every n-th, as in its %s", a->name);
}
static bool windows_none(const Model *m, Err *e) {
    for (int l = 0; l < m->L; l++)
        if (!gguf_window_none(gqa_of(m, l)->window, l, &m->cfg, e)) return false;
    return true;
}

/* Attention alike but for windows and rotation, which `a->gqa` has as the layers without a window. */
static bool attention_alike(GgufArch *a, const Model *m, Err *e) {
    a->gqa = gqa_of(m, 0);
    for (int l = m->L - 1; l >= 0; l--)
        if (!gqa_of(m, l)->window && gqa_of(m, l)->table.n) a->gqa = gqa_of(m, l);
    const GqaCfg *g = a->gqa;
    for (int l = 0; l < m->L; l++) {
        const char *what = gguf_gqa_differs(gqa_of(m, l), g);
        if (what) return gguf_no(e, "%s: layer %d differs from others", what, l);
    }
    if (!g->heads) return gguf_no(e, "heads: layer 0 has no queries");
    if (g->out_gate) return gguf_no(e, "out_gate");
    if (g->qk_norm_wide) return gguf_no(e, "qk_norm_wide in its %s", a->name);
    if (g->table.interleaved && strcmp(a->name, "smollm3"))
        return gguf_no(e, "rope.interleaved with %s; --to same rope_layout=half makes a model that fits", a->name);
    if (m->cfg.positions != POSITIONS_NONE || m->cfg.parallel)
        return gguf_no(e, "positions learned, or parallel, with its %s", a->name);
    return true;
}
/* One rotation in all layers, or in those that have one. */
static bool turns_alike(const GgufArch *a, const Model *m, Err *e) {
    for (int l = 0; l < m->L; l++)
        if (gqa_of(m, l)->table.n && !gguf_turns_alike(gqa_of(m, l), a->gqa))
            return gguf_no(e, "rope: layer %d differs from others", l);
    return true;
}
/* Heads that are turned whole. */
static bool turned_whole(const GgufArch *a, const Model *m, Err *e) {
    for (int l = 0; l < m->L; l++)
        if (gqa_of(m, l)->table.n != a->gqa->head_dim)
            return gguf_no(e, "rope: layer %d turns %d of head_dim %d (its %s turns all)", l, gqa_of(m, l)->table.n,
                           a->gqa->head_dim, a->name);
    return true;
}

/* Nothing that only gemma has. */
static bool plain(const GgufArch *a, const Model *m, Err *e) {
    const ModelCfg *c = &m->cfg;
    if (c->norm_place != NORM_PRE) return gguf_no(e, "norm_place other than pre with its %s", a->name);
    if (c->logits_cap > 0 || a->gqa->soft_cap > 0) return gguf_no(e, "logits_cap or soft_cap with its %s", a->name);
    return gguf_factors_none(c, a->gqa, a->name, e);
}
static bool no_biases(const GgufArch *a, Err *e) {
    return !(a->gqa->qkv_bias || a->gqa->o_bias) || gguf_no(e, "qkv_bias or o_bias with its %s", a->name);
}
static bool square(const GgufArch *a, const Model *m, Err *e) {
    const GqaCfg *g = a->gqa;
    return (long)g->heads * g->head_dim == m->cfg.d_model ||
           gguf_no(e, "head_dim: %d heads of %d are not d_model, %d", g->heads, g->head_dim, m->cfg.d_model);
}
static bool all_swiglu(const GgufArch *a, const Model *m, Err *e) {
    const Ffn *f = m->layer[0].ffn->ffn;
    return (f == &swiglu_ffn && !a->moe) || gguf_no(e, "ffn %s with its %s", f->name, a->name);
}

/* ---- gemma ------------------------------------------------------------------------------------------------------- */

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

static bool gemma_fits(GgufArch *a, const Model *m, Err *e) {
    const ModelCfg *c = &m->cfg;
    const GqaCfg *g = a->gqa;
    const bool third = !strcmp(a->name, "gemma3");
    const SwigluCfg *f = m->layer[0].fcfg;
    if (c->norm_place != NORM_BOTH) return gguf_no(e, "ffn geglu with norm_place other than both");
    if (!near(c->embed_scale, sqrt(c->d_model)) || c->residual_scale != 1 || c->logits_divisor != 1)
        return gguf_no(e, "embed_scale %g, residual_scale %g, logits_divisor %g (its %s has sqrt(d_model), 1 and 1)",
                       c->embed_scale, c->residual_scale, c->logits_divisor, a->name);
    /* It tells the model of 27B parameters, whose scale is another, by its number of layers. */
    const int by = m->L == (third ? 62 : 46) ? c->d_model / g->heads : g->head_dim;
    const double scale = g->scale > 0 ? g->scale : 1 / sqrt(g->head_dim);
    if (!near(scale, 1 / sqrt(by)))
        return gguf_no(e, "scale: %g (its %s of %d layers has 1/sqrt(%d))", scale, a->name, m->L, by);
    if (third ? g->soft_cap > 0 : !(g->soft_cap > 0 && c->logits_cap > 0))
        return gguf_no(e, "soft_cap %g, logits_cap %g (its gemma2 needs both, its gemma3 has no soft_cap)", g->soft_cap,
                       c->logits_cap);
    if (!third && !c->tied) return gguf_no(e, "tied false (its gemma2 has no output layer of its own)");
    a->erf = f->act == GELU_ERF;
    if (!no_biases(a, e) || !turned_whole(a, m, e) || !windows_fit(a, m, third ? 6 : 2, e)) return false;
    if (!third) return turns_alike(a, m, e) && gguf_rope_fits(&g->rope, &g->table, false, false, a->name, e);
    for (int l = 0; l < m->L; l++) {
        const GqaCfg *b = gqa_of(m, l);
        const bool scaled = b->rope.type == ROPE_LINEAR && !b->window;
        if (b->rope.inclusive || (b->rope.type != ROPE_DEFAULT && !scaled))
            return gguf_no(e, "rope: layer %d is scaled (its gemma3 has that in layers without a window, if linear)",
                           l);
        if (!gguf_turns_alike(b, b->window ? a->local : g)) return gguf_no(e, "rope: layer %d differs from others", l);
    }
    return true;
}

/* ---- the others -------------------------------------------------------------------------------------------------- */

static bool phi_fits(GgufArch *a, const Model *m, Err *e) {
    const GqaCfg *g = a->gqa;
    a->joined = a->gate_up = true;
    if (!all_swiglu(a, m, e) || !plain(a, m, e) || !no_biases(a, e) || !square(a, m, e) || !windows_none(m, e))
        return false;
    if (g->qk_norm) return gguf_no(e, "qk_norm with its phi3");
    if (!turns_alike(a, m, e)) return false;
    a->lengths = g->rope.type == ROPE_LONGROPE;
    return a->lengths || gguf_rope_fits(&g->rope, &g->table, false, false, a->name, e);
}

static bool smollm_fits(GgufArch *a, const Model *m, Err *e) {
    const GqaCfg *g = a->gqa;
    a->turned = !g->table.interleaved;
    if (!all_swiglu(a, m, e) || !plain(a, m, e) || !no_biases(a, e) || !square(a, m, e) || !windows_none(m, e))
        return false;
    if (g->qk_norm) return gguf_no(e, "qk_norm with layers without rotation");
    for (int l = 0; l < m->L; l++)
        if (gqa_of(m, l)->table.n != (l % 4 == 3 ? 0 : g->head_dim))
            return gguf_no(e, "rope: layer %d turns %d of head_dim %d (its smollm3 turns all but every fourth layer)",
                           l, gqa_of(m, l)->table.n, g->head_dim);
    return turns_alike(a, m, e) && gguf_rope_fits(&g->rope, &g->table, false, false, a->name, e);
}

static bool glm_fits(GgufArch *a, const Model *m, Err *e) {
    const GqaCfg *g = a->gqa;
    const MoeCfg *c = a->moe;
    a->after = true;
    if (c->router_bias || c->expert_bias || c->limit > 0 || c->latent || c->act != EXPERT_SWIGLU)
        return gguf_no(e, "ffn moe with router_bias, expert_bias, limit, latent or relu2 with its glm4moe");
    if (!c->bias_balance || !c->shared || c->shared_gate || (c->shared_hidden && c->shared_hidden != c->hidden))
        return gguf_no(e,
                       "ffn moe with router sigmoid (its glm4moe has bias_balance and shared experts, ungated and as "
                       "wide as the others)");
    if (!plain(a, m, e) || !gguf_group_scores_fit(c, e) || !windows_none(m, e)) return false;
    if (g->o_bias) return gguf_no(e, "o_bias with its glm4moe");
    if (!g->table.n) return gguf_no(e, "rope none with its glm4moe");
    return turns_alike(a, m, e) && gguf_rope_fits(&g->rope, &g->table, false, false, a->name, e);
}

static bool oss_fits(GgufArch *a, const Model *m, Err *e) {
    const GqaCfg *g = a->gqa;
    const MoeCfg *c = a->moe;
    a->after = a->head = true;
    if (!c || a->dense) return gguf_no(e, "sink_scores without experts in all layers");
    if (!c->expert_bias || !c->router_bias || c->limit != 7 || c->alpha != 1.702)
        return gguf_no(e,
                       "ffn moe with expert_bias %s, router_bias %s, limit %g, alpha %g (its gpt-oss has true, true, 7 "
                       "and 1.702)",
                       c->expert_bias ? "true" : "false", c->router_bias ? "true" : "false", c->limit, c->alpha);
    if (c->router != ROUTER_SOFTMAX || !c->norm_topk || c->scale != 1 || c->groups > 1 || c->bias_balance ||
        c->shared || c->latent || c->act != EXPERT_SWIGLU)
        return gguf_no(e, "ffn moe with limit (its gpt-oss has a softmax over the chosen experts alone)");
    if (!g->sink_scores || !g->qkv_bias || !g->o_bias || g->qk_norm)
        return gguf_no(e, "experts with biases without sink_scores, qkv_bias and o_bias, or with qk_norm");
    if (!plain(a, m, e) || !turned_whole(a, m, e) || !windows_fit(a, m, 2, e) || !turns_alike(a, m, e)) return false;
    RopeCfg r = g->rope;
    a->untruncated = r.type == ROPE_YARN && !r.truncate;
    r.truncate = true;
    return gguf_rope_fits(&r, &g->table, false, false, a->name, e);
}

bool gguf_dense_arch(GgufArch *a, const Model *m, const char *name, Err *e) {
    *a = (GgufArch){.name = name};
    if (!gguf_mixers_alike(m, e) || !gguf_feeds_alike(a, m, e) || !attention_alike(a, m, e)) return false;
    if (!strncmp(name, "gemma", 5)) return gemma_fits(a, m, e);
    return !strcmp(name, "phi3")      ? phi_fits(a, m, e)
           : !strcmp(name, "smollm3") ? smollm_fits(a, m, e)
           : !strcmp(name, "glm4moe") ? glm_fits(a, m, e)
                                      : oss_fits(a, m, e);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

void gguf_dense_keys(Gguf *g, const GgufArch *a, const Model *m) {
    const ModelCfg *c = &m->cfg;
    const bool second = !strcmp(a->name, "gemma2"), third = !strcmp(a->name, "gemma3"),
               oss = !strcmp(a->name, "gpt-oss");
    if (a->window || second || oss) /* those two always have a window */
        gguf_u32(g, ".attention.sliding_window", (uint32_t)(a->window ? a->window : c->max_positions));
    if (a->window) gguf_u32(g, ".attention.sliding_window_pattern", (uint32_t)a->period);
    if (second) gguf_float(g, ".attn_logit_softcapping", a->gqa->soft_cap);
    if ((second || third) && c->logits_cap > 0) gguf_float(g, ".final_logit_softcapping", c->logits_cap);
    if (third && a->local) gguf_float(g, ".rope.freq_base_swa", a->local->rope.theta);
    if (!strcmp(a->name, "glm4moe")) gguf_u32(g, ".leading_dense_block_count", (uint32_t)a->dense);
    if (a->lengths) {
        const RopeCfg *r = &a->gqa->rope;
        gguf_u32(g, ".rope.scaling.original_context_length",
                 (uint32_t)(r->original_max_positions ? r->original_max_positions : c->max_positions));
        gguf_float(g, ".rope.scaling.attn_factor", a->gqa->table.factor);
    }
}
