/* gguf_recurrent.c: which architecture of llama.cpp holds a model whose layers have states. gguf_arch asks it. What
 * they compute, and where their loaders give up: llama.cpp src/models/{mamba2,mamba-base,granite-hybrid,nemotron-h,
 * qwen3next,qwen35,qwen35moe,kimi-linear,bailingmoe3}.cpp. Refused is what they would compute differently. */
#include "gguf.h"

static bool layer_is(const Model *m, int l, const char *mixer) { return !strcmp(m->layer[l].kind->mixer->name, mixer); }
static int layers_of(const Model *m, const char *mixer) {
    int n = 0;
    for (int l = 0; l < m->L; l++) n += layer_is(m, l, mixer);
    return n;
}
static bool feeds(const Model *m, int l) { return m->layer[l].ffn->ffn != &none_ffn; }
bool gguf_recurrent(const Model *m) { return layers_of(m, "mamba2") || layers_of(m, "gdn") || layers_of(m, "kda"); }

/* ---- what holds for all of them ---------------------------------------------------------------------------------- */

/* Layers of one mixer are alike, and so are feed-forward parts of one sort. */
static bool recurrent_alike(const Model *m, Err *e) {
    for (int l = 0; l < m->L; l++)
        for (int k = 0; k < l; k++) {
            const Layer *x = &m->layer[l], *y = &m->layer[k];
            if (x->kind->mixer == y->kind->mixer && x->kind != y->kind)
                return gguf_no(e, "layer %d is %s of another kind than layer %d", l, x->kind->mixer->name, k);
            if (x->ffn->ffn == y->ffn->ffn && x->ffn != y->ffn)
                return gguf_no(e, "ffn: layer %d has another feed-forward part than layer %d", l, k);
        }
    return true;
}
static bool recurrent_common(const Model *m, Err *e) {
    const ModelCfg *c = &m->cfg;
    if (c->norm != NORM_RMS || c->positions != POSITIONS_NONE || c->parallel || c->norm_place != NORM_PRE)
        return gguf_no(e, "norm layer, positions learned, parallel, or norm_place other than pre, with a state");
    if (c->logits_cap > 0) return gguf_no(e, "logits_cap %g", c->logits_cap);
    for (int l = 0; l < m->L; l++)
        if (!m->layer[l].owner)
            return gguf_no(e, "kv_from: layer %d reads the keys and values of layer %d", l, m->layer[l].kv_from);
    return recurrent_alike(m, e);
}
static bool factors_absent(const Model *m, const char *arch, Err *e) {
    const ModelCfg *c = &m->cfg;
    return (c->embed_scale == 1 && c->residual_scale == 1 && c->logits_divisor == 1) ||
           gguf_no(e, "embed_scale %g, residual_scale %g or logits_divisor %g (its granitehybrid has them, its %s not)",
                   c->embed_scale, c->residual_scale, c->logits_divisor, arch);
}
static bool gains_whole(const Model *m, const char *arch, Err *e) {
    return !m->cfg.norm_plus_one || gguf_no(e, "norm_plus_one with %s", arch);
}

/* The first dense layers, then layers with experts; fills a->dense and a->moe. */
static bool experts_follow(GgufArch *a, const Model *m, Err *e) {
    while (a->dense < m->L && m->layer[a->dense].ffn->ffn == &swiglu_ffn) a->dense++;
    for (int l = 0; l < m->L; l++) {
        const Ffn *want = l < a->dense ? &swiglu_ffn : &moe_ffn;
        if (m->layer[l].ffn->ffn != want)
            return gguf_no(e, "ffn: layer %d is %s; its %s has swiglu in the first layers and experts in all others", l,
                           m->layer[l].ffn->ffn->name, a->name);
    }
    if (a->dense < m->L) a->moe = m->layer[a->dense].fcfg;
    return true;
}
/* What all of them want of experts: SwiGLUs or squared ReLUs without our other forms. */
static bool experts_plain(const MoeCfg *c, bool relu2, const char *arch, Err *e) {
    if ((c->act == EXPERT_RELU2) != relu2)
        return gguf_no(e, "ffn moe with act %s (its %s has the other)", relu2 ? "swiglu" : "relu2", arch);
    if (c->router_bias || c->expert_bias || c->limit > 0)
        return gguf_no(e, "ffn moe with router_bias, expert_bias or limit");
    if (c->latent && !relu2) return gguf_no(e, "ffn moe with latent (its %s has none)", arch);
    return gguf_group_scores_fit(c, e);
}
/* Softmax, then the weights of the chosen ones as shares of their sum. */
static bool experts_softmax(const MoeCfg *c, const char *arch, Err *e) {
    if (!experts_plain(c, false, arch, e)) return false;
    return (c->router == ROUTER_SOFTMAX && c->norm_topk && c->scale == 1 && c->groups <= 1 && !c->bias_balance) ||
           gguf_no(e, "ffn moe with router sigmoid, norm_topk false, scale, groups or bias_balance (its %s has none)",
                   arch);
}
/* The form of DeepSeek-V3. */
static bool experts_balanced(const MoeCfg *c, bool relu2, const char *arch, Err *e) {
    if (!experts_plain(c, relu2, arch, e)) return false;
    if (!c->bias_balance) return gguf_no(e, "ffn moe without bias_balance (its %s reads that bias)", arch);
    return (c->shared && !c->shared_gate) ||
           gguf_no(e, "ffn moe without shared experts, or with a gate of theirs (its %s has them, without)", arch);
}

static bool attention_common(const GqaCfg *g, const ModelCfg *c, const char *arch, Err *e) {
    if (!g->heads) return gguf_no(e, "heads: a layer has no queries");
    if (g->window && g->window < c->max_positions)
        return gguf_no(e, "window %d of %d positions (its %s has none)", g->window, c->max_positions, arch);
    return !(g->soft_cap > 0 || g->sink_scores || g->qk_norm_wide) ||
           gguf_no(e, "soft_cap, sink_scores or qk_norm_wide (its %s has none)", arch);
}

/* ---- Mamba-2 ----------------------------------------------------------------------------------------------------- */

static bool mamba_fits(const Mamba2Cfg *c, const char *arch, Err *e) {
    if (!c->conv || !c->conv_bias)
        return gguf_no(e, "mamba2 without a convolution or its bias (its %s adds one)", arch);
    if (c->levels) return gguf_no(e, "mamba2 with levels (its %s has one state a head)", arch);
    if (c->bias) return gguf_no(e, "mamba2 with bias (its %s has none in the projections)", arch);
    return !c->gate || gguf_no(e, "mamba2 with gate sigmoid (its %s has silu)", arch);
}

static bool mamba_granite(GgufArch *a, const Model *m, Err *e) {
    const ModelCfg *c = &m->cfg;
    a->name = "granitehybrid";
    if (!gains_whole(m, a->name, e) || !experts_follow(a, m, e)) return false;
    if (a->dense && a->moe)
        return gguf_no(e, "ffn: layer %d has experts, layer 0 has none (its granitehybrid has them in all or none)",
                       a->dense);
    if (a->moe && (!experts_softmax(a->moe, a->name, e) ||
                   (a->moe->shared_gate && !gguf_no(e, "ffn moe with shared_gate (its granitehybrid has none)"))))
        return false;
    if (a->mamba->heads * a->mamba->head_dim != 2 * c->d_model)
        return gguf_no(e, "mamba2 of %d heads of %d, not 2 x d_model %d, as its granitehybrid demands", a->mamba->heads,
                       a->mamba->head_dim, c->d_model);
    const GqaCfg *g = a->gqa;
    if (!g) return gguf_no(e, "mamba2 with feed-forward parts, but no layer of attention (its granitehybrid has some)");
    if (!attention_common(g, c, a->name, e)) return false;
    if (g->qk_norm || g->out_gate) return gguf_no(e, "qk_norm or out_gate (its granitehybrid has none)");
    if (!g->table.n) return true;
    if (g->table.n != g->head_dim)
        return gguf_no(e, "rope_dims: %d of head_dim %d are rotated", g->table.n, g->head_dim);
    a->turned = !g->table.interleaved, a->factors = g->rope.type == ROPE_LLAMA3;
    return gguf_rope_fits(&g->rope, &g->table, false, true, a->name, e);
}

static bool mamba_nemotron(GgufArch *a, const Model *m, Err *e) {
    const GqaCfg *g = a->gqa;
    bool relu2 = false;
    for (int l = 0; l < m->L; l++) {
        const Ffn *f = m->layer[l].ffn->ffn;
        if (layer_is(m, l, "none") != feeds(m, l))
            return gguf_no(e, "layer %d has both a mixer and a feed-forward part, or neither, and others do not", l);
        if (feeds(m, l) && f != &relu2_ffn && f != &moe_ffn)
            return gguf_no(e, "ffn %s in a layer of its own (its nemotron_h has relu2)", f->name);
        relu2 |= f == &relu2_ffn;
        if (f == &moe_ffn) a->moe = m->layer[l].fcfg;
    }
    a->name = a->moe ? "nemotron_h_moe" : "nemotron_h";
    if (!gains_whole(m, a->name, e) || !factors_absent(m, a->name, e)) return false;
    if (relu2 && a->moe) return gguf_no(e, "ffn: some layers are relu2 and some have experts (it has one of both)");
    if (!relu2 && !a->moe) return gguf_no(e, "layers of one part without a feed-forward part among them");
    if (a->moe && !experts_balanced(a->moe, true, a->name, e)) return false;
    if (!g) return gguf_no(e, "no layer of attention (its %s has some)", a->name);
    if (!attention_common(g, &m->cfg, a->name, e)) return false;
    return !(g->table.n || g->qk_norm || g->out_gate || g->qkv_bias || g->o_bias || g->scale > 0) ||
           gguf_no(e, "a rotation, qk_norm, out_gate, biases or scale (its %s has none)", a->name);
}

static bool mamba_any(GgufArch *a, const Model *m, Err *e) {
    const int n = layers_of(m, "mamba2"), attends = layers_of(m, "gqa"), none = layers_of(m, "none");
    int with = 0;
    for (int l = 0; l < m->L; l++) {
        with += feeds(m, l);
        if (layer_is(m, l, "mamba2")) a->mamba = m->layer[l].cfg;
        if (layer_is(m, l, "gqa")) a->gqa = m->layer[l].cfg;
    }
    if (n + attends + none < m->L) return gguf_no(e, "mamba2 next to layers that are not gqa");
    if (!mamba_fits(a->mamba, "mamba2", e)) return false;
    if (with == m->L && !none) return mamba_granite(a, m, e);
    if (with || attends || none) return mamba_nemotron(a, m, e);
    a->name = "mamba2";
    return gains_whole(m, a->name, e) && factors_absent(m, a->name, e);
}

/* ---- Gated DeltaNet ---------------------------------------------------------------------------------------------- */

static bool gdn_fits(const LineCfg *c, Err *e) {
    if (!c->conv || c->conv_bias) return gguf_no(e, "gdn without a convolution, or with conv_bias");
    if (c->gate != LINE_GATE_SILU || c->beta_max != 1)
        return gguf_no(e, "gdn with another gate than silu, or beta_max 2");
    if (c->householders > 1 || c->kv_heads != c->heads)
        return gguf_no(e, "gdn with householders, or fewer kv_heads than heads");
    if (c->inner_decay || c->output_correction) return gguf_no(e, "gdn with inner_decay or output_correction");
    if (c->levels) return gguf_no(e, "gdn with levels");
    return c->head_dim == c->v_dim ||
           gguf_no(e, "gdn with head_dim %d and v_dim %d (its qwen35 has one width)", c->head_dim, c->v_dim);
}
static bool gdn_qwen(GgufArch *a, const Model *m, const char *type, Err *e) {
    for (int l = 0; l < m->L; l++) {
        if (layer_is(m, l, "gdn")) a->gdn = m->layer[l].cfg;
        if (layer_is(m, l, "gqa")) a->gqa = m->layer[l].cfg;
        if (!layer_is(m, l, "gdn") && !layer_is(m, l, "gqa"))
            return gguf_no(e, "layer %d is %s (its qwen35 has gdn and gqa)", l, m->layer[l].kind->mixer->name);
    }
    a->name = "qwen35";
    if (!factors_absent(m, a->name, e) || !gdn_fits(a->gdn, e) || !experts_follow(a, m, e)) return false;
    if (a->moe) a->name = type && !strncmp(type, "qwen3_5", 7) ? "qwen35moe" : "qwen3next";
    if (a->dense && a->moe)
        return gguf_no(e, "ffn: layer %d has experts, layer 0 has none (its %s has them in all)", a->dense, a->name);
    if (a->moe && !experts_softmax(a->moe, a->name, e)) return false;
    if (a->moe && (a->moe->shared != 1 || !a->moe->shared_gate))
        return gguf_no(e, "ffn moe without one shared expert with a gate, as its %s has", a->name);
    a->eps = m->cfg.norm_eps != 1e-6;
    const GqaCfg *g = a->gqa;
    if (!g) return gguf_no(e, "mixer gdn in all layers (its %s has attention in some)", a->name);
    if (!attention_common(g, &m->cfg, a->name, e)) return false;
    if (!g->qk_norm || !g->out_gate || g->qkv_bias || g->o_bias || g->scale > 0 || !g->table.n)
        return gguf_no(e, "attention without qk_norm, out_gate or a rotation, or with biases or scale, next to gdn");
    if (g->table.interleaved)
        return gguf_no(e, "rope.interleaved with %s; --to same rope_layout=half makes a model that fits", a->name);
    return gguf_rope_fits(&g->rope, &g->table, false, false, a->name, e);
}

/* ---- Kimi Delta Attention ---------------------------------------------------------------------------------------- */

static bool kda_fits(const KdaCfg *c, bool bounded, const char *arch, Err *e) {
    if (c->v_heads != c->heads || c->v_dim != c->head_dim)
        return gguf_no(e, "kda with v_heads or v_dim of its own (its %s has one number and width)", arch);
    if (c->kv_heads != c->heads) return gguf_no(e, "kda with fewer kv_heads than heads");
    if (c->erase != KDA_BY_HEAD) return gguf_no(e, "kda with erase channel");
    if (c->levels) return gguf_no(e, "kda with levels (its %s has one state a head)", arch);
    if (!c->conv || c->conv_bias) return gguf_no(e, "kda without a convolution, or with conv_bias");
    if (c->out_act != KDA_SIGMOID || c->out_bias || c->beta_max != 1)
        return gguf_no(e, "kda with out_act silu, out_bias or beta_max 2");
    if ((c->gate == KDA_LOWER_BOUND) != bounded)
        return gguf_no(e, "kda with gate %s and such attention (its %s has the other)",
                       bounded ? "standard" : "lower_bound", arch);
    const int form = bounded ? KDA_FULL : KDA_LOW_RANK;
    if (c->gate_proj != form || c->out_gate != form ||
        (!bounded && (c->gate_rank != c->head_dim || c->out_rank != c->head_dim)))
        return gguf_no(e, "kda: its %s has gate_proj and out_gate %s", arch,
                       bounded ? "full" : "low_rank, of rank head_dim");
    return true;
}
static bool kda_latents(const GgufArch *a, const Model *m, Err *e) {
    const MlaCfg *c = a->mla;
    if (c->heads != a->kda->heads)
        return gguf_no(e, "heads: %d of kda, %d of mla (its %s has one number)", a->kda->heads, c->heads, a->name);
    if (c->window && c->window < m->cfg.max_positions)
        return gguf_no(e, "window %d of %d positions (its %s has none)", c->window, m->cfg.max_positions, a->name);
    if (!c->nope_dim || !c->rope_dim || c->rope_heads != 1)
        return gguf_no(e, "nope_dim %d, rope_dim %d, rope_heads %d: its %s needs both parts of a key", c->nope_dim,
                       c->rope_dim, c->rope_heads, a->name);
    if (!c->latent_norm || (c->q_rank && !c->q_latent_norm)) return gguf_no(e, "a latent without norm");
    return !(c->a_bias || c->q_bias || c->o_bias) || gguf_no(e, "latents with a_bias, q_bias or o_bias");
}
static bool kda_any(GgufArch *a, const Model *m, Err *e) {
    for (int l = 0; l < m->L; l++) {
        if (layer_is(m, l, "kda")) a->kda = m->layer[l].cfg;
        if (layer_is(m, l, "mla")) a->mla = m->layer[l].cfg;
        if (!layer_is(m, l, "kda") && !layer_is(m, l, "mla"))
            return gguf_no(e, "layer %d is %s (its kimi-linear has kda and mla)", l, m->layer[l].kind->mixer->name);
    }
    if (!a->mla) return gguf_no(e, "mixer kda in all layers (its kimi-linear has mla in some)");
    const bool bailing = a->mla->out_gate;
    a->name = bailing ? "bailingmoe3" : "kimi-linear";
    a->head = !bailing, a->eps = m->cfg.norm_eps != 1e-6;
    if (!gains_whole(m, a->name, e) || !factors_absent(m, a->name, e) || !experts_follow(a, m, e) ||
        !kda_fits(a->kda, bailing, a->name, e) || !kda_latents(a, m, e))
        return false;
    if (!a->moe) return gguf_no(e, "kda and mla without experts (its %s has them)", a->name);
    if (!experts_balanced(a->moe, false, a->name, e)) return false;
    if (bailing) {
        if (!a->mla->k_turn.n || !a->mla->k_turn.interleaved || a->mla->rope.type != ROPE_DEFAULT)
            return gguf_no(e, "latents with out_gate, but no rotation, one with a scaling, or not rope.interleaved");
        return true;
    }
    if (a->mla->k_turn.n) return gguf_no(e, "latents with a rotation (its kimi-linear turns nothing)");
    if (a->mla->q_rank) return gguf_no(e, "q_rank %d (its kimi-linear has no latent of queries)", a->mla->q_rank);
    return (a->moe->norm_topk && (!a->moe->shared_hidden || a->moe->shared_hidden == a->moe->hidden)) ||
           gguf_no(e, "ffn moe with norm_topk false, or shared_hidden of its own (its kimi-linear has neither)");
}

bool gguf_recurrent_arch(GgufArch *a, const Model *m, const char *type, Err *e) {
    *a = (GgufArch){0};
    if (!recurrent_common(m, e) || !gguf_rows_stay(m, e)) return false;
    if (layers_of(m, "mamba2")) return mamba_any(a, m, e);
    return layers_of(m, "gdn") ? gdn_qwen(a, m, type, e) : kda_any(a, m, e);
}
