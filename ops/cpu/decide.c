/* decide.c: hard and soft decisions about rows of the cache, computed in f64 from a hidden element; the means of
 * weights' rows that decide, and the scaling of a column of heads. */
#include "vec.h"

static double logistic(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static size_t lane_cell(Tensor t, int row, int h) { return (size_t)row * (size_t)t.n[1] + (size_t)h; }

/* The element by which row i decides in lane h; 0 where it begins a document, of which it does not. */
static double deciding(const Batch *b, Tensor u, Tensor past, Decide d, int i, int h) {
    if (!d.itself) return R(u)[lane_cell(u, i, h)];
    if (b->first[i] == i) return 0;
    if (i > b->off[b->of[i]]) return R(u)[lane_cell(u, i - 1, h)];
    return R(past)[(size_t)b->seq[b->of[i]] * (size_t)u.n[1] + (size_t)h];
}
static void decide(Run *r, Tensor alpha, Tensor omega, Tensor bias, Tensor evicted, Tensor u, Tensor past, Decide d) {
    const Batch *b = r->batch;
    int G = alpha.n[1], N = b->N;
    check_decide(r, alpha, omega, bias, u, past, d);
    if (measuring(r)) return;
    bool train = r->mode & RUN_TRAIN;
    uint64_t key = noise_key(r, NOISE_DECISION);
    for (int i = 0; i < N; i++)
        for (int h = 0; h < G; h++) {
            bool begins = b->first[i] == i;
            size_t at = lane_cell(alpha, i, h);
            double p = train && !(r->mode & RUN_STILL) ? rng_uniform(noise_row(r, key, i), (uint64_t)h) : 0.5;
            double still = d.gain * deciding(b, u, past, d, i, h) - d.offset,
                   l = (still + log(p / (1 - p))) / d.temperature;
            bool hard = l > 0 && !begins;
            real soft = begins ? 0 : train ? (real)logistic(l) : hard;
            R(alpha)[at] = soft;
            R(bias)[at] = 0;
            if (i > b->off[b->of[i]] && !begins)
                R(bias)[at - (size_t)G] = train ? (real)-softplus(l) : hard ? -INFINITY : 0;
            if (present(evicted)) R(evicted)[at] = hard;
            if (present(omega)) R(omega)[at] = (real)(logistic(R(u)[lane_cell(u, i, G + h)] + d.offset) + d.eps);
            if (!present(r->stat)) continue;
            real *stat = R(r->stat) + ((size_t)b->of[i] * STATS + STAT_MERGED) * 2;
            stat[0] += r->mode & RUN_SMOOTH ? soft : r->mode & RUN_COUNT_STILL ? still > 0 && !begins : hard;
            stat[1] += 1;
        }
}
static void decide_backward(Run *r, Tensor du, Tensor dm, Tensor dalpha, Tensor domega, Tensor dbias, Tensor alpha,
                            Tensor omega, Decide d) {
    const Batch *b = r->batch;
    int G = alpha.n[1];
    check_decide_backward(r, du, dm, domega, alpha);
    if (measuring(r)) return;
    for (int i = 0; i < b->N; i++)
        for (int h = 0; h < G; h++) {
            size_t at = lane_cell(alpha, i, h);
            double a = R(alpha)[at], dl = 0;
            double asked = present(r->dstat) ? R(r->dstat)[b->of[i] * STATS + STAT_MERGED] : 0;
            if (b->first[i] != i)
                dl = ((present(dalpha) ? R(dalpha)[at] : 0) + asked) * a * (1 - a) - a * R(dbias)[at - (size_t)G];
            if (!d.itself || b->first[i] != i)
                R(du)[d.itself ? at - (size_t)G : at] += (real)(dl * d.gain / d.temperature);
            if (!present(dm)) continue;
            double o = R(omega)[at] - d.eps;
            R(dm)[at] += (real)(R(domega)[at] * o * (1 - o) / d.group);
        }
}

static void mean_rows(Run *r, Tensor y, Tensor w, int each, int at, int k) {
    enum { PIECE = 256 };
    int n = y.n[0], d = y.rank > 1 ? y.n[1] : 1;
    check_mean_rows(y, w, each, at, k);
    if (measuring(r)) return;
    for (int g = 0; g < n; g++)
        for (int c = 0; c < d; c += PIECE) {
            int m = imin(PIECE, d - c);
            real *to = R(y) + (size_t)g * (size_t)d + c, row[PIECE];
            memset(to, 0, (size_t)m * sizeof *to);
            for (int i = 0; i < k; i++) {
                size_t from = ((size_t)g * (size_t)k + (size_t)i) * (size_t)each + (size_t)at;
                tensor_read(w, from * (size_t)d + (size_t)c, (size_t)m, row);
                for (int j = 0; j < m; j++) to[j] += row[j] / (real)k;
            }
        }
}
static void scale_column(Run *r, Tensor x, int c, double m) {
    size_t w = (size_t)x.n[x.rank - 1], n = tensor_count(x) / w;
    check_scale_column(x, c);
    if (measuring(r)) return;
    real f = (real)m;
    for (size_t i = 0; i < n; i++) R(x)[i * w + (size_t)c] *= f;
}
