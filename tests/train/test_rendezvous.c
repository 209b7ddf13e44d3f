/* The meeting of ranks: all get what rank 0 has, and nobody else does, whoever stands at the ports. */
#include "train/comm/comm_shm.h"
#include "train/comm/rendezvous.h"
#include "train/comm/rendezvous_net.h"
#include "tests/lib/check.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { W_MAX = 8, ID = 128 };
static const RendezvousSecret secret = {"a secret of sixteen or more", 27}, wrong = {"another secret, as long", 23};

/* What ranks say is left here; shared with them. */
typedef struct {
    char msg[W_MAX][304];
} Board;
static Board *board;
static void board_make(void) {
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(board != MAP_FAILED);
}
static int ended(pid_t pid) {
    int s;
    cr_assert_eq(waitpid(pid, &s, 0), pid);
    return WIFEXITED(s) ? WEXITSTATUS(s) : 128 + WTERMSIG(s);
}
static int note(int rank, const Err *e) {
    strcpy(board->msg[rank], e->msg);
    return e->status;
}

/* ---- sockets of this test's own -------------------------------------------------------------------------------------
 */
static struct sockaddr_in loop_at(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
}
/* A socket that listens at 127.0.0.1; -1: the port is taken. */
static int listens(int port) {
    struct sockaddr_in a = loop_at(port);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s >= 0 && !bind(s, (struct sockaddr *)&a, sizeof a) && !listen(s, 1000)) return s;
    close(s);
    return -1;
}
/* The first of n ports in a row that nobody has. They are below those that Linux gives to whoever asks for any, so that
 * no program gets one by chance before it is used. */
static int free_ports(int n) {
    enum { LOW = 10000, HIGH = 32000 };
    static uint64_t tried; /* a second call takes others */
    for (int tries = 0; tries < 200; tries++) {
        const int port = LOW + (int)(rng_mix((uint64_t)getpid(), ++tried) % (HIGH - LOW));
        int good = 0;
        for (; good < n; good++) {
            int t = listens(port + good);
            if (t < 0) break;
            close(t);
        }
        if (good == n) return port;
    }
    cr_assert_fail("no %d free ports", n);
    return 0;
}
static int knock(int port) { /* -1: nobody listens */
    struct sockaddr_in a = loop_at(port);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!connect(s, (struct sockaddr *)&a, sizeof a)) return s;
    close(s);
    return -1;
}
static int stranger(int port, const void *p, size_t n) { /* stays connected */
    for (int i = 0; i < 200 * check_slow(); i++, usleep(10000)) {
        int s = knock(port);
        if (s < 0) continue;
        if (n) cr_assert(write(s, p, n) == (ssize_t)n);
        return s;
    }
    cr_assert_fail("nobody listens at %d", port);
    return -1;
}
/* All n bytes, or how many there were before the end. */
static size_t read_all(int s, void *p, size_t n) {
    size_t at = 0;
    for (ssize_t got; at < n && (got = read(s, (char *)p + at, n - at)) > 0;) at += (size_t)got;
    return at;
}

typedef struct {
    RendezvousKey key;
    RendezvousAt at;
    double deadline;
} Meet;
static uint8_t id_byte(int i) { return (uint8_t)(i * 3 + 1); }
static pid_t meet(Meet m) {
    pid_t pid = fork();
    if (pid) return pid;
    uint8_t id[ID];
    Err e = {0};
    int r = m.key.rank < W_MAX ? m.key.rank : W_MAX - 1;
    for (int i = 0; i < ID; i++) id[i] = r ? 0 : id_byte(i);
    bool ok = rendezvous_share(&m.key, m.at, m.deadline, id, sizeof id, NULL, &e);
    for (int i = 0; ok && i < ID; i++)
        if (id[i] != id_byte(i)) ok = err_runtime(&e, "byte %d is %d", i, id[i]);
    _exit(ok ? 0 : note(r, &e));
}
static RendezvousAt here(int port) { return (RendezvousAt){.host = "127.0.0.1", .port = port, .secret = secret}; }
static Meet rank_of(int rank, int world, int port) {
    return (Meet){{.job = 5, .config = 6, .rank = rank, .world = world}, here(port), 30 * check_slow()};
}
/* Ranks first .. world-1 of a job come, the first of them last, and all meet, within a second. */
static void they_meet(int first, int world, int port, pid_t zero) {
    pid_t pid[W_MAX];
    double begun = now_seconds();
    for (int r = world - 1; r >= first; r--) pid[r] = meet(rank_of(r, world, port));
    if (first) pid[0] = zero;
    for (int r = 0; r < world; r++)
        if (!r || r >= first) cr_assert(!ended(pid[r]), "rank %d: %s", r, board->msg[r]);
    double took = now_seconds() - begun;
    cr_assert(took < check_slow(), "they met after %g s", took);
}

/* ---- the meeting ----------------------------------------------------------------------------------------------------
 */
Test(rendezvous, all_get_what_rank_0_has) {
    board_make();
    they_meet(0, 4, free_ports(1), 0);
}
/* The port is another program's, which says nothing, or too much. */
Test(rendezvous, next_port_when_it_is_taken) {
    board_make();
    int port = free_ports(2), s = listens(port);
    pid_t other = fork();
    if (!other)
        for (;;) {
            int g = accept(s, NULL, NULL);
            if (g >= 0 && write(g, "HTTP/1.1 400 no such thing, and a line that is long enough\r\n", 60) < 0) _exit(1);
            close(g);
        }
    they_meet(0, 2, port, 0);
    kill(other, SIGKILL);
    ended(other);
}
Test(rendezvous, loopback_needs_no_secret) {
    board_make();
    int port = free_ports(1);
    pid_t pid[2];
    for (int r = 0; r < 2; r++) {
        Meet m = rank_of(r, 2, port);
        m.at.secret = (RendezvousSecret){0};
        m.at.host = r ? "127.0.0.1" : "localhost"; /* 127.0.0.1 and, on most systems, ::1 */
        pid[r] = meet(m);
    }
    for (int r = 0; r < 2; r++) cr_assert(!ended(pid[r]), "rank %d: %s", r, board->msg[r]);
}
static void not_there(const char *host, bool several, RendezvousSecret s, int rank, const char *part) {
    Err e = {0};
    RendezvousKey k = {.rank = rank, .world = 2};
    uint8_t id[ID];
    bool ok = rendezvous_share(&k, (RendezvousAt){.host = host, .port = 29500, .several = several, .secret = s}, 1, id,
                               ID, NULL, &e);
    cr_assert(!ok && e.status == EXIT_INPUT && strstr(e.msg, part), "%s, rank %d: %d: %s", host, rank, e.status, e.msg);
}
/* Nothing is sent to these addresses: they are refused before. */
Test(rendezvous, addresses_that_do_not_do) {
    not_there("", false, secret, 1, "MASTER_ADDR and MASTER_PORT are needed");
    for (int r = 0; r < 2; r++) {
        not_there("192.0.2.1", false, (RendezvousSecret){0}, r, "set KVSMITH_SECRET for all to the same");
        not_there("2001:db8::1", false, (RendezvousSecret){0}, r, "set KVSMITH_SECRET for all to the same");
        not_there("0.0.0.0", false, secret, r, "expected an address of rank 0's host");
        not_there("::", false, secret, r, "expected an address of rank 0's host");
    }
    not_there("192.0.2.1", false, secret, 0, "is not an address of this host");
    RendezvousAddresses a;
    if (!rendezvous_resolve("ip6-localhost", &a)) /* a name of the loopback interface, on Debian */
        not_there("ip6-localhost", true, secret, 0, "which other hosts cannot reach");
}
/* Rank 0 is found at MASTER_ADDR alone. */
Test(rendezvous, listens_at_its_address_alone) {
    board_make();
    int port = free_ports(1);
    Meet m = rank_of(0, 2, port);
    m.at.host = "127.0.0.2";
    pid_t zero = meet(m);
    m.key.rank = 1;
    struct sockaddr_in a = loop_at(port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    for (int s = -1, i = 0; s < 0 || (close(s), false); i++, usleep(10000)) { /* until it is there */
        cr_assert(i < 500 * check_slow());
        s = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(s, (struct sockaddr *)&a, sizeof a)) close(s), s = -1;
    }
    cr_assert_eq(knock(port), -1, "it listens at 127.0.0.1, too");
    pid_t one_pid = meet(m);
    cr_assert(!ended(one_pid), "%s", board->msg[1]);
    cr_assert(!ended(zero), "%s", board->msg[0]);
}

/* Ranks of a launcher, which says in their memory that one has ended, do not wait for it. */
Test(rendezvous, a_rank_that_ended_before_they_met) {
    board_make();
    Err e = {0};
    int fd;
    pid_t pid[2];
    cr_assert(comm_shm_make(3, &fd, &e) && fd > 0, "%s", e.msg);
    for (int r = 0; r < 2; r++) {
        RendezvousKey k = {.job = rng_mix(3, (uint64_t)getpid()), .rank = r ? 2 : 0, .world = 3};
        pid[r] = meet((Meet){k, {.local = true, .shared = fd}, 100 * check_slow()});
    }
    usleep(50000);
    double begun = now_seconds();
    comm_shm_ended(fd, 1);
    cr_assert_eq(ended(pid[0]), EXIT_RUNTIME);
    cr_assert(strstr(board->msg[0], "rank 0: rank 1 exited before the ranks met"), "%s", board->msg[0]);
    ended(pid[1]); /* it may have what it came for */
    cr_assert(now_seconds() - begun < check_slow(), "%g s", now_seconds() - begun);
    close(fd);
}

/* ---- impostors ------------------------------------------------------------------------------------------------------
 */
/* Hellos as rank 1 by who does not know the secret, or part of it, or a connection's random bytes: no answer, no id. */
Test(rendezvous, a_stranger_is_no_rank) {
    board_make();
    int port = free_ports(1);
    pid_t zero = meet(rank_of(0, 2, port));
    RendezvousKey k = rank_of(1, 2, port).key;
    for (int kind = 0; kind < 5; kind++) {
        RendezvousTalk t;
        uint8_t nonce[RENDEZVOUS_NONCE] = {1, 2, 3}, got[1];
        int s = stranger(port, "", 0);
        cr_assert_eq(read_all(s, t.greeting, RENDEZVOUS_GREETING), RENDEZVOUS_GREETING);
        if (kind == 1) t.greeting[30] ^= 1;
        rendezvous_hello_write(&t, &k, nonce, kind == 0 ? wrong : kind == 2 ? (RendezvousSecret){0} : secret);
        if (kind == 3) t.hello[12] = 0; /* rank 1's as rank 0's */
        if (kind == 4) memset(t.hello + RENDEZVOUS_HELLO - RENDEZVOUS_TAG, 0, RENDEZVOUS_TAG);
        cr_assert_eq(write(s, t.hello, RENDEZVOUS_HELLO), RENDEZVOUS_HELLO);
        cr_assert_eq(read_all(s, got, 1), 0, "kind %d was answered", kind);
        close(s);
    }
    they_meet(1, 2, port, zero);
}
/* Its thanks are not counted either: rank 0 waits for the right rank, which then still gets its id. */
Test(rendezvous, thanks_of_a_stranger) {
    board_make();
    int port = free_ports(1);
    pid_t zero = meet(rank_of(0, 2, port));
    RendezvousKey k = rank_of(1, 2, port).key;
    RendezvousTalk t;
    uint8_t nonce[RENDEZVOUS_NONCE] = {1}, id[ID], no[RENDEZVOUS_TAG] = {0};
    int s = stranger(port, "", 0);
    read_all(s, t.greeting, RENDEZVOUS_GREETING);
    rendezvous_hello_write(&t, &k, nonce, secret);
    cr_assert_eq(write(s, t.hello, RENDEZVOUS_HELLO), RENDEZVOUS_HELLO);
    cr_assert_eq(read_all(s, t.answer, RENDEZVOUS_ANSWER), RENDEZVOUS_ANSWER);
    cr_assert(read_all(s, id, ID) == ID && id[5] == id_byte(5));
    cr_assert_eq(write(s, no, sizeof no), (ssize_t)sizeof no);
    cr_assert_eq(read_all(s, id, 1), 0);
    cr_assert_eq(waitpid(zero, NULL, WNOHANG), 0, "rank 0 took it for thanks");
    close(s);
    they_meet(1, 2, port, zero);
}

typedef enum {
    SILENT,
    HALF,
    ID_WRONG_SECRET,
    ID_NO_TAG,
    REFUSES,
    HUGE_LENGTH,
    OTHER_JOB,
    GARBAGE,
    OLD_VERSION,
    NFAKE
} Fake;
/* Stands at the port as rank 0 of the same job, or of another one, and does not know the secret. */
static void fake_serve(Fake f, int g) {
    RendezvousKey k = {.job = f == OTHER_JOB ? 99 : 5, .config = 6, .world = 2};
    RendezvousTalk t;
    uint8_t nonce[RENDEZVOUS_NONCE] = {9}, id[ID];
    RendezvousSecret s = f == ID_NO_TAG ? (RendezvousSecret){0} : wrong;
    size_t n = f == ID_WRONG_SECRET || f == ID_NO_TAG ? ID : 0;
    memset(id, 0x66, ID);
    rendezvous_greeting_write(&t, &k, nonce);
    if (f == OTHER_JOB) rendezvous_put(t.greeting + 8, RENDEZVOUS_VERSION + 1, 4);
    if (f == GARBAGE) memset(t.greeting + 7, 0xff, RENDEZVOUS_GREETING - 7);
    if (f == SILENT || (f == OLD_VERSION && read_all(g, t.hello, 40) < 40)) return;
    if (f == OLD_VERSION) { /* that answered with a word alone: another version */
        memcpy(t.answer, "kvsmstor\1\0\0\0\1\0\0\0", 16);
        if (write(g, t.answer, 32) < 0) return;
        return;
    }
    if (write(g, t.greeting, f == HALF ? 20 : RENDEZVOUS_GREETING) < 0 || f == HALF) return;
    if (read_all(g, t.hello, RENDEZVOUS_HELLO) < RENDEZVOUS_HELLO) return;
    rendezvous_answer_write(&t, f == REFUSES ? RENDEZVOUS_CONFIG : RENDEZVOUS_OK, 1, id, n, s);
    if (f == ID_NO_TAG)
        memcpy(t.answer + RENDEZVOUS_ANSWER - RENDEZVOUS_TAG, t.hello + RENDEZVOUS_HELLO - RENDEZVOUS_TAG,
               RENDEZVOUS_TAG);
    if (f == HUGE_LENGTH) rendezvous_put(t.answer + 24, 0xffffffff, 4);
    if (write(g, t.answer, RENDEZVOUS_ANSWER) < 0 || (n && write(g, id, n) < 0)) return;
}
static void fake(Fake f, int s) { /* in a process of its own, at a socket that listens */
    if (fork()) return;
    for (alarm(120);;) { /* should the test end early */
        int g = accept(s, NULL, NULL);
        if (!fork()) { /* each stays on the line */
            fake_serve(f, g);
            sleep(20);
            _exit(0);
        }
        close(g);
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
    }
}
/* Sockets at all but the last of the ports; returns the first port. */
static int taken_ports(int s[RENDEZVOUS_PORTS - 1]) {
    for (int tries = 0, n = 0; tries < 20; tries++, n = 0) {
        const int port = free_ports(RENDEZVOUS_PORTS);
        while (n < RENDEZVOUS_PORTS - 1 && (s[n] = listens(port + n)) >= 0) n++;
        if (n == RENDEZVOUS_PORTS - 1) return port;
        while (n) close(s[--n]);
    }
    cr_assert_fail("no %d free ports stay free", RENDEZVOUS_PORTS);
    return 0;
}
static void end_group(pid_t pid) {
    kill(-pid, SIGKILL);
    ended(pid);
}
/* All but one of the ports are theirs before rank 0 comes: the ranks meet at the last. */
Test(rendezvous, impostors_at_the_ports) {
    board_make();
    for (int from = 0; from < NFAKE; from += RENDEZVOUS_PORTS - 1) {
        int s[RENDEZVOUS_PORTS - 1], port = taken_ports(s);
        pid_t group = fork();
        if (!group) {
            setpgid(0, 0), alarm(120);
            for (int i = 0; i < RENDEZVOUS_PORTS - 1; i++) fake((Fake)((from + i) % NFAKE), s[i]);
            pause();
        }
        setpgid(group, group);
        for (int i = 0; i < RENDEZVOUS_PORTS - 1; i++) close(s[i]);
        for (int i = 0; i < RENDEZVOUS_PORTS - 1; i++) close(stranger(port + i, "", 0));
        they_meet(0, 3, port, 0);
        end_group(group);
    }
}
/* What is believed is a tag: a rank 0 that knows the secret and speaks another version ends the others. */
Test(rendezvous, another_version_with_the_secret) {
    board_make();
    int port = free_ports(1), s = listens(port);
    pid_t pid = meet(rank_of(1, 2, port));
    struct pollfd p = {.fd = s, .events = POLLIN};
    cr_assert_eq(poll(&p, 1, (int)(20000 * check_slow())), 1);
    int g = accept(s, NULL, NULL);
    RendezvousKey k = rank_of(0, 2, port).key;
    RendezvousTalk t;
    uint8_t nonce[RENDEZVOUS_NONCE] = {9}, says = 2;
    rendezvous_greeting_write(&t, &k, nonce);
    cr_assert_eq(write(g, t.greeting, RENDEZVOUS_GREETING), RENDEZVOUS_GREETING);
    cr_assert_eq(read_all(g, t.hello, RENDEZVOUS_HELLO), RENDEZVOUS_HELLO);
    rendezvous_answer_write(&t, RENDEZVOUS_OTHER_VERSION, 0, NULL, 0, secret);
    rendezvous_put(t.answer + 8, 77, 4);
    crypto_auth_hmacsha256_state h;
    crypto_auth_hmacsha256_init(&h, secret.p, secret.n);
    crypto_auth_hmacsha256_update(&h, &says, 1);
    crypto_auth_hmacsha256_update(&h, t.greeting, RENDEZVOUS_GREETING);
    crypto_auth_hmacsha256_update(&h, t.hello, RENDEZVOUS_HELLO);
    crypto_auth_hmacsha256_update(&h, t.answer, RENDEZVOUS_ANSWER - RENDEZVOUS_TAG);
    crypto_auth_hmacsha256_final(&h, t.answer + RENDEZVOUS_ANSWER - RENDEZVOUS_TAG);
    cr_assert_eq(write(g, t.answer, RENDEZVOUS_ANSWER), RENDEZVOUS_ANSWER);
    cr_assert_eq(ended(pid), EXIT_INPUT);
    cr_assert(strstr(board->msg[1], "version 77 of the rendezvous protocol, this rank version 2"), "%s", board->msg[1]);
}
/* A whole exchange is recorded by who knows the secret, and said again by who does not, to rank 0 and as rank 0. */
Test(rendezvous, replays) {
    board_make();
    int port = free_ports(1);
    pid_t zero = meet(rank_of(0, 3, port));
    RendezvousKey k = rank_of(1, 3, port).key;
    RendezvousTalk t;
    uint8_t nonce[RENDEZVOUS_NONCE] = {1}, id[ID], got[RENDEZVOUS_GREETING + 1];
    int s = stranger(port, "", 0);
    cr_assert_eq(read_all(s, t.greeting, RENDEZVOUS_GREETING), RENDEZVOUS_GREETING);
    rendezvous_hello_write(&t, &k, nonce, secret);
    cr_assert_eq(write(s, t.hello, RENDEZVOUS_HELLO), RENDEZVOUS_HELLO);
    cr_assert(read_all(s, t.answer, RENDEZVOUS_ANSWER) == RENDEZVOUS_ANSWER && read_all(s, id, ID) == ID &&
              id[1] == id_byte(1));
    close(s);
    s = stranger(port, t.hello, RENDEZVOUS_HELLO);
    cr_assert_eq(read_all(s, got, sizeof got), RENDEZVOUS_GREETING, "a hello that was recorded is answered");
    cr_assert(memcmp(got, t.greeting, RENDEZVOUS_GREETING), "two connections have the same random bytes");
    close(s);

    int other = free_ports(1), l = listens(other);
    pid_t player = fork();
    if (!player)
        for (;;) {
            int g = accept(l, NULL, NULL);
            if (write(g, t.greeting, RENDEZVOUS_GREETING) < 0 || write(g, t.answer, RENDEZVOUS_ANSWER) < 0 ||
                write(g, id, ID) < 0)
                _exit(1);
            read_all(g, got, 1);
            close(g);
        }
    Meet m = rank_of(1, 3, other);
    m.deadline = 0.5 * fmin(5, check_slow());
    cr_assert_eq(ended(meet(m)), EXIT_RUNTIME, "an answer that was recorded is taken");
    cr_assert(strstr(board->msg[1], "claims to be of this job answered with another secret"), "%s", board->msg[1]);
    kill(player, SIGKILL);
    ended(player);
    they_meet(1, 3, port, zero);
}
Test(rendezvous, another_secret_is_named) {
    board_make();
    int port = free_ports(1);
    Meet a = rank_of(0, 2, port), b = rank_of(1, 2, port);
    a.deadline = b.deadline = fmin(5, check_slow());
    b.at.secret = wrong;
    pid_t zero = meet(a), rank = meet(b);
    cr_assert_eq(ended(rank), EXIT_RUNTIME);
    cr_assert(strstr(board->msg[1], "answered with another secret"), "%s", board->msg[1]);
    cr_assert_eq(ended(zero), EXIT_RUNTIME);
    cr_assert(strstr(board->msg[0], "a caller that does not have the same secret was refused"), "%s", board->msg[0]);
}

/* ---- floods ---------------------------------------------------------------------------------------------------------
 */
Test(rendezvous, strangers_are_ignored) {
    board_make();
    int port = free_ports(1), s[300];
    RendezvousTalk t;
    uint8_t nonce[RENDEZVOUS_NONCE] = {1};
    RendezvousKey k = rank_of(1, 2, port).key;
    pid_t zero = meet(rank_of(0, 2, port));
    rendezvous_greeting_write(&t, &k, nonce);
    rendezvous_hello_write(&t, &k, nonce, secret);
    for (int i = 0; i < 296; i++) s[i] = stranger(port, "", 0); /* more than there are places */
    s[296] = stranger(port, "GET / HTTP/1.0\r\n\r\n", 18);
    s[297] = stranger(port, t.hello, 17);               /* half a hello */
    s[298] = stranger(port, t.hello, RENDEZVOUS_HELLO); /* a whole one, of another connection */
    memset(t.hello + 8, 0xff, RENDEZVOUS_HELLO - 8);
    s[299] = stranger(port, t.hello, RENDEZVOUS_HELLO);
    they_meet(1, 2, port, zero);
    for (int i = 0; i < 300; i++) close(s[i]);
}
/* 1,000 connections, as fast as they can be made, silent, half, wrong or of garbage, while the ranks meet. */
Test(rendezvous, a_flood) {
    board_make();
    int port = free_ports(1);
    pid_t zero = meet(rank_of(0, 4, port)), flood;
    close(stranger(port, "", 0));
    if (!(flood = fork())) {
        RendezvousTalk t;
        uint8_t nonce[RENDEZVOUS_NONCE] = {1};
        RendezvousKey k = rank_of(1, 4, port).key;
        int s[400];
        rendezvous_greeting_write(&t, &k, nonce);
        rendezvous_hello_write(&t, &k, nonce, wrong);
        for (int i = 0; i < 1000; i++) {
            if (i >= 400) close(s[i % 400]);
            s[i % 400] = knock(port);
            size_t n = i % 4 == 0 ? 0 : i % 4 == 1 ? 50 : RENDEZVOUS_HELLO;
            if (i % 4 == 3) memset(t.hello, i & 0xff, 8);
            if (n && write(s[i % 400], t.hello, n) < 0) continue;
        }
        _exit(0);
    }
    they_meet(1, 4, port, zero);
    ended(flood);
}
/* Rank 0 has hardly any descriptors: strangers take them all, and lose them again. */
Test(rendezvous, a_flood_and_few_descriptors) {
    board_make();
    int port = free_ports(1), s[100];
    pid_t zero = fork();
    if (!zero) {
        rlim_t most = (rlim_t)dup(0) + 8; /* one of them listens */
        struct rlimit few = {most, most};
        if (setrlimit(RLIMIT_NOFILE, &few)) _exit(9);
        _exit(ended(meet(rank_of(0, 2, port))));
    }
    for (int i = 0; i < 100; i++) s[i] = stranger(port, "", 0);
    they_meet(1, 2, port, zero);
    for (int i = 0; i < 100; i++) close(s[i]);
}

/* ---- jobs -----------------------------------------------------------------------------------------------------------
 */
/* Two jobs at one port, of other settings each: nobody ends by the other's. */
Test(rendezvous, two_jobs_at_one_port) {
    board_make();
    int port = free_ports(2);
    Meet m = rank_of(0, 2, port);
    m.key.job = 8, m.key.config = 9;
    pid_t other_zero = meet(m);
    close(stranger(port, "", 0));
    they_meet(0, 3, port, 0);
    m.key.rank = 1;
    cr_assert(!ended(meet(m)), "%s", board->msg[1]);
    cr_assert(!ended(other_zero), "%s", board->msg[0]);
}

Test(rendezvous, who_does_not_belong_is_told) {
    board_make();
    int port = free_ports(1);
    RendezvousAt at = here(port);
    RendezvousKey k = {.job = 5, .config = 6, .rank = 1, .world = 2, .restart = 3};
    RendezvousKey zero = k;
    zero.rank = 0;
    pid_t host = meet((Meet){zero, at, 30});
    const struct {
        int field;
        const char *part;
    } cases[] = {{0, "start 2 of the job, rank 0 to start 3"},
                 {1, "this rank was started with 4 ranks, rank 0 with 2"},
                 {2, "configuration 0000000000000007 differs from rank 0's 0000000000000006"}};
    for (size_t i = 0; i < 3; i++) {
        RendezvousKey bad = k;
        if (cases[i].field == 0) bad.restart = 2;
        if (cases[i].field == 1) bad.world = 4;
        if (cases[i].field == 2) bad.config = 7;
        cr_assert_eq(ended(meet((Meet){bad, at, 20})), EXIT_INPUT);
        cr_assert(strstr(board->msg[1], cases[i].part) && strstr(board->msg[1], "rank 1"), "%s", board->msg[1]);
    }
    /* Another job's is not ours, and an early rank of the next start waits for its own rank 0. */
    RendezvousKey other = k, next = k;
    other.job = 9;
    next.restart = 4;
    cr_assert_eq(ended(meet((Meet){other, at, 0.4})), EXIT_RUNTIME);
    cr_assert(strstr(board->msg[1], "was not found"), "%s", board->msg[1]);
    cr_assert_eq(ended(meet((Meet){next, at, 0.4})), EXIT_RUNTIME);
    pid_t good = meet((Meet){k, at, 30});
    cr_assert(!ended(good), "%s", board->msg[1]);
    cr_assert(!ended(host), "%s", board->msg[0]);
}
Test(rendezvous, who_does_not_come_is_named) {
    board_make();
    int port = free_ports(1);
    RendezvousAt at = here(port);
    pid_t zero = meet((Meet){{.job = 5, .config = 6, .rank = 0, .world = 3}, at, 1});
    pid_t one = meet((Meet){{.job = 5, .config = 6, .rank = 1, .world = 3}, at, 1});
    pid_t two = meet((Meet){{.job = 5, .config = 7, .rank = 2, .world = 3}, at, 1});
    cr_assert_eq(ended(two), EXIT_INPUT);
    cr_assert_eq(ended(one), 0);
    cr_assert_eq(ended(zero), EXIT_RUNTIME);
    cr_assert(strstr(board->msg[0], "rank 2 did not arrive within 1 s") &&
                  strstr(board->msg[0], "another configuration was refused"),
              "%s", board->msg[0]);
}
Test(rendezvous, a_descriptor_on_one_machine) {
    board_make();
    RendezvousKey k = {.job = rng_mix(1, (uint64_t)getpid()), .world = 3};
    pid_t pid[3];
    for (int r = 0; r < 3; r++)
        if (!(pid[r] = fork())) {
            Err e = {0};
            int fd = -1;
            char text[6] = "";
            k.rank = r;
            if (!r) fd = memfd_create("x", 0);
            if (!r && pwrite(fd, "hello", 5, 0) != 5) _exit(9);
            bool ok = rendezvous_share(&k, (RendezvousAt){.local = true}, 20 * check_slow(), NULL, 0, &fd, &e);
            if (ok && (pread(fd, text, 5, 0) != 5 || strcmp(text, "hello"))) _exit(8);
            _exit(ok ? 0 : note(r, &e));
        }
    for (int r = 0; r < 3; r++) cr_assert(!ended(pid[r]), "rank %d: %s", r, board->msg[r]);
}
Test(rendezvous, a_second_rank_0_is_refused) {
    board_make();
    RendezvousKey k = {.job = rng_mix(2, (uint64_t)getpid()), .world = 2};
    Meet m = {k, {.local = true}, check_slow()};
    pid_t a = meet(m);
    usleep((unsigned)(300000 * fmin(check_slow(), 10)));
    pid_t b = meet(m);
    cr_assert_eq(ended(b), EXIT_INPUT);
    cr_assert(strstr(board->msg[0], "already running here"), "%s", board->msg[0]);
    cr_assert_eq(ended(a), EXIT_RUNTIME);
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
    pid_t two = meet((Meet){{.job = 5, .config = 6, .rank = rank, .world = 2},
                            {.host = "10.77.0.1", .port = 29500, .secret = secret},
                            deadline});
    _exit(ended(two));
}
static bool hosts_start(pid_t pid[HOSTS], int go[2], double deadline) {
    int ready[2];
    bool ok = true;
    board_make();
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
Test(rendezvous, two_hosts) {
    pid_t pid[HOSTS];
    int go[2];
    if (!hosts_start(pid, go, 30 * check_slow())) cr_skip_test();
    cr_assert_eq(write(go[1], "gg", 2), 2);
    for (int r = 0; r < HOSTS; r++) cr_assert(!ended(pid[r]), "rank %d: %s", r, board->msg[r]);
}
/* The link goes down before they have met: both say so at their deadline. */
Test(rendezvous, two_hosts_whose_link_is_down) {
    pid_t pid[HOSTS];
    int go[2];
    if (!hosts_start(pid, go, 2)) cr_skip_test();
    cr_assert(!in_namespace(pid[0], "ip link set kv0 down"));
    double begun = now_seconds();
    cr_assert_eq(write(go[1], "gg", 2), 2);
    for (int r = 0; r < HOSTS; r++) cr_assert_eq(ended(pid[r]), EXIT_RUNTIME);
    cr_assert(now_seconds() - begun < 15 * check_slow(), "%g s", now_seconds() - begun);
    cr_assert(strstr(board->msg[0], "rank 1 did not arrive within 2 s"), "%s", board->msg[0]);
    cr_assert(strstr(board->msg[1], "rank 0 was not found at 10.77.0.1"), "%s", board->msg[1]);
}
