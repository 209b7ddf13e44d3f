/* decide.cu: decisions about rows of the cache, computed in f64 from a hidden element as on the CPU, one thread per
 * row and lane; the means of weights' rows that decide, and the scaling of a column of heads. */
#include "kernel.h"

DEVICE double logistic(double x) { return 1 / (1 + exp(-x)); }
DEVICE double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
/* The logit l of row i in lane h. */
DEVICE double logit_of(const CudaDecide &p, const float *u, int i, int h) {
    double noise = 0.5;
    if (p.noise) {
        int s = p.of[i];
        uint64_t row = mix(mix(p.at ? *p.at : p.key, p.id[s]), (uint64_t)(i - p.off[s]));
        noise = ((double)(mix(row, (uint64_t)h) >> 11) + 0.5) * 0x1p-53;
    }
    float by = 0; /* c.itself: of the row before, and of none where a document begins */
    if (!p.itself || (p.first[i] != i && i > p.off[p.of[i]]))
        by = u[(size_t)(p.itself ? i - 1 : i) * (size_t)p.wide + (size_t)h];
    else if (p.first[i] != i)
        by = p.past[(size_t)p.seq[p.of[i]] * (size_t)p.G + (size_t)h];
    return (p.gain * (double)by - p.offset + log(noise / (1 - noise))) / p.temperature;
}
__global__ void decide(size_t n, CudaDecide p, float *alpha, float *omega, float *bias, float *evicted,
                       const float *u) {
    EACH(at, n) {
        int i = (int)(at / (size_t)p.G), h = (int)(at % (size_t)p.G), next = i + 1;
        double l = logit_of(p, u, i, h);
        bool begins = p.first[i] == i, hard = l > 0 && !begins;
        alpha[at] = begins ? 0 : p.train ? (float)logistic(l) : hard ? 1.0f : 0.0f;
        if (evicted) evicted[at] = hard ? 1.0f : 0.0f;
        if (omega)
            omega[at] = (float)(logistic((double)u[(size_t)i * (size_t)p.wide + (size_t)(p.G + h)] + p.offset) + p.eps);
        float mask = 0; /* decided by the row's successor in its document */
        if (next < p.off[p.of[i] + 1] && p.first[next] != next) {
            l = logit_of(p, u, next, h);
            mask = p.train ? (float)-softplus(l) : l > 0 ? -INFINITY : 0;
        }
        bias[at] = mask;
    }
}
/* One block per sequence: sums of integers, exact in any order. p.noise: the decisions that are counted have it. */
__global__ void decide_count(CudaDecide p, float *stat, const float *alpha, const float *u) {
    SMEM_DYN(float, part);
    size_t begin = (size_t)p.off[blockIdx.x] * (size_t)p.G, end = (size_t)p.off[blockIdx.x + 1] * (size_t)p.G;
    float sum = 0;
    for (size_t at = begin + threadIdx.x; at < end; at += BLOCK) {
        int i = (int)(at / (size_t)p.G), h = (int)(at % (size_t)p.G);
        sum += p.smooth ? alpha[at] : p.first[i] != i && logit_of(p, u, i, h) > 0 ? 1.0f : 0.0f;
    }
    sum = block_sum(sum, part);
    if (threadIdx.x) return;
    float *own = stat + (size_t)blockIdx.x * (size_t)p.stats;
    own[0] += sum, own[1] += (float)(end - begin);
}
extern "C" void cuda_decide(Cuda *c, const CudaDecide *d, float *alpha, float *omega, float *bias, float *evicted,
                            float *stat, const float *u) {
    CudaDecide p = *d;
    p.at = value_of(c, &p.key);
    LAUNCH_EACH(c, decide, (size_t)p.N * (size_t)p.G, p, alpha, omega, bias, evicted, u);
    p.noise = p.noise && !p.count_still;
    if (stat && p.N > 0)
        LAUNCH(decide_count, dim3((unsigned)p.B), dim3(BLOCK), WARPS * sizeof(float), c->stream, p, stat, alpha, u);
}
__global__ void decide_backward(size_t n, CudaDecide p, float *du, float *dm, const float *dalpha, const float *domega,
                                const float *dbias, const float *alpha, const float *omega, const float *dstat) {
    EACH(at, n) {
        int i = (int)(at / (size_t)p.G);
        double a = (double)alpha[at], dl = 0;
        if (p.first[i] != i) {
            double asked = dstat ? (double)dstat[(size_t)p.of[i] * (size_t)p.stats] : 0;
            dl = ((dalpha ? (double)dalpha[at] : 0) + asked) * a * (1 - a) - a * (double)dbias[at - (size_t)p.G];
        }
        if (!p.itself || p.first[i] != i) du[p.itself ? at - (size_t)p.G : at] += (float)(dl * p.gain / p.temperature);
        if (dm) {
            double o = (double)omega[at] - p.eps;
            dm[at] += (float)((double)domega[at] * o * (1 - o) / p.group);
        }
    }
}
extern "C" void cuda_decide_backward(Cuda *c, const CudaDecide *p, float *du, float *dm, const float *dalpha,
                                     const float *domega, const float *dbias, const float *alpha, const float *omega,
                                     const float *dstat) {
    CudaDecide q = *p;
    q.key = 0; /* no noise is used here */
    LAUNCH_EACH(c, decide_backward, (size_t)p->N * (size_t)p->G, q, du, dm, dalpha, domega, dbias, alpha, omega, dstat);
}

DEVICE float as_float(float v) { return v; }
DEVICE float as_float(bf16 v) { return to_float(v); }
template <class T> __global__ void mean_rows(size_t n, size_t d, float *y, const T *w, size_t each, size_t at, int k) {
    EACH(i, n) {
        float s = 0;
        for (int j = 0; j < k; j++)
            s += as_float(w[((i / d * (size_t)k + (size_t)j) * each + at) * d + i % d]) / (float)k;
        y[i] = s;
    }
}
extern "C" void cuda_mean_rows(Cuda *c, int n, int d, float *y, const void *w, bool is_bf16, int each, int at, int k) {
    size_t count = (size_t)n * (size_t)d;
    if (is_bf16)
        LAUNCH_EACH(c, (mean_rows<bf16>), count, (size_t)d, y, (const bf16 *)w, (size_t)each, (size_t)at, k);
    else
        LAUNCH_EACH(c, (mean_rows<float>), count, (size_t)d, y, (const float *)w, (size_t)each, (size_t)at, k);
}
__global__ void scale_column(size_t n, size_t width, size_t column, float *x, float m, const float *at) {
    if (at) m = *at;
    EACH(i, n) x[i * width + column] *= m;
}
extern "C" void cuda_scale_column(Cuda *c, size_t rows, int width, int column, float *x, float m) {
    const float *at = value_of(c, &m);
    LAUNCH_EACH(c, scale_column, rows, (size_t)width, (size_t)column, x, m, at);
}
