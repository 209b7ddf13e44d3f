/* cuda.h: the interface between the op table of the CUDA backend (host/, in C) and the device code (.cu, C++17): one
 * stream, memory, and the kernels by plain pointers into device memory. Private to ops/cuda and ops/device.c.
 *
 * Everything runs in the stream's order, and only cuda_download and cuda_sync wait. Formulas and shapes are those of
 * ops.def; sizes are in elements. If a device fails the program ends with one line and status 1: the failure is found
 * at the next call that waits, and nothing computed since can be trusted. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Cuda Cuda;
struct Tuning; /* ops/tuning.h */
struct TunedProduct;

/* The device of that number. NULL and why (a line) when there is none, no driver for it, or no memory. */
Cuda *cuda_start(int number, char why[200]);
/* Devices that cuda_start could use, without starting one. 0: `why` says what is missing; it is "" for an emulated
 * device, which is used only by name. */
int cuda_count(char why[200]);
void cuda_stop(Cuda *);
const char *cuda_name(const Cuda *); /* the device's own */
void *cuda_stream(Cuda *);           /* of the computing stream, for libraries */
bool cuda_asks(const Cuda *);        /* false while a capture is replayed: no library is called */
/* With checks on, the host waits for every kernel, product, attention by cuDNN and copy of the computing stream, and
 * one that fails ends the program with its name; passes are not recorded as graphs. Off at first. */
void cuda_check(Cuda *, bool on);
bool cuda_checks(const Cuda *);
void cuda_checked(Cuda *, const char *what); /* call after asking a library for `what` */

/* The properties of the device, its driver and cuBLASLt: numbers, or a text if it is not NULL. The names are those of
 * cuDNN's description of a device (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION; "maxGridSize.0" is the first of an
 * array), with a few more. -1: the driver does not report it. */
typedef void CudaSee(void *ctx, const char *name, long long number, const char *text);
void cuda_facts(Cuda *, CudaSee *, void *ctx);
/* Seconds that the device needs for what `work` asks of it, by events of its stream; waits. */
double cuda_seconds(Cuda *, void (*work)(void *), void *ctx);

/* mapped: pinned memory of the host under one address for both, which the host may use where no kernel is under way,
 * and which kernels read and write over the bus: for tests, and for rows of a cache that do not fit into the device's
 * memory. It is not managed memory, whose pages the driver moves: on some machines that hangs the device. */
void *cuda_take(Cuda *, size_t bytes, bool mapped);
void cuda_give_mapped(Cuda *, void *);
void cuda_give(Cuda *, void *);
void cuda_fill(Cuda *, void *p, int byte, size_t bytes);
void cuda_poison(Cuda *, void *p, size_t bytes);                      /* NaN, for memory without an owner */
void cuda_copy(Cuda *, void *to, const void *from, size_t bytes);     /* inside the device, or of mapped memory */
void cuda_upload(Cuda *, void *to, const void *from, size_t bytes);   /* `from` may change once this returns */
void cuda_download(Cuda *, void *to, const void *from, size_t bytes); /* waits */
void cuda_sync(Cuda *);                                               /* waits for everything */
unsigned long cuda_waits(const Cuda *);                               /* how often either has waited */
void cuda_note(Cuda *, void *p, size_t bytes, const char *name);      /* for the emulation: see Memory in ops/arena.h */
void cuda_unnote(Cuda *, void *p, size_t bytes);

/* graph.cu: passes that are repeated are captured once as CUDA graphs and then launched at once. Between begin and end
 * the caller makes the same calls as always. The first time they run normally; the second time they are captured; from
 * then on they make no launches, and the captured work is replayed. Values from the host (cuda_upload, cuda_value) are
 * collected meanwhile in pinned memory, which one copy sends to the device before the replay; the captured work reads
 * them there. A wait in between (cuda_download, cuda_sync) ends the graph: everything up to there is replayed and
 * waited for, and another graph continues after it. So everything that may differ the next time must be an upload or a
 * value; sizes of launches, pointers and arguments must be the same, or the caller begins another CudaGraph. The
 * emulation compares them. */
typedef struct CudaGraph CudaGraph;
CudaGraph *cuda_graph_new(void);
void cuda_graph_free(Cuda *, CudaGraph *);
void cuda_graph_begin(Cuda *, CudaGraph *);
void cuda_graph_end(Cuda *);
int cuda_graph_replayed(const CudaGraph *); /* pieces of the recording; 0: it was not replayed yet */
/* Where a kernel finds a copy of a value that may differ the next time; NULL: it is passed by value. */
const void *cuda_value(Cuda *, const void *value, size_t bytes);

/* words.cu: writes 4-byte words that the host changed to their places on the device; not during a capture. begin:
 * returns room for pairs of a word's index and its value, each index once; `end` takes n of them, and sends them
 * through mem (room pairs). begin waits for the copy before the last. */
typedef struct CudaWords CudaWords;
CudaWords *cuda_words_open(Cuda *, int room);
void cuda_words_close(Cuda *, CudaWords *);
uint32_t *cuda_words_begin(Cuda *, CudaWords *);
void cuda_words_end(Cuda *, CudaWords *, int n, void *to, void *mem);

/* comm_stream.cu: a second stream next to the computing one, see ops/comm_stream.h; marks are events. A failing call
 * returns false, or -1, and leaves a line in cuda_comm_stream_why. */
typedef struct CudaCommStream CudaCommStream;
CudaCommStream *cuda_comm_stream_start(int number, int *devices,
                                       char why[200]); /* the number becomes this thread's device; -1: that it has */
void cuda_comm_stream_stop(CudaCommStream *);
void *cuda_comm_stream_stream(CudaCommStream *);
void *cuda_comm_stream_take(size_t bytes);
void cuda_comm_stream_give(void *);
bool cuda_comm_stream_follow(CudaCommStream *, Cuda *);
bool cuda_comm_stream_upload(CudaCommStream *, void *to, const void *from, size_t bytes);
bool cuda_comm_stream_download(CudaCommStream *, void *to, const void *from, size_t bytes); /* waits */
bool cuda_comm_stream_mark(CudaCommStream *, int slot);
int cuda_comm_stream_done(CudaCommStream *, int slot);
bool cuda_comm_stream_lead(CudaCommStream *, Cuda *, int slot);
const char *cuda_comm_stream_why(const CudaCommStream *);
const char *cuda_comm_stream_library(void);
/* bf16, rounded to the nearest, ties to even; and back. In the computing stream. */
void cuda_cast_to_bf16(Cuda *, size_t n, uint16_t *to, const float *from);
void cuda_cast_from_bf16(Cuda *, size_t n, float *to, const uint16_t *from, bool add);

/* Values that a pass keeps are f32, or bf16 if an `is_bf16` says so; intermediate values are f32, and rounded to the
 * nearest when stored. `overwrite`: a gradient is overwritten, not added to. */

/* pack.cu: n <= 3 operands of products in bf16, in one launch: y (lanes, rows group, to) = x (rows, lanes group, D),
 * rows of x being ld apart, rounded to the nearest; zeros behind D. `to` is a multiple of 8, y is aligned to 16 bytes.
 */
typedef struct {
    int rows, lanes, group, D, ld, to;
    bool is_bf16; /* x is bf16 */
    const void *x;
    void *y;
} CudaPack;
void cuda_pack(Cuda *, int n, const CudaPack *);
void cuda_round_to_bf16(Cuda *, size_t n, float *x); /* in place, to the nearest bf16 */
/* For n rows in sequences of T each: out_i = first_i minus the row at which i's sequence begins. */
void cuda_places(Cuda *, int n, int T, int *out, const int *first);

/* linear.cu: C (M,N) = or += A (M,K) B (K,N), row-major. ta: A is stored (K,M); tb: B is stored (N,K). By cuBLASLt, in
 * f32 throughout (no TF32), or `is_bf16`: A and B are bf16, sums and C f32; `c_bf16`: C, too, is bf16. */
typedef struct {
    int M, N, K, lda, ldb, ldc;
    bool ta, tb, accumulate, is_bf16, c_bf16;
} CudaGemm;
void cuda_gemm(Cuda *, CudaGemm, void *C, const void *A, const void *B);
/* Tries the library's algorithms for every product used since the device was opened, each for `seconds`, keeps the
 * fastest and reports: at most `most`, returns how many. A product whose operands find no memory is skipped. */
int cuda_tune(Cuda *, double seconds, struct TunedProduct *out, int most);
void cuda_tuning(Cuda *,
                 const struct Tuning *); /* for products that are asked for from now on; it stays the caller's */
long long cuda_library(const Cuda *);    /* cuBLASLt's version */
int cuda_processors(const Cuda *);
void cuda_bias(Cuda *, int N, int O, void *y, const float *bias, bool is_bf16);
void cuda_dots(Cuda *, int N, int O, int I, float *y, const void *x, bool is_bf16, const float *w, const float *bias);
/* embed.cu; table: f32, or bf16 where `is_bf16` */
void cuda_embed(Cuda *, int N, int d, float *y, const void *table, bool is_bf16, const int *tok, float scale);
/* Scratch: ids and rows N each, counts CUDA_EMBED_BINS * CUDA_EMBED_TILES; parts: two rows of d for each run of
 * CUDA_EMBED_RUN rows that is begun. */
enum { CUDA_EMBED_BINS = 512, CUDA_EMBED_TILES = 256, CUDA_EMBED_RUN = 32 };
typedef struct {
    int *ids[2], *rows[2], *counts;
    float *parts;
} CudaEmbed;
/* tok in 0..V-1. */
void cuda_embed_backward(Cuda *, int N, int d, int V, float *dtable, CudaEmbed, const float *dy, const int *tok,
                         float scale);

/* sums.cu: sums over rows are made in two steps: of slices of the rows, whose sums are scratch (`parts`), and over
 * those. A slice has 16 rows or more; there are enough of them for `tiles` blocks each to fill a large device. */
static inline int cuda_slices(size_t rows, int tiles) {
    size_t most = (rows + 15) / 16, enough = tiles < 1056 ? (size_t)(1056 + tiles - 1) / (size_t)tiles : 1;
    return (int)(most < enough ? most : enough);
}
static inline int cuda_tiles(int columns) { return (columns + 31) / 32; } /* where a block has 32 columns of a slice */
/* For whole rows: half as many slices for long ones, whose parts weigh more. */
static inline int cuda_row_tiles(int d) { return d > 1024 ? 2 : 1; }
/* out (O) += the sums over the rows of x (N,O). parts (cuda_slices(N, cuda_tiles(O)), O). */
void cuda_column_sums(Cuda *, int N, int O, float *out, float *parts, const void *x, bool is_bf16);
void cuda_fold(Cuda *, int slices, int columns, float *out, const float *parts); /* out (columns) += */

/* norm.cu: N rows of d. parts: (cuda_slices(N, cuda_row_tiles(d)), d), of LayerNorm twice. */
typedef enum { CUDA_NORM_WIDE, CUDA_NORM_OUT, CUDA_NORM_ALL } CudaNormOf; /* bf16: nothing, y or dy, x and dx as well */
void cuda_rmsnorm(Cuda *, int N, int d, void *y, float *rstd, void *x, const void *z /* x += z before, or NULL */,
                  const float *w, double eps, CudaNormOf);
void cuda_rmsnorm_backward(Cuda *, int N, int d, void *dx, float *dw, float *parts, const void *dy, const void *x,
                           const float *w, const float *rstd, CudaNormOf, bool overwrite);
void cuda_layernorm(Cuda *, int N, int d, void *y, float *rstd, const float *x, const float *w, const float *b,
                    double eps, bool y_bf16);
void cuda_layernorm_backward(Cuda *, int N, int d, float *dx, float *dw, float *db, float *parts, const void *dy,
                             const float *x, const float *w, const float *rstd, bool dy_bf16);
void cuda_l2norm(Cuda *, int N, int d, void *y, const void *x, double eps, bool is_bf16);
void cuda_l2norm_backward(Cuda *, int N, int d, void *dx, const void *dy, const void *x, double eps, bool is_bf16,
                          bool overwrite);

/* rotate.cu: f (n/2) in radians per position; row m is at pos[idx[m]]. */
typedef struct {
    int N, heads, D, at, n, interleaved, sign;
    double factor, f[256];
} CudaRope;
void cuda_rope(Cuda *, const CudaRope *, void *x, const int *pos, const int *idx, bool is_bf16);
/* Heads of at most 1024 elements, RMSNorm before; x, y or dx and dy are bf16 together. backward: sign -1; parts
 * (cuda_norm_rope_slices, D). */
void cuda_norm_rope(Cuda *, const CudaRope *, void *y, float *rstd, const void *x, const float *w, double eps,
                    const int *pos, const int *idx, bool is_bf16);
static inline int cuda_norm_rope_slices(int N, int heads) {
    int slices = cuda_slices((size_t)N * (size_t)heads, 1);
    return slices < N ? slices : N; /* a slice has whole rows, whose heads share angles */
}
void cuda_norm_rope_backward(Cuda *, const CudaRope *, void *dx, float *dw, float *parts, const void *dy, const void *x,
                             const float *w, const float *rstd, const int *pos, const int *idx, bool is_bf16,
                             bool overwrite);

/* attend.cu, attend_backward.cu: the rows of a pass as in ops/run.h, with its arrays on the device. */
enum { CUDA_ENTRIES = 64 }; /* query heads of rows per block */
typedef struct {
    int B, N, n;                        /* sequences, rows, wanted rows */
    int entries;                        /* query heads of a lane, of the sequence with most wanted rows */
    int blocks;                         /* of CUDA_ENTRIES for it */
    int longest;                        /* rows of the longest sequence */
    const int *off, *pos, *first, *idx; /* idx NULL: every row is wanted */
    int lanes, heads, Dk, Dv, ldv;      /* values are ldv apart */
    int window, sinks, delay;
    float scale, cap;          /* AttnSpec; kernels of flash*.cu know no cap */
    const float *k, *v, *bias; /* bias: or NULL */
} CudaAttend;
/* before: lse of the partial that is merged with, not the memory of lse where cuda_attend_slices is more than 1; or
 * NULL.
 */
void cuda_attend(Cuda *, const CudaAttend *, float *o, float *lse, const float *before, const float *q);
int cuda_attend_slices(int Dv); /* blocks that share a row of the values */
/* delta (N,heads): scratch. */
void cuda_attend_backward(Cuda *, const CudaAttend *, float *dq, float *dk, float *dv, float *dbias, float *delta,
                          const float *dout, const float *q, const float *o, const float *lse);

/* flash.cu, flash_backward.cu: the same with q, k, v, dout and the probabilities rounded to bf16 as operands of
 * products, which the tensor cores add in f32; everything else is f32. Widths up to 256; mem: scratch, aligned to 16
 * bytes, for operands that are not read in place, as bf16 in rows of a multiple of 8 elements is, aligned to 16 bytes.
 * k and v of CudaAttend are not used. dout is of o's type, k of v's, dk of dv's. */
typedef struct {
    void *p; /* NULL while measuring */
    bool is_bf16, overwrite;
} CudaRows;
typedef struct {
    CudaRows q, k, v, o, dout, dq, dk, dv; /* from dout on: of the backward */
} CudaFlash;
bool cuda_flash_takes(int Dk, int Dv);
/* Size of mem; reads n, N, lanes, heads, Dk, Dv, ldv and which tensors are bf16. */
size_t cuda_flash_bytes(const CudaAttend *, const CudaFlash *);
void cuda_flash(Cuda *, const CudaAttend *, const CudaFlash *, void *mem, float *lse, const float *before);
size_t cuda_flash_backward_bytes(const CudaAttend *, const CudaFlash *);
void cuda_flash_backward(Cuda *, const CudaAttend *, const CudaFlash *, void *mem, float *dbias, const float *lse);

/* Parts of rows in int8.h, fp8.h, packed.h. */
enum { CUDA_INT8 = 1, CUDA_FP8, CUDA_PACKED };
/* lanes.cu: the cached history as in ops/run.h (Lanes), all of it readable by the device; k, v of CudaAttend are not
 * used. flash_lanes.cu: the same for rows in bf16, with q and the probabilities rounded as in flash.cu. */
typedef struct {
    int P, maxpages, sinks;
    bool alias, is_bf16, matrix; /* matrix: `is_bf16`, on the matrix units */
    bool sparse;                 /* KvShape */
    int coded;                   /* CUDA_INT8 .. CUDA_PACKED, 0: data is f32, or bf16 where `is_bf16` */
    int bits, group;             /* of CUDA_PACKED: RowCodec */
    const void *data;
    const int *seq, *s0, *lo, *hi, *table, *pos;
    const bool *evicted; /* NULL: rows are not evicted; otherwise */
    const int *tail;
    const float *evicts; /* and Kv.evicted of the pass */
    int pieces, slots;   /* of the longest history that is split, 1: none is; rows that partials have room for */
    float *part, *lses;  /* scratch (pieces,slots,heads,Dv), (pieces,slots,heads) */
} CudaLanes;
/* colstat.cu: of the lanes P, maxpages, alias, is_bf16, coded, bits, group, data, lo, hi, table and pos are read; rows:
 * of q. */
typedef struct {
    int seq, from, n, queries, heads, value; /* ColStat */
    int lanes, group, rows, Dk, Dv, columns;
    int *seen;                  /* scratch (lanes,rows) */
    bool older;                 /* ColStat; scratch of it alone, NULL otherwise: */
    float *sums, *lses, *parts; /* (rows,lanes,Dk), (rows,lanes), (lanes,rows,2,CUDA_COL_PIECES) */
} CudaColStat;
enum { CUDA_COL_PIECES = 16 }; /* shares of a lane's rows, of which log-sum-exps are made at once */
void cuda_colstat(Cuda *, const CudaColStat *, const CudaLanes *, float *stat, const float *q, const float *lse);
/* The history of a sequence with at most CUDA_SPLIT_ROWS wanted rows is divided among as many blocks as it has pieces,
 * a number that depends only on its length: the results of a sequence do not depend on its neighbours. */
enum { CUDA_SPLIT_ROWS = 4, CUDA_PIECES = 32 };
int cuda_lane_pieces(int rows);      /* of a lane that shows so many */
int cuda_lane_pieces_most(int rows); /* of one that shows so many or fewer */
bool cuda_flash_lanes_takes(int Dk, int Dv, bool alias);
void cuda_attend_lanes(Cuda *, const CudaAttend *, const CudaLanes *, float *o, float *lse, const float *before,
                       const float *q);

/* int8.cu: parts of int8.h. Stores n parts of w elements of x, from element from[i], at byte to[i] of data; and
 * replaces every one of n rows of w by what reading it back will give. */
void cuda_int8_encode(Cuda *, int n, int w, void *data, const size_t *to, const float *x, const size_t *from);
void cuda_int8_recode(Cuda *, int n, int w, float *x);
/* fp8.cu, packed.cu: the same for parts of fp8.h, and of packed.h with these bits and groups of 32 or 64. */
void cuda_fp8_encode(Cuda *, int n, int w, void *data, const size_t *to, const float *x, const size_t *from);
void cuda_fp8_recode(Cuda *, int n, int w, float *x);
void cuda_packed_encode(Cuda *, int bits, int group, int n, int w, void *data, const size_t *to, const float *x,
                        const size_t *from);
void cuda_packed_recode(Cuda *, int bits, int group, int n, int w, float *x);
/* hadamard.cu: of pieces of n elements, a power of two of at most HADAMARD_MOST. */
void cuda_hadamard(Cuda *, size_t pieces, int n, void *x, bool is_bf16);

/* elementwise.cu */
void cuda_swiglu(Cuda *, size_t n, void *y, const void *gate, const void *up, bool is_bf16);
void cuda_swiglu_backward(Cuda *, size_t n, void *y /* or NULL */, void *dgate, void *dup, const void *dy,
                          const void *gate, const void *up, bool is_bf16, bool overwrite_gate, bool overwrite_up);
void cuda_swiglu_rows(Cuda *, int M, int d, void *y, const void *gate, const void *up, const float *s, bool is_bf16);
void cuda_swiglu_rows_backward(Cuda *, int M, int d, void *dgate, void *dup, float *ds, const void *dy,
                               const void *gate, const void *up, const float *s, bool is_bf16, bool overwrite_gate,
                               bool overwrite_up, bool overwrite_s);
/* s and ds NULL: no factor of the rows. */
void cuda_relu2(Cuda *, int M, int d, void *y, const void *x, const float *s, bool is_bf16);
void cuda_relu2_backward(Cuda *, int M, int d, void *dx, float *ds, const void *dy, const void *x, const float *s,
                         bool is_bf16, bool overwrite_x, bool overwrite_s);
void cuda_gelu(Cuda *, size_t n, void *y, const void *x, bool approx, bool is_bf16);
void cuda_gelu_backward(Cuda *, size_t n, void *dx, const void *dy, const void *x, bool approx, bool is_bf16,
                        bool overwrite);
void cuda_geglu(Cuda *, size_t n, void *y, const void *gate, const void *up, bool approx, bool is_bf16);
void cuda_geglu_backward(Cuda *, size_t n, void *y /* or NULL */, void *dgate, void *dup, const void *dy,
                         const void *gate, const void *up, bool approx, bool is_bf16, bool overwrite_gate,
                         bool overwrite_up);
void cuda_add(Cuda *, size_t n, void *y, const void *x, bool y_bf16, bool x_bf16);
void cuda_axpby(Cuda *, size_t n, float *y, float a, const float *x, float b);
void cuda_repeat(Cuda *, size_t n, size_t width, float *y, const double *row); /* row on the device */
typedef struct {
    uint64_t key;   /* of step, layer and site */
    uint64_t below; /* dropped where 32 random bits are below this */
    float keep;
} CudaDrop;
void cuda_dropout(Cuda *, int N, int d, float *x, CudaDrop, const int *idx, const int *of, const int *off,
                  const uint64_t *id);
void cuda_elu1(Cuda *, size_t n, void *y, const void *x, bool is_bf16);
void cuda_elu1_backward(Cuda *, size_t n, void *dx, const void *dy, const void *y, bool is_bf16, bool overwrite);
void cuda_sigmoid(Cuda *, size_t n, float *y, const float *x, float top);
void cuda_sigmoid_backward(Cuda *, size_t n, float *dx, const float *dy, const float *y, float top, bool overwrite);

/* rows.cu: rows and columns moved about */
/* y row m = x row (place of to[m] in the ascending from (nfrom)). */
void cuda_gather(Cuda *, int n, size_t width, void *y, const void *x, const int *from, int nfrom, const int *to,
                 bool is_bf16);
/* n pieces: y from number to[i] on is x from number from[i] on; either may be bf16. */
void cuda_move(Cuda *, int n, size_t width, void *y, bool y_bf16, const size_t *to, const void *x, bool x_bf16,
               const size_t *from);
void cuda_spread(Cuda *, int n, size_t width, void *y, bool y_bf16, const void *x, bool x_bf16, const int *row);
void cuda_collect(Cuda *, int n, size_t width, void *y, bool y_bf16, bool overwrite, const void *x, bool x_bf16,
                  const int *place, int k);
typedef struct {
    int rows, k; /* of y; rows of y to one of x */
    int wy, to, wx, from, n;
} CudaColumns;
void cuda_columns(Cuda *, CudaColumns, void *y, bool y_bf16, const void *x, bool x_bf16);
void cuda_columns_backward(Cuda *, CudaColumns, void *dx, bool dx_bf16, bool overwrite, const void *dy, bool dy_bf16);

/* lines.cu: M groups of V and V+1 */
void cuda_append_ones(Cuda *, size_t M, int V, void *y, const void *x, bool is_bf16);
void cuda_append_ones_backward(Cuda *, size_t M, int V, void *dx, const void *dy, bool is_bf16, bool overwrite);
void cuda_divide_by_last(Cuda *, size_t M, int V, void *y, const void *x, float eps, bool is_bf16);
void cuda_divide_by_last_backward(Cuda *, size_t M, int V, void *dx, const void *dy, const void *y, const void *x,
                                  float eps, bool is_bf16, bool overwrite);
/* x (N,H,P) */
void cuda_step(Cuda *, int N, int H, int P, void *y, const void *x, const float *z, const float *bias, bool is_bf16);
/* df (N,H): what dz gained, whose column sums are the gradient of the bias. */
void cuda_step_backward(Cuda *, int N, int H, int P, void *dx, float *dz, float *df, const void *dy, const void *x,
                        const float *z, const float *bias, bool is_bf16, bool overwrite_x, bool overwrite_z);
void cuda_skip(Cuda *, int N, int H, int P, void *y, const void *x, const float *w, bool is_bf16);
void cuda_skip_backward(Cuda *, int N, int H, int P, void *dx, float *dw, const void *dy, const void *x, const float *w,
                        bool is_bf16, bool overwrite);

/* gated.cu */
void cuda_sigmoid_gate(Cuda *, size_t n, void *y, const void *x, const void *z, bool is_bf16);
void cuda_sigmoid_gate_backward(Cuda *, size_t n, void *dx, void *dz, const void *dy, const void *x, const void *z,
                                bool is_bf16, bool overwrite_x, bool overwrite_z);
/* o (N,H,D) */
void cuda_attend_sink(Cuda *, int N, int H, int D, void *o, float *lse, const float *w, bool is_bf16);
void cuda_attend_sink_backward(Cuda *, int N, int H, int D, float *dw, const void *dout, const void *o,
                               const float *lse, const float *w, bool is_bf16);
void cuda_swiglu_limit(Cuda *, int M, int d, void *y, const void *gate, const void *up, const float *s, float alpha,
                       float limit, bool is_bf16);
void cuda_swiglu_limit_backward(Cuda *, int M, int d, void *dgate, void *dup, float *ds, const void *dy,
                                const void *gate, const void *up, const float *s, float alpha, float limit,
                                bool is_bf16, bool overwrite_gate, bool overwrite_up, bool overwrite_s);

/* gates.cu: gates of ops/recur.h; A, bias, w and gradients may be NULL. */
typedef enum { CUDA_GATE_SOFTPLUS, CUDA_GATE_BOUND, CUDA_GATE_LOGSIGMOID } CudaGateKind;
typedef struct {
    CudaGateKind kind;
    float param;
} CudaGate;
/* is_bf16: of z and dz. */
void cuda_decay(Cuda *, int N, int H, int D, float *g, const void *z, const float *A, const float *bias, CudaGate,
                bool is_bf16);
/* parts: cuda_slices(N, cuda_tiles(H D)) H D values, each a double and a float, aligned to 8 bytes. */
void cuda_decay_backward(Cuda *, int N, int H, int D, void *dz, float *dA, float *dbias, void *parts, const float *dg,
                         const void *z, const float *A, const float *bias, CudaGate, bool is_bf16, bool overwrite);
/* M groups of `width` elements, w of period * width. */
typedef struct {
    int width, period;
    bool silu, before;
    double eps;
} CudaGatedNorm;
void cuda_gated_norm(Cuda *, size_t M, void *y, const void *x, const void *z, const float *w, CudaGatedNorm,
                     bool is_bf16);
/* parts (cuda_slices(M / period, period * cuda_row_tiles(width)), period * width). */
void cuda_gated_norm_backward(Cuda *, size_t M, void *dx, void *dz, float *dw, float *parts, const void *dy,
                              const void *x, const void *z, const float *w, CudaGatedNorm, bool is_bf16,
                              bool overwrite_x, bool overwrite_z);

enum { CUDA_CONV_WIDTH = 16 };
/* conv.cu: x (N,C), w (C,W), W <= CUDA_CONV_WIDTH; a sequence's state has `blob` elements, the tail begins at `at`. of,
 * first, off, seq: those of Batch, on the device. */
typedef struct {
    int N, B, C, W, at;
    bool silu, is_bf16; /* is_bf16: x, y and their gradients, without a state */
    size_t blob;
    const int *of, *first, *off, *seq;
} CudaConv;
void cuda_short_conv(Cuda *, const CudaConv *, void *y, const void *x, const float *w, const float *bias, float *state,
                     bool store);
static inline int cuda_conv_tiles(int C) { return (C + 255) / 256; }
/* parts (cuda_slices(N, cuda_conv_tiles(C)), W + 1, C). */
void cuda_short_conv_backward(Cuda *, const CudaConv *, void *dx, bool overwrite, float *dw, float *dbias, float *parts,
                              const void *dy, const void *x, const float *w, const float *bias);

/* merge.cu: x (N,lanes,D); a, w, z (N,lanes); past (.,lanes,rows,C) or NULL; of, pos, first, off, seq: those of Batch,
 * on the device. */
typedef struct {
    int N, B, lanes, D, window, rows, C, at;
    const float *x, *a, *w, *past;
    const int *of, *pos, *first, *off, *seq;
} CudaMerge;
void cuda_merge(Cuda *, const CudaMerge *, float *y, float *z);
/* Scratch: big (N,lanes,D) and small (N,lanes,3), or with a window both (N,lanes,window). */
void cuda_merge_backward(Cuda *, const CudaMerge *, float *dx, float *da, float *dw, float *big, float *small,
                         const float *dy, const float *y, const float *z);

/* decide.cu: u (N,wide), alpha, bias, gone (N,G); of, first, off, id: those of Batch, on the device. A sequence's sums
 * of decisions are `stats` elements apart, its derivatives in dstat. */
typedef struct {
    int N, B, G, wide, stats, group;
    bool train, noise, smooth, count_still, itself;
    double gain, offset, temperature, eps;
    uint64_t key;
    const uint64_t *at;                /* cuda_decide: the key, as a captured pass reads it */
    const int *of, *first, *off, *seq; /* seq, past: with a history, of rows that decide about themselves */
    const uint64_t *id;
    const float *past;
} CudaDecide;
/* omega, gone, stat: or NULL. */
void cuda_decide(Cuda *, const CudaDecide *, float *alpha, float *omega, float *bias, float *evicted, float *stat,
                 const float *u);
void cuda_decide_backward(Cuda *, const CudaDecide *, float *du, float *dm, const float *dalpha, const float *domega,
                          const float *dbias, const float *alpha, const float *omega, const float *dstat);
/* w: float, or bf16 where `is_bf16`. */
void cuda_mean_rows(Cuda *, int n, int d, float *y, const void *w, bool is_bf16, int each, int at, int k);
void cuda_scale_column(Cuda *, size_t rows, int width, int column, float *x, float m);

/* recur.cu: the recurrence of ops/recur.h; off, first, seq: those of Batch, on the device. K <= CUDA_RECUR_WIDTH. */
enum { CUDA_RECUR_CHUNK = 64, CUDA_RECUR_WIDTH = 256 };
typedef struct {
    int B, N, H, HV, K, V, at;
    int longest;      /* rows of the longest sequence */
    bool per_channel; /* g has K elements per head */
    bool delta;       /* beta or e is there */
    bool erases;      /* e is there: row by row only */
    bool is_bf16;     /* q, k, v, o and dout are bf16 */
    float scale;
    size_t blob;
    const void *q, *k, *v, *e; /* e: or NULL */
    const float *g, *beta;     /* or NULL */
    const int *off, *first, *seq;
} CudaRecur;
void cuda_recur(Cuda *, const CudaRecur *, void *o, float *keep, float *state, bool write);
/* Each or NULL, of g and beta f32. q, k, g and e (slices,N,HV,K), beta (slices,N,HV): sums over the columns of one
 * slice. */
typedef struct {
    CudaRows q, k, g, beta, v, e;
    const float *start, *dend; /* RecurEnds */
    float *dstart;
} CudaRecurGrad;
int cuda_recur_slices(int K, int V);
size_t cuda_recur_notes(int K, int V); /* elements of scratch for a value head of a sequence */
void cuda_recur_backward(Cuda *, const CudaRecur *, const CudaRecurGrad *, const void *dout, float *keep, float *notes);
/* y (rows,width) gains x (slices,rows,group,width) summed over slices and groups. */
void cuda_recur_fold(Cuda *, size_t rows, int width, CudaRows y, const float *x, int slices, int group);

/* delta.cu: the same in chunks of CUDA_RECUR_CHUNK rows on the tensor cores, operands of the large products rounded to
 * bf16. The question below says which passes it supports; `longest` is at least the rows of a chunk. If V is a multiple
 * of eight, v, dout and an overwritten dv in bf16 are used in place, aligned to 16 bytes. */
enum { CUDA_DELTA_WIDTH = 128 };
static inline bool cuda_delta_takes(int K, int longest) { return K <= CUDA_DELTA_WIDTH && longest >= CUDA_RECUR_CHUNK; }
size_t cuda_delta_bytes(const CudaRecur *);
/* keep NULL: states between chunks are not kept. */
void cuda_delta(Cuda *, const CudaRecur *, void *mem, void *o, float *keep, float *state, bool write);
size_t cuda_delta_backward_bytes(const CudaRecur *, CudaRows dv);
/* Gradients as of recur_backward's one slice; of heads that have no decay of their own, g (N,HV). */
void cuda_delta_backward(Cuda *, const CudaRecur *, void *mem, const CudaRecurGrad *, const void *dout, float *keep);

/* loss.cu: n products of the head become logits; fold: 1/cap^2, or 0. The gradients below
 * are by the products. */
typedef struct {
    float scale, cap, fold;
} CudaLogits;
void cuda_map_logits(Cuda *, size_t n, float *x, CudaLogits);
/* loss.cu */
/* n rows of V logits: nll, hit (or NULL), and with g their gradient: in their place, or in bf16 in rows of `rounded`
 * that are `to` apart. */
void cuda_xent(Cuda *, int n, int V, float *logits, void *rounded, int to, float *nll, int *hit, const int *tgt,
               const float *g, CudaLogits);
enum { CUDA_SUMSQ_PIECE = 65536 };
typedef struct {
    const float *x;
    size_t n, first; /* elements; number of its first piece */
} CudaPieces;
/* *sum = start, or with `more` what it was, + the squares of n tensors of `pieces` in all, some may have none; the
 * table lies on the device. part: one for each piece. */
void cuda_sumsq(Cuda *, double start, bool more, int n, const CudaPieces *, size_t pieces, double *part, double *sum);

void cuda_normalise(Cuda *, size_t n, float *x, const double *sum, double eps); /* x /= sqrt(*sum) + eps */

/* distill.cu: n rows of V logits and of the teacher's: losses, and with g in place of the logits their gradient. */
typedef struct {
    float lm, kl, rkl, temperature;
    CudaLogits map;
} CudaDistill;
void cuda_distill(Cuda *, int n, int V, float *logits, const float *teacher, float *nll, float *kl, float *rkl,
                  const int *tgt, const float *g, CudaDistill);
/* inv (B): scratch. dy and g may be NULL. */
void cuda_align(Cuda *, int N, int B, int d, float *err, float *dy, float *inv, const float *y, const float *a,
                const int *tgt, const int *off, const float *g, float factor);

/* update.cu: moments are float, or bf16 where `is_bf16`; shadow: w rounded to bf16, or NULL. share, decay and x are the
 * schedule-free rule's, which has neither root nor shrink. */
typedef struct {
    float b1, b2, one_b1, one_b2, step, eps;
    union {
        float root, share;
    };
    union {
        float shrink, decay;
    };
} CudaAdam;
typedef struct {
    uint64_t key, at;
} CudaRounding;
enum { CUDA_ADAM_PIECE = 8192 };
typedef struct {
    float *w;
    uint16_t *shadow;
    const float *g;
    void *m, *v;
    float *x;
    size_t n;
    unsigned first; /* number of its first piece */
    bool quads;     /* four elements of each may be moved at a time */
    CudaAdam p;
    CudaRounding round;
    double gscale, most;
    const double *square; /* on the device; or NULL */
} CudaAdamOf;
/* n tensors of `pieces` in all, each of which has some; the table lies on the device. One kernel a rule of UpdateRule
 * (ops/ops.h). */
void cuda_adamw(Cuda *, int n, const CudaAdamOf *, size_t pieces, bool is_bf16);
void cuda_lion(Cuda *, int n, const CudaAdamOf *, size_t pieces, bool is_bf16);
void cuda_schedule_free(Cuda *, int n, const CudaAdamOf *, size_t pieces, bool is_bf16); /* is_bf16: v */
void cuda_momentum(Cuda *, size_t n, float *u, void *m, const float *g, bool is_bf16, float mu, float scale,
                   bool nesterov, CudaRounding);

#ifdef __cplusplus
}
#endif
