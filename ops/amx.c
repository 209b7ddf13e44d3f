/* amx.c: detects AMX, asks the system for it, and tests its products. */
#include "amx.h"

#if defined(__x86_64__) && !defined(KV_DOUBLE)
    #include <cpuid.h>
    #include <errno.h>
    #include <sys/syscall.h>
    #include <unistd.h>

bool amx_in(uint32_t leaf1_ecx, uint32_t leaf7_edx, uint64_t xcr0) {
    const uint32_t osxsave = 1u << 27, bf16 = 1u << 22, tile = 1u << 24;
    const uint64_t states = 3u << 17; /* the states of the tiles' shapes and of their data */
    return (leaf1_ecx & osxsave) && (leaf7_edx & bf16) && (leaf7_edx & tile) && (xcr0 & states) == states;
}
bool amx_there(void) {
    uint32_t a, b, c, d, ecx, low, high;
    if (!__get_cpuid(1, &a, &b, &ecx, &d) || !amx_in(ecx, ~0u, ~0ull)) return false; /* or XGETBV is none */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return amx_in(ecx, d, (uint64_t)high << 32 | low);
}
bool amx_permitted(Err *e) {
    enum { REQUEST = 0x1023 /* ARCH_REQ_XCOMP_PERM */, TILES = 18 /* the number of their state */ };
    if (syscall(SYS_arch_prctl, REQUEST, TILES) == 0) return true;
    return err_runtime(e, "the system does not permit it (%s)", strerror(errno));
}

enum { TRIED = 80 /* the largest size */ };
typedef struct {
    float a[TRIED * TRIED], b[TRIED * TRIED], old[TRIED * TRIED], c[2][TRIED * TRIED];
    uint16_t b_bf16[TRIED * TRIED];
} Trial;
static bool amx_run(GemmBf16 *form, GemmShape s, float *C, const float *A, const void *B, Err *e) {
    Arena mem = {.name = "trial of products"};
    gemm_bf16_one(form, 1, &mem, s, C, A, B);
    if (!arena_open(&mem, mem.name, mem.peak, false, e)) return false;
    gemm_bf16_one(form, 1, &mem, s, C, A, B);
    arena_close(&mem);
    return true;
}
static bool amx_tried(Trial *t, GemmBf16 *form, GemmBf16 *with, GemmShape s, Err *e) {
    GemmBf16 *both[] = {form, with};
    for (int k = 0; k < 2; k++) {
        memcpy(t->c[k], t->old, sizeof t->c[k]);
        if (!amx_run(both[k], s, t->c[k], t->a, s.b_bf16 ? (void *)t->b_bf16 : t->b, e)) return false;
    }
    /* Elements are in -1..1: the bound is the rounding of K products and their sums, each a sum of at most K + 1,
     * twice. */
    const double bound = 2 * (s.K + 3.0) * (s.K + 1.0) * 0x1p-24;
    for (int i = 0; i < TRIED * TRIED; i++) {
        double got = (double)t->c[0][i], want = (double)t->c[1][i];
        if (!(fabs(got - want) <= bound))
            return err_runtime(e, "in a product (%d,%d,%d)%s%s%s%s, element (%d,%d) is %.9g instead of %.9g", s.M, s.N,
                               s.K, s.ta ? " of A turned" : "", s.tb ? " of B turned" : "",
                               s.b_bf16 ? " of B in bf16" : "", s.accumulate ? " to be added" : "", i / TRIED,
                               i % TRIED, got, want);
    }
    return true;
}
bool gemm_bf16_agrees(GemmBf16 *form, GemmBf16 *with, Err *e) {
    static const int sizes[][3] = {{1, 40, 77}, {20, 80, 64}, {45, 33, 75}, {70, 80, 77}, {80, 64, 80}};
    Trial *t = xcalloc(1, sizeof *t);
    for (uint64_t i = 0; i < TRIED * TRIED; i++) {
        t->a[i] = (float)(2 * rng_uniform(1, i) - 1), t->b[i] = (float)(2 * rng_uniform(2, i) - 1);
        t->old[i] = (float)(2 * rng_uniform(3, i) - 1), t->b_bf16[i] = bf16_from(t->b[i]);
    }
    bool ok = true;
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int how = 0; how < 16 && ok; how++) {
            GemmShape s = {
                .M = sizes[z][0], .N = sizes[z][1], .K = sizes[z][2], .lda = TRIED, .ldb = TRIED, .ldc = TRIED};
            s.ta = how & 1, s.tb = how & 2, s.accumulate = how & 4, s.b_bf16 = how & 8;
            if (s.tb || !s.b_bf16) ok = amx_tried(t, form, with, s, e);
        }
    free(t);
    return ok;
}
#endif
