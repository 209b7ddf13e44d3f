/* rotate.c: rotary position embedding, in place. */
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

static void rope(Run *r, Tensor x, const Rope *p, Pick rows, int sign) {
    if (p->n == 0 || rows.n == 0) return;
    CHECK(x.rank == 3 && x.n[0] == rows.n && p->at >= 0 && p->at + p->n <= x.n[2], "rows %d of %d, %d..%d of %d",
          x.n[0], rows.n, p->at, p->at + p->n, x.n[2]);
    Mark mark = arena_mark(r->scratch);
    int half = p->n / 2, N = rows.n, heads = x.n[1], D = x.n[2];
    Tensor cs = SCRATCH(r, "rope angles", N, p->n);
    if (!measuring(r)) {
        const int *pos = r->batch->pos;
        int lo = pos[rows.idx[0]], hi = lo;
        for (int m = 0; m < N; m++) lo = imin(lo, pos[rows.idx[m]]), hi = imax(hi, pos[rows.idx[m]]);
        /* Samples of a batch share positions: one entry a position when that is fewer than one a row. */
        bool shared = hi - lo < N;
        int entries = shared ? hi - lo + 1 : N;
#pragma omp parallel num_threads(r->dev->threads) if ((long)N * heads * D > ALONE)
        {
#pragma omp for schedule(static)
            for (int e = 0; e < entries; e++) {
                real *c = R(cs) + (size_t)e * (size_t)p->n;
                double at = shared ? lo + e : pos[rows.idx[e]];
                for (int i = 0; i < half; i++) {
                    double co, si;
                    sincos(at * p->f[i], &si, &co);
                    c[i] = (real)(co * p->factor);
                    c[half + i] = (real)(sign * si * p->factor);
                }
            }
#pragma omp for schedule(static)
            for (int m = 0; m < N; m++) {
                const real *c = R(cs) + (size_t)(shared ? pos[rows.idx[m]] - lo : m) * (size_t)p->n;
                for (int h = 0; h < heads; h++) {
                    real room[2 * ROPE_PAIRS];
                    size_t at = ((size_t)m * (size_t)heads + (size_t)h) * (size_t)D + (size_t)p->at, n = (size_t)p->n;
                    real *head = run_of(x, at, n, room);
                    rotate_head(head, c, half, p->interleaved);
                    run_done(x, at, n, head);
                }
            }
        }
    }
    arena_release(r->scratch, mark);
}
