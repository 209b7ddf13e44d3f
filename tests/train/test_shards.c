/* Files of moments that several ranks wrote: checksums, lists, ranges. */
#include "tests/lib/check.h"
#include "train/save/shards.h"

/* By the reference implementation: python-xxhash 4.1.0, xxh64(bytes(i * 7 % 256 for i in range(n))). */
Test(shards, checksums_are_xxh64) {
    static const struct {
        size_t n;
        uint64_t hash;
    } cases[] = {{0, 0xef46db3751d8e999u},   {37, 0x0f67f332bdd5b35bu},  {222, 0x5772227269f0e2d8u},
                 {407, 0xd47d630c018f29f1u}, {592, 0x5f78ef1a5ed32777u}, {777, 0x90f6b6f8ce8f5d03u},
                 {962, 0x7fcb9869c3c63bbcu}};
    unsigned char b[1024];
    for (size_t i = 0; i < sizeof b; i++) b[i] = (unsigned char)(i * 7);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_eq(xxh64(b, cases[i].n), cases[i].hash, "%zu bytes: %016lx", cases[i].n, xxh64(b, cases[i].n));
}

Test(shards, list_comes_back) {
    char *path = check_path("manifest.json");
    Manifest m = {.step = 12}, r;
    Err e = {0};
    manifest_add(&m, "model.safetensors", (FileSum){5, 0xfedcba9876543210u});
    manifest_add(&m, "trainer/optimizer-00001-of-00002.safetensors", (FileSum){1ull << 40, 3});
    cr_assert(manifest_write(path, &m, &e) && manifest_read(path, &r, &e), "%s", e.msg);
    cr_assert(r.step == 12 && r.n == 2);
    for (int i = 0; i < 2; i++)
        cr_assert(!strcmp(r.file[i].name, m.file[i].name) && r.file[i].sum.bytes == m.file[i].sum.bytes &&
                  r.file[i].sum.hash == m.file[i].sum.hash);
    manifest_free(&m), manifest_free(&r);
    free(path);
}

static char *made(const char *name, int n, char *const *entry, const float *v) {
    char *path = check_path(name);
    StList l = {0};
    Err e = {0};
    for (int i = 0; i < n; i++) {
        size_t from = 0, to = 24;
        const char *open = strchr(entry[i], '[');
        if (open) sscanf(open, "[%zu:%zu", &from, &to);
        Tensor t = open ? TENSOR((void *)(v + from), F32, (int)(to - from)) : TENSOR((void *)v, F32, 4, 6);
        st_add(&l, entry[i], t, F32);
    }
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    st_list_free(&l);
    return path;
}
static bool whole(const char *a, const char *b, const float *want, Err *e) {
    char *file[2] = {(char *)a, (char *)b};
    float got[24];
    Moments m;
    if (!moments_open(&m, "trainer", file, b ? 2 : 1, e)) return false;
    bool ok = moments_fit(&m, "exp_avg.", "w", TENSOR(NULL, F32, 4, 6), e);
    for (size_t from = 0; ok && from < 24; from++) /* any range of any length */
        for (int n = 1; ok && from + (size_t)n <= 24; n++) {
            memset(got, 0, sizeof got);
            ok = moments_read(&m, "exp_avg.", "w", from, TENSOR(got, F32, n), e);
            if (ok) CHECK_BYTES("range", got, want + from, (size_t)n * sizeof *got);
        }
    ok = ok && moments_all_used(&m, e);
    moments_close(&m);
    return ok;
}

Test(shards, ranges_make_a_tensor_or_say_why_not) {
    float v[24];
    for (int i = 0; i < 24; i++) v[i] = (float)i + 0.25f;
    static const struct {
        char *a[3], *b[3];
        const char *why; /* NULL: none */
    } cases[] = {
        {{"exp_avg.w"}, {NULL}, NULL},
        {{"exp_avg.w[0:5]", "exp_avg.w[11:24]"}, {"exp_avg.w[5:11]"}, NULL},
        {{"exp_avg.w[0:24]"}, {NULL}, NULL},
        {{"exp_avg.w[0:5]"}, {"exp_avg.w[6:24]"}, "elements 5 to 5 of tensor \"exp_avg.w\" are in no shard"},
        {{"exp_avg.w[0:5]"}, {"exp_avg.w[5:23]"}, "elements 23 to 23 of"},
        {{"exp_avg.w[1:24]"}, {NULL}, "elements 0 to 0 of"},
        {{"exp_avg.w[0:6]"},
         {"exp_avg.w[5:24]"},
         "b: tensor \"exp_avg.w[5:24]\": some elements of it are in two shards"},
        {{"exp_avg.w"}, {"exp_avg.w"}, "in two shards"},
        {{"exp_avg.w[0:5]"}, {"exp_avg.w"}, "in two shards"},
        {{"exp_avg.w[0:5]", "exp_avg.w[5:25]"}, {NULL}, "ends after the tensor"},
        {{"exp_avg.x"}, {NULL}, "trainer: tensor \"exp_avg.w\" is missing"},
        {{"exp_avg.w"}, {"exp_avg_sq.w[0:3]"}, "b: tensor \"exp_avg_sq.w[0:3]\" does not belong to this model"},
        {{"exp_avg.w[00:5]"}, {NULL}, "expected NAME or NAME[from:to]"},
        {{"exp_avg.w[5:5 ]"}, {NULL}, "expected NAME or NAME[from:to]"},
        {{"exp_avg.w[0:5]z"}, {NULL}, "expected NAME or NAME[from:to]"},
        {{"exp_avg.w[0:5"}, {NULL}, "expected NAME or NAME[from:to]"},
        {{"exp_avg.w[0:99999999999999999999999]"}, {NULL}, "expected NAME or NAME[from:to]"},
    };
    static float big[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n = 0, k = 0;
        Err e = {0};
        bool odd = cases[i].why && strstr(cases[i].why, "expected");
        while (n < 3 && cases[i].a[n]) n++;
        while (k < 3 && cases[i].b[k]) k++;
        memcpy(big, v, sizeof v);
        char *a, *b = k ? made("b", k, cases[i].b, big) : NULL;
        if (odd) { /* the shape is nobody's matter then */
            StList l = {0};
            a = check_path("a");
            st_add(&l, cases[i].a[0], TENSOR(big, F32, 5), F32);
            cr_assert(st_write(a, &l, NULL, &e), "%s", e.msg);
            st_list_free(&l);
        } else {
            a = made("a", n, cases[i].a, big);
        }
        bool ok = whole(a, b, v, &e);
        if (!cases[i].why)
            cr_assert(ok, "case %zu: %s", i, e.msg);
        else
            cr_assert(!ok && e.status == EXIT_INPUT && strstr(e.msg, cases[i].why), "case %zu: %s", i, e.msg);
        free(a), free(b);
    }
}
