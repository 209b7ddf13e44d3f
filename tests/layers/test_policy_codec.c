/* test_policy_codec.c: layers whose rows a policy stores by a codec of its own (tailorkv): what they hold, their bytes,
 * and that all layers coded are the codec alone. test_policy_golden.c has what the other layers read. */
#include "infer/session.h"
#include "layers/cache/codec.h"
#include "model/cost.h"
#include "tests/lib/zoo.h"

enum { T = 30, PROMPT = 20, CHUNK = 16 };
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
    PolicyCfg p;
} ModelCase;
/* spec NULL: no policy. */
static bool open_case(ModelCase *c, const Animal *a, const char *spec, const RowCodec *codec) {
    Err e = {0};
    *c = (ModelCase){.dev = NULL};
    cr_assert(policy_parse(spec ? spec : "none", &c->p, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&c->cfg, a->json, strlen(a->json), a->name, &e), "%s", e.msg);
    cr_assert(device_open(&c->dev, "cpu", 1, &e), "%s", e.msg);
    if (!model_open(&c->m, c->dev, &c->cfg, (ModelOpts){.policy = &c->p, .codec = codec, .poison = true}, &e)) {
        cr_assert(strstr(e.msg, "no layer of this model stores a row per token"), "%s", e.msg);
        device_close(c->dev);
        model_cfg_free(&c->cfg);
        return false;
    }
    model_init(&c->m, 7);
    const SessionOpts o = {
        .nseq = 1, .max_tokens = T, .chunk = CHUNK, .page_rows = 5, .document = -1, .want_all = true};
    cr_assert(session_open(&c->s, &c->m, o, &e), "%s", e.msg);
    return true;
}
static void close_case(ModelCase *c) {
    session_close(&c->s);
    zoo_close(&c->cfg, &c->m, NULL, c->dev);
}
static real *run(ModelCase *c) {
    const int V = c->cfg.vocab;
    real *logits = xcalloc((size_t)(T * V), sizeof *logits);
    int tok[T];
    Err e = {0};
    for (int i = 0; i < T; i++) tok[i] = (int)(rng_uniform(5, (uint64_t)i) * V);
    for (int at = 0, n; at < T; at += n) {
        n = at ? 1 : PROMPT;
        cr_assert(session_extend(&c->s, 1, &(Feed){0, n, tok + at}, WANT_ALL, TENSOR(logits + at * V, REAL, n, V), &e),
                  "%s", e.msg);
        if (!at) cr_assert(session_prompt_ends(&c->s, 0, &e), "%s", e.msg);
    }
    return logits;
}
/* Layers that the policy may code, in order; returns how many. */
static int suited(const ModelCase *c, int layer[LAYERS_MAX]) {
    int n = 0;
    for (int l = 0; l < c->m.L; l++)
        if (c->m.layer[l].owner && policy_suits(NULL, &c->m.layer[l].rows)) layer[n++] = l;
    return n;
}

Test(policy_codec, all_layers_coded_are_the_codec_alone, .timeout = 100) {
    static const RowCodec *const codecs[] = {&codec_int2, &codec_int3, &codec_int4};
    int tried = 0;
    for (int i = 0; i < zoo_count(); i++) {
        ModelCase a, b;
        int layer[LAYERS_MAX];
        char spec[80];
        snprintf(spec, sizeof spec, "tailorkv:coded=1000,bits=%d,reads=4,recent=2,sinks=1", 2 + i % 3);
        if (!open_case(&a, &zoo[i], spec, NULL)) continue;
        cr_assert(open_case(&b, &zoo[i], NULL, codecs[i % 3]));
        const int n = suited(&a, layer), V = a.cfg.vocab;
        int rows = 0; /* layers whose rows --cache-dtype codes, too */
        for (int l = 0; l < a.m.L; l++) rows += a.m.layer[l].owner && a.m.layer[l].rows.lanes;
        real *got = run(&a), *want = run(&b);
        for (int k = 0; k < n; k++)
            cr_assert(a.m.layer[layer[k]].rows.codec == codecs[i % 3] && a.m.layer[layer[k]].rows.coded, "%s",
                      zoo[i].name);
        if (n == rows) {
            CHECK_BYTES(zoo[i].name, got, want, (size_t)(T * V) * sizeof *got);
            cr_assert(session_bytes(&a.s, 0) == session_bytes(&b.s, 0), "%s: %zu bytes, %zu by the codec", zoo[i].name,
                      session_bytes(&a.s, 0), session_bytes(&b.s, 0));
            tried++;
        }
        free(got), free(want);
        close_case(&a), close_case(&b);
    }
    cr_assert(tried >= 12, "%d models", tried);
}
/* Some layers coded: their rows in so many bytes, those of the others as they are; the cost model, the mapped memory
 * and what is resident agree. Readers of a coded layer see what it stores: logits differ from the dense cache's. */
Test(policy_codec, bytes_of_each_layer, .timeout = 100) {
    int mixed = 0, tried = 0;
    CacheCost *cost = xcalloc(1, sizeof *cost);
    for (int i = 0; i < zoo_count(); i++)
        for (int coded = 1; coded < 3; coded++) {
            ModelCase c, dense;
            char spec[100];
            int layer[LAYERS_MAX];
            size_t bytes = 0, mapped;
            Err e = {0};
            snprintf(spec, sizeof spec, "tailorkv:coded=%d,bits=%d,reads=1000,recent=4,page=%d", coded, 2 + i % 3,
                     1 + i % 4);
            if (!open_case(&c, &zoo[i], spec, &codec_bf16)) continue;
            cr_assert(open_case(&dense, &zoo[i], NULL, &codec_bf16));
            const int n = suited(&c, layer), P = 1 + i % 4, V = c.cfg.vocab;
            real *got = run(&c), *want = run(&dense);
            cr_assert(memcmp(got, want, (size_t)(T * V) * sizeof *got), "%s: nothing is coded", zoo[i].name);
            bytes = session_bytes(&dense.s, 0);
            for (int k = 0; k < n; k++) {
                const Slot *slot = kv_slot(&c.s.cache, layer[k]);
                const KvShape *s = &kv_lanes(slot)->s, *d = &kv_lanes(kv_slot(&dense.s.cache, layer[k]))->s;
                const RowCodec *own =
                    k < coded ? (const RowCodec *[]){&codec_int2, &codec_int3, &codec_int4}[i % 3] : &codec_bf16;
                const size_t row = own->bytes(own, s->kdim) + (s->alias ? 0 : own->bytes(own, s->vdim)),
                             sum = k < coded ? 0 : ((size_t)s->kdim * sizeof(real) + (size_t)P - 1) / (size_t)P;
                cr_assert(s->codec == own && s->coded == (k < coded), "%s: layer %d", zoo[i].name, layer[k]);
                cr_assert(kv_lanes(slot)->P == (k < coded ? 5 : P), "%s: pages of %d", zoo[i].name, kv_lanes(slot)->P);
                bytes = bytes - (size_t)(T * s->lanes) * row_bytes(d) + (size_t)(T * s->lanes) * (row + sum);
            }
            mixed += n > coded;
            cr_assert(session_bytes(&c.s, 0) == bytes, "%s, %s: %zu bytes, expected %zu", zoo[i].name, spec,
                      session_bytes(&c.s, 0), bytes);
            cost_cache(&c.m, T, cost);
            cr_assert(cost->at_most || cost->bytes_at_context == bytes, "%s: the cost model says %zu, %zu are there",
                      zoo[i].name, cost->bytes_at_context, bytes);
            cr_assert(cost_cache_mapped(&c.m, 1, T, CHUNK, &mapped, &e));
            Cache cache;
            cr_assert(model_cache_open(&c.m, &cache, 1, T, CHUNK, 0, false, &e));
            cr_assert(cache.mem.size == mapped && cache.mem.used == mapped);
            kv_close(&cache);
            free(got), free(want);
            tried++;
            close_case(&c), close_case(&dense);
        }
    cr_assert(tried > 20 && mixed > 10, "%d cases, %d with layers of both kinds", tried, mixed);
    free(cost);
}
