/* shards.h: the optimizer's moments in files that several ranks wrote, one each, and the list of a checkpoint's files.
 * checkpoint.c calls it.
 *
 *   trainer/optimizer.safetensors                 of one rank, or of several that all have all moments
 *   trainer/optimizer-00002-of-00004.safetensors  of rank 1 of 4: the tensors and ranges that it steps
 *   trainer/manifest.json          {"step": 500, "files": {"model.safetensors": {"bytes": 1, "xxh64": "..."}}}
 *
 * A tensor's name says where its elements belong, so any number of ranks can read what another number wrote:
 * "exp_avg.NAME" is all of tensor NAME, in its shape; "exp_avg.NAME[1024:2048]" elements 1024 to 2047 of it in
 * row-major order, one dimension. The ranges of a tensor, from all files, cover it without a gap or an overlap. */
#pragma once
#include "model/files/safetensors.h"
#include "ops/checksum.h"

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
/* EXIT_INPUT: missing, or not as above; names are model.safetensors or are in trainer/. */
bool manifest_read(const char *path, Manifest *, Err *);
void manifest_free(Manifest *);
/* Checks that files part, part + parts, ... of the list, in `dir`, have the listed bytes: EXIT_INPUT names one that
 * differs. Reads every byte. */
bool manifest_check(const Manifest *, const char *dir, int part, int parts, Err *);

/* trainer/optimizer... of rank k of n. malloc'ed. */
char *shard_name(int k, int n);
/* Its name in a file: of n elements from `from` on of a tensor that has `all`. malloc'ed. */
char *shard_entry(const char *prefix, const char *name, size_t from, size_t n, size_t all);

/* ---- moments --------------------------------------------------------------------------------------------------------
 */
typedef struct {
    St st;
    int n;
    struct Range *range; /* (n) by key, then by place */
} Moments;
/* Opens all files. EXIT_INPUT: a name whose range is invalid or does not fit the stored tensor. */
bool moments_open(Moments *, const char *path, char *const *file, int n, Err *);
void moments_close(Moments *);
/* Checks that the pieces of prefix + name make exactly t, which needs no memory: EXIT_INPUT names what is missing,
 * double or beyond it. Counts as used. */
bool moments_fit(Moments *, const char *prefix, const char *name, Tensor t, Err *);
/* Call after moments_fit: reads elements from, from + 1, ... of it, as many as `to` has, as st_read reads them. */
bool moments_read(const Moments *, const char *prefix, const char *name, size_t from, Tensor to, Err *);
/* EXIT_INPUT: a stored tensor was never used. */
bool moments_all_used(const Moments *, Err *);
