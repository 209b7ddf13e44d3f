/* merge.cu: running weighted means along lanes and their backward. One thread per element if rows do not depend on
 * each other; otherwise one thread per channel, or per lane. */
#include "kernel.h"

DEVICE size_t lane_row(const CudaMerge &p, int t, int h) { return (size_t)t * (size_t)p.lanes + (size_t)h; }
/* The decision at row t; 0 at a document's first row, which merges with nothing. */
DEVICE float a_at(const CudaMerge &p, int t, int h) { return p.first[t] == t ? 0 : p.a[lane_row(p, t, h)]; }
/* Row r carried over for sequence s and lane h. */
DEVICE const float *carried(const CudaMerge &p, int s, int h, int r) {
    return p.past + (((size_t)p.seq[s] * (size_t)p.lanes + (size_t)h) * (size_t)p.rows + (size_t)r) * (size_t)p.C;
}

/* All rows: z_t = a z_t-1 + w, y_t = (a z_t-1 / z_t) y_t-1 + (w / z_t) x_t. */
__global__ void merge_all(size_t n, CudaMerge p, float *y, float *z) {
    EACH(i, n) {
        size_t k = i % (size_t)p.D;
        int h = (int)(i / (size_t)p.D % (size_t)p.lanes), s = (int)(i / (size_t)p.D / (size_t)p.lanes);
        float mean = 0, sum = 0;
        if (p.off[s] < p.off[s + 1] && p.first[p.off[s]] < 0) {
            const float *row = carried(p, s, h, 0);
            mean = row[(size_t)p.at + k], sum = row[p.C - 2];
        }
        for (int t = p.off[s]; t < p.off[s + 1]; t++) {
            size_t row = lane_row(p, t, h), at = row * (size_t)p.D + k;
            float w = p.w[row], old = a_at(p, t, h) * sum, x = p.x[at];
            if (p.first[t] == t) old = 0; /* drop the earlier value */
            sum = old + w;
            old /= sum;
            mean = old == 0 ? w / sum * x : old * mean + w / sum * x;
            y[at] = mean;
            if (k == 0) z[row] = sum;
        }
    }
}
/* Call f(x, c) for the rows that row t's mean consists of, newest first: element k and weight p w. */
template <class F> DEVICE void members(const CudaMerge &p, int t, int h, size_t k, F f) {
    int s = p.of[t], from = p.first[t] > p.off[s] ? p.first[t] : p.off[s], n = 0;
    float chance = 1;
    for (int j = t; j >= from && n < p.window; j--, n++) {
        size_t row = lane_row(p, j, h);
        f(p.x[row * (size_t)p.D + k], chance * p.w[row]);
        if ((chance *= a_at(p, j, h)) == 0) return;
    }
    int older = p.first[t] < 0 && p.past ? p.pos[from] : 0;
    older = older < p.rows ? older : p.rows;
    for (int i = 1; i <= older && n < p.window && chance != 0; i++, n++) {
        const float *row = carried(p, s, h, p.rows - i);
        f(row[(size_t)p.at + k], chance * row[p.C - 2]);
        chance *= row[p.C - 1];
    }
}
__global__ void merge_window(size_t n, CudaMerge p, float *y, float *z) {
    EACH(i, n) {
        size_t k = i % (size_t)p.D, row = i / (size_t)p.D;
        int h = (int)(row % (size_t)p.lanes), t = (int)(row / (size_t)p.lanes);
        float sum = 0, mean = 0;
        members(p, t, h, k, [&](float, float c) { sum += c; });
        members(p, t, h, k, [&](float x, float c) { mean += c / sum * x; });
        y[i] = mean;
        if (k == 0) z[row] = sum;
    }
}
extern "C" void cuda_merge(Cuda *c, const CudaMerge *p, float *y, float *z) {
    size_t each = (size_t)p->lanes * (size_t)p->D;
    if (p->window)
        LAUNCH_EACH(c, merge_window, (size_t)p->N * each, *p, y, z);
    else
        LAUNCH_EACH(c, merge_all, (size_t)p->B * each, *p, y, z);
}

/* ---- backward of all rows: GN_t = dy_t/z_t + a_t+1 GN_t+1, GZ_t = -dy_t.y_t/z_t + a_t+1 GZ_t+1, then
 * dx_t = w_t GN_t, dw_t = x_t.GN_t + GZ_t, da_t = z_t-1 (y_t-1.GN_t + GZ_t) ---- */
__global__ void unmerge_sums(size_t n, CudaMerge p, float *dx, float *gn, const float *dy, const float *z) {
    EACH(i, n) {
        size_t k = i % (size_t)p.D;
        int h = (int)(i / (size_t)p.D % (size_t)p.lanes), s = (int)(i / (size_t)p.D / (size_t)p.lanes);
        float sum = 0, next = 0;
        for (int t = p.off[s + 1] - 1; t >= p.off[s]; t--) {
            size_t row = lane_row(p, t, h), at = row * (size_t)p.D + k;
            sum = dy[at] / z[row] + next * sum;
            gn[at] = sum;
            dx[at] += p.w[row] * sum;
            next = a_at(p, t, h);
        }
    }
}
/* One warp per row of a lane: -dy.y/z, x.GN, y_t-1.GN. */
__global__ void unmerge_dots(size_t n, CudaMerge p, float *dots, const float *gn, const float *dy, const float *y,
                             const float *z) {
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, D = (size_t)p.D;
    size_t lane = threadIdx.x % 32;
    if (row >= n) return;
    int t = (int)(row / (size_t)p.lanes);
    bool before = p.first[t] != t;
    float mean = 0, own = 0, old = 0;
    for (size_t k = row * D + lane; k < (row + 1) * D; k += 32) {
        mean -= dy[k] * y[k];
        own += p.x[k] * gn[k];
        if (before) old += y[k - (size_t)p.lanes * D] * gn[k];
    }
    mean = warp_sum(mean), own = warp_sum(own), old = warp_sum(old);
    if (lane == 0) dots[3 * row] = mean / z[row], dots[3 * row + 1] = own, dots[3 * row + 2] = old;
}
/* One thread per lane of a sequence. */
__global__ void unmerge_weights(size_t n, CudaMerge p, float *da, float *dw, const float *dots, const float *z) {
    EACH(i, n) {
        int h = (int)(i % (size_t)p.lanes), s = (int)(i / (size_t)p.lanes);
        float gz = 0, next = 0;
        for (int t = p.off[s + 1] - 1; t >= p.off[s]; t--) {
            size_t row = lane_row(p, t, h);
            gz = dots[3 * row] + next * gz;
            dw[row] += dots[3 * row + 1] + gz;
            if (p.first[t] != t) da[row] += z[row - (size_t)p.lanes] * (dots[3 * row + 2] + gz);
            next = a_at(p, t, h);
        }
    }
}

/* ---- backward with a window: e_tj = (x_j - y_t).dy_t / z_t ---- */
DEVICE int members_of(const CudaMerge &p, int t) { /* rows of the mean of row t, without carried ones */
    int n = t - p.first[t] + 1;
    return n < p.window ? n : p.window;
}
__global__ void unmerge_window_x(size_t n, CudaMerge p, float *dx, const float *dy, const float *z) {
    EACH(i, n) {
        size_t row = i / (size_t)p.D, k = i % (size_t)p.D;
        int h = (int)(row % (size_t)p.lanes), j = (int)(row / (size_t)p.lanes), end = p.off[p.of[j] + 1];
        float chance = p.w[row], s = dx[i];
        for (int t = j; t < end && t - j < p.window && p.first[t] == p.first[j]; t++) {
            size_t at = lane_row(p, t, h);
            if (t > j) chance *= p.a[at];
            s += chance / z[at] * dy[at * (size_t)p.D + k];
        }
        dx[i] = s;
    }
}
/* One warp per row t of a lane: e (row,window). */
__global__ void unmerge_window_dots(size_t n, CudaMerge p, float *e, const float *dy, const float *y, const float *z) {
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, D = (size_t)p.D, lane = threadIdx.x % 32;
    if (row >= n) return;
    int h = (int)(row % (size_t)p.lanes), t = (int)(row / (size_t)p.lanes), most = members_of(p, t);
    float mean = 0;
    for (size_t k = lane; k < D; k += 32) mean += dy[row * D + k] * y[row * D + k];
    mean = warp_sum(mean);
    for (int i = 0; i < most; i++) {
        const float *x = p.x + lane_row(p, t - i, h) * D;
        float s = 0;
        for (size_t k = lane; k < D; k += 32) s += x[k] * dy[row * D + k];
        s = warp_sum(s);
        if (lane == 0) e[row * (size_t)p.window + (size_t)i] = (s - mean) / z[row];
    }
}
/* One thread per row t of a lane: e_tj becomes p_tj e_tj, which dw_j receives; g_tm is what da_m receives: p_tm I_m
 * with I_m = w_m-1 e_m-1 + a_m-1 I_m-1, from the oldest up. */
__global__ void unmerge_window_products(size_t n, CudaMerge p, float *e, float *g) {
    EACH(row, n) {
        int h = (int)(row % (size_t)p.lanes), t = (int)(row / (size_t)p.lanes), most = members_of(p, t);
        float *et = e + row * (size_t)p.window, *gt = g + row * (size_t)p.window, chance = 1, sum = 0;
        for (int i = 0; i < most; i++) {
            gt[i] = chance;
            chance *= a_at(p, t - i, h);
        }
        chance = gt[most - 1];
        gt[most - 1] = 0;
        for (int i = most - 2; i >= 0; i--) {
            float old = et[i + 1];
            sum = p.w[lane_row(p, t - i - 1, h)] * old + a_at(p, t - i - 1, h) * sum;
            et[i + 1] = chance * old;
            chance = gt[i];
            gt[i] = chance * sum;
        }
    }
}
__global__ void unmerge_window_weights(size_t n, CudaMerge p, float *da, float *dw, const float *e, const float *g) {
    EACH(row, n) {
        int h = (int)(row % (size_t)p.lanes), j = (int)(row / (size_t)p.lanes), end = p.off[p.of[j] + 1];
        float a = da[row], w = dw[row];
        for (int i = 0; j + i < end && i < p.window && p.first[j + i] == p.first[j]; i++) {
            size_t at = lane_row(p, j + i, h) * (size_t)p.window + (size_t)i;
            w += e[at], a += g[at];
        }
        da[row] = a, dw[row] = w;
    }
}
extern "C" void cuda_merge_backward(Cuda *c, const CudaMerge *p, float *dx, float *da, float *dw, float *big,
                                    float *small, const float *dy, const float *y, const float *z) {
    size_t rows = (size_t)p->N * (size_t)p->lanes, n = rows * (size_t)p->D;
    dim3 warps((unsigned)((rows + WARPS - 1) / WARPS));
    if (rows == 0) return;
    if (p->window) {
        LAUNCH_EACH(c, unmerge_window_x, n, *p, dx, dy, z);
        LAUNCH(unmerge_window_dots, warps, dim3(BLOCK), 0, c->stream, rows, *p, big, dy, y, z);
        LAUNCH_EACH(c, unmerge_window_products, rows, *p, big, small);
        LAUNCH_EACH(c, unmerge_window_weights, rows, *p, da, dw, big, small);
    } else {
        LAUNCH_EACH(c, unmerge_sums, (size_t)p->B * (size_t)p->lanes * (size_t)p->D, *p, dx, big, dy, z);
        LAUNCH(unmerge_dots, warps, dim3(BLOCK), 0, c->stream, rows, *p, small, big, dy, y, z);
        LAUNCH_EACH(c, unmerge_weights, (size_t)p->B * (size_t)p->lanes, *p, da, dw, small, z);
    }
}
