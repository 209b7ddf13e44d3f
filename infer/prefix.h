/* prefix.h: texts that begin with the same tokens compute and store them once. `generate` and `eval choices` walk over
 * their texts with it.
 *
 * The texts are sorted, so those with a common beginning follow each other. Where at least two of them branch,
 * PREFIX_LEAST or more tokens after the last such place, the beginning is a prefix: it is fed once, alone, into a
 * spare sequence of the session (SessionOpts.spare), and every text that has it starts as a fork of that sequence.
 * Pages of rows are shared; states, carried rows and queries that a policy keeps are copied. This holds for every
 * mixer, codec and policy: before a prompt ends, what the cache holds is a function of the tokens fed and of the cuts
 * between passes, and the prefix of a prompt ends before its last token.
 *
 * Cuts: a text is cut at its prefixes whether they are shared or not, and the pieces up to the last of them are fed
 * without company. So `apart`, which computes everything for each text, gives the same bits. */
#pragma once
#include "session.h"

enum { PREFIX_DEPTH = 8, PREFIX_LEAST = 32 }; /* prefixes of prefixes; tokens by which each is longer */
typedef struct {
    int n;
    const int *tok;
} PrefixText;
typedef struct {
    const PrefixText *text;
    int n, at;                /* texts; how many were handed out */
    int depth, most;          /* prefixes of the newest text; at most */
    int len[PREFIX_DEPTH];    /* their lengths, ascending; prefix i is in sequence nseq + i */
    int *order, *same, *less; /* (n) sorted; tokens in common with the one before; the next with fewer */
    bool apart;
} Prefixes;

/* Sort n texts of at least one token, which must stay. spare: prefixes at most that the session has room for (0: texts
 * keep their order); apart: nothing is shared. */
void prefixes_open(Prefixes *, const PrefixText *, int n, int spare, bool apart);
void prefixes_close(Prefixes *);
/* Spare sequences that n texts need: 0 if no two share a prefix. */
int prefixes_depth(const PrefixText *, int n);
/* The next text begins in sequence seq, whatever that held: *which of them, of which *have tokens are in the sequence,
 * *computed of those by this call. The caller feeds the rest, at least one token. False as session_extend. */
bool prefixes_next(Prefixes *, Session *, int seq, int *which, int *have, int *computed, Err *);
