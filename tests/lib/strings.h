/* strings.h: the strings of tests/golden/make_bpe.py, drawn again, and the hashes of ids that it stores. For the tests
 * of tokenizers. */
#pragma once
#include "tests/lib/check.h"
#include "data/bpe.h"

enum { STRINGS = 10000, TEXT_BYTES = 100000 };
typedef struct {
    uint64_t key, at;
} Roll;
static inline unsigned roll(Roll *r, unsigned n) { return (unsigned)(rng_mix(r->key, ++r->at) % n); }

typedef struct {
    unsigned a, b;
} Range;
static inline size_t put_char(char *out, unsigned c) {
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63)), out[3] = (char)(0x80 | (c & 63));
    return 4;
}
static inline size_t draw(char out[1024], int s, const Range *range, unsigned nrange) {
    static const unsigned blanks[] = {' ', '\n', '\t', '\r', 0xA0, 0x3000, 0x180E, 0x200B, 0x2028};
    static const char *const bits[] = {"'s",           "'LL",           "'\xC5\xBF",
                                       "don't",        "<|endoftext|>", "\xE2\x96\x81",
                                       "\xC3\xA9",     "e\xCC\x81",     "\xE1\x84\x80\xE1\x85\xA1",
                                       "\xE0\xA5\x98", "12345",         "  ",
                                       "<s>",          "</s>",          "the LORD ",
                                       " thou art ",   "king",          "kings",
                                       "And God said,"};
    Roll r = {rng_mix(77, (uint64_t)s), 0};
    size_t n = 0;
    for (unsigned left = roll(&r, 41); left; left--) {
        unsigned k = roll(&r, 100);
        if (k < 35) {
            n += put_char(out + n, 32 + roll(&r, 95));
        } else if (k < 50) {
            n += put_char(out + n, blanks[roll(&r, 9)]);
        } else if (k < 62) {
            const char *b = bits[roll(&r, 19)];
            memcpy(out + n, b, strlen(b));
            n += strlen(b);
        } else if (k < 70) {
            n += put_char(out + n, 0xA0 + roll(&r, 0x1B0));
        } else {
            Range g = range[roll(&r, nrange)];
            n += put_char(out + n, g.a + roll(&r, g.b - g.a + 1));
        }
    }
    return n;
}
static inline unsigned fnv(const Ids *ids) {
    uint32_t h = 0x811C9DC5;
    for (size_t i = 0; i < ids->n; i++)
        for (int b = 0; b < 4; b++) h = (h ^ ((uint32_t)ids->id[i] >> 8 * b & 255)) * 0x01000193;
    return (h ^ h >> 16) & 0xFFFF;
}
static inline Range *ranges_read(const char *path, unsigned *n) {
    char *text = check_read(path, NULL), *s = text;
    Range *r = xcalloc(2000, sizeof *r);
    for (*n = 0; *n < 2000 && *s; ++*n)
        r[*n].a = (unsigned)strtoul(s, &s, 16), r[*n].b = (unsigned)strtoul(s, &s, 16), s += *s == '\n';
    free(text);
    cr_assert(*n > 600 && *n < 2000, "%u ranges", *n);
    return r;
}

static inline char *text_read(size_t *n) {
    char *text = check_read("data/kjv.txt", n);
    cr_assert(*n > TEXT_BYTES);
    *n = TEXT_BYTES;
    return text;
}
static inline void compare(const char *name, int s, const char *text, size_t n, const Ids *ids, const char *hash) {
    unsigned want = (unsigned char)hash[2 * s] | (unsigned)(unsigned char)hash[2 * s + 1] << 8, got = fnv(ids);
    cr_assert_eq(got, want, "%s: string %d '%.*s': %zu ids with hash %04x, the library's have %04x", name, s, (int)n,
                 text, ids->n, got, want);
}
