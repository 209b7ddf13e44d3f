/* gemm.c: f32 products by oneDNN's matmul with cached primitives (versions 2 and 3 of its C interface). Scratchpads
 * come from the caller. */
#include "gemm_bf16.h"
#include "isa_table.h"
#include "oom.h"

/* ---- without the library: doubles, and shapes that it mistakes ---------------------------------------------------*/

/* So many rows and columns of C are in registers at a time, and so many rows of op(B) are packed. */
enum { PLAIN_ROWS = 2, PLAIN_COLS = 8, PLAIN_DEPTH = 256, PLAIN_VECS = PLAIN_COLS * (int)sizeof(real) / 16 };
typedef real PlainVec __attribute__((vector_size(16), aligned(sizeof(real)), may_alias));
static void plain_pack(GemmShape s, real *panel, const real *B, int column, int from, int depth) {
    const size_t ldb = (size_t)s.ldb, step = s.tb ? 1 : ldb, next = s.tb ? ldb : 1;
    for (int j = 0; j < PLAIN_COLS; j++) {
        const real *b = B + (size_t)from * step + (size_t)(column + j) * next;
        for (int k = 0; k < depth; k++) panel[k * PLAIN_COLS + j] = column + j < s.N ? b[(size_t)k * step] : 0;
    }
}
/* n rows of C, at most PLAIN_ROWS, and `cols` columns of it, become what they are plus the product of a and the panel;
 * a: of the first row, elements `step` apart, rows `next` apart. */
static void plain_rows(real *c, size_t ldc, int n, int cols, const real *a, size_t step, size_t next, const real *panel,
                       int depth) {
    real room[PLAIN_ROWS][PLAIN_COLS] = {{0}};
    PlainVec sum[PLAIN_ROWS][PLAIN_VECS];
    const real *row[PLAIN_ROWS];
    for (int i = 0; i < PLAIN_ROWS; i++) {
        row[i] = a + (size_t)imin(i, n - 1) * next; /* the last again */
        if (i < n) memcpy(room[i], c + (size_t)i * ldc, (size_t)cols * sizeof *c);
        for (int v = 0; v < PLAIN_VECS; v++) sum[i][v] = *(const PlainVec *)(room[i] + v * PLAIN_COLS / PLAIN_VECS);
    }
    for (int k = 0; k < depth; k++, panel += PLAIN_COLS)
        for (int v = 0; v < PLAIN_VECS; v++) {
            const PlainVec b = *(const PlainVec *)(panel + v * PLAIN_COLS / PLAIN_VECS);
            for (int i = 0; i < PLAIN_ROWS; i++) sum[i][v] += row[i][(size_t)k * step] * b;
        }
    for (int i = 0; i < n; i++) {
        for (int v = 0; v < PLAIN_VECS; v++) *(PlainVec *)(room[i] + v * PLAIN_COLS / PLAIN_VECS) = sum[i][v];
        memcpy(c + (size_t)i * ldc, room[i], (size_t)cols * sizeof *c);
    }
}
/* Every element is summed over k in one fixed order, so that a row's result does not depend on how many rows there
 * are. */
static void gemm_plain(GemmShape s, real *C, const real *A, const real *B) {
    const size_t lda = (size_t)s.lda, ldc = (size_t)s.ldc, step = s.ta ? lda : 1, next = s.ta ? 1 : lda;
    for (int i = 0; i < s.M && !s.accumulate; i++) memset(C + (size_t)i * ldc, 0, (size_t)s.N * sizeof *C);
#pragma omp parallel for schedule(static) if ((long)s.M * s.N * s.K > 100000)
    for (int column = 0; column < s.N; column += PLAIN_COLS) {
        real panel[PLAIN_DEPTH * PLAIN_COLS];
        for (int from = 0; from < s.K; from += PLAIN_DEPTH) {
            const int depth = imin(PLAIN_DEPTH, s.K - from);
            plain_pack(s, panel, B, column, from, depth);
            for (int i = 0; i < s.M; i += PLAIN_ROWS)
                plain_rows(C + (size_t)i * ldc + column, ldc, imin(PLAIN_ROWS, s.M - i), imin(PLAIN_COLS, s.N - column),
                           A + (size_t)from * step + (size_t)i * next, step, next, panel, depth);
        }
    }
}

#ifdef KV_DOUBLE
struct Gemm {
    char none;
};
bool gemm_bind(LibraryIsa most, Err *e) {
    (void)most, (void)e;
    return true;
}
bool gemm_open(Gemm **g, Err *e) {
    (void)e;
    *g = xcalloc(1, sizeof **g);
    return true;
}
void gemm_close(Gemm *g) { free(g); }
void gemm_use(Gemm *g, GemmBf16 *bf16, int threads, int64_t least) {
    (void)g, (void)threads, (void)least;
    CHECK(!bf16, "a product in bf16 of doubles");
}
bool gemm_rounds(const Gemm *g, int64_t weights) {
    (void)g, (void)weights;
    return false;
}
void gemm(Gemm *g, Arena *scratch, GemmShape s, void *C, const void *A, const void *B) {
    (void)g;
    CHECK(!s.b_bf16 && !s.a_bf16 && !s.c_bf16, "a product in bf16 of doubles");
    if (scratch->base) gemm_plain(s, C, A, B);
}
void gemm_many(Gemm *g, Arena *scratch, int n, const GemmJob *jobs) {
    for (int j = 0; j < n; j++) gemm(g, scratch, jobs[j].s, jobs[j].C, jobs[j].A, jobs[j].B);
}
#else
    #include <oneapi/dnnl/dnnl.h>

enum { SLOTS = 512 };
typedef struct {
    GemmShape shape;
    dnnl_primitive_t prim;
    dnnl_memory_t a, b, c, pad;
    size_t pad_bytes;
} Entry;
struct Gemm {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    GemmBf16 *bf16; /* NULL: the library */
    int64_t least;
    int threads, n;
    Entry entry[SLOTS];
};

    #define DNNL(call)                                                              \
        do {                                                                        \
            dnnl_status_t status_ = (call);                                         \
            if (status_ == dnnl_out_of_memory) oom_exit("out of memory in oneDNN"); \
            CHECK(status_ == dnnl_success, "oneDNN status %d", (int)status_);       \
        } while (0)

bool gemm_bind(LibraryIsa most, Err *e) {
    #ifdef __x86_64__
    static const dnnl_cpu_isa_t isas[] = {
        [LIBRARY_SSE41] = dnnl_cpu_isa_sse41,         [LIBRARY_AVX2] = dnnl_cpu_isa_avx2,
        [LIBRARY_AVX512] = dnnl_cpu_isa_avx512_core,  [LIBRARY_AVX512BF16] = dnnl_cpu_isa_avx512_core_bf16,
        [LIBRARY_AMX] = dnnl_cpu_isa_avx512_core_amx,
    };
    if (most == LIBRARY_ANY) return true;
    dnnl_status_t status = dnnl_set_max_cpu_isa(isas[most]);
    if (status == dnnl_unimplemented)
        return err_runtime(e, "isa: this oneDNN was built without a choice of the instruction set; use isa auto");
    dnnl_cpu_isa_t got = dnnl_get_effective_cpu_isa();
    if (got != isas[most])
        return err_runtime(e, "isa: oneDNN already uses another instruction set (0x%x instead of 0x%x)", (unsigned)got,
                           (unsigned)isas[most]);
    #else
    (void)most, (void)e;
    #endif
    return true;
}

bool gemm_open(Gemm **g, Err *e) {
    *g = xcalloc(1, sizeof **g);
    if (dnnl_engine_create(&(*g)->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&(*g)->stream, (*g)->engine, dnnl_stream_default_flags) == dnnl_success)
        return true;
    free(*g);
    *g = NULL;
    return err_runtime(e, "oneDNN does not run on this processor");
}

static void entry_close(Entry *n) {
    dnnl_primitive_destroy(n->prim);
    dnnl_memory_destroy(n->a);
    dnnl_memory_destroy(n->b);
    dnnl_memory_destroy(n->c);
    if (n->pad) dnnl_memory_destroy(n->pad);
}
void gemm_close(Gemm *g) {
    if (!g) return;
    for (int i = 0; i < g->n; i++) entry_close(&g->entry[i]);
    dnnl_stream_destroy(g->stream);
    dnnl_engine_destroy(g->engine);
    free(g);
}

void gemm_use(Gemm *g, GemmBf16 *bf16, int threads, int64_t least) {
    g->bf16 = bf16, g->threads = threads, g->least = least;
}

bool gemm_rounds(const Gemm *g, int64_t weights) { return g->bf16 && weights >= g->least; }

/* The library declares dimension arrays of 12 entries and reads two of them. */
typedef dnnl_dim_t Dims[DNNL_MAX_NDIMS];

static void entry_open(Gemm *g, Entry *n, GemmShape s) {
    Dims da = {s.M, s.K}, db = {s.K, s.N}, dc = {s.M, s.N};
    Dims sa = {s.ta ? 1 : s.lda, s.ta ? s.lda : 1}, sb = {s.tb ? 1 : s.ldb, s.tb ? s.ldb : 1}, sc = {s.ldc, 1};
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    dnnl_primitive_desc_t pd;
    *n = (Entry){.shape = s};
    DNNL(dnnl_primitive_attr_create(&attr));
    DNNL(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    DNNL(dnnl_post_ops_create(&ops));
    #if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t a, b, c;
    if (s.accumulate) DNNL(dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef));
    DNNL(dnnl_primitive_attr_set_post_ops(attr, ops));
    DNNL(dnnl_memory_desc_create_with_strides(&a, 2, da, dnnl_f32, sa));
    DNNL(dnnl_memory_desc_create_with_strides(&b, 2, db, dnnl_f32, sb));
    DNNL(dnnl_memory_desc_create_with_strides(&c, 2, dc, dnnl_f32, sc));
    DNNL(dnnl_matmul_primitive_desc_create(&pd, g->engine, a, b, NULL, c, attr));
    const_dnnl_memory_desc_t pad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    DNNL(dnnl_memory_create(&n->a, a, g->engine, NULL));
    DNNL(dnnl_memory_create(&n->b, b, g->engine, NULL));
    DNNL(dnnl_memory_create(&n->c, c, g->engine, NULL));
    dnnl_memory_desc_destroy(a);
    dnnl_memory_desc_destroy(b);
    dnnl_memory_desc_destroy(c);
    #else
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t d;
    if (s.accumulate) DNNL(dnnl_post_ops_append_sum(ops, 1.0f));
    DNNL(dnnl_primitive_attr_set_post_ops(attr, ops));
    DNNL(dnnl_memory_desc_init_by_strides(&a, 2, da, dnnl_f32, sa));
    DNNL(dnnl_memory_desc_init_by_strides(&b, 2, db, dnnl_f32, sb));
    DNNL(dnnl_memory_desc_init_by_strides(&c, 2, dc, dnnl_f32, sc));
    DNNL(dnnl_matmul_desc_init(&d, &a, &b, NULL, &c));
    DNNL(dnnl_primitive_desc_create(&pd, &d, attr, g->engine, NULL));
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    DNNL(dnnl_memory_create(&n->a, &a, g->engine, NULL));
    DNNL(dnnl_memory_create(&n->b, &b, g->engine, NULL));
    DNNL(dnnl_memory_create(&n->c, &c, g->engine, NULL));
    #endif
    n->pad_bytes = pad ? dnnl_memory_desc_get_size(pad) : 0;
    if (n->pad_bytes) DNNL(dnnl_memory_create(&n->pad, pad, g->engine, NULL));
    DNNL(dnnl_primitive_create(&n->prim, pd));
    dnnl_primitive_desc_destroy(pd);
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
}

static bool any_bf16(GemmShape s) { return s.b_bf16 || s.a_bf16 || s.c_bf16; }

static Entry *gemm_find(Gemm *g, GemmShape s) {
    for (int i = 0; i < g->n; i++) {
        const GemmShape *t = &g->entry[i].shape;
        if (t->M == s.M && t->N == s.N && t->K == s.K && t->lda == s.lda && t->ldb == s.ldb && t->ldc == s.ldc &&
            t->ta == s.ta && t->tb == s.tb && t->accumulate == s.accumulate)
            return &g->entry[i];
    }
    if (g->n == SLOTS) { /* a server may meet every number of rows: forget the older half */
        for (int i = 0; i < SLOTS / 2; i++) entry_close(&g->entry[i]);
        memmove(g->entry, g->entry + SLOTS / 2, SLOTS / 2 * sizeof *g->entry);
        g->n = SLOTS / 2;
    }
    entry_open(g, &g->entry[g->n], s);
    return &g->entry[g->n++];
}

void gemm(Gemm *g, Arena *scratch, GemmShape s, void *C, const void *A, const void *B) {
    if (s.M == 0 || s.N == 0 || (s.K == 0 && s.accumulate)) return; /* a pass of no rows adds nothing */
    CHECK(s.M > 0 && s.N > 0 && s.K > 0, "M %d N %d K %d", s.M, s.N, s.K);
    CHECK(!any_bf16(s) || g->bf16, "matrices in bf16 on a device that multiplies in f32");
    if (any_bf16(s) || gemm_rounds(g, s.weights)) {
        gemm_bf16_one(g->bf16, g->threads, scratch, s, C, A, B);
        return;
    }
    /* oneDNN 3.7 mistakes a strided column for a contiguous one. */
    if ((s.N == 1 && s.ldc != 1) || (s.M == 1 && s.ta && s.lda != 1)) {
        if (scratch->base) gemm_plain(s, C, A, B);
        return;
    }
    Entry *n = gemm_find(g, s);
    Mark mark = arena_mark(scratch);
    /* The library may need more for fewer rows, as it chooses blocks by shape. A pass smaller than the measured one
     * can then find too little room, and gets it for this call. */
    Arena spill = {0};
    Err e = {0};
    bool fits =
        !scratch->base || !n->pad_bytes || ((n->pad_bytes + 63) & ~(size_t)63) + 64 <= scratch->size - scratch->used;
    if (!fits && !arena_open(&spill, "oneDNN scratchpad", n->pad_bytes + 128, false, &e)) oom_exit(e.msg);
    void *pad = n->pad_bytes ? arena_take(fits ? scratch : &spill, n->pad_bytes, "oneDNN scratchpad") : NULL;
    if (scratch->base) {
        DNNL(dnnl_memory_set_data_handle(n->a, (void *)A));
        DNNL(dnnl_memory_set_data_handle(n->b, (void *)B));
        DNNL(dnnl_memory_set_data_handle(n->c, C));
        if (n->pad) DNNL(dnnl_memory_set_data_handle(n->pad, pad));
        dnnl_exec_arg_t args[4] = {{DNNL_ARG_SRC, n->a},
                                   {DNNL_ARG_WEIGHTS, n->b},
                                   {DNNL_ARG_DST, n->c},
                                   {DNNL_ARG_SCRATCHPAD, n->pad}};
        DNNL(dnnl_primitive_execute(n->prim, g->stream, n->pad ? 4 : 3, args));
        DNNL(dnnl_stream_wait(g->stream));
    }
    if (!fits) arena_close(&spill);
    arena_release(scratch, mark);
}

/* Products for the library may be between our own: each is done in its turn, because C may be shared with its
 * neighbours. */
void gemm_many(Gemm *g, Arena *scratch, int n, const GemmJob *jobs) {
    CHECK(n >= 0 && n <= GEMM_JOBS, "%d products", n);
    if (n == 0) return;
    for (int from = 0, j = 0; j <= n; j++) {
        const GemmShape *s = &jobs[imin(j, n - 1)].s;
        bool joins =
            j < n && s->M > 0 && s->N > 0 && s->K > 0 && g->bf16 && (any_bf16(*s) || gemm_rounds(g, s->weights));
        if (joins) continue;
        if (j > from) g->bf16(g->threads, scratch, j - from, jobs + from);
        if (j < n) gemm(g, scratch, *s, jobs[j].C, jobs[j].A, jobs[j].B);
        from = j + 1;
    }
}
#endif
