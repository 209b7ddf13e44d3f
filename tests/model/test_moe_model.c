/* test_moe_model.c: mixtures of experts as parts of models: costs, names in files, settings, the optimizer, activations
 * in bf16. */
#include "layers/ffn/ffn.h"
#include "model/cost.h"
#include "model/files/hf.h"
#include "model/files/safetensors.h"
#include "optim/optimizer.h"
#include "optim/clip.h"
#include "ops/device.h"
#include "tests/lib/zoo.h"
#include <sys/stat.h>

static int animal(const char *name) {
    int i = 0;
    while (i < zoo_count() && strcmp(zoo[i].name, name)) i++;
    cr_assert(i < zoo_count(), "no animal %s", name);
    return i;
}
Test(moe, a_token_costs_its_own_experts) {
    ModelCfg cfg;
    Model m;
    Device *dev;
    zoo_open(&zoo[animal("mixture, sigmoid, groups, shared")], &cfg, &m, NULL, &dev, (ModelOpts){0});
    Cost c = cost_model(&m, 10);
    size_t d = 12, F = 5, expert = 3 * d * F, rest = 11 * d + d + 2 * (2 * d + 4 * d * d),
           router = 8 * d; /* the balancing bias is no parameter */
    cr_assert_eq(c.params, rest + 2 * (router + 8 * expert + 3 * d * 2 * F));
    cr_assert_eq(c.active, rest + 2 * (router + 3 * expert + 3 * d * 2 * F));
    cr_assert_eq(c.matmul, c.active - 5 * d);
    cr_assert(c.all_half == 6.0 * (double)c.active + 6.0 * 2 * 12 * 10);
    zoo_close(&cfg, &m, NULL, dev);
    zoo_open(&zoo[0], &cfg, &m, NULL, &dev, (ModelOpts){0});
    c = cost_model(&m, 10);
    cr_assert_eq(c.active, c.params);
    zoo_close(&cfg, &m, NULL, dev);
}

/* Files hold the names that DeepSeek-V3 has, and give the same model back. */
Test(moe, saved_and_loaded) {
    ModelCfg cfg, cfg2;
    Model m, back;
    Workspace work, work2;
    Device *dev;
    Err e = {0};
    St st;
    char *dir = check_path("mixture");
    const Animal *a = &zoo[animal("mixture, sigmoid, groups, shared")];
    zoo_open(a, &cfg, &m, &work, &dev, (ModelOpts){.max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
    cr_assert(mkdir(dir, 0777) == 0 && hf_save(dir, &m, NULL, REAL, &e), "%s", e.msg);
    cr_assert(st_open_dir(&st, dir, &e), "%s", e.msg);
    const char *names[] = {"gate.weight", "gate.e_score_correction_bias", "experts.7.down_proj.weight",
                           "shared_experts.up_proj.weight"};
    for (int i = 0; i < 4; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.1.mlp.%s", names[i]);
        cr_assert(st_find(&st, name), "no %s", name);
    }
    st_close(&st);
    cr_assert(hf_config_read(dir, &cfg2, &e), "%s", e.msg);
    cr_assert(zoo_model(&back, &work2, dev, &cfg2, (ModelOpts){.max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS}, &e) &&
                  hf_load(dir, &back, &e),
              "%s", e.msg);
    Pass p;
    real nll[ZOO_ROWS], again[ZOO_ROWS];
    zoo_whole(&p, cfg.vocab);
    model_loss(&m, &work, &p.b, p.tok, p.tgt, nll);
    model_loss(&back, &work2, &p.b, p.tok, p.tgt, again);
    CHECK_BYTES("losses", again, nll, sizeof(real) * (size_t)p.b.N);
    workspace_close(&work2);
    model_close(&back);
    model_cfg_free(&cfg2);
    zoo_close(&cfg, &m, &work, dev);
    free(dir);
}

Test(moe, refused_settings) {
    static const struct {
        const char *settings, *part;
    } bad[] = {
        {"experts: 4, top_k: 5, hidden: 8", "top_k: 5 is more than experts, 4"},
        {"experts: 6, top_k: 2, hidden: 8, groups: 4", "groups: 4 does not divide experts, 6"},
        {"experts: 6, top_k: 2, hidden: 8, groups: 3, top_groups: 4", "top_groups: 4 is more than groups, 3"},
        {"experts: 6, top_k: 3, hidden: 8, groups: 3, top_groups: 1", "top_k: 3 is more than the 2 experts"},
        {"experts: 4, top_k: 2, hidden: 0", "hidden"},
        {"experts: 0, top_k: 1, hidden: 8", "experts"},
        {"experts: 4, top_k: 0, hidden: 8", "top_k"},
        {"experts: 600, top_k: 1, hidden: 8", "experts"},
        {"experts: 4, hidden: 8", "top_k: required"},
        {"experts: 4, top_k: 2, hidden: 8, router: tanh", "router"},
        {"experts: 4, top_k: 2, hidden: 8, scale: 0", "scale"},
        {"experts: 4, top_k: 2, hidden: 8, shared: -1", "shared"},
        {"experts: 4, top_k: 2, hidden: 1048576, shared: 2", "shared: 2 experts of hidden 1048576"},
        {"experts: 4, top_k: 2, hidden: 8, expert: 3", "did you mean model.ffn.experts?"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = xformat("model: {d_model: 32, layers: 2, max_positions: 8, kinds: {a: {mixer: gqa, heads: 2}}, "
                             "ffn: {kind: moe, %s}}",
                             bad[i].settings);
        Err e = {0};
        Config *c = xcalloc(1, sizeof *c);
        cr_assert(!config_parse(c, text, strlen(text), "x.yaml", 0, NULL, &e), "%s", bad[i].settings);
        cr_assert(e.status == EXIT_INPUT && strstr(e.msg, bad[i].part) && strstr(e.msg, "model.ffn"), "%s: %s",
                  bad[i].settings, e.msg);
        free(c);
        free(text);
    }
}

/* The optimizer's side: a step of fixed size against the sign, whatever the clipping, the learning rate and the size;
 * zero stays; it counts in no norm; training from a skewed state reaches the whole model. */
Test(moe, balancing_is_no_gradient) {
    real w[4][5] = {{1, 2, 3, -4, 5}, {1000, -1, 0, (real)0.125, -30}, {0}, {0}}, u[4][2] = {{1, 1}, {3, 4}, {0}, {0}};
    Params s = {0};
    Device *dev;
    Err e = {0};
    Arena scratch = {0};
    for (int role = 0; role < PARAM_ROLES; role++) {
        Fields f = params_visitor(&s, (ParamRole)role);
        Tensor bias = {.p = w[role]}, plain = {.p = u[role]};
        field(&f, &bias, "bias", FIELD_BALANCE, 1, 5); /* rank 2, and still not decayed */
        field(&f, &plain, "plain", 0, 2);
    }
    const OptimCfg a = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.5, .balance_rate = 0.25};
    params_check(&s);
    optimizer_declare(&s, &a);
    for (int k = 0; k < 2; k++) s.p[0].state[k].t.p = w[2 + k], s.p[1].state[k].t.p = u[2 + k];
    cr_assert(!param_decays(&s.p[0]));
    cr_assert(device_open(&dev, "cpu", 1, &e) && arena_open(&scratch, "scratch", 1 << 16, true, &e), "%s", e.msg);
    Run run = run_make(dev, &scratch);
    Clip clip = clip_norm(&run, &s, 1);
    cr_assert(fabs(clip.norm - 5) < 1e-12, "norm %g", clip.norm);
    for (int t = 1; t <= 2; t++) optimizer_step(&run, &s, &(OptimizerCfg){.set = &a}, 1e-3, clip.scale, t);
    const real want[] = {(real)0.5, (real)2.5, 3, (real)-4.5, (real)5.5};
    CHECK_BYTES("bias", w[0], want, sizeof want);
    cr_assert(u[0][0] < 1 && u[0][0] > (real)0.99);
    params_free(&s);
    arena_close(&scratch);
    device_close(dev);
}

/* ---- activations in bf16 --------------------------------------------------------------------------------------------
 */
/* A training step with activations in BF16 in memory and, but in the double build, products in bf16, beside one with
 * neither: so in the double build beside double. The same experts for every row first, then losses and gradients.
 * Attention in bf16 takes an instruction: where it is not there, the models without are held to this. */
#define MIXTURE(mixer, settings)                                                                     \
    "{\"d_model\":24,\"vocab\":11,\"max_positions\":64,\"init_std\":0.2,\"layers\":2,\"tied\":true," \
    "\"ffn\":{\"kind\":\"moe\",\"experts\":6,\"top_k\":2,\"hidden\":16" settings                     \
    "},\"kinds\":{\"a\":{\"mixer\":" mixer "}},\"pattern\":[\"a\"]}"
#define ATTENTION "\"gqa\",\"heads\":2,\"kv_heads\":1,\"head_dim\":16"
static const struct {
    const char *name, *json;
    bool attends;
} mixtures[] = {{"softmax", MIXTURE("\"none\"", ""), false},
                {"sigmoid, shared", MIXTURE("\"none\"", ",\"shared\":1,\"router\":\"sigmoid\""), false},
                {"attention", MIXTURE(ATTENTION, ""), true},
                {"attention, sigmoid, shared", MIXTURE(ATTENTION, ",\"shared\":1,\"router\":\"sigmoid\""), true}};
enum { CHOICES = 1024 };
typedef struct {
    ModelCfg cfg;
    Model m;
    Workspace work;
    Device *dev;
    Ops ops;
    bool half;
    real nll[ZOO_ROWS];
    int choice[CHOICES], n; /* of all layers: rows by place, and where experts' places begin */
} Side;
static const Ops *own; /* the table whose ops do the work */
static Side *served;   /* by them */
static void note(const int *x, int n) {
    cr_assert(served->n + n <= CHOICES);
    memcpy(served->choice + served->n, x, (size_t)n * sizeof *x);
    served->n += n;
}
static void noted_spread(Run *r, Tensor y, Tensor x, const int *row) {
    cr_assert(y.dtype == (served->half ? BF16 : REAL), "rows are %s", dtype_name(y.dtype));
    if (!measuring(r)) note(row, y.n[0]);
    own->spread(r, y, x, row);
}
static void noted_groups(Run *r, Tensor y, Tensor x, Groups g, const Tensor *w) {
    if (!measuring(r)) note(g.off, g.n + 1);
    own->linear_groups(r, y, x, g, w);
}
/* False: attention in bf16 is not to be had here. plant: a mistake in the table of ops. */
static bool side_step(Side *s, int of, bool half, void (*plant)(Ops *)) {
    const char *json = mixtures[of].json;
    Err e = {0};
    Pass p;
    real g[ZOO_ROWS];
    *s = (Side){.half = half};
    cr_assert(device_open(&s->dev, "cpu", 2, &e), "%s", e.msg);
    if (half && REAL == F32) {
        cr_assert(device_bf16(s->dev, true, &e), "%s", e.msg);
        gemm_use(s->dev->gemm, s->dev->gemm_bf16, 2, 0); /* every product, however small */
    }
    if (half && mixtures[of].attends && !device_bf16_acts(s->dev)) {
        device_close(s->dev);
        return false;
    }
    s->dev->pairs = half;
    served = s, own = s->dev->ops, s->ops = *own;
    s->ops.spread = noted_spread, s->ops.linear_groups = noted_groups;
    if (plant) plant(&s->ops);
    s->dev->ops = &s->ops;
    cr_assert(model_cfg_from_json(&s->cfg, json, strlen(json), mixtures[of].name, &e), "%s", e.msg);
    const ModelOpts o = {.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS, .poison = true};
    cr_assert(zoo_model(&s->m, &s->work, s->dev, &s->cfg, o, &e), "%s", e.msg);
    model_init(&s->m, 11); /* no two choices are close */
    zoo_whole(&p, s->cfg.vocab);
    for (int i = 0; i < p.b.N; i++) g[i] = p.tgt[i] < 0 ? 0 : (real)(1.0 / p.b.N);
    model_zero_grad(&s->m);
    model_train(&s->m, &s->work, &p.b, p.tok, p.tgt, g, s->nll);
    return true;
}
static void side_close(Side *s) { zoo_close(&s->cfg, &s->m, &s->work, s->dev); }
typedef struct {
    const Tensor *want;
    int n;
    double mean, all, size, field; /* squares: of a number on average, of all differences, of all; the worst field */
    char path[96];
} Apart;
static void see_want(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path, (void)flags;
    Tensor **to = f->ctx;
    *(*to)++ = *t;
}
static void see_apart(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Apart *a = f->ctx;
    const real *got = R(*t), *want = R(a->want[a->n++]);
    size_t n = tensor_count(*t);
    double e = 0, own = 0;
    (void)flags;
    for (size_t i = 0; i < n; i++) {
        e += pow((double)got[i] - (double)want[i], 2);
        own += pow((double)want[i], 2);
    }
    a->all += e, a->size += own;
    e = sqrt(e / fmax(own, 0.01 * a->mean * (double)n)); /* hardly any gradient: a difference of rounded numbers */
    if (!(e <= a->field)) a->field = e, snprintf(a->path, sizeof a->path, "%.95s", path);
}
static Apart gradients_apart(Side *got, Side *want) {
    enum { FIELDS = 256 };
    Tensor all[FIELDS], *end = all;
    Apart a = {.want = all};
    size_t n = 0;
    Fields f = {.see = see_want, .ctx = &end}, g = {.see = see_apart, .ctx = &a};
    model_fields(&want->m, &want->m.g, &f);
    cr_assert(end - all < FIELDS);
    for (const Tensor *t = all; t < end; n += tensor_count(*t++))
        for (size_t i = 0; i < tensor_count(*t); i++) a.mean += pow((double)R(*t)[i], 2);
    a.mean /= (double)n;
    model_fields(&got->m, &got->m.g, &g);
    return a;
}
static double losses_apart(const Side *got, const Side *want) {
    double e = 0, size = 0;
    for (int i = 0; i < ZOO_ROWS; i++)
        e += pow((double)got->nll[i] - (double)want->nll[i], 2), size += pow((double)want->nll[i], 2);
    return sqrt(e / size);
}
static const double losses_rms = 2e-2, gradient_rms = 4e-2;
Test(moe, activations_in_bf16) {
    int ran = 0;
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++) {
        Side half, wide;
        if (!side_step(&half, (int)i, true, NULL)) continue;
        cr_assert(side_step(&wide, (int)i, false, NULL));
        cr_assert(wide.n > 0 && half.n == wide.n && !memcmp(half.choice, wide.choice, (size_t)wide.n * sizeof(int)),
                  "%s: other experts are chosen: take another seed", mixtures[i].name);
        Apart a = gradients_apart(&half, &wide);
        const double losses = losses_apart(&half, &wide), gradient = sqrt(a.all / a.size);
        printf("%s: losses %.2g apart, gradients %.2g, %s %.2g\n", mixtures[i].name, losses, gradient, a.path, a.field);
        cr_assert(losses <= losses_rms && losses > 1e-5 && gradient <= gradient_rms && a.field <= gradient_rms,
                  "%s: losses %.3g apart, gradients %.3g, %s %.3g", mixtures[i].name, losses, gradient, a.path,
                  a.field);
        side_close(&half), side_close(&wide);
        ran++;
    }
    cr_assert(ran >= 2);
}
/* Mistakes of a table's ops, which the bounds see tenfold. */
static void other_rows(Run *r, Tensor y, Tensor x, const int *row) {
    int *next = xcalloc((size_t)y.n[0], sizeof *next);
    for (int j = 0; j < y.n[0] && !measuring(r); j++) next[j] = (row[j] + 1) % x.n[0];
    own->spread(r, y, x, next);
    free(next);
}
static void nothing_back(Run *r, Into y, Tensor x, const int *place, int k) {
    if (y.t.dtype == BF16)
        begin_sum(r, y);
    else
        own->collect(r, y, x, place, k);
}
static void no_factor(Run *r, Into dgate, Into dup, Into ds, Tensor dy, Tensor gate, Tensor up, Tensor s) {
    own->swiglu_rows_backward(r, dgate, dup, ds, dy, gate, up, s);
    if (dup.t.dtype == BF16) own->zero(r, dup.t);
}
static void plant_spread(Ops *o) { o->spread = other_rows; }
static void plant_collect(Ops *o) { o->collect = nothing_back; }
static void plant_gates(Ops *o) { o->swiglu_rows_backward = no_factor; }
Test(moe, mistakes_in_bf16_show) {
    static void (*const plants[])(Ops *) = {plant_spread, plant_collect, plant_gates};
    Side wide, half;
    cr_assert(side_step(&wide, 1, false, NULL));
    for (int k = 0; k < 3; k++) {
        cr_assert(side_step(&half, 1, true, plants[k]));
        Apart a = gradients_apart(&half, &wide);
        printf("mistake %d: gradients %.2g apart, %s %.2g\n", k, sqrt(a.all / a.size), a.path, a.field);
        cr_assert(a.field > 10 * gradient_rms, "mistake %d goes unnoticed: %s %.3g", k, a.path, a.field);
        side_close(&half);
    }
    side_close(&wide);
}
