#include "replay.h"
#include "engine.h"
#include "ops/gpus.h"
#include "ops/rope.h"
#include <errno.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "data/indexed.h"
#include "ops/checksum.h"
#include "ops/file.h"
#include "ops/isa.h"
#include "ops/signals.h"
#include "model/files/hf.h"
#include "model/files/peft.h"

static void engine_quit(int signal) {
    (void)signal;
    _exit(EXIT_SIGNAL);
}
void engine_signals(void) {
    signals_catch(engine_quit, 0);
    set_catch_sigbus();
}

bool engine_slurp(const char *path, const char *what, char **text, size_t *n, Err *e) {
    bool in = !strcmp(path, "-");
    const char *name = in ? "standard input" : path;
    FILE *f = stdin;
    while (!in && !(f = fopen(path, "rb")) && errno == EINTR) {}
    if (!f) return err_errno(e, what, path);
    struct stat st;
    bool file = !fstat(fileno(f), &st) && S_ISREG(st.st_mode);
    size_t most = file ? SLURP_MAX : SLURP_PIPE_MAX, cap = 1 << 16, got;
    char *p = NULL;
    bool ok = !file || st.st_size <= SLURP_MAX;
    if (ok) {
        if (file) cap = (size_t)st.st_size + 1;
        p = xcalloc(cap, 1);
        for (*n = 0; *n <= most && (got = fread(p + *n, 1, cap - *n, f)) > 0;) {
            *n += got;
            if (*n == cap) p = xrealloc(p, cap *= 2, 1);
        }
        ok = !ferror(f) || err_errno(e, what, name);
    }
    if (!e->status && (!ok || *n > most))
        ok = err_input(e, "%s %s: more than %zu MiB%s", what, name, most >> 20,
                       file ? "" : " from a pipe or device: give a file instead");
    if (!in) fclose(f);
    *text = p;
    if (!ok) free(p);
    return ok;
}

const char *engine_disk_name(const KvDisk *d) { return d->host ? "host" : "disk"; }
json_t *engine_disk(const KvDisk *d, double steps) {
    return json_pack("{s:i, s:i, s:I, s:I, s:f, s:f, s:f, s:f}", "layers", d->slots, "of", d->of, "memory_bytes",
                     (json_int_t)d->memory, d->host ? "host_bytes" : "file_bytes", (json_int_t)d->file, "read_bytes",
                     (double)d->read / steps, "late_bytes", (double)d->late / steps, "written_bytes",
                     (double)d->written / steps, "waited_s", d->waited / steps);
}
json_t *engine_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

bool engine_print(json_t *j, Err *e) {
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    if (!text) return err_runtime(e, "the result cannot be written as JSON");
    bool ok = puts(text) >= 0 && fflush(stdout) == 0;
    free(text);
    return ok || err_runtime(e, "standard output: %s", strerror(errno));
}

static bool in_memory(const char *dir) {
    struct statfs fs;
    return !statfs(dir, &fs) && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}
bool engine_device(Device **dev, const Cli *cli, Err *e) {
    char why[200] = "";
    char bound[DEVICE_NAME_MAX];
    bool chosen = cli->device && strcmp(cli->device, "auto"), isa = cli->isa && strcmp(cli->isa, "auto");
    const char *name = chosen ? cli->device : !isa && device_gpus(why) ? "cuda" : "cpu"; /* an ISA is a CPU's */
    if (*why && !cli->quiet) fprintf(stderr, "no GPU is used: %s\n", why);
    if (cli->tier.dir && !cli->quiet && in_memory(cli->tier.dir))
        fprintf(stderr,
                "kvsmith: note: --cache-disk: %.200s is in memory (tmpfs), and so are the rows that are kept there\n",
                cli->tier.dir);
    if (!device_bind(bound, name, cli->isa, e)) return false;
    name = bound;
    if (!device_open(dev, name, imax(cli->threads, 0), e)) return false;
    if (kv_tier_fits(*dev, &cli->tier, e) && (!cli->bf16 || device_bf16(*dev, true, e)) &&
        (!cli->tuning || device_tuning(*dev, cli->tuning, e)))
        return true;
    device_close(*dev);
    return false;
}

bool engine_text(const Engine *en, Err *e) {
    if (!en->text) *e = en->no_text;
    return en->text;
}

static bool tokenizer_read(Engine *en, Err *e) {
    char *path = tokenizer_file(en->dir, e);
    if (!path) {
        if (e->status) return false;
        if (en->task.kind)
            err_input(&en->no_text, "%.150s: trained on the task %s, which has no text; try kvsmith eval MODEL %s",
                      en->dir, en->task.kind->name, en->task.kind->name);
        else
            err_input(&en->no_text,
                      "%.150s: no tokenizer.json in it, so text cannot be tokenized; kvsmith logits reads ids",
                      en->dir);
        return true;
    }
    const size_t n = strlen(path);
    bool ok = true;
    if (n >= 5 && !strcmp(path + n - 5, ".json")) {
        json_t *j = json_read(path, e); /* damaged: a failure; sound but of another kind: only text is out of reach */
        ok = j != NULL;
        json_decref(j);
    }
    if (ok && (en->text = tokenizer_open(&en->tokenizer, path, NULL, &en->no_text)) &&
        en->tokenizer.vocab > en->cfg.vocab)
        ok = err_input(e, "%s: %d ids, but the model's vocabulary is %d", path, en->tokenizer.vocab, en->cfg.vocab);
    free(path);
    return ok;
}

bool engine_read(Engine *en, const char *path, const Cli *cli, Err *e) {
    *en = (Engine){.neos = 0};
    HfIds ids;
    en->adapter = cli->adapter ? cli->adapter : peft_path(path);
    if (cli->adapter && peft_is(path))
        return err_input(e, "--adapter: MODEL, %.120s, is an adapter itself; give its base, or that alone", path);
    if (!model_dir_resolve(path, en->dir, e) || !hf_config_read(en->dir, &en->cfg, e)) return false;
    /* headers first: a damaged file is found before memory is taken for it */
    if (!hf_check_with(en->dir, en->adapter, &en->cfg, e) || !task_cfg_load(&en->task, en->dir, e) ||
        !tokenizer_read(en, e) || !hf_ids_read(en->dir, &ids, e) || !engine_device(&en->dev, cli, e)) {
        if (en->text) tokenizer_close(&en->tokenizer);
        model_cfg_free(&en->cfg);
        return false;
    }
    for (int i = 0; i < ids.neos; i++) en->eos[en->neos++] = ids.eos[i];
    if (!en->neos && en->text && en->tokenizer.eot >= 0) en->eos[en->neos++] = en->tokenizer.eot;
    en->one_end = en->text && ids.neos == 1 && ids.bos == ids.eos[0] && ids.bos < en->tokenizer.vocab;
    if (en->one_end) en->tokenizer.eot = ids.bos;
    return true;
}

/* A basis of another model of the same shape would give rows that mean nothing. */
static bool engine_basis(const Engine *en, Err *e) {
    const Model *m = &en->model;
    uint64_t print;
    if (!m->basis || !m->basis_of) return true;
    return engine_fingerprint(en, 0, &print, e) &&
           (print == m->basis_of ||
            err_input(e, "--cache-dtype %s: %.*s was calibrated on another model; run kvsmith calibrate on this one",
                      m->opts.codec->name, imin(m->opts.codec->basis_n, 120), m->opts.codec->basis));
}
bool engine_load(Engine *en, ModelOpts opts, Err *e) {
    bool ok = true;
    if (en->text && policy_feeds(opts.policy)) {
        en->policy = *opts.policy;
        opts.policy = &en->policy;
        ok = replay_requests(&en->policy, &en->tokenizer, e);
    }
    ok = ok && model_open(&en->model, en->dev, &en->cfg, opts, e) && engine_basis(en, e) &&
         (opts.dry || hf_load_with(en->dir, en->adapter, &en->model, e));
    if (!ok) engine_close(en);
    return ok;
}

bool engine_join(const RankHooks *hooks, Cli *cli, const char *input, Err *e) {
    if (!cli->divides) return true;
    if (input && !strcmp(input, "-"))
        return err_input(e, "--cache-ranks: ranks cannot share standard input; give a file in place of -");
    return hooks->join(hooks->ctx, cli, e);
}
bool engine_same(const Engine *en, const RankHooks *hooks, const Cli *cli, int planned, Err *e) {
    uint64_t h;
    return cli->ranks.world < 2 ||
           (engine_fingerprint(en, planned, &h, e) && hooks->same(hooks->ctx, "model files", h, e));
}

ModelOpts engine_bf16(const Cli *cli, ModelOpts o) {
    o.bf16_weights = cli->bf16 && !o.train;
    o.policy = &cli->policy;
    o.tier = cli->tier.memory ? &cli->tier : NULL;
    o.ranks = cli->ranks.world ? &cli->ranks : NULL;
    o.codec = cli->codec ? cli->codec : cli->bf16 ? &codec_bf16 : &codec_f32;
    return o;
}

/* A run that saves meanwhile may remove the checkpoint between the reading of its link and of its files. */
static bool moved_on(const Engine *en, const char *path) {
    char now[4096];
    return *en->dir && model_dir_resolve(path, now, NULL) && strcmp(now, en->dir) != 0;
}
static bool open_with(Engine *en, const char *path, const Cli *cli, ModelOpts opts, Err *e) {
    for (int tries = 0;; tries++) {
        Err why = {0};
        if (engine_read(en, path, cli, &why) && engine_load(en, engine_bf16(cli, opts), &why)) return true;
        if (tries == 100 || !moved_on(en, path)) return *e = why, false;
    }
}
bool engine_open(Engine *en, const char *path, const Cli *cli, Err *e) {
    return open_with(en, path, cli, (ModelOpts){0}, e);
}
bool engine_measure(Engine *en, const char *path, const Cli *cli, Err *e) {
    return open_with(en, path, cli, (ModelOpts){.dry = true}, e);
}

bool engine_dynamic(const Engine *en) {
    bool dynamic = false;
    for (int l = 0; l < en->model.L; l++) {
        const Layer *y = &en->model.layer[l];
        for (const Key *k = y->kind->mixer->keys; k->name; k++)
            dynamic |= k->sub == rope_keys && ((const RopeCfg *)((const char *)y->cfg + k->at))->type == ROPE_DYNAMIC;
    }
    return dynamic;
}

void engine_plan(Engine *en, int length, bool quiet) {
    model_plan(&en->model, length);
    if (length > en->cfg.max_positions && !engine_dynamic(en) && !quiet)
        fprintf(stderr,
                "kvsmith: note: a context of %d tokens exceeds the %d positions that the model was trained on\n",
                length, en->cfg.max_positions);
}

/* All of a small file; of a large one its first blocks and others spread over it. */
static uint64_t fingerprint_bytes(uint64_t h, const unsigned char *p, size_t n) {
    enum { BLOCK = 4096, BLOCKS = 256 };
    h = rng_mix(h, n);
    if (n <= (size_t)BLOCK * BLOCKS) return rng_mix(h, n ? xxh64(p, n) : 0);
    for (size_t i = 0; i < BLOCKS; i++) h = rng_mix(h, xxh64(p + (n - BLOCK) / (BLOCKS - 1) * i, BLOCK));
    return h;
}
static bool fingerprint_file(uint64_t *h, const char *dir, const char *name, Err *e) {
    FileMap m;
    char *path = xformat("%s/%s", dir, name);
    const bool ok = file_map(&m, path, e);
    if (ok) *h = fingerprint_bytes(*h, m.p, m.n), file_unmap(&m);
    free(path);
    return ok;
}
bool engine_fingerprint(const Engine *en, int planned, uint64_t *h, Err *e) {
    St st;
    *h = 0;
    if (!fingerprint_file(h, en->dir, "config.json", e) || !st_open_dir(&st, en->dir, e)) return false;
    for (int i = 0; i < st.nfile; i++) {
        uint64_t header = 8;
        for (int k = 0; k < 8; k++) header += (uint64_t)st.file[i].map.p[k] << 8 * k;
        *h = rng_mix(*h, xxh64(st.file[i].map.p, (size_t)header));
        *h = fingerprint_bytes(*h, st.file[i].map.p, st.file[i].map.n);
    }
    st_close(&st);
    if (en->adapter && (!fingerprint_file(h, en->adapter, "adapter_config.json", e) ||
                        !fingerprint_file(h, en->adapter, "adapter_model.safetensors", e)))
        return false;
    bool turns = false; /* by the length that was planned */
    for (int l = 0; l < en->model.L; l++) {
        const Layer *y = &en->model.layer[l];
        for (const Key *k = y->kind->mixer->keys; k->name; k++) {
            const RopeCfg *r = (const RopeCfg *)((const char *)y->cfg + k->at);
            turns |= k->sub == rope_keys && (r->type == ROPE_DYNAMIC || r->type == ROPE_LONGROPE);
        }
    }
    if (turns) *h = rng_mix(*h, (uint64_t)planned);
    return true;
}

void engine_close(Engine *en) {
    tokenizer_close(&en->tokenizer);
    if (en->model.dev) model_close(&en->model); /* it may not be open yet */
    device_close(en->dev);
    model_cfg_free(&en->cfg);
}
