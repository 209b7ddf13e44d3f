/* store_msg.h: the messages by which ranks meet (store.h), each with a tag that shows who knows the secret of the job.
 *
 *   greeting  "kvsmmeet"  u32 version  u32 0     u64 job     32 random bytes, rank 0's                      56 bytes
 *   hello     "kvsmmeet"  u32 version  u32 rank  u32 world   u32 restart  u64 job  u64 config
 *             32 random bytes, the rank's; tag                                                            104 bytes
 *   answer    "kvsmmeet"  u32 version  u32 what (StoreWhat)  u64 rank 0's value  u32 n  u32 0; tag         64 bytes, then n
 *   thanks    tag                                                                                         32 bytes
 *
 * Numbers are little-endian. A tag is HMAC-SHA256, keyed by the secret, over a byte that numbers the message and all
 * bytes of the connection up to it; of an answer the n bytes count, too. Each side's random bytes are new in every
 * connection, so that nothing recorded is accepted again. The layout of greeting, hello and answer stays in every later
 * version: one that differs can then be named by who knows the secret. Bytes are trusted only after their tag. */
#pragma once
#include "../ops/base.h"

/* Little-endian numbers of a message. */
static inline void store_put(uint8_t *p, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> 8 * i);
}
static inline uint64_t store_get(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

enum {
    STORE_VERSION = 2,
    STORE_NONCE = 32,
    STORE_TAG = 32,
    STORE_GREETING = 24 + STORE_NONCE,
    STORE_HELLO = 40 + STORE_NONCE + STORE_TAG,
    STORE_ANSWER = 32 + STORE_TAG,
    STORE_BYTES_MAX = 4096
};
typedef enum {
    STORE_OK,
    STORE_OTHER_VERSION,
    STORE_JOB,
    STORE_RESTART,
    STORE_WORLD,
    STORE_CONFIG,
    STORE_RANK
} StoreWhat;

typedef struct {
    uint64_t job, config; /* hashes */
    int rank, world, restart;
} StoreKey;
typedef struct {
    const void *p; /* n 0: none; tags then only show that the bytes are whole */
    size_t n;
} StoreSecret;
/* The messages of one connection as they were sent or have come. */
typedef struct {
    uint8_t greeting[STORE_GREETING], hello[STORE_HELLO], answer[STORE_ANSWER];
} StoreTalk;

/* Whether the n bytes may become one of these messages: nothing is waited for behind a beginning that is wrong. */
bool store_begins(const uint8_t *p, size_t n);
/* Random bytes of the system. */
bool store_random(void *p, size_t n, Err *);

void store_greeting_write(StoreTalk *, const StoreKey *mine, const uint8_t nonce[STORE_NONCE]);
/* Whether it is one, of any version; *job is what it claims: nobody has shown anything yet. */
bool store_greeting_read(const StoreTalk *, uint64_t *job);

void store_hello_write(StoreTalk *, const StoreKey *mine, const uint8_t nonce[STORE_NONCE], StoreSecret);
/* What rank 0 makes of a hello; STORE_RANK: a rank that is none of 1 .. world-1. False: it is none, or its tag is not
 * that of the secret, greeting and hello. */
bool store_hello_read(const StoreTalk *, const StoreKey *mine, StoreSecret, StoreKey *theirs, StoreWhat *);

void store_answer_write(StoreTalk *, StoreWhat, uint64_t value, const void *bytes, size_t n, StoreSecret);
/* How many bytes stand behind an answer. False: it is none. */
bool store_answer_bytes(const StoreTalk *, size_t *n);
/* What another rank makes of an answer with its bytes. False: its tag is wrong. */
bool store_answer_read(const StoreTalk *, const void *bytes, StoreSecret, StoreWhat *, uint64_t *value);

void store_thanks_write(const StoreTalk *, StoreSecret, uint8_t out[STORE_TAG]);
bool store_thanks_read(const StoreTalk *, StoreSecret, const uint8_t tag[STORE_TAG]);
