/* distill.cu: losses against another model: of its logits, row by row, and of rows of its activations. */
#include "kernel.h"

/* A block to a row of V logits z and the teacher's u: its losses and, with g, their gradient by z in z's place. */
__global__ void distill_rows(int V, float *logits, const float *teacher, float *nll, float *kl, float *rkl,
                             const int *tgt, const float *g, CudaDistill c) {
    SMEM_DYN(float, part);
    float *z = logits + (size_t)blockIdx.x * (size_t)V, zt = -INFINITY, ut = -INFINITY, s = 0, sp = 0, sq = 0, f = 0,
          b = 0;
    const float *u = teacher + (size_t)blockIdx.x * (size_t)V;
    int target = tgt[blockIdx.x], t = (int)threadIdx.x;
    if (target < 0) {
        for (int v = t; v < V && g; v += BLOCK) z[v] = 0;
        if (t == 0) nll[blockIdx.x] = kl[blockIdx.x] = rkl[blockIdx.x] = 0;
        return;
    }
    float at = z[target], cool = 1 / c.temperature;
    for (int v = t; v < V; v += BLOCK) zt = fmaxf(zt, z[v]), ut = fmaxf(ut, u[v]);
    zt = block_max(zt, part), ut = block_max(ut, part);
    for (int v = t; v < V; v += BLOCK) {
        s += expf(z[v] - zt);
        sp += expf((z[v] - zt) * cool);
        sq += expf((u[v] - ut) * cool);
    }
    s = block_sum(s, part), sp = block_sum(sp, part), sq = block_sum(sq, part);
    float lp = (float)log((double)sp), lq = (float)log((double)sq);
    for (int v = t; v < V; v += BLOCK) { /* p - q is log p - log q: exactly 0 for equal logits */
        float p = (z[v] - zt) * cool - lp, q = (u[v] - ut) * cool - lq;
        f += expf(q) * (q - p);
        b += expf(p) * (p - q);
    }
    f = block_sum(f, part), b = block_sum(b, part);
    if (t == 0) {
        float square = c.temperature * c.temperature;
        nll[blockIdx.x] = (float)log((double)s) + zt - at;
        kl[blockIdx.x] = square * f, rkl[blockIdx.x] = square * b;
    }
    if (!g) return;
    float own = g[blockIdx.x] * c.lm, forth = g[blockIdx.x] * c.temperature * c.kl,
          back = g[blockIdx.x] * c.temperature * c.rkl;
    for (int v = t; v < V; v += BLOCK) {
        float p = (z[v] - zt) * cool - lp, q = (u[v] - ut) * cool - lq, e = expf(p);
        z[v] = expf(z[v] - zt) * (own / s) + forth * (e - expf(q)) + back * e * (p - q - b) - (v == target ? own : 0);
    }
}
extern "C" void cuda_distill(Cuda *c, int n, int V, float *logits, const float *teacher, float *nll, float *kl,
                             float *rkl, const int *tgt, const float *g, CudaDistill d) {
    if (n > 0)
        LAUNCH(distill_rows, dim3((unsigned)n), dim3(BLOCK), WARPS * sizeof(float), c->stream, V, logits, teacher, nll,
               kl, rkl, tgt, g, d);
}

/* A block to a sequence: 1 over the mean size of its rows that have a target. */
__global__ void align_sizes(int d, float *inv, const float *a, const int *tgt, const int *off) {
    SMEM_DYN(double, part);
    int begin = off[blockIdx.x], end = off[blockIdx.x + 1], n = 0;
    double sum = 0;
    for (int i = begin; i < end; i++) {
        if (tgt[i] < 0) continue;
        n++;
        for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
            double x = (double)a[(size_t)i * (size_t)d + (size_t)k];
            sum += x * x;
        }
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) inv[blockIdx.x] = sum > 0 ? (float)(n / sum) : 1;
}
/* A warp to a row. */
__global__ void align_rows(int N, int B, int d, float *err, float *dy, const float *y, const float *a, const float *inv,
                           const int *tgt, const int *off, const float *g, float c) {
    int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (i >= N || tgt[i] < 0) return;
    int s0 = 0;
    for (int end = B; end - s0 > 1;) { /* the last sequence that begins at the row or before it */
        int mid = (s0 + end) / 2;
        if (off[mid] <= i)
            s0 = mid;
        else
            end = mid;
    }
    float size = inv[s0], f = dy ? 2 * c * g[i] * size : 0;
    double s = 0;
    for (int k = lane; k < d; k += 32) {
        size_t at = (size_t)i * (size_t)d + (size_t)k;
        float x = y[at] - a[at];
        double wide = (double)y[at] - (double)a[at];
        s += wide * wide;
        if (dy) dy[at] += f * x;
    }
    s = warp_sum(s);
    if (lane == 0) err[i] += (float)s * size;
}
extern "C" void cuda_align(Cuda *c, int N, int B, int d, float *err, float *dy, float *inv, const float *y,
                           const float *a, const int *tgt, const int *off, const float *g, float factor) {
    if (N <= 0 || B <= 0) return;
    LAUNCH(align_sizes, dim3((unsigned)B), dim3(BLOCK), WARPS * sizeof(double), c->stream, d, inv, a, tgt, off);
    LAUNCH(align_rows, dim3((unsigned)(N + WARPS - 1) / WARPS), dim3(BLOCK), 0, c->stream, N, B, d, err, dy, y, a, inv,
           tgt, off, g, factor);
}
