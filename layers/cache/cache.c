/* cache.c: the passes of a cache: pages for the new rows, rows that are stored; memory. */
#include "aqua.h"
#include "codec.h"
#include "slot.h"
#include "ops/host.h"
#include "ops/text.h"

enum { PAGE_ROWS = 64 };

Slot *kv_slot(const Cache *c, int i) {
    CHECK(i >= 0 && i < c->nslots, "slot %d of %d", i, c->nslots);
    return &c->slot[i];
}

/* ---- a pass ------------------------------------------------------------------------------------------------------*/

bool kv_begin(Cache *c, const Batch *b, Err *e) {
    for (int q = 0; q < b->B; q++) {
        int far = -1; /* of all rows, not the last: a document that ends in this pass may be accepted in part */
        CHECK(b->seq[q] >= 0 && b->seq[q] < c->nseq, "sequence %d of %d", b->seq[q], c->nseq);
        for (int row = b->off[q]; row < b->off[q + 1]; row++) far = imax(far, b->pos[row]);
        for (int i = 0; i < c->nslots; i++)
            if (far >= c->slot[i].max_tokens)
                return err_input(
                    e, "sequence %d: position %d does not fit the cache of %d tokens; open it with a longer context", q,
                    far, c->slot[i].max_tokens);
    }
    for (int i = 0; i < c->nslots; i++)
        for (int q = 0; q < b->B; q++)
            for (int h = 0; h < c->slot[i].t.s.lanes; h++) {
                Slot *s = &c->slot[i];
                int lane = b->seq[q] * s->t.s.lanes + h, hi = s->t.hi[lane], n = b->off[q + 1] - b->off[q];
                CHECK(hi + n - s->t.s0[lane] <= (s->t.maxpages - 1) * s->t.P, "lane of %d rows, %d more",
                      hi - s->t.s0[lane], n);
                if (s->t.nblocks) {
                    blocks_begin(s, lane, b, q);
                    continue;
                }
                for (int row = hi; row < hi + n; row = (row / s->t.P + 1) * s->t.P) slot_own_page(s, lane, row);
            }
    if (c->mirror) dirty_copy_flush(c->mirror);
    for (int i = 0; i < c->nslots; i++)
        if (c->slot[i].read) *c->slot[i].read = 0;
    if (!kv_sound(c, e)) return false; /* a page was copied */
    if (c->tier) tier_begin(c->tier, b);
    if (c->chain) chain_begin(c->chain);
    return true;
}

void kv_feed(Cache *c, const Batch *b, const int *tok) {
    if (c->ranks) row_ranks_feed(c->ranks, b, tok);
}

/* Whether row j of the pass, of which those before `end` are accepted, evicts its predecessor. */
static bool row_evicts(const Kv *pass, int h, int j, int end) {
    return pass->s.evicts && j < end && R(pass->evicted)[(size_t)j * (size_t)pass->s.lanes + (size_t)h] != 0;
}
/* Numbers that one op moves for all lanes, not as they are met. */
typedef struct {
    size_t *to, *from;
    int n;
} Pieces;
static Pieces cache_pieces(Run *r, int most) {
    size_t bytes = (size_t)most * sizeof(size_t);
    return (Pieces){arena_take(r->host, bytes, "places"), arena_take(r->host, bytes, "rows to store"),
                    measuring(r) ? most : 0};
}
static void cache_piece(Pieces *p, size_t to, size_t from) { p->to[p->n] = to, p->from[p->n++] = from; }
/* Rows of a pass in a slot, and what is carried on: by way of `old`, the rows that stay, and the pass's. */
typedef struct {
    Pieces key, value, score, old, stay, carry;
    Tensor kept, scores;
    char *disk;    /* of a slot on disk: keys, then values, one after the other, on their way there */
    size_t *dense; /* and where they lie in it, as Pieces.to counts */
} Stored;
static Stored stored_begin(Run *r, const Slot *s) {
    const KvShape *k = &s->t.s;
    int n = r->batch->N * k->lanes, kept = r->batch->B * k->lanes * k->carry_rows;
    Stored d = {.key = cache_pieces(r, n),
                .value = cache_pieces(r, n),
                .score = s->score_of ? cache_pieces(r, n) : (Pieces){0}};
    d.old = cache_pieces(r, kept), d.stay = cache_pieces(r, kept), d.carry = cache_pieces(r, kept);
    d.kept = d.scores = ABSENT;
    if (s->score_of) d.scores = SCRATCH(r, "scores of rows", r->batch->N, k->lanes);
    if (kept) d.kept = SCRATCH(r, "rows carried on", kept, k->carry);
    if (slot_on_disk(s)) {
        d.disk = arena_take(r->host, (size_t)n * zmax(key_bytes(k), value_bytes(k)), "rows for the disk");
        d.dense = arena_take(r->host, (size_t)n * sizeof(size_t), "places of rows for the disk");
    }
    return d;
}
/* Rows of the types of numbers are moved as numbers, which rounds them; others are encoded to bytes. */
static bool stored_moves(const Slot *s) {
    const RowsAs as = rows_as(&s->t.s);
    return as == ROWS_REAL || as == ROWS_BF16;
}
/* Bytes of what Pieces.to of keys and values counts. */
static size_t stored_unit(const Slot *s) { return stored_moves(s) ? dtype_size(s->t.data.dtype) : 1; }
static void stored_as(Run *r, const Slot *s, Tensor data, const size_t *to, const Pieces *p, Tensor x, int width) {
    if (stored_moves(s))
        r->ops->move(r, data, to, x, p->from, p->n, width);
    else
        r->ops->encode_rows(r, data, to, x, p->from, p->n, width, s->t.s.codec);
}
/* Keys or values of `bytes` bytes; rows whose places follow each other are one write. */
static void stored_parts(Run *r, const Slot *s, const Stored *d, const Pieces *p, Tensor x, int width, size_t bytes) {
    if (!slot_on_disk(s)) {
        stored_as(r, s, s->t.data, p->to, p, x, width);
        if (s->tier && !measuring(r)) tier_touched(s, 0, (size_t)p->n * bytes);
        return;
    }
    const size_t unit = stored_unit(s), each = bytes / unit;
    const int elements = (int)(bytes / dtype_size(s->t.data.dtype));
    for (int i = 0; i < p->n && !measuring(r); i++) d->dense[i] = (size_t)i * each;
    stored_as(r, s, TENSOR(d->disk, s->t.data.dtype, imax(p->n, 1), elements), d->dense, p, x, width);
    for (int i = 0, run; i < p->n && !measuring(r); i += run) {
        for (run = 1; i + run < p->n && p->to[i + run] == p->to[i + run - 1] + each;) run++;
        tier_write(s, p->to[i] * unit, d->disk + (size_t)i * bytes, (size_t)run * bytes);
    }
}
/* Row `row` of a lane becomes row `from` of the pass's keys and values, when they are moved. */
static size_t stored_put(Stored *d, Slot *s, int lane, int row, size_t from, int pos) {
    const size_t at = slot_place_of(s, lane, row), unit = stored_unit(s);
    cache_piece(&d->key, slot_key(s, at) / unit, from * (size_t)key_stored(&s->t.s));
    cache_piece(&d->value, slot_value(s, at) / unit, from * (size_t)value_stored(&s->t.s));
    if (s->score_of) cache_piece(&d->score, at, from);
    if (s->kept) s->kept[at] = 0;
    if (s->summed) s->summed[at / (size_t)s->t.P] = false;
    slot_set_pos(s, at, pos);
    return at;
}
static void stored_end(Run *r, Slot *s, const Kv *pass, Stored *d) {
    const KvShape *k = &s->t.s;
    if (!k->lanes) return;
    const bool coef = basis_settles(k);
    stored_parts(r, s, d, &d->key, coef ? pass->coef[0] : pass->k, key_stored(k), key_bytes(k));
    if (!k->alias) stored_parts(r, s, d, &d->value, coef ? pass->coef[1] : pass->v, value_stored(k), value_bytes(k));
    if (s->score_of) r->ops->move(r, s->score, d->score.to, d->scores, d->score.from, d->score.n, 1);
    if (!present(d->kept)) return;
    r->ops->move(r, d->kept, d->old.to, s->carry, d->old.from, d->old.n, k->carry);
    r->ops->move(r, s->carry, d->stay.to, d->kept, d->stay.from, d->stay.n, k->carry);
    r->ops->move(r, s->carry, d->carry.to, pass->carry, d->carry.from, d->carry.n, k->carry);
}
/* The newest carry_rows rows of what was carried and the pass's rows from..end-1. */
static void carry_on(const Slot *s, int seq, int h, int from, int end, Stored *d) {
    size_t C = (size_t)s->t.s.carry, K = (size_t)s->t.s.lanes;
    int rows = s->t.s.carry_rows, n = imin(end - from, rows);
    size_t at = ((size_t)seq * K + (size_t)h) * (size_t)rows, newest = ((size_t)(end - n) * K + (size_t)h);
    for (int i = 0; i < rows - n; i++) {
        size_t by = (size_t)d->old.n * C;
        cache_piece(&d->old, by, (at + (size_t)(n + i)) * C);
        cache_piece(&d->stay, (at + (size_t)i) * C, by);
    }
    for (int i = 0; i < n; i++) cache_piece(&d->carry, (at + (size_t)(rows - n + i)) * C, (newest + (size_t)i * K) * C);
}

static void slot_store_evicts(Slot *s, int lane, int row, size_t at, bool evicted) {
    slot_set_evicted(s, at, evicted);
    *slot_row_at(s, lane, s->t.pos[at]) = row;
    s->tail_next[lane] = row;
}
static void cache_append(const Run *r, Slot *s, const Kv *pass, const int *accept, Stored *d) {
    const Batch *b = r->batch;
    int K = s->t.s.lanes, delay = s->t.s.delay;
    for (int q = 0; q < b->B; q++) {
        int from = b->off[q], end = accept ? from + accept[q] : b->off[q + 1];
        if (from == end) continue;
        bool new_document =
            b->first[end - 1] >= 0; /* the last row's document began in this pass: nothing older is looked at again */
        if (new_document) from = b->first[end - 1];
        for (int h = 0; h < K; h++) {
            int lane = b->seq[q] * K + h, w = s->t.hi[lane];
            if (s->t.s.evicts) s->evicts[lane] = !new_document && row_evicts(pass, h, from, end);
            if (s->t.s.carry_rows) carry_on(s, b->seq[q], h, from, end, d);
            if (new_document && s->t.nblocks) w = blocks_first(s, w);
            CHECK(!s->t.nblocks || b->pos[from] / s->t.P == b->pos[end - 1] / s->t.P,
                  "rows at %d to %d of several blocks", b->pos[from], b->pos[end - 1]);
            s->s0_next[lane] = new_document ? w : s->t.s0[lane];
            s->lo_next[lane] = new_document ? w : s->t.lo[lane];
            for (int j = from; j < end; j++) {
                size_t row = (size_t)j * (size_t)K + (size_t)h;
                bool evicted = row_evicts(pass, h, j + 1, end);
                if (evicted && b->pos[end - 1] + 1 - b->pos[j] > delay) continue;    /* no later query sees it */
                if (s->ranks && !row_ranks_hold(&s->ranks->of, b->pos[j])) continue; /* another rank has it */
                size_t at = stored_put(d, s, lane, w++, row, b->pos[j]);
                if (s->t.s.evicts) slot_store_evicts(s, lane, w - 1, at, evicted);
            }
            s->hi_next[lane] = w;
        }
    }
}

void kv_append(Run *r, Slot *s, const Kv *pass, const int *accept) {
    RunMark mark = run_mark(r);
    Stored d = stored_begin(r, s);
    if (s->score_of) s->score_of(r, pass, d.scores);
    if (!measuring(r)) cache_append(r, s, pass, accept, &d);
    stored_end(r, s, pass, &d);
    run_release(r, mark);
}

static void cache_end(Cache *c, Slot *s, const Batch *b, const int *accept) {
    int lanes = s->t.s.lanes;
    /* Pages are given back when all rows have moved: until then what is read stays what it was. */
    for (int settles = 0; settles < 2; settles++) {
        for (int i = 0; i < b->B * lanes; i++) {
            int q = i / lanes, lane = b->seq[q] * lanes + i % lanes, lo = s->lo_next[lane], hi = s->hi_next[lane];
            if (b->off[q] == b->off[q + 1]) continue;
            int to = accept ? b->off[q] + accept[q] : b->off[q + 1];
            bool stored = to > b->off[q];
            if (!settles) {
                const int next = stored ? b->pos[to - 1] + 1 : 0;
                /* of a document that began in this pass all rows are the pass's, none of which has expired */
                if (s->t.s.evicts && stored && b->first[to - 1] < 0)
                    s->hi_next[lane] = evict_decided(c, s, lane, hi, b->pos[b->off[q]], next);
                continue;
            }
            /* the next query is one position on: of a window it sees the newest window-1 rows */
            if (s->t.s.window && stored) lo = imax(lo, hi - (s->t.s.window - 1));
            slot_show(s, lane, s->s0_next[lane], lo, hi);
            if (s->t.nblocks && !s->chosen && !s->chain) blocks_store(s, lane, false); /* else by kv_policy */
        }
        slot_moves_done(c, s);
    }
}
void kv_end(Cache *c, const Batch *b, const int *accept) {
    for (int i = 0; i < c->nslots; i++) cache_end(c, &c->slot[i], b, accept);
}

void kv_drop(Cache *c, int seq) {
    if (c->observed) c->observed[seq] = 0;
    if (c->after) c->after[seq] = INT32_MAX;
    if (c->prompted) c->prompted[seq] = false;
    for (int i = 0; i < c->nslots; i++)
        for (int h = 0; h < c->slot[i].t.s.lanes; h++) slot_show(&c->slot[i], seq * c->slot[i].t.s.lanes + h, 0, 0, 0);
}

/* Rows of the slot can be cut as long as none has left. */
static bool slot_cuts(const Slot *s) {
    const KvShape *k = &s->t.s;
    return !k->lanes || !(k->carry_rows || k->evicts || s->chosen);
}
/* Rows of a lane after the first `tokens` tokens of a document, none of which has left. */
static int slot_first_rows(const Slot *s, int tokens) {
    return s->ranks ? row_ranks_held(&s->ranks->of, tokens) : tokens;
}
static bool slot_rewinds(const Slot *s, int seq, int to, bool marked) {
    const KvShape *k = &s->t.s;
    if ((k->state && !marked) || !slot_cuts(s)) return false;
    for (int lane = seq * k->lanes; lane < (seq + 1) * k->lanes; lane++) {
        const int rows = slot_first_rows(s, to), has = s->t.hi[lane] - s->t.s0[lane];
        CHECK(rows < has || (s->ranks && rows == has), "%d tokens, %d rows of %d", to, rows, has);
        if (s->t.lo[lane] != s->t.s0[lane]) return false; /* rows have left the window */
    }
    return true;
}
/* The state of a sequence between the slot and what a mark keeps of it, from which the next slot's follows. */
static char *slot_mark(const Slot *s, int seq, char *mark, bool save) {
    const size_t n = (size_t)s->t.s.state * sizeof(real);
    if (n) slot_bytes(s, (char *)s->state.p + (size_t)seq * n, mark, n, save);
    return mark + n;
}
size_t kv_mark_bytes(const Cache *c) {
    size_t n = 0;
    for (int i = 0; i < c->nslots; i++) {
        if (!slot_cuts(&c->slot[i])) return 0;
        n += (size_t)c->slot[i].t.s.state * sizeof(real);
    }
    return n;
}
void kv_mark(const Cache *c, int seq, void *mark) {
    char *at = mark;
    for (int i = 0; i < c->nslots; i++) at = slot_mark(&c->slot[i], seq, at, true);
}
int kv_rewind(Cache *c, int seq, int to, const void *mark) {
    const int asked = to;
    for (int i = 0; c->block && i < c->nslots; i++) to = blocks_rewind(&c->slot[i], seq, to);
    if (mark && to != asked) return 0;
    for (int i = 0; to && i < c->nslots; i++)
        if (!slot_rewinds(&c->slot[i], seq, to, mark != NULL)) return 0;
    if (!to) {
        if (!asked) kv_drop(c, seq);
        return 0;
    }
    if (c->observed) c->observed[seq] = imin(c->observed[seq], to);
    if (c->after && to < c->after[seq]) c->after[seq] = INT32_MAX;
    char *at = (char *)mark;
    for (int i = 0; i < c->nslots; i++) {
        Slot *s = &c->slot[i];
        if (mark) at = slot_mark(s, seq, at, false);
        for (int h = 0; h < s->t.s.lanes; h++) {
            const int lane = seq * s->t.s.lanes + h, s0 = s->t.s0[lane];
            slot_show(s, lane, s0, s0, s0 + slot_first_rows(s, to));
        }
    }
    return to;
}
void kv_replay_begin(Cache *c, int seq, int next) {
    CHECK(c->spare >= 0 && seq != c->spare, "no sequence to replay %d in", seq);
    replay_open(c, next);
    kv_fork(c, seq, c->spare);
}
void kv_replay_drop(Cache *c) {
    if (c->replay) kv_drop(c, c->spare);
    replay_close(c);
}

void kv_fork(Cache *c, int from, int to) {
    CHECK(from != to, "sequence %d onto itself", from);
    kv_drop(c, to);
    if (c->observed) c->observed[to] = c->observed[from];
    if (c->after) c->after[to] = c->after[from];
    if (c->prompted) c->prompted[to] = c->prompted[from];
    for (int i = 0; i < c->nslots; i++) slot_share(&c->slot[i], from, to);
}

/* ---- memory ------------------------------------------------------------------------------------------------------*/

/* The tables of all slots first: of a device as far from its region's begin as the host's from theirs. Returns their
 * bytes. */
static size_t cache_place(Cache *c) {
    Arena *host = c->dev ? &c->tables : &c->mem;
    for (int i = 0; i < c->nslots; i++) slot_place_tables(&c->slot[i].t, host);
    size_t bytes = host->used;
    if (c->dev) {
        for (int i = 0; i < c->nslots; i++)
            c->slot[i].there = c->slot[i].t, slot_place_tables(&c->slot[i].there, &c->mem);
        CHECK(c->mem.used == bytes, "%zu bytes of tables, the host's are %zu", c->mem.used, bytes);
        c->words = arena_take(&c->mem, dirty_copy_bytes(bytes), "words of tables");
    }
    for (int i = 0; i < c->nslots; i++) slot_place(&c->slot[i], &c->mem, host);
    if (c->tier) tier_place(c->tier, &c->mem, host);
    if (c->chain) chain_place(c->chain, &c->mem);
    return bytes;
}
bool kv_tier_fits(Device *dev, const KvTier *tier, Err *e) {
    if (!tier || !tier->memory) return true;
    if (!device_apart(dev) && !tier->dir)
        return err_input(e, "--cache-memory needs a folder for rows that do not fit: give --cache-disk DIR, too");
    return !device_apart(dev) || !tier->dir ||
           err_input(e, "--cache-disk: rows of a GPU's cache that do not fit go to the host's memory; leave it out");
}
/* The same without memory: what is needed. With a limit rows of slots go to the tier, of as few as may be. */
static bool cache_measure(Cache *c, const KvTier *tier, int threads, size_t *tables, Err *e) {
    char limit[24], need[24];
    size_t least = SIZE_MAX;
    if (!tier || !tier->memory) return *tables = cache_place(c), true;
    if (!kv_tier_fits(c->dev, tier, e)) return false;
    for (int i = 0; i < c->nslots; i++)
        if (c->slot[i].t.nblocks)
            return err_input(e,
                             "--cache-memory: --cache-dtype %s stores rows in blocks, which stay in memory; leave "
                             "it out or take another codec",
                             c->slot[i].t.s.codec->name);
    c->tier = tier_make(tier, c->dev, threads, c->slot, c->nslots, c->nseq);
    for (int n = tier->least, slots = n; n <= slots; n++) {
        slots = tier_choose(c->tier, n);
        c->mem.used = c->mem.peak = c->tables.used = c->tables.peak = 0;
        *tables = cache_place(c);
        if (c->mem.peak <= tier->memory) return true;
        least = zmin(least, c->mem.peak);
    }
    return err_input(e,
                     "--cache-memory: %zu bytes (%s) are too few: with the rows of all layers %s this cache needs "
                     "%zu bytes (%s) of memory; give at least that, or a shorter context",
                     tier->memory, bytes_text(tier->memory, limit), c->dev ? "in the host's memory" : "on disk", least,
                     bytes_text(least, need));
}

bool kv_open(Cache *c, const KvShape *slots, int nslots, int nseq, int max_tokens, int max_rows, int page_rows,
             bool poison, bool dry, Err *e) {
    return kv_open_at(c, NULL, slots, nslots, nseq, max_tokens, max_rows, page_rows, poison, dry, e);
}
bool kv_open_at(Cache *c, Device *dev, const KvShape *slots, int nslots, int nseq, int max_tokens, int max_rows,
                int page_rows, bool poison, bool dry, Err *e) {
    return kv_open_policy(c, dev, NULL, slots, nslots, nseq, max_tokens, max_rows, page_rows, poison, dry, e);
}
static void slot_choose(const Cache *c, Slot *s) {
    const PolicyCfg *p = &c->policy;
    if (p->read && policy_suits(p, &s->t.s) && !s->t.s.coded) s->policy = *p, s->after = c->after;
    s->chosen = policy_acts(p) && policy_suits(p, &s->t.s);
    s->queries = salient_queries(&s->t.s);
    CHECK(!s->chosen || !s->queries, "a codec and a policy that choose rows");
    if (!s->chosen) return;
    s->t.s.sparse = true;
    s->score_of = p->of->score;
    s->keeps = p->of->keeps;
    s->queries = policy_queries(p);
    s->replays = policy_feeds(p);
}
bool kv_open_policy(Cache *c, Device *dev, const PolicyCfg *policy, const KvShape *slots, int nslots, int nseq,
                    int max_tokens, int max_rows, int page_rows, bool poison, bool dry, Err *e) {
    return kv_open_tier(c, dev, policy, NULL, slots, nslots, nseq, max_tokens, max_rows, page_rows, poison, dry, e);
}
bool kv_open_tier(Cache *c, Device *dev, const PolicyCfg *policy, const KvTier *tier, const KvShape *slots, int nslots,
                  int nseq, int max_tokens, int max_rows, int page_rows, bool poison, bool dry, Err *e) {
    return kv_open_ranks(c, dev, policy, tier, NULL, slots, nslots, nseq, max_tokens, max_rows, page_rows, poison, dry,
                         e);
}
static bool slot_divides(const KvShape *k) { return k->lanes && !k->window; }
/* Whether the rows of such a cache can be divided among ranks. */
static bool cache_divides(Device *dev, const PolicyCfg *policy, const KvTier *tier, const KvRanks *ranks,
                          const KvShape *slots, int nslots, Err *e) {
    int n = 0;
    if (dev) return err_input(e, "--cache-ranks: ranks exchange rows in the memory of the CPU; take --device cpu");
    if (policy_any(policy))
        return err_input(e,
                         "--cache-ranks: a policy chooses among all rows of a layer, and no rank has them; leave out "
                         "it or --policy");
    if (tier && tier->memory)
        return err_input(e, "--cache-ranks: each rank has its rows in memory; leave out it or --cache-memory");
    for (int i = 0; i < nslots; i++) {
        if (slots[i].evicts || slots[i].carry_rows)
            return err_input(e, "--cache-ranks: this model's layers merge or evict rows (dmc, dms), which no rank has "
                                "all of; leave it out");
        if (rows_together(&slots[i]))
            return err_input(e,
                             "--cache-ranks: --cache-dtype %s stores rows of neighbours in blocks, but ranks have "
                             "every other row; take another codec",
                             slots[i].codec->name);
        if (ranks->prompts && slots[i].state)
            return err_input(
                e, "--cache-ranks prompt: layers of this model have a state (kda, mamba2, ...), which needs a "
                   "prompt's tokens one after the other; take --cache-ranks rows");
        n += slot_divides(&slots[i]);
    }
    return n || err_input(e, "--cache-ranks: no layer of this model keeps all rows, so there is nothing to divide; "
                             "leave it out");
}
static bool kv_too_long(int nseq, int max_tokens, Err *e) {
    return err_runtime(e, "out of memory: a cache of %d sequences of %d tokens; fewer or shorter ones need less", nseq,
                       max_tokens);
}
bool kv_open_ranks(Cache *c, Device *dev, const PolicyCfg *policy, const KvTier *tier, const KvRanks *ranks,
                   const KvShape *slots, int nslots, int nseq, int max_tokens, int max_rows, int page_rows, bool poison,
                   bool dry, Err *e) {
    const int threads = dev ? device_threads(dev) : 1;
    if (!device_apart(dev)) dev = NULL;
    if (ranks && ranks->world == 1) ranks = NULL;
    if (ranks && !cache_divides(dev, policy, tier, ranks, slots, nslots, e)) return false;
    const int more = policy_replay_tokens(policy, max_tokens), spare = more ? nseq++ : -1;
    max_tokens += more;
    *c = (Cache){
        .nslots = nslots, .nseq = nseq, .spare = spare, .slot = xcalloc((size_t)nslots, sizeof *c->slot), .dev = dev};
    if (policy) c->policy = *policy;
    if (ranks) c->ranks = row_ranks_open(ranks, max_rows);
    if (policy_acts(policy)) c->observed = xcalloc((size_t)nseq, sizeof(int));
    if (policy_once(policy)) c->prompted = xcalloc((size_t)nseq, sizeof(bool));
    if (c->policy.read) {
        c->after = xcalloc((size_t)nseq, sizeof(int));
        for (int q = 0; q < nseq; q++) c->after[q] = INT32_MAX;
    }
    for (int i = 0; i < nslots; i++) {
        if (dev && (rows_as(&slots[i]) == ROWS_CODED || rows_together(&slots[i]))) {
            kv_close(c);
            return err_input(e, "cache: rows in %s cannot be read on device %s; take another codec or --device cpu",
                             slots[i].codec->name, device_ops(dev)->name);
        }
        const int rows = c->policy.read && !slots[i].coded ? c->policy.page : page_rows ? page_rows : PAGE_ROWS;
        const bool divided = ranks && slot_divides(&slots[i]);
        const int most = divided ? (max_tokens + ranks->world - 1) / ranks->world : max_tokens;
        if (!slot_shape(&c->slot[i], &slots[i], nseq, most, max_rows, rows)) {
            kv_close(c);
            return kv_too_long(nseq, max_tokens, e);
        }
        c->slot[i].dev = dev;
        c->slot[i].max_tokens = max_tokens;
        if (divided) c->slot[i].ranks = c->ranks, c->slot[i].t.s.sparse = true;
        slot_choose(c, &c->slot[i]);
        c->block = imax(c->block, rows_together(&slots[i]));
        CHECK(!rows_together(&slots[i]) || !(slots[i].evicts || (c->slot[i].chosen && policy_feeds(policy))),
              "rows that are stored together leave one by one");
        if (c->slot[i].chosen && rows_together(&slots[i]) && !blocks_shape(&c->slot[i], policy_once(policy))) {
            kv_close(c);
            return kv_too_long(nseq, max_tokens, e);
        }
    }
    blocks_pair(c->slot, nslots);
    c->chain = chain_make(c->slot, nslots);
    CHECK(!c->chain || !tier || !tier->memory, "rows on disk that are predicted");
    size_t tables = 0;
    if (!cache_measure(c, tier, threads, &tables, e)) {
        kv_close(c);
        return false;
    }
    if (dry) return true;
    if (!arena_open_at(&c->mem, dev ? device_memory(dev, false) : NULL, "cache", c->mem.peak, poison, e)) {
        kv_close(c);
        return false;
    }
    if (dev && !arena_open(&c->tables, "tables of the cache", c->tables.peak, poison, e)) {
        kv_close(c);
        return false;
    }
    bool moves = false;
    size_t scores = 0;
    for (int i = 0; i < nslots; i++) {
        moves |= slots[i].evicts || c->slot[i].chosen;
        scores = zmax(scores, tensor_bytes(c->slot[i].score));
    }
    if (dev && scores) c->scores = xcalloc(1, scores);
    if (dev && moves && !slot_moves_open(c, e)) {
        kv_close(c);
        return false;
    }
    cache_place(c);
    if (c->tier && !tier_open(c->tier, e)) {
        kv_close(c);
        return false;
    }
    if (dev && !dirty_copy_open(&c->mirror, dev, c->tables.base, c->mem.base, tables, c->words, e)) {
        kv_close(c);
        return false;
    }
    for (int i = 0; i < nslots; i++) {
        c->slot[i].mirror = c->mirror;
        slot_clear(&c->slot[i]);
    }
    if (c->chain) chain_clear(c->chain);
    return true;
}
void kv_order(Cache *c, int n, const int *slots) {
    if (c->tier) tier_order(c->tier, n, slots);
}
void kv_close(Cache *c) {
    tier_free(c->tier);
    replay_close(c);
    dirty_copy_close(c->mirror);
    arena_close(&c->mem);
    arena_close(&c->tables);
    arena_close(&c->moving);
    free(c->moves);
    free(c->scores);
    free(c->observed);
    free(c->after);
    free(c->prompted);
    for (int i = 0; c->slot && i < c->nslots; i++) free(c->slot[i].turns);
    row_ranks_close(c->ranks);
    chain_free(c->chain);
    free(c->slot);
    *c = (Cache){0};
}

/* ---- reports ----------------------------------------------------------------------------------------------------*/

size_t kv_read(const Cache *c) {
    size_t n = 0;
    for (int i = 0; i < c->nslots; i++) n += c->slot[i].read ? *c->slot[i].read : 0;
    return n;
}
bool kv_sound(const Cache *c, Err *e) {
    return (!c->tier || tier_sound(c->tier, e)) && (!c->ranks || row_ranks_sound(c->ranks, e));
}
KvDisk kv_disk(const Cache *c) {
    KvDisk d = c->tier ? tier_report(c->tier) : (KvDisk){0};
    d.memory = c->mem.size;
    return d;
}
int kv_cut(const Cache *c, int seq) {
    return c->block ? c->block : c->after && c->after[seq] < INT32_MAX ? c->policy.page : 0;
}
int kv_pages(const Slot *s) { return s->t.npages - s->nunused + s->t.nblocks - s->nfree_blocks; }
int kv_rows(const Slot *s, int seq, int lane) {
    lane += seq * s->t.s.lanes;
    if (s->t.nblocks && s->chosen) return blocks_rows(s, lane);
    return s->t.hi[lane] - s->t.lo[lane] + imax(0, imin(s->t.s0[lane] + s->t.s.sinks, s->t.lo[lane]) - s->t.s0[lane]);
}
/* Bytes that a policy keeps with a row of one lane; what a sequence has whatever its rows. */
static size_t cache_number_bytes(const Cache *c, const Slot *s) {
    return s->t.s.lanes ? policy_row_bytes(&c->policy, &s->t.s) / (size_t)s->t.s.lanes : 0;
}
static size_t cache_fixed_bytes(const Cache *c, const Slot *s) {
    return (s->chosen ? policy_state_bytes(&c->policy, &s->t.s) : 0) +
           ((size_t)s->t.s.state + carried(&s->t.s)) * sizeof(real) + salient_state_bytes(&s->t.s);
}
size_t kv_bytes(const Cache *c, int seq) {
    size_t n = c->chain ? chain_bytes(c->chain, seq) : 0;
    for (int i = 0; i < c->nslots; i++) {
        const Slot *s = &c->slot[i];
        for (int h = 0; h < s->t.s.lanes; h++)
            n += slot_lane_bytes(s, seq * s->t.s.lanes + h) + blocks_computed_bytes(s, seq * s->t.s.lanes + h) +
                 (size_t)kv_rows(s, seq, h) * cache_number_bytes(c, s);
        n += cache_fixed_bytes(c, s);
    }
    return n;
}
/* Bytes of rows of a slot that `used` sequences have and that `seen` (pages of P, zero) has not met; a block's are all
 * met with the first. */
static size_t cache_distinct(const Cache *c, const Slot *s, const int *used, bool *seen) {
    const size_t P = (size_t)s->t.P, pages = (size_t)s->t.npages + (size_t)s->t.nblocks;
    bool *whole = xcalloc(pages + 1, sizeof *whole); /* blocks, and pages of rows as computed */
    size_t n = 0;
    for (int lane = 0; lane < slot_lanes(s); lane++) {
        const Lanes *t = &s->t;
        const int s0 = t->s0[lane], lo = t->lo[lane], sinks = imin(s0 + t->s.sinks, lo);
        if (!used[lane / t->s.lanes]) continue;
        for (int row = s0 < sinks ? s0 : lo; row < t->hi[lane]; row = row + 1 == sinks ? lo : row + 1) {
            const size_t at = slot_place_of(s, lane, row);
            const bool coded = at / P >= (size_t)t->npages;
            const int *computed = slot_computed(s, lane, row);
            if (coded && !whole[at / P]) n += block_bytes(&t->s), whole[at / P] = true;
            if (computed && *computed >= 0 && !whole[*computed]) n += page_bytes(s), whole[*computed] = true;
            if (!seen[at] && t->pos[at] != ROW_GONE) n += (coded ? 0 : row_bytes(&t->s)) + cache_number_bytes(c, s);
            seen[at] = true;
        }
    }
    free(whole);
    return n;
}
size_t kv_resident(const Cache *c, const int *used) {
    size_t n = 0, sequences = 0;
    for (int q = 0; q < c->nseq; q++) {
        sequences += used[q] != 0;
        if (c->chain && used[q]) n += chain_bytes(c->chain, q);
    }
    for (int i = 0; i < c->nslots; i++) {
        const Slot *s = &c->slot[i];
        bool *seen = xcalloc(((size_t)s->t.npages + (size_t)s->t.nblocks) * (size_t)s->t.P + 1, sizeof *seen);
        n += cache_distinct(c, s, used, seen) + sequences * cache_fixed_bytes(c, s);
        free(seen);
    }
    return n;
}
