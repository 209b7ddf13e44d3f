/* store.c: any bytes as what a connection of the meeting carries: a greeting, a hello, an answer and its bytes. Nothing
 * is accepted whose tag is not that of the secret, which a library's HMAC confirms; so that the readers behind the tags
 * are reached, too, every input is read a second time with its tags made right, and is then, byte for byte, what such a
 * rank writes. */
#include "fuzz.h"
#include "../../train/store_msg.h"

static void store_believed(const StoreTalk *t, const uint8_t *bytes, size_t n, StoreSecret s) {
    static const StoreKey mine = {.job = 0x0123456789abcdef, .config = 42, .rank = 0, .world = 4, .restart = 1};
    StoreKey theirs = {0};
    StoreWhat what = STORE_OK;
    StoreTalk again = *t;
    uint64_t value = 0, job;
    size_t many;
    CHECK(store_greeting_read(t, &job) == store_begins(t->greeting, 8), "greeting");
    if (store_hello_read(t, &mine, s, &theirs, &what)) {
        CHECK(theirs.rank >= 0 && theirs.world >= 0 && theirs.restart >= 0 && what <= STORE_RANK, "rank %d of %d",
              theirs.rank, theirs.world);
        store_hello_write(&again, &theirs, t->hello + 40, s);
        CHECK(!memcmp(again.hello, t->hello, 8) && !memcmp(again.hello + 12, t->hello + 12, 60), "rank %d",
              theirs.rank);
        if (what == STORE_OK)
            CHECK(!memcmp(again.hello, t->hello, STORE_HELLO) && theirs.rank > 0 && theirs.rank < 4 &&
                      theirs.world == 4 && theirs.job == mine.job && theirs.config == 42 && theirs.restart == 1,
                  "rank %d of %d", theirs.rank, theirs.world);
        again = *t;
    }
    if (!store_answer_bytes(t, &many)) return;
    CHECK(many <= STORE_BYTES_MAX, "%zu bytes", many);
    if (many > n || !store_answer_read(t, bytes, s, &what, &value)) return;
    CHECK(what <= STORE_RANK, "answer %d", what);
    if (what == STORE_OTHER_VERSION) return;
    store_answer_write(&again, what, value, bytes, many, s);
    CHECK(!memcmp(again.answer, t->answer, STORE_ANSWER), "answer %d", what);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static const StoreSecret secret = {"sixteen letters at least", 24};
    StoreTalk t = {{0}, {0}, {0}};
    memcpy(&t, p, zmin(n, sizeof t));
    const uint8_t *bytes = n > sizeof t ? p + sizeof t : p;
    size_t many = n > sizeof t ? n - sizeof t : 0, said;
    store_believed(&t, bytes, many, secret);
    /* The same with right tags, of its own fields. */
    StoreTalk made = t;
    StoreKey k = {.job = store_get(t.hello + 24, 8),
                  .config = store_get(t.hello + 32, 8),
                  .rank = (int)(store_get(t.hello + 12, 4) & INT32_MAX),
                  .world = (int)(store_get(t.hello + 16, 4) & INT32_MAX),
                  .restart = (int)(store_get(t.hello + 20, 4) & INT32_MAX)};
    store_hello_write(&made, &k, t.hello + 40, secret);
    said = zmin(store_get(t.answer + 24, 4), zmin(many, STORE_BYTES_MAX));
    store_answer_write(&made, (StoreWhat)(store_get(t.answer + 12, 4) % 9), store_get(t.answer + 16, 8), bytes, said,
                       secret);
    store_believed(&made, bytes, many, secret);
    return 0;
}
