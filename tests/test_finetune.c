/* test_finetune.c: memory of tensors that are not trained. Matrices in bf16 give what the same numbers in f32 give, in
 * every layout; they have no gradient; adapters have sums for one layer at a time. Whole runs are in test_finetune.sh. */
#include "../train/checkpoint.h"
#include "../train/freeze.h"
#include "check.h"
#include "trial.h"

#ifdef KV_DOUBLE
    #define TOL 1e-11
#else
    #define TOL 2e-5
#endif

static const char yaml[] =
    "run: {dir: '%s', seed: 3, threads: 1}\n"
    "model:\n"
    "  d_model: 64\n"
    "  layers: 2\n"
    "  kinds: {full: {mixer: gqa, heads: 4, kv_heads: 2, head_dim: 16}}\n"
    "  ffn: {kind: swiglu, hidden: 96}\n"
    "  tied: false\n"
    "data: {train: '%s', val_fraction: 0.2, seq_len: 12}\n"
    "train: {steps: 8, batch: 4, micro_batch: 2, eval_every: 4, save_every: 4, log_every: 1, dtype: f32}\n"
    "optim: {lr: 0.02, min_lr: 0.002, warmup: 2, clip: 0, weight_decay: 0.3}\n";

#define LORA   "lora.rank=4"
#define PARTLY "train.freeze=['*_proj.weight', '*embed*']"
#define MOE    "model.ffn={kind: moe, experts: 4, top_k: 2, hidden: 48, shared: 1}"
static const struct {
    const char *name, *layout, *what, *more;
} cases[] = {
    {"gqa", "model.kinds.full={mixer: gqa, heads: 4, kv_heads: 2, head_dim: 16, qk_norm: true, qkv_bias: true}", LORA,
     "model.tied=true"},
    {"gqa, partly", "model.tied=true", PARTLY, "train.recompute=1"},
    {"adapted tables", "lora.targets=['*q_proj*', '*embed*', '*head*']", LORA, "model.norm_eps=1e-5"},
    {"mla", "model.kinds.full={mixer: mla, heads: 4, kv_rank: 40, nope_dim: 16, rope_dim: 8, q_rank: 40}", LORA,
     "train.recompute=-1"},
    {"kda", "model.kinds.full={mixer: kda, heads: 4, head_dim: 16}", LORA, "train.recompute=-1"},
    {"gdn", "model.kinds.full={mixer: gdn, heads: 2, head_dim: 32, v_dim: 32}", PARTLY, "model.tied=true"},
    {"mamba2", "model.kinds.full={mixer: mamba2, head_dim: 32, state_size: 16}", LORA, "model.tied=true"},
    {"dmc", "model.kinds.full={mixer: dmc, heads: 4, kv_heads: 2, head_dim: 16, offset: 2, phase: zero}", PARTLY,
     "model.tied=true"},
    {"experts", MOE, LORA, "model.tied=true"},
    {"experts, some", MOE, "train.freeze=['*experts.1.*', '*up_proj*']", "train.recompute=-1"},
};
enum { CASES = sizeof cases / sizeof *cases };

static Trainer *open_as(Config *cfg, int i, const char *dtype, const char *frozen) {
    const char *over[] = {cases[i].layout, cases[i].what, cases[i].more, dtype, frozen};
    Trainer *t = trial_open(cfg, yaml, 5, over);
    lora_begin(&t->lora, 3);
    return t;
}

/* What the other trainer has in bf16 is rounded to it. */
static void see_round(Fields *f, Tensor *t, const char *path, unsigned flags) {
    bool matrix = t->rank == 2 && tensor_count(*t) >= NARROW_LEAST && !(flags & (FIELD_F32 | FIELD_STEADY));
    if (!matrix || !freeze_stored(f->ctx, path)) return;
    for (size_t k = 0; k < tensor_count(*t); k++) R(*t)[k] = (real)bf16_to(bf16_from((float)R(*t)[k]));
}
static void see_bf16(Fields *f, Tensor *t, const char *path, unsigned flags) {
    bool matrix = t->rank == 2 && tensor_count(*t) >= NARROW_LEAST && !(flags & (FIELD_F32 | FIELD_STEADY));
    bool bf16 = matrix && freeze_stored(f->ctx, path);
    cr_assert_eq(t->dtype, bf16 ? BF16 : REAL, "%s is %s", path, dtype_name(t->dtype));
}
static void see_trained(Fields *f, Tensor *t, const char *path, unsigned flags) {
    const Trainer *x = f->ctx;
    (void)flags;
    cr_assert(t->rank != 2 || x->model.opts.trained(x->cfg, path), "%s has a gradient", path);
}
static void same_params(const char *name, const Params *p, const Params *q, double tol) {
    cr_assert_eq(p->n, q->n);
    for (int i = 0; i < p->n; i++) {
        Tensor a = p->p[i].t[PARAM_WEIGHT], b = q->p[i].t[PARAM_WEIGHT];
        size_t n = tensor_count(a);
        real *x = xcalloc(2 * n, sizeof *x), *y = x + n;
        tensor_read(a, 0, n, x), tensor_read(b, 0, n, y);
        char both[300];
        snprintf(both, sizeof both, "%s: %s", name, p->p[i].name);
        CHECK_CLOSE(both, x, y, n, tol);
        free(x);
    }
}

static void bf16_is_f32(int i, const char *dtype, double tol) {
    Config a, b;
    Err e = {0};
    Trainer *t = open_as(&a, i, dtype, "train.frozen_dtype=bf16"), *u = open_as(&b, i, dtype, "train.frozen_dtype=f32");
    Fields f = {.see = see_round, .ctx = u}, stored = {.see = see_bf16, .ctx = t}, has = {.see = see_trained, .ctx = t};
    model_fields(&u->model, &u->model.w, &f);
    model_fields(&t->model, &t->model.w, &stored);
    model_fields(&t->model, &t->model.g, &has);
    cr_assert_lt(t->model.aw.size, u->model.aw.size);
    same_params(cases[i].name, &t->params, &u->params, 0);
    ValRecord v, w;
    for (int k = 0; k < 3; k++) {
        TrainRecord r = {0}, s = {0};
        cr_assert(trainer_step(t, &r, &e), "%s: %s", cases[i].name, e.msg);
        cr_assert(trainer_step(u, &s, &e), "%s: %s", cases[i].name, e.msg);
        double x[] = {r.loss, r.grad_norm}, y[] = {s.loss, s.grad_norm};
        CHECK_CLOSE(cases[i].name, x, y, 2, tol);
        cr_assert_gt(r.grad_norm, 1e-4);
    }
    if (t->cfg->train.dtype == DTYPE_F32) { /* a rounding may give a step of AdamW another sign */
        same_params(cases[i].name, &t->params, &u->params, 10 * tol);
        same_params(cases[i].name, &t->adapters, &u->adapters, 10 * tol);
    }
    cr_assert(trainer_validate(t, &v, &e) && trainer_validate(u, &w, &e), "%s", e.msg);
    CHECK_CLOSE(cases[i].name, &v.loss, &w.loss, 1, tol);
    trial_close(t, &a);
    trial_close(u, &b);
}
ParameterizedTestParameters(finetune, bf16_in_memory_changes_nothing) {
    static int which[CASES];
    for (int i = 0; i < CASES; i++) which[i] = i;
    return cr_make_param_array(int, which, CASES);
}
ParameterizedTest(int *which, finetune, bf16_in_memory_changes_nothing) {
    bf16_is_f32(*which, "train.dtype=f32", TOL);
#ifndef KV_DOUBLE
    /* MLA takes a matrix in parts, of which those below NARROW_LEAST are rounded in products if they are stored so. */
    bool parts = !strcmp(cases[*which].name, "mla");
    if (parts || !strcmp(cases[*which].name, "gqa, partly") || !strcmp(cases[*which].name, "experts"))
        bf16_is_f32(*which, "train.dtype=bf16", parts ? 3e-2 : 1e-3);
#endif
}

/* Sums and their gradients take the room of the largest layer, those of tables their own; all that is mapped is used. */
Test(finetune, one_layer_of_sums) {
    Config a, b;
    const char *few[] = {LORA, "model.layers=2"}, *many[] = {LORA, "model.layers=6"};
    Trainer *t = trial_open(&a, yaml, 2, few), *u = trial_open(&b, yaml, 2, many);
    /* q, k, v, o, gate, up, down: sum and gradient in f32 */
    size_t numbers = 64 * 64 * 2 + 32 * 64 * 2 + 96 * 64 * 3;
    cr_assert_eq(t->lora.sums.size, u->lora.sums.size);
    cr_assert(t->lora.sums.size >= 2 * numbers * sizeof(real) &&
                  t->lora.sums.size <= 2 * numbers * sizeof(real) + 2 * 14 * 128,
              "%zu bytes", t->lora.sums.size);
    cr_assert_eq(3 * tensor_count(t->lora.part[0].a[0]) * 7, 3 * tensor_count(u->lora.part[0].a[0]) * 7);
    /* Gradients of the model: vectors alone. */
    cr_assert_lt(t->model.ag.size, (size_t)(5 * 64 + 64) * sizeof(real) + 5 * 128 + 128);
    trial_close(t, &a);
    trial_close(u, &b);
}

/* A matrix that was trained in an earlier stage has numbers that bf16 does not hold. */
Test(finetune, once_trained_stays_f32) {
    Config cfg;
    Err e = {0};
    const char *over[] = {"train.frozen_dtype=bf16",
                          "stages=[{name: a, steps: 4, set: {train.train_only: '*q_proj*'}}, {name: b, steps: 4, set: "
                          "{train.train_only: '*o_proj*'}}]"};
    trial_config(&cfg, yaml, 2, over);
    Trainer *t = xcalloc(1, sizeof *t);
    for (int k = 0; k < 2; k++) {
        cr_assert(trainer_open_stage(t, &cfg, k, true, &e), "%s", e.msg);
        cr_assert(!freeze_stored(t, "model.layers.0.self_attn.q_proj.weight"));
        cr_assert_eq(freeze_stored(t, "model.layers.0.self_attn.o_proj.weight"), k == 0);
        cr_assert(freeze_stored(t, "model.layers.1.mlp.up_proj.weight"));
        Fields stored = {.see = see_bf16, .ctx = t};
        model_fields(&t->model, &t->model.w, &stored);
        trainer_close(t);
    }
    free(t);
    config_free(&cfg);
}

#ifdef KV_DOUBLE
static double loss_of(Trainer *t) {
    double sum = 0;
    model_loss(&t->model, &t->loader.batch, t->loader.tok, t->loader.tgt, t->nll);
    for (int i = 0; i < t->loader.batch.N; i++) sum += t->g[i] * t->nll[i];
    return sum;
}
/* Five-point differences of elements of A and B over bases in bf16, with layers recomputed. */
Test(finetune, gradients_over_bf16) {
    Config cfg;
    Err e = {0};
    const char *over[] = {LORA, "train.frozen_dtype=bf16", "train.recompute=1",
                          "lora.targets=['*_proj.weight', '*embed*']"};
    Trainer *t = trial_open(&cfg, yaml, 4, over);
    lora_begin(&t->lora, 3);
    for (int i = 0; i < t->lora.n; i++)
        for (size_t k = 0; k < tensor_count(t->lora.part[i].b[0]); k++)
            R(t->lora.part[i].b[0])[k] = (real)(0.1 * rng_normal(rng_mix(11, (uint64_t)i), k));
    cr_assert(loader_train(&t->loader, &t->text.train, t->tok.eot, 3, 0, 2, &e), "%s", e.msg);
    for (int i = 0; i < t->loader.batch.N; i++) t->g[i] = (real)(0.01 + 0.001 * (i % 5));
    lora_zero_grad(&t->lora);
    model_train(&t->model, &t->loader.batch, t->loader.tok, t->loader.tgt, t->g, t->nll);
    double h = 2e-4, worst = 0;
    for (int i = 0; i < t->lora.n; i++)
        for (int half = 0; half < 2; half++) {
            Tensor *x = half ? t->lora.part[i].b : t->lora.part[i].a;
            double top = 0, error = 0;
            size_t n = tensor_count(x[0]);
            for (size_t k = 0; k < n; k += n / 8) {
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
            cr_assert(top > 1e-7 && error <= 1e-7 * fmax(top, 1e-4), "%s %c: error %.3g, largest %.3g",
                      t->lora.part[i].name, "AB"[half], error, top);
            worst = fmax(worst, error / top);
        }
    printf("adapters over bf16: worst gradient %.3g\n", worst);
    trial_close(t, &cfg);
}
#endif
