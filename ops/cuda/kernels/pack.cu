/* pack.cu: converts rows to bf16 rows that are aligned to 16 bytes, rounded to nearest, ties to even: operands of
 * products on the matrix units. */
#include "kernel.h"

struct Packs {
    CudaPack p[3];
    bool quads[3]; /* rows of x have a multiple of four elements, and are aligned for accesses of four */
};
template <class T> DEVICE void pack_four(float (&v)[4], const T *from, int c, int D, bool quads) {
    if (quads) {
        if (c < D) fetch<4>(v, from);
    } else {
        UNROLL
        for (int j = 0; j < 4; j++)
            if (c + j < D) v[j] = number(from[j]);
    }
}
/* Four elements per thread; blockIdx.y chooses the operand. */
__global__ void pack(Packs x) {
    const CudaPack &p = x.p[blockIdx.y];
    size_t wide = (size_t)p.to / 4, entries = (size_t)p.rows * (size_t)p.group;
    EACH(i, (size_t)p.lanes * entries * wide) {
        size_t row = i / wide, e = row % entries, group = (size_t)p.group;
        int c = (int)(i % wide) * 4;
        size_t at = e / group * (size_t)p.lanes * group + row / entries * group + e % group;
        float v[4] = {0, 0, 0, 0};
        at = at * (size_t)p.ld + (size_t)c;
        if (p.is_bf16)
            pack_four(v, (const bf16 *)p.x + at, c, p.D, x.quads[blockIdx.y]);
        else
            pack_four(v, (const float *)p.x + at, c, p.D, x.quads[blockIdx.y]);
        store<4>((bf16 *)p.y + i * 4, v);
    }
}
extern "C" void cuda_pack(Cuda *c, int n, const CudaPack *p) {
    Packs x = {};
    size_t most = 0;
    for (int k = 0; k < n; k++) {
        size_t count = (size_t)p[k].rows * (size_t)p[k].lanes * (size_t)p[k].group * (size_t)p[k].to / 4;
        x.p[k] = p[k];
        x.quads[k] = p[k].D % 4 == 0 && p[k].ld % 4 == 0 && (uintptr_t)p[k].x % sizeof(float4) == 0;
        most = most > count ? most : count;
    }
    dim3 grid = grid_for(c, most);
    grid.y = (unsigned)n;
    if (most) LAUNCH(pack, grid, dim3(BLOCK), 0, c->stream, x);
}

__global__ void places(int n, int T, int *out, const int *first) {
    EACH(i, (size_t)n) out[i] = first[i] - (int)i / T * T;
}
extern "C" void cuda_places(Cuda *c, int n, int T, int *out, const int *first) {
    LAUNCH_EACH(c, places, n, T, out, first);
}

__global__ void round_to_bf16(size_t n, float *x) { EACH(i, n) x[i] = to_float(to_bf16(x[i])); }
extern "C" void cuda_round_to_bf16(Cuda *c, size_t n, float *x) { LAUNCH_EACH(c, round_to_bf16, n, x); }
