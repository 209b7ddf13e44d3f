/* pack.h: packs pieces of different lengths into as few windows of one length as best-fit decreasing finds. sft.c
 * packs conversations with it.
 *
 * Pieces are placed by decreasing length, equal lengths by increasing number. Each goes into the window with the least
 * free room that holds it (of several, the one that reached that room last), or into a new window. Windows are
 * numbered in the order in which they are opened, and hold their pieces in the order in which they came. There is no
 * randomness: equal lengths give equal windows. Cost: O(n log room). */
#pragma once
#include "ops/base.h"

typedef struct {
    int n;      /* windows */
    int *first; /* (n+1) place in `piece` where a window's pieces begin */
    int *piece; /* numbers of pieces */
} Pack;
/* len (n): the length of each piece, 1 to room; room <= 2^24. */
void pack_make(Pack *, const int *len, int n, int room);
void pack_free(Pack *);
