#include "comm_pieces.h"

enum { LINE = 64, BLOCK = 512 };

Pieces pieces_of(const CommCall *c, int world, size_t room) {
    Pieces s = {.call = *c, .world = world, .size = dtype_size(c->dtype), .chunks = 1};
    s.in = c->kind == COMM_REDUCE || c->kind == COMM_REDUCE_SCATTER;
    s.out = c->kind != COMM_REDUCE_SCATTER && c->kind != COMM_BARRIER;
    CHECK(room >= (size_t)world * LINE, "%zu bytes for %d ranks", room, world);
    /* Pieces begin on cache lines, so that no two ranks write to one. */
    s.room = room / s.size;
    if (c->kind != COMM_BROADCAST) s.room = room / (size_t)world / LINE * LINE / s.size;
    size_t step = c->kind == COMM_REDUCE ? s.room * (size_t)world : s.room;
    if (c->kind != COMM_BARRIER && c->count) s.chunks = (c->count + step - 1) / step;
    return s;
}

Piece piece(const Pieces *s, size_t k, int p) {
    const CommCall *c = &s->call;
    size_t W = (size_t)s->world, at = 0, n = 0, stage = 0;
    switch (c->kind) {
    case COMM_REDUCE: {
        size_t first = k * s->room * W, all = zmin(s->room * W, c->count - first), line = LINE / s->size;
        size_t each = ((all + W - 1) / W + line - 1) / line * line;
        at = first + zmin(all, (size_t)p * each);
        n = zmin(each, first + all - at);
        stage = (size_t)p * each;
        break;
    }
    case COMM_REDUCE_SCATTER:
    case COMM_GATHER:
        at = (size_t)p * c->count + k * s->room;
        n = zmin(s->room, c->count - k * s->room);
        stage = (size_t)p * s->room;
        break;
    case COMM_BROADCAST:
        at = k * s->room;
        n = p == c->root ? zmin(s->room, c->count - at) : 0;
        break;
    case COMM_BARRIER: break;
    }
    return (Piece){c->buf ? (char *)c->buf + at * s->size : NULL, at, n, n * s->size, stage * s->size};
}

/* Blocks stay in the first cache while rank after rank is added. */
#define SUM(T, A, load, store)                                                       \
    for (size_t at = 0; at < n; at += BLOCK) {                                       \
        size_t m = zmin(BLOCK, n - at);                                              \
        A acc[BLOCK];                                                                \
        const T *x = (const T *)src[0] + at;                                         \
        T *y = (T *)dst + at;                                                        \
        for (size_t i = 0; i < m; i++) acc[i] = load(x[i]);                          \
        for (int q = 1; q < world; q++) {                                            \
            x = (const T *)src[q] + at;                                              \
            _Pragma("omp simd") for (size_t i = 0; i < m; i++) acc[i] += load(x[i]); \
        }                                                                            \
        for (size_t i = 0; i < m; i++) y[i] = store(acc[i]);                         \
    }

void comm_sum(void *dst, const void *const src[], int world, size_t n, Dtype dt) {
    switch (dt) {
    case F64: SUM(double, double, , ); break;
    case F32: SUM(float, float, , ); break;
    case BF16: SUM(uint16_t, float, bf16_to, bf16_from); break;
    default: CHECK(false, "%s", dtype_name(dt));
    }
}
