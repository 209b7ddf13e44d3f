/* checksum.h: the XXH64 hash of bytes and of files. Checkpoints store it, and readers compare it, to find damaged
 * files; it does not protect against deliberate forgery. Source of the format: doc/xxhash_spec.md of
 * github.com/Cyan4973/xxHash; seed 0. `xxhsum -H1 FILE` prints the same. */
#pragma once
#include "base.h"

typedef struct {
    uint64_t bytes, hash;
} FileSum;

uint64_t xxh64(const void *p, size_t n);
/* Size and hash of a file, read back from disk. */
bool file_sum(const char *path, FileSum *, Err *);
