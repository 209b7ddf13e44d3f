/* Ranks that meet by files: what others left, whole or not, is never taken. Its own bytes are made here a second time,
 * from the layout in rendezvous_file.h. */
#include "train/comm/rendezvous_file.h"
#include "tests/lib/check.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 128, RANKS = 4 };
typedef struct {
    char msg[RANKS][512];
    uint8_t got[RANKS][BYTES];
} Board;
static Board *board_make(void) {
    Board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(b != MAP_FAILED);
    return b;
}
static RendezvousKey key(int rank, int world) {
    return (RendezvousKey){.job = 5, .config = 6, .rank = rank, .world = world, .restart = 2};
}
static pid_t meet(Board *b, RendezvousKey k, const char *path, double deadline, int first) {
    pid_t pid = fork();
    if (pid) return pid;
    Err e = {0};
    uint8_t bytes[BYTES] = {0};
    for (int i = 0; !k.rank && i < BYTES; i++) bytes[i] = (uint8_t)(first + i);
    bool ok = rendezvous_file_share(&k, path, deadline, bytes, BYTES, &e);
    memcpy(b->got[k.rank], bytes, BYTES);
    snprintf(b->msg[k.rank], sizeof b->msg[0], "%s", e.msg);
    _exit(ok ? 0 : e.status);
}
static int ended(pid_t pid) {
    int st = 0;
    cr_assert(waitpid(pid, &st, 0) == pid);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 128;
}
static void put(uint8_t *p, uint64_t v, int n) {
    for (int i = 0; i < n; i++) p[i] = (uint8_t)(v >> 8 * i);
}
static uint64_t sum(const uint8_t *p, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}
/* As another start of W ranks would have left it: of rank 0 an answer to `numbers`. */
static size_t left(uint8_t *p, RendezvousKey k, uint64_t number, uint64_t answers, uint64_t numbers) {
    size_t at = 64;
    memcpy(p, "kvsmfile", 8);
    const uint64_t head[] = {1, (uint64_t)k.rank, (uint64_t)k.world, (uint64_t)k.restart};
    for (int i = 0; i < 4; i++) put(p + 8 + 4 * i, head[i], 4);
    put(p + 24, k.job, 8), put(p + 32, k.config, 8), put(p + 40, number, 8), put(p + 48, answers, 8);
    put(p + 56, k.rank ? 0 : BYTES, 4), put(p + 60, 0, 4);
    for (int r = 1; !k.rank && r < k.world; r++, at += 8) put(p + at, numbers, 8);
    if (!k.rank) memset(p + at, 0xEE, BYTES), at += BYTES;
    put(p + at, sum(p, at), 8);
    return at + 8;
}
static void all_have(Board *b, int W, int first) {
    for (int r = 1; r < W; r++)
        for (int i = 0; i < BYTES; i++)
            cr_assert(b->got[r][i] == (uint8_t)(first + i), "rank %d: byte %d is %d", r, i, b->got[r][i]);
}
static void none_left(const char *path, int W) {
    for (int r = 0; r < W; r++) {
        char *p = r ? xformat("%s.%d", path, r) : xstrdup(path);
        cr_assert(!check_exists(p), "%s is left", p);
        free(p);
    }
}

Test(rendezvous_file, all_get_what_rank_0_has) {
    Board *b = board_make();
    char *path = check_path("meeting");
    for (int round = 0; round < 2; round++) { /* in both orders, and a second time by the same name */
        pid_t pid[RANKS];
        for (int i = 0; i < RANKS; i++) {
            int r = round ? i : RANKS - 1 - i;
            pid[r] = meet(b, key(r, RANKS), path, 30 * check_slow(), 7 * round + 1);
            usleep(30000);
        }
        for (int r = 0; r < RANKS; r++) cr_assert(!ended(pid[r]), "rank %d: %s", r, b->msg[r]);
        all_have(b, RANKS, 7 * round + 1);
        none_left(path, RANKS);
    }
    free(path);
}
/* An answer and notes of the same job, start, settings and ranks, as a start that was killed leaves them; and what is
 * none of ours. */
Test(rendezvous_file, what_was_left_is_not_taken) {
    Board *b = board_make();
    char *path = check_path("meeting"), *one = xformat("%s.1", path);
    uint8_t old[512], note[512];
    size_t n = left(old, key(0, 3), 99, 0, 77), m = left(note, key(1, 3), 77, 99, 0);
    for (int what = 0; what < 5; what++) {
        if (what == 0) check_write(path, old, n), check_write(one, note, m);
        if (what == 1) check_write(path, old, n / 2), check_write(one, note, m - 1);
        if (what == 2) old[70] ^= 1, check_write(path, old, n), old[70] ^= 1;
        if (what == 3) check_write(path, "", 0);
        if (what == 4) {
            char *big = xcalloc(1, 1 << 20);
            check_write(path, big, 1 << 20), check_write(one, big, 1 << 20);
            free(big);
        }
        pid_t pid[3];
        for (int r = 1; r < 3; r++) pid[r] = meet(b, key(r, 3), path, 30 * check_slow(), 0);
        usleep(200000); /* they look at it, and wait */
        pid[0] = meet(b, key(0, 3), path, 30 * check_slow(), what + 3);
        for (int r = 0; r < 3; r++) cr_assert(!ended(pid[r]), "%d: rank %d: %s", what, r, b->msg[r]);
        all_have(b, 3, what + 3);
        none_left(path, 3);
    }
    free(path), free(one);
}
/* A pipe holds nobody up. */
/* An answer to this start by another user, who may read the note and write to the folder. */
Test(rendezvous_file, another_users_answer_is_not_taken) {
    if (geteuid()) cr_skip_test();
    for (int theirs = 0; theirs < 2; theirs++) {
        Board *b = board_make();
        char *path = check_path(theirs ? "theirs" : "own"), *note = xformat("%s.1", path), *tmp = xformat("%s.x", path);
        uint8_t *file = NULL, answer[512];
        size_t n = 0;
        pid_t one = meet(b, key(1, 2), path, theirs ? check_slow() : 60 * check_slow(), 0);
        for (int i = 0; i < 2000 * check_slow() && access(note, R_OK); i++) usleep(5000);
        file = (uint8_t *)check_read(note, &n);
        cr_assert_eq(n, 72);
        uint64_t number = 0;
        memcpy(&number, file + 40, 8);
        n = left(answer, key(0, 2), 77, 0, number);
        int fd = open(tmp, O_WRONLY | O_CREAT, 0644);
        cr_assert(write(fd, answer, n) == (ssize_t)n && !fchown(fd, theirs ? 12345 : 0, 0) && !rename(tmp, path));
        close(fd);
        cr_assert_eq(ended(one), theirs ? EXIT_RUNTIME : 0, "%s: %s", path, b->msg[1]);
        free(file), free(path), free(note), free(tmp);
    }
}
Test(rendezvous_file, a_pipe_is_refused) {
    Board *b = board_make();
    char *path = check_path("meeting"), *one = xformat("%s.1", path);
    cr_assert(!mkfifo(one, 0600) && !mkfifo(path, 0600));
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(ended(meet(b, key(r, 2), path, 20, 0)), EXIT_INPUT);
        cr_assert(strstr(b->msg[r], "expected a file to write, found a device or pipe"), "%s", b->msg[r]);
    }
    cr_assert(!unlink(path));
    cr_assert_eq(ended(meet(b, key(0, 2), path, 0.3, 0)), EXIT_RUNTIME); /* reads the note of rank 1 */
    cr_assert(!unlink(one) && !mkfifo(path, 0600));
    cr_assert_eq(ended(meet(b, key(1, 2), path, 0.3, 0)), EXIT_RUNTIME);
    free(path), free(one);
}
Test(rendezvous_file, who_does_not_come_is_named) {
    Board *b = board_make();
    char *path = check_path("meeting"), *one = xformat("%s.1", path);
    uint8_t old[512];
    RendezvousKey other = key(1, 2);
    other.restart = 1;
    check_write(one, old, left(old, other, 77, 0, 0));
    pid_t zero = meet(b, key(0, 2), path, 0.5, 0);
    cr_assert_eq(ended(zero), EXIT_RUNTIME);
    cr_assert(strstr(b->msg[0], "rank 0: rank 1 did not arrive in ") &&
                  strstr(b->msg[0], "within 0.5 s; rank 1 left a file of another start"),
              "%s", b->msg[0]);
    cr_assert(!check_exists(path));
    check_write(path, old, left(old, key(0, 2), 99, 0, 77));
    pid_t guest = meet(b, key(1, 2), path, 0.5, 0);
    cr_assert_eq(ended(guest), EXIT_RUNTIME);
    cr_assert(strstr(b->msg[1], "rank 1: rank 0 did not answer in ") &&
                  strstr(b->msg[1], "; its file is of another start"),
              "%s", b->msg[1]);
    check_write(path, old, 20);
    guest = meet(b, key(1, 2), path, 0.3, 0);
    cr_assert_eq(ended(guest), EXIT_RUNTIME);
    cr_assert(strstr(b->msg[1], "; its file is incomplete"), "%s", b->msg[1]);
    cr_assert(!check_exists(one));
    free(path), free(one);
}
Test(rendezvous_file, another_run_is_refused) {
    Board *b = board_make();
    char *path = check_path("meeting");
    RendezvousKey other = key(1, 2);
    other.config = 7;
    pid_t zero = meet(b, key(0, 2), path, 1, 0), guest = meet(b, other, path, 20, 0);
    cr_assert_eq(ended(guest), EXIT_INPUT);
    cr_assert(strstr(b->msg[1], "rank 1: configuration 0000000000000007 differs from rank 0's 0000000000000006"), "%s",
              b->msg[1]);
    cr_assert_eq(ended(zero), EXIT_RUNTIME);
    zero = meet(b, key(0, 2), path, 1, 0), guest = meet(b, key(1, 3), path, 20, 0);
    cr_assert_eq(ended(guest), EXIT_INPUT);
    cr_assert(strstr(b->msg[1], "rank 1: this rank was started with 3 ranks, but with 2 on rank 0"), "%s", b->msg[1]);
    cr_assert_eq(ended(zero), EXIT_RUNTIME);
    free(path);
}
Test(rendezvous_file, a_folder_that_cannot_be_written) {
    Board *b = board_make();
    char *dir = check_path("no-such"), *path = xformat("%s/meeting", dir);
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(ended(meet(b, key(r, 2), path, 5, 0)), EXIT_INPUT);
        cr_assert(strstr(b->msg[r], path), "%s", b->msg[r]);
    }
    check_write(dir, "a file", 6);
    cr_assert_eq(ended(meet(b, key(0, 2), path, 5, 0)), EXIT_INPUT);
    cr_assert(strstr(b->msg[0], path), "%s", b->msg[0]);
    /* A full disk. */
    cr_assert_eq(ended(meet(b, key(1, 2), "/dev/full/x", 5, 0)), EXIT_INPUT);
    free(dir), free(path);
}
/* Each byte of a file changed, and each beginning of it. */
Test(rendezvous_file, damage_is_noticed) {
    uint8_t p[512], q[513];
    RendezvousNote x;
    size_t n = left(p, key(0, 3), 99, 0, 77);
    cr_assert(rendezvous_file_read(p, n, &x) && x.n == BYTES && x.number == 99 && x.key.world == 3 &&
              x.key.restart == 2);
    cr_assert(n == rendezvous_file_size(0, 3, BYTES) && rendezvous_file_sum(p, n) == sum(p, n));
    for (size_t i = 0; i < n; i++) {
        memcpy(q, p, n);
        q[i] ^= (uint8_t)(1 << i % 8);
        cr_assert(!rendezvous_file_read(q, n, &x), "byte %zu", i);
        cr_assert(!rendezvous_file_read(p, i, &x), "%zu bytes", i);
    }
    memcpy(q, p, n), q[n] = 0;
    cr_assert(!rendezvous_file_read(q, n + 1, &x));
}
