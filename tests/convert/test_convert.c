/* test_convert.c: conversions between layouts: pooled and aligned heads and the joint decomposition against NumPy's;
 * rules that are exact, there and back; what is refused leaves nothing. */
#include "tests/lib/converts.h"
#include "convert/flow.h"
#include "ops/file.h"

/* ---- against NumPy -------------------------------------------------------------------------------------------------
 */
static void golden_case(const char *prefix, const char *to, const char *words) {
    char *dst = check_path(prefix), msg[512];
    St got, want;
    Err e = {0};
    int seen = 0;
    Done d = run(CASE, dst, to, words, CASE "/calib.txt");
    cr_assert(d.ok, "%s: %s", prefix, d.e.msg);
    cr_assert(st_open_dir(&got, dst, &e), "%s", e.msg);
    cr_assert(st_open(&want, CASE "/golden.safetensors", &e), "%s", e.msg);
    for (int i = 0; i < want.n; i++) {
        const char *name = want.entry[i].name;
        size_t n = strlen(prefix);
        if (strncmp(name, prefix, n) || name[n] != '.') continue;
        Tensor a = entry(&got, name + n + 1), b = entry(&want, name);
        cr_expect(check_tensor(msg, name, a, b, GOLDEN_TOL), "%s", msg);
        free(a.p), free(b.p);
        seen++;
    }
    cr_expect_eq(seen, 14, "%s: %d tensors", prefix, seen); /* 2 layers of q, k, v with biases, and o */
    st_close(&got), st_close(&want);
    free(dst);
}
Test(convert, aligned_to_two) { golden_case("aligned2", "gqa", "kv_heads=2 method=aligned"); }
Test(convert, aligned_to_one) { golden_case("aligned1", "mqa", "method=aligned"); }
Test(convert, turned_not_pooled) { golden_case("turned2", "same", "align_groups=2"); }

/* The bases are exact: the logits of the turned, not yet pooled model are the source's. Then pooling them loses much
 * less than pooling what was there: the source's heads are pairs that a turn makes alike. */
Test(convert, bases_are_exact_and_help) {
    char *a = check_path("turned"), *b = check_path("aligned"), *c = check_path("mean");
    Done turned = run(CASE, a, "same", "align_groups=2", CASE "/calib.txt");
    Done aligned = run(CASE, b, "gqa", "kv_heads=2 method=aligned", CASE "/calib.txt");
    Done mean = run(CASE, c, "gqa", "kv_heads=2", CASE "/calib.txt");
    cr_assert(turned.ok && aligned.ok && mean.ok, "%s%s%s", turned.e.msg, aligned.e.msg, mean.e.msg);
    cr_expect(turned.r.exact && turned.r.check.logit_diff > 0, "nothing was turned");
    cr_expect(aligned.r.check.kl < 0.5 * mean.r.check.kl, "aligned %g, mean %g", aligned.r.check.kl, mean.r.check.kl);
    cr_expect_eq(turned.r.check.tokens, 64);
    free(a), free(b), free(c);
}

/* kv_b kv_a of every head against the decomposition by singular values; then the rows that keep their rotation. */
static void latent_case(int rank, int rope) {
    enum { d = 20, H = 4, D = 6, d1 = d + 1 };
    char *name = xformat("mla%d", rank), *words = xformat("rank=%d rope=%d", rank, rope), *dst = check_path(name),
         msg[512];
    St got, want, src;
    Err e = {0};
    Done r = run(CASE, dst, "mla", words, CASE "/calib.txt");
    cr_assert(r.ok, "%s: %s", words, r.e.msg);
    cr_assert(st_open_dir(&got, dst, &e) && st_open(&want, CASE "/golden.safetensors", &e) &&
                  st_open_dir(&src, CASE, &e),
              "%s", e.msg);
    for (int l = 0; l < 2; l++) {
        char *names[] = {xformat("model.layers.%d.self_attn.kv_a_proj_with_mqa.weight", l),
                         xformat("model.layers.%d.self_attn.kv_a_proj_with_mqa.bias", l),
                         xformat("model.layers.%d.self_attn.kv_b_proj.weight", l), xformat("%s.layer.%d.map", name, l),
                         xformat("model.layers.%d.self_attn.k_proj.weight", l)};
        Tensor a = entry(&got, names[0]), bias = entry(&got, names[1]), b = entry(&got, names[2]),
               w = entry(&want, names[3]), k = entry(&src, names[4]);
        cr_assert_eq(a.n[0], rank + H * rope);
        cr_assert_eq(b.n[0], w.n[0]);
        Tensor map = TENSOR(xcalloc((size_t)b.n[0] * d1, sizeof(real)), REAL, b.n[0], d1);
        for (int i = 0; i < b.n[0]; i++)
            for (int c = 0; c < d1; c++) {
                double sum = 0;
                for (int x = 0; x < rank; x++)
                    sum += (double)R(b)[i * rank + x] * (c < d ? R(a)[x * d + c] : R(bias)[x]);
                R(map)[i * d1 + c] = (real)sum;
            }
        cr_expect(check_tensor(msg, names[3], map, w, GOLDEN_TOL), "%s", msg);
        for (int h = 0; h < H; h++)
            for (int i = 0; i < rope; i++) {
                int from = i % (rope / 2) * (D / rope) + i / (rope / 2) * (D / 2);
                cr_expect(check_bytes(msg, "rotated key", R(a) + (rank + h * rope + i) * d, R(k) + (h * D + from) * d,
                                      d * sizeof(real)),
                          "%s", msg);
            }
        for (int i = 0; i < 5; i++) free(names[i]);
        free(a.p), free(bias.p), free(b.p), free(w.p), free(k.p), free(map.p);
    }
    st_close(&got), st_close(&want), st_close(&src);
    free(name), free(words), free(dst);
}
Test(convert, latent_partial_rotation) { latent_case(10, 2); }
Test(convert, latent_whole_rotation) { latent_case(14, 6); }

/* The mean, first and random heads, from the source's own numbers. */
static void pooled(const char *method, int G) {
    enum { d = 20, H = 4, D = 6 };
    char *words = xformat("kv_heads=%d method=%s", G, method), *dst = check_path(words), msg[512];
    St got, src;
    Err e = {0};
    Done r = run(CASE, dst, "gqa", words, NULL);
    cr_assert(r.ok && !r.r.exact, "%s", r.e.msg);
    cr_assert(st_open_dir(&got, dst, &e) && st_open_dir(&src, CASE, &e), "%s", e.msg);
    for (int i = 0; i < src.n; i++) {
        const char *name = src.entry[i].name;
        Tensor a = entry(&src, name), b = entry(&got, name);
        bool kv = strstr(name, "k_proj") || strstr(name, "v_proj");
        if (!kv) {
            cr_expect(tensor_bytes(a) == tensor_bytes(b) && check_bytes(msg, name, b.p, a.p, tensor_bytes(a)), "%s",
                      msg);
        } else if (strcmp(method, "random")) {
            size_t head = tensor_count(a) / H, g = (size_t)(H / G);
            Tensor want = b;
            want.p = xcalloc(tensor_count(b), sizeof(real));
            for (size_t x = 0; x < tensor_count(b); x++) {
                double sum = 0;
                for (size_t m = 0; m < g; m++) sum += R(a)[(x / head * g + m) * head + x % head] / (double)g;
                R(want)[x] = *method == 'f' ? R(a)[x / head * g * head + x % head] : (real)sum;
            }
            cr_expect(check_tensor(msg, name, b, want, 1e-7), "%s", msg);
            free(want.p);
        } else if (b.rank == 2) { /* N(0, initializer_range), not the source's */
            double sum = 0;
            for (size_t x = 0; x < tensor_count(b); x++) sum += (double)R(b)[x] * R(b)[x] / (double)tensor_count(b);
            cr_expect(fabs(sqrt(sum) / 0.02 - 1) < 0.25, "%s: deviation %g", name, sqrt(sum));
        }
        free(a.p), free(b.p);
    }
    st_close(&got), st_close(&src);
    free(words), free(dst);
}
Test(convert, pooled_heads) {
    pooled("mean", 2), pooled("mean", 1), pooled("first", 2), pooled("first", 1), pooled("random", 2);
}

/* ---- models of all kinds -------------------------------------------------------------------------------------------
 */

static const struct {
    const char *name, *json, *to, *words;
} exact[] = {
    {"repeat", GQA(FULL), "gqa", "kv_heads=4"},
    {"repeat norms", GQA(FULL ",\"qk_norm\":true,\"window\":7,\"sinks\":2"), "gqa", "kv_heads=4"},
    {"repeat shared", SHARED, "gqa", "kv_heads=2"},
    {"layout", GQA(FULL), "same", "rope_layout=interleaved"},
    {"layout norms", GQA(FULL ",\"qk_norm\":true"), "same", "rope_layout=interleaved"},
    {"layout back", GQA(FULL ",\"rope\":{\"interleaved\":true,\"theta\":50}"), "same", "rope_layout=half"},
    {"layout mla", LATENT("\"nope_dim\":3,\"rope_dim\":4,\"q_rank\":5,\"a_bias\":true,\"q_bias\":true"), "same",
     "rope_layout=interleaved"},
    {"layout mla heads", LATENT("\"nope_dim\":3,\"rope_dim\":4,\"rope_heads\":2,\"q_bias\":true"), "same",
     "rope_layout=interleaved"},
    {"untied", GQA(FULL), "same", "tied=false"},
    {"folded", UNTIED(FULL), "same", "fold_norms=true"},
    {"folded tied", GQA(FULL), "same", "fold_norms=true"},
    {"folded and untied", GQA(FULL), "same", "fold_norms=true tied=false rope_layout=interleaved pad_vocab=8"},
    {"folded mla", LATENT("\"nope_dim\":3,\"rope_dim\":4,\"q_rank\":5"), "same", "fold_norms=true"},
    {"padded", UNTIED(FULL), "same", "pad_vocab=32"},
    {"shards", GQA(FULL), "same", "shard=2KB"},
    {"latent", GQA(FULL), "mla", ""},
    {"latent wide", UNTIED("\"heads\":4,\"head_dim\":10"), "mla", ""},
    {"latent one head", GQA("\"heads\":4,\"kv_heads\":1,\"head_dim\":6,\"rope\":{\"interleaved\":true}"), "mla", ""},
    {"latent window", GQA("\"heads\":4,\"kv_heads\":2,\"window\":6,\"sinks\":2"), "mla", ""},
    {"latent shared", SHARED, "mla", ""},
    {"latent publisher", YOCO, "mla", ""},
    {"latent no rotation", GQA("\"heads\":4,\"kv_heads\":1,\"rope\":\"none\",\"qkv_bias\":true"), "mla", ""},
    {"latent part of the rotation", GQA("\"heads\":4,\"kv_heads\":2,\"head_dim\":6,\"rope_dims\":4,\"qkv_bias\":true"),
     "mla", ""},
    {"layout of a part", GQA("\"heads\":4,\"head_dim\":6,\"rope_dims\":4"), "same", "rope_layout=interleaved"},
    {"latent no rotation wide", GQA("\"heads\":4,\"kv_heads\":4,\"rope\":\"none\""), "mla", ""},
    {"window of all", GQA(FULL), "swa", "window=32"},
};
/* Exact rules: the report says so, and convert_run has found no more than rounding (convert.h). */
Test(convert, exact_rules) {
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        char *src = model_dir(exact[i].name, exact[i].json, REAL), *to = xformat("%s to", exact[i].name),
             *dst = check_path(to);
        Done d = run(src, dst, exact[i].to, exact[i].words, NULL);
        cr_expect(d.ok && d.r.exact, "%s: %s", exact[i].name, d.e.msg);
        cr_expect(d.r.check.logit_max > 1 && (d.r.check.logit_diff == 0 || d.r.check.rounding > 0),
                  "%s: logits up to %g", exact[i].name, d.r.check.logit_max);
        cr_expect(strstr(exact[i].words, "pad") || fabs(d.r.check.kl) < 1e-9, "%s: KL %g", exact[i].name, d.r.check.kl);
        free(src), free(to), free(dst);
    }
}

/* Every layer's heads are turned and put into another order, with readers of shared rows, interleaved pairs, no
 * rotation, a norm of queries and keys. */
Test(convert, bases_of_all_kinds) {
    static const char *const json[] = {GQA("\"heads\":4,\"head_dim\":8,\"rope_dims\":4"),
                                       GQA("\"heads\":8,\"kv_heads\":4,\"head_dim\":4,\"qkv_bias\":true"),
                                       GQA("\"heads\":4,\"head_dim\":4,\"rope\":{\"interleaved\":true,\"theta\":9}"),
                                       GQA("\"heads\":4,\"head_dim\":4,\"rope\":\"none\""),
                                       GQA("\"heads\":4,\"head_dim\":6,\"qk_norm\":true"),
                                       SHARED,
                                       YOCO};
    for (int i = 0; i < 7; i++) {
        char *name = xformat("bases%d", i), *src = wordy_dir(name, json[i], NULL), *to = xformat("bases%d to", i),
             *dst = check_path(to), *words = xformat("align_groups=%d", i < 5 ? 2 : 1);
        Done d = run(src, dst, "same", words, CASE "/calib.txt");
        cr_assert(d.ok && d.r.exact, "%s: %s", json[i], d.e.msg);
        cr_expect(d.r.check.logit_diff > 0, "%s: nothing was turned", json[i]);
        free(name), free(src), free(to), free(dst), free(words);
    }
}

/* ---- rounding and faults -------------------------------------------------------------------------------------------
 */

/* A run of a model's files over the windows, to the head. */
static void flow_run(Flow *f, HfFiles *files, const ModelCfg *cfg, Device *dev, const Windows *win, double nudge) {
    Err e = {0};
    cr_assert(flow_open(f, dev, files, cfg, win, win->check, win->n, &e), "%s", e.msg);
    f->nudge = nudge;
    for (int l = 0; l < f->m.L; l++) cr_assert(flow_layer(f, l, NULL, NULL, &e), "%s", e.msg);
}
typedef struct {
    int n, at; /* tensors seen, the one to change */
} Fault;
static Fault planted;
static void see_fault(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Fault *x = f->ctx;
    (void)flags, (void)path;
    if (x->n++ != x->at) return;
    for (size_t i = 0; i < tensor_count(*t); i++) R(*t)[i] *= (real)(rng_uniform(77, i) < 0.5 ? 1.001 : 0.999);
}
static void plant(Model *m) {
    Fields f = {.see = see_fault, .ctx = &planted};
    planted.n = 0;
    model_fields(m, &m->w, &f);
}
/* A tensor that is off by a thousandth is found whichever it is, where a lossless conversion's own error passes: the
 * judgement of convert_run, on models that differ so. A bias of keys without rotation moves all scores of a query alike
 * and so changes nothing; there is none here. */
Test(convert, faults_of_a_thousandth_are_no_rounding) {
    static const char *const json[] = {GQA(FULL), GQA("\"heads\":4,\"head_dim\":6,\"qk_norm\":true"), SHARED, YOCO,
                                       LATENT("\"nope_dim\":3,\"rope_dim\":4,\"q_rank\":5")};
    for (int i = 0; i < 5; i++) {
        char *name = xformat("sound%d", i), *src = wordy_dir(name, json[i], NULL);
        Err e = {0};
        ModelCfg cfg;
        HfFiles files;
        Windows win;
        Device *dev;
        Flow a, again;
        FlowScore s;
        const double unit = flow_unit(sizeof(real) == 8);
        cr_assert(device_open(&dev, "cpu", 1, &e) && hf_config_read(src, &cfg, &e) &&
                      hf_files_open(&files, src, &cfg, &e) &&
                      windows_read(&win, src, &cfg, CASE "/calib.txt", 32, 0, 64, &e),
                  "%s", e.msg);
        flow_run(&a, &files, &cfg, dev, &win, 0);
        flow_run(&again, &files, &cfg, dev, &win, unit);
        cr_assert(flow_compare(&a, &again, &s, &e), "%s", e.msg);
        flow_close(&again);
        const double most = flow_rounding(&s, unit);
        cr_expect(s.logit_diff > 0 && most < 1e-3 * s.logit_max, "%s: rounding is %g of %g", json[i], most,
                  s.logit_max);
        int tensors = 1;
        for (int at = 0; at < tensors; at++) {
            planted = (Fault){.at = at};
            char *bad = xformat("fault%d.%d", i, at), *dir = wordy_dir(bad, json[i], plant);
            HfFiles wrong;
            Flow b;
            tensors = planted.n;
            cr_assert(hf_files_open(&wrong, dir, &cfg, &e), "%s", e.msg);
            flow_run(&b, &wrong, &cfg, dev, &win, 0);
            cr_assert(flow_compare(&a, &b, &s, &e), "%s", e.msg);
            check_log("bound over a fault of a thousandth", most / s.logit_diff, 1, (size_t)at, 1);
            cr_expect(s.logit_diff > most, "%s: tensor %d is off by a thousandth, logits by %g of %g: at most %g",
                      json[i], at, s.logit_diff, s.logit_max, most);
            flow_close(&b);
            hf_files_close(&wrong);
            free(bad), free(dir);
        }
        cr_expect(tensors > 10, "%d tensors", tensors);
        flow_close(&a);
        windows_free(&win);
        hf_files_close(&files);
        model_cfg_free(&cfg);
        device_close(dev);
        free(name), free(src);
    }
}

/* ---- there and back ------------------------------------------------------------------------------------------------
 */

/* Equal names, dtypes, shapes and bytes of all tensors. */
static void same_tensors(const char *what, const char *a, const char *b) {
    St x, y;
    Err e = {0};
    char msg[512];
    cr_assert(st_open_dir(&x, a, &e) && st_open_dir(&y, b, &e), "%s: %s", what, e.msg);
    cr_assert_eq(x.n, y.n, "%s: %d tensors, %d", what, x.n, y.n);
    for (int i = 0; i < x.n; i++) {
        const StEntry *s = &x.entry[i], *t = &y.entry[i];
        cr_assert(!strcmp(s->name, t->name) && s->dtype == t->dtype && s->bytes == t->bytes, "%s: %s", what, s->name);
        cr_expect(check_bytes(msg, s->name, t->p, s->p, s->bytes), "%s: %s", what, msg);
    }
    st_close(&x), st_close(&y);
}
static void there_and_back(const char *name, const char *json, Dtype as, const char *to, const char *words,
                           const char *back, const char *back_words, const char *changed) {
    char *src = model_dir(name, json, as), *mid = xformat("%s there", name), *end = xformat("%s back", name);
    char *a = check_path(mid), *b = check_path(end);
    Done d = run(src, a, to, words, NULL);
    cr_assert(d.ok && d.r.exact, "%s: %s", name, d.e.msg);
    St x, y;
    cr_assert(st_open_dir(&x, src, &d.e) && st_open_dir(&y, a, &d.e), "%s", d.e.msg);
    const StEntry *s = st_find(&x, changed), *t = st_find(&y, changed);
    cr_expect(!s || !t || s->bytes != t->bytes || memcmp(s->p, t->p, s->bytes), "%s: %s is as it was", name, changed);
    cr_expect(s || t, "%s: no %s", name, changed);
    st_close(&x), st_close(&y);
    d = run(a, b, back, back_words, NULL);
    cr_assert(d.ok, "%s: %s", name, d.e.msg);
    same_tensors(name, src, b);
    char *one = dir_settings(src), *two = dir_settings(b);
    cr_expect_str_eq(one, two, "%s", name);
    free(one), free(two), free(src), free(mid), free(end), free(a), free(b);
}
static const char k0[] = "model.layers.1.self_attn.k_proj.weight", head[] = "lm_head.weight";
Test(convert, heads_there_and_back) {
    const char *three = GQA("\"heads\":6,\"kv_heads\":2,\"head_dim\":4,\"qkv_bias\":true,\"qk_norm\":true");
    there_and_back("heads f32", three, F32, "gqa", "kv_heads=6", "gqa", "kv_heads=2", k0);
    there_and_back("heads bf16", three, BF16, "gqa", "kv_heads=6", "gqa", "kv_heads=2 method=first", k0);
    there_and_back("heads f16", GQA(FULL), F16, "gqa", "kv_heads=4", "gqa", "kv_heads=2", k0);
}
Test(convert, layout_there_and_back) {
    there_and_back("layout f32", GQA(FULL ",\"qk_norm\":true"), F32, "same", "rope_layout=interleaved", "same",
                   "rope_layout=half", k0);
    there_and_back("layout bf16", UNTIED(FULL), BF16, "same", "rope_layout=interleaved", "same", "rope_layout=half",
                   k0);
    there_and_back("layout latent", LATENT("\"nope_dim\":3,\"rope_dim\":4,\"rope_heads\":2"), BF16, "same",
                   "rope_layout=interleaved", "same", "rope_layout=half",
                   "model.layers.1.self_attn.kv_a_proj_with_mqa.weight");
}
Test(convert, tied_there_and_back) {
    there_and_back("tied f32", GQA(FULL), F32, "same", "tied=false", "same", "tied=true", head);
    there_and_back("tied f16", GQA(FULL), F16, "same", "tied=false", "same", "tied=true", head);
}

/* From the names of flash-linear-attention to a model that transformers alone can load, and back. */
Test(convert, library_there_and_back) {
    static const char *const types[] = {"kda",       "kda-hybrid", "gated_deltanet-hybrid",
                                        "delta_net", "gla",        "retnet-hybrid"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char *src = xformat("tests/golden/families/%s", types[i]), *there = xformat("%s there", types[i]),
             *a = check_path(there), *b = check_path(types[i]);
        Done d = run(src, a, "same", "library=transformers", NULL);
        cr_assert(d.ok && d.r.exact, "%s: %s", src, d.e.msg);
        char *python = xformat("%s/modeling_kvsmith.py", a);
        cr_expect(check_exists(python), "%s", src);
        d = run(a, b, "same", "library=fla", NULL);
        cr_assert(d.ok && d.r.exact, "%s: %s", src, d.e.msg);
        same_tensors(types[i], src, b);
        char *one = dir_settings(src), *two = dir_settings(b);
        cr_expect_str_eq(one, two, "%s", src);
        free(one), free(two), free(src), free(there), free(python), free(a), free(b);
    }
}

Test(convert, shards_there_and_back) {
    char *one = check_path("one file"), *many = check_path("many"), *again = check_path("again");
    Done a = run(GOLDEN "sharded", one, "same", "", NULL), b = run(one, many, "same", "shard=40KB", NULL),
         c = run(many, again, "same", "", NULL);
    cr_assert(a.ok && b.ok && c.ok, "%s%s%s", a.e.msg, b.e.msg, c.e.msg);
    same_tensors("one file of shards", GOLDEN "sharded", one);
    same_tensors("shards", one, many);
    same_tensors("one file again", one, again);
    cr_expect(check_entries(many) > check_entries(one) + 1);
    char *index = xformat("%s/model.safetensors.index.json", many);
    cr_expect(check_exists(index));
    free(index), free(one), free(many), free(again);
}

/* Every model type that is read: copied bit for bit, joined and transposed tensors too; kept a model of its type; what
 * can be made of it exactly is. */
Test(convert, model_types) {
    static const struct {
        const char *name, *to, *words;
    } types[] = {{"gpt2", "swa", "window=64"},
                 {"gpt_neox", "same", "rope_layout=interleaved"},
                 {"gpt_neox-serial", "mla", ""},
                 {"mistral", "mla", ""},
                 {"qwen2", "gqa", "kv_heads=2"},
                 {"qwen2-window", "mla", ""},
                 {"qwen3", "same", "rope_layout=interleaved fold_norms=true tied=false"},
                 {"qwen3-mixed", "same", "pad_vocab=64"},
                 {"kda-hybrid", "same", "library=transformers"},
                 {"gated_deltanet-hybrid", "same", "library=transformers"},
                 {"gla", "same", "library=transformers"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char *src = xformat("tests/golden/families/%s", types[i].name), *name = xformat("%s to", types[i].name),
             *a = check_path(types[i].name), *b = check_path(name);
        Done d = run(src, a, "same", "", NULL);
        cr_assert(d.ok && d.r.exact && d.r.check.logit_diff == 0, "%s: %s", src, d.e.msg);
        same_tensors(types[i].name, src, a);
        char *one = dir_settings(src), *two = dir_settings(a);
        cr_expect_str_eq(one, two, "%s", src);
        d = run(src, b, types[i].to, types[i].words, NULL);
        cr_expect(d.ok && d.r.exact && d.r.check.logit_max > 1, "%s: %s", src, d.e.msg);
        free(one), free(two), free(src), free(name), free(a), free(b);
    }
}

/* What is rounded is called approximate; what only moves is exact in any dtype. */
Test(convert, rounding_is_told) {
    char *src = model_dir("wide", UNTIED(FULL), F32), *bf = check_path("bf"), *to = check_path("moved"),
         *f = check_path("folded"), *h = check_path("half"), *back = check_path("wide again");
    Done d = run(src, bf, "same", "dtype=bf16", NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    cr_expect(!d.r.exact && !strcmp(d.r.rounded, "BF16") && d.r.check.logit_diff > 0, "%s", d.r.rounded);
    d = run(bf, to, "same", "rope_layout=interleaved", NULL);
    cr_expect(d.ok && d.r.exact, "%s", d.e.msg);
    d = run(bf, f, "same", "fold_norms=true", NULL);
    cr_expect(d.ok && !d.r.exact && !strcmp(d.r.rounded, "BF16"), "%s", d.e.msg);
    d = run(bf, back, "same", "dtype=f32", NULL);
    cr_expect(d.ok && d.r.exact && d.r.check.logit_diff == 0, "%s", d.e.msg);
    d = run(src, h, "same", "dtype=f16", NULL);
    cr_expect(d.ok && !d.r.exact && !strcmp(d.r.rounded, "F16"), "%s", d.e.msg);
    free(src), free(bf), free(to), free(f), free(h), free(back);
}

/* Padding: ids that were there keep their logits, and the mass that new ones take is at most their share of the ids. */
Test(convert, padded_vocabulary) {
    char *src = model_dir("narrow", UNTIED(FULL), F32), *dst = check_path("padded");
    Done d = run(src, dst, "same", "pad_vocab=32", NULL);
    cr_assert(d.ok, "%s", d.e.msg);
    cr_expect(d.r.check.logit_diff == 0 && d.r.check.kl > 0 && d.r.check.kl <= log(32 / 23.0), "%g", d.r.check.kl);
    ModelCfg cfg;
    cr_assert(hf_config_read(dst, &cfg, &d.e), "%s", d.e.msg);
    cr_expect_eq(cfg.vocab, 32);
    model_cfg_free(&cfg);
    free(src), free(dst);
    /* Under a cap a new id cannot be kept from having as much as an old one. */
    src = model_dir("capped",
                    "{" BASE ",\"logits_cap\":2,\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\"," FULL
                    "}},"
                    "\"pattern\":[\"a\"]}",
                    F32),
    dst = check_path("capped-padded");
    d = run(src, dst, "same", "pad_vocab=32", NULL);
    cr_expect(!d.ok && d.e.status == EXIT_INPUT && strstr(d.e.msg, "pad_vocab: logits_cap 2 of this model"), "%s",
              d.e.msg);
    d = run(src, dst, "same", "tied=false", NULL);
    cr_expect(d.ok && d.r.exact, "%s", d.e.msg);
    free(src), free(dst);
}

/* ---- layouts that begin a training ---------------------------------------------------------------------------------
 */

/* Every target makes a model that opens and is compared; what it says of the cache is what the model has. */
Test(convert, approximate_layouts) {
    static const struct {
        const char *to, *words;
        size_t token; /* numbers of the cache per token, for 2 heads of 4 in 4 layers: 64 before */
    } targets[] = {{"swa", "window=8", 64},
                   {"swa", "window=8 keep=[0] every=2", 64},
                   {"dmc", "", 64},
                   {"dmc", "every=2", 64},
                   {"dms", "", 64},
                   {"cla", "n=2", 32},
                   {"cla", "n=3 method=first", 32},
                   {"yoco", "window=8", 48},
                   {"kda", "", 0},
                   {"kda", "every=2", 32},
                   {"gdn", "", 0},
                   {"deltanet", "keep=[3]", 16},
                   {"gla", "", 0},
                   {"linear", "", 0},
                   {"retention", "", 0},
                   {"gated_retention", "", 0},
                   {"mqa", "", 32}};
    char *src = model_dir("many layers",
                          "{" BASE ",\"layers\":4,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,"
                          "\"kv_heads\":2,\"head_dim\":4}},\"pattern\":[\"a\"]}",
                          F32);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        char *name = xformat("target%zu", i), *dst = check_path(name);
        Done d = run(src, dst, targets[i].to, targets[i].words, NULL);
        cr_assert(d.ok, "%s %s: %s", targets[i].to, targets[i].words, d.e.msg);
        cr_expect(!d.r.exact && isfinite(d.r.check.kl) && d.r.check.kl > 1e-6, "%s: KL %g", targets[i].to,
                  d.r.check.kl);
        cr_expect_eq(d.r.after.cache_token, targets[i].token * sizeof(real), "%s %s: %zu", targets[i].to,
                     targets[i].words, d.r.after.cache_token);
        cr_expect_eq(d.r.before.cache_token, 64 * sizeof(real));
        free(name), free(dst);
    }
    free(src);
}

/* The mean of a group's weights, and that of the first where that is asked for. */
Test(convert, shared_weights) {
    char *src = model_dir("to share", GQA(FULL), F32), *dst = check_path("shared"), msg[512];
    St a, b;
    Done d = run(src, dst, "cla", "n=3", NULL);
    cr_assert(d.ok && st_open_dir(&a, src, &d.e) && st_open_dir(&b, dst, &d.e), "%s", d.e.msg);
    Tensor got = entry(&b, "model.layers.0.self_attn.v_proj.weight"), in[3];
    for (int l = 0; l < 3; l++) {
        char *name = xformat("model.layers.%d.self_attn.v_proj.weight", l);
        in[l] = entry(&a, name);
        cr_expect_eq(!st_find(&b, name), l > 0, "%s", name);
        free(name);
    }
    for (size_t i = 0; i < tensor_count(got); i++) R(in[0])[i] = (R(in[0])[i] + R(in[1])[i] + R(in[2])[i]) / 3;
    cr_expect(check_tensor(msg, "mean", got, in[0], 1e-6), "%s", msg);
    free(got.p), free(in[0].p), free(in[1].p), free(in[2].p);
    st_close(&a), st_close(&b);
    free(src), free(dst);
}

/* The layers whose attention changes the stream least lose it: here the one whose output projection is 0. */
static void silence(Model *m) {
    GqaW *w = m->w.layer[1].mix;
    memset(w->wo.p, 0, tensor_bytes(w->wo));
}
Test(convert, dropped_attention) {
    char *src = wordy_dir("to drop", GQA("\"heads\":4"), silence), *dst = check_path("dropped");
    Done d = run(src, dst, "same", "drop_attention=1", CASE "/calib.txt");
    cr_assert(d.ok, "%s", d.e.msg);
    cr_expect(strstr(d.r.note, ": 1 (cosine 1.0000)"), "%s", d.r.note);
    cr_expect(!d.r.exact && d.r.check.logit_diff == 0 && d.r.after.cache_token * 3 == d.r.before.cache_token * 2, "%g",
              d.r.check.logit_diff);
    char *a = xformat("%s/tokenizer.json", src), *b = xformat("%s/tokenizer.json", dst), *x = check_read(a, NULL),
         *y = check_read(b, NULL);
    cr_expect_str_eq(x, y);
    free(a), free(b), free(x), free(y), free(src), free(dst);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------
 */

static const struct {
    const char *json, *to, *words, *part;
} refused[] = {
    {GQA(FULL), "gqa", "kv_heads=3", "kv_heads: expected a divisor or a multiple of the source's 2 (layer 0), got 3"},
    {GQA(FULL), "gqa", "kv_heads=8", "kv_heads: expected a divisor of the source's 4 query heads"},
    {GQA(FULL), "gqa", "", "all layers already have the mixer gqa; to change their heads give kv_heads"},
    {GQA(FULL), "gqa", "kv_heads=1 method=median", "method"},
    {GQA(FULL), "gqa", "kv_heads=1 method=aligned", "method=aligned needs activations; give a text with --calib"},
    {GQA(FULL), "gqz", "kv_heads=1", "--to: unknown layout 'gqz'; did you mean gqa?"},
    {GQA(FULL), "transformer", "", "expected one of gqa, mqa, mla"},
    {LATENT("\"nope_dim\":3,\"rope_dim\":4"), "mqa", "", "no layer with mixer gqa (layer 0 is mla)"},
    {LATENT("\"nope_dim\":3,\"rope_dim\":4"), "kda", "", "no layer of mixer gqa is left to convert (layer 0 is mla)"},
    {LATENT("\"nope_dim\":3,\"rope_dim\":4"), "cla", "", "every layer must be gqa, layer 0 is mla"},
    {LATENT("\"nope_dim\":3,\"rope_dim\":4"), "same", "align_groups=2", "align_groups"},
    {GQA(FULL ",\"qk_norm\":true"), "mla", "", "layer 0 norms its queries and keys (qk_norm), which mla cannot hold"},
    {GQA(FULL ",\"qk_norm\":true"), "dmc", "", "qk_norm"},
    {GQA(FULL), "dmc", "gain=1", "nothing would be merged"},
    {GQA(FULL), "dms", "gain=1", "nothing would be evicted"},
    {GQA(FULL), "dms", "gain=many", "expected auto or a number"},
    {GQA(FULL), "dmc", "delay=3", "merged row is replaced at once"},
    {GQA(FULL), "dmc", "decide=adapter", "adapter evicts rows and merges none"},
    {GQA(FULL), "dmc", "governs=itself", "a merge is with the previous row"},
    {GQA(FULL), "dms", "governs=next", "governs: expected one of previous, itself"},
    {GQA(FULL ",\"qk_norm\":true,\"soft_cap\":3"), "dms", "decide=adapter", "sets its scores' soft_cap"},
    {GQA(FULL ",\"qk_norm\":true"), "kda", "", "qk_norm"},
    {GQA(FULL), "kda", "", "biases of its projections, which kda cannot hold"},
    {GQA("\"heads\":4,\"window\":5"), "dmc", "", "has a window of 5"},
    {GQA("\"heads\":4,\"head_dim\":6,\"rope_dims\":4"), "dmc", "",
     "rotate only 4 elements, which needs decide=adapter"},
    {"{" BASE ",\"layers\":1,\"norm\":\"layer\",\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4}},"
     "\"pattern\":[\"a\"]}",
     "same", "fold_norms=true", "this model's norms are LayerNorms"},
    {SHARED, "kda", "", "shares keys and values with others (kv_from)"},
    {SHARED, "cla", "", "shares keys and values with others (kv_from)"},
    {GQA(FULL), "swa", "", "window: required, but not given"},
    {GQA("\"heads\":4,\"window\":5"), "swa", "window=9",
     "layer 0 already has a window of 5; expected at most that, got 9"},
    {GQA(FULL), "swa", "window=9 keep=[5]", "keep: expected layers 0 to 2, got 5"},
    {GQA(FULL), "kda", "keep=[0,1,2]", "no layer of mixer gqa is left to convert"},
    {GQA(FULL), "mla", "rank=4", "rank needs activations; give a text with --calib"},
    {GQA(FULL), "mla", "rope=2", "rope: needs rank; without it"},
    {GQA(FULL ",\"rope\":{\"type\":\"yarn\",\"factor\":2,\"mscale_all_dim\":1}"), "mla", "", "rope.mscale_all_dim"},
    {GQA(FULL), "same", "shard=x", "shard: expected a size such as 500MB"},
    {GQA(FULL), "same", "shard=-3MB", "shard: expected a size"},
    {GQA(FULL), "same", "dtype=f8", "dtype"},
    {GQA(FULL), "same", "library=fla", "library: fla has no model type for this model (its mixers); leave it out"},
    {GQA(FULL), "same", "library=jax", "library: expected one of keep, transformers, fla"},
    {"{" BASE ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"kda\",\"heads\":4}},\"pattern\":[\"a\"]}",
     "same", "library=fla", "library: fla has no model type for this model (no out_bias)"},
    {GQA(FULL), "same", "drop_attention=1", "drop_attention needs activations"},
    {GQA(FULL), "same", "align_groups=2", "align_groups needs activations"},
    {GQA(FULL), "same", "rope=half", "unknown key"},
    {UNTIED(FULL), "same", "tied=true", "the source's head differs from its embedding"},
    {"{" BASE
     ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"retention\",\"heads\":4}},\"pattern\":[\"a\"]}",
     "same", "rope_layout=interleaved", "kind a is a retention, whose rows cannot be moved"},
    {"{" BASE ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"linear\",\"heads\":4}},\"pattern\":[\"a\"]}",
     "same", "fold_norms=true", "layer 0 is a linear"},
    {"{\"d_model\":16,\"vocab\":11,\"max_positions\":32,\"ffn\":[{\"kind\":\"moe\",\"experts\":2,\"top_k\":1,"
     "\"hidden\":4}],\"layers\":1,"
     "\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4}},\"pattern\":[\"a\"]}",
     "same", "fold_norms=true", "the feed-forward part of layer 0 is a moe"},
    {"{" BASE ",\"layers\":1,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4}},\"pattern\":[\"a\"]}",
     "cla", "", "a model of one layer has no layer to share with"},
};
Test(convert, refusals_leave_nothing) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *name = xformat("refused%zu", i), *above = check_path(name), *src, *in = xformat("refused%zu/src", i),
             *dst = xformat("%s/dst", above);
        cr_assert_eq(mkdir(above, 0700), 0);
        src = model_dir(in, refused[i].json, F32);
        Done d = run(src, dst, refused[i].to, refused[i].words, NULL);
        cr_expect(!d.ok, "%s %s", refused[i].to, refused[i].words);
        dir_refused(refused[i].part, NULL, &d.e, refused[i].part);
        cr_expect_eq(check_entries(above), 1, "%s: something was left", refused[i].part);
        free(name), free(above), free(src), free(in), free(dst);
    }
}
/* The same with a text. */
Test(convert, refusals_with_a_text) {
    static const struct {
        const char *to, *words, *calib, *part;
    } cases[] = {{"mla", "rank=10 rope=4", CASE "/calib.txt", "rope: expected an even divisor of head_dim (6), got 4"},
                 {"mla", "rank=10 rope=3", CASE "/calib.txt", "rope: expected an even divisor of head_dim (6), got 3"},
                 {"mla", "rank=41 rope=2", CASE "/calib.txt", "rank: expected at most 40"},
                 {"same", "align_groups=3", CASE "/calib.txt", "align_groups: expected a divisor of the source's 4"},
                 {"same", "drop_attention=3", CASE "/calib.txt", "drop_attention: expected at most 2"},
                 {"gqa", "kv_heads=2", "no such text", "cannot open no such text"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *dst = check_path("nothing");
        Done d = run(CASE, dst, cases[i].to, cases[i].words, cases[i].calib);
        cr_expect(!d.ok, "%s", cases[i].words);
        dir_refused(cases[i].words, NULL, &d.e, cases[i].part);
        cr_expect(access(dst, F_OK), "%s", cases[i].words);
        free(dst);
    }
    char *src = model_dir("wordless", GQA(FULL), F32), *dst = check_path("nothing");
    Done d = run(src, dst, "mqa", "", CASE "/calib.txt");
    dir_refused("no tokenizer", NULL, &d.e, "--calib: the source has no tokenizer");
    free(src), free(dst);
}

Test(convert, places) {
    char *src = model_dir("place", GQA(FULL), F32), *dst = check_path("there"), *deep = check_path("no/such/place"),
         *link = check_path("link");
    cr_assert_eq(mkdir(dst, 0700), 0);
    cr_assert_eq(symlink("nowhere", link), 0);
    Done d = run(src, dst, "mqa", "", NULL);
    dir_refused("exists", dst, &d.e, "exists; give a new name, or remove it");
    cr_expect_eq(check_entries(dst), 0);
    d = run(src, link, "mqa", "", NULL);
    dir_refused("a link", link, &d.e, "exists");
    d = run(src, deep, "mqa", "", NULL);
    dir_refused("no folder", NULL, &d.e, "no such folder; cannot write");
    d = run(src, "", "mqa", "", NULL);
    dir_refused("no name", NULL, &d.e, "the name of the folder to write is empty");
    char *other = check_path("other"), *config = xformat("%s/config.json", other), *out = check_path("out");
    cr_assert_eq(mkdir(other, 0700), 0);
    check_write(config, "{\"model_type\": \"bloom\"}", 23);
    d = run(other, out, "mqa", "", NULL);
    dir_refused("another architecture", other, &d.e, "found bloom");
    cr_expect(access(out, F_OK));
    free(src), free(dst), free(deep), free(link), free(other), free(config), free(out);
}

/* A rule that is exact but whose result differs (as NaN differs from all) fails as the world's fault and keeps nothing.
 */
static void spoil(Model *m) { R(m->w.norm)[0] = (real)NAN; }
Test(convert, exact_or_nothing) {
    char *src = wordy_dir("spoiled", GQA(FULL), spoil), *above = check_path("above"), *dst = xformat("%s/dst", above);
    cr_assert_eq(mkdir(above, 0700), 0);
    Done d = run(src, dst, "same", "rope_layout=interleaved", NULL);
    cr_expect(!d.ok && d.e.status == EXIT_RUNTIME, "%d %s", d.e.status, d.e.msg);
    cr_expect(strstr(d.e.msg, "should be lossless, but logits") && strstr(d.e.msg, "differ by nan"), "%s", d.e.msg);
    cr_expect_eq(check_entries(above), 0);
    free(src), free(above), free(dst);
}

/* A number that the dtype cannot hold is named, and nothing is kept. */
Test(convert, too_large_for_the_dtype) {
    const Animal a = {"large", UNTIED(FULL)};
    ModelCfg cfg;
    Model m;
    Device *dev;
    Err e = {0};
    char *src = check_path("large"), *dst = check_path("large to");
    zoo_open(&a, &cfg, &m, NULL, &dev, (ModelOpts){0});
    R(m.w.norm)[3] = 70000;
    cr_assert(!mkdir(src, 0700) && hf_save(src, &m, NULL, F32, &e), "%s", e.msg);
    zoo_close(&cfg, &m, NULL, dev);
    Done d = run(src, dst, "same", "dtype=f16", NULL);
    dir_refused("70000", NULL, &d.e, "tensor \"model.norm.weight\": number 3 is too large for F16");
    cr_expect(access(dst, F_OK));
    free(src), free(dst);
}
