/* turn.h: transposes 16 x 16 values of 32 bits in registers: element j of r[i] becomes element i of r[j]. */
#pragma once
#ifdef __AVX512F__
    #include <immintrin.h>

static inline __attribute__((always_inline)) void turn_registers(__m512i r[16]) {
    __m512i t[16];
    #pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* 4 x 4 inside each quarter */
        __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]),
                c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c), t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d), t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    #pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* then the quarters: t[4 g + i] holds column 4 q + i of rows 4 g.. in quarter q */
        __m512i a = _mm512_shuffle_i32x4(t[i], t[4 + i], 0x44), b = _mm512_shuffle_i32x4(t[i], t[4 + i], 0xEE),
                c = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x44),
                d = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xEE);
        r[i] = _mm512_shuffle_i32x4(a, c, 0x88), r[4 + i] = _mm512_shuffle_i32x4(a, c, 0xDD);
        r[8 + i] = _mm512_shuffle_i32x4(b, d, 0x88), r[12 + i] = _mm512_shuffle_i32x4(b, d, 0xDD);
    }
}
#endif
