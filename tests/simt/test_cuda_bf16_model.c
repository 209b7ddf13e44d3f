/* test_cuda_bf16_model.c: whole models with products in bf16 on the CUDA backend beside the CPU's: a training step
 * field by field, decoding, a run. The CPU keeps attention in f32, the device rounds its operands: bounds are those of
 * docs/numerics.md for bf16, and planted mistakes must miss them tenfold; on a device, where a number or two round to
 * the other side, at least twice. */
#include <unistd.h>
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"
#include "tests/lib/trial.h"
#include "ops/device.h"
#include "ops/host.h"
#include "ops/cuda/host/fused.h"
#include "train/save/checkpoint.h"

static const double nll_rms = 2e-2, logits_rms = 2e-2, gradient_rms = 4e-2, field_rms = 8e-2,
                    recurrent_rms = 1.2e-1; /* recurrences magnify the rounding of small sums */
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Workspace work;
} Side;
static bool in_f32; /* activations, in memory */
/* Of the weights. Of mixtures one whose choices of experts are far enough apart that no rounding turns one: another
 * expert is another function. */
static uint64_t draw; /* further weights than a model's first */
static uint64_t seed_of(const Animal *a) { return (strstr(a->json, "\"moe\"") ? 22 : 7) + draw; }
/* Every product is rounded, however small: those of the zoo all are. False: the device does not run it yet. */
static bool side_open(Side *s, const char *device, const Animal *a, bool is_bf16, ModelOpts o) {
    Err e = {0};
    *s = (Side){0};
    cr_assert(model_cfg_from_json(&s->cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(device_open(&s->dev, device, 1, &e) && device_bf16(s->dev, is_bf16, &e), "%s", e.msg);
    s->dev->least = 0, s->dev->wide = in_f32 || !s->dev->cuda; /* the CPU rounds products alone, whichever it is */
    if (is_bf16 && !s->dev->cuda) gemm_use(s->dev->gemm, s->dev->gemm_bf16, 1, 0);
    o.poison = true;
    if (!zoo_model(&s->m, &s->work, s->dev, &s->cfg, o, &e)) {
        cr_assert(s->dev->cuda && strstr(e.msg, "use --device cpu"), "%s: %s", a->name, e.msg);
        model_cfg_free(&s->cfg);
        device_close(s->dev);
        return false;
    }
    model_init(&s->m, seed_of(a));
    s->work.progress = 0.3, s->work.seed = 11, s->work.step = 3;
    return true;
}
static void side_close(Side *s) { zoo_close(&s->cfg, &s->m, &s->work, s->dev); }

/* ---- fields ---------------------------------------------------------------------------------------------------------
 */
typedef struct {
    Device *dev;
    int n, at;
    Tensor *t; /* the CPU's, in the order of the declaration */
    double all, error, worst;
    size_t numbers;
    char path[96];
} Compare;
static double squares(const real *x, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
    return s;
}
static void see_want(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Compare *c = f->ctx;
    (void)path, (void)flags;
    c->t = xrealloc(c->t, (size_t)c->n + 1, sizeof *c->t);
    c->t[c->n++] = *t;
    c->all += squares(R(*t), tensor_count(*t)), c->numbers += tensor_count(*t);
}
static void see_got(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Compare *c = f->ctx;
    (void)flags;
    Tensor want = c->t[c->at++], got = view_open(c->dev, *t, true);
    size_t n = tensor_count(got);
    double e = 0, own = squares(R(want), n) / (double)n, mean = c->all / (double)c->numbers;
    for (size_t i = 0; i < n; i++) {
        double d = (double)R(got)[i] - (double)R(want)[i];
        e += d * d;
    }
    c->error += e;
    /* What is hardly any gradient beside the others is a difference of rounded numbers. */
    e = sqrt(e / (double)n / fmax(own, 0.01 * mean));
    if (!(e <= c->worst)) c->worst = e, snprintf(c->path, sizeof c->path, "%.95s", path);
    view_close(c->dev, *t, got, false);
}
typedef struct {
    double nll, gradient, field; /* of all gradients together; of the field that is worst, and which */
    double bound;                /* of the latter */
    bool may_mind;               /* recurrences, and units that clamp */
    char path[96];
} Apart;
static void gradients_apart(Apart *r, Side *cuda, Side *cpu) {
    Compare c = {.dev = cuda->dev};
    Fields f = {.see = see_want, .ctx = &c}, g = {.see = see_got, .ctx = &c};
    model_fields(&cpu->m, &cpu->m.g, &f);
    model_fields(&cuda->m, &cuda->m.g, &g);
    cr_assert(c.at == c.n && c.n > 3, "%d fields", c.n);
    free(c.t);
    r->gradient = sqrt(c.error / c.all), r->field = c.worst;
    memcpy(r->path, c.path, sizeof r->path);
}
static double apart(const real *got, const real *want, size_t n) {
    double e = 0, s = squares(want, n);
    for (size_t i = 0; i < n; i++) e += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
    return sqrt(e / s);
}
/* One micro-batch of packed sequences forward and backward; `is_bf16` of the device and of the CPU. */
typedef void Plant(Ops *);
static bool rows_apart(Apart *r, const Animal *a, const Batch *b, const int *tok, const int *tgt,
                       bool cuda_round_to_bf16, bool cpu_bf16, Plant *plant) {
    enum { ROOM = 256 };
    Side cuda, cpu;
    ModelOpts o = {.train = true, .max_rows = b->N, .max_samples = b->B};
    if (!side_open(&cuda, "cuda", a, cuda_round_to_bf16, o)) return false;
    side_open(&cpu, "cpu", a, cpu_bf16, o);
    if (plant) plant(&cuda.dev->own);
    Side *side[] = {&cpu, &cuda};
    real g[ROOM], nll[2][ROOM];
    cr_assert(b->N <= ROOM);
    for (int i = 0; i < b->N; i++) g[i] = tgt[i] < 0 ? 0 : (real)(1.0 / b->N);
    for (int k = 0; k < 2; k++) {
        model_zero_grad(&side[k]->m);
        model_train(&side[k]->m, &side[k]->work, b, tok, tgt, g, nll[k]);
    }
    r->bound = field_rms;
    for (int l = 0; l < cpu.m.L; l++)
        if (cpu.m.layer[l].rows.state) r->bound = recurrent_rms;
    r->may_mind = r->bound == recurrent_rms || strstr(a->json, "\"limit\"") || zoo_decides(a);
    r->nll = apart(nll[1], nll[0], (size_t)b->N);
    gradients_apart(r, &cuda, &cpu);
    side_close(&cpu), side_close(&cuda);
    return true;
}
enum { ZOO_VOCAB = 11 };
static bool step_apart(Apart *r, const Animal *a, bool cuda_round_to_bf16, bool cpu_bf16, Plant *plant) {
    Pass p;
    zoo_whole(&p, ZOO_VOCAB);
    return rows_apart(r, a, &p.b, p.tok, p.tgt, cuda_round_to_bf16, cpu_bf16, plant);
}
/* How much a model minds: its weights rounded and nothing else, on the CPU in f32. */
static void see_round(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)f, (void)path, (void)flags;
    for (size_t i = 0; i < tensor_count(*t); i++) R(*t)[i] = bf16_to(bf16_from(R(*t)[i]));
}
static Apart minds(const Animal *a) {
    Apart r = {0};
    Side side[2];
    Pass p;
    real g[ZOO_ROWS], nll[2][ZOO_ROWS];
    zoo_whole(&p, ZOO_VOCAB);
    for (int i = 0; i < p.b.N; i++) g[i] = p.tgt[i] < 0 ? 0 : (real)(1.0 / p.b.N);
    for (int k = 0; k < 2; k++) {
        side_open(&side[k], "cpu", a, false, (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
        Fields round = {.see = see_round};
        if (k) model_fields(&side[k].m, &side[k].m.w, &round);
        model_zero_grad(&side[k].m);
        model_train(&side[k].m, &side[k].work, &p.b, p.tok, p.tgt, g, nll[k]);
    }
    r.nll = apart(nll[1], nll[0], (size_t)p.b.N);
    gradients_apart(&r, &side[1], &side[0]);
    side_close(&side[0]), side_close(&side[1]);
    return r;
}
/* Recurrences of some seeds mind more than the bounds that serve all others. So does a unit that clamps, where rounding
 * takes a number over its limit and with it a gradient away (the biases of an expert with few rows: 0.12 apart where
 * the same weights without the limit are 0.03), and so do rows that are evicted or merged: a decision multiplies what
 * decides by its gain (six layers of shared latents: gradients 0.057 apart where the same weights without evictions are
 * 0.029). They may be three times as far apart as rounded weights alone take them. */
Test(cuda_bf16_model, a_step_is_the_cpus_within_bf16, .timeout = 300) {
    Apart most = {0}, r, own, cpu;
    int ran = 0, more = 0;
    for (int i = 0; i < zoo_count(); i += 2) {
        if (!step_apart(&r, &zoo[i], true, true, NULL)) continue;
        if (getenv("CHECK_VERBOSE"))
            fprintf(stderr, "%s: losses %.3g, gradients %.3g, %s %.3g\n", zoo[i].name, r.nll, r.gradient, r.path,
                    r.field);
        bool within = r.nll <= nll_rms && r.gradient <= gradient_rms && r.field <= r.bound;
        if (!within && r.may_mind) {
            own = minds(&zoo[i]);
            if (zoo_decides(&zoo[i])) { /* or as the CPU's own bf16 takes them from a device in f32 */
                step_apart(&cpu, &zoo[i], false, true, NULL);
                own.gradient = fmax(own.gradient, cpu.gradient), own.field = fmax(own.field, cpu.field);
            }
            fprintf(stderr, "%s: gradients %.3g, %s %.3g; rounded weights alone %.3g, %s %.3g\n", zoo[i].name,
                    r.gradient, r.path, r.field, own.gradient, own.path, own.field);
            within = r.nll <= nll_rms && r.gradient <= fmax(gradient_rms, 3 * own.gradient) &&
                     r.field <= fmax(r.bound, 3 * own.field);
            more++;
        }
        cr_expect(within, "%s: losses %.3g apart, gradients %.3g, %s %.3g", zoo[i].name, r.nll, r.gradient, r.path,
                  r.field);
        most.nll = fmax(most.nll, r.nll), most.gradient = fmax(most.gradient, r.gradient);
        most.field = fmax(most.field, r.field), ran++;
    }
    fprintf(stderr, "%d models in bf16: losses at most %.2g apart, gradients %.2g, a field %.2g\n", ran, most.nll,
            most.gradient, most.field);
    cr_assert(ran >= 25 && more <= ran / 8, "%d models, %d of which mind more", ran, more);
}
/* Without attention the devices round the same numbers and nothing else, where activations are f32 in memory: experts'
 * products as all others, forward and backward. */
static const Animal experts = {
    "retention with experts",
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"norm_eps\":0.1,\"layers\":2,\"tied\":true,"
    "\"ffn\":[{\"kind\":\"moe\",\"experts\":5,\"top_k\":2,\"hidden\":7,\"shared\":1}],"
    "\"kinds\":{\"a\":{\"mixer\":\"retention\",\"heads\":3}},\"pattern\":[\"a\"]}"};
static void wide_groups(Run *r, Tensor y, Tensor x, Groups g, const Tensor *w) {
    r->dev->products_bf16 = false;
    cuda_ops()->linear_groups(r, y, x, g, w);
    r->dev->products_bf16 = true;
}
static void wide_groups_backward(Run *r, Into dx, Tensor *dw, Tensor dy, Tensor x, Groups g, const Tensor *w) {
    r->dev->products_bf16 = false;
    cuda_ops()->linear_groups_backward(r, dx, dw, dy, x, g, w);
    r->dev->products_bf16 = true;
}
static void plant_groups(Ops *o) { o->linear_groups = wide_groups; }
static void plant_groups_backward(Ops *o) { o->linear_groups_backward = wide_groups_backward; }
static int rising(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
Test(cuda_bf16_model, rounds_what_the_cpu_rounds, .timeout = 120) {
    const Animal *all[] = {&zoo[zoo_find("retention")], &zoo[zoo_find("mamba2, no convolution, biases")],
                           &zoo[zoo_find("linear attention")], &experts};
    Device *d;
    Err e = {0};
    cr_assert(device_open(&d, "cuda", 1, &e), "%s", e.msg);
    /* A last bit of a sum turns a number that lies in the middle of two bf16 neighbours: of 128 draws of weights 14 had
     * such a number (gradients 1e-5 to 1e-3 apart, all others at most 5e-6), so the draw in the middle counts. Where
     * sums have another order on a device, a number in thousands is turned in each draw: 1e-4 of a gradient. */
    const bool invariant = rig_invariant(d);
    const double nll = invariant ? 1e-6 : 5e-4, gradient = invariant ? 1e-5 : 1e-3, missed = invariant ? 10 : 2;
    device_close(d);
    in_f32 = true;
    for (int i = 0; i < 4; i++) {
        enum { DRAWS = 9 };
        double by_nll[DRAWS], by_gradient[DRAWS];
        for (draw = 0; draw < DRAWS; draw++) {
            Apart both, f32;
            cr_assert(step_apart(&both, all[i], true, true, NULL) && step_apart(&f32, all[i], false, true, NULL));
            by_nll[draw] = both.nll, by_gradient[draw] = both.gradient;
            cr_assert(f32.nll > missed * nll && f32.gradient > missed * gradient,
                      "%s, draw %d: f32 is %.3g and %.3g from bf16", all[i]->name, (int)draw, f32.nll, f32.gradient);
        }
        draw = 0;
        qsort(by_nll, DRAWS, sizeof *by_nll, rising), qsort(by_gradient, DRAWS, sizeof *by_gradient, rising);
        const double *n = by_nll + DRAWS / 2, *g = by_gradient + DRAWS / 2;
        cr_assert(*n <= nll && *g <= gradient, "%s: losses %.3g apart, gradients %.3g", all[i]->name, *n, *g);
    }
    Apart forward, backward;
    cr_assert(step_apart(&forward, &experts, true, true, plant_groups) &&
              step_apart(&backward, &experts, true, true, plant_groups_backward));
    cr_assert(forward.nll > missed * nll && backward.gradient > missed * gradient,
              "experts in f32: losses %.3g apart, gradients %.3g", forward.nll, backward.gradient);
}
static void no_queries(Run *r, Into dq, const KvInto *dkv, Tensor dout, Tensor q, const Kv *kv, AttnSpec spec, Tensor o,
                       Tensor lse) {
    Tensor none = scratch_tensor(r, "nobody's", REAL, dq.t.rank, dq.t.n);
    r->ops->zero(r, none);
    begin_sum(r, dq); /* whoever is first to add to it writes */
    cuda_ops()->attend_backward(r, add_to(none), dkv, dout, q, kv, spec, o, lse);
}
static void twice(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    cuda_ops()->linear(r, y, x, w, bias);
    if (!measuring(r)) cuda_ops()->add(r, y, y);
}
static void twice_of_many(Run *r, int n, const Projection *p, Tensor x) {
    for (int i = 0; i < n; i++) twice(r, p[i].y, x, p[i].w, p[i].bias);
}
static void plant_backward(Ops *o) { o->attend_backward = no_queries; }
static void plant_forward(Ops *o) { o->linear = twice, o->linear_many = twice_of_many; }
Test(cuda_bf16_model, mistakes_miss_the_bounds_tenfold, .timeout = 120) {
    const Animal *a = &zoo[zoo_find("mha")];
    Apart right, forward, backward;
    cr_assert(step_apart(&right, a, true, true, NULL) && step_apart(&forward, a, true, true, plant_forward) &&
              step_apart(&backward, a, true, true, plant_backward));
    fprintf(stderr, "planted: losses %.2g apart, gradients %.2g, %s %.2g\n", forward.nll, forward.gradient,
            backward.path, backward.field);
    cr_assert(right.nll <= nll_rms && right.field <= field_rms);
    cr_assert(forward.nll > 10 * nll_rms && forward.gradient > 10 * gradient_rms && backward.field > 10 * field_rms);
    cr_assert(strstr(backward.path, "q_proj"), "%s", backward.path);
}

/* ---- long sequences -------------------------------------------------------------------------------------------------
 * Recurrences go by chunks of 64 rows where a sequence has as many, which those above have not. */
enum { LONG_SEQS = 2, LONG_ROWS = 140 + 67 };
typedef struct {
    Batch b;
    int off[LONG_SEQS + 1], seq[LONG_SEQS], of[LONG_ROWS], pos[LONG_ROWS], first[LONG_ROWS], tok[LONG_ROWS],
        tgt[LONG_ROWS];
    uint64_t id[LONG_SEQS];
} Long;
/* Documents that begin inside of a chunk, at its edge and right behind each other, of 1 to 90 rows. */
static void long_pass(Long *p) {
    static const int starts[] = {0, 33, 97, 98, 140, 145, 204};
    enum { STARTS = sizeof starts / sizeof *starts };
    *p = (Long){.off = {0, 140, LONG_ROWS}, .seq = {0, 1}, .id = {100, 101}};
    for (int i = 0, k = -1; i < LONG_ROWS; i++) {
        if (k + 1 < STARTS && starts[k + 1] == i) k++;
        p->of[i] = i >= p->off[1];
        p->first[i] = starts[k], p->pos[i] = i - starts[k];
        p->tok[i] = (int)(rng_mix(1, (uint64_t)i) % ZOO_VOCAB), p->tgt[i] = (int)(rng_mix(2, (uint64_t)i) % ZOO_VOCAB);
    }
    p->tgt[70] = -1;
    p->b = (Batch){LONG_SEQS, LONG_ROWS, p->off, p->seq, p->of, p->pos, p->first, p->id, false, NULL};
}
static bool long_apart(Apart *r, const char *name, bool is_bf16, Plant *plant) {
    Long p;
    long_pass(&p);
    return rows_apart(r, &zoo[zoo_find(name)], &p.b, p.tok, p.tgt, is_bf16, true, plant);
}
/* Launches so far of kernels whose names begin so; a device counts none. */
unsigned long simt_launches(const char *begin) __attribute__((weak));
static const char *const chunked[] = {"delta_prepare<",         "delta_states<",          "delta_out<",
                                      "delta_states_backward<", "delta_values_backward<", "delta_keys_backward"};
enum { CHUNKED = sizeof chunked / sizeof *chunked };
/* How much these models mind over so many rows is told by products in bf16 alone, on the CPU beside f32 on the device:
 * they move some gradients by a tenth. Chunks may do 1.5 times that, in a field twice, where it is more than the
 * bounds. */
Test(cuda_bf16_model, long_sequences_go_by_chunks, .timeout = 300) {
    /* one of each kind of decay (none, one of all channels, one of each), with and without the delta rule */
    static const char *const names[] = {
        "kda, no convolution, full gate, beta 2", "gdn", "deltanet, gated", "gla", "mamba2", "linear attention"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsigned long before[CHUNKED] = {0};
        Apart r, minds;
        for (int k = 0; simt_launches && k < CHUNKED; k++) before[k] = simt_launches(chunked[k]);
        cr_assert(long_apart(&r, names[i], true, NULL));
        for (int k = 0; simt_launches && k < CHUNKED; k++) /* of two layers each */
            cr_assert(simt_launches(chunked[k]) - before[k] >= 2, "%s: %s was launched %lu times", names[i], chunked[k],
                      simt_launches(chunked[k]) - before[k]);
        cr_assert(long_apart(&minds, names[i], false, NULL));
        fprintf(stderr, "%-40s losses %.2g apart, gradients %.2g, a field %.2g; products alone %.2g, %.2g, %.2g\n",
                names[i], r.nll, r.gradient, r.field, minds.nll, minds.gradient, minds.field);
        cr_assert(r.nll <= nll_rms && r.gradient <= fmax(gradient_rms, 1.5 * minds.gradient) &&
                      r.field <= fmax(field_rms, 2 * minds.field),
                  "%s: losses %.3g apart, gradients %.3g, %s %.3g", names[i], r.nll, r.gradient, r.path, r.field);
        /* Row after row the device rounds what the CPU does, and nothing else. */
        cr_assert(r.nll > 1e-5 && r.gradient > 1e-5, "%s: nothing was rounded in chunks", names[i]);
        cr_assert(minds.nll > 1e-5 && minds.gradient < 0.2, "%s: f32 is %.3g from bf16", names[i], minds.gradient);
    }
}
static void queries_as_keys(Run *r, Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at) {
    x.q = x.k;
    cuda_ops()->recur(r, o, keep, x, scale, state, at);
}
static void no_keys(Run *r, const RecurInto *d, Tensor dout, Recur x, double scale, Tensor keep,
                    const RecurEnds *ends) {
    RecurInto some = *d;
    some.k = NOWHERE;
    begin_sum(r, d->k);
    cuda_ops()->recur_backward(r, &some, dout, x, scale, keep, ends);
}
static void plant_recur(Ops *o) { o->recur = queries_as_keys; }
static void plant_recur_backward(Ops *o) { o->recur_backward = no_keys; }
Test(cuda_bf16_model, mistakes_in_chunks_miss_the_bounds_tenfold, .timeout = 120) {
    Apart forward, backward;
    cr_assert(long_apart(&forward, "gdn", true, plant_recur) &&
              long_apart(&backward, "gdn", true, plant_recur_backward));
    cr_assert(forward.gradient > 10 * gradient_rms, "gradients %.3g apart", forward.gradient);
    cr_assert(backward.field > 10 * field_rms && strstr(backward.path, "k_"), "%s %.3g", backward.path, backward.field);
}

/* ---- a run ----------------------------------------------------------------------------------------------------------
 */
/* Losses of a few steps with matrices of which some are rounded, some too small for it. */
enum { STEPS = 12 };
static int losses_by(const char *device, const char *dtype, const char *attention, double loss[STEPS]) {
    static const char yaml[] =
        "run: {dir: '%s', seed: 3, threads: 1, device: %s}\n"
        "model: {d_model: 48, layers: 2, kinds: {full: {mixer: gqa, heads: 4, kv_heads: 2, head_dim: 16}},\n"
        "  ffn: {kind: swiglu, hidden: 64}}\n"
        "data: {train: '%s', val_fraction: 0.1, seq_len: 24, separator: 'stay\\n'}\n"
        "train: {dtype: %s, attention: %s, steps: 12, batch: 2, micro_batch: 2}\n"
        "optim: {lr: 0.01, warmup: 2}\n";
    char body[3000], *text = check_path("text.txt"), *dir = check_path("run");
    for (size_t i = 0; i < sizeof body; i++) body[i] = "the cache keeps the keys\nand the values stay\n"[i % 45];
    check_write(text, body, sizeof body);
    char *all = xformat(yaml, dir, device, text, dtype, attention);
    int plans = 0, ran = 0;
    Trainer *t = xcalloc(1, sizeof *t);
    Config cfg;
    TrainRecord r;
    Err e = {0};
    cr_assert(config_parse(&cfg, all, strlen(all), "yaml", 0, NULL, &e) && trial_trainer(t, &cfg, 0, false, &e), "%s",
              e.msg);
    model_init(&t->model, 3);
    for (int k = 0; k < STEPS; k++) {
        cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        loss[k] = r.loss;
    }
    if (t->dev->cuda) fused_count(t->dev->fused, &plans, &ran);
    trial_trainer_close(t);
    config_free(&cfg);
    free(t), free(all), free(text), free(dir);
    return ran;
}
static void losses(const char *device, const char *dtype, double loss[STEPS]) {
    cr_assert(losses_by(device, dtype, "auto", loss) == 0);
}
Test(cuda_bf16_model, a_run_has_the_cpus_losses, .timeout = 300) {
    double want[STEPS], got[STEPS], f32[STEPS], far = 0;
    losses("cpu", "bf16", want), losses("cuda", "bf16", got), losses("cuda", "f32", f32);
    CHECK_RELATIVE("loss", got, want, STEPS, nll_rms);
    cr_assert(want[STEPS - 1] < 0.8 * want[0], "the loss does not fall: %g to %g", want[0], want[STEPS - 1]);
    for (int k = 0; k < STEPS; k++) far = fmax(far, fabs(f32[k] - got[k]));
    cr_assert(far > 1e-6, "bf16 is f32");
}

/* Attention by cuDNN: the CPU's losses, the same twice, with documents that begin inside of samples. */
Test(cuda_bf16_model, a_run_by_cudnn_has_the_cpus_losses, .timeout = 300) {
    double want[STEPS], got[STEPS], again[STEPS], own[STEPS], loose[STEPS], far = 0;
    if (!losses_by("cuda", "bf16", "cudnn", got)) cr_skip("cuDNN is not installed");
    cr_assert(losses_by("cuda", "bf16", "cudnn", again) >= 2 && !memcmp(got, again, sizeof got));
    cr_assert(losses_by("cuda", "bf16", "cudnn_unordered", loose) >= 2);
    losses("cpu", "bf16", want), losses("cuda", "bf16", own);
    CHECK_RELATIVE("loss", got, want, STEPS, nll_rms);
    CHECK_RELATIVE("loss of any order", loose, want, STEPS, nll_rms);
    cr_assert(want[STEPS - 1] < 0.8 * want[0], "the loss does not fall: %g to %g", want[0], want[STEPS - 1]);
    for (int k = 0; k < STEPS; k++) far = fmax(far, fabs(own[k] - got[k]));
    cr_assert(far > 0, "cuDNN's losses are our own to the bit");
}
/* What cannot be had is said once, and our own kernels do it, to the bit. */
Test(cuda_bf16_model, without_cudnn_our_own_kernels, .timeout = 300) {
    double own[STEPS], got[STEPS];
    losses("cuda", "bf16", own);
    setenv("SIMT_NO_CUDNN", "1", 1), setenv("CUDNN_HOME", "/nowhere", 1);
    int ran = losses_by("cuda", "bf16", "cudnn", got);
    if (ran) cr_skip("a device's cuDNN is found without a name");
    cr_assert(!memcmp(own, got, sizeof own));
    unsetenv("SIMT_NO_CUDNN"), setenv("SIMT_CUDNN", "90700", 1);
    ran = losses_by("cuda", "bf16", "cudnn", got);
    cr_assert(ran == 0 && !memcmp(own, got, sizeof own));
}
static void refused_run(const char *device, const char *dtype, const char *why) {
    char *cfg = check_path("run.yaml"), *dir = check_path("run"), *text = check_path("text.txt"), body[400];
    for (size_t i = 0; i < sizeof body; i++) body[i] = (char)('a' + i % 23);
    check_write(text, body, sizeof body);
    char *all =
        xformat("run: {dir: '%s'}\nmodel: {d_model: 16, layers: 1, kinds: {full: {mixer: gqa, heads: 2}},\n"
                "  ffn: {kind: swiglu, hidden: 16}}\ndata: {train: '%s', seq_len: 8}\n"
                "train: {dtype: %s, attention: cudnn, steps: 1, batch: 1, micro_batch: 1}\noptim: {warmup: 1}\n",
                dir, text, dtype);
    check_write(cfg, all, strlen(all));
    Ran r = RUN("train", cfg, "-q", "--device", device);
    cr_assert(r.status == 2 && strstr(r.err, why) && access(dir, F_OK) != 0, "%d: %s", r.status, r.err);
    free(r.out), free(r.err), free(cfg), free(dir), free(text), free(all);
}
Test(cuda_bf16_model, cudnn_where_it_cannot_be, .timeout = 120) {
    refused_run("cpu", "bf16", "attention cudnn: works on a GPU only; leave it out, or use device cuda");
    refused_run("cuda", "f32", "attention cudnn: computes in bf16; expected dtype bf16, got f32");
    Ran r = RUN("bench", "ops", "--attention", "all", "--rows", "8");
    cr_assert(r.status == 2 && strstr(r.err, "--attention: expected own, cudnn or cudnn_unordered, got 'all'"), "%s",
              r.err);
    free(r.out), free(r.err);
}

/* The program: a run in bf16, its text and its perplexity with matrices and cached rows in bf16. */
static char *good(Ran r) {
    cr_assert(r.status == 0, "%d: %s", r.status, r.err);
    free(r.err);
    return r.out;
}
Test(cuda_bf16_model, the_program_trains_and_decodes, .timeout = 300) {
    char *cfg = check_path("run.yaml"), *dir = check_path("run"), *text = check_path("text.txt"), body[2000];
    for (size_t i = 0; i < sizeof body; i++) body[i] = "the cache keeps the keys\nand the values stay\n"[i % 45];
    check_write(text, body, sizeof body);
    char *all = xformat("run: {dir: '%s', seed: 3, threads: 1}\n"
                        "model: {d_model: 48, layers: 2, max_positions: 64,\n"
                        "  kinds: {full: {mixer: gqa, heads: 4, kv_heads: 2, head_dim: 16}},\n"
                        "  ffn: {kind: swiglu, hidden: 64}}\n"
                        "data: {train: '%s', val_fraction: 0.2, seq_len: 24}\n"
                        "train: {dtype: bf16, steps: 4, batch: 2, micro_batch: 2, eval_tokens: 48}\n"
                        "optim: {warmup: 2}\n",
                        dir, text);
    check_write(cfg, all, strlen(all));
    free(good(RUN("train", cfg, "-q", "--device", "cuda")));
    char *last = xformat("%s/last", dir), *some = check_path("some.txt");
    check_write(some, body, 57);
    double nll[2];
    static const char *const devices[] = {"cpu", "cuda"};
    for (int k = 0; k < 2; k++) {
        char *out = good(RUN("eval", last, "ppl", "--data", some, "--context", "20", "--device", devices[k], "--json",
                             "--dtype", "bf16")),
             *at = strstr(out, "\"nll\":");
        cr_assert(at, "%s", out);
        nll[k] = strtod(at + 6, NULL);
        free(out);
    }
    cr_assert(nll[0] > 0.1);
    CHECK_RELATIVE("nll", &nll[1], &nll[0], 1, nll_rms);
    char *said = good(RUN("generate", last, "--device", "cuda", "--dtype", "bf16", "--prompt", "the cache ", "--seed",
                          "1", "--ignore-eos", "--max-new", "6", "--json"));
    cr_assert(strstr(said, "\"new_tokens\": 6") || strstr(said, "\"new_tokens\":6"), "%s", said);
    free(cfg), free(dir), free(text), free(all), free(last), free(some), free(said);
}

/* ---- decoding -------------------------------------------------------------------------------------------------------
 */
/* Some rows of each sequence at once, the rest one by one. Returns how many logits; 0: refused. */
static int decode(Side *s, real *out) {
    Cache c;
    Err e = {0};
    Pass whole, p;
    int idx[ZOO_ROWS], rows = 0, from[ZOO_SEQS] = {0}, n[ZOO_SEQS] = {4, 3, 2}, V = s->cfg.vocab;
    if (!model_cache_open(&s->m, &c, ZOO_SEQS, ZOO_ROWS, ZOO_ROWS, 3, false, &e) ||
        !model_extend_reserve(&s->m, &s->work, &c, ZOO_ROWS, ZOO_ROWS, ZOO_SEQS, &e)) {
        cr_assert(s->dev->cuda && strstr(e.msg, "use --device cpu"), "%s", e.msg);
        kv_close(&c);
        return 0;
    }
    zoo_whole(&whole, V);
    for (int step = 0; step < 5; step++) {
        zoo_part(&p, &whole, from, n, NULL);
        for (int i = 0; i < p.b.N; i++) idx[i] = i;
        cr_assert(model_extend(&s->m, &s->work, &c, &p.b, p.tok, (RowList){p.b.N, idx},
                               TENSOR(out + rows * V, REAL, p.b.N, V), &e),
                  "%s", e.msg);
        rows += p.b.N;
        for (int q = 0; q < ZOO_SEQS; q++) from[q] += n[q], n[q] = from[q] < whole.off[q + 1] - whole.off[q] ? 1 : 0;
    }
    kv_close(&c);
    return rows * V;
}
Test(cuda_bf16_model, decodes_as_the_cpu_within_bf16, .timeout = 300) {
    double worst = 0;
    int ran = 0;
    for (int i = 1; i < zoo_count(); i += 2) {
        static real want[64 * 16], got[64 * 16];
        ModelOpts o = {.bf16_weights = true,
                       .codec = i % 4 == 1 ? &codec_bf16 : &codec_f32}; /* rows of the cache in bf16 or f32 */
        Side cuda, cpu;
        if (!side_open(&cuda, "cuda", &zoo[i], true, o)) continue;
        side_open(&cpu, "cpu", &zoo[i], true, o);
        int n = decode(&cpu, want), m = decode(&cuda, got);
        cr_assert((n == m && n > 100) || m == 0);
        double e = m ? apart(got, want, (size_t)n) : 0;
        cr_assert(e <= logits_rms, "%s: logits %.3g apart", zoo[i].name, e);
        worst = fmax(worst, e), ran += m > 0;
        side_close(&cuda), side_close(&cpu);
    }
    fprintf(stderr, "%d models decode in bf16: logits at most %.2g apart\n", ran, worst);
    cr_assert(ran >= 25);
}
