/* test_tokens.c: text to ids by several threads, and text out of files of every packing. */
#include "tests/lib/check.h"
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include "data/bpe_train.h"
#include "data/pool.h"
#include "data/source.h"
#include "data/text.h"

static void refused(bool ok, const Err *e, int status, const char *part) {
    cr_assert(!ok, "accepted; expected an error with '%s'", part);
    cr_assert_eq(e->status, status, "status %d, expected %d: %s", e->status, status, e->msg);
    cr_assert(strlen(e->msg) > 0 && !strchr(e->msg, '\n'), "message '%s'", e->msg);
    cr_assert(strstr(e->msg, part), "message '%s' does not contain '%s'", e->msg, part);
}

/* ---- the pool -------------------------------------------------------------------------------------------------------
 */

static const char *const tokenizers[] = {"gpt2", "llama3", "qwen2", "llama2", "always", "first", "../raw/neox"};
static Tokenizer load(const char *name) {
    Tokenizer t;
    Err e = {0};
    char *path = xformat("tests/golden/bpe/%s.json", name);
    cr_assert(tokenizer_open(&t, path, NULL, &e), "%s", e.msg);
    free(path);
    return t;
}

/* Words, runs of blanks and letters, marks that combine, bytes that are no UTF-8: around every place that may be cut.
 */
static char *some_text(uint64_t seed, size_t n) {
    static const char *const piece[] = {"king", " the", " a",     "  ",        "\n",        "'s",         "'S ",
                                        "x",    " x",   "12 345", "é",         "e\xcc\x81", " \xcc\x81z", "\xff",
                                        "\xc3", "...",  " . ",    "\t",        "Z Z",       "漢字",       " 漢",
                                        "\r\n", "ſ",    "a'll b", " thou art", "     ",     "<tool_call>"};
    char *s = malloc(n + 1);
    size_t at = 0;
    for (uint64_t i = 0; at < n; i++) {
        const char *p = piece[(size_t)(rng_uniform(seed, i) * (double)(sizeof piece / sizeof *piece))];
        size_t k = zmin(strlen(p), n - at);
        memcpy(s + at, p, k);
        at += k;
    }
    return s;
}

typedef struct {
    Ids all;
    size_t documents, bytes;
    bool inside;
} Sum;
static bool add(void *ctx, const Ids *ids, bool begin, bool end, size_t bytes, Err *e) {
    Sum *s = ctx;
    (void)e;
    cr_assert_eq(begin, !s->inside);
    s->inside = !end;
    s->documents += begin;
    s->bytes += bytes;
    for (size_t i = 0; i < ids->n; i++) ids_push(&s->all, ids->id[i]);
    if (end) ids_push(&s->all, -1);
    return true;
}

/* Documents through the pool, in slices, against each encoded as a whole. */
static void expect_pool(const Tokenizer *t, const char *name, int threads, uint64_t seed) {
    Sum got = {0};
    Ids want = {0};
    Err e = {0};
    Pool *p = pool_open(&(PoolCfg){t, threads, (size_t)1 << 30, add, &got});
    const size_t sizes[] = {1, 700, 0, 300000, 65536, 131072, 131073, 64, 400000};
    size_t bytes = 0, documents = 0;
    for (size_t d = 0; d < sizeof sizes / sizeof *sizes; d++) {
        size_t n = sizes[d], at = 0;
        char *s = some_text(seed + d, n);
        cr_assert(!n || tokenizer_encode(t, s, n, 0, &want, &e), "%s", e.msg);
        if (n) ids_push(&want, -1), documents++;
        bytes += n;
        for (uint64_t i = 0; at < n; i++) {
            size_t k = zmin(n - at, 1 + (size_t)(rng_uniform(seed, 1000 * d + i) * 400000));
            bool last = at + k == n && rng_uniform(seed, d) < 0.5;
            cr_assert(pool_text(p, s + at, k, last, &e), "%s", e.msg);
            at += k;
            if (at == n && !last) cr_assert(pool_text(p, "", 0, true, &e)); /* the end comes later */
        }
        if (!n) cr_assert(pool_text(p, "", 0, true, &e));
        free(s);
    }
    cr_assert(pool_flush(p, &e), "%s", e.msg);
    cr_assert(got.documents == documents && got.bytes == bytes && !got.inside, "%s: %zu documents, %zu bytes", name,
              got.documents, got.bytes);
    cr_assert_eq(got.all.n, want.n, "%s, %d threads: %zu ids, expected %zu", name, threads, got.all.n, want.n);
    for (size_t i = 0; i < want.n; i++)
        cr_assert_eq(got.all.id[i], want.id[i], "%s, %d threads: id %zu is %d, expected %d", name, threads, i,
                     got.all.id[i], want.id[i]);
    cr_assert(want.n <= pool_most_ids(t) * bytes + (pool_most_ids(t) + 1) * documents, "%s: %zu ids", name, want.n);
    pool_close(p);
    ids_free(&got.all);
    ids_free(&want);
}
Test(tokens, pool_is_the_whole_document) {
    Tokenizer byte = tokenizer_byte();
    for (int threads = 1; threads <= 3; threads += 2) {
        expect_pool(&byte, "byte", threads, 1);
        for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
            Tokenizer t = load(tokenizers[i]);
            expect_pool(&t, tokenizers[i], threads, 10 * i + (uint64_t)threads);
            tokenizer_close(&t);
        }
    }
}

/* Learned from text of the same kind, so that runs of blanks and odd neighbours are tokens: a cut in a wrong place
 * shows. */
Test(tokens, pool_with_its_own_merges) {
    const char *const pattern[] = {PATTERN_GPT2, PATTERN_LLAMA3, PATTERN_QWEN2}, *const special[] = {"<|endoftext|>"};
    char *text = some_text(99, 200000);
    for (int k = 0; k < 3; k++) {
        Err e = {0};
        Tokenizer t;
        BpeTrainer *b = bpe_train_open(&(BpeTrainCfg){700, 2, pattern[k], 1, special, 1}, &e);
        cr_assert(b, "%s", e.msg);
        bpe_train_count(b, text, 200000);
        char *json = bpe_train_run(b, NULL, NULL);
        cr_assert(tokenizer_parse(&t, json, strlen(json), "learned", &e), "%s", e.msg);
        cr_assert(t.vocab > 600, "%d ids", t.vocab);
        for (uint64_t seed = 0; seed < 5; seed++) expect_pool(&t, "learned", 1 + (int)(seed % 3), 1000 * seed);
        tokenizer_close(&t);
        free(json);
        bpe_train_close(b);
    }
    free(text);
}

Test(tokens, stretches_are_bounded) {
    Err e = {0};
    Sum got = {0};
    Tokenizer t = load("gpt2");
    size_t n = 400000;
    char *s = malloc(n);
    memset(s, 'a', n);
    Pool *p = pool_open(&(PoolCfg){&t, 1, 200000, add, &got});
    refused(pool_text(p, s, n, true, &e), &e, EXIT_INPUT, "a stretch of 400000 bytes");
    pool_close(p);
    s[150000] = s[300000] = ' '; /* cut there, all is well */
    p = pool_open(&(PoolCfg){&t, 1, 200000, add, &got});
    cr_assert(pool_text(p, s, n, true, &e) && pool_flush(p, &e), "%s", e.msg);
    pool_close(p);
    ids_free(&got.all);
    tokenizer_close(&t);
    free(s);
}

/* ---- streams --------------------------------------------------------------------------------------------------------
 */

static void expect_stream(const Tokenizer *t, const char *name, IdType type) {
    static const char *const doc[] = {"And God said", " the king's é", "x", "  12\n"};
    const char *path = check_path("docs");
    Ids want = {0};
    Err e = {0};
    FILE *f = fopen(path, "wb");
    size_t bytes = 0, planned;
    for (int i = 0; i < 4; i++) {
        fprintf(f, "%s%s", i ? "|" : "", doc[i]);
        ids_push(&want, t->eot);
        cr_assert(tokenizer_encode(t, doc[i], strlen(doc[i]), 0, &want, &e));
        bytes += strlen(doc[i]);
    }
    fclose(f);
    ids_push(&want, t->eot);
    for (int threads = 1; threads <= 2; threads++) {
        Stream s;
        StreamSpec spec = {.ntrain = 1, .train = &path, .separator = "|", .seq_len = 2, .threads = threads};
        cr_assert(stream_bytes(&spec, t, &planned, &e) && stream_open(&s, &spec, t, &e), "%s", e.msg);
        cr_assert(s.documents == 4 && s.bytes == bytes && s.mem.peak == planned, "%s: %zu bytes of text", name,
                  s.bytes);
        cr_assert(s.part[0].type == type && s.part[0].n == want.n, "%s: %zu ids, expected %zu", name, s.part[0].n,
                  want.n);
        for (size_t i = 0; i < want.n; i++) cr_assert_eq(token_at(&s.part[0], i), want.id[i], "%s: %zu", name, i);
        stream_close(&s);
    }
    ids_free(&want);
}
Test(tokens, streams_of_any_tokenizer) {
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
        Tokenizer t = load(tokenizers[i]);
        expect_stream(&t, tokenizers[i], ID_16);
        int vocab = t.vocab;
        t.vocab = 65536;
        expect_stream(&t, tokenizers[i], ID_16);
        t.vocab = 65537; /* as a model's larger vocabulary would be */
        expect_stream(&t, tokenizers[i], ID_32);
        t.eot = 65536;
        expect_stream(&t, tokenizers[i], ID_32);
        t.eot = -1, t.vocab = vocab;
        const char *path = check_path("docs");
        Stream s;
        Err e = {0};
        refused(stream_open(&s, &(StreamSpec){.ntrain = 1, .train = &path, .seq_len = 2}, &t, &e), &e, EXIT_INPUT,
                "names no end-of-text token");
        tokenizer_close(&t);
    }
}

Test(tokens, tokenizers_by_name) {
    Tokenizer t;
    Err e = {0};
    cr_assert(tokenizer_open(&t, "byte", NULL, &e) && !t.model && t.eot == 256);
    cr_assert(tokenizer_open(&t, "byte", "65", &e) && t.eot == 65);
    refused(tokenizer_open(&t, "byte", "257", &e), &e, EXIT_INPUT, "data.eot: '257' is neither an added token");
    refused(tokenizer_open(&t, "byte", "99999999999", &e), &e, EXIT_INPUT, "data.eot");
    cr_assert(tokenizer_open(&t, "tests/golden/bpe/llama3.json", "<s>", &e) && t.eot == tokenizer_find(&t, "<s>"));
    tokenizer_close(&t);
    refused(tokenizer_open(&t, "tests/golden/bpe/llama3.json", "<none>", &e), &e, EXIT_INPUT, "'<none>' is neither");
    cr_assert(!t.model);
    refused(tokenizer_open(&t, check_dir(), NULL, &e), &e, EXIT_INPUT, "no tokenizer.json in it");
    refused(tokenizer_open(&t, check_path("none"), NULL, &e), &e, EXIT_INPUT, "No such file");
    char *loop = check_path("tokenizer.json"); /* that it cannot be looked at does not mean that it is not there */
    cr_assert(!symlink("tokenizer.json", loop));
    refused(tokenizer_open(&t, check_dir(), NULL, &e), &e, EXIT_INPUT, "cannot look at");
    cr_assert(!unlink(loop));
    cr_assert(tokenizer_open(&t, "tests/golden", NULL, &e) && t.vocab == 257, "%s", e.msg); /* a directory with one */
    char *vocab = check_path("encoder.json"), *merges = check_path("vocab.bpe"), *json;
    Tokenizer gpt2 = load("gpt2");
    json = tokenizer_json(&gpt2);
    json_t *j = json_loads(json, 0, NULL), *model = json_object_get(j, "model"), *v,
           *all = json_copy(json_object_get(model, "vocab"));
    json_object_set_new(all, "<|endoftext|>", json_integer(0));
    json_dump_file(all, vocab, 0);
    FILE *f = fopen(merges, "w");
    size_t i;
    fprintf(f, "#version: 0.2\n");
    json_array_foreach(json_object_get(model, "merges"), i, v)
        fprintf(f, "%s %s\n", json_string_value(json_array_get(v, 0)), json_string_value(json_array_get(v, 1)));
    fclose(f);
    cr_assert(tokenizer_open(&t, check_dir(), NULL, &e), "%s", e.msg);
    Ids a = {0}, b = {0};
    cr_assert(tokenizer_encode(&t, "And God said", 12, 0, &a, &e) &&
              tokenizer_encode(&gpt2, "And God said", 12, 0, &b, &e));
    cr_assert(a.n == b.n && !memcmp(a.id, b.id, a.n * sizeof(int)));
}

/* ---- sources --------------------------------------------------------------------------------------------------------
 */

typedef struct {
    char *text;
    size_t n, ends, read;
} Got;
static bool got_text(void *ctx, const char *s, size_t n, bool end, Err *e) {
    Got *g = ctx;
    (void)e;
    g->text = xrealloc(g->text, g->n + n + 2, 1);
    if (n) memcpy(g->text + g->n, s, n);
    g->n += n;
    if (end) g->text[g->n++] = '#', g->ends++;
    return true;
}
static bool got_read(void *ctx, size_t n, Err *e) {
    (void)e;
    ((Got *)ctx)->read += n;
    return true;
}
static Got read_ok(const char *path, const char *sep, const char *key) {
    Got g = {0};
    Err e = {0};
    SourceCfg c = {sep, sep ? strlen(sep) : 0, key, got_text, got_read, &g, NULL};
    cr_assert(source_read(&c, path, &e), "%s", e.msg);
    size_t size;
    cr_assert(source_size(path, &size, &e) && g.read == size, "%zu bytes read of %zu", g.read, size);
    return g;
}
static void read_fails(const char *path, const char *key, const char *says) {
    Got g = {0};
    Err e = {0};
    SourceCfg c = {NULL, 0, key, got_text, NULL, &g, NULL};
    refused(source_read(&c, path, &e), &e, EXIT_INPUT, says);
    free(g.text);
}
static void write_gz(const char *path, const char *mode, const void *p, size_t n) {
    gzFile z = gzopen(path, mode);
    cr_assert(z && gzwrite(z, p, (unsigned)n) == (int)n && gzclose(z) == Z_OK);
}
static size_t write_zst(const char *path, const void *p, size_t n) {
    size_t room = ZSTD_compressBound(n);
    char *out = malloc(room);
    size_t k = ZSTD_compress(out, room, p, n, 3);
    cr_assert(!ZSTD_isError(k));
    check_write(path, out, k);
    free(out);
    return k;
}

Test(tokens, packings_are_undone) {
    size_t n = 1500000;
    char *text = some_text(9, n), *plain = check_path("t"), *gz = check_path("t.gz"), *zst = check_path("t.zst");
    for (size_t i = 5000; i < n; i += 5003) memcpy(text + i, "<>", 2);
    check_write(plain, text, n);
    write_gz(gz, "wb", text, n / 2); /* two members */
    write_gz(gz, "ab", text + n / 2, n - n / 2);
    write_zst(zst, text, n);
    const char *const path[] = {plain, gz, zst}, *const sep[] = {NULL, "<>", "zzzz"};
    for (int s = 0; s < 3; s++) {
        Got want = read_ok(plain, sep[s], NULL);
        size_t k = 0, ends = 1; /* counted here */
        for (const char *p = text, *at; sep[s] && (at = memmem(p, n - (size_t)(p - text), sep[s], strlen(sep[s])));
             ends++)
            p = at + strlen(sep[s]);
        cr_assert_eq(want.ends, ends, "'%s': %zu documents, expected %zu", sep[s], want.ends, ends);
        cr_assert_eq(want.n - want.ends + (ends - 1) * (sep[s] ? strlen(sep[s]) : 0), n);
        for (size_t i = 0; !sep[s] && i < n; i++) cr_assert_eq(want.text[i], text[i], "byte %zu", i);
        for (k = 1; k < 3; k++) {
            Got got = read_ok(path[k], sep[s], NULL);
            cr_assert(got.n == want.n && !memcmp(got.text, want.text, want.n), "%s", path[k]);
            free(got.text);
        }
        free(want.text);
    }
    free(text);
}

Test(tokens, damaged_packings) {
    char *text = some_text(4, 5000), *path = check_path("x"), *part = check_path("y");
    for (int zst = 0; zst < 2; zst++) {
        zst ? (void)write_zst(path, text, 5000) : write_gz(path, "wb", text, 5000);
        size_t n;
        char *bytes = check_read(path, &n);
        for (size_t cut = 5; cut < n; cut += cut < n - 20 ? 13 : 1) {
            check_write(part, bytes, cut);
            read_fails(part, NULL, "truncated");
        }
        int refusals = 0;
        for (uint64_t k = 0; k < 300; k++) { /* gzip has a sum, zstd by default none: any end but a crash */
            size_t at = 4 + (size_t)(rng_uniform(k, 1) * (double)(n - 4));
            char was = bytes[at];
            bytes[at] ^= (char)(1 << k % 8);
            check_write(part, bytes, n);
            Got g = {0};
            Err e = {0};
            SourceCfg c = {NULL, 0, NULL, got_text, NULL, &g, NULL};
            if (!source_read(&c, part, &e)) refusals++;
            cr_assert(!*e.msg || (e.status == EXIT_INPUT && strstr(e.msg, part)), "%s", e.msg);
            free(g.text);
            bytes[at] = was;
        }
        cr_assert(refusals > 100, "%d of 300", refusals);
        free(bytes);
    }
    free(text);
    char *empty = check_path("empty"), *pipe = check_path("pipe");
    check_write(empty, "", 0);
    cr_assert(!mkfifo(pipe, 0600));
    read_fails(empty, NULL, "is empty");
    read_fails(pipe, NULL, "device or pipe");
    read_fails(check_dir(), NULL, "directory");
    read_fails(check_path("none"), NULL, "No such file");
}

Test(tokens, lines_of_json) {
    char *path = check_path("x.jsonl");
    const char *good = "{\"text\": \"one\\ntwo\", \"id\": 1}\n\n  \r\n{\"id\": {\"text\": 2}, \"text\": "
                       "\"\"}\n{\"text\":\"\\u00e9\\u0000\\\\\"}";
    check_write(path, good, strlen(good));
    Got g = read_ok(path, NULL, "text");
    cr_assert(g.ends == 3 && g.n == 7 + 1 + 1 + 4 + 1 && !memcmp(g.text, "one\ntwo##\xc3\xa9\0\\#", g.n), "%.*s",
              (int)g.n, g.text);
    free(g.text);
    const struct {
        const char *text, *says;
    } bad[] = {{"{\"text\": \"a\"}\n[1]", "line 2: expected a JSON object"},
               {"{\"text\": \"a\"}\n{\"txt\": \"a\"}", "line 2: expected text at the key \"text\", found no such key"},
               {"{\"text\": 5}", "found something else"},
               {"{\"text\": \"a\"", "line 1: not valid JSON"},
               {"{\"text\": \"a\"} x", "line 1: not valid JSON"},
               {"\n\n{\"text\": \"\xff\"}", "line 3: not valid JSON"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        check_write(path, bad[i].text, strlen(bad[i].text));
        read_fails(path, "text", bad[i].says);
    }
    size_t n = SOURCE_LINE_MAX + (3u << 20);
    char *line = malloc(n);
    memset(line, ' ', n);
    check_write(path, line, n);
    read_fails(path, "text", "longer than 33554432 bytes");
    memcpy(line, "{\"text\": \"", 10);
    memset(line + 10, 'a', 3000000);
    memcpy(line + 3000010, "\"}", 3); /* over several reads */
    check_write(path, line, 3000012);
    g = read_ok(path, NULL, "text");
    cr_assert_eq(g.n, 3000001);
    free(g.text);
    free(line);
}
