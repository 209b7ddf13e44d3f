/* blas.cpp: cuBLASLt's entry points over a plain loop: D = alpha op(A) op(B) + beta C, column-major, A and B both f32
 * or both bf16, sums in f32 over ascending k (of bf16 as sums.cpp says), C and D in f32, or of operands in bf16 in
 * that, rounded to the nearest. Checks what the library would refuse, and that operands are inside allocations and
 * written. Two products at once may not share a workspace: each scribbles over its own before it ends. Operands must
 * be aligned as the choice of the algorithm was told, 256 bytes where nothing was said; a promise of less than a
 * number's own size finds no algorithm. Algorithms are not chosen while a stream is captured, which some versions of
 * the library refuse. Sums are of two parts, of which the first is kept as C's numbers are, unless the preference
 * says otherwise. */
#include "tests/simt/include/cublasLt.h"
#include "ops/cuda/host/lt_so.h"
#include <stdio.h>
#include <stdlib.h>
#include <vector>

struct SimtLt {
    int open;
};
struct SimtLtOp {
    cublasOperation_t a, b;
};
struct SimtLtLayout {
    int64_t rows, cols, ld;
    cudaDataType_t type;
    size_t each() const { return type == CUDA_R_16BF ? 2 : 4; }
};
struct SimtLtPreference {
    size_t workspace;
    uint32_t align[4]; /* of A, B, C, D */
    uint32_t schemes;  /* by which parts of a sum may be put together */
};
static const uint64_t OUR_ALGO = 0x73696D74;
/* Which differ in the time of small products alone: the first goes through everything three times, the second once, the
 * third twice. */
enum { ALGORITHMS = 3 };
static const int turns[ALGORITHMS] = {3, 1, 2};

static unsigned long asked;
unsigned long simt_choices() { return asked; }

bool lt_found(const char **where, char why[200]) {
    *where = "tests/simt/blas.cpp";
    if (!getenv("SIMT_NO_CUBLASLT")) return true;
    snprintf(why, 200, "libcublasLt.so.13 is not found; name its folder in LD_LIBRARY_PATH");
    return false;
}
size_t cublasLtGetVersion() { /* another version's algorithms are not this one's */
    const char *said = getenv("SIMT_CUBLASLT");
    return said ? (size_t)atol(said) : 130000;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
    *h = new SimtLt{1};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t, cudaDataType_t) {
    *d = new SimtLtOp{CUBLAS_OP_N, CUBLAS_OP_N};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *v,
                                              size_t n) {
    if (n != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
    (a == CUBLASLT_MATMUL_DESC_TRANSA ? d->a : d->b) = *(const cublasOperation_t *)v;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
    *l = new SimtLtLayout{(int64_t)rows, (int64_t)cols, ld, type};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = new SimtLtPreference{0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *v, size_t n) {
    if (a >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) {
        if (n != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
        p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] = *(const uint32_t *)v;
        return CUBLAS_STATUS_SUCCESS;
    }
    if (a == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
        if (n != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
        p->schemes = *(const uint32_t *)v;
        return CUBLAS_STATUS_SUCCESS;
    }
    if (n != sizeof(size_t)) return CUBLAS_STATUS_INVALID_VALUE;
    p->workspace = *(const size_t *)v;
    return CUBLAS_STATUS_SUCCESS;
}
/* op(A) (m,k), op(B) (k,n), C (m,n) */
static bool fits(const SimtLtOp *op, const SimtLtLayout *a, const SimtLtLayout *b, const SimtLtLayout *c) {
    int64_t m = op->a == CUBLAS_OP_T ? a->cols : a->rows, k = op->a == CUBLAS_OP_T ? a->rows : a->cols;
    int64_t kb = op->b == CUBLAS_OP_T ? b->cols : b->rows, n = op->b == CUBLAS_OP_T ? b->rows : b->cols;
    return m == c->rows && n == c->cols && k == kb && m > 0 && n > 0 && k > 0 && a->ld >= a->rows && b->ld >= b->rows &&
           c->ld >= c->rows && a->type == b->type &&
           (c->type == CUDA_R_32F || (c->type == CUDA_R_16BF && a->type == CUDA_R_16BF));
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t *r, int *found) {
    asked++;
    if (simt_forbidden("cublasLtMatmulAlgoGetHeuristic")) return CUBLAS_STATUS_INTERNAL_ERROR;
    if (!fits(op, a, b, c) || most < 1) return CUBLAS_STATUS_INVALID_VALUE;
    const SimtLtLayout *operand[] = {a, b, c, c};
    for (int i = 0; i < 4; i++)
        if (p->align[i] < operand[i]->each()) return CUBLAS_STATUS_NOT_SUPPORTED;
    *found = most < ALGORITHMS ? most : ALGORITHMS;
    for (int k = 0; k < *found; k++) {
        r[k] = {};
        r[k].algo.data[0] = OUR_ALGO;
        for (int i = 0; i < 4; i++) r[k].algo.data[1 + i] = p->align[i]; /* it may use all that it was promised */
        r[k].algo.data[5] = (uint64_t)k;
        r[k].algo.data[6] =
            p->schemes & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) ? 1 : 0;
        r[k].workspaceSize = 4096;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *r) {
    if (simt_forbidden("cublasLtMatmulAlgoCheck")) return CUBLAS_STATUS_INTERNAL_ERROR;
    if (!fits(op, a, b, c)) return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->data[0] != OUR_ALGO || algo->data[5] >= ALGORITHMS) return CUBLAS_STATUS_NOT_SUPPORTED;
    *r = {};
    r->algo = *algo;
    r->workspaceSize = 4096;
    return CUBLAS_STATUS_SUCCESS;
}

/* A promise about the operands that is not kept is a product that fails, or an access that the device refuses. */
static bool kept(const cublasLtMatmulAlgo_t *algo, const void *A, const void *B, const void *C, const void *D) {
    const void *operand[] = {A, B, C, D};
    for (int i = 0; algo && i < 4; i++)
        if ((uintptr_t)operand[i] % algo->data[1 + i]) return false;
    return true;
}

struct Product {
    SimtLtOp op;
    SimtLtLayout a, b, c;
    float alpha, beta;
    const void *A, *B;
    const void *C;
    void *D;
    void *space;
    size_t space_bytes;
    int turns;
    bool parts; /* the first half of a sum is kept in C's type */
};
void estimate_others(double bytes); /* estimate.cpp */
static void touch(const void *p, const SimtLtLayout *l, bool write) {
    estimate_others((double)(l->cols * l->rows) * (double)l->each());
    for (int64_t j = 0; j < l->cols; j++)
        simt_library_touches((const char *)p + (size_t)(j * l->ld) * l->each(), (size_t)l->rows * l->each(), write);
}
static float widened(uint16_t half) {
    uint32_t u = (uint32_t)half << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
/* Number i of an operand. */
static float number(const void *p, const SimtLtLayout *l, int64_t i) {
    return l->type == CUDA_R_32F ? ((const float *)p)[i] : widened(((const uint16_t *)p)[i]);
}
static uint16_t nearest(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
/* a, ld numbers apart, times b, both k long, by steps of 16; before number `part` the sum is rounded to bf16. */
static float truncated(const float *a, int64_t ld, const float *b, int64_t k, int64_t part) {
    float s = 0;
    double product[16];
    int step = 0;
    for (int64_t l = 0; l < k; l++) {
        if (l == part || step == 16) s = simt_truncated_sum(s, product, step), step = 0;
        if (l == part) s = widened(nearest(s));
        product[step++] = (double)a[l * ld] * (double)b[l];
    }
    return simt_truncated_sum(s, product, step);
}
static void multiply(void *arg) {
    const Product *p = (const Product *)arg;
    int64_t k = p->op.a == CUBLAS_OP_T ? p->a.rows : p->a.cols;
    int64_t ai = p->op.a == CUBLAS_OP_T ? p->a.ld : 1, ak = p->op.a == CUBLAS_OP_T ? 1 : p->a.ld;
    int64_t bj = p->op.b == CUBLAS_OP_T ? 1 : p->b.ld, bk = p->op.b == CUBLAS_OP_T ? p->b.ld : 1;
    touch(p->A, &p->a, false);
    touch(p->B, &p->b, false);
    if (p->beta != 0) touch(p->C, &p->c, false);
    touch(p->D, &p->c, true);
    const bool half = p->c.type == CUDA_R_16BF, truncates = p->a.type == CUDA_R_16BF && simt_truncates();
    const int64_t m = p->c.rows, n = p->c.cols;
    /* op(A) with columns of m numbers, op(B) with columns of k: sums of a column side by side, each over ascending k */
    std::vector<float> a((size_t)(m * k)), b((size_t)(k * n)), sums((size_t)m);
    for (int64_t l = 0; l < k; l++)
        for (int64_t i = 0; i < m; i++) a[(size_t)(l * m + i)] = number(p->A, &p->a, i * ai + l * ak);
    for (int64_t j = 0; j < n; j++)
        for (int64_t l = 0; l < k; l++) b[(size_t)(j * k + l)] = number(p->B, &p->b, j * bj + l * bk);
    for (int turn = m * n * k <= 1 << 16 ? p->turns : 1; turn > 0; turn--)
        for (int64_t j = 0; j < n; j++) {
            float *s = sums.data();
            for (int64_t i = 0; i < m; i++) s[i] = 0;
            for (int64_t i = 0; truncates && i < m; i++)
                s[i] = truncated(&a[(size_t)i], m, &b[(size_t)(j * k)], k, p->parts && half ? k / 2 : -1);
            for (int64_t l = 0; !truncates && l < k; l++) {
                const float *column = &a[(size_t)(l * m)], by = b[(size_t)(j * k + l)];
                for (int64_t i = 0; p->parts && half && l == k / 2 && i < m; i++) s[i] = widened(nearest(s[i]));
                for (int64_t i = 0; i < m; i++) s[i] += column[i] * by;
            }
            for (int64_t i = 0; turn == 1 && i < m; i++) {
                int64_t at = j * p->c.ld + i;
                float v = p->beta != 0 ? p->alpha * s[i] + p->beta * number(p->C, &p->c, at) : p->alpha * s[i];
                if (p->c.type == CUDA_R_32F)
                    ((float *)p->D)[at] = v;
                else
                    ((uint16_t *)p->D)[at] = nearest(v);
            }
        }
    if (p->space) {
        size_t n = p->space_bytes < 4096 ? p->space_bytes : 4096;
        simt_library_touches(p->space, n, true);
        memset(p->space, 0xFF, n);
    }
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t op, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *space, size_t space_bytes, cudaStream_t s) {
    if (!h || !fits(op, a, b, c) || d->rows != c->rows || d->cols != c->cols || d->ld != c->ld || d->type != c->type ||
        !A || !B || !C || !D || (algo && (algo->data[0] != OUR_ALGO || algo->data[5] >= ALGORITHMS)) ||
        !kept(algo, A, B, C, D))
        return CUBLAS_STATUS_INVALID_VALUE;
    Product *p = new Product{*op, *a, *b,    *c,          *(const float *)alpha,           *(const float *)beta, A, B,
                             C,   D,  space, space_bytes, algo ? turns[algo->data[5]] : 1, algo && algo->data[6]};
    simt_enqueue(s, multiply, p, [](void *x) { delete (Product *)x; });
    return CUBLAS_STATUS_SUCCESS;
}
