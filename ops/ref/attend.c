/* attend.c: softmax attention over the rows of a pass and over cached lanes, and its gradients. */
#include "ref.h"

/* One query's softmax: log-sum-exp and mean of values so far. */
typedef struct {
    double lse, *o;
    int D;
} Partial;
/* Adds a key of score s whose value is v. */
static void partial_add(Partial *p, double s, const double *v) {
    if (s == -INFINITY) return;
    const double top = fmax(p->lse, s), had = exp(p->lse - top), gets = exp(s - top);
    for (int c = 0; c < p->D; c++) p->o[c] = (had * p->o[c] + gets * v[c]) / (had + gets);
    p->lse = top + log(had + gets);
}
/* The partial that entry `at` of o and lse begins with: of no key unless merge. */
static void partial_begin(Partial *p, Tensor o, Tensor lse, long at, bool merge) {
    p->lse = merge ? get(lse, at) : -INFINITY;
    for (int c = 0; c < p->D; c++) p->o[c] = p->lse > -INFINITY ? get(o, at * p->D + c) : 0;
}
static void partial_store(const Partial *p, Tensor o, Tensor lse, long at) {
    put(lse, at, p->lse);
    for (int c = 0; c < p->D; c++) put(o, at * p->D + c, p->o[c]);
}

static bool in_window(AttnSpec spec, int query, int key) {
    return !spec.window || query - key < spec.window || key < spec.sinks;
}

/* ---- rows of the pass ---- */
/* Row i sees row j: of its document, not later, in the window. */
static bool sees(const Batch *b, AttnSpec spec, int i, int j) {
    const int begin = imax(b->first[i], b->off[b->of[i]]);
    return j >= begin && j <= i && in_window(spec, b->pos[i], b->pos[j]);
}
static double key_at(const Kv *kv, int j, int lane, int c) { return get3(kv->k, j, lane, c); }
static double value_at(const Kv *kv, int j, int lane, int c) { return get3(kv->s.alias ? kv->k : kv->v, j, lane, c); }
static bool biased(const Kv *kv, const Batch *b, int i, int j) {
    return present(kv->bias) && b->pos[i] - b->pos[j] > kv->s.delay;
}
static double capped(AttnSpec spec, double s) { return spec.cap > 0 ? spec.cap * tanh(s / spec.cap) : s; }
/* Entry `at` of q is head h of row i. */
static double capped_score(const Kv *kv, AttnSpec spec, Tensor q, long at, int j, int lane) {
    double s = 0;
    for (int c = 0; c < kv->s.kdim; c++) s += spec.scale * get(q, at * kv->s.kdim + c) * key_at(kv, j, lane, c);
    return capped(spec, s);
}
static double score_of(const Kv *kv, const Batch *b, AttnSpec spec, Tensor q, long at, int i, int j, int lane) {
    return capped_score(kv, spec, q, at, j, lane) + (biased(kv, b, i, j) ? get2(kv->bias, j, lane) : 0);
}

void ref_attend(Run *r, Tensor o, Tensor lse, Tensor q, const Kv *kv, AttnSpec spec, bool merge) {
    const Batch *b = r->batch;
    double mean[kv->s.vdim], v[kv->s.vdim];
    for (int m = 0; m < r->out.n; m++)
        for (int h = 0; h < spec.heads; h++) {
            const long at = (long)m * spec.heads + h;
            const int i = r->out.idx[m], lane = h / (spec.heads / kv->s.lanes);
            Partial p = {.o = mean, .D = kv->s.vdim};
            partial_begin(&p, o, lse, at, merge);
            for (int j = 0; j <= i; j++) {
                if (!sees(b, spec, i, j)) continue;
                for (int c = 0; c < p.D; c++) v[c] = value_at(kv, j, lane, c);
                partial_add(&p, score_of(kv, b, spec, q, at, i, j, lane), v);
            }
            partial_store(&p, o, lse, at);
        }
}
void ref_attend_backward(Run *r, Into dq, const KvInto *dkv, Tensor dout, Tensor q, const Kv *kv, AttnSpec spec,
                         Tensor o, Tensor lse) {
    const Batch *b = r->batch;
    const int lanes = kv->s.lanes, Dk = kv->s.kdim, Dv = kv->s.vdim;
    double *sum_q = zeros_like(dq.t), *sum_k = zeros_like(dkv->kv.k), *sum_v = zeros_like(dkv->kv.v),
           *sum_bias = zeros_like(dkv->kv.bias);
    for (int i = 0; i < b->N; i++)
        for (int h = 0; h < spec.heads; h++) {
            const long at = (long)i * spec.heads + h;
            const int lane = h / (spec.heads / lanes);
            double delta = 0;
            for (int c = 0; c < Dv; c++) delta += get(dout, at * Dv + c) * get(o, at * Dv + c);
            for (int j = 0; j <= i; j++) {
                if (!sees(b, spec, i, j)) continue;
                const long row = (long)j * lanes + lane;
                const double p = exp(score_of(kv, b, spec, q, at, i, j, lane) - get(lse, at));
                double dp = 0;
                for (int c = 0; c < Dv; c++) dp += get(dout, at * Dv + c) * value_at(kv, j, lane, c);
                const double ds = p * (dp - delta);
                const double tanh_s = spec.cap > 0 ? capped_score(kv, spec, q, at, j, lane) / spec.cap : 0,
                             slope = spec.scale * (1 - tanh_s * tanh_s); /* of the score by q.k */
                if (biased(kv, b, i, j)) sum_bias[row] += ds;
                for (int c = 0; c < Dv; c++) sum_v[row * Dv + c] += p * get(dout, at * Dv + c);
                for (int c = 0; c < Dk; c++) {
                    sum_q[at * Dk + c] += slope * ds * key_at(kv, j, lane, c);
                    sum_k[row * Dk + c] += slope * ds * get(q, at * Dk + c);
                }
            }
        }
    deposit(dq, sum_q), deposit(keys_into(dkv), sum_k), deposit(values_into(dkv), sum_v);
    deposit(add_to(dkv->kv.bias), sum_bias);
}

/* ---- cached lanes ---- */
/* Where row n of a lane is: its page and its place in it. */
typedef struct {
    int page, place;
} Where;
static Where where_is(const Lanes *l, int lane, int n) {
    return (Where){l->table[lane * l->maxpages + n / l->P % l->maxpages], n % l->P};
}
/* Of a block: a piece for each element of the key, of all rows; then one for each value. */
static void block_row(const Lanes *l, Where w, real *key, real *value) {
    const KvShape *s = &l->s;
    const RowCodec *c = s->codec;
    const char *in = lanes_block(l, w.page);
    if (c->block_decode) {
        const int P = c->block, vdim = s->alias ? 0 : s->vdim;
        real *keys = xcalloc((size_t)P * (size_t)(s->kdim + vdim), sizeof *keys), *values = keys + P * s->kdim;
        c->block_decode(c, keys, values, in, lanes_below(l, w.page), s->kdim, vdim);
        for (int k = 0; k < s->kdim; k++) key[k] = keys[k * P + w.place];
        memcpy(value, s->alias ? key : values + w.place * vdim, (size_t)s->vdim * sizeof *value);
        free(keys);
        return;
    }
    real channel[c->block];
    for (int k = 0; k < s->kdim; k++, in += c->piece_bytes(c, c->block)) {
        c->piece_decode(c, channel, in, c->block);
        key[k] = channel[w.place];
    }
    if (s->alias)
        memcpy(value, key, (size_t)s->vdim * sizeof *value);
    else
        c->piece_decode(c, value, in + (size_t)w.place * c->piece_bytes(c, s->vdim), s->vdim);
}
static void cached_row(const Lanes *l, int lane, int n, real *key, real *value) {
    const Where w = where_is(l, lane, n);
    if (w.page >= l->npages) {
        block_row(l, w, key, value);
        return;
    }
    row_decode(l, key, false, lane, n);
    if (l->s.alias)
        memcpy(value, key, (size_t)l->s.vdim * sizeof *value);
    else
        row_decode(l, value, true, lane, n);
}
void ref_attend_lanes(Run *r, Tensor o, Tensor lse, Tensor q, const Lanes *l, const Kv *pass, AttnSpec spec,
                      bool merge) {
    const Batch *b = r->batch;
    const int Dk = l->s.kdim, Dv = l->s.vdim;
    double mean[Dv], v[Dv];
    real key[Dk], value[imax(Dk, Dv)];
    for (int m = 0; m < r->out.n; m++)
        for (int h = 0; h < spec.heads; h++) {
            const long at = (long)m * spec.heads + h;
            const int i = r->out.idx[m], s = b->of[i], head = h / (spec.heads / l->s.lanes),
                      lane = b->seq[s] * l->s.lanes + head, sinks = imin(l->s0[lane] + l->s.sinks, l->lo[lane]);
            const bool evicts = l->s.evicts && get2(pass->evicted, b->off[s], head) != 0; /* the newest cached row */
            Partial p = {.o = mean, .D = Dv};
            if (merge && b->first[i] != -1) continue;
            partial_begin(&p, o, lse, at, merge);
            for (int n = 0; b->first[i] == -1 && n < l->hi[lane]; n++) {
                if (!(n >= l->s0[lane] && n < sinks) && n < l->lo[lane]) continue; /* neither a sink nor in the lane */
                const Where w = where_is(l, lane, n);
                const int pos = l->pos[w.page * l->P + w.place];
                const bool evicted =
                    l->s.evicts && (l->evicted[w.page * l->P + w.place] || (evicts && n == l->tail[lane]));
                if (pos == ROW_GONE || !in_window(spec, b->pos[i], pos) || (evicted && b->pos[i] - pos > l->s.delay))
                    continue;
                double score = 0;
                cached_row(l, lane, n, key, value);
                for (int c = 0; c < Dk; c++) score += spec.scale * get(q, at * Dk + c) * key[c];
                for (int c = 0; c < Dv; c++) v[c] = value[c];
                partial_add(&p, capped(spec, score), v);
            }
            partial_store(&p, o, lse, at);
        }
}

/* What the queries of one head gave a row: p[i] of query i, which sees[i] rows; 0: not this one. */
static double over_queries(ColReduce how, int n, const double *p, const int *sees) {
    double y = 0;
    for (int i = 0; i < n; i++) y = how == COL_MAX ? fmax(y, p[i]) : y + (how == COL_SUM ? p[i] : p[i] * sees[i] > 1);
    return y;
}
static double norm_of(ColValue how, const real *v, int n) {
    double sum = 0, squares = 0;
    for (int k = 0; k < n; k++) sum += fabs((double)v[k]), squares += (double)v[k] * (double)v[k];
    return how == COL_PLAIN ? 1 : how == COL_L1 ? sum : sqrt(squares);
}
/* ColStat.older. */
static void colstat_older(Tensor stat, Tensor q, const Lanes *l, ColStat c) {
    const int Dk = l->s.kdim, Dv = l->s.vdim, heads = q.n[1], group = heads / l->s.lanes;
    real key[Dk], value[imax(Dk, Dv)];
    for (int h = 0; h < l->s.lanes; h++) {
        const int lane = c.seq * l->s.lanes + h, rows = l->hi[lane] - l->lo[lane];
        double *s = xcalloc((size_t)(rows * c.n) + 1, sizeof *s), norm[rows + 1];
        for (int j = 0; j < rows; j++) {
            const Where w = where_is(l, lane, l->lo[lane] + j);
            const int pos = l->pos[w.page * l->P + w.place];
            cached_row(l, lane, l->lo[lane] + j, key, value);
            norm[j] = norm_of(c.value, value, Dv);
            for (int i = 0; i < c.n; i++) {
                const long at = (long)((c.from + i) % q.n[0]) * heads + h * group;
                for (int k = 0; k < Dk; k++)
                    for (int g = 0; g < group; g++) s[j * c.n + i] += get(q, (at + g) * Dk + k) * key[k];
                if (pos == ROW_GONE || pos >= c.from) s[j * c.n + i] = -INFINITY;
            }
        }
        for (int i = 0; i < c.n; i++) {
            double top = -INFINITY, sum = 0;
            for (int j = 0; j < rows; j++) top = fmax(top, s[j * c.n + i]);
            for (int j = 0; j < rows && top > -INFINITY; j++) sum += exp(s[j * c.n + i] - top);
            for (int j = 0; j < rows; j++) s[j * c.n + i] = sum > 0 ? exp(s[j * c.n + i] - top) / sum : 0;
        }
        for (int j = 0; j < stat.n[1]; j++)
            put2(stat, h, j, j < rows ? over_queries(c.queries, c.n, s + j * c.n, NULL) * norm[j] : 0);
        free(s);
    }
}
void ref_colstat(Run *r, Tensor stat, Tensor q, Tensor lse, const Lanes *l, ColStat c) {
    if (c.older) {
        colstat_older(stat, q, l, c);
        return;
    }
    const int Dk = l->s.kdim, Dv = l->s.vdim, heads = q.n[1], group = heads / l->s.lanes;
    real key[Dk], value[imax(Dk, Dv)];
    double p[c.n + 1];
    int sees[c.n + 1];
    for (int h = 0; h < l->s.lanes; h++) {
        const int lane = c.seq * l->s.lanes + h, rows = l->hi[lane] - l->lo[lane];
        for (int i = 0; i < c.n; i++) {
            sees[i] = 0;
            for (int n = l->lo[lane]; n < l->hi[lane]; n++) {
                const Where w = where_is(l, lane, n);
                const int pos = l->pos[w.page * l->P + w.place];
                sees[i] += pos != ROW_GONE && pos <= c.from + i;
            }
        }
        for (int j = 0; j < stat.n[1]; j++) {
            double all = 0;
            for (int g = 0; g < group && j < rows; g++) {
                const Where w = where_is(l, lane, l->lo[lane] + j);
                cached_row(l, lane, l->lo[lane] + j, key, value);
                for (int i = 0; i < c.n; i++) {
                    const long at = (long)((c.from + i) % q.n[0]) * heads + h * group + g;
                    double s = -get(lse, at);
                    for (int k = 0; k < Dk; k++) s += get(q, at * Dk + k) * key[k];
                    const int pos = l->pos[w.page * l->P + w.place];
                    p[i] = pos != ROW_GONE && pos <= c.from + i ? exp(s) : 0;
                }
                const double one = over_queries(c.queries, c.n, p, sees);
                all = c.heads == COL_MAX ? fmax(all, one) : all + one;
            }
            put2(stat, h, j, j < rows ? all * norm_of(c.value, value, Dv) : 0);
        }
    }
}
