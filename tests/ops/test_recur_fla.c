/* test_recur_fla.c: the recurrence, forward and backward, against the naive files of flash-linear-attention, for every
 * rule that it computes (tests/golden/make_recur.py). */
#include "model/files/safetensors.h"
#include "tests/lib/rig.h"

typedef struct {
    Rig *g;
    St st;
    const char *rule;
    double worst;
    const char *worst_of;
} Naive;
/* The tensor of that name in the file, on the device; ABSENT where the rule has none. */
static Tensor naive_tensor(const Naive *n, const char *name) {
    const StEntry *at = st_find(&n->st, name);
    if (!at) return ABSENT;
    const int *size = (const int[]){(int)at->shape[0], (int)at->shape[1], at->rank > 2 ? (int)at->shape[2] : 1};
    Tensor t = EMPTY(n->g, name, size[0], size[1], size[2]);
    Err e = {0};
    if (at->rank < 3) t.rank = 2;
    cr_assert(st_read(&n->st, at, t, &e), "%s", e.msg);
    return t;
}
/* Root mean square of the errors, by that of the values wanted. NaN: the naive file defines no such value. */
static void naive_agrees(Naive *n, const char *name, Tensor got) {
    const double bound = REAL == F64 ? 1e-11 : 1e-5;
    Tensor want = naive_tensor(n, name);
    cr_assert_eq(present(want), present(got), "%s: %s", n->rule, name);
    if (!present(want)) return;
    double e = 0, all = 0, worst = 0;
    size_t at = 0, values = 0;
    for (size_t i = 0; i < tensor_count(want); i++) {
        if (isnan((double)R(want)[i])) continue;
        const double d = (double)R(got)[i] - (double)R(want)[i];
        e += d * d, all += (double)R(want)[i] * (double)R(want)[i], values++;
        if (!(fabs(d) <= worst)) worst = fabs(d), at = i;
    }
    if (!values) return;
    if (!(sqrt(e / all) <= n->worst)) n->worst = sqrt(e / all), n->worst_of = name;
    cr_expect(sqrt(e / all) <= bound, "%s, %s: %s: error %g (bound %g), worst at %zu: got %.9g, want %.9g", n->g->table,
              n->rule, name, sqrt(e / all), bound, at, (double)R(got)[at], (double)R(want)[at]);
}

static void naive_rule(Table table, const char *rule) {
    Rig g;
    Err err = {0};
    rig_open(&g, table, 2, (size_t)16 << 20);
    char *path = xformat("tests/golden/recur/%s.safetensors", rule);
    Naive n = {.g = &g, .rule = rule};
    cr_assert(st_open(&n.st, path, &err), "%s", err.msg);
    Recur x = {.q = naive_tensor(&n, "q"), .k = naive_tensor(&n, "k"), .v = naive_tensor(&n, "v")};
    x.g = naive_tensor(&n, "g"), x.beta = naive_tensor(&n, "beta"), x.e = naive_tensor(&n, "e");
    const int N = x.q.n[0], HV = x.v.n[1], K = x.q.n[2], V = x.v.n[2];
    Tensor start = naive_tensor(&n, "start"), dend = naive_tensor(&n, "dend"), state = ABSENT, dstart = ABSENT;
    const bool history = present(start);
    int off[] = {0, N}, seq[] = {0}, idx[128], of[128] = {0}, pos[128], first[128];
    cr_assert_leq(N, 128);
    for (int i = 0; i < N; i++) idx[i] = i, pos[i] = i + 7 * history, first[i] = history ? -1 : 0;
    g.batch = (Batch){.B = 1, .N = N, .off = off, .seq = seq, .of = of, .pos = pos, .first = first, .history = history};
    g.run.in = g.run.out = (RowList){N, idx};
    if (history) {
        state = EMPTY(&g, "state", 1, HV * K * V), dstart = EMPTY(&g, "dstart", 1, HV, K, V);
        memcpy(state.p, start.p, tensor_bytes(state)), memset(dstart.p, 0, tensor_bytes(dstart));
    }
    Tensor o = EMPTY(&g, "o", N, HV, V), keep = EMPTY(&g, "keep", recur_keep(N), HV, K, V);
    const double scale = 1 / sqrt(K);
    OP(&g, recur, o, keep, x, scale, state, 0);
    naive_agrees(&n, "o", o), naive_agrees(&n, "end", state);

    Recur d = {EMPTY(&g, "dq", N, x.q.n[1], K),
               EMPTY(&g, "dk", N, x.k.n[1], K),
               EMPTY(&g, "dv", N, HV, V),
               present(x.g) ? EMPTY(&g, "dg", N, HV, x.g.n[2]) : ABSENT,
               present(x.beta) ? EMPTY(&g, "dbeta", N, HV) : ABSENT,
               present(x.e) ? EMPTY(&g, "de", N, x.q.n[1], K) : ABSENT};
    const RecurEnds ends = {start, dstart, dend};
    Tensor dout = naive_tensor(&n, "dout");
    OP(&g, recur_backward, (RecurInto[]){recur_overwrite(d)}, dout, x, scale, keep, history ? &ends : NULL);
    naive_agrees(&n, "dq", d.q), naive_agrees(&n, "dk", d.k), naive_agrees(&n, "dv", d.v);
    naive_agrees(&n, "dg", d.g), naive_agrees(&n, "dbeta", d.beta), naive_agrees(&n, "de", d.e);
    naive_agrees(&n, "dstart", dstart);
    fprintf(stderr, "%s, %s: error of at most %.2g, of %s\n", g.table, rule, n.worst, n.worst_of);
    st_close(&n.st), rig_close(&g), free(path);
}
Test(recur, naive_files_of_flash_linear_attention) {
    static const char *const rules[] = {"kda", "gdn2",       "comba",     "gated_delta_rule", "gated_delta_product",
                                        "gla", "delta_rule", "retention", "simple_gla",       "linear_attn"};
    Table tables[TABLES_MAX];
    for (int k = 0, count = rig_tables(tables); k < count; k++)
        for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) naive_rule(tables[k], rules[i]);
}
