/* table.h: what the parts of the op table (table.c, products.c, sequence.c, optimizer.c) share, and the ops. */
#pragma once
#include "ops/check.h"
#include "ops/device.h"
#include "ops/shadow.h"
#include "ops/cuda/cuda.h"

extern const Ops cuda_table;

static inline Cuda *C(Run *r) { return r->dev->cuda; }
/* n values of the host: where the pass has them already, or in scratch. NULL while measuring, which reserves room for
 * those that a pass of another caller does not have. */
static inline void *upload(Run *r, const void *from, int n, size_t size, const char *name) {
    for (int i = 0; i < r->given.n; i++)
        if (r->given.at[i].host == from && r->given.at[i].bytes >= (size_t)n * size) return r->given.at[i].there;
    void *p = arena_take(r->scratch, (size_t)n * size, name);
    if (!measuring(r)) cuda_upload(C(r), p, from, (size_t)n * size);
    return p;
}
static inline int *upload_ints(Run *r, const int *from, int n, const char *name) {
    return upload(r, from, n, sizeof(int), name);
}
/* Call for every tensor that an op writes. Marks its bf16 shadow copy stale, if it has one. */
static inline void writes(Run *r, Tensor t) {
    if (present(t)) shadow_changed(r->dev, t.p, tensor_bytes(t));
}
/* The memory of a tensor that may be BF16, or absent. */
static inline void *numbers(Tensor t) { return t.dtype == BF16 || !present(t) ? t.p : R(t); }
static inline CudaRows rows_into(Into x) { return (CudaRows){x.t.p, x.t.dtype == BF16, x.overwrite}; }
static inline CudaRows rows_of(Tensor t) { return rows_into(add_to(t)); }
static inline real *maybe(Tensor t) { return present(t) ? R(t) : NULL; }

/* CUDA_INT8 .. CUDA_PACKED by a codec, 0: rows of f32 or bf16, or which no kernel reads. */
static inline int cuda_coded(const RowCodec *c) {
    if (!c) return 0;
    return c->as == ROWS_INT8 ? CUDA_INT8 : c->as == ROWS_FP8 ? CUDA_FP8 : c->as == ROWS_PACKED ? CUDA_PACKED : 0;
}
/* out (O) += the sums over the N rows of x. */
void cuda_column_sums_of(Run *r, int N, int O, Tensor out, Tensor x);

/* The ops: those of table.c, products.c, sequence.c and optimizer.c. */
#define DEF(result, op, flops, ...) result cuda_op_##op(Run *r OP_EACH(OP_PARAM, __VA_ARGS__));
#include "ops/ops.def"
