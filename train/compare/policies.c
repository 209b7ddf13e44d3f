#include "policies.h"
#include "data/task_text.h"
#include "infer/eval/task_run.h"
#include "compare.h"
#include "model/cost.h"
#include "ops/file.h"
#include "ops/oom.h"

enum { TASKS_MAX = 16, SEEDS_COMPARED_MAX = 32, BUDGETS_MAX = 16, SPECS_MAX = 64, FORMS = 2 };
static const char *const form_names[FORMS] = {"aware", "agnostic"};

typedef struct {
    int64_t samples;
} Wanted;
static const Key want_keys[] = {{"samples", KEY_LONG, offsetof(Wanted, samples), "100", 1, 1e9, "number of samples", 0,
                                 0},
                                {0}};

/* A policy at a budget, its rows stored by a codec. */
typedef struct {
    const char *name, *spec, *codec; /* as given; as --policy and --cache-dtype would take it; NULL: the model's own */
    double budget;
} PolicyRow;
/* A row's samples of one form, over all tasks and seeds. */
typedef struct {
    TaskScore sum;
    TaskAgainst against;
    double seed[SEEDS_COMPARED_MAX], task[TASKS_MAX]; /* mean accuracies */
} Cell;
typedef struct {
    const ComparePolicies *a;
    Engine dense;
    int ntask, nspec, nbudget, forms;
    char *task_name[TASKS_MAX], *name[SPECS_MAX], *spec[SPECS_MAX]; /* POLICY@CODEC; POLICY */
    const char *codec[SPECS_MAX];                                   /* into `name`; NULL: none is given */
    TaskCfg task[TASKS_MAX];
    Wanted want;
    double budget[BUDGETS_MAX], prompt; /* rows of a prompt, mean */
} Comparison;

/* Words of a list that `between` separates; false: more than `most`. */
static bool list_split(const char *text, const char *between, int most, char **word, int *n, const char *name, Err *e) {
    char *copy = xstrdup(text), *rest = copy, *one;
    bool ok = true;
    while (ok && (one = strsep(&rest, between))) {
        if (!*one) continue;
        if (*n == most) ok = err_input(e, "%s: more than %d", name, most);
        if (ok) word[(*n)++] = xstrdup(one);
    }
    free(copy);
    return ok && (*n || err_input(e, "%s: expected a list, got '%.60s'", name, text));
}

static bool budgets_read(Comparison *c, Err *e) {
    char *word[BUDGETS_MAX];
    int n = 0;
    bool ok = list_split(c->a->budgets ? c->a->budgets : "0.5,0.25,0.125", ",", BUDGETS_MAX, word, &n, "--budgets", e);
    for (int i = 0; i < n; i++) {
        ok = ok && cli_real(word[i], "--budgets", 0.001, 1, &c->budget[i], e);
        free(word[i]);
    }
    c->nbudget = n;
    return ok;
}

/* "NAME:key=value,...": its settings come after those of all tasks. */
static bool task_read(Comparison *c, int i, char *text, Err *e) {
    char *word[256], *rest = strchr(text, ':'), *one;
    int n = 0;
    if (rest) *rest++ = 0;
    for (int k = 0; k < c->a->nword && n < 128; k++) word[n++] = c->a->word[k];
    while (rest && (one = strsep(&rest, ",")) && n < 256) word[n++] = one;
    const Task *kind = task_find(text);
    if (!kind) return err_input(e, "--tasks: no task has the name '%.60s'; see kvsmith config", text);
    if (!c->dense.task.kind && !task_spelled(&c->dense, kind))
        return err_input(e,
                         "--tasks: %.120s was not trained on a task and cannot be asked %s in text; expected niah or "
                         "another task of text, and a model with a tokenizer",
                         c->dense.dir, text);
    TaskCfg *t = &c->task[i];
    if (!task_cfg_words(t, text, &c->dense.task, c->dense.cfg.max_positions, want_keys, &c->want, n, word, e))
        return false;
    if (!kind->text) c->forms = 1;
    return task_spelled(&c->dense, kind) || t->vocab <= c->dense.cfg.vocab ||
           err_input(e, "--tasks %s: vocab %d, but the model has %d ids; give vocab=N, at most as many", text, t->vocab,
                     c->dense.cfg.vocab);
}
static bool tasks_read(Comparison *c, Err *e) {
    const char *own = c->dense.task.kind ? c->dense.task.kind->name : NULL, *list = c->a->tasks ? c->a->tasks : own;
    if (!list) return err_input(e, "compare --policies: %.150s was not trained on a task; give --tasks", c->dense.dir);
    bool ok = list_split(list, " ", TASKS_MAX, c->task_name, &c->ntask, "--tasks", e);
    for (int i = 0; ok && i < c->ntask; i++) ok = task_read(c, i, c->task_name[i], e);
    return ok;
}

static bool spec_is(const char *spec, const char *name) {
    const size_t n = strcspn(spec, ":");
    return strlen(name) == n && !strncmp(spec, name, n);
}
/* The policies with the controls in front. */
static bool specs_read(Comparison *c, Err *e) {
    static const char *const controls[] = {"window", "random"};
    PolicyCfg p;
    char *given[SPECS_MAX];
    int n = 0;
    bool ok = list_split(c->a->policies, " ", SPECS_MAX - 2, given, &n, "--policies", e);
    for (int k = 0; k < 2; k++) {
        bool has = false;
        for (int i = 0; i < n; i++) has |= spec_is(given[i], controls[k]) && !strchr(given[i], '@');
        if (has) continue;
        c->name[c->nspec] = xstrdup(controls[k]);
        c->spec[c->nspec++] = xstrdup(controls[k]);
    }
    for (int i = 0; i < n; i++) {
        const int k = c->nspec++;
        const size_t at = strcspn(given[i], "@");
        RowCodec codec;
        c->name[k] = given[i], c->spec[k] = xformat("%.*s", (int)at, given[i]);
        c->codec[k] = given[i][at] ? given[i] + at + 1 : NULL;
        ok = ok && policy_parse(c->spec[k], &p, e) && (!c->codec[k] || codec_parse(c->codec[k], &codec, e)) &&
             (p.of || c->codec[k] ||
              err_input(e, "--policies: none is the dense cache, which is always there; none@CODEC stores its rows "
                           "by another codec"));
    }
    return ok;
}
static bool policy_has(const Policy *p, const char *key) {
    for (const Key *k = p->keys; k->name; k++)
        if (!strcmp(k->name, key)) return true;
    return false;
}
static bool is_dense(const char *spec) { return !strcmp(spec, "none"); }
/* The policy with a budget: its share of the prompt's rows; of one that selects what a step reads, the share of the
 * text's; of one without such a setting, as many newest rows. A policy that can wait for the end of the prompt does so,
 * unless its settings say when. */
static char *spec_at(const Comparison *c, const char *base, double budget) {
    PolicyCfg p;
    Err e = {0};
    CHECK(policy_parse(base, &p, &e) && p.of, "%s: %s", base, e.msg);
    char *spec = xformat("%s%s", base, strchr(base, ':') ? "," : ":"), *more;
    if (policy_has(p.of, "budget"))
        more = xformat("%sbudget=%g", spec, budget);
    else if (p.of == p.read)
        more = xformat("%sreads=%g", spec, budget);
    else
        more = xformat("%swindow=%d", spec, imax(1, (int)lround(budget * c->prompt) - p.sinks));
    free(spec);
    if (!policy_has(p.of, "every") || strstr(base, "every=")) return more;
    spec = xformat("%s,every=0", more);
    free(more);
    return spec;
}

/* ---- the work ----------------------------------------------------------------------------------------------------*/

static bool cell_run(Comparison *c, Engine *en, int form, Cell *cell, Err *e) {
    const int seeds = (int)c->a->seeds;
    for (int s = 0; s < seeds; s++)
        for (int t = 0; t < c->ntask; t++) {
            const TaskHow how = {c->want.samples, s + 1, (int)c->a->batch, (int)c->a->chunk, form == 1};
            TaskScore one = {0};
            if (!task_run(en, &c->dense, &c->task[t], &how, &one, &cell->against, e)) return false;
            const double mean = one.part / (double)one.samples;
            cell->seed[s] += mean / c->ntask;
            cell->task[t] += mean / seeds;
            task_score_add(&cell->sum, &one);
        }
    return true;
}
static json_t *cell_json(const Comparison *c, const PolicyRow *r, int form, const Cell *cell) {
    const TaskScore *s = &cell->sum, *d = &cell->against.dense;
    const Spread spread = compare_spread((int)c->a->seeds, cell->seed);
    const double n = (double)cell->against.answers;
    json_t *tasks = json_object();
    for (int t = 0; t < c->ntask; t++) json_object_set_new(tasks, c->task_name[t], json_real(cell->task[t]));
    return json_pack("{s:s, s:s, s:s?, s:f, s:s, s:f, s:o, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o}", "policy", r->name,
                     "spec", r->spec, "codec", r->codec, "budget", r->budget, "question", form_names[form], "accuracy",
                     spread.mean, "accuracy_sd", engine_number(spread.sd), "kl", cell->against.kl / n, "top1",
                     (double)cell->against.same / n, "resident_bytes", s->bytes / (double)s->samples, "resident_share",
                     s->bytes / d->bytes, "read_bytes", s->read / (double)s->rows, "prompt_overhead",
                     engine_number(s->prompt_s / d->prompt_s - 1), "decode_tok_s",
                     engine_number((double)s->rows / s->decode_s), "tasks", tasks);
}
/* The model with the row's policy and codec, which lie in `own` as long as it is open; `dry`: without its weights. */
static bool row_open(const Comparison *c, const PolicyRow *r, bool dry, Cli *own, Engine *en, Err *e) {
    if (!policy_parse(r->spec, &own->policy, e)) return false;
    if (r->codec) {
        if (!codec_parse(r->codec, &own->own_codec, e)) return false;
        own->codec = &own->own_codec;
    }
    return dry ? engine_measure(en, c->dense.dir, own, e) : engine_open(en, c->dense.dir, own, e);
}
static bool row_run(Comparison *c, const PolicyRow *r, int form, const Cli *cli, json_t *rows, Err *e) {
    Engine en;
    Cli own = *cli;
    Cell cell = {.sum = {0}};
    if (!row_open(c, r, false, &own, &en, e)) return false;
    const bool ok = cell_run(c, &en, form, &cell, e);
    engine_close(&en);
    if (!ok) return false;
    if (is_dense(r->spec) && !r->codec) c->prompt = (double)cell.sum.prompt / (double)cell.sum.samples;
    json_array_append_new(rows, cell_json(c, r, form, &cell));
    if (!cli->quiet)
        fprintf(stderr, "%-40s %-8s accuracy %.4f  KL %.4f  %.1f %% of the bytes%s%s\n", r->spec, form_names[form],
                compare_spread((int)c->a->seeds, cell.seed).mean, cell.against.kl / (double)cell.against.answers,
                100 * cell.sum.bytes / cell.against.dense.bytes, r->codec ? "  " : "", r->codec ? r->codec : "");
    return true;
}
/* Every policy and codec goes with the model: nothing has run when one does not. `longest`: tokens of a context. */
static bool rows_check(const Comparison *c, const Cli *cli, int longest, Err *e) {
    bool ok = true;
    for (int i = 0; ok && i < c->nspec; i++) {
        Engine en;
        Cli own = *cli;
        size_t bytes;
        char *spec = is_dense(c->spec[i]) ? xstrdup("none") : spec_at(c, c->spec[i], c->budget[0]);
        const PolicyRow r = {c->name[i], spec, c->codec[i], c->budget[0]};
        if ((ok = row_open(c, &r, true, &own, &en, e))) {
            ok = cost_cache_mapped(&en.model, 1, longest, longest, &bytes, e);
            engine_close(&en);
        }
        free(spec);
    }
    return ok;
}
static bool form_run(Comparison *c, int form, const Cli *cli, json_t *rows, Err *e) {
    bool ok = row_run(c, &(PolicyRow){"none", "none", NULL, 1}, form, cli, rows, e);
    for (int i = 0; i < c->nspec; i++) {
        const bool all = is_dense(c->spec[i]); /* one row: it has no budget */
        for (int b = 0; ok && b < (all ? 1 : c->nbudget); b++) {
            char *spec = all ? xstrdup("none") : spec_at(c, c->spec[i], c->budget[b]);
            const PolicyRow r = {c->name[i], spec, c->codec[i], all ? 1 : c->budget[b]};
            ok = row_run(c, &r, form, cli, rows, e);
            free(spec);
        }
    }
    return ok;
}

/* ---- results -----------------------------------------------------------------------------------------------------*/

static bool result_write(const char *dir, const char *name, const json_t *j, void (*write)(FILE *, const json_t *),
                         Err *e) {
    char *text = NULL, *path = xformat("%s/%s", dir, name);
    size_t n;
    FILE *f = oom_stream(&text, &n);
    write(f, j);
    fclose(f);
    const bool ok = file_write(path, text, n, e);
    free(text), free(path);
    return ok;
}
static bool results(const Comparison *c, json_t *rows, const Cli *cli, Err *e) {
    json_t *tasks = json_array();
    for (int t = 0; t < c->ntask; t++) {
        char *settings = task_cfg_json(&c->task[t]);
        json_array_append_new(tasks, json_parse(settings, strlen(settings), "settings", NULL, e));
        free(settings);
    }
    json_t *j = json_pack("{s:s, s:I, s:I, s:o, s:O}", "model", c->a->model, "seeds", (json_int_t)c->a->seeds,
                          "samples", (json_int_t)c->want.samples, "tasks", tasks, "rows", rows);
    const char *dir = c->a->out;
    bool ok = true;
    if (dir) {
        char *path = xformat("%s/policies.json", dir);
        ok = file_folders(dir, "folder", NULL, e) && json_write(path, j, e) &&
             result_write(dir, "policies.md", j, policies_table, e) &&
             result_write(dir, "policies.svg", j, policies_plot, e);
        free(path);
    }
    if (ok && !cli->json) policies_table(stdout, j);
    if (ok && cli->json) return engine_print(j, e);
    json_decref(j);
    return ok;
}

bool compare_policies(const ComparePolicies *a, const Cli *cli, Err *e) {
    Comparison *c = xcalloc(1, sizeof *c);
    c->a = a, c->forms = FORMS;
    bool ok = budgets_read(c, e) && specs_read(c, e);
    json_t *rows = json_array();
    if (ok && (ok = engine_open(&c->dense, a->model, cli, e))) {
        ok = tasks_read(c, e);
        int longest = 1;
        for (int t = 0; t < c->ntask; t++) longest = imax(longest, c->task[t].T);
        if (ok) engine_plan(&c->dense, longest, cli->quiet);
        ok = ok && rows_check(c, cli, longest, e);
        for (int form = 0; ok && form < c->forms; form++) ok = form_run(c, form, cli, rows, e);
        ok = ok && results(c, rows, cli, e);
        engine_close(&c->dense);
    }
    json_decref(rows);
    for (int i = 0; i < c->nspec; i++) free(c->name[i]), free(c->spec[i]);
    for (int t = 0; t < c->ntask; t++) free(c->task_name[t]);
    free(c);
    return ok;
}
