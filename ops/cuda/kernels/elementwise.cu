/* elementwise.cu: element-wise functions, SwiGLU, dropout. All access whole sectors, each once, so their time is that
 * of their bytes. */
#include "kernel.h"

/* n times W elements. */
template <class T, int W> __global__ void swiglu(size_t n, T *y, const T *gate, const T *up) {
    EACH(i, n) {
        float a[W], b[W];
        fetch<W>(a, gate + i * W), fetch<W>(b, up + i * W);
        UNROLL
        for (int k = 0; k < W; k++) a[k] = a[k] * sigmoid1(a[k]) * b[k];
        store<W>(y + i * W, a);
    }
}
template <class T, int W>
__global__ void swiglu_backward(size_t n, T *y, T *dgate, T *dup, const T *dy, const T *gate, const T *up,
                                bool overwrite_gate, bool overwrite_up) {
    EACH(i, n) {
        float a[W], b[W], g[W], da[W], db[W];
        fetch<W>(a, gate + i * W), fetch<W>(b, up + i * W), fetch<W>(g, dy + i * W);
        UNROLL
        for (int k = 0; k < W; k++) da[k] = db[k] = 0;
        if (!overwrite_gate) fetch<W>(da, dgate + i * W);
        if (!overwrite_up) fetch<W>(db, dup + i * W);
        UNROLL
        for (int k = 0; k < W; k++) {
            float s = sigmoid1(a[k]), silu = a[k] * s;
            da[k] += g[k] * b[k] * (s + silu * (1 - s));
            db[k] += g[k] * silu;
            g[k] = silu * b[k];
        }
        store<W>(dgate + i * W, da), store<W>(dup + i * W, db);
        if (y) store<W>(y + i * W, g);
    }
}
extern "C" void cuda_swiglu(Cuda *c, size_t n, void *y, const void *gate, const void *up, bool is_bf16) {
    if (is_bf16 && by_eight(n, y, gate, up))
        LAUNCH_EACH(c, (swiglu<bf16, 8>), n / 8, as<bf16>(y), as<bf16>(gate), as<bf16>(up));
    else if (is_bf16)
        LAUNCH_EACH(c, (swiglu<bf16, 1>), n, as<bf16>(y), as<bf16>(gate), as<bf16>(up));
    else
        LAUNCH_EACH(c, (swiglu<float, 1>), n, as<float>(y), as<float>(gate), as<float>(up));
}
template <class T, int W>
static void swiglu_back(Cuda *c, size_t n, void *y, void *dgate, void *dup, const void *dy, const void *gate,
                        const void *up, bool overwrite_gate, bool overwrite_up) {
    LAUNCH_EACH(c, (swiglu_backward<T, W>), n / W, as<T>(y), as<T>(dgate), as<T>(dup), as<T>(dy), as<T>(gate),
                as<T>(up), overwrite_gate, overwrite_up);
}
extern "C" void cuda_swiglu_backward(Cuda *c, size_t n, void *y, void *dgate, void *dup, const void *dy,
                                     const void *gate, const void *up, bool is_bf16, bool overwrite_gate,
                                     bool overwrite_up) {
    auto back = !is_bf16                                   ? swiglu_back<float, 1>
                : by_eight(n, y, dgate, dup, dy, gate, up) ? swiglu_back<bf16, 8>
                                                           : swiglu_back<bf16, 1>;
    back(c, n, y, dgate, dup, dy, gate, up, overwrite_gate, overwrite_up);
}

template <class T, int W>
__global__ void swiglu_rows(size_t n, size_t d, T *y, const T *gate, const T *up, const float *s) {
    EACH(i, n) {
        float a[W], b[W], factor = s[i * W / d];
        fetch<W>(a, gate + i * W), fetch<W>(b, up + i * W);
        UNROLL
        for (int k = 0; k < W; k++) a[k] = factor * a[k] * sigmoid1(a[k]) * b[k];
        store<W>(y + i * W, a);
    }
}
struct SwigluRows {
    void *dgate, *dup;
    float *ds;
    const void *dy, *gate, *up;
    const float *s;
    bool overwrite_gate, overwrite_up, overwrite_s;
};
/* One warp for each of M rows of d elements. */
template <class T, int W> __global__ void swiglu_rows_backward(int M, int d, SwigluRows p) {
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, begin = row * (size_t)d;
    int lane = (int)threadIdx.x % 32;
    if (row >= (size_t)M) return;
    T *dgate = (T *)p.dgate + begin, *dup = (T *)p.dup + begin;
    const T *dy = (const T *)p.dy + begin, *gate = (const T *)p.gate + begin, *up = (const T *)p.up + begin;
    float factor = p.s[row], sum = 0;
    for (int c = lane * W; c < d; c += 32 * W) {
        float a[W], b[W], g[W], da[W], db[W];
        fetch<W>(a, gate + c), fetch<W>(b, up + c), fetch<W>(g, dy + c);
        UNROLL
        for (int k = 0; k < W; k++) da[k] = db[k] = 0;
        if (!p.overwrite_gate) fetch<W>(da, dgate + c);
        if (!p.overwrite_up) fetch<W>(db, dup + c);
        UNROLL
        for (int k = 0; k < W; k++) {
            float f = sigmoid1(a[k]), silu = a[k] * f;
            sum += g[k] * silu * b[k];
            da[k] += factor * g[k] * b[k] * (f + silu * (1 - f));
            db[k] += factor * g[k] * silu;
        }
        store<W>(dgate + c, da), store<W>(dup + c, db);
    }
    sum = warp_sum(sum);
    if (lane == 0) p.ds[row] = p.overwrite_s ? sum : p.ds[row] + sum;
}
template <class T, int W> static void swiglu_rows_back(Cuda *c, int M, int d, const SwigluRows &p) {
    if (M > 0)
        LAUNCH((swiglu_rows_backward<T, W>), dim3((unsigned)((M + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, M, d,
               p);
}
extern "C" void cuda_swiglu_rows(Cuda *c, int M, int d, void *y, const void *gate, const void *up, const float *s,
                                 bool is_bf16) {
    size_t width = (size_t)d, n = (size_t)M * width;
    if (is_bf16 && by_eight(width, y, gate, up))
        LAUNCH_EACH(c, (swiglu_rows<bf16, 8>), n / 8, width, as<bf16>(y), as<bf16>(gate), as<bf16>(up), s);
    else if (is_bf16)
        LAUNCH_EACH(c, (swiglu_rows<bf16, 1>), n, width, as<bf16>(y), as<bf16>(gate), as<bf16>(up), s);
    else
        LAUNCH_EACH(c, (swiglu_rows<float, 1>), n, width, as<float>(y), as<float>(gate), as<float>(up), s);
}
extern "C" void cuda_swiglu_rows_backward(Cuda *c, int M, int d, void *dgate, void *dup, float *ds, const void *dy,
                                          const void *gate, const void *up, const float *s, bool is_bf16,
                                          bool overwrite_gate, bool overwrite_up, bool overwrite_s) {
    const SwigluRows p = {dgate, dup, ds, dy, gate, up, s, overwrite_gate, overwrite_up, overwrite_s};
    auto back = !is_bf16                                        ? swiglu_rows_back<float, 1>
                : by_eight((size_t)d, dgate, dup, dy, gate, up) ? swiglu_rows_back<bf16, 8>
                                                                : swiglu_rows_back<bf16, 1>;
    back(c, M, d, p);
}

/* s: a factor for each row of d elements, or NULL. */
template <class T, int W> __global__ void relu2(size_t n, size_t d, T *y, const T *x, const float *s) {
    EACH(i, n) {
        float v[W], factor = s ? s[i * W / d] : 1;
        fetch<W>(v, x + i * W);
        UNROLL
        for (int k = 0; k < W; k++) v[k] = v[k] < 0 ? 0 : factor * (v[k] * v[k]);
        store<W>(y + i * W, v);
    }
}
struct Relu2 {
    void *dx;
    float *ds;
    const void *dy, *x;
    const float *s;
    bool overwrite_x, overwrite_s;
};
/* One warp for each of M rows of d elements. */
template <class T, int W> __global__ void relu2_backward(int M, int d, Relu2 p) {
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, begin = row * (size_t)d;
    int lane = (int)threadIdx.x % 32;
    if (row >= (size_t)M) return;
    T *dx = (T *)p.dx + begin;
    const T *dy = (const T *)p.dy + begin, *x = (const T *)p.x + begin;
    float factor = p.s ? p.s[row] : 1, sum = 0;
    for (int c = lane * W; c < d; c += 32 * W) {
        float v[W], g[W], o[W];
        fetch<W>(v, x + c), fetch<W>(g, dy + c);
        UNROLL
        for (int k = 0; k < W; k++) o[k] = 0;
        if (!p.overwrite_x) fetch<W>(o, dx + c);
        UNROLL
        for (int k = 0; k < W; k++) {
            float a = v[k] < 0 ? 0 : v[k];
            sum += g[k] * (a * a);
            o[k] += 2 * factor * a * g[k];
        }
        store<W>(dx + c, o);
    }
    sum = warp_sum(sum);
    if (lane == 0 && p.ds) p.ds[row] = p.overwrite_s ? sum : p.ds[row] + sum;
}
extern "C" void cuda_relu2(Cuda *c, int M, int d, void *y, const void *x, const float *s, bool is_bf16) {
    size_t width = (size_t)d, n = (size_t)M * width;
    if (is_bf16 && by_eight(width, y, x))
        LAUNCH_EACH(c, (relu2<bf16, 8>), n / 8, width, as<bf16>(y), as<bf16>(x), s);
    else if (is_bf16)
        LAUNCH_EACH(c, (relu2<bf16, 1>), n, width, as<bf16>(y), as<bf16>(x), s);
    else
        LAUNCH_EACH(c, (relu2<float, 1>), n, width, as<float>(y), as<float>(x), s);
}
template <class T, int W> static void relu2_back(Cuda *c, int M, int d, const Relu2 &p) {
    if (M > 0)
        LAUNCH((relu2_backward<T, W>), dim3((unsigned)((M + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, M, d, p);
}
extern "C" void cuda_relu2_backward(Cuda *c, int M, int d, void *dx, float *ds, const void *dy, const void *x,
                                    const float *s, bool is_bf16, bool overwrite_x, bool overwrite_s) {
    const Relu2 p = {dx, ds, dy, x, s, overwrite_x, overwrite_s};
    auto back = !is_bf16                         ? relu2_back<float, 1>
                : by_eight((size_t)d, dx, dy, x) ? relu2_back<bf16, 8>
                                                 : relu2_back<bf16, 1>;
    back(c, M, d, p);
}

/* In the exact form, or with its tanh as the sigmoid of twice the argument. */
static constexpr float GELU_A = 1.5957691216057308f,
                       GELU_B = (float)(0.044715 * 1.5957691216057308); /* 2 sqrt(2/pi), that times 0.044715 */
template <bool approx, class T, int W> __global__ void gelu(size_t n, T *y, const T *x) {
    EACH(i, n) {
        float v[W];
        fetch<W>(v, x + i * W);
        UNROLL
        for (int k = 0; k < W; k++) {
            float a = v[k], most = a < -40 ? -40 : a; /* -infinity times 0 is 0 in the exact form */
            v[k] =
                approx ? a / (1 + expf(-a * (GELU_A + GELU_B * a * a))) : most * (erfcf(-a * 0.7071067811865476f) / 2);
        }
        store<W>(y + i * W, v);
    }
}
template <bool approx> DEVICE float gelu_slope(float a) {
    float square = a * a, p, slope; /* P(x) and P'(x) */
    if (approx) {
        p = sigmoid1(a * (GELU_A + GELU_B * square));
        slope = p * (1 - p) * (GELU_A + 3 * GELU_B * square);
    } else {
        p = erfcf(-a * 0.7071067811865476f) / 2;
        a = a < -40 ? -40 : a > 40 ? 40 : a;
        slope = expf(-square / 2) * 0.3989422804014327f;
    }
    return p + a * slope;
}
template <bool approx, class T, int W>
__global__ void gelu_backward(size_t n, T *dx, const T *dy, const T *x, bool overwrite) {
    EACH(i, n) {
        float v[W], g[W], d[W];
        fetch<W>(v, x + i * W), fetch<W>(g, dy + i * W);
        UNROLL
        for (int k = 0; k < W; k++) d[k] = 0;
        if (!overwrite) fetch<W>(d, dx + i * W);
        UNROLL
        for (int k = 0; k < W; k++) d[k] += g[k] * gelu_slope<approx>(v[k]);
        store<W>(dx + i * W, d);
    }
}
extern "C" void cuda_gelu(Cuda *c, size_t n, void *y, const void *x, bool approx, bool is_bf16) {
    bool wide = is_bf16 && by_eight(n, y, x);
    if (approx && wide)
        LAUNCH_EACH(c, (gelu<true, bf16, 8>), n / 8, as<bf16>(y), as<bf16>(x));
    else if (approx && is_bf16)
        LAUNCH_EACH(c, (gelu<true, bf16, 1>), n, as<bf16>(y), as<bf16>(x));
    else if (approx)
        LAUNCH_EACH(c, (gelu<true, float, 1>), n, as<float>(y), as<float>(x));
    else if (wide)
        LAUNCH_EACH(c, (gelu<false, bf16, 8>), n / 8, as<bf16>(y), as<bf16>(x));
    else if (is_bf16)
        LAUNCH_EACH(c, (gelu<false, bf16, 1>), n, as<bf16>(y), as<bf16>(x));
    else
        LAUNCH_EACH(c, (gelu<false, float, 1>), n, as<float>(y), as<float>(x));
}
extern "C" void cuda_gelu_backward(Cuda *c, size_t n, void *dx, const void *dy, const void *x, bool approx,
                                   bool is_bf16, bool overwrite) {
    bool wide = is_bf16 && by_eight(n, dx, dy, x);
    if (approx && wide)
        LAUNCH_EACH(c, (gelu_backward<true, bf16, 8>), n / 8, as<bf16>(dx), as<bf16>(dy), as<bf16>(x), overwrite);
    else if (approx && is_bf16)
        LAUNCH_EACH(c, (gelu_backward<true, bf16, 1>), n, as<bf16>(dx), as<bf16>(dy), as<bf16>(x), overwrite);
    else if (approx)
        LAUNCH_EACH(c, (gelu_backward<true, float, 1>), n, as<float>(dx), as<float>(dy), as<float>(x), overwrite);
    else if (wide)
        LAUNCH_EACH(c, (gelu_backward<false, bf16, 8>), n / 8, as<bf16>(dx), as<bf16>(dy), as<bf16>(x), overwrite);
    else if (is_bf16)
        LAUNCH_EACH(c, (gelu_backward<false, bf16, 1>), n, as<bf16>(dx), as<bf16>(dy), as<bf16>(x), overwrite);
    else
        LAUNCH_EACH(c, (gelu_backward<false, float, 1>), n, as<float>(dx), as<float>(dy), as<float>(x), overwrite);
}

/* As swiglu, with gelu for silu. */
template <bool approx> DEVICE float gelu_part(float a) {
    float v = a < -40 ? -40 : a > 40 ? 40 : a;
    return approx ? sigmoid1(a * (GELU_A + GELU_B * a * a)) : erfcf(-v * 0.7071067811865476f) / 2;
}
template <bool approx, class T, int W> __global__ void geglu(size_t n, T *y, const T *gate, const T *up) {
    EACH(i, n) {
        float a[W], b[W];
        fetch<W>(a, gate + i * W), fetch<W>(b, up + i * W);
        UNROLL
        for (int k = 0; k < W; k++) a[k] = a[k] * gelu_part<approx>(a[k]) * b[k];
        store<W>(y + i * W, a);
    }
}
template <bool approx, class T, int W>
__global__ void geglu_backward(size_t n, T *y, T *dgate, T *dup, const T *dy, const T *gate, const T *up,
                               bool overwrite_gate, bool overwrite_up) {
    EACH(i, n) {
        float a[W], b[W], g[W], da[W], db[W];
        fetch<W>(a, gate + i * W), fetch<W>(b, up + i * W), fetch<W>(g, dy + i * W);
        UNROLL
        for (int k = 0; k < W; k++) da[k] = db[k] = 0;
        if (!overwrite_gate) fetch<W>(da, dgate + i * W);
        if (!overwrite_up) fetch<W>(db, dup + i * W);
        UNROLL
        for (int k = 0; k < W; k++) {
            float act = a[k] * gelu_part<approx>(a[k]);
            da[k] += g[k] * b[k] * gelu_slope<approx>(a[k]);
            db[k] += g[k] * act;
            g[k] = act * b[k];
        }
        store<W>(dgate + i * W, da), store<W>(dup + i * W, db);
        if (y) store<W>(y + i * W, g);
    }
}
template <bool approx, class T, int W>
static void geglu_run(Cuda *c, size_t n, void *y, const void *gate, const void *up) {
    LAUNCH_EACH(c, (geglu<approx, T, W>), n / W, as<T>(y), as<T>(gate), as<T>(up));
}
extern "C" void cuda_geglu(Cuda *c, size_t n, void *y, const void *gate, const void *up, bool approx, bool is_bf16) {
    bool wide = is_bf16 && by_eight(n, y, gate, up);
    auto run = approx    ? wide      ? geglu_run<true, bf16, 8>
                           : is_bf16 ? geglu_run<true, bf16, 1>
                                     : geglu_run<true, float, 1>
                  : wide ? geglu_run<false, bf16, 8>
               : is_bf16 ? geglu_run<false, bf16, 1>
                         : geglu_run<false, float, 1>;
    run(c, n, y, gate, up);
}
template <bool approx, class T, int W>
static void geglu_back(Cuda *c, size_t n, void *y, void *dgate, void *dup, const void *dy, const void *gate,
                       const void *up, bool overwrite_gate, bool overwrite_up) {
    LAUNCH_EACH(c, (geglu_backward<approx, T, W>), n / W, as<T>(y), as<T>(dgate), as<T>(dup), as<T>(dy), as<T>(gate),
                as<T>(up), overwrite_gate, overwrite_up);
}
extern "C" void cuda_geglu_backward(Cuda *c, size_t n, void *y, void *dgate, void *dup, const void *dy,
                                    const void *gate, const void *up, bool approx, bool is_bf16, bool overwrite_gate,
                                    bool overwrite_up) {
    bool wide = is_bf16 && by_eight(n, y, dgate, dup, dy, gate, up);
    auto back = approx    ? wide      ? geglu_back<true, bf16, 8>
                            : is_bf16 ? geglu_back<true, bf16, 1>
                                      : geglu_back<true, float, 1>
                   : wide ? geglu_back<false, bf16, 8>
                : is_bf16 ? geglu_back<false, bf16, 1>
                          : geglu_back<false, float, 1>;
    back(c, n, y, dgate, dup, dy, gate, up, overwrite_gate, overwrite_up);
}

template <class Y, class X, int W> __global__ void add(size_t n, Y *y, const X *x) {
    EACH(i, n) {
        float a[W], b[W];
        fetch<W>(a, y + i * W), fetch<W>(b, x + i * W);
        UNROLL
        for (int k = 0; k < W; k++) a[k] = b[k] + a[k];
        store<W>(y + i * W, a);
    }
}
template <class Y, class X> static void add_of(Cuda *c, size_t n, void *y, const void *x) {
    constexpr int W = sizeof(Y) == sizeof(X) ? 8 : 4; /* one access moves whole sectors of either */
    if (by_eight(n, y, x))
        LAUNCH_EACH(c, (add<Y, X, W>), n / W, as<Y>(y), as<X>(x));
    else
        LAUNCH_EACH(c, (add<Y, X, 1>), n, as<Y>(y), as<X>(x));
}
extern "C" void cuda_add(Cuda *c, size_t n, void *y, const void *x, bool y_bf16, bool x_bf16) {
    if (!y_bf16 && !x_bf16)
        LAUNCH_EACH(c, (add<float, float, 1>), n, as<float>(y), as<float>(x));
    else
        (y_bf16 ? x_bf16 ? add_of<bf16, bf16> : add_of<bf16, float> : add_of<float, bf16>)(c, n, y, x);
}
struct Factors {
    float a, b;
};
__global__ void axpby(size_t n, float *y, const float *x, Factors now, const Factors *at) { /* x may be y */
    float a = at ? at->a : now.a, b = at ? at->b : now.b;
    EACH(i, n) y[i] = a * x[i] + b * y[i];
}
extern "C" void cuda_axpby(Cuda *c, size_t n, float *y, float a, const float *x, float b) {
    Factors now = {a, b};
    const Factors *at = value_of(c, &now);
    LAUNCH_EACH(c, axpby, n, y, x, now, at);
}

__global__ void repeat(size_t n, size_t width, float *y, const double *row) { EACH(i, n) y[i] = (float)row[i % width]; }
extern "C" void cuda_repeat(Cuda *c, size_t n, size_t width, float *y, const double *row) {
    LAUNCH_EACH(c, repeat, n, width, y, row);
}

template <class T, int W> __global__ void elu1(size_t n, T *y, const T *x) {
    EACH(i, n) {
        float v[W];
        fetch<W>(v, x + i * W);
        UNROLL
        for (int k = 0; k < W; k++) v[k] = v[k] > 0 ? v[k] + 1 : expf(v[k]);
        store<W>(y + i * W, v);
    }
}
template <class T, int W> __global__ void elu1_backward(size_t n, T *dx, const T *dy, const T *y, bool overwrite) {
    EACH(i, n) {
        float v[W], g[W];
        fetch<W>(v, y + i * W), fetch<W>(g, dy + i * W);
        UNROLL
        for (int k = 0; k < W; k++) g[k] *= v[k] < 1 ? v[k] : 1;
        add_to<W>(dx + i * W, g, overwrite);
    }
}
extern "C" void cuda_elu1(Cuda *c, size_t n, void *y, const void *x, bool is_bf16) {
    if (!is_bf16)
        LAUNCH_EACH(c, (elu1<float, 1>), n, as<float>(y), as<float>(x));
    else if (by_eight(n, y, x))
        LAUNCH_EACH(c, (elu1<bf16, 8>), n / 8, as<bf16>(y), as<bf16>(x));
    else
        LAUNCH_EACH(c, (elu1<bf16, 1>), n, as<bf16>(y), as<bf16>(x));
}
extern "C" void cuda_elu1_backward(Cuda *c, size_t n, void *dx, const void *dy, const void *y, bool is_bf16,
                                   bool overwrite) {
    if (!is_bf16)
        LAUNCH_EACH(c, (elu1_backward<float, 1>), n, as<float>(dx), as<float>(dy), as<float>(y), overwrite);
    else if (by_eight(n, dx, dy, y))
        LAUNCH_EACH(c, (elu1_backward<bf16, 8>), n / 8, as<bf16>(dx), as<bf16>(dy), as<bf16>(y), overwrite);
    else
        LAUNCH_EACH(c, (elu1_backward<bf16, 1>), n, as<bf16>(dx), as<bf16>(dy), as<bf16>(y), overwrite);
}

__global__ void sigmoid(size_t n, float *y, const float *x, float top) { EACH(i, n) y[i] = top * sigmoid1(x[i]); }
__global__ void sigmoid_backward(size_t n, float *dx, const float *dy, const float *y, float top, bool overwrite) {
    EACH(i, n) add_to<1>(dx + i, {dy[i] * y[i] * (1 - y[i] / top)}, overwrite);
}
extern "C" void cuda_sigmoid(Cuda *c, size_t n, float *y, const float *x, float top) {
    LAUNCH_EACH(c, sigmoid, n, y, x, top);
}
extern "C" void cuda_sigmoid_backward(Cuda *c, size_t n, float *dx, const float *dy, const float *y, float top,
                                      bool overwrite) {
    LAUNCH_EACH(c, sigmoid_backward, n, dx, dy, y, top, overwrite);
}

/* One thread per two columns: one draw serves both. */
__global__ void dropout(size_t n, int d, float *x, CudaDrop p, const int *idx, const int *of, const int *off,
                        const uint64_t *id, const uint64_t *key) {
    if (key) p.key = *key;
    size_t pairs = ((size_t)d + 1) / 2;
    EACH(i, n) {
        int row = idx[i / pairs], sample = of[row];
        size_t k = i % pairs * 2, at = i / pairs * (size_t)d + k;
        uint64_t bits = mix(mix(mix(p.key, id[sample]), (uint64_t)(row - off[sample])), k);
        x[at] = (bits & 0xFFFFFFFFu) < p.below ? 0 : x[at] * p.keep;
        if (k + 1 < (size_t)d) x[at + 1] = bits >> 32 < p.below ? 0 : x[at + 1] * p.keep;
    }
}
extern "C" void cuda_dropout(Cuda *c, int N, int d, float *x, CudaDrop p, const int *idx, const int *of, const int *off,
                             const uint64_t *id) {
    const uint64_t *key = value_of(c, &p.key);
    LAUNCH_EACH(c, dropout, (size_t)N * (((size_t)d + 1) / 2), d, x, p, idx, of, off, id, key);
}
