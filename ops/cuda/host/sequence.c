/* sequence.c: the ops of the CUDA backend that work along sequences: attention, recurrences, their gates and
 * convolutions, running means. As in table.c. */
#include "table.h"
#include "fused.h"
#include "ops/host.h"

/* ---- attention ---- */
/* All but the tensors; batch and rows are uploaded to scratch. */
static CudaAttend attend_pass(Run *r, const KvShape *kv, AttnSpec spec, Tensor q, Tensor o) {
    const Batch *b = r->batch;
    int group = spec.heads / imax(1, kv->lanes);
    check_attend(kv, spec, q, o);
    CudaAttend a = {.B = b->B,
                    .N = b->N,
                    .n = r->out.n,
                    .lanes = kv->lanes,
                    .heads = spec.heads,
                    .Dk = kv->kdim,
                    .Dv = kv->vdim,
                    .ldv = kv->alias ? kv->kdim : kv->vdim,
                    .window = spec.window,
                    .sinks = spec.sinks,
                    .delay = kv->delay,
                    .scale = (float)spec.scale,
                    .cap = (float)spec.cap};
    a.off = upload_ints(r, b->off, b->B + 1, "first rows"), a.pos = upload_ints(r, b->pos, b->N, "positions");
    a.first = upload_ints(r, b->first, b->N, "documents"), a.idx = upload_ints(r, r->out.idx, r->out.n, "rows");
    if (measuring(r)) return a;
    for (int s = 0, m = 0, from = 0; s < b->B; s++, from = m) {
        while (m < r->out.n && r->out.idx[m] < b->off[s + 1]) m++;
        a.entries = imax(a.entries, (m - from) * group);
        a.longest = imax(a.longest, b->off[s + 1] - b->off[s]);
    }
    a.blocks = (a.entries + CUDA_ENTRIES - 1) / CUDA_ENTRIES;
    return a;
}
static void attend_keys(CudaAttend *a, const Kv *kv) {
    a->k = R(kv->k), a->v = kv->s.alias ? R(kv->k) : R(kv->v), a->bias = maybe(kv->bias);
}
/* lse as it is before the op; where blocks share a row of the values, a copy, since one of them writes it. */
static real *lse_before(Run *r, Tensor lse, int Dv, bool merge) {
    if (!merge || cuda_attend_slices(Dv) == 1) return merge && !measuring(r) ? R(lse) : NULL;
    Tensor copy = scratch_tensor(r, "lse before", REAL, lse.rank, lse.n);
    if (!measuring(r)) cuda_copy(C(r), copy.p, lse.p, tensor_bytes(lse));
    return copy.p;
}
/* Operands rounded to bf16, where products are: rows wider than the kernels of the matrix units stay with those of f32.
 */
static CudaFlash flash_rows(Tensor q, const Kv *kv, Tensor o) {
    CudaFlash x = {.q = rows_of(q), .k = rows_of(kv->k), .o = rows_of(o)};
    x.v = kv->s.alias ? x.k : rows_of(kv->v);
    CHECK(x.k.is_bf16 == x.v.is_bf16, "keys %s, values %s", dtype_name(kv->k.dtype), dtype_name(kv->v.dtype));
    return x;
}
/* Copies in f32 of BF16 tensors, for the f32 kernels. */
static Tensor sequence_widened(Run *r, const char *name, Tensor t, bool read) {
    if (t.dtype != BF16) return t;
    Tensor w = scratch_tensor(r, name, REAL, t.rank, t.n);
    if (!measuring(r) && read) cuda_cast_from_bf16(C(r), tensor_count(t), R(w), t.p, false);
    return w;
}
static Kv widened_rows(Run *r, const Kv *kv) {
    Kv wide = *kv;
    wide.k = sequence_widened(r, "keys", kv->k, true);
    if (!kv->s.alias) wide.v = sequence_widened(r, "values", kv->v, true);
    return wide;
}
static void rounded_to_bf16(Run *r, Tensor t, Tensor wide) {
    if (t.dtype == BF16 && !measuring(r)) cuda_cast_to_bf16(C(r), tensor_count(t), t.p, R(wide));
}
static bool sequence_flashes(Run *r, const KvShape *kv, AttnSpec spec) {
    return r->dev->products_bf16 && !(spec.cap > 0) && cuda_flash_takes(kv->kdim, kv->vdim);
}
void cuda_op_attend(Run *r, Tensor o, Tensor lse, Tensor q, const Kv *kv, AttnSpec spec, bool merge) {
    if (r->out.n == 0 || (!merge && fused_attend(r->dev->fused, r, o, lse, q, kv, spec))) return;
    Mark mark = arena_mark(r->scratch);
    CudaAttend a = attend_pass(r, &kv->s, spec, q, o);
    if (sequence_flashes(r, &kv->s, spec)) {
        CudaFlash x = flash_rows(q, kv, o);
        void *mem = arena_take(r->scratch, cuda_flash_bytes(&a, &x), "queries, keys, values in bf16");
        if (!measuring(r)) {
            a.bias = maybe(kv->bias);
            cuda_flash(C(r), &a, &x, mem, R(lse), merge ? R(lse) : NULL);
        }
        arena_release(r->scratch, mark);
        return;
    }
    real *before = lse_before(r, lse, a.Dv, merge);
    Kv wide = widened_rows(r, kv);
    Tensor wq = sequence_widened(r, "queries", q, true), wo = sequence_widened(r, "results", o, merge);
    if (!measuring(r)) {
        attend_keys(&a, &wide);
        cuda_attend(C(r), &a, R(wo), R(lse), before, R(wq));
    }
    rounded_to_bf16(r, o, wo);
    arena_release(r->scratch, mark);
}
/* Pieces that a history may be split into: of each its kernel finds them by its length, which lies on the device, so
 * that a step is launched as the one before, when lengths were others. Blocks of pieces that are not there end at once.
 */
static int lanes_pieces(const Run *r, int room) {
    const Batch *b = r->batch;
    for (int s = 0, from = 0, m = 0; s < b->B; s++, from = m) {
        while (m < r->out.n && r->out.idx[m] < b->off[s + 1]) m++;
        if (m > from && m - from <= CUDA_SPLIT_ROWS) return room;
    }
    return 1;
}
void cuda_op_attend_lanes(Run *r, Tensor o, Tensor lse, Tensor q, const Lanes *t, const Kv *pass, AttnSpec spec,
                          bool merge) {
    if (r->out.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    CudaAttend a = attend_pass(r, &t->s, spec, q, o);
    const RowsAs as = rows_as(&t->s);
    CHECK(as != ROWS_CODED, "no kernel reads rows in %s", t->s.codec->name);
    bool matrix =
        r->dev->products_bf16 && as == ROWS_BF16 && !(spec.cap > 0) && cuda_flash_lanes_takes(a.Dk, a.Dv, t->s.alias);
    real *before = lse_before(r, lse, matrix ? 1 : a.Dv, merge);
    int *seq = upload_ints(r, r->batch->seq, r->batch->B, "sequences");
    int room = cuda_lane_pieces_most(t->maxpages * t->P), slots = imin(r->out.n, CUDA_SPLIT_ROWS * r->batch->B);
    Tensor part = ABSENT, lses = ABSENT;
    if (room > 1) {
        part = SCRATCH(r, "partials of pieces", room, slots, spec.heads, a.Dv);
        lses = SCRATCH(r, "lse of pieces", room, slots, spec.heads);
    }
    if (!measuring(r)) {
        CudaLanes l = {.pieces = lanes_pieces(r, room),
                       .slots = slots,
                       .part = maybe(part),
                       .lses = maybe(lses),
                       .P = t->P,
                       .maxpages = t->maxpages,
                       .sinks = t->s.sinks,
                       .alias = t->s.alias,
                       .is_bf16 = as == ROWS_BF16,
                       .coded = cuda_coded(t->s.codec),
                       .bits = t->s.codec ? t->s.codec->bits : 0,
                       .group = t->s.codec ? t->s.codec->group : 0,
                       .sparse = t->s.sparse,
                       .matrix = matrix,
                       .data = as == ROWS_REAL ? R(t->data) : t->data.p,
                       .seq = seq,
                       .s0 = t->s0,
                       .lo = t->lo,
                       .hi = t->hi,
                       .table = t->table,
                       .pos = t->pos,
                       .evicted = t->evicted,
                       .tail = t->tail};
        if (t->s.evicts) l.evicts = R(pass->evicted);
        cuda_attend_lanes(C(r), &a, &l, R(o), R(lse), before, R(q));
    }
    arena_release(r->scratch, mark);
}
void cuda_op_attend_backward(Run *r, Into dq, const KvInto *dkv, Tensor dout, Tensor q, const Kv *kv, AttnSpec spec,
                             Tensor o, Tensor lse) {
    check_attend_backward(r, &kv->s, spec, q, o);
    if (fused_attend_backward(r->dev->fused, r, dq, dkv, dout, q, kv, spec, o, lse)) return;
    Mark mark = arena_mark(r->scratch);
    CudaAttend a = attend_pass(r, &kv->s, spec, q, o);
    if (sequence_flashes(r, &kv->s, spec)) {
        CudaFlash x = flash_rows(q, kv, o);
        x.dout = rows_of(dout), x.dq = rows_into(dq), x.dk = rows_into(keys_into(dkv)),
        x.dv = rows_into(values_into(dkv));
        CHECK(dout.dtype == o.dtype, "dout %s, o %s", dtype_name(dout.dtype), dtype_name(o.dtype));
        void *mem = arena_take(r->scratch, cuda_flash_backward_bytes(&a, &x), "operands of attention in bf16");
        if (!measuring(r)) {
            a.bias = maybe(kv->bias);
            a.idx = NULL;
            cuda_flash_backward(C(r), &a, &x, mem, a.bias ? R(dkv->kv.bias) : NULL, R(lse));
        }
        arena_release(r->scratch, mark);
        return;
    }
    Tensor delta = SCRATCH(r, "delta", r->batch->N, spec.heads);
    Kv wide = widened_rows(r, kv);
    Tensor wq = sequence_widened(r, "queries", q, true), wo = sequence_widened(r, "results", o, true),
           wg = sequence_widened(r, "d results", dout, true), sum[3];
    const Into to[] = {dq, keys_into(dkv), values_into(dkv)};
    for (int i = 0; i < 3; i++) {
        sum[i] = sequence_widened(r, "d queries, keys, values", to[i].t, !to[i].overwrite);
        if (to[i].overwrite) r->ops->zero(r, sum[i]);
    }
    if (!measuring(r)) {
        attend_keys(&a, &wide);
        a.idx = NULL;
        cuda_attend_backward(C(r), &a, R(sum[0]), R(sum[1]), R(sum[2]), a.bias ? R(dkv->kv.bias) : NULL, R(delta),
                             R(wg), R(wq), R(wo), R(lse));
    }
    for (int i = 0; i < 3; i++) rounded_to_bf16(r, to[i].t, sum[i]);
    arena_release(r->scratch, mark);
}

/* ---- around a recurrence ---- */
static CudaConv conv_pass(Run *r, Tensor x, Tensor w, bool silu, Tensor state, int at) {
    const Batch *b = r->batch;
    CudaConv p = {.N = x.n[0],
                  .B = b->B,
                  .C = x.n[1],
                  .W = present(w) ? check_last(w) : 1,
                  .at = at,
                  .silu = silu,
                  .blob = present(state) ? (size_t)state.n[1] : 0};
    p.of = upload_ints(r, b->of, b->N, "sequences of rows"), p.first = upload_ints(r, b->first, b->N, "documents");
    p.off = upload_ints(r, b->off, b->B + 1, "first rows");
    if (present(state)) p.seq = upload_ints(r, b->seq, b->B, "sequences");
    if (p.W > CUDA_CONV_WIDTH) device_lacks(r, "convolutions of more than 16 tokens");
    if (measuring(r)) return p;
    CHECK(p.N == b->N && p.W <= CUDA_CONV_WIDTH, "%d of %d rows, %d taps", p.N, b->N, p.W);
    for (int s = 0; s < b->B && !present(state); s++)
        CHECK(b->off[s] == b->off[s + 1] || b->first[b->off[s]] >= 0 || p.W == 1,
              "row %d continues a history that is not there", b->off[s]);
    return p;
}
void cuda_op_short_conv(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias, bool silu, Tensor state, int at) {
    bool is_bf16 = check_short_conv(y, x, w, state);
    Mark mark = arena_mark(r->scratch);
    CudaConv p = conv_pass(r, x, w, silu, state, at);
    p.is_bf16 = is_bf16;
    if (!measuring(r))
        cuda_short_conv(C(r), &p, numbers(y), numbers(x), maybe(w), maybe(bias), maybe(state), !(r->mode & RUN_HOLD));
    arena_release(r->scratch, mark);
}
void cuda_op_short_conv_backward(Run *r, Into dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w, Tensor bias,
                                 bool silu) {
    Mark mark = arena_mark(r->scratch);
    CudaConv p = conv_pass(r, x, w, silu, ABSENT, 0);
    p.is_bf16 = CHECK_ALIKE(dx.t, dy, x);
    Tensor parts = SCRATCH(r, "sums of slices", cuda_slices((size_t)p.N, cuda_conv_tiles(p.C)), p.W + 1, p.C);
    if (!measuring(r)) {
        CHECK(!r->batch->history, "a convolution is trained on whole documents");
        cuda_short_conv_backward(C(r), &p, numbers(dx.t), dx.overwrite, maybe(dw), maybe(dbias), R(parts), numbers(dy),
                                 numbers(x), maybe(w), maybe(bias));
    }
    arena_release(r->scratch, mark);
}
static CudaGate sequence_gate_of(Tensor z, Tensor A, Tensor bias, Gate k) {
    check_decay(z, A, bias, k);
    static const CudaGateKind kind[] = {
        [GATE_SOFTPLUS] = CUDA_GATE_SOFTPLUS, [GATE_BOUND] = CUDA_GATE_BOUND, [GATE_LOGSIGMOID] = CUDA_GATE_LOGSIGMOID};
    return (CudaGate){kind[k.kind], (float)k.param};
}
void cuda_op_decay(Run *r, Tensor g, Tensor z, Tensor A, Tensor bias, Gate k) {
    CudaGate gate = sequence_gate_of(z, A, bias, k);
    if (!measuring(r))
        cuda_decay(C(r), z.n[0], z.n[1], z.n[2], R(g), numbers(z), maybe(A), maybe(bias), gate, z.dtype == BF16);
}
void cuda_op_decay_backward(Run *r, Into dz, Tensor dA, Tensor dbias, Tensor dg, Tensor z, Tensor A, Tensor bias,
                            Gate k) {
    CudaGate gate = sequence_gate_of(z, A, bias, k);
    bool is_bf16 = CHECK_ALIKE(dz.t, z);
    int width = z.n[1] * z.n[2];
    Mark mark = arena_mark(r->scratch);
    size_t sums = (size_t)cuda_slices((size_t)z.n[0], cuda_tiles(width)) * (size_t)width;
    void *parts = arena_take(r->scratch, sums * (sizeof(double) + sizeof(float)), "sums of slices");
    if (!measuring(r))
        cuda_decay_backward(C(r), z.n[0], z.n[1], z.n[2], numbers(dz.t), maybe(dA), maybe(dbias), parts, R(dg),
                            numbers(z), maybe(A), maybe(bias), gate, is_bf16, dz.overwrite);
    arena_release(r->scratch, mark);
}
static CudaGatedNorm sequence_norm_of(Tensor x, Tensor w, GatedNorm n, size_t *groups) {
    *groups = check_gated_norm(x, w, n);
    return (CudaGatedNorm){n.width, present(w) ? (int)(tensor_count(w) / (size_t)n.width) : 1, n.silu, n.before, n.eps};
}
void cuda_op_gated_norm(Run *r, Tensor y, Tensor x, Tensor z, Tensor w, GatedNorm n) {
    size_t M;
    CudaGatedNorm g = sequence_norm_of(x, w, n, &M);
    bool is_bf16 = CHECK_ALIKE(y, x, z);
    if (!measuring(r)) cuda_gated_norm(C(r), M, numbers(y), numbers(x), numbers(z), maybe(w), g, is_bf16);
}
void cuda_op_gated_norm_backward(Run *r, Into dx, Into dz, Tensor dw, Tensor dy, Tensor x, Tensor z, Tensor w,
                                 GatedNorm n) {
    size_t M;
    CudaGatedNorm g = sequence_norm_of(x, w, n, &M);
    bool is_bf16 = CHECK_ALIKE(dx.t, dz.t, dy, x, z);
    Mark mark = arena_mark(r->scratch);
    Tensor parts = SCRATCH(r, "sums of slices", cuda_slices(M / (size_t)g.period, g.period * cuda_row_tiles(g.width)),
                           g.period * g.width);
    if (!measuring(r))
        cuda_gated_norm_backward(C(r), M, numbers(dx.t), numbers(dz.t), maybe(dw), R(parts), numbers(dy), numbers(x),
                                 numbers(z), maybe(w), g, is_bf16, dx.overwrite, dz.overwrite);
    arena_release(r->scratch, mark);
}

/* ---- the recurrence ---- */
static CudaRecur recur_pass(Run *r, const Recur *x, double scale, Tensor state, int at) {
    const Batch *b = r->batch;
    int N = b->N, H = x->q.n[1], K = x->q.n[2], HV = x->v.n[1];
    bool is_bf16 = check_recur(r, x);
    if (K > CUDA_RECUR_WIDTH) device_lacks(r, "recurrences of keys wider than 256");
    CHECK(measuring(r) || K <= CUDA_RECUR_WIDTH, "a recurrence of %d channels, at most %d", K, CUDA_RECUR_WIDTH);
    CudaRecur p = {.B = b->B,
                   .N = N,
                   .H = H,
                   .HV = HV,
                   .K = K,
                   .V = x->v.n[2],
                   .at = at,
                   .longest = N, /* until rows are there */
                   .per_channel = present(x->g) && x->g.n[2] == K,
                   .delta = recur_corrects(x),
                   .erases = present(x->e),
                   .is_bf16 = is_bf16,
                   .scale = (float)scale,
                   .blob = present(state) ? (size_t)state.n[1] : 0};
    p.off = upload_ints(r, b->off, b->B + 1, "first rows"), p.first = upload_ints(r, b->first, N, "documents");
    p.seq = upload_ints(r, b->seq, b->B, "sequences");
    if (measuring(r)) return p;
    p.longest = 0;
    for (int s = 0; s < b->B; s++) p.longest = imax(p.longest, b->off[s + 1] - b->off[s]);
    p.q = numbers(x->q), p.k = numbers(x->k), p.v = numbers(x->v), p.g = maybe(x->g), p.beta = maybe(x->beta);
    p.e = numbers(x->e);
    return p;
}
static void history_there(const Batch *b, bool there) {
    for (int s = 0; s < b->B && !there; s++)
        CHECK(b->off[s] == b->off[s + 1] || b->first[b->off[s]] >= 0, "row %d continues a history that is not there",
              b->off[s]);
}
/* By chunks on the matrix units where products are rounded to bf16; f32, wide keys, erase keys and short sequences go
 * row after row. How long they are the pass itself knows, so scratch is taken for both where there are rows enough. */
static bool may_go_by_chunks(const Run *r, const CudaRecur *p) {
    return r->dev->products_bf16 && !p->erases && cuda_delta_takes(p->K, p->N);
}
static bool goes_by_chunks(const Run *r, const CudaRecur *p) {
    return !measuring(r) && may_go_by_chunks(r, p) && cuda_delta_takes(p->K, p->longest);
}
void cuda_op_recur(Run *r, Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at) {
    Mark mark = arena_mark(r->scratch);
    CudaRecur p = recur_pass(r, &x, scale, state, at);
    CHECK(o.dtype == x.v.dtype, "o %s, v %s", dtype_name(o.dtype), dtype_name(x.v.dtype));
    bool write = !(r->mode & RUN_HOLD);
    void *mem = may_go_by_chunks(r, &p) ? arena_take(r->scratch, cuda_delta_bytes(&p), "chunks of a recurrence") : NULL;
    if (!measuring(r)) history_there(r->batch, present(state));
    if (goes_by_chunks(r, &p))
        cuda_delta(C(r), &p, mem, numbers(o), maybe(keep), maybe(state), write);
    else if (!measuring(r))
        cuda_recur(C(r), &p, numbers(o), maybe(keep), maybe(state), write);
    arena_release(r->scratch, mark);
}
/* Where a sum over columns is written: y itself if one block computes it, otherwise scratch (slices, N HV width), and
 * from there y. */
static Into sequence_sums(Run *r, const char *name, Into y, bool own, const CudaRecur *p, int slices, int width) {
    return own || !present(y.t) ? y : overwrite(SCRATCH(r, name, slices, p->N, p->HV, width));
}
static void sequence_fold(Run *r, Into y, Into x, int heads, const CudaRecur *p, int width, int slices, int group) {
    if (present(y.t) && y.t.p != x.t.p)
        cuda_recur_fold(C(r), (size_t)p->N * (size_t)heads, width, rows_into(y), R(x.t), slices, group);
}
static CudaRecurGrad recur_grad(const RecurInto *d, const RecurEnds *ends) {
    CudaRecurGrad g = {.q = rows_into(d->q), .k = rows_into(d->k), .g = rows_into(d->g), .beta = rows_into(d->beta)};
    g.v = rows_into(d->v), g.e = rows_into(d->e);
    if (ends) g.start = maybe(ends->start), g.dend = maybe(ends->dend), g.dstart = maybe(ends->dstart);
    return g;
}
/* Both reserve their scratch and release it; they compute in a pass that `runs`. */
static void backward_by_chunks(Run *r, const CudaRecur *p, const RecurInto *d, Tensor dout, Tensor keep,
                               const RecurEnds *ends, bool runs) {
    Mark mark = arena_mark(r->scratch);
    int group = p->HV / p->H;
    RecurInto to = *d;
    to.q = sequence_sums(r, "d q of value heads", d->q, group == 1, p, 1, p->K);
    to.k = sequence_sums(r, "d k of value heads", d->k, group == 1, p, 1, p->K);
    void *mem = arena_take(r->scratch, cuda_delta_backward_bytes(p, rows_into(d->v)), "chunks of a recurrence");
    if (runs) {
        CudaRecurGrad g = recur_grad(&to, ends);
        cuda_delta_backward(C(r), p, mem, &g, numbers(dout), maybe(keep));
        sequence_fold(r, d->q, to.q, p->H, p, p->K, 1, group);
        sequence_fold(r, d->k, to.k, p->H, p, p->K, 1, group);
    }
    arena_release(r->scratch, mark);
}
static void backward_by_rows(Run *r, const CudaRecur *p, const RecurInto *d, Tensor dout, Tensor keep,
                             const RecurEnds *ends, bool whole, bool runs) {
    Mark mark = arena_mark(r->scratch);
    int slices = cuda_recur_slices(p->K, p->V), group = p->HV / p->H;
    bool one = slices == 1;
    RecurInto to = {.q = sequence_sums(r, "d q of value heads", d->q, one && group == 1, p, slices, p->K),
                    .k = sequence_sums(r, "d k of value heads", d->k, one && group == 1, p, slices, p->K),
                    .v = d->v,
                    .g = sequence_sums(r, "d g of channels", d->g, one && whole, p, slices, p->K),
                    .beta = sequence_sums(r, "d beta of columns", d->beta, one, p, slices, 1),
                    .e = sequence_sums(r, "d e of value heads", d->e, one && group == 1, p, slices, p->K)};
    size_t notes = cuda_recur_notes(p->K, p->V) * (size_t)p->HV * (size_t)p->B;
    float *mem = arena_take(r->scratch, notes * sizeof *mem, "states of rows");
    if (runs) {
        CudaRecurGrad g = recur_grad(&to, ends);
        cuda_recur_backward(C(r), p, &g, numbers(dout), maybe(keep), mem);
        sequence_fold(r, d->q, to.q, p->H, p, p->K, slices, group);
        sequence_fold(r, d->k, to.k, p->H, p, p->K, slices, group);
        sequence_fold(r, d->g, to.g, p->HV, p, whole ? p->K : 1, slices, whole ? 1 : p->K);
        sequence_fold(r, d->beta, to.beta, p->HV, p, 1, slices, 1);
        sequence_fold(r, d->e, to.e, p->H, p, p->K, slices, group);
    }
    arena_release(r->scratch, mark);
}
void cuda_op_recur_backward(Run *r, const RecurInto *d, Tensor dout, Recur x, double scale, Tensor keep,
                            const RecurEnds *ends) {
    Mark mark = arena_mark(r->scratch);
    CudaRecur p = recur_pass(r, &x, scale, ABSENT, 0);
    CHECK(CHECK_ALIKE(dout, x.v, d->q.t, d->k.t, d->v.t, d->e.t) == p.is_bf16, "dout %s", dtype_name(dout.dtype));
    bool chunks = goes_by_chunks(r, &p);
    if (!measuring(r)) history_there(r->batch, ends && present(ends->start));
    if (may_go_by_chunks(r, &p)) backward_by_chunks(r, &p, d, dout, keep, ends, chunks);
    backward_by_rows(r, &p, d, dout, keep, ends, present(x.g) && x.g.n[2] == p.K, !measuring(r) && !chunks);
    arena_release(r->scratch, mark);
}
_Static_assert((int)CUDA_RECUR_CHUNK == (int)RECUR_CHUNK, "elements of the kept states");

/* ---- running means ---- */
static CudaMerge merge_pass(Run *r, Tensor x, Tensor a, Tensor w, int window, Tensor past, int at) {
    const Batch *b = r->batch;
    CudaMerge p = {.N = b->N, .B = b->B, .lanes = x.n[1], .D = x.n[2], .window = window, .at = at};
    if (present(past)) p.rows = past.n[2], p.C = past.n[3];
    p.of = upload_ints(r, b->of, b->N, "sequences of rows"), p.pos = upload_ints(r, b->pos, b->N, "positions");
    p.first = upload_ints(r, b->first, b->N, "documents"), p.off = upload_ints(r, b->off, b->B + 1, "first rows");
    if (present(past)) p.seq = upload_ints(r, b->seq, b->B, "sequences");
    if (measuring(r)) return p;
    if (!window) history_there(b, p.rows > 0);
    p.x = R(x), p.a = R(a), p.w = R(w), p.past = p.rows ? R(past) : NULL;
    return p;
}
void cuda_op_merge(Run *r, Tensor y, Tensor z, Tensor x, Tensor a, Tensor w, int window, Tensor past, int at) {
    check_merge(r, y, x);
    Mark mark = arena_mark(r->scratch);
    CudaMerge p = merge_pass(r, x, a, w, window, past, at);
    if (!measuring(r)) cuda_merge(C(r), &p, R(y), R(z));
    arena_release(r->scratch, mark);
}
void cuda_op_merge_backward(Run *r, Tensor dx, Tensor da, Tensor dw, Tensor dy, Tensor x, Tensor y, Tensor z, Tensor a,
                            Tensor w, int window) {
    check_merge_backward(r, y, x);
    Mark mark = arena_mark(r->scratch);
    CudaMerge p = merge_pass(r, x, a, w, window, ABSENT, 0);
    Tensor big = SCRATCH(r, "merge products", p.N, p.lanes, window ? window : p.D),
           small = SCRATCH(r, "merge sums", p.N, p.lanes, window ? window : 3);
    if (!measuring(r)) cuda_merge_backward(C(r), &p, R(dx), R(da), R(dw), R(big), R(small), R(dy), R(y), R(z));
    arena_release(r->scratch, mark);
}

/* ---- decisions ---- */
static CudaDecide decide_pass(Run *r, Tensor alpha, int wide, Decide d) {
    const Batch *b = r->batch;
    CudaDecide p = {.N = b->N,
                    .B = b->B,
                    .G = alpha.n[1],
                    .wide = wide,
                    .stats = 2 * STATS,
                    .group = d.group,
                    .train = r->mode & RUN_TRAIN,
                    .noise = r->mode & RUN_TRAIN && !(r->mode & RUN_STILL),
                    .smooth = r->mode & RUN_SMOOTH,
                    .count_still = r->mode & RUN_COUNT_STILL,
                    .itself = d.itself,
                    .gain = d.gain,
                    .offset = d.offset,
                    .temperature = d.temperature,
                    .eps = d.eps,
                    .key = noise_key(r, NOISE_DECISION)};
    p.of = upload_ints(r, b->of, b->N, "sequences of rows"), p.first = upload_ints(r, b->first, b->N, "documents");
    p.off = upload_ints(r, b->off, b->B + 1, "first rows");
    if (p.noise) p.id = upload(r, b->id, b->B, sizeof *b->id, "samples");
    return p;
}
_Static_assert((int)STAT_MERGED == 0, "sums of decisions come first");
void cuda_op_decide(Run *r, Tensor alpha, Tensor omega, Tensor bias, Tensor evicted, Tensor u, Tensor past, Decide d) {
    check_decide(r, alpha, omega, bias, u, past, d);
    Mark mark = arena_mark(r->scratch);
    CudaDecide p = decide_pass(r, alpha, u.n[1], d);
    if (d.itself && present(past)) p.seq = upload_ints(r, r->batch->seq, r->batch->B, "sequences"), p.past = R(past);
    if (!measuring(r)) cuda_decide(C(r), &p, R(alpha), maybe(omega), R(bias), maybe(evicted), maybe(r->stat), R(u));
    arena_release(r->scratch, mark);
}
void cuda_op_decide_backward(Run *r, Tensor du, Tensor dm, Tensor dalpha, Tensor domega, Tensor dbias, Tensor alpha,
                             Tensor omega, Decide d) {
    check_decide_backward(r, du, dm, domega, alpha);
    Mark mark = arena_mark(r->scratch);
    CudaDecide p = decide_pass(r, alpha, 0, d);
    p.stats = STATS;
    if (!measuring(r))
        cuda_decide_backward(C(r), &p, R(du), maybe(dm), maybe(dalpha), maybe(domega), R(dbias), R(alpha), maybe(omega),
                             maybe(r->dstat));
    arena_release(r->scratch, mark);
}
