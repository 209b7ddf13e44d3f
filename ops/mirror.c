/* mirror.c: which words were changed: a list of them, and a bit for each that stands in it. */
#include "mirror.h"
#include "device.h"

enum { ROOM = 1 << 16 }; /* words of one copy */
struct Mirror {
    Device *dev;
    const char *host;
    void *there, *mem;
    struct CudaWords *words;
    size_t count, n, most; /* words in all; of the list, and room in it */
    uint32_t *list;
    uint64_t *listed;
};

static int room_of(size_t bytes) { return imax(1, (int)zmin(bytes / sizeof(uint32_t), ROOM)); }
size_t mirror_bytes(size_t bytes) { return (size_t)room_of(bytes) * 2 * sizeof(uint32_t); }

bool mirror_open(Mirror **out, Device *dev, const void *host, void *there, size_t bytes, void *mem, Err *e) {
    size_t count = bytes / sizeof(uint32_t);
    if (count > UINT32_MAX)
        return err_world(e, "out of device memory: %zu bytes of tables; fewer or shorter sequences need less", bytes);
    Mirror *m = *out = xcalloc(1, sizeof *m);
    *m = (Mirror){.dev = dev, .host = host, .there = there, .mem = mem, .count = count};
    m->words = cuda_device_words_open(dev, room_of(bytes));
    m->listed = xcalloc(count / 64 + 1, sizeof *m->listed);
    return true;
}
void mirror_close(Mirror *m) {
    if (!m) return;
    cuda_device_words_close(m->dev, m->words);
    free(m->list);
    free(m->listed);
    free(m);
}

void mirror_changed(Mirror *m, const void *p, size_t bytes) {
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
bool mirror_behind(const Mirror *m) { return m->n > 0; }
void mirror_flush(Mirror *m) {
    const int room = room_of(m->count * sizeof(uint32_t));
    for (size_t at = 0; at < m->n;) {
        int n = imin(room, (int)zmin(m->n - at, ROOM));
        uint32_t *to = cuda_device_words_begin(m->dev, m->words);
        for (int i = 0; i < n; i++) {
            uint32_t w = m->list[at++];
            to[2 * i] = w;
            memcpy(&to[2 * i + 1], m->host + (size_t)w * sizeof w, sizeof w);
            m->listed[w / 64] &= ~((uint64_t)1 << w % 64);
        }
        cuda_device_words_end(m->dev, m->words, n, m->there, m->mem);
    }
    m->n = 0;
}
