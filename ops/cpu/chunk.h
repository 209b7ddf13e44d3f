/* chunk.h: the data of one chunk of rows of the gated delta rule (formulas in chunk.c). Both kernels use it:
 * chunk_channels.c for a decay per channel, chunk_scalar.c for one decay for all channels, or none. Only those two
 * files include it. */
#pragma once
#include "pairs.h"
#include "vec.h"

enum { SUB = 16, LD = RECUR_CHUNK /* row length of matrices of rows by rows */ };

/* One value head of one pass, as strided rows. */
typedef struct {
    int K, V;
    size_t ldq, ldv, ldg, ldb; /* of q, k and erase; of v, o and do; of g; of beta */
    bool decays, per_channel;  /* g is present; g has one element for each channel */
    bool delta;                /* there is a correction */
    Tensor q, k, v, erase;     /* of all heads, erase absent where it is k; may be BF16, and then so are o and do */
    size_t atq, atv;           /* where row 0 begins in q, k and erase; in v, o and do */
    const real *g, *beta;      /* at row 0; may be NULL */
    real scale;
    bool pairs;         /* products round their operands to bf16 */
    PairProduct *tiles; /* of pairs; NULL: by vectors */
} Head;

/* Operands of a product, as `real`s and, with pairs, packed. Left: element (r,k) is at x[r row + k step], its pair at
 * p[r prow + k/2 pstep]; right: (k,j) at x[k ld + j], p[k/2 pld + j]. An operand of several products is packed once. */
typedef struct {
    const real *x;
    size_t row, step;
    const Pair *p;
    size_t prow, pstep;
} Left;
typedef struct {
    const real *x;
    size_t ld;
    const Pair *p;
    size_t pld;
} Right;

/* Memory that is prefetched a few lines at a time while products are computed: rows of the next chunk, and those that
 * this one writes. Asked for at once, lines would wait for each other, and the rows of a head lie too far apart for the
 * hardware to foresee. `rows` rows of each stream, the streams in turn. */
enum { STREAMS = 12 };
typedef struct {
    struct {
        const char *at;
        size_t step, bytes; /* from row to row; of a row */
    } s[STREAMS];
    int n, rows, row, next;
} Ahead;
enum {
    LINE_WORK = 512, /* multiplications for each line: those of a chunk are enough for the lines that it needs */
    STRETCH = 12     /* rows of a product between two requests */
};

/* Matrices of a chunk: (n,K) or (n,V), and (n,n) with rows of LD. */
typedef struct {
    const Head *h;
    Ahead *ahead; /* products move it on, also of a chunk that is const */
    int t0, n, K, V;
    real *q, *k;        /* q carries the scale */
    real *erase;        /* the erase keys, which may be k */
    real *qc, *erase_c; /* q c, erase c; without decay q and erase themselves */
    real *x; /* k_j e_{n-1,j}; without decay k. Per channel, while it is built: k_j e_{ref,j} of the rows j < done */
    real *c; /* decay since the chunk began: (n,K) per channel, (n) otherwise */
    real *p, *l; /* P_ij at i pi + j pj, L_ij too */
    size_t pi, pj;
    real *r, *u;             /* without delta r is not used; while o is computed, r is room for rows of BF16 */
    real *row;               /* for BF16: room for one more row of K or V elements */
    Pair *pa, *pb, *pu, *ps; /* with pairs: the operands of a product; u and a state, which several products read */
    /* The members of a decay per channel. */
    real *a; /* decay of a row */
    int ref, done;
    real *pack, *since, *w; /* (K, 2 SUB); (K, SUB); (K) */
    /* The members of one decay for all channels, or none. */
    real *e, *kt; /* e_ij, 0 for j > i up to the end of i's block; (K,n) k transposed */
} Chunk;

/* Gradients of one value head. Any may be absent. Those of v, g and beta are laid out like v, g
 * and beta. */
typedef struct {
    Into q, k, v, g, beta, erase;
    size_t ldq, atq, atg, atbeta; /* of q, k and erase; where row 0 begins */
} HeadGrad;

typedef struct {
    const real *S;     /* the state before the chunk; NULL: zero */
    real *dS;          /* (K,V) the gradient by the state after it */
    bool zero;         /* which is zero */
    real *dq, *dk, *y; /* (n,K): by the scaled q, by k; work space */
    real *derase;      /* by the erase keys: dk where they are k */
    real *du, *nr;     /* (n,V): dU, then dR; -beta dR */
    real *dp, *dl;     /* (n,n) */
    real *ut, *st;     /* without pairs: (V,n) U^T; (V,K) a state transposed */
    Pair *pr;          /* with pairs: -beta dR */
    /* do as operands; room for them with pairs; (n,V), for BF16 without pairs. */
    Left do_left;
    Right do_right;
    Pair *do_pairs[2];
    real *dout;
    /* The members of a decay per channel; derase is first used as `row` (chunk.c). */
    real *col, *ye, *end; /* (n,K); (n,K): y and ye are q_i and e_i with the decay since the current block; (K) */
    real *f;              /* (n,K) decay since the first row of a row's block, that row's own decay excluded */
} ChunkGrad;

/* Use the next n elements of mem, of which *at are already in use, and whole cache lines. mem NULL: only count them. */
static real *part(real *mem, size_t *at, size_t n) {
    const size_t line = 64 / sizeof(real);
    real *p = mem ? mem + *at : NULL;
    *at += (n + line - 1) / line * line;
    return p;
}
/* The same for pairs. */
static Pair *pairs_part(real *mem, size_t *at, size_t n) {
    return (Pair *)part(mem, at, (n * sizeof(Pair) + sizeof(real) - 1) / sizeof(real));
}
/* Both functions return how many elements they use. */
static size_t chunk_place(Chunk *c, const Head *h, real *mem) {
    size_t K = (size_t)h->K, V = (size_t)h->V, k = LD * K, v = LD * V, n = LD * LD, at = 0;
    *c = (Chunk){.h = h, .K = h->K, .V = h->V, .pi = h->per_channel ? 1 : LD, .pj = h->per_channel ? LD : 1};
    c->q = part(mem, &at, k), c->k = part(mem, &at, k);
    c->erase = present(h->erase) ? part(mem, &at, k) : c->k;
    c->qc = c->q, c->erase_c = c->erase, c->x = c->k;
    if (h->decays) c->qc = part(mem, &at, k), c->erase_c = part(mem, &at, k), c->x = part(mem, &at, k);
    c->p = part(mem, &at, n), c->l = part(mem, &at, n);
    c->r = part(mem, &at, v), c->u = part(mem, &at, v);
    if (h->per_channel) {
        c->c = part(mem, &at, k), c->a = part(mem, &at, k);
        c->pack = part(mem, &at, 2 * SUB * K), c->since = part(mem, &at, SUB * K), c->w = part(mem, &at, K);
    } else
        c->c = part(mem, &at, LD), c->e = part(mem, &at, n), c->kt = part(mem, &at, k);
    if (h->v.dtype == BF16) c->row = part(mem, &at, (size_t)imax(h->K, h->V));
    if (h->pairs) {
        const size_t most = LD * (size_t)imax(LD, imax(h->K, h->V));
        c->pa = pairs_part(mem, &at, most / 2), c->pb = pairs_part(mem, &at, most / 2);
        c->pu = pairs_part(mem, &at, v / 2), c->ps = pairs_part(mem, &at, K * V / 2);
    }
    return at;
}
static size_t chunk_grad_place(ChunkGrad *g, const Head *h, real *mem) {
    size_t K = (size_t)h->K, V = (size_t)h->V, k = LD * K, v = LD * V, n = LD * LD, at = 0;
    *g = (ChunkGrad){0};
    g->dq = part(mem, &at, k), g->dk = part(mem, &at, k), g->y = part(mem, &at, k);
    g->derase = present(h->erase) ? part(mem, &at, k) : g->dk;
    g->du = part(mem, &at, v), g->nr = part(mem, &at, v);
    g->dp = part(mem, &at, n), g->dl = part(mem, &at, n);
    if (h->per_channel) {
        g->col = part(mem, &at, k), g->ye = part(mem, &at, k), g->end = part(mem, &at, K);
        g->f = part(mem, &at, k);
    }
    if (h->pairs) {
        g->pr = pairs_part(mem, &at, v / 2);
        g->do_pairs[0] = pairs_part(mem, &at, v / 2), g->do_pairs[1] = pairs_part(mem, &at, v / 2);
        return at;
    }
    g->ut = part(mem, &at, v), g->st = part(mem, &at, K * V);
    if (h->v.dtype == BF16) g->dout = part(mem, &at, v);
    return at;
}

INLINE void times(real *restrict y, const real *restrict x, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] *= x[i];
}
INLINE void product(real *restrict y, const real *restrict a, const real *restrict b, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = a[i] * b[i];
}
INLINE void axpy(real *restrict y, real a, const real *restrict x, int n) {
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] += a * x[i];
}
static void ahead_row(Ahead *a, const void *at, size_t step, size_t bytes) {
    CHECK(a->n < STREAMS, "too many streams");
    a->s[a->n].at = at, a->s[a->n].step = step, a->s[a->n++].bytes = bytes;
}
/* Rows of n elements from element `at` on, ld apart; nothing if x is absent. */
static void ahead_rows(Ahead *a, Tensor x, size_t at, size_t ld, int n) {
    const size_t each = dtype_size(x.dtype);
    if (present(x)) ahead_row(a, (const char *)x.p + at * each, ld * each, (size_t)n * each);
}
/* Prefetch what a product of `work` multiplications pays for. */
static void ahead_go(Ahead *a, int work) {
    for (int lines = work / LINE_WORK; lines > 0 && a->n && a->row < a->rows;) {
        const size_t bytes = a->s[a->next].bytes;
        const char *p = a->s[a->next].at + (size_t)a->row * a->s[a->next].step;
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
        lines -= (int)((bytes + 63) / 64);
        if (++a->next == a->n) a->next = 0, a->row++;
    }
}
static void fill(real *y, real a, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a;
}

/* y (cols,rows) = x (rows,cols)^T, in stripes whose cache lines stay in the first-level cache. */
static void transpose(real *restrict y, size_t ldy, const real *restrict x, size_t ldx, int rows, int cols) {
    for (int i0 = 0; i0 < rows; i0 += SUB) {
        int m = imin(SUB, rows - i0), j = 0;
#if defined(__AVX512F__) && !defined(KV_DOUBLE)
        for (; m == W && j + W <= cols; j += W) {
            __m512i r[W];
            for (int i = 0; i < W; i++) r[i] = _mm512_loadu_si512(x + (size_t)(i0 + i) * ldx + j);
            turn_registers(r);
            for (int i = 0; i < W; i++) _mm512_storeu_si512(y + (size_t)(j + i) * ldy + i0, r[i]);
        }
#endif
        for (; j < cols; j++)
            for (int i = 0; i < m; i++) y[(size_t)j * ldy + (size_t)(i0 + i)] = x[(size_t)(i0 + i) * ldx + (size_t)j];
    }
}

/* Operands; room is used with pairs. left_rows: x (M,K); left_columns: x (K,M), transposed; right_rows: x (K,N). */
static Left left_rows(const Chunk *c, Pair *room, const real *x, size_t ld, int M, int K) {
    const int pairs = (K + 1) / 2;
    if (!c->h->pairs) return (Left){.x = x, .row = ld, .step = 1};
    for (int i = 0; i < M; i++) pack_row(room + i * pairs, x + (size_t)i * ld, pairs, K % 2);
    return (Left){x, ld, 1, room, (size_t)pairs, 1};
}
static Left left_columns(const Chunk *c, Pair *room, const real *x, size_t ld, int M, int K) {
    const int across = (M + W - 1) / W * W;
    if (!c->h->pairs) return (Left){.x = x, .row = 1, .step = ld};
    for (int k = 0; k < K; k += 2) {
        const real *even = x + (size_t)k * ld, *odd = k + 1 < K ? even + ld : NULL;
        for (int i = 0; i < M; i += W)
            pack_columns(room + k / 2 * across + i, even + i, odd ? odd + i : NULL, imin(W, M - i));
    }
    return (Left){x, 1, ld, room, 1, (size_t)across};
}
static Right right_rows(const Chunk *c, Pair *room, const real *x, size_t ld, int K, int N) {
    if (!c->h->pairs) return (Right){.x = x, .ld = ld};
    for (int k = 0; k < K; k += 2) {
        const real *even = x + (size_t)k * ld, *odd = k + 1 < K ? even + ld : NULL;
        for (int j = 0; j < N; j += W) pack_columns(room + k / 2 * N + j, even + j, odd ? odd + j : NULL, W);
    }
    return (Right){x, ld, room, (size_t)N};
}
/* From row i on; from row k on, which is even. */
static Left left_from(Left a, int i) {
    return (Left){a.x + (size_t)i * a.row, a.row, a.step, a.p + (size_t)i * a.prow, a.prow, a.pstep};
}
static Right right_from(Right b, int k) {
    return (Right){b.x + (size_t)k * b.ld, b.ld, b.p + (size_t)(k / 2) * b.pld, b.pld};
}
/* C (M,N) = A (M,K) B (K,N), or += if `add`; with pairs N counts in whole vectors. */
static void chunk_mm(const Chunk *c, real *C, size_t ldc, Left a, Right b, int M, int K, int N, bool add) {
    if (c->h->pairs) {
        const int across = (N + W - 1) / W * W, rows = c->h->tiles ? LD : STRETCH, wide = c->h->tiles ? across : 4 * W;
        for (int j = 0; K && j < across; j += wide)
            for (int i = 0; i < M; i += rows) {
                const int m = imin(rows, M - i), n = imin(wide, across - j);
                pairs_mm(c->h->tiles, C + (size_t)i * ldc + j, ldc, a.p + (size_t)i * a.prow, a.prow, a.pstep, b.p + j,
                         b.pld, m, (K + 1) / 2, n, add);
                ahead_go(c->ahead, m * K * n);
            }
        return;
    }
    for (int i = 0; !add && i < M; i++) memset(C + (size_t)i * ldc, 0, (size_t)N * sizeof(real));
    tile_mm(C, ldc, a.x, a.row, a.step, b.x, b.ld, M, K, N);
    ahead_go(c->ahead, M * K * N);
}

/* The right operand x^T of x (N,K), K even with pairs; room or to is used. With pairs, columns
 * past N are 0 up to whole vectors. */
static Right right_turned(const Chunk *c, Pair *room, real *to, const real *x, size_t ld, int N, int K) {
    const int across = (N + W - 1) / W * W;
    if (!c->h->pairs) {
        transpose(to, (size_t)N, x, ld, N, K);
        return (Right){.x = to, .ld = (size_t)N};
    }
    for (int j = 0; j < N; j += W)
        for (int k = 0; k < K / 2; k += W) {
            Pair rows[W][W] __attribute__((aligned(64))), out[W * W] __attribute__((aligned(64)));
            const int n = imin(W, N - j), some = imin(W, K / 2 - k);
            if (n < W || some < W) memset(rows, 0, sizeof rows);
            for (int i = 0; i < n; i++) pack_row(rows[i], x + (size_t)(j + i) * ld + 2 * k, some, false);
            if (some == W) {
                turn(room + k * across + j, (size_t)across, rows);
                continue;
            }
            turn(out, W, rows);
            for (int i = 0; i < some; i++) memcpy(room + (k + i) * across + j, out + i * W, W * sizeof *out);
        }
    return (Right){.p = room, .pld = (size_t)across};
}

/* Add a x to n elements of y from element `at` on. room: space for n elements, used if y is BF16. */
INLINE void grad_row(Into y, size_t at, real a, const real *restrict x, int n, real *room) {
    real *restrict sum = run_write(y.t, at, room);
    if (y.overwrite) {
#pragma omp simd
        for (int i = 0; i < n; i++) sum[i] = a * x[i];
    } else {
        run_of(y.t, at, (size_t)n, room);
        axpy(sum, a, x, n);
    }
    run_done(y.t, at, (size_t)n, sum);
}
