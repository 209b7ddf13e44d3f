/* manifest.c: any bytes as trainer/manifest.json. What is accepted names files of the checkpoint alone, and is what is
 * written of it.
 * Sources: train/save/shards.[ch] ops/file.[ch] */
#include "fuzz.h"
#include "train/save/shards.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static int fd = -1;
    char path[32];
    Manifest m;
    Err e = {0};
    as_file(&fd, path, p, n);
    if (!manifest_read(path, &m, &e)) {
        refusal(&e);
        CHECK(!m.n && !m.file, "%d files of a refused list", m.n);
        return 0;
    }
    CHECK(m.step >= 0 && m.n >= 0 && m.n <= MANIFEST_FILES_MAX, "step %ld, %d files", (long)m.step, m.n);
    for (int i = 0; i < m.n; i++) {
        const char *s = m.file[i].name;
        CHECK(!strcmp(s, "model.safetensors") || (!strncmp(s, "trainer/", 8) && s[8] && !strchr(s + 8, '/')), "%s", s);
        CHECK(strcmp(s, "trainer/..") && strcmp(s, "trainer/."), "%s", s);
    }
    manifest_free(&m);
    return 0;
}
