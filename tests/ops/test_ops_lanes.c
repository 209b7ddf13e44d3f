/* Attention over the history in a cache that drawn schedules fill, by several readers of one slot, against loops over
 * the rows that the model of the cache says are there. */
#include "tests/lib/cache_model.h"
#include "layers/cache/codec.h"

typedef enum {
    RIGHT,
    DROPS_A_KEY,
    WIDER_WINDOW,
    ONE_SINK_LESS,
    NO_SCALE,
    IGNORES_DOCUMENTS,
    KEEPS_THE_TAIL,
    EVICTS_EARLY,
    NO_CAP,
    FAULTS
} Fault;
static const char *const fault_name[FAULTS] = {"",
                                               "a dropped key",
                                               "a window of one more",
                                               "a sink less",
                                               "a missing scale",
                                               "ignored documents",
                                               "a evicted tail",
                                               "a delay of one less",
                                               "a missing cap"};

typedef struct {
    const Plain *m;
    int slot, noticed[FAULTS];
    bool pairs; /* products round what they multiply to bf16 */
    bool same;  /* the bits are compared, for any number of threads, not the numbers */
    AttnSpec spec;
    RowList out;
    Tensor q, o0, lse0; /* (o0, lse0) is merged with, or absent */
} Reader;

/* Whether the row i of the pass sees row j of its history in lane h. */
static bool visible(const Reader *a, int i, int h, int j, Fault f) {
    const Batch *b = &a->m->b;
    const KvShape *s = &a->m->shape[a->slot];
    const History *x = &a->m->h[a->slot][b->seq[b->of[i]]];
    if (s->evicts && b->first[i] == -1) {
        bool tail = j + 1 == x->n,
             evicted = tail ? f != KEEPS_THE_TAIL && R(a->m->kv[a->slot].evicted)[b->off[b->of[i]] * s->lanes + h] != 0
                            : x->evicted[(j + 1) * s->lanes + h];
        if (evicted && b->pos[i] - j > s->delay - (f == EVICTS_EARLY)) return false;
        if (!plain_resident(a->m, a->slot, b->seq[b->of[i]], h, j)) return false;
    }
    if (b->first[i] != -1 && f != IGNORES_DOCUMENTS) return false;
    if (f == DROPS_A_KEY && j == a->m->h[a->slot][b->seq[b->of[i]]].n - 1) return false;
    return a->spec.window == 0 || b->pos[i] - j < a->spec.window + (f == WIDER_WINDOW) ||
           j < a->spec.sinks - (f == ONE_SINK_LESS);
}
/* Whether the rows that the row i of the pass sees are rounded: those that many entries multiply as pairs. */
static bool rounds(const Reader *a, int i) {
    enum { FEW_ENTRIES = 8, VECTOR = 16 };
    const KvShape *s = &a->m->shape[a->slot];
    const int seq = a->m->b.of[i], G = a->spec.heads / s->lanes;
    int rows = 0;
    for (int n = 0; n < a->out.n; n++) rows += a->m->b.of[a->out.idx[n]] == seq;
    return a->pairs && a->spec.cap <= 0 && s->kdim % VECTOR == 0 && s->vdim % VECTOR == 0 && rows * G > FEW_ENTRIES;
}
static const real *as_read(const real *x, int n, bool rounded, real *room) {
    for (int k = 0; rounded && k < n; k++) room[k] = (real)bf16_to(bf16_from((float)x[k]));
    return rounded ? room : x;
}
typedef struct {
    Ref *o, *lse;
    bool differs;
} Forward;
static Forward lanes_ref(const Reader *a, Fault f) {
    const Plain *m = a->m;
    const KvShape *s = &m->shape[a->slot];
    int H = a->spec.heads, G = H / s->lanes, Dk = s->kdim, Dv = s->vdim;
    Forward r = {refs((size_t)(a->out.n * H * Dv)), refs((size_t)(a->out.n * H)), false};
    Seen x = seen_make(m->max_tokens, Dk, Dv);
    real *k = xcalloc((size_t)(Dk + m->max_tokens * Dv), sizeof *k); /* a key; values, which stay until seen_ref */
    for (int n = 0; n < a->out.n; n++)
        for (int h = 0; h < H; h++) {
            int i = a->out.idx[n], at = n * H + h, keys = 0;
            const bool rounded = rounds(a, i);
            const History *past = &m->h[a->slot][m->b.seq[m->b.of[i]]];
            x.n = 0, x.cap = f == NO_CAP ? 0 : a->spec.cap;
            if (present(a->o0)) x.part = R(a->lse0)[at], x.o0 = R(a->o0) + at * Dv;
            for (int j = 0; j < past->n; j++) {
                bool sees = visible(a, i, h / G, j, f), right = visible(a, i, h / G, j, RIGHT);
                r.differs |= sees != right;
                keys += right;
                size_t row = (size_t)(j * s->lanes + h / G);
                if (sees)
                    seen_add(&x, R(a->q) + at * Dk, as_read(past->k + row * (size_t)Dk, Dk, rounded, k),
                             as_read(past->v + row * (size_t)Dv, Dv, rounded, k + Dk + x.n * Dv),
                             f == NO_SCALE ? 1 : a->spec.scale);
            }
            r.differs |= (f == NO_SCALE || (f == NO_CAP && a->spec.cap > 0)) && keys > 1;
            seen_ref(&x, &r.o[at * Dv], &r.lse[at]);
            if (keys || f != RIGHT || !present(a->o0)) continue;
            /* nothing is merged: not a bit may change */
            r.lse[at] = (Ref){R(a->lse0)[at], 0, 1};
            for (int k = 0; k < Dv; k++) r.o[at * Dv + k] = (Ref){R(a->o0)[at * Dv + k], 0, 1};
        }
    seen_free(&x);
    free(k);
    return r;
}
/* The rows and tables in memory that the device can read, too: the cache that the schedules fill is the host's. */
static void *within_reach(Rig *g, const void *from, size_t bytes) {
    if (!from) return NULL;
    return memcpy(arena_take(&g->mem, bytes, "cache"), from, bytes);
}
static Lanes lanes_within_reach(Rig *g, const Lanes *from) {
    Lanes t = *from;
    size_t ints = (size_t)(t.nseq * t.s.lanes) * sizeof(int), places = (size_t)t.npages * (size_t)t.P;
    t.s0 = within_reach(g, t.s0, ints), t.lo = within_reach(g, t.lo, ints), t.hi = within_reach(g, t.hi, ints);
    t.table = within_reach(g, t.table, ints * (size_t)t.maxpages);
    t.pos = within_reach(g, t.pos, places * sizeof(int)),
    t.evicted = within_reach(g, t.evicted, places * sizeof *t.evicted);
    t.tail = within_reach(g, t.tail, ints);
    t.data.p = within_reach(g, t.data.p, tensor_bytes(t.data));
    return t;
}
enum { BF16_MISSED = 10 };
static const double o_bf16 = 4e-3, lse_bf16 = 1e-6;
/* Whether o and lse differ from those of a fault by more than ten times what is allowed, relative RMS. */
static bool bf16_notices(Tensor o, Tensor lse, const Forward *wrong) {
    double far[2] = {0}, size[2] = {0};
    for (size_t i = 0; i < tensor_count(o); i++) {
        double want = (double)wrong->o[i].want;
        far[0] += pow((double)R(o)[i] - want, 2), size[0] += want * want;
    }
    for (size_t i = 0; i < tensor_count(lse); i++) {
        double got = (double)R(lse)[i], want = (double)wrong->lse[i].want;
        if ((got > -INFINITY) != (want > -INFINITY)) return true;
        if (want > -INFINITY) far[1] += pow(got - want, 2), size[1] += want * want;
    }
    return far[0] > pow(BF16_MISSED * o_bf16, 2) * size[0] || far[1] > pow(BF16_MISSED * lse_bf16, 2) * size[1];
}
/* Rows in bf16 as operands of bf16: the probabilities are rounded as well, scores are not; what sees nothing keeps the
 * partial that it would be merged with, to the bit. */
static void check_bf16(const Reader *a, Tensor o, Tensor lse, const Forward *want) {
    size_t rows = tensor_count(lse), n = tensor_count(o), Dv = rows ? n / rows : 0;
    double *x = xcalloc(2 * (n + rows) + 1, sizeof *x), *y = x + n, *u = y + n, *v = u + rows;
    for (size_t i = 0; i < rows; i++) {
        bool sees = (double)want->lse[i].want > -INFINITY;
        bool kept = present(a->o0) && sees && want->lse[i].square == 0;
        if (kept)
            cr_assert(R(lse)[i] == R(a->lse0)[i] && !memcmp(R(o) + i * Dv, R(a->o0) + i * Dv, Dv * sizeof(real)),
                      "entry %zu sees nothing and was changed", i);
        cr_assert(sees == (R(lse)[i] > -INFINITY), "entry %zu: lse %g", i, (double)R(lse)[i]);
        u[i] = sees ? (double)R(lse)[i] : 0, v[i] = sees ? (double)want->lse[i].want : 0;
        for (size_t k = i * Dv; k < (i + 1) * Dv; k++) x[k] = (double)R(o)[k], y[k] = (double)want->o[k].want;
    }
    double seen = 0;
    for (size_t i = 0; i < rows; i++) seen += fabs(v[i]);
    if (seen > 0) CHECK_RMS("o of rows in bf16", x, y, n, o_bf16);
    if (seen > 0) CHECK_RMS("lse of rows in bf16", u, v, rows, lse_bf16);
    free(x);
}
static bool has_blocks(const Lanes *t) {
    for (int i = 0; i < t->nseq * t->s.lanes * t->maxpages; i++)
        if (t->table[i] >= t->npages) return true;
    return false;
}
static void read_with(Rig *g, Reader *a, bool faults) {
    const Slot *slot = kv_slot(&a->m->c, a->slot);
    a->noticed[RIGHT] += has_blocks(kv_lanes(slot));
    int Dv = a->m->shape[a->slot].vdim, H = a->spec.heads;
    bool merge = present(a->o0);
    Forward want = a->same ? (Forward){0} : lanes_ref(a, RIGHT);
    Table tables[TABLES_MAX];
    RowList out = g->run.out;
    g->run.out = a->out;
    for (int k = 0, n = g->dev->pairs ? rig_pairs(tables) : rig_tables(tables); k < n; k++) {
        uint64_t alone = 0;
        for (int threads = 1; threads <= rig_threads(); threads++) {
            Mark mark = arena_mark(&g->mem);
            Tensor o = EMPTY(g, "o", a->out.n, H, Dv), lse = EMPTY(g, "lse", a->out.n, H);
            rig_use(g, tables[k], threads);
            if (merge) memcpy(o.p, a->o0.p, tensor_bytes(o)), memcpy(lse.p, a->lse0.p, tensor_bytes(lse));
            Lanes near = cuda_ops() ? lanes_within_reach(g, kv_lanes(slot)) : *kv_lanes(slot);
            if (cuda_ops())
                OP(g, attend_lanes, o, lse, a->q, &near, &a->m->kv[a->slot], a->spec, merge);
            else
                CALL(g, (kv_attend(&g->run, slot, &a->m->kv[a->slot], o, lse, a->q, a->spec, merge), 0));
            rig_result(g, o), rig_result(g, lse);
            if (threads == 1) alone = g->hash;
            cr_assert(g->hash == alone, "%s: %d threads give another result", g->table, threads);
            if (a->same) {
                arena_release(&g->mem, mark);
                continue;
            }
            if (rows_as(&near.s) == ROWS_BF16 || a->pairs) {
                check_bf16(a, o, lse, &want);
                for (Fault f = DROPS_A_KEY; faults && k == 0 && threads == 1 && f < FAULTS; f++) {
                    Forward wrong = lanes_ref(a, f);
                    if (wrong.differs) a->noticed[f] += bf16_notices(o, lse, &wrong);
                    free(wrong.o), free(wrong.lse);
                }
                arena_release(&g->mem, mark);
                continue;
            }
            CHECK_REF(g, "attend_lanes", merge ? "merged o" : "o", o, want.o);
            CHECK_REF(g, "attend_lanes", merge ? "merged lse" : "lse", lse, want.lse);
            for (Fault f = DROPS_A_KEY; faults && k == 0 && threads == 1 && f < FAULTS; f++) {
                Forward wrong = lanes_ref(a, f);
                if (wrong.differs) {
                    CHECK_MISSED("attend_lanes", fault_name[f], o, wrong.o);
                    CHECK_MISSED("attend_lanes", fault_name[f], lse, wrong.lse);
                    a->noticed[f]++;
                }
                free(wrong.o), free(wrong.lse);
            }
            arena_release(&g->mem, mark);
        }
    }
    g->run.out = out;
    free(want.o), free(want.lse);
}

/* A reader whose window and sinks lie inside the slot's retention, with wanted rows and perhaps a partial of its own.
 */
static void reader_draw(Reader *a, const Plain *m, Rig *g, Dice *dice, int slot, int heads, int *idx) {
    const KvShape *s = &m->shape[slot];
    int n = 0, wanted = roll(dice, 3), w = s->window;
    for (int i = 0; i < m->b.N; i++)
        if (wanted == 0 || (wanted == 1 && roll(dice, 2)) || i == m->off[m->of[i] + 1] - 1) idx[n++] = i;
    a->m = m, a->slot = slot;
    a->out = (RowList){n, idx};
    a->spec = (AttnSpec){.heads = s->lanes * (1 + roll(dice, 3)) * heads,
                         .window = w ? w : roll(dice, 2) * 7,
                         .sinks = s->sinks,
                         .scale = (real)(1.1 / sqrt(s->kdim)),
                         .cap = rng_mix((uint64_t)n, (uint64_t)slot) % 3 == 0 ? (real)0.4 : 0};
    if (w && roll(dice, 2)) a->spec.window = 1 + roll(dice, w); /* narrower than what is kept */
    if (a->spec.window && (s->sinks || !w) && roll(dice, 2)) a->spec.sinks = roll(dice, s->sinks + (w ? 0 : 4));
    a->q = RANDOM(g, "q", n, a->spec.heads, s->kdim);
    a->o0 = a->lse0 = ABSENT;
    if (roll(dice, 2)) return;
    a->o0 = RANDOM(g, "o before", n, a->spec.heads, s->vdim), a->lse0 = RANDOM(g, "lse before", n, a->spec.heads);
    for (int i = 0; i < n * a->spec.heads; i++)
        if (roll(dice, 3) == 0) {
            R(a->lse0)[i] = -INFINITY;
            for (int k = 0; k < s->vdim; k++) R(a->o0)[i * s->vdim + k] = 0;
        }
}

/* Rows become what the cache gives back. */
static void read_back(const RowCodec *c, Tensor x) {
    if (!c) return;
    const int w = x.n[x.rank - 1];
    char *part = xcalloc(c->bytes(c, w), 1);
    for (size_t i = 0; i + (size_t)w <= tensor_count(x); i += (size_t)w) {
        c->encode(c, part, R(x) + i, w);
        c->decode(c, R(x) + i, part, w);
    }
    free(part);
}

enum { DRAWS = 32, PASSES = 14 };
/* heads: times as many, of which the results are compared by their bits alone. */
static void lanes(Rig *g, int draw, const RowCodec *codec, int heads, int noticed[FAULTS]) {
    const bool is_bf16 = codec == &codec_bf16, pairs = g->dev->pairs;
    static const int page_rows[] = {1, 3, 4, 64}, window[] = {0, 1, 5, 70},
                     all_dims[][2] = {{24, 40}, {64, 64}, {8, 16}, {17, 3}, {2, 1}},
                     bf16_dims[][2] = {{24, 40}, {64, 64}, {8, 16}, {128, 128}, {256, 144}},
                     code_dims[][2] = {{24, 40}, {64, 64}, {8, 16}, {17, 3}, {112, 168}},
                     pair_dims[][2] = {{64, 64}, {32, 48}, {16, 16}, {17, 3}, {112, 176}};
    const int(*dims)[2] = is_bf16 ? bf16_dims : pairs ? pair_dims : codec ? code_dims : all_dims;
    Dice dice = {rng_mix(0x1A9E5, (uint64_t)draw), 0};
    KvShape s[2];
    Plain m;
    Reader a = {0};
    for (int i = 0; i < 2; i++) {
        int D = roll(&dice, 5), w = window[(draw / 4 + i * 3) % 4];
        s[i] = (KvShape){.lanes = 1 + roll(&dice, 2),
                         .kdim = dims[D][0],
                         .vdim = dims[D][1],
                         .codec = codec,
                         .window = w,
                         .sinks = w ? (draw / 16 + i) % 2 * 3 : 0};
    }
    RowCodec pair[2];
    if (codec && codec->merges && draw % 2) { /* else each slot is alone */
        pair[0] = codec_paired(codec, PAIR_LOWER), pair[1] = codec_paired(codec, PAIR_UPPER);
        s[0].window = s[0].sinks = 0, s[1] = s[0];
        for (int i = 0; i < 2; i++) s[i].codec = &pair[i];
    }
    if (draw % 3 == 0 && !(codec && codec->block))
        s[1].window = s[1].sinks = 0, s[1].evicts = true, s[1].delay = (int[]){0, 1, 6}[roll(&dice, 3)];
    plain_open(&m, s, 2, 3, 260, 200, page_rows[draw % 4]);
    Rope turn = {.n = draw % 2 ? 8 : 4,
                 .at = draw / 4 % 2 * (draw % 2 ? 0 : 4),
                 .interleaved = draw / 2 % 2,
                 .factor = 1};
    for (int i = 0; i < turn.n / 2; i++) turn.f[i] = pow(100, -(double)i / turn.n);
    if (codec && codec->turned) {
        m.turn = &turn;
        for (int i = 0; i < 2; i++) kv_turns(kv_slot(&m.c, i), &turn);
    }
    int *idx = xcalloc(200, sizeof *idx);
    for (int pass = 0; pass < PASSES; pass++) {
        Mark mark = arena_mark(&g->mem);
        Err e = {0};
        int one = roll(&dice, 3), other = (one + 1 + roll(&dice, 2)) % 3, what = roll(&dice, 8);
        if (what == 0) plain_fork(&m, one, other);
        if (what == 1) plain_drop(&m, one);
        plain_pass(&m, g, &dice, pass < 3 ? 90 : roll(&dice, 2) ? 1 : 12, false);
        for (int i = 0; i < 2; i++) read_back(codec, m.kv[i].k), read_back(codec, m.kv[i].v);
        cr_assert(plain_begin(&m, &e), "%s", e.msg);
        for (int i = 0; i < 2; i++) {
            reader_draw(&a, &m, g, &dice, i, heads, idx);
            a.pairs = pairs, a.same = heads > 1;
            if (is_bf16 || pairs) check_as_bf16(a.q);
            /* q is scaled, then rounded: here it is exact */
            if ((is_bf16 || pairs) && !cuda_ops()) a.spec.scale = (real)0.125;
            read_with(g, &a, (draw + pass) % 3 == 0);
        }
        rig_use(g, rig_first(), 1);
        plain_append(&m);
        plain_end(&m);
        if (!codec) plain_check(&m, "after a pass"); /* it has rows of `real`s alone */
        arena_release(&g->mem, mark);
    }
    for (Fault f = RIGHT; f < FAULTS; f++) noticed[f] += a.noticed[f];
    free(idx);
    plain_close(&m);
}
void case_attend_lanes(Rig *g, int draw, int d) { lanes(g, draw, NULL, 1, (int[FAULTS]){d}); }
OP_CASE(attend_lanes, case_attend_lanes, 12);
Test(ops, attend_lanes) {
    int noticed[FAULTS] = {0};
    bool device = cuda_ops() != NULL; /* emulated, which is slow: some of the draws, of every kind */
    for (int draw = 0; draw < DRAWS; draw += device ? 5 : 1) {
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)8 << 20);
        lanes(&g, draw, NULL, 1, noticed);
        rig_close(&g);
    }
    for (Fault f = DROPS_A_KEY; f < FAULTS; f++)
        cr_assert(noticed[f] >= (device ? 2 : 10), "%s was tried %d times", fault_name[f], noticed[f]);
}
/* Rows in bf16, with products of pairs. */
Test(ops, attend_lanes_in_bf16) {
    int noticed[FAULTS] = {0};
    bool device = cuda_ops() != NULL;
    for (int draw = 1; draw < DRAWS; draw += device ? 5 : 1) { /* 5: of all residues by 3, where rows are evicted */
        Err e = {0};
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)16 << 20);
        if (device)
            cr_assert(device_bf16(g.dev, true, &e), "%s", e.msg);
        else
            g.dev->pairs = true;
        lanes(&g, draw, &codec_bf16, 1, noticed);
        if (device) cr_assert(device_bf16(g.dev, false, &e), "%s", e.msg);
        rig_close(&g);
    }
    for (Fault f = DROPS_A_KEY; f < FAULTS; f++) {
        if (device && f == EVICTS_EARLY) continue; /* few of its draws have a delay */
        cr_assert(noticed[f] >= (device ? 1 : 5), "%s misses the bound tenfold in %d passes", fault_name[f],
                  noticed[f]);
    }
}
#ifndef KV_DOUBLE /* products of pairs in double, as attend_lanes_in_bf16 has them, are for tests alone */
/* Rows of every codec but bf16, with products of pairs: these round what is decoded. */
Test(ops, attend_lanes_in_codes_as_pairs) {
    if (cuda_ops()) return; /* a device's products of coded rows are of f32 */
    for (int c = 0; codec_at(c); c++) {
        const RowCodec *codec = codec_at(c);
        int noticed[FAULTS] = {0};
        if (codec == &codec_bf16) continue;
        for (int draw = 1; draw < DRAWS; draw += 10) {
            RowCodec own = *codec;
            Rig g;
            rig_open(&g, rig_first(), 1, (size_t)32 << 20);
            g.dev->pairs = true;
            lanes(&g, draw, codec == &codec_f32 ? NULL : &own, 1, noticed);
            rig_close(&g);
        }
        for (Fault f = DROPS_A_KEY; f < FAULTS; f++)
            if (f != EVICTS_EARLY && !(codec->block && f == KEEPS_THE_TAIL))
                cr_assert(noticed[f] >= 1, "%s: %s misses the bound tenfold in no pass", codec->name, fault_name[f]);
    }
}
#endif
/* Blocks of entries that read rows together: how many depends on the threads, and nothing else does. */
Test(ops, attend_lanes_together) {
    static const RowCodec *const codecs[] = {NULL,        &codec_bf16,  &codec_int8,
                                             &codec_int4, &codec_kivi4, &codec_zipcache};
    if (cuda_ops()) return; /* a device has no such blocks */
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int d = 0; d < 4; d++) {
            const int draw = (int[]){0, 10, 13, 15}[d]; /* pages of 1, 4, 3, 64 rows; windows of 70 without sinks */
            Rig g;
            rig_open(&g, rig_first(), 1, (size_t)32 << 20);
            g.dev->pairs = draw < 15;
            lanes(&g, draw, codecs[c], 11, (int[FAULTS]){0});
            rig_close(&g);
        }
}
/* Blocks whose pieces are no packed codes: attention reads what piece_decode says. */
Test(ops, attend_lanes_in_blocks_of_other_pieces) {
    RowCodec codec = codec_kivi4;
    int noticed[FAULTS] = {0};
    if (cuda_ops()) return; /* no device reads blocks */
    codec.bits = 0;
    codec.piece_bytes = codec_int8.bytes, codec.piece_encode = codec_int8.encode,
    codec.piece_decode = codec_int8.decode;
    for (int draw = 1; draw < DRAWS; draw += 5) {
        Rig g;
        rig_open(&g, rig_first(), 1, (size_t)32 << 20);
        lanes(&g, draw, &codec, 1, noticed);
        rig_close(&g);
    }
    cr_assert(noticed[RIGHT] > 20 && noticed[DROPS_A_KEY] > 0, "%d caches with blocks", noticed[RIGHT]);
}
static bool codec_by_type(const RowCodec *c) { return !c->block && (c->as == ROWS_REAL || c->as == ROWS_BF16); }
/* Rows of every codec that is no type of numbers: attention reads what its decode says, to the rounding of f32. */
Test(ops, attend_lanes_in_codes) {
    bool device = cuda_ops() != NULL;
    int codecs = 0;
    for (int c = 0; codec_at(c); c++) {
        const RowCodec *codec = codec_at(c);
        int noticed[FAULTS] = {0};
        if (codec_by_type(codec) || (device && (codec->as == ROWS_CODED || codec->block))) continue;
        const bool few = device || codec != &codec_int8; /* codecs differ in how a number is read alone */
        for (int draw = 1; draw < DRAWS; draw += few ? 5 : 1) {
            RowCodec own = *codec;
            Rig g;
            if (own.group) own.group = draw / 5 % 2 ? 64 : 32;
            if (own.salient_bits) own.bits = 2 + draw / 5 % 2, own.share = (double[]){0.6, 0, 0.3, 1}[draw / 5 % 4];
            if (own.merges) own.bits = (int[]){16, 8, 4, 32}[draw / 10 % 4];
            if (own.merges) own.share = (double[]){0.1, 0.5, 0, 1}[draw / 10 % 4];
            rig_open(&g, rig_first(), 1, (size_t)32 << 20);
            lanes(&g, draw, &own, 1, noticed);
            rig_close(&g);
        }
        cr_assert(!codec->block || noticed[RIGHT] > 20, "%s: %d caches with blocks", codec->name, noticed[RIGHT]);
        for (Fault f = DROPS_A_KEY; f < FAULTS; f++)
            if (codec->block ? f != EVICTS_EARLY && f != KEEPS_THE_TAIL : !few || f != EVICTS_EARLY)
                /* few draws have a delay, and no row of a block is evicted */
                cr_assert(noticed[f] >= (few ? 1 : 5), "%s: %s was tried %d times", codec->name, fault_name[f],
                          noticed[f]);
        codecs++;
    }
    cr_assert(codecs > 0);
}
