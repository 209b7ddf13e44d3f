/* device.h: what a backend keeps between calls. Private to ops/. */
#pragma once
#include "gemm_bf16.h"
#include "ops.h"
#include "tuning.h"

/* A weight's copy in bf16: half.h. */
typedef struct {
    const real *from;
    size_t n;
    uint16_t *to;
    bool fresh;
} HalfCopy;

struct Device {
    const Ops *ops;
    const char *isa;
    int threads;
    Gemm *gemm;          /* of the CPU */
    GemmBf16 *gemm_bf16; /* of this processor; NULL in the double build */
    struct Cuda *cuda;   /* NULL: the CPU */
    bool pairs;          /* of the CPU: attention's products round their operands to bf16, too */
    bool narrow;         /* its products with `least` weights and more are in bf16, as gemm_use has it for the CPU */
    int64_t least;
    bool wide;           /* for tests: activations stay REAL in memory although products are in bf16 */
    int64_t logits;      /* of CUDA: so many exist at once */
    struct Fused *fused; /* attention by cuDNN; NULL: by our own kernels */
    Memory home[2];      /* of the device alone; of tests, shared with the host */
    Ops own;             /* the CUDA backend's table, with a word for each op that it lacks */
    Tuning tuning;       /* n 0: none */
    struct {
        int n, cap;
        HalfCopy *at; /* ascending, none inside another */
    } halves;
    const char *lacks; /* host.h */
    int lacks_layer;
};

/* One table per instruction set, from the same sources (cpu/cpu.c). */
extern const Ops ops_cpu_baseline;
#if defined(__x86_64__) && !defined(KV_DOUBLE)
extern const Ops ops_cpu_avx2, ops_cpu_avx512, ops_cpu_avx512bf16;
#endif

/* The CUDA backend (cuda/open.c, cuda/table.c), or what says that there is none (cuda/none.c): which of the two is
 * decided where the program is linked. */
const Ops *cuda_ops(void); /* NULL: not in this program */
bool cuda_device_open(Device *, int number, Err *);
void cuda_device_close(Device *);
void cuda_device_sync(Device *);
const Memory *cuda_device_memory(Device *, bool host_too);
void cuda_device_write(Device *, void *to, const void *from, size_t);
void cuda_device_read(Device *, void *to, const void *from, size_t);
void cuda_device_copy(Device *, void *to, const void *from, size_t);
void cuda_device_zero(Device *, void *p, size_t);
void cuda_device_facts(Device *, DeviceSee *, void *ctx);
bool cuda_device_tuning(Device *, Tuning *read, const char *path); /* takes what is read, or says why not, on stderr */
int cuda_device_tune(Device *, double seconds, Tuning *out);
void cuda_device_attention(Device *, AttentionBy);
double cuda_device_seconds(Device *, void (*work)(void *), void *ctx);
bool cuda_device_graphs(Device *); /* false: each pass is to run as it comes */
struct CudaGraph *cuda_device_graph_new(void);
void cuda_device_graph_free(Device *, struct CudaGraph *);
bool cuda_device_graph_run(Device *, struct CudaGraph *, void (*work)(void *), void *ctx); /* whether it was replayed */
struct CudaWords *cuda_device_words_open(Device *, int room);                              /* mirror.c; cuda.h */
void cuda_device_words_close(Device *, struct CudaWords *);
uint32_t *cuda_device_words_begin(Device *, struct CudaWords *);
void cuda_device_words_end(Device *, struct CudaWords *, int n, void *to, void *mem);
