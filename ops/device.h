/* device.h: struct Device, what an open device keeps between calls. Private to ops/: backends and the functions of
 * ops.h read it, everybody else has a pointer.
 *
 * device_open makes it for the CPU or one GPU, device_close frees it. Fields that name a backend are 0 in a device of
 * the other. */
#pragma once
#include "backend.h"
#include "gemm_bf16.h"

/* The shadow of n weights in bf16 (shadow.h). Both arrays are the model's. */
typedef struct {
    const real *from;
    size_t n;
    uint16_t *to;
    bool valid; /* it holds the weights as they are now */
} Bf16Shadow;

struct Device {
    const Ops *ops;
    const Backend *backend;
    const char *isa;
    int threads;
    Gemm *gemm;                /* of the CPU */
    GemmBf16 *gemm_bf16;       /* of this processor; NULL in the double build */
    struct Cuda *cuda;         /* what CUDA's backend knows of it; NULL: the CPU */
    PairProduct *pair_product; /* of this processor, in tiles; NULL: vectors */
    bool pairs;                /* of the CPU: attention's products round their operands to bf16, too */
    bool products_bf16;        /* of CUDA: products with `least` weights and more are in bf16; of the CPU gemm knows */
    int64_t least;
    bool wide;           /* for tests: activations stay REAL in memory although products are in bf16 */
    int64_t logits;      /* of CUDA: most logits in memory at once */
    struct Fused *fused; /* attention by cuDNN; NULL: by our own kernels */
    Memory home[2];      /* of the device alone; of tests, shared with the host */
    Ops own;             /* of CUDA: its copy of the backend's table, where tests plant mistakes */
    Tuning tuning;       /* n 0: none */
    struct {
        int n, cap;
        Bf16Shadow *at; /* ascending, none inside another */
    } shadows;
    const char *lacks; /* host.h */
    int lacks_layer;
};

/* One table per instruction set, from the same sources (cpu/cpu.c). */
extern const Ops ops_cpu_baseline;
#if defined(__x86_64__) && !defined(KV_DOUBLE)
extern const Ops ops_cpu_avx2, ops_cpu_avx512, ops_cpu_avx512bf16;
#endif
