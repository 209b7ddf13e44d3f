/* recur_ref.c: see recur_ref.h. */
#include "recur_ref.h"

/* The first n elements of what `name` stands for, which are the same in every scene of a test. */
static wide *draw(size_t n, const char *name) {
    enum { NAMES = 16 };
    static struct {
        const char *name;
        size_t n;
        real *x;
    } drawn[NAMES];
    int at = 0;
    while (at < NAMES && drawn[at].name && strcmp(drawn[at].name, name)) at++;
    CHECK(at < NAMES, "more than %d names", NAMES);
    drawn[at].name = name; /* all of them are literals */
    if (drawn[at].n < n) {
        const uint64_t key = rng_name(3, name);
        drawn[at].x = xrealloc(drawn[at].x, n, sizeof *drawn[at].x);
        for (; drawn[at].n < n; drawn[at].n++) drawn[at].x[drawn[at].n] = (real)rng_normal(key, drawn[at].n);
    }
    wide *p = xcalloc(n + 1, sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = drawn[at].x[i];
    return p;
}
Scene *recur_case(int B, const int *rows, const int *docs, int ndocs, int H, int HV, int K, int V, int gwidth,
                  bool delta, bool history) {
    Scene *c = xcalloc(1, sizeof *c);
    *c = (Scene){.B = B, .nseq = B + 2, .H = H, .HV = HV, .K = K, .V = V, .gwidth = gwidth, .delta = delta};
    c->scale = 1 / sqrt(K);
    for (int s = 0; s < B; s++) c->N += rows[s];
    size_t N = (size_t)c->N;
    c->off = xcalloc((size_t)B + 1, sizeof(int)), c->seq = xcalloc((size_t)B, sizeof(int));
    c->of = xcalloc(N + 1, sizeof(int)), c->pos = xcalloc(N + 1, sizeof(int)), c->first = xcalloc(N + 1, sizeof(int));
    int n = 0, doc = 0;
    for (int s = 0; s < B; s++) {
        c->off[s] = n, c->seq[s] = c->nseq - 1 - s;
        for (int left = rows[s], begin = n; left > 0; begin = n) {
            int len = imin(left, docs[doc++ % ndocs]);
            bool on = history && s % 2 && begin == c->off[s];
            c->history |= on;
            for (int i = 0; i < len; i++, n++)
                c->of[n] = s, c->pos[n] = i + (on ? 5 : 0), c->first[n] = on ? -1 : begin;
            left -= len;
        }
    }
    c->off[B] = n;
    c->q = draw(N * (size_t)(H * K), "q"), c->k = draw(N * (size_t)(H * K), "k");
    c->v = draw(N * (size_t)(HV * V), "v"), c->g = draw(N * (size_t)(HV * imax(1, gwidth)), "g");
    c->beta = draw(N * (size_t)HV, "beta"), c->start = draw((size_t)(c->nseq * HV * K * V), "start");
    for (size_t i = 0; i < N * (size_t)H; i++) {
        wide s = 0;
        for (int d = 0; d < K; d++) s += c->k[i * (size_t)K + (size_t)d] * c->k[i * (size_t)K + (size_t)d];
        for (int d = 0; d < K; d++)
            c->k[i * (size_t)K + (size_t)d] = (real)(c->k[i * (size_t)K + (size_t)d] / wide_sqrt(s));
    }
    for (size_t i = 0; i < N * (size_t)(HV * imax(1, gwidth)); i++) c->g[i] = -wide_fabs(c->g[i]);
    for (size_t i = 0; i < N * (size_t)HV; i++) c->beta[i] = (real)(1 / (1 + wide_exp(-c->beta[i])));
    return c;
}
Scene *recur_erase(Scene *c) {
    const size_t n = (size_t)c->N * (size_t)(c->H * c->K);
    wide *off = draw(n, "off k");
    c->e = draw(n, "e");
    for (size_t i = 0; i < n; i++) c->e[i] = (real)(c->k[i] / (1 + wide_exp(-c->e[i])) + 0.1 * off[i] / c->K);
    free(off);
    return c;
}
void recur_case_free(Scene *c) {
    free(c->off), free(c->seq), free(c->of), free(c->pos), free(c->first);
    free(c->q), free(c->k), free(c->v), free(c->g), free(c->beta), free(c->e), free(c->start);
    free(c);
}
Batch recur_batch(const Scene *c) {
    return (Batch){.B = c->B,
                   .N = c->N,
                   .off = c->off,
                   .seq = c->seq,
                   .of = c->of,
                   .pos = c->pos,
                   .first = c->first,
                   .history = c->history};
}

static wide decay_at(const Scene *c, int t, int h, int d) {
    if (!c->gwidth) return 1;
    return wide_exp(c->g[(t * c->HV + h) * c->gwidth + (c->gwidth == 1 ? 0 : d)]);
}

Result recur_ref(const Scene *c, const wide *dout, const wide *dend) {
    int H = c->H, HV = c->HV, K = c->K, V = c->V, KV = K * V, G = imax(1, c->gwidth);
    size_t N = (size_t)c->N, all = (size_t)(c->nseq * HV * KV);
    Result r = {.o = xcalloc(N * (size_t)(HV * V) + 1, sizeof(wide)), .end = xcalloc(all, sizeof(wide))};
    const bool corrects = c->delta || c->e;
    const wide *erase = c->e ? c->e : c->k;
    memcpy(r.end, c->start, all * sizeof(wide));
    if (dout) {
        r.dq = xcalloc(N * (size_t)(H * K) + 1, sizeof(wide)), r.dk = xcalloc(N * (size_t)(H * K) + 1, sizeof(wide));
        r.dv = xcalloc(N * (size_t)(HV * V) + 1, sizeof(wide)), r.dg = xcalloc(N * (size_t)(HV * G) + 1, sizeof(wide));
        r.dbeta = xcalloc(N * (size_t)HV + 1, sizeof(wide)), r.dstart = xcalloc(all, sizeof(wide));
        if (c->e) r.de = xcalloc(N * (size_t)(H * K) + 1, sizeof(wide));
    }
    wide *S = xcalloc((N + 1) * (size_t)KV, sizeof *S), *D = xcalloc(N * (size_t)KV + 1, sizeof *D),
         *u = xcalloc(N * (size_t)V + 1, sizeof *u), *res = xcalloc(N * (size_t)V + 1, sizeof *res),
         *dS = xcalloc((size_t)KV, sizeof *dS);
    for (int s = 0; s < c->B; s++)
        for (int h = 0; h < HV; h++) {
            int hq = h / (HV / H), from = c->off[s], to = c->off[s + 1];
            size_t blob = (size_t)((c->seq[s] * HV + h) * KV);
            if (from == to) continue;
            for (int t = from; t < to; t++) {
                const wide *q = c->q + (t * H + hq) * K, *k = c->k + (t * H + hq) * K, *v = c->v + (t * HV + h) * V,
                           *z = erase + (t * H + hq) * K;
                wide *now = S + (size_t)(t + 1) * (size_t)KV, *was = D + (size_t)t * (size_t)KV;
                bool fresh = c->first[t] == t;
                for (int i = 0; i < KV; i++) {
                    wide before = fresh ? 0 : t == from ? c->start[blob + (size_t)i] : (now - KV)[i];
                    was[i] = decay_at(c, t, h, i / V) * before;
                }
                for (int j = 0; j < V; j++) {
                    wide p = 0;
                    for (int d = 0; d < K; d++) p += was[d * V + j] * z[d];
                    res[t * V + j] = v[j] - (corrects ? p : 0);
                    u[t * V + j] = (c->delta ? c->beta[t * HV + h] : 1) * res[t * V + j];
                }
                for (int i = 0; i < KV; i++) now[i] = was[i] + k[i / V] * u[t * V + i % V];
                for (int i = 0; i < KV; i++) r.o[(t * HV + h) * V + i % V] += (wide)c->scale * q[i / V] * now[i];
            }
            memcpy(r.end + blob, S + (size_t)to * (size_t)KV, (size_t)KV * sizeof(wide));
            if (!dout) continue;
            for (int i = 0; i < KV; i++) dS[i] = dend[blob + (size_t)i];
            for (int t = to - 1; t >= from; t--) {
                const wide *q = c->q + (t * H + hq) * K, *k = c->k + (t * H + hq) * K, *e = dout + (t * HV + h) * V,
                           *z = erase + (t * H + hq) * K;
                const wide *now = S + (size_t)(t + 1) * (size_t)KV, *was = D + (size_t)t * (size_t)KV;
                wide beta = c->delta ? c->beta[t * HV + h] : 1;
                for (int i = 0; i < KV; i++) {
                    r.dq[(t * H + hq) * K + i / V] += (wide)c->scale * now[i] * e[i % V];
                    dS[i] += (wide)c->scale * q[i / V] * e[i % V];
                    r.dk[(t * H + hq) * K + i / V] += dS[i] * u[t * V + i % V];
                }
                for (int j = 0; j < V; j++) {
                    wide du = 0;
                    for (int d = 0; d < K; d++) du += dS[d * V + j] * k[d];
                    r.dv[(t * HV + h) * V + j] += beta * du;
                    if (!corrects) continue;
                    r.dbeta[t * HV + h] += du * res[t * V + j];
                    for (int d = 0; d < K; d++) {
                        (c->e ? r.de : r.dk)[(t * H + hq) * K + d] -= beta * du * was[d * V + j];
                        dS[d * V + j] -= z[d] * beta * du;
                    }
                }
                for (int i = 0; i < KV; i++) {
                    if (c->gwidth) r.dg[(t * HV + h) * G + (G == 1 ? 0 : i / V)] += dS[i] * was[i];
                    dS[i] *= decay_at(c, t, h, i / V);
                    if (c->first[t] == t) dS[i] = 0;
                }
            }
            if (c->first[from] == -1)
                for (int i = 0; i < KV; i++) r.dstart[blob + (size_t)i] += dS[i];
        }
    free(S), free(D), free(u), free(res), free(dS);
    return r;
}
void result_free(Result *r) {
    free(r->o), free(r->end), free(r->dq), free(r->dk), free(r->dv), free(r->dg), free(r->dbeta), free(r->de),
        free(r->dstart);
}

wide *recur_weights(size_t n, int salt) {
    wide *w = xcalloc(n + 1, sizeof *w);
    for (size_t i = 0; i < n; i++) w[i] = (real)rng_normal(77 + (uint64_t)salt, i);
    return w;
}

/* ---- the ops ---- */
static Tensor rounded_to_bf16(Rig *g, const char *name, const wide *x, int a, int b, int c) {
    Tensor t = EMPTY(g, name, a, b, c);
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = (real)x[i];
    return t;
}
/* Root of the mean square error, by the root of the mean square wanted; what no float can hold counts as zero. */
static double distance(Tensor got, const wide *want, Worst *at) {
    wide e = 0, all = 0, w = 0;
    size_t n = tensor_count(got);
    *at = (Worst){0};
    for (size_t i = 0; i < n; i++) {
        wide d = R(got)[i] - want[i];
        e += d * d, all += want[i] * want[i];
        if (!(wide_fabs(d) <= w)) w = wide_fabs(d), *at = (Worst){i, (double)R(got)[i], (double)want[i]};
    }
    return (double)(e == 0 ? 0 : wide_sqrt(e / (all + 1e-60L)));
}

const char *const recur_results[RECUR_RESULTS] = {"o", "final state", "dq", "dk", "dv", "dg", "dbeta", "de", "dstart"};
void recur_apart(Rig *g, const Scene *c, const Scene *as, double err[RECUR_RESULTS], Worst worst[RECUR_RESULTS]) {
    Mark mark = arena_mark(&g->mem);
    int N = c->N, H = c->H, HV = c->HV, K = c->K, V = c->V, KV = K * V;
    size_t no = (size_t)(N * HV * V), nS = (size_t)(c->nseq * HV * KV);
    wide *dout = recur_weights(no, 1), *dend = recur_weights(nS, 2);
    Result want = recur_ref(as, dout, dend);
    g->batch = recur_batch(c);
    int *idx = xcalloc((size_t)N + 1, sizeof *idx);
    for (int i = 0; i < N; i++) idx[i] = i;
    g->run.in = g->run.out = (RowList){N, idx};
    Recur x = {rounded_to_bf16(g, "q", c->q, N, H, K),
               rounded_to_bf16(g, "k", c->k, N, H, K),
               rounded_to_bf16(g, "v", c->v, N, HV, V),
               c->gwidth ? rounded_to_bf16(g, "g", c->g, N, HV, c->gwidth) : ABSENT,
               c->delta ? rounded_to_bf16(g, "beta", c->beta, N, HV, 1) : ABSENT,
               c->e ? rounded_to_bf16(g, "e", c->e, N, H, K) : ABSENT};
    Tensor o = EMPTY(g, "o", N, HV, V), keep = EMPTY(g, "keep", recur_keep(N), HV, K, V),
           state = EMPTY(g, "state", c->nseq, 3 + HV * KV + 2), again = EMPTY(g, "o again", N, HV, V);
    for (int s = 0; s < c->nseq; s++)
        for (int i = 0; i < HV * KV; i++) R(state)[s * state.n[1] + 3 + i] = (real)c->start[s * HV * KV + i];
    g->run.mode = RUN_HOLD;
    OP(g, recur, again, ABSENT, x, c->scale, state, 3);
    Tensor copy = tensor_copy(g, state);
    g->run.mode = 0;
    OP(g, recur, o, keep, x, c->scale, state, 3);
    CHECK_BYTES("o of a held pass", again.p, o.p, tensor_bytes(o));
    err[0] = distance(o, want.o, &worst[0]);
    Tensor end = EMPTY(g, "end", c->nseq, HV, KV);
    for (int s = 0; s < c->nseq; s++) {
        CHECK_BYTES("state that is not ours", R(state) + s * state.n[1], R(copy) + s * state.n[1], 3 * sizeof(real));
        CHECK_BYTES("state that is not ours", R(state) + s * state.n[1] + 3 + HV * KV,
                    R(copy) + s * state.n[1] + 3 + HV * KV, 2 * sizeof(real));
        for (int i = 0; i < HV * KV; i++) {
            R(end)[s * HV * KV + i] = R(state)[s * state.n[1] + 3 + i];
            cr_assert(R(copy)[s * state.n[1] + 3 + i] == (real)c->start[s * HV * KV + i], "a held pass wrote a state");
        }
    }
    err[1] = distance(end, want.end, &worst[1]);
    rig_result(g, o), rig_result(g, end);

    Recur d = {EMPTY(g, "dq", N, H, K),
               EMPTY(g, "dk", N, H, K),
               EMPTY(g, "dv", N, HV, V),
               c->gwidth ? EMPTY(g, "dg", N, HV, c->gwidth) : ABSENT,
               c->delta ? EMPTY(g, "dbeta", N, HV) : ABSENT,
               c->e ? EMPTY(g, "de", N, H, K) : ABSENT};
    Tensor dstart = EMPTY(g, "dstart", c->nseq, HV, K, V), all[] = {d.q, d.k, d.v, d.g, d.beta, d.e, dstart};
    for (int i = 0; i < 7; i++)
        if (present(all[i])) memset(all[i].p, 0, tensor_bytes(all[i]));
    RecurEnds ends = {TENSOR(NULL, REAL, c->nseq, HV, K, V), dstart, TENSOR(NULL, REAL, c->nseq, HV, K, V)};
    ends.start = rounded_to_bf16(g, "start", c->start, c->nseq, HV, KV);
    ends.dend = rounded_to_bf16(g, "dend", dend, c->nseq, HV, KV);
    Tensor go = rounded_to_bf16(g, "dout", dout, N, HV, V);
    OP(g, recur_backward, (RecurInto[]){recur_add_to(d)}, go, x, c->scale, keep, &ends);
    const wide *wanted[] = {want.dq, want.dk, want.dv, want.dg, want.dbeta, want.de, want.dstart};
    for (int i = 0; i < 7; i++) {
        err[2 + i] = present(all[i]) ? distance(all[i], wanted[i], &worst[2 + i]) : 0;
        if (present(all[i])) rig_result(g, all[i]);
    }
    result_free(&want), free(dout), free(dend), free(idx);
    arena_release(&g->mem, mark);
}
double recur_hold(Rig *g, const Scene *c) {
    double err[RECUR_RESULTS], most = 0, tolerance = rig_limit("recur") * (sizeof(real) == 4 ? 0x1p-24 : 0x1p-53);
    Worst at[RECUR_RESULTS];
    recur_apart(g, c, c, err, at);
    for (int i = 0; i < RECUR_RESULTS; i++) {
        cr_assert(err[i] <= tolerance, "%s, %s: error %.3g (bound %g), worst at %zu: got %.9g, want %.9g", g->table,
                  recur_results[i], err[i], tolerance, at[i].i, at[i].got, at[i].want);
        most = fmax(most, err[i]);
    }
    return most;
}
