/* merge.c: running means over runs of rows and their backward; the batch-invariant linear map. */
#include "vec.h"

static void linear_invariant(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias) {
    int O = w.n[0], d = w.n[1];
    check_linear_steady(y, x, w, bias);
    Mark mark = arena_mark(r->scratch);
    Tensor wide = x.dtype == BF16 ? SCRATCH(r, "a row in f32", r->dev->threads, d) : ABSENT;
    if (!measuring(r)) {
        int N = (int)(tensor_count(x) / (size_t)d);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)N * O * d > ALONE)
        for (int m = 0; m < N; m++) {
            real *out = R(y) + (size_t)m * (size_t)O;
            real *room = present(wide) ? R(wide) + (size_t)omp_get_thread_num() * (size_t)d : NULL;
            const real *row = run_of(x, (size_t)m * (size_t)d, (size_t)d, room);
            for (int o = 0; o < O; o++)
                out[o] = dot(row, R(w) + (size_t)o * (size_t)d, d) + (present(bias) ? R(bias)[o] : 0);
        }
    }
    arena_release(r->scratch, mark);
}

/* One lane of one sequence: the values at row t of x, a, w. */
typedef struct {
    const real *x, *a, *w; /* at row 0 of the batch */
    size_t row;            /* elements from a row of x to the next */
    int lanes, D;
} Strand;
static Strand strand(Tensor x, Tensor a, Tensor w, int h) {
    int lanes = x.n[1], D = x.n[2];
    return (Strand){R(x) + (size_t)h * (size_t)D, R(a) + h, R(w) + h, (size_t)lanes * (size_t)D, lanes, D};
}
static const real *x_at(const Strand *s, int t) { return s->x + (size_t)t * s->row; }
static real w_at(const Strand *s, int t) { return s->w[(size_t)t * (size_t)s->lanes]; }
/* The decision at row t; 0 at a document's first row, which merges with nothing. */
static real a_at(const Strand *s, const Batch *b, int t) {
    return b->first[t] == t ? 0 : s->a[(size_t)t * (size_t)s->lanes];
}

/* The rows that row t's mean consists of, newest first: their places and their weights p w. */
typedef struct {
    const real **x;
    real *c; /* both of `window` entries */
} Members;
static int members(Members k, const Strand *s, const Batch *b, int t, int window, const real *past, int rows, int C,
                   int at) {
    int n = 0, q = b->of[t], from = imax(b->first[t], b->off[q]);
    real p = 1;
    for (int j = t; j >= from && n < window; j--) {
        k.x[n] = x_at(s, j), k.c[n++] = p * w_at(s, j);
        if ((p *= a_at(s, b, j)) == 0) return n;
    }
    int older = b->first[t] < 0 && past ? imin(rows, b->pos[from]) : 0;
    for (int i = 1; i <= older && n < window && p != 0; i++) {
        const real *row = past + (size_t)(rows - i) * (size_t)C;
        k.x[n] = row + at, k.c[n++] = p * row[C - 2];
        p *= row[C - 1];
    }
    return n;
}

/* y = (a z'/z) y' + (w/z) x; y' NULL: nothing before. */
static real fold(real *y, const real *before, real z_before, real a, const real *x, real w, int D) {
    real z = (before ? a * z_before : 0) + w, old = before ? a * z_before / z : 0, new = w / z;
    if (old == 0)
        for (int k = 0; k < D; k++) y[k] = new *x[k];
    else
        for (int k = 0; k < D; k++) y[k] = old * before[k] + new *x[k];
    return z;
}

static void merge(Run *r, Tensor y, Tensor z, Tensor x, Tensor a, Tensor w, int window, Tensor past, int at) {
    const Batch *b = r->batch;
    int lanes = x.n[1], D = x.n[2], rows = present(past) ? past.n[2] : 0, C = present(past) ? past.n[3] : 0;
    check_merge(r, y, x);
    Mark mark = arena_mark(r->scratch);
    size_t each = (size_t)window * (sizeof(real) + sizeof(real *));
    char *mem = arena_take(r->scratch, each * (size_t)r->dev->threads, "merge weights");
    if (!measuring(r)) {
#pragma omp parallel for collapse(2) schedule(dynamic) \
    num_threads(r->dev->threads) if ((long)b->N * lanes * D * imax(1, window) > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < lanes; h++) {
                Strand in = strand(x, a, w, h);
                char *own = mem + each * (size_t)omp_get_thread_num();
                Members k = {(const real **)(void *)own, (real *)(void *)(own + (size_t)window * sizeof(real *))};
                const real *older =
                    rows ? R(past) + ((size_t)b->seq[s] * (size_t)lanes + (size_t)h) * (size_t)(rows * C) : NULL;
                real *Z = R(z) + h;
                for (int t = b->off[s]; t < b->off[s + 1]; t++) {
                    real *out = R(y) + (size_t)t * in.row + (size_t)h * (size_t)D, sum = 0;
                    if (!window) {
                        bool continues = b->first[t] < 0 && t == b->off[s];
                        const real *before = b->first[t] == t ? NULL : continues ? older + at : out - in.row;
                        real zb = !before ? 0 : continues ? older[C - 2] : Z[(size_t)(t - 1) * (size_t)lanes];
                        sum = fold(out, before, zb, a_at(&in, b, t), x_at(&in, t), w_at(&in, t), D);
                    } else {
                        int n = members(k, &in, b, t, window, older, rows, C, at);
                        for (int i = 0; i < n; i++) sum += k.c[i];
                        for (int i = 0; i < n; i++) {
                            real c = k.c[i] / sum;
                            const real *xi = k.x[i];
                            if (i == 0)
                                for (int e = 0; e < D; e++) out[e] = c * xi[e];
                            else
                                for (int e = 0; e < D; e++) out[e] += c * xi[e];
                        }
                    }
                    Z[(size_t)t * (size_t)lanes] = sum;
                }
            }
    }
    arena_release(r->scratch, mark);
}

typedef struct {
    Strand in;
    real *dx, *da, *dw; /* of the lane, at row 0 */
    const real *dy, *y, *z;
    real *mem; /* with a window: p and w e of the rows of one mean; without: the sums that go back, D */
} Unmerge;

/* Without a window: GN_t = dy_t/z_t + a_t+1 GN_t+1, GZ_t = -dy_t.y_t/z_t + a_t+1 GZ_t+1, then
 * dx_t = w_t GN_t, dw_t = x_t.GN_t + GZ_t, da_t = z_t-1 (y_t-1.GN_t + GZ_t). */
static void unmerge_all(const Unmerge *u, const Batch *b, int s) {
    int D = u->in.D, lanes = u->in.lanes;
    size_t row = u->in.row;
    real *gn = u->mem, gz = 0;
    memset(gn, 0, (size_t)D * sizeof(real));
    for (int t = b->off[s + 1] - 1; t >= b->off[s]; t--) {
        const real *dy = u->dy + (size_t)t * row, *y = u->y + (size_t)t * row, *x = x_at(&u->in, t);
        real next = t + 1 < b->off[s + 1] ? a_at(&u->in, b, t + 1) : 0, inv = 1 / u->z[(size_t)t * (size_t)lanes],
             w = w_at(&u->in, t), *dx = u->dx + (size_t)t * row;
        for (int k = 0; k < D; k++) {
            gn[k] = dy[k] * inv + next * gn[k];
            dx[k] += w * gn[k];
        }
        gz = -dot(dy, y, D) * inv + next * gz;
        u->dw[(size_t)t * (size_t)lanes] += dot(x, gn, D) + gz;
        if (b->first[t] != t)
            u->da[(size_t)t * (size_t)lanes] += u->z[(size_t)(t - 1) * (size_t)lanes] * (dot(y - row, gn, D) + gz);
    }
}
/* With a window: the rows j = t, t-1, .. of each mean, then the products without a_m by a sum that runs up from the
 * oldest: I_m = w_m-1 e_m-1 + a_m-1 I_m-1, da_m += p_tm I_m. */
static void unmerge_window(const Unmerge *u, const Batch *b, int s, int window) {
    int D = u->in.D, lanes = u->in.lanes;
    size_t row = u->in.row;
    real *p = u->mem, *we = p + window;
    for (int t = b->off[s]; t < b->off[s + 1]; t++) {
        const real *dy = u->dy + (size_t)t * row;
        real inv = 1 / u->z[(size_t)t * (size_t)lanes], mean = dot(dy, u->y + (size_t)t * row, D), sum = 0;
        int n = imin(window, t - b->first[t] + 1);
        p[0] = 1;
        for (int i = 0; i < n; i++) {
            int j = t - i;
            real w = w_at(&u->in, j), e = (dot(x_at(&u->in, j), dy, D) - mean) * inv, c = p[i] * w * inv,
                 *dx = u->dx + (size_t)j * row;
            for (int k = 0; k < D; k++) dx[k] += c * dy[k];
            u->dw[(size_t)j * (size_t)lanes] += p[i] * e;
            we[i] = w * e;
            if (i + 1 < n) p[i + 1] = p[i] * a_at(&u->in, b, j);
        }
        for (int i = n - 2; i >= 0; i--) {
            sum = we[i + 1] + a_at(&u->in, b, t - i - 1) * sum;
            u->da[(size_t)(t - i) * (size_t)lanes] += p[i] * sum;
        }
    }
}
static void merge_backward(Run *r, Tensor dx, Tensor da, Tensor dw, Tensor dy, Tensor x, Tensor y, Tensor z, Tensor a,
                           Tensor w, int window) {
    const Batch *b = r->batch;
    int lanes = x.n[1], D = x.n[2];
    check_merge_backward(r, y, x);
    Mark mark = arena_mark(r->scratch);
    Tensor mem = SCRATCH(r, "merge products", r->dev->threads, imax(D, 2 * window));
    if (!measuring(r)) {
#pragma omp parallel for collapse(2) schedule(dynamic) \
    num_threads(r->dev->threads) if ((long)b->N * lanes * D * imax(1, window) > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < lanes; h++) {
                size_t at = (size_t)h * (size_t)D;
                Unmerge u = {strand(x, a, w, h), R(dx) + at,
                             R(da) + h,          R(dw) + h,
                             R(dy) + at,         R(y) + at,
                             R(z) + h,           R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1]};
                if (window)
                    unmerge_window(&u, b, s, window);
                else
                    unmerge_all(&u, b, s);
            }
    }
    arena_release(r->scratch, mark);
}
