/* pack.cu: rows in f32 become rows in bf16, to the nearest, ties to even: operands of products on the matrix units. */
#include "kernel.h"

struct Packs {
    CudaPack p[3];
    bool quads[3]; /* rows begin at 16 bytes and have a multiple of four numbers */
};
/* Four numbers to a thread; blockIdx.y chooses the operand. */
__global__ void pack(Packs x) {
    const CudaPack &p = x.p[blockIdx.y];
    size_t wide = (size_t)p.to / 4, entries = (size_t)p.rows * (size_t)p.group;
    EACH(i, (size_t)p.lanes * entries * wide) {
        size_t row = i / wide, e = row % entries, group = (size_t)p.group;
        int c = (int)(i % wide) * 4;
        size_t at = e / group * (size_t)p.lanes * group + row / entries * group + e % group;
        const float *from = p.x + at * (size_t)p.ld + c;
        float4 v = {0, 0, 0, 0};
        if (x.quads[blockIdx.y]) {
            if (c < p.D) v = load_vec<float4>(from);
        } else {
            if (c < p.D) v.x = from[0];
            if (c + 1 < p.D) v.y = from[1];
            if (c + 2 < p.D) v.z = from[2];
            if (c + 3 < p.D) v.w = from[3];
        }
        store_vec((bf16 *)p.y + i * 4, uint2{pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)});
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

__global__ void narrow(size_t n, float *x) { EACH(i, n) x[i] = to_float(to_bf16(x[i])); }
extern "C" void cuda_narrow(Cuda *c, size_t n, float *x) { LAUNCH_EACH(c, narrow, n, x); }
