/* hf_dms.c: model directories with delayed eviction (DMS): what config.json says of it, and adapters in the form of our
 * own. Three forms are read, as the layers of the mixer dmc:
 *
 *   form                        its settings              what decides, about which row
 *   NVIDIA's channel            dms_* of config.json      a channel of the normed queries, about the row before
 *   NVIDIA's adapter            also dms_separate_alpha   a projection of the normed stream, about the row before
 *   FastDMS (llama, or any      dms_* of config.json, or  a channel of the queries, about the token's own row; the
 *   with dms_metadata.json)     dms_metadata.json         rotation refills the channel
 *
 * An adapter has a norm of its own, y = W (x rstd n), where ours reads the layer's norm, x rstd a. With the same eps,
 * W' = W n / a by column is the same function, so reading gives that. `dms_alpha_per: layer` is head 0's row for all.
 * Sources: NVIDIA/Model-Optimizer experimental/dms (core.py, models/qwen3: its configuration, modeling and train.py);
 * shisa-ai/FastDMS fastdms/engine/dms.py, models/llama.py and layers/compact_attention.py. */
#include "layers/dmc/dmc.h"
#include "hf_file.h"

#define AT(member) offsetof(HfShape, dms.member)
/* The classes' defaults but for the window, which differs between them. */
static const HfKey dms_keys[] = {{"dms_window_size", HF_WHOLE, AT(delay), 1, HF_NEEDED, NULL},
                                 {"dms_alpha_scale", HF_REAL, AT(gain), 1, 100, NULL},
                                 {"dms_initial_alpha_offset", HF_REAL, AT(offset), 0, 5, "dms_alpha_offset"},
                                 {"dms_tau", HF_REAL, AT(temperature), 1, 0.1, NULL},
                                 {"dms_separate_alpha", HF_FLAG, AT(adapter), 0, 0, NULL},
                                 {0}};
#undef AT
static const HfMust dms_musts[] = {{"dms_disable_eviction", "false"}, {0}};
/* dms_metadata.json: our name, and the spellings that FastDMS reads, the first that is there. */
static const char *const dms_spellings[][4] = {{"dms_window_size", "window_size", "dms_window_size", NULL},
                                               {"dms_alpha_scale", "alpha_scale", "dms_alpha_scale", NULL},
                                               {"dms_initial_alpha_offset", "alpha_offset", "dms_alpha_offset",
                                                "dms_initial_alpha_offset"}};

static bool dms_given(const json_t *j) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)j, key, v) if (!strncmp(key, "dms_", 4) && !json_is_null(v)) return true;
    return false;
}
/* Put the settings of dms_metadata.json among those of config.json, which must not say something else. */
static bool dms_metadata(const HfFile *f, const char *path, json_t *into) {
    json_t *j = json_read(path, f->e);
    const json_t *own = json_object_get(j, "config") ? json_object_get(j, "config") : j;
    static const char *const other[] = {"sidecar", "decision_source"};
    bool ok = json_is_object(own) || (j && err_input(f->e, "%s: expected an object", path));
    for (size_t i = 0; ok && i < sizeof other / sizeof *other; i++)
        if (hf_given(j, other[i]) || hf_given(own, other[i]))
            ok = err_input(f->e, "%s: \"%s\" is not supported: of this file only a channel of the queries decides",
                           path, other[i]);
    for (size_t i = 0; ok && i < sizeof dms_spellings / sizeof *dms_spellings; i++) {
        const json_t *v = NULL, *old = json_object_get(into, *dms_spellings[i]);
        for (int k = 1; k < 4 && dms_spellings[i][k] && !v; k++) v = json_object_get(own, dms_spellings[i][k]);
        if (!v || json_is_null(v)) continue;
        if (old && !(json_is_number(v) && json_number_value(v) == json_number_value(old)))
            ok = err_input(f->e, "%s: \"%s\" differs from that in %s; correct one of them", f->path, *dms_spellings[i],
                           path);
        json_object_set(into, *dms_spellings[i], (json_t *)v);
    }
    json_decref(j);
    return ok;
}
static bool dms_values(const HfFile *f, HfShape *s, bool own) {
    HfDms *d = &s->dms;
    const char *per = hf_given(f->j, "dms_alpha_per") ? hf_found(json_object_get(f->j, "dms_alpha_per")) : "head";
    if (!hf_musts_met(f, dms_musts) || !hf_keys_read(f, dms_keys, s)) return false;
    if (strcmp(per, "head") && strcmp(per, "layer"))
        return err_input(f->e, "%s: \"dms_alpha_per\": expected head or layer, found %.40s", f->path, per);
    if (!strcmp(per, "layer") && !d->adapter)
        return err_input(f->e, "%s: \"dms_alpha_per\": layer is supported with \"dms_separate_alpha\": true alone",
                         f->path);
    if (own && d->adapter)
        return err_input(f->e, "%s: \"dms_separate_alpha\": true is not supported of model_type llama or with %s",
                         f->path, HF_DMS_METADATA);
    if (s->window)
        return err_input(f->e, "%s: \"dms_window_size\" and a sliding window: layers with both are not supported",
                         f->path);
    d->on = true, d->own = own;
    return true;
}
bool hf_dms_read(const HfFile *f, bool llama, HfShape *s) {
    char *dir = xformat("%.*s", (int)(strrchr(f->path, '/') - f->path), f->path),
         *path = xformat("%s/%s", dir, HF_DMS_METADATA);
    const bool there = file_exists(dir, HF_DMS_METADATA, f->e);
    json_t *j = json_copy((json_t *)f->j);
    const HfFile all = {dms_given(f->j) ? f->path : path, j, f->e};
    bool ok = there ? dms_metadata(f, path, j) : !f->e->status;
    if (ok && (there || dms_given(j))) ok = dms_values(&all, s, there || llama);
    json_decref(j);
    free(path);
    free(dir);
    return ok;
}
/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* The tensor of that name, in double: (rows, cols), or (cols) with rows 0. NULL: refused. */
static double *dms_tensor(const St *st, const char *name, int rows, int cols, Err *e) {
    const StEntry *s = st_find(st, name);
    if (!s) {
        err_input(e, "%s: tensor \"%s\" is missing, but config.json says \"dms_separate_alpha\": true", st->path, name);
        return NULL;
    }
    double *v = xcalloc((size_t)(rows ? rows : 1) * (size_t)cols, sizeof *v);
    if (st_read(st, s, rows ? TENSOR(v, F64, rows, cols) : TENSOR(v, F64, cols), e)) return v;
    free(v);
    return NULL;
}
/* W n / a in f32; `row`: the row of W that all heads have, -1: each its own. */
static float *dms_folded(const St *st, const char *name, const double *w, const double *n, const double *a, int G,
                         int d, int row, Err *e) {
    float *out = xcalloc((size_t)G * (size_t)d, sizeof *out);
    for (int g = 0; g < G; g++)
        for (int c = 0; c < d; c++) {
            const double x = w[(size_t)(row < 0 ? g : row) * (size_t)d + (size_t)c] * n[c];
            const float y = x == 0 ? 0 : (float)(x / a[c]);
            out[(size_t)g * (size_t)d + (size_t)c] = y;
            if (isfinite(y)) continue;
            err_input(e,
                      "%s: tensor \"%s\": element (%d,%d) times its norm is %g, but the layer's norm multiplies by %g "
                      "there; such an adapter is not supported",
                      st->path, name, g, c, x, a[c]);
            free(out);
            return NULL;
        }
    return out;
}
typedef struct {
    int G, d, row;
    bool bias;
} Adapter;
static bool dms_layer(St *st, int l, const Adapter *k, Err *e) {
    char *at = xformat("model.layers.%d.", l), *w = xformat("%sself_attn.dms_proj_alpha.weight", at),
         *n = xformat("%sself_attn.dms_proj_alpha_norm.weight", at),
         *b = xformat("%sself_attn.dms_proj_alpha.bias", at), *a = xformat("%sinput_layernorm.weight", at),
         *to = xformat("%sself_attn.decide_proj.weight", at), *tob = xformat("%sself_attn.decide_proj.bias", at);
    double *vw = dms_tensor(st, w, k->G, k->d, e), *vn = vw ? dms_tensor(st, n, 0, k->d, e) : NULL,
           *va = vn ? dms_tensor(st, a, 0, k->d, e) : NULL, *vb = va && k->bias ? dms_tensor(st, b, 0, k->G, e) : NULL;
    float *out = va && (vb || !k->bias) ? dms_folded(st, w, vw, vn, va, k->G, k->d, k->row, e) : NULL;
    if (out) {
        float *bias = xcalloc((size_t)k->G, sizeof *bias);
        for (int g = 0; g < k->G && vb; g++) bias[g] = (float)vb[k->row < 0 ? g : k->row];
        st_replace(st, w, to, TENSOR(out, F32, k->G, k->d));
        st_replace(st, n, tob, TENSOR(bias, F32, k->G));
        if (k->bias) st_replace(st, b, NULL, ABSENT);
    }
    free(vw), free(vn), free(va), free(vb);
    free(at), free(w), free(n), free(b), free(a), free(to), free(tob);
    return out != NULL;
}
bool hf_dms_adapted(const json_t *config) { return json_is_true(json_object_get(config, "dms_separate_alpha")); }
bool hf_dms_open(St *st, const HfFile *f, const ModelCfg *c) {
    const DmcCfg *k = c->kind[c->pattern[0]].cfg;
    const char *per = json_string_value(json_object_get(f->j, "dms_alpha_per"));
    const Adapter a = {k->g.kv_heads, c->d_model, per && !strcmp(per, "layer") ? 0 : -1,
                       json_is_true(json_object_get(f->j, "attention_bias"))};
    bool ok = true;
    for (int l = 0; ok && l < c->layers; l++) ok = dms_layer(st, l, &a, f->e);
    return ok;
}
