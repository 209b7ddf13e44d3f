/* Several ranks train what one does: the same bits where every rank has one micro-batch a step. */
#include "tests/lib/dist.h"
#include "tests/lib/trial.h"
#include <jansson.h>

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

/* Every number of ranks at every stage, 50 steps; in double, where an error is seen by its size, fewer. */
ParameterizedTestParameters(dist, every_world_and_stage) {
    static int which[8];
    for (int i = 0; i < 8; i++) which[i] = i;
    return cr_make_param_array(int, which, 8);
}
ParameterizedTest(int *which, dist, every_world_and_stage) {
    char batch[32];
    int W = worlds[*which % 4], kind = *which / 4; /* gqa, muon */
    snprintf(batch, sizeof batch, "train.batch=%d", W);
    const char *is_bf16 = kind ? "optim.state_dtype=bf16" : NULL;
    char config[64];
    snprintf(config, sizeof config, "configs/tiny-%s.yaml", kinds[kind].config);
    const int steps = DIST_STEPS; /* dist.check_every is 7 */
    DistJob j = {.config = config, .steps = steps, .over = {batch, "train.micro_batch=1", is_bf16}};
    DistRun one[1];
    dist_train(&j, 1, one);
    for (int stage = 0; stage < 3; stage++) compare(kind, W, stage, steps, is_bf16, one);
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

/* ---- more micro-batches than ranks ----------------------------------------------------------------------------------
 */

typedef struct {
    size_t n;
    real *g;
} Gradient;
/* What this rank has of the sums, as all ranks' numbers in one row: ranges have their places. */
static bool keep_gradient(Trainer *t, int step, void *ctx, Err *e) {
    Gradient *all = ctx;
    const Dist *d = &t->dist;
    (void)e;
    if (step) return true;
    for (int k = 0; k < d->own.n; k++) {
        const Param *p = &d->own.p[k];
        size_t at = p->at;
        for (int i = 0; i < d->of[k]; i++) at += tensor_count(d->all.p[i].t[PARAM_WEIGHT]);
        memcpy(all->g + at, p->t[PARAM_GRAD].p, tensor_bytes(p->t[PARAM_GRAD]));
    }
    return true;
}

Test(dist, several_micro_batches_a_rank_are_as_good) {
    enum { N = 1 << 16 };
    for (int stage = 0; stage < 3; stage++) {
        char zero[32], what[64];
        snprintf(zero, sizeof zero, "dist.stage=%d", stage);
        Gradient a = {0, xcalloc(N, sizeof(real))}, b = {0, xcalloc(N, sizeof(real))};
        DistJob j = {.config = "configs/tiny-gqa.yaml",
                     .steps = DIST_STEPS,
                     .over = {"train.batch=12", "train.micro_batch=1", zero},
                     .each = keep_gradient,
                     .ctx = &a};
        DistRun one[1], all[4];
        dist_train(&j, 1, one);
        cr_assert_lt(one->n, (size_t)N);
        j.ctx = &b;
        dist_train(&j, 4, all);
        snprintf(what, sizeof what, "gradients of 12 micro-batches on 4 ranks, stage %d", stage);
        CHECK_RMS(what, b.g, a.g, one->n, 1e-6);
        for (int i = 0; i < DIST_STEPS; i++) CHECK_CLOSE("loss", &all[0].loss[i], &one->loss[i], 1, 1e-4);
        cr_assert(memcmp(all[0].w, one->w, one->n * sizeof(real)), "no order was another");
        for (int r = 1; r < 4; r++) dist_same_run("ranks among themselves", &j, &all[r], &all[0]);
        dist_free(1, one), dist_free(4, all);
        free(a.g), free(b.g);
    }
}

/* ---- what is frozen, and who teaches --------------------------------------------------------------------------------
 */

static char *make_teacher(const char *name, const char *seed) {
    char *dir = check_path(name), *path = xformat("teacher.path=%s", dir);
    DistJob j = {.config = "configs/tiny-gqa.yaml",
                 .steps = 1,
                 .over = {"train.batch=2", "train.micro_batch=1", seed},
                 .to = dir};
    DistRun one[1];
    dist_train(&j, 1, one);
    dist_free(1, one);
    free(dir);
    return path;
}

Test(dist, frozen_tensors_and_a_teacher) {
    static const char *const freeze[] = {"train.freeze=['*.mlp.*']", "train.freeze=['*embed*', '*norm*']",
                                         "train.train_only=['*layers.0.self_attn*']"};
    char *teacher = make_teacher("run", NULL);
    for (int i = 0; i < 6; i++) {
        DistJob j = {.config = i % 2 ? "configs/tiny-muon.yaml" : "configs/tiny-gqa.yaml",
                     .steps = 4,
                     .over = {"train.batch=3", "train.micro_batch=1", freeze[i % 3], "dist.check_every=1",
                              i < 4 ? teacher : NULL, "teacher.losses={lm: 0.5, kl: 1, hidden: 2}"}};
        DistRun one[1], all[3];
        char what[64], zero[32];
        snprintf(zero, sizeof zero, "dist.stage=%d", i % 3);
        dist_train(&j, 1, one);
        j.over[i < 4 ? 6 : 4] = zero;
        dist_train(&j, 3, all);
        snprintf(what, sizeof what, "%s, %s, stage %d%s", j.config, freeze[i % 3], i % 3, i < 4 ? ", taught" : "");
        for (int r = 0; r < 3; r++) dist_same_run(what, &j, &all[r], one);
        dist_free(1, one), dist_free(3, all);
    }
    free(teacher);
}

/* A rank whose own files differ: the path is the same, what lies there is another. */
static bool begins(Comm *c, void *ctx, Err *e) {
    char *const *teacher = ctx;
    DistJob j = {.config = "configs/tiny-gqa.yaml",
                 .steps = 1,
                 .over = {"train.batch=2", "train.micro_batch=1", teacher[c->rank], "teacher.losses={lm: 1, kl: 1}"}};
    Config *cfg = xcalloc(1, sizeof *cfg);
    Trainer *t = xcalloc(1, sizeof *t);
    dist_config(cfg, &j);
    cfg->comm = c;
    bool ok = trial_trainer(t, cfg, 0, false, e);
    if (ok) {
        model_init(&t->model, 3);
        ok = dist_start(&t->dist, e);
        if (ok && c->rank) R(t->params.p[2].t[PARAM_WEIGHT])[5] += (real)1e-3;
        if (ok && dist_start(&t->dist, e)) ok = err_runtime(e, "not seen");
        trial_trainer_close(t);
    }
    config_free(cfg);
    free(cfg), free(t);
    return ok;
}
Test(dist, ranks_that_begin_with_different_weights) {
    char *a = make_teacher("run", NULL), *b = make_teacher("other", "run.seed=5");
    Err e[2] = {{0}};
    cr_assert(comm_threads_run(2, 60, NULL, 0, begins, (char *[]){a, a}, e), "%s %s", e[0].msg, e[1].msg);
    for (int r = 0; r < 2; r++)
        cr_assert(e[r].status == EXIT_INPUT &&
                      strstr(e[r].msg, "rank 1 of 2 has initial weights different from rank 0's"),
                  "%s", e[r].msg);
    cr_assert_not(comm_threads_run(2, 60, NULL, 0, begins, (char *[]){a, b}, e));
    for (int r = 0; r < 2; r++)
        cr_assert(e[r].status == EXIT_INPUT && strstr(e[r].msg, "rank 1 of 2 has teacher weights different"), "%s",
                  e[r].msg);
    free(a), free(b);
}

Test(dist, memory_is_that_of_all_ranks_of_a_host) {
    DistJob j = {.config = "configs/tiny-gqa.yaml", .over = {"train.batch=2", "train.micro_batch=1"}};
    static const CommOps ops = {.name = "none"};
    Comm c = {.ops = &ops, .world = 2, .locals = 2};
    Config *cfg = xcalloc(1, sizeof *cfg);
    Trainer *t = xcalloc(1, sizeof *t);
    Err e = {0};
    dist_config(cfg, &j);
    cfg->comm = &c;
    cr_assert(trial_trainer(t, cfg, 0, true, &e), "%s", e.msg);
    cr_assert(trainer_fits(t, &e), "%s", e.msg);
    c.locals = 1 << 28;
    cr_assert(!trainer_fits(t, &e) && e.status == EXIT_RUNTIME && strstr(e.msg, "for all ranks of this host"), "%s",
              e.msg);
    trial_trainer_close(t);
    config_free(cfg);
    free(cfg), free(t);
}

Test(dist, gradients_may_travel_as_bf16) {
    for (int stage = 0; stage < 3; stage++) {
        char zero[32];
        snprintf(zero, sizeof zero, "dist.stage=%d", stage);
        DistJob j = {.config = "configs/tiny-muon.yaml",
                     .steps = DIST_STEPS,
                     .over = {"train.batch=6", "train.micro_batch=1", zero, NULL}};
        DistRun a[3], b[3];
        dist_train(&j, 3, a);
        j.over[3] = "dist.reduce=bf16";
        dist_train(&j, 3, b);
        for (int i = 0; i < DIST_STEPS; i++) CHECK_CLOSE("loss", &b[0].loss[i], &a[0].loss[i], 1, 0.03);
        cr_assert(b[0].loss[0] == a[0].loss[0] && b[0].norm[0] != a[0].norm[0], "nothing was rounded");
        CHECK_CLOSE("norm of the first step", &b[0].norm[0], &a[0].norm[0], 1, 0.005 * a[0].norm[0]);
        for (int r = 1; r < 3; r++) dist_same_run("bf16", &j, &b[r], &b[0]);
        dist_free(3, a), dist_free(3, b);
    }
}

/* ---- memory and bytes -----------------------------------------------------------------------------------------------
 */

static size_t region(const Regions *r, const char *name) {
    for (int i = 0; i < r->n; i++)
        if (!strcmp(r->region[i].name, name)) return r->region[i].bytes;
    return 0;
}

Test(dist, memory_is_as_planned_and_shrinks) {
    static const char *const kind[] = {"configs/tiny-gqa.yaml", "configs/tiny-muon.yaml"};
    size_t moments[2][3][2], grads[2][3][2];
    for (int c = 0; c < 2; c++)
        for (int stage = 0; stage < 3; stage++)
            for (int w = 0; w < 2; w++) {
                int W = w ? 8 : 3;
                char zero[32];
                snprintf(zero, sizeof zero, "dist.stage=%d", stage);
                const char *aside = stage == 2 && !w ? "train.async_save=true" : NULL;
                DistJob j = {.config = kind[c],
                             .steps = 2,
                             .over = {"train.batch=48", "train.micro_batch=1", zero, aside}};
                DistRun all[DIST_RANKS];
                dist_train(&j, W, all);
                for (int r = 0; r < W; r++) {
                    Config cfg;
                    dist_config(&cfg, &j);
                    Comm planned = {.rank = r, .world = W};
                    cfg.comm = &planned;
                    Trainer *t = xcalloc(1, sizeof *t);
                    Err e = {0};
                    Regions plan;
                    cr_assert(trial_trainer(t, &cfg, 0, true, &e), "%s", e.msg);
                    trainer_regions(t, false, &plan);
                    cr_assert_eq(plan.n, all[r].mapped.n);
                    for (int i = 0; i < plan.n; i++) {
                        const char *name = plan.region[i].name;
                        if (!strcmp(name, "tokens")) continue; /* a text's bytes are an upper bound */
                        cr_assert_eq(plan.region[i].bytes, all[r].mapped.region[i].bytes,
                                     "%s: %s, planned %zu, mapped %zu", kind[c], name, plan.region[i].bytes,
                                     all[r].mapped.region[i].bytes);
                        cr_assert_leq(all[r].peaks.region[i].bytes, all[r].mapped.region[i].bytes);
                        cr_assert_eq(plan.region[i].bytes, region(&all[0].mapped, name), "%s of rank %d", name, r);
                    }
                    /* A save puts aside what this rank has, and rank 0 the weights. */
                    cr_assert_eq(region(&plan, "moments_copy"),
                                 aside ? region(&plan, "first_moments") + region(&plan, "second_moments") : 0);
                    cr_assert_eq(region(&plan, "checkpoint_copy"), aside && !r ? region(&plan, "weights") : 0);
                    DistTraffic sent = dist_traffic(&t->dist);
                    cr_assert_eq(2 * (sent.gradients + sent.weights), all[r].sent, "%zu and %zu planned, %zu sent",
                                 sent.gradients, sent.weights, all[r].sent);
                    regions_free(&plan);
                    trial_trainer_close(t);
                    config_free(&cfg);
                    free(t);
                }
                moments[c][stage][w] = region(&all[0].mapped, "first_moments");
                grads[c][stage][w] = region(&all[0].mapped, "gradients");
                size_t units = region(&all[0].mapped, "unit_gradients");
                cr_assert(units > 0 && units < region(&all[0].mapped, "weights"), "%zu", units);
                dist_free(W, all);
            }
    for (int c = 0; c < 2; c++) {
        cr_assert_eq(grads[c][1][0], grads[c][0][0]);
        for (int w = 0; w < 2; w++) { /* 1/W, and guards and padding of small tensors */
            double W = w ? 8 : 3;
            cr_assert((double)moments[c][1][w] < 1.5 * (double)moments[c][0][w] / W, "%zu", moments[c][1][w]);
            cr_assert_eq(moments[c][2][w], moments[c][1][w]);
            cr_assert((double)grads[c][2][w] < 1.5 * (double)grads[c][0][w] / W, "%zu", grads[c][2][w]);
        }
    }
}

/* By hand: tiny-gqa has an embedding of 257 x 48, two layers and a last norm. */
static size_t padded(size_t n, size_t W) {
    size_t part = (n + W - 1) / W;
    return (part + 255) / 256 * 256 * W;
}
Test(dist, bytes_sent_are_the_rings) {
    const size_t d = 48, embed = 257 * d, in_layer[] = {d, 64 * d, 32 * d, 32 * d, d * 64, d, 96 * d, 96 * d, d * 96};
    size_t layer = 0, layer_padded = 0;
    for (size_t i = 0; i < sizeof in_layer / sizeof *in_layer; i++) {
        layer += in_layer[i];
        layer_padded += (in_layer[i] + 255) / 256 * 256;
    }
    const size_t unit[] = {embed, layer, layer, d};
    const size_t unit_padded[] = {(embed + 255) / 256 * 256, layer_padded, layer_padded, 256};
    for (int stage = 0; stage < 3; stage++)
        for (size_t W = 2; W <= 4; W++) {
            char batch[32], zero[32];
            snprintf(zero, sizeof zero, "dist.stage=%d", stage);
            snprintf(batch, sizeof batch, "train.batch=%zu", 3 * W); /* three micro-batches a rank */
            DistJob j = {.config = "configs/tiny-gqa.yaml",
                         .steps = 2,
                         .over = {batch, "train.micro_batch=1", zero, "dist.check_every=0"}};
            DistRun all[DIST_RANKS];
            dist_train(&j, (int)W, all);
            size_t want = 0;
            for (int u = 0; u < 4; u++) {
                size_t n = stage ? padded(unit_padded[u], W) : unit[u], once = (W - 1) * n * sizeof(real) / W;
                want += !stage ? 2 * (W - 1) * n * sizeof(real) / W : stage == 1 ? 2 * once : 4 * once;
            }
            want += (W - 1) * 3 * PARTS * 8; /* losses of micro-batches */
            size_t tells = all[0].sent / 2 - want, most = stage ? (W - 1) * 8 * 64 : 0;
            cr_assert(all[0].sent % 2 == 0 && tells <= most, "stage %d, %zu ranks: %zu bytes a step, expected %zu",
                      stage, W, all[0].sent / 2, want); /* beside them branches of the norm: less than 64 of a rank */
            dist_free((int)W, all);
        }
}

/* ---- what goes wrong ------------------------------------------------------------------------------------------------
 */

static const DistJob eight_steps = {.config = "configs/tiny-gqa.yaml",
                                    .steps = 8,
                                    .over = {"train.batch=4", "train.micro_batch=1", "dist.stage=1",
                                             "dist.check_every=1"}};

/* The call that takes the weights of layer 1 to all ranks, somewhere in the middle. */
Test(dist, a_flipped_bit_in_one_rank_is_found) {
    DistRun all[4], clean[1];
    Err e[4];
    int found = 0;
    dist_train(&eight_steps, 1, clean);
    for (uint64_t call = 20; call < 60; call++) {
        CommFault flip = {FAULT_CORRUPT, 2, call, 0, 8 * 4097 + 20};
        bool ok = dist_try(&eight_steps, 4, &flip, 1, all, e);
        if (!ok)
            for (int r = 0; r < 4; r++) cr_assert_eq(e[r].status, EXIT_RUNTIME, "call %d: rank %d", (int)call, r);
        if (!ok && strstr(e[0].msg, "the weights of rank 2 differ from those of the other 3")) {
            found++;
            for (int r = 0; r < 4; r++)
                cr_assert(strstr(e[r].msg, "after step") && strstr(e[r].msg, "weights of rank 2 differ"), "%s",
                          e[r].msg);
        }
        dist_free(4, all);
        if (found == 2) break;
    }
    dist_free(1, clean);
    cr_assert_eq(found, 2, "no flipped bit was found by the checksums");
}

Test(dist, a_rank_that_dies_ends_the_others) {
    for (int stage = 0; stage < 3; stage++)
        for (int tries = 0; tries < 4; tries++) {
            char zero[32];
            snprintf(zero, sizeof zero, "dist.stage=%d", stage);
            DistJob j = eight_steps;
            j.over[2] = zero;
            DistRun all[4];
            Err e[4];
            CommFault die = {FAULT_DIE, tries, 3 + rng_mix((uint64_t)stage, (uint64_t)tries) % 40, 0, 0};
            double begun = now_seconds();
            cr_assert_not(dist_try(&j, 4, &die, 1, all, e));
            cr_assert_lt(now_seconds() - begun, 30 * check_slow());
            for (int r = 0; r < 4; r++) {
                char who[64];
                snprintf(who, sizeof who, "rank %d stopped with an error", tries);
                cr_assert_eq(e[r].status, EXIT_RUNTIME);
                if (r != tries) cr_assert(strstr(e[r].msg, who), "%s", e[r].msg);
            }
            dist_free(4, all);
        }
}

Test(dist, late_ranks_change_nothing) {
    DistRun a[4], b[4];
    Err e[4];
    CommFault late[3] = {{FAULT_DELAY, 0, 9, 0.05, 0}, {FAULT_DELAY, 3, 14, 0.05, 0}, {FAULT_DELAY, 1, 31, 0.05, 0}};
    dist_train(&eight_steps, 4, a);
    cr_assert(dist_try(&eight_steps, 4, late, 3, b, e), "%s", e[0].msg);
    for (int r = 0; r < 4; r++) dist_same_run("with delays", &eight_steps, &b[r], &a[r]);
    dist_free(4, a), dist_free(4, b);
}

/* ---- weights beside the next forward --------------------------------------------------------------------------------
 */

/* Hooks around a Dist's own: what has come when a unit is asked for, and what is under way when it is computed. */
typedef struct {
    const UnitHooks *inner;
    UnitHooks hooks;
    int asked, waited; /* units, and those of them that were waited for */
} Asked;
static void asked_need(void *ctx, int unit) {
    Asked *w = ctx;
    Dist *d = w->inner->ctx;
    int before = d->known;
    cr_assert(before >= d->nunit || before == unit, "unit %d is asked for, %d were waited for", unit, before);
    w->inner->need(d, unit);
    w->asked++;
    w->waited += d->known - before;
    cr_assert(before == d->nunit || d->known == unit + 1, "unit %d: %d have come, no more was asked for", unit,
              d->known);
}
static void asked_begin(void *ctx, int unit) {
    const Asked *w = ctx;
    const Dist *d = w->inner->ctx;
    cr_assert_eq(d->known, d->nunit, "backward, and weights are under way");
    w->inner->begin(w->inner->ctx, unit);
}
static void asked_done(void *ctx, int unit) {
    const Asked *w = ctx;
    w->inner->done(w->inner->ctx, unit);
}
static bool watched(Trainer *t, int step, void *ctx, Err *e) {
    Asked *w = (Asked *)ctx + t->dist.rank;
    Dist *d = &t->dist;
    (void)e;
    cr_assert_eq(d->known, d->stage ? 0 : d->nunit, "step %d: the step waited for weights of %d units", step, d->known);
    if (!step) {
        w->inner = t->work.units;
        w->hooks = (UnitHooks){asked_need, asked_begin, asked_done, w};
        t->work.units = &w->hooks;
        return true;
    }
    int micros = d->micros * step;
    cr_assert_eq(w->asked, micros * d->nunit, "%d units were asked for", w->asked);
    cr_assert_eq(w->waited, d->stage ? step * d->nunit : 0, "%d were waited for", w->waited);
    return true;
}
Test(dist, weights_are_waited_for_where_they_are_read) {
    for (int k = 0; k < 4; k++) {
        static const char *const batch[] = {"train.batch=4", "train.batch=4", "train.batch=8", "train.batch=4"};
        static const char *const stage[] = {"dist.stage=0", "dist.stage=1", "dist.stage=2", "dist.stage=2"};
        DistJob j = {.config = k == 3 ? "configs/tiny-yoco.yaml" : "configs/tiny-muon.yaml",
                     .steps = 5,
                     .over = {batch[k], "train.micro_batch=1", stage[k], "dist.check_every=0", "train.recompute=-1"}};
        Asked w[4] = {{0}};
        DistRun a[4], b[4];
        Err e[4];
        dist_train(&j, 4, a);
        j.each = watched, j.ctx = w;
        /* Ranks that come late with weights of a unit, each with another: nobody computes with old ones. */
        CommFault late[16];
        for (int i = 0; i < 16; i++) late[i] = (CommFault){FAULT_DELAY, i % 4, 9 + 5 * (uint64_t)i, 0.01, 0};
        cr_assert(dist_try(&j, 4, late, 16, b, e), "%s", e[0].msg);
        for (int r = 0; r < 4; r++) {
            dist_same_run("weights beside the forward", &j, &b[r], &a[r]);
            cr_assert(b[r].log == a[0].log && b[r].calls == a[0].calls, "another log of collectives");
        }
        dist_free(4, a), dist_free(4, b);
    }
}

/* A weight that is not a number on one rank. */
static bool poison(Trainer *t, int step, void *ctx, Err *e) {
    (void)ctx;
    if (!dist_weights(&t->dist, e)) return false;
    if (step == 2 && t->dist.rank == 1) R(t->params.p[0].t[PARAM_WEIGHT])[7] = (real)NAN;
    return true;
}
static bool fails(Trainer *t, int step, void *ctx, Err *e) {
    (void)ctx;
    return step != 2 || t->dist.rank != 1 || err_runtime(e, "cannot read text.txt: Input/output error");
}
Test(dist, a_failed_step_ends_all) {
    DistRun all[4];
    Err e[4];
    DistJob j = eight_steps;
    j.over[3] = "dist.check_every=0";
    j.each = poison;
    cr_assert_not(dist_try(&j, 4, NULL, 0, all, e));
    for (int r = 0; r < 4; r++) cr_assert(strstr(e[r].msg, "training diverged at step 4"), "%s", e[r].msg);
    dist_free(4, all);
    j.each = fails;
    cr_assert_not(dist_try(&j, 4, NULL, 0, all, e));
    for (int r = 0; r < 4; r++)
        cr_assert(strstr(e[r].msg, r == 1 ? "cannot read text.txt" : "rank 1 stopped with an error"), "%s", e[r].msg);
    dist_free(4, all);
}

Test(dist, batches_that_cannot_be_dealt_are_refused) {
    static const struct {
        const char *batch, *micro, *part;
        int W;
    } cases[] = {{"train.batch=8", "train.micro_batch=2",
                  "train.batch: 4 micro-batches of 2 cannot be divided evenly among 3 ranks; use train.batch=12", 3},
                 {"train.batch=8", "train.micro_batch=4",
                  "train.micro_batch: 2 micro-batches of 4 cannot be divided evenly among 4 ranks; use a divisor of 2",
                  4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DistJob j = {.config = "configs/tiny-gqa.yaml", .steps = 1, .over = {cases[i].batch, cases[i].micro}};
        DistRun all[4];
        Err e[4];
        cr_assert_not(dist_try(&j, cases[i].W, NULL, 0, all, e));
        for (int r = 0; r < cases[i].W; r++) {
            cr_assert_eq(e[r].status, EXIT_INPUT);
            cr_assert(strstr(e[r].msg, cases[i].part), "%s", e[r].msg);
        }
        dist_free(cases[i].W, all);
    }
}

static bool differ(Comm *c, void *ctx, Err *e) { return dist_same(c, "settings", ((uint64_t *)ctx)[c->rank], e); }
Test(dist, ranks_with_other_settings_are_named) {
    Err e[3];
    cr_assert(comm_threads_run(3, 20, NULL, 0, differ, (uint64_t[]){~0ull, ~0ull, ~0ull}, e));
    cr_assert_not(comm_threads_run(3, 20, NULL, 0, differ, (uint64_t[]){1, 1, 1ull << 33 | 1}, e));
    for (int r = 0; r < 3; r++) {
        cr_assert_eq(e[r].status, EXIT_INPUT);
        cr_assert(strstr(e[r].msg, "rank 2 of 3 has settings different from rank 0's"), "%s", e[r].msg);
    }
}

/* ---- the plan, by the command ---------------------------------------------------------------------------------------
 */

Test(dist, plan_of_many_ranks) {
    Ran r = RUN("train", "configs/tiny-muon.yaml", "--plan", "--ranks", "1024", "--json", "train.batch=1024",
                "train.micro_batch=1", "dist.stage=1", "dist.flops=1e10", "dist.link=1e9", "dist.latency=0");
    cr_assert_eq(r.status, 0, "%s", r.err);
    json_t *j = json_loads(r.out, 0, NULL), *d = json_object_get(j, "dist"), *t = json_object_get(d, "estimate");
    double flops = json_number_value(json_object_get(j, "flops_per_token")),
           bytes = json_number_value(json_object_get(d, "sent_weights")),
           compute = json_number_value(json_object_get(t, "compute_s")),
           gradients = json_number_value(json_object_get(t, "gradients_s")),
           weights = json_number_value(json_object_get(t, "weights_s")),
           step = json_number_value(json_object_get(t, "step_s"));
    cr_assert_eq(json_integer_value(json_object_get(d, "ranks")), 1024);
    cr_assert_float_eq(compute, 64 * flops / 1e10, 1e-9 * compute);
    cr_assert_float_eq(weights, bytes / 1e9, 1e-9 * weights);
    cr_assert_float_eq(step, compute + fmax(0, weights - compute / 3) + fmax(0, gradients - compute * 2 / 3),
                       1e-9 * step);
    json_decref(j);
    Ran text = RUN("train", "configs/tiny-gqa.yaml", "--plan", "--ranks", "2", "dist.stage=2");
    cr_assert(text.status == 0 && strstr(text.out, "ranks             2, 1 micro-batches each; stage 2"), "%s",
              text.out);
    cr_assert(!strstr(text.out, "estimate"), "%s", text.out);
    CHECK_REFUSED(RUN("train", "configs/tiny-gqa.yaml", "--ranks", "2"), 2, "--ranks: only valid with --plan");
    CHECK_REFUSED(RUN("train", "configs/tiny-gqa.yaml", "--plan", "--ranks", "0"), 2,
                  "--ranks: expected a whole number");
    CHECK_REFUSED(RUN("train", "configs/tiny-gqa.yaml", "--plan", "--ranks", "3"), 2,
                  "train.batch: 2 micro-batches of 2 cannot be divided evenly among 3 ranks; use train.batch=6");
    CHECK_REFUSED(RUN("train", "configs/tiny-gqa.yaml", "--plan", "dist.stage=3"), 2, "dist.stage");
    static const char stages[] =
        "run: {dir: x}\nmodel: {d_model: 32, layers: 1, kinds: {a: {mixer: gqa, heads: 2}}, ffn: "
        "{kind: swiglu, hidden: 64}}\ndata: {train: data/kjv.txt, seq_len: 16}\nstages:\n"
        "  - {name: a, steps: 300, set: {dist.stage: 1}}\n";
    char *yaml = check_path("stages.yaml");
    check_write(yaml, stages, sizeof stages - 1);
    CHECK_REFUSED(RUN("train", yaml, "--plan"), 2, "dist.stage: belongs to the run as a whole");
    free(yaml);
}
