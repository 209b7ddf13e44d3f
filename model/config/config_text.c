/* config_text.c: writes, compares and documents settings. */
#include "config_keys.h"
#include "task_cfg.h"
#include "ops/oom.h"

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void open_text(Writer *w, bool json, char **text, size_t *n) {
    *w = (Writer){.json = json, .first = true, .f = oom_stream(text, n)};
}
static void close_text(Writer *w) { fclose(w->f); }

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
    /* a single part is written as a map, so that its keys are model.ffn.NAME */
    bool named = *m->ffn[0].name, list = !named && (w->json || m->nffn > 1);
    if (list) write_list(w);
    if (named) write_map(w, false);
    for (int i = 0; i < m->nffn; i++) {
        if (list) write_item(w);
        if (named) write_name(w, m->ffn[i].name);
        write_map(w, true);
        write_name(w, "kind");
        write_text(w, m->ffn[i].ffn->name);
        schema_write(w, m->ffn[i].ffn->keys, m->ffn[i].cfg);
        write_map_end(w);
    }
    if (list) write_list_end(w);
    if (!named) return;
    write_map_end(w);
    write_name(w, "ffn_pattern");
    write_list(w);
    for (int l = 0; l < m->layers; l++) write_item(w), write_text(w, m->ffn[m->ffn_pattern[l]].name);
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
    close_text(&w);
    return text;
}

static void write_section(Writer *w, const char *name, const Key *keys, const void *cfg) {
    write_name(w, name);
    write_map(w, false);
    schema_write(w, keys, cfg);
    write_map_end(w);
}

static void write_path(Writer *w, const Path *p) {
    write_item(w);
    if (p->weight == 0) {
        write_text(w, p->path);
        return;
    }
    write_map(w, true);
    schema_write(w, path_keys, p);
    write_map_end(w);
}

static void write_optim(Writer *w, const OptimCfg *o) {
    write_name(w, "optim");
    write_map(w, false);
    schema_write(w, optim_keys, o);
    write_name(w, "groups");
    write_list(w);
    for (int i = 0; i < o->ngroups; i++) {
        write_item(w);
        write_map(w, true);
        schema_write(w, group_keys, &o->group[i]);
        write_map_end(w);
    }
    write_list_end(w);
    write_map_end(w);
}

/* Keys that are in no section. */
enum { INIT_KEYS = 3 };
static void init_keys(Key out[INIT_KEYS]) {
    int n = 0;
    memset(out, 0, INIT_KEYS * sizeof *out);
    for (const Key *k = config_keys; k->name; k++) {
        if (k->type != KEY_TEXT && k->type != KEY_TEXTS) continue;
        CHECK(n + 1 < INIT_KEYS, "%s", k->name);
        out[n++] = *k;
    }
}

/* Write with derived defaults, so that another version of the program reads the same settings. */
static void write_set(Writer *w, const Config *run, const Stage *s) {
    Node *set = tree_yaml(s->set, strlen(s->set), "set", &(Err){0});
    CHECK(set && set->type == NODE_MAP, "set: %s", s->set);
    write_map(w, true);
    for (int i = 0; i < set->n; i++) write_name(w, set->kid[i]->key), write_node(w, set->kid[i]);
    defaults_write(s->cfg, run, w);
    write_map_end(w);
    tree_free(set);
}

static void write_stages(Writer *w, const Config *c) {
    if (!c->nstages) return;
    write_name(w, "stages");
    write_list(w);
    for (int k = 0; k < c->nstages; k++) {
        const Stage *s = &c->stage[k];
        write_item(w);
        write_map(w, true);
        schema_write(w, stage_keys, s);
        write_name(w, "set");
        write_set(w, c, s);
        write_map_end(w);
    }
    write_list_end(w);
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
    Key init[INIT_KEYS];
    init_keys(init);
    schema_write(&w, init, c);
    write_section(&w, "teacher", teacher_keys, &c->teacher);
    write_section(&w, "lora", lora_keys, &c->lora);
    write_name(&w, "data");
    write_map(&w, false);
    write_name(&w, "train");
    if (c->data.ntrain) {
        write_list(&w);
        for (int i = 0; i < c->data.ntrain; i++) write_path(&w, &c->data.train[i]);
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
    write_optim(&w, &c->optim);
    write_section(&w, "dist", dist_keys, &c->dist);
    write_stages(&w, c);
    fputc('\n', w.f);
    close_text(&w);
    return text;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static bool may_differ(const char *path) {
    static const char *const names[] = {"train.steps",       "train.max_seconds",
                                        "train.stop_at_acc", "data.val",
                                        "data.encoding",     "teacher.path",
                                        "optim.warmup",      "optim.schedule_steps",
                                        "optim.decay_steps", "train.attention",
                                        "train.async_save",  "train.save_dtype",
                                        "train.tensorboard", "train.skip_z",
                                        "train.skip_window", "train.skip_most",
                                        "train.eval_first",  "train.keep_last",
                                        "train.keep_best",   "init_change",
                                        "teacher.dtype",     NULL};
    size_t n = strlen(path);
    for (int i = 0; names[i]; i++)
        if (!strcmp(path, names[i])) return true;
    return !strncmp(path, "run.", 4) || !strncmp(path, "dist.", 5) || !strcmp(path, "optim.schedule_by") ||
           (!strncmp(path, "train.", 6) && n > 6 && !strcmp(path + n - 6, "_every"));
}

/* Settings of where and how long a run computes: two runs that differ only in these count as the same run. */
static bool same_anyway(const char *path) {
    static const char *const names[] = {"run.dir",         "run.device", "run.threads",       "run.isa",
                                        "run.tuning",      "run.graph",  "train.max_seconds", "train.keep_last",
                                        "train.keep_best", NULL};
    for (int i = 0; names[i]; i++)
        if (!strcmp(path, names[i])) return true;
    return !strncmp(path, "dist.", 5);
}

static const char *config_text_shown(const Node *x) {
    return !x ? "nothing" : x->type != NODE_SCALAR ? node_type(x) : *x->text ? x->text : "null";
}

/* Walk two resolved texts together, so that no setting can be forgotten here. */
typedef struct {
    bool (*may)(const char *path);
    const char *rule;
    Err *e;
} Walk;
static bool config_text_same(const Walk *k, const Node *saved, const Node *now, const char *path) {
    char at[256], index[16];
    if (k->may(path)) return true;
    bool nested = saved && now && saved->type != NODE_SCALAR && saved->type == now->type;
    if (nested && saved->type == NODE_LIST && saved->n != now->n)
        return err_input(k->e, "%s: a list of %d, but the run was begun with %d; %s", path, now->n, saved->n, k->rule);
    if (!nested) {
        if (saved && now && saved->type == NODE_SCALAR && now->type == NODE_SCALAR && !strcmp(saved->text, now->text))
            return true;
        bool chosen = !strcmp(path, "train.dtype") || !strcmp(path, "train.frozen_dtype") ||
                      !strcmp(path, "train.save_dtype"); /* when the run began */
        if (now && chosen && !strcmp(now->text, "auto")) return true;
        if (now && !strcmp(path, "model.vocab") && !strcmp(now->text, "0")) return true;
        return err_input(k->e, "%s: %.80s, but the run was begun with %.80s; %s", path, config_text_shown(now),
                         config_text_shown(saved), k->rule);
    }
    for (int i = 0; i < saved->n; i++) {
        const Node *a = saved->kid[i];
        snprintf(index, sizeof index, "%d", i);
        schema_join(at, path, a->key ? a->key : index);
        if (!config_text_same(k, a, a->key ? tree_get(now, a->key) : now->kid[i], at)) return false;
    }
    for (int i = 0; now->type == NODE_MAP && i < now->n; i++)
        if (!tree_get(saved, now->kid[i]->key) &&
            !config_text_same(k, NULL, now->kid[i], schema_join(at, path, now->kid[i]->key)))
            return false;
    return true;
}

static bool config_text_compare(const Config *saved, const Config *now, Walk k) {
    char *a = config_text(saved), *b = config_text(now);
    Node *x = tree_yaml(a, strlen(a), "the saved settings", k.e);
    Node *y = x ? tree_yaml(b, strlen(b), "the settings", k.e) : NULL;
    bool ok = y && config_text_same(&k, x, y, "");
    tree_free(x);
    tree_free(y);
    free(a);
    free(b);
    return ok;
}
bool config_same_run(const Config *saved, const Config *now, Err *e) {
    return config_text_compare(saved, now, (Walk){same_anyway, "that would be another run", e});
}

/* The advice comes first: the end of a long line is cut. */
static const char begun[] = "that may not change on resume: leave it as it was, or begin a run in another run.dir with "
                            "init_from: this one";

bool config_resumable(const Config *saved, const Config *now, int64_t step, Err *e) {
    int last = config_stage_at(saved, step);
    if (!saved->nstages != !now->nstages)
        return err_input(e, "stages: %s, but the run was begun with %s; that may not change on resume",
                         now->nstages ? "a list" : "none", saved->nstages ? "a list" : "none");
    if (config_stages(now) <= last)
        return err_input(e, "stages: a list of %d, but the run has come to stage %d, %s", now->nstages, last + 1,
                         saved->stage[last].name);
    for (int k = 0; k <= last; k++) {
        Stage a = config_stage(saved, k), b = config_stage(now, k);
        Err why = {0};
        if (strcmp(a.name, b.name))
            return err_input(e, "stages.%d.name: %s, but the run was begun with %s; that may not change on resume", k,
                             b.name, a.name);
        if (k < last ? a.steps != b.steps : now->nstages && b.first + b.steps < step)
            return err_input(e, "stages.%d.steps: %lld, but the run has done %lld steps of stage %s", k,
                             (long long)b.steps, (long long)(k < last ? a.steps : step - a.first), a.name);
        if (!config_text_compare(a.cfg, b.cfg, (Walk){may_differ, begun, &why}))
            return err_input(e, now->nstages ? "stage %s: %.250s" : "%s%s", a.name, why.msg);
    }
    return true;
}

/* ---- describing -------------------------------------------------------------------------------------------------- */

static void config_text_section(FILE *f, bool markdown, const char *title, const char *note, const Key *keys,
                                const char *prefix) {
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
                                "(model.layers=4, data.train='[a.txt, b.txt]'). Unknown keys are errors.\n"
                                "Numbers may be written 10k, 1.5M, 2G, 10_000 and 1e4, also where whole numbers are\n"
                                "expected. kvsmith config FILE checks a file and prints the settings of its run.";
    fprintf(f, markdown ? "# Settings\n\n%s\n" : "%s\n", intro);
    config_text_section(f, markdown, "run", "", run_keys, "run.");
    config_text_section(f, markdown, "model", "", model_keys, "model.");
    for (int i = 0; mixers[i]; i++) {
        snprintf(title, sizeof title, "model.kinds.NAME with mixer: %s", mixers[i]->name);
        config_text_section(f, markdown, title, mixers[i]->source ? mixers[i]->source : "", mixers[i]->keys,
                            "model.kinds.NAME.");
    }
    for (int i = 0; ffns[i]; i++) {
        snprintf(title, sizeof title, "model.ffn with kind: %s", ffns[i]->name);
        config_text_section(f, markdown, title, ffns[i]->source ? ffns[i]->source : "", ffns[i]->keys, "model.ffn.");
    }
    Key init[INIT_KEYS];
    init_keys(init);
    config_text_section(f, markdown, "init_from", "", init, "");
    config_text_section(f, markdown, "teacher", "", teacher_keys, "teacher.");
    config_text_section(f, markdown, "lora", "", lora_keys, "lora.");
    config_text_section(f, markdown, "stages", "a list; the run goes through them in order", stage_keys, "stages.N.");
    config_text_section(f, markdown, "data", "", data_keys, "data.");
    for (int i = 0; tasks[i]; i++) {
        snprintf(title, sizeof title, "data.task with name: %s", tasks[i]->name);
        config_text_section(f, markdown, title, tasks[i]->about, tasks[i]->keys, "data.task.");
    }
    config_text_section(f, markdown, "train", "", train_keys, "train.");
    config_text_section(f, markdown, "optim", "", optim_keys, "optim.");
    config_text_section(f, markdown, "optim.groups", "a list", group_keys, "optim.groups.N.");
    config_text_section(f, markdown, "dist", "Of runs of several ranks.", dist_keys, "dist.");
}
