/* isa.c: the table of instruction sets, and the choice among them. */
#include "isa_table.h"
#include "amx.h"
#include "device.h"
#include <pthread.h>
#include <sys/auxv.h>

#if defined(__x86_64__) && !defined(KV_DOUBLE)
    #define HAS __builtin_cpu_supports
static bool isa_says(bool has, Err *why) { return has || err_input(why, "this processor does not have it"); }
static bool avx2_there(Err *why) {
    __builtin_cpu_init();
    return isa_says(HAS("avx2") && HAS("fma") && HAS("bmi2"), why);
}
static bool avx512_there(Err *why) {
    return avx2_there(why) &&
           isa_says(HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl") && HAS("avx512cd"), why);
}
static bool bf16_there(Err *why) { return avx512_there(why) && isa_says(HAS("avx512bf16"), why); }
/* AMX products were verified on an emulation, so each processor must show that it gives the same results: once in a
 * process, as a trial is 60 products by two forms and a test opens hundreds of devices. */
static struct {
    pthread_once_t once;
    bool agree;
    Err why;
} tiles = {.once = PTHREAD_ONCE_INIT};
static void tiles_try(void) { tiles.agree = gemm_bf16_agrees(gemm_bf16_amx, gemm_bf16_avx512bf16, &tiles.why); }
static bool tiles_there(Err *why) {
    if (!bf16_there(why) || !isa_says(amx_there(), why) || !amx_permitted(why)) return false;
    pthread_once(&tiles.once, tiles_try);
    if (!tiles.agree) *why = tiles.why;
    return tiles.agree;
}
#endif
#if defined(__aarch64__) && !defined(KV_DOUBLE)
static bool neonbf16_there(Err *why) {
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) || err_input(why, "this processor does not have it");
}
#endif

static const Isa table[] = {
#if defined(KV_DOUBLE)
    {"baseline", "baseline", &ops_cpu_baseline, NULL, NULL, LIBRARY_ANY, NULL},
#elif defined(__aarch64__)
    /* "neon" is the compiler's output for plain C */
    {"neon", "neon", &ops_cpu_baseline, gemm_bf16_baseline, NULL, LIBRARY_ANY, NULL},
    {"neonbf16", "neonbf16", &ops_cpu_baseline, gemm_bf16_neonbf16, NULL, LIBRARY_ANY, neonbf16_there},
#else
    {"baseline", "baseline", &ops_cpu_baseline, gemm_bf16_baseline, NULL, LIBRARY_SSE41, NULL},
#endif
#if defined(__x86_64__) && !defined(KV_DOUBLE)
    {"avx2", "avx2", &ops_cpu_avx2, gemm_bf16_avx2, NULL, LIBRARY_AVX2, avx2_there},
    {"avx512", "avx512", &ops_cpu_avx512, gemm_bf16_avx512, NULL, LIBRARY_AVX512, avx512_there},
    {"avx512bf16", "avx512bf16", &ops_cpu_avx512bf16, gemm_bf16_avx512bf16, NULL, LIBRARY_AVX512BF16, bf16_there},
    {"amx", "avx512bf16+amx", &ops_cpu_avx512bf16, gemm_bf16_amx, pair_product_amx, LIBRARY_AMX, tiles_there},
#endif
};
enum { N = sizeof table / sizeof *table };

const Isa *isa_table(int *n) {
    *n = N;
    return table;
}

const Isa *isa_best(void) {
    for (int i = N - 1; i > 0; i--) {
        Err why = {0};
        if (table[i].there(&why)) return &table[i];
        if (why.status == EXIT_RUNTIME) /* the processor has it, but it cannot be used */
            fprintf(stderr, "kvsmith: AMX is not used: %s; bf16 products use AVX-512\n", why.msg);
    }
    return &table[0];
}

bool isa_find(const char *name, const Isa **out, Err *e) {
    Err why = {0};
    char have[120] = "auto";
    for (int i = 0; i < N; i++) {
        Err lacks = {0};
        bool there = !table[i].there || table[i].there(&lacks);
        *out = &table[i];
        if (!strcmp(name, table[i].name) && there) return true;
        if (!strcmp(name, table[i].name)) why = lacks;
        if (there) snprintf(have + strlen(have), sizeof have - strlen(have), ", %s", table[i].name);
    }
    if (why.status == EXIT_RUNTIME) return err_runtime(e, "isa %.30s: %.200s", name, why.msg);
    return err_input(e, "isa %.30s: %s; expected one of: %s", name, why.status ? why.msg : "unknown to this build",
                     have);
}
