#include "dist.h"
#include "train/save/checkpoint.h"
#include "train/save/saver.h"
#include "trial.h"
#include <sys/stat.h>

enum { TEXT = 20000, DEADLINE = 60 };

static char *text_path(void) {
    char *path = check_path("text.txt");
    if (check_exists(path)) return path;
    char *body = xcalloc(TEXT, 1);
    for (size_t i = 0; i < TEXT; i++) body[i] = (char)("etaoin shrdlu\n"[rng_mix(7, i / 3 % 600) % 14]);
    check_write(path, body, TEXT);
    free(body);
    return path;
}

static bool settings(Config *cfg, const DistJob *j, const char *text, Err *e) {
    char *given[DIST_OVER + 8], *data = xformat("data.train=%s", text);
    int n = 0;
    bool task = strstr(j->config, "mqar"), own = task || strstr(j->config, "sft");
    if (!own) given[n++] = data;
    if (!own) given[n++] = "data.seq_len=16";
    given[n++] = "train.dtype=f32";
    given[n++] = "train.eval_tokens=200";
    given[n++] = "run.threads=1";
    for (int i = 0; j->over[i]; i++) given[n++] = (char *)j->over[i];
    bool ok = config_read(cfg, j->config, n, given, e);
    cfg->quiet = true;
    free(data);
    return ok;
}
void dist_config(Config *cfg, const DistJob *j) {
    char *text = text_path();
    Err e = {0};
    cr_assert(settings(cfg, j, text, &e), "%s", e.msg);
    free(text);
}

typedef struct {
    const DistJob *job;
    const char *text;
    DistRun *run;
} Context;

static void weights(const Trainer *t, DistRun *r) {
    for (int pass = 0; pass < 2; pass++) {
        r->n = 0;
        for (int i = 0; i < t->params.n; i++) {
            Tensor w = t->params.p[i].t[PARAM_WEIGHT];
            if (pass) memcpy(r->w + r->n, w.p, tensor_bytes(w));
            r->n += tensor_count(w);
        }
        if (!pass) r->w = xcalloc(r->n, sizeof *r->w);
    }
}

static bool steps(Trainer *t, const DistJob *j, DistRun *r, Err *e) {
    for (int i = 0; i < j->steps; i++) {
        TrainRecord rec = {0};
        size_t before = t->run->comm ? t->run->comm->sent : 0;
        if (!trainer_step(t, &rec, e)) return false;
        r->loss[i] = rec.loss;
        r->norm[i] = rec.grad_norm;
        r->sent += t->run->comm ? t->run->comm->sent - before : 0;
        if (j->each && !j->each(t, i, j->ctx, e)) return false;
    }
    size_t before = t->run->comm ? t->run->comm->sent : 0;
    if (!dist_weights(&t->dist, e)) return false;
    r->sent += t->run->comm ? t->run->comm->sent - before : 0;
    ValRecord v;
    if (!trainer_validate(t, &v, e)) return false;
    r->val = v.loss;
    return true;
}

/* A checkpoint as in a run folder. */
static bool save(Trainer *t, const char *dir, Err *e) {
    bool ok = true;
    if (trainer_writes(t)) {
        ok = run_dir_open(&t->run->dir, dir, false, e) && run_dir_write(&t->run->dir, "config.yaml", "", e);
    } else {
        t->run->dir.path = xstrdup(dir);
    }
    saver_start(t);
    ok = ok && saver_finish(t, e);
    if (trainer_writes(t))
        run_dir_close(&t->run->dir);
    else
        free(t->run->dir.path);
    return ok;
}

static bool rank(Comm *c, void *ctx, Err *e) {
    const Context *x = ctx;
    const DistJob *j = x->job;
    Config *cfg = xcalloc(1, sizeof *cfg);
    Trainer *t = xcalloc(1, sizeof *t);
    DistRun *r = &x->run[dist_rank(c)];
    bool ok = settings(cfg, j, x->text, e);
    if (ok) {
        cfg->comm = c;
        ok = trial_trainer(t, cfg, j->stage_of_run, false, e);
        if (ok) {
            model_init(&t->model, 3);
            if (j->from) ok = checkpoint_load(t, j->from, e);
            trainer_regions(t, false, &r->mapped);
            if (!j->from) t->run->state.step = t->first;
            ok = ok && steps(t, j, r, e) && (!j->to || save(t, j->to, e));
            trainer_regions(t, true, &r->peaks);
            weights(t, r);
            if (c) r->log = c->log, r->calls = c->calls;
            trial_trainer_close(t);
        }
        config_free(cfg);
    }
    if (!ok) comm_stop(c);
    free(t);
    free(cfg);
    return ok;
}

bool dist_try(const DistJob *j, int W, const CommFault *f, int faults, DistRun *run, Err *e) {
    char *text = text_path();
    Context x = {j, text, run};
    memset(run, 0, (size_t)W * sizeof *run);
    memset(e, 0, (size_t)W * sizeof *e);
    bool ok = W == 1 ? rank(NULL, &x, e) : comm_threads_run(W, DEADLINE * check_slow(), f, faults, rank, &x, e);
    free(text);
    return ok;
}
void dist_train(const DistJob *j, int W, DistRun *run) {
    Err e[DIST_RANKS];
    bool ok = dist_try(j, W, NULL, 0, run, e);
    for (int r = 0; r < W; r++) cr_assert(!e[r].status, "%s on %d ranks: %s", j->config, W, e[r].msg);
    cr_assert(ok);
}
void dist_free(int W, DistRun *run) {
    for (int r = 0; r < W; r++) {
        free(run[r].w);
        regions_free(&run[r].mapped);
        regions_free(&run[r].peaks);
    }
}

void dist_same_run(const char *what, const DistJob *j, const DistRun *got, const DistRun *want) {
    for (int i = 0; i < j->steps; i++) {
        cr_assert(got->loss[i] == want->loss[i], "%s: loss of step %d is %.17g, expected %.17g", what, i + 1,
                  got->loss[i], want->loss[i]);
        cr_assert(got->norm[i] == want->norm[i], "%s: norm of step %d is %.17g, expected %.17g", what, i + 1,
                  got->norm[i], want->norm[i]);
    }
    cr_assert(got->val == want->val, "%s: validation %.17g, expected %.17g", what, got->val, want->val);
    cr_assert_eq(got->n, want->n);
    CHECK_BYTES(what, got->w, want->w, got->n * sizeof *got->w);
}
