/* test_cuda_cache.c: codecs and policies of the cache on a device beside the CPU: the same logits, the same rows
 * kept. */
#include "infer/session.h"
#include "layers/cache/codec.h"
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"

enum { TOKENS = 26, PROMPT = 15, PAGE = 5 };
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
} Side;
static void side_open(Side *d, const char *device, const Animal *a, ModelOpts o) {
    Err e = {0};
    *d = (Side){0};
    o.poison = true;
    cr_assert(model_cfg_from_json(&d->cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(device_open(&d->dev, device, 1, &e), "%s", e.msg);
    cr_assert(model_open(&d->m, d->dev, &d->cfg, o, &e), "%s: %s", a->name, e.msg);
    model_init(&d->m, 7);
    SessionOpts so = {
        .nseq = 2, .max_tokens = TOKENS, .chunk = 16, .page_rows = PAGE, .document = -1, .want_all = true};
    cr_assert(session_open(&d->s, &d->m, so, &e), "%s", e.msg);
}
static void side_close(Side *d) {
    session_close(&d->s);
    zoo_close(&d->cfg, &d->m, NULL, d->dev);
}
static void feed(Side *d, int seq, int n, const int *tok, real *logits) {
    Err e = {0};
    cr_assert(session_extend(&d->s, 1, &(Feed){seq, n, tok}, WANT_ALL, TENSOR(logits, REAL, n, d->cfg.vocab), &e), "%s",
              e.msg);
}
/* A prompt, single tokens, a fork on the way; logits of sequence 0, then of the fork's last token. */
static void texts(Side *d, real *logits) {
    int tok[TOKENS];
    const int V = d->cfg.vocab;
    for (int i = 0; i < TOKENS; i++) tok[i] = (int)(rng_uniform(31, (uint64_t)i) * V);
    feed(d, 0, PROMPT, tok, logits);
    Err e = {0};
    cr_assert(session_prompt_ends(&d->s, 0, &e), "%s", e.msg);
    for (int i = PROMPT; i < TOKENS; i++) {
        if (i == PROMPT + 3) session_fork(&d->s, 0, 1);
        feed(d, 0, 1, tok + i, logits + i * V);
    }
    feed(d, 1, TOKENS - PROMPT - 3, tok + PROMPT + 3, logits + TOKENS * V);
}
/* Positions that a lane shows, as bits: rows may lie in any order. */
static uint64_t shown(const Session *s, int slot, int lane) {
    const Lanes *t = kv_lanes(kv_slot(&s->cache, slot));
    uint64_t set = 0;
    for (int r = t->lo[lane]; r < t->hi[lane]; r++)
        set |= 1ull << t->pos[t->table[lane * t->maxpages + r / t->P % t->maxpages] * t->P + r % t->P];
    return set;
}
static void compared(const char *name, ModelOpts o, bool evicts) {
    Side cpu, cuda;
    const Animal *a = &zoo[zoo_find(name)];
    side_open(&cpu, "cpu", a, o), side_open(&cuda, "cuda", a, o);
    const size_t rows = TOKENS + TOKENS - PROMPT - 3, n = rows * (size_t)cpu.cfg.vocab;
    real *want = xcalloc(n, sizeof *want), *got = xcalloc(n, sizeof *got);
    texts(&cpu, want), texts(&cuda, got);
    CHECK_RMS(name, got, want, n, 1e-3);
    bool all = true;
    for (int l = 0; l < cpu.m.L; l++)
        for (int lane = 0; cpu.m.layer[l].owner && lane < 2 * cpu.m.layer[l].rows.lanes; lane++) {
            const uint64_t there = shown(&cuda.s, l, lane);
            cr_assert(there == shown(&cpu.s, l, lane), "%s: layer %d lane %d: the device keeps %llx", name, l, lane,
                      (unsigned long long)there);
            if (policy_suits(o.policy, &cpu.m.layer[l].rows)) all &= there == (1ull << TOKENS) - 1;
        }
    cr_assert(all != evicts, "%s", name);
    for (int q = 0; q < 2; q++) cr_assert(session_bytes(&cpu.s, q) == session_bytes(&cuda.s, q), "%s", name);
    free(want), free(got);
    side_close(&cpu), side_close(&cuda);
}
Test(cuda_cache, codecs_are_those_of_the_cpu, .timeout = 300) {
    static const char *const names[] = {
        "gqa", "mla", "window with sinks", "odd head, nope", "dmc, window, a lane a head", "mla, evicts"};
    int codecs = 0;
    for (int k = 0; codec_at(k); k++) {
        if (codec_at(k)->as == ROWS_CODED || codec_at(k)->block) continue;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (codec_at(k)->as != ROWS_REAL || i == 0) compared(names[i], (ModelOpts){.codec = codec_at(k)}, false);
        codecs++;
    }
    cr_assert(codecs >= 7);
}
Test(cuda_cache, policies_are_those_of_the_cpu, .timeout = 300) {
    /* Without rotation: it leaves keys of equal tokens their norm but for a rounding, which would then decide. */
    static const char *const names[] = {"nope", "mla", "windows on one slot"},
                             *const spec[] = {"knorm:budget=0.5,window=3,sinks=2,every=4",
                                              "window:window=6,sinks=2,every=3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        PolicyCfg p;
        Err e = {0};
        cr_assert(policy_parse(spec[i % 2], &p, &e), "%s", e.msg);
        compared(names[i], (ModelOpts){.policy = &p, .codec = i == 1 ? &codec_int8 : NULL}, true);
    }
}
/* Those that ask queries: between tokens, and where the prompt ends. */
Test(cuda_cache, policies_that_ask_choose_as_on_the_cpu, .timeout = 300) {
    static const char *const spec[] = {"h2o:budget=0.5,window=3,every=4",
                                       "vatp:budget=0.5,window=3,sinks=2,every=4",
                                       "scissorhands:budget=0.5,window=3,every=4,queries=4",
                                       "tova:budget=0.5,every=4",
                                       "snapkv:budget=0.5,window=3",
                                       "adakv:budget=0.6,window=3",
                                       "pyramidkv:budget=0.5,window=2,every=6,share=2",
                                       "nacl:budget=0.6,window=3,sinks=1,queries=6",
                                       "morphkv:budget=0.5,window=3,every=4",
                                       "expected:budget=0.5,sinks=1,every=4,queries=6,ahead=5",
                                       "fastgen:window=2,sinks=1,queries=4,share=0.6,heavy=0.2,local=0.2",
                                       "hashevict:budget=0.5,window=3,sinks=1,every=4",
                                       "rocketkv:budget=0.2,window=3,pool=3",
                                       "knorm:budget=0.5,window=3,sinks=1,every=4+adakv",
                                       "expected:budget=0.5,sinks=1,queries=6+pyramidkv:share=2+adakv",
                                       "kvzip:budget=0.4,sinks=1,chunk=5",
                                       "infinipot:budget=0.5,window=3,sinks=1,every=4,share=0.6",
                                       "infinipot:budget=0.5,window=3,sinks=1,every=4,share=0.3,catalyst=1",
                                       "qhitter:budget=0.5,window=3,every=4",
                                       "minikv:budget=0.5,sinks=1",
                                       "simlayerkv:window=3,sinks=1,queries=4,share=0",
                                       "random:budget=0.5,window=3,sinks=1,every=4"};
    for (size_t i = 0; i < sizeof spec / sizeof *spec; i++) {
        PolicyCfg p;
        Err e = {0};
        cr_assert(policy_parse(spec[i], &p, &e), "%s", e.msg);
        if (p.catalyst) p.request[REQUEST_FIRST] = (PolicyAsked){3, {2, 1, 3}};
        compared(i % 4 == 3 ? "mla, shared latents" : "gqa",
                 (ModelOpts){.policy = &p,
                             .codec = i % 4 == 2   ? &codec_int8
                                      : i % 4 == 0 ? &codec_bf16
                                                   : NULL},
                 true);
    }
}
static bool cuda_cache_never(void *ctx, const char *name, real *buf, size_t count, Err *e) {
    (void)ctx, (void)name, (void)buf, (void)count;
    return err_runtime(e, "never called");
}
Test(cuda_cache, divided_rows_are_refused) {
    const KvShape s = {.lanes = 2, .kdim = 8, .vdim = 8};
    const KvRanks two = {.world = 2, .gather = cuda_cache_never};
    Device *cuda;
    Cache c;
    Err e = {0};
    cr_assert(device_open(&cuda, "cuda", 1, &e), "%s", e.msg);
    cr_assert(!kv_open_ranks(&c, cuda, NULL, NULL, &two, &s, 1, 1, 8, 8, 0, true, false, &e) && e.status == EXIT_INPUT);
    cr_assert(strstr(e.msg, "take --device cpu"), "%s", e.msg);
    cr_assert(kv_open_ranks(&c, NULL, NULL, NULL, &two, &s, 1, 1, 8, 8, 0, true, false, &e), "%s", e.msg);
    kv_close(&c);
    device_close(cuda);
}
/* A codec that no kernel reads is refused when the cache is opened, on the device alone. */
Test(cuda_cache, a_codec_without_a_kernel_is_refused) {
    RowCodec strange = codec_int8;
    strange.name = "strange", strange.as = ROWS_CODED;
    const KvShape s = {.lanes = 1, .kdim = 4, .vdim = 4, .codec = &strange};
    Device *cuda;
    Cache c;
    Err e = {0};
    cr_assert(device_open(&cuda, "cuda", 1, &e), "%s", e.msg);
    cr_assert(!kv_open_at(&c, cuda, &s, 1, 1, 8, 8, 0, true, false, &e) && e.status == EXIT_INPUT);
    cr_assert(strstr(e.msg, "rows in strange cannot be read on device cuda"), "%s", e.msg);
    e = (Err){0};
    cr_assert(kv_open_at(&c, NULL, &s, 1, 1, 8, 8, 0, true, false, &e), "%s", e.msg);
    kv_close(&c);
    device_close(cuda);
}
/* So is a basis of rows, before its file is read. */
Test(cuda_cache, a_basis_is_refused) {
    const int i = zoo_find("gqa");
    RowCodec palu = codec_palu;
    ModelCfg cfg;
    Device *cuda;
    Model m;
    Err e = {0};
    palu.basis = "nowhere", palu.basis_n = 7;
    cr_assert(device_open(&cuda, "cuda", 1, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&cfg, zoo[i].json, strlen(zoo[i].json), zoo[i].name, &e), "%s", e.msg);
    cr_assert(!model_open(&m, cuda, &cfg, (ModelOpts){.codec = &palu}, &e) && e.status == EXIT_INPUT);
    cr_assert(strstr(e.msg, "--cache-dtype palu: no GPU kernel reads its rows; use --device cpu"), "%s", e.msg);
    device_close(cuda);
    model_cfg_free(&cfg);
}
