/* attend_direct.c: attention over cached rows of bf16, int8, fp8 and packed codes for few entries, as in decoding;
 * attend_lanes.c includes it.
 *
 * Rows go from memory through registers into the sums; written out as `real`s first they would cost more than the
 * products. A row is read once for up to DIRECT entries. The sums of VL rows are added up together. The scale of an
 * int8 or fp8 part is multiplied once: into the score of a key, into the probability of a value. The double form, which
 * only checks gradients, has none of this. */
enum { DIRECT = 4 };
static bool direct(const Block *k, Read as) {
    return as != READ_REAL && as != READ_PART && k->n <= FEW_ENTRIES && k->Dk % VL == 0 && k->Dv % VL == 0;
}
#ifdef KV_DOUBLE
static void direct_scores(Block *b, Read as, Parts keys, int n, ptrdiff_t ahead) {
    (void)b, (void)as, (void)keys, (void)n, (void)ahead;
}
static void direct_values(Block *b, Read as, Parts values, int n, ptrdiff_t ahead) {
    (void)b, (void)as, (void)values, (void)n, (void)ahead;
}
static void direct_channels(Block *b, Read as, Parts keys, ptrdiff_t ahead) {
    (void)b, (void)as, (void)keys, (void)ahead;
}
static void direct_decoded(real *to, Read as, Parts parts, int n) { (void)to, (void)as, (void)parts, (void)n; }
#else
typedef uint16_t Bf16s __attribute__((vector_size(VBYTES / 2), aligned(2), may_alias));
typedef uint32_t Word __attribute__((vector_size(VBYTES), aligned(4), may_alias));
typedef uint8_t Codes __attribute__((vector_size(VBYTES / 4), aligned(1), may_alias));
typedef int8_t Bytes __attribute__((vector_size(VBYTES), aligned(1), may_alias));
typedef uint64_t Longs __attribute__((vector_size(VBYTES)));
typedef int32_t Whole __attribute__((vector_size(VBYTES), aligned(4), may_alias));
    #if VBYTES == 64
        #include <immintrin.h>
    #endif
/* Vectors of 32 elements, the shortest group; vectors of sums that registers have room for. */
enum { DIRECT_RUN = 32 / VL, DIRECT_SUMS = TILE_ROWS * TILE_VECS, DIRECT_SPOTS = 8 };
    /* Vectors of columns at once for so many entries: a power of 2. */
    #define DIRECT_VECS(entries)                                               \
        (DIRECT_RUN * (entries) <= DIRECT_SUMS       ? DIRECT_RUN              \
         : DIRECT_RUN * (entries) <= 2 * DIRECT_SUMS ? imax(1, DIRECT_RUN / 2) \
                                                     : imax(1, DIRECT_RUN / 4))

static bool direct_scaled(Read as) { return as == READ_INT8 || as == READ_FP8; }
static int direct_bits(Read as) { return as == READ_4 ? 4 : as == READ_3 ? 3 : as == READ_2 ? 2 : 0; }

INLINE Vec direct_bf16(const uint16_t *x) { return (Vec)(__builtin_convertvector(*(const Bf16s *)x, Word) << 16); }
/* VL bytes as the upper bytes of words. GCC 12 converts a vector of 8 or more bytes one byte at a time; it shuffles all
 * at once. */
INLINE Word direct_tops(const char *codes) {
    #if VBYTES >= 32
        #define FOUR(i) i, i, i, i
    uint64_t x[VL / 8];
    memcpy(x, codes, sizeof x);
        #if VBYTES == 64
    const Longs all = {x[0], x[0], x[0], x[0], x[1], x[1], x[1], x[1]};
        #else
    const Longs all = (Longs){0} + x[0];
        #endif
        /* 16 bytes from the same 16 */
        #if VBYTES == 64
    return (Word)__builtin_shufflevector((Bytes)all, (Bytes)all, FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(20), FOUR(21),
                                         FOUR(22), FOUR(23), FOUR(32), FOUR(33), FOUR(34), FOUR(35), FOUR(52), FOUR(53),
                                         FOUR(54), FOUR(55));
        #else
    return (Word)__builtin_shufflevector((Bytes)all, (Bytes)all, FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(20), FOUR(21),
                                         FOUR(22), FOUR(23));
        #endif
        #undef FOUR
    #else
    return __builtin_convertvector(*(const Codes *)codes, Word) << 24;
    #endif
}
INLINE Vec direct_int8(const char *codes) { return __builtin_convertvector((Whole)direct_tops(codes) >> 24, Vec); }
/* fp8_number of vectors. */
INLINE Vec direct_fp8(const char *codes) {
    const Word code = direct_tops(codes), size = code << 1 >> 25, tiny = (Word)(size < 8);
    const Vec x = (Vec)((size << 20) + (120u << 23) + (tiny & 1u << 23)) - (Vec)(tiny & 0x3c800000u);
    return (Vec)((Word)x | (code & 0x80000000u));
}
/* Codes k..k+VL-1 of `bits` each, as packed.h has them, in the lowest bits of words, with others above them: k is a
 * multiple of VL. */
INLINE Word direct_fields(const char *codes, int bits, int k) {
    static const uint32_t by4[16] = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28},
                          by2[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30},
                          by1[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const uint32_t *words = (const uint32_t *)codes + k * bits / 32;
    Word x = (Word){0} + words[0];
    #if VBYTES == 64
    if (bits * VL > 32) x = (Word)_mm512_mask_blend_epi32(0xff00, (__m512i)x, (__m512i)((Word){0} + words[1]));
    #else
    _Static_assert(4 * VL <= 32, "codes of a vector are in one word");
    #endif
    return x >> (*(const Word *)(bits == 4 ? by4 : bits == 2 ? by2 : by1) + (uint32_t)(k * bits % 32));
}
/* The numbers s (z + q) of a group for codes q with others above, exact however they are computed (packed.h). A vector
 * of 16 holds all of them, fewer than 16 several times, and a shuffle takes those that the lowest bits name; shorter
 * vectors are slower so, and have scale and zero for q s + z s. */
typedef struct {
    Vec low, high;
} CodeTable;
    #if VBYTES == 64
INLINE CodeTable direct_table(int bits, Vec scale, Vec zero) {
    static const float by4[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                       by3[16] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7},
                       by2[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
    return (CodeTable){*(const Vec *)(bits == 4 ? by4 : bits == 3 ? by3 : by2) * scale + zero, zero};
}
INLINE Vec direct_number(int bits, CodeTable t, Word code) {
    (void)bits;
    return (Vec)_mm512_permutexvar_ps((__m512i)code, (__m512)t.low);
}
    #else
INLINE CodeTable direct_table(int bits, Vec scale, Vec zero) {
    (void)bits;
    return (CodeTable){scale, zero};
}
INLINE Vec direct_number(int bits, CodeTable t, Word code) {
    return __builtin_convertvector((Whole)(code & ((1u << bits) - 1)), Vec) * t.low + t.high;
}
    #endif
/* Where elements c.. of a part begin. Packed parts: the bytes of their group's head, and of the lower and upper bits of
 * the 32 codes that c is one of; k: the place of c in those, in other parts c. */
typedef struct {
    size_t head, codes, upper;
    int k;
} Spot;
INLINE Spot direct_spot(Read as, const Parts *p, int c) {
    const int bits = direct_bits(as), low = packed_low(bits);
    if (!bits) return (Spot){.k = c};
    const int shift = __builtin_ctz((unsigned)p->group), at = c >> shift << shift, n = imin(p->group, p->width - at);
    const size_t head = (size_t)(c >> shift) * packed_group_bytes(bits, p->group), whole = (size_t)(c - at) / 32;
    return (Spot){head, head + PACKED_HEAD + 4 * whole * (size_t)low,
                  head + PACKED_HEAD + 4 * ((size_t)packed_words(low, n) + whole), (c - at) % 32};
}
/* `vecs` vectors of a part's elements, which a packed group holds all; those of one scale are not multiplied by it. */
INLINE void direct_load(Read as, Vec *x, int vecs, const char *part, Spot s) {
    const int bits = direct_bits(as), low = packed_low(bits);
    if (!bits) {
    #pragma GCC unroll 8
        for (int w = 0; w < vecs; w++)
            x[w] = as == READ_BF16  ? direct_bf16((const uint16_t *)part + s.k + w * VL)
                   : as == READ_FP8 ? direct_fp8(part + FP8_HEAD + s.k + w * VL)
                                    : direct_int8(part + INT8_HEAD + s.k + w * VL);
        return;
    }
    const int k = vecs == DIRECT_RUN ? 0 : s.k; /* 32 codes are whole words */
    const char *codes = part + s.codes, *upper = part + s.upper;
    Word both = (Word){0} + *(const uint32_t *)(part + s.head);
    #if VBYTES == 64
    __asm__("" : "+v"(both)); /* or GCC shifts the word first: two broadcasts of registers instead of one of memory */
    #endif
    const Vec scale = (Vec)(both << 16);
    const CodeTable table = direct_table(bits, scale, __builtin_convertvector((Whole)both >> 16, Vec) * scale);
    #pragma GCC unroll 8
    for (int w = 0; w < vecs; w++) {
        Word code = direct_fields(codes, low, k + w * VL);
        if (bits == 3) code = (code & 3) | direct_fields(upper, 1, k + w * VL) << 2;
        x[w] = direct_number(bits, table, code);
    }
}
INLINE float direct_scale(const char *part) {
    float scale;
    memcpy(&scale, part, sizeof scale);
    return scale;
}
/* The scales of `rows` parts, zeros for the others of a vector. */
INLINE Vec direct_scales(const Parts *p, int j, int rows) {
    real scale[VL] = {0};
    for (int t = 0; t < rows; t++) scale[t] = direct_scale(p->first + (size_t)(j + t) * p->ld);
    return *(const Vec *)scale;
}

    /* Sums of the elements of VL vectors, in their order: halves of pairs, then quarters of the pairs of these.
     * direct_foldN adds elements that are N apart. */
    #define DIRECT_FOLD(n, low, high)                                                        \
        INLINE Vec direct_fold##n(Vec a, Vec b) {                                            \
            return __builtin_shufflevector(a, b, low) + __builtin_shufflevector(a, b, high); \
        }
    #define DIRECT_LIST(...) __VA_ARGS__
    #if VBYTES == 64
DIRECT_FOLD(8, DIRECT_LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
            DIRECT_LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
DIRECT_FOLD(4, DIRECT_LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
            DIRECT_LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
DIRECT_FOLD(2, DIRECT_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
            DIRECT_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
DIRECT_FOLD(1, DIRECT_LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
            DIRECT_LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
    #elif VBYTES == 32
DIRECT_FOLD(4, DIRECT_LIST(0, 1, 2, 3, 8, 9, 10, 11), DIRECT_LIST(4, 5, 6, 7, 12, 13, 14, 15))
DIRECT_FOLD(2, DIRECT_LIST(0, 1, 8, 9, 4, 5, 12, 13), DIRECT_LIST(2, 3, 10, 11, 6, 7, 14, 15))
DIRECT_FOLD(1, DIRECT_LIST(0, 8, 2, 10, 4, 12, 6, 14), DIRECT_LIST(1, 9, 3, 11, 5, 13, 7, 15))
    #else
DIRECT_FOLD(2, DIRECT_LIST(0, 1, 4, 5), DIRECT_LIST(2, 3, 6, 7))
DIRECT_FOLD(1, DIRECT_LIST(0, 4, 2, 6), DIRECT_LIST(1, 5, 3, 7))
    #endif
INLINE Vec direct_totals(const Vec sums[VL]) {
    Vec x[VL];
    #pragma GCC unroll 16
    for (int t = 0; t < VL; t++) x[t] = sums[t];
    #if VBYTES == 64
        #pragma GCC unroll 8
    for (int t = 0; t < 8; t++) x[t] = direct_fold8(x[t], x[t + 8]);
    #endif
    #if VBYTES >= 32
        #pragma GCC unroll 4
    for (int t = 0; t < 4; t++) x[t] = direct_fold4(x[t], x[t + 4]);
    #endif
    #pragma GCC unroll 2
    for (int t = 0; t < 2; t++) x[t] = direct_fold2(x[t], x[t + 2]);
    return direct_fold1(x[0], x[1]);
}

/* Asks for a part that lies `ahead` bytes on; 0: for none. */
INLINE void direct_ask(const char *part, ptrdiff_t ahead, size_t bytes) {
    if (ahead)
        for (size_t k = 0; k < bytes; k += 64) __builtin_prefetch(part + ahead + k, 0, 2);
}
INLINE void direct_scores_of(int entries, Read as, Block *b, int e0, Parts keys, int n, ptrdiff_t ahead) {
    const int Dk = b->Dk;
    const real *q = b->q + e0 * Dk;
    Spot spot[DIRECT_SPOTS]; /* the same for all rows */
    for (int i = 0; i < DIRECT_SPOTS && i * DIRECT_RUN * VL < Dk; i++)
        spot[i] = direct_spot(as, &keys, i * DIRECT_RUN * VL);
    for (int j = 0; j < n; j += VL) {
        const int rows = imin(VL, n - j);
        const char *part = keys.first + (size_t)j * keys.ld;
        Vec sums[DIRECT][VL];
        for (int t = 0; t < VL; t++, part += t < rows ? keys.ld : 0) { /* the last again for the rest of a vector */
            Vec sum[DIRECT];
            int c = 0;
            direct_ask(part, ahead, keys.ld);
    #pragma GCC unroll 4
            for (int i = 0; i < entries; i++) sum[i] = (Vec){0};
            for (; c + DIRECT_RUN * VL <= Dk; c += DIRECT_RUN * VL) {
                Vec x[DIRECT_RUN];
                const int i = c / (DIRECT_RUN * VL);
                direct_load(as, x, DIRECT_RUN, part, i < DIRECT_SPOTS ? spot[i] : direct_spot(as, &keys, c));
    #pragma GCC unroll 8
                for (int w = 0; w < DIRECT_RUN; w++)
    #pragma GCC unroll 4
                    for (int i = 0; i < entries; i++) sum[i] += *(const Vec *)(q + i * Dk + c + w * VL) * x[w];
            }
            for (; c < Dk; c += VL) {
                Vec x;
                direct_load(as, &x, 1, part, direct_spot(as, &keys, c));
    #pragma GCC unroll 4
                for (int i = 0; i < entries; i++) sum[i] += *(const Vec *)(q + i * Dk + c) * x;
            }
    #pragma GCC unroll 4
            for (int i = 0; i < entries; i++) sums[i][t] = sum[i];
        }
        Vec scale = (Vec){0} + 1;
        if (direct_scaled(as)) scale = direct_scales(&keys, j, rows);
    #pragma GCC unroll 4
        for (int i = 0; i < entries; i++) *(Vec *)(b->s + (e0 + i) * KB + j) = direct_totals(sums[i]) * scale;
    }
}
/* o += s v: rows of o and s are those of entries; v has parts, each of a row of `width`. */
typedef struct {
    real *o, *s;
    int ldo, lds, width;
} Mix;
/* Columns c.. of it. */
INLINE void direct_columns(int entries, int vecs, Read as, Mix m, int e0, Parts v, int n, int c) {
    Vec sum[DIRECT][DIRECT_RUN];
    const Spot spot = direct_spot(as, &v, c);
    real *o = m.o + e0 * m.ldo + c;
    const real *s = m.s + e0 * m.lds;
    #pragma GCC unroll 4
    for (int i = 0; i < entries; i++)
    #pragma GCC unroll 8
        for (int w = 0; w < vecs; w++) sum[i][w] = *(const Vec *)(o + i * m.ldo + w * VL);
    for (int j = 0; j < n; j++) {
        Vec x[DIRECT_RUN];
        direct_load(as, x, vecs, v.first + (size_t)j * v.ld, spot);
    #pragma GCC unroll 4
        for (int i = 0; i < entries; i++)
    #pragma GCC unroll 8
            for (int w = 0; w < vecs; w++) sum[i][w] += s[i * m.lds + j] * x[w];
    }
    #pragma GCC unroll 4
    for (int i = 0; i < entries; i++)
    #pragma GCC unroll 8
        for (int w = 0; w < vecs; w++) *(Vec *)(o + i * m.ldo + w * VL) = sum[i][w];
}
INLINE void direct_mix_of(int entries, Read as, Mix m, int e0, Parts v, int n, ptrdiff_t ahead) {
    const int vecs = DIRECT_VECS(entries);
    int c = 0;
    for (int j = 0; j < n; j++) direct_ask(v.first + (size_t)j * v.ld, ahead, v.ld);
    for (int j = 0; direct_scaled(as) && j < n; j += VL) { /* KB is whole vectors */
        const Vec scale = direct_scales(&v, j, imin(VL, n - j));
    #pragma GCC unroll 4
        for (int i = 0; i < entries; i++) *(Vec *)(m.s + (e0 + i) * m.lds + j) *= scale;
    }
    for (; c + vecs * VL <= m.width; c += vecs * VL) direct_columns(entries, vecs, as, m, e0, v, n, c);
    for (; c < m.width; c += VL) direct_columns(entries, 1, as, m, e0, v, n, c);
}
INLINE void direct_decoded_of(Read as, real *to, Parts p, int n) {
    for (int j = 0; j < n; j++, to += p.width) {
        const char *part = p.first + (size_t)j * p.ld;
        const float scale = direct_scaled(as) ? direct_scale(part) : 1;
        int c = 0;
        for (; c + DIRECT_RUN * VL <= p.width; c += DIRECT_RUN * VL) {
            Vec x[DIRECT_RUN];
            direct_load(as, x, DIRECT_RUN, part, direct_spot(as, &p, c));
    #pragma GCC unroll 8
            for (int w = 0; w < DIRECT_RUN; w++) *(Vec *)(to + c + w * VL) = x[w] * scale;
        }
        for (; c < p.width; c += VL) {
            Vec x;
            direct_load(as, &x, 1, part, direct_spot(as, &p, c));
            *(Vec *)(to + c) = x * scale;
        }
    }
}
    /* `call` for the way in which parts are read, as a constant. */
    #define DIRECT_READ(as, call)                          \
        switch (as) {                                      \
        case READ_BF16: call(READ_BF16); break;            \
        case READ_INT8: call(READ_INT8); break;            \
        case READ_FP8: call(READ_FP8); break;              \
        case READ_4: call(READ_4); break;                  \
        case READ_3: call(READ_3); break;                  \
        case READ_2: call(READ_2); break;                  \
        default: CHECK(false, "rows read as %d", (int)as); \
        }
    /* The same for up to DIRECT entries at a time. */
    #define DIRECT_ENTRIES(of, all, ...)                               \
        for (int e0 = 0; e0 < (all); e0 += DIRECT) switch ((all)-e0) { \
            case 1: of(1, __VA_ARGS__); break;                         \
            case 2: of(2, __VA_ARGS__); break;                         \
            case 3: of(3, __VA_ARGS__); break;                         \
            default: of(DIRECT, __VA_ARGS__);                          \
            }
/* Keys and values of every entry of the block; the parts `ahead` bytes on are read next (0: none). */
static void direct_scores(Block *b, Read as, Parts keys, int n, ptrdiff_t ahead) {
    #define SCORES(how)  DIRECT_ENTRIES(direct_scores_of, b->n, how, b, e0, keys, n, e0 ? 0 : ahead)
    DIRECT_READ(as, SCORES)
}
static void direct_mix(int entries, Mix m, Read as, Parts v, int n, ptrdiff_t ahead) {
    #define MIX(how)     DIRECT_ENTRIES(direct_mix_of, entries, how, m, e0, v, n, e0 ? 0 : ahead)
    DIRECT_READ(as, MIX)
}
static void direct_values(Block *b, Read as, Parts values, int n, ptrdiff_t ahead) {
    direct_mix(b->n, (Mix){b->o, b->s, b->Dv, KB, b->Dv}, as, values, n, ahead);
}
/* Scores of a block of a codec that stores rows together: a part has an element of all its keys. */
static void direct_channels(Block *b, Read as, Parts keys, ptrdiff_t ahead) {
    memset(b->s, 0, (size_t)b->n * KB * sizeof(real));
    direct_mix(b->n, (Mix){b->s, b->q, KB, b->Dk, keys.width}, as, keys, b->Dk, ahead);
}
static void direct_decoded(real *to, Read as, Parts parts, int n) {
    #define DECODED(how) direct_decoded_of(how, to, parts, n)
    DIRECT_READ(as, DECODED)
}
#endif
