/* test_ops_lines.c: what single members of the linear recurrences need beside the recurrence: feature map, ones and
 * quotient, Mamba-2's step and skip, constant rows. */
#include "rig.h"

enum { HEADS = 2 };
static size_t count(int N, int d) { return (size_t)N * HEADS * (size_t)d; }
static wide sigmoid(wide a) { return 1 / (1 + expl(-a)); }
static wide softplus(wide a) { return (a > 0 ? a : 0) + log1pl(expl(-fabsl(a))); }
/* Ordinary numbers and those at which exp overflows, underflows or is 1. */
static Tensor odd(Tensor t) {
    static const real odd[] = {0, -20, 20, -60, 80, 1000, (real)-1e-6, (real)1e-6};
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = i % 5 == 4 ? odd[i / 5 % 8] : R(t)[i] * 3;
    return t;
}

void case_repeat(Rig *g, int N, int d) {
    Tensor y = EMPTY(g, "y", N, d, 1);
    double *row = xcalloc((size_t)d, sizeof *row);
    Ref *want = refs((size_t)(N * d));
    for (int c = 0; c < d; c++) row[c] = rng_normal(3, (uint64_t)c);
    for (int i = 0; i < N * d; i++) ref_add(&want[i], (real)row[i % d]);
    OP(g, repeat, y, row);
    CHECK_REF(g, "repeat", "y", y, want);
    free(row), free(want);
}
OP_TEST(repeat, EXACT)

void case_elu1(Rig *g, int N, int d) {
    Tensor x = odd(RANDOM(g, "x", N, HEADS, d)), y = EMPTY(g, "y", N, HEADS, d);
    Ref *want = refs(count(N, d));
    for (size_t i = 0; i < count(N, d); i++) {
        wide a = R(x)[i];
        ref_add(&want[i], a > 0 ? a + 1 : expl(a));
    }
    OP(g, elu1, y, x);
    CHECK_REF(g, "elu1", "y", y, want);
    free(want);
}
OP_TEST(elu1, EXACT)
void case_elu1_backward(Rig *g, int N, int d) {
    Tensor x = odd(RANDOM(g, "x", N, HEADS, d)), y = EMPTY(g, "y", N, HEADS, d), dy = RANDOM(g, "dy", N, HEADS, d),
           dx = RANDOM(g, "dx", N, HEADS, d);
    Ref *want = refs_of(dx), *wrong = refs_of(dx);
    for (size_t i = 0; i < count(N, d); i++) {
        wide a = R(x)[i];
        R(y)[i] = (real)(a > 0 ? a + 1 : expl(a));
        ref_add(&want[i], R(dy)[i] * (a > 0 ? 1 : expl(a)));
        ref_add(&wrong[i], R(dy)[i] * R(y)[i]);
    }
    OP(g, elu1_backward, dx, dy, y);
    CHECK_REF(g, "elu1_backward", "dx", dx, want);
    if (N * d > 20) CHECK_MISSED("elu1_backward", "the slope of exp everywhere", dx, wrong);
    free(want), free(wrong);
}
OP_TEST(elu1_backward, EXACT)

void case_widen(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, HEADS, d), y = EMPTY(g, "y", N, HEADS, d + 1);
    Ref *want = refs(count(N, d + 1));
    for (size_t i = 0; i < count(N, d + 1); i++) {
        size_t row = i / (size_t)(d + 1), c = i % (size_t)(d + 1);
        ref_add(&want[i], c == (size_t)d ? 1 : R(x)[row * (size_t)d + c]);
    }
    OP(g, widen, y, x);
    CHECK_REF(g, "widen", "y", y, want);
    free(want);
}
OP_TEST(widen, EXACT)
void case_widen_backward(Rig *g, int N, int d) {
    Tensor dx = RANDOM(g, "dx", N, HEADS, d), dy = RANDOM(g, "dy", N, HEADS, d + 1);
    Ref *want = refs_of(dx);
    for (size_t i = 0; i < count(N, d); i++) ref_add(&want[i], R(dy)[i / (size_t)d * (size_t)(d + 1) + i % (size_t)d]);
    OP(g, widen_backward, dx, dy);
    CHECK_REF(g, "widen_backward", "dx", dx, want);
    free(want);
}
OP_TEST(widen_backward, EXACT)

static const double eps = 0.125;
/* Sums of features are positive. */
static Tensor sums(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, HEADS, d + 1);
    for (size_t i = (size_t)d; i < tensor_count(x); i += (size_t)(d + 1)) R(x)[i] = (real)fabs((double)R(x)[i]);
    return x;
}
void case_quotient(Rig *g, int N, int d) {
    Tensor x = sums(g, N, d), y = EMPTY(g, "y", N, HEADS, d);
    Ref *want = refs(count(N, d)), *wrong = refs(count(N, d));
    for (size_t i = 0; i < count(N, d); i++) {
        const real *row = R(x) + i / (size_t)d * (size_t)(d + 1);
        ref_add(&want[i], row[i % (size_t)d] / (row[d] + (wide)eps));
        ref_add(&wrong[i], row[i % (size_t)d] / (wide)row[d]);
    }
    OP(g, quotient, y, x, eps);
    CHECK_REF(g, "quotient", "y", y, want);
    if (N) CHECK_MISSED("quotient", "no eps", y, wrong);
    free(want), free(wrong);
}
OP_TEST(quotient, EXACT)
void case_quotient_backward(Rig *g, int N, int d) {
    Tensor x = sums(g, N, d), y = EMPTY(g, "y", N, HEADS, d), dy = RANDOM(g, "dy", N, HEADS, d),
           dx = RANDOM(g, "dx", N, HEADS, d + 1);
    Ref *want = refs_of(dx);
    for (size_t i = 0; i < count(N, d); i++) {
        size_t row = i / (size_t)d * (size_t)(d + 1), c = i % (size_t)d;
        wide bottom = R(x)[row + (size_t)d] + (wide)eps, v = R(x)[row + c] / bottom;
        R(y)[i] = (real)v;
        ref_add(&want[row + c], R(dy)[i] / bottom);
        ref_add(&want[row + (size_t)d], -R(dy)[i] * v / bottom);
    }
    OP(g, quotient_backward, dx, dy, y, x, eps);
    CHECK_REF(g, "quotient_backward", "dx", dx, want);
    free(want);
}
OP_TEST(quotient_backward, EXACT)

void case_step(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, HEADS, d), z = odd(RANDOM(g, "z", N, HEADS)), bias = RANDOM(g, "bias", HEADS),
           y = EMPTY(g, "y", N, HEADS, d);
    Ref *want = refs(count(N, d)), *wrong = refs(count(N, d));
    for (size_t i = 0; i < count(N, d); i++) {
        size_t h = i / (size_t)d;
        wide a = (real)(R(z)[h] + R(bias)[h % HEADS]);
        ref_add(&want[i], softplus(a) * R(x)[i]);
        ref_add(&wrong[i], softplus(R(z)[h]) * R(x)[i]);
    }
    OP(g, step, y, x, z, bias);
    CHECK_REF(g, "step", "y", y, want);
    if (N > 7) CHECK_MISSED("step", "no bias", y, wrong);
    free(want), free(wrong);
}
OP_TEST(step, EXACT)
void case_step_backward(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, HEADS, d), z = odd(RANDOM(g, "z", N, HEADS)), bias = RANDOM(g, "bias", HEADS),
           dy = RANDOM(g, "dy", N, HEADS, d), dx = RANDOM(g, "dx", N, HEADS, d), dz = RANDOM(g, "dz", N, HEADS),
           dbias = RANDOM(g, "dbias", HEADS);
    Ref *rx = refs_of(dx), *rz = refs_of(dz), *rb = refs_of(dbias);
    for (size_t i = 0; i < count(N, d); i++) {
        size_t h = i / (size_t)d;
        wide a = (real)(R(z)[h] + R(bias)[h % HEADS]), t = (wide)R(dy)[i] * R(x)[i] * sigmoid(a);
        ref_add(&rx[i], softplus(a) * R(dy)[i]);
        ref_add(&rz[h], t);
        ref_add(&rb[h % HEADS], t);
    }
    OP(g, step_backward, dx, dz, dbias, dy, x, z, bias);
    CHECK_REF(g, "step_backward", "dx", dx, rx);
    CHECK_REF(g, "step_backward", "dz", dz, rz);
    CHECK_REF(g, "step_backward", "dbias", dbias, rb);
    free(rx), free(rz), free(rb);
}
OP_TEST(step_backward, EXACT)

void case_skip(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, HEADS, d), w = RANDOM(g, "w", HEADS), y = RANDOM(g, "y", N, HEADS, d);
    Ref *want = refs_of(y);
    for (size_t i = 0; i < count(N, d); i++) ref_add(&want[i], (wide)R(w)[i / (size_t)d % HEADS] * R(x)[i]);
    OP(g, skip, y, x, w);
    CHECK_REF(g, "skip", "y", y, want);
    free(want);
}
OP_TEST(skip, EXACT)
void case_skip_backward(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, HEADS, d), w = RANDOM(g, "w", HEADS), dy = RANDOM(g, "dy", N, HEADS, d),
           dx = RANDOM(g, "dx", N, HEADS, d), dw = RANDOM(g, "dw", HEADS);
    Ref *rx = refs_of(dx), *rw = refs_of(dw);
    for (size_t i = 0; i < count(N, d); i++) {
        size_t h = i / (size_t)d % HEADS;
        ref_add(&rx[i], (wide)R(w)[h] * R(dy)[i]);
        ref_add(&rw[h], (wide)R(dy)[i] * R(x)[i]);
    }
    OP(g, skip_backward, dx, dw, dy, x, w);
    CHECK_REF(g, "skip_backward", "dx", dx, rx);
    CHECK_REF(g, "skip_backward", "dw", dw, rw);
    free(rx), free(rw);
}
OP_TEST(skip_backward, EXACT)
