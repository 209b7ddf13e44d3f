/* update.cu: the optimizer's steps, with moments in f32 or, rounded by chance as ops/ops.h says, in bf16. */
#include "kernel.h"

DEVICE void keep(float *p, float v, uint64_t) { *p = v; }
/* The low 16 bits of a float say how far it is from the bf16 below: adding as many random ones carries with that
 * chance. Nothing finite becomes infinite by it, and a NaN stays one. */
DEVICE void keep(bf16 *p, float v, uint64_t bits) {
    uint32_t u = float_bits(v), up = u + (uint32_t)(bits & 0xFFFFu), kept = (up & 0x7F800000u) == 0x7F800000u ? u : up;
    *p = {(uint16_t)(kept >> 16 | (v != v ? 64u : 0u))};
}
DEVICE uint64_t chance(const float *, CudaRounding, size_t) { return 0; }
DEVICE uint64_t chance(const bf16 *, CudaRounding r, size_t i) { return mix(r.key, r.at + i); }

template <class T>
__global__ void adamw(size_t n, float *w, uint16_t *half, const float *g, T *m, T *v, CudaAdam p, CudaRounding r) {
    EACH(i, n) {
        float gi = g[i] * p.gscale, mi = p.b1 * number(m[i]) + p.one_b1 * gi,
              vi = p.b2 * number(v[i]) + p.one_b2 * gi * gi;
        uint64_t bits = chance(m, r, i);
        keep(&m[i], mi, bits);
        keep(&v[i], vi, bits >> 16);
        float wi = w[i] * p.shrink - p.step * mi / (sqrtf(vi) * p.root + p.eps);
        w[i] = wi;
        if (half) half[i] = to_bf16(wi).bits;
    }
}
extern "C" void cuda_adamw(Cuda *c, size_t n, float *w, uint16_t *half, const float *g, void *m, void *v, bool narrow,
                           CudaAdam p, CudaRounding r) {
    if (narrow)
        LAUNCH_EACH(c, (adamw<bf16>), n, w, half, g, (bf16 *)m, (bf16 *)v, p, r);
    else
        LAUNCH_EACH(c, (adamw<float>), n, w, half, g, (float *)m, (float *)v, p, r);
}

template <class T>
__global__ void momentum(size_t n, float *u, T *m, const float *g, float mu, float scale, int nesterov,
                         CudaRounding r) {
    EACH(i, n) {
        float gi = g[i], mi = mu * number(m[i]) + scale * gi;
        keep(&m[i], mi, chance(m, r, i));
        u[i] = nesterov ? mu * mi + scale * gi : mi;
    }
}
extern "C" void cuda_momentum(Cuda *c, size_t n, float *u, void *m, const float *g, bool narrow, float mu, float scale,
                              bool nesterov, CudaRounding r) {
    if (narrow)
        LAUNCH_EACH(c, (momentum<bf16>), n, u, (bf16 *)m, g, mu, scale, (int)nesterov, r);
    else
        LAUNCH_EACH(c, (momentum<float>), n, u, (float *)m, g, mu, scale, (int)nesterov, r);
}
