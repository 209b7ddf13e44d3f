/* test_delta.cpp: the recurrence by chunks in other orders of threads, warps and blocks: the same bits, and nothing for
 * the detectors to report. What it computes is tested by test_cuda_delta.c. */
#include <criterion/criterion.h>
#include "ops/cuda/cuda.h"
#include "tests/simt/include/cuda_runtime.h"
#include <string.h>
#include <vector>

enum { T = 170, H = 1, HV = 2 };
/* The first half of the memory of n numbers becomes those numbers in bf16, cut off. */
static void halve(float *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, p + i, sizeof bits);
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
    }
}
/* Two sequences, the second of which continues a history, documents that begin inside of windows; all results.
 * is_bf16: q, k, v, o and do are bf16, and so are the gradients of the former, which are then fresh. */
static std::vector<float> results(Cuda *c, int K, int V, bool delta, int decay, bool is_bf16) {
    static const int ints[] = {0, 75, T, 1, 0}; /* off, seq */
    int first[T];
    for (int i = 0; i < T; i++) {
        bool start = i == 0 || i == 3 || i == 68 || i == 150;
        first[i] = start ? i : i == 75 ? -1 : first[i - 1];
    }
    CudaRecur p = {};
    p.B = 2, p.N = T, p.H = H, p.HV = HV, p.K = K, p.V = V, p.longest = T - 75, p.delta = delta, p.scale = 0.3f;
    p.is_bf16 = is_bf16;
    p.per_channel = decay > 1, p.blob = (size_t)(HV * K * V);
    size_t k = (size_t)(T * H * K), v = (size_t)(T * HV * V), g = (size_t)(T * HV * (decay ? decay : 1)), b = T * HV,
           S = (size_t)(2 * HV * K * V), given = 2 * k + 2 * v + g + b + 2 * S,
           made = v + S + S + 2 * (size_t)(T * HV * K) + v + g + b + S;
    std::vector<float> host(given), out(made);
    for (size_t i = 0; i < given; i++) host[i] = (float)((i * 2654435761u >> 7) % 2001) / 1000 - 1;
    for (size_t i = 2 * k + 2 * v; i < 2 * k + 2 * v + g; i++) host[i] = -0.1f * (1 + host[i]);
    for (size_t i = 0; i < k; i++) host[k + i] *= 0.2f;
    for (size_t at = 0; is_bf16 && at < 2 * k + 2 * v; at += at < 2 * k ? k : v) halve(&host[at], at < 2 * k ? k : v);
    int *at = (int *)cuda_take(c, sizeof ints + sizeof first, false);
    float *in = (float *)cuda_take(c, given * sizeof *in, false), *to = (float *)cuda_take(c, made * sizeof *to, false);
    CudaRecurGrad d = {};
    d.q.is_bf16 = d.k.is_bf16 = d.v.is_bf16 = d.q.overwrite = d.k.overwrite = d.v.overwrite = is_bf16;
    void *mem = cuda_take(c, cuda_delta_bytes(&p), false),
         *back = cuda_take(c, cuda_delta_backward_bytes(&p, d.v), false);
    cuda_upload(c, at, ints, sizeof ints), cuda_upload(c, at + 5, first, sizeof first);
    cuda_upload(c, in, host.data(), given * sizeof *in);
    cuda_fill(c, to, 0, made * sizeof *to);
    p.off = at, p.seq = at + 3, p.first = at + 5;
    float *dout = in + 2 * k + v, *gate = dout + v, *beta = gate + g, *start = beta + b;
    p.q = in, p.k = in + k, p.v = in + 2 * k, p.g = decay ? gate : nullptr, p.beta = delta ? beta : nullptr;
    float *state = to + v, *keep = state + S, *dq = keep + S, *dk = dq + T * HV * K, *dv = dk + T * HV * K,
          *dg = dv + v, *db = dg + g, *ds = db + b;
    cuda_copy(c, state, start, S * sizeof *state);
    cuda_delta(c, &p, mem, to, keep, state, true);
    d.q.p = dq, d.k.p = dk, d.v.p = dv, d.g.p = decay ? dg : nullptr, d.beta.p = delta ? db : nullptr;
    d.start = start, d.dend = start + S, d.dstart = ds;
    cuda_delta_backward(c, &p, back, &d, dout, keep);
    cuda_download(c, out.data(), to, made * sizeof *to);
    cuda_give(c, at), cuda_give(c, in), cuda_give(c, to), cuda_give(c, mem), cuda_give(c, back);
    return out;
}
Test(delta, the_order_of_threads_changes_no_bit, .timeout = 300) {
    static const int cases[][5] = {{20, 40, 1, 20, 0}, {128, 33, 1, 1, 0}, {64, 64, 0, 64, 0},
                                   {20, 72, 1, 20, 1}, {24, 33, 1, 1, 1},  {64, 40, 0, 0, 1}};
    char why[200];
    Cuda *c = cuda_start(0, why);
    cr_assert(c, "%s", why);
    for (auto &w : cases) {
        simt_seed(0);
        std::vector<float> one = results(c, w[0], w[1], w[2], w[3], w[4]);
        for (float x : one) cr_assert(x == x, "a number that is none");
        for (uint64_t seed = 1; seed < 4; seed++) {
            simt_seed(seed);
            std::vector<float> other = results(c, w[0], w[1], w[2], w[3], w[4]);
            cr_assert(!memcmp(one.data(), other.data(), one.size() * sizeof(float)), "%d and %d: seed %d", w[0], w[1],
                      (int)seed);
        }
    }
    cuda_stop(c);
}
/* Which passes the kernels take: keys up to their width, sequences from a chunk on. */
Test(delta, takes_what_fits) {
    cr_expect(cuda_delta_takes(1, 64) && cuda_delta_takes(128, 4096));
    cr_expect(!cuda_delta_takes(129, 64) && !cuda_delta_takes(64, 63));
}
