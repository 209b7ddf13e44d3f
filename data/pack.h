/* pack.h: pieces of different lengths into windows of one length, as few as best-fit decreasing finds.
 *
 * The pieces are taken by falling length, those of one length by rising number. Each goes into the window whose free
 * room is the least that holds it (of several the one that came to that room last), or into a new window. The windows'
 * numbers are the order in which they were opened; a window holds its pieces in the order in which they came. Nothing
 * is drawn: equal lengths give equal windows. Cost: O(n log room). */
#pragma once
#include "../ops/base.h"

typedef struct {
    int n;      /* windows */
    int *first; /* (n+1) place in `piece` where a window's pieces begin */
    int *piece; /* numbers of pieces */
} Pack;
/* len: (n) of each piece, 1 to room; room <= 2^24. */
void pack_make(Pack *, const int *len, int n, int room);
void pack_free(Pack *);
