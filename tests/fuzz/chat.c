/* chat.c: any bytes as a file of conversations, by some template, with bytes and with merges. What is accepted has ids
 * of the tokenizer, the first of them not learned, and can be packed.
 * Sources: data/chat.[ch] data/sft.[ch] data/jsonl.[ch] data/pack.[ch] */
#include "fuzz.h"
#include "data/sft.h"
#include "data/jsonl.h"

static void chat_file(const Tokenizer *t, int template, bool all, const uint8_t *p, size_t n) {
    Chat c;
    Err e = {0};
    Ids ids = {0};
    json_t *j;
    int len[64], count = 0;
    Jsonl l = jsonl_memory(p, n, "input");
    chat_open(&c, t, template, all);
    for (bool ok = true; ok && (ok = jsonl_next(&l, &j, &e)) && j;) {
        ids.n = 0;
        ok = chat_encode(&c, j, l.where, &ids, &e);
        json_decref(j);
        for (size_t i = 0; ok && i < ids.n; i++) {
            int id = ids.id[i] & ~CHAT_LEARN;
            CHECK(id >= 0 && id < t->vocab && (i || id == ids.id[i]), "id %d of %d", ids.id[i], t->vocab);
        }
        if (ok && ids.n && count < 64) len[count++] = 1 + (int)(ids.n % 100);
    }
    if (e.status) refusal(&e);
    Pack pack;
    pack_make(&pack, len, count, 100);
    CHECK(pack.first[pack.n] == count, "%d of %d", pack.first[pack.n], count);
    pack_free(&pack);
    chat_close(&c);
    ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static Tokenizer t;
    Tokenizer byte = tokenizer_byte();
    Err e = {0};
    if (!t.model) CHECK(tokenizer_load(&t, "tests/golden/sft/llama3-llama3.json", &e), "%s", e.msg);
    int template = CHAT_CHATML + (n ? p[n / 2] : 0) % 4; /* one of them is fast enough to be run often */
    chat_file(&byte, template, n % 2, p, n);
    chat_file(&t, template, n % 2 == 0, p, n);
    return 0;
}
