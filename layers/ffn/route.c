/* route.c: the router of the mixture of experts: scores, choice, and the order of the pairs. */
#include "ffn.h"
#include "ops/host.h"

#ifdef KV_DOUBLE
    #define EXP exp
#else
    #define EXP expf
#endif
static const real TINY = (real)1e-20; /* avoids a division by 0 when all scores are 0 */

/* From logits to scores, in place. */
static void scores(Run *r, const MoeCfg *c, Tensor p) {
    int N = p.n[0], E = c->experts;
#pragma omp parallel for schedule(static) num_threads(device_threads(r->dev)) if ((long)N * E > 10000)
    for (int i = 0; i < N; i++) {
        real *l = R(p) + (size_t)i * (size_t)E, top = l[0], sum = 0;
        if (c->router == ROUTER_SIGMOID) {
            for (int e = 0; e < E; e++) l[e] = 1 / (1 + EXP(-l[e]));
            continue;
        }
        for (int e = 1; e < E; e++) top = l[e] > top ? l[e] : top;
        for (int e = 0; e < E; e++) sum += l[e] = EXP(l[e] - top);
        for (int e = 0; e < E; e++) l[e] /= sum;
    }
}
void route_scores(Run *r, const MoeCfg *c, Tensor p, Tensor x, Tensor w, Tensor bias) {
    /* the choice depends on it, so a row must give the same scores alone and among others */
    r->ops->linear_invariant(r, p, x, w, bias);
    RunMark mark = run_mark(r);
    Tensor view = host_view(r, p, true);
    if (!measuring(r)) scores(r, c, view);
    host_write(r, p, view);
    run_release(r, mark);
}

/* Flag the k highest of the n scores with `may` set; of equal scores the first. A NaN beats nothing, so a later score
 * is never chosen over it twice and there are always k. */
static void take_highest(const real *score, const bool *may, int n, int k, bool *taken) {
    memset(taken, 0, (size_t)n * sizeof *taken);
    for (int j = 0; j < k; j++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (may[e] && !taken[e] && (best < 0 || score[e] > score[best])) best = e;
        CHECK(best >= 0, "%d of %d", k, n);
        taken[best] = true;
    }
}
static real group_score(const MoeCfg *c, const real *score, int n) {
    real first = score[0], second = 0;
    for (int e = 1; e < n; e++) {
        real s = score[e];
        if (e == 1 || s > second) second = s;
        if (second > first) second = first, first = s;
    }
    return c->router == ROUTER_SIGMOID && n > 1 ? first + second : first;
}
static void choose(const MoeCfg *c, const real *p, const real *bias, int *out) {
    int E = c->experts, groups = c->groups, per = E / groups;
    real score[EXPERTS_MAX], group[EXPERTS_MAX];
    bool may[EXPERTS_MAX], taken[EXPERTS_MAX];
    CHECK(E > 0 && groups > 0 && per > 0, "%d experts in %d groups", E, groups);
    for (int e = 0; e < E; e++) score[e] = bias ? p[e] + bias[e] : p[e], may[e] = true;
    if (c->top_groups < groups) {
        for (int g = 0; g < groups; g++) group[g] = group_score(c, score + g * per, per);
        take_highest(group, may, groups, c->top_groups, taken);
        for (int e = 0; e < E; e++) may[e] = taken[e / per];
    }
    take_highest(score, may, E, c->top_k, taken);
    for (int e = 0, j = 0; e < E; e++)
        if (taken[e]) out[j++] = e;
}

/* Counting sort: rows of an expert stay in order. */
static void sort_pairs(const MoeCfg *c, const Route *t, int N) {
    int E = c->experts, K = c->top_k;
    memset(t->off, 0, ((size_t)E + 1) * sizeof *t->off);
    for (size_t i = 0; i < (size_t)N * (size_t)K; i++) t->off[t->expert[i] + 1]++;
    for (int e = 0; e < E; e++) t->off[e + 1] += t->off[e];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < K; j++) {
            size_t at = (size_t)i * (size_t)K + (size_t)j;
            int place = t->off[t->expert[at]]++; /* off[e] becomes the end of e, which is the beginning of e+1 */
            t->place[at] = place;
            t->row[place] = i;
        }
    memmove(t->off + 1, t->off, (size_t)E * sizeof *t->off);
    t->off[0] = 0;
}

static int *route_ints(Run *r, size_t n, const char *name) { return arena_take(r->host, n * sizeof(int), name); }

static real chosen_sum(const real *p, const int *chosen, int K) {
    real sum = 0;
    for (int j = 0; j < K; j++) sum += p[chosen[j]];
    return sum + TINY;
}

static void route(Run *r, const MoeCfg *c, const Route *t, Tensor p, Tensor bias, Tensor weight) {
    int N = p.n[0], E = c->experts, K = c->top_k;
#pragma omp parallel for schedule(static) num_threads(device_threads(r->dev)) if ((long)N * E * K > 10000)
    for (int i = 0; i < N; i++)
        choose(c, R(p) + (size_t)i * (size_t)E, present(bias) ? R(bias) : NULL, t->expert + (size_t)i * (size_t)K);
    sort_pairs(c, t, N);
    for (int i = 0; i < N; i++) {
        const real *pi = R(p) + (size_t)i * (size_t)E;
        const int *chosen = t->expert + (size_t)i * (size_t)K, *place = t->place + (size_t)i * (size_t)K;
        real by = (real)c->scale / (c->norm_topk ? chosen_sum(pi, chosen, K) : 1);
        for (int j = 0; j < K; j++) R(weight)[place[j]] = pi[chosen[j]] * by;
    }
}

Route route_choose(Run *r, const MoeCfg *c, Tensor p, Tensor bias) {
    int N = p.n[0], E = c->experts, K = c->top_k;
    size_t M = (size_t)N * (size_t)K;
    Route t = {.expert = route_ints(r, M, "chosen experts"),
               .place = route_ints(r, M, "places"),
               .row = route_ints(r, M, "rows of places"),
               .off = route_ints(r, (size_t)E + 1, "first places"),
               .weight = SCRATCH(r, "weights of experts", N * K)};
    Mark mark = arena_mark(r->host);
    Tensor all = host_view(r, p, true), own = present(bias) ? host_view(r, bias, true) : bias,
           weight = host_view(r, t.weight, false);
    if (!measuring(r)) route(r, c, &t, all, own, weight);
    host_write(r, t.weight, weight);
    arena_release(r->host, mark);
    return t;
}

static void backward(Run *r, const MoeCfg *c, const Route *t, Tensor dlogits, Tensor dweight, Tensor p) {
    int N = p.n[0], E = c->experts, K = c->top_k;
#pragma omp parallel for schedule(static) num_threads(device_threads(r->dev)) if ((long)N * E > 10000)
    for (int i = 0; i < N; i++) {
        const real *pi = R(p) + (size_t)i * (size_t)E;
        const int *chosen = t->expert + (size_t)i * (size_t)K, *place = t->place + (size_t)i * (size_t)K;
        real *d = R(dlogits) + (size_t)i * (size_t)E, by = (real)c->scale, mean = 0, all = 0;
        if (c->norm_topk) { /* w = scale p/S: dp = (scale/S) (dw - sum dw p / S) */
            real sum = chosen_sum(pi, chosen, K);
            by /= sum;
            for (int j = 0; j < K; j++) mean += R(dweight)[place[j]] * pi[chosen[j]] / sum;
        }
        memset(d, 0, (size_t)E * sizeof *d);
        for (int j = 0; j < K; j++) d[chosen[j]] = by * (R(dweight)[place[j]] - mean);
        for (int j = 0; j < K; j++) all += d[chosen[j]] * pi[chosen[j]];
        for (int e = 0; e < E; e++)
            d[e] = c->router == ROUTER_SIGMOID ? d[e] * pi[e] * (1 - pi[e]) : pi[e] * (d[e] - all);
    }
}
void route_backward(Run *r, const MoeCfg *c, const Route *t, Tensor dlogits, Tensor dweight, Tensor p) {
    RunMark mark = run_mark(r);
    Tensor d = host_view(r, dlogits, false), dw = host_view(r, dweight, true), all = host_view(r, p, true);
    if (!measuring(r)) backward(r, c, t, d, dw, all);
    host_write(r, dlogits, d);
    run_release(r, mark);
}
