#include "train.h"
#include "train/report/events.h"
#include "feed.h"
#include "train/save/saver.h"
#include "stages.h"
#include "train/report/watch.h"
#include "ops/signals.h"
#include "optim/schedule.h"
#include <time.h>
#include <unistd.h>

/* The one variable outside of any struct: a handler has no argument to find its own. */
static volatile sig_atomic_t signals_seen;

/* A second SIGINT or SIGTERM is somebody who does not want to wait. A second SIGHUP is none (a shell and the system
 * send one each when a terminal is lost), nor is the SIGTERM after a SIGUSR1 (of batch systems, at the limit): a
 * checkpoint may be under way. */
enum { ASKED = 1, URGED = 2 };
static void train_on_signal(int number) {
    bool urges = number == SIGINT || number == SIGTERM;
    if (urges && signals_seen & URGED) _exit(EXIT_SIGNAL);
    signals_seen |= urges ? URGED : ASKED;
}

void train_catch_signals(void) {
    signals_catch(train_on_signal, SA_RESTART);
    /* A reader of the progress lines that went away (`| head`) does not end the run. */
    signal(SIGPIPE, SIG_IGN);
    set_catch_sigbus();
}

const char *stop_name(Stop s) {
    static const char *const names[] = {"steps", "time", "signal", "accuracy"};
    return names[s];
}

static bool train_due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* A checkpoint records the data on which it was trained, so checks that they are unchanged. */
static bool train_save(Trainer *t, Err *e) { return feed_unchanged(t, e) && trainer_weights(t, e) && saver_save(t, e); }
static bool train_finish(Trainer *t, Err *e) {
    return feed_unchanged(t, e) && trainer_weights(t, e) && saver_finish(t, e);
}

/* Seconds since 1970. */
static double train_wall(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Record of a validation; the best so far is saved at once, so that `best` can point to it. */
static bool train_validate(Trainer *t, Err *e) {
    TrainRun *run = t->run;
    ValRecord v;
    char acc[96] = "", loss[32];
    if (!feed_unchanged(t, e) || !trainer_validate(t, &v, e)) return false;
    if (trainer_writes(t) && !journal_val(&run->metrics, &v, e)) return false;
    if (trainer_writes(t) && t->cfg->train.tensorboard && !events_val(&run->events, &v, train_wall(), e)) return false;
    watch_memory(t);
    bool best = !run->state.has_best || v.loss < run->state.best_loss;
    run->val = v;
    run->val_step = run->state.step;
    run->state.has_acc = v.task;
    run->state.acc = v.acc;
    if (best) {
        run->state.has_best = true;
        run->state.best_loss = v.loss;
        run->state.best_step = run->state.step;
    }
    if (v.task)
        snprintf(acc, sizeof acc, ", %.2f %% right, all of it in %.2f %% of the samples", 100 * v.acc, 100 * v.acc_all);
    progress_say(&run->progress, "step %lld  validation loss %s over %lld %s%s%s", (long long)run->state.step,
                 progress_number(loss, v.loss, 4), (long long)v.tokens, v.task ? "answers" : "tokens", acc,
                 best ? " (best)" : "");
    return !best || !t->cfg->train.keep_best || train_save(t, e);
}

/* Validates the initial weights: only a record, because no checkpoint of step 0 can be the best. */
static bool validate_first(Trainer *t, Err *e) {
    ValRecord v;
    char loss[32];
    if (!feed_unchanged(t, e) || !trainer_validate(t, &v, e)) return false;
    if (trainer_writes(t) && !journal_val(&t->run->metrics, &v, e)) return false;
    if (trainer_writes(t) && t->cfg->train.tensorboard && !events_val(&t->run->events, &v, train_wall(), e))
        return false;
    progress_say(&t->run->progress, "before step 1  validation loss %s over %lld %s", progress_number(loss, v.loss, 4),
                 (long long)v.tokens, v.task ? "answers" : "tokens");
    return true;
}

static bool train_validates(const Trainer *t) { return t->cfg->train.eval_every > 0 && feed_validates(t); }
/* The last validation answered enough. A run that stopped so stops again when it is resumed with the same settings. */
static bool train_learned(const Trainer *t) {
    double enough = t->cfg->train.stop_at_acc;
    return enough > 0 && t->run->state.has_acc && t->run->state.acc >= enough;
}

/* Work after a step, in an order in which every record is written before the checkpoint that covers it. */
static bool after_step(Trainer *t, TrainRecord *r, bool last, Err *e) {
    TrainRun *run = t->run;
    const TrainCfg *c = &t->cfg->train;
    int64_t step = run->state.step;
    bool log = train_due(c->log_every, step) || step == 1, record = (log || r->skipped) && trainer_writes(t);
    r->step = step;
    r->stage = t->name;
    r->tokens = run->state.tokens;
    r->tok_s = (double)t->work_tokens / fmax(t->work_s, 1e-9);
    r->elapsed = run->state.elapsed;
    uint64_t windows = t->feeder->windows(t);
    r->has_epoch = windows > 0;
    if (windows) r->epoch = (double)(t->first_sample + (step - t->first) * c->batch) / (double)windows;
    r->mfu = t->peak_flops > 0 ? r->tok_s * t->flops_per_token / t->peak_flops : -1;
    if (record && !journal_train(&run->metrics, r, e)) return false;
    if (record && c->tensorboard && !events_train(&run->events, r, train_wall(), e)) return false;
    char loss[32], norm[32];
    if (r->skipped)
        progress_say(&run->progress,
                     "step %lld  skipped: loss %s, %.1f deviations above the mean, gradient norm %s, %.1f",
                     (long long)step, progress_number(loss, r->loss, 4), r->loss_z,
                     progress_number(norm, r->grad_norm, 2), r->norm_z);
    Shown shown = {.step = step,
                   .loss = r->loss,
                   .lr = r->lr,
                   .grad_norm = r->grad_norm,
                   .tok_s = r->tok_s,
                   .mfu = r->mfu,
                   .val_loss = run->val.loss,
                   .has_val = run->val_step >= 0,
                   .stage = t->name,
                   .reports = r->reports,
                   .cr = r->cr,
                   .skipped = r->nskipped};
    progress_step(&run->progress, &shown, log || last);
    if (log) {
        watch_memory(t);
        t->work_s = 0;
        t->work_tokens = 0;
    }
    if (train_due(c->sample_every, step)) {
        if (!trainer_weights(t, e)) return false;
        if (trainer_writes(t) && !trainer_sample(t, e)) return false;
        watch_memory(t);
    }
    if (train_validates(t) && (last || train_due(c->eval_every, step)) && !train_validate(t, e)) return false;
    return !(last || train_due(c->save_every, step)) || train_save(t, e);
}

/* Decisions that every rank must make alike: a signal to any of them counts, and rank 0's clock. */
static bool train_agree(Trainer *t, bool *signal, bool *late, Err *e) {
    TrainRun *run = t->run;
    bool flag[2] = {signals_seen != 0, *late && trainer_writes(t)};
    double elapsed = run->before + now_seconds() - run->start;
    if (t->dist.world > 1 && !dist_any(&t->dist, "whether to stop", flag, 2, &elapsed, e)) return false;
    run->state.elapsed = elapsed;
    *signal = flag[0];
    *late = flag[1];
    return true;
}

/* The stage that t is in; *why is STOP_STEPS when it is done. */
static bool train_stage(Trainer *t, TrainRecord *r, Stop *why, Err *e) {
    TrainRun *run = t->run;
    const TrainCfg *c = &t->cfg->train;
    int64_t end = t->first + c->steps;
    double most = run->cfg->train.max_seconds;
    *why = STOP_STEPS;
    bool signal, late = false, by_time = t->cfg->optim.schedule_by == SCHEDULE_BY_TIME;
    if (run->state.step == t->first) run->state.has_acc = false; /* it is of the stage before */
    if (!train_agree(t, &signal, &late, e)) return false;
    if (run->state.step == t->first) run->state.stage_began = run->state.elapsed;
    /* Resumed where it had ended by its time, which is still all that it has. */
    if (by_time && run->state.step < run->cfg->train.steps && run->state.share >= 1 && run->before >= most)
        *why = STOP_TIME;
    while (*why == STOP_STEPS && run->state.step < end) {
        if (train_learned(t)) {
            *why = STOP_ACCURACY;
            break;
        }
        if (t->dist.world > 1 ? signal : signals_seen) {
            /* No validation: the run continues later, and then validates where an uninterrupted one does. */
            *why = STOP_SIGNAL;
            return run->state.step == 0 || train_finish(t, e);
        }
        double begin = now_seconds();
        int64_t before = run->state.tokens;
        run->state.share = by_time ? schedule_share(run->state.elapsed, run->state.stage_began, most) : 0;
        if (!saver_poll(t, e) || !trainer_step(t, r, e)) return false;
        t->work_s += now_seconds() - begin;
        t->work_tokens += run->state.tokens - before;
        bool last = run->state.step == end;
        /* The following validation and checkpoint use the weights at the end of the stage. */
        if (last) {
            if (!saver_wait(t, e) || !trainer_weights(t, e)) return false; /* a saver reads frozen weights in place */
            model_stage_end(&t->model);
            dist_stage_end(&t->dist);
        }
        /* By time the last step is one that was taken at the end of the schedule. */
        late = by_time ? run->state.share >= 1 : most > 0 && now_seconds() - run->start >= most;
        late = late && run->state.step < run->cfg->train.steps;
        if (!train_agree(t, &signal, &late, e)) return false;
        if (late) *why = STOP_TIME;
        if (!after_step(t, r, last || *why == STOP_TIME, e)) return false;
        if (*why == STOP_TIME) break;
    }
    return train_finish(t, e); /* nothing was left to do from a checkpoint elsewhere: this folder still has none */
}

static bool loop(Trainer *t, TrainRecord *r, Stop *why, Err *e) {
    if (t->cfg->train.eval_first && t->run->state.step == 0 && train_validates(t) && !validate_first(t, e))
        return false;
    for (;;) {
        if (!train_stage(t, r, why, e)) return false;
        if (*why != STOP_STEPS || t->stage + 1 == config_stages(t->run->cfg)) return true;
        if (!stages_next(t, e)) return false;
        progress_say(&t->run->progress, "stage %s: steps %lld to %lld", t->name, (long long)t->first + 1,
                     (long long)(t->first + t->cfg->train.steps));
        feed_say(t);
    }
}

bool train_loop(Trainer *t, TrainRecord *last, Stop *why, Err *e) {
    TrainRun *run = t->run;
    if (loop(t, last, why, e)) return true;
    comm_stop(run->comm);
    saver_end(t); /* of an earlier step: it may still become the newest checkpoint */
    if (e->status == EXIT_INPUT || !trainer_writes(t)) return false;
    char *good = run->saved >= 0 ? run_dir_step(&run->dir, run->saved) : NULL;
    Err first = *e;
    if (good)
        err_runtime(e, "%.180s; the last checkpoint is intact: %s", first.msg, good);
    else
        err_runtime(e, "%.220s; there is no checkpoint yet", first.msg);
    e->status = first.status;
    free(good);
    return false;
}
