/* cache_model.h: a simple model of the cache that never frees memory, driven by random schedules next to the real
 * cache. The cache suites compare them. The model keeps every row of every sequence's document in order; which of them
 * are resident, and which rows may see each, follows from their indices. */
#pragma once
#include "rig.h"
#include "layers/cache/saved.h"

enum { PLAIN_SLOTS = 4, PLAIN_SEQS = 6 };
typedef struct {
    int n;         /* rows of the current document, from its position 0 */
    real *k, *v;   /* (max_tokens,lanes,kdim) (max_tokens,lanes,vdim) */
    bool *evicted; /* (max_tokens+1,lanes) row j evicts its predecessor */
    real *carry;   /* (max_tokens,lanes,carry) */
} History;
typedef struct {
    Device *dev; /* the cache is the host's, whatever backend is under test */
    Cache c;
    int nslots, nseq, max_tokens, max_rows, P;
    KvShape shape[PLAIN_SLOTS];
    History h[PLAIN_SLOTS][PLAIN_SEQS];
    real *state[PLAIN_SLOTS][PLAIN_SEQS];
    uint64_t passes;
    /* the current pass */
    Batch b;
    int off[PLAIN_SEQS + 1], seq[PLAIN_SEQS], accept[PLAIN_SEQS], *of, *pos, *first, *all;
    uint64_t id[PLAIN_SEQS];
    bool open;     /* begun and not ended: pages are held for rows to come */
    bool too_long; /* some sequence would grow past max_tokens */
    Kv kv[PLAIN_SLOTS];
    const Rope *turn; /* how keys of all slots are rotated, which has been said to them; NULL: nothing was */
} Plain;

void plain_open(Plain *, const KvShape *, int nslots, int nseq, int max_tokens, int max_rows, int P);
/* The same with a limit of memory; NULL: none. */
void plain_open_tier(Plain *, const KvTier *, const KvShape *, int nslots, int nseq, int max_tokens, int max_rows,
                     int P);
void plain_close(Plain *);
int plain_length(const Plain *, int seq); /* tokens of its document */
/* Draws a pass over some of the sequences: at most `most` rows each, documents that continue or begin, numbers of rows
 * to accept. With `hazard` it may be too long for max_tokens. Its K/V are in g->mem. */
void plain_pass(Plain *, Rig *g, Dice *, int most, bool hazard);
/* The parts of a pass on the cache, and on the model. */
bool plain_begin(Plain *, Err *);
void plain_append(Plain *); /* the cache only: nothing may become visible */
void plain_end(Plain *);    /* both */
void plain_fork(Plain *, int from, int to);
void plain_drop(Plain *, int seq);
/* `to` becomes what `from`, which is not empty, was saved as (layers/cache/saved.h). */
void plain_saved(Plain *, int from, int to);
/* Back to the first n tokens, fewer than there are: whether the cache does it has to follow from the slots. */
void plain_rewind(Plain *, int seq, int n);
/* Holds the cache to the model: rows, positions, values, states, bytes, pages; and that no page is lost or shared
 * wrongly. */
void plain_check(const Plain *, const char *when);
/* True if lane h of a slot still keeps row j of a sequence's document. */
static inline bool plain_resident(const Plain *m, int slot, int seq, int h, int j) {
    const KvShape *s = &m->shape[slot];
    const History *x = &m->h[slot][seq];
    if (s->evicts) return j + 1 == x->n || !x->evicted[(j + 1) * s->lanes + h] || x->n - j <= s->delay;
    return s->window == 0 || j >= x->n - (s->window - 1) || j < s->sinks;
}
