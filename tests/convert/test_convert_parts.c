/* test_convert_parts.c: what conversions are made of: the nearest orthogonal matrix, and the folder that a result is
 * written to. */
#include "tests/lib/converts.h"
#include "convert/align.h"
#include "convert/folder.h"
#include "ops/file.h"

Test(convert_parts, procrustes) {
    enum { n = 5 };
    double R[n * n], c[n * n], m[n * n] = {0}, want[n * n], nuclear;
    Err e = {0};
    for (int i = 0; i < n * n; i++) c[i] = rng_normal(11, (uint64_t)i);
    cr_assert(procrustes(want, NULL, c, n, &e)); /* some orthogonal matrix */
    for (int i = 0; i < n; i++) /* want S with S symmetric and positive: its nearest orthogonal matrix is `want` */
        for (int k = 0; k < n; k++)
            for (int x = 0; x < n; x++) m[i * n + k] += want[i * n + x] * (x == k ? 2 + k : 0.3);
    cr_assert(procrustes(R, &nuclear, m, n, &e), "%s", e.msg);
    CHECK_CLOSE("the orthogonal factor", R, want, n * n, 1e-12);
    cr_expect_float_eq(nuclear, 2 + 3 + 4 + 5 + 6, 1e-12);
    c[3] = NAN;
    cr_expect(!procrustes(R, NULL, c, n, &e) && e.status == EXIT_RUNTIME && strstr(e.msg, "finite"), "%s", e.msg);
}

/* What a killed conversion has left is removed by the next to the same name; a running one is not. */
Test(convert_parts, one_writer_of_a_folder) {
    Folder a, b;
    Err e = {0};
    char *dst = check_path("dst"), *tmp = file_unfinished(dst), *file = xformat("%s/model.safetensors", tmp);
    cr_assert(folder_begin(dst, &a, &e), "%s", e.msg);
    cr_assert_str_eq(a.tmp, tmp);
    check_write(file, "half", 4);
    cr_assert(!folder_begin(dst, &b, &e) && e.status == EXIT_INPUT && strstr(e.msg, "another process"), "%s", e.msg);
    cr_assert(check_exists(file));
    close(a.fd); /* as if it had been killed */
    cr_assert(folder_begin(dst, &b, &e), "%s", e.msg);
    cr_assert(!check_exists(file), "what was left stays");
    cr_assert(folder_begin(file, &a, &e), "%s", e.msg); /* another name, at the same time */
    cr_assert(!folder_end(&a, file, false, &e));
    cr_assert_eq(mkdir(dst, 0777), 0); /* somebody else was there first */
    cr_assert(!folder_end(&b, dst, true, &e) && e.status == EXIT_INPUT && strstr(e.msg, "was created meanwhile"), "%s",
              e.msg);
    cr_assert_eq(check_entries(check_dir()), 1);
    free(file), free(tmp), free(dst);
}
