/* salient.h: blocks in which some rows have more bits than the others (RowCodec.salient_bits), as
 * layers/cache/zipcache.c writes them and the CPU's kernels read them.
 *
 * The salient rows are the same for keys and values: share * rows of them, rounded. `Stored order` is the salient rows,
 * then the others, both as they follow in the block. A block is, in words of 4 bytes:
 *   which rows are salient: a bit for each, from the lowest of the first word on; 2 words
 *   keys: for each element a group (packed.h) of the salient rows in salient_bits, then one of the others in `bits`
 *   unless values are part of keys, a scale of each of their elements (bf16, two to a word, the first in the lower
 *     half), then for each row in stored order a group of its whole value, in the row's bits
 * An element of a value is its scale times what its code says. A group without rows has no bytes. */
#pragma once
#include "run.h"
#include "packed.h"

enum { SALIENT_ROWS = 64, SALIENT_MASK = 8 };
typedef struct {
    int bits[2], n[2];              /* of salient rows, and of the others: bits of a code, rows */
    size_t key[2], value[2];        /* bytes of a group of an element of keys, and of a value */
    size_t keys, scales, values[2]; /* where these begin, in bytes */
    size_t bytes;
} SalientShape;
static inline size_t salient_group_bytes(int bits, int n) { return n ? packed_group_bytes(bits, n) : 0; }
static inline SalientShape salient_shape(const RowCodec *c, int kdim, int vdim) {
    SalientShape s = {.bits = {c->salient_bits, c->bits}, .keys = SALIENT_MASK};
    s.n[0] = (int)(c->share * SALIENT_ROWS + 0.5), s.n[1] = SALIENT_ROWS - s.n[0];
    for (int i = 0; i < 2; i++) {
        s.key[i] = salient_group_bytes(s.bits[i], s.n[i]);
        s.value[i] = salient_group_bytes(s.bits[i], vdim);
    }
    s.scales = s.keys + (size_t)kdim * (s.key[0] + s.key[1]);
    s.values[0] = s.scales + (size_t)(vdim + 1) / 2 * 4;
    s.values[1] = s.values[0] + (size_t)s.n[0] * s.value[0];
    s.bytes = s.values[1] + (size_t)s.n[1] * s.value[1];
    return s;
}
/* place[j]: of row j in stored order. A block from a damaged file has another count of bits: each row gets a place of
 * its own all the same. */
static inline void salient_places(const SalientShape *s, const void *block, uint8_t place[SALIENT_ROWS]) {
    uint32_t mask[SALIENT_ROWS / 32];
    int met[2] = {0};
    memcpy(mask, block, sizeof mask);
    for (int j = 0; j < SALIENT_ROWS; j++) {
        const bool bit = mask[j / 32] >> j % 32 & 1;
        const int class = met[1] == s->n[1] || (bit && met[0] < s->n[0]) ? 0 : 1;
        place[j] = (uint8_t)((class ? s->n[0] : 0) + met[class]++);
    }
}
/* The group of the value with this place. */
static inline size_t salient_value(const SalientShape *s, int place) {
    const int class = place >= s->n[0];
    return s->values[class] + (size_t)(place - class * s->n[0]) * s->value[class];
}
static inline float salient_scale(const SalientShape *s, const char *block, int k) {
    uint16_t x;
    memcpy(&x, block + s->scales + 2 * (size_t)k, sizeof x);
    return packed_float((uint32_t)x << 16);
}
/* Which of a block's probes the query of a position is; -1: none. Half of the probes, rounded up, are the newest
 * queries of the block; the others are drawn from those before them, by the block's number. */
static inline int salient_probe(const RowCodec *c, int pos) {
    const int place = pos % SALIENT_ROWS, drawn = c->probes / 2, older = SALIENT_ROWS - (c->probes - drawn);
    const uint64_t key = rng_mix(0x5A11E47u, (uint64_t)(pos / SALIENT_ROWS));
    int rank = 0;
    if (place >= older) return drawn + place - older;
    const uint64_t own = rng_mix(key, (uint64_t)place);
    for (int j = 0; j < older && rank < drawn; j++) rank += rng_mix(key, (uint64_t)j) < own;
    return rank < drawn ? rank : -1;
}
