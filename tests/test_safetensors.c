/* test_safetensors.c: the reader against every malformed file of the reference's own tests and many more, conversions
 * against torch, the writer byte for byte against the reference, shards, and a disk that is full. */
#include "check.h"
#include "../model/safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- malformed and unusual files -----------------------------------------------------------------------------------
 */

#define ENTRY(dtype, shape, off) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" off "}"
#define TEST(dtype, shape, off)  "{\"test\":" ENTRY(dtype, shape, off) "}"
typedef struct {
    const char *what, *json;
    int data;         /* bytes of zeros behind the header */
    const char *kind; /* the reference's name for the error; NULL: must be accepted */
    uint64_t size;    /* header size to claim; 0: the true one */
} Case;

static const Case cases[] = {
    /* the reference's own tests */
    {"two by two", TEST("I32", "[2,2]", "[0,16]"), 16, NULL, 0},
    {"rank 0", TEST("I32", "[]", "[0,4]"), 4, NULL, 0},
    {"no number", TEST("I32", "[2,0]", "[0, 0]"), 0, NULL, 0},
    {"white space behind", "{}\r \t\n", 0, NULL, 0},
    {"white space before", "\t\n{}\r ", 0, NULL, 0},
    {"same offsets", "{\"a\":" ENTRY("F32", "[2,2]", "[0,16]") ",\"b\":" ENTRY("F32", "[2,2]", "[0,16]") "}", 16,
     "InvalidOffset", 0},
    {"appended", TEST("I32", "[2,2]", "[0,16]"), 16 + 34, "MetadataIncompleteBuffer", 0},
    {"two bytes short", TEST("I32", "[2,2]", "[0,16]"), 14, "MetadataIncompleteBuffer", 0},
    {"huge header", TEST("I32", "[2,2]", "[0,16]"), 16, "HeaderTooLarge", 0xFFFFFF000000003CULL},
    {"all ones", TEST("I32", "[2,2]", "[0,16]"), 16, "HeaderTooLarge", UINT64_MAX},
    {"one above the cap", "{}", 0, "HeaderTooLarge", 100000001},
    {"at the cap", "{}", 0, "InvalidHeaderLength", 100000000},
    {"header beyond the file", "", 0, "InvalidHeaderLength", 60},
    {"one byte beyond", "{}", 0, "InvalidHeaderLength", 3},
    {"not UTF-8", "\xff", 0, "InvalidHeader", 0},
    {"not JSON", "{", 0, "InvalidHeaderDeserialization", 0},
    {"few bytes", TEST("I32", "[2,2]", "[0, 4]"), 0, "TensorInvalidInfo", 0},
    {"shape beyond 64 bits", TEST("I32", "[2,18446744073709551614]", "[0,16]"), 16, "ValidationOverflow", 0},
    {"bytes beyond 64 bits", TEST("I32", "[2,9223372036854775807]", "[0,16]"), 16, "ValidationOverflow", 0},
    {"misaligned F4", TEST("F4", "[1,3]", "[0,2]"), 2, "MisalignedSlice", 0},
    {"F4", TEST("F4", "[1,2]", "[0,1]"), 1, NULL, 0},
    {"F6", TEST("F6_E2M3", "[4]", "[0,3]"), 3, NULL, 0},
    /* the rest of each rule */
    {"empty header", "", 0, "InvalidHeaderDeserialization", 0},
    {"not an object", "[]", 0, "InvalidHeaderDeserialization", 0},
    {"a number", "1", 0, "InvalidHeaderDeserialization", 0},
    {"null", "null", 0, "InvalidHeaderDeserialization", 0},
    {"garbage behind", "{}x", 0, "InvalidHeaderDeserialization", 0},
    {"two objects", "{}{}", 0, "InvalidHeaderDeserialization", 0},
    {"overlong UTF-8", "{\"\xc0\x80\":1}", 0, "InvalidHeader", 0},
    {"surrogate in UTF-8", "{\"\xed\xa0\x80\":1}", 0, "InvalidHeader", 0},
    {"lone surrogate", "{\"\\ud800\":1}", 0, "InvalidHeaderDeserialization", 0},
    {"entry is no object", "{\"a\":1}", 0, "InvalidHeaderDeserialization", 0},
    {"entry is null", "{\"a\":null}", 0, "InvalidHeaderDeserialization", 0},
    {"no dtype", "{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "InvalidHeaderDeserialization", 0},
    {"no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "InvalidHeaderDeserialization", 0},
    {"no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "InvalidHeaderDeserialization", 0},
    {"unknown dtype", TEST("F31", "[]", "[0,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"dtype in small letters", TEST("f32", "[]", "[0,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"dtype with NUL", TEST("F32\\u0000", "[]", "[0,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"dtype is a number", "{\"a\":{\"dtype\":32,\"shape\":[],\"data_offsets\":[0,4]}}", 4,
     "InvalidHeaderDeserialization", 0},
    {"shape is a number", TEST("F32", "1", "[0,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"negative size", TEST("F32", "[-1]", "[0,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"fraction", TEST("F32", "[1.5]", "[0,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"whole but real", TEST("F32", "[1.0]", "[0,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"exponent", TEST("F32", "[1e0]", "[0,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"text for a size", TEST("F32", "[\"1\"]", "[0,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"one offset", TEST("F32", "[]", "[0]"), 4, "InvalidHeaderDeserialization", 0},
    {"three offsets", TEST("F32", "[]", "[0,4,4]"), 4, "InvalidHeaderDeserialization", 0},
    {"negative offset", TEST("F32", "[]", "[-4,0]"), 4, "InvalidHeaderDeserialization", 0},
    {"offset beyond 64 bits", TEST("F32", "[]", "[0,18446744073709551620]"), 4, "ValidationOverflow", 0},
    {"end before begin", TEST("F32", "[0]", "[4,0]"), 4, "InvalidOffset", 0},
    {"begins late", TEST("F32", "[1]", "[4,8]"), 8, "InvalidOffset", 0},
    {"hole", "{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"b\":" ENTRY("F32", "[1]", "[8,12]") "}", 12, "InvalidOffset",
     0},
    {"overlap", "{\"a\":" ENTRY("F32", "[2]", "[0,8]") ",\"b\":" ENTRY("F32", "[2]", "[4,12]") "}", 12, "InvalidOffset",
     0},
    {"huge end", TEST("F32", "[1]", "[0,9223372036854775807]"), 4, "TensorInvalidInfo", 0},
    {"many bytes", TEST("F32", "[1]", "[0,8]"), 8, "TensorInvalidInfo", 0},
    {"zero times huge", TEST("F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), 0, NULL, 0},
    {"overflow before zero", TEST("F32", "[9223372036854775807,4,0]", "[0,0]"), 0, "ValidationOverflow", 0},
    {"no tensor but data", "{}", 1, "MetadataIncompleteBuffer", 0},
    {"data is missing", TEST("F32", "[1000000]", "[0,4000000]"), 4, "MetadataIncompleteBuffer", 0},
    {"duplicate tensor", "{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"a\":" ENTRY("F32", "[1]", "[0,4]") "}", 4,
     "InvalidHeaderDeserialization", 0},
    {"duplicate by escape", "{\"a\":" ENTRY("F32", "[1]", "[0,4]") ",\"\\u0061\":" ENTRY("F32", "[1]", "[0,4]") "}", 4,
     "InvalidHeaderDeserialization", 0},
    {"duplicate field", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
     "InvalidHeaderDeserialization", 0},
    {"duplicate metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "InvalidHeaderDeserialization", 0},
    {"duplicate in metadata", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"1\"}}", 0, "InvalidHeaderDeserialization", 0},
    {"duplicate far down", "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":[{\"y\":1,\"y\":1}]}}",
     4, "InvalidHeaderDeserialization", 0},
    {"metadata is a number", "{\"__metadata__\":1}", 0, "InvalidHeaderDeserialization", 0},
    {"metadata of numbers", "{\"__metadata__\":{\"a\":1}}", 0, "InvalidHeaderDeserialization", 0},
    {"metadata of objects", "{\"__metadata__\":{\"a\":{}}}", 0, "InvalidHeaderDeserialization", 0},
    {"metadata is null", "{\"__metadata__\":null}", 0, NULL, 0},
    {"metadata", "{\"__metadata__\":{\"a\":\"b,[{\\\"\\\\\",\"c\":\"\\u0000\"}}", 0, NULL, 0},
    {"unknown field", "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":[1.5,null]}}", 4, NULL, 0},
    {"control character", "{\"a\\nb\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, "InvalidHeaderDeserialization", 0},
    {"escape character", "{\"a\\u001b[2J\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, "InvalidHeaderDeserialization", 0},
    {"NUL in a name", "{\"a\\u0000b\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, "InvalidHeaderDeserialization", 0},
    {"raw control character", "{\"a\nb\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, "InvalidHeaderDeserialization", 0},
    {"name of no letters", "{\"\":" ENTRY("F32", "[1]", "[0,4]") "}", 4, NULL, 0},
    {"name in UTF-8", "{\"\xc3\xa9\":" ENTRY("BF16", "[1]", "[0,2]") "}", 2, NULL, 0},
    {"out of order",
     "{\"b\":" ENTRY("F32", "[1]", "[4,8]") ",\"a\":" ENTRY("I64", "[0]", "[0,0]") ",\"c\":" ENTRY("U8", "[4]",
                                                                                                   "[0,4]") "}",
     8, NULL, 0},
};

static char *write_case(const Case *c, const char *name) {
    size_t n = strlen(c->json), total = 8 + n + (size_t)c->data;
    unsigned char *b = xcalloc(total, 1);
    uint64_t size = c->size ? c->size : n;
    for (int i = 0; i < 8; i++) b[i] = (unsigned char)(size >> 8 * i);
    memcpy(b + 8, c->json, n);
    char *path = check_path(name);
    check_write(path, b, total);
    free(b);
    return path;
}

/* One line that names the file, and nothing left open. */
static void refused(const char *what, const char *path, const Err *e, const char *part) {
    cr_expect_eq(e->status, EXIT_INPUT, "%s: status %d: %s", what, e->status, e->msg);
    cr_expect(strstr(e->msg, part), "%s: no '%s' in: %s", what, part, e->msg);
    cr_expect(strlen(e->msg) <= 300 && !strchr(e->msg, '\n'), "%s: %s", what, e->msg);
    if (path) cr_expect(strstr(e->msg, path), "%s: no file name in: %s", what, e->msg);
}

Test(safetensors, malformed) {
    int bad = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        St st;
        Err e = {0};
        char *path = write_case(c, "x.safetensors");
        bool ok = st_open(&st, path, &e);
        cr_expect_eq(ok, !c->kind, "%s: %s", c->what, ok ? "accepted" : e.msg);
        if (!ok) {
            bad++;
            refused(c->what, path, &e, c->kind ? c->kind : "");
            cr_expect(!st.entry && !st.file, "%s: not closed", c->what);
        } else {
            st_close(&st);
        }
        free(path);
    }
    cr_expect(bad > 50);
}

Test(safetensors, sizes_below_8) {
    for (size_t n = 0; n < 8; n++) {
        St st;
        Err e = {0};
        char *path = check_path("short.safetensors");
        check_write(path, "\0\0\0\0\0\0\0\0", n);
        cr_assert(!st_open(&st, path, &e));
        refused("short", path, &e, "HeaderTooSmall");
        free(path);
    }
}

Test(safetensors, not_files) {
    St st;
    Err e = {0};
    char *path = check_path("none");
    cr_assert(!st_open(&st, path, &e));
    refused("missing", path, &e, "No such file");
    cr_assert(!st_open(&st, check_dir(), &e));
    refused("directory", check_dir(), &e, "directory");
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert(!st_open(&st, path, &e));
    refused("pipe", path, &e, "pipe");
    cr_assert(!st_open_dir(&st, check_dir(), &e));
    refused("empty directory", check_dir(), &e, "model.safetensors");
    free(path);
}

/* JSON that costs the parser far more memory or stack than it has bytes. */
Test(safetensors, json_bombs) {
    static const struct {
        const char *open, *mid, *close;
        size_t n;
    } bombs[] = {{"[", "", "]", 100000}, {"{\"a\":", "1", "}", 100000}, {"{\"a\":[0", "", "]}", 0}};
    for (size_t i = 0; i < 3; i++) {
        char *text = NULL;
        size_t len;
        FILE *f = open_memstream(&text, &len);
        for (size_t k = 0; k < (bombs[i].n ? bombs[i].n : 1); k++) fputs(bombs[i].open, f);
        fputs(bombs[i].mid, f);
        if (!bombs[i].n)
            for (int k = 0; k < 3000000; k++) fputs(",0", f);
        for (size_t k = 0; k < (bombs[i].n ? bombs[i].n : 1); k++) fputs(bombs[i].close, f);
        fclose(f);
        Case c = {"bomb", text, 0, NULL, 0};
        char *path = write_case(&c, "bomb");
        St st;
        Err e = {0};
        cr_assert(!st_open(&st, path, &e));
        refused("bomb", path, &e, "InvalidHeaderDeserialization");
        free(path);
        free(text);
    }
}

/* The message stays one line of 300 characters whatever the names in the file are. */
Test(safetensors, long_names) {
    char *json = xcalloc(100000, 1);
    memset(json, 'n', 99000);
    memcpy(json, "{\"", 2);
    strcpy(json + 99000, "\":{}}");
    Case c = {"long", json, 0, NULL, 0};
    char *path = write_case(&c, "long");
    St st;
    Err e = {0};
    cr_assert(!st_open(&st, path, &e));
    refused("long name", path, &e, "...");
    cr_assert_eq(strlen(e.msg), 300);
    free(path);
    free(json);
}

/* ---- truncation and mutation ---------------------------------------------------------------------------------------
 */

static const Case small = {"small",
                           "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" ENTRY(
                               "F32", "[2,3]", "[0,24]") ",\"b\":" ENTRY("BF16", "[4]", "[24,32]") "}  ",
                           32, NULL, 0};

Test(safetensors, truncated_at_every_byte) {
    char *path = write_case(&small, "small");
    size_t n;
    char *all = check_read(path, &n);
    for (size_t k = 0; k < n; k++) {
        St st;
        Err e = {0};
        check_write(path, all, k);
        cr_assert(!st_open(&st, path, &e), "%zu of %zu bytes accepted", k, n);
        refused("truncated", path, &e, "");
    }
    for (int extra = 0; extra < 256; extra++) {
        char *more = xcalloc(n + 1, 1);
        St st;
        Err e = {0};
        memcpy(more, all, n);
        more[n] = (char)extra;
        check_write(path, more, n + 1);
        cr_assert(!st_open(&st, path, &e));
        refused("extended", path, &e, "MetadataIncompleteBuffer");
        free(more);
    }
    free(all);
    free(path);
}

/* Every byte with every other value: what is accepted keeps the promises of the header file. */
Test(safetensors, one_byte_mutations) {
    char *path = write_case(&small, "small");
    size_t n;
    char *all = check_read(path, &n);
    int fd = open(path, O_WRONLY), accepted = 0, tried = 0;
    for (size_t k = 0; k < n; k++) {
        for (int v = 0; v < 256; v++) {
            St st;
            Err e = {0};
            char c = (char)v;
            if (c == all[k]) continue;
            cr_assert_eq(pwrite(fd, &c, 1, (off_t)k), 1);
            tried++;
            if (!st_open(&st, path, &e)) {
                cr_assert(e.status == EXIT_INPUT && *e.msg, "byte %zu = %d: status %d", k, v, e.status);
                continue;
            }
            accepted++;
            size_t sum = 0;
            for (int i = 0; i < st.n; i++) {
                const unsigned char *lo = st.file[0].map.p, *hi = lo + st.file[0].map.n;
                cr_assert(st.entry[i].p >= lo && st.entry[i].p + st.entry[i].bytes <= hi, "byte %zu = %d", k, v);
                cr_assert(!i || strcmp(st.entry[i - 1].name, st.entry[i].name) < 0);
                sum += st.entry[i].bytes;
            }
            cr_assert_eq(sum, 32, "byte %zu = %d: %zu bytes of data", k, v, sum);
            st_close(&st);
        }
        cr_assert_eq(pwrite(fd, all + k, 1, (off_t)k), 1);
    }
    close(fd);
    /* The 32 data bytes may be anything; names and metadata may change; the structure may not. */
    cr_expect(accepted >= 32 * 255 && accepted < tried / 2, "%d of %d accepted", accepted, tried);
    free(all);
    free(path);
}

/* ---- numbers -------------------------------------------------------------------------------------------------------
 */

static double ramp(size_t i) { return ((double)i - 3) * 0.37; }

Test(safetensors, reads_what_the_reference_wrote) {
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
Test(safetensors, sixteen_bits) {
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
Test(safetensors, sixteen_bits_all_patterns) {
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

Test(safetensors, refuses_other_tensors) {
    static const Case many = {"many",
                              "{\"f\":" ENTRY("F32", "[2,3]", "[0,24]") ",\"i\":" ENTRY(
                                  "I32", "[2]", "[24,32]") ",\"s\":" ENTRY("F32", "[]", "[32,36]") "}",
                              36, NULL, 0};
    char *path = write_case(&many, "many");
    real room[64];
    St st;
    Err e = {0};
    cr_assert(st_open(&st, path, &e), "%s", e.msg);
    cr_assert(!st_read(&st, st_find(&st, "f"), TENSOR(room, REAL, 3, 2), &e));
    refused("swapped", path, &e, "\"f\": expected shape (3,2), found (2,3)");
    cr_assert(!st_read(&st, st_find(&st, "f"), TENSOR(room, REAL, 6), &e));
    refused("rank", path, &e, "expected shape (6), found (2,3)");
    cr_assert(!st_read(&st, st_find(&st, "f"), TENSOR(room, REAL, 2, 3, 1), &e));
    refused("rank", path, &e, "expected shape (2,3,1)");
    cr_assert(!st_read(&st, st_find(&st, "s"), TENSOR(room, REAL, 1), &e));
    refused("rank 0", path, &e, "found ()");
    cr_assert(!st_read(&st, st_find(&st, "i"), TENSOR(room, REAL, 2), &e));
    refused("dtype", path, &e, "expected dtype F64, F32, F16 or BF16, found I32");
    st_close(&st);
    free(path);
}

/* A finite F64 that F32 cannot hold must not become infinite; infinities and NaNs of the file pass. */
Test(safetensors, range) {
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
    refused("range", path, &e, "number 0 is too large for F32");
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

Test(safetensors, writes_as_the_reference_does) {
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

/* More numbers than the conversion's buffer holds, metadata, and the list from declarations. */
typedef struct {
    Tensor w, gain, stat;
} Owned;
static void declare(Owned *o, Fields *f) {
    field(f, &o->w, "w", 0, 300, 500);
    field(f, &o->gain, "gain", FIELD_ONES, 5);
    field(f, &o->stat, "stat", FIELD_F32 | FIELD_OPTIONAL, 5);
}

Test(safetensors, fields_there_and_back) {
    enum { N = 150000 };
    real *v = xcalloc(N + 10, sizeof *v), *back = xcalloc(N + 10, sizeof *back);
    Owned o = {{.p = v}, {.p = v + N}, {.p = v + N + 5}}, in = {{.p = back}, {.p = back + N}, {.p = back + N + 5}};
    for (size_t i = 0; i < N + 10; i++) v[i] = (real)rng_normal(7, i);
    for (int narrow = 0; narrow < 2; narrow++) {
        StList l = {.prefix = "exp_avg.", .as = narrow ? BF16 : F32};
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
        cr_assert_str_eq(st_find(&st, "exp_avg.w")->dtype, narrow ? "BF16" : "F32");
        cr_assert_str_eq(st_find(&st, "exp_avg.stat")->dtype, "F32");
        cr_assert_eq((st_find(&st, "exp_avg.w")->p - st.file[0].map.p) % (narrow ? 2 : 4), 0);
        st_load_begin(&load, &st, "exp_avg.", &e);
        f = st_loader(&load);
        declare(&in, &f);
        cr_assert(st_load_end(&load, NULL), "%s", e.msg);
        CHECK_RELATIVE("w", back, v, N, narrow ? 0x1p-8 : 0x1p-24);
        CHECK_RELATIVE("stat", back + N + 5, v + N + 5, 5, 0x1p-24);
        st_close(&st);
        st_list_free(&l);
        free(path);
    }
    free(v);
    free(back);
}

static bool none(const char *name) { return !strcmp(name, "harmless"); }

Test(safetensors, fields_must_match) {
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
        refused("fields", path, &e, part[i]);
        /* Of another set of fields only what it lacks and what is too much decide. */
        st_load_begin(&load, &st, "p.", &e);
        f = st_loader(&load);
        Tensor gain = {.p = back}, w = {.p = back + 4};
        field(&f, &gain, "gain", 0, 4);
        field(&f, &w, "w", FIELD_OPTIONAL, 4);
        bool fits = st_load_end(&load, none);
        cr_assert_eq(fits, i == 1, "%d: %s", i, e.msg);
        if (!fits)
            refused("fields", path, &e,
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
Test(safetensors, full_disk) {
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
        cr_assert_eq(e.status, EXIT_WORLD, "%s", e.msg);
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

Test(safetensors, cannot_create_or_rename) {
    StList l = {0};
    Err e = {0};
    char *path = check_path("no/such/file");
    cr_assert(!st_write(path, &l, NULL, &e));
    refused("no directory", path, &e, "No such file");
    free(path);
    path = check_path("taken");
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_assert(!st_write(path, &l, NULL, &e));
    cr_assert_eq(e.status, EXIT_WORLD);
    cr_assert(strstr(e.msg, path) && strstr(e.msg, "rename"), "%s", e.msg);
    cr_assert_eq(check_entries(check_dir()), 1);
    free(path);
    /* What a process of the same number left behind is replaced. */
    path = check_path("f");
    char *left = xformat("%s.tmp%ld", path, (long)getpid());
    check_write(left, "junk", 4);
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    cr_assert(!check_exists(left) && check_exists(path));
    free(left);
    free(path);
}

/* ---- shards --------------------------------------------------------------------------------------------------------
 */

static void shard(const char *file, int n, const char *const names[]) {
    real v[2] = {1, 2};
    StList l = {0};
    Err e = {0};
    char *path = check_path(file);
    for (int i = 0; i < n; i++) st_add(&l, names[i], TENSOR(v, REAL, 2), F32);
    cr_assert(st_write(path, &l, NULL, &e), "%s", e.msg);
    st_list_free(&l);
    free(path);
}

Test(safetensors, shards) {
    static const struct {
        const char *map, *part; /* part NULL: accepted */
        int warnings;
    } kind[] = {
        {"{\"weight_map\":{\"a\":\"1.st\",\"b\":\"1.st\",\"c\":\"2.st\"}}", NULL, 0},
        {"{\"metadata\":{\"total_size\":-7},\"weight_map\":{\"c\":\"2.st\",\"a\":\"1.st\",\"b\":\"1.st\"},\"x\":1}",
         NULL, 0},
        {"{\"weight_map\":{\"a\":\"1.st\",\"c\":\"2.st\"}}", NULL, 1},
        {"{\"weight_map\":{\"a\":\"1.st\"}}", NULL, 1},
        {"{\"weight_map\":{\"a\":\"1.st\",\"b\":\"2.st\",\"c\":\"2.st\"}}", "\"b\" is not in 2.st", 0},
        {"{\"weight_map\":{\"a\":\"1.st\",\"d\":\"2.st\"}}", "\"d\" is not in 2.st", 0},
        {"{\"weight_map\":{\"a\":\"1.st\",\"c\":\"3.st\"}}", "two shards", 0},
        {"{\"weight_map\":{\"a\":\"1.st\",\"c\":\"4.st\"}}", "4.st: No such file", 0},
        {"{\"weight_map\":{\"a\":\"1.st\",\"c\":\"5.st\"}}", "HeaderTooSmall", 0},
        {"{\"weight_map\":{\"a\":\"../1.st\"}}", "same directory", 0},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "same directory", 0},
        {"{\"weight_map\":{\"a\":\"..\"}}", "same directory", 0},
        {"{\"weight_map\":{\"a\":\"x\\\\1.st\"}}", "same directory", 0},
        {"{\"weight_map\":{\"a\":\"\"}}", "same directory", 0},
        {"{\"weight_map\":{\"a\":\"1.st\\u0000\"}}", "same directory", 0},
        {"{\"weight_map\":{\"a\":\"1\\n.st\"}}", "same directory", 0},
        {"{\"weight_map\":{\"a\":7}}", "same directory", 0},
        {"{\"weight_map\":{\"a\":\"1.st\",\"a\":\"1.st\"}}", "duplicate", 0},
        {"{\"weight_map\":{}}", "weight_map", 0},
        {"{\"weight_map\":[]}", "weight_map", 0},
        {"{}", "weight_map", 0},
        {"[]", "object", 0},
        {"", "JSON", 0},
    };
    char *index = check_path("model.safetensors.index.json"), *junk = check_path("5.st");
    shard("1.st", 2, (const char *const[]){"b", "a"});
    shard("2.st", 1, (const char *const[]){"c"});
    shard("3.st", 2, (const char *const[]){"a", "c"});
    check_write(junk, "abc", 3);
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        St st;
        Err e = {0};
        check_write(index, kind[i].map, strlen(kind[i].map));
        bool ok = st_open_dir(&st, check_dir(), &e);
        cr_expect_eq(ok, !kind[i].part, "%s: %s", kind[i].map, e.msg);
        if (!ok) {
            refused(kind[i].map, check_dir(), &e, kind[i].part);
            continue;
        }
        real v[2];
        cr_expect_eq(st.nwarn, kind[i].warnings, "%s", kind[i].map);
        if (st.nwarn) cr_expect(strstr(st.warn[0], "\"b\"") && !st_find(&st, "b"), "%s", st.warn[0]);
        cr_expect(st_read(&st, st_find(&st, "a"), TENSOR(v, REAL, 2), &e) && v[1] == 2);
        st_close(&st);
    }
    /* A file of its own wins over an index. */
    St st;
    Err e = {0};
    shard("model.safetensors", 1, (const char *const[]){"only"});
    cr_assert(st_open_dir(&st, check_dir(), &e), "%s", e.msg);
    cr_assert(st.n == 1 && st_find(&st, "only"));
    st_close(&st);
    free(index);
    free(junk);
}
