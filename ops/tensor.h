/* tensor.h: a tensor is a typed, shaped pointer; a field is its declaration. Everything that owns tensors declares
 * them with field(), and visitors walk the declarations to allocate, initialise, load, save and check.
 *
 * Letters, the same everywhere:
 *   N rows (tokens) of a pass   B sequences   T tokens of a sequence   V vocabulary   L layers   d model width
 *   H query heads   G key/value heads (lanes)   D head width (Dk keys, Dv values)   F width of the feed-forward part
 * A weight "(out,in)" computes y = W x. Row-major everywhere. */
#pragma once
#include "base.h"

typedef enum { F64, F32, BF16, F16 } Dtype;

/* The element type of the CPU's arithmetic: float, or double in the build that checks gradients. */
#ifdef KV_DOUBLE
typedef double real;
    #define REAL F64
#else
typedef float real;
    #define REAL F32
#endif

enum { RANK_MAX = 4 };
/* rank 0: absent. p may be NULL while memory is only measured. */
typedef struct {
    void *p;
    Dtype dtype;
    int rank, n[RANK_MAX];
    bool has_shadow; /* a weight with a bf16 shadow copy on the device, for products: shadow.h */
} Tensor;
/* Where an op puts a result that it can add to what is there or write in its place, whatever the memory holds. Who
 * calls the op says which, by add_to or overwrite. */
typedef struct {
    Tensor t;
    bool overwrite;
} Into;

size_t dtype_size(Dtype);
const char *dtype_name(Dtype);                /* "F32": the names of safetensors */
static inline size_t tensor_count(Tensor t) { /* product of n; 0 when absent */
    size_t c = t.rank > 0;
    for (int i = 0; i < t.rank; i++) c *= (size_t)t.n[i];
    return c;
}
size_t tensor_bytes(Tensor);
/* "(4,8)" into buf; returns buf. */
const char *tensor_shape(Tensor, char buf[64]);

Tensor tensor_make(void *p, Dtype dtype, int rank, const int n[]);
#define TENSOR(p, dtype, ...) \
    tensor_make(p, dtype, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
static const Tensor ABSENT = {0};
static inline bool present(Tensor t) { return t.rank > 0; }
static const Into NOWHERE = {0};
static inline Into add_to(Tensor t) { return (Into){t, false}; }
static inline Into overwrite(Tensor t) { return (Into){t, true}; }
/* The same memory as rows of width `w`: (count/w, w). */
Tensor tensor_rows(Tensor t, int w);
/* The same memory from row `row` of the first dimension on, `n` rows. An absent tensor gives an absent one. */
Tensor tensor_part(Tensor t, int row, int n);
static inline Into into_part(Into x, int row, int n) { return (Into){tensor_part(x.t, row, n), x.overwrite}; }
/* Round to the nearest bf16, ties to even; NaN stays NaN. bf16_to is exact. */
static inline uint16_t bf16_from(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
static inline float bf16_to(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
/* Read elements at..at+n-1 of a tensor of `real`s or BF16 as `real`s. */
void tensor_read(Tensor t, size_t at, size_t n, real *to);
/* The elements of a tensor of `real`s; CHECKs its dtype. */
static inline real *R(Tensor t) {
    CHECK(t.dtype == REAL, "dtype %s", dtype_name(t.dtype));
    return t.p;
}

/* ---- fields: one declaration per owned tensor; everything else is a visitor over the declarations ---------------- */
enum {
    FIELD_ONES = 1,      /* initial value 1 (norm gains) */
    FIELD_ZEROS = 2,     /* initial value 0 (biases) */
    FIELD_NODECAY = 4,   /* no weight decay: norms, biases */
    FIELD_RESIDUAL = 8,  /* writes to the residual stream: initial deviation is divided by sqrt(2 layers) */
    FIELD_F32 = 16,      /* never stored in less than f32 (lse, statistics) */
    FIELD_OPTIONAL = 32, /* may be missing from a file */
    FIELD_OWN = 64,      /* Mixer.init gives the initial value */
    /* rows are looked up by token, or belong to the head: not a matrix that maps one space to another */
    FIELD_TABLE = 256,
    FIELD_INVARIANT = 512, /* hard decisions depend on it: `real` in memory, whatever Fields.matrices_bf16 says */
    /* a correction without a gradient: its "gradient" says which direction is too much, and the optimizer takes a step
     * of fixed size against the sign */
    FIELD_BALANCE = 128
};
typedef struct Fields Fields;
struct Fields {
    void (*see)(Fields *, Tensor *, const char *path, unsigned flags);
    void *ctx;
    char scope[96];     /* prefix of the names below: "model.layers.3." */
    bool matrices_bf16; /* matrices of at least BF16_LEAST elements are BF16, except FIELD_F32 and FIELD_INVARIANT */
    bool (*only)(const void *ctx, const char *path); /* with `matrices_bf16`: which matrices, by name; NULL: all */
    const void *only_ctx;
    bool acts_bf16; /* for activations: all are BF16, except FIELD_F32 and FIELD_INVARIANT */
};
/* Smaller matrices gain nothing from bf16, neither in memory nor in a product. */
enum { BF16_LEAST = 64 * 32 };
/* Declare a tensor: set the dtype (REAL, or BF16 by Fields.matrices_bf16 or .acts_bf16) and shape of *t, then show it
 * to the visitor under scope + name. */
void field_declare(Fields *, Tensor *t, const char *name, unsigned flags, int rank, const int n[]);
#define field(f, t, name, flags, ...) \
    field_declare(f, t, name, flags, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
