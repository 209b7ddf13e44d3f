/* safetensors.h: named tensors in a file or in a directory of shards; reading trusts nothing, writing is all or
 * nothing.
 *
 * File: 8 bytes N (little-endian), N bytes of JSON {name: {"dtype","shape","data_offsets":[begin,end)}}, then the data,
 * row-major and little-endian, offsets counted from its start. Every message about a malformed file ends with the name
 * that the reference implementation gives to the error: "(InvalidOffset)".
 * Source of the format: the README and reader of github.com/huggingface/safetensors. */
#pragma once
#include "../ops/host.h"
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
/* How a tensor t (rows, width) or (rows) lies in a stored one: `parts` tensors of its shape take turns, `block` rows at
 * a time, and t is number `part` of them; turned: what is stored is the transpose of that (matrices alone). So a stored
 * row k (column, turned) is row k / (parts block) block + k % block of part k / block % parts. */
enum { JOINED_MAX = 3 };
typedef struct {
    int parts, part, block;
    bool turned;
} StPlace;
static const StPlace ST_WHOLE = {1, 0, 1, false};

/* Added to the values of some entries whenever they are read; raw bytes (StEntry.p) stay as they are. */
typedef struct StPatch StPatch;
typedef struct St St;
struct StPatch {
    bool (*has)(const StPatch *, const StEntry *);
    /* To t (F32 or F64), which holds what lies at that place of the entry from its row `row` on (or, turned, column). */
    void (*add)(const StPatch *, const StEntry *, size_t row, Tensor t, StPlace);
    const void *ctx;
};
struct St {
    char *path; /* as opened */
    int n, nfile, nwarn;
    StEntry *entry; /* ascending names */
    StFile *file;
    char **warn;          /* what is odd but legal, a line each */
    const StPatch *patch; /* NULL: none */
};

/* Open one file, or a model directory: model.safetensors, else the shards of model.safetensors.index.json. Every entry
 * is checked here; data is only mapped. Tensors of a shard that the index leaves out are ignored and named in `warn`.
 */
bool st_open(St *, const char *path, Err *);
bool st_open_dir(St *, const char *dir, Err *);
/* Several files as one; a name that is in two of them is there twice. `path` is where messages say they are from. */
bool st_open_files(St *, const char *path, char *const *file, int n, Err *);
void st_close(St *);
const StEntry *st_find(const St *, const char *name); /* NULL: not there */
/* Reading the entry gives other numbers than its bytes are. */
bool st_patched(const St *, const StEntry *);
/* Names and places of fields in a file, where they are not the fields' own. */
typedef struct StNames StNames;
struct StNames {
    StPlace (*find)(const StNames *, const char *path, Tensor t, char name[192]);
    const void *ctx;
};
/* The entry has the shape of `t`, which needs no memory, and a dtype that st_read takes. */
bool st_fits(const St *, const StEntry *, Tensor t, Err *);
/* The entry's numbers into `t` (F32 or F64 with memory, or BF16, which takes an entry of BF16 only). Refuses another
 * shape, a dtype that is not F64, F32, F16 or BF16, and a finite number that `t` cannot hold. F64 into F32 rounds to
 * nearest; all else is exact. */
bool st_read(const St *, const StEntry *, Tensor t, Err *);
/* The same of a tensor that has a place in the entry. */
bool st_fits_part(const St *, const StEntry *, Tensor t, StPlace, Err *);
bool st_read_part(const St *, const StEntry *, Tensor t, StPlace, Err *);
/* Into a BF16 `t` from any dtype, rounded to nearest, ties to even; BF16 numbers as they are. */
bool st_read_round(const St *, const StEntry *, Tensor t, StPlace, Err *);

/* Fill fields from a file: f = st_loader(&l) visits them (name: prefix + path), then st_load_end tells. st_checker
 * looks at shapes and dtypes alone: the fields need no memory. */
typedef struct {
    const St *st;
    const char *prefix;   /* before every field's name; NULL: "" */
    const StNames *names; /* NULL: the fields' own */
    bool round;           /* fields that are BF16 take numbers of any dtype, to the nearest, ties to even */
    Device *dev;          /* where the fields lie; NULL: with the host */
    Err *err;
    bool failed;
    bool *used; /* (st->n) entries that a field took */
} StLoad;
void st_load_begin(StLoad *, const St *, const char *prefix, Err *);
Fields st_loader(StLoad *);
Fields st_checker(StLoad *);
/* End. False if a field failed (FIELD_OPTIONAL ones may be absent). Unless `rest` is NULL: false for an entry that
 * starts with the prefix, that no field took and that rest(name) does not call harmless. */
bool st_load_end(StLoad *, bool (*rest)(const char *name));

typedef struct {
    char *name;
    Tensor t;
    Dtype as;      /* stored as */
    StPlace place; /* of its parts, each (rows, width); t has the stored shape, and the first part's dtype */
    const void *part[JOINED_MAX]; /* part[0] = t.p where it is stored whole */
    Dtype dtype[JOINED_MAX];      /* of each part in memory */
} StItem;
typedef struct {
    int n;
    StItem *item;
    const char *prefix;
    const StNames *names;
    Dtype as;
    bool own; /* instead of `as`: as it lies in memory */
    /* May be NULL: gives the numbers that a tensor stored at `stored` has in the file, where those are others: true,
     * and to (REAL; ABSENT: it is only asked) is filled. Model.sums of what is saved. */
    bool (*merge)(void *ctx, const void *stored, Tensor to);
    void *merge_ctx;
    Device *dev; /* where the tensors lie; NULL: with the host */
} StList;
/* Collect: every field as `as`, those with FIELD_F32 not narrower than F32; names get the prefix (NULL: ""). */
Fields st_lister(StList *);
void st_add(StList *, const char *name, Tensor t, Dtype as);
void st_add_part(StList *, const char *name, Tensor t, StPlace, Dtype as); /* all parts before it is written */
void st_list_free(StList *);
/* Write the list as the reference does: wide dtypes first, then by name; compact JSON padded to 8 bytes. Tensors are
 * F32, F64 or BF16 in memory and are rounded to nearest even. `meta`: key, value, ..., NULL; {"format":"pt"} is always there.
 */
bool st_write(const char *path, const StList *, const char *const *meta, Err *);
/* The list as a model directory: model.safetensors, or, where the tensors take more than `limit` bytes (0: any number),
 * model-00001-of-0000n.safetensors, ... in the order of the list and model.safetensors.index.json, which comes last. A
 * shard is filled up to the limit; a tensor that exceeds it has one of its own (the rule of huggingface_hub's
 * split_state_dict_into_shards_factory). Refused: a limit that makes more than SHARDS_MAX of them, and shards beside a
 * model.safetensors, which readers would take instead. */
enum { SHARDS_MAX = 2048 };
bool st_write_dir(const char *dir, const StList *, size_t limit, Err *);

/* ---- a directory of tensors that come one at a time, in any order --------------------------------------------------
 * Headers, which need names, shapes and dtypes alone, are written first; every tensor then goes to its place. The
 * caller removes the directory when anything fails. */
typedef struct {
    char *dir;
    int n, nfile, *shard;
    struct StHole *hole; /* (n) ascending names */
    struct StSink *file;
} StOut;
/* An item of a list for st_out_begin: a shape without memory. */
void st_plan(StList *, const char *name, Tensor shape, Dtype as);
/* Create the files of st_write_dir's layout in DIR, which exists and holds no model. `meta` as st_write. */
bool st_out_begin(StOut *, const char *dir, const StList *, size_t limit, const char *const *meta, Err *);
/* Rows row..row+n-1 of a tensor that has a place in the one of that name, rounded to nearest even; each row once.
 * EXIT_INPUT: a finite number that the dtype cannot hold. */
bool st_out_part(StOut *, const char *name, size_t row, Tensor, StPlace, Err *);
/* A whole tensor from `bytes` bytes as they are to stand in the file. */
bool st_out_raw(StOut *, const char *name, const void *p, size_t bytes, Err *);
/* Sync and close. Every tensor must have come (CHECK). Frees. */
bool st_out_end(StOut *, Err *);
void st_out_drop(StOut *); /* give up: close and free */
