/* child.c: processes with a time limit, whose output is kept. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

enum { KEPT = 4 << 20 };
typedef struct {
    int fd;
    char *p;
    size_t n;
} Pipe;
static void take(Pipe *p) {
    char buf[65536];
    ssize_t got = read(p->fd, buf, sizeof buf);
    if (got <= 0) {
        close(p->fd);
        p->fd = -1;
        return;
    }
    size_t room = KEPT - p->n, n = (size_t)got < room ? (size_t)got : room;
    p->p = xrealloc(p->p, p->n + n + 1, 1);
    memcpy(p->p + p->n, buf, n);
    p->n += n;
    p->p[p->n] = 0;
}

static void become(const Check *c, const char *const argv[], int out, int err) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives this program, however that ends */
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0), dup2(out, 1), dup2(err, 2);
    if (c->libraries && *c->libraries) setenv("LD_LIBRARY_PATH", c->libraries, 1);
    unsetenv("BXFI_MAP"); /* set where a test runs this: a runner below would take itself for that test */
    setenv("KVSMITH", c->program, 1);
    setenv("GOMP_SPINCOUNT", "500", 0); /* or the program starts itself again, which tools around it do not follow */
    if (chdir(c->root) == 0) execvp(argv[0], (char *const *)argv);
    fprintf(stderr, "cannot run %s\n", argv[0]);
    _exit(127);
}
/* A process under way. */
typedef struct {
    pid_t pid; /* 0: none */
    double start, limit;
    Pipe p[2];
    Job *job;
    bool shortened, alone;
} Process;
static bool process_start(Check *c, Process *x, double limit, const char *const argv[]) {
    int pipes[2][2];
    *x = (Process){.start = now_seconds(), .limit = limit};
    for (int i = 0; i < 2; i++) x->p[i] = (Pipe){-1, xcalloc(1, 1), 0};
    if (pipe2(pipes[0], O_CLOEXEC)) return false;
    if (pipe2(pipes[1], O_CLOEXEC)) {
        close(pipes[0][0]), close(pipes[0][1]);
        return false;
    }
    fflush(NULL);
    x->pid = fork();
    if (x->pid == 0) become(c, argv, pipes[0][1], pipes[1][1]);
    for (int i = 0; i < 2; i++) close(pipes[i][1]), x->p[i].fd = pipes[i][0];
    if (x->pid < 0) x->pid = 0;
    return x->pid > 0;
}
static bool process_open(const Process *x) { return x->p[0].fd >= 0 || x->p[1].fd >= 0; }
static Child process_end(Process *x, bool late) {
    Child r = {.status = -2};
    int st = 0;
    pid_t over = 0; /* one may have closed its outputs and go on */
    while (!late && x->pid > 0 && !(over = waitpid(x->pid, &st, WNOHANG)) &&
           !(late = now_seconds() >= x->start + x->limit))
        usleep(5000);
    r.seconds = now_seconds() - x->start;
    if (late) { /* one that a driver holds may not end even so: it is given up after 3 s */
        r.status = -1;
        for (int i = 0; i < 60 && kill(-x->pid, SIGKILL) == 0 && waitpid(x->pid, &st, WNOHANG) == 0; i++) usleep(50000);
    } else if (x->pid > 0 && over == x->pid)
        r.status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
    for (int i = 0; i < 2; i++)
        if (x->p[i].fd >= 0) close(x->p[i].fd);
    r.out = x->p[0].p, r.err = x->p[1].p;
    x->pid = 0;
    return r;
}
/* Waits a moment for output of n processes. */
static void processes_read(int n, Process *x, double ms) {
    enum { MOST = 32 };
    struct pollfd f[2 * MOST];
    Pipe *of[2 * MOST];
    int k = 0;
    for (int i = 0; i < n && i < MOST; i++)
        for (int j = 0; j < 2 && x[i].pid; j++)
            if (x[i].p[j].fd >= 0) of[k] = &x[i].p[j], f[k++] = (struct pollfd){x[i].p[j].fd, POLLIN, 0};
    if (poll(f, (nfds_t)k, (int)fmax(1, fmin(ms, 1000))) <= 0) return;
    for (int i = 0; i < k; i++)
        if (f[i].revents) take(of[i]);
}
Child child_run(Check *c, double limit, const char *const argv[]) {
    Process x;
    bool late = false;
    if (process_start(c, &x, limit, argv))
        while (process_open(&x) && !late) {
            double left = x.start + limit - now_seconds();
            late = left <= 0;
            if (!late) processes_read(1, &x, 1e3 * left + 1);
        }
    if (late) c->killed |= c->shortened;
    return process_end(&x, late);
}
void jobs_run(Check *c, int most, int n, Job *job, void (*ended)(Check *, Job *, Child *)) {
    enum { MOST = 32 };
    Process x[MOST] = {{0}};
    most = imax(1, imin(most, MOST));
    for (int next = 0, under_way = 0; next < n || under_way;) {
        for (int i = 0; i < most && next < n; i++) {
            if (x[i].pid) continue;
            while (next < n && !case_begin(c, job[next].name)) next++;
            if (next == n) break;
            double limit = case_seconds(c, job[next].limit);
            const bool shortened = c->shortened, alone = c->alone;
            process_start(c, &x[i], limit, (const char *const *)job[next].argv);
            x[i].job = &job[next++], x[i].shortened = shortened, x[i].alone = alone;
            if (x[i].pid) {
                under_way++;
                continue;
            }
            Child r = process_end(&x[i], false);
            c->began = x[i].start;
            ended(c, x[i].job, &r);
            child_free(&r);
        }
        if (!under_way) continue;
        processes_read(most, x, 100);
        for (int i = 0; i < most; i++) {
            if (!x[i].pid) continue;
            bool late = x[i].start + x[i].limit <= now_seconds();
            if (process_open(&x[i]) && !late) continue;
            late &= process_open(&x[i]);
            /* the case that ends is not the one that was begun last */
            c->name = x[i].job->name, c->began = x[i].start, c->shortened = x[i].shortened;
            c->killed = late && x[i].shortened, c->alone = x[i].alone;
            Child r = process_end(&x[i], late);
            under_way--;
            ended(c, x[i].job, &r);
            child_free(&r);
        }
    }
}
void child_free(Child *r) { free(r->out), free(r->err); }

const char *child_line(const Child *r) {
    static char line[400];
    const char *end = r->err + strlen(r->err);
    while (end > r->err && end[-1] == '\n') end--;
    const char *from = end;
    while (from > r->err && from[-1] != '\n') from--;
    if (r->status == -1)
        snprintf(line, sizeof line, "ran out of time after %.0f s", r->seconds);
    else
        snprintf(line, sizeof line, "status %d: %.*s", r->status, (int)fmin(300, (double)(end - from)), from);
    return line;
}
json_t *child_json(const Child *r) {
    json_t *j = r->status == 0 ? json_loads(r->out, 0, NULL) : NULL;
    return json_is_object(j) ? j : NULL;
}
bool program_ran(Check *c, const char *what, const Child *r) {
    if (r->status == 0) return true;
    /* What the backend has yet to learn it says with status 2, and that is no failure of the device. */
    bool lacks = r->status == 2 && (strstr(r->err, "does not have") || strstr(r->err, "does not run on") ||
                                    strstr(r->err, "computes in f32"));
    if (!lacks) case_log(c, what, r->err);
    case_end(c, lacks ? CASE_SKIPPED : CASE_FAILED, NULL, "%s: %s", what, child_line(r));
    return false;
}
