/* zoo.c: see zoo.h. */
#include "zoo.h"

#define SHAPE \
    "\"d_model\":12,\"vocab\":11,\"max_positions\":64,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}]"
#define ONE(settings) \
    "{" SHAPE ",\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\"," settings "}},\"pattern\":[\"a\"]}"
const Animal zoo[] = {
    {"mha", ONE("\"heads\":3")},
    {"gqa", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4")},
    {"mqa", ONE("\"heads\":4,\"kv_heads\":1,\"head_dim\":6")},
    {"window", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"window\":3")},
    {"window of one", ONE("\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"window\":1")},
    {"window with sinks", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"window\":2,\"sinks\":2")},
    {"nope", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"rope\":\"none\"")},
    {"odd head, nope", ONE("\"heads\":2,\"kv_heads\":1,\"head_dim\":5,\"rope\":\"none\"")},
    {"qk norm", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"qk_norm\":true")},
    {"biases", ONE("\"heads\":4,\"kv_heads\":2,\"head_dim\":4,\"qkv_bias\":true,\"o_bias\":true,\"qk_norm\":true")},
    {"interleaved rope", ONE("\"heads\":2,\"kv_heads\":1,\"head_dim\":6,\"rope\":{\"type\":\"default\",\"theta\":100,"
                             "\"interleaved\":true}")},
    {"inclusive rope, scaled embedding",
     "{" SHAPE
     ",\"embed_scale\":3.5,\"layers\":2,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":1,"
     "\"head_dim\":6,\"rope\":{\"type\":\"default\",\"theta\":100,\"interleaved\":true,\"inclusive\":true}}},"
     "\"pattern\":[\"a\"]}"},
    {"llama3 rope",
     ONE("\"heads\":2,\"kv_heads\":1,\"head_dim\":6,\"rope\":{\"type\":\"llama3\",\"theta\":100,\"factor\":8,"
         "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_positions\":32}")},
    {"yarn rope",
     ONE("\"heads\":2,\"kv_heads\":1,\"head_dim\":6,\"rope\":{\"type\":\"yarn\",\"theta\":100,\"factor\":4,"
         "\"original_max_positions\":16}")},
    {"untied, two kinds",
     "{" SHAPE
     ",\"layers\":3,\"tied\":false,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4},"
     "\"b\":{\"mixer\":\"gqa\",\"heads\":3,\"window\":3}},\"pattern\":[\"a\",\"b\",\"a\"]}"},
    {"shared by pairs (CLA)",
     "{" SHAPE
     ",\"layers\":4,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4}},"
     "\"pattern\":[\"a\"],\"kv_from\":{\"1\":0,\"3\":2}}"},
    {"publisher and readers (YOCO)",
     "{" SHAPE ",\"layers\":5,\"tied\":true,\"kinds\":{\"w\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_"
     "dim\":4,\"window\":3},"
     "\"p\":{\"mixer\":\"gqa\",\"heads\":0,\"kv_heads\":2,\"head_dim\":4,\"qk_norm\":true},\"r\":{\"mixer\":\"gqa\","
     "\"heads\":4,\"kv_heads\":2,"
     "\"head_dim\":4,\"qk_norm\":true}},\"pattern\":[\"w\",\"w\",\"p\",\"r\",\"r\"],\"kv_from\":{\"3\":2,\"4\":2}}"},
    {"windows on one slot",
     "{" SHAPE ",\"layers\":3,\"tied\":true,\"kinds\":{\"w3\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_"
     "dim\":4,\"window\":3},"
     "\"w5\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":2,\"head_dim\":4,\"window\":5,\"sinks\":1},\"all\":{\"mixer\":"
     "\"gqa\",\"heads\":4,"
     "\"kv_heads\":2,\"head_dim\":4}},\"pattern\":[\"w3\",\"w5\",\"all\"],\"kv_from\":{\"1\":0}}"},
    {"owner after readers", "{" SHAPE ",\"layers\":4,\"tied\":true,\"kinds\":{\"w\":{\"mixer\":\"gqa\",\"heads\":4,"
                            "\"kv_heads\":2,\"head_dim\":4,\"window\":4},"
                            "\"all\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":4}},\"pattern\":[\"w\","
                            "\"all\",\"all\",\"w\"],\"kv_from\":{\"1\":0,\"2\":0}}"},
};
int zoo_count(void) { return (int)(sizeof zoo / sizeof *zoo); }

void zoo_open(const Animal *a, ModelCfg *cfg, Model *m, Device **dev, ModelOpts opts) {
    Err e = {0};
    cr_assert(model_cfg_from_json(cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(device_open(dev, "cpu", 2, &e), "%s", e.msg);
    opts.poison = true;
    cr_assert(model_open(m, *dev, cfg, opts, &e), "%s: %s", a->name, e.msg);
    model_init(m, 7);
}
void zoo_close(ModelCfg *cfg, Model *m, Device *dev) {
    model_close(m);
    model_cfg_free(cfg);
    device_close(dev);
}

static void bind(Pass *p, int B, int N, bool history) {
    p->b = (Batch){.B = B,
                   .N = N,
                   .off = p->off,
                   .seq = p->seq,
                   .of = p->of,
                   .pos = p->pos,
                   .first = p->first,
                   .id = p->id,
                   .history = history};
}
void zoo_whole(Pass *p, int vocab) {
    static const int len[ZOO_SEQS] = {7, 8, 6};
    static const int starts[] = {0, 4, 7, 15, 16, 19}; /* rows at which documents begin */
    *p = (Pass){0};
    int N = 0, k = 0;
    for (int s = 0; s < ZOO_SEQS; s++) {
        p->off[s] = N, p->seq[s] = s, p->id[s] = (uint64_t)(100 + s);
        for (int i = 0; i < len[s]; i++, N++) {
            bool starts_here = k < 6 && starts[k] == N;
            k += starts_here;
            p->of[N] = s;
            p->first[N] = starts_here ? N : p->first[N - 1];
            p->pos[N] = N - p->first[N];
            p->tok[N] = (int)(rng_mix(1, (uint64_t)N) % (uint64_t)vocab);
            p->tgt[N] = (int)(rng_mix(2, (uint64_t)N) % (uint64_t)vocab);
        }
    }
    p->tgt[5] = -1; /* a row without a target */
    p->off[ZOO_SEQS] = N;
    bind(p, ZOO_SEQS, N, false);
}

void zoo_part(Pass *p, const Pass *w, const int from[ZOO_SEQS], const int n[ZOO_SEQS], int *map) {
    *p = (Pass){0};
    int N = 0;
    bool history = false;
    for (int s = 0; s < ZOO_SEQS; s++) {
        p->off[s] = N, p->seq[s] = s, p->id[s] = w->id[s];
        for (int i = 0; i < n[s]; i++, N++) {
            int row = w->off[s] + from[s] + i, first = w->first[row] - w->off[s]; /* of the document, in the sequence */
            p->of[N] = s;
            p->first[N] = first >= from[s] ? p->off[s] + first - from[s] : -1;
            history |= p->first[N] == -1;
            p->pos[N] = w->pos[row], p->tok[N] = w->tok[row], p->tgt[N] = w->tgt[row];
            if (map) map[N] = row;
        }
    }
    p->off[ZOO_SEQS] = N;
    bind(p, ZOO_SEQS, N, history);
}
