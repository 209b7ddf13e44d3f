/* merge.c: running means over runs of rows, and the decisions that delimit these runs. */
#include "ref.h"

/* The rows that the mean of row t consists of, newest first: weight c = p_tj w_j, and where the row is. */
typedef struct {
    double c, p;
    long x; /* its first element in x, or in past */
    bool is_past;
    int row; /* of the pass */
} Member;
/* a_t: 0 where a document begins, whose first row merges with nothing. */
static double merges(const Batch *b, Tensor a, int t, int h) { return b->first[t] == t ? 0 : get2(a, t, h); }
static int members(const Batch *b, Tensor x, Tensor a, Tensor w, Tensor past, int at, int window, int t, int h,
                   Member *out) {
    const int s = b->of[t], begin = imax(b->first[t], b->off[s]), most = window ? window : INT32_MAX;
    int n = 0;
    double p = 1;
    for (int j = t; j >= begin && n < most; j--) {
        out[n++] = (Member){p * get2(w, j, h), p, at3(x, j, h, 0), false, j};
        p *= merges(b, a, j, h);
    }
    if (b->first[t] != -1 || !present(past)) return n;
    const int R = past.n[2], C = past.n[3], older = imin(R, b->pos[begin]);
    for (int i = 1; i <= older && n < most; i++) {
        const long row = (((long)b->seq[s] * past.n[1] + h) * R + R - i) * C;
        out[n++] = (Member){p * get(past, row + C - 2), p, row + at, true, -1};
        p *= get(past, row + C - 1);
    }
    return n;
}
void ref_merge(Run *r, Tensor y, Tensor z, Tensor x, Tensor a, Tensor w, int window, Tensor past, int at) {
    const Batch *b = r->batch;
    Member *m = xcalloc((size_t)(b->N + (present(past) ? past.n[2] : 0)), sizeof *m);
    for (int t = 0; t < b->N; t++)
        for (int h = 0; h < x.n[1]; h++) {
            const int n = members(b, x, a, w, past, at, window, t, h, m);
            double all = 0;
            for (int i = 0; i < n; i++) all += m[i].c;
            put2(z, t, h, all);
            for (int k = 0; k < x.n[2]; k++) {
                double sum = 0;
                for (int i = 0; i < n; i++) sum += m[i].c / all * get(m[i].is_past ? past : x, m[i].x + k);
                put3(y, t, h, k, sum);
            }
        }
    free(m);
}
void ref_merge_backward(Run *r, Tensor dx, Tensor da, Tensor dw, Tensor dy, Tensor x, Tensor y, Tensor z, Tensor a,
                        Tensor w, int window) {
    const Batch *b = r->batch;
    const int D = x.n[2];
    double *sum_x = zeros_like(dx), *sum_a = zeros_like(da), *sum_w = zeros_like(dw);
    Member *m = xcalloc((size_t)b->N + 1, sizeof *m);
    for (int t = 0; t < b->N; t++)
        for (int h = 0; h < x.n[1]; h++) {
            const int n = members(b, x, a, w, ABSENT, 0, window, t, h, m);
            const double zt = get2(z, t, h);
            for (int i = 0; i < n; i++) {
                const int j = m[i].row;
                double e = 0;
                for (int k = 0; k < D; k++) e += (get3(x, j, h, k) - get3(y, t, h, k)) * get3(dy, t, h, k) / zt;
                for (int k = 0; k < D; k++) sum_x[at3(x, j, h, k)] += m[i].c / zt * get3(dy, t, h, k);
                sum_w[at2(w, j, h)] += m[i].p * e;
                for (int v = j + 1; v <= t; v++) { /* every a_v that p_tj has as a factor */
                    double others = 1;
                    for (int f = j + 1; f <= t; f++) others *= f == v ? 1 : merges(b, a, f, h);
                    sum_a[at2(a, v, h)] += get2(w, j, h) * e * others;
                }
            }
        }
    deposit(add_to(dx), sum_x), deposit(add_to(da), sum_a), deposit(add_to(dw), sum_w);
    free(m);
}

/* ---- decisions ---- */
void ref_decide(Run *r, Tensor alpha, Tensor omega, Tensor bias, Tensor evicted, Tensor u, Tensor past, Decide c) {
    const Batch *b = r->batch;
    const int G = alpha.n[1];
    const bool train = r->mode & RUN_TRAIN, noisy = train && !(r->mode & RUN_STILL);
    for (long i = 0; i < count(bias); i++) put(bias, i, 0);
    for (int i = 0; i < b->N; i++)
        for (int h = 0; h < G; h++) {
            const bool begins = b->first[i] == i, inside = i > b->off[b->of[i]];
            const double p = noisy ? rng_uniform(noise_row(r, noise_key(r, NOISE_DECISION), i), (uint64_t)h) : 0.5,
                         by = !c.itself ? get2(u, i, h)
                              : begins  ? 0
                              : inside  ? get2(u, i - 1, h)
                                        : get(past, (long)b->seq[b->of[i]] * G + h),
                         l = (c.gain * by - c.offset + log(p / (1 - p))) / c.temperature;
            const bool hard = l > 0 && !begins;
            const double soft = begins ? 0 : train ? sigmoid_of(l) : hard;
            put2(alpha, i, h, soft);
            if (present(evicted)) put2(evicted, i, h, hard);
            if (present(omega)) put2(omega, i, h, sigmoid_of(get2(u, i, G + h) + c.offset) + c.eps);
            if (!begins && inside) put2(bias, i - 1, h, train ? -softplus_of(l) : hard ? -INFINITY : 0);
            if (!present(r->stat)) continue;
            const long stat = ((long)b->of[i] * STATS + STAT_MERGED) * 2;
            const bool counted = r->mode & RUN_COUNT_STILL ? c.gain * by > c.offset && !begins : hard;
            put(r->stat, stat, get(r->stat, stat) + (r->mode & RUN_SMOOTH ? soft : counted));
            put(r->stat, stat + 1, get(r->stat, stat + 1) + 1);
        }
}
void ref_decide_backward(Run *r, Tensor du, Tensor dm, Tensor dalpha, Tensor domega, Tensor dbias, Tensor alpha,
                         Tensor omega, Decide c) {
    const Batch *b = r->batch;
    for (int i = 0; i < b->N; i++)
        for (int h = 0; h < alpha.n[1]; h++) {
            const double a = get2(alpha, i, h),
                         asked = present(r->dstat) ? get(r->dstat, (long)b->of[i] * STATS + STAT_MERGED) : 0,
                         da = (present(dalpha) ? get2(dalpha, i, h) : 0) + asked;
            if (b->first[i] != i)
                put_into2(add_to(du), c.itself ? i - 1 : i, h,
                          c.gain / c.temperature * (da * a * (1 - a) - a * get2(dbias, i - 1, h)));
            if (!present(dm)) continue;
            const double o = get2(omega, i, h) - c.eps;
            put_into2(add_to(dm), i, h, get2(domega, i, h) * o * (1 - o) / c.group);
        }
}
