/* conv.cu: the short depthwise convolution before a recurrence. */
#include "kernel.h"

/* The input of channel c that lies `back` rows before row t: in the pass, in the tail that the state holds, or 0:
 * before the document. */
DEVICE float conv_input(const CudaConv &p, const float *x, const float *state, int t, int back, int c) {
    int s = p.of[t], first = p.first[t], begin = p.off[s], from = first < 0 ? begin : first, i = t - back;
    if (i >= from) return x[(size_t)i * (size_t)p.C + (size_t)c];
    if (first >= 0 || i < begin - (p.W - 1)) return 0;
    return state[(size_t)p.seq[s] * p.blob + (size_t)p.at + (size_t)(i - begin + p.W - 1) * (size_t)p.C + (size_t)c];
}
/* y before its activation. */
DEVICE float conv_at(const CudaConv &p, const float *x, const float *w, const float *bias, const float *state, int t,
                     int c) {
    if (!w) return x[(size_t)t * (size_t)p.C + (size_t)c];
    float s = bias ? bias[c] : 0;
    for (int j = 0; j < p.W; j++) s += w[c * p.W + j] * conv_input(p, x, state, t, p.W - 1 - j, c);
    return s;
}
__global__ void short_conv(size_t n, CudaConv p, float *y, const float *x, const float *w, const float *bias,
                           const float *state) {
    EACH(i, n) {
        float a = conv_at(p, x, w, bias, state, (int)(i / (size_t)p.C), (int)(i % (size_t)p.C));
        y[i] = p.silu ? a * sigmoid1(a) : a;
    }
}
/* A thread to a channel of a sequence. Oldest first: what is still read lies behind what is written. */
__global__ void short_conv_store(size_t n, CudaConv p, const float *x, float *state) {
    EACH(i, n) {
        int s = (int)(i / (size_t)p.C), c = (int)(i % (size_t)p.C), end = p.off[s + 1];
        if (end == p.off[s]) continue;
        float *tail = state + (size_t)p.seq[s] * p.blob + (size_t)p.at + (size_t)c;
        for (int j = 0; j < p.W - 1; j++)
            tail[(size_t)j * (size_t)p.C] = conv_input(p, x, state, end - 1, p.W - 2 - j, c);
    }
}
/* da: the gradient of the sums before the activation. */
__global__ void short_conv_backward_sums(size_t n, CudaConv p, float *da, const float *dy, const float *x,
                                         const float *w, const float *bias) {
    EACH(i, n) {
        float g = dy[i];
        if (p.silu) {
            float a = conv_at(p, x, w, bias, nullptr, (int)(i / (size_t)p.C), (int)(i % (size_t)p.C)), s = sigmoid1(a);
            g *= s * (1 + a * (1 - s));
        }
        da[i] = g;
    }
}
__global__ void short_conv_backward_x(size_t n, CudaConv p, float *dx, const float *da, const float *w) {
    EACH(i, n) {
        int t = (int)(i / (size_t)p.C), c = (int)(i % (size_t)p.C), end = p.off[p.of[t] + 1];
        float s = dx[i];
        for (int j = p.W - 1; j >= 0; j--) {
            int to = t + p.W - 1 - j; /* the row that took in x_t with tap j */
            if (to >= end || p.first[to] != p.first[t]) break;
            float a = da[(size_t)to * (size_t)p.C + (size_t)c];
            s += w ? a * w[c * p.W + j] : a;
        }
        dx[i] = s;
    }
}
/* A block to 32 channels of a tap, or, behind the last tap, of the bias; as in norm.cu. */
__global__ void short_conv_backward_taps(CudaConv p, float *dw, float *dbias, const float *da, const float *x) {
    SMEM_DYN(float, part);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, c = (int)blockIdx.x * 32 + lane,
        j = (int)blockIdx.y;
    float s = 0;
    bool tap = j < p.W;
    if (tap ? !dw : !dbias) return;
    for (int t = warp; t < p.N && c < p.C; t += WARPS) {
        float a = da[(size_t)t * (size_t)p.C + (size_t)c];
        s += tap ? a * conv_input(p, x, nullptr, t, p.W - 1 - j, c) : a;
    }
    part[threadIdx.x] = s;
    __syncthreads();
    if (warp || c >= p.C) return;
    for (int v = 1; v < WARPS; v++) s += part[v * 32 + lane];
    if (tap)
        dw[c * p.W + j] += s;
    else
        dbias[c] += s;
}
extern "C" void cuda_short_conv(Cuda *c, const CudaConv *p, float *y, const float *x, const float *w, const float *bias,
                                float *state, bool store) {
    LAUNCH_EACH(c, short_conv, (size_t)p->N * (size_t)p->C, *p, y, x, w, bias, state);
    if (state && store && p->W > 1) LAUNCH_EACH(c, short_conv_store, (size_t)p->B * (size_t)p->C, *p, x, state);
}
extern "C" void cuda_short_conv_backward(Cuda *c, const CudaConv *p, float *dx, float *dw, float *dbias, float *da,
                                         const float *dy, const float *x, const float *w, const float *bias) {
    size_t n = (size_t)p->N * (size_t)p->C;
    if (n == 0) return;
    LAUNCH_EACH(c, short_conv_backward_sums, n, *p, da, dy, x, w, bias);
    if (dx) LAUNCH_EACH(c, short_conv_backward_x, n, *p, dx, da, w);
    if (dw || dbias)
        LAUNCH(short_conv_backward_taps, dim3((unsigned)(p->C + 31) / 32, (unsigned)p->W + 1), dim3(BLOCK),
               BLOCK * sizeof(float), c->stream, *p, dw, dbias, da, x);
}
