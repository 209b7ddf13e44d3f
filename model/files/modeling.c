/* modeling.c: the text of modeling_kvsmith.py, which is written next to a config.json whose model no class of
 * transformers computes. It lies in the program, so that there is one copy and none to be installed. */
#include "hf_file.h"
#include "ops/file.h"

__asm__(".section .rodata\n"
        ".global hf_modeling, hf_modeling_end\n"
        "hf_modeling: .incbin \"model/files/modeling_kvsmith.py\"\n"
        "hf_modeling_end: .byte 0\n"
        ".previous\n");
extern const char hf_modeling[], hf_modeling_end[];

/* What transformers looks for in config.json: which class of which file next to it. */
void hf_modeling_json(json_t *config) {
    json_object_set_new(config, "architectures", json_pack("[s]", "KvsmithForCausalLM"));
    json_object_set_new(config, "auto_map",
                        json_pack("{ss ss}", "AutoConfig", "modeling_kvsmith.KvsmithConfig", "AutoModelForCausalLM",
                                  "modeling_kvsmith.KvsmithForCausalLM"));
}
bool hf_modeling_write(const char *config, Err *e) {
    const char *slash = strrchr(config, '/');
    char *path = xformat("%.*s%s", slash ? (int)(slash + 1 - config) : 0, config, HF_MODELING);
    bool ok = file_write(path, hf_modeling, (size_t)(hf_modeling_end - hf_modeling), e);
    free(path);
    return ok;
}
