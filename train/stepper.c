#include "stepper.h"
#include "ops/host.h"
#include "trainer.h"

/* ---- parts that all have --------------------------------------------------------------------------------------------
 */

static void stepper_begin(Stepper *s) { dist_begin(&s->t->dist); }

static void stepper_micro(Stepper *s, TrainLosses *losses) {
    Trainer *t = s->t;
    const Loader *l = &t->loader;
    if (t->teacher.on)
        teacher_step(t, losses);
    else
        model_train(&t->model, &t->work, &l->batch, l->tok, l->tgt, t->g, device_apart(t->dev) ? NULL : t->nll);
}

static bool stepper_reduce(Stepper *s, Err *e) { return dist_gradients(&s->t->dist, e); }

static void stepper_close(Stepper *s) { free(s); }

static Run stepper_run(const Stepper *s) { return run_make(s->t->dev, &s->t->work.scratch); }

/* ---- plain ----------------------------------------------------------------------------------------------------------
 */

static bool plain_norm(Stepper *s, Update *u, Err *e) {
    Run run = stepper_run(s);
    (void)e;
    if (s->on_device)
        clip_there(&run, s->params, &s->t->losses.at->square);
    else
        u->norm = clip_norm(&run, s->params, 0).norm;
    return true;
}
static bool plain_apply(Stepper *s, const Update *u, Err *e) {
    Run run = stepper_run(s);
    (void)e;
    optimizer_step(&run, s->params, &u->how, u->lr, u->scale, u->number);
    return true;
}
static Stepper stepper_plain(Trainer *t) {
    return (Stepper){.begin = stepper_begin,
                     .micro = stepper_micro,
                     .reduce = stepper_reduce,
                     .norm = plain_norm,
                     .apply = plain_apply,
                     .close = stepper_close,
                     .t = t,
                     .params = &t->params,
                     .on_device = device_apart(t->dev) && t->cfg->train.skip_z <= 0 &&
                                  !optimizer_of(&t->cfg->optim)->scale_by_host};
}

/* ---- sharded --------------------------------------------------------------------------------------------------------
 */

static bool sharded_norm(Stepper *s, Update *u, Err *e) {
    Run run = stepper_run(s);
    return dist_norm(&s->t->dist, &run, &u->norm, e);
}
static bool sharded_apply(Stepper *s, const Update *u, Err *e) {
    Run run = stepper_run(s);
    return dist_step(&s->t->dist, &run, &u->how, u->lr, u->scale, u->number, e);
}
static Stepper stepper_sharded(Trainer *t) {
    Stepper s = stepper_plain(t);
    s.norm = sharded_norm;
    s.apply = sharded_apply;
    s.on_device = false;
    return s;
}

/* ---- adapters -------------------------------------------------------------------------------------------------------
 */

static void adapters_begin(Stepper *s) {
    stepper_begin(s);
    lora_zero_grad(&s->t->lora);
}
static Stepper stepper_adapters(Trainer *t) {
    Stepper s = stepper_plain(t);
    s.begin = adapters_begin;
    s.params = &t->adapters;
    return s;
}

Stepper *stepper_open(Trainer *t) {
    Stepper *s = xcalloc(1, sizeof *s);
    *s = t->lora.n ? stepper_adapters(t) : t->dist.stage ? stepper_sharded(t) : stepper_plain(t);
    return s;
}
