#include "events.h"
#include "ops/file.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

uint32_t crc32c(const void *p, size_t n) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= ((const unsigned char *)p)[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}
uint32_t events_sum(const void *p, size_t n) {
    uint32_t crc = crc32c(p, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- writing --------------------------------------------------------------------------------------------------------
 */

/* Events are small: a version, or at most 13 values with short names. */
typedef struct {
    size_t n;
    unsigned char b[1024];
} Bytes;
static void events_put(Bytes *o, const void *p, size_t n) {
    CHECK(o->n + n <= sizeof o->b, "%zu bytes", o->n + n);
    memcpy(o->b + o->n, p, n);
    o->n += n;
}
static void put_fixed(Bytes *o, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++, v >>= 8) events_put(o, &(unsigned char){(unsigned char)v}, 1);
}
static void put_varint(Bytes *o, uint64_t v) {
    for (; v > 127; v >>= 7) put_fixed(o, (v & 127) | 128, 1);
    put_fixed(o, v, 1);
}
enum { VARINT, FIXED64, LENGTH, FIXED32 = 5 };
static void put_key(Bytes *o, unsigned field, unsigned wire) { put_varint(o, field << 3 | wire); }
static void put_bytes(Bytes *o, unsigned field, const void *p, size_t n) {
    put_key(o, field, LENGTH);
    put_varint(o, n);
    events_put(o, p, n);
}
static void put_float(Bytes *o, unsigned field, double v) {
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    put_key(o, field, FIXED32);
    put_fixed(o, u, 4);
}
static void put_time(Bytes *o, double now) {
    uint64_t u;
    memcpy(&u, &now, 8);
    put_key(o, 1, FIXED64);
    put_fixed(o, u, 8);
}

static void events_value(Bytes *summary, const char *tag, double v) {
    Bytes one = {0};
    put_bytes(&one, 1, tag, strlen(tag));
    put_float(&one, 2, v);
    put_bytes(summary, 1, one.b, one.n);
}

static bool put_record(Journal *j, const Bytes *event, Err *e) {
    Bytes head = {0};
    char all[sizeof event->b + 16];
    put_fixed(&head, event->n, 8);
    put_fixed(&head, events_sum(head.b, 8), 4);
    memcpy(all, head.b, 12);
    memcpy(all + 12, event->b, event->n);
    head.n = 0;
    put_fixed(&head, events_sum(event->b, event->n), 4);
    memcpy(all + 12 + event->n, head.b, 4);
    return journal_put(j, all, event->n + 16, e);
}

static bool put_event(Journal *j, double now, int64_t step, const Bytes *summary, Err *e) {
    Bytes event = {0};
    put_time(&event, now);
    if (step) put_key(&event, 2, VARINT), put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary->b, summary->n);
    return put_record(j, &event, e);
}

bool events_train(Journal *j, const TrainRecord *r, double now, Err *e) {
    Bytes s = {0};
    events_value(&s, "loss", r->loss);
    if (r->parts.teacher) events_value(&s, "lm", r->parts.lm);
    if (r->parts.has_kl) events_value(&s, "kl", r->parts.kl);
    if (r->parts.has_rkl) events_value(&s, "rkl", r->parts.rkl);
    if (r->parts.has_attention) events_value(&s, "attention", r->parts.attention);
    if (r->parts.has_hidden) events_value(&s, "hidden", r->parts.hidden);
    events_value(&s, "lr", r->lr);
    events_value(&s, "grad_norm", r->grad_norm);
    events_value(&s, "tok_s", r->tok_s);
    if (r->mfu >= 0) events_value(&s, "mfu", r->mfu);
    if (r->reports) events_value(&s, "cr", r->cr), events_value(&s, "cr_loss", r->cr_loss);
    return put_event(j, now, r->step, &s, e);
}

bool events_val(Journal *j, const ValRecord *r, double now, Err *e) {
    Bytes s = {0};
    events_value(&s, "val_loss", r->loss);
    if (r->reports) events_value(&s, "val_cr", r->cr);
    if (r->task) events_value(&s, "val_acc", r->acc), events_value(&s, "val_acc_all", r->acc_all);
    return put_event(j, now, r->step, &s, e);
}

/* ---- reading back ---------------------------------------------------------------------------------------------------
 */

static uint64_t events_fixed(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    for (int i = bytes; i-- > 0;) v = v << 8 | p[i];
    return v;
}
static bool events_varint(const unsigned char *p, size_t n, size_t *at, uint64_t *v) {
    *v = 0;
    for (int shift = 0; shift < 64 && *at < n; shift += 7) {
        unsigned char c = p[(*at)++];
        if (shift == 63 && c > 1) return false;
        *v |= (uint64_t)(c & 127) << shift;
        if (c < 128) return true;
    }
    return false;
}

/* Step of an Event, 0 when it names none; -1: it is none. *version: it has a file_version. */
static int64_t event_step(const unsigned char *p, size_t n, bool *version) {
    uint64_t key, v = 0;
    int64_t step = 0;
    *version = false;
    for (size_t at = 0; at < n;) {
        if (!events_varint(p, n, &at, &key)) return -1;
        unsigned wire = key & 7;
        size_t size = wire == FIXED64 ? 8 : wire == FIXED32 ? 4 : 0;
        if (wire != FIXED64 && wire != FIXED32 && (wire > LENGTH || !events_varint(p, n, &at, &v))) return -1;
        if (wire == LENGTH) {
            if (v > n) return -1;
            size = (size_t)v;
        }
        if (size > n - at) return -1;
        at += size;
        if (key >> 3 == 2 && wire == VARINT) step = v > INT64_MAX ? -1 : (int64_t)v;
        if (step < 0) return -1;
        *version |= key >> 3 == 3 && wire == LENGTH;
    }
    return step;
}

size_t events_kept(const unsigned char *p, size_t n, int64_t step) {
    size_t at = 0;
    while (n - at >= 16) {
        const unsigned char *r = p + at;
        uint64_t size = events_fixed(r, 8);
        bool version;
        if (events_sum(r, 8) != events_fixed(r + 8, 4) || size > n - at - 16) break;
        if (events_sum(r + 12, (size_t)size) != events_fixed(r + 12 + size, 4)) break;
        int64_t s = event_step(r + 12, (size_t)size, &version);
        if (s < 0 || s > step || (!at && !version)) break;
        at += (size_t)size + 16;
    }
    return at;
}

/* The folder, not through a link; -1 with `e` clear: it is not there and not wanted. */
static int folder_open(const RunDir *d, const char *dir, bool wanted, Err *e) {
    if (wanted && mkdirat(d->fd, EVENTS_DIR, 0777) && errno != EEXIST) {
        err_errno(e, "cannot make the folder of TensorBoard events", dir);
        return -1;
    }
    int fd = TEMP_FAILURE_RETRY(openat(d->fd, EVENTS_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0 && (wanted || errno != ENOENT))
        err_errno(e, "cannot open the folder of TensorBoard events (a link is not allowed)", dir);
    return fd;
}

bool events_open(Journal *j, const RunDir *d, int64_t step, bool wanted, double now, Err *e) {
    char *dir = run_dir_file(d, EVENTS_DIR), *path = xformat("%s/" EVENTS_FILE, dir);
    FileMap map;
    struct stat st;
    size_t keep = 0;
    *j = (Journal){0};
    e->status = 0;
    int fd = folder_open(d, dir, wanted, e);
    bool ok = !e->status, there = ok && fd >= 0 && file_look(path, &st, e);
    ok = ok && !e->status;
    if (ok && there && step >= 0) {
        ok = file_map(&map, path, e);
        if (ok) {
            keep = events_kept(map.p, map.n, step);
            file_unmap(&map);
        }
    }
    ok = ok && (!(wanted || there) || journal_append(j, fd, EVENTS_FILE, path, keep, e));
    if (ok && j->f && !keep) {
        static const char version[] = "brain.Event:2";
        Bytes first = {0};
        put_time(&first, now);
        put_bytes(&first, 3, version, sizeof version - 1);
        ok = put_record(j, &first, e) && file_sync_folder(path, e) && file_sync_folder(dir, e);
    }
    if (fd >= 0) close(fd);
    free(dir);
    free(path);
    return ok;
}
