/* heads.c: see heads.h. */
#include "heads.h"
#include "layers/gqa/gqa.h"

void grams_free(Grams *s) {
    for (int l = 0; l < s->L; l++) gauge_free(&s->gauge[l]);
    free(s->gauge);
    *s = (Grams){0};
}

static size_t heads_numbers(const GqaCfg *c) {
    size_t n = (size_t)c->kv_heads * (size_t)c->head_dim;
    return n * n;
}
size_t grams_memory(const Job *j, int l) {
    const GqaCfg *c = l < j->a.L ? job_gqa(&j->a, l) : NULL;
    return c ? 2 * heads_numbers(c) * sizeof(double) + 4096 : 0;
}

static void heads_add_outer(double *m, Tensor x) {
    const int T = x.n[0];
    const size_t n = (size_t)x.n[1] * (size_t)x.n[2];
    const real *p = R(x);
#pragma omp parallel for schedule(dynamic, 8)
    for (size_t i = 0; i < n; i++)
        for (int t = 0; t < T; t++) {
            const real *row = p + (size_t)t * n;
            const double a = row[i];
            double *to = m + i * n;
#pragma omp simd
            for (size_t k = 0; k < n; k++) to[k] += a * row[k];
        }
}

void grams_see(Job *j, Grams *s, int l, const Kv *kv) {
    const GqaCfg *c = job_gqa(&j->a, l);
    if (!c || !j->a.layer[l].owner) return;
    if (s->layer != l || !s->k) {
        arena_release(&j->work, (Mark){0});
        s->layer = l;
        s->k = arena_take(&j->work, heads_numbers(c) * sizeof(double), "sums of keys");
        s->v = arena_take(&j->work, heads_numbers(c) * sizeof(double), "sums of values");
        memset(s->k, 0, heads_numbers(c) * sizeof(double));
        memset(s->v, 0, heads_numbers(c) * sizeof(double));
    }
    /* keys are rotated here, by one angle for all heads of a token: what Procrustes looks at does not change */
    heads_add_outer(s->k, kv->k);
    heads_add_outer(s->v, kv->v);
}

bool grams_gauge(Job *j, Grams *s, int l, int groups, bool similar, const Gauge **out, Err *e) {
    int owner = j->a.layer[l].kv_from;
    const GqaCfg *c = job_gqa(&j->a, owner);
    if (!s->gauge) {
        s->L = j->a.L;
        s->gauge = xcalloc((size_t)s->L, sizeof *s->gauge);
    }
    Gauge *x = &s->gauge[owner];
    *out = x;
    if (x->order) return true;
    CHECK(s->layer == owner && s->k, "layer %d was not looked at", owner);
    return gauge_make(x, c->kv_heads, groups, c->head_dim, s->k, s->v, &c->table, c->qk_norm, similar, e);
}

void heads_mix(Job *j, Tensor out, int to, Tensor w, const int *head, int n, const double *const *M, int D,
               double scale) {
    if (!present(out)) return;
    const size_t width = w.rank > 1 ? (size_t)w.n[1] : 1;
    real *y = R(out) + (size_t)to * (size_t)D * width;
    (void)j;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < D; i++)
        for (size_t c = 0; c < width; c++) {
            double sum = 0;
            for (int h = 0; h < n; h++) {
                const real *x = R(w) + (size_t)head[h] * (size_t)D * width + c;
                if (!M)
                    sum += x[(size_t)i * width];
                else
                    for (int k = 0; k < D; k++) sum += M[h][i * D + k] * x[(size_t)k * width];
            }
            y[(size_t)i * width + c] = (real)(scale * sum);
        }
}

void heads_follow(Job *j, int l, const Gauge *x) {
    const GqaCfg *c = job_gqa(&j->a, l);
    const int H = c->heads, D = c->head_dim, each = H / imax(1, x->heads);
    if (!H) return;
    Tensor wq = job_in(j, l, "self_attn.q_proj.weight"), bq = job_in(j, l, "self_attn.q_proj.bias"),
           wo = job_in(j, l, "self_attn.o_proj.weight"), yq = job_out(j, l, "self_attn.q_proj.weight"),
           yb = job_out(j, l, "self_attn.q_proj.bias"), yo = job_out(j, l, "self_attn.o_proj.weight");
    if (j->failed) return;
    const size_t DD = (size_t)D * (size_t)D, width = (size_t)H * (size_t)D;
    for (int n = 0; n < H; n++) {
        const int kv = x->order[n / each], from = kv * each + n % each;
        const double *P = x->k + (size_t)kv * DD, *V = x->v + (size_t)kv * DD;
        heads_mix(j, yq, n, wq, &from, 1, &P, D, 1);
        heads_mix(j, yb, n, bq, &from, 1, &P, D, 1);
#pragma omp parallel for schedule(static)
        for (int r = 0; r < wo.n[0]; r++) {
            const real *a = R(wo) + (size_t)r * width + (size_t)from * (size_t)D;
            for (int i = 0; i < D; i++) {
                double sum = 0;
                for (int k = 0; k < D; k++) sum += V[(size_t)i * (size_t)D + (size_t)k] * a[k];
                R(yo)[(size_t)r * width + (size_t)n * (size_t)D + (size_t)i] = (real)sum;
            }
        }
    }
}
