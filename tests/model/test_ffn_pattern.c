/* test_ffn_pattern.c: model.ffn and model.ffn_pattern: which layer has which feed-forward part, in settings of runs and
 * in a model's JSON, and where a model starts from another. */
#include "tests/lib/check.h"
#include "model/config/config.h"

/* Feed-forward parts by name: which layer has which, and that all forms survive as YAML and as JSON. */
Test(ffn_pattern, layers) {
    static const struct {
        const char *ffn;
        char of[6]; /* the kind of each of five layers: s(wiglu), g(elu), n(one), m(oe) */
    } k[] = {
        {"ffn: {kind: swiglu, hidden: 8}", "sssss"},
        {"ffn: none", "nnnnn"},
        {"ffn: [{kind: swiglu, hidden: 8}, none]", "snsns"},
        {"ffn: [{kind: swiglu, hidden: 8}, {kind: none}, {kind: gelu, hidden: 4}]", "sngsn"},
        {"ffn: {one: {kind: swiglu, hidden: 8}}", "sssss"},
        {"ffn: {d: {kind: swiglu, hidden: 8}, e: {kind: moe, hidden: 4, experts: 3, top_k: 2}}, ffn_pattern: [d, e, e, "
         "e, d]",
         "smmms"},
        {"ffn: {d: {kind: swiglu, hidden: 8}, e: {kind: gelu, hidden: 4}}, ffn_pattern: [e, d, none]", "gsngs"},
        {"ffn: {d: {kind: swiglu, hidden: 8}, off: none}, ffn_pattern: [off, d]", "nsnsn"},
        {"ffn: {d: {kind: swiglu, hidden: 8}, e: {kind: gelu, hidden: 4}}, ffn_pattern: e", "ggggg"},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        Config *c = xcalloc(1, sizeof *c), *again = xcalloc(1, sizeof *again);
        ModelCfg m;
        Err e = {0};
        char *yaml =
            xformat("model: {d_model: 32, layers: 5, vocab: 9, kinds: {a: {mixer: gqa, heads: 2}}, %s}", k[i].ffn);
        cr_assert(config_parse(c, yaml, strlen(yaml), "run.yaml", 0, NULL, &e), "%s: %s", yaml, e.msg);
        char *text = config_text(c), *json = model_cfg_json(&c->model);
        cr_assert(config_parse(again, text, strlen(text), "again", 0, NULL, &e), "%s: %s", text, e.msg);
        cr_assert(model_cfg_from_json(&m, json, strlen(json), "json", &e), "%s: %s", json, e.msg);
        char *second = config_text(again), *third = model_cfg_json(&m);
        cr_expect_str_eq(second, text);
        cr_expect_str_eq(third, json);
        for (int l = 0; l < 5; l++) {
            cr_expect_eq(*c->model.ffn[c->model.ffn_pattern[l]].ffn->name, k[i].of[l], "%s, layer %d", k[i].ffn, l);
            cr_expect_eq(*m.ffn[m.ffn_pattern[l]].ffn->name, k[i].of[l], "%s, layer %d of JSON", k[i].ffn, l);
        }
        config_free(c), config_free(again), model_cfg_free(&m);
        free(c), free(again), free(yaml), free(text), free(json), free(second), free(third);
    }
}
