/* mirror.h: words of the host's memory of which a device has a copy.
 *
 * The host reads and writes its own as ever, and says which it changed; a flush brings those over, each once and as it
 * is then, by a copy and a kernel for each 65,536 of them, however they lie: as much as was changed, not as much as
 * there is. What was asked of the device before sees the words as they were, and the host waits for none of it. */
#pragma once
#include "ops.h"

typedef struct Mirror Mirror;
/* Bytes of the device's memory that a flush of so many needs for itself. */
size_t mirror_bytes(size_t bytes);
/* `bytes`, a multiple of 4, from `host` on, and of the device from `there` on; mem: mirror_bytes of it. What is there
 * so far is not brought over. False (EXIT_WORLD): more than 2^32 words. */
bool mirror_open(Mirror **, Device *, const void *host, void *there, size_t bytes, void *mem, Err *);
void mirror_close(Mirror *); /* NULL: nothing */
/* All words that hold a byte of p. */
void mirror_changed(Mirror *, const void *p, size_t bytes);
bool mirror_behind(const Mirror *); /* something was changed since the last flush */
void mirror_flush(Mirror *);        /* not while work is recorded (graph.h) */
