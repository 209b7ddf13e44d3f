/* steps.c: see steps.h. */
#include "steps.h"

Run *steps_run(Run *r, Steps c, Stepped *p) {
    const Batch *b = r->batch;
    const int each = steps_each(c), N = b->N * each;
    if (each == 1) return r;
    int *off = arena_take(r->host, (size_t)(b->B + 1) * sizeof(int), "first rows of steps"),
        *of = arena_take(r->host, (size_t)N * sizeof(int), "sequences of steps"),
        *pos = arena_take(r->host, (size_t)N * sizeof(int), "positions of steps"),
        *first = arena_take(r->host, (size_t)N * sizeof(int), "documents of steps"),
        *idx = arena_take(r->host, (size_t)N * sizeof(int), "steps");
    p->run = *r;
    p->batch = *b;
    p->batch.N = N;
    p->batch.off = off, p->batch.of = of, p->batch.pos = pos, p->batch.first = first;
    p->run.batch = &p->batch;
    p->run.in = p->run.out = (RowList){N, idx};
    for (int s = 0; !measuring(r) && s <= b->B; s++) off[s] = b->off[s] * each;
    for (int i = 0; !measuring(r) && i < N; i++) {
        const int t = i / each;
        of[i] = b->of[t], pos[i] = b->pos[t] * each + i % each, idx[i] = i;
        first[i] = b->first[t] < 0 ? -1 : b->first[t] * each;
    }
    return &p->run;
}
/* Elements of a row of x. */
static int steps_width(Tensor x) { return x.rank == 3 ? x.n[1] * x.n[2] : x.n[1]; }
Tensor steps_placed(Run *r, Steps c, Tensor x, int heads, int width) {
    const int N = x.n[0], each = steps_each(c), size = steps_width(x);
    if (size == each * heads * width) return TENSOR(x.p, x.dtype, N * each, heads, width);
    Tensor y = SCRATCH_OF(r, "steps", x.dtype, N, each * heads * width);
    r->ops->zero(r, y);
    r->ops->columns(r, y, 0, tensor_rows(x, size), 0, size);
    return TENSOR(y.p, y.dtype, N * each, heads, width);
}
Tensor steps_placed_backward(Run *r, Steps c, Tensor d, Tensor x) {
    const int size = steps_width(x), all = steps_each(c) * steps_width(d);
    Tensor y = x;
    y.p = d.p;
    if (size == all) return y;
    y = scratch_tensor(r, "d of steps", x.dtype, x.rank, x.n);
    r->ops->columns(r, tensor_rows(y, size), 0, tensor_rows(d, all), 0, size);
    return y;
}
void steps_reads(Run *r, Steps c, Tensor steps, Tensor heads, int width, bool out) {
    const int group = c.group, parts = group == 1 ? 1 : c.kv_heads, w = group == 1 ? width * c.kv_heads : width,
              row = parts * w;
    Tensor s = tensor_rows(steps, steps_each(c) * row), h = tensor_rows(heads, group * row);
    for (int k = 0; k < parts; k++)
        for (int j = 0; j < group; j++) {
            const int at = (c.householders - 1 + j) * row + k * w, head = (k * group + j) * w;
            if (out)
                r->ops->columns(r, h, head, s, at, w);
            else
                r->ops->columns(r, s, at, h, head, w);
        }
}
Tensor steps_read_by(Run *r, Steps c, Tensor x, int states, int width) {
    const int each = steps_each(c);
    if (each == 1) return x;
    Tensor y = SCRATCH_OF(r, "reads", x.dtype, x.n[0] * each, states, width);
    r->ops->zero(r, y);
    steps_reads(r, c, y, x, states / c.kv_heads * width, false);
    return y;
}
