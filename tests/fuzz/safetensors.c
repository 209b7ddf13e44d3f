/* safetensors.c: any bytes as a safetensors file. What is accepted lies inside the file, covers it, and can be read.
 * Sources: model/files/safetensors.[ch] model/files/safetensors_file.h */
#include "fuzz.h"
#include "model/files/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static int fd = -1;
    static float room[4096];
    char path[32];
    St st;
    Err e = {0};
    as_file(&fd, path, p, n);
    if (!st_open(&st, path, &e)) {
        refusal(&e);
        return 0;
    }
    const unsigned char *lo = st.file[0].map.p, *hi = lo + st.file[0].map.n;
    size_t bytes = 0;
    for (int i = 0; i < st.n; i++) {
        const StEntry *s = &st.entry[i];
        int dim[RANK_MAX];
        size_t count = 1;
        CHECK(s->p >= lo && s->p <= hi && s->bytes <= (size_t)(hi - s->p), "%s", s->name);
        CHECK(!i || strcmp(s[-1].name, s->name) < 0, "%s", s->name);
        CHECK(st_find(&st, s->name) == s, "%s", s->name);
        bytes += s->bytes;
        for (int k = 0; k < s->rank && k < RANK_MAX; k++) {
            dim[k] = s->shape[k] > 4096 ? 4096 : (int)s->shape[k];
            count *= (size_t)dim[k];
        }
        if (s->rank < 1 || s->rank > RANK_MAX || count > 4096) continue;
        Err why = {0};
        if (!st_read(&st, s, tensor_make(room, F32, s->rank, dim), &why)) refusal(&why);
    }
    CHECK(bytes <= n - 8, "%zu bytes of tensors in a file of %zu", bytes, n);
    st_close(&st);
    return 0;
}
