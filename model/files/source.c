/* source.c: overlays given settings on those of init_from, and finds the differences between the two. */
#include "source.h"
#include "data/tokenizer.h"
#include "model/files/model_dir.h"
#include "model/config/config_keys.h"
#include "hf.h"
#include "layers/ffn/ffn.h"
#include "ops/file.h"
#include "ops/oom.h"

static const char WHERE[] = "init_from";

/* ---- settings taken from it -------------------------------------------------------------------------------------- */

bool source_complete(const Node *m) {
    return m && tree_get(m, "d_model") && tree_get(m, "layers") && tree_get(m, "ffn");
}

bool source_has_tokenizer(const char *dir, Err *e) {
    char at[4096];
    Err why = {0};
    if (model_dir_resolve(dir, at, &why)) {
        char *path = tokenizer_file(at, e);
        free(path);
        return path;
    }
    e->status = 0;
    if (why.status == EXIT_RUNTIME) *e = why; /* there is no model: opening it reports that */
    return false;
}

/* Merge maps entry by entry; replace anything else. */
static bool lay(Node *root, const char *path, const Node *x, Err *e) {
    char at[256];
    if (x->type != NODE_MAP) return tree_put(root, path, tree_copy(x), x, e);
    for (int i = 0; i < x->n; i++)
        if (!lay(root, schema_join(at, path, x->kid[i]->key), x->kid[i], e)) return false;
    return true;
}

static const Key *key_named(const Key *keys, const char *name) {
    while (keys->name && strcmp(keys->name, name)) keys++;
    return keys->name ? keys : NULL;
}

/* A kind with another mixer, or a part with another name, keeps the old settings that `keys` has. */
static bool source_retype(Node *root, const char *path, const Node *was, const Key *keys, Err *e) {
    char at[256];
    Node *none = tree_json("{}", 2, WHERE, e);
    if (!none || !tree_put(root, path, none, was, e)) return false;
    for (int i = 0; i < was->n; i++)
        if (key_named(keys, was->kid[i]->key) &&
            !tree_put(root, schema_join(at, path, was->kid[i]->key), tree_copy(was->kid[i]), was, e))
            return false;
    return true;
}

static bool lay_kind(Node *root, const Node *given, bool patterned, Err *e) {
    char path[256], at[256];
    const Node *kinds = tree_get(root, "kinds"), *was = tree_get(kinds, given->key), *which = tree_get(given, "mixer");
    snprintf(path, sizeof path, "kinds.%.100s", given->key);
    if (!was && !patterned)
        return node_refuse(given, schema_join(at, "model", path), e,
                           "init_from has no kind of that name (it has %.60s), and no model.pattern is given",
                           kinds->kid[0]->key);
    const Node *before = was ? tree_get(was, "mixer") : NULL;
    const Mixer *mixer = which && which->type == NODE_SCALAR ? mixer_find(which->text) : NULL;
    if (before && mixer && strcmp(before->text, mixer->name)) {
        Node *copy = tree_copy(was);
        bool ok = source_retype(root, path, copy, mixer->keys, e);
        tree_free(copy);
        if (!ok) return false;
    }
    return lay(root, path, given, e);
}

/* A map is merged into each part of the source, or, if it has names, into those. All else replaces them all, and their
 * pattern, unless the run gives one: `patterned`. */
static bool lay_ffn(Node *root, const Node *given, bool patterned, Err *e) {
    const Node *list = tree_get(root, "ffn");
    bool names = given->type == NODE_MAP && given->n > 0;
    for (int i = 0; names && i < given->n; i++) names = given->kid[i]->type == NODE_MAP;
    if (names && list && list->type == NODE_MAP) return lay(root, "ffn", given, e);
    if (given->type != NODE_MAP || names || !list || list->type == NODE_SCALAR) {
        if (!patterned) tree_remove(root, "", "ffn_pattern");
        return tree_put(root, "ffn", tree_copy(given), given, e);
    }
    for (int i = 0; i < list->n; i++) {
        char path[80];
        const Node *which = tree_get(given, "kind"), *before = tree_get(list->kid[i], "kind");
        const Ffn *ffn = which && which->type == NODE_SCALAR ? ffn_find(which->text) : NULL;
        snprintf(path, sizeof path, "ffn.%d", i);
        if (list->type == NODE_MAP) snprintf(path, sizeof path, "ffn.%.63s", list->kid[i]->key);
        if (ffn && strcmp(before->text, ffn->name)) {
            Node *copy = tree_copy(list->kid[i]);
            bool ok = source_retype(root, path, copy, ffn->keys, e);
            tree_free(copy);
            if (!ok) return false;
        }
        if (!lay(root, path, given, e)) return false;
    }
    return true;
}

static bool lay_all(Node *root, const Node *given, Err *e) {
    const Node *kinds = tree_get(given, "kinds");
    for (int i = 0; i < given->n; i++) {
        const Node *x = given->kid[i];
        if (!strcmp(x->key, "kinds") && x->type == NODE_MAP) continue;
        if (!(!strcmp(x->key, "ffn") ? lay_ffn(root, x, tree_get(given, "ffn_pattern"), e)
                                     : tree_put(root, x->key, tree_copy(x), x, e)))
            return false;
    }
    for (int i = 0; kinds && kinds->type == NODE_MAP && i < kinds->n; i++)
        if (!lay_kind(root, kinds->kid[i], tree_get(given, "pattern") != NULL, e)) return false;
    return true;
}

bool source_lay(Node *root, const char *dir, Err *e) {
    char at[4096];
    ModelCfg m;
    Err why = {0};
    if (!model_dir_resolve(dir, at, &why) || !hf_config_read(at, &m, &why))
        return why.status == EXIT_RUNTIME ? err_runtime(e, "%s", why.msg) : err_input(e, "init_from: %.280s", why.msg);
    char *text = model_cfg_json(&m);
    model_cfg_free(&m);
    Node *model = tree_json(text, strlen(text), WHERE, e);
    free(text);
    const Node *given = tree_get(root, "model");
    if (!model) return false;
    if (given && given->type != NODE_MAP && !node_null(given)) {
        tree_free(model);
        return node_refuse(given, "model", e, "expected a map of settings, got %s", node_type(given));
    }
    if (given && !lay_all(model, given, e)) {
        tree_free(model);
        return false;
    }
    return tree_put(root, "model", model, root, e);
}

/* ---- what deviates ----------------------------------------------------------------------------------------------- */

typedef struct {
    char path[200], now[64], was[64];
    bool silent; /* `change` must name it */
} Deviation;
typedef struct {
    Deviation *d;
    int n;
} Deviations;

static void source_add(Deviations *v, const char *path, const char *now, const char *was, bool silent) {
    Deviation x = {.silent = silent};
    snprintf(x.path, sizeof x.path, "%s", path);
    snprintf(x.now, sizeof x.now, "%s", now);
    snprintf(x.was, sizeof x.was, "%s", was);
    for (int i = 0; i < v->n; i++)
        if (!memcmp(&v->d[i], &x, sizeof x)) return; /* another layer of the same kind */
    v->d = xrealloc(v->d, (size_t)v->n + 1, sizeof *v->d);
    v->d[v->n++] = x;
}

/* The text of a setting's value, without its name. */
static char *value_text(const Key *k, const void *cfg) {
    Key one[2] = {*k, {0}};
    char *text = NULL;
    size_t n;
    Writer w = {.first = true, .flow = 1, .f = oom_stream(&text, &n)};
    schema_write(&w, one, cfg);
    fclose(w.f);
    memmove(text, text + strlen(k->name) + 2, n - strlen(k->name) - 1);
    return text;
}

/* Replace lengths that mean other lengths by those, so that only rotations that compute something else differ. */
static RopeCfg rope_plain(const RopeCfg *r, int max_positions) {
    RopeCfg x = *r;
    if (!x.original_max_positions) x.original_max_positions = max_positions;
    if (x.type == ROPE_LONGROPE && x.factor <= 0 && x.attention_factor <= 0) /* the scale follows from the length */
        x.factor = (double)max_positions / x.original_max_positions;
    return x;
}
/* True if both turn every pair alike, for any number of rotated elements. */
static bool rope_alike(const RopeCfg *a, const RopeCfg *b, int positions_a, int positions_b) {
    static const int sizes[] = {4, 8, 64, 128, 2 * ROPE_PAIRS};
    if (a->type == ROPE_LONGROPE || b->type == ROPE_LONGROPE) return !memcmp(a, b, sizeof *a);
    if (a->type == ROPE_DYNAMIC && b->type == ROPE_DYNAMIC && a->original_max_positions != b->original_max_positions)
        return false; /* scaling begins at another length */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Rope x = {0}, y = {0};
        if (!rope_make(&x, a, sizes[i], positions_a, NULL) || !rope_make(&y, b, sizes[i], positions_b, NULL) ||
            memcmp(&x, &y, sizeof x))
            return false;
    }
    return true;
}

typedef struct {
    Deviations *v;
    const ModelCfg *now, *was;
    bool apart; /* two different mixers, where one name may mean two things: only a rotation must be named */
} Pair;

/* Compare the settings that both tables have. */
static void compare(const Pair *p, const char *path, const Key *a, const void *now, const Key *b, const void *was) {
    for (; a->name; a++) {
        const Key *k = key_named(b, a->name);
        const char *x = (const char *)now + a->at, *y = k ? (const char *)was + k->at : NULL;
        char at[256];
        if (!k || k->type != a->type || k->sub != a->sub || a->type == KEY_OTHER) continue;
        schema_join(at, path, a->name);
        if (a->sub == rope_keys) {
            RopeCfg r = rope_plain((const RopeCfg *)x, p->now->max_positions),
                    s = rope_plain((const RopeCfg *)y, p->was->max_positions);
            if (!rope_alike(&r, &s, p->now->max_positions, p->was->max_positions))
                compare(&(Pair){p->v, p->now, p->was, false}, at, rope_keys, &r, rope_keys, &s);
            continue;
        }
        if (a->type == KEY_TABLE) {
            compare(p, at, a->sub, x, k->sub, y);
            continue;
        }
        char *s = value_text(a, now), *t = value_text(k, was);
        if (strcmp(s, t)) source_add(p->v, at, s, t, !p->apart);
        free(s);
        free(t);
    }
}

/* The settings of a layer with their derived members. */
static void *source_derived(const ModelCfg *m, int l) {
    const Kind *k = &m->kind[m->pattern[l]];
    void *cfg = xcalloc(1, k->mixer->cfg_size);
    memcpy(cfg, k->cfg, k->mixer->cfg_size);
    *(LayerCfg *)cfg = layer_base(m, m->kv_from[l] == l);
    if (k->mixer->check) k->mixer->check(cfg, NULL);
    return cfg;
}
static void *derived_ffn(const ModelCfg *m, int l) {
    const FfnKind *k = &m->ffn[m->ffn_pattern[l]];
    void *cfg = xcalloc(1, k->ffn->cfg_size);
    memcpy(cfg, k->cfg, k->ffn->cfg_size);
    *(LayerCfg *)cfg = layer_base(m, true);
    if (k->ffn->check) k->ffn->check(cfg, NULL);
    return cfg;
}

static void source_layer(Pair *p, int l) {
    const Kind *a = &p->now->kind[p->now->pattern[l]], *b = &p->was->kind[p->was->pattern[l]];
    const Ffn *f = p->now->ffn[p->now->ffn_pattern[l]].ffn, *g = p->was->ffn[p->was->ffn_pattern[l]].ffn;
    char path[128], at[256], now[16], was[16];
    void *x = source_derived(p->now, l), *y = source_derived(p->was, l);
    snprintf(path, sizeof path, "model.kinds.%s", a->name);
    if (a->mixer != b->mixer) source_add(p->v, schema_join(at, path, "mixer"), a->mixer->name, b->mixer->name, false);
    p->apart = a->mixer != b->mixer;
    compare(p, path, a->mixer->keys, x, b->mixer->keys, y);
    free(x);
    free(y);
    x = derived_ffn(p->now, l), y = derived_ffn(p->was, l);
    if (f != g) source_add(p->v, "model.ffn.kind", f->name, g->name, false);
    p->apart = f != g;
    compare(p, "model.ffn", f->keys, x, g->keys, y);
    free(x);
    free(y);
    if (p->now->kv_from[l] == p->was->kv_from[l]) return;
    snprintf(path, sizeof path, "model.kv_from.%d", l);
    snprintf(now, sizeof now, "%d", p->now->kv_from[l]);
    snprintf(was, sizeof was, "%d", p->was->kv_from[l]);
    source_add(p->v, path, now, was, true);
}

/* True if a name is the setting's path, or consecutive parts of it. */
static bool source_named(const Texts *names, const char *path) {
    char whole[220], part[KEY_SHORT_MAX + 2];
    snprintf(whole, sizeof whole, ".%s.", path);
    for (int i = 0; i < names->n; i++) {
        snprintf(part, sizeof part, ".%s.", names->v[i]);
        if (strstr(whole, part)) return true;
    }
    return false;
}

/* Drop the parts of a path that say where the setting is: "rope.theta". */
static const char *short_name(const char *path) {
    int parts = !strncmp(path, "model.kinds.", 12) ? 3 : !strncmp(path, "model.ffn.", 10) ? 2 : 1;
    for (; parts && strchr(path, '.'); parts--) path = strchr(path, '.') + 1;
    return path;
}

bool source_compare(const ModelCfg *now, const char *dir, const Texts *change, FILE *notes, Err *e) {
    /* Settings that are no function of weights: number of ids, layers, initial values. The tensors show the first
     * two. */
    static const char *const free_of[] = {"vocab", "layers", "init_std", "max_positions", NULL};
    ModelCfg was;
    Deviations v = {0};
    if (!hf_config_read(dir, &was, e)) return false;
    Pair p = {&v, now, &was, false};
    Key keys[32] = {{0}};
    int n = 0;
    for (const Key *k = model_keys; k->name; k++) {
        bool skip = false;
        for (int i = 0; free_of[i]; i++) skip |= !strcmp(free_of[i], k->name);
        if (skip) continue;
        CHECK(n < 31, "%d keys of a model", n);
        keys[n++] = *k;
    }
    compare(&p, "model", keys, now, keys, &was);
    for (int l = 0; l < imin(now->layers, was.layers); l++) source_layer(&p, l);
    if (now->max_positions != was.max_positions) {
        char a[16], b[16];
        snprintf(a, sizeof a, "%d", now->max_positions);
        snprintf(b, sizeof b, "%d", was.max_positions);
        source_add(&v, "model.max_positions", a, b, false);
    }
    model_cfg_free(&was);
    bool ok = true;
    for (int i = 0; ok && i < v.n; i++)
        if (v.d[i].silent && !source_named(change, v.d[i].path))
            ok = err_input(e,
                           "%.70s: %.24s, but %.50s has %.24s, and no tensor shows it; remove the key to keep the "
                           "source's, or allow it by init_change='[%.40s]'",
                           v.d[i].path, v.d[i].now, dir, v.d[i].was, short_name(v.d[i].path));
    for (int i = 0; ok && notes && i < imin(v.n, SOURCE_LINES); i++)
        fprintf(notes, "%s: %s (source: %s)\n", v.d[i].path, v.d[i].now, v.d[i].was);
    if (ok && notes && v.n > SOURCE_LINES) fprintf(notes, "%d more settings differ from %s\n", v.n - SOURCE_LINES, dir);
    free(v.d);
    return ok;
}
