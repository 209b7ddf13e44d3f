/* chars.h: single characters of UTF-8 text, for the parts of the tokenizer. */
#pragma once
#include <utf8proc.h>
#include "pretoken.h"

/* The character at s+i, or -1 (the end, or a byte that is not UTF-8); *k its bytes, at least 1. */
static inline int char_at(const char *s, size_t n, size_t i, size_t *k) {
    utf8proc_int32_t c = -1;
    utf8proc_ssize_t len =
        i < n ? utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)zmin(n - i, 4), &c) : 0;
    *k = len > 0 ? (size_t)len : 1;
    return len > 0 ? c : -1;
}
/* The place where the character that ends at i > 0 begins. */
static inline size_t char_back(const char *s, size_t i) {
    for (i--; i > 0 && ((unsigned char)s[i] & 0xC0) == 0x80;) i--;
    return i;
}
/* The Unicode property White_Space. */
static inline bool char_white(int c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
static inline void char_put(Buf *out, int c) {
    utf8proc_uint8_t text[4];
    buf_put(out, (const char *)text, (size_t)utf8proc_encode_char(c, text));
}
