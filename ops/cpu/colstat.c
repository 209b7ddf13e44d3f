/* colstat.c: column statistics of attention over cached rows, a page at a time; cpu.c includes it after attend_lanes.c,
 * which decodes rows.
 *
 * The scores of a page's rows and up to QB queries of a head are one product, rows by queries. So rows are multiplied
 * as they are stored, queries are packed once for all pages, and a row's statistic is a reduction of its row of scores.
 * Where attention multiplies bf16 rows as pairs, this does too.
 *
 * ColStat.older: the sums of the queries of a lane's heads are packed as the queries of one head, and the pages are
 * read twice, first for the queries' log-sum-exps. */

enum { FEW_QUERIES = 4 }; /* up to so many are multiplied in place: vectors of them would be mostly empty */

/* The queries of a call, in blocks of QB of one head: the right operands of products, as `real`s (Dk,QB), as pairs
 * (Dk/2,QB), or both. */
typedef struct {
    const Lanes *t;
    ColStat c;
    Tensor q, lse;
    int heads, blocks;  /* query heads of q */
    int group, sums;    /* heads that ask a lane; each is the sum of so many of q's */
    bool few;           /* queries are read where they are */
    real *reals;        /* NULL: rows are bf16 and none is in a block of a codec */
    Pair *pairs;        /* NULL: rows are multiplied as `real`s */
    PairProduct *tiles; /* of pairs; NULL: by vectors */
    real *less;         /* (heads,blocks,QB) lse; infinity past the last query, so that it counts as 0 */
    real *seen;         /* (lanes,blocks,QB) rows that a query sees */
} Columns;
static size_t columns_block(const Columns *x, int head, int b) {
    return ((size_t)head * (size_t)x->blocks + (size_t)b) * QB;
}
static size_t columns_query(const Columns *x, int head, int i) {
    return (size_t)(x->c.from + i) % (size_t)x->q.n[0] * (size_t)x->heads + (size_t)(head * x->sums);
}
static int columns_queries(const Columns *x, int b) { return imin(QB, x->c.n - b * QB); }
/* room: (QB,Dk) */
static void columns_pack(const Columns *x, int head, int b, real *room) {
    const int D = x->t->s.kdim, n = columns_queries(x, b);
    const size_t at = columns_block(x, head, b), panel = at * (size_t)D;
    for (int i = 0; i < QB; i++) {
        const size_t own = columns_query(x, head, b * QB + i);
        x->less[at + (size_t)i] = i < n && !x->c.older ? R(x->lse)[own] : INFINITY;
        if (i >= n || x->few) continue;
        const real *q = R(x->q) + own * (size_t)D;
        memcpy(room + i * D, q, (size_t)D * sizeof *room);
        for (int g = 1; g < x->sums; g++)
            for (int k = 0; k < D; k++) room[i * D + k] += q[g * D + k];
    }
    if (x->few) return;
    if (x->reals) pack(x->reals + panel, room, (size_t)D, n, D);
    if (x->pairs) pairs_turned(x->pairs + panel / 2, rows_wide(room, (size_t)D), n, D);
}
/* How many rows of lane h each query sees: those at its position and before. */
static void columns_seen(const Columns *x, int h) {
    const Lanes *t = x->t;
    const int lane = x->c.seq * t->s.lanes + h;
    real *seen = x->seen + columns_block(x, h, 0), sum = 0;
    memset(seen, 0, (size_t)x->blocks * QB * sizeof *seen);
    for (int row = t->lo[lane]; row < t->hi[lane]; row++) {
        const int pos = t->pos[(size_t)page_of(t, lane, row) * (size_t)t->P + (size_t)(row % t->P)];
        if (pos != ROW_GONE && pos < x->c.from + x->c.n) seen[imax(0, pos - x->c.from)]++;
    }
    for (int i = 0; i < x->c.n; i++) seen[i] = sum += seen[i];
}

/* Rows of a page as they are multiplied. */
typedef struct {
    const int *pos;
    const real *keys, *values; /* values: NULL: not asked for */
    const Pair *pairs;         /* NULL: `keys` are multiplied */
    size_t ldv;
} PageRows;
/* Elements of a thread's room: keys, values, the scratch of a codec's block, scores. */
static size_t colstat_room(const Lanes *t) {
    return (size_t)KB * (size_t)((t->nblocks ? 2 : 1) * t->s.kdim + t->s.vdim + QB);
}
static PageRows page_rows(const Columns *x, int h, int page, int at, int n, real *room) {
    const Lanes *t = x->t;
    const int Dk = t->s.kdim, Dv = t->s.vdim;
    const bool values = x->c.value != COL_PLAIN;
    const size_t kb = key_bytes(&t->s), vb = value_bytes(&t->s), P = (size_t)t->P;
    const char *in = (const char *)t->data.p + (size_t)page * P * (kb + vb), *key = in + (size_t)at * kb,
               *value = in + P * kb + (size_t)at * vb;
    real *wide = room + (size_t)KB * (size_t)Dk;
    PageRows y = {t->pos + (size_t)page * P + (size_t)at, room, values ? wide : NULL, NULL, (size_t)Dv};
    if (page >= t->npages) {
        coded_rows(t, page, at, n, room, values ? wide : NULL, wide + (size_t)KB * (size_t)Dv);
    } else if (rows_as(&t->s) == ROWS_REAL) {
        y.keys = (const real *)key, y.values = values ? (const real *)value : NULL;
    } else {
        if (x->pairs) { /* elements in order are pairs; copied, since a product reads whole vectors of rows */
            memcpy(room, key, (size_t)n * kb);
            y.pairs = (const Pair *)room;
            for (int j = 0; j < n && values && t->s.alias; j++)
                widened(wide + j * Dv, (const uint16_t *)key + j * Dk, (size_t)Dv);
        } else {
            decoded(room, &t->s, (Parts){key, kb, Dk, group_of(&t->s)}, n, false, h, y.pos);
        }
        if (values && !t->s.alias) decoded(wide, &t->s, (Parts){value, vb, Dv, group_of(&t->s)}, n, true, h, y.pos);
    }
    if (values && t->s.alias && !y.pairs) y.values = y.keys, y.ldv = (size_t)Dk;
    return y;
}
/* s (n,QB): scores of n rows and block b of a head's queries. Returns how many columns it has, in whole vectors. */
static int page_scores(const Columns *x, const PageRows *rows, int n, int head, int b, real *s) {
    const int D = x->t->s.kdim, m = columns_queries(x, b), wide = in_vectors(m);
    const size_t panel = columns_block(x, head, b) * (size_t)D;
    if (rows->pairs) {
        pairs_mm(x->tiles, s, QB, rows->pairs, (size_t)D / 2, 1, x->pairs + panel / 2, QB, n, D / 2, wide, false);
        return wide;
    }
    memset(s, 0, (size_t)n * QB * sizeof *s);
    if (!x->few)
        tile_mm(s, QB, rows->keys, (size_t)D, 1, x->reals + panel, QB, n, D, wide);
    else
        for (int i = 0; i < m; i++) {
            const real *q = R(x->q) + columns_query(x, head, b * QB + i) * (size_t)D;
            for (int j = 0; j < n; j++) s[j * QB + i] = dot(q, rows->keys + (size_t)j * (size_t)D, D);
        }
    return wide;
}
/* Adds one row's scores s with n queries, whole vectors, to what it got of them so far, element by element; the first
 * that see it begin at `first`. s is used up. COL_MAX: part is of scores less lse, since exp ascends. */
static void column_add(ColReduce how, real part[VL], real *s, const real *less, const real *seen, int first, int n) {
    int i = first / VL * VL;
    for (int k = i; k < first; k++) s[k] = -INFINITY;
    switch (how) {
    case COL_SUM:
        for (; i < n; i += VL)
#pragma omp simd
            for (int v = 0; v < VL; v++) part[v] += exp_real(s[i + v] - less[i + v]);
        break;
    case COL_COUNT:
        for (; i < n; i += VL)
#pragma omp simd
            for (int v = 0; v < VL; v++) part[v] += exp_real(s[i + v] - less[i + v]) * seen[i + v] > 1 ? 1 : 0;
        break;
    case COL_MAX:
        for (; i < n; i += VL)
#pragma omp simd
            for (int v = 0; v < VL; v++) {
                const real x = s[i + v] - less[i + v];
                part[v] = x > part[v] ? x : part[v];
            }
    }
}
/* The sum or the largest of each row's elements becomes the first: in halves, all rows at a time, since one row's
 * additions would wait for each other. */
static void columns_total(ColReduce how, real (*part)[VL], int n) {
#pragma GCC unroll 4
    for (int half = VL / 2; half; half /= 2)
        for (int j = 0; j < n; j++)
#pragma GCC unroll 8
            for (int v = 0; v < half; v++) {
                const real x = part[j][v], y = part[j][v + half];
                part[j][v] = how != COL_MAX ? x + y : y > x ? y : x;
            }
    for (int j = 0; j < n && how == COL_MAX; j++) part[j][0] = exp_real(part[j][0]);
}
static real value_norm(const real *v, int n, ColValue how) {
    real s = 0;
    if (how == COL_L1)
#pragma omp simd reduction(+ : s)
        for (int k = 0; k < n; k++) s += v[k] < 0 ? -v[k] : v[k];
    return how == COL_L1 ? s : (real)sqrt((double)dot(v, v, n));
}
/* Rows of lane h that lie in its page p, counted from the first one with rows: from..to-1. */
typedef struct {
    int from, to;
} PageSpan;
static PageSpan page_span(const Columns *x, int h, int p) {
    const Lanes *t = x->t;
    const int lane = x->c.seq * t->s.lanes + h, lo = t->lo[lane], hi = t->hi[lane], P = t->P;
    return (PageSpan){imax(lo, (lo / P + p) * P), imin(hi, (lo / P + p + 1) * P)};
}
static PageRows page_open(const Columns *x, int h, PageSpan own, real *room) {
    const Lanes *t = x->t;
    return page_rows(x, h, page_of(t, x->c.seq * t->s.lanes + h, own.from), own.from % t->P, own.to - own.from, room);
}
/* Where the scores of a page lie in a thread's room. */
static real *page_room(const Columns *x, real *room) { return room + colstat_room(x->t) - (size_t)KB * QB; }
/* The first query of block b that sees a row; QB or more: none. */
static int column_first(const Columns *x, int pos, int b) {
    if (pos == ROW_GONE || (x->c.older && pos >= x->c.from)) return QB;
    return imax(0, pos - x->c.from - b * QB);
}
/* ColStat.older: the log-sum-exps of block b of lane h's queries over the rows that count, one page after the other,
 * however many threads there are. */
static void columns_lse(const Columns *x, int h, int b, int pages, real *room) {
    Columns keys = *x;
    keys.c.value = COL_PLAIN; /* values are not read */
    real *s = page_room(x, room), *less = x->less + columns_block(x, h, b), top[QB], sum[QB] = {0};
    for (int i = 0; i < QB; i++) top[i] = -INFINITY;
    for (int p = 0; p < pages; p++) {
        const PageSpan own = page_span(x, h, p);
        const int n = own.to - own.from;
        int count = 0, row[KB];
        if (n <= 0) continue;
        const PageRows rows = page_open(&keys, h, own, room);
        for (int j = 0; j < n; j++)
            if (column_first(x, rows.pos[j], b) < QB) row[count++] = j;
        if (!count) continue;
        const int wide = page_scores(&keys, &rows, n, h, b, s);
        real was[QB];
        memcpy(was, top, sizeof was);
        for (int k = 0; k < count; k++)
#pragma omp simd
            for (int i = 0; i < wide; i++) top[i] = s[row[k] * QB + i] > top[i] ? s[row[k] * QB + i] : top[i];
#pragma omp simd
        for (int i = 0; i < wide; i++) sum[i] *= exp_real(was[i] - top[i]);
        for (int k = 0; k < count; k++)
#pragma omp simd
            for (int i = 0; i < wide; i++) sum[i] += exp_real(s[row[k] * QB + i] - top[i]);
    }
    for (int i = 0; i < columns_queries(x, b); i++) less[i] = top[i] + (real)log((double)sum[i]);
}
/* A page's rows into stat[0..]. */
static void colstat_page(const Columns *x, real *stat, int h, PageSpan own, real *room) {
    const ColStat *c = &x->c;
    const int n = own.to - own.from;
    const PageRows rows = page_open(x, h, own, room);
    real *s = page_room(x, room);
    for (int j = 0; j < n; j++) stat[j] = 0;
    for (int g = 0; g < x->group; g++) {
        real part[KB][VL];
        const int head = h * x->group + g;
        for (int j = 0; j < n; j++)
            for (int v = 0; v < VL; v++) part[j][v] = c->queries == COL_MAX ? -INFINITY : 0;
        for (int b = 0; b * QB < c->n; b++) {
            const int wide = page_scores(x, &rows, n, head, b, s);
            const real *less = x->less + columns_block(x, head, b), *seen = x->seen + columns_block(x, h, b);
            for (int j = 0; j < n; j++) {
                const int first = column_first(x, rows.pos[j], b);
                if (first < wide) column_add(c->queries, part[j], s + j * QB, less, seen, first, wide);
            }
        }
        columns_total(c->queries, part, n);
        for (int j = 0; j < n; j++)
            stat[j] = c->heads == COL_SUM ? stat[j] + part[j][0] : part[j][0] > stat[j] ? part[j][0] : stat[j];
    }
    for (int j = 0; j < n && rows.values; j++)
        stat[j] *= value_norm(rows.values + (size_t)j * rows.ldv, x->t->s.vdim, c->value);
}
/* Memory for all queries that q has room for: who measures names none. */
static Columns columns_place(Run *r, Tensor q, Tensor lse, const Lanes *t, ColStat c) {
    const int H = q.n[1], K = t->s.lanes, D = t->s.kdim, blocks = (q.n[0] + QB - 1) / QB;
    const bool pairs = rows_as(&t->s) == ROWS_BF16 && r->dev->pairs && D % W == 0 && t->s.vdim % W == 0;
    Columns x = {.t = t, .c = c, .q = q, .lse = lse, .heads = H, .blocks = blocks};
    x.group = c.older ? 1 : H / K, x.sums = c.older ? H / K : 1;
    x.few = !c.older && c.n * x.group <= FEW_ENTRIES && c.n <= FEW_QUERIES;
    x.less = R(SCRATCH(r, "lse of queries", H, blocks, QB)), x.seen = R(SCRATCH(r, "rows seen", K, blocks, QB));
    if (!pairs || t->nblocks) x.reals = R(SCRATCH(r, "queries of columns", H, blocks, D, QB));
    if (pairs)
        x.pairs = arena_take(r->scratch, (size_t)(H * blocks) * (size_t)(D / 2) * QB * sizeof *x.pairs, "query pairs");
    if (x.few) x.pairs = NULL;
    x.tiles = r->dev->pair_product;
    return x;
}
static void colstat(Run *r, Tensor stat, Tensor q, Tensor lse, const Lanes *t, ColStat c) {
    const int lanes = t->s.lanes, P = t->P, older = c.older ? lanes : 0; /* lanes with log-sum-exps of their own */
    check_colstat(stat, q, lse, t, &c);
    CHECK(P <= KB, "pages of %d rows, at most %d", P, KB);
    Mark mark = arena_mark(r->scratch);
    const Columns x = columns_place(r, q, lse, t, c);
    Tensor mem = SCRATCH(r, "decoded rows", r->dev->threads, (int)colstat_room(t));
    if (!measuring(r)) {
        int pages = 0, blocks = (c.n + QB - 1) / QB;
        for (int h = 0; h < lanes; h++) {
            const int lane = c.seq * lanes + h, lo = t->lo[lane], hi = t->hi[lane];
            CHECK(hi - lo <= stat.n[1], "%d rows, room for %d", hi - lo, stat.n[1]);
            for (int j = hi - lo; j < stat.n[1]; j++) R(stat)[(size_t)h * (size_t)stat.n[1] + (size_t)j] = 0;
            if (c.queries == COL_COUNT) columns_seen(&x, h);
            if (hi > lo) pages = imax(pages, (hi - 1) / P - lo / P + 1);
        }
#pragma omp parallel num_threads(r->dev->threads)
        {
            real *room = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1];
#pragma omp for collapse(2)
            for (int head = 0; head < lanes * x.group; head++)
                for (int b = 0; b < blocks; b++) columns_pack(&x, head, b, room);
#pragma omp for collapse(2) schedule(dynamic)
            for (int h = 0; h < older; h++)
                for (int b = 0; b < blocks; b++) columns_lse(&x, h, b, pages, room);
#pragma omp for collapse(2) schedule(dynamic)
            for (int h = 0; h < lanes; h++)
                for (int p = 0; p < pages; p++) {
                    const PageSpan own = page_span(&x, h, p);
                    const int at = own.from - t->lo[c.seq * lanes + h];
                    if (own.from >= own.to) continue;
                    colstat_page(&x, R(stat) + (size_t)h * (size_t)stat.n[1] + (size_t)at, h, own, room);
                }
        }
    }
    arena_release(r->scratch, mark);
}
