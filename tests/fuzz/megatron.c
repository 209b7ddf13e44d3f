/* megatron.c: any bytes as the index of a Megatron set; the .bin has as many bytes as the last two tell. What is
 * accepted tells documents in order, within the ids.
 * Sources: data/indexed.[ch] */
#include "fuzz.h"
#include "data/indexed.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Err e = {0};
    Docs d;
    IdType type;
    size_t bin = n >= 2 ? (size_t)p[n - 1] << 8 | p[n - 2] : 0, last = 0;
    if (n >= 2) n -= 2;
    if (!megatron_check(p, n, bin, "input", &d, &type, &e)) {
        refusal(&e);
        return 0;
    }
    Tokens all = {.n = d.tokens, .type = type, .docs = &d};
    CHECK(d.tokens * id_bytes(type) == bin, "%zu tokens", d.tokens);
    for (size_t i = 0; i <= d.ndoc; i++) {
        size_t at = docs_start(&d, i);
        CHECK(at >= last && at <= d.tokens, "document %zu at %zu of %zu", i, at, d.tokens);
        last = at;
    }
    CHECK(last == d.tokens, "documents end at %zu of %zu", last, d.tokens);
    for (size_t at = 0; at < d.tokens; at++) {
        size_t next = tokens_next_doc(&all, at);
        CHECK(next == SIZE_MAX || (next >= at && next < d.tokens), "%zu behind %zu", next, at);
    }
    return 0;
}
