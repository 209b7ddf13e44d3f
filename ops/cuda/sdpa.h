/* sdpa.h: attention as a cuDNN graph, forward and backward, for batches of B sequences of T rows each. fused.c opens
 * one per shape and runs it in training passes. Opening chooses and builds cuDNN's engine (some tenths of a second).
 * Operands and results are bf16; sums and everything in between are f32.
 *
 *   s = scale q k^T over the keys that a row sees; lse = log sum exp s (natural); o = exp(s - lse) v
 *   delta = sum do o; ds = p (do v^T - delta) scale; dq = ds k; dk = ds^T q; dv = p^T do (sums over a lane's heads)
 *
 * Tensors are (B,T,heads,D), contiguous, as the ops have them: cuDNN receives strides, and nothing is transposed.
 * Source: the operations that cudnn-frontend composes for cuDNN before 9.21 (NVIDIA/cudnn-frontend,
 * include/cudnn_frontend/node/scaled_dot_product_flash_attention.h); later versions accept them too. */
#pragma once
#include "ops/cuda/host/cudnn_so.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Row i sees the keys j <= i of its sequence with i - j < window (window 0: all) and j >= first_i (documents). */
typedef struct {
    int B, T, heads, lanes, Dk, Dv, window;
    bool documents;
} SdpaShape;
/* UNORDERED: dq is summed in the order in which blocks finish, so its bits may differ from run to run. */
typedef enum { SDPA_FORWARD, SDPA_BACKWARD, SDPA_BACKWARD_UNORDERED } SdpaKind;
/* The device that plans are made for: that of a handle, or a described one (DESC_DEVICE, finalized). */
typedef struct {
    const Cudnn *f;
    void *handle;
    CudnnDesc device;
} SdpaTarget;

typedef struct Sdpa Sdpa;
/* NULL: `why` is one line. cuDNN decides which shapes it refuses; we refuse widths that are not multiples of 8,
 * because their rows are not aligned to 16 bytes. */
Sdpa *sdpa_open(const SdpaTarget *, SdpaKind, SdpaShape, char why[300]);
void sdpa_close(Sdpa *);
SdpaShape sdpa_shape(const Sdpa *);
SdpaKind sdpa_kind(const Sdpa *);
size_t sdpa_bytes(const Sdpa *); /* bytes of workspace, which must be aligned to 256 bytes */
/* The part of the workspace that the caller must set to zero before every run: its size, and its offset in *at. 0:
 * none. */
size_t sdpa_zero(const Sdpa *, size_t *at);
bool sdpa_unordered(const Sdpa *); /* by its kind, or because the engine itself reports it */
int sdpa_engine(const Sdpa *);     /* the engine's number; -1: unknown */

/* All are on the device, aligned to 16 bytes (lse and first to 4). first (B,T), for documents: the row at which the
 * row's document begins, counted within its sequence. The forward writes o and lse, the backward dq, dk and dv. */
typedef struct {
    const void *q, *k, *v, *dout;
    const int *first;
    void *o, *dq, *dk, *dv;
    float *lse;
} SdpaTensors;
/* Adds the work to the handle's stream. False: `why` is one line. */
bool sdpa_run(const Sdpa *, const SdpaTensors *, float scale, void *workspace, char why[300]);
#ifdef __cplusplus
}
#endif
