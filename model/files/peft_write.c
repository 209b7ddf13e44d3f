/* peft_write.c: writes adapters in the format that `peft` reads. */
#include "hf_file.h"
#include "peft.h"

static const char *module_of(const char *name, char module[192]) { /* without ".weight" */
    size_t n = strlen(name);
    CHECK(n > 7 && n < 192 && !strcmp(name + n - 7, ".weight"), "%s", name);
    snprintf(module, 192, "%.*s", (int)(n - 7), name);
    return module;
}
static Tensor peft_write_matrix(const PeftField *f) { return TENSOR(NULL, REAL, f->b.n[0], f->a.n[1]); }

bool peft_can(const char *base, const ModelCfg *cfg, int n, const PeftField *field, char why[200]) {
    const HfType *type = hf_type_of(cfg);
    ModelCfg *own = xcalloc(1, sizeof *own);
    if (!type) {
        snprintf(why, 200, "no class of transformers holds this model");
        return free(own), false;
    }
    Err ignored = {0};
    bool read = hf_config_read(base, own, &ignored), same = read && hf_type_of(own) == type;
    if (read) model_cfg_free(own);
    free(own);
    for (int i = 0; same && i < n; i++)
        if (strstr(field[i].path, ".embed_")) {
            snprintf(why, 200, "peft has tables in another form: %.100s", field[i].path);
            return false;
        }
    for (int i = 0; same && i < n; i++)
        if (strstr(field[i].path, ".experts.")) {
            snprintf(why, 200, "transformers has all experts in one tensor, which peft does not adapt: %.90s",
                     field[i].path);
            return false;
        }
    HfFiles plan;
    char name[192];
    bool joined = false;
    hf_files_plan(&plan, cfg);
    for (int i = 0; same && i < n; i++)
        joined |= hf_files_name(&plan, field[i].path, peft_write_matrix(&field[i]), name).all != 0;
    hf_files_close(&plan);
    if (joined) {
        snprintf(why, 200, "%.120s holds parts of several sizes, which peft adapts as one", name);
        return false;
    }
    if (!same) snprintf(why, 200, "the model is not of the same type as %.100s", base);
    return same;
}

typedef struct {
    char name[192];
    StPlace place;
    Tensor a, b; /* own: memory of ours, for a joined matrix */
    bool own;
} Module;

/* Visits all matrices of the model, to find those without an adapter. */
typedef struct {
    const HfFiles *plan;
    int n;
    char (*name)[192];
} All;
static void see_matrix(Fields *f, Tensor *t, const char *path, unsigned flags) {
    All *x = f->ctx;
    char name[192];
    (void)flags;
    if (t->rank != 2) return;
    hf_files_name(x->plan, path, *t, name);
    x->name = xrealloc(x->name, (size_t)x->n + 1, sizeof *x->name);
    module_of(name, x->name[x->n++]);
}
static const char *peft_write_last(const char *module) {
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}
static const Module *peft_write_find(const Module *m, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(m[i].name, name)) return &m[i];
    return NULL;
}

/* The last words of the names if they match exactly these modules, else the full names. */
static json_t *peft_write_targets(const Module *m, int n, const HfFiles *plan, const ModelCfg *cfg) {
    All all = {.plan = plan};
    Err e = {0};
    bool words = true;
    CHECK(hf_walk(cfg, &(Fields){.see = see_matrix, .ctx = &all}, &e), "%s", e.msg);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < all.n; k++)
            words &=
                strcmp(peft_write_last(m[i].name), peft_write_last(all.name[k])) || peft_write_find(m, n, all.name[k]);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        const char *name = words ? peft_write_last(m[i].name) : m[i].name;
        bool there = false;
        for (size_t k = 0; k < json_array_size(list); k++)
            there |= !strcmp(json_string_value(json_array_get(list, k)), name);
        if (!there) json_array_append_new(list, json_string(name));
    }
    free(all.name);
    return list;
}

static json_t *peft_write_amount(double x) {
    return x == floor(x) && fabs(x) < 1e15 ? json_integer((json_int_t)x) : json_real(x);
}

static json_t *config_of(const Module *m, int n, const char *base, const ModelCfg *cfg, const HfFiles *plan, int r,
                         double alpha) {
    json_t *ranks = json_object(), *alphas = json_object();
    for (int i = 0; i < n; i++)
        if (m[i].own) {
            json_object_set_new(ranks, m[i].name, json_integer(r * m[i].place.parts));
            json_object_set_new(alphas, m[i].name, peft_write_amount(alpha * m[i].place.parts));
        }
    json_t *path = json_string(base); /* JSON cannot hold a path that is not UTF-8 */
    json_t *j =
        json_pack("{s:o, s:n, s:o, s:s, s:b, s:b, s:b, s:n, s:n, s:o, s:f, s:n, s:s, s:i, s:o, s:n, s:o, s:s, "
                  "s:b, s:b}",
                  "alpha_pattern", alphas, "auto_mapping", "base_model_name_or_path", path ? path : json_null(), "bias",
                  "none", "fan_in_fan_out", hf_type_of(cfg) == &hf_gpt2, "inference_mode", 1, "init_lora_weights", 1,
                  "layers_pattern", "layers_to_transform", "lora_alpha", peft_write_amount(alpha), "lora_dropout", 0.0,
                  "modules_to_save", "peft_type", "LORA", "r", r, "rank_pattern", ranks, "revision", "target_modules",
                  peft_write_targets(m, n, plan, cfg), "task_type", "CAUSAL_LM", "use_dora", 0, "use_rslora", 0);
    CHECK(j, "adapter_config.json");
    return j;
}

/* Put the part's A below the others', and its B into its own rows and columns. */
static void peft_write_join(Module *m, const PeftField *f) {
    const int parts = m->place.parts, r = f->a.n[0], in = f->a.n[1], R_ = r * parts, out = f->b.n[0] * parts;
    if (!m->own) {
        m->own = true;
        m->a = TENSOR(xcalloc((size_t)R_ * (size_t)in, sizeof(real)), REAL, R_, in);
        m->b = TENSOR(xcalloc((size_t)out * (size_t)R_, sizeof(real)), REAL, out, R_);
    }
    const size_t from = (size_t)(m->place.part * r), block = (size_t)m->place.block;
    memcpy(R(m->a) + from * (size_t)in, f->a.p, tensor_bytes(f->a));
    for (size_t i = 0; i < (size_t)f->b.n[0]; i++) {
        size_t k = (i / block * (size_t)parts + (size_t)m->place.part) * block + i % block;
        memcpy(R(m->b) + k * (size_t)R_ + from, R(f->b) + i * (size_t)r, (size_t)r * sizeof(real));
    }
}

bool peft_write(const char *dir, const char *base, const ModelCfg *cfg, int n, const PeftField *field, double alpha,
                Err *e) {
    HfFiles plan;
    Module *m = xcalloc((size_t)n + 1, sizeof *m);
    int count = 0;
    hf_files_plan(&plan, cfg);
    for (int i = 0; i < n; i++) {
        const PeftField *f = &field[i];
        char name[192], module[192];
        StPlace place = hf_files_name(&plan, f->path, peft_write_matrix(f), name);
        Module *x = (Module *)peft_write_find(m, count, module_of(name, module));
        if (!x) {
            x = &m[count++];
            *x = (Module){.place = place, .a = f->a, .b = f->b};
            memcpy(x->name, module, sizeof module);
        }
        x->place.part = place.part;
        if (place.parts > 1) peft_write_join(x, f);
    }
    StList list = {0};
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 2; k++) {
            char *name = xformat("base_model.model.%s.lora_%c.weight", m[i].name, "AB"[k]);
            st_add(&list, name, k ? m[i].b : m[i].a, F32);
            free(name);
        }
    char *config = xformat("%s/adapter_config.json", dir), *tensors = xformat("%s/adapter_model.safetensors", dir);
    json_t *j = config_of(m, count, base, cfg, &plan, n ? field[0].a.n[0] : 1, alpha);
    bool ok = json_write(config, j, e) && st_write(tensors, &list, NULL, e);
    json_decref(j);
    st_list_free(&list);
    for (int i = 0; i < count; i++)
        if (m[i].own) free(m[i].a.p), free(m[i].b.p);
    free(m);
    free(config);
    free(tensors);
    hf_files_close(&plan);
    return ok;
}
