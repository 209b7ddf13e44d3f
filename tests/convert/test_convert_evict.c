/* test_convert_evict.c: --to dms of latents and of published rows: lossless, and back; what is refused. */
#include "tests/lib/converts.h"
#include "layers/dmc/dmc.h"
#include "layers/mla/mla.h"
#include "model/inside.h"

#define DEEPSEEK(more) LATENT("\"nope_dim\":3,\"rope_dim\":2,\"q_rank\":6" more)
/* Latents of two owners, one of which only publishes, and their readers, of one kind with the first. */
#define READ_LATENTS                                                                                                \
    "{" BASE                                                                                                        \
    ",\"layers\":4,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":4,\"kv_rank\":8,\"nope_dim\":3,"     \
    "\"rope_dim\":2},\"p\":{\"mixer\":\"mla\",\"heads\":0,\"kv_rank\":8,\"rope_dim\":2}},\"pattern\":[\"a\",\"a\"," \
    "\"p\",\"a\"],\"kv_from\":{\"1\":0,\"3\":2}}"
#define BOTH                                                                                                        \
    "{" BASE                                                                                                        \
    ",\"layers\":2,\"tied\":true,\"kinds\":{\"g\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"qk_norm\":true}," \
    "\"l\":{\"mixer\":\"mla\",\"heads\":4,\"kv_rank\":8,\"nope_dim\":3,\"rope_dim\":2}},\"pattern\":[\"g\",\"l\"]}"

#define HYBRID                                                                                                      \
    "{" BASE                                                                                                        \
    ",\"layers\":2,\"tied\":true,\"kinds\":{\"k\":{\"mixer\":\"kda\",\"heads\":2,\"head_dim\":8},\"l\":{\"mixer\":" \
    "\"mla\",\"heads\":4,\"kv_rank\":8,\"nope_dim\":3,\"rope_dim\":2}},\"pattern\":[\"k\",\"l\"]}"

/* The settings of a layer's mixer, in a model directory. */
typedef struct {
    ModelCfg cfg;
    Model m;
} Map;
static void map_open(Map *x, const char *dir) {
    Err e = {0};
    x->m = (Model){0};
    cr_assert(hf_config_read(dir, &x->cfg, &e) && model_map(&x->m, &x->cfg, &e), "%s", e.msg);
}
static void map_close(Map *x) {
    model_unmap(&x->m);
    model_cfg_free(&x->cfg);
}
/* Lanes that decide in layer l; 0: rows stay. */
static int lanes(const Map *x, int l) {
    const Layer *y = &x->m.layer[l];
    if (!y->owner || !y->rows.evicts) return 0;
    const bool latents = y->kind->mixer == &mla_mixer;
    if (latents) cr_expect(((const MlaCfg *)y->cfg)->delay == 16);
    if (!latents) cr_expect(((const DmcCfg *)y->cfg)->decide == DMC_ADAPTER);
    return y->rows.lanes;
}
static void zeros(const char *dir, int l, int lanes_, const char *part, int width) {
    Err e = {0};
    St st;
    char *name = xformat("model.layers.%d.self_attn.decide_proj.%s", l, part);
    cr_assert(st_open_dir(&st, dir, &e), "%s", e.msg);
    Tensor w = entry(&st, name);
    cr_assert_eq(tensor_count(w), (size_t)(lanes_ * width), "%s: %zu elements", name, tensor_count(w));
    for (size_t k = 0; k < tensor_count(w); k++) cr_expect_eq(R(w)[k], 0, "%s", name);
    free(w.p), free(name);
    st_close(&st);
}
/* Tensors and settings of both directories are the same. */
static void same_model(const char *src, const char *dst) {
    Err e = {0};
    St a, b;
    char msg[512];
    cr_assert(st_open_dir(&a, src, &e) && st_open_dir(&b, dst, &e), "%s", e.msg);
    cr_assert_eq(a.n, b.n, "%d tensors, %d came back", a.n, b.n);
    for (int t = 0; t < a.n; t++) {
        Tensor x = entry(&a, a.entry[t].name), y = entry(&b, a.entry[t].name);
        cr_expect(check_bytes(msg, a.entry[t].name, x.p, y.p, tensor_bytes(x)), "%s", msg);
        free(x.p), free(y.p);
    }
    st_close(&a), st_close(&b);
}

/* An adapter evicts nothing before it is trained: logits stay bit for bit, there and back; tensors that come back are
 * the source's. */
Test(convert_evict, lossless_and_back) {
    static const struct {
        const char *json, *words;
        int lanes[4]; /* that decide, of each layer */
        const char *back;
    } cases[] = {
        {DEEPSEEK(""), "", {1, 1}, "mla"},
        {DEEPSEEK(",\"a_bias\":true,\"o_bias\":true"), "keep=[0]", {0, 1}, "mla"},
        {DEEPSEEK(",\"rope\":{\"interleaved\":true}"), "", {1, 1}, "mla"}, /* read as deepseek_v3 */
        {READ_LATENTS, "decide=adapter", {1, 0, 1, 0}, "mla"},
        {BOTH, "", {2, 1}, NULL},
        {HYBRID, "", {0, 1}, "mla"},
        {YOCO, "", {2, 2, 0, 0}, "gqa"},
        {YOCO, "keep=[0]", {0, 2, 0, 0}, "gqa"},
        {SHARED, "decide=adapter", {2, 0, 2, 0}, "gqa"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *name = xformat("plain%zu", i), *to = xformat("dms%zu", i), *from = xformat("back%zu", i),
             *src = model_dir(name, cases[i].json, F32), *dms = check_path(to), *dst = check_path(from), *recipe;
        Map x;
        size_t n;
        Done r = run(src, dms, "dms", cases[i].words, NULL);
        cr_assert(r.ok && r.r.exact && r.r.check.logit_diff == 0, "%zu: %s", i, r.e.msg);
        cr_expect(strstr(r.r.rule, "decide=adapter") && strstr(r.r.note, "projections that decide"), "%s", r.r.rule);
        map_open(&x, dms);
        for (int l = 0; l < x.m.L; l++) {
            cr_expect_eq(lanes(&x, l), cases[i].lanes[l], "%zu, layer %d: %d lanes", i, l, lanes(&x, l));
            if (lanes(&x, l)) zeros(dms, l, lanes(&x, l), "weight", 16), zeros(dms, l, lanes(&x, l), "bias", 1);
        }
        map_close(&x);
        char *yaml = xformat("%s/train.yaml", dms);
        recipe = check_read(yaml, &n);
        cr_expect(strstr(recipe, "train_only: ['*decide_proj*']") && strstr(recipe, "teacher:") &&
                      !strstr(recipe, "phase"),
                  "%s", recipe);
        if (cases[i].back) {
            r = run(dms, dst, cases[i].back, "", NULL);
            cr_assert(r.ok && !r.r.exact && r.r.check.logit_diff == 0 && strstr(r.r.note, "evicted stay"), "%zu: %s %s",
                      i, r.e.msg, r.r.note);
            same_model(src, dst);
        }
        free(name), free(to), free(from), free(src), free(dms), free(dst), free(yaml), free(recipe);
    }
}
/* Latents that are projections of the input become heads, without what decided. */
Test(convert_evict, latents_become_heads) {
    char *src = model_dir("staged", LATENT("\"latent_norm\":false,\"nope_dim\":2,\"rope_dim\":2"), REAL),
         *dms = check_path("staged dms"), *dst = check_path("staged gqa");
    Map x;
    Done r = run(src, dms, "dms", "", NULL);
    cr_assert(r.ok, "%s", r.e.msg);
    r = run(dms, dst, "gqa", "", NULL);
    cr_assert(r.ok && !r.r.exact && strstr(r.r.note, "evicted stay"), "%s %s", r.e.msg, r.r.note);
    cr_expect(r.r.check.logit_diff < (REAL == F64 ? 1e-12 : 1e-4) * (1 + r.r.check.logit_max), "%g",
              r.r.check.logit_diff);
    map_open(&x, dst);
    cr_expect(!strcmp(x.m.layer[0].kind->mixer->name, "gqa") && !x.m.layer[0].rows.evicts);
    map_close(&x);
    free(src), free(dms), free(dst);
}
/* A gain that is folded out of a norm goes into what reads it, the decision too. */
Test(convert_evict, norms_fold_into_what_decides) {
    char *src = model_dir("decides", LATENT("\"nope_dim\":3,\"rope_dim\":2,\"evict\":true"), F32),
         *dst = check_path("folded");
    Err e = {0};
    St st;
    Done r = run(src, dst, "same", "fold_norms=true", NULL);
    cr_assert(r.ok, "%s", r.e.msg);
    cr_assert(st_open_dir(&st, src, &e), "%s", e.msg);
    Tensor w = entry(&st, "model.layers.0.self_attn.decide_proj.weight"),
           g = entry(&st, "model.layers.0.input_layernorm.weight");
    st_close(&st);
    cr_assert(st_open_dir(&st, dst, &e), "%s", e.msg);
    Tensor folded = entry(&st, "model.layers.0.self_attn.decide_proj.weight");
    double moved = 0;
    for (int i = 0; i < 16; i++) {
        cr_expect_float_eq(R(folded)[i], R(w)[i] * R(g)[i], 1e-6, "element %d", i);
        moved += fabs((double)(R(folded)[i] - R(w)[i]));
    }
    cr_assert(moved > 1e-3, "the gains were ones, or what decides zeros");
    free(w.p), free(g.p), free(folded.p), free(src), free(dst);
    st_close(&st);
}

#define EVICTS ",\"evict\":true"
static const struct {
    const char *json, *to, *words, *part;
} refused[] = {
    {DEEPSEEK(""), "dms", "decide=lane", "decide: layer 0 has latents, one row for all heads"},
    {YOCO, "dms", "decide=lane", "decide: layer 1 publishes its rows, without queries"},
    {DEEPSEEK(",\"window\":5"), "dms", "",
     "layer 0 has a window of 5, which dms cannot hold; keep=[0] leaves it as it is"},
    {DEEPSEEK(EVICTS), "dms", "", "layer 0 already evicts its latents"},
    {DEEPSEEK(""), "dms", "governs=itself", "governs: latents (layer 0) are decided about by the next token"},
    {YOCO, "dmc", "governs=itself", "governs: a merge is with the previous row"},
    {YOCO, "dms", "window=4", "window: evicted rows have no mean"},
    {DEEPSEEK(""), "dms", "gain=1", "nothing would be evicted"},
    {DEEPSEEK(""), "dms", "keep=[0,1]", "no layer of mixer gqa or mla is left to convert"},
    {YOCO, "dms", "keep=[0,1]", "all layers that are left to convert read another's rows"},
    {DEEPSEEK(""), "dmc", "", "no layer of mixer gqa is left to convert (layer 0 is mla)"},
    {DEEPSEEK(EVICTS), "gqa", "", "norms its latents"},
    {READ_LATENTS, "gqa", "", "norms its latents"},
};
Test(convert_evict, refused) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *above = check_path("above"), *name = xformat("above/src%zu", i), *dst = check_path("above/dst");
        mkdir(above, 0700);
        char *src = model_dir(name, refused[i].json, REAL);
        Done r = run(src, dst, refused[i].to, refused[i].words, NULL);
        cr_expect(!r.ok, "%s", refused[i].part);
        dir_refused(refused[i].part, NULL, &r.e, refused[i].part);
        cr_expect_eq(check_entries(above), (int)i + 1, "%s: something was left", refused[i].part);
        free(above), free(name), free(src), free(dst);
    }
}
