/* tokenizer.c: encoding and decoding. The readers of files are the other tokenizer_*.c. */
#include "chars.h"
#include "tok_model.h"

static const char EOT_TEXT[] = "<|endoftext|>", BLANK[] = "\xE2\x96\x81" /* U+2581 */;
enum { BLANK_BYTES = 3, TEXT_MAX = 1 << 30 };

Tokenizer tokenizer_byte(void) {
    Tokenizer t = {.vocab = TOKENIZER_VOCAB, .eot = TOKENIZER_EOT, .bos = -1};
    for (int i = 0; i < 256; i++) t.byte[i] = (unsigned char)i;
    return t;
}

void tok_model_free(TokModel *m) {
    if (!m) return;
    for (int i = 0; i < m->nadded; i++) free(m->added[i].text);
    for (int i = 0; i < m->ncut; i++) cutter_close(m->cut[i].cutter);
    for (int i = 0; i < m->nnorm; i++) norm_free(&m->norm[i]);
    for (int k = 0; k < 2; k++) free(m->first[k]), free(m->order[k]);
    bpe_close(m->bpe);
    unigram_close(m->unigram);
    wordpiece_free(&m->wordpiece);
    free(m->score);
    ids_free(&m->before);
    ids_free(&m->after);
    free(m->special);
    free(m->added);
    free(m->token);
    free(m->shown);
    buf_free(&m->pool);
    free(m->file);
    free(m);
}
void tokenizer_close(Tokenizer *t) {
    tok_model_free(t->model);
    *t = (Tokenizer){0};
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

static bool tokenizer_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
/* Matching `a` may consume both a letter and the blank after it, with a letter following. */
static bool tokenizer_joins(const Added *a) {
    for (size_t i = 1; i < a->n; i++)
        if (a->text[i] == ' ' && tokenizer_letter(a->text[i - 1]) &&
            (i + 1 == a->n || tokenizer_letter(a->text[i + 1])))
            return true;
    return a->rstrip && a->n && tokenizer_letter(a->text[a->n - 1]);
}

void tok_model_index(TokModel *m) {
    for (int i = 0; i < m->nadded; i++) {
        const Added *a = &m->added[i];
        if (a->special || !a->n) continue;
        m->plain[a->normalized]++;
        m->joins |= tokenizer_joins(a);
    }
    for (int k = 0; k < 2; k++) {
        int *first = m->first[k] = xcalloc(257, sizeof *first),
            *order = m->order[k] = xcalloc((size_t)m->nadded + 1, sizeof *order), at = 0;
        for (int c = 0; c < 256; c++) {
            first[c] = at;
            for (int i = 0; i < m->nadded; i++)
                if (m->added[i].n && m->added[i].normalized == k && (unsigned char)m->added[i].text[0] == c)
                    order[at++] = i;
        }
        first[256] = at;
    }
}

/* Letters, marks, digits and connectors: the library's \w. */
static bool word_char(utf8proc_int32_t c) {
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return c == 0x200C || c == 0x200D;
    }
}
static bool stands_alone(const char *s, size_t n, size_t from, size_t to) {
    size_t k;
    bool before = from == 0 || !word_char(char_at(s, n, char_back(s, from), &k));
    return before && (to >= n || !word_char(char_at(s, n, to, &k)));
}

/* The first added token at or after `at` (special ones only with ENCODE_SPECIAL); of those that begin there the
 * longest. -1: none. */
static int added_next(const TokModel *m, int normalized, unsigned how, const char *s, size_t n, size_t at, size_t *from,
                      size_t *to) {
    const int *first = m->first[normalized], *order = m->order[normalized];
    if (!(how & ENCODE_SPECIAL) && !m->plain[normalized]) return -1;
    for (size_t i = at; i < n; i++) {
        int c = (unsigned char)s[i], best = -1;
        for (int k = first[c]; k < first[c + 1]; k++) {
            const Added *a = &m->added[order[k]];
            if (a->special && !(how & ENCODE_SPECIAL)) continue;
            if (a->n > n - i || (best >= 0 && a->n <= m->added[best].n)) continue;
            if (s[i + a->n - 1] == a->text[a->n - 1] && !memcmp(s + i, a->text, a->n)) best = order[k];
        }
        if (best < 0) continue;
        const Added *a = &m->added[best];
        *from = i, *to = i + a->n;
        if (a->word && !stands_alone(s, n, *from, *to)) {
            i = *to - 1; /* matches do not overlap, used or not */
            continue;
        }
        for (size_t j, k; a->lstrip && *from > at && char_white(char_at(s, n, j = char_back(s, *from), &k));) *from = j;
        for (size_t k; a->rstrip && *to < n && char_white(char_at(s, n, *to, &k));) *to += k;
        return best;
    }
    return -1;
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

struct Encoder {
    const Tokenizer *t;
    BpeWork *bpe; /* the work space of the model's kind */
    UnigramWork *unigram;
    NormWork *norm;
    CutState *cut[CUTS_MAX];
    bool failed; /* some match did not terminate */
    Buf step[CUTS_MAX];
};
Encoder *encoder_open(const Tokenizer *t) {
    Encoder *e = xcalloc(1, sizeof *e);
    e->t = t;
    if (!t->model) return e;
    if (t->model->kind == MODEL_BPE) e->bpe = bpe_work(t->model->bpe);
    if (t->model->kind == MODEL_UNIGRAM) e->unigram = unigram_work(t->model->unigram);
    e->norm = norm_work(t->model->norm, t->model->nnorm);
    for (int i = 0; i < t->model->ncut; i++)
        if (t->model->cut[i].cutter) e->cut[i] = cut_state(t->model->cut[i].cutter);
    return e;
}
void encoder_close(Encoder *e) {
    for (int i = 0; i < CUTS_MAX; i++) {
        cut_state_free(e->cut[i]);
        buf_free(&e->step[i]);
    }
    bpe_work_free(e->bpe);
    unigram_work_free(e->unigram);
    norm_work_free(e->norm);
    free(e);
}

static void put_blanks(Buf *out, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s[i] == ' ')
            buf_put(out, BLANK, BLANK_BYTES);
        else
            buf_put(out, s + i, 1);
}

static void tokenizer_model(Encoder *e, const char *s, size_t n, Ids *out) {
    const TokModel *m = e->t->model;
    if (m->kind == MODEL_BPE)
        bpe_encode(e->bpe, s, n, m->whole, out);
    else if (m->kind == MODEL_UNIGRAM)
        unigram_encode(e->unigram, s, n, out);
    else
        wordpiece_encode(&m->wordpiece, s, n, out);
}

static void tokenizer_pieces(Encoder *e, int step, const char *s, size_t n, bool start, Ids *out);

/* Cut a piece at the matches of a pattern. `from` to `at` waits for what may join it. */
static void tokenizer_split(Encoder *e, int step, const char *s, size_t n, bool start, Ids *out) {
    const Cut *c = &e->t->model->cut[step];
    bool was = false; /* what waits is a match */
    size_t from = 0;
    for (size_t at = 0, to; at < n; at = to) {
        to = cut_next(e->cut[step], s, n, at);
        e->failed |= cut_failed(e->cut[step]);
        if (e->failed) return;
        const bool match = cut_matched(e->cut[step]) != c->invert;
        bool join = false, drop = c->split_as == SPLIT_REMOVED && was;
        if (c->split_as == SPLIT_CONTIGUOUS) join = match == was;
        if (c->split_as == SPLIT_PREVIOUS) join = match && !was;
        if (c->split_as == SPLIT_NEXT) join = was && !match;
        if (at && !join) {
            if (!drop) tokenizer_pieces(e, step + 1, s + from, at - from, start && from == 0, out);
            from = at;
        }
        was = match;
    }
    if (n && !(c->split_as == SPLIT_REMOVED && was))
        tokenizer_pieces(e, step + 1, s + from, n - from, start && from == 0, out);
}

/* Send one piece through the cuts from number `step` on, then encode it. start: the piece begins the text. */
static void tokenizer_pieces(Encoder *e, int step, const char *s, size_t n, bool start, Ids *out) {
    const TokModel *m = e->t->model;
    if (!n) return;
    if (step == m->ncut) {
        tokenizer_model(e, s, n, out);
        return;
    }
    const Cut *c = &m->cut[step];
    Buf *own = &e->step[step];
    if (c->kind == CUT_PATTERN) {
        tokenizer_split(e, step, s, n, start, out);
        return;
    }
    own->n = 0;
    if (c->kind == CUT_PREFIX_SPACE) {
        if (*s != ' ') buf_put(own, " ", 1);
        buf_put(own, s, n);
        tokenizer_pieces(e, step + 1, own->at, own->n, start, out);
        return;
    }
    bool has = *s == ' ' || (n >= BLANK_BYTES && !memcmp(s, BLANK, BLANK_BYTES));
    if ((c->prepend == PREPEND_ALWAYS || (c->prepend == PREPEND_FIRST && start)) && !has)
        buf_put(own, BLANK, BLANK_BYTES);
    put_blanks(own, s, n);
    if (!c->split) {
        tokenizer_pieces(e, step + 1, own->at, own->n, start, out);
        return;
    }
    for (size_t at = 0, to; at < own->n; at = to) { /* a piece begins at every mark */
        const char *next = at + 1 < own->n ? memmem(own->at + at + 1, own->n - at - 1, BLANK, BLANK_BYTES) : NULL;
        to = next ? (size_t)(next - own->at) : own->n;
        tokenizer_pieces(e, step + 1, own->at + at, to - at, start && at == 0, out);
    }
}

/* Encode a stretch between the added tokens of the raw text. */
static void tokenizer_stretch(Encoder *e, const char *s, size_t n, bool start, unsigned how, Ids *out) {
    const TokModel *m = e->t->model;
    if (!n) return;
    if (m->nnorm && !norm_run(e->norm, s, n, how & ENCODE_JOINED, &s, &n)) e->failed = true;
    if (e->failed) return;
    start = start && !(m->nnorm && norm_moved(e->norm)); /* "first" is about the text as it was */
    size_t at = 0, from, to;
    for (int k; (k = added_next(m, 1, how, s, n, at, &from, &to)) >= 0; at = to) {
        tokenizer_pieces(e, 0, s + at, from - at, start && at == 0, out);
        ids_push(out, m->added[k].id);
    }
    tokenizer_pieces(e, 0, s + at, n - at, start && at == 0, out);
}

bool encoder_run(Encoder *e, const void *text, size_t n, unsigned how, Ids *out, Err *err) {
    const char *s = text;
    const TokModel *m = e->t->model;
    if (n >= TEXT_MAX) return err_input(err, "a text of %zu bytes; expected at most %d", n, TEXT_MAX - 1);
    e->failed = false;
    if (!m) {
        for (size_t i = 0; i < n; i++) ids_push(out, (unsigned char)s[i]);
        return true;
    }
    for (size_t i = 0; how & ENCODE_TEMPLATE && i < m->before.n; i++) ids_push(out, m->before.id[i]);
    size_t at = 0, from, to;
    for (int k; (k = added_next(m, 0, how, s, n, at, &from, &to)) >= 0; at = to) {
        tokenizer_stretch(e, s + at, from - at, at == 0 && !(how & ENCODE_LATER), at ? how & ~ENCODE_JOINED : how, out);
        ids_push(out, m->added[k].id);
    }
    tokenizer_stretch(e, s + at, n - at, at == 0 && !(how & ENCODE_LATER), at ? how & ~ENCODE_JOINED : how, out);
    for (size_t i = 0; how & ENCODE_TEMPLATE && i < m->after.n; i++) ids_push(out, m->after.id[i]);
    return !e->failed || err_input(err, "the tokenizer's pattern exceeds its step limit on this text");
}
bool tokenizer_encode(const Tokenizer *t, const void *text, size_t n, unsigned how, Ids *out, Err *err) {
    Encoder *e = encoder_open(t);
    bool ok = encoder_run(e, text, n, how, out, err);
    encoder_close(e);
    return ok;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

const char *tokenizer_decode(const Tokenizer *t, int id, size_t *n) {
    CHECK(id >= 0 && id < t->vocab, "id %d of %d", id, t->vocab);
    if (t->model) {
        *n = t->model->shown[id].n;
        return t->model->shown[id].at ? t->model->shown[id].at : "";
    }
    *n = id == t->eot ? sizeof EOT_TEXT - 1 : 1;
    return id == t->eot ? EOT_TEXT : (const char *)&t->byte[id];
}
bool tokenizer_special(const Tokenizer *t, int id) { return t->model ? t->model->special[id] : id == t->eot; }
int tokenizer_find(const Tokenizer *t, const char *name) {
    if (!t->model) return strcmp(name, EOT_TEXT) ? -1 : t->eot;
    for (int i = 0; i < t->model->nadded; i++)
        if (t->model->added[i].n == strlen(name) && !memcmp(t->model->added[i].text, name, strlen(name)))
            return t->model->added[i].id;
    return -1;
}
