/* model_config.c: any bytes as the config.json of a model. What is accepted keeps its meaning when written again.
 * Sources: model/files/hf*.[ch] model/config/config*.[ch] model/config/schema.[ch] ops/file.[ch] */
#include "fuzz.h"
#include "model/files/hf_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static int fd = -1;
    char path[32];
    ModelCfg c, again;
    HfIds ids;
    Err e = {0};
    as_file(&fd, path, p, n);
    const char *dir = around("config.json", path);
    if (!hf_ids_read(dir, &ids, &e)) refusal(&e);
    e = (Err){0};
    if (!hf_config_read(dir, &c, &e)) {
        refusal(&e);
    } else {
        Err why = {0};
        char *text = model_cfg_json(&c);
        CHECK(model_cfg_from_json(&again, text, strlen(text), "again", &why), "%s: %s", why.msg, text);
        char *second = model_cfg_json(&again);
        CHECK(!strcmp(text, second), "%s became %s", text, second);
        for (int i = 0; hf_types[i]; i++) {
            if (!hf_type_holds(hf_types[i], &c, NULL)) continue;
            json_t *j = json_object();
            hf_type_json(hf_types[i], j, &c);
            json_decref(j);
        }
        free(text);
        free(second);
        model_cfg_free(&c);
        model_cfg_free(&again);
    }
    return 0;
}
