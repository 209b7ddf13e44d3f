#include "saver.h"
#include "../model/copy.h"
#include "checkpoint.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

struct Saver {
    Trainer *t;
    ModelCopy copy;
    Params numbers;   /* of the copy */
    TrainState state; /* of the copy */
    Keep keep;
    pthread_t thread;
    bool busy, ok; /* busy: the thread was started and not joined; ok: its outcome, */
    Err err;       /* and why not */
    atomic_bool done;
    int failures;     /* in a row */
    int64_t lost;     /* step of the last failure, -1: none */
    TrainState stood; /* has_best, best_loss, best_step: of what is on disk */
};

bool saver_open(Trainer *t, Err *e) {
    if (!trainer_writes(t) || (!t->cfg->train.async_save && !t->dist.stage)) return true;
    Saver *s = t->saver = xcalloc(1, sizeof *s);
    s->t = t;
    s->lost = -1;
    if (!model_copy_open(&s->copy, &t->model, t->dry, e)) {
        free(s);
        t->saver = NULL;
        return false;
    }
    Model *m = &s->copy.view;
    Fields w = params_visitor(&s->numbers, PARAM_WEIGHT);
    model_fields(m, &m->w, &w);
    Fields first = params_visitor(&s->numbers, PARAM_M);
    model_moments(m, &m->m, false, &first);
    Fields second = params_visitor(&s->numbers, PARAM_V);
    model_moments(m, &m->v, true, &second);
    return true;
}

static void join(Saver *s) {
    CHECK(!pthread_join(s->thread, NULL), "a thread of our own");
    s->busy = false;
}

void saver_close(Trainer *t) {
    Saver *s = t->saver;
    if (!s) return;
    if (s->busy) join(s);
    model_copy_close(&s->copy);
    params_free(&s->numbers);
    free(s);
    t->saver = NULL;
}

void saver_start(Trainer *t) {
    if (t->saver) t->saver->stood = t->state;
}

const Arena *saver_region(const Trainer *t) { return t->saver ? &t->saver->copy.mem : NULL; }

static void *work(void *p) {
    Saver *s = p;
    s->ok = checkpoint_write(s->t, &s->copy.view, &s->state, s->keep, &s->err);
    atomic_store(&s->done, true);
    return NULL;
}

/* What became of the last save. */
static bool outcome(Trainer *t, Err *e) {
    Saver *s = t->saver;
    if (s->ok) {
        t->saved = s->state.step;
        s->stood = s->state;
        s->failures = 0;
        s->lost = -1;
        trainer_watch_memory(t);
        return true;
    }
    s->lost = s->state.step;
    if (++s->failures > 1)
        return err_world(e, "checkpoint of step %lld, the second that failed: %.200s", (long long)s->state.step,
                         s->err.msg);
    progress_warn(&t->progress, "checkpoint of step %lld: %.200s; training goes on, the next save tries again",
                  (long long)s->state.step, s->err.msg);
    return true;
}

bool saver_poll(Trainer *t, Err *e) {
    Saver *s = t->saver;
    return !s || !s->busy || !atomic_load(&s->done) || saver_wait(t, e);
}

bool saver_wait(Trainer *t, Err *e) {
    if (!t->saver || !t->saver->busy) return true;
    join(t->saver);
    return outcome(t, e);
}

/* What rank 0 tells the others at a save point, and what is best as it has it. */
enum { COLLECT, OVER };
typedef struct {
    int64_t what, has_best, best_step;
    double best_loss;
} Order;
static bool tell(Trainer *t, int what, Err *e) {
    TrainState *s = &t->state;
    Order o = {what, s->has_best, s->best_step, s->best_loss};
    return dist_tell(t->comm, "saving", &o, sizeof o, e);
}
/* The others, until it is over. */
static bool serve(Trainer *t, Err *e) {
    Order o = {.what = COLLECT};
    while (o.what == COLLECT) {
        if (!dist_tell(t->comm, "saving", &o, sizeof o, e)) return false;
        if (o.what == COLLECT && !dist_collect(&t->dist, NULL, e)) return false;
    }
    t->state.has_best = o.has_best;
    t->state.best_step = o.best_step;
    t->state.best_loss = o.best_loss;
    return true;
}

static bool begin(Trainer *t, Err *e) {
    Saver *s = t->saver;
    sigset_t all, before;
    /* A best checkpoint that was lost is none: what stands is the measure, but for a second try at the same step. */
    if (s->lost >= 0 && s->lost != t->state.step && t->state.has_best && t->state.best_step == s->lost) {
        t->state.has_best = s->stood.has_best;
        t->state.best_loss = s->stood.best_loss;
        t->state.best_step = s->stood.best_step;
    }
    s->state = t->state;
    s->keep = checkpoint_keep(t);
    s->err = (Err){0};
    atomic_store(&s->done, false);
    model_copy_take(&s->copy, &t->model);
    if (t->dist.stage && (!tell(t, COLLECT, e) || !dist_collect(&t->dist, &s->numbers, e))) return false;
    if (!t->cfg->train.async_save) {
        work(s);
        if (!s->ok) *e = s->err;
        return s->ok && outcome(t, e);
    }
    /* Signals are the loop's. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(&s->thread, NULL, work, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->busy = !why;
    if (!why) return true;
    s->ok = err_world(&s->err, "cannot start a thread: %s", strerror(why));
    return outcome(t, e);
}

static bool save(Trainer *t, Err *e) {
    Saver *s = t->saver;
    if (t->saved == t->state.step || (s && s->busy && s->state.step == t->state.step)) return true;
    if (!s) {
        if (!checkpoint_save(t, e)) return false;
        trainer_watch_memory(t);
        return true;
    }
    return saver_wait(t, e) && trainer_finite(t, e) && begin(t, e);
}

static bool finish(Trainer *t, Err *e) {
    for (int tries = 0; tries < 2 && t->saved != t->state.step; tries++)
        if (!save(t, e) || !saver_wait(t, e)) return false;
    CHECK(t->saved == t->state.step, "step %lld, saved %lld", (long long)t->state.step, (long long)t->saved);
    return true;
}

bool saver_save(Trainer *t, Err *e) { return trainer_writes(t) ? save(t, e) && tell(t, OVER, e) : serve(t, e); }

bool saver_finish(Trainer *t, Err *e) {
    if (trainer_writes(t)) return finish(t, e) && tell(t, OVER, e);
    if (!serve(t, e)) return false;
    t->saved = t->state.step;
    return true;
}
