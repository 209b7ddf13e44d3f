/* tokenizer_json.c: reads tokenizer.json into memory, and writes that of the byte tokenizer. tokenizer_steps.c reads
 * what stands around the model. */
#include "ops/file.h"
#include "tok_reader.h"

static const char EOT_TEXT[] = "<|endoftext|>";

void byte_chars(ByteChar c[256]) {
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        int u = itself ? b : next++;
        c[b] = u < 0x80 ? (ByteChar){{(char)u}} : (ByteChar){{(char)(0xC0 | u >> 6), (char)(0x80 | (u & 0x3F))}};
    }
}

static json_t *tokenizer_json_need(json_t *j) {
    CHECK(j, "building JSON failed");
    return j;
}

/* ---- vocabulary, merges, added tokens ---------------------------------------------------------------------------- */

static bool id_of(const TokReader *r, const json_t *j, const char *name, int *id) {
    if (json_is_integer(j) && json_integer_value(j) >= 0 && json_integer_value(j) < TOKENIZER_IDS_MAX) {
        *id = (int)json_integer_value(j);
        return true;
    }
    return err_input(r->e, "%s: the id of token '%.60s' is not a number of 0 to %d", r->where, name,
                     TOKENIZER_IDS_MAX - 1);
}
static bool count_ids(TokReader *r, const json_t *vocab, const json_t *added) {
    const char *name;
    json_t *v;
    size_t i;
    int id = -1, most = -1;
    json_object_foreach((json_t *)vocab, name, v) {
        if (!id_of(r, v, name, &id)) return false;
        most = imax(most, id);
    }
    json_array_foreach(added, i, v) {
        const char *s = tok_text(v, "content");
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
/* The pool moves while it grows, so tokens hold offsets until all have been added. */
typedef struct {
    size_t at, n;
    bool used;
} Place;
static void tokenizer_json_settle(const TokModel *m, Token *t, const Place *p, int n) {
    for (int i = 0; i < n; i++)
        if (p[i].used) t[i].at = m->pool.at + p[i].at, t[i].n = (uint32_t)p[i].n;
}
static bool tokenizer_json_vocabulary(TokReader *r, const json_t *vocab, const json_t *added) {
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
        if (r->fallback) m->token[id].byte = fallback_byte(name);
        if (r->bytes) continue;
        show[id] = (Place){m->pool.n, 0, true};
        tok_show(r, name, &m->pool);
        show[id].n = m->pool.n - show[id].at;
    }
    size_t i, norm_n;
    const char *norm;
    NormWork *work = norm_work(m->norm, m->nnorm);
    m->added = xcalloc(json_array_size(added) + 1, sizeof *m->added);
    json_array_foreach(added, i, v) {
        if (!ok) break;
        const char *s = tok_text(v, "content");
        ok = id_of(r, json_object_get(v, "id"), s, &id);
        if (!ok) break;
        Added *a = &m->added[m->nadded++];
        *a = (Added){.id = id,
                     .special = tok_truth(v, "special", false),
                     .lstrip = tok_truth(v, "lstrip", false),
                     .rstrip = tok_truth(v, "rstrip", false),
                     .word = tok_truth(v, "single_word", false),
                     .normalized = tok_truth(v, "normalized", !tok_truth(v, "special", false))};
        norm = s, norm_n = strlen(s);
        if (a->normalized && !norm_run(work, s, norm_n, false, &norm, &norm_n)) {
            ok = err_input(r->e, "%s: the normalizer's pattern exceeds its step limit on added token %zu", r->where, i);
            break;
        }
        a->text = xcalloc(norm_n + 1, 1), a->n = norm_n;
        memcpy(a->text, norm, norm_n);
        m->special[id] = m->token[id].hidden = a->special;
        if (show[id].used) continue; /* a token of the vocabulary that is also an added token */
        show[id] = (Place){m->pool.n, 0, true};
        if (!r->bytes && !a->special)
            tok_show(r, s, &m->pool);
        else
            buf_put(&m->pool, s, strlen(s));
        show[id].n = m->pool.n - show[id].at;
    }
    norm_work_free(work);
    buf_put(&m->pool, "", 1); /* never NULL */
    tokenizer_json_settle(m, m->token, find, V);
    tokenizer_json_settle(m, m->shown, show, V);
    free(find), free(show);
    return ok;
}

/* A merge is "left right" or ["left", "right"]. */
static bool merge_of(const TokReader *r, const json_t *vocab, const json_t *j, size_t k, Merge *out) {
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
static bool tokenizer_json_merges(TokReader *r, const json_t *vocab, const json_t *list) {
    size_t n = json_array_size(list), i;
    Merge *all = xcalloc(n + 1, sizeof *all);
    const json_t *v;
    bool ok = true;
    json_array_foreach(list, i, v) if (!(ok = merge_of(r, vocab, v, i, &all[i]))) break;
    ok = ok && (r->m->bpe = bpe_open(r->m->token, r->t->vocab, all, n, r->fallback, r->where, r->e));
    free(all);
    return ok;
}

static bool model_bpe(TokReader *r, const json_t *model, const json_t *vocab) {
    static const char *const none[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    if (!json_is_array(json_object_get(model, "merges")))
        return err_input(r->e, "%s: expected model.merges, a list", r->where);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        const json_t *v = json_object_get(model, none[i]);
        if (!tok_absent(v) && !(json_is_string(v) && !*json_string_value(v)) &&
            !(json_is_number(v) && json_number_value(v) == 0))
            return tok_unknown(r, "model", none[i]);
    }
    if (r->bytes == r->fallback)
        return tok_unknown(r, "model",
                           r->bytes ? "byte_fallback together with a ByteLevel pre_tokenizer"
                                    : "a vocabulary of characters without byte_fallback");
    r->m->whole = tok_truth(model, "ignore_merges", false);
    return tokenizer_json_merges(r, vocab, json_object_get(model, "merges"));
}

/* The scores of "vocab", a list of [token, score], and unk_id. */
static bool model_unigram(TokReader *r, const json_t *model) {
    const json_t *unknown = json_object_get(model, "unk_id"), *list = json_object_get(model, "vocab"), *v;
    size_t i;
    if (r->bytes) return tok_unknown(r, "model", "Unigram together with a ByteLevel pre_tokenizer");
    if (!json_is_integer(unknown) || json_integer_value(unknown) < 0 ||
        (size_t)json_integer_value(unknown) >= json_array_size(list))
        return err_input(r->e, "%s: expected model.unk_id, a number below %zu", r->where, json_array_size(list));
    r->m->score = xcalloc((size_t)r->t->vocab, sizeof *r->m->score);
    json_array_foreach(list, i, v) {
        r->m->score[i] = json_number_value(json_array_get(v, 1));
        if (!isfinite(r->m->score[i]) || fabs(r->m->score[i]) > 1e30)
            return err_input(r->e, "%s: the score of token %zu is out of range", r->where, i);
    }
    r->m->unigram = unigram_open(r->m->token, r->m->score, r->t->vocab, (int)json_integer_value(unknown), r->fallback,
                                 r->where, r->e);
    return r->m->unigram;
}

static bool model_wordpiece(TokReader *r, const json_t *model, const json_t *vocab) {
    const char *unknown = tok_text(model, "unk_token"), *prefix = tok_text(model, "continuing_subword_prefix");
    const json_t *most = json_object_get(model, "max_input_chars_per_word");
    const json_t *id = json_object_get(vocab, unknown ? unknown : "[UNK]");
    if (r->bytes) return tok_unknown(r, "model", "WordPiece together with a ByteLevel pre_tokenizer");
    if (!id) return err_input(r->e, "%s: model.unk_token is not in the vocabulary", r->where);
    if (!tok_absent(most) && (!json_is_integer(most) || json_integer_value(most) < 0))
        return err_input(r->e, "%s: expected model.max_input_chars_per_word, a number", r->where);
    const long long given = tok_absent(most) ? 100 : json_integer_value(most);
    const int limit = given < INT32_MAX ? (int)given : INT32_MAX;
    r->m->wordpiece =
        wordpiece_make(r->m->token, r->t->vocab, prefix ? prefix : "##", (int)json_integer_value(id), limit);
    return true;
}

/* "vocab" as an object of ids; a unigram model lists its tokens in their order. The caller releases it. */
static json_t *model_vocab(const TokReader *r, const json_t *model) {
    json_t *own = json_object_get(model, "vocab"), *v;
    size_t i;
    if (r->m->kind != MODEL_UNIGRAM) {
        if (json_is_object(own)) return json_incref(own);
        err_input(r->e, "%s: expected model.vocab, an object", r->where);
        return NULL;
    }
    if (!json_is_array(own) || json_array_size(own) > TOKENIZER_IDS_MAX) {
        err_input(r->e, "%s: expected model.vocab, a list of at most %d tokens", r->where, TOKENIZER_IDS_MAX);
        return NULL;
    }
    json_t *vocab = tokenizer_json_need(json_object());
    json_array_foreach(own, i, v) {
        const json_t *name = json_array_get(v, 0);
        const char *s = json_string_value(name);
        if (!s || strlen(s) != json_string_length(name) || !json_is_number(json_array_get(v, 1)) ||
            json_object_get(vocab, s)) {
            err_input(r->e, "%s: token %zu of model.vocab is not a new text without NUL, and a score", r->where, i);
            json_decref(vocab);
            return NULL;
        }
        json_object_set_new(vocab, s, tokenizer_json_need(json_integer((json_int_t)i)));
    }
    return vocab;
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
    if (m->kind != MODEL_BPE || nmerge || m->ncut || m->nnorm || m->before.n || m->after.n) return false;
    if (t->vocab != TOKENIZER_VOCAB || t->eot != TOKENIZER_EOT || m->nadded != 1) return false;
    for (int b = 0; b < 256; b++)
        if (!m->token[b].at || m->token[b].n != 1 || (unsigned char)*m->token[b].at != b) return false;
    const Added *eot = &m->added[0]; /* its text has no terminating 0 */
    return eot->n == sizeof EOT_TEXT - 1 && !memcmp(eot->text, EOT_TEXT, eot->n);
}

static bool read_model(TokReader *r, const json_t *model, const json_t *vocab) {
    const json_t *added = json_object_get(r->root, "added_tokens");
    if (!count_ids(r, vocab, added) || !tokenizer_json_vocabulary(r, vocab, added)) return false;
    if (r->m->kind == MODEL_BPE) return model_bpe(r, model, vocab);
    return r->m->kind == MODEL_UNIGRAM ? model_unigram(r, model) : model_wordpiece(r, model, vocab);
}
static bool read_all(TokReader *r) {
    static const char *const kinds[] = {"BPE", "Unigram", "WordPiece", NULL};
    const json_t *model = json_object_get(r->root, "model");
    if (!json_is_object(model)) return err_input(r->e, "%s: expected \"model\", an object", r->where);
    int kind = 0;
    while (kinds[kind] && strcmp(tok_type(model), kinds[kind])) kind++;
    if (!kinds[kind]) return tok_unknown(r, "model.type", tok_type(model));
    r->m->kind = (ModelKind)kind;
    r->fallback = kind != MODEL_WORDPIECE && tok_truth(model, "byte_fallback", false);
    if (!tok_read_steps(r)) return false;
    if (r->m->kind == MODEL_BPE && r->fallback) r->show_blanks = r->show_bytes = true; /* also without a decoder */
    json_t *vocab = model_vocab(r, model);
    bool ok = vocab && read_model(r, model, vocab);
    json_decref(vocab);
    if (!ok) return false;
    tok_model_index(r->m);
    r->t->eot = find_eot(r->t);
    r->t->bos = r->m->before.n ? r->m->before.id[0] : -1;
    for (size_t i = 0; i < r->m->before.n + r->m->after.n; i++)
        if ((i < r->m->before.n ? r->m->before.id[i] : r->m->after.id[i - r->m->before.n]) >= r->t->vocab)
            return tok_unknown(r, "post_processor", "a template with an id outside the vocabulary");
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
    TokReader r = {.where = where, .root = root, .t = t, .m = xcalloc(1, sizeof *r.m), .e = e};
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
