#include "saved.h"
#include "replay.h"
#include "layers/cache/codec.h"
#include "ops/checksum.h"
#include <errno.h>
#include <limits.h>

enum { WORD = 600 };
static const char FORMAT[] = "kvsmith-session-1";

/* ---- what a session must agree in ----------------------------------------------------------------------------------
 */

static void saved_codec(const Model *m, char out[WORD]) {
    const RowCodec *c = m->opts.codec ? m->opts.codec : &codec_f32;
    char settings[CODEC_TEXT_MAX];
    codec_settings(c, ',', settings);
    const int n = snprintf(out, WORD, "%s%s%s", c->name, settings[0] ? ":" : "", settings);
    if (m->basis) snprintf(out + n, WORD - (size_t)n, ",basis=%016llx", (unsigned long long)m->basis_sum);
}
/* The names in a list of policies, then every setting that is not 0. */
static void saved_policy(const Model *m, char out[WORD]) {
    const PolicyCfg *p = m->opts.policy;
    const Policy *const roles[] = {p ? p->of : NULL, p ? p->layers : NULL, p ? p->lanes : NULL, p ? p->read : NULL};
    int n = 0;
    out[0] = 0;
    for (int i = 0; i < 4; i++) {
        bool met = !roles[i];
        for (int k = 0; k < i; k++) met |= roles[k] == roles[i];
        if (met) continue;
        n += snprintf(out + n, WORD - (size_t)n, "%s%s", n ? "+" : "", roles[i]->name);
        const Key *key;
        for (int k = 0, set = 0; (key = policy_key(roles[i], k)); k++) {
            const char *at = (const char *)p + key->at;
            const double v =
                key->type == KEY_FLOAT ? *(const double *)(const void *)at : *(const int *)(const void *)at;
            if (v != 0) n += snprintf(out + n, WORD - (size_t)n, "%c%s=%.9g", set++ ? ',' : ':', key->name, v);
            CHECK(n < WORD, "policy %s", out);
        }
    }
    if (!n) snprintf(out, WORD, "none");
}
static void hex(char out[17], uint64_t v) { snprintf(out, 17, "%016llx", (unsigned long long)v); }

/* ---- writing --------------------------------------------------------------------------------------------------------
 */

static int width_of(const char *dtype) { return !strcmp(dtype, "U8") ? 1 : !strcmp(dtype, "F64") ? 8 : 4; }
static int saved_order(const void *a, const void *b) {
    const KvPart *x = a, *y = b;
    const int by = width_of(y->dtype) - width_of(x->dtype);
    return by ? by : strcmp(x->name, y->name);
}
static void text_set(json_t *j, const char *key, const char *value) { json_object_set_new(j, key, json_string(value)); }
static void number_set(json_t *j, const char *key, uint64_t v) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)v);
    text_set(j, key, text);
}
/* The header's text with zeros for a checksum, padded to 8 bytes; the caller frees it. */
static char *saved_header(const Model *m, const SavedText *text, uint64_t model, const KvParts *parts, size_t *n) {
    json_t *j = json_object(), *meta = json_object();
    char word[WORD];
    text_set(meta, "format", FORMAT);
    text_set(meta, "checksum", "0000000000000000");
    hex(word, model);
    text_set(meta, "model", word);
    text_set(meta, "dtype", m->opts.bf16_weights ? "bf16" : "f32");
    saved_codec(m, word);
    text_set(meta, "codec", word);
    saved_policy(m, word);
    text_set(meta, "policy", word);
    number_set(meta, "length", (uint64_t)text->length);
    number_set(meta, "draws", text->draws);
    number_set(meta, "seed", text->seed);
    json_object_set_new(j, "__metadata__", meta);
    size_t at = 0;
    for (int i = 0; i < parts->n; i++) {
        const KvPart *x = &parts->part[i];
        json_object_set_new(j, x->name,
                            json_pack("{s:s, s:[I], s:[I,I]}", "dtype", x->dtype, "shape", (json_int_t)x->n,
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + x->bytes)));
        at += x->bytes;
    }
    char *out = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    CHECK(out, "a header");
    const size_t len = strlen(out);
    *n = (len + 7) / 8 * 8;
    out = xrealloc(out, *n + 1, 1);
    memset(out + len, ' ', *n - len);
    out[*n] = 0;
    return out;
}
/* Where the 16 digits of the checksum are. */
static char *checksum_at(char *header) {
    static const char key[] = "\"checksum\":\"";
    char *at = strstr(header, key);
    return at && strlen(at) >= sizeof key + 16 ? at + sizeof key - 1 : NULL;
}
static uint64_t saved_checksum(const char *header, size_t n, const KvParts *parts) {
    uint64_t h = xxh64(header, n);
    for (int i = 0; i < parts->n; i++) h = rng_mix(h, xxh64(parts->part[i].p, parts->part[i].bytes));
    return h;
}

static const char MARK[] = "mark.";
/* What a session in a file keeps of marks: those of the sequence. */
static void saved_marks(const Session *s, int seq, KvParts *parts) {
    for (int i = 0; i < s->marks.n; i++) {
        const StateMark *m = &s->marks.mark[i];
        if (m->seq != seq || m->length >= s->next[seq]) continue;
        KvPart x = {.dtype = REAL == F64 ? "F64" : "F32", .n = s->marks.bytes / sizeof(real), .bytes = s->marks.bytes};
        snprintf(x.name, sizeof x.name, "%s%d", MARK, m->length);
        x.p = memcpy(xcalloc(x.bytes, 1), m->state, x.bytes);
        parts->part = xrealloc(parts->part, (size_t)(parts->cap = parts->n + 1), sizeof(KvPart));
        parts->part[parts->n++] = x;
    }
}
bool saved_write(const Session *s, int seq, const char *path, const SavedText *text, uint64_t model, Err *e) {
    KvParts parts;
    FileOut o;
    CHECK(text->length == session_length(s, seq) && text->length > 0 && text->n >= text->length, "%d of %d tokens, %d",
          text->length, text->n, session_length(s, seq));
    if (!kv_save(&s->cache, seq, &parts, e)) return false;
    saved_marks(s, seq, &parts);
    int *tok = xcalloc((size_t)text->n, sizeof *tok);
    memcpy(tok, text->tok, (size_t)text->n * sizeof *tok);
    parts.part = xrealloc(parts.part, (size_t)(parts.cap = parts.n + 1), sizeof(KvPart));
    parts.part[parts.n++] = (KvPart){"tokens", "I32", (size_t)text->n, (size_t)text->n * sizeof *tok, tok};
    qsort(parts.part, (size_t)parts.n, sizeof(KvPart), saved_order);
    size_t n;
    char *header = saved_header(s->model, text, model, &parts, &n), digits[17];
    hex(digits, saved_checksum(header, n, &parts));
    memcpy(checksum_at(header), digits, 16);
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)n >> 8 * i);
    bool ok = file_begin(&o, path, e) && file_put(&o, size, sizeof size, e) && file_put(&o, header, n, e);
    for (int i = 0; ok && i < parts.n; i++) ok = file_put(&o, parts.part[i].p, parts.part[i].bytes, e);
    ok = ok && file_commit(&o, e);
    free(header);
    kv_parts_free(&parts);
    return ok;
}

/* ---- reading --------------------------------------------------------------------------------------------------------
 */

static const char *meta_text(const Saved *s, const char *key) {
    const json_t *x = json_object_get(s->st.file[0].metadata, key);
    return json_is_string(x) ? json_string_value(x) : "";
}
static bool meta_number(const Saved *s, const char *key, uint64_t most, uint64_t *v, Err *e) {
    const char *text = meta_text(s, key);
    char *end;
    errno = 0;
    *v = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && *v <= most) return true;
    return err_input(e, "%.150s: %s: expected a whole number up to %llu, got '%.40s'", s->st.path, key,
                     (unsigned long long)most, text);
}
static int parts_in_file(const void *a, const void *b) {
    const KvPart *x = a, *y = b;
    return x->p != y->p ? (x->p < y->p ? -1 : 1) : strcmp(x->name, y->name);
}
static bool saved_parts(Saved *s, Err *e) {
    s->parts.part = xcalloc((size_t)s->st.n + 1, sizeof(KvPart));
    for (int i = 0; i < s->st.n; i++) {
        const StEntry *x = &s->st.entry[i];
        KvPart *to = &s->parts.part[s->parts.n++];
        *to = (KvPart){.dtype = x->dtype, .n = x->rank == 1 ? x->shape[0] : 0, .bytes = x->bytes, .p = x->p};
        if (x->rank != 1 || snprintf(to->name, sizeof to->name, "%s", x->name) >= (int)sizeof to->name)
            return err_input(e, "%.150s: %.60s: a session has no such tensor", s->st.path, x->name);
    }
    qsort(s->parts.part, (size_t)s->parts.n, sizeof(KvPart), parts_in_file);
    return true;
}
static bool saved_sound(const Saved *s, Err *e) {
    const FileMap *m = &s->st.file[0].map;
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | m->p[i]; /* st_open has checked it */
    char *header = xcalloc((size_t)n + 1, 1), digits[17] = "", *at;
    memcpy(header, m->p + 8, (size_t)n);
    bool ok = (at = checksum_at(header)) != NULL;
    if (ok) {
        char told[17] = "";
        memcpy(told, at, 16);
        memset(at, '0', 16);
        hex(digits, saved_checksum(header, (size_t)n, &s->parts));
        ok = !strcmp(told, digits);
    }
    free(header);
    return ok || err_input(e, "%.200s: the file is damaged: its checksum is not that of its content", s->st.path);
}
static bool saved_tokens(Saved *s, Err *e) {
    const StEntry *x = st_find(&s->st, "tokens");
    uint64_t length;
    if (!x || strcmp(x->dtype, "I32") || x->rank != 1 || !x->shape[0] || x->shape[0] > 1 << 28)
        return err_input(e, "%.200s: tokens: expected a list of I32", s->st.path);
    s->text.n = (int)x->shape[0];
    s->tok = xcalloc((size_t)s->text.n, sizeof *s->tok);
    memcpy(s->tok, x->p, x->bytes);
    s->text.tok = s->tok;
    if (!meta_number(s, "length", (uint64_t)s->text.n, &length, e) ||
        !meta_number(s, "draws", UINT64_MAX, &s->text.draws, e) ||
        !meta_number(s, "seed", UINT64_MAX, &s->text.seed, e))
        return false;
    s->text.length = (int)length;
    return length > 0 || err_input(e, "%.200s: length: expected 1 or more", s->st.path);
}
bool saved_open(Saved *s, const char *path, Err *e) {
    *s = (Saved){.tok = NULL};
    if (!st_open(&s->st, path, e)) return false;
    bool ok = !strcmp(meta_text(s, "format"), FORMAT) ||
              err_input(e, "%.200s: not a session that --save-session wrote (format '%.40s', expected %s)", path,
                        meta_text(s, "format"), FORMAT);
    ok = ok && saved_parts(s, e) && saved_sound(s, e) && saved_tokens(s, e);
    if (!ok) saved_close(s);
    return ok;
}
void saved_close(Saved *s) {
    free(s->parts.part); /* its bytes are the file's */
    free(s->tok);
    st_close(&s->st);
    *s = (Saved){.tok = NULL};
}

static bool saved_agrees(const Saved *s, const char *what, const char *have, Err *e) {
    const char *is = meta_text(s, what);
    return !strcmp(is, have) ||
           err_input(e, "%.100s: saved with %s %.80s, but this session has %.80s", s->st.path, what, is, have);
}
/* The length of a mark whose part this is, 0: it is none, below 0: it is no mark of this session. */
static int mark_length(const Saved *s, const KvPart *x, size_t bytes) {
    const size_t n = sizeof MARK - 1;
    char *end;
    if (strncmp(x->name, MARK, n)) return 0;
    errno = 0;
    const long length = strtol(x->name + n, &end, 10);
    const bool sound = x->name[n] >= '1' && x->name[n] <= '9' && !*end && !errno && length < s->text.length;
    return sound && bytes && x->bytes == bytes && !strcmp(x->dtype, REAL == F64 ? "F64" : "F32") ? (int)length : -1;
}
static bool marks_sound(const Saved *s, const Session *to, Err *e) {
    const size_t bytes = kv_mark_bytes(&to->cache);
    for (int i = 0; i < s->parts.n; i++)
        if (mark_length(s, &s->parts.part[i], bytes) < 0)
            return err_input(
                e, "%.140s: %.40s: expected the state of a length below %d, %zu elements of %s, got %zu of %s",
                s->st.path, s->parts.part[i].name, s->text.length, bytes / sizeof(real), REAL == F64 ? "F64" : "F32",
                s->parts.part[i].n, s->parts.part[i].dtype);
    return true;
}
/* From the oldest on. */
static void marks_restore(const Saved *s, Session *to, int seq) {
    for (int last = 0, next; last < INT_MAX; last = next) {
        const KvPart *found = NULL;
        next = INT_MAX;
        for (int i = 0; i < s->parts.n; i++) {
            const int length = mark_length(s, &s->parts.part[i], kv_mark_bytes(&to->cache));
            if (length > last && length < next) next = length, found = &s->parts.part[i];
        }
        char *room = found ? marks_put(&to->marks, seq, next) : NULL;
        if (room) memcpy(room, found->p, found->bytes);
    }
}
bool saved_restore(const Saved *s, Session *to, int seq, uint64_t model, Err *e) {
    const Model *m = to->model;
    char word[WORD];
    Err why = {0};
    hex(word, model);
    if (!saved_agrees(s, "model", word, e) || !saved_agrees(s, "dtype", m->opts.bf16_weights ? "bf16" : "f32", e))
        return false;
    saved_codec(m, word);
    if (!saved_agrees(s, "codec", word, e)) return false;
    saved_policy(m, word);
    if (!saved_agrees(s, "policy", word, e)) return false;
    for (int i = 0; i < s->text.n; i++)
        if (s->tok[i] < 0 || s->tok[i] >= m->cfg.vocab)
            return err_input(e, "%.200s: token %d is %d, and the vocabulary has %d", s->st.path, i, s->tok[i],
                             m->cfg.vocab);
    if (s->text.length > to->opts.max_tokens)
        return err_input(e, "%.200s: %d tokens, but the context has %d; give a larger --context", s->st.path,
                         s->text.length, to->opts.max_tokens);
    if (!marks_sound(s, to, e)) return false;
    if (!kv_restore(&to->cache, seq, s->text.length, &s->parts, &why))
        return why.status == EXIT_INPUT ? err_input(e, "%.140s: %.150s", s->st.path, why.msg)
                                        : err_runtime(e, "%s", why.msg);
    to->next[seq] = s->text.length;
    marks_drop(&to->marks, seq, 0);
    marks_restore(s, to, seq);
    if (to->fed) memcpy(session_fed(to, seq), s->tok, (size_t)s->text.length * sizeof(int));
    return true;
}
