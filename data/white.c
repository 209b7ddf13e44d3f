/* white.c: recognises white space at either end of UTF-8 text. */
#include "white.h"

/* True if the character in the k bytes at s is white space. */
static bool white(const char *s, size_t k) {
    const unsigned char *p = (const unsigned char *)s;
    unsigned c = *p;
    if (k > 3) return false;
    if (k == 2) c = (c & 0x1F) << 6 | (p[1] & 0x3F);
    if (k == 3) c = (c & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3F);
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t white_begin(const char *s, size_t n) {
    size_t at = 0;
    for (size_t k; at < n; at += k) {
        for (k = 1; at + k < n && ((unsigned char)s[at + k] & 0xC0) == 0x80;) k++;
        if (!white(s + at, k)) break;
    }
    return at;
}

size_t white_end(const char *s, size_t n) {
    while (n) {
        size_t at = n - 1;
        while (at && ((unsigned char)s[at] & 0xC0) == 0x80) at--;
        if (!white(s + at, n - at)) break;
        n = at;
    }
    return n;
}
