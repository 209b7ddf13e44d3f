/* kvsmith info: what a model is and what it costs. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>
#include "ops/text.h"
#include "model/cost.h"
#include "model/config/data_spec.h"
#include "model/files/hf.h"
#include "model/files/safetensors.h"
#include "ops/file.h"
#include "engine.h"

int cmd_info(int argc, char **argv);

typedef struct {
    const char *model;
    int64_t context, batch;
    bool families, policies, codecs;
} Args;
enum { OPT_CONTEXT = 0x100, OPT_BATCH, OPT_FAMILIES, OPT_POLICIES, OPT_CODECS };

static bool cmd_info_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    switch (key) {
    case CLI_ARG: a->model = arg; return true;
    case OPT_POLICIES: a->policies = true; return true;
    case OPT_CODECS: a->codecs = true; return true;
    case OPT_CONTEXT: return cli_int(arg, "--context", 1, 1 << 30, &a->context, e);
    case OPT_FAMILIES: a->families = true; return true;
    case OPT_BATCH: return cli_int(arg, "--batch", 1, 1 << 20, &a->batch, e);
    }
    CHECK(false, "option %d", key);
    return false;
}

/* The facts about a model, with or without weights. */
typedef struct {
    const Model *m;
    const char *dir;        /* NULL: a configuration */
    const char *tokenizer;  /* "byte", "bpe" or "none" */
    const StepMemory *step; /* NULL: not a training configuration */
    int rows;               /* of its micro-batch */
    size_t weights;         /* resident bytes of a model's */
} Subject;

static double cmd_info_all(size_t bytes, const Args *a) { return (double)bytes * (double)a->batch; }

static json_t *layers_json(const Model *m, const CacheCost *c, const Args *a) {
    json_t *list = json_array();
    for (int l = 0; l < m->L; l++) {
        const LayerCache *y = &c->layer[l];
        json_array_append_new(list, json_pack("{s:i, s:s, s:s, s:i, s:i, s:I, s:I, s:I}", "layer", l, "kind",
                                              m->layer[l].kind->name, "mixer", m->layer[l].kind->mixer->name, "kv_from",
                                              m->layer[l].kv_from, "rows", y->rows, "bytes_per_token",
                                              (json_int_t)y->token_bytes, "state_bytes",
                                              (json_int_t)cmd_info_all(y->state_bytes, a), "bytes_at_context",
                                              (json_int_t)cmd_info_all(y->bytes, a)));
    }
    return list;
}

static json_t *report_json(const Subject *s, const Cost *k, const CacheCost *c, const Args *a) {
    const ModelCfg *cfg = &s->m->cfg;
    json_t *flops = json_pack("{s:f, s:f, s:f, s:{s:f, s:s, s:I}, s:{s:f, s:s, s:I}}", "forward", k->forward, "decode",
                              k->decode, "itemised", k->itemised, "all_half", "value", k->all_half, "formula",
                              "6 N_active + 6 L C T", "N", (json_int_t)k->active, "matmul_full", "value",
                              k->matmul_full, "formula", "6 N_matmul + 12 L H Q T_eff", "N", (json_int_t)k->matmul);
    json_t *cache = json_pack("{s:I, s:I, s:I, s:b, s:I, s:I, s:o}", "bytes_per_token", (json_int_t)c->bytes_per_token,
                              "state_bytes", (json_int_t)cmd_info_all(c->state_bytes, a), "bytes_at_context",
                              (json_int_t)cmd_info_all(c->bytes_at_context, a), "at_most", c->at_most,
                              "mha_bytes_per_token", (json_int_t)c->mha_bytes_per_token, "mha_bytes_at_context",
                              (json_int_t)cmd_info_all(c->mha_bytes_at_context, a), "layers", layers_json(s->m, c, a));
    json_t *j =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:b, s:s, s:i, s:I, s:f, s:o, s:o}", "model",
                  s->dir ? s->dir : a->model, "params", (json_int_t)k->params, "params_active", (json_int_t)k->active,
                  "params_embedding", (json_int_t)k->embedding, "params_matmul", (json_int_t)k->matmul, "layer_count",
                  cfg->layers, "d_model", cfg->d_model, "vocab", cfg->vocab, "max_positions", cfg->max_positions,
                  "tied", cfg->tied, "tokenizer", s->tokenizer, "context", c->context, "batch", (json_int_t)a->batch,
                  "flops_per_token", k->itemised, "flops", flops, "cache", cache);
    if (j && s->dir) json_object_set_new(j, "weights_bytes", json_integer((json_int_t)s->weights));
    char name[CODEC_NAMES_MAX] = "";
    for (int i = 0; s->m->opts.codec->name[i]; i++) name[i] = (char)toupper((unsigned char)s->m->opts.codec->name[i]);
    if (j) json_object_set_new(cache, "dtype", json_string(name));
    if (j && c->once_per_token)
        json_object_set_new(cache, "once_per_token", json_integer((json_int_t)c->once_per_token));
    if (j && s->step)
        json_object_set_new(j, "step_memory",
                            json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "rows", s->rows, "weights",
                                      (json_int_t)s->step->weights, "gradients", (json_int_t)s->step->gradients,
                                      "moment1", (json_int_t)s->step->moment1, "moment2", (json_int_t)s->step->moment2,
                                      "saved", (json_int_t)s->step->saved, "scratch", (json_int_t)s->step->scratch,
                                      "total", (json_int_t)s->step->total));
    return j;
}

/* "1.50 MB" into buf. */
static const char *cmd_info_human(double n, const char *unit, char buf[32]) {
    static const char *const prefix[] = {"", "k", "M", "G", "T", "P"};
    int i = 0;
    for (; n >= 999.5 && i < 5; i++) n /= 1000;
    snprintf(buf, 32, "%.*f %s%s", i ? 2 : 0, n, prefix[i], unit);
    return buf;
}

/* One line of the table is enough for both. */
static bool layers_alike(const Model *m, const CacheCost *c, int a, int b) {
    const Layer *x = &m->layer[a], *y = &m->layer[b];
    bool own = x->kv_from == a && y->kv_from == b, from = x->kv_from != a && x->kv_from == y->kv_from;
    return x->kind == y->kind && (own || from) && c->layer[a].rows == c->layer[b].rows &&
           c->layer[a].token_bytes == c->layer[b].token_bytes && c->layer[a].state_bytes == c->layer[b].state_bytes;
}

static void cmd_info_report_text(const Subject *s, const Cost *k, const CacheCost *c, const Args *a) {
    const ModelCfg *cfg = &s->m->cfg;
    char b[6][32];
    printf("model       %s\n", s->dir ? s->dir : a->model);
    printf("shape       %d layers, d_model %d, vocabulary %d%s, %d positions, tokenizer %s\n", cfg->layers,
           cfg->d_model, cfg->vocab, cfg->tied ? " (tied)" : "", cfg->max_positions, s->tokenizer);
    printf("parameters  %zu (embedding %zu, matrices that multiply a token %zu)\n", k->params, k->embedding, k->matmul);
    if (s->dir)
        printf("in memory   %s%s\n", cmd_info_human((double)s->weights, "B", b[0]),
               s->m->opts.bf16_weights ? ", matrices as bf16" : "");
    if (k->active < k->params) printf("            %zu of them active: a token does not use the rest\n", k->active);
    printf("FLOPs/token, forward + backward, document of %d tokens:\n", k->context);
    printf("            %s  every term, causal, windows counted exactly (forward: %s)\n",
           cmd_info_human(k->itemised, "FLOP", b[0]), cmd_info_human(k->forward, "FLOP", b[1]));
    printf("            %s  6 N_active + 6 L C T, N_active = %zu\n", cmd_info_human(k->all_half, "FLOP", b[0]),
           k->active);
    printf("            %s  6 N_matmul + 12 L H Q T_eff, N_matmul = %zu\n",
           cmd_info_human(k->matmul_full, "FLOP", b[0]), k->matmul);
    printf("decoding    %s for the token after %d cached ones\n", cmd_info_human(k->decode, "FLOP", b[0]),
           k->context - 1);
    printf("cache       %s per token, %s of state; %d x %d tokens: %s\n",
           cmd_info_human((double)c->bytes_per_token, "B", b[0]),
           cmd_info_human(cmd_info_all(c->state_bytes, a), "B", b[1]), (int)a->batch, c->context,
           cmd_info_human(cmd_info_all(c->bytes_at_context, a), "B", b[2]));
    if (c->once_per_token)
        printf("            %s of it for the rows of one layer as f32, to which those of each are decoded in turn\n",
               cmd_info_human((double)c->once_per_token, "B", b[0]));
    if (c->at_most)
        printf("            at most: which rows are evicted depends on the text; generate reports what it kept\n");
    printf("as MHA      %s per token (2 L d_model elements); %d x %d tokens: %s\n",
           cmd_info_human((double)c->mha_bytes_per_token, "B", b[0]), (int)a->batch, c->context,
           cmd_info_human(cmd_info_all(c->mha_bytes_at_context, a), "B", b[1]));
    if (s->step)
        printf("step        %s for %d rows: weights %s, gradients and moments %s, activations %s, scratch %s\n",
               cmd_info_human((double)s->step->total, "B", b[0]), s->rows,
               cmd_info_human((double)s->step->weights, "B", b[1]),
               cmd_info_human((double)(s->step->gradients + s->step->moment1 + s->step->moment2), "B", b[2]),
               cmd_info_human((double)s->step->saved, "B", b[3]), cmd_info_human((double)s->step->scratch, "B", b[4]));
    printf("\n  layers  kind              mixer     K/V of   rows kept   bytes/token   state bytes\n");
    for (int l = 0, next; l < s->m->L; l = next) {
        const Layer *y = &s->m->layer[l];
        char which[32], from[16];
        for (next = l + 1; next < s->m->L && layers_alike(s->m, c, l, next);) next++;
        snprintf(which, sizeof which, next > l + 1 ? "%d-%d" : "%d", l, next - 1);
        snprintf(from, sizeof from, y->kv_from != l ? "%d" : c->layer[l].token_bytes ? "own" : "-", y->kv_from);
        printf("%8s  %-16.16s  %-8.8s  %6s  %10d  %12zu  %12zu\n", which, y->kind->name, y->kind->mixer->name, from,
               c->layer[l].rows, c->layer[l].token_bytes, c->layer[l].state_bytes);
    }
}

static bool cmd_info_report(const Subject *s, const Args *a, const Cli *cli, Err *e) {
    int context = a->context ? (int)a->context : s->m->cfg.max_positions;
    Cost k = cost_model(s->m, context);
    CacheCost *c = xcalloc(1, sizeof *c);
    cost_cache(s->m, context, c);
    bool ok = true;
    if (cli->json)
        ok = engine_print(report_json(s, &k, c, a), e);
    else
        cmd_info_report_text(s, &k, c, a);
    free(c);
    return ok;
}

static bool json_check(const char *dir, const char *name, Err *e) {
    char *path = xformat("%s/%s", dir, name);
    json_t *j = file_exists(dir, name, e) ? json_read(path, e) : e->status ? NULL : json_null();
    free(path);
    json_decref(j);
    return j != NULL;
}

/* Checks the files that a run keeps next to its model, if there are any: a damaged file shows now and not when the run
 * is resumed. */
static bool rest_check(const char *dir, Err *e) {
    static const char *const json[] = {"tokenizer_config.json", "trainer/state.json", "trainer/manifest.json"};
    for (int i = 0; i < 3; i++)
        if (!json_check(dir, json[i], e)) return false;
    char *trainer = xformat("%s/trainer", dir);
    int fd = TEMP_FAILURE_RETRY(open(trainer, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    bool ok = fd >= 0 || errno == ENOENT || errno == ENOTDIR || err_errno(e, "cannot open", trainer);
    Names l = {0};
    if (fd >= 0) ok = file_names(&l, fd, trainer, e), close(fd);
    for (int i = 0; ok && i < l.n; i++) {
        St st;
        if (fnmatch("optimizer*.safetensors", l.name[i], 0)) continue;
        char *path = xformat("%s/%s", trainer, l.name[i]);
        ok = st_open(&st, path, e);
        if (ok) st_close(&st);
        free(path);
    }
    names_free(&l);
    free(trainer);
    return ok;
}

static bool info_dir(const Args *a, const Cli *cli, Err *e) {
    Engine en;
    if (!engine_measure(&en, a->model, cli, e)) return false;
    if (!rest_check(en.dir, e)) {
        engine_close(&en);
        return false;
    }
    Subject s = {.m = &en.model, .dir = en.dir, .tokenizer = !en.text ? "none" : en.tokenizer.model ? "bpe" : "byte"};
    s.weights = cost_regions(&en.model, NULL).weights;
    bool ok = cmd_info_report(&s, a, cli, e);
    if (ok && !cli->json && !cli->quiet) hf_notes(en.dir, stdout);
    engine_close(&en);
    return ok;
}

static bool info_config(const Args *a, const Cli *cli, Err *e) {
    Config *c = xcalloc(1, sizeof *c);
    Device *dev;
    Model m;
    bool ok = config_read(c, a->model, 0, NULL, e);
    if (!ok) {
        free(c);
        return false;
    }
    const TaskCfg *task = c->data.task.kind ? &c->data.task : NULL;
    if (!c->model.vocab) {
        Tokenizer tk = {.vocab = task ? task->vocab : 0};
        if (!task && !data_tokenizer(&c->data, &tk, e)) {
            config_free(c);
            free(c);
            return false;
        }
        c->model.vocab = tk.vocab;
        tokenizer_close(&tk);
    }
    int rows = c->train.micro_batch * c->data.seq_len;
    ModelOpts o = {.train = true,
                   .max_rows = rows,
                   .max_samples = c->train.micro_batch,
                   .dropout = c->train.dropout,
                   .recompute = c->train.recompute,
                   .dry = true};
    ok = engine_device(&dev, cli, e);
    if (ok) {
        Workspace work;
        ok = model_open(&m, dev, &c->model, engine_bf16(cli, o), e);
        const bool open = ok;
        ok = ok && workspace_open(&work, &m, e);
        if (ok) {
            StepMemory step = cost_regions(&m, &work);
            Subject s = {.m = &m,
                         .tokenizer = task                                ? "none"
                                      : strcmp(c->data.tokenizer, "byte") ? "bpe"
                                                                          : "byte",
                         .step = &step,
                         .rows = rows};
            ok = cmd_info_report(&s, a, cli, e);
            workspace_close(&work);
        }
        if (open) model_close(&m);
        device_close(dev);
    }
    config_free(c);
    free(c);
    return ok;
}

/* "budget=0.5 window=16" */
static char *policy_settings(const Policy *p) {
    char *all = xstrdup("");
    const Key *k;
    for (int i = 0; (k = policy_key(p, i)); i++) {
        char *more = xformat("%s%s%s=%s", all, *all ? " " : "", k->name, k->dflt);
        free(all);
        all = more;
    }
    return all;
}
/* The table of policies: for people a table in Markdown. */
static bool info_policies(const Cli *cli, Err *e) {
    json_t *list = json_array();
    if (!cli->json) printf("| policy | source | rows that stay | not here | settings |\n|---|---|---|---|---|\n");
    for (int i = 0; policy_at(i); i++) {
        const Policy *p = policy_at(i);
        char *settings = policy_settings(p);
        if (cli->json)
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s?, s:s}", "policy", p->name, "source", p->source,
                                                  "keeps", p->meaning, "lacks", p->lacks, "settings", settings));
        else
            printf("| `%s` | %s | %s | %s | `%s` |\n", p->name, p->source, p->meaning, p->lacks ? p->lacks : "",
                   settings);
        free(settings);
    }
    json_t *absent = json_array();
    const PolicyAbsent *a;
    for (int i = 0; (a = policy_absent(i)); i++) {
        json_array_append_new(absent,
                              json_pack("{s:s, s:s, s:s}", "name", a->name, "source", a->source, "why", a->why));
        if (!cli->json) printf("| %s | %s | not implemented | %s | |\n", a->name, a->source, a->why);
    }
    if (cli->json) return engine_print(json_pack("{s:o, s:o}", "policies", list, "absent", absent), e);
    json_decref(list), json_decref(absent);
    return true;
}

/* The table of codecs, with the bytes of a key of 64 and of 128 numbers. */
static bool info_codecs(const Cli *cli, Err *e) {
    json_t *list = json_array();
    if (!cli->json) printf("| codec | an element | bytes of 64 | bytes of 128 | settings |\n|---|---|---|---|---|\n");
    for (int i = 0; codec_at(i); i++) {
        const RowCodec *c = codec_at(i);
        char settings[CODEC_TEXT_MAX];
        codec_settings(c, ' ', settings);
        const int small = (int)codec_part_bytes(c, 64), large = (int)codec_part_bytes(c, 128);
        if (cli->json)
            json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i, s:s}", "codec", c->name, "meaning", c->meaning,
                                                  "bytes_of_64", small, "bytes_of_128", large, "settings", settings));
        else
            printf("| `%s` | %s | %d | %d | %s%s%s |\n", c->name, c->meaning, small, large, *settings ? "`" : "",
                   settings, *settings ? "`" : "");
    }
    if (cli->json) return engine_print(json_pack("{s:o}", "codecs", list), e);
    json_decref(list);
    return true;
}

int cmd_info(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"context", OPT_CONTEXT, "N", 0,
         "Tokens of a document, for FLOPs and cache bytes (default: the model's positions)", 0},
        {"batch", OPT_BATCH, "N", 0, "Sequences, for cache bytes (default 1)", 0},
        {"families", OPT_FAMILIES, 0, 0, "Print the Hugging Face model types that are read and written, and exit", 0},
        {"policies", OPT_POLICIES, 0, 0, "Print the cache policies that --policy accepts, and exit", 0},
        {"codecs", OPT_CODECS, 0, 0, "Print the codecs that --cache-dtype accepts, and exit", 0},
        {0}};
    static const CliSpec spec = {
        .args = "MODEL|CONFIG.yaml\n--families\n--policies\n--codecs",
        .doc = "Checks every file of a model, or the configuration of a run, and prints parameters, FLOPs per token "
               "and cache bytes, compared with multi-head attention of the same width.",
        .options = options,
        .take = cmd_info_take,
        .min_args = 0,
        .cache = true,
        .tuning = true,
        .adapter = true,
        .max_args = 1};
    Args a = {.batch = 1};
    Cli cli;
    Err e = {0};
    struct stat st;
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    if (a.families + a.policies + a.codecs + (a.model != NULL) != 1) {
        err_input(
            &e, "info: expected MODEL|CONFIG.yaml, --families, --policies or --codecs alone; see kvsmith info --help");
        return cli_fail(&e);
    }
    if (a.families && !cli.json) return hf_families_text(stdout), 0;
    if (a.families) return engine_print(json_pack("{so}", "families", hf_families_json()), &e) ? 0 : cli_fail(&e);
    if (a.codecs) return info_codecs(&cli, &e) ? 0 : cli_fail(&e);
    if (a.policies) return info_policies(&cli, &e) ? 0 : cli_fail(&e);
    engine_signals();
    bool there = file_look(a.model, &st, &e), dir = there && S_ISDIR(st.st_mode);
    if (e.status) return cli_fail(&e);
    char hub[200];
    dir |= !there && *hub_text(a.model, "", hub); /* which is then said not to be there */
    if (!dir && cli.adapter) {
        err_input(&e, "--adapter: needs a model directory as MODEL, got %.150s", a.model);
        return cli_fail(&e);
    }
    return (dir ? info_dir(&a, &cli, &e) : info_config(&a, &cli, &e)) ? 0 : cli_fail(&e);
}
