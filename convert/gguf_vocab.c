/* gguf_vocab.c: the tokenizer of a model directory as keys of a GGUF file.
 *
 * Byte-level vocabularies become llama.cpp's model "gpt2": tokens as tokenizer.json spells them, merges in order of
 * rank, and the name of a pattern that llama.cpp knows. The byte tokenizer is one without merges. Vocabularies of
 * characters with byte fallback (SentencePiece) become its model "llama", which has no merges: it joins any two
 * neighbours whose text is a token, the token of the highest score first. That is the same where merges are all the
 * ways to cut each token in two, and those of one token follow each other; the score is then minus the rank.
 * Source: llama.cpp src/llama-vocab.cpp. It normalises nothing; a vocabulary with NFC gets text as it is. */
#include "data/tokenizer.h"
#include "gguf.h"

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };
enum { TEMPLATE_MOST = 1 << 24 };

typedef struct {
    const char *where;
    Tokenizer t;
    json_t *root;
    const json_t *model, *vocab, *added, *merges;
    int n;             /* ids of the model */
    const char **text; /* (n) NULL: not in use */
    int *type;         /* (n) */
    float *score;      /* (n) of a vocabulary of characters */
    Err *e;
} Vocab;

static bool vocab_no(const Vocab *v, const char *what, const char *found) {
    return err_input(v->e, "%s: llama.cpp has no such tokenizer: %s %.100s", v->where, what, found);
}
static const char *vocab_text(const json_t *j, const char *key) {
    const char *s = json_string_value(json_object_get(j, key));
    return s ? s : "";
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* The text that llama.cpp must find for an added token that is found in normalized text: it looks before that. */
static const char *vocab_spaced(const Vocab *v, json_t *added, const char *text) {
    static const char mark[] = "\xE2\x96\x81";
    Buf b = {0};
    if (!json_is_object(json_object_get(v->root, "normalizer"))) return text;
    for (const char *at; (at = strstr(text, mark)); text = at + 3) {
        buf_put(&b, text, (size_t)(at - text));
        buf_put(&b, " ", 1);
    }
    buf_put(&b, text, strlen(text) + 1);
    json_object_set_new(added, "content", json_string(b.at));
    buf_free(&b);
    return vocab_text(added, "content");
}

static bool vocab_tokens(Vocab *v, bool characters) {
    const char *name, *unknown = vocab_text(v->model, "unk_token");
    json_t *id, *a;
    size_t i;
    if (v->t.vocab > v->n)
        return err_input(v->e, "%s: %d tokens, but the model has %d ids; a GGUF file needs as many tokens as ids",
                         v->where, v->t.vocab, v->n);
    v->text = xcalloc((size_t)v->n, sizeof *v->text), v->type = xcalloc((size_t)v->n, sizeof *v->type);
    json_object_foreach((json_t *)v->vocab, name, id) {
        const int k = (int)json_integer_value(id); /* the reader has checked it */
        unsigned byte;
        int end = 0;
        v->text[k] = name;
        v->type[k] = TYPE_NORMAL;
        if (characters && !strcmp(name, unknown)) v->type[k] = TYPE_UNKNOWN;
        if (characters && sscanf(name, "<0x%2X>%n", &byte, &end) == 1 && end == 6 && !name[6]) v->type[k] = TYPE_BYTE;
    }
    json_array_foreach((json_t *)v->added, i, a) {
        const int k = (int)json_integer_value(json_object_get(a, "id"));
        const char *text = vocab_text(a, "content");
        const json_t *other = json_object_get(v->vocab, text);
        if (other && json_integer_value(other) != k)
            return vocab_no(v, "the added token", text); /* whose text is also that of another id */
        const bool special = json_is_true(json_object_get(a, "special"));
        v->text[k] = text;
        if (v->type[k] != TYPE_UNKNOWN) v->type[k] = special ? TYPE_CONTROL : TYPE_USER;
        if (characters && !special && json_is_true(json_object_get(a, "normalized")))
            v->text[k] = vocab_spaced(v, a, text);
    }
    return true;
}

/* ---- a vocabulary of characters ---------------------------------------------------------------------------------- */

static void merge_texts(const json_t *m, Buf *left, Buf *right) {
    const char *both = json_string_value(m), *gap = both ? strchr(both, ' ') : NULL;
    const char *a = gap ? both : json_string_value(json_array_get(m, 0)),
               *b = gap ? gap + 1 : json_string_value(json_array_get(m, 1));
    left->n = right->n = 0;
    buf_put(left, a, gap ? (size_t)(gap - both) : strlen(a)), buf_put(left, "", 1);
    buf_put(right, b, strlen(b)), buf_put(right, "", 1);
}

/* How many ways there are to cut a token in two tokens between characters. */
static int cuts_of(const Vocab *v, const char *text, Buf *left) {
    int n = 0;
    for (const char *c = text + !!*text; *c; c++) {
        if (((unsigned char)*c & 0xC0) == 0x80) continue;
        left->n = 0;
        buf_put(left, text, (size_t)(c - text)), buf_put(left, "", 1);
        n += json_object_get(v->vocab, left->at) && json_object_get(v->vocab, c);
    }
    return n;
}

/* Scores from the merges, which must say what scores can say. */
static bool vocab_scores(Vocab *v) {
    const json_t *m;
    size_t rank;
    int last = -1, *merges = xcalloc((size_t)v->n, sizeof *merges);
    Buf left = {0}, right = {0};
    bool ok = true;
    v->score = xcalloc((size_t)v->n, sizeof *v->score);
    json_array_foreach((json_t *)v->merges, rank, m) {
        merge_texts(m, &left, &right);
        char *joined = xformat("%s%s", left.at, right.at);
        const int k = (int)json_integer_value(json_object_get(v->vocab, joined));
        free(joined);
        if (merges[k] && k != last) {
            ok = vocab_no(v, "a vocabulary with byte_fallback whose merges are not in the order of their tokens:",
                          v->text[k]);
            break;
        }
        if (!merges[k]++) v->score[k] = -(float)rank;
        last = k;
    }
    for (int k = 0; ok && k < v->n; k++)
        if (v->type[k] == TYPE_NORMAL && cuts_of(v, v->text[k], &left) != merges[k])
            ok = vocab_no(v, "a vocabulary with byte_fallback that does not merge every cut of its token", v->text[k]);
    buf_free(&left), buf_free(&right);
    free(merges);
    return ok;
}

static bool characters_put(Gguf *g, Vocab *v) {
    gguf_text(g, "tokenizer.ggml.model", "llama");
    gguf_text(g, "tokenizer.ggml.pre", "default");
    if (!vocab_tokens(v, true) || !vocab_scores(v)) return false;
    gguf_list(g, "tokenizer.ggml.scores", GGUF_FLOAT, (uint64_t)v->n);
    for (int k = 0; k < v->n; k++) gguf_element_float(g, v->score[k]);
    gguf_bool(g, "tokenizer.ggml.add_space_prefix", v->t.strip);
    const json_t *unknown = json_object_get(v->vocab, vocab_text(v->model, "unk_token"));
    if (unknown) gguf_u32(g, "tokenizer.ggml.unknown_token_id", (uint32_t)json_integer_value(unknown));
    return true;
}

/* ---- a vocabulary of bytes --------------------------------------------------------------------------------------- */

#define DEEPSEEK3_LAST                                                                                  \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| " \
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
#define CONTRACTED "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define O200K_WORD "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K                                                                \
    O200K_WORD "*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" CONTRACTED "|" O200K_WORD   \
               "+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" CONTRACTED "|\\p{N}{1,3}| " \
               "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN35                                                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Names of what llama.cpp cuts texts with, and the patterns of it. whole: a piece that is a token stays whole. */
typedef struct {
    const char *name;
    bool whole;
    const char *pattern[3];
} Pre;
static const char gpt4o_near[] = "llama.cpp's gpt-4o cuts words at capitals of ASCII alone, and before marks";
static const Pre pres[] = {
    {"gpt-2", false, {PATTERN_GPT2}},
    {"llama-bpe", true, {PATTERN_LLAMA3}},
    {"smaug-bpe", false, {PATTERN_LLAMA3}},
    {"qwen2", false, {PATTERN_QWEN2}},
    {"qwen35", false, {QWEN35}},
    {"smollm", false, {"\\p{N}", PATTERN_GPT2}},
    {"gpt-4o", false, {O200K}},
    {"gpt-4o", true, {O200K}}, /* it joins such a piece by merges */
    {"deepseek-v3",
     false,
     {"\\p{N}{1,3}", "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+", DEEPSEEK3_LAST}},
};
enum { PRE_MOST = 3 };

/* Append the pattern of a step; the reader has accepted the file. */
static bool pre_step(Vocab *v, const json_t *step, const char *pattern[PRE_MOST + 1], int *n) {
    const char *type = vocab_text(step, "type"), *p = NULL;
    if (!strcmp(type, "ByteLevel")) {
        const json_t *prefix = json_object_get(step, "add_prefix_space"), *regex = json_object_get(step, "use_regex");
        if (!json_is_false(prefix)) return vocab_no(v, "pre_tokenizer ByteLevel with", "add_prefix_space");
        if (!json_is_false(regex)) p = PATTERN_GPT2;
    } else if (!strcmp(type, "Digits")) {
        p = json_is_true(json_object_get(step, "individual_digits")) ? "\\p{N}" : "\\p{N}+";
    } else {
        p = vocab_text(json_object_get(step, "pattern"), "Regex");
        if (!*p)
            return vocab_no(v, "pre_tokenizer with a literal", vocab_text(json_object_get(step, "pattern"), "String"));
    }
    if (p && *n < PRE_MOST + 1) pattern[(*n)++] = p;
    return true;
}

static bool pre_find(Vocab *v, const char **name, const char **note) {
    const json_t *pre = json_object_get(v->root, "pre_tokenizer"), *steps = json_object_get(pre, "pretokenizers"),
                 *step;
    const bool whole = json_is_true(json_object_get(v->model, "ignore_merges"));
    const char *pattern[PRE_MOST + 1];
    int n = 0;
    size_t i;
    if (steps) {
        json_array_foreach((json_t *)steps, i, step) if (!pre_step(v, step, pattern, &n)) return false;
    } else if (!pre_step(v, pre, pattern, &n)) {
        return false;
    }
    if (!n && !json_array_size(v->merges)) { /* nothing is ever joined */
        *name = "gpt-2";
        return true;
    }
    for (size_t k = 0; k < sizeof pres / sizeof *pres; k++) {
        int same = 0;
        while (same < n && same < PRE_MOST && pres[k].pattern[same] && !strcmp(pres[k].pattern[same], pattern[same]))
            same++;
        if (same == n && (n == PRE_MOST || (n < PRE_MOST && !pres[k].pattern[n])) && whole == pres[k].whole) {
            *name = pres[k].name, *note = strcmp(*name, "gpt-4o") ? NULL : gpt4o_near;
            return true;
        }
    }
    return vocab_no(v, whole ? "ignore_merges with the pattern" : "the pattern", n ? pattern[n - 1] : "(none)");
}

static bool bytes_put(Gguf *g, Vocab *v, const char **note) {
    const char *pre = NULL;
    const json_t *m;
    size_t i;
    Buf left = {0}, right = {0};
    if (!pre_find(v, &pre, note) || !vocab_tokens(v, false)) return false;
    gguf_text(g, "tokenizer.ggml.model", "gpt2");
    gguf_text(g, "tokenizer.ggml.pre", pre);
    gguf_list(g, "tokenizer.ggml.merges", GGUF_TEXT, json_array_size(v->merges));
    json_array_foreach((json_t *)v->merges, i, m) {
        merge_texts(m, &left, &right);
        char *both = xformat("%s %s", left.at, right.at);
        gguf_element_text(g, both);
        free(both);
    }
    buf_free(&left), buf_free(&right);
    return true;
}

/* ---- ids and template -------------------------------------------------------------------------------------------- */

/* The ids that the file's template puts before and after a text. */
static bool template_ids(Vocab *v, Ids *before, Ids *after) {
    Ids bare = {0}, full = {0};
    bool ok = tokenizer_encode(&v->t, "a", 1, 0, &bare, v->e) &&
              tokenizer_encode(&v->t, "a", 1, ENCODE_TEMPLATE, &full, v->e);
    size_t at = 0;
    while (ok && at + bare.n < full.n && memcmp(full.id + at, bare.id, bare.n * sizeof *bare.id)) at++;
    for (size_t i = 0; ok && i < full.n; i++)
        if (i < at || i >= at + bare.n) ids_push(i < at ? before : after, full.id[i]);
    ids_free(&bare), ids_free(&full);
    return ok;
}

static bool id_put(Gguf *g, const Vocab *v, const char *name, long long id) {
    char *key = xformat("tokenizer.ggml.%s_token_id", name);
    if (id >= 0 && id < v->n) gguf_u32(g, key, (uint32_t)id);
    free(key);
    return id < v->n || err_input(v->e, "%s: %s_token_id is %lld, but the model has %d ids", v->where, name, id, v->n);
}

static bool ids_put(Gguf *g, Vocab *v, const char *src) {
    HfIds ids;
    Ids before = {0}, after = {0};
    char *path = xformat("%s/config.json", src);
    json_t *config = json_read(path, v->e), *pad = json_object_get(config, "pad_token_id");
    bool ok = config && hf_ids_read(src, &ids, v->e) && template_ids(v, &before, &after);
    const int eos = ok && ids.neos ? ids.eos[0] : v->t.eot;
    const int bos = before.n ? before.id[0] : ok && ids.bos >= 0 ? ids.bos : eos;
    if (ok && eos < 0) /* llama.cpp would take an id of its own choice */
        ok = err_input(v->e, "%s: no id ends a text; give \"eos_token_id\" in generation_config.json", path);
    if (ok && (before.n > 1 || after.n > 1 || (after.n && after.id[0] != eos)))
        ok = vocab_no(v, "a post_processor", "with several ids before or after a text");
    ok = ok && id_put(g, v, "eos", eos) && id_put(g, v, "bos", bos) &&
         (ids.neos < 2 || id_put(g, v, "eot", ids.eos[1])) && (ids.neos < 3 || id_put(g, v, "eom", ids.eos[2])) &&
         (!json_is_integer(pad) || json_integer_value(pad) < 0 || id_put(g, v, "padding", json_integer_value(pad)));
    if (ok) {
        gguf_bool(g, "tokenizer.ggml.add_bos_token", before.n);
        gguf_bool(g, "tokenizer.ggml.add_eos_token", after.n);
    }
    ids_free(&before), ids_free(&after);
    json_decref(config);
    free(path);
    return ok;
}

/* chat_template.jinja, else the template in tokenizer_config.json: a text, or a list of texts by name. */
static bool template_put(Gguf *g, const char *src, Err *e) {
    if (file_exists(src, "chat_template.jinja", e)) {
        FileMap m;
        char *path = xformat("%s/chat_template.jinja", src);
        bool ok = file_map(&m, path, e);
        if (ok && m.n) {
            json_t *text = m.n <= TEMPLATE_MOST ? json_stringn((const char *)m.p, m.n) : NULL;
            ok = (text && strlen(json_string_value(text)) == m.n) ||
                 err_input(e, "%s: expected UTF-8 text without NUL, at most %d bytes", path, TEMPLATE_MOST);
            if (ok) gguf_text(g, "tokenizer.chat_template", json_string_value(text));
            json_decref(text);
            file_unmap(&m);
        }
        free(path);
        return ok;
    }
    if (e->status || !file_exists(src, "tokenizer_config.json", e)) return !e->status;
    char *path = xformat("%s/tokenizer_config.json", src);
    json_t *j = json_read(path, e), *t = json_object_get(j, "chat_template"), *one;
    size_t i;
    const char *text = json_string_value(t);
    json_array_foreach(t, i, one) if (!strcmp(vocab_text(one, "name"), "default")) text = vocab_text(one, "template");
    if (text && *text) gguf_text(g, "tokenizer.chat_template", text);
    bool ok = j != NULL;
    json_decref(j);
    free(path);
    return ok;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static bool vocab_none(Gguf *g, const char *src, bool *none, Err *e) {
    char *path = tokenizer_file(src, e);
    *none = !path && !e->status;
    free(path);
    if (*none) gguf_text(g, "tokenizer.ggml.model", "none");
    return !e->status;
}

bool gguf_vocab(Gguf *g, const char *src, int vocab, const char **note, Err *e) {
    Vocab v = {.where = src, .n = vocab, .e = e};
    bool none;
    *note = NULL;
    if (!vocab_none(g, src, &none, e)) return false;
    if (none) {
        *note = "no tokenizer in the source: the file has only ids";
        return true;
    }
    if (!tokenizer_open(&v.t, src, NULL, e)) return false;
    char *text = tokenizer_json(&v.t);
    v.root = json_parse(text, strlen(text), src, NULL, e);
    v.model = json_object_get(v.root, "model"), v.vocab = json_object_get(v.model, "vocab");
    if (v.root && !json_is_array(json_object_get(v.model, "merges"))) {
        vocab_no(&v, "a model of type", vocab_text(v.model, "type"));
        json_decref(v.root);
        v.root = NULL;
    }
    v.merges = json_object_get(v.model, "merges"), v.added = json_object_get(v.root, "added_tokens");
    const bool characters = json_is_true(json_object_get(v.model, "byte_fallback"));
    bool ok = v.root && (characters ? characters_put(g, &v) : bytes_put(g, &v, note));
    if (ok) {
        gguf_list(g, "tokenizer.ggml.tokens", GGUF_TEXT, (uint64_t)v.n);
        for (int k = 0; k < v.n; k++) {
            char *unused = xformat("[PAD%d]", k);
            while (!v.text[k] && json_object_get(v.vocab, unused)) { /* texts must differ */
                char *longer = xformat("%s_", unused);
                free(unused);
                unused = longer;
            }
            gguf_element_text(g, v.text[k] ? v.text[k] : unused);
            free(unused);
        }
        gguf_list(g, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)v.n);
        for (int k = 0; k < v.n; k++) gguf_element_int(g, v.text[k] ? v.type[k] : TYPE_UNUSED);
        ok = ids_put(g, &v, src) && template_put(g, src, e);
    }
    json_decref(v.root);
    free(text);
    free(v.text), free(v.type), free(v.score);
    tokenizer_close(&v.t);
    return ok;
}
