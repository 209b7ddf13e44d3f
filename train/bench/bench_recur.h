/* bench_recur.h: times the recurrences alone (ops/recur.h). The command `bench recur` calls it. */
#pragma once
#include "bench.h"

typedef enum {
    RULE_KDA,
    RULE_GDN,
    RULE_DELTANET,
    RULE_GLA,
    RULE_RETENTION,
    RULE_LINEAR,
    RULE_MAMBA2,
    RULE_GDN2,
    RULE_COMBA,
    RULES
} RecurRule;
extern const char *const recur_rules[RULES]; /* "kda" */
typedef struct {
    int B, T, H, D; /* sequences of T rows, H heads of D x D values, Mamba-2's of 2 D x D */
} RecurShape;
/* "kda"; false: no such rule. "1x8192x96x128"; false: no such shape. */
bool recur_rule_read(const char *word, RecurRule *);
bool recur_shape_read(const char *word, RecurShape *);
/* Times Ops.recur, and Ops.recur with its backward by q, k, v, g, beta and e, on random rows without history. On a
 * device that computes in bf16, q, k, v, o and their gradients are bf16 in memory, as layers have them, and the
 * gradients are overwritten. False: EXIT_RUNTIME, no memory. */
bool bench_recur(Device *, RecurRule, RecurShape, double seconds, Timing *forward, Timing *both, Err *);
