/* loss_split.h: divides the loss of a text by how much context a token has, and by whether the context has shown it.
 * `compare` calls it for every run. It needs tokens and losses, no model.
 *
 * Row i of a window reads token a = tok[i] and predicts b = tgt[i]; pos[i] rows of its document come before it. Its
 * loss counts
 * - in bucket k, the smallest with pos[i] + 1 <= 4^k: rows that see 1, 2 to 4, 5 to 16, 17 to 64, ... tokens;
 * - as LOSS_FIRST if no earlier row j of its document in the window (i - pos[i] <= j < i) has tok[j] = a, tgt[j] = b;
 * - otherwise as LOSS_COMMON if the pair a b occurs more than `limit` times in the training text;
 * - otherwise as LOSS_HIT, an AR hit (associative recall) of Zoology, arXiv:2312.04927, section 3: the last token of a
 *   bigram that the context has shown and that is too rare to be known by heart. Its "other tokens" are the two kinds
 *   before. */
#pragma once
#include "data/tokens.h"

enum { LOSS_BUCKETS = 16 };
typedef enum { LOSS_HIT, LOSS_FIRST, LOSS_COMMON, LOSS_KINDS } LossKind;
typedef struct {
    int64_t n;
    double nll; /* sum, nats */
} LossSum;
typedef struct {
    LossSum all, bucket[LOSS_BUCKETS], kind[LOSS_KINDS];
} LossSplit;
int loss_bucket(int pos); /* of pos tokens before, at most 4^(LOSS_BUCKETS - 1) - 1 */

/* Pairs of tokens, each with a number. */
typedef struct {
    size_t n, cap;
    uint64_t *key; /* 0: free */
    int64_t *value;
} Pairs;
void pairs_open(Pairs *, size_t most); /* room for `most` pairs */
void pairs_close(Pairs *);
/* The number of the pair a b; added with 0 if it is not there and `add`, else NULL. */
int64_t *pairs_find(const Pairs *, int64_t a, int64_t b);
int64_t *pairs_add(Pairs *, int64_t a, int64_t b);
/* Adds the occurrences in a text, token by token, to the pairs that are there. */
void pairs_count(Pairs *, const Tokens *);

/* Adds the n rows of one window, which has at most 2^31 / 4 rows. `counts`: of the pairs in the training text; a pair
 * that is not in it has none. */
void loss_split_add(LossSplit *, const Pairs *counts, int64_t limit, int n, const int *tok, const int *tgt,
                    const int *pos, const double *nll);
