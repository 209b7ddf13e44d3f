/* store.h: where ranks meet before they have a Comm: rank 0 hands a few bytes, and on one machine a descriptor, to
 * every other. The bytes are what a library needs to find itself (NCCL's id); the descriptor is memory to share.
 *
 * Rank 0 greets whoever connects, hears a hello, answers and is thanked (store_msg.h). Who knows the job's secret is
 * believed, nobody else: a rank ends by an answer only when that has its tag, takes bytes only with it, and asks all ports and
 * addresses at the same time, so that a stranger at one of them holds up nobody. Rank 0 hangs up on strangers, and drops
 * the oldest silent ones when too many come. On one machine the system itself shows that both are of one user, and the
 * secret may be empty; over the network it may be empty only between addresses of the loopback interface.
 *
 * A process of the same job that comes from an earlier start, with another configuration, world or version, is told so
 * and ends with EXIT_INPUT; rank 0 goes on waiting for the right one. A rank 0 of another job says so in its greeting, and is
 * left alone. */
#pragma once
#include "store_msg.h"

typedef struct {
    bool local;       /* a name on this machine, made of user, job and restart, that ends with rank 0; else: */
    const char *host; /* MASTER_ADDR; rank 0 listens at those of its addresses that are its host's */
    int port;         /* MASTER_PORT; rank 0 takes the first that is free of it and the STORE_PORTS - 1 after it: newer
                           torchruns sit on MASTER_PORT themselves */
    bool several;     /* ranks are known to be on other hosts: the loopback interface would not do */
    StoreSecret secret; /* the same for all ranks */
    int shared;         /* memory of `launch` (comm_shm.h), where it says that a rank has ended; 0: none */
} StoreAt;
/* Rank 0 gives n bytes and *fd (fd NULL or *fd -1: none), all others get as many and a descriptor of their own.
 * Returns on rank 0 when all have thanked. EXIT_WORLD after `deadline` seconds, on rank 0 naming who has not come.
 * EXIT_INPUT: an address or a secret that does not do. */
bool store_share(const StoreKey *, StoreAt, double deadline, void *bytes, size_t n, int *fd, Err *);
