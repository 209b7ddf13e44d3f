/* colstat.c: column statistics of attention over cached rows, a page at a time; behind attend_lanes.c, which has the
 * decoding of rows. */

static real value_norm(const real *v, int n, ColValue how) {
    real s = 0;
    if (how == COL_PLAIN) return 1;
    for (int k = 0; k < n; k++) s += how == COL_L1 ? (v[k] < 0 ? -v[k] : v[k]) : v[k] * v[k];
    return how == COL_L1 ? s : (real)sqrt((double)s);
}
static int page_of(const Lanes *t, int lane, int row) {
    return t->table[(size_t)lane * (size_t)t->maxpages + (size_t)(row / t->P % t->maxpages)];
}
static int position_of(const Lanes *t, int lane, int row) {
    return t->pos[(size_t)page_of(t, lane, row) * (size_t)t->P + (size_t)(row % t->P)];
}
static bool position_seen(int pos, int query) { return pos != ROW_GONE && pos <= query; }
/* Rows from..to-1 of a lane, which lie in one page, into stat[0..]. seen: rows that each query sees. */
static void colstat_page(real *stat, Tensor q, Tensor lse, const Lanes *t, const ColStat *c, int h, int from, int to,
                         const real *seen, real *room) {
    const int lane = c->seq * t->s.lanes + h, Dk = t->s.kdim, Dv = t->s.vdim, n = to - from,
              page = page_of(t, lane, from), at = from % t->P, heads = q.n[1], group = heads / t->s.lanes;
    const size_t kb = key_bytes(&t->s), vb = value_bytes(&t->s), P = (size_t)t->P;
    const char *in = (const char *)t->data.p + (size_t)page * P * (kb + vb), *key = in + (size_t)at * kb,
               *value = in + P * kb + (size_t)at * vb;
    const int *pos = t->pos + (size_t)page * P + (size_t)at;
    const real *keys = (const real *)key, *vals = (const real *)value;
    size_t ldv = (size_t)Dv;
    if (page >= t->npages) {
        keys = room, vals = room + P * (size_t)Dk;
        coded_rows(t, page, at, n, room, c->value == COL_PLAIN ? NULL : room + P * (size_t)Dk,
                   room + P * (size_t)(Dk + Dv));
    } else if (rows_as(&t->s) != ROWS_REAL) {
        decoded(room, &t->s, (Parts){key, kb, Dk, group_of(&t->s)}, n);
        keys = room, vals = room + P * (size_t)Dk;
        if (!t->s.alias && c->value != COL_PLAIN)
            decoded(room + P * (size_t)Dk, &t->s, (Parts){value, vb, Dv, group_of(&t->s)}, n);
    }
    if (t->s.alias) vals = keys, ldv = (size_t)Dk;
    for (int j = 0; j < n; j++) stat[j] = 0;
    for (int g = 0; g < group; g++) {
        real sum[KB] = {0}, p[KB];
        for (int i = 0; i < c->n; i++) {
            const int own = c->from + i;
            const size_t row = (size_t)(own % q.n[0]) * (size_t)heads + (size_t)(h * group + g);
            const real *x = R(q) + row * (size_t)Dk, l = R(lse)[row];
            for (int j = 0; j < n; j++) p[j] = dot(x, keys + (size_t)j * (size_t)Dk, Dk) - l;
            for (int j = 0; j < n; j++) p[j] = position_seen(pos[j], own) ? exp_real(p[j]) : 0;
            for (int j = 0; j < n; j++) switch (c->queries) {
                case COL_SUM: sum[j] += p[j]; break;
                case COL_MAX: sum[j] = p[j] > sum[j] ? p[j] : sum[j]; break;
                case COL_COUNT: sum[j] += p[j] * seen[i] > 1; break;
                }
        }
        for (int j = 0; j < n; j++)
            stat[j] = c->heads == COL_SUM ? stat[j] + sum[j] : sum[j] > stat[j] ? sum[j] : stat[j];
    }
    for (int j = 0; j < n; j++) stat[j] *= value_norm(vals + (size_t)j * ldv, Dv, c->value);
}
static void colstat(Run *r, Tensor stat, Tensor q, Tensor lse, const Lanes *t, ColStat c) {
    const int lanes = t->s.lanes, P = t->P, rows = q.n[0];
    check_colstat(stat, q, lse, t, &c);
    CHECK(P <= KB, "pages of %d rows, at most %d", P, KB);
    Mark mark = arena_mark(r->scratch);
    Tensor mem =
               SCRATCH(r, "decoded rows", r->dev->threads, P * (t->s.kdim + t->s.vdim + (t->nblocks ? t->s.kdim : 0))),
           seen = SCRATCH(r, "rows seen", lanes, rows);
    if (!measuring(r)) {
        int pages = 0;
        for (int h = 0; h < lanes; h++) {
            const int lane = c.seq * lanes + h, lo = t->lo[lane], hi = t->hi[lane];
            CHECK(hi - lo <= stat.n[1], "%d rows, room for %d", hi - lo, stat.n[1]);
            for (int j = hi - lo; j < stat.n[1]; j++) R(stat)[(size_t)h * (size_t)stat.n[1] + (size_t)j] = 0;
            for (int i = 0; i < c.n && c.queries == COL_COUNT; i++) {
                int n = 0;
                for (int row = lo; row < hi; row++) n += position_seen(position_of(t, lane, row), c.from + i);
                R(seen)[h * rows + i] = (real)n;
            }
            if (hi > lo) pages = imax(pages, (hi - 1) / P - lo / P + 1);
        }
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(r->dev->threads)
        for (int h = 0; h < lanes; h++)
            for (int p = 0; p < pages; p++) {
                const int lane = c.seq * lanes + h, lo = t->lo[lane], hi = t->hi[lane],
                          from = imax(lo, (lo / P + p) * P), to = imin(hi, (lo / P + p + 1) * P);
                if (from >= to) continue;
                colstat_page(R(stat) + (size_t)h * (size_t)stat.n[1] + (size_t)(from - lo), q, lse, t, &c, h, from, to,
                             R(seen) + (size_t)h * (size_t)rows,
                             R(mem) + (size_t)omp_get_thread_num() * (size_t)mem.n[1]);
            }
    }
    arena_release(r->scratch, mark);
}
