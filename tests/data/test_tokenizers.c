/* test_tokenizers.c: the tokenizers of the model families against the libraries that they come from: ids and decoded
 * texts of 10,000 strings and of real text by Hugging Face tokenizers (tests/golden/make_tokenizers.py), sentencepiece
 * and tiktoken (make_sentencepiece.py). And what no library says: saved files encode the same, long texts take linear
 * time, damaged files are refused. */
#include "tests/lib/strings.h"
#include "data/regex.h"
#include "data/tokenizer.h"
#include "ops/file.h"

enum { FIND = ENCODE_SPECIAL | ENCODE_TEMPLATE };
/* clang-format off */
static const struct {
    const char *open, *hash;
    unsigned how; /* sentencepiece never finds special tokens in a text */
} kinds[] = {
#define HF(name) {"tests/golden/tokenizers/" name ".json", "tests/golden/tokenizers/" name ".hash", FIND}
#define DIR(name, how) {"tests/golden/sentencepiece/" name, "tests/golden/sentencepiece/" name "/ids.hash", how}
    HF("o200k"),  HF("kimi"),     HF("qwen35"),   HF("deepseek3"), HF("odd"),    HF("gemma"),
    HF("t5"),     HF("albert"),   HF("fallback"), HF("bert"),      HF("cased"),  DIR("llama", ENCODE_TEMPLATE),
    DIR("gemma", ENCODE_TEMPLATE), DIR("unigram", ENCODE_TEMPLATE), DIR("qwen", FIND),
    DIR("kimi", FIND), DIR("o200k", FIND), DIR("cl100k", FIND),
};
/* clang-format on */
enum { KINDS = sizeof kinds / sizeof *kinds };

static Tokenizer opened(int kind) {
    Tokenizer t;
    Err e = {0};
    cr_assert(tokenizer_open(&t, kinds[kind].open, NULL, &e), "%s", e.msg);
    return t;
}
/* The decoded text as a list of bytes: special tokens left out, without the blank that encoding puts before a text. */
static void decoded(const Tokenizer *t, const Ids *ids, Ids *out) {
    bool first = t->strip;
    out->n = 0;
    for (size_t i = 0; i < ids->n; i++) {
        if (tokenizer_special(t, ids->id[i])) continue;
        size_t n;
        const char *s = tokenizer_decode(t, ids->id[i], &n);
        for (size_t k = first && n && *s == ' '; k < n; k++) ids_push(out, (unsigned char)s[k]);
        first = false;
    }
}

ParameterizedTestParameters(tokenizers, ids_and_texts) {
    static int index[KINDS];
    for (int i = 0; i < KINDS; i++) index[i] = i;
    return cr_make_param_array(int, index, KINDS);
}
ParameterizedTest(int *which, tokenizers, ids_and_texts) {
    Tokenizer t = opened(*which), again;
    Err e = {0};
    unsigned nrange;
    Range *range = ranges_read("tests/golden/tokenizers/assigned.txt", &nrange);
    size_t nhash, n;
    char *hash = check_read(kinds[*which].hash, &nhash), text[1024], *json = tokenizer_json(&t);
    cr_assert_eq(nhash, 4 * (STRINGS + 1));
    cr_assert(tokenizer_parse(&again, json, strlen(json), "saved", &e), "%s", e.msg);
    Encoder *coder = encoder_open(&t), *saved = encoder_open(&again);
    Ids ids = {0}, same = {0}, back = {0};
    for (int s = 0; s <= STRINGS; s++) {
        char *real = s == STRINGS ? text_read(&n) : NULL;
        if (!real) n = draw(text, s, range, nrange);
        ids.n = same.n = 0;
        cr_assert(encoder_run(coder, real ? real : text, n, kinds[*which].how, &ids, &e), "%s", e.msg);
        compare(kinds[*which].open, s, real ? "the text" : text, real ? 8 : n, &ids, hash);
        decoded(&t, &ids, &back);
        /* sentencepiece drops every blank that a text of this model begins with, the reader of a tokenizer.json one */
        if (real || !strstr(kinds[*which].open, "unigram") || memcmp(text, "\xE2\x96\x81", 3))
            compare("decoded", s, real ? "the text" : text, real ? 8 : n, &back, hash + 2 * (STRINGS + 1));
        cr_assert(encoder_run(saved, real ? real : text, n, kinds[*which].how, &same, &e), "%s", e.msg);
        cr_assert(same.n == ids.n && !memcmp(same.id, ids.id, ids.n * sizeof *ids.id), "saved: string %d", s);
        free(real);
    }
    encoder_close(coder), encoder_close(saved);
    ids_free(&ids), ids_free(&same), ids_free(&back);
    tokenizer_close(&t), tokenizer_close(&again);
    free(hash), free(range), free(json);
}

/* A megabyte without a blank, and one of any bytes: a quadratic search would take hours. */
Test(tokenizers, long_texts_take_linear_time) {
    enum { BYTES = 1 << 20 };
    char *text = xcalloc(BYTES, 1);
    for (int k = 0; k < KINDS; k++) {
        Tokenizer t = opened(k);
        Err e = {0};
        Ids ids = {0};
        for (int any = 0; any < 2; any++) {
            Roll r = {rng_mix(3, (uint64_t)k), 0};
            for (int i = 0; i < BYTES; i++) text[i] = any ? (char)roll(&r, 256) : "thelord"[i % 7];
            ids.n = 0;
            cr_assert(tokenizer_encode(&t, text, BYTES, 0, &ids, &e), "%s: %s", kinds[k].open, e.msg);
            size_t wrong = 0;
            for (size_t i = 0; i < ids.n; i++) wrong += ids.id[i] < 0 || ids.id[i] >= t.vocab;
            cr_assert_eq(wrong, 0, "%s: %zu ids out of range", kinds[k].open, wrong);
        }
        ids_free(&ids), tokenizer_close(&t);
    }
    free(text);
}

/* Text that spells a special token does not become it unless asked: no text ends a document. */
Test(tokenizers, special_tokens_only_when_asked) {
    static const char *const texts[] = {"king</s>",        "</s>",     "<s>", "<unk>", "<eos>", "[SEP]",
                                        "a <|endoftext|>", "<bos>king"};
    for (int k = 0; k < KINDS; k++) {
        Tokenizer t = opened(k);
        Err e = {0};
        for (size_t s = 0; s < sizeof texts / sizeof *texts; s++) {
            Ids ids = {0};
            cr_assert(tokenizer_encode(&t, texts[s], strlen(texts[s]), 0, &ids, &e), "%s", e.msg);
            for (size_t i = 0; i < ids.n; i++) {
                size_t n;
                const char *name = tokenizer_decode(&t, ids.id[i], &n);
                bool unknown = n == 5 && (!memcmp(name, "<unk>", 5) || !memcmp(name, "[UNK]", 5));
                unknown |= n == 6 && !memcmp(name, " [UNK]", 6); /* as a decoder of words shows it */
                cr_assert(unknown || !tokenizer_special(&t, ids.id[i]), "%s: '%s' has id %d", kinds[k].open, texts[s],
                          ids.id[i]);
            }
            ids_free(&ids);
        }
        tokenizer_close(&t);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* Every prefix of a SentencePiece model, and the model with any of its first bytes changed. */
Test(tokenizers, damaged_sentencepiece_models) {
    static const char *const files[] = {"llama", "unigram"};
    for (int f = 0; f < 2; f++) {
        size_t n;
        char *path = xformat("tests/golden/sentencepiece/%s/tokenizer.model", files[f]), *all = check_read(path, &n);
        int refused = 0;
        for (size_t i = 0; i < n; i += 1 + n / 300) {
            char *some = xcalloc(i + 1, 1); /* so that a read past its end is found */
            memcpy(some, all, i);
            Tokenizer t;
            Err e = {0};
            if (tokenizer_parse_spm(&t, some, i, "some", &e))
                tokenizer_close(&t);
            else
                refused += e.status == EXIT_INPUT && *e.msg;
            free(some);
            const char was = all[i];
            all[i] ^= 0x5A;
            e = (Err){0};
            if (tokenizer_parse_spm(&t, all, n, "changed", &e))
                tokenizer_close(&t);
            else
                cr_assert(e.status == EXIT_INPUT && *e.msg, "byte %zu", i);
            all[i] = was;
        }
        cr_assert(refused > 250, "%s: %d prefixes refused", files[f], refused);
        free(all), free(path);
    }
}

static void tik_refused(const char *name, const char *text, const char *why) {
    Tokenizer t;
    Err e = {0};
    cr_assert(!tokenizer_parse_tiktoken(&t, name, text, strlen(text), NULL, "file", &e) && e.status == EXIT_INPUT);
    cr_assert(strstr(e.msg, why), "%s: %s", text, e.msg);
}
Test(tokenizers, damaged_tiktoken_files) {
    tik_refused("other.tiktoken", "IQ== 0\n", "pattern of other.tiktoken is not known");
    tik_refused("tokenizer.model", "IQ== 0\n", "pattern of tokenizer.model is not known");
    tik_refused("qwen.tiktoken", "", "no tokens");
    tik_refused("qwen.tiktoken", "IQ== 0\nIg==\n", "file:2: expected a token");
    tik_refused("qwen.tiktoken", "IQ== 0\nI*== 1\n", "file:2: expected a token");
    tik_refused("qwen.tiktoken", "IQ== 0\nIg== 99999999999\n", "file:2: expected a token");
    tik_refused("qwen.tiktoken", "IQ== 0\nIg== 0\n", "rank 0 is given to two");
    tik_refused("qwen.tiktoken", "IQ== 0\nIQ== 1\n", "bytes of another token");
    tik_refused("qwen.tiktoken", "IQ== 0\nIg== 1\n", "no token for byte 0x00");
}

/* What libraries read in different ways is refused with its name. */
Test(tokenizers, patterns_without_translation) {
    static const struct {
        const char *pattern, *why;
    } bad[] = {
        {"a\\bc", "\\b"},
        {"\\h", "\\h"},
        {"[[:alpha:]]", "POSIX"},
        {"(?x)a", "unknown kind"},
        {"a(?i)b", "unknown kind"},
        {"a{2}?", "{n}?"},
        {"\\xE9", "code"},
        {"[]a]", "empty class"},
        {"[a", "without an end"},
        {"a)", "closing"},
        {"*a", "nothing"},
        {"(?i:ss)", "fold"},
        {"a{,3}", "least number"},
        {"\\pL", "braces"},
        {"\\p{L", "malformed"},
        {"(?<n>a)", "unknown kind"},
        {"\\1", "\\1"},
        {"[a&&]", "empty"},
        {"\\p{sc=L}", "malformed"},
        {"\\", "\\ "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Buf out = {0};
        Err e = {0};
        cr_assert(!regex_translate(bad[i].pattern, PATTERN_ONIGURUMA, "p", &out, &e), "%s", bad[i].pattern);
        cr_assert(e.status == EXIT_INPUT && strstr(e.msg, bad[i].why), "%s: %s", bad[i].pattern, e.msg);
        buf_free(&out);
    }
}
