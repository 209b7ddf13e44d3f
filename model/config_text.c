/* config_text.c: settings written, compared and described. */
#include "config_keys.h"
#include "task_cfg.h"

/* ---- writing -------------------------------------------------------------------------------------------------------
 */

static void open_text(Writer *w, bool json, char **text, size_t *n) {
    *w = (Writer){.json = json, .first = true, .f = open_memstream(text, n)};
    CHECK(w->f, "no memory for a text");
}
static void close_text(Writer *w, char **text) { CHECK(!fclose(w->f) && *text, "no memory for a text"); }

static void write_model(Writer *w, const ModelCfg *m) {
    char name[16];
    schema_write(w, model_keys, m);
    write_name(w, "kinds");
    write_map(w, false);
    for (int i = 0; i < m->nkinds; i++) {
        write_name(w, m->kind[i].name);
        write_map(w, false);
        write_name(w, "mixer");
        write_text(w, m->kind[i].mixer->name);
        schema_write(w, m->kind[i].mixer->keys, m->kind[i].cfg);
        write_map_end(w);
    }
    write_map_end(w);
    write_name(w, "pattern");
    write_list(w);
    for (int l = 0; l < m->layers; l++) write_item(w), write_text(w, m->kind[m->pattern[l]].name);
    write_list_end(w);
    write_name(w, "kv_from");
    write_map(w, true);
    for (int l = 0; l < m->layers; l++) {
        if (m->kv_from[l] == l) continue;
        snprintf(name, sizeof name, "%d", l);
        write_name(w, name);
        write_int(w, m->kv_from[l]);
    }
    write_map_end(w);
    write_name(w, "ffn");
    write_list(w);
    for (int i = 0; i < m->nffn; i++) {
        write_item(w);
        write_map(w, true);
        write_name(w, "kind");
        write_text(w, m->ffn[i].ffn->name);
        schema_write(w, m->ffn[i].ffn->keys, m->ffn[i].cfg);
        write_map_end(w);
    }
    write_list_end(w);
}

char *model_cfg_json(const ModelCfg *m) {
    char *text = NULL;
    size_t n;
    Writer w;
    open_text(&w, true, &text, &n);
    write_map(&w, false);
    write_model(&w, m);
    write_map_end(&w);
    close_text(&w, &text);
    return text;
}

static void write_section(Writer *w, const char *name, const Key *keys, const void *cfg) {
    write_name(w, name);
    write_map(w, false);
    schema_write(w, keys, cfg);
    write_map_end(w);
}

char *config_text(const Config *c) {
    char *text = NULL;
    size_t n;
    Writer w;
    open_text(&w, false, &text, &n);
    write_section(&w, "run", run_keys, &c->run);
    write_name(&w, "model");
    write_map(&w, false);
    write_model(&w, &c->model);
    write_map_end(&w);
    write_name(&w, "init_from");
    write_text(&w, c->init_from);
    write_name(&w, "data");
    write_map(&w, false);
    write_name(&w, "train");
    if (c->data.ntrain) {
        write_list(&w);
        for (int i = 0; i < c->data.ntrain; i++) write_item(&w), write_text(&w, c->data.train[i].path);
        write_list_end(&w);
    } else {
        write_text(&w, "");
    }
    write_name(&w, "task");
    if (c->data.task.kind) {
        write_map(&w, false);
        task_cfg_write(&w, &c->data.task, false);
        write_map_end(&w);
    } else {
        write_text(&w, "");
    }
    schema_write(&w, data_keys, &c->data);
    write_map_end(&w);
    write_section(&w, "train", train_keys, &c->train);
    write_section(&w, "optim", optim_keys, &c->optim);
    fputc('\n', w.f);
    close_text(&w, &text);
    return text;
}

/* ---- comparing -----------------------------------------------------------------------------------------------------
 */

static bool may_differ(const char *path) {
    static const char *const names[] = {"train.steps", "train.max_seconds", "train.stop_at_acc",
                                        "data.val",    "optim.warmup",      "optim.schedule_steps",
                                        NULL};
    size_t n = strlen(path);
    for (int i = 0; names[i]; i++)
        if (!strcmp(path, names[i])) return true;
    return !strncmp(path, "run.", 4) || (!strncmp(path, "train.", 6) && n > 6 && !strcmp(path + n - 6, "_every"));
}

static const char *shown(const Node *x) {
    return !x ? "nothing" : x->type != NODE_SCALAR ? node_type(x) : *x->text ? x->text : "null";
}

/* Walk two resolved texts side by side, so that no setting can be forgotten here. */
static bool same(const Node *saved, const Node *now, const char *path, Err *e) {
    char at[256], index[16];
    if (may_differ(path)) return true;
    bool nested = saved && now && saved->type != NODE_SCALAR && saved->type == now->type;
    if (nested && saved->type == NODE_LIST && saved->n != now->n)
        return err_input(e, "%s: a list of %d, but the run was begun with %d; that may not change on resume", path,
                         now->n, saved->n);
    if (!nested) {
        if (saved && now && saved->type == NODE_SCALAR && now->type == NODE_SCALAR && !strcmp(saved->text, now->text))
            return true;
        if (now && !strcmp(path, "model.vocab") && !strcmp(now->text, "0")) return true;
        return err_input(e, "%s: %.80s, but the run was begun with %.80s; that may not change on resume", path,
                         shown(now), shown(saved));
    }
    for (int i = 0; i < saved->n; i++) {
        const Node *a = saved->kid[i];
        snprintf(index, sizeof index, "%d", i);
        schema_join(at, path, a->key ? a->key : index);
        if (!same(a, a->key ? tree_get(now, a->key) : now->kid[i], at, e)) return false;
    }
    for (int i = 0; now->type == NODE_MAP && i < now->n; i++)
        if (!tree_get(saved, now->kid[i]->key) && !same(NULL, now->kid[i], schema_join(at, path, now->kid[i]->key), e))
            return false;
    return true;
}

bool config_resumable(const Config *saved, const Config *now, Err *e) {
    char *a = config_text(saved), *b = config_text(now);
    Node *x = tree_yaml(a, strlen(a), "the saved settings", e);
    Node *y = x ? tree_yaml(b, strlen(b), "the settings", e) : NULL;
    bool ok = y && same(x, y, "", e);
    tree_free(x);
    tree_free(y);
    free(a);
    free(b);
    return ok;
}

/* ---- describing ----------------------------------------------------------------------------------------------------
 */

static void section(FILE *f, bool markdown, const char *title, const char *note, const Key *keys, const char *prefix) {
    if (markdown) {
        fprintf(f, "\n## %s\n\n", title);
        if (*note) fprintf(f, "%s\n\n", note);
        fputs("| key | type | default | meaning |\n|---|---|---|---|\n", f);
    } else {
        fprintf(f, "\n%s%s%s\n", title, *note ? ": " : "", note);
    }
    schema_document(f, keys, prefix, markdown);
}

void config_document(FILE *f, bool markdown) {
    char title[128];
    static const char intro[] = "Settings of a run: a YAML file, then key=value on the command line, in order\n"
                                "(model.layers=4, data.train='[a.txt, b.txt]'). Unknown keys are errors.";
    fprintf(f, markdown ? "# Settings\n\n%s\n" : "%s\n", intro);
    section(f, markdown, "run", "", run_keys, "run.");
    section(f, markdown, "model", "", model_keys, "model.");
    for (int i = 0; mixers[i]; i++) {
        snprintf(title, sizeof title, "model.kinds.NAME with mixer: %s", mixers[i]->name);
        section(f, markdown, title, mixers[i]->source ? mixers[i]->source : "", mixers[i]->keys, "model.kinds.NAME.");
    }
    for (int i = 0; ffns[i]; i++) {
        snprintf(title, sizeof title, "model.ffn with kind: %s", ffns[i]->name);
        section(f, markdown, title, ffns[i]->source ? ffns[i]->source : "", ffns[i]->keys, "model.ffn.");
    }
    Key init[2] = {{0}};
    for (const Key *k = config_keys; k->name; k++)
        if (k->type == KEY_TEXT) init[0] = *k;
    section(f, markdown, "init_from", "", init, "");
    section(f, markdown, "data", "", data_keys, "data.");
    for (int i = 0; tasks[i]; i++) {
        snprintf(title, sizeof title, "data.task with name: %s", tasks[i]->name);
        section(f, markdown, title, tasks[i]->about, tasks[i]->keys, "data.task.");
    }
    section(f, markdown, "train", "", train_keys, "train.");
    section(f, markdown, "optim", "", optim_keys, "optim.");
}
