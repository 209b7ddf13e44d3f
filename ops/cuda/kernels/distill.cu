/* distill.cu: losses against a teacher: of its logits, row by row, and of rows of its activations. */
#include "kernel.h"

/* One block per row of V logits z and the teacher's u: its losses and, with g, their gradient by z, written over z.
 * The row is read once for the losses (sums are rescaled whenever a larger logit appears) and once for the gradient. */
__global__ void distill_rows(int V, float *logits, const float *teacher, float *nll, float *kl, float *rkl,
                             const int *tgt, const float *g, CudaDistill c) {
    SMEM_DYN(float, part);
    const float least = -3.0e38f;
    float *z = logits + (size_t)blockIdx.x * (size_t)V, zt = least, ut = least, s = 0, sp = 0, sq = 0, f = 0, b = 0;
    const float *u = teacher + (size_t)blockIdx.x * (size_t)V;
    int target = tgt[blockIdx.x], t = (int)threadIdx.x;
    if (target < 0) {
        for (int v = t; v < V && g; v += BLOCK) z[v] = 0;
        if (t == 0) nll[blockIdx.x] = kl[blockIdx.x] = rkl[blockIdx.x] = 0;
        return;
    }
    /* Differences of logits are taken relative to the target's, so that a shift of all logits cancels exactly. */
    float at = z[target], cool = 1 / c.temperature, middle = u[target] - at;
    BY_FOUR
    for (int v = t; v < V; v += BLOCK) {
        float a = z[v], o = u[v], apart = (o - a - middle) * cool;
        if (a > zt) {
            float by = expf((zt - a) * cool);
            s *= expf(zt - a), sp *= by, b *= by, zt = a;
        }
        if (o > ut) {
            float by = expf((ut - o) * cool);
            sq *= by, f *= by, ut = o;
        }
        float p = expf((a - zt) * cool), q = expf((o - ut) * cool);
        s += expf(a - zt);
        sp += p, b -= p * apart;
        sq += q, f += q * apart;
    }
    float zm = block_max(zt, part), um = block_max(ut, part), by = expf((zt - zm) * cool);
    s = block_sum(s * expf(zt - zm), part), sp = block_sum(sp * by, part), b = block_sum(b * by, part);
    by = expf((ut - um) * cool);
    sq = block_sum(sq * by, part), f = block_sum(f * by, part);
    zt = zm, ut = um;
    double wide_p = log((double)sp), wide_q = log((double)sq);
    float lp = (float)wide_p, lq = (float)wide_q,
          shift = (float)(((double)middle - (double)ut + (double)zt) * (double)cool + wide_p - wide_q);
    f = f / sq + shift, b = b / sp - shift;
    if (t == 0) {
        float square = c.temperature * c.temperature;
        nll[blockIdx.x] = (float)log((double)s) + zt - at;
        kl[blockIdx.x] = square * f, rkl[blockIdx.x] = square * b;
    }
    if (!g) return;
    float own = g[blockIdx.x] * c.lm, forth = g[blockIdx.x] * c.temperature * c.kl,
          back = g[blockIdx.x] * c.temperature * c.rkl;
    const CudaLogits m = c.map;
    for (int v = t; v < V; v += BLOCK) { /* p - q is log p - log q: exactly 0 for equal logits */
        float p = (z[v] - zt) * cool - lp, q = (u[v] - ut) * cool - lq, e = expf(p),
              slope = m.scale * (1 - z[v] * z[v] * m.fold);
        z[v] = expf(z[v] - zt) * (own / s) + forth * (e - expf(q)) + back * e * (p - q - b) - (v == target ? own : 0);
        if (m.scale != 1 || m.fold > 0) z[v] *= slope;
    }
}
extern "C" void cuda_distill(Cuda *c, int n, int V, float *logits, const float *teacher, float *nll, float *kl,
                             float *rkl, const int *tgt, const float *g, CudaDistill d) {
    if (n > 0)
        LAUNCH(distill_rows, dim3((unsigned)n), dim3(BLOCK), WARPS * sizeof(float), c->stream, V, logits, teacher, nll,
               kl, rkl, tgt, g, d);
}

/* One block per sequence: 1 over the mean size of its rows that have a target. */
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
/* One warp per row. */
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
