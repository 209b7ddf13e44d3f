/* test_ops_ref.c: every op of every table against its definition in ops/ref, for drawn shapes, types and options. The
 * bound on an error, and how calls are drawn: tests/lib/ref_call.h. CHECK_VERBOSE=1 prints the worst of each op. */
#include "tests/lib/ref_call.h"

enum { DRAWS = 8, DRAWS_MOST = 60 };
/* What is not 4 units without a floor. */
static const struct {
    const char *op;
    Cost cost;
} costs[] = {
    {"copy", {0, 0}},
    {"zero", {0, 0}},
    {"gather", {0, 0}},
    {"move", {0, 0}},
    {"spread", {0, 0}},
    {"columns", {0, 0}},
    {"repeat", {0, 0}},
    {"append_ones", {0, 0}},
    {"round_to_bf16", {0, 0}},
    {"recode_rows", {0, 0}},
    {"encode_rows", {0, 0}},
    {"gelu", {8, 0}},           /* a polynomial for the normal distribution, 6 units */
    {"gelu_backward", {24, 0}}, /* and exp of a cubic */
    {"attend", {8, 0}},         /* tanh of a capped score */
    {"attend_lanes", {8, 0}},
    {"attend_backward", {8, 0}},
    {"geglu", {8, 0}}, /* as gelu */
    {"geglu_backward", {24, 0}},
    {"map_logits", {8, 0}},      /* tanh, whose small values cancel */
    {"swiglu_backward", {8, 0}}, /* s + silu (1 - s), which cancels where silu turns */
    {"swiglu_rows_backward", {8, 0}},
    {"swiglu_limit_backward", {8, 0}},
    {"gated_norm_backward", {8, 0.25}}, /* of narrow groups little is left */
    {"linear_xent", {4, 1}},            /* log sum exp - z: both as large as the logits */
    {"linear_distill", {16, 1}},        /* differences of logarithms, weighted by exponentials */
    {"rope", {4, 0.5}},                 /* two terms that may cancel: their nudges may, too */
    {"rmsnorm_rope", {4, 0.5}},
    {"hadamard", {4, 1}}, /* up to 256 terms that may cancel */
    {"rmsnorm_rope_backward", {4, 0.5}},
    {"recur", {4, 1}}, /* chunks solve a triangle of 64 rows: sums in another order */
    {"recur_backward", {16, 1}},
};
/* Products of a library: thread counts may change the last bits. */
static const char *const by_threads[] = {"linear",      "linear_backward", "linear_many", "linear_many_backward",
                                         "linear_xent", "linear_distill"};
static Cost cost_of(const char *op) {
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (!strcmp(costs[i].op, op)) return costs[i].cost;
    return (Cost){4, 0};
}
static bool exact_by_threads(const char *op) {
    for (size_t i = 0; i < sizeof by_threads / sizeof *by_threads; i++)
        if (!strcmp(by_threads[i], op)) return false;
    return true;
}

static void try_op(int at, const char *op) {
    Worst worst = {0};
    char msg[400] = "";
    int draw = 0;
    while (draw < DRAWS || (!cuda_ops() && draw < DRAWS_MOST && !call_forms_met(at, msg))) {
        bool ok = call_try(at, draw++, NULL, cost_of(op), exact_by_threads(op), false, &worst, msg);
        cr_assert(ok, "%s: %s", op, msg);
    }
    cr_assert(cuda_ops() || call_forms_met(at, msg), "%s", msg); /* CUDA has not every form, see ops.def */
    check_log(op, worst.share, 1, 0, (size_t)draw);
    const char *v = getenv("CHECK_VERBOSE");
    if (v && *v == '1') fprintf(stderr, "%s: %.3g of the bound in %d draws; %s\n", op, worst.share, draw, worst.where);
}
enum {
#define DEF(result, op, ...) AT_##op,
#include "ops/ops.def"
};
#define DEF(result, op, ...) \
    Test(ref, op) { try_op(AT_##op, #op); }
#include "ops/ops.def"

/* A mistake of a thousandth in one element is found, in every result of every op; of 1% where it is stored in BF16. */
Test(ref, a_planted_mistake_is_found) {
    Worst worst = {0};
    char msg[400] = "";
    int ops = 0;
#define DEF(result, op, ...)                                                                         \
    for (int draw = 2; draw < 5; draw++)                                                             \
        cr_assert(call_try(AT_##op, draw, NULL, cost_of(#op), false, true, &worst, msg), "%s", msg); \
    ops++;
#include "ops/ops.def"
    cr_assert(worst.planted > 3 * ops && worst.found == worst.planted, "%d of %d; %s", worst.found, worst.planted,
              worst.where);
}

/* Sums over rows that the drawn sizes do not reach: rows that a warp, a block and no block of a device holds, rows in
 * many slices, channels in many blocks. */
static void sized(int at, const char *op, int n, const int sizes[][2]) {
    Worst worst = {0};
    char msg[400] = "";
    for (int i = 0; i < n; i++)
        cr_assert(call_try(at, 2 + i, sizes[i], cost_of(op), false, false, &worst, msg), "%s: %s", op, msg);
}
#define SIZED(op, ...)                                                   \
    Test(ref, sizes_of_##op) {                                           \
        static const int sizes[][2] = {__VA_ARGS__};                     \
        sized(AT_##op, #op, (int)(sizeof sizes / sizeof *sizes), sizes); \
    }
SIZED(rmsnorm_backward, {70, 600}, {35, 1028}, {18, 2052}, {5, 4100}, {20, 4098}, {3, 8200})
SIZED(layernorm_backward, {70, 600}, {35, 1028}, {18, 2052}, {5, 4100}, {20, 4098}, {3, 8200})
SIZED(gated_norm_backward, {40, 128}, {12, 516}, {6, 1028}, {6, 2052}, {2, 4100})
SIZED(decay_backward, {700, 24})
SIZED(step_backward, {1500, 6})
SIZED(short_conv_backward, {90, 520})
