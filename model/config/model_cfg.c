/* model_cfg.c: reads the settings of a model: its layers' kinds, their pattern, what shares K/V, feed-forward parts. */
#include "config_keys.h"
#include "hints.h"
#include <stdlib.h>

typedef bool (*Check)(void *cfg, Err *);
/* Read the settings of one mixer or feed-forward part and check them on a copy, because derived members are not the
 * user's. */
static void *model_settings_read(const ModelCfg *m, const Node *map, const char *path, const char *also,
                                 const Key *keys, size_t size, Check check, Err *e) {
    void *cfg = xcalloc(1, size), *copy = xcalloc(1, size);
    bool ok = schema_read(keys, map, path, also, cfg, e);
    if (ok && check) {
        Err why = {0};
        memcpy(copy, cfg, size);
        *(LayerCfg *)copy = layer_base(m, true);
        if (!check(copy, &why)) ok = node_refuse(map, path, e, "%s", why.msg);
    }
    free(copy);
    if (ok) return cfg;
    free(cfg);
    return NULL;
}

static int kind_find(const ModelCfg *m, const char *name) {
    for (int i = 0; i < m->nkinds; i++)
        if (!strcmp(m->kind[i].name, name)) return i;
    return -1;
}

static bool unknown_mixer(const Node *x, const char *path, const char *name, const ModelCfg *also, Err *e) {
    const char *names[KINDS_MAX + 64] = {0};
    int n = 0;
    const char *ours = hint_mixer(name);
    if (ours) return node_refuse(x, path, e, "unknown name '%.40s'; did you mean %s?", name, ours);
    for (int i = 0; also && i < also->nkinds; i++) names[n++] = also->kind[i].name;
    for (int i = 0; mixers[i] && n < KINDS_MAX + 63; i++) names[n++] = mixers[i]->name;
    return schema_unknown(x, path, name, NULL, names, e);
}

/* Add a kind. Without `mixer:` its name must be a mixer's. */
static bool kind_read(ModelCfg *m, const Node *map, const char *name, const char *path, Err *e) {
    char at[256];
    const Node *which = tree_get(map, "mixer");
    if (map->type != NODE_MAP && !node_null(map))
        return node_refuse(map, path, e, "expected a map {mixer: NAME, settings...}, got %s", node_type(map));
    if (!*name || strlen(name) >= sizeof m->kind->name ||
        name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")])
        return node_refuse(map, path, e, "the name of a kind is 1 to 63 letters, digits, - and _");
    if (m->nkinds == KINDS_MAX) return node_refuse(map, path, e, "more than %d kinds", KINDS_MAX);
    if (which && which->type != NODE_SCALAR)
        return node_refuse(which, schema_join(at, path, "mixer"), e, "expected a name, got %s", node_type(which));
    const Mixer *mixer = mixer_find(which ? which->text : name);
    if (!mixer && which) return unknown_mixer(which, schema_join(at, path, "mixer"), which->text, NULL, e);
    if (!mixer) return node_refuse(map, schema_join(at, path, "mixer"), e, "required, but not given: the mixer's name");
    void *cfg = model_settings_read(m, map, path, "mixer", mixer->keys, mixer->cfg_size, mixer->check, e);
    if (!cfg) return false;
    Kind *k = &m->kind[m->nkinds++];
    snprintf(k->name, sizeof k->name, "%s", name);
    k->mixer = mixer, k->cfg = cfg;
    return true;
}

static bool pattern_read(ModelCfg *m, const Node *x, const Node *map, const char *path, Err *e) {
    int n = 0, names[LAYERS_MAX];
    if (!x && m->nkinds != 1)
        return node_refuse(map, path, e, "required, but not given: it assigns one of the %d kinds to each layer",
                           m->nkinds);
    if (!x) names[n++] = 0;
    bool list = x && x->type == NODE_LIST;
    int count = list ? x->n : x ? 1 : 0;
    if (x && (x->type == NODE_MAP || count < 1 || count > LAYERS_MAX))
        return node_refuse(x, path, e, "expected a list of 1 to %d names of kinds", LAYERS_MAX);
    for (int i = 0; i < count; i++) {
        const Node *y = list ? x->kid[i] : x;
        if (y->type != NODE_SCALAR) return node_refuse(y, path, e, "expected names of kinds, got %s", node_type(y));
        names[n] = kind_find(m, y->text);
        if (names[n] < 0) {
            Node none = {.type = NODE_MAP, .where = y->where, .line = y->line};
            char at[256];
            if (!mixer_find(y->text)) return unknown_mixer(y, path, y->text, m, e);
            if (!kind_read(m, &none, y->text, schema_join(at, "model.kinds", y->text), e)) return false;
            names[n] = m->nkinds - 1;
        }
        n++;
    }
    for (int l = 0; l < m->layers; l++) m->pattern[l] = names[l % n];
    return true;
}

static bool kv_from_read(ModelCfg *m, const Node *x, const char *path, Err *e) {
    for (int l = 0; l < m->layers; l++) m->kv_from[l] = l;
    if (!x || node_null(x)) return true;
    if (x->type != NODE_MAP)
        return node_refuse(x, path, e, "expected a map {layer: earlier layer}, got %s", node_type(x));
    for (int i = 0; i < x->n; i++) {
        const Node *y = x->kid[i];
        char at[256];
        int layer, from;
        Node name = {.type = NODE_SCALAR, .text = y->key, .line = y->line, .where = y->where};
        Key reader = {"layer", KEY_INT, 0, NULL, 0, m->layers - 1, "", 0, 0}, owner = reader;
        if (m->layers == 1) return node_refuse(y, path, e, "a model of one layer has no earlier layer to read");
        if (!schema_value(&reader, &name, path, &layer, e)) return false;
        schema_join(at, path, y->key);
        if (!schema_value(&owner, y, at, &from, e)) return false;
        if (from >= layer) return node_refuse(y, at, e, "layer %d can read an earlier layer only, got %d", layer, from);
        m->kv_from[layer] = from;
    }
    return true;
}

/* A part that may be written as its name alone, because it has no settings. */
static bool part_bare(const Node *x) {
    const Ffn *ffn = x->type == NODE_SCALAR ? ffn_find(x->text) : NULL;
    return ffn && !ffn->keys->name;
}
/* Add a feed-forward part: {kind: NAME, its settings}, or NAME alone. */
static bool part_read(ModelCfg *m, const Node *y, const char *name, const char *at, Err *e) {
    char kind[256];
    schema_join(kind, at, "kind");
    if (y->type != NODE_MAP && !part_bare(y))
        return node_refuse(y, at, e, "expected {kind: NAME, settings...}, got %s", node_type(y));
    if (strlen(name) >= sizeof m->ffn->name) return node_refuse(y, at, e, "a name has at most 63 letters");
    if (m->nffn == KINDS_MAX) return node_refuse(y, at, e, "more than %d feed-forward parts", KINDS_MAX);
    const Node none = {.type = NODE_MAP, .where = y->where, .line = y->line};
    const Node *map = y->type == NODE_MAP ? y : &none, *which = y->type == NODE_MAP ? tree_get(y, "kind") : y;
    if (!which) return node_refuse(y, kind, e, "required, but not given: the feed-forward's name");
    if (which->type != NODE_SCALAR) return node_refuse(which, kind, e, "expected a name, got %s", node_type(which));
    const Ffn *ffn = ffn_find(which->text);
    if (!ffn) {
        const char *names[64] = {0}, *ours = hint_ffn(which->text);
        if (ours) return node_refuse(which, kind, e, "unknown name '%.40s'; did you mean %s?", which->text, ours);
        for (int k = 0; ffns[k] && k < 63; k++) names[k] = ffns[k]->name;
        return schema_unknown(which, kind, which->text, NULL, names, e);
    }
    void *cfg = model_settings_read(m, map, at, "kind", ffn->keys, ffn->cfg_size, ffn->check, e);
    if (!cfg) return false;
    FfnKind *k = &m->ffn[m->nffn++];
    *k = (FfnKind){.ffn = ffn, .cfg = cfg};
    snprintf(k->name, sizeof k->name, "%s", name);
    return true;
}
/* A map of names: every value is a part. */
static bool parts_named(const Node *x) {
    if (x->type != NODE_MAP || !x->n || tree_get(x, "kind")) return false;
    for (int i = 0; i < x->n; i++)
        if (x->kid[i]->type != NODE_MAP && !part_bare(x->kid[i])) return false;
    return true;
}
static bool ffn_read(ModelCfg *m, const Node *x, const char *path, Err *e) {
    bool list = x->type == NODE_LIST, named = parts_named(x);
    int n = list || named ? x->n : 1;
    if ((x->type == NODE_SCALAR && !part_bare(x)) || n < 1 || n > KINDS_MAX)
        return node_refuse(x, path, e, "expected {kind: NAME, settings...} or a list of 1 to %d of them", KINDS_MAX);
    for (int i = 0; i < n; i++) {
        const Node *y = list || named ? x->kid[i] : x;
        char at[256], index[16];
        snprintf(index, sizeof index, "%d", i);
        if (list || named)
            schema_join(at, path, named ? y->key : index);
        else
            snprintf(at, sizeof at, "%s", path);
        if (!part_read(m, y, named ? y->key : "", at, e)) return false;
    }
    return true;
}
static int part_find(const ModelCfg *m, const char *name) {
    for (int i = 0; i < m->nffn; i++)
        if (*name && !strcmp(m->ffn[i].name, name)) return i;
    return -1;
}
/* Without names the parts are repeated as they are listed. */
static bool ffn_pattern_read(ModelCfg *m, const Node *x, const Node *map, const char *path, Err *e) {
    bool named = *m->ffn[0].name, list = x && x->type == NODE_LIST;
    int n = list ? x->n : 1, part[LAYERS_MAX];
    if (x && node_null(x)) x = NULL;
    if (x && !named)
        return node_refuse(x, path, e, "model.ffn gives no names; write it as {NAME: {kind: ..., settings...}, ...}");
    if (!x && named && m->nffn > 1)
        return node_refuse(map, path, e,
                           "required, but not given: it says which of the %d parts of model.ffn each layer has",
                           m->nffn);
    if (x && (x->type == NODE_MAP || n < 1 || n > LAYERS_MAX))
        return node_refuse(x, path, e, "expected a list of 1 to %d names of model.ffn", LAYERS_MAX);
    for (int i = 0; x && i < n; i++) {
        const Node *y = list ? x->kid[i] : x;
        if (y->type != NODE_SCALAR) return node_refuse(y, path, e, "expected names of model.ffn, got %s", node_type(y));
        part[i] = part_find(m, y->text);
        if (part[i] >= 0) continue;
        const char *names[KINDS_MAX + 2] = {0};
        for (int k = 0; k < m->nffn; k++) names[k] = m->ffn[k].name;
        names[m->nffn] = "none";
        if (strcmp(y->text, "none")) return schema_unknown(y, path, y->text, NULL, names, e);
        if (!part_read(m, y, "none", path, e)) return false;
        part[i] = m->nffn - 1;
    }
    if (!x)
        for (n = 0; n < m->nffn && n < LAYERS_MAX; n++) part[n] = n;
    for (int l = 0; l < m->layers; l++) m->ffn_pattern[l] = part[l % n];
    return true;
}

bool model_cfg_read(ModelCfg *m, const Node *map, const char *path, int positions, Err *e) {
    char at[256];
    if (!schema_read(model_keys, map, path, NULL, m, e)) return false;
    if (!m->max_positions) m->max_positions = positions;
    if (!m->max_positions)
        return node_refuse(map, schema_join(at, path, "max_positions"), e, "required, but not given: longest context");
    if (m->norm_place != NORM_PRE && (m->parallel || m->norm == NORM_LAYER))
        return node_refuse(map, schema_join(at, path, "norm_place"), e,
                           "post and both need parallel: false and norm: rms, got %s",
                           m->parallel ? "parallel: true" : "norm: layer");
    const Node *kinds = tree_get(map, "kinds"), *ffn = tree_get(map, "ffn");
    schema_join(at, path, "kinds");
    if (kinds && kinds->type != NODE_MAP && !node_null(kinds))
        return node_refuse(kinds, at, e, "expected a map of kinds, got %s", node_type(kinds));
    for (int i = 0; kinds && i < kinds->n; i++) {
        char kind[256];
        const Node *x = kinds->kid[i];
        if (!kind_read(m, x, x->key, schema_join(kind, at, x->key), e)) return false;
    }
    if (!pattern_read(m, tree_get(map, "pattern"), map, schema_join(at, path, "pattern"), e)) return false;
    if (!kv_from_read(m, tree_get(map, "kv_from"), schema_join(at, path, "kv_from"), e)) return false;
    schema_join(at, path, "ffn");
    if (!ffn) return node_refuse(map, at, e, "required, but not given: the feed-forward part");
    return ffn_read(m, ffn, at, e) &&
           ffn_pattern_read(m, tree_get(map, "ffn_pattern"), map, schema_join(at, path, "ffn_pattern"), e);
}

void model_cfg_free(ModelCfg *m) {
    for (int i = 0; i < m->nkinds; i++) free(m->kind[i].cfg);
    for (int i = 0; i < m->nffn; i++) free(m->ffn[i].cfg);
    *m = (ModelCfg){0};
}

bool model_cfg_from_json(ModelCfg *m, const char *json, size_t n, const char *where, Err *e) {
    *m = (ModelCfg){0};
    Node *root = tree_json(json, n, where, e);
    if (!root) return false;
    bool ok = root->type == NODE_MAP;
    if (!ok) node_refuse(root, "", e, "expected an object, got %s", node_type(root));
    ok = ok && model_cfg_read(m, root, "", 0, e);
    if (ok && !m->vocab) ok = node_refuse(root, "vocab", e, "required, but not given: number of token ids");
    if (!ok) model_cfg_free(m);
    tree_free(root);
    return ok;
}
