/* events.c: any bytes as a TensorBoard file that a run goes on with, and as an Event in a record whose sums are right.
 * Sources: train/report/events.[ch] */
#include "fuzz.h"
#include "train/report/events.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    enum { ROOM = 1 << 17 };
    size_t all = events_kept(p, n, INT64_MAX), some = events_kept(p, n, 7);
    CHECK(some <= all && all <= n && events_kept(p, all, INT64_MAX) == all && events_kept(p, all, 7) == some,
          "kept %zu, of step 7 %zu, of %zu bytes", all, some, n);
    /* A version, then the input as a message. */
    static uint8_t file[ROOM];
    static const uint8_t version[] = "\x1a\x0d"
                                     "brain.Event:2";
    size_t sizes[] = {sizeof version - 1, n < ROOM / 2 ? n : ROOM / 2}, at = 0, first = 0;
    for (int k = 0; k < 2; k++) {
        uint8_t *r = file + at;
        for (int i = 0; i < 8; i++) r[i] = (uint8_t)(sizes[k] >> 8 * i);
        uint32_t head = events_sum(r, 8);
        if (sizes[k]) memcpy(r + 12, k ? p : version, sizes[k]);
        uint32_t body = events_sum(r + 12, sizes[k]);
        for (int i = 0; i < 4; i++)
            r[8 + i] = (uint8_t)(head >> 8 * i), r[12 + sizes[k] + (size_t)i] = (uint8_t)(body >> 8 * i);
        at += sizes[k] + 16;
        if (!k) first = at;
    }
    size_t kept = events_kept(file, at, INT64_MAX);
    CHECK(kept == first || kept == at, "%zu of %zu", kept, at);
    return 0;
}
