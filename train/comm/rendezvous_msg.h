/* rendezvous_msg.h: the messages of a rendezvous (rendezvous.h), each with a tag that proves knowledge of the job's
 * secret. rendezvous.c sends and reads them; a fuzzer feeds them any bytes.
 *
 *   greeting  "kvsmmeet"  u32 version  u32 0     u64 job     32 random bytes, rank 0's                      56 bytes
 *   hello     "kvsmmeet"  u32 version  u32 rank  u32 world   u32 restart  u64 job  u64 config
 *             32 random bytes, the rank's; tag                                                            104 bytes
 *   answer    "kvsmmeet"  u32 version  u32 what (RendezvousWhat)  u64 rank 0's value  u32 n  u32 0; tag
 *             64 bytes, then n
 *   thanks    tag                                                                                         32 bytes
 *
 * Numbers are little-endian. A tag is HMAC-SHA256, keyed by the secret, over a byte that numbers the message and all
 * bytes of the connection up to it, the n bytes of an answer included. Each side's random bytes are new in every
 * connection, so replayed messages are never accepted. The layout of greeting, hello and answer stays the same in every
 * later version: a peer that knows the secret can then name a version that differs. Bytes are trusted only after their
 * tag. */
#pragma once
#include "ops/base.h"

/* Little-endian numbers of a message. */
static inline void rendezvous_put(uint8_t *p, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> 8 * i);
}
static inline uint64_t rendezvous_get(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

enum {
    RENDEZVOUS_VERSION = 2,
    RENDEZVOUS_NONCE = 32,
    RENDEZVOUS_TAG = 32,
    RENDEZVOUS_GREETING = 24 + RENDEZVOUS_NONCE,
    RENDEZVOUS_HELLO = 40 + RENDEZVOUS_NONCE + RENDEZVOUS_TAG,
    RENDEZVOUS_ANSWER = 32 + RENDEZVOUS_TAG,
    RENDEZVOUS_BYTES_MAX = 4096
};
typedef enum {
    RENDEZVOUS_OK,
    RENDEZVOUS_OTHER_VERSION,
    RENDEZVOUS_JOB,
    RENDEZVOUS_RESTART,
    RENDEZVOUS_WORLD,
    RENDEZVOUS_CONFIG,
    RENDEZVOUS_RANK
} RendezvousWhat;

typedef struct {
    uint64_t job, config; /* hashes */
    int rank, world, restart;
} RendezvousKey;
typedef struct {
    const void *p; /* n 0: none; tags then only show that the bytes are complete */
    size_t n;
} RendezvousSecret;
/* The messages of one connection as they were sent or received. */
typedef struct {
    uint8_t greeting[RENDEZVOUS_GREETING], hello[RENDEZVOUS_HELLO], answer[RENDEZVOUS_ANSWER];
} RendezvousTalk;

/* True if the n bytes may become one of these messages: a receiver does not wait for more after a wrong beginning. */
bool rendezvous_begins(const uint8_t *p, size_t n);
/* Random bytes from the system. */
bool rendezvous_random(void *p, size_t n, Err *);

void rendezvous_greeting_write(RendezvousTalk *, const RendezvousKey *mine, const uint8_t nonce[RENDEZVOUS_NONCE]);
/* True if it is a greeting, of any version; *job is what it claims: nothing has been proved yet. */
bool rendezvous_greeting_read(const RendezvousTalk *, uint64_t *job);

void rendezvous_hello_write(RendezvousTalk *, const RendezvousKey *mine, const uint8_t nonce[RENDEZVOUS_NONCE],
                            RendezvousSecret);
/* Reads a hello on rank 0; RENDEZVOUS_RANK: a rank outside 1 .. world-1. False: it is no hello, or its tag does not
 * match the secret, greeting and hello. */
bool rendezvous_hello_read(const RendezvousTalk *, const RendezvousKey *mine, RendezvousSecret, RendezvousKey *theirs,
                           RendezvousWhat *);

void rendezvous_answer_write(RendezvousTalk *, RendezvousWhat, uint64_t value, const void *bytes, size_t n,
                             RendezvousSecret);
/* The number of bytes after an answer. False: it is no answer. */
bool rendezvous_answer_bytes(const RendezvousTalk *, size_t *n);
/* Reads an answer with its bytes on another rank. False: its tag is wrong. */
bool rendezvous_answer_read(const RendezvousTalk *, const void *bytes, RendezvousSecret, RendezvousWhat *,
                            uint64_t *value);

void rendezvous_thanks_write(const RendezvousTalk *, RendezvousSecret, uint8_t out[RENDEZVOUS_TAG]);
bool rendezvous_thanks_read(const RendezvousTalk *, RendezvousSecret, const uint8_t tag[RENDEZVOUS_TAG]);
