/* tiktoken.c: any bytes as a tiktoken file, and the rest after a NUL as its tokenizer_config.json. What is accepted
 * encodes every byte.
 * Sources: data/tokenizer_tiktoken.c data/splits.[ch] data/trie.[ch] */
#include "fuzz.h"
#include "data/tokenizer.h"
#include "ops/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Tokenizer t;
    Err e = {0};
    const uint8_t *nul = n ? memchr(p, 0, n) : NULL;
    json_t *config = nul ? json_parse(nul + 1, n - (size_t)(nul - p) - 1, "config", NULL, &e) : NULL;
    e = (Err){0};
    bool ok = tokenizer_parse_tiktoken(&t, "qwen.tiktoken", p, nul ? (size_t)(nul - p) : n, config, "input", &e);
    json_decref(config);
    if (!ok) {
        refusal(&e);
        return 0;
    }
    char text[256];
    Ids ids = {0};
    for (int c = 0; c < 256; c++) text[c] = (char)c;
    if (!tokenizer_encode(&t, text, sizeof text, ENCODE_SPECIAL | ENCODE_TEMPLATE, &ids, &e)) refusal(&e);
    for (size_t i = 0; i < ids.n; i++) CHECK(ids.id[i] >= 0 && ids.id[i] < t.vocab, "id %d of %d", ids.id[i], t.vocab);
    ids_free(&ids);
    tokenizer_close(&t);
    return 0;
}
