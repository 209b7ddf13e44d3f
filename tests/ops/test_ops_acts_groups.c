/* test_ops_acts_groups.c: ops of rows in groups on activations that are BF16 in memory, as test_ops_acts.c has the
 * others: a mixture's products, its rows on their way to experts and back, its gates; and the router's steady
 * product. */
#include "tests/lib/acts.h"

/* ---- products -------------------------------------------------------------------------------------------------------
 */
enum { GROUPS = 11 }; /* more than the CPU multiplies in one call */
static const int in_group[GROUPS] = {3, 0, 70, 1, 9, 0, 65, 2, 2, 33, 1};
typedef struct {
    int off[GROUPS + 1], M;
    Tensor w[GROUPS], next[GROUPS]; /* each group's matrix; that of its neighbour */
} Sorted;
static void sorted(Desk *d, Sorted *t, int O, int I) {
    *t = (Sorted){.off = {0}};
    for (int e = 0; e < GROUPS; e++) {
        char name[16];
        snprintf(name, sizeof name, "w %d", e);
        t->off[e + 1] = t->off[e] + in_group[e];
        t->w[e] = RANDOM(&d->g, name, O, I);
        bf16_of_tensor(d, t->w[e]); /* products round them: the reference takes them rounded */
    }
    for (int e = 0; e < GROUPS; e++) t->next[e] = t->w[(e + 1) % GROUPS];
    t->M = t->off[GROUPS];
}
/* Beside the reference, and on the CPU beside the same products to f32, of which every number is the nearest where
 * those of rows in f32 are rounded, too: other sums have another order. */
static void groups_case(Desk *d, Size s) {
    const int I = s.width, O = s.how / 2;
    const bool overwrite = s.how % 2, rounds = O * I >= BF16_LEAST;
    Rig *g = &d->g;
    Sorted t;
    sorted(d, &t, O, I);
    const Groups all = {GROUPS, t.off};
    Tensor x = RANDOM(g, "x", t.M, I), dy = RANDOM(g, "dy", t.M, O), y = empty(d, dy), y32 = empty(d, dy),
           other = empty(d, dy), hx = bf16_of_tensor(d, x), hdy = bf16_of_tensor(d, dy), hy = bf16_empty(d, dy);
    REF(d, linear_groups, other, x, all, t.next);
    REF(d, linear_groups, y, x, all, t.w);
    OP_WITHIN(g, linear_groups, hy, hx, all, t.w);
    right(d, "linear_groups", hy, y);
    OP_WITHIN(g, linear_groups, y32, x, all, t.w);
    if (rounds) exact(d, "linear_groups beside f32", hy, y32);
    OP_WITHIN(g, linear_groups, y32, hx, all, t.w);
    right(d, "linear_groups to f32", y32, y);
    wrong("the next group's matrix", hy, other);

    Sum dx = sum_make(d, x, "dx", overwrite);
    Tensor none[GROUPS], dw[GROUPS], dw32[GROUPS], want[GROUPS], dx32 = tensor_copy(g, dx.real);
    for (int e = 0; e < GROUPS; e++) {
        char name[16];
        snprintf(name, sizeof name, "dw %d", e);
        dw[e] = RANDOM(g, name, O, I);
        dw32[e] = tensor_copy(g, dw[e]), want[e] = tensor_copy(g, dw[e]), none[e] = tensor_copy(g, dw[e]);
    }
    Tensor before = tensor_copy(g, dx.real), wrong_dx = tensor_copy(g, dx.real);
    REF(d, linear_groups_backward, add_to(wrong_dx), NULL, dy, x, all, t.next);
    REF(d, linear_groups_backward, add_to(dx.real), want, dy, x, all, t.w);
    OP_WITHIN(g, linear_groups_backward, add_to(dx32), dw32, dy, x, all, t.w);
    OP_WITHIN(g, linear_groups_backward, sum_into(dx), dw, hdy, hx, all, t.w);
    right(d, "dx of groups", dx.bf16, dx.real);
    if (rounds) exact(d, "dx of groups beside f32", dx.bf16, dx32);
    wrong("the next group's matrix in dx", dx.bf16, wrong_dx);
    if (!overwrite) wrong("dx that gains nothing", dx.bf16, before);
    for (int e = 0; e < GROUPS; e++) {
        right(d, "dw of a group", dw[e], want[e]);
        if (rounds) exact(d, "dw of a group beside f32", dw[e], dw32[e]);
        if (in_group[e]) wrong("dw that gains nothing", dw[e], none[e]);
    }
    Sum alone = sum_make(d, x, "dx", overwrite); /* one without the other */
    OP_WITHIN(g, linear_groups_backward, sum_into(alone), NULL, hdy, hx, all, t.w);
    cr_assert(!memcmp(alone.bf16.p, dx.bf16.p, tensor_bytes(dx.bf16)), "%s: dx alone is another", g->table);
    OP_WITHIN(g, linear_groups_backward, NOWHERE, none, hdy, hx, all, t.w);
    for (int e = 0; e < GROUPS; e++)
        cr_assert(!memcmp(none[e].p, dw[e].p, tensor_bytes(dw[e])), "%s: dw alone is another", g->table);
}
/* Widths that the library takes where they lie, and that it does not; matrices too small to be rounded elsewhere. */
static const int matrices[][2] = {{48, 64}, {40, 72}, {33, 65}, {10, 13}, {1, 8}};
Test(acts, groups, .timeout = 300) {
    for (size_t z = 0; z < sizeof matrices / sizeof *matrices; z++)
        for (int overwrite = 0; overwrite < 2; overwrite++)
            everywhere(groups_case, (Size){1, matrices[z][1], 2 * matrices[z][0] + overwrite});
    fprintf(stderr, "groups of rows in bf16: at most %.2g\n", seen);
}
/* The router's scores: in bf16 the bits of the same numbers in f32, of a row alone as among others. */
static void invariant_case(Desk *d, Size s) {
    const int N = s.N, I = s.width, O = s.how;
    Rig *g = &d->g;
    Tensor w = RANDOM(g, "w", O, I), b = RANDOM(g, "b", O), x = RANDOM(g, "x", N, I), raw = tensor_copy(g, x),
           y = EMPTY(g, "y", N, O), y32 = empty(d, y), want = empty(d, y), other = empty(d, y),
           one = EMPTY(g, "one", 1, O), hx = bf16_of_tensor(d, x);
    REF(d, linear_invariant, want, x, w, b);
    BF16_OF(d, linear_invariant, y, hx, w, b);
    BF16_OF(d, linear_invariant, y32, x, w, b);
    right(d, "linear_invariant", y, want);
    cr_assert(!memcmp(y.p, y32.p, tensor_bytes(y)), "%s: rows in bf16 give other bits than the same in f32", g->table);
    for (int m = 0; m < N; m += 1 + N / 5) {
        BF16_OF(d, linear_invariant, one, tensor_part(hx, m, 1), w, b);
        cr_assert(!memcmp(one.p, R(y) + m * O, tensor_bytes(one)), "%s: row %d alone is another", g->table, m);
    }
    BF16_OF(d, linear_invariant, other, raw, w, b);
    cr_assert(memcmp(y.p, other.p, tensor_bytes(y)), "%s: nothing was rounded", g->table);
    REF(d, linear_invariant, other, x, w, ABSENT);
    wrong("a bias", y, other);
}
Test(acts, invariant) {
    everywhere(invariant_case, (Size){20, 64, 8});
    everywhere(invariant_case, (Size){7, 33, 5});
    everywhere(invariant_case, (Size){1, 7, 1});
    if (!cuda_ops()) everywhere(invariant_case, (Size){90, 517, 9});
}

/* ---- rows on their way ----------------------------------------------------------------------------------------------
 */
/* Between all types: x, then y, BF16; f32 has numbers that are to be rounded. */
static void spread_case(Desk *d, Size s) {
    const int N = s.N, M = 2 * N + 1, width = s.width;
    Rig *g = &d->g;
    int *row = xcalloc((size_t)M, sizeof *row), *next = xcalloc((size_t)M, sizeof *next);
    for (int j = 0; j < M; j++) row[j] = (j * 7 + 3) % N, next[j] = (row[j] + 1) % N;
    Tensor f = RANDOM(g, "f", N, width), x = RANDOM(g, "x", N, width), hx = bf16_of_tensor(d, x),
           y = EMPTY(g, "y", M, width), other = empty(d, y);
    for (int how = 0; how < 4; how++) {
        Tensor in = how % 2 ? x : f, to = how / 2 ? bf16_empty(d, y) : empty(d, y);
        REF(d, spread, y, in, row);
        REF(d, spread, other, in, next);
        BF16_OF(d, spread, to, how % 2 ? hx : f, row);
        nearest(d, "spread", to, y);
        if (N > 1) wrong("the next row", to, other);
    }
    free(row), free(next);
}
Test(acts, rows_to_experts) {
    everywhere(spread_case, (Size){6, 64, 0});
    everywhere(spread_case, (Size){5, 36, 0}); /* four at a time would do, eight not */
    everywhere(spread_case, (Size){5, 37, 0});
    everywhere(spread_case, (Size){1, 1, 0});
    if (!cuda_ops()) everywhere(spread_case, (Size){40, 1041, 0});
}
/* The sum of the k rows, and what was there unless y is to be overwritten, is rounded once, and so is the nearest. */
static void collect_case(Desk *d, Size s) {
    const int N = s.N, width = s.width, k = s.how;
    Rig *g = &d->g;
    int *place = xcalloc((size_t)(N * k), sizeof *place), *less = xcalloc((size_t)(N * k), sizeof *less);
    for (int i = 0; i < N * k; i++) place[i] = (i * 5 + 2) % (N * k);
    for (int i = 0; i < N; i++) /* of every row all but the last */
        for (int j = 0; j + 1 < k; j++) less[i * (k - 1) + j] = place[i * k + j];
    Tensor f = RANDOM(g, "f", N * k, width), x = RANDOM(g, "x", N * k, width), hx = bf16_of_tensor(d, x),
           start = RANDOM(g, "y", N, width), zero = zeros(d, start);
    bf16_of_tensor(d, start);
    for (int how = 0; how < 8; how++) {
        Mark mark = arena_mark(&g->mem);
        const bool overwrite = how / 4;
        Tensor in = how % 2 ? x : f, y = tensor_copy(g, overwrite ? zero : start), other = tensor_copy(g, y), to;
        if (overwrite)
            to = how / 2 % 2 ? bf16_empty(d, y) : empty(d, y);
        else
            to = how / 2 % 2 ? bf16_of_tensor(d, y) : tensor_copy(g, y);
        REF(d, collect, add_to(other), in, less, k - 1);
        REF(d, collect, add_to(y), in, place, k);
        BF16_OF(d, collect, ((Into){to, overwrite}), how % 2 ? hx : f, place, k);
        nearest(d, overwrite ? "a fresh collect" : "collect", to, y);
        if (!overwrite || k > 1) wrong("a row that is missing", to, other);
        arena_release(&g->mem, mark);
    }
    free(place), free(less);
}
Test(acts, rows_from_experts) {
    for (int k = 1; k < 4; k++) {
        everywhere(collect_case, (Size){6, 64, k});
        everywhere(collect_case, (Size){5, 36, k});
        everywhere(collect_case, (Size){4, 37, k});
        everywhere(collect_case, (Size){1, 1, k});
        if (!cuda_ops()) everywhere(collect_case, (Size){20, 1041, k});
    }
}

/* ---- gates ----------------------------------------------------------------------------------------------------------
 */
static void gates_case(Desk *d, Size size) {
    const int M = size.N, F = size.width;
    const bool overwrite = size.how;
    Rig *g = &d->g;
    Tensor gate = RANDOM(g, "gate", M, F), up = RANDOM(g, "up", M, F), dy = RANDOM(g, "dy", M, F), y = empty(d, up),
           s = RANDOM(g, "s", M), ones = EMPTY(g, "ones", M);
    for (int j = 0; j < M; j++) R(ones)[j] = 1, R(s)[j] += R(s)[j] < 0 ? -1 : 1;
    Tensor hgate = bf16_of_tensor(d, gate), hup = bf16_of_tensor(d, up), hdy = bf16_of_tensor(d, dy),
           hy = bf16_empty(d, up);
    REF(d, swiglu_rows, y, gate, up, ones);
    Tensor other = tensor_copy(g, y);
    REF(d, swiglu_rows, y, gate, up, s);
    BF16_OF(d, swiglu_rows, hy, hgate, hup, s);
    exact(d, "swiglu_rows", hy, y);
    wrong("a row's factor", hy, other);
    Sum a = sum_make(d, up, "dgate", overwrite), b = sum_make(d, up, "dup", overwrite),
        c = sum_make(d, up, "dgate", overwrite);
    Tensor ds = RANDOM(g, "ds", M), was = tensor_copy(g, ds), want = tensor_copy(g, ds), none = tensor_copy(g, ds);
    if (overwrite) { memset(want.p, 0, tensor_bytes(want)), memset(ds.p, 0xFF, tensor_bytes(ds)); }
    REF(d, swiglu_rows_backward, add_to(a.real), add_to(b.real), add_to(want), dy, gate, up, s);
    REF(d, swiglu_rows_backward, add_to(c.real), add_to(y), add_to(none), dy, gate, up, ones);
    BF16_OF(d, swiglu_rows_backward, sum_into(a), sum_into(b), ((Into){ds, overwrite}), hdy, hgate, hup, s);
    exact(d, "dgate of rows", a.bf16, a.real), exact(d, "dup of rows", b.bf16, b.real);
    exact(d, "ds", ds, want);
    wrong("dup for dgate", a.bf16, b.real), wrong("a row's factor in dgate", a.bf16, c.real);
    if (overwrite)
        wrong("ds that was there", ds, none);
    else
        wrong("ds that gains nothing", ds, was);
}
Test(acts, gates_of_rows, .timeout = 120) {
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        everywhere(gates_case, (Size){24, 80, overwrite});
        everywhere(gates_case, (Size){9, 296, overwrite}); /* more than a warp takes at once */
        everywhere(gates_case, (Size){5, 33, overwrite});
        everywhere(gates_case, (Size){1, 7, overwrite});
        if (!cuda_ops()) everywhere(gates_case, (Size){37, 1101, overwrite});
    }
    fprintf(stderr, "gates of rows in bf16: at most %.2g\n", seen);
}
