/* levels.h: log-linear attention: a recurrence with several states per value head, one for each level of distance, of
 * which every token weighs the results. line.c, kda.c and mamba2.c call these in every pass of a layer with `levels`.
 *
 *   level(t,s) = min(length of (t xor s) in binary, n - 1)    of the read at t of the write at s, in a document
 *   o_t = sum over levels l of lambda_tl (F_l - F_(l-1))_t    F_l: what is read of the levels 0..l; F_(-1) = 0
 *   lambda_tl = softplus(L_l (Wl x_t)_l)                      n per value head
 *
 * A write of level l >= 1 lies in the lower half of the reader's block of 2^l tokens, and the reader in the upper half.
 * So F_l is the recurrence of ops/recur.h with a state that becomes zero wherever a block of 2^l tokens begins. F_(n-1)
 * is the recurrence as it is: the last level has all writes that are older, however long the document. F_0 reads a
 * token's own writes alone and needs no state between tokens. The transitions of the state do not depend on what was
 * written, so the difference of two F is what is read of the writes between them, with the delta rule too.
 *
 * State: S of F_1 .. F_(n-1), one after the other; with n = 1 that of F_0. Source: arXiv:2506.04761. */
#pragma once
#include "steps.h"

typedef struct {
    int n;       /* levels, at least 1 */
    Steps steps; /* of the recurrence's rows; a block has 2^l tokens, whatever the rows of a token */
    double scale;
} Levels;
enum { LEVELS_MOST = 24 };
#define LEVELS_KEY(Cfg)                                                                                               \
    {                                                                                                                 \
        "levels", KEY_INT, offsetof(Cfg, levels), "0", 0, LEVELS_MOST,                                                \
            "log-linear attention: states by distance, each weighed by the reader: a token itself, its blocks of 2, " \
            "4, .. tokens, and in the last level all that is older; 0: one state",                                    \
            0, 0                                                                                                      \
    }
/* Whether so many states of `size` values fit; the message names the key. */
bool levels_check(int n, double size, Err *);

/* States per value head; n 0: without levels. */
static inline int levels_states(int n) { return n > 2 ? n - 1 : 1; }

/* o (N,HV,V) of tokens. x: rows of steps. delta (N,HV n): Wl x. L (HV,n). state and at: as of Ops.recur. */
void levels_forward(Run *r, const Levels *c, Recur x, Tensor delta, Tensor L, Tensor state, int at, Tensor o);
/* Computes the recurrences again, so that nothing of them is saved. Overwrites d, which has the shapes and types of x,
 * and ddelta; adds to dL. dout (N,HV,V) of tokens. */
void levels_backward(Run *r, const Levels *c, const Recur *d, Tensor ddelta, Tensor dL, Tensor dout, Recur x,
                     Tensor delta, Tensor L);
/* Forward FLOPs of a token: `state` for each state that it decays, writes and reads, and `pair` for each row that it
 * meets in its chunk. */
double levels_flops(const Levels *c, double state, double pair, double context);
