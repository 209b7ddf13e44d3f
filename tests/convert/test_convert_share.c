/* test_convert_share.c: one layer's keys and values for several by least squares, against NumPy's; layers of other
 * mixers back to grouped queries. */
#include "tests/lib/converts.h"
#include "layers/dmc/dmc.h"

/* ---- least squares -------------------------------------------------------------------------------------------------
 */

Test(convert_share, least_squares) {
    static const char *const names[] = {"k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"};
    char *dst = check_path("lstsq"), msg[512];
    St got, want;
    Done r = run(CASE, dst, "cla", "n=2 method=lstsq", CASE "/calib.txt");
    cr_assert(r.ok && st_open_dir(&got, dst, &r.e) && st_open(&want, CASE "/golden.safetensors", &r.e), "%s", r.e.msg);
    cr_expect(!r.r.exact);
    for (int i = 0; i < 4; i++) {
        char *name = xformat("model.layers.0.self_attn.%s", names[i]), *golden = xformat("shared.%s", name);
        Tensor a = entry(&got, name), b = entry(&want, golden);
        cr_expect(check_tensor(msg, name, a, b, GOLDEN_TOL), "%s", msg);
        free(a.p), free(b.p), free(name), free(golden);
    }
    cr_expect(!st_find(&got, "model.layers.1.self_attn.k_proj.weight"));
    st_close(&got), st_close(&want);
    free(dst);
}

enum { d = 20, H = 4, D = 6, d1 = d + 1, HD = H * D };
/* [W b] of a projection, (HD,d1). */
static double *rows_of(const St *st, int l, const char *name) {
    char *w = xformat("model.layers.%d.self_attn.%s_proj.weight", l, name),
         *b = xformat("model.layers.%d.self_attn.%s_proj.bias", l, name);
    Tensor x = entry(st, w), y = entry(st, b);
    double *out = xcalloc(HD * d1, sizeof *out);
    for (int i = 0; i < HD; i++) {
        for (int k = 0; k < d; k++) out[i * d1 + k] = R(x)[i * d + k];
        out[i * d1 + d] = R(y)[i];
    }
    free(x.p), free(y.p), free(w), free(b);
    return out;
}
static double *left_of(const St *st, int l, const char *name) {
    char *full = xformat("shared.left.%d.%s", l, name);
    Tensor x = entry(st, full);
    double *out = xcalloc(HD * d1, sizeof *out);
    for (int i = 0; i < HD * d1; i++) out[i] = R(x)[i];
    free(x.p), free(full);
    return out;
}
/* What scores are made of: of a head's pair i, sum and difference of the products of its numbers' rows. */
static Tensor scores(const double *q, const double *k) {
    Tensor out = TENSOR(xcalloc((size_t)H * (D / 2) * 2 * d1 * d1, sizeof(real)), REAL, H * (D / 2) * 2 * d1, d1);
    for (int p = 0; p < H * (D / 2); p++) {
        const int x = p / (D / 2) * D + p % (D / 2), y = x + D / 2;
        for (int a = 0; a < d1; a++)
            for (int b = 0; b < d1; b++) {
                R(out)
                [((p * 2 + 0) * d1 + a) * d1 + b] =
                    (real)(q[x * d1 + a] * k[x * d1 + b] + q[y * d1 + a] * k[y * d1 + b]);
                R(out)
                [((p * 2 + 1) * d1 + a) * d1 + b] =
                    (real)(q[x * d1 + a] * k[y * d1 + b] - q[y * d1 + a] * k[x * d1 + b]);
            }
    }
    return out;
}
/* What a head adds to the output: (H,d,d1). */
static Tensor added(const St *st, int l, const double *v) {
    char *name = xformat("model.layers.%d.self_attn.o_proj.weight", l);
    Tensor o = entry(st, name), out = TENSOR(xcalloc((size_t)H * d * d1, sizeof(real)), REAL, H * d, d1);
    for (int h = 0; h < H; h++)
        for (int r = 0; r < d; r++)
            for (int c = 0; c < d1; c++) {
                double sum = 0;
                for (int i = 0; i < D; i++) sum += (double)R(o)[r * HD + h * D + i] * v[(h * D + i) * d1 + c];
                R(out)[(h * d + r) * d1 + c] = (real)sum;
            }
    free(o.p), free(name);
    return out;
}
/* With queries and outputs that follow: what scores and outputs are made of is what is left of each layer's own at the
 * best common rank, whatever basis the heads were given. */
Test(convert_share, least_rank_error) {
    char *dst = check_path("aligned"), msg[512];
    St got, want, src;
    Done r = run(CASE, dst, "cla", "n=2 method=aligned", CASE "/calib.txt");
    cr_assert(r.ok && st_open_dir(&got, dst, &r.e) && st_open(&want, CASE "/golden.safetensors", &r.e) &&
                  st_open_dir(&src, CASE, &r.e),
              "%s", r.e.msg);
    double *k = rows_of(&got, 0, "k"), *v = rows_of(&got, 0, "v");
    for (int l = 0; l < 2; l++) {
        double *q = rows_of(&got, l, "q"), *own = rows_of(&src, l, "q"), *lk = left_of(&want, l, "k"),
               *lv = left_of(&want, l, "v");
        Tensor a = scores(q, k), b = scores(own, lk), x = added(&got, l, v), y = added(&src, l, lv);
        cr_expect(check_tensor(msg, "scores", a, b, GOLDEN_TOL), "layer %d: %s", l, msg);
        cr_expect(check_tensor(msg, "outputs", x, y, GOLDEN_TOL), "layer %d: %s", l, msg);
        free(q), free(own), free(lk), free(lv), free(a.p), free(b.p), free(x.p), free(y.p);
    }
    free(k), free(v);
    st_close(&got), st_close(&want), st_close(&src);
    free(dst);
}

/* Layer 0 adds nothing and both norms are alike, so that both layers see the same input; the heads of layer 1 are those
 * of layer 0 in another basis: keys by an angle and a scale per pair, values by any matrix. */
typedef struct {
    const Model *m;
    int l;
    const char *name;
    Tensor found;
} Seek;
static void seek_field(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Seek *s = f->ctx;
    char *full = xformat("model.layers.%d.%s", s->l, s->name);
    (void)flags;
    if (!strcmp(full, path)) s->found = *t;
    free(full);
}
static Tensor seek(Model *m, int l, const char *name) {
    Seek s = {m, l, name, ABSENT};
    Fields f = {.see = seek_field, .ctx = &s};
    model_fields(m, &m->w, &f);
    cr_assert(present(s.found), "%s", name);
    return s.found;
}
static void copy(Model *m, const char *name) {
    Tensor from = seek(m, 0, name), to = seek(m, 1, name);
    memcpy(to.p, from.p, tensor_bytes(from));
}
static void alike(Model *m) {
    Tensor o = seek(m, 0, "self_attn.o_proj.weight"), down = seek(m, 0, "mlp.down_proj.weight");
    memset(o.p, 0, tensor_bytes(o));
    memset(down.p, 0, tensor_bytes(down));
    copy(m, "input_layernorm.weight"), copy(m, "self_attn.k_proj.weight"), copy(m, "self_attn.v_proj.weight");
}
static void turned(Model *m) {
    alike(m);
    Tensor k = seek(m, 1, "self_attn.k_proj.weight"), v = seek(m, 1, "self_attn.v_proj.weight");
    const int n = 4, width = k.n[1];
    for (int h = 0; h < k.n[0] / n; h++)
        for (int c = 0; c < width; c++) {
            real *x = R(k) + (h * n) * width + c, *y = R(v) + (h * n) * width + c, old[4];
            for (int i = 0; i < n; i++) old[i] = x[i * width];
            for (int p = 0; p < n / 2; p++) {
                const double scale = 0.5 + p + h, angle = 1 + 0.7 * p - h, a = scale * cos(angle),
                             b = scale * sin(angle);
                x[p * width] = (real)(a * old[p] - b * old[p + 2]);
                x[(p + 2) * width] = (real)(b * old[p] + a * old[p + 2]);
            }
            for (int i = 0; i < n; i++) old[i] = y[i * width];
            for (int i = 0; i < n; i++) {
                double sum = 0;
                for (int j = 0; j < n; j++) sum += ((i == j) * 0.8 + 0.3 * cos(3 * i + j + h)) * old[j];
                y[i * width] = (real)sum;
            }
        }
}
Test(convert_share, heads_of_one_make) {
    static const struct {
        const char *words;
        void (*change)(Model *);
        bool same; /* else it loses */
    } cases[] = {{"n=2 method=lstsq", alike, true},
                 {"n=2 method=aligned", alike, true},
                 {"n=2 method=aligned", turned, true},
                 {"n=2 method=mean", turned, false}};
    static const char *const rope[] = {"", ",\"rope\":{\"interleaved\":false,\"theta\":70},\"window\":9",
                                       ",\"rope\":\"none\""};
    for (int i = 0; i < 12; i++) {
        char *json = xformat("{" BASE ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,"
                             "\"kv_heads\":2,\"head_dim\":4%s}},\"pattern\":[\"a\"]}",
                             rope[i / 4]),
             *name = xformat("alike%d", i), *to = xformat("alike%d to", i), *src, *dst = check_path(to);
        src = wordy_dir(name, json, cases[i % 4].change);
        Done r = run(src, dst, "cla", cases[i % 4].words, CASE "/calib.txt");
        cr_assert(r.ok, "%s", r.e.msg);
        const double off = r.r.check.logit_diff / r.r.check.logit_max;
        cr_expect(cases[i % 4].same ? off < (sizeof(real) == 8 ? 1e-9 : 1e-4) : off > 1e-2,
                  "%s, case %d: logits off by %g", cases[i % 4].words, i, off);
        free(json), free(name), free(to), free(src), free(dst);
    }
}

Test(convert_share, refusals) {
    static const struct {
        const char *json, *words, *calib, *part;
    } cases[] = {{GQA(FULL), "n=3 method=lstsq", NULL, "method=lstsq needs activations; give a text with --calib"},
                 {GQA(FULL), "n=3 method=aligned", NULL, "method=aligned needs activations; give a text with --calib"},
                 {GQA(FULL ",\"qk_norm\":true"), "n=3 method=lstsq", CASE "/calib.txt",
                  "layer 0 norms its keys (qk_norm)"},
                 {GQA(FULL), "n=3 ridge=-1", NULL, "ridge"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *name = xformat("refused%zu", i), *src = wordy_dir(name, cases[i].json, NULL),
             *dst = check_path("nothing");
        Done r = run(src, dst, "cla", cases[i].words, cases[i].calib);
        cr_expect(!r.ok, "%s", cases[i].words);
        dir_refused(cases[i].words, NULL, &r.e, cases[i].part);
        cr_expect(access(dst, F_OK), "%s", cases[i].words);
        free(name), free(src), free(dst);
    }
}

/* ---- back to grouped queries ---------------------------------------------------------------------------------------
 */

#define PLAIN(settings) LATENT("\"latent_norm\":false," settings)
#define NOPE_DMC                                                                                                 \
    "{" BASE                                                                                                     \
    ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"dmc\",\"heads\":4,\"kv_heads\":2,\"head_dim\":6," \
    "\"rope\":\"none\",\"qkv_bias\":true,\"phase\":\"zero\"}},\"pattern\":[\"a\"]}"
Test(convert_share, exact_and_back) {
    static const struct {
        const char *json, *words;
        size_t token; /* numbers of the cache of a layer per token */
    } cases[] = {{PLAIN("\"nope_dim\":0,\"rope_dim\":4,\"rope_heads\":2"), "", 32},
                 {PLAIN("\"nope_dim\":2,\"rope_dim\":2,\"rope_heads\":4,\"a_bias\":true,\"q_bias\":true"), "", 32},
                 {PLAIN("\"nope_dim\":2,\"rope_dim\":2,\"rope_heads\":1,\"q_bias\":true,\"o_bias\":true,\"window\":7,"
                        "\"sinks\":2"),
                  "", 32},
                 {PLAIN("\"nope_dim\":2,\"rope_dim\":2,\"rope\":{\"interleaved\":true}"), "kv_heads=4", 32},
                 {PLAIN("\"nope_dim\":4,\"rope_dim\":0,\"rope\":\"none\""), "", 32},
                 {NOPE_DMC, "", 24},
                 {UNTIED(FULL ",\"window\":32,\"sinks\":3"), "", 24}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *name = xformat("stock%zu", i), *to = xformat("stock%zu to", i),
             *src = model_dir(name, cases[i].json, REAL), *dst = check_path(to);
        Done r = run(src, dst, "gqa", cases[i].words, NULL);
        cr_assert(r.ok, "%s: %s", cases[i].json, r.e.msg);
        cr_expect(r.r.exact, "%s", cases[i].json); /* convert_run has found no more than rounding */
        cr_expect_eq(r.r.after.cache_token, 2 * cases[i].token * sizeof(real), "%s: %zu", cases[i].json,
                     r.r.after.cache_token);
        free(name), free(to), free(src), free(dst);
    }
}

/* Grouped queries as latents and back, with the heads that there were: the same numbers. */
Test(convert_share, latents_there_and_back) {
    static const char *const json[] = {UNTIED(FULL), UNTIED("\"heads\":4,\"kv_heads\":2,\"window\":6"),
                                       UNTIED("\"heads\":4,\"kv_heads\":1,\"rope\":\"none\",\"qkv_bias\":true"),
                                       UNTIED("\"heads\":4,\"head_dim\":10,\"kv_heads\":2"),
                                       UNTIED("\"heads\":4,\"kv_heads\":2,\"head_dim\":6,\"rope_dims\":4")};
    for (int i = 0; i < 5; i++) {
        char *name[] = {xformat("there%d", i), xformat("there%d mla", i), xformat("there%d back", i)}, msg[512],
             *words = xformat("kv_heads=%d", i == 2 ? 1 : 2), *src = model_dir(name[0], json[i], REAL),
             *mla = check_path(name[1]), *dst = check_path(name[2]);
        St a, b;
        Done r = run(src, mla, "mla", "", NULL);
        cr_assert(r.ok, "%s: %s", json[i], r.e.msg);
        r = run(mla, dst, "gqa", words, NULL);
        cr_assert(r.ok && r.r.exact && st_open_dir(&a, src, &r.e) && st_open_dir(&b, dst, &r.e), "%s: %s", json[i],
                  r.e.msg);
        cr_expect_eq(a.n, b.n, "%s", json[i]);
        for (int t = 0; t < a.n; t++) {
            Tensor x = entry(&a, a.entry[t].name), y = entry(&b, a.entry[t].name);
            cr_expect(check_bytes(msg, a.entry[t].name, x.p, y.p, tensor_bytes(x)), "%s: %s", json[i], msg);
            free(x.p), free(y.p);
        }
        st_close(&a), st_close(&b);
        for (int k = 0; k < 3; k++) free(name[k]);
        free(words), free(src), free(mla), free(dst);
    }
}

/* Merged rows come apart: told as approximate, and the numbers that decide are 0. */
Test(convert_share, merged_rows) {
    char *src = model_dir("merged", GQA("\"heads\":4,\"kv_heads\":2,\"head_dim\":4"), REAL), *dmc = check_path("dmc"),
         *dst = check_path("apart");
    St st;
    Done r = run(src, dmc, "dmc", "", NULL);
    cr_assert(r.ok, "%s", r.e.msg);
    r = run(dmc, dst, "gqa", "", NULL);
    cr_assert(r.ok && !r.r.exact && *r.r.note && st_open_dir(&st, dst, &r.e), "%s", r.e.msg);
    Tensor q = entry(&st, "model.layers.1.self_attn.q_proj.weight");
    for (int i = 0; i < q.n[0]; i++)
        for (int c = 0; c < q.n[1]; c++) cr_expect_eq(R(q)[i * q.n[1] + c] == 0, i % 4 == 3, "row %d", i);
    free(q.p);
    st_close(&st);
    free(src), free(dmc), free(dst);
}

Test(convert_share, not_back) {
    static const struct {
        const char *json, *words, *part;
    } cases[] = {{LATENT("\"nope_dim\":0,\"rope_dim\":4"), "", "norms its latents (kv_a_layernorm)"},
                 {PLAIN("\"nope_dim\":0,\"rope_dim\":4,\"q_rank\":5"), "", "norms its latents (q_a_proj"},
                 {PLAIN("\"nope_dim\":3,\"rope_dim\":4"), "", "keys of layer 0 have 7 elements, values 4"},
                 {PLAIN("\"nope_dim\":0,\"rope_dim\":4,\"rope_heads\":4"), "kv_heads=2",
                  "a multiple of the 4 rotated keys"},
                 {PLAIN("\"nope_dim\":0,\"rope_dim\":4"), "kv_heads=2",
                  "query heads 0 and 1 of layer 0 read different keys and values"},
                 {SHARED, "", "all layers already have the mixer gqa"},
                 {YOCO, "", "all layers already have the mixer gqa"},
                 {"{" BASE
                  ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"kda\",\"heads\":4}},\"pattern\":[\"a\"]}",
                  "", "layer 0 is kda, whose state cannot become keys and values"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *above = check_path("above"), *name = xformat("above/src%zu", i), *src, *dst = check_path("above/dst");
        mkdir(above, 0700);
        src = model_dir(name, cases[i].json, REAL);
        Done r = run(src, dst, "gqa", cases[i].words, NULL);
        cr_expect(!r.ok, "%s", cases[i].part);
        dir_refused(cases[i].part, NULL, &r.e, cases[i].part);
        cr_expect_eq(check_entries(above), (int)i + 1, "%s: something was left", cases[i].part);
        free(above), free(name), free(src), free(dst);
    }
}

/* An adapter evicts nothing before it is trained: all logits stay, under norms and partial rotations too. So they do on
 * the way back. */
Test(convert_share, adapter_and_back) {
    static const char *const models[] = {
        GQA("\"heads\":4,\"kv_heads\":2,\"head_dim\":4"),
        GQA("\"heads\":4,\"kv_heads\":1,\"head_dim\":6,\"rope_dims\":4,\"qk_norm\":true,"
            "\"qkv_bias\":true")};
    for (int i = 0; i < 2; i++) {
        char *name = xformat("plain%d", i), *src = model_dir(name, models[i], F32), *to = xformat("dms%d", i),
             *back = xformat("back%d", i), *dms = check_path(to), *dst = check_path(back);
        Done r = run(src, dms, "dms", "decide=adapter", NULL);
        cr_assert(r.ok && r.r.exact && r.r.check.logit_diff == 0, "%s", r.e.msg);
        St st;
        cr_assert(st_open_dir(&st, dms, &r.e), "%s", r.e.msg);
        Tensor w = entry(&st, "model.layers.1.self_attn.decide_proj.weight");
        cr_expect(w.n[0] == 2 - i && w.n[1] == 16, "%d x %d", w.n[0], w.n[1]);
        for (size_t k = 0; k < tensor_count(w); k++) cr_expect_eq(R(w)[k], 0);
        free(w.p);
        st_close(&st);
        r = run(dms, dst, "gqa", "", NULL);
        cr_assert(r.ok && r.r.check.logit_diff == 0 && strstr(r.r.note, "evicted stay"), "%s %s", r.e.msg, r.r.note);
        free(name), free(src), free(to), free(back), free(dms), free(dst);
    }
}

/* ---- retrofits --------------------------------------------------------------------------------------------------- */

/* The settings that a retrofit needs reach the model; `auto` fits them to rate, width and steps. */
Test(convert_share, settings_of_a_retrofit) {
    static const struct {
        const char *to, *words;
        int action, lane, window, delay;
        double offset, temperature, gain;
    } cases[] = {
        /* d_model 16: 20 * 5 / (3e-4 * 16 * 900) */
        {"dmc", "", DMC_MERGE, DMC_LAST, 12, 0, 5, 0.1, 100 / (3e-4 * 16 * 900)},
        {"dms", "", DMC_EVICT, DMC_LAST, 12, 16, 5, 0.1, 100 / (3e-4 * 16 * 900)},
        {"dmc", "offset=2 rate=1e-3 steps=100", DMC_MERGE, DMC_LAST, 12, 0, 2, 0.1, 40 / (1e-3 * 16 * 90)},
        {"dmc", "gain=300 window=5 lane=first temperature=0.3", DMC_MERGE, DMC_FIRST, 5, 0, 5, 0.3, 300},
        {"dmc", "action=evict delay=7", DMC_EVICT, DMC_LAST, 12, 7, 5, 0.1, 100 / (3e-4 * 16 * 900)},
        {"dms", "governs=itself delay=4", DMC_EVICT, DMC_LAST, 12, 4, 5, 0.1, 100 / (3e-4 * 16 * 900)},
    };
    char *src = model_dir("retrofit", GQA("\"heads\":4,\"kv_heads\":2,\"head_dim\":4"), F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *name = xformat("retrofit%zu", i), *dst = check_path(name);
        ModelCfg cfg;
        Done d = run(src, dst, cases[i].to, cases[i].words, NULL);
        cr_assert(d.ok && hf_config_read(dst, &cfg, &d.e), "%s", d.e.msg);
        cr_expect_eq(cfg.d_model, 16);
        for (int k = 0; k < cfg.nkinds; k++) {
            const DmcCfg *c = cfg.kind[k].cfg;
            cr_expect(c->phase == DMC_ZERO && c->action == cases[i].action && c->lane == cases[i].lane &&
                          c->window == cases[i].window && c->delay == cases[i].delay &&
                          c->governs == (strstr(cases[i].words, "itself") ? DMC_ITSELF : DMC_PREVIOUS),
                      "%s %s", cases[i].to, cases[i].words);
            cr_expect(c->offset == cases[i].offset && c->temperature == cases[i].temperature &&
                          fabs(c->gain / cases[i].gain - 1) < 1e-9,
                      "%s %s: gain %g, expected %g", cases[i].to, cases[i].words, c->gain, cases[i].gain);
        }
        model_cfg_free(&cfg);
        free(name), free(dst);
    }
    free(src);
}
