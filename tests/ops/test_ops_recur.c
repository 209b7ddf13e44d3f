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
