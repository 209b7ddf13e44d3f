/* kvsmith data tokenize and train-bpe: text in, tokens or a tokenizer out. */
#include "data/bpe_train.h"
#include "data/pool.h"
#include "data/set_write.h"
#include "ops/file.h"
#include "cmd_data.h"
#include "infer/engine.h"

/* Bytes that an encoder gets at once: an indivisible stretch, for which merging needs up to 70 times as much memory. */
enum { STRETCH_MAX = 8 << 20 };
typedef enum { EOT_DEFAULT, EOT_NONE, EOT_BEFORE, EOT_AFTER } EotPlace;

typedef struct {
    Inputs in;
    const char *out, *tokenizer, *eot, *pattern;
    SetWriteCfg set;
    EotPlace place;
    int64_t vocab, min_count;
    int nspecial;
    const char *special[64];
    Err why; /* of a word that is no file */
} Args;
enum {
    OPT_TOKENIZER = 0x100,
    OPT_FORMAT,
    OPT_KEY,
    OPT_SEPARATOR,
    OPT_EOT,
    OPT_PLACE,
    OPT_APPEND,
    OPT_SHARD,
    OPT_VOCAB,
    OPT_PATTERN,
    OPT_SPECIAL,
    OPT_MIN,
    OPT_ENCODING
};

static bool cmd_data_tokenize_choice(const char *arg, const char *name, const char *const names[], int *out, Err *e) {
    char all[100] = "";
    for (int i = 0; names[i]; i++) {
        if (!strcmp(arg, names[i])) return *out = i, true;
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", names[i]);
    }
    return err_input(e, "%s: expected one of %s, got '%.60s'", name, all, arg);
}

static bool cmd_data_tokenize_take(void *ctx, int key, const char *arg, Err *e) {
    static const char *const formats[] = {"megatron", "llmc", NULL}, *const places[] = {"none", "before", "after",
                                                                                        NULL};
    Args *a = ctx;
    int k = 0;
    switch (key) {
    case CLI_ARG: return inputs_add(&a->in, arg, e);
    case 'o': a->out = arg; return true;
    case OPT_TOKENIZER: a->tokenizer = arg; return true;
    case OPT_KEY: a->in.key = arg; return true;
    case OPT_SEPARATOR: a->in.separator = arg; return true;
    case OPT_ENCODING: return inputs_encoding(&a->in, arg, e);
    case OPT_EOT: a->eot = arg; return true;
    case OPT_APPEND: a->place = EOT_AFTER; return true;
    case OPT_PATTERN: a->pattern = arg; return true;
    case OPT_SHARD: return cli_int(arg, "--shard-tokens", 1, SHARD_TOKENS_MAX, &a->set.shard, e);
    case OPT_VOCAB: return cli_int(arg, "--vocab", 256, TOKENIZER_IDS_MAX, &a->vocab, e);
    case OPT_MIN: return cli_int(arg, "--min-count", 1, INT64_MAX, &a->min_count, e);
    case OPT_FORMAT:
        if (!cmd_data_tokenize_choice(arg, "--format", formats, &k, e)) return false;
        a->set.kind = k ? SET_LLMC : SET_MEGATRON;
        return true;
    case OPT_PLACE:
        if (!cmd_data_tokenize_choice(arg, "--eot", places, &k, e)) return false;
        a->place = (EotPlace)(EOT_NONE + k);
        return true;
    case OPT_SPECIAL:
        if (a->nspecial == 64) return err_input(e, "--special: at most 64 tokens");
        if (!*arg) return err_input(e, "--special: expected the name of a token, got nothing");
        a->special[a->nspecial++] = arg;
        return true;
    }
    CHECK(false, "option %d", key);
    return false;
}

#define ENCODING_OPTION                                                                             \
    {                                                                                               \
        "encoding", OPT_ENCODING, "NAME", 0,                                                        \
            "utf8: refuse a file that is not UTF-8 text; bytes: accept any bytes (default utf8)", 0 \
    }

/* ---- tokenize -------------------------------------------------------------------------------------------------------
 */

typedef struct {
    const Args *a;
    Tokenizer t;
    Pool *pool;
    SetWriter *w;
    size_t text; /* bytes of text */
} Work;

static bool on_ids(void *ctx, const Ids *ids, bool begin, bool end, size_t bytes, Err *e) {
    Work *w = ctx;
    EotPlace place = w->a->place;
    w->text += bytes;
    return (!begin || place != EOT_BEFORE || set_write_ids(w->w, &w->t.eot, 1, e)) &&
           set_write_ids(w->w, ids->id, ids->n, e) &&
           (!end || ((place != EOT_AFTER || set_write_ids(w->w, &w->t.eot, 1, e)) && set_write_document(w->w, e)));
}
static bool cmd_data_tokenize_on_text(void *ctx, const char *s, size_t n, bool end, Err *e) {
    Work *w = ctx;
    Err why = {0};
    if (pool_text(w->pool, s, n, end, &why)) return true;
    if (why.status == EXIT_INPUT) return err_input(e, "%.150s: %s", w->a->in.now, why.msg);
    *e = why;
    return false;
}

static bool tokenize_run(Work *w, Args *a, const Cli *cli, Err *e) {
    double start = now_seconds();
    SetWritten sum = {0};
    if (!inputs_read(&a->in, cmd_data_tokenize_on_text, w, e) || !pool_flush(w->pool, e) ||
        !set_write_commit(w->w, &sum, e))
        return false;
    double s = now_seconds() - start;
    if (cli->json)
        return engine_print(json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:i, s:s, s:f, s:i}", "out", a->out,
                                      "format", set_kind_name(a->set.kind), "dtype", id_name(sum.type), "documents",
                                      (json_int_t)sum.documents, "tokens", (json_int_t)sum.tokens, "bytes",
                                      (json_int_t)w->text, "bytes_read", (json_int_t)a->in.bytes, "files", sum.shards,
                                      "eot",
                                      a->place == EOT_NONE     ? "none"
                                      : a->place == EOT_BEFORE ? "before"
                                                               : "after",
                                      "seconds", s, "threads", data_threads(cli)),
                            e);
    printf("%s: %lld documents, %lld tokens (%s, %s) from %zu bytes of text, %.3f bytes/token, %.1f s, %.1f MB/s\n",
           a->out, (long long)sum.documents, (long long)sum.tokens, set_kind_name(a->set.kind), id_name(sum.type),
           w->text, (double)w->text / (double)sum.tokens, s, (double)w->text / 1e6 / fmax(s, 1e-9));
    return true;
}

static bool cmd_data_tokenize_tokenize(Args *a, const Cli *cli, Err *e) {
    Work w = {.a = a};
    if (!a->out) return err_input(e, "data tokenize: expected --out PREFIX");
    if (!a->tokenizer)
        return err_input(e, "data tokenize: expected --tokenizer byte, a tokenizer.json or its directory");
    if (a->set.kind == SET_MEGATRON && a->set.shard)
        return err_input(e, "--shard-tokens: only the llm.c format has shards; give --format llmc");
    if (!tokenizer_open(&w.t, a->tokenizer, a->eot, e)) return false;
    if (a->place == EOT_DEFAULT) a->place = a->set.kind == SET_LLMC ? EOT_BEFORE : EOT_AFTER;
    if (w.t.eot < 0 && a->place != EOT_NONE) {
        err_input(e, "%.150s names no end-of-text token; name one with --eot-token, or give --eot none", a->tokenizer);
        tokenizer_close(&w.t);
        return false;
    }
    a->set.vocab = w.t.vocab;
    w.w = set_write_open(&a->set, a->out, e);
    w.pool = pool_open(&(PoolCfg){&w.t, data_threads(cli), STRETCH_MAX, on_ids, &w});
    bool ok = w.w && tokenize_run(&w, a, cli, e);
    set_write_close(w.w);
    pool_close(w.pool);
    tokenizer_close(&w.t);
    return ok;
}

int data_tokenize(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"out", 'o', "PREFIX", 0, "Write PREFIX.bin and PREFIX.idx, or PREFIX.bin (required)", 0},
        {"tokenizer", OPT_TOKENIZER, "T", 0,
         "byte, a tokenizer.json, or a directory that has one or GPT-2's encoder.json and vocab.bpe (required)", 0},
        {"format", OPT_FORMAT, "NAME", 0, "megatron or llmc (default megatron)", 0},
        {"jsonl-key", OPT_KEY, "KEY", 0,
         "Input is JSONL with the text at KEY (default: \"text\" in files named .jsonl, .jsonl.gz, .jsonl.zst)", 0},
        {"separator", OPT_SEPARATOR, "TEXT", 0,
         "Text that separates documents in raw text (default: a file is one document)", 0},
        ENCODING_OPTION,
        {"eot", OPT_PLACE, "WHERE", 0,
         "Where a document's end-of-text token is: before, after or none (default: megatron after, llmc before)", 0},
        {"append-eot", OPT_APPEND, 0, 0, "The same as --eot after", 0},
        {"eot-token", OPT_EOT, "NAME", 0, "The end-of-text token, by name or id (default: the tokenizer's)", 0},
        {"shard-tokens", OPT_SHARD, "N", 0, "llmc: write files PREFIX_000000.bin, ... of N tokens each", 0},
        {0}};
    static const CliSpec spec = {
        .args = "INPUT...",
        .doc = "Makes a token dataset from text, for data.train. Inputs are files of raw text or JSONL, plain, gzip or "
               "zstd, or folders of them; - is standard input. Inputs are streamed, so memory use does not grow with "
               "them. Ids do not depend on the number of threads.",
        .options = options,
        .take = cmd_data_tokenize_take,
        .min_args = 1,
        .max_args = FILES_MAX};
    Args a = {.set.kind = SET_MEGATRON};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    inputs_hold_signals();
    a.in.quiet = cli.quiet;
    bool ok = cmd_data_tokenize_tokenize(&a, &cli, &e);
    inputs_free(&a.in);
    return ok ? 0 : data_fail(&e);
}

/* ---- train-bpe ------------------------------------------------------------------------------------------------------
 */

/* Text waits until there is enough for all threads; it is let go at line ends, where the trainer cuts it anyway. */
typedef struct {
    BpeTrainer *trainer;
    Buf text;
    size_t bytes;
} Count;
enum { COUNT_ROUND = 16 << 20, COUNT_LINE_MAX = 256 << 20 };
static bool cmd_data_tokenize_count(void *ctx, const char *s, size_t n, bool end, Err *e) {
    Count *c = ctx;
    buf_put(&c->text, s, n);
    c->bytes += n;
    const char *last = c->text.n ? memrchr(c->text.at, '\n', c->text.n) : NULL;
    size_t lines = last ? (size_t)(last - c->text.at) + 1 : 0;
    if (end && lines < c->text.n) { /* a document's last line, which has no end: a text for itself */
        bpe_train_count(c->trainer, c->text.at + lines, c->text.n - lines);
        c->text.n = lines;
    }
    if (c->text.n < COUNT_ROUND) return true;
    if (!last && c->text.n > COUNT_LINE_MAX)
        return err_input(e, "a line of more than %d bytes; break it into shorter lines", COUNT_LINE_MAX);
    bpe_train_count(c->trainer, c->text.at, lines);
    c->text.n -= lines;
    if (lines) memmove(c->text.at, c->text.at + lines, c->text.n);
    return true;
}

static void cmd_data_tokenize_learned(void *ctx, int made, int want) { tell(ctx, (size_t)made, (size_t)want); }

static bool train_bpe(Args *a, const Cli *cli, Err *e) {
    static const char *const names[] = {"gpt2", "llama3", "qwen2", NULL};
    static const char *const eot = "<|endoftext|>";
    const char *const patterns[] = {PATTERN_GPT2, PATTERN_LLAMA3, PATTERN_QWEN2};
    int k = 0;
    if (!a->out) return err_input(e, "data train-bpe: expected --out tokenizer.json");
    if (!a->vocab) return err_input(e, "data train-bpe: expected --vocab N");
    if (a->pattern && !cmd_data_tokenize_choice(a->pattern, "--pattern", names, &k, e)) return false;
    if (!a->nspecial) a->special[a->nspecial++] = eot;
    BpeTrainCfg cfg = {.vocab = (int)a->vocab,
                       .min_count = a->min_count,
                       .pattern = patterns[k],
                       .nspecial = a->nspecial,
                       .special = a->special,
                       .threads = data_threads(cli)};
    Count c = {.trainer = bpe_train_open(&cfg, e)};
    double start = now_seconds();
    bool ok = c.trainer && inputs_read(&a->in, cmd_data_tokenize_count, &c, e);
    if (ok) {
        inputs_let_signals(); /* nothing is unfinished from here on */
        if (c.text.n) bpe_train_count(c.trainer, c.text.at, c.text.n);
        Tell t = tell_begin("learning");
        char *json = bpe_train_run(c.trainer, a->in.quiet ? NULL : cmd_data_tokenize_learned, &t);
        tell_end(&t);
        Tokenizer made;
        ok = tokenizer_parse(&made, json, strlen(json), a->out, e);
        int vocab = ok ? made.vocab : 0;
        if (ok) tokenizer_close(&made);
        inputs_hold_signals(); /* an interrupted write would leave its temporary file */
        ok = ok && file_write(a->out, json, strlen(json), e);
        inputs_let_signals();
        free(json);
        double s = now_seconds() - start;
        if (ok && cli->json)
            ok = engine_print(json_pack("{s:s, s:i, s:s, s:I, s:f}", "out", a->out, "vocab", vocab, "pattern", names[k],
                                        "bytes", (json_int_t)c.bytes, "seconds", s),
                              e);
        else if (ok)
            printf("%s: %d ids from %zu bytes of text, pattern %s, %.1f s%s\n", a->out, vocab, c.bytes, names[k], s,
                   vocab < a->vocab ? "; no further pair occurs often enough" : "");
    }
    bpe_train_close(c.trainer);
    buf_free(&c.text);
    return ok;
}

int data_train_bpe(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"out", 'o', "FILE", 0, "The tokenizer.json to write (required)", 0},
        {"vocab", OPT_VOCAB, "N", 0, "Number of ids, special tokens and the 256 bytes included (required)", 0},
        {"pattern", OPT_PATTERN, "NAME", 0, "How text is cut before merging: gpt2, llama3, qwen2 (default gpt2)", 0},
        {"special", OPT_SPECIAL, "NAME", 0, "A special token; may be repeated (default <|endoftext|>)", 0},
        {"min-count", OPT_MIN, "N", 0, "Merge only pairs that occur at least N times (default 2)", 0},
        {"jsonl-key", OPT_KEY, "KEY", 0, "Input is JSONL with the text at KEY (default as for data tokenize)", 0},
        {"separator", OPT_SEPARATOR, "TEXT", 0, "Text that separates documents in raw text", 0},
        ENCODING_OPTION,
        {0}};
    static const CliSpec spec = {
        .args = "INPUT...",
        .doc =
            "Learns a byte-level BPE tokenizer from text and writes it as tokenizer.json, the same that Hugging Face "
            "tokenizers learns. Inputs are as for data tokenize; memory use grows with the number of distinct words.",
        .options = options,
        .take = cmd_data_tokenize_take,
        .min_args = 1,
        .max_args = FILES_MAX};
    Args a = {.min_count = 2};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    inputs_hold_signals();
    a.in.quiet = cli.quiet;
    bool ok = train_bpe(&a, &cli, &e);
    inputs_free(&a.in);
    return ok ? 0 : data_fail(&e);
}
