/* rows.cu: copies, gathers and scatters rows and columns. */
#include "kernel.h"

/* The index of v in a (ascending), which contains it. */
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
/* n times W elements of rows of `width` of them. */
template <class Y, class X, int W> __global__ void spread(size_t n, size_t width, Y *y, const X *x, const int *row) {
    EACH(i, n) {
        size_t at = i * W;
        float v[W];
        fetch<W>(v, x + ((size_t)row[at / width] * width + at % width));
        store<W>(y + at, v);
    }
}
template <class Y, class X>
__global__ void move(size_t n, size_t width, Y *y, const size_t *to, const X *x, const size_t *from) {
    EACH(i, n) store<1>(&y[to[i / width] + i % width], {number(x[from[i / width] + i % width])});
}
/* One thread per W elements of y: it adds those of the k rows, in order, and rounds the sum. */
template <class Y, class X, int W>
__global__ void collect(size_t n, size_t width, bool overwrite, Y *y, const X *x, const int *place, int k) {
    EACH(i, n) {
        size_t at = i * W, column = at % width;
        const int *from = place + at / width * (size_t)k;
        float s[W], v[W];
        UNROLL
        for (int e = 0; e < W; e++) s[e] = 0;
        if (!overwrite) fetch<W>(s, y + at);
        for (int j = 0; j < k; j++) {
            fetch<W>(v, x + ((size_t)from[j] * width + column));
            UNROLL
            for (int e = 0; e < W; e++) s[e] += v[e];
        }
        store<W>(y + at, s);
    }
}
/* W columns of y at a time. */
template <class Y, class X, int W> __global__ void columns(size_t n, CudaColumns p, Y *y, const X *x) {
    size_t each = (size_t)p.n / W;
    EACH(i, n) {
        size_t row = i / each, c = i % each * W;
        float v[W];
        fetch<W>(v, x + (row / (size_t)p.k * (size_t)p.wx + (size_t)p.from + c));
        store<W>(y + (row * (size_t)p.wy + (size_t)p.to + c), v);
    }
}
/* One thread per W elements of dx: it adds those of the k rows of dy, in order, and rounds the sum. */
template <class Y, class X, int W>
__global__ void columns_backward(size_t n, CudaColumns p, bool overwrite, X *dx, const Y *dy) {
    size_t each = (size_t)p.n / W;
    EACH(i, n) {
        size_t row = i / each, c = i % each * W, at = row * (size_t)p.wx + (size_t)p.from + c;
        float s[W], g[W];
        UNROLL
        for (int e = 0; e < W; e++) s[e] = 0;
        if (!overwrite) fetch<W>(s, dx + at);
        for (size_t j = row * (size_t)p.k; j < (row + 1) * (size_t)p.k; j++) {
            fetch<W>(g, dy + (j * (size_t)p.wy + (size_t)p.to + c));
            UNROLL
            for (int e = 0; e < W; e++) s[e] += g[e];
        }
        store<W>(dx + at, s);
    }
}
/* One access moves whole sectors of either type. */
template <class Y, class X> static constexpr int WHOLE = sizeof(Y) + sizeof(X) == 4 ? 8 : 4;
extern "C" void cuda_gather(Cuda *c, int n, size_t width, void *y, const void *x, const int *from, int nfrom,
                            const int *to, bool is_bf16) {
    size_t all = (size_t)n * width;
    if (is_bf16)
        LAUNCH_EACH(c, (gather<bf16>), all, width, (bf16 *)y, (const bf16 *)x, from, nfrom, to);
    else
        LAUNCH_EACH(c, (gather<float>), all, width, (float *)y, (const float *)x, from, nfrom, to);
}
template <class Y, class X>
static void move_of(Cuda *c, size_t n, size_t width, void *y, const size_t *to, const void *x, const size_t *from) {
    LAUNCH_EACH(c, (move<Y, X>), n, width, (Y *)y, to, (const X *)x, from);
}
extern "C" void cuda_move(Cuda *c, int n, size_t width, void *y, bool y_bf16, const size_t *to, const void *x,
                          bool x_bf16, const size_t *from) {
    auto f = y_bf16   ? x_bf16 ? move_of<bf16, bf16> : move_of<bf16, float>
               : x_bf16 ? move_of<float, bf16>
                      : move_of<float, float>;
    f(c, (size_t)n * width, width, y, to, x, from);
}
template <class Y, class X>
static void spread_of(Cuda *c, size_t n, size_t width, void *y, const void *x, const int *row) {
    constexpr int W = WHOLE<Y, X>;
    if (by_eight(width, y, x))
        LAUNCH_EACH(c, (spread<Y, X, W>), n / W, width, (Y *)y, (const X *)x, row);
    else
        LAUNCH_EACH(c, (spread<Y, X, 1>), n, width, (Y *)y, (const X *)x, row);
}
extern "C" void cuda_spread(Cuda *c, int n, size_t width, void *y, bool y_bf16, const void *x, bool x_bf16,
                            const int *row) {
    auto f = y_bf16   ? x_bf16 ? spread_of<bf16, bf16> : spread_of<bf16, float>
               : x_bf16 ? spread_of<float, bf16>
                      : spread_of<float, float>;
    f(c, (size_t)n * width, width, y, x, row);
}
template <class Y, class X>
static void collect_of(Cuda *c, size_t n, size_t width, bool overwrite, void *y, const void *x, const int *place,
                       int k) {
    constexpr int W = WHOLE<Y, X>;
    if (by_eight(width, y, x))
        LAUNCH_EACH(c, (collect<Y, X, W>), n / W, width, overwrite, (Y *)y, (const X *)x, place, k);
    else
        LAUNCH_EACH(c, (collect<Y, X, 1>), n, width, overwrite, (Y *)y, (const X *)x, place, k);
}
extern "C" void cuda_collect(Cuda *c, int n, size_t width, void *y, bool y_bf16, bool overwrite, const void *x,
                             bool x_bf16, const int *place, int k) {
    auto f = y_bf16   ? x_bf16 ? collect_of<bf16, bf16> : collect_of<bf16, float>
               : x_bf16 ? collect_of<float, bf16>
                      : collect_of<float, float>;
    f(c, (size_t)n * width, width, overwrite, y, x, place, k);
}
/* True if columns and rows are aligned for accesses of eight elements. */
static bool columns_by_eight(const CudaColumns &p, const void *y, const void *x) {
    return by_eight((size_t)(p.n | p.wy | p.to | p.wx | p.from), y, x);
}
template <class Y, class X> static void columns_of(Cuda *c, const CudaColumns &p, void *y, const void *x) {
    constexpr int W = WHOLE<Y, X>;
    size_t n = (size_t)p.rows * (size_t)p.n;
    if (columns_by_eight(p, y, x))
        LAUNCH_EACH(c, (columns<Y, X, W>), n / W, p, (Y *)y, (const X *)x);
    else
        LAUNCH_EACH(c, (columns<Y, X, 1>), n, p, (Y *)y, (const X *)x);
}
template <class Y, class X>
static void columns_backward_of(Cuda *c, const CudaColumns &p, bool overwrite, void *dx, const void *dy) {
    constexpr int W = WHOLE<Y, X>;
    size_t n = (size_t)(p.rows / p.k) * (size_t)p.n;
    if (columns_by_eight(p, dy, dx))
        LAUNCH_EACH(c, (columns_backward<Y, X, W>), n / W, p, overwrite, (X *)dx, (const Y *)dy);
    else
        LAUNCH_EACH(c, (columns_backward<Y, X, 1>), n, p, overwrite, (X *)dx, (const Y *)dy);
}
extern "C" void cuda_columns(Cuda *c, CudaColumns p, void *y, bool y_bf16, const void *x, bool x_bf16) {
    auto f = y_bf16   ? x_bf16 ? columns_of<bf16, bf16> : columns_of<bf16, float>
               : x_bf16 ? columns_of<float, bf16>
                      : columns_of<float, float>;
    f(c, p, y, x);
}
extern "C" void cuda_columns_backward(Cuda *c, CudaColumns p, void *dx, bool dx_bf16, bool overwrite, const void *dy,
                                      bool dy_bf16) {
    auto f = dy_bf16   ? dx_bf16 ? columns_backward_of<bf16, bf16> : columns_backward_of<bf16, float>
               : dx_bf16 ? columns_backward_of<float, bf16>
                       : columns_backward_of<float, float>;
    f(c, p, overwrite, dx, dy);
}
