/* inputs.c: input files of the parts of the command `data`, read with progress and an end by signal. */
#include "cmd_data.h"
#include "data/source.h"
#include "data/text.h"
#include "ops/procs.h"
#include "ops/signals.h"
#include "infer/engine.h"

bool inputs_add(Inputs *in, const char *word, Err *e) { return paths_add(&in->file, word, "data", e); }
void inputs_free(Inputs *in) { paths_free(&in->file); }
bool inputs_encoding(Inputs *in, const char *arg, Err *e) {
    in->any = !strcmp(arg, "bytes");
    return in->any || !strcmp(arg, "utf8") || err_input(e, "--encoding: expected utf8 or bytes, got '%.60s'", arg);
}

void inputs_hold_signals(void) {
    sigset_t s;
    signals_set(&s);
    sigprocmask(SIG_BLOCK, &s, NULL);
}
void inputs_let_signals(void) {
    sigset_t s;
    signals_set(&s);
    engine_signals();
    sigprocmask(SIG_UNBLOCK, &s, NULL);
}
int data_fail(const Err *e) { return e->status == EXIT_SIGNAL ? EXIT_SIGNAL : cli_fail(e); }
int data_threads(const Cli *cli) { return cli->threads > 0 ? cli->threads : procs_threads(); }

static bool inputs_on_read(void *ctx, size_t bytes, Err *e) {
    Inputs *in = ctx;
    in->bytes += bytes;
    if (!in->quiet) tell(&in->tell, in->bytes, in->of);
    if (!signals_pending()) return true;
    *e = (Err){.status = EXIT_SIGNAL};
    return false;
}

typedef struct {
    Inputs *in;
    InputSink *sink;
    void *ctx;
} Through;
static bool inputs_pass(void *ctx, const char *s, size_t n, bool end, Err *e) {
    Through *t = ctx;
    return t->sink(t->ctx, s, n, end, e);
}
static bool inputs_through_read(void *ctx, size_t bytes, Err *e) {
    return inputs_on_read(((Through *)ctx)->in, bytes, e);
}

bool inputs_read(Inputs *in, InputSink *sink, void *ctx, Err *e) {
    char *sep;
    size_t nsep;
    if (!text_unescape(in->separator ? in->separator : "", "--separator", &sep, &nsep, e)) return false;
    bool ok = true, piped = false;
    for (int i = 0; ok && i < in->file.n; i++) {
        size_t size;
        ok = source_size(in->file.path[i], &size, e);
        in->of += size;
        piped |= !strcmp(in->file.path[i], "-");
    }
    if (piped) in->of = 0;
    in->tell = tell_begin("reading");
    for (int i = 0; ok && i < in->file.n; i++) {
        Through t = {in, sink, ctx};
        SourceCfg c = {.sep = sep, .nsep = nsep, .sink = inputs_pass, .read = inputs_through_read, .ctx = &t};
        in->now = in->file.path[i];
        c.jsonl_key = in->key ? in->key : source_key(in->now);
        c.lift = in->any ? NULL : "--encoding bytes";
        ok = source_read(&c, in->now, e);
    }
    tell_end(&in->tell);
    free(sep);
    return ok;
}
