/* recur.cu: the gated delta rule row by row, and its backward. A block takes a value head of a sequence and some
 * columns of its state, which stay in registers. Eight lanes share a column; lane part p has elements p + 8 i. Sums
 * over K need three shuffles. Sums over columns, which only the backward has, go through shared memory in a fixed
 * order.
 *
 * The backward walks from the last row to the first. It recomputes the states before the rows from the kept ones in
 * two steps: through a chunk, noting the state every SEG rows, then through SEG rows, noting each. Each thread has its
 * own notes.
 *
 * T is the type of q, k, v, o and dout in memory: short sequences and wide keys use this file for any type. */
#include "kernel.h"

DEVICE float sum8(float v) {
    for (int d = 4; d; d >>= 1) v += __shfl_xor_sync(FULL_WARP, v, d);
    return v;
}
/* KP elements of CT columns per thread; SEG rows are in shared memory at once. */
template <int KP, int CT> struct RecurForm {
    static constexpr int KS = 8 * KP, COLUMNS = 32 * CT, SEG = KP > 16 ? 4 : 8, NOTES = CUDA_RECUR_CHUNK / SEG + SEG;
    struct Rows {
        float q[SEG][KS], k[SEG][KS], e[SEG][KS], a[SEG][KS], v[SEG][COLUMNS], g[SEG][COLUMNS], beta[SEG]; /* g: dout */
        float sum[WARPS][4][KS], sum_beta[WARPS];
    };
};
/* A thread's position. */
struct RecurPlace {
    int s, h, hq, col, part;
    size_t head; /* of arrays (N,HV,.), at row 0 */
};
template <int CT> DEVICE RecurPlace recur_place(const CudaRecur &p) {
    int t = (int)threadIdx.x, h = (int)blockIdx.y;
    return {(int)blockIdx.z, h, h / (p.HV / p.H), (int)blockIdx.x * 32 * CT + t / 8, t % 8, (size_t)h};
}
DEVICE size_t head_row(const CudaRecur &p, int t, int h) { return (size_t)t * (size_t)p.HV + (size_t)h; }

/* Rows t..t+n-1 into shared memory. Begins and ends with a barrier. */
template <int KP, int CT, class T>
DEVICE void recur_load(typename RecurForm<KP, CT>::Rows *m, const CudaRecur &p, const RecurPlace &at, int t, int n,
                       const T *dout) {
    constexpr int KS = 8 * KP, COLUMNS = 32 * CT;
    __syncthreads();
    ROLLED for (int i = (int)threadIdx.x; i < n * KS; i += BLOCK) {
        int r = i / KS, k = i % KS;
        bool in = k < p.K;
        size_t row = ((size_t)(t + r) * (size_t)p.H + (size_t)at.hq) * (size_t)p.K + (size_t)k,
               g = head_row(p, t + r, at.h);
        m->q[r][k] = in ? number(((const T *)p.q)[row]) : 0;
        m->k[r][k] = in ? number(((const T *)p.k)[row]) : 0;
        if (p.e) m->e[r][k] = in ? number(((const T *)p.e)[row]) : 0;
        m->a[r][k] = !p.g || !in ? 1 : expf(p.per_channel ? p.g[g * (size_t)p.K + (size_t)k] : p.g[g]);
    }
    ROLLED for (int i = (int)threadIdx.x; i < n * COLUMNS; i += BLOCK) {
        int r = i / COLUMNS, c = i % COLUMNS, col = (int)blockIdx.x * COLUMNS + c;
        size_t row = head_row(p, t + r, at.h) * (size_t)p.V + (size_t)col;
        m->v[r][c] = col < p.V ? number(((const T *)p.v)[row]) : 0;
        if (dout) m->g[r][c] = col < p.V ? number(dout[row]) : 0;
    }
    if ((int)threadIdx.x < n) m->beta[threadIdx.x] = p.beta ? p.beta[head_row(p, t + (int)threadIdx.x, at.h)] : 1;
    __syncthreads();
}
/* Load the thread's elements of a state (K,V) from `from` (NULL: zero), and store them. */
template <int KP, int CT>
DEVICE void state_load(float S[KP][CT], const CudaRecur &p, const RecurPlace &at, const float *from) {
    UNROLL for (int i = 0; i < KP; i++) {
        UNROLL for (int j = 0; j < CT; j++) {
            int k = at.part + 8 * i, col = at.col + 32 * j;
            S[i][j] = from && k < p.K && col < p.V ? from[(size_t)k * (size_t)p.V + (size_t)col] : 0;
        }
    }
}
template <int KP, int CT>
DEVICE void state_store(const float S[KP][CT], const CudaRecur &p, const RecurPlace &at, float *to, bool add) {
    UNROLL for (int i = 0; i < KP; i++) {
        UNROLL for (int j = 0; j < CT; j++) {
            int k = at.part + 8 * i, col = at.col + 32 * j;
            float *x = to + (size_t)k * (size_t)p.V + (size_t)col;
            if (k < p.K && col < p.V) *x = add ? *x + S[i][j] : S[i][j];
        }
    }
}
/* Add row r of the loaded ones to S. o, if wanted: S^T q as D^T q + (q.k) u. In the first row its direction is then
 * exact, and a norm after it only depends on the direction. */
template <int KP, int CT>
DEVICE void recur_row(float S[KP][CT], const typename RecurForm<KP, CT>::Rows *m, const CudaRecur &p,
                      const RecurPlace &at, int r, float *o) {
    const float *erase = p.e ? m->e[r] : m->k[r];
    float u[CT], out[CT], qk = 0;
    UNROLL for (int j = 0; j < CT; j++) u[j] = out[j] = 0;
    UNROLL for (int i = 0; i < KP; i++) {
        float a = m->a[r][at.part + 8 * i], k = m->k[r][at.part + 8 * i], e = erase[at.part + 8 * i],
              q = m->q[r][at.part + 8 * i];
        qk += o ? q * k : 0;
        UNROLL for (int j = 0; j < CT; j++) {
            S[i][j] *= a;
            u[j] += e * S[i][j];
            if (o) out[j] += q * S[i][j];
        }
    }
    qk = o ? sum8(qk) : 0;
    UNROLL for (int j = 0; j < CT; j++) {
        float v = m->v[r][(int)threadIdx.x / 8 + 32 * j];
        u[j] = p.delta ? m->beta[r] * (v - sum8(u[j])) : v;
        if (o) o[j] = sum8(out[j]) + qk * u[j];
    }
    UNROLL for (int i = 0; i < KP; i++) {
        float k = m->k[r][at.part + 8 * i];
        UNROLL for (int j = 0; j < CT; j++) S[i][j] += k * u[j];
    }
}
DEVICE float *kept(const CudaRecur &p, float *keep, int t,
                   int h) { /* the state before the chunk that starts at row t */
    return keep + ((size_t)(t / CUDA_RECUR_CHUNK - 1) * (size_t)p.HV + (size_t)h) * (size_t)p.K * (size_t)p.V;
}

template <int KP, class T>
__global__ void __launch_bounds__(BLOCK) recur(CudaRecur p, T *o, float *keep, float *state, bool write) {
    using Form = RecurForm<KP, 1>;
    SMEM_DYN(typename Form::Rows, m);
    RecurPlace at = recur_place<1>(p);
    int begin = p.off[at.s], end = p.off[at.s + 1], document = begin;
    if (begin == end) return;
    float S[KP][1];
    float *blob =
        state ? state + (size_t)p.seq[at.s] * p.blob + (size_t)p.at + at.head * (size_t)p.K * (size_t)p.V : nullptr;
    for (int t = begin; t < end; t += Form::SEG) {
        int n = end - t < Form::SEG ? end - t : Form::SEG;
        recur_load<KP, 1, T>(m, p, at, t, n, nullptr);
        for (int r = 0; r < n; r++) {
            int i = t + r, first = p.first[i];
            if (first == i) document = i;
            if (i == begin || i == document) state_load<KP, 1>(S, p, at, first == i ? nullptr : blob);
            if (keep && i > document && (i - document) % CUDA_RECUR_CHUNK == 0)
                state_store<KP, 1>(S, p, at, kept(p, keep, i, at.h), false);
            float out;
            recur_row<KP, 1>(S, m, p, at, r, &out);
            if (at.part == 0 && at.col < p.V)
                store<1>(o + head_row(p, i, at.h) * (size_t)p.V + (size_t)at.col, {p.scale * out});
        }
    }
    if (write && blob) state_store<KP, 1>(S, p, at, blob, false);
}

/* ---- backward ---- */
/* Save a state as the thread's own note, and load it. */
template <int KP, int CT> DEVICE void note(const float S[KP][CT], float *notes, int number) {
    UNROLL for (int i = 0; i < KP; i++) {
        UNROLL for (int j = 0; j < CT; j++) notes[((size_t)(number * KP + i) * CT + (size_t)j) * BLOCK + threadIdx.x] =
            S[i][j];
    }
}
template <int CT> DEVICE float noted(const float *notes, int at, int j) {
    return notes[((size_t)at * CT + (size_t)j) * BLOCK + threadIdx.x];
}
template <int KP, int CT> DEVICE void recall(float S[KP][CT], const float *notes, int number) {
    UNROLL for (int i = 0; i < KP; i++) {
        UNROLL for (int j = 0; j < CT; j++) S[i][j] =
            notes[((size_t)(number * KP + i) * CT + (size_t)j) * BLOCK + threadIdx.x];
    }
}
/* Row t, number r of the loaded ones, with the noted state before it, which is read twice: registers hold dS alone. dS
 * is the gradient by the state after the row on entry, and by the one before it on return. */
template <int KP, int CT>
DEVICE void recur_row_back(float dS[KP][CT], const float *notes, int number, typename RecurForm<KP, CT>::Rows *m,
                           const CudaRecur &p, const CudaRecurGrad &d, const RecurPlace &at, int t, int r) {
    int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32;
    const float *erase = p.e ? m->e[r] : m->k[r];
    float u[CT], du[CT], dv[CT], g[CT], db = 0;
    UNROLL for (int j = 0; j < CT; j++) u[j] = du[j] = 0, g[j] = m->g[r][thread / 8 + 32 * j];
    UNROLL for (int i = 0; i < KP; i++) {
        float a = m->a[r][at.part + 8 * i], k = m->k[r][at.part + 8 * i], e = erase[at.part + 8 * i],
              q = p.scale * m->q[r][at.part + 8 * i];
        UNROLL for (int j = 0; j < CT; j++) {
            dS[i][j] += q * g[j];
            u[j] += e * a * noted<CT>(notes, number * KP + i, j);
            du[j] += k * dS[i][j];
        }
    }
    float beta = m->beta[r];
    UNROLL for (int j = 0; j < CT; j++) {
        float v = m->v[r][thread / 8 + 32 * j], rest = p.delta ? v - sum8(u[j]) : v;
        du[j] = sum8(du[j]);
        db += du[j] * rest;
        u[j] = beta * rest;
        dv[j] = beta * du[j];
        int col = at.col + 32 * j;
        if (d.v.p && at.part == 0 && col < p.V) add_to(d.v, head_row(p, t, at.h) * (size_t)p.V + (size_t)col, dv[j]);
    }
    UNROLL for (int i = 0; i < KP; i++) {
        float a = m->a[r][at.part + 8 * i], k = m->k[r][at.part + 8 * i], e = erase[at.part + 8 * i],
              sum[4] = {0, 0, 0, 0};
        UNROLL for (int j = 0; j < CT; j++) {
            float D = a * noted<CT>(notes, number * KP + i, j);
            sum[0] += (D + k * u[j]) * g[j];
            sum[1] += dS[i][j] * u[j];
            if (p.delta) {
                sum[1] -= p.e ? 0 : D * dv[j];
                sum[3] -= p.e ? D * dv[j] : 0;
                dS[i][j] -= e * dv[j];
            }
            sum[2] += dS[i][j] * D;
            dS[i][j] *= a;
        }
        UNROLL for (int x = 0; x < 4; x++) { /* the warp's four columns */
            if (x == 3 && !p.e) continue;
            sum[x] += __shfl_xor_sync(FULL_WARP, sum[x], 8);
            sum[x] += __shfl_xor_sync(FULL_WARP, sum[x], 16);
            if (lane < 8) m->sum[warp][x][lane + 8 * i] = sum[x];
        }
    }
    db += __shfl_xor_sync(FULL_WARP, db, 8);
    db += __shfl_xor_sync(FULL_WARP, db, 16);
    if (lane == 0) m->sum_beta[warp] = db;
    __syncthreads();
    size_t slice = (size_t)blockIdx.x * (size_t)p.N * (size_t)p.HV, row = head_row(p, t, at.h);
    for (int i = thread; i < (p.e ? 4 : 3) * p.K; i += BLOCK) {
        int x = i / p.K, k = i % p.K;
        const CudaRows y = x == 0 ? d.q : x == 1 ? d.k : x == 2 ? d.g : d.e;
        float sum = 0;
        UNROLL for (int w = 0; w < WARPS; w++) sum += m->sum[w][x][k];
        if (y.p) add_to(y, (slice + row) * (size_t)p.K + (size_t)k, x == 0 ? p.scale * sum : sum);
    }
    if (thread == 0 && d.beta.p) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += m->sum_beta[w];
        add_to(d.beta, slice + row, sum);
    }
    __syncthreads();
}
template <int KP, int CT, class T>
__global__ void __launch_bounds__(BLOCK, 1)
    recur_backward(CudaRecur p, CudaRecurGrad d, const T *dout, float *keep, float *notes) {
    using Form = RecurForm<KP, CT>;
    constexpr int SEG = Form::SEG, CHUNK = CUDA_RECUR_CHUNK;
    SMEM_DYN(typename Form::Rows, m);
    RecurPlace at = recur_place<CT>(p);
    int begin = p.off[at.s], end = p.off[at.s + 1];
    size_t block = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x,
           blob = ((size_t)p.seq[at.s] * (size_t)p.HV + at.head) * (size_t)p.K * (size_t)p.V;
    notes += block * (size_t)(Form::NOTES * KP * CT * BLOCK);
    float S[KP][CT], dS[KP][CT];
    for (int to = end, from; to > begin; to = from) { /* documents, the last first */
        int first = p.first[to - 1];
        bool continues = first < 0;
        from = continues ? begin : first;
        state_load<KP, CT>(dS, p, at, to == end && d.dend ? d.dend + blob : nullptr);
        for (int c = from + (to - from - 1) / CHUNK * CHUNK; c >= from; c -= CHUNK) {
            int rows = to - c < CHUNK ? to - c : CHUNK, segments = (rows + SEG - 1) / SEG;
            state_load<KP, CT>(S, p, at, c > from ? kept(p, keep, c, at.h) : continues ? d.start + blob : nullptr);
            for (int g = 0; g < segments; g++) {
                note<KP, CT>(S, notes, g);
                if (g == segments - 1) break;
                recur_load<KP, CT, T>(m, p, at, c + g * SEG, SEG, nullptr);
                for (int r = 0; r < SEG; r++) recur_row<KP, CT>(S, m, p, at, r, nullptr);
            }
            for (int g = segments - 1; g >= 0; g--) {
                int t = c + g * SEG, n = c + rows - t < SEG ? c + rows - t : SEG;
                recur_load<KP, CT, T>(m, p, at, t, n, dout);
                recall<KP, CT>(S, notes, g);
                for (int r = 0; r < n; r++) {
                    note<KP, CT>(S, notes, CHUNK / SEG + r);
                    if (r < n - 1) recur_row<KP, CT>(S, m, p, at, r, nullptr);
                }
                for (int r = n - 1; r >= 0; r--)
                    recur_row_back<KP, CT>(dS, notes, CHUNK / SEG + r, m, p, d, at, t + r, r);
            }
        }
        if (continues && d.dstart) state_store<KP, CT>(dS, p, at, d.dstart + blob, true);
    }
}
/* Add to y (rows,width) the sums over slices, in order, and in each over a group: x (slices,rows,group,width). */
__global__ void recur_fold(size_t n, CudaRows y, const float *x, size_t stride, int slices, int group, int width) {
    EACH(i, n) {
        size_t row = i / (size_t)width, w = i % (size_t)width;
        float s = 0;
        for (int c = 0; c < slices; c++)
            for (int j = 0; j < group; j++)
                s += x[(size_t)c * stride + (row * (size_t)group + (size_t)j) * (size_t)width + w];
        add_to(y, i, s);
    }
}
extern "C" void cuda_recur_fold(Cuda *c, size_t rows, int width, CudaRows y, const float *x, int slices, int group) {
    size_t n = rows * (size_t)width;
    LAUNCH_EACH(c, recur_fold, n, y, x, n * (size_t)group, slices, group, width);
}

/* A kernel with more shared memory than a block has without asking, which the widest keys need. */
template <class Kernel> static void recur_allow(Kernel *kernel, size_t bytes) {
    if (bytes > 49152)
        cuda_must(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                  "shared memory of a recurrence");
}

/* Choose the form by K. */
template <int KP> static void forward_of(Cuda *c, const CudaRecur *p, void *o, float *keep, float *state, bool write) {
    dim3 grid((unsigned)(p->V + 31) / 32, (unsigned)p->HV, (unsigned)p->B);
    constexpr size_t room = sizeof(typename RecurForm<KP, 1>::Rows);
    recur_allow(recur<KP, bf16>, room), recur_allow(recur<KP, float>, room);
    if (p->is_bf16)
        LAUNCH((recur<KP, bf16>), grid, dim3(BLOCK), room, c->stream, *p, as<bf16>(o), keep, state, write);
    else
        LAUNCH((recur<KP, float>), grid, dim3(BLOCK), room, c->stream, *p, as<float>(o), keep, state, write);
}
extern "C" void cuda_recur(Cuda *c, const CudaRecur *p, void *o, float *keep, float *state, bool write) {
    if (p->N == 0) return;
    if (p->K <= 32)
        forward_of<4>(c, p, o, keep, state, write);
    else if (p->K <= 64)
        forward_of<8>(c, p, o, keep, state, write);
    else if (p->K <= 128)
        forward_of<16>(c, p, o, keep, state, write);
    else
        forward_of<32>(c, p, o, keep, state, write);
}
static int columns_of(int K) { return K <= 128 ? 128 : 64; }
extern "C" int cuda_recur_slices(int K, int V) { return (V + columns_of(K) - 1) / columns_of(K); }
extern "C" size_t cuda_recur_notes(int K, int V) {
    int KP = K <= 32 ? 4 : K <= 64 ? 8 : K <= 128 ? 16 : 32, notes = K <= 128 ? 16 : 20;
    return (size_t)cuda_recur_slices(K, V) * (size_t)(notes * KP * 8) * (size_t)columns_of(K);
}
template <int KP, int CT>
static void backward_of(Cuda *c, const CudaRecur *p, const CudaRecurGrad *d, const void *dout, float *keep,
                        float *notes) {
    using Form = RecurForm<KP, CT>;
    static_assert(Form::NOTES == (KP > 16 ? 20 : 16) && Form::COLUMNS == (KP > 16 ? 64 : 128), "cuda_recur_notes");
    recur_allow(recur_backward<KP, CT, bf16>, sizeof(typename Form::Rows));
    recur_allow(recur_backward<KP, CT, float>, sizeof(typename Form::Rows));
    dim3 grid((unsigned)cuda_recur_slices(p->K, p->V), (unsigned)p->HV, (unsigned)p->B);
    if (p->is_bf16)
        LAUNCH((recur_backward<KP, CT, bf16>), grid, dim3(BLOCK), sizeof(typename Form::Rows), c->stream, *p, *d,
               as<bf16>(dout), keep, notes);
    else
        LAUNCH((recur_backward<KP, CT, float>), grid, dim3(BLOCK), sizeof(typename Form::Rows), c->stream, *p, *d,
               as<float>(dout), keep, notes);
}
extern "C" void cuda_recur_backward(Cuda *c, const CudaRecur *p, const CudaRecurGrad *d, const void *dout, float *keep,
                                    float *notes) {
    if (p->N == 0) return;
    if (p->K <= 32)
        backward_of<4, 4>(c, p, d, dout, keep, notes);
    else if (p->K <= 64)
        backward_of<8, 4>(c, p, d, dout, keep, notes);
    else if (p->K <= 128)
        backward_of<16, 4>(c, p, d, dout, keep, notes);
    else
        backward_of<32, 2>(c, p, d, dout, keep, notes);
}
