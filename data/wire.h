/* wire.h: reads the fields of a protobuf message in memory. The reader of SentencePiece models calls it.
 *
 * A message is a sequence of fields: a key (varint: number << 3 | type), then a varint (type 0), 8 bytes (1), a length
 * and as many bytes (2), or 4 bytes (5), little-endian. Source: the Protocol Buffers encoding page. */
#pragma once
#include "ops/base.h"

typedef struct {
    int number;
    unsigned type;
    uint64_t value;          /* types 0, 1 and 5 */
    const unsigned char *at; /* type 2: n bytes */
    size_t n;
} WireField;
typedef struct {
    const unsigned char *p, *end;
    bool broken; /* truncated, or a field of another type */
} Wire;
static inline Wire wire_of(const void *p, size_t n) { return (Wire){.p = p, .end = (const unsigned char *)p + n}; }

static inline uint64_t wire_varint(Wire *w) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (w->p == w->end) break;
        const unsigned char c = *w->p++;
        v |= (uint64_t)(c & 0x7F) << shift;
        if (c < 0x80) return v;
    }
    w->broken = true;
    return 0;
}
/* The next field; false: the end, or broken. */
static inline bool wire_next(Wire *w, WireField *f) {
    if (w->broken || w->p == w->end) return false;
    const uint64_t key = wire_varint(w);
    *f = (WireField){.number = (int)(key >> 3 & 0x1FFFFFFF), .type = key & 7};
    if (f->type == 0) {
        f->value = wire_varint(w);
    } else if (f->type == 1 || f->type == 5) {
        const size_t n = f->type == 1 ? 8 : 4;
        w->broken |= (size_t)(w->end - w->p) < n;
        for (size_t i = 0; i < n && !w->broken; i++) f->value |= (uint64_t)*w->p++ << 8 * i;
    } else if (f->type == 2) {
        const uint64_t n = wire_varint(w);
        w->broken |= n > (uint64_t)(w->end - w->p);
        if (w->broken) return false;
        f->at = w->p, f->n = (size_t)n;
        w->p += n;
    } else {
        w->broken = true;
    }
    return !w->broken;
}
