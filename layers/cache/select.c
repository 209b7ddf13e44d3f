/* select.c: which pages a step reads, where a policy says so (Policy.judge). A query after its sequence's prompt reads
 * the pages with rows among its newest `recent`, those that are not full, and of the others the ones that the policy
 * gives the highest scores. What it reads is a table of pages of its own, which Ops.attend_lanes takes for a lane's.
 *
 * The host chooses for a GPU, too: the queries of a pass come to the host, and once the keys of each page that has
 * become full; the tables go back. Ops.attend_lanes runs on the GPU.
 *
 * Of rows in a slower tier (tier.h) the pages of those tables come to memory, and once those without a summary. Pages
 * that a guess selects are known a layer before (kv_expect) and read ahead. */
#include "slot.h"
#include "ops/host.h"
#include "ops/merged.h"

/* Queries that select at a time; rows whose keys a GPU sends to the host at a time. */
enum { SELECT_ROWS = 16, FETCH_ROWS = 4096 };
static int page_at(const Slot *s, int lane, int at) {
    return s->t.table[(size_t)lane * (size_t)s->t.maxpages + (size_t)(at % s->t.maxpages)];
}
/* Positions of the newest and the oldest row of a full page. */
typedef struct {
    int newest, oldest;
} PageAge;
static PageAge page_age(const Slot *s, int page) {
    const int *pos = s->t.pos + (size_t)page * (size_t)s->t.P;
    PageAge age = {-1, INT32_MAX};
    if (s->summed[page]) return (PageAge){s->newest[page], s->oldest[page]};
    for (int r = 0; r < s->t.P; r++)
        if (pos[r] != ROW_GONE) age = (PageAge){imax(age.newest, pos[r]), imin(age.oldest, pos[r])};
    return age;
}
static real *summary_of(const Slot *s, int page) {
    return s->summary + policy_summary(&s->policy, s->t.s.kdim) * (size_t)page;
}
/* Makes what the policy keeps of a full page of a lane, whose keys are `stored`. keys: scratch for them, decoded. */
static void page_sum(const Slot *s, int lane, int page, const char *stored, real *keys) {
    const KvShape *k = &s->t.s;
    const int *pos = s->t.pos + (size_t)page * (size_t)s->t.P;
    const size_t D = (size_t)k->kdim, each = key_bytes(k);
    for (int r = 0; r < s->t.P; r++, stored += each)
        part_decode(k, keys + (size_t)r * D, stored, false, lane % k->lanes, pos[r]);
    s->policy.read->summary(keys, s->t.P, k->kdim, summary_of(s, page));
}
/* The same of a page or a block in memory, of a codec that stores rows together. */
static void block_sum(const Slot *s, int page, real *keys) {
    const int *pos = s->t.pos + (size_t)page * (size_t)s->t.P;
    const size_t D = (size_t)s->t.s.kdim;
    int n = 0;
    blocks_decode(&s->t, page, keys, NULL);
    for (int r = 0; r < s->t.P; r++)
        if (pos[r] != ROW_GONE) memmove(keys + (size_t)n++ * D, keys + (size_t)r * D, D * sizeof *keys);
    s->policy.read->summary(keys, n, s->t.s.kdim, summary_of(s, page));
}
/* The summary of the page counts as made from now on. */
static void page_note(const Slot *s, int page) {
    const PageAge age = page_age(s, page);
    s->newest[page] = age.newest, s->oldest[page] = age.oldest;
    s->summed[page] = true;
}
static const real *page_summary(const Slot *s, int lane, int page, real *keys) {
    if (!s->summed[page]) {
        CHECK(!s->dev, "page %d has no summary yet", page);
        if (s->t.nblocks)
            block_sum(s, page, keys);
        else
            page_sum(s, lane, page, (const char *)s->t.data.p + slot_key(s, (size_t)page * (size_t)s->t.P), keys);
        page_note(s, page);
    }
    return summary_of(s, page);
}
static int pages_read(const PolicyCfg *p, int tokens) {
    const double rows = p->reads > 1 ? p->reads : p->reads * tokens;
    return (int)ceil(fmax(0, rows - p->recent - p->firsts) / p->page - 1e-9) + p->uneven;
}
/* The pages of a lane that a query at position pos may leave out: full ones without recent rows and first positions.
 * Returns how many these are. */
static int pages_older(const Slot *s, int lane, int pos, Ranked *out) {
    const PolicyCfg *p = &s->policy;
    const int P = s->t.P, lo = s->t.lo[lane], hi = s->t.hi[lane];
    int n = 0;
    for (int at = (lo + P - 1) / P; at < hi / P; at++) {
        const PageAge age = page_age(s, page_at(s, lane, at));
        if (age.newest < pos - p->recent && age.oldest >= p->firsts) out[n++].at = at;
    }
    return n;
}
/* Whether a query that may read `most` of so many older pages leaves some out, or may do so. */
static bool pages_judged(const PolicyCfg *p, int older, int most) { return older > (p->read->fewer ? 0 : most); }
typedef struct {
    Lanes t;
    int *off, *seq, *of, *pos, *first, *idx;
    Ranked *page, *order; /* pages of a lane; scratch of a policy, as the rest is but for `leave` */
    const real **summary;
    real *score, *each, *query, *keys;
    bool *leave;
} Reading;
/* Of `older` pages of a lane, those that the query does not read: all but `most` at the most. */
static void reading_leaves(const Slot *s, const PolicyCfg *p, Reading *x, int lane, const real *q, int group,
                           real scale, int older, int most) {
    const int first = s->t.lo[lane] / s->t.P;
    PageChoice c = {p, older, group, s->t.s.kdim, most, q, scale, x->summary, x->score, x->each, x->query, x->order};
    for (int i = 0; i < older; i++)
        x->summary[i] = page_summary(s, lane, page_at(s, lane, x->page[i].at), x->keys), x->score[i] = 0;
    p->read->judge(&c);
    for (int i = 0; i < older; i++)
        x->page[i].score = x->score[i] == x->score[i] ? x->score[i] : -(real)INFINITY; /* NaN has no order */
    ranked_select(x->page, older, c.most);
    for (int i = c.most; i < older; i++) x->leave[x->page[i].at - first] = true;
}
static size_t reading_bytes(const Slot *s, const Lanes *t, int to) {
    size_t bytes = (size_t)(t->hi[to] - t->lo[to]) * row_bytes(&t->s);
    for (int row = t->lo[to]; t->nblocks && row < t->hi[to]; row += t->P)
        if (t->table[(size_t)to * (size_t)t->maxpages + (size_t)(row / t->P)] >= s->t.npages)
            bytes += block_bytes(&t->s) + merged_below_bytes(&t->s) - (size_t)t->P * row_bytes(&t->s);
    return bytes;
}
/* Row `m` of the reading, in lane h: the table of what it reads of the slot's lane. */
static void reading_lane(const Slot *s, const PolicyCfg *p, Reading *x, int m, int h, int lane, const real *q,
                         int group, real scale, bool selects) {
    Lanes *t = &x->t;
    const int P = t->P, to = m * t->s.lanes + h, lo = s->t.lo[lane], hi = s->t.hi[lane];
    int *table = t->table + (size_t)to * (size_t)t->maxpages, n = 0;
    const int older = selects ? pages_older(s, lane, x->pos[m], x->page) : 0, most = pages_read(p, x->pos[m] + 1);
    for (int at = lo / P; at * P < hi; at++) x->leave[at - lo / P] = false;
    if (pages_judged(p, older, most)) reading_leaves(s, p, x, lane, q, group, scale, older, most);
    for (int at = lo / P; at * P < hi; at++)
        if (!x->leave[at - lo / P]) table[n++] = page_at(s, lane, at);
    t->s0[to] = t->lo[to] = lo % P;
    t->hi[to] = hi > lo ? (n - 1) * P + (hi - 1) % P + 1 : t->lo[to];
    *s->read += reading_bytes(s, t, to);
}
static Reading reading_place(Run *r, const Slot *s) {
    Reading x = {.t = s->mirror ? s->there : s->t};
    const size_t K = (size_t)s->t.s.lanes, rows = SELECT_ROWS, one = sizeof(int), pages = (size_t)s->t.maxpages;
    /* one piece, which a GPU gets at once */
    x.t.s0 = arena_take(r->host, (3 + pages) * rows * K * one, "pages to read");
    x.t.lo = x.t.s0 + rows * K, x.t.hi = x.t.lo + rows * K, x.t.table = x.t.hi + rows * K;
    int *mem = arena_take(r->host, (6 * rows + 1) * one, "rows that select");
    x.seq = mem, x.of = mem + rows, x.pos = mem + 2 * rows, x.first = mem + 3 * rows, x.idx = mem + 4 * rows;
    x.off = mem + 5 * rows;
    x.page = arena_take(r->host, pages * sizeof *x.page, "pages to judge");
    x.order = arena_take(r->host, zmax(pages, (size_t)s->t.s.kdim) * sizeof *x.order, "order of pages or channels");
    x.summary = arena_take(r->host, pages * sizeof *x.summary, "summaries of pages");
    x.score = arena_take(r->host, pages * sizeof(real), "scores of pages");
    x.each = arena_take(r->host, pages * sizeof(real), "scores of pages by a head");
    x.query = arena_take(r->host, 2 * (size_t)s->t.s.kdim * sizeof(real), "query of some channels");
    x.leave = arena_take(r->host, pages, "pages to leave out");
    x.keys = arena_take(r->host, (size_t)s->t.P * (size_t)s->t.s.kdim * sizeof(real), "keys of a page");
    x.t.nseq = SELECT_ROWS, x.t.s.sparse = true;
    return x;
}
static bool row_selects(const Slot *s, const Batch *b, int row) {
    return b->first[row] < 0 && b->pos[row] >= s->after[b->seq[b->of[row]]];
}
/* Fills x->page with the pages of lane h that are judged for row m of the pass's output. Returns how many: 0, it reads
 * all. */
static int row_judged(const Slot *s, Reading *x, const Run *r, int m, int h) {
    const Batch *b = r->batch;
    const int row = r->out.idx[m], lane = b->seq[b->of[row]] * s->t.s.lanes + h;
    if (!row_selects(s, b, row)) return 0;
    const int older = pages_older(s, lane, b->pos[row], x->page);
    return pages_judged(&s->policy, older, pages_read(&s->policy, b->pos[row] + 1)) ? older : 0;
}

/* ---- on a GPU ----------------------------------------------------------------------------------------------------*/

/* Pages whose keys come to the host together. */
typedef struct {
    int n, most, *page;
    size_t *to, *from;
    Tensor keys; /* on the GPU; */
    char *here;  /* of the host */
} Fetch;
static Fetch fetch_place(Run *r, const Slot *s) {
    const size_t bytes = (size_t)s->t.P * key_bytes(&s->t.s);
    Fetch f = {.most = imax(1, imin(s->t.npages, FETCH_ROWS / s->t.P))};
    const size_t most = (size_t)f.most;
    f.page = arena_take(r->host, most * sizeof *f.page, "pages to sum up");
    f.to = arena_take(r->host, most * sizeof *f.to, "places of keys");
    f.from = arena_take(r->host, most * sizeof *f.from, "keys of pages");
    f.here = arena_take(r->host, most * bytes, "keys of pages as they are stored");
    f.keys = SCRATCH_OF(r, "keys of pages", s->t.data.dtype, f.most, (int)(bytes / dtype_size(s->t.data.dtype)));
    return f;
}
static void fetch_keys(Run *r, const Slot *s, Fetch *f, real *keys) {
    const RunMark mark = run_mark(r);
    const int n = measuring(r) ? f->most : f->n, width = f->keys.n[1];
    const size_t unit = dtype_size(f->keys.dtype), bytes = (size_t)width * unit;
    for (int i = 0; i < f->n; i++) {
        f->to[i] = (size_t)i * (size_t)width;
        f->from[i] = slot_key(s, (size_t)f->page[i] * (size_t)s->t.P) / unit;
    }
    r->ops->move(r, f->keys, f->to, s->t.data, f->from, n, width);
    if (!measuring(r)) device_read(r->dev, f->here, f->keys.p, (size_t)n * bytes);
    if (s->tier && !measuring(r)) tier_touched(s, (size_t)n * bytes, 0);
    for (int i = 0; i < f->n; i++) /* of any lane: no rows on a GPU have a basis */
        page_sum(s, 0, f->page[i], f->here + (size_t)i * bytes, keys);
    f->n = 0;
    run_release(r, mark);
}
/* On a GPU: makes the summaries that the rows of the pass ask for. */
static void select_fetch(Run *r, const Slot *s, Reading *x) {
    const RunMark mark = run_mark(r);
    Fetch f = fetch_place(r, s);
    for (int m = 0; m < r->out.n && !measuring(r); m++)
        for (int h = 0; h < s->t.s.lanes; h++) {
            const int lane = r->batch->seq[r->batch->of[r->out.idx[m]]] * s->t.s.lanes + h,
                      n = row_judged(s, x, r, m, h);
            for (int i = 0; i < n; i++) {
                const int page = page_at(s, lane, x->page[i].at);
                if (s->summed[page]) continue;
                page_note(s, page); /* others may ask for it, too */
                f.page[f.n++] = page;
                if (f.n == f.most) fetch_keys(r, s, &f, x->keys);
            }
        }
    if (f.n || measuring(r)) fetch_keys(r, s, &f, x->keys);
    run_release(r, mark);
}

/* ---- rows in a slower tier ---------------------------------------------------------------------------------------*/

/* Pages of which the rows of the pass ask for a summary that is not there come to memory. */
static void select_bring(const Run *r, const Slot *s, Reading *x) {
    bool any = false;
    for (int m = 0; m < r->out.n; m++)
        for (int h = 0; h < s->t.s.lanes; h++) {
            const int lane = r->batch->seq[r->batch->of[r->out.idx[m]]] * s->t.s.lanes + h,
                      n = row_judged(s, x, r, m, h);
            for (int i = 0; i < n; i++) {
                const int page = page_at(s, lane, x->page[i].at);
                if (!s->summed[page]) tier_want(s, page), any = true;
            }
        }
    if (any) tier_bring(s);
}
/* What the tables of n rows name comes to memory. */
static void reading_bring(const Slot *s, Reading *x, int n, bool last) {
    for (int to = 0; to < n * s->t.s.lanes; to++)
        for (int at = x->t.lo[to] / s->t.P; at * s->t.P < x->t.hi[to]; at++)
            tier_want(s, x->t.table[(size_t)to * (size_t)s->t.maxpages + (size_t)at]);
    tier_bring(s);
    if (last) tier_onward(s);
    x->t.data = (s->mirror ? &s->there : &s->t)->data;
}

/* ---- a pass ------------------------------------------------------------------------------------------------------*/

/* The tables of n rows where the ops read them: a GPU's copy is as wide as the longest. */
static Lanes reading_there(Run *r, const Slot *s, const Reading *x, int n) {
    Lanes t = x->t;
    if (!s->dev) return t;
    const size_t K = (size_t)t.s.lanes, rows = SELECT_ROWS * K, lanes = (size_t)n * K;
    int wide = measuring(r) ? t.maxpages : 1;
    for (size_t i = 0; i < lanes && !measuring(r); i++) wide = imax(wide, (t.hi[i] + t.P - 1) / t.P);
    const size_t each = (size_t)wide * sizeof(int), bytes = 3 * rows * sizeof(int) + lanes * each;
    for (size_t i = 1; i < lanes && !measuring(r); i++)
        memmove(t.table + i * (size_t)wide, t.table + i * (size_t)t.maxpages, each);
    int *there = arena_take(r->scratch, bytes, "pages to read");
    if (!measuring(r)) device_write(r->dev, there, t.s0, bytes);
    t.s0 = there, t.lo = there + rows, t.hi = there + 2 * rows, t.table = there + 3 * rows;
    t.maxpages = wide;
    return t;
}
/* Rows m.. of the pass's output, n of them. judges: the queries that select, of all rows, where the host reads them. */
static void select_some(Run *r, const Slot *s, const Kv *pass, Tensor o, Tensor lse, Tensor q, Tensor judges,
                        AttnSpec spec, bool merge, Reading *x, int m, int n) {
    const RunMark mark = run_mark(r);
    const Batch *b = r->batch;
    const int H = spec.heads, K = s->t.s.lanes, Dk = s->t.s.kdim, Dv = s->t.s.vdim;
    const size_t at = (size_t)m * (size_t)H;
    Batch own = {.B = n, .N = n, .off = x->off, .seq = x->seq, .of = x->of, .pos = x->pos, .first = x->first};
    Run v = *r;
    for (int i = 0; i < n && !measuring(r); i++) {
        const int row = r->out.idx[m + i], seq = b->seq[b->of[row]];
        const bool selects = row_selects(s, b, row);
        x->seq[i] = x->of[i] = x->idx[i] = x->off[i] = i, x->pos[i] = b->pos[row];
        x->first[i] = b->first[row] < 0 ? -1 : i;
        for (int h = 0; h < K; h++)
            reading_lane(s, &s->policy, x, i, h, seq * K + h,
                         R(judges) + (at + (size_t)(i * H + h * (H / K))) * (size_t)Dk, H / K, spec.scale, selects);
    }
    if (!measuring(r)) x->off[n] = n;
    if (s->tier && !measuring(r)) reading_bring(s, x, n, m + n == r->out.n);
    const Lanes t = reading_there(r, s, x, n);
    own.history = true;
    v.batch = &own, v.in = v.out = (RowList){n, x->idx};
    run_give(&v, 1, &(Given){x->idx, (size_t)n * sizeof *x->idx});
    r->ops->attend_lanes(&v, TENSOR(R(o) + at * (size_t)Dv, REAL, n, H, Dv), TENSOR(R(lse) + at, REAL, n, H),
                         TENSOR(R(q) + at * (size_t)Dk, REAL, n, H, Dk), &t, pass, spec, merge);
    run_release(r, mark);
}
bool kv_selects(const Cache *c, const Batch *b) {
    for (int i = 0; c->after && i < b->N; i++)
        if (b->first[i] < 0 && b->pos[i] >= c->after[b->seq[b->of[i]]]) return true;
    return false;
}
/* Whether a row of the pass leaves a page out. */
static bool select_any(const Slot *s, Reading *x, const Run *r) {
    for (int m = 0; m < r->out.n; m++)
        for (int h = 0; h < s->t.s.lanes; h++)
            if (row_judged(s, x, r, m, h)) return true;
    return false;
}

bool select_attend(Run *r, const Slot *s, const Kv *pass, Tensor o, Tensor lse, Tensor q, AttnSpec spec, bool merge) {
    const RunMark mark = run_mark(r);
    if (!s->policy.read || spec.window || (s->policy.read->guesses && !present(r->guess))) return false;
    Reading x = reading_place(r, s);
    const bool some = measuring(r) || select_any(s, &x, r);
    if (some && s->dev) select_fetch(r, s, &x);
    if (some && slot_on_disk(s) && !measuring(r)) select_bring(r, s, &x);
    const Tensor judges = some ? host_view(r, s->policy.read->guesses ? r->guess : q, true) : ABSENT;
    for (int m = 0; some && m < (measuring(r) ? 1 : r->out.n); m += SELECT_ROWS)
        select_some(r, s, pass, o, lse, q, judges, spec, merge, &x, m, imin(SELECT_ROWS, r->out.n - m));
    run_release(r, mark);
    return some && !measuring(r);
}

/* Row m of the pass's output, in lane h: pages that the guess selects, and those without a summary, are expected. */
static void row_expects(const Run *r, const Slot *s, Reading *x, int m, int h, const real *q, int group, real scale) {
    const Batch *b = r->batch;
    const int row = r->out.idx[m], lane = b->seq[b->of[row]] * s->t.s.lanes + h, P = s->t.P, lo = s->t.lo[lane],
              hi = s->t.hi[lane], first = lo / P, all = row_judged(s, x, r, m, h);
    int older = 0;
    for (int at = first; at * P < hi; at++) x->leave[at - first] = false;
    for (int i = 0; i < all; i++)
        if (s->summed[page_at(s, lane, x->page[i].at)]) x->page[older++].at = x->page[i].at;
    const int most = pages_read(&s->policy, b->pos[row] + 1);
    if (pages_judged(&s->policy, older, most))
        reading_leaves(s, &s->policy, x, lane, q, group, scale, older, imin(older, most));
    for (int at = first; at * P < hi; at++)
        if (!x->leave[at - first]) tier_expect(s, page_at(s, lane, at));
}
void kv_expect(Run *r, const Slot *s, Tensor q, AttnSpec spec) {
    const RunMark mark = run_mark(r);
    const int H = spec.heads, K = s->t.s.lanes;
    if (!s->policy.read || !(tier_expects(s) || measuring(r))) return;
    Reading x = reading_place(r, s);
    const Tensor guess = host_view(r, q, true);
    for (int m = 0; m < r->out.n && !measuring(r); m++)
        for (int h = 0; h < K; h++)
            row_expects(r, s, &x, m, h, R(guess) + (size_t)(m * H + h * (H / K)) * (size_t)s->t.s.kdim, H / K,
                        spec.scale);
    run_release(r, mark);
}
