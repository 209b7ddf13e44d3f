/* test_hf_write.c: model directories as we write them: what is read and written again is the same model, as llama where
 * it is one. */
#include "tests/lib/dirs.h"
#include "layers/gqa/gqa.h"
#include "model/inside.h"
#include "model/files/safetensors.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* ---- writing -------------------------------------------------------------------------------------------------------
 */

static void see_weights(Fields *f, Tensor *t, const char *path, unsigned flags) {
    StList *l = f->ctx;
    (void)flags;
    st_add(l, path, *t, REAL);
}

/* What was read and written again is the same model: settings, ids, and every bit of every weight. */
Test(hf_write, there_and_back) {
    for (int i = 0; i < DIR_NAMES; i++) {
        char from[128], *to = check_path(dir_names[i]);
        snprintf(from, sizeof from, GOLDEN "%s", dir_names[i]);
        Dir a, b;
        HfIds ids, back;
        Err e = {0};
        dir_open(&a, from);
        cr_assert(hf_ids_read(from, &ids, &e), "%s", e.msg);
        cr_assert_eq(mkdir(to, 0700), 0);
        cr_assert(hf_save(to, &a.model, &ids, i % 2 ? BF16 : F32, &e), "%s", e.msg);
        cr_expect_eq(check_entries(to), 3);
        dir_open(&b, to);
        cr_assert(hf_ids_read(to, &back, &e), "%s", e.msg);
        cr_expect(!memcmp(&ids, &back, sizeof ids), "%s", dir_names[i]);
        char *one = dir_settings(from), *two = dir_settings(to);
        cr_expect_str_eq(one, two, "%s", dir_names[i]);
        StList w[2] = {{0}, {0}};
        for (int k = 0; k < 2; k++) {
            Model *m = k ? &b.model : &a.model;
            Fields f = {.see = see_weights, .ctx = &w[k]};
            model_fields(m, &m->w, &f);
        }
        cr_assert_eq(w[0].n, w[1].n);
        for (int k = 0; k < w[0].n; k++) {
            char msg[512];
            /* The bf16 golden holds numbers that BF16 holds; others are rounded by at most half a unit. */
            bool exact = i % 2 == 0 || !strcmp(dir_names[i], "bf16");
            if (exact)
                cr_assert(check_bytes(msg, w[0].item[k].name, w[1].item[k].t.p, w[0].item[k].t.p,
                                      tensor_bytes(w[0].item[k].t)),
                          "%s", msg);
            else
                cr_assert(check_tensor(msg, w[0].item[k].name, w[1].item[k].t, w[0].item[k].t, 0x1p-8), "%s", msg);
        }
        st_list_free(&w[0]), st_list_free(&w[1]);
        dir_close(&a), dir_close(&b);
        free(one), free(two), free(to);
    }
}

static const char base[] =
    "{\"d_model\":32,\"layers\":4,\"vocab\":48,\"max_positions\":128,\"norm_eps\":1e-5,\"init_std\":0.02,\"tied\":true,"
    "\"kinds\":{\"full\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":8,\"rope\":{\"type\":\"default\"}}}"
    ","
    "\"pattern\":[\"full\"],\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":48}]}";
static const struct {
    const char *key, *value, *type; /* the model type that it is written as */
} shapes[] = {
    {"layers", "4", "llama"},
    {"tied", "false", "llama"},
    {"init_std", "0", "llama"},
    {"kinds/full/kv_heads", "0", "llama"},
    {"kinds/full/head_dim", "0", "llama"},
    {"kinds/full/head_dim", "10", "llama"},
    {"kinds/full/window", "16", "mistral"},
    {"kinds/full/qk_norm", "true", "qwen3"},
    {"kinds/full/qkv_bias", "true", "qwen2"},
    {"kinds/full/o_bias", "true", "kvsmith"},
    {"kinds/full/rope", "{\"type\":\"none\"}", "smollm3"},
    {"kinds/full/rope/interleaved", "true", "kvsmith"},
    {"kinds/full/rope/inclusive", "true", "kvsmith"},
    {"embed_scale", "2", "granite"},
    {"kinds/full/rope", "{\"type\":\"linear\",\"factor\":2}", "llama"},
    {"kinds/full/rope", "{\"type\":\"dynamic\",\"factor\":2}", "llama"},
    {"kinds/full/rope", "{\"type\":\"dynamic\",\"factor\":2,\"length\":256}", "kvsmith"},
    {"kinds/full/rope", "{\"type\":\"yarn\",\"factor\":4,\"original_max_positions\":32}", "llama"},
    {"kinds/full/rope", "{\"type\":\"yarn\",\"factor\":2,\"original_max_positions\":32}", "kvsmith"},
    {"kinds/full/rope",
     "{\"type\":\"longrope\",\"short_factor\":[1,1,2,2],\"long_factor\":[1,1,2,2],\"original_max_positions\":32}",
     "llama"},
    {"kinds/full/rope",
     "{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,2,2],\"original_max_positions\":32}",
     "llama"},
    {"kinds/full/rope",
     "{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,2,2],\"original_max_positions\":32,"
     "\"length\":128}",
     "kvsmith"},
    {"kinds/local", "{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":8,\"window\":8}",
     "llama"}, /* declared, not used */
    {"kv_from", "{\"3\":1}", "kvsmith"},
    {"ffn", "[{\"kind\":\"swiglu\",\"hidden\":48},{\"kind\":\"swiglu\",\"hidden\":32}]", "kvsmith"},
};

/* Every shape of model keeps its settings through config.json, as llama where it is one. */
Test(hf_write, settings_there_and_back) {
    char *path = check_path("config.json");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        ModelCfg c;
        Err e = {0};
        const char *why = NULL;
        json_t *j = json_loads(base, 0, NULL);
        cr_assert(j);
        dir_edit(j, shapes[i].key, shapes[i].value);
        char *text = json_dumps(j, 0);
        cr_assert(model_cfg_from_json(&c, text, strlen(text), "test", &e), "%s", e.msg);
        cr_expect_eq(hf_is_llama(&c, &why), !strcmp(shapes[i].type, "llama"), "%s %s: %s", shapes[i].key,
                     shapes[i].value, why ? why : "is llama");
        cr_assert(hf_config_write(path, &c, &(HfIds){.bos = 5, .neos = 1, .eos = {6}}, F32, &e), "%s", e.msg);
        json_t *file = json_load_file(path, 0, NULL);
        cr_expect_str_eq(json_string_value(json_object_get(file, "model_type")), shapes[i].type);
        cr_expect_eq(json_integer_value(json_object_get(file, "bos_token_id")), 5);
        ModelCfg d;
        cr_assert(hf_config_read(check_dir(), &d, &e), "%s", e.msg);
        char *a = model_cfg_json(&c), *b = model_cfg_json(&d);
        /* A family resolves defaults and keeps no name of a kind: compare what the layers become. */
        if (!strcmp(shapes[i].type, "kvsmith")) {
            cr_expect_str_eq(a, b);
        } else {
            Model m = {0}, n = {0};
            cr_assert(model_map(&m, &c, &e) && model_map(&n, &d, &e), "%s", e.msg);
            cr_expect(c.tied == d.tied && c.norm_eps == d.norm_eps && c.vocab == d.vocab && m.L == n.L);
            const GqaCfg *x = m.layer[1].cfg, *y = n.layer[1].cfg;
            cr_expect(x->heads == y->heads && x->kv_heads == y->kv_heads && x->head_dim == y->head_dim &&
                      x->qkv_bias == y->qkv_bias && x->o_bias == y->o_bias && x->qk_norm == y->qk_norm &&
                      x->window == y->window);
            CHECK_BYTES(shapes[i].value, &y->table, &x->table, sizeof x->table);
            model_unmap(&m);
            model_unmap(&n);
        }
        free(a), free(b), free(text);
        model_cfg_free(&c);
        model_cfg_free(&d);
        json_decref(j);
        json_decref(file);
    }
    free(path);
}

/* tests/golden/export was trained and written here, and transformers loaded it and computed these logits: see
 * check_export.py. As long as we write it byte for byte again, transformers loads what we write. */
Test(hf_write, export) {
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
    const char *from = "tests/golden/export";
    Dir o;
    HfIds ids;
    Err e = {0};
    real *want;
    int n;
    dir_open(&o, from);
    real *got = dir_golden(&o, from, &want, &n);
    CHECK_CLOSE("export", got, want, (size_t)n, 1e-4);
    cr_assert(hf_ids_read(from, &ids, &e), "%s", e.msg);
    cr_assert(hf_save(check_dir(), &o.model, &ids, F32, &e), "%s", e.msg);
    for (int i = 0; i < 3; i++) {
        size_t na, nb;
        char *path = xformat("%s/%s", from, files[i]), *to = check_path(files[i]);
        char *a = check_read(path, &na), *b = check_read(to, &nb);
        cr_assert_eq(na, nb, "%s: %zu bytes, want %zu", files[i], nb, na);
        CHECK_BYTES(files[i], b, a, na);
        free(a), free(b), free(path), free(to);
    }
    free(got), free(want);
    dir_close(&o);
}

/* Shards and index as transformers writes them, byte for byte, and the same numbers whatever the size of a shard. */
Test(hf_write, shards) {
    static const char *const files[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                        "model.safetensors.index.json"};
    static const struct {
        size_t limit;
        int files; /* of tensors, beside config.json, generation_config.json and the index */
    } k[] = {{40000, 2}, {1, 21}, {8000, 12}, {5000, 14}, {74368, 1}, {74367, 2}, {0, 1}, {SIZE_MAX, 1}};
    Dir a, b;
    Err e = {0};
    dir_open(&a, GOLDEN "sharded");
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char name[16];
        snprintf(name, sizeof name, "shards-%zu", i);
        char *dir = check_path(name);
        cr_assert_eq(mkdir(dir, 0700), 0);
        cr_assert(hf_save_sharded(dir, &a.model, NULL, F32, k[i].limit, &e), "%s", e.msg);
        cr_expect_eq(check_entries(dir), k[i].files + (k[i].files > 1 ? 3 : 2), "%zu: %d", k[i].limit,
                     check_entries(dir));
        for (int f = 0; i == 0 && f < 3; f++) {
            size_t na, nb;
            char *from = xformat(GOLDEN "sharded/%s", files[f]), *to = xformat("%s/%s", dir, files[f]);
            char *x = check_read(from, &na), *y = check_read(to, &nb);
            cr_assert_eq(na, nb, "%s: %zu bytes, want %zu", files[f], nb, na);
            CHECK_BYTES(files[f], y, x, na);
            free(x), free(y), free(from), free(to);
        }
        dir_open(&b, dir);
        StList w[2] = {{0}, {0}};
        for (int m = 0; m < 2; m++) {
            Fields f = {.see = see_weights, .ctx = &w[m]};
            model_fields(m ? &b.model : &a.model, m ? &b.model.w : &a.model.w, &f);
        }
        for (int t = 0; t < w[0].n; t++)
            CHECK_BYTES(w[0].item[t].name, w[1].item[t].t.p, w[0].item[t].t.p, tensor_bytes(w[0].item[t].t));
        st_list_free(&w[0]), st_list_free(&w[1]);
        dir_close(&b);
        free(dir);
    }
    dir_close(&a);
}

Test(hf_write, shards_refused) {
    Dir a;
    Err e = {0};
    dir_open(&a, GOLDEN "llama3-untied");
    cr_assert(hf_save(check_dir(), &a.model, NULL, F32, &e), "%s", e.msg);
    cr_assert(!hf_save_sharded(check_dir(), &a.model, NULL, F32, 1000, &e));
    dir_refused("beside one file", check_dir(), &e, "remove it");
    dir_close(&a);
    StList l = {0};
    real x = 0;
    for (int i = 0; i <= SHARDS_MAX; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        st_add(&l, name, TENSOR(&x, REAL, 1), F32);
    }
    char *dir = check_path("many");
    cr_assert_eq(mkdir(dir, 0700), 0);
    e = (Err){0};
    cr_assert(!st_write_dir(dir, &l, 4, &e));
    dir_refused("too many", dir, &e, "at most 2048");
    cr_expect_eq(check_entries(dir), 0);
    cr_assert(st_write_dir(dir, &l, 8, &e), "%s", e.msg);
    cr_expect_eq(check_entries(dir), (SHARDS_MAX + 2) / 2 + 1);
    st_list_free(&l);
    free(dir);
}

/* A model that is no llama: kinds, window, shared K/V, qk_norm; weights and settings come back. */
Test(hf_write, own_format) {
    static const char mixed[] =
        "{\"d_model\":16,\"layers\":4,\"vocab\":20,\"max_positions\":64,\"norm_eps\":1e-5,\"init_std\":0.3,\"tied\":"
        "false,\"kinds\":{"
        "\"local\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"window\":8,\"qk_norm\":true},"
        "\"full\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"rope\":{\"type\":\"none\"},\"qkv_"
        "bias\":true}},"
        "\"pattern\":[\"local\",\"full\"],\"kv_from\":{\"3\":1},\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":24}]}";
    Dir a, b;
    Err e = {0};
    cr_assert(device_open(&a.dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&a.cfg, mixed, strlen(mixed), "mixed", &e), "%s", e.msg);
    cr_assert(model_open(&a.model, a.dev, &a.cfg, (ModelOpts){0}, &e), "%s", e.msg);
    model_init(&a.model, 3);
    cr_assert(hf_save(check_dir(), &a.model, NULL, F32, &e), "%s", e.msg);
    dir_open(&b, check_dir());
    int tok[24];
    for (int i = 0; i < 24; i++) tok[i] = i * 7 % 20;
    real *x = dir_logits(&a.model, tok, 2, 12), *y = dir_logits(&b.model, tok, 2, 12);
    CHECK_CLOSE("logits", y, x, 24 * 20, 0);
    cr_expect(fabs((double)x[0]) > 1e-3);
    free(x);
    free(y);
    dir_close(&a);
    dir_close(&b);
}

Test(hf_write, full_disk) {
    Dir o;
    Err e = {0};
    struct rlimit all, some;
    dir_open(&o, GOLDEN "llama3-untied");
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &all);
    for (int i = 0; i < 3; i++) {
        static const rlim_t room[] = {10, 2000, 50000};
        char name[8] = {(char)('a' + i), 0}, *dir = check_path(name);
        cr_assert_eq(mkdir(dir, 0700), 0);
        some = (struct rlimit){room[i], all.rlim_max};
        setrlimit(RLIMIT_FSIZE, &some);
        e = (Err){0};
        bool ok = hf_save(dir, &o.model, NULL, F32, &e);
        setrlimit(RLIMIT_FSIZE, &all);
        cr_assert(!ok && e.status == EXIT_RUNTIME && strstr(e.msg, dir), "%s", e.msg);
        cr_expect_eq(check_entries(dir), i ? 2 : 0, "%d",
                     check_entries(dir)); /* whole files or none, no temporary one */
        free(dir);
    }
    /* Shards: those that are whole stay, and without their index nobody takes them for a model. */
    char *dir = check_path("shards");
    cr_assert_eq(mkdir(dir, 0700), 0);
    some = (struct rlimit){20000, all.rlim_max}; /* the last shard is larger */
    setrlimit(RLIMIT_FSIZE, &some);
    e = (Err){0};
    bool ok = hf_save_sharded(dir, &o.model, NULL, F32, 30000, &e);
    setrlimit(RLIMIT_FSIZE, &all);
    cr_assert(!ok && e.status == EXIT_RUNTIME && strstr(e.msg, dir), "%s", e.msg);
    e = (Err){0};
    cr_expect(!file_exists(dir, "model.safetensors.index.json", &e) && !file_exists(dir, "model.safetensors", &e) &&
              !e.status);
    free(dir);
    char *gone = check_path("gone/dir");
    cr_assert(!hf_save(gone, &o.model, NULL, F32, &e));
    dir_refused("no directory", NULL, &e, "gone/dir");
    free(gone);
    dir_close(&o);
}
