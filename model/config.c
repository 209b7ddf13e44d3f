#include "config_keys.h"
#include "hints.h"
#include "source.h"
#include "task_cfg.h"
#include <stdarg.h>
#include <stdlib.h>

/* ---- reading the model ---------------------------------------------------------------------------------------------
 */

typedef bool (*Check)(void *cfg, Err *);
/* Read one mixer's or feed-forward's settings and let it judge them on a copy: what it derives is not the user's. */
static void *settings_read(const ModelCfg *m, const Node *map, const char *path, const char *also, const Key *keys,
                           size_t size, Check check, Err *e) {
    void *cfg = xcalloc(1, size), *copy = xcalloc(1, size);
    bool ok = schema_read(keys, map, path, also, cfg, e);
    if (ok && check) {
        Err why = {0};
        memcpy(copy, cfg, size);
        *(LayerCfg *)copy = (LayerCfg){m->d_model, m->max_positions, m->norm_eps, true};
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
    void *cfg = settings_read(m, map, path, "mixer", mixer->keys, mixer->cfg_size, mixer->check, e);
    if (!cfg) return false;
    Kind *k = &m->kind[m->nkinds++];
    snprintf(k->name, sizeof k->name, "%s", name);
    k->mixer = mixer, k->cfg = cfg;
    return true;
}

static bool pattern_read(ModelCfg *m, const Node *x, const Node *map, const char *path, Err *e) {
    int n = 0, names[LAYERS_MAX];
    if (!x && m->nkinds != 1)
        return node_refuse(map, path, e, "required, but not given: it says which of the %d kinds each layer is",
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

static bool ffn_read(ModelCfg *m, const Node *x, const char *path, Err *e) {
    bool list = x->type == NODE_LIST;
    int n = list ? x->n : 1;
    if (x->type == NODE_SCALAR || n < 1 || n > KINDS_MAX)
        return node_refuse(x, path, e, "expected {kind: NAME, settings...} or a list of 1 to %d of them", KINDS_MAX);
    for (int i = 0; i < n; i++) {
        const Node *y = list ? x->kid[i] : x;
        char at[256], kind[256], index[16];
        snprintf(index, sizeof index, "%d", i);
        if (list)
            schema_join(at, path, index);
        else
            snprintf(at, sizeof at, "%s", path);
        schema_join(kind, at, "kind");
        if (y->type != NODE_MAP)
            return node_refuse(y, at, e, "expected {kind: NAME, settings...}, got %s", node_type(y));
        const Node *which = tree_get(y, "kind");
        if (!which) return node_refuse(y, kind, e, "required, but not given: the feed-forward's name");
        if (which->type != NODE_SCALAR) return node_refuse(which, kind, e, "expected a name, got %s", node_type(which));
        const Ffn *ffn = ffn_find(which->text);
        if (!ffn) {
            const char *names[64] = {0}, *ours = hint_ffn(which->text);
            if (ours) return node_refuse(which, kind, e, "unknown name '%.40s'; did you mean %s?", which->text, ours);
            for (int k = 0; ffns[k] && k < 63; k++) names[k] = ffns[k]->name;
            return schema_unknown(which, kind, which->text, NULL, names, e);
        }
        void *cfg = settings_read(m, y, at, "kind", ffn->keys, ffn->cfg_size, ffn->check, e);
        if (!cfg) return false;
        m->ffn[m->nffn++] = (FfnKind){ffn, cfg};
    }
    return true;
}

/* `positions`: max_positions where the map does not give it. */
static bool model_read(ModelCfg *m, const Node *map, const char *path, int positions, Err *e) {
    char at[256];
    if (!schema_read(model_keys, map, path, NULL, m, e)) return false;
    if (!m->max_positions) m->max_positions = positions;
    if (!m->max_positions)
        return node_refuse(map, schema_join(at, path, "max_positions"), e, "required, but not given: longest context");
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
    return ffn_read(m, ffn, at, e);
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
    ok = ok && model_read(m, root, "", 0, e);
    if (ok && !m->vocab) ok = node_refuse(root, "vocab", e, "required, but not given: number of token ids");
    if (!ok) model_cfg_free(m);
    tree_free(root);
    return ok;
}

/* ---- reading all of it ---------------------------------------------------------------------------------------------
 */

static bool train_paths(DataCfg *d, const Node *x, Err *e) {
    const Key one = {"train", KEY_TABLE, 0, NULL, 0, 0, "", 0, path_keys};
    if (!x || node_null(x)) return true;
    bool list = x->type == NODE_LIST;
    int n = list ? x->n : 1;
    if (n < 1 || n > PATHS_MAX) return node_refuse(x, "data.train", e, "%d files; expected 1 to %d", n, PATHS_MAX);
    for (int i = 0; i < n; i++) {
        const Node *y = list ? x->kid[i] : x;
        char at[64];
        snprintf(at, sizeof at, list ? "data.train.%d" : "data.train", i);
        if (!schema_value(&one, y, at, &d->train[i], e)) return false;
        if (!*d->train[i].path) return node_refuse(y, at, e, "expected the path of a text file, got nothing");
        if ((d->train[i].weight > 0) != (d->train[0].weight > 0))
            return node_refuse(y, at, e, "%s a weight, but the first has %s; give all of them one or none",
                               d->train[i].weight > 0 ? "has" : "has not", d->train[0].weight > 0 ? "one" : "none");
    }
    d->ntrain = n;
    return true;
}

/* The node of a setting; where it was not written its file alone, for no line of it is to blame. */
static Node node_at(const Node *root, const char *section, const char *name) {
    const Node *s = tree_get(root, section), *x = s ? tree_get(s, name) : NULL;
    return x ? *x : (Node){.type = NODE_MAP, .where = root->where};
}
bool config_given(const Node *root, const char *section, const char *name) {
    const Node *s = tree_get(root, section);
    return s && tree_get(s, name);
}
/* Behind a value in a message. */
static const char *by_default(const Node *root, const char *section, const char *name) {
    return config_given(root, section, name) ? "" : " (default)";
}

/* Conversations are documents by themselves. */
static bool sft_section(Config *c, const Node *root, Err *e) {
    const DataCfg *d = &c->data;
    if (!d->sft.template) return true;
    const Node at = node_at(root, "data", "sft"), *x = &at;
    if (d->task.kind)
        return node_refuse(x, "data.sft", e, "a task makes its own samples, but data.sft is given; remove one");
    if (d->ntrain && d->train[0].weight > 0)
        return node_refuse(x, "data.sft", e,
                           "files of conversations have no weights; repeat a file to see it more often");
    if (*d->separator)
        return node_refuse(x, "data.sft", e, "a line is a conversation, but data.separator is given; remove it");
    return true;
}

/* Only one of text and task, and nothing of the text's settings beside a task. */
static bool task_section(Config *c, const Node *root, Err *e) {
    const Node *data = tree_get(root, "data"), *x = data ? tree_get(data, "task") : NULL;
    DataCfg *d = &c->data;
    const Node stop = node_at(root, "train", "stop_at_acc");
    if (!x || node_null(x))
        return c->train.stop_at_acc == 0 ||
               node_refuse(&stop, "train.stop_at_acc", e,
                           "a text has no answers to be right about: give 0, or data.task");
    if (!task_cfg_read(&d->task, x, "data.task", d->seq_len, e)) return false;
    const char *also = d->ntrain                      ? "data.train"
                       : *d->val                      ? "data.val"
                       : *d->separator                ? "data.separator"
                       : *d->eot                      ? "data.eot"
                       : strcmp(d->tokenizer, "byte") ? "data.tokenizer"
                                                      : NULL;
    if (also) return node_refuse(x, "data.task", e, "a task makes its own samples, but %s is given; remove one", also);
    if (c->train.sample_every)
        return node_refuse(x, "data.task", e, "samples of text need a text, but train.sample_every is %lld; give 0",
                           (long long)c->train.sample_every);
    return true;
}

static bool groups_read(OptimCfg *o, const Node *x, Err *e) {
    if (!x || node_null(x)) return true;
    if (x->type != NODE_LIST || x->n > GROUPS_MAX)
        return node_refuse(x, "optim.groups", e,
                           "expected a list of at most %d maps {match: GLOB, lr_scale: X, weight_decay: X}",
                           GROUPS_MAX);
    for (int i = 0; i < x->n; i++) {
        const Node *y = x->kid[i];
        OptimGroup *g = &o->group[o->ngroups++];
        char at[64];
        snprintf(at, sizeof at, "optim.groups.%d", i);
        if (y->type != NODE_MAP)
            return node_refuse(y, at, e, "expected a map {match: GLOB, ...}, got %s", node_type(y));
        Node *full = tree_copy(y);
        char decay[64];
        snprintf(decay, sizeof decay, "weight_decay=%.17g", o->weight_decay);
        bool ok = (tree_get(y, "weight_decay") || tree_override(full, decay, e)) &&
                  schema_read(group_keys, full, at, NULL, g, e);
        tree_free(full);
        if (!ok) return false;
        if (!*g->match) return node_refuse(y, at, e, "match: expected a glob of tensors' names, got nothing");
    }
    return true;
}

static int64_t length_steps(Length s, const Config *c) {
    if (s.n == 0) return 0;
    double per = (double)c->train.batch * c->data.seq_len, steps = (double)c->train.steps;
    double n = s.unit == LENGTH_PERCENT  ? floor(s.n * steps / 100 + 0.5)
               : s.unit == LENGTH_TOKENS ? ceil(s.n / per)
                                         : s.n;
    return (int64_t)fmax(1, n);
}
ScheduleSteps config_schedule(const Config *c) {
    const OptimCfg *o = &c->optim;
    int64_t own = length_steps(o->schedule_steps, c);
    return (ScheduleSteps){length_steps(o->warmup, c), own ? own : c->train.steps, length_steps(o->decay_steps, c)};
}

/* Refuse section.name. */
__attribute__((format(printf, 5, 6))) static bool differ(const Node *root, const char *section, const char *name,
                                                         Err *e, const char *fmt, ...) {
    char path[64], msg[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    snprintf(path, sizeof path, "%s.%s", section, name);
    const Node x = node_at(root, section, name);
    return node_refuse(&x, path, e, "%s", msg);
}

static bool schedule_agrees(const Config *c, const Node *root, Err *e) {
    const OptimCfg *o = &c->optim;
    bool falls = o->schedule != SCHEDULE_CONSTANT, own = falls && o->schedule_steps.n > 0;
    ScheduleSteps len = config_schedule(c);
    long long end = own ? len.steps : c->train.steps, warmup = len.warmup, decay = len.decay;
    const char *which = own ? "optim.schedule_steps" : "train.steps",
               *dflt = own || c->nstages ? "" : by_default(root, "train", "steps");
    if (warmup > end)
        return differ(root, "optim", "warmup", e, "%lld is more than %s, %lld%s", warmup, which, end, dflt);
    if (o->schedule == SCHEDULE_WSD && !decay)
        return differ(root, "optim", "decay_steps", e,
                      "schedule wsd needs the length of its decay, at least 1 step, e.g. 20%%");
    if (o->schedule == SCHEDULE_WSD && decay > end - warmup)
        return differ(root, "optim", "decay_steps", e,
                      "%lld steps of decay after %lld of optim.warmup%s are more than %s, %lld%s", decay, warmup,
                      by_default(root, "optim", "warmup"), which, end, dflt);
    if (falls && o->min_lr > o->lr)
        return differ(root, "optim", "min_lr", e, "%g is more than optim.lr, %g%s; its default is a tenth of optim.lr",
                      o->min_lr, o->lr, by_default(root, "optim", "lr"));
    if (o->schedule_by == SCHEDULE_BY_TIME && c->train.max_seconds == 0)
        return differ(root, "optim", "schedule_by", e,
                      "time needs train.max_seconds, the time to share out; it is 0, no end%s",
                      by_default(root, "train", "max_seconds"));
    return true;
}

static bool agree(const Config *c, const Node *root, Err *e) {
    const TrainCfg *t = &c->train;
    int rows = c->data.seq_len, most = c->model.max_positions;
    if (rows > most && !config_given(root, "data", "seq_len"))
        return differ(root, "data", "seq_len", e,
                      "%d (default) is more than model.max_positions, %d; set data.seq_len=%d", rows, most, most);
    if (rows > most) return differ(root, "data", "seq_len", e, "%d is more than model.max_positions, %d", rows, most);
    if (t->batch % t->micro_batch)
        return differ(root, "train", "micro_batch", e, "%d does not divide train.batch, %d%s", t->micro_batch, t->batch,
                      by_default(root, "train", "batch"));
    if ((int64_t)t->micro_batch * rows > ROWS_MAX)
        return differ(root, "train", "micro_batch", e, "%d samples of data.seq_len %d are more than %d rows at once",
                      t->micro_batch, rows, ROWS_MAX);
    if ((double)t->steps * t->batch * rows > 4e18)
        return differ(root, "train", "steps", e, "steps x batch x seq_len is %.3g tokens; at most 4e18 can be counted",
                      (double)t->steps * t->batch * rows);
    if (!schedule_agrees(c, root, e)) return false;
    if (t->skip_z > 0 && t->skip_z < 1)
        return differ(root, "train", "skip_z", e, "expected 0 (none) or at least 1 deviation, got %g", t->skip_z);
    if (c->lora.rank && (t->freeze.n || t->train_only.n))
        return differ(root, "train", t->freeze.n ? "freeze" : "train_only", e,
                      "with lora.rank %d nothing but the adapters is trained; remove one", c->lora.rank);
    if (t->recompute > c->model.layers)
        return differ(root, "train", "recompute", e, "%d is more than model.layers, %d", t->recompute, c->model.layers);
    return true;
}

/* Files that are no settings of a run, but look as if they could be. */
static bool other_file(const Node *root, Err *e) {
    const Node here = {.where = root->where};
    if (tree_get(root, "rows") && tree_get(root, "base"))
        return node_refuse(&here, "", e, "this is a comparison; use kvsmith compare %.100s", root->where);
    if (tree_get(root, "model_type") && tree_get(root, "architectures"))
        return node_refuse(&here, "", e,
                           "this is a model's config.json, not settings of a run; to start from that model, "
                           "give init_from: its directory");
    return true;
}

/* ??? stands for a value that only the user knows. */
static bool nothing_asked(const Node *x, const char *path, Err *e) {
    char at[256], index[16];
    if (x->type == NODE_SCALAR && !x->quoted && !strcmp(x->text, "???"))
        return node_refuse(x, path, e, "??? stands for a value that must be given; add %.100s=VALUE", path);
    for (int i = 0; i < x->n; i++) {
        snprintf(index, sizeof index, "%d", i);
        if (!nothing_asked(x->kid[i], schema_join(at, path, x->kid[i]->key ? x->kid[i]->key : index), e)) return false;
    }
    return true;
}

/* Where `model` is not given whole, it is that of init_from but for what is given; so is the tokenizer. */
static bool source_take(Config *c, Node *root, Err *e) {
    const Node *data = tree_get(root, "data"), *task = data ? tree_get(data, "task") : NULL;
    if (!*c->init_from || source_complete(tree_get(root, "model"))) return true;
    if (!source_lay(root, c->init_from, e)) return false;
    if ((data && tree_get(data, "tokenizer")) || (task && !node_null(task))) return true;
    if (source_has_tokenizer(c->init_from, e)) strcpy(c->data.tokenizer, c->init_from);
    return !e->status;
}

bool config_tree(Config *c, Node *root, int noverride, char *const override[], Err *e) {
    *c = (Config){0};
    if (!root) return false;
    bool ok = root->type == NODE_MAP || node_null(root);
    if (!ok) node_refuse(root, "", e, "expected a map of settings, got %s", node_type(root));
    ok = ok && other_file(root, e);
    if (ok) root->type = NODE_MAP; /* an empty file is an empty map */
    for (int i = 0; ok && i < noverride; i++) ok = tree_override(root, override[i], e);
    for (const Key *k = config_keys; ok && k->name; k++) { /* `data: x.txt` must not set data's first key */
        const Node *x = k->type == KEY_TABLE ? tree_get(root, k->name) : NULL;
        if (x && x->type == NODE_SCALAR && !node_null(x))
            ok = node_refuse(x, k->name, e, "expected a map of settings, got %s", node_type(x));
    }
    ok = ok && nothing_asked(root, "", e) && schema_read(config_keys, root, "", NULL, c, e);
    ok = ok && source_take(c, root, e);
    const Node *model = tree_get(root, "model"), *data = tree_get(root, "data");
    ok = ok && train_paths(&c->data, data ? tree_get(data, "train") : NULL, e);
    const Node *optim = tree_get(root, "optim");
    ok = ok && groups_read(&c->optim, optim ? tree_get(optim, "groups") : NULL, e);
    ok = ok && task_section(c, root, e) && sft_section(c, root, e);
    const Node none = {.where = root->where};
    if (ok && !model)
        ok = node_refuse(&none, "model", e, "required, but not given: the shape of the model, or init_from: DIR");
    ok = ok && model_read(&c->model, model, "model", c->data.seq_len, e) && stages_list(c, root, e);
    if (ok) defaults_follow(c, root);
    ok = ok && agree(c, root, e) && stages_build(c, root, e);
    if (!ok) config_free(c);
    tree_free(root);
    return ok;
}

bool config_parse(Config *c, const char *text, size_t n, const char *where, int noverride, char *const override[],
                  Err *e) {
    return config_tree(c, tree_yaml(text, n, where, e), noverride, override, e);
}

/* ${here} at the start of a text becomes the folder of the file. */
static bool put_here(Node *x, const char *path, char **here, Err *e) {
    static const char HERE[] = "${here}";
    bool ok = true;
    for (int i = 0; ok && i < x->n; i++) ok = put_here(x->kid[i], path, here, e);
    if (!ok || x->type != NODE_SCALAR || strncmp(x->text, HERE, strlen(HERE))) return ok;
    if (!*here) {
        const char *slash = strrchr(path, '/');
        char *folder = xformat("%.*s", slash == path ? 1 : slash ? (int)(slash - path) : 1, slash ? path : ".");
        *here = realpath(folder, NULL);
        if (!*here) err_errno(e, "folder", folder);
        free(folder);
        if (!*here) return false;
    }
    char *text = xformat("%s%s", *here, x->text + strlen(HERE));
    free(x->text);
    x->text = text;
    return true;
}

bool config_here(Node *root, const char *path, Err *e) {
    char *here = NULL;
    bool ok = put_here(root, path, &here, e);
    free(here);
    return ok;
}

bool config_read(Config *c, const char *path, int noverride, char *const override[], Err *e) {
    Node *root = tree_yaml_file(path, e);
    if (root && !config_here(root, path, e)) {
        tree_free(root);
        root = NULL;
    }
    return config_tree(c, root, noverride, override, e);
}
void config_free(Config *c) {
    for (int i = 0; i < c->nstages; i++) {
        if (c->stage[i].cfg) config_free(c->stage[i].cfg);
        free(c->stage[i].cfg);
        free(c->stage[i].set);
    }
    free(c->stage);
    model_cfg_free(&c->model);
    *c = (Config){0};
}

/* Of all stages: what is said of a teacher, or of adapters, is used. */
static bool uptraining_agrees(const Config *c, Err *e) {
    bool any = false;
    for (int k = 0; k < config_stages(c); k++) {
        const TeacherCfg *t = &config_stage(c, k).cfg->teacher;
        const TeacherLosses *l = &t->losses;
        any |= *t->path != 0;
        if (!*t->path || teacher_wanted(t)) continue;
        if (l->lm == 0) return err_input(e, "teacher.losses: all are 0; nothing is left to minimise");
        if (l->lm != 1)
            return err_input(e, "teacher.losses.lm: %g is the only loss; give 1 (the learning rate scales it), or kl",
                             l->lm);
    }
    TeacherCfg none = {0};
    Node map = {.type = NODE_MAP};
    CHECK(schema_read(teacher_keys, &map, "teacher", NULL, &none, e), "defaults");
    LoraCfg whole = {0};
    CHECK(schema_read(lora_keys, &map, "lora", NULL, &whole, e), "defaults");
    if (!c->lora.rank && memcmp(&c->lora, &whole, sizeof whole))
        return err_input(e, "lora.rank: required where other settings of adapters are given; got 0, which is none");
    for (int k = 0; !any && k < config_stages(c); k++)
        if (memcmp(&config_stage(c, k).cfg->teacher, &none, sizeof none))
            return err_input(e, "teacher.path: required where other settings of the teacher are given; got nothing");
    return true;
}

bool config_trainable(const Config *c, Err *e) {
    if (!*c->run.dir) return err_input(e, "run.dir: training needs the folder of the run; add run.dir=DIR");
    if (!c->data.ntrain && !c->data.task.kind)
        return err_input(e, "data.train: training needs a text file or a task; add data.train=FILE or data.task=NAME");
    return uptraining_agrees(c, e);
}
