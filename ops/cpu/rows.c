/* rows.c: rows as a codec of the cache stores them. */
static void encode_rows(Run *r, Tensor data, const size_t *to, Tensor x, const size_t *from, int n, int w,
                        const RowCodec *c) {
    if (measuring(r)) return;
    const size_t bytes = c->bytes(c, w), width = (size_t)w;
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)n * w > ALONE)
    for (int i = 0; i < n; i++) {
        CHECK(to[i] + bytes <= tensor_bytes(data) && from[i] + width <= tensor_count(x), "part %d", i);
        c->encode(c, (char *)data.p + to[i], R(x) + from[i], w);
    }
}
static void recode_rows(Run *r, Tensor x, const RowCodec *c) {
    const int w = x.n[x.rank - 1], n = w ? (int)(tensor_count(x) / (size_t)w) : 0,
              words = (int)(c->bytes(c, w) + 7) / 8;
    Mark mark = arena_mark(r->scratch);
    Tensor room = SCRATCH_OF(r, "parts of rows", F64, r->dev->threads, words);
    real *rows = measuring(r) ? NULL : R(x);
#pragma omp parallel for schedule(static) num_threads(r->dev->threads) if ((long)n * w > ALONE)
    for (int i = 0; i < n * !measuring(r); i++) {
        real *row = rows + (size_t)i * (size_t)w;
        void *part = (double *)room.p + (size_t)omp_get_thread_num() * (size_t)words;
        c->encode(c, part, row, w);
        c->decode(c, row, part, w);
    }
    arena_release(r->scratch, mark);
}
