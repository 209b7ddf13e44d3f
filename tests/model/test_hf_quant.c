/* test_hf_quant.c: quantised files: values of codes and scales to the bit, what is refused, conversion into ordinary
 * files. Logits and decoding: test_hf_family.c. */
#include "tests/lib/converts.h"

#define FAMILIES "tests/golden/families/"

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Write a file of these tensors: header, then `n` bytes. */
static char *raw_file(const char *name, const char *header, const void *data, size_t n) {
    char *path = check_path(name);
    const uint64_t len = strlen(header);
    FILE *f = fopen(path, "wb");
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)(len >> 8 * i);
    cr_assert(f && fwrite(size, 8, 1, f) == 1 && fwrite(header, len, 1, f) == 1 && fwrite(data, n, 1, f) == 1);
    cr_assert(!fclose(f));
    return path;
}
/* By definition: sign, exponent with bias 7, three bits; all ones are no number. */
static float e4m3(int code) {
    const int e = code >> 3 & 15, m = code & 7;
    const double v = e == 15 && m == 7 ? NAN : e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return (float)(code & 128 ? -v : v);
}
static bool same_bits(double got, float want) {
    const float f = (float)got;
    return (isnan(f) && isnan(want)) || (!memcmp(&f, &want, 4) && (double)f == got);
}
/* All codes, in blocks of 3 x 7 whose edges are cut, read whole, by parts of rows, and as bf16. */
Test(hf_quant, fp8_values) {
    enum { ROWS = 16, WIDTH = 16, DOWN = 6, ACROSS = 3 };
    unsigned char data[ROWS * WIDTH + 4 * DOWN * ACROSS];
    float scale[DOWN * ACROSS];
    for (int i = 0; i < ROWS * WIDTH; i++) data[i] = (unsigned char)(i * 29);
    for (int i = 0; i < DOWN * ACROSS; i++) scale[i] = (float)ldexp(1 + 0.37 * i / 7, i % 2 ? 3 - i : i - 4);
    scale[5] = -0.0F, scale[7] = 1e36F, scale[8] = 1e-42F; /* to infinity and among the smallest */
    memcpy(data + ROWS * WIDTH, scale, sizeof scale);
    char *path = raw_file("fp8",
                          "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[16,16],\"data_offsets\":[0,256]},"
                          "\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[6,3],\"data_offsets\":[256,328]}}",
                          data, sizeof data);
    St st;
    Err e = {0};
    real got[ROWS * WIDTH];
    uint16_t rounded[ROWS * WIDTH];
    cr_assert(st_open(&st, path, &e) && st_scale_fp8(&st, 3, 7, &e), "%s", e.msg);
    cr_assert(st.n == 1 && st.nscale == 1);
    const StEntry *s = st_find(&st, "w");
    cr_assert(st_read(&st, s, TENSOR(got, REAL, ROWS, WIDTH), &e), "%s", e.msg);
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < WIDTH; c++) {
                const float want = e4m3(data[r * WIDTH + c]) * scale[r / 3 * ACROSS + c / 7];
                const double is = (double)got[r * WIDTH + c];
                cr_assert(same_bits(is, want), "(%d,%d): %a, want %a", r, c, is, (double)want);
            }
        uint64_t shape[2] = {5, WIDTH}; /* rows 3 to 7 as the converter reads them, into their place */
        StEntry some = *s;
        some.shape = shape, some.p += 3 * WIDTH, some.bytes = 5 * WIDTH;
        memset(got + 3 * WIDTH, 0, 5 * WIDTH * sizeof *got);
        cr_assert(st_read(&st, &some, TENSOR(got + 3 * WIDTH, REAL, 5, WIDTH), &e), "%s", e.msg);
    }
    /* turned, which reads columns */
    cr_assert(
        st_read_part(&st, s, TENSOR(got, REAL, WIDTH, ROWS), (StPlace){.parts = 1, .block = 1, .turned = true}, &e));
    for (int i = 0; i < ROWS * WIDTH; i++) {
        const int r = i % ROWS, c = i / ROWS;
        cr_assert(same_bits((double)got[i], e4m3(data[r * WIDTH + c]) * scale[r / 3 * ACROSS + c / 7]), "turned %d", i);
    }
    cr_assert(st_read_round(&st, s, TENSOR(rounded, BF16, ROWS, WIDTH), ST_WHOLE, &e), "%s", e.msg);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        const float want = e4m3(data[i]) * scale[i / WIDTH / 3 * ACROSS + i % WIDTH / 7];
        cr_assert(isnan(want) || rounded[i] == bf16_from(want), "bf16 %d", i);
    }
    st_close(&st);
    free(path);
}
/* All exponents, with all codes. */
Test(hf_quant, mxfp4_values) {
    enum { GROUPS = 256, CODES = 32 * GROUPS };
    static const float e2m1[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    unsigned char data[16 * GROUPS + GROUPS];
    for (int i = 0; i < 16 * GROUPS; i++) data[i] = (unsigned char)(i * 37 + i / 16);
    for (int i = 0; i < GROUPS; i++) data[16 * GROUPS + i] = (unsigned char)(i * 5 + 3);
    char *path = raw_file("mxfp4",
                          "{\"w_blocks\":{\"dtype\":\"U8\",\"shape\":[2,64,2,16],\"data_offsets\":[0,4096]},"
                          "\"w_scales\":{\"dtype\":\"U8\",\"shape\":[2,64,2],\"data_offsets\":[4096,4352]}}",
                          data, sizeof data);
    St st;
    Err e = {0};
    real *got = xcalloc(CODES, sizeof *got);
    cr_assert(st_open(&st, path, &e) && st_scale_mxfp4(&st, &e), "%s", e.msg);
    const StEntry *s = st_find(&st, "w_blocks");
    cr_assert(st.n == 1 && s->rank == 3 && s->shape[2] == 64);
    cr_assert(st_read(&st, s, TENSOR(got, REAL, 2, 64, 64), &e), "%s", e.msg);
    for (int i = 0; i < CODES; i++) {
        const int code = i % 2 ? data[i / 2] >> 4 : data[i / 2] & 15, exp = data[16 * GROUPS + i / 32];
        const float by = exp == 255 ? INFINITY : (float)ldexp(1, exp - 127);
        const float want = (code & 8 ? -e2m1[code & 7] : e2m1[code]) * by;
        cr_assert(same_bits((double)got[i], want), "%d: code %d, exponent %d: %a, want %a", i, code, exp,
                  (double)got[i], (double)want);
    }
    st_close(&st);
    free(path), free(got);
}

/* ---- refused ----------------------------------------------------------------------------------------------------- */

#define CODES8 "\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[4,6],\"data_offsets\":[0,24]}"
#define BLOCKS "\"w_blocks\":{\"dtype\":\"U8\",\"shape\":[2,1,16],\"data_offsets\":[0,32]}"
Test(hf_quant, scales_refused) {
    static const struct {
        bool mxfp4;
        const char *header, *part;
        size_t bytes;
    } k[] = {
        {false, "{" CODES8 "}", "there is no tensor of its name and _scale_inv", 24},
        {false, "{" CODES8 ",\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[24,48]}}",
         "in blocks of 2 x 4: expected (2,2) scales, found (2,3)", 48},
        {false, "{" CODES8 ",\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[24,40]}}",
         "expected a matrix, and one of scales", 40},
        {false, "{" CODES8 ",\"w_scale_inv\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[24,40]}}",
         "expected scales of F32 or BF16", 40},
        {false,
         "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[24],\"data_offsets\":[0,24]},\"w_scale_inv\":{\"dtype\":\"F32\","
         "\"shape\":[1],\"data_offsets\":[24,28]}}",
         "expected a matrix, and one of scales", 28},
        {true, "{" BLOCKS "}", "there is no tensor of its name with _scales for _blocks", 32},
        {true, "{" BLOCKS ",\"w_scales\":{\"dtype\":\"U8\",\"shape\":[1,2],\"data_offsets\":[32,34]}}",
         "expected blocks", 34},
        {true, "{" BLOCKS ",\"w_scales\":{\"dtype\":\"I8\",\"shape\":[2,1],\"data_offsets\":[32,34]}}",
         "expected blocks", 34},
        {true,
         "{\"w_blocks\":{\"dtype\":\"U8\",\"shape\":[2,16],\"data_offsets\":[0,32]},\"w_scales\":{\"dtype\":\"U8\","
         "\"shape\":[2],\"data_offsets\":[32,34]}}",
         "expected blocks", 34},
    };
    static const char zeros[64];
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char *path = raw_file("refused", k[i].header, zeros, k[i].bytes);
        St st;
        Err e = {0};
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        cr_assert(!(k[i].mxfp4 ? st_scale_mxfp4(&st, &e) : st_scale_fp8(&st, 2, 4, &e)), "case %zu", i);
        dir_refused(k[i].header, path, &e, k[i].part);
        st_close(&st);
        free(path);
    }
}

/* ---- conversion -------------------------------------------------------------------------------------------------- */

/* Converted in place of the quantised files, written part by part, the model has the same weights: to the bit in f32,
 * and what MXFP4 stands for in bf16 too. */
Test(hf_quant, converted) {
    static const struct {
        const char *name, *words;
        Dtype as;
    } k[] = {{"gpt_oss-mxfp4", "", BF16},
             {"gpt_oss-mxfp4", "dtype=bf16 shard=8KB", BF16},
             {"qwen3-fp8", "dtype=bf16", BF16},
             {"qwen3-fp8", "", F32},
             {"deepseek_v3-fp8", "dtype=bf16", BF16},
             {"deepseek_v3-fp8", "", F32},
             {"gpt_oss", "", F32},
             {"gpt_oss-plain", "shard=4KB", F32}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char name[32], *src = xformat(FAMILIES "%s", k[i].name);
        snprintf(name, sizeof name, "to-%zu", i);
        char *dst = check_path(name);
        Done d = run(src, dst, "same", k[i].words, NULL);
        cr_assert(d.ok, "%s %s: %s", k[i].name, k[i].words, d.e.msg);
        Dir a, b;
        dir_open(&a, src), dir_open(&b, dst);
        StList x = {.as = F32}, y = {.as = F32};
        Fields f = st_lister(&x), g = st_lister(&y);
        model_fields(&a.model, &a.model.w, &f), model_fields(&b.model, &b.model.w, &g);
        cr_assert_eq(x.n, y.n);
        for (int n = 0; n < x.n; n++) {
            const bool narrow = k[i].as == BF16 && !strstr(x.item[n].name, "correction_bias"); /* which stays f32 */
            for (size_t j = 0; j < tensor_count(x.item[n].t); j++) {
                const real v = R(x.item[n].t)[j], w = R(y.item[n].t)[j];
                const real want = narrow ? bf16_to(bf16_from((float)v)) : v;
                cr_assert(w == want, "%s %s: %s %zu: %a, want %a", k[i].name, k[i].words, x.item[n].name, j, (double)w,
                          (double)want);
            }
        }
        St st;
        Err e = {0};
        cr_assert(st_open_dir(&st, dst, &e), "%s", e.msg);
        for (int n = 0; n < st.n; n++) {
            if (!strcmp(k[i].name, "qwen3-fp8") && k[i].as == F32) continue; /* what is not quantised stays in bf16 */
            const bool balance = strstr(st.entry[n].name, "correction_bias") != NULL;
            const bool narrow = k[i].as == BF16 && !balance;
            cr_expect(strcmp(st.entry[n].dtype, "F8_E4M3") && strcmp(st.entry[n].dtype, "U8") &&
                          !strcmp(st.entry[n].dtype, narrow ? "BF16" : "F32"),
                      "%s: %s as %s", k[i].name, st.entry[n].name, st.entry[n].dtype);
        }
        st_close(&st);
        st_list_free(&x), st_list_free(&y);
        dir_close(&a), dir_close(&b);
        free(src), free(dst);
    }
}
