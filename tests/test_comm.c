/* Collectives between processes: what they compute, that they compute it in the order of ranks, and what happens when a
 * rank is killed, stopped, late or in another call; and the meeting before them. */
#include "../train/comm_pieces.h"
#include "../train/comm_shm.h"
#include "../train/store.h"
#include "../train/dist.h"
#include "../train/ranks.h"
#include "check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
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
            ok = err_world(e, "%s %s of %zu: number %zu is %llx, expected %llx", comm_kind_name(kind), dtype_name(dt),
                           count, i, (unsigned long long)got, (unsigned long long)want);
    }
    for (size_t i = 0; ok && i < 64; i++)
        if (buf[n * size + i] != 0x5a) ok = err_world(e, "%s wrote behind the buffer", comm_kind_name(kind));
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
                    ok = err_world(&e, "%zu numbers: number %zu is %g", counts[i], k, (double)buf[k]);
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
        cr_assert(got == EXIT_WORLD && strstr(board->msg[r], "rank 1 ") && strstr(board->msg[r], host) &&
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
    all_ranks(leaves, 3, 60 * check_slow(), (const int[]){EXIT_WORLD, 7, EXIT_WORLD});
    for (int r = 0; r < 3; r += 2) { /* a slow one may not yet know that all are there */
        bool where = strstr(board->msg[r], "barrier 'step 5'") || strstr(board->msg[r], "start 'shared memory'");
        cr_assert(where && strstr(board->msg[r], "rank 1 (process") && strstr(board->msg[r], "stopped with an error"),
                  "%s", board->msg[r]);
    }
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
    for (int r = 0; r < 2; r++) cr_assert(strstr(board->msg[r], "rank 2 did not come within 2 s"), "%s", board->msg[r]);
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
        cr_assert(strstr(board->msg[r], "rank 2 of 4 has other settings than rank 0"), "%s", board->msg[r]);
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

/* ---- the meeting ----------------------------------------------------------------------------------------------------
 */
static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(s >= 0 && !bind(s, (struct sockaddr *)&a, n) && !getsockname(s, (struct sockaddr *)&a, &n));
    close(s);
    return ntohs(a.sin_port);
}
static int stranger(int port, const void *p, size_t n) { /* stays connected */
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    for (int i = 0; i < 200 * check_slow(); i++) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        if (!connect(s, (struct sockaddr *)&a, sizeof a)) {
            if (n) cr_assert(write(s, p, n) == (ssize_t)n);
            return s;
        }
        close(s);
        usleep(10000);
    }
    cr_assert_fail("nobody listens at %d", port);
    return -1;
}
typedef struct {
    StoreKey key;
    StoreAt at;
    double deadline;
} Meet;
static pid_t meet(Meet m) {
    pid_t pid = fork();
    if (pid) return pid;
    uint8_t id[128];
    Err e = {0};
    int r = m.key.rank < W_MAX ? m.key.rank : W_MAX - 1;
    for (int i = 0; i < 128; i++) id[i] = r ? 0 : (uint8_t)(i * 3 + 1);
    bool ok = store_share(&m.key, m.at, m.deadline, id, sizeof id, NULL, &e);
    for (int i = 0; ok && i < 128; i++)
        if (id[i] != (uint8_t)(i * 3 + 1)) ok = err_world(&e, "byte %d is %d", i, id[i]);
    _exit(ok ? 0 : note(r, &e));
}

Test(store, all_get_what_rank_0_has) {
    board = board_make();
    int port = free_port();
    pid_t pid[4];
    for (int r = 3; r >= 0; r--) { /* rank 0 comes last */
        pid[r] = meet((Meet){{.job = 5, .config = 6, .rank = r, .world = 4},
                             {.host = "127.0.0.1", .port = port},
                             30 * check_slow()});
        usleep(20000);
    }
    for (int r = 0; r < 4; r++) cr_assert(!ended(pid[r]), "rank %d: %s", r, board->msg[r]);
}
/* The port is another program's, which says nothing, or too much. */
Test(store, next_port_when_it_is_taken) {
    board = board_make();
    int port = free_port();
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(!bind(s, (struct sockaddr *)&a, sizeof a) && !listen(s, 5));
    pid_t other = fork();
    if (!other)
        for (;;) {
            int g = accept(s, NULL, NULL);
            if (g >= 0 && write(g, "HTTP/1.1 400 no such thing, and a line that is long enough\r\n", 60) < 0) _exit(1);
            close(g);
        }
    pid_t pid[2];
    for (int r = 0; r < 2; r++)
        pid[r] =
            meet((Meet){{.job = 5, .rank = r, .world = 2}, {.host = "127.0.0.1", .port = port}, 30 * check_slow()});
    for (int r = 0; r < 2; r++) cr_assert(!ended(pid[r]), "rank %d: %s", r, board->msg[r]);
    kill(other, SIGKILL);
    ended(other);
}
Test(store, strangers_are_ignored) {
    board = board_make();
    int port = free_port();
    StoreKey k = {.job = 5, .config = 6, .rank = 1, .world = 2};
    uint8_t hello[STORE_HELLO];
    store_hello_write(&k, hello);
    pid_t zero = meet(
        (Meet){{.job = 5, .config = 6, .rank = 0, .world = 2}, {.host = "127.0.0.1", .port = port}, 30 * check_slow()});
    int s[80];
    for (int i = 0; i < 76; i++) s[i] = stranger(port, "", 0); /* more than there are places */
    s[76] = stranger(port, "GET / HTTP/1.0\r\n\r\n", 18);
    s[77] = stranger(port, hello, 17);          /* half a hello */
    s[78] = stranger(port, hello, STORE_HELLO); /* a whole one, and never a thank you */
    s[79] = stranger(port,
                     "kvsmstor\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377"
                     "\377\377\377\377\377\377\377\377\377\377",
                     40);
    pid_t one = meet((Meet){k, {.host = "127.0.0.1", .port = port}, 30 * check_slow()});
    cr_assert(!ended(one), "%s", board->msg[1]);
    cr_assert(!ended(zero), "%s", board->msg[0]);
    for (int i = 0; i < 80; i++) close(s[i]);
}
Test(store, who_does_not_belong_is_told) {
    board = board_make();
    int port = free_port();
    StoreAt at = {.host = "127.0.0.1", .port = port};
    StoreKey k = {.job = 5, .config = 6, .rank = 1, .world = 2, .restart = 3};
    StoreKey zero = k;
    zero.rank = 0;
    pid_t host = meet((Meet){zero, at, 30});
    const struct {
        int field;
        const char *part;
    } cases[] = {{0, "start 2 of the job, rank 0 is in start 3"},
                 {1, "4 ranks were told to this one, 2 to rank 0"},
                 {2, "configuration 0000000000000007 differs from rank 0's 0000000000000006"}};
    for (size_t i = 0; i < 3; i++) {
        StoreKey bad = k;
        if (cases[i].field == 0) bad.restart = 2;
        if (cases[i].field == 1) bad.world = 4;
        if (cases[i].field == 2) bad.config = 7;
        cr_assert_eq(ended(meet((Meet){bad, at, 20})), EXIT_INPUT);
        cr_assert(strstr(board->msg[1], cases[i].part) && strstr(board->msg[1], "rank 1"), "%s", board->msg[1]);
    }
    /* Another job's is not ours, and an early rank of the next start waits for its own rank 0. */
    StoreKey other = k, next = k;
    other.job = 9;
    next.restart = 4;
    cr_assert_eq(ended(meet((Meet){other, at, 0.4})), EXIT_WORLD);
    cr_assert(strstr(board->msg[1], "was not found"), "%s", board->msg[1]);
    cr_assert_eq(ended(meet((Meet){next, at, 0.4})), EXIT_WORLD);
    pid_t good = meet((Meet){k, at, 30});
    cr_assert(!ended(good), "%s", board->msg[1]);
    cr_assert(!ended(host), "%s", board->msg[0]);
}
Test(store, who_does_not_come_is_named) {
    board = board_make();
    int port = free_port();
    StoreAt at = {.host = "127.0.0.1", .port = port};
    pid_t zero = meet((Meet){{.job = 5, .config = 6, .rank = 0, .world = 3}, at, 1});
    pid_t one = meet((Meet){{.job = 5, .config = 6, .rank = 1, .world = 3}, at, 1});
    pid_t two = meet((Meet){{.job = 5, .config = 7, .rank = 2, .world = 3}, at, 1});
    cr_assert_eq(ended(two), EXIT_INPUT);
    cr_assert_eq(ended(one), 0);
    cr_assert_eq(ended(zero), EXIT_WORLD);
    cr_assert(strstr(board->msg[0], "rank 2 did not come within 1 s") &&
                  strstr(board->msg[0], "another configuration was refused"),
              "%s", board->msg[0]);
}
Test(store, needs_an_address) {
    StoreKey k = {.rank = 1, .world = 2};
    Err e = {0};
    cr_assert(!store_share(&k, (StoreAt){.host = "", .port = 0}, 1, NULL, 0, NULL, &e) && e.status == EXIT_INPUT &&
                  strstr(e.msg, "MASTER_ADDR"),
              "%s", e.msg);
}
Test(store, a_descriptor_on_one_machine) {
    board = board_make();
    StoreKey k = {.job = rng_mix(1, (uint64_t)getpid()), .world = 3};
    pid_t pid[3];
    for (int r = 0; r < 3; r++)
        if (!(pid[r] = fork())) {
            Err e = {0};
            int fd = -1;
            char text[6] = "";
            k.rank = r;
            if (!r) fd = memfd_create("x", 0);
            if (!r && pwrite(fd, "hello", 5, 0) != 5) _exit(9);
            bool ok = store_share(&k, (StoreAt){.local = true}, 20 * check_slow(), NULL, 0, &fd, &e);
            if (ok && (pread(fd, text, 5, 0) != 5 || strcmp(text, "hello"))) _exit(8);
            _exit(ok ? 0 : note(r, &e));
        }
    for (int r = 0; r < 3; r++) cr_assert(!ended(pid[r]), "rank %d: %s", r, board->msg[r]);
}
Test(store, a_second_rank_0_is_refused) {
    board = board_make();
    StoreKey k = {.job = rng_mix(2, (uint64_t)getpid()), .world = 2};
    Meet m = {k, {.local = true}, check_slow()};
    pid_t a = meet(m);
    usleep((unsigned)(300000 * fmin(check_slow(), 10)));
    pid_t b = meet(m);
    cr_assert_eq(ended(b), EXIT_INPUT);
    cr_assert(strstr(board->msg[0], "running here already"), "%s", board->msg[0]);
    cr_assert_eq(ended(a), EXIT_WORLD);
}

/* ---- two hosts, for which two network namespaces stand --------------------------------------------------------------
 */
enum { HOSTS = 2 };
static int in_namespace(pid_t pid, const char *command) {
    char *line = xformat("nsenter -t %d -n %s >/dev/null 2>&1", (int)pid, command);
    int rc = system(line);
    free(line);
    return rc;
}
/* A process in a network namespace of its own; it goes on with `role` when a byte comes through the pipe. */
static pid_t host_start(int rank, double deadline, const int go[2], const int ready[2]) {
    pid_t pid = fork();
    if (pid) return pid;
    char c = (char)unshare(CLONE_NEWNET);
    if (write(ready[1], &c, 1) != 1 || c || read(go[0], &c, 1) != 1) _exit(77);
    pid_t two =
        meet((Meet){{.job = 5, .config = 6, .rank = rank, .world = 2}, {.host = "10.77.0.1", .port = 29500}, deadline});
    _exit(ended(two));
}
static bool hosts_start(pid_t pid[HOSTS], int go[2], double deadline) {
    int ready[2];
    bool ok = true;
    board = board_make();
    cr_assert(!pipe(go) && !pipe(ready));
    for (int r = 0; r < HOSTS; r++) {
        char c = 1;
        pid[r] = host_start(r, deadline, go, ready);
        if (read(ready[0], &c, 1) != 1 || c) ok = false;
    }
    char *link = xformat("link add kv0 type veth peer name kv1 netns %d", (int)pid[1]), *up = xformat("ip %s", link);
    ok = ok && !in_namespace(pid[0], up) && !in_namespace(pid[0], "ip addr add 10.77.0.1/24 dev kv0") &&
         !in_namespace(pid[1], "ip addr add 10.77.0.2/24 dev kv1") && !in_namespace(pid[0], "ip link set kv0 up") &&
         !in_namespace(pid[1], "ip link set kv1 up");
    free(link);
    free(up);
    for (int r = 0; r < HOSTS && !ok; r++) {
        kill(pid[r], SIGKILL);
        ended(pid[r]);
    }
    return ok;
}
Test(store, two_hosts) {
    pid_t pid[HOSTS];
    int go[2];
    if (!hosts_start(pid, go, 30 * check_slow())) cr_skip_test();
    cr_assert_eq(write(go[1], "gg", 2), 2);
    for (int r = 0; r < HOSTS; r++) cr_assert(!ended(pid[r]), "rank %d: %s", r, board->msg[r]);
}
/* The link goes down before they have met: both say so at their deadline. */
Test(store, two_hosts_whose_link_is_down) {
    pid_t pid[HOSTS];
    int go[2];
    if (!hosts_start(pid, go, 2)) cr_skip_test();
    cr_assert(!in_namespace(pid[0], "ip link set kv0 down"));
    double begun = now_seconds();
    cr_assert_eq(write(go[1], "gg", 2), 2);
    for (int r = 0; r < HOSTS; r++) cr_assert_eq(ended(pid[r]), EXIT_WORLD);
    cr_assert(now_seconds() - begun < 15 * check_slow(), "%g s", now_seconds() - begun);
    cr_assert(strstr(board->msg[0], "rank 1 did not come within 2 s"), "%s", board->msg[0]);
    cr_assert(strstr(board->msg[1], "rank 0 was not found at 10.77.0.1"), "%s", board->msg[1]);
}
