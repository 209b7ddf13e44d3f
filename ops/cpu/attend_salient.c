/* attend_salient.c: attention over blocks whose rows have `bits` or salient_bits (ops/salient.h); attend_lanes.c
 * includes it before attend_blocks.c. Keys are decoded and multiplied in stored order; of the scores alone the order is
 * changed to that of rows (tile_absorb). */
#include "ops/salient.h"

/* n elements of a group. Each call has its bits as a constant. */
INLINE void salient_each(real *to, int bits, const uint32_t *group, int n) {
    for (int k = 0; k < n; k++) to[k] = (real)packed_number(*group, packed_read(group + 1, bits, n, k));
}
#ifndef KV_DOUBLE
/* Whole vectors: up to VL - 1 numbers after the last are written, too, and up to two words after the codes are read. */
INLINE void salient_vectors(real *to, int bits, const uint32_t *group, int n) {
    const int low = packed_low(bits);
    const char *codes = (const char *)(group + 1), *upper = codes + 4 * packed_words(low, n);
    const float scale = packed_float(*group << 16), zero = (float)(int16_t)(*group >> 16);
    const CodeTable t = direct_table(bits, (Vec){0} + scale, (Vec){0} + scale * zero);
    for (int k = 0; k < n; k += VL) {
        Word code = direct_fields(codes, low, k);
        if (bits == 3) code = (code & 3) | direct_fields(upper, 1, k) << 2;
        *(Vec *)(to + k) = direct_number(bits, t, code);
    }
}
#else
INLINE void salient_vectors(real *to, int bits, const uint32_t *group, int n) { salient_each(to, bits, group, n); }
#endif
/* spill: there is room after the numbers and after the codes. */
static void salient_group(real *to, int bits, const void *group, int n, bool spill) {
    if (n % VL && !spill) {
        salient_each(to, bits, group, n);
        return;
    }
    if (bits == 4) salient_vectors(to, 4, group, n);
    if (bits == 3) salient_vectors(to, 3, group, n);
    if (bits == 2) salient_vectors(to, 2, group, n);
}
/* Keys of a block in stored order (Dk,KB). What one group writes after its numbers the next overwrites. */
static void salient_keys(real *to, const SalientShape *s, const char *block, int Dk) {
    const char *group = block + s->keys;
    for (int k = 0; k < Dk; k++, to += KB)
        for (int i = 0; i < 2; group += s->key[i++])
            if (s->n[i]) salient_group(to + i * s->n[0], s->bits[i], group, s->n[i], k + 1 < Dk);
}
/* Values of n rows with these places, (n,Dv). */
static void salient_values(real *to, const SalientShape *s, const char *block, const uint8_t *place, int Dv, int n) {
    for (int j = 0; j < n; j++, to += Dv) {
        salient_group(to, s->bits[place[j] >= s->n[0]], block + salient_value(s, place[j]), Dv, false);
        for (int d = 0; d < Dv; d++) to[d] = (real)(salient_scale(s, block, d) * (float)to[d]);
    }
}
static void salient_rows_of(const Lanes *t, const char *block, int at, int n, real *keys, real *values, real *room) {
    const int Dk = t->s.kdim, Dv = t->s.alias ? 0 : t->s.vdim;
    const SalientShape s = salient_shape(t->s.codec, Dk, Dv);
    uint8_t place[SALIENT_ROWS];
    salient_places(&s, block, place);
    salient_keys(room, &s, block, Dk);
    for (int j = 0; j < n; j++)
        for (int k = 0; k < Dk; k++) keys[j * Dk + k] = room[k * KB + place[at + j]];
    if (values && Dv) salient_values(values, &s, block, place + at, Dv, n);
}
/* A block's keys, in stored order, to k->kt, the places of its rows to `place`; returns the values of n rows from `at`
 * on, in `room`. */
static const real *salient_tile(const Block *k, const Lanes *t, const char *block, int at, int n,
                                uint8_t place[SALIENT_ROWS], real *room) {
    const SalientShape s = salient_shape(t->s.codec, k->Dk, t->s.alias ? 0 : k->Dv);
    salient_places(&s, block, place);
    salient_keys(k->kt, &s, block, k->Dk);
    if (t->s.alias)
        values_of_keys(k, room, at, place, n);
    else
        salient_values(room, &s, block, place + at, k->Dv, n);
    return room;
}
