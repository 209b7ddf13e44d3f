/* acts.h: what the suites of ops on activations in BF16 share (test_ops_acts.c, test_ops_acts_recur.c): an op table
 * beside the CPU's ops in `real`, tensors of both kinds with the same numbers, and what holds one to the other. */
#pragma once
#include "rig.h"

typedef struct {
    Rig g;
    Device *cpu;
    Arena scratch;
    Run ref; /* the CPU, on the rig's batch */
    int off[2], *of, *at, *first;
    uint64_t id;
} Desk; /* one document of N rows, unless a case sets another batch */
/* A case at a size (N, and what else it takes) with every table, and by 1, 2 and 3 threads, which change no bit of what
 * `right` and `exact` are shown. */
typedef struct {
    int N, width, how;
} Size;
void everywhere(void (*f)(Desk *, Size), Size s);
/* The same op by the CPU, of numbers that are `real` in memory. */
#define REF(d, op, ...)                                                                               \
    do {                                                                                              \
        Err e_ = {0};                                                                                 \
        (d)->scratch = (Arena){.name = "scratch"};                                                    \
        (d)->ref.ops->op(&(d)->ref, __VA_ARGS__);                                                     \
        size_t peak_ = (d)->scratch.peak;                                                             \
        cr_assert(arena_open(&(d)->scratch, "scratch", peak_ ? peak_ : 64, true, &e_), "%s", e_.msg); \
        (d)->ref.ops->op(&(d)->ref, __VA_ARGS__);                                                     \
        arena_close(&(d)->scratch);                                                                   \
    } while (0)
#define HALF_OF(d, op, ...) OP(&(d)->g, op, __VA_ARGS__)

/* Memory for results: NaN. */
Tensor half_empty(Desk *, Tensor like);
Tensor empty(Desk *, Tensor like);
/* t in BF16; t itself becomes the rounded numbers. */
Tensor half_of_tensor(Desk *, Tensor t);
Tensor zeros(Desk *, Tensor like);
/* Backward once into what is fresh, whose memory is NaN, and once added to numbers. */
typedef struct {
    Tensor real, half;
} Sum;
Sum sum_make(Desk *, Tensor like, const char *name, bool fresh);

extern const double op_rms; /* root of the mean squared error of one op, by that of what is wanted */
extern double seen;         /* the worst that `right` met in this process */
void right(Desk *, const char *what, Tensor got, Tensor want);
void right_within(Desk *, const char *what, Tensor got, Tensor want, double bound);
/* Every number is the wanted one, or the nearest of its type. */
void nearest(Desk *, const char *what, Tensor got, Tensor want);
/* Of what a number alone gives, or two: on the CPU every number is the nearest. */
void exact(Desk *, const char *what, Tensor got, Tensor want);
/* A mistake's numbers, which must miss the bound tenfold. */
void wrong(const char *what, Tensor got, Tensor other);
void wrong_within(const char *what, Tensor got, Tensor other, double bound);
