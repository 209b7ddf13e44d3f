/* loss.cu: cross-entropy of rows of logits, sums of squares. */
#include "kernel.h"

/* A block to a row; reads it three times, since a row of 128k logits is more than shared memory holds. */
__global__ void xent(int V, float *logits, float *nll, int *hit, const int *tgt, const float *g) {
    SMEM_DYN(float, part);
    float *l = logits + (size_t)blockIdx.x * (size_t)V;
    int target = tgt[blockIdx.x], t = (int)threadIdx.x;
    if (target < 0) {
        for (int v = t; v < V && g; v += BLOCK) l[v] = 0;
        if (t == 0) nll[blockIdx.x] = 0;
        if (t == 0 && hit) hit[blockIdx.x] = 0;
        return;
    }
    float at = l[target], top = -INFINITY, sum = 0, above = 0;
    for (int v = t; v < V; v += BLOCK) {
        float x = l[v];
        top = fmaxf(top, x);
        above += v < target ? !(x < at) : !(x <= at); /* NaN is above */
    }
    top = block_max(top, part);
    above = hit ? block_sum(above > 0 ? 1.0f : 0.0f, part) : 0;
    for (int v = t; v < V; v += BLOCK) sum += expf(l[v] - top);
    sum = block_sum(sum, part);
    if (t == 0) nll[blockIdx.x] = (float)log((double)sum) + top - at;
    if (t == 0 && hit) hit[blockIdx.x] = above == 0;
    if (!g) return;
    float scale = g[blockIdx.x] / sum;
    for (int v = t; v < V; v += BLOCK) l[v] = expf(l[v] - top) * scale - (v == target ? g[blockIdx.x] : 0);
}
extern "C" void cuda_xent(Cuda *c, int n, int V, float *logits, float *nll, int *hit, const int *tgt, const float *g) {
    if (n > 0)
        LAUNCH(xent, dim3((unsigned)n), dim3(BLOCK), WARPS * sizeof(float), c->stream, V, logits, nll, hit, tgt, g);
}

/* Sums of fixed pieces, added in order: the same whatever the device. */
__global__ void sumsq_pieces(int n, const CudaPieces *all, double *out) {
    SMEM_DYN(double, part);
    int lo = 0; /* the last tensor that begins at this piece or before it: one that has it, since others have none */
    for (int hi = n; hi - lo > 1;) {
        int mid = (lo + hi) / 2;
        if (all[mid].first <= blockIdx.x)
            lo = mid;
        else
            hi = mid;
    }
    const float *x = all[lo].x;
    size_t from = (blockIdx.x - all[lo].first) * CUDA_SUMSQ_PIECE, to = from + CUDA_SUMSQ_PIECE;
    to = to < all[lo].n ? to : all[lo].n;
    double s = 0;
    for (size_t i = from + threadIdx.x; i < to; i += BLOCK) s += (double)x[i] * (double)x[i];
    s = block_sum(s, part);
    if (threadIdx.x == 0) out[blockIdx.x] = s;
}
__global__ void sumsq_total(size_t n, const double *in, double *sum) {
    SMEM_DYN(double, part);
    double s = 0;
    for (size_t i = threadIdx.x; i < n; i += BLOCK) s += in[i];
    s = block_sum(s, part);
    if (threadIdx.x == 0) *sum = s;
}
extern "C" void cuda_sumsq(Cuda *c, int n, const CudaPieces *all, size_t pieces, double *part, double *sum) {
    LAUNCH(sumsq_pieces, dim3((unsigned)pieces), dim3(BLOCK), WARPS * sizeof(double), c->stream, n, all, part);
    LAUNCH(sumsq_total, dim3(1), dim3(BLOCK), WARPS * sizeof(double), c->stream, pieces, part, sum);
}
