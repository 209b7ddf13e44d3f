/* tier.h: the slower tier of a cache: slots whose rows lie in a file without a name or, of a GPU's cache, in pinned
 * memory of the host, and the buffers to which they are copied while a pass runs. The files of this folder call it;
 * docs/tiers.md says what it is for.
 *
 * - A slot is in memory or in the tier as a whole. What places its rows (tables, positions) stays in memory.
 * - A pass reads the rows of its sequences, in whole pages, before their layer attends to them: all, or the pages that
 *   a policy selects (select.c). With two buffers those of the next slot are copied meanwhile: by a thread, or by a
 *   second queue of the GPU, for which its own then waits. Of pages that will be selected those are copied that the
 *   layer before guessed, and by a GPU's queue those that were selected last; what else is selected when it is.
 * - Rows that change are written at once, without being read: to the file, or by the GPU to the host's memory. A buffer
 *   that held them is read again.
 * - A disk that fails is noted, and what it did not give is zeros: the pass runs to its end and then fails. */
#pragma once
#include "cache.h"

typedef struct Tier Tier;
/* For slots 0..nslots-1, with their shapes; nothing is mapped or opened. A device that has memory of its own (NULL:
 * none) has its tier in the host's. threads: that read where a pass waits. */
Tier *tier_make(const KvTier *, Device *, int threads, Slot *slots, int nslots, int nseq);
void tier_free(Tier *); /* NULL: nothing */
/* The rows of n slots go to the tier: the largest, of equal ones n spread over the depth. Returns how many slots have
 * rows: more than those cannot. */
int tier_choose(Tier *, int n);
/* Buffers go to `rows`, what the host alone reads to `a`; after the slots have been placed. */
void tier_place(Tier *, Arena *rows, Arena *a);
/* The file, with its space reserved, and the thread; or the host's memory, and the queue. EXIT_INPUT: the folder is
 * missing or not to be written. EXIT_RUNTIME: the disk is full, or fails; the host has no such memory. */
bool tier_open(Tier *, Err *);
/* Slots in the order in which passes read them. */
void tier_order(Tier *, int n, const int *slots);

/* A pass begins; no page that it reads changes before tier_bring has been called for the last time. */
void tier_begin(Tier *, const Batch *);
/* The pass is expected to read this page of a slot whose rows a policy selects, and no others but those that are named
 * so, too. */
void tier_expect(const Slot *, int page);
bool tier_expects(const Slot *); /* it helps: the slot's rows are in a tier that reads ahead */
/* It reads this page; all pages with rows of its sequences. */
void tier_want(const Slot *, int page);
void tier_want_all(const Slot *);
/* Lanes.data of a slot of the tier, on a GPU that of kv_lanes_there, holds the wanted pages and those that earlier
 * calls for it brought, until the next call for another slot or a write to it. */
void tier_bring(const Slot *);
/* Nothing more is wanted of the slot before it is attended to: the next one is read ahead. */
void tier_onward(const Slot *);
/* All rows of the pass's sequences: the three calls before. */
void tier_stage(const Slot *);
/* The same with all rows of one sequence, between passes. */
void tier_stage_sequence(const Slot *, int seq);
/* Bytes of a slot of the tier, counted from the begin of its rows. On a GPU the first two wait for it. */
void tier_read(const Slot *, size_t at, void *to, size_t n);
void tier_write(const Slot *, size_t at, const void *from, size_t n);
void tier_copy(const Slot *, size_t to, size_t from, size_t n); /* n: of a page at most */
/* Of a GPU: kernels read and write so many bytes of a slot where they lie (Lanes.data of kv_lanes). */
void tier_touched(const Slot *, size_t read, size_t written);
/* False: a read or a write has failed (EXIT_RUNTIME). */
bool tier_sound(Tier *, Err *);
KvDisk tier_report(Tier *);
