/* linear.cu: matrix products by cuBLASLt, with descriptors cached per shape; biases, single dot products. */
#include "kernel.h"
#include "ops/cuda/host/lt_so.h"
#include "ops/tuning.h"
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPES = 512 }; /* shapes that are kept, unless graphs hold more of them */
struct LtEntry {
    CudaGemm shape;
    uint32_t align[3]; /* alignment of A, B and C in bytes */
    int held;          /* by so many graphs, which must find it when they are captured */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};
struct CudaLt {
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *space;
    int n, room;
    LtEntry **entry;      /* the last used first */
    const Tuning *tuning; /* NULL: no file was read */
};
static const size_t SPACE = (size_t)32 << 20; /* the library's recommendation for Hopper */

static void must(cublasStatus_t s, const char *what) {
    if (s == CUBLAS_STATUS_SUCCESS) return;
    fprintf(stderr, "kvsmith: device cuda: cuBLASLt: %s: status %d\n", what, (int)s);
    exit(1);
}
bool lt_open(Cuda *c, char why[200]) {
    const char *where;
    if (!lt_found(&where, why)) return false;
    CudaLt *t = new CudaLt();
    if (cublasLtCreate(&t->handle) != CUBLAS_STATUS_SUCCESS)
        snprintf(why, 200, "cuBLASLt does not start");
    else if (!(t->space = cuda_take(c, SPACE, false))) {
        snprintf(why, 200, "out of device memory: 32 MiB for matrix products");
        cublasLtDestroy(t->handle);
    } else {
        must(cublasLtMatmulPreferenceCreate(&t->preference), "preference");
        must(cublasLtMatmulPreferenceSetAttribute(t->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &SPACE,
                                                  sizeof SPACE),
             "workspace");
        c->lt = t;
        return true;
    }
    delete t;
    return false;
}
static void forget(LtEntry *e) {
    cublasLtMatrixLayoutDestroy(e->a);
    cublasLtMatrixLayoutDestroy(e->b);
    cublasLtMatrixLayoutDestroy(e->c);
    cublasLtMatmulDescDestroy(e->op);
    delete e;
}
void lt_close(Cuda *c) {
    CudaLt *t = c->lt;
    for (int i = 0; i < t->n; i++) forget(t->entry[i]);
    free(t->entry);
    cublasLtMatmulPreferenceDestroy(t->preference);
    cublasLtDestroy(t->handle);
    cuda_give(c, t->space);
    delete t;
}

static bool same(const CudaGemm *a, const CudaGemm *b) {
    return a->M == b->M && a->N == b->N && a->K == b->K && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
           a->ta == b->ta && a->tb == b->tb && a->accumulate == b->accumulate && a->is_bf16 == b->is_bf16 &&
           a->c_bf16 == b->c_bf16;
}
/* Preferences for the following choices. The library's first operand is our B. Partial sums are combined in f32: an
 * algorithm that keeps them in the dtype of C would round more than once if that is bf16. */
static void prefer(CudaLt *t, const LtEntry *e) {
    const uint32_t schemes = e->shape.c_bf16 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK;
    static const cublasLtMatmulPreferenceAttributes_t operand[] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                                   CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                                   CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                                   CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++)
        must(cublasLtMatmulPreferenceSetAttribute(t->preference, operand[i], &e->align[i < 3 ? i : 2],
                                                  sizeof *e->align),
             "alignment");
    must(cublasLtMatmulPreferenceSetAttribute(t->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                              sizeof schemes),
         "sums");
}

/* ---- measured choices: ops/tuning.h ---- */
static TunedProduct key_of(const LtEntry *e) {
    const CudaGemm *s = &e->shape;
    TunedProduct p = {};
    const int shape[] = {s->M, s->N, s->K, s->lda, s->ldb, s->ldc};
    memcpy(p.shape, shape, sizeof shape);
    p.flags = (unsigned)s->ta | (unsigned)s->tb << 1 | (unsigned)s->accumulate << 2 | (unsigned)s->is_bf16 << 3 |
              (unsigned)s->c_bf16 << 4;
    memcpy(p.align, e->align, sizeof p.align);
    return p;
}
/* Use the algorithm that was measured to be the fastest, if the library still has it for this product. */
static void recall(CudaLt *t, LtEntry *e) {
    TunedProduct key = key_of(e);
    static_assert(sizeof e->algo == sizeof key.word, "the words of an algorithm");
    for (int i = 0; t->tuning && i < t->tuning->n; i++) {
        const TunedProduct *p = &t->tuning->product[i];
        cublasLtMatmulAlgo_t algo;
        cublasLtMatmulHeuristicResult_t r;
        if (memcmp(p->shape, key.shape, sizeof key.shape) || p->flags != key.flags ||
            memcmp(p->align, key.align, sizeof key.align))
            continue;
        memcpy(&algo, p->word, sizeof algo);
        if (cublasLtMatmulAlgoCheck(t->handle, e->op, e->b, e->a, e->c, e->c, &algo, &r) == CUBLAS_STATUS_SUCCESS &&
            r.workspaceSize <= SPACE)
            e->algo = algo;
    }
}
struct Trial {
    Cuda *c;
    LtEntry *e;
    const cublasLtMatmulAlgo_t *algo;
    void *A, *B, *C;
    int times;
    cublasStatus_t status;
};
static void try_out(void *ctx) {
    Trial *t = static_cast<Trial *>(ctx);
    const float one = 1, beta = t->e->shape.accumulate ? 1.0f : 0.0f;
    for (int i = 0; i < t->times && t->status == CUBLAS_STATUS_SUCCESS; i++)
        t->status = cublasLtMatmul(t->c->lt->handle, t->e->op, &one, t->B, t->e->b, t->A, t->e->a, &beta, t->C, t->e->c,
                                   t->C, t->e->c, t->algo, t->c->lt->space, SPACE, t->c->stream);
}
DEVICE void set_number(float *x, float v) { *x = v; }
DEVICE void set_number(bf16 *x, float v) { *x = to_bf16(v); }
template <class T> __global__ void numbers(size_t n, T *x, uint64_t key) {
    EACH(i, n) set_number(x + i, (float)(mix(key, i) >> 40) * 0x1p-24f - 0.5f);
}
/* The least of `seconds`' worth of measurements of about a millisecond each; negative: it does not run. */
static double time_of(Trial *t, double seconds) {
    double best = -1, spent = 0;
    t->times = 1, t->status = CUBLAS_STATUS_SUCCESS;
    double first = cuda_seconds(t->c, try_out, t); /* loads its kernel */
    if (t->status != CUBLAS_STATUS_SUCCESS) return -1;
    first = cuda_seconds(t->c, try_out, t);
    t->times = first < 1e-3 ? (int)(1e-3 / (first > 1e-5 ? first : 1e-5)) + 1 : 1;
    for (int i = 0; i < 3 || (spent < seconds && i < 100); i++) {
        double s = cuda_seconds(t->c, try_out, t);
        spent += s;
        if (best < 0 || s / t->times < best) best = s / t->times;
    }
    return best;
}
enum { CANDIDATES = 16 };
static bool tune_one(Cuda *c, LtEntry *e, double seconds, TunedProduct *out) {
    CudaLt *t = c->lt;
    const CudaGemm *s = &e->shape;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0;
    size_t size[] = {(size_t)s->lda * (size_t)(s->ta ? s->K : s->M), (size_t)s->ldb * (size_t)(s->tb ? s->N : s->K),
                     (size_t)s->ldc * (size_t)s->M};
    void *x[3] = {cuda_take(c, size[0] * 4 + 256, false), cuda_take(c, size[1] * 4 + 256, false),
                  cuda_take(c, size[2] * 4 + 256, false)};
    bool ok = x[0] && x[1] && x[2];
    void *operand[3] = {};
    for (int i = 0; i < 3 && ok; i++) {
        /* aligned no better than the product's own operands */
        size_t off = e->align[i] >= 16 ? 0 : e->align[i];
        operand[i] = static_cast<char *>(x[i]) + off;
        if (i < 2 ? s->is_bf16 : s->c_bf16)
            LAUNCH_EACH(c, (numbers<bf16>), size[i], static_cast<bf16 *>(operand[i]), (uint64_t)i);
        else
            LAUNCH_EACH(c, (numbers<float>), size[i], static_cast<float *>(operand[i]), (uint64_t)i);
    }
    prefer(t, e);
    ok = ok && cublasLtMatmulAlgoGetHeuristic(t->handle, e->op, e->b, e->a, e->c, e->c, t->preference, CANDIDATES,
                                              found, &n) == CUBLAS_STATUS_SUCCESS;
    *out = key_of(e);
    out->first = out->best = -1;
    for (int i = 0; i < n && ok; i++) {
        Trial trial = {c, e, &found[i].algo, operand[0], operand[1], operand[2], 1, CUBLAS_STATUS_SUCCESS};
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > SPACE) continue;
        double s1 = time_of(&trial, seconds);
        if (s1 < 0) continue;
        if (out->first < 0) out->first = s1;
        if (out->best >= 0 && s1 >= out->best) continue;
        out->best = s1;
        e->algo = found[i].algo;
        memcpy(out->word, &found[i].algo, sizeof out->word);
    }
    for (void *p : x)
        if (p) cuda_give(c, p);
    return out->best >= 0;
}
extern "C" int cuda_tune(Cuda *c, double seconds, struct TunedProduct *out, int most) {
    int n = 0;
    for (int i = 0; i < c->lt->n && n < most; i++) n += tune_one(c, c->lt->entry[i], seconds, &out[n]);
    return n;
}
extern "C" void cuda_tuning(Cuda *c, const struct Tuning *t) { c->lt->tuning = t; }
extern "C" long long cuda_library(const Cuda *) { return (long long)cublasLtGetVersion(); }
extern "C" int cuda_processors(const Cuda *c) { return c->processors; }

/* The library counts columns first, so it gets C^T = B^T A^T, whose operands are ours in place. */
static void prepare(CudaLt *t, LtEntry *e, CudaGemm s, const uint32_t align[3]) {
    cublasOperation_t first = s.tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = s.ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t of = s.is_bf16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    e->shape = s;
    memcpy(e->align, align, sizeof e->align);
    prefer(t, e);
    must(cublasLtMatmulDescCreate(&e->op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
    must(cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first), "operation");
    must(cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second), "operation");
    must(cublasLtMatrixLayoutCreate(&e->b, of, (uint64_t)(s.tb ? s.K : s.N), (uint64_t)(s.tb ? s.N : s.K), s.ldb),
         "layout");
    must(cublasLtMatrixLayoutCreate(&e->a, of, (uint64_t)(s.ta ? s.M : s.K), (uint64_t)(s.ta ? s.K : s.M), s.lda),
         "layout");
    must(cublasLtMatrixLayoutCreate(&e->c, s.c_bf16 ? CUDA_R_16BF : CUDA_R_32F, (uint64_t)s.N, (uint64_t)s.M, s.ldc),
         "layout");
    must(cublasLtMatmulAlgoGetHeuristic(t->handle, e->op, e->b, e->a, e->c, e->c, t->preference, 1, &found, &n),
         "choice of algorithm");
    if (n == 0) must(CUBLAS_STATUS_NOT_SUPPORTED, "choice of algorithm");
    e->algo = found.algo;
    recall(t, e);
}
/* Make room for one more entry: drop the one whose last use is longest ago among those that no graph holds. */
static void make_room(CudaLt *t) {
    int i = t->n - 1;
    while (i >= 0 && t->entry[i]->held) i--;
    if (t->n >= SHAPES && i >= 0) {
        forget(t->entry[i]);
        memmove(t->entry + i, t->entry + i + 1, (size_t)(--t->n - i) * sizeof *t->entry);
    }
    if (t->n < t->room) return;
    t->room = t->room ? 2 * t->room : 64;
    t->entry = static_cast<LtEntry **>(realloc(t->entry, (size_t)t->room * sizeof *t->entry));
    if (!t->entry) cuda_must(cudaErrorMemoryAllocation, "products");
}
static LtEntry *entry(Cuda *c, CudaGemm s, const uint32_t align[3]) {
    CudaLt *t = c->lt;
    int i = 0;
    while (i < t->n && (memcmp(t->entry[i]->align, align, sizeof t->entry[i]->align) || !same(&t->entry[i]->shape, &s)))
        i++;
    if (i == t->n) {
        graph_interrupt(c); /* the library may not be asked for an algorithm while a stream is captured */
        make_room(t);
        LtEntry *e = new LtEntry();
        prepare(t, e, s, align);
        t->entry[i = t->n++] = e;
    }
    LtEntry *e = t->entry[i];
    memmove(t->entry + 1, t->entry, (size_t)i * sizeof *t->entry);
    t->entry[0] = e;
    graph_hold(c, &e->held);
    return e;
}
/* Alignment of an operand in bytes. A head, an expert or a chunk of rows may begin at any element, but the library
 * assumes 256 bytes unless told. No algorithm needs more than 16; there is none for less than an element's size. */
static uint32_t alignment(const void *p, bool is_bf16) {
    return (uintptr_t)p % 16 == 0 ? 16 : is_bf16 ? (uint32_t)sizeof(bf16) : (uint32_t)sizeof(float);
}
template <class T> __global__ void clear(size_t n, int N, int ldc, T *C) {
    EACH(i, n) store<1>(C + i / (size_t)N * (size_t)ldc + i % (size_t)N, {0});
}
extern "C" void cuda_gemm(Cuda *c, CudaGemm s, void *C, const void *A, const void *B) {
    if (s.M == 0 || s.N == 0 || (s.K == 0 && s.accumulate)) return; /* a pass without rows adds nothing */
    size_t all = (size_t)s.M * (size_t)s.N;
    if (s.K == 0) { /* empty sums, which the library refuses */
        if (s.c_bf16)
            LAUNCH_EACH(c, (clear<bf16>), all, s.N, s.ldc, (bf16 *)C);
        else
            LAUNCH_EACH(c, (clear<float>), all, s.N, s.ldc, (float *)C);
        return;
    }
    if (!c->stream) return;
    const uint32_t align[] = {alignment(A, s.is_bf16), alignment(B, s.is_bf16), alignment(C, s.c_bf16)};
    LtEntry *e = entry(c, s, align);
    const float one = 1, beta = s.accumulate ? 1.0f : 0.0f;
    must(cublasLtMatmul(c->lt->handle, e->op, &one, B, e->b, A, e->a, &beta, C, e->c, C, e->c, &e->algo, c->lt->space,
                        SPACE, c->stream),
         "matrix product");
    if (!c->stream.check) return;
    char what[120];
    snprintf(what, sizeof what, "matrix product of (%d,%d) and (%d,%d)%s", s.M, s.K, s.K, s.N,
             s.is_bf16 ? " in bf16" : "");
    cuda_checked(c, what);
}

/* Rows of O elements, n times W elements in all. */
template <class T, int W> __global__ void bias_add(size_t n, int O, T *y, const float *bias) {
    EACH(i, n) {
        float v[W], b[W];
        fetch<W>(v, y + i * W), fetch<W>(b, bias + i * W % (size_t)O);
        UNROLL
        for (int k = 0; k < W; k++) v[k] += b[k];
        store<W>(y + i * W, v);
    }
}
extern "C" void cuda_bias(Cuda *c, int N, int O, void *y, const float *bias, bool is_bf16) {
    size_t n = (size_t)N * (size_t)O;
    if (is_bf16 && by_eight((size_t)O, y, bias))
        LAUNCH_EACH(c, (bias_add<bf16, 4>), n / 4, O, (bf16 *)y, bias);
    else if (is_bf16)
        LAUNCH_EACH(c, (bias_add<bf16, 1>), n, O, (bf16 *)y, bias);
    else
        LAUNCH_EACH(c, (bias_add<float, 1>), n, O, (float *)y, bias);
}
/* One warp per element: sums over lanes, then their tree; no other row affects the order. */
template <class X>
__global__ void dots(size_t n, int O, int I, float *y, const X *x, const float *w, const float *bias) {
    size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    if (i >= n) return;
    const X *a = x + i / (size_t)O * (size_t)I;
    const float *b = w + i % (size_t)O * (size_t)I;
    float s = 0;
    for (int k = lane; k < I; k += 32) s += number(a[k]) * b[k];
    s = warp_sum(s);
    if (lane == 0) y[i] = bias ? s + bias[i % (size_t)O] : s;
}
template <class X>
static void dots_of(Cuda *c, size_t n, int O, int I, float *y, const void *x, const float *w, const float *bias) {
    LAUNCH((dots<X>), dim3((unsigned)((n + WARPS - 1) / WARPS)), dim3(BLOCK), 0, c->stream, n, O, I, y, (const X *)x, w,
           bias);
}
extern "C" void cuda_dots(Cuda *c, int N, int O, int I, float *y, const void *x, bool is_bf16, const float *w,
                          const float *bias) {
    size_t n = (size_t)N * (size_t)O;
    if (n) (is_bf16 ? dots_of<bf16> : dots_of<float>)(c, n, O, I, y, x, w, bias);
}
