/* recur_ref.h: the recurrence of ops/recur.h and its gradient in double, row by row with every state kept. The suites
 * of the recurrences compare the ops with it. */
#pragma once
#include "rig.h"

typedef struct {
    int N, B, nseq, H, HV, K, V, gwidth; /* gwidth 0: no decay, 1: per head, K: per channel */
    bool delta, history;                 /* history: the first document of some sequences continues one */
    double scale;
    int *off, *seq, *of, *pos, *first;
    wide *q, *k, *v, *g, *beta, *e, *start; /* e: NULL without erase keys; start (nseq,HV,K,V) */
} Scene;
typedef struct {
    wide *o, *end;                                 /* forward */
    wide *dq, *dk, *dv, *dg, *dbeta, *de, *dstart; /* backward, of sum dout.o + sum dend.end */
} Result;

/* Documents of the lengths given in turn, packed into B sequences; of sequences whose number is odd the first one
 * continues a history when `history`. Inputs are N(0,1), keys unit vectors, g = -|N(0,1)|, beta in (0,1). */
Scene *recur_case(int B, const int *rows, const int *docs, int ndocs, int H, int HV, int K, int V, int gwidth,
                  bool delta, bool history);
/* Gives the scene erase keys: k by factors in (0,1), each channel its own, and a little that is not along k. */
Scene *recur_erase(Scene *);
void recur_case_free(Scene *);
Batch recur_batch(const Scene *);
Result recur_ref(const Scene *, const wide *dout, const wide *dend); /* dout NULL: forward only */
void result_free(Result *);

wide *recur_weights(size_t n, int salt); /* N(0,1) */
enum { RECUR_RESULTS = 9 };
extern const char *const recur_results[RECUR_RESULTS]; /* o, final state, gradients */
typedef struct {
    size_t i;
    double got, want;
} Worst;
/* Runs both ops on the scene and compares every result with the reference on `as`: root mean squares of the errors, for
 * those wanted (0: the rule has no such result), and the worst element of each. Also checks the last sentence of
 * recur_hold. */
void recur_apart(Rig *, const Scene *, const Scene *as, double err[RECUR_RESULTS], Worst[RECUR_RESULTS]);
/* Runs both ops on the scene and compares every result with the reference; the largest error, by root mean squares.
 * Also: a held pass writes nothing, and elements of the state that belong to others stay. */
double recur_hold(Rig *, const Scene *);
