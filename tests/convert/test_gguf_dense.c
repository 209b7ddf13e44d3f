/* test_gguf_dense.c: --to gguf for gemma2, gemma3, phi3, smollm3, glm4moe and gpt-oss: every tensor and key read back,
 * notes, refusals. Names, orders and keys are written here again, from llama.cpp. */
#include "tests/lib/gguf_read.h"

typedef enum { AS_IS, TURNED_ROWS, GAIN, GAIN_ZERO, EXPERTS, LONG, SHORT } Order; /* GAIN_ZERO: 1 is added to it */
typedef struct {
    const char *theirs, *ours[3]; /* without .weight; several: rows of one after the other */
    Order order;
} Pair;
#define ATTENTION                                                                     \
    {"attn_q", {"self_attn.q_proj"}, AS_IS}, {"attn_k", {"self_attn.k_proj"}, AS_IS}, \
        {"attn_v", {"self_attn.v_proj"}, AS_IS}, {                                    \
        "attn_output", {"self_attn.o_proj"}, AS_IS                                    \
    }
#define FEED \
    {"ffn_gate", {"mlp.gate_proj"}, AS_IS}, {"ffn_up", {"mlp.up_proj"}, AS_IS}, { "ffn_down", {"mlp.down_proj"}, AS_IS }
#define EXPERT_PAIRS                                                                  \
    {"ffn_gate_inp", {"mlp.gate"}, AS_IS}, {"ffn_gate_exps", {"gate_proj"}, EXPERTS}, \
        {"ffn_up_exps", {"up_proj"}, EXPERTS}, {                                      \
        "ffn_down_exps", {"down_proj"}, EXPERTS                                       \
    }
#define GEMMA(gain)                                                                                                 \
    ATTENTION, FEED, {"attn_norm", {"input_layernorm"}, gain},                                                      \
        {"post_attention_norm", {"post_attention_layernorm"}, gain},                                                \
        {"ffn_norm", {"pre_feedforward_layernorm"}, gain}, {"post_ffw_norm", {"post_feedforward_layernorm"}, gain}, \
        {"output_norm", {"norm"}, gain}, {"attn_q_norm", {"self_attn.q_norm"}, gain}, {                             \
        "attn_k_norm", {"self_attn.k_norm"}, gain                                                                   \
    }
static const Pair gemma_one[] = {GEMMA(GAIN_ZERO), {NULL, {NULL}, AS_IS}},
                  gemma_plain[] = {GEMMA(GAIN), {NULL, {NULL}, AS_IS}},
                  phi[] = {{"attn_norm", {"input_layernorm"}, GAIN},
                           {"ffn_norm", {"post_attention_layernorm"}, GAIN},
                           {"output_norm", {"norm"}, GAIN},
                           {"attn_qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, AS_IS},
                           {"attn_output", {"self_attn.o_proj"}, AS_IS},
                           {"ffn_up", {"mlp.gate_proj", "mlp.up_proj"}, AS_IS},
                           {"ffn_down", {"mlp.down_proj"}, AS_IS},
                           {"rope_factors_long", {NULL}, LONG},
                           {"rope_factors_short", {NULL}, SHORT},
                           {NULL, {NULL}, AS_IS}},
                  smollm[] = {{"attn_norm", {"input_layernorm"}, GAIN},
                              {"ffn_norm", {"post_attention_layernorm"}, GAIN},
                              {"output_norm", {"norm"}, GAIN},
                              {"attn_q", {"self_attn.q_proj"}, TURNED_ROWS},
                              {"attn_k", {"self_attn.k_proj"}, TURNED_ROWS},
                              {"attn_v", {"self_attn.v_proj"}, AS_IS},
                              {"attn_output", {"self_attn.o_proj"}, AS_IS},
                              FEED,
                              {NULL, {NULL}, AS_IS}},
                  llama_one[] = {{"attn_norm", {"input_layernorm"}, GAIN_ZERO},
                                 {"ffn_norm", {"post_attention_layernorm"}, GAIN_ZERO},
                                 {"output_norm", {"norm"}, GAIN_ZERO},
                                 {"attn_q", {"self_attn.q_proj"}, TURNED_ROWS},
                                 {"attn_k", {"self_attn.k_proj"}, TURNED_ROWS},
                                 {"attn_v", {"self_attn.v_proj"}, AS_IS},
                                 {"attn_output", {"self_attn.o_proj"}, AS_IS},
                                 FEED,
                                 {NULL, {NULL}, AS_IS}},
                  glm[] = {ATTENTION,
                           FEED,
                           EXPERT_PAIRS,
                           {"attn_norm", {"input_layernorm"}, GAIN},
                           {"post_attention_norm", {"post_attention_layernorm"}, GAIN},
                           {"output_norm", {"norm"}, GAIN},
                           {"attn_q_norm", {"self_attn.q_norm"}, GAIN},
                           {"attn_k_norm", {"self_attn.k_norm"}, GAIN},
                           {"exp_probs_b", {"mlp.gate.e_score_correction_bias"}, AS_IS},
                           {"ffn_gate_shexp", {"mlp.shared_experts.gate_proj"}, AS_IS},
                           {"ffn_up_shexp", {"mlp.shared_experts.up_proj"}, AS_IS},
                           {"ffn_down_shexp", {"mlp.shared_experts.down_proj"}, AS_IS},
                           {NULL, {NULL}, AS_IS}},
                  oss[] = {ATTENTION,
                           EXPERT_PAIRS,
                           {"attn_sinks", {"self_attn.sinks"}, AS_IS},
                           {"attn_norm", {"input_layernorm"}, GAIN},
                           {"post_attention_norm", {"post_attention_layernorm"}, GAIN},
                           {"output_norm", {"norm"}, GAIN},
                           {NULL, {NULL}, AS_IS}};

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const char *name, *arch, *json;
    const Pair *pairs;
    int tensors;
    bool tied_output;
    const char *keys; /* of the architecture, as name=number; !name: there is none */
    const char *note; /* what the report says of a model that llama.cpp does not compute to the bit; NULL: lossless */
} Case;
#define CFG(layers, more, kinds, pattern)                                                                              \
    "{\"d_model\":32,\"vocab\":23,\"max_positions\":32,\"init_std\":0.4,\"layers\":" #layers more ",\"kinds\":{" kinds \
    "},\"pattern\":[" pattern "]}"
#define TIED           ",\"tied\":true"
#define OPEN           ",\"tied\":false"
#define A(settings)    "\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2" settings "}"
#define B(settings)    ",\"b\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2" settings "}"
#define NONE           ",\"rope\":{\"type\":\"none\"}"
#define SWIGLU         ",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":64}]"
#define GEGLU(act)     ",\"ffn\":[{\"kind\":\"geglu\",\"hidden\":64,\"act\":\"" act "\"}]"
#define SCALE          ",\"embed_scale\":5.656854249492381"
#define BOTH           ",\"norm_place\":\"both\"" SCALE
#define ONE            ",\"norm_plus_one\":true"
#define CAPS           ",\"logits_cap\":30"
#define CAP            ",\"soft_cap\":50"
#define WINDOW         ",\"window\":5"
#define NORMED         ",\"qk_norm\":true"
#define BIASED         ",\"qkv_bias\":true,\"o_bias\":true"
#define THETA(x, more) ",\"rope\":{\"theta\":" #x more "}"
#define GLM(settings)                                                                                          \
    ",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":64},{\"kind\":\"moe\",\"hidden\":32,\"experts\":5,\"top_k\":2," \
    "\"router\":\"sigmoid\"" settings "}]"
#define BALANCED ",\"shared\":2,\"bias_balance\":true,\"scale\":1.5"
#define OSS(settings) \
    ",\"ffn\":[{\"kind\":\"moe\",\"hidden\":64,\"experts\":3,\"top_k\":2,\"expert_bias\":true" settings "}]"
#define LIMIT ",\"router_bias\":true,\"limit\":7,\"alpha\":1.702"
#define SINKS ",\"sink_scores\":true"
#define LONGROPE                                                                                             \
    ",\"rope_dims\":4,\"rope\":{\"type\":\"longrope\",\"original_max_positions\":8,\"long_factor\":[2,3.5]," \
    "\"short_factor\":[1.25,1]}"
#define YARN(more) ",\"rope\":{\"type\":\"yarn\",\"theta\":50,\"factor\":4,\"original_max_positions\":8" more "}"
static const Case cases[] = {
    {"gemma2", "gemma2", CFG(3, TIED BOTH ONE CAPS GEGLU("tanh"), A(CAP WINDOW) B(CAP), "\"a\",\"b\""), gemma_one,
     2 + 3 * 11, false,
     "attention.sliding_window=5 attention.sliding_window_pattern=2 attn_logit_softcapping=50 "
     "final_logit_softcapping=30 feed_forward_length=64 attention.head_count_kv=2 !rope.freq_base_swa",
     NULL},
    {"thirds", "gemma2", CFG(3, TIED BOTH CAPS GEGLU("tanh"), A(CAP WINDOW) B(CAP), "\"a\",\"a\",\"b\""), gemma_plain,
     2 + 3 * 11, false, "attention.sliding_window=5 attention.sliding_window_pattern=3", NULL},
    {"open", "gemma2", CFG(1, TIED BOTH CAPS GEGLU("tanh"), A(CAP), "\"a\""), gemma_plain, 2 + 11, false,
     "attention.sliding_window=32 !attention.sliding_window_pattern", NULL},
    {"gemma3", "gemma3",
     CFG(4, OPEN BOTH ONE GEGLU("tanh"),
         A(NORMED WINDOW THETA(77, "")) B(NORMED THETA(500, ",\"type\":\"linear\",\"factor\":8")),
         "\"a\",\"a\",\"b\",\"a\""),
     gemma_one, 3 + 4 * 13, false,
     "attention.sliding_window=5 attention.sliding_window_pattern=3 rope.freq_base=500 rope.freq_base_swa=77 "
     "rope.scaling.factor=8 attention.key_length=8 !final_logit_softcapping !attn_logit_softcapping",
     NULL},
    {"wide3", "gemma3", CFG(2, TIED BOTH ONE CAPS GEGLU("tanh"), A(NORMED ",\"head_dim\":12"), "\"a\""), gemma_one,
     2 + 2 * 13, false,
     "attention.key_length=12 final_logit_softcapping=30 !attention.sliding_window !rope.freq_base_swa", NULL},
    {"local3", "gemma3", CFG(2, TIED BOTH ONE GEGLU("erf"), A(NORMED WINDOW THETA(77, "")), "\"a\""), gemma_one,
     2 + 2 * 13, false, "attention.sliding_window=5 attention.sliding_window_pattern=6 rope.freq_base_swa=77",
     "gelu by tanh, this model by erf"},
    {"phi3", "phi3", CFG(2, TIED SWIGLU, A(",\"rope_dims\":4"), "\"a\""), phi, 2 + 2 * 6, false,
     "rope.dimension_count=4 !rope.scaling.attn_factor", NULL},
    {"longrope", "phi3", CFG(2, OPEN SWIGLU, A(LONGROPE), "\"a\""), phi, 3 + 2 * 6 + 2, false,
     "rope.dimension_count=4 rope.scaling.original_context_length=8 "
     "rope.scaling.attn_factor=1.2909944" /* sqrt(1 + ln 4 / ln 8) */,
     "longrope: llama.cpp chooses its factors by the size of the context"},
    {"smollm3", "smollm3", CFG(5, TIED SWIGLU, A("") B(NONE), "\"a\",\"a\",\"a\",\"b\""), smollm, 2 + 5 * 9, false,
     "rope.dimension_count=8 rope.freq_base=10000", NULL},
    {"plus_one", "llama", CFG(1, TIED SWIGLU ONE, A(""), "\"a\""), llama_one, 2 + 9, false, "block_count=1", NULL},
    {"glm", "glm4moe", CFG(2, OPEN GLM(BALANCED), A(NORMED ",\"qkv_bias\":true,\"rope_dims\":4"), "\"a\""), glm,
     3 + 2 * 11 + 3 + 8, false,
     "leading_dense_block_count=1 expert_count=5 expert_used_count=2 expert_feed_forward_length=32 "
     "expert_shared_count=2 expert_weights_scale=1.5 expert_weights_norm=1 expert_gating_func=2 rope.dimension_count=4",
     NULL},
    {"oss", "gpt-oss", CFG(2, TIED OSS(LIMIT), A(BIASED SINKS WINDOW) B(BIASED SINKS), "\"a\",\"b\""), oss, 3 + 2 * 19,
     true,
     "attention.sliding_window=5 attention.sliding_window_pattern=2 expert_count=3 expert_used_count=2 "
     "expert_feed_forward_length=64 rope.dimension_count=8",
     NULL},
    {"uncut", "gpt-oss", CFG(1, OPEN OSS(LIMIT), A(BIASED SINKS YARN(",\"truncate\":false")), "\"a\""), oss, 3 + 19,
     false, "attention.sliding_window=32 rope.scaling.factor=4 rope.scaling.original_context_length=8",
     "yarn: llama.cpp rounds the limits to whole pairs"},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* The value that model_dir gives element i of a field. */
static double given(const char *path, Order order, uint64_t i) {
    const double x = rng_normal(rng_name(5, path), i);
    if (order == GAIN) return (double)(float)(1 + 0.3 * x);
    const float stored = (float)(0.4 * x);
    return order == GAIN_ZERO ? (double)(1 + stored) : (double)stored;
}
static const Pair *pair_of(const Case *c, const char *name, int n) {
    for (const Pair *k = c->pairs; k->theirs; k++)
        if ((int)strlen(k->theirs) == n && !strncmp(k->theirs, name, (size_t)n)) return k;
    return NULL;
}
/* The value that element i of a tensor must have. */
static double wanted(const Pair *k, const Block *t, const char *prefix, const char *end, uint64_t i) {
    static const uint64_t rows[] = {32, 16, 16}, gates[] = {64, 64, 64}; /* of q, k, v; of gate, up */
    static const double longs[] = {2, 3.5}, shorts[] = {1.25, 1};
    const uint64_t width = t->rank > 1 ? t->n[0] : 1;
    uint64_t row = i / width, column = i % width;
    char path[160];
    int part = 0;
    if (k->order == LONG || k->order == SHORT) return k->order == LONG ? longs[i] : shorts[i];
    if (k->order == EXPERTS) { /* one matrix, or one bias, after the other */
        const uint64_t each = t->rank > 2 ? t->n[0] * t->n[1] : t->n[0];
        snprintf(path, sizeof path, "%smlp.experts.%d.%s.%s", prefix, (int)(i / each), k->ours[0], end);
        return given(path, AS_IS, i % each);
    }
    if (k->ours[1]) {
        const uint64_t *of = k->ours[2] ? rows : gates;
        while (row >= of[part]) row -= of[part++];
    }
    if (k->order == TURNED_ROWS)
        row = row / 8 * 8 + row % 8 / 2 + row % 2 * 4; /* 2x and 2x + 1 come from x and x + 4 */
    const bool bare = strstr(k->ours[0], "sinks") || strstr(k->ours[0], "e_score");
    snprintf(path, sizeof path, "%s%s%s%s", prefix, k->ours[part], bare ? "" : ".", bare ? "" : end);
    return given(path, k->order, row * width + column);
}
static void tensor_is(const Case *c, const Block *t) {
    static const Pair embed = {"token_embd", {"embed_tokens"}, AS_IS}, head = {"output", {"lm_head"}, AS_IS};
    int layer = -1, at = 0;
    sscanf(t->name, "blk.%d.%n", &layer, &at);
    const char *name = t->name + at, *dot = strrchr(name, '.');
    cr_assert(dot, "%s", t->name);
    const int n = (int)(dot - name);
    const bool output = !strcmp(name, "output.weight");
    const Pair *k = !strcmp(name, "token_embd.weight") || (output && c->tied_output) ? &embed
                    : output                                                         ? &head
                                                                                     : pair_of(c, name, n);
    cr_assert(k, "%s: unexpected tensor %s", c->name, t->name);
    char *prefix = layer >= 0 ? xformat("model.layers.%d.", layer) : xstrdup(k == &head ? "" : "model.");
    uint64_t bad = 0, first = 0;
    for (uint64_t i = 0; i < t->count; i++) {
        double scale;
        const double want = wanted(k, t, prefix, dot + 1, i), got = element(t, i, &scale);
        const double bound = t->type == 8    ? scale * (0.5 + 127 * 0x1p-10)
                             : t->type == 1  ? fmax(fabs(want) * 0x1p-11, 0x1p-25)
                             : t->type == 30 ? fabs(want) * 0x1p-8
                                             : 0;
        if (!(fabs(want - got) <= bound) && !bad++) first = i;
    }
    cr_expect_eq(bad, 0, "%s: %s: %d of %d values, the first at %d", c->name, t->name, (int)bad, (int)t->count,
                 (int)first);
    /* what llama.cpp reads as F32 alone: vectors, biases of experts, routers */
    if (t->rank < 2 || strstr(name, "_exps.bias") || strstr(name, "gate_inp")) cr_expect_eq(t->type, 0, "%s", t->name);
    free(prefix);
}
static void keys_are(const File *f, const Case *c) {
    char *copy = xstrdup(c->keys), *save = NULL;
    text_is(f, "general.architecture", c->arch);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(w, '='),
             *name = xformat("%s.%.*s", c->arch, (int)(eq ? eq - w : (long)strlen(w) - 1), eq ? w : w + 1);
        if (!eq) {
            cr_expect(!key_of(f, name), "%s: there is a key %s", c->name, name);
        } else {
            const double want = atof(eq + 1), got = scalar(f, name);
            cr_expect(fabs(got - want) <= 1e-6 * fabs(want), "%s: %s is %g", c->name, name, got);
        }
        free(name);
    }
    free(copy);
}

Test(gguf_dense, every_tensor_and_key) {
    static const char *const dtypes[] = {"f32", "f16", "bf16", "q8_0"};
    for (int i = 0; i < CASES; i++) {
        const Case *c = &cases[i];
        char *src = model_dir(c->name, c->json, F32);
        for (int k = 0; k < 4; k++) {
            char *dst = xformat("%s.%s.gguf", src, dtypes[k]), *words = xformat("dtype=%s", dtypes[k]);
            Done d = run(src, dst, "gguf", words, NULL);
            File f;
            cr_assert(d.ok, "%s %s: %s", c->name, words, d.e.msg);
            cr_expect_eq(d.r.exact, !k && !c->note, "%s %s", c->name, words);
            cr_expect(c->note ? strstr(d.r.note, c->note) != NULL : !strstr(d.r.note, "llama.cpp"), "%s: %s", c->name,
                      d.r.note);
            file_open(&f, dst);
            keys_are(&f, c);
            cr_expect_eq(f.ntensor, c->tensors, "%s: %d tensors", c->name, (int)f.ntensor);
            for (uint64_t t = 0; t < f.ntensor; t++) tensor_is(c, &f.tensor[t]);
            file_close(&f);
            free(dst), free(words);
        }
        free(src);
    }
}

/* ---- what they do not hold --------------------------------------------------------------------------------------- */

#define G2(more, kinds) CFG(3, TIED more CAPS GEGLU("tanh"), kinds, "\"a\"")
#define G3(kinds)       CFG(2, TIED BOTH ONE GEGLU("tanh"), kinds, "\"a\",\"b\"")
#define MOE_GLM(more)   CFG(2, OPEN GLM(more), A(""), "\"a\"")
#define MOE_OSS(ffn, k) CFG(1, OPEN OSS(ffn), A(k), "\"a\"")
static const struct {
    const char *json, *part;
} refused[] = {
    {G2(",\"norm_place\":\"both\"", A(CAP)), "embed_scale 1"},
    {G2(SCALE, A(CAP)), "ffn geglu with norm_place other than both"},
    {G2(BOTH ",\"residual_scale\":0.5", A(CAP)), "residual_scale 0.5"},
    {G2(BOTH, A("")), "soft_cap 0"},
    {CFG(1, TIED BOTH GEGLU("tanh"), A(CAP), "\"a\""), "logits_cap 0"},
    {CFG(1, OPEN BOTH CAPS GEGLU("tanh"), A(CAP), "\"a\""), "tied false"},
    {G2(BOTH, A(CAP ",\"scale\":0.25")), "scale: 0.25 (its gemma2 of 3 layers has 1/sqrt(8))"},
    {G2(BOTH, A(CAP ",\"rope_dims\":4")), "turns 4 of head_dim 8"},
    {G2(BOTH, A(CAP BIASED)), "qkv_bias or o_bias"},
    {G2(BOTH, A(CAP ",\"rope\":{\"interleaved\":true}")), "rope_layout=half"},
    {G2(BOTH, A(CAP WINDOW ",\"sinks\":2")), "sinks: layer 0"},
    {CFG(4, TIED BOTH CAPS GEGLU("tanh"), A(CAP WINDOW) B(CAP), "\"b\",\"a\",\"a\",\"a\""), "not every n-th"},
    {CFG(4, TIED BOTH CAPS GEGLU("tanh"), A(CAP WINDOW) B(CAP ",\"window\":6"), "\"a\",\"b\""), "window: layer 1"},
    {CFG(2, TIED BOTH CAPS GEGLU("tanh"), A(CAP WINDOW THETA(50, "")) B(CAP), "\"a\",\"b\""), "rope: layer 0 differs"},
    {CFG(2, TIED BOTH CAPS GEGLU("tanh"), A(CAP) B(CAP ",\"scale\":0.5"), "\"a\",\"b\""), "scale: layer 1 differs"},
    {G3(A(NORMED CAP) B(NORMED CAP)), "its gemma3 has no soft_cap"},
    {G3(A(NORMED WINDOW THETA(50, ",\"type\":\"linear\",\"factor\":2")) B(NORMED)), "rope: layer 0 is scaled"},
    {G3(A(NORMED WINDOW) B(NORMED YARN(""))), "rope: layer 1 is scaled"},
    {CFG(2, TIED SWIGLU, A(",\"rope_dims\":4" WINDOW), "\"a\""), "window: layer 0 looks back 5"},
    {CFG(2, TIED SWIGLU, A(",\"rope_dims\":4" NORMED), "\"a\""), "qk_norm with its phi3"},
    {CFG(2, TIED SWIGLU, A(",\"rope_dims\":4" BIASED), "\"a\""), "with its phi3"},
    {CFG(2, TIED SWIGLU, A(",\"rope_dims\":4,\"head_dim\":12"), "\"a\""), "4 heads of 12"},
    {CFG(2, TIED SWIGLU CAPS, A(",\"rope_dims\":4"), "\"a\""), "logits_cap"},
    {CFG(2, TIED SWIGLU, A("") B(NONE), "\"a\",\"b\""), "rope: layer 1 turns 0"},
    {CFG(4, TIED SWIGLU ",\"embed_scale\":2", A("") B(NONE), "\"a\",\"a\",\"a\",\"b\""), "embed_scale 2"},
    {CFG(4, TIED SWIGLU, A(NORMED) B(NORMED NONE), "\"a\",\"a\",\"a\",\"b\""), "qk_norm with layers"},
    {MOE_GLM(",\"shared\":1"), "bias_balance"},
    {MOE_GLM(",\"bias_balance\":true"), "shared experts"},
    {MOE_GLM(BALANCED ",\"router_bias\":true"), "router_bias"},
    {MOE_GLM(BALANCED ",\"act\":\"relu2\""), "relu2"},
    {CFG(2, OPEN GLM(BALANCED), A(BIASED), "\"a\""), "o_bias"},
    {CFG(2, OPEN GLM(BALANCED), A(WINDOW), "\"a\""), "window: layer 0"},
    {CFG(2, OPEN GLM(BALANCED), A(NONE), "\"a\""), "rope none"},
    {MOE_OSS(",\"router_bias\":true,\"limit\":6", BIASED SINKS), "limit 6"},
    {MOE_OSS(LIMIT ",\"norm_topk\":false", BIASED SINKS), "softmax over the chosen"},
    {MOE_OSS(LIMIT ",\"scale\":2", BIASED SINKS), "softmax over the chosen"},
    {MOE_OSS(LIMIT, BIASED), "without sink_scores"},
    {MOE_OSS(LIMIT, SINKS), "without sink_scores"},
    {MOE_OSS(LIMIT, BIASED SINKS ",\"rope_dims\":4"), "turns 4 of head_dim 8"},
    {MOE_OSS(LIMIT, BIASED SINKS YARN(",\"beta_fast\":16")), "beta_fast 16"},
    {CFG(1, TIED SWIGLU, A(BIASED SINKS), "\"a\""), "sink_scores without experts"},
};
Test(gguf_dense, refusals_leave_nothing) {
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
