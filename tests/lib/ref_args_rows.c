/* ref_args_rows.c: the arguments of drawn calls (ref_call.h): recurrences, gates, elements, rows. */
#include "layers/cache/codec.h"
#include "ref_call.h"

#define EACH(v, shape_of, expression)                               \
    for (size_t i_ = 0; (v) && i_ < tensor_count(shape_of); i_++) { \
        const double v_ = (v)[i_];                                  \
        (v)[i_] = (expression);                                     \
    }
/* ---- recurrences ---- */
typedef struct {
    int H, HV, K, V, G;
} Heads;
static Heads heads_drawn(OpCall *c) {
    static const int widths[] = {1, 3, 8, 16, 17};
    Heads n = {.H = 1 + draw_of(c, 2), .K = widths[draw_of(c, 5)], .V = widths[draw_of(c, 5)]};
    n.HV = n.H * (1 + draw_of(c, 2)), n.G = (const int[]){0, 1, n.K}[draw_of(c, 3)];
    c->terms = 64 + n.K;
    return n;
}
/* Unit keys, decays below 0, beta in (0,1). */
static void recur_inputs(OpCall *c, Recur *x, Heads n) {
    PART("x", x->q, 0, c->N, n.H, n.K), PART("x", x->v, 0, c->N, n.HV, n.V);
    double *k = PART("x", x->k, 0, c->N, n.H, n.K);
    for (int i = 0; i < c->N * n.H; i++) {
        double square = 0;
        for (int d = 0; d < n.K; d++) square += k[i * n.K + d] * k[i * n.K + d];
        for (int d = 0; d < n.K; d++) k[i * n.K + d] /= sqrt(square);
    }
    if (n.G) {
        double *g = PART("x", x->g, ROLE_IN, c->N, n.HV, n.G);
        EACH(g, x->g, -fabs(v_));
    }
    double *beta = PART("x", x->beta, ROLE_IN | ROLE_OPTIONAL, c->N, n.HV);
    EACH(beta, x->beta, 1 / (1 + exp(-v_)));
    if (draw_of(c, 3)) return;
    double *e = PART("x", x->e, 0, c->N, n.H, n.K);
    EACH(e, x->e, k[i_] / (1 + exp(-v_)));
}
MAKE(recur) {
    call_batch(c, 1 + draw_of(c, 3), coin(c));
    const Heads n = heads_drawn(c);
    recur_inputs(c, &a->x, n);
    a->scale = 0.3, a->at = draw_of(c, 4), c->run.mode = coin(c) ? RUN_HOLD : 0;
    ARG(o, c->N, n.HV, n.V);
    if (ARG(keep, recur_keep(c->N), n.HV, n.K, n.V)) call_slot(c, &a->keep)->partial = true;
    if (c->history)
        MUST(state, c->batch.B + 1, a->at + n.HV * n.K * n.V + 2);
    else
        ARG(state, c->batch.B + 1, a->at + n.HV * n.K * n.V + 2);
}
MAKE(recur_backward) {
    call_batch(c, 1 + draw_of(c, 3), coin(c));
    const Heads n = heads_drawn(c);
    const int nseq = c->batch.B + 1;
    RecurInto *d = call_own(c, sizeof *d);
    RecurEnds *ends = c->history || coin(c) ? call_own(c, sizeof *ends) : NULL;
    recur_inputs(c, &a->x, n);
    a->d = d, a->scale = 0.3, a->ends = ends;
    ARG(dout, c->N, n.HV, n.V), ARG(keep, recur_keep(c->N), n.HV, n.K, n.V);
    PART("d", d->q, 0, c->N, n.H, n.K), PART("d", d->k, 0, c->N, n.H, n.K), PART("d", d->v, 0, c->N, n.HV, n.V);
    const unsigned gate = ROLE_ADD | ROLE_OPTIONAL | ROLE_OVERWRITE;
    if (present(a->x.g)) PART("d", d->g, gate, c->N, n.HV, n.G);
    if (present(a->x.beta)) PART("d", d->beta, gate, c->N, n.HV);
    if (present(a->x.e)) PART("d", d->e, 0, c->N, n.H, n.K);
    if (ends) {
        PART_AS(REAL, "ends", ends->start, ROLE_IN, nseq, n.HV, n.K, n.V);
        PART("ends", ends->dstart, ROLE_ADD | ROLE_OPTIONAL, nseq, n.HV, n.K, n.V);
        PART("ends", ends->dend, ROLE_IN | ROLE_OPTIONAL, nseq, n.HV, n.K, n.V);
        call_has(c, "ends");
    }
    /* keep as the forward leaves it, from a state blob that is the ends' start */
    call_settle(c);
    Tensor o = TENSOR(call_own(c, sizeof(double) * (size_t)(c->N * n.HV * n.V)), F64, c->N, n.HV, n.V), state = ABSENT;
    if (ends) {
        state = TENSOR(call_own(c, tensor_bytes(ends->start)), F64, nseq, n.HV * n.K * n.V);
        memcpy(state.p, ends->start.p, tensor_bytes(state));
    }
    ref_recur(&c->run, o, a->keep, a->x, a->scale, state, 0);
    c->terms = 4 * (64 + n.K);
}
MAKE(short_conv) {
    const int C = c->d, W = 1 + draw_of(c, 13);
    call_batch(c, 1 + draw_of(c, 3), c->alike == REAL && coin(c));
    a->silu = coin(c), a->at = draw_of(c, 4);
    ARG(y, c->N, C), ARG(x, c->N, C);
    if (c->history || coin(c)) MUST(w, C, 1, W), ARG(bias, C);
    if (c->history) MUST(state, c->batch.B + 1, a->at + (W - 1) * C + 1);
    c->terms = W + 1;
}
MAKE(short_conv_backward) {
    const int C = c->d, W = 1 + draw_of(c, 13);
    a->silu = coin(c);
    ARG(dx, c->N, C), ARG(dy, c->N, C), ARG(x, c->N, C);
    if (ARG(w, C, W)) ARG(dw, C, W), ARG(bias, C), ARG(dbias, C);
    c->terms = c->N + W;
}
MAKE(l2norm) { ARG(y, c->N, c->d), ARG(x, c->N, c->d), a->eps = 1e-6, c->terms = c->d; }
MAKE(l2norm_backward) {
    c->d = imax(3, c->d); /* of one or two elements nothing is left but eps and rounding */
    ARG(dx, c->N, c->d), ARG(dy, c->N, c->d), ARG(x, c->N, c->d), a->eps = 1e-6, c->terms = c->d;
}

/* ---- gates ---- */
static Gate gate_drawn(OpCall *c) {
    const GateKind kind = (GateKind)draw_of(c, 3);
    return (Gate){kind, kind == GATE_BOUND ? -5 : 16};
}
/* Some gates so large that exp overflows or vanishes. */
static void gates(double *z, Tensor t) {
    static const double odd[] = {0, -20, 20, -87, 88, -104, 1000, -1000, 1e-6};
    EACH(z, t, i_ % 5 == 4 ? odd[i_ / 5 % 9] : 4 * v_);
}
MAKE(decay) {
    const int H = 1 + draw_of(c, 3), D = coin(c) ? 1 : c->d;
    a->gate = gate_drawn(c);
    ARG(g, c->N, H, D), ARG(bias, H, D);
    gates(ARG(z, c->N, H, D), a->z);
    if (a->gate.kind != GATE_LOGSIGMOID) ARG(A, H);
}
MAKE(decay_backward) {
    const int H = 1 + draw_of(c, 3), D = coin(c) ? 1 : c->d;
    a->gate = gate_drawn(c);
    ARG(dz, c->N, H, D), ARG(dg, c->N, H, D), ARG(z, c->N, H, D);
    if (ARG(bias, H, D)) ARG(dbias, H, D);
    if (a->gate.kind != GATE_LOGSIGMOID && ARG(A, H)) ARG(dA, H);
    c->terms = c->N * D;
}
MAKE(sigmoid) { ARG(y, c->N, c->d), gates(ARG(x, c->N, c->d), a->x), a->top = 2; }
MAKE(sigmoid_backward) {
    ARG(dx, c->N, c->d), ARG(dy, c->N, c->d), a->top = 2;
    double *y = ARG(y, c->N, c->d);
    EACH(y, a->y, 2 / (1 + exp(-v_)));
}
static GatedNorm norm_drawn(OpCall *c, int *groups) {
    *groups = 1 + draw_of(c, 3), c->d = imax(3, c->d); /* as l2norm_backward */
    c->terms = c->d;
    return (GatedNorm){c->d, coin(c), coin(c), 1e-5};
}
MAKE(gated_norm) {
    int H;
    a->n = norm_drawn(c, &H);
    ARG(y, c->N, H, c->d), ARG(x, c->N, H, c->d), ARG(w, coin(c) ? H : 1, c->d), ARG(z, c->N, H, c->d);
}
MAKE(gated_norm_backward) {
    int H;
    a->n = norm_drawn(c, &H);
    const int gains = coin(c) ? H : 1;
    ARG(dx, c->N, H, c->d), ARG(dz, c->N, H, c->d), ARG(dy, c->N, H, c->d), ARG(x, c->N, H, c->d);
    ARG(z, c->N, H, c->d);
    if (ARG(w, gains, c->d)) ARG(dw, gains, c->d);
    c->terms = imax(c->d, c->N * H);
}
MAKE(repeat) {
    double *row = call_own(c, sizeof(double) * (size_t)(2 * c->d));
    for (int i = 0; i < 2 * c->d; i++) row[i] = (double)(real)uniform_in(c, -3, 3);
    ARG(y, c->N, 2, c->d), a->row = row;
}
MAKE(elu1) { ARG(y, c->N, c->d), ARG(x, c->N, c->d); }
MAKE(elu1_backward) {
    ARG(dx, c->N, c->d), ARG(dy, c->N, c->d);
    double *y = ARG(y, c->N, c->d);
    EACH(y, a->y, v_ > 0 ? v_ + 1 : exp(v_));
}
MAKE(append_ones) { ARG(y, c->N, 2, c->d + 1), ARG(x, c->N, 2, c->d); }
MAKE(append_ones_backward) { ARG(dx, c->N, 2, c->d), ARG(dy, c->N, 2, c->d + 1); }
static void denominators(double *x, Tensor t, int V) { EACH(x, t, (int)i_ % (V + 1) == V ? 0.2 + fabs(v_) : v_); }
MAKE(divide_by_last) {
    ARG(y, c->N, 2, c->d), a->eps = 1e-2;
    denominators(ARG(x, c->N, 2, c->d + 1), a->x, c->d);
}
MAKE(divide_by_last_backward) {
    ARG(dx, c->N, 2, c->d + 1), ARG(dy, c->N, 2, c->d), ARG(y, c->N, 2, c->d), a->eps = 1e-2;
    denominators(ARG(x, c->N, 2, c->d + 1), a->x, c->d);
    c->terms = c->d;
}
MAKE(step) {
    const int H = 1 + draw_of(c, 3);
    ARG(y, c->N, H, c->d), ARG(x, c->N, H, c->d), ARG(bias, H);
    gates(ARG(z, c->N, H), a->z);
}
MAKE(step_backward) {
    const int H = 1 + draw_of(c, 3);
    ARG(dx, c->N, H, c->d), ARG(dz, c->N, H), ARG(dbias, H), ARG(dy, c->N, H, c->d), ARG(x, c->N, H, c->d);
    ARG(z, c->N, H), ARG(bias, H);
    c->terms = c->d + c->N;
}
MAKE(skip) {
    const int H = 1 + draw_of(c, 3);
    ARG(y, c->N, H, c->d), ARG(x, c->N, H, c->d), ARG(w, H);
}
MAKE(skip_backward) {
    const int H = 1 + draw_of(c, 3);
    ARG(dx, c->N, H, c->d), ARG(dw, H), ARG(dy, c->N, H, c->d), ARG(x, c->N, H, c->d), ARG(w, H);
    c->terms = c->N * c->d;
}

/* ---- elements ---- */
MAKE(swiglu) { ARG(y, c->N, c->d), gates(ARG(gate, c->N, c->d), a->gate), ARG(up, c->N, c->d); }
MAKE(swiglu_backward) {
    ARG(y, c->N, c->d), ARG(dgate, c->N, c->d), ARG(dup, c->N, c->d), ARG(dy, c->N, c->d), ARG(up, c->N, c->d);
    gates(ARG(gate, c->N, c->d), a->gate);
}
MAKE(geglu) {
    ARG(y, c->N, c->d), ARG(up, c->N, c->d), a->tanh = coin(c);
    double *gate = ARG(gate, c->N, c->d);
    EACH(gate, a->gate, 3 * v_);
}
MAKE(geglu_backward) {
    ARG(y, c->N, c->d), ARG(dgate, c->N, c->d), ARG(dup, c->N, c->d), ARG(dy, c->N, c->d), ARG(up, c->N, c->d);
    double *gate = ARG(gate, c->N, c->d);
    a->tanh = coin(c);
    EACH(gate, a->gate, 3 * v_);
}
MAKE(swiglu_rows) {
    ARG(y, c->N, c->d), ARG(up, c->N, c->d), ARG(s, c->N);
    gates(ARG(gate, c->N, c->d), a->gate);
}
MAKE(swiglu_rows_backward) {
    ARG(dgate, c->N, c->d), ARG(dup, c->N, c->d), ARG(ds, c->N), ARG(dy, c->N, c->d), ARG(up, c->N, c->d);
    ARG(s, c->N), gates(ARG(gate, c->N, c->d), a->gate);
    c->terms = c->d;
}
MAKE(swiglu_limit) {
    ARG(y, c->N, c->d), ARG(s, c->N), a->alpha = 1.75, a->limit = 1.5;
    double *gate = ARG(gate, c->N, c->d), *up = ARG(up, c->N, c->d);
    EACH(gate, a->gate, 2 * v_);
    EACH(up, a->up, 2 * v_);
}
MAKE(swiglu_limit_backward) {
    ARG(dgate, c->N, c->d), ARG(dup, c->N, c->d), ARG(ds, c->N), ARG(dy, c->N, c->d), ARG(s, c->N);
    double *gate = ARG(gate, c->N, c->d), *up = ARG(up, c->N, c->d);
    a->alpha = 1.75, a->limit = 1.5, c->terms = c->d;
    EACH(gate, a->gate, 2 * v_);
    EACH(up, a->up, 2 * v_);
}
MAKE(relu2) { ARG(y, c->N, c->d), ARG(x, c->N, c->d), ARG(s, c->N); }
MAKE(relu2_backward) {
    ARG(dx, c->N, c->d), ARG(ds, c->N), ARG(dy, c->N, c->d), ARG(x, c->N, c->d), ARG(s, c->N), c->terms = c->d;
}
MAKE(sigmoid_gate) { ARG(y, c->N, c->d), ARG(x, c->N, c->d), gates(ARG(z, c->N, c->d), a->z); }
MAKE(sigmoid_gate_backward) {
    ARG(dx, c->N, c->d), ARG(dz, c->N, c->d), ARG(dy, c->N, c->d), ARG(x, c->N, c->d);
    gates(ARG(z, c->N, c->d), a->z);
}
MAKE(attend_sink) {
    const int H = 1 + draw_of(c, 3);
    ARG(o, c->N, H, c->d), ARG(lse, c->N, H), ARG(w, H);
}
MAKE(attend_sink_backward) {
    const int H = 1 + draw_of(c, 3);
    ARG(dw, H), ARG(dout, c->N, H, c->d), ARG(o, c->N, H, c->d), ARG(lse, c->N, H), ARG(w, H);
    c->terms = c->N * c->d;
}
MAKE(gelu) {
    ARG(y, c->N, c->d), a->tanh = coin(c);
    double *x = ARG(x, c->N, c->d);
    EACH(x, a->x, 3 * v_);
}
MAKE(gelu_backward) {
    ARG(dx, c->N, c->d), ARG(dy, c->N, c->d), a->tanh = coin(c);
    double *x = ARG(x, c->N, c->d);
    EACH(x, a->x, 3 * v_);
}
MAKE(add) { ARG(y, c->N, c->d), ARG(x, c->N, c->d); }
MAKE(axpby) { ARG(y, c->N, c->d), ARG(x, c->N, c->d), a->a = 0.25, a->b = -1.75; }
MAKE(copy) { ARG(y, c->N, c->d), ARG(x, c->N, c->d); }
MAKE(zero) { ARG(y, c->N, c->d); }
MAKE(round_to_bf16) { ARG(x, c->N, c->d); }
MAKE(hadamard) { ARG(x, c->N, c->d), c->terms = hadamard_width(c->d); }
MAKE(dropout) {
    c->run.out = call_some_rows(c);
    ARG(x, c->run.out.n, c->d), a->site = DROP_FFN, a->p = coin(c) ? 0.3 : 0;
}

/* ---- rows ---- */
MAKE(spread) {
    const int M = 1 + draw_of(c, c->N);
    ARG(y, c->N, c->d), ARG(x, M, c->d), a->row = call_ints(c, c->N, M);
}
MAKE(collect) {
    const int M = 1 + draw_of(c, c->N);
    a->k = 1 + draw_of(c, 4), a->place = call_ints(c, c->N * a->k, M);
    ARG(y, c->N, c->d), ARG(x, M, c->d);
    c->terms = a->k + 1;
}
MAKE(gather) {
    int *to = call_own(c, (size_t)c->N * sizeof *to);
    a->from = call_some_rows(c), a->to = (RowList){0, to};
    for (int i = 0; i < a->from.n; i++)
        if (draw_of(c, 3)) to[a->to.n++] = a->from.idx[i];
    ARG(y, a->to.n, c->d), ARG(x, a->from.n, c->d);
}
static const size_t *places(OpCall *c, int n, int each, bool in_order) {
    size_t *at = call_own(c, (size_t)n * sizeof *at);
    for (int i = 0; i < n; i++) at[i] = (size_t)((in_order ? i : draw_of(c, n)) * each);
    return at;
}
MAKE(move) {
    a->n = c->N, a->w = 1 + draw_of(c, c->d), a->to = places(c, c->N, c->d, true),
    a->from = places(c, c->N, c->d, false);
    ARG(y, c->N, c->d), ARG(x, c->N, c->d);
}
MAKE(columns) {
    const int k = 1 + draw_of(c, 3), M = c->N;
    a->n = draw_of(c, c->d + 1), a->to = draw_of(c, 3), a->from = draw_of(c, 3);
    ARG(y, k * M, a->to + a->n + 2), ARG(x, M, a->from + a->n + 1);
}
MAKE(columns_backward) {
    const int k = 1 + draw_of(c, 3), M = c->N;
    a->n = draw_of(c, c->d + 1), a->to = draw_of(c, 3), a->from = draw_of(c, 3);
    ARG(dy, k * M, a->to + a->n + 2), ARG(dx, M, a->from + a->n + 1);
    call_slot(c, &a->dx.t)->partial = true; /* other columns stay */
    c->terms = k + 1;
}
static const RowCodec *codec_drawn(OpCall *c) {
    const int first = cuda_ops() ? 2 : 0; /* whose kernels write no f32 and bf16 by these ops */
    int n = 0;
    while (codec_at(n) && !codec_at(n)->block) n++; /* the last of the table store several rows together */
    return codec_at(first + draw_of(c, n - first));
}
MAKE(encode_rows) {
    a->codec = codec_drawn(c), a->n = c->N, a->w = c->d;
    const size_t room = (a->codec->bytes(a->codec, c->d) + 7) / 8 * 8, bytes = room * (size_t)c->N;
    ARG(x, c->N, c->d), a->to = places(c, c->N, (int)room, true), a->from = places(c, c->N, c->d, false);
    a->data = TENSOR(call_own(c, bytes), REAL, c->N, (int)(room / sizeof(real)));
    call_raw(c, &a->data.p, bytes, RAW_EXACT, false);
}
MAKE(recode_rows) { ARG(x, c->N, c->d), a->codec = codec_drawn(c); }
