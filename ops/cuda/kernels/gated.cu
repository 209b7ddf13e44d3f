/* gated.cu: gates of attention's output: a sigmoid per element, and a learned sink per head; and the gated unit with
 * bounds. All access whole sectors; all but the sinks' gradient needs the time of its bytes. */
#include "kernel.h"

template <class T, int W> __global__ void sigmoid_gate(size_t n, T *y, const T *x, const T *z) {
    EACH(i, n) {
        float a[W], b[W];
        fetch<W>(a, x + i * W), fetch<W>(b, z + i * W);
        UNROLL
        for (int k = 0; k < W; k++) a[k] *= sigmoid1(b[k]);
        store<W>(y + i * W, a);
    }
}
template <class T, int W>
__global__ void sigmoid_gate_backward(size_t n, T *dx, T *dz, const T *dy, const T *x, const T *z, bool overwrite_x,
                                      bool overwrite_z) {
    EACH(i, n) {
        float a[W], b[W], g[W], da[W], db[W];
        fetch<W>(a, x + i * W), fetch<W>(b, z + i * W), fetch<W>(g, dy + i * W);
        UNROLL
        for (int k = 0; k < W; k++) da[k] = db[k] = 0;
        if (!overwrite_x) fetch<W>(da, dx + i * W);
        if (!overwrite_z) fetch<W>(db, dz + i * W);
        UNROLL
        for (int k = 0; k < W; k++) {
            float s = sigmoid1(b[k]);
            da[k] += g[k] * s;
            db[k] += g[k] * a[k] * s * sigmoid1(-b[k]);
        }
        store<W>(dx + i * W, da), store<W>(dz + i * W, db);
    }
}
extern "C" void cuda_sigmoid_gate(Cuda *c, size_t n, void *y, const void *x, const void *z, bool is_bf16) {
    if (is_bf16 && by_eight(n, y, x, z))
        LAUNCH_EACH(c, (sigmoid_gate<bf16, 8>), n / 8, as<bf16>(y), as<bf16>(x), as<bf16>(z));
    else if (is_bf16)
        LAUNCH_EACH(c, (sigmoid_gate<bf16, 1>), n, as<bf16>(y), as<bf16>(x), as<bf16>(z));
    else
        LAUNCH_EACH(c, (sigmoid_gate<float, 1>), n, as<float>(y), as<float>(x), as<float>(z));
}
template <class T, int W>
static void sigmoid_gate_back(Cuda *c, size_t n, void *dx, void *dz, const void *dy, const void *x, const void *z,
                              bool overwrite_x, bool overwrite_z) {
    LAUNCH_EACH(c, (sigmoid_gate_backward<T, W>), n / W, as<T>(dx), as<T>(dz), as<T>(dy), as<T>(x), as<T>(z),
                overwrite_x, overwrite_z);
}
extern "C" void cuda_sigmoid_gate_backward(Cuda *c, size_t n, void *dx, void *dz, const void *dy, const void *x,
                                           const void *z, bool is_bf16, bool overwrite_x, bool overwrite_z) {
    auto back = !is_bf16                        ? sigmoid_gate_back<float, 1>
                : by_eight(n, dx, dz, dy, x, z) ? sigmoid_gate_back<bf16, 8>
                                                : sigmoid_gate_back<bf16, 1>;
    back(c, n, dx, dz, dy, x, z, overwrite_x, overwrite_z);
}

DEVICE float softplus1(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* One warp for each head of a row. */
template <class T> __global__ void attend_sink(size_t n, int H, int D, T *o, float *lse, const float *w) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (i >= n) return;
    float score = w[i % (size_t)H], above = lse[i] - score, share = sigmoid1(above);
    for (size_t k = i * (size_t)D + (size_t)lane; k < (i + 1) * (size_t)D; k += 32) {
        float v[1] = {share * number(o[k])};
        store<1>(o + k, v);
    }
    __syncwarp();
    if (lane == 0) lse[i] = score + softplus1(above);
}
/* One block per head. */
template <class T>
__global__ void attend_sink_backward(int N, int H, int D, float *dw, const T *dout, const T *o, const float *lse,
                                     const float *w) {
    SMEM_DYN(float, part);
    size_t n = (size_t)N * (size_t)D, head = blockIdx.x;
    float s = 0, score = w[head];
    for (size_t k = threadIdx.x; k < n; k += BLOCK) {
        size_t row = k / (size_t)D * (size_t)H + head, i = row * (size_t)D + k % (size_t)D;
        s -= expf(score - lse[row]) * number(dout[i]) * number(o[i]);
    }
    s = block_sum(s, part);
    if (threadIdx.x == 0) dw[head] += s;
}
extern "C" void cuda_attend_sink(Cuda *c, int N, int H, int D, void *o, float *lse, const float *w, bool is_bf16) {
    size_t n = (size_t)N * (size_t)H;
    dim3 grid((unsigned)((n + WARPS - 1) / WARPS));
    if (n && is_bf16)
        LAUNCH((attend_sink<bf16>), grid, dim3(BLOCK), 0, c->stream, n, H, D, as<bf16>(o), lse, w);
    else if (n)
        LAUNCH((attend_sink<float>), grid, dim3(BLOCK), 0, c->stream, n, H, D, as<float>(o), lse, w);
}
extern "C" void cuda_attend_sink_backward(Cuda *c, int N, int H, int D, float *dw, const void *dout, const void *o,
                                          const float *lse, const float *w, bool is_bf16) {
    const size_t room = WARPS * sizeof(float);
    if (N > 0 && H > 0 && is_bf16)
        LAUNCH((attend_sink_backward<bf16>), dim3((unsigned)H), dim3(BLOCK), room, c->stream, N, H, D, dw,
               as<bf16>(dout), as<bf16>(o), lse, w);
    else if (N > 0 && H > 0)
        LAUNCH((attend_sink_backward<float>), dim3((unsigned)H), dim3(BLOCK), room, c->stream, N, H, D, dw,
               as<float>(dout), as<float>(o), lse, w);
}

struct SwigluLimit {
    void *dgate, *dup;
    float *ds;
    const void *dy, *gate, *up;
    const float *s;
    float alpha, limit;
    bool overwrite_gate, overwrite_up, overwrite_s;
};
template <class T, int W>
__global__ void swiglu_limit(size_t n, size_t d, T *y, const T *gate, const T *up, const float *s, float alpha,
                             float limit) {
    EACH(i, n) {
        float a[W], b[W], factor = s[i * W / d];
        fetch<W>(a, gate + i * W), fetch<W>(b, up + i * W);
        UNROLL
        for (int k = 0; k < W; k++) {
            float v = fminf(a[k], limit), u = fmaxf(fminf(b[k], limit), -limit);
            a[k] = factor * (u + 1) * v * sigmoid1(alpha * v);
        }
        store<W>(y + i * W, a);
    }
}
/* One warp for each of M rows of d elements. */
template <class T, int W> __global__ void swiglu_limit_backward(int M, int d, SwigluLimit p) {
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
            float v = fminf(a[k], p.limit), u = fmaxf(fminf(b[k], p.limit), -p.limit), f = sigmoid1(p.alpha * v);
            sum += g[k] * (u + 1) * v * f;
            if (a[k] <= p.limit) da[k] += factor * g[k] * (u + 1) * f * (1 + p.alpha * v * (1 - f));
            if (fabsf(b[k]) <= p.limit) db[k] += factor * g[k] * v * f;
        }
        store<W>(dgate + c, da), store<W>(dup + c, db);
    }
    sum = warp_sum(sum);
    if (lane == 0) p.ds[row] = p.overwrite_s ? sum : p.ds[row] + sum;
}
extern "C" void cuda_swiglu_limit(Cuda *c, int M, int d, void *y, const void *gate, const void *up, const float *s,
                                  float alpha, float limit, bool is_bf16) {
    size_t width = (size_t)d, n = (size_t)M * width;
    if (is_bf16 && by_eight(width, y, gate, up))
        LAUNCH_EACH(c, (swiglu_limit<bf16, 8>), n / 8, width, as<bf16>(y), as<bf16>(gate), as<bf16>(up), s, alpha,
                    limit);
    else if (is_bf16)
        LAUNCH_EACH(c, (swiglu_limit<bf16, 1>), n, width, as<bf16>(y), as<bf16>(gate), as<bf16>(up), s, alpha, limit);
    else
        LAUNCH_EACH(c, (swiglu_limit<float, 1>), n, width, as<float>(y), as<float>(gate), as<float>(up), s, alpha,
                    limit);
}
template <class T, int W> static void swiglu_limit_back(Cuda *c, int M, int d, const SwigluLimit &p) {
    if (M > 0)
        LAUNCH((swiglu_limit_backward<T, W>), dim3((unsigned)((M + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, M,
               d, p);
}
extern "C" void cuda_swiglu_limit_backward(Cuda *c, int M, int d, void *dgate, void *dup, float *ds, const void *dy,
                                           const void *gate, const void *up, const float *s, float alpha, float limit,
                                           bool is_bf16, bool overwrite_gate, bool overwrite_up, bool overwrite_s) {
    const SwigluLimit p = {dgate, dup, ds, dy, gate, up, s, alpha, limit, overwrite_gate, overwrite_up, overwrite_s};
    auto back = !is_bf16                                        ? swiglu_limit_back<float, 1>
                : by_eight((size_t)d, dgate, dup, dy, gate, up) ? swiglu_limit_back<bf16, 8>
                                                                : swiglu_limit_back<bf16, 1>;
    back(c, M, d, p);
}
