/* Ops of rows in groups, each with a matrix of its own, against wide references: see rig.h and test_ops.c. */
#include "tests/lib/rig.h"

enum { GROUPS_MOST = 7 };
/* Forms of grouping M rows: drawn with empty groups, all rows in the last group, all in the first, one group, a row in
 * each as far as they go. */
enum { DRAWN, LAST, FIRST, SINGLE, APART, FORMS };
typedef struct {
    int n, off[GROUPS_MOST + 1];
    Tensor w[GROUPS_MOST], dw[GROUPS_MOST];
    Ref *want[GROUPS_MOST];
} Grouped;
static void grouping(Grouped *c, int M, int form) {
    Dice dice = {rng_mix(31, (uint64_t)M), 0};
    c->n = form == SINGLE ? 1 : GROUPS_MOST;
    c->off[0] = 0;
    for (int g = 0; g < c->n; g++) {
        int left = M - c->off[g], take = left;
        if (form == DRAWN) take = g % 3 == 1 ? 0 : roll(&dice, left + 1);
        if (form == LAST) take = 0;
        if (form == APART) take = imin(left, 1);
        c->off[g + 1] = c->off[g] + (g == c->n - 1 ? left : take);
    }
}
static Groups groups_of(const Grouped *c) { return (Groups){c->n, c->off}; }
static Tensor matrix(Rig *g, const char *what, int e, int O, int I) {
    char name[32];
    snprintf(name, sizeof name, "%s %d", what, e);
    return rig_random(arena_tensor(&g->mem, name, REAL, 2, (int[]){O, I}), name);
}
static int group_of(const Grouped *c, int m) {
    int e = 0;
    while (c->off[e + 1] <= m) e++;
    return e;
}

/* Widths of results and numbers of rows that cross every block: 64 rows, 256 outputs, 256 inputs, 256 rows of a sum. */
static int outputs(int k, int N, int d) {
    const int widths[] = {1, 15, 33, 67, 40};
    return N == 150 && d > 200 && k == SINGLE ? 261 : widths[k];
}
static int rows(int k, int N) { return N == 150 && k == SINGLE ? 2 * N : N; }

void case_linear_groups(Rig *g, int N, int d) {
    for (int k = 0; k < FORMS; k++) {
        Mark mark = arena_mark(&g->mem);
        Grouped c;
        int O = outputs(k, N, d), M = rows(k, N);
        grouping(&c, M, k);
        Tensor x = RANDOM(g, "x", M, d), y = EMPTY(g, "y", M, O);
        for (int e = 0; e < c.n; e++) c.w[e] = matrix(g, "w", e, O, d);
        Ref *want = refs((size_t)M * (size_t)O), *other = refs((size_t)M * (size_t)O);
        const bool tell = c.n > 1;
        for (int m = 0; m < M; m++)
            for (int o = 0, e = group_of(&c, m); o < O; o++)
                for (int i = 0; i < d; i++) {
                    const wide a = R(x)[m * d + i];
                    ref_term(&want[m * O + o], a * R(c.w[e])[o * d + i]);
                    if (tell) ref_term(&other[m * O + o], a * R(c.w[(e + 1) % c.n])[o * d + i]);
                }
        OP(g, linear_groups, y, x, groups_of(&c), c.w);
        CHECK_REF(g, "linear_groups", "y", y, want);
        if (M && tell) CHECK_MISSED("linear_groups", "the next group's matrix", y, other);
        free(want), free(other);
        arena_release(&g->mem, mark);
    }
}
OP_CASE(linear_groups, case_linear_groups, 6);
Test(ops, linear_groups, .timeout = 120) { rig_sweep("linear_groups", case_linear_groups, EXACT); }

void case_linear_groups_backward(Rig *g, int N, int d) {
    for (int k = 0; k < FORMS; k++) {
        Mark mark = arena_mark(&g->mem);
        Grouped c;
        int O = outputs(k, N, d), M = rows(k, N);
        bool wants_x = k != FIRST, wants_w = k != LAST;
        grouping(&c, M, k);
        Tensor x = RANDOM(g, "x", M, d), dy = RANDOM(g, "dy", M, O), dx = RANDOM(g, "dx", M, d);
        Ref *rx = refs_of(dx);
        for (int e = 0; e < c.n; e++) {
            c.w[e] = matrix(g, "w", e, O, d);
            c.dw[e] = matrix(g, "dw", e, O, d);
            c.want[e] = refs_of(c.dw[e]);
        }
        for (int m = 0; m < M; m++)
            for (int o = 0, e = group_of(&c, m); o < O; o++) {
                wide t = R(dy)[m * O + o];
                for (int i = 0; i < d; i++) {
                    if (wants_x) ref_term(&rx[m * d + i], t * R(c.w[e])[o * d + i]);
                    if (wants_w) ref_term(&c.want[e][o * d + i], t * R(x)[m * d + i]);
                }
            }
        OP(g, linear_groups_backward, add_to(wants_x ? dx : ABSENT), wants_w ? c.dw : NULL, dy, x, groups_of(&c), c.w);
        CHECK_REF(g, "linear_groups_backward", "dx", dx, rx);
        for (int e = 0; e < c.n; e++) {
            CHECK_REF(g, "linear_groups_backward", "dw", c.dw[e], c.want[e]);
            free(c.want[e]);
        }
        free(rx);
        arena_release(&g->mem, mark);
    }
}
OP_CASE(linear_groups_backward, case_linear_groups_backward, 6);
Test(ops, linear_groups_backward, .timeout = 120) {
    rig_sweep("linear_groups_backward", case_linear_groups_backward, EXACT);
}

/* A row's products do not depend on the rows beside it, whatever the blocks they fall in; where a device's library sums
 * in another order by the number of rows, but for that. */
static const double order_rms = 1e-6;
Test(ops, linear_groups_of_a_row_are_its_own) {
    enum { M = 140, O = 70, I = 300 };
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        Rig g;
        rig_open(&g, tables[k], 2, 4 << 20);
        Tensor x = RANDOM(&g, "x", M, I), w = RANDOM(&g, "w", O, I), all = EMPTY(&g, "all", M, O),
               some = EMPTY(&g, "some", M, O);
        OP(&g, linear_groups, all, x, ((Groups){1, (int[]){0, M}}), &w);
        for (int from = 0; from < M; from += 7) {
            int m = imin(5 + from % 61, M - from);
            if (m < 5) continue; /* few rows are summed in another order */
            Tensor xs = TENSOR(R(x) + from * I, REAL, m, I), ys = TENSOR(R(some) + from * O, REAL, m, O);
            OP(&g, linear_groups, ys, xs, ((Groups){1, (int[]){0, m}}), &w);
            CHECK_SAME(g.dev, "rows", R(ys), R(all) + from * O, tensor_count(ys), order_rms);
        }
        rig_close(&g);
    }
}

#ifndef KV_DOUBLE
/* With products in bf16 both operands of every group's are rounded, forward and backward, where its matrix has
 * BF16_LEAST weights, and nowhere else: against the same sums of rounded numbers; those of others miss the bound.
 * Groups of no row, of a few, of more than a call of the CPU's product takes for few; more of them than one call
 * takes. */
enum { ROUNDED_GROUPS = 19 };
static wide rounded(real x, bool rounds) { return rounds ? (wide)bf16_to(bf16_from(x)) : (wide)x; }
typedef struct {
    Ref *y, *dx, *dw[ROUNDED_GROUPS];
} Sums;
static Sums sums_of(const int *off, Tensor y, Tensor x, Tensor dy, Tensor dx, const Tensor *w, const Tensor *dw,
                    bool rounds) {
    int O = w->n[0], I = w->n[1];
    Sums s = {.y = refs(tensor_count(y)), .dx = refs_of(dx)};
    for (int e = 0; e < ROUNDED_GROUPS; e++) {
        s.dw[e] = refs_of(dw[e]);
        for (int m = off[e]; m < off[e + 1]; m++)
            for (int o = 0; o < O; o++)
                for (int i = 0; i < I; i++) {
                    wide a = rounded(R(x)[m * I + i], rounds), b = rounded(R(w[e])[o * I + i], rounds),
                         g = rounded(R(dy)[m * O + o], rounds);
                    ref_term(&s.y[m * O + o], a * b);
                    ref_term(&s.dx[m * I + i], g * b);
                    ref_term(&s.dw[e][o * I + i], g * a);
                }
    }
    return s;
}
static void sums_free(Sums *s) {
    free(s->y), free(s->dx);
    for (int e = 0; e < ROUNDED_GROUPS; e++) free(s->dw[e]);
}
static void rounded_case(Rig *g, int O, int I) {
    static const int rows[ROUNDED_GROUPS] = {3, 0, 70, 1, 64, 65, 0, 5, 17, 2, 2, 90, 1, 0, 8, 33, 66, 4, 0};
    int off[ROUNDED_GROUPS + 1] = {0};
    for (int e = 0; e < ROUNDED_GROUPS; e++) off[e + 1] = off[e] + rows[e];
    const int M = off[ROUNDED_GROUPS];
    const bool rounds = O * I >= BF16_LEAST;
    Tensor w[ROUNDED_GROUPS], dw[ROUNDED_GROUPS], x = RANDOM(g, "x", M, I), dy = RANDOM(g, "dy", M, O),
                                                  dx = RANDOM(g, "dx", M, I), y = EMPTY(g, "y", M, O);
    for (int e = 0; e < ROUNDED_GROUPS; e++) w[e] = matrix(g, "w", e, O, I), dw[e] = matrix(g, "dw", e, O, I);
    Sums right = sums_of(off, y, x, dy, dx, w, dw, rounds), wrong = sums_of(off, y, x, dy, dx, w, dw, !rounds);
    const Groups all = {ROUNDED_GROUPS, off};
    for (int back = 0; back < 2; back++) {
        void (*done)(Rig *) = rounds && !g->dev->cuda ? rig_done_within : rig_done;
        rig_measure(g);
        for (int k = 0; k < 2; k++) {
            if (k) rig_place(g);
            if (back)
                g->run.ops->linear_groups_backward(&g->run, add_to(dx), dw, dy, x, all, w);
            else
                g->run.ops->linear_groups(&g->run, y, x, all, w);
        }
        done(g);
    }
    CHECK_REF(g, "linear_groups", "y in bf16", y, right.y);
    CHECK_REF(g, "linear_groups_backward", "dx in bf16", dx, right.dx);
    CHECK_MISSED("linear_groups", "another rule of rounding", y, wrong.y);
    CHECK_MISSED("linear_groups_backward", "another rule of rounding", dx, wrong.dx);
    for (int e = 0; e < ROUNDED_GROUPS; e++) {
        CHECK_REF(g, "linear_groups_backward", "dw in bf16", dw[e], right.dw[e]);
        if (rows[e]) CHECK_MISSED("linear_groups_backward", "another rule of rounding", dw[e], wrong.dw[e]);
    }
    sums_free(&right), sums_free(&wrong);
}
Test(ops, linear_groups_in_bf16, .timeout = 120) {
    static const int sizes[][2] = {{32, 64}, {33, 65}, {31, 66}, {129, 17}};
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++)
        for (int z = 0; z < 4; z++) {
            uint64_t alone = 0;
            for (int threads = 1; threads <= rig_threads(); threads++) {
                Rig g;
                Err e = {0};
                rig_open(&g, tables[k], threads, 8 << 20);
                cr_assert(device_bf16(g.dev, true, &e), "%s", e.msg);
                rounded_case(&g, sizes[z][0], sizes[z][1]);
                if (threads == 1) alone = g.hash;
                cr_assert(g.hash == alone, "%s: %d threads give another result", g.table, threads);
                cr_assert(device_bf16(g.dev, false, &e));
                rig_close(&g);
            }
        }
}
/* A row's numbers are its own, whatever kernel its group is large enough for. */
Test(ops, linear_groups_in_bf16_of_a_row_are_its_own) {
    enum { M = 140, O = 70, I = 300 };
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        Rig g;
        Err e = {0};
        rig_open(&g, tables[k], 2, 4 << 20);
        cr_assert(device_bf16(g.dev, true, &e), "%s", e.msg);
        Tensor x = RANDOM(&g, "x", M, I), w = RANDOM(&g, "w", O, I), all = EMPTY(&g, "all", M, O),
               some = EMPTY(&g, "some", M, O), each[] = {w, w, w};
        for (int cut = 0; cut < 3; cut++) {
            static const int off[][4] = {{0, M, M, M}, {0, 1, 65, M}, {0, 64, 66, M}};
            Tensor to = cut ? some : all;
            OP_WITHIN(&g, linear_groups, to, x, ((Groups){3, off[cut]}), each);
            CHECK_SAME(g.dev, "rows", R(to), R(all), tensor_count(all), order_rms);
        }
        rig_close(&g);
    }
}
#endif
