#include "text.h"

/* Length of the stop string that ends at byte n of s, the longest; 0: none. */
static size_t stop_at(const Text *t, const char *s, size_t n) {
    size_t best = 0;
    for (int i = 0; i < t->nstop; i++) {
        size_t len = strlen(t->stop[i]);
        if (len <= n && len > best && !memcmp(s + n - len, t->stop[i], len)) best = len;
    }
    return best;
}

bool text_push(Text *t, const void *bytes, size_t n) {
    if (t->stopped || n == 0) return t->stopped;
    if (t->n + n > t->cap) {
        t->cap = zmax(2 * t->cap, t->n + n + 256);
        t->bytes = xrealloc(t->bytes, t->cap, 1);
    }
    memcpy(t->bytes + t->n, bytes, n);
    for (size_t end = t->n + 1; end <= t->n + n; end++) {
        size_t len = stop_at(t, t->bytes, end);
        if (len) {
            t->n = end - len;
            return t->stopped = true;
        }
    }
    t->n += n;
    return false;
}

size_t text_final(const Text *t) {
    if (t->stopped) return t->n;
    size_t hold = 0;
    for (int i = 0; i < t->nstop; i++) {
        size_t len = strlen(t->stop[i]);
        for (size_t k = zmin(len - 1, t->n); k > hold; k--)
            if (!memcmp(t->bytes + t->n - k, t->stop[i], k)) hold = k;
    }
    return t->n - hold - utf8_open(t->bytes, t->n - hold);
}

void text_free(Text *t) {
    free(t->bytes);
    t->bytes = NULL;
    t->n = t->cap = 0;
}

/* Reads the bytes at s: *good: a complete character, of the length returned; else the length of the longest beginning
 * of one (at least 1: a byte that begins nothing is by itself). *open: the end came before it was known. */
static size_t utf8_step(const unsigned char *s, size_t n, bool *good, bool *open) {
    unsigned char c = s[0], lo = 0x80, hi = 0xbf;
    size_t need = c < 0x80                 ? 0
                  : c >= 0xc2 && c <= 0xdf ? 1
                  : c >= 0xe0 && c <= 0xef ? 2
                  : c >= 0xf0 && c <= 0xf4 ? 3
                                           : 4;
    *open = false;
    *good = need == 0;
    if (need == 0 || need == 4) return 1;
    if (c == 0xe0) lo = 0xa0; /* overlong forms, surrogates, beyond U+10FFFF */
    if (c == 0xed) hi = 0x9f;
    if (c == 0xf0) lo = 0x90;
    if (c == 0xf4) hi = 0x8f;
    for (size_t i = 1; i <= need; i++, lo = 0x80, hi = 0xbf) {
        if (i == n) {
            *open = true;
            return i;
        }
        if (s[i] < lo || s[i] > hi) return i;
    }
    *good = true;
    return need + 1;
}

size_t utf8_open(const char *s, size_t n) {
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        bool good, open;
        size_t step = utf8_step((const unsigned char *)s + n - k, k, &good, &open);
        if (open && step == k) return k;
    }
    return 0;
}

char *utf8_clean(const char *s, size_t n, size_t *m) {
    char *out = xcalloc(3 * n + 1, 1);
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        bool good, open;
        size_t step = utf8_step((const unsigned char *)s + i, n - i, &good, &open);
        memcpy(out + w, good ? s + i : "\xef\xbf\xbd", good ? step : 3);
        w += good ? step : 3;
        i += step;
    }
    *m = w;
    return out;
}
