/* tiles.h: the tiles of ops/cpu/tiles.h in plain C, for processors that have none: the documented arithmetic to the
 * bit, and an end with file and line wherever hardware would fault, or would go on with what nobody put there. Included
 * before the product's sources (-include tests/lib/tiles.h), and by the suite that proves it.
 *
 * What is found: tiles used before they are opened or after they are closed, opened twice or closed twice; shapes that
 * LDTILECFG refuses; shapes that do not fit each other, or one tile in two places of a product; a tile read before
 * anything was put into it, which in hardware is zeros or what was left there. Loads and stores touch the very bytes
 * that hardware touches, so that a sanitizer of addresses sees them. */
#pragma once
#define TILES_EMULATED
#include "ops/base.h"
#include "ops/cpu/tiles.h"
#include <float.h>
#include <math.h>
#include <string.h>

typedef struct {
    bool open, full[8]; /* put into since it was opened */
    TileShapes shapes;
    uint32_t at[8][16][16];
} Tiles;
static _Thread_local Tiles tiles; /* as the registers are a thread's own */

static inline void tiles_shape(TileShapes s) {
    static const TileShapes zero;
    CHECK(!tiles.open, "tiles are opened twice");
    CHECK(s.palette == 1 && s.start == 0, "palette %d, row %d", s.palette, s.start);
    CHECK(!memcmp(s.unused, zero.unused, sizeof zero.unused) && !memcmp(s.no_rows, zero.no_rows, sizeof zero.no_rows) &&
              !memcmp(s.no_bytes, zero.no_bytes, sizeof zero.no_bytes),
          "bits of the shapes that are none");
    for (int c = 0; c < 8; c++)
        CHECK(s.rows[c] <= 16 && s.bytes[c] <= 64 && !s.rows[c] == !s.bytes[c], "tile %d: %d rows of %d bytes", c,
              s.rows[c], s.bytes[c]);
    memset(&tiles, 0, sizeof tiles);
    tiles.open = true, tiles.shapes = s;
}
static inline void tiles_open(void) { tiles_shape((TileShapes)TILES_WHOLE); }
static inline void tiles_close(void) {
    CHECK(tiles.open, "tiles are closed that are not open");
    tiles.open = false;
}
static inline void tile_there(int c) {
    CHECK(tiles.open, "tile %d: tiles are not open in this thread", c);
    CHECK(c >= 0 && c < 8 && tiles.shapes.rows[c], "tile %d has no shape", c);
    CHECK(tiles.shapes.bytes[c] % 4 == 0, "tile %d: rows of %d bytes", c, tiles.shapes.bytes[c]);
}
static inline void tile_zero(int c) {
    tile_there(c);
    memset(tiles.at[c], 0, sizeof tiles.at[c]);
    tiles.full[c] = true;
}
static inline void tile_load(int c, const void *from, size_t apart) {
    tile_zero(c);
    for (int r = 0; r < tiles.shapes.rows[c]; r++)
        memcpy(tiles.at[c][r], (const char *)from + (size_t)r * apart, tiles.shapes.bytes[c]);
}
static inline void tile_store(int c, void *to, size_t apart) {
    tile_there(c);
    CHECK(tiles.full[c], "tile %d is stored, and nothing was put into it", c);
    for (int r = 0; r < tiles.shapes.rows[c]; r++)
        memcpy((char *)to + (size_t)r * apart, tiles.at[c][r], tiles.shapes.bytes[c]);
}

#define TILES_INNER static inline __attribute__((always_inline, no_sanitize("address", "undefined")))
typedef union {
    uint32_t u;
    float f;
} TileBits;
TILES_INNER float tile_normal(float x) { /* a denormal is 0 of its sign */
    TileBits b = {.f = x};
    b.u &= (b.u & 0x7F800000) ? 0xFFFFFFFF : 0x80000000;
    return b.f;
}
TILES_INNER float tile_number(uint32_t pair, int odd) {
    TileBits b = {odd ? pair & 0xFFFF0000 : pair << 16};
    return tile_normal(b.f);
}
/* One row of the result; of operands of whole registers, of which only `k` pairs and `n` elements take part. */
__attribute__((noinline, no_sanitize("address", "undefined"))) static void
tile_row(uint32_t c[16], const uint32_t a[16], uint32_t b[16][16], int k, int n) {
    float even[16] = {0}, odd[16] = {0};
    for (int i = 0; i < k; i++) {
        float lo = tile_number(a[i], 0), hi = tile_number(a[i], 1);
#pragma omp simd
        for (int j = 0; j < 16; j++) {
            even[j] = tile_normal(__builtin_fmaf(lo, tile_number(b[i][j], 0), even[j]));
            odd[j] = tile_normal(__builtin_fmaf(hi, tile_number(b[i][j], 1), odd[j]));
        }
    }
    for (int j = 0; j < n; j++) {
        TileBits old = {c[j]};
        old.f = tile_normal(tile_normal(old.f) + tile_normal(even[j] + odd[j]));
        c[j] = old.u;
    }
}
static inline void tile_dot(int c, int a, int b) {
    tile_there(c), tile_there(a), tile_there(b);
    CHECK(c != a && c != b && a != b, "tiles %d, %d and %d of a product are not three", c, a, b);
    CHECK(tiles.full[c] && tiles.full[a] && tiles.full[b], "tile %d += %d %d, and nothing was put into one", c, a, b);
    const uint8_t *rows = tiles.shapes.rows;
    const uint16_t *bytes = tiles.shapes.bytes;
    CHECK(rows[c] == rows[a] && bytes[c] == bytes[b] && bytes[a] / 4 == rows[b],
          "tile %d (%d rows of %d bytes) += %d (%d of %d) times %d (%d of %d)", c, rows[c], bytes[c], a, rows[a],
          bytes[a], b, rows[b], bytes[b]);
    for (int m = 0; m < rows[c]; m++) tile_row(tiles.at[c][m], tiles.at[a][m], tiles.at[b], rows[b], bytes[c] / 4);
}
#define TILE_ZERO(c)             tile_zero(c)
#define TILE_LOAD(c, at, apart)  tile_load(c, at, apart)
#define TILE_STORE(c, at, apart) tile_store(c, at, apart)
#define TILE_DOT(c, a, b)        tile_dot(c, a, b)
