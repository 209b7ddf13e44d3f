#include "sampler.h"

Sampler sampler_default(void) { return (Sampler){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 1}; }

bool sampler_check(const Sampler *s, Err *e) {
    /* written so that a NaN fails every test */
    if (!(s->temperature >= 0 && s->temperature <= 1e6))
        return err_input(e, "--temperature: expected 0 (greedy) to 1e6, got %g", s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return err_input(e, "--top-p: expected a number above 0, at most 1, got %g", s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1)) return err_input(e, "--min-p: expected 0 to 1, got %g", s->min_p);
    if (!(s->repetition_penalty >= 1e-6 && s->repetition_penalty <= 1e6))
        return err_input(e, "--repetition-penalty: expected 1e-6 to 1e6 (1: none), got %g", s->repetition_penalty);
    if (s->top_k < 0) return err_input(e, "--top-k: expected 0 (all tokens) or more, got %d", s->top_k);
    return true;
}

static int sampler_by_rank(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->p != y->p) return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Bring the k best of c[0..n) to the front in no particular order: quickselect, so that a vocabulary of 10^5 tokens is
 * not sorted for a top-k of 50. */
static void select_best(Candidate *c, int n, int k) {
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        Candidate pivot = c[lo + (hi - lo) / 2];
        int i = lo, j = hi;
        while (i <= j) {
            while (sampler_by_rank(&c[i], &pivot) < 0) i++;
            while (sampler_by_rank(&pivot, &c[j]) < 0) j--;
            if (i <= j) {
                Candidate t = c[i];
                c[i++] = c[j];
                c[j--] = t;
            }
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

static double sampler_mass(const Candidate *c, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += c[i].p;
    return sum;
}

static bool no_number(int v, double l, Err *e) {
    return err_runtime(e, "logit of token %d is %g: the model's weights are damaged", v, l);
}
static bool no_token(int V, Err *e) {
    return err_runtime(e, "all %d logits are -inf: the model's weights are damaged", V);
}
bool sampler_support(const Sampler *s, const real *logits, int V, const unsigned char *seen, Candidate *c, int *n,
                     Err *e) {
    /* c[].p holds logits first, weights exp(logit - max) next, probabilities last */
    int best = 0;
    double top = -INFINITY;
    for (int v = 0; v < V; v++) {
        double l = logits[v];
        if (isnan(l) || l == INFINITY) return no_number(v, l, e);
        if (seen && seen[v]) l = l > 0 ? l / s->repetition_penalty : l * s->repetition_penalty;
        if (s->temperature != 0) c[v] = (Candidate){v, l};
        if (l > top) best = v, top = l;
    }
    if (top == -INFINITY) return no_token(V, e);
    if (s->temperature == 0) {
        c[0] = (Candidate){best, 1};
        *n = 1;
        return true;
    }
    int m = V;
    if (s->top_k > 0 && s->top_k < V) { /* on the logits: their order is exact where weights may underflow to a tie */
        select_best(c, m, s->top_k);
        m = s->top_k;
    }
    for (int i = 0; i < m; i++) c[i].p = exp((c[i].p - top) / s->temperature);
    if (s->top_p < 1) {
        /* Tokens below (1-p)/m of the mass together weigh less than 1-p, so none of them can be kept: leave them out of
         * the sort. Half of that bound, so that rounding cannot matter. */
        double total = sampler_mass(c, m), cut = 0.5 * (1 - s->top_p) / m * total;
        int kept = 0;
        for (int i = 0; i < m; i++)
            if (c[i].p >= cut) c[kept++] = c[i];
        m = kept;
        qsort(c, (size_t)m, sizeof *c, sampler_by_rank);
        double before = 0;
        for (kept = 0; kept < m && before < s->top_p * total; kept++) before += c[kept].p;
        m = imax(kept, 1);
    } else if (s->top_k > 0 && s->top_k < V)
        qsort(c, (size_t)m, sizeof *c, sampler_by_rank);
    int kept = 0;
    for (int i = 0; i < m; i++) /* the largest weight is exactly 1; a weight of 0 cannot be drawn */
        if (c[i].p > 0 && c[i].p >= s->min_p) c[kept++] = c[i];
    double total = sampler_mass(c, kept);
    for (int i = 0; i < kept; i++) c[i].p /= total;
    *n = kept;
    return true;
}

static uint64_t sampler_key_of(const Sampler *s, uint64_t seq) { return rng_mix(rng_name(s->seed, "sampler"), seq); }
SampleRow sampler_row(const Sampler *s, uint64_t seq, uint64_t draw) {
    return (SampleRow){.key = sampler_key_of(s, seq),
                       .draw = draw,
                       .temperature = s->temperature,
                       .penalty = s->repetition_penalty,
                       .top_p = s->top_p,
                       .min_p = s->min_p,
                       .top_k = s->top_k};
}
bool sampler_drawn(const Sampled *d, int V, int *token, Err *e) {
    if (d->token == -1) return no_number(d->at, (double)d->value, e);
    if (d->token < 0) return no_token(V, e);
    *token = d->token;
    return true;
}
bool sampler_pick(const Sampler *s, const real *logits, int V, const unsigned char *seen, uint64_t seq, uint64_t draw,
                  Candidate *c, int *token, Err *e) {
    int n;
    if (!sampler_support(s, logits, V, seen, c, &n, e)) return false;
    int i = 0;
    if (n > 1) {
        double u = rng_uniform(sampler_key_of(s, seq), draw), sum = 0;
        for (i = 0; i < n - 1; i++)
            if (u < (sum += c[i].p)) break;
    }
    *token = c[i].id;
    return true;
}
