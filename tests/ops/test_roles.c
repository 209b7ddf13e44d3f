/* test_roles.c: calls of ops are as ops.def declares. */
#include "tests/lib/roles.h"
#include "tests/lib/zoo.h"

/* ops.def is whole: each op has arguments, and each argument's first role says what becomes of it. */
Test(roles, every_tensor_has_one) {
    int n;
    const OpRoles *ops = op_roles(&n);
    cr_assert((size_t)n == sizeof(Ops) / sizeof(void *) - 1, "%d ops", n);
    for (int i = 0; i < n; i++) {
        unsigned all = 0;
        for (int k = 0; ops[i].arg[k].name; k++) {
            unsigned of = ops[i].arg[k].roles, way = of & (ROLE_IN | ROLE_OUT | ROLE_ADD | ROLE_INOUT);
            cr_assert(!of || (way && !(way & (way - 1))), "%s: %s", ops[i].op, ops[i].arg[k].name);
            cr_assert(!(of & ROLE_OVERWRITE) || way == ROLE_ADD, "%s: %s is not added to", ops[i].op,
                      ops[i].arg[k].name);
            all |= way;
        }
        cr_assert(all, "%s has no tensor", ops[i].op);
    }
}

/* Calls that break it are found. */
Test(roles, what_is_not_declared_is_found) {
    Run r = {.ops = roles_table(&roles_nothing)};
    real x[4];
    uint16_t h[4];
    const Tensor wide = TENSOR(x, REAL, 2, 2), bf16_rows = TENSOR(h, BF16, 2, 2);
    r.ops->swiglu(&r, wide, wide, wide);
    r.ops->swiglu(&r, bf16_rows, bf16_rows, bf16_rows);
    r.ops->rmsnorm(&r, bf16_rows, wide, wide, wide, 0);
    r.ops->linear(&r, wide, wide, wide, ABSENT);
    r.ops->linear_many(&r, 1, &(Projection){bf16_rows, wide, ABSENT}, wide);
    cr_assert(!*roles_broken(), "%s", roles_broken());
    r.ops->sigmoid(&r, wide, bf16_rows, 1);
    cr_assert_str_eq(roles_broken(), "sigmoid: x is BF16");
    roles_forget();
    r.ops->swiglu(&r, bf16_rows, bf16_rows, wide);
    cr_assert_str_eq(roles_broken(), "swiglu: up is of another type than those before it");
    roles_forget();
    r.ops->sigmoid(&r, wide, ABSENT, 1);
    cr_assert_str_eq(roles_broken(), "sigmoid: x is absent");
}

/* Models call ops as they are declared, in f32 and with activations in bf16. */
static void trains(const Animal *a, bool bf16) {
    Err e = {0};
    real g[ZOO_ROWS], nll[ZOO_ROWS];
    Pass p;
    ModelCfg cfg;
    Model m;
    Workspace work;
    Device *dev;
    cr_assert(model_cfg_from_json(&cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    if (bf16) {
        cr_assert(device_bf16(dev, true, &e), "%s", e.msg);
        gemm_use(dev->gemm, dev->gemm_bf16, 1, 0); /* every product, however small */
        dev->pairs = true;                         /* on any processor */
    }
    dev->ops = roles_table(dev->ops);
    ModelOpts o = {.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS};
    cr_assert(zoo_model(&m, &work, dev, &cfg, o, &e), "%s: %s", a->name, e.msg);
    model_init(&m, 7);
    zoo_whole(&p, cfg.vocab);
    for (int i = 0; i < p.b.N; i++) g[i] = (real)0.1;
    model_zero_grad(&m);
    model_train(&m, &work, &p.b, p.tok, p.tgt, g, nll);
    cr_assert(!*roles_broken(), "%s%s: %s", a->name, bf16 ? " in bf16" : "", roles_broken());
    zoo_close(&cfg, &m, &work, dev);
}
Test(roles, models_keep_to_them, .timeout = 120) {
    for (int i = 0; i < zoo_count(); i++)
        for (int bf16 = 0; bf16 < (REAL == F32 ? 2 : 1); bf16++) trains(&zoo[i], bf16);
}
