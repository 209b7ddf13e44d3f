/* The recurrence at the sizes of the sweep and with wide heads (test_recur.c has the rest of it). */
#include "tests/lib/recur_ref.h"

void case_recur(Rig *g, int N, int d) {
    Batch alone = g->batch;
    int K = 1 + d % 19, V = 1 + d % 23, heads = d >= 300 ? 4 : 1;
    Scene *c = recur_case(3, (int[]){N / 2, 0, N - N / 2}, (int[]){d % 50 + 1, N + 1}, 2, heads, 2 * heads, K, V,
                          d % 3 == 0   ? 0
                          : d % 3 == 1 ? 1
                                       : K,
                          d % 2, N > 8);
    if (d % 5 < 2) recur_erase(c);
    recur_hold(g, c);
    recur_case_free(c);
    g->batch = alone;
}
OP_TEST(recur, EXACT, 2000)                /* root mean squares; a solve's rounding grows with the chunk */
OP_CASE(recur_backward, case_recur, 2000); /* one case has both */
/* Wider than a block of a device takes at once, and as wide as it keeps in registers. */
Test(ops, recur_with_wide_heads) {
    static const int shapes[][5] = {{64, 40, 1, 1, 64}, {100, 133, 1, 2, 1}, {128, 128, 1, 1, 128}, {200, 70, 1, 1, 0}};
    for (int i = 0; i < 8; i++) { /* the second time with erase keys */
        const int *k = shapes[i % 4];
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)64 << 20);
        Scene *c = recur_case(2, (int[]){3, 70}, (int[]){2, 80}, 2, k[2], k[3], k[0], k[1], k[4], i % 4 != 1, true);
        if (i >= 4) recur_erase(c);
        recur_hold(&g, c);
        recur_case_free(c);
        rig_close(&g);
    }
}

#ifndef KV_DOUBLE /* the bounds of bf16 are no tighter in double */
/* ---- products in bf16 ----------------------------------------------------------------------------------------------
 * Every table has the form, whether or not its processor's instruction makes it worth while. The bound is of root mean
 * squares over all rows: a product's operands are rounded to 2^-9 of themselves, and what a chunk makes of them goes
 * through the next. Every number of threads gives the same bits. */
static const double rounded_bound = 1e-2;
/* Both ops on scene c against the reference on `as` (recur_apart); the hash of the results. */
static uint64_t rounded(Table table, int threads, const Scene *c, const Scene *as, double err[RECUR_RESULTS],
                        Worst at[RECUR_RESULTS]) {
    Rig g;
    rig_open(&g, table, threads, (size_t)64 << 20);
    g.dev->pairs = true;
    recur_apart(&g, c, as, err, at);
    const uint64_t hash = g.hash;
    rig_close(&g);
    return hash;
}
/* The largest error of case i with each number of threads. */
static double rounded_case(Table table, int i, const Scene *c) {
    uint64_t alone = 0;
    double err[RECUR_RESULTS], worst = 0;
    Worst at[RECUR_RESULTS];
    for (int threads = 1; threads <= rig_threads(); threads++) {
        const uint64_t hash = rounded(table, threads, c, c, err, at);
        for (int r = 0; r < RECUR_RESULTS; r++) {
            cr_assert(err[r] <= rounded_bound, "%s, case %d, %s: %.3g off, worst at %zu: got %.9g, want %.9g",
                      table.name, i, recur_results[r], err[r], at[r].i, at[r].got, at[r].want);
            worst = fmax(worst, err[r]);
        }
        if (threads == 1) alone = hash;
        cr_assert(hash == alone, "%s, case %d: %d threads give other bits than one", table.name, i, threads);
    }
    return worst;
}
Test(ops, recur_in_bf16, .timeout = 120) {
    static const int widths[][2] = {{32, 32}, {16, 48}, {64, 16}, {16, 16}};
    double worst = 0;
    int tried = 0;
    if (cuda_ops()) return; /* a device computes the recurrence in f32 */
    for (int i = 0; i < 12; i++) {
        const int K = widths[i % 4][0], V = widths[i % 4][1], decay = (int[]){0, 1, K}[i % 3];
        const bool delta = i / 6;
        if (!check_sampled(i)) continue;
        Table tables[TABLES_MAX];
        Scene *c = recur_case(3, (int[]){90, 7, 70}, (int[]){64, 20, 65, 18}, 4, 1, 2, K, V, decay, delta, true),
              *other = recur_case(3, (int[]){90, 7, 70}, (int[]){64, 20, 65, 18}, 4, 1, 2, K, V, decay, delta, true);
        if (i % 5 > 2) recur_erase(c), recur_erase(other);
        for (int x = 0; x < c->N * c->H * K; x++) other->k[x] *= (wide)0.8;
        for (int k = 0, n = rig_pairs(tables); k < n; k++, tried++) {
            double err[RECUR_RESULTS], most = 0;
            Worst at[RECUR_RESULTS];
            worst = fmax(worst, rounded_case(tables[k], i, c));
            if (k) continue;
            rounded(tables[k], 1, c, other, err, at); /* keys a fifth too short */
            for (int r = 0; r < RECUR_RESULTS; r++) most = fmax(most, err[r]);
            cr_assert(most > 10 * rounded_bound, "%s, case %d: other keys are %.3g off", tables[k].name, i, most);
        }
        recur_case_free(c), recur_case_free(other);
    }
    check_log("recurrences with products in bf16", worst, rounded_bound, 0, (size_t)tried);
}
#endif
