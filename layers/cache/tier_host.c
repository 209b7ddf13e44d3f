/* tier_host.c: rows of a tier in pinned memory of the host, which a GPU reads by copies of a second queue. Kernels and
 * copies of its own queue write them where they lie, over the bus. */
#include "tier_store.h"
#include "ops/comm_stream.h"
#include "ops/text.h"

struct Host {
    const Memory *home;
    char *base; /* Tier.file bytes; NULL: none */
    CommStream *queue;
};

static bool host_open(Tier *t, Err *e) {
    char size[24];
    struct Host *h = t->host = xcalloc(1, sizeof *h);
    if (!t->file) return true;
    if (!comm_stream_open_at(t->dev, &h->queue, e)) return false;
    h->home = device_memory(t->dev, true);
    if (!(h->base = h->home->take(h->home, t->file)))
        return err_runtime(e,
                           "out of memory: cannot pin %s of the host's memory for rows of the cache; a larger "
                           "--cache-memory, or fewer or shorter sequences, need less",
                           bytes_text(t->file, size));
    h->home->unnote(h->home, h->base, t->file);
    for (int i = 0; i < t->nslots; i++) {
        Slot *s = &t->slot[i];
        if (!s->tier) continue;
        s->t.data.p = h->base + s->at;
        h->home->note(h->home, s->t.data.p, tensor_bytes(s->t.data), "cache rows of the host");
    }
    return true;
}
static void host_close(Tier *t) {
    struct Host *h = t->host;
    if (!h) return;
    if (h->queue && h->base) (void)comm_stream_download(h->queue, NULL, NULL, 0); /* waits: it may read ahead */
    if (h->base) h->home->give(h->home, h->base);
    comm_stream_close(h->queue);
    free(h);
}

static void host_must(Tier *t, bool done) {
    if (!done && !t->why.status)
        err_runtime(&t->why, "cannot copy rows of the cache to the device: %s", comm_stream_why(t->host->queue));
}
/* Follows all that the device was given so far: rows that it still writes, and what it still reads of the buffer. */
static void host_fill(Tier *t, int stage, bool ahead) {
    (void)ahead;
    struct Host *h = t->host;
    const Slot *s = &t->slot[t->stage[stage].slot];
    const size_t page = page_bytes(s);
    host_must(t, comm_stream_follow(h->queue, t->dev));
    for (int i = 0; i < t->pieces; i++) {
        const size_t at = (size_t)t->piece[i].page * page, n = (size_t)t->piece[i].n * page;
        host_must(t, comm_stream_upload(h->queue, t->stage[stage].p + at, h->base + s->at + at, n));
        t->sum.read += n;
    }
    host_must(t, comm_stream_mark(h->queue, stage));
}
static void host_settle(Tier *t) { (void)t; } /* copies have their arguments, and follow each other */
static void host_ready(Tier *t, int stage) { host_must(t, comm_stream_lead(t->host->queue, stage)); }

static void host_move(Tier *t, size_t at, char *p, size_t n, bool writes) {
    char *rows = t->host->base + at;
    device_sync(t->dev);
    if (writes)
        memcpy(rows, p, n);
    else
        memcpy(p, rows, n);
    *(writes ? &t->sum.written : &t->sum.read) += n;
}
static void host_copy(Tier *t, size_t to, size_t from, size_t n) {
    device_copy(t->dev, t->host->base + to, t->host->base + from, n);
    t->sum.read += n, t->sum.written += n;
}
static bool host_sound(Tier *t) { return !t->why.status; }
static void host_report(Tier *t, KvDisk *d) { d->waited = t->host->queue ? comm_stream_waited(t->host->queue) : 0; }

const TierStore tier_host = {.open = host_open,
                             .close = host_close,
                             .fill = host_fill,
                             .settle = host_settle,
                             .ready = host_ready,
                             .move = host_move,
                             .copy = host_copy,
                             .sound = host_sound,
                             .report = host_report,
                             .idle = true};
