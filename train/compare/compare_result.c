/* compare_result.c: what the records of all runs amount to. */
#include <sys/utsname.h>
#include "compare_loss.h"
#include "infer/engine.h"

void origin_free(Origin *o) {
    free(o->from);
    free(o->teacher);
    *o = (Origin){0};
}

char *compare_run_of(const Compare *c, int row, const RowResult *r, int64_t seed) {
    /* rates are tried from a run of full length */
    if (seed == c->tune_seed && c->row[row].tune_steps < c->row[row].steps) seed = c->seeds.v[0];
    for (int k = 0; k < c->seeds.n; k++) {
        if (c->seeds.v[k] != seed) continue;
        if (r->run[k].state < RUN_FINISHED) return NULL;
        if (r->run[k].state == RUN_FINISHED) return compare_folder(c, &c->row[row], r->lr, seed, -1);
    }
    for (int k = 0; seed == c->tune_seed && k < r->ntuned; k++)
        if (r->tune[k].lr == r->lr && r->tune[k].state == RUN_FINISHED)
            return compare_folder(c, &c->row[row], r->lr, seed, -1);
    return compare_best(c, row, r);
}

static char *model_of(const Compare *c, int row, const RowResult *all, int64_t seed) {
    char *run = compare_run_of(c, row, &all[row], seed), *model = run ? xformat("%s/last", run) : NULL;
    free(run);
    return model;
}

bool compare_source(const Compare *c, int row, const RowResult *all, int64_t seed, Origin *o) {
    const CompareRow *r = &c->row[row];
    *o = (Origin){0};
    if (r->source >= 0 && (o->from = model_of(c, r->source, all, seed)) && r->convert) {
        free(o->from);
        o->from = compare_converted(c, r, seed);
    }
    if (r->learns >= 0) o->teacher = model_of(c, r->learns, all, seed);
    if ((r->source < 0 || o->from) && (r->learns < 0 || o->teacher)) return true;
    origin_free(o);
    return false;
}

char *compare_best(const Compare *c, int row, const RowResult *r) {
    if (r->best < 0) return NULL;
    return compare_folder(c, &c->row[row], r->lr, c->seeds.v[r->best], -1);
}

typedef struct {
    const Compare *c;
    int row;
    const RowResult *all;
} Looking;

/* The record of a run; a missing one where its source is missing. */
static bool compare_result_look(const Looking *l, double lr, int64_t seed, int mark, RunRecord *r, Err *e) {
    Origin o;
    *r = (RunRecord){.lr = lr, .seed = seed, .val_loss = NAN, .first_loss = NAN};
    if (!compare_source(l->c, l->row, l->all, seed, &o)) return true;
    Config *cfg = xcalloc(1, sizeof *cfg);
    compare_run_config(l->c, &l->c->row[l->row], lr, seed, mark, &o, cfg);
    bool ok = compare_look(l->c, &l->c->row[l->row], cfg, mark, r, e);
    free(cfg);
    origin_free(&o);
    return ok;
}
static bool compare_result_tune_look(void *ctx, double lr, RunRecord *r, Err *e) {
    const Looking *l = ctx;
    return compare_result_look(l, lr, l->c->tune_seed, 0, r, e);
}

bool compare_result(const Compare *c, int i, const RowResult *all, RowResult *out, Err *e) {
    const CompareRow *row = &c->row[i];
    Looking l = {c, i, all};
    /* `out` may be one of `all`, which a row never looks at for itself */
    RowResult *r = xcalloc(1, sizeof *r);
    *r = (RowResult){.best = -1, .loss = compare_spread(0, NULL)};
    double loss[SEEDS_MAX];
    bool ok = true;
    if (compare_tunes(c, row))
        ok = compare_tuning(c, row, compare_result_tune_look, &l, r, e);
    else
        r->tuned = true, r->lr = row->lrs.v[0];
    int n = 0;
    for (int k = 0; ok && r->lr > 0 && k < c->seeds.n; k++) {
        r->run[k].val_loss = NAN;
        for (int m = 0; ok && m < compare_runs(row) && r->run[k].state != RUN_DIVERGED; m++) {
            ok = compare_result_look(&l, r->lr, c->seeds.v[k], m, &r->mark[m][k], e);
            /* a mark that diverged ends the chain: the marks after it have no checkpoint to continue */
            if (m + 1 == compare_runs(row) || r->mark[m][k].state == RUN_DIVERGED) r->run[k] = r->mark[m][k];
        }
        if (r->run[k].state != RUN_FINISHED) continue;
        loss[n++] = r->run[k].val_loss;
        if (r->best < 0 || r->run[k].val_loss < r->run[r->best].val_loss) r->best = k;
    }
    r->loss = compare_spread(n, loss);
    if (ok) *out = *r;
    free(r);
    return ok;
}

/* ---- as JSON -------------------------------------------------------------------------------------------------------
 */

static json_t *numbers_json(const Numbers *x) {
    json_t *j = json_array();
    for (int i = 0; i < x->n; i++) json_array_append_new(j, json_real(x->v[i]));
    return j;
}

static json_t *run_json(const RunRecord *r) {
    static const char *const names[] = {"missing", "begun", "finished", "diverged"};
    json_t *j = json_pack("{s:f, s:I, s:s, s:o, s:I, s:I, s:o, s:o, s:b}", "lr", r->lr, "seed", (json_int_t)r->seed,
                          "state", names[r->state], "val_loss", engine_number(r->val_loss), "step", (json_int_t)r->step,
                          "tokens", (json_int_t)r->tokens, "tok_s", engine_number(r->tok_s), "seconds",
                          engine_number(r->seconds), "cut", r->cut);
    if (r->state == RUN_DIVERGED) json_object_set_new(j, "why", json_string(r->why));
    return j;
}

/* Counts how the compared runs ended, and averages the results of the finished ones. */
static void runs_sum(const Compare *c, const CompareRow *row, const RowResult *r, json_t *j) {
    int n = 0, diverged = 0, cut = 0, threads = 0;
    double tok_s = 0, seconds = 0, tokens = 0;
    json_t *runs = json_array(), *tune = json_array();
    for (int k = 0; k < r->ntuned; k++)
        if (r->tune[k].state) json_array_append_new(tune, run_json(&r->tune[k]));
    for (int k = 0; k < c->seeds.n; k++) {
        const RunRecord *x = &r->run[k];
        if (x->state) json_array_append_new(runs, run_json(x));
        diverged += x->state == RUN_DIVERGED;
        if (x->state != RUN_FINISHED) continue;
        n++, cut += x->cut;
        threads = n == 1 || threads == x->threads ? x->threads : 0;
        tok_s += x->tok_s, seconds += x->seconds, tokens += (double)x->tokens;
    }
    json_object_set_new(j, "lrs", numbers_json(&row->lrs));
    json_object_set_new(j, "tuning", tune);
    json_object_set_new(j, "lr_at_edge", json_boolean(r->edge));
    json_object_set_new(j, "runs", runs);
    json_object_set_new(j, "finished", json_integer(n));
    json_object_set_new(j, "diverged", json_integer(diverged));
    json_object_set_new(j, "cut", json_integer(cut));
    json_object_set_new(j, "train_threads", json_integer(threads)); /* 0: not the same in all */
    json_object_set_new(j, "train_tok_s", n ? engine_number(tok_s / n) : json_null());
    json_object_set_new(j, "train_seconds", n ? engine_number(seconds / n) : json_null());
    json_object_set_new(j, "tokens", n ? engine_number(tokens / n) : json_null());
}

/* Tokens that the runs before it took, of which this one is a continuation. */
static double tokens_before(const Compare *c, const RowResult *all, int i) {
    double sum = 0;
    for (int s = c->row[i].source; s >= 0; s = c->row[s].source)
        if (all[s].best >= 0) sum += (double)all[s].run[all[s].best].tokens;
    return sum;
}

static json_t *row_json(const Compare *c, const RowResult *all, int i, const json_t *speed) {
    static const char *const ranks[] = {NULL, "best", "tie", "worse"};
    const CompareRow *row = &c->row[i];
    const RowResult *r = &all[i];
    json_t *j =
        json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "name", row->name, "params", (json_int_t)row->params, "hidden",
                  (json_int_t)row->hidden, "from", row->source < 0 ? json_null() : json_string(row->from), "lr",
                  r->lr > 0 ? json_real(r->lr) : json_null(), "val_loss", engine_number(r->loss.mean), "sd",
                  engine_number(r->loss.sd));
    json_object_set_new(j, "rank", r->rank ? json_string(ranks[r->rank]) : json_null());
    runs_sum(c, row, r, j);
    if (row->learns >= 0) json_object_set_new(j, "teacher", json_string(row->teacher));
    json_object_set_new(j, "reference", row->reference < 0 ? json_null() : json_string(c->row[row->reference].name));
    json_object_set_new(j, "control", json_boolean(row->control));
    compare_marks_json(c, i, r, j);
    json_object_set_new(j, "tokens_before", json_real(tokens_before(c, all, i)));
    compare_losses_json(c, r, j);
    json_t *at = json_array(), *x;
    for (int k = 0; k < c->measure.contexts.n; k++) json_array_append_new(at, json_integer((json_int_t)row->at[k]));
    json_object_set_new(j, "cache",
                        json_pack("{s:I, s:I, s:I, s:o}", "grows_per_token", (json_int_t)row->grows, "state_bytes",
                                  (json_int_t)row->state_bytes, "formula", (json_int_t)row->at_context, "at", at));
    size_t k;
    json_array_foreach(json_object_get(speed, "rows"), k, x) {
        if (strcmp(json_string_value(json_object_get(x, "name")), row->name)) continue;
        static const char *const names[] = {"cache_measured", "cache_at", "cache_counted", "step_tok_s", "speed"};
        for (size_t n = 0; n < sizeof names / sizeof *names; n++)
            json_object_set(j, names[n], json_object_get(x, names[n]));
    }
    return j;
}

/* Marks the rows of both Pareto fronts of loss and bytes: of rows from scratch, and of those that continue others. */
static void fronts_json(const Compare *c, const json_t *rows) {
    double loss[ROWS_COMPARED_MAX], bytes[ROWS_COMPARED_MAX];
    bool kind[ROWS_COMPARED_MAX], front[ROWS_COMPARED_MAX];
    for (int i = 0; i < c->nrows; i++) {
        const json_t *row = json_array_get(rows, (size_t)i), *l = json_object_get(row, "val_loss"),
                     *b = json_object_get(row, "cache_measured");
        loss[i] = json_is_number(l) ? json_number_value(l) : NAN;
        bytes[i] = json_is_number(b) ? json_number_value(b) / c->measure.context : NAN;
        kind[i] = c->row[i].source >= 0;
    }
    compare_front(c->nrows, loss, bytes, kind, front);
    for (int i = 0; i < c->nrows; i++) {
        json_t *row = json_array_get(rows, (size_t)i);
        json_object_set_new(row, "bytes_per_token", engine_number(bytes[i]));
        json_object_set_new(row, "front", json_boolean(front[i]));
    }
}

static json_t *ints_json(const Ints *x) {
    json_t *j = json_array();
    for (int i = 0; i < x->n; i++) json_array_append_new(j, json_integer(x->v[i]));
    return j;
}

json_t *compare_json(const Compare *c, const RowResult *all, const json_t *speed) {
    json_t *rows = json_array();
    for (int i = 0; i < c->nrows; i++) json_array_append_new(rows, row_json(c, all, i, speed));
    fronts_json(c, rows);
    char machine[128];
    compare_machine(machine);
    json_t *j =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:I, s:f, s:I, s:I, s:f, s:f, s:o, s:i, s:I, s:o, s:I, s:s}",
                  "config", c->path, "dir", c->dir, "version", KVSMITH_VERSION, "machine", machine, "threads",
                  c->threads, "isa", c->isa, "dtype", dtype_name(c->dtype), "match_params", (json_int_t)c->match.params,
                  "tolerance", c->match.tolerance, "budget_tokens", (json_int_t)c->budget.tokens, "tune_tokens",
                  (json_int_t)c->budget.tune_tokens, "max_passes", c->budget.max_passes, "max_seconds",
                  c->budget.max_seconds, "lrs", numbers_json(&c->lrs), "widen", c->widen, "tune_seed",
                  (json_int_t)c->tune_seed, "seeds", ints_json(&c->seeds), "text_tokens", (json_int_t)c->text_tokens,
                  "text_hash", c->text_hash);
    json_object_set_new(j, "measure",
                        json_pack("{s:i, s:i, s:i, s:i, s:I, s:i, s:I, s:o, s:o}", "context", c->measure.context,
                                  "prompt", c->measure.prompt, "decode", c->measure.decode, "repeats",
                                  c->measure.repeats, "loss_tokens", (json_int_t)c->measure.loss_tokens, "loss_context",
                                  c->measure.loss_context, "common", (json_int_t)c->measure.common, "batches",
                                  ints_json(&c->measure.batches), "contexts", ints_json(&c->measure.contexts)));
    json_object_set_new(j, "rows", rows);
    return j;
}

void compare_machine(char name[128]) {
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    struct utsname u;
    *name = 0;
    while (f && !*name && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (!strncmp(line, "model name", 10) && value)
            snprintf(name, 128, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
    }
    if (f) fclose(f);
    if (!*name) snprintf(name, 128, "%s", uname(&u) ? "unknown" : u.machine);
}
