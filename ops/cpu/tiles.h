/* tiles.h: the tile registers of x86-64 (AMX-TILE and AMX-BF16), used by gemm_tiles.c: eight registers of 16 rows of
 * 64 bytes, and one instruction that multiplies two of them. Tile numbers must be constants.
 *
 *   TILE_ZERO(c)               c = 0
 *   TILE_LOAD(c, at, apart)    16 rows of 64 bytes, `apart` bytes from one to the next
 *   TILE_STORE(c, at, apart)   and back
 *   TILE_DOT(c, a, b)          c[m][n] += sum over k of a[m][k] . b[k][n]; c is 16 x 16 f32, a and b are 16 x 16 pairs
 *                              of bf16, a pair's elements following each other along the sum
 *
 * TILE_DOT computes two sums for every element of c, both from 0: of the pairs' low and of their high elements, k = 0
 * to 15. Each step is rounded once, to nearest. It then adds the two sums, and that to c. Denormals, read or produced,
 * are 0. It raises no exception and ignores the rounding mode. (Intel 64 and IA-32 Architectures Software Developer's
 * Manual, TDPBF16PS, TILELOADD, LDTILECFG.)
 *
 * - A thread must open its tiles before it uses them and close them afterwards. Other libraries may then use them, and
 *   a thread without open tiles has less to save when it is interrupted.
 * - The program must have asked the system for permission first (amx.h).
 * - With TILES_EMULATED defined, tiles_open, tiles_close and the TILE_ macros are defined elsewhere. */
#pragma once
#include <stdint.h>

typedef struct {
    uint8_t palette, start, unused[14];
    uint16_t bytes[8], no_bytes[8]; /* bytes of a row */
    uint8_t rows[8], no_rows[8];
} TileShapes;
_Static_assert(sizeof(TileShapes) == 64, "as LDTILECFG reads it");
/* All tiles have full size; smaller operands are padded with zeros. */
#define TILES_WHOLE                                                                                         \
    {                                                                                                       \
        .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } \
    }

#ifndef TILES_EMULATED
    #include <immintrin.h>

static inline void tiles_open(void) {
    /* static const: gcc believes that the instruction reads only 8 bytes, and constants stay whole */
    static const TileShapes whole = TILES_WHOLE;
    _tile_loadconfig(&whole);
}
static inline void tiles_close(void) { _tile_release(); }

    /* gcc does not know that a tile load reads memory: without this it could move an earlier write after the load, or
     * the reverse. */
    #define TILES_MEMORY_() __asm__ volatile("" ::: "memory")
    #define TILE_ZERO(c)    _tile_zero(c)
    #define TILE_LOAD(c, at, apart)            \
        do {                                   \
            TILES_MEMORY_();                   \
            _tile_loadd(c, at, (long)(apart)); \
            TILES_MEMORY_();                   \
        } while (0)
    #define TILE_STORE(c, at, apart)            \
        do {                                    \
            TILES_MEMORY_();                    \
            _tile_stored(c, at, (long)(apart)); \
            TILES_MEMORY_();                    \
        } while (0)
    #define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
#endif
