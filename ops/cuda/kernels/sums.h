/* sums.h: sums over rows that many blocks compute together. Each block sums a slice of the rows and leaves its part in
 * scratch; a second kernel adds the parts in the order of slices. The shape alone decides the slices, so neither
 * timing nor the device changes a bit. */
#pragma once
#include "kernel.h"

enum { FOLD = 1024 }; /* threads of a block that adds parts: 32 columns, each warp takes every 32nd slice */

/* Rows of a slice when `rows` rows are cut into `slices`. */
static inline size_t rows_each(size_t rows, int slices) { return (rows + (size_t)slices - 1) / (size_t)slices; }

/* Every warp of a block has one sum per lane for the same 32 columns; adds them in the order of warps and returns them
 * to warp 0. `part`: one element for each thread. */
template <class T> DEVICE T warps_sum(T s, T *part) {
    int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    __syncthreads();
    part[threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.x < 32)
        for (int v = 1; v < warps; v++) s += part[v * 32 + lane];
    return s;
}
/* The sum over slices of column blockIdx.x * 32 + lane of parts (slices, columns), returned to warp 0. Needs FOLD
 * threads. */
template <class T> DEVICE T slices_sum(int slices, int columns, const T *parts, T *mem) {
    int k = (int)blockIdx.x * 32 + (int)threadIdx.x % 32;
    T s = 0;
    if (k < columns) {
        BY_FOUR
        for (int i = (int)threadIdx.x / 32; i < slices; i += FOLD / 32)
            s += parts[(size_t)i * (size_t)columns + (size_t)k];
    }
    return warps_sum(s, mem);
}

/* ---- a row in the registers of a team -------------------------------------------------------------------------------
 * A team is a part of a warp, a warp or a block. Each thread has E elements of the row, in quads that are TEAM quads
 * apart; past the row's end they are 0. `quads`: rows are aligned to 16 bytes and have a multiple of four elements;
 * otherwise elements are loaded one by one. */
template <int TEAM> DEVICE int quad_of(int e) { return (e * TEAM + (int)threadIdx.x % TEAM) * 4; }
template <int TEAM, int E, class T> DEVICE void read_row(float (&v)[E], const T *row, int d, bool quads) {
    UNROLL
    for (int e = 0; e < E / 4; e++) {
        int k = quad_of<TEAM>(e);
        float q[4] = {0, 0, 0, 0};
        if (quads) {
            if (k < d) fetch<4>(q, row + k);
        } else {
            UNROLL
            for (int j = 0; j < 4; j++)
                if (k + j < d) q[j] = number(row[k + j]);
        }
        UNROLL
        for (int j = 0; j < 4; j++) v[4 * e + j] = q[j];
    }
}
template <int TEAM, int E, class T> DEVICE void write_row(T *row, const float (&v)[E], int d, bool quads) {
    UNROLL
    for (int e = 0; e < E / 4; e++) {
        int k = quad_of<TEAM>(e);
        const float q[4] = {v[4 * e], v[4 * e + 1], v[4 * e + 2], v[4 * e + 3]};
        if (quads) {
            if (k < d) store<4>(row + k, q);
        } else {
            UNROLL
            for (int j = 0; j < 4; j++)
                if (k + j < d) store<1>(row + k + j, {q[j]});
        }
    }
}
/* Sum over a team, returned to all of its threads; part (WARPS). */
template <int TEAM> DEVICE float team_sum(float v, float *part) {
    if constexpr (TEAM <= 32) { /* every lane of the warp is here, whatever its team does */
        UNROLL
        for (int d = TEAM / 2; d; d >>= 1) v += __shfl_xor_sync(FULL_WARP, v, d);
        return v;
    } else
        return block_sum(v, part);
}
/* Write the sums of a block's teams, added in the order of teams, to `to` (d). part: (WARPS, d) if teams are warps. */
template <int TEAM, int E> DEVICE void write_part(float *to, const float (&sum)[E], int d, bool quads, float *part) {
    if (TEAM == BLOCK) {
        write_row<TEAM, E>(to, sum, d, quads);
        return;
    }
    __syncthreads();
    write_row<TEAM, E>(part + (size_t)(threadIdx.x / TEAM) * (size_t)d, sum, d, d % 4 == 0);
    __syncthreads();
    for (int k = (int)threadIdx.x; k < d; k += BLOCK) {
        float s = part[k];
        for (int v = 1; v < BLOCK / TEAM; v++) s += part[v * d + k];
        to[k] = s;
    }
}
static inline bool aligned(const void *p) { return (uintptr_t)p % sizeof(float4) == 0; }
/* Bytes of shared memory that a block of such teams needs. */
static inline size_t team_bytes(int d) {
    return (d <= 512 ? (size_t)WARPS * (size_t)d : (size_t)WARPS) * sizeof(float);
}
