/* Rotations that depend on the length of the input: longrope and dynamic, planned by model_plan, against transformers.
 */
#include "tests/lib/dirs.h"
#include "layers/gqa/gqa.h"
#include "model/files/safetensors.h"
#include "ops/rope.h"

static const struct {
    const char *model;
    int lengths[5];
} cases[] = {{"longrope", {1, 31, 32, 33, 100}}, {"dynamic", {1, 127, 128, 129, 200}}};

/* The largest difference of our logits from those of transformers for the first T ids, planned for `length`. */
static double differs(Dir *o, const St *st, int T, int length) {
    char name[32];
    Err e = {0};
    snprintf(name, sizeof name, "logits_%d", T);
    const StEntry *ids = st_find(st, "input_ids"), *logits = st_find(st, name);
    cr_assert(ids && logits && T <= 256, "%s", name);
    int tok[256], rows = (int)logits->shape[0], V = (int)logits->shape[1], from = (T - 1) % 4;
    for (int i = 0; i < T; i++) tok[i] = ids->p[8 * i];
    real *want = xcalloc((size_t)rows * (size_t)V, sizeof *want);
    cr_assert(st_read(st, logits, TENSOR(want, REAL, rows, V), &e), "%s", e.msg);
    cr_assert(model_plan(&o->model, length));
    real *got = dir_logits(&o->model, tok, 1, T);
    double worst = 0;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < V; v++) {
            double d = fabs((double)got[(size_t)(from + 4 * r) * (size_t)V + (size_t)v] - (double)want[r * V + v]);
            if (!(d <= worst)) worst = d;
        }
    free(got), free(want);
    return worst;
}

Test(lengths, as_transformers_computes_them) {
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Dir o = {0};
        St st;
        Err e = {0};
        char *dir = xformat(GOLDEN "%s", cases[k].model),
             *path = xformat("tests/golden/lengths/%s.safetensors", cases[k].model);
        dir_open(&o, dir);
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        for (int i = 0; i < 5; i++) {
            int T = cases[k].lengths[i];
            double d = differs(&o, &st, T, T);
            cr_expect(d <= 2e-3, "%s, %d tokens: off by %.3g", cases[k].model, T, d);
        }
        /* The plan decides: for another length the same input has other logits, beyond 1 token. */
        double off = differs(&o, &st, cases[k].lengths[2], cases[k].lengths[4]);
        cr_expect(off > 0.1, "%s: planned for %d or %d tokens makes no difference: %.3g", cases[k].model,
                  cases[k].lengths[2], cases[k].lengths[4], off);
        st_close(&st);
        dir_close(&o);
        free(dir), free(path);
    }
}

/* A length that the settings give stays; a model without such a rotation has nothing to plan. */
Test(lengths, given_ones_stay) {
    Dir o = {0};
    dir_open(&o, GOLDEN "llama3-tied");
    cr_expect(!model_plan(&o.model, 1000));
    dir_close(&o);
    ModelCfg c;
    Model m;
    Device *dev;
    Err e = {0};
    cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(hf_config_read(GOLDEN "dynamic", &c, &e), "%s", e.msg);
    ((GqaCfg *)c.kind[0].cfg)->rope.length = 500;
    cr_assert(model_open(&m, dev, &c, (ModelOpts){.dry = true}, &e), "%s", e.msg);
    double f = ((const GqaCfg *)m.layer[0].cfg)->table.f[1];
    cr_expect(!model_plan(&m, 100) && ((const GqaCfg *)m.layer[0].cfg)->table.f[1] == f);
    model_close(&m);
    model_cfg_free(&c);
    device_close(dev);
}
