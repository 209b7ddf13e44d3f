/* Several ranks train what one does: the same bits where every rank has one micro-batch a step. */
#include "dist.h"

static const int worlds[] = {2, 3, 4, 8};
static const struct {
    const char *config;
    int stage; /* of the run */
} kinds[] = {{"gqa", 0},    {"muon", 0},   {"moe", 0},       {"share", 0},
             {"yoco", 0},   {"mla", 0},    {"dmc", 1},       {"dms", 0},
             {"kda", 0},    {"gdn", 0},    {"gla", 0},       {"deltanet", 0},
             {"linear", 0}, {"mamba2", 0}, {"retention", 0}, {"gated_retention", 0},
             {"window", 0}, {"nope", 0},   {"qknorm", 0},    {"gpt2", 0},
             {"neox", 0},   {"mha", 0},    {"mqa", 0},       {"mqar", 0},
             {"sft", 0}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void compare(int kind, int W, int stage, int steps, const char *more, const DistRun *alone) {
    char config[64], batch[32], zero[32], what[160];
    snprintf(config, sizeof config, "configs/tiny-%s.yaml", kinds[kind].config);
    snprintf(batch, sizeof batch, "train.batch=%d", W);
    snprintf(zero, sizeof zero, "dist.stage=%d", stage);
    DistJob j = {.config = config,
                 .stage_of_run = kinds[kind].stage,
                 .steps = steps,
                 .over = {batch, "train.micro_batch=1", zero, "dist.check_every=7", more}};
    DistRun one[1], all[DIST_RANKS];
    if (!alone) dist_train(&j, 1, one);
    dist_train(&j, W, all);
    for (int r = 0; r < W; r++) {
        snprintf(what, sizeof what, "%s on %d ranks, stage %d, rank %d", kinds[kind].config, W, stage, r);
        dist_same_run(what, &j, &all[r], alone ? alone : one);
        cr_assert(all[r].log == all[0].log && all[r].calls == all[0].calls, "%s: another log of collectives", what);
        cr_assert_eq(all[r].sent, all[0].sent);
    }
    if (!alone) dist_free(1, one);
    dist_free(W, all);
}

/* Every number of ranks at every stage, 50 steps. */
ParameterizedTestParameters(dist, every_world_and_stage) {
    static int which[8];
    for (int i = 0; i < 8; i++) which[i] = i;
    return cr_make_param_array(int, which, 8);
}
ParameterizedTest(int *which, dist, every_world_and_stage) {
    char batch[32];
    int W = worlds[*which % 4], kind = *which / 4; /* gqa, muon */
    snprintf(batch, sizeof batch, "train.batch=%d", W);
    const char *narrow = kind ? "optim.state_dtype=bf16" : NULL;
    char config[64];
    snprintf(config, sizeof config, "configs/tiny-%s.yaml", kinds[kind].config);
    DistJob j = {.config = config, .steps = DIST_STEPS, .over = {batch, "train.micro_batch=1", narrow}};
    DistRun one[1];
    dist_train(&j, 1, one);
    for (int stage = 0; stage < 3; stage++) compare(kind, W, stage, DIST_STEPS, narrow, one);
    dist_free(1, one);
}

/* Every mixer, with the numbers of ranks and the stages dealt to them in turn; all of them where DIST_ALL is set. */
ParameterizedTestParameters(dist, every_mixer) {
    static int which[KINDS];
    for (int i = 0; i < KINDS; i++) which[i] = i;
    return cr_make_param_array(int, which, KINDS);
}
ParameterizedTest(int *which, dist, every_mixer) {
    bool all = getenv("DIST_ALL") != NULL;
    for (int w = 0; w < 4; w++)
        for (int stage = 0; stage < 3; stage++)
            if (all || (w == (*which + stage) % 4 && stage != *which % 3))
                compare(*which, worlds[w], stage, all ? DIST_STEPS : 6, NULL, NULL);
}
