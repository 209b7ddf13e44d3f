/* estimates.c: what was expected of each figure before anything had run on a device, so that a measurement says at once
 * where to look. A roofline estimate of this project for one H100 SXM: 690 TFLOP/s for products in bf16 with tiles
 * counted whole, 2.75 TB/s of memory that programs reach, 2 us for each kernel of a replayed graph; times that are
 * bound by memory are about 0.7 of that on an H200. Errors: 15 % of a training step, 30 % of one kernel, a factor 2 of
 * the kernels by chunks. Where a share is given, it is that of the time that the bytes take at 3.35 TB/s. */
#include "check.h"

typedef struct {
    const char *name, *figure; /* a case, and a path in its data: keys, numbers of entries, or an entry's op or rule */
    double value, share;       /* share: of a time, value is bytes_read / 3.35e12 / share */
    const char *why;
} Estimate;
static const Estimate all[] = {
    {"limits", "gemm_peak_gflops", 690e3, 0, "what cuBLASLt reaches in bf16 on an H100"},
    {"limits", "read.gb_per_s", 2750, 0, "memory that programs reach on an H100"},
    {"limits", "launches.graph_s", 200e-6, 0, "2 us for each of 100 kernels of a graph"},
    {"train 124m, 16 x 1024, own", "train.tok_s", 392e3, 0, "products 20 ms, attention 9.8 ms of 41 ms a step"},
    {"train 124m, 16 x 1024, cudnn", "train.tok_s", 433e3, 0, "the same with attention at cuDNN's published speed"},
    {"train 124m, 16 x 1024, cudnn_unordered", "train.tok_s", 433e3, 0, "the same, less its workspace"},
    {"train 0.5b, 16 x 1024", "train.tok_s", 109e3, 0, "the head's gradient is read and written in 38 slices"},
    {"train 0.5b, 16 x 1024, logits 2^29", "train.tok_s", 118e3, 0, "five slices in place of 38"},
    {"train 1.5b, 16 x 1024", "train.tok_s", 47.4e3, 0, "as for 124m"},
    {"train 3b, 8 x 1024", "train.tok_s", 25.6e3, 0, "as for 124m"},
    {"train 3b, 8 x 1024, logits 2^29", "train.tok_s", 26.1e3, 0, "as for 0.5b"},
    {"recur kda, gdn, 1 x 8192 x 96 x 128", "recur.kda.forward_s", 3.3e-3, 0, "one exposed access is 700 clocks"},
    {"recur kda, gdn, 1 x 8192 x 96 x 128", "recur.kda.forward_backward_s", 11.5e-3, 0, "the same"},
    {"recur kda, gdn, 1 x 8192 x 96 x 128", "recur.gdn.forward_s", 2.5e-3, 0, "0.75 of kda"},
    {"recur kda, gdn, 1 x 8192 x 96 x 128", "recur.gdn.forward_backward_s", 8.6e-3, 0, "0.75 of kda"},
    {"recur mamba2, 1 x 8192 x 96 x 64", "recur.mamba2.forward_s", 1.65e-3, 0, "at most 0.5 of kda of width 128"},
    {"recur mamba2, 1 x 8192 x 96 x 64", "recur.mamba2.forward_backward_s", 5.75e-3, 0, "the same"},
    {"decode 0.5b, 32k, batch 1", "decode.0.step_s", 0, 0.12, "29 nodes a layer, the host walks all ops"},
    {"decode 0.5b, 32k, batch 32", "decode.0.step_s", 0, 0.55, "reading the history"},
    {"decode 8b, 4 layers, 32k, batch 1", "decode.0.step_s", 0, 0.58, "products of one row at 0.5 to 0.7 of memory"},
    {"decode 8b, 4 layers, 32k, batch 32", "decode.0.step_s", 0, 0.62, "reading the history"},
    {"decode mla 16 heads, 4 layers, 32k, batch 1", "decode.0.step_s", 0, 0.16, "two products for each head and layer"},
    {"decode mla 128 heads, 4 layers, 32k, batch 32", "decode.0.step_s", 0, 0.21,
     "the latent is read for every 16 heads"},
    {"decode kda, 4 layers, batch 32", "decode.0.step_s", 0, 0.27, "34 kernels a layer"},
    {"ops in bf16", "heavy.attend.seconds", 166e-6, 0, "155 TFLOP/s at heads of 64 and 1,024 rows"},
    {"ops in bf16", "heavy.attend_backward.seconds", 614e-6, 0, "105 TFLOP/s"},
};

static const json_t *at_path(const json_t *j, const char *path) {
    char *copy = xformat("%s", path), *rest = copy;
    for (char *word; j && (word = strsep(&rest, "."));) {
        const json_t *x, *found = NULL;
        size_t i;
        if (json_is_object(j)) {
            found = json_object_get(j, word);
        } else if (word[strspn(word, "0123456789")] == 0) {
            found = json_array_get(j, (size_t)atoi(word));
        } else {
            json_array_foreach(j, i, x) {
                const char *op = json_string_value(json_object_get(x, "op")) ?: "",
                           *rule = json_string_value(json_object_get(x, "rule")) ?: "";
                if (!found && (!strcmp(op, word) || !strcmp(rule, word))) found = x;
            }
        }
        j = found;
    }
    free(copy);
    return j;
}
static bool found(const Estimate *e, const json_t *data, double *measured, double *expected) {
    const json_t *x = at_path(data, e->figure);
    if (!json_is_number(x)) return false;
    *measured = json_number_value(x), *expected = e->value;
    if (e->share > 0) {
        char *path = xformat("%.*s.bytes_read", (int)(strrchr(e->figure, '.') - e->figure), e->figure);
        *expected = json_number_value(at_path(data, path)) / 3.35e12 / e->share;
        free(path);
    }
    return *expected > 0;
}
void estimates_add(const char *name, json_t *data) {
    json_t *list = json_array();
    double measured, expected;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name) && found(&all[i], data, &measured, &expected))
            json_array_append_new(list,
                                  json_pack("{s:s, s:f, s:f, s:f, s:s}", "figure", all[i].figure, "measured", measured,
                                            "expected", expected, "ratio", measured / expected, "why", all[i].why));
    if (json_array_size(list)) json_object_set(data, "expected", list);
    json_decref(list);
}
/* The figures that have no estimate, too. */
static void plain(FILE *f, const char *name, const json_t *data) {
    static const char *const known[] = {"train.tok_s", "train.percent_of_peak", "read.gb_per_s", "gemm_peak_gflops"},
                             *const of_each[] = {"step_s", "percent_of_bandwidth", "pass_s", "percent_of_peak"};
    static const char *const lists[] = {"decode", "prefill"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const json_t *x = at_path(data, known[i]);
        if (json_is_number(x)) fprintf(f, "%-52s %-34s %12.6g\n", name, known[i], json_number_value(x));
    }
    for (size_t k = 0; k < 2; k++) {
        const json_t *list = json_object_get(data, lists[k]), *x;
        size_t i;
        json_array_foreach(list, i, x) for (size_t w = 0; w < sizeof of_each / sizeof *of_each; w++) {
            const json_t *y = json_object_get(x, of_each[w]);
            char what[80];
            snprintf(what, sizeof what, "%s.%zu.%s, batch %d%s", lists[k], i, of_each[w],
                     (int)json_integer_value(json_object_get(x, "batch")),
                     json_is_true(json_object_get(x, "graph")) ? ", graph" : "");
            if (json_is_number(y)) fprintf(f, "%-52s %-34s %12.6g\n", name, what, json_number_value(y));
        }
    }
}
void estimates_print(FILE *f, const char *name, const json_t *data) {
    const json_t *list = json_object_get(data, "expected"), *x;
    size_t i;
    json_array_foreach(list, i, x)
        fprintf(f, "%-52s %-34s %12.6g %12.6g  %.2f; %s\n", name, json_string_value(json_object_get(x, "figure")),
                json_number_value(json_object_get(x, "measured")), json_number_value(json_object_get(x, "expected")),
                json_number_value(json_object_get(x, "ratio")), json_string_value(json_object_get(x, "why")));
    plain(f, name, data);
}
