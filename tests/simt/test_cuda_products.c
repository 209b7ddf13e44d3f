/* test_cuda_products.c: products as the library makes them of the shapes of a model, on a device those of the 124M
 * model: no term of a sum is lost, and results in bf16 are rounded once, at the end. */
#include "tests/lib/rig.h"
#include "ops/cuda/cuda.h"

static double number_of(const void *p, size_t i, bool half) {
    return half ? (double)bf16_to(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}
static double rounded(double x, bool half) { return half ? (double)bf16_to(bf16_from((float)x)) : (double)(float)x; }

/* Operands of ones: every number is K, and 2K where as much is added, which f32 holds exactly, and bf16 for the widths
 * of models. A term that is missing, or comes twice, shows in all of its tile. */
static void sums_of_ones(Device *dev, CudaGemm s, const Tensor one[2], Tensor C, void *got) {
    static const char *const kinds[] = {"f32", "bf16", "bf16 into bf16"};
    s.lda = s.ta ? s.M : s.K, s.ldb = s.tb ? s.K : s.N, s.ldc = s.N;
    for (int kind = 0; kind < 3; kind++) {
        s.is_bf16 = kind > 0, s.c_bf16 = kind == 2;
        /* what is in bf16 lies so that the library takes it */
        if (s.is_bf16 && (s.lda % 8 || s.ldb % 8 || s.ldc % 8)) continue;
        for (int times = 1; times <= 2; times++) {
            const void *ones = one[s.is_bf16].p;
            s.accumulate = times == 2;
            const size_t n = (size_t)s.M * (size_t)s.N;
            cuda_gemm(dev->cuda, s, C.p, ones, ones);
            device_read(dev, got, C.p, n * (s.c_bf16 ? sizeof(uint16_t) : sizeof(float)));
            double want = rounded(times * (double)s.K, s.c_bf16);
            for (size_t i = 0; i < n; i++)
                cr_assert(number_of(got, i, s.c_bf16) == want,
                          "(%d,%d,%d), transposed %d %d, %s: C[%zu] is %.9g, not %.9g", s.M, s.N, s.K, s.ta, s.tb,
                          kinds[kind], i, number_of(got, i, s.c_bf16), want);
        }
    }
}
Test(cuda_products, no_term_of_a_sum_is_lost, .timeout = 250) {
    /* Rows of a pass, and matrices (outputs, inputs): q, k and v, attention's output, gate and up, down, the head. */
    static const int matrices[][2] = {{768, 768}, {2304, 768}, {2048, 768}, {768, 2048}, {50304, 768}},
                     small[][2] = {{24, 24}, {72, 24}, {64, 24}, {24, 64}, {101, 24}};
    Err e = {0};
    Device *dev;
    Arena mem; /* of the device alone, where products are as fast as a model's */
    cr_assert(device_open(&dev, "cuda", 1, &e), "%s", e.msg);
    const bool emulated = rig_emulated(dev);
    const size_t most = emulated ? 101 * 40 : (size_t)50304 * 1024;
    cr_assert(arena_open_at(&mem, device_memory(dev, false), "products", 10 * most + 4096, true, &e), "%s", e.msg);
    int n[] = {(int)most};
    Tensor one[2] = {arena_tensor(&mem, "ones", F32, 1, n), arena_tensor(&mem, "ones in bf16", BF16, 1, n)},
           C = arena_tensor(&mem, "C", F32, 1, n);
    float *got = xcalloc(most, sizeof *got);
    for (size_t i = 0; i < most; i++) got[i] = 1;
    device_write(dev, one[0].p, got, most * sizeof *got);
    for (size_t i = 0; i < most; i++) ((uint16_t *)got)[i] = bf16_from(1);
    device_write(dev, one[1].p, got, most * sizeof(uint16_t));
    for (int m = 0; m < 5; m++) {
        const int *w = (emulated ? small : matrices)[m];
        const int rows = emulated ? m % 2 ? 33 : 40 : w[0] > 4096 ? 1024 : 4096;
        sums_of_ones(dev, (CudaGemm){.M = rows, .N = w[0], .K = w[1], .tb = true}, one, C, got); /* y = x w^T */
        sums_of_ones(dev, (CudaGemm){.M = rows, .N = w[1], .K = w[0]}, one, C, got);             /* dx = dy w */
        sums_of_ones(dev, (CudaGemm){.M = w[0], .N = w[1], .K = rows, .ta = true}, one, C, got); /* dw = dy^T x */
    }
    free(got);
    arena_close(&mem);
    device_close(dev);
}
/* Few results of many terms, which the library makes of parts of sums: against double, rounded. Parts that were kept in
 * bf16 would move every fourth number to a neighbour; the order of sums moves one in thousands.
 *
 * The bound: matrix units cut products off at the last bit q of the sum so far (tests/simt/sums.cpp), which for terms
 * of either sign errs by q / sqrt(3) each, at random. q grows with the root of the terms, so that K of them err by d =
 * q sqrt(K / 6), 37 q, where q is at most 2^-23 of the result: 4.4e-6 of it, 3.5e-6 on average. A neighbour is 2^-7 of
 * the result away, or half of that, and is taken with a probability of d over that distance. The mean square of that
 * is at most 3.5e-6 x 2^-7 = (1.7e-4)^2, of two results in 4,096, whose number is drawn; three times its root allows
 * for sixteen. */
Test(cuda_products, results_in_bf16_are_rounded_once, .timeout = 60) {
    enum { M = 64, N = 64, K = 8192 };
    Rig g;
    rig_open(&g, rig_first(), 1, (size_t)8 << 20);
    Tensor x = RANDOM(&g, "x", M, K), w = RANDOM(&g, "w", N, K), C = arena_tensor(&g.mem, "C", BF16, 2, (int[]){M, N}),
           half[2] = {arena_tensor(&g.mem, "x in bf16", BF16, 2, (int[]){M, K}),
                      arena_tensor(&g.mem, "w in bf16", BF16, 2, (int[]){N, K})};
    for (int i = 0; i < M * K; i++)
        ((uint16_t *)half[0].p)[i] = bf16_from(R(x)[i]), ((uint16_t *)half[1].p)[i] = bf16_from(R(w)[i]);
    cuda_gemm(g.dev->cuda,
              (CudaGemm){M, N, K, .lda = K, .ldb = K, .ldc = N, .tb = true, .is_bf16 = true, .c_bf16 = true}, C.p,
              half[0].p, half[1].p);
    device_sync(g.dev);
    double *got = xcalloc(M * N, sizeof *got), *want = xcalloc(2 * M * N, sizeof *want), *parts = want + M * N;
    for (int i = 0; i < M * N; i++) {
        double sum = 0;
        for (int k = 0; k < K; k++) {
            if (k == K / 2) parts[i] = rounded(sum, true) - sum;
            sum += number_of(half[0].p, (size_t)(i / N * K + k), true) *
                   number_of(half[1].p, (size_t)(i % N * K + k), true);
        }
        got[i] = number_of(C.p, (size_t)i, true), want[i] = rounded(sum, true);
        parts[i] = rounded(sum + parts[i], true);
    }
    CHECK_RMS("C", got, want, M * N, 5e-4);
    char msg[512];
    cr_assert(!check_rms(msg, "parts in bf16", CHECK_VIEW(parts), CHECK_VIEW(want), M * N, 1e-3), "%s", msg);
    free(got), free(want);
    rig_close(&g);
}
