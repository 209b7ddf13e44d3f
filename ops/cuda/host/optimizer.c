/* optimizer.c: the optimizer's ops of the CUDA backend, over many tensors at once: steps, norms. As in table.c. */
#include "table.h"

/* True if the state that a rule rounds is BF16. */
static bool optimizer_rounds(const AdamwStep *a) {
    return (a->rule == UPDATE_SCHEDULE_FREE ? a->v : a->m).dtype == BF16;
}
static void *numbers_of(Tensor t) { return !present(t) ? NULL : t.dtype == BF16 ? t.p : R(t); }
static CudaAdamOf adamw_of(Run *r, const AdamwStep *a, size_t first) {
    const bool adamw = a->rule == UPDATE_ADAMW, averages = a->rule == UPDATE_SCHEDULE_FREE;
    CHECK(first <= INT32_MAX, "%zu pieces", first);
    CudaAdamOf x = {.w = R(a->w),
                    .shadow = shadow_written(r->dev, a->w.p, tensor_count(a->w)),
                    .g = R(a->g),
                    .m = a->rule == UPDATE_SCHEDULE_FREE ? R(a->m) : numbers_of(a->m),
                    .v = a->rule == UPDATE_LION ? NULL : numbers_of(a->v),
                    .x = a->rule == UPDATE_SCHEDULE_FREE ? R(a->x) : NULL,
                    .n = tensor_count(a->w),
                    .first = (unsigned)first,
                    .p = {.b1 = (float)a->b1,
                          .b2 = (float)a->b2,
                          .one_b1 = (float)(1 - a->b1),
                          .one_b2 = (float)(1 - a->b2),
                          .step = (float)(adamw ? a->lr / (1 - pow(a->b1, (double)a->t)) : a->lr),
                          .eps = (float)a->eps},
                    .round = {a->round.key, a->round.at},
                    .gscale = a->gscale,
                    .most = a->most,
                    .square = a->square};
    if (averages)
        x.p.share = (float)a->share, x.p.decay = (float)a->decay;
    else
        x.p.root = (float)(1 / sqrt(1 - pow(a->b2, (double)a->t))), x.p.shrink = (float)(1 - a->lr * a->decay);
    uintptr_t all =
        (uintptr_t)x.w | (uintptr_t)x.shadow | (uintptr_t)x.g | (uintptr_t)x.m | (uintptr_t)x.v | (uintptr_t)x.x;
    x.quads = all % 16 == 0 && x.n % 4 == 0;
    return x;
}
/* All tensors of one rule and one dtype of what it rounds in one launch. */
void cuda_op_adamw(Run *r, int n, const AdamwStep *a) {
    enum { AT_ONCE = 32 };
    static void (*const launch[UPDATE_RULES])(Cuda *, int, const CudaAdamOf *, size_t, bool) = {
        [UPDATE_ADAMW] = cuda_adamw, [UPDATE_LION] = cuda_lion, [UPDATE_SCHEDULE_FREE] = cuda_schedule_free};
    Mark mark = arena_mark(r->scratch);
    CudaAdamOf *all = arena_take(r->scratch, (size_t)n * sizeof *all, "tensors"), some[AT_ONCE];
    for (int group = 0; group < 2 * UPDATE_RULES && !measuring(r); group++) {
        const UpdateRule rule = (UpdateRule)(group / 2);
        const bool is_bf16 = group % 2;
        size_t pieces = 0;
        int m = 0, k = 0;
        for (int i = 0; i <= n; i++) {
            if (k && (i == n || k == AT_ONCE)) {
                cuda_upload(C(r), all + m, some, (size_t)k * sizeof *some);
                m += k, k = 0;
            }
            if (i == n || a[i].rule != rule || optimizer_rounds(&a[i]) != is_bf16 || !tensor_count(a[i].w)) continue;
            check_adamw(&a[i]);
            some[k++] = adamw_of(r, &a[i], pieces);
            pieces += (tensor_count(a[i].w) + CUDA_ADAM_PIECE - 1) / CUDA_ADAM_PIECE;
        }
        if (m) launch[rule](C(r), m, all, pieces, is_bf16);
    }
    arena_release(r->scratch, mark);
}
void cuda_op_momentum(Run *r, Tensor u, Tensor m, Tensor g, double mu, double gscale, bool nesterov, Rounding round) {
    size_t n = tensor_count(u);
    check_momentum(u, m, g);
    bool is_bf16 = m.dtype == BF16;
    if (!measuring(r))
        cuda_momentum(C(r), n, R(u), is_bf16 ? m.p : R(m), R(g), is_bf16, (float)mu, (float)gscale, nesterov,
                      (CudaRounding){round.key, round.at});
}
/* Tensors by their pieces, each tensor's first one after the last of the one before. sum: on the device. */
static void optimizer_squares(Run *r, double *sum, double start, bool more, int n, const Tensor *x) {
    enum { AT_ONCE = 128 };
    size_t pieces = 0;
    for (int i = 0; i < n; i++) pieces += (tensor_count(x[i]) + CUDA_SUMSQ_PIECE - 1) / CUDA_SUMSQ_PIECE;
    CudaPieces *all = arena_take(r->scratch, (size_t)n * sizeof *all, "tensors"), some[AT_ONCE];
    double *part = arena_take(r->scratch, pieces * sizeof *part, "sumsq");
    if (measuring(r)) return;
    size_t first = 0;
    for (int i = 0, k = 0; i < n; i++) {
        size_t count = tensor_count(x[i]);
        some[k++] = (CudaPieces){count ? R(x[i]) : NULL, count, first};
        first += (count + CUDA_SUMSQ_PIECE - 1) / CUDA_SUMSQ_PIECE;
        if (k < AT_ONCE && i + 1 < n) continue;
        cuda_upload(C(r), all + i + 1 - k, some, (size_t)k * sizeof *some);
        k = 0;
    }
    cuda_sumsq(C(r), start, more, n, all, pieces, part, sum);
}
void cuda_op_sumsqs_there(Run *r, double *sum, bool more, int n, const Tensor *x) {
    Mark mark = arena_mark(r->scratch);
    optimizer_squares(r, sum, 0, more, n, x);
    arena_release(r->scratch, mark);
}
double cuda_op_sumsqs(Run *r, double start, int n, const Tensor *x) {
    Mark mark = arena_mark(r->scratch);
    double sum = start, *there = arena_take(r->scratch, sizeof *there, "sumsq");
    optimizer_squares(r, there, start, false, n, x);
    if (!measuring(r)) cuda_download(C(r), &sum, there, sizeof sum);
    arena_release(r->scratch, mark);
    return sum;
}
double cuda_op_sumsq(Run *r, Tensor x) { return cuda_op_sumsqs(r, 0, 1, &x); }
void cuda_op_normalise(Run *r, Tensor x, double eps) {
    size_t n = tensor_count(x), pieces = (n + CUDA_SUMSQ_PIECE - 1) / CUDA_SUMSQ_PIECE;
    Mark mark = arena_mark(r->scratch);
    CudaPieces own = {measuring(r) ? NULL : R(x), n, 0}, *all = upload(r, &own, 1, sizeof own, "tensors");
    double *part = arena_take(r->scratch, (pieces + 1) * sizeof *part, "sumsq");
    if (!measuring(r) && n) {
        cuda_sumsq(C(r), 0, false, 1, all, pieces, part, part + pieces);
        cuda_normalise(C(r), n, R(x), part + pieces, eps);
    }
    arena_release(r->scratch, mark);
}
