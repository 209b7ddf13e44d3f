/* rendezvous.c: any bytes as what a connection of the meeting carries: a greeting, a hello, an answer and its bytes.
 * Nothing is accepted whose tag is not that of the secret, which a library's HMAC confirms; so that the readers behind
 * the tags are reached, too, every input is read a second time with its tags made right, and is then, byte for byte,
 * what such a rank writes.
 * Sources: train/comm/rendezvous_msg.[ch] */
#include "fuzz.h"
#include "train/comm/rendezvous_msg.h"

static void rendezvous_believed(const RendezvousTalk *t, const uint8_t *bytes, size_t n, RendezvousSecret s) {
    static const RendezvousKey mine = {.job = 0x0123456789abcdef, .config = 42, .rank = 0, .world = 4, .restart = 1};
    RendezvousKey theirs = {0};
    RendezvousWhat what = RENDEZVOUS_OK;
    RendezvousTalk again = *t;
    uint64_t value = 0, job;
    size_t many;
    CHECK(rendezvous_greeting_read(t, &job) == rendezvous_begins(t->greeting, 8), "greeting");
    if (rendezvous_hello_read(t, &mine, s, &theirs, &what)) {
        CHECK(theirs.rank >= 0 && theirs.world >= 0 && theirs.restart >= 0 && what <= RENDEZVOUS_RANK, "rank %d of %d",
              theirs.rank, theirs.world);
        rendezvous_hello_write(&again, &theirs, t->hello + 40, s);
        CHECK(!memcmp(again.hello, t->hello, 8) && !memcmp(again.hello + 12, t->hello + 12, 60), "rank %d",
              theirs.rank);
        if (what == RENDEZVOUS_OK)
            CHECK(!memcmp(again.hello, t->hello, RENDEZVOUS_HELLO) && theirs.rank > 0 && theirs.rank < 4 &&
                      theirs.world == 4 && theirs.job == mine.job && theirs.config == 42 && theirs.restart == 1,
                  "rank %d of %d", theirs.rank, theirs.world);
        again = *t;
    }
    if (!rendezvous_answer_bytes(t, &many)) return;
    CHECK(many <= RENDEZVOUS_BYTES_MAX, "%zu bytes", many);
    if (many > n || !rendezvous_answer_read(t, bytes, s, &what, &value)) return;
    CHECK(what <= RENDEZVOUS_RANK, "answer %d", what);
    if (what == RENDEZVOUS_OTHER_VERSION) return;
    rendezvous_answer_write(&again, what, value, bytes, many, s);
    CHECK(!memcmp(again.answer, t->answer, RENDEZVOUS_ANSWER), "answer %d", what);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static const RendezvousSecret secret = {"sixteen letters at least", 24};
    RendezvousTalk t = {{0}, {0}, {0}};
    memcpy(&t, p, zmin(n, sizeof t));
    const uint8_t *bytes = n > sizeof t ? p + sizeof t : p;
    size_t many = n > sizeof t ? n - sizeof t : 0, said;
    rendezvous_believed(&t, bytes, many, secret);
    /* The same with right tags, of its own fields. */
    RendezvousTalk made = t;
    RendezvousKey k = {.job = rendezvous_get(t.hello + 24, 8),
                       .config = rendezvous_get(t.hello + 32, 8),
                       .rank = (int)(rendezvous_get(t.hello + 12, 4) & INT32_MAX),
                       .world = (int)(rendezvous_get(t.hello + 16, 4) & INT32_MAX),
                       .restart = (int)(rendezvous_get(t.hello + 20, 4) & INT32_MAX)};
    rendezvous_hello_write(&made, &k, t.hello + 40, secret);
    said = zmin(rendezvous_get(t.answer + 24, 4), zmin(many, RENDEZVOUS_BYTES_MAX));
    rendezvous_answer_write(&made, (RendezvousWhat)(rendezvous_get(t.answer + 12, 4) % 9),
                            rendezvous_get(t.answer + 16, 8), bytes, said, secret);
    rendezvous_believed(&made, bytes, many, secret);
    return 0;
}
