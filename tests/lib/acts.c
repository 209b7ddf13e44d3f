/* acts.c: see acts.h. */
#include "acts.h"

const double op_rms = 4e-3;
double seen;

static void desk_open(Desk *d, Table table, int threads, int N) {
    Err e = {0};
    *d = (Desk){.off = {0, N}, .id = 5};
    rig_open(&d->g, table, threads, (size_t)32 << 20);
    cr_assert(device_open(&d->cpu, "cpu", 1, &e), "%s", e.msg);
    if (!cuda_ops()) d->cpu->ops = table.ops; /* elementwise ops then differ by the rounding alone */
#ifndef KV_DOUBLE
    cr_assert(device_bf16(d->g.dev, true, &e), "%s", e.msg);
#endif
    if (!cuda_ops()) d->cpu->pairs = d->g.dev->pairs, d->cpu->pair_product = table.pairs; /* and so do products */
    d->of = xcalloc((size_t)N, sizeof *d->of), d->at = xcalloc((size_t)N, sizeof *d->at);
    d->first = xcalloc((size_t)N, sizeof *d->first);
    for (int i = 0; i < N; i++) d->at[i] = i;
    d->g.batch = (Batch){.B = 1, .N = N, .off = d->off, .of = d->of, .pos = d->at, .first = d->first, .id = &d->id};
    d->ref = run_make(d->cpu, &d->scratch);
    d->ref.batch = &d->g.batch;
    d->g.run.in = d->g.run.out = d->ref.in = d->ref.out = (RowList){N, d->at};
}
static void desk_close(Desk *d) {
    Err e = {0};
    device_bf16(d->g.dev, false, &e);
    rig_close(&d->g);
    device_close(d->cpu);
    free(d->of), free(d->at), free(d->first);
}
void everywhere(void (*f)(Desk *, Size), Size s) {
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        uint64_t alone = 0;
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Desk d;
            desk_open(&d, tables[k], threads, s.N);
            f(&d, s);
            if (threads == 1) alone = d.g.hash;
            cr_assert(d.g.hash == alone, "%s: %d threads give another result for %d rows of %d", d.g.table, threads,
                      s.N, s.width);
            desk_close(&d);
        }
    }
}

Tensor bf16_empty(Desk *d, Tensor like) { return arena_tensor(&d->g.mem, "in bf16", BF16, like.rank, like.n); }
Tensor empty(Desk *d, Tensor like) { return arena_tensor(&d->g.mem, "wide", REAL, like.rank, like.n); }
Tensor bf16_of_tensor(Desk *d, Tensor t) {
    Tensor h = bf16_empty(d, t);
    for (size_t i = 0, n = tensor_count(t); i < n; i++) {
        ((uint16_t *)h.p)[i] = bf16_from((float)R(t)[i]);
        R(t)[i] = bf16_to(((uint16_t *)h.p)[i]);
    }
    return h;
}
Tensor zeros(Desk *d, Tensor like) {
    Tensor t = like.dtype == BF16 ? bf16_empty(d, like) : empty(d, like);
    memset(t.p, 0, tensor_bytes(t));
    return t;
}
Sum sum_make(Desk *d, Tensor like, const char *name, bool overwrite) {
    Sum s = {.real = rig_random(empty(d, like), name), .overwrite = overwrite};
    if (overwrite) {
        memset(s.real.p, 0, tensor_bytes(s.real));
        s.bf16 = bf16_empty(d, like);
    } else
        s.bf16 = bf16_of_tensor(d, s.real);
    return s;
}

/* All elements of t; give them back to free. */
static real *elements(Tensor t) {
    const size_t n = tensor_count(t);
    real *x = xcalloc(n, sizeof *x);
    tensor_read(t, 0, n, x);
    return x;
}
static double distance(Tensor got, Tensor want) {
    real *x = elements(got);
    const real *y = R(want);
    double e = 0, s = 0;
    for (size_t i = 0, n = tensor_count(want); i < n; i++) {
        const double off = (double)x[i] - (double)y[i];
        e += off * off, s += (double)y[i] * (double)y[i];
    }
    free(x);
    return sqrt(e / s);
}
void right_within(Desk *d, const char *what, Tensor got, Tensor want, double bound) {
    double e = distance(got, want);
    rig_result(&d->g, got);
    check_log(what, e, bound, 0, tensor_count(want));
    cr_assert(e <= bound, "%s: %s (%d,%d): %.3g", d->g.table, what, want.n[0], want.rank > 1 ? want.n[1] : 0, e);
    seen = fmax(seen, e);
}
void right(Desk *d, const char *what, Tensor got, Tensor want) { right_within(d, what, got, want, op_rms); }
void nearest(Desk *d, const char *what, Tensor got, Tensor want) {
    real *x = elements(got);
    rig_result(&d->g, got);
    for (size_t i = 0, n = tensor_count(got); i < n; i++) {
        const real near = got.dtype == BF16 ? bf16_to(bf16_from((float)R(want)[i])) : R(want)[i];
        if (x[i] != near)
            cr_assert_fail("%s: %s: element %zu is %g instead of %g", d->g.table, what, i, (double)x[i], (double)near);
    }
    free(x);
}
void exact(Desk *d, const char *what, Tensor got, Tensor want) {
    right(d, what, got, want);
    if (!cuda_ops()) nearest(d, what, got, want);
}
void wrong_within(const char *what, Tensor got, Tensor other, double bound) {
    double e = distance(got, other);
    cr_assert(e > 10 * bound, "%s goes unnoticed: %.3g", what, e);
}
void wrong(const char *what, Tensor got, Tensor other) { wrong_within(what, got, other, op_rms); }
