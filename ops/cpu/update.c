/* update.c: the optimizers' steps, with moments as `real`s or as bf16. */
#include "vec.h"

INLINE real from_bf16(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)h << 16};
    return (real)x.f;
}
/* The low 16 bits of a float are its distance from the bf16 below: adding 16 random bits carries with that
 * probability. No finite value becomes infinite by it, and a NaN stays one. (In double, x is rounded to float
 * first.) */
INLINE uint16_t to_bf16(real v, uint64_t bits) {
    union {
        float f;
        uint32_t u;
    } x = {(float)v};
    uint32_t up = x.u + (uint32_t)(bits & 0xFFFF), kept = (up & 0x7F800000) == 0x7F800000 || x.f != x.f ? x.u : up;
    return (uint16_t)(kept >> 16 | (x.f != x.f ? 64 : 0));
}

/* The factor of a step's gradient; NaN: the step is skipped. */
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
INLINE real lion_sign(real c) { return (real)((c > 0) - (c < 0)); }
static void lion_one(Run *r, const AdamwStep *a) {
    size_t n = tensor_count(a->w);
    double by = adamw_scale(a);
    if (a->square && isnan(by)) return;
    real *W = R(a->w);
    const real *G = R(a->g);
    real c1 = (real)a->b1, c2 = (real)a->b2, d1 = (real)(1 - a->b1), d2 = (real)(1 - a->b2), s = (real)by;
    real step = (real)a->lr, shrink = (real)(1 - a->lr * a->decay);
    if (a->m.dtype == BF16) {
        uint16_t *M = a->m.p;
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
        for (size_t i = 0; i < n; i++) {
            real gi = G[i] * s, mi = from_bf16(M[i]);
            W[i] = W[i] * shrink - step * lion_sign(c1 * mi + d1 * gi);
            M[i] = to_bf16(c2 * mi + d2 * gi, rng_mix(a->round.key, a->round.at + i));
        }
        return;
    }
    real *M = R(a->m);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) {
        real gi = G[i] * s, mi = M[i];
        W[i] = W[i] * shrink - step * lion_sign(c1 * mi + d1 * gi);
        M[i] = c2 * mi + d2 * gi;
    }
}

typedef struct {
    real b1, d1, c, c_left, step, eps, decay;
} ScheduleFree;
INLINE void schedule_free_number(const ScheduleFree *p, real *y, real *z, real *x, real g, real v) {
    *z -= p->step * (g / (sqrt_real(v) + p->eps) + p->decay * *y);
    *x = p->c_left * *x + p->c * *z;
    *y = p->d1 * *z + p->b1 * *x;
}
static void schedule_free_one(Run *r, const AdamwStep *a) {
    size_t n = tensor_count(a->w);
    double by = adamw_scale(a);
    if (a->square && isnan(by)) return;
    real *Y = R(a->w), *Z = R(a->m), *X = R(a->x);
    const real *G = R(a->g);
    real c2 = (real)a->b2, d2 = (real)(1 - a->b2), s = (real)by;
    const ScheduleFree p = {.b1 = (real)a->b1,
                            .d1 = (real)(1 - a->b1),
                            .c = (real)a->share,
                            .c_left = 1 - (real)a->share,
                            .step = (real)a->lr,
                            .eps = (real)a->eps,
                            .decay = (real)a->decay};
    if (a->v.dtype == BF16) {
        uint16_t *U = a->v.p;
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
        for (size_t i = 0; i < n; i++) {
            real gi = G[i] * s, vi = c2 * from_bf16(U[i]) + d2 * gi * gi;
            U[i] = to_bf16(vi, rng_mix(a->round.key, a->round.at + i));
            schedule_free_number(&p, &Y[i], &Z[i], &X[i], gi, vi);
        }
        return;
    }
    real *U = R(a->v);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) {
        real gi = G[i] * s, vi = c2 * U[i] + d2 * gi * gi;
        U[i] = vi;
        schedule_free_number(&p, &Y[i], &Z[i], &X[i], gi, vi);
    }
}
static void adamw(Run *r, int n, const AdamwStep *a) {
    static void (*const rule[UPDATE_RULES])(Run *, const AdamwStep *) = {
        [UPDATE_ADAMW] = adamw_one, [UPDATE_LION] = lion_one, [UPDATE_SCHEDULE_FREE] = schedule_free_one};
    for (int i = 0; i < n; i++) {
        check_adamw(&a[i]);
        if (!measuring(r)) rule[a[i].rule](r, &a[i]);
    }
}

static void momentum(Run *r, Tensor u, Tensor m, Tensor g, double mu, double gscale, bool nesterov, Rounding round) {
    if (measuring(r)) return;
    size_t n = tensor_count(u);
    real *U = R(u), c = (real)mu, s = (real)gscale, ahead = nesterov ? c : 1, fresh = nesterov ? s : 0;
    const real *G = R(g);
    check_momentum(u, m, g);
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
