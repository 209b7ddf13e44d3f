/* packed.cu: parts of rows in 4, 3 and 2 bits (../packed.h), a warp to a part: lane k has number k of a group, and of
 * one of 64 also number k + 32. Bytes: every number is read once; a word is put together by shuffles. */
#include "ops/packed.h"
#include "kernel.h"

/* The rule of a group of n numbers, of which this lane has x[0] and x[1]. */
struct PackedWarp {
    PackedGroup g;
    float most;
};
DEVICE PackedWarp packed_of(const float x[2], int n, int lane, int top) {
    float least = x[0], most = x[0];
    uint32_t size = part_float_bits(x[0]) & 0x7fffffffu;
    if (lane >= n) least = INFINITY, most = -INFINITY, size = 0;
    if (lane + 32 < n) {
        const uint32_t other = part_float_bits(x[1]) & 0x7fffffffu;
        least = fminf(least, x[1]), most = fmaxf(most, x[1]), size = other > size ? other : size;
    }
    for (int d = 16; d; d >>= 1) {
        const uint32_t other = __shfl_xor_sync(FULL_WARP, size, d);
        size = other > size ? other : size;
        least = fminf(least, __shfl_xor_sync(FULL_WARP, least, d));
        most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, d));
    }
    return {packed_rule(least, most, size, top), most};
}
DEVICE void packed_load(float x[2], const float *row, int n, int lane) {
    x[0] = lane < n ? row[lane] : 0;
    x[1] = lane + 32 < n ? row[lane + 32] : 0;
}
/* Codes of `bits` of the 32 lanes become words of which each lane that has the first code of one writes it. */
DEVICE void packed_store(uint32_t *words, int bits, int count, int lane, uint32_t code) {
    const int each = 32 / bits;
    uint32_t word = code << lane % each * bits;
    for (int d = 1; d < each; d *= 2) word |= __shfl_xor_sync(FULL_WARP, word, d);
    if (lane % each == 0 && lane / each < count) words[lane / each] = word;
}
__global__ void packed_encode(int bits, int group, int n, int w, char *data, const size_t *to, const float *x,
                              const size_t *from) {
    const int lane = (int)threadIdx.x % 32, top = (1 << bits) - 1, low = packed_low(bits);
    for (int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; i < n; i += (int)gridDim.x * WARPS) {
        uint32_t *part = (uint32_t *)(data + to[i]);
        const float *row = x + from[i];
        for (int at = 0; at < w; at += group) {
            const int m = w - at < group ? w - at : group;
            float v[2];
            packed_load(v, row + at, m, lane);
            const PackedWarp p = packed_of(v, m, lane, top);
            if (lane == 0) *part = p.g.head;
            for (int half = 0; half < 2 && half * 32 < m; half++) {
                const int k = lane + 32 * half, rest = m - 32 * half;
                const uint32_t code = k < m ? (uint32_t)packed_code(p.g, v[half], p.most, top) : 0;
                packed_store(part + 1 + half * low, low, packed_words(low, rest), lane, code & ((1u << low) - 1));
                if (bits == 3) packed_store(part + 1 + packed_words(low, m) + half, 1, 1, lane, code >> 2);
            }
            part += packed_group_bytes(bits, m) / 4;
        }
    }
}
__global__ void packed_recode(int bits, int group, int n, int w, float *x) {
    const int lane = (int)threadIdx.x % 32, top = (1 << bits) - 1;
    for (int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; i < n; i += (int)gridDim.x * WARPS) {
        for (int at = 0; at < w; at += group) {
            float *row = x + (size_t)i * (size_t)w + at, v[2];
            const int m = w - at < group ? w - at : group;
            packed_load(v, row, m, lane);
            const PackedWarp p = packed_of(v, m, lane, top);
            if (lane < m) row[lane] = packed_number(p.g.head, packed_code(p.g, v[0], p.most, top));
            if (lane + 32 < m) row[lane + 32] = packed_number(p.g.head, packed_code(p.g, v[1], p.most, top));
        }
    }
}
static dim3 warps_for(const Cuda *c, int n) { return grid_for(c, (size_t)n * 32); }
extern "C" void cuda_packed_encode(Cuda *c, int bits, int group, int n, int w, void *data, const size_t *to,
                                   const float *x, const size_t *from) {
    if (n)
        LAUNCH(packed_encode, warps_for(c, n), dim3(BLOCK), 0, c->stream, bits, group, n, w, (char *)data, to, x, from);
}
extern "C" void cuda_packed_recode(Cuda *c, int bits, int group, int n, int w, float *x) {
    if (n) LAUNCH(packed_recode, warps_for(c, n), dim3(BLOCK), 0, c->stream, bits, group, n, w, x);
}
