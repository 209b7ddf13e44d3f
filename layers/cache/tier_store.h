/* tier_store.h: what tier.c shares with the two places that rows of a tier lie in: a file (tier_disk.c) and, next to a
 * GPU, the host's memory (tier_host.c). These three files alone include it. */
#pragma once
#include "slot.h"

enum { STAGES = 2 };
/* A buffer of the largest slot of the tier; page p of the slot that it holds lies at p * page_bytes. */
typedef struct {
    char *p;
    int slot;    /* -1: none */
    bool *has;   /* (pages) that were copied there */
    bool onward; /* the slot after it is being read */
} Stage;
typedef struct {
    int page, n;
} Pages;

typedef struct {
    /* Of Tier.file bytes. False: as tier_open says; close follows. */
    bool (*open)(Tier *, Err *);
    void (*close)(Tier *);
    /* Copies the pages of Tier.piece to a stage that has a slot: all at once, or ahead, while a pass computes. */
    void (*fill)(Tier *, int stage, bool ahead);
    /* Tier.piece and every stage may be changed again. */
    void (*settle)(Tier *);
    /* What a pass is given from now on finds the stage filled. */
    void (*ready)(Tier *, int stage);
    /* Bytes of the tier to or from the host. */
    void (*move)(Tier *, size_t at, char *p, size_t n, bool writes);
    /* n bytes of a page from one place of the tier to another. */
    void (*copy)(Tier *, size_t to, size_t from, size_t n);
    bool (*sound)(Tier *);
    void (*report)(Tier *, KvDisk *);
    bool idle; /* what copies ahead has nothing else to do: pages that may not be needed are copied, too */
} TierStore;
extern const TierStore tier_disk, tier_host;

struct Tier {
    const TierStore *store;
    KvTier how;
    Device *dev; /* NULL: rows are on disk */
    Slot *slot;
    int threads;                   /* of the pass */
    int nslots, nseq, rows, ndisk; /* slots: all, that have rows, whose rows are in the tier */
    size_t file, largest, page;    /* bytes: of the tier, of its largest slot, of its largest page */
    int *order, norder, next;      /* slots of the tier as passes read them; the one that a pass is expected to read */
    bool *reads;                   /* (nseq) a pass reads the rows of the sequence */
    int *from;                     /* (nseq) from this position on */
    uint32_t pass, *seen, *before; /* passes so far; (nseq) the newest that read the sequence, and the one before it */
    Stage stage[STAGES];
    int nstage, now; /* now: the buffer that Lanes.data points to */
    size_t pages;    /* of the slot with the most */
    bool *wanted;    /* (pages) of a slot, while its pages are gathered */
    Pages *piece;    /* of a slot that is read; the store's until it settles */
    int pieces;
    char *bounce; /* a page */
    KvDisk sum;
    Err why;           /* of the first failure */
    struct Disk *disk; /* what the store has opened, */
    struct Host *host; /* either */
};
