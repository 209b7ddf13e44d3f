/* sentencepiece.c: any bytes as a SentencePiece model. What is accepted encodes every byte and a text.
 * Sources: data/tokenizer_spm.c data/wire.h data/splits.[ch] data/trie.[ch] data/unigram.[ch] data/charsmap.[ch]
 * data/normal.[ch] */
#include "fuzz.h"
#include "data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Tokenizer t;
    Err e = {0};
    if (!tokenizer_parse_spm(&t, p, n, "input", &e)) {
        refusal(&e);
        return 0;
    }
    char text[256 + 20] = "";
    Ids ids = {0};
    for (int c = 0; c < 256; c++) text[c] = (char)c;
    memcpy(text + 256, "a \xC3\xA9 e\xCC\x81 king  ", 16);
    if (!tokenizer_encode(&t, text, sizeof text, ENCODE_SPECIAL | ENCODE_TEMPLATE, &ids, &e)) refusal(&e);
    for (size_t i = 0; i < ids.n; i++) CHECK(ids.id[i] >= 0 && ids.id[i] < t.vocab, "id %d of %d", ids.id[i], t.vocab);
    ids_free(&ids);
    tokenizer_close(&t);
    return 0;
}
