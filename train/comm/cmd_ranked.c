/* The commands of infer/ that can run as several ranks: kvsmith generate and kvsmith logits. */
#include "infer/engine.h"
#include "train/dist/dist.h"
#include "cache_ranks.h"
#include "ranks.h"
#include <unistd.h>

int cmd_generate(int argc, char **argv), cmd_logits(int argc, char **argv);
int generate_command(int argc, char **argv, const RankHooks *),
    logits_command(int argc, char **argv, const RankHooks *);

typedef struct {
    int argc;
    char **argv;
    Comm *comm; /* NULL: not joined */
} Joined;

static bool cmd_ranked_same(void *ctx, const char *what, uint64_t hash, Err *e) {
    return dist_same(((Joined *)ctx)->comm, what, hash, e);
}
static bool cmd_ranked_join(void *ctx, Cli *cli, Err *e) {
    Joined *x = ctx;
    Ranks r;
    uint64_t words = rng_name(0, KVSMITH_VERSION);
    if (!ranks_find(&r, RANKS_AUTO, environ, e)) return false;
    if (r.world == 1)
        return err_input(e,
                         "--cache-ranks: this process is the only rank; start several: kvsmith launch -n 2 -- %s ...",
                         x->argv[0]);
    const RanksHow how = {.config = words};
    if (!ranks_open(&r, &how, &x->comm, e)) return false;
    cli->threads = ranks_threads(&r, imax(cli->threads, 0));
    for (int i = 0; i < x->argc; i++) words = rng_name(words, x->argv[i]);
    cli->ranks = cache_ranks(x->comm, cli->ranks.prompts);
    cli->quiet |= x->comm->rank > 0;
    return cmd_ranked_same(x, "a version of kvsmith or a command", words, e);
}

static int ranked(int argc, char **argv, int (*command)(int, char **, const RankHooks *)) {
    Joined x = {.argc = argc, .argv = argv};
    const int status = command(argc, argv, &(RankHooks){cmd_ranked_join, cmd_ranked_same, &x});
    if (status) comm_stop(x.comm);
    comm_close(x.comm);
    return status;
}
int cmd_generate(int argc, char **argv) { return ranked(argc, argv, generate_command); }
int cmd_logits(int argc, char **argv) { return ranked(argc, argv, logits_command); }
