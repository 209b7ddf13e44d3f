/* groups.c: products of rows that are sorted into groups, each with its own matrix (the experts of a mixture).
 *
 * The number of rows of a group is only known at run time and changes with every pass. So f32 products do not use the
 * library, which prepares itself for each shape it meets. They are tiles of vec.h over packed blocks. A task is a
 * block of one group's result, which one thread sums in one order. */
#include "vec.h"

enum { PANEL = 64, DEPTH = 256, OUTS = 256, GROUP_FEW = 4 };

/* Write the groups that have rows, ascending, into `used`; returns how many. *most: rows of the largest. */
static int groups_used(Groups g, int *used, int *most) {
    int n = 0;
    *most = 0;
    for (int i = 0; i < g.n; i++) {
        int rows = g.off[i + 1] - g.off[i];
        CHECK(rows >= 0, "group %d has %d rows", i, rows);
        if (rows) used[n++] = i;
        *most = imax(*most, rows);
    }
    return n;
}
static int parts(int n, int of) { return (n + of - 1) / of; }

/* t (k,PANEL) = columns k0..k0+k-1 of n rows, ld apart, padded with zeros to w columns. A few columns at a time, so
 * that a cache line of each row is used up while it is cached. */
static void panel_rows(real *t, const real *x, size_t ld, int n, int w, int k) {
    enum { LINE = 16 };
    for (int i0 = 0; i0 < k; i0 += LINE) {
        int m = imin(LINE, k - i0);
        for (int j = 0; j < n; j++)
            for (int i = i0; i < i0 + m; i++) t[i * PANEL + j] = x[(size_t)j * ld + (size_t)i];
        for (int i = i0; i < i0 + m; i++)
            for (int j = n; j < w; j++) t[i * PANEL + j] = 0;
    }
}
/* t (k,PANEL) = k rows of w elements, ld apart. */
static void panel_columns(real *t, const real *x, size_t ld, int k, int w) {
    for (int i = 0; i < k; i++) memcpy(t + i * PANEL, x + (size_t)i * ld, (size_t)w * sizeof *t);
}

/* Compute `outs` outputs of n rows of y, from as many rows of w: the transpose of w x^T, for which only the few rows
 * are transposed. */
static void group_forward(real *y, const real *x, const real *w, int n, int outs, int O, int I, real *mem) {
    real *panel = mem, *c = mem + DEPTH * PANEL;
    int width = parts(n, VL) * VL;
    memset(c, 0, (size_t)outs * PANEL * sizeof *c);
    for (int k0 = 0; k0 < I; k0 += DEPTH) {
        int k = imin(DEPTH, I - k0);
        panel_rows(panel, x + k0, (size_t)I, n, width, k);
        tile_mm(c, PANEL, w + (size_t)k0, (size_t)I, 1, panel, PANEL, outs, k, width);
    }
    for (int i = 0; i < n; i++)
        for (int o = 0; o < outs; o++) y[(size_t)i * (size_t)O + (size_t)o] = c[o * PANEL + i];
}
/* ---- with operands in bf16: products of gemm.h, GEMM_JOBS groups to a call ---- */
/* Rows of group e of M. While measuring, those of the groups of one call, each of which is rounded up to blocks
 * separately. */
static int group_rows(const Run *r, Groups g, int e, int M) {
    if (!measuring(r)) return g.off[e + 1] - g.off[e];
    return e >= GEMM_JOBS ? 0 : e == 0 ? imax(M, GEMM_BF16_FEW + 1) : GEMM_BF16_FEW + 1;
}
/* The elements of a tensor of either type from `at` on. */
static void *where_at(Tensor t, size_t at) { return (char *)where(t) + at * dtype_size(t.dtype); }
static void rounded_groups(Run *r, Tensor y, Tensor x, Groups g, const Tensor *w) {
    GemmJob jobs[GEMM_JOBS];
    int O = w->n[0], I = w->n[1], n = 0;
    GemmShape s = {0, O, I, .lda = I, .ldb = I, .ldc = O, .tb = true, .weights = (int64_t)O * I};
    s.a_bf16 = x.dtype == BF16, s.c_bf16 = y.dtype == BF16;
    for (int few = 0; few < 2; few++) { /* groups with few rows are not in one call with others */
        for (int e = 0; e < g.n; e++) {
            size_t at = measuring(r) ? 0 : (size_t)g.off[e];
            s.M = group_rows(r, g, e, y.n[0]);
            if (!s.M || few != (s.M <= GEMM_BF16_FEW)) continue;
            s.b_bf16 = w[e].dtype == BF16;
            jobs[n] = (GemmJob){s, where_at(y, at * (size_t)O), where_at(x, at * (size_t)I), where(w[e]), n, n, n};
            if (++n == GEMM_JOBS) gemm_many(r->dev->gemm, r->scratch, n, jobs), n = 0;
        }
        gemm_many(r->dev->gemm, r->scratch, n, jobs), n = 0;
    }
}
static void rounded_groups_backward(Run *r, Into dx, Tensor *dw, Tensor dy, Tensor x, Groups g, const Tensor *w) {
    GemmJob in[GEMM_JOBS], weights[GEMM_JOBS];
    int O = w->n[0], I = w->n[1], n = 0, nin = 0, nweights = 0; /* n: groups in the current call */
    const int64_t numbers = (int64_t)O * I;
    GemmShape s = {0, I, O, .lda = O, .ldb = I, .ldc = I, .accumulate = !dx.overwrite, .weights = numbers},
              t = {O, I, 0, .lda = O, .ldb = I, .ldc = I, .ta = true, .accumulate = true, .weights = numbers};
    s.a_bf16 = t.a_bf16 = dy.dtype == BF16, s.c_bf16 = dx.t.dtype == BF16, t.b_bf16 = x.dtype == BF16;
    for (int e = 0; e <= g.n; e++) {
        if (n == GEMM_JOBS || e == g.n) {
            gemm_many(r->dev->gemm, r->scratch, nin, in);
            gemm_many(r->dev->gemm, r->scratch, nweights, weights);
            n = nin = nweights = 0;
        }
        int rows = e < g.n ? group_rows(r, g, e, dy.n[0]) : 0;
        if (!rows) continue;
        size_t at = measuring(r) ? 0 : (size_t)g.off[e];
        const void *dye = where_at(dy, at * (size_t)O);
        s.M = t.K = rows;
        s.b_bf16 = w[e].dtype == BF16;
        if (present(dx.t)) in[nin++] = (GemmJob){s, where_at(dx.t, at * (size_t)I), dye, where(w[e]), n, n, n};
        if (dw && present(dw[e]))
            weights[nweights++] = (GemmJob){t, R(dw[e]), dye, where_at(x, at * (size_t)I), n, n, n};
        n++;
    }
}
static void linear_groups(Run *r, Tensor y, Tensor x, Groups g, const Tensor *w) {
    int O = w[0].n[0], I = w[0].n[1], M = y.n[0], threads = r->dev->threads, most;
    check_linear_groups(y, x, ABSENT, w[0]);
    if (rounds_rows(r, w[0], x.dtype)) { /* otherwise they are tiles of vec.h */
        rounded_groups(r, y, x, g, w);
        return;
    }
    Mark mark = arena_mark(r->scratch);
    Tensor wide = y.dtype == BF16 ? SCRATCH(r, "y in f32", M, O) : y;
    x = in_reals(r, "x in f32", x);
    Tensor mem = SCRATCH(r, "group panels", threads, DEPTH + OUTS, PANEL);
    bool any = false;
    for (int e = 0; e < g.n; e++) any |= w[e].dtype == BF16;
    Tensor wide_w = any ? SCRATCH(r, "experts' weights widened", threads, imin(O, OUTS), I) : ABSENT;
    int *used = arena_take(r->scratch, (size_t)g.n * sizeof *used, "groups");
    if (!measuring(r)) {
        CHECK(g.off[0] == 0 && g.off[g.n] == M, "%d rows in groups, %d given", g.off[g.n], M);
        int n = groups_used(g, used, &most), panels = parts(most, PANEL), blocks = parts(O, OUTS);
#pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads) if ((double)M * O * I > ALONE)
        for (int u = 0; u < n; u++)
            for (int b = 0; b < blocks; b++)
                for (int p = 0; p < panels; p++) {
                    int m0 = g.off[used[u]], rows = g.off[used[u] + 1] - m0, o0 = b * OUTS, outs = imin(OUTS, O - o0);
                    const size_t own = (size_t)omp_get_thread_num(), at = (size_t)o0 * (size_t)I;
                    if (p * PANEL >= rows) continue;
                    const Tensor wu = w[used[u]];
                    const bool is_bf16 = wu.dtype == BF16;
                    real *room = is_bf16 ? R(wide_w) + own * (size_t)wide_w.n[1] * (size_t)I : NULL;
                    const real *we = is_bf16 ? room : R(wu) + at;
                    if (is_bf16) widened(room, (const uint16_t *)wu.p + at, (size_t)outs * (size_t)I);
                    m0 += p * PANEL;
                    real *ym = R(wide) + (size_t)m0 * (size_t)O + o0;
                    const real *xm = R(x) + (size_t)m0 * (size_t)I;
                    if (rows <= GROUP_FEW)
                        few_rows(ym, xm, we, rows, 0, outs, O, I);
                    else
                        group_forward(ym, xm, we, imin(PANEL, rows - p * PANEL), outs, O, I,
                                      R(mem) + own * (DEPTH + OUTS) * PANEL);
                }
    }
    out_of_reals(r, y, wide);
    arena_release(r->scratch, mark);
}

/* Columns c0..c0+w-1 of n rows of dx = or += dy we. */
static void group_dx(real *dx, bool overwrite, const real *dy, Tensor we, int n, int c0, int w, int O, int I,
                     real *panel) {
    for (int i = 0; i < n && overwrite; i++) memset(dx + (size_t)i * (size_t)I + c0, 0, (size_t)w * sizeof *dx);
    for (int k0 = 0; k0 < O; k0 += DEPTH) {
        int k = imin(DEPTH, O - k0);
        size_t at = (size_t)k0 * (size_t)I + (size_t)c0, ldb = (size_t)I;
        const real *b = we.dtype == BF16 ? panel : R(we) + at;
        if (we.dtype == BF16) {
            for (int i = 0; i < k; i++)
                widened(panel + i * PANEL, (const uint16_t *)we.p + at + (size_t)i * (size_t)I, (size_t)w);
            ldb = PANEL;
        } else if (n > TILE_ROWS) { /* every tile of rows reads it again */
            panel_columns(panel, b, ldb, k, w);
            b = panel, ldb = PANEL;
        }
        tile_mm(dx + c0, (size_t)I, dy + k0, (size_t)O, 1, b, ldb, n, k, w);
    }
}
/* Rows o0..o0+outs-1 of dwe += dy^T x over n rows. */
static void group_dw(real *dwe, const real *dy, const real *x, int n, int o0, int outs, int O, int I, real *mem) {
    real *a = mem, *panel = mem + PANEL * DEPTH;
    for (int k0 = 0; k0 < n; k0 += DEPTH) {
        int k = imin(DEPTH, n - k0);
        panel_columns(a, dy + (size_t)k0 * (size_t)O + (size_t)o0, (size_t)O, k, outs);
        for (int c0 = 0; c0 < I; c0 += PANEL) {
            int w = imin(PANEL, I - c0);
            panel_columns(panel, x + (size_t)k0 * (size_t)I + (size_t)c0, (size_t)I, k, w);
            tile_mm(dwe + (size_t)o0 * (size_t)I + (size_t)c0, (size_t)I, a, 1, PANEL, panel, PANEL, outs, k, w);
        }
    }
}
static void linear_groups_backward(Run *r, Into dx, Tensor *dw, Tensor dy, Tensor x, Groups g, const Tensor *w) {
    int O = w[0].n[0], I = w[0].n[1], M = dy.n[0], threads = r->dev->threads, most;
    check_linear_groups(dy, x, dx.t, w[0]);
    if (rounds_rows(r, w[0], x.dtype == BF16 ? BF16 : dy.dtype)) {
        rounded_groups_backward(r, dx, dw, dy, x, g, w);
        return;
    }
    Mark mark = arena_mark(r->scratch);
    Tensor sum = dx.t;
    if (dx.t.dtype == BF16) sum = dx.overwrite ? SCRATCH(r, "dx in f32", M, I) : in_reals(r, "dx in f32", dx.t);
    if (dw) x = in_reals(r, "x in f32", x);
    dy = in_reals(r, "dy in f32", dy);
    Tensor mem = SCRATCH(r, "group panels", threads, 2 * DEPTH, PANEL);
    int *used = arena_take(r->scratch, (size_t)g.n * sizeof *used, "groups");
    if (!measuring(r)) {
        CHECK(g.off[0] == 0 && g.off[g.n] == M, "%d rows in groups, %d given", g.off[g.n], M);
        int n = groups_used(g, used, &most), strips = present(dx.t) ? parts(I, PANEL) : 0;
        int tasks = strips + (dw ? parts(O, PANEL) : 0);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads) if ((double)M * O * I > ALONE)
        for (int u = 0; u < n; u++)
            for (int t = 0; t < tasks; t++) {
                int m0 = g.off[used[u]], rows = g.off[used[u] + 1] - m0, at = (t < strips ? t : t - strips) * PANEL;
                real *own = R(mem) + (size_t)omp_get_thread_num() * 2 * DEPTH * PANEL;
                const real *dym = R(dy) + (size_t)m0 * (size_t)O;
                size_t xm = (size_t)m0 * (size_t)I;
                if (t < strips)
                    group_dx(R(sum) + xm, dx.overwrite, dym, w[used[u]], rows, at, imin(PANEL, I - at), O, I, own);
                else if (present(dw[used[u]]))
                    group_dw(R(dw[used[u]]), dym, R(x) + xm, rows, at, imin(PANEL, O - at), O, I, own);
            }
    }
    if (present(dx.t)) out_of_reals(r, dx.t, sum);
    arena_release(r->scratch, mark);
}

static void move(Run *r, Tensor y, const size_t *to, Tensor x, const size_t *from, int n, int w) {
    size_t width = (size_t)w;
    if (measuring(r)) return;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)n * w > ALONE)
    for (int i = 0; i < n; i++) {
        check_piece(i, y, to[i], x, from[i], width);
        run_copy(y, to[i], x, from[i], width);
    }
}
static void spread(Run *r, Tensor y, Tensor x, const int *row) {
    if (measuring(r)) return;
    int M = y.n[0], d = y.n[1];
    size_t width = (size_t)d;
    CHECK_SAME_WIDTH(y, x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * d > ALONE)
    for (int j = 0; j < M; j++) {
        CHECK(row[j] >= 0 && row[j] < x.n[0], "row %d of %d", row[j], x.n[0]);
        run_copy(y, (size_t)j * width, x, (size_t)row[j] * width, width);
    }
}
static void collect(Run *r, Into y, Tensor x, const int *place, int k) {
    if (measuring(r)) return;
    int N = y.t.n[0], d = y.t.n[1];
    CHECK_SAME_WIDTH(y.t, x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * k * d > ALONE)
    for (int i = 0; i < N; i++)
        for (int c = 0; c < d; c += RUN) {
            real room[2][RUN];
            size_t m = zmin(RUN, (size_t)(d - c)), to = (size_t)i * (size_t)d + (size_t)c;
            real *sum = run_add(y, to, m, room[0]);
            for (int j = 0; j < k; j++) {
                int at = place[(size_t)i * (size_t)k + (size_t)j];
                CHECK(at >= 0 && at < x.n[0], "row %d of %d", at, x.n[0]);
                const real *xj = run_of(x, (size_t)at * (size_t)d + (size_t)c, m, room[1]);
#pragma omp simd
                for (size_t n = 0; n < m; n++) sum[n] += xj[n];
            }
            run_done(y.t, to, m, sum);
        }
}

static void swiglu_rows(Run *r, Tensor y, Tensor gate, Tensor up, Tensor s) {
    CHECK_ALIKE(y, gate, up);
    if (measuring(r)) return;
    int M = y.n[0], F = y.n[1];
    check_swiglu_rows(y, s, ABSENT);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * F > ALONE)
    for (int j = 0; j < M; j++)
        for (int c = 0; c < F; c += RUN) {
            real room[3][RUN], sj = R(s)[j];
            size_t m = zmin(RUN, (size_t)(F - c)), at = (size_t)j * (size_t)F + (size_t)c;
            const real *a = run_of(gate, at, m, room[0]), *b = run_of(up, at, m, room[1]);
            real *o = run_write(y, at, room[2]);
#pragma omp simd
            for (size_t i = 0; i < m; i++) o[i] = sj * (a[i] / (1 + exp_real(-a[i])) * b[i]);
            run_done(y, at, m, o);
        }
}
static void swiglu_rows_backward(Run *r, Into dgate, Into dup, Into ds, Tensor dy, Tensor gate, Tensor up, Tensor s) {
    CHECK_ALIKE(dgate.t, dup.t, dy, gate, up);
    if (measuring(r)) return;
    int M = dy.n[0], F = dy.n[1];
    check_swiglu_rows(dy, s, ds.t);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * F > ALONE)
    for (int j = 0; j < M; j++) {
        real sj = R(s)[j], sum = 0;
        for (int c = 0; c < F; c += RUN) {
            real room[5][RUN], part = 0;
            size_t m = zmin(RUN, (size_t)(F - c)), at = (size_t)j * (size_t)F + (size_t)c;
            const real *a = run_of(gate, at, m, room[0]), *b = run_of(up, at, m, room[1]),
                       *g = run_of(dy, at, m, room[2]);
            real *da = run_add(dgate, at, m, room[3]), *db = run_add(dup, at, m, room[4]);
#pragma omp simd reduction(+ : part)
            for (size_t i = 0; i < m; i++) {
                real ga, gb;
                part += g[i] * swiglu_grad(&ga, &gb, g[i] * sj, a[i], b[i]);
                da[i] += ga, db[i] += gb;
            }
            sum += part;
            run_done(dgate.t, at, m, da), run_done(dup.t, at, m, db);
        }
        R(ds.t)[j] = ds.overwrite ? sum : R(ds.t)[j] + sum;
    }
}

static void relu2(Run *r, Tensor y, Tensor x, Tensor s) {
    CHECK_ALIKE(y, x);
    if (measuring(r)) return;
    int M = y.n[0], F = y.n[1];
    if (present(s)) check_swiglu_rows(y, s, ABSENT);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * F > ALONE)
    for (int j = 0; j < M; j++)
        for (int c = 0; c < F; c += RUN) {
            real room[2][RUN], sj = present(s) ? R(s)[j] : 1;
            size_t m = zmin(RUN, (size_t)(F - c)), at = (size_t)j * (size_t)F + (size_t)c;
            const real *a = run_of(x, at, m, room[0]);
            real *o = run_write(y, at, room[1]);
#pragma omp simd
            for (size_t i = 0; i < m; i++) o[i] = a[i] < 0 ? 0 : sj * (a[i] * a[i]);
            run_done(y, at, m, o);
        }
}
static void relu2_backward(Run *r, Into dx, Into ds, Tensor dy, Tensor x, Tensor s) {
    CHECK_ALIKE(dx.t, dy, x);
    if (measuring(r)) return;
    int M = dy.n[0], F = dy.n[1];
    if (present(s)) check_swiglu_rows(dy, s, ds.t);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * F > ALONE)
    for (int j = 0; j < M; j++) {
        real sj = present(s) ? R(s)[j] : 1, sum = 0;
        for (int c = 0; c < F; c += RUN) {
            real room[3][RUN], part = 0;
            size_t m = zmin(RUN, (size_t)(F - c)), at = (size_t)j * (size_t)F + (size_t)c;
            const real *a = run_of(x, at, m, room[0]), *g = run_of(dy, at, m, room[1]);
            real *d = run_add(dx, at, m, room[2]);
#pragma omp simd reduction(+ : part)
            for (size_t i = 0; i < m; i++) {
                const real v = a[i] < 0 ? 0 : a[i];
                part += g[i] * (v * v);
                d[i] += 2 * sj * v * g[i];
            }
            sum += part;
            run_done(dx.t, at, m, d);
        }
        if (present(ds.t)) R(ds.t)[j] = ds.overwrite ? sum : R(ds.t)[j] + sum;
    }
}

static void swiglu_limit(Run *r, Tensor y, Tensor gate, Tensor up, Tensor s, double alpha_, double limit_) {
    CHECK_ALIKE(y, gate, up);
    if (measuring(r)) return;
    int M = y.n[0], F = y.n[1];
    const real alpha = (real)alpha_, limit = (real)limit_;
    check_swiglu_rows(y, s, ABSENT);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * F > ALONE)
    for (int j = 0; j < M; j++)
        for (int c = 0; c < F; c += RUN) {
            real room[3][RUN], sj = R(s)[j];
            size_t m = zmin(RUN, (size_t)(F - c)), at = (size_t)j * (size_t)F + (size_t)c;
            const real *a = run_of(gate, at, m, room[0]), *b = run_of(up, at, m, room[1]);
            real *o = run_write(y, at, room[2]);
#pragma omp simd
            for (size_t i = 0; i < m; i++) {
                const real v = a[i] > limit ? limit : a[i], u = b[i] > limit ? limit : b[i] < -limit ? -limit : b[i];
                o[i] = sj * ((u + 1) * v / (1 + exp_real(-alpha * v)));
            }
            run_done(y, at, m, o);
        }
}
static void swiglu_limit_backward(Run *r, Into dgate, Into dup, Into ds, Tensor dy, Tensor gate, Tensor up, Tensor s,
                                  double alpha_, double limit_) {
    CHECK_ALIKE(dgate.t, dup.t, dy, gate, up);
    if (measuring(r)) return;
    int M = dy.n[0], F = dy.n[1];
    const real alpha = (real)alpha_, limit = (real)limit_;
    check_swiglu_rows(dy, s, ds.t);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)M * F > ALONE)
    for (int j = 0; j < M; j++) {
        real sj = R(s)[j], sum = 0;
        for (int c = 0; c < F; c += RUN) {
            real room[5][RUN], part = 0;
            size_t m = zmin(RUN, (size_t)(F - c)), at = (size_t)j * (size_t)F + (size_t)c;
            const real *a = run_of(gate, at, m, room[0]), *b = run_of(up, at, m, room[1]),
                       *g = run_of(dy, at, m, room[2]);
            real *da = run_add(dgate, at, m, room[3]), *db = run_add(dup, at, m, room[4]);
#pragma omp simd reduction(+ : part)
            for (size_t i = 0; i < m; i++) {
                const real v = a[i] > limit ? limit : a[i], u = b[i] > limit ? limit : b[i] < -limit ? -limit : b[i];
                const real share = 1 / (1 + exp_real(-alpha * v)), to_a = a[i] <= limit ? 1 : 0,
                           to_b = b[i] <= limit && b[i] >= -limit ? 1 : 0;
                part += g[i] * (u + 1) * v * share;
                da[i] += to_a * sj * g[i] * (u + 1) * share * (1 + alpha * v * (1 - share));
                db[i] += to_b * sj * g[i] * v * share;
            }
            sum += part;
            run_done(dgate.t, at, m, da), run_done(dup.t, at, m, db);
        }
        R(ds.t)[j] = ds.overwrite ? sum : R(ds.t)[j] + sum;
    }
}
