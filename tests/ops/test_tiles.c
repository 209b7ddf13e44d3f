/* test_tiles.c: products in tiles (AMX): the emulation that the other suites rely on, by sums that only the documented
 * order gives, and by mistakes that must end it; what asks for the tiles; and what tries a form before it is used. */
#include "tests/lib/check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__) && !defined(KV_DOUBLE)
    #include "tests/lib/tiles.h"
    #include "ops/amx.h"

GemmBf16 gemm_bf16_amx_emulated;
PairProduct pair_product_amx_emulated;

/* ---- the emulation ------------------------------------------------------------------------------------------------
 */

static uint32_t pair(float low, float high) { return bf16_from(low) | (uint32_t)bf16_from(high) << 16; }
static float one_sum(float old, int n, const float (*a)[2], const float (*b)[2]) { /* number (3,5) of a product */
    uint32_t ta[16][16] = {{0}}, tb[16][16] = {{0}};
    float c[16][16] = {{0}};
    for (int k = 0; k < n; k++) ta[3][k] = pair(a[k][0], a[k][1]), tb[k][5] = pair(b[k][0], b[k][1]);
    c[3][5] = old;
    tiles_open();
    TILE_LOAD(0, c, 64);
    TILE_LOAD(1, ta, 64);
    TILE_LOAD(2, tb, 64);
    TILE_DOT(0, 1, 2);
    TILE_STORE(0, c, 64);
    tiles_close();
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            cr_assert((i == 3 && j == 5) || c[i][j] == 0, "(%d,%d) is %g", i, j, (double)c[i][j]);
    return c[3][5];
}
    #define PAIRS(a)       ((int)(sizeof(a) / sizeof *(a)))
    #define SUM(old, a, b) one_sum(old, imin(PAIRS(a), PAIRS(b)), a, b)
static const float ones[16][2] = {{1, 1}, {1, 1}, {1, 1}, {1, 1}};

/* 2^24 + 1 is 2^24 to the nearest even: which sums meet which shows. */
Test(tiles, the_documented_order_of_a_sum) {
    const float even_and_odd[2][2] = {{0x1p24f, 1}, {1, 1}}; /* (2^24 + 1) + (1 + 1); one after the other: 2^24 */
    cr_assert(SUM(0, even_and_odd, ones) == 0x1p24f + 2);
    const float pairs_first[2][2] = {{0x1p24f, 1}, {-0x1p24f, 0}}; /* (2^24 - 2^24) + 1; a pair at a time: 0 */
    cr_assert(SUM(0, pairs_first, ones) == 1);
    const float three[2][2] = {{1, 1},
                               {1, 0}}; /* 2^24 + (2 + 1) = 2^24 + 4; to the old sum one after the other: 2^24 */
    cr_assert(SUM(0x1p24f, three, ones) == 0x1p24f + 4);
}
Test(tiles, denormals_are_zero) {
    const float one[1][2] = {{1, 0}}, big[1][2] = {{0x1p100f, 0}}, tiny[1][2] = {{0x1p-130f, 0}};
    cr_assert(bf16_to(bf16_from(0x1p-130f)) == 0x1p-130f);
    cr_assert(SUM(0, tiny, big) == 0 && SUM(0, big, tiny) == 0, "a denormal operand");
    cr_assert(SUM(0x1p-127f, one, ones) == 1 && SUM(0x1p-127f, tiny, one) == 0, "a denormal sum to begin with");
    const float x[2][2] = {{0x1p-63f, 0}, {0x1p-70f, 0}};
    cr_assert(SUM(0, x, x) == 0x1p-126f + 0x1p-140f, "a product inside a sum is never rounded");
    const float y[1][2] = {{0x1.8p-63f, -0x1p-63f}}, z[1][2] = {{0x1p-63f, 0x1p-63f}};
    cr_assert(SUM(0, y, z) == 0, "a denormal result");
    const float w[1][2] = {{0x1p-64f, 0}};
    cr_assert(SUM(0, w, z) == 0, "a denormal sum");
}
/* Every operand's place, by sums of whole numbers, which any order makes exactly; and shapes that are not whole. */
Test(tiles, shapes_and_places) {
    static const int shape[][3] = {{16, 16, 16}, {3, 5, 7}, {1, 16, 2}, {16, 1, 1}};
    for (size_t z = 0; z < sizeof shape / sizeof *shape; z++) {
        int M = shape[z][0], N = shape[z][1], K = shape[z][2];
        TileShapes s = {.palette = 1};
        s.rows[0] = s.rows[1] = (uint8_t)M, s.rows[7] = (uint8_t)K;
        s.bytes[0] = s.bytes[7] = (uint16_t)(4 * N), s.bytes[1] = (uint16_t)(4 * K);
        uint32_t *a = xcalloc((size_t)(M * K), sizeof *a),
                 *b = xcalloc((size_t)(K * N), sizeof *b); /* not a byte more */
        float *c = xcalloc((size_t)(M * N), sizeof *c);
        for (int i = 0; i < M * K; i++) a[i] = pair((float)(i % 7 - 3), (float)(i % 11 - 5));
        for (int i = 0; i < K * N; i++) b[i] = pair((float)(i % 13 - 6), (float)(i % 5 - 2));
        for (int i = 0; i < M * N; i++) c[i] = (float)i;
        tiles_shape(s);
        TILE_LOAD(0, c, 4 * N);
        TILE_LOAD(1, a, 4 * K);
        TILE_LOAD(7, b, 4 * N);
        TILE_DOT(0, 1, 7);
        TILE_STORE(0, c, 4 * N);
        tiles_close();
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) {
                int want = m * N + n;
                for (int k = 0; k < K; k++) {
                    int i = m * K + k, j = k * N + n;
                    want += (i % 7 - 3) * (j % 13 - 6) + (i % 11 - 5) * (j % 5 - 2);
                }
                cr_assert(c[m * N + n] == (float)want, "(%d,%d) of (%d,%d,%d): %g, expected %d", m, n, M, N, K,
                          (double)c[m * N + n], want);
            }
        free(a), free(b), free(c);
    }
}

/* What hardware refuses, or does with what nobody put there. */
static void shaped(int rows, int bytes) {
    TileShapes s = TILES_WHOLE;
    s.rows[2] = (uint8_t)rows, s.bytes[2] = (uint16_t)bytes;
    tiles_shape(s);
}
static void filled(void) {
    for (int c = 0; c < 8; c++)
        if (tiles.shapes.rows[c]) tile_zero(c);
}
    #define FAULTS(X)                                                                                             \
        X(before_opened, "not open", TILE_ZERO(0))                                                                \
        X(after_closed, "not open", tiles_open(); filled(); tiles_close(); TILE_ZERO(0))                          \
        X(opened_twice, "opened twice", tiles_open(); tiles_open())                                               \
        X(closed_twice, "that are not open", tiles_open(); tiles_close(); tiles_close())                          \
        X(palette_2, "palette 2", TileShapes s = TILES_WHOLE; s.palette = 2; tiles_shape(s))                      \
        X(begun_in_the_middle, "row 1", TileShapes s = TILES_WHOLE; s.start = 1; tiles_shape(s))                  \
        X(reserved_bits, "bits of the shapes", TileShapes s = TILES_WHOLE; s.no_rows[0] = 16; tiles_shape(s))     \
        X(in_17_rows, "tile 2: 17 rows", shaped(17, 64))                                                          \
        X(in_68_bytes, "68 bytes", shaped(16, 68))                                                                \
        X(rows_of_nothing, "16 rows of 0 bytes", shaped(16, 0))                                                   \
        X(no_shape, "tile 2 has no shape", shaped(0, 0); TILE_ZERO(2))                                            \
        X(half_a_number, "rows of 62 bytes", shaped(16, 62); TILE_ZERO(2))                                        \
        X(other_rows, "times 1 (16 of 64)", shaped(15, 64); filled(); TILE_DOT(0, 2, 1))                          \
        X(other_columns, "times 2 (16 of 60)", shaped(16, 60); filled(); TILE_DOT(0, 1, 2))                       \
        X(other_k, "2 (16 of 60) times", shaped(16, 60); filled(); TILE_DOT(0, 2, 1))                             \
        X(a_tile_twice, "are not three", tiles_open(); filled(); TILE_DOT(0, 1, 1))                               \
        X(onto_itself, "are not three", tiles_open(); filled(); TILE_DOT(1, 1, 2))                                \
        X(nothing_in_it, "nothing was put into one", tiles_open(); TILE_ZERO(0); TILE_ZERO(1); TILE_DOT(0, 1, 2)) \
        X(nothing_to_store, "is stored", uint32_t a[16][16]; tiles_open(); TILE_STORE(0, a, 64))
    #define FAULT(name, says, ...) \
        static void name(void) { __VA_ARGS__; }
FAULTS(FAULT)
Test(tiles, mistakes_end_the_program) {
    static const struct {
        const char *name, *says;
        void (*run)(void);
    } faults[] = {
    #define ENTRY(name, says, ...) {#name, says, name},
        FAULTS(ENTRY)};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        FILE *f = tmpfile();
        char line[512] = "";
        int st;
        fflush(stderr);
        pid_t pid = fork();
        if (pid == 0) {
            signal(SIGABRT, SIG_DFL);
            dup2(fileno(f), 2);
            faults[i].run();
            _exit(0);
        }
        cr_assert(waitpid(pid, &st, 0) == pid);
        cr_assert(WIFSIGNALED(st) && WTERMSIG(st) == SIGABRT, "%s: status %x", faults[i].name, st);
        rewind(f);
        cr_assert(fgets(line, sizeof line, f));
        cr_assert(strstr(line, "tests/lib/tiles.h:") && strstr(line, faults[i].says), "%s: %s", faults[i].name, line);
        fclose(f);
    }
}

/* ---- what asks for them -------------------------------------------------------------------------------------------
 */

Test(tiles, what_processor_and_system_say) {
    const uint32_t osxsave = 1u << 27, bf16 = 1u << 22, tile = 1u << 24;
    const uint64_t avx512 = 0xE7, shapes = 1u << 17, data = 1u << 18;
    cr_assert(amx_in(osxsave, bf16 | tile, avx512 | shapes | data));
    cr_assert(!amx_in(0, bf16 | tile, avx512 | shapes | data));
    cr_assert(!amx_in(osxsave, tile, avx512 | shapes | data) && !amx_in(osxsave, bf16, avx512 | shapes | data));
    cr_assert(!amx_in(osxsave, bf16 | tile, avx512 | shapes) && !amx_in(osxsave, bf16 | tile, avx512 | data));
    Err e = {0};
    if (!amx_there()) cr_assert(!amx_permitted(&e) && e.status == EXIT_RUNTIME && strstr(e.msg, "permit"), "%s", e.msg);
}

/* ---- what tries them ----------------------------------------------------------------------------------------------
 */

/* Mistakes: k left out, numbers in each other's place, one too many written, what was there forgotten, a NaN in one
 * kind of product alone, sums rounded once too often. */
static void cut_k(int threads, Arena *a, int n, const GemmJob *j) {
    GemmJob job = *j;
    job.s.K -= job.s.K > 2 ? 2 : 0;
    gemm_bf16_amx_emulated(threads, a, n, &job);
}
static void swaps(int threads, Arena *a, int n, const GemmJob *j) {
    gemm_bf16_amx_emulated(threads, a, n, j);
    float *c = j->C, first = c[0];
    if (a->base && j->s.N > 1) c[0] = c[1], c[1] = first;
}
static void writes_on(int threads, Arena *a, int n, const GemmJob *j) {
    gemm_bf16_amx_emulated(threads, a, n, j);
    if (a->base && j->s.N < j->s.ldc) ((float *)j->C)[j->s.N] = 0;
}
static void adds_not(int threads, Arena *a, int n, const GemmJob *j) {
    GemmJob job = *j;
    job.s.accumulate = false;
    gemm_bf16_amx_emulated(threads, a, n, &job);
}
static void no_number(int threads, Arena *a, int n, const GemmJob *j) {
    gemm_bf16_amx_emulated(threads, a, n, j);
    if (a->base && j->s.M == 70) ((float *)j->C)[69 * j->s.ldc + 79] = NAN;
}
static void rounds_sums(int threads, Arena *a, int n, const GemmJob *j) {
    gemm_bf16_amx_emulated(threads, a, n, j);
    float *c = j->C;
    for (int i = 0; a->base && i < j->s.M; i++)
        for (int k = 0; k < j->s.N; k++) c[i * j->s.ldc + k] = bf16_to(bf16_from(c[i * j->s.ldc + k]));
}
Test(tiles, a_form_is_tried_before_it_is_used) {
    static GemmBf16 *const wrong[] = {cut_k, swaps, writes_on, adds_not, no_number, rounds_sums};
    Err e = {0};
    __builtin_cpu_init();
    cr_assert(gemm_bf16_agrees(gemm_bf16_baseline, gemm_bf16_baseline, &e), "%s", e.msg);
    if (!__builtin_cpu_supports("avx512bf16")) return;
    cr_assert(gemm_bf16_agrees(gemm_bf16_amx_emulated, gemm_bf16_avx512bf16, &e), "%s", e.msg);
    cr_assert(gemm_bf16_agrees(gemm_bf16_amx_emulated, gemm_bf16_baseline, &e), "%s", e.msg);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        e = (Err){0};
        cr_assert(!gemm_bf16_agrees(wrong[i], gemm_bf16_avx512bf16, &e), "mistake %zu", i);
        cr_assert(e.status == EXIT_RUNTIME && strstr(e.msg, "in a product (") && !strchr(e.msg, '\n'), "%s", e.msg);
    }
}

/* ---- products of pairs, for attention ------------------------------------------------------------------------------
 */

enum { GAP = 3 }; /* elements behind a row that are nobody's: NaN to read, and not to be written */
typedef struct {
    int M, K, N;
    bool turned, add; /* A's k down its columns */
} PairShape;
static float drawn(uint64_t stream, size_t i) { return bf16_to(bf16_from((float)(2 * rng_uniform(stream, i) - 1))); }
/* Each operand ends where its memory does, so that a sanitizer sees a read past it. Returns the worst error, in units
 * of the bound of any order of the sums. */
static double pairs_tried(PairProduct *run, PairShape s) {
    const float nan = (float)NAN;
    const int across = (s.M + 15) / 16 * 16, lda = s.turned ? across + GAP : s.K + GAP, ldb = s.N + GAP,
              ldc = s.N + GAP;
    const size_t na = (size_t)(s.turned ? (s.K - 1) * lda + across : (across - 1) * lda + s.K),
                 nb = (size_t)((s.K - 1) * ldb + s.N), nc = (size_t)((s.M - 1) * ldc + s.N);
    uint32_t *a = xcalloc(na, sizeof *a), *b = xcalloc(nb, sizeof *b);
    float *c = xcalloc(nc, sizeof *c), *old = xcalloc(nc, sizeof *old);
    double worst = 0;
    for (size_t i = 0; i < na; i++) {
        const size_t line = i / (size_t)lda, at = i % (size_t)lda;
        const bool there = s.turned ? at < (size_t)s.M : line < (size_t)s.M && at < (size_t)s.K;
        a[i] = there ? pair(drawn(1, 2 * i), drawn(1, 2 * i + 1)) : pair(nan, nan);
    }
    for (size_t i = 0; i < nb; i++)
        b[i] = i % (size_t)ldb < (size_t)s.N ? pair(drawn(2, 2 * i), drawn(2, 2 * i + 1)) : pair(nan, nan);
    for (size_t i = 0; i < nc; i++) c[i] = old[i] = s.add || i % (size_t)ldc >= (size_t)s.N ? drawn(3, i) : nan;
    const size_t ars = s.turned ? 1 : (size_t)lda, aks = s.turned ? (size_t)lda : 1;
    run(c, (size_t)ldc, a, ars, aks, b, (size_t)ldb, s.M, s.K, s.N, s.add);
    for (size_t i = 0; i < nc; i++) {
        const size_t m = i / (size_t)ldc, n = i % (size_t)ldc;
        if (n >= (size_t)s.N) {
            cr_assert(c[i] == old[i], "(%d,%d,%d): %zu elements behind row %zu are not as before", s.M, s.K, s.N,
                      n - (size_t)s.N, m);
            continue;
        }
        double want = s.add ? (double)old[i] : 0, size = fabs(want);
        for (size_t k = 0; k < (size_t)s.K; k++)
            for (int odd = 0; odd < 2; odd++) {
                const double x = (double)tile_number(a[m * ars + k * aks], odd),
                             y = (double)tile_number(b[k * (size_t)ldb + n], odd);
                want += x * y, size += fabs(x * y);
            }
        const double error = fabs((double)c[i] - want) / ((2 * s.K + 2) * 0x1p-24 * size);
        cr_assert(error <= 1, "(%d,%d,%d)%s%s: (%zu,%zu) is %.9g, not %.9g", s.M, s.K, s.N, s.turned ? " turned" : "",
                  s.add ? " added" : "", m, n, (double)c[i], want);
        worst = fmax(worst, error);
    }
    free(a), free(b), free(c), free(old);
    return worst;
}
Test(tiles, products_of_pairs) {
    static const int rows[] = {1, 15, 16, 17, 32, 40, 64}, pairs[] = {1, 8, 15, 16, 17, 24, 32, 40, 288},
                     columns[] = {16, 32, 48, 64, 576};
    PairProduct *forms[2] = {pair_product_amx_emulated};
    Err e = {0};
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16")) return; /* the emulation multiplies alone */
    if (amx_there() && amx_permitted(&e)) forms[1] = pair_product_amx;
    for (int f = 0, tried = 0; f < 2 && forms[f]; f++, tried = 0) {
        double worst = 0;
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++)
            for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
                for (size_t n = 0; n < sizeof columns / sizeof *columns; n++)
                    for (int how = 0; how < 4; how++) {
                        const PairShape s = {rows[m], pairs[k], columns[n], how & 1, how & 2};
                        if (s.turned && s.K > 32) continue;
                        if (columns[n] == 576 && (m + k) % 4) continue;
                        if (!check_sampled(tried++)) continue;
                        worst = fmax(worst, pairs_tried(forms[f], s));
                    }
        check_log(f ? "products of pairs in tiles" : "products of pairs in emulated tiles", worst, 1, 0, tried);
    }
}
#endif
