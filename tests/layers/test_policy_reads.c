/* test_policy_reads.c: pages that a step reads, compared with a plain computation over the lane's rows: which pages,
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
    int next, passes;
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
    snprintf(name, sizeof name, "keys %d", b->passes++);
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
/* Scores of the older pages, whose keys are key (pages,PAGE,D), by quest: q (GROUP,D). */
static void by_quest(const real *q, int pages, double (*key)[PAGE][D], double *score) {
    for (int p = 0; p < pages; p++) {
        score[p] = -INFINITY;
        for (int g = 0; g < GROUP; g++) {
            double sum = 0;
            for (int d = 0; d < D; d++) {
                double most = -INFINITY;
                for (int r = 0; r < PAGE; r++) /* no less than what any number between the extremes gives */
                    most = fmax(most, (double)q[g * D + d] * key[p][r][d]);
                sum += most;
            }
            score[p] = fmax(score[p], sum);
        }
    }
}
/* The same by hybrid: the FEW channels of the largest queries. */
enum { FEW = 3 };
static void by_hybrid(const real *q, int pages, double (*key)[PAGE][D], double *score) {
    double size[D] = {0}, sum[D] = {0};
    memset(score, 0, (size_t)pages * sizeof *score);
    for (int i = 0; i < GROUP * D; i++) size[i % D] += fabs((double)q[i]), sum[i % D] += (double)q[i];
    for (int g = 0; g < GROUP; g++) {
        double s[LONG], all = 0, some = 0, total = 0;
        for (int p = 0; p < pages; p++) s[p] = 0;
        for (int d = 0; d < D; d++) {
            int larger = 0;
            const double qd = (double)q[g * D + d];
            for (int o = 0; o < D; o++) larger += size[o] > size[d];
            all += fabs(qd);
            if (larger >= FEW) continue;
            some += fabs(qd);
            for (int p = 0; p < pages; p++) {
                double end = key[p][0][d];
                for (int r = 1; r < PAGE; r++) end = sum[d] > 0 ? fmax(end, key[p][r][d]) : fmin(end, key[p][r][d]);
                s[p] += qd * end;
            }
        }
        for (int p = 0; p < pages; p++) total += s[p] = exp(s[p] * 0.4 * sqrt(all / some));
        for (int p = 0; p < pages; p++) score[p] += s[p] / total;
    }
}
/* The same by shadowkv. */
static void by_shadowkv(const real *q, int pages, double (*key)[PAGE][D], int uneven, double *score) {
    double mean[LONG][D] = {{0}}, like[LONG];
    bool out[LONG];
    for (int p = 0; p < pages; p++) {
        like[p] = INFINITY, score[p] = 0;
        for (int i = 0; i < PAGE * D; i++) mean[p][i % D] += key[p][i / D][i % D] / PAGE;
        for (int r = 0; r < PAGE; r++) {
            double dot = 0, a = 0, b = 0;
            for (int d = 0; d < D; d++)
                dot += mean[p][d] * key[p][r][d], a += pow(mean[p][d], 2), b += pow(key[p][r][d], 2);
            like[p] = fmin(like[p], dot / sqrt(a) / sqrt(b));
        }
    }
    for (int p = 0; p < pages; p++) {
        int less = 0;
        for (int o = 0; o < pages; o++) less += like[o] < like[p];
        out[p] = less < uneven;
    }
    for (int g = 0; g < GROUP; g++) {
        double s[LONG], total = 0;
        for (int p = 0; p < pages; p++) {
            s[p] = 0;
            for (int d = 0; d < D; d++) s[p] += 0.4 * (double)q[g * D + d] * mean[p][d];
            total += out[p] ? 0 : exp(s[p]);
        }
        for (int p = 0; p < pages; p++) score[p] = out[p] ? INFINITY : fmax(score[p], exp(s[p]) / total);
    }
}
/* The same by tailorkv: the FEW channels of the largest products. */
static void by_tailorkv(const real *q, int pages, double (*key)[PAGE][D], double *score) {
    double mean[D] = {0}, k[LONG][D] = {{0}}, most[D] = {0};
    for (int i = 0; i < GROUP * D; i++) mean[i % D] += (double)q[i] / GROUP;
    for (int p = 0; p < pages; p++) {
        score[p] = 0;
        for (int i = 0; i < PAGE * D; i++) k[p][i % D] += key[p][i / D][i % D] / PAGE;
        for (int d = 0; d < D; d++) most[d] = fmax(most[d], fabs(k[p][d]));
    }
    for (int d = 0; d < D; d++) {
        int larger = 0;
        for (int o = 0; o < D; o++) larger += fabs(mean[o]) * most[o] > fabs(mean[d]) * most[d];
        for (int p = 0; p < pages && larger < FEW; p++) score[p] += mean[d] * k[p][d];
    }
}
/* What head h at position pos gets of the pages that it reads; returns their rows. `wrong`: of the worst scores. */
static int plain(const Bench *b, int lane, int h, const real *q, int pos, double out[DV], bool wrong) {
    const Lanes *t = kv_lanes(kv_slot(&b->c, 0));
    const int lo = t->lo[lane], hi = t->hi[lane];
    double score[LONG], page_key[LONG][PAGE][D];
    int older[LONG], olders = 0, rows = 0;
    bool leave[LONG] = {0};
    real k[D], v[D];
    for (int p = 0; p * PAGE < hi - lo; p++) {
        int newest = 0, oldest = LONG, n = imin(PAGE, hi - lo - p * PAGE);
        for (int r = 0; r < n; r++) {
            const int at = row_of(b, lane, lo + p * PAGE + r, k, v);
            newest = imax(newest, at), oldest = imin(oldest, at);
            for (int d = 0; d < D; d++) page_key[olders][r][d] = (double)k[d];
        }
        if (n == PAGE && newest < pos - b->p.recent && oldest >= b->p.firsts) older[olders++] = p;
    }
    q += h / GROUP * GROUP * D;
    if (b->p.read == &policy_quest) by_quest(q, olders, page_key, score);
    if (b->p.read == &policy_hybrid) by_hybrid(q, olders, page_key, score);
    if (b->p.read == &policy_shadowkv) by_shadowkv(q, olders, page_key, b->p.uneven, score);
    if (b->p.read == &policy_tailorkv) by_tailorkv(q, olders, page_key, score);
    q += h % GROUP * D;
    const double wanted = b->p.reads > 1 ? b->p.reads : b->p.reads * (pos + 1);
    const int most = (int)ceil(fmax(0, wanted - b->p.recent - b->p.firsts) / PAGE) + b->p.uneven;
    for (int p = 0; p < olders; p++) {
        int better = 0;
        for (int o = 0; o < olders; o++)
            better += (wrong ? score[o] < score[p] : score[o] > score[p]) || (score[o] == score[p] && o < p);
        leave[older[p]] = better >= most;
    }
    double sum = 0;
    memset(out, 0, DV * sizeof *out);
    for (int at = 0; at < hi - lo; at++) {
        double s = 0;
        if (leave[at / PAGE]) continue;
        row_of(b, lane, lo + at, k, v);
        for (int d = 0; d < D; d++) s += (double)q[d] * (double)k[d];
        sum += s = exp(s * 0.4), rows++;
        for (int d = 0; d < DV; d++) out[d] += s * (double)v[d];
    }
    for (int d = 0; d < DV; d++) out[d] /= sum;
    return rows;
}
static double off_by(const double *a, const double *b) {
    double off = 0;
    for (int d = 0; d < DV; d++) off = fmax(off, fabs(a[d] - b[d]));
    return off;
}
Test(policy_reads, a_step_reads_the_pages_of_the_highest_scores, .timeout = 60) {
    static const char *const specs[] = {"quest:reads=12,recent=4,page=4",
                                        "quest:reads=0.3,recent=6,page=4",
                                        "quest:reads=5,recent=5,page=4",
                                        "knorm:budget=0.6,window=4,sinks=2,every=4+quest:reads=14,recent=4,page=4",
                                        "knorm:budget=0.29,window=1,sinks=2,every=16+quest:reads=9,recent=4,page=4",
                                        "hybrid:reads=12,recent=4,page=4,channels=0.4",
                                        "knorm:budget=0.6,window=4,sinks=2,every=4+hybrid:reads=8,recent=4,page=4,"
                                        "channels=0.4",
                                        "shadowkv:reads=9,recent=4,page=4,uneven=1",
                                        "shadowkv:reads=0.2,recent=5,page=4,uneven=3",
                                        "knorm:budget=0.6,window=4,sinks=2,every=4+shadowkv:reads=8,recent=4,page=4,"
                                        "uneven=1",
                                        "tailorkv:reads=14,recent=4,page=4,sinks=3,channels=0.4,coded=0",
                                        "knorm:budget=0.6,window=4,sinks=2,every=4+tailorkv:reads=13,recent=4,page=4,"
                                        "sinks=5,channels=0.4,coded=0"};
    int tried = 0, fewer = 0, noticed = 0;
    double worst = 0;
    for (int draw = 0; draw < 24; draw++) {
        Bench b;
        open_bench(&b, specs[draw % 12], codec_at(draw % 3), draw % 4 == 3);
        pass(&b, 41, true, ABSENT, ABSENT, ABSENT);
        for (int step = 0; step < 24; step++) {
            Rig *g = &b.g;
            Mark mark = arena_mark(&g->mem);
            const int n = step == 12 ? 19 : step % 3 ? 1 : 3; /* guesses, too; more than select at a time */
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
                    worst = fmax(worst, off_by(got, want));
                    noticed += off_by(got, bad) > 1e-3;
                    if (h % GROUP == 0) rows += (size_t)read, all += (size_t)kv_rows(kv_slot(&b.c, 0), 1, h / GROUP);
                    tried++;
                }
            if (rows == all) rows /= (size_t)n; /* nothing is left out: one reading for all rows of the pass */
            cr_assert(kv_read(&b.c) == rows * row_bytes(&kv_lanes(kv_slot(&b.c, 0))->s), "draw %d, step %d: %zu bytes",
                      draw, step, kv_read(&b.c));
            fewer += rows < all / (size_t)n;
            arena_release(&g->mem, mark);
            if (step == 15 && !policy_acts(&b.p)) { /* a page that was full gets other rows */
                b.next -= 9;
                cr_assert(kv_rewind(&b.c, 1, b.next, NULL));
                pass(&b, 9, true, ABSENT, ABSENT, ABSENT);
            }
            pass(&b, step == 7 ? 6 : 2, true, ABSENT, ABSENT, ABSENT);
        }
        kv_drop(&b.c, 1);
        kv_close(&b.c);
        rig_close(&b.g);
    }
    check_log("attention over the pages that are read", worst, 2e-5, 0, (size_t)tried);
    cr_assert(tried > 700 && fewer > 90 && noticed > 300, "%d queries, %d steps read fewer rows, %d times another rule",
              tried, fewer, noticed);
}
