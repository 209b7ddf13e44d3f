#include "bench_model.h"
#include "../ops/graph.h"
#include "../ops/host.h"

/* ---- training ------------------------------------------------------------------------------------------------------
 */
enum { ROLES = 4 };
typedef struct {
    int n, cap;
    Tensor (*t)[ROLES]; /* weight, gradient, first and second moment */
    int role, at;
} Owned;
static void owned_see(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path, (void)flags;
    Owned *o = f->ctx;
    if (o->at == o->cap) o->t = xrealloc(o->t, (size_t)(o->cap = 2 * o->cap + 64), sizeof *o->t);
    o->t[o->at++][o->role] = *t;
    o->n = imax(o->n, o->at);
}

typedef struct {
    Model m;
    Batch batch;
    int *tok, *tgt, *pos, *first, *of, *off;
    uint64_t *id;
    real *g, *nll;
    Owned owned;
    AdamwStep *steps; /* of what is owned */
    Tensor *grads;
    Arena there, scratch;
    double *square; /* of the gradient's norm, on the device */
    Run run;        /* of the update */
    Graphs *graphs; /* NULL: as they come */
    int64_t t;
    Model teacher; /* dev NULL: none */
    Teach teach;
    real *kl, *rkl;
} Step;

static void passes(void *ctx) {
    Step *s = ctx;
    model_zero_grad(&s->m);
    if (s->teacher.dev) {
        model_states(&s->teacher, &s->batch, s->tok, s->teach.xf, NULL, NULL);
        model_teach(&s->m, &s->batch, s->tok, s->tgt, s->g, s->nll, &s->teach);
    } else {
        model_train(&s->m, &s->batch, s->tok, s->tgt, s->g, device_apart(s->m.dev) ? NULL : s->nll);
    }
}
static void update(void *ctx) {
    Step *s = ctx;
    for (int i = 0; i < s->owned.n; i++) s->steps[i].t = s->t;
    s->run.ops->sumsqs_there(&s->run, s->square, false, s->owned.n, s->grads);
    s->run.ops->adamw(&s->run, s->owned.n, s->steps);
}
/* As the trainer has it: nobody waits before the end, where the losses are read. */
static void step_once(void *ctx) {
    enum { KEY_PASSES, KEY_UPDATE };
    Step *s = ctx;
    s->m.step = (uint64_t)s->t++;
    graphs_run(s->teacher.dev || model_varying(&s->m) >= 0 ? NULL : s->graphs, KEY_PASSES, passes, s);
    graphs_run(s->graphs, KEY_UPDATE, update, s);
    if (device_apart(s->m.dev)) device_read(s->m.dev, s->nll, s->m.losses, (size_t)s->batch.N * sizeof *s->nll);
}
static void there(Step *s) {
    s->square = arena_take(&s->there, sizeof *s->square, "norm");
    if (device_apart(s->m.dev)) s->m.losses = arena_take(&s->there, (size_t)s->batch.N * sizeof *s->nll, "losses");
}
/* What is asked of the update, and room for it. */
static bool update_open(Step *s, Device *dev, Err *e) {
    const int n = s->owned.n;
    const Memory *home = device_memory(dev, false);
    s->steps = xcalloc((size_t)n, sizeof *s->steps), s->grads = xcalloc((size_t)n, sizeof *s->grads);
    for (int i = 0; i < n; i++) {
        const Tensor *t = s->owned.t[i];
        s->grads[i] = t[1];
        s->steps[i] = (AdamwStep){.w = t[0],
                                  .g = t[1],
                                  .m = t[2],
                                  .v = t[3],
                                  .lr = 1e-5,
                                  .b1 = 0.9,
                                  .b2 = 0.95,
                                  .eps = 1e-8,
                                  .decay = t->rank > 1 ? 0.1 : 0,
                                  .gscale = 1,
                                  .most = 1};
    }
    s->there.name = "norm and losses", s->scratch.name = "scratch of the update";
    there(s);
    s->run = run_make(dev, &s->scratch);
    update(s);
    if (!arena_open_at(&s->there, home, s->there.name, s->there.peak, false, e) ||
        !arena_open_at(&s->scratch, home, s->scratch.name, s->scratch.peak, false, e))
        return false;
    there(s);
    for (int i = 0; i < n; i++) s->steps[i].square = s->square;
    return true;
}

static void step_data(Step *s, int B, int T, int V) {
    int N = B * T;
    s->tok = xcalloc((size_t)N, sizeof(int)), s->tgt = xcalloc((size_t)N, sizeof(int)),
    s->pos = xcalloc((size_t)N, sizeof(int));
    s->first = xcalloc((size_t)N, sizeof(int)), s->of = xcalloc((size_t)N, sizeof(int)),
    s->off = xcalloc((size_t)B + 1, sizeof(int));
    s->id = xcalloc((size_t)B, sizeof *s->id);
    s->g = xcalloc((size_t)N, sizeof(real)), s->nll = xcalloc((size_t)N, sizeof(real));
    for (int i = 0; i < N; i++) {
        s->tok[i] = (int)(rng_uniform(1, (uint64_t)i) * V), s->tgt[i] = (int)(rng_uniform(2, (uint64_t)i) * V);
        s->of[i] = i / T, s->pos[i] = i % T, s->first[i] = i / T * T;
        s->g[i] = (real)1 / (real)N;
    }
    for (int b = 0; b <= B; b++) s->off[b] = b * T;
    for (int b = 0; b < B; b++) s->id[b] = (uint64_t)b;
    s->batch = (Batch){
        .B = B, .N = N, .off = s->off, .seq = s->off, .of = s->of, .pos = s->pos, .first = s->first, .id = s->id};
}
static void step_free(Step *s) {
    free(s->tok), free(s->tgt), free(s->pos), free(s->first), free(s->of), free(s->off), free(s->id), free(s->g),
        free(s->nll);
    graphs_close(s->graphs);
    free(s->owned.t), free(s->steps), free(s->grads);
    arena_close(&s->scratch);
    arena_close(&s->there);
    free(s->teach.xf.p), free(s->kl), free(s->rkl);
    if (s->m.dev) model_close(&s->m);
    if (s->teacher.dev) model_close(&s->teacher);
}

static bool teacher_make(Step *s, Device *dev, const Config *c, Err *e) {
    int B = c->train.micro_batch, N = B * c->data.seq_len, d = c->model.d_model;
    ModelOpts o = {.max_rows = N, .max_samples = B, .states = true};
    if (!model_open(&s->teacher, dev, &c->model, o, e)) return false;
    model_init(&s->teacher, 2);
    s->kl = xcalloc((size_t)N, sizeof(real)), s->rkl = xcalloc((size_t)N, sizeof(real));
    s->teach = (Teach){.logits = {1, 1, 0, 1},
                       .xf = TENSOR(xcalloc((size_t)N * (size_t)d, sizeof(real)), REAL, N, d),
                       .head = c->model.tied ? s->teacher.w.embed : s->teacher.w.head,
                       .kl = s->kl,
                       .rkl = s->rkl};
    return true;
}

static bool step_open(Step *s, Device *dev, const Config *c, bool taught, bool graphs, Err *e) {
    int B = c->train.micro_batch, T = c->data.seq_len;
    *s = (Step){0};
    if (taught && !teacher_make(s, dev, c, e)) return false;
    ModelOpts o = {.train = true,
                   .max_rows = B * T,
                   .max_samples = B,
                   .dropout = c->train.dropout,
                   .recompute = c->train.recompute,
                   .teach = taught ? &s->teach : NULL};
    if (!model_open(&s->m, dev, &c->model, o, e)) {
        step_free(s);
        return false;
    }
    model_init(&s->m, 1);
    step_data(s, B, T, c->model.vocab);
    Weights *role[] = {&s->m.w, &s->m.g, &s->m.m, &s->m.v};
    for (int r = 0; r < ROLES; r++) {
        Fields f = {.see = owned_see, .ctx = &s->owned};
        s->owned.role = r, s->owned.at = 0;
        model_fields(&s->m, role[r], &f);
    }
    if (!update_open(s, dev, e)) {
        step_free(s);
        return false;
    }
    if (graphs && device_apart(dev) && c->run.graph == GRAPH_AUTO) s->graphs = graphs_open(dev);
    return true;
}
static bool bench(Device *dev, const Config *c, bool taught, double seconds, Timing *t, Cost *cost, Err *e) {
    Step s;
    if (!step_open(&s, dev, c, taught, true, e)) return false;
    *t = bench_whole(dev, step_once, &s, seconds);
    *cost = cost_model(&s.m, c->data.seq_len);
    step_free(&s);
    return true;
}
bool bench_step(Device *dev, const Config *c, double seconds, Timing *t, Cost *cost, Err *e) {
    return bench(dev, c, false, seconds, t, cost, e);
}
bool bench_distill(Device *dev, const Config *c, double seconds, Timing *t, Err *e) {
    Cost cost;
    return bench(dev, c, true, seconds, t, &cost, e);
}
int shares_mean(Shares *shares, int steps, Share *out) {
    int n = shares_read(shares, out);
    shares_end(shares);
    for (int i = 0; i < n; i++) out[i].calls /= steps, out[i].seconds /= steps, out[i].flops /= steps;
    return n;
}
bool bench_shares(Device *dev, const Config *c, double seconds, Share *out, int *n, Err *e) {
    Step s;
    if (!step_open(&s, dev, c, false, false, e)) return false; /* ops are timed one by one */
    Shares *shares = shares_begin(dev);
    s.run = run_make(dev, &s.scratch);
    step_once(&s);
    shares_clear(shares);
    int steps = 0;
    for (double start = now_seconds(); !steps || now_seconds() - start < seconds; steps++) step_once(&s);
    *n = shares_mean(shares, steps, out);
    step_free(&s);
    return true;
}
