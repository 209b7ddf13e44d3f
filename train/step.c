/* step.c: what the loop in train.c is made of: a step, a validation, a sample. */
#include "feed.h"
#include "trainer.h"
#include "infer/generate.h"
#include "ops/shadow.h"
#include "ops/host.h"
#include "optim/clip.h"
#include "optim/schedule.h"

/* Adds up the losses of the micro-batch: its sum of nll, in f64 and in order of its rows, and the decisions counted
 * since the last one. A training pass on a GPU leaves its losses to losses_read. */
static void part_take(Trainer *t, const TrainLosses *l, double part[PARTS]) {
    Compression *c = &t->compression;
    memset(part, 0, PARTS * sizeof *part);
    for (int i = 0; l && i < t->loader.batch.N; i++) part[PART_NLL] += t->nll[i];
    part[PART_MERGED] = c->sum;
    part[PART_DECIDED] = c->count;
    part[PART_STAT_LOSS] = c->loss;
    c->sum = c->count = c->loss = 0;
    if (!l) return;
    part[PART_KL] = l->kl;
    part[PART_RKL] = l->rkl;
    part[PART_ATTENTION] = l->attention;
    part[PART_HIDDEN] = l->hidden;
}
static void parts_give(Trainer *t, const double sum[PARTS], TrainLosses *l) {
    l->kl = sum[PART_KL];
    l->rkl = sum[PART_RKL];
    l->attention = sum[PART_ATTENTION];
    l->hidden = sum[PART_HIDDEN];
    t->compression.sum = sum[PART_MERGED];
    t->compression.count = sum[PART_DECIDED];
    t->compression.loss = sum[PART_STAT_LOSS];
}

/* Decides whether to skip the step; false if it would be one too many. */
static bool step_skips(Trainer *t, TrainRecord *r, Err *e) {
    const TrainCfg *c = &t->cfg->train;
    Skips *s = &t->run->state.skip;
    r->skipped = false;
    r->loss_z = r->norm_z = 0;
    if (c->skip_z > 0) {
        skip_scores(s, c->skip_window, r->loss, r->grad_norm, &r->loss_z, &r->norm_z);
        r->skipped = r->loss_z > c->skip_z || r->norm_z > c->skip_z;
        if (!r->skipped) skip_accepted(s, c->skip_window, r->loss, r->grad_norm);
    }
    if (r->skipped && s->row + 1 >= c->skip_most)
        return err_diverged(e,
                            "train.skip_most: step %lld would be skipped, number %d in a row: loss %g, %.1f deviations "
                            "above the mean, gradient norm %g, %.1f",
                            (long long)t->run->state.step + 1, s->row + 1, r->loss, r->loss_z, r->grad_norm, r->norm_z);
    if (r->skipped) skip_left_out(s);
    r->nskipped = s->skipped;
    return true;
}

/* The optimizer's next step, of a stage of which `done` steps are done. */
static Update update_of(const Trainer *t, int64_t done) {
    const OptimCfg *o = &t->cfg->optim;
    const TrainState *s = &t->run->state;
    const ScheduleSteps len = config_schedule(t->cfg);
    const ScheduleCfg schedule = {o->lr, o->min_lr, len.warmup, len.steps, len.decay};
    const Optimizer *by = optimizer_of(o);
    Update u = {.how = {.set = o, .seed = t->work.seed, .skipped = s->skip.skipped},
                .lr = schedules[o->schedule].lr(&schedule, schedule_position(&schedule, done, s->share)),
                .number = s->step + 1 - s->skip.skipped,
                .scale = 1};
    const double counts = by->weight ? by->weight(o, u.lr, u.number) : 0;
    u.averaged = s->averaged + counts;
    if (u.averaged > 0) u.how.share = counts / u.averaged;
    if (t->stepper->on_device) u.how.square = &t->losses.at->square, u.how.most = o->clip;
    return u;
}

/* Weights become those that steps are taken at, or those that are evaluated, of an optimizer for which these differ. */
static bool step_weights(Trainer *t, bool stepping, Err *e) {
    if (t->stepping == stepping || !optimizer_of(&t->cfg->optim)->other) return true;
    Run run = run_make(t->dev, &t->work.scratch);
    const bool begin = stepping && t->run->state.step == t->run->state.skip.skipped;
    t->stepping = stepping;
    if (!t->lora.n) return dist_exchange(&t->dist, &run, begin, e);
    if (begin) optimizer_begin(&run, &t->adapters);
    optimizer_exchange(&run, &t->adapters);
    return true;
}
/* Makes the weights complete as they are evaluated, on every rank, and their bf16 copies anew, outside of captured
 * passes. */
bool trainer_weights(Trainer *t, Err *e) {
    if (!step_weights(t, false, e) || !dist_weights(&t->dist, e)) return false;
    shadow_refresh(t->dev);
    return true;
}

/* This rank's k-th micro-batch of the step whose samples begin at `sample` and have `count` targets. */
static bool step_batch(Trainer *t, uint64_t sample, int k, int64_t count, Err *e) {
    const Dist *d = &t->dist;
    const Loader *l = &t->loader;
    const int b = t->cfg->train.micro_batch;
    const uint64_t at = (uint64_t)(k * d->world + d->rank) * (uint64_t)b;
    if (!t->feeder->train(t, sample + at, b, e)) return false;
    for (int i = 0; i < l->batch.N; i++) t->g[i] = l->tgt[i] < 0 ? 0 : (real)(1.0 / (double)count);
    return true;
}

/* Sets the step's inputs of the model besides its batches. */
static void model_begins(Trainer *t, int64_t done) {
    const TrainCfg *c = &t->cfg->train;
    t->work.step = (uint64_t)t->run->state.step;
    t->work.progress = fmax((double)done / (double)c->steps, t->run->state.share);
    compression_begin(&t->compression, &c->compression, t->work.progress, c->batch);
    t->work.mode = t->compression.both ? RUN_COUNT_STILL : 0;
    t->work.stat_loss = compression_stat;
    t->work.stat_ctx = &t->compression;
    shadow_refresh(t->dev); /* what else than a step changed weights, such as a checkpoint */
}

/* The step's losses, over all ranks, and its norm. EXIT_DIVERGED: one of them is not finite. */
static bool step_record(Trainer *t, const Update *u, int64_t count, TrainRecord *r, Err *e) {
    Dist *d = &t->dist;
    double sum[PARTS] = {0};
    if (!dist_sums(d, "losses", d->micros * d->world, sum, e)) return false;
    r->parts = (TrainLosses){0};
    parts_give(t, sum, &r->parts);
    r->loss = sum[PART_NLL] / (double)count;
    if (t->teacher.on) r->loss = teacher_loss(&t->teacher, &r->parts, r->loss, count);
    r->lr = u->lr;
    r->grad_norm = u->norm;
    r->reports = compression_achieved(&t->compression, &r->cr);
    r->cr_loss = t->compression.loss;
    return (isfinite(r->loss) && isfinite(r->cr_loss) && isfinite(u->norm)) ||
           err_diverged(e, "training diverged at step %lld: loss %g, gradient norm %g, lr %g",
                        (long long)t->run->state.step + 1, r->loss, u->norm, r->lr);
}

bool trainer_step(Trainer *t, TrainRecord *r, Err *e) {
    const TrainCfg *c = &t->cfg->train;
    TrainState *state = &t->run->state;
    Stepper *s = t->stepper;
    Dist *d = &t->dist;
    const int64_t done = state->step - t->first; /* of the stage */
    const uint64_t sample = (uint64_t)(t->first_sample + done * c->batch);
    const int64_t count = t->feeder->targets(t, sample, c->batch);
    CHECK(count > 0, "no targets from sample %llu on", (unsigned long long)sample);
    Update u = update_of(t, done);
    if (!step_weights(t, true, e)) return false;
    model_begins(t, done);

    s->begin(s);
    losses_begin(&t->losses);
    for (int k = 0; k < d->micros; k++) {
        TrainLosses losses = {0};
        if (!step_batch(t, sample, k, count, e)) return false;
        if (state->step == t->run->progress.first) progress_first(&t->run->progress, k, d->micros);
        dist_micro(d, k);
        s->micro(s, &losses); /* forward and backward */
        losses_aside(t);
        part_take(t, device_apart(t->dev) ? NULL : &losses, dist_part(d, k));
    }
    if (!s->reduce(s, e) || !s->norm(s, &u, e)) return false;
    if (s->on_device && !s->apply(s, &u, e)) return false;
    /* If the host decides, the norm is known already, so a GPU has also finished the losses. */
    double square = 0;
    losses_read(t, s->on_device ? &square : NULL);
    if (s->on_device) u.norm = sqrt(square);
    u.scale = clip_scale(u.norm, t->cfg->optim.clip).scale;
    if (!step_record(t, &u, count, r, e) || !step_skips(t, r, e)) return false;
    if (!s->on_device && !r->skipped && !s->apply(s, &u, e)) return false;
    if (!r->skipped) state->averaged = u.averaged;
    state->step++;
    state->tokens += (int64_t)c->batch * t->cfg->data.seq_len;
    const int64_t every = t->run->cfg->dist.check_every;
    return !every || state->step % every || (dist_weights(d, e) && dist_check(d, state->step, e));
}

bool trainer_validate(Trainer *t, ValRecord *v, Err *e) {
    Loader *l = &t->loader;
    Dist *d = &t->dist;
    const size_t each = (size_t)t->cfg->train.micro_batch, samples = (size_t)t->feeder->val_count(t),
                 batches = (samples + each - 1) / each, W = (size_t)d->world, round = W * (size_t)d->micros;
    double sum[PARTS] = {0};
    TrainLosses none = {0};
    *v = (ValRecord){.step = t->run->state.step, .stage = t->name, .task = t->hit != NULL};
    if (!trainer_weights(t, e)) return false;
    compression_begin(&t->compression, NULL, 1, 1);
    t->work.stat_loss = compression_stat;
    t->work.stat_ctx = &t->compression;
    for (size_t from = 0; from < batches; from += round) {
        size_t n = zmin(round, batches - from);
        for (size_t k = 0; k < (size_t)d->micros; k++) {
            size_t at = (from + k * W + (size_t)d->rank) * each;
            if (k * W + (size_t)d->rank >= n) break;
            int b = (int)zmin(each, samples - at);
            if (!t->feeder->val(t, at, b, e)) return false;
            model_score(&t->model, &t->work, &l->batch, l->tok, l->tgt, t->nll, t->hit);
            double *part = dist_part(d, (int)k);
            part_take(t, &none, part);
            for (int s = 0; s < b; s++) {
                int asked = 0, hits = 0;
                for (int i = l->batch.off[s]; i < l->batch.off[s + 1]; i++) {
                    asked += l->tgt[i] >= 0;
                    hits += t->hit && t->hit[i];
                }
                part[PART_TOKENS] += asked;
                part[PART_RIGHT] += hits;
                part[PART_WHOLE] += hits == asked;
            }
        }
        if (!dist_sums(d, "validation", (int)n, sum, e)) return false;
    }
    parts_give(t, sum, &none);
    v->tokens = (int64_t)sum[PART_TOKENS];
    v->loss = sum[PART_NLL] / sum[PART_TOKENS];
    v->reports = compression_achieved(&t->compression, &v->cr);
    v->acc = sum[PART_RIGHT] / sum[PART_TOKENS];
    v->acc_all = sum[PART_WHOLE] / (double)samples;
    if (!isfinite(v->loss))
        return err_diverged(e, "training diverged: validation loss %g after step %lld", v->loss,
                            (long long)t->run->state.step);
    return true;
}

bool trainer_sample(Trainer *t, Err *e) {
    const char *prompt = t->cfg->train.sample_prompt;
    int n = (int)strlen(prompt), end[2];
    Ids ids = {0};
    if (!feed_prompt(t, prompt, &ids, e)) {
        ids_free(&ids);
        return false;
    }
    Sampler s = sampler_default();
    s.temperature = 0.8;
    s.seed = rng_mix(rng_name((uint64_t)t->cfg->run.seed, "samples"), (uint64_t)t->run->state.step);
    GenOpts o = {.sampler = s, .max_new = t->cfg->train.sample_tokens, .neos = feed_ends(t, end), .eos = end};
    Generation g = {.prompt = ids.id, .nprompt = (int)ids.n};
    lora_reads(&t->lora, true);
    bool ok = generate(&t->session, &t->tok, &o, 1, &g, e);
    lora_reads(&t->lora, false);
    if (ok) {
        char *text = xcalloc((size_t)n + g.text.n + 1, 1);
        memcpy(text, prompt, (size_t)n);
        if (g.text.n) memcpy(text + n, g.text.bytes, g.text.n);
        ok = journal_sample(&t->run->sample_file, t->run->state.step, prompt, text, (size_t)n + g.text.n, e);
        free(text);
    }
    generation_free(&g);
    ids_free(&ids);
    return ok;
}
