/* test_budget.cpp: what each kernel asks of memory, held to a table: bytes per number read and written (requests, those
 * that a cache answers included), sectors beyond the least, passes over the banks of shared memory beyond the least. A
 * kernel that is rewritten to ask for more fails here, where no time is measured. */
#include "budget.h"

enum { N = 64, D = 1024, V = 4096 };
/* Rows of D numbers; what a row has once (rstd) is a small part of a byte per number. */
const Budget budgets[] = {
    {"swiglu", 8, 4, 1.0},
    {"swiglu_backward", 20, 8, 1.0},
    {"swiglu_rows", 12, 4, 1.0},
    {"swiglu_rows_backward", 21.1, 8.1, 1.01},
    {"axpby", 8, 4, 1.0},
    {"elu1", 4, 4, 1.0},
    {"elu1_backward", 12, 4, 1.0},
    {"sigmoid", 4, 4, 1.0},
    {"sigmoid_backward", 12, 4, 1.0},
    {"rmsnorm", 12, 4.1, 1.01},
    {"rmsnorm_backward_rows", 29, 4, 1.01},
    {"rmsnorm_backward_columns", 12.1, 0.1, 1.01},
    {"l2norm", 8, 4, 1.01},
    {"l2norm_backward", 20, 4, 1.01},
    {"gather", 32, 4, 1.0}, /* a place is found by halving, from few bytes that all threads share */
    {"spread", 8, 4, 1.0},
    {"adamw<float>", 16, 12, 1.0},
    {"adamw<bf16>", 12, 8, 1.0},
    {"momentum<float>", 8, 8, 1.0},
    {"sumsq_pieces", 4.1, 0.1, 1.01},
    {"sumsq_total", 0.0004, 0.00013, 1.01},
    {"xent", 12.8, 4.1, 1.02},
    {"embed", 8, 4, 1.0},
    {"bias_add", 8, 4, 1.0},
    {"column_sums", 4.1, 0.1, 1.01},
    {},
};

static Cuda *device;
static float *numbers() { /* N x D zeros */
    float *p = (float *)cuda_take(device, (size_t)N * D * sizeof(float), false);
    cuda_fill(device, p, 0, (size_t)N * D * sizeof(float));
    return p;
}
Test(budget, kernels_ask_for_no_more) {
    char why[200];
    device = cuda_start(0, why);
    cr_assert(device, "%s", why);
    Cuda *c = device;
    const size_t n = (size_t)N * D;
    float *a = numbers(), *b = numbers(), *x = numbers(), *y = numbers(), *z = numbers(), *s = numbers();
    int ids[N], *at = (int *)cuda_take(c, sizeof ids, false);
    for (int i = 0; i < N; i++) ids[i] = i;
    cuda_upload(c, at, ids, sizeof ids);
    double *part = (double *)cuda_take(c, 64, false);
    cuda_swiglu(c, n, y, a, b);
    cuda_swiglu_backward(c, n, x, y, z, a, b);
    cuda_swiglu_rows(c, N, D, y, a, b, s);
    cuda_swiglu_rows_backward(c, N, D, x, y, s, z, a, b, s + N);
    cuda_axpby(c, n, y, 2, x, 3);
    cuda_elu1(c, n, y, x);
    cuda_elu1_backward(c, n, x, z, y);
    cuda_sigmoid(c, n, y, x, 1);
    cuda_sigmoid_backward(c, n, x, z, y, 1);
    cuda_rmsnorm(c, N, D, y, s, x, a, 1e-5);
    cuda_rmsnorm_backward(c, N, D, x, b, y, z, a, s);
    cuda_l2norm(c, N, D, y, x, 1e-5);
    cuda_l2norm_backward(c, N, D, x, y, z, 1e-5);
    cuda_gather(c, N, D, y, x, at, N, at);
    cuda_spread(c, N, D, y, x, at);
    for (int narrow = 0; narrow < 2; narrow++)
        cuda_adamw(c, n, a, b, x, y, narrow, CudaAdam{0.9f, 0.9f, 0.1f, 0.1f, 1, 0.1f, 1, 1e-8f, 1}, CudaRounding{});
    cuda_momentum(c, n, a, x, b, false, 0.9f, 1, true, CudaRounding{});
    const CudaPieces piece = {x, n, 0};
    CudaPieces *pieces = (CudaPieces *)cuda_take(c, sizeof piece, false);
    cuda_upload(c, pieces, &piece, sizeof piece);
    cuda_sumsq(c, 0, 1, pieces, 1, part, part + 4);
    cuda_xent(c, N * D / V, V, z, s, nullptr, at, a);
    cuda_embed(c, N, D, y, x, at, 1);
    cuda_bias(c, N, D, y, a);
    cuda_column_sums(c, N, D, b, x);
    cuda_sync(c);
    budgets_hold(budgets, (double)n);
    cuda_stop(c);
}
