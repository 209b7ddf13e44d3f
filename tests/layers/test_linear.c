/* test_linear.c: the linear recurrences against golden layers (tests/golden/make_linear.py), the identities between
 * them, and settings that must be refused. */
#include "layers/linear/line.h"
#include "model/files/hf_file.h"
#include "model/files/safetensors.h"
#include "tests/lib/zoo.h"
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
        r.in = r.out = (RowList){ROWS, a->idx};
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
    {"gdn", 5e-6},
    {"gdn-plain", 1e-12},
    {"deltanet", 1e-12},
    {"gla", 1e-12},
    {"retention", 1e-12},
    {"gated_retention", 1e-12},
    {"linear", 1e-12},
    {"mamba2", 1e-6},
    {"mamba2-bias", 1e-6},
    {"kda-silu", 1e-12},
    {"kda-none", 1e-12},
    {"gdn-sigmoid", 1e-12},
    {"deltanet-sigmoid", 1e-12},
    {"gla-conv", 1e-12},
    {"gla-none", 1e-12},
    {"retention-conv", 1e-12},
    {"gated_retention-conv", 1e-12},
    {"linear-conv", 1e-12},
    {"gated_retention-bias", 1e-12},
    {"gdn-comba", 1e-12},
    {"gdn-product", 1e-12},
    {"deltanet-product", 1e-12},
    {"gdn-grouped", 1e-12},
    {"gdn-grouped-product", 1e-12},
    {"gla-grouped", 1e-12},
    {"linear-grouped", 1e-12},
    {"gdn-levels", 1e-12},
    {"deltanet-levels", 1e-12},
    {"gla-levels", 1e-12},
    {"retention-levels", 1e-12},
    {"mamba2-levels", 1e-12},
    {"kda-levels", 1e-12},
    {"gdn2-levels", 1e-12},
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

/* ---- identities ---------------------------------------------------------------------------------------------------
 */
static void open_kind(Alone *a, const char *mixer, const char *settings) {
    char json[512];
    snprintf(json, sizeof json,
             "{\"d_model\":12,\"vocab\":2,\"max_positions\":128,\"layers\":1,\"init_std\":0.4,\"kinds\":{\"a\":{"
             "\"mixer\":\"%s\",%s}},\"pattern\":[\"a\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":1}]}",
             mixer, settings);
    alone_open(a, json);
    model_init(&a->m, 3);
}
typedef struct {
    const char *name;
    Tensor t;
} Wanted;
static void see_named(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    Wanted *w = f->ctx;
    if (!strcmp(path, w->name)) w->t = *t;
}
static Tensor named(Alone *a, const char *name) {
    Wanted w = {.name = name};
    Fields f = {.see = see_named, .ctx = &w};
    mixer_of(a)->weights(a->m.layer[0].cfg, a->m.w.layer[0].mix, &f);
    cr_assert(present(w.t), "no weight %s", name);
    return w.t;
}
static void fill(Tensor t, double value) {
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)value;
}
/* The weight `name` of b becomes that of a, times `factor`. */
static void copy_as(Alone *b, const char *name_b, Alone *a, const char *name_a, double factor) {
    Tensor from = named(a, name_a), to = named(b, name_b);
    cr_assert_eq(tensor_count(from), tensor_count(to), "%s, %s", name_a, name_b);
    for (size_t i = 0; i < tensor_count(to); i++) R(to)[i] = (real)(factor * (double)R(from)[i]);
}
static void copy_qkv(Alone *b, Alone *a) {
    copy_as(b, "q_proj.weight", a, "q_proj.weight", 1);
    copy_as(b, "k_proj.weight", a, "k_proj.weight", 1);
    copy_as(b, "v_proj.weight", a, "v_proj.weight", 1);
}
static void copy_delta(Alone *b, Alone *a) {
    copy_qkv(b, a);
    copy_as(b, "q_conv1d.weight", a, "q_conv1d.weight", 1);
    copy_as(b, "k_conv1d.weight", a, "k_conv1d.weight", 1);
    copy_as(b, "v_conv1d.weight", a, "v_conv1d.weight", 1);
    copy_as(b, "b_proj.weight", a, "b_proj.weight", 1);
}
/* The weight of the same name of another layer becomes this one. */
static void copy_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    Tensor to = named(f->ctx, path);
    memcpy(to.p, t->p, tensor_bytes(to));
}
/* to (rows*each, n): row i is 1 at column i / each. */
static void repeated_identity(Tensor to, int each) {
    fill(to, 0);
    for (int i = 0; i < to.n[0]; i++) R(to)[i * to.n[1] + i / each] = 1;
}
/* Same outputs on the same x; then not, once the named weight of b is moved, unless NULL. */
static void same(const char *what, Alone *a, Alone *b, const char *moved) {
    size_t n = (size_t)ROWS * 12;
    real *x = xcalloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (real)rng_normal(9, i);
    real *ya = alone_run(a, x), *yb = alone_run(b, x);
    CHECK_RELATIVE(what, yb, ya, n, REAL == F64 ? 1e-12 : 2e-5);
    fill(named(b, moved), 0.3);
    real *other = alone_run(b, x);
    char msg[512];
    cr_assert(!check_relative(msg, what, CHECK_VIEW(other), CHECK_VIEW(ya), n, 1e-3), "%s does not matter", moved);
    free(x), free(ya), free(yb), free(other);
    alone_close(a), alone_close(b);
}

Test(linear, deltanet_is_gdn_without_decay) {
    Alone a, b;
    open_kind(&a, "gdn", "\"heads\":2,\"v_dim\":5,\"gate\":false");
    open_kind(&b, "deltanet", "\"heads\":2,\"v_dim\":5");
    fill(named(&a, "A_log"), -60); /* decay of e^-60 per token */
    copy_delta(&b, &a);
    copy_as(&b, "o_proj.weight", &a, "o_proj.weight", 1);
    same("deltanet", &a, &b, "b_proj.weight");
}
/* KDA whose channels share one gate. Its output gate is sigmoid(0) = 1/2 here. */
Test(linear, gdn_is_kda_with_one_decay_per_head) {
    Alone a, b;
    open_kind(&a, "gdn", "\"heads\":2,\"v_heads\":4,\"head_dim\":3,\"v_dim\":5,\"gate\":false");
    open_kind(&b, "kda",
              "\"heads\":2,\"v_heads\":4,\"head_dim\":3,\"v_dim\":5,\"gate\":\"standard\",\"gate_rank\":4,"
              "\"out_gate\":\"full\"");
    copy_delta(&b, &a);
    copy_as(&b, "A_log", &a, "A_log", 1);
    copy_as(&b, "f_a_proj.weight", &a, "a_proj.weight", 1);
    repeated_identity(named(&b, "f_b_proj.weight"), 3);
    Tensor dt = named(&b, "dt_bias"), from = named(&a, "dt_bias");
    for (int i = 0; i < 12; i++) R(dt)[i] = R(from)[i / 3];
    fill(named(&b, "g_proj.weight"), 0);
    copy_as(&b, "o_proj.weight", &a, "o_proj.weight", 2);
    same("kda", &a, &b, "f_a_proj.weight");
}
/* Comba that erases by the whole key and takes nothing from the query. */
Test(linear, comba_without_feedback_is_gdn) {
    Alone a, b;
    open_kind(&a, "gdn", "\"heads\":3,\"v_dim\":5");
    open_kind(&b, "gdn", "\"heads\":3,\"v_dim\":5,\"inner_decay\":true,\"output_correction\":true");
    fill(named(&b, "decay"), 100), fill(named(&b, "D"), 0);
    copy_delta(&b, &a);
    static const char *const rest[] = {"a_proj.weight", "A_log", "dt_bias", "g_proj.weight", "o_proj.weight"};
    for (int i = 0; i < 5; i++) copy_as(&b, rest[i], &a, rest[i], 1);
    same("comba", &a, &b, "decay");
}
/* Gated DeltaNet-2 whose gates are one beta in all channels of a head. */
Test(linear, equal_gates_of_gdn2_are_kda) {
    Alone a, b;
    open_kind(&a, "kda", "\"heads\":3,\"v_dim\":5,\"gate\":\"standard\"");
    open_kind(&b, "kda", "\"heads\":3,\"v_dim\":5,\"gate\":\"standard\",\"erase\":\"channel\"");
    Tensor beta = named(&a, "b_proj.weight"), erase = named(&b, "b_proj.weight"), write = named(&b, "w_proj.weight");
    copy_qkv(&b, &a);
    static const char *const rest[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight", "f_a_proj.weight",
                                       "f_b_proj.weight", "dt_bias",         "A_log",           "g_a_proj.weight",
                                       "g_b_proj.weight", "o_proj.weight"};
    for (int i = 0; i < 10; i++) copy_as(&b, rest[i], &a, rest[i], 1);
    for (int i = 0; i < 12 * 12; i++) R(erase)[i] = R(beta)[i / 12 / 4 * 12 + i % 12];
    for (int i = 0; i < 15 * 12; i++) R(write)[i] = R(beta)[i / 12 / 5 * 12 + i % 12];
    same("gated deltanet-2", &a, &b, "w_proj.weight");
}
/* One head of retention decays by 31/32; so does gated retention with gate 1/2 and this divisor. */
Test(linear, retention_is_gated_retention_with_a_constant_gate) {
    Alone a, b;
    char settings[128];
    snprintf(settings, sizeof settings, "\"heads\":1,\"v_dim\":5,\"gate_divisor\":%.17g", log(0.5) / log(31.0 / 32));
    open_kind(&a, "retention", "\"heads\":1,\"v_dim\":5");
    open_kind(&b, "gated_retention", settings);
    copy_qkv(&b, &a);
    copy_as(&b, "g_proj.weight", &a, "g_proj.weight", 1);
    copy_as(&b, "out_proj.weight", &a, "o_proj.weight", 1);
    fill(named(&b, "gt_proj.weight"), 0);
    same("gated retention", &a, &b, "gt_proj.weight");
}
Test(linear, gated_retention_without_rotation_is_gla_with_equal_channels) {
    Alone a, b;
    open_kind(&a, "gated_retention", "\"heads\":3,\"v_dim\":5,\"rope\":\"none\"");
    open_kind(&b, "gla", "\"heads\":3,\"head_dim\":4,\"v_dim\":5,\"gate_rank\":3");
    copy_qkv(&b, &a);
    copy_as(&b, "gk_proj.0.weight", &a, "gt_proj.weight", 1);
    repeated_identity(named(&b, "gk_proj.1.weight"), 4);
    copy_as(&b, "g_proj.weight", &a, "g_proj.weight", 1);
    copy_as(&b, "o_proj.weight", &a, "out_proj.weight", 1);
    same("gla", &a, &b, "gk_proj.0.weight");
}
/* Levels whose weights are all softplus(log(e - 1)) = 1 are the state that they divide; with 0.8 they are not. */
static void weigh_alike(const char *mixer, const char *settings, int levels) {
    Alone a, b;
    char more[256], msg[512];
    const size_t n = (size_t)ROWS * 12;
    snprintf(more, sizeof more, "%s,\"levels\":%d", settings, levels);
    open_kind(&a, mixer, settings), open_kind(&b, mixer, more);
    real *x = xcalloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = i % 12 ? (real)rng_normal(9, i) : 1;
    Fields from = {.see = copy_field, .ctx = &b};
    mixer_of(&a)->weights(a.m.layer[0].cfg, a.m.w.layer[0].mix, &from);
    Tensor wl = named(&b, "l_proj.weight");
    fill(wl, 0);
    for (int i = 0; i < wl.n[0]; i++) R(wl)[i * 12] = (real)log(expm1(1));
    real *ya = alone_run(&a, x), *yb = alone_run(&b, x);
    CHECK_RELATIVE(more, yb, ya, n, REAL == F64 ? 1e-12 : 2e-5);
    R(wl)[imin(levels - 1, 7) * 12] = (real)log(expm1(0.8)); /* the last level that 67 tokens have */
    real *other = alone_run(&b, x);
    cr_assert(!check_relative(msg, more, CHECK_VIEW(other), CHECK_VIEW(ya), n, levels > 1 ? 1e-3 : 1e-9),
              "%s: the weight of the last level does not matter", more);
    free(x), free(ya), free(yb), free(other);
    alone_close(&a), alone_close(&b);
}
Test(linear, levels_weighed_alike_are_one_state) {
    static const int levels[] = {1, 2, 3, 7, 8, 12};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        weigh_alike("gdn", "\"heads\":2,\"v_heads\":4,\"head_dim\":3,\"v_dim\":5,\"conv\":3", levels[i]);
        weigh_alike("gdn", "\"heads\":4,\"kv_heads\":2,\"head_dim\":3,\"v_dim\":5,\"householders\":2", levels[i]);
        weigh_alike("gdn", "\"heads\":2,\"head_dim\":3,\"v_dim\":5,\"inner_decay\":true", levels[i]);
        weigh_alike("gla", "\"heads\":2,\"gate_rank\":3", levels[i]);
        weigh_alike("deltanet", "\"heads\":2", levels[i]);
        weigh_alike("retention", "\"heads\":2", levels[i]);
        weigh_alike("gated_retention", "\"heads\":3,\"gate_divisor\":1", levels[i]);
        weigh_alike("kda", "\"heads\":2,\"v_heads\":4,\"head_dim\":3,\"v_dim\":5,\"conv\":3", levels[i]);
        weigh_alike("kda", "\"heads\":4,\"kv_heads\":2,\"gate\":\"standard\",\"out_gate\":\"none\"", levels[i]);
        weigh_alike("kda", "\"heads\":3,\"gate\":\"standard\",\"erase\":\"channel\",\"beta_max\":2", levels[i]);
        weigh_alike("kda", "\"heads\":4,\"kv_heads\":2,\"v_heads\":8,\"v_dim\":5,\"erase\":\"channel\"", levels[i]);
    }
}
/* Values of state: (1, or levels - 1) H K V, and the inputs of the convolutions. */
Test(linear, states_of_levels) {
    static const int levels[] = {0, 1, 2, 3, 12}, states[] = {1, 1, 1, 2, 11};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        Alone a;
        char settings[128];
        snprintf(settings, sizeof settings,
                 "\"heads\":2,\"v_heads\":4,\"head_dim\":3,\"v_dim\":5,\"conv\":3,\"levels\":%d", levels[i]);
        open_kind(&a, "gdn", settings);
        cr_expect_eq(a.m.layer[0].rows.state, states[i] * 60 + 64, "%d levels: %d values", levels[i],
                     a.m.layer[0].rows.state);
        alone_close(&a);
        snprintf(settings, sizeof settings, "\"heads\":4,\"head_dim\":5,\"state_size\":3,\"conv\":0,\"levels\":%d",
                 levels[i]);
        open_kind(&a, "mamba2", settings);
        cr_expect_eq(a.m.layer[0].rows.state, states[i] * 60, "%d levels: %d values", levels[i],
                     a.m.layer[0].rows.state);
        alone_close(&a);
        snprintf(settings, sizeof settings,
                 "\"heads\":4,\"kv_heads\":2,\"v_heads\":8,\"head_dim\":3,\"v_dim\":5,\"conv\":3,\"levels\":%d",
                 levels[i]);
        open_kind(&a, "kda", settings);
        cr_expect_eq(a.m.layer[0].rows.state, states[i] * 60 + 76, "%d levels: %d values", levels[i],
                     a.m.layer[0].rows.state);
        alone_close(&a);
    }
}
/* Normalised attention to equal values is that value, whatever the keys. */
Test(linear, equal_values_average_to_themselves) {
    Alone a;
    open_kind(&a, "linear", "\"heads\":2,\"v_dim\":5,\"eps\":0");
    Tensor wv = named(&a, "v_proj.weight"), wo = named(&a, "o_proj.weight");
    real x[ROWS * 12], want[ROWS * 12];
    for (int i = 0; i < ROWS * 12; i++) x[i] = i % 12 ? (real)rng_normal(9, (uint64_t)i) : 1;
    for (int o = 0; o < 10; o++) /* values read the constant alone */
        for (int i = 1; i < 12; i++) R(wv)[o * 12 + i] = 0;
    for (int i = 0; i < ROWS * 12; i++) {
        want[i] = 0;
        for (int o = 0; o < 10; o++) want[i] += R(wo)[i % 12 * 10 + o] * R(wv)[o * 12];
    }
    real *y = alone_run(&a, x);
    CHECK_RELATIVE("constant values", y, want, ROWS * 12, REAL == F64 ? 1e-13 : 1e-5);
    free(y);
    alone_close(&a);
}

/* ---- beginnings, refusals -----------------------------------------------------------------------------------------
 */
static void within(Alone *a, const char *name, double low, double high) {
    Tensor t = named(a, name);
    double least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < tensor_count(t); i++)
        least = fmin(least, (double)R(t)[i]), most = fmax(most, (double)R(t)[i]);
    cr_assert(least >= low && most <= high, "%s: %g to %g, expected %g to %g", name, least, most, low, high);
    cr_assert(most - least > 0.5 * (high - low), "%s: %g to %g fill little of %g to %g", name, least, most, low, high);
}
Test(linear, initial_values) {
    Alone a;
    double slow = log(expm1(1e-3)), fast = log(expm1(1e-1)); /* softplus is the step */
    open_kind(&a, "gdn", "\"heads\":64,\"head_dim\":2,\"rates\":\"drawn\"");
    within(&a, "q_conv1d.weight", -0.5, 0.5);
    within(&a, "v_conv1d.weight", -0.5, 0.5);
    within(&a, "dt_bias", slow, fast);
    cr_assert(tensor_count(named(&a, "A_log")) == 64);
    for (int h = 0; h < 64; h++) cr_assert(R(named(&a, "A_log"))[h] < (real)log(16));
    alone_close(&a);
    open_kind(&a, "mamba2", "\"heads\":64,\"head_dim\":2,\"rates\":\"drawn\"");
    within(&a, "conv1d.weight", -0.5, 0.5);
    within(&a, "dt_bias", slow, fast);
    within(&a, "A_log", 0, log(16));
    alone_close(&a);
}

/* Half-life in tokens of head h's state where a token has no input. */
static double half_life(Alone *a, int h) {
    double step = log1p(exp((double)R(named(a, "dt_bias"))[h])), rate = exp((double)R(named(a, "A_log"))[h]);
    return log(2) / (rate * step);
}
/* With every seed one of two heads forgets soon and one remembers long; many heads fill the range in order. */
Test(linear, initial_half_lives_are_spread) {
    static const char *const mixers_[] = {"gdn", "mamba2"};
    for (int k = 0; k < 2; k++) {
        Alone a;
        open_kind(&a, mixers_[k], "\"heads\":2,\"head_dim\":4");
        double first = 0;
        for (uint64_t seed = 1; seed <= 100; seed++) {
            model_init(&a.m, seed);
            double fast = half_life(&a, 0), slow = half_life(&a, 1);
            cr_assert(fast >= 1 && fast <= 8 && slow >= 64 && slow <= 512, "%s, seed %d: %g and %g", mixers_[k],
                      (int)seed, fast, slow);
            cr_assert_neq(fast, first); /* another seed, another value */
            first = fast;
        }
        alone_close(&a);
        open_kind(&a, mixers_[k], "\"heads\":64,\"head_dim\":2");
        for (int h = 1; h < 64; h++) cr_assert_gt(half_life(&a, h), half_life(&a, h - 1));
        cr_assert(half_life(&a, 0) < 1.1 && half_life(&a, 63) > 460);
        within(&a, "dt_bias", log(expm1(1e-3)), log(expm1(1e-1)));
        within(&a, "A_log", 0, 2);
        alone_close(&a);
    }
}
/* The half-life of decay i of a layer with rates: spread, where a token has no input. */
static double half_life_of_bias(const char *mixer, double bias, double parameter) {
    if (!strcmp(mixer, "kda")) return log(2) / (parameter ? -parameter / (1 + exp(-bias)) : log1p(exp(bias)));
    return log(2) * parameter / log1p(exp(-bias));
}
static const struct {
    const char *mixer, *settings, *bias;
    double parameter; /* of the gate: the lower bound, or 0; the divisor */
} spread_[] = {
    {"gla", "\"heads\":2,\"head_dim\":16,\"rates\":\"spread\"", "gk_proj.1.bias", 16},
    {"gla", "\"heads\":2,\"head_dim\":16,\"rates\":\"spread\",\"gate_divisor\":0.5", "gk_proj.1.bias", 0.5},
    {"gated_retention", "\"heads\":16,\"head_dim\":2,\"rates\":\"spread\"", "gt_proj.bias", 16},
    {"kda", "\"heads\":2,\"head_dim\":16,\"rates\":\"spread\"", "dt_bias", -5},
    {"kda", "\"heads\":2,\"head_dim\":16,\"rates\":\"spread\",\"gate\":\"standard\"", "dt_bias", 0},
};
/* In order over heads, or over the channels of each head; with another seed others. */
Test(linear, initial_half_lives_of_biases_are_spread) {
    for (size_t k = 0; k < sizeof spread_ / sizeof *spread_; k++) {
        Alone a;
        open_kind(&a, spread_[k].mixer, spread_[k].settings);
        double first = 0;
        for (uint64_t seed = 1; seed <= 20; seed++) {
            model_init(&a.m, seed);
            Tensor t = named(&a, spread_[k].bias);
            double last = 0;
            for (size_t i = 0; i < tensor_count(t); i++) {
                const double life = half_life_of_bias(spread_[k].mixer, (double)R(t)[i], spread_[k].parameter);
                cr_assert(i % 16 ? life > last * 1.3 && life < last * 1.7 : life > 1 && life < 1.4,
                          "%s %s, seed %d: half-life %zu is %g after %g", spread_[k].mixer, spread_[k].settings,
                          (int)seed, i, life, last);
                last = life;
            }
            cr_assert(last > 360 && last < 512, "%s: last half-life %g", spread_[k].mixer, last);
            cr_assert_neq(last, first);
            first = last;
        }
        if (!strcmp(spread_[k].mixer, "kda")) cr_assert_eq(R(named(&a, "A_log"))[0], 0);
        alone_close(&a);
    }
}
/* Files of older versions say true and false for the gate. */
Test(linear, older_spelling_of_the_gate) {
    static const char *const old[] = {"true", "false"}, *const new[] = {"\"silu\"", "\"none\""};
    for (int i = 0; i < 2; i++) {
        Alone a, b;
        char settings[64];
        snprintf(settings, sizeof settings, "\"heads\":2,\"gate\":%s", old[i]);
        open_kind(&a, "gdn", settings);
        snprintf(settings, sizeof settings, "\"heads\":2,\"gate\":%s", new[i]);
        open_kind(&b, "gdn", settings);
        const LineCfg *one = a.m.layer[0].cfg, *two = b.m.layer[0].cfg;
        cr_expect_eq(one->gate, two->gate, "%s", old[i]);
        alone_close(&a), alone_close(&b);
    }
}

static const struct {
    const char *mixer, *settings, *part;
} bad[] = {
    {"gdn", "\"head_dim\":4", "heads"},
    {"gdn", "\"heads\":0", "heads: expected"},
    {"gdn", "\"heads\":5", "5 does not divide d_model 12"},
    {"gdn", "\"heads\":2,\"v_heads\":3", "v_heads: expected a multiple of heads (2), got 3"},
    {"gdn", "\"heads\":1024,\"head_dim\":1024,\"v_heads\":1024,\"v_dim\":1024", "heads: 1024 heads"},
    {"gdn", "\"heads\":2,\"beta_max\":3", "beta_max"},
    {"gdn", "\"heads\":2,\"conv\":-1", "conv"},
    {"gdn", "\"heads\":2,\"window\":4", "window"},
    {"deltanet", "\"heads\":2,\"v_heads\":4", "v_heads"},
    {"deltanet", "\"heads\":2,\"rope\":\"none\"", "rope"},
    {"gla", "\"heads\":4", "2 x 4 does not divide d_model 12"},
    {"gla", "\"heads\":2,\"gate_rank\":0", "gate_rank"},
    {"gla", "\"heads\":2,\"gate_divisor\":0", "gate_divisor"},
    {"retention", "\"heads\":4", "head_dim: rope turns pairs, expected an even number, got 3"},
    {"retention", "\"heads\":49,\"head_dim\":2", "heads: expected"},
    {"retention", "\"heads\":1,\"head_dim\":514", "rope"},
    {"gated_retention", "\"heads\":2,\"gate_divisor\":-1", "gate_divisor"},
    {"linear", "\"heads\":2,\"eps\":-1", "eps"},
    {"linear", "\"heads\":5", "5 does not divide d_model 12"},
    {"gdn", "\"heads\":4,\"kv_heads\":3,\"head_dim\":2", "kv_heads: expected a divisor of heads (4), got 3"},
    {"gdn", "\"heads\":2,\"householders\":0", "householders: expected"},
    {"deltanet", "\"heads\":2,\"householders\":17", "householders: expected"},
    {"gla", "\"heads\":2,\"householders\":2", "householders"},
    {"gdn", "\"heads\":2,\"inner_decay\":true,\"householders\":2", "inner_decay: works with householders: 1"},
    {"gdn", "\"heads\":2,\"output_correction\":true,\"kv_heads\":1", "got 1 and 1 of 2"},
    {"deltanet", "\"heads\":2,\"inner_decay\":true", "inner_decay"},
    {"retention", "\"heads\":2,\"kv_heads\":1", "kv_heads"},
    {"gdn", "\"heads\":2,\"levels\":25", "levels: expected"},
    {"gdn", "\"heads\":2,\"levels\":-1", "levels: expected"},
    {"kda", "\"heads\":2,\"levels\":25", "levels: expected"},
    {"kda", "\"heads\":2,\"levels\":-1", "levels: expected"},
    {"kda", "\"heads\":256,\"head_dim\":1024,\"levels\":8",
     "levels: 7 states of 268435456 values are more than 1073741824 in all"},
    {"linear", "\"heads\":2,\"levels\":3", "levels"},
    {"gdn", "\"heads\":256,\"head_dim\":1024,\"v_dim\":1024,\"levels\":8",
     "levels: 7 states of 268435456 values are more than 1073741824 in all"},
    {"mamba2", "\"heads\":256,\"head_dim\":1024,\"state_size\":1024,\"levels\":8",
     "levels: 7 states of 268435456 values are more than 1073741824 in all"},
    {"gdn", "\"heads\":1024,\"head_dim\":32,\"v_dim\":32,\"householders\":16", "heads: 16384 heads"},
    {"mamba2", "\"head_dim\":5", "5 does not divide 2 x d_model 12"},
    {"mamba2", "\"heads\":4,\"groups\":3", "groups: expected a divisor of heads (4), got 3"},
    {"mamba2", "\"heads\":4096,\"head_dim\":1024", "heads:"},
    {"mamba2", "\"conv\":-1,\"head_dim\":4", "conv"},
    {"mamba2", "\"gate\":\"none\",\"head_dim\":4", "gate: expected one of silu, sigmoid"},
    {"gdn", "\"heads\":2,\"gate\":\"relu\"", "gate: expected one of none, silu, sigmoid, false, true, got"},
    {"gla", "\"heads\":2,\"conv_bias\":true", "conv_bias: true, but conv is 0"},
    {"kda", "\"heads\":2,\"conv_bias\":true,\"conv\":0", "conv_bias: true, but conv is 0"},
    {"kda", "\"heads\":2,\"out_gate\":\"none\",\"out_bias\":true", "out_bias: true, but out_gate is none"},
};
static void refused(const char *what, const char *json, const char *part) {
    ModelCfg cfg;
    Model m;
    Device *dev;
    Err e = {0};
    cr_assert(device_open(&dev, "cpu", 1, &e));
    bool read = model_cfg_from_json(&cfg, json, strlen(json), "settings", &e);
    if (read) {
        cr_assert(!model_open(&m, dev, &cfg, (ModelOpts){.dry = true}, &e), "%s was taken", what);
        model_cfg_free(&cfg);
    }
    cr_assert(e.status == EXIT_INPUT && strstr(e.msg, part), "%s: no '%s' in: %s", what, part, e.msg);
    device_close(dev);
}
Test(linear, settings_that_are_refused) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char json[512];
        snprintf(
            json, sizeof json,
            "{\"d_model\":12,\"vocab\":2,\"max_positions\":128,\"layers\":1,\"kinds\":{\"a\":{\"mixer\":\"%s\",%s}},"
            "\"pattern\":[\"a\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":1}]}",
            bad[i].mixer, bad[i].settings);
        refused(bad[i].settings, json, bad[i].part);
    }
}
/* What a public type cannot hold is not written as one. */
Test(linear, grouped_keys_and_products_are_no_qwen) {
    static const char *const more[] = {"", ",\"kv_heads\":2", ",\"householders\":2", ",\"kv_heads\":1"};
    for (int i = 0; i < 4; i++) {
        char json[512];
        ModelCfg cfg;
        Err e = {0};
        const char *why = "";
        snprintf(json, sizeof json,
                 "{\"d_model\":12,\"vocab\":2,\"max_positions\":128,\"layers\":2,\"tied\":true,\"norm_plus_one\":true,"
                 "\"kinds\":{\"s\":{"
                 "\"mixer\":\"gdn\","
                 "\"heads\":2,\"head_dim\":4%s},\"a\":{\"mixer\":\"gqa\",\"heads\":2,\"head_dim\":4,\"qk_norm\":true,"
                 "\"out_gate\":true}},\"pattern\":[\"s\",\"a\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":8}]}",
                 more[i]);
        cr_assert(model_cfg_from_json(&cfg, json, strlen(json), "settings", &e), "%s", e.msg);
        const bool held = hf_type_holds(&hf_qwen3_5_text, &cfg, &why);
        cr_assert(i < 2 ? held : !held && strstr(why, "householders, or fewer kv_heads"), "%s: %d, %s", more[i], held,
                  why);
        model_cfg_free(&cfg);
    }
}
Test(linear, nothing_is_shared_with_a_recurrence) {
    static const char *const mixers_[] = {"gdn", "deltanet", "gla", "retention", "gated_retention", "linear", "mamba2"};
    for (int i = 0; i < 7; i++)
        for (int reader = 0; reader < 2; reader++) {
            char json[512];
            const char *attention = "\"mixer\":\"gqa\",\"heads\":2";
            snprintf(json, sizeof json,
                     "{\"d_model\":12,\"vocab\":2,\"max_positions\":128,\"layers\":2,\"kinds\":{\"a\":{%s},\"r\":{"
                     "\"mixer\":\"%s\",\"head_dim\":2,\"heads\":2}},\"pattern\":[\"%s\",\"%s\"],\"kv_from\":{\"1\":0},"
                     "\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":1}]}",
                     attention, mixers_[i], reader ? "a" : "r", reader ? "r" : "a");
            refused(mixers_[i], json, "kv_from");
        }
}
