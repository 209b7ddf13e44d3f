#include "train.h"
#include "events.h"
#include "feed.h"
#include "saver.h"
#include "stages.h"
#include "watch.h"
#include "../ops/signals.h"
#include "../optim/schedule.h"
#include <time.h>
#include <unistd.h>

/* The one variable outside of any struct: a handler has no argument to find its own. */
static volatile sig_atomic_t signals_seen;

/* A second SIGINT or SIGTERM is somebody who does not want to wait. A second SIGHUP is none (a shell and the system send
 * one each when a terminal is lost), nor is the SIGTERM after a SIGUSR1 (of batch systems, at the limit): a checkpoint
 * may be under way. */
enum { ASKED = 1, URGED = 2 };
static void on_signal(int number) {
    bool urges = number == SIGINT || number == SIGTERM;
    if (urges && signals_seen & URGED) _exit(EXIT_SIGNAL);
    signals_seen |= urges ? URGED : ASKED;
}

void train_catch_signals(void) {
    signals_catch(on_signal, SA_RESTART);
    /* A reader of the progress lines that went away (`| head`) does not end the run. */
    signal(SIGPIPE, SIG_IGN);
    set_catch_sigbus();
}

const char *stop_name(Stop s) {
    static const char *const names[] = {"steps", "time", "signal", "accuracy"};
    return names[s];
}

static bool due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* A checkpoint says what data it was trained on: they must still be those. */
static bool save(Trainer *t, Err *e) { return feed_unchanged(t, e) && dist_weights(&t->dist, e) && saver_save(t, e); }
static bool finish(Trainer *t, Err *e) {
    return feed_unchanged(t, e) && dist_weights(&t->dist, e) && saver_finish(t, e);
}

/* Seconds since 1970. */
static double wall(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Record of a validation; the best so far is saved at once, so that `best` can point to it. */
static bool validate(Trainer *t, Err *e) {
    ValRecord v;
    char acc[96] = "", loss[32];
    if (!feed_unchanged(t, e) || !trainer_validate(t, &v, e)) return false;
    if (trainer_writes(t) && !journal_val(&t->metrics, &v, e)) return false;
    if (trainer_writes(t) && t->cfg->train.tensorboard && !events_val(&t->events, &v, wall(), e)) return false;
    watch_memory(t);
    bool best = !t->state.has_best || v.loss < t->state.best_loss;
    t->val = v;
    t->val_step = t->state.step;
    t->state.has_acc = v.task;
    t->state.acc = v.acc;
    if (best) {
        t->state.has_best = true;
        t->state.best_loss = v.loss;
        t->state.best_step = t->state.step;
    }
    if (v.task)
        snprintf(acc, sizeof acc, ", %.2f %% right, all of it in %.2f %% of the samples", 100 * v.acc, 100 * v.acc_all);
    progress_say(&t->progress, "step %lld  validation loss %s over %lld %s%s%s", (long long)t->state.step,
                 progress_number(loss, v.loss, 4), (long long)v.tokens, v.task ? "answers" : "tokens", acc,
                 best ? " (best)" : "");
    return !best || !t->cfg->train.keep_best || save(t, e);
}

/* What the weights that the run starts from are worth: a record alone, as no checkpoint of step 0 can be the best. */
static bool validate_first(Trainer *t, Err *e) {
    ValRecord v;
    char loss[32];
    if (!feed_unchanged(t, e) || !trainer_validate(t, &v, e)) return false;
    if (trainer_writes(t) && !journal_val(&t->metrics, &v, e)) return false;
    if (trainer_writes(t) && t->cfg->train.tensorboard && !events_val(&t->events, &v, wall(), e)) return false;
    progress_say(&t->progress, "before step 1  validation loss %s over %lld %s", progress_number(loss, v.loss, 4),
                 (long long)v.tokens, v.task ? "answers" : "tokens");
    return true;
}

static bool validates(const Trainer *t) { return t->cfg->train.eval_every > 0 && feed_validates(t); }
/* The last validation answered enough. A run that stopped so stops again when it is resumed with the same settings. */
static bool learned(const Trainer *t) {
    double enough = t->cfg->train.stop_at_acc;
    return enough > 0 && t->state.has_acc && t->state.acc >= enough;
}

/* What follows a step, in an order that lets every record stand before the checkpoint that covers it. */
static bool after_step(Trainer *t, TrainRecord *r, bool last, Err *e) {
    const TrainCfg *c = &t->cfg->train;
    int64_t step = t->state.step;
    bool log = due(c->log_every, step) || step == 1, record = (log || r->skipped) && trainer_writes(t);
    r->step = step;
    r->stage = t->name;
    r->tokens = t->state.tokens;
    r->tok_s = (double)t->work_tokens / fmax(t->work_s, 1e-9);
    r->elapsed = t->state.elapsed;
    uint64_t windows = feed_windows(t);
    r->has_epoch = windows > 0;
    if (windows) r->epoch = (double)(t->first_sample + (step - t->first) * c->batch) / (double)windows;
    r->mfu = t->peak_flops > 0 ? r->tok_s * t->flops_per_token / t->peak_flops : -1;
    if (record && !journal_train(&t->metrics, r, e)) return false;
    if (record && c->tensorboard && !events_train(&t->events, r, wall(), e)) return false;
    char loss[32], norm[32];
    if (r->skipped)
        progress_say(&t->progress,
                     "step %lld  left out: loss %s, %.1f deviations above the mean, gradient norm %s, %.1f",
                     (long long)step, progress_number(loss, r->loss, 4), r->loss_z,
                     progress_number(norm, r->grad_norm, 2), r->norm_z);
    Shown shown = {.step = step,
                   .loss = r->loss,
                   .lr = r->lr,
                   .grad_norm = r->grad_norm,
                   .tok_s = r->tok_s,
                   .mfu = r->mfu,
                   .val_loss = t->val.loss,
                   .has_val = t->val_step >= 0,
                   .stage = t->name,
                   .reports = r->reports,
                   .cr = r->cr,
                   .skipped = r->nskipped};
    progress_step(&t->progress, &shown, log || last);
    if (log) {
        watch_memory(t);
        t->work_s = 0;
        t->work_tokens = 0;
    }
    if (due(c->sample_every, step)) {
        if (!dist_weights(&t->dist, e)) return false;
        if (trainer_writes(t) && !trainer_sample(t, e)) return false;
        watch_memory(t);
    }
    if (validates(t) && (last || due(c->eval_every, step)) && !validate(t, e)) return false;
    return !(last || due(c->save_every, step)) || save(t, e);
}

/* What every rank must do or none: a signal to any of them counts, and the first one's clock. */
static bool agree(Trainer *t, bool *signal, bool *late, Err *e) {
    bool flag[2] = {signals_seen != 0, *late && trainer_writes(t)};
    double elapsed = t->before + now_seconds() - t->start;
    if (t->dist.world > 1 && !dist_any(&t->dist, "whether to stop", flag, 2, &elapsed, e)) return false;
    t->state.elapsed = elapsed;
    *signal = flag[0];
    *late = flag[1];
    return true;
}

/* The stage that t is in; *why is STOP_STEPS when it is done. */
static bool stage(Trainer *t, TrainRecord *r, Stop *why, Err *e) {
    const TrainCfg *c = &t->cfg->train;
    int64_t end = t->first + c->steps;
    double most = t->run->train.max_seconds;
    *why = STOP_STEPS;
    bool signal, late = false, by_time = t->cfg->optim.schedule_by == SCHEDULE_BY_TIME;
    if (t->state.step == t->first) t->state.has_acc = false; /* it is of the stage before */
    if (!agree(t, &signal, &late, e)) return false;
    if (t->state.step == t->first) t->state.stage_began = t->state.elapsed;
    /* Resumed where it had ended by its time, which is still all that it has. */
    if (by_time && t->state.step < t->run->train.steps && t->state.share >= 1 && t->before >= most) *why = STOP_TIME;
    while (*why == STOP_STEPS && t->state.step < end) {
        if (learned(t)) {
            *why = STOP_ACCURACY;
            break;
        }
        if (t->dist.world > 1 ? signal : signals_seen) {
            /* No validation: the run goes on later, and then validates where an uninterrupted one does. */
            *why = STOP_SIGNAL;
            return t->state.step == 0 || finish(t, e);
        }
        double begin = now_seconds();
        int64_t before = t->state.tokens;
        t->state.share = by_time ? schedule_share(t->state.elapsed, t->state.stage_began, most) : 0;
        if (!saver_poll(t, e) || !trainer_step(t, r, e)) return false;
        t->work_s += now_seconds() - begin;
        t->work_tokens += t->state.tokens - before;
        bool last = t->state.step == end;
        /* What follows, and what is saved, is of the weights as the stage leaves them. */
        if (last) {
            if (!saver_wait(t, e) || !dist_weights(&t->dist, e))
                return false; /* a saver reads frozen weights in place */
            model_stage_end(&t->model);
            dist_stage_end(&t->dist);
        }
        /* By time the last step is one that was taken at the end of the schedule. */
        late = by_time ? t->state.share >= 1 : most > 0 && now_seconds() - t->start >= most;
        late = late && t->state.step < t->run->train.steps;
        if (!agree(t, &signal, &late, e)) return false;
        if (late) *why = STOP_TIME;
        if (!after_step(t, r, last || *why == STOP_TIME, e)) return false;
        if (*why == STOP_TIME) break;
    }
    return finish(t, e); /* nothing was left to do from a checkpoint elsewhere: this folder still has none */
}

static bool loop(Trainer *t, TrainRecord *r, Stop *why, Err *e) {
    if (t->cfg->train.eval_first && t->state.step == 0 && validates(t) && !validate_first(t, e)) return false;
    for (;;) {
        if (!stage(t, r, why, e)) return false;
        if (*why != STOP_STEPS || t->stage + 1 == config_stages(t->run)) return true;
        if (!stages_next(t, e)) return false;
        progress_say(&t->progress, "stage %s: steps %lld to %lld", t->name, (long long)t->first + 1,
                     (long long)(t->first + t->cfg->train.steps));
        feed_say(t);
    }
}

bool train_loop(Trainer *t, TrainRecord *last, Stop *why, Err *e) {
    if (loop(t, last, why, e)) return true;
    comm_stop(t->comm);
    saver_end(t); /* of an earlier step: it may still become the newest checkpoint */
    if (e->status == EXIT_INPUT || !trainer_writes(t)) return false;
    char *good = t->saved >= 0 ? run_dir_step(&t->dir, t->saved) : NULL;
    Err first = *e;
    if (good)
        err_world(e, "%.180s; the last checkpoint is intact: %s", first.msg, good);
    else
        err_world(e, "%.220s; there is no checkpoint yet", first.msg);
    e->status = first.status;
    free(good);
    return false;
}
