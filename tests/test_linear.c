/* test_linear.c: the linear recurrences against golden layers (tests/golden/make_linear.py), the identities between
 * them, and settings that must be refused. */
#include "../layers/mixer.h"
#include "../model/safetensors.h"
#include "zoo.h"
#include <jansson.h>

/* One mixer alone, on documents of given lengths in one sequence. */
enum { ROWS = 70, DOCUMENTS = 2 };
static const int golden_lengths[DOCUMENTS] = {67, 3};
typedef struct {
    ModelCfg cfg;
    Model m;
    Device *dev;
    Batch b;
    int off[2], seq[1], of[ROWS], pos[ROWS], first[ROWS], idx[ROWS];
    uint64_t id[1];
} Alone;

static void alone_open(Alone *a, const char *json) {
    Err e = {0};
    *a = (Alone){0};
    cr_assert(model_cfg_from_json(&a->cfg, json, strlen(json), "settings", &e), "%s", e.msg);
    cr_assert(device_open(&a->dev, "cpu", 2, &e), "%s", e.msg);
    cr_assert(model_open(&a->m, a->dev, &a->cfg, (ModelOpts){.poison = true}, &e), "%s", e.msg);
    a->b = (Batch){
        .B = 1, .N = ROWS, .off = a->off, .seq = a->seq, .of = a->of, .pos = a->pos, .first = a->first, .id = a->id};
    a->off[1] = ROWS;
    for (int d = 0, row = 0; d < DOCUMENTS; d++)
        for (int i = 0; i < golden_lengths[d]; i++, row++) a->pos[row] = i, a->first[row] = row - i, a->idx[row] = row;
}
static void alone_close(Alone *a) {
    model_close(&a->m);
    model_cfg_free(&a->cfg);
    device_close(a->dev);
}
static const Mixer *mixer_of(const Alone *a) { return a->m.layer[0].kind->mixer; }

/* y (ROWS,d) = the layer of x; malloc'ed. */
static real *alone_run(Alone *a, const real *x) {
    const Layer *l = &a->m.layer[0];
    const Mixer *mixer = l->kind->mixer;
    int d = a->cfg.d_model;
    Arena mem = {.name = "test", .poison = true};
    Tensor tx = {0}, ty = {0};
    Kv kv = {0};
    void *s = xcalloc(1, mixer->s_size + 1);
    for (int dry = 1; dry >= 0; dry--) { /* the mixer's scratch lies behind its tensors */
        Err e = {0};
        if (!dry) cr_assert(arena_open(&mem, "test", mem.peak, true, &e), "%s", e.msg);
        Fields place = arena_placer(&mem);
        field(&place, &tx, "x", 0, ROWS, d);
        field(&place, &ty, "y", 0, ROWS, d);
        kv_fields(&l->rows, ROWS, &kv, &place);
        mixer->saved(l->cfg, ROWS, s, &place);
        if (!dry) memcpy(tx.p, x, tensor_bytes(tx));
        Run r = run_make(a->dev, &mem);
        r.batch = &a->b;
        r.in = r.out = (Pick){ROWS, a->idx};
        r.progress = 1;
        mixer->forward(&r, l->cfg, a->m.w.layer[0].mix, tx, &kv, s, ty);
    }
    real *y = xcalloc((size_t)ROWS * (size_t)d, sizeof *y);
    memcpy(y, ty.p, tensor_bytes(ty));
    free(s);
    arena_close(&mem);
    return y;
}

static bool is_data(const char *name) { return !strcmp(name, "x") || !strcmp(name, "y"); }

typedef struct {
    const char *name;
    double tol; /* of the largest |y|, in double; transformers' rule and norms compute in float32 */
} Golden;
static const Golden goldens[] = {
    {"gdn", 5e-6},     {"gdn-plain", 1e-12}, {"deltanet", 1e-12},
    {"gla", 1e-12},    {"retention", 1e-12}, {"gated_retention", 1e-12},
    {"linear", 1e-12}, {"mamba2", 1e-6},     {"mamba2-bias", 1e-6},
};
enum { GOLDENS = sizeof goldens / sizeof *goldens };
ParameterizedTestParameters(linear, golden_layers) {
    static int index[GOLDENS];
    for (int i = 0; i < GOLDENS; i++) index[i] = i;
    return cr_make_param_array(int, index, GOLDENS);
}
ParameterizedTest(int *i, linear, golden_layers) {
    const Golden *g = &goldens[*i];
    char *path = xformat("tests/golden/linear/%s.safetensors", g->name);
    St st;
    StLoad load;
    Err e = {0};
    Alone a;
    cr_assert(st_open(&st, path, &e), "%s", e.msg);
    alone_open(&a, json_string_value(json_object_get(st.file[0].metadata, "model")));
    st_load_begin(&load, &st, NULL, &e);
    Fields f = st_loader(&load);
    mixer_of(&a)->weights(a.m.layer[0].cfg, a.m.w.layer[0].mix, &f);
    cr_assert(st_load_end(&load, is_data), "%s: %s", g->name, e.msg); /* every weight by its public name, no other */
    size_t n = (size_t)ROWS * (size_t)a.cfg.d_model;
    real *x = xcalloc(n, sizeof *x), *want = xcalloc(n, sizeof *want);
    cr_assert(st_read(&st, st_find(&st, "x"), TENSOR(x, REAL, ROWS, a.cfg.d_model), &e), "%s", e.msg);
    cr_assert(st_read(&st, st_find(&st, "y"), TENSOR(want, REAL, ROWS, a.cfg.d_model), &e), "%s", e.msg);
    real *y = alone_run(&a, x);
    CHECK_RELATIVE(g->name, y, want, n, REAL == F64 ? g->tol : 1e-5);
    free(x), free(want), free(y), free(path);
    alone_close(&a);
    st_close(&st);
}
