/* The messages by which ranks meet: what their tags are, and that every byte counts. */
#include "train/comm/rendezvous_msg.h"
#include "tests/lib/check.h"
#include <sodium.h>

static const RendezvousSecret secret = {"a secret of sixteen or more", 27}, wrong = {"another secret, as long", 23};
static const RendezvousKey one = {
    .job = 0x0123456789abcdef, .config = 0xfedcba9876543210, .rank = 1, .world = 3, .restart = 2};
static RendezvousTalk whole_talk(const uint8_t *bytes, size_t n) {
    RendezvousTalk t;
    uint8_t nonce[RENDEZVOUS_NONCE];
    for (int i = 0; i < RENDEZVOUS_NONCE; i++) nonce[i] = (uint8_t)i;
    rendezvous_greeting_write(&t, &one, nonce);
    for (int i = 0; i < RENDEZVOUS_NONCE; i++) nonce[i] = (uint8_t)(200 - i);
    rendezvous_hello_write(&t, &one, nonce, secret);
    rendezvous_answer_write(&t, RENDEZVOUS_OK, 7, bytes, n, secret);
    return t;
}
/* Tags by Python: hmac.new(b'a secret of sixteen or more', bytes([k]) + messages, 'sha256'). */
Test(rendezvous_msg, tags_are_hmac_sha256) {
    static const char *const want[] = {"21d5b87eb55b11109d35c9180b2271c3a90206f04fa3bc02f4ee5ea907cf9422",
                                       "976fe42e7809c1cfeae1abdf736071dfa131117835de388abcfe666cd83250e3",
                                       "a9ff58e8d8bcee2de58bf9b42bdc34d2763e23b646210fe0144ab1c5242c1781"};
    RendezvousTalk t = whole_talk((const uint8_t *)"the bytes", 9);
    uint8_t thanks[RENDEZVOUS_TAG];
    rendezvous_thanks_write(&t, secret, thanks);
    const uint8_t *const tag[] = {t.hello + RENDEZVOUS_HELLO - RENDEZVOUS_TAG,
                                  t.answer + RENDEZVOUS_ANSWER - RENDEZVOUS_TAG, thanks};
    for (int k = 0; k < 3; k++) {
        char hex[2 * RENDEZVOUS_TAG + 1];
        sodium_bin2hex(hex, sizeof hex, tag[k], RENDEZVOUS_TAG);
        cr_expect_str_eq(hex, want[k]);
    }
}
/* Whatever byte of a connection is another than was sent: nobody takes it for the other end's. */
Test(rendezvous_msg, every_byte_counts) {
    uint8_t bytes[9] = "the bytes", thanks[RENDEZVOUS_TAG];
    RendezvousTalk t = whole_talk(bytes, sizeof bytes);
    RendezvousKey theirs;
    RendezvousWhat what;
    uint64_t value;
    rendezvous_thanks_write(&t, secret, thanks);
    cr_assert(rendezvous_hello_read(&t, &one, secret, &theirs, &what) && what == RENDEZVOUS_OK && theirs.rank == 1);
    cr_assert(rendezvous_answer_read(&t, bytes, secret, &what, &value) && what == RENDEZVOUS_OK && value == 7);
    cr_assert(rendezvous_thanks_read(&t, secret, thanks));
    cr_assert(!rendezvous_hello_read(&t, &one, wrong, &theirs, &what) && !rendezvous_thanks_read(&t, wrong, thanks) &&
              !rendezvous_answer_read(&t, bytes, wrong, &what, &value));
    cr_assert(!rendezvous_thanks_read(&t, secret, t.answer + RENDEZVOUS_ANSWER - RENDEZVOUS_TAG),
              "a tag of another message");
    uint8_t *all = (uint8_t *)&t;
    for (size_t i = 0; i < sizeof t; i++)
        for (int bit = 0; bit < 8; bit += 7) {
            all[i] ^= (uint8_t)(1 << bit);
            if (i < RENDEZVOUS_GREETING + RENDEZVOUS_HELLO)
                cr_expect(!rendezvous_hello_read(&t, &one, secret, &theirs, &what), "hello, byte %zu", i);
            cr_expect(!rendezvous_answer_read(&t, bytes, secret, &what, &value), "answer, byte %zu", i);
            cr_expect(!rendezvous_thanks_read(&t, secret, thanks), "thanks, byte %zu", i);
            all[i] ^= (uint8_t)(1 << bit);
        }
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] ^= 1;
        cr_expect(!rendezvous_answer_read(&t, bytes, secret, &what, &value), "byte %zu", i);
        bytes[i] ^= 1;
    }
    for (size_t i = 0; i < sizeof thanks; i++) {
        thanks[i] ^= 1;
        cr_expect(!rendezvous_thanks_read(&t, secret, thanks), "thanks, byte %zu", i);
        thanks[i] ^= 1;
    }
}
