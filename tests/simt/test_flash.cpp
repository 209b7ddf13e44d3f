/* test_flash.cpp: attention on the matrix units in other orders of threads, warps and blocks: the same bits, and
 * nothing for the detectors to report. What it computes is tested by test_cuda_bf16.c. */
#include <criterion/criterion.h>
#include "ops/cuda/cuda.h"
#include "tests/simt/include/cuda_runtime.h"
#include <vector>

enum { T = 150, HEADS = 4, LANES = 2 };
/* Two sequences, documents, a window with sinks, a bias for each key; all results of one pass. */
static std::vector<float> results(Cuda *c, int Dk, int Dv) {
    static const int off[] = {0, 97, T};
    int pos[T], first[T];
    for (int i = 0; i < T; i++) {
        bool start = i == 0 || i == 31 || i == 97 || i == 98;
        first[i] = start ? i : first[i - 1], pos[i] = start ? 0 : pos[i - 1] + 1;
    }
    CudaAttend a = {};
    a.B = 2, a.N = a.n = T, a.longest = 97, a.blocks = (97 * HEADS / LANES + CUDA_ENTRIES - 1) / CUDA_ENTRIES;
    a.lanes = LANES, a.heads = HEADS, a.Dk = Dk, a.Dv = a.ldv = Dv, a.window = 40, a.sinks = 2, a.delay = 3;
    a.scale = 0.2f;
    size_t q = (size_t)T * HEADS * (size_t)Dk, o = (size_t)T * HEADS * (size_t)Dv, k = (size_t)T * LANES * (size_t)Dk,
           v = (size_t)T * LANES * (size_t)Dv, b = T * LANES, l = T * HEADS, given = q + k + v + b + o,
           made = o + l + q + k + v + b;
    std::vector<float> host(given), out(made);
    for (size_t i = 0; i < given; i++) host[i] = (float)((i * 2654435761u >> 7) % 2001) / 1000 - 1;
    int *ints = (int *)cuda_take(c, sizeof off + sizeof pos + sizeof first, false);
    float *in = (float *)cuda_take(c, given * sizeof *in, false), *to = (float *)cuda_take(c, made * sizeof *to, false);
    cuda_upload(c, ints, off, sizeof off), cuda_upload(c, ints + 3, pos, sizeof pos);
    cuda_upload(c, ints + 3 + T, first, sizeof first), cuda_upload(c, in, host.data(), given * sizeof *in);
    a.off = ints, a.pos = ints + 3, a.first = ints + 3 + T;
    float *kk = in + q, *g = kk + k + v + b, *lse = to + o, *dq = lse + l, *dk = dq + q, *dv = dk + k;
    a.bias = kk + k + v;
    cuda_fill(c, dq, 0, (q + k + v + b) * sizeof *dq);
    CudaFlash x = {};
    x.q.p = in, x.k.p = kk, x.v.p = kk + k, x.o.p = to, x.dout.p = g, x.dq.p = dq, x.dk.p = dk, x.dv.p = dv;
    void *mem = cuda_take(c, cuda_flash_backward_bytes(&a, &x), false);
    cuda_flash(c, &a, &x, mem, lse, nullptr);
    cuda_flash_backward(c, &a, &x, mem, dv + v, lse);
    cuda_download(c, out.data(), to, made * sizeof *to);
    cuda_give(c, ints), cuda_give(c, in), cuda_give(c, to), cuda_give(c, mem);
    return out;
}
Test(flash, the_order_of_threads_changes_no_bit, .timeout = 300) {
    static const int widths[][2] = {{64, 64}, {24, 96}, {128, 128}, {192, 128}, {250, 17}};
    char why[200];
    Cuda *c = cuda_start(0, why);
    cr_assert(c, "%s", why);
    for (auto &w : widths) {
        simt_seed(0);
        std::vector<float> one = results(c, w[0], w[1]);
        for (float x : one) cr_assert(x == x, "a number that is none");
        for (uint64_t seed = 1; seed < 5; seed++) {
            simt_seed(seed);
            std::vector<float> other = results(c, w[0], w[1]);
            cr_assert(!memcmp(one.data(), other.data(), one.size() * sizeof(float)), "%d and %d: seed %d", w[0], w[1],
                      (int)seed);
        }
    }
    cuda_stop(c);
}
