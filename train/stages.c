#include "stages.h"
#include "../ops/file.h"
#include "../ops/oom.h"
#include "checkpoint.h"
#include "saver.h"

/* ---- before the first -----------------------------------------------------------------------------------------------
 */

/* Every tensor's name and shape, a line each. */
static void see_line(Fields *f, Tensor *t, const char *path, unsigned flags) {
    char shape[64];
    (void)flags;
    fprintf(f->ctx, "%s %s\n", path, tensor_shape(*t, shape));
}
static char *tensors(const Model *m) {
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
static bool same_tensors(const char *first, const char *now, Err *e) {
    for (;;) {
        int n = (int)strcspn(first, "\n"), k = (int)strcspn(now, "\n");
        if (n != k || memcmp(first, now, (size_t)n))
            return err_input(e, "has the tensor %.*s where the first has %.*s; a stage may not change the tensors",
                             k ? k : 4, k ? now : "none", n ? n : 4, n ? first : "none");
        if (!n) return true;
        first += n + 1, now += k + 1;
    }
}

static bool check(Trainer *t, Config *run, int k, bool reads, char **first, Err *e) {
    if (!trainer_open_stage(t, run, k, true, e)) return false;
    char *now = tensors(&t->model);
    bool ok = compression_check(&t->model, &t->cfg->train.compression, e) && trainer_fits(t, e) &&
              (!*first || same_tensors(*first, now, e)) && (!reads || trainer_reads(t, e));
    if (*first)
        free(now);
    else
        *first = now;
    trainer_close(t);
    return ok;
}

bool stages_check(Trainer *t, Config *run, int from, Err *e) {
    char *first = NULL;
    bool ok = true;
    for (int k = from; ok && k < config_stages(run); k++) {
        Stage s = config_stage(run, k), before = config_stage(run, k > from ? k - 1 : k);
        Err why = {0};
        /* A text that is too short shall not be found at the end of the stage before. */
        bool reads = memcmp(&s.cfg->data, &before.cfg->data, sizeof s.cfg->data) != 0;
        ok = check(t, run, k, reads, &first, &why);
        if (!ok && why.status == EXIT_WORLD) err_world(e, "%s%s%.250s", s.name, *s.name ? ": " : "", why.msg);
        if (!ok && why.status != EXIT_WORLD) err_input(e, *s.name ? "stage %s: %.250s" : "%s%s", s.name, why.msg);
    }
    free(first);
    return ok;
}

/* ---- from one to the next -------------------------------------------------------------------------------------------
 */

void stages_regions(const Trainer *t, bool peaks, Regions *r) {
    trainer_regions(t, peaks, r);
    if (t->most[peaks].total > r->total) *r = t->most[peaks];
}

bool stages_next(Trainer *t, Err *e) {
    for (int peaks = 0; peaks < 2; peaks++) stages_regions(t, peaks, &t->most[peaks]);
    Trainer was = *t;
    char *dir = run_dir_step(&was.dir, was.state.step);
    CHECK(was.saved == was.state.step, "step %lld is not saved", (long long)was.state.step);
    trainer_close(t);
    bool ok = trainer_open_stage(t, was.run, was.stage + 1, false, e);
    memcpy(t->most, was.most, sizeof t->most);
    t->dir = was.dir, t->metrics = was.metrics, t->sample_file = was.sample_file, t->events = was.events,
    t->progress = was.progress, t->chat = was.chat, t->generation = was.generation, t->source = was.source,
    t->base = was.base;
    t->saved = was.saved, t->peak_anon = was.peak_anon;
    t->val = was.val, t->val_step = was.val_step;
    t->tokens0 = was.tokens0, t->start = was.start, t->before = was.before;
    t->flops = was.flops + was.flops_per_token * (double)(was.state.tokens - was.flops_from);
    t->flops_from = was.state.tokens;
    t->state = was.state;
    /* Losses under other settings are no measure of what is best under these. */
    t->state.has_best = false;
    skip_forget(&t->state.skip);
    ok = ok && dist_same(t->comm, "data", t->text.hash, e) && checkpoint_load_numbers(t, dir, was.cfg, e);
    saver_start(t);
    free(dir);
    return ok;
}
