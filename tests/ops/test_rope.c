/* Frequencies of rotary position embedding: written-out vectors, closed forms, and what transformers computes. */
#include "tests/lib/check.h"
#include "ops/rope.h"
#include "model/config/schema.h"

static RopeCfg settings(const char *yaml) {
    RopeCfg c;
    Err e = {0};
    Node *x = tree_yaml(yaml, strlen(yaml), "settings", &e);
    cr_assert(x && schema_read(rope_keys, x, "rope", NULL, &c, &e), "%s", e.msg);
    tree_free(x);
    return c;
}
static Rope made(const char *yaml, int n, int max_positions) {
    RopeCfg c = settings(yaml);
    Rope r;
    Err e = {0};
    cr_assert(rope_make(&r, &c, n, max_positions, &e), "%s: %s", yaml, e.msg);
    return r;
}
static void near(const char *what, double got, double want, double tol) {
    cr_assert(fabs(got - want) <= tol * fabs(want), "%s: got %.17g, expected %.17g, off by %.3g of it", what, got, want,
              fabs(got - want) / fabs(want));
}

Test(rope, none_and_default) {
    Rope r = made("{type: none}", 64, 100);
    cr_assert(r.n == 0 && r.factor == 1);
    r = made("{}", 8, 100);
    double want[] = {1, 0.1, 0.01, 0.001};
    cr_assert(r.n == 8 && r.factor == 1 && !r.interleaved);
    CHECK_CLOSE("theta 10000, n 8", r.f, want, 4, 1e-15);
    r = made("{theta: 16, interleaved: true}", 4, 100);
    cr_assert(r.interleaved);
    near("theta 16, n 4", r.f[1], 0.25, 1e-15);
}

/* The yarn of DeepSeek-V2-Lite: correction range 10.472..22.513, so the ramp runs from pair 10 to pair 23. */
Test(rope, yarn_of_v2_lite) {
    Rope r = made("{type: yarn, factor: 40, original_max_positions: 4096}", 64, 163840);
    const struct {
        int i;
        double f;
    } v[] = {{0, 1},           {10, 0.0562341}, {11, 0.0390069}, {16, 0.0055}, {22, 1.778279e-4}, {23, 3.333804e-5},
             {31, 3.333804e-6}};
    for (size_t k = 0; k < sizeof v / sizeof *v; k++) near("yarn", r.f[v[k].i], v[k].f, 2e-6);
    near("attention factor", r.factor, 0.1 * log(40) + 1, 1e-15);
}

/* Written down from a computation in f32, whose power is off by 1e-6 in the last pair. */
Test(rope, llama_3_1) {
    Rope r = made("{type: llama3, theta: 500000, factor: 8, original_max_positions: 8192}", 128, 131072);
    const struct {
        int i;
        double f;
    } v[] = {{28, 0.00321144599}, {29, 0.00216657076}, {30, 0.00137189357}, {32, 5.24846116e-4},
             {34, 1.78507813e-4}, {35, 9.5562124e-5},  {63, 3.06892899e-7}};
    for (size_t k = 0; k < sizeof v / sizeof *v; k++) near("llama3", r.f[v[k].i], v[k].f, 1.5e-6);
    cr_assert(r.factor == 1);
}

/* L, length and factor fall back on the model's context. */
Test(rope, fallbacks) {
    Rope a = made("{type: llama3, factor: 4}", 32, 512),
         b = made("{type: llama3, factor: 4, original_max_positions: 512}", 32, 9999);
    CHECK_BYTES("L", a.f, b.f, sizeof a.f);
    a = made("{type: dynamic, factor: 4, original_max_positions: 512}", 32, 2048);
    b = made("{type: dynamic, factor: 4, length: 2048}", 32, 512);
    CHECK_BYTES("length", a.f, b.f, sizeof a.f);
    b = made("{type: dynamic, factor: 4, length: 100}", 32, 512);
    a = made("{}", 32, 512);
    CHECK_RELATIVE("dynamic within L scales nothing", b.f, a.f, 16, 1e-15);
    near("one factor is given", made("{type: yarn, factor: 8, mscale: 2}", 32, 512).factor, 0.1 * log(8) + 1, 1e-15);
}

/* Each line of golden/rope.txt: "name n positions length | key=value ... | factor f...", by golden/make_rope.py.
 * transformers computes in f32: powers of a base of 1e6 lose some units in the last place, and its llama3 and yarn
 * blend two such numbers. */
Test(rope, transformers) {
    size_t size;
    char *text = check_read("tests/golden/rope.txt", &size);
    int cases = 0;
    double worst = 0;
    char worst_at[128] = "";
    for (char *line = text, *end; *line; line = end) {
        end = strchr(line, '\n');
        cr_assert(end, "the last line has no end");
        *end++ = 0;
        if (*line == '#') continue;
        char name[40], yaml[2048] = "{";
        int n, positions, length, at;
        cr_assert(sscanf(line, "%39s %d %d %d |%n", name, &n, &positions, &length, &at) == 4, "%s", line);
        char *keys = line + at, *bar = strchr(keys, '|'), *save = NULL;
        cr_assert(bar, "%s", line);
        *bar = 0;
        for (char *key = strtok_r(keys, " ", &save); key; key = strtok_r(NULL, " ", &save)) {
            char *eq = strchr(key, '='), *list = strchr(eq, ',') ? "[]" : "";
            *eq = 0;
            size_t k = strlen(yaml);
            snprintf(yaml + k, sizeof yaml - k, "%s: %.1s%s%s, ", key, list, eq + 1, *list ? "]" : "");
        }
        snprintf(yaml + strlen(yaml), sizeof yaml - strlen(yaml), "length: %d}", length ? length : positions);
        Rope r = made(yaml, n, positions);
        char *p = bar + 1;
        near(name, r.factor, strtod(p, &p), 1e-14);
        for (int i = 0; i < n / 2; i++) {
            char *q;
            double want = strtod(p, &q), off = fabs(r.f[i] - want) / want;
            cr_assert(q != p, "%s: %d frequencies, expected %d", name, i, n / 2);
            p = q;
            if (!(off <= worst))
                worst = off,
                snprintf(worst_at, sizeof worst_at, "%s, pair %d: %.9g, transformers %.9g", name, i, r.f[i], want);
        }
        while (*p == ' ') p++;
        cr_assert(!*p, "%s: more than %d frequencies", name, n / 2);
        cases++;
    }
    free(text);
    cr_log_info("%d cases, worst relative error %.3g at %s", cases, worst, worst_at);
    cr_assert(cases == 19 && worst <= 1e-6, "%d cases, worst relative error %.3g at %s", cases, worst, worst_at);
}

static const struct {
    const char *yaml, *says;
    int n, positions;
} refused[] = {
    {"{}", "even", 7, 10},
    {"{}", "up to 512", 514, 10},
    {"{}", "even", -2, 10},
    {"{}", "max_positions", 8, 0},
    {"{factor: 2}", "rope.type", 8, 10},
    {"{type: none, factor: 2}", "rope.type", 8, 10},
    {"{type: linear}", "rope.factor", 8, 10},
    {"{type: dynamic, factor: 0.5}", "rope.factor", 8, 10},
    {"{type: dynamic, factor: 2}", "more than one pair", 2, 10},
    {"{type: yarn}", "rope.factor", 8, 10},
    {"{type: yarn, factor: 2, theta: 1}", "rope.theta", 8, 10},
    {"{type: yarn, factor: 2, beta_slow: 40}", "rope.beta_fast", 8, 10},
    {"{type: llama3}", "rope.factor", 8, 10},
    {"{type: llama3, factor: 2, low_freq_factor: 4}", "rope.high_freq_factor", 8, 10},
    {"{type: longrope}", "rope.short_factor: expected 4", 8, 10},
    {"{type: longrope, short_factor: [1, 1, 1, 1], long_factor: [1, 1, 1]}", "rope.long_factor: expected 4", 8, 10},
    {"{type: longrope, short_factor: [1], long_factor: [1]}", "original_max_positions", 2, 1},
};
ParameterizedTestParameters(rope, refuses) {
    static size_t index[sizeof refused / sizeof *refused];
    for (size_t i = 0; i < sizeof index / sizeof *index; i++) index[i] = i;
    return cr_make_param_array(size_t, index, sizeof index / sizeof *index);
}
ParameterizedTest(size_t *i, rope, refuses) {
    RopeCfg c = settings(refused[*i].yaml);
    Rope r;
    Err e = {0};
    cr_assert(!rope_make(&r, &c, refused[*i].n, refused[*i].positions, &e), "%s", refused[*i].yaml);
    cr_assert(e.status == EXIT_INPUT && strstr(e.msg, refused[*i].says), "%s: %s", refused[*i].yaml, e.msg);
}
