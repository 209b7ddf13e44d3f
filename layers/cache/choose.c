/* choose.c: between two passes a policy chooses the rows of lanes that stay: the queries that it asks for, what they
 * say about each row, the choice. */
#include "aqua.h"
#include "slot.h"
#include "ops/salient.h"
#include "ops/host.h"

/* ---- queries -----------------------------------------------------------------------------------------------------*/

/* Where the query of a position is kept, when the newest is that of another; -1: nowhere. */
static int choose_place(const Slot *s, int pos, int newest) {
    if (!s->chosen) return salient_probe(s->t.s.codec, pos);
    return pos > newest - s->queries ? pos % s->queries : -1;
}
void kv_ask(Run *r, Slot *s, const Probe *p, int at, const int *accept) {
    const Batch *b = r->batch;
    const size_t K = (size_t)s->t.s.lanes, all = (size_t)s->t.s.heads, own = (size_t)p->q.n[1], D = (size_t)s->t.s.kdim,
                 each = own / K;
    RunMark mark = run_mark(r);
    const size_t most = (size_t)p->q.n[0] * K, bytes = most * sizeof(size_t);
    size_t *to = arena_take(r->host, bytes, "places of queries"), *from = arena_take(r->host, bytes, "queries"),
           *wide_to = arena_take(r->host, bytes, "places of queries"),
           *wide_from = arena_take(r->host, bytes, "queries");
    int n = measuring(r) ? (int)most : 0;
    for (int m = 0; m < p->rows.n && !measuring(r); m++) {
        const int row = p->rows.idx[m], q = b->of[row], end = accept ? b->off[q] + accept[q] : b->off[q + 1];
        /* of the document that continues, and none whose place a later one takes */
        if (row >= end || (b->first[end - 1] >= 0 && row < b->first[end - 1])) continue;
        const int kept = choose_place(s, b->pos[row], b->pos[end - 1]);
        if (kept < 0) continue;
        const size_t place = (size_t)(s->replays ? 0 : b->seq[q]) * (size_t)s->queries + (size_t)kept;
        for (size_t h = 0; h < K; h++, n++) {
            to[n] = place * all + h * (all / K) + (size_t)at, from[n] = (size_t)m * own + h * each;
            wide_to[n] = to[n] * D, wide_from[n] = from[n] * D;
        }
    }
    r->ops->move(r, s->asked, wide_to, p->q, wide_from, n, (int)(each * D));
    r->ops->move(r, s->asked_lse, to, p->lse, from, n, (int)each);
    run_release(r, mark);
}
/* What n queries of the sequence from position `from` on say about its rows: (lanes, rows), of the host. */
static Tensor choose_ask(Run *r, const Slot *s, const PolicyCfg *p, int seq, int from, int n, int rows) {
    const PolicyAsk *ask = &p->of->ask;
    const ColReduce queries = ask->peaks && p->peak ? COL_MAX : ask->queries;
    const int heads = s->t.s.heads, first = measuring(r) || s->replays ? 0 : seq * s->queries;
    Tensor stat = SCRATCH(r, "column statistics", s->t.s.lanes, rows),
           q = TENSOR(R(s->asked) + (size_t)first * (size_t)heads * (size_t)s->t.s.kdim, REAL, s->queries, heads,
                      s->t.s.kdim),
           lse = TENSOR(R(s->asked_lse) + (size_t)first * (size_t)heads, REAL, s->queries, heads);
    if (s->tier && !measuring(r)) tier_stage_sequence(s, seq);
    r->ops->colstat(r, stat, q, lse, kv_lanes_there(s),
                    (ColStat){seq, from, n, queries, ask->heads, ask->value, ask->older});
    return host_view(r, stat, true);
}

void kv_turns(Slot *s, const Rope *turn) {
    s->turn = turn;
    free(s->turns);
    s->t.turns = s->turns = s->t.nblocks && !s->t.s.alias ? blocks_turns(s->t.s.codec, turn) : NULL;
}
/* What was kept of n queries, oldest first: themselves, or their lse. The caller frees it. */
static real *choose_queries(const Slot *s, Tensor asked, int seq, int from, int n) {
    const size_t each = (size_t)s->t.s.heads * (size_t)(asked.rank == 3 ? s->t.s.kdim : 1), bytes = each * sizeof(real);
    const char *ring = (const char *)asked.p + (size_t)seq * (size_t)s->queries * bytes;
    real *out = xcalloc(zmax(1, (size_t)n * each), sizeof *out);
    for (int i = 0; i < n;) { /* the ring ends once at most */
        const int at = (from + i) % s->queries, run = imin(n - i, s->queries - at);
        if (s->dev)
            device_read(s->dev, out + (size_t)i * each, ring + (size_t)at * bytes, (size_t)run * bytes);
        else
            memcpy(out + (size_t)i * each, ring + (size_t)at * bytes, (size_t)run * bytes);
        i += run;
    }
    return out;
}

/* ---- a slot's rows -----------------------------------------------------------------------------------------------*/

typedef struct {
    int pos, row;
} Placed;
/* Orders n rows by position, digit by digit: sorts by comparison, here and of scores, were a fifth of a prompt under
 * h2o. */
static void oldest_first(Placed *row, int n) {
    enum { BITS = 10, DIGITS = 1 << BITS };
    Placed *from = row, *to = xcalloc((size_t)n + 1, sizeof *to), *spare = to;
    int most = 0;
    for (int i = 0; i < n; i++) most = imax(most, row[i].pos);
    for (int shift = 0; most >> shift; shift += BITS) {
        int at[DIGITS + 1] = {0};
        for (int i = 0; i < n; i++) at[(from[i].pos >> shift) % DIGITS + 1]++;
        for (int d = 0; d < DIGITS; d++) at[d + 1] += at[d];
        for (int i = 0; i < n; i++) to[at[(from[i].pos >> shift) % DIGITS]++] = from[i];
        Placed *const other = from;
        from = to, to = other;
        if (shift + BITS >= 31) break;
    }
    if (from != row) memcpy(row, from, (size_t)n * sizeof *row);
    free(spare);
}

/* The same of a codec that stores rows together, to `out`. */
static void lane_part_blocks(const Slot *s, int lane, int n, const Placed *order, const real *kept, bool values,
                             real *out) {
    const KvShape *k = &s->t.s;
    const int lo = s->t.lo[lane], P = s->t.P;
    const size_t w = (size_t)(values ? k->vdim : k->kdim), rows = (size_t)P;
    real *keys = xcalloc(rows * (size_t)(k->kdim + k->vdim), sizeof *keys), *vals = keys + rows * (size_t)k->kdim;
    for (int i = 0, page = -1; i < n; i++) {
        const int row = lo + order[i].row, own = *slot_entry(s, lane, row);
        if (kept && kept[i] != 0) continue;
        if (own != page) blocks_decode(&s->t, page = own, keys, values ? vals : NULL);
        memcpy(out, (values ? vals : keys) + (size_t)(row % P) * w, w * sizeof *out);
        out += w;
    }
    free(keys);
}
/* Keys or values of a lane, decoded, in this order, (n,width); unless `kept` is NULL, of rows whose number there is 0
 * alone. */
static void lane_part(const Slot *s, int lane, int n, const Placed *order, const real *kept, bool values, real *out) {
    const KvShape *k = &s->t.s;
    const int lo = s->t.lo[lane], width = values ? k->vdim : k->kdim;
    const size_t bytes = values ? value_bytes(k) : key_bytes(k), w = (size_t)width;
    CHECK(bytes, "values that are part of keys");
    if (s->t.nblocks) {
        lane_part_blocks(s, lane, n, order, kept, values, out);
        return;
    }
    const bool here = !s->dev && !s->tier; /* the host reads the rows where they lie */
    char *raw = here ? NULL : xcalloc(zmax(1, (size_t)n * bytes), 1);
    for (int r = 0; r < n && !here;) { /* parts lie one after the other in a page */
        const int run = imin(n - r, s->t.P - (lo + r) % s->t.P);
        const size_t place = slot_place_of(s, lane, lo + r);
        slot_read(s, values ? slot_value(s, place) : slot_key(s, place), raw + (size_t)r * bytes, (size_t)run * bytes);
        r += run;
    }
    for (int i = 0; i < n; i++) {
        if (kept && kept[i] != 0) continue;
        const size_t place = here ? slot_place_of(s, lane, lo + order[i].row) : 0;
        const char *part = here ? (const char *)s->t.data.p + (values ? slot_value(s, place) : slot_key(s, place))
                                : raw + (size_t)order[i].row * bytes;
        part_decode(k, out, part, values, lane % k->lanes, order[i].pos);
        out += w;
    }
    free(raw);
}
/* Decoded keys and values of the lanes of a slot: the memory serves one slot after the other, since the
 * system zeroes every page of new memory. */
typedef struct {
    size_t n;
    real *p;
} Room;
static real *room_for(Room *x, size_t n) {
    if (n <= x->n) return x->p;
    free(x->p);
    x->p = xrealloc(NULL, n, sizeof *x->p), x->n = n;
    return x->p;
}
/* The rows of a lane by position: order[i].row is that of the lane, counted from its lo. key, value: room for what the
 * policy needs of them. */
static void lane_open(const Cache *c, const Slot *s, int lane, int budget, const real *stat, int next, PolicyLane *l,
                      Placed *order, real *key, real *value) {
    const int lo = s->t.lo[lane];
    int n = s->t.hi[lane] - lo;
    const real *scores = s->dev ? c->scores : present(s->score) ? R(s->score) : NULL;
    const size_t m = (size_t)n + 1;
    int *pos = xcalloc(m, sizeof *pos);
    real *mine = stat ? xcalloc(m, sizeof *mine) : NULL;
    *l = (PolicyLane){.pos = pos, .stat = mine, .budget = budget};
    l->score = xcalloc(m, sizeof(real)), l->stays = xcalloc(m, sizeof(bool));
    if (s->kept) l->kept = xcalloc(m, sizeof(real));
    for (int row = 0, all = n; row < all; row++) {
        const int at = s->t.pos[slot_place_of(s, lane, lo + row)];
        if (row == 0) n = 0;
        if (at != ROW_GONE) order[n++] = (Placed){at, row};
    }
    l->n = n;
    oldest_first(order, n);
    for (int i = 0; i < n; i++) {
        const size_t at = slot_place_of(s, lane, lo + order[i].row);
        pos[i] = order[i].pos;
        if (mine) mine[i] = stat[order[i].row];
        if (present(s->score)) l->score[i] = scores[at];
        if (s->kept) l->kept[i] = s->kept[at];
        l->stays[i] = pos[i] < c->policy.sinks || pos[i] >= next - c->policy.window;
    }
    const unsigned needs = c->policy.of->needs;
    const real *kept = needs & NEED_NEW ? l->kept : NULL;
    if (needs & NEED_KEYS) lane_part(s, lane, n, order, kept, false, key), l->key = key;
    if (needs & NEED_VALUES) lane_part(s, lane, n, order, kept, true, value), l->value = value;
}
static void lane_close(PolicyLane *l) {
    free((void *)l->pos), free((void *)l->stat), free(l->kept), free(l->score), free(l->stays);
}
/* Numbers that were kept go back to the rows, which are this lane's alone from now on. */
static void lane_keep_numbers(Slot *s, int lane, const PolicyLane *l, const Placed *order) {
    for (int i = 0; i < l->n && s->kept; i++) {
        const int row = s->t.lo[lane] + order[i].row;
        if (s->kept[slot_place_of(s, lane, row)] == l->kept[i]) continue;
        slot_own_page(s, lane, row);
        s->kept[slot_place_of(s, lane, row)] = l->kept[i];
    }
}
static void lane_keep(Choice *c, int h, const void *with) { (void)with, policy_keep(&c->lane[h]); }
/* Returns the new hi. */
static int lane_evict(Cache *c, Slot *s, int lane, const PolicyLane *l, const Placed *order) {
    const int lo = s->t.lo[lane];
    bool *keep = xcalloc((size_t)(s->t.hi[lane] - lo) + 1, sizeof *keep);
    for (int i = 0; i < l->n; i++) keep[order[i].row] = l->stays[i];
    const int hi = s->t.nblocks ? blocks_evict(s, lane, keep) : evict_rows(c, s, lane, lo, s->t.hi[lane], keep);
    free(keep);
    return hi;
}
/* What a replay said about the rows of a sequence: as choose_ask. */
static Tensor choose_replayed(Run *r, const Cache *c, const Slot *s, int seq, int lanes, int rows) {
    const int K = s->t.s.lanes;
    const Tensor stat = arena_tensor(r->host, "column statistics", REAL, 2, (int[]){K, rows});
    for (int h = 0; h < K; h++)
        for (int lane = seq * K + h, row = s->t.lo[lane]; row < s->t.hi[lane]; row++) R(stat)
    [(size_t)h * (size_t)rows + (size_t)(row - s->t.lo[lane])] =
        replay_score(c, lanes + h, s->t.pos[slot_place_of(s, lane, row)]);
    return stat;
}
/* One sequence of one slot, at a length of `next`, `slot`-th of `slots` that the policy suits, whose lanes come after
 * so many of slots before it. */
static void choose_slot(Run *r, Cache *c, Slot *s, int slot, int slots, int lanes, int seq, int next, bool evicts,
                        Room *room) {
    const Policy *of = c->policy.of;
    const int K = s->t.s.lanes, first = seq * K, rows = policy_slot_rows(&c->policy, next, slot, slots);
    const bool asks = of->ask.whom != ASK_NOBODY && !(of->needs & NEED_QUERIES),
               divides = c->replay && policy_whom(&c->policy) == ASK_REPLAY;
    int most = 0, there = 0, from = next - s->queries; /* most: with those of a block that are gone */
    for (int h = 0; h < K; h++) {
        most = imax(most, s->t.hi[first + h] - s->t.lo[first + h]);
        there = imax(there, kv_rows(s, seq, h));
    }
    if (of->ask.whom != ASK_ALL && !c->replay && !of->varies && there <= rows) return; /* all rows stay */
    if (of->ask.whom == ASK_ALL) { /* those since the last time: each is asked once, and a ring keeps no more of them */
        CHECK(next - c->observed[seq] <= s->queries,
              "policy %s: a pass of sequence %d ended at length %d, not at the multiple of %d before it", of->name, seq,
              next, s->queries);
        from = c->observed[seq];
    }
    from = imax(0, from);
    RunMark mark = run_mark(r);
    Tensor stat = c->replay ? choose_replayed(r, c, s, seq, lanes, imax(1, most))
                  : asks    ? choose_ask(r, s, &c->policy, seq, from, next - from, imax(1, most))
                            : ABSENT;
    PolicyLane *lane = xcalloc((size_t)K, sizeof *lane);
    Placed *order = xcalloc((size_t)K * (size_t)(most + 1), sizeof *order);
    Choice x = {.p = &c->policy,
                .slot = slot,
                .slots = slots,
                .heads = s->t.s.heads,
                .next = next,
                .queries = next - from,
                .lanes = K,
                .kdim = s->t.s.kdim,
                .vdim = s->t.s.vdim,
                .threads = device_threads(r->dev),
                .lane = lane,
                .turn = s->turn};
    const size_t D = of->needs & NEED_KEYS ? (size_t)x.kdim : 0, Dv = of->needs & NEED_VALUES ? (size_t)x.vdim : 0,
                 rows_all = (size_t)K * (size_t)most;
    real *key = room_for(room, zmax(1, rows_all * (D + Dv))), *value = key + rows_all * D, *q = NULL, *lse = NULL;
    if (of->needs & NEED_QUERIES) {
        x.q = q = choose_queries(s, s->asked, seq, from, next - from);
        x.lse = lse = choose_queries(s, s->asked_lse, seq, from, next - from);
    }
#pragma omp parallel for schedule(dynamic) num_threads(x.threads) if (!s->dev && !s->tier)
    for (int h = 0; h < K; h++)
        lane_open(c, s, first + h, divides ? replay_rows(c, lanes + h) : rows,
                  asks ? R(stat) + (size_t)h * (size_t)stat.n[1] : NULL, next, &lane[h],
                  order + (size_t)h * (size_t)(most + 1), key + (size_t)h * (size_t)most * D,
                  value + (size_t)h * (size_t)most * Dv);
    run_release(r, mark);
    if (of->select) of->select(&x);
    if (c->policy.lanes) c->policy.lanes->divide(&x);
    free(q), free(lse);
    if (evicts) policy_each_lane(&x, lane_keep, NULL);
    int *hi = xcalloc((size_t)K, sizeof *hi);
    for (int h = 0; h < K; h++) {
        const Placed *own = order + (size_t)h * (size_t)(most + 1);
        lane_keep_numbers(s, first + h, &lane[h], own);
        if (!evicts) continue;
        hi[h] = lane_evict(c, s, first + h, &lane[h], own);
    }
    slot_moves_done(c, s); /* pages are given back when all rows have moved */
    for (int h = 0; h < K; h++) {
        if (evicts) slot_show(s, first + h, s->t.s0[first + h], s->t.lo[first + h], hi[h]);
        lane_close(&lane[h]);
    }
    free(hi), free(lane), free(order);
}

void kv_replayed(Run *r, Cache *c, int from, int n, int lo, int hi) {
    if (c->mirror) dirty_copy_flush(c->mirror); /* the device counts in the tables as they are now */
    for (int i = 0, lanes = 0; i < c->nslots; i++) {
        const Slot *s = &c->slot[i];
        if (!s->chosen) continue;
        const int K = s->t.s.lanes, first = c->spare * K;
        int most = 1;
        for (int h = 0; h < K; h++) most = imax(most, s->t.hi[first + h] - s->t.lo[first + h]);
        RunMark mark = run_mark(r);
        replay_see(c, s, lanes, choose_ask(r, s, &c->policy, c->spare, from, n, most), lo, hi);
        run_release(r, mark);
        lanes += K;
    }
}

/* ---- when --------------------------------------------------------------------------------------------------------*/

/* A sequence whose document has come to a length of `next` at which the policy acts. */
typedef struct {
    int seq, next;
    bool evicts;
} Due;
static void choose(Run *r, Cache *c, const Due *due, int n) {
    int slots = 0, slot = 0, lanes = 0;
    Room room = {0};
    for (int i = 0; i < c->nslots; i++) slots += c->slot[i].chosen;
    if (c->replay && n && policy_whom(&c->policy) == ASK_REPLAY) replay_divide(c, due->seq, slots);
    if (c->mirror) dirty_copy_flush(c->mirror); /* the device counts in the tables as they are now */
    for (int i = 0; i < c->nslots && n; i++) {
        Slot *s = &c->slot[i];
        if (!s->chosen) continue;
        /* no sequence's choice changes what is read of another's rows */
        if (s->dev && present(s->score)) device_read(s->dev, c->scores, s->score.p, tensor_bytes(s->score));
        for (int q = 0; q < n; q++)
            choose_slot(r, c, s, slot, slots, lanes, due[q].seq, due[q].next, due[q].evicts, &room);
        slot++, lanes += s->t.s.lanes;
    }
    free(room.p);
    for (int q = 0; q < n; q++) c->observed[due[q].seq] = due[q].next;
}
static void choose_measure(Run *r, const Cache *c) {
    for (int i = 0; i < c->nslots; i++) {
        const Slot *s = &c->slot[i];
        RunMark mark = run_mark(r);
        if (s->chosen && s->queries && !(c->policy.of->needs & NEED_QUERIES))
            choose_ask(r, s, &c->policy, 0, 0, 0, s->t.maxpages * s->t.P);
        run_release(r, mark);
    }
}
/* After a pass that came to the end of a block, and after what was chosen there, full pages of rows become blocks. */
static void choose_store(const Cache *c, Slot *s, const Batch *b, const int *accept) {
    for (int q = 0; q < b->B; q++) {
        const int to = accept ? b->off[q] + accept[q] : b->off[q + 1], seq = b->seq[q];
        if (to == b->off[q] || (b->pos[to - 1] + 1) % s->t.P) continue;
        for (int h = 0; h < s->t.s.lanes; h++)
            blocks_store(s, seq * s->t.s.lanes + h, s->keeps_computed && !c->prompted[seq]);
    }
}
void kv_policy(Run *r, Cache *c, const Batch *b, const int *accept) {
    if (c->chain) chain_store(r, c->chain, b, accept);
    const int cut = policy_cut(&c->policy), every = policy_every(&c->policy);
    for (int q = 0; q < b->B && c->after && !measuring(r); q++) {
        const int to = accept ? b->off[q] + accept[q] : b->off[q + 1];
        if (to > b->off[q] && b->first[to - 1] >= 0) c->after[b->seq[q]] = INT32_MAX;
    }
    if (!policy_acts(&c->policy)) return;
    if (measuring(r)) {
        choose_measure(r, c);
        return;
    }
    if (policy_feeds(&c->policy)) return; /* not before tokens were fed: kv_prompt_asked, kv_prompt_ends */
    Due *due = xcalloc((size_t)b->B, sizeof *due);
    int n = 0;
    for (int q = 0; q < b->B; q++) {
        const int to = accept ? b->off[q] + accept[q] : b->off[q + 1];
        if (to == b->off[q]) continue;
        const int first = b->first[to - 1], next = b->pos[to - 1] + 1,
                  before = b->pos[first >= 0 ? first : b->off[q]]; /* length of the document before the pass */
        if (first >= 0) c->observed[b->seq[q]] = 0;
        if (first >= 0 && c->prompted) c->prompted[b->seq[q]] = false;
        if (cut && next / cut > before / cut) due[n++] = (Due){b->seq[q], next, every && next / every > before / every};
    }
    if (n) choose(r, c, due, n);
    free(due);
    for (int i = 0; i < c->nslots && c->block; i++)
        if (c->slot[i].chosen && c->slot[i].t.nblocks) choose_store(c, &c->slot[i], b, accept);
}
void kv_prompt_asked(Run *r, Cache *c, int seq, int next) {
    choose(r, c, &(Due){seq, next, true}, 1);
    kv_replay_drop(c);
}
void kv_prompt_ends(Run *r, Cache *c, int seq, int next) {
    if (c->after && next > 0) c->after[seq] = next;
    if (policy_once(&c->policy) && next > 0) choose(r, c, &(Due){seq, next, true}, 1);
    if (c->prompted) c->prompted[seq] = true;
    for (int i = 0; i < c->nslots; i++)
        for (int h = 0; h < c->slot[i].t.s.lanes; h++) blocks_forget(&c->slot[i], seq * c->slot[i].t.s.lanes + h);
    kv_replay_drop(c);
}
