/* converts.h: what the suites of conversions share: a conversion run, tensors of files, models of all kinds. */
#pragma once
#include "dirs.h"
#include "convert/convert.h"
#include "layers/gqa/gqa.h"
#include "model/files/safetensors.h"
#include "zoo.h"
#include <sys/stat.h>
#include <unistd.h>

enum { WORDS = 8 };
typedef struct {
    ConvertReport r;
    Err e;
    bool ok;
} Done;

/* `words`: blank-separated settings. */
static inline Done run(const char *src, const char *dst, const char *to, const char *words, const char *calib) {
    Done d = {0};
    char *copy = xstrdup(words), *word[WORDS], *save = NULL;
    ConvertOpts o = {.src = src,
                     .dst = dst,
                     .to = to,
                     .word = word,
                     .calib = calib,
                     .context = 32,
                     .calib_tokens = 192,
                     .check_tokens = 64};
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) word[o.nword++] = w;
    Device *dev;
    cr_assert(device_open(&dev, "cpu", 1, &d.e), "%s", d.e.msg);
    d.ok = convert_run(&o, dev, &d.r, &d.e);
    device_close(dev);
    free(copy);
    const ConvertCheck *c = &d.r.check;
    if (c->rounding > 0) check_log("a lossless conversion", c->logit_diff / c->rounding, CONVERT_MARGIN, 0, 1);
    return d;
}

#define CASE "tests/golden/convert"
#ifdef KV_DOUBLE
static const double GOLDEN_TOL = 1e-6; /* the files hold single precision */
#else
static const double GOLDEN_TOL = 1e-4; /* activations in single precision, twenty rounds of singular vectors */
#endif

static inline Tensor entry(const St *st, const char *name) {
    const StEntry *s = st_find(st, name);
    Err e = {0};
    cr_assert(s, "%s: no tensor %s", st->path, name);
    Tensor t = {.dtype = REAL, .rank = s->rank};
    for (int i = 0; i < s->rank; i++) t.n[i] = (int)s->shape[i];
    t.p = xcalloc(tensor_count(t), sizeof(real));
    cr_assert(st_read(st, s, t, &e), "%s", e.msg);
    return t;
}

static inline void see_random(Fields *f, Tensor *t, const char *path, unsigned flags) {
    uint64_t key = rng_name(*(uint64_t *)f->ctx, path);
    for (size_t i = 0; i < tensor_count(*t); i++)
        R(*t)[i] = (real)(flags & FIELD_ONES ? 1 + 0.3 * rng_normal(key, i) : 0.4 * rng_normal(key, i));
}
/* Saves a model of these settings with values in all its weights as `as`; returns the folder's malloc'ed name. */
static inline char *model_dir(const char *name, const char *json, Dtype as) {
    const Animal a = {name, json};
    ModelCfg cfg;
    Model m;
    Device *dev;
    Err e = {0};
    uint64_t seed = 5;
    char *dir = check_path(name);
    zoo_open(&a, &cfg, &m, NULL, &dev, (ModelOpts){0});
    Fields f = {.see = see_random, .ctx = &seed};
    model_fields(&m, &m.w, &f);
    cr_assert_eq(mkdir(dir, 0700), 0);
    cr_assert(hf_save(dir, &m, NULL, as, &e), "%s: %s", name, e.msg);
    zoo_close(&cfg, &m, NULL, dev);
    return dir;
}

#define BASE \
    "\"d_model\":16,\"vocab\":23,\"max_positions\":32,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}]"
#define GQA(settings) \
    "{" BASE ",\"layers\":3,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\"," settings "}},\"pattern\":[\"a\"]}"
#define UNTIED(settings) \
    "{" BASE ",\"layers\":2,\"tied\":false,\"kinds\":{\"a\":{\"mixer\":\"gqa\"," settings "}},\"pattern\":[\"a\"]}"
#define SHARED                                                                                                    \
    "{" BASE                                                                                                      \
    ",\"layers\":4,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4}," \
    "\"b\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"window\":5,\"sinks\":1}},"              \
    "\"pattern\":[\"a\",\"b\",\"a\",\"b\"],\"kv_from\":{\"1\":0,\"3\":2}}"
#define YOCO                                                                                                      \
    "{" BASE                                                                                                      \
    ",\"layers\":4,\"tied\":true,\"kinds\":{\"s\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4}," \
    "\"p\":{\"mixer\":\"gqa\",\"heads\":0,\"kv_heads\":2,\"head_dim\":4},\"c\":{\"mixer\":\"gqa\",\"heads\":4,"   \
    "\"kv_heads\":2,\"head_dim\":4}},\"pattern\":[\"s\",\"p\",\"c\",\"c\"],\"kv_from\":{\"2\":1,\"3\":1}}"
#define LATENT(settings)                                                                                               \
    "{" BASE                                                                                                           \
    ",\"layers\":2,\"tied\":false,\"kinds\":{\"a\":{\"mixer\":\"mla\",\"heads\":4,\"kv_rank\":8,\"v_dim\":4," settings \
    "}},\"pattern\":[\"a\"]}"
#define FULL "\"heads\":4,\"head_dim\":6,\"kv_heads\":2,\"qkv_bias\":true,\"o_bias\":true"

/* The same with words: the byte tokenizer and its vocabulary. */
static inline char *wordy_dir(const char *name, const char *json, void (*change)(Model *)) {
    char *more = xstrdup(json), *at = strstr(more, "\"vocab\":23"),
         *wide = xformat("%.*s\"vocab\":260%s", (int)(at - more), more, at + 10);
    const Animal a = {name, wide};
    ModelCfg cfg;
    Model m;
    Device *dev;
    Err e = {0};
    uint64_t seed = 5;
    size_t n;
    char *dir = check_path(name), *to = xformat("%s/tokenizer.json", dir),
         *text = check_read(CASE "/tokenizer.json", &n);
    zoo_open(&a, &cfg, &m, NULL, &dev, (ModelOpts){0});
    Fields f = {.see = see_random, .ctx = &seed};
    model_fields(&m, &m.w, &f);
    if (change) change(&m);
    cr_assert(!mkdir(dir, 0700) && hf_save(dir, &m, NULL, REAL, &e), "%s: %s", name, e.msg);
    check_write(to, text, n);
    zoo_close(&cfg, &m, NULL, dev);
    free(more), free(wide), free(to), free(text);
    return dir;
}
