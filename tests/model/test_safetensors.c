/* test_safetensors.c: the reader against every malformed file of the reference's own tests and many more, cut and
 * changed files, shards. */
#include "tests/lib/dirs.h"
#include "model/files/safetensors.h"
#include <fcntl.h>
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
    {"end before begin, no hole", "{\"a\":" ENTRY("F32", "[2]", "[0,8]") ",\"b\":" ENTRY("F32", "[1]", "[8,4]") "}", 8,
     "InvalidOffset", 0},
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
            dir_refused(c->what, path, &e, c->kind ? c->kind : "");
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
        dir_refused("short", path, &e, "HeaderTooSmall");
        free(path);
    }
}

Test(safetensors, not_files) {
    St st;
    Err e = {0};
    char *path = check_path("none");
    cr_assert(!st_open(&st, path, &e));
    dir_refused("missing", path, &e, "No such file");
    cr_assert(!st_open(&st, check_dir(), &e));
    dir_refused("directory", check_dir(), &e, "directory");
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert(!st_open(&st, path, &e));
    dir_refused("pipe", path, &e, "pipe");
    cr_assert(!st_open_dir(&st, check_dir(), &e));
    dir_refused("empty directory", check_dir(), &e, "model.safetensors");
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
        dir_refused("bomb", path, &e, "InvalidHeaderDeserialization");
        dir_refused("bomb", path, &e, i == 2 ? "more than 2097152 values" : "maximum parsing depth");
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
    dir_refused("long name", path, &e, "...");
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
        dir_refused("truncated", path, &e, "");
    }
    for (int extra = 0; extra < 256; extra++) {
        char *more = xcalloc(n + 1, 1);
        St st;
        Err e = {0};
        memcpy(more, all, n);
        more[n] = (char)extra;
        check_write(path, more, n + 1);
        cr_assert(!st_open(&st, path, &e));
        dir_refused("extended", path, &e, "MetadataIncompleteBuffer");
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
    dir_refused("swapped", path, &e, "\"f\": expected shape (3,2), found (2,3)");
    cr_assert(!st_read(&st, st_find(&st, "f"), TENSOR(room, REAL, 6), &e));
    dir_refused("rank", path, &e, "expected shape (6), found (2,3)");
    cr_assert(!st_read(&st, st_find(&st, "f"), TENSOR(room, REAL, 2, 3, 1), &e));
    dir_refused("rank", path, &e, "expected shape (2,3,1)");
    cr_assert(!st_read(&st, st_find(&st, "s"), TENSOR(room, REAL, 1), &e));
    dir_refused("rank 0", path, &e, "found ()");
    cr_assert(!st_read(&st, st_find(&st, "i"), TENSOR(room, REAL, 2), &e));
    dir_refused("dtype", path, &e, "expected dtype F64, F32, F16 or BF16, found I32");
    st_close(&st);
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
            dir_refused(kind[i].map, check_dir(), &e, kind[i].part);
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
