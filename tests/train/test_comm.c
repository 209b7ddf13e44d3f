/* Collectives between processes: what they compute, that they compute it in the order of ranks, and what happens when a
 * rank is killed, stopped, late or in another call. */
#include "train/comm/comm_pieces.h"
#include "train/comm/comm_shm.h"
#include "train/dist/dist.h"
#include "train/comm/ranks.h"
#include "tests/lib/check.h"
#include <signal.h>
#include <sys/mman.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { W_MAX = 8 };
typedef int Role(int rank, int world, int fd, double deadline); /* exit status of a rank */

/* What ranks say is left here; shared with them. */
typedef struct {
    char msg[W_MAX][304];
    int status[W_MAX];
    double seconds[W_MAX], result[W_MAX];
    atomic_int calls[W_MAX]; /* that a rank has made */
} Board;
static Board *board_make(void) {
    Board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(b != MAP_FAILED);
    return b;
}
static Board *board;

static pid_t rank_start(Role *role, int rank, int world, int fd, double deadline) {
    pid_t pid = fork();
    if (!pid) _exit(role(rank, world, fd, deadline));
    cr_assert(pid > 0);
    return pid;
}
static int ended(pid_t pid) {
    int s;
    cr_assert_eq(waitpid(pid, &s, 0), pid);
    return WIFEXITED(s) ? WEXITSTATUS(s) : 128 + WTERMSIG(s);
}
static void all_ranks(Role *role, int world, double deadline, const int want[]) {
    int fd;
    Err e = {0};
    pid_t pid[W_MAX];
    board = board_make();
    cr_assert(comm_shm_make(world, &fd, &e), "%s", e.msg);
    for (int r = 0; r < world; r++) pid[r] = rank_start(role, r, world, fd, deadline);
    close(fd);
    for (int r = 0; r < world; r++) {
        int got = ended(pid[r]);
        cr_expect(got == (want ? want[r] : 0), "rank %d of %d: %d: %s", r, world, got, board->msg[r]);
    }
}
static int note(int rank, const Err *e) {
    strcpy(board->msg[rank], e->msg);
    return e->status;
}

/* Numbers whose sum depends on the order of additions. */
static double draw(int rank, size_t i) {
    double x = rng_normal(7, i * 64 + (size_t)rank);
    volatile double y = x * pow(10, (double)((i + (size_t)rank * 3) % 8)); /* no part of a fused sum */
    return y;
}
static void fill(void *p, Dtype dt, size_t at, size_t i, int rank) {
    float f = (float)draw(rank, i);
    uint32_t u;
    memcpy(&u, &f, 4);
    if (dt == F64) ((double *)p)[at] = draw(rank, i);
    if (dt == F32) ((float *)p)[at] = f;
    if (dt == BF16) ((uint16_t *)p)[at] = (uint16_t)(u >> 16);
}
/* ((x0 + x1) + x2) + ... by a loop of its own; bf16 through the rounding of the hardware's double. */
static uint64_t expected(Dtype dt, size_t i, int world) {
    if (dt == F64) {
        double s = draw(0, i);
        for (int r = 1; r < world; r++) s += draw(r, i);
        uint64_t u;
        memcpy(&u, &s, 8);
        return u;
    }
    volatile float s = 0;
    for (int r = 0; r < world; r++) {
        float x = (float)draw(r, i);
        uint32_t u;
        memcpy(&u, &x, 4);
        u &= 0xffff0000u;
        if (dt == BF16) memcpy(&x, &u, 4);
        s = r ? s + x : x;
    }
    float t = s;
    uint32_t u;
    memcpy(&u, &t, 4);
    if (dt == F32) return u;
    /* the two neighbours with 8 bits; the nearer one, the even one of two as near */
    uint32_t low = u & 0xffff0000u, high = low + 0x10000u;
    float a, b;
    memcpy(&a, &low, 4);
    memcpy(&b, &high, 4);
    double da = fabs((double)t - (double)a), db = fabs((double)b - (double)t);
    return (da < db || (da == db && !(low >> 16 & 1)) ? low : high) >> 16;
}
static uint64_t number_at(const void *p, Dtype dt, size_t i) {
    uint64_t v = 0;
    memcpy(&v, (const char *)p + i * dtype_size(dt), dtype_size(dt));
    return v;
}

static bool one_call(Comm *c, CommKind kind, Dtype dt, size_t count, Err *e) {
    bool parts = kind == COMM_REDUCE_SCATTER || kind == COMM_GATHER;
    size_t n = count * (parts ? (size_t)c->world : 1), size = dtype_size(dt);
    char *buf = xcalloc(n * size + 64, 1);
    int root = c->world - 1;
    memset(buf + n * size, 0x5a, 64);
    for (size_t i = 0; i < n; i++) fill(buf, dt, i, i, c->rank);
    bool ok = comm_do(c, (CommCall){kind, "a call", buf, count, dt, root, NULL}, e);
    for (size_t i = 0; ok && i < n; i++) {
        uint64_t want = expected(dt, i, c->world), got = number_at(buf, dt, i);
        if (kind == COMM_REDUCE_SCATTER && i / count != (size_t)c->rank) continue;
        if (kind == COMM_GATHER || kind == COMM_BROADCAST) {
            _Alignas(8) char one[8] = {0};
            fill(one, dt, 0, i, kind == COMM_GATHER ? (int)(i / count) : root);
            want = 0;
            memcpy(&want, one, size);
        }
        if (got != want)
            ok = err_runtime(e, "%s %s of %zu: number %zu is %llx, expected %llx", comm_kind_name(kind), dtype_name(dt),
                             count, i, (unsigned long long)got, (unsigned long long)want);
    }
    for (size_t i = 0; ok && i < 64; i++)
        if (buf[n * size + i] != 0x5a) ok = err_runtime(e, "%s wrote behind the buffer", comm_kind_name(kind));
    free(buf);
    return ok;
}
static int computes(int rank, int world, int fd, double deadline) {
    static const size_t counts[] = {0, 1, 2, 31, 1000, 4099};
    static const Dtype types[] = {F32, F64, BF16};
    Comm *c;
    Err e = {0};
    bool ok = comm_shm_open(fd, rank, world, deadline, &c, &e);
    for (int k = COMM_REDUCE; ok && k <= COMM_BROADCAST; k++)
        for (size_t d = 0; ok && d < 3; d++)
            for (size_t i = 0; ok && i < sizeof counts / sizeof *counts; i++)
                ok = one_call(c, (CommKind)k, types[d], counts[i], &e);
    ok = ok && comm_barrier(c, "end", &e);
    if (ok) board->result[rank] = (double)(c->log >> 12);
    if (ok) comm_close(c);
    return ok ? 0 : note(rank, &e);
}
ParameterizedTestParameters(comm, computes_in_the_order_of_ranks) {
    static int worlds[] = {1, 2, 3, 4, 5, 8};
    return cr_make_param_array(int, worlds, sizeof worlds / sizeof *worlds);
}
ParameterizedTest(int *world, comm, computes_in_the_order_of_ranks) {
    all_ranks(computes, *world, 60, NULL);
    for (int r = 1; r < *world; r++) cr_assert(board->result[r] == board->result[0], "logs of calls differ");
}

/* Several chunks of staging memory, and their edges. */
static int large(int rank, int world, int fd, double deadline) {
    Comm *c;
    Err e = {0};
    bool ok = comm_shm_open(fd, rank, world, deadline, &c, &e);
    static const size_t counts[] = {131071, 131072, 131073, 400003};
    for (size_t i = 0; ok && i < 4; i++) {
        float *buf = xcalloc(counts[i], sizeof *buf);
        for (int pass = 0; ok && pass < 2; pass++) { /* twice: what is left in the staging memory must not matter */
            for (size_t k = 0; k < counts[i]; k++) buf[k] = (float)draw(rank, k + (size_t)pass);
            ok = comm_do(c, (CommCall){COMM_REDUCE, "large", buf, counts[i], F32, 0, NULL}, &e);
            for (size_t k = 0; ok && k < counts[i]; k++)
                if (number_at(buf, F32, k) != expected(F32, k + (size_t)pass, world))
                    ok = err_runtime(&e, "%zu numbers: number %zu is %g", counts[i], k, (double)buf[k]);
        }
        free(buf);
    }
    if (ok) comm_close(c);
    return ok ? 0 : note(rank, &e);
}
Test(comm, large_sums) { all_ranks(large, 3, 60 * check_slow(), NULL); }

/* Every number of a buffer is in exactly one piece, and no piece leaves the staging memory. */
Test(comm, pieces_cover) {
    static const size_t counts[] = {0, 1, 15, 16, 17, 1000, 70000};
    for (int world = 1; world <= 7; world++)
        for (int k = COMM_REDUCE; k <= COMM_BROADCAST; k++)
            for (size_t i = 0; i < 7; i++) {
                enum { ROOM = 4096 };
                CommCall call = {(CommKind)k, "x", NULL, counts[i], BF16, world / 2, NULL};
                bool parts = k == COMM_REDUCE_SCATTER || k == COMM_GATHER;
                size_t n = counts[i] * (parts ? (size_t)world : 1);
                unsigned char *seen = xcalloc(n + 1, 1);
                Pieces all = pieces_of(&call, world, ROOM);
                for (size_t c = 0; c < all.chunks; c++)
                    for (int p = 0; p < world; p++) {
                        Piece t = piece(&all, c, p);
                        if (t.n) cr_assert(t.stage + t.bytes <= ROOM && t.stage % 64 == 0 && t.at + t.n <= n);
                        for (size_t j = 0; j < t.n; j++) seen[t.at + j]++;
                    }
                for (size_t j = 0; j < n; j++)
                    cr_assert(seen[j] == 1, "%s, %d ranks, %zu: number %zu in %d pieces", comm_kind_name((CommKind)k),
                              world, counts[i], j, seen[j]);
                free(seen);
            }
}

/* ---- failure: a line that names the rank, the host and the collective, in time --------------------------------------
 */
static int loops(int rank, int world, int fd, double deadline) {
    Comm *c;
    Err e = {0};
    float x[5000] = {0};
    bool ok = comm_shm_open(fd, rank, world, deadline, &c, &e);
    double last = now_seconds();
    while (ok) {
        last = now_seconds();
        ok = comm_do(c, (CommCall){COMM_REDUCE, "gradients of layer 3", x, 5000, F32, 0, NULL}, &e);
        if (ok) board->calls[rank]++;
    }
    board->seconds[rank] = now_seconds() - last;
    return note(rank, &e);
}
static void one_is_lost(int number, double deadline, double within, const char *part) {
    int fd;
    Err e = {0};
    pid_t pid[3];
    char host[64] = "?";
    gethostname(host, sizeof host - 1);
    board = board_make();
    cr_assert(comm_shm_make(3, &fd, &e));
    for (int r = 0; r < 3; r++) pid[r] = rank_start(loops, r, 3, fd, deadline);
    close(fd);
    for (int r = 0; r < 3; r++) /* until they work together */
        while (!board->calls[r]) usleep(1000);
    kill(pid[1], number);
    for (int r = 0; r < 3; r += 2) {
        int got = ended(pid[r]);
        cr_assert(got == EXIT_RUNTIME && strstr(board->msg[r], "rank 1 ") && strstr(board->msg[r], host) &&
                      strstr(board->msg[r], "gradients of layer 3") && strstr(board->msg[r], part),
                  "rank %d: %d: %s", r, got, board->msg[r]);
        cr_assert(board->seconds[r] < within * check_slow(), "rank %d: %g s", r, board->seconds[r]);
    }
    kill(pid[1], SIGKILL);
    cr_assert_eq(ended(pid[1]), 128 + SIGKILL);
}
/* The killed one is not waited for meanwhile: it is a zombie, as a launcher that is busy leaves it. */
Test(comm, killed_rank_is_named_at_once) { one_is_lost(SIGKILL, 60 * check_slow(), 10, "has ended"); }
Test(comm, stopped_rank_is_named_at_the_deadline) { one_is_lost(SIGSTOP, 3 * check_slow(), 20, "it is stopped"); }

static int leaves(int rank, int world, int fd, double deadline) {
    Comm *c;
    Err e = {0};
    if (!comm_shm_open(fd, rank, world, deadline, &c, &e)) return note(rank, &e);
    if (rank == 1) {
        comm_stop(c);
        comm_close(c);
        return 7;
    }
    comm_barrier(c, "step 5", &e);
    return note(rank, &e);
}
Test(comm, a_rank_that_stops_is_named) {
    all_ranks(leaves, 3, 60 * check_slow(), (const int[]){EXIT_RUNTIME, 7, EXIT_RUNTIME});
    for (int r = 0; r < 3; r += 2) { /* a slow one may not yet know that all are there */
        bool where = strstr(board->msg[r], "barrier 'step 5'") || strstr(board->msg[r], "start 'shared memory'");
        cr_assert(where && strstr(board->msg[r], "rank 1 (process") && strstr(board->msg[r], "stopped with an error"),
                  "%s", board->msg[r]);
    }
}

/* All have arrived in the call, so it is done on every rank, whoever stops next. */
static int parts(int rank, int world, int fd, double deadline) {
    Comm *c;
    Err e = {0};
    if (!comm_shm_open(fd, rank, world, deadline, &c, &e) || !comm_barrier(c, "the last", &e)) return note(rank, &e);
    comm_stop(c);
    comm_close(c);
    return 0;
}
Test(comm, a_rank_that_stops_after_a_call_spoils_it_for_none) {
    for (int i = 0; i < 100; i++) all_ranks(parts, 8, 60 * check_slow(), NULL);
}

static int strays(int rank, int world, int fd, double deadline) {
    Comm *c;
    Err e = {0};
    float x[300000];
    memset(x, 0, sizeof x);
    if (!comm_shm_open(fd, rank, world, deadline, &c, &e)) return note(rank, &e);
    bool ok = comm_barrier(c, "same", &e);
    if (ok && rank == 2)
        ok = comm_do(c, (CommCall){COMM_BROADCAST, "weights", x, 17, F32, 0, NULL}, &e);
    else if (ok)
        ok = comm_do(c, (CommCall){COMM_REDUCE, "gradients", x, 300000, F32, 0, NULL}, &e);
    return ok ? 0 : note(rank, &e);
}
Test(comm, another_call_is_named) {
    all_ranks(strays, 3, 60 * check_slow(), (const int[]){1, 1, 1});
    for (int r = 0; r < 2; r++)
        cr_assert(strstr(board->msg[r], "reduce 'gradients' (call 2): rank 2 ") &&
                      strstr(board->msg[r], "broadcast 'weights'"),
                  "%s", board->msg[r]);
    cr_assert(strstr(board->msg[2], "rank 0 ") && strstr(board->msg[2], "reduce 'gradients'"), "%s", board->msg[2]);
}

static int late_one(int rank, int world, int fd, double deadline) {
    Comm *c;
    Err e = {0};
    if (rank == 2) return 0; /* never comes */
    return comm_shm_open(fd, rank, world, deadline, &c, &e) ? 0 : note(rank, &e);
}
Test(comm, a_rank_that_never_comes_is_named) {
    all_ranks(late_one, 3, 2, (const int[]){1, 1, 0});
    for (int r = 0; r < 2; r++)
        cr_assert(strstr(board->msg[r], "rank 2 did not arrive within 2 s"), "%s", board->msg[r]);
}

/* The launcher knows of a rank that ended before it came: those that wait for it end at once, and who is to come,
 * too. */
Test(comm, a_rank_that_ended_before_it_came) {
    int fd;
    Err e = {0};
    pid_t pid[3];
    board = board_make();
    cr_assert(comm_shm_make(3, &fd, &e), "%s", e.msg);
    cr_assert_eq(comm_shm_lost(fd), -1);
    cr_assert_eq(comm_shm_lost(0), -1); /* no such memory */
    pid[0] = rank_start(late_one, 0, 3, fd, 100 * check_slow());
    usleep(50000);
    double begun = now_seconds();
    comm_shm_ended(fd, 2);
    comm_shm_ended(fd, 1); /* the first counts */
    comm_shm_ended(fd, 3);
    pid[1] = rank_start(late_one, 1, 3, fd, 100 * check_slow());
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(ended(pid[r]), EXIT_RUNTIME);
        cr_assert(strstr(board->msg[r], "start 'shared memory' (call 0): rank 2 has ended"), "%s", board->msg[r]);
    }
    cr_assert(now_seconds() - begun < check_slow(), "%g s", now_seconds() - begun);
    cr_assert_eq(comm_shm_lost(fd), 2);
    close(fd);
}

static int differs(int rank, int world, int fd, double deadline) {
    Comm *c;
    Err e = {0};
    bool ok = comm_shm_open(fd, rank, world, deadline, &c, &e) && dist_same(c, "a version", 5, &e) &&
              dist_same(c, "settings", rank == 2 ? 8 : 9, &e);
    return ok ? 0 : note(rank, &e);
}
Test(comm, what_differs_is_named) {
    all_ranks(differs, 4, 60 * check_slow(), (const int[]){2, 2, 2, 2});
    for (int r = 0; r < 4; r++)
        cr_assert(strstr(board->msg[r], "rank 2 of 4 has settings different from rank 0's"), "%s", board->msg[r]);
}

Test(comm, a_descriptor_that_is_none) {
    Comm *c;
    Err e = {0};
    int fd;
    cr_assert(!comm_shm_open(dup(0), 0, 2, 1, &c, &e) && e.status == EXIT_INPUT && strstr(e.msg, "shared memory"), "%s",
              e.msg);
    e = (Err){0};
    cr_assert(comm_shm_make(3, &fd, &e));
    cr_assert(!comm_shm_open(fd, 0, 2, 1, &c, &e) && e.status == EXIT_INPUT, "%s", e.msg);
    e = (Err){0};
    cr_assert(!comm_shm_make(100000, &fd, &e) && e.status == EXIT_INPUT && strstr(e.msg, "at most"), "%s", e.msg);
}
