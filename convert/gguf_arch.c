/* gguf_arch.c: the architectures of llama.cpp that hold our models, and the keys of their settings. What each of them
 * computes, and where it differs from transformers' class of the same model: llama.cpp src/models/{llama,qwen2,qwen3,
 * gpt2,gptneox,deepseek2,qwen2moe,qwen3moe,olmoe,granite,olmo2}.cpp, src/llama-model.cpp (load_hparams),
 * src/llama-graph.cpp (build_moe_ffn), src/llama-context.cpp (yarn). */
#include <stdarg.h>
#include "gguf.h"

bool gguf_no(Err *e, const char *fmt, ...) {
    char why[224];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return err_input(e, "--to gguf: no architecture of llama.cpp computes this model: %s", why);
}

/* ---- which one --------------------------------------------------------------------------------------------------- */

/* Experts in all layers but the first `dense` ones, which are swiglu, or in none. */
bool gguf_feeds_alike(GgufArch *a, const Model *m, Err *e) {
    while (a->dense < m->L && m->layer[a->dense].ffn->ffn == &swiglu_ffn) a->dense++;
    const Layer *last = &m->layer[m->L - 1];
    const bool moe = last->ffn->ffn == &moe_ffn;
    for (int l = 0; l < m->L; l++) {
        const int like = moe && l >= a->dense ? a->dense : 0;
        if (m->layer[l].ffn != m->layer[like].ffn)
            return gguf_no(e, "ffn: layer %d has another feed-forward part than layer %d", l, like);
    }
    if (moe) a->moe = last->fcfg;
    return true;
}
static bool experts_known(const MoeCfg *c, Err *e) {
    if (c->act != EXPERT_SWIGLU) return gguf_no(e, "ffn moe with act relu2");
    if (c->latent) return gguf_no(e, "ffn moe with latent");
    if (c->router_bias) return gguf_no(e, "ffn moe with router_bias");
    if (c->expert_bias || c->limit > 0) return gguf_no(e, "ffn moe with expert_bias or limit");
    return true;
}

/* Formats have no place for what decides about rows. */
bool gguf_rows_stay(const Model *m, Err *e) {
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].rows.evicts)
            return gguf_no(e,
                           "layer %d evicts rows of the cache (mixer %s); --to gqa or --to mla gives a model that "
                           "keeps them",
                           l, m->layer[l].kind->mixer->name);
    return true;
}
/* One mixer in all layers, which reads its own rows. */
bool gguf_mixers_alike(const Model *m, Err *e) {
    const Layer *first = &m->layer[0];
    const char *mixer = first->kind->mixer->name;
    if (strcmp(mixer, "gqa") && strcmp(mixer, "mla")) return gguf_no(e, "mixer %s", mixer);
    if (!gguf_rows_stay(m, e)) return false;
    for (int l = 1; l < m->L; l++) {
        const Layer *y = &m->layer[l];
        if (!y->owner) return gguf_no(e, "kv_from: layer %d reads the keys and values of layer %d", l, y->kv_from);
        if (y->kind->mixer != first->kind->mixer)
            return gguf_no(e, "layer %d is %s, layer 0 is %s", l, y->kind->mixer->name, mixer);
    }
    return true;
}

/* What holds for the architectures below: feed-forward parts alike, and nothing that only our models have. */
static bool layers_alike(GgufArch *a, const Model *m, Err *e) {
    const char *ffn = m->layer[0].ffn->ffn->name;
    if (strcmp(ffn, "swiglu") && strcmp(ffn, "gelu") && strcmp(ffn, "moe")) return gguf_no(e, "ffn %s", ffn);
    const ModelCfg *c = &m->cfg;
    if (c->logits_cap > 0) return gguf_no(e, "logits_cap %g", c->logits_cap);
    if (c->norm_place == NORM_BOTH) return gguf_no(e, "norm_place both");
    return gguf_feeds_alike(a, m, e) && (!a->moe || experts_known(a->moe, e));
}

bool gguf_window_none(int window, int l, const ModelCfg *c, Err *e) {
    if (window && window < c->max_positions)
        return gguf_no(e, "window: layer %d looks back %d of %d positions; llama.cpp has no window in such models", l,
                       window, c->max_positions);
    return true;
}

const char *gguf_gqa_differs(const GqaCfg *b, const GqaCfg *a) {
    return b->heads != a->heads                 ? "heads"
           : b->kv_heads != a->kv_heads         ? "kv_heads"
           : b->head_dim != a->head_dim         ? "head_dim"
           : b->rope_dims != a->rope_dims       ? "rope_dims"
           : b->qk_norm != a->qk_norm           ? "qk_norm"
           : b->qk_norm_wide != a->qk_norm_wide ? "qk_norm_wide"
           : b->qkv_bias != a->qkv_bias         ? "qkv_bias"
           : b->o_bias != a->o_bias             ? "o_bias"
           : b->out_gate != a->out_gate         ? "out_gate"
           : b->sink_scores != a->sink_scores   ? "sink_scores"
           : b->soft_cap != a->soft_cap         ? "soft_cap"
           : b->scale != a->scale               ? "scale"
                                                : NULL;
}
bool gguf_turns_alike(const GqaCfg *b, const GqaCfg *a) {
    return b->table.n == a->table.n && b->table.interleaved == a->table.interleaved &&
           b->table.factor == a->table.factor && b->rope.type == a->rope.type &&
           !memcmp(b->table.f, a->table.f, (size_t)(a->table.n / 2) * sizeof *a->table.f);
}
/* The same attention in all layers. */
static bool gqa_alike(const Model *m, Err *e) {
    const GqaCfg *a = m->layer[0].cfg;
    if (!a->heads) return gguf_no(e, "heads: layer 0 has no queries");
    for (int l = 0; l < m->L; l++) {
        const GqaCfg *b = m->layer[l].cfg;
        if (!gguf_window_none(b->window, l, &m->cfg, e)) return false;
        if (b->soft_cap > 0) return gguf_no(e, "soft_cap: layer %d caps scores at %g", l, b->soft_cap);
        if (b->out_gate) return gguf_no(e, "out_gate: layer %d", l);
        if (b->sink_scores) return gguf_no(e, "sink_scores: layer %d", l);
        const char *what = gguf_gqa_differs(b, a);
        if (!what && !gguf_turns_alike(b, a)) what = "rope";
        if (what) return gguf_no(e, "%s: layer %d differs from layer 0", what, l);
    }
    return true;
}

/* llama.cpp's yarn multiplies cos and sin by this, and by the key attn_factor. */
static double yarn_own(const RopeCfg *r) { return r->factor > 1 ? 1 + 0.1 * log(r->factor) : 1; }
/* factors: the architecture reads divisors of the frequencies, as llama3 needs. */
bool gguf_rope_fits(const RopeCfg *r, const Rope *t, bool mla, bool factors, const char *arch, Err *e) {
    static const char *const no[] = {[ROPE_DYNAMIC] = "dynamic", [ROPE_LONGROPE] = "longrope"};
    if (r->inclusive) return gguf_no(e, "rope.inclusive");
    if (r->type == ROPE_DYNAMIC || r->type == ROPE_LONGROPE)
        return gguf_no(e, "rope.type %s, whose frequencies follow the length of the input", no[r->type]);
    if (r->type == ROPE_LLAMA3 && !factors)
        return gguf_no(e, "rope.type llama3 (its llama has it, its %s has not)", arch);
    if (r->type == ROPE_LINEAR && mla && r->factor != 1)
        return gguf_no(e, "rope.type linear with latents (its deepseek2 would scale the scores as well)");
    if (r->type != ROPE_YARN) return true;
    if (!r->truncate) return gguf_no(e, "rope.truncate false");
    if (r->beta_fast != 32 || r->beta_slow != 1)
        return gguf_no(e, "rope.beta_fast %g, beta_slow %g (its loader of %s reads neither; it uses 32 and 1)",
                       r->beta_fast, r->beta_slow, arch);
    /* deepseek2 turns by cos and sin alone and multiplies scores by (1 + 0.1 mscale_all_dim ln factor)^2. */
    if (mla && r->factor != 1 && !(r->mscale_all_dim > 0 && fabs(t->factor - 1) < 1e-6))
        return gguf_no(e, "rope: yarn with mscale %g, mscale_all_dim %g (its deepseek2 needs them equal, above 0)",
                       r->mscale, r->mscale_all_dim);
    return true;
}

/* Factors of the embedding, residuals, scores and logits, of which one is not 1. */
static bool factors_used(const ModelCfg *c, const GqaCfg *g) {
    return c->embed_scale != 1 || c->residual_scale != 1 || c->logits_divisor != 1 || (g && g->scale > 0);
}
bool gguf_factors_none(const ModelCfg *c, const GqaCfg *g, const char *arch, Err *e) {
    return !factors_used(c, g) ||
           gguf_no(
               e, "embed_scale %g, residual_scale %g, logits_divisor %g or scale %g (its granite has them, its %s not)",
               c->embed_scale, c->residual_scale, c->logits_divisor, g ? g->scale : 0, arch);
}

/* What its architectures with experts do not read: the scores are a softmax, and no group is chosen first. */
static bool experts_plain(const GgufArch *a, bool norm_topk, Err *e) {
    const MoeCfg *c = a->moe;
    if (a->dense)
        return gguf_no(e, "ffn: layer 0 has another feed-forward part than layer %d (its %s has experts in all)",
                       a->dense, a->name);
    if (c->router != ROUTER_SOFTMAX) return gguf_no(e, "ffn moe with router sigmoid (its %s has a softmax)", a->name);
    if (c->norm_topk != norm_topk)
        return gguf_no(e, "ffn moe with norm_topk %s (its %s has the reverse)", c->norm_topk ? "true" : "false",
                       a->name);
    if (c->scale != 1) return gguf_no(e, "ffn moe with scale %g (its %s has none)", c->scale, a->name);
    if (c->groups > 1) return gguf_no(e, "ffn moe with groups (its %s has none)", a->name);
    if (c->bias_balance) return gguf_no(e, "ffn moe with bias_balance (its %s has none)", a->name);
    const bool shares = !strcmp(a->name, "qwen2moe");
    if ((c->shared != 0) != shares || c->shared_gate != shares)
        return gguf_no(e, "ffn moe with %s (its %s has %s)", c->shared ? "shared experts" : "no shared expert", a->name,
                       shares ? "one with a gate" : "none");
    return true;
}

/* RMSNorm, SwiGLU and experts, by what attention has. */
static bool gqa_experts(GgufArch *a, const ModelCfg *c, Err *e) {
    const GqaCfg *g = a->gqa;
    const bool half = !g->table.interleaved, square = (long)g->heads * g->head_dim == c->d_model;
    a->name = g->qk_norm ? "qwen3moe" : g->qk_norm_wide ? "olmoe" : g->qkv_bias ? "qwen2moe" : "llama";
    a->turned = half && !strcmp(a->name, "llama");
    a->head = !strcmp(a->name, "olmoe") || !strcmp(a->name, "qwen2moe");
    if (g->o_bias || (g->qkv_bias && strcmp(a->name, "qwen2moe")))
        return gguf_no(e, "ffn moe with o_bias, or qkv_bias and a norm of keys");
    if (!half && strcmp(a->name, "llama"))
        return gguf_no(e, "rope.interleaved with %s; --to same rope_layout=half makes a model that fits", a->name);
    if (a->head && !square)
        return gguf_no(e, "head_dim: %d heads of %d are not d_model, %d", g->heads, g->head_dim, c->d_model);
    if (g->qk_norm_wide && g->kv_heads != g->heads)
        return gguf_no(e, "kv_heads %d of %d heads with qk_norm_wide", g->kv_heads, g->heads);
    return experts_plain(a, !strcmp(a->name, "qwen3moe") || !strcmp(a->name, "llama"), e);
}

/* RMSNorm and SwiGLU. */
static bool gqa_llama(GgufArch *a, const ModelCfg *c, Err *e) {
    const GqaCfg *g = a->gqa;
    const bool half = !g->table.interleaved, square = (long)g->heads * g->head_dim == c->d_model;
    if (c->positions != POSITIONS_NONE) return gguf_no(e, "positions learned with norm rms");
    if (c->parallel) return gguf_no(e, "parallel with norm rms");
    if (!g->table.n) return gguf_no(e, "rope none with norm rms");
    if (g->table.n != g->head_dim)
        return gguf_no(e, "rope_dims: %d of head_dim %d are rotated", g->table.n, g->head_dim);
    if (c->norm_place == NORM_POST) {
        a->name = "olmo2";
        if (!g->qk_norm_wide || g->qkv_bias || g->o_bias || !half || !square || a->moe)
            return gguf_no(e, "norm_place post without qk_norm_wide, or with a bias, experts or another head_dim");
        a->head = true;
    } else if (!a->moe && g->qk_norm_wide) {
        return gguf_no(e, "qk_norm_wide with norm_place pre, without experts");
    } else if (a->moe) {
        if (!gqa_experts(a, c, e)) return false;
    } else if (g->qk_norm) {
        a->name = "qwen3";
        if (g->qkv_bias || g->o_bias) return gguf_no(e, "qk_norm with qkv_bias or o_bias");
        if (!half)
            return gguf_no(e, "rope.interleaved with qk_norm; --to same rope_layout=half makes a model that fits");
    } else if (g->qkv_bias && !g->o_bias && half && square && g->rope.type != ROPE_LLAMA3 && !factors_used(c, g)) {
        a->name = "qwen2";
    } else {
        a->name = factors_used(c, g) ? "granite" : "llama";
        a->turned = half;
    }
    const bool granite = !strcmp(a->name, "granite"), divisors = granite || !strcmp(a->name, "llama");
    if (!granite && !gguf_factors_none(c, g, a->name, e)) return false;
    a->factors = divisors && g->rope.type == ROPE_LLAMA3;
    return gguf_rope_fits(&g->rope, &g->table, false, divisors, a->name, e);
}

/* LayerNorm and GELU. */
static bool gqa_gpt(GgufArch *a, const Model *m, Err *e) {
    const ModelCfg *c = &m->cfg;
    const GqaCfg *g = a->gqa;
    const GeluCfg *f = m->layer[0].fcfg;
    a->joined = true;
    a->erf = f->act == GELU_ERF;
    a->name = c->positions == POSITIONS_LEARNED ? "gpt2" : "gptneox";
    a->head = c->positions != POSITIONS_LEARNED;
    if (c->norm_place != NORM_PRE) return gguf_no(e, "norm_place other than pre with norm layer");
    if (g->qk_norm_wide) return gguf_no(e, "qk_norm_wide with norm layer");
    if (!gguf_factors_none(c, g, a->name, e)) return false;
    if (!f->bias || !g->qkv_bias || !g->o_bias) return gguf_no(e, "norm layer without biases in each projection");
    if (g->qk_norm) return gguf_no(e, "qk_norm with norm layer");
    if ((long)g->heads * g->head_dim != c->d_model)
        return gguf_no(e, "head_dim: %d heads of %d are not d_model, %d", g->heads, g->head_dim, c->d_model);
    if (c->positions == POSITIONS_LEARNED) {
        if (g->table.n) return gguf_no(e, "rope with positions learned");
        return !c->parallel || gguf_no(e, "parallel with positions learned");
    }
    if (!g->table.n) return gguf_no(e, "rope none without positions learned");
    if (g->table.interleaved)
        return gguf_no(e, "rope.interleaved with norm layer; --to same rope_layout=half makes a model that fits");
    return gguf_rope_fits(&g->rope, &g->table, false, false, a->name, e);
}

/* A group's score is the sum of its two highest there, as ours is by sigmoid. */
bool gguf_group_scores_fit(const MoeCfg *c, Err *e) {
    return !(c->groups > 1 && c->top_groups && c->top_groups < c->groups &&
             (c->router != ROUTER_SIGMOID || c->experts / c->groups < 2)) ||
           gguf_no(e, "ffn moe with groups by softmax, or of one expert (llama.cpp adds up the best two)");
}
static bool latent_experts(const MoeCfg *c, Err *e) {
    if (!c->shared || c->shared_gate || (c->shared_hidden && c->shared_hidden != c->hidden))
        return gguf_no(e, "ffn moe without shared experts, or with a gate or a width of theirs");
    return gguf_group_scores_fit(c, e);
}

static bool mla_deepseek(GgufArch *a, const Model *m, Err *e) {
    const ModelCfg *c = &m->cfg;
    const MlaCfg *g = a->mla;
    a->name = "deepseek2";
    if (c->norm_place != NORM_PRE) return gguf_no(e, "norm_place other than pre with latents");
    if (!gguf_factors_none(c, NULL, a->name, e)) return false;
    for (int l = 0; l < m->L; l++) {
        const MlaCfg *b = m->layer[l].cfg;
        if (!gguf_window_none(b->window, l, c, e)) return false;
        if (m->layer[l].kind != m->layer[0].kind) return gguf_no(e, "layer %d is another kind than layer 0", l);
    }
    if (!g->heads) return gguf_no(e, "heads: layer 0 has no queries");
    if (c->norm != NORM_RMS || c->positions != POSITIONS_NONE || c->parallel ||
        !strcmp(m->layer[0].ffn->ffn->name, "gelu"))
        return gguf_no(e, "latents with norm layer, positions learned, parallel or gelu");
    if (a->moe && !latent_experts(a->moe, e)) return false;
    if (!g->nope_dim || !g->rope_dim || !g->k_turn.n)
        return gguf_no(e, "nope_dim %d, rope_dim %d: its deepseek2 needs both parts of a key", g->nope_dim,
                       g->k_turn.n ? g->rope_dim : 0);
    if (g->rope_heads != 1) return gguf_no(e, "rope_heads %d", g->rope_heads);
    if (!g->latent_norm || (g->q_rank && !g->q_latent_norm)) return gguf_no(e, "a latent without norm");
    if (g->a_bias || g->q_bias || g->o_bias) return gguf_no(e, "latents with a_bias, q_bias or o_bias");
    if (g->out_gate) return gguf_no(e, "latents with out_gate");
    if (!g->k_turn.interleaved)
        return gguf_no(e,
                       "latents without rope.interleaved; --to same rope_layout=interleaved makes a model that fits");
    a->eps = c->norm_eps != 1e-6; /* latents are normed with 1e-6, its deepseek2 has one for all */
    /* It tells DeepSeek-V2-Lite and others, which have no latent of queries, by their number of layers. */
    if (g->q_rank && (m->L == 26 || m->L == 27 || (m->L == 48 && c->vocab == 128256)))
        return gguf_no(e, "q_rank with %d layers, which its deepseek2 expects to have none", m->L);
    return gguf_rope_fits(&g->rope, &g->k_turn, true, false, a->name, e);
}

bool gguf_arch(GgufArch *a, const Model *m, Err *e) {
    *a = (GgufArch){0};
    if (!gguf_mixers_alike(m, e)) return false;
    if (!layers_alike(a, m, e)) return false;
    if (strcmp(m->layer[0].kind->mixer->name, "gqa")) {
        a->mla = m->layer[0].cfg;
        return mla_deepseek(a, m, e);
    }
    a->gqa = m->layer[0].cfg;
    const bool gelu = !strcmp(m->layer[0].ffn->ffn->name, "gelu");
    if ((m->cfg.norm == NORM_LAYER) != gelu)
        return gguf_no(e, "ffn %s with norm %s", m->layer[0].ffn->ffn->name, gelu ? "rms" : "layer");
    return gqa_alike(m, e) && (gelu ? gqa_gpt(a, m, e) : gqa_llama(a, &m->cfg, e));
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

double gguf_rope_factor(const GqaCfg *g, int i) { return pow(g->rope.theta, -2.0 * i / g->table.n) / g->table.f[i]; }

void gguf_rope_keys(Gguf *g, const RopeCfg *r, const Rope *t, bool mla, int max_positions) {
    gguf_u32(g, ".rope.dimension_count", (uint32_t)t->n);
    gguf_float(g, ".rope.freq_base", r->theta);
    if (r->type != ROPE_LINEAR && r->type != ROPE_YARN) return;
    gguf_text(g, ".rope.scaling.type", r->type == ROPE_LINEAR ? "linear" : "yarn");
    gguf_float(g, ".rope.scaling.factor", r->factor);
    if (r->type == ROPE_LINEAR) return;
    gguf_u32(g, ".rope.scaling.original_context_length",
             (uint32_t)(r->original_max_positions ? r->original_max_positions : max_positions));
    if (mla && r->mscale_all_dim > 0)
        gguf_float(g, ".rope.scaling.yarn_log_multiplier", 0.1 * r->mscale_all_dim); /* as its own converter */
    if (!mla && fabs(t->factor / yarn_own(r) - 1) > 1e-9)
        gguf_float(g, ".rope.scaling.attn_factor", t->factor / yarn_own(r));
}

static void gqa_keys_put(Gguf *g, const GgufArch *a, const Model *m) {
    const GqaCfg *c = a->gqa;
    gguf_u32(g, ".attention.head_count", (uint32_t)c->heads);
    gguf_u32(g, ".attention.head_count_kv", (uint32_t)c->kv_heads);
    gguf_u32(g, ".attention.key_length", (uint32_t)c->head_dim);
    gguf_u32(g, ".attention.value_length", (uint32_t)c->head_dim);
    if (c->table.n) gguf_rope_keys(g, &c->rope, &c->table, false, m->cfg.max_positions);
    if (!strcmp(a->name, "gptneox")) gguf_bool(g, ".use_parallel_residual", m->cfg.parallel);
}

/* Its deepseek2 keeps latents alone, as attention with one key head as wide as a latent and a rotated key. */
static void mla_keys_put(Gguf *g, const GgufArch *a, const Model *m) {
    const MlaCfg *c = a->mla;
    gguf_u32(g, ".attention.head_count", (uint32_t)c->heads);
    gguf_u32(g, ".attention.head_count_kv", 1);
    gguf_u32(g, ".attention.q_lora_rank", (uint32_t)c->q_rank); /* 0: none; the key must be there */
    gguf_u32(g, ".attention.kv_lora_rank", (uint32_t)c->kv_rank);
    gguf_u32(g, ".attention.key_length", (uint32_t)(c->kv_rank + c->rope_dim));
    gguf_u32(g, ".attention.value_length", (uint32_t)c->kv_rank);
    gguf_u32(g, ".attention.key_length_mla", (uint32_t)(c->nope_dim + c->rope_dim));
    gguf_u32(g, ".attention.value_length_mla", (uint32_t)c->v_dim);
    gguf_u32(g, ".leading_dense_block_count", (uint32_t)a->dense);
    if (!a->moe) { /* no layer has experts */
        gguf_u32(g, ".expert_feed_forward_length", (uint32_t)((const SwigluCfg *)m->layer[0].fcfg)->hidden);
        gguf_u32(g, ".expert_shared_count", 0);
    }
    gguf_rope_keys(g, &c->rope, &c->k_turn, true, m->cfg.max_positions);
}

static void expert_keys_put(Gguf *g, const GgufArch *a) {
    const MoeCfg *c = a->moe;
    const int shared = c->shared * (c->shared_hidden ? c->shared_hidden : c->hidden);
    gguf_u32(g, ".expert_count", (uint32_t)c->experts);
    gguf_u32(g, ".expert_used_count", (uint32_t)c->top_k);
    gguf_u32(g, ".expert_feed_forward_length", (uint32_t)c->hidden);
    if (!strcmp(a->name, "qwen2moe")) gguf_u32(g, ".expert_shared_feed_forward_length", (uint32_t)shared);
    if (!a->mla && strcmp(a->name, "glm4moe")) return;
    gguf_u32(g, ".expert_shared_count", (uint32_t)c->shared);
    gguf_float(g, ".expert_weights_scale", c->scale);
    gguf_bool(g, ".expert_weights_norm", c->norm_topk);
    gguf_u32(g, ".expert_gating_func", c->router == ROUTER_SOFTMAX ? 1 : 2);
    if (c->groups == 1 || !c->top_groups || c->top_groups == c->groups) return; /* it refuses a choice of all */
    gguf_u32(g, ".expert_group_count", (uint32_t)c->groups);
    gguf_u32(g, ".expert_group_used_count", (uint32_t)c->top_groups);
}

void gguf_arch_keys(Gguf *g, const GgufArch *a, const Model *m) {
    const ModelCfg *c = &m->cfg;
    const void *f = m->layer[0].fcfg;
    const bool layer = c->norm == NORM_LAYER, dense = !a->moe || a->dense;
    gguf_u32(g, ".vocab_size", (uint32_t)c->vocab);
    gguf_u32(g, ".context_length", (uint32_t)c->max_positions);
    gguf_u32(g, ".embedding_length", (uint32_t)c->d_model);
    gguf_u32(g, ".block_count", (uint32_t)m->L);
    gguf_u32(g, ".feed_forward_length",
             (uint32_t)(layer   ? ((const GeluCfg *)f)->hidden
                        : dense ? ((const SwigluCfg *)f)->hidden
                                : a->moe->hidden));
    if (a->moe) expert_keys_put(g, a);
    if (!strcmp(a->name, "granite")) {
        gguf_float(g, ".embedding_scale", c->embed_scale);
        gguf_float(g, ".residual_scale", c->residual_scale);
        gguf_float(g, ".logit_scale", c->logits_divisor);
        if (a->gqa->scale > 0) gguf_float(g, ".attention.scale", a->gqa->scale); /* else by the width of a head */
    }
    gguf_float(g, layer ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon", c->norm_eps);
    if (a->mla)
        mla_keys_put(g, a, m);
    else
        gqa_keys_put(g, a, m);
}
