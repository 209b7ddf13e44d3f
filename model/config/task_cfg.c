/* task_cfg.c: reads and writes the settings of tasks, as YAML, JSON and key=value words. */
#include "task_cfg.h"
#include "ops/file.h"
#include "ops/oom.h"

static const char json_key[] = "kvsmith_task";
static const Key T_key = {"T", KEY_INT, offsetof(TaskCfg, T), NULL, 1, TASK_LEN_MAX, "tokens of a sample", 0, 0};

static bool name_read(const Node *x, const char *path, const Task **kind, Err *e) {
    char at[256];
    const Node *name = x->type == NODE_MAP ? tree_get(x, "name") : x;
    if (x->type == NODE_MAP) schema_join(at, path, "name");
    if (!name) return node_refuse(x, at, e, "required, but not given: the task's name");
    if (name->type != NODE_SCALAR || node_null(name))
        return node_refuse(name, x == name ? path : at, e, "expected {name: TASK, settings...}, got %s",
                           node_type(name));
    *kind = task_find(name->text);
    if (*kind) return true;
    const char *names[TASK_NAME_MAX] = {0};
    for (int i = 0; tasks[i] && i < TASK_NAME_MAX - 1; i++) names[i] = tasks[i]->name;
    return schema_unknown(name, x == name ? path : at, name->text, NULL, names, e);
}

/* The keys of a task, with T among them if it is wanted. */
static void keys_join(Key out[TASK_NAME_MAX], const Task *kind, bool with_T) {
    int n = 0;
    if (with_T) out[n++] = T_key;
    for (const Key *k = kind->keys; k->name; k++) {
        CHECK(n < TASK_NAME_MAX - 1, "%s has too many keys", kind->name);
        out[n++] = *k;
    }
    out[n] = (Key){0};
}

static bool read_map(TaskCfg *c, const Node *x, const char *path, int T, Err *e) {
    Key keys[TASK_NAME_MAX];
    Err why = {0};
    Node none = {.type = NODE_MAP, .line = x->line, .where = x->where};
    *c = (TaskCfg){.T = T};
    const Task *kind;
    if (!name_read(x, path, &kind, e)) return false;
    keys_join(keys, kind, T == 0);
    if (!schema_read(keys, x->type == NODE_MAP ? x : &none, path, "name", c, e)) return false;
    c->kind = kind;
    return kind->check(c, &why) || node_refuse(x, path, e, "%s", why.msg);
}
bool task_cfg_read(TaskCfg *c, const Node *x, const char *path, int T, Err *e) {
    CHECK(T >= 1, "T %d", T);
    bool ok = read_map(c, x, path, T, e);
    if (!ok) *c = (TaskCfg){0};
    return ok;
}
bool task_cfg_read_whole(TaskCfg *c, const Node *x, const char *path, Err *e) {
    bool ok = read_map(c, x, path, 0, e);
    if (!ok) *c = (TaskCfg){0};
    return ok;
}

void task_cfg_write(Writer *w, const TaskCfg *c, bool with_T) {
    Key keys[TASK_NAME_MAX];
    keys_join(keys, c->kind, with_T);
    write_name(w, "name");
    write_text(w, c->kind->name);
    schema_write(w, keys, c);
}

char *task_cfg_json(const TaskCfg *c) {
    char *text = NULL;
    size_t n;
    Writer w = {.json = true, .first = true, .f = oom_stream(&text, &n)};
    write_map(&w, true);
    task_cfg_write(&w, c, true);
    write_map_end(&w);
    fclose(w.f);
    return text;
}

bool task_cfg_load(TaskCfg *c, const char *dir, Err *e) {
    char *path = xformat("%s/config.json", dir);
    *c = (TaskCfg){0};
    json_t *j = json_read(path, e);
    const json_t *own = json_object_get(j, json_key);
    bool ok = j != NULL;
    if (own) {
        char *text = json_dumps(own, JSON_COMPACT | JSON_ENCODE_ANY);
        Node *x = text ? tree_json(text, strlen(text), path, e) : NULL;
        ok = text || err_runtime(e, "%s: out of memory", path);
        ok = ok && x && task_cfg_read_whole(c, x, json_key, e);
        tree_free(x);
        free(text);
    }
    json_decref(j);
    free(path);
    return ok;
}

bool task_cfg_save(const TaskCfg *c, const char *dir, Err *e) {
    char *path = xformat("%s/config.json", dir), *text = task_cfg_json(c);
    json_t *j = json_read(path, e), *own = j ? json_parse(text, strlen(text), "the task's settings", NULL, e) : NULL;
    bool ok = own && !json_object_set_new(j, json_key, own) && json_write(path, j, e);
    json_decref(j);
    free(text);
    free(path);
    return ok;
}

/* ---- key=value words --------------------------------------------------------------------------------------------- */

static bool word_sets(const char *word, const Key *keys) {
    for (const Key *k = keys; k->name; k++) {
        size_t n = strlen(k->name);
        if (!strncmp(word, k->name, n) && word[n] == '=') return true;
    }
    return false;
}

static bool word_unknown(const char *word, const Key *keys, const Key *more, Err *e) {
    char name[64];
    const char *names[TASK_NAME_MAX] = {0};
    const char *eq = strchr(word, '=');
    Node here = {.where = "command line"};
    if (!eq) return node_refuse(&here, "", e, "expected key=value, got '%.80s'", word);
    snprintf(name, sizeof name, "%.*s", (int)(eq - word), word);
    here.key = name;
    for (int n = 0; more[n].name && n < TASK_NAME_MAX - 1; n++) names[n] = more[n].name;
    return schema_unknown(&here, name, name, keys, names, e);
}

bool task_cfg_words(TaskCfg *c, const char *name, const TaskCfg *base, int T, const Key *more, void *cfg, int nword,
                    char *const word[], Err *e) {
    const Task *kind = task_find(name);
    CHECK(kind, "task %s", name);
    bool known = base && base->kind == kind;
    char *text = known ? task_cfg_json(base) : xformat("{\"name\": \"%s\", \"T\": %d}", name, T);
    Node *own = tree_json(text, strlen(text), "command line", e), *rest = tree_json("{}", 2, "command line", e);
    Key keys[TASK_NAME_MAX];
    keys_join(keys, kind, true);
    bool ok = own && rest;
    for (int i = 0; ok && i < nword; i++)
        ok = word_sets(word[i], keys)   ? tree_override(own, word[i], e)
             : word_sets(word[i], more) ? tree_override(rest, word[i], e)
                                        : word_unknown(word[i], keys, more, e);
    ok = ok && schema_read(more, rest, "", NULL, cfg, e) && task_cfg_read_whole(c, own, "", e);
    tree_free(own);
    tree_free(rest);
    free(text);
    return ok;
}
