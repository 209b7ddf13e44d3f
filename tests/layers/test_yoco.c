/* test_yoco.c: layers that share keys and values: logits of an independent implementation (tests/golden/make_yoco.py),
 * what a prefill skips, what the cache holds. The generic suites cover gradients and every split. */
#include "tests/lib/dirs.h"
#include "infer/session.h"
#include "layers/cache/cache.h"
#include "ops/rope.h"

static const char *const names[] = {"yoco", "cla", "trailing"};
enum { NAMES = 3 };

Test(yoco, logits_of_numpy) {
    for (int i = 0; i < NAMES; i++) {
        char *dir = xformat("tests/golden/yoco/%s", names[i]);
        real *want;
        int n;
        Dir o;
        dir_open(&o, dir);
        real *got = dir_golden(&o, dir, &want, &n);
        CHECK_CLOSE(names[i], got, want, (size_t)n, 2e-5);
        free(got), free(want), free(dir);
        dir_close(&o);
    }
}

/* The published frequencies: theta^-linspace(0, 1, n/2), whose last is 1/theta. */
Test(yoco, inclusive_frequencies) {
    RopeCfg c = {.type = ROPE_DEFAULT, .theta = 10000, .inclusive = true, .interleaved = true};
    Rope r;
    Err e = {0};
    double want[] = {1, 0.046415888336127774, 0.0021544346900318843, 1e-4};
    cr_assert(rope_make(&r, &c, 8, 100, &e), "%s", e.msg);
    CHECK_CLOSE("n 8", r.f, want, 4, 1e-15);
    cr_assert(rope_make(&r, &c, 2, 100, &e) && r.f[0] == 1);
    c.type = ROPE_LINEAR, c.factor = 2;
    cr_assert(!rope_make(&r, &c, 8, 100, &e));
    dir_refused("linear", NULL, &e, "rope.inclusive");
}

/* A row of memory for each token once, whatever the number of readers; windows hold window-1 rows. */
Test(yoco, one_cache) {
    enum { TOKENS = 20 };
    Dir o;
    Err e = {0};
    Session s;
    int tok[TOKENS];
    dir_open(&o, "tests/golden/yoco/yoco");
    for (int i = 0; i < TOKENS; i++) tok[i] = i;
    cr_assert(session_open(&s, &o.model, (SessionOpts){.nseq = 1, .max_tokens = 32, .chunk = 8, .document = -1}, &e),
              "%s", e.msg);
    cr_assert(session_extend(&s, 1, &(Feed){0, TOKENS, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    /* two windows of 5 (4 rows stay) with one head of 8 + 8, one publisher with two heads of 6 + 6 */
    cr_assert_eq(kv_bytes(&s.cache, 0), sizeof(real) * (2 * 4 * 16 + TOKENS * 24), "%zu bytes", kv_bytes(&s.cache, 0));
    session_close(&s);
    dir_close(&o);
}
