/* backend.h: what device.c and its neighbours (graph.c, dirty_copy.c, shadow.c, profile.c, comm_stream.c) ask of a
 * backend beside its table of ops. Every device has one. Private to ops/ and its tests.
 *
 * The CPU's is in device.c. That of CUDA is in cuda/open.c, and in a program only where it is linked. */
#pragma once
#include "ops.h"
#include "sample.h"
#include "tuning.h"

/* Moments on the device's own clock, between the things that it is asked for. None of it waits but `read`. Not while a
 * pass is captured. */
struct Cuda;
struct CudaMarks;
typedef struct {
    struct CudaMarks *(*make)(struct Cuda *);
    void (*free)(struct CudaMarks *);
    void (*add)(struct CudaMarks *); /* now: the device has done all that it was asked for so far */
    int (*count)(const struct CudaMarks *);
    /* Seconds between each moment and the next, count - 1 of them; forgets all moments. Waits. */
    void (*read)(struct CudaMarks *, double *seconds);
} BackendMarks;

/* A second queue of work: comm_stream.h. */
struct CudaCommStream;
typedef struct {
    struct CudaCommStream *(*start)(int number, int *devices, char why[200]); /* -1: the calling thread's device */
    void (*stop)(struct CudaCommStream *);
    void *(*stream)(struct CudaCommStream *);
    void *(*take)(size_t bytes);
    void (*give)(void *);
    bool (*follow)(struct CudaCommStream *, struct Cuda *);
    bool (*upload)(struct CudaCommStream *, void *to, const void *from, size_t bytes);
    bool (*download)(struct CudaCommStream *, void *to, const void *from, size_t bytes);
    bool (*mark)(struct CudaCommStream *, int slot);
    int (*done)(struct CudaCommStream *, int slot);
    bool (*lead)(struct CudaCommStream *, struct Cuda *, int slot);
    const char *(*why)(const struct CudaCommStream *);
    const char *(*library)(void);
} BackendCommStream;

struct CudaGraph;
struct CudaWords;
typedef struct Backend {
    void (*close)(Device *);
    void (*sync)(Device *);
    const Memory *(*memory)(Device *, bool host_too); /* NULL: with the host */
    void (*write)(Device *, void *to, const void *from, size_t bytes);
    void (*read)(Device *, void *to, const void *from, size_t bytes);
    void (*copy)(Device *, void *to, const void *from, size_t bytes);
    void (*zero)(Device *, void *p, size_t bytes);
    double (*seconds)(Device *, void (*work)(void *), void *ctx);
    void (*facts)(Device *, DeviceSee *, void *ctx);
    bool (*bf16)(Device *, bool on, Err *);
    bool (*bf16_pays)(Device *);

    /* The rest is NULL in the CPU's. */
    const Ops *ops;
    bool (*open)(Device *, int number, Err *);
    int (*gpus)(char why[200]);
    void (*attention)(Device *, AttentionBy);
    bool (*tuning)(Device *, Tuning *read, const char *path); /* takes what is read, or says why not, on stderr */
    int (*tune)(Device *, double seconds, Tuning *out);
    /* graph.c */
    bool (*graphs)(Device *); /* false: each pass is to run without capture */
    struct CudaGraph *(*graph_make)(void);
    void (*graph_free)(Device *, struct CudaGraph *);
    bool (*graph_run)(Device *, struct CudaGraph *, void (*work)(void *), void *ctx); /* whether it was replayed */
    /* dirty_copy.c; cuda/cuda.h */
    struct CudaWords *(*words_open)(Device *, int room);
    void (*words_close)(Device *, struct CudaWords *);
    uint32_t *(*words_begin)(Device *, struct CudaWords *);
    void (*words_end)(Device *, struct CudaWords *, int n, void *to, void *mem);
    /* comm_stream.h, sample.h */
    void (*cast_to_bf16)(Device *, uint16_t *to, const real *from, size_t n);
    void (*cast_from_bf16)(Device *, real *to, const uint16_t *from, size_t n, bool add);
    size_t (*sample_bytes)(int n, int V);
    void (*sample)(Device *, int n, int V, const SampleRow *, const real *logits, unsigned char *seen, void *mem,
                   Sampled *out);
    BackendMarks marks;
    const BackendCommStream *comm_stream;
} Backend;

/* Weak: its address is NULL in a program that was linked without it. */
extern const Backend cuda_backend __attribute__((weak));
static inline const Backend *backend_of_cuda(void) { return &cuda_backend; }
/* NULL: not in this program. */
static inline const Ops *cuda_ops(void) { return backend_of_cuda() ? cuda_backend.ops : NULL; }
