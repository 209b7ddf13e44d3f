/* shard_index.c: any bytes as model.safetensors.index.json. No file outside the directory may be opened; there is none
 * inside, so every index that names a shard is refused.
 * Sources: model/files/safetensors.[ch] ops/file.[ch] */
#include "fuzz.h"
#include "model/files/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static int fd = -1;
    char path[32];
    St st;
    Err e = {0};
    as_file(&fd, path, p, n);
    const char *dir = around("model.safetensors.index.json", path);
    CHECK(!st_open_dir(&st, dir, &e), "an index without shards was accepted");
    refusal(&e);
    return 0;
}
