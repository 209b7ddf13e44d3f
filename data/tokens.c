/* tokens.c: widths of ids, slices of a view, and the search for documents in an index. */
#include "tokens.h"

static const struct {
    size_t bytes;
    const char *name;
} type[ID_TYPES] = {[ID_16] = {2, "uint16"}, [ID_32] = {4, "uint32"}, [ID_8] = {1, "uint8"},  [ID_S8] = {1, "int8"},
                    [ID_S16] = {2, "int16"}, [ID_S32] = {4, "int32"}, [ID_S64] = {8, "int64"}};
size_t id_bytes(IdType t) { return type[t].bytes; }
const char *id_name(IdType t) { return type[t].name; }

static int64_t tokens_load(const unsigned char *p) {
    int64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
size_t docs_start(const Docs *d, size_t k) {
    size_t seq = k < d->ndoc ? (size_t)tokens_load(d->doc + 8 * k) : d->nseq;
    return seq < d->nseq ? (size_t)tokens_load(d->offset + 8 * seq) / d->width : d->tokens;
}

size_t tokens_next_doc(const Tokens *t, size_t at) {
    if (!t->docs) return SIZE_MAX;
    size_t want = t->from + at, lo = 0, hi = t->docs->ndoc; /* the first document of lo..hi-1 at or after `want` */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (docs_start(t->docs, mid) < want)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == t->docs->ndoc) return SIZE_MAX;
    size_t start = docs_start(t->docs, lo);
    return start - t->from < t->n ? start - t->from : SIZE_MAX;
}

Tokens tokens_slice(Tokens t, size_t from, size_t n) {
    CHECK(from <= t.n && n <= t.n - from, "%zu from %zu of %zu", n, from, t.n);
    t.id = (const char *)t.id + from * id_bytes(t.type);
    t.from += from;
    t.n = n;
    return t;
}
