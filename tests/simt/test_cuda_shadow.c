/* test_cuda_shadow.c: copies of weights in bf16 (ops/shadow.h): they change no bit of any result, whoever changes a
 * weight makes its copy stale or writes it, and a change that nobody told of is found. */
#include "tests/lib/zoo.h"
#include "ops/device.h"
#include "ops/shadow.h"
#include "ops/host.h"
#include "optim/state.h"

/* ---- whole models --------------------------------------------------------------------------------------------------
 */
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Workspace work;
    bool muon, without;
    Params p;
    Arena state[STATES_MAX];
} Side;
static const OptimCfg settings[] = {
    {.kind = 0, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1, .balance_rate = 0.01},
    {.kind = 1, /* muon */
     .beta1 = 0.9,
     .beta2 = 0.99,
     .eps = 1e-8,
     .weight_decay = 0.1,
     .balance_rate = 0.01,
     .muon_momentum = 0.9,
     .muon_scale = 0.2,
     .muon_nesterov = true,
     .muon_steps = 2}};
static OptimizerCfg optimizer(bool muon) { return (OptimizerCfg){.set = &settings[muon], .seed = 5}; }
static void collect(Params *p, Model *m, bool muon) {
    Fields f = params_visitor(p, PARAM_WEIGHT);
    model_fields(m, &m->w, &f);
    f = params_visitor(p, PARAM_GRAD), model_fields(m, &m->g, &f);
    optimizer_declare(p, &settings[muon]);
}
static void measure(Run *r, void *ctx) {
    Side *s = ctx;
    Params p = {0};
    OptimizerCfg c = optimizer(s->muon);
    collect(&p, &s->m, s->muon);
    optimizer_step(r, &p, &c, 0, 1, 1);
    params_free(&p);
    if (s->without) arena_take(r->scratch, (size_t)64 << 20, "room for what is rounded for each product");
}
static void see_without(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)f, (void)path, (void)flags;
    t->has_shadow = false;
}
static void side_open(Side *s, const Animal *a, bool muon, bool without) {
    Err e = {0};
    ModelOpts o = {.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS, .poison = true};
    *s = (Side){.muon = muon, .without = without};
    o.measure = measure, o.measure_ctx = s;
    /* Rows of a multiple of eight numbers, which those of the zoo are not. */
    char *json = xformat("%s", a->json), *width = strstr(json, "\"d_model\":12");
    cr_assert(width, "%s", a->name);
    memcpy(width, "\"d_model\":24", 12);
    cr_assert(model_cfg_from_json(&s->cfg, json, strlen(json), a->name, &e), "%s: %s", a->name, e.msg);
    free(json);
    cr_assert(device_open(&s->dev, "cuda", 1, &e) && device_bf16(s->dev, true, &e), "%s", e.msg);
    s->dev->least = 0;
    cr_assert(zoo_model(&s->m, &s->work, s->dev, &s->cfg, o, &e), "%s: %s", a->name, e.msg);
    if (without) {
        Fields f = {.see = see_without};
        shadow_drop(s->dev, s->m.aw.base, s->m.aw.size);
        model_fields(&s->m, &s->m.w, &f);
    }
    model_init(&s->m, 7);
    s->work.progress = 0.3, s->work.seed = 11, s->work.step = 3;
    collect(&s->p, &s->m, muon);
    cr_assert(!strcmp(optimizers[1]->name, "muon"));
    cr_assert(states_open(&s->p, s->state, optimizers[muon], s->dev, true, false, &e), "%s", e.msg);
}
static void side_close(Side *s) {
    params_free(&s->p);
    states_close(s->state);
    zoo_close(&s->cfg, &s->m, &s->work, s->dev);
}
static void step(Side *s, int t, real nll[ZOO_ROWS]) {
    OptimizerCfg c = optimizer(s->muon);
    real g[ZOO_ROWS];
    Pass p;
    zoo_whole(&p, s->cfg.vocab);
    for (int i = 0; i < p.b.N; i++) g[i] = p.tgt[i] < 0 ? 0 : (real)(1.0 / p.b.N);
    model_zero_grad(&s->m);
    model_train(&s->m, &s->work, &p.b, p.tok, p.tgt, g, nll);
    Run r = run_make(s->dev, &s->work.scratch);
    optimizer_step(&r, &s->p, &c, 0.01, 1, t);
}
Test(cuda_shadow, copies_change_no_bit, .timeout = 300) {
    int ran = 0;
    for (int i = 0; i < zoo_count(); i += 7)
        for (int muon = 0; muon < 2; muon++) {
            Side with, without;
            real nll[2][ZOO_ROWS];
            side_open(&with, &zoo[i], muon, false), side_open(&without, &zoo[i], muon, true);
            cr_assert(with.dev->shadows.n > 2 && without.dev->shadows.n == 0, "%s: %d copies", zoo[i].name,
                      with.dev->shadows.n);
            for (int t = 1; t <= 2; t++) {
                memset(nll, 0, sizeof nll);
                step(&with, t, nll[0]), step(&without, t, nll[1]);
                cr_assert(!memcmp(nll[0], nll[1], sizeof nll[0]), "%s: losses of step %d", zoo[i].name, t);
                int valid = 0;
                for (int k = 0; k < with.dev->shadows.n; k++) valid += with.dev->shadows.at[k].valid;
                cr_assert(valid == with.dev->shadows.n, "%s: %d of %d copies were written", zoo[i].name, valid,
                          with.dev->shadows.n);
                cr_assert(shadow_check(with.dev), "%s: a copy is wrong", zoo[i].name);
            }
            for (int k = 0; k < with.p.n; k++) {
                Tensor a = view_open(with.dev, with.p.p[k].t[0], true),
                       b = view_open(without.dev, without.p.p[k].t[0], true);
                cr_assert(!memcmp(a.p, b.p, tensor_bytes(a)), "%s: %s", zoo[i].name, with.p.p[k].name);
                view_close(with.dev, with.p.p[k].t[0], a, false),
                    view_close(without.dev, without.p.p[k].t[0], b, false);
            }
            side_close(&with), side_close(&without);
            ran++;
        }
    cr_assert(ran >= 6, "%d", ran);
}

/* ---- writers -------------------------------------------------------------------------------------------------------
 */
enum { O = 24, I = 40, N = 8, NUMBERS = O * I };
typedef struct {
    Device *dev;
    Arena mem, scratch;
    Run run;
    Tensor w, half, x, y[2], other, m, v;
} Desk;
static Tensor place(Desk *d, Dtype dtype, int rows, int cols, double of) {
    Tensor t = arena_tensor(&d->mem, "a matrix", dtype, 2, (int[]){rows, cols});
    real *host = xcalloc((size_t)(rows * cols), sizeof *host);
    for (int i = 0; i < rows * cols; i++) host[i] = (real)(of * sin(1 + 0.7 * i));
    if (dtype == REAL) device_write(d->dev, t.p, host, tensor_bytes(t));
    free(host);
    return t;
}
static void desk_open(Desk *d) {
    Err e = {0};
    *d = (Desk){0};
    cr_assert(device_open(&d->dev, "cuda", 1, &e) && device_bf16(d->dev, true, &e), "%s", e.msg);
    d->dev->least = 0;
    const Memory *home = device_memory(d->dev, false);
    cr_assert(arena_open_at(&d->mem, home, "tensors", 1 << 20, true, &e), "%s", e.msg);
    cr_assert(arena_open_at(&d->scratch, home, "scratch", 1 << 20, true, &e), "%s", e.msg);
    d->run = run_make(d->dev, &d->scratch);
    d->w = place(d, REAL, O, I, 1), d->x = place(d, REAL, N, I, 0.5), d->other = place(d, REAL, O, I, 0.3);
    d->m = place(d, REAL, O, I, 0), d->v = place(d, REAL, O, I, 0), d->half = place(d, BF16, O, I, 0);
    for (int k = 0; k < 2; k++) d->y[k] = place(d, REAL, N, O, 0);
    cr_assert(shadow_wanted(d->dev, d->w, 0) && !shadow_wanted(d->dev, d->w, FIELD_INVARIANT));
    shadow_keep(d->dev, d->w, d->half);
    d->w.has_shadow = true;
}
static void desk_close(Desk *d) {
    shadow_drop(d->dev, d->w.p, tensor_bytes(d->w));
    cr_assert(d->dev->shadows.n == 0);
    arena_close(&d->mem), arena_close(&d->scratch);
    device_close(d->dev);
}
/* Products of all of w and of some of its rows, by the copy and without. */
static void same_products(Desk *d, const char *after) {
    for (int from = 0; from < O; from += O / 3) {
        Tensor w = tensor_part(d->w, from, O - from);
        real out[2][N * O];
        for (int k = 0; k < 2; k++) {
            w.has_shadow = k == 0;
            Tensor y = TENSOR(d->y[k].p, REAL, N, O - from);
            d->run.ops->linear(&d->run, y, d->x, w, ABSENT);
            device_read(d->dev, out[k], y.p, tensor_bytes(y));
        }
        cr_assert(!memcmp(out[0], out[1], (size_t)(N * (O - from)) * sizeof(real)), "%s: a copy is stale", after);
    }
    cr_assert(shadow_check(d->dev), "%s", after);
}
static void adamw(Desk *d, int from, int n) {
    const AdamwStep s = {.w = tensor_part(d->w, from, n),
                         .g = tensor_part(d->other, from, n),
                         .m = tensor_part(d->m, from, n),
                         .v = tensor_part(d->v, from, n),
                         .lr = 0.1,
                         .b1 = 0.9,
                         .b2 = 0.99,
                         .eps = 1e-8,
                         .decay = 0.1,
                         .gscale = 1,
                         .t = 1};
    d->run.ops->adamw(&d->run, 1, &s);
}
Test(cuda_shadow, whoever_writes_a_weight_is_noticed) {
    Desk d;
    desk_open(&d);
    const Ops *ops = d.run.ops;
    Bf16Shadow *h = &d.dev->shadows.at[0];
    real host[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) host[i] = (real)cos(i);
    cr_assert(!h->valid);
    same_products(&d, "at first");
    cr_assert(h->valid);
    adamw(&d, 0, O);
    cr_assert(h->valid, "AdamW writes it");
    same_products(&d, "adamw");
    adamw(&d, 4, 3);
    cr_assert(h->valid);
    same_products(&d, "adamw on rows");
    static const char *const by[] = {"device_write", "device_copy", "device_zero", "axpby",           "add",
                                     "copy",         "zero",        "narrow",      "linear_backward", "linear",
                                     "move",         "scale_column"};
    for (int k = 0; k < 12; k++) {
        Tensor row = tensor_part(d.w, 2, 1);
        if (k == 0) device_write(d.dev, row.p, host, tensor_bytes(row));
        if (k == 1) device_copy(d.dev, row.p, d.other.p, tensor_bytes(row));
        if (k == 2) device_zero(d.dev, row.p, tensor_bytes(row));
        if (k == 3) ops->axpby(&d.run, d.w, -0.1, d.other, 0.9);
        if (k == 4) ops->add(&d.run, row, tensor_part(d.other, 1, 1));
        if (k == 5) ops->copy(&d.run, row, tensor_part(d.other, 3, 1));
        if (k == 6) ops->zero(&d.run, row);
        if (k == 7) ops->round_to_bf16(&d.run, d.w);
        if (k == 8)
            ops->linear_backward(&d.run, add_to(d.w), ABSENT, ABSENT, TENSOR(d.other.p, REAL, O, O), d.m,
                                 TENSOR(d.other.p, REAL, O, I));
        if (k == 9)
            ops->linear(&d.run, TENSOR(d.w.p, REAL, N, I), TENSOR(d.x.p, REAL, N, 16), TENSOR(d.other.p, REAL, I, 16),
                        ABSENT);
        if (k == 10) ops->move(&d.run, d.w, (size_t[]){41}, d.other, (size_t[]){3}, 1, 7);
        if (k == 11) ops->scale_column(&d.run, d.w, 5, 3);
        cr_assert(!h->valid, "%s changes a weight", by[k]);
        if (k % 2) shadow_refresh(d.dev);
        same_products(&d, by[k]);
        cr_assert(h->valid);
    }
    /* A range of a stale copy stays stale; all of it makes it valid. */
    ops->zero(&d.run, d.w);
    adamw(&d, 1, 2);
    cr_assert(!h->valid);
    same_products(&d, "adamw on rows of a stale one");
    ops->zero(&d.run, d.w);
    adamw(&d, 0, O);
    cr_assert(h->valid);
    same_products(&d, "adamw on a stale one");
    /* Beside it, nothing. */
    device_write(d.dev, d.x.p, host, tensor_bytes(d.x));
    cr_assert(h->valid);
    /* Past everybody: found, and no longer once it is told. */
    d.dev->backend->write(d.dev, tensor_part(d.w, 7, 1).p, host, I * sizeof(real));
    cr_assert(!shadow_check(d.dev), "a change that nobody told of");
    shadow_changed(d.dev, tensor_part(d.w, 7, 1).p, I * sizeof(real));
    same_products(&d, "shadow_changed");
    desk_close(&d);
}
