/* normal.c: each step reads one buffer and appends to another. */
#include "normal.h"
#include "chars.h"

struct NormWork {
    const Norm *norm;
    int n;
    CutState *cut[NORMS_MAX];
    Buf side[2];
    bool moved;
};

void norm_free(Norm *m) {
    free(m->text);
    free(m->find);
    cutter_close(m->cutter);
    charsmap_close(m->map);
    *m = (Norm){0};
}
NormWork *norm_work(const Norm *norm, int n) {
    NormWork *w = xcalloc(1, sizeof *w);
    CHECK(n <= NORMS_MAX, "%d steps", n);
    w->norm = norm, w->n = n;
    for (int i = 0; i < n; i++)
        if (norm[i].cutter) w->cut[i] = cut_state(norm[i].cutter);
    return w;
}
void norm_work_free(NormWork *w) {
    if (!w) return;
    for (int i = 0; i < w->n; i++) cut_state_free(w->cut[i]);
    buf_free(&w->side[0]), buf_free(&w->side[1]);
    free(w);
}

static bool norm_ascii(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= 0x80) return false;
    return true;
}
static void norm_form(Buf *out, const char *s, size_t n, int form) {
    if (norm_ascii(s, n)) {
        buf_put(out, s, n);
        return;
    }
    for (size_t at = 0; at < n;) {
        size_t k = utf8_bytes(s + at, n - at);
        utf8proc_uint8_t *made = NULL;
        utf8proc_ssize_t len = k ? utf8proc_map((const utf8proc_uint8_t *)s + at, (utf8proc_ssize_t)k, &made,
                                                (utf8proc_option_t)(UTF8PROC_STABLE | form))
                                 : 0;
        CHECK(len >= 0, "normalisation of valid text failed: %s", utf8proc_errmsg(len));
        buf_put(out, (char *)made, (size_t)len);
        free(made);
        at += k;
        if (at < n) buf_put(out, s + at++, 1);
    }
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

/* What a step makes of one character: KEEP, DROP, or the character to put. */
enum { DROP = -1, KEEP = -2 };
static int norm_lower(int c) {
    int to = utf8proc_tolower(c);
    return to == c ? KEEP : to;
}
static bool norm_mark(int c, bool any) {
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_MN || (any && (k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME));
}
static int norm_clean(int c) {
    if (c == '\t' || c == '\n' || c == '\r') return ' ';
    if (c == 0 || c == 0xFFFD) return DROP;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO: return DROP;
    default: return char_white(c) && c != ' ' ? ' ' : KEEP;
    }
}
static int norm_nmt(int c) {
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return DROP;
    if (c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
        c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD)
        return ' ';
    return KEEP;
}
static bool norm_chinese(int c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}
static void norm_chars(NormKind kind, Buf *out, const char *s, size_t n, bool *moved) {
    size_t k;
    for (size_t i = 0; i < n; i += k) {
        const int c = char_at(s, n, i, &k);
        int to = KEEP;
        bool apart = false;
        if (c >= 0) switch (kind) {
            case NORM_LOWER: to = norm_lower(c); break;
            case NORM_ACCENTS: to = norm_mark(c, true) ? DROP : KEEP; break;
            case NORM_BERT_ACCENTS: to = norm_mark(c, false) ? DROP : KEEP; break;
            case NORM_CLEAN: to = norm_clean(c); break;
            case NORM_NMT: to = norm_nmt(c); break;
            default: apart = norm_chinese(c);
            }
        if (apart) buf_put(out, " ", 1);
        if (to == KEEP)
            buf_put(out, s + i, k);
        else if (to != DROP)
            char_put(out, to);
        else
            *moved |= !out->n;
        if (apart) buf_put(out, " ", 1);
        if (kind == NORM_LOWER && c == 0x130) buf_put(out, "\xCC\x87", 2); /* the only one that becomes two */
    }
}

/* ---- the other steps --------------------------------------------------------------------------------------------- */

static void norm_strip(const Norm *m, Buf *out, const char *s, size_t n, bool *moved) {
    size_t from = 0, k;
    while (m->left && from < n && char_white(char_at(s, n, from, &k))) from += k;
    for (size_t at; m->right && n > from && char_white(char_at(s, n, at = char_back(s, n), &k));) n = at;
    buf_put(out, s + from, n - from);
    *moved |= from > 0;
}

/* The text begins with what the step replaces. */
static bool norm_begins(const Norm *m, CutState *cut, const char *s, size_t n) {
    if (m->find) return n >= m->nfind && !memcmp(s, m->find, m->nfind);
    cut_next(cut, s, n, 0);
    return cut_matched(cut);
}
static bool norm_replace(const Norm *m, CutState *cut, Buf *out, const char *s, size_t n) {
    if (m->find) {
        for (const char *end = s + n, *hit; s < end; s = hit ? hit + m->nfind : end) {
            hit = memmem(s, (size_t)(end - s), m->find, m->nfind);
            buf_put(out, s, (size_t)((hit ? hit : end) - s));
            if (hit) buf_put(out, m->text, m->ntext);
        }
        return true;
    }
    for (size_t at = 0, to; at < n; at = to) {
        to = cut_next(cut, s, n, at);
        if (cut_failed(cut)) return false;
        if (cut_matched(cut))
            buf_put(out, m->text, m->ntext);
        else
            buf_put(out, s + at, to - at);
    }
    return true;
}

static bool norm_mapped(const Charsmap *map, Buf *out, const char *s, size_t n) {
    size_t len;
    const char *to = charsmap_find(map, s, n, &len);
    if (to) buf_put(out, to, len);
    return to;
}
/* Clusters of less than 6 bytes are looked up as a whole, then each character alone. */
static void norm_charsmap(const Charsmap *map, Buf *out, const char *s, size_t n, bool *moved) {
    for (size_t at = 0, to, k, next; at < n; at = to) {
        utf8proc_int32_t state = 0;
        int c = char_at(s, n, at, &k);
        *moved |= at && !out->n;
        to = at + k;
        while (c >= 0 && to < n) {
            int after = char_at(s, n, to, &next);
            if (after < 0 || utf8proc_grapheme_break_stateful(c, after, &state)) break;
            c = after, to += next;
        }
        if (c < 0) {
            buf_put(out, s + at, k);
            continue;
        }
        if (to - at < 6 && norm_mapped(map, out, s + at, to - at)) continue;
        for (size_t i = at; i < to; i += k) {
            char_at(s, to, i, &k);
            if (!norm_mapped(map, out, s + i, k)) buf_put(out, s + i, k);
        }
    }
}

static bool norm_step(NormWork *w, int i, Buf *out, const char *s, size_t n, bool joined) {
    const Norm *m = &w->norm[i];
    Buf form = {0};
    switch (m->kind) {
    case NORM_NFC: norm_form(out, s, n, UTF8PROC_COMPOSE); return true;
    case NORM_NFD: norm_form(out, s, n, UTF8PROC_DECOMPOSE); return true;
    case NORM_NFKC: norm_form(out, s, n, UTF8PROC_COMPOSE | UTF8PROC_COMPAT); return true;
    case NORM_NFKD: norm_form(out, s, n, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT); return true;
    case NORM_STRIP: norm_strip(m, out, s, n, &w->moved); return true;
    case NORM_PREPEND:
        if (n && !joined) buf_put(out, m->text, m->ntext);
        buf_put(out, s, n);
        return true;
    case NORM_REPLACE:
        w->moved |= n && !m->ntext && norm_begins(m, w->cut[i], s, n);
        return norm_replace(m, w->cut[i], out, s, n);
    case NORM_CHARSMAP: norm_charsmap(m->map, out, s, n, &w->moved); return true;
    case NORM_BERT_ACCENTS:
        norm_form(&form, s, n, UTF8PROC_DECOMPOSE);
        norm_chars(m->kind, out, form.n ? form.at : "", form.n, &w->moved);
        buf_free(&form);
        return true;
    default: norm_chars(m->kind, out, s, n, &w->moved); return true;
    }
}
bool norm_moved(const NormWork *w) { return w->moved; }
bool norm_run(NormWork *w, const char *s, size_t n, bool joined, const char **out, size_t *nout) {
    w->moved = false;
    for (int i = 0; i < w->n; i++) {
        Buf *to = &w->side[i % 2];
        to->n = 0;
        if (!norm_step(w, i, to, s, n, joined)) return false;
        s = to->n ? to->at : "", n = to->n;
    }
    *out = s, *nout = n;
    return true;
}
