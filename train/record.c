#include "record.h"
#include "../ops/host.h"

enum { KEY_BEGIN = 1, KEY_CLIP, KEY_UPDATE, KEY_STEP, KEY_MICRO };

/* A rank's passes are interleaved with its exchanges, which other devices have a part in. */
static bool alone(const Trainer *t) { return !comm_live(t->comm); }
static bool steady(const Trainer *t) {
    return model_varying(&t->model) < 0 && (!t->teacher.on || model_varying(&t->teacher.model) < 0);
}

void record_open(Trainer *t) {
    if (device_apart(t->dev) && t->run->run.graph == GRAPH_AUTO && alone(t)) t->graphs = graphs_open(t->dev);
}
void record_close(Trainer *t) {
    graphs_close(t->graphs);
    t->graphs = NULL;
}
void record_say(Trainer *t) {
    if (!device_apart(t->dev)) return;
    int l = model_varying(&t->model);
    const Model *m = l >= 0 ? &t->model : &t->teacher.model;
    if (!t->graphs)
        progress_say(&t->progress, "kernels are launched one by one: %s",
                     t->run->run.graph == GRAPH_OFF ? "run.graph is off"
                     : alone(t)                     ? "KVSMITH_CUDA_CHECK is set"
                                                    : "ranks exchange between them");
    else if (!steady(t))
        progress_say(&t->progress,
                     "steps are replayed as CUDA graphs, forward and backward passes are not: what layer %d%s (ffn %s) "
                     "asks of the device differs from pass to pass",
                     l >= 0 ? l : model_varying(m), l >= 0 ? "" : " of the teacher",
                     m->layer[l >= 0 ? l : model_varying(m)].ffn->ffn->name);
    else
        progress_say(&t->progress, "steps are replayed as CUDA graphs");
}

/* Everything that sizes and arguments of a pass's launches depend on, beside what stays while the trainer is open. Where
 * sequences begin is not among it: the device gets that with the ids. */
static uint64_t key_of(const Batch *b) {
    bool documents = false; /* that begin inside of a sequence: attention may have a kernel for those */
    int longest = 0;
    for (int s = 0; s < b->B; s++) {
        longest = imax(longest, b->off[s + 1] - b->off[s]);
        for (int i = b->off[s]; i < b->off[s + 1]; i++) documents |= b->first[i] != b->off[s];
    }
    uint64_t key = rng_mix(rng_mix(KEY_MICRO, (uint64_t)b->B), (uint64_t)b->N);
    return rng_mix(rng_mix(key, (uint64_t)longest), documents);
}

typedef struct {
    Trainer *t;
    TrainLosses *losses;
    Run *run;
    Clip clip;
    const OptimizerCfg *how;
    double lr, gscale;
    int64_t number;
    bool ok;
    Err *e;
} Work;

static void begin(void *ctx) {
    Trainer *t = ((Work *)ctx)->t;
    dist_begin(&t->dist);
    lora_zero_grad(&t->lora);
}
void record_begin(Trainer *t) {
    Work w = {.t = t};
    graphs_run(t->graphs, KEY_BEGIN, begin, &w);
}

static void micro(void *ctx) {
    Work *w = ctx;
    Trainer *t = w->t;
    const Loader *l = &t->loader;
    if (t->teacher.on)
        teacher_step(t, w->losses);
    else
        model_train(&t->model, &l->batch, l->tok, l->tgt, t->g, device_apart(t->dev) ? NULL : t->nll);
}
void record_micro(Trainer *t, TrainLosses *losses) {
    Work w = {.t = t, .losses = losses};
    graphs_run(steady(t) ? t->graphs : NULL, key_of(&t->loader.batch), micro, &w);
}

static void clip(void *ctx) {
    Work *w = ctx;
    const OptimCfg *o = &w->t->cfg->optim;
    if (w->t->lora.n) {
        w->clip = clip_norm(w->run, &w->t->adapters, o->clip);
        w->ok = true;
    } else {
        w->ok = dist_clip(&w->t->dist, w->run, o->clip, &w->clip, w->e);
    }
}
bool record_clip(Trainer *t, Run *r, Clip *out, Err *e) {
    Work w = {.t = t, .run = r, .e = e};
    graphs_run(t->graphs, KEY_CLIP, clip, &w);
    *out = w.clip;
    return w.ok;
}

static void update(void *ctx) {
    Work *w = ctx;
    Trainer *t = w->t;
    w->ok = true;
    if (t->lora.n) {
        optimizer_step(w->run, &t->adapters, w->how, w->lr, w->gscale, w->number);
    } else {
        w->ok = dist_step(&t->dist, w->run, w->how, w->lr, w->gscale, w->number, w->e);
    }
}
bool record_update(Trainer *t, Run *r, const OptimizerCfg *how, double lr, double gscale, int64_t number, Err *e) {
    Work w = {.t = t, .run = r, .how = how, .lr = lr, .gscale = gscale, .number = number, .e = e};
    graphs_run(t->graphs, KEY_UPDATE, update, &w);
    return w.ok;
}

bool record_apart(const Trainer *t) {
    return device_apart(t->dev) && t->cfg->train.skip_z <= 0 && t->cfg->optim.kind != OPTIM_MUON && !t->dist.stage;
}
static void step(void *ctx) {
    Work *w = ctx;
    Trainer *t = w->t;
    clip_there(w->run, t->lora.n ? &t->adapters : t->dist.trained, t->losses.square);
    update(w);
}
bool record_step(Trainer *t, Run *r, const OptimizerCfg *how, double lr, int64_t number, Err *e) {
    OptimizerCfg own = *how;
    own.square = t->losses.square;
    own.most = t->cfg->optim.clip;
    Work w = {.t = t, .run = r, .how = &own, .lr = lr, .gscale = 1, .number = number, .e = e};
    graphs_run(t->graphs, KEY_STEP, step, &w);
    return w.ok;
}
