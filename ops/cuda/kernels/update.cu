/* update.cu: the optimizer's steps, with moments in f32 or, rounded stochastically as in ops/ops.h, in bf16. */
#include "kernel.h"

/* The low 16 bits of a float say how far it is from the bf16 below: adding as many random ones carries with that
 * chance. Nothing finite becomes infinite by it, and a NaN stays one. */
DEVICE uint16_t by_chance(float v, uint64_t bits) {
    uint32_t u = float_bits(v), up = u + (uint32_t)(bits & 0xFFFFu), kept = (up & 0x7F800000u) == 0x7F800000u ? u : up;
    return (uint16_t)(kept >> 16 | (v != v ? 64u : 0u));
}
/* Numbers of a moment to memory, those in bf16 by the bits from `shift` on. */
template <int W> DEVICE void keep(float *p, const float (&v)[W], const uint64_t (&)[W], int) { store<W>(p, v); }
template <int W> DEVICE void keep(bf16 *p, const float (&v)[W], const uint64_t (&bits)[W], int shift) {
    if constexpr (W == 1)
        *p = {by_chance(v[0], bits[0] >> shift)};
    else {
        static_assert(W == 4, "an access");
        uint32_t h[W];
        UNROLL
        for (int j = 0; j < W; j++) h[j] = by_chance(v[j], bits[j] >> shift);
        store_vec(p, uint2{h[0] | h[1] << 16, h[2] | h[3] << 16});
    }
}
DEVICE uint64_t chance(const float *, CudaRounding, size_t) { return 0; }
DEVICE uint64_t chance(const bf16 *, CudaRounding r, size_t i) { return mix(r.key, r.at + i); }

/* A step's factor of its gradient; NaN: the step is skipped. As on the CPU, to the bit. */
DEVICE float adam_scale(const CudaAdamOf &a) {
    if (!a.square) return (float)a.gscale;
    double norm = sqrt(*a.square);
    if (!isfinite(norm)) return NAN;
    return (float)(a.gscale * (a.most > 0 && norm > a.most ? a.most / norm : 1));
}
template <class T, int W> DEVICE void adam_run(const CudaAdamOf &a, float scale, size_t from, size_t to) {
    const CudaAdam p = a.p;
    for (size_t i = from + threadIdx.x * W; i < to; i += BLOCK * W) {
        float w[W], g[W], m[W], v[W];
        fetch<W>(w, a.w + i), fetch<W>(g, a.g + i), fetch<W>(m, (const T *)a.m + i), fetch<W>(v, (const T *)a.v + i);
        uint64_t bits[W];
        UNROLL
        for (int j = 0; j < W; j++) {
            float gi = g[j] * scale;
            m[j] = p.b1 * m[j] + p.one_b1 * gi, v[j] = p.b2 * v[j] + p.one_b2 * gi * gi;
            w[j] = w[j] * p.shrink - p.step * m[j] / (sqrtf(v[j]) * p.root + p.eps);
            bits[j] = chance((const T *)a.m, a.round, i + (size_t)j);
        }
        keep<W>((T *)a.m + i, m, bits, 0), keep<W>((T *)a.v + i, v, bits, 16);
        store<W>(a.w + i, w);
        if (a.shadow) store<W>((bf16 *)a.shadow + i, w);
    }
}
template <class T> struct Adam {
    template <int W> DEVICE void run(const CudaAdamOf &a, float scale, size_t from, size_t to) {
        adam_run<T, W>(a, scale, from, to);
    }
};
template <class T> struct Lion {
    template <int W> DEVICE void run(const CudaAdamOf &a, float scale, size_t from, size_t to) {
        const CudaAdam p = a.p;
        for (size_t i = from + threadIdx.x * W; i < to; i += BLOCK * W) {
            float w[W], g[W], m[W];
            fetch<W>(w, a.w + i), fetch<W>(g, a.g + i), fetch<W>(m, (const T *)a.m + i);
            uint64_t bits[W];
            UNROLL
            for (int j = 0; j < W; j++) {
                float gi = g[j] * scale, c = p.b1 * m[j] + p.one_b1 * gi;
                w[j] = w[j] * p.shrink - p.step * (float)((c > 0) - (c < 0));
                m[j] = p.b2 * m[j] + p.one_b2 * gi;
                bits[j] = chance((const T *)a.m, a.round, i + (size_t)j);
            }
            keep<W>((T *)a.m + i, m, bits, 0);
            store<W>(a.w + i, w);
            if (a.shadow) store<W>((bf16 *)a.shadow + i, w);
        }
    }
};
template <class T> struct ScheduleFree {
    template <int W> DEVICE void run(const CudaAdamOf &a, float scale, size_t from, size_t to) {
        const CudaAdam p = a.p;
        for (size_t i = from + threadIdx.x * W; i < to; i += BLOCK * W) {
            float y[W], g[W], z[W], v[W], x[W];
            fetch<W>(y, a.w + i), fetch<W>(g, a.g + i), fetch<W>(z, (const float *)a.m + i);
            fetch<W>(v, (const T *)a.v + i), fetch<W>(x, a.x + i);
            uint64_t bits[W];
            UNROLL
            for (int j = 0; j < W; j++) {
                float gi = g[j] * scale;
                v[j] = p.b2 * v[j] + p.one_b2 * gi * gi;
                z[j] -= p.step * (gi / (sqrtf(v[j]) + p.eps) + p.decay * y[j]);
                x[j] = (1 - p.share) * x[j] + p.share * z[j];
                y[j] = p.one_b1 * z[j] + p.b1 * x[j];
                bits[j] = chance((const T *)a.v, a.round, i + (size_t)j);
            }
            keep<W>((T *)a.v + i, v, bits, 0);
            store<W>((float *)a.m + i, z), store<W>(a.x + i, x), store<W>(a.w + i, y);
            if (a.shadow) store<W>((bf16 *)a.shadow + i, y);
        }
    }
};
/* A block to a piece of a tensor. */
template <class Rule> DEVICE void update_piece(int tensors, const CudaAdamOf *all) {
    const CudaAdamOf a = all[tensor_of(tensors, all)];
    const size_t piece = CUDA_ADAM_PIECE, from = (blockIdx.x - a.first) * piece,
                 to = from + piece < a.n ? from + piece : a.n;
    float scale = adam_scale(a);
    if (a.square && scale != scale) return;
    if (a.quads)
        Rule::template run<4>(a, scale, from, to);
    else
        Rule::template run<1>(a, scale, from, to);
}
template <class T> __global__ void adamw(int tensors, const CudaAdamOf *all) { update_piece<Adam<T>>(tensors, all); }
template <class T> __global__ void lion(int tensors, const CudaAdamOf *all) { update_piece<Lion<T>>(tensors, all); }
template <class T> __global__ void schedule_free(int tensors, const CudaAdamOf *all) {
    update_piece<ScheduleFree<T>>(tensors, all);
}
extern "C" void cuda_adamw(Cuda *c, int n, const CudaAdamOf *all, size_t pieces, bool is_bf16) {
    if (is_bf16)
        LAUNCH(adamw<bf16>, dim3((unsigned)pieces), dim3(BLOCK), 0, c->stream, n, all);
    else
        LAUNCH(adamw<float>, dim3((unsigned)pieces), dim3(BLOCK), 0, c->stream, n, all);
}
extern "C" void cuda_lion(Cuda *c, int n, const CudaAdamOf *all, size_t pieces, bool is_bf16) {
    if (is_bf16)
        LAUNCH(lion<bf16>, dim3((unsigned)pieces), dim3(BLOCK), 0, c->stream, n, all);
    else
        LAUNCH(lion<float>, dim3((unsigned)pieces), dim3(BLOCK), 0, c->stream, n, all);
}
extern "C" void cuda_schedule_free(Cuda *c, int n, const CudaAdamOf *all, size_t pieces, bool is_bf16) {
    if (is_bf16)
        LAUNCH(schedule_free<bf16>, dim3((unsigned)pieces), dim3(BLOCK), 0, c->stream, n, all);
    else
        LAUNCH(schedule_free<float>, dim3((unsigned)pieces), dim3(BLOCK), 0, c->stream, n, all);
}

/* Values of a step that differ in the next: passed by value, or where a captured pass reads them (cuda_value). */
struct MomentumNow {
    CudaRounding r;
    float mu, scale;
};
template <class T>
__global__ void momentum(size_t n, float *u, T *m, const float *g, int nesterov, MomentumNow now,
                         const MomentumNow *at) {
    if (at) now = *at;
    CudaRounding r = now.r;
    float mu = now.mu, scale = now.scale;
    EACH(i, n) {
        float gi = g[i], mi = mu * number(m[i]) + scale * gi;
        keep<1>(&m[i], {mi}, {chance(m, r, i)}, 0);
        u[i] = nesterov ? mu * mi + scale * gi : mi;
    }
}
extern "C" void cuda_momentum(Cuda *c, size_t n, float *u, void *m, const float *g, bool is_bf16, float mu, float scale,
                              bool nesterov, CudaRounding r) {
    MomentumNow now = {r, mu, scale};
    const MomentumNow *at = value_of(c, &now);
    if (is_bf16)
        LAUNCH_EACH(c, (momentum<bf16>), n, u, (bf16 *)m, g, (int)nesterov, now, at);
    else
        LAUNCH_EACH(c, (momentum<float>), n, u, (float *)m, g, (int)nesterov, now, at);
}
