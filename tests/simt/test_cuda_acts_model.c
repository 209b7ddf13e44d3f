/* test_cuda_acts_model.c: what layers keep as BF16 in memory and what not, that making it again changes no bit, and how
 * many bytes a training step asks for with and without. How far gradients and losses are from the CPU's is in
 * test_cuda_bf16_model.c, for the whole zoo. */
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"
#include "tests/lib/trial.h"
#include "layers/ffn/ffn.h"
#include "model/inside.h"
#include "ops/device.h"
#include "ops/host.h"
#include "train/save/checkpoint.h"

typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Workspace work;
} Side;
static void side_open(Side *s, const char *name, const char *json, bool wide, ModelOpts o) {
    Err e = {0};
    *s = (Side){0};
    cr_assert(model_cfg_from_json(&s->cfg, json, strlen(json), name, &e), "%s: %s", name, e.msg);
    cr_assert(device_open(&s->dev, "cuda", 1, &e) && device_bf16(s->dev, true, &e), "%s", e.msg);
    s->dev->least = 0, s->dev->wide = wide;
    cr_assert(zoo_model(&s->m, &s->work, s->dev, &s->cfg, o, &e), "%s: %s", name, e.msg);
    model_init(&s->m, 7);
    s->work.progress = 0.3, s->work.seed = 11, s->work.step = 3;
}
static void side_close(Side *s) { zoo_close(&s->cfg, &s->m, &s->work, s->dev); }
/* An animal, or the same with rows of a multiple of eight numbers, which are read where they lie. */
static char *animal(const char *name, bool eights) {
    char *json = xformat("%s", zoo[zoo_find(name)].json), *at = strstr(json, "\"d_model\":12");
    cr_assert(at, "%s", name);
    if (eights) memcpy(at, "\"d_model\":24", 12);
    for (at = json; eights && (at = strstr(at, "\"head_dim\":4")); at++) memcpy(at, "\"head_dim\":8", 12);
    return json;
}
static const char *const names[] = {"gqa",
                                    "qk norm",
                                    "biases",
                                    "window with sinks",
                                    "odd head, nope",
                                    "shared by pairs (CLA)",
                                    "publisher and readers (YOCO)",
                                    "owner after readers",
                                    "layer norm, learned positions, gelu",
                                    "parallel, part of a head turns",
                                    "parallel, publisher and reader",
                                    "kda and nope attention",
                                    "kda, no convolution, full gate, beta 2",
                                    "gdn",
                                    "deltanet, gated",
                                    "gla",
                                    "retention, nope",
                                    "linear attention",
                                    "mamba2",
                                    "gated retention, publisher and reader (YOCO)",
                                    "dmc read by others",
                                    "mixture, sigmoid, groups, shared",
                                    "mla",
                                    "mla, query latent, biases",
                                    "mla, rope heads alone",
                                    "mla, shared latents",
                                    "mla beside gqa, published latents",
                                    "mla, evicts",
                                    "mla, latents that evict, published and shared"};
enum { NAMES = sizeof names / sizeof *names };

static void step(Side *s, real nll[ZOO_ROWS]) {
    real g[ZOO_ROWS];
    Pass p;
    zoo_whole(&p, s->cfg.vocab);
    for (int i = 0; i < p.b.N; i++) g[i] = p.tgt[i] < 0 ? 0 : (real)(1.0 / p.b.N);
    model_zero_grad(&s->m);
    model_train(&s->m, &s->work, &p.b, p.tok, p.tgt, g, nll);
}
typedef struct {
    Side *other;
    Tensor *t;
    int n, differ;
} Pairs;
static void see_first(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Pairs *p = f->ctx;
    (void)path, (void)flags;
    p->t = xrealloc(p->t, (size_t)p->n + 1, sizeof *p->t);
    p->t[p->n++] = *t;
}
static void see_second(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Pairs *p = f->ctx;
    (void)path, (void)flags;
    Tensor a = view_open(p->other->dev, p->t[p->n], true), b = view_open(p->other->dev, *t, true);
    p->differ += memcmp(a.p, b.p, tensor_bytes(b)) != 0;
    view_close(p->other->dev, p->t[p->n++], a, false), view_close(p->other->dev, *t, b, false);
}
static int gradients_differ(Side *a, Side *b) {
    Pairs p = {.other = b};
    Fields f = {.see = see_first, .ctx = &p}, g = {.see = see_second, .ctx = &p};
    model_fields(&a->m, &a->m.g, &f);
    p.n = 0;
    model_fields(&b->m, &b->m.g, &g);
    free(p.t);
    return p.differ;
}
Test(cuda_acts_model, recomputed_they_change_no_bit, .timeout = 300) {
    for (int i = 0; i < NAMES; i++)
        for (int eights = i >> 1 & 1; eights < 2; eights += 2) { /* an emulation is slow: either width */
            ModelOpts o = {
                .train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS, .poison = true, .dropout = 0.1};
            Side kept, again, wide;
            real nll[3][ZOO_ROWS] = {0};
            char *json = animal(names[i], eights);
            side_open(&kept, names[i], json, false, o);
            side_open(&wide, names[i], json, true, o);
            o.recompute = i % 2 ? -1 : 1;
            side_open(&again, names[i], json, false, o);
            step(&kept, nll[0]), step(&again, nll[1]), step(&wide, nll[2]);
            cr_assert(!memcmp(nll[0], nll[1], sizeof nll[0]) && !gradients_differ(&kept, &again), "%s: %d fields",
                      names[i], gradients_differ(&kept, &again));
            cr_assert(gradients_differ(&kept, &wide) > 3, "%s: in bf16 and in f32 the gradients are the same",
                      names[i]);
            cr_assert(kept.work.keep.peak < wide.work.keep.peak, "%s: %zu bytes of saved activations, in f32 %zu",
                      names[i], kept.work.keep.peak, wide.work.keep.peak);
            side_close(&kept), side_close(&again), side_close(&wide);
            free(json);
        }
}

/* Which layers do: attention and latent attention with all that read its K/V, recurrences, and feed-forward parts, a
 * mixture's scores excepted; the stream does not. */
Test(cuda_acts_model, what_is_kept_how) {
    static const struct {
        const char *name, *mixers, *ffns; /* of each layer: h BF16, . REAL, - none */
    } kept[] = {{"gqa", "hh", "hh"},
                {"kda and nope attention", "hhh", "hhh"},
                {"gdn", "hh", "hh"},
                {"gla", "hh", "hh"},
                {"retention", "hh", "hh"},
                {"linear attention", "hh", "hh"},
                {"mamba2", "hh", "hh"},
                {"shared by pairs (CLA)", "hhhh", "hhhh"},
                {"publisher and readers (YOCO)", "hhhhh", "hh-hh"},
                {"gated retention, publisher and reader (YOCO)", "hhhh", "hh-h"},
                {"mla", "hh", "hh"},
                {"mla, shared latents", "hhhh", "hhhh"},
                {"mla beside gqa, published latents", "hhhhh", "hh-hh"},
                {"mixture, softmax", "hh", "hh"},
                {"mixture, sigmoid, groups, shared", "hh", "hh"}};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        Side s;
        char *json = animal(kept[i].name, true);
        real nll[ZOO_ROWS];
        side_open(&s, kept[i].name, json, false,
                  (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS, .poison = true});
        step(&s, nll);
        for (int l = 0; l < s.m.L; l++) {
            const Act *a = &s.work.act[l];
            char mixer = a->xn1.dtype == BF16 ? 'h' : '.', ffn = s.m.layer[l].publisher ? '-'
                                                                 : a->xn2.dtype == BF16 ? 'h'
                                                                                        : '.';
            cr_assert(mixer == kept[i].mixers[l] && ffn == kept[i].ffns[l], "%s, layer %d: %c %c", kept[i].name, l,
                      mixer, ffn);
            cr_assert(a->rstd1.dtype == REAL && (s.m.layer[l].publisher || a->mid.dtype == REAL));
            if (!s.m.layer[l].publisher && s.m.layer[l].ffn->ffn == &moe_ffn) {
                const Tensor *saved = a->ffn; /* scores, gate, up */
                cr_assert(saved[0].dtype == REAL && saved[1].dtype == BF16 && saved[2].dtype == BF16, "%s, layer %d",
                          kept[i].name, l);
            }
            if (s.m.layer[l].shared)
                cr_assert(s.work.kv[l].k.dtype == a->xn1.dtype && s.work.dkv[l].k.dtype == REAL, "%s, layer %d",
                          kept[i].name, l);
        }
        side_close(&s);
        free(json);
    }
}

/* Rows in groups that begin at 16 bytes are read and written where they lie: all that is packed are matrices in f32
 * that have no copy in bf16, each once in a call; of matrices in bf16 nothing is. */
unsigned long simt_launches(const char *begin) __attribute__((weak));
static Tensor bf16_zeros(Rig *g, int rows, int width) {
    Tensor t = arena_tensor(&g->mem, "rows in bf16", BF16, 2, (int[]){rows, width});
    memset(t.p, 0, tensor_bytes(t));
    return t;
}
Test(cuda_acts_model, groups_are_not_packed) {
    enum { GROUPS = 4, O = 48, I = 64, M = 41 };
    if (!simt_launches) cr_skip("a device counts no launches");
    static const int off[] = {0, 3, 3, 4, M};
    const Groups all = {GROUPS, off};
    Rig g;
    Err e = {0};
    rig_open(&g, rig_first(), 1, (size_t)1 << 20);
    cr_assert(device_bf16(g.dev, true, &e), "%s", e.msg);
    Tensor x = bf16_zeros(&g, M, I), y = bf16_zeros(&g, M, O), dx = bf16_zeros(&g, M, I), w[GROUPS], dw[GROUPS],
           half[GROUPS];
    for (int k = 0; k < GROUPS; k++)
        w[k] = RANDOM(&g, "w", O, I), dw[k] = RANDOM(&g, "dw", O, I), half[k] = bf16_zeros(&g, O, I);
    unsigned long packs[4] = {simt_launches("pack")};
    OP(&g, linear_groups, y, x, all, half);
    packs[1] = simt_launches("pack");
    OP_WITHIN(&g, linear_groups, y, x, all, w);
    packs[2] = simt_launches("pack");
    OP_WITHIN(&g, linear_groups_backward, overwrite(dx), dw, y, x, all, w);
    packs[3] = simt_launches("pack");
    cr_assert(packs[1] == packs[0] && packs[2] - packs[1] == GROUPS - 1 && packs[3] - packs[2] == GROUPS - 1,
              "%lu, %lu and %lu times packed for %d groups with rows", packs[1] - packs[0], packs[2] - packs[1],
              packs[3] - packs[2], GROUPS - 1);
    device_bf16(g.dev, false, &e);
    rig_close(&g);
}

/* Bytes that a step asks for, of a model whose rows are wide beside its heads' statistics, as the emulation counts
 * them: kernels' requests, those that a cache would answer included, copies, and every operand of a product once. */
double simt_bytes(void) __attribute__((weak));
enum { T = 64, SEQS = 2, ROWS = T * SEQS };
static double bytes_of(const char *json, bool wide, int recompute) {
    Side s;
    ModelOpts o = {.train = true, .max_rows = ROWS, .max_samples = SEQS, .recompute = recompute};
    int off[SEQS + 1], seq[SEQS], of[ROWS], pos[ROWS], first[ROWS], tok[ROWS], tgt[ROWS];
    uint64_t id[SEQS];
    real g[ROWS], nll[ROWS];
    for (int q = 0; q <= SEQS; q++) off[q] = q * T;
    for (int q = 0; q < SEQS; q++) seq[q] = q, id[q] = (uint64_t)q;
    for (int i = 0; i < ROWS; i++) {
        of[i] = i / T, first[i] = i / T * T, pos[i] = i % T, tok[i] = i * 5 % 16, tgt[i] = i * 3 % 16;
        g[i] = (real)(1.0 / ROWS);
    }
    Batch b = {SEQS, ROWS, off, seq, of, pos, first, id, false, NULL};
    side_open(&s, "bytes", json, wide, o);
    model_zero_grad(&s.m);
    double before = 0;
    for (int times = 0; times < 2; times++) { /* the first makes the copies of weights in bf16 */
        before = simt_bytes();
        model_train(&s.m, &s.work, &b, tok, tgt, g, nll);
        device_sync(s.dev);
    }
    double all = simt_bytes() - before;
    side_close(&s);
    return all;
}
Test(cuda_acts_model, a_step_moves_fewer_bytes, .timeout = 600) {
    if (!simt_bytes) cr_skip("a device counts no bytes");
    static const struct {
        const char *name, *json;
        double least, most; /* of what it is with activations in f32 */
    } of[] = {
        {"gqa, swiglu",
         "{\"d_model\":64,\"vocab\":16,\"max_positions\":64,\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":"
         "\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":32}},\"pattern\":[\"a\"],\"ffn\":{\"kind\":\"swiglu\","
         "\"hidden\":192}}",
         0.4, 0.7},
        {"mla, swiglu",
         "{\"d_model\":64,\"vocab\":16,\"max_positions\":64,\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":"
         "\"mla\",\"heads\":4,\"kv_rank\":32,\"q_rank\":48,\"nope_dim\":24,\"rope_dim\":8,\"v_dim\":24}},\"pattern\":"
         "[\"a\"],\"ffn\":{\"kind\":\"swiglu\",\"hidden\":192}}",
         0.4, 0.7},
        {"kda, swiglu",
         "{\"d_model\":64,\"vocab\":16,\"max_positions\":64,\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":"
         "\"kda\",\"heads\":2,\"head_dim\":32}},\"pattern\":[\"a\"],\"ffn\":{\"kind\":\"swiglu\",\"hidden\":192}}",
         0.4, 0.8},
        {"mamba2, swiglu",
         "{\"d_model\":64,\"vocab\":16,\"max_positions\":64,\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":"
         "\"mamba2\",\"heads\":4,\"head_dim\":32,\"state_size\":32}},\"pattern\":[\"a\"],\"ffn\":{\"kind\":"
         "\"swiglu\",\"hidden\":192}}",
         0.4, 0.8},
        {"gqa, moe",
         "{\"d_model\":64,\"vocab\":16,\"max_positions\":64,\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":"
         "\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":32}},\"pattern\":[\"a\"],\"ffn\":{\"kind\":\"moe\","
         "\"experts\":8,\"top_k\":2,\"hidden\":96,\"shared\":1}}",
         0.4, 0.7},
        {"gpt",
         "{\"d_model\":64,\"vocab\":16,\"max_positions\":64,\"layers\":2,\"tied\":true,\"norm\":\"layer\","
         "\"positions\":\"learned\",\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":2,\"head_dim\":32,\"qkv_bias\":"
         "true,\"o_bias\":true,\"rope\":\"none\"}},\"pattern\":[\"a\"],\"ffn\":{\"kind\":\"gelu\",\"hidden\":256}}",
         0.4, 0.7}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        double wide = bytes_of(of[i].json, true, 0), half = bytes_of(of[i].json, false, 0);
        fprintf(stderr, "%s: %.0f bytes a row in f32, %.0f in bf16: %.3f\n", of[i].name, wide / ROWS, half / ROWS,
                half / wide);
        cr_assert(half / wide <= of[i].most && half / wide >= of[i].least, "%s: %.3f", of[i].name, half / wide);
    }
}

/* A run beside the CPU's in f32, step by step. */
enum { STEPS = 50 };
static void losses(const char *device, int seed, double loss[STEPS]) {
    static const char yaml[] =
        "run: {dir: '%s', seed: 3, threads: 1, device: %s}\n"
        "model: {d_model: 48, layers: 2, kinds: {full: {mixer: gqa, heads: 4, kv_heads: 2, head_dim: 16}},\n"
        "  ffn: [{kind: swiglu, hidden: 64}, {kind: gelu, hidden: 64}]}\n"
        "data: {train: '%s', val_fraction: 0.1, seq_len: 24, separator: 'stay\\n'}\n"
        "train: {dtype: %s, steps: 50, batch: 2, micro_batch: 2}\n"
        "optim: {lr: 0.01, warmup: 2}\n";
    char body[3000], *text = check_path("text.txt"), *dir = check_path("run");
    for (size_t i = 0; i < sizeof body; i++) body[i] = "the cache keeps the keys\nand the values stay\n"[i % 45];
    check_write(text, body, sizeof body);
    char *all = xformat(yaml, dir, device, text, strcmp(device, "cpu") ? "bf16" : "f32");
    Trainer *t = xcalloc(1, sizeof *t);
    Config cfg;
    TrainRecord r;
    Err e = {0};
    cr_assert(config_parse(&cfg, all, strlen(all), "yaml", 0, NULL, &e) && trial_trainer(t, &cfg, 0, false, &e), "%s",
              e.msg);
    model_init(&t->model, (uint64_t)seed);
    for (int k = 0; k < STEPS; k++) {
        cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        loss[k] = r.loss;
    }
    trial_trainer_close(t);
    config_free(&cfg);
    free(t), free(all), free(text), free(dir);
}
static double furthest(const double *a, const double *b) {
    double most = 0;
    for (int k = 0; k < STEPS; k++) {
        double e = fabs(a[k] - b[k]) / b[k];
        if (!(e <= most)) most = e;
    }
    return most;
}
Test(cuda_acts_model, fifty_steps_are_the_cpus, .timeout = 300) {
    double want[STEPS], got[STEPS], other[STEPS];
    losses("cpu", 3, want), losses("cuda", 3, got), losses("cpu", 4, other);
    double e = furthest(got, want), far = furthest(other, want);
    fprintf(stderr, "50 steps: losses at most %.2g apart, from %.3g to %.3g; of another model %.2g\n", e, want[0],
            want[STEPS - 1], far);
    cr_assert(want[STEPS - 1] < 0.3 * want[0] && far > 0.2);
    cr_assert(e <= 4e-2, "%.3g", e); /* 0.026 seen */
}
