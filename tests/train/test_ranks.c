/* Which rank a process is: every launcher's variables, all pairs of them, what is missing, contradictory or nonsense.
 */
#include "ops/file.h"
#include "ops/procs.h"
#include "train/comm/launch.h"
#include "train/comm/ranks.h"
#include "tests/lib/check.h"
#include <sys/stat.h>
#include <unistd.h>

enum { VARS = 40 };
typedef struct {
    char *v[VARS];
    int n;
} Env;
static void set(Env *env, const char *name, const char *value) { env->v[env->n++] = xformat("%s=%s", name, value); }
static void set_int(Env *env, const char *name, int value) { env->v[env->n++] = xformat("%s=%d", name, value); }
static void clear(Env *env) {
    for (int i = 0; i < env->n; i++) free(env->v[i]);
    *env = (Env){0};
}
static void drop(Env *env, const char *name) {
    int k = 0;
    for (int i = 0; i < env->n; i++) {
        char *is = strchr(env->v[i], '=');
        if (strlen(name) == (size_t)(is - env->v[i]) && !strncmp(env->v[i], name, strlen(name)))
            free(env->v[i]);
        else
            env->v[k++] = env->v[i];
    }
    env->n = k;
    env->v[k] = NULL;
}

/* The three variables that a launcher must set, written down here a second time. */
static const char *const need[NRANKS_FROM][3] = {
    [RANKS_LAUNCH] = {"KVSMITH_RANK", "KVSMITH_WORLD", "KVSMITH_FD"},
    [RANKS_TORCHRUN] = {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    [RANKS_SLURM] = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    [RANKS_OPENMPI] = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    [RANKS_MPICH] = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
};
static void set_from(Env *env, RanksFrom f, int rank, int world, int local) {
    set_int(env, need[f][0], rank);
    set_int(env, need[f][1], world);
    set_int(env, need[f][2], f == RANKS_LAUNCH ? 3 : local);
    if (f == RANKS_SLURM) set(env, "SLURM_STEP_NODELIST", "node[1-2]");
}

#define FIND_OK(r, want, env)                                        \
    do {                                                             \
        Err e_ = {0};                                                \
        cr_assert(ranks_find(r, want, (env)->v, &e_), "%s", e_.msg); \
    } while (0)
static void refused(Env *env, RanksFrom want, const char *part) {
    Err e = {0};
    Ranks r;
    cr_assert(!ranks_find(&r, want, env->v, &e), "not refused, expected '%s'", part);
    cr_assert(e.status == EXIT_INPUT && strstr(e.msg, part), "status %d: %s, expected '%s'", e.status, e.msg, part);
    clear(env);
}

Test(ranks, alone) {
    Env env = {0};
    Ranks r;
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert(r.from == RANKS_ALONE && r.rank == 0 && r.world == 1 && r.fd == -1);
    set(&env, "HOME", "/");
    set(&env, "RANKS", "4");
    set(&env, "MASTER_PORT", "x"); /* of nobody here */
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert(r.from == RANKS_ALONE && r.world == 1);
    set_from(&env, RANKS_TORCHRUN, 1, 4, 1);
    FIND_OK(&r, RANKS_ALONE, &env);
    cr_assert(r.world == 1);
    clear(&env);
}

Test(ranks, each_launcher) {
    for (RanksFrom f = RANKS_LAUNCH; f < NRANKS_FROM; f++) {
        Env env = {0};
        Ranks r;
        char say[256];
        set_from(&env, f, 5, 8, f == RANKS_LAUNCH ? 5 : 1);
        FIND_OK(&r, RANKS_AUTO, &env);
        cr_assert(r.from == f && r.rank == 5 && r.world == 8 && r.local == (f == RANKS_LAUNCH ? 5 : 1), "%s",
                  ranks_from_name(f));
        FIND_OK(&r, f, &env);
        cr_assert(r.from == f && r.rank == 5);
        ranks_say(&r, say);
        cr_assert(strstr(say, "rank 5 of 8") && strstr(say, need[f][0]) && strstr(say, ranks_from_name(f)), "%s", say);
        clear(&env);
    }
}

Test(ranks, what_else_they_tell) {
    Env env = {0};
    Ranks r;
    set_from(&env, RANKS_TORCHRUN, 5, 8, 1);
    set(&env, "LOCAL_WORLD_SIZE", "4");
    set(&env, "GROUP_RANK", "1");
    set(&env, "MASTER_ADDR", "node7");
    set(&env, "MASTER_PORT", "29500");
    set(&env, "TORCHELASTIC_RUN_ID", "run-9");
    set(&env, "TORCHELASTIC_RESTART_COUNT", "2");
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert(r.locals == 4 && r.node == 1 && r.port == 29500 && r.restart == 2);
    cr_assert_str_eq(r.master, "node7");
    cr_assert_str_eq(r.job, "run-9");
    clear(&env);

    set_from(&env, RANKS_SLURM, 6, 9, 0);
    set(&env, "SLURM_NODEID", "3");
    set(&env, "SLURM_STEP_TASKS_PER_NODE", "2(x3),3");
    set(&env, "SLURM_JOB_ID", "77");
    set(&env, "SLURM_STEP_ID", "4");
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert(r.locals == 3 && r.node == 3, "%d on node %d", r.locals, r.node);
    cr_assert_str_eq(r.job, "77.4");
    drop(&env, "SLURM_NODEID");
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert_eq(r.locals, 2);
    drop(&env, "SLURM_STEP_TASKS_PER_NODE");
    set(&env, "SLURM_STEP_TASKS_PER_NODE", "2(x"); /* tells nothing */
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert_eq(r.locals, 0);
    clear(&env);

    set_from(&env, RANKS_LAUNCH, 2, 3, 2);
    set(&env, "KVSMITH_DEADLINE_MS", "1500");
    set(&env, "KVSMITH_RESTART", "1");
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert(r.fd == 3 && r.deadline == 1.5 && r.locals == 3 && r.restart == 1);
    clear(&env);
}

/* All pairs: where they agree the first counts, where they do not both are named. */
Test(ranks, pairs) {
    for (RanksFrom f = RANKS_LAUNCH; f < NRANKS_FROM; f++)
        for (RanksFrom g = (RanksFrom)(f + 1); g < NRANKS_FROM; g++) {
            Env env = {0};
            Ranks r;
            Err e = {0};
            char a[64], b[64];
            set_from(&env, g, 3, 8, 3);
            set_from(&env, f, 3, 8, 3);
            FIND_OK(&r, RANKS_AUTO, &env);
            cr_assert_eq(r.from, f);
            clear(&env);
            for (int differ = 0; differ < 3; differ++) { /* rank, world, local rank */
                set_from(&env, f, 3, 8, 3);
                set_from(&env, g, differ == 0 ? 4 : 3, differ == 1 ? 9 : 8, differ == 2 ? 2 : 3);
                cr_assert(!ranks_find(&r, RANKS_AUTO, env.v, &e), "%s and %s", ranks_from_name(f), ranks_from_name(g));
                snprintf(a, sizeof a, "%s=", need[f][differ]);
                snprintf(b, sizeof b, "%s=%d", need[g][differ], differ == 0 ? 4 : differ == 1 ? 9 : 2);
                if (f == RANKS_LAUNCH && differ == 2) strcpy(a, "KVSMITH_RANK=");
                cr_assert(e.status == EXIT_INPUT && strstr(e.msg, a) && strstr(e.msg, b), "%s", e.msg);
                e = (Err){0};
                FIND_OK(&r, g, &env); /* who is told which one counts does not look at the other */
                cr_assert(r.from == g && r.rank == (differ == 0 ? 4 : 3));
                clear(&env);
            }
        }
}

Test(ranks, partial_sets) {
    for (RanksFrom f = RANKS_LAUNCH; f < NRANKS_FROM; f++)
        for (int without = 0; without < 3; without++) {
            Env env = {0};
            Ranks r;
            set_from(&env, f, 1, 4, 1);
            drop(&env, need[f][without]);
            if (f == RANKS_SLURM && without == 0) { /* what an allocation leaves in every shell */
                FIND_OK(&r, RANKS_AUTO, &env);
                cr_assert_eq(r.from, RANKS_ALONE);
                clear(&env);
                continue;
            }
            refused(&env, RANKS_AUTO, need[f][without]);
        }
    for (RanksFrom f = RANKS_LAUNCH; f < NRANKS_FROM; f++) {
        Env env = {0};
        refused(&env, f, ranks_from_name(f));
    }
}

Test(ranks, batch_script_of_slurm) {
    Env env = {0};
    Ranks r;
    set(&env, "SLURM_PROCID", "0");
    set(&env, "SLURM_LOCALID", "0");
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert_eq(r.from, RANKS_ALONE);
    set(&env, "SLURM_NTASKS", "8");
    set_from(&env, RANKS_OPENMPI, 3, 8, 3); /* mpirun in a batch script */
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert(r.from == RANKS_OPENMPI && r.rank == 3);
    for (int i = 0; i < 3; i++) drop(&env, need[RANKS_OPENMPI][i]);
    refused(&env, RANKS_AUTO, "srun");
}

/* srun --mpi=pmi2 leaves PMI's rank and size without MPICH's rank on the host. */
Test(ranks, pmi_of_another_launcher) {
    Env env = {0};
    Ranks r;
    set_from(&env, RANKS_SLURM, 5, 8, 1);
    set(&env, "PMI_RANK", "5");
    set(&env, "PMI_SIZE", "8");
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert(r.from == RANKS_SLURM && r.rank == 5 && r.world == 8 && r.local == 1);
    drop(&env, "PMI_RANK");
    FIND_OK(&r, RANKS_AUTO, &env);
    set(&env, "PMI_RANK", "6");
    refused(&env, RANKS_AUTO, "SLURM_PROCID=5 and PMI_RANK=6");
    set_from(&env, RANKS_SLURM, 5, 8, 1);
    set(&env, "PMI_RANK", "x");
    refused(&env, RANKS_AUTO, "PMI_RANK: expected a whole number");
    set(&env, "PMI_RANK", "5");
    set(&env, "PMI_SIZE", "8");
    refused(&env, RANKS_AUTO, "MPI_LOCALRANKID");
}

Test(ranks, nonsense) {
    static const struct {
        const char *name, *value;
    } bad[] = {{"RANK", "-1"},
               {"RANK", ""},
               {"RANK", "1x"},
               {"RANK", " 1"},
               {"RANK", "0x1"},
               {"RANK", "4"},
               {"RANK", "99999999999999999999"},
               {"RANK", "2000000"},
               {"WORLD_SIZE", "0"},
               {"WORLD_SIZE", "-4"},
               {"WORLD_SIZE", "four"},
               {"LOCAL_RANK", "2"},
               {"LOCAL_RANK", "1.0"},
               {"LOCAL_WORLD_SIZE", "0"},
               {"LOCAL_WORLD_SIZE", "5"},
               {"LOCAL_WORLD_SIZE", "1"},
               {"MASTER_PORT", "0"},
               {"MASTER_PORT", "65536"},
               {"TORCHELASTIC_RESTART_COUNT", "-1"},
               {"GROUP_RANK", "x"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Env env = {0};
        set_from(&env, RANKS_TORCHRUN, 1, 4, 1);
        drop(&env, bad[i].name);
        set(&env, bad[i].name, bad[i].value);
        refused(&env, RANKS_AUTO, bad[i].name);
    }
}

Test(ranks, threads) {
    Ranks r = {.from = RANKS_LAUNCH, .world = 2, .locals = 2};
    unsetenv("OMP_NUM_THREADS");
    cr_assert_eq(ranks_threads(&r, 5), 5);
    cr_assert_geq(ranks_threads(&r, 0), 1);
    Ranks many = {.from = RANKS_LAUNCH, .world = 100000, .locals = 100000};
    cr_assert_eq(ranks_threads(&many, 0), 1);
    Ranks one = {.from = RANKS_ALONE, .world = 1, .locals = 1};
    cr_assert_eq(ranks_threads(&one, 0), 0);
    static const struct {
        const char *text;
        int threads;
    } asked[] = {{"3", 3}, {"7,2", 7}, {"1024", 1024}, {"1025", 0}, {"0", 0}, {"-2", 0}, {"", 0}, {"4x", 0}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        setenv("OMP_NUM_THREADS", asked[i].text, 1);
        cr_assert_eq(procs_asked(), asked[i].threads, "OMP_NUM_THREADS=%s: %d", asked[i].text, procs_asked());
        cr_assert_eq(ranks_threads(&one, 0), asked[i].threads);
        cr_assert_eq(ranks_threads(&r, 5), 5);
        if (asked[i].threads) cr_assert_eq(ranks_threads(&r, 0), asked[i].threads);
    }
    const Ranks torchrun = {.from = RANKS_TORCHRUN, .world = 2, .locals = 2};
    setenv("OMP_NUM_THREADS", "777", 1);
    const int set = ranks_threads(&torchrun, 0);
    unsetenv("OMP_NUM_THREADS");
    cr_assert_eq(set, ranks_threads(&torchrun, 0), "%d threads of what torchrun sets", set);
}

/* What ranks on several hosts know one another by: in the environment, or in a file that is this user's alone. */
Test(ranks, secret) {
    Env env = {0};
    Ranks r;
    Err e = {0};
    size_t n;
    char *file = check_path("secret"), *s, *long_one = xcalloc(1002, 1);
    set_from(&env, RANKS_TORCHRUN, 1, 4, 1);
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert(!ranks_secret(&r, &n, &e) && !n && !e.status);
    set(&env, "KVSMITH_SECRET", "0123456789abcdef");
    FIND_OK(&r, RANKS_AUTO, &env);
    s = ranks_secret(&r, &n, &e);
    cr_assert(s && n == 16, "%s", e.msg);
    cr_assert_str_eq(s, "0123456789abcdef");
    free(s);
    set(&env, "KVSMITH_SECRET_FILE", file);
    FIND_OK(&r, RANKS_AUTO, &env);
    cr_assert(!ranks_secret(&r, &n, &e) && e.status == EXIT_INPUT && strstr(e.msg, "both set"), "%s", e.msg);
    memset(long_one, 'x', 1001);
    const char *const bad[] = {"", "0123456789abcde", long_one};
    for (int i = 0; i < 3; i++) {
        e = (Err){0};
        r.secret = bad[i], r.secret_file = NULL;
        cr_assert(!ranks_secret(&r, &n, &e) && e.status == EXIT_INPUT &&
                      strstr(e.msg, "KVSMITH_SECRET: expected 16 to"),
                  "%s", e.msg);
    }
    const struct {
        const char *text, *part;
        int mode;
    } k[] = {{"sixteen and more\n", NULL, 0600},
             {"sixteen and more\nof which only this line\n", NULL, 0400},
             {"sixteen and more\n", "chmod 600", 0640},
             {"sixteen and more\n", "chmod 600", 0604},
             {"short\n", "KVSMITH_SECRET_FILE: expected 16", 0600},
             {long_one, "got 1001 or more", 0600}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        e = (Err){0};
        r.secret = NULL, r.secret_file = file;
        unlink(file);
        cr_assert(file_write(file, k[i].text, strlen(k[i].text), &e) && !chmod(file, (mode_t)k[i].mode));
        s = ranks_secret(&r, &n, &e);
        if (k[i].part)
            cr_assert(!s && !n && e.status == EXIT_INPUT && strstr(e.msg, k[i].part), "case %zu: %s", i, e.msg);
        else
            cr_assert(s && n == 16 && !strcmp(s, "sixteen and more"), "case %zu: %s", i, e.msg);
        free(s);
    }
    unlink(file);
    cr_assert(!mkfifo(file, 0600)); /* it is not waited for */
    e = (Err){0};
    cr_assert(!ranks_secret(&r, &n, &e) && e.status == EXIT_INPUT && strstr(e.msg, "chmod 600"), "%s", e.msg);
    unlink(file);
    e = (Err){0};
    cr_assert(!ranks_secret(&r, &n, &e) && e.status == EXIT_INPUT && strstr(e.msg, "No such file"), "%s", e.msg);
    clear(&env);
    free(file), free(long_one);
}

Test(ranks, their_variables) {
    cr_assert(ranks_variable("RANK=1") && ranks_variable("SLURM_PROCID=0") && ranks_variable("KVSMITH_FD=3") &&
              ranks_variable("OMPI_COMM_WORLD_RANK=2") && ranks_variable("PMI_SIZE=2"));
    cr_assert(!ranks_variable("RANKING=1") && !ranks_variable("PATH=/bin") && !ranks_variable("SLURM_JOB_ID=1"));
}

const CliSpec *train_spec(void), *bench_comm_spec(void);
/* How many ranks start where nobody says: as many as GPUs answer, or processors. 4 GPUs and 16 processors here. */
Test(launch, one_rank_for_each_gpu) {
    char *cpu = check_path("cpu.yaml"), *any = check_path("any.yaml"), *isa = check_path("isa.yaml");
    Err e = {0};
    cr_assert(file_write(cpu, "run: {device: cpu}\n", 19, &e) && file_write(any, "train: {}\n", 10, &e) &&
                  file_write(isa, "run: {isa: avx2}\n", 17, &e),
              "%s", e.msg);
    const struct {
        int gpus, want;
        const char *word[7];
    } k[] = {{4, 4, {"train", any}},
             {0, 16, {"train", any}},
             {0, 16, {"train", any, "run.device=cuda"}},
             {4, 4, {"train", any, "run.device=cuda"}},
             {4, 16, {"train", any, "run.device=cpu"}},
             {4, 16, {"train", any, "--device", "cpu"}},
             {4, 16, {"train", any, "--device=cpu"}},
             {4, 4, {"train", any, "run.device=cpu", "--device=auto"}},
             {4, 16, {"train", cpu}},
             {4, 4, {"train", cpu, "--device", "cuda"}},
             {4, 4, {"train", "no-such-file.yaml"}},
             {4, 16, {"bench", "comm"}},
             {4, 4, {"bench", "comm", "--device", "cuda"}},
             {4, 4, {"bench", "comm", "--seconds", "1", "--device", "cuda"}},
             /* options before the configuration, and values of them, are none */
             {4, 16, {"train", "--resume", "auto", cpu}},
             {4, 16, {"train", "--threads", "2", "-q", cpu}},
             {4, 4, {"train", "--threads", "2", "--device", "cuda", cpu}},
             {4, 4, {"train", "--resume", cpu, any}},
             {4, 16, {"train", "--device", "cpu", any, "run.device=cuda"}},
             /* an instruction set is a CPU's unless the device is named, too */
             {4, 16, {"train", any, "--isa", "avx2"}},
             {4, 16, {"train", "--isa=avx2", any}},
             {4, 4, {"train", any, "--isa", "auto"}},
             {4, 16, {"train", any, "run.isa=baseline"}},
             {4, 16, {"train", isa}},
             {4, 4, {"train", isa, "run.device=cuda"}},
             {4, 4, {"train", any, "--isa", "avx2", "--device", "cuda"}}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        int n = 0;
        while (n < 7 && k[i].word[n]) n++;
        const CliSpec *spec = strcmp(k[i].word[0], "train") ? bench_comm_spec() : train_spec();
        int got = launch_default(spec, n, (char *const *)k[i].word, k[i].gpus, 16);
        cr_expect_eq(got, k[i].want, "case %zu: %d ranks, expected %d", i, got, k[i].want);
    }
    free(cpu), free(any), free(isa);
}
