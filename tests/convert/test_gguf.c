/* test_gguf.c: --to gguf: the file read back by a reader of its own: keys, tensors and their order of rows, rounding;
 * models that are refused leave nothing. Names and orders are written here again, from llama.cpp. */
#include "tests/lib/gguf_read.h"

/* ---- what every tensor must hold --------------------------------------------------------------------------------- */

/* The value that model_dir gives element i of a field. */
static double given(const char *path, bool gain, uint64_t i) {
    const double x = rng_normal(rng_name(5, path), i);
    return (double)(float)(gain ? 1 + 0.3 * x : 0.4 * x);
}
typedef struct {
    int d, heads, kv, dim, hidden, vocab, positions; /* of attention: dim numbers of a head */
    int rank, q_rank, nope, rope, v;                 /* of latents */
} Sizes;
typedef enum { PLAIN, HEADS, UP_KEYS, UP_VALUES, EXPERTS } Order;
typedef struct {
    const char *theirs, *ours[3];
    Order order;
    bool gain;
} Pair;
/* The source of element i: a field, and its element. */
static void source_of(const Pair *k, const Sizes *z, const uint64_t rows[3], uint64_t width, uint64_t i, int *part,
                      uint64_t *from) {
    uint64_t r = i / width, c = i % width;
    *part = 0;
    if (k->order == UP_KEYS) { /* (head, latent, key) */
        const uint64_t h = i / (uint64_t)(z->rank * z->nope), l = i / (uint64_t)z->nope % (uint64_t)z->rank,
                       x = i % (uint64_t)z->nope;
        *from = (h * (uint64_t)(z->nope + z->v) + x) * (uint64_t)z->rank + l;
        return;
    }
    if (k->order == UP_VALUES) { /* (head, value, latent) */
        const uint64_t h = i / (uint64_t)(z->rank * z->v), rest = i % (uint64_t)(z->rank * z->v);
        *from = (h * (uint64_t)(z->nope + z->v) + (uint64_t)z->nope) * (uint64_t)z->rank + rest;
        return;
    }
    while (k->ours[1] && *part < 2 && r >= rows[*part]) r -= rows[(*part)++];
    if (k->order == HEADS) { /* 2x comes from x, 2x + 1 from x + dim/2 */
        const uint64_t D = (uint64_t)z->dim, x = r % D;
        r = r - x + x / 2 + x % 2 * (D / 2);
    }
    *from = r * width + c;
}

static void tensor_is(File *f, const Sizes *z, const char *name, const Pair *k, const char *prefix, const char *end) {
    Block *t = tensor_of(f, name);
    cr_assert(t, "no tensor %s", name);
    t->seen = true;
    const uint64_t rows[3] = {(uint64_t)(z->heads * z->dim), (uint64_t)(z->kv * z->dim), (uint64_t)(z->kv * z->dim)},
                   width = t->rank > 1 ? t->n[0] : 1;
    uint64_t bad = 0, at = 0;
    double scale;
    for (uint64_t i = 0; i < t->count; i++) {
        int part;
        uint64_t from;
        char path[160];
        if (k->order == EXPERTS) { /* one matrix after the other */
            part = (int)(i / (t->n[0] * t->n[1])), from = i % (t->n[0] * t->n[1]);
            snprintf(path, sizeof path, "%smlp.experts.%d.%s.%s", prefix, part, k->ours[0], end);
        } else {
            source_of(k, z, rows, width, i, &part, &from);
            snprintf(path, sizeof path, "%s%s.%s", prefix, k->ours[part], end);
        }
        const double want = given(path, k->gain && !strcmp(end, "weight"), from), got = element(t, i, &scale);
        /* the stored scale is the block's rounded to F16: 2^-11 of it, 127 times */
        const double bound = t->type == 8    ? scale * (0.5 + 127 * 0x1p-10)
                             : t->type == 1  ? fmax(fabs(want) * 0x1p-11, 0x1p-25)
                             : t->type == 30 ? fabs(want) * 0x1p-8
                                             : 0;
        if (!(fabs(want - got) <= bound) && !bad++) at = i;
    }
    cr_expect_eq(bad, 0, "%s: %d of %d values, the first at %d", name, (int)bad, (int)t->count, (int)at);
}
static const Pair tops[] = {{"token_embd", {"model.embed_tokens"}, PLAIN, false},
                            {"position_embd", {"model.embed_positions"}, PLAIN, false},
                            {"output_norm", {"model.norm"}, PLAIN, true},
                            {"output", {"lm_head"}, PLAIN, false}};
#define EXPERT_PAIRS                                                                                    \
    {"ffn_gate_exps", {"gate_proj"}, EXPERTS, false}, {"ffn_up_exps", {"up_proj"}, EXPERTS, false},     \
        {"ffn_down_exps", {"down_proj"}, EXPERTS, false}, {"ffn_gate_inp", {"mlp.gate"}, PLAIN, false}, \
        {"ffn_gate_shexp", {"mlp.shared_experts.gate_proj"}, PLAIN, false},                             \
        {"ffn_up_shexp", {"mlp.shared_experts.up_proj"}, PLAIN, false},                                 \
        {"ffn_down_shexp", {"mlp.shared_experts.down_proj"}, PLAIN, false}, {                           \
        "ffn_gate_inp_shexp", {"mlp.shared_expert_gate"}, PLAIN, false                                  \
    }
static const Pair llamas[] = {{"attn_norm", {"input_layernorm"}, PLAIN, true},
                              {"ffn_norm", {"post_attention_layernorm"}, PLAIN, true},
                              {"post_attention_norm", {"post_attention_layernorm"}, PLAIN, true},
                              {"post_ffw_norm", {"post_feedforward_layernorm"}, PLAIN, true},
                              {"attn_q", {"self_attn.q_proj"}, HEADS, false},
                              {"attn_k", {"self_attn.k_proj"}, HEADS, false},
                              {"attn_v", {"self_attn.v_proj"}, PLAIN, false},
                              {"attn_q_norm", {"self_attn.q_norm"}, PLAIN, true},
                              {"attn_k_norm", {"self_attn.k_norm"}, PLAIN, true},
                              {"attn_output", {"self_attn.o_proj"}, PLAIN, false},
                              {"ffn_gate", {"mlp.gate_proj"}, PLAIN, false},
                              {"ffn_up", {"mlp.up_proj"}, PLAIN, false},
                              {"ffn_down", {"mlp.down_proj"}, PLAIN, false},
                              EXPERT_PAIRS};
static const Pair gpts[] = {{"attn_norm", {"input_layernorm"}, PLAIN, true},
                            {"ffn_norm", {"post_attention_layernorm"}, PLAIN, true},
                            {"attn_qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, PLAIN, false},
                            {"attn_output", {"self_attn.o_proj"}, PLAIN, false},
                            {"ffn_up", {"mlp.up_proj"}, PLAIN, false},
                            {"ffn_down", {"mlp.down_proj"}, PLAIN, false}};
static const Pair latents[] = {{"attn_norm", {"input_layernorm"}, PLAIN, true},
                               {"ffn_norm", {"post_attention_layernorm"}, PLAIN, true},
                               {"attn_q", {"self_attn.q_proj"}, PLAIN, false},
                               {"attn_q_a", {"self_attn.q_a_proj"}, PLAIN, false},
                               {"attn_q_a_norm", {"self_attn.q_a_layernorm"}, PLAIN, true},
                               {"attn_q_b", {"self_attn.q_b_proj"}, PLAIN, false},
                               {"attn_kv_a_mqa", {"self_attn.kv_a_proj_with_mqa"}, PLAIN, false},
                               {"attn_kv_a_norm", {"self_attn.kv_a_layernorm"}, PLAIN, true},
                               {"attn_k_b", {"self_attn.kv_b_proj"}, UP_KEYS, false},
                               {"attn_v_b", {"self_attn.kv_b_proj"}, UP_VALUES, false},
                               {"attn_output", {"self_attn.o_proj"}, PLAIN, false},
                               {"ffn_gate", {"mlp.gate_proj"}, PLAIN, false},
                               {"ffn_up", {"mlp.up_proj"}, PLAIN, false},
                               {"ffn_down", {"mlp.down_proj"}, PLAIN, false},
                               EXPERT_PAIRS};

typedef struct {
    const char *name, *arch, *json;
    Sizes z;
    int layers, tensors; /* in the file */
    const char *keys;    /* more keys of the architecture, as name=number */
    bool turned, tied_output;
} Case;
#define CFG(layers, tied, more, mixer, settings)                                                                     \
    "{\"d_model\":32,\"vocab\":23,\"max_positions\":32,\"init_std\":0.4,\"layers\":" #layers ",\"tied\":" #tied more \
    ",\"kinds\":{\"a\":{\"mixer\":\"" mixer "\"," settings "}},\"pattern\":[\"a\"]}"
#define SWIGLU           ",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":64}]"
#define MOE(settings)    ",\"ffn\":[{\"kind\":\"moe\",\"hidden\":64," settings "}]"
#define GPT(act)         ",\"norm\":\"layer\",\"norm_eps\":1e-5,\"ffn\":[{\"kind\":\"gelu\",\"hidden\":64,\"act\":\"" act "\"}]"
#define BIASED           "\"qkv_bias\":true,\"o_bias\":true"
#define ROPE(type, more) ",\"rope\":{\"type\":\"" type "\",\"theta\":50,\"factor\":4" more "}"
#define LONG             ",\"original_max_positions\":8"
#define MLA_SETTINGS     "\"heads\":4,\"kv_rank\":32,\"nope_dim\":6,\"rope_dim\":4,\"v_dim\":5"
#define MLA_ROPE         ",\"rope\":{\"interleaved\":true}"
static const Sizes grouped = {32, 4, 2, 8, 64, 23, 32, 0, 0, 0, 0, 0}, plain = {32, 4, 4, 8, 64, 23, 32, 0, 0, 0, 0, 0},
                   wide = {32, 4, 2, 12, 64, 23, 32, 0, 0, 0, 0, 0}, latent = {32, 4, 4, 0, 64, 23, 32, 32, 0, 6, 4, 5};
static const Case cases[] = {
    {"tied", "llama", CFG(2, true, SWIGLU, "gqa", "\"heads\":4,\"kv_heads\":2"), grouped, 2, 2 + 2 * 9,
     "rope.dimension_count=8 rope.freq_base=10000 attention.head_count=4 attention.head_count_kv=2 "
     "attention.key_length=8 attention.value_length=8 attention.layer_norm_rms_epsilon=1e-5",
     true, false},
    {"wide", "llama",
     CFG(2, false, SWIGLU, "gqa", "\"heads\":4,\"kv_heads\":2,\"head_dim\":12,\"qkv_bias\":true" ROPE("llama3", LONG)),
     wide, 2, 4 + 2 * 12, "rope.dimension_count=12 rope.freq_base=50 attention.key_length=12", true, false},
    {"pairs", "llama",
     CFG(1, false, SWIGLU, "gqa", "\"heads\":4,\"kv_heads\":2," BIASED ",\"rope\":{\"interleaved\":true}"), grouped, 1,
     3 + 13, "vocab_size=23", false, false},
    {"scaled", "llama", CFG(1, false, SWIGLU, "gqa", "\"heads\":4,\"kv_heads\":2" ROPE("linear", "")), grouped, 1,
     3 + 9, "rope.scaling.factor=4", true, false},
    {"windowed", "llama", CFG(1, false, SWIGLU, "gqa", "\"heads\":4,\"kv_heads\":2,\"window\":32"), grouped, 1, 3 + 9,
     "context_length=32", true, false},
    {"qwen2", "qwen2", CFG(2, true, SWIGLU, "gqa", "\"heads\":4,\"kv_heads\":2,\"qkv_bias\":true" ROPE("yarn", LONG)),
     grouped, 2, 2 + 2 * 12, "rope.scaling.factor=4 rope.scaling.original_context_length=8", false, false},
    {"qwen3", "qwen3",
     CFG(2, false, SWIGLU, "gqa",
         "\"heads\":4,\"kv_heads\":2,\"head_dim\":12,\"qk_norm\":true" ROPE("yarn", LONG ",\"attention_factor\":1.5")),
     wide, 2, 3 + 2 * 11, "rope.scaling.attn_factor=1.3173733" /* 1.5 / (1 + 0.1 ln 4) */, false, false},
    {"gpt2", "gpt2",
     CFG(2, true, GPT("tanh") ",\"positions\":\"learned\"", "gqa",
         "\"heads\":4,\"kv_heads\":4," BIASED ",\"rope\":{\"type\":\"none\"}"),
     plain, 2, 4 + 2 * 12, "attention.layer_norm_epsilon=1e-5 feed_forward_length=64", false, false},
    {"neox", "gptneox",
     CFG(2, true, GPT("tanh") ",\"parallel\":true", "gqa", "\"heads\":4,\"kv_heads\":4,\"rope_dims\":4," BIASED), plain,
     2, 4 + 2 * 12, "rope.dimension_count=4 use_parallel_residual=1", false, true},
    {"serial", "gptneox", CFG(1, false, GPT("tanh"), "gqa", "\"heads\":4,\"kv_heads\":4," BIASED), plain, 1, 4 + 12,
     "rope.dimension_count=8 use_parallel_residual=0", false, false},
    {"latent", "deepseek2",
     CFG(2, false, ",\"norm_eps\":1e-6" SWIGLU, "mla",
         MLA_SETTINGS ",\"rope\":{\"interleaved\":true,\"type\":\"yarn\",\"factor\":4,\"mscale\":0.7,"
                      "\"mscale_all_dim\":0.7,\"original_max_positions\":8}"),
     latent, 2, 3 + 2 * 11,
     "attention.q_lora_rank=0 attention.kv_lora_rank=32 attention.head_count_kv=1 attention.key_length=36 "
     "attention.value_length=32 attention.key_length_mla=10 attention.value_length_mla=5 rope.dimension_count=4 "
     "leading_dense_block_count=2 expert_feed_forward_length=64 expert_shared_count=0 "
     "rope.scaling.yarn_log_multiplier=0.07",
     false, false},
    {"queries", "deepseek2", CFG(1, true, ",\"norm_eps\":1e-6" SWIGLU, "mla", MLA_SETTINGS ",\"q_rank\":7" MLA_ROPE),
     latent, 1, 2 + 13, "attention.q_lora_rank=7", false, false},
    {"granite", "granite",
     CFG(2, true, SWIGLU ",\"embed_scale\":3,\"residual_scale\":0.5,\"logits_divisor\":2", "gqa",
         "\"heads\":4,\"kv_heads\":2,\"scale\":0.25,\"qkv_bias\":true"),
     grouped, 2, 2 + 2 * 12, "embedding_scale=3 residual_scale=0.5 logit_scale=2 attention.scale=0.25", true, false},
    {"olmo2", "olmo2",
     CFG(1, true, SWIGLU ",\"norm_place\":\"post\"", "gqa", "\"heads\":4,\"kv_heads\":2,\"qk_norm_wide\":true"),
     grouped, 1, 3 + 11, "attention.head_count_kv=2", false, true},
    {"mixtral", "llama", CFG(2, true, MOE("\"experts\":3,\"top_k\":2"), "gqa", "\"heads\":4,\"kv_heads\":2"), grouped,
     2, 2 + 2 * 10, "expert_count=3 expert_used_count=2 expert_feed_forward_length=64", true, false},
    {"qwen3moe", "qwen3moe",
     CFG(2, false, MOE("\"experts\":5,\"top_k\":2"), "gqa",
         "\"heads\":4,\"kv_heads\":2,\"head_dim\":12,\"qk_norm\":true"),
     wide, 2, 3 + 2 * 12, "expert_count=5 expert_used_count=2 expert_feed_forward_length=64", false, false},
    {"qwen2moe", "qwen2moe",
     CFG(2, true,
         MOE("\"experts\":4,\"top_k\":3,\"shared\":1,\"shared_hidden\":96,\"shared_gate\":true,\"norm_topk\":false"),
         "gqa", "\"heads\":4,\"kv_heads\":2,\"qkv_bias\":true"),
     grouped, 2, 3 + 2 * 17, "expert_count=4 expert_used_count=3 expert_shared_feed_forward_length=96", false, true},
    {"olmoe", "olmoe",
     CFG(1, true, MOE("\"experts\":4,\"top_k\":1,\"norm_topk\":false"), "gqa",
         "\"heads\":4,\"kv_heads\":4,\"qk_norm_wide\":true"),
     plain, 1, 3 + 12, "expert_count=4 expert_used_count=1", false, true},
    {"groups", "deepseek2",
     CFG(2, false,
         ",\"norm_eps\":1e-6,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":64},{\"kind\":\"moe\",\"hidden\":32,"
         "\"experts\":8,\"top_k\":3,\"shared\":2,\"router\":\"sigmoid\",\"groups\":4,\"top_groups\":2,"
         "\"scale\":2.5,\"bias_balance\":true}]",
         "mla", MLA_SETTINGS MLA_ROPE),
     latent, 2, 3 + 11 + 16,
     "leading_dense_block_count=1 expert_count=8 expert_used_count=3 expert_shared_count=2 expert_weights_scale=2.5 "
     "expert_feed_forward_length=32 expert_weights_norm=1 expert_gating_func=2 expert_group_count=4 "
     "expert_group_used_count=2",
     false, false},
    {"softmax", "deepseek2",
     CFG(1, true, ",\"norm_eps\":1e-6" MOE("\"experts\":4,\"top_k\":2,\"shared\":1,\"norm_topk\":false"), "mla",
         MLA_SETTINGS MLA_ROPE),
     latent, 1, 2 + 15, "leading_dense_block_count=0 expert_weights_scale=1 expert_weights_norm=0 expert_gating_func=1",
     false, false},
};
enum { CASES = sizeof cases / sizeof *cases };

static void keys_are(const File *f, const Case *c) {
    char *copy = xstrdup(c->keys), *save = NULL;
    text_is(f, "general.architecture", c->arch);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(w, '='), *name = xformat("%s.%.*s", c->arch, (int)(eq - w), w);
        const double want = atof(eq + 1), got = scalar(f, name);
        cr_expect(fabs(got - want) <= 1e-6 * fabs(want), "%s: %s is %g", c->name, name, got);
        free(name);
    }
    const struct {
        const char *name;
        int value;
    } all[] = {{"vocab_size", c->z.vocab},
               {"context_length", c->z.positions},
               {"embedding_length", c->z.d},
               {"block_count", c->layers},
               {"feed_forward_length", c->z.hidden}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char *name = xformat("%s.%s", c->arch, all[i].name);
        cr_expect_eq(scalar(f, name), all[i].value, "%s: %s is %g", c->name, name, scalar(f, name));
        free(name);
    }
    free(copy);
}

static void file_is_case(const char *path, const Case *c) {
    static const char *const ends[] = {"weight", "bias"};
    const bool gpt = !strncmp(c->arch, "gpt", 3), mla = !strcmp(c->arch, "deepseek2");
    const Pair *pairs = gpt ? gpts : mla ? latents : llamas;
    const size_t n = gpt   ? sizeof gpts / sizeof *gpts
                     : mla ? sizeof latents / sizeof *latents
                           : sizeof llamas / sizeof *llamas;
    File f;
    file_open(&f, path);
    keys_are(&f, c);
    cr_expect_eq(f.ntensor, c->tensors, "%s: %d tensors", c->name, (int)f.ntensor);
    for (int e = 0; e < 2; e++) {
        for (size_t i = 0; i < sizeof tops / sizeof *tops; i++) {
            char *name = xformat("%s.%s", tops[i].theirs, ends[e]);
            const Pair k = i == 3 && c->tied_output ? (Pair){"output", {"model.embed_tokens"}, PLAIN, false} : tops[i];
            if (tensor_of(&f, name)) tensor_is(&f, &c->z, name, &k, "", ends[e]);
            free(name);
        }
        for (int l = 0; l < c->layers; l++)
            for (size_t i = 0; i < n; i++) {
                char *name = xformat("blk.%d.%s.%s", l, pairs[i].theirs, ends[e]),
                     *prefix = xformat("model.layers.%d.", l);
                Pair k = pairs[i];
                if (k.order == HEADS && !c->turned) k.order = PLAIN;
                if (tensor_of(&f, name)) tensor_is(&f, &c->z, name, &k, prefix, ends[e]);
                free(name), free(prefix);
            }
    }
    for (int l = 0; l < c->layers; l++) {
        static const Pair probs = {"exp_probs_b", {"mlp.gate"}, PLAIN, false};
        char *name = xformat("blk.%d.exp_probs_b.bias", l), *prefix = xformat("model.layers.%d.", l);
        if (tensor_of(&f, name)) tensor_is(&f, &c->z, name, &probs, prefix, "e_score_correction_bias");
        free(name), free(prefix);
    }
    Block *factors = tensor_of(&f, "rope_freqs.weight");
    if (factors) factors->seen = true;
    for (uint64_t i = 0; i < f.ntensor; i++) cr_expect(f.tensor[i].seen, "unexpected tensor %s", f.tensor[i].name);
    file_close(&f);
}

/* Every architecture in every dtype: all values from where they belong. */
Test(gguf, every_tensor_and_key) {
    static const char *const dtypes[] = {"f32", "f16", "bf16", "q8_0"};
    for (int i = 0; i < CASES; i++) {
        char *src = model_dir(cases[i].name, cases[i].json, F32);
        for (int k = 0; k < 4; k++) {
            char *dst = xformat("%s.%s.gguf", src, dtypes[k]), *words = xformat("dtype=%s", dtypes[k]);
            Done d = run(src, dst, "gguf", words, NULL);
            cr_assert(d.ok, "%s %s: %s", cases[i].name, words, d.e.msg);
            cr_expect_eq(d.r.exact, k == 0, "%s %s", cases[i].name, words);
            cr_expect_eq(d.r.before.params, d.r.after.params);
            file_is_case(dst, &cases[i]);
            free(dst), free(words);
        }
        free(src);
    }
}

/* Divisors of the frequencies: those that give the rotation of our own table. */
Test(gguf, llama3_factors) {
    char *src = model_dir("factors", cases[1].json, F32), *dst = xformat("%s.gguf", src);
    Done d = run(src, dst, "gguf", "", NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    File f;
    file_open(&f, dst);
    const Block *t = tensor_of(&f, "rope_freqs.weight");
    cr_assert(t && t->rank == 1 && t->count == 6 && t->type == 0);
    int between = 0;
    for (int i = 0; i < 6; i++) {
        double scale, w = 2 * M_PI * pow(50, i / 6.0), mix = fmin(fmax((8 / w - 1) / (4 - 1), 0), 1),
                      want = 1 / (mix + (1 - mix) / 4), got = element(t, (uint64_t)i, &scale);
        between += mix > 0 && mix < 1;
        cr_expect(fabs(got - want) <= 1e-6 * want, "%d: %g, expected %g", i, got, want);
    }
    cr_expect(between > 0);
    file_close(&f);
    free(src), free(dst);
}

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

static float planted[64];
static void plant_embed(Model *m) {
    for (int i = 0; i < 64; i++) R(m->w.embed)[i] = (real)planted[i];
}
#define WORDY(more) CFG(1, true, SWIGLU, "gqa", "\"heads\":4,\"kv_heads\":2" more)

/* A model whose first 64 embedded numbers are `planted`, as a file of that dtype. */
static Done planted_file(const char *name, const char *dtype, char **dst) {
    char *src = wordy_dir(name, WORDY(""), plant_embed), *words = xformat("dtype=%s", dtype);
    *dst = xformat("%s.gguf", src);
    Done d = run(src, *dst, "gguf", words, NULL);
    free(src), free(words);
    return d;
}
Test(gguf, f16_to_nearest_even) {
    static const struct {
        double x, want;
    } exact[] = {{0x1p-24, 0x1p-24},
                 {0x1p-25, 0} /* a tie */,
                 {0x1.8p-25, 0x1p-24},
                 {0x1.8p-24, 0x1p-23} /* a tie */,
                 {0x1.4p-23, 0x1p-23} /* a tie */,
                 {-0x1.8p-24, -0x1p-23},
                 {0x1.FFCp-15, 0x1p-14} /* a subnormal number that becomes normal: a tie */,
                 {0x1.FF8p-15, 0x1.FF8p-15},
                 {0x1p-26, 0},
                 {0x1.002p0, 1} /* a tie */,
                 {0x1.006p0, 0x1.008p0} /* a tie */,
                 {65504, 65504},
                 {65519.99609375, 65504},
                 {-65519.99609375, -65504},
                 {0, 0}};
    enum { n = sizeof exact / sizeof *exact };
    char *dst;
    for (int i = 0; i < n; i++) planted[i] = (float)exact[i].x;
    Done d = planted_file("halves", "f16", &dst);
    cr_assert(d.ok, "%s", d.e.msg);
    File f;
    file_open(&f, dst);
    const Block *t = tensor_of(&f, "token_embd.weight");
    double scale;
    for (int i = 0; i < n; i++) {
        const double got = element(t, (uint64_t)i, &scale);
        cr_expect_eq(got, exact[i].want, "%a became %a, expected %a", exact[i].x, got, exact[i].want);
    }
    cr_expect_eq(scalar(&f, "general.file_type"), 1);
    file_close(&f);
    free(dst);
}

/* Two blocks by hand: scale 2, ties away from zero; and scales that F16 rounds to 0. */
Test(gguf, q8_blocks) {
    static const struct {
        float x;
        int q;
    } want[] = {{254, 127}, {-254, -127}, {1, 1}, {-1, -1}, {3, 2}, {-3, -2}, {5, 3}, {0.99f, 0}, {-0.99f, 0}, {7, 4}};
    char *dst;
    memset(planted, 0, sizeof planted);
    for (int i = 0; i < 10; i++) planted[i] = want[i].x;
    planted[32] = 1e-9f, planted[33] = 1e-42f;
    Done d = planted_file("eights", "q8_0", &dst);
    cr_assert(d.ok, "%s", d.e.msg);
    File f;
    file_open(&f, dst);
    const Block *t = tensor_of(&f, "token_embd.weight");
    cr_assert_eq(t->type, 8);
    cr_expect_eq(number(t->p, 2), 0x4000, "scale %04x", (unsigned)number(t->p, 2));
    for (int i = 0; i < 10; i++) cr_expect_eq((int8_t)t->p[2 + i], want[i].q, "%g: %d", want[i].x, (int8_t)t->p[2 + i]);
    cr_expect_eq(number(t->p + 34, 2), 0);
    cr_expect_eq(scalar(&f, "general.file_type"), 7);
    cr_expect_eq(scalar(&f, "general.quantization_version"), 2);
    cr_expect(!d.r.exact && !strcmp(d.r.rounded, "Q8_0"), "%s", d.r.rounded);
    file_close(&f);
    free(dst);
}

/* Rows that are no whole blocks are F16, and the report counts them. */
Test(gguf, q8_of_odd_rows) {
    char *src = model_dir("odd", UNTIED("\"heads\":4,\"kv_heads\":2"), F32), *dst = xformat("%s.gguf", src);
    Done d = run(src, dst, "gguf", "dtype=q8_0", NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    cr_expect(strstr(d.r.note, "16 tensors whose rows are no multiple of 32 are f16"), "%s", d.r.note);
    File f;
    file_open(&f, dst);
    for (uint64_t i = 0; i < f.ntensor; i++)
        cr_expect_eq(f.tensor[i].type, f.tensor[i].rank > 1, "%s: type %u", f.tensor[i].name, f.tensor[i].type);
    file_close(&f);
    free(src), free(dst);
}

/* What a type cannot hold is refused, and no file is left. */
Test(gguf, values_that_do_not_fit) {
    static const struct {
        const char *dtype;
        float x;
        const char *part;
    } bad[] = {{"f16", 65520, "tensor \"token_embd.weight\": a value (number 5)"},
               {"bf16", 3.4e38f, "tensor \"token_embd.weight\": a value (number 5)"},
               {"q8_0", 9e6f, "(in the block from 0) is too large for Q8_0"},
               {"q8_0", NAN, "or not a number; give dtype=f32"},
               {"q8_0", INFINITY, "or not a number; give dtype=f32"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *name = xformat("big%zu", i), *dst;
        memset(planted, 0, sizeof planted);
        planted[5] = bad[i].x;
        const int before = check_entries(check_dir());
        Done d = planted_file(name, bad[i].dtype, &dst);
        cr_expect(!d.ok, "%s %g", bad[i].dtype, bad[i].x);
        dir_refused(bad[i].dtype, NULL, &d.e, bad[i].part);
        cr_expect_eq(check_entries(check_dir()), before + 1, "something was left");
        free(name), free(dst);
    }
}

/* Without dtype= every matrix is as the source has it. */
Test(gguf, dtype_of_the_source) {
    static const Dtype as[] = {F32, F16, BF16};
    static const unsigned types[] = {0, 1, 30}, kinds[] = {0, 1, 32};
    for (int i = 0; i < 3; i++) {
        char *name = xformat("as%d", i), *src = model_dir(name, cases[0].json, as[i]), *dst = xformat("%s.gguf", src);
        Done d = run(src, dst, "gguf", "", NULL);
        cr_assert(d.ok, "%s", d.e.msg);
        cr_expect(d.r.exact);
        File f;
        file_open(&f, dst);
        for (uint64_t k = 0; k < f.ntensor; k++)
            cr_expect_eq(f.tensor[k].type, f.tensor[k].rank > 1 ? types[i] : 0, "%s", f.tensor[k].name);
        cr_expect_eq(scalar(&f, "general.file_type"), kinds[i]);
        file_close(&f);
        free(name), free(src), free(dst);
    }
}

/* ---- what no architecture holds ---------------------------------------------------------------------------------- */

#define H        "\"heads\":4,\"kv_heads\":2"
#define GPT_NORM ",\"norm\":\"layer\""
static const struct {
    const char *json, *words, *part;
} refused[] = {
    {CFG(2, true, SWIGLU, "mla", "\"heads\":4,\"kv_rank\":8,\"nope_dim\":4,\"rope_dim\":4,\"evict\":true"), "",
     "layer 0 evicts rows of the cache (mixer mla)"},
    {CFG(2, true, SWIGLU, "gqa", H ",\"window\":16"), "", "window: layer 0 looks back 16 of 32 positions"},
    {CFG(2, true, SWIGLU, "gqa", H ",\"rope\":{\"type\":\"none\"}"), "", "rope none"},
    {CFG(2, true, SWIGLU, "gqa", H ",\"rope\":{\"inclusive\":true}"), "", "rope.inclusive"},
    {CFG(2, true, SWIGLU, "gqa", H ROPE("dynamic", "")), "", "rope.type dynamic"},
    {CFG(2, true, SWIGLU, "gqa", H ROPE("yarn", LONG ",\"truncate\":false")), "", "rope.truncate"},
    {CFG(2, true, SWIGLU, "gqa", H ROPE("yarn", LONG ",\"beta_fast\":16")), "", "rope.beta_fast 16"},
    {CFG(2, true, SWIGLU, "gqa", H ",\"qk_norm\":true" ROPE("llama3", LONG)), "", "rope.type llama3"},
    {CFG(2, true, SWIGLU, "gqa", H ",\"qk_norm\":true,\"qkv_bias\":true"), "", "qk_norm with qkv_bias"},
    {CFG(2, true, SWIGLU, "gqa", H ",\"qk_norm\":true,\"rope\":{\"interleaved\":true}"), "", "rope_layout=half"},
    {CFG(2, true, SWIGLU ",\"embed_scale\":2", "gqa", H ",\"qk_norm\":true"), "", "embed_scale 2"},
    {CFG(2, true, SWIGLU ",\"norm_eps\":1e-6,\"logits_divisor\":2", "mla", MLA_SETTINGS MLA_ROPE), "",
     "logits_divisor 2"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2") ",\"residual_scale\":0.5", "gqa", H), "", "residual_scale 0.5"},
    {CFG(2, true, GPT("tanh") ",\"residual_scale\":0.5", "gqa", "\"heads\":4,\"kv_heads\":4," BIASED), "",
     "residual_scale 0.5"},
    {CFG(2, true, SWIGLU ",\"norm_place\":\"both\"", "gqa", H), "", "norm_place both"},
    {CFG(2, true, SWIGLU ",\"norm_place\":\"post\"", "gqa", H), "", "norm_place post without qk_norm_wide"},
    {CFG(2, true, SWIGLU ",\"parallel\":true", "gqa", H), "", "parallel"},
    {CFG(2, true, SWIGLU ",\"positions\":\"learned\"", "gqa", H), "", "positions learned"},
    {CFG(2, true, SWIGLU ",\"norm\":\"layer\"", "gqa", H), "", "ffn swiglu with norm layer"},
    {CFG(2, true, ",\"ffn\":[{\"kind\":\"gelu\",\"hidden\":8}]", "gqa", H), "", "ffn gelu with norm rms"},
    {CFG(2, true, ",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":8},{\"kind\":\"swiglu\",\"hidden\":16}]", "gqa", H), "",
     "ffn: layer 1 has another"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"router\":\"sigmoid\""), "gqa", H), "", "router sigmoid"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"norm_topk\":false"), "gqa", H), "", "norm_topk false (its llama"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2"), "gqa", H ",\"qkv_bias\":true"), "", "norm_topk true (its qwen2moe"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"norm_topk\":false"), "gqa", H ",\"qkv_bias\":true"), "",
     "no shared expert (its qwen2moe"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"shared\":1"), "gqa", H), "", "shared experts (its llama has none)"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"scale\":2"), "gqa", H), "", "scale 2"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"groups\":2,\"top_groups\":1"), "gqa", H), "", "with groups"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"bias_balance\":true"), "gqa", H), "", "bias_balance"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"act\":\"relu2\""), "gqa", H), "", "relu2"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"latent\":4"), "gqa", H), "", "latent"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"router_bias\":true"), "gqa", H), "", "router_bias"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"expert_bias\":true"), "gqa", H), "", "expert_bias"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2") GPT_NORM, "gqa", H), "", "moe with norm layer"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2"), "gqa", H ",\"o_bias\":true"), "", "o_bias"},
    {CFG(2, true, MOE("\"experts\":4,\"top_k\":2,\"norm_topk\":false"), "gqa", H ",\"qk_norm_wide\":true"), "",
     "kv_heads 2 of 4 heads"},
    {CFG(2, true, SWIGLU, "gqa", H ",\"qk_norm_wide\":true"), "", "qk_norm_wide with norm_place pre"},
    {CFG(2, true,
         ",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":8},{\"kind\":\"moe\",\"experts\":4,\"top_k\":2,\"hidden\":8}]",
         "gqa", H),
     "", "has experts in all"},
    {CFG(2, true, ",\"norm_eps\":1e-6" MOE("\"experts\":4,\"top_k\":2"), "mla", MLA_SETTINGS MLA_ROPE), "",
     "without shared experts"},
    {CFG(2, true, ",\"norm_eps\":1e-6" MOE("\"experts\":4,\"top_k\":2,\"shared\":1,\"groups\":2,\"top_groups\":1"),
         "mla", MLA_SETTINGS MLA_ROPE),
     "", "groups by softmax"},
    {CFG(2, true, GPT("tanh"), "gqa", H), "", "norm layer without biases"},
    {CFG(2, true, GPT("tanh"), "gqa", H ",\"head_dim\":12," BIASED), "", "4 heads of 12 are not d_model, 32"},
    {CFG(2, true, GPT("tanh") ",\"positions\":\"learned\"", "gqa", H "," BIASED), "", "rope with positions learned"},
    {CFG(2, true, SWIGLU, "kda", "\"heads\":4"), "", "mixer kda"},
    {CFG(2, true, SWIGLU, "mamba2", "\"heads\":4"), "", "not 2 x d_model 32"},
    {CFG(2, true, ",\"norm_eps\":1e-6" SWIGLU, "mla", MLA_SETTINGS), "", "rope_layout=interleaved"},
    {CFG(2, true, ",\"norm_eps\":1e-6" SWIGLU, "mla", MLA_SETTINGS ",\"a_bias\":true" MLA_ROPE), "", "a_bias"},
    {CFG(2, true, ",\"norm_eps\":1e-6" SWIGLU, "mla", MLA_SETTINGS ",\"latent_norm\":false" MLA_ROPE), "",
     "a latent without norm"},
    {CFG(2, true, ",\"norm_eps\":1e-6" SWIGLU, "mla", MLA_SETTINGS ",\"window\":8" MLA_ROPE), "", "window: layer 0"},
    {CFG(2, true, ",\"norm_eps\":1e-6" SWIGLU, "mla",
         MLA_SETTINGS ",\"rope\":{\"interleaved\":true,\"type\":\"yarn\",\"factor\":4}"),
     "", "mscale_all_dim 0"},
    {CFG(2, true, ",\"norm_eps\":1e-6" SWIGLU, "mla",
         MLA_SETTINGS ",\"rope\":{\"interleaved\":true,\"type\":\"linear\",\"factor\":4}"),
     "", "rope.type linear with latents"},
    {CFG(26, true, ",\"norm_eps\":1e-6" SWIGLU, "mla", MLA_SETTINGS ",\"q_rank\":7" MLA_ROPE), "",
     "q_rank with 26 layers"},
    {SHARED, "", "kv_from: layer 1 reads the keys and values of layer 0"},
    {CFG(2, true, SWIGLU, "gqa", H), "dtype=q4_0", "dtype"},
    {CFG(2, true, SWIGLU, "gqa", H), "shard=2GB", "unknown key"},
};
Test(gguf, refusals_leave_nothing) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *above = xformat("refused%zu", i), *in = xformat("%s/src", above), *at = check_path(above);
        cr_assert_eq(mkdir(at, 0700), 0);
        char *src = model_dir(in, refused[i].json, F32), *dst = xformat("%s/dst", at);
        Done d = run(src, dst, "gguf", refused[i].words, NULL);
        cr_expect(!d.ok, "%s", refused[i].part);
        dir_refused(refused[i].part, NULL, &d.e, refused[i].part);
        cr_expect_eq(check_entries(at), 1, "%s: something was left", refused[i].part);
        free(above), free(in), free(at), free(src), free(dst);
    }
}

/* gelu by erf, and latents with another epsilon, are written and said to be another function; a text to look at has
 * no meaning. */
Test(gguf, notes) {
    char *src = model_dir("erf",
                          CFG(1, true, GPT("erf") ",\"positions\":\"learned\"", "gqa",
                              "\"heads\":4," BIASED ",\"rope\":{\"type\":\"none\"}"),
                          F32),
         *dst = xformat("%s.gguf", src);
    Done d = run(src, dst, "gguf", "", NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    cr_expect(!d.r.exact && !*d.r.rounded && strstr(d.r.note, "gelu by tanh, this model by erf"), "%s", d.r.note);
    cr_assert_eq(unlink(dst), 0);
    char *latent = model_dir("eps", CFG(1, true, ",\"norm_eps\":1e-5" SWIGLU, "mla", MLA_SETTINGS MLA_ROPE), F32);
    d = run(latent, dst, "gguf", "", NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    cr_expect(!d.r.exact && strstr(d.r.note, "llama.cpp adds 1e-05"), "%s", d.r.note);
    cr_assert_eq(unlink(dst), 0);
    free(latent);
    d = run(src, dst, "gguf", "", CASE "/calib.txt");
    dir_refused("a text", NULL, &d.e, "--to gguf looks at no text");
    free(src), free(dst);
}
