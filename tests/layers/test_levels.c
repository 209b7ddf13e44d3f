/* test_levels.c: recurrences with levels of distance, forward and backward, against the naive file of
 * flash-linear-attention and the quadratic form (tests/golden/make_levels.py), and passes that continue one another. */
#include "layers/linear/levels.h"
#include "model/files/safetensors.h"
#include "tests/lib/rig.h"

enum { TOKENS = 81, SEQUENCES = 2, DOCUMENTS = 3 };
/* The first two documents are a sequence, the third is one. */
static const int lengths[DOCUMENTS] = {67, 9, 5};
typedef struct {
    Rig g;
    St st;
    const char *name;
    int off[SEQUENCES + 1], seq[SEQUENCES], of[TOKENS], pos[TOKENS], first[TOKENS], idx[TOKENS];
    Recur x;
    Tensor delta, L;
    Levels c;
} LevelCase;

/* The tensor of that name in the file; ABSENT where the rule has none. */
static Tensor level_tensor(LevelCase *t, const char *name) {
    const StEntry *at = st_find(&t->st, name);
    if (!at) return ABSENT;
    Tensor y = EMPTY(&t->g, name, (int)at->shape[0], (int)at->shape[1], at->rank > 2 ? (int)at->shape[2] : 1);
    Err e = {0};
    if (at->rank < 3) y.rank = 2;
    cr_assert(st_read(&t->st, at, y, &e), "%s", e.msg);
    return y;
}
static void level_open(LevelCase *t, Table table, int threads, const char *name) {
    Err e = {0};
    char *path = xformat("tests/golden/levels/%s.safetensors", name);
    *t = (LevelCase){.name = name, .off = {0, lengths[0] + lengths[1], TOKENS}, .seq = {1, 0}};
    cr_assert(st_open(&t->st, path, &e), "%s", e.msg);
    free(path);
    rig_open(&t->g, table, threads, (size_t)16 << 20);
    for (int d = 0, i = 0; d < DOCUMENTS; d++)
        for (int p = 0; p < lengths[d]; p++, i++) t->of[i] = d == 2, t->pos[i] = p, t->first[i] = i - p, t->idx[i] = i;
    t->g.batch = (Batch){
        .B = SEQUENCES, .N = TOKENS, .off = t->off, .seq = t->seq, .of = t->of, .pos = t->pos, .first = t->first};
    t->g.run.in = t->g.run.out = (RowList){TOKENS, t->idx};
    t->x = (Recur){.q = level_tensor(t, "q"),
                   .k = level_tensor(t, "k"),
                   .v = level_tensor(t, "v"),
                   .g = level_tensor(t, "g"),
                   .e = level_tensor(t, "e"),
                   .beta = level_tensor(t, "beta")};
    t->delta = level_tensor(t, "delta"), t->L = level_tensor(t, "L");
    t->c = (Levels){t->L.n[1], {t->x.q.n[1], 1, 1}, 1 / sqrt(t->x.q.n[2])};
}
static void level_close(LevelCase *t) { st_close(&t->st), rig_close(&t->g); }

/* Root mean square of the errors, by that of the values wanted. */
static double level_error(Tensor got, Tensor want, size_t *at) {
    double e = 0, all = 0, worst = -1;
    for (size_t i = 0; i < tensor_count(want); i++) {
        const double d = (double)R(got)[i] - (double)R(want)[i];
        e += d * d, all += (double)R(want)[i] * (double)R(want)[i];
        if (!(fabs(d) <= worst)) worst = fabs(d), *at = i;
    }
    return sqrt(e / all);
}
static const double bound = REAL == F64 ? 1e-12 : 5e-6;
static double level_agrees(LevelCase *t, const char *name, Tensor got) {
    Tensor want = level_tensor(t, name);
    cr_assert_eq(present(want), present(got), "%s: %s", t->name, name);
    if (!present(want)) return 0;
    size_t at = 0;
    const double e = level_error(got, want, &at);
    cr_expect(e <= bound, "%s, %s: %s: error %g (bound %g), worst at %zu: got %.9g, want %.9g", t->g.table, t->name,
              name, e, bound, at, (double)R(got)[at], (double)R(want)[at]);
    return e;
}
static const char *const rules[] = {"fla", "gated_delta_rule", "comba", "delta_rule",
                                    "gla", "linear_attn",      "one",   "kda",
                                    "gdn2"};
enum { RULES = sizeof rules / sizeof *rules };

Test(levels, quadratic_form_and_its_gradients, .timeout = 120) {
    Table tables[TABLES_MAX];
    for (int k = 0, count = rig_tables(tables); k < count; k++)
        for (int i = 0; i < RULES; i++) {
            LevelCase t;
            level_open(&t, tables[k], 2, rules[i]);
            const Recur *x = &t.x;
            Tensor o = tensor_copy(&t.g, x->v), dL = tensor_copy(&t.g, t.L), ddelta = tensor_copy(&t.g, t.delta),
                   dout = level_tensor(&t, "dout");
            CALL(&t.g, levels_forward(&t.g.run, &t.c, *x, t.delta, t.L, ABSENT, 0, o));
            double worst = level_agrees(&t, "o", o);
            const Recur d = {EMPTY(&t.g, "dq", TOKENS, x->q.n[1], x->q.n[2]),
                             EMPTY(&t.g, "dk", TOKENS, x->q.n[1], x->q.n[2]),
                             EMPTY(&t.g, "dv", TOKENS, x->v.n[1], x->v.n[2]),
                             present(x->g) ? EMPTY(&t.g, "dg", TOKENS, x->v.n[1], x->g.n[2]) : ABSENT,
                             present(x->beta) ? EMPTY(&t.g, "dbeta", TOKENS, x->v.n[1]) : ABSENT,
                             present(x->e) ? EMPTY(&t.g, "de", TOKENS, x->q.n[1], x->q.n[2]) : ABSENT};
            memset(dL.p, 0, tensor_bytes(dL));
            CALL(&t.g, levels_backward(&t.g.run, &t.c, &d, ddelta, dL, dout, *x, t.delta, t.L));
            worst = fmax(worst, level_agrees(&t, "dq", d.q)), worst = fmax(worst, level_agrees(&t, "dk", d.k));
            worst = fmax(worst, level_agrees(&t, "dv", d.v)), worst = fmax(worst, level_agrees(&t, "dg", d.g));
            worst = fmax(worst, level_agrees(&t, "dbeta", d.beta)), worst = fmax(worst, level_agrees(&t, "de", d.e));
            worst = fmax(worst, level_agrees(&t, "ddelta", ddelta)), worst = fmax(worst, level_agrees(&t, "dL", dL));
            fprintf(stderr, "%s, %s: error of at most %.2g\n", tables[k].name, rules[i], worst);
            level_close(&t);
        }
}

/* ---- passes that continue one another ---------------------------------------------------------------------------- */
static Tensor level_rows(LevelCase *t, Tensor x, const int *row, int n) {
    if (!present(x)) return x;
    const size_t each = tensor_bytes(x) / (size_t)x.n[0];
    Tensor y = x;
    y.n[0] = n;
    y = arena_tensor(&t->g.mem, "rows", y.dtype, y.rank, y.n);
    for (int i = 0; i < n; i++) memcpy((char *)y.p + (size_t)i * each, (char *)x.p + (size_t)row[i] * each, each);
    return y;
}
/* n[s] tokens of each sequence from from[s] on, after the states; results go to their rows of o. */
static void level_piece(LevelCase *t, const int from[SEQUENCES], const int n[SEQUENCES], unsigned mode, Tensor state,
                        Tensor o) {
    int off[SEQUENCES + 1] = {0}, of[TOKENS], pos[TOKENS], first[TOKENS], row[TOKENS], N = 0;
    Mark mark = arena_mark(&t->g.mem);
    const Batch whole = t->g.batch;
    bool history = false;
    for (int s = 0; s < SEQUENCES; off[++s] = N)
        for (int i = 0; i < n[s]; i++, N++) {
            row[N] = t->off[s] + from[s] + i;
            const int begin = t->first[row[N]] - t->off[s] - from[s]; /* of the document, in the piece */
            of[N] = s, pos[N] = t->pos[row[N]], first[N] = begin < 0 ? -1 : off[s] + begin;
            history |= first[N] < 0;
        }
    t->g.batch = (Batch){.B = SEQUENCES, .N = N, .off = off, .seq = t->seq, .of = of, .pos = pos, .first = first};
    t->g.batch.history = history;
    t->g.run.in = t->g.run.out = (RowList){N, t->idx};
    t->g.run.mode = mode;
    const Recur *a = &t->x, x = {.q = level_rows(t, a->q, row, N),
                                 .k = level_rows(t, a->k, row, N),
                                 .v = level_rows(t, a->v, row, N),
                                 .g = level_rows(t, a->g, row, N),
                                 .beta = level_rows(t, a->beta, row, N),
                                 .e = level_rows(t, a->e, row, N)};
    Tensor delta = level_rows(t, t->delta, row, N), y = level_rows(t, o, row, N);
    CALL(&t->g, levels_forward(&t->g.run, &t->c, x, delta, t->L, state, 3, y));
    const size_t each = tensor_bytes(o) / TOKENS;
    for (int i = 0; i < N; i++) memcpy((char *)o.p + (size_t)row[i] * each, (char *)y.p + (size_t)i * each, each);
    t->g.batch = whole, t->g.run.in = t->g.run.out = (RowList){TOKENS, t->idx}, t->g.run.mode = 0;
    arena_release(&t->g.mem, mark);
}
typedef struct {
    int n; /* of cuts, and the first token of sequence 0 after each */
    int at[TOKENS];
} Cuts;
/* Sequence 1 is cut at the same places as far as it goes. */
static void level_cut(LevelCase *t, const Cuts *cuts, Tensor whole) {
    const int blob = 5 + levels_states(t->c.n) * (int)tensor_count(t->x.v) / TOKENS * t->x.q.n[2];
    Mark mark = arena_mark(&t->g.mem);
    Tensor state = EMPTY(&t->g, "state", SEQUENCES, blob), o = tensor_copy(&t->g, t->x.v),
           held = tensor_copy(&t->g, state), seen = tensor_copy(&t->g, o);
    memset(state.p, 0, tensor_bytes(state));
    for (int i = 0; i <= cuts->n; i++) {
        int from[SEQUENCES], n[SEQUENCES];
        for (int s = 0; s < SEQUENCES; s++) {
            const int len = t->off[s + 1] - t->off[s], begin = i ? cuts->at[i - 1] : 0,
                      end = i < cuts->n ? cuts->at[i] : TOKENS;
            from[s] = imin(begin, len), n[s] = imin(end, len) - from[s];
        }
        memcpy(held.p, state.p, tensor_bytes(state));
        level_piece(t, from, n, RUN_HOLD, state, seen);
        CHECK_BYTES("states that a pass holds", (char *)state.p, (char *)held.p, tensor_bytes(state));
        level_piece(t, from, n, 0, state, o);
    }
    for (int s = 0; s < SEQUENCES; s++) /* what lies around the states */
        for (int i = 0; i < 5; i++) cr_assert_eq(R(state)[s * blob + (i < 3 ? i : blob - 5 + i)], 0);
    size_t at = 0;
    const double e = level_error(o, whole, &at), h = level_error(seen, whole, &at);
    cr_assert(e <= bound && h <= bound,
              "%s, %s, %d cuts, the first at %d: error %g, %g of a pass that holds, worst at %zu", t->g.table, t->name,
              cuts->n, cuts->at[0], e, h, at);
    arena_release(&t->g.mem, mark);
}
Test(levels, passes_that_continue_one_another, .timeout = 300) {
    Table tables[TABLES_MAX];
    for (int k = 0, count = rig_tables(tables); k < count; k++)
        for (int i = 0; i < RULES; i++) {
            LevelCase t;
            level_open(&t, tables[k], 2, rules[i]);
            Tensor whole = level_tensor(&t, "o");
            Cuts all = {lengths[0] + lengths[1] - 1, {0}};
            for (int c = 0; c < all.n; c++) all.at[c] = c + 1;
            level_cut(&t, &all, whole);
            for (int c = 1; c <= all.n; c += i || k ? 11 : 1) level_cut(&t, &(const Cuts){1, {c}}, whole);
            for (int c = 1; c + 9 <= all.n; c += 23) level_cut(&t, &(const Cuts){3, {c, c + 1, c + 9}}, whole);
            /* a position that is one off is another level */
            for (int p = 0; p < TOKENS; p++) t.pos[p]++;
            Tensor o = tensor_copy(&t.g, t.x.v), state = EMPTY(&t.g, "state", SEQUENCES, 1024);
            memset(state.p, 0, tensor_bytes(state));
            CALL(&t.g, levels_forward(&t.g.run, &t.c, t.x, t.delta, t.L, state, 0, o));
            size_t at = 0;
            cr_assert(t.c.n < 3 || level_error(o, whole, &at) > 0.01, "%s: positions do not matter", t.name);
            level_close(&t);
        }
}
