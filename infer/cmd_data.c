/* kvsmith data: text to sets of tokens, a tokenizer of one's own, a look into either. */
#include "cmd_data.h"
#include "../data/source.h"
#include "../data/text.h"
#include "../ops/procs.h"
#include "../ops/signals.h"
#include "engine.h"

int cmd_data(int argc, char **argv);

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
int data_threads(const Cli *cli) { return cli->threads > 0 ? cli->threads : procs(); }

static bool on_read(void *ctx, size_t bytes, Err *e) {
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
static bool pass(void *ctx, const char *s, size_t n, bool end, Err *e) {
    Through *t = ctx;
    return t->sink(t->ctx, s, n, end, e);
}
static bool through_read(void *ctx, size_t bytes, Err *e) { return on_read(((Through *)ctx)->in, bytes, e); }

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
        SourceCfg c = {.sep = sep, .nsep = nsep, .sink = pass, .read = through_read, .ctx = &t};
        in->now = in->file.path[i];
        c.jsonl_key = in->key ? in->key : source_key(in->now);
        c.lift = in->any ? NULL : "--encoding bytes";
        ok = source_read(&c, in->now, e);
    }
    tell_end(&in->tell);
    free(sep);
    return ok;
}

/* A word where no part was named. */
static bool no_part(void *ctx, int key, const char *arg, Err *e) {
    (void)ctx;
    CHECK(key == CLI_ARG, "option %d", key);
    return err_input(e, "data: expected tokenize, train-bpe or inspect first, got '%.100s'", arg);
}

int cmd_data(int argc, char **argv) {
    static const char *const names[] = {"tokenize", "train-bpe", "inspect"};
    int (*const run[])(int, char **) = {data_tokenize, data_train_bpe, data_inspect};
    static const CliSpec spec = {
        .args = "PART [OPTION...]",
        .doc = "tokenize: text to a set of token ids (Megatron .bin/.idx or llm.c .bin). train-bpe: learn a "
               "tokenizer.json "
               "from text. inspect: check sets of token ids and tell what is in them. `kvsmith data PART --help` tells "
               "what a part takes.",
        .take = no_part,
        .min_args = 1,
        .max_args = -1};
    for (int i = 0; argc > 1 && i < 3; i++)
        if (!strcmp(argv[1], names[i])) {
            char name[24]; /* for messages and the help */
            snprintf(name, sizeof name, "data %s", names[i]);
            argv[1] = name;
            return run[i](argc - 1, argv + 1);
        }
    Cli cli;
    int status = 0;
    bool parsed = cli_parse(&spec, &cli, NULL, argc, argv, &status); /* never: a word is refused, none are too few */
    CHECK(!parsed, "data without a part");
    return status;
}
