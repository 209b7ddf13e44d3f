/* test_inputs.c: what counts as text, JSONL as training reads it, the files that a word names, how much there is. */
#include "tests/lib/check.h"
#include <sys/stat.h>
#include <unistd.h>
#include "data/paths.h"
#include "data/source.h"
#include "data/text.h"
#include "infer/text.h"

static const char *file(const char *name, const char *text) {
    char *path = check_path(name);
    check_write(path, text, strlen(text));
    return path;
}
static void refused(bool ok, const Err *e, const char *part) {
    cr_assert(!ok, "accepted; expected an error with '%s'", part);
    cr_assert_eq(e->status, EXIT_INPUT, "status %d: %s", e->status, e->msg);
    cr_assert(strstr(e->msg, part) && !strchr(e->msg, '\n'), "message '%s' does not contain '%s'", e->msg, part);
}

/* ---- what counts as text --------------------------------------------------------------------------------------------
 */

/* In pieces of `step` bytes. */
static bool is_text(const char *s, size_t n, size_t step, Err *e) {
    TextCheck c = {.name = "file", .lift = "data.encoding=bytes"};
    *e = (Err){0};
    for (size_t at = 0; at < n; at += step)
        if (!text_check(&c, s + at, zmin(step, n - at), e)) return false;
    return text_check_end(&c, e);
}

/* Random strings of the bytes at which the rules change: text is what the decoder of infer/text.c, which shares no
 * code, leaves as it is, without NUL. */
Test(inputs, text_is_utf8_without_nul) {
    static const unsigned char byte[] = {'a',  ' ',  '\n', 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0,
                                         0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5};
    int texts = 0, others = 0;
    Err e;
    for (uint64_t i = 0; i < 60000; i++) {
        char s[40];
        size_t n = 0, m;
        for (; n < i % 5; n++) s[n] = 'x'; /* the words of eight begin anywhere */
        size_t more = n + (size_t)(rng_uniform(1, i) * 6);
        for (uint64_t k = 0; n < more; k++)
            s[n++] = (char)byte[(size_t)(rng_uniform(2, 64 * i + k) * (double)sizeof byte)];
        for (size_t end = n + (size_t)(i % 11); n < end; n++) s[n] = 'y';
        char *clean = utf8_clean(s, n, &m);
        bool want = m == n && !memcmp(clean, s, n), got = is_text(s, n, 1 + (size_t)(i % 9), &e);
        free(clean);
        cr_assert_eq(got, want, "string %d of %zu bytes: %s", (int)i, n, got ? "taken for text" : e.msg);
        texts += want, others += !want;
    }
    cr_assert(texts > 2000 && others > 2000, "%d texts, %d others", texts, others);
    for (size_t at = 0; at < 20; at++) {
        char s[24];
        memset(s, 'a', sizeof s);
        s[at] = 0;
        refused(is_text(s, sizeof s, 24, &e), &e, "is NUL: it looks like a binary file");
    }
    refused(is_text("caf\xe9 au lait", 12, 5, &e), &e, "file: byte 3 does not continue as UTF-8");
    cr_assert(strstr(e.msg, "data.encoding=bytes"));
    refused(is_text("caf\xc3", 4, 4, &e), &e, "byte 3 does not continue");
    cr_assert(is_text("", 0, 1, &e) && is_text("\xef\xbb\xbfmark", 7, 7, &e));
}

Test(inputs, other_files_are_named) {
    static const struct {
        const char *begin, *part;
    } kind[] = {{"PAR1xx", "a Parquet table"},
                {"ARROW1", "an Arrow file"},
                {"\xff\xff\xff\xff@", "an Arrow stream"},
                {"PK\x03\x04", "a ZIP archive"},
                {"%PDF-1.7", "a PDF"},
                {"SQLite format 3", "an SQLite"},
                {"\x1f\x8b\x08", "gzip"},
                {"\x7f"
                 "ELF",
                 "a program"},
                {"\xff\xfeh", "UTF-16"}};
    Err e;
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++)
        refused(is_text(kind[i].begin, strlen(kind[i].begin), 64, &e), &e, kind[i].part);
    TextCheck any = {.name = "file"};
    cr_assert(text_check(&any, "PAR1\0\xff", 6, &e) && text_check_end(&any, &e));
}

/* Anywhere in a file, and not only where plain text is read. */
Test(inputs, streams_of_other_bytes_are_refused) {
    enum { N = 3 << 20 };
    Tokenizer t = tokenizer_byte();
    char *text = malloc(N);
    memset(text, 'a', N);
    text[N - 2] = (char)0xe9;
    const char *late = check_path("late"), *lines = file("bad.jsonl", "{\"text\": \"caf\xe9\"}\n");
    check_write(late, text, N);
    for (int k = 0; k < 2; k++) {
        Stream s;
        Err e = {0};
        StreamSpec spec = {.ntrain = 1, .train = k ? &lines : &late, .seq_len = 1, .lift = "data.encoding=bytes"};
        refused(stream_open(&s, &spec, &t, &e), &e, k ? "byte 13 does not" : "byte 3145726 does not");
        if (k) break;
        spec.lift = NULL, e = (Err){0};
        cr_assert(stream_open(&s, &spec, &t, &e), "%s", e.msg);
        stream_close(&s);
    }
    free(text);
}

/* ---- JSONL ----------------------------------------------------------------------------------------------------------
 */

/* The documents of lines are those of a text with separators. */
Test(inputs, jsonl_is_documents) {
    const char *text = file("a", "And God|caf\xc3\xa9|x"),
               *lines = file("a.jsonl", "{\"text\": \"And God\", \"id\": 3}\n\n{\"text\": \"\"}\n"
                                        " {\"id\": {}, \"text\": \"caf\\u00e9\"}\r\n{\"text\":\"x\"}"),
               *none = file("none.jsonl", "{\"text\": \"\"}\n"), *key = file("key.jsonl", "{\"body\": \"a\"}\n"),
               *talk = file("talk.jsonl", "{\"messages\": []}\n");
    Tokenizer t = tokenizer_byte();
    Stream a, b;
    Err e = {0};
    size_t planned;
    StreamSpec spec = {.ntrain = 1, .train = &text, .separator = "|", .seq_len = 1, .lift = "x"};
    cr_assert(stream_open(&a, &spec, &t, &e), "%s", e.msg);
    spec.train = &lines;
    cr_assert(stream_bytes(&spec, &t, &planned, &e) && stream_open(&b, &spec, &t, &e), "%s", e.msg);
    cr_assert(a.tokens == b.tokens && a.hash == b.hash && b.documents == 3 && b.bytes == 13 && b.mem.peak == planned,
              "%zu tokens, %zu documents of %zu bytes", b.tokens, b.documents, b.bytes);
    stream_close(&a), stream_close(&b);
    spec.train = &none;
    refused(stream_open(&a, &spec, &t, &e), &e, "contains only documents of no bytes");
    spec.train = &key;
    refused(stream_open(&a, &spec, &t, &e), &e, "expected text at the key \"text\", found no such key");
    spec.train = &talk;
    refused(stream_open(&a, &spec, &t, &e), &e, "data.sft.template");
}

/* ---- files ----------------------------------------------------------------------------------------------------------
 */

static void names(const char *word, const char *want) {
    Paths p = {0};
    Err e = {0};
    char got[200] = "";
    cr_assert(paths_add(&p, word, "data.train", &e), "%s", e.msg);
    for (int i = 0; i < p.n; i++) strcat(strcat(got, strrchr(p.path[i], '/') + 1), " ");
    cr_assert_str_eq(got, want);
    paths_free(&p);
}
static void names_none(const char *word, const char *part) {
    Paths p = {0};
    Err e = {0};
    refused(paths_add(&p, word, "data.train", &e), &e, part);
    cr_assert(!strncmp(e.msg, "data.train: ", 12), "%s", e.msg);
    paths_free(&p);
}
Test(inputs, files_that_a_word_names) {
    char *dir = xformat("%s/d", check_dir()), *word = NULL;
    cr_assert(!mkdir(dir, 0777));
    file("d/b.txt", "b"), file("d/a.jsonl", "a"), file("d/c.txt.zst", "c"), file("d/.txt", ""), file("d/.h.txt", "h");
    file("d/README.md", "r"), file("d/B.txt", "B");
    names(dir, "B.txt a.jsonl b.txt c.txt.zst ");
    names(word = xformat("%s/", dir), "B.txt a.jsonl b.txt c.txt.zst "), free(word);
    names(word = xformat("%s/*.txt", dir), "B.txt b.txt "), free(word);
    names(word = xformat("%s/[a-b].*", dir), "a.jsonl b.txt "), free(word);
    file("d/[a].txt", "itself"); /* a file of that very name is no pattern */
    names(word = xformat("%s/[a].txt", dir), "[a].txt "), free(word);
    names(word = xformat("%s/none", dir), "none "), free(word);
    names_none(word = xformat("%s/*.md5", dir), "no file matches the pattern"), free(word);
    word = xformat("%s/e.txt", dir); /* a folder, though named like a text */
    cr_assert(!mkdir(word, 0777));
    names_none(word, "has no file named .txt or .jsonl"), free(word);
    names(dir, "B.txt [a].txt a.jsonl b.txt c.txt.zst ");
    free(dir);
}

Test(inputs, patterns_in_a_stream) {
    Tokenizer t = tokenizer_byte();
    Stream s;
    Err e = {0};
    file("1.txt", "one"), file("2.txt", "twoo");
    const char *pattern = xformat("%s/?.txt", check_dir()), *more[] = {pattern, pattern};
    StreamSpec spec = {.ntrain = 1, .train = &pattern, .seq_len = 1};
    cr_assert(stream_open(&s, &spec, &t, &e), "%s", e.msg);
    cr_assert(s.train.n == 1 && s.documents == 2 && s.tokens == 3 + 4 + 3, "%zu tokens", s.tokens);
    stream_close(&s);
    spec = (StreamSpec){.ntrain = 2, .train = more, .weight = (double[]){1, 2}, .seq_len = 1};
    refused(stream_open(&s, &spec, &t, &e), &e, "has a weight and names 2 files");
}

/* ---- how much there is ----------------------------------------------------------------------------------------------
 */

Test(inputs, estimate_of_what_there_is) {
    static const char *const names[] = {"byte", "tests/golden/bpe/gpt2.json", "tests/golden/bpe/llama2.json"};
    char *kjv = check_read("data/kjv.txt", NULL);
    kjv[300000] = 0;
    const char *all = file("kjv", kjv), *small = file("small", "A small text of 36 bytes, for a blend"),
               *both[] = {all, small};
    for (int k = 0; k < 3; k++) {
        Tokenizer t;
        Stream s;
        Err e = {0};
        double tokens;
        size_t bytes;
        cr_assert(tokenizer_open(&t, names[k], "256", &e), "%s", e.msg);
        StreamSpec spec = {.ntrain = 1, .train = &all, .separator = "\\f\\n", .seq_len = 1, .val_fraction = 0.25};
        cr_assert(stream_estimate(&spec, &t, &tokens, &bytes, &e) && stream_open(&s, &spec, &t, &e), "%s", e.msg);
        cr_assert(bytes == s.bytes + 2, "%zu bytes of %zu", bytes, s.bytes);
        cr_assert(fabs(tokens / (double)s.tokens - 1) < (k ? 0.01 : 1e-3), "%s: %g tokens, not %zu", names[k], tokens,
                  s.tokens);
        cr_assert_eq(stream_epoch(&s), (double)s.tokens);
        stream_close(&s);
        tokenizer_close(&t);
    }
    free(kjv);
    /* of a blend counts what is read most often: a third of all samples is from 38 tokens */
    Tokenizer t = tokenizer_byte();
    Stream s;
    Err e = {0};
    double tokens;
    size_t bytes;
    StreamSpec spec = {.ntrain = 2, .train = both, .weight = (double[]){2, 1}, .seq_len = 1};
    cr_assert(stream_estimate(&spec, &t, &tokens, &bytes, &e) && stream_open(&s, &spec, &t, &e), "%s", e.msg);
    cr_assert(stream_epoch(&s) == 3 * (strlen("A small text of 36 bytes, for a blend") + 2), "%g", stream_epoch(&s));
    cr_assert(fabs(tokens / stream_epoch(&s) - 1) < 0.06, "%g", tokens);
    stream_close(&s);
}
