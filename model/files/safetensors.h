/* safetensors.h: reads and writes named tensors in a safetensors file or a directory of shards. Every reader and
 * writer of weights and moments uses it. Reading trusts nothing; writing is all or nothing.
 *
 * File: 8 bytes N (little-endian), N bytes of JSON {name: {"dtype","shape","data_offsets":[begin,end)}}, then the
 * data, row-major and little-endian. Offsets count from the start of the data. Every message about a malformed file
 * ends with the reference implementation's name for the error: "(InvalidOffset)".
 * Source of the format: the README and reader of github.com/huggingface/safetensors. */
#pragma once
#include "ops/host.h"
#include "ops/file.h"

typedef struct StScale StScale;
typedef struct {
    char *name;
    const char *dtype; /* the format's own name: "F32", "I64" */
    int rank, file;    /* file: index into St.file */
    uint64_t *shape;
    const unsigned char *p; /* not aligned: headers of any length are legal */
    size_t bytes;
    const StScale *scale; /* quantised: reading gives the values that the bytes stand for; NULL: it is not */
    void *made;           /* st_replace: its bytes, which it owns; NULL: they are the file's */
} StEntry;
typedef struct {
    char *path;
    FileMap map;
    json_t *metadata; /* __metadata__ (text to text), or NULL */
} StFile;
/* How a tensor t (rows, width) or (rows) lies in a stored one. `parts` tensors of its shape alternate, `block` rows at
 * a time, and t is number `part` of them. turned: the transpose is stored (matrices only).
 *   stored row k (column, if turned) = row k / (parts block) block + k % block of part k / block % parts
 * Parts of unequal shapes are joined one after another: t is the rows from `first` on of `all` stored rows (all 0: not
 * so joined; else parts is 1), or, with a period, `block` rows of each `period` stored ones, from `first` on. stack:
 * the stored tensor has one more axis in front, of that length, as experts do that are stored together; `all` rows go
 * through both axes (0: it has not). slices: it has one more axis in front, of that length, and t lies in slice number
 * `slice`, in the way that the other members say (0: it has not). */
enum { JOINED_MAX = 4 };
typedef struct {
    int parts, part, block;
    bool turned;
    int first, all, stack, period;
    bool deep; /* a vector of n values is stored as (1,1,n,1) */
    int slices, slice;
} StPlace;
static const StPlace ST_WHOLE = {1, 0, 1, false, 0, 0, 0, 0, false, 0, 0};
/* The stored row (column, if turned) of row r. */
static inline size_t st_row(StPlace p, size_t r) {
    const size_t block = (size_t)p.block;
    if (p.period) return r / block * (size_t)p.period + (size_t)p.first + r % block;
    if (p.all) return (size_t)p.first + r;
    return (r / block * (size_t)p.parts + (size_t)p.part) * block + r % block;
}
/* t of `rank` axes is all that is stored, row by row. */
static inline bool st_is_whole(StPlace p, int rank) {
    return p.parts == 1 && !p.all && !p.slices && !(p.turned && rank == 2);
}
/* It holds the first row that is stored. */
static inline bool st_is_first(StPlace p) { return p.part == 0 && p.first == 0 && p.slice == 0; }
/* The shape of the stored tensor in which t has the place p. */
Tensor st_stored(Tensor t, StPlace p);

/* Values to add to some entries whenever they are read; raw bytes (StEntry.p) stay as they are. Adapters are applied
 * this way (peft.h). */
typedef struct StPatch StPatch;
typedef struct St St;
struct StPatch {
    bool (*has)(const StPatch *, const StEntry *);
    /* Add to t (F32 or F64), which holds the values of that place of the entry from its row `row` on (column, if
     * turned). */
    void (*add)(const StPatch *, const StEntry *, size_t row, Tensor t, StPlace);
    const void *ctx;
};
struct St {
    char *path; /* as opened */
    int n, nfile, nwarn;
    StEntry *entry; /* sorted by name */
    StFile *file;
    char **warn;          /* unusual but legal things, a line each */
    const StPatch *patch; /* NULL: none */
    int nscale;           /* quantised entries */
    StScale *scale;
};

/* Open one file, or a model directory: model.safetensors, else the shards of model.safetensors.index.json. Every entry
 * is checked here; data is only mapped. Tensors of a shard that the index leaves out are ignored, and `warn` names
 * them. */
bool st_open(St *, const char *path, Err *);
bool st_open_dir(St *, const char *dir, Err *);
/* Open several files as one; a name that is in two of them is there twice. `path` names them in messages. */
bool st_open_files(St *, const char *path, char *const *file, int n, Err *);
void st_close(St *);
/* Take away the entry `name`, which must be there, and put `t` (F32, malloc'ed memory that the entry owns from now on)
 * in its place under the name `as`, if that is not NULL. Pointers to entries are invalid then. */
void st_replace(St *, const char *name, const char *as, Tensor t);
const StEntry *st_find(const St *, const char *name); /* NULL: not there */
/* Reading the entry gives other values than its bytes. */
bool st_patched(const St *, const StEntry *);
/* Pair quantised entries with their scales, which are then no entries any more. Reading gives the values that PyTorch
 * computes from them in float32, to the bit: code times scale, rounded once.
 * - fp8: a matrix X of F8_E4M3 with X_scale_inv (F32 or BF16), a scale for each block of `rows` by `cols` elements;
 *   blocks at the edges may be smaller.
 * - mxfp4: X_blocks (..,G,16) and X_scales (..,G) of U8: two 4-bit codes (E2M1) in a byte, the low one first, and an
 *   exponent with bias 127 for 32 of them. X_blocks becomes an entry of shape (..,32 G).
 * Refused: an entry of such a type without its scales, or with scales of another shape. */
bool st_scale_fp8(St *, int rows, int cols, Err *);
bool st_scale_mxfp4(St *, Err *);
/* n values of a quantised entry, from element `from` on, `step` apart. */
void st_scaled(const StEntry *, size_t from, size_t step, size_t n, float *out);
Dtype st_scaled_as(const StEntry *); /* that holds them all: BF16 for mxfp4, F32 for fp8 */
/* Names and places of fields in a file, if they are not the fields' own. */
typedef struct StNames StNames;
struct StNames {
    StPlace (*find)(const StNames *, const char *path, Tensor t, char name[192]);
    const void *ctx;
};
/* The entry has the shape of `t`, which needs no memory, and a dtype that st_read accepts. */
bool st_fits(const St *, const StEntry *, Tensor t, Err *);
/* Read the entry's values into `t` (F32 or F64 with memory, or BF16, which accepts an entry of BF16 only). Refuses
 * another shape, a dtype that is not F64, F32, F16 or BF16, and a finite value that `t` cannot hold. F64 into F32
 * rounds to nearest; everything else is exact. */
bool st_read(const St *, const StEntry *, Tensor t, Err *);
/* The same for a tensor that has a place in the entry. */
bool st_fits_part(const St *, const StEntry *, Tensor t, StPlace, Err *);
bool st_read_part(const St *, const StEntry *, Tensor t, StPlace, Err *);
/* Read into a BF16 `t` from any dtype, rounded to nearest, ties to even; BF16 values unchanged. */
bool st_read_round(const St *, const StEntry *, Tensor t, StPlace, Err *);

/* Fill fields from a file: st_load_begin, then visit the fields with st_loader(&l) (name: prefix + path), then
 * st_load_end for the result. st_checker only checks shapes and dtypes: the fields need no memory. */
typedef struct {
    const St *st;
    const char *prefix;   /* before every field's name; NULL: "" */
    const StNames *names; /* NULL: the fields' own names */
    bool round;           /* BF16 fields accept values of any dtype, rounded to nearest, ties to even */
    Device *dev;          /* the device that holds the fields; NULL: the host */
    Err *err;
    bool failed;
    bool *used; /* (st->n) entries that a field took */
} StLoad;
void st_load_begin(StLoad *, const St *, const char *prefix, Err *);
Fields st_loader(StLoad *);
Fields st_checker(StLoad *);
/* False if a field failed (FIELD_OPTIONAL ones may be absent). Unless `rest` is NULL, also false for an entry with the
 * prefix that no field took, unless rest(name) calls it harmless. */
bool st_load_end(StLoad *, bool (*rest)(const char *name));

/* A tensor of an item, in memory. */
typedef struct {
    const void *p; /* NULL: not given yet */
    Dtype dtype;
    int first, rows; /* first: StPlace.first */
} StPart;
typedef struct {
    char *name;
    Tensor t;
    Dtype as;          /* dtype in the file */
    StPlace place;     /* how its parts lie, each (rows, width); t has the stored shape, and the first part's dtype */
    int nparts, width; /* width: elements of a part's row */
    StPart *part;      /* (nparts) of the list; by `first` */
} StItem;
typedef struct {
    int n;
    StItem *item;
    const char *prefix;
    const StNames *names;
    Dtype as;
    bool own; /* instead of `as`: with its dtype in memory */
    /* May be NULL. Gives the values that a tensor stored at `stored` has in the file, if they differ from memory:
     * returns true and fills `to` (REAL; ABSENT: it only asks). Model.sums uses it when it saves. */
    bool (*merge)(void *ctx, const void *stored, Tensor to);
    void *merge_ctx;
    Device *dev; /* the device that holds the tensors; NULL: the host */
} StList;
/* Collect: every field as `as`, those with FIELD_F32 at least as F32; names get the prefix (NULL: ""). */
Fields st_lister(StList *);
void st_add(StList *, const char *name, Tensor t, Dtype as);
/* all parts must be added before it is written */
void st_add_part(StList *, const char *name, Tensor t, StPlace, Dtype as);
void st_list_free(StList *);
/* Write the list as the reference does: wide dtypes first, then by name; compact JSON padded to 8 bytes. Tensors are
 * F32, F64 or BF16 in memory and are rounded to nearest even. `meta`: key, value, ..., NULL; {"format":"pt"} is always
 * added. */
bool st_write(const char *path, const StList *, const char *const *meta, Err *);
/* Write the list as a model directory: model.safetensors, or, if the tensors need more than `limit` bytes (0: no
 * limit), model-00001-of-0000n.safetensors, ... in the order of the list, and last model.safetensors.index.json.
 * - A shard is filled up to the limit; a larger tensor gets its own shard (the rule of huggingface_hub's
 *   split_state_dict_into_shards_factory).
 * - Refused: a limit that makes more than SHARDS_MAX shards, and shards next to a model.safetensors, which readers
 *   would use instead. */
enum { SHARDS_MAX = 2048 };
bool st_write_dir(const char *dir, const StList *, size_t limit, Err *);

/* For writers of other formats: convert elements a..b-1 of `t` to `as`, little-endian. F64 to BF16 rounds twice, by way
 * of F32. */
void st_encode(Tensor t, Dtype as, size_t a, size_t b, unsigned char *out);
/* The first of n elements that is finite and that `as` would hold as an infinity; n: none. */
size_t st_too_large(Tensor t, Dtype as, size_t n);

/* ---- a directory whose tensors are written one at a time, in any order ----------------------------------------------
 * Headers, which need only names, shapes and dtypes, are written first; every tensor then goes to its place. The
 * caller must remove the directory if anything fails. */
typedef struct {
    char *dir;
    int n, nfile, *shard;
    struct StHole *hole; /* (n) sorted by name */
    struct StSink *file;
} StOut;
/* Add an item to a list for st_out_begin: a shape without memory. */
void st_plan(StList *, const char *name, Tensor shape, Dtype as);
/* Create the files of st_write_dir's layout in DIR, which must exist and hold no model. `meta` as st_write. */
bool st_out_begin(StOut *, const char *dir, const StList *, size_t limit, const char *const *meta, Err *);
/* Write rows row..row+n-1 of a tensor that has a place in the one of that name, rounded to nearest even; each row
 * once. EXIT_INPUT: a finite value that the dtype cannot hold. */
bool st_out_part(StOut *, const char *name, size_t row, Tensor, StPlace, Err *);
/* Write a whole tensor from the `bytes` bytes that the file must hold. */
bool st_out_raw(StOut *, const char *name, const void *p, size_t bytes, Err *);
/* Sync, close and free. Every tensor must have been written (CHECK). */
bool st_out_end(StOut *, Err *);
void st_out_drop(StOut *); /* give up: close and free */
