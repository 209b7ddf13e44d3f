/* isa.c: the instruction set of every device that a test opens without naming one: the variable TEST_ISA, in all suites
 * of this program. It also takes amx_emulated: products in bf16 by AMX's tiles in plain C (tiles.h), which needs
 * AVX-512-BF16. Without the variable it is the product's choice. The double build has one set and ignores it. */
#include "check.h"
#include "ops/isa_table.h"

#if defined(__x86_64__) && !defined(KV_DOUBLE)
/* Of tests-f32 alone. */
extern GemmBf16 gemm_bf16_amx_emulated __attribute__((weak));
extern PairProduct pair_product_amx_emulated __attribute__((weak));

/* The best instruction set with products by the emulation. */
static const Isa *emulated(void) {
    static Isa isa;
    const Isa *base;
    Err e = {0};
    cr_assert(gemm_bf16_amx_emulated, "TEST_ISA=amx_emulated: not in this program");
    cr_assert(isa_find("avx512bf16", &base, &e), "TEST_ISA=amx_emulated: %s", e.msg);
    isa = *base;
    isa.name = "amx_emulated", isa.label = "avx512bf16+amx", isa.gemm_bf16 = gemm_bf16_amx_emulated;
    isa.pairs = pair_product_amx_emulated;
    return &isa;
}
#endif

const Isa *isa_auto(bool *bound) {
    const char *name = getenv("TEST_ISA");
    const Isa *isa;
    Err e = {0};
    *bound = false;
    if (!name || !*name || REAL != F32) return isa_best();
    *bound = true;
#if defined(__x86_64__) && !defined(KV_DOUBLE)
    if (!strcmp(name, "amx_emulated")) return emulated();
#endif
    cr_assert(strcmp(name, "auto") && isa_find(name, &isa, &e), "TEST_ISA: %s", e.msg);
    return isa;
}
