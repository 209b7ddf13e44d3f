/* peft.c: reads adapters, and adds them to the tensors that are read from their base. */
#include "peft.h"
#include "hf_file.h"
#include <sys/stat.h>

static const char BEGIN[] = "base_model.model.", END_A[] = ".lora_A.weight", END_B[] = ".lora_B.weight";

/* A path that cannot be examined is not an adapter here; opening it as a model then reports the error. */
bool peft_is(const char *path) {
    Err ignored = {0};
    return file_exists(path, "adapter_config.json", &ignored) && !file_exists(path, "config.json", &ignored) &&
           !ignored.status;
}
const char *peft_path(const char *path) { return peft_is(path) ? path : NULL; }

/* ---- adapter_config.json ----------------------------------------------------------------------------------------- */

static json_t *peft_settings_read(const char *dir, char **path, Err *e) {
    *path = xformat("%s/adapter_config.json", dir);
    return json_read(*path, e);
}

char *peft_base(const char *dir, Err *e) {
    char *path, *base = NULL;
    json_t *j = peft_settings_read(dir, &path, e);
    const char *name = json_string_value(json_object_get(j, "base_model_name_or_path"));
    struct stat st;
    if (j && !name)
        err_input(e, "%.100s: \"base_model_name_or_path\" names no model; give the base as MODEL with --adapter", path);
    else if (j && (stat(name, &st) || !S_ISDIR(st.st_mode)))
        err_input(e,
                  "%.100s: base_model_name_or_path, %.80s, is no directory here; give the base as MODEL with --adapter",
                  path, name);
    else if (j && peft_is(name))
        err_input(
            e, "%.100s: base_model_name_or_path, %.80s, is an adapter itself; merge that one first (convert --to same)",
            path, name);
    else if (j)
        base = xstrdup(name);
    json_decref(j);
    free(path);
    return base;
}

static bool peft_empty(const json_t *x) {
    return !x || json_is_null(x) || json_is_false(x) || (json_is_array(x) && !json_array_size(x)) ||
           (json_is_object(x) && !json_object_size(x)) || (json_is_string(x) && !*json_string_value(x));
}

/* Keys that do not affect what is computed from the tensors. */
static bool peft_harmless(const char *key) {
    static const char *const keys[] = {"auto_mapping",
                                       "base_model_name_or_path",
                                       "bias",
                                       "corda_config",
                                       "ensure_weight_tying",
                                       "eva_config",
                                       "exclude_modules",
                                       "fan_in_fan_out",
                                       "inference_mode",
                                       "init_lora_weights",
                                       "layers_pattern",
                                       "layers_to_transform",
                                       "loftq_config",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "megatron_config",
                                       "megatron_core",
                                       "peft_type",
                                       "peft_version",
                                       "qalora_group_size",
                                       "r",
                                       "rank_pattern",
                                       "alpha_pattern",
                                       "revision",
                                       "runtime_config",
                                       "target_modules",
                                       "task_type",
                                       "use_rslora"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(key, keys[i])) return true;
    return false;
}
static bool word_is(const json_t *j, const char *key, const char *want, const char *path, Err *e) {
    const json_t *x = json_object_get(j, key);
    const char *s = json_string_value(x);
    if (peft_empty(x) || (s && !strcmp(s, want))) return true;
    return err_input(e, "%.150s: \"%s\": expected \"%s\", found %.40s", path, key, want, hf_found(x));
}

static bool peft_settings_check(const json_t *j, const char *path, Err *e) {
    const char *key, *init = json_string_value(json_object_get(j, "init_lora_weights"));
    const json_t *x;
    /* Initialisations that keep the base's matrices. Others change them; peft writes true after it has changed them
     * back. */
    static const char *const same[] = {"gaussian", "eva", "orthogonal"};
    bool known = !init;
    if (!json_object_get(j, "peft_type")) return err_input(e, "%.150s: \"peft_type\" is missing", path);
    if (!word_is(j, "peft_type", "LORA", path, e) || !word_is(j, "task_type", "CAUSAL_LM", path, e) ||
        !word_is(j, "bias", "none", path, e))
        return false;
    for (size_t i = 0; init && i < sizeof same / sizeof *same; i++) known |= !strcmp(init, same[i]);
    if (!known)
        return err_input(e,
                         "%.150s: \"init_lora_weights\": %.40s changes the base's matrices; save the adapter with "
                         "path_initial_model_for_weight_conversion",
                         path, init);
    json_object_foreach((json_t *)j, key, x) {
        if (peft_harmless(key) || peft_empty(x)) continue;
        return err_input(e,
                         "%.150s: \"%.60s\" is not supported; only plain LoRA matrices are, with use_rslora, "
                         "rank_pattern and alpha_pattern",
                         path, key);
    }
    return true;
}

/* The value of the first key in a pattern that is the module's name, or its end after a dot; dflt: none matches. */
static bool peft_pattern(const json_t *j, const char *key, const char *module, const char *path, double dflt,
                         double *out, Err *e) {
    const json_t *map = json_object_get(j, key), *x;
    const char *name;
    *out = dflt;
    if (peft_empty(map)) return true;
    if (!json_is_object(map)) return err_input(e, "%.150s: \"%s\": expected an object", path, key);
    json_object_foreach((json_t *)map, name, x) {
        size_t n = strlen(name), m = strlen(module);
        for (const char *c = name; *c; c++)
            if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.", *c))
                return err_input(e,
                                 "%.120s: \"%s\": %.60s is a regular expression; only names of modules are supported",
                                 path, key, name);
        if (n > m || strcmp(module + m - n, name) || (n < m && module[m - n - 1] != '.')) continue;
        *out = json_number_value(x);
        return (json_is_number(x) && isfinite(*out) && *out > 0) ||
               err_input(e, "%.150s: \"%s\": %.60s: expected a number above 0", path, key, name);
    }
    return true;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static bool peft_ends(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

static bool all_finite(const St *st, const StEntry *s, Err *e) {
    Tensor t = TENSOR(NULL, F32, (int)s->shape[0], (int)s->shape[1]);
    t.p = xcalloc(tensor_count(t), sizeof(float));
    bool ok = st_read(st, s, t, e);
    for (size_t i = 0; ok && i < tensor_count(t); i++)
        if (!isfinite(((float *)t.p)[i]))
            ok = err_input(e, "%s: tensor \"%.120s\": number %zu is not finite", st->path, s->name, i);
    free(t.p);
    return ok;
}

static bool part_read(Peft *p, const StEntry *a, const json_t *j, const char *path, double r, double alpha, Err *e) {
    size_t n = strlen(a->name) - strlen(END_A);
    char *partner = xformat("%.*s%s", (int)n, a->name, END_B);
    const StEntry *b = st_find(&p->st, partner);
    PeftPart *x = &p->part[p->n];
    *x = (PeftPart){.a = a, .b = b};
    bool ok = b || err_input(e, "%.120s: tensor \"%.120s\" is missing", p->st.path, partner);
    free(partner);
    if (!ok) return false;
    for (int i = 0; i < 2; i++) {
        const StEntry *s = i ? b : a;
        if (s->rank != 2 || !s->shape[0] || !s->shape[1] || s->shape[0] > 1 << 30 || s->shape[1] > 1 << 30)
            return err_input(e, "%.120s: tensor \"%.120s\": expected a matrix", p->st.path, s->name);
    }
    if (b->shape[1] != a->shape[0])
        return err_input(e, "%.120s: tensor \"%.120s\": expected %llu columns, as many as lora_A has rows, found %llu",
                         p->st.path, b->name, (unsigned long long)a->shape[0], (unsigned long long)b->shape[1]);
    p->n++;
    x->module = xformat("%.*s", (int)(n - strlen(BEGIN)), a->name + strlen(BEGIN));
    x->r = (int)a->shape[0], x->in = (int)a->shape[1], x->out = (int)b->shape[0];
    if (!peft_pattern(j, "rank_pattern", x->module, path, r, &r, e) ||
        !peft_pattern(j, "alpha_pattern", x->module, path, alpha, &alpha, e))
        return false;
    if (r != x->r)
        return err_input(e, "%.100s: tensor \"%.100s\": expected %g rows, the r of adapter_config.json, found %d",
                         p->st.path, a->name, r, x->r);
    x->scale = alpha / (json_is_true(json_object_get(j, "use_rslora")) ? sqrt(r) : r);
    return all_finite(&p->st, a, e) && all_finite(&p->st, b, e);
}

static bool parts_read(Peft *p, const json_t *j, const char *path, Err *e) {
    const json_t *r = json_object_get(j, "r"), *alpha = json_object_get(j, "lora_alpha");
    if (!json_is_integer(r) || json_integer_value(r) < 1 || json_integer_value(r) > 65536)
        return err_input(e, "%.150s: \"r\": expected a whole number from 1 to 65536", path);
    if (!json_is_number(alpha) || !(json_number_value(alpha) > 0) || !isfinite(json_number_value(alpha)))
        return err_input(e, "%.150s: \"lora_alpha\": expected a number above 0", path);
    p->part = xcalloc((size_t)p->st.n + 1, sizeof *p->part);
    for (int i = 0; i < p->st.n; i++) {
        const StEntry *s = &p->st.entry[i];
        bool a = peft_ends(s->name, END_A);
        if (strncmp(s->name, BEGIN, strlen(BEGIN)) || (!a && !peft_ends(s->name, END_B)))
            return err_input(e, "%.120s: tensor \"%.120s\": expected names %sMODULE%s and ...%s alone", p->st.path,
                             s->name, BEGIN, END_A, END_B);
        if (a && !part_read(p, s, j, path, (double)json_integer_value(r), json_number_value(alpha), e)) return false;
    }
    if (!p->n) return err_input(e, "%.150s: no adapter in it: no tensor is called ...%s", p->st.path, END_A);
    if (2 * p->n == p->st.n) return true;
    for (int i = 0; i < p->st.n; i++) { /* a B without its A */
        const StEntry *s = &p->st.entry[i];
        bool used = false;
        for (int k = 0; k < p->n; k++) used |= p->part[k].a == s || p->part[k].b == s;
        if (!used) return err_input(e, "%.150s: tensor \"%.120s\" has no lora_A", p->st.path, s->name);
    }
    CHECK(false, "%d parts of %d tensors", p->n, p->st.n);
}

bool peft_open(Peft *p, const char *dir, Err *e) {
    char *path, *file = xformat("%s/adapter_model.safetensors", dir);
    *p = (Peft){.dir = xstrdup(dir)};
    if (!file_exists(dir, "adapter_config.json", e)) {
        free(file);
        free(p->dir);
        return !e->status &&
               err_input(e,
                         "adapter %.180s: no adapter_config.json in it; give a directory as peft's save_pretrained "
                         "writes it",
                         dir);
    }
    json_t *j = peft_settings_read(dir, &path, e);
    bool ok = j && peft_settings_check(j, path, e);
    Err ignored = {0};
    if (ok && !file_exists(dir, "adapter_model.safetensors", e))
        ok = !e->status &&
             err_input(e, "adapter %.180s: no adapter_model.safetensors in it%s", dir,
                       file_exists(dir, "adapter_model.bin", &ignored) ? "; save adapter_model.bin again as safetensors"
                                                                       : "");
    ok = ok && st_open(&p->st, file, e) && parts_read(p, j, path, e);
    json_decref(j);
    free(path);
    free(file);
    if (!ok) peft_close(p);
    return ok;
}

void peft_close(Peft *p) {
    for (int i = 0; i < p->n; i++) free(p->part[i].module);
    free(p->part);
    if (p->st.path) st_close(&p->st);
    free(p->dir);
    *p = (Peft){0};
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

static const PeftPart *peft_part_of(const Peft *p, const char *name) {
    for (int i = 0; i < p->n; i++)
        if (p->part[i].of && !strcmp(p->part[i].of->name, name)) return &p->part[i];
    return NULL;
}
static bool peft_has(const StPatch *patch, const StEntry *s) { return peft_part_of(patch->ctx, s->name) != NULL; }

/* Read all of A or B into memory. */
static Tensor peft_whole(const Peft *p, const StEntry *s) {
    Tensor t = TENSOR(NULL, REAL, (int)s->shape[0], (int)s->shape[1]);
    Err e = {0};
    t.p = xcalloc(tensor_count(t), sizeof(real));
    CHECK(st_read(&p->st, s, t, &e), "%s", e.msg); /* it was read successfully before */
    return t;
}

static void peft_add(const StPatch *patch, const StEntry *s, size_t row, Tensor t, StPlace place) {
    const Peft *p = patch->ctx;
    const PeftPart *x = peft_part_of(p, s->name);
    Tensor a = peft_whole(p, x->a), b = peft_whole(p, x->b);
    const int n = t.n[0], in = x->in, r = x->r;
    CHECK(t.rank == 2 && t.n[1] == in, "%s: %d columns", s->name, t.n[1]);
#pragma omp parallel
    {
        real *sum = xcalloc((size_t)in, sizeof *sum);
#pragma omp for
        for (int i = 0; i < n; i++) {
            const real *bi = R(b) + (row + st_row(place, (size_t)i)) * (size_t)r;
            memset(sum, 0, (size_t)in * sizeof *sum);
            for (int k = 0; k < r; k++)
                for (int c = 0; c < in; c++) sum[c] += bi[k] * R(a)[(size_t)k * (size_t)in + (size_t)c];
            for (int c = 0; c < in; c++) {
                size_t at = (size_t)i * (size_t)in + (size_t)c;
                if (t.dtype == F32)
                    ((float *)t.p)[at] += (float)(x->scale * (double)sum[c]);
                else
                    ((double *)t.p)[at] += x->scale * (double)sum[c];
            }
        }
        free(sum);
    }
    free(a.p);
    free(b.p);
}

bool peft_attach(Peft *p, St *base, bool transposed, Err *e) {
    for (int i = 0; i < p->n; i++) {
        PeftPart *x = &p->part[i];
        char *name = xformat("%s.weight", x->module);
        /* gpt2's own files omit the first word */
        const char *dot = strchr(name, '.');
        x->of = st_find(base, name);
        if (!x->of) x->of = st_find(base, dot + 1);
        bool turned = transposed && strcmp(x->module, "lm_head");
        const uint64_t out = (uint64_t)x->out, in = (uint64_t)x->in;
        bool ok = x->of || err_input(e, "adapter %.100s: module %.100s is not in %.80s; is this the adapter's base?",
                                     p->dir, x->module, base->path);
        if (ok && (x->of->rank != 2 || x->of->shape[turned] != out || x->of->shape[!turned] != in))
            ok = err_input(e, "adapter %.100s: module %.100s: (%d,%d), which the matrix in %.80s is not", p->dir,
                           x->module, x->out, x->in, base->path);
        free(name);
        if (!ok) return false;
    }
    p->patch = (StPatch){peft_has, peft_add, p};
    base->patch = &p->patch;
    return true;
}

bool peft_take(Peft *p, const ModelCfg *cfg, const char *path, Tensor a, Tensor b, double scale, Err *e) {
    char name[192];
    PeftPart *x = NULL;
    Tensor w = TENSOR(NULL, REAL, b.n[0], a.n[1]);
    StPlace place = hf_place_written(cfg, path, w, name);
    for (int i = 0; i < p->n; i++) {
        size_t n = strlen(p->part[i].module);
        if (!strncmp(name, p->part[i].module, n) && !strcmp(name + n, ".weight")) x = &p->part[i];
    }
    if (!x) return false;
    if (x->in != a.n[1] || x->out != (place.all ? place.all : b.n[0] * place.parts))
        return err_input(e, "adapter %.100s: module %.100s: (%d,%d), which the model's matrix is not", p->dir,
                         x->module, x->out, x->in);
    const int r = a.n[0], blocks = x->r == r * place.parts ? place.parts : 1, from = blocks > 1 ? place.part * r : 0;
    if (x->r != r * blocks)
        return err_input(e, "lora.rank: %d, but module %.100s of adapter %.100s has %d; give lora.rank %d", r,
                         x->module, p->dir, x->r, x->r);
    Tensor fa = peft_whole(p, x->a), fb = peft_whole(p, x->b);
    bool ok = true;
    memcpy(a.p, R(fa) + (size_t)from * (size_t)x->in, tensor_bytes(a));
    for (int i = 0; i < b.n[0]; i++)
        for (int k = 0; k < x->r; k++) {
            real v = R(fb)[st_row(place, (size_t)i) * (size_t)x->r + (size_t)k];
            if (k >= from && k < from + r) R(b)
            [(size_t)i * (size_t)r + (size_t)(k - from)] = x->scale == scale ? v : (real)((double)v * x->scale / scale);
            else if (v != 0) ok = false;
        }
    free(fa.p);
    free(fb.p);
    x->taken = true;
    return ok || err_input(e, "lora.rank: %d, but module %.100s of adapter %.100s has %d for all its parts together", r,
                           x->module, p->dir, x->r);
}
