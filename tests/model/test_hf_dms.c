/* test_hf_dms.c: directories of models with delayed eviction (DMS): logits of the public classes, decoding, models
 * saved again, adapters folded into the layer's norm, and what is refused. The golden files are of make_dms.py; in each
 * a fifth of the rows or more is evicted, and no decision is near its threshold. */
#include "layers/dmc/dmc.h"
#include "model/files/hf_file.h"
#include "model/files/safetensors.h"
#include "tests/lib/dirs.h"
#include "tests/lib/zoo.h"
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define DMS_DIRS "tests/golden/dms/"
static const char *const dms[] = {"channel", "adapter", "layer", "fast"};
enum { DMS = sizeof dms / sizeof *dms };

Test(hf_dms, logits) {
    for (int i = 0; i < DMS; i++) {
        char *dir = xformat(DMS_DIRS "%s", dms[i]);
        Dir o;
        real *want, *exact;
        int n;
        dir_open(&o, dir);
        real *got = dir_golden(&o, dir, &want, &n);
        CHECK_CLOSE(dms[i], got, want, (size_t)n, 2e-5);
        free(got);
        got = dir_golden_of(&o, dir, "logits64", &exact, &n);
        CHECK_RELATIVE(dms[i], got, exact, (size_t)n, REAL == F64 ? 1e-9 : 2e-5);
        free(got), free(want), free(exact), free(dir);
        dir_close(&o);
    }
}

/* The settings that the directories say; our own delay, gain and offset are theirs. */
Test(hf_dms, settings) {
    static const struct {
        int decide, governs, delay;
        double gain, offset;
    } want[DMS] = {{DMC_LANE, DMC_PREVIOUS, 3, 100, 5},
                   {DMC_ADAPTER, DMC_PREVIOUS, 3, 10, 2},
                   {DMC_ADAPTER, DMC_PREVIOUS, 4, 10, 5},
                   {DMC_LANE, DMC_ITSELF, 3, 100, 5}};
    for (int i = 0; i < DMS; i++) {
        char *dir = xformat(DMS_DIRS "%s", dms[i]);
        ModelCfg c;
        Err e = {0};
        cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
        const DmcCfg *k = c.kind[c.pattern[0]].cfg;
        cr_expect(c.kind[c.pattern[0]].mixer == mixer_find("dmc") && k->action == DMC_EVICT && k->phase == DMC_SOFT);
        cr_expect(k->decide == want[i].decide && k->governs == want[i].governs && k->lane == DMC_LAST, "%s", dms[i]);
        cr_expect(k->delay == want[i].delay && k->gain == want[i].gain && k->offset == want[i].offset, "%s", dms[i]);
        cr_expect(k->temperature == 0.1 && k->lane_turned == (want[i].governs == DMC_ITSELF), "%s", dms[i]);
        cr_expect(!hf_type_of(&c), "%s: such models are not written as they are read", dms[i]);
        model_cfg_free(&c);
        free(dir);
    }
}

/* Rows one at a time and in pieces over a cache are those of one pass, and the cache holds fewer rows than tokens. */
Test(hf_dms, decoding) {
    enum { T = 24 };
    static const int cut[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 24};
    for (int i = 0; i < DMS; i++) {
        char *dir = xformat(DMS_DIRS "%s", dms[i]);
        Dir o;
        Cache cache;
        int tok[T], kept = 0;
        dir_open(&o, dir);
        const int V = o.cfg.vocab;
        for (int t = 0; t < T; t++) tok[t] = t * 7 % V;
        real *want = dir_logits(&o.model, tok, 1, T), *got = dir_in_pieces(&o.model, tok, T, cut, &cache);
        CHECK_CLOSE(dms[i], got, want, (size_t)(T * V), REAL == F64 ? 1e-12 : 3e-5);
        for (int l = 0; l < o.cfg.layers; l++)
            for (int h = 0; h < 2; h++) kept += kv_rows(kv_slot(&cache, l), 0, h);
        cr_expect(kept < o.cfg.layers * 2 * T * 9 / 10, "%s: %d rows of %d", dms[i], kept, o.cfg.layers * 2 * T);
        kv_close(&cache);
        free(got), free(want), free(dir);
        dir_close(&o);
    }
}

/* Saved, such a model is one of type kvsmith with the same settings and logits, bit for bit; FastDMS's file does not go
 * along. */
Test(hf_dms, saved_as_our_own) {
    for (int i = 0; i < DMS; i++) {
        char *dir = xformat(DMS_DIRS "%s", dms[i]), *to = check_path(dms[i]), *config = xformat("%s/config.json", to);
        char *metadata = xformat("%s/" HF_DMS_METADATA, to);
        Dir o, p;
        HfIds ids;
        Err e = {0};
        struct stat st;
        real *unused;
        int n;
        dir_open(&o, dir);
        cr_assert(hf_ids_read(dir, &ids, &e) && !mkdir(to, 0700), "%s", e.msg);
        cr_assert(hf_save(to, &o.model, &ids, REAL, &e) && hf_copy(dir, to, &e), "%s", e.msg);
        cr_expect(stat(metadata, &st) && errno == ENOENT, "%s", metadata);
        json_t *j = json_load_file(config, 0, NULL);
        cr_expect_str_eq(json_string_value(json_object_get(j, "model_type")), "kvsmith");
        char *one = dir_settings(dir), *two = dir_settings(to);
        cr_expect_str_eq(one, two, "%s", dms[i]);
        dir_open(&p, to);
        real *x = dir_golden(&o, dir, &unused, &n);
        free(unused);
        real *y = dir_golden(&p, dir, &unused, &n);
        CHECK_BYTES(dms[i], y, x, (size_t)n * sizeof *x);
        free(x), free(y), free(unused), free(one), free(two), free(dir), free(to), free(config), free(metadata);
        json_decref(j);
        dir_close(&o), dir_close(&p);
    }
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* The decision that the published adapter makes of row x of the stream, in double. */
static double published(const St *st, int row, const real *x, int d, double eps) {
    static real w[2 * 16], n[16], b[2];
    Err e = {0};
    double square = 0, sum;
    cr_assert(st_read(st, st_find(st, "model.layers.1.self_attn.dms_proj_alpha.weight"), TENSOR(w, REAL, 2, d), &e) &&
                  st_read(st, st_find(st, "model.layers.1.self_attn.dms_proj_alpha_norm.weight"), TENSOR(n, REAL, d),
                          &e) &&
                  st_read(st, st_find(st, "model.layers.1.self_attn.dms_proj_alpha.bias"), TENSOR(b, REAL, 2), &e),
              "%s", e.msg);
    for (int c = 0; c < d; c++) square += (double)x[c] * (double)x[c] / d;
    sum = (double)b[row];
    for (int c = 0; c < d; c++) sum += (double)w[row * d + c] * (double)n[c] * (double)x[c] / sqrt(square + eps);
    return sum;
}
/* The folded projection of the layer's normed input is the published one of the stream with its own norm. */
Test(hf_dms, folded_adapters_decide_alike) {
    enum { D = 16, ROWS = 2000 };
    char *file = DMS_DIRS "adapter/model.safetensors";
    Dir o;
    St st;
    Err e = {0};
    double worst = 0, near = 1;
    int turned = 0;
    dir_open(&o, DMS_DIRS "adapter");
    cr_assert(st_open(&st, file, &e), "%s", e.msg);
    const DmcW *w = o.model.w.layer[1].mix;
    const real *gain = R(o.model.w.layer[1].norm1);
    for (int i = 0; i < ROWS; i++) {
        real x[D];
        double square = 0;
        for (int c = 0; c < D; c++) {
            x[c] = (real)(4 * rng_uniform(9, (uint64_t)(i * D + c)) - 2);
            square += (double)x[c] * (double)x[c] / D;
        }
        for (int g = 0; g < 2; g++) {
            real sum = R(w->bd)[g], rstd = (real)(1 / sqrt(square + 1e-5));
            for (int c = 0; c < D; c++) sum += R(w->wd)[g * D + c] * (x[c] * rstd * gain[c]);
            const double want = published(&st, g, x, D, 1e-5);
            worst = fmax(worst, fabs((double)sum - want));
            near = fmin(near, fabs(want - 0.2)); /* offset / gain */
            turned += ((double)sum > 0.2) != (want > 0.2);
        }
    }
    printf("folded adapter: %d rows, worst difference %.2g, nearest decision %.2g, %d turned\n", ROWS, worst, near,
           turned);
    cr_assert(worst < 2e-6 && !turned, "worst %g, %d turned", worst, turned);
    st_close(&st);
    dir_close(&o);
}

/* ---- refused ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *key, *value, *part; /* part NULL: accepted */
} edits[] = {
    {"channel", "dms_cr", "4", NULL},
    {"channel", "dms_cr", NULL, NULL},
    {"channel", "dms_alpha_scale", NULL, NULL},
    {"channel", "dms_window_size", NULL, "\"dms_window_size\" is missing"},
    {"channel", "dms_window_size", "0", "\"dms_window_size\": expected 1 to"},
    {"channel", "dms_window_size", "\"3\"", "\"dms_window_size\": expected a whole number, found text"},
    {"channel", "dms_window_size", "2000000", "delay: expected"},
    {"channel", "dms_alpha_scale", "0", "\"dms_alpha_scale\": expected more than 0"},
    {"channel", "dms_initial_alpha_offset", "-1", "\"dms_initial_alpha_offset\": expected 0 or more"},
    {"channel", "dms_alpha_offset", "4", "\"dms_initial_alpha_offset\" and \"dms_alpha_offset\" differ"},
    {"channel", "dms_tau", "0", "\"dms_tau\": expected more than 0"},
    {"channel", "dms_merge", "true", "\"dms_merge\" is not supported of model_type qwen3"},
    {"channel", "dms_alpha_per", "\"layer\"", "layer is supported with \"dms_separate_alpha\": true alone"},
    {"channel", "dms_alpha_per", "\"token\"", "\"dms_alpha_per\": expected head or layer, found token"},
    {"channel", "dms_disable_eviction", "true", "\"dms_disable_eviction\": expected false, found true"},
    {"channel", "dms_separate_alpha", "1", "\"dms_separate_alpha\": expected true or false"},
    {"channel", "model_type", "\"qwen2\"", "is not supported of model_type qwen2"},
    {"adapter", "use_sliding_window", "true", NULL},
    {"fast", "dms_window_size", "4", "\"dms_window_size\" differs from that in"},
    {"fast", "dms_window_size", NULL, NULL},
    {"fast", "dms_separate_alpha", "true", "\"dms_separate_alpha\": true is not supported of model_type llama"},
};
Test(hf_dms, settings_refused) {
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *from = xformat("../dms/%s", edits[i].name);
        json_t *j;
        char *dir = dir_stage(from, &j), *here = xformat(DMS_DIRS "%s/" HF_DMS_METADATA, edits[i].name),
             *to = xformat("%s/" HF_DMS_METADATA, dir);
        struct stat st;
        if (!stat(here, &st) && stat(to, &st)) {
            char *real_path = realpath(here, NULL);
            cr_assert_eq(symlink(real_path, to), 0, "%s", to);
            free(real_path);
        }
        dir_tried(dir, j, edits[i].name, edits[i].key, edits[i].value, edits[i].part, NULL);
        json_decref(j);
        free(dir), free(from), free(here), free(to);
    }
}

/* What FastDMS's file may say, and what it may not. */
Test(hf_dms, metadata) {
    static const struct {
        const char *text, *part;
    } k[] = {{"{\"config\":{\"dms_window_size\":3,\"dms_alpha_scale\":100,\"dms_alpha_offset\":5},\"log\":[]}", NULL},
             {"{\"window_size\":3,\"dms_initial_alpha_offset\":5,\"base_model\":\"llama\"}", NULL},
             {"{}", NULL},
             {"{\"window_size\":3,\"alpha_offset\":4}", "\"dms_initial_alpha_offset\" differs from that in"},
             {"{\"window_size\":3,\"sidecar\":{\"path\":\"x\"}}", "\"sidecar\" is not supported"},
             {"[3]", "expected a JSON object, found an array"},
             {"{\"config\":[3]}", "expected an object"},
             {"{\"window_size\":", HF_DMS_METADATA}};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        json_t *j;
        char *dir = dir_stage("../dms/fast", &j), *to = xformat("%s/" HF_DMS_METADATA, dir);
        ModelCfg c = {0};
        Err e = {0};
        unlink(to);
        FILE *f = fopen(to, "w");
        cr_assert(f && fputs(k[i].text, f) >= 0 && !fclose(f));
        dir_config(dir, j);
        bool ok = hf_config_read(dir, &c, &e);
        cr_expect_eq(ok, !k[i].part, "%s: %s", k[i].text, ok ? "accepted" : e.msg);
        if (!ok && k[i].part) dir_refused(k[i].text, NULL, &e, k[i].part);
        if (ok) model_cfg_free(&c);
        json_decref(j);
        free(dir), free(to);
    }
}

#define ALPHA "model.layers.1.self_attn.dms_proj_alpha"
Test(hf_dms, tensors_refused) {
    static const struct {
        const char *golden, *name, *added, *part;
        Change how;
    } k[] = {
        {"adapter", ALPHA ".weight", NULL, "dms_proj_alpha.weight\" is missing, but config.json says", DROP},
        {"adapter", ALPHA "_norm.weight", NULL, "dms_proj_alpha_norm.weight\" is missing, but", DROP},
        {"adapter", ALPHA ".bias", NULL, "dms_proj_alpha.bias\" is missing, but", DROP},
        {"adapter", ALPHA ".weight", NULL, "expected shape (2,16), found (3,16)", WIDER},
        {"adapter", ALPHA "_norm.weight", NULL, "expected shape (16), found (17)", WIDER},
        {"adapter", ALPHA ".weight", NULL, "expected shape (2,16), found (16,2)", TURNED},
        {"layer", ALPHA ".weight", ALPHA ".bias", "dms_proj_alpha.bias\" has no place in this model", ADDED},
        {"channel", "model.norm.weight", ALPHA ".weight", "dms_proj_alpha.weight\" has no place", ADDED},
        {"channel", "model.layers.1.self_attn.q_norm.weight", NULL, "q_norm.weight\" is missing", DROP},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        char *golden = xformat("../dms/%s", k[i].golden);
        json_t *j;
        char *dir = dir_stage(golden, &j);
        ModelCfg c;
        Err e = {0};
        dir_config(dir, j);
        dir_rewrite(dir, golden, k[i].name, k[i].how, k[i].added);
        cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
        cr_expect(!hf_check(dir, &c, &e), "%zu: accepted", i);
        dir_refused(k[i].name, NULL, &e, k[i].part);
        model_cfg_free(&c);
        json_decref(j);
        free(dir), free(golden);
    }
}

/* A norm that is 0 where the adapter reads the stream has no projection that is the same. */
Test(hf_dms, a_norm_of_zero) {
    for (int both = 0; both < 2; both++) {
        json_t *j;
        char *dir = dir_stage("../dms/adapter", &j), *path = xformat("%s/model.safetensors", dir);
        static real room[64][2048];
        StList l = {0};
        St st;
        ModelCfg c;
        Err e = {0};
        dir_config(dir, j);
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        for (int i = 0; i < st.n; i++) {
            const StEntry *s = &st.entry[i];
            const int n[2] = {(int)s->shape[0], s->rank > 1 ? (int)s->shape[1] : 1};
            Tensor t = tensor_make(room[i], REAL, s->rank, n);
            cr_assert(i < 64 && n[0] * n[1] <= 2048 && st_read(&st, s, t, &e), "%s", e.msg);
            if (!strcmp(s->name, "model.layers.1.input_layernorm.weight")) R(t)[5] = 0;
            if (both && !strcmp(s->name, ALPHA "_norm.weight")) R(t)[5] = 0;
            st_add(&l, s->name, t, F32);
        }
        st_close(&st);
        cr_assert(!unlink(path) && st_write(path, &l, NULL, &e), "%s", e.msg);
        cr_assert(hf_config_read(dir, &c, &e), "%s", e.msg);
        cr_expect_eq(hf_check(dir, &c, &e), both, "%s", e.msg);
        if (!both) dir_refused("zero", NULL, &e, "dms_proj_alpha.weight\": element (0,5) times its norm is");
        model_cfg_free(&c);
        st_list_free(&l);
        json_decref(j);
        free(dir), free(path);
    }
}
