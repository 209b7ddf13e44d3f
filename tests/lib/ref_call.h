/* ref_call.h: one call of an op with drawn arguments, made by the reference (ops/ref) and by every op table, and the
 * comparison of the two. test_ops_ref.c draws such calls for every op; tests/lib/ref_args*.c make their arguments.
 *
 * The bound on an element y of a result is
 *
 *   units u sqrt(n) (|y| + s) + r
 *
 * u: the rounding unit of `real`. n: the terms of the longest sum behind y; their roundings add up like a random walk.
 * s: what rounding every input once does to y, in units of u; what a cancelling sum, an exponential of a large score or
 * a quotient makes of an error. It is measured: root of the sum of squares of y's changes in NUDGES calls of the
 * reference in F64 for each input, whose elements move by random signs times about 2^-30 of themselves. r: half a step
 * of BF16 where y is stored so, else 0. units: what the operation costs more than one rounding; 4 unless the op's line
 * in test_ops_ref.c says more. In the f64 build the reference rounds as well: twice as many. */
#pragma once
#include "ops/ref/ref.h"
#include "roles.h"

enum { SLOTS = 64, RAWS = 24, NUDGES = 2, CALL_ROWS = 1500 };

/* A tensor of the arguments. */
typedef struct {
    Tensor *at; /* while arguments are made: F64, the elements `before` */
    const char *name;
    unsigned roles;
    bool overwrite, *over;         /* of one that may be either; where the arguments say so, NULL: nowhere of its own */
    Tensor as;                     /* its type and shape in the table's call; no memory */
    bool partial;                  /* an output of which a part is written */
    bool moment;                   /* BF16 by chance: the reference may fall on the other side */
    double *before, *want, *slack; /* slack: sums of squares of the nudges' changes */
    void *stored;                  /* the reference's result of the table's types */
} Slot;
/* Other memory: NULL copies of it are not made. */
typedef struct {
    void *at; /* the address of a pointer */
    void *before, *want;
    size_t bytes;
    enum { RAW_IN, RAW_EXACT, RAW_F64 } kind; /* read; written, the same bytes; written, doubles within the bound */
    bool host;                                /* the op reads or writes it on the host */
} Raw;

typedef struct OpCall OpCall;
struct OpCall {
    const char *op;
    int at; /* of op_roles() */
    int N, d;
    int draw;
    bool large, history;
    Dice dice;
    Run run; /* batch, rows, mode, seed: what the call gets */
    Batch batch;
    int off[8], seq[8], of[CALL_ROWS + 1], pos[CALL_ROWS + 1], first[CALL_ROWS + 1], all[CALL_ROWS + 1],
        some[CALL_ROWS + 1];
    uint64_t id[8];
    Dtype alike; /* of this call's ALIKE tensors */
    int nslots, nraws, nowned;
    Slot slot[SLOTS];
    Raw raw[RAWS];
    void *owned[SLOTS];
    long terms;
    int past; /* most rows of a history that call_batch draws */
    void *args;
    double result;
    bool within; /* the op may take less scratch than was measured */
};

/* ---- drawing ---- */
int draw_of(OpCall *, int n); /* 0..n-1 */
bool coin(OpCall *);
double uniform_in(OpCall *, double from, double to);
void *call_own(OpCall *, size_t bytes);     /* zeroed, freed with the call */
int *call_ints(OpCall *, int n, int below); /* n draws of 0..below-1 */
Dtype any_dtype(OpCall *);                  /* REAL or BF16 */
/* B sequences of documents; with history some sequences continue one. */
void call_batch(OpCall *, int B, bool history);
RowList call_some_rows(OpCall *); /* of the batch, ascending, at least one */

/* An argument (or a tensor in one) of the op's parameter `name`: drawn elements N(0,1), absent at times where the role
 * allows, BF16 and to be overwritten at times where it does. Returns the elements, NULL: absent. The maker may change
 * them. */
double *call_arg(OpCall *, const char *name, Tensor *at, bool *over, unsigned roles, int rank, const int n[]);
/* The same of a given type, and present. */
double *call_arg_as(OpCall *, const char *name, Tensor *at, bool *over, unsigned roles, Dtype dtype, int rank,
                    const int n[]);
Slot *call_slot(OpCall *, const Tensor *at);
/* Elements become those that their types hold; makers compute what depends on others after that. */
void call_settle(OpCall *);
void call_raw(OpCall *, void *at, size_t bytes, int kind, bool host);
void call_has(OpCall *, const char *name); /* an argument that is no tensor, but was made */

#define SHAPE_(...) \
    (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]) { __VA_ARGS__ }
/* The tensor of a Tensor or an Into, and where the latter says whether it is overwritten. */
#define TENSOR_IN(x)     _Generic((x), Tensor : (Tensor *)(void *)&(x), Into : &((Into *)(void *)&(x))->t)
#define OVER_IN(x)       _Generic((x), Tensor : (bool *)NULL, Into : &((Into *)(void *)&(x))->overwrite)
#define ARG(x, ...)      call_arg(c, #x, TENSOR_IN(a->x), OVER_IN(a->x), 0, SHAPE_(__VA_ARGS__))
#define MUST(x, ...)     call_arg_as(c, #x, TENSOR_IN(a->x), OVER_IN(a->x), 0, REAL, SHAPE_(__VA_ARGS__))
#define AS(type, x, ...) call_arg_as(c, #x, TENSOR_IN(a->x), OVER_IN(a->x), 0, type, SHAPE_(__VA_ARGS__))
/* A tensor `t` inside argument `name`, with roles of its own (0: the argument's). */
#define PART(name, t, roles, ...) call_arg(c, name, TENSOR_IN(t), OVER_IN(t), roles, SHAPE_(__VA_ARGS__))
#define PART_AS(type, name, t, roles, ...) \
    call_arg_as(c, name, TENSOR_IN(t), OVER_IN(t), roles, type, SHAPE_(__VA_ARGS__))

/* ---- ops ---- */
#define CALL_FIELD(type, name, ...) type name;
#define DEF(result, op, flops, ...)      \
    typedef struct {                     \
        OP_EACH(CALL_FIELD, __VA_ARGS__) \
    } Args_##op;                         \
    void make_##op(OpCall *, Args_##op *);
#include "ops/ops.def"
#define MAKE(op) void make_##op(OpCall *c, Args_##op *a)

/* What an op costs: units as above, 0 for the same bits; and a share of the row's root mean square that is added to
 * |y| + s where what cancels on the way does not show in s. */
typedef struct {
    double units, floor;
} Cost;
/* What `call_compare` met: the largest error as a share of its bound, and where. */
typedef struct {
    double share;
    int planted, found; /* mistakes */
    char where[200];
} Worst;
/* Whether every element of `got` lies within its bound of slot s; adds to the worst. */
bool call_within(const OpCall *, const Slot *s, const double *got, Cost, Worst *);

/* Draw a call of op number `at`, of a drawn size (size NULL) or of {rows, width}, make the reference's results, call
 * every table and compare; false with why in msg.
 * planted: instead each result is compared again with a mistake of 1e-3 (BF16: 1e-2) in one ordinary element. */
bool call_try(int at, int draw, const int size[2], Cost, bool threads_exact, bool planted, Worst *, char msg[400]);
/* Which forms of its arguments calls of an op had: absent, present, in BF16, in REAL, overwritten, added to. False,
 * with the first form that was never tried in msg. */
bool call_forms_met(int at, char msg[200]);
