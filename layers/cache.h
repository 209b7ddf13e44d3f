/* cache.h: the mechanism of the cache: lanes of rows in reference-counted pages, state blobs and carried rows; begin,
 * attend, append, end.
 *
 * A slot belongs to a layer that owns K/V or state. It holds `lanes` lanes per sequence, each with its own length, in
 * pages of P rows that sequences may share (fork) and that are copied before this pass would change them. Order of a
 * pass: kv_begin; every layer attends to history, then to its own rows; kv_append; kv_end makes the rows visible.
 * Where rows retire (KvShape.retire) a lane holds those that a later query may see, and no more, in any order. */
#pragma once
#include "kv.h"
#include "../ops/mirror.h"

typedef struct {
    int nslots, nseq;
    Slot *slot;
    Arena mem;      /* all rows, tables and states; of a device its copy of the tables, of which */
    Arena tables;   /* the host has its own, and what it alone reads */
    Arena moving;   /* scratch of a device for rows that move into the places of retired ones */
    Mirror *mirror; /* from `tables` to the copy; NULL: there is none */
    void *words;    /* its scratch */
    struct Moves *moves;
    Device *dev; /* NULL: the host's memory */
    struct Graphs
        *graphs; /* what of a decoding step over it the device replays (ops/graph.h), its owner's; NULL: nothing */
} Cache;

/* Room for nseq sequences of at most max_tokens tokens each plus max_rows rows of one pass. page_rows 0: the
 * default 64. slots[i].lanes == 0 and state == 0: the slot is empty. While `dry` nothing is mapped and mem.peak is the
 * size. False: nothing is left open. */
bool kv_open(Cache *, const KvShape *slots, int nslots, int nseq, int max_tokens, int max_rows, int page_rows,
             bool poison, bool dry, Err *);
/* The same in the memory of a device that has one of its own. */
bool kv_open_at(Cache *, Device *, const KvShape *slots, int nslots, int nseq, int max_tokens, int max_rows,
                int page_rows, bool poison, bool dry, Err *);
void kv_close(Cache *);
Slot *kv_slot(const Cache *, int i);

/* Pages for every row of the batch, copies of shared pages that it would change. The only call that can fail
 * (EXIT_INPUT: a sequence would grow past max_tokens); then nothing has changed. A device sees the tables as they are
 * now until the next one. */
bool kv_begin(Cache *, const Batch *, Err *);
/* Store the first accept[b] rows (NULL: all) of each sequence in the slot; not visible before kv_end. When the last
 * accepted row's document began in this pass, older rows are dropped by kv_end and only that document is stored.
 * The host reads pass->gone: of a device's pass it is a view. */
void kv_append(Run *, Slot *, const Kv *pass, const int *accept);
void kv_end(Cache *, const Batch *, const int *accept); /* lengths visible; rows past retention or retired given back */
void kv_fork(Cache *, int from, int to);                /* `to` becomes a copy of `from`; pages are shared */
void kv_drop(Cache *, int seq);

/* Reports and tests. */
int kv_rows(const Slot *, int seq, int lane); /* rows resident in one lane */
int kv_pages(const Slot *);                   /* pages in use, by all sequences */
size_t kv_bytes(const Cache *, int seq);      /* bytes of resident rows, carried rows and states of one sequence */
const Lanes *kv_lanes(const Slot *);          /* the host's tables */
const Lanes *kv_lanes_there(const Slot *);    /* as a device's kernels see them */
