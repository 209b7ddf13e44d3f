/* sequence.c: the ops of the CUDA backend that go along sequences: attention, convolution, gates and norms of a
 * recurrence. As in table.c. */
#include "table.h"

/* ---- attention ---- */
/* All but the tensors; batch and rows are uploaded to scratch. */
static CudaAttend attend_pass(Run *r, const Kv *kv, Look look, Tensor q, Tensor o) {
    const Batch *b = r->batch;
    int group = look.heads / imax(1, kv->s.lanes);
    CHECK(look.heads == group * kv->s.lanes && q.n[1] == look.heads && q.n[2] == kv->s.kdim && o.n[2] == kv->s.vdim,
          "%d heads on %d lanes, q %d, o %d", look.heads, kv->s.lanes, q.n[2], o.n[2]);
    CudaAttend a = {.B = b->B,
                    .N = b->N,
                    .n = r->out.n,
                    .lanes = kv->s.lanes,
                    .heads = look.heads,
                    .Dk = kv->s.kdim,
                    .Dv = kv->s.vdim,
                    .ldv = kv->s.alias ? kv->s.kdim : kv->s.vdim,
                    .window = look.window,
                    .sinks = look.sinks,
                    .delay = kv->s.delay,
                    .scale = (float)look.scale};
    a.off = upload_ints(r, b->off, b->B + 1, "first rows"), a.pos = upload_ints(r, b->pos, b->N, "positions");
    a.first = upload_ints(r, b->first, b->N, "documents"), a.idx = upload_ints(r, r->out.idx, r->out.n, "rows");
    if (measuring(r)) return a;
    a.k = R(kv->k), a.v = kv->s.alias ? R(kv->k) : R(kv->v), a.bias = present(kv->bias) ? R(kv->bias) : NULL;
    for (int s = 0, m = 0, from = 0; s < b->B; s++, from = m) {
        while (m < r->out.n && r->out.idx[m] < b->off[s + 1]) m++;
        a.blocks = imax(a.blocks, ((m - from) * group + CUDA_ENTRIES - 1) / CUDA_ENTRIES);
        a.longest = imax(a.longest, b->off[s + 1] - b->off[s]);
    }
    return a;
}
void cuda_op_attend(Run *r, Tensor o, Tensor lse, Tensor q, const Kv *kv, Look look, bool merge) {
    if (r->out.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    CudaAttend a = attend_pass(r, kv, look, q, o);
    bool shared = merge && cuda_attend_slices(a.Dv) > 1;
    Tensor before = shared ? SCRATCH(r, "lse before", r->out.n, look.heads) : lse;
    if (!measuring(r)) {
        if (shared) cuda_copy(C(r), before.p, lse.p, tensor_bytes(lse));
        cuda_attend(C(r), &a, R(o), R(lse), merge ? R(before) : NULL, R(q));
    }
    arena_release(r->scratch, mark);
}
void cuda_op_attend_backward(Run *r, Tensor dq, Kv *dkv, Tensor dout, Tensor q, const Kv *kv, Look look, Tensor o,
                             Tensor lse) {
    CHECK(r->out.n == r->batch->N, "%d of %d rows", r->out.n, r->batch->N);
    CHECK(!kv->s.alias, "rows whose value is part of the key are attended to, not trained on");
    Mark mark = arena_mark(r->scratch);
    CudaAttend a = attend_pass(r, kv, look, q, o);
    Tensor delta = SCRATCH(r, "delta", r->batch->N, look.heads);
    if (!measuring(r)) {
        a.idx = NULL;
        cuda_attend_backward(C(r), &a, R(dq), R(dkv->k), R(dkv->v), a.bias ? R(dkv->bias) : NULL, R(delta), R(dout),
                             R(q), R(o), R(lse));
    }
    arena_release(r->scratch, mark);
}

/* ---- around a recurrence ---- */
static CudaConv conv_pass(Run *r, Tensor x, Tensor w, bool silu, Tensor state, int at) {
    const Batch *b = r->batch;
    CudaConv p = {.N = x.n[0],
                  .B = b->B,
                  .C = x.n[1],
                  .W = present(w) ? last(w) : 1,
                  .at = at,
                  .silu = silu,
                  .blob = present(state) ? (size_t)state.n[1] : 0};
    p.of = upload_ints(r, b->of, b->N, "sequences of rows"), p.first = upload_ints(r, b->first, b->N, "documents");
    p.off = upload_ints(r, b->off, b->B + 1, "first rows");
    if (present(state)) p.seq = upload_ints(r, b->seq, b->B, "sequences");
    if (measuring(r)) return p;
    CHECK(p.N == b->N, "%d of %d rows", p.N, b->N);
    for (int s = 0; s < b->B && !present(state); s++)
        CHECK(b->off[s] == b->off[s + 1] || b->first[b->off[s]] >= 0 || p.W == 1,
              "row %d continues a history that is not there", b->off[s]);
    return p;
}
void cuda_op_short_conv(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias, bool silu, Tensor state, int at) {
    CHECK(tensor_count(y) == tensor_count(x) && (!present(w) || w.n[0] == x.n[1]), "x (%d,%d)", x.n[0], x.n[1]);
    Mark mark = arena_mark(r->scratch);
    CudaConv p = conv_pass(r, x, w, silu, state, at);
    if (!measuring(r))
        cuda_short_conv(C(r), &p, R(y), R(x), maybe(w), maybe(bias), maybe(state), !(r->mode & RUN_HOLD));
    arena_release(r->scratch, mark);
}
void cuda_op_short_conv_backward(Run *r, Tensor dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w, Tensor bias,
                                 bool silu) {
    Mark mark = arena_mark(r->scratch);
    CudaConv p = conv_pass(r, x, w, silu, ABSENT, 0);
    Tensor da = SCRATCH(r, "d sums", x.n[0], x.n[1]);
    if (!measuring(r)) {
        CHECK(!r->batch->history, "a convolution is trained on whole documents");
        cuda_short_conv_backward(C(r), &p, maybe(dx), maybe(dw), maybe(dbias), R(da), R(dy), R(x), maybe(w),
                                 maybe(bias));
    }
    arena_release(r->scratch, mark);
}
static CudaGate gate_of(Tensor z, Tensor A, Tensor bias, Gate k) {
    CHECK(z.rank == 3 && (!present(A) || tensor_count(A) == (size_t)z.n[1]) &&
              (!present(bias) || tensor_count(bias) == (size_t)z.n[1] * (size_t)z.n[2]),
          "z (%d,%d,%d)", z.n[0], z.n[1], z.n[2]);
    CHECK(k.kind != GATE_LOGSIGMOID || !present(A), "this gate has no rate");
    static const CudaGateKind kind[] = {
        [GATE_SOFTPLUS] = CUDA_GATE_SOFTPLUS, [GATE_BOUND] = CUDA_GATE_BOUND, [GATE_LOGSIGMOID] = CUDA_GATE_LOGSIGMOID};
    return (CudaGate){kind[k.kind], (float)k.param};
}
void cuda_op_decay(Run *r, Tensor g, Tensor z, Tensor A, Tensor bias, Gate k) {
    CudaGate gate = gate_of(z, A, bias, k);
    if (!measuring(r)) cuda_decay(C(r), z.n[0], z.n[1], z.n[2], R(g), R(z), maybe(A), maybe(bias), gate);
}
void cuda_op_decay_backward(Run *r, Tensor dz, Tensor dA, Tensor dbias, Tensor dg, Tensor z, Tensor A, Tensor bias,
                            Gate k) {
    CudaGate gate = gate_of(z, A, bias, k);
    if (!measuring(r))
        cuda_decay_backward(C(r), z.n[0], z.n[1], z.n[2], maybe(dz), maybe(dA), maybe(dbias), R(dg), R(z), maybe(A),
                            maybe(bias), gate);
}
static CudaGatedNorm norm_of(Tensor x, Tensor w, GatedNorm n, size_t *groups) {
    size_t width = (size_t)n.width, M = *groups = tensor_count(x) / width, gains = tensor_count(w);
    CHECK(M * width == tensor_count(x), "groups of %d", n.width);
    CHECK(!present(w) || (gains % width == 0 && M % (gains / width) == 0), "%zu gains, %zu groups of %d", gains, M,
          n.width);
    return (CudaGatedNorm){n.width, present(w) ? (int)(gains / width) : 1, n.silu, n.before, n.eps};
}
void cuda_op_gated_norm(Run *r, Tensor y, Tensor x, Tensor z, Tensor w, GatedNorm n) {
    size_t M;
    CudaGatedNorm g = norm_of(x, w, n, &M);
    if (!measuring(r)) cuda_gated_norm(C(r), M, R(y), R(x), R(z), maybe(w), g);
}
void cuda_op_gated_norm_backward(Run *r, Tensor dx, Tensor dz, Tensor dw, Tensor dy, Tensor x, Tensor z, Tensor w,
                                 GatedNorm n) {
    size_t M;
    CudaGatedNorm g = norm_of(x, w, n, &M);
    Mark mark = arena_mark(r->scratch);
    Tensor factor = SCRATCH(r, "norm factors", (int)M);
    if (!measuring(r))
        cuda_gated_norm_backward(C(r), M, maybe(dx), maybe(dz), maybe(dw), R(factor), R(dy), R(x), R(z), maybe(w), g);
    arena_release(r->scratch, mark);
}
