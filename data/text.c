/* text.c: files to token streams. */
#include "text.h"
#include "../ops/file.h"
#include "pool.h"

bool text_unescape(const char *s, const char *key, char **out, size_t *n, Err *e) {
    static const char from[] = "nrtf\\", to[] = "\n\r\t\f\\";
    const char *all = s;
    *out = xcalloc(strlen(s) + 1, 1), *n = 0;
    for (; *s; s++) {
        const char *k = NULL;
        if (*s == '\\' && (!s[1] || !(k = strchr(from, *++s)))) {
            free(*out);
            *out = NULL;
            return err_input(e, "%s: '%s' has a backslash that is not one of \\n \\r \\t \\f \\\\", key, all);
        }
        (*out)[(*n)++] = k ? to[k - from] : *s;
    }
    return true;
}

/* ---- the plan: which files make which part --------------------------------------------------------------------------
 */

typedef struct {
    const char *path;
    SetKind kind;
    size_t size; /* of a text, bytes */
    int part;
} Source;
/* A part while it grows: ids of text; a set has none. */
typedef struct {
    void *id;
    size_t room, n, documents, bytes;
    const char *name;
} Grow;
typedef struct {
    const StreamSpec *spec;
    const Tokenizer *t;
    char *sep;
    size_t nsep, total; /* total: bytes of text */
    Source *file;       /* (nfile): ntrain, then val */
    int nfile, nparts;  /* nparts: of training; val is one more */
    bool own;           /* val is a file */
    IdType type;
    Grow grow[PARTS_MAX + 1];
} Plan;

/* Map a text, which must not be empty. */
static bool text_map(FileMap *m, const char *path, Err *e) {
    if (!file_map(m, path, e)) return false;
    return m->n > 0 || err_input(e, "text %s: is empty, expected text to train or validate on", path);
}

static bool plan_file(Plan *p, int i, const char *path, Err *e) {
    Source *f = &p->file[i];
    FileMap m;
    f->path = path;
    if (!set_kind(path, &f->kind, e)) return false;
    if (f->kind == SET_TEXT) {
        if (!text_map(&m, path, e)) return false;
        f->size = m.n;
        p->total += m.n;
        file_unmap(&m);
    }
    bool joins = i && f->kind == SET_TEXT && f[-1].kind == SET_TEXT && !p->spec->weight && i < p->spec->ntrain;
    f->part = i == p->spec->ntrain ? p->nparts : joins ? f[-1].part : p->nparts++;
    p->grow[f->part].name = path;
    return true;
}

/* A document costs one EOT more than its ids and, after the first of its file, a separator less; so `size` bytes make
 * at most `most` size + most + 1 ids, where `most` is of one byte. */
static bool plan_room(Plan *p, Err *e) {
    size_t most = pool_most_ids(p->t), limit = SIZE_MAX / 64;
    p->type = p->t->vocab <= UINT16_MAX + 1 ? ID_16 : ID_32;
    for (int i = 0; i < p->nfile; i++) {
        Grow *g = &p->grow[p->file[i].part];
        if (p->file[i].kind != SET_TEXT) continue;
        if (p->file[i].size > limit || g->room > limit)
            return err_world(e, "out of memory: %zu bytes of text", p->file[i].size);
        if (!g->room) g->room = 1;
        g->room += most * p->file[i].size + most;
    }
    return true;
}

static void plan_close(Plan *p) {
    free(p->sep);
    free(p->file);
}
static bool plan_open(Plan *p, const StreamSpec *spec, const Tokenizer *t, Err *e) {
    *p = (Plan){.spec = spec, .t = t, .own = spec->val && *spec->val};
    CHECK(spec->ntrain >= 1 && spec->ntrain <= PARTS_MAX, "%d files", spec->ntrain);
    if (!text_unescape(spec->separator ? spec->separator : "", "data.separator", &p->sep, &p->nsep, e)) return false;
    p->nfile = spec->ntrain + p->own;
    p->file = xcalloc((size_t)p->nfile, sizeof *p->file);
    bool ok = true;
    for (int i = 0; ok && i < p->nfile; i++) ok = plan_file(p, i, i < spec->ntrain ? spec->train[i] : spec->val, e);
    ok = ok && plan_room(p, e);
    if (!ok) plan_close(p);
    return ok;
}

/* Take (or measure) room for the ids of all texts, and for the order of a blend. */
static void take_room(Arena *a, Plan *p, Blend *b) {
    for (int i = 0; i <= p->nparts; i++)
        if (p->grow[i].room) p->grow[i].id = arena_take(a, p->grow[i].room * id_bytes(p->type), "tokens");
    if (b->D) blend_take(b, a);
}

/* ---- text -----------------------------------------------------------------------------------------------------------
 */

static void put(Grow *g, IdType type, size_t at, int id) {
    if (type == ID_16)
        ((uint16_t *)g->id)[at] = (uint16_t)id;
    else
        ((uint32_t *)g->id)[at] = (uint32_t)id;
}

typedef struct {
    Plan *p;
    Grow *g;
} Fill;
static bool take_ids(void *ctx, const Ids *ids, bool begin, bool end, size_t bytes, Err *e) {
    Fill *f = ctx;
    Grow *g = f->g;
    (void)end;
    if (ids->n + begin + 1 > g->room - g->n) /* one is kept for the last EOT */
        return err_input(e, "makes more ids than %zu for each byte, which is the most that there is room for",
                         pool_most_ids(f->p->t));
    if (begin) {
        put(g, f->p->type, g->n++, f->p->t->eot);
        g->documents++;
    }
    for (size_t i = 0; i < ids->n; i++) put(g, f->p->type, g->n++, ids->id[i]);
    g->bytes += bytes;
    return true;
}

static bool add_document(Pool *pool, const Plan *p, size_t *done, const char *s, size_t n, Err *e) {
    enum { SLICE = 1 << 24 }; /* between two signs of progress */
    do {
        size_t k = zmin(n, SLICE);
        if (!pool_text(pool, s, k, k == n, e)) return false;
        s += k, n -= k, *done += k;
        if (p->spec->progress) p->spec->progress(p->spec->progress_ctx, *done, p->total);
    } while (n);
    return true;
}

/* Of a pool's error, which knows no file. */
static bool in_file(const Source *f, const Err *why, Err *e) {
    return err_input(e, "text %.150s: %s", f->path, why->msg);
}

/* The file had `size` bytes when room was made for it. */
static bool add_file(Pool *pool, const Plan *p, const Source *f, Grow *g, size_t *done, Err *e) {
    FileMap text;
    Err why = {0};
    if (!text_map(&text, f->path, e)) return false;
    size_t before = g->documents;
    bool ok = text.n == f->size ||
              err_input(e, "text %s: changed while it was read: %zu bytes, then %zu", f->path, f->size, text.n);
    for (const char *s = (const char *)text.p, *end = s + text.n; ok && s < end;) {
        const char *cut = p->nsep ? memmem(s, (size_t)(end - s), p->sep, p->nsep) : NULL;
        ok = add_document(pool, p, done, s, (size_t)((cut ? cut : end) - s), &why) || in_file(f, &why, e);
        *done += cut ? p->nsep : 0;
        s = cut ? cut + p->nsep : end;
    }
    ok = ok && (pool_flush(pool, &why) || in_file(f, &why, e));
    file_unmap(&text);
    if (ok && g->documents == before) ok = err_input(e, "text %s: holds only separators, expected text", f->path);
    return ok;
}

static bool fill_texts(Plan *p, Err *e) {
    size_t done = 0;
    bool ok = true;
    if (p->t->eot < 0 && p->total)
        return err_input(e,
                         "text %.150s: the tokenizer names no end-of-text token to put between documents; data.eot can "
                         "name one",
                         p->file[0].path);
    Fill f = {.p = p};
    Pool *pool = pool_open(&(PoolCfg){p->t, imax(p->spec->threads, 1), (size_t)1 << 30, take_ids, &f});
    for (int i = 0; ok && i < p->nfile; i++) {
        if (p->file[i].kind != SET_TEXT) continue;
        f.g = &p->grow[p->file[i].part];
        ok = add_file(pool, p, &p->file[i], f.g, &done, e);
    }
    for (int i = 0; ok && i <= p->nparts; i++)
        if (p->grow[i].id) put(&p->grow[i], p->type, p->grow[i].n++, p->t->eot);
    pool_close(pool);
    return ok;
}

/* ---- parts ----------------------------------------------------------------------------------------------------------
 */

static bool sets_open(Stream *s, const Plan *p, Err *e) {
    s->set = xcalloc((size_t)p->nfile, sizeof *s->set);
    for (int i = 0; i < p->nfile; i++) {
        if (p->file[i].kind == SET_TEXT) continue;
        if (!set_open(&s->set[s->nset], p->file[i].path, p->file[i].kind, e)) return false;
        s->nset++;
    }
    return true;
}

/* All of part i of the plan. */
static Tokens part_of(const Stream *s, const Plan *p, int i) {
    const Grow *g = &p->grow[i];
    int set = 0;
    if (g->id) return (Tokens){.id = g->id, .n = g->n, .type = p->type, .name = g->name};
    for (int k = 0; p->file[k].part != i; k++) set += p->file[k].kind != SET_TEXT;
    return s->set[set].all;
}

/* How many tokens of a part training keeps. */
static size_t keep(const Tokens *t, const Grow *g, int eot, double val_fraction) {
    if (!g->id) return (size_t)((double)t->n * (1 - val_fraction));
    size_t text = 0, cut = 0; /* counted: data.eot may be an id that text has, too */
    for (size_t i = 0; i < t->n; i++) text += token_at(t, i) != eot;
    size_t most = (size_t)((double)text * (1 - val_fraction));
    for (size_t seen = 0; seen < most; cut++) seen += token_at(t, cut) != eot;
    return cut;
}

static bool cut_parts(Stream *s, const Plan *p, Err *e) {
    const StreamSpec *spec = p->spec;
    size_t kept = 0, all = 0;
    for (int i = 0; i < p->nparts; i++) {
        Tokens t = part_of(s, p, i);
        size_t cut = t.n;
        all += t.n;
        if (!p->own && spec->val_fraction > 0) {
            cut = keep(&t, &p->grow[i], p->t->eot, spec->val_fraction);
            s->tail[s->val.n++] = tokens_slice(t, cut, t.n - cut);
            kept += t.n - cut;
            if (t.n - cut < 2)
                return err_input(e,
                                 "data.val_fraction: %g of %zu tokens leaves %zu to validate on, expected at least 2; "
                                 "give 0 for none",
                                 spec->val_fraction, t.n, t.n - cut);
        }
        s->part[s->train.n++] = tokens_slice(t, 0, cut);
        s->tokens += cut;
    }
    if (p->own) {
        s->tail[s->val.n++] = part_of(s, p, p->nparts);
        kept = s->tail[0].n;
        if (kept < 2) return err_input(e, "data.val: %zu tokens, expected at least 2", kept);
    }
    for (int i = 0; i < s->train.n; i++) {
        char which[200] = "";
        if (s->train.n > 1) snprintf(which, sizeof which, " in %.150s", s->part[i].name);
        if (s->part[i].n < (size_t)spec->seq_len + 1)
            return err_input(
                e,
                "data.train: %zu tokens to train on (%zu to validate on)%s, expected at least data.seq_len "
                "+ 1 = %zu; give more text or a smaller data.seq_len",
                s->part[i].n, kept, which, (size_t)spec->seq_len + 1);
    }
    return true;
}

/* FNV-1a over ids; a set has a hash of its own, and where it is cut belongs to it. */
static uint64_t hash_part(const Stream *s, const Plan *p, int i) {
    const Tokens *t = &s->part[i];
    uint64_t h = 0xCBF29CE484222325u;
    for (int k = 0; k < s->nset; k++)
        if (s->set[k].all.id == t->id) return rng_mix(s->set[k].hash, t->n);
    if (p->type == ID_16)
        for (size_t k = 0; k < t->n; k++) h = (h ^ ((const uint16_t *)t->id)[k]) * 0x100000001B3u;
    else
        for (size_t k = 0; k < t->n; k++) h = (h ^ ((const uint32_t *)t->id)[k]) * 0x100000001B3u;
    return h;
}

static bool fill(Stream *s, Plan *p, Err *e) {
    Arena dry = {0};
    if (p->spec->weight && !blend_weights(&s->blend, p->spec->ntrain, p->spec->weight, e)) return false;
    take_room(&dry, p, &s->blend);
    if (!sets_open(s, p, e) || !arena_open(&s->mem, "tokens", dry.peak, false, e)) return false;
    take_room(&s->mem, p, &s->blend);
    if (s->blend.D) blend_fill(&s->blend);
    if (!fill_texts(p, e)) return false;
    for (int i = 0; i <= p->nparts; i++) s->documents += p->grow[i].documents, s->bytes += p->grow[i].bytes;
    int vocab = p->spec->vocab ? p->spec->vocab : p->t->vocab;
    s->train = (Mix){.part = s->part, .blend = s->blend.D ? &s->blend : NULL, .vocab = vocab};
    s->val = (Mix){.part = s->tail, .vocab = vocab};
    if (!cut_parts(s, p, e)) return false;
    for (int i = 0; i < s->train.n; i++) s->hash = i ? rng_mix(s->hash, hash_part(s, p, i)) : hash_part(s, p, i);
    return true;
}

bool stream_bytes(const StreamSpec *spec, const Tokenizer *t, size_t *bytes, Err *e) {
    Plan p;
    Arena dry = {0};
    Blend b = {0};
    if (!plan_open(&p, spec, t, e)) return false;
    bool ok = !spec->weight || blend_weights(&b, spec->ntrain, spec->weight, e);
    if (ok) take_room(&dry, &p, &b);
    *bytes = dry.peak;
    plan_close(&p);
    return ok;
}

bool stream_open(Stream *s, const StreamSpec *spec, const Tokenizer *t, Err *e) {
    Plan p;
    *s = (Stream){0};
    CHECK(spec->seq_len >= 1, "seq_len %d", spec->seq_len);
    CHECK(spec->val_fraction >= 0 && spec->val_fraction < 1, "val_fraction %g", spec->val_fraction);
    if (!plan_open(&p, spec, t, e)) return false;
    bool ok = fill(s, &p, e);
    plan_close(&p);
    if (!ok) stream_close(s);
    return ok;
}

bool stream_unchanged(const Stream *s, const char **replaced, Err *e) {
    const char *now = NULL;
    *replaced = NULL;
    for (int i = 0; i < s->nset; i++) {
        if (!set_unchanged(&s->set[i], &now, e)) return false;
        if (now) *replaced = now;
    }
    return true;
}

void stream_close(Stream *s) {
    for (int i = 0; i < s->nset; i++) set_close(&s->set[i]);
    free(s->set);
    arena_close(&s->mem);
    *s = (Stream){0};
}
