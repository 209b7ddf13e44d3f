#include "saver.h"
#include "../ops/procs.h"
#include "../model/copy.h"
#include "checkpoint.h"
#include "watch.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* ALONE: all of it by this rank; of several FILES by each and then COMMIT by rank 0. */
typedef enum { ALONE, FILES, COMMIT } Phase;
struct Saver {
    Trainer *t;
    bool shared, async; /* by several ranks; by a thread */
    ModelCopy copy;
    Lora lora;
    DistAside moments;
    TrainState state; /* of what is written */
    Keep keep;
    Phase phase;
    CheckpointSums sums;
    FileSum *all; /* (world) moments' */
    pthread_t thread;
    bool busy, running, ok; /* busy: begun and not over; running: the thread was started and not joined; its outcome, */
    Err err;                /* and why not */
    atomic_bool done;
    int failures;     /* in a row */
    int64_t lost;     /* step of the last failure, -1: none */
    TrainState stood; /* has_best, best_loss, best_step: of what is on disk */
};

static bool copies_open(Saver *s, Trainer *t, Err *e) {
    if (!s->async) return true;
    if (s->shared && !dist_aside_open(&s->moments, &t->dist, t->dry, e)) return false;
    if (!trainer_writes(t)) return true;
    return model_copy_open(&s->copy, &t->model, t->dry, e) &&
           lora_copy_open(&s->lora, &t->lora, &s->copy.view, t->dry, e);
}

bool saver_open(Trainer *t, Err *e) {
    bool shared = t->dist.stage > 0, async = t->cfg->train.async_save;
    if (!shared && (!trainer_writes(t) || !async)) return true;
    Saver *s = t->saver = xcalloc(1, sizeof *s);
    *s = (Saver){.t = t, .shared = shared, .async = async, .lost = -1};
    if (shared) s->all = xcalloc((size_t)t->dist.world, sizeof *s->all);
    if (copies_open(s, t, e)) return true;
    saver_close(t);
    return false;
}

static void join(Saver *s) {
    if (s->running) CHECK(!pthread_join(s->thread, NULL), "a thread of our own");
    s->running = false;
}

void saver_close(Trainer *t) {
    Saver *s = t->saver;
    if (!s) return;
    join(s);
    if (s->copy.view.cfg.d_model) model_copy_close(&s->copy);
    lora_close(&s->lora);
    dist_aside_close(&s->moments);
    free(s->all);
    free(s);
    t->saver = NULL;
}

void saver_start(Trainer *t) {
    if (t->saver) t->saver->stood = t->state;
}

const Arena *saver_region(const Trainer *t) {
    return t->saver && t->saver->async && trainer_writes(t) ? &t->saver->copy.mem : NULL;
}
const Arena *saver_moments(const Trainer *t) {
    return t->saver && t->saver->async && t->saver->shared ? &t->saver->moments.mem : NULL;
}
const Arena *saver_adapters(const Trainer *t) { return saver_region(t) && t->lora.n ? &t->saver->lora.state : NULL; }

static void *work(void *p) {
    Saver *s = p;
    Trainer *t = s->t;
    if (s->async) procs_unbind(); /* beside the threads that compute, not in place of one */
    CheckpointOf of = {s->async ? &s->copy.view : &t->model, s->async ? &s->lora : &t->lora, NULL, &s->state};
    if (s->shared) of.own = s->async ? &s->moments.own : &t->dist.own;
    switch (s->phase) {
    case ALONE: s->ok = checkpoint_write(t, &of, s->keep, &s->err); break;
    case FILES: s->ok = checkpoint_files(t, &of, &s->sums, &s->err); break;
    case COMMIT: s->ok = checkpoint_commit(t, &of, &s->sums, s->all, s->keep, &s->err); break;
    }
    atomic_store(&s->done, true);
    return NULL;
}
/* The work of the phase, here or in a thread; of a phase that is not this rank's: none. */
static void run(Saver *s, Phase phase) {
    sigset_t all, before;
    s->phase = phase;
    s->ok = true;
    s->err = (Err){0};
    atomic_store(&s->done, true);
    if (phase == COMMIT && !trainer_writes(s->t)) return;
    atomic_store(&s->done, false);
    if (!s->async) {
        work(s);
        return;
    }
    /* Signals are the loop's. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(&s->thread, NULL, work, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->running = !why;
    if (!why) return;
    s->ok = err_world(&s->err, "cannot start a thread: %s", strerror(why));
    atomic_store(&s->done, true);
}

/* What became of the save. */
static bool outcome(Trainer *t, Err *e) {
    Saver *s = t->saver;
    s->busy = false;
    if (s->ok) {
        t->saved = s->state.step;
        s->stood = s->state;
        s->failures = 0;
        s->lost = -1;
        watch_memory(t);
        return true;
    }
    s->lost = s->state.step;
    if (s->shared && (!s->async || s->failures)) t->comm->agreed = true;
    if (!s->async) {
        *e = s->err;
        return false;
    }
    if (++s->failures > 1)
        return err_world(e, "checkpoint of step %lld, the second that failed: %.200s", (long long)s->state.step,
                         s->err.msg);
    if (trainer_writes(t))
        progress_warn(&t->progress, "checkpoint of step %lld: %.200s; training goes on, the next save tries again",
                      (long long)s->state.step, s->err.msg);
    return true;
}

/* All ranks have done their part of the phase. */
static bool next(Trainer *t, Err *e) {
    Saver *s = t->saver;
    join(s);
    if (!s->shared) return outcome(t, e);
    if (!dist_all(t->comm, s->phase == FILES ? "files of the checkpoint" : "the checkpoint", &s->ok, &s->err, e))
        return false;
    if (!s->ok && trainer_writes(t)) run_dir_abandon(&t->dir, s->state.step);
    if (!s->ok || s->phase == COMMIT) return outcome(t, e);
    uint64_t mine[2] = {s->sums.moments.bytes, s->sums.moments.hash};
    _Static_assert(sizeof *s->all == sizeof mine, "two words");
    if (!dist_words(t->comm, "checksums of the checkpoint", mine, 2, (uint64_t *)s->all, e)) return false;
    run(s, COMMIT);
    return true;
}

bool saver_poll(Trainer *t, Err *e) {
    Saver *s = t->saver;
    if (!s || !s->busy) return true;
    bool more = !atomic_load(&s->done);
    if (s->shared && !dist_any(&t->dist, "whether the checkpoint is written", &more, 1, NULL, e)) return false;
    return more || next(t, e);
}

bool saver_wait(Trainer *t, Err *e) {
    while (t->saver && t->saver->busy)
        if (!next(t, e)) return false;
    return true;
}

void saver_end(Trainer *t) {
    Saver *s = t->saver;
    if (!s || !s->busy) return;
    join(s);
    s->busy = false;
    if (!trainer_writes(t)) return;
    if (s->ok && s->phase != FILES)
        t->saved = s->state.step;
    else
        run_dir_abandon(&t->dir, s->state.step);
}

/* Rank 0's word at the end of a save point: what is best as it has it. */
static bool tell(Trainer *t, Err *e) {
    TrainState *s = &t->state;
    struct {
        int64_t has_best, best_step;
        double best_loss;
    } o = {s->has_best, s->best_step, s->best_loss};
    if (!dist_tell(t->comm, "saving", &o, sizeof o, e)) return false;
    s->has_best = o.has_best;
    s->best_step = o.best_step;
    s->best_loss = o.best_loss;
    return true;
}

static bool begin(Trainer *t, Err *e) {
    Saver *s = t->saver;
    /* A best checkpoint that was lost is none: what stands is the measure, but for a second try at the same step. */
    if (s->lost >= 0 && s->lost != t->state.step && t->state.has_best && t->state.best_step == s->lost) {
        t->state.has_best = s->stood.has_best;
        t->state.best_loss = s->stood.best_loss;
        t->state.best_step = s->stood.best_step;
    }
    s->state = t->state;
    s->keep = checkpoint_keep(t);
    s->busy = true;
    if (s->async && trainer_writes(t)) {
        model_copy_take(&s->copy, &t->model);
        lora_copy_take(&s->lora, &t->lora);
    }
    if (!s->shared) {
        run(s, ALONE);
        return s->async || next(t, e);
    }
    if (s->async) dist_aside_take(&s->moments, &t->dist);
    s->err = (Err){0};
    s->ok = !trainer_writes(t) || checkpoint_begin(t, s->state.step, &s->err);
    if (!dist_all(t->comm, "the folder of the checkpoint", &s->ok, &s->err, e)) return false;
    if (!s->ok) return outcome(t, e);
    run(s, FILES);
    return s->async || saver_wait(t, e);
}

static bool save(Trainer *t, Err *e) {
    Saver *s = t->saver;
    if (t->saved == t->state.step || (s && s->busy && s->state.step == t->state.step)) return true;
    if (!s) {
        if (!checkpoint_save(t, e)) return false;
        watch_memory(t);
        return true;
    }
    if (!saver_wait(t, e)) return false;
    bool finite = !trainer_writes(t) || watch_finite(t, e);
    if (!(s->shared ? dist_agreed(t->comm, "finite weights", finite, e) : finite)) return false;
    return begin(t, e);
}

static bool finish(Trainer *t, Err *e) {
    for (int tries = 0; tries < 2 && t->saved != t->state.step; tries++)
        if (!save(t, e) || !saver_wait(t, e)) return false;
    CHECK(t->saved == t->state.step, "step %lld, saved %lld", (long long)t->state.step, (long long)t->saved);
    return true;
}

/* Whether this rank has a part in saving, beyond waiting for rank 0. */
static bool takes_part(const Trainer *t) { return trainer_writes(t) || t->saver; }

bool saver_save(Trainer *t, Err *e) { return (!takes_part(t) || save(t, e)) && tell(t, e); }

bool saver_finish(Trainer *t, Err *e) {
    if (takes_part(t) && !finish(t, e)) return false;
    if (!tell(t, e)) return false;
    t->saved = t->state.step;
    return true;
}
