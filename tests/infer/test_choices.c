/* test_choices.c: eval choices against lm-evaluation-harness (golden/make_choices.py), against itself in other batches,
 * and what it refuses. */
#include "tests/lib/check.h"
#include <jansson.h>

static const char ITEMS[] = "tests/golden/choices/items.jsonl";

static json_t *answer(Ran r) {
    json_error_t why;
    cr_assert_eq(r.status, 0, "%s", r.err);
    json_t *j = json_loads(r.out, 0, &why);
    cr_assert(j, "%s: %s", why.text, r.out);
    free(r.out), free(r.err);
    return j;
}
#define CHOICES(model, data, ...)                                                             \
    answer(RUN("eval", model, "choices", "--data", data, "--json", "--per-item", "--threads", \
               "1" __VA_OPT__(, ) __VA_ARGS__))

static double real_of(const json_t *j, const char *key) { return json_number_value(json_object_get(j, key)); }

/* Worst difference of a log-likelihood; everything else must be equal. */
static double differ(const json_t *a, const json_t *b, int *conts) {
    static const char *const same[] = {"tokens", "greedy", "choice", "choice_norm"};
    const json_t *x = json_object_get(a, "items"), *y = json_object_get(b, "items");
    double worst = 0;
    cr_assert(json_array_size(x) > 0 && json_array_size(x) == json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++) {
        const json_t *p = json_array_get(x, i), *q = json_array_get(y, i), *u = json_object_get(p, "ll"),
                     *v = json_object_get(q, "ll");
        for (int k = 0; k < 4; k++)
            cr_assert(json_equal(json_object_get(p, same[k]), json_object_get(q, same[k])), "item %zu: %s", i, same[k]);
        cr_assert(json_array_size(u) > 0 && json_array_size(u) == json_array_size(v));
        for (size_t c = 0; c < json_array_size(u); c++, ++*conts) {
            double d = fabs(json_number_value(json_array_get(u, c)) - json_number_value(json_array_get(v, c)));
            if (!(d <= worst)) worst = d;
        }
    }
    return worst;
}

ParameterizedTestParameters(choices, as_the_harness) {
    static char names[][8] = {"gpt2", "llama3"};
    return cr_make_param_array(char[8], names, 2);
}
ParameterizedTest(char (*name)[8], choices, as_the_harness) {
    char *model = xformat("tests/golden/choices/%s", *name), *path = xformat("%s/golden.json", model);
    char *text = check_read(path, NULL);
    json_t *golden = json_loads(text, 0, NULL), *got = CHOICES(model, ITEMS);
    int conts = 0, cut = 0, greedy = 0, kinds = 0;
    size_t i, c;
    json_t *item, *x;
    double worst = differ(got, golden, &conts);
    json_array_foreach(json_object_get(golden, "items"), i, item) {
        cut += (int)real_of(item, "cut");
        json_array_foreach(json_object_get(item, "greedy"), c, x) greedy += json_is_true(x);
        kinds |= 1 << json_integer_value(json_object_get(item, "choice"));
    }
    cr_log_info("%s: %d continuations, worst |ll - harness| %.2g", *name, conts, worst);
    cr_assert(worst <= 1e-3, "%s: a log-likelihood differs by %g", *name, worst);
    cr_assert(fabs(real_of(got, "acc") - real_of(golden, "acc")) < 1e-9);
    cr_assert(fabs(real_of(got, "acc_norm") - real_of(golden, "acc_norm")) < 1e-9);
    cr_assert_eq((int)real_of(got, "truncated"), cut);
    cr_assert_eq((int)real_of(got, "n"), 40);
    double acc = real_of(got, "acc"), se = sqrt(acc * (1 - acc) / 39);
    cr_assert(fabs(real_of(got, "acc_stderr") - se) < 1e-9);
    /* the file asks what it is there for */
    cr_assert(conts > 120 && cut >= 20 && kinds == 31, "%d continuations, %d cut, choices %x", conts, cut, kinds);
    cr_assert(strcmp(*name, "gpt2") || greedy > 0);

    static const char *const how[][4] = {{"--batch", "1"}, {"--batch", "7", "--chunk", "5"}, {"--batch", "4096"}};
    for (int k = 0; k < 3; k++) {
        json_t *other = how[k][2] ? CHOICES(model, ITEMS, how[k][0], how[k][1], how[k][2], how[k][3])
                                  : CHOICES(model, ITEMS, how[k][0], how[k][1]);
        worst = differ(got, other, &conts);
        cr_assert(worst <= 2e-4, "%s: batch %s: a log-likelihood differs by %g", *name, how[k][1], worst);
        json_decref(other);
    }
    json_t *some = CHOICES(model, ITEMS, "--limit", "7"), *all = json_object_get(got, "items");
    while (json_array_size(all) > 7) json_array_remove(all, 7);
    cr_assert_eq((int)real_of(some, "n"), 7);
    cr_assert(differ(got, some, &conts) <= 2e-4);
    json_decref(some);
    json_decref(got);
    json_decref(golden);
    free(model), free(path), free(text);
}

/* A context that some continuations share gives what each would get alone, for every kind of cache; and by bytes. */
Test(choices, shared_context_as_alone) {
    static const char *const mixers[] = {
        "model.kinds={mix: {mixer: gqa, heads: 2, window: 8, sinks: 1}}",
        "model.kinds={mix: {mixer: mamba2, head_dim: 16}}", "model.kinds={mix: {mixer: kda, heads: 2}}",
        "model.kinds={mix: {mixer: dmc, heads: 2}}",
        "model.kinds={mix: {mixer: mla, heads: 2, kv_rank: 8, nope_dim: 8, rope_dim: 4}}"};
    static const char shared[] = "{\"ctx\":\"In the beginning \",\"cont\":[\"God\",\" created the heaven\",\"x\","
                                 "\"\\u00e9t\\u00e9 and the earth was without form\"],\"gold\":1}\n";
    static const char alone[] =
        "{\"ctx\":\"In the beginning \",\"cont\":[\"God\"],\"gold\":0}\n"
        "{\"ctx\":\"In the beginning \",\"cont\":[\" created the heaven\"],\"gold\":0}\n\r\n"
        "{\"ctx\":\"In the beginning \",\"cont\":[\"x\"],\"gold\":0}\r\n"
        "{\"ctx\":\"In the beginning \",\"cont\":[\"\xc3\xa9t\xc3\xa9 and the earth was without form\"],"
        "\"gold\":0}";
    char *a = check_path("shared.jsonl"), *b = check_path("alone.jsonl"), *run = check_path("run"),
         *dir = xformat("run.dir=%s", run);
    check_write(a, shared, sizeof shared - 1);
    check_write(b, alone, sizeof alone - 1);
    for (size_t i = 0; i < sizeof mixers / sizeof *mixers; i++) {
        Ran r = RUN("train", "configs/tiny-gqa.yaml", dir, mixers[i], "train.steps=1", "train.eval_every=0",
                    "model.init_std=0.3", "optim.warmup=0", "run.threads=1", "-q");
        cr_assert_eq(r.status, 0, "%s", r.err);
        json_t *x = CHOICES(run, a, "--batch", "3"), *y = CHOICES(run, b, "--batch", "1", "--chunk", "3");
        const json_t *ll = json_object_get(json_array_get(json_object_get(x, "items"), 0), "ll");
        cr_assert_eq(json_array_size(ll), 4);
        for (size_t k = 0; k < 4; k++) {
            const json_t *item = json_array_get(json_object_get(y, "items"), k);
            double one = json_number_value(json_array_get(json_object_get(item, "ll"), 0)),
                   of = json_number_value(json_array_get(ll, k));
            cr_assert(one < -1 && fabs(one - of) <= 2e-4, "%s: continuation %zu: %g shared, %g alone", mixers[i], k, of,
                      one);
        }
        json_decref(x);
        json_decref(y);
        char *clean = xformat("rm -rf '%s'", run);
        cr_assert_eq(system(clean), 0);
        free(clean);
    }
    free(a), free(b), free(run), free(dir);
}

/* A context of white space alone, which the harness stops at, is none: its white space belongs to the continuation. */
Test(choices, context_of_white_space) {
    static const char line[] = "{\"ctx\":\" \\n\",\"cont\":[\"king\",\"a b\"],\"gold\":1}\n"
                               "{\"ctx\":\"\",\"cont\":[\" \\nking\",\" \\na b\"],\"gold\":1}\n";
    char *path = check_path("white.jsonl");
    check_write(path, line, sizeof line - 1);
    json_t *got = CHOICES("tests/golden/choices/gpt2", path), *items = json_object_get(got, "items");
    for (size_t k = 0; k < 2; k++) {
        double ll[2];
        for (size_t i = 0; i < 2; i++)
            ll[i] = json_number_value(json_array_get(json_object_get(json_array_get(items, i), "ll"), k));
        cr_assert(ll[0] < -1 && fabs(ll[0] - ll[1]) < 1e-5, "%g %g", ll[0], ll[1]);
    }
    json_decref(got);
    Ran one = RUN("eval", "tests/golden/choices/gpt2", "choices", "--data", path, "--limit", "1", "--threads", "1"),
        two = RUN("eval", "tests/golden/choices/gpt2", "choices", "--data", path, "--threads", "1");
    cr_assert(!one.status && strstr(one.out, "   1 items, 2 continuations, context 64") && !strstr(one.out, "nan"),
              "%s", one.out);
    cr_assert(!two.status && strstr(two.out, " ± ") && strstr(two.out, "   2 items, 4 continuations"), "%s", two.out);
    free(path);
}

Test(choices, refusals) {
    static const char model[] = "tests/golden/choices/gpt2";
    static const struct {
        const char *line, *part;
    } bad[] = {
        {"{\"cont\":[\"a\"],\"gold\":0}", ":2: \"ctx\": expected a text, found nothing"},
        {"{\"ctx\":[\"x\"],\"cont\":[\"a\"],\"gold\":0}", ":2: \"ctx\": expected a text, found a list"},
        {"{\"ctx\":\"x\",\"cont\":\"a\",\"gold\":0}",
         ":2: \"cont\": expected a list of at least one text, found a text"},
        {"{\"ctx\":\"x\",\"cont\":[],\"gold\":0}", "found an empty one"},
        {"{\"ctx\":\"x\",\"cont\":[\"a\",3],\"gold\":0}", ":2: cont 1: expected a text, found a number"},
        {"{\"ctx\":\"x\",\"cont\":[\"a\",\"b\"],\"gold\":2}", ":2: \"gold\": expected a whole number from 0 to 1"},
        {"{\"ctx\":\"x\",\"cont\":[\"a\",\"b\"],\"gold\":-1}", "whole number from 0 to 1"},
        {"{\"ctx\":\"x\",\"cont\":[\"a\",\"b\"],\"gold\":\"1\"}", "whole number from 0 to 1"},
        {"{\"ctx\":\"x\",\"cont\":[\"a\",\"b\"],\"gold\":18446744073709551616}", ":2: not valid JSON"},
        {"{\"ctx\":\"x\",\"cont\":[\"\",\"b\"],\"gold\":1}", ":2: cont 0: expected a continuation with tokens after"},
        {"{\"ctx\":\"x\",\"cont\":[\"a\"],\"gold\":0", ":2: not valid JSON"},
        {"{\"ctx\":\"x\",\"ctx\":\"y\",\"cont\":[\"a\"],\"gold\":0}", ":2: not valid JSON"},
        {"{\"ctx\":\"\xff\",\"cont\":[\"a\"],\"gold\":0}", ":2: not valid JSON"},
        {"[1]", ":2: expected a JSON object"},
        {"{\"ctx\":\"x\",\"cont\":[\"0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 "
         "9\"],"
         "\"gold\":0}",
         "tokens, expected at most the context of 64"},
    };
    char *path = check_path("bad.jsonl"), *empty = check_path("empty.jsonl");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = xformat("{\"ctx\":\"x\",\"cont\":[\" a\",\" b\"],\"gold\":1}\n%s\n", bad[i].line);
        check_write(path, text, strlen(text));
        CHECK_REFUSED(RUN("eval", model, "choices", "--data", path, "--json"), 2, bad[i].part);
        free(text);
    }
    check_write(empty, "\n\n", 2);
    CHECK_REFUSED(RUN("eval", model, "choices", "--data", empty), 2, "no item in it");
    CHECK_REFUSED(RUN("eval", model, "choices", "--data", "tests"), 2, "tests");
    CHECK_REFUSED(RUN("eval", model, "choices", "--data", "no-such-file"), 2, "no-such-file");
    CHECK_REFUSED(RUN("eval", model, "choices"), 2, "expected --data FILE.jsonl");
    CHECK_REFUSED(RUN("eval", model, "choices", "--data", ITEMS, "--per-item"), 2, "--per-item needs --json");
    CHECK_REFUSED(RUN("eval", model, "choices", "--data", ITEMS, "--stride", "3"), 2,
                  "--stride is not an option of choices");
    CHECK_REFUSED(RUN("eval", model, "choices", "--data", ITEMS, "--limit", "0"), 2, "--limit");
    CHECK_REFUSED(RUN("eval", model, "choices", "x=1", "--data", ITEMS), 2, "unexpected word 'x=1'");
    CHECK_REFUSED(RUN("eval", model, "ppl", "--data", ITEMS, "--limit", "2"), 2,
                  "--limit and --per-item are only for choices");
    CHECK_REFUSED(RUN("eval", "tests/golden/export", "choices", "--data", ITEMS), 2, "no tokenizer.json in it");
    free(path), free(empty);
}
