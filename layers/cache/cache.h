/* cache.h: the mechanism of the cache: lanes of rows in reference-counted pages, state blobs and carried rows; begin,
 * attend, append, end.
 *
 * A slot belongs to a layer that owns K/V or state. It holds `lanes` lanes per sequence, each with its own length, in
 * pages of P rows that sequences may share (fork) and that are copied before this pass would change them. Order of a
 * pass: kv_begin; every layer attends to history, then to its own rows; kv_append; kv_end makes the rows visible;
 * kv_policy.
 * Where rows are evicted (KvShape.evicts) or a policy evicts them a lane holds those that a later query may see, and no
 * more, in any order. */
#pragma once
#include "layers/kv.h"
#include "policy.h"
#include "row_ranks.h"
#include "ops/dirty_copy.h"

/* A limit of a cache's memory, and where rows go that do not fit (tier.h): to a file or, of a device that has memory of
 * its own, to the host's. */
typedef struct {
    size_t memory;   /* bytes: rows, tables, states, and buffers for rows that are read; 0: no limit */
    const char *dir; /* of a file without a name, for the rows of slots that do not fit; NULL: for such a device */
    bool alone;      /* nothing is read ahead: one buffer in place of two, and passes wait for each slot */
    int least;       /* slots whose rows go there even where all fit; for tests */
} KvTier;
typedef struct {
    bool host;            /* rows are in the host's memory, not on disk, */
    int slots, of;        /* of so many slots, of those that have rows */
    size_t file, memory;  /* bytes: of the file, or of the host's memory; of the cache in memory, or a device's */
    size_t read, written; /* bytes so far; read: */
    size_t late;          /* when they were needed, not ahead of it */
    double waited;        /* seconds in which passes, or a device's queue, waited for rows */
} KvDisk;

typedef struct Replay Replay;
typedef struct {
    int nslots, nseq;
    int block;      /* rows that a codec stores together; 0: each alone */
    int spare;      /* sequence in which a context is fed again, after those of the caller; -1: none */
    Replay *replay; /* what that says about the prompt's rows; NULL: nothing is replayed */
    Slot *slot;
    Arena mem;         /* all rows, tables and states; of a device its copy of the tables, of which */
    Arena tables;      /* the host has its own, and what it alone reads */
    Arena moving;      /* scratch of a device for rows that move into the places of evicted ones */
    DirtyCopy *mirror; /* from `tables` to the copy; NULL: there is none */
    void *words;       /* its scratch */
    struct Moves *moves;
    PolicyCfg policy;    /* which rows stay, of slots that it suits */
    int *after;          /* (nseq) position from which queries select what they read; INT32_MAX: none does yet */
    bool *prompted;      /* (nseq) the prompt has ended; NULL: no policy waits for it */
    int *observed;       /* (nseq) queries of the document that a policy which asks all was told of; NULL: no policy */
    size_t visited;      /* rows that kv_end has looked at to find those that expire; for tests */
    real *scores;        /* of a device, the host's copy of a slot's Slot.score */
    Device *dev;         /* NULL: the host's memory */
    struct Tier *tier;   /* rows that are on disk, or with the host; NULL: no limit was given */
    struct Chain *chain; /* rows that are predicted from those of the slot before (aqua.h); NULL: none are */
    RowRanks *ranks;     /* who has the others' rows; NULL: this process has all */
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
/* The same with a policy for the slots that it suits; NULL: none. */
bool kv_open_policy(Cache *, Device *, const PolicyCfg *, const KvShape *slots, int nslots, int nseq, int max_tokens,
                    int max_rows, int page_rows, bool poison, bool dry, Err *);
/* Whether a device can have such a limit: a folder is for the CPU. EXIT_INPUT: it cannot. */
bool kv_tier_fits(Device *, const KvTier *, Err *);
/* The same with a limit of memory (NULL: none), which false (EXIT_INPUT) says is too small; then rows of some slots may
 * be on disk or, of a device that has memory of its own, with the host: results are the same bits. Passes over such a
 * cache are not to be captured (ops/graph.h). EXIT_INPUT: the folder is missing or not to be written; such a device
 * and a folder or a policy that selects. EXIT_RUNTIME: the disk is full; the host has no such memory. */
bool kv_open_tier(Cache *, Device *, const PolicyCfg *, const KvTier *, const KvShape *slots, int nslots, int nseq,
                  int max_tokens, int max_rows, int page_rows, bool poison, bool dry, Err *);
/* The same with rows divided among ranks (NULL, or one rank: they are not). Every rank opens a cache of the same shape
 * and makes the same calls. EXIT_INPUT: it has a policy, a limit of memory, memory of a device, rows that mixers evict
 * or that a codec stores together, or no slot whose rows all stay. */
bool kv_open_ranks(Cache *, Device *, const PolicyCfg *, const KvTier *, const KvRanks *, const KvShape *slots,
                   int nslots, int nseq, int max_tokens, int max_rows, int page_rows, bool poison, bool dry, Err *);
/* The slots in the order in which a pass reads them, for reading ahead; without a call, by their numbers. */
void kv_order(Cache *, int n, const int *slots);
void kv_close(Cache *);
Slot *kv_slot(const Cache *, int i);

/* Pages for every row of the batch, copies of shared pages that it would change. The only call of a pass that can fail
 * (EXIT_INPUT: a sequence would grow past max_tokens); then nothing has changed. A device sees the tables as they are
 * now until the next one. EXIT_RUNTIME: see kv_sound. */
bool kv_begin(Cache *, const Batch *, Err *);
/* The tokens of a pass that has begun: ranks compare them. Nothing where rows are not divided. */
void kv_feed(Cache *, const Batch *, const int *tok);
/* Store the first accept[b] rows (NULL: all) of each sequence in the slot; not visible before kv_end. When the last
 * accepted row's document began in this pass, older rows are dropped by kv_end and only that document is stored.
 * The host reads pass->evicted: of a device's pass it is a view. */
void kv_append(Run *, Slot *, const Kv *pass, const int *accept);
/* Lengths become visible; rows past retention or evicted by the mixer are given back. */
void kv_end(Cache *, const Batch *, const int *accept);

/* False (EXIT_RUNTIME), from then on: the disk that rows are on failed, or a device's copies of rows did, or a rank
 * that has others did, and what was read since is not theirs. Who runs a pass or anything else that reads or writes
 * rows asks when it is over. */
bool kv_sound(const Cache *, Err *);

/* ---- policies (policy.h); nothing where there is none ----*/
/* How the keys of a slot and the queries on them are rotated; it must outlive the cache. */
void kv_turns(Slot *, const Rope *);
/* Of a slot with KvShape.last: (nseq,last), indexed by Batch.seq. */
Tensor kv_last(const Slot *);
/* Before kv_end, for each layer that reads the slot and was asked: keep the queries of accepted rows. at: query heads
 * of each lane that belong to layers before it. */
void kv_ask(Run *, Slot *, const Probe *, int at, const int *accept);
/* After kv_end: evictions of the sequences that the pass brought to a length where they are due. Waits for a device.
 * The Run is measured as those of passes are. Without a policy, too: rows of aqua that wait become blocks (aqua.h). */
void kv_policy(Run *, Cache *, const Batch *, const int *accept);
/* A prompt of sequence seq ends at a length of `next`: evictions of a policy that waits for it, later queries
 * select. */
void kv_prompt_ends(Run *, Cache *, int seq, int next);
/* Of a policy that asks a prompt of its own (ASK_PROMPT), when it has been fed: evictions at a length of `next`. */
void kv_prompt_asked(Run *, Cache *, int seq, int next);
/* The context that sequence seq has, `next` tokens, is about to be fed again, or its next chunk: Cache.spare becomes a
 * copy of it, in which passes may go on from there. kv_replayed, after each of them: its n queries from position `from`
 * on judge the rows at positions lo..hi-1. kv_prompt_ends reads the judgement and ends the replay, kv_replay_drop ends
 * it without. Of policies that feed tokens (policy_feeds) alone. */
void kv_replay_begin(Cache *, int seq, int next);
void kv_replayed(Run *, Cache *, int from, int n, int lo, int hi);
void kv_replay_drop(Cache *);
void kv_fork(Cache *, int from, int to); /* `to` becomes a copy of `from`; pages are shared */
void kv_drop(Cache *, int seq);
/* Sequence seq, a document of more than `to` tokens, becomes what it was after the first `to`, 0 or more, or, where a
 * codec stores rows together, after the last of whole blocks before that. mark: its states after exactly `to` tokens,
 * NULL: they are not known. Returns after how many. 0 for a larger `to`, and nothing has changed: it is not known any
 * more, because a slot has a state, carries rows or has let some go. */
int kv_rewind(Cache *, int seq, int to, const void *mark);
/* Bytes of the states of one sequence, with which it could go back; 0: it has none, or a slot could not. */
size_t kv_mark_bytes(const Cache *);
/* The states of sequence seq, to host memory of that size. */
void kv_mark(const Cache *, int seq, void *mark);

/* Whether a row of the batch comes after its sequence's prompt and selects what it reads. */
bool kv_selects(const Cache *, const Batch *);
/* Passes from now on must not cross document lengths that are a multiple of this; 0: they may. */
int kv_cut(const Cache *, int seq);

/* Queries of a sequence that the codec of a slot keeps (RowCodec.probes); 0: none. Their bytes. */
int salient_queries(const KvShape *);
size_t salient_state_bytes(const KvShape *);

/* Bytes of the rows of a lane that are seen, s0..sinks-1 and lo..hi-1, as a codec that stores rows together has them;
 * s0 begins a block. */
size_t blocks_bytes(const KvShape *, int s0, int sinks, int lo, int hi);

/* Reports and tests. */
size_t kv_read(const Cache *);                /* bytes of rows that the last pass read, of all sequences and readers */
int kv_rows(const Slot *, int seq, int lane); /* rows resident in one lane, of this rank */
int kv_pages(const Slot *);                   /* pages in use, by all sequences */
/* Bytes of resident rows, carried rows and states of one sequence, and of its rows of one layer as `real`s where these
 * are made of residuals (aqua.h). */
size_t kv_bytes(const Cache *, int seq);
/* The same of all sequences with used[seq] != 0; a row that several of them have is counted once. */
size_t kv_resident(const Cache *, const int *used);
KvDisk kv_disk(const Cache *);       /* no limit was given: zeros but for `memory` */
const Lanes *kv_lanes(const Slot *); /* the host's tables */
/* The same between passes, with the rows of a sequence in Lanes.data also where they are on disk. */
const Lanes *kv_lanes_of(const Slot *, int seq);
const Lanes *kv_lanes_there(const Slot *); /* as a device's kernels see them */
