/* store_net.h: the sockets of the meeting (store.c): a name on this machine, or the addresses of MASTER_ADDR. None of
 * them blocks; interrupted calls are made again. */
#pragma once
#include <sys/socket.h>
#include "store_msg.h"

enum { STORE_PORTS = 8, STORE_ADDRESSES = 8 };
typedef struct {
    socklen_t size;
    struct sockaddr_storage at;
} StoreAddress;
typedef struct {
    int n;
    StoreAddress address[STORE_ADDRESSES];
    bool loopback; /* all of them */
    bool any;      /* one of them stands for every address of a host (0.0.0.0) */
    bool named;    /* the host was given by a name, not as an address */
} StoreAddresses;

/* The addresses of a host, none twice; NULL, or why there is none (yet). Asks the system's resolver, which may block. */
const char *store_resolve(const char *host, StoreAddresses *);
/* The name on this machine that belongs to user, job and restart. */
void store_local(const StoreKey *, StoreAddress *);

/* Listen at the local name, or at all of the addresses that are this host's, at the first of STORE_PORTS ports that is
 * free at each. Returns how many sockets stand in `out`, 0 with `e` filled. EXIT_INPUT: somebody has the local name, or no
 * address is this host's. */
int store_listen_local(const StoreKey *, int out[STORE_ADDRESSES], Err *);
int store_listen(const StoreAddresses *, const char *host, int port, int out[STORE_ADDRESSES], Err *);
/* Begin to connect to the address, at `port` unless it is the local name; -1: not now. Once it can be written to,
 * store_connected says whether it is there; at a local name only a process of the same user is. */
int store_connect(const StoreAddress *, int port);
bool store_connected(int fd);
/* A connection that has come, -1: none. *full: no descriptor is left for one. Of a local name others than this user's are
 * turned away. */
int store_accept(int listener, bool local, bool *full);

/* Bytes that have come, at most n: 0 none yet, -1 the connection has ended. A descriptor that comes along is put into
 * *fd if that is -1; fd NULL: it is closed. */
ssize_t store_hear(int s, void *p, size_t n, int *fd);
/* All n bytes at once, with a descriptor unless fd is -1; more than the meeting ever says fits a socket's buffer. */
bool store_say(int s, const void *p, size_t n, int fd);
