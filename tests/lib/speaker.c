#include "speaker.h"

const Animal speaker_bytes = {
    "bytes",
    "{\"d_model\":32,\"vocab\":257,\"max_positions\":160,\"init_std\":0.3,\"layers\":3,\"tied\":false,"
    "\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":40}],\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,"
    "\"head_dim\":8},\"w\":{\"mixer\":\"gqa\",\"heads\":2,\"kv_heads\":1,\"head_dim\":8,\"window\":9,\"sinks\":2}},"
    "\"pattern\":[\"w\",\"a\"]}"};

void speaker_open(Speaker *s, const Animal *a, int rows) {
    s->tk = tokenizer_byte();
    zoo_open(a, &s->cfg, &s->m, &s->work, &s->dev, (ModelOpts){.max_rows = rows, .max_samples = rows});
    s->V = s->cfg.vocab;
    s->document = s->V - 1;
}
bool speaker_keeping(Speaker *s, const Animal *a, Keeping *how, int threads) {
    Err e = {0};
    ModelOpts o = {.bf16_weights = how->bf16, .codec = how->bf16 ? &codec_bf16 : NULL, .poison = true};
    *s = (Speaker){.tk = tokenizer_byte()};
    if (how->policy) cr_assert(policy_parse(how->policy, &how->own_policy, &e), "%s", e.msg);
    if (how->policy) o.policy = &how->own_policy;
    if (how->codec) cr_assert(codec_parse(how->codec, &how->own_codec, &e), "%s", e.msg);
    if (how->codec) o.codec = &how->own_codec;
    cr_assert(model_cfg_from_json(&s->cfg, a->json, strlen(a->json), a->name, &e), "%s", e.msg);
    cr_assert(device_open(&s->dev, "cpu", threads, &e) && (!how->bf16 || device_bf16(s->dev, true, &e)), "%s", e.msg);
    s->V = s->cfg.vocab, s->document = s->V - 1;
    if (model_open(&s->m, s->dev, &s->cfg, o, &e)) {
        model_init(&s->m, 7);
        return true;
    }
    cr_assert(e.status == EXIT_INPUT, "%s", e.msg);
    device_close(s->dev);
    model_cfg_free(&s->cfg);
    return false;
}
void speaker_close(Speaker *s) { zoo_close(&s->cfg, &s->m, &s->work, s->dev); }

void speaker_tokens(const Speaker *s, int *tok, int n, uint64_t seed) {
    for (int i = 0; i < n; i++)
        tok[i] = rng_uniform(seed, 2 * (uint64_t)i) < 0.06 ? s->document
                                                           : (int)(rng_uniform(seed, 2 * (uint64_t)i + 1) * (s->V - 1));
}

void speaker_nll(Speaker *s, int B, int n, const int *tok, const int *tgt, int document, real *nll) {
    int N = B * n, *block = xcalloc(3 * (size_t)N + (size_t)B + 1, sizeof(int));
    int *of = block, *pos = block + N, *first = block + 2 * N, *off = block + 3 * N;
    uint64_t *id = xcalloc((size_t)B, sizeof *id);
    for (int i = 0; i < N; i++) {
        bool start = i % n == 0 || tok[i] == document;
        of[i] = i / n;
        first[i] = start ? i : first[i - 1];
        pos[i] = i - first[i];
    }
    for (int b = 0; b <= B; b++) off[b] = b * n;
    Batch batch = {.B = B, .N = N, .off = off, .seq = of, .of = of, .pos = pos, .first = first, .id = id};
    model_loss(&s->m, &s->work, &batch, tok, tgt, nll);
    free(block);
    free(id);
}

double log_softmax(const real *l, int V, int t) {
    double top = -INFINITY, sum = 0;
    for (int v = 0; v < V; v++)
        if (l[v] > top) top = l[v]; /* fmax of floats in double fails in gcc 12 for aarch64 */
    for (int v = 0; v < V; v++) sum += exp((double)l[v] - top);
    return (double)l[t] - top - log(sum);
}
