/* run_config.c: any bytes as the YAML settings of a run. What is accepted keeps its meaning when written again.
 * Sources: model/config/config*.[ch] model/config/schema.[ch] model/config/data_spec.[ch] data/data_cfg.[ch]
 * model/config/task_cfg.[ch] model/map.c */
#include "fuzz.h"
#include "model/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    static Config c, again; /* half a megabyte each */
    Err e = {0}, why = {0};
    if (!config_parse(&c, (const char *)p, n, "input", 0, NULL, &e)) {
        refusal(&e);
        return 0;
    }
    char *text = config_text(&c);
    CHECK(config_parse(&again, text, strlen(text), "again", 0, NULL, &why), "%s: %s", why.msg, text);
    char *second = config_text(&again);
    CHECK(!strcmp(text, second), "%s became %s", text, second);
    free(text);
    free(second);
    config_free(&c);
    config_free(&again);
    return 0;
}
