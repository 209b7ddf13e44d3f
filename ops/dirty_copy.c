/* dirty_copy.c: keeps the list of changed words, and a bit for each word that is in the list. */
#include "dirty_copy.h"
#include "device.h"

enum { ROOM = 1 << 16 }; /* words of one flush copy */
struct DirtyCopy {
    Device *dev;
    const char *host;
    void *there, *mem;
    struct CudaWords *words;
    size_t count, n, most; /* words in all; words in the list, and its capacity */
    uint32_t *list;
    uint64_t *listed;
};

static int room_of(size_t bytes) { return imax(1, (int)zmin(bytes / sizeof(uint32_t), ROOM)); }
size_t dirty_copy_bytes(size_t bytes) { return (size_t)room_of(bytes) * 2 * sizeof(uint32_t); }

bool dirty_copy_open(DirtyCopy **out, Device *dev, const void *host, void *there, size_t bytes, void *mem, Err *e) {
    size_t count = bytes / sizeof(uint32_t);
    if (count > UINT32_MAX)
        return err_runtime(e, "out of device memory: %zu bytes of tables; fewer or shorter sequences need less", bytes);
    DirtyCopy *m = *out = xcalloc(1, sizeof *m);
    *m = (DirtyCopy){.dev = dev, .host = host, .there = there, .mem = mem, .count = count};
    m->words = dev->backend->words_open(dev, room_of(bytes));
    m->listed = xcalloc(count / 64 + 1, sizeof *m->listed);
    return true;
}
void dirty_copy_close(DirtyCopy *m) {
    if (!m) return;
    m->dev->backend->words_close(m->dev, m->words);
    free(m->list);
    free(m->listed);
    free(m);
}

void dirty_copy_changed(DirtyCopy *m, const void *p, size_t bytes) {
    size_t at = (size_t)((const char *)p - m->host), end = (at + bytes + 3) / sizeof(uint32_t);
    CHECK(end <= m->count, "byte %zu of %zu words", at + bytes, m->count);
    for (size_t w = at / sizeof(uint32_t); w < end; w++) {
        uint64_t bit = (uint64_t)1 << w % 64;
        if (m->listed[w / 64] & bit) continue;
        m->listed[w / 64] |= bit;
        if (m->n == m->most) m->list = xrealloc(m->list, m->most = zmax(1024, 2 * m->most), sizeof *m->list);
        m->list[m->n++] = (uint32_t)w;
    }
}
bool dirty_copy_behind(const DirtyCopy *m) { return m->n > 0; }
void dirty_copy_flush(DirtyCopy *m) {
    const int room = room_of(m->count * sizeof(uint32_t));
    for (size_t at = 0; at < m->n;) {
        int n = imin(room, (int)zmin(m->n - at, ROOM));
        uint32_t *to = m->dev->backend->words_begin(m->dev, m->words);
        for (int i = 0; i < n; i++) {
            uint32_t w = m->list[at++];
            to[2 * i] = w;
            memcpy(&to[2 * i + 1], m->host + (size_t)w * sizeof w, sizeof w);
            m->listed[w / 64] &= ~((uint64_t)1 << w % 64);
        }
        m->dev->backend->words_end(m->dev, m->words, n, m->there, m->mem);
    }
    m->n = 0;
}
