/* dirty_copy.h: a dirty copy keeps a device's copy of tables in host memory up to date. The cache uses it for its
 * lengths, pages and positions (layers/cache.c).
 *
 * - The host reads and writes its own memory as usual, and must report every change with dirty_copy_changed.
 * - dirty_copy_flush copies each changed 32-bit word once, with the value it has at that moment. It needs one copy and
 *   one kernel per 65,536 changed words, wherever they lie.
 * - Work given to the device before a flush sees the old words. The host never waits. */
#pragma once
#include "ops.h"

typedef struct DirtyCopy DirtyCopy;
/* Device memory that the flush of a table of `bytes` bytes needs. */
size_t dirty_copy_bytes(size_t bytes);
/* Open a copy of `bytes` bytes (a multiple of 4) from `host` to `there` on the device; mem: dirty_copy_bytes of device
 * memory. Opening copies nothing. False (EXIT_RUNTIME): more than 2^32 words. */
bool dirty_copy_open(DirtyCopy **, Device *, const void *host, void *there, size_t bytes, void *mem, Err *);
void dirty_copy_close(DirtyCopy *); /* NULL: does nothing */
/* Mark every word that holds one of the `bytes` bytes at p. */
void dirty_copy_changed(DirtyCopy *, const void *p, size_t bytes);
bool dirty_copy_behind(const DirtyCopy *); /* a word has changed since the last flush */
void dirty_copy_flush(DirtyCopy *);        /* must not be called while a graph is captured (graph.h) */
