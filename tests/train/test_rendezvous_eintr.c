/* Calls that are interrupted while ranks meet: by signals without SA_RESTART that come all the time, and by calls that
 * say so at every second time, with and without having done their work. This program's own connect, accept4, poll,
 * recvmsg and sendmsg, below, stand in for the library's. */
#include "train/comm/rendezvous.h"
#include "tests/lib/check.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORLD = 4, CALLS = 5, ID = 128 };
typedef enum { CONNECT, ACCEPT, POLL, RECV, SEND } Call;
/* Interrupted calls of all processes of a test, by what they are; shared. */
static int (*seen)[CALLS];
static bool failing;

static bool interrupts(Call c) {
    static int calls[CALLS];
    if (!failing || calls[c]++ % 2) return false;
    __atomic_add_fetch(&(*seen)[c], 1, __ATOMIC_RELAXED);
    errno = EINTR;
    return true;
}
/* A call to a socket over the network that is interrupted continues by itself; that of a local name has not begun. */
int connect(int s, __CONST_SOCKADDR_ARG a, socklen_t n) {
    const bool now = interrupts(CONNECT);
    if (now && a.__sockaddr__->sa_family == AF_UNIX) return -1;
    int r = (int)syscall(SYS_connect, s, a.__sockaddr__, n);
    return now ? (errno = EINTR, -1) : r;
}
int accept4(int s, __SOCKADDR_ARG a, socklen_t *n, int how) {
    return interrupts(ACCEPT) ? -1 : (int)syscall(SYS_accept4, s, a.__sockaddr__, n, how);
}
int poll(struct pollfd *p, nfds_t n, int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    return interrupts(POLL) ? -1 : (int)syscall(SYS_ppoll, p, n, ms < 0 ? NULL : &t, NULL, 0);
}
ssize_t recvmsg(int s, struct msghdr *m, int how) { return interrupts(RECV) ? -1 : syscall(SYS_recvmsg, s, m, how); }
ssize_t sendmsg(int s, const struct msghdr *m, int how) {
    return interrupts(SEND) ? -1 : syscall(SYS_sendmsg, s, m, how);
}

static volatile sig_atomic_t rings;
static void on_alarm(int number) {
    (void)number;
    rings++;
}
/* From now on every call that waits is interrupted within half a millisecond. */
static void ring(void) {
    struct sigaction a = {.sa_handler = on_alarm};
    struct itimerval t = {{0, 500}, {0, 500}};
    if (sigaction(SIGALRM, &a, NULL) || setitimer(ITIMER_REAL, &t, NULL)) _exit(90);
}

static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(s >= 0 && !bind(s, (struct sockaddr *)&a, n) && !getsockname(s, (struct sockaddr *)&a, &n));
    close(s);
    return ntohs(a.sin_port);
}
/* All ranks meet, over the network at `port`, or (0) on this machine; rank 0 comes after the others. */
static void they_meet(int port, bool signals) {
    char(*msg)[304] = mmap(NULL, WORLD * sizeof *msg, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(msg != MAP_FAILED && seen != MAP_FAILED);
    RendezvousKey k = {.job = rng_mix(3, (uint64_t)getpid()), .config = 6, .world = WORLD};
    RendezvousAt at = {.local = !port,
                       .host = "127.0.0.1",
                       .port = port,
                       .secret = {"a secret of sixteen or more", 27}};
    pid_t pid[WORLD];
    for (int r = WORLD - 1; r >= 0; r--) {
        if (!r) usleep(50000); /* so that the others have to wait, and to try again */
        if ((pid[r] = fork())) continue;
        uint8_t id[ID];
        Err e = {0};
        int fd = -1;
        k.rank = r;
        memset(id, r ? 0 : 7, sizeof id);
        if (!r && !port && ((fd = memfd_create("x", 0)) < 0 || pwrite(fd, "hello", 5, 0) != 5)) _exit(91);
        failing = !signals;
        if (signals) ring();
        bool ok = rendezvous_share(&k, at, 30 * check_slow(), id, sizeof id, port ? NULL : &fd, &e);
        char text[5] = "";
        setitimer(ITIMER_REAL, &(struct itimerval){{0}, {0}}, NULL);
        if (ok && !port && (pread(fd, text, 5, 0) != 5 || memcmp(text, "hello", 5)))
            ok = err_runtime(&e, "no descriptor");
        if (ok && (id[0] != 7 || id[ID - 1] != 7)) ok = err_runtime(&e, "other bytes");
        if (ok && signals && r && !rings) ok = err_runtime(&e, "no signal came");
        strcpy(msg[r], e.msg);
        _exit(ok ? 0 : 1);
    }
    for (int r = 0; r < WORLD; r++) {
        int s;
        cr_assert_eq(waitpid(pid[r], &s, 0), pid[r]);
        cr_assert(s == 0, "rank %d: status %x, %s", r, s, msg[r]);
    }
    for (int c = 0; c < CALLS; c++)
        cr_assert(signals || (*seen)[c] > 0, "no call of kind %d (connect, accept, poll, recvmsg, sendmsg) failed", c);
}

Test(rendezvous_eintr, signals_over_the_network) { they_meet(free_port(), true); }
Test(rendezvous_eintr, signals_on_one_machine) { they_meet(0, true); }
Test(rendezvous_eintr, interrupted_calls_over_the_network) { they_meet(free_port(), false); }
Test(rendezvous_eintr, interrupted_calls_on_one_machine) { they_meet(0, false); }
