/* safetensors.h: named tensors in a file or in a directory of shards; reading trusts nothing, writing is all or
 * nothing.
 *
 * File: 8 bytes N (little-endian), N bytes of JSON {name: {"dtype","shape","data_offsets":[begin,end)}}, then the data,
 * row-major and little-endian, offsets counted from its start. Every message about a malformed file ends with the name
 * that the reference implementation gives to the error: "(InvalidOffset)".
 * Source of the format: the README and reader of github.com/huggingface/safetensors. */
#pragma once
#include "../ops/tensor.h"
#include "../ops/file.h"

typedef struct {
    char *name;
    const char *dtype; /* the format's own name: "F32", "I64" */
    int rank, file;    /* file: index into St.file */
    uint64_t *shape;
    const unsigned char *p; /* not aligned: headers of any length are legal */
    size_t bytes;
} StEntry;
typedef struct {
    char *path;
    FileMap map;
    json_t *metadata; /* __metadata__ (text to text), or NULL */
} StFile;
typedef struct {
    char *path; /* as opened */
    int n, nfile, nwarn;
    StEntry *entry; /* ascending names */
    StFile *file;
    char **warn; /* what is odd but legal, a line each */
} St;

/* Open one file, or a model directory: model.safetensors, else the shards of model.safetensors.index.json. Every entry
 * is checked here; data is only mapped. Tensors of a shard that the index leaves out are ignored and named in `warn`.
 */
bool st_open(St *, const char *path, Err *);
bool st_open_dir(St *, const char *dir, Err *);
void st_close(St *);
const StEntry *st_find(const St *, const char *name); /* NULL: not there */
/* The entry has the shape of `t`, which needs no memory, and a dtype that st_read takes. */
bool st_fits(const St *, const StEntry *, Tensor t, Err *);
/* The entry's numbers into `t` (F32 or F64 with memory, or BF16, which takes an entry of BF16 only). Refuses another
 * shape, a dtype that is not F64, F32, F16 or BF16, and a finite number that `t` cannot hold. F64 into F32 rounds to
 * nearest; all else is exact. */
bool st_read(const St *, const StEntry *, Tensor t, Err *);

/* Fill fields from a file: f = st_loader(&l) visits them (name: prefix + path), then st_loaded tells. */
typedef struct {
    const St *st;
    const char *prefix; /* before every field's name; NULL: "" */
    Err *err;
    bool failed;
    bool *used; /* (st->n) entries that a field took */
} StLoad;
void st_load_begin(StLoad *, const St *, const char *prefix, Err *);
Fields st_loader(StLoad *);
/* End. False if a field failed (FIELD_OPTIONAL ones may be absent). Unless `rest` is NULL: false for an entry that
 * starts with the prefix, that no field took and that rest(name) does not call harmless. */
bool st_load_end(StLoad *, bool (*rest)(const char *name));

typedef struct {
    char *name;
    Tensor t;
    Dtype as; /* stored as */
} StItem;
typedef struct {
    int n;
    StItem *item;
    const char *prefix;
    Dtype as;
    bool own; /* instead of `as`: as it lies in memory */
} StList;
/* Collect: every field as `as`, those with FIELD_F32 not narrower than F32; names get the prefix (NULL: ""). */
Fields st_lister(StList *);
void st_add(StList *, const char *name, Tensor t, Dtype as);
void st_list_free(StList *);
/* Write the list as the reference does: wide dtypes first, then by name; compact JSON padded to 8 bytes. Tensors are
 * F32 or F64 in memory and are rounded to nearest even; one that is BF16 in memory is stored as that. `meta`: key,
 * value, ..., NULL; {"format":"pt"} is always there.
 */
bool st_write(const char *path, const StList *, const char *const *meta, Err *);
