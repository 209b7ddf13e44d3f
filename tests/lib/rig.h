/* rig.h: what the suites of ops, gemm and cache share: a device with each op table, guarded and poisoned memory, calls
 * that are measured before they are made, wide references and the one table of tolerances. */
#pragma once
#include "check.h"
#include "ops/device.h"

/* wide: the references' arithmetic, wider than `real` by 11 bits or by 29. Its functions are those of its own width:
 * for a double those of long double need ten times as long. */
#ifdef KV_DOUBLE
typedef long double wide;
    #define WIDE_FUNCTION(f) \
        static inline wide wide_##f(wide x) { return f##l(x); }
#else
typedef double wide;
    #define WIDE_FUNCTION(f) \
        static inline wide wide_##f(wide x) { return f(x); }
#endif
WIDE_FUNCTION(exp)
WIDE_FUNCTION(log)
WIDE_FUNCTION(sqrt)
WIDE_FUNCTION(fabs)
WIDE_FUNCTION(tanh)
WIDE_FUNCTION(sin)
WIDE_FUNCTION(cos)

/* ---- op tables ----------------------------------------------------------------------------------------------------
 */
enum { TABLES_MAX = 6 };
typedef struct {
    const char *name;
    const Ops *ops;
    PairProduct *pairs; /* attention's products in tiles; NULL: in the table's vectors */
} Table;
int rig_tables(Table out[TABLES_MAX]); /* those that this processor can run; of a CUDA build its own */
int rig_pairs(Table out[TABLES_MAX]);  /* and the last one with products in tiles: emulated, and the processor's */
Table rig_first(void);                 /* the first of them */
int rig_threads(void);                 /* numbers of threads to try, from 1: an emulated device is slow and has none */
bool rig_emulated(Device *);           /* the device is tests/simt's, which watches and can be made to fail */
bool rig_invariant(
    Device *); /* a row's sums have one order: a device's library has another for other numbers of rows */

/* Compares the results of products with different numbers of rows: equal bits if sums have one order, within rms
 * elsewhere. */
#define CHECK_SAME(dev, what, got, want, n, rms)               \
    do {                                                       \
        if (rig_invariant(dev))                                \
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
void rig_use(Rig *, Table, int threads); /* for ops that multiply no matrices: continues with another table */

/* Calls an op twice: measured, with all tensors of `mem` out of reach (a read or a write ends the test), and then with
 * a poisoned scratch of exactly the measured bytes, all of which it must take and give back. */
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
/* The same for an op that may need less than was measured. */
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
/* An expected value and its natural size, to which its rounding errors are proportional: for a sum the root of the sum
 * of its squared terms, so that a result which happens to cancel is not compared with an error no arithmetic
 * reaches. */
typedef struct {
    wide want, square;
    int terms;
} Ref;
static inline void ref_term(Ref *r, wide term) {
    r->want += term;
    r->square += term * term;
    r->terms++;
}
Ref *refs(size_t n);               /* zeroed; the caller frees */
Ref *refs_of(Tensor);              /* the present values, as first terms */
Tensor tensor_copy(Rig *, Tensor); /* a second tensor of the same elements */

/* Sum of scale a_k b_k, and in `squares` of their squares: what the rounding error of a score grows with. */
wide rig_cap(wide s, wide cap, wide *slope); /* cap tanh(s/cap), or s; its derivative */
wide rig_score(const real *a, const real *b, int n, wide scale, wide *squares);
/* One query's attention to n keys of scores s, with squares e of rig_score's over Dk elements, and values v, merged
 * with a partial (part, o0) over others, which counts as one more key of score part and value o0 (part -inf: none). Of
 * nothing: o = 0, lse = -inf. */
typedef struct {
    int n, Dk, Dv;
    wide *s, *e;
    const real **v;
    wide part;
    const real *o0;
    wide cap; /* AttnSpec.cap */
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
/* A case tests one op with N rows of width d, and runs at every size (rows x width) with the first table and at a third
 * of them with the others. The last two sizes are large enough to be divided among threads, and run with 1, 2 and 3.
 * Cases of attention make their own sizes and use N as the number of their draw. */
typedef void Case(Rig *, int N, int d);
enum { EXACT = 1 }; /* results do not depend on the number of threads, to the bit */
void rig_sweep(const char *op, Case *, unsigned flags);
/* The case of an op with its tolerance, in units of (rounding error of the type) x (size of the entry) x sqrt(terms of
 * its sum): the largest error of an entry. A sum of n rounded random terms errs by 0.4 of this; exp by 2 units, or by
 * as many as the score is large. Each is 1.5 to 10 times the worst that the suites meet; planted mistakes must lie ten
 * times beyond. Every op of ops.def has one (ops/the_table_is_complete). */
typedef struct {
    Case *run;
    double units;
} OpCase;
#define OP_CASE(op, case_, units) const OpCase op_case_##op = {case_, units}
#define OP_TEST(op, flags, units)  \
    OP_CASE(op, case_##op, units); \
    Test(ops, op) { rig_sweep(#op, case_##op, flags); }
/* Weak: a program of some suites has the cases of those. */
#define DECLARE_CASE(op) \
    Case case_##op;      \
    extern const OpCase op_case_##op __attribute__((weak));
#define DEF(result, op, ...) DECLARE_CASE(op)
#include "ops/ops.def"
DECLARE_CASE(adamw_bf16)
DECLARE_CASE(momentum_bf16)
DECLARE_CASE(gemm)
const OpCase *rig_case(const char *op); /* NULL: none here */
