/* attend_lanes.c: attention over cached lanes, a page at a time, by the blocks of attend.c, behind which cpu.c includes
 * it. */
#include "ops/fp8.h"
#include "ops/packed.h"

/* -inf for those of n rows of a page that are evicted, of which `tail` (a number from their first on) is one; NULL if
 * none is. */
static const real *evicted_bias(real mem[KB], const bool *evicted, int tail, int n) {
    bool any = false;
    for (int t = 0; evicted && t < n; t++) {
        bool out = evicted[t] || t == tail;
        any |= out;
        mem[t] = out ? -INFINITY : 0;
    }
    return any ? mem : NULL;
}

/* How parts are read: known where the loops over them are compiled. */
typedef enum { READ_REAL, READ_BF16, READ_INT8, READ_FP8, READ_4, READ_3, READ_2, READ_PART } Read;
/* bits 0: what is stored is no packed codes. */
static Read read_packed(int bits) {
    return REAL != F32 || !bits ? READ_PART : bits == 4 ? READ_4 : bits == 3 ? READ_3 : READ_2;
}
static Read read_as(const KvShape *s) {
    if (REAL != F32) return rows_as(s) == ROWS_REAL ? READ_REAL : READ_PART;
    switch (rows_as(s)) {
    case ROWS_REAL: return READ_REAL;
    case ROWS_BF16: return READ_BF16;
    case ROWS_INT8: return READ_INT8;
    case ROWS_FP8: return READ_FP8;
    case ROWS_PACKED: return read_packed(s->codec->bits);
    default: return READ_PART;
    }
}
/* Parts that lie one after the other in a page: bytes from one to the next, numbers of each. */
typedef struct {
    const char *first;
    size_t ld;
    int width, group; /* group: RowCodec */
} Parts;
static int group_of(const KvShape *s) { return s->codec ? s->codec->group : 0; }
#include "attend_direct.c"
/* n keys or values of lane h of a sequence, at these positions, as `real`s. */
static void decoded(real *to, const KvShape *s, Parts p, int n, bool values, int h, const int *pos) {
    const Read as = read_as(s);
    if (s->basis)
        for (int j = 0; j < n; j++)
            part_decode(s, to + (size_t)j * (size_t)p.width, p.first + (size_t)j * p.ld, values, h, pos[j]);
    else if (rows_as(s) == ROWS_BF16)
        widened(to, (const uint16_t *)p.first, (size_t)n * (size_t)p.width);
    else if (as != READ_PART && p.width % VL == 0)
        direct_decoded(to, as, p, n);
    else
        for (int j = 0; j < n; j++)
            s->codec->decode(s->codec, to + (size_t)j * (size_t)p.width, p.first + (size_t)j * p.ld, p.width);
}
#include "attend_salient.c"
#include "attend_blocks.c"

/* Rows of a lane that are attended to at a time: keys that follow each other, then values. */
typedef struct {
    const char *key, *value;
    const int *pos;
    const bool *evicted;
    int n;
} RowRun;
/* Of a lane with small pages, several pages' rows, copied: products of many queries cost as much with few rows as with
 * KB. Few queries read each page where it lies, for whom the copies cost more than they gain. */
typedef struct {
    char *rows;
    int pos[KB];
    bool evicted[KB];
} Gathered;
enum { ALIGN = 64 };
static bool pages_small(const Lanes *t) { return 2 * t->P <= KB && !t->nblocks; }
static int page_of(const Lanes *t, int lane, int row) {
    return t->table[(size_t)lane * (size_t)t->maxpages + (size_t)(row / t->P % t->maxpages)];
}
/* The rows from `row` on that lie in one page. */
static RowRun run_of_page(const Lanes *t, int lane, int row, int to) {
    const int at = row % t->P, page = page_of(t, lane, row);
    const size_t kb = key_bytes(&t->s), first = (size_t)page * (size_t)t->P + (size_t)at;
    const char *in = (const char *)t->data.p + (size_t)page * (size_t)t->P * row_bytes(&t->s),
               *key = in + (size_t)at * kb,
               *value = t->s.alias ? key : in + (size_t)t->P * kb + (size_t)at * value_bytes(&t->s);
    return (RowRun){key, value, t->pos + first, t->evicted ? t->evicted + first : NULL, imin(t->P - at, to - row)};
}
/* Those up to the next multiple of the rows of as many pages as a block has room for: where a row's block begins
 * follows from its place in the lane alone. */
static RowRun run_of_pages(const Lanes *t, int lane, int row, int to, Gathered *g) {
    enum { LINE = 64 };
    const int all_rows = KB / t->P * t->P;
    to = imin(to, (row / all_rows + 1) * all_rows);
    const size_t kb = key_bytes(&t->s), vb = t->s.alias ? 0 : value_bytes(&t->s);
    char *const values = g->rows + (size_t)KB * kb;
    int n = 0;
    for (RowRun p; row < to; row += p.n, n += p.n) {
        p = run_of_page(t, lane, row, to);
        const size_t keys = (size_t)p.n * kb, all = (size_t)p.n * vb, at = (size_t)n;
        if (row + p.n < to) { /* pages lie anywhere: the next is asked for while this one is copied */
            const RowRun next = run_of_page(t, lane, row + p.n, to);
            for (size_t i = 0; i < keys; i += LINE) __builtin_prefetch(next.key + i);
            for (size_t i = 0; i < all; i += LINE) __builtin_prefetch(next.value + i);
        }
        memcpy(g->rows + at * kb, p.key, keys);
        if (vb) memcpy(values + at * vb, p.value, all);
        memcpy(g->pos + n, p.pos, (size_t)p.n * sizeof *p.pos);
        if (p.evicted) memcpy(g->evicted + n, p.evicted, (size_t)p.n);
    }
    return (RowRun){g->rows, vb ? values : g->rows, g->pos, t->evicted ? g->evicted : NULL, n};
}

/* The rows from..to-1 of a lane, at most KB at a time; this pass evicted row `tail` (-1: none). room: for as many rows
 * where they are not `real`s, as `real`s or, where the block's products are of pairs, as those. */
static void attend_rows(Block *k, const Lanes *t, int lane, int from, int to, int tail, real *room, Gathered *g) {
    const int Dk = k->Dk, P = t->P;
    const Read as = read_as(&t->s);
    const bool gathers = pages_small(t) && k->n > FEW_ENTRIES;
    const int width = t->s.alias ? Dk : k->Dv, group = group_of(&t->s); /* of a value's part */
    const size_t kb = key_bytes(&t->s), vb = t->s.alias ? kb : value_bytes(&t->s),
                 page_bytes = (size_t)P * row_bytes(&t->s);
    real *wide = room;
    Pair *turned = (Pair *)room, *below = turned + KB * Dk / 2;
    size_t ldv = (size_t)(t->s.alias ? Dk : k->Dv);
    for (int row = from, n; row < to; row += n) {
        const int page = page_of(t, lane, row);
        if (page >= t->npages) {
            attend_block(k, t, lane, row, n = imin(P - row % P, to - row), to, room);
            continue;
        }
        const RowRun rows = gathers ? run_of_pages(t, lane, row, to, g) : run_of_page(t, lane, row, to);
        const char *key = rows.key, *value = rows.value;
        n = rows.n;
        const Parts key_parts = {key, kb, Dk, group}, value_parts = {value, vb, width, group};
        const real *keys = wide, *vals = t->s.alias ? wide : wide + KB * Dk;
        real bias_mem[KB];
        const real *bias = evicted_bias(bias_mem, rows.evicted, tail - row, n);
        if (k->qp) {
            pairs_turned(turned, rows_stored((const uint16_t *)key, (size_t)Dk), n, Dk);
            pairs_below(below, rows_stored((const uint16_t *)value, ldv), n, k->Dv);
            pairs_mm(k->tiles, k->s, KB, k->qp, (size_t)Dk / 2, 1, turned, KB, k->n, Dk / 2, in_vectors(n), false);
            absorb(k, NULL, 0, below, rows.pos, bias, row, n);
            continue;
        }
        ptrdiff_t ahead = 0; /* a lane's pages lie anywhere: while one is read the next is asked for */
        if (row + n < to && !gathers) ahead = ((ptrdiff_t)page_of(t, lane, row + n) - page) * (ptrdiff_t)page_bytes;
        if (direct(k, as)) {
            direct_scores(k, as, key_parts, n, ahead);
            soften(k, rows.pos, bias, row, n);
            direct_values(k, as, value_parts, n, t->s.alias ? 0 : ahead);
            continue;
        }
        if (as == READ_REAL) {
            keys = (const real *)key, vals = (const real *)value;
        } else {
            const int h = lane % t->s.lanes;
            decoded(wide, &t->s, key_parts, n, false, h, rows.pos);
            if (!t->s.alias) decoded(wide + KB * Dk, &t->s, value_parts, n, true, h, rows.pos);
        }
        if (k->n <= FEW_ENTRIES) { /* decoding: the keys are read once, packing them would cost more than the product */
            const bool asks = ahead && as == READ_REAL;
            scores(k, keys, (size_t)Dk, n, asks ? (const real *)(key + ahead) : NULL, (const real *)(value + ahead),
                   ldv);
        } else {
            pack(k->kt, keys, (size_t)Dk, n, Dk);
            memset(k->s, 0, (size_t)k->n * KB * sizeof(real));
            tile_mm(k->s, KB, k->q, (size_t)Dk, 1, k->kt, KB, k->n, Dk, KB);
        }
        absorb(k, vals, ldv, NULL, rows.pos, bias, row, n);
    }
}

static void attend_lanes(Run *r, Tensor o, Tensor lse, Tensor q, const Lanes *t, const Kv *pass, AttnSpec spec,
                         bool merge) {
    const Batch *b = r->batch;
    int lanes = t->s.lanes, group = spec.heads / lanes, Dk = t->s.kdim, Dv = t->s.vdim;
    CHECK(t->P <= KB, "pages of %d rows, at most %d", t->P, KB);
    if (r->out.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    const RowsAs as = rows_as(&t->s);
    size_t block = block_numbers(Dk, Dv), room = as != ROWS_REAL || t->nblocks ? (size_t)KB * (size_t)(Dk + Dv) : 0;
    bool pairs = as == ROWS_BF16 && by_pairs(r, spec, Dk, Dv);
    const size_t pair_room = pairs * block_pairs(Dk),
                 copies = pages_small(t) ? (KB * row_bytes(&t->s) + ALIGN) / sizeof(real) : 0;
    Tensor mem = SCRATCH(r, "attend block", r->dev->threads, (int)(block + room + pair_room + copies));
    int *start = arena_take(r->scratch, (size_t)(b->B + 1) * sizeof *start, "attend rows"), blocks = 0;
    if (!measuring(r)) {
        wanted(r, start);
        for (int s = 0; s < b->B; s++) blocks = imax(blocks, ((start[s + 1] - start[s]) * group + QB - 1) / QB);
#pragma omp parallel for collapse(3) schedule(dynamic) num_threads(r->dev->threads)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < lanes; h++)
                for (int c = 0; c < blocks; c++) {
                    int entries = (start[s + 1] - start[s]) * group, e0 = c * QB, n = imin(QB, entries - e0),
                        lane = b->seq[s] * lanes + h;
                    if (n <= 0) continue;
                    Block k;
                    Gathered g;
                    real *own = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1];
                    block_place(&k, own, Dk, Dv, spec);
                    g.rows = (char *)(((uintptr_t)(own + block + room + pair_room) + ALIGN - 1) / ALIGN * ALIGN);
                    if (pairs && entries > FEW_ENTRIES) block_place_pairs(&k, r->dev->pair_product, own + block + room);
                    const bool whole = t->hi[lane] - t->lo[lane] == b->pos[b->off[s]] && !any_gone(t, lane);
                    k.loose = t->s.evicts || (t->s.sparse && !whole), k.delay = t->s.delay;
                    block_load(&k, n, e0, start[s], h, group, q, o, lse, merge);
                    bool evicts = t->s.evicts && R(pass->evicted)[(size_t)b->off[s] * (size_t)lanes + (size_t)h] != 0;
                    int tail = evicts ? t->tail[lane] : -1;
                    int oldest = INT32_MAX, hi = t->hi[lane], sinks = imin(t->s0[lane] + t->s.sinks, t->lo[lane]);
                    for (int i = 0; i < n; i++) {
                        int row = r->out.idx[start[s] + (e0 + i) / group];
                        bool looks = b->first[row] == -1; /* its document began in an earlier pass */
                        k.pos[i] = b->pos[row], k.from[i] = 0, k.row[i] = looks ? INT32_MAX - 1 : -1;
                        if (looks) oldest = imin(oldest, b->pos[row]);
                    }
                    if (k.qp) soften_begin(&k);
                    if (oldest != INT32_MAX) { /* a window of 1 keeps its sinks and no other row: lo = hi */
                        int lo = t->lo[lane],
                            page = t->table[(size_t)lane * (size_t)t->maxpages + (size_t)(lo / t->P % t->maxpages)],
                            skip = 0;
                        /* rows of a lane have consecutive positions: skip those that the oldest query no longer sees */
                        if (lo < hi && spec.window && !spec.sinks && !k.loose)
                            skip = imax(0, oldest - spec.window + 1 -
                                               t->pos[(size_t)page * (size_t)t->P + (size_t)(lo % t->P)]);
                        attend_rows(&k, t, lane, t->s0[lane], sinks, tail, own + block, &g);
                        attend_rows(&k, t, lane, lo + skip, hi, tail, own + block, &g);
                    }
                    if (k.qp) soften_end(&k);
                    block_store(&k, e0, start[s], h, group, o, lse);
                }
    }
    arena_release(r->scratch, mark);
}
