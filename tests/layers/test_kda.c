/* test_kda.c: Kimi Delta Attention: logits of independent implementations (tests/golden/make_kda.py), a state that does
 * not grow, settings that are refused, initial values. The generic suites cover gradients and every split; test_recur.c
 * the recurrence. */
#include "infer/session.h"
#include "layers/cache/cache.h"
#include "layers/kda/kda.h"
#include "tests/lib/dirs.h"
#include "tests/lib/zoo.h"

static const char *const names[] = {"kimi", "bound", "bare", "gdn2"};
enum { NAMES = 4 };

Test(kda, logits_of_transformers_and_numpy) {
    for (int i = 0; i < NAMES; i++) {
        char *dir = xformat("tests/golden/kda/%s", names[i]);
        real *want;
        int n;
        Dir o;
        dir_open(&o, dir);
        real *got = dir_golden(&o, dir, &want, &n);
        CHECK_CLOSE(names[i], got, want, (size_t)n, REAL == F64 ? 2e-5 : 1e-4); /* transformers has float inside */
        free(got), free(want), free(dir);
        dir_close(&o);
    }
}

/* The same logits when the tokens come in pieces: single ones, fewer than a chunk, more than one; and the bytes that
 * the sequence holds stay what they were after the first. */
Test(kda, pieces_and_a_constant_state) {
    enum { T = 150, V = 17 };
    static const int piece[] = {1, 5, 7, 64, 100};
    Dir o;
    Err e = {0};
    int tok[T];
    real *want = xcalloc(T * V, sizeof *want), *got = xcalloc(T * V, sizeof *got);
    dir_open(&o, "tests/golden/kda/bound");
    for (int i = 0; i < T; i++) tok[i] = (int)(rng_mix(4, (uint64_t)i) % V);
    double bound = REAL == F64 ? 1e-12 : 0;
    for (int k = -2; k < 5; k++) { /* -2: the whole; -1: again, with nudged weights, for the bound */
        Session s;
        int n = k < 0 ? T : piece[k];
        size_t bytes = o.model.aw.size;
        void *weights = memcpy(xcalloc(1, bytes), o.model.aw.base, bytes);
        if (k == -1) model_nudge(&o.model);
        SessionOpts opts = {.nseq = 1, .max_tokens = T, .chunk = T, .document = -1, .want_all = true};
        cr_assert(session_open(&s, &o.model, opts, &e), "%s", e.msg);
        for (int at = 0, m; at < T; at += m) {
            m = imin(n, T - at);
            cr_assert(session_extend(&s, 1, &(Feed){0, m, tok + at}, WANT_ALL,
                                     TENSOR((k < -1 ? want : got) + at * V, REAL, m, V), &e),
                      "%s", e.msg);
            /* two layers of 4 states of 5 x 3, and two rows of 2 x 2 x 5 + 4 x 3 before the convolutions */
            cr_assert_eq(session_bytes(&s, 0), sizeof(real) * 2 * (4 * 5 * 3 + 2 * (2 * 2 * 5 + 4 * 3)));
        }
        if (k == -1 && REAL == F32) bound = check_rounding(CHECK_VIEW(want), CHECK_VIEW(got), T * V);
        if (k >= 0) CHECK_CLOSE("pieces", got, want, T * V, bound);
        session_close(&s);
        memcpy(o.model.aw.base, weights, bytes);
        free(weights);
    }
    free(want), free(got);
    dir_close(&o);
}

#define MODEL(kind, more)                                                                                         \
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"layers\":2,\"tied\":true,\"ffn\":[{\"kind\":\"swiglu\"," \
    "\"hidden\":4}],\"kinds\":{\"a\":{\"mixer\":\"kda\"," kind "}},\"pattern\":[\"a\"]" more "}"
static void refused(const char *json, const char *part) {
    ModelCfg cfg;
    Model m = {0};
    Device *dev;
    Err e = {0};
    cr_assert(device_open(&dev, "cpu", 1, &e));
    bool ok = model_cfg_from_json(&cfg, json, strlen(json), "test", &e);
    if (ok) {
        ok = model_open(&m, dev, &cfg, (ModelOpts){.dry = true}, &e);
        model_cfg_free(&cfg);
    }
    cr_assert(!ok && e.status == EXIT_INPUT && strstr(e.msg, part), "%s: %s", json, ok ? "accepted" : e.msg);
    device_close(dev);
}
Test(kda, settings) {
    refused(MODEL("\"head_dim\":4", ""), "heads");
    refused(MODEL("\"heads\":5", ""), "d_model");
    refused(MODEL("\"heads\":2,\"v_heads\":3", ""), "v_heads");
    refused(MODEL("\"heads\":4,\"kv_heads\":3", ""), "kv_heads: expected a divisor of heads (4), got 3");
    refused(MODEL("\"heads\":1000,\"v_heads\":1000,\"head_dim\":1000", ""), "v_heads");
    refused(MODEL("\"heads\":2,\"gate\":\"tanh\"", ""), "gate");
    refused(MODEL("\"heads\":2,\"bound\":1", ""), "bound");
    refused(MODEL("\"heads\":2,\"beta_max\":3", ""), "beta_max");
    refused(MODEL("\"heads\":2,\"conv\":-1", ""), "conv");
    refused(MODEL("\"heads\":2,\"erase\":\"token\"", ""), "erase");
    refused(MODEL("\"heads\":2,\"levels\":25", ""), "levels: expected");
    refused(MODEL("\"heads\":2", ",\"kv_from\":{\"1\":0}"), "kv_from");
}

typedef struct {
    int A, dt, conv, L;
    bool standard;
} Seen;
static void see(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Seen *s = f->ctx;
    size_t n = tensor_count(*t);
    double least = INFINITY, most = -INFINITY, sum = 0;
    const bool L = strlen(path) > 2 && !strcmp(path + strlen(path) - 2, ".L");
    for (size_t i = 0; L && i < n; i++) cr_assert_eq(R(*t)[i], 1, "%s", path);
    cr_assert(!L || flags & FIELD_NODECAY, "%s is decayed", path);
    s->L += L;
    bool A = strstr(path, "A_log"), dt = strstr(path, "dt_bias"), conv = strstr(path, "conv1d");
    if (!A && !dt && !conv) return;
    for (size_t i = 0; i < n; i++) {
        double x = (double)R(*t)[i];
        if (dt) x = log(log1p(exp(x)));
        if (A && s->standard) x = exp(x);
        least = fmin(least, x), most = fmax(most, x), sum += x / (double)n;
    }
    double low = A    ? (s->standard ? 1 : 0)
                 : dt ? log(1e-3)
                      : -0.5,
           high = A    ? (s->standard ? 16 : 0)
                  : dt ? log(0.1)
                       : 0.5;
    cr_assert(least >= low - 1e-4 && most <= high + 1e-4, "%s: %g to %g, expected %g to %g", path, least, most, low,
              high);
    cr_assert(fabs(sum - (low + high) / 2) <= 0.2 * (high - low), "%s: mean %g", path, sum);
    cr_assert(conv || flags & FIELD_NODECAY, "%s is decayed", path);
    s->A += A, s->dt += dt, s->conv += conv;
}
Test(kda, initial_values) {
    for (int standard = 0; standard < 2; standard++) {
        ModelCfg cfg;
        Model m;
        Workspace work;
        Device *dev;
        Animal a = {"initial", standard ? MODEL("\"heads\":32,\"head_dim\":4,\"gate\":\"standard\"", "")
                                        : MODEL("\"heads\":32,\"head_dim\":4,\"levels\":3", "")};
        Seen s = {.standard = standard};
        zoo_open(&a, &cfg, &m, &work, &dev, (ModelOpts){.max_rows = 4, .max_samples = 1});
        Fields f = {.see = see, .ctx = &s};
        Weights w = m.w;
        model_fields(&m, &w, &f);
        cr_assert(s.A == 2 && s.dt == 2 && s.conv == 6 && s.L == 2 * !standard, "%d %d %d %d", s.A, s.dt, s.conv, s.L);
        zoo_close(&cfg, &m, &work, dev);
    }
}

/* FLOPs of a token, counted by hand: 4 states of 3 x 5 cost 6 x 60 each row and level, a pair of rows 2 x 4 x 8. */
Test(kda, flops_of_levels) {
    static const struct {
        const char *settings;
        double flops; /* at a context of 100 tokens */
    } k[] = {{MODEL("\"heads\":2,\"v_heads\":4,\"head_dim\":3,\"v_dim\":5", ""), 360 + 64 * 64},
             {MODEL("\"heads\":2,\"v_heads\":4,\"head_dim\":3,\"v_dim\":5,\"levels\":1", ""), 360 + 64 * 64},
             {MODEL("\"heads\":2,\"v_heads\":4,\"head_dim\":3,\"v_dim\":5,\"levels\":3", ""),
              3 * 360 + (1 + 2 + 64) * 64},
             {MODEL("\"heads\":4,\"kv_heads\":2,\"v_heads\":8,\"head_dim\":3,\"v_dim\":5,\"levels\":3", ""),
              2 * (3 * 360 + 2 * (1 + 2 + 32) * 64)}};
    for (int i = 0; i < 4; i++) {
        ModelCfg cfg;
        Model m;
        Device *dev;
        Animal a = {"flops", k[i].settings};
        zoo_open(&a, &cfg, &m, NULL, &dev, (ModelOpts){0});
        cr_expect_eq(m.layer[0].kind->mixer->flops(m.layer[0].cfg, 100), k[i].flops, "%s: %g FLOPs", a.json,
                     m.layer[0].kind->mixer->flops(m.layer[0].cfg, 100));
        zoo_close(&cfg, &m, NULL, dev);
    }
}
