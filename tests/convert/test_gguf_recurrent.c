/* test_gguf_recurrent.c: --to gguf of models whose layers have states: every tensor, shape, order, type and key of nine
 * architectures, written here again from llama.cpp's loaders; and what is refused. All models have the same sizes. */
#include "tests/lib/gguf_read.h"
#include "convert/gguf.h"

/* ---- what every tensor must hold --------------------------------------------------------------------------------- */

enum { D = 32, KEY_HEADS = 2, VALUE_HEADS = 4, WIDTH = 8, RANK = 16, NOPE = 6, LIFT = 5, EXPERTS = 3 };
typedef enum {
    COPY,
    ONE,       /* 1 + it: a gain of norm_plus_one */
    DECAY,     /* -exp */
    RATE,      /* exp */
    HEADS,     /* rows of heads of WIDTH: 2x comes from x, 2x + 1 from x + WIDTH/2 */
    VALUES,    /* value heads: position i KEY_HEADS + g has head i of key head g */
    DECAYS,    /* -exp of those */
    COLUMNS,   /* the same of columns */
    QKV,       /* q, k and v one after the other, value heads of v as above */
    QKV_PLAIN, /* the same without another order */
    TURNS,     /* of two fields: `unit` rows of the first, of the second, and so on */
    UP_KEYS,   /* of kv_b (head, nope | v, latent): (head, latent, nope) */
    UP_VALUES, /* of kv_b: (head, v, latent) */
    STACK      /* one matrix of each expert */
} How;
typedef struct {
    const char *theirs, *ours[3];
    How how;
    uint64_t n[3]; /* the fastest first */
    int unit;
} Want;

#define HIDDEN 64 /* of swiglu and relu2 */
#define NARROW 48 /* of experts */
#define NORMS(of) \
    { "attn_norm.weight", {"input_layernorm.weight"}, of, {D}, 0 }
static const Want mixer_norm[] = {NORMS(COPY)}, mixer_norm_one[] = {NORMS(ONE)},
                  feed_norm[] = {{"ffn_norm.weight", {"post_attention_layernorm.weight"}, COPY, {D}, 0}},
                  feed_norm_one[] = {{"post_attention_norm.weight", {"post_attention_layernorm.weight"}, ONE, {D}, 0}},
                  only_norm[] = {{"attn_norm.weight", {"post_attention_layernorm.weight"}, COPY, {D}, 0}};
/* 4 heads of 16, state 8, 2 groups, convolution 4: rows z 64, x 64, B 16, C 16, dt 4. */
static const Want mamba[] = {{"ssm_in.weight", {"self_attn.in_proj.weight"}, COPY, {D, 164}, 0},
                             {"ssm_conv1d.weight", {"self_attn.conv1d.weight"}, COPY, {4, 96}, 0},
                             {"ssm_conv1d.bias", {"self_attn.conv1d.bias"}, COPY, {96}, 0},
                             {"ssm_dt.bias", {"self_attn.dt_bias"}, COPY, {4}, 0},
                             {"ssm_a", {"self_attn.A_log"}, DECAY, {1, 4}, 0},
                             {"ssm_d", {"self_attn.D"}, COPY, {1, 4}, 0},
                             {"ssm_norm.weight", {"self_attn.norm.weight"}, COPY, {32, 2}, 0},
                             {"ssm_out.weight", {"self_attn.out_proj.weight"}, COPY, {64, D}, 0}};
/* 4 heads and 2 key heads of 8. */
#define ATTENTION(how)                                                      \
    {"attn_q.weight", {"self_attn.q_proj.weight"}, how, {D, 32}, 0},        \
        {"attn_k.weight", {"self_attn.k_proj.weight"}, how, {D, 16}, 0},    \
        {"attn_v.weight", {"self_attn.v_proj.weight"}, COPY, {D, 16}, 0}, { \
        "attn_output.weight", {"self_attn.o_proj.weight"}, COPY, {32, D}, 0 \
    }
static const Want
    attends[] = {ATTENTION(COPY)},
    turns[] = {ATTENTION(HEADS)},
    gates[] = {{"attn_q.weight", {"self_attn.q_proj.weight", "self_attn.gate_proj.weight"}, TURNS, {D, 64}, WIDTH},
               {"attn_k.weight", {"self_attn.k_proj.weight"}, COPY, {D, 16}, 0},
               {"attn_v.weight", {"self_attn.v_proj.weight"}, COPY, {D, 16}, 0},
               {"attn_q_norm.weight", {"self_attn.q_norm.weight"}, ONE, {WIDTH}, 0},
               {"attn_k_norm.weight", {"self_attn.k_norm.weight"}, ONE, {WIDTH}, 0},
               {"attn_output.weight", {"self_attn.o_proj.weight"}, COPY, {32, D}, 0}};
/* 2 key heads and 4 value heads of 8, convolution 3. */
#define PROJECTED "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"
#define CONVOLVED "self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight", "self_attn.v_conv1d.weight"
static const Want gdn[] = {{"attn_qkv.weight", {PROJECTED}, QKV, {D, 64}, 0},
                           {"ssm_conv1d.weight", {CONVOLVED}, QKV, {3, 64}, 0},
                           {"attn_gate.weight", {"self_attn.g_proj.weight"}, VALUES, {D, 32}, 0},
                           {"ssm_beta.weight", {"self_attn.b_proj.weight"}, VALUES, {D, 4}, 0},
                           {"ssm_alpha.weight", {"self_attn.a_proj.weight"}, VALUES, {D, 4}, 0},
                           {"ssm_dt.bias", {"self_attn.dt_bias"}, VALUES, {4}, 0},
                           {"ssm_a", {"self_attn.A_log"}, DECAYS, {4}, 0},
                           {"ssm_norm.weight", {"self_attn.o_norm.weight"}, COPY, {WIDTH}, 0},
                           {"ssm_out.weight", {"self_attn.o_proj.weight"}, COLUMNS, {32, D}, 0}};
static const Want gdn_next[] = {
    {"attn_qkv.weight", {PROJECTED}, QKV_PLAIN, {D, 64}, 0},
    {"ssm_conv1d.weight", {CONVOLVED}, QKV_PLAIN, {3, 64}, 0},
    {"attn_gate.weight", {"self_attn.g_proj.weight"}, COPY, {D, 32}, 0},
    {"ssm_ba.weight", {"self_attn.b_proj.weight", "self_attn.a_proj.weight"}, TURNS, {D, 8}, 2},
    {"ssm_dt.bias", {"self_attn.dt_bias"}, COPY, {4}, 0},
    {"ssm_a", {"self_attn.A_log"}, DECAY, {4}, 0},
    {"ssm_norm.weight", {"self_attn.o_norm.weight"}, COPY, {WIDTH}, 0},
    {"ssm_out.weight", {"self_attn.o_proj.weight"}, COPY, {32, D}, 0}};
/* 4 heads of 6, convolution 3. */
#define DELTA(rate)                                                                                             \
    {"attn_q.weight", {"self_attn.q_proj.weight"}, COPY, {D, 24}, 0},                                           \
        {"attn_k.weight", {"self_attn.k_proj.weight"}, COPY, {D, 24}, 0},                                       \
        {"attn_v.weight", {"self_attn.v_proj.weight"}, COPY, {D, 24}, 0},                                       \
        {"ssm_conv1d_q.weight", {"self_attn.q_conv1d.weight"}, COPY, {3, 1, 24}, 0},                            \
        {"ssm_conv1d_k.weight", {"self_attn.k_conv1d.weight"}, COPY, {3, 1, 24}, 0},                            \
        {"ssm_conv1d_v.weight", {"self_attn.v_conv1d.weight"}, COPY, {3, 1, 24}, 0},                            \
        {"ssm_beta.weight", {"self_attn.b_proj.weight"}, COPY, {D, 4}, 0},                                      \
        {"ssm_dt.bias", {"self_attn.dt_bias"}, COPY, {24}, 0}, {"ssm_a", {"self_attn.A_log"}, rate, {1, 4}, 0}, \
        {"ssm_norm.weight", {"self_attn.o_norm.weight"}, COPY, {6}, 0}, {                                       \
        "attn_output.weight", {"self_attn.o_proj.weight"}, COPY, {24, D}, 0                                     \
    }
static const Want kda[] = {DELTA(DECAY),
                           {"ssm_f_a.weight", {"self_attn.f_a_proj.weight"}, COPY, {D, 6}, 0},
                           {"ssm_f_b.weight", {"self_attn.f_b_proj.weight"}, COPY, {6, 24}, 0},
                           {"ssm_g_a.weight", {"self_attn.g_a_proj.weight"}, COPY, {D, 6}, 0},
                           {"ssm_g_b.weight", {"self_attn.g_b_proj.weight"}, COPY, {6, 24}, 0}};
static const Want kda_bound[] = {DELTA(RATE),
                                 {"ssm_f_a.weight", {"self_attn.f_proj.weight"}, COPY, {D, 24}, 0},
                                 {"ssm_g_a.weight", {"self_attn.g_proj.weight"}, COPY, {D, 24}, 0}};
/* 4 heads, latents of 16, keys of 6 + 4, values of 5; the latent of queries has 7. */
#define LATENT_PARTS                                                                          \
    {"attn_kv_a_mqa.weight", {"self_attn.kv_a_proj_with_mqa.weight"}, COPY, {D, 20}, 0},      \
        {"attn_kv_a_norm.weight", {"self_attn.kv_a_layernorm.weight"}, COPY, {RANK}, 0},      \
        {"attn_k_b.weight", {"self_attn.kv_b_proj.weight"}, UP_KEYS, {NOPE, RANK, 4}, 0},     \
        {"attn_v_b.weight", {"self_attn.kv_b_proj.weight"}, UP_VALUES, {RANK, LIFT, 4}, 0}, { \
        "attn_output.weight", {"self_attn.o_proj.weight"}, COPY, {20, D}, 0                   \
    }
static const Want mla[] = {LATENT_PARTS, {"attn_q.weight", {"self_attn.q_proj.weight"}, COPY, {D, 40}, 0}};
static const Want mla_gated[] = {LATENT_PARTS,
                                 {"attn_gate.weight", {"self_attn.g_proj.weight"}, COPY, {D, 4}, 0},
                                 {"attn_q_a.weight", {"self_attn.q_a_proj.weight"}, COPY, {D, 7}, 0},
                                 {"attn_q_a_norm.weight", {"self_attn.q_a_layernorm.weight"}, COPY, {7}, 0},
                                 {"attn_q_b.weight", {"self_attn.q_b_proj.weight"}, COPY, {7, 40}, 0}};
static const Want swiglu[] = {{"ffn_gate.weight", {"mlp.gate_proj.weight"}, COPY, {D, HIDDEN}, 0},
                              {"ffn_up.weight", {"mlp.up_proj.weight"}, COPY, {D, HIDDEN}, 0},
                              {"ffn_down.weight", {"mlp.down_proj.weight"}, COPY, {HIDDEN, D}, 0}};
static const Want relu2[] = {{"ffn_up.weight", {"mlp.up_proj.weight"}, COPY, {D, HIDDEN}, 0},
                             {"ffn_up.bias", {"mlp.up_proj.bias"}, COPY, {HIDDEN}, 0},
                             {"ffn_down.weight", {"mlp.down_proj.weight"}, COPY, {HIDDEN, D}, 0},
                             {"ffn_down.bias", {"mlp.down_proj.bias"}, COPY, {D}, 0}};
#define ROUTED                                                                                \
    {"ffn_gate_inp.weight", {"mlp.gate.weight"}, COPY, {D, EXPERTS}, 0},                      \
        {"ffn_gate_exps.weight", {"gate_proj"}, STACK, {D, NARROW, EXPERTS}, 0},              \
        {"ffn_up_exps.weight", {"up_proj"}, STACK, {D, NARROW, EXPERTS}, 0},                  \
        {"ffn_down_exps.weight", {"down_proj"}, STACK, {NARROW, D, EXPERTS}, 0},              \
        {"ffn_gate_shexp.weight", {"mlp.shared_experts.gate_proj.weight"}, COPY, {D, 40}, 0}, \
        {"ffn_up_shexp.weight", {"mlp.shared_experts.up_proj.weight"}, COPY, {D, 40}, 0}, {   \
        "ffn_down_shexp.weight", {"mlp.shared_experts.down_proj.weight"}, COPY, {40, D}, 0    \
    }
#define BALANCE \
    { "exp_probs_b.bias", {"mlp.gate.e_score_correction_bias"}, COPY, {EXPERTS}, 0 }
static const Want moe[] = {ROUTED},
                  moe_gated[] = {ROUTED,
                                 {"ffn_gate_inp_shexp.weight", {"mlp.shared_expert_gate.weight"}, COPY, {D}, 0}},
                  moe_balanced[] = {ROUTED, BALANCE};
/* As wide as an expert, as kimi-linear demands. */
static const Want moe_equal[] = {
    {"ffn_gate_inp.weight", {"mlp.gate.weight"}, COPY, {D, EXPERTS}, 0},
    {"ffn_gate_exps.weight", {"gate_proj"}, STACK, {D, NARROW, EXPERTS}, 0},
    {"ffn_up_exps.weight", {"up_proj"}, STACK, {D, NARROW, EXPERTS}, 0},
    {"ffn_down_exps.weight", {"down_proj"}, STACK, {NARROW, D, EXPERTS}, 0},
    {"ffn_gate_shexp.weight", {"mlp.shared_experts.gate_proj.weight"}, COPY, {D, NARROW}, 0},
    {"ffn_up_shexp.weight", {"mlp.shared_experts.up_proj.weight"}, COPY, {D, NARROW}, 0},
    {"ffn_down_shexp.weight", {"mlp.shared_experts.down_proj.weight"}, COPY, {NARROW, D}, 0},
    BALANCE};
/* Squared ReLUs that see 20 channels. */
static const Want moe_latent[] = {{"ffn_gate_inp.weight", {"mlp.gate.weight"}, COPY, {D, EXPERTS}, 0},
                                  {"ffn_up_exps.weight", {"up_proj"}, STACK, {20, NARROW, EXPERTS}, 0},
                                  {"ffn_down_exps.weight", {"down_proj"}, STACK, {NARROW, 20, EXPERTS}, 0},
                                  {"ffn_latent_down.weight", {"mlp.fc1_latent_proj.weight"}, COPY, {D, 20}, 0},
                                  {"ffn_latent_up.weight", {"mlp.fc2_latent_proj.weight"}, COPY, {20, D}, 0},
                                  {"ffn_up_shexp.weight", {"mlp.shared_experts.up_proj.weight"}, COPY, {D, 40}, 0},
                                  {"ffn_down_shexp.weight", {"mlp.shared_experts.down_proj.weight"}, COPY, {40, D}, 0},
                                  BALANCE};

/* The place in the model of value head position p of the file. */
static uint64_t value_head(uint64_t p) { return p % KEY_HEADS * (VALUE_HEADS / KEY_HEADS) + p / KEY_HEADS; }
/* The source of element i: a field (of `ours`; of an expert), and its element. */
static void source_of(const Want *w, const Block *t, uint64_t i, int *part, uint64_t *from) {
    const uint64_t width = w->how == COPY || t->rank == 1 ? 1 : t->n[0], r = i / width, c = i % width,
                   unit = t->count / width / VALUE_HEADS;
    uint64_t row = r;
    *part = 0;
    if (w->how == STACK) {
        *part = (int)(i / (t->n[0] * t->n[1])), *from = i % (t->n[0] * t->n[1]);
        return;
    }
    if (w->how == UP_KEYS || w->how == UP_VALUES) {
        const bool keys = w->how == UP_KEYS;
        const uint64_t lines = keys ? NOPE : LIFT, h = i / (lines * RANK), k = i % (lines * RANK),
                       line = keys ? k % NOPE : NOPE + k / RANK, rank = keys ? k / NOPE : k % RANK;
        *from = (h * (NOPE + LIFT) + line) * RANK + rank;
        return;
    }
    if (w->how == COLUMNS) {
        const uint64_t each = t->n[0] / VALUE_HEADS;
        *from = r * width + value_head(c / each) * each + c % each;
        return;
    }
    if (w->how == HEADS) row = r / WIDTH * WIDTH + r % WIDTH / 2 + r % 2 * (WIDTH / 2);
    if (w->how == VALUES || w->how == DECAYS) row = value_head(r / unit) * unit + r % unit;
    if (w->how == TURNS) {
        const uint64_t u = (uint64_t)w->unit;
        *part = (int)(r / u % 2), row = r / (2 * u) * u + r % u;
    }
    if (w->how == QKV || w->how == QKV_PLAIN) {
        const uint64_t q = KEY_HEADS * WIDTH;
        *part = r < 2 * q ? (int)(r / q) : 2, row = r < 2 * q ? r % q : r - 2 * q;
        if (w->how == QKV && *part == 2) row = value_head(row / WIDTH) * WIDTH + row % WIDTH;
    }
    *from = row * width + c;
}
/* The value that model_dir gives element i of a field. */
static double given(const char *path, bool gain, uint64_t i) {
    const double x = rng_normal(rng_name(5, path), i);
    return (double)(float)(gain ? 1 + 0.3 * x : 0.4 * x);
}
/* Gains that begin at 1, and D. */
static bool is_gain(const char *path, How how) {
    const size_t n = strlen(path);
    return how != ONE && (strstr(path, "norm.weight") || (n > 2 && !strcmp(path + n - 2, ".D")));
}
static double wanted(const Want *w, const char *prefix, const Block *t, uint64_t i) {
    int part;
    uint64_t from;
    char path[160];
    source_of(w, t, i, &part, &from);
    if (w->how == STACK)
        snprintf(path, sizeof path, "%smlp.experts.%d.%s.weight", prefix, part, w->ours[0]);
    else
        snprintf(path, sizeof path, "%s%s", prefix, w->ours[part]);
    const double x = given(path, is_gain(path, w->how), from);
    return (double)(float)(w->how == ONE                         ? 1 + x
                           : w->how == RATE                      ? exp(x)
                           : w->how == DECAY || w->how == DECAYS ? -exp(x)
                                                                 : x);
}
/* What llama.cpp reads as F32 alone, or multiplies without a matrix product. */
static bool stays_f32(const char *theirs, const Block *t) {
    return t->rank < 2 || strstr(theirs, "ssm_conv1d") || !strcmp(theirs, "ssm_a") || !strcmp(theirs, "ssm_d") ||
           !strcmp(theirs, "ssm_norm.weight") || !strcmp(theirs, "ffn_gate_inp.weight");
}
static void tensor_is(File *f, const char *block, const Want *w, const char *prefix, uint32_t type) {
    char *name = xformat("%s%s", block, w->theirs);
    Block *t = tensor_of(f, name);
    cr_assert(t, "no tensor %s", name);
    t->seen = true;
    for (uint32_t d = 0; d < 3; d++)
        cr_expect_eq(d < t->rank ? t->n[d] : 0, w->n[d], "%s: size %u is %u", name, d,
                     (unsigned)(d < t->rank ? t->n[d] : 0));
    cr_expect_eq(t->type, stays_f32(w->theirs, t) ? 0 : type, "%s: type %u", name, t->type);
    uint64_t bad = 0, at = 0;
    double scale, worst = 0;
    for (uint64_t i = 0; i < t->count; i++) {
        const double want = wanted(w, prefix, t, i), error = fabs(want - element(t, i, &scale)),
                     bound = t->type == 30    ? fabs(want) * 0x1p-8
                             : w->how == COPY ? 0
                                              : fabs(want) * 0x1p-23;
        if (!(error <= bound) && !bad++) at = i;
        worst = fmax(worst, error);
    }
    cr_expect_eq(bad, 0, "%s: %d of %d values, the first at %d, worst %g", name, (int)bad, (int)t->count, (int)at,
                 worst);
    free(name);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const Want *want;
    size_t n;
} Table;
#define T(name) \
    { name, sizeof name / sizeof *name }
typedef struct {
    const char *arch, *json, *keys, *lists;
    bool plus_one, output; /* output: a tied model has an output tensor */
    int layers;
    Table table[3][4];
} Case;
#define MODEL(more, layers, kinds, pattern)                                                               \
    "{\"d_model\":32,\"vocab\":23,\"max_positions\":32,\"init_std\":0.4,\"tied\":true,\"norm_eps\":1e-6," \
    "\"layers\":" #layers more ",\"kinds\":{" kinds "},\"pattern\":[" pattern "]}"
/* Layers of one part: `ffn` in some. */
#define SINGLE(ffn, pattern) ",\"ffn\":{\"x\":{" ffn "},\"n\":{\"kind\":\"none\"}},\"ffn_pattern\":[" pattern "]"

#define MAMBA      "\"m\":{\"mixer\":\"mamba2\",\"heads\":4,\"head_dim\":16,\"state_size\":8,\"groups\":2"
#define GQA_OF     "\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":8"
#define GDN_OF     "\"g\":{\"mixer\":\"gdn\",\"heads\":2,\"v_heads\":4,\"head_dim\":8,\"v_dim\":8,\"conv\":3"
#define KDA_OF     "\"k\":{\"mixer\":\"kda\",\"heads\":4,\"head_dim\":6,\"conv\":3"
#define MLA_OF     "\"l\":{\"mixer\":\"mla\",\"heads\":4,\"kv_rank\":16,\"nope_dim\":6,\"rope_dim\":4,\"v_dim\":5"
#define NOPE_KEY   ",\"rope\":{\"type\":\"none\"}"
#define SWIGLU     ",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":64}]"
#define MOE_OF     "\"kind\":\"moe\",\"hidden\":48,\"experts\":3,\"top_k\":2,\"shared\":1"
#define MOE(more)  ",\"ffn\":[{" MOE_OF more "}]"
#define WIDER      ",\"shared_hidden\":40"
#define BALANCED   ",\"router\":\"sigmoid\",\"bias_balance\":true,\"scale\":2.5"
#define SCALES     ",\"embed_scale\":3,\"residual_scale\":0.5,\"logits_divisor\":2"
#define QWEN       ",\"norm_plus_one\":true"
#define QWEN_KINDS GDN_OF "}," GQA_OF ",\"rope_dims\":4,\"qk_norm\":true,\"out_gate\":true,\"rope\":{\"theta\":50}}"
#define NOTHING    "\"n\":{\"mixer\":\"none\"}"
#define STATE_KEYS "ssm.conv_kernel=4 ssm.inner_size=64 ssm.state_size=8 ssm.time_step_rank=4 ssm.group_count=2 "
#define GDN_KEYS                                                                                   \
    "ssm.conv_kernel=3 ssm.inner_size=32 ssm.state_size=8 ssm.time_step_rank=4 ssm.group_count=2 " \
    "rope.dimension_count=4 rope.freq_base=50 attention.head_count=4 attention.head_count_kv=2 "   \
    "attention.key_length=8 attention.value_length=8 "
#define MOE_KEYS "expert_count=3 expert_used_count=2 expert_feed_forward_length=48 "
#define BALANCED_KEYS                                                                            \
    "expert_weights_scale=2.5 expert_weights_norm=1 expert_gating_func=2 expert_shared_count=1 " \
    "feed_forward_length=48 "
#define LATENT_KEYS                                                                                              \
    "ssm.conv_kernel=3 kda.head_dim=6 attention.head_count=4 attention.kv_lora_rank=16 attention.key_length=20 " \
    "attention.value_length=16 attention.key_length_mla=10 attention.value_length_mla=5 rope.dimension_count=4 " \
    "leading_dense_block_count="
static const Case cases[] = {
    {"mamba2",
     MODEL(",\"ffn\":[{\"kind\":\"none\"}]", 2, MAMBA "}", "\"m\""),
     STATE_KEYS "attention.head_count=0 feed_forward_length=0 attention.layer_norm_rms_epsilon=1e-6",
     "",
     false,
     false,
     2,
     {{T(mixer_norm), T(mamba)}, {T(mixer_norm), T(mamba)}}},
    {"granitehybrid",
     MODEL(SWIGLU SCALES, 2, MAMBA "}," GQA_OF ",\"scale\":0.25}", "\"m\",\"a\""),
     STATE_KEYS "attention.head_count=4 attention.key_length=8 attention.scale=0.25 embedding_scale=3 "
                "residual_scale=0.5 logit_scale=2 feed_forward_length=64 rope.scaling.finetuned=1 "
                "rope.dimension_count=8 rope.freq_base=10000",
     "attention.head_count_kv=0,2",
     false,
     false,
     2,
     {{T(mixer_norm), T(mamba), T(feed_norm), T(swiglu)}, {T(mixer_norm), T(turns), T(feed_norm), T(swiglu)}}},
    {"granitehybrid",
     MODEL(MOE(WIDER), 2, MAMBA "}," GQA_OF NOPE_KEY "}", "\"a\",\"m\""),
     STATE_KEYS MOE_KEYS "feed_forward_length=48 expert_shared_feed_forward_length=40 rope.scaling.finetuned=0",
     "attention.head_count_kv=2,0",
     false,
     false,
     2,
     {{T(mixer_norm), T(attends), T(feed_norm), T(moe)}, {T(mixer_norm), T(mamba), T(feed_norm), T(moe)}}},
    {"nemotron_h",
     MODEL(SINGLE("\"kind\":\"relu2\",\"hidden\":64,\"bias\":true", "\"n\",\"x\",\"n\""), 3,
           MAMBA "}," GQA_OF NOPE_KEY "}," NOTHING, "\"m\",\"n\",\"a\""),
     STATE_KEYS "attention.head_count=4 attention.layer_norm_epsilon=1e-6 attention.layer_norm_rms_epsilon=1e-6",
     "attention.head_count_kv=0,0,2 feed_forward_length=0,64,0",
     false,
     false,
     3,
     {{T(mixer_norm), T(mamba)}, {T(only_norm), T(relu2)}, {T(mixer_norm), T(attends)}}},
    {"nemotron_h_moe",
     MODEL(SINGLE(MOE_OF WIDER BALANCED ",\"act\":\"relu2\",\"latent\":20", "\"x\",\"n\",\"n\""), 3,
           MAMBA "}," GQA_OF NOPE_KEY "}," NOTHING, "\"n\",\"a\",\"m\""),
     STATE_KEYS MOE_KEYS "expert_shared_feed_forward_length=40 moe_latent_size=20 expert_weights_scale=2.5 "
                         "expert_weights_norm=1 expert_shared_count=1",
     "attention.head_count_kv=0,2,0 feed_forward_length=48,0,0",
     false,
     false,
     3,
     {{T(only_norm), T(moe_latent)}, {T(mixer_norm), T(attends)}, {T(mixer_norm), T(mamba)}}},
    {"qwen35",
     MODEL(SWIGLU QWEN, 2, QWEN_KINDS, "\"g\",\"a\""),
     GDN_KEYS "feed_forward_length=64 full_attention_interval=2",
     "attention.recurrent_layers=1,0 rope.dimension_sections=1,1,0,0",
     true,
     false,
     2,
     {{T(mixer_norm_one), T(gdn), T(feed_norm_one), T(swiglu)},
      {T(mixer_norm_one), T(gates), T(feed_norm_one), T(swiglu)}}},
    {"qwen3next",
     MODEL(MOE(WIDER ",\"shared_gate\":true") QWEN, 3, QWEN_KINDS, "\"a\",\"g\",\"g\""),
     GDN_KEYS MOE_KEYS "expert_shared_feed_forward_length=40 feed_forward_length=48",
     "attention.recurrent_layers=0,1,1",
     true,
     false,
     3,
     {{T(mixer_norm_one), T(gates), T(feed_norm_one), T(moe_gated)},
      {T(mixer_norm_one), T(gdn_next), T(feed_norm_one), T(moe_gated)},
      {T(mixer_norm_one), T(gdn_next), T(feed_norm_one), T(moe_gated)}}},
    {"kimi-linear",
     MODEL(",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":64},{" MOE_OF BALANCED "},{" MOE_OF BALANCED "}]", 2,
           KDA_OF ",\"gate\":\"standard\"}," MLA_OF NOPE_KEY "}", "\"k\",\"l\""),
     LATENT_KEYS "1 " MOE_KEYS "expert_weights_scale=2.5 expert_gating_func=2 expert_shared_count=1 "
                 "feed_forward_length=64",
     "attention.head_count_kv=0,1",
     false,
     true,
     2,
     {{T(mixer_norm), T(kda), T(feed_norm), T(swiglu)}, {T(mixer_norm), T(mla), T(feed_norm), T(moe_equal)}}},
    {"bailingmoe3",
     MODEL(MOE(WIDER BALANCED), 2,
           KDA_OF ",\"bound\":-4,\"gate_proj\":\"full\",\"out_gate\":\"full\"}," MLA_OF
                  ",\"q_rank\":7,\"out_gate\":true,\"rope\":{\"theta\":50,\"interleaved\":true}}",
           "\"l\",\"k\""),
     LATENT_KEYS "0 " MOE_KEYS BALANCED_KEYS "expert_shared_feed_forward_length=40 kda.gate_lower_bound=-4 "
                 "kda.safe_gate=1 rope.freq_base=50 attention.q_lora_rank=7",
     "attention.head_count_kv=1,0",
     false,
     false,
     2,
     {{T(mixer_norm), T(mla_gated), T(feed_norm), T(moe_balanced)},
      {T(mixer_norm), T(kda_bound), T(feed_norm), T(moe_balanced)}}},
};
enum { CASES = sizeof cases / sizeof *cases };

static void keys_are(const File *f, const Case *c) {
    char *copy = xformat("vocab_size=23 context_length=32 embedding_length=32 block_count=%d %s", c->layers, c->keys),
         *lists = xstrdup(c->lists), *save = NULL;
    text_is(f, "general.architecture", c->arch);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(w, '='), *name = xformat("%s.%.*s", c->arch, (int)(eq - w), w);
        const double want = atof(eq + 1), got = scalar(f, name);
        cr_expect(fabs(got - want) <= 1e-6 * fabs(want), "%s is %g, expected %g", name, got, want);
        free(name);
    }
    for (char *w = strtok_r(lists, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(w, '='), *name = xformat("%s.%.*s", c->arch, (int)(eq - w), w);
        const Value *v = key_of(f, name);
        uint64_t n = 0;
        cr_assert(v && v->type == 9, "no list %s", name);
        for (char *at = eq + 1;; n++) {
            const double want = strtod(at, &at), got = n >= v->n    ? -1
                                                       : v->of == 7 ? (double)v->at[n]
                                                                    : number_at(f, name, n);
            cr_expect_eq(got, want, "%s[%d] is %g, expected %g", name, (int)n, got, want);
            if (*at++ != ',') break;
        }
        cr_expect_eq(v->n, n + 1, "%s has %d elements", name, (int)v->n);
        free(name);
    }
    free(copy), free(lists);
}
static void file_is_case(const char *path, const Case *c, uint32_t type) {
    const Want tops[] = {{"token_embd.weight", {"model.embed_tokens.weight"}, COPY, {D, 23}, 0},
                         {"output_norm.weight", {"model.norm.weight"}, c->plus_one ? ONE : COPY, {D}, 0},
                         {"output.weight", {"model.embed_tokens.weight"}, COPY, {D, 23}, 0}};
    File f;
    file_open(&f, path);
    keys_are(&f, c);
    for (int i = 0; i < 2 + c->output; i++) tensor_is(&f, "", &tops[i], "", type);
    for (int l = 0; l < c->layers; l++) {
        char *block = xformat("blk.%d.", l), *prefix = xformat("model.layers.%d.", l);
        for (int k = 0; k < 4; k++)
            for (size_t i = 0; i < c->table[l][k].n; i++) tensor_is(&f, block, &c->table[l][k].want[i], prefix, type);
        free(block), free(prefix);
    }
    for (uint64_t i = 0; i < f.ntensor; i++) cr_expect(f.tensor[i].seen, "unexpected tensor %s", f.tensor[i].name);
    file_close(&f);
}

/* Every architecture: all tensors and keys, in f32 and bf16. */
Test(gguf_recurrent, every_tensor_and_key) {
    for (int i = 0; i < CASES; i++) {
        char *dir = xformat("%s%d", cases[i].arch, i), *src = model_dir(dir, cases[i].json, F32);
        for (int bf16 = 0; bf16 < 2; bf16++) {
            char *dst = xformat("%s.%d.gguf", src, bf16);
            Done d = run(src, dst, "gguf", bf16 ? "dtype=bf16" : "dtype=f32", NULL);
            cr_assert(d.ok, "%s: %s", cases[i].arch, d.e.msg);
            cr_expect_eq(d.r.exact, !bf16, "%s: %s", cases[i].arch, d.r.note);
            cr_expect_eq(d.r.before.params, d.r.after.params);
            file_is_case(dst, &cases[i], bf16 ? 30 : 0);
            free(dst);
        }
        free(dir), free(src);
    }
}

/* The type of the source chooses between two architectures that compute the same. Their tensors differ in a layer with
 * a state alone: qwen35moe has those of qwen35, which a case above reads. */
Test(gguf_recurrent, qwen35moe_by_the_type_of_the_source) {
    static const struct {
        const char *type, *arch;
        bool tiled;
    } named[] = {{NULL, "qwen3next", false},
                 {"qwen3_next", "qwen3next", false},
                 {"kvsmith", "qwen3next", false},
                 {"qwen3_5_moe", "qwen35moe", true},
                 {"qwen3_5_moe_text", "qwen35moe", true}};
    const Animal next = {"next", cases[6].json}, dense = {"dense", cases[5].json};
    ModelCfg cfg[2];
    Model m[2];
    Device *dev[2];
    Err e = {0};
    zoo_open(&next, &cfg[0], &m[0], NULL, &dev[0], (ModelOpts){0});
    zoo_open(&dense, &cfg[1], &m[1], NULL, &dev[1], (ModelOpts){0});
    GgufPlaces want[GGUF_LISTS], got[GGUF_LISTS];
    GgufArch a, b;
    cr_assert(gguf_recurrent_arch(&b, &m[1], NULL, &e), "%s", e.msg);
    cr_assert_eq(gguf_recurrent_places(&b, &m[1], 0, want), 3);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        cr_assert(gguf_recurrent_arch(&a, &m[0], named[i].type, &e), "%s", e.msg);
        cr_expect_str_eq(a.name, named[i].arch);
        cr_assert_eq(gguf_recurrent_places(&a, &m[0], 1, got), 3); /* norms, the delta rule, the feed-forward part */
        cr_expect_eq(got[1].place == want[1].place, named[i].tiled, "%s", named[i].arch);
        cr_expect(got[0].place == want[0].place && got[2].place == want[2].place);
    }
    zoo_close(&cfg[0], &m[0], NULL, dev[0]), zoo_close(&cfg[1], &m[1], NULL, dev[1]);
}

/* Where llama.cpp adds the model's norm_eps and we 1e-6, the file is written and the note says so. */
Test(gguf_recurrent, another_eps_is_approximate) {
    char *json = xstrdup(cases[7].json), *at = strstr(json, "1e-6");
    at[3] = '5';
    char *src = model_dir("eps", json, F32), *dst = xformat("%s.gguf", src);
    Done d = run(src, dst, "gguf", "", NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    cr_expect(!d.r.exact && !*d.r.rounded && strstr(d.r.note, "adds 1e-05 to squares of keys and latents"), "%s",
              d.r.note);
    free(json), free(src), free(dst);
}

/* ---- what no architecture holds ---------------------------------------------------------------------------------- */

#define HYBRID(mamba, more, gqa) MODEL(SWIGLU more, 2, MAMBA mamba "}," GQA_OF gqa "}", "\"m\",\"a\"")
#define QWENS(ffn, gdn, gqa) \
    MODEL(ffn, 2, GDN_OF gdn "}," GQA_OF ",\"qk_norm\":true,\"out_gate\":true" gqa "}", "\"g\",\"a\"")
#define KIMI(ffn, kda, mla) MODEL(ffn, 2, KDA_OF ",\"gate\":\"standard\"" kda "}," MLA_OF mla "}", "\"k\",\"l\"")
#define NEMOTRON(ffn, mamba, gqa) \
    MODEL(SINGLE(ffn, "\"n\",\"x\",\"n\""), 3, MAMBA mamba "}," GQA_OF gqa "}," NOTHING, "\"m\",\"n\",\"a\"")
#define RELU2 "\"kind\":\"relu2\",\"hidden\":64"
static const struct {
    const char *json, *part;
} refused[] = {
    {MODEL(SWIGLU, 2, MAMBA "}", "\"m\""), "no layer of attention (its granitehybrid has some)"},
    {HYBRID(",\"bias\":true", "", ""), "mamba2 with bias"},
    {HYBRID(",\"conv_bias\":false", "", ""), "without a convolution or its bias"},
    {HYBRID(",\"conv\":0", "", ""), "without a convolution or its bias"},
    {HYBRID(",\"gate\":\"sigmoid\"", "", ""), "gate sigmoid"},
    {HYBRID("", QWEN, ""), "norm_plus_one with granitehybrid"},
    {HYBRID("", ",\"logits_cap\":5", ""), "logits_cap 5"},
    {HYBRID("", ",\"norm_place\":\"both\"", ""), "norm_place other than pre"},
    {HYBRID("", "", ",\"window\":8"), "window 8 of 32 positions"},
    {HYBRID("", "", ",\"qk_norm\":true"), "qk_norm or out_gate (its granitehybrid"},
    {HYBRID("", "", ",\"qk_norm_wide\":true"), "qk_norm_wide"},
    {HYBRID("", "", ",\"soft_cap\":5"), "soft_cap"},
    {HYBRID("", "", ",\"rope_dims\":4"), "4 of head_dim 8 are rotated"},
    {HYBRID("", "", ",\"rope\":{\"type\":\"dynamic\",\"factor\":4}"), "rope.type dynamic"},
    {MODEL(SWIGLU, 2, "\"m\":{\"mixer\":\"mamba2\",\"heads\":4,\"head_dim\":8}," GQA_OF "}", "\"m\",\"a\""),
     "mamba2 of 4 heads of 8, not 2 x d_model 32"},
    {MODEL(MOE(",\"router\":\"sigmoid\""), 2, MAMBA "}," GQA_OF "}", "\"m\",\"a\""), "router sigmoid"},
    {MODEL(MOE(",\"shared_gate\":true"), 2, MAMBA "}," GQA_OF "}", "\"m\",\"a\""), "shared_gate"},
    {MODEL(",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":64},{" MOE_OF "}]", 2, MAMBA "}," GQA_OF "}", "\"m\",\"a\""),
     "has them in all or none"},
    {MODEL(SWIGLU, 2, MAMBA "}," MLA_OF "}", "\"m\",\"l\""), "next to layers that are not gqa"},
    {MODEL(",\"ffn\":[{\"kind\":\"none\"}]" SCALES, 2, MAMBA "}", "\"m\""), "embed_scale 3"},
    {MODEL(SWIGLU, 2, MAMBA ",\"levels\":3}," GQA_OF "}", "\"m\",\"a\""), "mamba2 with levels"},
    {NEMOTRON(RELU2, "", ""), "a rotation"},
    {NEMOTRON(RELU2, "", NOPE_KEY ",\"qkv_bias\":true"), "biases or scale"},
    {NEMOTRON("\"kind\":\"swiglu\",\"hidden\":64", "", NOPE_KEY), "ffn swiglu in a layer of its own"},
    {NEMOTRON(MOE_OF BALANCED, "", NOPE_KEY), "act swiglu"},
    {NEMOTRON(MOE_OF ",\"act\":\"relu2\"", "", NOPE_KEY), "without bias_balance"},
    {MODEL(SINGLE(RELU2, "\"n\",\"x\",\"x\""), 3, MAMBA "}," GQA_OF NOPE_KEY "}," NOTHING, "\"m\",\"n\",\"a\""),
     "layer 2 has both a mixer and a feed-forward part"},
    {QWENS(SWIGLU, ",\"beta_max\":2", ""), "beta_max 2"},
    {QWENS(SWIGLU, ",\"gate\":\"sigmoid\"", ""), "another gate than silu"},
    {QWENS(SWIGLU, ",\"householders\":2", ""), "householders"},
    {QWENS(SWIGLU, ",\"levels\":3", ""), "gdn with levels"},
    {QWENS(SWIGLU, ",\"inner_decay\":true", ""), "gdn with inner_decay or output_correction"},
    {QWENS(SWIGLU, ",\"output_correction\":true", ""), "gdn with inner_decay or output_correction"},
    {QWENS(SWIGLU, ",\"conv_bias\":true", ""), "conv_bias"},
    {QWENS(SWIGLU, "", ",\"qkv_bias\":true"), "biases or scale, next to gdn"},
    {QWENS(SWIGLU, "", NOPE_KEY), "a rotation"},
    {QWENS(SWIGLU, "", ",\"rope\":{\"interleaved\":true}"), "rope_layout=half"},
    {QWENS(SWIGLU, "", ",\"rope\":{\"type\":\"llama3\",\"factor\":4,\"original_max_positions\":8}"),
     "rope.type llama3"},
    {QWENS(MOE(""), "", ""), "one shared expert with a gate"},
    {QWENS(MOE(",\"shared_gate\":true,\"norm_topk\":false"), "", ""), "norm_topk false"},
    {QWENS(",\"ffn\":[{\"kind\":\"relu2\",\"hidden\":64}]", "", ""), "ffn: layer 0 is relu2"},
    {MODEL(SWIGLU, 2, GDN_OF "}," GQA_OF "}", "\"g\",\"a\""), "attention without qk_norm, out_gate"},
    {MODEL(SWIGLU, 2, "\"g\":{\"mixer\":\"gdn\",\"heads\":2,\"head_dim\":8}," GQA_OF "}", "\"g\",\"a\""),
     "gdn with head_dim 8 and v_dim 16"},
    {MODEL(SWIGLU, 2, GDN_OF "}", "\"g\""), "mixer gdn in all layers"},
    {MODEL(SWIGLU, 2, GDN_OF "}," MAMBA "}", "\"g\",\"m\""), "mamba2 next to layers that are not gqa"},
    {MODEL(SWIGLU, 2, GDN_OF "},\"h\":{\"mixer\":\"gdn\",\"heads\":2}", "\"g\",\"h\""),
     "layer 1 is gdn of another kind than layer 0"},
    {MODEL(SWIGLU, 2, KDA_OF "}", "\"k\""), "mixer kda in all layers"},
    {KIMI(SWIGLU, "", NOPE_KEY), "kda and mla without experts"},
    {KIMI(MOE(BALANCED), "", ""), "latents with a rotation"},
    {KIMI(MOE(BALANCED), "", NOPE_KEY ",\"q_rank\":7"), "q_rank 7"},
    {KIMI(MOE(BALANCED WIDER), "", NOPE_KEY), "shared_hidden of its own"},
    {KIMI(MOE(BALANCED ",\"norm_topk\":false"), "", NOPE_KEY), "norm_topk false"},
    {KIMI(MOE(""), "", NOPE_KEY), "without bias_balance"},
    {KIMI(MOE(BALANCED), ",\"gate_rank\":5", NOPE_KEY), "low_rank, of rank head_dim"},
    {KIMI(MOE(BALANCED), ",\"v_heads\":8", NOPE_KEY), "v_heads"},
    {KIMI(MOE(BALANCED), ",\"kv_heads\":2", NOPE_KEY), "fewer kv_heads than heads"},
    {KIMI(MOE(BALANCED), ",\"erase\":\"channel\"", NOPE_KEY), "erase channel"},
    {KIMI(MOE(BALANCED), ",\"levels\":3", NOPE_KEY), "kda with levels"},
    {KIMI(MOE(BALANCED), ",\"out_act\":\"silu\"", NOPE_KEY), "out_act silu"},
    {KIMI(MOE(BALANCED), "", ",\"out_gate\":true,\"rope\":{\"interleaved\":true}"), "gate standard"},
    {MODEL(MOE(BALANCED), 2, KDA_OF "}," MLA_OF NOPE_KEY "}", "\"k\",\"l\""), "gate lower_bound"},
    {MODEL(MOE(BALANCED), 2, "\"k\":{\"mixer\":\"kda\",\"heads\":2,\"gate\":\"standard\"}," MLA_OF NOPE_KEY "}",
           "\"k\",\"l\""),
     "heads: 2 of kda, 4 of mla"},
    {MODEL(MOE(BALANCED), 2,
           KDA_OF ",\"gate_proj\":\"full\",\"out_gate\":\"full\"}," MLA_OF ",\"out_gate\":true,\"rope\":{\"type\":"
                  "\"linear\",\"factor\":4,\"interleaved\":true}}",
           "\"k\",\"l\""),
     "one with a scaling"},
};
Test(gguf_recurrent, refusals_leave_nothing) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *above = xformat("refused%zu", i), *in = xformat("%s/src", above), *at = check_path(above);
        cr_assert_eq(mkdir(at, 0700), 0);
        char *src = model_dir(in, refused[i].json, F32), *dst = xformat("%s/dst", at);
        Done d = run(src, dst, "gguf", "", NULL);
        cr_expect(!d.ok, "%s", refused[i].part);
        dir_refused(refused[i].part, NULL, &d.e, refused[i].part);
        cr_expect_eq(check_entries(at), 1, "%s: something was left", refused[i].part);
        free(above), free(in), free(at), free(src), free(dst);
    }
}
