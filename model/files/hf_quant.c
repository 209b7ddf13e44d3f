/* hf_quant.c: quantised model directories: what quantization_config says, and their files with the values that the
 * codes stand for. Source of the keys and their meaning: transformers utils/quantization_config (FineGrainedFP8Config,
 * Mxfp4Config) and integrations/finegrained_fp8 and mxfp4. */
#include "hf_file.h"

/* Keys that change nothing in the values of weights: which tensors are quantised is seen in the files. */
static const char *const quant_other[] = {"quant_method",           "activation_scheme", "scale_fmt",
                                          "modules_to_not_convert", "ignored_layers",    NULL};

static bool quant_blocks(const HfFile *f, int out[2]) {
    const json_t *v = json_object_get(f->j, "weight_block_size");
    out[0] = out[1] = 128;
    if (!v) return true;
    for (size_t i = 0; i < 2; i++) {
        const json_t *n = json_array_get(v, i);
        if (json_array_size(v) != 2 || !json_is_integer(n) || json_integer_value(n) < 1 ||
            json_integer_value(n) > 1 << 20)
            return err_input(f->e,
                             "%s: \"quantization_config\": \"weight_block_size\": expected two whole numbers from 1; "
                             "other scales than those of blocks are not supported",
                             f->path);
        out[i] = (int)json_integer_value(n);
    }
    return true;
}
static bool quant_other_key(const char *key) {
    for (int i = 0; quant_other[i]; i++)
        if (!strcmp(quant_other[i], key)) return true;
    return false;
}
bool hf_quant_known(const HfType *t, const HfFile *f, const json_t *v) {
    const char *method = json_string_value(json_object_get(v, "quant_method")), *key;
    const HfFile in = {f->path, v, f->e};
    const bool fp8 = method && !strcmp(method, "fp8"), mxfp4 = method && !strcmp(method, "mxfp4");
    const json_t *fmt = json_object_get(v, "fmt"), *value;
    int blocks[2];
    if (mxfp4 && !t->mxfp4)
        return err_input(f->e, "%s: \"quantization_config\": mxfp4 is not supported of model_type %s", f->path,
                         t->type);
    if (!fp8 && !mxfp4)
        return err_input(
            f->e,
            "%s: \"quantization_config\" is not supported: this checkpoint is quantised by %.40s; start from "
            "the unquantised model (of quantised ones fp8 and mxfp4 are read)",
            f->path, method ? method : "a method without a name");
    json_object_foreach((json_t *)v, key, value) {
        const bool own = fp8 && (!strcmp(key, "fmt") || !strcmp(key, "weight_block_size"));
        if (own || json_is_null(value) || json_is_false(value) || !strcmp(key, "dequantize") || quant_other_key(key))
            continue;
        return err_input(f->e, "%s: \"quantization_config\": \"%.60s\" is not supported", f->path, key);
    }
    if (fp8 && hf_given(v, "fmt") && strcmp(hf_found(fmt), "e4m3"))
        return err_input(f->e, "%s: \"quantization_config\": \"fmt\": expected e4m3, found %.40s", f->path,
                         hf_found(fmt));
    return !fp8 || quant_blocks(&in, blocks);
}

bool hf_quant_open(St *st, const HfType *type, const HfFile *f) {
    const bool mxfp4 = !strcmp(hf_found(json_object_get(f->j, "quant_method")), "mxfp4");
    int blocks[2];
    return hf_quant_known(type, f, f->j) && quant_blocks(f, blocks) &&
           (mxfp4 ? st_scale_mxfp4(st, f->e) : st_scale_fp8(st, blocks[0], blocks[1], f->e));
}
