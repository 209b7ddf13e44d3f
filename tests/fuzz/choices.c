/* choices.c: any bytes as the items of eval choices, with bytes and with merges. What is accepted has a context and a
 * continuation of the tokenizer's ids that a window holds.
 * Sources: infer/eval/choice_set.[ch] data/jsonl.[ch] */
#include "fuzz.h"
#include "infer/eval/choice_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static Tokenizer merges;
    Tokenizer byte = tokenizer_byte(), *both[] = {&byte, &merges};
    Err e = {0};
    if (!merges.model) CHECK(tokenizer_load(&merges, "tests/golden/choices/llama3/tokenizer.json", &e), "%s", e.msg);
    for (int k = 0; k < 2; k++) {
        ChoiceRule rule = {both[k], k ? merges.bos : byte.eot, 24};
        ChoiceSet s = {0};
        Jsonl l = jsonl_memory(p, n, "input");
        e = (Err){0};
        if (!choice_set_read(&s, &rule, &l, 0, &e)) refusal(&e);
        for (int64_t i = 0; i < s.nask; i++) {
            const Ask *a = &s.ask[i];
            CHECK(a->cont >= 1 && a->n > a->cont && a->n <= 25, "%d of %d", a->cont, a->n);
            for (int q = 0; q < a->n; q++) CHECK(a->id[q] >= 0 && a->id[q] < both[k]->vocab, "id %d", a->id[q]);
        }
        choice_set_free(&s);
    }
    return 0;
}
