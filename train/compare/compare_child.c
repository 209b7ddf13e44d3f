/* compare_child.c: see compare_child.h. */
#include "compare_child.h"
#include "ops/procs.h"
#include "ops/signals.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "compare.h"

/* ---- signals -------------------------------------------------------------------------------------------------------
 */

/* The one variable outside of any struct: a handler has no argument to find its own. */
static volatile sig_atomic_t signals_seen;

/* SIGINT and SIGTERM that have come, and in a bit above them a SIGHUP or SIGUSR1, which asks a run at work only
 * once. */
enum { ASKED = 8, URGED = ASKED - 1 };
static void compare_child_on_signal(int number) {
    if (number != SIGINT && number != SIGTERM)
        signals_seen |= ASKED;
    else if ((++signals_seen & URGED) > 2)
        _exit(EXIT_SIGNAL);
}
void compare_signals(void) {
    signals_catch(compare_child_on_signal, 0);
    signal(SIGPIPE, SIG_IGN); /* a reader of the progress lines that goes away does not end the work */
}
bool compare_interrupted(void) { return signals_seen > 0; }

/* Signals already passed on to the current run. */
static void hand_on(pid_t pid, int *handed) {
    int seen = signals_seen;
    if (seen & ASKED && !(*handed & ASKED)) {
        kill(pid, SIGUSR1);
        *handed |= ASKED;
    }
    for (; (*handed & URGED) < (seen & URGED) && (*handed & URGED) < 2; ++*handed) kill(pid, SIGTERM);
}

/* ---- the child -----------------------------------------------------------------------------------------------------
 */

bool child_start(Child *k, char *const argv[], Err *e) {
    int to[2];
    k->err = memfd_create("stderr", MFD_CLOEXEC);
    if (k->err < 0) return err_runtime(e, "cannot start a run: %s", strerror(errno));
    if (pipe2(to, O_CLOEXEC)) {
        close(k->err);
        return err_runtime(e, "cannot start a run: %s", strerror(errno));
    }
    fflush(NULL);
    pid_t parent = getpid();
    k->pid = fork();
    if (k->pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) _exit(EXIT_SIGNAL);
        signal(SIGPIPE, SIG_DFL);
        int null = TEMP_FAILURE_RETRY(open("/dev/null", O_RDONLY));
        (void)TEMP_FAILURE_RETRY(dup2(null, 0)), (void)TEMP_FAILURE_RETRY(dup2(to[1], 1));
        (void)TEMP_FAILURE_RETRY(dup2(k->err, 2));
        procs_unbind();
        execv("/proc/self/exe", argv);
        dprintf(2, "kvsmith: cannot start the program again: %s\n", strerror(errno));
        _exit(EXIT_RUNTIME);
    }
    int why = errno;
    close(to[1]);
    k->out = to[0];
    if (k->pid > 0) return true;
    close(k->out);
    close(k->err);
    return err_runtime(e, "cannot start a run: %s", strerror(why));
}

int child_follow(Child *k, ChildLine *show, void *ctx) {
    char buf[4096], *line = NULL;
    int handed = 0, status;
    size_t n = 0, cap = 0;
    for (;;) {
        struct pollfd q = {.fd = k->out, .events = POLLIN};
        hand_on(k->pid, &handed);
        int ready = poll(&q, 1, 100);
        if (ready <= 0) continue;
        ssize_t got = read(k->out, buf, sizeof buf);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        if (n + (size_t)got >= cap) line = xrealloc(line, cap = 2 * (n + (size_t)got) + 1, 1);
        for (ssize_t i = 0; i < got; i++) {
            line[n++] = buf[i];
            if (buf[i] != '\n') continue;
            line[n - 1] = 0, n = 0;
            show(ctx, line);
        }
    }
    free(line);
    close(k->out);
    while (waitpid(k->pid, &status, 0) < 0 && errno == EINTR) hand_on(k->pid, &handed);
    return status;
}

void child_said(Child *k, char msg[301]) {
    char all[4096]; /* notes may come before the error, which is the last line */
    off_t end = lseek(k->err, 0, SEEK_END);
    ssize_t n = pread(k->err, all, sizeof all - 1, end > (off_t)sizeof all - 1 ? end - (off_t)sizeof all + 1 : 0);
    while (n > 0 && all[n - 1] == '\n') n--;
    all[n > 0 ? n : 0] = 0;
    const char *last = strrchr(all, '\n');
    snprintf(msg, 301, "%.300s", last ? last + 1 : all);
    if (!strncmp(msg, "kvsmith: ", 9)) memmove(msg, msg + 9, strlen(msg + 9) + 1);
    close(k->err);
}

static void keep_line(void *ctx, const char *line) {
    char **text = ctx;
    size_t n = *text ? strlen(*text) : 0, m = strlen(line);
    *text = xrealloc(*text, n + m + 2, 1);
    memcpy(*text + n, line, m);
    memcpy(*text + n + m, "\n", 2);
}

char *child_output(char *const argv[], int *status, Err *e) {
    Child k = {0};
    char msg[301], *text = NULL;
    *status = 0;
    if (!child_start(&k, argv, e)) return NULL;
    int end = child_follow(&k, keep_line, &text);
    child_said(&k, msg);
    if (!WIFSIGNALED(end) && WEXITSTATUS(end) == 0) return text ? text : xstrdup("");
    free(text);
    if (WIFSIGNALED(end))
        err_runtime(e, "kvsmith %s was killed by signal %d; run the same command to continue", argv[1], WTERMSIG(end));
    else if (WEXITSTATUS(end) == EXIT_SIGNAL)
        *status = EXIT_SIGNAL;
    else if (WEXITSTATUS(end) == EXIT_INPUT)
        err_input(e, "%s", msg);
    else
        err_runtime(e, "%s", *msg ? msg : "a child failed without a message");
    return NULL;
}
