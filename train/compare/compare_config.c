/* compare_config.c: settings of a comparison, and of every run that it is made of. */
#include "model/config/data_spec.h"
#include "model/cost.h"
#include "model/config/schema.h"
#include "compare.h"
#include "infer/engine.h"

static const char *const ways[] = {"ffn", NULL};
#define AT(member) offsetof(Compare, member)
static const Key match_keys[] = {
    {"params", KEY_LONG, AT(match.params), "0", 0, 1e12,
     "parameters of every row; 0: as many as the first row has, as written", 0, 0},
    {"tolerance", KEY_FLOAT, AT(match.tolerance), "0.03", 0, 1, "largest relative difference from that", 0, 0},
    {"by", KEY_CHOICE, AT(match.by), "ffn", 0, 0, "what is changed: the width of the feed-forward parts", ways, 0},
    {"multiple", KEY_INT, AT(match.multiple), "8", 1, 65536, "widths are multiples of this", 0, 0},
    {0}};
static const Key budget_keys[] = {{"tokens", KEY_LONG, AT(budget.tokens), NULL, 1, 1e15,
                                   "tokens to train on in one run, at most", 0, 0},
                                  {"tune_tokens", KEY_LONG, AT(budget.tune_tokens), "0", 0, 1e15,
                                   "tokens of a run that tries a learning rate, at most, in rows without stages; 0: as "
                                   "many as any run",
                                   0, 0},
                                  {"max_passes", KEY_FLOAT, AT(budget.max_passes), "0", 0, 1e9,
                                   "passes over the training text, at most; 0: no limit", 0, 0},
                                  {"max_seconds", KEY_FLOAT, AT(budget.max_seconds), "0", 0, 1e9,
                                   "a run that needs longer is stopped and marked; 0: no limit", 0, 0},
                                  {0}};
static const Key measure_keys[] = {
    {"context", KEY_INT, AT(measure.context), "1024", 1, 1 << 20, "tokens after which the cache is counted", 0, 0},
    {"prompt", KEY_INT, AT(measure.prompt), "512", 1, 1 << 20, "tokens of a prompt whose prefill is timed", 0, 0},
    {"decode", KEY_INT, AT(measure.decode), "128", 1, 1 << 20, "tokens after the prompt whose decoding is timed", 0, 0},
    {"batches", KEY_INTS, AT(measure.batches), "[1, 8]", 1, 4096, "sequences at once", 0, 0},
    {"repeats", KEY_INT, AT(measure.repeats), "5", 1, 1000, "timings of each row; the median counts", 0, 0},
    {"loss_tokens", KEY_LONG, AT(measure.loss_tokens), "65536", 0, 1e12,
     "tokens of the validation text whose loss is split by position and by recall, the first ones; 0: none", 0, 0},
    {"loss_context", KEY_INT, AT(measure.loss_context), "0", 0, 1 << 24, "tokens of a window there; 0: data.seq_len", 0,
     0},
    {"common", KEY_LONG, AT(measure.common), "1250", 0, 1e15,
     "a pair of tokens that the training text has more often is common: to repeat it is no recall", 0, 0},
    {"contexts", KEY_INTS, AT(measure.contexts), "[4096, 32768]", 1, 1 << 30,
     "tokens for which the cache's bytes are listed: by formula, and counted where rows are merged or evicted", 0, 0},
    {0}};
const Key compare_keys[] = {
    {"dir", KEY_TEXT, AT(dir), NULL, 0, 0, "folder of the comparison: its runs and results", 0, 0},
    {"base", KEY_OTHER, 0, NULL, 0, 0, "settings of a run that all rows share: a map, or the path of a YAML file", 0,
     0},
    {"match", KEY_TABLE, 0, "", 0, 0, "gives all rows the same number of parameters", 0, match_keys},
    {"lrs", KEY_NUMBERS, AT(lrs), NULL, LR_MIN, LR_MAX,
     "learning rates that every row tries at tune_seed; the one with the lowest validation loss is used", 0, 0},
    {"widen", KEY_INT, AT(widen), "3", 0, WIDEN_MAX,
     "while the best rate is the lowest or the highest, the next one beyond it is tried, at most so often a side; 0: "
     "only lrs are tried, and one rate is used as it is",
     0, 0},
    {"tune_seed", KEY_LONG, AT(tune_seed), "0", 0, 9e15, "run.seed of these runs, none of seeds", 0, 0},
    {"seeds", KEY_INTS, AT(seeds), NULL, 0, 2e9, "run.seed of the runs that are compared", 0, 0},
    {"budget", KEY_TABLE, 0, "", 0, 0, "limits of one run", 0, budget_keys},
    {"measure", KEY_TABLE, 0, "", 0, 0, "measurements of every row's best run", 0, measure_keys},
    {"controls", KEY_BOOL, AT(controls), "true", 0, 0,
     "rows that start from another and change its layout are compared with controls, ROW-on and, with a teacher, "
     "ROW-on-kd: the source trained on for the same steps; those that are not in rows are added",
     0, 0},
    {"rows", KEY_OTHER, 0, NULL, 0, 0, "list of rows: {name: ..., set: {...}}", 0, 0},
    {0}};
#undef AT
#define AT(member) offsetof(CompareRow, member)
const Key compare_row_keys[] = {
    {"name", KEY_TEXT, AT(name), NULL, 0, 0, "letters, digits, - and _", 0, 0},
    {"set", KEY_OTHER, 0, "", 0, 0, "map of keys of the base (model.kinds.mix.kv_heads) to the row's own values", 0, 0},
    {"from", KEY_TEXT, AT(from), "", 0, 0,
     "an earlier row; this row's runs start from its run of the same seed, or from its best where that has none", 0, 0},
    {"convert", KEY_OTHER, 0, "", 0, 0,
     "map: convert the run of `from` first: {to: gqa, kv_heads: 2, ...}, as for kvsmith convert; also calib (a "
     "text; default: the first of data.train) and calib_tokens",
     0, 0},
    {"marks", KEY_NUMBERS, AT(marks), "", 1e-6, 1000,
     "percentages of the steps of the first row in the chain of `from`: one run for each, at a constant learning rate "
     "that decays at the end; needs `from`",
     0, 0},
    {"decay", KEY_FLOAT, AT(mark_decay), "20", 0.1, 100,
     "percentage of a mark's steps in which the learning rate decays", 0, 0},
    {"teacher", KEY_TEXT, AT(teacher), "", 0, 0,
     "an earlier row; its run of the same seed is teacher.path of this row's runs, whose losses are in set", 0, 0},
    {"tokens", KEY_LONG, AT(tokens), "0", 0, 1e15, "tokens to train on; 0: budget.tokens", 0, 0},
    {"lrs", KEY_NUMBERS, AT(lrs), "", LR_MIN, LR_MAX,
     "learning rates that this row tries; default: lrs of the comparison", 0, 0},
    {0}};
#undef AT

/* Keys that a row may not set, because the comparison sets them or rows would no longer be comparable. A name that ends
 * with a point means all keys below it. */
static const char *const shared[] = {"run.",
                                     "data.",
                                     "init_from",
                                     "train.steps",
                                     "train.max_seconds",
                                     "train.batch",
                                     "train.eval_tokens",
                                     "train.eval_every",
                                     "optim.lr",
                                     "optim.min_lr",
                                     "optim.schedule_steps",
                                     "optim.schedule_by",
                                     NULL};

/* Checks that `x` may replace everything at `path`. */
static bool may_replace(const Node *x, const char *path, Err *e) {
    size_t n = strlen(path);
    for (int i = 0; shared[i]; i++) {
        size_t m = strlen(shared[i]);
        bool section = shared[i][m - 1] == '.';
        bool under = !strncmp(path, shared[i], section && n == m - 1 ? n : m) && (section || n == m);
        if (under)
            return node_refuse(x, path, e, "%.*s is the same for all rows; set it in base, budget, lrs or seeds",
                               (int)(section ? m - 1 : m), shared[i]);
        if (!strncmp(path, shared[i], n) && shared[i][n] == '.')
            return node_refuse(x, path, e, "a row may not set all of it, as %s is the same for all rows; name its keys",
                               shared[i]);
    }
    return true;
}

/* Checks the settings of a stage: maps in them are entered key by key. */
static bool stage_may_set(const Node *x, const char *path, Err *e) {
    char at[256];
    for (int i = 0; x->type == NODE_MAP && i < x->n; i++)
        if (!stage_may_set(x->kid[i], schema_join(at, path, x->kid[i]->key), e)) return false;
    return x->type == NODE_MAP || may_replace(x, path, e);
}

static Node *compare_config_scalar(const Node *at, const char *fmt, double v) {
    Node *x = xcalloc(1, sizeof *x);
    *x = (Node){.type = NODE_SCALAR, .where = at->where, .line = at->line, .text = xformat(fmt, v)};
    return x;
}

/* The stages of a row share its steps in the proportion in which they are written. */
static bool stages_fit(Node *tree, int64_t steps, Err *e) {
    const Node *list = tree_get(tree, "stages");
    const Key key = {"steps", KEY_LONG, 0, NULL, 1, 1e12, "", 0, 0};
    double sum = 0, upto = 0;
    for (int k = 0; list && list->type == NODE_LIST && k < list->n; k++) {
        const Node *x = tree_get(list->kid[k], "steps"), *set = tree_get(list->kid[k], "set");
        int64_t own;
        if (!x) return true; /* the reader of the settings reports what is missing */
        if (!schema_value(&key, x, "stages: steps", &own, e) || (set && !stage_may_set(set, "", e))) return false;
        sum += (double)own;
    }
    for (int k = 0; sum > 0 && k < list->n; k++) {
        const Node *x = tree_get(list->kid[k], "steps");
        char path[32];
        double from = floor(upto / sum * (double)steps + 0.5);
        upto += strtod(x->text, NULL);
        double own = floor(upto / sum * (double)steps + 0.5) - from;
        snprintf(path, sizeof path, "stages.%d.steps", k);
        if (own < 1) return node_refuse(x, path, e, "its share of %lld steps is less than one", (long long)steps);
        if (!tree_put(tree, path, compare_config_scalar(x, "%.0f", own), x, e)) return false;
    }
    return true;
}

/* ---- equal parameters ----------------------------------------------------------------------------------------------
 */

static int *compare_config_width(const FfnKind *f) {
    for (const Key *k = f->ffn->keys; k->name; k++)
        if (!strcmp(k->name, "hidden") && k->type == KEY_INT) return (int *)((char *)f->cfg + k->at);
    return NULL;
}

static bool compare_config_count(const Config *cfg, Device *dev, size_t *params, const char *where, Err *e) {
    Model m;
    Err why = {0};
    if (!model_open(&m, dev, &cfg->model, (ModelOpts){.dry = true}, &why))
        return why.status == EXIT_RUNTIME ? err_runtime(e, "%s", why.msg) : err_input(e, "%s: %s", where, why.msg);
    *params = model_params(&m);
    model_close(&m);
    return true;
}

typedef struct {
    Config *cfg;
    int as_written[KINDS_MAX], multiple;
} Widths;
static void widths_set(const Widths *w, int64_t k) {
    for (int i = 0; i < w->cfg->model.nffn; i++) {
        double own = (double)k * w->as_written[i] / w->as_written[0];
        *compare_config_width(&w->cfg->model.ffn[i]) = w->multiple * (int)fmax(1, floor(own + 0.5));
    }
}

bool compare_match(Config *cfg, Device *dev, int64_t want, double tolerance, int multiple, size_t *params,
                   size_t *hidden, const char *where, Err *e) {
    enum { HIDDEN_MAX = 1 << 20 };
    Widths w = {.cfg = cfg, .multiple = multiple};
    int widest = 1;
    for (int i = 0; i < cfg->model.nffn; i++) {
        const int *h = compare_config_width(&cfg->model.ffn[i]);
        if (!h)
            return err_input(e, "%s: model.ffn of kind %s has no width to match parameters by", where,
                             cfg->model.ffn[i].ffn->name);
        w.as_written[i] = *h;
        widest = imax(widest, *h);
    }
    int64_t low = 1, high = imax(1, (int)((int64_t)HIDDEN_MAX * w.as_written[0] / widest / multiple) - 1);
    size_t n;
    while (low < high) { /* the smallest width with at least `want` parameters */
        int64_t mid = low + (high - low) / 2;
        widths_set(&w, mid);
        if (!compare_config_count(cfg, dev, &n, where, e)) return false;
        if ((int64_t)n < want)
            low = mid + 1;
        else
            high = mid;
    }
    int64_t best = low, off = INT64_MAX;
    for (int64_t k = low > 1 ? low - 1 : low; k <= low; k++) {
        widths_set(&w, k);
        if (!compare_config_count(cfg, dev, &n, where, e)) return false;
        if (llabs((int64_t)n - want) < off) off = llabs((int64_t)n - want), best = k, *params = n;
    }
    widths_set(&w, best);
    *hidden = (size_t)*compare_config_width(&cfg->model.ffn[0]);
    if ((double)off <= tolerance * (double)want) return true;
    return err_input(e,
                     "%s: no width of model.ffn gives %lld parameters within %g %%; width %zu comes nearest with %zu: "
                     "change match or the row",
                     where, (long long)want, 100 * tolerance, *hidden, *params);
}

/* Sets the widths of the row from which it starts, whose weights it inherits. */
static bool match_source(const Compare *c, CompareRow *r, Device *dev, const char *where, Err *e) {
    const CompareRow *s = &c->row[r->source];
    if (r->cfg.model.nffn != s->cfg.model.nffn)
        return err_input(e, "%s: %d feed-forward parts, but %s, from which it starts, has %d", where, r->cfg.model.nffn,
                         s->name, s->cfg.model.nffn);
    for (int i = 0; i < r->cfg.model.nffn; i++) {
        int *h = compare_config_width(&r->cfg.model.ffn[i]), *of = compare_config_width(&s->cfg.model.ffn[i]);
        if (!h || !of) return err_input(e, "%s: model.ffn has no width to match parameters by", where);
        *h = *of;
    }
    r->hidden = s->hidden;
    if (!compare_config_count(&r->cfg, dev, &r->params, where, e)) return false;
    double off = fabs((double)r->params - (double)c->match.params);
    if (off <= c->match.tolerance * (double)c->match.params) return true;
    return err_input(e, "%s: %zu parameters with the widths of %s, expected %lld within %g %%", where, r->params,
                     s->name, (long long)c->match.params, 100 * c->match.tolerance);
}

static bool lrs_fit(const Numbers *lrs, const Node *at, const char *path, Err *e) {
    char name[256];
    schema_join(name, path, "lrs");
    if (lrs->n < 1 || lrs->n > LRS_MAX)
        return node_refuse(at, name, e, "expected 1 to %d numbers, got %d", LRS_MAX, lrs->n);
    for (int i = 0; i < lrs->n; i++)
        for (int k = 0; k < i; k++)
            if (lrs->v[i] == lrs->v[k]) return node_refuse(at, name, e, "%g is listed twice", lrs->v[i]);
    return true;
}

/* ---- rows ----------------------------------------------------------------------------------------------------------
 */

static int row_find(const Compare *c, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(c->row[i].name, name)) return i;
    return -1;
}

static bool steps_fit(const Compare *c, const Config *base, CompareRow *r, const Node *at, const char *path, Err *e) {
    double tokens = (double)(r->tokens ? r->tokens : c->budget.tokens),
           per_step = (double)base->train.batch * base->data.seq_len;
    if (c->budget.max_passes > 0) tokens = fmin(tokens, c->budget.max_passes * (double)c->text_tokens);
    r->steps = (int64_t)(tokens / per_step);
    r->tune_steps = r->steps;
    if (c->budget.tune_tokens) r->tune_steps = (int64_t)(fmin(tokens, (double)c->budget.tune_tokens) / per_step);
    if (r->steps >= 1 && r->tune_steps < 1)
        return node_refuse(at, path, e, "budget.tune_tokens: %lld are less than one step of %.0f",
                           (long long)c->budget.tune_tokens, per_step);
    if (r->steps >= 1) return true;
    return node_refuse(at, path, e, "a budget of %.0f tokens is less than one step of %.0f (train.batch data.seq_len)",
                       tokens, per_step);
}

/* The schedule of a row with marks; its stages, if any, have their own. */
static bool marks_fit(const CompareRow *r, Node *tree, const Node *at, const char *path, Err *e) {
    static const char *const own[] = {"optim.schedule", "optim.decay_steps", "train.eval_first", NULL};
    bool stages = tree_get(tree, "stages");
    for (int i = stages ? 2 : 0; own[i]; i++) /* stages have schedules of their own */
        if (r->set && tree_get(r->set, own[i]))
            return node_refuse(tree_get(r->set, own[i]), path, e, "set: %s is determined by marks; leave it out",
                               own[i]);
    if (stages && r->marks.n > 1)
        return node_refuse(at, path, e,
                           "a row with stages can have one mark, whose steps the stages divide; got %d marks",
                           r->marks.n);
    Node *wsd = compare_config_scalar(at, "%.0f", 0), *yes = compare_config_scalar(at, "%.0f", 0);
    free(wsd->text), free(yes->text);
    wsd->text = xstrdup("wsd"), yes->text = xstrdup("true");
    bool ok = tree_put(tree, "train.eval_first", yes, at, e);
    if (stages) {
        tree_free(wsd);
        return ok;
    }
    ok = tree_put(tree, "optim.schedule", wsd, at, e) && ok;
    int last = r->marks.n - 1;
    return ok && tree_put(tree, "optim.decay_steps",
                          compare_config_scalar(at, "%.0f", (double)(r->mark_steps[last] - r->mark_hold[last])), at, e);
}

/* Checks that every mark's schedule is possible; and since a run continues the one before, nothing in it may be given
 * as a fraction of its length. */
static bool marks_hold(const CompareRow *r, const Node *at, const char *path, Err *e) {
    const Config *cfg = &r->cfg;
    const char *what = NULL;
    if (cfg->nstages) return true;
    if (cfg->optim.warmup.unit == LENGTH_PERCENT && cfg->optim.warmup.n > 0) what = "optim.warmup in percent";
    if (cfg->train.compression.ramp && cfg->train.compression.target > 1) what = "train.compression.ramp";
    for (int k = 0; k < cfg->model.nkinds; k++)
        if (!strcmp(cfg->model.kind[k].mixer->name, "dmc")) what = "a mixer dmc";
    if (what && r->marks.n > 1)
        return node_refuse(
            at, path, e,
            "marks: %s depends on the length of a run, but each mark continues the one before; give one mark", what);
    int64_t warmup = config_schedule(cfg).warmup;
    return warmup <= r->mark_hold[0] ||
           node_refuse(
               at, path, e,
               "optim.warmup: %lld steps are more than the %lld before the decay of mark %g %%; set it for the row",
               (long long)warmup, (long long)r->mark_hold[0], r->marks.v[0]);
}

/* The runs that try learning rates are shorter, if so, and warm up in their length. */
static bool tuning_fits(const Compare *c, CompareRow *r, const Node *at, const char *path, Err *e) {
    if (r->marks.n || r->cfg.nstages || !compare_tunes(c, r)) r->tune_steps = r->steps;
    Config cfg = r->cfg;
    cfg.train.steps = r->tune_steps;
    int64_t warmup = config_schedule(&cfg).warmup;
    return warmup <= r->tune_steps ||
           node_refuse(at, path, e, "optim.warmup: %lld steps are more than the %lld of budget.tune_tokens",
                       (long long)warmup, (long long)r->tune_steps);
}

/* The resolved settings of a row's model, as a tree. */
static Node *model_tree(const Config *cfg, Err *e) {
    char *text = config_text(cfg);
    Node *all = tree_yaml(text, strlen(text), "the settings of a row", e), *model = NULL;
    if (all) model = tree_copy(tree_get(all, "model"));
    tree_free(all);
    free(text);
    return model;
}

static bool row_read(Compare *c, int i, const Node *x, bool control, const Config *base, Device *dev, Err *e) {
    CompareRow *r = &c->row[i];
    char path[64], where[160];
    snprintf(path, sizeof path, "rows.%d", i);
    if (!schema_read(compare_row_keys, x, path, NULL, r, e)) return false;
    r->control = control, r->reference = -1;
    if (!*r->name || strlen(r->name) > 40 ||
        r->name[strspn(r->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")])
        return node_refuse(x, path, e, "the name of a row is 1 to 40 letters, digits, - and _");
    if (row_find(c, i, r->name) >= 0) return node_refuse(x, path, e, "two rows have the name %s", r->name);
    r->source = row_find(c, i, r->from);
    if (*r->from && r->source < 0)
        return node_refuse(tree_get(x, "from"), path, e, "from: expected the name of an earlier row, got %.80s",
                           r->from);
    r->learns = row_find(c, i, r->teacher);
    if (*r->teacher && r->learns < 0)
        return node_refuse(tree_get(x, "teacher"), path, e, "teacher: expected the name of an earlier row, got %.80s",
                           r->teacher);
    snprintf(where, sizeof where, "rows.%.40s", r->name);
    if (!r->lrs.n) r->lrs = c->lrs;
    if (!lrs_fit(&r->lrs, x, path, e)) return false;
    r->set = tree_get(x, "set");
    if (r->set && r->set->type != NODE_MAP && !node_null(r->set))
        return node_refuse(r->set, path, e, "set: expected a map of keys and values, got %s", node_type(r->set));
    if (!compare_convert_read(c, r, x, path, e)) return false;
    if (!(r->marks.n ? compare_marks_read(c, r, x, path, e) : steps_fit(c, base, r, x, path, e))) return false;
    Node *tree = tree_copy(c->base);
    bool ok = true;
    if (r->convert || control) {
        const Config *from = &c->row[r->source].cfg;
        Node *model = control ? model_tree(from, e) : compare_convert_plan(r, from, path, e);
        ok = model && tree_put(tree, "model", model, x, e);
    }
    for (int k = 0; ok && r->set && k < r->set->n; k++) {
        const Node *v = r->set->kid[k];
        ok = may_replace(v, v->key, e) && tree_put(tree, v->key, tree_copy(v), v, e);
    }
    ok = ok && tree_put(tree, "train.steps", compare_config_scalar(x, "%.0f", (double)r->steps), x, e) &&
         tree_put(tree, "optim.schedule_steps", compare_config_scalar(x, "%.0f", 0), x, e) &&
         (!r->marks.n || marks_fit(r, tree, x, path, e)) && stages_fit(tree, r->steps, e);
    if (!ok) {
        tree_free(tree);
        return false;
    }
    if (!config_tree(&r->cfg, tree, 0, NULL, e)) return false;
    if (r->marks.n && !marks_hold(r, tree_get(x, "marks"), path, e)) return false;
    if (!tuning_fits(c, r, x, path, e)) return false;
    r->decay = r->cfg.optim.lr > 0 ? r->cfg.optim.min_lr / r->cfg.optim.lr : 0;
    r->cfg.model.vocab = base->model.vocab;
    r->cfg.run.threads = base->run.threads;
    strcpy(r->cfg.run.isa, base->run.isa);
    if (!c->match.params) { /* the first row, which stays as it is written */
        const int *h = compare_config_width(&r->cfg.model.ffn[0]);
        if (!compare_config_count(&r->cfg, dev, &r->params, where, e)) return false;
        r->hidden = h ? (size_t)*h : 0;
        c->match.params = (int64_t)r->params;
        return true;
    }
    if (r->convert || control) { /* of as many parameters as the conversion leaves, or its source has */
        const int *h = compare_config_width(&r->cfg.model.ffn[0]);
        r->hidden = h ? (size_t)*h : 0;
        return compare_config_count(&r->cfg, dev, &r->params, where, e);
    }
    if (r->source >= 0) return match_source(c, r, dev, where, e);
    return compare_match(&r->cfg, dev, c->match.params, c->match.tolerance, c->match.multiple, &r->params, &r->hidden,
                         where, e);
}

static bool row_cost(const Compare *c, CompareRow *r, Device *dev, Err *e) {
    Model m;
    if (!model_open(&m, dev, &r->cfg.model, (ModelOpts){.dry = true}, e)) return false;
    CacheCost *cost = xcalloc(1, sizeof *cost);
    for (int i = 0; i < c->measure.contexts.n; i++) {
        cost_cache(&m, c->measure.contexts.v[i], cost);
        r->at[i] = cost->bytes_at_context;
    }
    cost_cache(&m, c->measure.context, cost);
    r->at_context = cost->bytes_at_context, r->state_bytes = cost->state_bytes, r->grows = cost->grows_per_token;
    free(cost);
    model_close(&m);
    return true;
}

/* ---- all of it -----------------------------------------------------------------------------------------------------
 */

/* The settings that all rows share; the text that they are trained on. */
static bool base_read(Compare *c, Config *base, const Cli *cli, Err *e) {
    const Node *x = tree_get(c->root, "base");
    if (!x) return node_refuse(c->root, "base", e, "required, but not given: %s", compare_keys[1].meaning);
    if (x->type == NODE_LIST || node_null(x) || (x->type == NODE_SCALAR && !*x->text))
        return node_refuse(x, "base", e, "expected a map of settings or the path of a YAML file, got %s", node_type(x));
    if (x->type == NODE_SCALAR) {
        c->base_path = xstrdup(x->text);
        if (!(c->base = tree_yaml_file(c->base_path, e)) || !config_here(c->base, c->base_path, e)) return false;
        if (node_null(c->base)) return node_refuse(c->base, "", e, "expected a map of settings, got nothing");
    } else {
        c->base = tree_copy(x);
        free(c->base->key);
        c->base->key = NULL;
    }
    if (!config_tree(base, tree_copy(c->base), 0, NULL, e)) return false;
    if (cli->threads >= 0) base->run.threads = cli->threads;
    if (cli->isa) snprintf(base->run.isa, sizeof base->run.isa, "%s", cli->isa);
    if (!base->data.ntrain) return node_refuse(c->base, "data.train", e, "required, but not given: the text");
    if (base->data.sft.template)
        return node_refuse(c->base, "data.sft", e, "a comparison measures bits per byte of a text; leave it out");
    if (base->train.eval_every == 0)
        return node_refuse(c->base, "train.eval_every", e,
                           "0 means no validation, but rows are compared by their validation loss");
    Stream text;
    DataSpec spec;
    Tokenizer tk;
    if (!data_tokenizer(&base->data, &tk, e)) return false;
    if (!base->model.vocab) base->model.vocab = tk.vocab;
    data_spec(&base->data, &spec);
    bool ok = stream_open(&text, &spec.spec, &tk, e);
    tokenizer_close(&tk);
    if (!ok) return false;
    c->text_tokens = text.tokens;
    int val = text.val.n;
    snprintf(c->text_hash, sizeof c->text_hash, "%016llx", (unsigned long long)text.hash);
    stream_close(&text);
    if (val) return true;
    return node_refuse(c->base, "data.val", e, "there is no text to validate on; give data.val or data.val_fraction");
}

static bool lists_fit(const Compare *c, Err *e) {
    const struct {
        const char *name;
        int n, max;
    } list[] = {{"seeds", c->seeds.n, SEEDS_MAX},
                {"measure.batches", c->measure.batches.n, BATCHES_MAX},
                {"measure.contexts", c->measure.contexts.n, CONTEXTS_MAX}};
    if (!*c->dir || strlen(c->dir) > 800)
        return node_refuse(c->root, "dir", e, "expected the name of a folder, 1 to 800 bytes");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].n < 1 || list[i].n > list[i].max)
            return node_refuse(c->root, list[i].name, e, "expected 1 to %d numbers, got %d", list[i].max, list[i].n);
    if (!lrs_fit(&c->lrs, tree_get(c->root, "lrs"), "", e)) return false;
    for (int i = 0; i < c->seeds.n; i++)
        for (int k = 0; k < i; k++)
            if (c->seeds.v[i] == c->seeds.v[k])
                return node_refuse(tree_get(c->root, "seeds"), "seeds", e, "%d is listed twice", c->seeds.v[i]);
    for (int i = 0; i < c->seeds.n; i++)
        if (c->seeds.v[i] == c->tune_seed)
            return node_refuse(tree_get(c->root, "seeds"), "seeds", e,
                               "%d is tune_seed too, but the run that chooses the learning rate is not counted; set "
                               "tune_seed to another number",
                               c->seeds.v[i]);
    return true;
}

static bool rows_add(Compare *c, const Node *rows, bool control, const Config *base, Device *dev, Err *e) {
    bool ok = true;
    for (int k = 0; ok && k < rows->n; k++) {
        int i = c->nrows++; /* what a failing row has made is freed with the others */
        ok = row_read(c, i, rows->kid[k], control, base, dev, e) && row_cost(c, &c->row[i], dev, e);
    }
    return ok;
}

static bool compare_config_rows_read(Compare *c, const Config *base, const Cli *cli, Err *e) {
    const Node *rows = tree_get(c->root, "rows");
    Device *dev;
    if (!rows || rows->type != NODE_LIST || rows->n < 1 || rows->n > ROWS_COMPARED_MAX)
        return node_refuse(rows ? rows : c->root, "rows", e, "expected a list of 1 to %d rows, got %s",
                           ROWS_COMPARED_MAX, rows ? node_type(rows) : "nothing");
    Cli own = *cli;
    own.threads = base->run.threads, own.isa = base->run.isa;
    if (!engine_device(&dev, &own, e)) return false;
    c->threads = device_threads(dev);
    strcpy(c->isa, base->run.isa);
    c->dtype = base->train.dtype == DTYPE_BF16 ? BF16 : REAL;
    c->row = xcalloc(ROWS_COMPARED_MAX, sizeof *c->row);
    bool ok = rows_add(c, rows, false, base, dev, e) && compare_controls(c, &c->control_rows, e);
    if (ok && c->control_rows) ok = rows_add(c, c->control_rows, true, base, dev, e);
    device_close(dev);
    return ok;
}

bool compare_read(Compare *c, const char *path, int noverride, char *const override[], const Cli *cli, Err *e) {
    *c = (Compare){.path = path};
    Config *base = xcalloc(1, sizeof *base);
    bool ok = (c->root = tree_yaml_file(path, e)) != NULL;
    if (ok && c->root->type != NODE_MAP) ok = node_refuse(c->root, "", e, "expected a map of settings");
    ok = ok && config_here(c->root, path, e);
    for (int i = 0; ok && i < noverride; i++) ok = tree_override(c->root, override[i], e);
    ok = ok && schema_read(compare_keys, c->root, "", NULL, c, e) && lists_fit(c, e) && base_read(c, base, cli, e) &&
         compare_config_rows_read(c, base, cli, e);
    config_free(base);
    free(base);
    if (!ok) compare_free(c);
    return ok;
}

void compare_free(Compare *c) {
    for (int i = 0; i < c->nrows; i++) {
        config_free(&c->row[i].cfg);
        for (int k = 0; k < c->row[i].nword; k++) free(c->row[i].word[k]);
    }
    free(c->row);
    tree_free(c->root);
    tree_free(c->base);
    tree_free(c->control_rows);
    free(c->base_path);
    *c = (Compare){0};
}

/* ---- one run -------------------------------------------------------------------------------------------------------
 */

const char *compare_lr_name(double lr, char buf[32]) {
    char digits[32];
    int exponent, n = 0;
    do snprintf(digits, sizeof digits, "%.*e", n, lr);
    while (strtod(digits, NULL) != lr && n++ < 16);
    char *mark = strchr(digits, 'e');
    exponent = atoi(mark + 1);
    snprintf(buf, 32, "%.*se%d", (int)(mark - digits), digits, exponent);
    return buf;
}

char *compare_folder(const Compare *c, const CompareRow *r, double lr, int64_t seed, int mark) {
    char name[32], at[32] = "";
    if (r->marks.n) snprintf(at, sizeof at, "-mark-%g", r->marks.v[mark < 0 ? r->marks.n - 1 : mark]);
    return xformat("%s/%s/lr-%s-seed-%lld%s", c->dir, r->name, compare_lr_name(lr, name), (long long)seed, at);
}

int64_t compare_steps(const Compare *c, const CompareRow *r, int64_t seed, int mark) {
    if (r->marks.n) return r->mark_steps[mark];
    return seed == c->tune_seed && compare_tunes(c, r) ? r->tune_steps : r->steps;
}

int compare_runs(const CompareRow *r) { return imax(1, r->marks.n); }

char *compare_mark_start(const Compare *c, const CompareRow *r, double lr, int64_t seed, int mark) {
    if (!r->marks.n || mark < 1 || !r->mark_hold[mark - 1]) return NULL;
    char *before = compare_folder(c, r, lr, seed, mark - 1),
         *start = xformat("%s/step-%06lld", before, (long long)r->mark_hold[mark - 1]);
    free(before);
    return start;
}

/* Sets a mark's own length and decay; the checkpoint for the next mark is saved where the decay begins, and kept. */
static void mark_config(const CompareRow *r, int mark, Config *cfg) {
    enum { KEEP_ALL = 1000000 };
    int64_t hold = r->mark_hold[mark];
    bool next = mark + 1 < r->marks.n && hold > 0;
    cfg->train.max_seconds = 0;
    cfg->train.eval_first = mark == 0;
    if (cfg->nstages) return;
    cfg->train.steps = r->mark_steps[mark];
    cfg->optim.decay_steps = (Length){(double)(r->mark_steps[mark] - hold), LENGTH_STEPS};
    if (!next) return;
    /* Saves while the rate decays - of an interruption, of a long decay - must not push that one out. */
    cfg->train.save_every = hold;
    cfg->train.keep_last = KEEP_ALL;
    cfg->train.keep_best = false;
}

void compare_run_config(const Compare *c, const CompareRow *r, double lr, int64_t seed, int mark, const Origin *o,
                        Config *cfg) {
    *cfg = r->cfg;
    char *folder = compare_folder(c, r, lr, seed, mark);
    snprintf(cfg->run.dir, sizeof cfg->run.dir, "%s", folder);
    snprintf(cfg->init_from, sizeof cfg->init_from, "%s", o->from ? o->from : "");
    /* a row lists itself what it changes of the row from which it starts */
    if (o->from) cfg->init_change.n = 1, strcpy(cfg->init_change.v[0], "model");
    if (o->teacher) snprintf(cfg->teacher.path, sizeof cfg->teacher.path, "%s", o->teacher);
    cfg->run.seed = seed;
    cfg->optim.lr = lr;
    cfg->optim.min_lr = lr * r->decay;
    cfg->train.max_seconds = c->budget.max_seconds;
    if (r->marks.n)
        mark_config(r, mark, cfg);
    else
        cfg->train.steps = compare_steps(c, r, seed, mark);
    if (cfg->train.dtype == DTYPE_AUTO) cfg->train.dtype = DTYPE_F32; /* rows are compared: none by the hour's noise */
    config_save_dtype(cfg, DTYPE_F32);                                /* nor rounded, whatever the source's files are */
    free(folder);
}
