/* test_data.c: the byte tokenizer and its file, text to token streams, windows of them as batches. */
#include "tests/lib/check.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "data/loader.h"
#include "data/text.h"

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static void refused(bool ok, const Err *e, int status, const char *part) {
    cr_assert(!ok, "accepted; expected an error with '%s'", part);
    cr_assert_eq(e->status, status, "status %d, expected %d: %s", e->status, status, e->msg);
    cr_assert(strlen(e->msg) > 0 && !strchr(e->msg, '\n'), "message '%s'", e->msg);
    cr_assert(strstr(e->msg, part), "message '%s' does not contain '%s'", e->msg, part);
}

/* s with its first `from` replaced; malloc'ed. */
static char *edit(const char *s, const char *from, const char *to) {
    const char *at = strstr(s, from);
    cr_assert(at, "golden file has no '%s'", from);
    return xformat("%.*s%s%s", (int)(at - s), s, to, at + strlen(from));
}

static char *text_file(const char *name, const char *text) {
    char *path = check_path(name);
    check_write(path, text, strlen(text));
    return path;
}

/* What a test looks at: the only part of each. Owns the stream, whose views point into it. */
typedef struct {
    Stream *own;
    Tokens train, val;
    size_t documents, bytes;
} Opened;
static Opened open_ok(StreamSpec spec) {
    Stream *s = xcalloc(1, sizeof *s);
    Err e = {0};
    Tokenizer t = tokenizer_byte();
    cr_assert(stream_open(s, &spec, &t, &e), "%s", e.msg);
    cr_assert(s->train.n == 1 && s->val.n <= 1);
    return (Opened){s, s->part[0], s->tail[0], s->documents, s->bytes};
}
static void opened_close(Opened *o) {
    stream_close(o->own);
    free(o->own);
}
#define MIX(t) (&(Mix){.n = 1, .part = &(t)})
static int id_at(Tokens t, size_t i) { return (int)token_at(&t, i); }
static void open_fails(StreamSpec spec, int status, const char *part) {
    Stream s;
    Err e = {0};
    Tokenizer t = tokenizer_byte();
    refused(stream_open(&s, &spec, &t, &e), &e, status, part);
    cr_assert(!s.mem.base && !s.set && !s.train.n && !s.val.n, "something is left open");
}

/* Tokens against a picture of them: '^' is end-of-text, any other character itself. */
static void expect_tokens(const char *what, Tokens got, const char *want) {
    cr_assert_eq(got.n, strlen(want), "%s: %zu tokens, expected %zu", what, got.n, strlen(want));
    for (size_t i = 0; i < got.n; i++) {
        int w = want[i] == '^' ? 256 : (unsigned char)want[i];
        cr_assert_eq(id_at(got, i), w, "%s: token %zu is %d, expected %d", what, i, id_at(got, i), w);
    }
}

/* ---- tokenizer --------------------------------------------------------------------------------------------------- */

static void round_trip(const Tokenizer *t, const unsigned char *text, size_t n) {
    Ids ids = {0};
    size_t at = 0;
    Err e = {0};
    cr_assert(tokenizer_encode(t, text, n, 0, &ids, &e), "%s", e.msg);
    cr_assert_eq(ids.n, n, "%zu ids for %zu bytes", ids.n, n);
    for (size_t i = 0; i < ids.n; i++) {
        size_t k;
        const char *s = tokenizer_decode(t, ids.id[i], &k);
        cr_assert_eq(ids.id[i], text[i], "byte %zu: id %d, expected %d", i, ids.id[i], text[i]);
        cr_assert(at + k <= n && !memcmp(s, text + at, k), "byte %zu: %d came back as another", i, text[i]);
        at += k;
    }
    cr_assert_eq(at, n);
    ids_free(&ids);
}

Test(data, tokenizer_round_trip) {
    Tokenizer t = tokenizer_byte();
    unsigned char text[512];
    for (int i = 0; i < 256; i++) text[i] = (unsigned char)i;
    round_trip(&t, text, 256);
    round_trip(&t, (const unsigned char *)"<|endoftext|>", 13); /* characters, not the id */
    for (uint64_t k = 0; k < 500; k++) {
        size_t n = (size_t)(rng_uniform(k, 0) * sizeof text);
        for (size_t i = 0; i < n; i++) text[i] = (unsigned char)(rng_uniform(k, i + 1) * 256);
        round_trip(&t, text, n);
    }
    size_t n;
    cr_assert_eq(t.vocab, 257);
    cr_assert_eq(t.eot, 256);
    cr_assert(!memcmp(tokenizer_decode(&t, 256, &n), "<|endoftext|>", 13) && n == 13);
}

/* The golden file was built and written by the tokenizers library, which also verified that its ids are the bytes. */
Test(data, tokenizer_file_is_the_librarys) {
    size_t n;
    char *want = check_read("tests/golden/tokenizer.json", &n);
    Tokenizer t = tokenizer_byte(), back = {0};
    Err e = {0};
    char *got = tokenizer_json(&t);
    cr_assert_eq(strlen(got), n + 1, "%zu bytes, expected %zu and a newline", strlen(got), n);
    CHECK_BYTES("tokenizer.json", got, want, n);
    cr_assert(tokenizer_load(&back, "tests/golden/tokenizer.json", &e), "%s", e.msg);
    cr_assert(back.vocab == t.vocab && back.eot == t.eot);
    round_trip(&back, (const unsigned char *)got, n);
    cr_assert(tokenizer_parse(&back, got, n + 1, "ours", &e), "%s", e.msg);
    free(got);
    free(want);
}

static const struct {
    const char *from, *to, *says;
} other[] = {
    {"\"BPE\"", "\"Unigram\"", "expected model.vocab, a list"},
    {"\"BPE\"", "\"WordLevel\"", "model.type: WordLevel"},
    {"\"BPE\"", "\"\\u001b[2J\\n\"", "model.type: ?[2J?"},
    {"\"BPE\"", "5", "model.type: one without a type"},
    {"\"model\"", "\"modell\"", "expected \"model\""},
    {"\"vocab\"", "\"words\"", "expected model.vocab"},
    {"\"merges\": []", "\"merges\": [[\"t\", \"h\"], [\"th\", \"e\"]]", "merge 0 needs the token 'th'"},
    {"\"merges\": []", "\"merges\": [\"th\"]", "merge 0 is not two texts"},
    {"\"merges\": []", "\"merges\": [7]", "merge 0 is not two texts"},
    {"\"merges\": []", "\"merges\": null", "expected model.merges"},
    {"\"!\": 33", "\"!\": 34", "id 34 is given to two tokens"},
    {"\"!\": 33", "\"!\": 33.0", "the id of token '!'"},
    {"\"!\": 33", "\"!\": 4294967329", "the id of token '!'"},
    {"\"!\": 33", "\"!\": -1", "the id of token '!'"},
    {"\"!\": 33", "\"!!\": 33", "no token for byte 0x21"},
    {"\"!\": 33", "\"!\": 33, \"!\": 33", "duplicate object key"},
    {"\"id\": 256", "\"id\": \"256\"", "the id of token '<|endoftext|>'"},
    {"\"content\": \"<|endoftext|>\"", "\"content\": \"\"", "added token 0 has no content"},
    {"<|endoftext|>", "a\\u0000b", "x.json"},
    {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Upper\"}", "normalizer: Upper"},
    {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Prepend\", \"prepend\": 5}", "x.json: "},
    {"\"post_processor\": null", "\"post_processor\": {\"type\": \"Others\"}", "post_processor: Others"},
    {"\"post_processor\": null",
     "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}]}",
     "a token that has no ids"},
    {"\"post_processor\": null",
     "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}], "
     "\"special_tokens\": {\"x\": {\"ids\": [999]}}}",
     "an id outside the vocabulary"},
    {"\"type\": \"ByteLevel\"", "\"type\": \"Scripts\"", "pre_tokenizer: Scripts"},
    {"\"pre_tokenizer\"", "\"pre\"", "a vocabulary of characters without byte_fallback"},
    {"\"dropout\": null", "\"dropout\": 0.1", "model: dropout"},
    {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"##\"",
     "model: continuing_subword_prefix"},
};

Test(data, tokenizer_refuses_others) {
    char *golden = check_read("tests/golden/tokenizer.json", NULL);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        char *json = edit(golden, other[i].from, other[i].to);
        Tokenizer t;
        Err e = {0};
        bool ok = tokenizer_parse(&t, json, strlen(json), "x.json", &e);
        refused(ok, &e, EXIT_INPUT, other[i].says);
        refused(ok, &e, EXIT_INPUT, "x.json");
        free(json);
    }
    free(golden);
}

Test(data, tokenizer_hostile) {
    size_t n;
    char *golden = check_read("tests/golden/tokenizer.json", &n);
    Tokenizer t;
    /* Every truncation; a copy of exact size lets the sanitizers see a read past it. */
    for (size_t cut = 0; cut < n; cut++) {
        Err e = {0};
        char *part = malloc(cut ? cut : 1);
        memcpy(part, golden, cut);
        refused(tokenizer_parse(&t, part, cut, "cut.json", &e), &e, EXIT_INPUT, ".json");
        free(part);
    }
    /* One byte changed: refused with a message, or something that does not matter (a blank, a flag of the decoder). */
    for (uint64_t k = 0; k < 4000; k++) {
        Err e = {0};
        size_t at = (size_t)(rng_uniform(k, 0) * (double)n);
        char keep = golden[at];
        golden[at] = (char)(rng_uniform(k, 1) * 256);
        if (tokenizer_parse(&t, golden, n, "flip.json", &e))
            tokenizer_close(&t);
        else
            cr_assert(e.status == EXIT_INPUT && *e.msg);
        golden[at] = keep;
    }
    struct {
        const char *text, *says;
    } bad[] = {{"", "bad.json"},
               {"[]", "bad.json"},
               {"{}", "expected \"model\""},
               {"17", "bad.json"},
               {"{\"model\": []}", "expected \"model\""},
               {"{\"model\": {\"type\": \"BPE\", \"vocab\": 3}}", "expected model.vocab"},
               {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", "the vocabulary is empty"},
               {"{\"a\": \"\xff\"}", "bad.json"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Err e = {0};
        refused(tokenizer_parse(&t, bad[i].text, strlen(bad[i].text), "bad.json", &e), &e, EXIT_INPUT, bad[i].says);
    }
    size_t deep = 1000000;
    char *nest = malloc(deep);
    memset(nest, '[', deep);
    Err e = {0};
    refused(tokenizer_parse(&t, nest, deep, "deep.json", &e), &e, EXIT_INPUT, ".json");
    free(nest);
    free(golden);
}

Test(data, tokenizer_paths) {
    Tokenizer t;
    Err e = {0};
    refused(tokenizer_load(&t, check_path("none.json"), &e), &e, EXIT_INPUT, "No such file");
    refused(tokenizer_load(&t, check_dir(), &e), &e, EXIT_INPUT, "found a directory");
    char *pipe = check_path("pipe.json");
    cr_assert(!mkfifo(pipe, 0600));
    refused(tokenizer_load(&t, pipe, &e), &e, EXIT_INPUT, "found a device or pipe");
    refused(tokenizer_load(&t, text_file("empty.json", ""), &e), &e, EXIT_INPUT, ".json");
    char *big = text_file("big.json", "{}");
    cr_assert(!truncate(big, (off_t)1 << 40)); /* sparse */
    refused(tokenizer_load(&t, big, &e), &e, EXIT_INPUT, "a file of 1099511627776 bytes");
    cr_assert(!truncate(big, TOKENIZER_FILE_MAX)); /* NUL bytes behind the object, of a size that is read */
    refused(tokenizer_load(&t, big, &e), &e, EXIT_INPUT, ".json");
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

Test(data, documents) {
    const char *a = text_file("a", "one\f\ntwo\f\n\f\n\f\nthree\f\n"), *b = text_file("b", "\f\nfour\f"),
               *c = text_file("c", "x|y");
    const struct {
        int n;
        const char *path[3], *sep, *want;
        size_t documents, bytes;
    } cases[] = {
        {1, {a}, "\\f\\n", "^one^two^three^", 3, 11},
        {1, {a}, "\f\n", "^one^two^three^", 3, 11},
        {1, {a}, "", "^one\f\ntwo\f\n\f\n\f\nthree\f\n^", 1, 21},
        {1, {a}, NULL, "^one\f\ntwo\f\n\f\n\f\nthree\f\n^", 1, 21},
        {1, {a}, "t", "^one\f\n^wo\f\n\f\n\f\n^hree\f\n^", 3, 19},
        {1, {b}, "\\f\\n", "^four\f^", 1, 5}, /* half a separator at the end is text */
        {3, {a, b, c}, "\\f\\n", "^one^two^three^four\f^x|y^", 5, 19},
        {2, {c, c}, "|", "^x^y^x^y^", 4, 4},
        {1, {c}, "x|y?", "^x|y^", 1, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char what[32];
        snprintf(what, sizeof what, "case %zu", i);
        Opened s = open_ok(
            (StreamSpec){.ntrain = cases[i].n, .train = cases[i].path, .separator = cases[i].sep, .seq_len = 1});
        expect_tokens(what, s.train, cases[i].want);
        cr_assert(s.val.n == 0 && s.documents == cases[i].documents && s.bytes == cases[i].bytes,
                  "%s: %zu documents of %zu bytes", what, s.documents, s.bytes);
        opened_close(&s);
    }
}

Test(data, bytes_are_text) { /* NUL, invalid UTF-8, the spelling of end-of-text; longer than a piece of encoding */
    enum { N = 20000 };
    static unsigned char text[N];
    for (size_t i = 0; i < N; i++) text[i] = (unsigned char)(rng_uniform(3, i) * 256);
    memcpy(text + 4090, "<|endoftext|>", 13);
    const char *path = check_path("raw");
    check_write(path, text, N);
    Opened s = open_ok((StreamSpec){.ntrain = 1, .train = &path, .seq_len = 1});
    cr_assert(s.train.n == N + 2 && id_at(s.train, 0) == 256 && id_at(s.train, N + 1) == 256);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(id_at(s.train, i + 1), text[i], "byte %zu: %d, expected %d", i, id_at(s.train, i + 1), text[i]);
    opened_close(&s);
}

Test(data, validation_is_the_tail) {
    /* The cut of one file: as Python's int(n * (1 - f)), numbers from there. */
    const struct {
        size_t n;
        double f;
        size_t keep;
    } cut[] = {{1115394, 0.1, 1003854}, {10, 0.1, 9}, {11, 0.1, 9},
               {1000, 0.3, 700},        {7, 0.5, 3},  {12345, 0.05, 11727}};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        char *text = xcalloc(cut[i].n, 1);
        for (size_t j = 0; j < cut[i].n; j++) text[j] = (char)('a' + j % 26);
        const char *path = check_path("whole");
        check_write(path, text, cut[i].n);
        Opened s = open_ok((StreamSpec){.ntrain = 1, .train = &path, .val_fraction = cut[i].f, .seq_len = 1});
        size_t k = cut[i].keep;
        cr_assert_eq(s.train.n, 1 + k, "n %zu: %zu tokens to train on, expected EOT and %zu", cut[i].n, s.train.n, k);
        cr_assert_eq(s.val.n, cut[i].n - k + 1, "n %zu: %zu tokens to validate on", cut[i].n, s.val.n);
        cr_assert(id_at(s.train, 0) == 256 && id_at(s.train, k) == text[k - 1] && id_at(s.val, 0) == text[k]);
        cr_assert(id_at(s.val, s.val.n - 1) == 256 && id_at(s.val, s.val.n - 2) == text[cut[i].n - 1]);
        opened_close(&s);
        free(text);
    }
    /* With documents the fraction is of text, and an end-of-text at the cut begins validation's first document. */
    const char *docs = text_file("docs", "abcd|efgh|ij");
    const struct {
        double f;
        const char *train, *val;
    } part[] = {{0.2, "^abcd^efgh", "^ij^"},
                {0.1, "^abcd^efgh^i", "j^"},
                {0.6, "^abcd", "^efgh^ij^"},
                {0.7, "^abc", "d^efgh^ij^"}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        Opened s = open_ok(
            (StreamSpec){.ntrain = 1, .train = &docs, .val_fraction = part[i].f, .separator = "|", .seq_len = 2});
        expect_tokens("train", s.train, part[i].train);
        expect_tokens("val", s.val, part[i].val);
        opened_close(&s);
    }
}

Test(data, validation_file) {
    const char *a = text_file("a", "abc"), *v = text_file("v", "x|yz");
    Opened s =
        open_ok((StreamSpec){.ntrain = 1, .train = &a, .val = v, .val_fraction = 0.5, .separator = "|", .seq_len = 4});
    expect_tokens("train", s.train, "^abc^");
    expect_tokens("val", s.val, "^x^yz^");
    cr_assert(s.documents == 3 && s.bytes == 6);
    opened_close(&s);
}

Test(data, streams_refused) {
    const char *a = text_file("a", "abcdef"), *empty = text_file("empty", ""), *seps = text_file("seps", "||||");
    const char *none = check_path("none"), *pipe = check_path("pipe"), *dir = check_dir(), *two[] = {a, none};
    cr_assert(!mkfifo(pipe, 0600));
    open_fails((StreamSpec){.ntrain = 1, .train = &none, .seq_len = 1}, EXIT_INPUT, "none: No such file");
    open_fails((StreamSpec){.ntrain = 2, .train = two, .seq_len = 1}, EXIT_INPUT, "none: No such file");
    open_fails((StreamSpec){.ntrain = 1, .train = &a, .val = none, .seq_len = 1}, EXIT_INPUT, "none: No such file");
    open_fails((StreamSpec){.ntrain = 1, .train = &a, .val = dir, .seq_len = 1}, EXIT_INPUT, "found a directory");
    open_fails((StreamSpec){.ntrain = 1, .train = &pipe, .seq_len = 1}, EXIT_INPUT, "found a device or pipe");
    open_fails((StreamSpec){.ntrain = 1, .train = &empty, .seq_len = 1}, EXIT_INPUT, "is empty");
    open_fails((StreamSpec){.ntrain = 1, .train = &seps, .separator = "|", .seq_len = 1}, EXIT_INPUT,
               "only separators");
    open_fails((StreamSpec){.ntrain = 1, .train = &a, .val = seps, .separator = "|", .seq_len = 1}, EXIT_INPUT,
               "only separators");
    open_fails((StreamSpec){.ntrain = 1, .train = &a, .separator = "a\\", .seq_len = 1}, EXIT_INPUT, "backslash");
    open_fails((StreamSpec){.ntrain = 1, .train = &a, .separator = "\\x", .seq_len = 1}, EXIT_INPUT, "backslash");
    open_fails((StreamSpec){.ntrain = 1, .train = &a, .seq_len = 8}, EXIT_INPUT,
               "8 tokens to train on (0 to validate on), expected at least data.seq_len + 1 = 9");
    open_fails((StreamSpec){.ntrain = 1, .train = &a, .seq_len = INT32_MAX}, EXIT_INPUT, "= 2147483648");
    open_fails((StreamSpec){.ntrain = 1, .train = &a, .val_fraction = 0.5, .seq_len = 4}, EXIT_INPUT,
               "4 tokens to train on (4 to validate on)");
    open_fails((StreamSpec){.ntrain = 1, .train = &a, .val_fraction = 1e-18, .seq_len = 1}, EXIT_INPUT,
               "leaves 1 to validate on");
    Opened s = open_ok((StreamSpec){.ntrain = 1, .train = &a, .seq_len = 7}); /* just enough */
    cr_assert_eq(loader_windows(MIX(s.train), 7), 1);
    opened_close(&s);
}

#ifndef __SANITIZE_ADDRESS__ /* the sanitizer needs terabytes of address space itself */
Test(data, no_memory_for_a_file) {
    const char *huge = text_file("huge", "x");
    struct rlimit limit = {(rlim_t)1 << 32, (rlim_t)1 << 32};
    cr_assert(!truncate(huge, (off_t)1 << 40)); /* sparse */
    cr_assert(!setrlimit(RLIMIT_AS, &limit));
    open_fails((StreamSpec){.ntrain = 1, .train = &huge, .seq_len = 1}, EXIT_RUNTIME, "Cannot allocate memory");
}
#endif

Test(data, region_is_known_before) {
    const char *a = text_file("a", "one|two||three"), *v = text_file("v", "four"), *none = check_path("none");
    const char *both[] = {a, a};
    Tokenizer byte = tokenizer_byte();
    StreamSpec spec = {.ntrain = 2, .train = both, .val = v, .separator = "|", .seq_len = 1};
    for (int own = 0; own < 2; own++) {
        Err e = {0};
        size_t bytes = 0;
        spec.val = own ? v : "";
        cr_assert(stream_bytes(&spec, &byte, &bytes, &e), "%s", e.msg);
        Opened s = open_ok(spec);
        cr_assert(s.own->mem.peak == bytes && s.own->mem.size == bytes, "%zu bytes, %zu were foretold", s.own->mem.peak,
                  bytes);
        /* At most two bytes per byte of file and per end-of-text, and what an arena adds to a take. */
        size_t most = 2 * (14 + 14 + 3) + 128 + (own ? 2 * (4 + 2) + 128 : 0);
        cr_assert(bytes <= most, "%zu bytes, expected at most %zu", bytes, most);
        opened_close(&s);
    }
    size_t bytes;
    Err e = {0};
    spec.separator = "\\q";
    refused(stream_bytes(&spec, &byte, &bytes, &e), &e, EXIT_INPUT, "backslash");
    spec.separator = "|";
    spec.val = none;
    refused(stream_bytes(&spec, &byte, &bytes, &e), &e, EXIT_INPUT, "none: No such file");
}

Test(data, shipped_corpus) {
    const char *path = "data/kjv.txt";
    Opened s =
        open_ok((StreamSpec){.ntrain = 1, .train = &path, .val_fraction = 0.1, .separator = "\\f\\n", .seq_len = 256});
    cr_assert_eq(s.documents, 20);
    cr_assert_eq(s.bytes, 2400567 - 19 * 2);
    size_t n, lines = 0, other_bytes = 0;
    char *text = check_read(path, &n);
    cr_assert_eq(n, 2400567);
    for (size_t i = 0; i < n; i++) {
        lines += text[i] == '\n' && i && text[i - 1] != '\n' && text[i - 1] != '\f';
        other_bytes += !(text[i] >= ' ' && text[i] <= '~') && text[i] != '\n' && text[i] != '\f';
    }
    cr_assert_eq(lines, 16596, "%zu verses", lines);
    cr_assert_eq(other_bytes, 0);
    cr_assert(!strpbrk(text, "0123456789[]{}"), "a reference is left in the text");
    free(text);
    opened_close(&s);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* n tokens whose document starts are at places chosen by seed; the other ids are the bytes of the place. */
static Tokens some_tokens(size_t n, uint64_t seed) {
    uint16_t *id = xcalloc(n, sizeof *id);
    for (size_t i = 0; i < n; i++) id[i] = rng_uniform(seed, i) < 0.08 || i + 1 == n || !i ? 256 : (uint16_t)(i % 251);
    return (Tokens){.id = id, .n = n};
}

/* A batch against its definition: sequence k holds `want` windows; documents by looking back from every row. */
static void expect_batch(const Loader *l, Tokens t, int b, const size_t *at, const size_t *len, const uint64_t *id) {
    const Batch *B = &l->batch;
    int row = 0;
    cr_assert_eq(B->B, b);
    cr_assert(!B->history);
    for (int k = 0; k < b; k++) {
        cr_assert_eq(B->off[k], row, "sequence %d begins at row %d, expected %d", k, B->off[k], row);
        cr_assert_eq(B->id[k], id[k], "sequence %d", k);
        int begin = row;
        for (size_t i = 0; i < len[k]; i++, row++) {
            int back = row;
            while (back > begin && id_at(t, at[k] + (size_t)(back - begin)) != 256) back--;
            cr_assert_eq(l->tok[row], id_at(t, at[k] + i), "row %d", row);
            cr_assert_eq(l->tgt[row], id_at(t, at[k] + i + 1), "row %d", row);
            cr_assert_eq(B->of[row], k, "row %d", row);
            cr_assert_eq(B->first[row], back, "row %d: first %d, expected %d", row, B->first[row], back);
            cr_assert_eq(B->pos[row], row - back, "row %d: pos %d, expected %d", row, B->pos[row], row - back);
        }
    }
    cr_assert_eq(B->off[b], row);
    cr_assert_eq(B->N, row);
}

static Loader loader_ok(int max_samples, int seq_len) {
    Loader l;
    Err e = {0};
    cr_assert(loader_open(&l, max_samples, seq_len, true, &e), "%s", e.msg);
    cr_assert_eq(l.mem.peak, loader_bytes(max_samples, seq_len));
    cr_assert_eq(l.mem.size, l.mem.peak);
    return l;
}

static void train_ok(Loader *l, Tokens t, int eot, uint64_t seed, uint64_t sample, int b) {
    Err e = {0};
    cr_assert(loader_train(l, MIX(t), eot, seed, sample, b, &e), "%s", e.msg);
}
static void val_ok(Loader *l, Tokens t, int eot, int64_t eval_tokens, uint64_t window, int b) {
    Err e = {0};
    cr_assert(loader_val(l, MIX(t), eot, eval_tokens, window, b, &e), "%s", e.msg);
}

/* The window that a filled row 0 came from: tokens hold their place. */
Test(data, an_epoch_is_a_permutation) {
    const int T = 4;
    const uint64_t Ws[] = {1, 2, 3, 64, 1000};
    for (size_t w = 0; w < sizeof Ws / sizeof *Ws; w++) {
        uint64_t W = Ws[w];
        size_t n = (size_t)W * (size_t)T + 1 + w % 4; /* up to 3 tokens too few for one window more */
        uint16_t *id = xcalloc(n, sizeof *id);
        for (size_t i = 0; i < n; i++) id[i] = (uint16_t)i;
        Tokens t = {.id = id, .n = n};
        cr_assert_eq(loader_windows(MIX(t), T), W);
        Loader l = loader_ok(1, T);
        uint64_t *order = xcalloc((size_t)W * 4, sizeof *order), same_epoch = 0, same_seed = 0, in_order = 0;
        for (uint64_t s = 0; s < 4 * W; s++) { /* epochs 0, 1, 2 of seed 1; epoch 0 of seed 2 */
            train_ok(&l, t, -1, s < 3 * W ? 1 : 2, s < 3 * W ? s : s - 3 * W, 1);
            cr_assert_eq(l.tok[0] % T, 0);
            order[s] = (uint64_t)(l.tok[0] / T);
        }
        for (uint64_t e = 0; e < 4; e++) {
            char *seen = xcalloc((size_t)W, 1);
            for (uint64_t i = 0; i < W; i++) {
                uint64_t o = order[e * W + i];
                cr_assert(o < W && !seen[o], "W %llu epoch %llu: window %llu twice", (unsigned long long)W,
                          (unsigned long long)e, (unsigned long long)o);
                seen[o] = 1;
            }
            free(seen);
        }
        for (uint64_t i = 0; i < W; i++) {
            same_epoch += order[i] == order[W + i];
            same_seed += order[i] == order[3 * W + i];
            in_order += order[i] == i;
        }
        /* A random permutation of 1000 has one fixed point on average, and more than 12 once in 10^10. */
        if (W == 1000)
            cr_assert(same_epoch <= 12 && same_seed <= 12 && in_order <= 12, "%llu %llu %llu",
                      (unsigned long long)same_epoch, (unsigned long long)same_seed, (unsigned long long)in_order);
        free(order);
        free(id);
        loader_close(&l);
    }
}

Test(data, samples_do_not_depend_on_batches) {
    enum { T = 7, ALL = 24 };
    Tokens t = some_tokens(200, 5);
    uint64_t W = loader_windows(MIX(t), T);
    int tok[ALL][T], tgt[ALL][T], pos[ALL][T];
    Loader l = loader_ok(ALL, T);
    train_ok(&l, t, 256, 9, 20, ALL); /* spans the end of epoch 0: W is 28 */
    cr_assert_eq(W, 28);
    memcpy(tok, l.tok, sizeof tok);
    memcpy(tgt, l.tgt, sizeof tgt);
    memcpy(pos, l.batch.pos, sizeof pos);
    const int by[] = {1, 2, 3, 4, 6, 8, 12};
    for (size_t k = 0; k < sizeof by / sizeof *by; k++)
        for (int s = ALL - by[k]; s >= 0; s -= by[k]) { /* backwards: no state either */
            size_t bytes = (size_t)by[k] * T * sizeof(int);
            train_ok(&l, t, 256, 9, 20 + (uint64_t)s, by[k]);
            CHECK_BYTES("tok", l.tok, tok[s], bytes);
            CHECK_BYTES("tgt", l.tgt, tgt[s], bytes);
            CHECK_BYTES("pos", l.batch.pos, pos[s], bytes);
            for (int i = 0; i < by[k]; i++) cr_assert_eq(l.batch.id[i], 20 + (uint64_t)(s + i));
        }
    loader_close(&l);
    free((void *)t.id);
}

Test(data, rows_of_training) {
    enum { T = 16, B = 8 };
    for (uint64_t seed = 0; seed < 20; seed++) {
        Tokens t = some_tokens(500 + (size_t)seed, seed);
        Loader l = loader_ok(B, T);
        for (uint64_t s = 0; s < 100; s += B) {
            size_t at[B], len[B];
            uint64_t id[B];
            train_ok(&l, t, 256, seed, s, B);
            for (int k = 0; k < B; k++) {
                /* Find the window by its content: it must be one of the disjoint ones. */
                size_t w = 0, W = (t.n - 1) / T;
                for (; w < W; w++) {
                    bool same = true;
                    for (int i = 0; i <= T && same; i++)
                        same = id_at(t, w * T + (size_t)i) == (i < T ? l.tok[k * T + i] : l.tgt[k * T + T - 1]);
                    if (same) break;
                }
                cr_assert(w < W, "sample %d is no window", k);
                at[k] = w * T;
                len[k] = T;
                id[k] = s + (uint64_t)k;
            }
            expect_batch(&l, t, B, at, len, id);
        }
        loader_close(&l);
        free((void *)t.id);
    }
}

Test(data, rows_of_validation) {
    enum { T = 16, B = 5 };
    const size_t ns[] = {2, 16, 17, 18, 33, 100, 161};
    const int64_t limits[] = {0, 1, 15, 16, 17, 64, 99, 100000};
    for (size_t a = 0; a < sizeof ns / sizeof *ns; a++)
        for (size_t c = 0; c < sizeof limits / sizeof *limits; c++) {
            Tokens t = some_tokens(ns[a], a);
            size_t want = limits[c] && (size_t)limits[c] < ns[a] - 1 ? (size_t)limits[c] : ns[a] - 1, seen = 0;
            uint64_t W = loader_val_windows(MIX(t), T, limits[c]);
            Loader l = loader_ok(B, T);
            for (uint64_t w = 0; w < W; w += B) {
                size_t at[B], len[B];
                uint64_t id[B];
                int b = (int)(W - w < B ? W - w : B);
                for (int k = 0; k < b; k++) {
                    at[k] = seen;
                    len[k] = want - seen < T ? want - seen : T;
                    id[k] = w + (uint64_t)k;
                    seen += len[k];
                }
                val_ok(&l, t, 256, limits[c], w, b);
                expect_batch(&l, t, b, at, len, id);
            }
            cr_assert_eq(seen, want, "%zu predictions of %zu", seen, want);
            loader_close(&l);
            free((void *)t.id);
        }
}
