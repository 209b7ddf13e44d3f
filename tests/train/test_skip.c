/* test_skip.c: steps that are left out: the scores against their definition, what such a step changes and what it does
 * not, resuming, the end of too many, stages. */
#include "tests/lib/check.h"
#include "tests/lib/trial.h"
#include "train/save/checkpoint.h"

static double exact(const double *v, int n, double x) {
    long double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += v[i];
    for (int i = 0; i < n; i++) squares += (v[i] - sum / n) * (v[i] - sum / n);
    return (double)((x - sum / n) / sqrtl(squares / n));
}

Test(skip, scores_are_of_the_last_accepted) {
    enum { W = 16 };
    static Skips s;
    double loss[100], norm[100], a, b, worst = 0;
    for (int i = 0; i < 100; i++) {
        loss[i] = 3 + rng_normal(1, (uint64_t)i), norm[i] = exp(rng_normal(2, (uint64_t)i));
        skip_scores(&s, W, loss[i], norm[i], &a, &b);
        if (i < W) {
            cr_assert(a == 0 && b == 0, "judged after %d steps", i);
        } else {
            double x = exact(loss + i - W, W, loss[i]), y = exact(norm + i - W, W, norm[i]);
            worst = fmax(worst, fmax(fabs(a - x), fabs(b - y)));
            cr_assert(fabs(a - x) < 1e-12 && fabs(b - y) < 1e-12, "step %d: %.17g and %.17g, expected %.17g and %.17g",
                      i, a, b, x, y);
        }
        skip_accepted(&s, W, loss[i], norm[i]);
        cr_assert_eq(s.n, i < W ? i + 1 : W);
    }
    printf("skip: worst error of a score %.2g\n", worst);
    /* What is left out is not remembered; a shorter window is the newest of it. */
    skip_left_out(&s), skip_left_out(&s);
    cr_assert(s.n == W && s.row == 2 && s.skipped == 2);
    skip_scores(&s, 5, 4, 1, &a, &b);
    cr_assert(fabs(a - exact(loss + 95, 5, 4)) < 1e-12 && fabs(b - exact(norm + 95, 5, 1)) < 1e-12);
    skip_accepted(&s, 5, 4, 1);
    cr_assert(s.n == 5 && s.loss[0] == loss[96] && s.loss[4] == 4 && s.norm[0] == norm[96] && s.row == 0 &&
              s.skipped == 2);
    skip_scores(&s, 6, 1e9, 1e9, &a, &b);
    cr_assert(a == 0 && b == 0, "judged by fewer than the window");
    skip_forget(&s);
    cr_assert(s.n == 0 && s.skipped == 2);
    /* No deviation at all: the same again is no outlier, anything more is. */
    for (int i = 0; i < W; i++) skip_accepted(&s, W, 0.1, 0.7);
    skip_scores(&s, W, 0.1, 0.7, &a, &b);
    cr_assert(fabs(a) <= 1 && fabs(b) <= 1, "%g %g", a, b);
    skip_scores(&s, W, 0.2, 0.6, &a, &b);
    cr_assert(a > 1e6 && b < -1e6, "%g %g", a, b);
    /* the longest */
    for (int i = 0; i < 3 * SKIP_WINDOW_MAX; i++) skip_accepted(&s, SKIP_WINDOW_MAX, i, -i);
    cr_assert(s.n == SKIP_WINDOW_MAX && s.loss[0] == 2 * SKIP_WINDOW_MAX && s.norm[s.n - 1] == 1 - 3 * SKIP_WINDOW_MAX);
}

/* ---- in a trainer ---------------------------------------------------------------------------------------------------
 */

static const char yaml[] =
    "run: {dir: '%s', seed: 3, threads: 1}\n"
    "model:\n"
    "  d_model: 16\n"
    "  layers: 2\n"
    "  kinds: {full: {mixer: gqa, heads: 2, kv_heads: 1, head_dim: 8}}\n"
    "  ffn: {kind: swiglu, hidden: 24}\n"
    "data: {train: '%s', val_fraction: 0.2, seq_len: 16}\n"
    "train: {dtype: f32, steps: 60, batch: 6, micro_batch: 6, skip_z: 4, skip_window: 8, skip_most: 3}\n"
    "optim: {lr: 0.02, min_lr: 0.002, warmup: 2, clip: 0.5, weight_decay: 0.3%s}\n";

static Trainer *open_trainer(Config *cfg, const char *optim) {
    char *text = check_path("text.txt"), *dir = check_path("run");
    char body[4000];
    for (size_t i = 0; i < sizeof body; i++) body[i] = (char)("etaoin shrdlu\n"[rng_mix(7, i) % 14]);
    check_write(text, body, sizeof body);
    char *all = xformat(yaml, dir, text, optim);
    Trainer *t = xcalloc(1, sizeof *t);
    Err e = {0};
    cr_assert(config_parse(cfg, all, strlen(all), "yaml", 0, NULL, &e), "%s", e.msg);
    cr_assert(trial_trainer(t, cfg, 0, false, &e), "%s", e.msg);
    model_init(&t->model, 3);
    free(all), free(text), free(dir);
    return t;
}
/* A past in which losses (which == 0) or norms were far below what is to come, the other far above. */
static void past(Trainer *t, int which) {
    for (int i = 0; i < 8; i++)
        skip_accepted(&t->run->state.skip, 8, (which ? 100 : 1e-3) + 1e-4 * i, (which ? 1e-3 : 100) + 1e-4 * i);
}
static char *numbers(const Trainer *t, size_t *n) {
    const Arena *a[] = {&t->model.aw, &t->optim[0], &t->optim[1]};
    char *all = NULL;
    *n = 0;
    for (int k = 0; k < 3; k++) {
        all = xrealloc(all, *n + a[k]->used, 1);
        memcpy(all + *n, a[k]->base, a[k]->used);
        *n += a[k]->used;
    }
    return all;
}

ParameterizedTestParameters(skip, a_step_left_out_changes_no_number) {
    static int which[] = {0, 1, 2, 3};
    return cr_make_param_array(int, which, 4);
}
ParameterizedTest(int *which, skip, a_step_left_out_changes_no_number) {
    const char *optim = *which & 2 ? ", kind: muon, state_dtype: bf16" : "";
    Config a, b;
    Trainer *t = open_trainer(&a, optim), *u = open_trainer(&b, optim);
    Err e = {0};
    TrainRecord r = {0}, s = {0};
    size_t n, m;
    cr_assert(trainer_step(t, &r, &e) && trainer_step(u, &s, &e) && !r.skipped, "%s",
              e.msg); /* moments that are not 0 */
    char *before = numbers(t, &n);
    past(t, *which & 1);
    cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
    cr_assert(r.skipped && r.nskipped == 1 && (*which & 1 ? r.norm_z : r.loss_z) > 4 &&
                  (*which & 1 ? r.loss_z : r.norm_z) < 0,
              "z %g and %g", r.loss_z, r.norm_z);
    char *after = numbers(t, &m);
    CHECK_BYTES("numbers", after, before, n);
    cr_assert(t->run->state.step == 2 && t->run->state.tokens == 2 * 96 && t->run->state.skip.n == 8 &&
              t->run->state.skip.row == 1);
    free(after);
    /* The data went on, and AdamW counts the steps that it took. */
    skip_forget(&t->run->state.skip);
    u->run->state.step = 2, u->run->state.tokens = t->run->state.tokens, u->run->state.skip.skipped = 1;
    cr_assert(trainer_step(t, &r, &e) && trainer_step(u, &s, &e), "%s", e.msg);
    cr_assert(!r.skipped && r.loss == s.loss && r.grad_norm == s.grad_norm && r.nskipped == 1);
    char *x = numbers(t, &n), *y = numbers(u, &m);
    CHECK_BYTES("numbers", x, y, n);
    cr_assert(memcmp(x, before, n), "the step changed nothing");
    /* Three in a row are the end, with the numbers as they were. */
    past(t, *which & 1);
    cr_assert(trainer_step(t, &r, &e) && r.skipped && trainer_step(t, &r, &e) && r.skipped, "%s", e.msg);
    int64_t step = t->run->state.step;
    cr_assert(!trainer_step(t, &r, &e) && e.status == EXIT_DIVERGED && strstr(e.msg, "train.skip_most: step 6") &&
                  strstr(e.msg, "number 3 in a row") && strlen(e.msg) <= 300,
              "%s", e.msg);
    free(y), y = numbers(t, &m);
    CHECK_BYTES("numbers", y, x, n);
    cr_assert_eq(t->run->state.step, step);
    free(x), free(y), free(before);
    trial_close(t, &a);
    trial_close(u, &b);
}

/* An accepted step between two ends the row; nothing that is not finite is left out silently. */
Test(skip, rows_end_and_nan_is_the_end) {
    Config a;
    Trainer *t = open_trainer(&a, "");
    Err e = {0};
    TrainRecord r;
    past(t, 0);
    for (int i = 0; i < 2; i++) cr_assert(trainer_step(t, &r, &e) && r.skipped, "%s", e.msg);
    skip_forget(&t->run->state.skip);
    cr_assert(trainer_step(t, &r, &e) && !r.skipped && t->run->state.skip.row == 0 && t->run->state.skip.skipped == 2);
    past(t, 1);
    for (int i = 0; i < 2; i++) cr_assert(trainer_step(t, &r, &e) && r.skipped, "%s", e.msg);
    R(t->model.w.norm)[3] = (real)NAN;
    cr_assert(!trainer_step(t, &r, &e) && strstr(e.msg, "diverged"), "%s", e.msg);
    trial_close(t, &a);
}

Test(skip, state_is_saved_and_checked) {
    Config a, b;
    Trainer *t = open_trainer(&a, ""), *u = open_trainer(&b, "");
    Err e = {0};
    TrainRecord r;
    cr_assert(run_dir_open(&t->run->dir, a.run.dir, false, &e), "%s", e.msg);
    cr_assert(trainer_step(t, &r, &e) && trainer_step(t, &r, &e), "%s", e.msg);
    past(t, 0);
    t->run->state.skip.loss[2] = 1.0 / 3, t->run->state.skip.norm[7] = 0x1.fffffffffffffp-300;
    cr_assert(trainer_step(t, &r, &e) && r.skipped && checkpoint_save(t, &e), "%s", e.msg);
    char *dir = run_dir_step(&t->run->dir, 3);
    cr_assert(checkpoint_load(u, dir, &e), "%s", e.msg);
    const Skips *x = &t->run->state.skip, *y = &u->run->state.skip;
    cr_assert(x->n == 8 && y->n == 8 && x->row == 1 && y->row == 1 && y->skipped == 1);
    CHECK_BYTES("losses", y->loss, x->loss, sizeof(double) * 8);
    CHECK_BYTES("norms", y->norm, x->norm, sizeof(double) * 8);
    u->cfg->train.skip_z = 0; /* off: the count stays, AdamW needs it */
    cr_assert(checkpoint_load(u, dir, &e) && u->run->state.skip.n == 0 && u->run->state.skip.skipped == 1, "%s", e.msg);
    static const char *const damage[][2] = {{"s/\"skipped\": 1/\"skipped\": 4/", "\"skipped\""},
                                            {"s/\"skipped\": 1/\"skipped\": -1/", "\"skipped\""},
                                            {"s/\"row\": 1/\"row\": 2/", "\"row\""},
                                            {"s/\"row\"/\"raw\"/", "\"row\" is missing"},
                                            {"s/0.333333333333333[0-9]*/\"x\"/", "\"skip\""},
                                            {"s/0.333333333333333[0-9]*/1e999/", "state.json"},
                                            {"s/0.333333333333333[0-9]*/1, 1/", "\"skip\""},
                                            {"s/\"grad_norm\"/\"norm\"/", "\"skip\""}};
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        char *cmd =
            xformat("cd '%s/trainer' && cp state.json keep && sed -i '%s' state.json && ! cmp -s state.json keep", dir,
                    damage[i][0]);
        cr_assert_eq(system(cmd), 0, "%s changed nothing", damage[i][0]);
        e = (Err){0};
        cr_assert(!checkpoint_load(u, dir, &e) && e.status == EXIT_INPUT && strstr(e.msg, damage[i][1]), "%s: %s",
                  damage[i][0], e.msg);
        free(cmd);
        cmd = xformat("cd '%s/trainer' && mv keep state.json", dir);
        cr_assert_eq(system(cmd), 0);
        free(cmd);
    }
    free(dir);
    run_dir_close(&t->run->dir);
    trial_close(u, &b);
    trial_close(t, &a);
}

/* ---- the program ----------------------------------------------------------------------------------------------------
 */

#ifndef KV_DOUBLE
static int count(const char *text, const char *part) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}
static char *metrics_of(const char *run) {
    char *path = xformat("%s/metrics.jsonl", run), *text = check_read(path, NULL);
    free(path);
    return text;
}
static void same_file(const char *a, const char *b, const char *name) {
    char *x = xformat("%s/last/%s", a, name), *y = xformat("%s/last/%s", b, name);
    size_t n, m;
    char *p = check_read(x, &n), *q = check_read(y, &m);
    cr_assert_eq(n, m, "%s: %zu bytes, then %zu", name, n, m);
    CHECK_BYTES(name, p, q, n);
    free(x), free(y), free(p), free(q);
}
    #define TRAIN                                                                                  \
        "train", "configs/tiny-gqa.yaml", "--threads", "1", "train.dtype=f32", "train.skip_z=1.2", \
            "train.skip_window=6", "train.eval_every=0", "optim.schedule_steps=40", "train.log_every=100"

/* One deviation and a bit leaves out many: in one go or in pieces that end where it suits, the bytes are the same. */
Test(skip, resumes_to_the_same_bytes) {
    char *a = check_path("a"), *b = check_path("b"), *da = xformat("run.dir=%s", a), *db = xformat("run.dir=%s", b);
    Ran r = RUN(TRAIN, da, "train.steps=40");
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_assert(strstr(r.out, " skipped: loss "), "%s", r.out);
    static const char *const steps[] = {"train.steps=9", "train.steps=17", "train.steps=18", "train.steps=40"};
    for (int i = 0; i < 4; i++) {
        r = RUN(TRAIN, db, steps[i], "--resume", "auto", "-q", "--json");
        cr_assert_eq(r.status, 0, "%s", r.err);
    }
    static const char *const files[] = {"model.safetensors", "trainer/optimizer.safetensors", "trainer/state.json"};
    for (int i = 0; i < 3; i++) same_file(a, b, files[i]);
    char *text = metrics_of(a), *other = metrics_of(b),
         *said = xformat("\"skipped\":%d", count(text, "\"skipped\":true"));
    int n = count(text, "\"skipped\":true");
    cr_assert(n >= 3 && n < 30 && count(other, "\"skipped\":true") == n && count(text, "\"loss_z\":") == n,
              "%d of 40 were left out", n);
    cr_assert(strstr(r.out, said), "%s: %s", said, r.out);
    free(text), free(other), free(said), free(a), free(b), free(da), free(db);
}

Test(skip, too_many_end_the_run) {
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run);
    Ran r = RUN(TRAIN, dir, "train.steps=40", "train.skip_most=1", "train.save_every=5", "-q");
    CHECK_REFUSED(r, EXIT_RUNTIME, "train.skip_most: step");
    cr_assert(strstr(r.err, "number 1 in a row") && strstr(r.err, "the last checkpoint is intact"), "%s", r.err);
    r = RUN(TRAIN, dir, "train.steps=40", "train.skip_most=9", "--resume", "auto", "-q"); /* more patience is allowed */
    cr_assert_eq(r.status, 0, "%s", r.err);
    free(run), free(dir);
}

/* A stage has losses of its own: the first six steps of it are not judged by those of the one before. */
Test(skip, a_stage_begins_anew) {
    char *run = check_path("run"), *dir = xformat("run.dir=%s", run);
    Ran r = RUN(TRAIN, dir, "-q", "train.steps=60",
                "stages=[{name: a, steps: 40}, {name: b, steps: 20, set: {data.seq_len: 8, train.batch: 2}}]");
    cr_assert_eq(r.status, 0, "%s", r.err);
    char *text = metrics_of(run);
    int first = 0, second = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strstr(line, "\"skipped\":true")) {
            int step = atoi(line + strlen("{\"step\":"));
            cr_assert(!(step > 40 && step <= 46), "%s", line);
            cr_assert(step > 6, "%s", line);
            *(step > 40 ? &second : &first) += 1;
        }
    cr_assert(first && second, "%d in the first, %d in the second stage", first, second);
    free(text), free(run), free(dir);
}
#endif
