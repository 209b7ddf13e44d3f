/* config.c: reads the settings of a run from YAML and overrides, and checks that they agree with each other. */
#include "config_keys.h"
#include "optim/optimizer.h"
#include "hints.h"
#include "model/files/source.h"
#include "task_cfg.h"
#include <stdarg.h>
#include <stdlib.h>

/* ---- reading all of it ------------------------------------------------------------------------------------------- */

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

/* The node of a setting; if the user did not write it, a node with the file alone, because no line is to blame. */
static Node node_at(const Node *root, const char *section, const char *name) {
    const Node *s = tree_get(root, section), *x = s ? tree_get(s, name) : NULL;
    return x ? *x : (Node){.type = NODE_MAP, .where = root->where};
}
/* Text to append to a value in a message. */
static const char *by_default(const Node *root, const char *section, const char *name) {
    return config_given(root, section, name) ? "" : " (default)";
}

/* Conversations are documents by themselves, so no separator may be set. */
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

/* Only one of text and task may be given, and no text settings together with a task. */
static bool task_section(Config *c, const Node *root, Err *e) {
    const Node *data = tree_get(root, "data"), *x = data ? tree_get(data, "task") : NULL;
    DataCfg *d = &c->data;
    const Node stop = node_at(root, "train", "stop_at_acc");
    if (!x || node_null(x))
        return c->train.stop_at_acc == 0 ||
               node_refuse(&stop, "train.stop_at_acc", e, "a text has no answers to score: give 0, or data.task");
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

/* What an optimizer has other defaults for. */
static void betas_follow(OptimCfg *o, const Node *root) {
    const Optimizer *k = optimizer_of(o);
    if (k->beta1 > 0 && !config_given(root, "optim", "beta1")) o->beta1 = k->beta1;
    if (k->beta2 > 0 && !config_given(root, "optim", "beta2")) o->beta2 = k->beta2;
}

/* Refuse section.name. */
__attribute__((format(printf, 5, 6))) static bool config_differ(const Node *root, const char *section, const char *name,
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
        return config_differ(root, "optim", "warmup", e, "%lld is more than %s, %lld%s", warmup, which, end, dflt);
    if (o->schedule == SCHEDULE_WSD && !decay)
        return config_differ(root, "optim", "decay_steps", e,
                             "schedule wsd needs the length of its decay, at least 1 step, e.g. 20%%");
    if (o->schedule == SCHEDULE_WSD && decay > end - warmup)
        return config_differ(root, "optim", "decay_steps", e,
                             "%lld steps of decay after %lld of optim.warmup%s are more than %s, %lld%s", decay, warmup,
                             by_default(root, "optim", "warmup"), which, end, dflt);
    if (falls && o->min_lr > o->lr)
        return config_differ(root, "optim", "min_lr", e,
                             "%g is more than optim.lr, %g%s; its default is a tenth of optim.lr", o->min_lr, o->lr,
                             by_default(root, "optim", "lr"));
    if (o->schedule_by == SCHEDULE_BY_TIME && c->train.max_seconds == 0)
        return config_differ(root, "optim", "schedule_by", e,
                             "time needs train.max_seconds, the time to share out; it is 0, no end%s",
                             by_default(root, "train", "max_seconds"));
    return true;
}

static bool optimizer_agrees(const Config *c, const Node *root, Err *e) {
    const Optimizer *k = optimizer_of(&c->optim);
    if (!k->own_schedule) return true;
    if (c->nstages)
        return config_differ(root, "optim", "kind", e,
                             "%s keeps one mean over the whole run, which has stages; remove them", k->name);
    if (c->optim.schedule != SCHEDULE_CONSTANT)
        return config_differ(root, "optim", "schedule", e, "%s replaces a schedule; give constant", k->name);
    return true;
}

static bool config_agree(const Config *c, const Node *root, Err *e) {
    const TrainCfg *t = &c->train;
    int rows = c->data.seq_len, most = c->model.max_positions;
    if (rows > most && !config_given(root, "data", "seq_len"))
        return config_differ(root, "data", "seq_len", e,
                             "%d (default) is more than model.max_positions, %d; set data.seq_len=%d", rows, most,
                             most);
    if (rows > most)
        return config_differ(root, "data", "seq_len", e, "%d is more than model.max_positions, %d", rows, most);
    if (t->batch % t->micro_batch)
        return config_differ(root, "train", "micro_batch", e, "%d does not divide train.batch, %d%s", t->micro_batch,
                             t->batch, by_default(root, "train", "batch"));
    if ((int64_t)t->micro_batch * rows > ROWS_MAX)
        return config_differ(root, "train", "micro_batch", e,
                             "%d samples of data.seq_len %d are more than %d rows at once", t->micro_batch, rows,
                             ROWS_MAX);
    if ((double)t->steps * t->batch * rows > 4e18)
        return config_differ(root, "train", "steps", e,
                             "steps x batch x seq_len is %.3g tokens; at most 4e18 can be counted",
                             (double)t->steps * t->batch * rows);
    if (!schedule_agrees(c, root, e) || !optimizer_agrees(c, root, e)) return false;
    if (t->skip_z > 0 && t->skip_z < 1)
        return config_differ(root, "train", "skip_z", e, "expected 0 (none) or at least 1 deviation, got %g",
                             t->skip_z);
    if (c->lora.rank && (t->freeze.n || t->train_only.n))
        return config_differ(root, "train", t->freeze.n ? "freeze" : "train_only", e,
                             "with lora.rank %d only the adapters are trained; remove one", c->lora.rank);
    if (t->recompute > c->model.layers)
        return config_differ(root, "train", "recompute", e, "%d is more than model.layers, %d", t->recompute,
                             c->model.layers);
    return true;
}

/* Recognise files that are not settings of a run but look similar. */
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

/* ??? marks a value that only the user knows. */
static bool nothing_asked(const Node *x, const char *path, Err *e) {
    char at[256], index[16];
    if (x->type == NODE_SCALAR && !x->quoted && !strcmp(x->text, "???"))
        return node_refuse(x, path, e, "??? is a placeholder for a value that must be given; add %.100s=VALUE", path);
    for (int i = 0; i < x->n; i++) {
        snprintf(index, sizeof index, "%d", i);
        if (!nothing_asked(x->kid[i], schema_join(at, path, x->kid[i]->key ? x->kid[i]->key : index), e)) return false;
    }
    return true;
}

/* Unless `model` is complete, take it from init_from, with the given keys on top; take the tokenizer too. */
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
    if (ok) betas_follow(&c->optim, root);
    ok = ok && groups_read(&c->optim, optim ? tree_get(optim, "groups") : NULL, e);
    ok = ok && task_section(c, root, e) && sft_section(c, root, e);
    const Node none = {.where = root->where};
    if (ok && !model)
        ok = node_refuse(&none, "model", e, "required, but not given: the shape of the model, or init_from: DIR");
    ok = ok && model_cfg_read(&c->model, model, "model", c->data.seq_len, e) && stages_list(c, root, e);
    if (ok) defaults_follow(c, root);
    ok = ok && config_agree(c, root, e) && stages_build(c, root, config_tree, e);
    if (!ok) config_free(c);
    tree_free(root);
    return ok;
}

bool config_parse(Config *c, const char *text, size_t n, const char *where, int noverride, char *const override[],
                  Err *e) {
    return config_tree(c, tree_yaml(text, n, where, e), noverride, override, e);
}

/* Replace ${here} at the start of a text by the folder of the file. */
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

/* Check, over all stages, that the settings of a teacher or of adapters are used. */
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
