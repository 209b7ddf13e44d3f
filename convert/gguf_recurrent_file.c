/* gguf_recurrent_file.c: what files of architectures with states hold: keys, names of tensors, and the orders in which
 * their values differ from ours. Source: llama.cpp src/models/{mamba2,granite-hybrid,nemotron-h,qwen3next,qwen35,
 * qwen35moe,kimi-linear,bailingmoe3}.cpp, src/llama-arch.cpp, conversion/{mamba,granite,nemotron,qwen,kimi_linear,
 * bailingmoe3}.py. */
#include "gguf.h"

/* ---- names ------------------------------------------------------------------------------------------------------- */

#define RENAMED(their, our)                         \
    {                                               \
        .name = {.theirs = (their), .ours = {our} } \
    }
static const GgufPlace mamba[] = {
    RENAMED("ssm_in", "self_attn.in_proj"),
    {.name = {.theirs = "ssm_conv1d", .ours = {"self_attn.conv1d"}}, .shape = SHAPE_SQUEEZED},
    {.name = {.theirs = "ssm_dt.bias", .ours = {"self_attn.dt_bias"}}, .whole = true},
    {.name = {.theirs = "ssm_a", .ours = {"self_attn.A_log"}, .order = ROWS_DECAY},
     .whole = true,
     .shape = SHAPE_COLUMN},
    {.name = {.theirs = "ssm_d", .ours = {"self_attn.D"}}, .whole = true, .shape = SHAPE_COLUMN},
    {.name = {.theirs = "ssm_norm", .ours = {"self_attn.norm"}}, .shape = SHAPE_GROUPS},
    RENAMED("ssm_out", "self_attn.out_proj"),
};
/* qwen35: value heads are tiled; qwen3next: they are not, and b and a are one tensor. */
static const GgufPlace gdn_tiled[] = {
    {.name = {.theirs = "attn_qkv", .ours = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
     .last = ROWS_TILED},
    {.name = {.theirs = "attn_gate", .ours = {"self_attn.g_proj"}, .order = ROWS_TILED}},
    {.name = {.theirs = "ssm_conv1d", .ours = {"self_attn.q_conv1d", "self_attn.k_conv1d", "self_attn.v_conv1d"}},
     .shape = SHAPE_SQUEEZED,
     .last = ROWS_TILED},
    {.name = {.theirs = "ssm_beta", .ours = {"self_attn.b_proj"}, .order = ROWS_TILED}},
    {.name = {.theirs = "ssm_alpha", .ours = {"self_attn.a_proj"}, .order = ROWS_TILED}},
    {.name = {.theirs = "ssm_dt.bias", .ours = {"self_attn.dt_bias"}, .order = ROWS_TILED}, .whole = true},
    {.name = {.theirs = "ssm_a", .ours = {"self_attn.A_log"}, .order = ROWS_TILED_DECAY}, .whole = true},
    RENAMED("ssm_norm", "self_attn.o_norm"),
    {.name = {.theirs = "ssm_out", .ours = {"self_attn.o_proj"}, .order = COLUMNS_TILED}},
};
static const GgufPlace gdn_grouped[] = {
    {.name = {.theirs = "attn_qkv", .ours = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}}},
    RENAMED("attn_gate", "self_attn.g_proj"),
    {.name = {.theirs = "ssm_conv1d", .ours = {"self_attn.q_conv1d", "self_attn.k_conv1d", "self_attn.v_conv1d"}},
     .shape = SHAPE_SQUEEZED},
    {.name = {.theirs = "ssm_ba", .ours = {"self_attn.b_proj", "self_attn.a_proj"}, .order = ROWS_BY_KEYS}},
    {.name = {.theirs = "ssm_dt.bias", .ours = {"self_attn.dt_bias"}}, .whole = true},
    {.name = {.theirs = "ssm_a", .ours = {"self_attn.A_log"}, .order = ROWS_DECAY}, .whole = true},
    RENAMED("ssm_norm", "self_attn.o_norm"),
    RENAMED("ssm_out", "self_attn.o_proj"),
};
static const GgufPlace gated[] = {
    {.name = {.theirs = "attn_q", .ours = {"self_attn.q_proj", "self_attn.gate_proj"}, .order = ROWS_BY_HEADS}},
    RENAMED("attn_k", "self_attn.k_proj"),
    RENAMED("attn_v", "self_attn.v_proj"),
    RENAMED("attn_q_norm", "self_attn.q_norm"),
    RENAMED("attn_k_norm", "self_attn.k_norm"),
    RENAMED("attn_output", "self_attn.o_proj"),
};
static const GgufPlace attention[] = {
    {.name = {.theirs = "attn_q", .ours = {"self_attn.q_proj"}, .order = ROWS_QUERIES}},
    {.name = {.theirs = "attn_k", .ours = {"self_attn.k_proj"}, .order = ROWS_KEYS}},
    RENAMED("attn_v", "self_attn.v_proj"),
    RENAMED("attn_output", "self_attn.o_proj"),
};
#define KDA_NAMES                                                                                     \
    RENAMED("attn_q", "self_attn.q_proj"), RENAMED("attn_k", "self_attn.k_proj"),                     \
        RENAMED("attn_v", "self_attn.v_proj"), RENAMED("ssm_conv1d_q", "self_attn.q_conv1d"),         \
        RENAMED("ssm_conv1d_k", "self_attn.k_conv1d"), RENAMED("ssm_conv1d_v", "self_attn.v_conv1d"), \
        RENAMED("ssm_beta", "self_attn.b_proj"), RENAMED("ssm_norm", "self_attn.o_norm"),             \
        {.name = {.theirs = "ssm_dt.bias", .ours = {"self_attn.dt_bias"}}, .whole = true},            \
        RENAMED("attn_output", "self_attn.o_proj")
static const GgufPlace kda_low_rank[] = {
    KDA_NAMES,
    {.name = {.theirs = "ssm_a", .ours = {"self_attn.A_log"}, .order = ROWS_DECAY},
     .whole = true,
     .shape = SHAPE_COLUMN},
    RENAMED("ssm_f_a", "self_attn.f_a_proj"),
    RENAMED("ssm_f_b", "self_attn.f_b_proj"),
    RENAMED("ssm_g_a", "self_attn.g_a_proj"),
    RENAMED("ssm_g_b", "self_attn.g_b_proj"),
};
/* The bounded gate has its rate as it is, and full projections under the names of the first of two. */
static const GgufPlace kda_full[] = {
    KDA_NAMES,
    {.name = {.theirs = "ssm_a", .ours = {"self_attn.A_log"}, .order = ROWS_RATE},
     .whole = true,
     .shape = SHAPE_COLUMN},
    RENAMED("ssm_f_a", "self_attn.f_proj"),
    RENAMED("ssm_g_a", "self_attn.g_proj"),
};
static const GgufPlace latent[] = {
    RENAMED("attn_q", "self_attn.q_proj"),
    RENAMED("attn_q_a", "self_attn.q_a_proj"),
    RENAMED("attn_q_a_norm", "self_attn.q_a_layernorm"),
    RENAMED("attn_q_b", "self_attn.q_b_proj"),
    RENAMED("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    RENAMED("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    {.name = {.theirs = "attn_k_b", .ours = {"self_attn.kv_b_proj"}, .order = ROWS_KEYS_UP}},
    {.name = {.theirs = "attn_v_b", .ours = {"self_attn.kv_b_proj"}, .order = ROWS_VALUES_UP}},
    RENAMED("attn_gate", "self_attn.g_proj"),
    RENAMED("attn_output", "self_attn.o_proj"),
};

/* Norms: of a layer of two parts, of one of qwen's, of one of a single part. */
static const GgufPlace norms[] = {
    RENAMED("attn_norm", "input_layernorm"),
    RENAMED("ffn_norm", "post_attention_layernorm"),
};
static const GgufPlace norms_qwen[] = {
    RENAMED("attn_norm", "input_layernorm"),
    RENAMED("post_attention_norm", "post_attention_layernorm"),
};
static const GgufPlace norms_single[] = {
    RENAMED("attn_norm", "input_layernorm"),
    RENAMED("attn_norm", "post_attention_layernorm"),
};
static const GgufPlace feed[] = {
    RENAMED("ffn_gate", "mlp.gate_proj"),
    RENAMED("ffn_up", "mlp.up_proj"),
    RENAMED("ffn_down", "mlp.down_proj"),
    RENAMED("ffn_gate_inp", "mlp.gate"),
    RENAMED("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    RENAMED("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    RENAMED("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    {.name = {.theirs = "ffn_gate_inp_shexp", .ours = {"mlp.shared_expert_gate"}}, .shape = SHAPE_VECTOR},
    RENAMED("ffn_latent_down", "mlp.fc1_latent_proj"),
    RENAMED("ffn_latent_up", "mlp.fc2_latent_proj"),
};

#define LIST(table) \
    (GgufPlaces) { table, sizeof table / sizeof *table }
int gguf_recurrent_places(const GgufArch *a, const Model *m, int l, GgufPlaces lists[GGUF_LISTS]) {
    const char *mixer = m->layer[l].kind->mixer->name;
    const bool next = !strcmp(a->name, "qwen3next");
    int n = 0;
    lists[n++] = a->gdn ? LIST(norms_qwen) : !strncmp(a->name, "nemotron", 8) ? LIST(norms_single) : LIST(norms);
    if (!strcmp(mixer, "mamba2")) lists[n++] = LIST(mamba);
    if (!strcmp(mixer, "gdn")) lists[n++] = next ? LIST(gdn_grouped) : LIST(gdn_tiled);
    if (!strcmp(mixer, "gqa")) lists[n++] = a->gdn ? LIST(gated) : LIST(attention);
    if (!strcmp(mixer, "kda")) lists[n++] = a->kda->gate == KDA_STANDARD ? LIST(kda_low_rank) : LIST(kda_full);
    if (!strcmp(mixer, "mla")) lists[n++] = LIST(latent);
    if (m->layer[l].feeds) lists[n++] = LIST(feed);
    return n;
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */

/* A delta rule of v value heads and k key heads: value head g v/k + i, which key head g serves, is the (i k + g)-th in
 * the file, so that key heads repeat as a whole. */
static int tiled_head(const LineCfg *c, int h) {
    const int each = c->v_heads / c->heads;
    return h % each * c->heads + h / each;
}
void gguf_recurrent_moved(const GgufArch *a, RowsOrder order, Tensor to, Tensor from) {
    const size_t n = tensor_count(from);
    if (order == ROWS_DECAY || order == ROWS_RATE) {
        for (size_t i = 0; i < n; i++)
            R(to)[i] = (real)(order == ROWS_RATE ? exp((double)R(from)[i]) : -exp((double)R(from)[i]));
        return;
    }
    const size_t heads = (size_t)a->gdn->v_heads, rows = order == COLUMNS_TILED ? (size_t)from.n[0] : 1,
                 width = n / rows / heads; /* elements of a head in each of the rows */
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < heads; h++) {
            const real *x = R(from) + (r * heads + h) * width;
            real *y = R(to) + (r * heads + (size_t)tiled_head(a->gdn, (int)h)) * width;
            for (size_t i = 0; i < width; i++) y[i] = order == ROWS_TILED_DECAY ? (real)-exp((double)x[i]) : x[i];
        }
}
void gguf_alternate(Tensor to, Tensor a, Tensor b, int groups) {
    const size_t part = tensor_count(a) / (size_t)groups;
    for (size_t g = 0; g < (size_t)groups; g++) {
        memcpy(R(to) + 2 * g * part, R(a) + g * part, part * sizeof(real));
        memcpy(R(to) + (2 * g + 1) * part, R(b) + g * part, part * sizeof(real));
    }
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static bool layer_has_state(const Model *m, int l) {
    const char *mixer = m->layer[l].kind->mixer->name;
    return !strcmp(mixer, "mamba2") || !strcmp(mixer, "gdn") || !strcmp(mixer, "kda");
}
/* A list over layers: `value` where `has` is true, else 0. */
static void layers_put(Gguf *g, const Model *m, const char *name, int value, bool (*has)(const Model *, int l)) {
    gguf_list(g, name, GGUF_I32, (uint64_t)m->L);
    for (int l = 0; l < m->L; l++) gguf_element_int(g, has(m, l) ? value : 0);
}
static bool layer_attends(const Model *m, int l) {
    return m->layer[l].kind->mixer != mixer_find("none") && !layer_has_state(m, l);
}
static bool layer_feeds(const Model *m, int l) { return m->layer[l].feeds; }

static void state_keys_put(Gguf *g, int conv, int inner, int state, int heads, int groups) {
    gguf_u32(g, ".ssm.conv_kernel", (uint32_t)conv);
    gguf_u32(g, ".ssm.inner_size", (uint32_t)inner);
    gguf_u32(g, ".ssm.state_size", (uint32_t)state);
    gguf_u32(g, ".ssm.time_step_rank", (uint32_t)heads);
    gguf_u32(g, ".ssm.group_count", (uint32_t)groups);
}
static void attention_keys_put(Gguf *g, const Model *m, const GqaCfg *c) {
    gguf_u32(g, ".attention.head_count", (uint32_t)c->heads);
    gguf_u32(g, ".attention.key_length", (uint32_t)c->head_dim);
    gguf_u32(g, ".attention.value_length", (uint32_t)c->head_dim);
    if (c->table.n) gguf_rope_keys(g, &c->rope, &c->table, false, m->cfg.max_positions);
}

static void mamba_keys_put(Gguf *g, const GgufArch *a, const Model *m) {
    const Mamba2Cfg *c = a->mamba;
    const ModelCfg *cfg = &m->cfg;
    state_keys_put(g, c->conv, c->heads * c->head_dim, c->state_size, c->heads, c->groups);
    if (!a->gqa) { /* these must be there */
        gguf_u32(g, ".attention.head_count", 0);
        gguf_u32(g, ".feed_forward_length", 0);
        return;
    }
    attention_keys_put(g, m, a->gqa);
    layers_put(g, m, ".attention.head_count_kv", a->gqa->kv_heads, layer_attends); /* 0: a state */
    if (strcmp(a->name, "granitehybrid")) {                                        /* nemotron_h */
        int hidden = 0;
        for (int l = 0; l < m->L; l++)
            if (m->layer[l].feeds) hidden = a->moe ? a->moe->hidden : ((const GeluCfg *)m->layer[l].fcfg)->hidden;
        layers_put(g, m, ".feed_forward_length", hidden, layer_feeds);
        gguf_float(g, ".attention.layer_norm_epsilon", cfg->norm_eps);
        return;
    }
    gguf_u32(g, ".feed_forward_length",
             (uint32_t)(a->moe ? a->moe->hidden : ((const SwigluCfg *)m->layer[0].fcfg)->hidden));
    gguf_bool(g, ".rope.scaling.finetuned", a->gqa->table.n > 0); /* there it means: with a rotation */
    gguf_float(g, ".embedding_scale", cfg->embed_scale);
    gguf_float(g, ".residual_scale", cfg->residual_scale);
    gguf_float(g, ".logit_scale", cfg->logits_divisor);
    if (a->gqa->scale > 0) gguf_float(g, ".attention.scale", a->gqa->scale);
}

/* Readers before attention.recurrent_layers know attention in every n-th layer alone. */
static int attention_interval(const Model *m) {
    int n = 0;
    while (n < m->L && layer_has_state(m, n)) n++;
    n++;
    for (int l = 0; l < m->L; l++)
        if (layer_has_state(m, l) != ((l + 1) % n != 0)) return 0;
    return n;
}
static void gdn_keys_put(Gguf *g, const GgufArch *a, const Model *m) {
    const LineCfg *c = a->gdn;
    const int every = attention_interval(m), pairs = a->gqa->table.n / 2;
    state_keys_put(g, c->conv, c->v_heads * c->v_dim, c->head_dim, c->v_heads, c->heads);
    attention_keys_put(g, m, a->gqa);
    gguf_u32(g, ".attention.head_count_kv", (uint32_t)a->gqa->kv_heads);
    gguf_u32(g, ".feed_forward_length",
             (uint32_t)(a->moe ? a->moe->hidden : ((const SwigluCfg *)m->layer[0].fcfg)->hidden));
    gguf_list(g, ".attention.recurrent_layers", GGUF_BOOL, (uint64_t)m->L);
    for (int l = 0; l < m->L; l++) gguf_element_bool(g, layer_has_state(m, l));
    if (every) gguf_u32(g, ".full_attention_interval", (uint32_t)every);
    if (!strcmp(a->name, "qwen3next")) return;
    /* Pairs that turn by a picture's time, height and width take turns; those of no section would not turn. */
    gguf_list(g, ".rope.dimension_sections", GGUF_I32, 4);
    for (int i = 0; i < 4; i++) gguf_element_int(g, i < 3 ? (pairs + 2 - i) / 3 : 0);
}

static void kda_keys_put(Gguf *g, const GgufArch *a, const Model *m) {
    const KdaCfg *c = a->kda;
    const MlaCfg *x = a->mla;
    gguf_u32(g, ".ssm.conv_kernel", (uint32_t)c->conv);
    gguf_u32(g, ".kda.head_dim", (uint32_t)c->head_dim);
    gguf_u32(g, ".attention.head_count", (uint32_t)c->heads);
    layers_put(g, m, ".attention.head_count_kv", 1, layer_attends); /* latents are one key head; 0: a state */
    if (x->q_rank) gguf_u32(g, ".attention.q_lora_rank", (uint32_t)x->q_rank);
    gguf_u32(g, ".attention.kv_lora_rank", (uint32_t)x->kv_rank);
    gguf_u32(g, ".attention.key_length", (uint32_t)(x->kv_rank + x->rope_dim));
    gguf_u32(g, ".attention.value_length", (uint32_t)x->kv_rank);
    gguf_u32(g, ".attention.key_length_mla", (uint32_t)(x->nope_dim + x->rope_dim));
    gguf_u32(g, ".attention.value_length_mla", (uint32_t)x->v_dim);
    gguf_u32(g, ".leading_dense_block_count", (uint32_t)a->dense);
    gguf_u32(g, ".feed_forward_length",
             (uint32_t)(a->dense ? ((const SwigluCfg *)m->layer[0].fcfg)->hidden : a->moe->hidden));
    if (c->gate == KDA_STANDARD) { /* the width of the part that elsewhere turns */
        gguf_u32(g, ".rope.dimension_count", (uint32_t)x->rope_dim);
        return;
    }
    gguf_bool(g, ".kda.safe_gate", true);
    gguf_float(g, ".kda.gate_lower_bound", c->bound);
    gguf_rope_keys(g, &x->rope, &x->k_turn, true, m->cfg.max_positions);
}

static void recurrent_experts_put(Gguf *g, const GgufArch *a) {
    const MoeCfg *c = a->moe;
    const int shared = c->shared * (c->shared_hidden ? c->shared_hidden : c->hidden);
    gguf_u32(g, ".expert_count", (uint32_t)c->experts);
    gguf_u32(g, ".expert_used_count", (uint32_t)c->top_k);
    gguf_u32(g, ".expert_feed_forward_length", (uint32_t)c->hidden);
    if (shared) gguf_u32(g, ".expert_shared_feed_forward_length", (uint32_t)shared);
    if (!c->bias_balance) return; /* the rest is of routers as DeepSeek-V3's */
    gguf_u32(g, ".expert_shared_count", (uint32_t)c->shared);
    gguf_float(g, ".expert_weights_scale", c->scale);
    gguf_bool(g, ".expert_weights_norm", c->norm_topk);
    gguf_u32(g, ".expert_gating_func", c->router == ROUTER_SOFTMAX ? 1 : 2);
    if (c->latent) gguf_u32(g, ".moe_latent_size", (uint32_t)c->latent);
    if (c->groups <= 1 || !c->top_groups || c->top_groups == c->groups) return;
    gguf_u32(g, ".expert_group_count", (uint32_t)c->groups);
    gguf_u32(g, ".expert_group_used_count", (uint32_t)c->top_groups);
}

void gguf_recurrent_keys(Gguf *g, const GgufArch *a, const Model *m) {
    const ModelCfg *c = &m->cfg;
    gguf_u32(g, ".vocab_size", (uint32_t)c->vocab);
    gguf_u32(g, ".context_length", (uint32_t)c->max_positions);
    gguf_u32(g, ".embedding_length", (uint32_t)c->d_model);
    gguf_u32(g, ".block_count", (uint32_t)m->L);
    gguf_float(g, ".attention.layer_norm_rms_epsilon", c->norm_eps);
    if (a->mamba) mamba_keys_put(g, a, m);
    if (a->gdn) gdn_keys_put(g, a, m);
    if (a->kda) kda_keys_put(g, a, m);
    if (a->moe) recurrent_experts_put(g, a);
}
