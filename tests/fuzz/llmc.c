/* llmc.c: any bytes as llm.c's file of tokens. What is accepted can be read to its end.
 * Sources: data/indexed.[ch] */
#include "fuzz.h"
#include "data/indexed.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Err e = {0};
    Tokens t;
    int64_t sum = 0;
    uint64_t room[(1 << 16) / 8 + 1]; /* ids are aligned in a file that is mapped */
    if (n > sizeof room) return 0;
    if (n) memcpy(room, p, n);
    if (!llmc_check((const unsigned char *)room, n, "input", &t, &e)) {
        refusal(&e);
        return 0;
    }
    for (size_t i = 0; i < t.n; i++) sum += token_at(&t, i);
    CHECK(t.n > 0 && sum >= 0 && 1024 + t.n * id_bytes(t.type) == n, "%zu tokens", t.n);
    return 0;
}
