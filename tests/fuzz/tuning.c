/* tuning.c: a file of measured choices, and what is read is written as it was meant.
 * Sources: ops/tuning.[ch] */
#include "ops/tuning.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    Tuning t, again;
    Err e = {0};
    if (!tuning_parse(&t, p, n, "fuzz", &e)) return 0;
    char *text = tuning_text(&t);
    CHECK(tuning_parse(&again, text, strlen(text), "again", &e), "%s", e.msg);
    CHECK(again.n == t.n && !strcmp(again.device, t.device), "%d and %d", again.n, t.n);
    tuning_free(&t), tuning_free(&again);
    free(text);
    return 0;
}
