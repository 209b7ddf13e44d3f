/* rendezvous_net.h: the sockets of a rendezvous (rendezvous.c calls it): a name on this machine, or the addresses of
 * MASTER_ADDR. None of them blocks; interrupted calls are repeated. */
#pragma once
#include <sys/socket.h>
#include "rendezvous_msg.h"

enum { RENDEZVOUS_PORTS = 8, RENDEZVOUS_ADDRESSES = 8 };
typedef struct {
    socklen_t size;
    struct sockaddr_storage at;
} RendezvousAddress;
typedef struct {
    int n;
    RendezvousAddress address[RENDEZVOUS_ADDRESSES];
    bool loopback; /* all of them */
    bool any;      /* one of them is the wildcard address of a host (0.0.0.0) */
    bool named;    /* the host was given by a name, not as an address */
} RendezvousAddresses;

/* The addresses of a host, each once; NULL, or why there is none (yet). Calls the system's resolver, which may
 * block. */
const char *rendezvous_resolve(const char *host, RendezvousAddresses *);
/* The name on this machine that belongs to user, job and restart. */
void rendezvous_local(const RendezvousKey *, RendezvousAddress *);

/* Listen at the local name, or at all of the addresses that belong to this host, at the first of RENDEZVOUS_PORTS ports
 * that is free at each. Returns the number of sockets in `out`, 0 with `e` set. EXIT_INPUT: another process has the
 * local name, or no address belongs to this host. */
int rendezvous_listen_local(const RendezvousKey *, int out[RENDEZVOUS_ADDRESSES], Err *);
int rendezvous_listen(const RendezvousAddresses *, const char *host, int port, int out[RENDEZVOUS_ADDRESSES], Err *);
/* Begin to connect to the address, at `port` unless it is the local name; -1: not now. When the socket can be written
 * to, rendezvous_connected returns whether it is connected; at a local name only a process of the same user counts. */
int rendezvous_connect(const RendezvousAddress *, int port);
bool rendezvous_connected(int fd);
/* Accepts a connection, -1: none. *full: no descriptor is left for one. At a local name, other users are turned
 * away. */
int rendezvous_accept(int listener, bool local, bool *full);

/* Reads at most n bytes: 0 none yet, -1 the connection has ended. A descriptor that arrives is put into *fd if that is
 * -1; fd NULL: it is closed. */
ssize_t rendezvous_hear(int s, void *p, size_t n, int *fd);
/* Sends all n bytes at once, with a descriptor unless fd is -1; every message fits a socket's buffer. */
bool rendezvous_say(int s, const void *p, size_t n, int fd);
