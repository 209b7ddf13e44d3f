/* rendezvous.h: the rendezvous is where ranks meet before they have a Comm: rank 0 gives every other rank a few bytes
 * and, on one machine, a descriptor. The bytes are what a library needs to connect (NCCL's id); the descriptor is
 * memory to share. ranks_open calls it.
 *
 * Rank 0 greets every connection, receives a hello, answers and receives thanks (rendezvous_msg.h). Only a peer that
 * knows the job's secret is believed: a rank ends by an answer only if that has a valid tag, accepts bytes only with
 * it, and asks all ports and addresses at the same time, so that a stranger at one of them delays nobody. Rank 0 closes
 * connections of strangers, and drops the oldest silent ones when too many come. On one machine the system itself shows
 * that both processes belong to one user, and the secret may be empty; over the network it may be empty only between
 * addresses of the loopback interface.
 *
 * A process of the same job with an earlier start, another configuration, world or version is informed and ends with
 * EXIT_INPUT; rank 0 continues to wait for the right one. A rank 0 of another job identifies itself in its greeting and
 * is ignored. */
#pragma once
#include "rendezvous_msg.h"

typedef struct {
    bool local;       /* a name on this machine, made of user, job and restart, that disappears with rank 0; else: */
    const char *host; /* MASTER_ADDR; rank 0 listens at those of its addresses that are its host's */
    int port;         /* MASTER_PORT; rank 0 uses the first free one of RENDEZVOUS_PORTS: newer torchruns occupy it */
    bool several;     /* there are ranks on other hosts: the loopback interface is not enough */
    RendezvousSecret secret; /* the same for all ranks */
    int shared;              /* memory of `launch` (comm_shm.h), which shows that a rank has exited; 0: none */
} RendezvousAt;
/* Rank 0 gives n bytes and *fd (fd NULL or *fd -1: none); all others receive as many and a descriptor of their own.
 * Returns on rank 0 when all have sent thanks. EXIT_RUNTIME after `deadline` seconds; rank 0 names the missing rank.
 * EXIT_INPUT: an address or a secret that cannot be used. */
bool rendezvous_share(const RendezvousKey *, RendezvousAt, double deadline, void *bytes, size_t n, int *fd, Err *);
