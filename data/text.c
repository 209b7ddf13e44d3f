/* text.c: opens all files of a run, decides which files make which part, and tokenizes text into streams. */
#include "text.h"
#include "ops/file.h"
#include "pool.h"
#include "source.h"

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

/* ---- the plan: which files make which part ----------------------------------------------------------------------- */

typedef struct {
    const char *path;
    SetKind kind;
    size_t size; /* bytes of a text */
    int part;
} Source;
/* A part while it grows: the ids of its text; a set has none. */
typedef struct {
    void *id;
    size_t room, n, documents, bytes;
    const char *name;
} Grow;
typedef struct {
    const StreamSpec *spec;
    const Tokenizer *t;
    char *sep;
    size_t nsep, total;        /* total: bytes of text */
    Paths path;                /* of `file` */
    Source *file;              /* (nfile): ntrain, then val */
    int nfile, ntrain, nparts; /* nparts: of training; val is one more */
    bool own;                  /* val is a file of its own */
    IdType type;
    Grow grow[PARTS_MAX + 1];
} Plan;

/* Map a text file, which must not be empty. */
static bool text_map(FileMap *m, const char *path, Err *e) {
    if (!file_map(m, path, e)) return false;
    return m->n > 0 || err_input(e, "text %s: is empty, expected text to train or validate on", path);
}

static const char *text_key_of(const StreamSpec *s) { return s->key ? s->key : "data.train"; }
static bool plan_file(Plan *p, int i, Err *e) {
    Source *f = &p->file[i];
    FileMap m;
    Err why = {0};
    const char *path = f->path = p->path.path[i];
    if (!set_kind(path, &f->kind, &why)) {
        snprintf(e->msg, sizeof e->msg, "%s: %.*s", i < p->ntrain ? text_key_of(p->spec) : "data.val",
                 (int)sizeof e->msg - 40, why.msg);
        e->status = why.status;
        return false;
    }
    if (f->kind == SET_TEXT) {
        if (!text_map(&m, path, e)) return false;
        f->size = m.n;
        p->total += m.n;
        file_unmap(&m);
    }
    bool joins = i && f->kind == SET_TEXT && f[-1].kind == SET_TEXT && !p->spec->weight && i < p->ntrain;
    if (!joins && i < p->ntrain && p->nparts == PARTS_MAX)
        return err_input(e, "%s: more than %d token datasets; give fewer, larger ones", text_key_of(p->spec),
                         PARTS_MAX);
    f->part = i == p->ntrain ? p->nparts : joins ? f[-1].part : p->nparts++;
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
            return err_runtime(e, "out of memory: %zu bytes of text", p->file[i].size);
        if (!g->room) g->room = 1;
        g->room += most * p->file[i].size + most;
    }
    return true;
}

static void plan_close(Plan *p) {
    paths_free(&p->path);
    free(p->sep);
    free(p->file);
}
static bool plan_paths(Plan *p, Err *e) {
    const StreamSpec *spec = p->spec;
    for (int i = 0; i < spec->ntrain; i++) {
        int before = p->path.n;
        if (!paths_add(&p->path, spec->train[i], text_key_of(spec), e)) return false;
        if (spec->weight && p->path.n != before + 1)
            return err_input(e,
                             "%s: %.150s has a weight and names %d files; give each its own weight, or tokenize them "
                             "into one dataset",
                             text_key_of(spec), spec->train[i], p->path.n - before);
    }
    p->ntrain = p->path.n;
    if (p->own) {
        p->path.path = xrealloc(p->path.path, (size_t)p->path.n + 1, sizeof *p->path.path);
        p->path.path[p->path.n++] = xstrdup(spec->val);
    }
    p->nfile = p->path.n;
    p->file = xcalloc((size_t)p->nfile, sizeof *p->file);
    return true;
}
static bool plan_open(Plan *p, const StreamSpec *spec, const Tokenizer *t, Err *e) {
    *p = (Plan){.spec = spec, .t = t, .own = spec->val && *spec->val};
    CHECK(spec->ntrain >= 1 && spec->ntrain <= PARTS_MAX, "%d files", spec->ntrain);
    if (!text_unescape(spec->separator ? spec->separator : "", "data.separator", &p->sep, &p->nsep, e)) return false;
    bool ok = plan_paths(p, e);
    for (int i = 0; ok && i < p->nfile; i++) ok = plan_file(p, i, e);
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

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void text_put(Grow *g, IdType type, size_t at, int id) {
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
        return err_input(e, "makes more than %zu ids per byte, which is not supported", pool_most_ids(f->p->t));
    if (begin) {
        text_put(g, f->p->type, g->n++, f->p->t->eot);
        g->documents++;
    }
    for (size_t i = 0; i < ids->n; i++) text_put(g, f->p->type, g->n++, ids->id[i]);
    g->bytes += bytes;
    return true;
}

/* Add the file's name to a pool's error, which does not know it. */
static bool in_file(const Source *f, const Err *why, Err *e) {
    return err_input(e, "text %.150s: %s", f->path, why->msg);
}

typedef struct {
    Pool *pool;
    const Plan *p;
    const Source *f;
    size_t read, *done; /* bytes of this file, and of all files */
} Reading;
static bool text_on_text(void *ctx, const char *s, size_t n, bool end, Err *e) {
    Reading *r = ctx;
    Err why = {0};
    return pool_text(r->pool, s, n, end, &why) || in_file(r->f, &why, e);
}
static bool text_on_read(void *ctx, size_t bytes, Err *e) {
    Reading *r = ctx;
    const StreamSpec *s = r->p->spec;
    (void)e;
    r->read += bytes, *r->done += bytes;
    if (s->progress) s->progress(s->progress_ctx, *r->done, r->p->total);
    return true;
}

/* Tokenize a file, which must still have the `size` bytes that room was taken for. */
static bool text_add_file(Pool *pool, const Plan *p, const Source *f, Grow *g, size_t *done, Err *e) {
    Reading r = {pool, p, f, 0, done};
    SourceCfg c = {.sep = p->sep,
                   .nsep = p->nsep,
                   .jsonl_key = source_key(f->path),
                   .lift = p->spec->lift,
                   .sink = text_on_text,
                   .read = text_on_read,
                   .ctx = &r};
    Err why = {0};
    size_t before = g->documents;
    if (!source_read(&c, f->path, e)) return false;
    if (r.read != f->size)
        return err_input(e, "text %s: changed while it was read: %zu bytes, then %zu", f->path, f->size, r.read);
    if (!pool_flush(pool, &why)) return in_file(f, &why, e);
    return g->documents > before || err_input(e, "text %s: contains only %s, expected text", f->path,
                                              c.jsonl_key ? "documents of no bytes" : "separators");
}

static bool fill_texts(Plan *p, Err *e) {
    size_t done = 0;
    bool ok = true;
    if (p->t->eot < 0 && p->total)
        return err_input(
            e, "text %.150s: the tokenizer names no end-of-text token to separate documents; name one with data.eot",
            p->file[0].path);
    Fill f = {.p = p};
    Pool *pool = pool_open(&(PoolCfg){p->t, imax(p->spec->threads, 1), (size_t)1 << 30, take_ids, &f});
    for (int i = 0; ok && i < p->nfile; i++) {
        if (p->file[i].kind != SET_TEXT) continue;
        f.g = &p->grow[p->file[i].part];
        ok = text_add_file(pool, p, &p->file[i], f.g, &done, e);
    }
    for (int i = 0; ok && i <= p->nparts; i++)
        if (p->grow[i].id) text_put(&p->grow[i], p->type, p->grow[i].n++, p->t->eot);
    pool_close(pool);
    return ok;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static bool sets_open(Stream *s, const Plan *p, Err *e) {
    s->set = xcalloc((size_t)p->nfile, sizeof *s->set);
    for (int i = 0; i < p->nfile; i++) {
        if (p->file[i].kind == SET_TEXT) continue;
        if (!set_open(&s->set[s->nset], p->file[i].path, p->file[i].kind, e)) return false;
        s->nset++;
    }
    return true;
}

/* The whole of part i of the plan. */
static Tokens text_part_of(const Stream *s, const Plan *p, int i) {
    const Grow *g = &p->grow[i];
    int set = 0;
    if (g->id) return (Tokens){.id = g->id, .n = g->n, .type = p->type, .name = g->name};
    for (int k = 0; p->file[k].part != i; k++) set += p->file[k].kind != SET_TEXT;
    return s->set[set].all;
}

/* The number of tokens of a part that training keeps. */
static size_t text_keep(const Tokens *t, const Grow *g, int eot, double val_fraction) {
    if (!g->id) return (size_t)((double)t->n * (1 - val_fraction));
    size_t text = 0, cut = 0; /* they must be counted: data.eot may be an id that also occurs in text */
    for (size_t i = 0; i < t->n; i++) text += token_at(t, i) != eot;
    size_t most = (size_t)((double)text * (1 - val_fraction));
    for (size_t seen = 0; seen < most; cut++) seen += token_at(t, cut) != eot;
    return cut;
}

static bool cut_parts(Stream *s, const Plan *p, Err *e) {
    const StreamSpec *spec = p->spec;
    size_t kept = 0, all = 0;
    for (int i = 0; i < p->nparts; i++) {
        Tokens t = text_part_of(s, p, i);
        size_t cut = t.n;
        all += t.n;
        if (!p->own && spec->val_fraction > 0) {
            cut = text_keep(&t, &p->grow[i], p->t->eot, spec->val_fraction);
            s->tail[s->val.n++] = tokens_slice(t, cut, t.n - cut);
            kept += t.n - cut;
            if (t.n - cut < 2)
                return err_input(e,
                                 "data.val_fraction: %g of %zu tokens leaves %zu to validate on, expected at least 2; "
                                 "give a larger fraction, or 0 for no validation",
                                 spec->val_fraction, t.n, t.n - cut);
        }
        s->part[s->train.n++] = tokens_slice(t, 0, cut);
        s->tokens += cut;
    }
    if (p->own) {
        s->tail[s->val.n++] = text_part_of(s, p, p->nparts);
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

/* FNV-1a over ids. A set has its own hash, and the place where it is cut is part of it. */
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

static bool text_fill(Stream *s, Plan *p, Err *e) {
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

/* ---- how much there is ------------------------------------------------------------------------------------------- */

typedef struct {
    Pool *pool;
    size_t read, ids; /* bytes on disk */
    bool enough;
} Taste;
static bool taste_ids(void *ctx, const Ids *ids, bool begin, bool end, size_t bytes, Err *e) {
    (void)end, (void)bytes, (void)e;
    ((Taste *)ctx)->ids += ids->n + begin;
    return true;
}
static bool taste_text(void *ctx, const char *s, size_t n, bool end, Err *e) {
    return pool_text(((Taste *)ctx)->pool, s, n, end, e);
}
/* Stop before the second stretch of a file, which is not needed. */
static bool taste_read(void *ctx, size_t bytes, Err *e) {
    Taste *t = ctx;
    (void)e;
    if (bytes && t->read) return !(t->enough = true);
    t->read += bytes;
    return true;
}
/* Measure the tokens per byte on disk at the beginning of a text. */
static bool text_density(const Plan *p, const Source *f, double *per, Err *e) {
    Taste t = {.pool = NULL};
    Err why = {0};
    SourceCfg c = {.sep = p->sep,
                   .nsep = p->nsep,
                   .jsonl_key = source_key(f->path),
                   .lift = p->spec->lift,
                   .sink = taste_text,
                   .read = taste_read,
                   .ctx = &t};
    t.pool = pool_open(&(PoolCfg){p->t, imax(p->spec->threads, 1), (size_t)1 << 30, taste_ids, &t});
    bool ok = source_read(&c, f->path, &why) || t.enough;
    /* ids still held of a document that continues */
    ok = ok && (!t.enough || pool_text(t.pool, "", 0, true, &why)) && pool_flush(t.pool, &why);
    pool_close(t.pool);
    *per = (double)t.ids / (double)zmax(t.read, 1);
    if (!ok) *e = why;
    return ok;
}

/* With weights w of D: the number of tokens after which part i has been read once. */
static double text_once(double tokens, const Blend *b, int i) { return b->D ? tokens * b->D / b->w[i] : tokens; }

bool stream_estimate(const StreamSpec *spec, const Tokenizer *t, double *tokens, size_t *bytes, Err *e) {
    Plan p;
    Blend b = {0};
    double part[PARTS_MAX] = {0}, per = 0;
    *tokens = 0, *bytes = 0;
    if (!plan_open(&p, spec, t, e)) return false;
    bool ok = !spec->weight || blend_weights(&b, spec->ntrain, spec->weight, e), tasted = false;
    for (int i = 0; ok && i < p.ntrain; i++) {
        const Source *f = &p.file[i];
        Set set;
        if (f->kind == SET_TEXT) {
            ok = tasted || (tasted = text_density(&p, f, &per, e));
            part[f->part] += per * (double)f->size;
            *bytes += f->size;
        } else if ((ok = set_open(&set, f->path, f->kind, e))) {
            part[f->part] += (double)set.all.n;
            set_close(&set);
        }
    }
    double kept = p.own ? 1 : 1 - spec->val_fraction;
    for (int i = 0; ok && i < p.nparts; i++) {
        double n = text_once(kept * part[i], &b, i);
        *tokens = b.D ? (i ? fmin(*tokens, n) : n) : *tokens + n;
    }
    plan_close(&p);
    return ok;
}
double stream_epoch(const Stream *s) {
    double tokens = 0;
    for (int i = 0; i < s->train.n; i++) {
        double n = text_once((double)s->part[i].n, &s->blend, i);
        tokens = s->blend.D ? (i ? fmin(tokens, n) : n) : tokens + n;
    }
    return tokens;
}

bool stream_open(Stream *s, const StreamSpec *spec, const Tokenizer *t, Err *e) {
    Plan p;
    *s = (Stream){0};
    CHECK(spec->seq_len >= 1, "seq_len %d", spec->seq_len);
    CHECK(spec->val_fraction >= 0 && spec->val_fraction < 1, "val_fraction %g", spec->val_fraction);
    if (!plan_open(&p, spec, t, e)) return false;
    bool ok = text_fill(s, &p, e);
    s->file = p.path, p.path = (Paths){0}; /* the parts' names point into it */
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
    paths_free(&s->file);
    arena_close(&s->mem);
    *s = (Stream){0};
}
