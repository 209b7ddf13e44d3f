/* test_budget.cpp: what each kernel asks of memory, held to a table: bytes per number read and written (requests, those
 * that a cache answers included), sectors beyond the least, passes over the banks of shared memory beyond the least. A
 * kernel that is rewritten to ask for more fails here, where no time is measured. */
#include "budget.h"

enum { N = 64, D = 1024, V = 4096 };
/* Rows of D numbers; what a row has once (rstd) is a small part of a byte per number. */
const Budget budgets[] = {
    {"swiglu<float, 1>", 8, 4, 1.0},
    {"swiglu_backward<T, W>", 20, 8, 1.0},
    {"swiglu_rows<float, 1>", 12, 4, 1.0},
    {"swiglu_rows_backward<T, W>", 20.2, 8.1, 1.01},
    {"axpby", 8, 4, 1.0},
    {"add<float, float, 1>", 8, 4, 1.0},
    {"elu1<float, 1>", 4, 4, 1.0},
    {"elu1_backward<float, 1>", 12, 4, 1.0},
    {"sigmoid", 4, 4, 1.0},
    {"sigmoid_backward", 12, 4, 1.0},
    {"rmsnorm<Y, X, W>", 12, 4.1, 1.01},
    {"rmsnorm_rows<TEAM, E, Y, X>", 8, 4.1, 1.01},
    {"norm_backward<TEAM, E, centred, G, X>", 13.3, 4.3, 1.01},
    {"norm_backward_wide<centred, G, X>", 35.6, 8.5, 1.01},
    {"fold_columns", 2.2, 0.9, 1.02},
    {"l2norm<T, W>", 8, 4, 1.01},
    {"l2norm_backward<T, W>", 20, 4, 1.01},
    {"gather<float>", 32, 4, 1.0}, /* a place is found by halving, from few bytes that all threads share */
    {"spread<Y, X, W>", 5, 4, 1.0},
    {"adamw<float>", 20.3, 14, 1.0}, /* 4.3 of them what is said of the tensor, which all threads share */
    {"adamw<bf16>", 16.3, 10, 1.0},
    {"lion<float>", 16.3, 10, 1.0},
    {"lion<bf16>", 14.3, 8, 1.0},
    {"schedule_free<float>", 24.3, 18, 1.0},
    {"schedule_free<bf16>", 22.3, 16, 1.0},
    {"momentum<float>", 8, 8, 1.0},
    {"normalise", 12.1, 4, 1.0}, /* where the sum is said, which all threads share */
    {"sumsq_pieces", 4.1, 0.1, 1.01},
    {"sumsq_total", 0.0004, 0.00013, 1.01},
    {"xent", 8.8, 4.1, 1.02},
    {"embed<float>", 8, 4, 1.0},
    {"bias_add<float, 1>", 8, 4, 1.0},
    {"round_to_bf16", 4, 4, 1.0},
    {"places", 4, 4, 1.0},
    {"column_sums_quads<float>", 4.1, 0.3, 1.01},
    {"column_sums<float>", 4.1, 0.3, 1.3},
    {"sample", 41, 12.1, 1.05}, /* without top-k and top-p, whose borders are found by up to 64 more reads each */
    {},
};

struct SampleRow { /* ops/sample.h, which is C */
    uint64_t key, draw;
    double temperature, penalty, top_p, min_p;
    int top_k, slot;
};
extern "C" void cuda_sample(Cuda *, int n, int V, const SampleRow *, const float *logits, unsigned char *seen,
                            double *p, int *id, void *out);
static Cuda *device;
static float *numbers() { /* N x D zeros */
    float *p = (float *)cuda_take(device, (size_t)N * D * sizeof(float), false);
    cuda_fill(device, p, 0, (size_t)N * D * sizeof(float));
    return p;
}
static void sample() { simt_sample(true); }
TestSuite(budget, .init = sample);
Test(budget, kernels_ask_for_no_more) {
    char why[200];
    device = cuda_start(0, why);
    cr_assert(device, "%s", why);
    Cuda *c = device;
    const size_t n = (size_t)N * D;
    float *a = numbers(), *b = numbers(), *x = numbers(), *y = numbers(), *z = numbers(), *s = numbers();
    float *parts = numbers();
    uint16_t *halves = (uint16_t *)numbers();
    int ids[N], *at = (int *)cuda_take(c, sizeof ids, false);
    for (int i = 0; i < N; i++) ids[i] = i;
    cuda_upload(c, at, ids, sizeof ids);
    double *part = (double *)cuda_take(c, 256, false);
    cuda_swiglu(c, n, y, a, b, false);
    cuda_swiglu_backward(c, n, NULL, x, y, z, a, b, false, false, false);
    cuda_swiglu_rows(c, N, D, y, a, b, s, false);
    cuda_swiglu_rows_backward(c, N, D, x, y, s, z, a, b, s + N, false, false, false, false);
    cuda_axpby(c, n, y, 2, x, 3);
    cuda_add(c, n, y, x, false, false);
    cuda_elu1(c, n, y, x, false);
    cuda_elu1_backward(c, n, x, z, y, false, false);
    cuda_sigmoid(c, n, y, x, 1);
    cuda_sigmoid_backward(c, n, x, z, y, 1, false);
    cuda_rmsnorm(c, N, D, y, s, x, NULL, a, 1e-5, CUDA_NORM_WIDE);
    cuda_rmsnorm(c, N * 8, D / 8, y, s, x, NULL, a, 1e-5, CUDA_NORM_WIDE);
    cuda_rmsnorm_backward(c, N, D, x, b, parts, y, z, a, s, CUDA_NORM_WIDE, false);
    cuda_rmsnorm_backward(c, 7, 9 * D, x, b, parts, y, z, a, s, CUDA_NORM_WIDE, false);
    cuda_l2norm(c, N, D, y, x, 1e-5, false);
    cuda_l2norm_backward(c, N, D, x, y, z, 1e-5, false, false);
    cuda_gather(c, N, D, y, x, at, N, at, false);
    cuda_spread(c, N, D, y, false, x, false, at);
    CudaAdamOf *tensors = (CudaAdamOf *)cuda_take(c, sizeof *tensors, false);
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        CudaAdamOf of = {};
        of.w = a, of.shadow = halves, of.g = b, of.m = x, of.v = y, of.x = z, of.n = n, of.quads = true;
        of.p.b1 = of.p.b2 = 0.9f, of.p.one_b1 = of.p.one_b2 = of.p.step = 0.1f, of.p.eps = 1e-8f;
        of.p.root = of.p.shrink = 1, of.gscale = of.most = 1, of.round.key = 1;
        const size_t pieces = (n + CUDA_ADAM_PIECE - 1) / CUDA_ADAM_PIECE;
        cuda_upload(c, tensors, &of, sizeof of);
        cuda_adamw(c, 1, tensors, pieces, is_bf16);
        cuda_lion(c, 1, tensors, pieces, is_bf16);
        cuda_schedule_free(c, 1, tensors, pieces, is_bf16);
    }
    cuda_momentum(c, n, a, x, b, false, 0.9f, 1, true, CudaRounding{});
    const CudaPieces piece = {x, n, 0};
    CudaPieces *pieces = (CudaPieces *)cuda_take(c, sizeof piece, false);
    cuda_upload(c, pieces, &piece, sizeof piece);
    cuda_sumsq(c, 0, false, 1, pieces, 1, part, part + 4);
    cuda_normalise(c, n, y, part + 4, 1e-7);
    cuda_xent(c, N * D / V, V, z, nullptr, 0, s, nullptr, at, a, CudaLogits{1, 0, 0});
    SampleRow row[N * D / V];
    for (SampleRow &r : row) r = {1, 2, 1, 1, 1, 0, 0, 0};
    SampleRow *rows = (SampleRow *)cuda_take(c, sizeof row, false);
    cuda_upload(c, rows, row, sizeof row);
    double *weights = (double *)cuda_take(c, n * sizeof(double), false);
    cuda_sample(c, N * D / V, V, rows, z, nullptr, weights, (int *)y, part);
    cuda_embed(c, N, D, y, x, false, at, 1);
    cuda_bias(c, N, D, y, a, false);
    cuda_round_to_bf16(c, n, y);
    cuda_places(c, (int)n, D, (int *)y, (const int *)x);
    cuda_column_sums(c, N, D, b, parts, x, false);
    cuda_column_sums(c, N, D - 1, b, parts, x, false);
    cuda_sync(c);
    budgets_hold(budgets, (double)n);
    const SimtEstimate *use = simt_estimate("rmsnorm_rows<TEAM, E, Y, X>");
    cr_expect(use->threads * 8 <= (long)n, "%ld threads for %zu numbers of short rows", use->threads, n);
    cuda_stop(c);
}

/* Attention on the matrix units, by width. T rows of one document, two heads on one lane. Bytes are for each number of
 * q; products beside those of T x T scores, which a causal mask halves but for the tiles that it cuts; banks without
 * one conflict. */
enum { T = 192, HEADS = 2 };
struct Use {
    double read, written, sectors, least_sectors, waves, least_waves;
    long mma;
};
static Use use_of(const char *kernel) {
    const SimtEstimate *e = simt_estimate(kernel);
    if (!e) return {};
    return {e->read, e->written, e->sectors, e->least_sectors, e->waves, e->least_waves, e->mma};
}
static Use less(Use a, Use b) {
    return {a.read - b.read,   a.written - b.written,         a.sectors - b.sectors, a.least_sectors - b.least_sectors,
            a.waves - b.waves, a.least_waves - b.least_waves, a.mma - b.mma};
}
/* Kernels with a table of their own, below. */
const char *const budgets_flash[] = {
    "pack", "flash", "flash_delta", "flash_delta_rows", "flash_backward_q", "flash_backward_kv", nullptr};
struct FlashBudget {
    const char *kernel;
    double read, written, sectors;
    int by_k, by_v, slices; /* products as wide as a key and a value; of each block of columns: one of either */
};
static const FlashBudget flash_budgets[] = {{"pack", 16.1, 8.1, 1.0, 0, 0, 0}, /* forward and backward */
                                            {"flash<DK, DV, BK>", 13, 4.2, 1.02, 1, 1, 0},
                                            {"flash_delta<float>", 8.2, 2.3, 1.0, 0, 0, 0},
                                            {"flash_backward_q<DK, DV, BK>", 20, 4.1, 1.01, 2, 1, 0},
                                            {"flash_backward_kv<DK, DV, BE, S>", 25, 4.1, 1.01, 1, 1, 1}};
Test(budget, attention_on_the_matrix_units, .timeout = 120) {
    static const int widths[][2] = {{32, 32}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
    enum { KERNELS = sizeof flash_budgets / sizeof *flash_budgets };
    char why[200];
    Cuda *c = device = cuda_start(0, why);
    cr_assert(c, "%s", why);
    int off[] = {0, T}, pos[T], first[T];
    for (int i = 0; i < T; i++) pos[i] = i, first[i] = 0;
    int *at = (int *)cuda_take(c, sizeof off + 2 * sizeof pos, false);
    cuda_upload(c, at, off, sizeof off), cuda_upload(c, at + 2, pos, sizeof pos);
    cuda_upload(c, at + 2 + T, first, sizeof first);
    for (auto &w : widths) {
        CudaAttend a = {};
        a.B = 1, a.N = a.n = a.longest = T, a.blocks = T * HEADS / CUDA_ENTRIES, a.off = at, a.pos = at + 2;
        a.first = at + 2 + T, a.lanes = 1, a.heads = HEADS, a.Dk = w[0], a.Dv = a.ldv = w[1], a.scale = 0.1f;
        size_t q = (size_t)T * HEADS * (size_t)w[0], o = (size_t)T * HEADS * (size_t)w[1],
               all = 4 * q + 4 * o + 2 * T * HEADS;
        float *p = (float *)cuda_take(c, all * sizeof *p, false), *dq = p + q, *k = dq + q, *v = k + q, *dk = v + o,
              *dv = dk + q, *out = dv + o, *g = out + o, *lse = g + o;
        cuda_fill(c, p, 0, all * sizeof *p);
        CudaFlash x = {};
        x.q.p = p, x.k.p = k, x.v.p = v, x.o.p = out, x.dout.p = g, x.dq.p = dq, x.dk.p = dk, x.dv.p = dv;
        void *mem = cuda_take(c, cuda_flash_backward_bytes(&a, &x), false);
        Use before[KERNELS];
        for (int i = 0; i < KERNELS; i++) before[i] = use_of(flash_budgets[i].kernel);
        cuda_flash(c, &a, &x, mem, lse, nullptr);
        cuda_flash_backward(c, &a, &x, mem, nullptr, lse);
        cuda_sync(c);
        for (int i = 0; i < KERNELS; i++) {
            const FlashBudget &b = flash_budgets[i];
            Use u = less(use_of(b.kernel), before[i]);
            double numbers = (double)q, blocks = b.slices ? w[0] > 128 ? 2 : 1 : 0,
                   whole =
                       T * HEADS / 16.0 * T / 8.0 * ((b.by_k + blocks) * w[0] / 16.0 + (b.by_v + blocks) * w[1] / 16.0);
            cr_expect(u.read > 0 && u.read <= b.read * numbers && u.written <= b.written * numbers,
                      "%s, %d and %d: reads %g bytes a number, writes %g", b.kernel, w[0], w[1], u.read / numbers,
                      u.written / numbers);
            cr_expect(u.sectors <= b.sectors * u.least_sectors && u.waves <= u.least_waves,
                      "%s, %d and %d: %g times the least sectors, conflict factor %g", b.kernel, w[0], w[1],
                      u.sectors / u.least_sectors, u.waves / u.least_waves);
            cr_expect((double)u.mma <= 0.67 * whole, "%s, %d and %d: %ld products, %g of all", b.kernel, w[0], w[1],
                      u.mma, (double)u.mma / whole);
        }
        cuda_give(c, p), cuda_give(c, mem);
    }
    cuda_stop(c);
}
