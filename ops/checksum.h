/* checksum.h: XXH64 of bytes and of files: what finds a damaged file, not one that somebody made to deceive.
 * Source of the format: doc/xxhash_spec.md of github.com/Cyan4973/xxHash; seed 0. `xxhsum -H1 FILE` prints the same. */
#pragma once
#include "base.h"

typedef struct {
    uint64_t bytes, hash;
} FileSum;

uint64_t xxh64(const void *p, size_t n);
/* Of a file as it is read back. */
bool file_sum(const char *path, FileSum *, Err *);
