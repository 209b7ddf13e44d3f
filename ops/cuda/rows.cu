/* rows.cu: rows and columns moved about. */
#include "kernel.h"

/* The place of v in a (ascending), which holds it. */
DEVICE int find(const int *a, int n, int v) {
    int lo = 0;
    for (int len = n; len > 1;) {
        int half = len / 2;
        if (a[lo + half] <= v) lo += half;
        len -= half;
    }
    return lo;
}
template <class T>
__global__ void gather(size_t n, size_t width, T *y, const T *x, const int *from, int nfrom, const int *to) {
    EACH(i, n) y[i] = x[(size_t)find(from, nfrom, to[i / width]) * width + i % width];
}
__global__ void spread(size_t n, size_t width, float *y, const float *x, const int *row) {
    EACH(i, n) y[i] = x[(size_t)row[i / width] * width + i % width];
}
template <class Y, class X>
__global__ void move(size_t n, size_t width, Y *y, const size_t *to, const X *x, const size_t *from) {
    EACH(i, n) store<1>(&y[to[i / width] + i % width], {number(x[from[i / width] + i % width])});
}
__global__ void collect(size_t n, size_t width, float *y, const float *x, const int *place, int k) {
    EACH(i, n) {
        float s = y[i];
        for (int j = 0; j < k; j++) s += x[(size_t)place[i / width * (size_t)k + (size_t)j] * width + i % width];
        y[i] = s;
    }
}
__global__ void columns(size_t n, CudaColumns p, float *y, const float *x) {
    EACH(i, n) {
        size_t row = i / (size_t)p.n, c = i % (size_t)p.n;
        y[row * (size_t)p.wy + (size_t)p.to + c] = x[row / (size_t)p.k * (size_t)p.wx + (size_t)p.from + c];
    }
}
/* A thread to a number of dx: it adds what the k rows of dy bring, in order. */
__global__ void columns_backward(size_t n, CudaColumns p, float *dx, const float *dy) {
    EACH(i, n) {
        size_t row = i / (size_t)p.n, c = i % (size_t)p.n, at = row * (size_t)p.wx + (size_t)p.from + c;
        float s = dx[at];
        for (size_t j = row * (size_t)p.k; j < (row + 1) * (size_t)p.k; j++)
            s += dy[j * (size_t)p.wy + (size_t)p.to + c];
        dx[at] = s;
    }
}
extern "C" void cuda_gather(Cuda *c, int n, size_t width, void *y, const void *x, const int *from, int nfrom,
                            const int *to, bool narrow) {
    size_t all = (size_t)n * width;
    if (narrow)
        LAUNCH_EACH(c, (gather<bf16>), all, width, (bf16 *)y, (const bf16 *)x, from, nfrom, to);
    else
        LAUNCH_EACH(c, (gather<float>), all, width, (float *)y, (const float *)x, from, nfrom, to);
}
template <class Y, class X>
static void move_of(Cuda *c, size_t n, size_t width, void *y, const size_t *to, const void *x, const size_t *from) {
    LAUNCH_EACH(c, (move<Y, X>), n, width, (Y *)y, to, (const X *)x, from);
}
extern "C" void cuda_move(Cuda *c, int n, size_t width, void *y, bool narrow_y, const size_t *to, const void *x,
                          bool narrow_x, const size_t *from) {
    auto f = narrow_y   ? narrow_x ? move_of<bf16, bf16> : move_of<bf16, float>
               : narrow_x ? move_of<float, bf16>
                        : move_of<float, float>;
    f(c, (size_t)n * width, width, y, to, x, from);
}
extern "C" void cuda_spread(Cuda *c, int n, size_t width, float *y, const float *x, const int *row) {
    LAUNCH_EACH(c, spread, (size_t)n * width, width, y, x, row);
}
extern "C" void cuda_collect(Cuda *c, int n, size_t width, float *y, const float *x, const int *place, int k) {
    LAUNCH_EACH(c, collect, (size_t)n * width, width, y, x, place, k);
}
extern "C" void cuda_columns(Cuda *c, CudaColumns p, float *y, const float *x) {
    LAUNCH_EACH(c, columns, (size_t)p.rows * (size_t)p.n, p, y, x);
}
extern "C" void cuda_columns_backward(Cuda *c, CudaColumns p, float *dx, const float *dy) {
    LAUNCH_EACH(c, columns_backward, (size_t)(p.rows / p.k) * (size_t)p.n, p, dx, dy);
}
