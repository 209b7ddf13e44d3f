#include "saved.h"
#include "slot.h"

typedef enum {
    PART_LANES,
    PART_POS,
    PART_KEYS,
    PART_VALUES,
    PART_BLOCKS,
    PART_EVICTED,
    PART_SCORE,
    PART_KEPT,
    PART_ASKED,
    PART_ASKED_LSE,
    PART_STATE,
    PART_CARRY,
    PART_LAST,
    PARTS
} PartKind;
static const char *const part_names[PARTS] = {"lanes", "pos",   "keys",      "values", "blocks", "evicted", "score",
                                              "kept",  "asked", "asked_lse", "state",  "carry",  "last"};
enum { LANE_WORDS = 4 };
static const char REAL_NAME[] = {'F', sizeof(real) == 8 ? '6' : '3', sizeof(real) == 8 ? '4' : '2', 0};

/* What lanes show: rows, those of them that lie alone, blocks that hold the others. */
typedef struct {
    size_t rows, alone, blocks;
} Count;
/* Bytes of an element, and elements for each row or in all; 0: the slot has no such part. */
static size_t part_size(const Slot *s, PartKind k, Count has, const char **dtype, size_t *n) {
    const KvShape *x = &s->t.s;
    const size_t rows = has.rows;
    /* a replay asks in a place of its own */
    const size_t heads = s->replays ? 0 : (size_t)s->queries * (size_t)x->heads;
    *dtype = REAL_NAME, *n = 0;
    switch (k) {
    case PART_LANES: *dtype = "I32", *n = (size_t)x->lanes * LANE_WORDS; return sizeof(int);
    case PART_POS: *dtype = "I32", *n = x->lanes ? rows : 0; return sizeof(int);
    case PART_KEYS: *dtype = "U8", *n = x->lanes ? has.alone * key_bytes(x) : 0; return 1;
    case PART_VALUES: *dtype = "U8", *n = x->lanes ? has.alone * value_bytes(x) : 0; return 1;
    case PART_BLOCKS: *dtype = "U8", *n = rows_together(x) ? has.blocks * block_bytes(x) : 0; return 1;
    case PART_EVICTED: *dtype = "U8", *n = x->evicts ? rows : 0; return 1;
    case PART_SCORE: *n = present(s->score) ? rows : 0; break;
    case PART_KEPT: *n = s->kept ? rows : 0; break;
    case PART_ASKED: *n = x->lanes ? heads * (size_t)x->kdim : 0; break;
    case PART_ASKED_LSE: *n = x->lanes ? heads : 0; break;
    case PART_STATE: *n = (size_t)x->state; break;
    case PART_CARRY: *n = x->lanes ? carried(x) : 0; break;
    case PART_LAST: *n = (size_t)x->last; break;
    default: CHECK(false, "part %d", k);
    }
    return sizeof(real);
}
/* Where what a part keeps of the whole sequence lies in the cache. */
static char *part_whole(const Slot *s, PartKind k, int seq) {
    const Tensor t = k == PART_ASKED       ? s->asked
                     : k == PART_ASKED_LSE ? s->asked_lse
                     : k == PART_STATE     ? s->state
                     : k == PART_CARRY     ? s->carry
                                           : s->last;
    return (char *)t.p + (size_t)seq * (tensor_bytes(t) / (size_t)s->t.nseq);
}

/* ---- bytes -------------------------------------------------------------------------------------------------------*/

/* A walk over the visible rows of a lane, by runs that lie in one page. */
typedef struct {
    int s0, lo, hi, sinks; /* sinks: the end of those left behind */
} Shown;
/* Of a codec that stores rows together all rows that wait are kept, whether a window still shows them or not: the block
 * that they will be is a function of all. */
static Shown shown_of(const Lanes *t, const int w[LANE_WORDS]) {
    const int newest = w[2] / t->P * t->P, sinks = imin(w[0] + t->s.sinks, w[1]);
    const bool waits = t->nblocks && newest < w[2] && (w[1] < w[2] || sinks > newest);
    const int lo = waits ? imin(w[1], newest) : w[1], end = imin(sinks, lo);
    return (Shown){w[0], imax(lo, w[0]), w[2], imax(end, w[0])};
}
static int shown_rows(Shown x) { return x.sinks - x.s0 + x.hi - x.lo; }
static int shown_row(Shown x, int i) { return i < x.sinks - x.s0 ? x.s0 + i : x.lo + i - (x.sinks - x.s0); }
static int shown_run(const Slot *s, Shown x, int i) {
    const int row = shown_row(x, i), end = i < x.sinks - x.s0 ? x.sinks : x.hi;
    return imin(end - row, s->t.P - row % s->t.P);
}
/* Whether rows are of a block: all rows of its page are there. */
static bool shown_coded(const Slot *s, Shown x, int i) {
    return s->t.nblocks && (shown_row(x, i) / s->t.P + 1) * s->t.P <= x.hi;
}
/* Whether the run from i on is the first of its page: that of sinks and that of the others may be one. */
static bool shown_page(const Slot *s, Shown x, int i) {
    return i == 0 || shown_row(x, i) / s->t.P != shown_row(x, i - 1) / s->t.P;
}
static void shown_count(const Slot *s, Shown x, Count *to) {
    for (int i = 0, n; i < shown_rows(x); i += n) {
        const bool coded = shown_coded(s, x, i);
        n = shown_run(s, x, i);
        to->rows += (size_t)n;
        if (!coded) to->alone += (size_t)n;
        to->blocks += coded && shown_page(s, x, i);
    }
}

/* The parts of a slot in memory, and what of them is done. */
typedef struct {
    char *p[PARTS];
    Count done;
} SlotParts;
static void part_move(const Slot *s, size_t at, char *host, size_t n, bool save) {
    save ? slot_read(s, at, host, n) : slot_write(s, at, host, n);
}
static void rows_move(Slot *s, int lane, Shown x, int i, size_t rows, SlotParts *m, bool save) {
    const size_t kb = key_bytes(&s->t.s), vb = value_bytes(&s->t.s);
    const size_t place = slot_place_of(s, lane, shown_row(x, i)), P = (size_t)s->t.P;
    if (!shown_coded(s, x, i)) {
        part_move(s, slot_key(s, place), m->p[PART_KEYS] + m->done.alone * kb, rows * kb, save);
        if (vb) part_move(s, slot_value(s, place), m->p[PART_VALUES] + m->done.alone * vb, rows * vb, save);
        m->done.alone += rows;
    } else if (shown_page(s, x, i)) {
        const size_t bytes = block_bytes(&s->t.s);
        slot_bytes(s, lanes_block(&s->t, (int)(place / P)), m->p[PART_BLOCKS] + m->done.blocks++ * bytes, bytes, save);
    }
}
static void lane_move(Slot *s, int lane, Shown x, SlotParts *m, bool save) {
    for (int i = 0, n; i < shown_rows(x); i += n, m->done.rows += (size_t)n) {
        n = shown_run(s, x, i);
        const size_t place = slot_place_of(s, lane, shown_row(x, i)), rows = (size_t)n, from = m->done.rows;
        rows_move(s, lane, x, i, rows, m, save);
        if (m->p[PART_SCORE])
            slot_bytes(s, R(s->score) + place, m->p[PART_SCORE] + from * sizeof(real), rows * sizeof(real), save);
        for (size_t r = 0; r < rows; r++) { /* what the host alone writes */
            char *pos = m->p[PART_POS] + (from + r) * sizeof(int), *kept = m->p[PART_KEPT];
            int at = s->t.pos[place + r];
            if (save) {
                memcpy(pos, &at, sizeof at);
                if (kept) memcpy(kept + (from + r) * sizeof(real), s->kept + place + r, sizeof(real));
                if (m->p[PART_EVICTED]) m->p[PART_EVICTED][from + r] = s->t.evicted[place + r];
                continue;
            }
            memcpy(&at, pos, sizeof at);
            slot_set_pos(s, place + r, at);
            if (kept) memcpy(s->kept + place + r, kept + (from + r) * sizeof(real), sizeof(real));
            if (m->p[PART_EVICTED]) slot_set_evicted(s, place + r, m->p[PART_EVICTED][from + r] != 0);
        }
    }
}
static void whole_move(const Slot *s, int seq, const SlotParts *m, const size_t bytes[PARTS], bool save) {
    for (PartKind k = PART_ASKED; k < PARTS; k++)
        if (m->p[k]) slot_bytes(s, part_whole(s, k, seq), m->p[k], bytes[k], save);
}

/* ---- saving ------------------------------------------------------------------------------------------------------*/

static char *parts_add(KvParts *out, const char *name, const char *dtype, size_t n, size_t bytes) {
    if (out->n == out->cap) out->part = xrealloc(out->part, (size_t)(out->cap = 2 * out->cap + 16), sizeof(KvPart));
    KvPart *x = &out->part[out->n++];
    *x = (KvPart){.dtype = dtype, .n = n, .bytes = bytes};
    CHECK((size_t)snprintf(x->name, sizeof x->name, "%s", name) < sizeof x->name, "part %s", name);
    char *p = xcalloc(bytes, 1);
    x->p = p;
    return p;
}
static void part_name(char out[48], int slot, PartKind k) { snprintf(out, 48, "slot.%d.%s", slot, part_names[k]); }
static void slot_words(const Slot *s, int lane, int w[LANE_WORDS]) {
    const Lanes *t = &s->t;
    const int base = t->s0[lane] / t->P * t->P;
    w[0] = t->s0[lane] - base, w[1] = t->lo[lane] - base, w[2] = t->hi[lane] - base;
    w[3] = t->s.evicts ? t->tail[lane] - base : 0;
}
static void slot_save(Slot *s, int slot, int seq, KvParts *out) {
    SlotParts m = {.done = {0}};
    Count has = {0};
    size_t bytes[PARTS] = {0};
    for (int h = 0; h < s->t.s.lanes; h++) {
        int w[LANE_WORDS];
        slot_words(s, seq * s->t.s.lanes + h, w);
        shown_count(s, shown_of(&s->t, w), &has);
    }
    for (PartKind k = 0; k < PARTS; k++) {
        const char *dtype;
        char name[48];
        size_t n, unit = part_size(s, k, has, &dtype, &n);
        if (!n) continue;
        part_name(name, slot, k);
        m.p[k] = parts_add(out, name, dtype, n, bytes[k] = n * unit);
    }
    for (int h = 0; h < s->t.s.lanes; h++) {
        const int lane = seq * s->t.s.lanes + h, base = s->t.s0[lane] / s->t.P * s->t.P;
        int w[LANE_WORDS];
        slot_words(s, lane, w);
        memcpy(m.p[PART_LANES] + (size_t)h * sizeof w, w, sizeof w);
        for (int k = 0; k < 3; k++) w[k] += base;
        lane_move(s, lane, shown_of(&s->t, w), &m, true);
    }
    whole_move(s, seq, &m, bytes, true);
}
void kv_parts_free(KvParts *p) {
    for (int i = 0; i < p->n; i++) free((void *)p->part[i].p);
    free(p->part);
    *p = (KvParts){0};
}
bool kv_save(const Cache *c, int seq, KvParts *out, Err *e) {
    CHECK(seq >= 0 && seq < c->nseq, "sequence %d of %d", seq, c->nseq);
    *out = (KvParts){0};
    if (c->ranks)
        return err_input(e, "cache: this rank has a part of the rows; a file holds those of a whole sequence");
    for (int i = 0; i < c->nslots; i++)
        if (c->slot[i].chosen && c->slot[i].t.nblocks)
            return err_input(e,
                             "cache: --policy %s chose rows of blocks (--cache-dtype %s), which a file cannot hold; "
                             "take another codec, such as int4",
                             c->policy.of->name, c->slot[i].t.s.codec->name);
    const int words[2] = {c->observed ? c->observed[seq] : 0, c->after ? c->after[seq] : INT32_MAX};
    memcpy(parts_add(out, "cache", "I32", 2, sizeof words), words, sizeof words);
    for (int i = 0; i < c->nslots; i++) slot_save(&c->slot[i], i, seq, out);
    if (kv_sound(c, e)) return true;
    kv_parts_free(out);
    return false;
}
/* ---- restoring ---------------------------------------------------------------------------------------------------*/

static const KvPart *parts_find(const KvParts *in, const char *name, const char *dtype, size_t n, Err *e) {
    for (int i = 0; i < in->n; i++) {
        const KvPart *x = &in->part[i];
        if (strcmp(x->name, name)) continue;
        if (!strcmp(x->dtype, dtype) && x->n == n) return x;
        err_input(e, "%s: expected %zu elements of %s, got %zu of %s", name, n, dtype, x->n, x->dtype);
        return NULL;
    }
    err_input(e, "%s is missing; expected %zu elements of %s", name, n, dtype);
    return NULL;
}
/* Whether a lane of a document of `length` tokens may look so. */
static bool lane_sound(const Slot *s, const int w[LANE_WORDS], int length) {
    const KvShape *x = &s->t.s;
    const int s0 = w[0], lo = w[1], hi = w[2], tokens = hi < 0 || s0 < 0 ? -1 : hi - s0;
    if (s0 < 0 || s0 >= (s->t.nblocks ? 1 : s->t.P) || lo < s0 || hi <= s0 || hi < lo || tokens > length) return false;
    if (x->window) return tokens == length && lo == imax(s0, hi - (x->window - 1));
    if (lo != s0) return false;
    if (x->evicts && (w[3] < lo || w[3] >= hi)) return false;
    return x->evicts || s->chosen || tokens == length;
}
/* Positions of a lane's rows: those of a lane that keeps every row follow from their places, those of others are
 * different ones, the newest among them where a mixer evicts. */
static bool lane_positions(const Slot *s, Shown x, const int w[LANE_WORDS], const char *pos, int length) {
    const bool any = s->t.s.evicts || s->chosen;
    bool *met = any ? xcalloc((size_t)length, sizeof *met) : NULL, ok = true;
    for (int i = 0; ok && i < shown_rows(x); i++) {
        const int row = shown_row(x, i);
        int at;
        memcpy(&at, pos + (size_t)i * sizeof at, sizeof at);
        ok = any ? at >= 0 && at < length && !met[at] : at == row - x.s0;
        if (ok && any) met[at] = true;
        if (s->t.s.evicts && row == w[3]) ok = ok && at == length - 1;
    }
    free(met);
    return ok;
}
static bool slot_sound(const Slot *s, int slot, int length, const KvParts *in, SlotParts *m, size_t bytes[PARTS],
                       int *met, Err *e) {
    Count has = {0};
    size_t at = 0;
    *m = (SlotParts){.done = {0}};
    for (PartKind k = 0; k < PARTS; k++) {
        const char *dtype;
        char name[48];
        size_t n, unit = part_size(s, k, has, &dtype, &n);
        if (!n) continue;
        part_name(name, slot, k);
        const KvPart *x = parts_find(in, name, dtype, n, e);
        if (!x) return false;
        m->p[k] = (char *)x->p, bytes[k] = n * unit, ++*met;
        for (int h = 0; h < s->t.s.lanes && (k == PART_LANES || k == PART_POS); h++) {
            int w[LANE_WORDS];
            memcpy(w, m->p[PART_LANES] + (size_t)h * sizeof w, sizeof w);
            if (k == PART_LANES && !lane_sound(s, w, length))
                return err_input(e, "%s: lane %d: rows %d, %d..%d cannot be those of %d tokens", name, h, w[0], w[1],
                                 w[2], length);
            const Shown x = shown_of(&s->t, w);
            if (k == PART_LANES) shown_count(s, x, &has);
            if (k != PART_POS) continue;
            if (!lane_positions(s, x, w, m->p[k] + at * sizeof(int), length))
                return err_input(e, "%s: lane %d: positions that its rows of %d tokens cannot have", name, h, length);
            at += (size_t)shown_rows(x);
        }
    }
    for (size_t r = 0; m->p[PART_EVICTED] && r < has.rows; r++)
        if ((unsigned char)m->p[PART_EVICTED][r] > 1) return err_input(e, "slot.%d.evicted: expected 0 or 1", slot);
    return true;
}
static void slot_restore(Slot *s, int seq, int length, SlotParts *m, const size_t bytes[PARTS]) {
    for (int h = 0; h < s->t.s.lanes; h++) {
        const int lane = seq * s->t.s.lanes + h;
        int w[LANE_WORDS];
        memcpy(w, m->p[PART_LANES] + (size_t)h * sizeof w, sizeof w);
        const Shown x = shown_of(&s->t, w);
        for (int i = 0; i < shown_rows(x); i += shown_run(s, x, i)) {
            int *entry = slot_entry(s, lane, shown_row(x, i));
            if (!shown_coded(s, x, i))
                slot_own_page(s, lane, shown_row(x, i));
            else if (*entry < 0)
                slot_set(s, entry, slot_take_page(s, true));
        }
        lane_move(s, lane, x, m, false);
        if (s->t.s.evicts) s->tail_next[lane] = w[3];
        for (int row = x.lo; row < x.hi && s->t.s.evicts; row++) {
            const size_t place = slot_place_of(s, lane, row);
            /* an older one's place in the ring may be a newer one's */
            if (s->t.pos[place] > length - 1 - s->ring) *slot_row_at(s, lane, s->t.pos[place]) = row;
        }
        slot_show(s, lane, w[0], w[1], w[2]);
    }
    whole_move(s, seq, m, bytes, false);
}

/* What a policy was told of so far, and from where on queries select. */
static bool words_sound(const Cache *c, const int w[2], int length, Err *e) {
    const int cut = policy_cut(&c->policy);
    const bool asked = !c->observed ? w[0] == 0 : w[0] >= 0 && w[0] <= length && (!cut || w[0] >= length / cut * cut);
    const bool after = w[1] == INT32_MAX || (c->after && w[1] > 0 && w[1] <= length);
    if (asked && after) return true;
    return err_input(e, "cache: lengths %d and %d cannot be those of a document of %d tokens", w[0], w[1], length);
}
bool kv_restore(Cache *c, int seq, int length, const KvParts *in, Err *e) {
    if (c->ranks)
        return err_input(e, "cache: a file holds the rows of a whole sequence; this rank keeps a part of them");
    SlotParts *m = xcalloc((size_t)c->nslots + 1, sizeof *m);
    size_t(*bytes)[PARTS] = xcalloc((size_t)c->nslots + 1, sizeof *bytes);
    int words[2] = {0}, met = 1, all = 0;
    const KvPart *own = parts_find(in, "cache", "I32", 2, e);
    bool ok = own != NULL;
    CHECK(seq >= 0 && seq < c->nseq && length > 0, "sequence %d of %d, %d tokens", seq, c->nseq, length);
    if (ok) memcpy(words, own->p, sizeof words);
    ok = ok && words_sound(c, words, length, e);
    for (int i = 0; ok && i < c->nslots; i++) {
        const Slot *s = &c->slot[i];
        if (s->t.s.lanes && length > s->max_tokens)
            ok = err_input(e, "%d tokens, but the context has %d; give a longer one", length, s->max_tokens);
        ok = ok && slot_sound(s, i, length, in, &m[i], bytes[i], &met, e);
    }
    for (int i = 0; i < in->n; i++) all += !strncmp(in->part[i].name, "slot.", 5);
    if (ok && met != all + 1) ok = err_input(e, "%d parts of slots, expected %d", all, met - 1);
    if (ok) {
        kv_drop(c, seq);
        if (c->observed) c->observed[seq] = words[0];
        if (c->after) c->after[seq] = words[1];
        for (int i = 0; i < c->nslots; i++) slot_restore(&c->slot[i], seq, length, &m[i], bytes[i]);
        for (int i = 0; i < c->nslots; i++)
            if (c->slot[i].below) blocks_join(&c->slot[i], seq);
        ok = kv_sound(c, e);
    }
    free(m), free(bytes);
    return ok;
}
