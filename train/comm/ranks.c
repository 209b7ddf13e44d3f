#include "ranks.h"
#include "ops/procs.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

/* A launcher's names of its variables; NULL: it has none. */
typedef struct {
    const char *name, *rank, *world, *local, *locals, *node, *job, *restart;
} Source;
static const Source sources[NRANKS_FROM] = {
    [RANKS_AUTO] = {"auto", 0, 0, 0, 0, 0, 0, 0},
    [RANKS_ALONE] = {"alone", 0, 0, 0, 0, 0, 0, 0},
    [RANKS_LAUNCH] = {"launch", "KVSMITH_RANK", "KVSMITH_WORLD", "KVSMITH_RANK", "KVSMITH_WORLD", 0, "KVSMITH_JOB",
                      "KVSMITH_RESTART"},
    [RANKS_TORCHRUN] = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
    [RANKS_SLURM] = {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", 0, "SLURM_NODEID", "SLURM_JOB_ID",
                     "SLURM_RESTART_COUNT"},
    [RANKS_OPENMPI] = {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                       "OMPI_COMM_WORLD_LOCAL_SIZE", 0, "PMIX_NAMESPACE", 0},
    [RANKS_MPICH] = {"mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", 0, 0, 0},
};
enum { WORLD_MAX = 1 << 20, SHOWN = 40, SECRET_LEAST = 16, SECRET_MOST = 1000 };

const char *ranks_from_name(RanksFrom f) { return sources[f].name; }

static const char *ranks_var(char *const *env, const char *name) {
    size_t n = name ? strlen(name) : 0;
    for (; n && *env; env++)
        if (!strncmp(*env, name, n) && (*env)[n] == '=') return *env + n + 1;
    return NULL;
}

bool ranks_variable(const char *text) {
    for (RanksFrom f = RANKS_LAUNCH; f < NRANKS_FROM; f++) {
        const Source *s = &sources[f];
        const char *const names[] = {s->rank, s->world, s->local, s->locals, s->node, s->restart};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            size_t n = names[i] ? strlen(names[i]) : 0;
            if (n && !strncmp(text, names[i], n) && text[n] == '=') return true;
        }
    }
    return !strncmp(text, "KVSMITH_", 8) || !strncmp(text, "SLURM_STEP_", 11);
}

/* *out stays as it is when the variable is not there. */
static bool ranks_number(char *const *env, const char *name, int least, int most, int *out, Err *e) {
    const char *s = ranks_var(env, name);
    if (!s) return true;
    char *end;
    errno = 0;
    long v = strtol(s, &end, 10);
    if (*s < '0' || *s > '9' || *end || errno || v < least || v > most)
        return err_input(e, "environment: %s: expected a whole number from %d to %d, got '%.*s'", name, least, most,
                         SHOWN, s);
    *out = (int)v;
    return true;
}

/* Tasks of node `node` in "2(x3),1": two on each of three, one on the fourth. 0: unknown. */
static int tasks_on(const char *s, int node) {
    while (s && *s) {
        char *end;
        long n = strtol(s, &end, 10), times = 1;
        if (end == s || n < 1 || n > WORLD_MAX) return 0;
        if (!strncmp(end, "(x", 2)) {
            s = end + 2;
            times = strtol(s, &end, 10);
            if (end == s || *end != ')' || times < 1) return 0;
            end++;
        }
        if (node < times) return (int)n;
        node -= (int)times;
        if (*end && *end != ',') return 0;
        s = *end ? end + 1 : end;
    }
    return 0;
}

static bool refuse_partial(const Source *s, char *const *env, const char *lacks, Err *e) {
    const char *has = ranks_var(env, s->rank) ? s->rank : ranks_var(env, s->world) ? s->world : s->local;
    return err_input(e, "environment: %s is set (%.*s), %s is not: start with %s, or set dist.launcher=alone", has,
                     SHOWN, ranks_var(env, has), lacks, s->name);
}

/* Read one launcher's variables; *there false: it did not start this process. */
static bool source_read(Ranks *r, RanksFrom from, bool wanted, char *const *env, bool *there, Err *e) {
    const Source *s = &sources[from];
    *r = (Ranks){.from = from, .rank = -1, .world = -1, .local = -1, .node = -1, .fd = -1};
    bool slurm = from == RANKS_SLURM,
         any = ranks_var(env, s->rank) || ranks_var(env, s->world) || ranks_var(env, s->local);
    /* An allocation's shell knows the number of tasks, and a batch script's a rank: neither is one of the ranks. */
    if (slurm && !wanted) any = ranks_var(env, s->rank) && ranks_var(env, "SLURM_STEP_NODELIST");
    *there = any;
    if (!any && !wanted) return true;
    if (!any)
        return err_input(e, "dist.launcher %s: expected %s and %s in the environment, got neither", s->name, s->rank,
                         s->world);
    const char *need[] = {s->rank, s->world, s->local};
    for (int i = 0; i < 3; i++)
        if (!ranks_var(env, need[i])) return refuse_partial(s, env, need[i], e);
    if (!ranks_number(env, s->world, 1, WORLD_MAX, &r->world, e) ||
        !ranks_number(env, s->rank, 0, WORLD_MAX, &r->rank, e) ||
        !ranks_number(env, s->local, 0, WORLD_MAX, &r->local, e) ||
        !ranks_number(env, s->locals, 1, WORLD_MAX, &r->locals, e) ||
        !ranks_number(env, s->node, 0, WORLD_MAX, &r->node, e) ||
        !ranks_number(env, s->restart, 0, INT_MAX, &r->restart, e))
        return false;
    if (slurm) {
        const char *step = ranks_var(env, "SLURM_STEP_ID");
        r->locals = tasks_on(ranks_var(env, "SLURM_STEP_TASKS_PER_NODE"), imax(r->node, 0));
        snprintf(r->job, sizeof r->job, "%.80s.%.40s", ranks_var(env, s->job) ? ranks_var(env, s->job) : "",
                 step ? step : "");
    } else if (ranks_var(env, s->job)) {
        snprintf(r->job, sizeof r->job, "%.150s", ranks_var(env, s->job));
    }
    if (from == RANKS_LAUNCH) {
        int seconds = 0;
        if (!ranks_number(env, "KVSMITH_FD", 0, INT_MAX, &r->fd, e) ||
            !ranks_number(env, "KVSMITH_DEADLINE_MS", 1, INT_MAX, &seconds, e))
            return false;
        r->deadline = seconds / 1e3;
        if (r->fd < 0) return refuse_partial(s, env, "KVSMITH_FD", e);
    }
    if (from == RANKS_TORCHRUN || slurm) { /* batch scripts of Slurm set them by custom */
        if (ranks_var(env, "MASTER_ADDR"))
            snprintf(r->master, sizeof r->master, "%.255s", ranks_var(env, "MASTER_ADDR"));
        if (!ranks_number(env, "MASTER_PORT", 1, 65535, &r->port, e)) return false;
        r->secret = ranks_var(env, "KVSMITH_SECRET");
        r->secret_file = ranks_var(env, "KVSMITH_SECRET_FILE");
    }
    if (r->rank >= r->world)
        return err_input(e, "environment: %s %d: expected less than %s, which is %d", s->rank, r->rank, s->world,
                         r->world);
    if (r->local > r->rank)
        return err_input(e, "environment: %s %d: expected at most %s, which is %d", s->local, r->local, s->rank,
                         r->rank);
    if (r->locals && (r->locals > r->world || r->local >= r->locals)) {
        bool many = r->locals > r->world;
        return err_input(e, "environment: %s of %d ranks (%s): expected %s %d",
                         s->locals ? s->locals : "tasks of a node", r->locals, s->name, many ? "at most" : "more than",
                         many ? r->world : r->local);
    }
    return true;
}

static bool ranks_agrees(const Source *as, const char *an, int a, const Source *bs, const char *bn, int b, Err *e) {
    if (a == b) return true;
    return err_input(e,
                     "environment: %s=%d and %s=%d contradict each other: unset one, or choose: dist.launcher=%s or %s",
                     an, a, bn, b, as->name, bs->name);
}

/* PMI is not MPICH's alone: other launchers (srun --mpi=pmi2) leave its rank and size, without a rank on the host. */
static bool pmi_agrees(const Ranks *r, char *const *env, Err *e) {
    const Source *a = &sources[r->from], *b = &sources[RANKS_MPICH];
    int rank = r->rank, world = r->world;
    return ranks_number(env, b->rank, 0, WORLD_MAX, &rank, e) && ranks_number(env, b->world, 1, WORLD_MAX, &world, e) &&
           ranks_agrees(a, a->rank, r->rank, b, b->rank, rank, e) &&
           ranks_agrees(a, a->world, r->world, b, b->world, world, e);
}

bool ranks_find(Ranks *r, RanksFrom want, char *const *env, Err *e) {
    Ranks other;
    bool found = false, there;
    *r = (Ranks){.from = RANKS_ALONE, .world = 1, .locals = 1, .node = -1, .fd = -1};
    if (want == RANKS_ALONE) return true;
    for (RanksFrom f = RANKS_LAUNCH; f < NRANKS_FROM; f++) {
        if (want != RANKS_AUTO && want != f) continue;
        if (found && f == RANKS_MPICH && !ranks_var(env, sources[f].local)) {
            if (!pmi_agrees(r, env, e)) return false;
            continue;
        }
        if (!source_read(&other, f, want == f, env, &there, e)) return false;
        if (!there) continue;
        if (!found) {
            *r = other;
            found = true;
            continue;
        }
        const Source *a = &sources[r->from], *b = &sources[f];
        if (!ranks_agrees(a, a->rank, r->rank, b, b->rank, other.rank, e) ||
            !ranks_agrees(a, a->world, r->world, b, b->world, other.world, e) ||
            !ranks_agrees(a, a->local, r->local, b, b->local, other.local, e))
            return false;
        if (!r->locals) r->locals = other.locals;
    }
    const char *tasks = ranks_var(env, "SLURM_NTASKS");
    if (!found && ranks_var(env, "SLURM_PROCID") && tasks && strcmp(tasks, "1"))
        return err_input(
            e,
            "environment: SLURM_NTASKS=%.*s in a batch script: start the ranks with srun, or set dist.launcher=alone",
            SHOWN, tasks);
    return true;
}

char *ranks_secret(const Ranks *r, size_t *n, Err *e) {
    char *s = NULL, text[SECRET_MOST + 2];
    *n = 0;
    if (r->secret && r->secret_file) {
        err_input(e, "environment: KVSMITH_SECRET and KVSMITH_SECRET_FILE are both set: unset one");
    } else if (r->secret) {
        s = xstrdup(r->secret);
    } else if (r->secret_file) {
        struct stat st;
        ssize_t got = -1;
        int fd = TEMP_FAILURE_RETRY(open(r->secret_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        if (fd < 0) return err_errno(e, "KVSMITH_SECRET_FILE", r->secret_file), NULL;
        if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077)
            err_input(e,
                      "KVSMITH_SECRET_FILE %.120s: expected a file that you own and nobody else can read: run chmod "
                      "600 on it",
                      r->secret_file);
        else if ((got = TEMP_FAILURE_RETRY(read(fd, text, sizeof text - 1))) < 0)
            err_errno(e, "KVSMITH_SECRET_FILE", r->secret_file);
        close(fd);
        if (got < 0) return NULL;
        text[got] = 0;
        text[strcspn(text, "\r\n")] = 0; /* its first line */
        s = xstrdup(text);
    }
    if (!s) return NULL;
    *n = strlen(s);
    if (*n >= SECRET_LEAST && *n <= SECRET_MOST) return s;
    err_input(e, "%s: expected %d to %d characters, got %zu%s", r->secret ? "KVSMITH_SECRET" : "KVSMITH_SECRET_FILE",
              SECRET_LEAST, SECRET_MOST, *n, *n > SECRET_MOST ? " or more" : "; openssl rand -hex 32 prints one");
    free(s);
    *n = 0;
    return NULL;
}

const char *ranks_say(const Ranks *r, char out[256]) {
    const Source *s = &sources[r->from];
    if (r->from == RANKS_ALONE) return strcpy(out, "one rank");
    int n = snprintf(out, 256, "rank %d of %d (%s, %s of %s)", r->rank, r->world, s->rank, s->world, s->name);
    if (r->locals) snprintf(out + n, 256 - (size_t)n, ", %d on this host", r->locals);
    return out;
}

int ranks_threads(const Ranks *r, int asked) {
    int may = procs(), all = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (!asked && r->from != RANKS_TORCHRUN) asked = procs_asked(); /* torchrun sets 1 where the user sets nothing */
    if (asked || r->world == 1 || r->locals < 2) return asked;
    /* Each rank may use all processors of `launch`; another launcher whose ranks may use all did not bind them. */
    if (r->from != RANKS_LAUNCH && may < all) return may;
    return imax(1, may / r->locals);
}
