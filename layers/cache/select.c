/* select.c: which pages a step reads, where a policy says so (Policy.judge). A query after its sequence's prompt reads
 * the pages with rows among its newest `recent`, those that are not full, and of the others the ones that the policy
 * gives the highest scores. What it reads is a table of pages of its own, which Ops.attend_lanes takes for a lane's. */
#include "slot.h"
#include "ops/host.h"

/* Queries that select at a time. */
enum { SELECT_ROWS = 16 };
static int page_at(const Slot *s, int lane, int at) {
    return s->t.table[(size_t)lane * (size_t)s->t.maxpages + (size_t)(at % s->t.maxpages)];
}
/* Positions of the newest and the oldest row of a full page. */
typedef struct {
    int newest, oldest;
} PageAge;
static PageAge page_age(const Slot *s, int page) {
    const int *pos = s->t.pos + (size_t)page * (size_t)s->t.P;
    PageAge age = {pos[0], pos[0]};
    if (s->summed[page]) return (PageAge){s->newest[page], s->oldest[page]};
    for (int r = 1; r < s->t.P; r++) age = (PageAge){imax(age.newest, pos[r]), imin(age.oldest, pos[r])};
    return age;
}
/* What the policy keeps of a full page. keys: scratch for those of a page. */
static const real *page_summary(const Slot *s, int page, real *keys) {
    const KvShape *k = &s->t.s;
    const size_t D = (size_t)k->kdim, P = (size_t)s->t.P;
    real *out = s->summary + policy_summary(&s->policy, k->kdim) * (size_t)page;
    if (s->summed[page]) return out;
    for (size_t r = 0; r < P; r++) {
        const char *part = (const char *)s->t.data.p + slot_key(s, (size_t)page * P + r);
        if (k->codec)
            k->codec->decode(k->codec, keys + r * D, part, k->kdim);
        else
            memcpy(keys + r * D, part, D * sizeof *keys);
    }
    s->policy.read->summary(keys, s->t.P, k->kdim, out);
    const PageAge age = page_age(s, page);
    s->newest[page] = age.newest, s->oldest[page] = age.oldest;
    s->summed[page] = true;
    return out;
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
        x->summary[i] = page_summary(s, page_at(s, lane, x->page[i].at), x->keys), x->score[i] = 0;
    p->read->judge(&c);
    for (int i = 0; i < older; i++)
        x->page[i].score = x->score[i] == x->score[i] ? x->score[i] : -(real)INFINITY; /* NaN has no order */
    ranked_select(x->page, older, c.most);
    for (int i = c.most; i < older; i++) x->leave[x->page[i].at - first] = true;
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
    *s->read += (size_t)(t->hi[to] - t->lo[to]) * row_bytes(&s->t.s);
}
static Reading reading_place(Run *r, const Slot *s) {
    Reading x = {.t = s->t};
    const size_t K = (size_t)s->t.s.lanes, rows = SELECT_ROWS, one = sizeof(int), pages = (size_t)s->t.maxpages;
    int *mem = arena_take(r->host, (3 * rows * K + 6 * rows + 1) * one, "rows that select");
    x.t.s0 = mem, x.t.lo = mem + rows * K, x.t.hi = mem + 2 * rows * K, mem += 3 * rows * K;
    x.seq = mem, x.of = mem + rows, x.pos = mem + 2 * rows, x.first = mem + 3 * rows, x.idx = mem + 4 * rows;
    x.off = mem + 5 * rows;
    x.t.table = arena_take(r->host, rows * K * pages * one, "pages to read");
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
/* Rows m.. of the pass's output, n of them. */
static void select_some(Run *r, const Slot *s, const Kv *pass, Tensor o, Tensor lse, Tensor q, AttnSpec spec,
                        bool merge, Reading *x, int m, int n) {
    const Batch *b = r->batch;
    const int H = spec.heads, K = s->t.s.lanes, Dk = s->t.s.kdim, Dv = s->t.s.vdim;
    const size_t at = (size_t)m * (size_t)H;
    Batch own = {.B = n, .N = n, .off = x->off, .seq = x->seq, .of = x->of, .pos = x->pos, .first = x->first};
    Run v = *r;
    q = TENSOR(R(q) + at * (size_t)Dk, REAL, n, H, Dk);
    const real *judges = s->policy.read->guesses ? R(r->guess) + at * (size_t)Dk : R(q);
    for (int i = 0; i < n && !measuring(r); i++) {
        const int row = r->out.idx[m + i], seq = b->seq[b->of[row]];
        const bool selects = row_selects(s, b, row);
        x->seq[i] = x->of[i] = x->idx[i] = x->off[i] = i, x->pos[i] = b->pos[row];
        x->first[i] = b->first[row] < 0 ? -1 : i;
        for (int h = 0; h < K; h++)
            reading_lane(s, &s->policy, x, i, h, seq * K + h, judges + (size_t)(i * H + h * (H / K)) * (size_t)Dk,
                         H / K, spec.scale, selects);
    }
    if (!measuring(r)) x->off[n] = n;
    own.history = true, own.id = b->id;
    v.batch = &own, v.in = v.out = (RowList){n, x->idx};
    r->ops->attend_lanes(&v, TENSOR(R(o) + at * (size_t)Dv, REAL, n, H, Dv), TENSOR(R(lse) + at, REAL, n, H), q, &x->t,
                         pass, spec, merge);
}
bool kv_selects(const Cache *c, const Batch *b) {
    for (int i = 0; c->after && i < b->N; i++)
        if (b->first[i] < 0 && b->pos[i] >= c->after[b->seq[b->of[i]]]) return true;
    return false;
}
/* Whether a row of the pass leaves a page out. */
static bool select_any(const Slot *s, Reading *x, const Run *r) {
    const Batch *b = r->batch;
    for (int m = 0; m < r->out.n; m++) {
        const int row = r->out.idx[m], seq = b->seq[b->of[row]];
        for (int h = 0; h < s->t.s.lanes && row_selects(s, b, row); h++)
            if (pages_judged(&s->policy, pages_older(s, seq * s->t.s.lanes + h, b->pos[row], x->page),
                             pages_read(&s->policy, b->pos[row] + 1)))
                return true;
    }
    return false;
}

bool select_attend(Run *r, const Slot *s, const Kv *pass, Tensor o, Tensor lse, Tensor q, AttnSpec spec, bool merge) {
    const RunMark mark = run_mark(r);
    if (!s->policy.read || spec.window || (s->policy.read->guesses && !present(r->guess))) return false;
    Reading x = reading_place(r, s);
    const bool some = measuring(r) || select_any(s, &x, r);
    for (int m = 0; some && m < (measuring(r) ? 1 : r->out.n); m += SELECT_ROWS)
        select_some(r, s, pass, o, lse, q, spec, merge, &x, m, imin(SELECT_ROWS, r->out.n - m));
    run_release(r, mark);
    return some && !measuring(r);
}
