/* device.h: what the CPU backend keeps between calls. Private to ops/. */
#pragma once
#include "gemm_bf16.h"
#include "ops.h"

struct Device {
    const Ops *ops;
    const char *isa;
    int threads;
    Gemm *gemm;
    GemmBf16 *gemm_bf16; /* of this processor; NULL in the double build */
};

/* One table per instruction set, from the same sources (cpu/cpu.c). */
extern const Ops ops_cpu_baseline;
#if defined(__x86_64__) && !defined(KV_DOUBLE)
extern const Ops ops_cpu_avx2, ops_cpu_avx512;
#endif
