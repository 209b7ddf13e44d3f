/* conv.cu: the short depthwise convolution before a recurrence. A thread walks along the rows of a slice with one
 * channel and keeps the W rows that it sees in registers, so each is loaded once. Rows are f32, or bf16 if there is no
 * state; the state's tail is f32. */
#include "sums.h"

/* The rows before sequence s that the state holds, (W-1,C). */
template <class T> DEVICE T *conv_tail(const CudaConv &p, T *state, int s) {
    return state + (size_t)p.seq[s] * p.blob + (size_t)p.at;
}
/* The input of channel c, `back` rows before row t: from the pass, from the tail in the state, or 0 if it is before
 * the document. */
template <class T> DEVICE float conv_input(const CudaConv &p, const T *x, const float *state, int t, int back, int c) {
    int s = p.of[t], first = p.first[t], begin = p.off[s], from = first < 0 ? begin : first, i = t - back;
    if (i >= from) return number(x[(size_t)i * (size_t)p.C + (size_t)c]);
    if (first >= 0 || i < begin - (p.W - 1)) return 0;
    return conv_tail(p, state, s)[(size_t)(i - begin + p.W - 1) * (size_t)p.C + (size_t)c];
}
/* The taps of channel c, right-aligned in `most` with zeros before them; a single tap of 1 if there are none. */
template <int most> DEVICE void read_taps(float (&tap)[most], const CudaConv &p, const float *w, int c) {
    UNROLL
    for (int j = 0; j < most; j++) {
        int own = j - (most - p.W);
        tap[j] = own < 0 ? 0 : w ? w[c * p.W + own] : 1;
    }
}
/* The inputs that row t sees. in[most-1] is its own element. The others move along, or are loaded where the walk, a
 * document or a sequence begins. */
template <int most, class T>
DEVICE void conv_move(float (&in)[most], const CudaConv &p, const T *x, const float *state, int t, bool begins, int c) {
    if (begins) {
        UNROLL
        for (int j = 0; j < most - 1; j++) in[j] = most - 1 - j < p.W ? conv_input(p, x, state, t, most - 1 - j, c) : 0;
    } else {
        UNROLL
        for (int j = 0; j < most - 1; j++) in[j] = in[j + 1];
    }
    in[most - 1] = number(x[(size_t)t * (size_t)p.C + (size_t)c]);
}
template <int most> DEVICE float conv_sum(const float (&in)[most], const float (&tap)[most], float bias) {
    UNROLL
    for (int j = 0; j < most; j++) bias += tap[j] * in[j];
    return bias;
}
template <int most, class T>
__global__ void short_conv(CudaConv p, int each, T *y, const T *x, const float *w, const float *bias,
                           const float *state) {
    int c = (int)(blockIdx.x * BLOCK + threadIdx.x), from = (int)blockIdx.y * each,
        to = from + each < p.N ? from + each : p.N;
    if (c >= p.C) return;
    float tap[most], in[most], b = w && bias ? bias[c] : 0;
    read_taps<most>(tap, p, w, c);
    BY_FOUR
    for (int t = from; t < to; t++) {
        int first = p.first[t];
        conv_move<most>(in, p, x, state, t, t == from || first == t || (first < 0 && p.off[p.of[t]] == t), c);
        float a = conv_sum<most>(in, tap, b);
        store<1>(y + (size_t)t * (size_t)p.C + (size_t)c, {p.silu ? a * sigmoid1(a) : a});
    }
}
/* One thread per channel of a sequence. Oldest first: elements still to be read lie after the one written. */
__global__ void short_conv_store(size_t n, CudaConv p, const float *x, float *state) {
    EACH(i, n) {
        int s = (int)(i / (size_t)p.C), end = p.off[s + 1], begin = p.off[s];
        if (end == begin) continue;
        size_t C = (size_t)p.C, c = i % C;
        float *tail = conv_tail(p, state, s) + c;
        int first = p.first[end - 1],
            from = first < 0 ? begin : first; /* of the last row: conv_input for all of its taps */
        for (int j = 0; j < p.W - 1; j++) {
            int row = end - (p.W - 1) + j;
            if (row >= from)
                tail[(size_t)j * C] = x[(size_t)row * C + c];
            else if (first >= 0 || row < begin - (p.W - 1))
                tail[(size_t)j * C] = 0;
            else
                tail[(size_t)j * C] = tail[(size_t)(row - begin + p.W - 1) * C];
        }
    }
}
/* With a the gradient of a row's sum before the activation: dx of a row is complete when the walk is W-1 rows ahead,
 * so the walk goes beyond the slice; taps and bias use the slice's own rows. parts (slices, W + 1, C): the sums for
 * the taps, then for the bias; or NULL. */
template <int most, class T>
__global__ void short_conv_backward(CudaConv p, int each, T *dx, bool overwrite, float *parts, const T *dy, const T *x,
                                    const float *w, const float *bias) {
    int c = (int)(blockIdx.x * BLOCK + threadIdx.x), from = (int)blockIdx.y * each,
        to = from + each < p.N ? from + each : p.N;
    size_t C = (size_t)p.C;
    if (c >= p.C) return;
    float tap[most], in[most], taps[most], ahead[most], b = w && bias ? bias[c] : 0, sum = 0;
    read_taps<most>(tap, p, w, c);
    UNROLL
    for (int j = 0; j < most; j++) taps[j] = ahead[j] = 0;
    for (int t = from; t < to + most - 1; t++) {
        int first = t < p.N ? p.first[t] : p.N;
        float a = 0;
        if (first < to) { /* its document has rows in the slice */
            conv_move<most>(in, p, x, nullptr, t, t == from || first == t, c);
            a = number(dy[(size_t)t * C + (size_t)c]);
            if (p.silu) {
                float v = conv_sum<most>(in, tap, b), s = sigmoid1(v);
                a *= s * (1 + v * (1 - s));
            }
            if (t < to) {
                UNROLL
                for (int j = 0; j < most; j++) taps[j] += a * in[j];
                sum += a;
            }
            UNROLL
            for (int j = most - 1; j >= 0; j--) /* row t - (most - 1 - j) adds to tap j */
                if (t - (most - 1 - j) >= first) ahead[j] += a * tap[j];
        }
        int done = t - (most - 1);
        if (dx && done >= from) add_to<1>(dx + (size_t)done * C + (size_t)c, {ahead[0]}, overwrite);
        UNROLL
        for (int j = 0; j < most - 1; j++) ahead[j] = ahead[j + 1];
        ahead[most - 1] = 0;
    }
    if (!parts) return;
    parts += (size_t)blockIdx.y * (size_t)(p.W + 1) * C + (size_t)c;
    UNROLL
    for (int j = 0; j < most; j++)
        if (j >= most - p.W) parts[(size_t)(j - (most - p.W)) * C] = taps[j];
    parts[(size_t)p.W * C] = sum;
}
/* dw (C,W) and dbias (C), each or NULL, += the parts of all slices. */
__global__ void __launch_bounds__(FOLD)
    short_conv_backward_fold(int slices, CudaConv p, float *dw, float *dbias, const float *parts) {
    SMEM_DYN(float, mem);
    int k = (int)blockIdx.x * 32 + (int)threadIdx.x, c = k % p.C, j = k / p.C;
    float s = slices_sum(slices, (p.W + 1) * p.C, parts, mem);
    if (threadIdx.x >= 32 || j > p.W) return;
    if (j == p.W && dbias) dbias[c] += s;
    if (j < p.W && dw) dw[c * p.W + j] += s;
}
static dim3 conv_grid(const CudaConv *p, int slices) {
    return dim3((unsigned)((p->C + BLOCK - 1) / BLOCK), (unsigned)slices);
}
template <int most, class T>
static void conv_of(Cuda *c, const CudaConv *p, void *y, const void *x, const float *w, const float *bias,
                    const float *state) {
    int slices = cuda_slices((size_t)p->N, cuda_conv_tiles(p->C));
    LAUNCH((short_conv<most, T>), conv_grid(p, slices), dim3(BLOCK), 0, c->stream, *p,
           (int)rows_each((size_t)p->N, slices), as<T>(y), as<T>(x), w, bias, state);
}
extern "C" void cuda_short_conv(Cuda *c, const CudaConv *p, void *y, const void *x, const float *w, const float *bias,
                                float *state, bool store) {
    if (p->N <= 0 || p->C <= 0) return;
    auto run = p->is_bf16 ? conv_of<CUDA_CONV_WIDTH, bf16> : conv_of<CUDA_CONV_WIDTH, float>;
    if (p->W <= 4) run = p->is_bf16 ? conv_of<4, bf16> : conv_of<4, float>;
    run(c, p, y, x, w, bias, state);
    if (state && store && p->W > 1)
        LAUNCH_EACH(c, short_conv_store, (size_t)p->B * (size_t)p->C, *p, as<float>(x), state);
}
template <int most, class T>
static void conv_back_of(Cuda *c, const CudaConv *p, void *dx, bool overwrite, float *parts, const void *dy,
                         const void *x, const float *w, const float *bias) {
    int slices = cuda_slices((size_t)p->N, cuda_conv_tiles(p->C));
    LAUNCH((short_conv_backward<most, T>), conv_grid(p, slices), dim3(BLOCK), 0, c->stream, *p,
           (int)rows_each((size_t)p->N, slices), as<T>(dx), overwrite, parts, as<T>(dy), as<T>(x), w, bias);
}
extern "C" void cuda_short_conv_backward(Cuda *c, const CudaConv *p, void *dx, bool overwrite, float *dw, float *dbias,
                                         float *parts, const void *dy, const void *x, const float *w,
                                         const float *bias) {
    if (p->N <= 0 || p->C <= 0) return;
    int slices = cuda_slices((size_t)p->N, cuda_conv_tiles(p->C));
    if (!dw && !dbias) parts = nullptr;
    auto run = p->is_bf16 ? conv_back_of<CUDA_CONV_WIDTH, bf16> : conv_back_of<CUDA_CONV_WIDTH, float>;
    if (p->W <= 4) run = p->is_bf16 ? conv_back_of<4, bf16> : conv_back_of<4, float>;
    run(c, p, dx, overwrite, parts, dy, x, w, bias);
    if (parts)
        LAUNCH(short_conv_backward_fold, dim3((unsigned)((p->W + 1) * p->C + 31) / 32), dim3(FOLD),
               FOLD * sizeof(float), c->stream, slices, *p, dw, dbias, parts);
}
