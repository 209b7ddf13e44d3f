/* charsmap.c: the search in a double array that somebody else wrote. */
#include "charsmap.h"

struct Charsmap {
    uint32_t *unit;
    size_t units;
    char *pool; /* with a NUL at its end */
    size_t n;
};

Charsmap *charsmap_open(const void *from, size_t n, const char *where, Err *e) {
    const unsigned char *p = from;
    uint32_t size = 0;
    for (int i = 0; i < 4 && n >= 4; i++) size |= (uint32_t)p[i] << 8 * i;
    if (n < 4 || size % 4 || size < 4 || size > n - 4) {
        err_input(e, "%s: a table of characters of %zu bytes with a trie of %u; expected a multiple of 4 that fits",
                  where, n, (unsigned)size);
        return NULL;
    }
    Charsmap *m = xcalloc(1, sizeof *m);
    m->units = size / 4;
    m->unit = xcalloc(m->units, sizeof *m->unit);
    for (size_t i = 0; i < m->units; i++)
        for (int b = 0; b < 4; b++) m->unit[i] |= (uint32_t)p[4 + 4 * i + (size_t)b] << 8 * b;
    m->n = n - 4 - size;
    m->pool = xcalloc(m->n + 1, 1);
    memcpy(m->pool, p + 4 + size, m->n);
    return m;
}
void charsmap_close(Charsmap *m) {
    if (!m) return;
    free(m->unit);
    free(m->pool);
    free(m);
}

static size_t charsmap_offset(uint32_t u) { return (size_t)(u >> 10) << (u >> 9 & 1 ? 8 : 0); }
const char *charsmap_find(const Charsmap *m, const char *s, size_t n, size_t *len) {
    size_t at = charsmap_offset(m->unit[0]);
    for (size_t i = 0; i < n && s[i]; i++) {
        at ^= (unsigned char)s[i];
        if (at >= m->units || (m->unit[at] & 0x800000FFu) != (unsigned char)s[i]) return NULL;
        const uint32_t u = m->unit[at];
        at ^= charsmap_offset(u);
        if (!(u >> 8 & 1)) continue;
        const size_t value = at < m->units ? m->unit[at] & 0x7FFFFFFFu : m->n;
        if (value >= m->n) return NULL;
        *len = strlen(m->pool + value);
        return m->pool + value;
    }
    return NULL;
}
