/* acts.h: shared code of the suites of ops on activations in BF16 (test_ops_acts.c, test_ops_acts_recur.c): an op table
 * next to the CPU's ops in `real`, tensors of both dtypes with the same elements, and the comparison of the two. */
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
/* Runs a case at a size (N, and other inputs) with every table, and with 1, 2 and 3 threads, which change no bit of the
 * results that `right` and `exact` compare. */
typedef struct {
    int N, width, how;
} Size;
void everywhere(void (*f)(Desk *, Size), Size s);
/* The same op by the CPU, on tensors that are `real` in memory. */
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
#define BF16_OF(d, op, ...) OP(&(d)->g, op, __VA_ARGS__)

/* Memory for results: NaN. */
Tensor bf16_empty(Desk *, Tensor like);
Tensor empty(Desk *, Tensor like);
/* t in BF16; the elements of t itself are rounded. */
Tensor bf16_of_tensor(Desk *, Tensor t);
Tensor zeros(Desk *, Tensor like);
/* Backward once into gradients to be overwritten, whose memory is NaN, and once added to values. */
typedef struct {
    Tensor real, bf16;
    bool overwrite;
} Sum;
static inline Into sum_into(Sum s) { return (Into){s.bf16, s.overwrite}; }
Sum sum_make(Desk *, Tensor like, const char *name, bool overwrite);

extern const double op_rms; /* root of the mean squared error of one op, by that of what is wanted */
extern double seen;         /* the worst that `right` met in this process */
void right(Desk *, const char *what, Tensor got, Tensor want);
void right_within(Desk *, const char *what, Tensor got, Tensor want, double bound);
/* Every number is the wanted one, or the nearest of its type. */
void nearest(Desk *, const char *what, Tensor got, Tensor want);
/* For results of one element, or two: on the CPU every element is the nearest. */
void exact(Desk *, const char *what, Tensor got, Tensor want);
/* The values of a planted mistake, which must miss the bound tenfold. */
void wrong(const char *what, Tensor got, Tensor other);
void wrong_within(const char *what, Tensor got, Tensor other, double bound);
