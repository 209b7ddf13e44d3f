/* child.c: processes with a time limit, whose output is kept. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
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
Child child_run(Check *c, double limit, const char *const argv[]) {
    Child r = {.status = -2};
    int pipes[2][2];
    double start = now_seconds();
    r.out = xcalloc(1, 1), r.err = xcalloc(1, 1);
    if (pipe2(pipes[0], O_CLOEXEC) || pipe2(pipes[1], O_CLOEXEC)) return r;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) become(c, argv, pipes[0][1], pipes[1][1]);
    close(pipes[0][1]), close(pipes[1][1]);
    Pipe p[2] = {{pipes[0][0], r.out, 0}, {pipes[1][0], r.err, 0}};
    bool late = false;
    while (pid > 0 && (p[0].fd >= 0 || p[1].fd >= 0)) {
        double left = start + limit - now_seconds();
        if (left <= 0) {
            late = true;
            break;
        }
        struct pollfd f[2] = {{p[0].fd, POLLIN, 0}, {p[1].fd, POLLIN, 0}};
        if (poll(f, 2, (int)fmin(1e3 * left + 1, 1000)) <= 0) continue;
        for (int i = 0; i < 2; i++)
            if (f[i].revents) take(&p[i]);
    }
    int st = 0;
    if (late) kill(-pid, SIGKILL);
    if (pid > 0 && waitpid(pid, &st, 0) == pid) r.status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
    if (late) r.status = -1, c->killed |= c->shortened;
    for (int i = 0; i < 2; i++)
        if (p[i].fd >= 0) close(p[i].fd);
    r.out = p[0].p, r.err = p[1].p;
    r.seconds = now_seconds() - start;
    return r;
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
