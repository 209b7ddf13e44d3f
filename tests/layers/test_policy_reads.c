/* test_policy_reads.c: pages that a step reads by quest, beside a plain computation over the lane's rows: which pages,
 * the attention over them, the bytes. test_policy_model.c has the models. */
#include "layers/cache/cache.h"
#include "layers/cache/codec.h"
#include "tests/lib/rig.h"

enum { LANES = 2, HEADS = 4, D = 8, DV = 6, LONG = 120, PAGE = 4, GROUP = HEADS / LANES };
typedef struct {
    Rig g;
    Cache c;
    PolicyCfg p;
    KvShape s;
    int next;
} Bench;

static void open_bench(Bench *b, const char *spec, const RowCodec *codec, bool alias) {
    Err e = {0};
    *b = (Bench){.s = {.lanes = LANES, .kdim = D, .vdim = DV, .alias = alias, .codec = codec, .heads = HEADS}};
    cr_assert(policy_parse(spec, &b->p, &e), "%s", e.msg);
    rig_open(&b->g, rig_first(), 2, 1 << 20);
    cr_assert(kv_open_policy(&b->c, NULL, &b->p, &b->s, 1, 2, LONG + 8, LONG, 64, true, false, &e), "%s", e.msg);
}
/* n new rows of sequence 1 and, without rows of its own, queries at its next n positions: o (n,HEADS,DV). */
static void pass(Bench *b, int n, bool stored, Tensor q, Tensor o, Tensor lse) {
    int of[LONG] = {0}, pos[LONG], first[LONG], idx[LONG];
    const int off[] = {0, n}, seq = 1, accept = stored ? n : 0;
    for (int i = 0; i < n; i++) pos[i] = b->next + i, first[i] = b->next ? -1 : 0, idx[i] = i;
    const Batch batch = {
        .B = 1, .N = n, .off = off, .seq = &seq, .of = of, .pos = pos, .first = first, .history = true};
    const AttnSpec spec = {.heads = HEADS, .scale = (real)0.4};
    Rig *g = &b->g;
    Err e = {0};
    Mark mark = arena_mark(&g->mem);
    char name[32];
    snprintf(name, sizeof name, "keys %d", b->next);
    Kv kv = {.s = b->s};
    kv.k = rig_random(EMPTY(g, name, n, LANES, D), name);
    if (!b->s.alias) kv.v = RANDOM(g, "values", n, LANES, DV);
    g->run.batch = &batch, g->run.in = g->run.out = (RowList){n, idx};
    cr_assert(kv_begin(&b->c, &batch, &e), "%s", e.msg);
    if (present(q)) { /* selecting needs more scratch than reading everything */
        rig_measure(g);
        kv_attend(&g->run, kv_slot(&b->c, 0), &kv, o, lse, q, spec, false);
        rig_place(g);
        kv_attend(&g->run, kv_slot(&b->c, 0), &kv, o, lse, q, spec, false);
        rig_done_within(g);
    }
    CALL(g, (kv_append(&g->run, kv_slot(&b->c, 0), &kv, &accept), 0));
    kv_end(&b->c, &batch, &accept);
    if (stored) CALL(g, (kv_policy(&g->run, &b->c, &batch, &accept), 0));
    b->next += stored ? n : 0;
    arena_release(&g->mem, mark);
}
/* Row r of a lane: its position, its key and its value. */
static int row_of(const Bench *b, int lane, int r, real key[D], real value[D]) {
    const Lanes *t = kv_lanes(kv_slot(&b->c, 0));
    const RowCodec *codec = b->s.codec ? b->s.codec : &codec_f32;
    const size_t kb = codec->bytes(codec, D), vb = b->s.alias ? 0 : codec->bytes(codec, DV), P = (size_t)t->P,
                 page = (size_t)t->table[lane * t->maxpages + r / t->P % t->maxpages], at = (size_t)(r % t->P);
    const char *data = (const char *)t->data.p + page * P * (kb + vb);
    codec->decode(codec, key, data + at * kb, D);
    if (vb)
        codec->decode(codec, value, data + P * kb + at * vb, DV);
    else
        memcpy(value, key, DV * sizeof *key);
    return t->pos[page * P + at];
}
/* What head h at position pos gets of the pages that it reads; returns their rows. `wrong`: of the worst bounds. */
static int plain(const Bench *b, int lane, int h, const real *q, int pos, double out[DV], bool wrong) {
    const Lanes *t = kv_lanes(kv_slot(&b->c, 0));
    const int lo = t->lo[lane], hi = t->hi[lane];
    double bound[LONG];
    bool older[LONG] = {0};
    int pages = 0, rows = 0;
    real k[D], v[D];
    for (int p = 0; p * PAGE < hi - lo; p++, pages++) {
        double low[D], high[D];
        int newest = 0, n = imin(PAGE, hi - lo - p * PAGE);
        for (int r = 0; r < n; r++) {
            newest = imax(newest, row_of(b, lane, lo + p * PAGE + r, k, v));
            for (int d = 0; d < D; d++) {
                low[d] = r ? fmin(low[d], (double)k[d]) : (double)k[d];
                high[d] = r ? fmax(high[d], (double)k[d]) : (double)k[d];
            }
        }
        older[p] = n == PAGE && newest < pos - b->p.recent;
        bound[p] = -INFINITY;
        for (int g = h / GROUP * GROUP; g < (h / GROUP + 1) * GROUP; g++) {
            double sum = 0;
            for (int d = 0; d < D; d++) sum += fmax((double)q[g * D + d] * low[d], (double)q[g * D + d] * high[d]);
            bound[p] = fmax(bound[p], sum);
        }
        if (wrong) bound[p] = -bound[p];
    }
    const double wanted = b->p.reads > 1 ? b->p.reads : b->p.reads * (pos + 1);
    const int most = (int)ceil(fmax(0, wanted - b->p.recent) / PAGE);
    double sum = 0;
    memset(out, 0, DV * sizeof *out);
    for (int p = 0; p < pages; p++) {
        int better = 0;
        for (int o = 0; o < pages; o++) better += older[o] && (bound[o] > bound[p] || (bound[o] == bound[p] && o < p));
        for (int r = p * PAGE; r < imin(hi - lo, (p + 1) * PAGE) && (!older[p] || better < most); r++, rows++) {
            double s = 0;
            row_of(b, lane, lo + r, k, v);
            for (int d = 0; d < D; d++) s += (double)q[h * D + d] * (double)k[d];
            sum += s = exp(s * 0.4);
            for (int d = 0; d < DV; d++) out[d] += s * (double)v[d];
        }
    }
    for (int d = 0; d < DV; d++) out[d] /= sum;
    return rows;
}
static double off_by(const double *a, const double *b) {
    double off = 0;
    for (int d = 0; d < DV; d++) off = fmax(off, fabs(a[d] - b[d]));
    return off;
}
Test(policy_reads, a_step_reads_the_pages_of_the_highest_bounds, .timeout = 60) {
    static const char *const specs[] = {"quest:reads=12,recent=4,page=4", "quest:reads=0.3,recent=6,page=4",
                                        "quest:reads=5,recent=5,page=4",
                                        "knorm:budget=0.6,window=4,sinks=2,every=4+quest:reads=14,recent=4,page=4",
                                        "knorm:budget=0.29,window=1,sinks=2,every=16+quest:reads=9,recent=4,page=4"};
    int tried = 0, fewer = 0, noticed = 0;
    for (int draw = 0; draw < 15; draw++) {
        Bench b;
        open_bench(&b, specs[draw % 5], codec_at(draw % 3), draw % 4 == 3);
        pass(&b, 41, true, ABSENT, ABSENT, ABSENT);
        for (int step = 0; step < 24; step++) {
            Rig *g = &b.g;
            Mark mark = arena_mark(&g->mem);
            const int n = step % 3 ? 1 : 3; /* guesses, too */
            char name[32];
            snprintf(name, sizeof name, "q %d %d", draw, step);
            Tensor q = rig_random(EMPTY(g, name, n, HEADS, D), name), o = EMPTY(g, "o", n, HEADS, DV),
                   lse = EMPTY(g, "lse", n, HEADS);
            if (step == 2) kv_prompt_ends(&g->run, &b.c, 1, b.next);
            pass(&b, n, false, q, o, lse);
            size_t rows = 0, all = 0;
            for (int h = 0; h < HEADS; h++)
                for (int i = 0; i < n; i++) {
                    const int lane = LANES + h / GROUP;
                    double want[DV], bad[DV], got[DV];
                    Bench dense = b;
                    dense.p.reads = 1000;
                    const real *qi = R(q) + i * HEADS * D;
                    const int read = plain(step < 2 ? &dense : &b, lane, h, qi, b.next + i, want, false);
                    plain(&b, lane, h, qi, b.next + i, bad, true);
                    for (int d = 0; d < DV; d++) got[d] = (double)R(o)[(i * HEADS + h) * DV + d];
                    cr_assert(off_by(got, want) <= 2e-5, "draw %d, step %d, head %d: off by %g", draw, step, h,
                              off_by(got, want));
                    noticed += off_by(got, bad) > 1e-3;
                    if (h % GROUP == 0) rows += (size_t)read, all += (size_t)kv_rows(kv_slot(&b.c, 0), 1, h / GROUP);
                    tried++;
                }
            if (rows == all) rows /= (size_t)n; /* nothing is left out: one reading for all rows of the pass */
            cr_assert(kv_read(&b.c) == rows * row_bytes(&kv_lanes(kv_slot(&b.c, 0))->s), "draw %d, step %d: %zu bytes",
                      draw, step, kv_read(&b.c));
            fewer += rows < all / (size_t)n;
            arena_release(&g->mem, mark);
            pass(&b, step == 7 ? 6 : 2, true, ABSENT, ABSENT, ABSENT);
        }
        kv_drop(&b.c, 1);
        kv_close(&b.c);
        rig_close(&b.g);
    }
    cr_assert(tried > 700 && fewer > 90 && noticed > 300, "%d queries, %d steps read fewer rows, %d times another rule",
              tried, fewer, noticed);
}
