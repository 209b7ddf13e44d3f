#include "saver.h"
#include "ops/procs.h"
#include "model/copy.h"
#include "checkpoint.h"
#include "train/report/watch.h"
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
    StateCopy optim;
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
    if ((s->shared || trainer_writes(t)) &&
        !state_copy_open(&s->optim, trainer_state(t), trainer_state_memory(t), t->dry, e))
        return false;
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

static void saver_join(Saver *s) {
    if (s->running) CHECK(!pthread_join(s->thread, NULL), "a thread of our own");
    s->running = false;
}

void saver_close(Trainer *t) {
    Saver *s = t->saver;
    if (!s) return;
    saver_join(s);
    if (s->copy.view.cfg.d_model) model_copy_close(&s->copy);
    lora_close(&s->lora);
    state_copy_close(&s->optim);
    free(s->all);
    free(s);
    t->saver = NULL;
}

void saver_start(Trainer *t) {
    if (t->saver) t->saver->stood = t->run->state;
}

const Arena *saver_region(const Trainer *t) {
    return t->saver && t->saver->async && trainer_writes(t) ? &t->saver->copy.mem : NULL;
}
const Arena *saver_state(const Trainer *t) {
    return t->saver && t->saver->async && (t->saver->shared || trainer_writes(t)) ? &t->saver->optim.mem : NULL;
}
void saver_regions(const Trainer *t, Regions *r) {
    const Saver *s = t->saver;
    if (!s || !s->async) return;
    if (trainer_writes(t)) regions_add(r, "checkpoint_copy", &s->copy.mem, REGION_HOST);
    if (saver_state(t)) regions_add(r, s->shared ? "moments_copy" : "checkpoint_copy", saver_state(t), REGION_HOST);
    if (trainer_writes(t) && t->lora.n) regions_add(r, "adapter_copy", &s->lora.state, REGION_HOST);
}

static void *saver_work(void *p) {
    Saver *s = p;
    Trainer *t = s->t;
    if (s->async) procs_unbind(); /* in addition to the threads that compute, not instead of one */
    CheckpointOf of = {s->async ? &s->copy.view : &t->model, s->async ? &s->lora : &t->lora,
                       s->async ? &s->optim.p : trainer_state(t), &s->state};
    switch (s->phase) {
    case ALONE: s->ok = checkpoint_write(t, &of, s->keep, &s->err); break;
    case FILES: s->ok = checkpoint_files(t, &of, &s->sums, &s->err); break;
    case COMMIT: s->ok = checkpoint_commit(t, &of, &s->sums, s->all, s->keep, &s->err); break;
    }
    atomic_store(&s->done, true);
    return NULL;
}
/* The work of the phase, here or in a thread; of a phase that is not this rank's: none. */
static void saver_run(Saver *s, Phase phase) {
    sigset_t all, before;
    s->phase = phase;
    s->ok = true;
    s->err = (Err){0};
    atomic_store(&s->done, true);
    if (phase == COMMIT && !trainer_writes(s->t)) return;
    atomic_store(&s->done, false);
    if (!s->async) {
        saver_work(s);
        return;
    }
    /* Signals are the loop's. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(&s->thread, NULL, saver_work, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->running = !why;
    if (!why) return;
    s->ok = err_runtime(&s->err, "cannot start a thread: %s", strerror(why));
    atomic_store(&s->done, true);
}

/* Handles the outcome of the save. */
static bool saver_outcome(Trainer *t, Err *e) {
    TrainRun *run = t->run;
    Saver *s = t->saver;
    s->busy = false;
    if (s->ok) {
        run->saved = s->state.step;
        s->stood = s->state;
        s->failures = 0;
        s->lost = -1;
        watch_memory(t);
        return true;
    }
    s->lost = s->state.step;
    if (s->shared && (!s->async || s->failures)) run->comm->agreed = true;
    if (!s->async) {
        *e = s->err;
        return false;
    }
    if (++s->failures > 1)
        return err_runtime(e, "checkpoint of step %lld failed again: %.200s", (long long)s->state.step, s->err.msg);
    if (trainer_writes(t))
        progress_warn(&run->progress, "checkpoint of step %lld: %.200s; training continues, the next save tries again",
                      (long long)s->state.step, s->err.msg);
    return true;
}

/* All ranks have done their part of the phase. */
static bool saver_next(Trainer *t, Err *e) {
    Saver *s = t->saver;
    saver_join(s);
    if (!s->shared) return saver_outcome(t, e);
    if (!dist_all(t->run->comm, s->phase == FILES ? "files of the checkpoint" : "the checkpoint", &s->ok, &s->err, e))
        return false;
    if (!s->ok && trainer_writes(t)) run_dir_abandon(&t->run->dir, s->state.step);
    if (!s->ok || s->phase == COMMIT) return saver_outcome(t, e);
    uint64_t mine[2] = {s->sums.moments.bytes, s->sums.moments.hash};
    _Static_assert(sizeof *s->all == sizeof mine, "two words");
    if (!dist_words(t->run->comm, "checksums of the checkpoint", mine, 2, (uint64_t *)s->all, e)) return false;
    saver_run(s, COMMIT);
    return true;
}

bool saver_poll(Trainer *t, Err *e) {
    Saver *s = t->saver;
    if (!s || !s->busy) return true;
    bool more = !atomic_load(&s->done);
    if (s->shared && !dist_any(&t->dist, "whether the checkpoint is written", &more, 1, NULL, e)) return false;
    return more || saver_next(t, e);
}

bool saver_wait(Trainer *t, Err *e) {
    while (t->saver && t->saver->busy)
        if (!saver_next(t, e)) return false;
    return true;
}

void saver_end(Trainer *t) {
    Saver *s = t->saver;
    if (!s || !s->busy) return;
    saver_join(s);
    s->busy = false;
    if (!trainer_writes(t)) return;
    if (s->ok && s->phase != FILES)
        t->run->saved = s->state.step;
    else
        run_dir_abandon(&t->run->dir, s->state.step);
}

/* Rank 0 sends its best loss at the end of a save point. */
static bool saver_tell(Trainer *t, Err *e) {
    TrainState *s = &t->run->state;
    struct {
        int64_t has_best, best_step;
        double best_loss;
    } o = {s->has_best, s->best_step, s->best_loss};
    if (!dist_tell(t->run->comm, "saving", &o, sizeof o, e)) return false;
    s->has_best = o.has_best;
    s->best_step = o.best_step;
    s->best_loss = o.best_loss;
    return true;
}

static bool saver_begin(Trainer *t, Err *e) {
    TrainRun *run = t->run;
    Saver *s = t->saver;
    /* A best checkpoint that was lost does not count: the links on disk decide, except in a second try at the same
     * step. */
    if (s->lost >= 0 && s->lost != run->state.step && run->state.has_best && run->state.best_step == s->lost) {
        run->state.has_best = s->stood.has_best;
        run->state.best_loss = s->stood.best_loss;
        run->state.best_step = s->stood.best_step;
    }
    s->state = run->state;
    s->keep = checkpoint_keep(t);
    s->busy = true;
    if (s->async && trainer_writes(t)) {
        model_copy_take(&s->copy, &t->model);
        lora_copy_take(&s->lora, &t->lora);
    }
    if (saver_state(t)) state_copy_take(&s->optim, trainer_state(t), trainer_state_memory(t), t->dev);
    if (!s->shared) {
        saver_run(s, ALONE);
        return s->async || saver_next(t, e);
    }
    s->err = (Err){0};
    s->ok = !trainer_writes(t) || checkpoint_begin(t, s->state.step, &s->err);
    if (!dist_all(run->comm, "the folder of the checkpoint", &s->ok, &s->err, e)) return false;
    if (!s->ok) return saver_outcome(t, e);
    saver_run(s, FILES);
    return s->async || saver_wait(t, e);
}

static bool save(Trainer *t, Err *e) {
    TrainRun *run = t->run;
    Saver *s = t->saver;
    if (run->saved == run->state.step || (s && s->busy && s->state.step == run->state.step)) return true;
    if (!s) {
        if (!checkpoint_save(t, e)) return false;
        watch_memory(t);
        return true;
    }
    if (!saver_wait(t, e)) return false;
    bool finite = !trainer_writes(t) || watch_finite(t, e);
    if (!(s->shared ? dist_agreed(run->comm, "finite weights", finite, e) : finite)) return false;
    return saver_begin(t, e);
}

static bool finish(Trainer *t, Err *e) {
    for (int tries = 0; tries < 2 && t->run->saved != t->run->state.step; tries++)
        if (!save(t, e) || !saver_wait(t, e)) return false;
    CHECK(t->run->saved == t->run->state.step, "step %lld, saved %lld", (long long)t->run->state.step,
          (long long)t->run->saved);
    return true;
}

/* True if this rank takes part in saving, beyond waiting for rank 0. */
static bool takes_part(const Trainer *t) { return trainer_writes(t) || t->saver; }

bool saver_save(Trainer *t, Err *e) { return (!takes_part(t) || save(t, e)) && saver_tell(t, e); }

bool saver_finish(Trainer *t, Err *e) {
    if (takes_part(t) && !finish(t, e)) return false;
    if (!saver_tell(t, e)) return false;
    t->run->saved = t->run->state.step;
    return true;
}
