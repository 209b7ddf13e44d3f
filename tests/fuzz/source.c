/* source.c: any bytes as one text, gzip, zstd, JSONL: what is accepted comes through the reader and the tokenizer's
 * pool; what is not is one line.
 * Sources: data/source.[ch] data/pool.[ch] data/text_check.[ch] ops/file.[ch] */
#include "fuzz.h"
#include "data/pool.h"
#include "data/source.h"

typedef struct {
    size_t bytes;
} Count;
static bool count_ids(void *ctx, const Ids *ids, bool begin, bool end, size_t bytes, Err *e) {
    (void)begin, (void)end, (void)e;
    CHECK(ids->n == bytes, "%zu ids of %zu bytes", ids->n, bytes);
    ((Count *)ctx)->bytes += bytes;
    return true;
}
static bool to_pool(void *ctx, const char *s, size_t n, bool end, Err *e) {
    static size_t all; /* what unpacks to very much is cut off here */
    all = end ? 0 : all + n;
    return all < (1u << 24) ? pool_text(ctx, s, n, end, e) : err_input(e, "enough");
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static int fd = -1;
    char path[32];
    as_file(&fd, path, p, n);
    for (int jsonl = 0; jsonl < 2; jsonl++) {
        Err e = {0};
        Count c = {0};
        Tokenizer t = tokenizer_byte();
        Pool *pool = pool_open(&(PoolCfg){&t, 1, 1 << 20, count_ids, &c});
        SourceCfg cfg = {.sep = "<>", .nsep = 2, .jsonl_key = jsonl ? "text" : NULL, .sink = to_pool, .ctx = pool};
        if (source_read(&cfg, path, &e))
            CHECK(pool_flush(pool, &e), "%s", e.msg);
        else
            refusal(&e);
        pool_close(pool);
    }
    return 0;
}
