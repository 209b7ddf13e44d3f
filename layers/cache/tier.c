/* tier.c: rows of slots in a file without a name: which slots, what a pass reads, a thread that reads ahead. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include "slot.h"
#include "ops/file.h"
#include "ops/text.h"

enum { STAGES = 2, BLOCK = 4096 };
/* A buffer of the largest slot on disk; page p of the slot that it holds lies at p * page_bytes. */
typedef struct {
    char *p;
    int slot; /* -1: none */
} Stage;
typedef struct {
    int page, n;
} Pages;
struct Tier {
    KvTier how;
    Slot *slot;
    int nslots, nseq, rows, ndisk; /* slots: all, that have rows, that are on disk */
    size_t file, largest, page;    /* bytes: of the file, of the largest slot on disk, of its largest page */
    char *dir;
    int fd;
    int *order, norder, next; /* slots on disk as passes read them; the one that a pass is expected to read */
    bool *reads;              /* (nseq) a pass reads the rows of the sequence */
    Stage stage[STAGES];
    int nstage, now; /* now: the buffer that Lanes.data points to */
    bool *wanted;    /* (pages) of a slot, while its pages are gathered */
    Pages *piece;    /* of a slot that is read; the thread's while it is busy */
    int pieces;
    char *bounce; /* a page */
    KvDisk sum;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t moved;
    bool started, busy, ends;
    int filled; /* the buffer that the thread fills */
    Err why;    /* of the first failure */
};

Tier *tier_make(const KvTier *how, Slot *slots, int nslots, int nseq) {
    Tier *t = xcalloc(1, sizeof *t);
    *t = (Tier){.how = *how, .slot = slots, .nslots = nslots, .nseq = nseq, .fd = -1};
    t->dir = xstrdup(how->dir);
    t->order = xcalloc((size_t)nslots + 1, sizeof *t->order);
    t->reads = xcalloc((size_t)nseq, sizeof *t->reads);
    for (int i = 0; i < nslots; i++) slots[i].number = i, t->rows += slots[i].t.s.lanes > 0;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->moved, NULL);
    return t;
}
void tier_free(Tier *t) {
    if (!t) return;
    if (t->started) {
        pthread_mutex_lock(&t->lock);
        t->ends = true;
        pthread_cond_broadcast(&t->moved);
        pthread_mutex_unlock(&t->lock);
        CHECK(!pthread_join(t->thread, NULL), "a thread of our own");
    }
    if (t->fd >= 0) close(t->fd);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->moved);
    free(t->order), free(t->reads), free(t->dir), free(t);
}

/* ---- which slots -------------------------------------------------------------------------------------------------*/

static size_t tier_bytes(const Slot *s) { return s->t.s.lanes ? (size_t)s->t.npages * page_bytes(s) : 0; }
static void tier_put(Tier *t, Slot *s) {
    s->tier = t, s->at = t->file;
    t->file += (tier_bytes(s) + BLOCK - 1) / BLOCK * BLOCK;
    t->largest = zmax(t->largest, tier_bytes(s)), t->page = zmax(t->page, page_bytes(s));
    t->ndisk++;
}
int tier_choose(Tier *t, int n) {
    t->file = t->largest = t->page = 0, t->ndisk = 0;
    for (int i = 0; i < t->nslots; i++) t->slot[i].tier = NULL;
    for (size_t below = SIZE_MAX, size; t->ndisk < imin(n, t->rows); below = size) {
        int equal = 0, left = imin(n, t->rows) - t->ndisk;
        size = 0;
        for (int i = 0; i < t->nslots; i++)
            if (tier_bytes(&t->slot[i]) < below) size = zmax(size, tier_bytes(&t->slot[i]));
        for (int i = 0; i < t->nslots; i++) equal += tier_bytes(&t->slot[i]) == size;
        left = imin(left, equal);
        for (int i = 0, k = 0; i < t->nslots; i++) {
            if (tier_bytes(&t->slot[i]) != size) continue;
            k++; /* of `equal` ones `left` go, the first as late as may be */
            if ((int64_t)k * left / equal > (int64_t)(k - 1) * left / equal) tier_put(t, &t->slot[i]);
        }
    }
    t->norder = 0;
    for (int i = 0; i < t->nslots; i++)
        if (t->slot[i].tier) t->order[t->norder++] = i;
    return t->rows;
}
void tier_place(Tier *t, Arena *a) {
    size_t pages = 0;
    t->nstage = imin(t->ndisk, t->how.alone ? 1 : STAGES);
    for (int i = 0; i < t->nstage; i++) t->stage[i] = (Stage){arena_take(a, t->largest, "rows read from disk"), -1};
    if (!t->ndisk) return;
    for (int i = 0; i < t->nslots; i++)
        if (t->slot[i].tier) pages = zmax(pages, (size_t)t->slot[i].t.npages);
    t->bounce = arena_take(a, t->page, "a page to copy");
    t->piece = arena_take(a, (pages / 2 + 1) * sizeof *t->piece, "pages to read from disk");
    t->wanted = arena_take(a, pages * sizeof *t->wanted, "pages that a pass reads");
    if (t->wanted) memset(t->wanted, 0, pages * sizeof *t->wanted);
}
void tier_order(Tier *t, int n, const int *slots) {
    free(t->order);
    t->order = xcalloc((size_t)n + 1, sizeof *t->order);
    t->norder = 0;
    for (int i = 0; i < n; i++)
        if (t->slot[slots[i]].tier && (!t->norder || t->order[t->norder - 1] != slots[i]))
            t->order[t->norder++] = slots[i];
}

/* ---- the file ----------------------------------------------------------------------------------------------------*/

static bool tier_failed(Tier *t) {
    pthread_mutex_lock(&t->lock);
    const bool failed = t->why.status != 0;
    pthread_mutex_unlock(&t->lock);
    return failed;
}
static void tier_fails(Tier *t, const char *what, int why) {
    const bool full = why == ENOSPC || why == EDQUOT || why == EFBIG;
    pthread_mutex_lock(&t->lock);
    if (!t->why.status)
        err_runtime(&t->why, "cannot %s rows of the cache in %.120s: %s; %s", what, t->dir, strerror(why),
                    full ? "free space there, or give --cache-disk another folder"
                         : "check that disk, or give --cache-disk a folder on another");
    pthread_mutex_unlock(&t->lock);
}
/* After a failure nothing is read or written any more: what would have been read is zeros. */
static void tier_move(Tier *t, size_t at, char *p, size_t n, bool writes) {
    size_t done = 0;
    while (done < n && !tier_failed(t)) {
        const ssize_t did = writes ? pwrite(t->fd, p + done, n - done, (off_t)(at + done))
                                   : pread(t->fd, p + done, n - done, (off_t)(at + done));
        if (did > 0) done += (size_t)did;
        if (did <= 0 && !(did < 0 && errno == EINTR))
            tier_fails(t, writes ? "write" : "read", did < 0 ? errno : EIO); /* 0: it would be so for ever */
    }
    if (!writes) memset(p + done, 0, n - done);
    *(writes ? &t->sum.written : &t->sum.read) += done;
}

/* ---- buffers -----------------------------------------------------------------------------------------------------*/

static void stage_fill(Tier *t, Stage *g) {
    const Slot *s = &t->slot[g->slot];
    const size_t page = page_bytes(s);
    for (int i = 0; i < t->pieces; i++) {
        const size_t at = (size_t)t->piece[i].page * page;
        tier_move(t, s->at + at, g->p + at, (size_t)t->piece[i].n * page, false);
    }
}
static void *tier_work(void *ctx) {
    Tier *t = ctx;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->busy && !t->ends) pthread_cond_wait(&t->moved, &t->lock);
        if (!t->busy) break;
        pthread_mutex_unlock(&t->lock);
        stage_fill(t, &t->stage[t->filled]);
        pthread_mutex_lock(&t->lock);
        t->busy = false;
        pthread_cond_broadcast(&t->moved);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}
static void tier_wait(Tier *t) {
    pthread_mutex_lock(&t->lock);
    while (t->busy) pthread_cond_wait(&t->moved, &t->lock);
    pthread_mutex_unlock(&t->lock);
}
static void stage_empty(Tier *t, Stage *g) {
    if (g->slot >= 0) t->slot[g->slot].t.data.p = NULL;
    g->slot = -1;
}

static void pages_want(Tier *t, const Lanes *l, int lane, int from, int to) {
    const int *table = l->table + (size_t)lane * (size_t)l->maxpages;
    for (int at = from / l->P; from < to && at <= (to - 1) / l->P; at++) t->wanted[table[at % l->maxpages]] = true;
}
/* The pages with rows of the sequences that are read, as few pieces as may be. */
static void pages_gather(Tier *t, const Slot *s) {
    const Lanes *l = &s->t;
    const int K = l->s.lanes;
    for (int lane = 0; lane < slot_lanes(s); lane++) {
        if (!t->reads[lane / K]) continue;
        pages_want(t, l, lane, l->s0[lane], imin(l->s0[lane] + l->s.sinks, l->lo[lane]));
        pages_want(t, l, lane, l->lo[lane], l->hi[lane]);
    }
    t->pieces = 0;
    for (int p = 0; p < l->npages; p++) {
        if (!t->wanted[p]) continue;
        const bool joins = t->pieces && t->piece[t->pieces - 1].page + t->piece[t->pieces - 1].n == p;
        if (joins)
            t->piece[t->pieces - 1].n++;
        else
            t->piece[t->pieces++] = (Pages){p, 1};
        t->wanted[p] = false;
    }
}
/* Reads a slot to a buffer: now, or in the thread, which is not busy. */
static void stage_slot(Tier *t, int slot, int stage, bool ahead) {
    Stage *g = &t->stage[stage];
    stage_empty(t, g);
    g->slot = slot;
    pages_gather(t, &t->slot[slot]);
    if (!ahead) {
        stage_fill(t, g);
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->busy = true, t->filled = stage;
    pthread_cond_broadcast(&t->moved);
    pthread_mutex_unlock(&t->lock);
}
static void tier_ahead(Tier *t, int stage) {
    if (t->nstage < STAGES || t->next == t->norder || t->stage[stage].slot == t->order[t->next]) return;
    if (t->stage[1 - stage].slot != t->order[t->next]) stage_slot(t, t->order[t->next], stage, true);
}

void tier_begin(Tier *t, const Batch *b) {
    bool any = false;
    tier_wait(t);
    for (int i = 0; i < t->nstage; i++) stage_empty(t, &t->stage[i]);
    for (int q = 0; q < t->nseq; q++) t->reads[q] = false;
    for (int q = 0; q < b->B; q++)
        if (b->off[q] < b->off[q + 1] && b->first[b->off[q]] < 0) any = t->reads[b->seq[q]] = true;
    t->next = t->now = 0;
    if (any) tier_ahead(t, 1);
}
void tier_stage(const Slot *s) {
    Tier *t = s->tier;
    if (t->stage[t->now].slot == s->number) return;
    const double from = now_seconds();
    tier_wait(t);
    if (t->nstage > 1) t->now = 1 - t->now;
    if (t->stage[t->now].slot != s->number) stage_slot(t, s->number, t->now, false);
    t->sum.waited += now_seconds() - from;
    t->slot[s->number].t.data.p = t->stage[t->now].p;
    for (int i = 0; i < t->norder; i++) { /* the place in the order, from where it is expected on */
        const int at = (t->next + i) % t->norder;
        if (t->order[at] != s->number) continue;
        t->next = at + 1;
        tier_ahead(t, 1 - t->now);
        return;
    }
}
void tier_stage_sequence(const Slot *s, int seq) {
    Tier *t = s->tier;
    tier_wait(t);
    for (int i = 0; i < t->nstage; i++) stage_empty(t, &t->stage[i]);
    for (int q = 0; q < t->nseq; q++) t->reads[q] = q == seq;
    t->next = t->norder; /* nothing is read ahead */
    stage_slot(t, s->number, t->now, false);
    t->slot[s->number].t.data.p = t->stage[t->now].p;
}

/* ---- bytes -------------------------------------------------------------------------------------------------------*/

/* A buffer that holds the slot does not any more. */
static void tier_stale(const Slot *s) {
    for (int i = 0; i < s->tier->nstage; i++) {
        if (s->tier->stage[i].slot != s->number) continue;
        tier_wait(s->tier);
        stage_empty(s->tier, &s->tier->stage[i]);
    }
}
void tier_read(const Slot *s, size_t at, void *to, size_t n) {
    tier_wait(s->tier); /* it counts what it reads, too */
    tier_move(s->tier, s->at + at, to, n, false);
}
void tier_write(const Slot *s, size_t at, const void *from, size_t n) {
    tier_stale(s);
    tier_move(s->tier, s->at + at, (char *)from, n, true);
}
void tier_copy(const Slot *s, size_t to, size_t from, size_t n) {
    CHECK(n <= s->tier->page, "%zu bytes of a page of %zu", n, s->tier->page);
    tier_read(s, from, s->tier->bounce, n);
    tier_write(s, to, s->tier->bounce, n);
}

bool tier_open(Tier *t, Err *e) {
    char size[24];
    if ((t->fd = file_unnamed(t->dir, e)) < 0) return false;
    int rc = t->file ? TEMP_FAILURE_RETRY(fallocate(t->fd, 0, 0, (off_t)t->file)) : 0;
    /* a file system that cannot reserve space: a full disk shows when a row is written */
    if (rc && (errno == EOPNOTSUPP || errno == ENOSYS)) rc = ftruncate(t->fd, (off_t)t->file);
    if (rc)
        return err_runtime(e,
                           "cannot reserve %s for rows of the cache in %.120s: %s; free space there, or give "
                           "--cache-disk another folder",
                           bytes_text(t->file, size), t->dir, strerror(errno));
    if (t->nstage < STAGES) return true;
    sigset_t all, before; /* signals are for the thread that computes */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int why = pthread_create(&t->thread, NULL, tier_work, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    t->started = !why;
    return !why || err_runtime(e, "cannot start the thread that reads rows of the cache ahead: %s", strerror(why));
}
bool tier_sound(Tier *t, Err *e) {
    /* A write may fail long after the call, when the system writes its pages to the disk; what is read after that may
     * be old. The file then has an error, for which this asks; beyond its end there is no page to wait for. */
    if (t->ndisk && !tier_failed(t) && sync_file_range(t->fd, (off_t)t->file, 1, SYNC_FILE_RANGE_WAIT_BEFORE) &&
        (errno == EIO || errno == ENOSPC || errno == EDQUOT))
        tier_fails(t, "write", errno);
    if (!tier_failed(t)) return true;
    if (e) *e = t->why;
    return false;
}
KvDisk tier_report(Tier *t) {
    tier_wait(t);
    KvDisk d = t->sum;
    d.slots = t->ndisk, d.of = t->rows, d.file = t->file;
    return d;
}
