/* kvsmith calibrate: finds what a codec needs to know of a model's keys and values: the directions that they use on a
 * text, for --cache-dtype palu; the matrices that predict them from the layer below, for aqua. */
#include "calibrate.h"
#include "predict.h"
#include "data/text.h"
#include "engine.h"
#include "model/basis.h"

int cmd_calibrate(int argc, char **argv);

enum { TEXTS_MAX = 256, TOKENS = 65536, CONTEXT_MOST = 2048 };
typedef struct {
    const char *model, *out;
    RowCodec codec; /* what the file is for */
    int64_t tokens, context, chunk, heads;
    bool bytes;
    int n;
    const char *text[TEXTS_MAX];
} Args;
enum { OPT_OUT = 0x100, OPT_TOKENS, OPT_CONTEXT, OPT_CHUNK, OPT_ENCODING, OPT_FOR, OPT_HEADS };
static const struct argp_option options[] = {
    {"out", OPT_OUT, "FILE", 0, "Where the result is written, as safetensors (required)", 0},
    {"for", OPT_FOR, "CODEC", 0,
     "palu: directions, for every rank; aqua or aqua:bits=N,group=N: matrices that predict rows from the layer below, "
     "as it is read back with these settings (default palu)",
     0},
    {"heads", OPT_HEADS, "N", 0,
     "Key/value heads that follow each other and share directions, of palu; a divisor of those of every layer (default "
     "1)",
     0},
    {"tokens", OPT_TOKENS, "N", 0, "Tokens that are read at most, from the first text on (default 65536)", 0},
    {"context", OPT_CONTEXT, "N", 0, "Tokens of a window (default: the model's positions, at most 2048)", 0},
    {"chunk", OPT_CHUNK, "N", 0, "Rows of one pass over the cache (default 512)", 0},
    {"encoding", OPT_ENCODING, "NAME", 0,
     "utf8: refuse a file that is not UTF-8 text; bytes: accept any bytes (default utf8)", 0},
    {0}};
static bool cmd_calibrate_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    switch (key) {
    case CLI_ARG:
        if (!a->model)
            a->model = arg;
        else if (a->n == TEXTS_MAX)
            return err_input(e, "calibrate: expected at most %d texts", TEXTS_MAX);
        else
            a->text[a->n++] = arg;
        return true;
    case OPT_OUT: a->out = arg; return true;
    case OPT_FOR:
        if (!codec_parse(arg, &a->codec, e)) return false;
        if (!strcmp(arg, "palu") || (a->codec.predicts && !a->codec.basis)) return true;
        return err_input(e, "--for: expected palu or aqua, or aqua:bits=N,group=N, got '%.60s'", arg);
    case OPT_HEADS: return cli_int(arg, "--heads", 1, BASIS_WIDEST, &a->heads, e);
    case OPT_TOKENS: return cli_int(arg, "--tokens", 1, INT64_MAX, &a->tokens, e);
    case OPT_CONTEXT: return cli_int(arg, "--context", 1, 1 << 22, &a->context, e);
    case OPT_CHUNK: return cli_int(arg, "--chunk", 1, 1 << 20, &a->chunk, e);
    case OPT_ENCODING:
        a->bytes = !strcmp(arg, "bytes");
        return a->bytes || !strcmp(arg, "utf8") || err_input(e, "--encoding: expected utf8 or bytes, got '%.60s'", arg);
    }
    CHECK(false, "option %d", key);
    return false;
}

/* Documents, or parts of them, of at most a window's tokens: document i is tok[at[i]]..tok[at[i + 1]]. */
typedef struct {
    int *tok;
    size_t n, cap, *at;
    int documents, room;
} Windows;
static void windows_free(Windows *w) { free(w->tok), free(w->at); }
static void windows_add(Windows *w, const int *tok, int n) {
    if (w->n + (size_t)n > w->cap) w->tok = xrealloc(w->tok, w->cap = 2 * w->cap + (size_t)n, sizeof *w->tok);
    if (w->documents + 2 > w->room) w->at = xrealloc(w->at, (size_t)(w->room = 2 * w->room + 64), sizeof *w->at);
    memcpy(w->tok + w->n, tok, (size_t)n * sizeof *tok);
    w->at[w->documents++] = w->n, w->n += (size_t)n, w->at[w->documents] = w->n;
}
/* Those of a stream, which end where another document begins. */
static bool calibrate_stream(Windows *w, int vocab, const Tokens *t, int eot, int context, int64_t most, Err *e) {
    int *tok = xcalloc((size_t)context, sizeof *tok);
    bool ok = true;
    for (size_t at = 0; ok && at < t->n && (int64_t)w->n < most;) {
        int n = 0;
        for (; n < context && at < t->n && (int64_t)w->n + n < most; n++, at++) {
            const int64_t id = token_at(t, at);
            if (n && id == eot) break;
            if (id < 0 || id >= vocab) {
                ok = err_input(e, "%s: token %zu is id %lld, expected 0 to %d, the model's vocabulary", t->name, at,
                               (long long)id, vocab - 1);
                break;
            }
            tok[n] = (int)id;
        }
        if (ok) windows_add(w, tok, n);
    }
    free(tok);
    return ok;
}
static bool calibrate_texts(const Args *a, const Engine *en, Windows *w, int context, Err *e) {
    Stream text;
    StreamSpec spec = {.ntrain = a->n,
                       .train = a->text,
                       .key = "TEXT",
                       .lift = a->bytes ? NULL : "--encoding bytes",
                       .seq_len = 1,
                       .threads = device_threads(en->dev),
                       .vocab = en->cfg.vocab};
    if (!stream_open(&text, &spec, &en->tokenizer, e)) return false;
    bool ok = true;
    for (int i = 0; ok && i < text.train.n; i++)
        ok = calibrate_stream(w, en->cfg.vocab, &text.part[i], en->tokenizer.eot, context, a->tokens, e);
    stream_close(&text);
    return ok;
}

static bool calibrate_said(const Args *a, const Cli *cli, size_t tokens, json_t *layers, Err *e) {
    if (cli->json)
        return engine_print(json_pack("{s:s, s:I, s:o}", "out", a->out, "tokens", (json_int_t)tokens, "layers", layers),
                            e);
    json_decref(layers);
    if (!cli->quiet) printf("%zu tokens, written to %s\n", tokens, a->out);
    return true;
}
static bool calibrate_report(const Args *a, const Calibration *c, const double *kept, const Cli *cli, Err *e) {
    json_t *list = json_array();
    if (!cli->json && !cli->quiet)
        printf("share of the mean square in the first quarter, half and three quarters of the directions\n"
               "layer  keys                   values\n");
    for (int l = 0; l < c->L; l++) {
        const double *k = kept + 6 * (size_t)l;
        if (!c->layer[l].groups) continue;
        json_array_append_new(list, json_pack("{s:i, s:[f,f,f], s:[f,f,f]}", "layer", l, "keys", k[0], k[1], k[2],
                                              "values", k[3], k[4], k[5]));
        if (!cli->json && !cli->quiet)
            printf("%5d  %.4f %.4f %.4f   %.4f %.4f %.4f\n", l, k[0], k[1], k[2], k[3], k[4], k[5]);
    }
    return calibrate_said(a, cli, c->tokens, list, e);
}
static bool calibrate_directions(const Args *a, const Engine *en, Session *s, const Windows *w, uint64_t print,
                                 const Cli *cli, Err *e) {
    Calibration c;
    double *kept = xcalloc(6 * (size_t)en->model.L, sizeof *kept);
    bool ok = calibration_open(&c, s, (int)a->heads, e);
    for (int i = 0; ok && i < w->documents; i++)
        ok = calibration_read(&c, s, w->tok + w->at[i], (int)(w->at[i + 1] - w->at[i]), e);
    ok = ok && calibration_write(&c, &en->model, print, a->out, kept, e) && calibrate_report(a, &c, kept, cli, e);
    calibration_free(&c);
    free(kept);
    return ok;
}
static bool predict_report(const Args *a, const Prediction *p, const Cli *cli, Err *e) {
    json_t *list = json_array();
    if (!cli->json && !cli->quiet)
        printf("share of the variance that a prediction from the layer below leaves\nlayer  keys   values\n");
    for (int l = 0; l < p->L; l++) {
        const double keys = prediction_left(p, l, false), values = prediction_left(p, l, true);
        if (!basis_layer(p->s->model, l)) continue;
        json_array_append_new(list, json_pack("{s:i, s:f, s:f}", "layer", l, "keys", keys, "values", values));
        if (!cli->json && !cli->quiet) printf("%5d  %.4f %.4f\n", l, keys, values);
    }
    return calibrate_said(a, cli, p->tokens, list, e);
}
static bool calibrate_predictors(const Args *a, Session *s, const Windows *w, uint64_t print, const Cli *cli, Err *e) {
    Prediction p;
    bool ok = prediction_open(&p, s, &a->codec, w->n, e);
    while (ok && prediction_next(&p)) {
        for (int i = 0; ok && i < w->documents; i++)
            ok = prediction_read(&p, s, w->tok + w->at[i], (int)(w->at[i + 1] - w->at[i]), e);
        ok = ok && prediction_fit(&p, e);
    }
    ok = ok && prediction_write(&p, print, a->out, e) && predict_report(a, &p, cli, e);
    prediction_close(&p);
    return ok;
}
static bool calibrate(const Args *a, const Cli *cli, Err *e) {
    Engine en;
    Session s;
    Windows w = {0};
    uint64_t print = 0;
    if (!engine_open(&en, a->model, cli, e)) return false;
    const int context = a->context ? (int)a->context : imin(en.cfg.max_positions, CONTEXT_MOST);
    const SessionOpts o = {.nseq = 1, .max_tokens = context, .chunk = (int)a->chunk, .document = -1};
    bool ok = engine_text(&en, e) && engine_fingerprint(&en, 0, &print, e);
    engine_plan(&en, context, cli->quiet);
    if (ok && (ok = session_open(&s, &en.model, o, e))) {
        ok = calibrate_texts(a, &en, &w, context, e) &&
             (a->codec.predicts ? calibrate_predictors(a, &s, &w, print, cli, e)
                                : calibrate_directions(a, &en, &s, &w, print, cli, e));
        session_close(&s);
    }
    windows_free(&w);
    engine_close(&en);
    return ok;
}

int cmd_calibrate(int argc, char **argv) {
    static const CliSpec spec = {
        .args = "MODEL TEXT...",
        .doc = "Reads texts with MODEL and writes, for every layer and head or group of heads, the directions of its "
               "keys, before their rotation by position, and of its values, by the mean square of the texts' rows "
               "along them. "
               "--cache-dtype palu:basis=FILE then stores rows as coefficients of the first ones. With --for aqua it "
               "writes matrices that predict the rows of each layer from those of the layer below, and reads the texts "
               "once for each layer. A text is a file, a folder or a token dataset. Methods: PALU (arXiv:2407.21118), "
               "AQUA-KV (arXiv:2501.19392).",
        .options = options,
        .take = cmd_calibrate_take,
        .min_args = 2,
        .max_args = -1,
        .tuning = true,
        .adapter = true};
    Args a = {.tokens = TOKENS, .chunk = CHUNK_ROWS, .heads = 1, .codec = codec_palu};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    engine_signals();
    if (!a.out) {
        err_input(&e, "calibrate: expected --out FILE; see kvsmith calibrate --help");
        return cli_fail(&e);
    }
    if (a.heads > 1 && a.codec.predicts) {
        err_input(&e, "--heads: %s predicts the rows of all heads together; leave it out", a.codec.name);
        return cli_fail(&e);
    }
    FileOut place; /* a result that cannot be written is said before the texts are read */
    if (!file_begin(&place, a.out, &e)) return cli_fail(&e);
    file_drop(&place);
    cli.codec = &codec_f32;
    return calibrate(&a, &cli, &e) ? 0 : cli_fail(&e);
}
