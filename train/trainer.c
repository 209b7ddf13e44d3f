#include "feed.h"
#include "train/adapt/freeze.h"
#include "capture.h"
#include "train/save/saver.h"
#include "train/report/watch.h"
#include "ops/text.h"
#include "train/bench/bench.h"
#include "model/cli.h"
#include "model/cost.h"
#include "model/files/hf.h"
#include "model/files/peft.h"
#include "optim/clip.h"
#include "optim/state.h"
#include "ops/gpus.h"
#include "ops/host.h"
#include "ops/isa.h"

/* ---- opening --------------------------------------------------------------------------------------------------------
 */

static void trainer_rows_take(Trainer *t) {
    size_t n = (size_t)t->cfg->train.micro_batch * (size_t)t->cfg->data.seq_len;
    t->g = arena_take(&t->rows, n * sizeof *t->g, "g");
    t->nll = arena_take(&t->rows, n * sizeof *t->nll, "nll");
    if (t->cfg->data.task.kind) t->hit = arena_take(&t->rows, n * sizeof *t->hit, "hit");
    losses_take(t);
}

static bool buffers_open(Trainer *t, Err *e) {
    trainer_rows_take(t);
    if (!losses_open(t, e)) return false;
    if (t->dry) return true;
    return arena_open(&t->rows, "losses", t->rows.peak, false, e) && (trainer_rows_take(t), true) &&
           feed_open_loader(t, e);
}

/* Samples use a session of one sequence that stays open for the whole run, so that no step allocates. */
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
                     .document = -1,
                     .work = &t->work};
    Cache cache;
    lora_reads(&t->lora, true); /* as passes of samples are measured and made */
    bool ok = t->dry ? model_cache_open(&t->model, &cache, o.nseq, o.max_tokens, o.chunk, o.page_rows, true, e)
                     : session_open(&t->session, &t->model, o, e);
    if (ok && t->dry) {
        ok = model_extend_reserve(&t->model, &t->work, &cache, o.chunk, 1, 1, e);
        t->cache_size.peak = cache.mem.peak;
        kv_close(&cache);
    }
    lora_reads(&t->lora, false);
    return ok;
}

/* All of the model's tensors; those that are not trained have no states. */
static void params_collect(Params *p, Model *m, const OptimCfg *o) {
    dist_params(p, m);
    freeze_mark(p, m);
    params_check(p);
    optimizer_declare(p, o);
}
static void adapters_collect(Params *p, Lora *l, const OptimCfg *o) {
    for (int role = 0; l->n && role < PARAM_ROLES; role++) {
        Fields f = params_visitor(p, (ParamRole)role);
        lora_fields(l, (ParamRole)role, &f);
    }
    params_check(p);
    optimizer_declare(p, o);
}

/* The scratch of clipping and of the optimizer. */
static void measure_step(Run *r, void *trainer) {
    Trainer *t = trainer;
    Model *m = &t->model;
    const OptimizerCfg c = {.set = &t->cfg->optim};
    Params p = {0};
    if (t->lora.n)
        adapters_collect(&p, &t->lora, c.set);
    else
        params_collect(&p, m, c.set);
    /* With the states spread over ranks sums are of parts of a tensor, and before a checkpoint of all of it. */
    bool parts = comm_live(t->run->comm) && t->run->cfg->dist.stage;
    for (int i = 0; parts && i < p.n; i++)
        if (!p.p[i].frozen) r->ops->sumsq(r, p.p[i].t[PARAM_WEIGHT]);
    if (!parts) clip_norm(r, &p, 0);
    optimizer_step(r, &p, &c, 0, 1, 1);
    optimizer_exchange(r, &p);
    params_free(&p);
}

/* Resolves `auto` in all of the run's settings, which a checkpoint keeps. */
static bool dtype_choose(Trainer *t, Err *e) {
    int *own = &t->cfg->train.dtype;
    if (*own == DTYPE_AUTO) {
        int choice[2] = {device_bf16_pays(t->dev) ? DTYPE_BF16 : DTYPE_F32, 0};
        /* Processors may differ between ranks: the first one's counts. */
        if (t->run->comm && t->run->comm->ops && !dist_tell(t->run->comm, "train.dtype", choice, sizeof choice, e))
            return false;
        *own = choice[0];
        config_dtype(t->run->cfg, *own);
    }
    return (*own == DTYPE_F32 || device_bf16(t->dev, true, e)) &&
           device_attention(t->dev, (AttentionBy)t->cfg->train.attention, e);
}

/* The directory with the files of init_from; "": none, or unreadable, which is reported elsewhere. */
static void source_dir(const Trainer *t, char dir[4096]) {
    const char *from = t->run->cfg->init_from;
    if (!*from || !model_dir_resolve(from, dir, NULL)) *dir = 0;
}
/* Files may differ between ranks: the first one's count. */
static bool source_tell(Trainer *t, const char *key, bool *bf16, Err *e) {
    int choice[2] = {*bf16, 0};
    if (*t->run->cfg->init_from && t->run->comm && t->run->comm->ops &&
        !dist_tell(t->run->comm, key, choice, sizeof choice, e))
        return false;
    *bf16 = choice[0];
    return true;
}
static bool frozen_choose(Trainer *t, bool *bf16, Err *e) {
    char dir[4096] = "";
    const int key = t->run->cfg->train.frozen_dtype;
    if (key == DTYPE_AUTO) source_dir(t, dir);
    if (peft_is(t->run->cfg->init_from)) *dir = 0; /* sums with an adapter are no values of the file's dtype */
    if (!trainer_stores_bf16(t, "train.frozen_dtype", key, dir, bf16, e) ||
        (key == DTYPE_AUTO && !source_tell(t, "train.frozen_dtype", bf16, e)))
        return false;
    config_frozen_dtype(t->run->cfg, *bf16 ? DTYPE_BF16 : DTYPE_F32);
    return true;
}
static bool save_choose(Trainer *t, Err *e) {
    Config *c = t->run->cfg;
    bool open = c->train.save_dtype == DTYPE_AUTO;
    for (int k = 0; k < c->nstages; k++) open |= c->stage[k].cfg->train.save_dtype == DTYPE_AUTO;
    if (!open) return true;
    char dir[4096];
    Err why = {0};
    source_dir(t, dir);
    bool bf16 = *dir && hf_is_bf16(dir, &why);
    if (why.status) return *e = why, false;
    if (!source_tell(t, "train.save_dtype", &bf16, e)) return false;
    config_save_dtype(c, bf16 ? DTYPE_BF16 : DTYPE_F32);
    return true;
}

static bool sharding_open(Trainer *t, Err *e) {
    const OptimCfg *o = &t->cfg->optim;
    params_collect(&t->params, &t->model, o);
    freeze_rates(&t->params, o);
    freeze_since(&t->params, t->run->cfg, t->stage);
    adapters_collect(&t->adapters, &t->lora, o);
    freeze_rates(&t->adapters, o);
    return dist_open(&t->dist, &t->model, &t->work, &t->params, o, t->run->comm, &t->run->cfg->dist,
                     t->cfg->train.batch / t->cfg->train.micro_batch, e) &&
           (t->dist.stage || states_open(t->lora.n ? &t->adapters : &t->params, t->optim, optimizer_of(o), t->dev,
                                         t->model.opts.poison, t->dry, e));
}
/* Adapters come first: passes compute with their sums. */
static bool passes_open(Trainer *t, Err *e) {
    lora_declare(&t->lora, &t->model, &t->cfg->lora);
    return workspace_open(&t->work, &t->model, e);
}

bool trainer_on_gpu(const Config *c) {
    char why[200];
    bool isa = *c->run.isa && strcmp(c->run.isa, "auto"); /* named: a CPU's */
    return c->run.device == DEVICE_CUDA || (c->run.device == DEVICE_AUTO && !isa && device_gpus(why) > 0);
}

void train_run_begin(TrainRun *r, Config *cfg) {
    *r = (TrainRun){.cfg = cfg, .comm = cfg->comm, .saved = -1, .val_step = -1, .start = now_seconds()};
    r->dir.fd = r->dir.lock = -1;
}
void train_run_end(TrainRun *r) {
    journal_close(&r->metrics);
    journal_close(&r->sample_file);
    journal_close(&r->events);
    if (r->dir.fd >= 0)
        run_dir_close(&r->dir);
    else
        free(r->dir.path);
    chat_template_free(&r->chat);
    json_decref(r->generation);
    free(r->base);
    for (int peaks = 0; peaks < 2; peaks++) regions_free(&r->most[peaks]);
    *r = (TrainRun){0};
}

bool trainer_open(Trainer *t, TrainRun *run, int k, bool dry, Err *e) {
    Stage s = config_stage(run->cfg, k);
    Config *cfg = s.cfg;
    const TrainCfg *c = &cfg->train;
    int64_t tokens;
    *t = (Trainer){.run = run,
                   .cfg = cfg,
                   .stage = k,
                   .name = run->cfg->nstages ? run->cfg->stage[k].name : NULL,
                   .feeder = feed_by(&cfg->data),
                   .first = s.first,
                   .dry = dry};
    config_position(run->cfg, s.first, &t->first_sample, &tokens);
    ModelOpts o = {.train = true,
                   .max_rows = c->micro_batch * cfg->data.seq_len,
                   .max_samples = c->micro_batch,
                   .dropout = c->dropout,
                   .recompute = c->recompute,
                   .dry = dry,
                   .trained = freeze_trained,
                   .trained_ctx = cfg,
                   .without_grads = dist_without_grads(run->comm, &run->cfg->dist),
                   .measure = measure_step,
                   .measure_ctx = t};
    char name[DEVICE_NAME_MAX], device[16] = "cpu"; /* a rank computes on the device of its number on this host */
    if (trainer_on_gpu(cfg)) snprintf(device, sizeof device, "cuda:%d", run->comm ? run->comm->local : 0);
    bool bf16 = false;
    bool ok = dist_divides(run->comm, c->batch, c->micro_batch, e) && feed_tokenizer(t, e) && feed_vocab(t, e) &&
              device_bind(name, device, cfg->run.isa, e) &&
              device_open(&t->dev, name, cfg->threads ? cfg->threads : cfg->run.threads, e) &&
              (!*cfg->run.tuning || device_tuning(t->dev, cfg->run.tuning, e)) && dtype_choose(t, e) &&
              frozen_choose(t, &bf16, e) && save_choose(t, e) && t->feeder->open(t, e);
    if (ok) trainer_measure_peak(t);
    ok = ok && teacher_open(t, &o, e);
    o.stored_bf16 = bf16 ? freeze_stored : NULL;
    o.stored_ctx = t;
    ok = ok && model_open(&t->model, t->dev, &cfg->model, o, e) && passes_open(t, e) &&
         freeze_check(&t->model, cfg, e) && lora_check(&t->lora, &t->model, cfg, dist_world(run->comm), e) &&
         (dry || lora_open(&t->lora, e)) && sharding_open(t, e) && buffers_open(t, e) && samples_open(t, e) &&
         saver_open(t, e);
    if (ok) {
        model_plan(&t->model, cfg->data.seq_len);
        t->work.seed = (uint64_t)cfg->run.seed;
        if (!dry) t->stepper = capture_open(stepper_open(t));
        t->flops_per_token = cost_model(&t->model, cfg->data.seq_len).itemised + t->teacher.flops;
    }
    ok = ok && (dry || dist_adopt(&t->dist, e));
    if (!ok) trainer_close(t);
    return ok;
}

bool trainer_reads(Trainer *t, Err *e) {
    t->dry = false;
    bool ok = t->feeder->open(t, e);
    t->dry = true;
    feed_close_text(t);
    return ok;
}

void trainer_close(Trainer *t) {
    if (t->stepper) t->stepper->close(t->stepper);
    saver_close(t);
    session_close(&t->session);
    dist_close(&t->dist);
    states_close(t->optim);
    params_free(&t->params);
    params_free(&t->adapters);
    workspace_close(&t->work);
    if (t->model.dev) model_close(&t->model);
    lora_close(&t->lora);
    teacher_close(&t->teacher);
    loader_close(&t->loader);
    arena_close(&t->rows);
    losses_close(&t->losses);
    feed_close_text(t);
    tokenizer_close(&t->tok);
    if (t->dev) device_close(t->dev);
    *t = (Trainer){.run = t->run};
}

/* The stage computes 100 times what one product of the measurement does: a second or two, or more. */
static bool worth_a_peak(const Trainer *t) {
    Model m;
    Err e = {0};
    if (!model_open(&m, t->dev, &t->cfg->model, (ModelOpts){.dry = true, .max_rows = 1, .max_samples = 1}, &e))
        return true;
    const TrainCfg *c = &t->cfg->train;
    const double tokens = (double)c->steps * c->batch * t->cfg->data.seq_len;
    const double flops = tokens * cost_model(&m, t->cfg->data.seq_len).itemised;
    model_close(&m);
    return flops >= 100 * 2.0 * PEAK_SIDE * PEAK_SIDE * PEAK_SIDE;
}
void trainer_measure_peak(Trainer *t) {
    Gemm g;
    Err why = {0};
    t->peak_flops = 0;
    /* The double build multiplies by a plain loop, which is no peak of anything; and a device computes while the clock
     * of bench_gemm, which does not wait for it, has stopped. */
    if (t->dry || REAL != F32 || device_apart(t->dev) || !trainer_writes(t) || !worth_a_peak(t)) return;
    if (!bench_gemm(t->dev, PEAK_SIDE, PEAK_SIDE, PEAK_SIDE, 0.1, &g, &why)) {
        /* The run may have the room that this has not. */
        if (!t->cfg->quiet) fprintf(stderr, "mfu (fraction of peak FLOP/s) is not reported: %s\n", why.msg);
        return;
    }
    t->peak_flops = 2.0 * g.N * g.O * g.I / g.time.best;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------
 */

static void model_regions(const Model *m, Regions *r) {
    regions_add(r, "weights", &m->aw, 0);
    regions_add(r, "weights_bf16", &m->ah, REGION_IF_ANY);
    regions_add(r, "gradients", &m->ag, 0);
}
static void state_regions(const Trainer *t, Regions *r) {
    const Arena *mem = trainer_state_memory(t);
    for (int k = 0; k < STATES_MAX; k++) {
        const char *name = states_memory(optimizer_of(&t->cfg->optim), k);
        regions_add(r, name ? name : mem[k].name ? mem[k].name : "states", &mem[k], name ? 0 : REGION_IF_ANY);
    }
}

void trainer_regions(const Trainer *t, bool peaks, Regions *r) {
    regions_begin(r, t->dev, peaks);
    model_regions(&t->model, r);
    state_regions(t, r);
    regions_add(r, "saved_activations", &t->work.keep, 0);
    regions_add(r, "scratch", &t->work.scratch, 0);
    regions_add(r, "losses", &t->rows, REGION_HOST);
    losses_regions(&t->losses, r);
    dist_regions(&t->dist, r);
    lora_regions(&t->lora, r);
    teacher_regions(&t->teacher, r);
    if (t->dry) {
        regions_bytes(r, "batch", feed_loader_bytes(t), REGION_HOST);
        regions_bytes(r, "tokens", t->text_bytes, REGION_HOST);
    } else {
        regions_add(r, "batch", &t->loader.mem, REGION_HOST);
        regions_bytes(r, "tokens", t->sft.bytes + (peaks ? t->text.mem.peak : t->text.mem.size), REGION_HOST);
    }
    if (t->samples) regions_add(r, "sample_cache", t->dry ? &t->cache_size : &t->session.cache.mem, 0);
    saver_regions(t, r);
}

bool trainer_fits(const Trainer *t, Err *e) {
    Regions r;
    size_t room = watch_bytes("/proc/meminfo", "MemAvailable:") + watch_bytes("/proc/meminfo", "SwapFree:"),
           group = watch_bytes("/sys/fs/cgroup/memory.max", "");
    if (group) room = zmin(room, group); /* not less what is in use: most of that are pages of files */
    trainer_regions(t, false, &r);
    /* Other ranks of this host have the same, but for the copy that rank 0 writes from. */
    const size_t host = r.host;
    regions_free(&r);
    size_t others = t->run->comm && t->run->comm->ops ? (size_t)imax(1, t->run->comm->locals) - 1 : 0, copy = 0;
    if (saver_region(t)) copy = saver_region(t)->peak + (t->dist.stage ? 0 : saver_state(t)->peak);
    size_t need = host + others * (host - copy);
    char a[24], b[24];
    if (!room || need <= room) return true;
    return err_runtime(e,
                       "the run needs %s of memory%s, %s are free; reduce train.micro_batch, data.seq_len or the "
                       "model; --plan prints what each part needs",
                       bytes_text(need, a), others ? " for all ranks of this host" : "", bytes_text(room, b));
}
