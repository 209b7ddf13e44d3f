/* recur.c: the gated delta rule (ops/recur.h), row by row, and the short convolution before it. */
#include "ref.h"

/* ---- the recurrence ---- */
static double decay_of(Recur x, int t, int h, int d) {
    if (!present(x.g)) return 1;
    return exp(get3(x.g, t, h, size_of(x.g, 0) == 1 ? 0 : d));
}
/* What a row does to a state: D = Diag(a) S, u = beta (v - D^T e) or v, S = D + k u^T. */
typedef struct {
    double *D, *miss, *u, *S; /* (K,V), (V): v - D^T e or v, (V), (K,V) */
} Step;
static Step step_make(int K, int V) {
    const size_t KV = (size_t)K * (size_t)V;
    double *all = xcalloc(2 * KV + 2 * (size_t)V, sizeof *all);
    return (Step){all, all + 2 * KV, all + 2 * KV + V, all + KV};
}
static double erase_of(Recur x, int t, int h, int d) { return get3(present(x.e) ? x.e : x.k, t, h, d); }
static double beta_of(Recur x, long head) { return present(x.beta) ? get(x.beta, head) : 1; }
static void step_row(Step *s, Recur x, const double *before, int t, int h) {
    const int K = x.q.n[2], V = x.v.n[2], hk = h / (x.v.n[1] / x.q.n[1]);
    const bool delta = recur_corrects(&x);
    for (int d = 0; d < K; d++)
        for (int c = 0; c < V; c++) s->D[d * V + c] = decay_of(x, t, h, d) * before[d * V + c];
    for (int c = 0; c < V; c++) {
        double known = 0;
        for (int d = 0; delta && d < K; d++) known += s->D[d * V + c] * erase_of(x, t, hk, d);
        s->miss[c] = get3(x.v, t, h, c) - known;
        s->u[c] = beta_of(x, (long)t * x.v.n[1] + h) * s->miss[c];
    }
    for (int d = 0; d < K; d++)
        for (int c = 0; c < V; c++) s->S[d * V + c] = s->D[d * V + c] + get3(x.k, t, hk, d) * s->u[c];
}
/* S of value head h before row t, from that of row t-1: zero where a document begins, the history's where the pass
 * continues one. from: the place of the history in `history`. */
static void state_before(const Batch *b, int t, double *S, int KV, Tensor history, long from) {
    if (b->first[t] != t && t > b->off[b->of[t]]) return;
    CHECK(b->first[t] == t || present(history), "row %d continues a history that is not there", t);
    for (int i = 0; i < KV; i++) S[i] = b->first[t] == t ? 0 : get(history, from + i);
}

void ref_recur(Run *r, Tensor o, Tensor keep, Recur x, double scale, Tensor state, int at) {
    const Batch *b = r->batch;
    const int K = x.q.n[2], HV = x.v.n[1], V = x.v.n[2], KV = K * V;
    double *S = xcalloc((size_t)KV, sizeof *S);
    Step step = step_make(K, V);
    for (int s = 0; s < b->B; s++)
        for (int h = 0; h < HV; h++) {
            const long blob = present(state) ? (long)b->seq[s] * state.n[1] + at + (long)h * KV : 0;
            int begin = b->off[s]; /* of the document, in this pass */
            for (int t = b->off[s]; t < b->off[s + 1]; t++) {
                state_before(b, t, S, KV, state, blob);
                if (b->first[t] == t) begin = t;
                if (present(keep) && t > begin && (t - begin) % RECUR_CHUNK == 0)
                    for (int i = 0; i < KV; i++) put(keep, ((long)(t / RECUR_CHUNK - 1) * HV + h) * KV + i, S[i]);
                step_row(&step, x, S, t, h);
                memcpy(S, step.S, (size_t)KV * sizeof *S);
                for (int c = 0; c < V; c++) {
                    double sum = 0;
                    for (int d = 0; d < K; d++) sum += S[d * V + c] * get3(x.q, t, h / (HV / x.q.n[1]), d);
                    put3(o, t, h, c, scale * sum);
                }
            }
            if (present(state) && !(r->mode & RUN_HOLD) && b->off[s + 1] > b->off[s])
                for (int i = 0; i < KV; i++) put(state, blob + i, S[i]);
        }
    free(S), free(step.D);
}

/* Rows from the last to the first; dS is the gradient of S_t by what comes after row t. The states before every row are
 * made again from the first. */
void ref_recur_backward(Run *r, const RecurInto *d, Tensor dout, Recur x, double scale, Tensor keep,
                        const RecurEnds *ends) {
    const Batch *b = r->batch;
    const int K = x.q.n[2], HV = x.v.n[1], V = x.v.n[2], KV = K * V, G = present(x.g) ? x.g.n[2] : 1;
    const bool delta = recur_corrects(&x);
    double *dq = zeros_like(x.q), *dk = zeros_like(x.k), *dv = zeros_like(x.v), *dg = zeros_like(x.g),
           *dbeta = zeros_like(x.beta), *de = zeros_like(x.e), *dstart = ends ? zeros_like(ends->dstart) : NULL;
    double *before = xcalloc(((size_t)b->N + 1) * (size_t)KV, sizeof *before), *dS = xcalloc((size_t)KV, sizeof *dS);
    Step step = step_make(K, V);
    for (int s = 0; s < b->B; s++)
        for (int h = 0; h < HV; h++) {
            const int hk = h / (HV / x.q.n[1]), from = b->off[s], to = b->off[s + 1];
            const long blob = ends ? ((long)b->seq[s] * HV + h) * KV : 0;
            for (int t = from; t < to; t++) {
                state_before(b, t, before + (long)t * KV, KV, ends ? ends->start : ABSENT, blob);
                step_row(&step, x, before + (long)t * KV, t, h);
                memcpy(before + (long)(t + 1) * KV, step.S, (size_t)KV * sizeof(double));
            }
            for (int i = 0; i < KV; i++) dS[i] = ends && present(ends->dend) ? get(ends->dend, blob + i) : 0;
            for (int t = to - 1; t >= from; t--) {
                const long head = (long)t * HV + h, khead = (long)t * x.q.n[1] + hk;
                double du[V];
                state_before(b, t, before + (long)t * KV, KV, ends ? ends->start : ABSENT, blob);
                step_row(&step, x, before + (long)t * KV, t, h);
                for (int c = 0; c < V; c++) {
                    const double g = get3(dout, t, h, c);
                    du[c] = 0;
                    for (int e = 0; e < K; e++) {
                        const int i = e * V + c;
                        dq[khead * K + e] += scale * step.S[i] * g; /* o = scale S^T q */
                        dS[i] += scale * get3(x.q, t, hk, e) * g;
                        dk[khead * K + e] += dS[i] * step.u[c]; /* S = D + k u^T */
                        du[c] += dS[i] * get3(x.k, t, hk, e);
                    }
                    const double dmiss = du[c] * beta_of(x, head); /* u = beta (v - D^T e) */
                    dv[head * V + c] += dmiss;
                    if (!delta) continue;
                    if (present(x.beta)) dbeta[head] += du[c] * step.miss[c];
                    for (int e = 0; e < K; e++) {
                        (present(x.e) ? de : dk)[khead * K + e] -= step.D[e * V + c] * dmiss;
                        dS[e * V + c] -= erase_of(x, t, hk, e) * dmiss; /* from here on dS is the gradient of D */
                    }
                }
                for (int i = 0; i < KV; i++) { /* D = Diag(exp g) S_t-1 */
                    if (present(x.g)) dg[head * G + (G == 1 ? 0 : i / V)] += dS[i] * step.D[i];
                    dS[i] *= b->first[t] == t ? 0 : decay_of(x, t, h, i / V);
                }
            }
            if (from < to && b->first[from] == -1 && ends && present(ends->dstart))
                for (int i = 0; i < KV; i++) dstart[blob + i] += dS[i];
        }
    deposit(d->q, dq), deposit(d->k, dk), deposit(d->v, dv), deposit(d->g, dg), deposit(d->beta, dbeta),
        deposit(d->e, de);
    if (ends) deposit(add_to(ends->dstart), dstart);
    free(before), free(dS), free(step.D);
}

/* ---- the short convolution ---- */
/* Element c of the input `back` rows before row t: of the pass, of the state, or 0 before the document. */
static double input_at(const Batch *b, Tensor x, int t, int back, int c, int W, Tensor state, int at) {
    const int s = b->of[t], i = t - back;
    if (i >= imax(b->first[t], b->off[s])) return get2(x, i, c);
    if (b->first[t] != -1) return 0;
    const int row = i - b->off[s] + W - 1; /* of the W-1 that the state has, oldest first */
    return row < 0 ? 0 : get(state, (long)b->seq[s] * state.n[1] + at + (long)row * x.n[1] + c);
}
static double convolved(const Batch *b, Tensor x, Tensor w, Tensor bias, int t, int c, Tensor state, int at) {
    if (!present(w)) return get2(x, t, c);
    const int W = size_of(w, 0);
    double sum = present(bias) ? get(bias, c) : 0;
    for (int j = 0; j < W; j++) sum += get(w, (long)c * W + j) * input_at(b, x, t, W - 1 - j, c, W, state, at);
    return sum;
}
void ref_short_conv(Run *r, Tensor y, Tensor x, Tensor w, Tensor bias, bool silu, Tensor state, int at) {
    const Batch *b = r->batch;
    const int C = x.n[1], W = present(w) ? size_of(w, 0) : 1;
    for (int t = 0; t < b->N; t++)
        for (int c = 0; c < C; c++) {
            const double a = convolved(b, x, w, bias, t, c, state, at);
            put2(y, t, c, silu ? silu_of(a) : a);
        }
    if (!present(state) || r->mode & RUN_HOLD) return;
    for (int s = 0; s < b->B; s++) {
        double last[W * C]; /* the W-1 newest inputs of the last document, all read before one is written */
        if (b->off[s] == b->off[s + 1]) continue;
        for (int j = 0; j < W - 1; j++)
            for (int c = 0; c < C; c++) last[j * C + c] = input_at(b, x, b->off[s + 1] - 1, W - 2 - j, c, W, state, at);
        for (int i = 0; i < (W - 1) * C; i++) put(state, (long)b->seq[s] * state.n[1] + at + i, last[i]);
    }
}
void ref_short_conv_backward(Run *r, Into dx, Tensor dw, Tensor dbias, Tensor dy, Tensor x, Tensor w, Tensor bias,
                             bool silu) {
    const Batch *b = r->batch;
    const int C = x.n[1], W = present(w) ? size_of(w, 0) : 1;
    double *sum_x = zeros_like(dx.t), *sum_w = zeros_like(dw), *sum_b = zeros_like(dbias);
    for (int t = 0; t < b->N; t++)
        for (int c = 0; c < C; c++) {
            const double a = convolved(b, x, w, bias, t, c, ABSENT, 0),
                         da = get2(dy, t, c) * (silu ? silu_slope_of(a) : 1);
            if (present(dbias)) sum_b[c] += da;
            for (int j = 0; j < W; j++) {
                const int i = t - (W - 1 - j);
                if (i < b->first[t]) continue;
                if (present(dx.t)) sum_x[(long)i * C + c] += da * (present(w) ? get(w, (long)c * W + j) : 1);
                if (present(dw)) sum_w[(long)c * W + j] += da * get2(x, i, c);
            }
        }
    deposit(dx, sum_x), deposit(add_to(dw), sum_w), deposit(add_to(dbias), sum_b);
}
