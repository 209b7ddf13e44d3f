/* safetensors_file.h: what the writers of safetensors files share. Private to model/safetensors*.c. */
#pragma once
#include "safetensors.h"

/* Numbers a..b-1 of `t` as `as`, little-endian. F64 as BF16 rounds twice, by way of F32. */
void st_encode(Tensor t, Dtype as, size_t a, size_t b, unsigned char *out);
/* A malloc'ed copy of the items in the order of a file: wide dtypes first, then by name. Names are unique (CHECK). */
StItem *st_file_order(const StList *);
/* The header's JSON, padded; `n` items in file order, whose memory is not looked at. NULL: no memory. */
char *st_header(const StItem *, int n, const char *const *meta, size_t *len);
size_t st_item_bytes(const StItem *);
/* shard[i]: the number, from 0, of item i's. A tensor beyond the limit is numbered at once, the shard that is being
 * filled when it is full: so does the reference. Returns how many there are. */
int st_shards(const StList *, size_t limit, int *shard);
/* DIR/model-00001-of-0000n.safetensors of shard k = 0; without a directory the name alone. malloc'ed. */
char *st_shard_name(const char *dir, int k, int n);
bool st_index_write(const char *dir, const StList *, const int *shard, int n, Err *);
