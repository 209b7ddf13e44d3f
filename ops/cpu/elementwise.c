/* elementwise.c: element-wise ops: SwiGLU, GELU, sums, dropout; and row selection. */
#include "vec.h"

static void swiglu(Run *r, Tensor y, Tensor gate, Tensor up) {
    CHECK_ALIKE(y, gate, up);
    if (measuring(r)) return;
    size_t n = tensor_count(y);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE_EXP)
    for (size_t i = 0; i < n; i += RUN) {
        real room[3][RUN];
        size_t m = zmin(RUN, n - i);
        const real *a = run_of(gate, i, m, room[0]), *b = run_of(up, i, m, room[1]);
        real *o = run_write(y, i, room[2]);
#pragma omp simd
        for (size_t k = 0; k < m; k++) o[k] = a[k] / (1 + exp_real(-a[k])) * b[k];
        run_done(y, i, m, o);
    }
}
/* For one element: the gradients of gate and up; returns y. */
INLINE real swiglu_grad(real *da, real *db, real g, real a, real b) {
    real s = 1 / (1 + exp_real(-a)), silu = a * s;
    *da = g * b * (s + silu * (1 - s)), *db = g * silu;
    return silu * b;
}
static void swiglu_backward(Run *r, Tensor y, Into dgate, Into dup, Tensor dy, Tensor gate, Tensor up) {
    bool wanted = present(y);
    CHECK_ALIKE(dgate.t, dup.t, dy, gate, up, y);
    if (measuring(r)) return;
    size_t n = tensor_count(dy);
    bool overwrite = dgate.overwrite && dup.overwrite;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE_EXP)
    for (size_t i = 0; i < n; i += RUN) {
        real room[6][RUN];
        size_t m = zmin(RUN, n - i);
        const real *g = run_of(dy, i, m, room[0]), *a = run_of(gate, i, m, room[1]), *b = run_of(up, i, m, room[2]);
        real *da = run_write(dgate.t, i, room[3]), *db = run_write(dup.t, i, room[4]);
        real *o = wanted ? run_write(y, i, room[5]) : room[5];
        if (overwrite) { /* separate loops: a choice inside would not vectorise */
#pragma omp simd
            for (size_t k = 0; k < m; k++) o[k] = swiglu_grad(&da[k], &db[k], g[k], a[k], b[k]);
        } else {
            run_add(dgate, i, m, room[3]), run_add(dup, i, m, room[4]);
#pragma omp simd
            for (size_t k = 0; k < m; k++) {
                real ga, gb;
                o[k] = swiglu_grad(&ga, &gb, g[k], a[k], b[k]);
                da[k] += ga, db[k] += gb;
            }
        }
        run_done(dgate.t, i, m, da), run_done(dup.t, i, m, db);
        if (wanted) run_done(y, i, m, o);
    }
}

/* *P = the normal distribution up to x, *bell = e^(-x^2/2), both to 6 ulp (P of x < -13.2, which is below 1e-38, is
 * 0). NaN stays NaN. The float form has no branch and no call. With t = |x|, P(-t) e^(t^2/2) is a smooth function of v
 * = 1/(1 + 0.26 t): v times a polynomial in v, fitted for the smallest relative error, 2.1e-8, over t in 0..13.3. The
 * square of t is computed in two parts, because its rounding alone would cost e^-87 some 40 ulp. */
INLINE void normal(real x, real *P, real *bell) {
#ifdef KV_DOUBLE
    *P = erfc(-x * M_SQRT1_2) / 2, *bell = exp(-x * x / 2);
#else
    const float most = 13.19f;
    float size = x < 0 ? -x : x, t = size > most ? most : size;
    union {
        float f;
        uint32_t u;
    } high = {t}, two = {0};
    high.u &= 0xFFFFF000; /* 12 binary digits: its square is exact */
    float y = -0.5f * (high.f * high.f), low = -0.5f * ((t - high.f) * (t + high.f));
    union {
        float f;
        int32_t i;
    } n = {(y + low) * 1.44269504088896341f + 12582912.0f}; /* as in exp_real */
    float k = n.f - 12582912.0f;
    y = y - k * 0.693359375f + (k * 2.12194440e-4f + low);
    float e = 1.9875691500e-4f;
    e = e * y + 1.3981999507e-3f;
    e = e * y + 8.3334519073e-3f;
    e = e * y + 4.1665795894e-2f;
    e = e * y + 1.6666665459e-1f;
    e = e * y + 5.0000001201e-1f;
    e = e * y * y + y + 1.0f;
    two.u = (uint32_t)(n.i - 0x4B400000 + 127) << 23;
    e = size > most ? 0.0f : e * two.f;
    float v = 1.0f / (1.0f + 0.26f * t), q = 0.03089621988f;
    q = q * v + -0.1547408218f;
    q = q * v + 0.255467817f;
    q = q * v + -0.1555372155f;
    q = q * v + 0.1641533202f;
    q = q * v + 0.049642131f;
    q = q * v + 0.1033914267f;
    q = q * v + 0.1029649209f;
    q = q * v + 0.1037621915f;
    q = q * v * e;
    *P = x < 0 ? q : 1.0f - q;
    *bell = e;
#endif
}
/* (1 + tanh u)/2 = 1/(1 + e^-2u); 2u = x (a + b x^2). */
#define GELU_A ((real)1.5957691216057307117597842397375)              /* 2 sqrt(2/pi) */
#define GELU_B ((real)(0.044715 * 1.5957691216057307117597842397375)) /* 0.044715 of it */
static void gelu(Run *r, Tensor y, Tensor x, bool tanh) {
    CHECK_ALIKE(y, x);
    if (measuring(r)) return;
    size_t n = tensor_count(y);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE_EXP)
    for (size_t i = 0; i < n; i += RUN) {
        real room[2][RUN];
        size_t m = zmin(RUN, n - i);
        const real *a = run_of(x, i, m, room[0]);
        real *o = run_write(y, i, room[1]);
        if (tanh) {
#pragma omp simd
            for (size_t k = 0; k < m; k++) o[k] = a[k] / (1 + exp_real(-a[k] * (GELU_A + GELU_B * a[k] * a[k])));
        } else {
#pragma omp simd
            for (size_t k = 0; k < m; k++) {
                real v = a[k] < -40 ? -40 : a[k], p, bell; /* -infinity times 0 is 0 here */
                normal(v, &p, &bell);
                o[k] = v * p;
            }
        }
        run_done(y, i, m, o);
    }
}
static void gelu_backward(Run *r, Into dx, Tensor dy, Tensor x, bool tanh) {
    CHECK_ALIKE(dx.t, dy, x);
    if (measuring(r)) return;
    size_t n = tensor_count(dx.t);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE_EXP)
    for (size_t i = 0; i < n; i += RUN) {
        real room[3][RUN];
        size_t m = zmin(RUN, n - i);
        const real *a = run_of(x, i, m, room[0]), *g = run_of(dy, i, m, room[1]);
        real *d = run_add(dx, i, m, room[2]);
        if (tanh) {
#pragma omp simd
            for (size_t k = 0; k < m; k++) {
                real square = a[k] * a[k], s = 1 / (1 + exp_real(-a[k] * (GELU_A + GELU_B * square)));
                d[k] += g[k] * (s + s * (1 - s) * a[k] * (GELU_A + 3 * GELU_B * square));
            }
        } else {
#pragma omp simd
            for (size_t k = 0; k < m; k++) {
                real v = a[k] < -40 ? -40 : a[k], p, bell;
                v = v > 40 ? 40 : v;
                normal(v, &p, &bell);
                d[k] += g[k] * (p + v * bell * (real)0.3989422804014327);
            }
        }
        run_done(dx.t, i, m, d);
    }
}

/* P(x), and with `bell` (NULL: not wanted) P'(x) times x. */
INLINE real gelu_part(real x, bool tanh, real *bell) {
    real p, e;
    if (tanh) {
        real square = x * x, s = 1 / (1 + exp_real(-x * (GELU_A + GELU_B * square)));
        if (bell) *bell = s * (1 - s) * x * (GELU_A + 3 * GELU_B * square);
        return s;
    }
    real v = x < -40 ? -40 : x;
    v = v > 40 ? 40 : v;
    normal(v, &p, &e);
    if (bell) *bell = v * e * (real)0.3989422804014327;
    return p;
}
INLINE void geglu_run(real *o, const real *a, const real *b, size_t m, bool tanh) {
#pragma omp simd
    for (size_t k = 0; k < m; k++) o[k] = a[k] * gelu_part(a[k], tanh, NULL) * b[k];
}
static void geglu(Run *r, Tensor y, Tensor gate, Tensor up, bool tanh) {
    CHECK_ALIKE(y, gate, up);
    if (measuring(r)) return;
    size_t n = tensor_count(y);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE_EXP)
    for (size_t i = 0; i < n; i += RUN) {
        real room[3][RUN];
        size_t m = zmin(RUN, n - i);
        const real *a = run_of(gate, i, m, room[0]), *b = run_of(up, i, m, room[1]);
        real *o = run_write(y, i, room[2]);
        if (tanh) /* a constant in each loop: a choice inside would not vectorise */
            geglu_run(o, a, b, m, true);
        else
            geglu_run(o, a, b, m, false);
        run_done(y, i, m, o);
    }
}
INLINE void geglu_back_run(real *o, real *da, real *db, const real *g, const real *a, const real *b, size_t m,
                           bool tanh) {
#pragma omp simd
    for (size_t k = 0; k < m; k++) {
        real bell, p = gelu_part(a[k], tanh, &bell), act = a[k] * p;
        da[k] += g[k] * b[k] * (p + bell);
        db[k] += g[k] * act;
        o[k] = act * b[k];
    }
}
static void geglu_backward(Run *r, Tensor y, Into dgate, Into dup, Tensor dy, Tensor gate, Tensor up, bool tanh) {
    bool wanted = present(y);
    CHECK_ALIKE(dgate.t, dup.t, dy, gate, up, y);
    if (measuring(r)) return;
    size_t n = tensor_count(dy);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE_EXP)
    for (size_t i = 0; i < n; i += RUN) {
        real room[6][RUN];
        size_t m = zmin(RUN, n - i);
        const real *g = run_of(dy, i, m, room[0]), *a = run_of(gate, i, m, room[1]), *b = run_of(up, i, m, room[2]);
        real *da = run_add(dgate, i, m, room[3]), *db = run_add(dup, i, m, room[4]);
        real *o = wanted ? run_write(y, i, room[5]) : room[5];
        if (tanh)
            geglu_back_run(o, da, db, g, a, b, m, true);
        else
            geglu_back_run(o, da, db, g, a, b, m, false);
        run_done(dgate.t, i, m, da), run_done(dup.t, i, m, db);
        if (wanted) run_done(y, i, m, o);
    }
}

static void add(Run *r, Tensor y, Tensor x) {
    if (measuring(r)) return;
    size_t n = tensor_count(y);
    CHECK_SAME_COUNT(y, x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i += RUN) {
        real room[2][RUN];
        size_t m = zmin(RUN, n - i);
        const real *a = run_of(x, i, m, room[0]);
        real *o = run_of(y, i, m, room[1]);
#pragma omp simd
        for (size_t k = 0; k < m; k++) o[k] += a[k];
        run_done(y, i, m, o);
    }
}
static void axpby(Run *r, Tensor y, double a, Tensor x, double b) {
    size_t n = tensor_count(y);
    CHECK_SAME_COUNT(y, x);
    if (measuring(r)) return;
    real *Y = R(y), s = (real)a, t = (real)b;
    const real *X = R(x);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) Y[i] = s * X[i] + t * Y[i];
}
enum { PIECE = 1 << 16 }; /* bytes that a thread copies or clears at once */
static void copy(Run *r, Tensor y, Tensor x) {
    if (measuring(r)) return;
    CHECK_SAME_COUNT(y, x);
    size_t n = tensor_bytes(y), count = tensor_count(y);
    if (y.dtype == x.dtype) {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > 4 * ALONE)
        for (size_t i = 0; i < n; i += PIECE) memcpy((char *)y.p + i, (const char *)x.p + i, zmin(PIECE, n - i));
    } else {
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (count > ALONE)
        for (size_t i = 0; i < count; i += RUN) {
            real room[RUN];
            size_t m = zmin(RUN, count - i);
            run_done(y, i, m, run_of(x, i, m, run_write(y, i, room))); /* expands into y itself */
        }
    }
}
static void round_to_bf16(Run *r, Tensor x) {
    if (measuring(r)) return;
    size_t n = tensor_count(x);
    real *o = R(x);
#pragma omp parallel for simd schedule(static) num_threads(r->dev->threads) if (n > ALONE)
    for (size_t i = 0; i < n; i++) o[i] = (real)bf16_to(bf16_from((float)o[i]));
}
/* y = H x / sqrt(n) in place, n a power of two. */
static void hadamard_piece(real *x, int n) {
    const real share = (real)(1 / sqrt((double)n));
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int k = i; k < i + h; k++) {
                const real a = x[k], b = x[k + h];
                x[k] = a + b, x[k + h] = a - b;
            }
    for (int k = 0; k < n; k++) x[k] *= share;
}
static void hadamard(Run *r, Tensor x) {
    const int n = hadamard_width(check_last(x));
    const long pieces = (long)(tensor_count(x) / (size_t)n);
    if (measuring(r) || n == 1) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (pieces * n > ALONE / 8)
    for (long i = 0; i < pieces; i++) {
        real room[HADAMARD_MOST], *piece = run_of(x, (size_t)i * (size_t)n, (size_t)n, room);
        hadamard_piece(piece, n);
        run_done(x, (size_t)i * (size_t)n, (size_t)n, piece);
    }
}
static void zero(Run *r, Tensor y) {
    if (measuring(r) || !present(y)) return;
    size_t n = tensor_bytes(y);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if (n > 4 * ALONE)
    for (size_t i = 0; i < n; i += PIECE) memset((char *)y.p + i, 0, zmin(PIECE, n - i));
}

static void gather(Run *r, Tensor y, Tensor x, RowList from, RowList to) {
    if (measuring(r)) return;
    if (from.n == to.n) { /* to lies inside from: all rows */
        for (int i = 0; i < to.n; i++)
            CHECK(from.idx[i] == to.idx[i], "row %d is not among the %d given", to.idx[i], from.n);
        copy(r, y, x);
        return;
    }
    CHECK_ALIKE(y, x);
    size_t w = to.n ? tensor_bytes(y) / (size_t)to.n : 0;
    for (int m = 0, i = 0; m < to.n; m++, i++) {
        while (i < from.n && from.idx[i] != to.idx[m]) i++;
        CHECK(i < from.n, "row %d is not among the %d given", to.idx[m], from.n);
        memcpy((char *)y.p + (size_t)m * w, (const char *)x.p + (size_t)i * w, w);
    }
}

static void columns(Run *r, Tensor y, int to, Tensor x, int from, int n) {
    int rows, k = check_columns(y, to, x, from, n, &rows);
    size_t wy = (size_t)check_last(y), wx = (size_t)check_last(x);
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)rows * n > ALONE)
    for (int i = 0; i < rows; i++)
        run_copy(y, (size_t)i * wy + (size_t)to, x, (size_t)(i / k) * wx + (size_t)from, (size_t)n);
}
static void columns_backward(Run *r, Into dx, int from, Tensor dy, int to, int n) {
    int rows, k = check_columns(dy, to, dx.t, from, n, &rows);
    size_t wy = (size_t)check_last(dy), wx = (size_t)check_last(dx.t);
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)rows * n > ALONE)
    for (int m = 0; m < rows / k; m++)
        for (int c0 = 0; c0 < n; c0 += RUN) {
            real room[2][RUN];
            size_t at = (size_t)m * wx + (size_t)(from + c0), w = (size_t)imin(RUN, n - c0);
            real *out = run_add(dx, at, w, room[0]);
            for (int i = m * k; i < (m + 1) * k; i++) {
                const real *g = run_of(dy, (size_t)i * wy + (size_t)(to + c0), w, room[1]);
#pragma omp simd
                for (size_t c = 0; c < w; c++) out[c] += g[c];
            }
            run_done(dx.t, at, w, out);
        }
}

static void dropout(Run *r, Tensor x, DropSite site, double p) {
    enum { DRAWS = 32 };
    if (p <= 0 || measuring(r)) return;
    int N = x.n[0];
    size_t d = tensor_count(x) / (size_t)imax(1, N);
    real keep = (real)(1 / (1 - p));
    uint64_t key = noise_key(r, site), below = (uint64_t)(p * 4294967296.0);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * (long)d > ALONE)
    for (int m = 0; m < N; m++) {
        uint64_t row = noise_row(r, key, r->out.idx[m]);
        real *xm = R(x) + (size_t)m * d;
        for (size_t k = 0; k < d; k += 2 * DRAWS) { /* one draw serves two columns */
            uint64_t bits[DRAWS];
            size_t n = zmin(2 * DRAWS, d - k);
#pragma omp simd
            for (size_t i = 0; i < DRAWS; i++) bits[i] = rng_mix(row, k + 2 * i);
            for (size_t i = 0; i < n; i++)
                xm[k + i] = (i % 2 ? bits[i / 2] >> 32 : bits[i / 2] & 0xFFFFFFFF) < below ? 0 : xm[k + i] * keep;
        }
    }
}
