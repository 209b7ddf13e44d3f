/* attend_lanes.c: attention over cached lanes, a page at a time, by the blocks of attend.c, behind which cpu.c includes
 * it. */
/* -inf for those of n rows of a page that are retired, of which `tail` (a number from their first on) is one; NULL if
 * none is. */
static const real *retired(real mem[KB], const bool *gone, int tail, int n) {
    bool any = false;
    for (int t = 0; gone && t < n; t++) {
        bool out = gone[t] || t == tail;
        any |= out;
        mem[t] = out ? -INFINITY : 0;
    }
    return any ? mem : NULL;
}

/* Rows of bf16 that few entries meet go from memory through registers into the sums: written out as `real`s first, they
 * would cost more than the products. The double form, which only checks gradients, has none. */
enum { DIRECT = 4 };
static bool direct(const Block *k, const Lanes *t) {
    return REAL == F32 && t->s.narrow && k->n <= DIRECT && k->Dk % VL == 0 && k->Dv % VL == 0;
}
#ifdef KV_DOUBLE
static void direct_scores(Block *b, const uint16_t *keys, int n, ptrdiff_t ahead) {
    (void)b, (void)keys, (void)n, (void)ahead;
}
static void direct_values(Block *b, const uint16_t *v, size_t ldv, int n, ptrdiff_t ahead) {
    (void)b, (void)v, (void)ldv, (void)n, (void)ahead;
}
#else
typedef uint16_t Half __attribute__((vector_size(VBYTES / 2), aligned(2), may_alias));
typedef uint32_t Word __attribute__((vector_size(VBYTES)));
INLINE Vec wide_vec(const uint16_t *x) { return (Vec)(__builtin_convertvector(*(const Half *)x, Word) << 16); }

/* Asks for a row that lies `ahead` numbers on; 0: for none. */
INLINE void ask(const uint16_t *row, ptrdiff_t ahead, int width) {
    if (ahead)
        for (int k = 0; k < width; k += 32) __builtin_prefetch(row + ahead + k, 0, 2);
}
INLINE void scores_of(int entries, Block *b, const uint16_t *keys, int n, ptrdiff_t ahead) {
    for (int j = 0; j < n; j++, keys += b->Dk) {
        Vec sum[DIRECT];
        ask(keys, ahead, b->Dk);
    #pragma GCC unroll 4
        for (int i = 0; i < entries; i++) sum[i] = (Vec){0};
        for (int k = 0; k < b->Dk; k += VL) {
            Vec x = wide_vec(keys + k);
    #pragma GCC unroll 4
            for (int i = 0; i < entries; i++) sum[i] += *(const Vec *)(b->q + i * b->Dk + k) * x;
        }
    #pragma GCC unroll 4
        for (int i = 0; i < entries; i++) b->s[i * KB + j] = total(&sum[i]);
    }
}
static void direct_scores(Block *b, const uint16_t *keys, int n, ptrdiff_t ahead) {
    switch (b->n) {
    case 1: scores_of(1, b, keys, n, ahead); break;
    case 2: scores_of(2, b, keys, n, ahead); break;
    case 3: scores_of(3, b, keys, n, ahead); break;
    default: scores_of(DIRECT, b, keys, n, ahead);
    }
}
/* Columns c.. of o += s v: in the order of tile_mm. */
INLINE void values_of(int entries, int vecs, Block *b, const uint16_t *v, size_t ldv, int n, int c) {
    Vec sum[DIRECT][TILE_VECS];
    #pragma GCC unroll 4
    for (int i = 0; i < entries; i++)
    #pragma GCC unroll 4
        for (int w = 0; w < vecs; w++) sum[i][w] = *(const Vec *)(b->o + i * b->Dv + c + w * VL);
    for (int j = 0; j < n; j++) {
        Vec x[TILE_VECS];
    #pragma GCC unroll 4
        for (int w = 0; w < vecs; w++) x[w] = wide_vec(v + (size_t)j * ldv + c + w * VL);
    #pragma GCC unroll 4
        for (int i = 0; i < entries; i++)
    #pragma GCC unroll 4
            for (int w = 0; w < vecs; w++) sum[i][w] += b->s[i * KB + j] * x[w];
    }
    #pragma GCC unroll 4
    for (int i = 0; i < entries; i++)
    #pragma GCC unroll 4
        for (int w = 0; w < vecs; w++) *(Vec *)(b->o + i * b->Dv + c + w * VL) = sum[i][w];
}
INLINE void all_values(int entries, Block *b, const uint16_t *v, size_t ldv, int n) {
    int c = 0;
    for (; c + TILE_VECS * VL <= b->Dv; c += TILE_VECS * VL) values_of(entries, TILE_VECS, b, v, ldv, n, c);
    for (; c < b->Dv; c += VL) values_of(entries, 1, b, v, ldv, n, c);
}
static void direct_values(Block *b, const uint16_t *v, size_t ldv, int n, ptrdiff_t ahead) {
    for (int j = 0; j < n; j++) ask(v + (size_t)j * ldv, ahead, b->Dv);
    switch (b->n) {
    case 1: all_values(1, b, v, ldv, n); break;
    case 2: all_values(2, b, v, ldv, n); break;
    case 3: all_values(3, b, v, ldv, n); break;
    default: all_values(DIRECT, b, v, ldv, n);
    }
}
#endif

/* The rows from..to-1 of a lane, a page at a time; this pass retired row `tail` (-1: none). room: for a page's rows
 * where they are narrow, as `real`s or, where the block's products are of pairs, as those. */
static void attend_rows(Block *k, const Lanes *t, int lane, int from, int to, int tail, real *room) {
    int Dk = k->Dk, P = t->P;
    real *wide = room;
    Pair *turned = (Pair *)room, *below = turned + KB * Dk / 2;
    size_t ldv = (size_t)(t->s.alias ? Dk : k->Dv);
    for (int row = from, n; row < to; row += n) {
        int page = t->table[(size_t)lane * (size_t)t->maxpages + (size_t)(row / P % t->maxpages)], at = row % P;
        n = imin(P - at, to - row);
        size_t key = (size_t)page * (size_t)P * (size_t)row_width(&t->s) + (size_t)at * (size_t)Dk,
               value = t->s.alias ? key : key + (size_t)(P - at) * (size_t)Dk + (size_t)at * ldv;
        const real *keys = wide, *vals = t->s.alias ? wide : wide + KB * Dk;
        real bias_mem[KB];
        size_t first = (size_t)page * (size_t)P + (size_t)at;
        const real *bias = retired(bias_mem, t->gone ? t->gone + first : NULL, tail - row, n);
        if (k->qp) {
            const uint16_t *data = t->data.p;
            pairs_turned(turned, rows_half(data + key, (size_t)Dk), n, Dk);
            pairs_below(below, rows_half(data + value, ldv), n, k->Dv);
            pairs_mm(k->s, KB, k->qp, (size_t)Dk / 2, 1, turned, KB, k->n, Dk / 2, in_vectors(n), false);
            absorb(k, NULL, 0, below, t->pos + first, bias, row, n);
            continue;
        }
        if (direct(k, t)) { /* a lane's pages lie anywhere: while one is read the next is asked for */
            ptrdiff_t ahead = 0;
            if (row + n < to)
                ahead =
                    ((ptrdiff_t)t->table[(size_t)lane * (size_t)t->maxpages + (size_t)((row + n) / P % t->maxpages)] -
                     page) *
                    (ptrdiff_t)P * row_width(&t->s);
            direct_scores(k, (const uint16_t *)t->data.p + key, n, ahead);
            soften(k, t->pos + first, bias, row, n);
            direct_values(k, (const uint16_t *)t->data.p + value, ldv, n, t->s.alias ? 0 : ahead);
            continue;
        }
        if (t->s.narrow) {
            widened(wide, (const uint16_t *)t->data.p + key, (size_t)n * (size_t)Dk);
            if (!t->s.alias) widened(wide + KB * Dk, (const uint16_t *)t->data.p + value, (size_t)n * ldv);
        } else {
            keys = R(t->data) + key, vals = R(t->data) + value;
        }
        if (k->n <= FEW_ENTRIES) { /* decoding: the keys are read once, packing them would cost more than the product */
            scores(k, keys, (size_t)Dk, n);
        } else {
            pack(k->kt, keys, (size_t)Dk, n, Dk);
            memset(k->s, 0, (size_t)k->n * KB * sizeof(real));
            tile_mm(k->s, KB, k->q, (size_t)Dk, 1, k->kt, KB, k->n, Dk, KB);
        }
        absorb(k, vals, ldv, NULL, t->pos + first, bias, row, n);
    }
}

static void attend_lanes(Run *r, Tensor o, Tensor lse, Tensor q, const Lanes *t, const Kv *pass, Look look,
                         bool merge) {
    const Batch *b = r->batch;
    int lanes = t->s.lanes, group = look.heads / lanes, Dk = t->s.kdim, Dv = t->s.vdim;
    CHECK(t->P <= KB, "pages of %d rows, at most %d", t->P, KB);
    if (r->out.n == 0) return;
    Mark mark = arena_mark(r->scratch);
    size_t block = block_numbers(Dk, Dv), room = t->s.narrow ? (size_t)KB * (size_t)(Dk + Dv) : 0;
    bool pairs = t->s.narrow && by_pairs(r, Dk, Dv);
    Tensor mem = SCRATCH(r, "attend block", r->dev->threads, (int)(block + room + pairs * block_pairs(Dk)));
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
                    real *own = R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1];
                    block_place(&k, own, Dk, Dv, look);
                    if (pairs && entries > FEW_ENTRIES) block_place_pairs(&k, own + block + room);
                    k.loose = t->s.retire, k.delay = t->s.delay;
                    block_load(&k, n, e0, start[s], h, group, q, o, lse, merge);
                    bool retires = t->s.retire && R(pass->gone)[(size_t)b->off[s] * (size_t)lanes + (size_t)h] != 0;
                    int tail = retires ? t->tail[lane] : -1;
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
                        if (lo < hi && look.window && !look.sinks && !k.loose)
                            skip = imax(0, oldest - look.window + 1 -
                                               t->pos[(size_t)page * (size_t)t->P + (size_t)(lo % t->P)]);
                        attend_rows(&k, t, lane, t->s0[lane], sinks, tail, own + block);
                        attend_rows(&k, t, lane, lo + skip, hi, tail, own + block);
                    }
                    if (k.qp) soften_end(&k);
                    block_store(&k, e0, start[s], h, group, o, lse);
                }
    }
    arena_release(r->scratch, mark);
}
