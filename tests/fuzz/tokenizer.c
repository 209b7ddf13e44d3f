/* tokenizer.c: any bytes as a tokenizer.json. What is accepted encodes every byte and gives it back. */
#include "fuzz.h"
#include "../../data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Tokenizer t;
    Err e = {0};
    if (!tokenizer_parse(&t, (const char *)p, n, "input", &e)) {
        refusal(&e);
        return 0;
    }
    for (int c = 0; c < 256; c++) {
        char byte = (char)c;
        int id;
        size_t len;
        CHECK(tokenizer_encode(&t, &byte, 1, &id) == 1 && id >= 0 && id < t.vocab, "byte %d", c);
        const char *back = tokenizer_decode(&t, id, &len);
        CHECK(len == 1 && *back == byte, "byte %d became id %d", c, id);
    }
    return 0;
}
