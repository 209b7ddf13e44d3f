/* test_ops_heads.c: a matrix for every head; columns between rows of different widths: see test_ops.c. */
#include "rig.h"

/* `wrong`: 1: the next head's matrix, 2: one term short. */
static Ref *heads_ref(Tensor y, Tensor x, Tensor w, int row, int O, bool turned, int wrong) {
    int M = x.n[0], H = x.n[1], I = w.n[1], R_ = w.n[0] / H, from = turned ? O : I, to = turned ? I : O;
    Ref *want = refs_of(y); /* what lies behind stays */
    for (int m = 0; m < M; m++)
        for (int h = 0; h < H; h++)
            for (int a = 0; a < to; a++) {
                Ref *r = &want[(m * H + h) * y.n[2] + a];
                *r = (Ref){0};
                for (int b = 0; b < from - (wrong == 2); b++) {
                    int at = row + (turned ? b : a), i = turned ? a : b, head = wrong == 1 ? (h + 1) % H : h;
                    ref_add(r, (wide)R(w)[(head * R_ + at) * I + i] * R(x)[(m * H + h) * x.n[2] + b]);
                }
            }
    return want;
}
void case_linear_heads(Rig *g, int N, int d) {
    const int heads[] = {1, 2, 5}, rows[] = {1, 4, 17};
    for (int k = 0; k < 6; k++) {
        Mark mark = arena_mark(&g->mem);
        bool turned = k % 2;
        int H = heads[k / 2], O = rows[(k + N) % 3], row = k % 3, spare = k == 2 ? 0 : 3, I = N > 100 ? d % 64 + 1 : d;
        Tensor w = RANDOM(g, "w", H * (row + O + k % 2), I), x = RANDOM(g, "x", N, H, (turned ? O : I) + spare),
               y = RANDOM(g, "y", N, H, (turned ? I : O) + spare);
        Ref *want = heads_ref(y, x, w, row, O, turned, 0), *other = heads_ref(y, x, w, row, O, turned, 1),
            *less = heads_ref(y, x, w, row, O, turned, 2);
        for (int m = 0; m < N * H; m++) /* not read */
            for (int s = 0; s < spare; s++) R(x)[(m + 1) * x.n[2] - 1 - s] = NAN;
        OP(g, linear_heads, y, x, w, row, O, turned);
        CHECK_REF(g, "linear_heads", "y", y, want);
        if (N && H > 1) CHECK_MISSED("linear_heads", "another head's matrix", y, other);
        if (N) CHECK_MISSED("linear_heads", "a dropped term", y, less);
        free(want), free(other), free(less);
        arena_release(&g->mem, mark);
    }
    Tensor w = RANDOM(g, "w", 6, 3), x = RANDOM(g, "x", N, 3, 2), y = EMPTY(g, "y", N, 3, 3);
    Ref *none = refs(tensor_count(y));
    OP(g, linear_heads, y, x, w, 0, 0, true); /* no rows: a sum of nothing */
    CHECK_REF(g, "linear_heads", "of no rows", y, none);
    free(none);
}
OP_TEST(linear_heads, EXACT)

/* Rows of x to k neighbours each; columns that lie elsewhere in both. */
void case_columns(Rig *g, int N, int d) {
    for (int k = 1; k <= 3; k++) {
        Mark mark = arena_mark(&g->mem);
        int n = k == 3 ? d / 2 : d, to = 2 * (k - 1), from = k == 2 ? 5 : 0;
        Tensor x = RANDOM(g, "x", N, from + n + k - 1), y = RANDOM(g, "y", N, k, to + n + 1);
        Ref *want = refs_of(y);
        for (int i = 0; i < N * k; i++)
            for (int c = 0; c < n; c++) want[i * y.n[2] + to + c] = (Ref){R(x)[i / k * x.n[1] + from + c], 1, 1};
        OP(g, columns, y, to, x, from, n);
        CHECK_REF(g, "columns", "y", y, want);
        free(want);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(columns, EXACT)
void case_columns_backward(Rig *g, int N, int d) {
    for (int k = 1; k <= 3; k++) {
        Mark mark = arena_mark(&g->mem);
        int n = k == 3 ? d / 2 : d, to = 2 * (k - 1), from = k == 2 ? 5 : 0;
        Tensor dx = RANDOM(g, "dx", N, from + n + k - 1), dy = RANDOM(g, "dy", N, k, to + n + 1);
        Ref *want = refs_of(dx);
        for (int i = 0; i < N * k; i++)
            for (int c = 0; c < n; c++) ref_add(&want[i / k * dx.n[1] + from + c], R(dy)[i * dy.n[2] + to + c]);
        OP(g, columns_backward, dx, from, dy, to, n);
        CHECK_REF(g, "columns_backward", "dx", dx, want);
        free(want);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(columns_backward, EXACT)
