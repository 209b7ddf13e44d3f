/* test_bpe.c: byte pair encoding against Hugging Face tokenizers (tests/golden/make_bpe.py): ids of 10,000 strings and
 * of real text for six tokenizers, the vocabulary that learning gives; and what no library says: any bytes come back.
 */
#include "tests/lib/strings.h"
#include "data/bpe_train.h"
#include "data/tokenizer.h"
#include "ops/file.h"

#define GOLDEN_BPE "tests/golden/bpe/"
static const char *const names[] = {"gpt2", "llama3", "qwen2", "llama2", "first", "always"};
enum { NAMES = 6 };

static Tokenizer load(const char *name) {
    char *path = xformat(GOLDEN_BPE "%s.json", name);
    Tokenizer t;
    Err e = {0};
    cr_assert(tokenizer_load(&t, path, &e), "%s", e.msg);
    free(path);
    return t;
}

ParameterizedTestParameters(bpe, ids_of_the_library) {
    static int index[NAMES];
    for (int i = 0; i < NAMES; i++) index[i] = i;
    return cr_make_param_array(int, index, NAMES);
}
ParameterizedTest(int *which, bpe, ids_of_the_library) {
    const char *name = names[*which];
    Tokenizer t = load(name);
    Encoder *e = encoder_open(&t);
    unsigned nrange;
    Range *range = ranges_read(GOLDEN_BPE "assigned.txt", &nrange);
    Err err = {0};
    char *path = xformat(GOLDEN_BPE "%s.hash", name), *hash = check_read(path, NULL), text[1024];
    Ids ids = {0};
    for (int s = 0; s < STRINGS; s++) {
        size_t n = draw(text, s, range, nrange);
        ids.n = 0;
        cr_assert(encoder_run(e, text, n, ENCODE_SPECIAL | ENCODE_TEMPLATE, &ids, &err), "%s", err.msg);
        compare(name, s, text, n, &ids, hash);
    }
    size_t n;
    char *real_text = text_read(&n);
    ids.n = 0;
    cr_assert(encoder_run(e, real_text, n, ENCODE_SPECIAL | ENCODE_TEMPLATE, &ids, &err), "%s", err.msg);
    compare(name, STRINGS, "the text", 8, &ids, hash);
    encoder_close(e), ids_free(&ids), tokenizer_close(&t);
    free(real_text), free(hash), free(path), free(range);
}

/* Without the flags no text becomes a special token or gets one put before it. */
Test(bpe, special_tokens_only_when_asked) {
    static const char text[] = "a<|endoftext|>b<s>";
    Tokenizer t = load("llama3");
    Err err = {0};
    Ids plain = {0}, found = {0};
    cr_assert(tokenizer_encode(&t, text, strlen(text), 0, &plain, &err), "%s", err.msg);
    cr_assert(tokenizer_encode(&t, text, strlen(text), ENCODE_SPECIAL, &found, &err), "%s", err.msg);
    for (size_t i = 0; i < plain.n; i++) cr_expect(!tokenizer_special(&t, plain.id[i]), "id %d", plain.id[i]);
    cr_assert_eq(found.n, 4);
    cr_assert(found.id[1] == tokenizer_find(&t, "<|endoftext|>") && found.id[3] == tokenizer_find(&t, "<s>"));
    cr_assert(t.bos == found.id[3] && t.eot == found.id[1], "bos %d eot %d", t.bos, t.eot);
    ids_free(&plain), ids_free(&found), tokenizer_close(&t);
}

/* Valid JSON that cannot be read is not called invalid, and what is advised works. */
Test(bpe, nul_as_a_token) {
    size_t n;
    Err e = {0};
    Tokenizer t;
    char *json = check_read(GOLDEN_BPE "gpt2.json", &n), *vocab = strstr(json, "\"vocab\":{");
    cr_assert(vocab);
    vocab += strlen("\"vocab\":{");
    char *with = xformat("%.*s\"\\u0000\":700,%s", (int)(vocab - json), json, vocab);
    cr_assert(!tokenizer_parse(&t, with, strlen(with), "file", &e) && e.status == EXIT_INPUT);
    cr_assert(strstr(e.msg, "file: the key at line 1, column") && strstr(e.msg, "\\u0000, which is not supported"),
              "%s", e.msg);
    cr_assert(tokenizer_parse(&t, json, n, "file", &e), "%s", e.msg);
    tokenizer_close(&t);
    free(json), free(with);
}

/* Raw text: added tokens that are not special are found, special ones are text. */
Test(bpe, added_tokens_of_raw_text) {
    static const char *const key[] = {"raw", "found"};
    static const unsigned how[] = {0, ENCODE_SPECIAL};
    Tokenizer t = load("../raw/neox");
    Err err = {0};
    size_t n;
    char *code = check_read("tests/golden/raw/code.txt", &n);
    json_t *file = json_read("tests/golden/raw/ids.json", &err);
    cr_assert(file, "%s", err.msg);
    for (int k = 0; k < 2; k++) {
        const json_t *want = json_object_get(file, key[k]);
        Ids ids = {0};
        cr_assert(tokenizer_encode(&t, code, n, how[k], &ids, &err), "%s", err.msg);
        cr_assert_eq(ids.n, json_array_size(want), "%s: %zu ids, the library has %zu", key[k], ids.n,
                     json_array_size(want));
        for (size_t i = 0; i < ids.n; i++)
            cr_assert_eq(ids.id[i], json_integer_value(json_array_get(want, i)), "%s: id %zu is %d", key[k], i,
                         ids.id[i]);
        ids_free(&ids);
    }
    json_decref(file);
    free(code), tokenizer_close(&t);
}

/* Byte level without NFC: any bytes, UTF-8 or not, come back. Long pieces, runs of one byte, mixtures. */
Test(bpe, any_bytes_come_back) {
    static const char *const level[] = {"gpt2", "llama3"};
    for (int k = 0; k < 2; k++) {
        Tokenizer t = load(level[k]);
        Encoder *e = encoder_open(&t);
        Err err = {0};
        Ids ids = {0};
        for (int s = 0; s < STRINGS; s++) {
            unsigned char text[700], back[700];
            Roll r = {rng_mix(5, (uint64_t)s), 0};
            size_t n = roll(&r, s % 50 ? 60 : 700), m = 0;
            unsigned run = roll(&r, 256);
            for (size_t i = 0; i < n; i++)
                text[i] = (unsigned char)(s % 3 == 0    ? roll(&r, 256)
                                          : s % 3 == 1  ? 32 + roll(&r, 95)
                                          : roll(&r, 9) ? run
                                                        : roll(&r, 256));
            /* as the library, llama3.json reads the added token of these two bytes as the id of another byte */
            if (memmem(text, n, "\xC3\xA9", 2)) continue;
            ids.n = 0;
            cr_assert(encoder_run(e, text, n, 0, &ids, &err), "%s", err.msg);
            for (size_t i = 0; i < ids.n; i++) {
                size_t len;
                const char *piece = tokenizer_decode(&t, ids.id[i], &len);
                cr_assert(m + len <= n, "%s, string %d: more bytes than went in", level[k], s);
                memcpy(back + m, piece, len);
                m += len;
            }
            cr_assert(m == n && !memcmp(back, text, n), "%s, string %d of %zu bytes came back as another of %zu",
                      level[k], s, n, m);
        }
        encoder_close(e), ids_free(&ids), tokenizer_close(&t);
    }
}

/* The rule written down: again and again the pair of lowest rank, the leftmost of equals. `symbol`: n texts, replaced.
 */
static int merge_plainly(char symbol[][32], int n, const json_t *merges) {
    for (;;) {
        size_t best = SIZE_MAX;
        int at = -1;
        for (int i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < zmin(best, json_array_size(merges)); k++) {
                const json_t *m = json_array_get(merges, k);
                if (strcmp(json_string_value(json_array_get(m, 0)), symbol[i])) continue;
                if (!strcmp(json_string_value(json_array_get(m, 1)), symbol[i + 1])) best = k, at = i;
            }
        if (at < 0) return n;
        char joined[64];
        snprintf(joined, sizeof joined, "%s%s", symbol[at], symbol[at + 1]);
        snprintf(symbol[at], sizeof *symbol, "%.31s", joined);
        memmove(symbol[at + 1], symbol[at + 2], (size_t)(n - at - 2) * sizeof *symbol);
        n--;
    }
}
/* Pieces short enough for plain scans and long enough for the heap (no pattern here: a text is one piece), twice each,
 * so that the cache answers, too: all give what the rule gives. */
Test(bpe, pieces_of_every_length_merge_by_rank) {
    enum { N = 120 };
    static char symbol[N + 1][32];
    Tokenizer t = load("llama2");
    Encoder *e = encoder_open(&t);
    Err err = {0};
    Ids ids = {0};
    json_t *file = json_read(GOLDEN_BPE "llama2.json", &err), *model = json_object_get(file, "model");
    cr_assert(file, "%s", err.msg);
    for (int n = 1; n <= N; n += n < 40 ? 1 : 13) {
        char text[N];
        Roll r = {rng_mix(9, (uint64_t)n), 0};
        strcpy(symbol[0], "\xE2\x96\x81");
        for (int i = 0; i < n; i++) {
            text[i] = "the lord and unto"[(i + (int)roll(&r, 3)) % 17];
            snprintf(symbol[i + 1], sizeof *symbol, "%.*s", text[i] == ' ' ? 3 : 1,
                     text[i] == ' ' ? "\xE2\x96\x81" : &text[i]);
        }
        int want = merge_plainly(symbol, n + 1, json_object_get(model, "merges"));
        for (int again = 0; again < 2; again++) {
            ids.n = 0;
            cr_assert(encoder_run(e, text, (size_t)n, 0, &ids, &err), "%s", err.msg);
            cr_assert_eq(ids.n, want, "%d characters: %zu ids, expected %d", n, ids.n, want);
            for (int i = 0; i < want; i++)
                cr_assert_eq(ids.id[i], json_integer_value(json_object_get(json_object_get(model, "vocab"), symbol[i])),
                             "%d characters, id %d: '%s'", n, i, symbol[i]);
        }
    }
    json_decref(file);
    encoder_close(e), ids_free(&ids), tokenizer_close(&t);
}

/* A pattern that would try for ever is given up with one line; a long run of blanks is not taken for that. */
Test(bpe, hostile_pattern_is_given_up) {
    size_t n;
    Err e = {0};
    char *json = check_read(GOLDEN_BPE "llama3.json", &n), *from = strstr(json, "(?i:'s"), *to = strstr(from, "\"}");
    cr_assert(from && to);
    char *bad = xformat("%.*s(x+x+)+[yz]%s", (int)(from - json), json, to);
    Tokenizer t, sound = load("llama3");
    Ids ids = {0};
    char *text = xcalloc(1 << 20, 1);
    memset(text, 'x', 60);
    cr_assert(tokenizer_parse(&t, bad, strlen(bad), "bad", &e), "%s", e.msg);
    cr_assert(!tokenizer_encode(&t, text, 60, 0, &ids, &e) && e.status == EXIT_INPUT &&
                  strstr(e.msg, "exceeds its step limit"),
              "%s", e.msg);
    e = (Err){0};
    cr_assert(tokenizer_encode(&t, "abc", 3, 0, &ids, &e), "%s", e.msg);
    memset(text, ' ', 1 << 20);
    cr_assert(tokenizer_encode(&sound, text, 1 << 20, 0, &ids, &e), "%s", e.msg);
    free(text), free(bad), free(json), ids_free(&ids), tokenizer_close(&t), tokenizer_close(&sound);
}

/* A blank at the start that encoding put there, and bytes of characters without a token. */
Test(bpe, fallback_decodes) {
    static const char text[] = "unto him \xE2\x82\xAC 5";
    Tokenizer t = load("llama2");
    Err err = {0};
    Ids ids = {0};
    char back[64];
    size_t m = 0;
    cr_assert(tokenizer_encode(&t, text, strlen(text), 0, &ids, &err), "%s", err.msg);
    for (size_t i = 0; i < ids.n; i++) {
        size_t len;
        const char *piece = tokenizer_decode(&t, ids.id[i], &len);
        memcpy(back + m, piece, len);
        m += len;
    }
    cr_assert(t.strip && m == strlen(text) + 1 && back[0] == ' ' && !memcmp(back + 1, text, m - 1), "'%.*s'", (int)m,
              back);
    ids_free(&ids), tokenizer_close(&t);
}

/* Learning gives the vocabulary and the merges that the library's trainer gave, whatever the number of threads. */
Test(bpe, learns_what_the_library_learns) {
    static const char *const special[] = {"<|endoftext|>"};
    Tokenizer want = load("gpt2");
    size_t n;
    char *text = text_read(&n), *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        Err e = {0};
        BpeTrainCfg c = {.vocab = 700,
                         .min_count = 1,
                         .pattern = PATTERN_GPT2,
                         .nspecial = 1,
                         .special = special,
                         .threads = threads};
        BpeTrainer *b = bpe_train_open(&c, &e);
        cr_assert(b, "%s", e.msg);
        bpe_train_count(b, text, n);
        char *json = bpe_train_run(b, NULL, NULL);
        bpe_train_close(b);
        Tokenizer got;
        cr_assert(tokenizer_parse(&got, json, strlen(json), "learned", &e), "%s", e.msg);
        cr_assert_eq(got.vocab, want.vocab);
        for (int id = 0; id < got.vocab; id++) {
            size_t na, nb;
            const char *a = tokenizer_decode(&got, id, &na), *x = tokenizer_decode(&want, id, &nb);
            cr_assert(na == nb && !memcmp(a, x, na), "id %d is '%.*s', the library's '%.*s'", id, (int)na, a, (int)nb,
                      x);
        }
        if (first) cr_expect_str_eq(json, first, "%d threads", threads);
        if (!first) first = xstrdup(json);
        free(json), tokenizer_close(&got);
    }
    free(first), free(text), tokenizer_close(&want);
}
Test(bpe, refused_vocabularies) {
    BpeTrainCfg c = {.vocab = 255, .min_count = 1, .pattern = PATTERN_GPT2, .threads = 1};
    Err e = {0};
    cr_assert(!bpe_train_open(&c, &e) && e.status == EXIT_INPUT && strstr(e.msg, "vocabulary of 255"), "%s", e.msg);
    c.vocab = 300, c.pattern = "a(b", e = (Err){0};
    cr_assert(!bpe_train_open(&c, &e) && e.status == EXIT_INPUT && strstr(e.msg, "without an end"), "%s", e.msg);
    c.pattern = "a\\b", e = (Err){0};
    cr_assert(!bpe_train_open(&c, &e) && e.status == EXIT_INPUT && strstr(e.msg, "has \\b"), "%s", e.msg);
}

/* GPT-2's own files, which are not shipped: GPT2_DIR names a folder with encoder.json and vocab.bpe. */
Test(bpe, gpt2_of_its_own_files) {
    static const char text[] = "Hello world";
    const char *dir = getenv("GPT2_DIR");
    Tokenizer t;
    Err e = {0};
    Ids ids = {0};
    if (!dir) cr_skip_test("GPT2_DIR does not name GPT-2's files");
    cr_assert(tokenizer_load_gpt2(&t, dir, &e), "%s", e.msg);
    cr_assert(tokenizer_encode(&t, text, strlen(text), 0, &ids, &e), "%s", e.msg);
    cr_assert(t.vocab == 50257 && t.eot == 50256 && ids.n == 2 && ids.id[0] == 15496 && ids.id[1] == 995,
              "%d ids, %zu of '%s'", t.vocab, ids.n, text);
    char *json = tokenizer_json(&t);
    Tokenizer again;
    cr_assert(tokenizer_parse(&again, json, strlen(json), "again", &e), "%s", e.msg);
    cr_assert_eq(again.vocab, t.vocab);
    free(json), ids_free(&ids), tokenizer_close(&t), tokenizer_close(&again);
}
