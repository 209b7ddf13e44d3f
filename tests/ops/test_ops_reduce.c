/* test_ops_reduce.c: gradients of an embedding with ids in many tiles. */
#include "tests/lib/rig.h"

OP_CASE(embed_backward, NULL, 4);

static void big(Case *f, int N, int d, size_t mb) {
    Table tables[TABLES_MAX];
    int n = rig_tables(tables);
    for (int k = 0; k < n; k++) {
        Rig g;
        rig_open(&g, tables[k], 1, mb << 20);
        int *of = xcalloc((size_t)N + 1, sizeof *of), *at = xcalloc((size_t)N + 1, sizeof *at);
        for (int m = 0; m < N; m++) at[m] = m;
        g.batch = (Batch){.B = 1, .N = N, .off = (int[]){0, N}, .of = of, .pos = at, .id = (uint64_t[]){5}};
        g.run.in = g.run.out = (RowList){N, at};
        f(&g, N, d);
        rig_close(&g);
        free(of), free(at);
    }
}
/* Ids that are alone, in pairs, in runs of hundreds, the first and the last of a vocabulary of 17 bits. */
static void case_embed_backward_many(Rig *g, int N, int d) {
    enum { V = 70001 };
    Tensor dtable = RANDOM(g, "dtable", V, d), dy = RANDOM(g, "dy", N, d);
    int *tok = xcalloc((size_t)N, sizeof *tok);
    Dice dice = {rng_mix(78, (uint64_t)N), 0};
    for (int i = 0; i < N; i++) {
        int kind = roll(&dice, 8);
        tok[i] = kind < 3 ? 512 * 77 + 5 : kind == 3 ? V - 1 : kind == 4 ? roll(&dice, 40) * 512 : roll(&dice, V);
    }
    Ref *want = refs_of(dtable);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < d; k++) ref_term(&want[tok[i] * d + k], 2 * R(dy)[i * d + k]);
    OP(g, embed_backward, dtable, dy, tok, 2);
    CHECK_REF(g, "embed_backward", "dtable", dtable, want);
    free(tok), free(want);
}
Test(ops_reduce, embed_backward) {
    big(case_embed_backward_many, 2500, 4, 16), big(case_embed_backward_many, 300, 5, 16);
}
