/* tile.h: f32 products of tiles of 64 rows, for the attention kernels.
 *
 * A block of 256 threads is 16 x 16, thread = 16 ty + tx. Of a product of 64 rows it owns rows ty + 16 i, i < 4; of 64
 * columns it owns tx + 16 j, j < 4; of a wide result it owns columns 64 g + 4 tx + c, c < 4, g < G. So a row belongs
 * to half a warp, whose sums and maxima need four shuffles, and reads of shared memory take 16 bytes at a time without
 * bank conflicts. Rows may lie anywhere; elements past the last row or column count as zero. */
#pragma once
#include "ops/fp8.h"
#include "ops/packed.h"
#include "kernel.h"

enum { TILE = 64, PART = 32, LD_PART = PART + 4, LD_TILE = TILE + 4, PART_NUMBERS = 2 * TILE * LD_PART };
static_assert(BLOCK == 256 && PART == 32 && PART_NUMBERS >= PART * 2 * TILE, "the layout above");

/* Row r < n of f32 or bf16 begins at p + at[r] * ld; `at` lies in shared memory. */
template <class T> struct RowsOf {
    const T *p;
    const size_t *at;
    size_t ld;
    int n;
};
using Rows = RowsOf<float>;
template <class T> DEVICE float row_number(const RowsOf<T> &x, int r, int c, int D) {
    return r < x.n && c < D ? number(x.p[x.at[r] * x.ld + (size_t)c]) : 0;
}
/* A byte of a part in int8.h or fp8.h, of which `at` has the first; a word of one in packed.h. */
struct Int8 {
    signed char code;
};
struct Fp8 {
    unsigned char code;
};
struct Packed {
    uint32_t word;
};
template <> struct RowsOf<Packed> {
    const Packed *p;
    const size_t *at;
    int n, bits, group, width; /* width: of the parts, which may be more than is read */
};
/* Elements of a part of so many values, where the lanes' data is of such elements. */
template <class T> DEVICE size_t part_of(const T *, const CudaLanes &, int width) { return (size_t)width; }
DEVICE size_t part_of(const Int8 *, const CudaLanes &, int width) { return int8_bytes(width); }
DEVICE size_t part_of(const Fp8 *, const CudaLanes &, int width) { return fp8_bytes(width); }
DEVICE size_t part_of(const Packed *, const CudaLanes &c, int width) {
    return packed_bytes(c.bits, c.group, width) / sizeof(Packed);
}
/* n parts of so many values, which begin at these elements of the lanes' data. */
template <class T> DEVICE RowsOf<T> parts_at(const T *data, const CudaLanes &, const size_t *at, int n, int) {
    return {data, at, 1, n};
}
DEVICE RowsOf<Packed> parts_at(const Packed *data, const CudaLanes &c, const size_t *at, int n, int width) {
    return {data, at, n, c.bits, c.group, width};
}
DEVICE float row_number(const RowsOf<Int8> &x, int r, int c, int D) {
    if (r >= x.n || c >= D) return 0;
    const Int8 *part = x.p + x.at[r] * x.ld;
    return *(const float *)part * (float)part[INT8_HEAD + c].code;
}
DEVICE float row_number(const RowsOf<Fp8> &x, int r, int c, int D) {
    if (r >= x.n || c >= D) return 0;
    const Fp8 *part = x.p + x.at[r] * x.ld;
    return *(const float *)part * fp8_number(part[FP8_HEAD + c].code);
}
DEVICE float row_number(const RowsOf<Packed> &x, int r, int c, int D) {
    if (r >= x.n || c >= D) return 0;
    const int at = c & -x.group, rest = x.width - at;
    const uint32_t *head =
        (const uint32_t *)(x.p + x.at[r]) + at / x.group * (int)packed_group_bytes(x.bits, x.group) / 4;
    return packed_number(*head, packed_read(head + 1, x.bits, rest < x.group ? rest : x.group, c - at));
}
DEVICE float nth(float4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
DEVICE float half_warp_sum(float v) {
    for (int d = 8; d; d >>= 1) v += __shfl_xor_sync(FULL_WARP, v, d);
    return v;
}
DEVICE float half_warp_max(float v) {
    for (int d = 8; d; d >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, d));
    return v;
}

/* s[i][j] = row ty + 16 i of a . row tx + 16 j of b, over D elements, by way of part (PART_NUMBERS). Begins with a
 * barrier. */
template <class T> DEVICE void tile_dots(float s[4][4], float *part, Rows a, RowsOf<T> b, int D) {
    int t = (int)threadIdx.x, ty = t / 16, tx = t % 16;
    float *pb = part + TILE * LD_PART;
    UNROLL for (int i = 0; i < 4; i++) { UNROLL for (int j = 0; j < 4; j++) s[i][j] = 0; }
    for (int c = 0; c < D; c += PART) {
        __syncthreads();
        ROLLED for (int r = t / PART; r < TILE; r += 2 * WARPS) { /* four loads at once */
            int k = t % PART, r2 = r + WARPS;
            float x = row_number(a, r, c + k, D), y = row_number(b, r, c + k, D), x2 = row_number(a, r2, c + k, D),
                  y2 = row_number(b, r2, c + k, D);
            part[r * LD_PART + k] = x, part[r2 * LD_PART + k] = x2;
            pb[r * LD_PART + k] = y, pb[r2 * LD_PART + k] = y2;
        }
        __syncthreads();
        for (int k = 0; k < PART && c + k < D; k += 4) {
            float4 x[4], y[4];
            UNROLL for (int i = 0; i < 4; i++) {
                x[i] = load_vec<float4>(part + (ty + 16 * i) * LD_PART + k);
                y[i] = load_vec<float4>(pb + (tx + 16 * i) * LD_PART + k);
            }
            UNROLL for (int i = 0; i < 4; i++) {
                UNROLL for (int j = 0; j < 4; j++) {
                    s[i][j] += x[i].x * y[j].x;
                    s[i][j] += x[i].y * y[j].y;
                    s[i][j] += x[i].z * y[j].z;
                    s[i][j] += x[i].w * y[j].w;
                }
            }
        }
    }
}
/* Row ty + 16 i, columns c0 + 64 g + 4 tx + c: acc[i][4 g + c] += sum over r of P[row][r] (row r of b). P (TILE,
 * LD_TILE) must be zero past b.n. Begins with a barrier; P may be written right before it. */
template <int G, class T>
DEVICE void tile_apply(float acc[4][4 * G], const float *P, float *part, RowsOf<T> b, int c0, int D) {
    constexpr int W = 64 * G;
    int t = (int)threadIdx.x, ty = t / 16, tx = t % 16;
    for (int r0 = 0; r0 < b.n; r0 += PART) {
        __syncthreads();
        ROLLED for (int i = t; i < PART * W; i += 4 * BLOCK) {
            float x[4];
            UNROLL for (int k = 0; k < 4; k++) x[k] = row_number(b, r0 + (i + k * BLOCK) / W, c0 + i % W, D);
            UNROLL for (int k = 0; k < 4; k++) part[i + k * BLOCK] = x[k];
        }
        __syncthreads();
        for (int r = 0; r < PART && r0 + r < b.n; r += 4) {
            float4 p[4];
            UNROLL for (int i = 0; i < 4; i++) p[i] = load_vec<float4>(P + (ty + 16 * i) * LD_TILE + r0 + r);
            UNROLL for (int k = 0; k < 4; k++) {
                UNROLL for (int g = 0; g < G; g++) {
                    float4 v = load_vec<float4>(part + (r + k) * W + 64 * g + 4 * tx);
                    UNROLL for (int i = 0; i < 4; i++) {
                        float f = nth(p[i], k);
                        acc[i][4 * g] += f * v.x;
                        acc[i][4 * g + 1] += f * v.y;
                        acc[i][4 * g + 2] += f * v.z;
                        acc[i][4 * g + 3] += f * v.w;
                    }
                }
            }
        }
    }
}
