/* train/: one step against its definition, journals, the run folder, damaged checkpoints. Whole runs, killed and
 * resumed, are in test_train.sh and test_resume.sh. */
#include "tests/lib/check.h"
#include "tests/lib/trial.h"
#include "model/cost.h"
#include "ops/file.h"
#include "train/save/checkpoint.h"
#include "train/report/watch.h"
#include <sys/stat.h>
#include <unistd.h>

#ifdef KV_DOUBLE
    #define TOL 1e-11
#else
    #define TOL 2e-5
#endif

/* ---- a trainer on a small text --------------------------------------------------------------------------------------
 */

static const char yaml[] =
    "run: {dir: '%s', seed: 3, threads: 1}\n"
    "model:\n"
    "  d_model: 16\n"
    "  layers: 2\n"
    "  kinds: {full: {mixer: gqa, heads: 2, kv_heads: 1, head_dim: 8}}\n"
    "  ffn: {kind: swiglu, hidden: 24}\n"
    "data: {train: '%s', val_fraction: 0.2, seq_len: 16}\n"
    "train: {steps: 8, batch: 6, micro_batch: 6, dtype: f32, eval_every: 4, save_every: 4, log_every: 1}\n"
    "optim: {lr: 0.02, min_lr: 0.002, warmup: 2, clip: 0.5, weight_decay: 0.3}\n";

/* ---- a step ---------------------------------------------------------------------------------------------------------
 */

/* Three steps by hand: the gradient of the whole batch in one pass, its norm, the schedule and AdamW from their
 * formulas in double. */
Test(train, step_is_its_definition) {
    Config cfg;
    Trainer *t = trial_open(&cfg, yaml, 1, (const char *[]){"train.micro_batch=2"});
    Config whole_cfg;
    Trainer *u = trial_open(&whole_cfg, yaml, 0, NULL);
    int64_t N = 6 * 16;
    double *w[256], *m[256], *v[256];
    for (int i = 0; i < u->params.n; i++) {
        size_t n = tensor_count(u->params.p[i].t[PARAM_WEIGHT]);
        w[i] = xcalloc(n, sizeof(double)), m[i] = xcalloc(n, sizeof(double)), v[i] = xcalloc(n, sizeof(double));
        for (size_t k = 0; k < n; k++) w[i][k] = (double)R(u->params.p[i].t[PARAM_WEIGHT])[k];
    }
    const double lr_of[] = {0.02 / 3, 0.02 * 2 / 3, 0.02};
    for (int step = 0; step < 3; step++) {
        Err e = {0};
        TrainRecord r = {0};
        cr_assert(loader_train(&u->loader, &u->text.train, u->tok.eot, 3, (uint64_t)step * 6, 6, &e), "%s", e.msg);
        cr_assert_eq(u->loader.batch.N, N);
        for (int i = 0; i < N; i++) u->g[i] = (real)(1.0 / (double)N);
        model_zero_grad(&u->model);
        model_train(&u->model, &u->work, &u->loader.batch, u->loader.tok, u->loader.tgt, u->g, u->nll);
        double loss = 0, squares = 0;
        for (int i = 0; i < N; i++) loss += (double)u->nll[i] / (double)N;
        for (int i = 0; i < u->params.n; i++)
            for (size_t k = 0; k < tensor_count(u->params.p[i].t[PARAM_GRAD]); k++)
                squares += pow((double)R(u->params.p[i].t[PARAM_GRAD])[k], 2);
        double norm = sqrt(squares), scale = norm > 0.5 ? 0.5 / norm : 1, lr = lr_of[step];
        for (int i = 0; i < u->params.n; i++) {
            Tensor g = u->params.p[i].t[PARAM_GRAD];
            double decay = g.rank == 2 ? 0.3 : 0;
            for (size_t k = 0; k < tensor_count(g); k++) {
                double x = (double)R(g)[k] * scale;
                m[i][k] = 0.9 * m[i][k] + 0.1 * x;
                v[i][k] = 0.95 * v[i][k] + 0.05 * x * x;
                double mh = m[i][k] / (1 - pow(0.9, step + 1)), vh = v[i][k] / (1 - pow(0.95, step + 1));
                w[i][k] -= lr * (mh / (sqrt(vh) + 1e-8) + decay * w[i][k]);
                R(u->params.p[i].t[PARAM_WEIGHT])[k] = (real)w[i][k];
            }
        }
        cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        CHECK_CLOSE("loss", &r.loss, &loss, 1, TOL);
        CHECK_CLOSE("norm", &r.grad_norm, &norm, 1, TOL);
        CHECK_CLOSE("lr", &r.lr, &lr, 1, 1e-15);
        cr_assert_gt(norm, 0.5, "clipping was not exercised: norm %g", norm);
        cr_assert_eq(t->run->state.tokens, (step + 1) * N);
    }
    for (int i = 0; i < t->params.n; i++) {
        Param *p = &t->params.p[i];
        /* An entry whose gradient is rounding noise moves by lr in either direction; those are the ones with tiny v. */
        size_t n = tensor_count(p->t[PARAM_WEIGHT]), far = 0;
        double worst = 0;
        for (size_t k = 0; k < n; k++) {
            double off = fabs((double)R(p->t[PARAM_WEIGHT])[k] - w[i][k]);
            if (sqrt(v[i][k]) < TOL) continue;
            worst = !(off <= worst) ? off : worst;
            far += !(off <= 50 * TOL);
        }
        cr_assert_eq(far, 0, "%s: %zu of %zu numbers are off, worst by %g", p->name, far, n, worst);
        free(w[i]), free(m[i]), free(v[i]);
    }
    trial_close(t, &cfg);
    trial_close(u, &whole_cfg);
}

static const int micro[] = {1, 2, 3, 6};
ParameterizedTestParameters(train, micro_batch_changes_nothing_but_rounding) {
    static int which[] = {0, 1, 2, 3};
    return cr_make_param_array(int, which, 4);
}
ParameterizedTest(int *which, train, micro_batch_changes_nothing_but_rounding) {
    char over[40];
    snprintf(over, sizeof over, "train.micro_batch=%d", micro[*which]);
    Config a, b;
    Trainer *t = trial_open(&a, yaml, 2, (const char *[]){over, "train.dropout=0.2"});
    Trainer *u = trial_open(&b, yaml, 1, (const char *[]){"train.dropout=0.2"});
    Err e = {0};
    TrainRecord r = {0}, s = {0};
    ValRecord x, y;
    for (int i = 0; i < 2; i++) {
        cr_assert(trainer_step(t, &r, &e) && trainer_step(u, &s, &e), "%s", e.msg);
        CHECK_CLOSE("loss", &r.loss, &s.loss, 1, TOL);
        CHECK_CLOSE("norm", &r.grad_norm, &s.grad_norm, 1, 20 * TOL);
    }
    cr_assert(trainer_validate(t, &x, &e) && trainer_validate(u, &y, &e), "%s", e.msg);
    cr_assert_eq(x.tokens, y.tokens);
    cr_assert(!x.task && x.tokens == (int64_t)t->text.tail[0].n - 1, "%lld predictions of %zu tokens",
              (long long)x.tokens, t->text.tail[0].n);
    CHECK_CLOSE("validation", &x.loss, &y.loss, 1, 20 * TOL);
    trial_close(t, &a);
    trial_close(u, &b);
}

Test(train, diverged_step_leaves_weights) {
    Config cfg;
    Trainer *t = trial_open(&cfg, yaml, 0, NULL);
    Err e = {0};
    TrainRecord r = {0};
    R(t->model.w.norm)[3] = (real)NAN;
    size_t n = tensor_count(t->model.w.embed) * sizeof(real);
    void *before = xcalloc(1, n);
    memcpy(before, t->model.w.embed.p, n);
    cr_assert_not(trainer_step(t, &r, &e));
    cr_assert_eq(e.status, EXIT_DIVERGED);
    cr_assert(strstr(e.msg, "diverged at step 1"), "%s", e.msg);
    CHECK_BYTES("embedding", t->model.w.embed.p, before, n);
    cr_assert_eq(t->run->state.step, 0);
    e = (Err){0};
    cr_assert_not(watch_finite(t, &e));
    cr_assert(strstr(e.msg, "model.norm.weight"), "%s", e.msg);
    free(before);
    trial_close(t, &cfg);
}

/* ---- journals -------------------------------------------------------------------------------------------------------
 */

typedef struct {
    const char *before, *mark;
    int64_t step;
    const char *after;
    bool kept; /* aside, as old-journal */
} Cut;
#define L1 "{\"step\":1,\"loss\":2}\n"
#define L5 "{\"step\":5,\"loss\":2}\n"
#define V5 "{\"step\":5,\"val_loss\":2}\n"
#define L9 "{\"step\":9,\"loss\":2}\n"
#define S5 "== step 5 ==\n  a\n  == step 2 ==\n"
#define S9 "== step 9 ==\n  b\n"
static const Cut cuts[] = {
    {L1 L5 V5 L9, METRICS_MARK, 5, L1 L5 V5, false},
    {L1 L5 V5 L9, METRICS_MARK, 4, L1, false},
    {L1 L5 V5 L9, METRICS_MARK, 9, L1 L5 V5 L9, false},
    {L1 L5 V5 L9, METRICS_MARK, -1, "", true}, /* there is no checkpoint */
    {"{\"step\":1,\"lo", METRICS_MARK, -1, "", false},
    {"", METRICS_MARK, -1, "", false},
    {L1 L5 V5 L9, METRICS_MARK, 0, "", false},
    {L1 L5 "{\"step\":5,\"val", METRICS_MARK, 5, L1 L5, false},
    {L1 L5 "{\"st", METRICS_MARK, 7, L1 L5, false},
    {"garbage\n" L1, METRICS_MARK, 7, "", true},
    {L1 "\n" L5, METRICS_MARK, 7, L1, true},
    {L1 L9 L5, METRICS_MARK, 7, L1, true},
    {L1 L9 L9 "{\"st", METRICS_MARK, 7, L1, false},
    {"{\"step\":123456789012345678901234567890}\n" L1, METRICS_MARK, 7, "", true},
    {"", METRICS_MARK, 7, "", false},
    {S5 S9, SAMPLES_MARK, 9, S5 S9, false},
    {S5 S9, SAMPLES_MARK, 5, S5, false},
    {S5 S9 "  torn", SAMPLES_MARK, 9, S5 S9, false},
    {S5 S9, SAMPLES_MARK, 4, "", false},
    {S5 S9, SAMPLES_MARK, -1, "", true},
};
ParameterizedTestParameters(train, journal_is_cut) {
    static int which[sizeof cuts / sizeof *cuts];
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) which[i] = (int)i;
    return cr_make_param_array(int, which, sizeof cuts / sizeof *cuts);
}
static RunDir journal_dir(void) {
    RunDir d;
    Err e = {0};
    cr_assert(run_dir_open(&d, check_dir(), true, &e), "%s", e.msg);
    return d;
}
ParameterizedTest(int *which, train, journal_is_cut) {
    const Cut *c = &cuts[*which];
    char *path = check_path("journal"), *kept = check_path("old-journal"), *got;
    RunDir d = journal_dir();
    Journal j;
    Err e = {0};
    check_write(path, c->before, strlen(c->before));
    cr_assert(journal_open(&j, &d, "journal", c->mark, c->step, true, &e), "%s", e.msg);
    cr_assert(journal_put(&j, "next\n", 5, &e) && journal_sync(&j, &e), "%s", e.msg);
    journal_close(&j);
    got = check_read(path, NULL);
    char *want = xformat("%snext\n", c->after);
    cr_assert_str_eq(got, want);
    cr_assert_eq(check_exists(kept), c->kept);
    if (c->kept) {
        free(got);
        got = check_read(kept, NULL);
        cr_assert_str_eq(got, c->before);
    }
    run_dir_close(&d);
    free(want);
    free(got);
    free(kept);
    free(path);
}

/* A folder from somebody else must not make a run write elsewhere, or wait for ever. */
Test(train, journal_is_a_file_of_its_own) {
    char *path = check_path("journal"), *victim = check_path("victim"), *got;
    RunDir d = journal_dir();
    Journal j;
    Err e = {0};
    check_write(victim, "mine\n", 5);
    cr_assert_eq(symlink("victim", path), 0);
    cr_assert(!journal_open(&j, &d, "journal", METRICS_MARK, -1, true, &e) && e.status == EXIT_INPUT, "%s", e.msg);
    journal_close(&j);
    got = check_read(victim, NULL);
    cr_assert_str_eq(got, "mine\n");
    char *kept = check_path("old-journal");
    cr_assert(!check_exists(kept), "a link's target was copied");
    free(kept);
    cr_assert(!unlink(path) && !mkfifo(path, 0600));
    for (int step = -1; step <= 1; step += 2) {
        e = (Err){0};
        cr_assert(!journal_open(&j, &d, "journal", METRICS_MARK, step, true, &e) && e.status == EXIT_INPUT, "%s",
                  e.msg);
        cr_assert(strstr(e.msg, "pipe"), "%s", e.msg);
        journal_close(&j);
    }
    run_dir_close(&d);
    free(got);
    free(victim);
    free(path);
}

Test(train, journal_samples_cannot_look_like_records) {
    char *path = check_path("samples"), *got;
    RunDir d = journal_dir();
    Journal j;
    Err e = {0};
    cr_assert(journal_open(&j, &d, "samples", SAMPLES_MARK, -1, true, &e), "%s", e.msg);
    static const char text[] = "a\n== step 3 ==\nb\0\x1b[2J\xff";
    cr_assert(journal_sample(&j, 2, "", text, sizeof text - 1, &e) && journal_sample(&j, 4, "a", "abc", 3, &e));
    journal_close(&j);
    cr_assert(journal_open(&j, &d, "samples", SAMPLES_MARK, 2, true, &e), "%s", e.msg);
    journal_close(&j);
    got = check_read(path, NULL);
    cr_assert_str_eq(got, "== step 2 ==\n  a\n  == step 3 ==\n  b\\x00\\x1b[2J\xef\xbf\xbd\n");
    run_dir_close(&d);
    free(got);
    free(path);
}

Test(train, journal_records_are_json) {
    char *path = check_path("metrics");
    RunDir d = journal_dir();
    Journal j;
    Err e = {0};
    cr_assert(journal_open(&j, &d, "metrics", METRICS_MARK, -1, true, &e), "%s", e.msg);
    run_dir_close(&d);
    TrainRecord r = {.step = 7,
                     .tokens = 1 << 20,
                     .loss = 1.0 / 3,
                     .lr = 1e-5,
                     .grad_norm = 2,
                     .tok_s = 1e6,
                     .mfu = -1,
                     .elapsed = 1.5};
    cr_assert(journal_train(&j, &r, &e) && journal_val(&j, &(ValRecord){.step = 7, .tokens = 100, .loss = 2.5}, &e));
    r.stage = "a-1", r.reports = true, r.cr = 4.0 / 3, r.cr_loss = 0.125, r.has_epoch = true, r.epoch = 2.25;
    cr_assert(journal_train(&j, &r, &e));
    r.cr = INFINITY;
    cr_assert(journal_val(&j, &(ValRecord){7, 100, 2.5, "a-1", true, INFINITY, false, 0, 0}, &e) &&
              journal_train(&j, &r, &e) &&
              journal_val(&j, &(ValRecord){8, 100, 2.5, NULL, false, 0, true, 0.25, 1.0 / 3}, &e));
    journal_close(&j);
    size_t n;
    char *got = check_read(path, &n), *line = got;
    const char *want[] = {
        "{\"step\":7,\"loss\":0.3333333333,\"lr\":1e-05,\"grad_norm\":2,\"tokens\":1048576,\"tok_s\":1e+06,"
        "\"mfu\":null,\"elapsed\":1.500}\n",
        "{\"step\":7,\"val_loss\":2.5,\"val_tokens\":100}\n",
        "{\"step\":7,\"stage\":\"a-1\",\"loss\":0.3333333333,\"cr\":1.333333333,\"cr_loss\":0.125,\"lr\":1e-05,"
        "\"grad_norm\":2,\"tokens\":1048576,\"epoch\":2.25,\"tok_s\":1e+06,\"mfu\":null,\"elapsed\":1.500}\n",
        "{\"step\":7,\"stage\":\"a-1\",\"val_loss\":2.5,\"cr\":null,\"val_tokens\":100}\n",
        "{\"step\":7,\"stage\":\"a-1\",\"loss\":0.3333333333,\"cr\":null,\"cr_loss\":0.125,\"lr\":1e-05,"
        "\"grad_norm\":2,\"tokens\":1048576,\"epoch\":2.25,\"tok_s\":1e+06,\"mfu\":null,\"elapsed\":1.500}\n",
        "{\"step\":8,\"val_loss\":2.5,\"val_tokens\":100,\"val_acc\":0.25,\"val_acc_all\":0.3333333333}\n"};
    for (int i = 0; i < 6; i++, line = strchr(line, '\n') + 1) {
        cr_assert_eq(strncmp(line, want[i], strlen(want[i])), 0, "%s", line);
        json_t *o = json_parse(line, strlen(want[i]), "line", NULL, &e);
        cr_assert(o, "%s", e.msg);
        json_decref(o);
    }
    free(got);
    free(path);
}

/* ---- the progress line ----------------------------------------------------------------------------------------------
 */

Test(train, progress_line_keeps_its_eta) {
    Progress p = {.total = 2000};
    Shown s = {.step = 1500,
               .loss = 2.34567,
               .lr = 1e-3,
               .grad_norm = 0.123456,
               .tok_s = 12345,
               .mfu = 0.375,
               .val_loss = 0.0001234567,
               .has_val = true,
               .stage = "long",
               .reports = true,
               .cr = 1.5,
               .skipped = 3};
    char line[PROGRESS_LINE];
    progress_line(&p, &s, 75, 0, line);
    cr_assert_str_eq(line, "step 1500/2000 long  loss 2.3457  val 0.0001235  cr 1.50  lr 1.00e-03  norm 0.1235  "
                           "skipped 3  12345 tok/s  mfu 37.5%  ETA 1m16s");
    int full = (int)strlen(line);
    for (int w = full + 1; w >= 1; w--) {
        progress_line(&p, &s, 75, w, line);
        cr_assert((int)strlen(line) <= w, "%d columns: '%s'", w, line);
        cr_assert(w < 9 || strstr(line, "ETA 1m16s"), "%d columns: '%s'", w, line);
        cr_assert(w < 30 || !strncmp(line, "step 1500/2000", 14), "%d columns: '%s'", w, line);
        cr_assert(w < 40 || strstr(line, "loss 2.3457"), "%d columns: '%s'", w, line);
        cr_assert(strstr(line, "norm") == NULL || strstr(line, "tok/s"), "%d columns: '%s'", w, line);
    }
    for (int k = 0; k < 2; k++) {
        s.mfu = k ? 1.25 : -1;
        progress_line(&p, &s, 75, 0, line);
        cr_assert(!strstr(line, "mfu"), "%s", line);
    }
    static const struct {
        double v;
        int least;
        const char *want;
    } numbers[] = {{0, 4, "0.0000"},          {2.5, 4, "2.5000"},         {123.456, 2, "123.46"},
                   {0.5, 4, "0.5000"},        {0.01234567, 4, "0.01235"}, {3.21e-5, 4, "0.00003210"},
                   {3.21e-7, 4, "3.210e-07"}, {0.01234567, 2, "0.01235"}, {INFINITY, 4, "inf"}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cr_assert_str_eq(progress_number((char[32]){0}, numbers[i].v, numbers[i].least), numbers[i].want);
}

/* What is written of a first step: always something, and where it takes long each of its micro-batches. */
Test(train, progress_of_a_first_step) {
    char *path = check_path("out");
    Progress p = {.out = fopen(path, "w")};
    progress_first(&p, 0, 8);
    progress_first(&p, 1, 8); /* too soon */
    p.shown -= 11;
    progress_first(&p, 2, 8);
    p.quiet = true, p.shown -= 11;
    progress_first(&p, 3, 8);
    p.quiet = false, p.live = true, p.shown -= 1;
    progress_first(&p, 4, 8);
    progress_close(&p);
    fclose(p.out);
    progress_first(&(Progress){0}, 0, 8); /* not opened: nothing */
    char *got = check_read(path, NULL);
    cr_assert_str_eq(got, "first step ...\nfirst step: micro-batch 3 of 8 ...\n"
                          "\rfirst step: micro-batch 5 of 8 ...\x1b[K\n");
    free(got), free(path);
}

/* ---- the run folder -------------------------------------------------------------------------------------------------
 */

static void put_step(const char *run, const char *name) {
    char *p = xformat("mkdir -p '%s/%s/trainer' && echo {} > '%s/%s/trainer/state.json'", run, name, run, name);
    cr_assert_eq(system(p), 0);
    free(p);
}
static bool has(const char *run, const char *name) {
    char *p = xformat("%s/%s", run, name);
    bool yes = !access(p, F_OK);
    free(p);
    return yes;
}
static void points(const char *run, const char *link, const char *want) {
    char *p = xformat("%s/%s", run, link), to[64] = "";
    ssize_t n = readlink(p, to, sizeof to - 1);
    cr_assert(n >= 0 ? !strcmp(to, want ? want : "") : !want, "%s is %s, expected %s", link, to, want ? want : "none");
    free(p);
}

Test(train, run_dir_finds_what_is_whole) {
    char *run = check_path("r");
    Err e = {0};
    RunDir d;
    int64_t step;
    put_step(run, "step-000010");
    put_step(run, "step-000200");
    put_step(run, "step-1000000");
    put_step(run, "step-0000300"); /* not as we print it */
    put_step(run, "step-x");
    put_step(run, ".tmp-step-2000000");
    put_step(run, "old-step-3000000");
    char *bare = xformat("mkdir '%s/step-4000000' && touch '%s/.tmp-last'", run, run);
    cr_assert_eq(system(bare), 0);
    cr_assert_not(run_dir_open(&d, run, false, &e));
    cr_assert_eq(e.status, EXIT_INPUT);
    cr_assert(run_dir_open(&d, run, true, &e), "%s", e.msg);
    cr_assert_not(has(run, ".tmp-step-2000000") || has(run, ".tmp-last"), "unfinished things stay");
    cr_assert(run_dir_newest(&d, &step, &e) && step == 1000000, "newest %lld", (long long)step);
    /* back to 200: what is beyond goes aside, keep 1 and the best, 10 */
    cr_assert(run_dir_rewind(&d, 200, true, (Keep){1, true, 10}, &e), "%s", e.msg);
    cr_assert(has(run, "step-000010") && has(run, "step-000200") && has(run, "old-step-1000000") &&
              has(run, "old-step-4000000"));
    cr_assert_not(has(run, "step-1000000") || has(run, "step-4000000"));
    points(run, "last", "step-000200");
    points(run, "best", "step-000010");
    char *p = run_dir_begin(&d, 300, &e);
    cr_assert(p, "%s", e.msg);
    put_step(run, ".tmp-step-000300");
    cr_assert(run_dir_newest(&d, &step, &e) && step == 200, "an unfinished checkpoint was found");
    cr_assert(run_dir_publish(&d, 300, (Keep){1, true, 300}, &e), "%s", e.msg);
    points(run, "last", "step-000300");
    points(run, "best", "step-000300");
    cr_assert_not(has(run, "step-000200") || has(run, "step-000010"), "pruning left too much");
    cr_assert(has(run, "step-0000300") && has(run, "step-x"), "pruning took what is not a checkpoint");
    free(p);
    free(bare);
    run_dir_close(&d);
    cr_assert_not(has(run, "lock"));
    free(run);
}

Test(train, run_dir_lock_and_traces) {
    char *run = check_path("a");
    char *deep = xformat("%s/b/c/", run);
    Err e = {0};
    RunDir d, other;
    cr_assert(run_dir_open(&d, deep, false, &e), "%s", e.msg);
    cr_assert_not(run_dir_open(&other, deep, true, &e), "two owners");
    cr_assert_eq(e.status, EXIT_INPUT);
    char pid[32];
    snprintf(pid, sizeof pid, "process %d ", (int)getpid());
    cr_assert(strstr(e.msg, pid), "%s", e.msg);
    run_dir_close(&d);
    cr_assert_not(check_exists(run), "a folder that was never used stays");
    e = (Err){0};
    cr_assert(run_dir_open(&d, deep, false, &e) && run_dir_write(&d, "config.yaml", "x\n", &e), "%s", e.msg);
    run_dir_close(&d);
    cr_assert_eq(check_entries(deep), 1);
    free(deep);
    free(run);
}

/* ---- checkpoints ----------------------------------------------------------------------------------------------------
 */

static Trainer *saved_run(Config *cfg, char **dir) {
    Trainer *t = trial_open(cfg, yaml, 0, NULL);
    Err e = {0};
    TrainRecord r;
    cr_assert(run_dir_open(&t->run->dir, cfg->run.dir, false, &e), "%s", e.msg);
    cr_assert(journal_open(&t->run->metrics, &t->run->dir, "metrics.jsonl", METRICS_MARK, -1, true, &e), "%s", e.msg);
    cr_assert(trainer_step(t, &r, &e) && trainer_step(t, &r, &e), "%s", e.msg);
    t->run->state.has_best = true, t->run->state.best_loss = 1.0 / 3, t->run->state.best_step = 2;
    cr_assert(checkpoint_save(t, &e), "%s", e.msg);
    *dir = run_dir_step(&t->run->dir, 2);
    return t;
}
static void close_run(Trainer *t, Config *cfg, char *dir) {
    journal_close(&t->run->metrics);
    run_dir_close(&t->run->dir);
    trial_close(t, cfg);
    free(dir);
}

Test(train, weights_that_are_not_finite_are_not_saved) {
    Config cfg;
    char *dir;
    Trainer *t = saved_run(&cfg, &dir);
    Err e = {0};
    TrainRecord r;
    cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
    R(t->params.p[1].t[PARAM_WEIGHT])[0] = NAN;
    cr_assert(!checkpoint_save(t, &e) && e.status == EXIT_DIVERGED && strstr(e.msg, t->params.p[1].name), "%s", e.msg);
    cr_assert(run_dir_has_step(&t->run->dir, 2, &e) && !run_dir_has_step(&t->run->dir, 3, &e) && !e.status);
    close_run(t, &cfg, dir);
}

Test(train, checkpoint_round_trip) {
    Config a, b;
    char *dir;
    Trainer *t = saved_run(&a, &dir), *u = trial_open(&b, yaml, 0, NULL);
    Err e = {0};
    cr_assert(checkpoint_load(u, dir, &e), "%s", e.msg);
    cr_assert(u->run->state.step == 2 && u->run->state.tokens == t->run->state.tokens && u->run->state.has_best &&
              u->run->state.best_step == 2);
    cr_assert(u->run->state.best_loss == 1.0 / 3, "%.17g", u->run->state.best_loss);
    for (int i = 0; i < t->params.n; i++)
        for (int role = 0; role < PARAM_ROLES; role++)
            if (role != PARAM_GRAD)
                CHECK_BYTES(t->params.p[i].name, u->params.p[i].t[role].p, t->params.p[i].t[role].p,
                            tensor_bytes(t->params.p[i].t[role]));
    TrainRecord r, s;
    cr_assert(trainer_step(t, &r, &e) && trainer_step(u, &s, &e), "%s", e.msg);
    cr_assert(r.loss == s.loss && r.grad_norm == s.grad_norm, "%g %g", r.loss, s.loss);
    trial_close(u, &b);
    close_run(t, &a, dir);
}

/* What is done to a checkpoint (a shell command in its directory) and what the refusal must name. */
static const struct {
    const char *damage, *names;
} damages[] = {
    {"rm trainer/state.json", "state.json"},
    {": > trainer/state.json", "state.json"},
    {"printf '[1]' > trainer/state.json", "state.json"},
    {"sed -i 's/\"format\": 2/\"format\": 3/' trainer/state.json", "format 3, expected 1 to 2"},
    {"sed -i 's/\"step\": 2,/\"step\": -2,/' trainer/state.json", "\"step\""},
    {"sed -i 's/\"step\": 2,/\"step\": 1e3,/' trainer/state.json", "\"step\""},
    {"sed -i 's/\"step\": 2,/\"step\": 99999999999999999999,/' trainer/state.json", "state.json"},
    {"sed -i 's/\"tokens\": 192/\"tokens\": 193/' trainer/state.json", "193 tokens after 2 steps"},
    {"sed -i '/\"tokens\"/d' trainer/state.json", "\"tokens\" is missing"},
    {"sed -i 's/0.3333333333333333[0-9]*/\"x\"/' trainer/state.json", "\"best\""},
    {"sed -i 's/\"best\"/\"beast\"/' trainer/state.json", "\"best\""},
    {"sed -i 's/\"step\": 2,/\"step\": 3,/; s/192/288/' trainer/state.json", "renamed or mixed"},
    {"sed -i 's/\"share\"/\"shore\"/' trainer/clock.json", "clock.json: \"share\""},
    {"sed -i 's/\"elapsed\": [^,]*/\"elapsed\": -1/' trainer/clock.json", "clock.json: \"elapsed\""},
    {": > trainer/clock.json", "clock.json"},
    {"rm trainer/config.yaml", "config.yaml"},
    {"sed -i 's/seq_len: 16/seq_len: 8/' trainer/config.yaml", "data.seq_len"},
    {"sed -i 's/clip: 0.5/clip: 0.6/' trainer/config.yaml", "optim.clip"},
    {"rm model.safetensors", "model.safetensors"},
    {"truncate -s -4 model.safetensors", "model.safetensors"},
    {"rm trainer/optimizer.safetensors", "optimizer.safetensors"},
    {"truncate -s -4 trainer/optimizer.safetensors", "optimizer.safetensors"},
    {"sed -i 's/exp_avg_sq.model.norm/exp_avg_sq.model.nerm/' trainer/optimizer.safetensors", "exp_avg_sq.model.n"},
    {"cp model.safetensors trainer/optimizer.safetensors", "exp_avg."},
    {"rm config.json", "config.json"},
    {"truncate -s 40 config.json", "config.json"},
};
ParameterizedTestParameters(train, damaged_checkpoint_is_refused) {
    static int which[sizeof damages / sizeof *damages];
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) which[i] = (int)i;
    return cr_make_param_array(int, which, sizeof damages / sizeof *damages);
}
ParameterizedTest(int *which, train, damaged_checkpoint_is_refused) {
    Config a, b;
    char *dir;
    Trainer *t = saved_run(&a, &dir), *u = trial_open(&b, yaml, 0, NULL);
    Err e = {0};
    cr_assert(checkpoint_load(u, dir, &e), "undamaged: %s", e.msg);
    char *cmd =
        xformat("cd '%s' && cp -a . ../copy && %s && ! diff -rq . ../copy >/dev/null", dir, damages[*which].damage);
    cr_assert_eq(system(cmd), 0, "the damage changed nothing: %s", damages[*which].damage);
    cr_assert_not(checkpoint_load(u, dir, &e), "taken in spite of: %s", damages[*which].damage);
    cr_assert_eq(e.status, EXIT_INPUT, "status %d: %s", e.status, e.msg);
    cr_assert(strstr(e.msg, damages[*which].names), "expected '%s' in: %s", damages[*which].names, e.msg);
    cr_assert(strlen(e.msg) <= 300 && !strchr(e.msg, '\n'), "%s", e.msg);
    free(cmd);
    trial_close(u, &b);
    close_run(t, &a, dir);
}
