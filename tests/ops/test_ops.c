/* What ops promise besides their definition, which test_ops_ref.c compares them with: the same bits for several
 * matrices as for each alone, for a row alone as among others, noise that depends on its key alone; that no table lacks
 * an op; and the choice of a table. */
#include "tests/lib/rig.h"
#include "ops/isa_table.h"
#include <criterion/redirect.h>
#include <signal.h>

/* ---- linear -------------------------------------------------------------------------------------------------------
 */
/* One row at a time gives the same bits. */
void case_linear_invariant(Rig *g, int N, int d) {
    for (int O = 1; O < 40; O += 16) {
        Mark mark = arena_mark(&g->mem);
        Tensor x = RANDOM(g, "x", N, d), w = RANDOM(g, "w", O, d), y = EMPTY(g, "y", N, O), one = EMPTY(g, "one", 1, O);
        Tensor bias = O > 1 ? RANDOM(g, "bias", O) : ABSENT;
        OP(g, linear_invariant, y, x, w, bias);
        rig_result(g, y);
        for (int m = 0; m < N; m += 1 + N / 5) {
            OP(g, linear_invariant, one, TENSOR(R(x) + m * d, REAL, 1, d), w, bias);
            CHECK_BYTES("a row alone", one.p, R(y) + m * O, (size_t)O * sizeof(real));
        }
        arena_release(&g->mem, mark);
    }
}
OP_TEST(linear_invariant, EXACT, 6)

/* Several matrices of one input: to the bit what one call for each gives. Their widths are unlike, the last small. */
enum { MANY = 3 };
typedef struct {
    Tensor x, dx;
    Projection p[MANY], d[MANY];
} Several;
static Several several(Rig *g, int N, int d) {
    Several t = {.x = RANDOM(g, "x", N, d), .dx = RANDOM(g, "dx", N, d)};
    const int O[MANY] = {d / 2 + 5, d, 1};
    static const char *names[MANY] = {"one", "two", "three"};
    for (int j = 0; j < MANY; j++) {
        t.p[j] = (Projection){EMPTY(g, names[j], N, O[j]), RANDOM(g, names[j], O[j], d),
                              j == 1 ? ABSENT : RANDOM(g, names[j], O[j])};
        t.d[j] = (Projection){RANDOM(g, names[j], N, O[j]), j == 2 ? ABSENT : RANDOM(g, names[j], O[j], d),
                              j == 0 ? RANDOM(g, names[j], O[j]) : ABSENT};
    }
    return t;
}
static void same(Rig *g, const char *what, Tensor got, Tensor want) {
    if (!present(got)) return;
    rig_result(g, got);
    CHECK_BYTES(what, got.p, want.p, tensor_bytes(got));
}
void case_linear_many(Rig *g, int N, int d) {
    Several t = several(g, N, d);
    OP(g, linear_many, MANY, t.p, t.x);
    for (int j = 0; j < MANY; j++) {
        Tensor y = EMPTY(g, "alone", N, t.p[j].w.n[0]);
        OP(g, linear, y, t.x, t.p[j].w, t.p[j].bias);
        same(g, "y", t.p[j].y, y);
    }
}
OP_TEST(linear_many, 0, 0) /* the bytes of separate calls */
void case_linear_many_backward(Rig *g, int N, int d) {
    Several t = several(g, N, d);
    Tensor dx = tensor_copy(g, t.dx);
    Projection alone[MANY];
    for (int j = 0; j < MANY; j++) {
        alone[j] = (Projection){t.d[j].y, present(t.d[j].w) ? tensor_copy(g, t.d[j].w) : ABSENT,
                                present(t.d[j].bias) ? tensor_copy(g, t.d[j].bias) : ABSENT};
        OP(g, linear_backward, add_to(dx), alone[j].w, alone[j].bias, alone[j].y, t.x, t.p[j].w);
    }
    OP(g, linear_many_backward, add_to(t.dx), MANY, t.d, t.x, t.p);
    same(g, "dx", t.dx, dx);
    for (int j = 0; j < MANY; j++) same(g, "dw", t.d[j].w, alone[j].w), same(g, "dbias", t.d[j].bias, alone[j].bias);
}
OP_TEST(linear_many_backward, 0, 0)

/* ---- embedding ----------------------------------------------------------------------------------------------------
 */
Test(ops, embed_refuses_a_token_outside, .signal = SIGABRT, .init = cr_redirect_stderr) {
    Rig g;
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1, 1 << 16);
    Tensor table = RANDOM(&g, "table", 3, 4), y = EMPTY(&g, "y", 1, 4);
    g.scratch = (Arena){.base = g.mem.base};
    g.run.ops->embed(&g.run, y, table, (int[]){3}, 1);
}

/* By the definition: the nearest of the numbers of 8 bits, the even one of equals. */
void case_round_to_bf16(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, d);
    size_t n = tensor_count(x);
    Ref *want = refs(n);
    for (size_t i = 0; i < n; i++) {
        if (i % 7 == 0) R(x)[i] = (real)(1 + (double)(2 * (i % 64) + 1) * 0x1p-8); /* halfway between two */
        int e;
        wide m = frexpl((wide)(float)R(x)[i], &e) * 256, down = floorl(m), rest = m - down;
        ref_term(&want[i], ldexpl(down + (rest > 0.5L || (rest == 0.5L && fmodl(down, 2) != 0)), e - 8));
    }
    if (n > 2) {
        real last = R(x)[n - 1];
        R(x)[n - 1] = NAN, R(x)[n - 2] = -INFINITY;
        Tensor y = tensor_copy(g, x);
        OP(g, round_to_bf16, y);
        cr_assert(isnan((double)R(y)[n - 1]) && R(y)[n - 2] == -INFINITY);
        R(x)[n - 1] = R(x)[n - 2] = last;
        want[n - 2] = want[n - 1];
    }
    OP(g, round_to_bf16, x);
    CHECK_REF(g, "round_to_bf16", "x", x, want);
    free(want);
}
OP_TEST(round_to_bf16, EXACT, 0)

/* By the matrix: entry j,k is -1 where the bits that j and k share are odd in number. Twice gives x again. */
static Ref *hadamard_of(const real *x, size_t count, int n, unsigned wrong) {
    Ref *want = refs(count);
    for (size_t i = 0; i < count; i++) {
        const size_t piece = i / (size_t)n * (size_t)n, j = i - piece;
        for (size_t k = 0; k < (size_t)n; k++)
            ref_term(&want[i], (wide)x[piece + k] * (__builtin_parityll(j & k & ~wrong) ? -1 : 1) / wide_sqrt(n));
    }
    return want;
}
void case_hadamard(Rig *g, int N, int d) {
    const int n = hadamard_width(d);
    Tensor x = RANDOM(g, "x", N, d), was = tensor_copy(g, x);
    const size_t count = tensor_count(x);
    cr_assert(d % n == 0 && n <= HADAMARD_MOST && (d % (2 * n) || n == HADAMARD_MOST), "pieces of %d of %d", n, d);
    Ref *want = hadamard_of(R(was), count, n, 0), *wrong = hadamard_of(R(was), count, n, 1);
    OP(g, hadamard, x);
    CHECK_REF(g, "hadamard", "x", x, want);
    if (n > 1 && N > 1) CHECK_MISSED("hadamard", "a sign", x, wrong);
    OP(g, hadamard, x);
    for (size_t i = 0; i < count; i++) want[i].want = (wide)R(was)[i], want[i].terms *= 2;
    CHECK_REF(g, "hadamard", "x, twice", x, want);
    free(want), free(wrong);
}
OP_TEST(hadamard, EXACT, 4)

/* The mask of each row, one bit a column, as a key. */
static uint64_t mask_of(Rig *g, int rows, const int *idx, int m, DropSite site, double p) {
    Mark mark = arena_mark(&g->mem);
    Tensor x = EMPTY(g, "x", rows, 64);
    for (int i = 0; i < rows * 64; i++) R(x)[i] = 1;
    g->run.out = (RowList){rows, idx};
    OP(g, dropout, x, site, p);
    uint64_t bits = 0;
    for (int k = 0; k < 64; k++) bits |= (uint64_t)(R(x)[m * 64 + k] != 0) << k;
    arena_release(&g->mem, mark);
    return bits;
}
Test(ops, dropout_depends_on_what_it_says_only) {
    Table tables[TABLES_MAX];
    uint64_t first = 0;
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        Rig g;
        rig_open(&g, tables[k], 1, 1 << 20);
        g.batch = (Batch){
            .B = 2, .N = 7, .off = (int[]){0, 3, 7}, .of = (int[]){0, 0, 0, 1, 1, 1, 1}, .id = (uint64_t[]){8, 9}};
        g.run.seed = 1, g.run.step = 2, g.run.layer = 3;
        const int all[] = {0, 1, 2, 3, 4, 5, 6}, some[] = {2, 5, 6};
        uint64_t base = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5); /* sample 9, row 2 of it */
        if (k == 0) first = base;
        cr_assert(base == first, "tables draw different masks");
        cr_assert(base == mask_of(&g, 3, some, 1, DROP_MIXER, 0.5), "depends on which rows are wanted");
        uint64_t other[9];
        int m = 0;
        other[m++] = mask_of(&g, 7, all, 4, DROP_MIXER, 0.5);
        other[m++] = mask_of(&g, 7, all, 2, DROP_MIXER, 0.5); /* the same row of another sample */
        other[m++] = mask_of(&g, 7, all, 5, DROP_FFN, 0.5);
        other[m++] = mask_of(&g, 7, all, 5, DROP_EMBED, 0.5);
        g.run.seed++, other[m++] = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5), g.run.seed--;
        g.run.step++, other[m++] = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5), g.run.step--;
        g.run.layer++, other[m++] = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5), g.run.layer--;
        g.batch.id = (uint64_t[]){8, 10};
        other[m++] = mask_of(&g, 7, all, 5, DROP_MIXER, 0.5);
        /* the sample alone in another batch, as another rank or micro-batch would have it */
        g.batch = (Batch){.B = 1, .N = 4, .off = (int[]){0, 4}, .of = (int[]){0, 0, 0, 0}, .id = (uint64_t[]){9}};
        cr_assert(base == mask_of(&g, 4, all, 2, DROP_MIXER, 0.5), "depends on the other samples of the batch");
        for (int i = 0; i < m; i++) {
            int same = __builtin_popcountll(~(base ^ other[i]));
            cr_assert(same > 10 && same < 54, "mask %d shares %d of 64 columns with the first", i, same);
        }
        rig_close(&g);
    }
}

/* ---- the table is complete ----------------------------------------------------------------------------------------
 */
Test(ops, the_table_is_complete) {
    static const struct {
        const char *op;
        size_t at;
    } ops[] = {
#define DEF(result, op, ...) {#op, offsetof(Ops, op)},
#include "ops/ops.def"
    };
    Table tables[TABLES_MAX];
    int ntables = rig_tables(tables);
    cr_assert(ntables >= 1);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        for (int k = 0; k < ntables; k++) {
            void (*f)(void);
            memcpy(&f, (const char *)tables[k].ops + ops[i].at, sizeof f);
            cr_assert(f, "%s has no %s", tables[k].name, ops[i].op);
            for (int j = 0; j < k; j++)
                cr_assert(memcmp(&f, (const char *)tables[j].ops + ops[i].at, sizeof f),
                          "%s: %s and %s share one function", ops[i].op, tables[j].name, tables[k].name);
        }
    }
    for (int k = 0; k < ntables; k++) cr_assert_str_eq(tables[k].ops->name, cuda_ops() ? "cuda" : "cpu");
}
/* Arguments that do not fit end the program, on every backend (ops/check.h). */
static void misfit(void (*call)(Run *, Tensor wide, Tensor is_bf16, Tensor half)) {
    Rig g;
    rig_open(&g, rig_first(), 1, (size_t)1 << 20);
    Tensor wide = EMPTY(&g, "wide", 4, 8), is_bf16 = EMPTY(&g, "narrow", 4, 6),
           half = arena_tensor(&g.mem, "half", BF16, 2, (const int[]){4, 8});
    CALL(&g, call(&g.run, wide, is_bf16, half));
}
static void other_width(Run *r, Tensor wide, Tensor is_bf16, Tensor half) {
    (void)half;
    r->ops->spread(r, wide, is_bf16, (const int[]){0, 1, 2, 3});
}
static void other_type(Run *r, Tensor wide, Tensor is_bf16, Tensor half) {
    (void)is_bf16;
    r->ops->swiglu(r, wide, wide, half);
}
static void other_matrix(Run *r, Tensor wide, Tensor is_bf16, Tensor half) {
    (void)half;
    r->ops->linear(r, wide, wide, is_bf16, ABSENT);
}
#define MISFIT(how) \
    Test(ops, aborts_of_##how, .init = cr_redirect_stderr, .signal = SIGABRT) { misfit(how); }
MISFIT(other_width)
MISFIT(other_type)
MISFIT(other_matrix)

Test(ops, device_chooses_the_best_table) {
    if (cuda_ops() || getenv("TEST_ISA"))
        return; /* of the CPU's tables; tests/simt/test_cuda.c opens the other device */
    Table tables[TABLES_MAX];
    int n = rig_tables(tables);
    Device *d;
    Err e = {0};
    cr_assert(device_open(&d, "cpu", 0, &e), "%s", e.msg);
    const char *best = tables[n - 1].name, *isa = device_isa(d);
    cr_assert(device_ops(d) == tables[n - 1].ops && !strncmp(isa, best, strlen(best)), "chose %s", isa);
    isa += strlen(best);
    cr_assert(!*isa || (!strcmp(isa, "+amx") && !strcmp(best, "avx512bf16")), "%s", isa);
    cr_assert(device_threads(d) >= 1);
    device_close(d);
    cr_assert(device_open(&d, "cpu", 3, &e) && device_threads(d) == 3);
    device_close(d);
    device_close(NULL);
    const int bad[] = {-1, 1025, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        e = (Err){0};
        cr_assert(!device_open(&d, "cpu", bad[i], &e) && e.status == EXIT_INPUT && strstr(e.msg, "threads"), "%s",
                  e.msg);
    }
    e = (Err){0};
    cr_assert(!device_open(&d, "tpu", 1, &e) && e.status == EXIT_INPUT && strstr(e.msg, "tpu"), "%s", e.msg);
}
/* An instruction set by name is the one that a device has, and the only one of its process; others are refused with
 * what there is. */
Test(ops, device_takes_an_instruction_set_by_name) {
    if (cuda_ops() || getenv("TEST_ISA")) return;
    Device *d, *other;
    Err e = {0};
    char name[DEVICE_NAME_MAX];
    int n, found = -1;
    const Isa *isa = isa_table(&n);
    for (int i = n - 1; i >= 0; i--)
        if (!isa[i].there || isa[i].there(&e)) found = imax(found, i);
    const char *refused[] = {"avx9", "", "AVX2", found < n - 1 ? isa[n - 1].name : "mmx"};
    for (int i = 0; i < 4; i++) {
        char list[60];
        e = (Err){0};
        snprintf(list, sizeof list, "expected one of: auto, %s", isa[0].name);
        cr_assert(!device_isa_there(refused[i], &e) && e.status == EXIT_INPUT && strstr(e.msg, list), "%s: %s",
                  refused[i], e.msg);
        cr_assert(strstr(e.msg, isa[found].name) && strlen(e.msg) < 280, "%s", e.msg);
    }
    e = (Err){0};
    cr_assert(!device_bind(name, "cuda:1", isa[0].name, &e) && e.status == EXIT_INPUT, "%s", e.msg);
    cr_assert(device_bind(name, "cpu", NULL, &e) && !strcmp(name, "cpu"));
    cr_assert(device_bind(name, "cuda", "auto", &e) && !strcmp(name, "cuda"));
    cr_assert(device_isa_there("auto", &e) && device_bind(name, "cpu", isa[0].name, &e));
    cr_assert(device_open(&d, name, 1, &e) && !strcmp(device_isa(d), isa[0].label), "%s", e.msg);
    cr_assert(device_ops(d) == isa[0].ops && d->gemm_bf16 == isa[0].gemm_bf16);
    if (isa[found].library != isa[0].library) {
        cr_assert(device_bind(name, "cpu", isa[found].name, &e));
        cr_assert(!device_open(&other, name, 1, &e) && e.status == EXIT_RUNTIME && strstr(e.msg, "another"), "%s",
                  e.msg);
    }
    device_close(d);
}
