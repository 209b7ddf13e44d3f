/* update.c: the optimizer's steps, with moments as numbers of the arithmetic or as bf16. */
#include "vec.h"

INLINE real from_bf16(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)h << 16};
    return (real)x.f;
}
/* The low 16 bits of a float say how far it is from the bf16 below: adding as many random ones carries with that
 * chance. Nothing finite becomes infinite by it, and a NaN stays one. (In double, x is rounded to float first.) */
INLINE uint16_t to_bf16(real v, uint64_t bits) {
    union {
        float f;
        uint32_t u;
    } x = {(float)v};
    uint32_t up = x.u + (uint32_t)(bits & 0xFFFF), kept = (up & 0x7F800000) == 0x7F800000 || x.f != x.f ? x.u : up;
    return (uint16_t)(kept >> 16 | (x.f != x.f ? 64 : 0));
}

/* What a step scales its gradient by; NaN: it is left out. */
static double adamw_scale(const AdamwStep *a) {
    if (!a->square) return a->gscale;
    double norm = sqrt(*a->square);
    if (!isfinite(norm)) return NAN;
    return a->gscale * (a->most > 0 && norm > a->most ? a->most / norm : 1);
}
static void adamw_one(Run *r, const AdamwStep *a) {
    size_t n = tensor_count(a->w);
    double by = adamw_scale(a);
    if (a->square && isnan(by)) return;
    real *W = R(a->w);
    const real *G = R(a->g);
    real c1 = (real)a->b1, c2 = (real)a->b2, d1 = (real)(1 - a->b1), d2 = (real)(1 - a->b2), s = (real)by;
    real step = (real)(a->lr / (1 - pow(a->b1, (double)a->t))), root = (real)(1 / sqrt(1 - pow(a->b2, (double)a->t)));
    real e = (real)a->eps, shrink = (real)(1 - a->lr * a->decay);
    if (a->m.dtype == BF16) {
        uint16_t *M = a->m.p, *U = a->v.p;
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
        for (size_t i = 0; i < n; i++) {
            real gi = G[i] * s, mi = c1 * from_bf16(M[i]) + d1 * gi, vi = c2 * from_bf16(U[i]) + d2 * gi * gi;
            uint64_t bits = rng_mix(a->round.key, a->round.at + i);
            M[i] = to_bf16(mi, bits);
            U[i] = to_bf16(vi, bits >> 16);
            W[i] = W[i] * shrink - step * mi / (sqrt_real(vi) * root + e);
        }
        return;
    }
    real *M = R(a->m), *U = R(a->v);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) {
        real gi = G[i] * s, mi = c1 * M[i] + d1 * gi, vi = c2 * U[i] + d2 * gi * gi;
        M[i] = mi;
        U[i] = vi;
        W[i] = W[i] * shrink - step * mi / (sqrt_real(vi) * root + e);
    }
}
static void adamw(Run *r, int n, const AdamwStep *a) {
    for (int i = 0; i < n; i++) {
        CHECK(a[i].m.dtype == a[i].v.dtype, "%s and %s", dtype_name(a[i].m.dtype), dtype_name(a[i].v.dtype));
        if (!measuring(r)) adamw_one(r, &a[i]);
    }
}

static void momentum(Run *r, Tensor u, Tensor m, Tensor g, double mu, double gscale, bool nesterov, Rounding round) {
    if (measuring(r)) return;
    size_t n = tensor_count(u);
    real *U = R(u), c = (real)mu, s = (real)gscale, ahead = nesterov ? c : 1, fresh = nesterov ? s : 0;
    const real *G = R(g);
    CHECK(tensor_count(m) == n && tensor_count(g) == n, "%zu, %zu and %zu numbers", n, tensor_count(m),
          tensor_count(g));
    if (m.dtype == BF16) {
        uint16_t *M = m.p;
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
        for (size_t i = 0; i < n; i++) {
            real mi = c * from_bf16(M[i]) + s * G[i];
            M[i] = to_bf16(mi, rng_mix(round.key, round.at + i));
            U[i] = ahead * mi + fresh * G[i];
        }
        return;
    }
    real *M = R(m);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) {
        real mi = c * M[i] + s * G[i];
        M[i] = mi;
        U[i] = ahead * mi + fresh * G[i];
    }
}
