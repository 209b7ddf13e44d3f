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
/* The same of rows from `row` on of a lane, whose parts these are; a basis of groups of lanes reads their other lanes'
 * parts, too, where they lie. */
static void lane_decoded(real *to, const Lanes *t, Parts p, int lane, int row, int n, bool values, const int *pos) {
    const RowBasis *b = t->s.basis;
    if (!b || b->heads == 1) decoded(to, &t->s, p, n, values, lane % t->s.lanes, pos);
    for (int j = 0; b && b->heads > 1 && j < n; j++)
        row_decode(t, to + (size_t)j * (size_t)p.width, values, lane, row + j);
}
/* Blocks of entries that attend to the same rows of a lane: these are decoded and packed once for all of them. What a
 * block computes does not depend on the others. */
enum { TOGETHER = 8 };
/* At most KB rows as these blocks read them. */
typedef struct {
    int row, n;           /* in the lane */
    int at, width;        /* columns of the keys: of the first row; to compute */
    const uint8_t *place; /* the columns of rows from `at` on; NULL: in their order */
    const int *pos;
    const real *bias, *kt, *values; /* (n) (Dk,KB) (n,Dv), ldv apart */
    size_t ldv;
    const Pair *turned, *below; /* of blocks with pairs: keys along Dk, values along the rows */
} Tile;
typedef struct {
    Pair *turned, *below;
} PairRoom;
/* Scores of the rows from `at` on become the first. */
static void scores_moved(Block *k, int at, int n) {
    for (int i = 0; at && i < k->n; i++) memmove(k->s + i * KB, k->s + i * KB + at, (size_t)n * sizeof(real));
}
static void scores_placed(Block *k, const uint8_t *place, int n) {
    for (int i = 0; i < k->n; i++) {
        real x[KB], *s = k->s + i * KB;
        memcpy(x, s, sizeof x);
        for (int j = 0; j < n; j++) s[j] = x[place[j]];
    }
}
/* The values of rows whose values are part of keys, of the keys in k->kt: (n,Dv). */
static void values_of_keys(const Block *k, real *to, int at, const uint8_t *place, int n) {
    for (int j = 0; j < n; j++)
        for (int d = 0; d < k->Dv; d++) to[j * k->Dv + d] = k->kt[d * KB + (place ? place[at + j] : at + j)];
}
static void tile_absorb(Block *k, int blocks, const Tile *t) {
    for (const Block *end = k + blocks; k < end; k++) {
        const size_t Dk = (size_t)k->Dk;
        if (k->qp) {
            pairs_mm(k->tiles, k->s, KB, k->qp, Dk / 2, 1, t->turned, KB, k->n, k->Dk / 2, t->width, false);
        } else {
            memset(k->s, 0, (size_t)k->n * KB * sizeof(real));
            tile_mm(k->s, KB, k->q, Dk, 1, t->kt, KB, k->n, k->Dk, KB);
        }
        if (t->place)
            scores_placed(k, t->place + t->at, t->n);
        else
            scores_moved(k, t->at, t->n);
        absorb(k, t->values, t->ldv, t->below, t->pos, t->bias, t->row, t->n);
    }
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

/* What a thread needs to read rows: of KB decoded ones, of as many pairs, of small pages' rows. */
typedef struct {
    real *wide;
    PairRoom pairs;
    Gathered gathered;
} LaneRoom;
/* As few entries read rows in place: decoded into registers, or one by one. Packing would cost more than the products.
 * ahead: bytes to the rows that are read next (0: nobody knows). */
static void attend_few(Block *k, const Lanes *t, int lane, RowRun rows, int row, const real *bias, ptrdiff_t ahead,
                       real *room) {
    const int width = t->s.alias ? k->Dk : k->Dv, group = group_of(&t->s), n = rows.n; /* width of a value's part */
    const size_t kb = key_bytes(&t->s), vb = t->s.alias ? kb : value_bytes(&t->s), ldv = (size_t)width;
    const Read as = read_as(&t->s);
    const Parts key_parts = {rows.key, kb, k->Dk, group}, value_parts = {rows.value, vb, width, group};
    const real *keys = (const real *)rows.key, *vals = (const real *)rows.value;
    if (direct(k, as)) {
        direct_scores(k, as, key_parts, n, ahead);
        soften(k, rows.pos, bias, row, n);
        direct_values(k, as, value_parts, n, t->s.alias ? 0 : ahead);
        return;
    }
    if (as != READ_REAL) {
        keys = room, vals = t->s.alias ? room : room + KB * k->Dk;
        lane_decoded(room, t, key_parts, lane, row, n, false, rows.pos);
        if (!t->s.alias) lane_decoded(room + KB * k->Dk, t, value_parts, lane, row, n, true, rows.pos);
    }
    const bool asks = ahead && as == READ_REAL;
    scores(k, keys, (size_t)k->Dk, n, asks ? (const real *)(rows.key + ahead) : NULL,
           (const real *)(rows.value + ahead), ldv);
    absorb(k, vals, ldv, NULL, rows.pos, bias, row, n);
}
/* Rows of a page or of several small ones, for many entries. */
static void attend_run(Block *k, int blocks, const Lanes *t, int lane, RowRun rows, int row, const real *bias,
                       const LaneRoom *room) {
    const int width = t->s.alias ? k->Dk : k->Dv, group = group_of(&t->s), n = rows.n;
    const size_t kb = key_bytes(&t->s), vb = t->s.alias ? kb : value_bytes(&t->s), ldk = (size_t)k->Dk;
    const RowsAs as = rows_as(&t->s);
    Tile tile = {.row = row, .n = n, .width = in_vectors(n), .pos = rows.pos, .bias = bias, .ldv = (size_t)width};
    PairRows keys = rows_wide((const real *)rows.key, ldk), values = rows_wide((const real *)rows.value, tile.ldv);
    if (as == ROWS_BF16 && k->qp) {
        keys = rows_stored((const uint16_t *)rows.key, ldk);
        values = rows_stored((const uint16_t *)rows.value, tile.ldv);
    } else if (as != ROWS_REAL) {
        real *const own = room->wide + KB * k->Dk;
        keys.wide = room->wide, values.wide = t->s.alias ? keys.wide : own;
        lane_decoded(room->wide, t, (Parts){rows.key, kb, k->Dk, group}, lane, row, n, false, rows.pos);
        if (!t->s.alias) lane_decoded(own, t, (Parts){rows.value, vb, width, group}, lane, row, n, true, rows.pos);
    }
    tile.kt = k->kt, tile.values = values.wide;
    if (k->qp) {
        pairs_turned(room->pairs.turned, keys, n, k->Dk);
        pairs_below(room->pairs.below, values, n, k->Dv);
        tile.turned = room->pairs.turned, tile.below = room->pairs.below;
    } else {
        pack(k->kt, keys.wide, ldk, n, k->Dk);
    }
    tile_absorb(k, blocks, &tile);
}
/* The rows from..to-1 of a lane, at most KB at a time; this pass evicted row `tail` (-1: none). */
static void attend_rows(Block *k, int blocks, const Lanes *t, int lane, int from, int to, int tail, LaneRoom *room) {
    const int P = t->P;
    const bool few = k->n <= FEW_ENTRIES && !k->qp, gathers = pages_small(t) && !few;
    for (int row = from, n; row < to; row += n) {
        const int page = page_of(t, lane, row);
        if (page >= t->npages) {
            n = imin(P - row % P, to - row);
            attend_block(k, blocks, t, lane, row, n, to, room->wide, room->pairs);
            continue;
        }
        const RowRun rows = gathers ? run_of_pages(t, lane, row, to, &room->gathered) : run_of_page(t, lane, row, to);
        real bias_mem[KB];
        const real *bias = evicted_bias(bias_mem, rows.evicted, tail - row, n = rows.n);
        ptrdiff_t ahead = 0; /* a lane's pages lie anywhere: while one is read the next is asked for */
        if (!few) {
            attend_run(k, blocks, t, lane, rows, row, bias, room);
            continue;
        }
        if (row + n < to)
            ahead = ((ptrdiff_t)page_of(t, lane, row + n) - page) * (ptrdiff_t)P * (ptrdiff_t)row_bytes(&t->s);
        attend_few(k, t, lane, rows, row, bias, ahead, room->wide);
    }
}

/* One pass's attention over lanes. */
typedef struct {
    Tensor o, lse, q;
    const Lanes *t;
    const Kv *pass;
    AttnSpec spec;
    bool merge, pairs;
    const int *start; /* (B+1) of the wanted rows */
    int group;        /* heads of a lane */
    Tensor mem;       /* of each thread */
} LaneCall;
/* What a block keeps; what blocks use one after the other: scores, also as pairs, and keys. */
static size_t lane_each(const KvShape *s, bool pairs) {
    return (size_t)QB * (size_t)(s->kdim + s->vdim + (pairs ? s->kdim / 2 + W : 0));
}
static size_t lane_shared(const KvShape *s, bool pairs) {
    return (size_t)KB * (size_t)(QB + s->kdim + (pairs ? QB / 2 : 0));
}
static size_t lane_width(const KvShape *s) { return (size_t)KB * (size_t)(s->kdim + s->vdim); }
static bool lane_decodes(const Lanes *t) { return rows_as(&t->s) != ROWS_REAL || t->nblocks; }
/* As many blocks as a share of the second cache holds, of at most so many entries. */
static int lane_fit(const KvShape *s, bool pairs, int entries) {
    enum { HELD = 1 << 16 }; /* numbers */
    return imax(1, imin(imin(TOGETHER, HELD / (int)lane_each(s, pairs)), (entries + QB - 1) / QB));
}
static void lane_place(Block *k, LaneRoom *room, const LaneCall *c, int blocks, bool pairs) {
    const KvShape *s = &c->t->s;
    const size_t q = (size_t)QB * (size_t)s->kdim, o = (size_t)QB * (size_t)s->vdim;
    real *own = R(c->mem) + (size_t)omp_get_thread_num() * (size_t)c->mem.n[1], *scores = own;
    real *keys = scores + QB * KB, *soft = keys + (size_t)s->kdim * KB;
    own += lane_shared(s, c->pairs);
    for (int i = 0; i < blocks; i++, own += lane_each(s, c->pairs)) {
        k[i] = (Block){.Dk = s->kdim, .Dv = s->vdim, .spec = c->spec, .q = own, .o = own + q, .s = scores, .kt = keys};
        if (!pairs) continue;
        k[i].lanes = own + q + o;
        k[i].qp = (Pair *)(k[i].lanes + QB * W), k[i].sp = (Pair *)soft;
    }
    room->wide = own;
    own += lane_decodes(c->t) ? lane_width(s) : 0;
    room->pairs = (PairRoom){(Pair *)own, (Pair *)own + KB * s->kdim / 2};
    own += c->pairs ? lane_width(s) / 2 : 0;
    room->gathered.rows = (char *)(((uintptr_t)own + ALIGN - 1) / ALIGN * ALIGN);
}
/* The positions of a block's entries. Returns the oldest that sees rows of earlier passes. */
static int lane_rows(const Run *r, Block *k, int e0, int start, int group) {
    const Batch *b = r->batch;
    int oldest = INT32_MAX;
    for (int i = 0; i < k->n; i++) {
        const int row = r->out.idx[start + (e0 + i) / group];
        const bool looks = b->first[row] == -1; /* its document began in an earlier pass */
        k->pos[i] = b->pos[row], k->from[i] = 0, k->row[i] = looks ? INT32_MAX - 1 : -1;
        if (looks) oldest = imin(oldest, b->pos[row]);
    }
    return oldest;
}
/* The rows of a lane that all of its entries passed with a window, of those from lo on. With several blocks whole runs
 * of pages, as a run may not depend on which blocks are together. */
static int lane_skip(const Lanes *t, int lane, AttnSpec spec, int oldest, bool several) {
    const int lo = t->lo[lane], first = t->pos[(size_t)page_of(t, lane, lo) * (size_t)t->P + (size_t)(lo % t->P)],
              to = imax(lo, lo + oldest - spec.window + 1 - first), run = KB / t->P * t->P;
    return several ? imax(lo, to / run * run) : to;
}
/* `blocks` blocks of entries from block c of lane h of sequence s on. */
static void lane_blocks(const Run *r, const LaneCall *x, int s, int h, int c, int blocks) {
    const Batch *b = r->batch;
    const Lanes *t = x->t;
    const int start = x->start[s], entries = (x->start[s + 1] - start) * x->group, lane = b->seq[s] * t->s.lanes + h;
    const bool pairs = x->pairs && entries > FEW_ENTRIES,
               whole = t->hi[lane] - t->lo[lane] == b->pos[b->off[s]] && !any_gone(t, lane),
               evicts = t->s.evicts && R(x->pass->evicted)[b->off[s] * t->s.lanes + h] != 0;
    const int tail = evicts ? t->tail[lane] : -1, sinks = imin(t->s0[lane] + t->s.sinks, t->lo[lane]);
    int oldest = INT32_MAX, lo = t->lo[lane];
    Block k[TOGETHER];
    LaneRoom room;
    lane_place(k, &room, x, blocks, pairs);
    for (int i = 0; i < blocks; i++) {
        const int e0 = (c + i) * QB;
        k[i].loose = t->s.evicts || (t->s.sparse && !whole), k[i].delay = t->s.delay;
        k[i].tiles = r->dev->pair_product;
        block_load(&k[i], imin(QB, entries - e0), e0, start, h, x->group, x->q, x->o, x->lse, x->merge);
        oldest = imin(oldest, lane_rows(r, &k[i], e0, start, x->group));
        if (pairs) soften_begin(&k[i]);
    }
    if (oldest != INT32_MAX) { /* a window of 1 keeps its sinks and no other row: lo = hi */
        /* rows of a lane have consecutive positions: skip those that the oldest query no longer sees */
        if (lo < t->hi[lane] && x->spec.window && !x->spec.sinks && !k->loose)
            lo = lane_skip(t, lane, x->spec, oldest, entries > QB);
        attend_rows(k, blocks, t, lane, t->s0[lane], sinks, tail, &room);
        attend_rows(k, blocks, t, lane, lo, t->hi[lane], tail, &room);
    }
    for (int i = 0; i < blocks; i++) {
        if (pairs) soften_end(&k[i]);
        block_store(&k[i], (c + i) * QB, start, h, x->group, x->o, x->lse);
    }
}
static void attend_lanes(Run *r, Tensor o, Tensor lse, Tensor q, const Lanes *t, const Kv *pass, AttnSpec spec,
                         bool merge) {
    const Batch *b = r->batch;
    const int lanes = t->s.lanes, group = spec.heads / lanes;
    CHECK(t->P <= KB, "pages of %d rows, at most %d", t->P, KB);
    if (r->out.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    const bool pairs = by_pairs(r, spec, t->s.kdim, t->s.vdim);
    const int fit = lane_fit(&t->s, pairs, r->out.n * group);
    const size_t copies = pages_small(t) ? (KB * row_bytes(&t->s) + ALIGN) / sizeof(real) : 0,
                 wide = (lane_decodes(t) ? lane_width(&t->s) : 0) + (pairs ? lane_width(&t->s) / 2 : 0);
    Tensor mem = SCRATCH(r, "attend block", r->dev->threads,
                         (int)(lane_shared(&t->s, pairs) + (size_t)fit * lane_each(&t->s, pairs) + wide + copies));
    int *start = arena_take(r->scratch, (size_t)(b->B + 1) * sizeof *start, "attend rows"), most = 0, all = 0;
    if (!measuring(r)) {
        long work = 0; /* products: entries times rows times their width */
        wanted(r, start);
        for (int s = 0; s < b->B; s++) {
            const int entries = (start[s + 1] - start[s]) * group, blocks = (entries + QB - 1) / QB;
            most = imax(most, blocks), all += blocks;
            for (int h = 0, l = b->seq[s] * lanes; h < lanes; h++, l++)
                work += (long)entries * (t->hi[l] - t->lo[l]) * (t->s.kdim + t->s.vdim);
        }
        /* no more together than leaves every thread some work */
        const int together = imax(1, imin(fit, all * lanes / (4 * r->dev->threads)));
        const LaneCall x = {o, lse, q, t, pass, spec, merge, pairs, start, group, mem};
#pragma omp parallel for collapse(3) schedule(dynamic) num_threads(r->dev->threads) if (work > ALONE)
        for (int s = 0; s < b->B; s++)
            for (int h = 0; h < lanes; h++)
                for (int c = 0; c < most; c += together) {
                    const int entries = (start[s + 1] - start[s]) * group, blocks = (entries + QB - 1) / QB - c;
                    /* few entries read rows in another way, alone */
                    const bool apart = !pairs && entries % QB && entries % QB <= FEW_ENTRIES && blocks <= together;
                    const int n = imin(together, blocks - apart);
                    if (n > 0) lane_blocks(r, &x, s, h, c, n);
                    if (apart && blocks > 0) lane_blocks(r, &x, s, h, c + blocks - 1, 1);
                }
    }
    arena_release(r->scratch, mark);
}
