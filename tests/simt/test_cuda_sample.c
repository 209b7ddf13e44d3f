/* test_cuda_sample.c: tokens that a device draws beside those of infer/sampler.c: the same ones, for every setting, at
 * ties, where weights vanish, and in what is said of damaged logits; and by their frequencies, which need no such
 * twin. */
#include "tests/lib/check.h"
#include "infer/sampler.h"
#include "ops/ops.h"

enum { ROWS = 8 };
typedef struct {
    Device *dev;
    Arena mem;
    real *logits;
    unsigned char *seen;
    void *work;
} Place;
static void take(Place *p, int V) {
    p->logits = arena_take(&p->mem, (size_t)ROWS * (size_t)V * sizeof(real), "logits");
    p->seen = arena_take(&p->mem, (size_t)ROWS * (size_t)V, "seen");
    p->work = arena_take(&p->mem, device_sample_bytes(ROWS, V), "work");
}
static void open_place(Place *p, int V) {
    Err e = {0};
    *p = (Place){0};
    cr_assert(device_open(&p->dev, "cuda", 1, &e), "%s", e.msg);
    take(p, V);
    cr_assert(arena_open_at(&p->mem, device_memory(p->dev, false), "place", p->mem.peak, false, &e), "%s", e.msg);
    take(p, V);
}
static void close_place(Place *p) {
    arena_close(&p->mem);
    device_close(p->dev);
}
/* Numbers of a few kinds: all different, many equal, far apart (weights that are 0), some of them -inf. */
static void numbers(real *l, int V, int kind, uint64_t key) {
    for (int v = 0; v < V; v++) {
        double x = 3 * rng_normal(key, (uint64_t)v);
        if (kind == 1) x = floor(x);
        if (kind == 2) x *= 200;
        if (kind == 3 && v % 3 == 1) x = -INFINITY;
        if (kind == 4) x = 0.25 * (v % 2) - 0.0;
        l[v] = (real)x;
    }
}
static void same_tokens(Place *p, int V, const Sampler *s, uint64_t key, int *moved) {
    real *l = xcalloc((size_t)ROWS * (size_t)V, sizeof *l);
    unsigned char *seen = xcalloc((size_t)ROWS * (size_t)V, 1), *after = xcalloc((size_t)ROWS * (size_t)V, 1);
    Candidate *c = xcalloc((size_t)V, sizeof *c);
    SampleRow row[ROWS];
    Sampled got[ROWS];
    Err e = {0};
    for (int i = 0; i < ROWS; i++) {
        numbers(l + i * V, V, i % 5, rng_mix(key, (uint64_t)i));
        for (int v = 0; v < V; v++) seen[i * V + v] = rng_uniform(key, (uint64_t)(i * V + v)) < 0.2;
        row[i] = sampler_row(s, (uint64_t)i, key);
        row[i].slot = ROWS - 1 - i;
    }
    unsigned char *turned = xcalloc((size_t)ROWS * (size_t)V, 1);
    for (int i = 0; i < ROWS; i++) memcpy(turned + row[i].slot * V, seen + i * V, (size_t)V);
    device_write(p->dev, p->logits, l, (size_t)ROWS * (size_t)V * sizeof *l);
    device_write(p->dev, p->seen, turned, (size_t)ROWS * (size_t)V);
    device_sample(p->dev, ROWS, V, row, p->logits, p->seen, p->work, got);
    device_read(p->dev, after, p->seen, (size_t)ROWS * (size_t)V);
    for (int i = 0; i < ROWS; i++) {
        int want, token;
        cr_assert(sampler_pick(s, l + i * V, V, seen + i * V, (uint64_t)i, key, c, &want, &e), "%s", e.msg);
        cr_assert(sampler_drawn(&got[i], V, &token, &e), "%s", e.msg);
        cr_assert(token == want, "t %g k %d p %g min %g r %g, kind %d, V %d, key %d: %d, the CPU %d (logits %g, %g)",
                  s->temperature, s->top_k, s->top_p, s->min_p, s->repetition_penalty, i % 5, V, (int)key, token, want,
                  (double)l[i * V + token], (double)l[i * V + want]);
        if (s->repetition_penalty != 1) turned[row[i].slot * V + token] = 1;
        *moved += want != 0;
    }
    CHECK_BYTES("tokens seen", after, turned, (size_t)ROWS * (size_t)V);
    free(l), free(seen), free(after), free(turned), free(c);
}
Test(cuda_sample, tokens_are_the_cpus, .timeout = 300) {
    static const int sizes[] = {1, 2, 37, 300, 601};
    static const double set[][5] = {/* temperature, top_k, top_p, min_p, penalty */
                                    {0, 0, 1, 0, 1},      {0, 5, 0.5, 0, 1.3}, {1, 0, 1, 0, 1},
                                    {0.7, 0, 1, 0.05, 1}, {1, 1, 1, 0, 1},     {1.5, 20, 1, 0, 1.2},
                                    {1, 0, 0.9, 0, 1},    {1, 0, 1e-3, 0, 1},  {1, 40, 0.8, 0, 0.8},
                                    {2, 0, 0.95, 0.2, 1}, {1, 7, 1, 0.3, 1.1}, {1e-3, 0, 0.99, 0, 1}};
    int moved = 0;
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        Place p;
        open_place(&p, sizes[n]);
        for (size_t k = 0; k < sizeof set / sizeof *set; k++) {
            Sampler s = {set[k][0], set[k][2], set[k][3], set[k][4], (int)set[k][1], 11 + k};
            for (uint64_t key = 0; key < (sizes[n] > 37 ? 1 : 2); key++) same_tokens(&p, sizes[n], &s, key, &moved);
        }
        close_place(&p);
    }
    cr_assert(moved > 200, "%d", moved);
}
/* Chi-squared below what one in a million exceeds. A draw by rank takes the emulation ten times as long. */
Test(cuda_sample, frequencies_are_the_probabilities, .timeout = 300) {
    enum { V = 12 };
    static const double set[][3] = {{0, 1, 0}, {6, 1, 0}, {0, 0.8, 0}, {0, 1, 0.1}}; /* top_k, top_p, min_p */
    Place p;
    open_place(&p, V);
    for (size_t k = 0; k < sizeof set / sizeof *set; k++) {
        Sampler s = {0.9, set[k][1], set[k][2], 1, (int)set[k][0], 5};
        real l[ROWS * V];
        Candidate c[V];
        SampleRow row[ROWS];
        Sampled got[ROWS];
        Err e = {0};
        const int draws = set[k][0] > 0 || set[k][1] < 1 ? 120 : 400;
        int n, count[V] = {0};
        for (int i = 0; i < ROWS; i++) numbers(l + i * V, V, 0, 3);
        for (int i = 0; i < ROWS * V; i++) l[i] /= 4; /* all of them likely */
        device_write(p.dev, p.logits, l, sizeof l);
        for (int d = 0; d < draws; d += ROWS) {
            for (int i = 0; i < ROWS; i++) row[i] = sampler_row(&s, (uint64_t)i, (uint64_t)d);
            device_sample(p.dev, ROWS, V, row, p.logits, NULL, p.work, got);
            for (int i = 0; i < ROWS; i++) {
                cr_assert(got[i].token >= 0 && got[i].token < V);
                count[got[i].token]++;
            }
        }
        cr_assert(sampler_support(&s, l, V, NULL, c, &n, &e), "%s", e.msg);
        double chi = 0;
        int seen = 0;
        for (int i = 0; i < n; i++) {
            double want = c[i].p * draws;
            chi += (count[c[i].id] - want) * (count[c[i].id] - want) / want;
            seen += count[c[i].id];
        }
        double most = n + 5 * sqrt(2.0 * n) + 10;
        cr_assert(seen == draws && n > 1 && chi < most, "%zu: chi-squared %g of %d tokens, %d draws inside", k, chi, n,
                  seen);
    }
    close_place(&p);
}
Test(cuda_sample, damaged_logits_are_named) {
    enum { V = 300 };
    static const struct {
        int at;
        real value;
        const char *said;
    } bad[] = {{7, NAN, "logit of token 7 is nan"},
               {299, INFINITY, "logit of token 299 is inf"},
               {-1, -INFINITY, "all 300 logits are -inf"}};
    Place p;
    open_place(&p, V);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        real l[V];
        Sampler s = sampler_default();
        SampleRow row = sampler_row(&s, 0, 0);
        Sampled got;
        Err e = {0};
        int token;
        numbers(l, V, 0, 9);
        for (int v = 0; v < V; v++)
            if (v == bad[k].at || bad[k].at < 0 || (k == 0 && v == 200)) l[v] = bad[k].value;
        device_write(p.dev, p.logits, l, sizeof l);
        device_sample(p.dev, 1, V, &row, p.logits, NULL, p.work, &got);
        cr_assert(!sampler_drawn(&got, V, &token, &e) && e.status == EXIT_RUNTIME, "%d", got.token);
        cr_assert(strstr(e.msg, bad[k].said), "%s", e.msg);
    }
    close_place(&p);
}
