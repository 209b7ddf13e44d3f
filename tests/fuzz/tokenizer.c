/* tokenizer.c: any bytes as a tokenizer.json. What is accepted encodes every byte and gives it back.
 * Sources: data/tokenizer*.[ch] data/tok_*.h data/bpe.[ch] data/pretoken.[ch] data/regex.[ch] data/normal.[ch]
 * data/charsmap.[ch] data/unigram.[ch] data/wordpiece.[ch] data/trie.[ch] ops/file.[ch] */
#include "fuzz.h"
#include "data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Tokenizer t;
    Err e = {0};
    if (!tokenizer_parse(&t, (const char *)p, n, "input", &e)) {
        refusal(&e);
        return 0;
    }
    for (int c = 0; c < 256; c++) {
        char byte = (char)c;
        Ids ids = {0};
        if (!tokenizer_encode(&t, &byte, 1, ENCODE_SPECIAL | ENCODE_TEMPLATE, &ids, &e)) refusal(&e);
        for (size_t i = 0; i < ids.n; i++) {
            size_t len;
            CHECK(ids.id[i] >= 0 && ids.id[i] < t.vocab, "byte %d: id %d of %d", c, ids.id[i], t.vocab);
            tokenizer_decode(&t, ids.id[i], &len);
        }
        ids_free(&ids);
    }
    char *again = tokenizer_json(&t);
    free(again);
    tokenizer_close(&t);
    return 0;
}
