/* text.c: files to token streams. */
#include "text.h"
#include "../ops/file.h"

typedef struct {
    char *at;
    size_t n;
} Bytes;
/* A stream while it grows. */
typedef struct {
    uint16_t *id;
    size_t n, documents, bytes;
} Grow;

static bool unescape(const char *s, Bytes *out, Err *e) {
    static const char from[] = "nrtf\\", to[] = "\n\r\t\f\\";
    const char *all = s;
    *out = (Bytes){xcalloc(strlen(s) + 1, 1), 0};
    for (; *s; s++) {
        const char *k = NULL;
        if (*s == '\\' && (!s[1] || !(k = strchr(from, *++s)))) {
            free(out->at);
            return err_input(e, "data.separator: '%s' has a backslash that is not one of \\n \\r \\t \\f \\\\", all);
        }
        out->at[out->n++] = k ? to[k - from] : *s;
    }
    return true;
}

/* Map a text, which must not be empty. */
static bool text_map(FileMap *m, const char *path, Err *e) {
    if (!file_map(m, path, e)) return false;
    return m->n > 0 || err_input(e, "text %s: is empty, expected text to train or validate on", path);
}
static bool file_size(const char *path, size_t *size, Err *e) {
    FileMap m;
    if (!text_map(&m, path, e)) return false;
    *size = m.n;
    file_unmap(&m);
    return true;
}

static void add_document(Grow *g, const Tokenizer *t, const char *s, size_t n) {
    if (!n) return;
    g->id[g->n++] = (uint16_t)t->eot;
    g->documents++;
    g->bytes += n;
    for (size_t i = 0; i < n; i++) g->id[g->n++] = (unsigned char)s[i];
}

/* The file had `size` bytes when room was made for it. */
static bool add_file(Grow *g, const Tokenizer *t, const char *path, size_t size, Bytes sep, Err *e) {
    FileMap text;
    if (!text_map(&text, path, e)) return false;
    size_t before = g->documents;
    bool ok =
        text.n == size || err_input(e, "text %s: changed while it was read: %zu bytes, then %zu", path, size, text.n);
    for (const char *s = (const char *)text.p, *end = s + text.n; ok && s < end;) {
        const char *cut = sep.n ? memmem(s, (size_t)(end - s), sep.at, sep.n) : NULL;
        add_document(g, t, s, (size_t)((cut ? cut : end) - s));
        s = cut ? cut + sep.n : end;
    }
    file_unmap(&text);
    if (ok && g->documents == before) ok = err_input(e, "text %s: holds only separators, expected text", path);
    return ok;
}

/* Every document costs one EOT more than its bytes and, after the first of its file, a separator less; so `size` bytes
 * make at most size + 1 ids. */
static bool add_files(Grow *g, const Tokenizer *t, int n, const char *const *path, const size_t *size, Bytes sep,
                      Err *e) {
    for (int i = 0; i < n; i++)
        if (!add_file(g, t, path[i], size[i], sep, e)) return false;
    g->id[g->n++] = (uint16_t)t->eot;
    return true;
}

/* Take (or measure) room for the ids of both parts. */
static bool take_room(Arena *a, const StreamSpec *spec, const size_t *size, Grow *train, Grow *val, Err *e) {
    bool own = spec->val && *spec->val;
    size_t room = 1, vroom = own ? size[spec->ntrain] + 2 : 0;
    for (int i = 0; i < spec->ntrain; i++) room += size[i] + 1;
    if (room > SIZE_MAX / 8 || vroom > SIZE_MAX / 8) return err_world(e, "out of memory: %zu bytes of text", room);
    train->id = arena_take(a, room * sizeof *train->id, "train");
    if (own) val->id = arena_take(a, vroom * sizeof *val->id, "val");
    return true;
}

static bool fill(Stream *s, const StreamSpec *spec, const Tokenizer *t, const size_t *size, Bytes sep, Err *e) {
    bool own = spec->val && *spec->val;
    Grow train = {0}, val = {0};
    Arena dry = {0};
    if (!take_room(&dry, spec, size, &train, &val, e) || !arena_open(&s->mem, "tokens", dry.peak, false, e) ||
        !take_room(&s->mem, spec, size, &train, &val, e))
        return false;

    if (!add_files(&train, t, spec->ntrain, spec->train, size, sep, e)) return false;
    if (own && !add_files(&val, t, 1, &spec->val, size + spec->ntrain, sep, e)) return false;
    s->documents = train.documents + val.documents;
    s->bytes = train.bytes + val.bytes;
    s->train = (Tokens){train.id, train.n};
    s->val = (Tokens){val.id, val.n};
    if (!own && spec->val_fraction > 0) {
        size_t text = train.n - train.documents - 1, keep = (size_t)((double)text * (1 - spec->val_fraction)), cut = 0;
        for (size_t seen = 0; seen < keep; cut++) seen += train.id[cut] != t->eot;
        s->train.n = cut;
        s->val = (Tokens){train.id + cut, train.n - cut};
        if (s->val.n < 2)
            return err_input(
                e,
                "data.val_fraction: %g of %zu tokens leaves %zu to validate on, expected at least 2; give 0 for none",
                spec->val_fraction, train.n, s->val.n);
    }
    if (s->train.n < (size_t)spec->seq_len + 1)
        return err_input(e,
                         "data.train: %zu tokens to train on (%zu to validate on), expected at least data.seq_len + 1 "
                         "= %zu; give more text or a smaller data.seq_len",
                         s->train.n, s->val.n, (size_t)spec->seq_len + 1);
    s->hash = 0xCBF29CE484222325u; /* FNV-1a over ids */
    for (size_t i = 0; i < s->train.n; i++) s->hash = (s->hash ^ s->train.id[i]) * 0x100000001B3u;
    return true;
}

/* Sizes of all files, the validation file's last. malloc'ed; NULL on failure. */
static size_t *file_sizes(const StreamSpec *spec, Err *e) {
    size_t *size = xcalloc((size_t)spec->ntrain + 1, sizeof *size);
    bool ok = true;
    for (int i = 0; ok && i < spec->ntrain; i++) ok = file_size(spec->train[i], &size[i], e);
    if (ok && spec->val && *spec->val) ok = file_size(spec->val, &size[spec->ntrain], e);
    if (ok) return size;
    free(size);
    return NULL;
}

bool stream_bytes(const StreamSpec *spec, size_t *bytes, Err *e) {
    Grow train = {0}, val = {0};
    Arena dry = {0};
    Bytes sep;
    if (!unescape(spec->separator ? spec->separator : "", &sep, e)) return false;
    free(sep.at);
    size_t *size = file_sizes(spec, e);
    bool ok = size && take_room(&dry, spec, size, &train, &val, e);
    free(size);
    *bytes = dry.peak;
    return ok;
}

bool stream_open(Stream *s, const StreamSpec *spec, const Tokenizer *t, Err *e) {
    *s = (Stream){0};
    CHECK(spec->ntrain >= 1 && spec->seq_len >= 1, "%d files, seq_len %d", spec->ntrain, spec->seq_len);
    CHECK(spec->val_fraction >= 0 && spec->val_fraction < 1, "val_fraction %g", spec->val_fraction);
    if (t->model)
        return err_input(e,
                         "text %.150s: texts are read by bytes alone so far, and the model has another tokenizer; "
                         "kvsmith logits takes ids",
                         spec->train[0]);
    CHECK(t->vocab <= UINT16_MAX + 1, "%d ids in 16 bits", t->vocab);
    Bytes sep;
    if (!unescape(spec->separator ? spec->separator : "", &sep, e)) return false;
    size_t *size = file_sizes(spec, e);
    bool ok = size && fill(s, spec, t, size, sep, e);
    free(size);
    free(sep.at);
    if (!ok) stream_close(s);
    return ok;
}

void stream_close(Stream *s) {
    arena_close(&s->mem);
    *s = (Stream){0};
}
