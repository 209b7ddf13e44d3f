#include "rendezvous_msg.h"
#include <errno.h>
#include <sodium.h>
#include <sys/random.h>

static const char magic[8] = "kvsmmeet";
enum { SAYS_HELLO = 1, SAYS_ANSWER, SAYS_THANKS, HELLO_SIGNED = RENDEZVOUS_HELLO - RENDEZVOUS_TAG, ANSWER_HEAD = 32 };

bool rendezvous_begins(const uint8_t *p, size_t n) { return !memcmp(p, magic, zmin(n, sizeof magic)); }
bool rendezvous_random(void *p, size_t n, Err *e) {
    for (size_t at = 0; at < n;) {
        ssize_t got = getrandom((char *)p + at, n - at, 0);
        if (got < 0 && errno != EINTR) return err_runtime(e, "ranks: cannot get random bytes: %s", strerror(errno));
        if (got > 0) at += (size_t)got;
    }
    return true;
}

static void rendezvous_msg_tag(const RendezvousTalk *t, uint8_t says, const void *bytes, size_t n, RendezvousSecret s,
                               uint8_t out[RENDEZVOUS_TAG]) {
    crypto_auth_hmacsha256_state h;
    crypto_auth_hmacsha256_init(&h, s.n ? s.p : "", s.n);
    crypto_auth_hmacsha256_update(&h, &says, 1);
    crypto_auth_hmacsha256_update(&h, t->greeting, sizeof t->greeting);
    crypto_auth_hmacsha256_update(&h, t->hello, says == SAYS_HELLO ? HELLO_SIGNED : RENDEZVOUS_HELLO);
    if (says >= SAYS_ANSWER)
        crypto_auth_hmacsha256_update(&h, t->answer, says == SAYS_ANSWER ? ANSWER_HEAD : RENDEZVOUS_ANSWER);
    if (n) crypto_auth_hmacsha256_update(&h, bytes, n);
    crypto_auth_hmacsha256_final(&h, out);
    sodium_memzero(&h, sizeof h);
}
static bool rendezvous_msg_tagged(const RendezvousTalk *t, uint8_t says, const void *bytes, size_t n,
                                  RendezvousSecret s, const uint8_t *is) {
    uint8_t want[RENDEZVOUS_TAG];
    rendezvous_msg_tag(t, says, bytes, n, s, want);
    return !sodium_memcmp(want, is, sizeof want);
}

void rendezvous_greeting_write(RendezvousTalk *t, const RendezvousKey *k, const uint8_t nonce[RENDEZVOUS_NONCE]) {
    uint8_t *p = t->greeting;
    memcpy(p, magic, 8);
    rendezvous_put(p + 8, RENDEZVOUS_VERSION, 4);
    rendezvous_put(p + 12, 0, 4);
    rendezvous_put(p + 16, k->job, 8);
    memcpy(p + 24, nonce, RENDEZVOUS_NONCE);
}
bool rendezvous_greeting_read(const RendezvousTalk *t, uint64_t *job) {
    *job = rendezvous_get(t->greeting + 16, 8);
    return !memcmp(t->greeting, magic, 8);
}

void rendezvous_hello_write(RendezvousTalk *t, const RendezvousKey *k, const uint8_t nonce[RENDEZVOUS_NONCE],
                            RendezvousSecret s) {
    uint8_t *p = t->hello;
    memcpy(p, magic, 8);
    rendezvous_put(p + 8, RENDEZVOUS_VERSION, 4);
    rendezvous_put(p + 12, (uint64_t)k->rank, 4);
    rendezvous_put(p + 16, (uint64_t)k->world, 4);
    rendezvous_put(p + 20, (uint64_t)k->restart, 4);
    rendezvous_put(p + 24, k->job, 8);
    rendezvous_put(p + 32, k->config, 8);
    memcpy(p + 40, nonce, RENDEZVOUS_NONCE);
    rendezvous_msg_tag(t, SAYS_HELLO, NULL, 0, s, p + HELLO_SIGNED);
}
bool rendezvous_hello_read(const RendezvousTalk *t, const RendezvousKey *mine, RendezvousSecret s, RendezvousKey *k,
                           RendezvousWhat *what) {
    const uint8_t *p = t->hello;
    uint64_t version = rendezvous_get(p + 8, 4), rank = rendezvous_get(p + 12, 4), world = rendezvous_get(p + 16, 4),
             restart = rendezvous_get(p + 20, 4);
    if (memcmp(p, magic, 8) || rank > INT32_MAX || world > INT32_MAX || restart > INT32_MAX) return false;
    if (!rendezvous_msg_tagged(t, SAYS_HELLO, NULL, 0, s, p + HELLO_SIGNED)) return false;
    *k = (RendezvousKey){.rank = (int)rank,
                         .world = (int)world,
                         .restart = (int)restart,
                         .job = rendezvous_get(p + 24, 8),
                         .config = rendezvous_get(p + 32, 8)};
    *what = k->job != mine->job               ? RENDEZVOUS_JOB
            : version != RENDEZVOUS_VERSION   ? RENDEZVOUS_OTHER_VERSION
            : k->restart != mine->restart     ? RENDEZVOUS_RESTART
            : k->world != mine->world         ? RENDEZVOUS_WORLD
            : k->config != mine->config       ? RENDEZVOUS_CONFIG
            : rank < 1 || k->rank >= k->world ? RENDEZVOUS_RANK
                                              : RENDEZVOUS_OK;
    return true;
}

void rendezvous_answer_write(RendezvousTalk *t, RendezvousWhat what, uint64_t value, const void *bytes, size_t n,
                             RendezvousSecret s) {
    uint8_t *p = t->answer;
    memcpy(p, magic, 8);
    rendezvous_put(p + 8, RENDEZVOUS_VERSION, 4);
    rendezvous_put(p + 12, what, 4);
    rendezvous_put(p + 16, value, 8);
    rendezvous_put(p + 24, n, 4);
    rendezvous_put(p + 28, 0, 4);
    rendezvous_msg_tag(t, SAYS_ANSWER, bytes, n, s, p + ANSWER_HEAD);
}
bool rendezvous_answer_bytes(const RendezvousTalk *t, size_t *n) {
    const uint8_t *p = t->answer;
    *n = rendezvous_get(p + 24, 4);
    return !memcmp(p, magic, 8) && rendezvous_get(p + 12, 4) <= RENDEZVOUS_RANK && *n <= RENDEZVOUS_BYTES_MAX &&
           !rendezvous_get(p + 28, 4);
}
bool rendezvous_answer_read(const RendezvousTalk *t, const void *bytes, RendezvousSecret s, RendezvousWhat *what,
                            uint64_t *value) {
    const uint8_t *p = t->answer;
    size_t n;
    if (!rendezvous_answer_bytes(t, &n) || !rendezvous_msg_tagged(t, SAYS_ANSWER, bytes, n, s, p + ANSWER_HEAD))
        return false;
    /* Its contents in another version are unknown here. */
    *what = rendezvous_get(p + 8, 4) == RENDEZVOUS_VERSION ? (RendezvousWhat)rendezvous_get(p + 12, 4)
                                                           : RENDEZVOUS_OTHER_VERSION;
    *value = *what == RENDEZVOUS_OTHER_VERSION ? rendezvous_get(p + 8, 4) : rendezvous_get(p + 16, 8);
    return true;
}

void rendezvous_thanks_write(const RendezvousTalk *t, RendezvousSecret s, uint8_t out[RENDEZVOUS_TAG]) {
    rendezvous_msg_tag(t, SAYS_THANKS, NULL, 0, s, out);
}
bool rendezvous_thanks_read(const RendezvousTalk *t, RendezvousSecret s, const uint8_t is[RENDEZVOUS_TAG]) {
    return rendezvous_msg_tagged(t, SAYS_THANKS, NULL, 0, s, is);
}
