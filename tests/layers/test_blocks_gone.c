/* test_blocks_gone.c: rows of blocks that a policy let go: attention and column statistics over the rest, on every
 * instruction set, against plain loops over the rows that stayed. */
#include "layers/cache/cache.h"
#include "layers/cache/codec.h"
#include "tests/lib/rig.h"

enum { LANES = 2, HEADS = 4, D = 8, DV = 6, ROWS = 230, MOST = 64, GROUP = HEADS / LANES };
typedef struct {
    Rig g;
    Cache c;
    PolicyCfg p;
    KvShape s;
    int next;
} Bench;
static void append(Bench *b, int n) {
    int of[MOST] = {0}, pos[MOST], first[MOST], idx[MOST];
    const int off[] = {0, n}, seq = 0;
    Rig *g = &b->g;
    Err e = {0};
    char name[40];
    for (int i = 0; i < n; i++) pos[i] = b->next + i, first[i] = b->next ? -1 : 0, idx[i] = i;
    const Batch batch = {
        .B = 1, .N = n, .off = off, .seq = &seq, .of = of, .pos = pos, .first = first, .history = true};
    Mark mark = arena_mark(&g->mem);
    snprintf(name, sizeof name, "rows %d", b->next);
    Kv kv = {.s = b->s, .k = rig_random(EMPTY(g, name, n, LANES, D), name)};
    if (!b->s.alias) kv.v = rig_random(EMPTY(g, "values", n, LANES, DV), name + 1);
    g->run.batch = &batch, g->run.in = g->run.out = (RowList){n, idx};
    cr_assert(kv_begin(&b->c, &batch, &e), "%s", e.msg);
    rig_use(g, rig_first(), 1);
    CALL(g, (kv_append(&g->run, kv_slot(&b->c, 0), &kv, NULL), 0));
    kv_end(&b->c, &batch, NULL);
    CALL(g, (kv_policy(&g->run, &b->c, &batch, NULL), 0));
    b->next += n;
    arena_release(&g->mem, mark);
}
/* Row `row` of a lane as it is read; its position. */
static int row_of(const Bench *b, int lane, int row, double key[D], double value[D], bool *coded) {
    const Lanes *t = kv_lanes(kv_slot(&b->c, 0));
    const RowCodec *c = b->s.codec;
    const int page = t->table[lane * t->maxpages + row / t->P % t->maxpages], at = row % t->P;
    real part[MOST];
    *coded = page >= t->npages;
    if (*coded) {
        const char *in = lanes_block(t, page);
        for (int k = 0; k < D; k++, in += c->piece_bytes(c, MOST)) {
            c->piece_decode(c, part, in, MOST);
            key[k] = (double)part[at];
        }
        if (!b->s.alias) c->piece_decode(c, part, in + (size_t)at * c->piece_bytes(c, DV), DV);
        for (int k = 0; k < DV; k++) value[k] = b->s.alias ? key[k] : (double)part[k];
    } else {
        const real *in = R(t->data) + (size_t)page * MOST * (b->s.alias ? D : D + DV);
        for (int k = 0; k < D; k++) key[k] = (double)in[at * D + k];
        for (int k = 0; k < DV; k++) value[k] = b->s.alias ? key[k] : (double)in[MOST * D + at * DV + k];
    }
    return t->pos[page * t->P + at];
}
/* One head's output and, of queries at positions from `first` on, what it gives to each row. `all`: of rows that are
 * gone, too. */
static int plain(const Bench *b, int h, const real *q, double scale, double out[DV], double *given, bool all) {
    const Lanes *t = kv_lanes(kv_slot(&b->c, 0));
    double sum = 0, key[D], value[D];
    int gone = 0;
    memset(out, 0, DV * sizeof *out);
    for (int row = 0; row < t->hi[h / GROUP]; row++) {
        bool coded;
        double s = 0;
        const bool left = row_of(b, h / GROUP, row, key, value, &coded) < 0;
        gone += left, given[row] = 0;
        if (left && !all) continue;
        for (int k = 0; k < D; k++) s += scale * (double)q[h * D + k] * key[k];
        sum += given[row] = exp(s);
        for (int k = 0; k < DV; k++) out[k] += exp(s) * value[k];
    }
    for (int k = 0; k < DV; k++) out[k] /= sum;
    for (int row = 0; row < t->hi[h / GROUP]; row++) given[row] /= sum;
    return gone;
}
static double norm(const double *v, ColValue how) {
    double l1 = 0, l2 = 0;
    for (int k = 0; k < DV; k++) l1 += fabs(v[k]), l2 += v[k] * v[k];
    return how == COL_PLAIN ? 1 : how == COL_L1 ? l1 : sqrt(l2);
}
/* A query after all rows, at ops of one table. */
static void ask(Bench *b, Table table, int draw, double worst[2], int *tried, int *noticed) {
    const int of = 0, pos = b->next, first = -1, idx = 0, off[] = {0, 1}, seq = 0;
    const Batch batch = {
        .B = 1, .N = 1, .off = off, .seq = &seq, .of = &of, .pos = &pos, .first = &first, .history = true};
    Rig *g = &b->g;
    const Slot *slot = kv_slot(&b->c, 0);
    const Lanes *t = kv_lanes(slot);
    const AttnSpec bare = {.heads = HEADS, .scale = (real)0.7};
    const ColValue how = (ColValue[]){COL_PLAIN, COL_L1, COL_L2}[draw % 3];
    Mark mark = arena_mark(&g->mem);
    const Kv kv = {.s = b->s};
    Tensor q = RANDOM(g, "q", 1, HEADS, D), o = EMPTY(g, "o", 1, HEADS, DV), lse = EMPTY(g, "lse", 1, HEADS),
           scaled = EMPTY(g, "scaled", 1, HEADS, D), stat = EMPTY(g, "stat", LANES, ROWS);
    g->run.batch = &batch, g->run.in = g->run.out = (RowList){1, &idx};
    rig_use(g, table, 1);
    CALL(g, (kv_attend(&g->run, slot, &kv, o, lse, q, bare, false), 0));
    for (int k = 0; k < HEADS * D; k++) R(scaled)[k] = R(q)[k] * bare.scale;
    OP(g, colstat, stat, scaled, lse, t, (ColStat){0, pos, 1, COL_SUM, COL_SUM, how, false});
    double got[DV], bad[DV], *given = xcalloc((GROUP + 1) * ROWS, sizeof *given), *other = given + GROUP * ROWS;
    for (int h = 0; h < HEADS; h++) {
        const int gone = plain(b, h, R(q), 0.7, got, given + h % GROUP * ROWS, false);
        plain(b, h, R(q), 0.7, bad, other, true);
        double off = 0, far = 0, key[D], value[D];
        for (int k = 0; k < DV; k++) {
            off = fmax(off, fabs(got[k] - (double)R(o)[h * DV + k]));
            far = fmax(far, fabs(bad[k] - (double)R(o)[h * DV + k]));
        }
        cr_assert(off <= 2e-5, "%s, draw %d, head %d: attention is off by %.3g", table.name, draw, h, off);
        worst[0] = fmax(worst[0], off), *tried += gone, *noticed += gone && far > 1e-3;
        if (h % GROUP < GROUP - 1) continue;
        for (int row = 0; row < t->hi[h / GROUP]; row++) {
            bool coded;
            double want = 0;
            row_of(b, h / GROUP, row, key, value, &coded);
            for (int i = 0; i < GROUP; i++) want += given[i * ROWS + row];
            want *= norm(value, how);
            off = fabs(want - (double)R(stat)[h / GROUP * ROWS + row]);
            cr_assert(off <= 2e-5, "%s, draw %d, lane %d row %d: statistic %g, expected %g", table.name, draw,
                      h / GROUP, row, (double)R(stat)[h / GROUP * ROWS + row], want);
            worst[1] = fmax(worst[1], off);
        }
    }
    free(given);
    arena_release(&g->mem, mark);
}
Test(blocks_gone, nobody_sees_a_row_that_left, .timeout = 100) {
    static const char *const codecs[] = {"kivi4", "kivi2:group=64", "kvquant3:turned=no", "kivi3"};
    int tried = 0, noticed = 0;
    double worst[2] = {0};
    if (cuda_ops()) return; /* no device reads blocks */
    for (int draw = 0; draw < 8; draw++) {
        RowCodec codec;
        Bench b = {.next = 0};
        Err e = {0};
        Table tables[TABLES_MAX];
        cr_assert(codec_parse(codecs[draw % 4], &codec, &e), "%s", e.msg);
        b.s = (KvShape){.lanes = LANES, .kdim = D, .vdim = DV, .alias = draw / 4 % 2, .codec = &codec, .heads = HEADS};
        cr_assert(policy_parse("random:budget=0.5,window=8,every=90", &b.p, &e), "%s", e.msg);
        rig_open(&b.g, rig_first(), 1, 1 << 20);
        cr_assert(kv_open_policy(&b.c, NULL, &b.p, &b.s, 1, 1, ROWS, MOST, 0, true, false, &e), "%s", e.msg);
        while (b.next < ROWS - 1) {
            const int block = MOST - b.next % MOST, due = 90 - b.next % 90;
            append(&b, imin(imin(block, due), imin(ROWS - 1 - b.next, 1 + draw * 9)));
        }
        for (int k = 0, n = rig_tables(tables); k < n; k++) ask(&b, tables[k], draw, worst, &tried, &noticed);
        kv_close(&b.c);
        rig_close(&b.g);
    }
    fprintf(stderr, "blocks_gone: attention off by %.3g, statistics by %.3g at most, %d rows are gone\n", worst[0],
            worst[1], tried);
    cr_assert(tried > 500 && noticed >= 24, "%d rows are gone, %d times seen rows would be noticed", tried, noticed);
}
