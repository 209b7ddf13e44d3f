/* kvsmith eval: how well a model knows a text, or answers the questions of a task. */
#include <errno.h>
#include "../data/text.h"
#include "choices.h"
#include "eval_task.h"
#include "session.h"

int cmd_eval(int argc, char **argv);

enum { WORDS_MAX = 64 };
typedef struct {
    const char *model, *task, *data, *separator;
    int64_t context, stride, batch, chunk, limit;
    bool decode, items, force, bytes;
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
    OPT_ENCODING
};
static const struct argp_option options[] = {
    {"data", OPT_DATA, "FILE", 0, "ppl: the text, or a set of ids; choices: one JSON object a line (required)", 0},
    {"separator", OPT_SEPARATOR, "TEXT", 0,
     "ppl: what stands between two documents of the text (default: it is one document)", 0},
    {"context", OPT_CONTEXT, "N", 0, "ppl, choices: tokens of a window (default: the model's positions)", 0},
    {"stride", OPT_STRIDE, "N", 0,
     "ppl: from window to window; only tokens that no window scored before count (default: the context)", 0},
    {"batch", OPT_BATCH, "N", 0, "Windows, samples or contexts at the same time (default 8)", 0},
    {"chunk", OPT_CHUNK, "N", 0, "Rows of one pass over the cache (default 512)", 0},
    {"decode", OPT_DECODE, 0, 0,
     "A task: feed the cache piece by piece, a question at the end of each, instead of all rows in one pass", 0},
    {"limit", OPT_LIMIT, "N", 0, "choices: only the first N items", 0},
    {"per-item", OPT_ITEMS, 0, 0, "choices: the JSON also has every item's log-likelihoods", 0},
    {"force", OPT_FORCE, 0, 0, "A task: also score a model that was not trained on one", 0},
    {"encoding", OPT_ENCODING, "NAME", 0,
     "ppl: utf8: a file that is not text in UTF-8 is refused; bytes: any bytes are text (default utf8)", 0},
    {0}};

static bool take(void *ctx, int key, const char *arg, Err *e) {
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

/* Inputs at .. at+n-1 of the stream, of which the first `skip` are context alone: an earlier window scored them. */
typedef struct {
    size_t at;
    int n, skip;
} Window;
/* Window k of `context` inputs at a distance of `stride`. False: there is none. */
static bool window_at(const Tokens *t, size_t k, int context, int stride, Window *w) {
    size_t inputs = t->n - 1, at = k * (size_t)stride, before = k ? (k - 1) * (size_t)stride + (size_t)context : 0;
    if (k && before >= inputs) return false;
    *w = (Window){.at = at, .n = (int)zmin((size_t)context, inputs - at), .skip = k ? (int)(before - at) : 0};
    return true;
}

typedef struct {
    size_t tokens, bytes;
    double nll; /* sum, nats */
} Score;

static void score_row(Score *s, const Tokenizer *tk, const real *logits, int V, int target) {
    size_t n = 0;
    if (target < tk->vocab && !tokenizer_special(tk, target)) tokenizer_decode(tk, target, &n);
    s->nll += logits_nll(logits, V, target, NULL);
    s->bytes += n;
    s->tokens++;
}

typedef struct {
    Session s;
    const Tokens *stream;
    const Tokenizer *tk;
    int context, stride, chunk, *ids; /* ids: (nseq, context) inputs */
    Window *win;
    Feed *feed;
    real *logits; /* (chunk, V) */
} Work;

/* Feed `n` windows' tokens from..to-1 (cut at each window's end) in pieces that one pass can hold; score them or not.
 */
static bool feed_range(Work *w, int n, bool scored, Score *sum, Err *e) {
    int V = w->s.model->cfg.vocab, step = imax(1, w->chunk / n);
    for (int done = 0;; done += step) {
        int B = 0, rows = 0;
        for (int q = 0; q < n; q++) {
            int from = scored ? w->win[q].skip : 0, to = scored ? w->win[q].n : w->win[q].skip,
                m = imin(step, to - from - done);
            if (m <= 0) continue;
            w->feed[B++] = (Feed){q, m, w->ids + (size_t)q * (size_t)w->context + from + done};
            rows += m;
        }
        if (!B) return true;
        Tensor out = scored ? TENSOR(w->logits, REAL, rows, V) : ABSENT;
        if (!session_extend(&w->s, B, w->feed, WANT_ALL, out, e)) return false;
        const real *row = w->logits;
        for (int b = 0; scored && b < B; b++) {
            size_t first = w->win[w->feed[b].seq].at +
                           (size_t)(w->feed[b].tok - (w->ids + (size_t)w->feed[b].seq * (size_t)w->context));
            for (int i = 0; i < w->feed[b].n; i++, row += V)
                score_row(sum, w->tk, row, V, (int)token_at(w->stream, first + (size_t)i + 1));
        }
    }
}

static bool ppl(Work *w, int nseq, Score *sum, Err *e) {
    for (size_t k = 0;;) {
        int n = 0;
        for (; n < nseq && window_at(w->stream, k, w->context, w->stride, &w->win[n]); n++, k++) {
            session_reset(&w->s, n);
            for (int i = 0; i < w->win[n].n; i++)
                w->ids[(size_t)n * (size_t)w->context + (size_t)i] = (int)token_at(w->stream, w->win[n].at + (size_t)i);
        }
        if (!n) return isfinite(sum->nll) || err_world(e, "the model's loss is %g: its numbers are damaged", sum->nll);
        if (!feed_range(w, n, false, NULL, e) || !feed_range(w, n, true, sum, e)) return false;
    }
}

static bool report(const Score *s, int context, int stride, const Cli *cli, Err *e) {
    double nll = s->nll / (double)s->tokens, bpb = s->bytes ? s->nll / (log(2) * (double)s->bytes) : NAN;
    if (cli->json)
        return engine_print(json_pack("{s:s, s:I, s:f, s:o, s:o, s:I, s:i, s:i}", "task", "ppl", "tokens",
                                      (json_int_t)s->tokens, "nll", nll, "ppl", engine_number(exp(nll)),
                                      "bits_per_byte", engine_number(bpb), "bytes", (json_int_t)s->bytes, "context",
                                      context, "stride", stride),
                            e);
    printf("ppl %.6g   nll %.6f nats/token   %.6f bits/byte   %zu tokens, %zu bytes, context %d, stride %d\n", exp(nll),
           nll, bpb, s->tokens, s->bytes, context, stride);
    return true;
}

/* A set of ids was made elsewhere. */
static bool ids_fit(const Tokens *t, int V, Err *e) {
    for (size_t i = 0; i < t->n; i++) {
        int64_t id = token_at(t, i);
        if (id < 0 || id >= V)
            return err_input(e, "%s: token %zu is id %lld, expected 0 to %d, the model's vocabulary", t->name, i,
                             (long long)id, V - 1);
    }
    return true;
}

static bool eval_open(const Args *a, Engine *en, const Cli *cli, Err *e) {
    int context = a->context ? (int)a->context : en->cfg.max_positions, V = en->cfg.vocab;
    int stride = a->stride ? (int)a->stride : context;
    if (stride > context)
        return err_input(
            e, "eval ppl: --stride %d is more than the context of %d: the tokens between would never be scored", stride,
            context);
    Stream text;
    StreamSpec spec = {.ntrain = 1,
                       .train = &a->data,
                       .key = "--data",
                       .lift = a->bytes ? NULL : "--encoding bytes",
                       .separator = a->separator,
                       .seq_len = 1,
                       .threads = device_threads(en->dev),
                       .vocab = V};
    if (!stream_open(&text, &spec, &en->tokenizer, e)) return false;
    const Tokens *stream = &text.part[0];
    if (text.train.n != 1) {
        int parts = text.train.n;
        stream_close(&text);
        return err_input(e, "--data: %.180s names %d sets of ids; give one at a time", a->data, parts);
    }
    if (!ids_fit(stream, V, e)) {
        stream_close(&text);
        return false;
    }
    context = (int)zmin((size_t)context, stream->n - 1);
    stride = imin(stride, context);
    size_t windows = (stream->n - 1 + (size_t)stride - 1) / (size_t)stride;
    int nseq = (int)zmin((size_t)a->batch, windows);
    /* the logits of a pass are the one big thing: 64 MiB of them at most, unless one row of each window is more */
    int chunk = (int)zmin((size_t)a->chunk, zmax((size_t)nseq, (64u << 20) / sizeof(real) / (size_t)V));
    chunk = imax(chunk, nseq);
    SessionOpts o = {
        .nseq = nseq, .max_tokens = context, .chunk = chunk, .document = en->tokenizer.eot, .want_all = true};
    Work w = {.stream = stream, .tk = &en->tokenizer, .context = context, .stride = stride, .chunk = chunk};
    Score sum = {0};
    engine_plan(en, context, cli->quiet);
    bool ok = session_open(&w.s, &en->model, o, e);
    if (ok) {
        w.ids = xcalloc((size_t)nseq * (size_t)context, sizeof *w.ids);
        w.win = xcalloc((size_t)nseq, sizeof *w.win);
        w.feed = xcalloc((size_t)nseq, sizeof *w.feed);
        w.logits = xcalloc((size_t)chunk * (size_t)V, sizeof *w.logits);
        ok = ppl(&w, nseq, &sum, e);
        /* of text that was read here: as many as there are, whatever a token decodes to */
        if (text.bytes) sum.bytes = text.bytes;
        ok = ok && report(&sum, context, stride, cli, e);
        free(w.ids), free(w.win), free(w.feed), free(w.logits);
        session_close(&w.s);
    }
    stream_close(&text);
    return ok;
}

static bool ppl_eval(const Args *a, const Cli *cli, Err *e) {
    Engine en;
    if (a->nword) return err_input(e, "eval ppl: unexpected word '%.100s'", a->word[0]);
    if (a->decode) return err_input(e, "eval ppl: --decode is of tasks; a text always goes through the cache");
    if (a->limit || a->items) return err_input(e, "eval ppl: --limit and --per-item are of choices");
    if (a->force) return err_input(e, "eval ppl: --force is of tasks");
    if (!a->data) return err_input(e, "eval ppl: expected --data FILE; see kvsmith eval --help");
    if (!engine_open(&en, a->model, cli, e)) return false;
    bool ok = engine_text(&en, e) && eval_open(a, &en, cli, e);
    engine_close(&en);
    return ok;
}

static bool choices_eval(const Args *a, const Cli *cli, Err *e) {
    const char *alien = a->separator ? "--separator"
                        : a->stride  ? "--stride"
                        : a->decode  ? "--decode"
                        : a->force   ? "--force"
                        : a->bytes   ? "--encoding"
                                     : NULL;
    if (a->nword) return err_input(e, "eval choices: unexpected word '%.100s'", a->word[0]);
    if (alien) return err_input(e, "eval choices: %s is not of choices", alien);
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
                                       : NULL;
    if (a->task && !task_find(a->task)) {
        char names[160] = "ppl, choices";
        for (int i = 0; tasks[i]; i++)
            snprintf(names + strlen(names), sizeof names - strlen(names), ", %s", tasks[i]->name);
        return err_input(e,
                         "eval: expected one of %s, got '%.40s'; a benchmark of multiple choice is a file of lines "
                         "{\"ctx\": TEXT, \"cont\": [TEXT...], \"gold\": 0}: eval MODEL choices --data FILE.jsonl",
                         names, a->task);
    }
    if (alien && !a->task) return err_input(e, "eval: %s is not of a task; expected MODEL ppl or MODEL choices", alien);
    if (alien) return err_input(e, "eval %s: %s is not of a task", a->task, alien);
    EvalTask t = {a->model, a->task, (int)a->batch, (int)a->chunk, a->decode, a->force, a->nword, a->word};
    return eval_task(&t, cli, e);
}

int cmd_eval(int argc, char **argv) {
    static const CliSpec spec = {
        .args = "MODEL [ppl|choices|TASK] [KEY=VALUE...]",
        .doc = "ppl: perplexity of a text. The text is cut into windows; each predicts the token behind each of its "
               "tokens. nll is the mean in nats per token, ppl its exponential; bits_per_byte counts the bytes of the "
               "predicted tokens, end-of-text as none. Documents do not see each other. choices: which "
               "continuation of a context is the likeliest, by lm-evaluation-harness's rules. A line of the file is "
               "{\"ctx\": TEXT, \"cont\": [TEXT, ...], \"gold\": N}; acc compares the sums of log-likelihoods, "
               "acc_norm the sums per character. TASK is one of mqar, "
               "palindrome, stack, copy, induction, needle, or left out: the one that the model was trained on. "
               "accuracy is the part of the answers that greedy decoding would say, sample_accuracy the part of the "
               "samples where it would say all. Keys: samples (1000), seed, T (tokens of a sample) and the task's, see "
               "kvsmith config; default: what the model was trained on.",
        .options = options,
        .take = take,
        .min_args = 1,
        .cache = true,
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
