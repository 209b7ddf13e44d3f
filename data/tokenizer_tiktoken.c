/* tokenizer_tiktoken.c: converts a tiktoken file to an equivalent tokenizer.json.
 *
 * The file has a line for each token: its bytes in base64, a blank, its rank, which is its id. The pattern is not in
 * the file but in the code around it, so it is known by the file's name, as are the ids of special tokens; further
 * names of special tokens come from added_tokens_decoder in tokenizer_config.json. Any two neighbours whose joined
 * bytes are a token merge, the lowest rank first. */
#include <sodium.h>
#include "ops/file.h"
#include "splits.h"
#include "tok_model.h"

/* cl100k_base: tiktoken's own pattern, with possessive counts and the end of the text as Oniguruma writes them */
static const char CL100K[] = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|(?>\\p{N}{1,3})| "
                             "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++\\z|\\s*[\\r\\n]|\\s+(?!\\S)|\\s";
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define BLANKS       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char O200K[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" CONTRACTIONS
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" CONTRACTIONS
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" BLANKS;
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
static const char KIMI[] =
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER
    "+" KIMI_LOWER "*" CONTRACTIONS "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BLANKS;

/* A file's name, its pattern, and special tokens by their distance from the first id after the ranks; names in
 * tokenizer_config.json take their place. */
typedef struct {
    const char *file, *pattern;
    struct {
        int after;
        const char *name;
    } special[5];
} TikKind;
static const TikKind tik_kinds[] = {
    {"qwen.tiktoken", PATTERN_QWEN2, {{0, "<|endoftext|>"}, {1, "<|im_start|>"}, {2, "<|im_end|>"}}},
    {"tiktoken.model", KIMI, {{0, NULL}}},
    {"o200k_base.tiktoken", O200K, {{1, "<|endoftext|>"}, {20, "<|endofprompt|>"}}},
    {"cl100k_base.tiktoken",
     CL100K,
     {{1, "<|endoftext|>"},
      {2, "<|fim_prefix|>"},
      {3, "<|fim_middle|>"},
      {4, "<|fim_suffix|>"},
      {20, "<|endofprompt|>"}}},
};
enum { TIK_KINDS = sizeof tik_kinds / sizeof *tik_kinds };

typedef struct {
    const char *where;
    Token *token; /* by id */
    Buf pool;
    size_t *at; /* where a token's bytes begin in the pool */
    int n, cap;
    Err *e;
} Tik;

static bool tik_line(Tik *t, const char *s, size_t n, size_t line) {
    const char *gap = memchr(s, ' ', n), *end = NULL;
    unsigned char *bytes = xcalloc(n + 1, 1);
    size_t made = 0;
    long long id = gap ? 0 : -1;
    for (const char *c = gap ? gap + 1 : s + n; c < s + n && id >= 0; c++)
        id = *c >= '0' && *c <= '9' && id < TOKENIZER_IDS_MAX ? 10 * id + *c - '0' : -1;
    bool ok = gap && gap > s && gap + 1 < s + n && id >= 0 && id < TOKENIZER_IDS_MAX &&
              !sodium_base642bin(bytes, n, s, (size_t)(gap - s), NULL, &made, &end, sodium_base64_VARIANT_ORIGINAL) &&
              end == gap && made;
    if (!ok) err_input(t->e, "%s:%zu: expected a token in base64, a blank and its rank", t->where, line);
    if (ok && id >= t->cap) {
        const int cap = imax((int)id + 1, 2 * t->cap);
        t->token = xrealloc(t->token, (size_t)cap, sizeof *t->token);
        t->at = xrealloc(t->at, (size_t)cap, sizeof *t->at);
        memset(t->token + t->cap, 0, (size_t)(cap - t->cap) * sizeof *t->token);
        t->cap = cap;
    }
    if (ok && t->token[id].n) ok = err_input(t->e, "%s:%zu: rank %lld is given to two tokens", t->where, line, id);
    if (ok) {
        t->token[id].n = (uint32_t)made, t->at[id] = t->pool.n;
        buf_put(&t->pool, (const char *)bytes, made);
        t->n = imax(t->n, (int)id + 1);
    }
    free(bytes);
    return ok;
}
static bool tik_read(Tik *t, const char *s, size_t n) {
    const char *end = s + n;
    for (size_t line = 1; s < end; line++) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        size_t len = (size_t)((stop ? stop : end) - s);
        if (len && s[len - 1] == '\r') len--;
        if (len && !tik_line(t, s, len, line)) return false;
        s = stop ? stop + 1 : end;
    }
    for (int i = 0; i < t->n; i++)
        if (t->token[i].n) t->token[i].at = t->pool.at + t->at[i];
    return t->n || err_input(t->e, "%s: no tokens in it", t->where);
}

/* The name of each token: GPT-2's characters for bytes. */
static json_t **tik_names(const Tik *t) {
    ByteChar of[256];
    json_t **name = xcalloc((size_t)t->n, sizeof(json_t *));
    Buf b = {0};
    byte_chars(of);
    for (int i = 0; i < t->n; i++) {
        b.n = 0;
        for (size_t k = 0; k < t->token[i].n; k++) {
            const char *c = of[(unsigned char)t->token[i].at[k]].utf8;
            buf_put(&b, c, strlen(c));
        }
        if (t->token[i].n) name[i] = json_stringn(b.at, b.n);
    }
    buf_free(&b);
    return name;
}

static void tik_special(json_t *list, long long id, const char *name) {
    json_array_append_new(list, json_pack("{sI ss sb sb sb sb sb}", "id", (json_int_t)id, "content", name,
                                          "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
}
/* Special tokens: those that tokenizer_config.json names, else those that belong to the file's name. */
static json_t *tik_added(const Tik *t, const TikKind *kind, const json_t *config) {
    json_t *list = json_array(), *named = json_object_get(config, "added_tokens_decoder"), *v;
    const char *key;
    json_object_foreach(named, key, v) {
        char *end;
        const long long id = strtoll(key, &end, 10);
        const char *name = json_string_value(json_object_get(v, "content"));
        if (name && !*end && id >= 0 && id < TOKENIZER_IDS_MAX && (id >= t->n || !t->token[id].n))
            tik_special(list, id, name);
    }
    for (int i = 0; !json_object_size(named) && i < 5 && kind->special[i].name; i++)
        tik_special(list, t->n + kind->special[i].after, kind->special[i].name);
    return list;
}

static bool tik_convert(Tokenizer *out, const Tik *t, const TikKind *kind, const json_t *config) {
    json_t **name = tik_names(t), *vocab = json_object();
    int *order = xcalloc((size_t)t->n, sizeof *order), n = 0;
    bool ok = true;
    for (int i = 0; ok && i < t->n; i++) {
        if (!name[i]) continue;
        if (json_object_get(vocab, json_string_value(name[i])))
            ok = err_input(t->e, "%s: rank %d has the bytes of another token", t->where, i);
        json_object_set_new(vocab, json_string_value(name[i]), json_integer(i));
        order[n++] = i;
    }
    json_t *j =
        !ok ? NULL
            : json_pack("{ss sn sn so sn s{ss s[{ss s{ss} ss sb}{ss sb sb sb}]} sn s{ss sb sb sb} s{ss sn sn sn "
                        "sn sb sb sb sO so}}",
                        "version", "1.0", "truncation", "padding", "added_tokens", tik_added(t, kind, config),
                        "normalizer", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern",
                        "Regex", kind->pattern, "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
                        "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0, "post_processor", "decoder", "type",
                        "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE",
                        "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                        "byte_fallback", 0, "ignore_merges", 1, "vocab", vocab, "merges",
                        splits_merges(t->token, t->n, order, n, false, name));
    CHECK(!ok || j, "building JSON failed");
    char *text = j ? json_dumps(j, JSON_INDENT(1)) : NULL;
    ok = ok && tokenizer_parse(out, text, strlen(text), t->where, t->e);
    for (int i = 0; i < t->n; i++) json_decref(name[i]);
    json_decref(j), json_decref(vocab);
    free(text), free(order), free(name);
    return ok;
}

bool tokenizer_parse_tiktoken(Tokenizer *out, const char *name, const void *p, size_t n, const json_t *config,
                              const char *where, Err *e) {
    Tik t = {.where = where, .e = e};
    const TikKind *kind = NULL;
    *out = (Tokenizer){.eot = -1, .bos = -1};
    for (int i = 0; i < TIK_KINDS; i++)
        if (!strcmp(name, tik_kinds[i].file)) kind = &tik_kinds[i];
    if (!kind)
        return err_input(
            e,
            "%s: the pattern of %.60s is not known: a tiktoken file is named qwen.tiktoken, tiktoken.model "
            "(Kimi), o200k_base.tiktoken or cl100k_base.tiktoken; else give a tokenizer.json",
            where, name);
    if (n > TOKENIZER_FILE_MAX)
        return err_input(e, "%s: a file of %zu bytes; expected at most %d", where, n, TOKENIZER_FILE_MAX);
    bool ok = tik_read(&t, n ? p : "", n) && tik_convert(out, &t, kind, config);
    buf_free(&t.pool);
    free(t.token), free(t.at);
    return ok;
}

const char *tiktoken_name(int i) { return i >= 0 && i < TIK_KINDS ? tik_kinds[i].file : NULL; }
