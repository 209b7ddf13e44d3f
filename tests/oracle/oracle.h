/* oracle.h: what a training step of every small model makes, as numbers in one file: written by the double build
 * (write.c) and compared with a device's by field (tests/simt/test_cuda_double.c). The file: for every model its name
 * in ORACLE_NAME bytes, an int64 count, and as many doubles: losses of the rows, then gradients in the order of
 * model_fields. In the byte order of the machine. */
#pragma once
#include "ops/host.h"
#include "tests/lib/zoo.h"

enum { ORACLE_NAME = 64, ORACLE_FIELDS = 512 };
typedef struct {
    size_t n;
    double *v; /* malloc'ed */
    int fields;
    struct {
        char path[96];
        size_t at, n;
    } field[ORACLE_FIELDS];
    Device *dev;
} Oracle;

static inline void numbers_add(Oracle *k, const char *path, Tensor t) {
    size_t n = tensor_count(t);
    CHECK(k->fields < ORACLE_FIELDS, "too many fields");
    k->v = xrealloc(k->v, k->n + n, sizeof *k->v);
    for (size_t i = 0; i < n; i++) k->v[k->n + i] = (double)R(t)[i];
    snprintf(k->field[k->fields].path, sizeof k->field->path, "%s", path);
    k->field[k->fields].at = k->n, k->field[k->fields++].n = n;
    k->n += n;
}
static inline void see_numbers(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    Oracle *k = f->ctx;
    Tensor view = view_open(k->dev, *t, true);
    numbers_add(k, path, view);
    view_close(k->dev, *t, view, false);
}
/* One micro-batch of three packed sequences, forward and backward. False: the device does not run this model. */
static inline bool oracle_step(Oracle *k, const Animal *a, const char *device, Err *e) {
    ModelCfg cfg;
    Model m;
    Workspace work;
    Pass p;
    real g[ZOO_ROWS], nll[ZOO_ROWS];
    *k = (Oracle){.n = 0};
    CHECK(model_cfg_from_json(&cfg, a->json, strlen(a->json), a->name, e), "%s: %s", a->name, e->msg);
    CHECK(device_open(&k->dev, device, 1, e), "%s", e->msg);
    if (!zoo_model(&m, &work, k->dev, &cfg,
                   (ModelOpts){.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS, .poison = true}, e)) {
        model_cfg_free(&cfg);
        device_close(k->dev);
        return false;
    }
    model_init(&m, 7);
    work.progress = 0.3, work.seed = 11, work.step = 3;
    zoo_whole(&p, cfg.vocab);
    for (int i = 0; i < p.b.N; i++) g[i] = p.tgt[i] < 0 ? 0 : (real)(1.0 / p.b.N);
    model_zero_grad(&m);
    model_train(&m, &work, &p.b, p.tok, p.tgt, g, nll);
    numbers_add(k, "nll", TENSOR(nll, REAL, p.b.N));
    Fields f = {.see = see_numbers, .ctx = k};
    model_fields(&m, &m.g, &f);
    zoo_close(&cfg, &m, &work, k->dev);
    return true;
}
