/* Defaults that follow from what was written, numbers as people write them, and names of other tools. */
#include "tests/lib/check.h"
#include "model/config/config_keys.h"
#include "model/config/hints.h"

#define SHAPE "d_model: 32, layers: 2, kinds: {a: {mixer: gqa, heads: 2}}, ffn: {kind: swiglu, hidden: 64}"
static const char small[] = "model: {" SHAPE "}\n";
static Config one, two;

static void parse(Config *c, const char *text, int n, char *const over[]) {
    Err e = {0};
    bool ok = config_parse(c, text, strlen(text), "run.yaml", n, over, &e);
    cr_assert(ok, "%s: %s", n ? over[0] : text, e.msg);
}
static void refused(const char *what, bool ok, const Err *e, const char *says) {
    cr_assert(!ok, "accepted: %s", what);
    cr_assert(e->status == EXIT_INPUT && strlen(e->msg) <= 300 && strstr(e->msg, says),
              "%s\n  says     %s\n  expected %s", what, e->msg, says);
}

static const struct {
    const char *over[3];
    int64_t warmup;
    int micro;
    double min_lr;
} defaults[] = {
    {{0}, 100, 8, 1e-4},
    {{"train.steps=50"}, 5, 8, 1e-4},
    {{"train.steps=9"}, 0, 8, 1e-4},
    {{"train.steps=999"}, 99, 8, 1e-4},
    {{"train.steps=1000"}, 100, 8, 1e-4},
    {{"optim.schedule_steps=50"}, 5, 8, 1e-4},
    {{"optim.schedule_steps=50", "optim.schedule=constant"}, 100, 8, 1e-4}, /* a constant rate has no such end */
    {{"optim.schedule=wsd", "optim.decay_steps=98%"}, 40, 8, 1e-4},
    {{"optim.warmup=2000"}, 2000, 8, 1e-4},
    {{"train.batch=4"}, 100, 4, 1e-4},
    {{"train.batch=1"}, 100, 1, 1e-4},
    {{"train.batch=12"}, 100, 6, 1e-4},
    {{"train.batch=7"}, 100, 7, 1e-4},
    {{"train.batch=26"}, 100, 2, 1e-4},
    {{"train.batch=12", "train.micro_batch=4"}, 100, 4, 1e-4},
    {{"optim.lr=3e-5"}, 100, 8, 3e-6},
    {{"optim.lr=3e-3"}, 100, 8, 3e-4},
    {{"optim.lr=0"}, 100, 8, 0},
    {{"optim.lr=3e-3", "optim.schedule=constant"}, 100, 8, 1e-4}, /* not read, so that it stays */
    {{"optim.lr=3e-3", "optim.min_lr=1e-3"}, 100, 8, 1e-3},
};
static int count(const char *const over[3]) { return !over[0] ? 0 : !over[1] ? 1 : !over[2] ? 2 : 3; }

Test(defaults, follow_what_was_written_and_read_back) {
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        const char *what = defaults[i].over[0] ? defaults[i].over[0] : "nothing";
        parse(&one, small, count(defaults[i].over), (char *const *)defaults[i].over);
        char *text = config_text(&one);
        parse(&two, text, 0, NULL); /* what a checkpoint keeps is explicit */
        for (int k = 0; k < 2; k++) {
            const Config *c = k ? &two : &one;
            cr_assert_eq(config_schedule(c).warmup, defaults[i].warmup, "%s: warmup %lld", what,
                         (long long)config_schedule(c).warmup);
            cr_assert_eq(c->train.micro_batch, defaults[i].micro, "%s: micro_batch %d", what, c->train.micro_batch);
            cr_assert_eq(c->optim.min_lr, defaults[i].min_lr, "%s: min_lr %.17g", what, c->optim.min_lr);
        }
        cr_assert_eq(two.follows, 0u, "%s: what was read back follows", what);
        char *again = config_text(&two);
        cr_assert_str_eq(text, again);
        free(text), free(again);
        config_free(&one), config_free(&two);
    }
}

/* What was written is refused where it conflicts, with the default that it conflicts with; no line is to blame that
 * says nothing of it. */
Test(defaults, are_named_where_they_are_in_the_way) {
    static const struct {
        const char *over, *says;
    } bad[] = {
        {"optim.warmup=2001", "command line: optim.warmup: 2001 is more than train.steps, 2000 (default)"},
        {"train.micro_batch=48", "command line: train.micro_batch: 48 does not divide train.batch, 64 (default)"},
        {"optim.min_lr=0.1", "command line: optim.min_lr: 0.1 is more than optim.lr, 0.001 (default)"},
        {"model.max_positions=64",
         "run.yaml: data.seq_len: 256 (default) is more than model.max_positions, 64; set data.seq_len=64"},
        {"optim={schedule: wsd}", "run.yaml: optim.decay_steps: schedule wsd needs"},
        {"optim={schedule: wsd, decay_steps: 2001}",
         "0 of optim.warmup (default) are more than train.steps, 2000 (def"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Err e = {0};
        char *over[] = {(char *)bad[i].over};
        refused(bad[i].over, config_parse(&one, small, strlen(small), "run.yaml", 1, over, &e), &e, bad[i].says);
    }
    Err e = {0};
    char *over[] = {"train.steps=5", "optim.warmup=6"};
    refused("both", config_parse(&one, small, strlen(small), "run.yaml", 2, over, &e), &e,
            "optim.warmup: 6 is more than train.steps, 5");
    cr_assert(!strstr(e.msg, "default"), "%s", e.msg);
}

Test(defaults, follow_in_every_stage) {
    static const char text[] = "model: {" SHAPE "}\n"
                               "stages:\n"
                               "- {name: a, steps: 30, set: {train.batch: 4}}\n"
                               "- {name: b, steps: 5000, set: {optim: {lr: 3e-5}}}\n"
                               "- {name: c, steps: 600, set: {optim.warmup: 0}}\n";
    static const struct {
        int64_t warmup;
        int micro;
        double min_lr;
    } want[] = {{3, 4, 1e-4}, {100, 8, 3e-6}, {0, 8, 1e-4}};
    parse(&one, text, 0, NULL);
    char *resolved = config_text(&one);
    parse(&two, resolved, 0, NULL);
    for (int i = 0; i < 6; i++) {
        const Config *c = config_stage(i < 3 ? &one : &two, i % 3).cfg;
        cr_assert(config_schedule(c).warmup == want[i % 3].warmup && c->train.micro_batch == want[i % 3].micro &&
                      c->optim.min_lr == want[i % 3].min_lr,
                  "stage %d: %lld %d %g", i, (long long)config_schedule(c).warmup, c->train.micro_batch,
                  c->optim.min_lr);
    }
    cr_assert(strstr(resolved, "{train.batch: 4, optim.warmup: 3, train.micro_batch: 4}"), "%s", resolved);
    cr_assert(strstr(resolved, "{optim.warmup: 0}"), "%s", resolved);
    char *again = config_text(&two);
    cr_assert_str_eq(resolved, again);
    free(resolved), free(again);
    config_free(&one), config_free(&two);
    /* what the run gives holds in its stages */
    char *over[] = {"optim.warmup=20", "train.micro_batch=2", "optim.min_lr=1e-5"};
    parse(&one, text, 3, over);
    const Config *a = config_stage(&one, 0).cfg;
    cr_assert(config_schedule(a).warmup == 20 && a->train.micro_batch == 2 && a->optim.min_lr == 1e-5);
    config_free(&one);
}

/* Every rank gets equally many micro-batches, where that is possible and nobody has said otherwise. */
Test(defaults, micro_batch_fits_the_ranks) {
    static const struct {
        const char *over;
        int world, micro;
    } t[] = {{"train.batch=64", 1, 8},      {"train.batch=64", 8, 8}, {"train.batch=64", 16, 4},
             {"train.batch=12", 3, 4},      {"train.batch=8", 3, 1},  {"train.batch=8", 8, 1},
             {"train.micro_batch=8", 16, 8}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *over[] = {(char *)t[i].over};
        parse(&one, small, 1, over);
        config_ranks(&one, t[i].world);
        cr_assert_eq(one.train.micro_batch, t[i].micro, "%s of %d: %d", t[i].over, t[i].world, one.train.micro_batch);
        config_free(&one);
    }
}

/* A run of the time when the defaults were 100, 8 and 1e-4 whatever else was said continues as it was. */
Test(defaults, of_a_run_that_resumes_are_its_own) {
    char *old[] = {"optim={warmup: 100, min_lr: 1e-4, lr: 3e-3}", "train={steps: 500, batch: 24, micro_batch: 8}"},
         *now[] = {"optim={lr: 3e-3}", "train={steps: 700, batch: 24}"},
         *other[] = {"optim={lr: 3e-3, min_lr: 1e-3}", "train={steps: 700, batch: 24}"};
    Err e = {0};
    parse(&one, small, 2, old);
    parse(&two, small, 2, now);
    cr_assert(config_schedule(&two).warmup == 70 && two.optim.min_lr == 3e-4);
    config_adopt(&two, &one);
    cr_assert(config_schedule(&two).warmup == 100 && two.optim.min_lr == 1e-4 && two.train.micro_batch == 8);
    cr_assert(config_resumable(&one, &two, 10, &e), "%s", e.msg);
    config_free(&two);
    parse(&two, small, 2, other);
    config_adopt(&two, &one);
    refused("another min_lr", config_resumable(&one, &two, 10, &e), &e, "optim.min_lr: 0.001");
    config_free(&one), config_free(&two);
}

Test(defaults, numbers_as_people_write_them) {
    static const struct {
        const char *text;
        int64_t steps;
    } t[] = {{"10k", 10000},     {"1e4", 10000},    {"10_000", 10000},       {"2M", 2000000},
             {"2.5k", 2500},     {"1.5e3", 1500},   {"20000e-3", 20},        {"1E+3", 1000},
             {"1G", 1000000000}, {"1_0.5k", 10500}, {"1e12", 1000000000000}, {"1.00e2", 100}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        Number v;
        bool ok = number_parse(t[i].text, &v);
        cr_assert(ok && v.whole && v.fits && v.i == t[i].steps && v.f == (double)v.i, "%s: %lld %.17g", t[i].text,
                  (long long)v.i, v.f);
        char over[64], *const overs[] = {over};
        snprintf(over, sizeof over, "train.steps=%s", t[i].text);
        parse(&one, small, 1, overs);
        cr_assert_eq(one.train.steps, t[i].steps);
        config_free(&one);
    }
    Number v;
    cr_assert(number_parse("9223372036854775807", &v) && v.whole && v.i == INT64_MAX);
    cr_assert(number_parse("-9223372036854775808", &v) && v.whole && v.i == INT64_MIN);
    cr_assert(number_parse("9223372036854775808", &v) && !v.whole && v.f == 0x1p63);
    cr_assert(number_parse("0e999999999999999999999", &v) && v.whole && v.i == 0 && v.fits);
    cr_assert(number_parse("1e99999999999999999999", &v) && !v.whole && !v.fits);
    cr_assert(number_parse("0.1", &v) && !v.whole && v.f == 0.1);
    cr_assert(number_parse("3e-5", &v) && v.f == 3e-5 && number_parse("500k", &v) && v.f == 5e5);
    cr_assert(number_parse("1.0", &v) && !v.whole && v.f == 1);
    char *over[] = {"optim={warmup: 1k}", "model.kinds.a.rope={theta: 500k}"};
    parse(&one, small, 2, over);
    cr_assert_eq(config_schedule(&one).warmup, 1000);
    config_free(&one);
}

Test(defaults, names_of_other_tools_are_refused_with_ours) {
    static const struct {
        const char *over, *says;
    } t[] = {
        {"lr=1e-3", "lr: unknown key; did you mean optim.lr?"},
        {"train.lr=1e-3", "did you mean optim.lr?"},
        {"optim.lrr=1e-3", "did you mean optim.lr?"},
        {"learning_rate=1e-3", "did you mean optim.lr?"},
        {"train.learning_rate=1e-3", "did you mean optim.lr?"},
        {"batch_size=8", "did you mean train.batch?"},
        {"train.max_steps=8", "did you mean train.steps?"},
        {"epochs=3", "unknown key; give train.steps = epochs x tokens of the text"},
        {"train.num_train_epochs=3", "give train.steps = epochs x"},
        {"model.hidden_size=8", "did you mean model.d_model?"},
        {"n_layer=8", "did you mean model.layers?"},
        {"model.num_layers=8", "did you mean model.layers?"},
        {"model.attention=mha", "did you mean model.kinds.NAME.mixer?"},
        {"model.heads=4", "did you mean model.kinds.NAME.heads?"},
        {"model.kinds.a.num_heads=4", "did you mean model.kinds.a.heads?"},
        {"model.ffn.d_ff=4", "did you mean model.ffn.hidden?"},
        {"model.kinds.a.mixer=attention", "unknown name 'attention'; did you mean gqa?"},
        {"model.kinds.a.mixer=mamba", "unknown name 'mamba'; did you mean mamba2?"},
        {"model.pattern=[attention]", "unknown name 'attention'; did you mean gqa?"},
        {"model.ffn.kind=mlp", "unknown name 'mlp'; did you mean gelu?"},
        {"seed=3", "did you mean run.seed?"},
        {"stage=[]", "did you mean stages?"},
        {"batch:4=1", "batch:4: unknown key; a space must follow the ':'"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        Err e = {0};
        char *over[] = {(char *)t[i].over};
        refused(t[i].over, config_parse(&one, small, strlen(small), "run.yaml", 1, over, &e), &e, t[i].says);
    }
}

/* Whatever is suggested is there: each name of the table, asked for at the root, leads to a key that is known. */
Test(defaults, what_hints_suggest_exists) {
    static const char *const names[] = {"learning_rate",    "wd",
                                        "grad_clip",        "batch_size",
                                        "max_iters",        "block_size",
                                        "dataset",          "val_file",
                                        "output_dir",       "save_steps",
                                        "eval_steps",       "log_interval",
                                        "precision",        "gradient_checkpointing",
                                        "n_embd",           "depth",
                                        "vocab_size",       "n_positions",
                                        "tie_embeddings",   "rms_norm_eps",
                                        "base_model",       "lora_r",
                                        "lora_alpha",       "target_modules",
                                        "zero_stage",       "optimizer",
                                        "warmup_steps",     "adam_beta1",
                                        "adam_epsilon",     "teacher_model",
                                        "initializer_range"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char hint[HINT_MAX], key[64];
        Err e = {0};
        cr_assert(hint_key(names[i], names[i], config_keys, hint), "%s", names[i]);
        cr_assert_eq(sscanf(hint, "did you mean %63[^?]?", key), 1, "%s: %s", names[i], hint);
        char *over = xformat("%s={no: 1}", key), *overs[] = {over};
        cr_assert(!config_parse(&one, small, strlen(small), "run.yaml", 1, overs, &e));
        cr_assert(!strstr(e.msg, "unknown key") || strstr(e.msg, ".no: unknown key"), "%s: %s", names[i], e.msg);
        free(over);
    }
}
