#include "stages.h"
#include "ops/file.h"
#include "ops/oom.h"
#include "train/save/checkpoint.h"
#include "train/save/saver.h"

/* ---- before the first -----------------------------------------------------------------------------------------------
 */

/* Every tensor's name and shape, a line each. */
static void see_line(Fields *f, Tensor *t, const char *path, unsigned flags) {
    char shape[64];
    (void)flags;
    fprintf(f->ctx, "%s %s\n", path, tensor_shape(*t, shape));
}
static char *stages_tensors(const Model *m) {
    char *text = NULL;
    size_t n;
    FILE *out = oom_stream(&text, &n);
    Fields f = {.see = see_line, .ctx = out};
    Weights w = m->w;
    model_fields(m, &w, &f);
    fclose(out);
    return text;
}

/* The first line that differs is named. */
static bool stages_same_tensors(const char *first, const char *now, Err *e) {
    for (;;) {
        int n = (int)strcspn(first, "\n"), k = (int)strcspn(now, "\n");
        if (n != k || memcmp(first, now, (size_t)n))
            return err_input(
                e, "has the tensor %.*s where the first stage has %.*s; a stage may not change the model's tensors",
                k ? k : 4, k ? now : "none", n ? n : 4, n ? first : "none");
        if (!n) return true;
        first += n + 1, now += k + 1;
    }
}

static bool check(Trainer *t, TrainRun *run, int k, bool reads, char **first, Err *e) {
    if (!trainer_open(t, run, k, true, e)) return false;
    char *now = stages_tensors(&t->model);
    bool ok = compression_check(&t->model, &t->cfg->train.compression, e) && trainer_fits(t, e) &&
              (!*first || stages_same_tensors(*first, now, e)) && (!reads || trainer_reads(t, e));
    if (*first)
        free(now);
    else
        *first = now;
    trainer_close(t);
    return ok;
}

bool stages_check(Trainer *t, Config *run, int from, Err *e) {
    TrainRun tried;
    char *first = NULL;
    bool ok = true;
    train_run_begin(&tried, run);
    for (int k = from; ok && k < config_stages(run); k++) {
        Stage s = config_stage(run, k), before = config_stage(run, k > from ? k - 1 : k);
        Err why = {0};
        /* A text that is too short shall not be found at the end of the stage before. */
        bool reads = memcmp(&s.cfg->data, &before.cfg->data, sizeof s.cfg->data) != 0;
        ok = check(t, &tried, k, reads, &first, &why);
        if (!ok && why.status == EXIT_RUNTIME) err_runtime(e, "%s%s%.250s", s.name, *s.name ? ": " : "", why.msg);
        if (!ok && why.status != EXIT_RUNTIME) err_input(e, *s.name ? "stage %s: %.250s" : "%s%s", s.name, why.msg);
    }
    free(first);
    train_run_end(&tried);
    t->run = NULL; /* it named `tried` */
    return ok;
}

/* ---- from one to the next -------------------------------------------------------------------------------------------
 */

void stages_regions(const Trainer *t, bool peaks, Regions *r) {
    const Regions *most = &t->run->most[peaks];
    trainer_regions(t, peaks, r);
    if (most->total > r->total) regions_copy(r, most);
}

/* Copies the results of a stage into the run before closing it. */
static void stages_leave(Trainer *t) {
    TrainRun *run = t->run;
    for (int peaks = 0; peaks < 2; peaks++) {
        Regions most;
        stages_regions(t, peaks, &most);
        regions_free(&run->most[peaks]);
        run->most[peaks] = most;
    }
    run->flops += t->flops_per_token * (double)(run->state.tokens - run->flops_from);
    run->flops_from = run->state.tokens;
}

bool stages_next(Trainer *t, Err *e) {
    TrainRun *run = t->run;
    const Config *was = t->cfg;
    const int next = t->stage + 1;
    CHECK(run->saved == run->state.step, "step %lld is not saved", (long long)run->state.step);
    char *dir = run_dir_step(&run->dir, run->state.step);
    stages_leave(t);
    trainer_close(t);
    bool ok = trainer_open(t, run, next, false, e);
    /* Losses under other settings are no measure of what is best under these. */
    run->state.has_best = false;
    skip_forget(&run->state.skip);
    ok = ok && dist_same(run->comm, "data", t->text.hash, e) && checkpoint_load_numbers(t, dir, was, e);
    saver_start(t);
    free(dir);
    return ok;
}
