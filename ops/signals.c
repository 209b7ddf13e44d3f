/* signals.c: installs handlers for the signals that end a command, and prepares descriptors at the start. */
#include "signals.h"
#include <fcntl.h>
#include <unistd.h>

static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
enum { NENDS = sizeof ends / sizeof *ends };

/* True if a signal should be handled. SIGHUP and SIGUSR1 are not if they were ignored at the start. SIGINT is handled
 * even then: shells start background programs with it ignored, so a SIGINT sent to one is deliberate. */
static int is_heeded(int number) {
    struct sigaction now;
    return number == SIGINT || number == SIGTERM || sigaction(number, NULL, &now) || now.sa_handler != SIG_IGN;
}
void signals_catch(void (*handler)(int), int flags) {
    struct sigaction a = {.sa_handler = handler, .sa_flags = flags};
    for (int i = 0; i < NENDS; i++)
        if (is_heeded(ends[i])) sigaction(ends[i], &a, NULL);
}
void signals_set(sigset_t *s) {
    sigemptyset(s);
    for (int i = 0; i < NENDS; i++)
        if (is_heeded(ends[i])) sigaddset(s, ends[i]);
}
int signals_pending(void) {
    sigset_t ours, come;
    signals_set(&ours);
    sigpending(&come);
    for (int i = 0; i < NENDS; i++)
        if (sigismember(&ours, ends[i]) && sigismember(&come, ends[i])) return 1;
    return 0;
}
void signals_begin(void) {
    signal(SIGXFSZ, SIG_IGN);
    /* opened for the opposite direction: writing to a closed output then fails and is reported */
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd) break;
}
