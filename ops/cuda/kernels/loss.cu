/* loss.cu: cross-entropy of rows of logits, sums of squares. */
#include "kernel.h"

DEVICE float logit_slope(float z, CudaLogits m) { return m.scale * (1 - z * z * m.fold); }
__global__ void map_logits(size_t n, float *x, CudaLogits m) {
    EACH(i, n) x[i] = m.cap > 0 ? m.cap * tanhf(m.scale / m.cap * x[i]) : m.scale * x[i];
}
extern "C" void cuda_map_logits(Cuda *c, size_t n, float *x, CudaLogits m) { LAUNCH_EACH(c, map_logits, n, x, m); }

/* One block per row, which it reads twice, because a row of 128k logits does not fit in shared memory. Each thread
 * keeps a sum and the largest of its elements so far. */
__global__ void xent(int V, float *logits, bf16 *rounded, int to, float *nll, int *hit, const int *tgt, const float *g,
                     CudaLogits map) {
    SMEM_DYN(float, part);
    float *l = logits + (size_t)blockIdx.x * (size_t)V;
    bf16 *h = rounded ? rounded + (size_t)blockIdx.x * (size_t)to : nullptr;
    int target = tgt[blockIdx.x], t = (int)threadIdx.x;
    if (target < 0) {
        for (int v = t; v < V && g; v += BLOCK) {
            if (h)
                h[v] = to_bf16(0);
            else
                l[v] = 0;
        }
        if (t == 0) nll[blockIdx.x] = 0;
        if (t == 0 && hit) hit[blockIdx.x] = 0;
        return;
    }
    float at = l[target], own = -INFINITY, sum = 0, above = 0;
    BY_FOUR for (int v = t; v < V; v += BLOCK) {
        float x = l[v], old = own;
        above += v < target ? !(x < at) : !(x <= at); /* NaN counts as larger */
        own = fmaxf(own, x);                          /* fmaxf ignores NaN; the sum carries it */
        sum = sum * (old == own ? 1 : expf(old - own)) + (x == -INFINITY ? 0 : expf(x - own));
    }
    float top = block_max(own, part);
    above = hit ? block_sum(above > 0 ? 1.0f : 0.0f, part) : 0;
    sum = block_sum(own == -INFINITY ? sum : sum * expf(own - top), part);
    if (t == 0) nll[blockIdx.x] = (float)log((double)sum) + top - at;
    if (t == 0 && hit) hit[blockIdx.x] = above == 0;
    if (!g) return;
    float scale = g[blockIdx.x] / sum;
    BY_FOUR for (int v = t; v < V; v += BLOCK) {
        float d = expf(l[v] - top) * scale - (v == target ? g[blockIdx.x] : 0);
        if (map.scale != 1 || map.fold > 0) d *= logit_slope(l[v], map);
        if (h)
            h[v] = to_bf16(d);
        else
            l[v] = d;
    }
}
extern "C" void cuda_xent(Cuda *c, int n, int V, float *logits, void *rounded, int to, float *nll, int *hit,
                          const int *tgt, const float *g, CudaLogits map) {
    if (n > 0)
        LAUNCH(xent, dim3((unsigned)n), dim3(BLOCK), WARPS * sizeof(float), c->stream, V, logits, (bf16 *)rounded, to,
               nll, hit, tgt, g, map);
}

/* Each warp sums runs of LEAF elements. Neighbours are added until one is left, then pieces and tensors in their
 * order. This is the tree of Ops.sumsq, so that ranks that share a piece can each sum a branch. */
enum { LEAF = 256, LEAVES = CUDA_SUMSQ_PIECE / LEAF };
static_assert((int)LEAVES <= (int)BLOCK, "a thread for every pair");
__global__ void sumsq_pieces(int tensors, const CudaPieces *all, double *out) {
    SMEM_DYN(double, leaf);
    int lo = tensor_of(tensors, all);
    const float *x = all[lo].x;
    const size_t piece = CUDA_SUMSQ_PIECE, n = all[lo].n, from = (blockIdx.x - all[lo].first) * piece;
    int t = threadIdx.x, m = (int)(n - from < piece ? n - from : piece);
    int left = (m + LEAF - 1) / LEAF;
    for (int l = t / 32; l < left; l += WARPS) {
        double s = 0;
        for (int i = l * LEAF + t % 32; i < (l + 1) * LEAF && i < m; i += 32)
            s += (double)x[from + i] * (double)x[from + i];
        s = warp_sum(s);
        if (t % 32 == 0) leaf[l] = s;
    }
    __syncthreads();
    double s = t < left ? leaf[t] : 0;
    for (int d = 1; d < 32; d *= 2) {
        double other = __shfl_xor_sync(FULL_WARP, s, d);
        if (t % (2 * d) == 0 && t + d < left) s += other;
    }
    __syncthreads();
    if (t % 32 == 0) leaf[t / 32] = s;
    __syncthreads();
    if (t) return;
    for (int d = 1, n32 = (left + 31) / 32; d < WARPS; d *= 2)
        for (int i = 0; i + d < n32; i += 2 * d) leaf[i] += leaf[i + d];
    out[blockIdx.x] = leaf[0];
}
/* One thread adds up the pieces of a tensor; then a single thread adds the tensors. */
__global__ void sumsq_total(int tensors, const CudaPieces *all, size_t n, double start, const double *at, bool more,
                            const double *in, double *sum) {
    SMEM_DYN(double, some);
    if (threadIdx.x == 0) start = more ? *sum : at ? *at : start;
    for (int from = 0; from < tensors; from += BLOCK) {
        int k = from + (int)threadIdx.x, m = tensors - from < BLOCK ? tensors - from : BLOCK;
        if (k < tensors) {
            size_t end = k + 1 < tensors ? all[k + 1].first : n;
            double one = 0;
            BY_FOUR for (size_t i = all[k].first; i < end; i++) one += in[i];
            some[threadIdx.x] = one;
        }
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < m; i++) start += some[i];
        __syncthreads();
    }
    if (threadIdx.x == 0) *sum = start;
}
extern "C" void cuda_sumsq(Cuda *c, double start, bool more, int n, const CudaPieces *all, size_t pieces, double *part,
                           double *sum) {
    if (pieces)
        LAUNCH(sumsq_pieces, dim3((unsigned)pieces), dim3(BLOCK), LEAVES * sizeof(double), c->stream, n, all, part);
    const double *at = value_of(c, &start);
    LAUNCH(sumsq_total, dim3(1), dim3(BLOCK), BLOCK * sizeof(double), c->stream, n, all, pieces, start, at, more, part,
           sum);
}
__global__ void normalise(size_t n, float *x, const double *sum, double eps) {
    const float factor = (float)(1 / (sqrt(*sum) + eps));
    EACH(i, n) x[i] = 0 * x[i] + factor * x[i]; /* as axpby does: values that are not finite stay so */
}
extern "C" void cuda_normalise(Cuda *c, size_t n, float *x, const double *sum, double eps) {
    LAUNCH_EACH(c, normalise, n, x, sum, eps);
}
