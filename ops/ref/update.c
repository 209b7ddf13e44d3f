/* update.c: the optimizers' steps, norms of tensors. */
#include "ref.h"

/* Stores an optimizer's state; in BF16 up or down by chance: 16 random bits are added below the bits that stay. A value
 * that would become infinite by it is cut off. */
static void put_moment(Tensor t, long i, double x, uint64_t bits) {
    float f = (float)x;
    uint32_t u, up;
    if (t.dtype != BF16) {
        put(t, i, x);
        return;
    }
    memcpy(&u, &f, sizeof u);
    up = u + (uint32_t)(bits & 0xFFFF);
    if (isnan(f))
        ((uint16_t *)t.p)[i] = bf16_from(f);
    else
        ((uint16_t *)t.p)[i] = (uint16_t)(((up & 0x7F800000) == 0x7F800000 ? u : up) >> 16);
}
static uint64_t moment_bits(Rounding round, long i) { return rng_mix(round.key, round.at + (uint64_t)i); }

static void adamw_element(const AdamwStep *s, double g, long i) {
    const double w = get(s->w, i), m = s->b1 * get(s->m, i) + (1 - s->b1) * g,
                 v = s->b2 * get(s->v, i) + (1 - s->b2) * g * g, unbiased_m = m / (1 - pow(s->b1, (double)s->t)),
                 unbiased_v = v / (1 - pow(s->b2, (double)s->t));
    put_moment(s->m, i, m, moment_bits(s->round, i));
    put_moment(s->v, i, v, moment_bits(s->round, i) >> 16);
    put(s->w, i, w - s->lr * (unbiased_m / (sqrt(unbiased_v) + s->eps) + s->decay * w));
}
static void lion_element(const AdamwStep *s, double g, long i) {
    const double w = get(s->w, i), m = get(s->m, i), c = s->b1 * m + (1 - s->b1) * g;
    put(s->w, i, w - s->lr * ((c > 0) - (c < 0) + s->decay * w));
    put_moment(s->m, i, s->b2 * m + (1 - s->b2) * g, moment_bits(s->round, i));
}
static void schedule_free_element(const AdamwStep *s, double g, long i) {
    const double y = get(s->w, i), v = s->b2 * get(s->v, i) + (1 - s->b2) * g * g,
                 z = get(s->m, i) - s->lr * (g / (sqrt(v) + s->eps) + s->decay * y),
                 x = (1 - s->share) * get(s->x, i) + s->share * z;
    put_moment(s->v, i, v, moment_bits(s->round, i));
    put(s->m, i, z);
    put(s->x, i, x);
    put(s->w, i, (1 - s->b1) * z + s->b1 * x);
}
void ref_adamw(Run *r, int n, const AdamwStep *s) {
    static void (*const element[UPDATE_RULES])(const AdamwStep *, double, long) = {
        [UPDATE_ADAMW] = adamw_element, [UPDATE_LION] = lion_element, [UPDATE_SCHEDULE_FREE] = schedule_free_element};
    for (int j = 0; j < n; j++) {
        const double norm = s[j].square ? sqrt(*s[j].square) : 0;
        const double by = s[j].gscale * (s[j].most > 0 && norm > s[j].most ? s[j].most / norm : 1);
        for (long i = 0; isfinite(norm) && i < count(s[j].w); i++) element[s[j].rule](&s[j], by * get(s[j].g, i), i);
    }
}
void ref_momentum(Run *r, Tensor u, Tensor m, Tensor g, double mu, double gscale, bool nesterov, Rounding rounding) {
    for (long i = 0; i < count(u); i++) {
        const double now = mu * get(m, i) + gscale * get(g, i);
        put_moment(m, i, now, moment_bits(rounding, i));
        put(u, i, nesterov ? mu * now + gscale * get(g, i) : now);
    }
}

double ref_sumsq(Run *r, Tensor x) {
    double sum = 0;
    for (long i = 0; i < count(x); i++) sum += get(x, i) * get(x, i);
    return sum;
}
double ref_sumsqs(Run *r, double start, int n, const Tensor *x) {
    for (int j = 0; j < n; j++) start += ref_sumsq(r, x[j]);
    return start;
}
void ref_sumsqs_there(Run *r, double *sum, bool more, int n, const Tensor *x) {
    *sum = ref_sumsqs(r, more ? *sum : 0, n, x);
}
void ref_normalise(Run *r, Tensor x, double eps) {
    const double norm = sqrt(ref_sumsq(r, x));
    for (long i = 0; i < count(x); i++) put(x, i, get(x, i) / (norm + eps));
}
