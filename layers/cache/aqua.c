/* aqua.c: rows as residuals of what the layer below predicts: see aqua.h. Residuals are mixed within a head and stored
 * in codes of pairs of elements, as the paper does (HIGGS, pairs.c), or in packed codes. */
#include "aqua.h"
#include "basis.h"
#include "codec.h"
#include "slot.h"

static size_t aqua_bytes(const RowCodec *c, int width) {
    return c->pairs ? codec_pairs_bytes(c, width) : codec_packed_bytes(c, width);
}
static void aqua_encode(const RowCodec *c, void *part, const real *from, int width) {
    (c->pairs ? codec_pairs_encode : codec_packed_encode)(c, part, from, width);
}
static void aqua_decode(const RowCodec *c, real *to, const void *part, int width) {
    (c->pairs ? codec_pairs_decode : codec_packed_decode)(c, to, part, width);
}
static size_t aqua_block_bytes(const RowCodec *c, int kdim, int vdim) {
    return (size_t)c->block * (aqua_bytes(c, kdim) + aqua_bytes(c, vdim));
}
void codec_aqua_recent(RowCodec *c, int rows) {
    c->block = rows;
    c->as = rows ? ROWS_REAL : ROWS_CODED;
    c->bytes = rows ? codec_f32_bytes : aqua_bytes;
    c->encode = rows ? codec_f32_encode : aqua_encode;
    c->decode = rows ? codec_f32_decode : aqua_decode;
    c->block_bytes = rows ? aqua_block_bytes : NULL;
}
const RowCodec codec_aqua = {.name = "aqua",
                             .meaning = "as residuals of what the layer below predicts by a calibrated matrix, in 4, 3 "
                                        "or 2 bits",
                             .as = ROWS_CODED,
                             .bytes = aqua_bytes,
                             .encode = aqua_encode,
                             .decode = aqua_decode,
                             .bits = 4,
                             .group = 32,
                             .predicts = true,
                             .pairs = true};

/* Signs of elements, the same for all parts: those of pairs are drawn, a bit for each, 64 from one word. */
enum { AQUA_SIGNS = 0xA90A };
static void residual_signs(real *x, int width) {
    for (int at = 0; at < width; at += 64) {
        const uint64_t minus = rng_mix(AQUA_SIGNS, (uint64_t)(at / 64));
        for (int k = at; k < imin(at + 64, width); k++) x[k] = minus >> (k - at) & 1 ? -x[k] : x[k];
    }
}
/* As Ops.hadamard, for one part, so that rows of any pass and of history are mixed by the same instructions. */
static void residual_hadamard(real *x, int width) {
    const int n = hadamard_width(width);
    const real share = (real)(1 / sqrt((double)n));
    for (int at = 0; at < width; at += n) {
        real *y = x + at;
        for (int h = 1; h < n; h *= 2)
            for (int i = 0; i < n; i += 2 * h)
                for (int k = i; k < i + h; k++) {
                    const real a = y[k], b = y[k + h];
                    y[k] = a + b, y[k + h] = a - b;
                }
        for (int k = 0; k < n; k++) y[k] *= share;
    }
}
static void residual_mix(const RowCodec *c, real *x, int width) {
    if (c->pairs) residual_signs(x, width);
    residual_hadamard(x, width);
}
static void residual_back(const RowCodec *c, real *x, int width) {
    residual_hadamard(x, width);
    if (c->pairs) residual_signs(x, width);
}
void aqua_recode(const RowCodec *c, real *x, real *code, int width) {
    uint32_t part[BASIS_WIDEST];
    CHECK(width <= BASIS_WIDEST && aqua_bytes(c, width) <= sizeof part, "a part of %d elements", width);
    residual_mix(c, x, width);
    aqua_encode(c, part, x, width);
    aqua_decode(c, code, part, width);
    memcpy(x, code, (size_t)width * sizeof *x);
    residual_back(c, x, width);
}

/* ---- rows that are made from residuals ---------------------------------------------------------------------------*/

/* Rows of all positions as `real`s, of the slot `now` of the chain; -1: of none. A row of a lane lies where its number
 * says: tables do not change. */
struct Chain {
    int n, now;
    Slot **slot; /* (n) */
    Lanes dense;
};

enum { PIECE_ROWS = 128, PIECE_ALONE = 20000, CHAIN_PAGE = 64, CHAIN_BLOCK_MOST = 128 };
/* Rows `first`..first+n-1 of a pass, or of a sequence of the slot, whose lane 0 this is. */
typedef struct {
    Run *r;
    const KvShape *s;
    const RowBasis *b;
    const Kv *pass;       /* rows as computed, which become what is read back; NULL: those of the slot */
    const int *pos;       /* of a pass: their positions, */
    const real *below[2]; /* and the rows below: keys, values */
    const Slot *slot;
    Lanes *dense;
    int lane, first, n;
} Piece;
/* Room for the rows of a piece: what keys and values are predicted from, and what is predicted. */
typedef struct {
    Tensor key_in, value_in, made;
} Room;
static Room piece_room(Run *r, const KvShape *s) {
    const int K = s->lanes * s->kdim, V = s->lanes * s->vdim;
    return (Room){SCRATCH(r, "rows below", PIECE_ROWS, K),
                  SCRATCH(r, "what values are predicted from", PIECE_ROWS, K + V),
                  SCRATCH(r, "predicted rows", PIECE_ROWS, imax(K, V))};
}
static int piece_width(const Piece *p, bool value) { return value ? p->s->vdim : p->s->kdim; }
static size_t pass_at(const Piece *p, bool value, int j, int h) {
    return ((size_t)(p->first + j) * (size_t)p->s->lanes + (size_t)h) * (size_t)piece_width(p, value);
}
/* Where a part of row j is, or comes to be. */
static real *piece_part(const Piece *p, bool value, int j, int h) {
    if (p->pass) return R(value ? p->pass->v : p->pass->k) + pass_at(p, value, j, h);
    const Lanes *t = p->dense;
    const int row = p->first + j;
    const size_t P = (size_t)t->P, kdim = (size_t)t->s.kdim, vdim = (size_t)t->s.vdim,
                 page = (size_t)(p->lane + h) * (size_t)t->maxpages + (size_t)(row / t->P % t->maxpages);
    real *at = R(t->data) + page * P * (kdim + vdim);
    return value ? at + P * kdim + (size_t)(row % t->P) * vdim : at + (size_t)(row % t->P) * kdim;
}
/* The same of the row below: of history it lies where the row comes to be. */
static const real *piece_below(const Piece *p, bool value, int j, int h) {
    return p->pass ? p->below[value] + pass_at(p, value, j, h) : piece_part(p, value, j, h);
}
static int piece_pos(const Piece *p, int j) {
    return p->pass ? p->pos[p->first + j] : p->slot->t.pos[slot_place_of(p->slot, p->lane, p->first + j)];
}
/* What is stored of a part of row j of the slot. */
static const void *piece_code(const Piece *p, bool value, int j, int h) {
    const Slot *s = p->slot;
    const size_t at = slot_place_of(s, p->lane + h, p->first + j), P = (size_t)s->t.P;
    if (!rows_together(p->s)) return (const char *)s->t.data.p + (value ? slot_value(s, at) : slot_key(s, at));
    const RowCodec *c = p->s->codec;
    const size_t keys = P * aqua_bytes(c, p->s->kdim), each = aqua_bytes(c, piece_width(p, value));
    return lanes_block(&s->t, (int)(at / P)) + (value ? keys : 0) + at % P * each;
}
/* made (n, lanes width) becomes what is predicted from x. */
static void piece_predict(const Piece *p, Tensor made, Tensor x, bool value) {
    const PartBasis *b = &p->b->part[value];
    const int out = p->s->lanes * b->width;
    const Tensor y = TENSOR(made.p, REAL, p->n, out), bias = TENSOR(b->bias, REAL, out);
    if (b->inputs)
        p->r->ops->linear_invariant(p->r, y, TENSOR(x.p, REAL, p->n, b->inputs),
                                    TENSOR(b->weight, REAL, out, b->inputs), bias);
    else if (!measuring(p->r))
        for (int j = 0; j < p->n; j++) memcpy(R(y) + (size_t)j * (size_t)out, b->bias, (size_t)out * sizeof(real));
}
/* A prediction becomes the part of row j; of a pass the residual of what lies there is what is stored. */
static void piece_add(const Piece *p, real *made, bool value, int j, int h, int pos) {
    const int width = piece_width(p, value);
    const RowCodec *c = p->s->codec;
    real x[BASIS_WIDEST];
    if (p->pass) {
        real *part = piece_part(p, value, j, h);
        if (!value) basis_turn(p->b, part, pos, -1);
        for (int k = 0; k < width; k++) x[k] = part[k] - made[k];
        aqua_recode(c, x, R(p->pass->coef[value]) + pass_at(p, value, j, h), width);
    } else {
        aqua_decode(c, x, piece_code(p, value, j, h), width);
        residual_back(c, x, width);
    }
    for (int k = 0; k < width; k++) made[k] += x[k];
}
static void piece_keys(const Piece *p, Room room) {
    const int lanes = p->s->lanes, kdim = p->s->kdim, vdim = p->s->vdim, inputs = p->b->part[1].inputs;
    const size_t K = (size_t)(lanes * kdim);
    const RowBasis *below = p->b->below;
#pragma omp parallel for schedule(static) num_threads(device_threads(p->r->dev)) if ((size_t)p->n * K > PIECE_ALONE)
    for (int j = 0; j < p->n; j++)
        for (int h = 0; h < lanes && below; h++) {
            real *key = R(room.key_in) + (size_t)j * K + (size_t)(h * kdim),
                 *value = R(room.value_in) + (size_t)j * (size_t)inputs + K + (size_t)(h * vdim);
            memcpy(key, piece_below(p, false, j, h), (size_t)kdim * sizeof *key);
            memcpy(value, piece_below(p, true, j, h), (size_t)vdim * sizeof *value);
            basis_turn(below, key, piece_pos(p, j), -1);
        }
    piece_predict(p, room.made, room.key_in, false);
#pragma omp parallel for schedule(static) num_threads(device_threads(p->r->dev)) if ((size_t)p->n * K > PIECE_ALONE)
    for (int j = 0; j < p->n; j++)
        for (int h = 0; h < lanes; h++) {
            const int pos = piece_pos(p, j);
            const size_t bytes = (size_t)kdim * sizeof(real);
            real *made = R(room.made) + (size_t)j * K + (size_t)(h * kdim), *part = piece_part(p, false, j, h);
            piece_add(p, made, false, j, h, pos);
            memcpy(R(room.value_in) + (size_t)j * (size_t)inputs + (size_t)(h * kdim), made, bytes);
            memcpy(part, made, bytes);
            basis_turn(p->b, part, pos, 1);
        }
}
static void piece_values(const Piece *p, Room room) {
    const int lanes = p->s->lanes, vdim = p->s->vdim;
    const size_t V = (size_t)(lanes * vdim);
    piece_predict(p, room.made, room.value_in, true);
#pragma omp parallel for schedule(static) num_threads(device_threads(p->r->dev)) if ((size_t)p->n * V > PIECE_ALONE)
    for (int j = 0; j < p->n; j++)
        for (int h = 0; h < lanes; h++) {
            real *made = R(room.made) + (size_t)j * V + (size_t)(h * vdim);
            piece_add(p, made, true, j, h, 0);
            memcpy(piece_part(p, true, j, h), made, (size_t)vdim * sizeof *made);
        }
}
/* Rows first..end-1, a piece at a time; while measuring one piece, which is as large as any. */
static void pieces(Piece p, int end) {
    const Mark mark = arena_mark(p.r->scratch);
    const Room room = piece_room(p.r, p.s);
    const int ends = measuring(p.r) ? p.first + 1 : end;
    for (; p.first < ends; p.first += p.n) {
        p.n = measuring(p.r) ? PIECE_ROWS : imin(PIECE_ROWS, end - p.first);
        if (measuring(p.r)) {
            piece_predict(&p, room.made, room.key_in, false);
            piece_predict(&p, room.made, room.value_in, true);
            continue;
        }
        piece_keys(&p, room);
        piece_values(&p, room);
    }
    arena_release(p.r->scratch, mark);
}

void aqua_settle(Run *r, const Kv *made) {
    const Batch *b = r->batch;
    CHECK(present(r->below[0]) && r->in.n == b->N, "%d rows of %d, or nowhere to keep them", r->in.n, b->N);
    pieces((Piece){.r = r,
                   .s = &made->s,
                   .b = made->s.basis,
                   .pass = made,
                   .pos = b->pos,
                   .below = {R(r->below[0]), R(r->below[1])}},
           b->N);
    r->ops->copy(r, r->below[0], made->k);
    r->ops->copy(r, r->below[1], made->v);
}

/* ---- history -----------------------------------------------------------------------------------------------------*/

Chain *chain_make(Slot *slots, int nslots) {
    Chain *c = xcalloc(1, sizeof *c);
    c->slot = xcalloc((size_t)nslots + 1, sizeof *c->slot);
    for (int i = 0; i < nslots; i++) {
        Slot *s = &slots[i];
        if (!basis_predicts(s->t.s.basis)) continue;
        const Lanes *a = &s->t, *b = &slots[c->n ? c->slot[0] - slots : i].t;
        CHECK(!s->dev && !s->ranks && !s->chosen && !s->policy.read && !a->s.window && !a->s.evicts && !a->s.alias,
              "slot %d of rows that are predicted", i);
        CHECK(a->P == b->P && a->maxpages == b->maxpages && a->s.lanes == b->s.lanes && a->s.kdim == b->s.kdim &&
                  a->s.vdim == b->s.vdim,
              "slot %d has another shape", i);
        s->chain = c, s->link = c->n;
        c->slot[c->n++] = s;
    }
    if (c->n) {
        c->dense = c->slot[0]->t;
        c->dense.s.codec = NULL, c->dense.s.basis = NULL, c->dense.nblocks = 0;
        if (rows_together(&c->slot[0]->t.s)) { /* kernels read pages of so many rows at most */
            c->dense.P = CHAIN_PAGE;
            c->dense.maxpages *= c->slot[0]->t.P / CHAIN_PAGE;
        }
        c->dense.npages = c->dense.nseq * c->dense.s.lanes * c->dense.maxpages;
        return c;
    }
    chain_free(c);
    return NULL;
}
void chain_free(Chain *c) {
    if (!c) return;
    free(c->slot);
    free(c);
}
void chain_place(Chain *c, Arena *a) {
    Lanes *t = &c->dense;
    const size_t P = (size_t)t->P, pages = (size_t)t->npages, page = P * (size_t)(t->s.kdim + t->s.vdim);
    CHECK(page <= INT32_MAX, "pages of %zu elements", page);
    t->data = arena_tensor(a, "rows of one layer", REAL, 2, (int[]){t->npages, (int)page});
    t->pos = arena_take(a, pages * P * sizeof *t->pos, "positions of these rows");
    t->table = arena_take(a, pages * sizeof *t->table, "table of these rows");
}
void chain_clear(Chain *c) {
    for (int i = 0; i < c->dense.npages; i++) c->dense.table[i] = i;
    c->now = -1;
}
void chain_begin(Chain *c) { c->now = -1; }
size_t chain_bytes(const Chain *c, int seq) {
    const Lanes *t = &c->slot[0]->t;
    const int lane = seq * t->s.lanes;
    return (size_t)(t->hi[lane] - t->lo[lane]) * aqua_token_bytes(&t->s);
}
/* Rows that wait for a block, as they were computed. */
static void chain_waiting(const Piece *p, int end) {
    for (int h = 0; h < p->s->lanes; h++)
        for (int row = p->first; row < end; row++) {
            const size_t at = slot_place_of(p->slot, p->lane + h, row);
            const char *data = p->slot->t.data.p;
            const int j = row - p->first;
            memcpy(piece_part(p, false, j, h), data + slot_key(p->slot, at), (size_t)p->s->kdim * sizeof(real));
            memcpy(piece_part(p, true, j, h), data + slot_value(p->slot, at), (size_t)p->s->vdim * sizeof(real));
        }
}
/* The rows of slot i in place of those of the slot before. */
static void chain_step(Run *r, Chain *c, int i) {
    const Slot *s = c->slot[i];
    const Batch *b = r->batch;
    Lanes *t = &c->dense;
    for (int q = 0; q < b->B; q++) {
        const int lane = b->seq[q] * t->s.lanes, lo = s->t.lo[lane], hi = s->t.hi[lane];
        if (b->off[q] == b->off[q + 1] || b->first[b->off[q]] >= 0) continue; /* no row looks back */
        for (int h = 0; h < t->s.lanes; h++) {
            CHECK(s->t.lo[lane + h] == lo && s->t.hi[lane + h] == hi && s->t.s0[lane + h] == lo, "rows of lane %d", h);
            for (int row = lo; row < hi && !i; row++) {
                const size_t page = (size_t)t->table[(lane + h) * t->maxpages + row / t->P % t->maxpages];
                t->pos[page * (size_t)t->P + (size_t)(row % t->P)] = s->t.pos[slot_place_of(s, lane + h, row)];
            }
        }
        Piece p = {.r = r, .s = &s->t.s, .b = s->t.s.basis, .slot = s, .dense = t, .lane = lane, .first = lo};
        const int coded = rows_together(p.s) ? blocks_waiting(s, lane) : hi;
        pieces(p, coded);
        p.first = coded;
        chain_waiting(&p, hi);
    }
    c->now = i;
}
const Lanes *chain_lanes(Run *r, const Slot *s) {
    Chain *c = s->chain;
    Lanes *t = &c->dense;
    if (measuring(r)) {
        pieces((Piece){.r = r, .s = &s->t.s, .b = s->t.s.basis}, PIECE_ROWS);
        return t;
    }
    if (c->now > s->link) c->now = -1; /* a layer that reads the rows of one further down */
    while (c->now < s->link) chain_step(r, c, c->now + 1);
    t->s0 = s->t.s0, t->lo = s->t.lo, t->hi = s->t.hi;
    return t;
}

/* ---- rows that become blocks -------------------------------------------------------------------------------------*/

/* Rows row..row+P-1 of a sequence, whose lane 0 this is, in one slot; `rows` is room for them. `below` has what is read
 * back of them in the slot below, and then in this one. */
static void chain_store_page(Run *r, Slot *s, int lane, int row, Kv *rows, real *const below[2]) {
    const KvShape *k = &s->t.s;
    const RowCodec *c = k->codec;
    const int P = s->t.P, lanes = k->lanes, width[2] = {k->kdim, k->vdim};
    real *const part[2] = {R(rows->k), R(rows->v)};
    int pos[CHAIN_BLOCK_MOST];
    for (int j = 0; j < P; j++)
        for (int h = 0; h < lanes; h++) {
            const size_t at = slot_place_of(s, lane + h, row + j), from[2] = {slot_key(s, at), slot_value(s, at)};
            pos[j] = s->t.pos[at];
            for (int i = 0; i < 2; i++)
                memcpy(part[i] + (size_t)(j * lanes + h) * (size_t)width[i], (const char *)s->t.data.p + from[i],
                       (size_t)width[i] * sizeof(real));
        }
    pieces((Piece){.r = r, .s = k, .b = k->basis, .pass = rows, .pos = pos, .below = {below[0], below[1]}}, P);
    for (int i = 0; i < 2; i++) memcpy(below[i], part[i], (size_t)(P * lanes * width[i]) * sizeof(real));
    for (int h = 0; h < lanes; h++) {
        const int block = slot_take_page(s, true);
        char *to = lanes_block(&s->t, block);
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < P; j++, to += aqua_bytes(c, width[i]))
                aqua_encode(c, to, R(rows->coef[i]) + (size_t)(j * lanes + h) * (size_t)width[i], width[i]);
        blocks_replace(s, lane + h, row, block, false);
    }
}
void chain_store(Run *r, Chain *c, const Batch *b, const int *accept) {
    const Slot *first = c->slot[0], *last = c->slot[c->n - 1];
    const KvShape *s = &first->t.s;
    const int P = rows_together(s);
    if (!P) return;
    CHECK(P <= CHAIN_BLOCK_MOST, "blocks of %d rows", P);
    const Mark mark = arena_mark(r->scratch);
    Kv rows = {.k = SCRATCH(r, "keys that become blocks", P, s->lanes, s->kdim),
               .v = SCRATCH(r, "values that become blocks", P, s->lanes, s->vdim)};
    rows.coef[0] = SCRATCH(r, "codes of keys", P, s->lanes, s->kdim);
    rows.coef[1] = SCRATCH(r, "codes of values", P, s->lanes, s->vdim);
    const Tensor below[2] = {SCRATCH(r, "keys of blocks below", P, s->lanes, s->kdim),
                             SCRATCH(r, "values of blocks below", P, s->lanes, s->vdim)};
    if (measuring(r)) pieces((Piece){.r = r, .s = s, .b = last->t.s.basis, .pass = &rows}, P);
    for (int q = 0; q < b->B && !measuring(r); q++) {
        const int to = accept ? b->off[q] + accept[q] : b->off[q + 1], lane = b->seq[q] * s->lanes,
                  hi = first->t.hi[lane];
        if (to == b->off[q] || hi % P || hi == first->t.s0[lane]) continue;
        if (*slot_entry(first, lane, hi - P) >= first->t.npages) continue;
        for (int i = 0; i < c->n; i++)
            chain_store_page(r, c->slot[i], lane, hi - P, &rows, (real *const[]){R(below[0]), R(below[1])});
    }
    arena_release(r->scratch, mark);
}
