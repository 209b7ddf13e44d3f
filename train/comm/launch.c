#include "launch.h"
#include "model/config/tree.h"
#include "ops/procs.h"
#include "ops/signals.h"
#include "comm_shm.h"
#include "ranks.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 2000, GRACE_S = 5 };

typedef struct {
    pid_t pid; /* 0: has ended */
    int pipe;  /* what it writes; -1: rank 0, or closed */
    int status;
    size_t n;
    char line[LINE_MAX_BYTES];
    char *held; /* its last error line */
} Child;

typedef struct {
    Launch *l;
    Child *child;
    int live, first; /* first: the rank to report, -1 */
    bool first_stopped;
    double since; /* of the first failure, 0 */
    int signals;  /* SIGINT and SIGTERM that have come */
    int shared;   /* the memory of the ranks */
} Watch;

/* ---- starting -------------------------------------------------------------------------------------------------------
 */
static char **launch_environment(const Launch *l, int rank, int fd) {
    size_t n = 0, k = 0;
    while (environ[n]) n++;
    char **env = xcalloc(n + 8, sizeof *env);
    for (size_t i = 0; i < n; i++)
        if (!ranks_variable(environ[i]) && (l->ranks == 1 || !procs_variable(environ[i])))
            env[k++] = xstrdup(environ[i]);
    env[k++] = xformat("KVSMITH_RANK=%d", rank);
    env[k++] = xformat("KVSMITH_WORLD=%d", l->ranks);
    env[k++] = xformat("KVSMITH_RESTART=%d", l->restart);
    env[k++] = xformat("KVSMITH_JOB=%d", (int)getpid());
    env[k++] = xformat("KVSMITH_FD=%d", fd);
    env[k++] = xformat("KVSMITH_DEADLINE_MS=%.0f", l->deadline * 1e3);
    return env;
}

/* Says through `why`, which a start closes, what stopped it. */
static _Noreturn void launch_child(const Launch *l, int rank, int fd, int out, char **env, pid_t parent, int why) {
    const char *what = "its environment";
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, l->keeps_pipe ? SIG_IGN : SIG_DFL);
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) goto failed;
    if (getppid() != parent) _exit(EXIT_RUNTIME); /* there is no reader for a message */
    if (rank) {
        what = "standard input and output";
        int null = TEMP_FAILURE_RETRY(open("/dev/null", O_RDONLY));
        if (null < 0 || TEMP_FAILURE_RETRY(dup2(null, 0)) < 0 || TEMP_FAILURE_RETRY(dup2(out, 1)) < 0 ||
            TEMP_FAILURE_RETRY(dup2(out, 2)) < 0)
            goto failed;
        if (null > 2) close(null);
    }
    what = "the memory to share";
    if (fcntl(fd, F_SETFD, 0)) goto failed;
    char **argv = l->words; /* words[-1] is the program's name */
    procs_unbind();
    what = "/proc/self/exe";
    execve("/proc/self/exe", argv - 1, env);
failed:
    dprintf(why, "%s: %s", what, strerror(errno));
    _exit(EXIT_RUNTIME);
}

static bool launch_start(Watch *w, int rank, Err *e) {
    Child *c = &w->child[rank];
    int ends[2] = {-1, -1}, why[2];
    char said[200];
    if (rank && pipe2(ends, O_CLOEXEC)) return err_runtime(e, "launch: a pipe for rank %d: %s", rank, strerror(errno));
    c->pipe = ends[0];
    if (pipe2(why, O_CLOEXEC)) {
        err_runtime(e, "launch: a pipe for rank %d: %s", rank, strerror(errno));
        if (ends[1] >= 0) close(ends[1]);
        return false;
    }
    char **env = launch_environment(w->l, rank, w->shared);
    pid_t me = getpid();
    c->pid = fork();
    if (!c->pid) launch_child(w->l, rank, w->shared, ends[1], env, me, why[1]);
    int error = errno;
    for (char **v = env; *v; v++) free(*v);
    free(env);
    if (ends[1] >= 0) close(ends[1]);
    close(why[1]);
    ssize_t n = c->pid < 0 ? 0 : TEMP_FAILURE_RETRY(read(why[0], said, sizeof said - 1)); /* until it has started */
    close(why[0]);
    if (c->pid < 0) {
        c->pid = 0;
        return err_runtime(e, "launch: cannot start rank %d of %d: %s", rank, w->l->ranks, strerror(error));
    }
    if (c->pipe >= 0) fcntl(c->pipe, F_SETFL, O_NONBLOCK);
    w->live++;
    said[n > 0 ? n : 0] = 0;
    return n <= 0 || err_runtime(e, "launch: cannot start rank %d of %d: %s", rank, w->l->ranks, said);
}

/* ---- what they write ------------------------------------------------------------------------------------------------
 */
static void launch_line(Child *c, int rank) {
    c->line[c->n] = 0;
    if (!strncmp(c->line, "kvsmith: ", 9)) {
        free(c->held);
        c->held = xstrdup(c->line);
    } else if (c->n) {
        fprintf(stderr, "[rank %d] %s\n", rank, c->line);
    }
    c->n = 0;
}
static void launch_relay(Child *c, int rank) {
    char buf[4096];
    ssize_t n;
    while (c->pipe >= 0 && (n = read(c->pipe, buf, sizeof buf)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) break;
        for (ssize_t i = 0; i < n; i++) {
            if (buf[i] == '\n' || c->n == LINE_MAX_BYTES - 1) launch_line(c, rank);
            if (buf[i] != '\n') c->line[c->n++] = buf[i];
        }
    }
    if (c->pipe < 0) return;
    launch_line(c, rank);
    close(c->pipe);
    c->pipe = -1;
}
static bool ended_with(const Child *c, int status) { return WIFEXITED(c->status) && WEXITSTATUS(c->status) == status; }
/* Prints input errors alone and once: rank 0 prints its own if it found one. */
static void last_words(Watch *w) {
    int W = w->l->ranks;
    bool input = false;
    for (int r = 0; r < W; r++) input |= ended_with(&w->child[r], EXIT_INPUT);
    for (int r = 1; r < W; r++) {
        Child *c = &w->child[r];
        bool told = input && (ended_with(c, EXIT_RUNTIME) || ended_with(&w->child[0], EXIT_INPUT));
        told |= ended_with(c, EXIT_DIVERGED) && ended_with(&w->child[0], EXIT_DIVERGED);
        for (int q = 1; q < r && c->held; q++) told |= w->child[q].held && !strcmp(w->child[q].held, c->held);
        if (c->held && !told) fprintf(stderr, "[rank %d] %s\n", r, c->held);
    }
}

/* ---- how they end ---------------------------------------------------------------------------------------------------
 */
static void signal_all(Watch *w, int number) {
    for (int r = 0; r < w->l->ranks; r++)
        if (w->child[r].pid > 0) kill(w->child[r].pid, number);
}
static bool launch_failed(int status) {
    return !WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != EXIT_SIGNAL);
}
/* A killed rank explains more than one that noticed it. */
static void launch_tell(Watch *w, int r, bool stopped) {
    Child *c = &w->child[r];
    int s = c->status;
    bool killed = stopped || WIFSIGNALED(s);
    if (w->first >= 0 && (w->first_stopped || !killed || WIFSIGNALED(w->child[w->first].status))) return;
    w->first = r;
    w->first_stopped = stopped;
    if (stopped)
        snprintf(w->l->why, sizeof w->l->why, "rank %d (process %d) was stopped, so it was killed", r, (int)c->pid);
    else if (killed)
        snprintf(w->l->why, sizeof w->l->why, "rank %d was killed by signal %d (%s)", r, WTERMSIG(s),
                 strsignal(WTERMSIG(s)));
    else
        snprintf(w->l->why, sizeof w->l->why, "rank %d ended with status %d", r, WEXITSTATUS(s));
}
static void launch_reap(Watch *w) {
    for (int r = 0; r < w->l->ranks; r++) {
        Child *c = &w->child[r];
        if (!c->pid || waitpid(c->pid, &c->status, WNOHANG) != c->pid) continue;
        c->pid = 0;
        w->live--;
        if (!launch_failed(c->status)) continue;
        if (!w->since) w->since = now_seconds();
        launch_tell(w, r, false);
        /* No other rank knows about one that exits before it has joined the shared memory. */
        comm_shm_ended(w->shared, r);
    }
}
/* After a failure a stopped rank will not find out by itself. */
static void end_stopped(Watch *w) {
    for (int r = 0; r < w->l->ranks; r++) {
        Child *c = &w->child[r];
        if (!c->pid || comm_shm_process(c->pid) != 'T') continue;
        launch_tell(w, r, true);
        kill(c->pid, SIGKILL);
    }
}

static void launch_watch(Watch *w, int signals) {
    int W = w->l->ranks;
    struct pollfd *fd = xcalloc((size_t)W + 1, sizeof *fd);
    while (w->live) {
        fd[0] = (struct pollfd){.fd = signals, .events = POLLIN};
        for (int r = 0; r < W; r++) fd[r + 1] = (struct pollfd){.fd = w->child[r].pipe, .events = POLLIN};
        poll(fd, (nfds_t)W + 1, w->since ? 100 : 1000);
        struct signalfd_siginfo info;
        while (read(signals, &info, sizeof info) == sizeof info) {
            int number = (int)info.ssi_signo;
            if (number == SIGCHLD) continue;
            w->l->interrupted = true;
            w->signals += number == SIGINT || number == SIGTERM;
            signal_all(w, w->signals > 2 ? SIGKILL : number);
        }
        for (int r = 0; r < W; r++) launch_relay(&w->child[r], r);
        launch_reap(w);
        if (!w->since) continue;
        end_stopped(w);
        if (now_seconds() - w->since > w->l->deadline + GRACE_S) signal_all(w, SIGKILL);
    }
    for (int r = 0; r < W; r++) launch_relay(&w->child[r], r);
    free(fd);
}

static int launch_verdict(const Watch *w) {
    int status = 0;
    for (int r = 0; r < w->l->ranks; r++) {
        int s = w->child[r].status;
        int one = WIFEXITED(s) ? WEXITSTATUS(s) : EXIT_RUNTIME;
        if (one != 0 && one != EXIT_INPUT && one != EXIT_SIGNAL && one != EXIT_DIVERGED) one = EXIT_RUNTIME;
        static const int order[] = {0, EXIT_SIGNAL, EXIT_RUNTIME, EXIT_DIVERGED, EXIT_INPUT};
        int a = 0, b = 0;
        while (order[a] != status) a++;
        while (order[b] != one) b++;
        if (b > a) status = one;
    }
    return status;
}

bool launch_run(Launch *l, Err *e) {
    Watch w = {.l = l, .child = xcalloc((size_t)l->ranks, sizeof *w.child), .first = -1, .shared = -1};
    sigset_t ours, before;
    for (int r = 0; r < l->ranks; r++) w.child[r].pipe = -1;
    *l->why = 0;
    signals_set(&ours);
    sigaddset(&ours, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ours, &before);
    /* A reader of the lines that went away does not end the run. */
    l->keeps_pipe = signal(SIGPIPE, SIG_IGN) == SIG_IGN;
    /* The parent process may have left it ignored: then the end of a rank could not be detected. */
    signal(SIGCHLD, SIG_DFL);
    int signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
    bool ok = signals >= 0 || err_runtime(e, "launch: signals: %s", strerror(errno));
    ok = ok && comm_shm_make(l->ranks, &w.shared, e);
    for (int r = 0; ok && r < l->ranks; r++) ok = launch_start(&w, r, e);
    if (!ok) signal_all(&w, SIGKILL);
    if (signals >= 0) {
        launch_watch(&w, signals);
        close(signals);
    }
    if (ok) last_words(&w);
    l->status = launch_verdict(&w);
    for (int r = 0; r < l->ranks; r++) {
        if (w.child[r].pipe >= 0) close(w.child[r].pipe); /* a process that is none of ours has its other end */
        free(w.child[r].held);
    }
    free(w.child);
    if (w.shared >= 0) close(w.shared);
    if (!l->keeps_pipe) signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return ok;
}

/* ---- how many -------------------------------------------------------------------------------------------------------
 */

/* Reads run.KEY of the settings in a file; *out is unchanged if it cannot be read, which the ranks will report. */
static void run_key(const Node *root, const char *key, char out[16]) {
    const Node *run = root ? tree_get(root, "run") : NULL, *x = run ? tree_get(run, key) : NULL;
    if (x && x->type == NODE_SCALAR) snprintf(out, 16, "%.15s", x->text);
}

/* Reads the command's own settings: a file, then KEY=VALUE, then options. An instruction set is a CPU's, so naming one
 * chooses the CPU if the device is not given. */
int launch_default(const CliSpec *spec, int nword, char *const word[], int gpus, int procs) {
    bool train = !strcmp(word[0], "train");
    char device[16] = "auto", isa[16] = "auto";
    CliPeek p;
    cli_peek(spec, nword, word, &p);
    if (train && p.word) {
        Node *root = tree_yaml_file(p.word, NULL);
        run_key(root, "device", device);
        run_key(root, "isa", isa);
        tree_free(root);
    }
    for (int i = 1; train && i < nword; i++) {
        if (!strncmp(word[i], "run.device=", 11)) snprintf(device, sizeof device, "%.15s", word[i] + 11);
        if (!strncmp(word[i], "run.isa=", 8)) snprintf(isa, sizeof isa, "%.15s", word[i] + 8);
    }
    if (!train) strcpy(device, "cpu"); /* what bench comm measures unless another is named */
    if (p.device) snprintf(device, sizeof device, "%.15s", p.device);
    if (p.isa) snprintf(isa, sizeof isa, "%.15s", p.isa);
    bool cpu = !strcmp(device, "cpu") || (!strcmp(device, "auto") && *isa && strcmp(isa, "auto"));
    return gpus && !cpu ? gpus : procs;
}
