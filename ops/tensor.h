/* tensor.h: a typed, shaped pointer; and the visitors over everything that is owned.
 *
 * Letters, the same everywhere:
 *   N rows (tokens) of a pass   B sequences   T tokens of a sequence   V vocabulary   L layers   d model width
 *   H query heads   G key/value heads (lanes)   D head width (Dk keys, Dv values)   F width of the feed-forward part
 * A weight "(out,in)" computes y = W x. Row-major everywhere. */
#pragma once
#include "base.h"

typedef enum { F64, F32, BF16, F16 } Dtype;

/* The number type of the CPU's arithmetic: float, or double in the build that checks gradients. */
#ifdef KV_DOUBLE
typedef double real;
    #define REAL F64
#else
typedef float real;
    #define REAL F32
#endif

enum { RANK_MAX = 4 };
/* rank 0 = absent. p may be NULL while memory is only being measured. */
typedef struct {
    void *p;
    Dtype dtype;
    int rank, n[RANK_MAX];
    bool halved; /* a weight of which the device keeps a copy in bf16, for products: half.h */
    bool fresh;  /* a gradient that nothing was added to yet, whatever its memory holds: ops.h */
} Tensor;

size_t dtype_size(Dtype);
const char *dtype_name(Dtype); /* "F32": the name of safetensors */
size_t tensor_count(Tensor);   /* product of n; 0 when absent */
size_t tensor_bytes(Tensor);
/* "(4,8)" into buf; returns buf. */
const char *tensor_shape(Tensor, char buf[64]);

Tensor tensor_make(void *p, Dtype dtype, int rank, const int n[]);
#define TENSOR(p, dtype, ...) \
    tensor_make(p, dtype, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
static const Tensor ABSENT = {0};
static inline bool present(Tensor t) { return t.rank > 0; }
/* The same memory as rows of width `w`: (count/w, w). */
Tensor tensor_rows(Tensor t, int w);
/* The same memory from row `row` of the first size on, `n` rows; absent of absent. */
Tensor tensor_part(Tensor t, int row, int n);
/* To the nearest bf16, ties to even; NaN stays NaN. And back, exactly. */
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
/* Numbers at..at+n-1 of a tensor of `real`s or of BF16 as `real`s. */
void tensor_read(Tensor t, size_t at, size_t n, real *to);
/* The numbers of a tensor that holds `real`s. */
static inline real *R(Tensor t) {
    CHECK(t.dtype == REAL, "dtype %s", dtype_name(t.dtype));
    return t.p;
}

/* ---- fields: one declaration per owned tensor; everything else is a visitor over the declarations ------------------
 */
enum {
    FIELD_ONES = 1,      /* initial value 1 (norm gains) */
    FIELD_ZEROS = 2,     /* initial value 0 (biases) */
    FIELD_NODECAY = 4,   /* no weight decay: norms, biases */
    FIELD_RESIDUAL = 8,  /* writes to the residual stream: initial deviation is divided by sqrt(2 layers) */
    FIELD_F32 = 16,      /* never stored narrower than f32 (lse, statistics) */
    FIELD_OPTIONAL = 32, /* may be missing from a file */
    FIELD_OWN = 64,      /* Mixer.init gives the initial value */
    FIELD_TABLE = 256,   /* rows are looked up by token, or are the head's: no matrix that maps one space to another */
    FIELD_STEADY = 512,  /* hard decisions hang on it: `real` in memory, whatever Fields.narrow says */
    FIELD_BALANCE = 128  /* a correction that no gradient reaches: its "gradient" says which way is too much, and the
                            optimizer takes a step of fixed size against the sign */
};
typedef struct Fields Fields;
struct Fields {
    void (*see)(Fields *, Tensor *, const char *path, unsigned flags);
    void *ctx;
    char scope[96]; /* prefix of the names below: "model.layers.3." */
    bool narrow;    /* matrices of NARROW_LEAST numbers and more are BF16, but those of FIELD_F32 and FIELD_STEADY */
    bool (*only)(const void *ctx, const char *path); /* with `narrow`: which matrices, by name; NULL: all */
    const void *only_ctx;
    bool half; /* of activations: all are BF16, but those of FIELD_F32 and FIELD_STEADY */
};
/* Smaller matrices gain nothing by bf16: neither in memory nor in a product. */
enum { NARROW_LEAST = 64 * 32 };
/* Declare: sets *t's dtype (REAL, or BF16 by Fields.narrow or .half) and shape, then lets the visitor see it under
 * scope + name. */
void field_declare(Fields *, Tensor *t, const char *name, unsigned flags, int rank, const int n[]);
#define field(f, t, name, flags, ...) \
    field_declare(f, t, name, flags, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
