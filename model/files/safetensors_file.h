/* safetensors_file.h: shared by the writers of safetensors files. Private to model/safetensors*.c. */
#pragma once
#include "safetensors.h"

/* A malloc'ed copy of the items in the order of a file: wide dtypes first, then by name. Names must be unique
 * (CHECK). */
StItem *st_file_order(const StList *);
/* The header's JSON, padded; `n` items in file order, whose memory is not read. NULL: out of memory. */
char *st_header(const StItem *, int n, const char *const *meta, size_t *len);
size_t st_item_bytes(const StItem *);
/* shard[i]: the shard of item i, from 0. As in the reference, a tensor beyond the limit gets its number at once, and a
 * shard that is being filled gets it when it is full. Returns the number of shards. */
int st_shards(const StList *, size_t limit, int *shard);
/* The name of shard k (from 0) of n: DIR/model-00001-of-0000n.safetensors, or the name alone without a directory.
 * malloc'ed. */
char *st_shard_name(const char *dir, int k, int n);
bool st_index_write(const char *dir, const StList *, const int *shard, int n, Err *);
