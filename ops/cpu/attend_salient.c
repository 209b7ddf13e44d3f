/* attend_salient.c: attention over blocks whose rows have `bits` or salient_bits (ops/salient.h); attend_lanes.c
 * includes it before attend_blocks.c. Keys are decoded and multiplied in stored order; of the scores alone the order is
 * changed to that of rows. */
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
/* Rows in stored order to n of them from `at` on, as the block has them; to and from may be the same. */
static void salient_rows(real *to, const real *from, const uint8_t *place, int at, int n) {
    real x[KB];
    memcpy(x, from, sizeof x);
    for (int j = 0; j < n; j++) to[j] = x[place[at + j]];
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
/* As attend_block. Scores are of rows in stored order at first. */
static void attend_salient(Block *k, const Lanes *t, const char *block, int at, int row, int n, const int *pos,
                           const real *bias, real *room) {
    const int Dv = k->Dv;
    const SalientShape s = salient_shape(t->s.codec, k->Dk, t->s.alias ? 0 : Dv);
    uint8_t place[SALIENT_ROWS];
    salient_places(&s, block, place);
    salient_keys(k->kt, &s, block, k->Dk);
    memset(k->s, 0, (size_t)k->n * KB * sizeof(real));
    tile_mm(k->s, KB, k->q, (size_t)k->Dk, 1, k->kt, KB, k->n, k->Dk, KB);
    for (int i = 0; i < k->n; i++) salient_rows(k->s + i * KB, k->s + i * KB, place, at, n);
    if (!t->s.alias)
        salient_values(room, &s, block, place + at, Dv, n);
    else
        for (int j = 0; j < n; j++)
            for (int d = 0; d < Dv; d++) room[j * Dv + d] = k->kt[d * KB + place[at + j]];
    absorb(k, room, (size_t)Dv, NULL, pos, bias, row, n);
}
