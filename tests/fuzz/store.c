/* store.c: any bytes as the hello that rank 0 reads and as the answer that the others read. What is accepted as a hello
 * of this run is, byte for byte, what such a rank writes. */
#include "fuzz.h"
#include "../../train/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static const StoreKey mine = {.job = 0x0123456789abcdef, .config = 42, .rank = 0, .world = 4, .restart = 1};
    StoreKey theirs = {0};
    StoreWhat what = STORE_OK;
    uint64_t value = 0;
    size_t bytes = 0;
    uint8_t again[STORE_HELLO];
    if (store_hello_read(&mine, p, n, &theirs, &what)) {
        CHECK(n == STORE_HELLO && theirs.rank >= 0 && theirs.world >= 0 && theirs.restart >= 0 && what <= STORE_RANK,
              "rank %d of %d", theirs.rank, theirs.world);
        store_hello_write(&theirs, again);
        if (what != STORE_OTHER_VERSION) CHECK(!memcmp(p, again, sizeof again), "hello of rank %d", theirs.rank);
        if (what == STORE_OK)
            CHECK(theirs.rank > 0 && theirs.rank < 4 && theirs.world == 4 && theirs.job == mine.job &&
                      theirs.config == 42 && theirs.restart == 1,
                  "rank %d of %d", theirs.rank, theirs.world);
    }
    if (store_answer_read(p, n, &what, &value, &bytes)) {
        CHECK(n == STORE_ANSWER && bytes <= STORE_BYTES_MAX && what <= STORE_RANK, "%zu bytes", bytes);
        if (what == STORE_OTHER_VERSION) return 0;
        store_answer_write(what, value, bytes, again);
        CHECK(!memcmp(p, again, 28), "answer %d", what);
    }
    return 0;
}
