/* kvsmith launch: N ranks of a command on this machine, started again when one fails. */
#include "model/cli.h"
#include "ops/gpus.h"
#include "ops/procs.h"
#include "launch.h"
#include "ranks.h"

int cmd_launch(int argc, char **argv);
const CliSpec *train_spec(void), *bench_comm_spec(void), *generate_spec(void), *logits_spec(void);

enum { KEY_RESTARTS = 1000, KEY_DEADLINE, WORDS_MAX = 512, RANKS_MOST = 1024 };
typedef struct {
    int ranks, restarts;
    double deadline;
    int nword;
    char *word[WORDS_MAX + 4]; /* the program's name, the words, --resume auto, NULL */
} Args;

static bool cmd_launch_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    int64_t v = 0;
    switch (key) {
    case 'n':
        if (!cli_int(arg, "--ranks", 1, RANKS_MOST, &v, e)) return false;
        a->ranks = (int)v;
        return true;
    case KEY_RESTARTS:
        if (!cli_int(arg, "--max-restarts", 0, 1000000, &v, e)) return false;
        a->restarts = (int)v;
        return true;
    case KEY_DEADLINE: return cli_real(arg, "--deadline", 0.1, 1e6, &a->deadline, e);
    }
    if (a->nword == WORDS_MAX) return err_input(e, "launch: more than %d words", WORDS_MAX);
    a->word[++a->nword] = (char *)arg;
    return true;
}

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0,
     "Processes to start (default: one for each GPU if the command computes on GPUs, else one for each processor that "
     "may be used)",
     0},
    {"max-restarts", KEY_RESTARTS, "K", 0, "Restart after a failure, up to K times (default 0)", 0},
    {"deadline", KEY_DEADLINE, "S", 0, "Seconds that a rank waits for another before it gives up (default 300)", 0},
    {0}};
static const CliSpec spec = {
    .args = "-- train|bench comm|generate|logits ...",
    .doc =
        "Starts N ranks of a command on this machine and divides the processors among them unless threads are given. "
        "With several ranks, OMP_PROC_BIND, OMP_PLACES and GOMP_CPU_AFFINITY are removed from their environment, since "
        "they would put all ranks on the same processors. generate and logits need --cache-ranks: the ranks then "
        "divide the rows of one cache. When a rank dies or hangs, the others exit within the "
        "deadline with a line that names it; with --max-restarts the run then continues from its newest checkpoint. "
        "SIGINT, SIGTERM, SIGHUP and SIGUSR1 reach every rank once. The exit status is 2 if a rank exits with 2, else "
        "1 if one failed, else 130 if they were interrupted. A run that diverged is not restarted.",
    .options = options,
    .take = cmd_launch_take,
    .min_args = 1,
    .max_args = -1};

/* A restart continues from the run folder's newest checkpoint or, if there is none, from where the run began: `train`
 * sees by KVSMITH_RESTART that a given checkpoint is only for the second case. */
static void cmd_launch_resume(Args *a) {
    if (strcmp(a->word[1], "train")) return;
    for (int i = 1; i <= a->nword; i++)
        if (!strcmp(a->word[i], "--resume") || !strncmp(a->word[i], "--resume=", 9)) return;
    a->word[++a->nword] = "--resume";
    a->word[++a->nword] = "auto";
    a->word[a->nword + 1] = NULL;
}

/* The options of the command that is started; NULL: it is none that runs as ranks. */
static const CliSpec *cmd_launch_spec(const Args *a, Err *e) {
    const char *name = a->word[1];
    CliPeek p;
    if (!strcmp(name, "train")) return train_spec();
    if (!strcmp(name, "bench") && a->nword > 1 && !strcmp(a->word[2], "comm")) return bench_comm_spec();
    const CliSpec *s = !strcmp(name, "generate") ? generate_spec() : !strcmp(name, "logits") ? logits_spec() : NULL;
    if (s) {
        cli_peek(s, a->nword, (char *const *)a->word + 1, &p);
        if (p.ranks) return s;
        err_input(e,
                  "launch: without --cache-ranks every rank of %s would do the same; add --cache-ranks rows, with "
                  "which they divide the cache",
                  name);
        return NULL;
    }
    err_input(e, "launch: expected train ..., bench comm ..., generate ... or logits ... after --, got '%.60s'", name);
    return NULL;
}

int cmd_launch(int argc, char **argv) {
    Args a = {.deadline = COMM_DEADLINE, .word = {"kvsmith"}};
    Cli cli;
    Err e = {0};
    int status = 0;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    const CliSpec *ranked = cmd_launch_spec(&a, &e);
    if (!ranked) return cli_fail(&e);
    if (cli.threads >= 0 || cli.isa || cli.device || cli.json || cli.bf16 || cli.quiet) {
        err_input(&e, "launch: options of the ranks go after the command: launch -n 2 -- train CONFIG --threads 1");
        return cli_fail(&e);
    }
    char why[200];
    if (!a.ranks) a.ranks = imin(RANKS_MOST, launch_default(ranked, a.nword, a.word + 1, device_gpus(why), procs()));
    Launch l = {.ranks = a.ranks, .deadline = a.deadline, .words = a.word + 1};
    for (l.restart = 0;; l.restart++) {
        if (!launch_run(&l, &e)) return cli_fail(&e);
        if (l.status == EXIT_DIVERGED) return EXIT_RUNTIME; /* a rank has said it, and it would again */
        if (l.status != EXIT_RUNTIME) return l.status;
        if (l.restart >= a.restarts || l.interrupted) break;
        fprintf(stderr, "kvsmith: %s; restart %d of %d\n", l.why, l.restart + 1, a.restarts);
        cmd_launch_resume(&a);
    }
    err_runtime(&e, "%s%s", l.why, a.restarts ? "; no restarts left" : "");
    return cli_fail(&e);
}
