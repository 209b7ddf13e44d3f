/* bench_train.c: training steps of one model: see bench_train.h. */
#include "bench_train.h"
#include "bench_decode.h"
#include "ops/graph.h"
#include "ops/host.h"
#include "optim/clip.h"
#include "optim/state.h"
#include "train/dist/dist.h"

typedef struct {
    Model m;
    Workspace work;
    Batch batch;
    int *tok, *tgt, *pos, *first, *of, *off;
    uint64_t *id;
    real *g, *nll;
    Params params;
    OptimizerCfg how; /* AdamW */
    Arena state[STATES_MAX], there, scratch;
    double *square; /* of the gradient's norm, on the device */
    Run run;        /* of the update */
    Graphs *graphs; /* NULL: as they come */
    int64_t t;
    Model teacher; /* dev NULL: none */
    Workspace teaching;
    LossHook loss; /* against it: */
    Tensor xf, head;
    real *kl, *rkl;
} Step;

static void bench_train_passes(void *ctx) {
    Step *s = ctx;
    model_zero_grad(&s->m);
    if (s->teacher.dev) {
        model_states(&s->teacher, &s->teaching, &s->batch, s->tok, s->xf, NULL, NULL);
        model_train_with(&s->m, &s->work, &s->batch, s->tok, s->tgt, s->g, s->nll, &s->loss);
    } else {
        model_train(&s->m, &s->work, &s->batch, s->tok, s->tgt, s->g, device_apart(s->m.dev) ? NULL : s->nll);
    }
}
static void bench_train_update(void *ctx) {
    Step *s = ctx;
    clip_there(&s->run, &s->params, s->square);
    optimizer_step(&s->run, &s->params, &s->how, 1e-5, 1, s->t + 1);
}
/* As in the trainer: nothing waits until the losses are read at the end. */
static void step_once(void *ctx) {
    enum { KEY_PASSES, KEY_UPDATE };
    Step *s = ctx;
    s->work.step = (uint64_t)s->t;
    graphs_run(s->teacher.dev || model_varying(&s->m) >= 0 ? NULL : s->graphs, KEY_PASSES, bench_train_passes, s);
    graphs_run(s->graphs, KEY_UPDATE, bench_train_update, s);
    if (device_apart(s->m.dev)) device_read(s->m.dev, s->nll, s->work.losses, (size_t)s->batch.N * sizeof *s->nll);
    s->t++;
}
static void bench_train_there(Step *s) {
    s->square = arena_take(&s->there, sizeof *s->square, "norm");
    s->how.square = s->square;
    if (device_apart(s->m.dev)) s->work.losses = arena_take(&s->there, (size_t)s->batch.N * sizeof *s->nll, "losses");
}
/* AdamW on all tensors, with gradients clipped by their norm, and its memory. */
static bool update_open(Step *s, Device *dev, Err *e) {
    static const OptimCfg set = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const Memory *home = device_memory(dev, false);
    dist_params(&s->params, &s->m);
    optimizer_declare(&s->params, &set);
    if (!states_open(&s->params, s->state, &adamw_optimizer, dev, false, false, e)) return false;
    s->how = (OptimizerCfg){.set = &set, .most = 1};
    s->there.name = "norm and losses", s->scratch.name = "scratch of the update";
    bench_train_there(s);
    s->run = run_make(dev, &s->scratch);
    bench_train_update(s); /* measures */
    if (!arena_open_at(&s->there, home, s->there.name, s->there.peak, false, e) ||
        !arena_open_at(&s->scratch, home, s->scratch.name, s->scratch.peak, false, e))
        return false;
    bench_train_there(s);
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
    params_free(&s->params);
    states_close(s->state);
    arena_close(&s->scratch);
    arena_close(&s->there);
    free(s->xf.p), free(s->kl), free(s->rkl);
    workspace_close(&s->work);
    workspace_close(&s->teaching);
    if (s->m.dev) model_close(&s->m);
    if (s->teacher.dev) model_close(&s->teacher);
}

/* lm and kl in equal parts. */
static void bench_train_distill(void *ctx, Run *r, const HeadView *v) {
    const Step *s = ctx;
    const int N = v->x.n[0];
    r->ops->linear_distill(r, v->nll, TENSOR(s->kl, REAL, N), TENSOR(s->rkl, REAL, N), v->dx, v->dw, v->x, v->w, s->xf,
                           s->head, v->tgt, v->g,
                           (Distill){.lm = 1,
                                     .kl = 1,
                                     .temperature = 1,
                                     .map = model_logits(&s->m),
                                     .teacher_map = model_logits(&s->teacher)});
}
static bool teacher_make(Step *s, Device *dev, const Config *c, Err *e) {
    int B = c->train.micro_batch, N = B * c->data.seq_len, d = c->model.d_model;
    ModelOpts o = {.max_rows = N, .max_samples = B, .states = true};
    if (!model_open(&s->teacher, dev, &c->model, o, e) || !workspace_open(&s->teaching, &s->teacher, e)) return false;
    model_init(&s->teacher, 2);
    s->kl = xcalloc((size_t)N, sizeof(real)), s->rkl = xcalloc((size_t)N, sizeof(real));
    s->xf = TENSOR(xcalloc((size_t)N * (size_t)d, sizeof(real)), REAL, N, d);
    s->head = c->model.tied ? s->teacher.w.embed : s->teacher.w.head;
    s->loss = (LossHook){.head = bench_train_distill, .ctx = s};
    return true;
}

static bool step_open(Step *s, Device *dev, const Config *c, bool taught, bool graphs, Err *e) {
    int B = c->train.micro_batch, T = c->data.seq_len;
    *s = (Step){0};
    if (taught && !teacher_make(s, dev, c, e)) {
        step_free(s);
        return false;
    }
    ModelOpts o = {.train = true,
                   .max_rows = B * T,
                   .max_samples = B,
                   .dropout = c->train.dropout,
                   .recompute = c->train.recompute,
                   .loss = taught ? &s->loss : NULL};
    if (!model_open(&s->m, dev, &c->model, o, e) || !workspace_open(&s->work, &s->m, e)) {
        step_free(s);
        return false;
    }
    model_init(&s->m, 1);
    step_data(s, B, T, c->model.vocab);
    if (!update_open(s, dev, e)) {
        step_free(s);
        return false;
    }
    if (graphs && device_apart(dev) && c->run.graph == GRAPH_AUTO) s->graphs = graphs_open(dev);
    return true;
}
static bool bench_train_bench(Device *dev, const Config *c, bool taught, double seconds, Timing *t, Cost *cost,
                              Err *e) {
    Step s;
    if (!step_open(&s, dev, c, taught, true, e)) return false;
    *t = bench_whole(dev, step_once, &s, seconds);
    *cost = cost_model(&s.m, c->data.seq_len);
    step_free(&s);
    return true;
}
bool bench_step(Device *dev, const Config *c, double seconds, Timing *t, Cost *cost, Err *e) {
    return bench_train_bench(dev, c, false, seconds, t, cost, e);
}
bool bench_distill(Device *dev, const Config *c, double seconds, Timing *t, Err *e) {
    Cost cost;
    return bench_train_bench(dev, c, true, seconds, t, &cost, e);
}
bool bench_profile(Device *dev, const Config *c, double seconds, Share *out, int *n, Err *e) {
    Step s;
    if (!step_open(&s, dev, c, false, false, e)) return false; /* ops are timed one by one */
    Profile *profile = profile_begin(dev);
    s.run = run_make(dev, &s.scratch);
    step_once(&s);
    profile_clear(profile);
    int steps = 0;
    for (double start = now_seconds(); !steps || now_seconds() - start < seconds; steps++) step_once(&s);
    *n = profile_mean(profile, steps, out);
    step_free(&s);
    return true;
}
