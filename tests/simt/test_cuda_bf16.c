/* test_cuda_bf16.c: products and attention with operands in bf16 on the CUDA backend, against double on the same
 * rounded operands. Bounds are those of docs/numerics.md; mistakes planted in the references must miss them tenfold. */
#include "tests/lib/rig.h"
#include "ops/cuda/host/fused.h"
#include "tests/cudnn/shapes.h"

static double same(float x) { return (double)x; }
static double nearest(float x) { return (double)bf16_to(bf16_from(x)); }
static double cut(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (double)bf16_to((uint16_t)(u >> 16));
}
static void bf16_open(Rig *g, size_t mem) {
    Err e = {0};
    rig_open(g, rig_first(), 1, mem);
    cr_assert(device_bf16(g->dev, true, &e), "%s", e.msg);
}
/* With attention by cuDNN; false: it is not there. */
static bool bf16_open_by(Rig *g, size_t mem, AttentionBy by) {
    Err e = {0};
    bf16_open(g, mem);
    cr_assert(device_attention(g->dev, by, &e), "%s", e.msg);
    g->run.mode = by == ATTENTION_OWN ? 0 : RUN_TRAIN;
    return by == ATTENTION_OWN || g->dev->fused;
}
/* A pass that is measured for cuDNN is measured for our own kernels, too: whichever runs need not take all. */
static void attention_done(Rig *g) { (g->dev->fused ? rig_done_within : rig_done)(g); }
/* Of the plans that were built as many were run. */
static int plans_run(const Rig *g) {
    int plans, ran;
    fused_count(g->dev->fused, &plans, &ran);
    return ran;
}
static void bf16_close(Rig *g) {
    Err e = {0};
    device_bf16(g->dev, false, &e);
    rig_close(g);
}

/* ---- products -------------------------------------------------------------------------------------------------------
 */
enum {
    UNITS = 6
}; /* of f32 rounding, of a sum as large as the root of its squared terms; the library's order is its own */
/* Worst of C (M,N) = C0 + A (M,K) B (K,N), whose numbers lie am, ak, bk, bn apart. */
static double product_error(Tensor C, Tensor C0, Tensor A, int am, int ak, Tensor B, int bk, int bn, int K,
                            double (*round)(float)) {
    double worst = 0;
    int M = C.n[0], N = C.n[1];
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            wide sum = present(C0) ? R(C0)[i * N + j] : 0, square = sum * sum;
            for (int k = 0; k < K; k++) {
                wide term = (wide)round(R(A)[i * am + k * ak]) * (wide)round(R(B)[k * bk + j * bn]);
                sum += term, square += term * term;
            }
            double e = fabs((double)(R(C)[i * N + j] - sum)) / ((double)sqrtl(square) * sqrt(K + 1.0) * 0x1p-24);
            if (!(e <= worst)) worst = e;
        }
    return worst;
}
/* Of matrices of 2048 weights and more alone, whatever the rows; widths that no kernel of the library likes, too. */
Test(cuda_bf16, products_round_what_the_cpu_rounds) {
    static const int sizes[][3] = {{33, 32, 64}, {1, 33, 65}, {7, 129, 17}, {50, 50, 41}, {31, 31, 66}, {40, 8, 255}};
    double seen = 0;
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++) {
        int N = sizes[z][0], O = sizes[z][1], I = sizes[z][2];
        double (*rule)(float) = O * I >= BF16_LEAST ? nearest : same, (*other)(float) = rule == same ? nearest : same;
        Rig g;
        bf16_open(&g, (size_t)4 << 20);
        Tensor x = RANDOM(&g, "x", N, I), w = RANDOM(&g, "w", O, I), dy = RANDOM(&g, "dy", N, O);
        Tensor y = EMPTY(&g, "y", N, O), dx = RANDOM(&g, "dx", N, I), dw = RANDOM(&g, "dw", O, I);
        Tensor dx0 = tensor_copy(&g, dx), dw0 = tensor_copy(&g, dw);
        OP(&g, linear, y, x, w, ABSENT);
        rig_measure(&g);
        g.run.ops->linear_backward(&g.run, add_to(dx), dw, ABSENT, dy, x, w);
        rig_place(&g);
        g.run.ops->linear_backward(&g.run, add_to(dx), dw, ABSENT, dy, x, w);
        rig_done(&g);
        for (int k = 0; k < 3; k++) {
            double (*round)(float) = k == 0 ? rule : k == 1 ? other : cut;
            double e[] = {product_error(y, ABSENT, x, I, 1, w, 1, I, I, round),
                          product_error(dx, dx0, dy, O, 1, w, I, 1, O, round),
                          product_error(dw, dw0, dy, 1, O, x, I, 1, N, round)};
            for (int i = 0; i < 3; i++) {
                cr_assert(k ? e[i] > 10 * UNITS : e[i] <= UNITS, "(%d,%d,%d), result %d, rounding %d: %.3g units", N, O,
                          I, i, k, e[i]);
                if (k == 0) seen = fmax(seen, e[i]);
            }
        }
        bf16_close(&g);
    }
    fprintf(stderr, "products in bf16: at most %.2f roundings off\n", seen);
}
/* The head's loss in bf16 against double: logits of rounded rows and weights, their gradient rounded once for both
 * products; in chunks of rows the same but for the order of the sums over rows. */
Test(cuda_bf16, loss_of_rounded_rows) {
    enum { FEW = 70, MANY = 262, d = 40, V = 1003 };
    Rig g;
    bf16_open(&g, (size_t)16 << 20);
    /* A library that sums in another order rounds one gradient in thousands of a logit to the other neighbour. Of more
     * rows one is less: a large one moves all by some 5e-4, all that are not rounded by 1.5e-3. */
    const bool invariant = rig_invariant(g.dev);
    const int N = invariant ? FEW : MANY;
    const double some = invariant ? 1e-5 : 6e-4;
    Tensor x = RANDOM(&g, "x", N, d), w = RANDOM(&g, "w", V, d), G = RANDOM(&g, "g", N), nll = EMPTY(&g, "nll", N),
           nll1 = EMPTY(&g, "nll by chunks", N), dx[2], dw[2];
    int tgt[MANY], hit[MANY];
    for (int i = 0; i < N; i++) tgt[i] = i % 9 == 5 ? -1 : i * 37 % V;
    double *want_nll = xcalloc(MANY, sizeof *want_nll), *p = xcalloc(V, sizeof *p),
           *want_dx[2] = {xcalloc(MANY * d, sizeof *p), xcalloc(MANY * d, sizeof *p)},
           *want_dw[2] = {xcalloc(V * d, sizeof *p), xcalloc(V * d, sizeof *p)};
    for (int i = 0; i < N; i++) {
        double sum = 0;
        if (tgt[i] < 0) continue;
        for (int v = 0; v < V; v++) {
            p[v] = 0;
            for (int k = 0; k < d; k++) p[v] += nearest(R(x)[i * d + k]) * nearest(R(w)[v * d + k]);
        }
        for (int v = 0; v < V; v++) sum += exp(p[v]);
        want_nll[i] = log(sum) - p[tgt[i]];
        for (int v = 0; v < V; v++) {
            double exact = (double)R(G)[i] * (exp(p[v]) / sum - (v == tgt[i])), both[] = {nearest((float)exact), exact};
            for (int r = 0; r < 2; r++)
                for (int k = 0; k < d; k++) {
                    want_dx[r][i * d + k] += both[r] * nearest(R(w)[v * d + k]);
                    want_dw[r][v * d + k] += both[r] * nearest(R(x)[i * d + k]);
                }
        }
    }
    for (int chunks = 0; chunks < 2; chunks++) {
        dx[chunks] = EMPTY(&g, chunks ? "dx by chunks" : "dx", N, d);
        dw[chunks] = EMPTY(&g, chunks ? "dw by chunks" : "dw", V, d);
        memset(dx[chunks].p, 0, tensor_bytes(dx[chunks])), memset(dw[chunks].p, 0, tensor_bytes(dw[chunks]));
        if (chunks) g.dev->logits = 1;
        OP(&g, linear_xent, chunks ? nll1 : nll, hit, add_to(dx[chunks]), dw[chunks], x, w, LOGITS_PLAIN, tgt, R(G));
    }
    CHECK_RMS("nll", R(nll), want_nll, (size_t)N, 1e-6);
    CHECK_RMS("dx", R(dx[0]), want_dx[0], (size_t)N * d, some);
    CHECK_RMS("dw", R(dw[0]), want_dw[0], V * d, some);
    char msg[512]; /* a gradient that was not rounded is not mistaken for one */
    cr_assert(!check_rms(msg, "dx", CHECK_VIEW(R(dx[0])), CHECK_VIEW(want_dx[1]), (size_t)N * d, 8e-4) &&
              !check_rms(msg, "dw", CHECK_VIEW(R(dw[0])), CHECK_VIEW(want_dw[1]), V * d, 8e-4));
    CHECK_SAME(g.dev, "nll by chunks", R(nll1), R(nll), tensor_count(nll), 1e-6);
    CHECK_SAME(g.dev, "dx by chunks", R(dx[1]), R(dx[0]), tensor_count(dx[0]), some);
    CHECK_RMS("dw by chunks", R(dw[1]), R(dw[0]), V * d, invariant ? 1e-6 : some);
    for (int r = 0; r < 2; r++) free(want_dx[r]), free(want_dw[r]);
    free(want_nll), free(p);
    bf16_close(&g);
}

/* Weights that are bf16 in memory, for inference: linear and groups round rows, heads do not, as the CPU has it. */
Test(cuda_bf16, weights_in_bf16) {
    enum { N = 21, O = 34, I = 66, H = 2, GROUPS = 3 };
    Rig g;
    bf16_open(&g, (size_t)4 << 20);
    Tensor x = RANDOM(&g, "x", N, I), w = RANDOM(&g, "w", GROUPS * O, I), y = EMPTY(&g, "y", N, O);
    Tensor half = arena_tensor(&g.mem, "half", BF16, 2, (int[]){GROUPS * O, I});
    for (size_t i = 0; i < tensor_count(w); i++) ((uint16_t *)half.p)[i] = bf16_from(R(w)[i]);
    for (size_t i = 0; i < tensor_count(w); i++) R(w)[i] = bf16_to(((uint16_t *)half.p)[i]);
    double e;
    for (int k = 0; k < 2;
         k++) { /* the second begins at 8 bytes, which is no promise about the rows and the f32 result */
        Tensor part = tensor_part(w, k * O, O);
        OP(&g, linear, y, x, tensor_part(half, k * O, O), ABSENT);
        e = product_error(y, ABSENT, x, I, 1, part, 1, I, I, nearest);
        cr_assert(e <= UNITS, "linear, part %d: %.3g units", k, e);
        cr_assert(product_error(y, ABSENT, x, I, 1, part, 1, I, I, same) > 10 * UNITS);
    }
    const int off[] = {0, 5, 5, N};
    Tensor each[GROUPS];
    for (int k = 0; k < GROUPS; k++) each[k] = tensor_part(half, k * O, O);
    OP(&g, linear_groups, y, x, ((Groups){GROUPS, off}), each);
    for (int k = 0; k < GROUPS; k++) {
        int n = off[k + 1] - off[k];
        e = product_error(tensor_part(y, off[k], n), ABSENT, tensor_part(x, off[k], n), I, 1, tensor_part(w, k * O, O),
                          1, I, I, nearest);
        cr_assert(e <= UNITS, "group %d: %.3g units", k, e);
    }
    Tensor xh = RANDOM(&g, "heads", N, H, I), yh = EMPTY(&g, "heads' y", N, H, O), one = EMPTY(&g, "one", N, O);
    OP(&g, linear_heads, yh, xh, tensor_part(half, 0, H * O), 0, O, false);
    for (int h = 0; h < H; h++) {
        Tensor row = xh;
        for (int i = 0; i < N; i++) memcpy(R(one) + i * O, R(yh) + (i * H + h) * O, O * sizeof(real));
        row.p = R(xh) + h * I;
        e = product_error(one, ABSENT, row, H * I, 1, tensor_part(w, h * O, O), 1, I, I, same);
        cr_assert(e <= UNITS, "head %d: %.3g units", h, e);
    }
    int tok[N];
    Tensor rows = EMPTY(&g, "rows", N, I);
    for (int i = 0; i < N; i++) tok[i] = i * 5 % O;
    OP(&g, embed, rows, half, tok, 2.0);
    for (int i = 0; i < N * I; i++)
        cr_assert(R(rows)[i] == 2 * R(w)[tok[i / I] * I + i % I], "row %d of the table", i / I);
    bf16_close(&g);
}

/* ---- attention ------------------------------------------------------------------------------------------------------
 */
enum { SEQS = 4, ROWS = 400, HEADS = 8 };
static const double op_rms = 4e-3, row_rms = 1.5e-2; /* of a tensor; of the row that is worst */
typedef struct {
    Batch b;
    int off[SEQS + 1], seq[SEQS], of[ROWS], pos[ROWS], first[ROWS], all[ROWS], picked[ROWS];
    uint64_t id[SEQS];
    RowList out;
    KvShape s;
    AttnSpec spec;
} Pass;
static Pass *pass_draw(int draw, int Dk, int Dv, bool whole) {
    static const int length[] = {1, 63, 64, 65, 130, 0, 17}, window[] = {0, 0, 5, 70, 1},
                     heads[][2] = {{2, 2}, {4, 2}, {4, 1}, {6, 2}, {3, 1}};
    Dice d = {rng_mix(0xBF16, (uint64_t)draw), 0};
    Pass *p = xcalloc(1, sizeof *p);
    int B = 1 + roll(&d, SEQS - 1), N = 0, n = 0, kind = roll(&d, 3), wanted = whole ? 0 : roll(&d, 3), H = roll(&d, 5);
    for (int s = 0; s < B; s++) {
        int rows = s ? length[roll(&d, 7)] : 20 + roll(&d, 100);
        p->seq[s] = s, p->id[s] = (uint64_t)s, p->off[s + 1] = N + rows;
        for (int i = N; i < N + rows; i++) {
            bool head = i == N, start = head ? roll(&d, 3) > 0 : kind && roll(&d, kind == 1 ? 25 : 4) == 0;
            p->of[i] = s, p->all[i] = i;
            p->first[i] = start ? i : head ? -1 : p->first[i - 1];
            p->pos[i] = start ? 0 : head ? 1 + roll(&d, 90) : p->pos[i - 1] + 1;
            if (wanted == 0 || (wanted == 1 && i == N + rows - 1) || (wanted == 2 && roll(&d, 3) == 0))
                p->picked[n++] = i;
        }
        N += rows;
    }
    p->out = (RowList){n, p->picked};
    p->b = (Batch){B, N, p->off, p->seq, p->of, p->pos, p->first, p->id, false, NULL};
    p->s = (KvShape){.lanes = heads[H][1], .kdim = Dk, .vdim = Dv};
    p->spec = (AttnSpec){.heads = heads[H][0],
                         .window = window[draw % 5],
                         .sinks = draw / 5 % 2 ? 3 : 0,
                         .scale = (real)(1.3 / sqrt(Dk))};
    p->s.evicts = draw % 3 == 1;
    p->s.delay = p->s.evicts ? roll(&d, 3) * 2 : 0;
    return p;
}
/* What cuDNN serves: sequences of one length, in every third pass of one document each; no sinks, no bias. */
static Pass *pass_even(int draw, int Dk, int Dv) {
    const SdpaShape shape = even_shape(draw, Dk, Dv);
    Dice d = {even_key(draw), EVEN_WORDS};
    Pass *p = xcalloc(1, sizeof *p);
    int B = shape.B, T = shape.T;
    for (int s = 0; s < B; s++) {
        p->seq[s] = s, p->id[s] = (uint64_t)s, p->off[s + 1] = (s + 1) * T;
        for (int i = s * T; i < (s + 1) * T; i++) {
            bool start = i == s * T || (shape.documents && roll(&d, 12) == 0);
            p->of[i] = s, p->all[i] = p->picked[i] = i;
            p->first[i] = start ? i : p->first[i - 1];
            p->pos[i] = i - p->first[i];
        }
    }
    p->out = (RowList){B * T, p->picked};
    p->b = (Batch){B, B * T, p->off, p->seq, p->of, p->pos, p->first, p->id, false, NULL};
    p->s = (KvShape){.lanes = shape.lanes, .kdim = Dk, .vdim = Dv};
    p->spec = (AttnSpec){.heads = shape.heads, .window = shape.window, .scale = (real)(1.3 / sqrt(Dk))};
    return p;
}
typedef enum {
    RIGHT,
    STRICTLY_CAUSAL,
    SEES_THE_NEXT,
    WIDER_WINDOW,
    ONE_SINK_LESS,
    IGNORES_DOCUMENTS,
    NO_SCALE,
    NO_BIAS,
    BIASED_EARLY,
    OTHER_LANE,
    NO_DELTA,
    FAULTS
} Fault;
static const char *const fault_name[FAULTS] = {
    "",         "j < i",   "j <= i + 1", "a wider window", "a sink less", "no documents",
    "no scale", "no bias", "early bias", "another lane",   "no delta"};
static bool visible(const Pass *p, int i, int j, Fault f) {
    int age = p->pos[i] - p->pos[j], limit = f == STRICTLY_CAUSAL ? i - 1 : f == SEES_THE_NEXT ? i + 1 : i;
    if (p->of[i] != p->of[j] || j > limit || (f != IGNORES_DOCUMENTS && p->first[i] != p->first[j])) return false;
    return !p->spec.window || age < p->spec.window + (f == WIDER_WINDOW) ||
           p->pos[j] < p->spec.sinks - (f == ONE_SINK_LESS);
}
/* Scores of row i, head h over all rows: -inf where hidden. Returns whether a mistake changed any. */
static const real *row_of(Tensor t, int i, int h) {
    return R(t) + ((size_t)i * (size_t)t.n[1] + (size_t)h) * (size_t)t.n[2];
}
static int lane_of(const Pass *p, int h, Fault f) {
    return (h / (p->spec.heads / p->s.lanes) + (f == OTHER_LANE)) % p->s.lanes;
}
static double dot(const real *a, const real *b, int n) {
    double s = 0;
    for (int k = 0; k < n; k++) s += nearest(a[k]) * nearest(b[k]);
    return s;
}
static void scores(double *s, const Pass *p, const real *q, int i, int h, const Kv *kv, Fault f) {
    int lane = lane_of(p, h, f);
    for (int j = 0; j < p->b.N; j++) {
        s[j] = -INFINITY;
        if (!visible(p, i, j, f)) continue;
        s[j] = dot(q, row_of(kv->k, j, lane), p->s.kdim) * (f == NO_SCALE ? 1 : (double)p->spec.scale);
        if (p->s.evicts && f != NO_BIAS && p->pos[i] - p->pos[j] > p->s.delay - (f == BIASED_EARLY) && i != j)
            s[j] += (double)R(kv->bias)[j * p->s.lanes + lane];
    }
}
static Kv pass_kv(Rig *g, const Pass *p) {
    const real some[] = {0, -1, -3, (real)-0.5};
    Kv kv = {.s = p->s,
             .k = RANDOM(g, "k", p->b.N, p->s.lanes, p->s.kdim),
             .v = RANDOM(g, "v", p->b.N, p->s.lanes, p->s.vdim)};
    if (!p->s.evicts) return kv;
    kv.bias = RANDOM(g, "bias", p->b.N, p->s.lanes);
    for (size_t i = 0; i < tensor_count(kv.bias); i++) R(kv.bias)[i] = some[rng_mix(5, i) % 4];
    return kv;
}
/* o and lse of the wanted rows, merged with (o0, lse0) where present. */
static void forward_ref(double *o, double *lse, const Pass *p, Tensor q, const Kv *kv, Tensor o0, Tensor lse0,
                        Fault f) {
    int H = p->spec.heads, Dv = p->s.vdim;
    double *s = xcalloc((size_t)p->b.N + 1, sizeof *s);
    for (int m = 0; m < p->out.n; m++)
        for (int h = 0; h < H; h++) {
            double before = present(lse0) ? (double)R(lse0)[m * H + h] : -INFINITY, top = before, sum = 0,
                   *y = o + (m * H + h) * Dv;
            scores(s, p, row_of(q, m, h), p->out.idx[m], h, kv, f);
            for (int j = 0; j < p->b.N; j++) top = fmax(top, s[j]);
            for (int c = 0; c < Dv; c++)
                y[c] = before == -INFINITY ? 0 : exp(before - top) * (double)row_of(o0, m, h)[c];
            if (before > -INFINITY) sum = exp(before - top);
            for (int j = 0; j < p->b.N; j++) {
                if (s[j] == -INFINITY) continue;
                double w = exp(s[j] - top);
                const real *v = row_of(kv->v, j, lane_of(p, h, f));
                sum += w;
                for (int c = 0; c < Dv; c++) y[c] += w * nearest(v[c]);
            }
            for (int c = 0; c < Dv; c++) y[c] = sum > 0 ? y[c] / sum : 0;
            lse[m * H + h] = sum > 0 ? top + log(sum) : -INFINITY;
        }
    free(s);
}
/* Errors in units of their bounds: of the whole and of the worst row of `width`. `less`: what was there before. */
static double error_of(Tensor got, Tensor less, const double *want, int width) {
    size_t n = tensor_count(got);
    double all = 0, size = 0, worst = 0;
    for (size_t i = 0; i < n; i++) size += want[i] * want[i];
    if (n == 0) return 0;
    double mean = fmax(sqrt(size / (double)n), 1e-2); /* of one visible key the scores have no gradient */
    for (size_t i = 0; i < n; i += (size_t)width) {
        double e = 0, s = 0;
        for (size_t c = i; c < i + (size_t)width; c++) {
            double d = (double)R(got)[c] - (present(less) ? (double)R(less)[c] : 0) - want[c];
            e += d * d, s += want[c] * want[c];
        }
        all += e;
        /* A row that is nearly nothing is held to what its tensor's numbers are. */
        e = sqrt(e / width) / fmax(sqrt(s / width), 0.3 * mean) / row_rms;
        if (!(e <= worst)) worst = e;
    }
    double whole = sqrt(all / (double)n) / mean / op_rms;
    return !(whole <= worst) ? whole : worst;
}
static double lse_error(Tensor got, const double *want) { /* absolute: of a probability it is relative */
    double worst = 0;
    for (size_t i = 0; i < tensor_count(got); i++) {
        double e = want[i] == (double)R(got)[i] ? 0 : fabs((double)R(got)[i] - want[i]) / 1e-4;
        if (!(e <= worst)) worst = e;
    }
    return worst;
}
static const int widths[][2] = {{64, 64},   {128, 128}, {16, 16},   {32, 32}, {24, 40},   {96, 96},
                                {192, 128}, {80, 112},  {192, 180}, {17, 3},  {256, 256}, {100, 250}};
enum { WIDTHS = sizeof widths / sizeof *widths };

/* How tensors lie in memory: all in f32; all in bf16; q, o and their gradients alone; all but dk and dv, to which
 * others add. Gradients in bf16 are to be overwritten. */
typedef enum { IN_F32, IN_BF16, QUERIES_IN_BF16, SHARED_ROWS, FORMS } Form;
static Tensor in_bf16(Rig *g, Tensor like) { return arena_tensor(&g->mem, "in bf16", BF16, like.rank, like.n); }
/* t, or its numbers in BF16; t then becomes those. */
static Tensor stored(Rig *g, Tensor t, bool half) {
    if (!half) return t;
    Tensor h = in_bf16(g, t);
    for (size_t i = 0; i < tensor_count(t); i++) {
        ((uint16_t *)h.p)[i] = bf16_from(R(t)[i]);
        R(t)[i] = bf16_to(((uint16_t *)h.p)[i]);
    }
    return h;
}
static Kv stored_rows(Rig *g, const Kv *kv, bool half) {
    Kv h = *kv;
    h.k = stored(g, kv->k, half), h.v = stored(g, kv->v, half);
    return h;
}
static Tensor read_of(Rig *g, Tensor t) {
    if (t.dtype != BF16) return t;
    Tensor wide = arena_tensor(&g->mem, "read", REAL, t.rank, t.n);
    tensor_read(t, 0, tensor_count(t), R(wide));
    return wide;
}
static void forward_of(Pass *p, AttentionBy by, int draw, const int w[2], Form form, int *tried, double *seen) {
    int H = p->spec.heads, Dv = w[1], n = p->out.n;
    Rig g;
    if (!bf16_open_by(&g, (size_t)64 << 20, by)) cr_skip("cuDNN is not installed");
    g.run.batch = &p->b, g.run.in = (RowList){p->b.N, p->all}, g.run.out = p->out;
    Kv kv = pass_kv(&g, p);
    Tensor q = RANDOM(&g, "q", n, H, w[0]), o0 = RANDOM(&g, "o before", n, H, Dv),
           lse0 = RANDOM(&g, "lse before", n, H);
    Tensor o = EMPTY(&g, "o", n, H, Dv), lse = EMPTY(&g, "lse", n, H);
    for (int i = 0; i < n * H; i += 3) R(lse0)[i] = -INFINITY;
    Tensor tq = stored(&g, q, form), to0 = stored(&g, o0, form), to = form ? in_bf16(&g, o) : o;
    Kv tkv = stored_rows(&g, &kv, form == IN_BF16 || form == SHARED_ROWS);
    double *want = xcalloc((size_t)(n * H * Dv) + 1, sizeof *want), *wl = xcalloc((size_t)(n * H) + 1, sizeof *wl);
    for (int merge = 0; merge < 2; merge++) {
        rig_measure(&g);
        g.run.ops->attend(&g.run, to, lse, tq, &tkv, p->spec, merge);
        rig_place(&g);
        if (merge) memcpy(to.p, to0.p, tensor_bytes(to)), memcpy(lse.p, lse0.p, tensor_bytes(lse));
        g.run.ops->attend(&g.run, to, lse, tq, &tkv, p->spec, merge);
        attention_done(&g);
        if (form) tensor_read(to, 0, tensor_count(to), R(o));
        for (Fault f = RIGHT; f < NO_DELTA; f++) {
            forward_ref(want, wl, p, q, &kv, merge ? o0 : ABSENT, merge ? lse0 : ABSENT, f);
            double e = error_of(o, ABSENT, want, Dv), l = lse_error(lse, wl);
            if (f == RIGHT) {
                cr_assert(e <= 1 && l <= 1, "draw %d, (%d,%d), merge %d: o %.3g, lse %.3g of the bound", draw, w[0], Dv,
                          merge, e, l);
                *seen = fmax(*seen, e);
            } else if (e > 1 || l > 1)
                tried[f] += e >= 10 || l >= 10;
        }
    }
    cr_assert(plans_run(&g) == (by != ATTENTION_OWN), "draw %d: %d plans were run", draw, plans_run(&g));
    free(want), free(wl), free(p);
    bf16_close(&g);
}
enum { DRAWS = 30 };
/* The same where cuDNN was asked for and does not serve. */
static void unserved(Pass *p, int draw, const int w[2]) {
    Rig g;
    int H = p->spec.heads, n = p->out.n, most = n * H * w[1];
    cr_assert(bf16_open_by(&g, (size_t)16 << 20, ATTENTION_CUDNN));
    g.run.batch = &p->b, g.run.in = (RowList){p->b.N, p->all}, g.run.out = p->out;
    Kv kv = pass_kv(&g, p);
    Tensor q = RANDOM(&g, "q", n, H, w[0]), o = EMPTY(&g, "o", n, H, w[1]), lse = EMPTY(&g, "lse", n, H);
    double *want = xcalloc((size_t)(most + n * H), sizeof *want);
    rig_measure(&g);
    g.run.ops->attend(&g.run, o, lse, q, &kv, p->spec, false);
    rig_place(&g);
    g.run.ops->attend(&g.run, o, lse, q, &kv, p->spec, false);
    attention_done(&g);
    forward_ref(want, want + most, p, q, &kv, ABSENT, ABSENT, RIGHT);
    double e = error_of(o, ABSENT, want, w[1]);
    cr_assert(e <= 1 && lse_error(lse, want + most) <= 1 && plans_run(&g) == 0, "pass %d: %.3g of the bound", draw, e);
    free(want), free(p);
    bf16_close(&g);
}
Test(cuda_bf16, attention_of_rounded_rows, .timeout = 300) {
    int tried[FAULTS] = {0};
    double seen = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        const int *w = widths[draw * 7 % WIDTHS];
        forward_of(pass_draw(draw, w[0], w[1], false), ATTENTION_OWN, draw, w, IN_F32, tried, &seen);
    }
    fprintf(stderr, "attention in bf16: at most %.2f of its bounds\n", seen);
    for (Fault f = RIGHT + 1; f < NO_DELTA; f++)
        cr_assert(tried[f] >= 3, "%s misses the bound tenfold in %d passes", fault_name[f], tried[f]);
}
Test(cuda_bf16, attention_of_rows_in_bf16, .timeout = 300) {
    int tried[FAULTS] = {0};
    double seen = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        const int *w = widths[draw * 7 % WIDTHS];
        forward_of(pass_draw(draw, w[0], w[1], false), ATTENTION_OWN, draw, w, (Form)(1 + draw % 3), tried, &seen);
    }
    forward_of(pass_draw(1, 272, 24, true), ATTENTION_OWN, 1, (int[]){272, 24}, IN_BF16, tried, &seen); /* too wide */
    fprintf(stderr, "attention of rows in bf16: at most %.2f of its bounds\n", seen);
    for (Fault f = RIGHT + 1; f < NO_DELTA; f++)
        cr_assert(tried[f] >= 3, "%s misses the bound tenfold in %d passes", fault_name[f], tried[f]);
}

/* Scores of thousands: the largest wins, nothing overflows. A NaN of a query stays in its row, one of a key reaches
 * those that see it. */
Test(cuda_bf16, attention_of_extremes, .timeout = 120) {
    enum { W = 40 };
    Pass *p = pass_draw(0, W, W, true); /* no window, no bias */
    int H = p->spec.heads, N = p->b.N, bad = N / 3;
    Rig g;
    bf16_open(&g, (size_t)16 << 20);
    g.run.batch = &p->b, g.run.in = g.run.out = (RowList){N, p->all};
    Kv kv = pass_kv(&g, p);
    Tensor q = RANDOM(&g, "q", N, H, W), o = EMPTY(&g, "o", N, H, W), lse = EMPTY(&g, "lse", N, H);
    double *want = xcalloc((size_t)(N * H * W), sizeof *want), *wl = xcalloc((size_t)(N * H), sizeof *wl);
    real scale = p->spec.scale;
    p->spec.scale = 500;
    OP(&g, attend, o, lse, q, &kv, p->spec, false);
    forward_ref(want, wl, p, q, &kv, ABSENT, ABSENT, RIGHT);
    double e = error_of(o, ABSENT, want, W);
    cr_assert(e <= 1, "scores of thousands: %.3g of the bound", e);
    p->spec.scale = scale;
    for (int key = 0; key < 2; key++) {
        real *at = (real *)row_of(key ? kv.k : q, bad, 0), old = at[3];
        at[3] = NAN;
        OP(&g, attend, o, lse, q, &kv, p->spec, false);
        for (int i = 0; i < N; i++)
            for (int h = 0; h < H; h++) {
                bool hit = key ? visible(p, i, bad, RIGHT) && lane_of(p, h, RIGHT) == 0 : i == bad && h == 0;
                cr_assert(hit == !!isnan(R(lse)[i * H + h]) && hit == !!isnan(row_of(o, i, h)[0]),
                          "NaN of a %s at row %d, head %d", key ? "key" : "query", i, h);
            }
        at[3] = old;
    }
    free(want), free(wl), free(p);
    bf16_close(&g);
}

typedef struct {
    double *q, *k, *v, *bias;
} Grads;
static void backward_ref(Grads d, const Pass *p, Tensor q, const Kv *kv, Tensor dout, Tensor o, Tensor lse, Fault f) {
    int H = p->spec.heads, N = p->b.N, K = p->s.lanes, Dk = p->s.kdim, Dv = p->s.vdim;
    double *s = xcalloc((size_t)N + 1, sizeof *s), scale = f == NO_SCALE ? 1 : (double)p->spec.scale;
    memset(d.q, 0, (size_t)(N * H * Dk) * sizeof *s), memset(d.k, 0, (size_t)(N * K * Dk) * sizeof *s);
    memset(d.v, 0, (size_t)(N * K * Dv) * sizeof *s), memset(d.bias, 0, (size_t)(N * K) * sizeof *s);
    for (int i = 0; i < N; i++)
        for (int h = 0; h < H; h++) {
            int lane = lane_of(p, h, f);
            const real *g = row_of(dout, i, h), *qi = row_of(q, i, h);
            double delta = 0;
            for (int c = 0; c < Dv && f != NO_DELTA; c++) delta += nearest(g[c]) * (double)row_of(o, i, h)[c];
            scores(s, p, qi, i, h, kv, f);
            for (int j = 0; j < N; j++) {
                if (s[j] == -INFINITY) continue;
                const real *kj = row_of(kv->k, j, lane), *vj = row_of(kv->v, j, lane);
                double w = exp(s[j] - (double)R(lse)[i * H + h]), ds = w * (dot(g, vj, Dv) - delta);
                for (int c = 0; c < Dv; c++) d.v[(j * K + lane) * Dv + c] += w * nearest(g[c]);
                for (int c = 0; c < Dk; c++) {
                    d.q[(i * H + h) * Dk + c] += ds * scale * nearest(kj[c]);
                    d.k[(j * K + lane) * Dk + c] += ds * scale * nearest(qi[c]);
                }
                if (p->pos[i] - p->pos[j] > p->s.delay) d.bias[j * K + lane] += ds;
            }
        }
    free(s);
}
static void backward_with(Pass *p, AttentionBy by, int draw, const int w[2], Form form, int *tried, double *seen) {
    int H = p->spec.heads, K = p->s.lanes, Dk = w[0], Dv = w[1], N = p->b.N;
    Rig g;
    if (!bf16_open_by(&g, (size_t)64 << 20, by)) cr_skip("cuDNN is not installed");
    g.run.batch = &p->b, g.run.in = g.run.out = (RowList){N, p->all};
    Kv kv = pass_kv(&g, p);
    Tensor q = RANDOM(&g, "q", N, H, Dk), dout = RANDOM(&g, "dout", N, H, Dv), o = EMPTY(&g, "o", N, H, Dv),
           lse = EMPTY(&g, "lse", N, H),
           before[] = {RANDOM(&g, "dq", N, H, Dk), RANDOM(&g, "dk", N, K, Dk), RANDOM(&g, "dv", N, K, Dv),
                       RANDOM(&g, "dbias", N, K)},
           got[2][4];
    size_t most = (size_t)(N * H * imax(Dk, Dv)) + 1;
    double *all = xcalloc(5 * most, sizeof *all);
    Grads want = {all, all + most, all + 2 * most, all + 3 * most};
    forward_ref(want.q, all + 4 * most, p, q, &kv, ABSENT, ABSENT, RIGHT);
    for (size_t i = 0; i < tensor_count(o); i++) /* cuDNN's o, which it reads again, is bf16 */
        R(o)[i] = by == ATTENTION_OWN ? (real)want.q[i] : (real)nearest((real)want.q[i]);
    for (size_t i = 0; i < tensor_count(lse); i++) R(lse)[i] = (real)all[4 * most + i];
    Tensor tq = stored(&g, q, form), tg = stored(&g, dout, form), to = stored(&g, o, form);
    Kv tkv = stored_rows(&g, &kv, form == IN_BF16 || form == SHARED_ROWS);
    const bool half[] = {form, form == IN_BF16, form == IN_BF16, false}; /* gradients in bf16, which are overwritten */
    for (int times = 0; times < 2; times++) {
        for (int k = 0; k < 4; k++) got[times][k] = half[k] ? in_bf16(&g, before[k]) : tensor_copy(&g, before[k]);
        Kv dkv = {.s = p->s, .k = got[times][1], .v = got[times][2], .bias = p->s.evicts ? got[times][3] : ABSENT};
        rig_measure(&g);
        g.run.ops->attend_backward(&g.run, (Into){got[times][0], half[0]}, &(KvInto){dkv, half[1]}, tg, tq, &tkv,
                                   p->spec, to, lse);
        rig_place(&g);
        g.run.ops->attend_backward(&g.run, (Into){got[times][0], half[0]}, &(KvInto){dkv, half[1]}, tg, tq, &tkv,
                                   p->spec, to, lse);
        attention_done(&g);
    }
    Tensor all_of[4], less[4];
    for (int k = 0; k < 4; k++) all_of[k] = read_of(&g, got[0][k]), less[k] = half[k] ? ABSENT : before[k];
    for (int k = 0; k < 4; k++) /* whatever the order of threads and blocks */
        cr_assert(by == ATTENTION_CUDNN_UNORDERED || !memcmp(got[0][k].p, got[1][k].p, tensor_bytes(got[0][k])),
                  "gradient %d differs between runs", k);
    static const char *const name[] = {"dq", "dk", "dv", "dbias"};
    const double *ref[] = {want.q, want.k, want.v, want.bias};
    const int width[] = {Dk, Dk, Dv, 1};
    for (Fault f = RIGHT; f < FAULTS; f++) {
        double worst = 0;
        backward_ref(want, p, q, &kv, dout, o, lse, f);
        for (int k = 0; k < (p->s.evicts ? 4 : 3); k++) {
            double e = error_of(all_of[k], less[k], ref[k], k == 3 ? imax(1, N * K) : width[k]);
            cr_assert(f != RIGHT || e <= 1, "draw %d, (%d,%d): %s %.3g of the bound", draw, Dk, Dv, name[k], e);
            worst = fmax(worst, e);
        }
        if (f == RIGHT) *seen = fmax(*seen, worst);
        tried[f] += worst >= 10;
    }
    cr_assert(plans_run(&g) == (by != ATTENTION_OWN), "draw %d: %d plans were run", draw, plans_run(&g));
    free(all), free(p);
    bf16_close(&g);
}
Test(cuda_bf16, gradients_of_attention, .timeout = 300) {
    int tried[FAULTS] = {0};
    double seen = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        const int *w = widths[draw * 7 % WIDTHS];
        backward_with(pass_draw(draw, w[0], w[1], true), ATTENTION_OWN, draw, w, IN_F32, tried, &seen);
    }
    fprintf(stderr, "gradients of attention in bf16: at most %.2f of their bounds\n", seen);
    for (Fault f = RIGHT + 1; f < FAULTS; f++)
        cr_assert(tried[f] >= 3, "%s misses the bound tenfold in %d passes", fault_name[f], tried[f]);
}
Test(cuda_bf16, gradients_of_rows_in_bf16, .timeout = 300) {
    int tried[FAULTS] = {0};
    double seen = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        const int *w = widths[draw * 7 % WIDTHS];
        backward_with(pass_draw(draw, w[0], w[1], true), ATTENTION_OWN, draw, w, (Form)(1 + draw % 3), tried, &seen);
    }
    backward_with(pass_draw(0, 272, 24, true), ATTENTION_OWN, 0, (int[]){272, 24}, IN_BF16, tried, &seen);
    fprintf(stderr, "gradients of attention of rows in bf16: at most %.2f of their bounds\n", seen);
    for (Fault f = RIGHT + 1; f < FAULTS; f++)
        cr_assert(tried[f] >= 3, "%s misses the bound tenfold in %d passes", fault_name[f], tried[f]);
}

/* ---- by cuDNN -------------------------------------------------------------------------------------------------------
 * The same references and bounds. What is rounded once more, o and the gradients, is what the bounds leave room for. */
static bool can_show(Fault f) { return f != ONE_SINK_LESS && f != NO_BIAS && f != BIASED_EARLY; }
Test(cuda_bf16, attention_by_cudnn, .timeout = 300) {
    int tried[FAULTS] = {0};
    double seen = 0;
    for (int draw = 0; draw < FUSED_DRAWS; draw++) {
        const int w[] = {fused_shape(draw).Dk, fused_shape(draw).Dv};
        forward_of(pass_even(draw, w[0], w[1]), ATTENTION_CUDNN, draw, w, (Form)(draw / 2 % FORMS), tried, &seen);
    }
    check_log("attention by cuDNN, of its bounds", seen, 1, 0, FUSED_DRAWS);
    fprintf(stderr, "attention by cuDNN: at most %.2f of its bounds\n", seen);
    for (Fault f = RIGHT + 1; f < NO_DELTA; f++)
        cr_assert(!can_show(f) || tried[f] >= 2, "%s misses the bound tenfold in %d passes", fault_name[f], tried[f]);
}
Test(cuda_bf16, gradients_by_cudnn, .timeout = 300) {
    int tried[FAULTS] = {0};
    double seen = 0;
    for (int draw = 0; draw < FUSED_DRAWS; draw++) {
        const int w[] = {fused_shape(draw).Dk, fused_shape(draw).Dv};
        backward_with(pass_even(draw, w[0], w[1]), draw % 2 ? ATTENTION_CUDNN : ATTENTION_CUDNN_UNORDERED, draw, w,
                      (Form)(draw / 2 % FORMS), tried, &seen);
    }
    check_log("gradients by cuDNN, of their bounds", seen, 1, 0, FUSED_DRAWS);
    fprintf(stderr, "gradients by cuDNN: at most %.2f of their bounds\n", seen);
    for (Fault f = RIGHT + 1; f < FAULTS; f++)
        cr_assert(!can_show(f) || tried[f] >= 2, "%s misses the bound tenfold in %d passes", fault_name[f], tried[f]);
}
/* What it does not serve is ours, and right: sinks, biases, uneven sequences, histories, rows that begin anywhere. */
Test(cuda_bf16, what_cudnn_does_not_serve, .timeout = 300) {
    static const int odd[2] = {20, 12}, even[2] = {32, 32};
    for (int draw = 0; draw < 4; draw++) {
        Rig g;
        bool there = bf16_open_by(&g, (size_t)1 << 20, ATTENTION_CUDNN);
        bf16_close(&g);
        if (!there) cr_skip("cuDNN is not installed");
        int two = 0;
        for (bool found = false; draw == 3 && !found; two += !found) {
            Pass *some = pass_even(two, even[0], even[1]);
            found = some->b.B == 2;
            free(some);
        }
        Pass *p = draw == 0 ? pass_even(0, odd[0], odd[1]) : pass_even(draw == 3 ? two : draw, even[0], even[1]);
        if (draw == 1) p->spec.sinks = 2, p->spec.window = 7;
        if (draw == 2) p->s.evicts = true;
        if (draw == 3) { /* as many rows as two even sequences, and a plan for those */
            int last = p->off[1] - 1;
            cr_assert(p->b.B == 2);
            p->off[1] = last, p->of[last] = 1, p->first[last] = last, p->pos[last] = 0;
        }
        unserved(p, draw, draw ? even : odd);
    }
}
