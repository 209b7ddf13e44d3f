/* kvsmith eval: how well a model knows a text, or answers the questions of a task. */
#include "choices.h"
#include "eval_ppl.h"
#include "eval_task.h"
#include "infer/session.h"

int cmd_eval(int argc, char **argv);

enum { WORDS_MAX = 64 };
typedef struct {
    const char *model, *task, *data, *separator;
    int64_t context, stride, batch, chunk, limit, buckets;
    bool decode, items, force, bytes, agnostic, against;
    int nword;
    char *word[WORDS_MAX];
} Args;
enum {
    OPT_DATA = 0x100,
    OPT_SEPARATOR,
    OPT_CONTEXT,
    OPT_STRIDE,
    OPT_BATCH,
    OPT_CHUNK,
    OPT_DECODE,
    OPT_LIMIT,
    OPT_ITEMS,
    OPT_FORCE,
    OPT_ENCODING,
    OPT_AGNOSTIC,
    OPT_AGAINST,
    OPT_BUCKETS
};
static const struct argp_option options[] = {
    {"data", OPT_DATA, "FILE", 0, "ppl: a text or a token dataset; choices: a JSONL file (required)", 0},
    {"separator", OPT_SEPARATOR, "TEXT", 0, "ppl: text that separates documents (default: the file is one document)",
     0},
    {"context", OPT_CONTEXT, "N", 0, "ppl, choices: tokens per window (default: the model's positions)", 0},
    {"stride", OPT_STRIDE, "N", 0,
     "ppl: tokens from one window to the next; each token is scored once, in the first window that has it (default: "
     "the context)",
     0},
    {"batch", OPT_BATCH, "N", 0, "Windows, samples or contexts at once (default 8)", 0},
    {"chunk", OPT_CHUNK, "N", 0, "Rows of one pass over the cache (default 512)", 0},
    {"decode", OPT_DECODE, 0, 0,
     "TASK: feed a sample to the cache in pieces that end with a question, instead of in one pass", 0},
    {"limit", OPT_LIMIT, "N", 0, "choices: only the first N items", 0},
    {"per-item", OPT_ITEMS, 0, 0, "choices: add every item's log-likelihoods to the JSON", 0},
    {"force", OPT_FORCE, 0, 0, "TASK: score a model even if it was not trained on a task", 0},
    {"encoding", OPT_ENCODING, "NAME", 0,
     "ppl: utf8: refuse a file that is not UTF-8 text; bytes: accept any bytes (default utf8)", 0},
    {"buckets", OPT_BUCKETS, "N", 0, "ppl: also of N equal parts of the context, by a token's place in its window", 0},
    {"agnostic", OPT_AGNOSTIC, 0, 0,
     "TASK of text: end the prompt before the question, so that a policy that acts there does not know it", 0},
    {"against", OPT_AGAINST, "dense", 0,
     "ppl, TASK: compare with a cache without --policy and --cache-dtype: KL and top-1 agreement", 0},
    {0}};

static bool cmd_eval_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    switch (key) {
    case CLI_ARG:
        if (!a->model)
            a->model = arg;
        else if (!a->task && !strchr(arg, '='))
            a->task = arg;
        else if (!strchr(arg, '='))
            return err_input(e, "eval: unexpected word '%.100s'; expected KEY=VALUE", arg);
        else if (a->nword == WORDS_MAX)
            return err_input(e, "eval: more than %d key=value words", WORDS_MAX);
        else
            a->word[a->nword++] = (char *)arg;
        return true;
    case OPT_DECODE: a->decode = true; return true;
    case OPT_ITEMS: a->items = true; return true;
    case OPT_FORCE: a->force = true; return true;
    case OPT_ENCODING:
        a->bytes = !strcmp(arg, "bytes");
        return a->bytes || !strcmp(arg, "utf8") || err_input(e, "--encoding: expected utf8 or bytes, got '%.60s'", arg);
    case OPT_BUCKETS: return cli_int(arg, "--buckets", 1, 4096, &a->buckets, e);
    case OPT_AGNOSTIC: a->agnostic = true; return true;
    case OPT_AGAINST:
        a->against = true;
        return !strcmp(arg, "dense") || err_input(e, "--against: expected dense, got '%.60s'", arg);
    case OPT_LIMIT: return cli_int(arg, "--limit", 1, INT64_MAX, &a->limit, e);
    case OPT_DATA: a->data = arg; return true;
    case OPT_SEPARATOR: a->separator = arg; return true;
    case OPT_CONTEXT: return cli_int(arg, "--context", 1, 1 << 22, &a->context, e);
    case OPT_STRIDE: return cli_int(arg, "--stride", 1, 1 << 22, &a->stride, e);
    case OPT_BATCH: return cli_int(arg, "--batch", 1, 4096, &a->batch, e);
    case OPT_CHUNK: return cli_int(arg, "--chunk", 1, 1 << 20, &a->chunk, e);
    }
    CHECK(false, "option %d", key);
    return false;
}

static bool ppl_eval(const Args *a, const Cli *cli, Err *e) {
    if (a->nword) return err_input(e, "eval ppl: unexpected word '%.100s'", a->word[0]);
    if (a->decode) return err_input(e, "eval ppl: --decode is only for tasks; a text always uses the cache");
    if (a->limit || a->items) return err_input(e, "eval ppl: --limit and --per-item are only for choices");
    if (a->force) return err_input(e, "eval ppl: --force is only for tasks");
    if (a->agnostic) return err_input(e, "eval ppl: --agnostic is only for tasks");
    if (!a->data) return err_input(e, "eval ppl: expected --data FILE; see kvsmith eval --help");
    const EvalPpl p = {a->model, a->data,  a->separator, a->context, a->stride,
                       a->batch, a->chunk, a->buckets,   a->bytes,   a->against};
    return eval_ppl(&p, cli, e);
}

static bool choices_eval(const Args *a, const Cli *cli, Err *e) {
    const char *alien = a->separator  ? "--separator"
                        : a->stride   ? "--stride"
                        : a->decode   ? "--decode"
                        : a->force    ? "--force"
                        : a->bytes    ? "--encoding"
                        : a->agnostic ? "--agnostic"
                        : a->against  ? "--against"
                        : a->buckets  ? "--buckets"
                                      : NULL;
    if (a->nword) return err_input(e, "eval choices: unexpected word '%.100s'", a->word[0]);
    if (alien) return err_input(e, "eval choices: %s is not an option of choices", alien);
    if (!a->data) return err_input(e, "eval choices: expected --data FILE.jsonl; see kvsmith eval --help");
    Choices c = {a->model, a->data, a->context, a->limit, (int)a->batch, (int)a->chunk, a->items};
    return eval_choices(&c, cli, e);
}

static bool task_eval(Args *a, const Cli *cli, Err *e) {
    const char *alien = a->data        ? "--data"
                        : a->separator ? "--separator"
                        : a->context   ? "--context"
                        : a->stride    ? "--stride"
                        : a->limit     ? "--limit"
                        : a->items     ? "--per-item"
                        : a->bytes     ? "--encoding"
                        : a->buckets   ? "--buckets"
                                       : NULL;
    if (a->task && !task_find(a->task)) {
        char names[180] = "ppl, choices";
        for (int i = 0; tasks[i]; i++)
            snprintf(names + strlen(names), sizeof names - strlen(names), ", %s", tasks[i]->name);
        return err_input(e,
                         "eval: expected one of %s, got '%.40s'; a multiple-choice benchmark is a file of lines "
                         "{\"ctx\": TEXT, \"cont\": [TEXT...], \"gold\": 0}: eval MODEL choices --data FILE.jsonl",
                         names, a->task);
    }
    if (alien && !a->task)
        return err_input(e, "eval: %s is not an option of a task; expected MODEL ppl or MODEL choices", alien);
    if (alien) return err_input(e, "eval %s: %s is not an option of a task", a->task, alien);
    EvalTask t = {a->model, a->task,     (int)a->batch, (int)a->chunk, a->decode,
                  a->force, a->agnostic, a->against,    a->nword,      a->word};
    return eval_task(&t, cli, e);
}

int cmd_eval(int argc, char **argv) {
    static const CliSpec spec = {
        .args = "MODEL [ppl|choices|TASK] [KEY=VALUE...]",
        .doc = "ppl: perplexity of a text. The text is cut into windows; in each, every token predicts the next. nll "
               "is the mean in nats per token, ppl its exponential; bits_per_byte divides by the bytes of the "
               "predicted tokens, where end-of-text has none. Documents do not see each other. choices: the likeliest "
               "continuation of a context, by the rules of lm-evaluation-harness. A line of the file is {\"ctx\": "
               "TEXT, \"cont\": [TEXT, ...], \"gold\": N}; acc compares the sums of log-likelihoods, acc_norm the sums "
               "per character. TASK: see kvsmith config; omit it for the task that the "
               "model was trained on. accuracy: fraction of answers that greedy decoding gets right; sample_accuracy: "
               "fraction of samples with every answer right. Keys: samples (1000), seed, T (tokens of a sample) and "
               "the task's keys (see kvsmith config); defaults are those that the model was trained with.",
        .options = options,
        .take = cmd_eval_take,
        .min_args = 1,
        .cache = true,
        .tier = true,
        .tuning = true,
        .adapter = true,
        .max_args = -1};
    Args a = {.batch = 8, .chunk = CHUNK_ROWS};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    engine_signals();
    const char *task = a.task ? a.task : "";
    bool ok = !strcmp(task, "ppl")       ? ppl_eval(&a, &cli, &e)
              : !strcmp(task, "choices") ? choices_eval(&a, &cli, &e)
                                         : task_eval(&a, &cli, &e);
    return ok ? 0 : cli_fail(&e);
}
