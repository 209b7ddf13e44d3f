/* rotate.cu: rotary position embedding, in place. A thread to a pair of a row: its angle serves all heads. */
#include "kernel.h"

__global__ void rotate(size_t n, CudaRope p, float *x, const int *pos, const int *idx) {
    size_t half = (size_t)p.n / 2;
    EACH(i, n) {
        size_t row = i / half, pair = i % half;
        double co, si;
        sincos(pos[idx[row]] * p.f[pair], &si, &co); /* positions beyond 2^17 times a frequency need f64 */
        float c = (float)(co * p.factor), s = (float)(p.sign * si * p.factor);
        size_t one = p.interleaved ? 2 * pair : pair, two = p.interleaved ? 2 * pair + 1 : pair + half;
        float *head = x + row * (size_t)p.heads * (size_t)p.D + p.at;
        for (int h = 0; h < p.heads; h++, head += p.D) {
            float a = head[one], b = head[two];
            head[one] = a * c - b * s;
            head[two] = a * s + b * c;
        }
    }
}
extern "C" void cuda_rope(Cuda *c, const CudaRope *p, float *x, const int *pos, const int *idx) {
    LAUNCH_EACH(c, rotate, (size_t)p->N * (size_t)p->n / 2, *p, x, pos, idx);
}
