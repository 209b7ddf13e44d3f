/* sdpa.h: attention as a graph of cuDNN's, forward and backward, for batches of B sequences of T rows each, whose
 * engines are chosen and built when it is opened (some tenths of a second) and only run afterwards. bf16 operands and
 * results, sums and everything between in f32.
 *
 *   s = scale q k^T over the keys that a row sees; lse = log sum exp s (natural); o = exp(s - lse) v
 *   delta = sum do o; ds = p (do v^T - delta) scale; dq = ds k; dk = ds^T q; dv = p^T do (sums over a lane's heads)
 *
 * Tensors are (B,T,heads,D), one number behind the other, as the ops have them: cuDNN is told strides, nothing is
 * transposed. Source: the operations that cudnn-frontend composes for cuDNN before 9.21 (NVIDIA/cudnn-frontend,
 * include/cudnn_frontend/node/scaled_dot_product_flash_attention.h), which later ones take, too. */
#pragma once
#include "cudnn_so.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Row i sees the keys j <= i of its sequence with i - j < window (window 0: all) and j >= first_i (documents). */
typedef struct {
    int B, T, heads, lanes, Dk, Dv, window;
    bool documents;
} SdpaShape;
/* UNORDERED: dq is summed by whichever block comes first, and so is not the same to the bit the next time. */
typedef enum { SDPA_FORWARD, SDPA_BACKWARD, SDPA_BACKWARD_UNORDERED } SdpaKind;
/* What plans are made for: the device of a handle, or one that is described (DESC_DEVICE, finalized). */
typedef struct {
    const Cudnn *f;
    void *handle;
    CudnnDesc device;
} SdpaTarget;

typedef struct Sdpa Sdpa;
/* NULL: why is a line. Which shapes are refused is cuDNN's to say, but widths that are no multiples of 8, whose rows do
 * not begin at 16 bytes. */
Sdpa *sdpa_open(const SdpaTarget *, SdpaKind, SdpaShape, char why[300]);
void sdpa_close(Sdpa *);
SdpaShape sdpa_shape(const Sdpa *);
SdpaKind sdpa_kind(const Sdpa *);
size_t sdpa_bytes(const Sdpa *); /* of workspace, which is aligned to 256 bytes */
/* Of the workspace what the caller makes zero before every run; 0 bytes: nothing. */
size_t sdpa_zero(const Sdpa *, size_t *at);
bool sdpa_unordered(const Sdpa *); /* by the kind, or because the engine says so itself */
int sdpa_engine(const Sdpa *);     /* its number; -1: it does not tell */

/* All on the device, aligned to 16 bytes, lse and first to 4. first (B,T), of documents: number of the row at which the
 * row's document begins, counted in its sequence. Forward: o and lse are written. Backward: dq, dk, dv are. */
typedef struct {
    const void *q, *k, *v, *dout;
    const int *first;
    void *o, *dq, *dk, *dv;
    float *lse;
} SdpaTensors;
/* Asks the stream of the handle to do it. */
bool sdpa_run(const Sdpa *, const SdpaTensors *, float scale, void *workspace, char why[300]);
#ifdef __cplusplus
}
#endif
