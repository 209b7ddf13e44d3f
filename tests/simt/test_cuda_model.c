/* test_cuda_model.c: whole models on the CUDA backend beside the CPU's: where their numbers lie, a training step field
 * by field, passes over a history. Runs of the program are in test_cuda_run.c. */
#include "tests/lib/zoo.h"
#include "layers/mixer.h"
#include "model/files/hf.h"
#include "optim/state.h"
#include "ops/device.h"
#include "ops/host.h"
#include <sys/stat.h>

/* ---- a model on a device --------------------------------------------------------------------------------------------
 */
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Workspace work;
} Side;
/* False: refused, `e` says why. */
static bool side_open(Side *s, const char *device, const Animal *a, ModelOpts o, Err *e) {
    *s = (Side){0};
    cr_assert(model_cfg_from_json(&s->cfg, a->json, strlen(a->json), a->name, e), "%s: %s", a->name, e->msg);
    cr_assert(device_open(&s->dev, device, 1, e), "%s", e->msg);
    o.poison = true;
    if (!zoo_model(&s->m, &s->work, s->dev, &s->cfg, o, e)) {
        model_cfg_free(&s->cfg);
        device_close(s->dev);
        return false;
    }
    model_init(&s->m, 7);
    s->work.progress = 0.3;
    return true;
}
static void side_close(Side *s) { zoo_close(&s->cfg, &s->m, &s->work, s->dev); }

/* ---- comparing fields by name ---------------------------------------------------------------------------------------
 */
typedef struct {
    Device *dev;
    int n, at;
    Tensor *t; /* the CPU's, in the order of the declaration */
    double tol;
    bool same;
    char *msg; /* of 512: the first that differs */
} Compare;
static void see_want(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Compare *c = f->ctx;
    (void)path, (void)flags;
    c->t = xrealloc(c->t, (size_t)c->n + 1, sizeof *c->t);
    c->t[c->n++] = *t;
}
static void see_got(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Compare *c = f->ctx;
    (void)flags;
    Tensor want = c->t[c->at++], got = view_open(c->dev, *t, true);
    size_t n = tensor_count(got);
    if (c->same && c->tol == 0) c->same = check_bytes(c->msg, path, got.p, want.p, n * sizeof(float));
    double norm = 0;
    for (size_t i = 0; i < n && c->tol > 0; i++) norm += (double)R(want)[i] * (double)R(want)[i];
    CheckView g = {got.p, F32}, w = {want.p, F32};
    if (c->same && c->tol > 0) /* of an expert that no row went to, or a window of one, the gradient is nothing */
        c->same = norm > 0 ? check_rms(c->msg, path, g, w, n, c->tol) : check_close(c->msg, path, g, w, n, 1e-6);
    view_close(c->dev, *t, got, false);
}
/* tol 0: bit for bit; else norm-wise. */
static bool weights_same(char msg[512], Side *cuda, Weights *got, Side *cpu, Weights *want, double tol) {
    Compare c = {.dev = cuda->dev, .tol = tol, .same = true, .msg = msg};
    Fields f = {.see = see_want, .ctx = &c}, g = {.see = see_got, .ctx = &c};
    model_fields(&cpu->m, want, &f);
    model_fields(&cuda->m, got, &g);
    cr_assert(c.at == c.n && c.n > 3, "%d fields", c.n);
    free(c.t);
    return c.same;
}

/* ---- where numbers lie ----------------------------------------------------------------------------------------------
 */

/* Every mixer's initial values are the CPU's to the bit, and come back from a file; gradients and moments are zero. */
Test(cuda_model, begins_as_on_the_cpu, .timeout = 120) {
    Err e = {0};
    char msg[512];
    for (int i = 0; i < zoo_count(); i++) {
        Side cpu, cuda, again;
        cr_assert(side_open(&cpu, "cpu", &zoo[i], (ModelOpts){0}, &e), "%s", e.msg);
        cr_assert(side_open(&cuda, "cuda", &zoo[i], (ModelOpts){0}, &e), "%s", e.msg);
        cr_assert(weights_same(msg, &cuda, &cuda.m.w, &cpu, &cpu.m.w, 0), "%s: %s", zoo[i].name, msg);
        char *dir = check_path(xformat("model%d", i)), *file = xformat("%s/model.safetensors", dir),
             *other = check_path(xformat("cpu%d", i)), *its = xformat("%s/model.safetensors", other);
        size_t n[2];
        cr_assert(mkdir(dir, 0777) == 0 && mkdir(other, 0777) == 0);
        cr_assert(hf_save(dir, &cuda.m, NULL, i % 2 ? BF16 : F32, &e) &&
                      hf_save(other, &cpu.m, NULL, i % 2 ? BF16 : F32, &e),
                  "%s", e.msg);
        char *a = check_read(file, &n[0]), *b = check_read(its, &n[1]);
        cr_assert(n[0] == n[1] && n[0] > 1000);
        CHECK_BYTES(zoo[i].name, a, b, n[0]);
        cr_assert(side_open(&again, "cuda", &zoo[i], (ModelOpts){0}, &e), "%s", e.msg);
        model_init(&again.m, 8);
        cr_assert(!weights_same(msg, &again, &again.m.w, &cpu, &cpu.m.w, 0), "another seed gives the same");
        cr_assert(hf_load(dir, &again.m, &e) && hf_load(other, &cpu.m, &e), "%s", e.msg);
        cr_assert(weights_same(msg, &again, &again.m.w, &cpu, &cpu.m.w, 0), "%s: %s", zoo[i].name, msg);
        side_close(&cpu), side_close(&cuda), side_close(&again);
        free(a), free(b), free(dir), free(file), free(other), free(its);
    }
}
static void see_zero(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    Tensor view = view_open(f->ctx, *t, true);
    for (size_t i = 0; i < tensor_bytes(view); i++) cr_assert(((char *)view.p)[i] == 0, "%s, byte %zu", path, i);
    view_close(f->ctx, *t, view, false);
}
Test(cuda_model, gradients_and_moments_begin_at_zero) {
    Err e = {0};
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        Side s;
        cr_assert(side_open(&s, "cuda", &zoo[zoo_find("none between attention")],
                            (ModelOpts){.train = true, .max_rows = 8, .max_samples = 1}, &e),
                  "%s", e.msg);
        Fields f = {.see = see_zero, .ctx = s.dev};
        model_fields(&s.m, &s.m.g, &f);
        Params p = {0};
        Arena state[STATES_MAX] = {{0}};
        const OptimCfg set = {.state_dtype = is_bf16 ? STATE_BF16 : STATE_F32};
        Fields weights = params_visitor(&p, PARAM_WEIGHT);
        model_fields(&s.m, &s.m.w, &weights);
        optimizer_declare(&p, &set);
        cr_assert(states_open(&p, state, &adamw_optimizer, s.dev, true, false, &e), "%s", e.msg);
        for (int i = 0; i < p.n; i++)
            for (int k = 0; k < 2; k++) {
                cr_assert(present(p.p[i].state[k].t));
                see_zero(&f, &p.p[i].state[k].t, p.p[i].name, 0);
            }
        params_free(&p);
        states_close(state);
        side_close(&s);
    }
}

/* ---- a training step ------------------------------------------------------------------------------------------------
 */

/* The zoo by turns: the step takes the even ones, decoding the odd ones, each what brings a mixer or a feed-forward
 * part that it has not met as well. Ops are held to the CPU's in all their forms one by one (suite ops) and all of the
 * zoo runs on the CPU; what shows here alone is what a kind of layer asks of the device, and emulation is slow. */
typedef struct {
    int ran;
    uint64_t met;
} Turns;
static uint64_t kinds_of(const char *json) { /* NULL: all that there are */
    uint64_t kinds = 0, bit = 1;
    char what[64];
    for (int i = 0; mixers[i]; i++, bit <<= 1) {
        snprintf(what, sizeof what, "\"mixer\":\"%s\"", mixers[i]->name);
        if (!json || strstr(json, what)) kinds |= bit;
    }
    for (int i = 0; ffns[i]; i++, bit <<= 1) {
        snprintf(what, sizeof what, "\"kind\":\"%s\"", ffns[i]->name);
        if (!json || strstr(json, what)) kinds |= bit;
    }
    return kinds;
}
static bool turn_of(Turns *t, int i, int half) {
    uint64_t kinds = kinds_of(zoo[i].json);
    bool decides = zoo_decides(&zoo[i]); /* the host and the device share its cache's work: always */
    if (i % 2 != half && !decides && !(kinds & ~t->met)) return false;
    t->met |= kinds;
    return true;
}
static void turns_done(const Turns *t, const char *what) {
    fprintf(stderr, "%d of %d models %s on the device\n", t->ran, zoo_count(), what);
    cr_assert(t->ran >= 39, "%d", t->ran);
    cr_assert(t->met == kinds_of(NULL), "kinds of layers that no model had: %llx",
              (unsigned long long)(t->met ^ kinds_of(NULL)));
}

/* What mixers report: the sums as they came, then the loss on them. */
typedef struct {
    double loss; /* first: zoo_stat_loss adds to it */
    real stat[ZOO_SEQS * STATS * 2];
} Reported;
static void reported(void *ctx, Tensor stat, Tensor dstat) {
    Reported *s = ctx;
    cr_assert(tensor_count(stat) == ZOO_SEQS * STATS * 2);
    memcpy(s->stat, stat.p, sizeof s->stat);
    zoo_stat_loss(ctx, stat, dstat);
}

typedef void Plant(Ops *); /* a mistake in the device's table */
static const double step_tol = 1e-5;
/* Of a field of a training step. Recurrences magnify the rounding of small sums: where the two devices differ most in
 * gated retention (a gradient of 0.5) the CPU misses the double build by 2e-5, this backend by 1e-5. */
static double tol_of(const Model *m) {
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].rows.state) return 3e-5;
    return step_tol;
}

/* One micro-batch of three packed sequences forward and backward on both devices. 1: the same, 0: `msg` names the
 * first field that differs. */
static int step_same(char msg[512], const Animal *a, ModelOpts o, Plant *plant) {
    Err e = {0};
    Side cpu, cuda;
    o.train = true, o.max_rows = ZOO_ROWS, o.max_samples = ZOO_SEQS;
    cr_assert(side_open(&cuda, "cuda", a, o, &e), "%s: %s", a->name, e.msg);
    cr_assert(side_open(&cpu, "cpu", a, o, &e), "%s", e.msg);
    if (plant) plant(&cuda.dev->own);
    Pass p;
    real g[ZOO_ROWS], nll[2][ZOO_ROWS], score[2][ZOO_ROWS];
    int hit[2][ZOO_ROWS];
    Reported said[2];
    memset(said, 0, sizeof said);
    zoo_whole(&p, cpu.cfg.vocab);
    int N = p.b.N;
    for (int i = 0; i < N; i++) g[i] = p.tgt[i] < 0 ? 0 : (real)(1.0 / N);
    Side *side[] = {&cpu, &cuda};
    for (int k = 0; k < 2; k++) {
        side[k]->work.seed = 11, side[k]->work.step = 3;
        side[k]->work.stat_loss = reported, side[k]->work.stat_ctx = &said[k];
        model_zero_grad(&side[k]->m);
        for (int times = 0; times < (o.dropout > 0 ? 2 : 1); times++) /* gradients add up */
            model_train(&side[k]->m, &side[k]->work, &p.b, p.tok, p.tgt, g, nll[k]);
        model_score(&side[k]->m, &side[k]->work, &p.b, p.tok, p.tgt, score[k], hit[k]);
    }
    double tol = tol_of(&cpu.m);
    bool ok =
        check_bytes(msg, "hard decisions", said[1].stat, said[0].stat, sizeof said[0].stat) &&
        check_rms(msg, "nll", CHECK_VIEW(nll[1]), CHECK_VIEW(nll[0]), (size_t)N, tol) &&
        weights_same(msg, &cuda, &cuda.m.g, &cpu, &cpu.m.g, tol) &&
        check_rms(msg, "nll of a pass without gradient", CHECK_VIEW(score[1]), CHECK_VIEW(score[0]), (size_t)N, tol) &&
        check_bytes(msg, "hits", hit[1], hit[0], (size_t)N * sizeof **hit) &&
        weights_same(msg, &cuda, &cuda.m.w, &cpu, &cpu.m.w, 0);
    side_close(&cpu), side_close(&cuda);
    return ok;
}
Test(cuda_model, a_step_is_the_cpus_field_by_field, .timeout = 300) {
    Turns turns = {0};
    for (int i = 0; i < zoo_count(); i++) {
        char msg[512];
        if (!turn_of(&turns, i, 0)) continue;
        int same = step_same(msg, &zoo[i], (ModelOpts){0}, NULL);
        cr_assert(same != 0, "%s: %s", zoo[i].name, msg);
        turns.ran += same > 0;
    }
    turns_done(&turns, "train");
}
Test(cuda_model, dropout_and_recomputation_are_the_cpus, .timeout = 120) {
    char msg[512];
    const char *const names[] = {"gqa", "publisher and readers (YOCO)", "mixture, sigmoid, groups, shared"};
    for (int i = 0; i < 3; i++)
        cr_assert(step_same(msg, &zoo[zoo_find(names[i])], (ModelOpts){.dropout = 0.2, .recompute = i ? -1 : 1}, NULL) >
                      0,
                  "%s: %s", names[i], msg);
}

/* What ops read of the host they find where the pass has brought it: two copies, of that and of the losses'
 * derivatives, for all layers; passes over a history bring what has changed of the cache's tables by one, and store
 * their rows by two more for each slot. */
unsigned long simt_uploads(void) __attribute__((weak));
Test(cuda_model, a_pass_brings_the_hosts_numbers_at_once, .timeout = 60) {
    if (!simt_uploads) cr_skip("a device counts no copies");
    Err e = {0};
    const Animal *a = &zoo[zoo_find("none between attention")];
    Side s;
    ModelOpts o = {.train = true, .max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS, .dropout = 0.1};
    Cache cache;
    Pass p;
    real g[ZOO_ROWS], nll[ZOO_ROWS], logits[ZOO_ROWS * 16];
    cr_assert(side_open(&s, "cuda", a, o, &e), "%s", e.msg);
    zoo_whole(&p, s.cfg.vocab);
    for (int i = 0; i < p.b.N; i++) g[i] = (real)0.1;
    model_zero_grad(&s.m);
    unsigned long before = simt_uploads();
    model_train(&s.m, &s.work, &p.b, p.tok, p.tgt, g, nll);
    cr_assert_eq(simt_uploads() - before, 2);
    model_score(&s.m, &s.work, &p.b, p.tok, p.tgt, nll, NULL);
    cr_assert_eq(simt_uploads() - before, 3);
    cr_assert(model_cache_open(&s.m, &cache, ZOO_SEQS, ZOO_ROWS, ZOO_ROWS, 3, false, &e) &&
                  model_extend_reserve(&s.m, &s.work, &cache, ZOO_ROWS, ZOO_ROWS, ZOO_SEQS, &e),
              "%s", e.msg);
    int slots = 0;
    for (int l = 0; l < s.m.L; l++) slots += s.m.layer[l].owner && s.m.layer[l].rows.lanes;
    before = simt_uploads();
    cr_assert(slots > 0 && s.cfg.vocab <= 16 &&
              model_extend(&s.m, &s.work, &cache, &p.b, p.tok, (RowList){p.b.N, s.work.idx},
                           TENSOR(logits, REAL, p.b.N, s.cfg.vocab), &e));
    cr_assert_eq(simt_uploads() - before, 2 + 4 * (unsigned long)slots, "%lu copies, %d slots", simt_uploads() - before,
                 slots);
    kv_close(&cache);
    side_close(&s);
}

/* Mistakes of a backend that the comparison must see, each in the field that it shows in first. */
static void turns_forward_alone(Run *r, Tensor x, const Rope *p, RowList rows, int sign) {
    (void)sign;
    cuda_ops()->rope(r, x, p, rows, 1);
}
static void forgets_the_table(Run *r, Tensor dtable, Tensor dy, const int *tok, double scale) {
    (void)r, (void)dtable, (void)dy, (void)tok, (void)scale;
}
static void ten_thousandth_more(Run *r, Tensor y, Tensor gate, Tensor up) {
    cuda_ops()->swiglu(r, y, gate, up);
    cuda_ops()->axpby(r, y, 0, y, 1.0001);
}
static void drops_elsewhere(Run *r, Tensor x, DropSite site, double p) {
    cuda_ops()->dropout(r, x, site == DROP_FFN ? DROP_MIXER : site, p);
}
static void gradient_overwritten(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    cuda_ops()->zero(r, dw);
    cuda_ops()->rmsnorm_backward(r, dx, dw, dy, x, w, rstd);
}
static void plant_rope(Ops *o) { o->rope = turns_forward_alone; }
static void plant_table(Ops *o) { o->embed_backward = forgets_the_table; }
static void plant_swiglu(Ops *o) { o->swiglu = ten_thousandth_more; }
static void plant_dropout(Ops *o) { o->dropout = drops_elsewhere; }
static void plant_norm(Ops *o) { o->rmsnorm_backward = gradient_overwritten; }
Test(cuda_model, mistakes_show, .timeout = 120) {
    static const struct {
        Plant *plant;
        const char *field;
    } planted[] = {{plant_rope, "model.embed_tokens.weight"},
                   {plant_table, "model.embed_tokens.weight"},
                   {plant_swiglu, "nll"},
                   {plant_dropout, "nll"},
                   {plant_norm, "input_layernorm.weight"}};
    const Animal *a = &zoo[zoo_find("gqa")];
    char msg[512];
    ModelOpts o = {.dropout = 0.1};
    cr_assert(step_same(msg, a, o, NULL) == 1, "%s", msg);
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        cr_assert(step_same(msg, a, o, planted[i].plant) == 0, "mistake %zu was not seen", i);
        cr_assert(strstr(msg, planted[i].field), "mistake %zu shows in: %s", i, msg);
    }
}

/* ---- passes over a history ------------------------------------------------------------------------------------------
 */

static RowList pick(int n, int *idx) {
    for (int i = 0; i < n; i++) idx[i] = i;
    return (RowList){n, idx};
}
typedef struct {
    Side s;
    Cache cache;
} Decoder;
enum { PAGE_ROWS = 3, COPY = ZOO_SEQS };
static bool decoder_open(Decoder *d, const char *device, const Animal *a, Err *e) {
    cr_assert(side_open(&d->s, device, a, (ModelOpts){0}, e), "%s", e->msg);
    cr_assert(model_cache_open(&d->s.m, &d->cache, ZOO_SEQS + 1, ZOO_ROWS, ZOO_ROWS, PAGE_ROWS, false, e), "%s",
              e->msg);
    if (model_extend_reserve(&d->s.m, &d->s.work, &d->cache, ZOO_ROWS, ZOO_ROWS, ZOO_SEQS, e)) return true;
    kv_close(&d->cache);
    side_close(&d->s);
    return false;
}
static void decoder_close(Decoder *d) {
    kv_close(&d->cache);
    side_close(&d->s);
}
/* Rows of every lane, one after the other. */
typedef struct {
    int n, rows[4096];
} Lengths;
static void lengths(const Decoder *d, Lengths *to) {
    for (int l = 0; l < d->s.m.L; l++)
        for (int i = 0; d->s.m.layer[l].owner && i < (COPY + 1) * d->s.m.layer[l].rows.lanes; i++) {
            cr_assert(to->n < (int)(sizeof to->rows / sizeof *to->rows));
            int lanes = d->s.m.layer[l].rows.lanes;
            to->rows[to->n++] = kv_rows(kv_slot(&d->cache, l), i / lanes, i % lanes);
        }
}
/* Prefill, a chunk, rows one by one, a document that ends inside of a pass, nobody asked, a verification that is
 * accepted in part, and a fork that goes on beside its original: all logits into `out`, in order, and how long the
 * lanes were behind each pass. Returns how many logits. */
static int decode_all(Decoder *d, real *out, Lengths *kept) {
    static const int from[][ZOO_SEQS] = {{0, 0, 0}, {4, 0, 2}, {4, 3, 2}, {5, 3, 4}, {6, 4, 4}, {6, 6, 5}};
    static const int n[][ZOO_SEQS] = {{4, 0, 2}, {0, 3, 0}, {1, 0, 2}, {1, 1, 0}, {0, 2, 1}, {1, 2, 1}};
    Err e = {0};
    Pass whole, p;
    int idx[ZOO_ROWS], V = d->s.cfg.vocab, rows = 0;
    zoo_whole(&whole, V);
    for (size_t k = 0; k < sizeof n / sizeof *n; k++) {
        zoo_part(&p, &whole, from[k], n[k], NULL);
        RowList want = pick(k == 1 ? 0 : p.b.N, idx);
        Tensor logits = TENSOR(out + rows * V, REAL, want.n, V);
        if (k == 4) { /* one row of the two of sequence 1, none of sequence 2; then the rest again */
            const int accept[] = {0, 1, 0}, again[] = {0, 5, 4}, left[] = {0, 1, 1};
            cr_assert(model_verify(&d->s.m, &d->s.work, &d->cache, &p.b, p.tok, want, logits, &e), "%s", e.msg);
            rows += want.n;
            model_commit(&d->s.m, &d->s.work, &d->cache, &p.b, accept);
            lengths(d, kept);
            kv_fork(&d->cache, 1, COPY);
            zoo_part(&p, &whole, again, left, NULL);
            want = pick(p.b.N, idx);
            logits = TENSOR(out + rows * V, REAL, want.n, V);
        }
        cr_assert(model_extend(&d->s.m, &d->s.work, &d->cache, &p.b, p.tok, want, logits, &e), "%s", e.msg);
        lengths(d, kept);
        rows += want.n;
    }
    /* The copy saw less than its original: it takes rows 5 to 7 of sequence 1 now. */
    zoo_part(&p, &whole, (const int[]){0, 5, 0}, (const int[]){0, 3, 0}, NULL);
    p.seq[1] = COPY;
    cr_assert(model_extend(&d->s.m, &d->s.work, &d->cache, &p.b, p.tok, pick(p.b.N, idx),
                           TENSOR(out + rows * V, REAL, p.b.N, V), &e),
              "%s", e.msg);
    lengths(d, kept);
    rows += p.b.N;
    for (int s = 0; s <= COPY; s++) kv_drop(&d->cache, s);
    for (int l = 0; l < d->s.m.L; l++)
        if (d->s.m.layer[l].owner) cr_assert_eq(kv_pages(kv_slot(&d->cache, l)), 0);
    return rows * V;
}
Test(cuda_model, decodes_what_the_cpu_does, .timeout = 300) {
    Turns turns = {0};
    for (int i = 0; i < zoo_count(); i++) {
        static real want[64 * 16], got[64 * 16];
        Decoder cpu, cuda;
        Err e = {0};
        char msg[512];
        if (!turn_of(&turns, i, 1)) continue;
        cr_assert(decoder_open(&cuda, "cuda", &zoo[i], &e), "%s: %s", zoo[i].name, e.msg);
        cr_assert(decoder_open(&cpu, "cpu", &zoo[i], &e), "%s", e.msg);
        static Lengths kept[2];
        kept[0].n = kept[1].n = 0;
        int n = decode_all(&cpu, want, &kept[0]), m = decode_all(&cuda, got, &kept[1]);
        cr_assert(n == m && n > 150 && kept[0].n == kept[1].n);
        cr_assert(check_bytes(msg, "rows that lanes keep", kept[1].rows, kept[0].rows, (size_t)kept[0].n * sizeof(int)),
                  "%s: %s", zoo[i].name, msg);
        cr_assert(check_rms(msg, "logits", CHECK_VIEW(got), CHECK_VIEW(want), (size_t)n, step_tol), "%s: %s",
                  zoo[i].name, msg);
        decoder_close(&cpu), decoder_close(&cuda);
        turns.ran++;
    }
    turns_done(&turns, "decode");
}
