#include "capture.h"
#include "ops/host.h"
#include "trainer.h"

enum { KEY_BEGIN = 1, KEY_NORM, KEY_APPLY, KEY_STEP, KEY_MICRO };

typedef struct {
    Stepper self; /* first: a Stepper that is captured is one of these */
    Stepper *inner;
    Graphs *graphs;
} Capture;

/* A rank's passes alternate with its collectives, in which other GPUs take part. */
static bool capture_alone(const Trainer *t) { return !comm_live(t->run->comm); }
static bool capture_repeats(const Trainer *t) {
    return model_varying(&t->model) < 0 && (!t->teacher.on || model_varying(&t->teacher.model) < 0);
}

/* Everything that determines sizes and arguments of a pass's launches, except what is fixed while the trainer is open.
 * The beginnings of sequences are not part of it: the GPU receives them with the ids. */
static uint64_t micro_key(const Batch *b) {
    bool documents = false; /* that begin inside of a sequence: attention may have a kernel for those */
    int longest = 0;
    for (int s = 0; s < b->B; s++) {
        longest = imax(longest, b->off[s + 1] - b->off[s]);
        for (int i = b->off[s]; i < b->off[s + 1]; i++) documents |= b->first[i] != b->off[s];
    }
    uint64_t key = rng_mix(rng_mix(KEY_MICRO, (uint64_t)b->B), (uint64_t)b->N);
    return rng_mix(rng_mix(key, (uint64_t)longest), documents);
}

/* ---- one call of a part, as graphs_run takes it ---------------------------------------------------------------------
 */

typedef struct {
    Stepper *s;
    TrainLosses *losses;
    Update *u;
    Err *e;
    bool ok;
} Call;
static void capture_call_begin(void *ctx) {
    Call *c = ctx;
    c->s->begin(c->s);
}
static void call_micro(void *ctx) {
    Call *c = ctx;
    c->s->micro(c->s, c->losses);
}
static void call_norm(void *ctx) {
    Call *c = ctx;
    c->ok = c->s->norm(c->s, c->u, c->e);
}
static void call_apply(void *ctx) {
    Call *c = ctx;
    c->ok = c->s->apply(c->s, c->u, c->e);
}
static void call_step(void *ctx) {
    call_norm(ctx);
    call_apply(ctx);
}

/* ---- the parts ------------------------------------------------------------------------------------------------------
 */

static void capture_begin(Stepper *s) {
    Capture *c = (Capture *)s;
    Call call = {.s = c->inner};
    graphs_run(c->graphs, KEY_BEGIN, capture_call_begin, &call);
}
static void capture_micro(Stepper *s, TrainLosses *losses) {
    Capture *c = (Capture *)s;
    Call call = {.s = c->inner, .losses = losses};
    graphs_run(capture_repeats(s->t) ? c->graphs : NULL, micro_key(&s->t->loader.batch), call_micro, &call);
}
static bool capture_reduce(Stepper *s, Err *e) {
    Stepper *inner = ((Capture *)s)->inner;
    return inner->reduce(inner, e);
}
/* On the device alone the norm is captured with what follows it at once. */
static bool capture_norm(Stepper *s, Update *u, Err *e) {
    Capture *c = (Capture *)s;
    Call call = {.s = c->inner, .u = u, .e = e};
    if (s->on_device) return true;
    graphs_run(c->graphs, KEY_NORM, call_norm, &call);
    return call.ok;
}
static bool capture_apply(Stepper *s, const Update *u, Err *e) {
    Capture *c = (Capture *)s;
    Update own = *u;
    Call call = {.s = c->inner, .u = &own, .e = e};
    if (s->on_device)
        graphs_run(c->graphs, KEY_STEP, call_step, &call);
    else
        graphs_run(c->graphs, KEY_APPLY, call_apply, &call);
    return call.ok;
}
static void capture_close(Stepper *s) {
    Capture *c = (Capture *)s;
    graphs_close(c->graphs);
    c->inner->close(c->inner);
    free(c);
}

Stepper *capture_open(Stepper *inner) {
    Trainer *t = inner->t;
    Graphs *graphs =
        device_apart(t->dev) && t->run->cfg->run.graph == GRAPH_AUTO && capture_alone(t) ? graphs_open(t->dev) : NULL;
    if (!graphs) return inner;
    Capture *c = xcalloc(1, sizeof *c);
    *c = (Capture){.self = *inner, .inner = inner, .graphs = graphs};
    c->self.begin = capture_begin;
    c->self.micro = capture_micro;
    c->self.reduce = capture_reduce;
    c->self.norm = capture_norm;
    c->self.apply = capture_apply;
    c->self.close = capture_close;
    return &c->self;
}

Graphs *capture_graphs(const Stepper *s) { return s->close == capture_close ? ((const Capture *)s)->graphs : NULL; }

void capture_say(Trainer *t) {
    if (!device_apart(t->dev)) return;
    int l = model_varying(&t->model);
    const Model *m = l >= 0 ? &t->model : &t->teacher.model;
    if (!capture_graphs(t->stepper))
        progress_say(&t->run->progress, "kernels are launched one by one: %s",
                     t->run->cfg->run.graph == GRAPH_OFF ? "run.graph is off"
                     : capture_alone(t)                  ? "KVSMITH_CUDA_CHECK is set"
                                                         : "ranks communicate during a step");
    else if (!capture_repeats(t))
        progress_say(&t->run->progress,
                     "optimizer steps are replayed as CUDA graphs, forward and backward passes are not: the launches "
                     "of layer %d%s (ffn %s) differ from pass to pass",
                     l >= 0 ? l : model_varying(m), l >= 0 ? "" : " of the teacher",
                     m->layer[l >= 0 ? l : model_varying(m)].ffn->ffn->name);
    else
        progress_say(&t->run->progress, "steps are replayed as CUDA graphs");
}
