/* moments.c: any bytes as one rank's file of moments. What makes up a tensor is read whole, and by halves the same.
 * Sources: train/save/shards.[ch] model/files/safetensors.[ch] model/files/safetensors_file.h */
#include "fuzz.h"
#include "train/save/shards.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static int fd = -1;
    enum { ROWS = 4, WIDTH = 6, N = ROWS * WIDTH };
    float all[N], half[N];
    char path[32], *file[1] = {path};
    Moments m;
    Err e = {0};
    as_file(&fd, path, p, n);
    if (!moments_open(&m, path, file, 1, &e)) {
        refusal(&e);
        return 0;
    }
    memset(all, 0, sizeof all);
    memset(half, 0, sizeof half);
    bool fits = moments_fit(&m, "exp_avg.", "w", TENSOR(NULL, F32, ROWS, WIDTH), &e);
    if (fits && moments_read(&m, "exp_avg.", "w", 0, TENSOR(all, F32, ROWS, WIDTH), &e)) {
        CHECK(moments_read(&m, "exp_avg.", "w", 0, TENSOR(half, F32, 10), &e) &&
                  moments_read(&m, "exp_avg.", "w", 10, TENSOR(half + 10, F32, N - 10), &e),
              "%s", e.msg);
        CHECK(!memcmp(all, half, sizeof all), "another number by halves");
    } else {
        refusal(&e);
    }
    Err rest = {0};
    if (!moments_all_used(&m, &rest)) refusal(&rest);
    moments_close(&m);
    return 0;
}
