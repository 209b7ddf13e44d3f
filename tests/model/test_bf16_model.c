/* test_bf16_model.c: inference with matrices and cached rows that stay bf16 in memory: what matrices hold and take
 * (rows: test_codec.c), and that neither company, cuts nor threads change what they say. */
#include <sys/auxv.h>
#include "infer/session.h"
#include "layers/cache/codec.h"
#include "model/cost.h"
#include "model/files/hf.h"
#include "ops/amx.h"
#include "tests/lib/dirs.h"
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"

#ifdef KV_DOUBLE
Test(bf16_model, weights_have_no_double) {
    Device *d;
    Err e = {0};
    cr_assert(device_open(&d, "cpu", 1, &e), "%s", e.msg);
    cr_assert(!device_bf16(d, true, &e) && e.status == EXIT_INPUT);
    device_close(d);
}
#else

    /* Wide enough that every kind of matrix is bf16. */
    #define WIDE                "\"d_model\":64,\"vocab\":97,\"max_positions\":128,\"init_std\":0.15,\"layers\":2"
    #define SWIGLU              ",\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":99}]"
    #define OF(mixer, settings) ",\"kinds\":{\"a\":{\"mixer\":\"" mixer "\"," settings "}},\"pattern\":[\"a\"]"
static const Animal herd[] = {
    {"gqa", "{" WIDE ",\"tied\":true" SWIGLU OF("gqa", "\"heads\":4,\"kv_heads\":2,\"head_dim\":16") "}"},
    {"gpt2", "{" WIDE ",\"tied\":true,\"norm\":\"layer\",\"positions\":\"learned\",\"ffn\":[{\"kind\":\"gelu\","
             "\"hidden\":256,\"bias\":true}]" OF("gqa", "\"heads\":4,\"qkv_bias\":true,\"o_bias\":true,"
                                                        "\"rope\":\"none\"") "}"},
    {"mla", "{" WIDE ",\"tied\":false" SWIGLU OF("mla", "\"heads\":4,\"kv_rank\":40,\"q_rank\":48,\"nope_dim\":16,"
                                                        "\"rope_dim\":8,\"v_dim\":16") "}"},
    {"moe", "{" WIDE ",\"tied\":true,\"ffn\":[{\"kind\":\"moe\",\"experts\":4,\"top_k\":2,\"hidden\":48}]" OF(
                "gqa", "\"heads\":4,\"kv_heads\":1,\"head_dim\":16") "}"},
    {"kda", "{" WIDE ",\"tied\":true" SWIGLU OF("kda", "\"heads\":2,\"head_dim\":32") "}"},
    {"mamba2", "{" WIDE ",\"tied\":true" SWIGLU OF("mamba2", "\"heads\":4,\"head_dim\":32,\"state_size\":16") "}"},
    {"dmc", "{" WIDE ",\"tied\":true" SWIGLU OF("dmc", "\"heads\":4,\"kv_heads\":2,\"head_dim\":16,\"offset\":0.3,"
                                                       "\"temperature\":0.5") "}"},
    {"dms", "{" WIDE ",\"tied\":true" SWIGLU OF("dmc", "\"heads\":32,\"head_dim\":2,\"action\":\"evict\","
                                                       "\"decide\":\"adapter\",\"delay\":3") "}"},
    {"dms latents", "{" WIDE ",\"tied\":true" SWIGLU OF("mla", "\"heads\":4,\"kv_rank\":40,\"nope_dim\":16,"
                                                               "\"rope_dim\":8,\"evict\":true,\"delay\":3") "}"},
};
enum { HERD = sizeof herd / sizeof *herd, T = 40, B = 11 /* more than an op takes for few */ };

typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Workspace work;
} Beast;
static void open_beast(Beast *b, const Animal *a, bool products, ModelOpts o, int threads) {
    Err e = {0};
    *b = (Beast){0};
    cr_assert(model_cfg_from_json(&b->cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(device_open(&b->dev, "cpu", threads, &e), "%s", e.msg);
    if (products) cr_assert(device_bf16(b->dev, true, &e), "%s", e.msg);
    o.poison = true;
    cr_assert(zoo_model(&b->m, &b->work, b->dev, &b->cfg, o, &e), "%s: %s", a->name, e.msg);
    model_init(&b->m, 7);
}
static void close_beast(Beast *b) { zoo_close(&b->cfg, &b->m, &b->work, b->dev); }
static void tokens(int *tok, int n, int V, uint64_t seed) {
    for (int i = 0; i < n; i++) tok[i] = (int)(rng_uniform(rng_mix(seed, 5), (uint64_t)i) * V);
}
static void open_session(Session *s, Beast *b, int nseq, int chunk) {
    Err e = {0};
    SessionOpts o = {.nseq = nseq, .max_tokens = T, .chunk = chunk, .page_rows = 8, .document = -1, .want_all = true};
    cr_assert(session_open(s, &b->m, o, &e), "%s", e.msg);
}
static void extend(Session *s, int n, const Feed *f, Want want, Tensor logits) {
    Err e = {0};
    cr_assert(session_extend(s, n, f, want, logits, &e), "%s", e.msg);
}
/* Logits of every row, fed `piece` at a time. */
static void all_logits(Beast *b, const int *tok, int piece, real *logits) {
    Session s;
    int V = b->cfg.vocab;
    open_session(&s, b, 1, 64);
    for (int at = 0; at < T; at += piece)
        extend(&s, 1, &(Feed){0, imin(piece, T - at), tok + at}, WANT_ALL,
               TENSOR(logits + at * V, REAL, imin(piece, T - at), V));
    session_close(&s);
}
static double distance(const real *a, const real *b, size_t n) {
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) off += pow((double)a[i] - (double)b[i], 2), size += pow((double)b[i], 2);
    return sqrt(off / size);
}

static const ModelOpts both = {.bf16_weights = true, .codec = &codec_bf16};

typedef struct {
    size_t bytes, is_bf16, wide; /* of the region, with guards; numbers of each kind */
} Taken;
static void see_taken(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Taken *x = f->ctx;
    bool matrix = t->rank == 2 && tensor_count(*t) >= BF16_LEAST && !(flags & (FIELD_F32 | FIELD_INVARIANT));
    cr_assert(t->dtype == (matrix ? BF16 : F32), "%s is %s", path, dtype_name(t->dtype));
    cr_assert(!strstr(path, "decide_proj") || t->dtype == F32, "%s is %s: it decides", path, dtype_name(t->dtype));
    *(matrix ? &x->is_bf16 : &x->wide) += tensor_count(*t);
    x->bytes += (tensor_count(*t) * (matrix ? 2 : 4) + 63) / 64 * 64 + 64;
}
Test(bf16_model, bytes_of_the_weights) {
    for (int k = 0; k < HERD; k++) {
        Beast b;
        Taken x = {0};
        StepMemory plan;
        Err e = {0};
        open_beast(&b, &herd[k], true, both, 1);
        Fields f = {.see = see_taken, .ctx = &x};
        model_fields(&b.m, &b.m.w, &f);
        cr_assert(x.bytes == b.m.aw.used && x.bytes == b.m.aw.size, "%s: %zu by hand, %zu taken of %zu", herd[k].name,
                  x.bytes, b.m.aw.used, b.m.aw.size);
        cr_assert(cost_step(b.dev, &b.cfg, both, &plan, &e) && plan.weights == x.bytes);
        cr_assert(x.is_bf16 > 15 * x.wide, "%s: %zu is_bf16, %zu wide", herd[k].name, x.is_bf16, x.wide);
        Cost c = cost_model(&b.m, 1); /* which declares the fields again */
        cr_assert(c.params == x.is_bf16 + x.wide && b.m.w.embed.dtype == BF16);
        close_beast(&b);
    }
}

static void see_append_ones(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)f, (void)path;
    if (t->rank == 2 && tensor_count(*t) >= BF16_LEAST && !(flags & (FIELD_F32 | FIELD_INVARIANT))) check_as_bf16(*t);
}
/* The logits are those of f32 arithmetic on the same rounded weights, but for the rounding of activations. */
Test(bf16_model, logits_beside_f32) {
    for (int k = 0; k < HERD; k++) {
        Beast b, wide;
        open_beast(&b, &herd[k], true, both, 2);
        open_beast(&wide, &herd[k], false, (ModelOpts){0}, 2);
        Fields f = {.see = see_append_ones};
        model_fields(&wide.m, &wide.m.w, &f);
        int tok[T], V = b.cfg.vocab;
        size_t n = (size_t)(T * V);
        real *got = xcalloc(n, sizeof *got), *want = xcalloc(n, sizeof *want);
        tokens(tok, T, V, 11);
        all_logits(&wide, tok, 1, want);
        for (int piece = 1; piece <= T; piece += 13) {
            all_logits(&b, tok, piece, got);
            double off = distance(got, want, n);
            if (getenv("CHECK_VERBOSE")) fprintf(stderr, "%-8s pieces of %d: %.2e\n", herd[k].name, piece, off);
            bool decides = !strncmp(herd[k].name, "dm", 2) || !strcmp(herd[k].name, "moe");
            cr_assert(off > 1e-5 && (decides || off <= 2e-2), "%s, pieces of %d: %.3g", herd[k].name, piece, off);
        }
        free(got), free(want);
        close_beast(&b);
        close_beast(&wide);
    }
}

static int prompt_of(int q) { return 1 + 3 * (q % 5); }
/* Each sequence fed alone, then all in one call: the same bits, and by any number of threads. */
Test(bf16_model, company_and_threads_change_no_bit) {
    for (int k = 0; k < HERD; k++) {
        int tok[B][T], V = 0;
        real *alone = NULL, *got = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            Beast b;
            Session s;
            open_beast(&b, &herd[k], true, both, threads);
            V = b.cfg.vocab;
            size_t n = (size_t)(B * V);
            if (!alone) alone = xcalloc(n * T, sizeof *alone), got = xcalloc(n, sizeof *got);
            open_session(&s, &b, B, 64);
            for (int q = 0; q < B; q++) {
                tokens(tok[q], T, V, (uint64_t)(20 + q));
                for (int at = 0, len = prompt_of(q); at + len <= T; at += len, len = 1) { /* a prompt, then steps */
                    real one[128];
                    extend(&s, 1, &(Feed){q, len, tok[q] + at}, WANT_LAST, TENSOR(one, REAL, 1, V));
                    real *to = alone + (size_t)(at + len - 1) * n + (size_t)(q * V);
                    if (threads > 1) CHECK_BYTES("threads", one, to, (size_t)V * sizeof *to);
                    memcpy(to, one, (size_t)V * sizeof *to);
                }
                session_reset(&s, q);
            }
            int at[B] = {0}; /* all together; their steps begin with their prompts, one by one */
            for (int step = 0; step < 20; step++) {
                Feed f[B];
                for (int q = 0; q < B; q++) f[q] = (Feed){q, step ? 1 : prompt_of(q), tok[q] + at[q]}, at[q] += f[q].n;
                if (step)
                    extend(&s, B, f, WANT_LAST, TENSOR(got, REAL, B, V));
                else
                    for (int q = 0; q < B; q++) extend(&s, 1, f + q, WANT_LAST, TENSOR(got + q * V, REAL, 1, V));
                for (int q = 0; q < B; q++)
                    CHECK_BYTES(herd[k].name, got + q * V, alone + (size_t)(at[q] - 1) * n + (size_t)(q * V),
                                (size_t)V * sizeof *got);
            }
            session_close(&s);
            close_beast(&b);
        }
        free(alone), free(got);
    }
}

/* ---- products -----------------------------------------------------------------------------------------------------
 */

typedef struct {
    const char *name;
    const Ops *ops;
    GemmBf16 *run;
} Form;
enum { FORMS = 6 };
    #ifdef __x86_64__
GemmBf16 gemm_bf16_amx_emulated; /* tests/lib/tiles.h */
    #endif
static int forms(Form out[FORMS]) {
    int n = 0;
    out[n++] = (Form){"baseline", &ops_cpu_baseline, gemm_bf16_baseline};
    #ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        out[n++] = (Form){"avx2", &ops_cpu_avx2, gemm_bf16_avx2};
    if (n == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        out[n++] = (Form){"avx512", &ops_cpu_avx512, gemm_bf16_avx512};
    if (n == 3 && __builtin_cpu_supports("avx512bf16"))
        out[n++] = (Form){"avx512bf16", &ops_cpu_avx512bf16, gemm_bf16_avx512bf16};
    if (n == 4) out[n++] = (Form){"amx emulated", &ops_cpu_avx512bf16, gemm_bf16_amx_emulated};
    Err e = {0};
    if (n == 5 && amx_there() && amx_permitted(&e)) out[n++] = (Form){"amx", &ops_cpu_avx512bf16, gemm_bf16_amx};
    #endif
    #ifdef __aarch64__
    if (getauxval(AT_HWCAP2) & HWCAP2_BF16) out[n++] = (Form){"neonbf16", &ops_cpu_baseline, gemm_bf16_neonbf16};
    #endif
    return n;
}
static void product(GemmBf16 *run, int threads, GemmShape s, float *C, const float *A, const void *b) {
    Arena mem = {.name = "product"}, most = {.name = "product"};
    Err e = {0};
    GemmShape many = s;
    many.M = 200; /* room measured for many rows must do for few */
    gemm_bf16_one(run, threads, &mem, s, C, A, b);
    gemm_bf16_one(run, threads, &most, many, C, A, b);
    cr_assert(mem.peak <= most.peak, "%zu bytes for %d rows, %zu for 200", mem.peak, s.M, most.peak);
    cr_assert(arena_open(&mem, "product", mem.peak, true, &e), "%s", e.msg);
    gemm_bf16_one(run, threads, &mem, s, C, A, b);
    cr_assert(mem.used == 0);
    arena_close(&mem);
}
/* By every form: of bf16 in memory the same bits as of the f32 that it was, in every row, however many there are. */
Test(bf16_model, products_by_rows) {
    static const int size[][2] = {{1, 1}, {16, 32}, {17, 33}, {48, 64}, {50, 801}, {161, 770}, {96, 1601}};
    enum { MANY = 130, MARGIN = 3 };
    Form f[FORMS];
    for (int nf = forms(f), k = 0; k < nf; k++)
        for (size_t z = 0; z < sizeof size / sizeof *size; z++) {
            int N = size[z][0], K = size[z][1];
            size_t nb = (size_t)N * (size_t)(K + MARGIN), nc = (size_t)MANY * (size_t)(N + MARGIN);
            float *a = xcalloc((size_t)MANY * (size_t)K, sizeof *a), *b = xcalloc(nb, sizeof *b),
                  *c = xcalloc(nc, sizeof *c), *got = xcalloc(nc, sizeof *got);
            uint16_t *h = xcalloc(nb, sizeof *h);
            for (size_t i = 0; i < (size_t)MANY * (size_t)K; i++) a[i] = (float)rng_normal(1, i);
            for (size_t i = 0; i < nb; i++) {
                h[i] = bf16_from(b[i] = (float)rng_normal(2, i));
                if (i % (size_t)(K + MARGIN) >= (size_t)K) b[i] = NAN, h[i] = 0x7FC0;
            }
            GemmShape s = {MANY, N, K, .lda = K, .ldb = K + MARGIN, .ldc = N + MARGIN, .tb = true};
            product(f[k].run, 2, s, c, a, b);
            for (int M = 1; M <= MANY; M += M < 10 ? 1 : M < 60 ? 9 : 35)
                for (int how = 0; how < 4; how++) {
                    s.M = M, s.b_bf16 = how & 1, s.accumulate = how & 2;
                    size_t row = (size_t)N * sizeof *c, ld = (size_t)s.ldc;
                    for (size_t i = 0; i < nc; i++) got[i] = s.accumulate ? 0 : 7;
                    product(f[k].run, 1 + M % 3, s, got, a, s.b_bf16 ? (void *)h : (void *)b);
                    for (int r = 0; r < M; r++)
                        if (!s.accumulate || K <= 768) /* 0 + a + b is not a + b where there are two blocks of k */
                            CHECK_BYTES(f[k].name, got + (size_t)r * ld, c + (size_t)r * ld, row);
                    for (size_t i = 0; i < nc; i++)
                        if (i % ld >= (size_t)N || i >= (size_t)M * ld)
                            cr_assert(got[i] == (s.accumulate ? 0 : 7), "%s writes at %zu", f[k].name, i);
                }
            free(a), free(b), free(c), free(got), free(h);
        }
}
/* Whole models with each instruction set forced. */
Test(bf16_model, every_instruction_set_decodes) {
    Form f[FORMS];
    for (int k = 0; k < HERD; k++) {
        real *want = NULL, *got = NULL;
        for (int nf = forms(f), i = 0; i < nf; i++) {
            Beast b;
            int tok[T];
            open_beast(&b, &herd[k], true, both, 2);
            b.dev->ops = f[i].ops;
            gemm_use(b.dev->gemm, f[i].run, 2, BF16_LEAST);
            size_t n = (size_t)(T * b.cfg.vocab);
            if (!want) want = xcalloc(n, sizeof *want), got = xcalloc(n, sizeof *got);
            tokens(tok, T, b.cfg.vocab, 11);
            all_logits(&b, tok, 3, i ? got : want);
            bool decides = !strncmp(herd[k].name, "dm", 2) || !strcmp(herd[k].name, "moe");
            if (i && !decides) {
                double off = distance(got, want, n);
                cr_assert(off <= 1e-2, "%s: %s is %.3g from %s", herd[k].name, f[i].name, off, f[0].name);
            }
            close_beast(&b);
        }
        free(want), free(got);
    }
}

/* ---- files --------------------------------------------------------------------------------------------------------
 */

typedef struct {
    Weights w; /* of the bf16 model, in its order */
    Tensor t[256];
    int n;
} Listed;
static void see_list(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Listed *l = f->ctx;
    (void)path, (void)flags;
    cr_assert(l->n < 256);
    l->t[l->n++] = *t;
}
/* Of files of each type, with joined and transposed tensors as well: bf16 as it is, wider numbers to the nearest. */
Test(bf16_model, files_of_every_type) {
    static const Dtype types[] = {F32, BF16, F16};
    for (int k = 0; k < 2; k++) /* Llama's names; GPT-2's, whose q, k and v are one transposed matrix */
        for (int y = 0; y < 3; y++) {
            Beast b, wide, again;
            Err e = {0};
            const char *dir = check_dir();
            open_beast(&wide, &herd[k], false, (ModelOpts){0}, 1);
            cr_assert(hf_save(dir, &wide.m, NULL, types[y], &e), "%s", e.msg);
            open_beast(&b, &herd[k], true, both, 1);
            cr_assert(hf_load(dir, &b.m, &e), "%s", e.msg);
            open_beast(&again, &herd[k], false, (ModelOpts){0}, 1);
            cr_assert(hf_load(dir, &again.m, &e), "%s", e.msg); /* what the file holds */
            Listed *is_bf16 = xcalloc(2, sizeof *is_bf16), *all = is_bf16 + 1;
            Fields f = {.see = see_list, .ctx = is_bf16}, g = {.see = see_list, .ctx = all};
            model_fields(&b.m, &b.m.w, &f);
            model_fields(&again.m, &again.m.w, &g);
            cr_assert(is_bf16->n == all->n);
            for (int i = 0; i < all->n; i++)
                for (size_t j = 0; j < tensor_count(all->t[i]); j++) {
                    real got, want = R(all->t[i])[j];
                    tensor_read(is_bf16->t[i], j, 1, &got);
                    if (is_bf16->t[i].dtype == BF16) want = bf16_to(bf16_from(want));
                    cr_assert(got == want, "tensor %d, number %zu: %g, expected %g", i, j, (double)got, (double)want);
                }
            free(is_bf16);
            close_beast(&b);
            close_beast(&wide);
            close_beast(&again);
        }
}
Test(bf16_model, a_number_beyond_bf16) {
    for (int k = 0; k < 2; k++) {
        Beast b, wide;
        Err e = {0};
        const char *dir = check_dir();
        open_beast(&wide, &herd[k], false, (ModelOpts){0}, 1);
        R(wide.m.w.embed)[70] = 3.4e38f;
        cr_assert(hf_save(dir, &wide.m, NULL, F32, &e), "%s", e.msg);
        open_beast(&b, &herd[k], true, both, 1);
        cr_assert(!hf_load(dir, &b.m, &e) && e.status == EXIT_INPUT && strstr(e.msg, "number 70 is too large for BF16"),
                  "%s", e.msg);
        close_beast(&b);
        close_beast(&wide);
    }
}
#endif
