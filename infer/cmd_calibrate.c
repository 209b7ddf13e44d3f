/* kvsmith calibrate: finds the directions that a model's keys and values use on a text, for --cache-dtype palu. */
#include "calibrate.h"
#include "data/text.h"
#include "engine.h"

int cmd_calibrate(int argc, char **argv);

enum { TEXTS_MAX = 256, TOKENS = 65536, CONTEXT_MOST = 2048 };
typedef struct {
    const char *model, *out;
    int64_t tokens, context, chunk;
    bool bytes;
    int n;
    const char *text[TEXTS_MAX];
} Args;
enum { OPT_OUT = 0x100, OPT_TOKENS, OPT_CONTEXT, OPT_CHUNK, OPT_ENCODING };
static const struct argp_option options[] = {
    {"out", OPT_OUT, "FILE", 0, "Where the directions are written, as safetensors (required)", 0},
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

/* Windows of a stream, which end where another document begins. */
static bool calibrate_stream(Calibration *c, Session *s, const Tokens *t, int eot, int context, int64_t most, Err *e) {
    int *tok = xcalloc((size_t)context, sizeof *tok), V = s->model->cfg.vocab;
    bool ok = true;
    for (size_t at = 0; ok && at < t->n && (int64_t)c->tokens < most;) {
        int n = 0;
        for (; n < context && at < t->n && (int64_t)c->tokens + n < most; n++, at++) {
            const int64_t id = token_at(t, at);
            if (n && id == eot) break;
            if (id < 0 || id >= V) {
                ok = err_input(e, "%s: token %zu is id %lld, expected 0 to %d, the model's vocabulary", t->name, at,
                               (long long)id, V - 1);
                break;
            }
            tok[n] = (int)id;
        }
        ok = ok && calibration_read(c, s, tok, n, e);
    }
    free(tok);
    return ok;
}
static bool calibrate_texts(const Args *a, const Engine *en, Session *s, Calibration *c, int context, Err *e) {
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
        ok = calibrate_stream(c, s, &text.part[i], en->tokenizer.eot, context, a->tokens, e);
    stream_close(&text);
    return ok;
}

static bool calibrate_report(const Args *a, const Calibration *c, const double *kept, const Cli *cli, Err *e) {
    json_t *list = json_array();
    if (!cli->json && !cli->quiet)
        printf("share of the mean square in the first quarter, half and three quarters of the directions\n"
               "layer  keys                   values\n");
    for (int l = 0; l < c->L; l++) {
        const double *k = kept + 6 * (size_t)l;
        if (!c->layer[l].lanes) continue;
        json_array_append_new(list, json_pack("{s:i, s:[f,f,f], s:[f,f,f]}", "layer", l, "keys", k[0], k[1], k[2],
                                              "values", k[3], k[4], k[5]));
        if (!cli->json && !cli->quiet)
            printf("%5d  %.4f %.4f %.4f   %.4f %.4f %.4f\n", l, k[0], k[1], k[2], k[3], k[4], k[5]);
    }
    if (cli->json)
        return engine_print(json_pack("{s:s, s:I, s:o}", "out", a->out, "tokens", (json_int_t)c->tokens, "layers",
                                      list),
                            e);
    json_decref(list);
    if (!cli->quiet) printf("%zu tokens, written to %s\n", c->tokens, a->out);
    return true;
}
static bool calibrate(const Args *a, const Cli *cli, Err *e) {
    Engine en;
    Session s;
    Calibration c = {0};
    uint64_t print = 0;
    if (!engine_open(&en, a->model, cli, e)) return false;
    const int context = a->context ? (int)a->context : imin(en.cfg.max_positions, CONTEXT_MOST);
    const SessionOpts o = {.nseq = 1, .max_tokens = context, .chunk = (int)a->chunk, .document = -1};
    double *kept = xcalloc(6 * (size_t)en.model.L, sizeof *kept);
    bool ok = engine_text(&en, e) && engine_fingerprint(&en, 0, &print, e);
    engine_plan(&en, context, cli->quiet);
    if (ok && (ok = session_open(&s, &en.model, o, e))) {
        ok = calibration_open(&c, &s, e) && calibrate_texts(a, &en, &s, &c, context, e) &&
             calibration_write(&c, &en.model, print, a->out, kept, e) && calibrate_report(a, &c, kept, cli, e);
        calibration_free(&c);
        session_close(&s);
    }
    free(kept);
    engine_close(&en);
    return ok;
}

int cmd_calibrate(int argc, char **argv) {
    static const CliSpec spec = {
        .args = "MODEL TEXT...",
        .doc = "Reads texts with MODEL and writes, for every layer and head, the directions of its keys, before their "
               "rotation by position, and of its values, by the mean square of the texts' rows along them. "
               "--cache-dtype palu:basis=FILE then stores rows as coefficients of the first ones. A text is a file, a "
               "folder or a token dataset. Method: PALU (arXiv:2407.21118).",
        .options = options,
        .take = cmd_calibrate_take,
        .min_args = 2,
        .max_args = -1,
        .tuning = true,
        .adapter = true};
    Args a = {.tokens = TOKENS, .chunk = CHUNK_ROWS};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    engine_signals();
    if (!a.out) {
        err_input(&e, "calibrate: expected --out FILE; see kvsmith calibrate --help");
        return cli_fail(&e);
    }
    FileOut place; /* a result that cannot be written is said before the texts are read */
    if (!file_begin(&place, a.out, &e)) return cli_fail(&e);
    file_drop(&place);
    cli.codec = &codec_f32;
    return calibrate(&a, &cli, &e) ? 0 : cli_fail(&e);
}
