/* kvsmith convert: a checkpoint in one layout into another. */
#include <errno.h>
#include <sys/stat.h>
#include "data/indexed.h"
#include "model/cli.h"
#include "model/config/data_spec.h"
#include "convert.h"
#include "ops/isa.h"
#include "ops/signals.h"
#include <jansson.h>

int cmd_convert(int argc, char **argv);

enum { OPT_TO = 0x100, OPT_CALIB, OPT_CONTEXT, OPT_CALIB_TOKENS, OPT_CHECK_TOKENS, OPT_RULES, OPT_PLAN };
static const struct argp_option options[] = {
    {"to", OPT_TO, "LAYOUT", 0, "The layout to convert to (required); its settings follow as KEY=VALUE", 0},
    {"calib", OPT_CALIB, "FILE", 0, "A text for methods that need activations, and for comparing source and result", 0},
    {"context", OPT_CONTEXT, "N", 0, "Tokens per window of the text (default 512, at most the model's positions)", 0},
    {"calib-tokens", OPT_CALIB_TOKENS, "N", 0, "Tokens of the text used for activations (default 16384)", 0},
    {"check-tokens", OPT_CHECK_TOKENS, "N", 0,
     "Tokens on which source and result are compared: from the text, else from a built-in text, else random ids; 0: do "
     "not compare (default 1024)",
     0},
    {"plan", OPT_PLAN, 0, 0,
     "Only print the result's parameters, cache and settings; SRC may be a configuration, omit DST", 0},
    {"rules", OPT_RULES, 0, 0, "Only print the table of layouts, as Markdown", 0},
    {0}};

typedef struct {
    ConvertOpts o;
    int64_t context, calib, check;
    bool rules, plan;
    char *word[CONVERT_WORDS];
} Args;

/* KEY=VALUE; a path may have a = after its first /. */
static bool cmd_convert_setting(const char *arg) {
    const char *eq = strchr(arg, '=');
    return eq && !memchr(arg, '/', (size_t)(eq - arg));
}

static bool cmd_convert_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    const bool word = key == CLI_ARG && cmd_convert_setting(arg);
    switch (key) {
    case CLI_ARG:
        if (!word && !a->o.src)
            a->o.src = arg;
        else if (!word && !a->o.dst)
            a->o.dst = arg;
        else if (!word)
            return err_input(e, "convert: unexpected word '%.100s'; expected KEY=VALUE", arg);
        else if (a->o.nword == CONVERT_WORDS)
            return err_input(e, "convert: more than %d key=value words", CONVERT_WORDS);
        else
            a->word[a->o.nword++] = (char *)arg;
        return true;
    case OPT_TO: a->o.to = arg; return true;
    case OPT_CALIB: a->o.calib = arg; return true;
    case OPT_CONTEXT: return cli_int(arg, "--context", 2, 1 << 20, &a->context, e);
    case OPT_CALIB_TOKENS: return cli_int(arg, "--calib-tokens", 2, 1 << 28, &a->calib, e);
    case OPT_CHECK_TOKENS: return cli_int(arg, "--check-tokens", 0, 1 << 28, &a->check, e);
    case OPT_PLAN: a->plan = true; return true;
    case OPT_RULES: a->rules = true; return true;
    }
    CHECK(false, "option %d", key);
    return false;
}

/* A file's name may be any bytes, JSON's text is UTF-8 alone. */
static json_t *name_json(const char *name) {
    json_t *j = json_string(name);
    if (j) return j;
    char *text = xcalloc(3 * strlen(name) + 1, 1), *to = text;
    for (; *name; name++)
        if (*name & 0x80)
            memcpy(to, "\xEF\xBF\xBD", 3), to += 3; /* U+FFFD */
        else
            *to++ = *name;
    j = json_string(text);
    free(text);
    return j;
}

static json_t *cmd_convert_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static bool cmd_convert_put(json_t *j, Err *e) {
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    if (!text) return err_runtime(e, "the result cannot be written as JSON");
    bool ok = puts(text) >= 0 && fflush(stdout) == 0;
    free(text);
    return ok || err_runtime(e, "standard output: %s", strerror(errno));
}

static json_t *size_json(ConvertSize s) {
    return json_pack("{s:I, s:I, s:I, s:I}", "params", (json_int_t)s.params, "bytes", (json_int_t)s.bytes,
                     "cache_bytes_per_token", (json_int_t)s.cache_token, "state_bytes", (json_int_t)s.cache_state);
}
static bool print_json(const ConvertOpts *o, const ConvertReport *r, Err *e) {
    const ConvertCheck *c = &r->check;
    json_t *check = c->text
                        ? json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:f}", "text", c->text, "tokens",
                                    c->tokens, "max_logit_diff", cmd_convert_number(c->logit_diff), "max_logit",
                                    cmd_convert_number(c->logit_max), "rounding", cmd_convert_number(c->rounding), "kl",
                                    cmd_convert_number(c->kl), "ppl_before", cmd_convert_number(c->ppl_before),
                                    "ppl_after", cmd_convert_number(c->ppl_after), "top1", c->top1)
                        : json_null();
    json_t *j = json_pack("{s:o, s:o, s:s, s:s, s:b, s:s, s:s, s:o, s:o, s:o, s:I, s:f}", "src", name_json(o->src),
                          "dst", name_json(o->dst), "to", o->to, "rule", r->rule, "exact", r->exact, "rounded",
                          r->rounded, "note", r->note, "before", size_json(r->before), "after", size_json(r->after),
                          "check", check, "memory_bytes", (json_int_t)r->memory, "seconds", r->seconds);
    return cmd_convert_put(j, e);
}

static void cmd_convert_print(const ConvertOpts *o, const ConvertReport *r) {
    const ConvertCheck *c = &r->check;
    printf("%s: %s (%s%s%s)\n", o->dst, r->rule, r->exact ? "lossless" : "approximate",
           *r->rounded ? ": lossless but for rounding to " : "", r->rounded);
    if (*r->note) printf("  %s\n", r->note);
    printf("  parameters      %15zu -> %15zu\n  tensor bytes    %15zu -> %15zu\n", r->before.params, r->after.params,
           r->before.bytes, r->after.bytes);
    printf("  cache per token %15zu -> %15zu bytes\n", r->before.cache_token, r->after.cache_token);
    if (r->before.cache_state || r->after.cache_state)
        printf("  state           %15zu -> %15zu bytes\n", r->before.cache_state, r->after.cache_state);
    if (c->text) {
        printf("  %d tokens (%s): KL %.3g, top-1 agreement %.2f %%, largest logit difference %.3g of %.3g\n", c->tokens,
               c->text, c->kl, 100 * c->top1, c->logit_diff, c->logit_max);
        printf("  perplexity      %15.4g -> %15.4g\n", c->ppl_before, c->ppl_after);
    }
    printf("  %.1f s, %.0f MiB of memory in addition to the files\n", r->seconds, (double)r->memory / (1 << 20));
    if (!r->foreign) printf("  train it further: kvsmith train %s/train.yaml\n", o->dst);
}

/* ---- --plan -------------------------------------------------------------------------------------------------------
 */

static bool source_settings(const char *src, ModelCfg *m, Err *e) {
    struct stat st;
    char dir[4096];
    if (stat(src, &st) || S_ISDIR(st.st_mode)) return model_dir_resolve(src, dir, e) && hf_config_read(dir, m, e);
    Config *c = xcalloc(1, sizeof *c);
    Tokenizer tk = {0};
    bool ok = config_read(c, src, 0, NULL, e);
    if (ok) {
        if (!c->model.vocab) {
            ok = c->data.task.kind || data_tokenizer(&c->data, &tk, e);
            c->model.vocab = c->data.task.kind ? c->data.task.vocab : tk.vocab;
            tokenizer_close(&tk);
        }
        *m = c->model;
        c->model = (ModelCfg){0};
        config_free(c);
        if (!ok) model_cfg_free(m);
    }
    free(c);
    return ok;
}

static bool print_plan(const ConvertOpts *o, Device *dev, const Cli *cli, Err *e) {
    ModelCfg *from = xcalloc(2, sizeof *from), *to = from + 1;
    ConvertReport r;
    bool ok = source_settings(o->src, from, e);
    if (!ok) {
        free(from);
        return false;
    }
    ok = convert_plan(o, from, dev, &r, to, e);
    model_cfg_free(from);
    if (ok) {
        char *text = model_cfg_json(to);
        model_cfg_free(to);
        if (cli->json) {
            json_t *j = json_pack("{s:s, s:s, s:b, s:s, s:o, s:o, s:o}", "to", o->to, "rule", r.rule, "exact", r.exact,
                                  "note", r.note, "before", size_json(r.before), "after", size_json(r.after), "model",
                                  json_loads(text, 0, NULL));
            json_object_del(json_object_get(j, "before"), "bytes"); /* which need the files */
            json_object_del(json_object_get(j, "after"), "bytes");
            ok = cmd_convert_put(j, e);
        } else {
            printf(
                "%s (%s)\n  parameters      %15zu -> %15zu\n  cache per token %15zu -> %15zu bytes\n  state           "
                "%15zu -> %15zu bytes\n  model: %s\n",
                r.rule, r.exact ? "lossless" : "approximate", r.before.params, r.after.params, r.before.cache_token,
                r.after.cache_token, r.before.cache_state, r.after.cache_state, text);
        }
        free(text);
    }
    free(from);
    return ok;
}

int cmd_convert(int argc, char **argv) {
    static const CliSpec spec = {.args = "SRC DST --to LAYOUT [KEY=VALUE...]",
                                 .doc =
                                     "Converts SRC (a model directory or a run folder) to another KV-cache layout, "
                                     "writes it to the new model directory DST and prints what changed. If the "
                                     "conversion fails, DST does not exist. kvsmith convert --rules lists the layouts.",
                                 .options = options,
                                 .take = cmd_convert_take,
                                 .adapter = true,
                                 .min_args = 0,
                                 .max_args = -1};
    Args a = {.context = CONVERT_CONTEXT, .calib = CONVERT_CALIB_TOKENS, .check = CONVERT_CHECK_TOKENS};
    Cli cli;
    Err e = {0};
    int status;
    ConvertReport r;
    Device *dev;
    sigset_t both;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    if (a.rules) {
        convert_document(stdout);
        return 0;
    }
    if (a.plan && (!a.o.src || a.o.dst || !a.o.to)) {
        err_input(&e, "convert: expected SRC --to LAYOUT --plan, without DST; see kvsmith convert --help");
        return cli_fail(&e);
    }
    if (!a.plan && (!a.o.src || !a.o.dst || !a.o.to)) {
        const char *found = !a.o.src ? "without SRC" : !a.o.dst ? "without DST" : "without --to";
        err_input(&e, "convert: expected SRC DST --to LAYOUT, got words %s%s; see kvsmith convert --help", found,
                  !a.o.dst && a.o.nword ? " (a path with = is written ./a=b)" : "");
        return cli_fail(&e);
    }
    if (cli.bf16) {
        err_input(&e, "--dtype: conversions compute in f32; the setting dtype= of --to same is how tensors are stored");
        return cli_fail(&e);
    }
    a.o.word = a.word;
    a.o.adapter = cli.adapter;
    a.o.context = (int)a.context, a.o.calib_tokens = (int)a.calib, a.o.check_tokens = (int)a.check;
    /* looked for between tensors, so that an interrupted conversion leaves no folder */
    signals_set(&both);
    sigprocmask(SIG_BLOCK, &both, NULL);
    set_catch_sigbus();
    char name[DEVICE_NAME_MAX];
    if (!device_bind(name, "cpu", cli.isa, &e) || !device_open(&dev, name, imax(cli.threads, 0), &e))
        return cli_fail(&e);
    bool ok = a.plan ? print_plan(&a.o, dev, &cli, &e) : convert_run(&a.o, dev, &r, &e);
    device_close(dev);
    if (a.plan) return ok ? 0 : cli_fail(&e);
    ok = ok && (!cli.json || print_json(&a.o, &r, &e));
    if (ok && !cli.json && !cli.quiet) cmd_convert_print(&a.o, &r);
    return ok ? 0 : cli_fail(&e);
}
