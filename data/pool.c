/* pool.c: cuts documents into jobs, encodes the jobs of a round in parallel, and sends the ids on in order. */
#include "pool.h"
#include "tok_model.h"
#include <omp.h>

enum {
    JOB = 1 << 16,        /* bytes from which on a job is closed */
    BIG = 1 << 18,        /* bytes of a job that runs alone: merging needs up to 70 bytes for each byte of a piece */
    ROUND_EACH = 1 << 20, /* bytes per thread that are collected before they are encoded */
    JOBS_MAX = 4096,      /* jobs that are collected: documents may have one byte each */
    KEEP = 4096           /* ids up to which a job keeps its memory */
};
typedef struct {
    size_t at, n;
    bool begin, end, ok;
    Ids ids;
    Err why;
} Job;
struct Pool {
    PoolCfg cfg;
    Encoder **enc;
    Buf text;      /* the text of the jobs, then text that belongs to no job yet */
    size_t jobbed; /* bytes that belong to jobs */
    size_t seen;   /* bytes after those that are known to have no place to cut */
    bool inside;   /* the next job continues a document */
    Job *job;
    size_t njob, cap;
};

static bool cuts_anywhere(const Tokenizer *t) { return !t->model; }
static bool cuts_at_blanks(const Tokenizer *t) {
    const TokModel *m = t->model;
    return m && m->kind == MODEL_BPE && m->ncut == 1 && m->cut[0].known && !m->joins &&
           (!m->nnorm || (m->nnorm == 1 && m->norm[0].kind == NORM_NFC));
}
size_t pool_most_ids(const Tokenizer *t) { return cuts_anywhere(t) || (cuts_at_blanks(t) && !t->model->nnorm) ? 1 : 4; }

Pool *pool_open(const PoolCfg *cfg) {
    CHECK(cfg->threads >= 1, "%d threads", cfg->threads);
    Pool *p = xcalloc(1, sizeof *p);
    p->cfg = *cfg;
    p->enc = xcalloc((size_t)cfg->threads, sizeof *p->enc);
    for (int i = 0; i < cfg->threads; i++) p->enc[i] = encoder_open(cfg->t);
    return p;
}
void pool_close(Pool *p) {
    if (!p) return;
    for (int i = 0; i < p->cfg.threads; i++) encoder_close(p->enc[i]);
    for (size_t i = 0; i < p->cap; i++) ids_free(&p->job[i].ids);
    free(p->enc);
    free(p->job);
    buf_free(&p->text);
    free(p);
}

static bool pool_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
/* The first place at `from` or later where s can be cut; 0: none is known. */
static size_t cut_place(const Tokenizer *t, const char *s, size_t n, size_t from) {
    if (cuts_anywhere(t)) return from < n ? from : 0;
    if (!cuts_at_blanks(t)) return 0;
    for (size_t i = zmax(from, 1); i + 1 < n; i++) {
        const char *blank = memchr(s + i, ' ', n - 1 - i);
        if (!blank) return 0;
        i = (size_t)(blank - s);
        if (pool_letter(s[i - 1]) && pool_letter(s[i + 1])) return i;
    }
    return 0;
}

static void add_job(Pool *p, size_t n, bool end) {
    if (p->njob == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 64;
        p->job = xrealloc(p->job, cap, sizeof *p->job);
        memset(p->job + p->cap, 0, (cap - p->cap) * sizeof *p->job);
        p->cap = cap;
    }
    Job *j = &p->job[p->njob++];
    j->at = p->jobbed, j->n = n;
    j->begin = !p->inside, j->end = end;
    p->jobbed += n;
    p->seen = 0;
    p->inside = !end;
}

static void pool_encode(Pool *p, Job *j) {
    j->ids.n = 0;
    j->why = (Err){0};
    j->ok = encoder_run(p->enc[omp_get_thread_num()], p->text.at + j->at, j->n, 0, &j->ids, &j->why);
}

bool pool_flush(Pool *p, Err *e) {
    bool ok = true;
#pragma omp parallel for schedule(dynamic, 4) num_threads(p->cfg.threads)
    for (size_t i = 0; i < p->njob; i++)
        if (p->job[i].n <= BIG) pool_encode(p, &p->job[i]);
    for (size_t i = 0; ok && i < p->njob; i++) {
        Job *j = &p->job[i];
        if (j->n > BIG) pool_encode(p, j);
        if (!j->ok)
            ok = err_input(e, "%s", j->why.msg);
        else
            ok = p->cfg.sink(p->cfg.ctx, &j->ids, j->begin, j->end, j->n, e);
        if (j->ids.cap > KEEP) ids_free(&j->ids);
    }
    if (p->jobbed) memmove(p->text.at, p->text.at + p->jobbed, p->text.n - p->jobbed);
    p->text.n -= p->jobbed;
    p->jobbed = p->njob = 0;
    return ok;
}

bool pool_text(Pool *p, const char *s, size_t n, bool end, Err *e) {
    const size_t round = (size_t)p->cfg.threads * ROUND_EACH;
    do { /* in slices, so that a large document is never in memory as a whole */
        size_t take = zmin(n, ROUND_EACH);
        buf_put(&p->text, s, take);
        s += take, n -= take;
        for (;;) {
            size_t tail = p->text.n - p->jobbed;
            if (tail < 2 * JOB) break;
            size_t cut = cut_place(p->cfg.t, p->text.at + p->jobbed, tail, zmax(JOB, p->seen));
            if (cut) {
                add_job(p, cut, false);
                continue;
            }
            p->seen = tail - 2;
            if (tail > p->cfg.most)
                return err_input(e, "a stretch of %zu bytes that this tokenizer cannot split, expected at most %zu",
                                 tail, p->cfg.most);
            break;
        }
        size_t tail = p->text.n - p->jobbed;
        if (end && !n && tail) add_job(p, tail, true);
        if (end && !n && !tail && p->inside) CHECK(false, "a document's last job is empty");
        if ((p->jobbed >= round || p->njob >= JOBS_MAX) && !pool_flush(p, e)) return false;
    } while (n);
    return true;
}
