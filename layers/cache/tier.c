/* tier.c: rows of slots that lie apart from the cache's memory: which slots, what a pass reads of them, the buffers
 * that it is read to. */
#include "tier_store.h"

enum { BLOCK = 4096 };

Tier *tier_make(const KvTier *how, Device *dev, int threads, Slot *slots, int nslots, int nseq) {
    Tier *t = xcalloc(1, sizeof *t);
    *t = (Tier){.how = *how, .dev = dev, .threads = threads, .slot = slots, .nslots = nslots, .nseq = nseq};
    t->store = dev ? &tier_host : &tier_disk;
    t->order = xcalloc((size_t)nslots + 1, sizeof *t->order);
    t->reads = xcalloc((size_t)nseq, sizeof *t->reads);
    t->from = xcalloc((size_t)nseq, sizeof *t->from);
    t->seen = xcalloc(2 * (size_t)nseq, sizeof *t->seen);
    t->before = t->seen + nseq;
    for (int i = 0; i < nslots; i++) slots[i].number = i, t->rows += slots[i].t.s.lanes > 0;
    return t;
}
void tier_free(Tier *t) {
    if (!t) return;
    t->store->close(t);
    free(t->order), free(t->reads), free(t->from), free(t->seen), free(t);
}
bool tier_open(Tier *t, Err *e) { return t->store->open(t, e); }

/* ---- which slots -------------------------------------------------------------------------------------------------*/

static size_t tier_bytes(const Slot *s) { return s->t.s.lanes ? (size_t)s->t.npages * page_bytes(s) : 0; }
static void tier_put(Tier *t, Slot *s) {
    s->tier = t, s->at = t->file;
    t->file += (tier_bytes(s) + BLOCK - 1) / BLOCK * BLOCK;
    t->largest = zmax(t->largest, tier_bytes(s)), t->page = zmax(t->page, page_bytes(s));
    t->ndisk++;
}
int tier_choose(Tier *t, int n) {
    t->file = t->largest = t->page = 0, t->ndisk = 0;
    for (int i = 0; i < t->nslots; i++) t->slot[i].tier = NULL;
    for (size_t below = SIZE_MAX, size; t->ndisk < imin(n, t->rows); below = size) {
        int equal = 0, left = imin(n, t->rows) - t->ndisk;
        size = 0;
        for (int i = 0; i < t->nslots; i++)
            if (tier_bytes(&t->slot[i]) < below) size = zmax(size, tier_bytes(&t->slot[i]));
        for (int i = 0; i < t->nslots; i++) equal += tier_bytes(&t->slot[i]) == size;
        left = imin(left, equal);
        for (int i = 0, k = 0; i < t->nslots; i++) {
            if (tier_bytes(&t->slot[i]) != size) continue;
            k++; /* of `equal` ones `left` go, the first as late as may be */
            if ((int64_t)k * left / equal > (int64_t)(k - 1) * left / equal) tier_put(t, &t->slot[i]);
        }
    }
    t->norder = 0;
    for (int i = 0; i < t->nslots; i++)
        if (t->slot[i].tier) t->order[t->norder++] = i;
    return t->rows;
}
void tier_place(Tier *t, Arena *rows, Arena *a) {
    size_t pages = 0;
    t->nstage = imin(t->ndisk, t->how.alone ? 1 : STAGES);
    for (int i = 0; i < t->nslots; i++) {
        Slot *s = &t->slot[i];
        if (!s->tier) continue;
        const size_t n = (size_t)s->t.npages;
        pages = zmax(pages, n);
        s->read_in = s->policy.read ? arena_take(a, n * sizeof *s->read_in, "passes that read pages") : NULL;
        if (s->read_in) memset(s->read_in, 0, n * sizeof *s->read_in);
    }
    t->pages = pages;
    for (int i = 0; i < t->nstage; i++)
        t->stage[i] = (Stage){.p = arena_take(rows, t->largest, "rows of the tier"),
                              .slot = -1,
                              .has = arena_take(a, pages * sizeof(bool), "pages in a buffer")};
    if (!t->ndisk) return;
    t->bounce = arena_take(a, t->page, "a page to copy");
    t->piece = arena_take(a, (pages / 2 + 1) * sizeof *t->piece, "pages to read");
    t->wanted = arena_take(a, pages * sizeof *t->wanted, "pages that a pass reads");
    if (t->wanted) memset(t->wanted, 0, pages * sizeof *t->wanted);
}
void tier_order(Tier *t, int n, const int *slots) {
    free(t->order);
    t->order = xcalloc((size_t)n + 1, sizeof *t->order);
    t->norder = 0;
    for (int i = 0; i < n; i++)
        if (t->slot[slots[i]].tier && (!t->norder || t->order[t->norder - 1] != slots[i]))
            t->order[t->norder++] = slots[i];
}

/* ---- buffers -----------------------------------------------------------------------------------------------------*/

/* Where a pass finds the rows of a slot; NULL: nowhere. A GPU's copy of the tables has a pointer of its own. */
static void stage_show(const Tier *t, int slot, char *p) {
    Slot *s = &t->slot[slot];
    (t->dev ? &s->there : &s->t)->data.p = p;
}
static void stage_empty(Tier *t, Stage *g) {
    if (g->slot >= 0) stage_show(t, g->slot, NULL);
    g->slot = -1;
}
static void stage_begin(Tier *t, Stage *g, int slot) {
    stage_empty(t, g);
    g->slot = slot, g->onward = false;
    memset(g->has, 0, t->pages * sizeof *g->has);
}
/* The pages with rows of the sequences that are read; `likely`: of a sequence whose rows all select, those that are
 * expected, or were read last. */
static void pages_gather(Tier *t, const Slot *s, bool likely) {
    const Lanes *l = &s->t;
    for (int lane = 0; lane < slot_lanes(s); lane++) {
        const int q = lane / l->s.lanes, *table = l->table + (size_t)lane * (size_t)l->maxpages,
                  sinks = imin(l->s0[lane] + l->s.sinks, l->lo[lane]);
        if (!t->reads[q]) continue;
        const bool some = likely && s->read_in && t->from[q] >= s->after[q];
        const uint32_t in = s->expected == t->pass ? t->pass : t->before[q];
        for (int part = 0; part < 2; part++) {
            const int from = part ? l->lo[lane] : l->s0[lane], to = part ? l->hi[lane] : sinks;
            for (int at = from / l->P; from < to && at <= (to - 1) / l->P; at++) {
                const int page = table[at % l->maxpages];
                if (!some || (in && s->read_in[page] == in)) t->wanted[page] = true;
            }
        }
    }
}
/* Whether a buffer lacks pages that are wanted of a slot. */
static bool pages_lack(const Tier *t, const Stage *g, const Slot *s) {
    for (int p = 0; p < s->t.npages; p++)
        if (t->wanted[p] && !g->has[p]) return true;
    return false;
}
/* Those pages, in as few pieces as may be; the store has settled. Nothing is wanted any more. */
static void pages_pieces(Tier *t, const Stage *g, const Slot *s) {
    t->pieces = 0;
    for (int p = 0; p < s->t.npages; p++) {
        if (!t->wanted[p]) continue;
        t->wanted[p] = false;
        if (g->has[p]) continue;
        const bool joins = t->pieces && t->piece[t->pieces - 1].page + t->piece[t->pieces - 1].n == p;
        if (joins)
            t->piece[t->pieces - 1].n++;
        else
            t->piece[t->pieces++] = (Pages){p, 1};
        g->has[p] = true;
    }
}
/* Whether what a pass will read of a slot is known by what it read last alone, which was not all. */
static bool pages_unsure(const Tier *t, const Slot *s) {
    bool unsure = false;
    for (int q = 0; q < t->nseq && s->read_in && s->expected != t->pass; q++)
        unsure |= t->reads[q] && t->from[q] >= s->after[q] && s->whole != t->before[q];
    return unsure;
}
static void tier_ahead(Tier *t, int stage) {
    if (t->nstage < STAGES || t->next == t->norder) return;
    Stage *g = &t->stage[stage];
    const int slot = t->order[t->next];
    if (g->slot == slot || t->stage[1 - stage].slot == slot) return;
    if (!t->store->idle && pages_unsure(t, &t->slot[slot])) return;
    stage_begin(t, g, slot);
    pages_gather(t, &t->slot[slot], true);
    pages_pieces(t, g, &t->slot[slot]);
    t->store->fill(t, stage, true);
}

void tier_begin(Tier *t, const Batch *b) {
    bool any = false;
    t->store->settle(t);
    t->pass++;
    for (int i = 0; i < t->nstage; i++) stage_empty(t, &t->stage[i]);
    for (int q = 0; q < t->nseq; q++) t->reads[q] = false;
    for (int i = 0; i < b->B; i++) {
        const int row = b->off[i], q = b->seq[i];
        if (row == b->off[i + 1] || b->first[row] >= 0) continue;
        any = t->reads[q] = true;
        t->from[q] = b->pos[row];
        t->before[q] = t->seen[q], t->seen[q] = t->pass;
    }
    t->next = t->now = 0;
    if (any) tier_ahead(t, 1);
}
bool tier_expects(const Slot *s) { return s->tier && s->tier->nstage == STAGES; }
void tier_expect(const Slot *s, int page) {
    Slot *own = &s->tier->slot[s->number];
    own->expected = own->read_in[page] = s->tier->pass;
}
void tier_want(const Slot *s, int page) {
    s->tier->wanted[page] = true;
    if (s->read_in) s->read_in[page] = s->tier->pass;
}
void tier_want_all(const Slot *s) {
    Tier *t = s->tier;
    pages_gather(t, s, false);
    t->slot[s->number].whole = t->pass;
    for (int p = 0; s->read_in && p < s->t.npages; p++)
        if (t->wanted[p]) s->read_in[p] = t->pass;
}
void tier_bring(const Slot *s) {
    Tier *t = s->tier;
    Stage *g = &t->stage[t->now];
    if (g->slot == s->number && !pages_lack(t, g, s)) {
        memset(t->wanted, 0, t->pages * sizeof *t->wanted);
        return;
    }
    const double from = now_seconds();
    t->store->settle(t);
    if (g->slot != s->number && t->nstage > 1) t->now = 1 - t->now;
    g = &t->stage[t->now];
    const bool ahead = g->slot == s->number;
    if (!ahead) stage_begin(t, g, s->number);
    pages_pieces(t, g, s);
    for (int i = 0; i < t->pieces; i++) t->sum.late += (size_t)t->piece[i].n * page_bytes(s);
    if (t->pieces || !ahead) t->store->fill(t, t->now, false);
    t->store->ready(t, t->now);
    t->sum.waited += now_seconds() - from;
    stage_show(t, s->number, g->p);
}
void tier_onward(const Slot *s) {
    Tier *t = s->tier;
    if (t->stage[t->now].onward) return;
    t->stage[t->now].onward = true;
    for (int i = 0; i < t->norder; i++) { /* the place in the order, from where it is expected on */
        const int at = (t->next + i) % t->norder;
        if (t->order[at] != s->number) continue;
        t->next = at + 1;
        tier_ahead(t, 1 - t->now);
        return;
    }
}
void tier_stage(const Slot *s) {
    tier_want_all(s);
    tier_bring(s);
    tier_onward(s);
}
void tier_stage_sequence(const Slot *s, int seq) {
    Tier *t = s->tier;
    t->store->settle(t);
    for (int i = 0; i < t->nstage; i++) stage_empty(t, &t->stage[i]);
    for (int q = 0; q < t->nseq; q++) t->reads[q] = q == seq;
    t->next = t->norder; /* nothing is read ahead */
    pages_gather(t, s, false);
    tier_bring(s);
}

/* ---- bytes -------------------------------------------------------------------------------------------------------*/

/* A buffer that holds the slot does not any more. */
static void tier_stale(const Slot *s) {
    for (int i = 0; i < s->tier->nstage; i++) {
        if (s->tier->stage[i].slot != s->number) continue;
        s->tier->store->settle(s->tier);
        stage_empty(s->tier, &s->tier->stage[i]);
    }
}
void tier_read(const Slot *s, size_t at, void *to, size_t n) {
    s->tier->store->settle(s->tier); /* it counts what it reads, too */
    s->tier->store->move(s->tier, s->at + at, to, n, false);
}
void tier_write(const Slot *s, size_t at, const void *from, size_t n) {
    tier_stale(s);
    s->tier->store->move(s->tier, s->at + at, (char *)from, n, true);
}
void tier_copy(const Slot *s, size_t to, size_t from, size_t n) {
    CHECK(n <= s->tier->page, "%zu bytes of a page of %zu", n, s->tier->page);
    s->tier->store->settle(s->tier);
    tier_stale(s);
    s->tier->store->copy(s->tier, s->at + to, s->at + from, n);
}
void tier_touched(const Slot *s, size_t read, size_t written) {
    if (written) tier_stale(s);
    s->tier->sum.read += read, s->tier->sum.written += written;
}
bool tier_sound(Tier *t, Err *e) {
    if (t->store->sound(t)) return true;
    if (e) *e = t->why;
    return false;
}
KvDisk tier_report(Tier *t) {
    t->store->settle(t);
    KvDisk d = t->sum;
    d.slots = t->ndisk, d.of = t->rows, d.file = t->file, d.host = t->dev != NULL;
    t->store->report(t, &d);
    return d;
}
