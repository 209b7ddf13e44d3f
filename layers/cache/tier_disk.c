/* tier_disk.c: rows of a tier in a file without a name, and a thread that reads ahead. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>
#include "tier_store.h"
#include "ops/file.h"
#include "ops/text.h"

struct Disk {
    char *dir;
    int fd;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows, and of Tier.why and Tier.sum */
    pthread_cond_t moved;
    bool started, busy, ends;
    int filled; /* the buffer that the thread fills */
};

static bool disk_failed(Tier *t) {
    pthread_mutex_lock(&t->disk->lock);
    const bool failed = t->why.status != 0;
    pthread_mutex_unlock(&t->disk->lock);
    return failed;
}
static void disk_fails(Tier *t, const char *what, int why) {
    const bool full = why == ENOSPC || why == EDQUOT || why == EFBIG;
    pthread_mutex_lock(&t->disk->lock);
    if (!t->why.status)
        err_runtime(&t->why, "cannot %s rows of the cache in %.120s: %s; %s", what, t->disk->dir, strerror(why),
                    full ? "free space there, or give --cache-disk another folder"
                         : "check that disk, or give --cache-disk a folder on another");
    pthread_mutex_unlock(&t->disk->lock);
}
static void disk_moved(Tier *t, size_t n, bool writes) {
    pthread_mutex_lock(&t->disk->lock);
    *(writes ? &t->sum.written : &t->sum.read) += n;
    pthread_mutex_unlock(&t->disk->lock);
}
/* After a failure nothing is read or written any more: what would have been read is zeros. */
static void disk_move(Tier *t, size_t at, char *p, size_t n, bool writes) {
    size_t done = 0;
    while (done < n && !disk_failed(t)) {
        const ssize_t did = writes ? pwrite(t->disk->fd, p + done, n - done, (off_t)(at + done))
                                   : pread(t->disk->fd, p + done, n - done, (off_t)(at + done));
        if (did > 0) done += (size_t)did;
        if (did <= 0 && !(did < 0 && errno == EINTR))
            disk_fails(t, writes ? "write" : "read", did < 0 ? errno : EIO); /* 0: it would be so for ever */
    }
    if (!writes) memset(p + done, 0, n - done);
    disk_moved(t, done, writes);
}
static void disk_copy(Tier *t, size_t to, size_t from, size_t n) {
    disk_move(t, from, t->bounce, n, false);
    disk_move(t, to, t->bounce, n, true);
}

/* ---- reading ahead -----------------------------------------------------------------------------------------------*/

enum { SPANS = 64, SPAN_SHORT = 1 << 20 };
typedef struct {
    size_t at, n;
    char *p;
} Span;
/* Of short ones what the system has in memory is copied, and the rest asked for of all together: one read after the
 * other, of which each waits for the disk, needs two to three times as long (docs/tiers.md). */
static void disk_read_spans(Tier *t, int n, Span *x) {
    const bool failed = disk_failed(t);
    for (int i = 0; i < n && !failed; i++) {
        if (x[i].n > SPAN_SHORT) continue;
        const ssize_t did =
            preadv2(t->disk->fd, &(struct iovec){x[i].p, x[i].n}, 1, (off_t)x[i].at, RWF_NOWAIT); /* or it cannot */
        if (did > 0) x[i].at += (size_t)did, x[i].p += did, x[i].n -= (size_t)did, disk_moved(t, (size_t)did, false);
        if (x[i].n) (void)posix_fadvise(t->disk->fd, (off_t)x[i].at, (off_t)x[i].n, POSIX_FADV_WILLNEED);
    }
    for (int i = 0; i < n; i++)
        if (x[i].n) disk_move(t, x[i].at, x[i].p, x[i].n, false);
}
/* Part k of n, of as many pages. */
static void disk_fill_part(Tier *t, const Stage *g, int k, int n) {
    const Slot *s = &t->slot[g->slot];
    const size_t page = page_bytes(s);
    Span span[SPANS];
    int all = 0, spans = 0;
    for (int i = 0; i < t->pieces; i++) all += t->piece[i].n;
    const int from = (int)((int64_t)all * k / n), to = (int)((int64_t)all * (k + 1) / n);
    for (int i = 0, first = 0; i < t->pieces; first += t->piece[i++].n) {
        const int lo = imax(from - first, 0), hi = imin(to - first, t->piece[i].n);
        const size_t at = (size_t)(t->piece[i].page + lo) * page;
        if (lo < hi) span[spans++] = (Span){s->at + at, (size_t)(hi - lo) * page, g->p + at};
        if (spans == SPANS) disk_read_spans(t, spans, span), spans = 0;
    }
    disk_read_spans(t, spans, span);
}
static void *disk_work(void *ctx) {
    Tier *t = ctx;
    struct Disk *d = t->disk;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->busy && !d->ends) pthread_cond_wait(&d->moved, &d->lock);
        if (!d->busy) break;
        pthread_mutex_unlock(&d->lock);
        disk_fill_part(t, &t->stage[d->filled], 0, 1);
        pthread_mutex_lock(&d->lock);
        d->busy = false;
        pthread_cond_broadcast(&d->moved);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}
static void disk_settle(Tier *t) {
    pthread_mutex_lock(&t->disk->lock);
    while (t->disk->busy) pthread_cond_wait(&t->disk->moved, &t->disk->lock);
    pthread_mutex_unlock(&t->disk->lock);
}
/* Now, by the threads that wait for it; or in the thread of its own, which is not busy. */
static void disk_fill(Tier *t, int stage, bool ahead) {
    if (!ahead) {
#pragma omp parallel for num_threads(t->threads)
        for (int k = 0; k < t->threads; k++) disk_fill_part(t, &t->stage[stage], k, t->threads);
        return;
    }
    pthread_mutex_lock(&t->disk->lock);
    t->disk->busy = true, t->disk->filled = stage;
    pthread_cond_broadcast(&t->disk->moved);
    pthread_mutex_unlock(&t->disk->lock);
}
static void disk_ready(Tier *t, int stage) { (void)t, (void)stage; } /* whoever settles finds it filled */

/* ---- the file ----------------------------------------------------------------------------------------------------*/

static bool disk_open(Tier *t, Err *e) {
    char size[24];
    struct Disk *d = t->disk = xcalloc(1, sizeof *d);
    d->dir = xstrdup(t->how.dir);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->moved, NULL);
    if ((d->fd = file_unnamed(d->dir, e)) < 0) return false;
    int rc = t->file ? TEMP_FAILURE_RETRY(fallocate(d->fd, 0, 0, (off_t)t->file)) : 0;
    /* a file system that cannot reserve space: a full disk shows when a row is written */
    if (rc && (errno == EOPNOTSUPP || errno == ENOSYS)) rc = ftruncate(d->fd, (off_t)t->file);
    if (rc)
        return err_runtime(e,
                           "cannot reserve %s for rows of the cache in %.120s: %s; free space there, or give "
                           "--cache-disk another folder",
                           bytes_text(t->file, size), d->dir, strerror(errno));
    if (t->nstage < STAGES) return true;
    sigset_t all, before; /* signals are for the thread that computes */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int why = pthread_create(&d->thread, NULL, disk_work, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    d->started = !why;
    return !why || err_runtime(e, "cannot start the thread that reads rows of the cache ahead: %s", strerror(why));
}
static void disk_close(Tier *t) {
    struct Disk *d = t->disk;
    if (!d) return;
    if (d->started) {
        pthread_mutex_lock(&d->lock);
        d->ends = true;
        pthread_cond_broadcast(&d->moved);
        pthread_mutex_unlock(&d->lock);
        CHECK(!pthread_join(d->thread, NULL), "a thread of our own");
    }
    if (d->fd >= 0) close(d->fd);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->moved);
    free(d->dir), free(d);
}
static bool disk_sound(Tier *t) {
    /* A write may fail long after the call, when the system writes its pages to the disk; what is read after that may
     * be old. The file then has an error, for which this asks; beyond its end there is no page to wait for. */
    if (t->ndisk && !disk_failed(t) && sync_file_range(t->disk->fd, (off_t)t->file, 1, SYNC_FILE_RANGE_WAIT_BEFORE) &&
        (errno == EIO || errno == ENOSPC || errno == EDQUOT))
        disk_fails(t, "write", errno);
    return !disk_failed(t);
}
static void disk_report(Tier *t, KvDisk *d) { (void)t, (void)d; }

const TierStore tier_disk = {.open = disk_open,
                             .close = disk_close,
                             .fill = disk_fill,
                             .settle = disk_settle,
                             .ready = disk_ready,
                             .move = disk_move,
                             .copy = disk_copy,
                             .sound = disk_sound,
                             .report = disk_report};
