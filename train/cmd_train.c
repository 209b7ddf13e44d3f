/* kvsmith train: from a configuration to a trained model in a run folder. */
#include "capture.h"
#include "ops/file.h"
#include "ops/gpus.h"
#include "ops/isa.h"
#include "model/files/hf.h"
#include "train/adapt/adapter.h"
#include "train/save/checkpoint.h"
#include "train/report/events.h"
#include "feed.h"
#include "train/report/plan.h"
#include "train/report/provenance.h"
#include "train/comm/ranks.h"
#include "train/save/saver.h"
#include "stages.h"
#include "train.h"
#include "train/report/watch.h"
#include <errno.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int cmd_train(int argc, char **argv);

enum { KEY_RESUME = 1000, KEY_PLAN, KEY_RANKS, OVERRIDES_MAX = 256, RANKS_MOST = 1 << 16 };
typedef struct {
    const char *config, *resume; /* resume NULL: a new run; "auto"; or a checkpoint's directory */
    bool plan, again;            /* again: `launch` starts it another time */
    const char *job;             /* of `launch` */
    int nword;                   /* the command line as it was given */
    char **word;
    int64_t ranks; /* 0: not given */
    Comm planned;
    int noverride;
    char *override[OVERRIDES_MAX];
} Args;

static bool cmd_train_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    if (key == KEY_RESUME)
        a->resume = arg;
    else if (key == KEY_PLAN)
        a->plan = true;
    else if (key == KEY_RANKS)
        return cli_int(arg, "--ranks", 1, RANKS_MOST, &a->ranks, e);
    else if (!a->config)
        a->config = arg;
    else if (a->noverride == OVERRIDES_MAX)
        return err_input(e, "more than %d key=value words", OVERRIDES_MAX);
    else
        a->override[a->noverride++] = (char *)arg;
    return true;
}

static const struct argp_option options[] = {
    {"resume", KEY_RESUME, "auto|DIR", 0,
     "auto: continue from the newest checkpoint in run.dir, or start if there is none; DIR: continue from this "
     "checkpoint",
     0},
    {"plan", KEY_PLAN, 0, 0, "Print parameters, FLOPs and the exact memory of the run, then exit; writes nothing", 0},
    {"ranks", KEY_RANKS, "W", 0,
     "With --plan: plan for W ranks: memory and traffic of each, and times if dist.flops and dist.link are given", 0},
    {0}};
static const CliSpec spec = {.args = "CONFIG.yaml [KEY=VALUE...]",
                             .doc =
                                 "Trains a model. run.dir receives config.yaml, checkpoints step-* (Hugging Face "
                                 "directories), the links last and best, metrics.jsonl and samples.txt. SIGINT, "
                                 "SIGTERM, SIGHUP or SIGUSR1 saves and exits with status 130; --resume auto continues.",
                             .options = options,
                             .take = cmd_train_take,
                             .tuning = true,
                             .settings = true,
                             .min_args = 1,
                             .max_args = -1};

const CliSpec *train_spec(void);
const CliSpec *train_spec(void) { return &spec; }

/* The settings as they will be used: command-line options count as keys. */
static bool cmd_train_settings(Config *cfg, Args *a, const Cli *cli, Err *e) {
    if (a->ranks && !a->plan)
        return err_input(e, "--ranks: only valid with --plan; start a run of several ranks with kvsmith launch, "
                            "mpirun, srun or torchrun");
    if (!config_read(cfg, a->config, a->noverride, a->override, e)) return false;
    if (cli->threads >= 0) cfg->run.threads = cli->threads;
    if (cli->isa) snprintf(cfg->run.isa, sizeof cfg->run.isa, "%s", cli->isa);
    if (cli->tuning && strlen(cli->tuning) >= sizeof cfg->run.tuning)
        return err_input(e, "--tuning %.100s...: longer than %d bytes", cli->tuning, KEY_TEXT_MAX - 1);
    if (cli->tuning) strcpy(cfg->run.tuning, cli->tuning);
    static const char *const devices[] = {"auto", "cpu", "cuda"};
    for (int i = 0; i < 3 && cli->device; i++)
        if (!strcmp(cli->device, devices[i])) cfg->run.device = i;
    if (cli->bf16 || cli->f32) cfg->train.dtype = cli->bf16 ? DTYPE_BF16 : DTYPE_F32;
    for (int k = 0; k < cfg->nstages; k++) {
        cfg->stage[k].cfg->run.threads = cfg->run.threads;
        cfg->stage[k].cfg->run.device = cfg->run.device;
        strcpy(cfg->stage[k].cfg->run.isa, cfg->run.isa);
        strcpy(cfg->stage[k].cfg->run.tuning, cfg->run.tuning);
        if (cli->bf16 || cli->f32) cfg->stage[k].cfg->train.dtype = cfg->train.dtype;
    }
    a->planned.world = (int)a->ranks;
    a->planned.device = trainer_on_gpu(cfg) && (a->ranks > 1 || cfg->dist.comm == COMM_NCCL);
    a->planned.world = imax(1, a->planned.world);
    if (a->plan && comm_live(&a->planned)) cfg->comm = &a->planned;
    if (device_isa_there(cfg->run.isa, e) && config_trainable(cfg, e)) return true;
    config_free(cfg);
    return false;
}

/* Which start of `launch` has made the folder its own: what it holds is then not of a run before. */
static const char MARK[] = ".job";
static bool cmd_train_marked(const RunDir *d, const char *job, Err *e) {
    struct stat st;
    FileMap m = {0};
    char *path = run_dir_file(d, MARK);
    bool same = file_look(path, &st, e) && file_map(&m, path, e) && m.n == strlen(job) && !memcmp(m.p, job, m.n);
    file_unmap(&m);
    free(path);
    return same;
}
static bool cmd_train_unmark(const RunDir *d, Err *e) {
    return d->fd < 0 || !unlinkat(d->fd, MARK, 0) || errno == ENOENT ||
           err_runtime(e, "cannot remove %s/%s: %s", d->path, MARK, strerror(errno));
}

/* Returns the checkpoint from which the run begins, malloc'ed, or NULL for the beginning. A restart by a launcher
 * continues from the run folder's newest checkpoint, unless the checkpoint given with --resume was never reached: the
 * folder's contents then belong to another run. */
static bool find_start(RunDir *d, const Args *a, char **dir, bool *here, Err *e) {
    int64_t newest;
    const char *resume = a->resume;
    *dir = NULL;
    *here = true;
    if (!resume) return true;
    const bool own = !strcmp(resume, "auto") || (a->again && cmd_train_marked(d, a->job, e));
    if (e->status) return false;
    if (own) {
        if (!run_dir_newest(d, &newest, e)) return false;
        if (newest >= 0) *dir = run_dir_step(d, newest);
        if (newest >= 0 || !strcmp(resume, "auto")) return true;
    }
    *dir = realpath(resume, NULL);
    if (!*dir) return err_errno(e, "checkpoint", resume);
    char *parent = xstrdup(*dir), *folder = realpath(d->path, NULL), *slash = strrchr(parent, '/');
    if (!folder) {
        free(parent);
        return err_errno(e, "run folder", d->path);
    }
    if (slash) *slash = 0;
    /* old-step-*, set aside, is not RUN's own checkpoint of its step */
    *here = !strcmp(parent, folder) && slash && !strncmp(slash + 1, "step-", 5);
    free(parent);
    free(folder);
    return true;
}

/* Settings of generation that checkpoints keep, and the ids that end a text there. */
static bool find_generation(Trainer *t, const char *dir, Err *e) {
    if (!file_exists(dir, "config.json", e)) return !e->status;
    if (!hf_ids_read(dir, &t->run->source, e)) return false;
    if (!file_exists(dir, "generation_config.json", e)) return !e->status;
    char *path = xformat("%s/generation_config.json", dir);
    t->run->generation = json_read(path, e);
    free(path);
    return t->run->generation != NULL;
}

/* A template for chats comes from where the tokenizer comes from; a checkpoint has its copy. */
static bool find_template(Trainer *t, const char *checkpoint, Err *e) {
    char dir[4096];
    if (t->cfg->data.task.kind) return true;
    if (checkpoint) return chat_template_read(&t->run->chat, checkpoint, e) && find_generation(t, checkpoint, e);
    const char *tok = t->cfg->data.tokenizer, *slash = strrchr(tok, '/');
    if (!*t->cfg->init_from) { /* a directory, or a file in one */
        struct stat st;
        if (!*tok || !strcmp(tok, "byte")) return true;
        if (file_look(tok, &st, e) && S_ISDIR(st.st_mode)) return chat_template_read(&t->run->chat, tok, e);
        if (e->status) return false;
        if (slash && slash - tok >= (ptrdiff_t)sizeof dir) return true;
        snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - tok) : 1, slash ? tok : ".");
        return chat_template_read(&t->run->chat, dir, e);
    }
    return model_dir_resolve(t->cfg->init_from, dir, e) && chat_template_read(&t->run->chat, dir, e) &&
           find_generation(t, dir, e);
}

/* Rank 0, which knows the folder, decides what is best so far; the others wait here until it is ready. */
static bool best_told(Trainer *t, Err *e) {
    int64_t has = t->run->state.has_best;
    if (!dist_tell(t->run->comm, "the run folder", &has, sizeof has, e)) return false;
    t->run->state.has_best = has;
    return true;
}

/* Weights as they begin, and the folder and its journals as they were at that step. */
static bool cmd_train_begin(Trainer *t, const Args *a, const char *dir, bool here, Err *e) {
    const Config *c = t->cfg;
    TrainRun *run = t->run;
    bool samples_wanted = false, events_wanted = false;
    for (int k = 0; k < config_stages(run->cfg); k++) {
        samples_wanted |= config_stage(run->cfg, k).cfg->train.sample_every > 0;
        events_wanted |= config_stage(run->cfg, k).cfg->train.tensorboard;
    }
    adapter_base(t, dir);
    if (dir) {
        if (!checkpoint_load(t, dir, e)) return false;
    } else {
        model_init(&t->model, (uint64_t)c->run.seed);
        if (*c->init_from && !checkpoint_load_weights(t, run->base ? run->base : c->init_from, e)) return false;
        lora_begin(&t->lora, (uint64_t)c->run.seed);
        if (!adapter_begin(t, e)) return false;
    }
    if (!dist_same(run->comm, "data", t->text.hash, e) || !dist_start(&t->dist, e)) return false;
    run->tokens0 = run->flops_from = run->state.tokens;
    run->before = run->state.elapsed;
    run->saved = dir && here ? run->state.step : -1;
    if (!trainer_writes(t)) {
        bool told = best_told(t, e);
        saver_start(t);
        return told;
    }
    /* A best checkpoint that is not in this folder cannot be pointed to: the next validation sets a new one. */
    if (c->train.keep_best && run->state.has_best && !run_dir_has_step(&run->dir, run->state.best_step, e)) {
        if (e->status) return false;
        run->state.has_best = false;
    }
    Keep keep = checkpoint_keep(t);
    int64_t cut = dir ? run->state.step : -1;
    if (dir && here && cut > 0 && !file_exists(run->dir.path, "metrics.jsonl", e)) {
        if (e->status) return false;
        fprintf(stderr, "kvsmith: note: %s/metrics.jsonl is missing; a new one begins after step %lld\n", run->dir.path,
                (long long)cut);
    }
    char *text = config_text(run->cfg);
    bool given = a->job && a->resume && strcmp(a->resume, "auto");
    bool over =
        dir && here && run->state.step >= run->cfg->train.steps; /* nothing is left to do, so nothing is added */
    bool ok = run_dir_rewind(&run->dir, run->state.step, dir && here, keep, e) &&
              (!given || run_dir_write(&run->dir, MARK, a->job, e)) &&
              run_dir_write(&run->dir, "config.yaml", text, e) &&
              journal_open(&run->metrics, &run->dir, "metrics.jsonl", METRICS_MARK, cut, true, e) &&
              journal_open(&run->sample_file, &run->dir, "samples.txt", SAMPLES_MARK, cut, samples_wanted, e) &&
              events_open(&run->events, &run->dir, cut, events_wanted, (double)time(NULL), e) &&
              (over || provenance_append(t, a->nword, a->word, dir, e));
    saver_start(t);
    free(text);
    return ok && best_told(t, e);
}

static void cmd_train_number(json_t *j, const char *key, bool known, double v) {
    json_object_set_new(j, key, known && isfinite(v) ? json_real(v) : json_null());
}

static void cmd_train_report(Trainer *t, const Cli *cli, const TrainRecord *last, Stop why, double seconds) {
    const TrainRun *run = t->run;
    Regions sizes, peaks;
    watch_memory(t);
    stages_regions(t, false, &sizes);
    stages_regions(t, true, &peaks);
    double flops = run->flops + t->flops_per_token * (double)(run->state.tokens - run->flops_from);
    double tok_s = (double)(run->state.tokens - run->tokens0) / fmax(seconds, 1e-9);
    char *saved = run->saved >= 0 ? run_dir_step(&run->dir, run->saved) : NULL;
    bool stepped = last->step > 0;
    char val[64] = "", best[32];
    if (run->state.has_best)
        snprintf(val, sizeof val, ", best validation loss %s", progress_number(best, run->state.best_loss, 4));
    progress_say(&t->run->progress, "%s after %lld steps, %lld tokens, %.1f s (%.0f tok/s)%s%s%s",
                 why == STOP_STEPS      ? "done"
                 : why == STOP_TIME     ? "stopped by train.max_seconds"
                 : why == STOP_ACCURACY ? "stopped by train.stop_at_acc"
                                        : "interrupted",
                 (long long)run->state.step, (long long)run->state.tokens, seconds, tok_s, val, saved ? "; saved " : "",
                 saved ? saved : "");
    if (cli->json) {
        json_t *j = json_pack("{s:s, s:s, s:I, s:I}", "run", run->dir.path, "stopped", stop_name(why), "step",
                              (json_int_t)run->state.step, "tokens", (json_int_t)run->state.tokens);
        json_object_set_new(j, "checkpoint", saved ? json_string(saved) : json_null());
        cmd_train_number(j, "loss", stepped, last->loss);
        cmd_train_number(j, "val_loss", run->val_step >= 0, run->val.loss);
        if (t->hit) {
            cmd_train_number(j, "val_acc", run->state.has_acc, run->state.acc);
            cmd_train_number(j, "val_acc_all", run->val_step >= 0, run->val.acc_all);
        }
        cmd_train_number(j, "best_val_loss", run->state.has_best, run->state.best_loss);
        json_object_set_new(j, "best_step", run->state.has_best ? json_integer(run->state.best_step) : json_null());
        json_object_set_new(j, "skipped", json_integer((json_int_t)run->state.skip.skipped));
        cmd_train_number(j, "seconds", true, seconds);
        cmd_train_number(j, "tok_s", true, tok_s);
        cmd_train_number(j, "mfu", t->peak_flops > 0, flops / fmax(seconds, 1e-9) / t->peak_flops);
        cmd_train_number(j, "peak_flops", t->peak_flops > 0, t->peak_flops);
        cmd_train_number(j, "flops_per_token", true, t->flops_per_token);
        json_object_set_new(
            j, "mfu_formula",
            json_string(
                "tok_s flops_per_token / peak_flops, each stage with its own; flops_per_token = 3 (2 N + attention), N "
                "= elements of matrices, attention causal and windows counted exactly, and 2 N + attention of a "
                "teacher; peak_flops = best of a 1024^3 GEMM of the run's dtype at the start of this run; null below "
                "0.2 TFLOP"));
        json_object_set_new(j, "memory", regions_json(&peaks));
        json_object_set_new(j, "memory_mapped", json_integer((json_int_t)sizes.total));
        json_object_set_new(j, "peak_anonymous_bytes", json_integer((json_int_t)run->peak_anon));
        json_dumpf(j, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(j);
    }
    regions_free(&sizes);
    regions_free(&peaks);
    free(saved);
}

/* The folder is rank 0's; the others know its name, and from rank 0 where the run begins. */
typedef struct {
    char *start; /* malloc'ed checkpoint directory; NULL: the beginning */
    bool here;
} Place;
static bool place_open(Place *p, TrainRun *r, const Args *a, Err *e) {
    struct {
        char start[4096];
        int64_t here;
    } told = {0};
    const Config *cfg = r->cfg;
    Comm *c = r->comm;
    *p = (Place){.here = true};
    if (dist_rank(c)) {
        r->dir.path = xstrdup(cfg->run.dir);
    } else {
        if (!run_dir_open(&r->dir, cfg->run.dir, a->resume != NULL, e)) return false;
        if (!find_start(&r->dir, a, &p->start, &p->here, e)) return false;
        if (p->start && strlen(p->start) >= sizeof told.start)
            return err_input(e, "checkpoint: a path of %zu characters", strlen(p->start));
        if (p->start) strcpy(told.start, p->start);
        told.here = p->here;
    }
    if (dist_world(c) == 1) return true;
    if (!dist_tell(c, "where the run begins", &told, sizeof told, e)) return false;
    if (!dist_rank(c)) return true;
    if (*told.start) p->start = xstrdup(told.start);
    p->here = told.here;
    return true;
}

static int64_t run_samples(const Config *cfg) {
    int64_t samples, tokens;
    config_position(cfg, cfg->train.steps, &samples, &tokens);
    return samples;
}

/* Prints the choice of run.device: auto, in a program that has CUDA. */
static const char *device_said(Device *dev, const Config *cfg, char out[240]) {
    char why[200] = "";
    *out = 0;
    if (cfg->run.device != DEVICE_AUTO) return out;
    if (device_apart(dev))
        snprintf(out, 240, "; run.device auto: cuda");
    else if (!device_gpus(why) && *why)
        snprintf(out, 240, "; no GPU is used: %s", why);
    return out;
}

/* From a folder that is this process's own to the last checkpoint. */
static bool train_run(Trainer *t, TrainRun *r, const Args *a, const Cli *cli, int *status, Err *e) {
    Config *cfg = r->cfg;
    Place at;
    TrainState peek = {0};
    bool ok = place_open(&at, r, a, e);
    const char *start_dir = at.start;
    /* Cheap refusals first: nothing large is read or allocated before the checkpoint is known to fit. */
    ok = ok && (!start_dir || checkpoint_peek(start_dir, cfg, &peek, e));
    int first = ok ? config_stage_at(cfg, peek.step) : 0;
    for (int k = 0; ok && k < config_stages(cfg); k++) config_stage(cfg, k).cfg->data.tokenizer_copy = start_dir;
    /* No rank allocates memory while another looks how much is free. */
    ok = ok && stages_check(t, cfg, first, e) &&
         (start_dir || (checkpoint_fits(cfg->init_from, cfg, e) && adapter_check(cfg, e))) &&
         comm_barrier(r->comm, "memory", e);
    r->start = now_seconds();
    ok = ok && trainer_open(t, r, first, false, e);
    Stop why = STOP_STEPS;
    TrainRecord last = {0};
    Passes passes;
    char say[168] = "";
    ok = ok && find_template(t, start_dir, e) && cmd_train_begin(t, a, start_dir, at.here, e) &&
         feed_passes(t, run_samples(cfg), &passes, e);
    if (ok) {
        if (passes.passes > 0) say[0] = ',', say[1] = ' ', feed_passes_say(&passes, say + 2);
        if (trainer_writes(t) && !cfg->quiet) feed_warn(t, &passes);
        double most = cfg->train.max_seconds; /* by time, earlier parts of the run had some of it */
        char where[240];
        if (t->cfg->optim.schedule_by == SCHEDULE_BY_TIME) most = fmax(1, most - r->before);
        progress_open(&r->progress, cli, r->state.step, cfg->train.steps, most);
        char trained[96];
        plan_trained(t, trained);
        progress_say(&r->progress, "%s: %zu parameters%s%s%s, %s from step %lld of %lld%s, %d thread%s (%s, %s)%s",
                     r->dir.path, model_params(&t->model), *trained ? " (" : "", trained, *trained ? ")" : "",
                     start_dir ? "resumed" : "training", (long long)r->state.step, (long long)cfg->train.steps, say,
                     device_threads(t->dev), device_threads(t->dev) == 1 ? "" : "s", device_isa(t->dev),
                     t->cfg->train.dtype == DTYPE_BF16 ? "matrix products in bf16" : "f32",
                     device_said(t->dev, cfg, where));
        capture_say(t);
        adapter_say(t);
        feed_say(t);
        double begun = now_seconds();
        ok = train_loop(t, &last, &why, e);
        if (ok && trainer_writes(t)) cmd_train_report(t, cli, &last, why, now_seconds() - begun);
        progress_close(&r->progress);
        *status = why == STOP_SIGNAL ? EXIT_SIGNAL : 0;
        ok = ok && cmd_train_unmark(&r->dir, e);
    }
    trainer_close(t);
    free(at.start);
    return ok;
}

/* The ranks of the run, which must all run the same; *out NULL: it is alone. */
static bool ranks_begin(Config *cfg, Cli *cli, bool plan, Ranks *r, Err *e) {
    DistCfg *d = &cfg->dist;
    if (!ranks_find(r, (RanksFrom)d->launcher, environ, e)) return false;
    config_ranks(cfg, cfg->comm ? cfg->comm->world : r->world); /* cfg->comm: of --plan */
    if (r->rank) cli->json = false, cli->quiet = true;
    if (plan || (r->world == 1 && d->comm != COMM_NCCL)) return true;
    char *text = config_text(cfg), say[256];
    uint64_t settings = rng_name(0, text);
    free(text);
    RanksHow how = {.by = (CommBy)d->comm,
                    .device = trainer_on_gpu(cfg),
                    .deadline = d->deadline,
                    .config = settings,
                    .store = d->store};
    if (!ranks_open(r, &how, &cfg->comm, e)) return false;
    if (!dist_same(cfg->comm, "a version of kvsmith", rng_name(0, KVSMITH_VERSION), e) ||
        !dist_same(cfg->comm, "settings", settings, e))
        return false;
    cfg->threads = ranks_threads(r, cfg->run.threads);
    for (int k = 0; k < cfg->nstages; k++) cfg->stage[k].cfg->threads = cfg->threads;
    if (!cli->quiet) {
        const Comm *c = cfg->comm;
        fprintf(cli->json ? stderr : stdout, "%s, by %s%s%s%s\n", ranks_say(r, say), c->ops->name, *c->note ? " (" : "",
                c->note, *c->note ? ")" : "");
        fflush(cli->json ? stderr : stdout);
    }
    return true;
}

int cmd_train(int argc, char **argv) {
    Args a = {.nword = argc, .word = xcalloc((size_t)argc, sizeof(char *))};
    Cli cli = {0};
    Err e = {0};
    Ranks r = {0};
    int status = 0;
    memcpy(a.word, argv, (size_t)argc * sizeof *a.word); /* parsing puts options first */
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) {
        free(a.word);
        return status;
    }
    Config *cfg = xcalloc(1, sizeof *cfg);
    Trainer *t = xcalloc(1, sizeof *t);
    TrainRun *run = xcalloc(1, sizeof *run);
    Comm *comm = NULL;
    bool ok = cmd_train_settings(cfg, &a, &cli, &e);
    if (ok) {
        train_catch_signals();
        ok = ranks_begin(cfg, &cli, a.plan, &r, &e);
        comm = cfg->comm;
        a.again = r.from == RANKS_LAUNCH && r.restart > 0;
        a.job = r.from == RANKS_LAUNCH ? r.job : NULL;
        cfg->quiet = cli.quiet;
        /* A plan needs no source; where there is one it is refused what the run would be. */
        char source[4096];
        if (ok && a.plan && *cfg->init_from && !r.rank && model_dir_resolve(cfg->init_from, source, NULL))
            ok = checkpoint_fits(cfg->init_from, cfg, &e);
        if (ok && a.plan) {
            ok = r.rank || plan_print(t, cfg, cli.json, stdout, &e);
        } else if (ok) {
            train_run_begin(run, cfg);
            ok = train_run(t, run, &a, &cli, &status, &e);
            train_run_end(run);
        }
        config_free(cfg);
    }
    free(t);
    free(run);
    free(cfg);
    free(a.word);
    if (!ok) {
        status = comm && comm->agreed && comm->rank ? e.status : cli_fail(&e);
        if (status == EXIT_DIVERGED && r.from != RANKS_LAUNCH) status = EXIT_RUNTIME; /* for the launcher alone */
        comm_stop(comm);
    }
    comm_close(comm);
    return status;
}
