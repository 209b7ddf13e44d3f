/* config_stages.c: `stages`, a list of runs in the settings of one. */
#include "config_keys.h"
#include "../ops/oom.h"

/* ---- reading -------------------------------------------------------------------------------------------------------
 */

static bool name_fits(const char *name) {
    size_t n = strlen(name);
    return n > 0 && n < STAGE_NAME_MAX &&
           !name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")];
}

bool stages_list(Config *c, Node *root, Err *e) {
    const Node *list = tree_get(root, "stages"), *train = tree_get(root, "train"),
               *steps = train ? tree_get(train, "steps") : NULL;
    if (!list || node_null(list)) return true;
    if (list->type != NODE_LIST || list->n < 1 || list->n > STAGES_MAX)
        return node_refuse(list, "stages", e, "expected a list of 1 to %d maps {name: NAME, steps: N, set: {...}}",
                           STAGES_MAX);
    c->stage = xcalloc((size_t)list->n, sizeof *c->stage);
    int64_t sum = 0;
    for (int k = 0; k < list->n; k++) {
        const Node *x = list->kid[k];
        Stage *s = &c->stage[c->nstages++];
        char at[32];
        snprintf(at, sizeof at, "stages.%d", k);
        if (x->type != NODE_MAP)
            return node_refuse(x, at, e, "expected a map {name: NAME, steps: N, set: {...}}, got %s", node_type(x));
        if (!schema_read(stage_keys, x, at, NULL, s, e)) return false;
        if (!name_fits(s->name))
            return node_refuse(x, at, e, "name: expected 1 to %d letters, digits, - and _", STAGE_NAME_MAX - 1);
        for (int i = 0; i < k; i++)
            if (!strcmp(c->stage[i].name, s->name))
                return node_refuse(x, at, e, "two stages have the name %s", s->name);
        s->first = sum;
        sum += s->steps; /* at most STAGES_MAX 1e12 */
    }
    if (steps && c->train.steps != sum)
        return node_refuse(steps, "train.steps", e,
                           "%lld, but the stages have %lld together; leave it out, their steps decide",
                           (long long)c->train.steps, (long long)sum);
    c->train.steps = sum;
    return true;
}

/* Keys that are the run's: where it writes, what it starts from, what its noise is a function of, what its ids and the
 * optimizer's moments mean. */
static bool may_set(const Node *x, const char *path, Err *e) {
    static const char *const fixed[] = {"run",
                                        "dist",
                                        "stages",
                                        "init_from",
                                        "init_change",
                                        "lora",
                                        "train.max_seconds",
                                        "data.tokenizer",
                                        "data.eot",
                                        "model.vocab",
                                        "optim.kind",
                                        "optim.state_dtype",
                                        "train.frozen_dtype",
                                        NULL};
    char at[256];
    for (int i = 0; fixed[i]; i++) {
        size_t n = strlen(fixed[i]);
        if (!strncmp(path, fixed[i], n) && (!path[n] || path[n] == '.'))
            return node_refuse(x, path, e, "belongs to the run as a whole; a stage may not set it");
    }
    if (!strcmp(path, "train.steps")) return node_refuse(x, path, e, "is the stage's own `steps`; give it there");
    for (const Key *k = config_keys; x->type != NODE_MAP && k->name; k++)
        if (!strcmp(k->name, path)) return node_refuse(x, path, e, "expected a map of settings, got %s", node_type(x));
    for (int i = 0; x->type == NODE_MAP && i < x->n; i++)
        if (!may_set(x->kid[i], schema_join(at, path, x->kid[i]->key), e)) return false;
    return true;
}

/* As YAML in one line. Quotes where the text could be taken for something else between braces. */
static void write_node(Writer *w, const Node *x) {
    if (x->type == NODE_MAP) {
        write_map(w, true);
        for (int i = 0; i < x->n; i++) write_name(w, x->kid[i]->key), write_node(w, x->kid[i]);
        write_map_end(w);
    } else if (x->type == NODE_LIST) {
        write_list(w);
        for (int i = 0; i < x->n; i++) write_item(w), write_node(w, x->kid[i]);
        write_list_end(w);
    } else {
        const char *s = node_null(x) ? "" : x->text;
        bool plain =
            *s && !x->quoted && !s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-%")];
        plain ? write_raw(w, s) : write_text(w, s);
    }
}

static char *set_text(const Node *set) {
    char *text = NULL;
    size_t n;
    Writer w = {.first = true, .f = oom_stream(&text, &n)};
    write_node(&w, set);
    fclose(w.f);
    return text;
}

/* Where the settings come from that the stage does not set: no line of the file is theirs. */
static void relabel(Node *x, const char *where) {
    x->where = where, x->line = 0;
    for (int i = 0; i < x->n; i++) relabel(x->kid[i], where);
}

/* Maps are put in entry by entry, anything else in place of what is there. */
static bool put(Node *root, const char *path, const Node *x, Err *e) {
    char at[256];
    if (x->type != NODE_MAP) return tree_put(root, path, tree_copy(x), x, e);
    for (int i = 0; i < x->n; i++)
        if (!put(root, schema_join(at, path, x->kid[i]->key), x->kid[i], e)) return false;
    return true;
}

static bool stage_build(const Config *c, Stage *s, const char *base, const Node *map, const char *where, Err *e) {
    static const Node nothing = {.type = NODE_MAP, .where = ""};
    const Node *set = tree_get(map, "set");
    char steps[48];
    if (!set || node_null(set)) set = &nothing;
    if (set->type != NODE_MAP) return node_refuse(set, "set", e, "expected a map of settings, got %s", node_type(set));
    s->set = set_text(set);
    if (!may_set(set, "", e)) return false;
    Node *root = tree_yaml(base, strlen(base), where, e);
    if (!root) return false;
    relabel(root, where);
    defaults_leave(c, root);
    snprintf(steps, sizeof steps, "train.steps=%lld", (long long)s->steps);
    if (!tree_override(root, steps, e) || !put(root, "", set, e)) {
        tree_free(root);
        return false;
    }
    s->cfg = xcalloc(1, sizeof *s->cfg);
    return config_tree(s->cfg, root, 0, NULL, e);
}

bool stages_build(Config *c, const Node *root, Err *e) {
    const Node *list = tree_get(root, "stages");
    if (!c->nstages) return true;
    int n = c->nstages;
    c->nstages = 0; /* the settings that all begin with */
    char *base = config_text(c);
    c->nstages = n;
    bool ok = true;
    for (int k = 0; ok && k < n; k++) {
        Err why = {0};
        ok = stage_build(c, &c->stage[k], base, list->kid[k], root->where, &why);
        if (!ok && why.status == EXIT_WORLD) err_world(e, "%s", why.msg);
        if (!ok && why.status != EXIT_WORLD) err_input(e, "stage %s: %.250s", c->stage[k].name, why.msg);
    }
    free(base);
    double all = 0;
    for (int k = 0; ok && k < n; k++) {
        const Config *s = c->stage[k].cfg;
        all += (double)s->train.steps * s->train.batch * s->data.seq_len;
    }
    if (ok && all > 4e18) ok = node_refuse(list, "stages", e, "%.3g tokens together; at most 4e18 can be counted", all);
    return ok;
}

/* ---- writing -------------------------------------------------------------------------------------------------------
 */

/* With what follows from them, so that another version of the program reads the same from them. */
static void set_write(Writer *w, const Config *run, const Stage *s) {
    Node *set = tree_yaml(s->set, strlen(s->set), "set", &(Err){0});
    CHECK(set && set->type == NODE_MAP, "set: %s", s->set);
    write_map(w, true);
    for (int i = 0; i < set->n; i++) write_name(w, set->kid[i]->key), write_node(w, set->kid[i]);
    defaults_write(s->cfg, run, w);
    write_map_end(w);
    tree_free(set);
}

void stages_write(Writer *w, const Config *c) {
    if (!c->nstages) return;
    write_name(w, "stages");
    write_list(w);
    for (int k = 0; k < c->nstages; k++) {
        const Stage *s = &c->stage[k];
        write_item(w);
        write_map(w, true);
        schema_write(w, stage_keys, s);
        write_name(w, "set");
        set_write(w, c, s);
        write_map_end(w);
    }
    write_list_end(w);
}

/* ---- views ---------------------------------------------------------------------------------------------------------
 */

int config_stages(const Config *c) { return c->nstages ? c->nstages : 1; }

void config_dtype(Config *c, int dtype) {
    if (c->train.dtype == DTYPE_AUTO) c->train.dtype = dtype;
    for (int k = 0; k < c->nstages; k++)
        if (c->stage[k].cfg->train.dtype == DTYPE_AUTO) c->stage[k].cfg->train.dtype = dtype;
}
void config_frozen_dtype(Config *c, int dtype) {
    if (c->train.frozen_dtype == DTYPE_AUTO) c->train.frozen_dtype = dtype;
    for (int k = 0; k < c->nstages; k++) c->stage[k].cfg->train.frozen_dtype = c->train.frozen_dtype;
}
Stage config_stage(const Config *c, int k) {
    CHECK(k >= 0 && k < config_stages(c), "stage %d of %d", k, config_stages(c));
    if (c->nstages) return c->stage[k];
    return (Stage){.steps = c->train.steps, .cfg = (Config *)c};
}

int config_stage_at(const Config *c, int64_t step) {
    int k = 0;
    while (k + 1 < c->nstages && step > c->stage[k + 1].first) k++;
    return k;
}

void config_position(const Config *c, int64_t step, int64_t *samples, int64_t *tokens) {
    *samples = *tokens = 0;
    for (int k = 0; k <= config_stage_at(c, step); k++) {
        Stage s = config_stage(c, k);
        int64_t done = step - s.first < s.steps ? step - s.first : s.steps;
        *samples += done * s.cfg->train.batch;
        *tokens += done * s.cfg->train.batch * s.cfg->data.seq_len;
    }
}
