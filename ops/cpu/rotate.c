/* rotate.c: rotary position embedding, in place, or of heads that are RMS-normed first (norm.c). */
#include "vec.h"

static void rotate_head(real *x, const real *cs, int half, bool interleaved) {
    const real *c = cs, *s = cs + half;
    if (interleaved)
        for (int i = 0; i < half; i++) {
            real a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * c[i] - b * s[i];
            x[2 * i + 1] = a * s[i] + b * c[i];
        }
    else
        for (int i = 0; i < half; i++) {
            real a = x[i], b = x[i + half];
            x[i] = a * c[i] - b * s[i];
            x[i + half] = a * s[i] + b * c[i];
        }
}

/* The angles of the rows of a pass: n elements an entry, cosines first. Samples of a batch share positions, so there
 * is one entry per position if that is fewer than one per row. */
typedef struct {
    Tensor cs;
    const int *pos, *idx;
    int entries, lo;
    bool shared;
} Angles;
static Angles angles_take(Run *r, const Rope *p, RowList rows) {
    Angles a = {.cs = SCRATCH(r, "rope angles", rows.n, p->n), .idx = rows.idx, .entries = rows.n};
    if (measuring(r)) return a;
    a.pos = r->batch->pos;
    int lo = a.pos[a.idx[0]], hi = lo;
    for (int m = 0; m < rows.n; m++) lo = imin(lo, a.pos[a.idx[m]]), hi = imax(hi, a.pos[a.idx[m]]);
    a.lo = lo, a.shared = hi - lo < rows.n;
    if (a.shared) a.entries = hi - lo + 1;
    return a;
}
/* Called by all threads of a region; none continues before all angles are made. */
static void angles_make(const Angles *a, const Rope *p, int sign) {
    const int half = p->n / 2;
#pragma omp for schedule(static)
    for (int e = 0; e < a->entries; e++) {
        real *c = R(a->cs) + (size_t)e * (size_t)p->n;
        double at = a->shared ? a->lo + e : a->pos[a->idx[e]];
        for (int i = 0; i < half; i++) {
            double co, si;
            sincos(at * p->f[i], &si, &co);
            c[i] = (real)(co * p->factor);
            c[half + i] = (real)(sign * si * p->factor);
        }
    }
}
INLINE const real *angles_of(const Angles *a, const Rope *p, int m) {
    return R(a->cs) + (size_t)(a->shared ? a->pos[a->idx[m]] - a->lo : m) * (size_t)p->n;
}

static void rope(Run *r, Tensor x, const Rope *p, RowList rows, int sign) {
    if (p->n == 0 || rows.n == 0) return;
    check_rope(x, p, rows);
    Mark mark = arena_mark(r->scratch);
    int N = rows.n, heads = x.n[1], D = x.n[2];
    Angles a = angles_take(r, p, rows);
    if (!measuring(r)) {
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * heads * D > ALONE)
        {
            angles_make(&a, p, sign);
#pragma omp for schedule(static)
            for (int m = 0; m < N; m++) {
                const real *c = angles_of(&a, p, m);
                for (int h = 0; h < heads; h++) {
                    real room[2 * ROPE_PAIRS];
                    size_t at = ((size_t)m * (size_t)heads + (size_t)h) * (size_t)D + (size_t)p->at, n = (size_t)p->n;
                    real *head = run_of(x, at, n, room);
                    rotate_head(head, c, p->n / 2, p->interleaved);
                    run_done(x, at, n, head);
                }
            }
        }
    }
    arena_release(r->scratch, mark);
}

static void rmsnorm_rope(Run *r, Tensor y, Tensor rstd, Tensor x, Tensor w, double eps, const Rope *p, RowList rows) {
    if (rows.n == 0) return;
    check_rmsnorm_rope(x, y, w, rstd, p, rows);
    Mark mark = arena_mark(r->scratch);
    int N = rows.n, heads = x.n[1], D = x.n[2];
    Angles a = angles_take(r, p, rows);
    if (!measuring(r)) {
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * heads * D > ALONE)
        {
            angles_make(&a, p, 1);
#pragma omp for schedule(static)
            for (int m = 0; m < N; m++) {
                const real *c = angles_of(&a, p, m);
                for (int h = 0; h < heads; h++) {
                    real room[2][HEAD_WIDEST];
                    size_t head = (size_t)m * (size_t)heads + (size_t)h, at = head * (size_t)D, n = (size_t)D;
                    const real *xi = run_of(x, at, n, room[0]);
                    real *yi = run_write(y, at, room[1]), s = R(rstd)[head] = rstd_of(dot(xi, xi, D), D, eps);
                    rms_scale(yi, xi, R(w), s, n);
                    rotate_head(yi + p->at, c, p->n / 2, p->interleaved);
                    run_done(y, at, n, yi);
                }
            }
        }
    }
    arena_release(r->scratch, mark);
}
static void rmsnorm_rope_backward(Run *r, Into dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd, const Rope *p,
                                  RowList rows) {
    int N = rows.n, size = rows_of_block(N);
    if (N == 0) return;
    check_rmsnorm_rope(x, dy, w, rstd, p, rows);
    CHECK_ALIKE(dx.t, x);
    Mark mark = arena_mark(r->scratch);
    int heads = x.n[1], D = x.n[2];
    Angles a = angles_take(r, p, rows);
    Tensor sums = SCRATCH(r, "sums of blocks", blocks_of(N), D);
    if (!measuring(r)) {
        real *part = R(sums), *total = R(dw);
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * heads * D > ALONE)
        {
            angles_make(&a, p, -1);
#pragma omp for schedule(static)
            for (int i0 = 0; i0 < N; i0 += size) {
                real *own = part + (size_t)(i0 / size) * (size_t)D;
                memset(own, 0, (size_t)D * sizeof *own);
                for (int i = i0 * heads; i < imin(N, i0 + size) * heads; i++) {
                    real room[2][HEAD_WIDEST], g[HEAD_WIDEST], s = R(rstd)[i];
                    size_t at = (size_t)i * (size_t)D, n = (size_t)D;
                    if (dy.dtype == BF16)
                        run_of(dy, at, n, g);
                    else
                        memcpy(g, R(dy) + at, n * sizeof *g); /* dy must stay unchanged */
                    rotate_head(g + p->at, angles_of(&a, p, i / heads), p->n / 2, p->interleaved);
                    const real *xi = run_of(x, at, n, room[0]);
                    real *out = run_add(dx, at, n, room[1]);
                    rms_add(out, own, g, R(w), xi, s, rms_dot(g, R(w), xi, n) * s * s * s / (real)D, n);
                    run_done(dx.t, at, n, out);
                }
            }
#pragma omp for schedule(static)
            for (int c = 0; c < D; c += 64) add_blocks(total, part, N, c, imin(64, D - c), D);
        }
    }
    arena_release(r->scratch, mark);
}
