/* test_safetensors_data.c: conversions against torch and against the definition of the formats, the writer byte for
 * byte against the reference, and a disk that is full. */
#include "tests/lib/dirs.h"
#include "model/files/safetensors.h"
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- numbers -------------------------------------------------------------------------------------------------------
 */

static double ramp(size_t i) { return ((double)i - 3) * 0.37; }

Test(safetensors_data, reads_what_the_reference_wrote) {
    static const struct {
        const char *name;
        int rank, n[RANK_MAX];
        double tol; /* of the file's dtype: half a unit in the last place of a number below 8 */
    } want[] = {{"B", 1, {1}, 2e-7},           {"a.bias", 2, {2, 2}, 2e-3}, {"a.weight", 1, {7}, 1e-2},
                {"b.weight", 2, {3, 5}, 3e-7}, {"empty", 2, {0, 4}, 0},     {"z", 1, {3}, REAL == F64 ? 0 : 2e-7}};
    St st;
    Err e = {0};
    cr_assert(st_open(&st, "tests/golden/safetensors/mixed.safetensors", &e), "%s", e.msg);
    cr_assert_eq(st.n, 7);
    cr_assert_str_eq(json_string_value(json_object_get(st.file[0].metadata, "format")), "pt");
    cr_assert(st_find(&st, "\xc3\xa9\"\\") && !st_find(&st, "c") && !st_find(&st, "") && !st_find(&st, "zz"));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        real got[15], exact[15];
        Tensor t = tensor_make(got, REAL, want[i].rank, want[i].n);
        const StEntry *s = st_find(&st, want[i].name);
        cr_assert(s, "%s", want[i].name);
        cr_assert(st_read(&st, s, t, &e), "%s", e.msg);
        for (size_t k = 0; k < tensor_count(t); k++) exact[k] = (real)ramp(k);
        if (tensor_count(t)) CHECK_CLOSE(want[i].name, got, exact, tensor_count(t), want[i].tol);
    }
    st_close(&st);
}

static uint32_t bits(const unsigned char *p, size_t i, size_t width) {
    uint32_t w = 0;
    for (size_t k = width; k-- > 0;) w = w << 8 | p[i * width + k];
    return w;
}

/* F16 and BF16 to F32 as torch does it, bit for bit; and F32 to F16 and BF16. */
Test(safetensors_data, sixteen_bits) {
    static const char *const name[] = {"f16", "bf16"}, *const wide[] = {"f16.wide", "bf16.wide"};
    static const Dtype as[] = {F16, BF16};
    St st, mine;
    Err e = {0};
    cr_assert(st_open(&st, "tests/golden/safetensors/rounding.safetensors", &e), "%s", e.msg);
    const StEntry *x = st_find(&st, "x");
    int n = (int)x->shape[0];
    cr_assert(n > 1000);
    float *v = xcalloc((size_t)n, sizeof *v);
    cr_assert(st_read(&st, x, TENSOR(v, F32, n), &e), "%s", e.msg);
    cr_assert_eq(memcmp(v, x->p, x->bytes), 0);
    StList l = {0};
    for (int k = 0; k < 2; k++) {
        float *got = xcalloc((size_t)n, sizeof *got);
        cr_assert(st_read(&st, st_find(&st, name[k]), TENSOR(got, F32, n), &e), "%s", e.msg);
        const unsigned char *w = st_find(&st, wide[k])->p;
        for (int i = 0; i < n; i++) {
            uint32_t g;
            memcpy(&g, &got[i], 4);
            cr_assert_eq(g, bits(w, (size_t)i, 4), "%s to F32 of %a: %08x, want %08x", name[k], (double)v[i], g,
                         bits(w, (size_t)i, 4));
        }
        st_add(&l, name[k], TENSOR(v, F32, n), as[k]);
        free(got);
    }
    char *path = check_path("mine.safetensors");
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    cr_assert(st_open(&mine, path, &e), "%s", e.msg);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < n; i++) {
            uint32_t got = bits(st_find(&mine, name[k])->p, (size_t)i, 2),
                     want = bits(st_find(&st, name[k])->p, (size_t)i, 2);
            cr_assert_eq(got, want, "F32 %a to %s: %04x, want %04x", (double)v[i], name[k], got, want);
        }
    st_close(&st);
    st_close(&mine);
    st_list_free(&l);
    free(path);
    free(v);
}

/* All bit patterns of both formats against their definition, with numbers built by adding, never by the code's way. */
Test(safetensors_data, sixteen_bits_all_patterns) {
    static const struct {
        const char *name;
        int mantissa, top;
        double least;
    } kind[] = {{"F16", 10, 31, 0x1p-24}, {"BF16", 7, 255, 0x1p-133}};
    for (int k = 0; k < 2; k++) {
        char *head = xformat("{\"x\":{\"dtype\":\"%s\",\"shape\":[65536],\"data_offsets\":[0,131072]}}", kind[k].name);
        size_t n = strlen(head), per = (size_t)1 << kind[k].mantissa;
        unsigned char *b = xcalloc(8 + n + 131072, 1);
        b[0] = (unsigned char)n;
        memcpy(b + 8, head, n);
        for (size_t i = 0; i < 65536; i++)
            b[8 + n + 2 * i] = (unsigned char)i, b[9 + n + 2 * i] = (unsigned char)(i >> 8);
        char *path = check_path("all");
        check_write(path, b, 8 + n + 131072);
        St st;
        Err e = {0};
        float *got = xcalloc(65536, sizeof *got);
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        cr_assert(st_read(&st, st_find(&st, "x"), TENSOR(got, F32, 65536), &e), "%s", e.msg);
        double v = 0, step = kind[k].least;
        for (size_t i = 0; i < 32768; i++) {
            size_t exp = i / per, man = i % per;
            if (exp > 1 && !man) step *= 2;
            if (exp == (size_t)kind[k].top) {
                cr_assert(man ? isnan(got[i]) && isnan(got[i + 32768]) : isinf(got[i]) && isinf(got[i + 32768]), "%zx",
                          i);
                continue;
            }
            cr_assert(got[i] == v && got[i + 32768] == -v && signbit(got[i + 32768]), "%s %zx: %a, want %a",
                      kind[k].name, i, (double)got[i], v);
            v += step;
        }
        st_close(&st);
        free(got), free(path), free(b), free(head);
    }
}

/* A finite F64 that F32 cannot hold must not become infinite; infinities and NaNs of the file pass. */
Test(safetensors_data, range) {
    double v[3] = {1e300, INFINITY, NAN};
    float got[3];
    StList l = {0};
    St st;
    Err e = {0};
    char *path = check_path("wide");
    st_add(&l, "w", TENSOR(v, F64, 3), F64);
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    cr_assert(st_open(&st, path, &e), "%s", e.msg);
    cr_assert(!st_read(&st, &st.entry[0], TENSOR(got, F32, 3), &e));
    dir_refused("range", path, &e, "number 0 is too large for F32");
    st_close(&st);
    v[0] = -0.0;
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    cr_assert(st_open(&st, path, &e), "%s", e.msg);
    cr_assert(st_read(&st, &st.entry[0], TENSOR(got, F32, 3), &e), "%s", e.msg);
    cr_assert(got[0] == 0 && signbit(got[0]) && isinf(got[1]) && isnan(got[2]));
    st_close(&st);
    st_list_free(&l);
    free(path);
}

/* ---- writing -------------------------------------------------------------------------------------------------------
 */

static void same_file(const char *path, const char *golden) {
    size_t n, want;
    char *a = check_read(path, &n), *b = check_read(golden, &want);
    cr_assert_eq(n, want, "%s: %zu bytes, want %zu", golden, n, want);
    CHECK_BYTES(golden, a, b, n);
    free(a);
    free(b);
}

Test(safetensors_data, writes_as_the_reference_does) {
    StList l = {0};
    Err e = {0};
    double d[15];
    float f[15];
    char *path = check_path("out.safetensors");
    for (size_t i = 0; i < 15; i++) d[i] = ramp(i), f[i] = (float)d[i];
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    same_file(path, "tests/golden/safetensors/none.safetensors");
    st_add(&l, "attn.0", TENSOR(f, F32, 1, 2, 3), F32);
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    same_file(path, "tests/golden/safetensors/one.safetensors");
    st_list_free(&l);
    /* Given in another order than they are written; F32 from F64 rounds. torch made F16 and BF16 from F64, through F32.
     */
    st_add(&l, "empty", TENSOR(f, F32, 0, 4), F32);
    st_add(&l, "z", TENSOR(d, F64, 3), F64);
    st_add(&l, "a.bias", TENSOR(f, F32, 2, 2), F16);
    st_add(&l, "b.weight", TENSOR(d, F64, 3, 5), F32);
    st_add(&l, "a.weight", TENSOR(f, F32, 7), BF16);
    st_add(&l, "\xc3\xa9\"\\", TENSOR(f, F32, 2), F32);
    st_add(&l, "B", TENSOR(f, F32, 1), F32);
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    same_file(path, "tests/golden/safetensors/mixed.safetensors");
    st_list_free(&l);
    cr_assert_eq(check_entries(check_dir()), 1);
    free(path);
}

/* A NaN stays one however its bits lie. */
Test(safetensors_data, nan) {
    static const uint32_t pattern[] = {0x7F800001, 0xFF800001, 0x7FC00000, 0x7F80FFFF, 0x7FFFFFFF};
    static const Dtype as[] = {F32, BF16, F16};
    char *path = check_path("nan");
    float v[5], back[5];
    for (int k = 0; k < 3; k++) {
        StList l = {0};
        St st;
        Err e = {0};
        memcpy(v, pattern, sizeof v);
        st_add(&l, "x", TENSOR(v, F32, 5), as[k]);
        cr_assert(st_write(path, &l, NULL, &e) && st_open(&st, path, &e), "%s", e.msg);
        cr_assert(st_read(&st, &st.entry[0], TENSOR(back, F32, 5), &e), "%s", e.msg);
        for (int i = 0; i < 5; i++)
            cr_expect(isnan(back[i]), "%08x as %s is %g", pattern[i], dtype_name(as[k]), (double)back[i]);
        st_close(&st);
        st_list_free(&l);
    }
    free(path);
}

/* More numbers than the conversion's buffer holds, metadata, and the list from declarations. */
typedef struct {
    Tensor w, gain, stat;
} Owned;
static void declare(Owned *o, Fields *f) {
    field(f, &o->w, "w", 0, 300, 500);
    field(f, &o->gain, "gain", FIELD_ONES, 5);
    field(f, &o->stat, "stat", FIELD_F32 | FIELD_OPTIONAL, 5);
}

Test(safetensors_data, fields_there_and_back) {
    enum { N = 150000 };
    real *v = xcalloc(N + 10, sizeof *v), *back = xcalloc(N + 10, sizeof *back);
    Owned o = {{.p = v}, {.p = v + N}, {.p = v + N + 5}}, in = {{.p = back}, {.p = back + N}, {.p = back + N + 5}};
    for (size_t i = 0; i < N + 10; i++) v[i] = (real)rng_normal(7, i);
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        StList l = {.prefix = "exp_avg.", .as = is_bf16 ? BF16 : F32};
        Fields f = st_lister(&l);
        St st;
        StLoad load;
        Err e = {0};
        char *path = check_path("fields");
        declare(&o, &f);
        cr_assert_eq(l.n, 3);
        cr_assert(st_write(path, &l, (const char *const[]){"step", "12", "a\n\"b", "\xc3\xa9", NULL}, &e), "%s", e.msg);
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        cr_assert_str_eq(json_string_value(json_object_get(st.file[0].metadata, "a\n\"b")), "\xc3\xa9");
        cr_assert_str_eq(json_string_value(json_object_get(st.file[0].metadata, "format")), "pt");
        cr_assert_str_eq(st_find(&st, "exp_avg.w")->dtype, is_bf16 ? "BF16" : "F32");
        cr_assert_str_eq(st_find(&st, "exp_avg.stat")->dtype, "F32");
        cr_assert_eq((st_find(&st, "exp_avg.w")->p - st.file[0].map.p) % (is_bf16 ? 2 : 4), 0);
        st_load_begin(&load, &st, "exp_avg.", &e);
        f = st_loader(&load);
        declare(&in, &f);
        cr_assert(st_load_end(&load, NULL), "%s", e.msg);
        CHECK_RELATIVE("w", back, v, N, is_bf16 ? 0x1p-8 : 0x1p-24);
        CHECK_RELATIVE("stat", back + N + 5, v + N + 5, 5, 0x1p-24);
        st_close(&st);
        st_list_free(&l);
        free(path);
    }
    free(v);
    free(back);
}

static bool none(const char *name) { return !strcmp(name, "harmless"); }

Test(safetensors_data, fields_must_match) {
    real v[4] = {1, 2, 3, 4}, back[8];
    static const char *const there[][3] = {{"w", "gain", "stat"},
                                           {"w", "gain", "harmless"},
                                           {"gain", "stat", "x"},
                                           {"w", "gain", "x"}};
    static const char *const part[] = {"expected shape (300,500), found (4)", "shape", "\"p.w\" is missing", "shape"};
    char *path = check_path("f");
    for (int i = 0; i < 4; i++) {
        StList l = {.prefix = "p."};
        St st;
        StLoad load;
        Err e = {0};
        for (int k = 0; k < 3; k++) {
            char *name = xformat("p.%s", there[i][k]);
            st_add(&l, name, TENSOR(v, REAL, 4), F32);
            free(name);
        }
        cr_assert(st_write(path, &l, NULL, &e) && st_open(&st, path, &e), "%s", e.msg);
        st_load_begin(&load, &st, "p.", &e);
        Fields f = st_loader(&load);
        Owned in = {{.p = back}, {.p = back}, {.p = back}};
        declare(&in, &f);
        cr_assert(!st_load_end(&load, none));
        dir_refused("fields", path, &e, part[i]);
        /* Of another set of fields only what it lacks and what is too much decide. */
        st_load_begin(&load, &st, "p.", &e);
        f = st_loader(&load);
        Tensor gain = {.p = back}, w = {.p = back + 4};
        field(&f, &gain, "gain", 0, 4);
        field(&f, &w, "w", FIELD_OPTIONAL, 4);
        bool fits = st_load_end(&load, none);
        cr_assert_eq(fits, i == 1, "%d: %s", i, e.msg);
        if (!fits)
            dir_refused("fields", path, &e,
                        i == 0   ? "\"p.stat\" has no place"
                        : i == 2 ? "\"p.stat\""
                                 : "\"p.x\" has no place");
        st_close(&st);
        st_list_free(&l);
    }
    free(path);
}

/* A disk that is full after k bytes, for k in the length, the header, the first and the last data: exit status 1, the
 * old file as it was, no temporary one. */
Test(safetensors_data, full_disk) {
    enum { N = 5000 };
    static float v[N];
    static const rlim_t room[] = {0, 5, 8, 60, 200, 4000, 20000};
    StList l = {0};
    Err e = {0};
    char *path = check_path("model.safetensors");
    check_write(path, "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    st_add(&l, "w", TENSOR(v, F32, N), F32);
    st_add(&l, "x", TENSOR(v, F32, 10), BF16);
    for (size_t i = 0; i < sizeof room / sizeof *room; i++) {
        struct rlimit all, some;
        getrlimit(RLIMIT_FSIZE, &all);
        some = (struct rlimit){room[i], all.rlim_max};
        setrlimit(RLIMIT_FSIZE, &some);
        e = (Err){0};
        bool ok = st_write(path, &l, NULL, &e);
        setrlimit(RLIMIT_FSIZE, &all);
        cr_assert(!ok, "%lu bytes were enough", (unsigned long)room[i]);
        cr_assert_eq(e.status, EXIT_RUNTIME, "%s", e.msg);
        cr_assert(strstr(e.msg, path) && strstr(e.msg, strerror(EFBIG)), "%s", e.msg);
        cr_assert_eq(check_entries(check_dir()), 1);
    }
    size_t n;
    char *old = check_read(path, &n);
    cr_assert(n == 3 && !memcmp(old, "old", 3));
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    cr_assert_eq(check_entries(check_dir()), 1);
    st_list_free(&l);
    free(old);
    free(path);
}

Test(safetensors_data, cannot_create_or_replace) {
    StList l = {0};
    Err e = {0};
    char *path = check_path("no/such/file");
    cr_assert(!st_write(path, &l, NULL, &e));
    dir_refused("no directory", path, &e, "No such file");
    free(path);
    path = check_path("taken");
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_assert(!st_write(path, &l, NULL, &e));
    cr_assert_eq(e.status, EXIT_INPUT);
    cr_assert(strstr(e.msg, path) && strstr(e.msg, "found a directory"), "%s", e.msg);
    cr_assert_eq(check_entries(check_dir()), 1);
    free(path);
    /* What a process that was killed left behind is removed; what one holds that writes there is not. */
    path = check_path("f");
    char *left = file_unfinished(path);
    check_write(left, "junk", 4);
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    cr_assert(!check_exists(left) && check_exists(path));
    FileOut o;
    cr_assert(file_begin(&o, path, &e), "%s", e.msg);
    cr_assert(!st_write(path, &l, NULL, &e) && e.status == EXIT_INPUT && strstr(e.msg, "another process"), "%s", e.msg);
    cr_assert(check_exists(left));
    cr_assert(file_put(&o, "late", 4, &e) && file_commit(&o, &e), "%s", e.msg);
    cr_assert(!check_exists(left));
    free(left);
    left = check_read(path, NULL);
    cr_assert_str_eq(left, "late");
    free(left);
    free(path);
}

/* Parts of unequal heights, one after another, and experts that share one tensor: written in any order, the stored
 * values lie where the place says; read back they are the parts, rounded or not. */
Test(safetensors_data, joined_places) {
    enum { W = 3, E = 4 };
    static const struct {
        int n, rows[4], stack;
        bool turned;
    } k[] = {{3, {4, 2, 1, 0}, 0, false},
             {2, {5, 3, 0, 0}, 0, true},
             {2, {2, 2, 0, 0}, E, false},
             {1, {3, 0, 0, 0}, E, false}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        const int experts = k[i].stack ? k[i].stack : 1;
        int each = 0;
        for (int p = 0; p < k[i].n; p++) each += k[i].rows[p];
        const int all = each * experts;
        real *v = xcalloc((size_t)(all * W), sizeof *v), *b = xcalloc((size_t)all, sizeof *b);
        for (int x = 0; x < all * W; x++) v[x] = (real)x + 1;
        for (int x = 0; x < all; x++) b[x] = -(real)x;
        StList l = {0};
        for (int pass = 0; pass < 2; pass++) /* the second part first */
            for (int e = 0; e < experts; e++)
                for (int p = 0, first = 0; p < k[i].n; first += k[i].rows[p++]) {
                    if ((p == 1) != (pass == 0)) continue;
                    StPlace place = {1, 0, 1, k[i].turned, e * each + first, all, k[i].stack, 0, false, 0, 0};
                    const size_t at = (size_t)place.first;
                    st_add_part(&l, "x", TENSOR(v + at * W, REAL, k[i].rows[p], W), place, F32);
                    st_add_part(&l, "b", TENSOR(b + at, REAL, k[i].rows[p]), place, F32);
                }
        char *path = check_path("joined.safetensors");
        St st;
        Err e = {0};
        cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        const StEntry *x = st_find(&st, "x"), *y = st_find(&st, "b");
        cr_assert_eq(x->rank, k[i].stack ? 3 : 2);
        cr_assert_eq(y->rank, k[i].stack ? 2 : 1);
        for (int r = 0; r < all; r++)
            for (int c = 0; c < W; c++) {
                float got;
                memcpy(&got, x->p + 4 * (k[i].turned ? c * all + r : r * W + c), 4);
                cr_assert_eq(got, (float)v[r * W + c], "case %zu, row %d, column %d: %g", i, r, c, (double)got);
            }
        for (int ex = 0; ex < experts; ex++)
            for (int p = 0, first = 0; p < k[i].n; first += k[i].rows[p++]) {
                real got[32];
                uint16_t half[32];
                StPlace place = {1, 0, 1, k[i].turned, ex * each + first, all, k[i].stack, 0, false, 0, 0};
                const int rows = k[i].rows[p];
                cr_assert(st_read_part(&st, x, TENSOR(got, REAL, rows, W), place, &e), "%s", e.msg);
                CHECK_BYTES("part", got, v + place.first * W, (size_t)(rows * W) * sizeof *got);
                cr_assert(st_read_round(&st, x, TENSOR(half, BF16, rows, W), place, &e), "%s", e.msg);
                for (int c = 0; c < rows * W; c++) cr_assert_eq(half[c], bf16_from((float)got[c]));
                cr_assert(st_read_part(&st, y, TENSOR(got, REAL, rows), place, &e), "%s", e.msg);
                CHECK_BYTES("bias", got, b + place.first, (size_t)rows * sizeof *got);
                cr_assert(!st_fits_part(&st, x, TENSOR(NULL, REAL, rows, W + 1), place, &e));
                place.all += place.stack ? place.stack : 1;
                cr_assert(!st_fits_part(&st, x, TENSOR(NULL, REAL, rows, W), place, &e));
            }
        st_close(&st);
        st_list_free(&l);
        free(v), free(b), free(path);
    }
}
