/* test_aqua_file.c: the codec aqua with what else a cache does (batches, forks, guesses, layers that read others'
 * rows), and the file of its matrices: what it holds, and what of damaged and foreign files and of models is refused in
 * one line. */
#include "infer/basis_file.h"
#include "infer/predict.h"
#include "layers/cache/policy.h"
#include "tests/lib/aqua.h"
#include "tests/lib/rig.h"

enum { T = PALU_TOKENS };

/* Forks share codes, sequences are fed together, guesses are taken back, sequences go back: the bits of one sequence
 * that is fed alone. */
Test(aqua_file, forks_batches_and_guesses_change_nothing, .timeout = 200) {
    int models = 0;
    for (int i = 0; i < zoo_count(); i++) {
        PaluCase c;
        Session s;
        Err e = {0};
        int tok[T], other[T];
        if (!check_sampled(i) || !aqua_open(&c, i, i % 2 ? "bits=4" : "bits=3", (ModelOpts){0})) continue;
        const int vocab = c.cfg.vocab;
        const size_t n = (size_t)(T * vocab);
        real *alone = xcalloc(n, sizeof *alone), *x = xcalloc(n, sizeof *x), *y = xcalloc(n, sizeof *y);
        palu_text(tok, vocab, 4), palu_text(other, vocab, 5);
        palu_session(&s, &c, 2);
        palu_feed(&s, 0, 11, tok, alone);
        for (int t = 11; t < T; t++) palu_feed(&s, 0, 1, tok + t, alone + t * vocab);
        session_close(&s);

        palu_session(&s, &c, 2);
        palu_feed(&s, 0, 11, tok, x);
        session_fork(&s, 0, 1);
        palu_feed(&s, 0, 7, other, y);
        for (int t = 11; t < T; t++) palu_feed(&s, 1, 1, tok + t, x + t * vocab);
        CHECK_BYTES(zoo[i].name, x, alone, n * sizeof *x);
        session_close(&s);

        palu_session(&s, &c, 2); /* another sequence in every pass, longer by four */
        palu_feed(&s, 1, 4, other, NULL);
        for (int t = 0; t < T - 4; t++) {
            const Feed both[2] = {{1, 1, other + 4 + t}, {0, 1, tok + t}};
            cr_assert(session_extend(&s, 2, both, WANT_ALL, TENSOR(y, REAL, 2, vocab), &e), "%s", e.msg);
            memcpy(x + t * vocab, y + vocab, (size_t)vocab * sizeof *x);
        }
        session_close(&s);
        palu_session(&s, &c, 1);
        for (int t = 0; t < T - 4; t++) palu_feed(&s, 0, 1, tok + t, y + t * vocab);
        const double beside = palu_distance(x, y, (size_t)((T - 4) * vocab));
        cr_assert(beside < (REAL == F64 ? 1e-9 : 0.05), "%s: %.3g with another sequence", zoo[i].name, beside);
        session_close(&s);

        palu_session(&s, &c, 1);
        palu_feed(&s, 0, 11, tok, x);
        palu_wrong_guess(&s, &c, tok, x);
        for (int t = 12; t < T; t++) palu_feed(&s, 0, 1, tok + t, x + t * vocab);
        const double apart = palu_distance(x, alone, n);
        cr_assert(apart < (REAL == F64 ? 1e-9 : 0.05), "%s: %.3g after a wrong guess", zoo[i].name, apart);
        if (kv_mark_bytes(&s.cache) == 0 && kv_rewind(&s.cache, 0, 20, NULL)) { /* no states: rows are cut */
            s.next[0] = 20;
            memcpy(y, x, n * sizeof *y);
            for (int t = 20; t < T; t++) palu_feed(&s, 0, 1, tok + t, x + t * vocab);
            CHECK_BYTES(zoo[i].name, x, y, n * sizeof *x);
            models++;
        }
        session_close(&s);
        free(alone), free(x), free(y);
        palu_close(&c);
    }
    cr_assert(models > (check_sampled(1) ? 8 : 2), "%d models went back", models);
}
/* A pass without a cache (eval) makes the rows that one over a cache does: the same loss. */
Test(aqua_file, passes_without_a_cache_see_the_same_rows) {
    static const char *const names[] = {"gqa", "qk norm", "interleaved rope", "mqa"};
    for (int a = 0; a < 4; a++) {
        const int animal = zoo_find(names[a]);
        PaluCase c;
        Session s;
        Workspace ws;
        Err e = {0};
        int tok[T], tgt[T], of[T] = {0}, pos[T], first[T] = {0};
        cr_assert(aqua_open(&c, animal, "bits=2", (ModelOpts){.max_rows = T, .max_samples = 1}));
        palu_text(tok, c.cfg.vocab, 6);
        for (int t = 0; t < T; t++) pos[t] = t, tgt[t] = t + 1 < T ? tok[t + 1] : 0;
        const int off[2] = {0, T}, seq = 0;
        const uint64_t id = 0;
        const Batch b = {1, T, off, &seq, of, pos, first, &id, false, NULL};
        real nll[T], *logits = xcalloc((size_t)(T * c.cfg.vocab), sizeof *logits);
        cr_assert(workspace_open(&ws, &c.m, &e), "%s", e.msg);
        model_loss(&c.m, &ws, &b, tok, tgt, nll);
        palu_session(&s, &c, 1);
        palu_feed(&s, 0, T, tok, logits);
        for (int t = 0; t < T; t++) {
            const real *x = logits + t * c.cfg.vocab;
            double sum = 0;
            for (int k = 0; k < c.cfg.vocab; k++) sum += exp((double)x[k]);
            const double want = log(sum) - (double)x[tgt[t]];
            cr_assert(fabs((double)nll[t] - want) < (REAL == F64 ? 1e-10 : 2e-4), "%s, token %d: %g, not %g", names[a],
                      t, (double)nll[t], want);
        }
        free(logits);
        session_close(&s);
        workspace_close(&ws);
        palu_close(&c);
    }
}

/* ---- the file ----------------------------------------------------------------------------------------------------*/

/* The same text gives the same bytes whatever the threads; more text, or other bits, give others. */
Test(aqua_file, the_file_is_a_function_of_text_and_bits) {
    const int i = zoo_find("gqa");
    static const char *const settings[] = {"bits=3", "bits=3", "bits=3", "bits=2"};
    char *path = check_path("file"), *bytes[4];
    size_t n[4];
    for (int k = 0; k < 4; k++) {
        cr_assert(aqua_calibrate(i, k == 2 ? 2 : 1, settings[k], path, NULL));
        bytes[k] = check_read(path, &n[k]);
    }
    cr_assert(n[0] == n[1] && !memcmp(bytes[0], bytes[1], n[0]));
    cr_assert(n[0] != n[2] || memcmp(bytes[0], bytes[2], n[0]) != 0);
    cr_assert(n[0] != n[3] || memcmp(bytes[0], bytes[3], n[0]) != 0);
    for (int k = 0; k < 4; k++) free(bytes[k]);
    free(path);
}
static void refused(const char *path, int animal, ModelOpts opts, const char *part) {
    RowCodec codec;
    ModelCfg cfg;
    Model m;
    Device *dev;
    Err e = {0};
    char *text = path ? xformat("aqua:basis=%s", path) : xstrdup("aqua");
    cr_assert(codec_parse(text, &codec, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&cfg, zoo[animal].json, strlen(zoo[animal].json), zoo[animal].name, &e), "%s", e.msg);
    cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    opts.codec = &codec;
    const bool opened = model_open(&m, dev, &cfg, opts, &e);
    cr_assert(!opened && e.status == EXIT_INPUT && strstr(e.msg, part) && !strchr(e.msg, '\n'),
              "expected '%s', got '%s'", part, opened ? "a model" : e.msg);
    device_close(dev);
    model_cfg_free(&cfg);
    free(text);
}
static float nan_in_one(const char *name, size_t i, float x) {
    return i == 3 && strstr(name, "layers.1.values.predictor") ? NAN : x;
}
static float infinite_mean(const char *name, size_t i, float x) {
    return i == 0 && strstr(name, "layers.0.keys.mean") ? INFINITY : x;
}
/* Writes the tensors of a file again, all but those `spoil` says. */
static void written(const char *from, const char *to, int spoil) {
    St st;
    Err e = {0};
    cr_assert(st_open(&st, from, &e), "%s", e.msg);
    BasisFile f = basis_file(st.n);
    for (int t = 0; t < st.n; t++) {
        const StEntry *x = &st.entry[t];
        int shape[2] = {(int)x->shape[0], x->rank > 1 ? (int)x->shape[1] : 1};
        const bool keys = strstr(x->name, "layers.1.keys.predictor") != NULL;
        if (keys && spoil == 1) continue;
        if (keys && spoil == 2) shape[0] *= 2, shape[1] /= 2;
        const char *name = keys && spoil == 3 ? "layers.7.keys.predictor" : x->name;
        memcpy(basis_file_add(&f, name, F32, x->rank, shape), x->p, x->bytes);
    }
    cr_assert(basis_file_write(&f, to, spoil == 4 ? "something" : PREDICTOR_FORMAT, 0, 1, NULL, &e), "%s", e.msg);
    basis_file_free(&f);
    st_close(&st);
}
Test(aqua_file, damaged_and_foreign_files_are_refused, .timeout = 60) {
    static const char *const parts[] = {
        NULL, "expected 7 tensors for the 2 layers of this model, got 6", "layers.1.keys.predictor: expected (",
        "layers.1.keys.predictor is missing",
        "not a basis that kvsmith calibrate wrote (kind 'something', expected kvsmith-aqua"};
    const ModelOpts none = {0};
    const int i = zoo_find("gqa");
    char *path = check_path("whole"), *bad = check_path("bad"), *palu = check_path("palu"), *bytes;
    size_t n;
    cr_assert(aqua_calibrate(i, 1, "bits=4", path, NULL) && palu_calibrate(i, 1, 1, palu));
    refused(NULL, i, none, "expected basis=FILE, which kvsmith calibrate writes");
    refused("/nowhere/at/all", i, none, "/nowhere/at/all");
    refused(palu, i, none, "(kind 'kvsmith-basis-1', expected kvsmith-aqua-1)");
    refused(path, zoo_find("mqa"), none, "another shape; this file is of another model");
    refused(path, zoo_find("mla"), none, "are latents");
    refused(path, zoo_find("dms"), none, "merges or evicts rows");
    refused(path, zoo_find("window with sinks"), none, "has a window, and the layers above need rows that leave it");
    for (int k = 1; k < 5; k++) {
        written(path, bad, k);
        refused(bad, i, none, parts[k]);
    }
    aqua_change(path, bad, nan_in_one);
    refused(bad, i, none, "layers.1.values.predictor: element 3 is not finite; the file is damaged");
    aqua_change(path, bad, infinite_mean);
    refused(bad, i, none, "layers.0.keys.mean: element 0 is not finite; the file is damaged");
    bytes = check_read(path, &n);
    for (size_t cut = 0; cut < n; cut += cut < 100 ? 33 : n / 7) { /* truncated */
        check_write(bad, bytes, cut);
        refused(bad, i, none, "bad");
    }
    for (size_t at = n - 1; at > n - n / 3; at -= n / 19) { /* one bit of the data */
        bytes[at] ^= 4;
        check_write(bad, bytes, n);
        refused(bad, i, none, "its checksum is not that of its content");
        bytes[at] ^= 4;
    }
    free(bytes), free(path), free(bad), free(palu);
}
static bool no_gather(void *ctx, const char *name, real *buf, size_t count, Err *e) {
    (void)ctx, (void)name, (void)buf, (void)count, (void)e;
    return false;
}
Test(aqua_file, what_reads_rows_otherwise_is_refused) {
    const int i = zoo_find("gqa");
    char *path = check_path("whole");
    Err e = {0};
    PolicyCfg p;
    cr_assert(aqua_calibrate(i, 1, "bits=4", path, NULL));
    static const char *const policies[] = {"snapkv:budget=0.5", "quest:reads=8,recent=5,page=5",
                                           "h2o:budget=0.5,every=4", "kvzip:budget=0.5"};
    for (int k = 0; k < 4; k++) {
        cr_assert(policy_parse(policies[k], &p, &e), "%s", e.msg);
        refused(path, i, (ModelOpts){.policy = &p}, "--policy lets each layer keep or read others");
    }
    const KvTier tier = {.memory = 1 << 20, .dir = check_dir()};
    refused(path, i, (ModelOpts){.tier = &tier}, "--cache-memory would have on disk");
    const KvRanks ranks = {.world = 2, .gather = no_gather};
    refused(path, i, (ModelOpts){.ranks = &ranks}, "ranks that divide rows (--cache-ranks)");
    static const Animal uneven = {
        "uneven", "{\"d_model\":12,\"vocab\":11,\"max_positions\":48,\"init_std\":0.4,\"layers\":2,\"tied\":true,"
                  "\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}],\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,"
                  "\"kv_heads\":2,\"head_dim\":4},\"b\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":4,\"head_dim\":4}},"
                  "\"pattern\":[\"a\",\"b\"]}"};
    PaluCase c = {0};
    RowCodec codec = codec_aqua;
    codec.basis = path, codec.basis_n = (int)strlen(path);
    cr_assert(model_cfg_from_json(&c.cfg, uneven.json, strlen(uneven.json), uneven.name, &e), "%s", e.msg);
    cr_assert(device_open(&c.dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(!model_open(&c.m, c.dev, &c.cfg, (ModelOpts){.codec = &codec}, &e) &&
                  strstr(e.msg, "layer 1 stores 4 heads of 4 and 4 elements, layer 0 below it 2 of 4 and 4"),
              "%s", e.msg);
    device_close(c.dev);
    model_cfg_free(&c.cfg);
    free(path);
}
Test(aqua_file, settings_are_read_and_written) {
    static const struct {
        const char *text, *settings;
    } good[] = {{"aqua", "group=32,bits=4,recent=0,pairs=yes"},
                {"aqua:bits=2,pairs=no", "group=32,bits=2,recent=0,pairs=no"},
                {"aqua:basis=a=b.c,bits=3", "group=32,bits=3,recent=0,pairs=yes"},
                {"aqua:recent=128,bits=2", "group=32,bits=2,recent=128,pairs=yes"},
                {"aqua:group=64,bits=4,basis=x", "group=64,bits=4,recent=0,pairs=yes"}};
    static const char *const bad[] = {"bits=5",   "bits=1",     "bits=8",   "bits=",        "bits=x",  "basis=",
                                      "group=16", "rotate=yes", "rank=0.5", "value_rank=1", "x",       "pairs=",
                                      "pairs=1",  "pairs=2",    "recent=1", "recent=32",    "recent=", "recent=-64"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        RowCodec c;
        Err e = {0};
        char text[CODEC_TEXT_MAX];
        cr_assert(codec_parse(good[i].text, &c, &e), "%s: %s", good[i].text, e.msg);
        codec_settings(&c, ',', text);
        cr_assert(!strcmp(text, good[i].settings), "%s: %s", good[i].text, text);
        if (i == 2) cr_assert(c.basis_n == 5 && !strncmp(c.basis, "a=b.c", 5));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        RowCodec c;
        Err e = {0};
        char *text = xformat("aqua:%s", bad[i]);
        cr_assert(!codec_parse(text, &c, &e) && e.status == EXIT_INPUT &&
                      strstr(e.msg, "expected basis=FILE, bits=4|3|2") && strstr(e.msg, bad[i]),
                  "%s: %s", text, e.msg);
        free(text);
    }
}
