/* tokenizer_json.c: reads tokenizer.json into memory, and writes that of the byte tokenizer. */
#include "ops/file.h"
#include "tok_model.h"

static const char EOT_TEXT[] = "<|endoftext|>", BLANK[] = "\xE2\x96\x81" /* U+2581 */;

void byte_chars(ByteChar c[256]) {
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        int u = itself ? b : next++;
        c[b] = u < 0x80 ? (ByteChar){{(char)u}} : (ByteChar){{(char)(0xC0 | u >> 6), (char)(0x80 | (u & 0x3F))}};
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *where;
    const json_t *root;
    Tokenizer *t;
    TokModel *m;
    bool bytes, fallback; /* byte level; byte fallback */
    Err *e;
} Reader;

static const char *tokenizer_json_text_of(const json_t *j, const char *key) {
    return json_string_value(json_object_get(j, key));
}
static bool tokenizer_json_absent(const json_t *j) { return !j || json_is_null(j); }
static bool tokenizer_json_truth(const json_t *j, const char *key, bool otherwise) {
    const json_t *v = json_object_get(j, key);
    return v ? json_is_true(v) : otherwise;
}
static const char *tokenizer_json_type_of(const json_t *j) {
    const char *s = tokenizer_json_text_of(j, "type");
    return s ? s : "one without a type";
}
static bool tokenizer_json_unknown(const Reader *r, const char *part, const char *found) {
    return err_input(r->e, "%s: %s: %.100s is not supported", r->where, part, found);
}
/* Apply `one` to an object, or to every member of a Sequence under `list`. */
static bool tokenizer_json_each(Reader *r, const json_t *j, const char *list, bool (*one)(Reader *, const json_t *)) {
    if (tokenizer_json_absent(j)) return true;
    if (strcmp(tokenizer_json_type_of(j), "Sequence")) return one(r, j);
    const json_t *all = json_object_get(j, list), *v;
    size_t i;
    json_array_foreach(all, i, v) {
        if (!strcmp(tokenizer_json_type_of(v), "Sequence"))
            return tokenizer_json_unknown(r, list, "a sequence inside a sequence");
        if (!one(r, v)) return false;
    }
    return true;
}

static bool blank_for_space(const json_t *j) {
    const char *from = tokenizer_json_text_of(json_object_get(j, "pattern"), "String"),
               *to = tokenizer_json_text_of(j, "content");
    return from && to && !strcmp(from, " ") && !strcmp(to, BLANK);
}
static bool tokenizer_json_normalizer(Reader *r, const json_t *j) {
    const char *type = tokenizer_json_type_of(j), *prefix = tokenizer_json_text_of(j, "prepend");
    if (!strcmp(type, "NFC"))
        r->m->nfc = true;
    else if (!strcmp(type, "Prepend") && prefix && !strcmp(prefix, BLANK))
        r->m->prepend = true;
    else if (!strcmp(type, "Replace") && blank_for_space(j))
        r->m->blanks = true;
    else
        return tokenizer_json_unknown(r, "normalizer", type);
    if (r->m->nfc && (r->m->prepend || r->m->blanks))
        return tokenizer_json_unknown(r, "normalizer", "NFC together with Prepend or Replace");
    return true;
}

static bool add_cut(Reader *r, Cut c) {
    if (r->m->ncut == CUTS_MAX) return tokenizer_json_unknown(r, "pre_tokenizer", "a sequence of more than 8 steps");
    r->m->cut[r->m->ncut++] = c;
    return true;
}
static bool add_pattern(Reader *r, const char *pattern) {
    Cutter *c = cutter_open(pattern, r->where, r->e);
    bool known = !strcmp(pattern, PATTERN_GPT2) || !strcmp(pattern, PATTERN_LLAMA3) || !strcmp(pattern, PATTERN_QWEN2);
    if (!c) return false;
    if (add_cut(r, (Cut){.kind = CUT_PATTERN, .known = known, .cutter = c})) return true;
    cutter_close(c);
    return false;
}
/* Add a pattern that matches a literal text. */
static bool add_literal(Reader *r, const char *s) {
    Buf p = {0};
    for (; *s; s++) {
        if (strchr("\\^$.|?*+()[]{}", *s)) buf_put(&p, "\\", 1);
        buf_put(&p, s, 1);
    }
    buf_put(&p, "", 1);
    bool ok = add_pattern(r, p.at);
    buf_free(&p);
    return ok;
}
static bool tokenizer_json_metaspace(Reader *r, const json_t *j) {
    const char *mark = tokenizer_json_text_of(j, "replacement"), *scheme = tokenizer_json_text_of(j, "prepend_scheme");
    if (!mark || strcmp(mark, BLANK))
        return tokenizer_json_unknown(r, "pre_tokenizer", "Metaspace with another replacement than U+2581");
    if (!scheme) scheme = tokenizer_json_truth(j, "add_prefix_space", true) ? "always" : "never";
    Prepend p = !strcmp(scheme, "always") ? PREPEND_ALWAYS : !strcmp(scheme, "first") ? PREPEND_FIRST : PREPEND_NEVER;
    if (p == PREPEND_NEVER && strcmp(scheme, "never"))
        return tokenizer_json_unknown(r, "pre_tokenizer.prepend_scheme", scheme);
    return add_cut(r, (Cut){.kind = CUT_METASPACE, .prepend = p, .split = tokenizer_json_truth(j, "split", true)});
}
static bool pre_tokenizer(Reader *r, const json_t *j) {
    const char *type = tokenizer_json_type_of(j);
    if (!strcmp(type, "ByteLevel")) {
        r->bytes = true;
        if (tokenizer_json_truth(j, "add_prefix_space", true) && !add_cut(r, (Cut){.kind = CUT_PREFIX_SPACE}))
            return false;
        return !tokenizer_json_truth(j, "use_regex", true) || add_pattern(r, PATTERN_GPT2);
    }
    if (!strcmp(type, "Split")) {
        const json_t *p = json_object_get(j, "pattern");
        const char *behavior = tokenizer_json_text_of(j, "behavior"), *regex = tokenizer_json_text_of(p, "Regex"),
                   *plain = tokenizer_json_text_of(p, "String");
        if (!behavior || strcmp(behavior, "Isolated"))
            return tokenizer_json_unknown(r, "pre_tokenizer: Split", behavior ? behavior : "no behavior");
        if (tokenizer_json_truth(j, "invert", false))
            return tokenizer_json_unknown(r, "pre_tokenizer: Split", "invert");
        if (!regex && !plain)
            return tokenizer_json_unknown(r, "pre_tokenizer: Split", "a pattern that is neither Regex nor String");
        return regex ? add_pattern(r, regex) : add_literal(r, plain);
    }
    if (!strcmp(type, "Digits"))
        return add_pattern(r, tokenizer_json_truth(j, "individual_digits", false) ? "\\p{N}" : "\\p{N}+");
    if (!strcmp(type, "Metaspace")) return tokenizer_json_metaspace(r, j);
    return tokenizer_json_unknown(r, "pre_tokenizer", type);
}

static bool tokenizer_json_decoder(Reader *r, const json_t *j) {
    static const char *const known[] = {"ByteLevel", "ByteFallback", "Fuse", NULL};
    const char *type = tokenizer_json_type_of(j),
               *from = tokenizer_json_text_of(json_object_get(j, "pattern"), "String"),
               *to = tokenizer_json_text_of(j, "content");
    for (int i = 0; known[i]; i++)
        if (!strcmp(type, known[i])) return true;
    if (!strcmp(type, "Replace") && from && to && !strcmp(from, BLANK) && !strcmp(to, " ")) return true;
    if (!strcmp(type, "Strip") && to && !strcmp(to, " ")) {
        r->t->strip = json_integer_value(json_object_get(j, "start")) > 0;
        return true;
    }
    if (!strcmp(type, "Metaspace")) {
        const char *scheme = tokenizer_json_text_of(j, "prepend_scheme");
        r->t->strip = scheme ? strcmp(scheme, "never") != 0 : tokenizer_json_truth(j, "add_prefix_space", true);
        return true;
    }
    return tokenizer_json_unknown(r, "decoder", type);
}

static bool post_processor(Reader *r, const json_t *j) {
    const char *type = tokenizer_json_type_of(j);
    if (!strcmp(type, "ByteLevel")) return true;
    if (strcmp(type, "TemplateProcessing")) return tokenizer_json_unknown(r, "post_processor", type);
    const json_t *v, *specials = json_object_get(j, "special_tokens");
    size_t i, k;
    bool behind = false;
    json_array_foreach(json_object_get(j, "single"), i, v) {
        const json_t *s = json_object_get(v, "SpecialToken"), *id;
        if (json_object_get(v, "Sequence")) {
            behind = true;
            continue;
        }
        const char *name = tokenizer_json_text_of(s, "id");
        const json_t *ids = json_object_get(json_object_get(specials, name ? name : ""), "ids");
        if (!json_array_size(ids))
            return tokenizer_json_unknown(r, "post_processor", "a template with a token that has no ids");
        json_array_foreach(ids, k, id) {
            if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOKENIZER_IDS_MAX)
                return tokenizer_json_unknown(r, "post_processor", "a template with an id outside the vocabulary");
            ids_push(behind ? &r->m->after : &r->m->before, (int)json_integer_value(id));
        }
    }
    return true;
}

/* ---- vocabulary, merges, added tokens ---------------------------------------------------------------------------- */

static bool id_of(const Reader *r, const json_t *j, const char *name, int *id) {
    if (json_is_integer(j) && json_integer_value(j) >= 0 && json_integer_value(j) < TOKENIZER_IDS_MAX) {
        *id = (int)json_integer_value(j);
        return true;
    }
    return err_input(r->e, "%s: the id of token '%.60s' is not a number of 0 to %d", r->where, name,
                     TOKENIZER_IDS_MAX - 1);
}
static bool count_ids(Reader *r, const json_t *vocab, const json_t *added) {
    const char *name;
    json_t *v;
    size_t i;
    int id = -1, most = -1;
    json_object_foreach((json_t *)vocab, name, v) {
        if (!id_of(r, v, name, &id)) return false;
        most = imax(most, id);
    }
    json_array_foreach(added, i, v) {
        const char *s = tokenizer_json_text_of(v, "content");
        if (!s || !*s) return err_input(r->e, "%s: added token %zu has no content", r->where, i);
        if (strlen(s) != json_string_length(json_object_get(v, "content")))
            return err_input(r->e, "%s: added token %zu holds a NUL character", r->where, i);
        if (!id_of(r, json_object_get(v, "id"), s, &id)) return false;
        most = imax(most, id);
    }
    if (most < 0) return err_input(r->e, "%s: the vocabulary is empty", r->where);
    r->t->vocab = most + 1;
    return true;
}

/* Convert a token's text to its bytes; false: it has a character that represents no byte. */
typedef struct {
    short byte[0x200];
} CharByte;
static CharByte char_bytes_table(void) {
    CharByte c;
    ByteChar of[256];
    byte_chars(of);
    for (int u = 0; u < 0x200; u++) c.byte[u] = -1;
    for (int b = 0; b < 256; b++) {
        const unsigned char *s = (const unsigned char *)of[b].utf8;
        c.byte[s[0] < 0x80 ? s[0] : (s[0] & 0x1F) << 6 | (s[1] & 0x3F)] = (short)b;
    }
    return c;
}
static bool put_level_bytes(Buf *out, const CharByte *c, const char *name) {
    const unsigned char *s = (const unsigned char *)name;
    size_t start = out->n;
    while (*s) {
        int u = *s < 0x80 ? *s : *s >= 0xC2 && *s < 0xE0 ? (s[0] & 0x1F) << 6 | (s[1] & 0x3F) : 0x1FF;
        if (u >= 0x200 || c->byte[u] < 0) {
            out->n = start;
            return false;
        }
        char b = (char)c->byte[u];
        buf_put(out, &b, 1);
        s += *s < 0x80 ? 1 : 2;
    }
    return true;
}
/* The value of a token <0xNN>, or -1. */
static int fallback_byte(const char *name) {
    int v = -1, end = 0;
    return strlen(name) == 6 && sscanf(name, "<0x%2X>%n", (unsigned *)&v, &end) == 1 && end == 6 ? v : -1;
}
static void put_shown(Buf *out, const char *name) {
    for (const char *b; (b = strstr(name, BLANK)); name = b + 3) {
        buf_put(out, name, (size_t)(b - name));
        buf_put(out, " ", 1);
    }
    buf_put(out, name, strlen(name));
}

/* The pool moves while it grows, so tokens hold offsets until all have been added. */
typedef struct {
    size_t at, n;
    bool used;
} Place;
static void tokenizer_json_settle(const TokModel *m, Token *t, const Place *p, int n) {
    for (int i = 0; i < n; i++)
        if (p[i].used) t[i].at = m->pool.at + p[i].at, t[i].n = (uint32_t)p[i].n;
}
static bool tokenizer_json_vocabulary(Reader *r, const json_t *vocab, const json_t *added) {
    TokModel *m = r->m;
    CharByte level = char_bytes_table();
    int V = r->t->vocab, id = -1;
    Place *find = xcalloc((size_t)V, sizeof *find), *show = xcalloc((size_t)V, sizeof *show);
    m->token = xcalloc((size_t)V, sizeof *m->token);
    m->shown = xcalloc((size_t)V, sizeof *m->shown);
    m->special = xcalloc((size_t)V, 1);
    for (int i = 0; i < V; i++) m->token[i].byte = -1;
    const char *name;
    json_t *v;
    bool ok = true;
    json_object_foreach((json_t *)vocab, name, v) {
        if (!ok || !(ok = id_of(r, v, name, &id))) break;
        if (find[id].used) {
            ok = err_input(r->e, "%s: id %d is given to two tokens, one of them '%.60s'", r->where, id, name);
            break;
        }
        find[id] = (Place){m->pool.n, 0, true};
        if (!r->bytes || !put_level_bytes(&m->pool, &level, name)) buf_put(&m->pool, name, strlen(name));
        find[id].n = m->pool.n - find[id].at;
        show[id] = find[id];
        if (!r->fallback) continue;
        m->token[id].byte = fallback_byte(name);
        show[id] = (Place){m->pool.n, 0, true};
        char b = (char)m->token[id].byte;
        if (m->token[id].byte >= 0)
            buf_put(&m->pool, &b, 1);
        else
            put_shown(&m->pool, name);
        show[id].n = m->pool.n - show[id].at;
    }
    size_t i;
    m->added = xcalloc(json_array_size(added) + 1, sizeof *m->added);
    json_array_foreach(added, i, v) {
        if (!ok) break;
        const char *s = tokenizer_json_text_of(v, "content");
        ok = id_of(r, json_object_get(v, "id"), s, &id);
        if (!ok) break;
        Added *a = &m->added[m->nadded++];
        *a = (Added){.id = id,
                     .special = tokenizer_json_truth(v, "special", false),
                     .lstrip = tokenizer_json_truth(v, "lstrip", false),
                     .rstrip = tokenizer_json_truth(v, "rstrip", false),
                     .word = tokenizer_json_truth(v, "single_word", false),
                     .normalized = tokenizer_json_truth(v, "normalized", !tokenizer_json_truth(v, "special", false))};
        Buf norm = {0};
        if (a->normalized && m->nfc)
            buf_nfc(&norm, s, strlen(s));
        else
            buf_put(&norm, s, strlen(s));
        a->text = norm.at, a->n = norm.n;
        m->special[id] = a->special;
        if (show[id].used) continue; /* a token of the vocabulary that is also an added token */
        show[id] = (Place){m->pool.n, strlen(s), true};
        buf_put(&m->pool, s, strlen(s));
    }
    buf_put(&m->pool, "", 1); /* never NULL */
    tokenizer_json_settle(m, m->token, find, V);
    tokenizer_json_settle(m, m->shown, show, V);
    free(find), free(show);
    return ok;
}

/* A merge is "left right" or ["left", "right"]. */
static bool merge_of(const Reader *r, const json_t *vocab, const json_t *j, size_t k, Merge *out) {
    const char *a = json_string_value(json_array_get(j, 0)), *b = json_string_value(json_array_get(j, 1)),
               *both = json_string_value(j);
    const char *gap = both ? strchr(both, ' ') : NULL;
    char *left = NULL;
    if (gap) left = xformat("%.*s", (int)(gap - both), both), a = left, b = gap + 1;
    bool ok = a && b && *a && *b && (gap || json_array_size(j) == 2);
    if (!ok) {
        err_input(r->e, "%s: merge %zu is not two texts", r->where, k);
    } else {
        char *joined = xformat("%s%s", a, b);
        const char *name[] = {a, b, joined};
        int *to[] = {&out->a, &out->b, &out->to};
        for (int i = 0; ok && i < 3; i++) {
            const json_t *id = json_object_get(vocab, name[i]);
            if (!id)
                ok = err_input(r->e, "%s: merge %zu needs the token '%.60s', which the vocabulary does not have",
                               r->where, k, name[i]);
            else
                ok = id_of(r, id, name[i], to[i]);
        }
        free(joined);
    }
    free(left);
    return ok;
}
static bool tokenizer_json_merges(Reader *r, const json_t *vocab, const json_t *list) {
    size_t n = json_array_size(list), i;
    Merge *all = xcalloc(n + 1, sizeof *all);
    const json_t *v;
    bool ok = true;
    json_array_foreach(list, i, v) if (!(ok = merge_of(r, vocab, v, i, &all[i]))) break;
    ok = ok && (r->m->bpe = bpe_open(r->m->token, r->t->vocab, all, n, r->fallback, r->where, r->e));
    free(all);
    return ok;
}

static bool plain_model(Reader *r, const json_t *model) {
    static const char *const none[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    if (!json_is_object(model)) return err_input(r->e, "%s: expected \"model\", an object", r->where);
    if (strcmp(tokenizer_json_type_of(model), "BPE"))
        return tokenizer_json_unknown(r, "model.type", tokenizer_json_type_of(model));
    if (!json_is_object(json_object_get(model, "vocab")))
        return err_input(r->e, "%s: expected model.vocab, an object", r->where);
    if (!json_is_array(json_object_get(model, "merges")))
        return err_input(r->e, "%s: expected model.merges, a list", r->where);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        const json_t *v = json_object_get(model, none[i]);
        if (!tokenizer_json_absent(v) && !(json_is_string(v) && !*json_string_value(v)) &&
            !(json_is_number(v) && json_number_value(v) == 0))
            return tokenizer_json_unknown(r, "model", none[i]);
    }
    return true;
}

/* The id that ends documents, by the usual names; tokenizer_config.json and the model's own settings are better
 * sources. */
static int find_eot(const Tokenizer *t) {
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tokenizer_find(t, names[i]) >= 0) return tokenizer_find(t, names[i]);
    return -1;
}

/* True for a byte-level vocabulary of the 256 bytes in order, without merges, patterns or normalizer: the built-in
 * one. */
static bool is_byte(const Tokenizer *t, size_t nmerge) {
    const TokModel *m = t->model;
    if (nmerge || m->ncut || m->nfc || m->prepend || m->blanks || m->before.n || m->after.n) return false;
    if (t->vocab != TOKENIZER_VOCAB || t->eot != TOKENIZER_EOT || m->nadded != 1) return false;
    for (int b = 0; b < 256; b++)
        if (!m->token[b].at || m->token[b].n != 1 || (unsigned char)*m->token[b].at != b) return false;
    const Added *eot = &m->added[0]; /* its text has no terminating 0 */
    return eot->n == sizeof EOT_TEXT - 1 && !memcmp(eot->text, EOT_TEXT, eot->n);
}

static bool read_all(Reader *r) {
    const json_t *model = json_object_get(r->root, "model"), *added = json_object_get(r->root, "added_tokens");
    if (!plain_model(r, model) ||
        !tokenizer_json_each(r, json_object_get(r->root, "normalizer"), "normalizers", tokenizer_json_normalizer) ||
        !tokenizer_json_each(r, json_object_get(r->root, "pre_tokenizer"), "pretokenizers", pre_tokenizer) ||
        !tokenizer_json_each(r, json_object_get(r->root, "post_processor"), "processors", post_processor) ||
        !tokenizer_json_each(r, json_object_get(r->root, "decoder"), "decoders", tokenizer_json_decoder))
        return false;
    r->fallback = tokenizer_json_truth(model, "byte_fallback", false);
    if (r->bytes == r->fallback)
        return tokenizer_json_unknown(r, "model",
                                      r->bytes ? "byte_fallback together with a ByteLevel pre_tokenizer"
                                               : "a vocabulary of characters without byte_fallback");
    r->m->whole = tokenizer_json_truth(model, "ignore_merges", false);
    const json_t *vocab = json_object_get(model, "vocab");
    if (!count_ids(r, vocab, added) || !tokenizer_json_vocabulary(r, vocab, added)) return false;
    if (!tokenizer_json_merges(r, vocab, json_object_get(model, "merges"))) return false;
    tok_model_index(r->m);
    r->t->eot = find_eot(r->t);
    r->t->bos = r->m->before.n ? r->m->before.id[0] : -1;
    for (size_t i = 0; i < r->m->before.n + r->m->after.n; i++)
        if ((i < r->m->before.n ? r->m->before.id[i] : r->m->after.id[i - r->m->before.n]) >= r->t->vocab)
            return tokenizer_json_unknown(r, "post_processor", "a template with an id outside the vocabulary");
    if (!is_byte(r->t, json_array_size(json_object_get(model, "merges")))) return true;
    tok_model_free(r->m);
    *r->t = tokenizer_byte();
    return true;
}

bool tokenizer_parse(Tokenizer *t, const char *json, size_t n, const char *where, Err *e) {
    *t = (Tokenizer){.eot = -1, .bos = -1};
    if (n > TOKENIZER_FILE_MAX)
        return err_input(e, "%s: a file of %zu bytes; expected a tokenizer.json of at most %d", where, n,
                         TOKENIZER_FILE_MAX);
    json_t *root = json_parse(json, n, where, NULL, e);
    if (!root) return false;
    Reader r = {.where = where, .root = root, .t = t, .m = xcalloc(1, sizeof *r.m), .e = e};
    t->model = r.m;
    bool ok = read_all(&r);
    json_decref(root);
    if (!ok) {
        tokenizer_close(t);
        return false;
    }
    if (t->model) {
        t->model->file = xcalloc(n + 1, 1);
        memcpy(t->model->file, json, n);
        t->model->nfile = n;
    }
    return true;
}

bool tokenizer_load(Tokenizer *t, const char *path, Err *e) {
    FileMap m;
    *t = (Tokenizer){.eot = -1, .bos = -1};
    if (!file_map(&m, path, e)) return false;
    bool ok = tokenizer_parse(t, (const char *)m.p, m.n, path, e);
    file_unmap(&m);
    return ok;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static json_t *tokenizer_json_need(json_t *j) {
    CHECK(j, "building JSON failed");
    return j;
}

static char *byte_json(const Tokenizer *t) {
    ByteChar c[256];
    byte_chars(c);
    json_t *vocab = tokenizer_json_need(json_object());
    for (int b = 0; b < 256; b++) json_object_set_new(vocab, c[b].utf8, tokenizer_json_need(json_integer(b)));
    /* Keys, order and values are those of the tokenizers library, which ignores the decoder's three values. */
    json_t *j = tokenizer_json_need(json_pack(
        "{ss sn sn s[{si ss sb sb sb sb sb}] sn s{ss sb sb sb} sn s{ss sb sb sb} s{ss sn sn sn sn sb sb sb so s[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", "id", t->eot, "content", EOT_TEXT, "single_word", 0,
        "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1, "normalizer", "pre_tokenizer", "type", "ByteLevel",
        "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0, "post_processor", "decoder", "type", "ByteLevel",
        "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0,
        "vocab", vocab, "merges"));
    char *body = json_dumps(j, JSON_INDENT(2));
    CHECK(body, "writing JSON failed");
    char *text = xformat("%s\n", body);
    free(body);
    json_decref(j);
    return text;
}
char *tokenizer_json(const Tokenizer *t) { return t->model ? xstrdup(t->model->file) : byte_json(t); }

char *tokenizer_config_json(const Tokenizer *t) {
    size_t n = 0, nbos = 0;
    const char *eot = t->eot >= 0 ? tokenizer_decode(t, t->eot, &n) : "", *bos = eot;
    nbos = n;
    if (t->bos >= 0) bos = tokenizer_decode(t, t->bos, &nbos);
    json_t *j = tokenizer_json_need(json_pack("{ss% sb ss% ss}", "bos_token", bos, nbos, "clean_up_tokenization_spaces",
                                              0, "eos_token", eot, n, "tokenizer_class", "PreTrainedTokenizerFast"));
    char *body = json_dumps(j, JSON_INDENT(2)), *text = xformat("%s\n", body);
    free(body);
    json_decref(j);
    return text;
}
