/* driver.c: faults, one at a time, over the commands below, and kills at random moments.
 *
 *   driver PROGRAM INJECT.SO WORK [--share I/K] [--sample N] [--kills N] [--seed S] [--only COMMAND] [--kind KIND]
 * [--slow X]
 *
 * WORK/in holds what run.sh has made. Each command is run undisturbed first, twice, which must end alike; that counts
 * its calls of each kind. A case fails one of them (or it and all after it), in the command's own process or in one
 * that it starts. Of every case is asked:
 *   status 1 with one line that begins with "kvsmith: ", or 0 and what the undisturbed run left; never 2, which blames
 *   the user; never a signal; an end within the deadline;
 *   the same command again (train: with --resume auto) ends with what the undisturbed run left, and no temporary name
 * stays. The full set is every call of every kind; memory, of which there are ten times as many calls as of all
 * others, every MEMORY_EACH-th. A share I/K is every K-th case from I on; a sample spreads N over commands,
 * processes and kinds. */
#include "fault.h"
#include "tree.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TRAIN "train", "../in/tiny.yaml", "--threads", "1", "-q", "run.dir=run"
#define RANKS \
    "launch", "-n", "2", "--deadline", "5", "--", "train", "../in/tiny.yaml", "--threads", "1", "-q", "run.dir=run"
typedef struct {
    const char *name;
    char *run[24], *again[24]; /* again NULL: it only reads */
    const char *base;          /* of WORK/in, copied to the case's folder first */
    const char *made;          /* what it leaves there; again refuses where that is whole: once */
    bool once, loose, killed;  /* loose: see tree_same */
    int who;                   /* processes that it starts */
    int each, memory_each;     /* of the full set every so many-th call; 0: 1 and MEMORY_EACH */
} Command;
static const Command commands[] = {
    {"train", {TRAIN}, {TRAIN, "--resume", "auto"}, NULL, "run", .killed = true},
    {"async",
     {TRAIN, "train.async_save=true"},
     {TRAIN, "train.async_save=true", "--resume", "auto"},
     NULL,
     "run",
     .loose = true,
     .killed = true},
    {"ranks",
     {RANKS, "dist.stage=1"},
     {RANKS, "dist.stage=1", "--resume", "auto"},
     NULL,
     "run",
     .who = 2,
     .memory_each = 21,
     .killed = true},
    {"resume", {TRAIN, "--resume", "auto"}, {TRAIN, "--resume", "auto"}, "half", "run"},
    {"convert",
     {"convert", "../in/model", "dst", "--to", "mqa", "--check-tokens", "8", "--threads", "1"},
     {"convert", "../in/model", "dst", "--to", "mqa", "--check-tokens", "8", "--threads", "1"},
     NULL,
     "dst",
     .once = true,
     .killed = true},
    {"tokenize",
     {"data", "tokenize", "../in/text.txt", "--tokenizer", "../in/tok.json", "--out", "set", "--threads", "1"},
     {"data", "tokenize", "../in/text.txt", "--tokenizer", "../in/tok.json", "--out", "set", "--threads", "1"},
     NULL,
     "set.idx",
     .killed = true},
    {"train-bpe",
     {"data", "train-bpe", "../in/text.txt", "--vocab", "280", "--out", "tok.json", "--threads", "1"},
     {"data", "train-bpe", "../in/text.txt", "--vocab", "280", "--out", "tok.json", "--threads", "1"},
     NULL,
     "tok.json",
     .killed = true},
    {"logits",
     {"logits", "../in/model", "--tokens", "../in/ids.txt", "--out", "l.safetensors", "--threads", "1", "-q"},
     {"logits", "../in/model", "--tokens", "../in/ids.txt", "--out", "l.safetensors", "--threads", "1", "-q"},
     NULL,
     "l.safetensors"},
    {"generate",
     {"generate", "../in/model", "--prompt", "Now", "--max-new", "4", "--seed", "1", "--threads", "1", "-q"}},
    {"disk",
     {"generate", "../in/deep", "--prompt", "Now", "--max-new", "4", "--seed", "1", "--threads", "1", "-q",
      "--cache-memory", "620000", "--cache-disk", "."}},
    {"session",
     {"generate", "../in/model", "--prompt", "Now", "--max-new", "4", "--threads", "1", "-q", "--save-session", "s"},
     {"generate", "../in/model", "--prompt", "Now", "--max-new", "4", "--threads", "1", "-q", "--save-session", "s"},
     NULL,
     "s",
     .killed = true},
    {"eval", {"eval", "../in/model", "ppl", "--data", "../in/val.txt", "--context", "8", "--threads", "1"}},
    {"compare",
     {"compare", "../in/compare.yaml", "--threads", "1", "-q"},
     {"compare", "../in/compare.yaml", "--threads", "1", "-q"},
     NULL,
     "cmp",
     .who = 2,
     .each = 5,
     .memory_each = 140,
     .killed = true},
};
enum { NCOMMANDS = sizeof commands / sizeof *commands, WHO_MAX = 4, MEMORY_EACH = 7 };

typedef struct {
    const char *name;
    int error[4]; /* negative: that and all calls after it fail */
} Kind;
static const Kind kinds[FAULT_KINDS] = {
    [FAULT_OPEN] = {"open", {EIO, -EMFILE, EOPNOTSUPP}},
    [FAULT_READ] = {"read", {EIO, EINTR}},
    [FAULT_WRITE] = {"write", {EIO, -ENOSPC, EINTR}},
    [FAULT_PREAD] = {"pread", {EIO}},
    [FAULT_PWRITE] = {"pwrite", {ENOSPC, EINTR}},
    [FAULT_FSYNC] = {"fsync", {EIO, -ENOSPC}},
    [FAULT_RENAME] = {"rename", {EIO, -ENOSPC}},
    [FAULT_STAT] = {"stat", {EIO, -EACCES}},
    [FAULT_READDIR] = {"readdir", {EIO, -EIO}},
    [FAULT_MMAP] = {"mmap", {ENOMEM}},
    [FAULT_FTRUNCATE] = {"ftruncate", {EIO, ENOSPC, EOPNOTSUPP}},
    [FAULT_MKDIR] = {"mkdir", {ENOSPC}},
    [FAULT_LINK] = {"link", {ENOSPC}},
    [FAULT_UNLINK] = {"unlink", {EIO, -EIO}},
    [FAULT_FLOCK] = {"flock", {EIO, ENOLCK}},
    [FAULT_ALLOC] = {"memory", {ENOMEM}},
    [FAULT_FORK] = {"fork", {EAGAIN}},
};

/* SIGTERM: the case at hand is the last, and what was done is printed. */
static volatile sig_atomic_t enough;
static void on_term(int number) {
    (void)number;
    enough = 1;
}
static const char *program, *shim, *work;
static double slow = 1;
static char ref[400], place[400];

static void die(const char *what) {
    fprintf(stderr, "driver: %s: %s\n", what, strerror(errno));
    exit(3);
}
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* ---- a program that waits at main
 * ----------------------------------------------------------------------------------- */

typedef struct {
    int pid, to, from;
} Server;
static void server_open(Server *s, char *const *words) {
    int a[2], b[2];
    char *argv[26] = {"kvsmith"};
    for (int i = 0; words[i]; i++) argv[i + 1] = words[i];
    if (pipe(a) || pipe(b)) die("pipe");
    if ((s->pid = fork()) < 0) die("fork");
    if (!s->pid) {
        dup2(a[0], FAULT_REQUESTS), dup2(b[1], FAULT_REPLIES);
        for (int fd = 3; fd < 64; fd++) close(fd);
        setenv("LD_PRELOAD", shim, 1), setenv("FAULT_SERVER", "1", 1);
        setenv("OMP_NUM_THREADS", "1", 1), setenv("OMP_WAIT_POLICY", "passive", 1), setenv("LC_ALL", "C.UTF-8", 1);
        execv(program, argv);
        die(program);
    }
    close(a[0]), close(b[1]);
    s->to = a[1], s->from = b[0];
}
static void server_close(Server *s) {
    close(s->to), close(s->from);
    waitpid(s->pid, NULL, 0);
}

/* Processes of a group that are alive; group by group, as ranks and runs of a comparison have groups of their own. */
static int child_of(int pid, int k) {
    char path[64], *text;
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    int fd = open(path, O_RDONLY);
    char line[400];
    ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    if (fd >= 0) close(fd);
    line[n > 0 ? n : 0] = 0;
    text = line;
    for (; k >= 0; k--) found = (int)strtol(text, &text, 10);
    return found;
}
static void kill_tree(int pid) {
    int kid[8], n = 0;
    while (n < 8 && (kid[n] = child_of(pid, n)) > 0) n++;
    kill(pid, SIGKILL);
    for (int i = 0; i < n; i++) kill_tree(kid[i]);
}

typedef struct {
    int status; /* of wait; -1: it had not ended in time */
    double took;
} End;
/* At `kill_at` seconds (below 0: never) the process, or of several the one numbered `whom`, is killed; -1: all. */
static End serve(Server *s, FaultSpec spec, double kill_at, int whom) {
    End end = {.status = -1};
    int pid, deadline = (int)(30e3 * slow);
    double from = seconds();
    snprintf(spec.cwd, sizeof spec.cwd, "%s", place);
    if (write(s->to, &spec, sizeof spec) != (ssize_t)sizeof spec ||
        read(s->from, &pid, sizeof pid) != (ssize_t)sizeof pid)
        die("the program under test does not serve");
    struct pollfd q = {.fd = s->from, .events = POLLIN};
    if (kill_at >= 0) {
        struct timespec t = {(time_t)kill_at, (long)((kill_at - (double)(time_t)kill_at) * 1e9)};
        ppoll(&q, 1, &t, NULL);
        if (!(q.revents & POLLIN)) {
            int kid = whom > 0 ? child_of(pid, whom - 1) : 0;
            if (whom < 0)
                kill_tree(pid);
            else
                kill(kid > 0 ? kid : pid, SIGKILL);
        }
    }
    bool late = poll(&q, 1, deadline) == 0;
    if (late) kill_tree(pid);
    if (read(s->from, &end.status, sizeof end.status) != (ssize_t)sizeof end.status) die("no status");
    /* what it has started ends with it, soon */
    for (int i = 0; i < 2000 && !kill(-pid, 0); i++) usleep(2000);
    if (!kill(-pid, 0)) late = true, kill(-pid, SIGKILL);
    if (late) end.status = -1;
    end.took = seconds() - from;
    return end;
}

/* ---- what is counted
 * ------------------------------------------------------------------------------------------------ */

typedef enum { CASES, LOST, SILENT, SIGNALS, HANGS, BLAMED, LINES, LEFT, FIGURES } Figure;
static const char *const figures[FIGURES] = {"cases", "lost", "silent", "signals", "hangs", "blamed", "lines", "left"};
static int sum[NCOMMANDS][FAULT_KINDS + 1][FIGURES]; /* the last kind is kill -9 */
static int shown;
static void fault(int c, int k, Figure f, const char *what, const char *why) {
    sum[c][k][f]++;
    if (shown++ < 200) printf("FAULT %s %s: %s\n", figures[f], what, why);
    fflush(stdout);
}

static void renew(const Command *c) {
    tree_remove(place);
    if (mkdir(place, 0777)) die(place);
    char *base = path_of(work, "in/");
    if (c->base) {
        char *from = path_of(base, c->base);
        tree_copy(from, place);
        free(from);
    }
    free(base);
}
static char *said(const char *name) {
    char *path = path_of(place, name), *text = text_of(path, NULL);
    free(path);
    return text;
}

/* Lines on stderr: one, of ranks one each and their launcher's; notes and warnings of saves that are tried again do not
 * count. */
static bool one_line(const char *err, int most, char why[300]) {
    int n = 0;
    bool good = true;
    for (const char *at = err; *at; n++) {
        size_t len = strcspn(at, "\n");
        bool note = !strncmp(at, "kvsmith: note: ", 15) || memmem(at, len, "the next save tries again", 25);
        const char *text = !strncmp(at, "[rank ", 6) ? at + strcspn(at, "]") + 2 : at;
        good &= len <= 330 && (!strncmp(text, "kvsmith: ", 9) || !strncmp(text, "libgomp: ", 9));
        n -= note;
        at += len + (at[len] != 0);
    }
    if (n < 1 || n > most || !good) snprintf(why, 300, "%d lines on stderr: %.200s", n, err);
    return n >= 1 && n <= most && good;
}

/* The same again, and what is there at last. */
static void settle(int ci, int k, const char *what, Server *again, bool loose) {
    const Command *c = &commands[ci];
    char why[300] = "", *made = path_of(place, c->made ? c->made : "");
    if (c->again[0] && !(c->once && there(made))) {
        End end = serve(again, (FaultSpec){.kind = FAULT_KINDS}, -1, 0);
        char *err = said("err");
        if (end.status) {
            snprintf(why, sizeof why, "again: status %x: %.200s", (unsigned)end.status, err);
            fault(ci, k, end.status < 0 ? HANGS : LOST, what, why);
        }
        free(err);
    }
    if (!*why && c->made) {
        char *left = tree_left(place);
        if (left)
            fault(ci, k, LEFT, what, left);
        else if (!tree_same(place, ref, loose, why))
            fault(ci, k, LOST, what, why);
        free(left);
    }
    free(made);
}

static void judge(int ci, int k, int error, const char *what, End end, Server *again) {
    const Command *c = &commands[ci];
    char why[300], *err = said("err"), *out = said("out"), *old;
    bool loose = c->loose && strstr(err, "the next save tries again");
    int code = WEXITSTATUS(end.status);
    sum[ci][k][CASES]++;
    if (end.status == -1) {
        fault(ci, k, HANGS, what, err);
    } else if (WIFSIGNALED(end.status) || strstr(err, "killed by signal") || strstr(err, "CHECK ")) {
        fault(ci, k, SIGNALS, what, err);
    } else if (code == 0) {
        char *path = path_of(ref, "out");
        old = text_of(path, NULL);
        if (k == FAULT_FSYNC && !loose) fault(ci, k, SILENT, what, "what may not be on disk was not told");
        if (!c->made && strcmp(out, old)) fault(ci, k, SILENT, what, "other output");
        if (strstr(err, "note: cannot remove run/lock")) { /* it is said, and nobody holds it */
            char *lock = path_of(place, "run/lock");
            tree_remove(lock);
            free(lock);
        }
        if (c->made && !tree_same(place, ref, loose, why)) fault(ci, k, SILENT, what, why);
        free(old), free(path);
    } else if (code == 2 && error != EACCES) { /* which is the user's to give */
        fault(ci, k, BLAMED, what, err);
    } else if ((code != 1 && code != 2) || !one_line(err, 1 + (strcmp(c->name, "ranks") ? 0 : c->who), why)) {
        fault(ci, k, LINES, what, code == 1 ? why : err);
    }
    /* a checkpoint that was there is there */
    char *state = path_of(place, "run/last/trainer/state.json");
    if (c->base && !there(state)) fault(ci, k, LOST, what, "no run/last");
    free(state);
    if (end.status && c->made) settle(ci, k, what, again, c->loose);
    free(err), free(out);
}

/* ---- cases
 * ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    int command, who, kind, count; /* calls */
    int modes;
} Group;
static Group group[NCOMMANDS * WHO_MAX * FAULT_KINDS];
static int ngroup;
static double took[NCOMMANDS];

static int counts_of(const char *dir, int who, int n[FAULT_KINDS]) {
    char name[40];
    snprintf(name, sizeof name, "counts.%d", who);
    char *path = path_of(dir, name), *text = text_of(path, NULL), *at = text;
    int any = *text != 0;
    for (int k = 0; k < FAULT_KINDS; k++) n[k] = (int)strtol(at, &at, 10);
    free(path), free(text);
    return any;
}

/* Undisturbed, twice: how it ends, and its calls. */
static void reference(int ci) {
    const Command *c = &commands[ci];
    Server s;
    char why[300], keep[400];
    server_open(&s, c->run);
    snprintf(keep, sizeof keep, "%s", place);
    snprintf(ref, sizeof ref, "%s.%s", keep, c->name);
    snprintf(place, sizeof place, "%s", ref);
    for (int i = 0; i < 2; i++) {
        if (i) snprintf(place, sizeof place, "%s", keep);
        renew(c);
        End end = serve(&s, (FaultSpec){.kind = -1}, -1, 0);
        took[ci] = end.took;
        char *err = said("err");
        if (end.status || (*err && !strstr(err, "note: "))) {
            printf("%s: undisturbed it ends with %x: %s\n", c->name, (unsigned)end.status, err);
            exit(3);
        }
        free(err);
    }
    if (c->made && !tree_same(place, ref, false, why))
        printf("FAULT %s: two undisturbed runs differ: %s\n", c->name, why), exit(3);
    for (int who = 0; who <= c->who; who++) {
        int n[FAULT_KINDS];
        if (!counts_of(ref, who, n)) printf("%s: process %d has not counted its calls\n", c->name, who), exit(3);
        for (int k = 0; k < FAULT_KINDS; k++) {
            int modes = 0;
            while (modes < 4 && kinds[k].error[modes]) modes++;
            if (n[k]) group[ngroup++] = (Group){ci, who, k, n[k], modes};
        }
    }
    server_close(&s);
}

static void run_case(const Group *g, int i, Server *run, Server *again) {
    const Command *c = &commands[g->command];
    int error = kinds[g->kind].error[i % g->modes];
    FaultSpec spec = {.who = g->who, .kind = g->kind, .n = 1 + i / g->modes, .error = abs(error), .sticky = error < 0};
    char what[100];
    snprintf(what, sizeof what, "%s/%d %s %d %s%s", c->name, g->who, kinds[g->kind].name, spec.n,
             strerrorname_np(spec.error), spec.sticky ? "+" : "");
    renew(c);
    judge(g->command, g->kind, spec.error, what, serve(run, spec, -1, 0), again);
}

static void kills(int ci, int n, uint64_t seed, Server *run, Server *again) {
    const Command *c = &commands[ci];
    for (int i = 0; i < n && !enough; i++) {
        uint64_t r = mix(seed + (uint64_t)i * 131 + (uint64_t)ci);
        double at = (double)(r >> 40) / (double)(1 << 24) * took[ci] * 1.1;
        int whom = c->who ? (int)(r % (unsigned)(c->who + 2)) - 1 : 0;
        char what[100];
        snprintf(what, sizeof what, "%s kill %d at %.4f s, process %d", c->name, i, at, whom);
        renew(c);
        sum[ci][FAULT_KINDS][CASES]++;
        End end = serve(run, (FaultSpec){.kind = FAULT_KINDS}, at, whom);
        if (end.status == -1) fault(ci, FAULT_KINDS, HANGS, what, "it did not end");
        if (r >> 7 & 1) { /* and again while it goes on */
            char *made = path_of(place, c->made);
            if (!(c->once && there(made))) serve(again, (FaultSpec){.kind = FAULT_KINDS}, at / 2, whom);
            free(made);
        }
        settle(ci, FAULT_KINDS, what, again, false);
    }
}

/* Cases of a group that are done: all that are of the share, or `want` of them by chance. */
static int64_t number;
/* Of a group in a sample: a comparison, whose run takes a second, is failed once a kind, and only in its own
 * process. */
static int wanted(const Group *g, int quota) {
    const int all = g->count * g->modes;
    if (commands[g->command].each) return g->who == 0;
    return quota < all ? quota : all;
}
static bool chosen(const Group *g, int i, int want, int share, int shares, uint64_t seed) {
    const int all = g->count * g->modes;
    number++;
    const Command *c = &commands[g->command];
    const int memory = c->memory_each ? c->memory_each : MEMORY_EACH, each = g->kind == FAULT_ALLOC ? memory : c->each;
    if (!want) return (each < 2 || i % each == 0) && mix((uint64_t)number) % (unsigned)shares == (unsigned)share;
    want = wanted(g, want);
    if (!want) return false;
    /* one of each stretch of all / want */
    if (want >= all) return true;
    const int k = (int)((int64_t)i * want / all), from = (int)(((int64_t)k * all + want - 1) / want),
              to = (int)(((int64_t)(k + 1) * all + want - 1) / want);
    return i == from + (int)(mix(seed + (uint64_t)(g - group) * 7919 + (uint64_t)k) % (unsigned)(to - from));
}

static void table(void) {
    int total[FIGURES] = {0};
    printf("%-10s %-10s", "command", "kind");
    for (int f = 0; f < FIGURES; f++) printf(" %8s", figures[f]);
    putchar('\n');
    for (int c = 0; c < NCOMMANDS; c++)
        for (int k = 0; k <= FAULT_KINDS; k++) {
            if (!sum[c][k][CASES]) continue;
            printf("%-10s %-10s", commands[c].name, k < FAULT_KINDS ? kinds[k].name : "kill-9");
            for (int f = 0; f < FIGURES; f++) printf(" %8d", sum[c][k][f]), total[f] += sum[c][k][f];
            putchar('\n');
        }
    printf("%-10s %-10s", "total", "");
    for (int f = 0; f < FIGURES; f++) printf(" %8d", total[f]);
    putchar('\n');
    int bad = 0;
    for (int f = LOST; f < FIGURES; f++) bad += total[f];
    exit(bad || !total[CASES]);
}

int main(int argc, char **argv) {
    int sample = 0, share = 0, shares = 1, nkill = 0;
    uint64_t seed = 1;
    const char *only = NULL, *kind = NULL;
    if (argc < 4) return fprintf(stderr, "driver PROGRAM INJECT.SO WORK [OPTION...]; see driver.c\n"), 3;
    program = argv[1], shim = argv[2], work = argv[3];
    for (int i = 4; i + 1 < argc; i += 2) {
        const char *o = argv[i], *v = argv[i + 1];
        if (!strcmp(o, "--share") && sscanf(v, "%d/%d", &share, &shares) == 2)
            share--;
        else if (!strcmp(o, "--sample"))
            sample = atoi(v);
        else if (!strcmp(o, "--kills"))
            nkill = atoi(v);
        else if (!strcmp(o, "--seed"))
            seed = strtoull(v, NULL, 10);
        else if (!strcmp(o, "--only"))
            only = v;
        else if (!strcmp(o, "--kind"))
            kind = v;
        else if (!strcmp(o, "--slow"))
            slow = atof(v);
        else
            return fprintf(stderr, "driver: %s %s\n", o, v), 3;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, on_term);
    snprintf(place, sizeof place, "%s/c%d", work, (int)getpid());
    for (int c = 0; c < NCOMMANDS; c++)
        if (!only || !strcmp(only, commands[c].name)) reference(c);
    /* As many of each group as it has, up to the number that makes the sample. */
    int quota = 0, have = 0, of = 0;
    if (kind) { /* the others go */
        int n = 0;
        for (int g = 0; g < ngroup; g++)
            if (!strcmp(kinds[group[g].kind].name, kind)) group[n++] = group[g];
        ngroup = n;
    }
    for (int g = 0; g < ngroup; g++) of += group[g].count * group[g].modes;
    for (int was = -1; sample && have < sample && have > was;) { /* until all are wanted that can be */
        was = have, have = 0, quota++;
        for (int g = 0; g < ngroup; g++) have += wanted(&group[g], quota);
    }
    printf("%d groups, %d calls to fail, sample %d\n", ngroup, of, have);
    int of_kill = 0;
    for (int c = 0; c < NCOMMANDS; c++) of_kill += commands[c].killed && (!only || !strcmp(only, commands[c].name));
    for (int c = 0; c < NCOMMANDS; c++) {
        Server run, again;
        if (only && strcmp(only, commands[c].name)) continue;
        double from = seconds();
        snprintf(ref, sizeof ref, "%s.%s", place, commands[c].name);
        server_open(&run, commands[c].run);
        server_open(&again, commands[c].again[0] ? commands[c].again : commands[c].run);
        for (int g = 0; g < ngroup; g++)
            for (int i = 0; group[g].command == c && i < group[g].count * group[g].modes; i++)
                if (!enough && chosen(&group[g], i, quota, share, shares, seed)) run_case(&group[g], i, &run, &again);
        if (commands[c].killed && of_kill && !enough)
            kills(c, (nkill + of_kill - 1) / of_kill, seed + (uint64_t)share * 1000003, &run, &again);
        server_close(&run), server_close(&again);
        fprintf(stderr, "%s: %.1f s (undisturbed %.3f s)\n", commands[c].name, seconds() - from, took[c]);
        tree_remove(ref);
    }
    tree_remove(place);
    table();
}
