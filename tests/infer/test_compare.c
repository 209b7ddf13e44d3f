/* Settings of a comparison, equal parameters, what records amount to. The procedure is in tests/cli/test_compare.sh. */
#include "tests/lib/check.h"
#include "train/compare/compare.h"
#include "model/model.h"

static Compare c;
static const Cli cli = {.threads = 1};

/* A comparison on a small text of its own; `more` holds the keys behind `base`. */
static bool read_with(const char *model, const char *more, Err *e) {
    char *text = check_path("text.txt"), *path = check_path("compare.yaml"), yaml[4000], words[4000];
    for (size_t i = 0; i < sizeof words; i++) words[i] = (char)('a' + i * 7 % 23);
    check_write(text, words, sizeof words);
    int n = snprintf(yaml, sizeof yaml,
                     "dir: %s\nbase:\n  model: %s\n  data: {train: %s, seq_len: 32}\n"
                     "  train: {batch: 2, micro_batch: 2}\n  optim: {lr: 1e-2, min_lr: 2e-3, warmup: 1}\n%s",
                     check_path("dir"), model, text, more);
    cr_assert(n < (int)sizeof yaml);
    check_write(path, yaml, (size_t)n);
    return compare_read(&c, path, 0, NULL, &cli, e);
}
static const char small[] =
    "{d_model: 16, layers: 2, kinds: {mix: {mixer: gqa, heads: 4, kv_heads: 4}}, ffn: {kind: swiglu, hidden: 20}}";
#define PLAIN "lrs: [1e-2, 5e-2]\nseeds: [1, 2]\nbudget: {tokens: 2000}\n"

static void rank_is(int n, const double mean[], const double sd[], const int count[], const Rank want[]) {
    Spread s[8] = {0};
    Rank got[8];
    for (int i = 0; i < n; i++) s[i] = (Spread){count[i], mean[i], sd[i]};
    compare_rank(n, s, got);
    for (int i = 0; i < n; i++) cr_assert_eq(got[i], want[i], "place %d: rank %d, expected %d", i, got[i], want[i]);
}

Test(compare, spread) {
    double x[] = {1.5, 2.5, 3.5, 4.5};
    Spread s = compare_spread(4, x);
    cr_assert_float_eq(s.mean, 3, 1e-15);
    cr_assert_float_eq(s.sd, sqrt(5.0 / 3), 1e-15, "sd %.17g", s.sd); /* squares 2.25 .25 .25 2.25 over 3 */
    s = compare_spread(1, x);
    cr_assert(s.mean == 1.5 && isnan(s.sd));
    s = compare_spread(0, x);
    cr_assert(s.n == 0 && isnan(s.mean) && isnan(s.sd));
}

Test(compare, no_order_below_two_sd) {
    const int n[] = {3, 3, 3, 0, 3};
    /* 2 x the larger sd decides: the best's for row 1, the row's own for row 2 */
    rank_is(5, (double[]){1.00, 1.19, 1.35, NAN, 1.21}, (double[]){0.1, 0.01, 0.2, NAN, 0.01}, n,
            (Rank[]){RANK_BEST, RANK_TIE, RANK_TIE, RANK_NONE, RANK_WORSE});
    rank_is(2, (double[]){1.5, 1.0}, (double[]){0.2, 0.25}, n, (Rank[]){RANK_WORSE, RANK_BEST}); /* 2 sd exactly */
    rank_is(3, (double[]){2, 1, 9}, (double[]){NAN, 0.1, 0.1}, (int[]){1, 3, 3},
            (Rank[]){RANK_TIE, RANK_BEST, RANK_WORSE});
    rank_is(2, (double[]){1, 2}, (double[]){NAN, 0.1}, (int[]){1, 3}, (Rank[]){RANK_BEST, RANK_TIE});
    rank_is(2, (double[]){NAN, NAN}, (double[]){NAN, NAN}, (int[]){0, 0}, (Rank[]){RANK_NONE, RANK_NONE});
}

Test(compare, front) {
    /* rows 1, 4 and 5 are dominated: by 0 in both, by 0 at equal bytes, by 2 at equal loss; 7 has no loss; 8 and 9,
     * which are equal, are the other kind */
    const double loss[] = {1.0, 1.1, 0.9, 0.5, 1.2, 0.9, 1.5, NAN, 2.0, 2.0},
                 bytes[] = {100, 120, 300, 900, 100, 400, 50, 10, 1000, 1000};
    const bool kind[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, want[] = {1, 0, 1, 1, 0, 0, 1, 0, 1, 1};
    bool got[10];
    compare_front(10, loss, bytes, kind, got);
    for (int i = 0; i < 10; i++) cr_expect_eq(got[i], want[i], "row %d: %d", i, got[i]);
}

/* Text of a configuration and of a machine may have any characters. */
Test(compare, page_escapes_and_has_every_cell) {
    static const char table[] = "a & b `<c>`\n\n| row | x |\n|---|---:|\n| \"m\" | 1 < 2 |\n| n | - |\n\nend > of it\n";
    static const char *const parts[] = {"<title>p&lt;q&gt;&amp;&quot;</title>",
                                        "<p>a &amp; b <code>&lt;c&gt;</code></p>",
                                        "<thead><tr><th>row</th><th>x</th></tr>",
                                        "<td>&quot;m&quot;</td><td>1 &lt; 2</td>",
                                        "<tr><td>n</td><td>-</td></tr>\n</tbody></table>",
                                        "<p>end &gt; of it</p>"};
    json_t *j = json_pack("{s:s, s:{s:i}, s:[{s:s, s:f, s:f, s:b}, {s:s, s:f, s:f, s:b}, {s:s, s:n}]}", "config",
                          "p<q>&\"", "measure", "context", 64, "rows", "name", "first", "val_loss", 1.0,
                          "bytes_per_token", 64.0, "front", 1, "name", "second", "val_loss", 2.0, "bytes_per_token",
                          1024.0, "front", 0, "name", "third", "val_loss");
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    compare_html(f, table, j);
    fclose(f);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_expect(strstr(text, parts[i]), "no '%s' in\n%s", parts[i], text);
    cr_expect(strstr(text, "class=\"row best\" data-row=\"first\"") &&
                  strstr(text, "class=\"row\" data-row=\"second\"") && !strstr(text, "third"),
              "%s", text);
    /* 64 and 1024 bytes are 4 doublings apart, of the 6 from 32 to 2048 that the 632 units of the axis show */
    double x[2], y[2];
    char *at = strstr(text, "data-row=\"first\"");
    cr_assert(at && sscanf(at, "data-row=\"first\" cx=\"%lf\" cy=\"%lf\"", &x[0], &y[0]) == 2);
    at = strstr(text, "data-row=\"second\"");
    cr_assert(at && sscanf(at, "data-row=\"second\" cx=\"%lf\" cy=\"%lf\"", &x[1], &y[1]) == 2);
    cr_expect_float_eq(x[1] - x[0], 4 * 632 / 6.0, 0.11, "%g to %g", x[0], x[1]);
    cr_expect(y[1] < y[0], "a greater loss is higher up: %g, %g", y[0], y[1]);
    free(text);
    json_decref(j);
}

Test(compare, names_of_learning_rates) {
    static const struct {
        double lr;
        const char *name;
    } all[] = {{3e-3, "3e-3"}, {1.5e-3, "1.5e-3"}, {1, "1e0"},
               {100, "1e2"},   {1e-9, "1e-9"},     {0.1 + 0.2, "3.0000000000000004e-1"}};
    char buf[32];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cr_expect_str_eq(compare_lr_name(all[i].lr, buf), all[i].name);
        cr_expect(strtod(buf, NULL) == all[i].lr);
    }
}

static size_t params_of(const Config *cfg) {
    Model m;
    Device *dev;
    Err e = {0};
    cr_assert(device_open(&dev, "cpu", 1, &e) && model_open(&m, dev, &cfg->model, (ModelOpts){.dry = true}, &e), "%s",
              e.msg);
    size_t n = model_params(&m);
    model_close(&m);
    device_close(dev);
    return n;
}

/* Every row is within tolerance, and no other width in the given steps is nearer. */
Test(compare, parameters_match) {
    Err e = {0};
    cr_assert(read_with(small,
                        PLAIN
                        "match: {params: 12000, tolerance: 0.1, multiple: 3}\n"
                        "rows:\n- name: mha\n- {name: mqa, set: {model.kinds.mix.kv_heads: 1}}\n"
                        "- name: two\n  set: {'model.ffn': [{kind: swiglu, hidden: 10}, {kind: swiglu, hidden: 20}]}\n",
                        &e),
              "%s", e.msg);
    cr_assert_eq(c.nrows, 3);
    for (int i = 0; i < 3; i++) {
        CompareRow *r = &c.row[i];
        cr_assert_eq(r->params, params_of(&r->cfg), "%s: %zu reported", r->name, r->params);
        cr_assert_eq(r->hidden % 3, 0);
        double off = fabs((double)r->params - 12000);
        cr_assert(off <= 1200, "%s: %zu parameters", r->name, r->params);
        int *h = r->cfg.model.ffn[0].cfg + r->cfg.model.ffn[0].ffn->keys[0].at;
        cr_assert_eq((size_t)*h, r->hidden);
        if (i == 2) { /* the other part keeps its proportion of two */
            int *second = r->cfg.model.ffn[1].cfg + r->cfg.model.ffn[1].ffn->keys[0].at;
            cr_assert_eq(*second, 2 * *h);
            continue;
        }
        for (int step = -3; step <= 3; step += 6) {
            *h += step;
            cr_assert(fabs((double)params_of(&r->cfg) - 12000) >= off, "%s: hidden %d is nearer", r->name, *h);
            *h -= step;
        }
    }
    cr_assert(c.row[0].hidden < c.row[1].hidden, "fewer keys and values leave more for the feed-forward part");
    compare_free(&c);
}

Test(compare, settings_of_a_run) {
    Err e = {0};
    static Config cfg;
    cr_assert(read_with(small,
                        PLAIN "rows:\n- name: mha\n"
                              "- {name: short, from: mha, tokens: 1000, set: {model.kinds.mix.window: 8}}\n",
                        &e),
              "%s", e.msg);
    cr_assert_eq(c.match.params, (int64_t)c.row[0].params);
    cr_assert_eq(c.row[0].hidden, 20, "the first row stays as written");
    cr_assert_eq(c.row[0].steps, 2000 / 64);
    cr_assert_eq(c.row[1].steps, 1000 / 64);
    cr_assert_eq(c.row[1].source, 0);
    compare_run_config(&c, &c.row[1], 5e-2, 7, 0, &(Origin){"some/where", "some/teacher"}, &cfg);
    cr_assert(cfg.optim.lr == 5e-2 && fabs(cfg.optim.min_lr - 1e-2) < 1e-15, "min_lr %g", cfg.optim.min_lr);
    cr_assert(cfg.run.seed == 7 && cfg.train.steps == 15);
    cr_assert_str_eq(cfg.init_from, "some/where");
    cr_assert_str_eq(cfg.teacher.path, "some/teacher");
    char *dir = check_path("dir/short/lr-5e-2-seed-7");
    cr_assert_str_eq(cfg.run.dir, dir);
    compare_free(&c);
    /* stages have the row's steps between them, in proportion; the learning rate is that of the run in all */
    cr_assert(read_with(small,
                        PLAIN
                        "rows:\n- name: mha\n  lrs: [3e-2]\n  set: {optim.warmup: 0, stages: [{name: a, steps: 1}, "
                        "{name: b, steps: 2, set: {optim: {schedule: constant}}}, {name: c, steps: 1}]}\n",
                        &e),
              "%s", e.msg);
    const Config *staged = &c.row[0].cfg;
    cr_assert(staged->nstages == 3 && staged->train.steps == 31, "%d stages, %lld steps", staged->nstages,
              (long long)staged->train.steps);
    cr_assert(staged->stage[0].steps == 8 && staged->stage[1].steps == 15 && staged->stage[2].steps == 8,
              "%lld %lld %lld", (long long)staged->stage[0].steps, (long long)staged->stage[1].steps,
              (long long)staged->stage[2].steps);
    cr_assert(c.row[0].lrs.n == 1 && c.row[0].lrs.v[0] == 3e-2);
    compare_run_config(&c, &c.row[0], 3e-2, 1, 0, &(Origin){0}, &cfg);
    char *text = config_text(&cfg);
    static Config again;
    cr_assert(config_parse(&again, text, strlen(text), "text", 0, NULL, &e), "%s\n%s", e.msg, text);
    for (int k = 0; k < 3; k++)
        cr_assert(again.stage[k].cfg->optim.lr == 3e-2 && again.stage[k].cfg->model.ffn[0].ffn, "stage %d: lr %g", k,
                  again.stage[k].cfg->optim.lr);
    free(text);
    config_free(&again);
    compare_free(&c);
    /* passes bind: 3600 tokens and ends of documents to train on */
    cr_assert(read_with(small,
                        "lrs: [1e-2]\nseeds: [1]\nbudget: {tokens: 2000, max_passes: 0.25}\nrows:\n- name: mha\n", &e),
              "%s", e.msg);
    cr_assert_eq(c.row[0].steps, (int64_t)(0.25 * (double)c.text_tokens / 64));
    cr_assert_lt(c.row[0].steps, 2000 / 64);
    compare_free(&c);
}

static const CompareRow *row_named(const char *name) {
    for (int i = 0; i < c.nrows; i++)
        if (!strcmp(c.row[i].name, name)) return &c.row[i];
    cr_assert_fail("no row %s", name);
    return NULL;
}
static void controlled_by(const char *name, const char *control) {
    int at = row_named(name)->reference;
    const char *got = at < 0 ? "none" : c.row[at].name;
    cr_expect_str_eq(got, control, "%s is compared with %s, expected %s", name, got, control);
}

/* Which rows get which controls, and what these are: one for many rows where nothing but the layout differs. */
Test(compare, controls) {
    static const char rows[] =
        "widen: 0\nlrs: [1e-2]\nseeds: [1]\nbudget: {tokens: 20000}\nmatch: {multiple: 1}\nrows:\n- name: mha\n"
        "- {name: mqa, set: {model.kinds.mix.kv_heads: 1}}\n"     /* from scratch: none */
        "- {name: more, from: mha, tokens: 640}\n"                /* the same layout: none; a control */
        "- {name: more2, from: mha, tokens: 1280, lrs: [3e-2]}\n" /* at another rate: of none */
        "- {name: near, from: mha, tokens: 640, set: {model.kinds.mix.window: 8}}\n"
        "- {name: far, from: mha, tokens: 1280, set: {model.kinds.mix.window: 8, optim.warmup: 0}}\n"
        "- {name: far2, from: mha, tokens: 1280, set: {model.kinds.mix.window: 4, optim.warmup: 0}}\n"
        "- {name: mean, from: mha, marks: [10], set: {model.kinds.mix.window: 8, optim.warmup: 0}}\n"
        "- {name: first, from: mha, marks: [5, 20], teacher: mha, "
        "set: {model.kinds.mix.window: 4, optim.warmup: 0}}\n"
        "- {name: kl, from: mha, marks: [5], teacher: mha, "
        "set: {model.kinds.mix.window: 2, optim.warmup: 0, teacher.losses: {lm: 0, kl: 1}}}\n"
        "- {name: fast, from: mha, marks: [10], lrs: [2e-2], set: {model.kinds.mix.window: 8, optim.warmup: "
        "0}}\n"
        "- {name: one, from: mqa, tokens: 640, set: {model.kinds.mix.kv_heads: 1, model.kinds.mix.window: 8}}\n";
    static const char *const made[] = {"mha-on", "mha-on-2", "mha-on-kd", "mha-on-kd-2", "mha-on-3", "mqa-on"};
    Err e = {0};
    cr_assert(read_with(small, rows, &e), "%s", e.msg);
    cr_assert_eq(c.nrows, 12 + 6, "%d rows", c.nrows);
    for (int i = 0; i < 6; i++) cr_expect_str_eq(c.row[12 + i].name, made[i]);
    controlled_by("mha", "none"), controlled_by("mqa", "none"), controlled_by("more", "none");
    controlled_by("near", "more");
    controlled_by("far", "mha-on"), controlled_by("far2", "mha-on");
    controlled_by("mean", "mha-on-2"), controlled_by("first", "mha-on-kd"), controlled_by("kl", "mha-on-kd-2");
    controlled_by("fast", "mha-on-3"), controlled_by("one", "mqa-on"), controlled_by("mha-on", "none");
    const CompareRow *far = row_named("mha-on"), *marks = row_named("mha-on-2"), *kd = row_named("mha-on-kd");
    cr_expect(far->steps == 20 && !far->marks.n && far->learns < 0 && far->cfg.optim.warmup.n == 0);
    int *window = far->cfg.model.kind[0].cfg, *source = c.row[0].cfg.model.kind[0].cfg;
    cr_expect_arr_eq(window, source, far->cfg.model.kind[0].mixer->cfg_size, "mha-on has another layout than mha");
    /* marks of `first` without its teacher and of `mean` are one chain */
    cr_expect(marks->marks.n == 3 && marks->marks.v[0] == 5 && marks->marks.v[1] == 10 && marks->marks.v[2] == 20);
    cr_expect(kd->marks.n == 2 && kd->learns == 0 && kd->cfg.teacher.losses.lm == 1);
    cr_expect(row_named("mha-on-kd-2")->cfg.teacher.losses.lm == 0 && row_named("mha-on-3")->lrs.v[0] == 2e-2);
    cr_expect_eq(row_named("mqa-on")->params, row_named("mqa")->params);
    cr_expect_eq(row_named("mqa-on")->at_context, row_named("mqa")->at_context);
    compare_free(&c);
    char text[sizeof rows + 40];
    snprintf(text, sizeof text, "controls: false\n%s", rows);
    cr_assert(read_with(small, text, &e), "%s", e.msg);
    cr_assert_eq(c.nrows, 12);
    controlled_by("near", "more"), controlled_by("mean", "none");
    compare_free(&c);
}

static const struct {
    const char *more, *part;
} bad[] = {
    {PLAIN "rows: []\n", "rows: expected a list of 1 to"},
    {PLAIN "rows: {name: mha}\n", "rows: expected a list of 1 to"},
    {PLAIN, "rows: expected a list"},
    {PLAIN "row:\n- name: mha\n", "row: unknown key; did you mean rows?"},
    {PLAIN "rows:\n- nam: mha\n", "rows.0.nam: unknown key; did you mean rows.0.name?"},
    {PLAIN "rows:\n- name: a/b\n", "rows.0: the name of a row"},
    {PLAIN "rows:\n- name: ..\n", "rows.0: the name of a row"},
    {PLAIN "rows:\n- name: mha\n- name: mha\n", "rows.1: two rows have the name mha"},
    {PLAIN "rows:\n- {name: mha, from: gqa}\n- name: gqa\n", "from: expected the name of an earlier row, got gqa"},
    {PLAIN "rows:\n- {name: mha, set: 3}\n", "set: expected a map"},
    {PLAIN "rows:\n- {name: mha, set: {model.kinds.mix.kv_head: 2}}\n", "did you mean model.kinds.mix.kv_heads?"},
    {PLAIN "rows:\n- {name: mha, set: {model.kinds.mix.kv_heads: 3}}\n", "kv_heads"},
    {PLAIN "rows:\n- {name: mha, set: {data.seq_len: 16}}\n", "data is the same for all rows"},
    {PLAIN "rows:\n- {name: mha, set: {data: {train: x}}}\n", "data is the same for all rows"},
    {PLAIN "rows:\n- {name: mha, set: {train: {batch: 4}}}\n",
     "as train.steps is the same for all rows; name its keys"},
    {PLAIN "rows:\n- {name: mha, set: {train.batch: 4}}\n", "train.batch is the same for all rows"},
    {PLAIN "rows:\n- {name: mha, set: {optim.lr: 4}}\n", "optim.lr is the same for all rows"},
    {PLAIN "rows:\n- {name: mha, set: {run.seed: 4}}\n", "run is the same for all rows"},
    {PLAIN "rows:\n- {name: mha, set: {init_from: x}}\n", "init_from is the same for all rows"},
    {PLAIN "rows:\n- {name: mha, set: {model.kv_from: {1: 0}, model.kinds.b: {mixer: gqa, heads: 2}, model.pattern: "
           "[mix, b]}}\n",
     "rows.mha: model.kv_from"},
    {PLAIN "rows:\n- {name: mha, set: {stages: [{name: a, steps: 3, set: {optim: {lr: 4}}}]}}\n",
     "optim.lr is the same"},
    {PLAIN "rows:\n- {name: mha, set: {stages: [{name: a, steps: 3, set: {data.seq_len: 4}}]}}\n", "data is the same"},
    {PLAIN "rows:\n- {name: mha, set: {stages: [{name: a, steps: 1000}, {name: b, steps: 1}]}}\n",
     "stages.1.steps: its share of 31 steps is less than one"},
    {PLAIN "rows:\n- {name: mha, lrs: [1e-2, 1e-2]}\n", "rows.0.lrs: 0.01 is listed twice"},
    {PLAIN "match: {params: 100}\nrows:\n- name: mha\n", "rows.mha: no width of model.ffn gives 100 parameters"},
    {PLAIN "match: {params: 12000, tolerance: 1e-6, multiple: 64}\nrows:\n- name: mha\n", "within 0.0001 %"},
    {PLAIN "match: {by: heads}\nrows:\n- name: mha\n", "match.by: expected one of ffn"},
    {PLAIN "rows:\n- name: mha\n- {name: mqa, from: mha, set: {model.kinds.mix.kv_heads: 1}}\n", "within 3 %"},
    {PLAIN "rows:\n- {name: mha, tokens: 10}\n", "rows.0: a budget of 10 tokens is less than one step of 64"},
    {PLAIN "tune_seed: 2\nrows:\n- name: mha\n", "seeds: 2 is tune_seed too, but the run that chooses"},
    {PLAIN "widen: 9\nrows:\n- name: mha\n", "widen: expected a whole number from 0 to 8"},
    {"lrs: []\nseeds: [1]\nbudget: {tokens: 2000}\nrows:\n- name: mha\n", "lrs: expected 1 to 16 numbers, got 0"},
    {"lrs: [1e-2, 1e-2]\nseeds: [1]\nbudget: {tokens: 2000}\nrows:\n- name: mha\n", "lrs: 0.01 is listed twice"},
    {"lrs: [0]\nseeds: [1]\nbudget: {tokens: 2000}\nrows:\n- name: mha\n", "lrs.0: expected a number"},
    {"lrs: [1e-2]\nseeds: [1, 1]\nbudget: {tokens: 2000}\nrows:\n- name: mha\n", "seeds: 1 is listed twice"},
    {"lrs: [1e-2]\nseeds: [1]\nrows:\n- name: mha\n", "budget.tokens: required"},
    {"seeds: [1]\nbudget: {tokens: 2000}\nrows:\n- name: mha\n", "lrs: required"},
};

Test(compare, refused) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Err e = {0};
        cr_expect(!read_with(small, bad[i].more, &e), "accepted: %s", bad[i].more);
        cr_expect_eq(e.status, EXIT_INPUT, "%s: status %d", bad[i].more, e.status);
        cr_expect(strstr(e.msg, bad[i].part), "%s\n  gave: %s\n  expected in it: %s", bad[i].more, e.msg, bad[i].part);
    }
    cr_expect_eq(check_exists(check_path("dir")), false, "a refusal made the folder");
}

/* Rates that are tried, in order, where the loss of a run at `lr` is |ln(lr / lowest)|, and NaN above `limit`. */
typedef struct {
    double lowest, limit;
    int n, over; /* over: how many runs are done */
    double tried[RATES_MAX];
} Valley;
static bool valley_look(void *ctx, double lr, RunRecord *r, Err *e) {
    (void)e;
    Valley *v = ctx;
    *r = (RunRecord){.lr = lr, .val_loss = NAN};
    for (int i = 0; i < v->n; i++) {
        if (v->tried[i] != lr) continue;
        r->state = lr > v->limit ? RUN_DIVERGED : RUN_FINISHED;
        if (r->state == RUN_FINISHED) r->val_loss = fabs(log(lr / v->lowest));
    }
    return true;
}

static const struct {
    const char *what;
    int ngrid, widen;
    double grid[3], lowest, limit;
    int n; /* all that are tried */
    double tried[8], lr;
    bool edge;
} valleys[] = {
    {"inside", 3, 3, {1e-3, 2e-3, 4e-3}, 2e-3, 1, 3, {1e-3, 2e-3, 4e-3}, 2e-3, false},
    {"one lower", 3, 3, {1e-3, 2e-3, 4e-3}, 1e-3, 1, 4, {1e-3, 2e-3, 4e-3, 5e-4}, 1e-3, false},
    {"two higher", 3, 3, {4e-3, 1e-3, 2e-3}, 8e-3, 1, 5, {4e-3, 1e-3, 2e-3, 8e-3, 16e-3}, 8e-3, false},
    {"the ratio of that edge", 3, 1, {1e-3, 2e-3, 8e-3}, 1e-1, 1, 4, {1e-3, 2e-3, 8e-3, 32e-3}, 32e-3, true},
    {"the ratio of the other", 3, 1, {1e-3, 2e-3, 8e-3}, 1e-4, 1, 4, {1e-3, 2e-3, 8e-3, 5e-4}, 5e-4, true},
    {"as often as it may", 2, 2, {1e-3, 3e-3}, 1, 1, 4, {1e-3, 3e-3, 9e-3, 27e-3}, 27e-3, true},
    {"never", 2, 0, {1e-3, 3e-3}, 1, 1, 2, {1e-3, 3e-3}, 3e-3, true},
    {"one rate, both sides", 1, 3, {1e-3}, 1e-3, 1, 3, {1e-3, 5e-4, 2e-3}, 1e-3, false},
    {"one rate, higher", 1, 3, {1e-3}, 4e-3, 1, 5, {1e-3, 5e-4, 2e-3, 4e-3, 8e-3}, 4e-3, false},
    {"short names", 2, 1, {3e-3, 1e-2}, 1e-3, 1, 3, {3e-3, 1e-2, 9e-4}, 9e-4, true},
    {"the highest diverges", 2, 3, {1e-3, 2e-3}, 1, 1.5e-3, 3, {1e-3, 2e-3, 5e-4}, 1e-3, false},
    {"beyond the grid diverges", 2, 3, {1e-3, 2e-3}, 1, 3e-3, 3, {1e-3, 2e-3, 4e-3}, 2e-3, false},
    {"all diverge but the lowest", 2, 2, {8e-3, 4e-3}, 1, 1e-3, 4, {8e-3, 4e-3, 2e-3, 1e-3}, 1e-3, true},
    {"all diverge", 2, 2, {8e-3, 4e-3}, 1, 1e-4, 4, {8e-3, 4e-3, 2e-3, 1e-3}, 0, true},
    {"the range ends", 1, 3, {1e2}, 1e3, 1e3, 2, {1e2, 5e1}, 1e2, true},
};

Test(compare, learning_rates_beyond_the_grid) {
    for (size_t i = 0; i < sizeof valleys / sizeof *valleys; i++) {
        Compare own = {.widen = valleys[i].widen};
        CompareRow row = {.lrs = {.n = valleys[i].ngrid}};
        memcpy(row.lrs.v, valleys[i].grid, sizeof valleys[i].grid);
        Valley v = {.lowest = valleys[i].lowest, .limit = valleys[i].limit};
        RowResult *r = xcalloc(1, sizeof *r);
        Err e = {0};
        const char *what = valleys[i].what;
        for (;; v.n++) { /* as the command does it, which knows of each run only what is on disk */
            int before = compare_tuning_left(&own, &row, r);
            cr_assert(compare_tuning(&own, &row, valley_look, &v, r, &e));
            cr_assert_eq(r->tuned, !(r->next > 0), "%s", what);
            int left = compare_tuning_left(&own, &row, r), most = valleys[i].n - v.n;
            cr_assert(left <= most && (left > 0) == (most > 0), "%s: %d left of %d", what, left, most);
            cr_assert(v.n || before == left, "%s: %d runs before anything is known, then %d", what, before, left);
            if (r->tuned) break;
            cr_assert(v.n < valleys[i].n, "%s: rate %g is tried too", what, r->next);
            cr_assert_float_eq(r->next, valleys[i].tried[v.n], 1e-15, "%s: rate %d is %.17g, expected %g", what, v.n,
                               r->next, valleys[i].tried[v.n]);
            v.tried[v.n] = r->next;
        }
        cr_assert_eq(v.n, valleys[i].n, "%s: %d rates, expected %d", what, v.n, valleys[i].n);
        cr_assert_float_eq(r->lr, valleys[i].lr, 1e-15, "%s: %g is best", what, r->lr);
        cr_assert_eq(r->edge, valleys[i].edge, "%s: edge %d", what, r->edge);
        for (int k = 1; k < r->ntuned; k++) cr_assert_lt(r->tune[k - 1].lr, r->tune[k].lr);
        free(r);
    }
}

Test(compare, what_metrics_tell) {
    Err e = {0};
    RunRecord r = {0};
    char *dir = check_path("."), *path = check_path("metrics.jsonl");
    cr_assert(compare_metrics(check_path("nothing"), &r, &e) && r.step == 0 && isnan(r.val_loss) && r.tok_s == 0);
    static const char text[] =
        "{\"step\":1,\"loss\":5,\"lr\":1,\"grad_norm\":1,\"tokens\":100,\"tok_s\":50,\"mfu\":null}\n"
        "{\"step\":3,\"loss\":4,\"lr\":1,\"grad_norm\":1,\"tokens\":300,\"tok_s\":100,\"mfu\":null}\n"
        "{\"step\":4,\"val_loss\":3.5,\"val_tokens\":77}\n"
        "{\"step\":8,\"val_loss\":3.25,\"val_tokens\":78}\n"
        "{\"step\":9,\"val_loss\":1.0,\"val_to"; /* torn by a kill */
    check_write(path, text, sizeof text - 1);
    cr_assert(compare_metrics(dir, &r, &e), "%s", e.msg);
    cr_assert_eq(r.step, 8);
    cr_assert(r.val_loss == 3.25 && r.val_tokens == 78, "%g over %lld", r.val_loss, (long long)r.val_tokens);
    cr_assert_float_eq(r.seconds, 4, 1e-12); /* 100 / 50 + 200 / 100 */
    cr_assert_float_eq(r.tok_s, 75, 1e-12);  /* 300 tokens in 4 s */
}
