/* shards.h: the optimizer's moments in files that several ranks wrote, one each, and the list of a checkpoint's files.
 *
 *   trainer/optimizer.safetensors                 of one rank, or of several that all have all moments
 *   trainer/optimizer-00002-of-00004.safetensors  of rank 1 of 4, what that rank steps
 *   trainer/manifest.json          {"step": 500, "files": {"model.safetensors": {"bytes": 1, "xxh64": "..."}}}
 *
 * A tensor's name tells where its numbers belong, so that what one number of ranks wrote any other can read:
 * "exp_avg.NAME" is all of tensor NAME, in its shape; "exp_avg.NAME[1024:2048]" numbers 1024 to 2047 of it in row-major
 * order, one dimension. The ranges of a tensor, from all files, cover it without a gap or a number twice. */
#pragma once
#include "../model/safetensors.h"
#include "../ops/checksum.h"

/* ---- the list -------------------------------------------------------------------------------------------------------
 */
typedef struct {
    int64_t step;
    int n;
    struct Listed {
        char *name; /* from the checkpoint's folder */
        FileSum sum;
    } * file;
} Manifest;
enum { MANIFEST_FILES_MAX = 1 << 17 };
void manifest_add(Manifest *, const char *name, FileSum);
bool manifest_write(const char *path, const Manifest *, Err *);
/* EXIT_INPUT: it is not there, or not as above; names are model.safetensors or lie in trainer/. */
bool manifest_read(const char *path, Manifest *, Err *);
void manifest_free(Manifest *);
/* Files part, part + parts, ... of the list, in `dir`, have the bytes that it says: EXIT_INPUT names one that has not.
 * Every byte is read. */
bool manifest_check(const Manifest *, const char *dir, int part, int parts, Err *);

/* trainer/optimizer... of rank k of n. malloc'ed. */
char *shard_name(int k, int n);
/* Its name in a file: of n numbers from `from` on of a tensor that has `all`. malloc'ed. */
char *shard_entry(const char *prefix, const char *name, size_t from, size_t n, size_t all);

/* ---- moments --------------------------------------------------------------------------------------------------------
 */
typedef struct {
    St st;
    int n;
    struct Range *range; /* (n) by key, then by place */
} Moments;
/* All files. EXIT_INPUT: a name whose range is not one, or does not fit what is stored. */
bool moments_open(Moments *, const char *path, char *const *file, int n, Err *);
void moments_close(Moments *);
/* What there is of prefix + name makes exactly t, which needs no memory: EXIT_INPUT tells of what is missing, there
 * twice or beyond it. Counts as used. */
bool moments_fit(Moments *, const char *prefix, const char *name, Tensor t, Err *);
/* Behind moments_fit: numbers from, from + 1, ... of it, as many as `to` has, as st_read reads them. */
bool moments_read(const Moments *, const char *prefix, const char *name, size_t from, Tensor to, Err *);
/* EXIT_INPUT: something was used by nobody. */
bool moments_all_used(const Moments *, Err *);
