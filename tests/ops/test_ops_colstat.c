/* test_ops_colstat.c: column statistics of attention over cached rows, against loops over rows that lie in any order in
 * shuffled pages, in every codec, with every reduction, over all rows and over older ones alone. */
#include "layers/cache/codec.h"
#include "tests/lib/rig.h"
#include <limits.h>

enum { SEQS = 2, LANES = 2, P = 4, GROUP = 3, ROOM = 7, GAP = 2 };
typedef struct {
    Lanes t;
    int n[LANES], Dv;
    real *k[LANES], *v[LANES]; /* as they are read back */
    int *pos[LANES];
} Case1;

static void *taken(Rig *g, size_t bytes) { return memset(arena_take(&g->mem, bytes, "tables"), 0, bytes); }
/* N rows in lane 0 of the sequence, fewer in lane 1; pages from the last to the first, positions ascending by one or
 * GAP and then swapped; the first visible row is the second. */
static Case1 lanes_drawn(Rig *g, Dice *dice, int N, int d, int Dv, const RowCodec *codec, bool alias, int seq) {
    const int pages = N / P + 3;
    Case1 x = {.Dv = Dv};
    x.t = (Lanes){.s = {.lanes = LANES, .kdim = d, .vdim = Dv, .alias = alias, .codec = codec, .sparse = true},
                  .nseq = SEQS,
                  .P = P,
                  .maxpages = pages,
                  .npages = pages * LANES};
    Lanes *t = &x.t;
    const size_t kb = key_bytes(&t->s), vb = value_bytes(&t->s), ints = SEQS * LANES * sizeof(int);
    t->lo = taken(g, ints), t->hi = taken(g, ints), t->s0 = taken(g, ints);
    t->table = taken(g, ints * (size_t)pages), t->pos = taken(g, (size_t)(t->npages * P) * sizeof(int));
    const size_t bytes = (size_t)(t->npages * P) * (kb + vb);
    t->data = arena_tensor(&g->mem, "rows", F32, 1, (int[]){(int)((bytes + 3) / 4)});
    if (rows_as(&t->s) == ROWS_REAL) t->data = TENSOR(taken(g, bytes + 8), REAL, (int)(bytes / sizeof(real)) + 1);
    memset(t->data.p, 0, tensor_bytes(t->data));
    const RowCodec *c = codec ? codec : &codec_f32;
    real *row = xcalloc((size_t)imax(d, Dv), sizeof *row);
    for (int h = 0; h < LANES; h++) {
        const int lane = seq * LANES + h, n = x.n[h] = h ? N - N / 3 : N;
        x.k[h] = xcalloc((size_t)(n * d) + 1, sizeof(real)), x.v[h] = xcalloc((size_t)(n * Dv) + 1, sizeof(real));
        x.pos[h] = xcalloc((size_t)n + 1, sizeof(int));
        t->lo[lane] = 1, t->hi[lane] = n + 1;
        for (int p = 0; p < pages; p++) t->table[lane * pages + p] = h * pages + pages - 1 - p;
        for (int i = 0, at = 0; i < n; i++, at += 1 + roll(dice, GAP)) x.pos[h][i] = at;
        for (int i = n - 1; i > 0; i--) {
            const int j = roll(dice, i + 1), was = x.pos[h][i];
            x.pos[h][i] = x.pos[h][j], x.pos[h][j] = was;
        }
        for (int i = 0; i < n; i++) {
            const int page = t->table[lane * pages + (i + 1) / P], at = (i + 1) % P;
            char *data = (char *)t->data.p + (size_t)(page * P) * (kb + vb);
            t->pos[page * P + at] = x.pos[h][i];
            for (int k = 0; k < d; k++) row[k] = (real)rng_normal(dice->key, dice->n++);
            c->encode(c, data + (size_t)at * kb, row, d);
            c->decode(c, x.k[h] + i * d, data + (size_t)at * kb, d);
            for (int k = 0; alias && k < Dv; k++) x.v[h][i * Dv + k] = x.k[h][i * d + k];
            if (alias) continue;
            for (int k = 0; k < Dv; k++) row[k] = (real)rng_normal(dice->key, dice->n++);
            c->encode(c, data + (size_t)(P * (int)kb) + (size_t)at * vb, row, Dv);
            c->decode(c, x.v[h] + i * Dv, data + (size_t)(P * (int)kb) + (size_t)at * vb, Dv);
        }
    }
    free(row);
    return x;
}
static void lanes_free(Case1 *x) {
    for (int h = 0; h < LANES; h++) free(x->k[h]), free(x->v[h]), free(x->pos[h]);
}

typedef enum { RIGHT, SEES_NEWER, NO_LSE, OTHER_QUERIES, OTHER_HEADS, NO_VALUE, ONE_HEAD, ALL_ROWS, FAULTS } Fault;
/* p_ij and how much rounding may change it, relative to a rounding of 1. */
static wide chance(const Case1 *x, Tensor q, Tensor lse, int h, int j, int row, int g, Fault f, wide *err) {
    const int d = x->t.s.kdim, group = q.n[1] / LANES, at = row * q.n[1] + h * group + g;
    wide e, s = rig_score(R(q) + at * d, x->k[h] + j * d, d, 1, &e);
    const wide l = f == NO_LSE ? 0 : R(lse)[at], p = wide_exp(s - l);
    *err = p * (2 + wide_sqrt(e * d) + wide_fabs(s) + wide_fabs(l));
    return p;
}
static Ref column(const Case1 *x, Tensor q, Tensor lse, const ColStat *c, int h, int j, Fault f) {
    Ref all = {0};
    const int rows = q.n[0], shift = f == OTHER_QUERIES;
    for (int g = 0; g < q.n[1] / LANES; g++) {
        Ref one = {0};
        for (int i = 0; i < c->n; i++) {
            const int own = c->from + i;
            int seen = 0;
            wide err, p = chance(x, q, lse, h, j, (own + shift) % rows, g, f, &err);
            for (int m = 0; m < x->n[h]; m++) seen += x->pos[h][m] <= own;
            if (x->pos[h][j] > (c->older ? c->from - 1 : own) && f != SEES_NEWER) continue;
            one.terms++;
            switch (c->queries) {
            case COL_SUM: one.want += p, one.square += err * err; break;
            case COL_MAX:
                if (p > one.want) one.want = p, one.square = err * err;
                break;
            case COL_COUNT: /* who is close to an even share may be counted or not */
                one.want += p * seen > 1;
                if (wide_fabs(p * seen - 1) < (sizeof(real) == 4 ? 1e-3L : 1e-9L)) one.square = 1e30L;
            }
        }
        const bool sum = (c->heads == COL_SUM) != (f == OTHER_HEADS);
        all.terms += one.terms;
        if (c->queries == COL_COUNT) all.square += one.square;
        if (sum || one.want > all.want) {
            all.want = sum ? all.want + one.want : one.want;
            all.square = sum ? all.square + one.square : one.square;
        }
    }
    wide norm = 0;
    for (int k = 0; k < x->Dv; k++) {
        const wide v = x->v[h][j * x->Dv + k];
        norm += c->value == COL_L1 ? wide_fabs(v) : v * v;
    }
    norm = c->value == COL_PLAIN || f == NO_VALUE ? 1 : c->value == COL_L1 ? norm : wide_sqrt(norm);
    all.want *= norm;
    all.square = all.square * norm * norm + all.want * all.want * (wide)(1 + x->Dv);
    if (!all.terms) all.terms = 1;
    return all;
}
/* ColStat.older: the queries of a lane's heads as one (rows,LANES,d), and their log-sum-exps over the older rows. */
static Tensor sums_of(Rig *g, Tensor q, int heads) {
    const int d = q.n[2];
    Tensor sum = EMPTY(g, "sums", q.n[0], LANES, d);
    for (int i = 0; i < q.n[0] * LANES; i++)
        for (int k = 0; k < d; k++) {
            real s = 0;
            for (int e = 0; e < heads; e++) s += R(q)[(i * GROUP + e) * d + k];
            R(sum)[i * d + k] = s;
        }
    return sum;
}
static Tensor lse_of(Rig *g, const Case1 *x, Tensor q, int from) {
    const int d = q.n[2];
    Tensor lse = EMPTY(g, "own lse", q.n[0], LANES);
    for (int i = 0; i < q.n[0] * LANES; i++) {
        const int h = i % LANES;
        wide sum = 0, e;
        for (int j = 0; j < x->n[h]; j++)
            if (x->pos[h][j] < from) sum += wide_exp(rig_score(R(q) + i * d, x->k[h] + j * d, d, 1, &e));
        R(lse)[i] = (real)wide_log(sum);
    }
    return lse;
}
/* bf16: queries are rounded, after those of heads that ask as one were added. */
static Ref *columns(Rig *g, const Case1 *x, Tensor q, Tensor lse, const ColStat *c, int S, bool bf16, Fault f) {
    Ref *r = refs((size_t)(LANES * S));
    q = c->older ? sums_of(g, q, f == ONE_HEAD ? 1 : GROUP) : tensor_copy(g, q);
    if (bf16) check_as_bf16(q);
    if (c->older) lse = lse_of(g, x, q, f == ALL_ROWS ? INT_MAX : c->from);
    for (int h = 0; h < LANES; h++)
        for (int j = 0; j < S; j++) r[h * S + j] = j < x->n[h] ? column(x, q, lse, c, h, j, f) : (Ref){0, 0, 1};
    return r;
}
/* So that the row of a lane that every query sees has a chance of about one in its rows. */
static void queries_drawn(Rig *g, int N, int rows, int d, Tensor *q, Tensor *lse) {
    *q = RANDOM(g, "q", rows, LANES * GROUP, d), *lse = RANDOM(g, "lse", rows, LANES * GROUP);
    for (size_t i = 0; i < tensor_count(*q); i++) R(*q)[i] /= (real)sqrt(d);
    for (size_t i = 0; i < tensor_count(*lse); i++) R(*lse)[i] = (real)(0.3 * (double)R(*lse)[i] + log(1 + N));
}
static void check_columns(Rig *g, const Case1 *x, Tensor q, Tensor lse, const ColStat *c, int S) {
    const int N = x->n[0], rows = q.n[0];
    Tensor stat = EMPTY(g, "stat", LANES, S);
    Ref *want = columns(g, x, q, lse, c, S, false, RIGHT);
    OP(g, colstat, stat, q, lse, &x->t, *c);
    CHECK_REF(g, "colstat", c->older ? "stat of older rows" : "stat", stat, want);
    free(want);
    for (Fault f = SEES_NEWER; N > 8 && c->n > 4 && f < FAULTS; f++) {
        if (c->queries == COL_COUNT || (f == NO_VALUE && c->value == COL_PLAIN)) continue;
        if (f == SEES_NEWER && c->from > N) continue; /* nothing need be newer */
        if (c->older ? f == OTHER_HEADS : f >= ONE_HEAD) continue;
        /* one of the queries is another then: they all see the same rows, and it need not give any the most */
        if (c->older && f == OTHER_QUERIES && (c->n == rows || c->queries == COL_MAX)) continue;
        if (c->older && c->from < 5 && f != SEES_NEWER) continue; /* there are hardly any */
        Mark mark = arena_mark(&g->mem);
        Ref *wrong = columns(g, x, q, lse, c, S, false, f);
        CHECK_MISSED("colstat", "a planted mistake", stat, wrong);
        free(wrong);
        arena_release(&g->mem, mark);
    }
}
void case_colstat(Rig *g, int N, int d) {
    Dice dice = {rng_mix(rng_mix(0xC015, (uint64_t)N), (uint64_t)d), 0};
    for (int draw = 0; draw < (N * d > 10000 ? 1 : 3); draw++) {
        const RowCodec *codec = draw == 0 ? NULL : draw == 1 ? &codec_bf16 : codec_at(2 + roll(&dice, 5));
        const int S = N + 3, rows = ROOM + 80 * (draw == 1 && N == 65), seq = roll(&dice, SEQS);
        Mark mark = arena_mark(&g->mem);
        const bool alias = roll(&dice, 3) == 0;
        Case1 x = lanes_drawn(g, &dice, N, d, alias ? (d + 1) / 2 : d / 2 + 1, codec, alias, seq);
        Tensor q, lse;
        queries_drawn(g, N, rows, d, &q, &lse);
        ColStat c = {seq,
                     imax(0, N - roll(&dice, rows)),
                     rows - roll(&dice, 3),
                     (ColReduce)roll(&dice, 3),
                     (ColReduce)roll(&dice, 2),
                     (ColValue)roll(&dice, 3),
                     false};
        if (rng_mix((uint64_t)(N + d), (uint64_t)draw) % 3 == 0) c.n = 1 + (N + draw) % 4; /* few are read otherwise */
        check_columns(g, &x, q, lse, &c, S);
        c.older = true, c.queries = (ColReduce)(c.queries % 2);
        if (draw == 2 && N % 2) c.from = 0; /* no row is older */
        check_columns(g, &x, q, EMPTY(g, "no lse", rows, LANES * GROUP), &c, S);
        lanes_free(&x);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(colstat, EXACT, 12)

/* Rows in bf16 as operands of pairs: queries are rounded as attention rounds them, all else is f32. */
static void in_bf16(Rig *g, int N, int d, int n, int draw, bool older) {
    Dice dice = {rng_mix(rng_mix(0xB016, (uint64_t)(N * d)), (uint64_t)draw), 0};
    Table tables[TABLES_MAX];
    Mark mark = arena_mark(&g->mem);
    Tensor q, lse;
    Case1 x = lanes_drawn(g, &dice, N, d, 16 * (1 + draw % 2), &codec_bf16, draw % 3 == 0 && d > 16, 1);
    queries_drawn(g, N, n + draw % 2, d, &q, &lse);
    const ColStat c = {1,
                       imax(0, N - n / 2),
                       n,
                       (ColReduce)(draw % (older ? 2 : 3)),
                       (ColReduce)(draw % 2),
                       (ColValue)(draw / 3 % 3),
                       older};
    Ref *want = columns(g, &x, q, lse, &c, N + 3, true, RIGHT),
        *wrong = columns(g, &x, q, lse, &c, N + 3, false, RIGHT);
    for (int k = 0, count = rig_pairs(tables); k < count; k++)
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Tensor stat = EMPTY(g, "stat", LANES, N + 3);
            rig_use(g, tables[k], threads);
            OP(g, colstat, stat, q, lse, &x.t, c);
            CHECK_REF(g, "colstat", "stat of rows in bf16", stat, want);
            if (N > 8 && c.queries != COL_COUNT && (!older || c.from > 4))
                cr_assert(rig_error(stat, wrong) > 2 * rig_limit("colstat"), "queries are not rounded: %g",
                          rig_error(stat, wrong));
        }
    free(want), free(wrong);
    lanes_free(&x);
    arena_release(&g->mem, mark);
}
Test(ops, colstat_in_bf16) {
    static const int width[] = {16, 48, 64, 576}, rows[] = {1, 9, 65, 200}, queries[] = {3, 16, 64, 130};
    if (cuda_ops()) return; /* its kernel multiplies f32 */
    for (int draw = 0; draw < 36; draw++) {
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)64 << 20);
        g.dev->pairs = true;
        in_bf16(&g, rows[draw % 4], width[draw / 4 % 4], queries[(draw / 2 + draw / 16) % 4], draw, false);
        in_bf16(&g, rows[draw % 4], width[draw / 4 % 4], queries[(draw / 2 + draw / 16) % 4], draw, true);
        rig_close(&g);
    }
}
