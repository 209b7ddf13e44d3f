#include "marks.h"

void marks_open(Marks *m, const Cache *c, int most) {
    *m = (Marks){.bytes = most ? kv_mark_bytes(c) : 0};
    if (!m->bytes) return;
    m->most = most;
    m->mark = xcalloc((size_t)most, sizeof *m->mark);
}
void marks_close(Marks *m) {
    for (int i = 0; i < m->n; i++) free(m->mark[i].state);
    free(m->mark);
    *m = (Marks){0};
}
static void mark_leave(Marks *m, int i) {
    free(m->mark[i].state);
    m->n--;
    memmove(m->mark + i, m->mark + i + 1, (size_t)(m->n - i) * sizeof *m->mark);
}
char *marks_put(Marks *m, int seq, int length) {
    for (int i = 0; i < m->n; i++)
        if (m->mark[i].seq == seq && m->mark[i].length == length) return NULL;
    if (!m->most) return NULL;
    if (m->n == m->most) mark_leave(m, 0);
    m->mark[m->n] = (StateMark){seq, length, xcalloc(m->bytes, 1)};
    return m->mark[m->n++].state;
}
void marks_add(Marks *m, const Cache *c, int seq, int length) {
    char *to = length ? marks_put(m, seq, length) : NULL;
    if (to) kv_mark(c, seq, to);
}
void marks_drop(Marks *m, int seq, int to) {
    for (int i = m->n - 1; i >= 0; i--)
        if (m->mark[i].seq == seq && m->mark[i].length > to) mark_leave(m, i);
}
int marks_rewind(Marks *m, Cache *c, int seq, int to) {
    const StateMark *best = NULL;
    for (int i = 0; i < m->n; i++)
        if (m->mark[i].seq == seq && m->mark[i].length <= to && (!best || m->mark[i].length > best->length))
            best = &m->mark[i];
    return best && kv_rewind(c, seq, best->length, best->state) ? best->length : 0;
}
