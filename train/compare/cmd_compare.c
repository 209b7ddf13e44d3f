/* kvsmith compare: what each architecture costs in quality, memory and time, on the same data, budget and code. */
#include <unistd.h>
#include "model/config/schema.h"
#include "ops/file.h"
#include "ops/oom.h"
#include "infer/engine.h"
#include "train/bench/bench_train.h"
#include "infer/session.h"
#include "compare_lock.h"
#include "compare_loss.h"
#include "compare_measure.h"
#include "policies.h"

int cmd_compare(int argc, char **argv);

enum {
    OPT_PLAN = 0x100,
    OPT_ONLY,
    OPT_MEASURE,
    OPT_KEYS,
    OPT_POLICIES,
    OPT_TASKS,
    OPT_BUDGETS,
    OPT_SEEDS,
    OPT_OUT,
    OVERRIDES_MAX = 256
};
typedef struct {
    const char *config, *only, *policies, *tasks, *budgets, *out;
    int64_t seeds;
    bool plan, measure_only, keys;
    int noverride;
    char *override[OVERRIDES_MAX];
} Args;

static bool cmd_compare_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    switch (key) {
    case OPT_PLAN: a->plan = true; return true;
    case OPT_ONLY: a->only = arg; return true;
    case OPT_MEASURE: a->measure_only = true; return true;
    case OPT_KEYS: a->keys = true; return true;
    case OPT_POLICIES: a->policies = arg; return true;
    case OPT_TASKS: a->tasks = arg; return true;
    case OPT_BUDGETS: a->budgets = arg; return true;
    case OPT_SEEDS: return cli_int(arg, "--seeds", 1, 32, &a->seeds, e);
    case OPT_OUT: a->out = arg; return true;
    }
    CHECK(key == CLI_ARG, "option %d", key);
    if (!a->config)
        a->config = arg;
    else if (a->noverride == OVERRIDES_MAX)
        return err_input(e, "more than %d key=value words", OVERRIDES_MAX);
    else
        a->override[a->noverride++] = (char *)arg;
    return true;
}

/* Which rows --only names. */
static bool wanted_rows(const Compare *c, const char *only, bool *wanted, Err *e) {
    for (int i = 0; i < c->nrows; i++) wanted[i] = !only;
    char *list = xstrdup(only ? only : ""), *rest = list;
    bool ok = true;
    for (char *name; ok && only && (name = strsep(&rest, ","));) {
        const char *names[ROWS_COMPARED_MAX];
        bool found = false;
        for (int i = 0; i < c->nrows; i++) {
            names[i] = c->row[i].name;
            if (!strcmp(name, names[i])) found = wanted[i] = true;
        }
        const char *near = found ? NULL : cli_nearest(name, c->nrows, names);
        if (!found)
            ok = err_input(e, "--only: no row has the name '%.80s'%s%s%s", name, near ? "; did you mean " : "",
                           near ? near : "", near ? "?" : "");
    }
    free(list);
    return ok;
}

/* ---- the plan ------------------------------------------------------------------------------------------------------
 */

/* Runs of a row that have no record yet, at least: see compare_tuning_left. */
static int runs_left(const Compare *c, int i, const RowResult *all) {
    const CompareRow *row = &c->row[i];
    const RowResult *r = &all[i];
    int left = compare_tuning_left(c, row, r) + c->seeds.n * compare_runs(row);
    if (r->tuned && !(r->lr > 0)) return 0; /* every learning rate diverged */
    for (int k = 0; r->lr > 0 && k < c->seeds.n; k++)
        for (int m = 0, over = 0; m < compare_runs(row); m++) {
            over |= r->mark[m][k].state == RUN_DIVERGED;
            left -= over || r->mark[m][k].state == RUN_FINISHED;
        }
    return left;
}
static bool more_may_follow(const Compare *c, int i, const RowResult *all) {
    return c->widen && compare_tunes(c, &c->row[i]) && !all[i].tuned;
}

/* Seconds of one run, by a few steps of it. */
static bool run_seconds(const Compare *c, int i, Device *dev, double *seconds, Err *e) {
    const Config *cfg = &c->row[i].cfg;
    Timing t;
    Cost cost;
    if (!bench_step(dev, cfg, 0.2, &t, &cost, e)) return false;
    double steps = (double)c->row[i].steps;
    for (int m = 0; m + 1 < c->row[i].marks.n; m++) steps += (double)(c->row[i].mark_steps[m] - c->row[i].mark_hold[m]);
    *seconds = t.median * steps / compare_runs(&c->row[i]) * cfg->train.batch / cfg->train.micro_batch;
    return true;
}

static bool cmd_compare_plan(const Compare *c, const RowResult *all, const bool *wanted, const Cli *cli, Err *e) {
    Cli own = *cli;
    Device *dev;
    own.threads = c->threads, own.isa = c->isa;
    own.bf16 = c->dtype == BF16; /* as trained */
    own.codec = &codec_f32;
    if (!engine_device(&dev, &own, e)) return false;
    json_t *rows = json_array();
    double total = 0;
    bool ok = true;
    int runs = 0;
    bool more = false;
    for (int i = 0; ok && i < c->nrows; i++) {
        const CompareRow *r = &c->row[i];
        double seconds = 0;
        int left = wanted[i] ? runs_left(c, i, all) : 0;
        if (!(ok = run_seconds(c, i, dev, &seconds, e))) break;
        bool cut = c->budget.max_seconds > 0 && seconds > c->budget.max_seconds;
        const int tries = wanted[i] ? compare_tuning_left(c, r, &all[i]) : 0; /* which may be shorter */
        const double whole = left - tries * (1 - (double)r->tune_steps / (double)r->steps);
        total += whole * (cut ? c->budget.max_seconds : seconds), runs += left;
        more |= wanted[i] && more_may_follow(c, i, all);
        json_array_append_new(rows,
                              json_pack("{s:s, s:I, s:I, s:f, s:I, s:I, s:I, s:i, s:f, s:b, s:s}", "name", r->name,
                                        "params", (json_int_t)r->params, "hidden", (json_int_t)r->hidden, "off",
                                        ((double)r->params - (double)c->match.params) / (double)c->match.params,
                                        "steps", (json_int_t)r->steps, "tokens",
                                        (json_int_t)(r->steps * r->cfg.train.batch * r->cfg.data.seq_len),
                                        "cache_bytes", (json_int_t)r->at_context, "runs_left", left, "run_seconds",
                                        seconds, "cut", cut, "from", r->from));
    }
    device_close(dev);
    json_t *j =
        json_pack("{s:I, s:f, s:i, s:b, s:f, s:o}", "match_params", (json_int_t)c->match.params, "tolerance",
                  c->match.tolerance, "runs_left", runs, "more_may_follow", more, "seconds", total, "rows", rows);
    if (ok && cli->json) return engine_print(j, e);
    if (ok) {
        json_t *x;
        size_t i;
        printf("%-24s %12s %8s %8s %8s %12s %14s %6s %10s\n", "row", "parameters", "off", "FFN", "steps", "tokens",
               "cache bytes", "runs", "s a run");
        json_array_foreach(rows, i, x) {
#define WHOLE(name) (long long)json_integer_value(json_object_get(x, name))
#define NUM(name)   json_real_value(json_object_get(x, name))
            printf("%-24s %12lld %+7.2f%% %8lld %8lld %12lld %14lld %6lld %10.1f%s\n", c->row[i].name, WHOLE("params"),
                   100 * NUM("off"), WHOLE("hidden"), WHOLE("steps"), WHOLE("tokens"), WHOLE("cache_bytes"),
                   WHOLE("runs_left"), NUM("run_seconds"),
                   json_is_true(json_object_get(x, "cut")) ? " stopped by budget.max_seconds" : "");
        }
        printf("%lld parameters within %g %%; %s%d runs left, about %.0f s (validations, teachers and starts not "
               "counted)\n",
               (long long)c->match.params, 100 * c->match.tolerance, more ? "at least " : "", runs, total);
        if (more)
            printf(
                "more runs follow in a row whose best learning rate is the lowest or the highest: at most %d a side\n",
                c->widen);
    }
    json_decref(j);
    return ok;
}

/* ---- the work ------------------------------------------------------------------------------------------------------
 */

/* One run if it is not over, with the conversion that it starts from. */
static bool run_one(const Compare *c, int i, const RowResult *all, double lr, int64_t seed, int mark, Progressing *p,
                    bool *diverged, int *status, Err *e) {
    const CompareRow *row = &c->row[i];
    Config *cfg = xcalloc(1, sizeof *cfg);
    RunRecord r = {0};
    Origin o;
    bool ok = compare_source(c, i, all, seed, &o);
    CHECK(ok, "row %s has no source at seed %lld", row->name, (long long)seed);
    if (row->convert) {
        char *src = compare_run_of(c, row->source, &all[row->source], seed);
        ok = compare_convert(c, row, seed, src, status, e);
        free(src);
    }
    if (ok && !*status) {
        compare_run_config(c, row, lr, seed, mark, &o, cfg);
        ok = compare_look(c, row, cfg, mark, &r, e);
        if (ok && r.state < RUN_FINISHED) ok = compare_train(c, row, cfg, mark, p, &r, status, e);
    }
    *diverged = ok && r.state == RUN_DIVERGED;
    origin_free(&o);
    free(cfg);
    return ok;
}

/* Whether the rows that row i needs are done. *skip: one of them has no finished run and gets none. */
static bool sources_done(const Compare *c, int i, const RowResult *all, bool *skip, Err *e) {
    const int needs[] = {c->row[i].source, c->row[i].learns};
    *skip = false;
    for (int k = 0; k < 2; k++) {
        if (needs[k] < 0) continue;
        const int left = runs_left(c, needs[k], all);
        const bool none = all[needs[k]].best < 0;
        *skip |= none && all[needs[k]].tuned && !left; /* it diverged */
        if (!*skip && (none || left))
            return err_input(e, "row %s %s %s, which has no finished run%s; train that first, or name it in --only",
                             c->row[i].name, k ? "learns from" : "starts from", c->row[needs[k]].name,
                             none ? "" : " of every seed");
    }
    return true;
}

/* All runs of a row; *status 130: interrupted. */
static bool row_run(const Compare *c, int i, RowResult *all, Progressing *p, int *status, Err *e) {
    bool diverged = false, skip;
    if (!sources_done(c, i, all, &skip, e)) return false;
    if (skip) return true;
    bool ok = compare_result(c, i, all, &all[i], e);
    while (ok && !*status && all[i].next > 0) {
        int left = runs_left(c, i, all);
        ok = run_one(c, i, all, all[i].next, c->tune_seed, 0, p, &diverged, status, e);
        ok = ok && (*status || compare_result(c, i, all, &all[i], e));
        p->total += runs_left(c, i, all) + 1 - left; /* another rate follows, or all diverged */
    }
    for (int k = 0; ok && !*status && all[i].lr > 0 && k < c->seeds.n; k++) {
        diverged = false;
        for (int m = 0; ok && !*status && !diverged && m < compare_runs(&c->row[i]); m++)
            ok = run_one(c, i, all, all[i].lr, c->seeds.v[k], m, p, &diverged, status, e);
    }
    if (*status) return true;
    return ok && compare_result(c, i, all, &all[i], e);
}

static bool cmd_compare_train(const Compare *c, RowResult *all, const bool *wanted, const Cli *cli, int *status,
                              Err *e) {
    FILE *out = cli->json ? stderr : stdout;
    Progressing p = {.cli = cli, .live = !cli->quiet && isatty(fileno(out)), .out = cli->quiet ? NULL : out};
    for (int i = 0; i < c->nrows; i++)
        if (wanted[i]) p.total += runs_left(c, i, all);
    for (int i = 0; i < c->nrows && !*status; i++)
        if (wanted[i] && !row_run(c, i, all, &p, status, e)) return false;
    return true;
}

/* table.md and table.html. */
static bool table_write(const Compare *c, const json_t *results, Err *e) {
    char *text = NULL, *page = NULL, *path = xformat("%s/table.md", c->dir), *html = xformat("%s/table.html", c->dir);
    size_t n, m;
    FILE *f = oom_stream(&text, &n);
    compare_table(f, results);
    fclose(f);
    f = oom_stream(&page, &m);
    compare_html(f, text, results);
    fclose(f);
    bool ok = file_write(path, text, n, e) && file_write(html, page, m, e);
    free(text), free(page), free(path), free(html);
    return ok;
}

static bool cmd_compare_finish(const Compare *c, RowResult *all, bool again, const Cli *cli, Err *e) {
    Spread loss[ROWS_COMPARED_MAX];
    Rank rank[ROWS_COMPARED_MAX];
    for (int i = 0; i < c->nrows; i++) loss[i] = all[i].loss;
    compare_rank(c->nrows, loss, rank);
    for (int i = 0; i < c->nrows; i++) all[i].rank = rank[i];
    Cli own = *cli;
    own.bf16 = c->dtype == BF16; /* as trained */
    own.codec = &codec_f32;
    json_t *speed = compare_measure(c, all, again, &own, e);
    if (!speed) return false;
    if (!compare_losses(c, all, &own, e)) {
        json_decref(speed);
        return false;
    }
    json_t *j = compare_json(c, all, speed);
    char *path = xformat("%s/results.json", c->dir);
    bool ok = json_write(path, j, e) && table_write(c, j, e);
    if (ok && !cli->json) compare_table(stdout, j);
    if (ok && cli->json) {
        json_incref(j);
        ok = engine_print(j, e);
    }
    json_decref(j);
    json_decref(speed);
    free(path);
    return ok;
}

static bool results_read(const Compare *c, RowResult *all, Err *e) {
    for (int i = 0; i < c->nrows; i++)
        if (!compare_result(c, i, all, &all[i], e)) return false;
    return true;
}

/* Trains, and writes the tables unless another comparison trains a row of this folder: that one does it, if it ends
 * last. */
static bool cmd_compare_do(const Compare *c, const Args *a, const bool *wanted, RowResult *all, const Cli *cli,
                           int *status, Err *e) {
    /* A run that outlived its comparison may still save itself; another comparison may end in this moment. */
    enum { FIRST = 20, LAST = 2 };
    bool every[ROWS_COMPARED_MAX];
    int busy = -1;
    RowLocks locks;
    for (int i = 0; i < c->nrows; i++) every[i] = true;
    bool ok = compare_lock(c, a->measure_only ? every : wanted, FIRST, &locks, &busy, e);
    if (ok && busy >= 0 && compare_interrupted()) return *status = EXIT_SIGNAL, true;
    if (ok && busy >= 0)
        ok = err_input(e,
                       "%.150s: row %s is being trained by another comparison; wait for it, name other rows in --only "
                       "or choose another dir",
                       c->dir, c->row[busy].name);
    ok = ok && results_read(c, all, e) && (a->measure_only || cmd_compare_train(c, all, wanted, cli, status, e));
    engine_signals(); /* what comes has nothing to save */
    if (compare_interrupted()) *status = EXIT_SIGNAL;
    compare_unlock(c, &locks);
    if (!ok || *status) return ok;
    ok = compare_lock(c, every, LAST, &locks, &busy, e);
    if (ok && busy >= 0 && cli->json) {
        json_t *j = json_pack("{s:s}", "busy", c->row[busy].name);
        ok = engine_print(j, e);
        json_decref(j);
    } else if (ok && busy >= 0 && !cli->quiet) {
        printf("row %s is being trained by another comparison; the tables follow when it ends\n", c->row[busy].name);
    }
    if (ok && busy < 0) ok = results_read(c, all, e) && cmd_compare_finish(c, all, a->measure_only, cli, e);
    compare_unlock(c, &locks);
    return ok;
}

static bool cmd_compare_work(const Args *a, const Cli *cli, int *status, Err *e) {
    Compare c;
    bool wanted[ROWS_COMPARED_MAX];
    if (!compare_read(&c, a->config, a->noverride, a->override, cli, e)) return false;
    RowResult *all = xcalloc((size_t)c.nrows, sizeof *all);
    bool ok = wanted_rows(&c, a->only, wanted, e);
    if (ok && a->plan) ok = results_read(&c, all, e) && cmd_compare_plan(&c, all, wanted, cli, e);
    if (ok && !a->plan) {
        compare_signals();
        ok = cmd_compare_do(&c, a, wanted, all, cli, status, e);
    }
    free(all);
    compare_free(&c);
    return ok;
}

static void keys_print(void) {
    fputs("Settings of a comparison: a YAML file; then key=value words on the command line, in order.\n\n", stdout);
    schema_document(stdout, compare_keys, "", false);
    fputs("\nrows\n", stdout);
    schema_document(stdout, compare_row_keys, "rows.N.", false);
}

int cmd_compare(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"plan", OPT_PLAN, 0, 0, "Print rows, matched widths, parameters and an estimate of the time; train nothing",
         0},
        {"only", OPT_ONLY, "ROW[,ROW...]", 0, "Train these rows only", 0},
        {"measure-only", OPT_MEASURE, 0, 0, "Train nothing; measure finished runs again", 0},
        {"keys", OPT_KEYS, 0, 0, "Print every key of a comparison's configuration", 0},
        {"policies", OPT_POLICIES, "LIST", 0,
         "Instead, compare cache policies on MODEL: \"h2o snapkv:window=8@int8\", where @CODEC stores their rows by a "
         "codec of --cache-dtype (none@CODEC: all rows); dense, window and random are added",
         0},
        {"tasks", OPT_TASKS, "LIST", 0,
         "--policies: what is asked: \"niah_multikey:keys=6 vt\" (default: the task that MODEL was trained on)", 0},
        {"budgets", OPT_BUDGETS, "LIST", 0, "--policies: shares of the prompt's rows (default 0.5,0.25,0.125)", 0},
        {"seeds", OPT_SEEDS, "N", 0, "--policies: sets of samples (default 3)", 0},
        {"out", OPT_OUT, "DIR", 0, "--policies: receives policies.md, policies.json and policies.svg", 0},
        {0}};
    static const CliSpec spec = {.args = "CONFIG.yaml|MODEL [KEY=VALUE...]",
                                 .doc =
                                     "Trains every layout that CONFIG lists with the same data, budget and number of "
                                     "parameters, and prints the quality, cache bytes, prefill speed and decoding "
                                     "speed of each. Its folder receives table.md, table.html, "
                                     "results.json and every run. After "
                                     "an interruption the same command continues; finished runs are not repeated. With "
                                     "--policies it trains nothing: it asks MODEL tasks through its cache under each "
                                     "policy and budget, with the prompt ending after and before the question, and "
                                     "prints accuracy, distance from the dense cache, bytes and times; KEY=VALUE are "
                                     "samples (100) and settings of every task.",
                                 .options = options,
                                 .take = cmd_compare_take,
                                 .max_args = -1};
    Args a = {0};
    Cli cli;
    Err e = {0};
    int status = 0;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    engine_signals();
    if (a.keys) {
        keys_print();
        return 0;
    }
    const char *alien = a.tasks ? "--tasks" : a.budgets ? "--budgets" : a.seeds ? "--seeds" : a.out ? "--out" : NULL;
    if (!a.policies && alien) {
        err_input(&e, "compare: %s is an option of --policies", alien);
        return cli_fail(&e);
    }
    if (a.policies && (a.only || a.plan || a.measure_only || !a.config)) {
        err_input(&e, a.config ? "compare: --only, --plan and --measure-only are not options of --policies"
                               : "compare --policies: expected MODEL; see kvsmith compare --help");
        return cli_fail(&e);
    }
    if (a.policies) {
        const ComparePolicies p = {a.config, a.policies, a.tasks,     a.budgets, a.out, a.seeds ? a.seeds : 3,
                                   8,        CHUNK_ROWS, a.noverride, a.override};
        return compare_policies(&p, &cli, &e) ? 0 : cli_fail(&e);
    }
    if (!a.config) {
        err_input(&e, "compare: expected CONFIG.yaml [KEY=VALUE...]; see kvsmith compare --help");
        return cli_fail(&e);
    }
    if (cli.bf16) {
        err_input(&e, "--dtype: rows are trained and measured with train.dtype of the base; set base.train.dtype=bf16");
        return cli_fail(&e);
    }
    return cmd_compare_work(&a, &cli, &status, &e) ? status : cli_fail(&e);
}
