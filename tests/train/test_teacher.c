/* test_teacher.c: the losses against another model, through whole models: gradients by differences, a model that
 * teaches itself, layouts that teach others, batches in parts. The ops alone are in test_ops_distill.c. */
#include "ops/device.h"
#include "train/teach.h"
#include "tests/lib/differ.h"
#include "tests/lib/zoo.h"

typedef struct {
    double lm, kl, rkl, attention, hidden, temperature;
} Weighing;

/* A student, its teacher, and what the teacher leaves. */
typedef struct {
    ModelCfg cfg, tcfg;
    Model m, t;
    Workspace work, twork;
    Device *dev, *tdev;
    Pass p;
    Teach h;
    Tensor mix[LAYERS_MAX], out[LAYERS_MAX];
    real g[ZOO_ROWS], nll[ZOO_ROWS], rows[4][ZOO_ROWS];
    Weighing w;
} Class;

static Tensor fresh(int n, int d) { return TENSOR(xcalloc((size_t)n * (size_t)d, sizeof(real)), REAL, n, d); }
static void class_open(Class *c, const char *student, const char *teacher, Weighing w, ModelOpts o) {
    *c = (Class){.w = w};
    o.train = true, o.max_rows = ZOO_ROWS, o.max_samples = ZOO_SEQS;
    zoo_open(&zoo[zoo_find(teacher)], &c->tcfg, &c->t, &c->twork, &c->tdev,
             (ModelOpts){.max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS, .states = true});
    model_init(&c->t, 19);
    c->h = (Teach){.logits = {w.lm, w.kl, w.rkl, w.temperature, LOGITS_PLAIN, model_logits(&c->t)},
                   .attention = w.attention,
                   .hidden = w.hidden};
    if (w.kl > 0 || w.rkl > 0) {
        c->h.xf = fresh(ZOO_ROWS, c->tcfg.d_model);
        c->h.kl = c->rows[0], c->h.rkl = c->rows[1];
    }
    c->h.head = c->tcfg.tied ? c->t.w.embed : c->t.w.head;
    for (int l = 0; l < c->t.L; l++) {
        if (w.attention > 0 && !c->t.layer[l].publisher) c->mix[l] = fresh(ZOO_ROWS, c->tcfg.d_model);
        if (w.hidden > 0) c->out[l] = fresh(ZOO_ROWS, c->tcfg.d_model);
    }
    if (w.attention > 0) c->h.mix = c->mix, c->h.mixs = c->rows[2];
    if (w.hidden > 0) c->h.out = c->out, c->h.outs = c->rows[3];
    const LossHook loss = teach_hook(&c->h);
    o.loss = &loss;
    zoo_open(&zoo[zoo_find(student)], &c->cfg, &c->m, &c->work, &c->dev, o);
    c->work.mode = RUN_SMOOTH;
    zoo_whole(&c->p, c->cfg.vocab);
    c->p.tgt[3] = c->p.tgt[10] = -1;
    for (int i = 0; i < ZOO_ROWS; i++) c->g[i] = (real)(0.02 + 0.01 * (double)(i % 7));
}
static void set_rows(Tensor *t, int n) {
    if (present(*t)) t->n[0] = n;
}
static void teach(Class *c, const Pass *p) {
    set_rows(&c->h.xf, p->b.N);
    for (int l = 0; l < c->t.L; l++) set_rows(&c->mix[l], p->b.N), set_rows(&c->out[l], p->b.N);
    model_states(&c->t, &c->twork, &p->b, p->tok, c->h.xf, c->h.mix, c->h.out);
}
static void class_close(Class *c) {
    free(c->h.xf.p);
    for (int l = 0; l < c->t.L; l++) free(c->mix[l].p), free(c->out[l].p);
    zoo_close(&c->cfg, &c->m, &c->work, c->dev);
    zoo_close(&c->tcfg, &c->t, &c->twork, c->tdev);
}
static double learn(Class *c, const Pass *p, const real *g) {
    double sum = 0;
    const LossHook loss = teach_hook(&c->h);
    model_train_with(&c->m, &c->work, &p->b, p->tok, p->tgt, g, c->nll, &loss);
    for (int i = 0; i < p->b.N; i++)
        sum += (double)g[i] *
               (c->w.lm * (double)c->nll[i] + c->w.kl * (double)c->rows[0][i] + c->w.rkl * (double)c->rows[1][i] +
                c->w.attention * (double)c->rows[2][i] + c->w.hidden * (double)c->rows[3][i]);
    return sum;
}

typedef struct {
    Tensor t[256];
    char path[256][128];
    unsigned flags[256];
    int n;
} List;
static void see_list(Fields *f, Tensor *t, const char *path, unsigned flags) {
    List *l = f->ctx;
    cr_assert(l->n < 256);
    snprintf(l->path[l->n], 128, "%s", path);
    l->flags[l->n] = flags;
    l->t[l->n++] = *t;
}
static void list_of(Model *m, Weights *w, List *l) {
    l->n = 0;
    Fields f = {.see = see_list, .ctx = l};
    model_fields(m, w, &f);
}

#ifdef KV_DOUBLE
static double loss_of(void *ctx) {
    Class *c = ctx;
    return learn(c, &c->p, c->g);
}
/* Differences of every tensor: max |analytic - numeric| of a direction <= 1e-7 max |analytic|. The loss that is
 * differenced comes from the rows' losses, which test_ops_distill.c compares with their definition. */
static double worst_gradient(Class *c, char where[256]) {
    double worst = 0, most = 0;
    static List w, g;
    teach(c, &c->p);
    model_zero_grad(&c->m);
    learn(c, &c->p, c->g);
    list_of(&c->m, &c->m.w, &w), list_of(&c->m, &c->m.g, &g);
    real *analytic[256];
    for (int t = 0; t < g.n; t++) {
        analytic[t] = xcalloc(tensor_count(g.t[t]), sizeof(real));
        memcpy(analytic[t], g.t[t].p, tensor_bytes(g.t[t]));
    }
    for (int t = 0; t < w.n; t++) {
        if (w.flags[t] & FIELD_BALANCE) continue;
        Differ d = differ_tensor(w.t[t], analytic[t], 1e-7, loss_of, c);
        most = fmax(most, d.numeric);
        if (d.numeric < 1e-9) {
            cr_assert(d.error < 1e-12, "%s: %g where the loss does not depend on it", w.path[t], d.error);
            continue;
        }
        if (!(d.error / d.largest <= worst) && worst == worst) {
            worst = d.error / d.largest;
            snprintf(where, 256, "%s[%zu]: analytic %.12g, numeric %.12g, largest %.3g", w.path[t], d.at,
                     (double)analytic[t][d.at], d.want, d.largest);
        }
    }
    cr_assert(most > 1e-6, "the loss depends on nothing");
    for (int t = 0; t < g.n; t++) free(analytic[t]);
    return worst;
}
static void check_gradient(const char *student, const char *teacher, Weighing w, ModelOpts o) {
    Class *c = xcalloc(1, sizeof *c);
    char where[256] = "";
    class_open(c, student, teacher, w, o);
    double worst = worst_gradient(c, where);
    cr_assert(worst <= 1e-7, "%s from %s (lm %g kl %g rkl %g attention %g hidden %g T %g): %.3g at %s", student,
              teacher, w.lm, w.kl, w.rkl, w.attention, w.hidden, w.temperature, worst, where);
    class_close(c);
    free(c);
}
Test(teacher, gradient_of_each_loss, .timeout = 300) {
    static const Weighing each[] = {{0, 1, 0, 0, 0, 1},   {0, 1, 0, 0, 0, 2.5}, {0, 0, 1, 0, 0, 1},
                                    {0, 0, 1, 0, 0, 0.7}, {0, 0, 0, 1.3, 0, 1}, {0, 0, 0, 0, 1.7, 1},
                                    {0.4, 0, 0, 0, 2, 1}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) check_gradient("gqa", "mla", each[i], (ModelOpts){0});
}
Test(teacher, gradient_of_all_together, .timeout = 300) {
    static const Weighing all = {0.7, 1.1, 0.3, 0.9, 0.6, 1.6}, far = {0.7, 1.1, 0.3, 0, 0, 1.6};
    check_gradient("gqa", "window", all, (ModelOpts){.recompute = 1});
    check_gradient("mqa", "mha", all, (ModelOpts){.dropout = 0.3, .recompute = -1});
    check_gradient("biases", "kda", all, (ModelOpts){0});
    check_gradient("mla", "gqa", all, (ModelOpts){.dropout = 0.2});
    check_gradient("mixture, sigmoid, groups, shared", "gqa", all, (ModelOpts){0});
    check_gradient("dmc read by others", "gqa", far, (ModelOpts){0});
    check_gradient("publisher and readers (YOCO)", "publisher and readers (YOCO)", all, (ModelOpts){.recompute = 2});
}
#endif

/* Equal weights: what is taught is what is known, to the bit, so that nothing moves. */
Test(teacher, of_itself) {
    for (int i = 0; i < zoo_count(); i++) {
        Class *c = xcalloc(1, sizeof *c);
        class_open(c, zoo[i].name, zoo[i].name, (Weighing){0, 1, 1, 1, 1, 1.5}, (ModelOpts){0});
        c->work.mode = 0;
        static List w, t, g;
        list_of(&c->m, &c->m.w, &w), list_of(&c->t, &c->t.w, &t);
        for (int k = 0; k < w.n; k++) memcpy(w.t[k].p, t.t[k].p, tensor_bytes(w.t[k]));
        teach(c, &c->p);
        model_zero_grad(&c->m);
        bool noisy = zoo_decides(&zoo[i]); /* decisions are drawn while training */
        double loss = learn(c, &c->p, c->g);
        cr_assert(noisy || loss == 0, "%s: loss %g", zoo[i].name, loss);
        list_of(&c->m, &c->m.g, &g);
        for (int k = 0; k < g.n && !noisy; k++)
            for (size_t n = 0; n < tensor_count(g.t[k]) && !(g.flags[k] & FIELD_BALANCE); n++)
                cr_assert(R(g.t[k])[n] == 0, "%s: %s[%zu] = %g", zoo[i].name, g.path[k], n, (double)R(g.t[k])[n]);
        class_close(c);
        free(c);
    }
}

/* Each sequence alone adds up to the batch: nothing is relative to what happens to stand beside. */
Test(teacher, a_batch_is_the_sum_of_its_sequences) {
    const double tol = REAL == F64 ? 1e-11 : 2e-5;
    Class *c = xcalloc(1, sizeof *c);
    class_open(c, "gqa", "kda", (Weighing){0.7, 1.1, 0.3, 0.9, 0.6, 1.6}, (ModelOpts){.dropout = 0.2});
    c->work.mode = 0;
    static List g;
    teach(c, &c->p);
    model_zero_grad(&c->m);
    double whole = learn(c, &c->p, c->g), sum = 0;
    list_of(&c->m, &c->m.g, &g);
    real *want[256];
    for (int k = 0; k < g.n; k++)
        want[k] = xcalloc(tensor_count(g.t[k]), sizeof(real)), memcpy(want[k], g.t[k].p, tensor_bytes(g.t[k]));
    model_zero_grad(&c->m);
    for (int s = 0; s < ZOO_SEQS; s++) {
        Pass one;
        int from[ZOO_SEQS] = {0}, n[ZOO_SEQS] = {0};
        n[s] = c->p.off[s + 1] - c->p.off[s];
        zoo_part(&one, &c->p, from, n, NULL);
        teach(c, &one);
        sum += learn(c, &one, c->g + c->p.off[s]);
    }
    CHECK_CLOSE("loss", &sum, &whole, 1, tol);
    for (int k = 0; k < g.n; k++) {
        CHECK_RELATIVE(g.path[k], R(g.t[k]), want[k], tensor_count(g.t[k]), 10 * tol);
        free(want[k]);
    }
    class_close(c);
    free(c);
}

/* The regions of real passes are those that were measured, with every set of losses. */
Test(teacher, measured_bytes_are_used_bytes) {
    static const Weighing some[] = {{1, 1, 0, 0, 0, 1}, {0, 0, 0, 1, 0, 1}, {0.5, 0, 0, 0, 1, 1}, {1, 1, 1, 1, 1, 2}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        Class *c = xcalloc(1, sizeof *c);
        class_open(c, "gqa", "mla", some[i], (ModelOpts){.recompute = (int)i % 3, .dropout = 0.1});
        /* of as many rows as were measured */
        for (int k = c->p.b.N; k < ZOO_ROWS; k++) {
            c->p.of[k] = ZOO_SEQS - 1, c->p.pos[k] = c->p.pos[k - 1] + 1, c->p.first[k] = c->p.first[k - 1];
            c->p.tok[k] = k % c->cfg.vocab, c->p.tgt[k] = (k + 1) % c->cfg.vocab;
        }
        c->p.off[ZOO_SEQS] = c->p.b.N = ZOO_ROWS;
        teach(c, &c->p);
        learn(c, &c->p, c->g);
        real nll[ZOO_ROWS];
        model_loss(&c->m, &c->work, &c->p.b, c->p.tok, c->p.tgt, nll);
        const Arena *own[] = {&c->work.scratch, &c->work.keep, &c->twork.scratch, &c->twork.keep};
        for (int k = 0; k < 4; k++)
            cr_assert(own[k]->peak == own[k]->size && own[k]->size > 0, "losses %zu, %s: %zu of %zu", i, own[k]->name,
                      own[k]->peak, own[k]->size);
        class_close(c);
        free(c);
    }
}
