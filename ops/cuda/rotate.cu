/* rotate.cu: rotary position embedding, in place. A thread to a pair of a row: its angle serves all heads. */
#include "kernel.h"

template <class T> __global__ void rotate(size_t n, CudaRope p, T *x, const int *pos, const int *idx) {
    size_t half = (size_t)p.n / 2;
    EACH(i, n) {
        size_t row = i / half, pair = i % half;
        double co, si;
        sincos(pos[idx[row]] * p.f[pair], &si, &co); /* positions beyond 2^17 times a frequency need f64 */
        float c = (float)(co * p.factor), s = (float)(p.sign * si * p.factor);
        size_t one = p.interleaved ? 2 * pair : pair, two = p.interleaved ? 2 * pair + 1 : pair + half;
        T *head = x + row * (size_t)p.heads * (size_t)p.D + p.at;
        for (int h = 0; h < p.heads; h++, head += p.D) {
            float a = number(head[one]), b = number(head[two]);
            store<1>(head + one, {a * c - b * s});
            store<1>(head + two, {a * s + b * c});
        }
    }
}
extern "C" void cuda_rope(Cuda *c, const CudaRope *p, void *x, const int *pos, const int *idx, bool narrow) {
    size_t pairs = (size_t)p->N * (size_t)p->n / 2;
    if (narrow)
        LAUNCH_EACH(c, (rotate<bf16>), pairs, *p, (bf16 *)x, pos, idx);
    else
        LAUNCH_EACH(c, (rotate<float>), pairs, *p, (float *)x, pos, idx);
}
