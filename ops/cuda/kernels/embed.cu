/* embed.cu: rows of a table looked up by token, and the gradients of those rows. */
#include "sums.h"

template <class T> __global__ void embed(size_t n, int d, float *y, const T *table, const int *tok, float scale) {
    EACH(i, n) y[i] = scale * number(table[(size_t)tok[i / (size_t)d] * (size_t)d + i % (size_t)d]);
}
extern "C" void cuda_embed(Cuda *c, int N, int d, float *y, const void *table, bool is_bf16, const int *tok,
                           float scale) {
    if (is_bf16)
        LAUNCH_EACH(c, (embed<bf16>), (size_t)N * (size_t)d, d, y, (const bf16 *)table, tok, scale);
    else
        LAUNCH_EACH(c, (embed<float>), (size_t)N * (size_t)d, d, y, (const float *)table, tok, scale);
}

/* ---- rows sorted by id, equal ids in the order of rows: a counting sort by DIGIT bits at a time, lowest first ----
 * A warp to a tile of the rows. counts (BINS, tiles). */
enum { DIGIT = 9, BINS = 1 << DIGIT, TILE_LEAST = 256, TILES_MOST = 256 };
static_assert((int)CUDA_EMBED_BINS == (int)BINS && (int)CUDA_EMBED_TILES == (int)TILES_MOST, "room for counts");

__global__ void sort_count(int N, int each, int tiles, int shift, int *counts, const int *ids) {
    SMEM_DYN(int, bins);
    int lane = (int)threadIdx.x % 32, tile = (int)(blockIdx.x * WARPS + threadIdx.x / 32),
        *own = bins + threadIdx.x / 32 * BINS;
    if (tile >= tiles) return;
    for (int b = lane; b < BINS; b += 32) own[b] = 0;
    __syncwarp();
    int to = (tile + 1) * each < N ? (tile + 1) * each : N;
    for (int i = tile * each + lane; i < to; i += 32) atomicAdd(&own[ids[i] >> shift & (BINS - 1)], 1);
    __syncwarp();
    for (int b = lane; b < BINS; b += 32) counts[b * tiles + tile] = own[b];
}
DEVICE int warp_scan(int v) { /* the sum up to this lane */
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(FULL_WARP, v, (unsigned)d);
        if ((int)threadIdx.x % 32 >= d) v += other;
    }
    return v;
}
/* In place: the sum of all before. One block of FOLD threads; a warp to a stretch. */
__global__ void __launch_bounds__(FOLD) sort_scan(int n, int *counts) {
    SMEM_DYN(int, sums);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, each = (n + FOLD - 1) / FOLD * 32,
        from = warp * each, to = from + each < n ? from + each : n, s = 0;
    BY_FOUR
    for (int i = from + lane; i < to; i += 32) s += counts[i];
    s = warp_sum(s);
    if (lane == 0) sums[warp] = s;
    __syncthreads();
    int before = warp_sum(lane < warp ? sums[lane] : 0);
    for (int i = from; i < to; i += 32) {
        int own = i + lane < to ? counts[i + lane] : 0, upto = warp_scan(own);
        if (i + lane < to) counts[i + lane] = before + upto - own;
        before += __shfl_sync(FULL_WARP, upto, 31);
    }
}
/* rows: NULL: 0, 1, 2 .. */
__global__ void sort_place(int N, int each, int tiles, int shift, const int *counts, int *ids_out, int *rows_out,
                           const int *ids, const int *rows) {
    SMEM_DYN(int, bins);
    int lane = (int)threadIdx.x % 32, tile = (int)(blockIdx.x * WARPS + threadIdx.x / 32),
        *own = bins + threadIdx.x / 32 * BINS;
    if (tile >= tiles) return;
    for (int b = lane; b < BINS; b += 32) own[b] = counts[b * tiles + tile];
    __syncwarp();
    int to = (tile + 1) * each < N ? (tile + 1) * each : N;
    for (int from = tile * each; from < to; from += 32) {
        int i = from + lane, id = i < to ? ids[i] : 0, bin = id >> shift & (BINS - 1);
        unsigned same = __ballot_sync(FULL_WARP, i < to); /* lanes with a row of this bin */
        for (int b = 0; b < DIGIT; b++) {
            unsigned set = __ballot_sync(FULL_WARP, bin >> b & 1);
            same &= bin >> b & 1 ? set : ~set;
        }
        int rank = count_bits(same & ((1u << lane) - 1)), at = own[bin] + rank;
        __syncwarp();
        if (i < to) {
            ids_out[at] = id, rows_out[at] = rows ? rows[i] : i;
            if (rank == 0) own[bin] += count_bits(same);
        }
        __syncwarp();
    }
}

/* ---- the gradient: one block per RUN places of that order -----------------------------------------------------------
 * Equal ids are next to each other. Sums of an id that also occurs in a neighbouring block go to parts (blocks, 2, d):
 * part 0 for an id that the block before has too, part 1 for one that begins here and continues. All others go to the
 * table. One thread per four columns. */
enum { RUN = CUDA_EMBED_RUN };
DEVICE float4 read_quad(const float *p, int k, int d, bool quads) {
    if (quads) return load_vec<float4>(p + k);
    return {p[k], k + 1 < d ? p[k + 1] : 0, k + 2 < d ? p[k + 2] : 0, k + 3 < d ? p[k + 3] : 0};
}
DEVICE void write_quad(float *p, float4 v, int k, int d, bool quads) {
    if (quads) {
        store_vec(p + k, v);
        return;
    }
    p[k] = v.x;
    if (k + 1 < d) p[k + 1] = v.y;
    if (k + 2 < d) p[k + 2] = v.z;
    if (k + 3 < d) p[k + 3] = v.w;
}
DEVICE void add_quad(float4 &s, float4 v) { s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w; }
DEVICE void add_scaled(float *row, float4 s, float scale, int k, int d, bool quads) {
    float4 v = read_quad(row, k, d, quads);
    v.x += scale * s.x, v.y += scale * s.y, v.z += scale * s.z, v.w += scale * s.w;
    write_quad(row, v, k, d, quads);
}
__global__ void embed_backward(int N, int d, bool quads, float *dtable, float *parts, const float *dy, const int *ids,
                               const int *rows, float scale) {
    SMEM_DYN(int, mem);
    int *id = mem + 1, *row = id + RUN + 1, first = (int)blockIdx.x * RUN, n = first + RUN < N ? RUN : N - first,
        t = (int)threadIdx.x, k = ((int)blockIdx.y * BLOCK + t) * 4;
    if (t < RUN + 2) mem[t] = first + t > 0 && first + t - 1 < N ? ids[first + t - 1] : -1;
    if (t < n) row[t] = rows[first + t];
    __syncthreads();
    if (k >= d) return;
    float4 s = {0, 0, 0, 0};
    bool begun = id[-1] == id[0]; /* the block before has begun it */
    BY_FOUR
    for (int j = 0; j < n; j++) {
        add_quad(s, read_quad(dy + (size_t)row[j] * (size_t)d, k, d, quads));
        bool last = j == n - 1, more = id[j + 1] == id[j];
        if (more && !last) continue;
        if (begun || more)
            write_quad(parts + ((size_t)blockIdx.x * 2 + (begun ? 0 : 1)) * (size_t)d, s, k, d, quads);
        else
            add_scaled(dtable + (size_t)id[j] * (size_t)d, s, scale, k, d, quads);
        s = {0, 0, 0, 0}, begun = false;
    }
}
/* The id that begins in this block's places and continues after them, if there is one: add its parts in order, and add
 * the sum to the table. One lane per four columns; each warp takes every WARPS-th part. */
__global__ void embed_backward_runs(int N, int d, bool quads, float *dtable, const float *parts, const int *ids,
                                    float scale) {
    SMEM_DYN(float4, mem);
    int first = (int)blockIdx.x * RUN, next = first + RUN, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32,
        k = ((int)blockIdx.y * 32 + lane) * 4, blocks = (int)gridDim.x, own = (int)blockIdx.x, goes_on = 0;
    if (next >= N) return;
    int id = ids[next - 1];
    if (ids[next] != id || (first > 0 && ids[first - 1] == id)) return;
    for (int b = own + 1 + (int)threadIdx.x; b < blocks; b += BLOCK) goes_on += ids[b * RUN] == id;
    goes_on = block_sum(goes_on, (int *)mem);
    float4 s = {0, 0, 0, 0};
    if (k < d) {
        if (warp == 0) s = read_quad(parts + ((size_t)own * 2 + 1) * (size_t)d, k, d, quads);
        BY_FOUR
        for (int b = own + 1 + warp; b <= own + goes_on; b += WARPS)
            add_quad(s, read_quad(parts + (size_t)b * 2 * (size_t)d, k, d, quads));
    }
    __syncthreads();
    store_vec(mem + threadIdx.x, s);
    __syncthreads();
    if (warp || k >= d) return;
    for (int v = 1; v < WARPS; v++) add_quad(s, load_vec<float4>(mem + v * 32 + lane));
    add_scaled(dtable + (size_t)id * (size_t)d, s, scale, k, d, quads);
}
extern "C" void cuda_embed_backward(Cuda *c, int N, int d, int V, float *dtable, CudaEmbed m, const float *dy,
                                    const int *tok, float scale) {
    if (N <= 0 || d <= 0) return;
    int each = (N + TILES_MOST - 1) / TILES_MOST, blocks = (N + RUN - 1) / RUN, at = 0;
    each = each < TILE_LEAST ? TILE_LEAST : (each + 31) / 32 * 32;
    int tiles = (N + each - 1) / each;
    const int *ids = tok, *rows = nullptr;
    dim3 warps((unsigned)(tiles + WARPS - 1) / WARPS);
    for (int shift = 0; shift == 0 || (V - 1) >> shift; shift += DIGIT) {
        LAUNCH(sort_count, warps, dim3(BLOCK), WARPS * BINS * sizeof(int), c->stream, N, each, tiles, shift, m.counts,
               ids);
        LAUNCH(sort_scan, dim3(1), dim3(FOLD), 32 * sizeof(int), c->stream, BINS * tiles, m.counts);
        LAUNCH(sort_place, warps, dim3(BLOCK), WARPS * BINS * sizeof(int), c->stream, N, each, tiles, shift, m.counts,
               m.ids[at], m.rows[at], ids, rows);
        ids = m.ids[at], rows = m.rows[at], at = 1 - at;
    }
    bool quads = d % 4 == 0 && aligned(dtable) && aligned(dy) && aligned(m.parts);
    LAUNCH(embed_backward, dim3((unsigned)blocks, (unsigned)((d + 4 * BLOCK - 1) / (4 * BLOCK))), dim3(BLOCK),
           (2 * RUN + 2) * sizeof(int), c->stream, N, d, quads, dtable, m.parts, dy, ids, rows, scale);
    LAUNCH(embed_backward_runs, dim3((unsigned)blocks, (unsigned)((d + 127) / 128)), dim3(BLOCK),
           BLOCK * sizeof(float4), c->stream, N, d, quads, dtable, m.parts, ids, scale);
}
