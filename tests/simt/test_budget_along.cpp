/* test_budget_along.cpp: budgets, as test_budget.cpp, of what goes along sequences or looks at rows from elsewhere; and
 * that no kernel of ops/cuda is without one. */
#include "ops/colstat.h"
#include "ops/fp8.h"
#include "ops/packed.h"
#include "budget.h"
#include <dirent.h>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

/* Two sequences of T rows; H query heads on LANES lanes of D numbers; heads of a recurrence K by K. */
enum {
    B = 2,
    T = 64,
    N = B * T,
    H = 4,
    LANES = 2,
    D = 64,
    K = 32,
    W = 4,
    V = 4096,
    ROOM = 1024,
    WINDOW = 12,
    R = 16,
    C = 256,
    WORDS = 4096,
    M = N * LANES * D
};
/* What stands behind the last budget is what bytes are counted by. A history of the cache is read once for all query
 * heads of its lane; slices of 16 rows, as short as they get, are why convolutions read more than each row once; a
 * state's notes are why the backward of the recurrence writes as much. By chunks keys of 32 are
 * filled up to 64, and each thread asks for what all of a warp share. */
const Budget budgets_along[] = {
    {"align_rows", 12.9, 4.13, 1.01, N *V / 4},
    {"align_sizes", 5.19, 0.1, 1.01, N *V / 4},
    {"attend<1>", 17, 4.19, 1.73},
    {"attend_backward_kv<1>", 29.6, 4, 1.79},
    {"attend_backward_q<1>", 27.7, 4, 1.88},
    {"attend_delta", 8, 0.0644, 1},
    {"attend_lanes<1, T>", 4.87, 0.1, 1.05, 2 * B *LANES *ROOM *D},
    {"clear<float>", 0, 4, 1, N *V / 4},
    {"collect<Y, X, W>", 7, 2, 1},
    {"colstat_lse", 4, 0.13, 1, R *LANES *CUDA_COL_PIECES * 2},
    {"colstat_lse_parts<T>", 5.7, 0.04, 1.03, LANES *ROOM *D},
    {"colstat_rows<T>", 12.3, 0.07, 3.38, 2 * LANES *ROOM *D},
    {"colstat_sums", 8, 4, 1, R *LANES *D},
    {"colstat_seen", 8.3, 0.1, 1, R *LANES *ROOM},
    {"columns<Y, X, W>", 4, 4, 1},
    {"columns_backward<Y, X, W>", 8, 4, 1},
    {"decay<float>", 8, 4, 1},
    {"decay_backward<float>", 16, 5, 1.01},
    {"decay_backward_rate", 0.6, 0.1, 1.01},
    {"decide", 61.5, 16, 1.37, N *LANES},
    {"decide_backward", 41, 8, 1.05, N *LANES},
    {"decide_count", 41, 0.0644, 1.31, N *LANES},
    {"distill_rows", 17.5, 4.13, 1.01, R *V},
    {"delta_keys_backward<T>", 180, 12, 1.09, N *H *K, 1.06},
    {"delta_out<KW>", 12.8, 4, 1.07, N *H *K},
    {"delta_prepare<KW, T>", 67.3, 60.3, 1.21, N *H *K, 1.08},
    {"delta_states<KW>", 26.5, 5, 1.17, N *H *K},
    {"delta_states_backward<KW>", 31, 9, 1.03, N *H *K},
    {"delta_values_backward<KW>", 41.2, 28.2, 1.5, N *H *K},
    {"dots<X>", 8192, 4, 1, N * 8},
    {"dropout", 13.4, 4, 1.97},
    {"embed_backward", 12.1, 4.13, 1.01, N *V / 4},
    {"embed_backward_runs", 1.04, 0.04, 1.02, N *V / 4},
    {"sort_count", 2, 8, 1.01, 512},
    {"sort_scan", 16, 8, 1.01, 512},
    {"sort_place", 10, 4, 1.01, 512},
    {"gated_norm<T, W>", 16, 4, 1},
    {"gated_norm_backward<TEAM, E, T>", 22, 8.31, 1},
    {"gated_norm_backward_wide<T>", 37.2, 11.3, 1.01},
    {"geglu<approx, T, W>", 16, 8, 1},
    {"geglu_backward<approx, T, W>", 40, 16, 1},
    {"gelu<false, float, 1>", 4, 4, 1},
    {"gelu<true, float, 1>", 4, 4, 1},
    {"gelu_backward<false, float, 1>", 12, 4, 1},
    {"gelu_backward<true, float, 1>", 12, 4, 1},
    {"flash_lanes<DK, DV, ALIAS, M>", 2.5, 0.1, 1.05, 2 * B *LANES *ROOM *D},
    {"int8_encode", 10, 1.1, 1.1}, /* 2 of them where a part lies, which a warp shares */
    {"int8_recode", 8, 4, 1.01},
    {"fp8_encode", 10, 1.1, 1.1},
    {"fp8_recode", 8, 4, 1.01},
    {"packed_encode", 6.1, 0.63, 1.1}, /* 2 of them where a part lies */
    {"packed_recode", 4, 4, 1.01},
    {"hadamard<E, T>", 4, 4, 1},
    {"lanes_merge", 10.9, 0.524, 1.1, 16 * B *H *D},
    {"layernorm<float, 1>", 20, 4.14, 1},
    {"norm_backward<TEAM, E, centred, G, X>", 16.6, 4.6, 1.01},
    {"map_logits", 4, 4, 1},
    {"mean_rows<float>", 4, 2, 1, LANES *V * 2},
    {"merge_all", 20.8, 4.19, 1.01, M},
    {"merge_window", 328, 4.19, 1.01, M},
    {"move<Y, X>", 20, 4, 1},
    {"divide_by_last<float>", 8, 4, 1.13},
    {"divide_by_last_backward<T>", 14.1, 4.19, 1.11},
    {"recur<KP, float>", 50.6, 4, 1.04, N *H *K},
    {"recur_backward<KP, CT, float>", 1175, 610, 1.01, N *H *K},
    {"recur_fold", 5, 1, 1},
    {"repeat", 8, 4, 1},
    {"rotate<float>", 5, 4, 1},
    {"norm_rotate<TEAM, S, W, T>", 9, 4.1, 1.01},
    {"norm_rotate_backward<TEAM, S, W, T>", 18, 4.3, 1.01},
    {"scale_column", 4, 4, 8.17, N *H},
    {"short_conv<most, T>", 9.82, 4, 1.28},
    {"short_conv_backward<most, T>", 20.4, 5.5, 1.14},
    {"short_conv_backward_fold", 1.41, 0.3, 1.61},
    {"short_conv_store", 9.4, 4, 1, B *(W - 1) * C},
    {"sigmoid_gate<float, 1>", 8, 4, 1},
    {"sigmoid_gate_backward<T, W>", 20, 8, 1},
    {"attend_sink<float>", 9, 4.2, 1.05},
    {"attend_sink_backward<float>", 13, 0.1, 1.05},
    {"swiglu_limit<float, 1>", 13, 4, 1.05},
    {"swiglu_limit_backward<T, W>", 21, 8.2, 1.05},
    {"relu2<float, 1>", 8, 4, 1},
    {"relu2_backward<T, W>", 12.6, 4.2, 1.01},
    {"skip<float, 1>", 24, 8, 1},
    {"skip_backward_w<float>", 8.25, 0.1, 1.01},
    {"step<float, 1>", 12, 4, 1},
    {"step_backward<float>", 16.6, 4.25, 1.01},
    {"unmerge_dots", 22, 0.194, 1, M},
    {"unmerge_sums", 29, 8, 1.01, M},
    {"unmerge_weights", 41.1, 8.18, 2.13, N *LANES},
    {"unmerge_window_dots", 102, 0.707, 1.01, M},
    {"unmerge_window_products", 25.3, 11, 5.09, N *LANES *WINDOW},
    {"unmerge_window_weights", 13.1, 0.687, 5.74, N *LANES *WINDOW},
    {"unmerge_window_x", 239, 4, 1.01, M},
    {"cast_to_bf16", 4, 2, 1},
    {"cast_from_bf16", 2, 4, 1},
    {"append_ones<float>", 4, 4.19, 1.13},
    {"append_ones_backward<float>", 8, 4, 1.1},
    {"words", 8, 4, 1, WORDS},
    {},
};

static Cuda *device;
template <class X> static X *put(const std::vector<X> &v) {
    X *p = (X *)cuda_take(device, v.size() * sizeof(X), false);
    cuda_upload(device, p, v.data(), v.size() * sizeof(X));
    return p;
}
static float *numbers(size_t n, float of = 0.5f) { return put(std::vector<float>(n, of)); }
static int *counted(int n, int step = 1) {
    std::vector<int> v((size_t)n);
    for (int i = 0; i < n; i++) v[(size_t)i] = i * step;
    return put(v);
}
struct Rows { /* of a batch, on the device */
    int *off, *seq, *of, *pos, *first, *idx;
    uint64_t *id;
};
static Rows rows_make() {
    std::vector<int> of, pos, first;
    for (int i = 0; i < N; i++) of.push_back(i / T), pos.push_back(i % T), first.push_back(i / T * T);
    return {counted(B + 1, T), counted(B), put(of), put(pos), put(first), counted(N), put(std::vector<uint64_t>(B, 7))};
}

static void attention(const Rows &r) {
    CudaAttend a = {};
    a.B = B, a.N = a.n = N, a.blocks = T * (H / LANES) / CUDA_ENTRIES, a.longest = T;
    a.off = r.off, a.pos = r.pos, a.first = r.first;
    a.lanes = LANES, a.heads = H, a.Dk = a.Dv = a.ldv = D, a.scale = 0.1f;
    a.k = numbers(N * LANES * D), a.v = numbers(N * LANES * D);
    float *q = numbers(N * H * D), *o = numbers(N * H * D), *lse = numbers(N * H), *dout = numbers(N * H * D),
          *dq = numbers(N * H * D), *dk = numbers(N * LANES * D), *dv = numbers(N * LANES * D), *delta = numbers(N * H);
    a.idx = r.idx;
    cuda_attend(device, &a, o, lse, nullptr, q);
    a.idx = nullptr;
    cuda_attend_backward(device, &a, dq, dk, dv, nullptr, delta, dout, q, o, lse);
}
/* A row each of two sequences over ROOM rows in pages of 64; in f32, and in bf16 on the matrix units. */
static void lanes() {
    enum { P = 64, PAGES = ROOM / P };
    CudaAttend a = {};
    a.B = B, a.N = a.n = B, a.blocks = 1, a.entries = H / LANES, a.longest = 1;
    a.off = counted(B + 1), a.pos = put(std::vector<int>(B, ROOM)), a.first = put(std::vector<int>(B, -1));
    a.idx = counted(B);
    a.lanes = LANES, a.heads = H, a.Dk = a.Dv = a.ldv = D, a.scale = 0.1f;
    CudaLanes l = {};
    l.P = P, l.maxpages = PAGES;
    l.seq = counted(B), l.s0 = l.lo = put(std::vector<int>(B * LANES, 0)),
    l.hi = put(std::vector<int>(B * LANES, ROOM));
    l.table = counted(B * LANES * PAGES), l.pos = put(std::vector<int>(B * LANES * ROOM, 3));
    l.pieces = cuda_lane_pieces(ROOM), l.slots = B;
    l.part = numbers((size_t)l.pieces * B * H * D), l.lses = numbers((size_t)l.pieces * B * H);
    l.data = numbers((size_t)B * LANES * ROOM * 2 * D);
    cuda_attend_lanes(device, &a, &l, numbers(B * H * D), numbers(B * H), nullptr, numbers(B * H * D));
    CudaColStat c = {};
    c.from = ROOM, c.n = c.rows = R, c.queries = COL_COUNT, c.heads = COL_SUM, c.value = COL_L2;
    c.lanes = LANES, c.group = H / LANES, c.Dk = c.Dv = D, c.columns = ROOM, c.seen = counted(LANES * R);
    cuda_colstat(device, &c, &l, numbers(LANES * ROOM), numbers(R * H * D), numbers(R * H));
    c.older = true, c.queries = COL_SUM;
    c.sums = numbers(R * LANES * D), c.lses = numbers(R * LANES), c.parts = numbers(2 * LANES * R * CUDA_COL_PIECES);
    cuda_colstat(device, &c, &l, numbers(LANES * ROOM), numbers(R * H * D), nullptr);
    l.is_bf16 = l.matrix = true;
    cuda_attend_lanes(device, &a, &l, numbers(B * H * D), numbers(B * H), nullptr, numbers(B * H * D));
}
static void convolution(const Rows &r) {
    CudaConv p = {};
    p.N = N, p.B = B, p.C = C, p.W = W, p.silu = true, p.blob = (W - 1) * C;
    p.of = r.of, p.first = r.first, p.off = r.off, p.seq = r.seq;
    float *x = numbers(N * C), *y = numbers(N * C), *w = numbers(C * W), *bias = numbers(C);
    cuda_short_conv(device, &p, y, x, w, bias, numbers(B * (W - 1) * C), true);
    cuda_short_conv_backward(device, &p, numbers(N * C), false, numbers(C * W), numbers(C),
                             numbers((size_t)N * (W + 1) * C), y, x, w, bias);
}
static void recurrence(const Rows &r) {
    enum { HV = 4, M = N * HV * K };
    CudaRecur p = {};
    p.B = B, p.N = N, p.H = HV, p.HV = HV, p.K = K, p.V = K, p.per_channel = true, p.scale = 1, p.blob = HV * K * K;
    p.q = numbers(M, 0.1f), p.k = numbers(M, 0.1f), p.v = numbers(M), p.g = numbers(M, -0.1f), p.beta = numbers(N * HV);
    p.off = r.off, p.first = r.first, p.seq = r.seq;
    float *keep = numbers((size_t)(N / CUDA_RECUR_CHUNK + B) * HV * K * K), *dout = numbers(M);
    cuda_recur(device, &p, numbers(M), keep, nullptr, false);
    CudaRecurGrad d = {};
    CudaRows *grads[] = {&d.q, &d.k, &d.v, &d.g};
    for (CudaRows *x : grads) x->p = numbers(M);
    d.beta.p = numbers(N * HV);
    cuda_recur_backward(device, &p, &d, dout, keep, numbers(cuda_recur_notes(K, K) * HV * B));
    /* By chunks: one sequence, whose second chunk has a state before it. */
    p.B = 1, p.off = counted(2, N), p.first = put(std::vector<int>(N, 0)), p.longest = N, p.delta = true;
    cuda_delta(device, &p, cuda_take(device, cuda_delta_bytes(&p), false), numbers(M), keep, nullptr, false);
    cuda_delta_backward(device, &p, cuda_take(device, cuda_delta_backward_bytes(&p, d.v), false), &d, dout, keep);
    cuda_recur_fold(device, N * 2, K, {numbers(N * 2 * K), false, false}, numbers(2 * M), 2, 2);
}
static void gates() {
    enum { M = N * H * D };
    const CudaGate gate = {CUDA_GATE_SOFTPLUS, 0};
    float *z = numbers(M), *A = numbers(H), *bias = numbers(H * D), *g = numbers(M), *dg = numbers(M);
    cuda_decay(device, N, H, D, g, z, A, bias, gate, false);
    cuda_decay_backward(device, N, H, D, numbers(M), numbers(H), numbers(H * D), numbers(3 * M), dg, z, A, bias, gate,
                        false, false);
    const CudaGatedNorm n = {D, H, true, false, 1e-5};
    float *w = numbers(H * D), *x = numbers(M);
    cuda_gated_norm(device, N * H, g, x, z, w, n, false);
    cuda_gated_norm_backward(device, N * H, numbers(M), numbers(M), numbers(H * D), numbers(M), dg, x, z, w, n, false,
                             false, false);
    const CudaGatedNorm wide = {9 * V / 4, 1, true, true, 1e-5};
    cuda_gated_norm_backward(device, 3, g, dg, numbers(9 * V / 4), numbers(9 * V / 4), z, x, z, numbers(9 * V / 4),
                             wide, false, false, false);
}
static void means(const Rows &r) {
    CudaMerge p = {};
    p.N = N, p.B = B, p.lanes = LANES, p.D = D;
    p.x = numbers(M), p.a = numbers(N * LANES), p.w = numbers(N * LANES);
    p.of = r.of, p.pos = r.pos, p.first = r.first, p.off = r.off, p.seq = r.seq;
    for (int window = 0; window < 2; window++) {
        p.window = window * WINDOW;
        float *y = numbers(M), *z = numbers(N * LANES);
        cuda_merge(device, &p, y, z);
        cuda_merge_backward(device, &p, numbers(M), numbers(N * LANES), numbers(N * LANES), numbers(M),
                            numbers(N * LANES * WINDOW), numbers(M), y, z);
    }
    CudaDecide d = {};
    d.N = N, d.B = B, d.G = LANES, d.wide = 2 * LANES, d.stats = 2, d.group = H / LANES, d.train = d.noise = true;
    d.gain = 1, d.offset = 5, d.temperature = 0.1, d.eps = 0.01;
    d.of = r.of, d.first = r.first, d.off = r.off, d.id = r.id;
    float *alpha = numbers(N * LANES), *omega = numbers(N * LANES), *bias = numbers(N * LANES),
          *u = numbers(2 * N * LANES);
    cuda_decide(device, &d, alpha, omega, bias, numbers(N * LANES), numbers(2 * B), u);
    cuda_decide_backward(device, &d, numbers(N * LANES), numbers(N * LANES), alpha, alpha, bias, alpha, omega,
                         numbers(2 * B));
    cuda_mean_rows(device, LANES, V, numbers(LANES * V), numbers(LANES * 2 * 8 * V), false, 8, 7, 2);
    cuda_scale_column(device, N * H, D, D - 1, numbers(N * H * D), 0);
}
static void losses() {
    const CudaDistill c = {1, 1, 1, 2, {1, 0, 0}};
    cuda_distill(device, R, V, numbers(R * V), numbers(R * V), numbers(R), numbers(R), numbers(R), counted(R),
                 numbers(R), c);
    cuda_align(device, N, B, V / 4, numbers(N), numbers(N * V / 4), numbers(B), numbers(N * V / 4), numbers(N * V / 4),
               counted(N), counted(B + 1, T), numbers(N), 1);
    const CudaEmbed e = {{counted(N), counted(N)},
                         {counted(N), counted(N)},
                         counted(CUDA_EMBED_BINS * CUDA_EMBED_TILES),
                         numbers(N / CUDA_EMBED_RUN * 2 * V / 4)};
    cuda_embed_backward(device, N, V / 4, N, numbers(N * V / 4), e, numbers(N * V / 4), counted(N), 1);
    cuda_embed_backward(device, N, V / 4, N, numbers(N * V / 4), e, numbers(N * V / 4), put(std::vector<int>(N, 7)), 1);
    cuda_dots(device, N, 8, V / 4, numbers(N * 8), numbers(N * V / 4), false, numbers(8 * V / 4), nullptr);
    CudaGemm nothing = {};
    nothing.M = N, nothing.N = nothing.ldc = V / 4;
    cuda_gemm(device, nothing, numbers(N * V / 4), numbers(1), numbers(1));
}
static void words() {
    CudaWords *w = cuda_words_open(device, WORDS);
    uint32_t *pairs = cuda_words_begin(device, w);
    for (uint32_t i = 0; i < WORDS; i++) pairs[2 * i] = WORDS - 1 - i, pairs[2 * i + 1] = i;
    cuda_words_end(device, w, WORDS, numbers(WORDS), numbers(2 * WORDS));
    cuda_words_close(device, w);
}
static void rows(const Rows &r) {
    enum { M = N * H * D };
    float *x = numbers(M), *y = numbers(M), *z = numbers(N * H), *w = numbers(H), *g = numbers(M);
    CudaRope rope = {};
    rope.N = N, rope.heads = H, rope.D = rope.n = D, rope.sign = 1, rope.factor = 1;
    cuda_rope(device, &rope, x, r.pos, r.idx, false);
    float *gains = numbers(D), *each = numbers(N * H);
    cuda_norm_rope(device, &rope, y, each, x, gains, 1e-5, r.pos, r.idx, false);
    rope.sign = -1;
    cuda_norm_rope_backward(device, &rope, g, numbers(D), numbers((size_t)cuda_norm_rope_slices(N, H) * D), y, x, gains,
                            each, r.pos, r.idx, false, false);
    std::vector<size_t> at;
    for (int i = 0; i < N; i++) at.push_back((size_t)i * H * D);
    size_t *places = put(at);
    float *z8 = numbers((size_t)N * int8_bytes(H * D) / sizeof(float));
    cuda_move(device, N, H * D, y, false, places, x, false, places);
    for (int i = 0; i < N; i++) at[(size_t)i] = (size_t)i * int8_bytes(H * D);
    cuda_int8_encode(device, N, H * D, z8, put(at), x, places);
    cuda_int8_recode(device, N, H * D, y);
    cuda_fp8_encode(device, N, H * D, z8, put(at), x, places);
    cuda_fp8_recode(device, N, H * D, y);
    cuda_packed_encode(device, 4, 32, N, H * D, z8, put(at), x, places);
    cuda_packed_recode(device, 4, 32, N, H * D, y);
    cuda_hadamard(device, (size_t)N * H, D, y, false);
    cuda_collect(device, N / 2, H * D, y, false, false, x, false, counted(N), 2);
    const CudaColumns c = {N, 1, H * D, 0, H * D, 0, H * D};
    cuda_columns(device, c, y, false, x, false);
    cuda_columns_backward(device, c, x, false, false, y, false);
    cuda_map_logits(device, M, x, CudaLogits{0.5f, 30, 1});
    cuda_dropout(device, N, H * D, x, CudaDrop{1, 1u << 30, 1.3f}, r.idx, r.of, r.off, r.id);
    cuda_cast_to_bf16(device, M, (uint16_t *)g, x);
    cuda_cast_from_bf16(device, M, x, (uint16_t *)g, false);
    cuda_repeat(device, M, H * D, y, put(std::vector<double>(H * D, 0.5)));
    for (int approx = 0; approx < 2; approx++) {
        cuda_gelu(device, M, y, x, approx, false);
        cuda_gelu_backward(device, M, x, y, g, approx, false, false);
        cuda_geglu(device, M, y, x, g, approx, false);
        cuda_geglu_backward(device, M, nullptr, x, y, numbers(M), x, g, approx, false, false, false);
    }
    float *wide = numbers(N * H * (D + 1)), *b = numbers(H * D), *rstd = numbers(N);
    cuda_append_ones(device, N * H, D, wide, x, false);
    cuda_append_ones_backward(device, N * H, D, x, wide, false, false);
    cuda_divide_by_last(device, N * H, D, y, wide, 1e-5f, false);
    cuda_divide_by_last_backward(device, N * H, D, wide, x, y, numbers(N * H * (D + 1)), 1e-5f, false, false);
    cuda_step(device, N, H, D, y, x, z, w, false);
    cuda_step_backward(device, N, H, D, x, z, numbers(N * H), y, g, numbers(N * H), w, false, false, false);
    cuda_sigmoid_gate(device, M, y, x, g, false);
    cuda_sigmoid_gate_backward(device, M, x, y, numbers(M), x, g, false, false, false);
    cuda_attend_sink(device, N, H, D, y, z, w, false);
    cuda_attend_sink_backward(device, N, H, D, numbers(H), y, g, z, w, false);
    cuda_swiglu_limit(device, N, H * D, y, x, g, numbers(N), 1.702f, 7, false);
    cuda_swiglu_limit_backward(device, N, H * D, x, y, numbers(N), g, x, g, numbers(N), 1.702f, 7, false, false, false,
                               false);
    cuda_relu2(device, N, H * D, y, x, numbers(N), false);
    cuda_relu2_backward(device, N, H * D, x, numbers(N), y, g, numbers(N), false, false, false);
    cuda_skip(device, N, H, D, y, x, w, false);
    cuda_skip_backward(device, N, H, D, x, numbers(H), y, g, w, false, false);
    cuda_layernorm(device, N, H * D, y, rstd, x, b, b, 1e-5, false);
    cuda_layernorm_backward(device, N, H * D, x, numbers(H * D), numbers(H * D), numbers((size_t)2 * N * H * D), y, g,
                            b, rstd, false);
}
Test(budget, kernels_along_sequences_ask_for_no_more) {
    char why[200];
    device = cuda_start(0, why);
    cr_assert(device, "%s", why);
    Rows r = rows_make();
    attention(r), lanes(), convolution(r), recurrence(r), gates(), means(r), losses(), words(), rows(r);
    cuda_sync(device);
    if (getenv("CHECK_VERBOSE")) simt_print_estimates(stderr);
    budgets_hold(budgets_along, N * H * D);
    const SimtEstimate *heads = simt_estimate("norm_rotate<TEAM, S, W, T>");
    cr_expect(heads->threads * 8 <= N * H * D, "%ld threads for %d numbers of heads", heads->threads, N * H * D);
    cuda_stop(device);
}

/* Names behind __global__, as the sources have them, beside those of the two tables. */
Test(budget, no_kernel_is_without_one) {
    std::set<std::string> budgeted, there;
    for (const Budget *const table : {budgets, budgets_along})
        for (const Budget *b = table; b->kernel; b++)
            budgeted.insert(std::string(b->kernel).substr(0, strcspn(b->kernel, "<")));
    for (const char *const *k = budgets_flash; *k; k++) budgeted.insert(*k);
    budgeted.insert("numbers"); /* what products are tuned on, in no pass */
    DIR *dir = opendir("ops/cuda/kernels");
    cr_assert(dir, "run from the repository's root");
    while (dirent *f = readdir(dir)) {
        std::string file = f->d_name, text;
        if (file.size() < 3 || file.substr(file.size() - 3) != ".cu") continue;
        std::ifstream in("ops/cuda/kernels/" + file);
        std::stringstream all;
        all << in.rdbuf();
        text = all.str();
        for (size_t at = 0; (at = text.find("__global__", at)) != std::string::npos; at++) {
            size_t end = text.find('(', at),
                   begin; /* the parenthesis behind the name, or of the launch bounds before it */
            if (text.compare(end - std::string("__launch_bounds__").size(), 17, "__launch_bounds__") == 0)
                end = text.find('(', text.find(')', end));
            begin = text.find_last_of(" \n*", end) + 1;
            there.insert(text.substr(begin, end - begin));
        }
    }
    closedir(dir);
    cr_assert(there.size() > 60, "%zu kernels found", there.size());
    for (const std::string &k : there) cr_expect(budgeted.count(k), "%s has no budget", k.c_str());
    for (const std::string &k : budgeted) cr_expect(there.count(k), "a budget for %s, which is no kernel", k.c_str());
}
