/* Products of few rows (ops/cpu/few_rows.c): every form, group of rows and remainder of a tile, at sizes around their
 * borders, with every op table, against a wide reference. */
#include "tests/lib/rig.h"

static const int rows[] = {1, 2, 5, 7, 8, 9, 16, 17, 24, 25, 31, 32, 33, 40, 48, 49, 63, 64, 65},
                 outs[] = {1, 3, 4, 8, 12, 23, 24, 25, 61}, widths[] = {1, 15, 16, 17, 127, 128, 129, 300};
enum { ROWS = sizeof rows / sizeof *rows, OUTS = sizeof outs / sizeof *outs, WIDTHS = sizeof widths / sizeof *widths };

static Ref *sums(Tensor x, Tensor w, int drop) {
    int N = x.n[0], O = w.n[0], I = w.n[1];
    Ref *y = refs((size_t)N * (size_t)O);
    for (int m = 0; m < N; m++)
        for (int o = 0; o < O; o++)
            for (int i = 0; i < I - drop; i++) ref_term(&y[m * O + o], (wide)R(x)[m * I + i] * R(w)[o * I + i]);
    return y;
}
Test(ops, linear_of_few_rows, .timeout = 120) {
    if (cuda_ops()) return; /* how the CPU divides its work */
    Table tables[TABLES_MAX];
    for (int n = rig_tables(tables), k = 0; k < n; k++)
        for (int z = 0; z < ROWS * OUTS; z++) {
            int N = rows[z / OUTS], O = outs[z % OUTS], I = widths[(z / OUTS + z % OUTS + k) % WIDTHS];
            Rig g;
            rig_open(&g, tables[k], 1 + z % 3, 1 << 20);
            Tensor x = RANDOM(&g, "x", N, I), w = RANDOM(&g, "w", O, I), y = EMPTY(&g, "y", N, O);
            Ref *want = sums(x, w, 0), *less = sums(x, w, 1);
            OP(&g, linear, y, x, w, ABSENT);
            CHECK_REF(&g, "gemm", "few rows", y, want);
            if (I > 1) CHECK_MISSED("gemm", "a dropped term", y, less);
            free(want), free(less);
            rig_close(&g);
        }
}
/* Up to 32 rows, and from 33 to 64 with AVX2, a row's result has the same bits whatever other rows there are,
 * whatever the threads, and if the matrix is BF16 in memory but not in the product. */
Test(ops, linear_of_few_rows_has_one_order) {
    if (cuda_ops()) return;
    enum { MOST = 64, O = 131, I = 301 };
    Table tables[TABLES_MAX];
    for (int n = rig_tables(tables), k = 0; k < n; k++)
        for (int threads = 1; threads <= 3; threads++) {
            Rig g;
            rig_open(&g, tables[k], threads, 4 << 20);
            Tensor x = RANDOM(&g, "x", MOST, I), w = RANDOM(&g, "w", O, I), y = EMPTY(&g, "y", MOST, O);
            Tensor small = arena_tensor(&g.mem, "w in bf16", BF16, 2, (const int[]){O, I});
            for (int i = 0; i < O * I; i++) {
                ((uint16_t *)small.p)[i] = bf16_from((float)R(w)[i]);
                R(w)[i] = (real)bf16_to(((uint16_t *)small.p)[i]);
            }
            for (int form = 0; form < 2; form++) {
                int from = form ? 33 : 1, to = !form || strncmp(tables[k].name, "avx", 3) ? 32 : MOST;
                Tensor all = TENSOR(R(y), REAL, to, O), of = TENSOR(R(x), REAL, to, I);
                OP(&g, linear, all, of, w, ABSENT);
                rig_result(&g, all);
                for (int N = from; N <= to; N += 1 + N / 9) {
                    Mark mark = arena_mark(&g.mem);
                    Tensor got = EMPTY(&g, "few", N, O), last = TENSOR(R(x) + (to - N) * I, REAL, N, I);
                    OP(&g, linear, got, last, w, ABSENT);
                    CHECK_BYTES("the last rows", R(got), R(y) + (to - N) * O, (size_t)(N * O) * sizeof(real));
                    OP(&g, linear, got, last, small, ABSENT);
                    CHECK_BYTES("a matrix in bf16", R(got), R(y) + (to - N) * O, (size_t)(N * O) * sizeof(real));
                    arena_release(&g.mem, mark);
                }
            }
            static uint64_t alone;
            if (threads == 1) alone = g.hash;
            cr_assert_eq(g.hash, alone, "%s: %d threads give another result", g.table, threads);
            rig_close(&g);
        }
}
