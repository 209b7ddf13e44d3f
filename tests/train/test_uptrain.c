/* test_uptrain.c: what a run trains and how: adapters against their definition, frozen tensors, rates of groups, a
 * teacher in a step. Whole runs, resumed, and what is refused are in test_uptrain.sh. */
#include "train/save/checkpoint.h"
#include "train/adapt/freeze.h"
#include "tests/lib/check.h"
#include "tests/lib/trial.h"

#ifdef KV_DOUBLE
    #define TOL 1e-11
#else
    #define TOL 2e-5
#endif

static const char yaml[] =
    "run: {dir: '%s', seed: 3, threads: 1}\n"
    "model:\n"
    "  d_model: 16\n"
    "  layers: 2\n"
    "  kinds: {full: {mixer: gqa, heads: 2, kv_heads: 1, head_dim: 8}}\n"
    "  ffn: {kind: swiglu, hidden: 24}\n"
    "data: {train: '%s', val_fraction: 0.2, seq_len: 16}\n"
    "train: {steps: 8, batch: 6, micro_batch: 6, eval_every: 4, save_every: 4, log_every: 1, dtype: f32}\n"
    "optim: {lr: 0.02, min_lr: 0.002, warmup: 2, clip: 0, weight_decay: 0.3}\n";

#define OPEN(cfg, ...) \
    open_trainer(cfg, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__})
static Trainer *open_trainer(Config *cfg, int n, const char *const over[]) {
    Trainer *t = trial_open(cfg, yaml, n, over);
    lora_begin(&t->lora, 3);
    return t;
}
static void step(Trainer *t, TrainRecord *r) {
    Err e = {0};
    *r = (TrainRecord){0};
    cr_assert(trainer_step(t, r, &e), "%s", e.msg);
}

/* ---- adapters -------------------------------------------------------------------------------------------------------
 */

/* B no longer 0, so that A has a gradient. */
static void stir(Trainer *t) {
    for (int i = 0; i < t->lora.n; i++)
        for (size_t k = 0; k < tensor_count(t->lora.part[i].b[0]); k++)
            R(t->lora.part[i].b[0])[k] = (real)(0.1 * rng_normal(rng_mix(11, (uint64_t)i), k));
}
/* Part i as a pass has it, in memory of its own: what the model's tensor is once its unit is asked for. */
static real *summed(Trainer *t, int i) {
    Run r = run_make(t->dev, &t->work.scratch);
    LoraPart *p = &t->lora.part[i];
    real *sum = xcalloc(tensor_count(p->base), sizeof *sum);
    cr_assert(p->w->p == p->base.p, "%s is not as it is stored", p->name);
    t->lora.hooks.need(&t->lora, &r, p->unit);
    cr_assert(p->w->p == p->sum.p && p->w->dtype == REAL);
    memcpy(sum, p->w->p, tensor_bytes(*p->w));
    t->lora.hooks.rest(&t->lora);
    cr_assert(p->w->p == p->base.p);
    return sum;
}
Test(uptrain, adapters_begin_as_nothing) {
    Config cfg;
    Trainer *t = OPEN(&cfg, "lora.rank=3", "lora.targets=['*q_proj.weight', '*down_proj.weight', '*embed*']");
    cr_assert_eq(t->lora.n, 5);
    for (int i = 0; i < t->lora.n; i++) {
        LoraPart *p = &t->lora.part[i];
        real *sum = summed(t, i), worst = 0;
        CHECK_BYTES(p->name, sum, p->base.p, tensor_bytes(p->base));
        for (size_t k = 0; k < tensor_count(p->a[0]); k++) worst = fmax(worst, fabs(R(p->a[0])[k]));
        cr_assert(worst > 0.5 / sqrt(p->base.n[1]) && worst <= 1 / sqrt(p->base.n[1]), "%s: A within %g", p->name,
                  (double)worst);
        free(sum);
    }
    trial_close(t, &cfg);
}

/* x W^T of the sum is x W_0^T + s (x A^T) B^T. */
Test(uptrain, merged_is_unmerged) {
    Config cfg;
    Trainer *t = OPEN(&cfg, "lora.rank=3", "lora.alpha=7.5");
    stir(t);
    cr_assert_eq(t->lora.n, 14);
    for (int i = 0; i < t->lora.n; i++) {
        LoraPart *p = &t->lora.part[i];
        int O = p->base.n[0], I = p->base.n[1];
        real *sum = summed(t, i), *file = xcalloc(tensor_count(p->base), sizeof *file);
        double got[64], want[64], moved = 0;
        lora_merge(&t->lora, i, TENSOR(file, REAL, O, I));
        CHECK_CLOSE(p->name, file, sum, tensor_count(p->base), TOL);
        for (int o = 0; o < O; o++) {
            got[o] = want[o] = 0;
            for (int k = 0; k < I; k++) {
                double x = cos(1.7 * k + i);
                got[o] += x * (double)sum[o * I + k];
                want[o] += x * (double)R(p->base)[o * I + k];
            }
            for (int j = 0; j < 3; j++) {
                double down = 0;
                for (int k = 0; k < I; k++) down += cos(1.7 * k + i) * (double)R(p->a[0])[j * I + k];
                want[o] += 2.5 * down * (double)R(p->b[0])[o * 3 + j];
                moved = fmax(moved, fabs(2.5 * down * (double)R(p->b[0])[o * 3 + j]));
            }
        }
        CHECK_CLOSE(p->name, got, want, (size_t)O, TOL);
        cr_assert_gt(moved, 1e-3);
        free(sum), free(file);
    }
    trial_close(t, &cfg);
}

#ifdef KV_DOUBLE
static void first_batch(Trainer *t) {
    Err e = {0};
    cr_assert(loader_train(&t->loader, &t->text.train, t->tok.eot, 3, 0, 6, &e), "%s", e.msg);
    for (int i = 0; i < t->loader.batch.N; i++) t->g[i] = (real)(0.01 + 0.001 * (i % 5));
}
static double loss_of(Trainer *t) {
    double sum = 0;
    model_loss(&t->model, &t->work, &t->loader.batch, t->loader.tok, t->loader.tgt, t->nll);
    for (int i = 0; i < t->loader.batch.N; i++) sum += t->g[i] * t->nll[i];
    return sum;
}
/* Five-point differences of every number of A and B. */
Test(uptrain, gradients_of_adapters) {
    Config cfg;
    Trainer *t = OPEN(&cfg, "lora.rank=2", "lora.alpha=3", "lora.targets=['*.0.*_proj.weight', '*embed*']");
    stir(t);
    first_batch(t);
    model_zero_grad(&t->model);
    lora_zero_grad(&t->lora);
    model_train(&t->model, &t->work, &t->loader.batch, t->loader.tok, t->loader.tgt, t->g, t->nll);
    double h = 1e-3, worst = 0;
    for (int i = 0; i < t->lora.n; i++)
        for (int half = 0; half < 2; half++) {
            Tensor *x = half ? t->lora.part[i].b : t->lora.part[i].a;
            double top = 0, error = 0;
            size_t n = tensor_count(x[0]);
            for (size_t k = 0; k<n; k += n> 300 ? 7 : 1) {
                real *at = R(x[0]) + k, old = *at;
                double f[4];
                for (int s = 0; s < 4; s++) {
                    *at = old + h * (double[]){-2, -1, 1, 2}[s];
                    f[s] = loss_of(t);
                }
                *at = old;
                double numeric = ((f[0] - f[3]) - 8 * (f[1] - f[2])) / (12 * h);
                top = fmax(top, fabs(numeric));
                error = fmax(error, fabs(numeric - R(x[PARAM_GRAD])[k]));
            }
            cr_assert(top > 1e-7 && error <= 1e-7 * top, "%s %c: error %.3g, largest %.3g", t->lora.part[i].name,
                      "AB"[half], error, top);
            worst = fmax(worst, error / top);
        }
    printf("adapters: worst gradient %.3g\n", worst);
    trial_close(t, &cfg);
}
#endif

/* A step moves A and B by AdamW, the sum with them, and nothing else. */
Test(uptrain, a_step_with_adapters) {
    Config cfg;
    Trainer *t = OPEN(&cfg, "lora.rank=2", "optim.groups=[{match: '*lora_B*', lr_scale: 16, weight_decay: 0}]");
    TrainRecord r;
    real *norm = xcalloc(16, sizeof *norm), *head = xcalloc(tensor_count(t->model.w.embed), sizeof *head);
    memcpy(norm, t->model.w.norm.p, tensor_bytes(t->model.w.norm));
    memcpy(head, t->model.w.embed.p, tensor_bytes(t->model.w.embed));
    cr_assert_eq(t->adapters.n, 28);
    for (int i = 0; i < 3; i++) step(t, &r);
    CHECK_BYTES("norm", t->model.w.norm.p, norm, tensor_bytes(t->model.w.norm));
    CHECK_BYTES("embedding", t->model.w.embed.p, head, tensor_bytes(t->model.w.embed));
    for (int i = 0; i < t->lora.n; i++) {
        LoraPart *p = &t->lora.part[i];
        int O = p->base.n[0], I = p->base.n[1];
        real *sum = summed(t, i);
        double moved = 0;
        for (int o = 0; o < O; o++)
            for (int k = 0; k < I; k++) {
                double want = (double)R(p->base)[o * I + k], got = (double)sum[o * I + k];
                for (int j = 0; j < 2; j++) want += 8 * (double)R(p->b[0])[o * 2 + j] * (double)R(p->a[0])[j * I + k];
                cr_assert(fabs(got - want) <= TOL, "%s (%d,%d): %g, expected %g", p->name, o, k, got, want);
                moved = fmax(moved, fabs(got - (double)R(p->base)[o * I + k]));
            }
        cr_assert_gt(moved, 1e-3, "%s did not move", p->name);
        free(sum);
    }
    free(norm), free(head);
    trial_close(t, &cfg);
}

/* ---- freezing and groups --------------------------------------------------------------------------------------------
 */
/* Whatever is stepped, gradients of a step are its own: the same batches again, at a learning rate of 0, have the same
 * norm. */
Test(uptrain, a_step_begins_at_gradients_of_zero) {
    static const char *const over[][3] = {{"lora.rank=0", "optim.lr=0", "optim.min_lr=0"},
                                          {"lora.rank=2", "optim.lr=0", "optim.min_lr=0"}};
    for (int k = 0; k < 2; k++) {
        Config cfg;
        TrainRecord one, two;
        Trainer *t = open_trainer(&cfg, 3, over[k]);
        step(t, &one);
        t->run->state.step = 0;
        step(t, &two);
        cr_assert(one.grad_norm > 0 && two.grad_norm == one.grad_norm && two.loss == one.loss,
                  "%s: norms %.17g and %.17g", over[k][0], one.grad_norm, two.grad_norm);
        trial_close(t, &cfg);
    }
}

static const Param *param(const Trainer *t, const char *name) {
    for (int i = 0; i < t->params.n; i++)
        if (!strcmp(t->params.p[i].name, name)) return &t->params.p[i];
    return NULL;
}

Test(uptrain, frozen_tensors_stay) {
    Config a, b;
    Trainer *t = OPEN(&a, "train.freeze=['*.mlp.*', 'model.embed*']"), *u = OPEN(&b, "optim.clip=0");
    TrainRecord r, s;
    size_t n = tensor_count(t->model.w.embed);
    real *before = xcalloc(n, sizeof *before);
    memcpy(before, t->model.w.embed.p, n * sizeof *before);
    cr_assert(param(t, "model.embed_tokens.weight")->frozen && param(t, "model.layers.1.mlp.up_proj.weight")->frozen &&
              !param(t, "model.layers.1.self_attn.q_proj.weight")->frozen && !param(t, "model.norm.weight")->frozen);
    step(t, &r), step(u, &s);
    cr_assert(r.loss == s.loss, "losses %g and %g", r.loss, s.loss);
    CHECK_BYTES("embedding", t->model.w.embed.p, before, n * sizeof *before);
    /* What is trained moves as it would with all of it, and the norm is of that alone. */
    double squares = 0;
    for (int i = 0; i < t->params.n; i++) {
        const Param *p = &t->params.p[i], *q = param(u, p->name);
        if (p->frozen) continue;
        CHECK_BYTES(p->name, p->t[PARAM_WEIGHT].p, q->t[PARAM_WEIGHT].p, tensor_bytes(q->t[PARAM_WEIGHT]));
        for (size_t k = 0; k < tensor_count(q->t[PARAM_GRAD]); k++) squares += pow((double)R(q->t[PARAM_GRAD])[k], 2);
    }
    double norm = sqrt(squares);
    CHECK_CLOSE("norm", &r.grad_norm, &norm, 1, TOL);
    cr_assert_lt(r.grad_norm, 0.999 * s.grad_norm);
    cr_assert(t->optim[0].size < u->optim[0].size && t->optim[1].size < u->optim[1].size);
    free(before);
    trial_close(t, &a);
    trial_close(u, &b);
}

/* AdamW's first step is lr sign(g), whatever the step of the run: of what was frozen until then, too. */
Test(uptrain, thawed_tensors_begin_at_their_first_step) {
    static const char *const over[] = {
        "stages=[{name: a, steps: 3, set: {train.train_only: '*.mlp.*'}}, {name: b, steps: 1}, {name: c, steps: 4}]",
        "optim={lr: 0.02, warmup: 0, schedule: constant, clip: 0, weight_decay: 0, beta2: 0.999}"};
    static const struct {
        int stage;
        int64_t step, since, skipped;
    } cases[] = {{1, 3, 3, 0}, {1, 3, 3, 2}, {2, 4, 3, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Config cfg;
        Err e = {0};
        TrainRecord r;
        Trainer *t = xcalloc(1, sizeof *t);
        trial_config(&cfg, yaml, 2, over);
        cr_assert(trial_trainer(t, &cfg, cases[i].stage, false, &e), "%s", e.msg);
        model_init(&t->model, 3);
        t->run->state.step = cases[i].step;
        t->run->state.skip.skipped = cases[i].skipped;
        const Param *q = param(t, "model.layers.0.self_attn.q_proj.weight");
        cr_assert(q->since == cases[i].since && param(t, "model.layers.0.mlp.up_proj.weight")->since == 0);
        size_t n = tensor_count(q->t[0]);
        real *before = xcalloc(n, sizeof *before);
        memcpy(before, q->t[0].p, n * sizeof *before);
        step(t, &r);
        /* m = 0.1 g, v = 0.001 g^2, corrected for as many steps */
        double steps = (double)(cases[i].step + 1 - cases[i].since), worst = 0,
               size = 0.02 * 0.1 / (1 - pow(0.9, steps)) / sqrt(0.001 / (1 - pow(0.999, steps)));
        for (size_t k = 0; k < n; k++) {
            double g = (double)R(q->t[PARAM_GRAD])[k], moved = (double)(before[k] - R(q->t[0])[k]);
            if (fabs(g) > 1e-4) worst = fmax(worst, fabs(moved - copysign(size, g)) / size);
        }
        cr_assert(worst < 1e-3, "case %zu: %g off a step of %g", i, worst, size);
        free(before);
        trial_close(t, &cfg);
    }
}

Test(uptrain, groups_have_their_rates) {
    Config a, b;
    Trainer *t = OPEN(
                &a,
                "optim.groups=[{match: '*q_proj*', lr_scale: 0.25}, {match: '*_proj*', lr_scale: 0, weight_decay: 5},"
                " {match: '*embed*', weight_decay: 0}]"),
            *u = OPEN(&b, "optim.weight_decay=0.3");
    TrainRecord r, s;
    real *q0 = xcalloc(256, sizeof *q0), *e0 = xcalloc(257 * 16, sizeof *e0), *k0 = xcalloc(128, sizeof *k0);
    const char *names[] = {"model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight",
                           "model.layers.0.self_attn.k_proj.weight"};
    real *was[] = {q0, e0, k0};
    for (int i = 0; i < 3; i++) memcpy(was[i], param(t, names[i])->t[0].p, tensor_bytes(param(t, names[i])->t[0]));
    step(t, &r), step(u, &s);
    for (size_t i = 0; i < 256; i++) {
        double got = (double)R(param(t, names[0])->t[0])[i] - (double)q0[i],
               want = 0.25 * ((double)R(param(u, names[0])->t[0])[i] - (double)q0[i]);
        cr_assert(fabs(got - want) <= 1e-2 * TOL + 1e-6 * fabs(want) && want != 0, "q %zu moved %g, expected %g", i,
                  got, want);
    }
    for (size_t i = 0; i < 257 * 16; i++) { /* the other one's decay is missing: lr decay w */
        double got = (double)R(param(t, names[1])->t[0])[i],
               want = (double)R(param(u, names[1])->t[0])[i] + r.lr * 0.3 * (double)e0[i];
        cr_assert(fabs(got - want) <= TOL, "embedding %zu: %g, expected %g", i, got, want);
    }
    CHECK_BYTES("a rate of 0", param(t, names[2])->t[0].p, k0, 128 * sizeof *k0);
    free(q0), free(e0), free(k0);
    trial_close(t, &a);
    trial_close(u, &b);
}

/* ---- a teacher in a step --------------------------------------------------------------------------------------------
 */

/* A checkpoint of the settings' model, with weights of another seed, to be taught by. */
static char *make_teacher(void) {
    Config cfg;
    Trainer *t = OPEN(&cfg, "train.steps=1", "optim.warmup=0");
    Err e = {0};
    model_init(&t->model, 77);
    char *dir = check_path("run");
    cr_assert(run_dir_open(&t->run->dir, dir, false, &e), "%s", e.msg);
    cr_assert(checkpoint_save(t, &e), "%s", e.msg);
    run_dir_close(&t->run->dir);
    trial_close(t, &cfg);
    char *path = xformat("teacher.path=%s", dir);
    free(dir);
    return path;
}
static const int micro[] = {1, 2, 3};
ParameterizedTestParameters(uptrain, micro_batches_learn_the_same) {
    static int which[] = {0, 1, 2};
    return cr_make_param_array(int, which, 3);
}
ParameterizedTest(int *which, uptrain, micro_batches_learn_the_same) {
    char *teacher = make_teacher(), over[40];
    const char *losses = "teacher.losses={lm: 0.5, kl: 1, rkl: 0.5, attention: 2, hidden: 1}",
               *warm = "teacher.temperature=2";
    snprintf(over, sizeof over, "train.micro_batch=%d", micro[*which]);
    Config a, b;
    Trainer *t = OPEN(&a, teacher, losses, warm, over, "lora.rank=2"),
            *u = OPEN(&b, teacher, losses, warm, "lora.rank=2");
    TrainRecord r, s;
    for (int i = 0; i < 2; i++) {
        step(t, &r), step(u, &s);
        double x[] = {r.loss, r.parts.lm, r.parts.kl, r.parts.rkl, r.parts.attention, r.parts.hidden, r.grad_norm},
               y[] = {s.loss, s.parts.lm, s.parts.kl, s.parts.rkl, s.parts.attention, s.parts.hidden, s.grad_norm};
        CHECK_CLOSE("losses", x, y, 7, 20 * TOL);
        for (int k = 0; k < 7; k++) cr_assert(x[k] > 1e-6, "loss %d is %g", k, x[k]);
        double sum = 0.5 * x[1] + x[2] + 0.5 * x[3] + 2 * x[4] + x[5];
        CHECK_CLOSE("weighted sum", x, &sum, 1, 1e-12 * fabs(sum) + 1e-12);
    }
    trial_close(t, &a);
    trial_close(u, &b);
    free(teacher);
}

/* lm alone beside a loss on layers is what it is without a teacher, times its weight. */
Test(uptrain, the_weight_of_lm) {
    char *teacher = make_teacher();
    Config a, b;
    Trainer *t = OPEN(&a, teacher, "teacher.losses={lm: 3, kl: 0, hidden: 1e-30}"),
            *u = OPEN(&b, "optim.weight_decay=0.3");
    TrainRecord r, s;
    step(t, &r), step(u, &s);
    double want = 3 * s.grad_norm;
    CHECK_CLOSE("lm", &r.parts.lm, &s.loss, 1, TOL);
    CHECK_CLOSE("norm", &r.grad_norm, &want, 1, 10 * TOL);
    cr_assert(!r.parts.has_kl && r.parts.has_hidden && !r.parts.has_attention);
    trial_close(t, &a);
    trial_close(u, &b);
    free(teacher);
}
