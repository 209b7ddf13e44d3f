/* slot.h: what the files of this folder share and nobody else sees: a slot, its pages, rows that move between places.
 *
 * What places rows (Slot.t but for the rows) the host alone writes. A device has a copy, which kv_begin brings up to
 * date: whatever changes between two passes, and behind a pass's kernels, goes over in one piece (ops/dirty_copy.h). */
#pragma once
#include "cache.h"
#include "tier.h"

struct Slot {
    Device *dev;     /* NULL: rows and states lie with the host */
    RowRanks *ranks; /* this process has a part of the rows (row_ranks.h); NULL: it has all */
    Tier *tier; /* rows are on disk, and Lanes.data only where tier_stage has brought them; of a device they are with */
                /* the host, where `t` has them, and Lanes.data of `there` is what was brought. NULL: in memory */
    int number; /* of the slot in its cache */
    size_t at;  /* of a slot of the tier: where its rows begin there, */
    uint32_t *read_in; /* and where a policy selects (npages) the pass that read a page last, or is expected to; */
    uint32_t expected, whole; /* the pass whose pages are named so; the last that read all rows of its sequences */
    Lanes t;
    Lanes there;                                  /* of a device: the same as its kernels see it */
    DirtyCopy *mirror;                            /* what of t that lacks; NULL: the host's memory */
    int *s0_next, *lo_next, *hi_next, *tail_next; /* (nseq*lanes) take effect in kv_end */
    bool *evicts;                                 /* (nseq*lanes) the pass evicts the tail */
    int *row_at, ring;    /* of slots that evict, (nseq*lanes,ring): the row that holds position p, at p % ring, */
    int *leaving;         /* for positions that may still expire; (ring) rows that expire now */
    int *ref;             /* (npages + nblocks) tables that point to the page */
    int *unused, nunused; /* stack of free pages, */
    int *free_blocks, nfree_blocks; /* and of blocks */
    bool
        keeps_computed; /* rows of blocks are chosen among where a prompt ends, and until then kept as computed, too: */
    int *computed;      /* (nseq*lanes,maxpages) in these pages; -1: they are not */
    Tensor state;       /* (nseq,state) */
    Tensor carry;       /* (nseq,lanes,carry_rows,carry) */
    Tensor last;        /* (nseq,last) of KvShape.last: the newest token's row before the head */
    bool chosen, keeps; /* rows stay or leave by the cache's policy, */
    void (*score_of)(Run *, const Kv *pass, Tensor score); /* which asks this of new rows; NULL: nothing */
    Tensor score;                                          /* (npages,P) of each stored row, where score_of is there */
    real *kept;              /* (npages,P) of a policy that keeps a number with each row */
    int queries;             /* newest queries of a sequence that are kept; of position p */
    Tensor asked, asked_lse; /* in row seq * queries + p % queries: (.,heads,kdim) (.,heads); heads by lanes */
    bool replays;            /* they are of the cache's spare sequence alone, in row p % queries */
    PolicyCfg policy;        /* read: which pages a step reads; NULL: all. Else: */
    const int *after;        /* (nseq) position from which queries of a sequence select, the cache's */
    real *summary;           /* (npages,policy_summary) what is kept of pages that are full, */
    bool *summed;            /* (npages) where it is up to date, and so is: */
    int *newest, *oldest;    /* (npages) the positions of a page's newest and oldest rows */
    size_t *read;            /* bytes of rows that this pass has read; NULL: no lanes */
    const Rope *turn;        /* how keys and queries are rotated; NULL: they are not, or not alike */
    RowTurns *turns;         /* Lanes.turns */
    Slot *below; /* of a codec that merges rows of two layers, in the upper one: the slot that it is paired with */
    struct Chain *chain; /* of rows that are predicted from those of the slot before (aqua.h); NULL: they are not */
    int link;            /* the slot's place in it */
    int max_tokens;
};
static inline bool slot_on_disk(const Slot *s) { return s->tier && !s->dev; }
static inline int slot_lanes(const Slot *s) { return s->t.nseq * s->t.s.lanes; }
/* Bytes of the resident rows of a lane, without what a policy keeps. */
size_t slot_lane_bytes(const Slot *, int lane);
static inline size_t page_bytes(const Slot *s) { return (size_t)s->t.P * row_bytes(&s->t.s); }

/* The entry of a row in Slot.computed; NULL: the slot has none. */
static inline int *slot_computed(const Slot *s, int lane, int row) {
    if (!s->computed) return NULL;
    return &s->computed[(size_t)lane * (size_t)s->t.maxpages + (size_t)(row / s->t.P % s->t.maxpages)];
}

/* ---- pages.c: memory, tables and rows as bytes -------------------------------------------------------------------*/

/* Sizes of a slot, in pages of P rows, or of a codec's blocks; false: more pages than an int counts. */
bool slot_shape(Slot *, const KvShape *, int nseq, int max_tokens, int max_rows, int P);
/* What a device has a copy of. */
void slot_place_tables(Lanes *, Arena *);
/* Rows and states go to `rows`, what the host alone reads to `a`. */
void slot_place(Slot *, Arena *rows, Arena *a);
void slot_clear(Slot *);

/* Every write to the tables is one of these: of words that were written before, as all but those of new rows, and of
 * what else has changed. */
void slot_changed(const Slot *, const void *p, size_t n);
void slot_set(const Slot *, int *word, int value);

/* Where a lane's table names the page of a row. */
int *slot_entry(const Slot *, int lane, int row);
/* A page of the pool, or a block, of one table; a table's entry that it lets go. The pools hold every lane's worst
 * case, so they cannot run dry. */
int slot_take_page(Slot *, bool block);
void slot_leave_page(Slot *, int *entry);
/* Make the page, or the block, of a row present and this lane's alone. */
void slot_own_page(Slot *, int lane, int row);
/* Rows of a lane become visible up to hi; every page outside the visible rows is given back. */
void slot_show(Slot *, int lane, int s0, int lo, int hi);
/* n bytes from the cache, on a device or not, to the host (save) or back. */
void slot_bytes(const Slot *, void *cache, char *host, size_t n, bool save);
/* `to` has the pages of `from`, which both then share, and a copy of its state. */
void slot_share(Slot *, int from, int to);

/* Places of the pool: page * P + place in the page. Where a place's key and value begin, in bytes of Lanes.data. */
size_t slot_place_of(const Slot *, int lane, int row);
/* Where a slot that evicts notes the row of a position: among the newest `ring` positions of the lane's document. */
int *slot_row_at(const Slot *, int lane, int pos);
size_t slot_key(const Slot *, size_t place);
size_t slot_value(const Slot *, size_t place);
/* Bytes of rows, wherever they lie. */
void slot_read(const Slot *, size_t at, void *to, size_t n);
void slot_write(const Slot *, size_t at, const void *from, size_t n);
/* Of a place, whatever was there: nobody wrote it before its first row. */
void slot_set_pos(const Slot *, size_t place, int pos);
void slot_set_evicted(const Slot *, size_t place, bool evicted);

/* A row that is stored moves from one place to another; on a device at the latest by slot_moves_done. The places that
 * it leaves and comes to belong to its own lane meanwhile. */
void slot_move(Cache *, Slot *, size_t to, size_t from);
void slot_moves_done(Cache *, const Slot *);
/* Of the device's scratch that slot_moves_done takes. */
bool slot_moves_open(Cache *, Err *);

/* ---- blocks.c: rows that a codec stores together ----------------------------------------------------------------*/

/* Pages for the rows of sequence q of the batch that a lane may store. A document that continues does not come past the
 * end of its page, at which passes are cut (kv_cut); one that begins has a page of its own. */
void blocks_begin(Slot *, int lane, const Batch *, int q);
/* The row that is a document's first when the lane's next one is `row`. */
int blocks_first(const Slot *, int row);
/* Of a codec that turns keys back: how far, where keys are rotated so. NULL: they are not. One piece of memory, the
 * caller's to free. */
RowTurns *blocks_turns(const RowCodec *, const Rope *);
/* Full pages of a lane become blocks. Of a policy's rows the pages stay, too, while rows may yet be chosen
 * (`computed`). */
void blocks_store(Slot *, int lane, bool computed);
/* A block that has been written is in place of the page of rows row..row+P-1, which is given back, or kept as that
 * of the rows as computed. */
void blocks_replace(Slot *, int lane, int row, int block, bool computed);
/* Slots whose rows a codec merges find each other. */
void blocks_pair(Slot *, int nslots);
/* Of a slot with a slot below, whose blocks and those below have been restored: which ones belong together. */
void blocks_join(Slot *, int seq);
/* Bytes that reading a lane's rows reads of the slot below. */
size_t blocks_below_bytes(const Slot *, int lane);
/* The sizes of a slot whose rows a policy evicts; `once`: where a prompt ends. False: more pages than an int counts. */
bool blocks_shape(Slot *, bool once);
/* The first row of a lane that is in no block; rows of blocks from there on: none. */
int blocks_waiting(const Slot *, int lane);
/* The pages of a lane's rows as computed are given back. */
void blocks_forget(Slot *, int lane);
/* Rows of a lane, lo..hi-1, of which those without keep[row - lo] leave. Those that were kept as computed are stored
 * anew, 64 that stay to a block. Others in blocks are marked as gone, and a block whose rows are all gone is given
 * back. Returns the new hi. */
int blocks_evict(Slot *, int lane, const bool *keep);
/* Rows of a lane that are there. Bytes of those kept as computed, too. */
int blocks_rows(const Slot *, int lane);
size_t blocks_computed_bytes(const Slot *, int lane);
/* The rows of a page or a block: keys (P,kdim) and, unless NULL, values (P,vdim). */
void blocks_decode(const Lanes *, int page, real *keys, real *values);
/* The most tokens, `to` at most, that a sequence can go back to: rows that were stored together stay so. */
int blocks_rewind(const Slot *, int seq, int to);

/* ---- salient.c: which rows of a block have more bits ------------------------------------------------------------*/

/* What was kept of the queries of block row..row+63 of a lane says about its rows, whose keys these are, as they were
 * computed: score (64), the attention that a row received over the queries that could see it. 0 of a slot without
 * heads. */
void salient_score(const Slot *, int lane, int row, const real *keys, real *score);

/* ---- select.c: which pages a step reads --------------------------------------------------------------------------*/

/* Ops.attend_lanes over the pages that queries select. False: all read all rows, and the caller calls it. */
bool select_attend(Run *, const Slot *, const Kv *pass, Tensor o, Tensor lse, Tensor q, AttnSpec, bool merge);

/* ---- replay.c: what the queries of a replay say about rows -------------------------------------------------------*/

/* Of a prompt of `next` tokens; nothing, where it is open. */
void replay_open(Cache *, int next);
void replay_close(Cache *);
/* After a pass: a slot, whose lanes come after so many of slots before it, and what the queries say about its rows
 * (lanes, rows). Positions lo..hi-1 count. */
void replay_see(const Cache *, const Slot *, int lanes, Tensor stat, int lo, int hi);
/* After all passes of a replay: divides the rows of sequence seq among the lanes of `slots` chosen slots. Of lane
 * `lane` of all those slots: rows that stay, and what the queries said about a position. */
void replay_divide(Cache *, int seq, int slots);
int replay_rows(const Cache *, int lane);
real replay_score(const Cache *, int lane, int pos);

/* ---- evict.c: rows that leave their lanes ------------------------------------------------------------------------*/

/* What the mixer decided when a pass ends that continued a document at position `before` and came to `next`: rows that
 * a query at `next` and later ones do not see leave. Looks at no more rows than the pass has tokens. Returns the new
 * hi. */
int evict_decided(Cache *, Slot *, int lane, int hi, int before, int next);
/* Between passes: rows of lo..hi-1 without keep[row - lo], which is used up. Returns the new hi. */
int evict_rows(Cache *, Slot *, int lane, int lo, int hi, bool *keep);
