#include "buf.h"

void buf_put(Buf *t, const char *s, size_t n) {
    if (!n) return;
    if (t->n + n > t->cap) t->at = xrealloc(t->at, t->cap = zmax(2 * t->cap, t->n + n + 64), 1);
    memcpy(t->at + t->n, s, n);
    t->n += n;
}
void buf_free(Buf *t) {
    free(t->at);
    *t = (Buf){0};
}
