/* test_budget_bf16.cpp: budgets, as test_budget.cpp, of the kernels on activations that are bf16 in memory, fresh
 * gradients among them. */
#include "budget.h"
#include <vector>

enum { N = 64, D = 1024, H = 4, HD = 256 };
static const Budget budgets_bf16[] = {
    {"swiglu<bf16, 8>", 4, 2, 1.0},
    {"swiglu_backward<T, W>", 6, 6, 1.0},
    {"swiglu_rows<bf16, 8>", 4.5, 2, 1.0},
    {"swiglu_rows_backward<T, W>", 6.2, 4.1, 1.01},
    {"spread<Y, X, W>", 7.5, 4, 1.0},  /* of the stream, and of rows of bf16 */
    {"collect<Y, X, W>", 5.5, 3, 1.0}, /* half as many rows of the stream, and of bf16 */
    {"dots<X>", 6144, 4, 1.0, N * 8},
    {"geglu<approx, T, W>", 8, 4, 1.0},
    {"geglu_backward<approx, T, W>", 12, 12, 1.0},
    {"gelu<true, bf16, 8>", 2, 2, 1.0},
    {"gelu<false, bf16, 8>", 2, 2, 1.0},
    {"gelu_backward<true, bf16, 8>", 4, 2, 1.0},
    {"gelu_backward<false, bf16, 8>", 4, 2, 1.0},
    {"add<Y, X, W>", 6, 4, 1.0}, /* bf16 to the stream */
    {"bias_add<bf16, 4>", 6, 2, 1.0},
    {"column_sums_quads<bf16>", 2.1, 0.3, 1.01},
    {"rmsnorm<Y, X, W>", 24, 8.2, 1.01}, /* a stream that takes something in first, and rows of bf16 */
    {"layernorm<bf16, 4>", 20, 2.1, 1.01},
    {"norm_backward<TEAM, E, centred, G, X>", 11.3, 4.3, 1.01},
    {"rotate<bf16>", 3, 2, 1.0},
    {"norm_rotate<TEAM, S, W, T>", 7, 2.1, 1.01},
    {"norm_rotate_backward<TEAM, S, W, T>", 7.5, 2.3, 1.01},
    {"gather<bf16>", 30, 2, 1.0},
    {"columns<Y, X, W>", 2, 2, 1.0},
    {"columns_backward<Y, X, W>", 2, 2, 1.0},
    {},
};
static Cuda *device;
static void *zeros(size_t bytes) {
    void *p = cuda_take(device, bytes, false);
    cuda_fill(device, p, 0, bytes);
    return p;
}
static void *half() { return zeros((size_t)N * D * 2); }
Test(budget, kernels_on_bf16_ask_for_no_more) {
    char why[200];
    Cuda *c = device = cuda_start(0, why);
    cr_assert(c, "%s", why);
    const size_t n = (size_t)N * D;
    void *a = half(), *b = half(), *x = half(), *y = half(), *z = half(), *act = half();
    float *s = (float *)zeros(n * 4), *t = (float *)zeros(n * 4), *w = (float *)zeros(D * 4),
          *v = (float *)zeros(D * 4), *parts = (float *)zeros(2 * n * 4), *rstd = (float *)zeros(n * 4);
    int ids[N], *at = (int *)cuda_take(c, sizeof ids, false);
    for (int i = 0; i < N; i++) ids[i] = i;
    cuda_upload(c, at, ids, sizeof ids);
    cuda_swiglu(c, n, y, a, b, true);
    cuda_swiglu_backward(c, n, act, x, y, z, a, b, true, true, true);
    cuda_swiglu_rows(c, N, D, y, a, b, rstd, true);
    cuda_swiglu_rows_backward(c, N, D, x, y, s, z, a, b, rstd, true, true, true, true);
    cuda_spread(c, N, D, x, true, s, false, at);
    cuda_spread(c, N, D, x, true, y, true, at);
    cuda_collect(c, N / 2, D, s, false, true, x, true, at, 2);
    cuda_collect(c, N / 2, D, y, true, true, x, true, at, 2);
    cuda_dots(c, N, 8, D, t, x, true, s, nullptr);
    for (int approx = 0; approx < 2; approx++) {
        cuda_gelu(c, n, y, x, approx, true);
        cuda_gelu_backward(c, n, x, y, a, approx, true, true);
        cuda_geglu(c, n, y, a, b, approx, true);
        cuda_geglu_backward(c, n, act, x, y, z, a, b, approx, true, true, true);
    }
    cuda_add(c, n, s, x, false, true);
    cuda_bias(c, N, D, y, w, true);
    cuda_column_sums(c, N, D, v, parts, x, true);
    cuda_rmsnorm(c, N, D, y, rstd, s, t, w, 1e-5, CUDA_NORM_OUT);
    cuda_rmsnorm(c, N, D, y, rstd, x, NULL, w, 1e-5, CUDA_NORM_ALL);
    cuda_layernorm(c, N, D, y, rstd, s, w, w, 1e-5, true);
    cuda_rmsnorm_backward(c, N, D, s, v, parts, y, t, w, rstd, CUDA_NORM_OUT, false);
    CudaRope rope = {};
    rope.N = N, rope.heads = H, rope.D = rope.n = HD, rope.sign = 1, rope.factor = 1;
    cuda_rope(c, &rope, x, at, at, true);
    cuda_norm_rope(c, &rope, y, rstd, x, w, 1e-5, at, at, true);
    rope.sign = -1;
    cuda_norm_rope_backward(c, &rope, a, v, parts, y, x, w, rstd, at, at, true, true);
    cuda_gather(c, N, D, y, x, at, N, at, true);
    const CudaColumns all = {N, 1, D, 0, D, 0, D};
    cuda_columns(c, all, y, true, x, true);
    cuda_columns_backward(c, all, x, true, true, y, true);
    cuda_sync(c);
    if (getenv("CHECK_VERBOSE")) simt_print_estimates(stderr);
    budgets_hold(budgets_bf16, (double)n);
    cuda_stop(c);
}

/* What stands around a recurrence, and the recurrence by chunks, whose values and do are read where they lie: gradients
 * are to be overwritten. Bytes by the numbers of one operand: rows of H heads of P. What all threads of a warp share
 * each of them asks for. */
enum { T = 128, P = 64, W = 4 };
static const Budget budgets_recur[] = {
    {"elu1<bf16, 8>", 2, 2, 1.0},
    {"elu1_backward<bf16, 8>", 4, 2, 1.0},
    {"l2norm<T, W>", 4, 2, 1.0},
    {"l2norm_backward<T, W>", 8, 2, 1.0},
    {"short_conv<most, T>", 7.6, 2, 1.46},
    {"short_conv_backward<most, T>", 11.7, 3.3, 1.29},
    {"decay<bf16>", 6, 4, 1.0},
    {"decay_backward<bf16>", 10, 3, 1.01},
    {"gated_norm<T, W>", 10, 2, 1.0},
    {"gated_norm_backward<TEAM, E, T>", 8.1, 4.3, 1.01},
    {"append_ones<bf16>", 2, 2.1, 1.23},
    {"append_ones_backward<bf16>", 2, 2, 1.24},
    {"divide_by_last<bf16>", 4, 2, 1.2},
    {"divide_by_last_backward<T>", 5.1, 2.1, 1.14},
    {"step<bf16, 8>", 3, 2, 1.01},
    {"step_backward<bf16>", 8, 2.2, 1.01},
    {"skip<bf16, 8>", 7, 4, 1.01}, /* forward, which adds, and backward */
    {"skip_backward_w<bf16>", 4.1, 0.1, 1.01},
    {"delta_prepare<KW, T>", 45.7, 30.2, 1.18, 0, 1.08}, /* forward and backward */
    {"delta_states<KW>", 13.3, 4, 1.16},
    {"delta_out<KW>", 7.9, 2, 1.22},
    {"delta_states_backward<KW>", 15.5, 6, 1.03},
    {"delta_values_backward<KW>", 20, 12.1, 1.4},
    {"delta_keys_backward<T>", 88.9, 8, 1.15, 0, 1.06},
    {},
};
Test(budget, a_recurrence_on_bf16_rows) {
    char why[200];
    Cuda *c = device = cuda_start(0, why);
    cr_assert(c, "%s", why);
    const size_t n = (size_t)T * H * P, M = (size_t)T * H;
    std::vector<int> rows[3]; /* off, of, first */
    rows[0] = {0, T}, rows[1] = rows[2] = std::vector<int>(T, 0);
    int *at[3];
    for (int i = 0; i < 3; i++) {
        at[i] = (int *)cuda_take(c, rows[i].size() * sizeof(int), false);
        cuda_upload(c, at[i], rows[i].data(), rows[i].size() * sizeof(int));
    }
    void *a = zeros(4 * n), *b = zeros(4 * n), *x = zeros(4 * n), *y = zeros(4 * n), *z = zeros(4 * n);
    float *s = (float *)zeros(8 * n), *g = (float *)zeros(8 * n), *w = (float *)zeros(8 * n),
          *v = (float *)zeros(8 * n), *parts = (float *)zeros(16 * n);
    cuda_elu1(c, n, y, x, true);
    cuda_elu1_backward(c, n, x, z, y, true, true);
    cuda_l2norm(c, (int)M, P, y, x, 1e-5, true);
    cuda_l2norm_backward(c, (int)M, P, x, y, z, 1e-5, true, true);
    CudaConv conv = {};
    conv.N = T, conv.B = 1, conv.C = H * P, conv.W = W, conv.silu = conv.is_bf16 = true;
    conv.off = at[0], conv.of = at[1], conv.first = at[2];
    cuda_short_conv(c, &conv, y, x, w, w, nullptr, false);
    cuda_short_conv_backward(c, &conv, x, true, v, s, parts, y, z, w, w);
    const CudaGate gate = {CUDA_GATE_SOFTPLUS, 0};
    cuda_decay(c, T, H, P, g, z, w, w, gate, true);
    cuda_decay_backward(c, T, H, P, x, v, s, parts, g, z, w, w, gate, true, true);
    const CudaGatedNorm norm = {P, H, true, false, 1e-5};
    cuda_gated_norm(c, M, y, x, z, w, norm, true);
    cuda_gated_norm_backward(c, M, a, b, v, parts, y, x, z, w, norm, true, true, true);
    cuda_append_ones(c, M, P, y, x, true);
    cuda_append_ones_backward(c, M, P, x, y, true, true);
    cuda_divide_by_last(c, M, P, y, x, 1e-2f, true);
    cuda_divide_by_last_backward(c, M, P, a, b, y, x, 1e-2f, true, true);
    cuda_step(c, T, H, P, y, x, s, w, true);
    cuda_step_backward(c, T, H, P, a, s, parts, y, x, g, w, true, true, true);
    cuda_skip(c, T, H, P, y, x, w, true);
    cuda_skip_backward(c, T, H, P, a, v, y, x, w, true, true);
    CudaRecur p = {};
    p.B = 1, p.N = p.longest = T, p.H = p.HV = H, p.K = p.V = P, p.per_channel = p.delta = p.is_bf16 = true;
    p.scale = 1, p.q = a, p.k = b, p.v = x, p.g = g, p.beta = s, p.off = at[0], p.first = at[2], p.seq = at[1];
    cuda_fill(c, g, 0, 4 * n), cuda_fill(c, s, 0, 4 * n);
    float *keep = (float *)zeros((size_t)T / CUDA_RECUR_CHUNK * H * P * P * 4);
    cuda_delta(c, &p, cuda_take(c, cuda_delta_bytes(&p), false), y, keep, nullptr, false);
    CudaRecurGrad d = {};
    d.q = {zeros(2 * n), true, true}, d.k = {zeros(2 * n), true, true}, d.v = {zeros(2 * n), true, true};
    d.g = {w, false, true}, d.beta = {v, false, true};
    cuda_delta_backward(c, &p, cuda_take(c, cuda_delta_backward_bytes(&p, d.v), false), &d, z, keep);
    cuda_sync(c);
    if (getenv("CHECK_VERBOSE")) simt_print_estimates(stderr);
    budgets_hold(budgets_recur, (double)n);
    cr_expect(!simt_estimate("pack"), "rows of bf16 are packed");
    cuda_stop(c);
}

/* Attention that reads and writes rows of bf16 where they lie: nothing is packed, results take half the bytes, whole
 * sectors of them, and no bank is met twice. */
Test(budget, attention_on_bf16_rows, .timeout = 120) {
    enum { T = 192, HEADS = 2 };
    static const int widths[][2] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
    struct Line {
        const char *kernel;
        double read, written;
    };
    static const Line lines[] = {{"flash<DK, DV, BK>", 13, 2.2},
                                 {"flash_delta_rows", 4.6, 0.3},
                                 {"flash_backward_q<DK, DV, BK>", 16.1, 2.1},
                                 {"flash_backward_kv<DK, DV, BE, S>", 21, 2.1}};
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
        size_t q = (size_t)T * HEADS * (size_t)w[0], o = (size_t)T * HEADS * (size_t)w[1];
        CudaFlash x = {};
        CudaRows *rows[] = {&x.q, &x.k, &x.v, &x.o, &x.dout, &x.dq, &x.dk, &x.dv};
        for (CudaRows *r : rows) *r = {zeros(2 * (q > o ? q : o)), true, true};
        float *lse = (float *)zeros(T * HEADS * 4);
        void *mem = cuda_take(c, cuda_flash_backward_bytes(&a, &x), false);
        SimtEstimate before[4] = {};
        for (int i = 0; i < 4; i++)
            if (const SimtEstimate *e = simt_estimate(lines[i].kernel)) before[i] = *e;
        cr_expect_eq(cuda_flash_bytes(&a, &x), 0);
        cuda_flash(c, &a, &x, mem, lse, nullptr);
        cuda_flash_backward(c, &a, &x, mem, nullptr, lse);
        cuda_sync(c);
        for (int i = 0; i < 4; i++) {
            const SimtEstimate *e = simt_estimate(lines[i].kernel), *b = &before[i];
            cr_assert(e, "%s was not launched", lines[i].kernel);
            double read = (e->read - b->read) / (double)q, written = (e->written - b->written) / (double)q,
                   sectors = (e->sectors - b->sectors) / (e->least_sectors - b->least_sectors);
            cr_expect(read > 0 && read <= lines[i].read && written <= lines[i].written,
                      "%s, %d and %d: reads %g bytes a number, writes %g", e->kernel, w[0], w[1], read, written);
            cr_expect(sectors <= 1.02 && e->waves - b->waves <= e->least_waves - b->least_waves,
                      "%s, %d and %d: %g times the least sectors", e->kernel, w[0], w[1], sectors);
        }
        for (CudaRows *r : rows) cuda_give(c, r->p);
        cuda_give(c, lse), cuda_give(c, mem);
    }
    cr_expect(!simt_estimate("pack"), "rows of bf16 are packed");
    cuda_stop(c);
}
