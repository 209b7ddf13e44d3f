/* rig.h: what the suites of ops, gemm and cache share: a device with each op table, guarded and poisoned memory, calls
 * that are measured before they are made, wide references and the one table of tolerances. */
#pragma once
#include "check.h"
#include "../ops/device.h"

#ifdef KV_DOUBLE
typedef long double wide; /* the references' arithmetic, wider than `real` by 11 bits or by 29 */
#else
typedef double wide;
#endif

/* ---- op tables ----------------------------------------------------------------------------------------------------
 */
enum { TABLES_MAX = 4 };
typedef struct {
    const char *name;
    const Ops *ops;
} Table;
int rig_tables(Table out[TABLES_MAX]); /* those that this processor can run; of a CUDA build its own */
Table rig_first(void);                 /* the first of them */
int rig_threads(void);                 /* numbers of threads to try, from 1: an emulated device is slow and has none */
bool rig_emulated(Device *);           /* the device is tests/simt's, which watches and can be told to fail */
bool rig_steady(Device *); /* a row's sums have one order: a device's library has another for other numbers of rows */
bool rig_missing(const char *op); /* the CUDA backend, being tested, lacks it and says so (ops/cuda/ledger.h) */

/* The same numbers, of products with other numbers of rows: to the bit where sums have one order, within rms
 * elsewhere. */
#define CHECK_SAME(dev, what, got, want, n, rms)               \
    do {                                                       \
        if (rig_steady(dev))                                   \
            CHECK_BYTES(what, got, want, (n) * sizeof *(got)); \
        else                                                   \
            CHECK_RMS(what, got, want, n, rms);                \
    } while (0)

/* ---- a place to call an op from -----------------------------------------------------------------------------------
 */
typedef struct {
    const char *table;
    Device *dev;
    Arena mem, scratch; /* the test's tensors; the op's scratch, which is of exactly the measured size */
    Run run;
    Batch batch;   /* of one sequence unless the test sets another */
    uint64_t hash; /* of all results: the same for every number of threads where the header promises it */
} Rig;
void rig_open(Rig *, Table, int threads, size_t mem_bytes);
void rig_close(Rig *);                   /* checks every guard */
void rig_use(Rig *, Table, int threads); /* of what does not multiply matrices: goes on with another table */

/* Call an op twice: measured, with all tensors of `mem` out of reach (a read or a write ends the test), and then with a
 * poisoned scratch of exactly the bytes that were measured, all of which it must take and give back. */
#define CALL(g, ...)         \
    do {                     \
        rig_measure(g);      \
        (void)(__VA_ARGS__); \
        rig_place(g);        \
        (void)(__VA_ARGS__); \
        rig_done(g);         \
    } while (0)
void rig_measure(Rig *);
void rig_place(Rig *);
void rig_done(Rig *);
void rig_done_within(Rig *); /* what took no more than was measured: work that is bounded, not counted, in advance */
#define OP(g, op, ...) CALL(g, (g)->run.ops->op(&(g)->run, __VA_ARGS__))
/* The same of what may take less than was measured. */
#define OP_WITHIN(g, op, ...)                     \
    do {                                          \
        rig_measure(g);                           \
        (g)->run.ops->op(&(g)->run, __VA_ARGS__); \
        rig_place(g);                             \
        (g)->run.ops->op(&(g)->run, __VA_ARGS__); \
        rig_done_within(g);                       \
    } while (0)

/* Memory for results: NaN. Names are for guards. */
#define EMPTY(g, name, ...) \
    arena_tensor(&(g)->mem, name, REAL, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
/* N(0,1) keyed by the name and shape: the same for every table and thread count. */
#define RANDOM(g, name, ...) rig_random(EMPTY(g, name, __VA_ARGS__), name)
Tensor rig_random(Tensor t, const char *name);
void rig_result(Rig *, Tensor); /* counts towards the hash */

/* ---- references ---------------------------------------------------------------------------------------------------
 */
/* A wanted number and its natural size, which its rounding errors are proportional to: for a sum the root of the sum of
 * its squared terms, so that a result which happens to cancel is not held to an error no arithmetic reaches. */
typedef struct {
    wide want, square;
    int terms;
} Ref;
static inline void ref_add(Ref *r, wide term) {
    r->want += term;
    r->square += term * term;
    r->terms++;
}
Ref *refs(size_t n);               /* zeroed; the caller frees */
Ref *refs_of(Tensor);              /* the numbers that are there, as first terms */
Tensor tensor_copy(Rig *, Tensor); /* a second tensor of the same numbers */

/* Sum of scale a_k b_k, and in `squares` of their squares: what the rounding error of a score grows with. */
wide rig_score(const real *a, const real *b, int n, wide scale, wide *squares);
/* One query's attention to n keys of scores s, with squares e of rig_score's over Dk numbers, and values v, merged with
 * a partial (part, o0) over others, which counts as one key more of score part and value o0 (part -inf: none). Of
 * nothing: o = 0, lse = -inf. */
typedef struct {
    int n, Dk, Dv;
    wide *s, *e;
    const real **v;
    wide part;
    const real *o0;
} Seen;
Seen seen_make(int most, int Dk, int Dv);
void seen_free(Seen *);
void seen_add(Seen *, const real *q, const real *k, const real *v, wide scale);
void seen_ref(const Seen *, Ref *o, Ref *lse);

/* Worst over entries of |got - want| / (size sqrt(terms)) in units of the type's rounding error, against the table's
 * number for this op. False, with the worst entry in msg, when beyond, or NaN. */
bool rig_close_to(char msg[512], const char *op, const char *what, Tensor got, const Ref *want);
double rig_error(Tensor got, const Ref *want); /* that worst */
double rig_limit(const char *op);              /* the table's number */
#define CHECK_REF(g, op, what, got, want)                                              \
    do {                                                                               \
        char msg_[512];                                                                \
        rig_result(g, got);                                                            \
        cr_assert(rig_close_to(msg_, op, what, got, want), "%s %s", (g)->table, msg_); \
    } while (0)
/* The same reference with a planted mistake must miss the bound tenfold. */
#define CHECK_MISSED(op, what, got, wrong)                                                             \
    cr_assert(!(rig_error(got, wrong) < 10 * rig_limit(op)), "%s: %s goes unnoticed (%.3g)", op, what, \
              rig_error(got, wrong))

/* Draws for tests: 0..n-1. */
typedef struct {
    uint64_t key, n;
} Dice;
static inline int roll(Dice *d, int n) { return (int)(rng_mix(d->key, d->n++) % (uint64_t)n); }

/* ---- cases --------------------------------------------------------------------------------------------------------
 */
/* A case tests one op with N rows of width d, and is run at every size (rows x width) with the first table and at a
 * third of them with the others. The last two sizes are large enough that the work is shared between threads, and run
 * with 1, 2 and 3. Cases of attention make their own sizes and take N as the number of their draw. */
typedef void Case(Rig *, int N, int d);
enum { EXACT = 1 }; /* results do not depend on the number of threads, to the bit */
void rig_sweep(const char *op, Case *, unsigned flags);
#define OP_TEST(op, flags) \
    Test(ops, op) { rig_sweep(#op, case_##op, flags); }
Case case_linear, case_linear_backward, case_embed, case_embed_backward, case_rmsnorm, case_add_rmsnorm,
    case_rmsnorm_backward, case_rope, case_swiglu, case_swiglu_backward, case_add, case_axpby, case_copy, case_zero,
    case_gather, case_dropout, case_linear_groups, case_linear_groups_backward, case_spread, case_move, case_collect,
    case_swiglu_rows, case_swiglu_rows_backward, case_linear_xent, case_adamw, case_adamw_bf16, case_momentum,
    case_momentum_bf16, case_sumsq, case_attend, case_attend_backward, case_attend_lanes, case_linear_heads,
    case_columns, case_columns_backward, case_repeat, case_elu1, case_elu1_backward, case_widen, case_widen_backward,
    case_quotient, case_quotient_backward, case_step, case_step_backward, case_skip, case_skip_backward, case_recur,
    case_short_conv, case_short_conv_backward, case_l2norm, case_l2norm_backward, case_decay, case_decay_backward,
    case_sigmoid, case_sigmoid_backward, case_gated_norm, case_gated_norm_backward, case_linear_steady, case_merge,
    case_merge_backward, case_layernorm, case_layernorm_backward, case_gelu, case_gelu_backward, case_linear_distill,
    case_align, case_narrow, case_decide, case_decide_backward, case_mean_rows, case_scale_column, case_normalise,
    case_sumsqs, case_sumsqs_there, case_linear_many, case_linear_many_backward, case_rmsnorm_rope,
    case_rmsnorm_rope_backward;
