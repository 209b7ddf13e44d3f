/* test_ops_codec.c: the ops that store rows by a codec of the cache: every backend has the bytes of the codec's own
 * functions; these for int8 against the definition, typed again. */
#include "layers/cache/codec.h"
#include "tests/lib/rig.h"

#define HUGEST 0x1.fffffep127 /* of f32 */

/* Rows that are hard on a codec: nothing, tiny, huge, halfway between two codes, one that is not finite. */
static Tensor rows_drawn(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, d);
    for (int i = 0; i < N; i++) {
        real *row = R(x) + (size_t)i * (size_t)d;
        const double scale = i % 11 == 1 ? 1e-42 : i % 11 == 2 ? 1e37 : i % 11 == 3 ? 1e-30 : 1;
        for (int k = 0; k < d; k++) {
            if (i % 11 == 0) row[k] = 0;
            if (i % 11 == 4) row[k] = (real)(k % 127 + 0.5) * (k % 2 ? -1 : 1); /* scale 1 if 127 is among them */
            row[k] *= (real)scale;
        }
        if (i % 11 == 4) row[0] = -127;
        if (i % 11 == 6) row[d / 2] = (real)(i % 2 ? HUGEST : -HUGEST);
        if (i % 11 == 5) row[d / 2] = i % 2 ? (real)NAN : (real)INFINITY;
    }
    return x;
}
static bool on_device(const RowCodec *c) { return c->as != ROWS_CODED; }
/* The table, its packed codes in groups of 64, and residuals in both kinds of codes. */
enum { MORE = 7 };
static const RowCodec *codec_case(int i, RowCodec *own) {
    static const char *const more[MORE] = {"int4:group=64",
                                           "int3:group=64",
                                           "int2:group=64",
                                           "aqua:bits=4,pairs=yes",
                                           "aqua:bits=3,pairs=yes,group=64",
                                           "aqua:bits=2,pairs=yes",
                                           "aqua:bits=3,pairs=no"};
    int n = 0;
    Err e = {0};
    while (codec_at(n)) n++;
    if (i < n) return codec_at(i);
    if (i >= n + MORE) return NULL;
    cr_assert(codec_parse(more[i - n], own, &e), "%s", e.msg);
    return own;
}
static bool coded(const RowCodec *c) {
    return (c->as != ROWS_REAL && c->as != ROWS_BF16) && (!cuda_ops() || on_device(c));
}
static void check_row(const RowCodec *c, const real *got, const real *want, int d) {
    for (int k = 0; k < d; k++)
        cr_assert(got[k] == want[k] || (isnan((double)got[k]) && isnan((double)want[k])),
                  "%s: number %d: %.9g, not %.9g", c->name, k, (double)got[k], (double)want[k]);
}
void case_recode_rows(Rig *g, int N, int d) {
    RowCodec own;
    for (int i = 0; codec_case(i, &own); i++) {
        const RowCodec *c = codec_case(i, &own);
        if (!coded(c)) continue;
        Mark mark = arena_mark(&g->mem);
        Tensor x = rows_drawn(g, N, d), was = tensor_copy(g, x);
        char *part = xcalloc(c->bytes(c, d), 1);
        real *want = xcalloc((size_t)d, sizeof *want);
        OP(g, recode_rows, x, c);
        for (int n = 0; n < N; n++) {
            c->encode(c, part, R(was) + (size_t)n * (size_t)d, d);
            c->decode(c, want, part, d);
            check_row(c, R(x) + (size_t)n * (size_t)d, want, d);
        }
        rig_result(g, x);
        free(part), free(want);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(recode_rows, EXACT, 0)

void case_encode_rows(Rig *g, int N, int d) {
    RowCodec own;
    for (int i = 0; codec_case(i, &own); i++) {
        const RowCodec *c = codec_case(i, &own);
        if (!coded(c)) continue;
        Mark mark = arena_mark(&g->mem);
        const size_t bytes = c->bytes(c, d), room = bytes + 12;
        size_t *to = xcalloc((size_t)N + 1, sizeof *to), *from = xcalloc((size_t)N + 1, sizeof *from);
        Dice dice = {rng_mix(77, (uint64_t)N), 0};
        Tensor x = rows_drawn(g, N, d), data = EMPTY(g, "data", N, (int)(room / sizeof(real)) + 2);
        char *want = xcalloc(tensor_bytes(data), 1);
        memset(data.p, 0x5a, tensor_bytes(data)), memset(want, 0x5a, tensor_bytes(data));
        for (int n = 0; n < N; n++) { /* in descending order, with gaps; rows in any order */
            to[n] = (size_t)(N - 1 - n) * room + 4 * (size_t)roll(&dice, 4);
            from[n] = (size_t)roll(&dice, N) * (size_t)d;
            c->encode(c, want + to[n], R(x) + from[n], d);
        }
        OP(g, encode_rows, data, to, x, from, N, d, c);
        CHECK_BYTES(c->name, data.p, want, tensor_bytes(data));
        free(to), free(from), free(want);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(encode_rows, 0, 0)

/* Every codec: whole words, the same bytes when what was read is stored again, nothing that is not finite lost. */
Test(ops, codecs_store_what_they_read) {
    Rig g;
    rig_open(&g, rig_first(), 1, 1 << 22);
    RowCodec own;
    for (int i = 0; codec_case(i, &own); i++)
        for (int d = 1; d < 200; d += d < 40 ? 1 : 13) {
            const RowCodec *c = codec_case(i, &own);
            Mark mark = arena_mark(&g.mem);
            Tensor x = rows_drawn(&g, 22, d);
            const size_t bytes = c->bytes(c, d);
            char *once = xcalloc(bytes, 1), *again = xcalloc(bytes, 1);
            real *y = xcalloc((size_t)d, sizeof *y), *z = xcalloc((size_t)d, sizeof *z);
            cr_assert((c == &own || codec_find(c->name) == c) &&
                      (c->as == ROWS_BF16 ? bytes == 2 * (size_t)d : bytes % 4 == 0));
            cr_assert(c->bytes(c, 2 * d) >= bytes && (c->as == ROWS_REAL || bytes < (size_t)d * sizeof(real) + 12));
            for (int n = 0; n < 22; n++) {
                const real *row = R(x) + (size_t)n * (size_t)d;
                bool finite = true, still = true, huge = false; /* what bf16 rounds to infinity, packed codes to NaN */
                const bool rounds = c->as == ROWS_BF16 || (c->rank > 0 && c->bits == 16);
                const double limit = rounds ? 0x1.ffp127 : c->as == ROWS_PACKED || c->predicts ? 0x1p125 : INFINITY;
                memset(once, 1, bytes), memset(again, 2, bytes);
                c->encode(c, once, row, d);
                c->decode(c, y, once, d);
                for (int k = 0; k < d; k++) finite &= isfinite((double)row[k]), still &= isfinite((double)y[k]);
                for (int k = 0; k < d; k++) huge |= fabs((double)row[k]) >= limit;
                cr_assert(finite == still || huge, "%s, row %d of %d", c->name, n, d);
                if (!finite || !still) continue;
                c->encode(c, again, y, d);
                c->decode(c, z, again, d);
                CHECK_BYTES(c->name, again, once, bytes);
                check_row(c, z, y, d);
            }
            free(once), free(again), free(y), free(z);
            arena_release(&g.mem, mark);
        }
    rig_close(&g);
}

/* int8 by its definition: the scale is the least number of 16 bits that is no less than max |x| / 127, or the next
 * lower one if 127 of it were infinite in f32; each number is the nearest multiple of it, or 127. A mistake of one
 * code, or of one step of the scale, is noticed. */
static bool int8_is(const real *x, const real *y, int d, double wrong_scale, double wrong_code) {
    long double most = 0, scale = 0;
    for (int k = 0; k < d; k++) most = fmaxl(most, wide_fabs((long double)(float)x[k]));
    if (most > 0) {
        int e;
        long double m = frexpl(most / 127, &e);
        scale = ldexpl(ceill(m * 65536 - 1e-9L), e - 16);
        if (127 * scale > (long double)HUGEST) scale -= ldexpl(1, e - 16);
        scale *= 1 + (long double)wrong_scale;
    }
    if (scale < 0x1p-126L) scale = 0;
    for (int k = 0; k < d; k++) {
        long double got = (long double)y[k] + (long double)wrong_code * scale;
        if (scale == 0 ? got != 0 : wide_fabs(got / scale - roundl(got / scale)) > 1e-12L) return false;
        if (scale > 0 && wide_fabs(got - (long double)x[k]) > scale * (0.5L + 1e-5L)) return false;
    }
    return true;
}
Test(ops, int8_is_what_it_says) {
    Rig g;
    int tried = 0, scale_seen = 0, code_seen = 0;
    rig_open(&g, rig_first(), 1, 1 << 22);
    for (int d = 1; d < 300; d += 1 + d / 7) {
        Mark mark = arena_mark(&g.mem);
        Tensor x = rows_drawn(&g, 44, d);
        char *part = xcalloc(codec_int8.bytes(&codec_int8, d), 1);
        real *y = xcalloc((size_t)d, sizeof *y);
        cr_assert(codec_int8.bytes(&codec_int8, d) == 4 + ((size_t)d + 3) / 4 * 4);
        for (int n = 0; n < 44; n++) {
            const real *row = R(x) + (size_t)n * (size_t)d;
            if (n % 11 == 5) continue; /* not finite */
            codec_int8.encode(&codec_int8, part, row, d);
            codec_int8.decode(&codec_int8, y, part, d);
            cr_assert(int8_is(row, y, d, 0, 0), "row %d of width %d", n, d);
            tried++;
            scale_seen += !int8_is(row, y, d, 0x1p-16, 0), code_seen += !int8_is(row, y, d, 0, 1);
        }
        free(part), free(y);
        arena_release(&g.mem, mark);
    }
    cr_assert(scale_seen > tried / 2 && code_seen > tried / 2, "%d and %d of %d", scale_seen, code_seen, tried);
    rig_close(&g);
}

/* Packed codes by their contract: no number is further off than (1/2 + top/128) scales, and a group of one number, or
 * of numbers that differ by little, is off by no more than 2^-13 of it and their difference. */
Test(ops, packed_codes_are_near) {
    Rig g;
    RowCodec own;
    rig_open(&g, rig_first(), 1, 1 << 22);
    for (int i = 0; codec_case(i, &own); i++) {
        const RowCodec *c = codec_case(i, &own);
        if (c->as != ROWS_PACKED) continue;
        const int top = (1 << c->bits) - 1;
        double worst = 0;
        for (int draw = 0; draw < 400; draw++) {
            const int d = 1 + draw % 150;
            const double offset = draw % 3 ? 0 : ldexp(1, draw % 40 - 20);
            Mark mark = arena_mark(&g.mem);
            Tensor x = RANDOM(&g, "x", d), y = RANDOM(&g, "y", d);
            char *part = xcalloc(c->bytes(c, d), 1);
            for (int k = 0; k < d; k++) R(x)[k] = (real)(float)((double)R(x)[k] + offset);
            c->encode(c, part, R(x), d);
            c->decode(c, R(y), part, d);
            for (int at = 0; at < d; at += c->group) {
                double least = INFINITY, most = -INFINITY, size = 0;
                for (int k = at; k < imin(d, at + c->group); k++)
                    least = fmin(least, (double)R(x)[k]), most = fmax(most, (double)R(x)[k]);
                size = fmax(fabs(least), fabs(most));
                for (int k = at; k < imin(d, at + c->group); k++) {
                    const double off = fabs((double)R(x)[k] - (double)R(y)[k]), scale = (most - least) / top,
                                 bound =
                                     fmax(scale * (1 + 0x1p-7) * (0.5 + top / 128.0), (most - least) + size * 0x1p-13);
                    cr_assert(off <= (scale * 0x1p14 > size ? scale * (1 + 0x1p-7) * (0.5 + top / 128.0) : bound),
                              "%s, %d of %d: %.9g is %.9g", c->name, k, d, (double)R(x)[k], (double)R(y)[k]);
                    if (scale > 0) worst = fmax(worst, off / scale);
                }
            }
            free(part);
            arena_release(&g.mem, mark);
        }
        cr_assert(worst > 0.45, "%s: never further off than %.3g scales", c->name, worst);
    }
    rig_close(&g);
}

/* Every codec's bytes are those of golden/codecs.txt, which golden/make_codecs.py writes by the rules alone. */
static double e4m3(int code) { return code < 8 ? ldexp(code, -9) : ldexp(1 + code % 8 / 8.0, code / 8 - 7); }
static float golden_number(int kind, int at, int width, int i) {
    if (kind == 4) { /* halfway between neighbours of fp8, whose scale is 1 */
        const double y = (e4m3(i * 29 % 125) + e4m3(i * 29 % 125 + 1)) / 2;
        return i ? (float)(i % 2 ? -y : y) : 448;
    }
    uint32_t x = (uint32_t)((kind * 8 + at) * 128 + i) * 2654435761u + 12345u;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13;
    const double y = (x / 4294967296.0 - 0.5) * 4;
    return (float)(kind == 0   ? y
                   : kind == 1 ? 37 + y / 8
                   : kind == 2 ? (i == width / 2 ? y * 90 : y / 3)
                   : i         ? -1.7
                               : 1.9);
}
Test(ops, codecs_have_the_golden_bytes) {
    static const int widths[] = {5, 32, 48, 128};
    FILE *f = fopen("tests/golden/codecs.txt", "r");
    char name[40], hex[600];
    int width, kind, lines = 0;
    Err e = {0};
    cr_assert(f, "tests/golden/codecs.txt");
    while (fscanf(f, "%39s %d %d %599s", name, &width, &kind, hex) == 4) {
        RowCodec c;
        int at = 0;
        while (at < 3 && widths[at] != width) at++;
        cr_assert(codec_parse(name, &c, &e), "%s", e.msg);
        const size_t bytes = c.bytes(&c, width);
        real row[128];
        uint8_t part[300];
        for (int k = 0; k < width; k++) row[k] = (real)golden_number(kind, at, width, k);
        c.encode(&c, part, row, width);
        cr_assert(strlen(hex) == 2 * bytes && bytes <= sizeof part, "%s: %zu bytes", name, bytes);
        for (size_t b = 0; b < bytes; b++) {
            unsigned want;
            cr_assert(sscanf(hex + 2 * b, "%2x", &want) == 1 && part[b] == want,
                      "%s, width %d, row %d: byte %zu is %02x, not %.2s", name, width, kind, b, part[b], hex + 2 * b);
        }
        lines++;
    }
    fclose(f);
    cr_assert(lines == 228, "%d lines", lines);
}
