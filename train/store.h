/* store.h: where ranks meet before they have a Comm: rank 0 hands a few bytes, and on one machine a descriptor, to
 * every other. The bytes are what a library needs to find itself (NCCL's id); the descriptor is memory to share.
 *
 * Messages, little-endian:
 *   hello   "kvsmstor"  u32 version  u32 rank  u32 world  u32 restart  u64 job  u64 config      40 bytes
 *   answer  "kvsmstor"  u32 version  u32 what (StoreWhat)  u64 rank 0's value  u32 n  u32 0      32 bytes, then n
 *   thanks  one byte, so that rank 0 knows who has it
 *
 * A process of the same job that comes from an earlier start, with another configuration, world or version, is told so
 * and ends with EXIT_INPUT; rank 0 goes on waiting for the right one. Whoever says anything else is hung up on, and
 * asked again if it should have been rank 0. Job and restart count are in each hello, so what is handed over is never
 * of another run. */
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

enum { STORE_VERSION = 1, STORE_HELLO = 40, STORE_ANSWER = 32, STORE_BYTES_MAX = 4096, STORE_PORTS = 8 };
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
    bool local;       /* a name on this machine, made of user, job and restart, that ends with rank 0; else: */
    const char *host; /* MASTER_ADDR */
    int port;         /* MASTER_PORT; rank 0 takes the first that is free of it and the STORE_PORTS - 1 behind it: newer
                         torchruns sit on MASTER_PORT themselves */
} StoreAt;
/* Rank 0 gives n bytes and *fd (fd NULL or *fd -1: none), all others get as many and a descriptor of their own.
 * Returns on rank 0 when all have thanked. EXIT_WORLD after `deadline` seconds, on rank 0 naming who has not come. */
bool store_share(const StoreKey *, StoreAt, double deadline, void *bytes, size_t n, int *fd, Err *);

void store_hello_write(const StoreKey *, uint8_t out[STORE_HELLO]);
/* What rank 0 makes of a hello of n bytes; STORE_RANK: a rank that is none of 1 .. world-1. False: it is none. */
bool store_hello_read(const StoreKey *mine, const uint8_t *p, size_t n, StoreKey *theirs, StoreWhat *);
void store_answer_write(StoreWhat, uint64_t value, size_t n, uint8_t out[STORE_ANSWER]);
/* What another rank makes of an answer's first STORE_ANSWER bytes. False: it is none. */
bool store_answer_read(const uint8_t *p, size_t n, StoreWhat *, uint64_t *value, size_t *bytes);
