/* test_gradient.c: gradients of every registered mixer and feed-forward part through the whole model; recompute,
 * repetition, batching and packing change nothing. */
#include "ops/device.h"
#include "tests/lib/differ.h"
#include "tests/lib/zoo.h"

static real weight_of(int row) {
    return (real)(0.2 + 0.1 * (double)(row % 7));
} /* the loss is sum weight_of(i) nll_i */
static void loss_weights(real *g, int n) {
    for (int i = 0; i < n; i++) g[i] = weight_of(i);
}
static void gradients(Model *m, Workspace *work, const Pass *p, real *nll) {
    real g[ZOO_ROWS];
    loss_weights(g, p->b.N);
    model_zero_grad(m);
    model_train(m, work, &p->b, p->tok, p->tgt, g, nll);
}

typedef struct {
    Tensor *t;
    const char **path;
    unsigned *flags;
    int n;
} List;
static void see_list(Fields *f, Tensor *t, const char *path, unsigned flags) {
    List *l = f->ctx;
    l->t = xrealloc(l->t, (size_t)l->n + 1, sizeof *l->t);
    l->path = xrealloc(l->path, (size_t)l->n + 1, sizeof *l->path);
    l->flags = xrealloc(l->flags, (size_t)l->n + 1, sizeof *l->flags);
    l->flags[l->n] = flags;
    l->path[l->n] = xstrdup(path);
    l->t[l->n++] = *t;
}
static List list_of(Model *m, Weights *w) {
    List l = {0};
    Fields f = {.see = see_list, .ctx = &l};
    model_fields(m, w, &f);
    return l;
}
static real *snapshot(const List *l) {
    size_t n = 0, at = 0;
    for (int i = 0; i < l->n; i++) n += tensor_count(l->t[i]);
    real *all = xcalloc(n, sizeof *all);
    for (int i = 0; i < l->n; at += tensor_count(l->t[i]), i++) memcpy(all + at, l->t[i].p, tensor_bytes(l->t[i]));
    return all;
}
static void compare(const char *what, const List *l, const real *want, double tol) {
    for (int i = 0; i < l->n; want += tensor_count(l->t[i]), i++) {
        char name[192];
        snprintf(name, sizeof name, "%s: %s", what, l->path[i]);
        if (tol == 0)
            CHECK_BYTES(name, l->t[i].p, want, tensor_bytes(l->t[i]));
        else
            /* the bias of a latent's one decision has no larger elements next to it, and its sum may cancel */
            CHECK_RELATIVE(name, R(l->t[i]), want, tensor_count(l->t[i]),
                           tensor_count(l->t[i]) == 1 && strstr(name, "decide_proj.bias") ? 10 * tol : tol);
    }
}

Test(gradient, every_mixer_is_in_the_zoo) {
    for (int i = 0; mixers[i]; i++) {
        bool found = false;
        char key[96];
        snprintf(key, sizeof key, "\"mixer\":\"%s\"", mixers[i]->name);
        for (int a = 0; a < zoo_count(); a++) found |= strstr(zoo[a].json, key) != NULL;
        cr_assert(found, "mixer %s has no animal in tests/lib/zoo.c", mixers[i]->name);
    }
    for (int i = 0; ffns[i]; i++) {
        bool found = false;
        char key[96];
        snprintf(key, sizeof key, "\"kind\":\"%s\"", ffns[i]->name);
        for (int a = 0; a < zoo_count(); a++) found |= strstr(zoo[a].json, key) != NULL;
        cr_assert(found, "feed-forward %s has no animal in tests/lib/zoo.c", ffns[i]->name);
    }
}

#ifdef KV_DOUBLE
typedef struct {
    Model *m;
    Workspace *work;
    const Pass *p;
    bool noise;
} Whole;
static double loss_of(void *ctx) {
    const Whole *x = ctx;
    Model *m = x->m;
    Workspace *work = x->work;
    const Pass *p = x->p;
    real nll[ZOO_ROWS], g[ZOO_ROWS];
    double sum = 0;
    work->stat_ctx = &sum;
    loss_weights(g, p->b.N);
    if (x->noise)
        model_train(m, work, &p->b, p->tok, p->tgt, g, nll);
    else
        model_loss(m, work, &p->b, p->tok, p->tgt, nll);
    for (int i = 0; i < p->b.N; i++) sum += (double)weight_of(i) * (double)nll[i];
    return sum;
}
/* Differences: per tensor, the worst |analytic - numeric| of a direction by max|analytic|. `damage` plants
 * a mistake in a tensor's gradient of n entries. */
typedef void Damage(real *gradient, size_t n);
static double worst_gradient(Model *m, Workspace *work, const Pass *p, bool noise, char where[256], Damage *damage) {
    double worst = 0, unread = 0;
    real nll[ZOO_ROWS], evaluated[ZOO_ROWS];
    work->mode = RUN_SMOOTH;
    work->stat_loss = zoo_stat_loss, work->stat_ctx = &unread;
    gradients(m, work, p, nll);
    model_loss(m, work, &p->b, p->tok, p->tgt, evaluated); /* cheaper, where it is the same function */
    for (int i = 0; i < p->b.N; i++) noise |= fabs(nll[i] - evaluated[i]) > 1e-12;
    List w = list_of(m, &m->w), g = list_of(m, &m->g);
    real *analytic = snapshot(&g), *a = analytic;
    for (int t = 0; t < w.n; a += tensor_count(w.t[t]), t++) {
        if (w.flags[t] & FIELD_BALANCE) continue; /* chooses, but is in no formula: has no gradient */
        if (damage) damage(a, tensor_count(w.t[t]));
        Differ d = differ_tensor(w.t[t], a, 1e-7, loss_of, &(Whole){m, work, p, noise});
        if (d.numeric == 0) { /* a window of one sees itself alone: queries and keys do not matter; nor does an expert
                                 that nobody chose */
            cr_assert(m->layer[0].rows.window == 1 || strstr(w.path[t], "mlp.experts."),
                      "%s: the loss does not depend on it", w.path[t]);
            cr_assert(d.largest < 1e-12, "%s: %g where the loss does not depend on it", w.path[t], d.largest);
            continue;
        }
        if (!(d.error / d.largest <= worst) && worst == worst) {
            worst = d.error / d.largest;
            snprintf(where, 256, "%s[%zu]: analytic %.12g, numeric %.12g, largest %.3g", w.path[t], d.at,
                     (double)a[d.at], d.want, d.largest);
        }
    }
    free(analytic);
    return worst;
}

static void check_gradient(int i, double dropout, int recompute) {
    ModelCfg cfg;
    Model m;
    Workspace work;
    Device *dev;
    Pass p;
    char where[256] = "";
    zoo_open(&zoo[i], &cfg, &m, &work, &dev,
             (ModelOpts){.train = true,
                         .max_rows = ZOO_ROWS,
                         .max_samples = ZOO_SEQS,
                         .dropout = dropout,
                         .recompute = recompute});
    zoo_whole(&p, cfg.vocab);
    double worst = worst_gradient(&m, &work, &p, dropout > 0, where, NULL);
    cr_assert(worst <= 1e-7, "%s: %.3g at %s", zoo[i].name, worst, where);
    zoo_close(&cfg, &m, &work, dev);
}
Test(gradient, finite_differences, .timeout = 300) {
    for (int i = 0; i < zoo_count(); i++) check_gradient(i, 0, 0);
}
Test(gradient, finite_differences_with_dropout_and_recompute, .timeout = 300) {
    check_gradient(zoo_find("gqa"), 0.3, 1);
    check_gradient(zoo_find("publisher and readers (YOCO)"), 0.3, -1);
    check_gradient(zoo_find("dmc read by others"), 0.3, -1);
    check_gradient(zoo_find("kda and nope attention"), 0.3, -1);
    check_gradient(zoo_find("mixture, sigmoid, groups, shared"), 0.3, -1);
}
/* All entries wrong by 1e-5 of themselves; one entry of middling size wrong by 1e-3; two of one direction wrong by
 * equal amounts of opposite sign. Each must miss the bound tenfold. */
static void all_entries(real *g, size_t n) {
    for (size_t i = 0; i < n; i++) g[i] *= 1 + (real)1e-5;
}
static size_t median_of(const real *g, size_t n) { /* the entry with as many smaller ones as larger ones */
    for (size_t i = 0; i < n; i++) {
        size_t below = 0;
        for (size_t k = 0; k < n; k++) below += fabs(g[k]) < fabs(g[i]) || (fabs(g[k]) == fabs(g[i]) && k < i);
        if (below == n / 2) return i;
    }
    return 0;
}
static void one_entry(real *g, size_t n) { g[median_of(g, n)] *= 1 + (real)1e-3; }
static void two_entries(real *g, size_t n) { /* of one direction, by as much, one up and one down */
    size_t by = (n + DIFFER_GROUP - 1) / DIFFER_GROUP, i = median_of(g, n), k = i >= by ? i - by : i + by;
    real error = g[i] * (real)1e-3;
    g[i] += error;
    if (k < n) g[k] -= error;
}
Test(gradient, the_bound_breaks_under_a_planted_mistake) {
    Damage *const mistakes[] = {all_entries, one_entry, two_entries};
    for (size_t k = 0; k < sizeof mistakes / sizeof *mistakes; k++) {
        ModelCfg cfg;
        Model m;
        Workspace work;
        Device *dev;
        Pass p;
        char where[256];
        zoo_open(&zoo[0], &cfg, &m, &work, &dev,
                 (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
        zoo_whole(&p, cfg.vocab);
        double worst = worst_gradient(&m, &work, &p, false, where, mistakes[k]);
        cr_assert(worst > 1e-6, "mistake %zu: %.3g at %s", k, worst, where);
        zoo_close(&cfg, &m, &work, dev);
    }
}
#endif

/* Bit for bit: recomputed layers, a repeated step. */
Test(gradient, recompute_and_repetition_change_nothing, .timeout = 120) {
    for (int i = 0; i < zoo_count(); i++) {
        real *want = NULL, nll[ZOO_ROWS], again[ZOO_ROWS];
        for (int recompute = 0; recompute <= 4; recompute++)
            for (int repeat = 0; repeat < 2; repeat++) {
                ModelCfg cfg;
                Model m;
                Workspace work;
                Device *dev;
                Pass p;
                char what[128];
                zoo_open(&zoo[i], &cfg, &m, &work, &dev,
                         (ModelOpts){.train = true,
                                     .max_rows = ZOO_ROWS,
                                     .max_samples = ZOO_SEQS,
                                     .dropout = 0.1,
                                     .recompute = recompute == 4 ? -1 : recompute});
                zoo_whole(&p, cfg.vocab);
                double asked = 0;
                work.seed = 3, work.step = 5;
                work.stat_loss = zoo_stat_loss, work.stat_ctx = &asked;
                for (int k = 0; k <= repeat; k++) gradients(&m, &work, &p, want ? again : nll);
                List g = list_of(&m, &m.g);
                snprintf(what, sizeof what, "%s, %d recomputed, step %d", zoo[i].name, recompute, repeat);
                if (!want)
                    want = snapshot(&g);
                else {
                    compare(what, &g, want, 0);
                    CHECK_BYTES(what, again, nll, sizeof(real) * (size_t)p.b.N);
                }
                zoo_close(&cfg, &m, &work, dev);
            }
        free(want);
    }
}

/* The region peaks of real passes are those that were measured. */
Test(gradient, measured_bytes_are_used_bytes) {
    for (int i = 0; i < zoo_count(); i++) {
        ModelCfg cfg, cfg2;
        Model m, dry;
        Workspace work, none;
        Device *dev, *dev2;
        Pass p;
        real nll[ZOO_ROWS];
        ModelOpts opts = {.train = true, .max_rows = 21, .max_samples = ZOO_SEQS, .recompute = i % 3};
        zoo_open(&zoo[i], &cfg, &m, &work, &dev, opts);
        zoo_whole(&p, cfg.vocab);
        gradients(&m, &work, &p, nll);
        model_loss(&m, &work, &p.b, p.tok, p.tgt, nll);
        Err e = {0};
        opts.dry = true;
        cr_assert(model_cfg_from_json(&cfg2, zoo[i].json, strlen(zoo[i].json), "zoo", &e), "%s", e.msg);
        cr_assert(device_open(&dev2, "cpu", 2, &e) && zoo_model(&dry, &none, dev2, &cfg2, opts, &e), "%s", e.msg);
        cr_assert_eq(m.aw.peak, dry.aw.peak);
        cr_assert_eq(m.ag.peak, dry.ag.peak);
        cr_assert_eq(work.keep.peak, none.keep.peak, "%s: saved %zu, planned %zu", zoo[i].name, work.keep.peak,
                     none.keep.peak);
        cr_assert_eq(work.scratch.peak, none.scratch.peak, "%s: scratch %zu, planned %zu", zoo[i].name,
                     work.scratch.peak, none.scratch.peak);
        zoo_close(&cfg, &m, &work, dev);
        workspace_close(&none);
        model_close(&dry);
        model_cfg_free(&cfg2);
        device_close(dev2);
    }
}

/* Each sequence alone (its dropout's noise included), and each document alone, add up to the batch. */
static void check_sum(int i, bool documents) {
    const double tol = REAL == F64 ? 1e-12 : 1e-5;
    ModelCfg cfg;
    Model m;
    Workspace work;
    Device *dev;
    Pass p, one;
    real nll[ZOO_ROWS], g[ZOO_ROWS], all[ZOO_ROWS], part[ZOO_ROWS];
    zoo_open(&zoo[i], &cfg, &m, &work, &dev,
             (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS, .dropout = documents ? 0 : 0.2});
    zoo_whole(&p, cfg.vocab);
    double asked = 0;
    work.mode = documents ? RUN_STILL : 0; /* noise is by row of the sample, the loss on statistics by sequence */
    work.stat_loss = documents ? NULL : zoo_stat_loss, work.stat_ctx = &asked;
    gradients(&m, &work, &p, all);
    List list = list_of(&m, &m.g);
    real *want = snapshot(&list);
    model_zero_grad(&m);
    for (int row = 0, n; row < p.b.N; row += n) {
        int s = p.of[row], from[ZOO_SEQS] = {0}, count[ZOO_SEQS] = {0};
        for (n = 1; row + n < p.off[s + 1] && (!documents || p.first[row + n] == row);) n++;
        from[s] = row - p.off[s], count[s] = n;
        zoo_part(&one, &p, from, count, NULL);
        for (int k = 0; k < n; k++) g[k] = weight_of(row + k);
        model_train(&m, &work, &one.b, one.tok, one.tgt, g, part);
        memcpy(nll + row, part, (size_t)n * sizeof *nll);
    }
    CHECK_CLOSE(zoo[i].name, nll, all, (size_t)p.b.N, tol);
    compare(documents ? "documents alone" : "sequences alone", &list, want, tol * 10);
    free(want);
    zoo_close(&cfg, &m, &work, dev);
}
Test(gradient, a_batch_is_the_sum_of_its_documents) {
    for (int i = 0; i < zoo_count(); i++) check_sum(i, true);
}
Test(gradient, a_batch_is_the_sum_of_its_sequences) {
    for (int i = 0; i < zoo_count(); i++) check_sum(i, false);
}

#if defined(__x86_64__) && !defined(KV_DOUBLE)
/* The tables of all instruction sets that run here give the same losses and gradients, named by field where not. */
Test(gradient, instruction_sets_agree) {
    const Ops *tables[] = {&ops_cpu_baseline, &ops_cpu_avx2, &ops_cpu_avx512, &ops_cpu_avx512bf16};
    const char *names[] = {"baseline", "avx2", "avx512", "avx512bf16"};
    for (int i = 0; i < zoo_count(); i++) {
        ModelCfg cfg;
        Model m;
        Workspace work;
        Device *dev;
        Pass p;
        real nll[ZOO_ROWS], want_nll[ZOO_ROWS];
        zoo_open(&zoo[i], &cfg, &m, &work, &dev,
                 (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS, .dropout = 0.1});
        zoo_whole(&p, cfg.vocab);
        List list = list_of(&m, &m.g);
        real *want = NULL;
        double bound = 0;
        bool best = false; /* the table that was chosen is the best that the processor has */
        for (int t = 0; t < 4 && !best; t++) {
            char what[96];
            size_t table = strcspn(dev->isa, "+"); /* more than the table's may follow: "+amx" */
            best = strlen(names[t]) == table && !strncmp(dev->isa, names[t], table);
            dev->ops = tables[t];
            gradients(&m, &work, &p, want ? nll : want_nll);
            snprintf(what, sizeof what, "%s, %s against baseline", zoo[i].name, names[t]);
            if (want) {
                CHECK_CLOSE(what, nll, want_nll, (size_t)p.b.N, bound);
                compare(what, &list, want, 1e-4);
                continue;
            }
            want = snapshot(&list);
            void *weights = memcpy(xcalloc(1, m.aw.size), m.aw.base, m.aw.size);
            model_nudge(&m);
            gradients(&m, &work, &p, nll);
            bound = check_rounding(CHECK_VIEW(want_nll), CHECK_VIEW(nll), (size_t)p.b.N);
            memcpy(m.aw.base, weights, m.aw.size);
            free(weights);
        }
        free(want);
        zoo_close(&cfg, &m, &work, dev);
    }
}
#endif
