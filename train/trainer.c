#include "feed.h"
#include "freeze.h"
#include "record.h"
#include "saver.h"
#include "watch.h"
#include "../ops/text.h"
#include "../infer/bench.h"
#include "../infer/generate.h"
#include "../model/cli.h"
#include "../model/cost.h"
#include "../model/hf.h"
#include "../model/peft.h"
#include "../optim/clip.h"
#include "../optim/schedule.h"
#include "../optim/step.h"
#include "../ops/gpus.h"
#include "../ops/half.h"
#include "../ops/host.h"
#include "../ops/isa.h"

/* ---- opening --------------------------------------------------------------------------------------------------------
 */

static void rows_take(Trainer *t) {
    size_t n = (size_t)t->cfg->train.micro_batch * (size_t)t->cfg->data.seq_len;
    t->g = arena_take(&t->rows, n * sizeof *t->g, "g");
    t->nll = arena_take(&t->rows, n * sizeof *t->nll, "nll");
    if (t->cfg->data.task.kind) t->hit = arena_take(&t->rows, n * sizeof *t->hit, "hit");
    losses_take(t);
}

static bool buffers_open(Trainer *t, Err *e) {
    rows_take(t);
    if (!losses_open(t, e)) return false;
    if (t->dry) return true;
    return arena_open(&t->rows, "losses", t->rows.peak, false, e) && (rows_take(t), true) && feed_open_loader(t, e);
}

/* Samples run through a session of one sequence that stands during the whole run, so that no step allocates. */
static bool samples_open(Trainer *t, Err *e) {
    const TrainCfg *c = &t->cfg->train;
    t->samples = c->sample_every > 0;
    if (!t->samples) return true;
    Ids ids = {0};
    bool fits = tokenizer_encode(&t->tok, c->sample_prompt, strlen(c->sample_prompt), 0, &ids, e);
    int prompt = (int)ids.n + 1, room = t->cfg->model.max_positions;
    ids_free(&ids);
    if (!fits) return false;
    if (prompt >= room)
        return err_input(e, "train.sample_prompt: %d tokens leave no room in model.max_positions, %d", prompt - 1,
                         room);
    if (!trainer_writes(t)) {
        t->samples = false;
        return true;
    }
    SessionOpts o = {.nseq = 1,
                     .max_tokens = imin(room, prompt + c->sample_tokens),
                     .chunk = imin(prompt, CHUNK_ROWS),
                     .document = -1};
    if (!t->dry) return session_open(&t->session, &t->model, o, e);
    Cache cache;
    if (!model_cache_open(&t->model, &cache, o.nseq, o.max_tokens, o.chunk, o.page_rows, true, e)) return false;
    bool ok = model_extend_reserve(&t->model, &cache, o.chunk, 1, 1, e);
    t->cache_size.peak = cache.mem.peak;
    kv_close(&cache);
    return ok;
}

/* All of the model's tensors; those that are not trained have no moments. */
static void params_collect(Params *p, Model *m) {
    dist_params(p, m);
    freeze_mark(p, m);
    params_check(p, m->opts.second);
}
static void adapters_collect(Params *p, const Model *m, Lora *l) {
    for (int role = 0; l->n && role < PARAM_ROLES; role++) {
        Fields f = params_visitor(p, (ParamRole)role);
        lora_fields(l, (ParamRole)role, &f);
    }
    params_check(p, m->opts.second);
}

static OptimizerCfg optimizer_cfg(const OptimCfg *o, uint64_t seed) {
    return (OptimizerCfg){.muon = o->kind == OPTIM_MUON,
                          .adamw = {o->beta1, o->beta2, o->eps, o->weight_decay, seed, o->balance_rate},
                          .with = {.seed = seed,
                                   .momentum = o->muon_momentum,
                                   .decay = o->weight_decay,
                                   .scale = o->muon_scale,
                                   .nesterov = o->muon_nesterov,
                                   .steps = o->muon_steps}};
}
/* The scratch of clipping and of the optimizer; of adapters, which are declared here, their sizes, too. */
static void measure_step(Model *m, Run *r, void *trainer) {
    Trainer *t = trainer;
    OptimizerCfg c = optimizer_cfg(&t->cfg->optim, 0);
    Params p = {0};
    lora_declare(&t->lora, m, &t->cfg->lora);
    if (t->lora.n)
        adapters_collect(&p, m, &t->lora);
    else
        params_collect(&p, m);
    /* With the moments spread over ranks sums are of parts of a tensor, and before a checkpoint of all of it. */
    bool parts = comm_live(t->comm) && t->run->dist.stage;
    for (int i = 0; parts && i < p.n; i++)
        if (!p.p[i].frozen) r->ops->sumsq(r, p.p[i].t[PARAM_WEIGHT]);
    if (!parts) clip_norm(r, &p, 0);
    optimizer_step(r, &p, &c, 0, 1, 1);
    params_free(&p);
}

/* `auto` becomes what it stands for here, in all of the run, whose settings a checkpoint keeps. */
static bool dtype_choose(Trainer *t, Err *e) {
    int *own = &t->cfg->train.dtype;
    if (*own == DTYPE_AUTO) {
        int choice[2] = {device_bf16_pays(t->dev) ? DTYPE_BF16 : DTYPE_F32, 0};
        /* Processors may differ between ranks: the first one's counts. */
        if (t->comm && t->comm->ops && !dist_tell(t->comm, "train.dtype", choice, sizeof choice, e)) return false;
        *own = choice[0];
        config_dtype(t->run, *own);
    }
    return (*own == DTYPE_F32 || device_bf16(t->dev, true, e)) &&
           device_attention(t->dev, (AttentionBy)t->cfg->train.attention, e);
}

/* Matrices in bf16 take products whose operands are: those of CUDA in f32 do not widen them. */
bool trainer_stores_bf16(Trainer *t, const char *key, int dtype, const char *dir, bool *yes, Err *e) {
    const bool able = !device_apart(t->dev) || t->cfg->train.dtype == DTYPE_BF16;
    Err why = {0};
    *yes = dtype == DTYPE_BF16 || (dtype == DTYPE_AUTO && able && *dir && hf_is_bf16(dir, &why));
    if (why.status) return *e = why, false;
    return able || !*yes ||
           err_input(e, "%s: bf16 on device cuda takes products in bf16, which train.dtype f32 excludes; give f32",
                     key);
}
static bool frozen_choose(Trainer *t, bool *bf16, Err *e) {
    char dir[4096] = "";
    const int key = t->run->train.frozen_dtype;
    const bool file = key == DTYPE_AUTO && *t->run->init_from;
    if (file && !model_dir_resolve(t->run->init_from, dir, NULL)) *dir = 0; /* told elsewhere */
    if (peft_is(t->run->init_from)) *dir = 0; /* sums with an adapter are no values of the file's dtype */
    if (!trainer_stores_bf16(t, "train.frozen_dtype", key, dir, bf16, e)) return false;
    int choice[2] = {*bf16 ? DTYPE_BF16 : DTYPE_F32, 0}; /* files may differ between ranks: the first one's count */
    if (file && t->comm && t->comm->ops && !dist_tell(t->comm, "train.frozen_dtype", choice, sizeof choice, e))
        return false;
    config_frozen_dtype(t->run, choice[0]);
    *bf16 = choice[0] == DTYPE_BF16;
    return true;
}

static bool sharding_open(Trainer *t, Err *e) {
    OptimizerCfg c = optimizer_cfg(&t->cfg->optim, 0);
    params_collect(&t->params, &t->model);
    freeze_rates(&t->params, &t->cfg->optim);
    freeze_since(&t->params, t->run, t->stage);
    adapters_collect(&t->adapters, &t->model, &t->lora);
    freeze_rates(&t->adapters, &t->cfg->optim);
    return dist_open(&t->dist, &t->model, &t->params, &c, t->comm, &t->run->dist,
                     t->cfg->train.batch / t->cfg->train.micro_batch, e);
}

bool trainer_on_gpu(const Config *c) {
    char why[200];
    bool isa = *c->run.isa && strcmp(c->run.isa, "auto"); /* named: a CPU's */
    return c->run.device == DEVICE_CUDA || (c->run.device == DEVICE_AUTO && !isa && device_gpus(why) > 0);
}

bool trainer_open(Trainer *t, Config *cfg, bool dry, Err *e) { return trainer_open_stage(t, cfg, 0, dry, e); }

bool trainer_open_stage(Trainer *t, Config *run, int k, bool dry, Err *e) {
    Stage s = config_stage(run, k);
    Config *cfg = s.cfg;
    const TrainCfg *c = &cfg->train;
    int64_t tokens;
    *t = (Trainer){.run = run,
                   .cfg = cfg,
                   .comm = run->comm,
                   .stage = k,
                   .name = run->nstages ? run->stage[k].name : NULL,
                   .first = s.first,
                   .dry = dry,
                   .saved = -1,
                   .val_step = -1,
                   .start = now_seconds()};
    config_position(run, s.first, &t->first_sample, &tokens);
    t->dir.fd = t->dir.lock = -1;
    ModelOpts o = {.train = true,
                   .max_rows = c->micro_batch * cfg->data.seq_len,
                   .max_samples = c->micro_batch,
                   .dropout = c->dropout,
                   .recompute = c->recompute,
                   .dry = dry,
                   .narrow_moments = cfg->optim.state_dtype == STATE_BF16,
                   .second = cfg->optim.kind == OPTIM_MUON ? muon_leaves : NULL,
                   .trained = freeze_trained,
                   .trained_ctx = cfg,
                   .without = dist_without(t->comm, &run->dist),
                   .measure = measure_step,
                   .measure_ctx = t};
    char name[DEVICE_NAME_MAX], device[16] = "cpu"; /* a rank computes on the device of its number on this host */
    if (trainer_on_gpu(cfg)) snprintf(device, sizeof device, "cuda:%d", t->comm ? t->comm->local : 0);
    bool bf16 = false;
    if (!dist_divides(t->comm, c->batch, c->micro_batch, e) || !feed_tokenizer(t, e)) return false;
    if (!feed_vocab(t, e) || !device_bind(name, device, cfg->run.isa, e) ||
        !device_open(&t->dev, name, cfg->threads ? cfg->threads : cfg->run.threads, e) ||
        (*cfg->run.tuning && !device_tuning(t->dev, cfg->run.tuning, e)) || !dtype_choose(t, e) ||
        !frozen_choose(t, &bf16, e) || !feed_open_text(t, e)) {
        trainer_close(t);
        return false;
    }
    trainer_measure_peak(t);
    if (!teacher_open(t, &o, e)) {
        trainer_close(t);
        return false;
    }
    o.stored_bf16 = bf16 ? freeze_stored : NULL;
    o.stored_ctx = t;
    if (!model_open(&t->model, t->dev, &cfg->model, o, e) || !freeze_check(&t->model, cfg, e) ||
        !lora_check(&t->lora, &t->model, cfg, dist_world(t->comm), e) || (!dry && !lora_open(&t->lora, e)) ||
        !sharding_open(t, e) || !buffers_open(t, e) || !samples_open(t, e) || !saver_open(t, e)) {
        trainer_close(t);
        return false;
    }
    model_plan(&t->model, cfg->data.seq_len);
    t->model.seed = (uint64_t)cfg->run.seed;
    if (!dry) record_open(t);
    t->flops_per_token = cost_model(&t->model, cfg->data.seq_len).itemised + t->teacher.flops;
    if (dry || dist_adopt(&t->dist, e)) return true;
    trainer_close(t);
    return false;
}

bool trainer_reads(Trainer *t, Err *e) {
    t->dry = false;
    bool ok = feed_open_text(t, e);
    t->dry = true;
    feed_close_text(t);
    return ok;
}

void trainer_close(Trainer *t) {
    record_close(t);
    saver_close(t);
    session_close(&t->session);
    dist_close(&t->dist);
    params_free(&t->params);
    params_free(&t->adapters);
    if (t->model.dev) model_close(&t->model);
    lora_close(&t->lora);
    teacher_close(&t->teacher);
    loader_close(&t->loader);
    arena_close(&t->rows);
    losses_close(&t->losses);
    feed_close_text(t);
    tokenizer_close(&t->tok);
    if (t->dev) device_close(t->dev);
    t->dev = NULL;
}

void trainer_measure_peak(Trainer *t) {
    Gemm g;
    Err why = {0};
    t->peak_flops = 0;
    /* The double build multiplies by a plain loop, which is no peak of anything; and a device computes while the clock
     * of bench_gemm, which does not wait for it, has stopped. */
    if (t->dry || REAL != F32 || device_apart(t->dev) || !trainer_writes(t)) return;
    if (!bench_gemm(t->dev, 1024, 1024, 1024, 0.1, &g, &why)) {
        /* The run may have the room that this has not. */
        if (!t->cfg->quiet) fprintf(stderr, "no share of the peak FLOP/s (mfu) is told: %s\n", why.msg);
        return;
    }
    t->peak_flops = 2.0 * g.N * g.O * g.I / g.time.best;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------
 */

static void add(Regions *r, const char *name, size_t bytes, bool apart) {
    CHECK(r->n < REGIONS_MAX, "%s", name);
    r->region[r->n].name = name;
    r->region[r->n++].bytes = bytes;
    r->total += bytes;
    r->host += apart ? 0 : bytes;
}

void trainer_regions(const Trainer *t, bool peaks, Regions *r) {
    const Model *m = &t->model, *teacher = &t->teacher.model;
    const Dist *d = &t->dist;
    /* Of two, one is empty. Not every run has the last ones. */
    const struct {
        const char *name;
        const Arena *a, *b;
        bool some;
    } own[] = {{"weights", &m->aw, NULL, false},
               {"weights_bf16", &m->ah, NULL, true},
               {"gradients", &m->ag, &d->grads, false},
               {"first_moments", &m->am, &d->first, false},
               {"second_moments", &m->av, &d->second, false},
               {"saved_activations", &m->keep, NULL, false},
               {"scratch", &m->scratch, NULL, false},
               {"losses", &t->rows, NULL, false},
               {"losses_of_a_step", &t->losses.there, NULL, true},
               {"exchange", &d->wire, NULL, false},
               {"losses_and_norms", &d->sums, NULL, true},
               {"unit_gradients", &d->units, NULL, true},
               {"adapters", &t->lora.state, NULL, true},
               {"adapter_gradients", &t->lora.grads, NULL, true},
               {"sums_of_a_layer", &t->lora.sums, NULL, true},
               {"teacher_weights", &teacher->aw, NULL, false},
               {"teacher_weights_bf16", &teacher->ah, NULL, true},
               {"teacher_activations", &teacher->keep, NULL, false},
               {"teacher_scratch", &teacher->scratch, NULL, false},
               {"teacher_rows", &t->teacher.rows, NULL, false}};
    const size_t n = sizeof own / sizeof *own - (t->teacher.on ? 0 : 5);
    const bool apart = device_apart(t->dev);
    *r = (Regions){0};
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        for (int k = 0; k < 2; k++) {
            const Arena *a = k ? own[i].b : own[i].a;
            if (a) bytes += a->base && !peaks ? a->size : a->peak;
        }
        if (bytes || !own[i].some) add(r, own[i].name, bytes, apart && own[i].a != &t->rows && own[i].a != &d->sums);
    }
    if (t->dry)
        add(r, "batch", feed_loader_bytes(t), false);
    else
        add(r, "batch", peaks ? t->loader.mem.peak : t->loader.mem.size, false);
    if (t->dry)
        add(r, "tokens", t->text_bytes, false);
    else
        add(r, "tokens", t->sft.bytes + (peaks ? t->text.mem.peak : t->text.mem.size), false);
    const Arena *cache = t->dry ? &t->cache_size : &t->session.cache.mem;
    if (t->samples) add(r, "sample_cache", t->dry || peaks ? cache->peak : cache->size, apart);
    const Arena *copy = saver_region(t);
    if (copy) add(r, "checkpoint_copy", t->dry || peaks ? copy->peak : copy->size, false);
    copy = saver_moments(t);
    if (copy) add(r, "moments_copy", t->dry || peaks ? copy->peak : copy->size, false);
    copy = saver_adapters(t);
    if (copy) add(r, "adapter_copy", t->dry || peaks ? copy->peak : copy->size, false);
}

bool trainer_fits(const Trainer *t, Err *e) {
    Regions r;
    size_t room = watch_bytes("/proc/meminfo", "MemAvailable:") + watch_bytes("/proc/meminfo", "SwapFree:"),
           group = watch_bytes("/sys/fs/cgroup/memory.max", "");
    if (group) room = zmin(room, group); /* not less what is in use: most of that are pages of files */
    trainer_regions(t, false, &r);
    /* Other ranks of this host have the same, but for the copy that rank 0 writes from. */
    size_t others = t->comm && t->comm->ops ? (size_t)imax(1, t->comm->locals) - 1 : 0, copy = 0;
    if (saver_region(t)) copy = saver_region(t)->peak;
    size_t need = r.host + others * (r.host - copy);
    char a[24], b[24];
    if (!room || need <= room) return true;
    return err_world(
        e,
        "the run needs %s of memory%s, %s are free; a smaller train.micro_batch, data.seq_len or model needs less: "
        "--plan prints what each part takes",
        bytes_text(need, a), others ? " for all ranks of this host" : "", bytes_text(room, b));
}

/* ---- the parts of the loop ------------------------------------------------------------------------------------------
 */

/* What the micro-batch leaves: its sum of nll, in f64 and in order of its rows, and what was counted of decisions since
 * the last one. A training pass of a device leaves its losses to losses_read. */
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

/* Whether the step is left out; false when it would be one too many. */
static bool skips(Trainer *t, TrainRecord *r, Err *e) {
    const TrainCfg *c = &t->cfg->train;
    Skips *s = &t->state.skip;
    r->skipped = false;
    r->loss_z = r->norm_z = 0;
    if (c->skip_z > 0) {
        skip_scores(s, c->skip_window, r->loss, r->grad_norm, &r->loss_z, &r->norm_z);
        r->skipped = r->loss_z > c->skip_z || r->norm_z > c->skip_z;
        if (!r->skipped) skip_accepted(s, c->skip_window, r->loss, r->grad_norm);
    }
    if (r->skipped && s->row + 1 >= c->skip_most)
        return err_diverged(
            e,
            "train.skip_most: step %lld would be left out as number %d in a row: loss %g, %.1f deviations "
            "above the mean, gradient norm %g, %.1f",
            (long long)t->state.step + 1, s->row + 1, r->loss, r->loss_z, r->grad_norm, r->norm_z);
    if (r->skipped) skip_left_out(s);
    r->nskipped = s->skipped;
    return true;
}

bool trainer_step(Trainer *t, TrainRecord *r, Err *e) {
    const TrainCfg *c = &t->cfg->train;
    const OptimCfg *o = &t->cfg->optim;
    int64_t done = t->state.step - t->first; /* of the stage */
    uint64_t sample = (uint64_t)(t->first_sample + done * c->batch);
    int64_t count = feed_targets(t, sample, c->batch);
    CHECK(count > 0, "no targets from sample %llu on", (unsigned long long)sample);
    Dist *d = &t->dist;
    double sum[PARTS] = {0};
    r->parts = (TrainLosses){0};
    t->model.step = (uint64_t)t->state.step;
    t->model.progress = fmax((double)done / (double)c->steps, t->state.share);
    compression_begin(&t->compression, &c->compression, t->model.progress, c->batch);
    t->model.stat_loss = compression_stat;
    t->model.stat_ctx = &t->compression;
    half_refresh(t->dev); /* what else than a step changed weights, such as a checkpoint */
    record_begin(t);
    losses_begin(&t->losses);
    for (int k = 0; k < d->micros; k++) {
        Loader *l = &t->loader;
        uint64_t at = (uint64_t)(k * d->world + d->rank) * (uint64_t)c->micro_batch;
        if (!feed_train(t, sample + at, c->micro_batch, e)) return false;
        for (int i = 0; i < l->batch.N; i++) t->g[i] = l->tgt[i] < 0 ? 0 : (real)(1.0 / (double)count);
        if (t->state.step == t->progress.first) progress_first(&t->progress, k, d->micros);
        dist_micro(d, k);
        TrainLosses losses = {0};
        record_micro(t, &losses);
        losses_aside(t);
        part_take(t, device_apart(t->dev) ? NULL : &losses, dist_part(d, k));
    }
    Run run = run_make(t->dev, &t->model.scratch);
    Clip clip;
    ScheduleSteps len = config_schedule(t->cfg);
    ScheduleCfg s = {o->lr, o->min_lr, len.warmup, len.steps, len.decay};
    OptimizerCfg how = optimizer_cfg(o, t->model.seed);
    how.skipped = t->state.skip.skipped;
    const int64_t number = t->state.step + 1 - how.skipped;
    const bool apart = record_apart(t);
    r->lr = schedules[o->schedule].lr(&s, schedule_position(&s, done, t->state.share));
    if (!dist_gradients(d, e)) return false;
    /* Where the host decides the norm comes first: once it is here a device is done with the losses, too. */
    double square = 0;
    if (apart ? !record_step(t, &run, &how, r->lr, number, e) : !record_clip(t, &run, &clip, e)) return false;
    losses_read(t, apart ? &square : NULL);
    if (apart) clip = clip_scale(sqrt(square), o->clip);
    if (!dist_sums(d, "losses", d->micros * d->world, sum, e)) return false;
    parts_give(t, sum, &r->parts);
    r->loss = sum[PART_NLL] / (double)count;
    if (t->teacher.on) r->loss = teacher_loss(&t->teacher, &r->parts, r->loss, count);
    r->grad_norm = clip.norm;
    r->reports = compression_achieved(&t->compression, &r->cr);
    r->cr_loss = t->compression.loss;
    if (!isfinite(r->loss) || !isfinite(r->cr_loss) || !isfinite(clip.norm))
        return err_diverged(e, "training diverged at step %lld: loss %g, gradient norm %g, lr %g",
                            (long long)t->state.step + 1, r->loss, clip.norm, r->lr);
    if (!skips(t, r, e)) return false;
    if (!apart && !r->skipped && !record_update(t, &run, &how, r->lr, clip.scale, number, e)) return false;
    t->state.step++;
    t->state.tokens += (int64_t)c->batch * t->cfg->data.seq_len;
    int64_t every = t->run->dist.check_every;
    return !every || t->state.step % every || (dist_weights(d, e) && dist_check(d, t->state.step, e));
}

bool trainer_validate(Trainer *t, ValRecord *v, Err *e) {
    Loader *l = &t->loader;
    Dist *d = &t->dist;
    const size_t each = (size_t)t->cfg->train.micro_batch, samples = (size_t)feed_val_count(t),
                 batches = (samples + each - 1) / each, W = (size_t)d->world, round = W * (size_t)d->micros;
    double sum[PARTS] = {0};
    TrainLosses none = {0};
    *v = (ValRecord){.step = t->state.step, .stage = t->name, .task = t->hit != NULL};
    if (!dist_weights(d, e)) return false;
    compression_begin(&t->compression, NULL, 1, 1);
    t->model.stat_loss = compression_stat;
    t->model.stat_ctx = &t->compression;
    for (size_t from = 0; from < batches; from += round) {
        size_t n = zmin(round, batches - from);
        for (size_t k = 0; k < (size_t)d->micros; k++) {
            size_t at = (from + k * W + (size_t)d->rank) * each;
            if (k * W + (size_t)d->rank >= n) break;
            int b = (int)zmin(each, samples - at);
            if (!feed_val(t, at, b, e)) return false;
            model_score(&t->model, &l->batch, l->tok, l->tgt, t->nll, t->hit);
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
                            (long long)t->state.step);
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
    s.seed = rng_mix(rng_name((uint64_t)t->cfg->run.seed, "samples"), (uint64_t)t->state.step);
    GenOpts o = {.sampler = s, .max_new = t->cfg->train.sample_tokens, .neos = feed_ends(t, end), .eos = end};
    Generation g = {.prompt = ids.id, .nprompt = (int)ids.n};
    bool ok = generate(&t->session, &t->tok, &o, 1, &g, e);
    if (ok) {
        char *text = xcalloc((size_t)n + g.text.n + 1, 1);
        memcpy(text, prompt, (size_t)n);
        if (g.text.n) memcpy(text + n, g.text.bytes, g.text.n);
        ok = journal_sample(&t->sample_file, t->state.step, prompt, text, (size_t)n + g.text.n, e);
        free(text);
    }
    generation_free(&g);
    ids_free(&ids);
    return ok;
}
