/* test_cuda_delta.c: the recurrence by chunks, operands of its products in bf16, on the CUDA backend, against the
 * reference in wide numbers on the same inputs. The bound is that of docs/numerics.md; mistakes planted in the
 * reference must miss it tenfold. And rows in bf16, by chunks and row after row, beside the same rows in f32. */
#include "tests/lib/recur_ref.h"

static const double bound = 6e-3; /* of root mean squares */
static void bf16_open(Rig *g, size_t mem) {
    Err e = {0};
    rig_open(g, rig_first(), 1, mem);
    cr_assert(device_bf16(g->dev, true, &e), "%s", e.msg);
}
static void bf16_close(Rig *g) {
    Err e = {0};
    device_bf16(g->dev, false, &e);
    rig_close(g);
}
typedef struct {
    double err[RECUR_RESULTS];
    Worst at[RECUR_RESULTS];
} Apart;
static Apart apart(const Scene *c, const Scene *as) {
    Apart a = {0};
    Rig g;
    bf16_open(&g, (size_t)64 << 20);
    recur_apart(&g, c, as, a.err, a.at);
    bf16_close(&g);
    return a;
}
static void tell(const char *what, const Apart *a) {
    if (!getenv("CHECK_VERBOSE")) return;
    fprintf(stderr, "%s:", what);
    for (int i = 0; i < RECUR_RESULTS; i++) fprintf(stderr, " %s %.2g", recur_results[i], a->err[i]);
    fprintf(stderr, "\n");
}
/* The worst of the errors in units of `times` the bound. */
static double hold(const char *what, const Scene *c, double times) {
    Apart a = apart(c, c);
    double most = 0;
    tell(what, &a);
    for (int i = 0; i < RECUR_RESULTS; i++) {
        double e = a.err[i] / (times * bound);
        cr_expect(e <= 1, "%s: %s is %.3g off (bound %.3g), worst at %zu: got %.6g, want %.6g", what, recur_results[i],
                  a.err[i], times * bound, a.at[i].i, a.at[i].got, a.at[i].want);
        if (!(e <= most)) most = e;
    }
    return most;
}

/* ---- every rule, and mistakes ---------------------------------------------------------------------------------------
 */
static Scene *some(int gwidth, bool delta, int HV) {
    return recur_case(3, (int[]){0, 145, 70}, (int[]){64, 1, 25, 15, 130}, 5, HV > 1 ? 2 : 1, HV, 20, 9, gwidth, delta,
                      true);
}
Test(cuda_delta, every_rule, .timeout = 300) {
    double most = 0;
    for (int k = 0; k < 6; k++) {
        char what[96];
        Scene *c = some((int[]){0, 1, 20}[k % 3], k < 3, k % 2 ? 1 : 4);
        snprintf(what, sizeof what, "delta %d, decay %d, %d value heads", c->delta, c->gwidth, c->HV);
        most = fmax(most, hold(what, c, 1));
        recur_case_free(c);
    }
    fprintf(stderr, "recurrence by chunks: at most %.2f of its bound\n", most);
}
typedef void Plant(Scene *);
static int width(const Scene *c) { return c->HV * c->gwidth; }
static void no_scale(Scene *c) { c->scale = 1; }
static void no_history(Scene *c) { memset(c->start, 0, (size_t)(c->nseq * c->HV * c->K * c->V) * sizeof(wide)); }
static void decays_late(Scene *c) { memmove(c->g + width(c), c->g, (size_t)((c->N - 1) * width(c)) * sizeof(wide)); }
static void no_decay_between_blocks(Scene *c) {
    for (int i = 0; i < c->N; i += 16) memset(c->g + i * width(c), 0, (size_t)width(c) * sizeof(wide));
}
static void one_document(Scene *c) {
    for (int i = 1; i < c->N; i++)
        if (c->of[i] == c->of[i - 1]) c->first[i] = c->first[i - 1];
}
static void whole_steps(Scene *c) {
    for (int i = 0; i < c->N * c->HV; i++) c->beta[i] = 1;
}
static void no_delta(Scene *c) { c->delta = false; }
static void other_values(Scene *c) { memmove(c->v, c->v + c->V, (size_t)(c->N * c->HV * c->V - c->V) * sizeof(wide)); }
static void other_keys(Scene *c) { memmove(c->k, c->k + c->K, (size_t)(c->N * c->H * c->K - c->K) * sizeof(wide)); }
static void channels_alike(Scene *c) {
    for (int i = 0; i < c->N * c->HV * c->gwidth; i++) c->g[i] = c->g[i / c->gwidth * c->gwidth];
}
Test(cuda_delta, mistakes_miss_the_bound, .timeout = 300) {
    static const struct {
        const char *name;
        Plant *plant;
    } all[] = {{"no scale", no_scale},
               {"no history", no_history},
               {"decays a row late", decays_late},
               {"one document", one_document},
               {"whole steps", whole_steps},
               {"no delta", no_delta},
               {"other values", other_values},
               {"other keys", other_keys},
               {"channels alike", channels_alike},
               {"no decay between blocks", no_decay_between_blocks}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        Scene *c = some(20, true, 2), *as = some(20, true, 2);
        all[k].plant(as);
        Apart a = apart(c, as);
        double most = 0;
        for (int i = 0; i < RECUR_RESULTS; i++) most = fmax(most, a.err[i] / bound);
        cr_expect(most >= 10, "%s: %.3g of the bound", all[k].name, most);
        recur_case_free(c), recur_case_free(as);
    }
}

/* ---- inputs that break careless forms -------------------------------------------------------------------------------
 */
static void set(wide *x, int n, wide v) {
    for (int i = 0; i < n; i++) x[i] = (real)v;
}
static void one_key(Scene *c) { /* whole steps, no decay: powers of L explode, its inverse does not */
    for (int i = 0; i < c->N * c->H * c->K; i++) c->k[i] = c->k[i % c->K];
    set(c->beta, c->N * c->HV, 0.999);
    set(c->g, c->N * width(c), -1e-4);
}
static void one_key_reflected(Scene *c) {
    one_key(c);
    set(c->beta, c->N * c->HV, 1.99);
}
static void overshooting(Scene *c) {
    for (int i = 0; i < c->N * c->HV; i++) c->beta[i] = (real)(1.9 + 0.1 * c->beta[i]);
}
static void at_the_bound(Scene *c) { set(c->g, c->N * width(c), -5); }
static void strong(Scene *c) { set(c->g, c->N * width(c), -100); }
static void strong_then_weak(Scene *c) {
    for (int i = 0; i < c->N * width(c); i++) c->g[i] = (real)(i / width(c) % 23 < 5 ? -90 : -0.01);
}
static void now_and_then(Scene *c) {
    for (int i = 0; i < c->N * width(c); i++) c->g[i] = i % 7 == 3 ? -80 : i % 2 ? 0 : (real)-1e-3;
}
static void no_step(Scene *c) {
    for (int i = 0; i < c->N * c->HV; i += 3) c->beta[i] = 0;
}
static void no_key(Scene *c) {
    for (int i = 0; i < c->N * c->H; i += 3) set(c->k + i * c->K, c->K, 0);
}
Test(cuda_delta, hard_inputs, .timeout = 300) {
    static const struct {
        const char *name;
        Plant *spoil;
        double times; /* of the bound: what one row adds the next takes back, and roundings stay */
    } all[] = {{"one key", one_key, 3},
               {"one key, beta of 2", one_key_reflected, 8},
               {"beta up to 2", overshooting, 1},
               {"decay of -5", at_the_bound, 1},
               {"decay of -100", strong, 1},
               {"strong then weak", strong_then_weak, 1},
               {"channels apart", now_and_then, 1},
               {"beta 0", no_step, 1},
               {"zero keys", no_key, 1}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (int w = 0; w < 2; w++) {
            char what[96];
            Scene *c = recur_case(2, (int[]){33, 145}, (int[]){200}, 1, 1, 1, 9, 7, w ? 9 : 1, true, true);
            all[k].spoil(c);
            snprintf(what, sizeof what, "%s, decay %d", all[k].name, c->gwidth);
            hold(what, c, all[k].times);
            recur_case_free(c);
        }
}
/* Documents of every length around the sizes of blocks and chunks, behind each other and so inside of windows. */
Test(cuda_delta, every_length, .timeout = 300) {
    Scene *c =
        recur_case(2, (int[]){210, 250}, (int[]){1, 15, 16, 17, 63, 64, 65, 129, 2}, 9, 1, 1, 5, 3, 5, true, true);
    hold("lengths", c, 1);
    recur_case_free(c);
}
Test(cuda_delta, every_width, .timeout = 300) {
    static const int widths[][2] = {{1, 1}, {64, 64}, {65, 33}, {128, 130}, {100, 64}, {33, 128}};
    for (int i = 0; i < 6; i++) {
        char what[64];
        Scene *c = recur_case(2, (int[]){3, 67}, (int[]){67}, 1, 1, 1, widths[i][0], widths[i][1],
                              i % 2 ? 1 : widths[i][0], i != 4, true);
        snprintf(what, sizeof what, "keys of %d, values of %d", widths[i][0], widths[i][1]);
        hold(what, c, widths[i][0] == 1 ? 4 : 1); /* keys of one number are alike */
        recur_case_free(c);
    }
}

/* ---- which passes ---------------------------------------------------------------------------------------------------
 */
/* f32 passes, sequences shorter than a chunk and keys wider than 128 are exact; others are rounded. */
Test(cuda_delta, takes_what_it_says, .timeout = 300) {
    static const struct {
        int rows, K;
        bool rounded;
    } all[] = {{63, 8, false}, {64, 8, true}, {64, 128, true}, {64, 129, false}};
    for (int i = 0; i < 4; i++) {
        Scene *c = recur_case(2, (int[]){all[i].rows, 5}, (int[]){9}, 1, 1, 1, all[i].K, 4, 1, true, false);
        Apart a = apart(c, c);
        cr_expect((a.err[0] > 1e-4) == all[i].rounded && (a.err[3] > 1e-4) == all[i].rounded,
                  "%d rows, keys of %d: o %.3g off, dk %.3g", all[i].rows, all[i].K, a.err[0], a.err[3]);
        recur_case_free(c);
    }
}
/* ---- rows in bf16 ---------------------------------------------------------------------------------------------------
 */
typedef struct {
    Tensor wide, half; /* the same numbers, as `real`s and in BF16 */
} Twin;
static Twin twin(Rig *g, const wide *from, int a, int b, int c, bool overwrite) {
    Twin t = {EMPTY(g, "wide", a, b, c), arena_tensor(&g->mem, "in bf16", BF16, 3, (const int[]){a, b, c})};
    if (overwrite) return t; /* NaN */
    for (size_t i = 0; i < tensor_count(t.wide); i++) {
        ((uint16_t *)t.half.p)[i] = bf16_from((float)from[i]);
        R(t.wide)[i] = bf16_to(((uint16_t *)t.half.p)[i]);
    }
    return t;
}
static Tensor real_of(Rig *g, const wide *from, int a, int b) {
    Tensor t = EMPTY(g, "numbers", a, b);
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)from[i];
    return t;
}
/* Emulated, what is stored in bf16 is what the pass over f32 stores, rounded once; a device may contract products of
 * one kernel in another way than those of the other. */
static void hold_twin(Rig *g, const char *what, const char *shape, Twin t) {
    double e = 0, all = 0;
    device_sync(g->dev);
    for (size_t i = 0; i < tensor_count(t.wide); i++) {
        real x;
        tensor_read(t.half, i, 1, &x);
        real want = R(t.wide)[i], near = t.half.dtype == BF16 ? bf16_to(bf16_from(want)) : want;
        if (rig_emulated(g->dev))
            cr_assert(x == near, "%s, %s: number %zu is %.9g instead of %.9g", shape, what, i, (double)x, (double)near);
        e += ((double)x - (double)want) * ((double)x - (double)want), all += (double)want * (double)want;
    }
    cr_assert(e <= bound * bound * all, "%s, %s: %.3g off", shape, what, sqrt(e / all));
}
static void hold_twins(Scene *c, bool overwrite) {
    Rig g;
    bf16_open(&g, (size_t)64 << 20);
    const int N = c->N, H = c->H, HV = c->HV, K = c->K, V = c->V, G = c->gwidth, n = c->nseq * HV;
    char shape[96];
    snprintf(shape, sizeof shape, "%d rows, %d and %d heads of %d and %d, decay %d, delta %d, overwrite %d", N, H, HV,
             K, V, G, c->delta, overwrite);
    g.batch = recur_batch(c);
    int *idx = xcalloc((size_t)N, sizeof *idx);
    for (int i = 0; i < N; i++) idx[i] = i;
    g.run.in = g.run.out = (RowList){N, idx};
    wide *any = recur_weights((size_t)N * (size_t)HV * (size_t)imax(K, V), 3),
         *ends = recur_weights((size_t)n * (size_t)K * (size_t)V, 4);
    Twin q = twin(&g, c->q, N, H, K, false), k = twin(&g, c->k, N, H, K, false), v = twin(&g, c->v, N, HV, V, false),
         dout = twin(&g, any, N, HV, V, false), o = twin(&g, NULL, N, HV, V, true),
         dq = twin(&g, any, N, H, K, overwrite), dk = twin(&g, any, N, H, K, overwrite),
         dv = twin(&g, any, N, HV, V, overwrite), keep, state, dg, dbeta, dstart;
    Tensor none = {.p = NULL}, gates = none, beta = none;
    if (G) gates = real_of(&g, c->g, N * HV, G), gates.rank = 3, gates.n[0] = N, gates.n[1] = HV, gates.n[2] = G;
    if (c->delta) beta = real_of(&g, c->beta, N, HV);
    Tensor start = real_of(&g, c->start, c->nseq, HV * K * V), dend = real_of(&g, ends, c->nseq, HV * K * V);
    for (int half = 0; half < 2; half++) {
#define OF(t)               (half ? (t).half : (t).wide)
#define MADE(t, from, a, b) (*(half ? &(t).half : &(t).wide) = real_of(&g, from, a, b))
        const Recur x = {.q = OF(q), .k = OF(k), .v = OF(v), .g = gates, .beta = beta};
        Tensor held = EMPTY(&g, "keep", recur_keep(N), HV, K, V), to = MADE(state, c->start, c->nseq, HV * K * V),
               gg = none, gb = none, gs = MADE(dstart, ends, c->nseq, HV * K * V);
        if (G) gg = MADE(dg, any, N * HV, G), gg.rank = 3, gg.n[0] = N, gg.n[1] = HV, gg.n[2] = G;
        if (c->delta) gb = MADE(dbeta, any, N, HV);
        OP(&g, recur, OF(o), held, x, c->scale, c->history ? to : none, 0);
        const RecurInto d = {.q = {OF(dq), overwrite},
                             .k = {OF(dk), overwrite},
                             .v = {OF(dv), overwrite},
                             .g = add_to(gg),
                             .beta = add_to(gb)};
        const RecurEnds e = {start, gs, dend};
        OP(&g, recur_backward, &d, OF(dout), x, c->scale, held, c->history ? &e : NULL);
        *(half ? &keep.half : &keep.wide) = held;
    }
    hold_twin(&g, "o", shape, o), hold_twin(&g, "dq", shape, dq), hold_twin(&g, "dk", shape, dk);
    hold_twin(&g, "dv", shape, dv), hold_twin(&g, "state", shape, state), hold_twin(&g, "dstart", shape, dstart);
    if (G) hold_twin(&g, "dg", shape, dg);
    if (c->delta) hold_twin(&g, "dbeta", shape, dbeta);
    free(idx), free(any), free(ends);
    bf16_close(&g);
    recur_case_free(c);
}
/* By chunks, values where they lie (a multiple of eight of them) and not, and row after row. */
Test(cuda_delta, rows_in_bf16, .timeout = 300) {
    static const struct {
        int rows[2], H, HV, K, V, decay;
        bool delta, history;
    } all[] = {{{70, 30}, 1, 2, 20, 72, 20, true, true},  {{90, 1}, 1, 1, 128, 40, 1, true, false},
               {{66, 40}, 2, 2, 24, 72, 24, false, true}, {{65, 0}, 1, 2, 33, 65, 1, false, false},
               {{65, 20}, 2, 2, 16, 8, 0, false, true},   {{40, 9}, 1, 2, 20, 24, 20, true, true},
               {{30, 3}, 1, 1, 130, 70, 1, true, false},  {{20, 3}, 2, 2, 9, 130, 9, false, true}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int overwrite = 0; overwrite < 2; overwrite++)
            hold_twins(recur_case(2, all[i].rows, (int[]){33, 64, 7}, 3, all[i].H, all[i].HV, all[i].K, all[i].V,
                                  all[i].decay, all[i].delta, all[i].history),
                       overwrite);
}
/* A pass in pieces, each continuing the state of the one before: the same outputs and the same end. */
Test(cuda_delta, pieces_are_one_pass, .timeout = 300) {
    enum { N = 230, K = 12, V = 7, HV = 2 };
    static const int cuts[] = {0, 64, 141, 150, 151, N};
    Scene *c = recur_case(1, (int[]){N}, (int[]){N}, 1, 1, HV, K, V, K, true, false);
    Rig g;
    bf16_open(&g, (size_t)16 << 20);
    real o[2][N * HV * V], end[2][HV * K * V];
    for (int pieces = 0; pieces < 2; pieces++) {
        Tensor state = EMPTY(&g, "state", 1, HV * K * V);
        for (int p = 0; p < (pieces ? 5 : 1); p++) {
            int from = pieces ? cuts[p] : 0, n = (pieces ? cuts[p + 1] : N) - from, off[] = {0, n}, seq[] = {0};
            int of[N] = {0}, pos[N], first[N], idx[N];
            for (int i = 0; i < n; i++) pos[i] = from + i, first[i] = from ? -1 : 0, idx[i] = i;
            g.batch = (Batch){.B = 1, .N = n, .off = off, .seq = seq, .of = of, .pos = pos, .first = first};
            g.batch.history = from > 0;
            g.run.in = g.run.out = (RowList){n, idx};
            const int at[5][3] = {{n, 1, K}, {n, 1, K}, {n, HV, V}, {n, HV, K}, {n, HV, 1}};
            const wide *in[] = {c->q, c->k, c->v, c->g, c->beta};
            Tensor x[5], y = EMPTY(&g, "o", n, HV, V);
            for (int k = 0; k < 5; k++) {
                x[k] = EMPTY(&g, "x", at[k][0], at[k][1], at[k][2]);
                int row = at[k][1] * at[k][2];
                for (int i = 0; i < n * row; i++) R(x[k])[i] = (real)in[k][from * row + i];
            }
            OP(&g, recur, y, ABSENT, ((Recur){.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4]}), c->scale,
               state, 0);
            memcpy(o[pieces] + from * HV * V, y.p, tensor_bytes(y));
        }
        memcpy(end[pieces], state.p, tensor_bytes(state));
    }
    CHECK_RELATIVE("o in pieces", o[1], o[0], N * HV * V, 2 * bound);
    CHECK_RELATIVE("state in pieces", end[1], end[0], HV * K * V, 2 * bound);
    bf16_close(&g);
    recur_case_free(c);
}
