/* Ops that are timed compute what they compute, and are all timed (ops/profile.h). */
#include "ops/profile.h"
#include "tests/lib/zoo.h"

Test(profile, every_op_is_timed) {
    Device *dev;
    Err e = {0};
    cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    const Ops *plain = device_ops(dev);
    Profile *s = profile_begin(dev);
    const char *timed = (const char *)device_ops(dev);
    cr_assert(device_ops(dev) != plain && !strcmp(device_ops(dev)->name, "cpu"));
    for (size_t at = offsetof(Ops, linear); at < sizeof(Ops); at += sizeof(void *)) {
        void *a, *b;
        memcpy(&a, timed + at, sizeof a);
        memcpy(&b, (const char *)plain + at, sizeof b);
        cr_assert(a && a != b, "entry %zu of the table is not timed", at / sizeof(void *));
    }
    Share out[PROFILE_MAX];
    cr_assert_eq(profile_read(s, out), 0);
    profile_end(s);
    cr_assert(device_ops(dev) == plain);
    device_close(dev);
}

static const Share *share(const Share *x, int n, const char *op) {
    for (int i = 0; i < n; i++)
        if (!strcmp(x[i].op, op)) return &x[i];
    return NULL;
}

Test(profile, products_are_counted) {
    Device *dev;
    Err e = {0};
    cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    Profile *s = profile_begin(dev);
    Arena scratch = {0};
    cr_assert(arena_open(&scratch, "scratch", (size_t)1 << 20, true, &e), "%s", e.msg);
    Run r = run_make(dev, &scratch);
    real x[15] = {1}, w[21] = {2}, v[6] = {3}, y[35], z[10];
    Tensor X = TENSOR(x, REAL, 5, 3), W = TENSOR(w, REAL, 7, 3), V = TENSOR(v, REAL, 2, 3), Y = TENSOR(y, REAL, 5, 7),
           Z = TENSOR(z, REAL, 5, 2);
    double start = now_seconds();
    r.ops->linear(&r, Y, X, W, ABSENT);
    r.ops->linear(&r, Y, X, W, ABSENT);
    r.ops->linear_many(&r, 2, (Projection[]){{Y, W, ABSENT}, {Z, V, ABSENT}}, X);
    r.ops->linear_backward(&r, add_to(X), W, ABSENT, Y, TENSOR((real[15]){0}, REAL, 5, 3),
                           TENSOR((real[21]){0}, REAL, 7, 3));
    r.ops->linear_backward(&r, NOWHERE, W, ABSENT, Y, X, TENSOR((real[21]){0}, REAL, 7, 3));
    r.ops->zero(&r, Z);
    double took = now_seconds() - start, sum = 0;
    Share out[PROFILE_MAX];
    int n = profile_read(s, out);
    static const struct {
        const char *op;
        int calls;
        double flops;
    } want[] = {{"linear", 2, 2 * 2 * 5 * 7 * 3},
                {"linear_many", 1, 2 * 5 * 7 * 3 + 2 * 5 * 2 * 3},
                {"linear_backward", 2, 3 * 2 * 5 * 7 * 3},
                {"zero", 1, 0}};
    cr_assert_eq(n, 4);
    for (int i = 0; i < 4; i++) {
        const Share *got = share(out, n, want[i].op);
        cr_assert(got && got->calls == want[i].calls && got->flops == want[i].flops, "%s: %lld calls, %g FLOPs",
                  want[i].op, got ? (long long)got->calls : -1, got ? got->flops : 0);
        sum += got->seconds;
    }
    for (int i = 1; i < n; i++) cr_assert(out[i - 1].seconds >= out[i].seconds, "not by time");
    cr_assert(sum > 0 && sum <= took, "%g s of %g", sum, took);
    profile_clear(s);
    cr_assert_eq(profile_read(s, out), 0);
    profile_end(s);
    arena_close(&scratch);
    device_close(dev);
}

/* All gradients of a step, one after the other. */
static void put(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path, (void)flags;
    real **at = f->ctx;
    memcpy(*at, t->p, tensor_count(*t) * sizeof(real));
    *at += tensor_count(*t);
}
Test(profile, a_step_is_the_same) {
    static const char *const names[] = {"gqa", "kda", "mla"};
    for (int k = 0; k < 3; k++) {
        ModelCfg cfg;
        Model m;
        Workspace work;
        Device *dev;
        Pass p;
        real g[ZOO_ROWS], nll[ZOO_ROWS], *grad[2];
        int at = zoo_find(names[k]);
        cr_assert(at >= 0, "no %s", names[k]);
        zoo_open(&zoo[at], &cfg, &m, &work, &dev,
                 (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
        zoo_whole(&p, cfg.vocab);
        for (int i = 0; i < ZOO_ROWS; i++) g[i] = (real)0.05;
        size_t n = 0;
        Share out[PROFILE_MAX];
        for (int timed = 0; timed < 2; timed++) {
            Profile *s = timed ? profile_begin(dev) : NULL;
            model_zero_grad(&m);
            model_train(&m, &work, &p.b, p.tok, p.tgt, g, nll);
            if (s) {
                int ops = profile_read(s, out);
                cr_assert(ops > 5 && share(out, ops, "linear_xent")->calls == 1);
                profile_end(s);
            }
            real *end = grad[timed] = xcalloc((size_t)1 << 20, sizeof(real));
            Fields f = {.see = put, .ctx = &end};
            model_fields(&m, &m.g, &f);
            n = (size_t)(end - grad[timed]);
        }
        CHECK_BYTES(names[k], grad[1], grad[0], n * sizeof(real));
        free(grad[0]), free(grad[1]);
        zoo_close(&cfg, &m, &work, dev);
    }
}
