#include "store_msg.h"
#include <errno.h>
#include <sodium.h>
#include <sys/random.h>

static const char magic[8] = "kvsmmeet";
enum { SAYS_HELLO = 1, SAYS_ANSWER, SAYS_THANKS, HELLO_SIGNED = STORE_HELLO - STORE_TAG, ANSWER_HEAD = 32 };

bool store_begins(const uint8_t *p, size_t n) { return !memcmp(p, magic, zmin(n, sizeof magic)); }
bool store_random(void *p, size_t n, Err *e) {
    for (size_t at = 0; at < n;) {
        ssize_t got = getrandom((char *)p + at, n - at, 0);
        if (got < 0 && errno != EINTR) return err_world(e, "ranks: no random number: %s", strerror(errno));
        if (got > 0) at += (size_t)got;
    }
    return true;
}

static void tag(const StoreTalk *t, uint8_t says, const void *bytes, size_t n, StoreSecret s, uint8_t out[STORE_TAG]) {
    crypto_auth_hmacsha256_state h;
    crypto_auth_hmacsha256_init(&h, s.n ? s.p : "", s.n);
    crypto_auth_hmacsha256_update(&h, &says, 1);
    crypto_auth_hmacsha256_update(&h, t->greeting, sizeof t->greeting);
    crypto_auth_hmacsha256_update(&h, t->hello, says == SAYS_HELLO ? HELLO_SIGNED : STORE_HELLO);
    if (says >= SAYS_ANSWER)
        crypto_auth_hmacsha256_update(&h, t->answer, says == SAYS_ANSWER ? ANSWER_HEAD : STORE_ANSWER);
    if (n) crypto_auth_hmacsha256_update(&h, bytes, n);
    crypto_auth_hmacsha256_final(&h, out);
    sodium_memzero(&h, sizeof h);
}
static bool tagged(const StoreTalk *t, uint8_t says, const void *bytes, size_t n, StoreSecret s, const uint8_t *is) {
    uint8_t want[STORE_TAG];
    tag(t, says, bytes, n, s, want);
    return !sodium_memcmp(want, is, sizeof want);
}

void store_greeting_write(StoreTalk *t, const StoreKey *k, const uint8_t nonce[STORE_NONCE]) {
    uint8_t *p = t->greeting;
    memcpy(p, magic, 8);
    store_put(p + 8, STORE_VERSION, 4);
    store_put(p + 12, 0, 4);
    store_put(p + 16, k->job, 8);
    memcpy(p + 24, nonce, STORE_NONCE);
}
bool store_greeting_read(const StoreTalk *t, uint64_t *job) {
    *job = store_get(t->greeting + 16, 8);
    return !memcmp(t->greeting, magic, 8);
}

void store_hello_write(StoreTalk *t, const StoreKey *k, const uint8_t nonce[STORE_NONCE], StoreSecret s) {
    uint8_t *p = t->hello;
    memcpy(p, magic, 8);
    store_put(p + 8, STORE_VERSION, 4);
    store_put(p + 12, (uint64_t)k->rank, 4);
    store_put(p + 16, (uint64_t)k->world, 4);
    store_put(p + 20, (uint64_t)k->restart, 4);
    store_put(p + 24, k->job, 8);
    store_put(p + 32, k->config, 8);
    memcpy(p + 40, nonce, STORE_NONCE);
    tag(t, SAYS_HELLO, NULL, 0, s, p + HELLO_SIGNED);
}
bool store_hello_read(const StoreTalk *t, const StoreKey *mine, StoreSecret s, StoreKey *k, StoreWhat *what) {
    const uint8_t *p = t->hello;
    uint64_t version = store_get(p + 8, 4), rank = store_get(p + 12, 4), world = store_get(p + 16, 4),
             restart = store_get(p + 20, 4);
    if (memcmp(p, magic, 8) || rank > INT32_MAX || world > INT32_MAX || restart > INT32_MAX) return false;
    if (!tagged(t, SAYS_HELLO, NULL, 0, s, p + HELLO_SIGNED)) return false;
    *k = (StoreKey){.rank = (int)rank,
                    .world = (int)world,
                    .restart = (int)restart,
                    .job = store_get(p + 24, 8),
                    .config = store_get(p + 32, 8)};
    *what = k->job != mine->job               ? STORE_JOB
            : version != STORE_VERSION        ? STORE_OTHER_VERSION
            : k->restart != mine->restart     ? STORE_RESTART
            : k->world != mine->world         ? STORE_WORLD
            : k->config != mine->config       ? STORE_CONFIG
            : rank < 1 || k->rank >= k->world ? STORE_RANK
                                              : STORE_OK;
    return true;
}

void store_answer_write(StoreTalk *t, StoreWhat what, uint64_t value, const void *bytes, size_t n, StoreSecret s) {
    uint8_t *p = t->answer;
    memcpy(p, magic, 8);
    store_put(p + 8, STORE_VERSION, 4);
    store_put(p + 12, what, 4);
    store_put(p + 16, value, 8);
    store_put(p + 24, n, 4);
    store_put(p + 28, 0, 4);
    tag(t, SAYS_ANSWER, bytes, n, s, p + ANSWER_HEAD);
}
bool store_answer_bytes(const StoreTalk *t, size_t *n) {
    const uint8_t *p = t->answer;
    *n = store_get(p + 24, 4);
    return !memcmp(p, magic, 8) && store_get(p + 12, 4) <= STORE_RANK && *n <= STORE_BYTES_MAX && !store_get(p + 28, 4);
}
bool store_answer_read(const StoreTalk *t, const void *bytes, StoreSecret s, StoreWhat *what, uint64_t *value) {
    const uint8_t *p = t->answer;
    size_t n;
    if (!store_answer_bytes(t, &n) || !tagged(t, SAYS_ANSWER, bytes, n, s, p + ANSWER_HEAD)) return false;
    /* What it says in another version is not for this one to know. */
    *what = store_get(p + 8, 4) == STORE_VERSION ? (StoreWhat)store_get(p + 12, 4) : STORE_OTHER_VERSION;
    *value = *what == STORE_OTHER_VERSION ? store_get(p + 8, 4) : store_get(p + 16, 8);
    return true;
}

void store_thanks_write(const StoreTalk *t, StoreSecret s, uint8_t out[STORE_TAG]) {
    tag(t, SAYS_THANKS, NULL, 0, s, out);
}
bool store_thanks_read(const StoreTalk *t, StoreSecret s, const uint8_t is[STORE_TAG]) {
    return tagged(t, SAYS_THANKS, NULL, 0, s, is);
}
