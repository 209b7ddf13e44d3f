#include "rendezvous_file.h"
#include "ops/file.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "kvsmfile";
enum { POLL_US = 20000, WORLD_MOST = 1 << 20 };

uint64_t rendezvous_file_sum(const uint8_t *p, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return h;
}

/* ---- a file ---------------------------------------------------------------------------------------------------------
 */

size_t rendezvous_file_size(int rank, int world, size_t n) {
    return RENDEZVOUS_FILE_HEAD + (rank ? 0 : 8 * ((size_t)world - 1) + n) + 8;
}
bool rendezvous_file_read(const uint8_t *p, size_t size, RendezvousNote *x) {
    if (size < RENDEZVOUS_FILE_HEAD + 8 || memcmp(p, magic, 8) || rendezvous_get(p + 8, 4) != RENDEZVOUS_FILE_VERSION)
        return false;
    uint64_t rank = rendezvous_get(p + 12, 4), world = rendezvous_get(p + 16, 4), restart = rendezvous_get(p + 20, 4),
             n = rendezvous_get(p + 56, 4);
    if (world < 2 || world > WORLD_MOST || rank >= world || restart > INT32_MAX || n > RENDEZVOUS_BYTES_MAX)
        return false;
    if (rendezvous_get(p + 60, 4) || (rank && n) || size != rendezvous_file_size((int)rank, (int)world, n))
        return false;
    if (rendezvous_get(p + size - 8, 8) != rendezvous_file_sum(p, size - 8)) return false;
    *x = (RendezvousNote){.key = {.rank = (int)rank,
                                  .world = (int)world,
                                  .restart = (int)restart,
                                  .job = rendezvous_get(p + 24, 8),
                                  .config = rendezvous_get(p + 32, 8)},
                          .number = rendezvous_get(p + 40, 8),
                          .answers = rendezvous_get(p + 48, 8),
                          .n = n};
    x->numbers = rank ? NULL : p + RENDEZVOUS_FILE_HEAD;
    x->bytes = rank ? NULL : x->numbers + 8 * (world - 1);
    return true;
}
static void file_make(uint8_t *p, const RendezvousKey *k, uint64_t number, uint64_t answers, const uint64_t *numbers,
                      const void *bytes, size_t n) {
    size_t size = rendezvous_file_size(k->rank, k->world, n);
    memcpy(p, magic, 8);
    rendezvous_put(p + 8, RENDEZVOUS_FILE_VERSION, 4);
    rendezvous_put(p + 12, (uint64_t)k->rank, 4);
    rendezvous_put(p + 16, (uint64_t)k->world, 4);
    rendezvous_put(p + 20, (uint64_t)k->restart, 4);
    rendezvous_put(p + 24, k->job, 8);
    rendezvous_put(p + 32, k->config, 8);
    rendezvous_put(p + 40, number, 8);
    rendezvous_put(p + 48, answers, 8);
    rendezvous_put(p + 56, n, 4);
    rendezvous_put(p + 60, 0, 4);
    uint8_t *at = p + RENDEZVOUS_FILE_HEAD;
    for (int r = 1; !k->rank && r < k->world; r++, at += 8) rendezvous_put(at, numbers[r], 8);
    if (n) memcpy(at, bytes, n);
    rendezvous_put(p + size - 8, rendezvous_file_sum(p, size - 8), 8);
}

/* ---- on the disk ----------------------------------------------------------------------------------------------------
 */

typedef struct {
    const RendezvousKey *key;
    const char *path;
    uint64_t number; /* this rank's */
    uid_t owner;     /* of this rank's first note: the others' have the same one */
    bool owned;      /* it is known */
    uint8_t *file;   /* room for the largest, and one byte */
    size_t room;
} Meet;

static char *rendezvous_file_name_of(const Meet *m, int rank) {
    return rank ? xformat("%s.%d", m->path, rank) : xstrdup(m->path);
}
static bool note_write(Meet *m, size_t size, Err *e) {
    char *to = rendezvous_file_name_of(m, m->key->rank);
    struct stat st;
    bool ok = file_write(to, m->file, size, e);
    /* Compares the owner in the file system: over a network root may be another user. Only for the first note: rank 0
     * removes the last one as soon as it has read it. */
    if (ok && !m->owned && stat(to, &st)) ok = err_errno(e, "cannot read", to);
    if (ok && !m->owned) m->owner = st.st_uid, m->owned = true;
    free(to);
    return ok;
}
/* Reads the note of rank `rank`; false: missing or incomplete. */
static bool file_load(const Meet *m, int rank, RendezvousNote *x) {
    char *path = rendezvous_file_name_of(m, rank);
    /* A pipe, or worse, is no file of ours and must not hold us up. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    size_t size = 0;
    bool ok = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == m->owner;
    while (ok && size < m->room) {
        ssize_t n = read(fd, m->file + size, m->room - size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        size += (size_t)n;
    }
    if (fd >= 0) close(fd);
    free(path);
    return ok && rendezvous_file_read(m->file, size, x) && x->key.rank == rank;
}
static bool same_start(const RendezvousKey *a, const RendezvousKey *b) {
    return a->job == b->job && a->restart == b->restart;
}
/* The note is of the same job and start, so it must be of the same run. */
static bool rendezvous_file_fits(const RendezvousKey *mine, const RendezvousKey *theirs, Err *e) {
    if (theirs->world != mine->world)
        return err_input(e, "rank %d: this rank was started with %d ranks, but with %d on rank %d", mine->rank,
                         mine->world, theirs->world, theirs->rank);
    if (theirs->config != mine->config)
        return err_input(e, "rank %d: configuration %016llx differs from rank %d's %016llx: all ranks need the same",
                         mine->rank, (unsigned long long)mine->config, theirs->rank,
                         (unsigned long long)theirs->config);
    return true;
}

/* ---- rank 0 ---------------------------------------------------------------------------------------------------------
 */

static bool rendezvous_file_host(Meet *m, double until, double deadline, const void *bytes, size_t n, Err *e) {
    const RendezvousKey *k = m->key;
    int W = k->world, left = W - 1;
    uint64_t *numbers = xcalloc((size_t)W, sizeof *numbers);
    bool *has = xcalloc((size_t)W, 1), news = true, wrote = false, ok = true;
    char odd[100] = "";
    while (ok && left && now_seconds() < until) {
        if (news) {
            file_make(m->file, k, m->number, 0, numbers, bytes, n);
            ok = note_write(m, rendezvous_file_size(0, W, n), e);
            wrote |= ok;
            news = false;
        }
        for (int r = 1; ok && r < W; r++) {
            RendezvousNote x;
            if (has[r] || !file_load(m, r, &x)) continue;
            if (!same_start(&x.key, k)) {
                snprintf(odd, sizeof odd, "; rank %d left a file of another start", r);
                continue; /* an old one, or the right one is still to come */
            }
            if (x.answers == m->number) {
                has[r] = true;
                left--;
            } else if (numbers[r] != x.number) { /* one with other settings reads that in the answer, and ends */
                numbers[r] = x.number;
                news = true;
            }
        }
        if (ok && left && !news) usleep(POLL_US);
    }
    if (ok && left) {
        int first = 1;
        while (has[first]) first++;
        ok = err_runtime(e, "rank 0: rank %d%s did not arrive in %.100s within %g s%s", first,
                         left > 1 ? " and others" : "", m->path, deadline, odd);
    }
    for (int r = 0; r < W; r++)
        if (r ? has[r] : wrote) {
            char *path = rendezvous_file_name_of(m, r);
            unlink(path);
            free(path);
        }
    free(numbers);
    free(has);
    return ok;
}

/* ---- the others -----------------------------------------------------------------------------------------------------
 */

static bool rendezvous_file_guest(Meet *m, double until, double deadline, void *bytes, size_t n, Err *e) {
    const RendezvousKey *k = m->key;
    bool there = false;
    file_make(m->file, k, m->number, 0, NULL, NULL, 0);
    if (!note_write(m, rendezvous_file_size(k->rank, k->world, 0), e)) return false;
    while (now_seconds() < until) {
        RendezvousNote x;
        bool whole = file_load(m, 0, &x);
        there |= whole;
        bool ours = whole && same_start(&x.key, k) && k->rank < x.key.world &&
                    rendezvous_get(x.numbers + 8 * (size_t)(k->rank - 1), 8) == m->number;
        if (ours) {
            if (!rendezvous_file_fits(k, &x.key, e) || x.n != n) break;
            memcpy(bytes, x.bytes, n);
            file_make(m->file, k, m->number, x.number, NULL, NULL, 0);
            return note_write(m, rendezvous_file_size(k->rank, k->world, 0), e);
        }
        usleep(POLL_US);
    }
    char *path = rendezvous_file_name_of(m, k->rank);
    unlink(path);
    free(path);
    if (e->status) return false;
    return err_runtime(e, "rank %d: rank 0 did not answer in %.100s within %g s%s", k->rank, m->path, deadline,
                       there ? "; its file is of another start" : "; its file is incomplete");
}

bool rendezvous_file_share(const RendezvousKey *k, const char *path, double deadline, void *bytes, size_t n, Err *e) {
    CHECK(n <= RENDEZVOUS_BYTES_MAX && k->world > 1 && k->rank < k->world, "%zu bytes", n);
    double until = now_seconds() + deadline;
    Meet m = {.key = k, .path = path, .room = rendezvous_file_size(0, k->world, RENDEZVOUS_BYTES_MAX) + 1};
    while (!m.number)
        if (!rendezvous_random(&m.number, sizeof m.number, e)) return false;
    m.file = xcalloc(m.room, 1);
    bool ok = k->rank ? rendezvous_file_guest(&m, until, deadline, bytes, n, e)
                      : rendezvous_file_host(&m, until, deadline, bytes, n, e);
    free(m.file);
    return ok;
}
