/* kvsmith bench: the machine's limits, and how near a training step and decoding come to them, all in one run.
 *
 * Peak: the best median of square-ish matrix products through Ops.linear. Bandwidth: a read of as many bytes as a
 * decoding step reads. Percentages are of these, never of a data sheet. */
#include <errno.h>
#include "../model/cost.h"
#include "bench.h"
#include "engine.h"
#include "session.h"

int cmd_bench(int argc, char **argv);

enum { BENCH_OPS = 1, BENCH_TRAIN = 2, BENCH_DECODE = 4, BENCH_ALL = 7 };
typedef struct {
    const char *word[2];
    int nword;
    double seconds;
    int what;
    const char *config;
} Args;

static bool take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    if (key == 's') return cli_real(arg, "--seconds", 0.01, 60, &a->seconds, e);
    CHECK(key == CLI_ARG && a->nword < 2, "option %d", key);
    a->word[a->nword++] = arg;
    return true;
}

/* What is measured when no configuration is given: about 10 million parameters, a third of MHA's cache. */
static const char standard[] =
    "model: {d_model: 384, layers: 6, kinds: {full: {mixer: gqa, heads: 6, kv_heads: 2, head_dim: 64}},\n"
    "        ffn: {kind: swiglu, hidden: 1024}}\n"
    "data: {seq_len: 256}\n"
    "train: {micro_batch: 8}\n";

typedef struct {
    Device *dev;
    Config *cfg;
    double seconds, peak; /* peak: GFLOP/s */
} Bench;

static bool bench_ops(Bench *b, json_t *out, Err *e) {
    static const int shape[][3] = {
        {1024, 1024, 1024}, {2048, 1024, 1024}, {1024, 2048, 2048}, {2048, 2048, 1024}, {2048, 2048, 2048}};
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        Gemm g;
        if (!bench_gemm(b->dev, shape[i][0], shape[i][1], shape[i][2], b->seconds, &g, e)) {
            json_decref(list);
            return false;
        }
        b->peak = fmax(b->peak, g.gflops);
        json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:f, s:i}", "n", g.N, "o", g.O, "i", g.I, "gflops",
                                              g.gflops, "runs", g.time.runs));
    }
    double read;
    size_t bytes = (size_t)1 << 29;
    json_object_set_new(out, "gemm", list);
    json_object_set_new(out, "gemm_peak_gflops", json_real(b->peak));
    if (!bench_read(b->dev, bytes, b->seconds, &read, e)) return false;
    json_object_set_new(out, "read", json_pack("{s:I, s:f}", "bytes", (json_int_t)bytes, "gb_per_s", read / 1e9));
    return true;
}

/* ---- training: gradients of one micro-batch, the norm for clipping, an AdamW step
 * ------------------------------------ */
enum { ROLES = 4 };
typedef struct {
    int n, cap;
    Tensor (*t)[ROLES]; /* weight, gradient, first and second moment */
    int role, at;
} Owned;
static void owned_see(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path, (void)flags;
    Owned *o = f->ctx;
    if (o->at == o->cap) o->t = xrealloc(o->t, (size_t)(o->cap = 2 * o->cap + 64), sizeof *o->t);
    o->t[o->at++][o->role] = *t;
    o->n = imax(o->n, o->at);
}

typedef struct {
    Model m;
    Batch batch;
    int *tok, *tgt, *pos, *first, *of, *off;
    uint64_t *id;
    real *g, *nll;
    Owned owned;
    Run run;
    int64_t t;
} Step;

static void step_once(void *ctx) {
    Step *s = ctx;
    s->m.step = (uint64_t)s->t++;
    model_zero_grad(&s->m);
    model_train(&s->m, &s->batch, s->tok, s->tgt, s->g, s->nll);
    double sum = 0;
    for (int i = 0; i < s->owned.n; i++) sum += s->run.ops->sumsq(&s->run, s->owned.t[i][1]);
    for (int i = 0; i < s->owned.n; i++) {
        Tensor *t = s->owned.t[i];
        s->run.ops->adamw(&s->run, t[0], t[1], t[2], t[3], 1e-5, 0.9, 0.95, 1e-8, t->rank > 1 ? 0.1 : 0,
                          sum > 1 ? 1 / sqrt(sum) : 1, s->t);
    }
}

static void step_data(Step *s, int B, int T, int V) {
    int N = B * T;
    s->tok = xcalloc((size_t)N, sizeof(int)), s->tgt = xcalloc((size_t)N, sizeof(int)),
    s->pos = xcalloc((size_t)N, sizeof(int));
    s->first = xcalloc((size_t)N, sizeof(int)), s->of = xcalloc((size_t)N, sizeof(int)),
    s->off = xcalloc((size_t)B + 1, sizeof(int));
    s->id = xcalloc((size_t)B, sizeof *s->id);
    s->g = xcalloc((size_t)N, sizeof(real)), s->nll = xcalloc((size_t)N, sizeof(real));
    for (int i = 0; i < N; i++) {
        s->tok[i] = (int)(rng_uniform(1, (uint64_t)i) * V), s->tgt[i] = (int)(rng_uniform(2, (uint64_t)i) * V);
        s->of[i] = i / T, s->pos[i] = i % T, s->first[i] = i / T * T;
        s->g[i] = (real)1 / (real)N;
    }
    for (int b = 0; b <= B; b++) s->off[b] = b * T;
    for (int b = 0; b < B; b++) s->id[b] = (uint64_t)b;
    s->batch = (Batch){
        .B = B, .N = N, .off = s->off, .seq = s->off, .of = s->of, .pos = s->pos, .first = s->first, .id = s->id};
}
static void step_free(Step *s) {
    free(s->tok), free(s->tgt), free(s->pos), free(s->first), free(s->of), free(s->off), free(s->id), free(s->g),
        free(s->nll);
    free(s->owned.t);
    model_close(&s->m);
}

static bool bench_train(Bench *b, json_t *out, Err *e) {
    int B = b->cfg->train.micro_batch, T = b->cfg->data.seq_len;
    Step s = {0};
    ModelOpts o = {.train = true,
                   .max_rows = B * T,
                   .max_samples = B,
                   .dropout = b->cfg->train.dropout,
                   .recompute = b->cfg->train.recompute};
    if (!model_open(&s.m, b->dev, &b->cfg->model, o, e)) return false;
    model_init(&s.m, 1);
    step_data(&s, B, T, b->cfg->model.vocab);
    Weights *role[] = {&s.m.w, &s.m.g, &s.m.m, &s.m.v};
    for (int r = 0; r < ROLES; r++) {
        Fields f = {.see = owned_see, .ctx = &s.owned};
        s.owned.role = r, s.owned.at = 0;
        model_fields(&s.m, role[r], &f);
    }
    s.run = run_make(b->dev, &s.m.scratch);
    Timing t = bench_time(step_once, &s, b->seconds);
    Cost c = cost_model(&s.m, T);
    double tok_s = B * T / t.median;
    json_object_set_new(out, "train",
                        json_pack("{s:I, s:i, s:i, s:f, s:i, s:f, s:f, s:s, s:f}", "params", (json_int_t)c.params,
                                  "rows", B * T, "seq_len", T, "step_s", t.median, "runs", t.runs, "tok_s", tok_s,
                                  "flops_per_token", c.itemised, "formula",
                                  "6 N_matmul + 3 x attention, causal, windows exact", "percent_of_peak",
                                  100 * tok_s * c.itemised / (b->peak * 1e9)));
    step_free(&s);
    return true;
}

/* ---- decoding: one token for each of B sequences with half a context behind them
 * -------------------------------------- */
typedef struct {
    Session s;
    Feed feed[64];
    int B, tok[64];
    Tensor logits;
    bool ok;
    Err *e;
} Decode;
static void decode_once(void *ctx) {
    Decode *d = ctx;
    d->ok = d->ok && session_extend(&d->s, d->B, d->feed, WANT_LAST, d->logits, d->e);
}

static bool decode_at(Bench *b, Model *m, int B, json_t *list, Err *e) {
    enum { RUNS_ROOM = 1001 };
    int before = imax(1, b->cfg->data.seq_len / 2), V = m->cfg.vocab, *prompt = xcalloc((size_t)before, sizeof *prompt);
    Decode d = {.B = B, .ok = true, .e = e};
    SessionOpts o = {.nseq = B, .max_tokens = before + RUNS_ROOM, .document = -1};
    for (int i = 0; i < before; i++) prompt[i] = (int)(rng_uniform(3, (uint64_t)i) * V);
    d.logits = TENSOR(xcalloc((size_t)B * (size_t)V, sizeof(real)), REAL, B, V);
    bool ok = session_open(&d.s, m, o, e);
    if (ok) {
        double start = now_seconds();
        for (int i = 0; i < B; i++) d.feed[i] = (Feed){i, before, prompt};
        decode_once(&d);
        double prefill = now_seconds() - start;
        for (int i = 0; i < B; i++) d.feed[i] = (Feed){i, 1, &d.tok[i]};
        Timing t = bench_time(decode_once, &d, b->seconds);
        size_t bytes = cost_model(m, 1).matmul * sizeof(real);
        for (int i = 0; i < B; i++)
            bytes += session_bytes(&d.s, i); /* at the end: a little more than the median step's */
        double read = 0;
        ok = d.ok && bench_read(b->dev, bytes, b->seconds, &read, e);
        if (ok)
            json_array_append_new(list, json_pack("{s:i, s:i, s:f, s:f, s:i, s:f, s:I, s:f, s:f}", "batch", B, "prompt",
                                                  before, "prefill_tok_s", B * before / prefill, "step_s", t.median,
                                                  "runs", t.runs, "tok_s", B / t.median, "bytes_read",
                                                  (json_int_t)bytes, "read_gb_per_s", read / 1e9,
                                                  "percent_of_bandwidth", 100 * (double)bytes / read / t.median));
        session_close(&d.s);
    }
    free(d.logits.p);
    free(prompt);
    return ok;
}

static bool bench_decode(Bench *b, json_t *out, Err *e) {
    Model m;
    if (!model_open(&m, b->dev, &b->cfg->model, (ModelOpts){0}, e)) return false;
    model_init(&m, 1);
    json_t *list = json_array();
    bool ok = true;
    for (int B = 1; ok && B <= 64; B *= 8) ok = decode_at(b, &m, B, list, e);
    json_object_set_new(out, "decode", list);
    model_close(&m);
    return ok;
}

static void report_text(json_t *j, int threads) {
    json_t *x;
    size_t i;
#define NUMBER(obj, name) json_number_value(json_object_get(obj, name))
#define WHOLE(obj, name)  (int)json_integer_value(json_object_get(obj, name))
    printf("%s, %d threads\n", json_string_value(json_object_get(j, "isa")), threads);
    json_array_foreach(json_object_get(j, "gemm"), i, x)
        printf("gemm    %5d x %5d x %5d  %9.1f GFLOP/s\n", WHOLE(x, "n"), WHOLE(x, "o"), WHOLE(x, "i"),
               NUMBER(x, "gflops"));
    if ((x = json_object_get(j, "read"))) printf("read    %.1f GB/s\n", NUMBER(x, "gb_per_s"));
    if ((x = json_object_get(j, "train")))
        printf("train   %.0f tokens/s, %d rows a step, %.1f%% of the GEMM peak of %.1f GFLOP/s\n", NUMBER(x, "tok_s"),
               WHOLE(x, "rows"), NUMBER(x, "percent_of_peak"), NUMBER(j, "gemm_peak_gflops"));
    json_array_foreach(json_object_get(j, "decode"), i, x) printf(
        "decode  %.1f tokens/s, batch %d, %.1f%% of a read of the same bytes at %.1f GB/s; prefill %.0f tokens/s\n",
        NUMBER(x, "tok_s"), WHOLE(x, "batch"), NUMBER(x, "percent_of_bandwidth"), NUMBER(x, "read_gb_per_s"),
        NUMBER(x, "prefill_tok_s"));
}

static bool bench_run(const Args *a, const Cli *cli, Err *e) {
    Config cfg;
    Bench b = {.cfg = &cfg, .seconds = a->seconds};
    bool ok = a->config ? config_read(&cfg, a->config, 0, NULL, e)
                        : config_parse(&cfg, standard, sizeof standard - 1, "standard", 0, NULL, e);
    if (!ok) return false;
    if (!cfg.model.vocab) cfg.model.vocab = tokenizer_byte().vocab;
    if (!engine_device(&b.dev, cli, e)) {
        config_free(&cfg);
        return false;
    }
    int threads = device_threads(b.dev);
    json_t *out = json_pack("{s:s, s:i, s:s}", "isa", device_isa(b.dev), "threads", threads, "dtype", dtype_name(REAL));
    /* training is measured against the products' peak, so that belongs to it */
    if (a->what & (BENCH_OPS | BENCH_TRAIN)) ok = bench_ops(&b, out, e);
    if (ok && a->what & BENCH_TRAIN) ok = bench_train(&b, out, e);
    if (ok && a->what & BENCH_DECODE) ok = bench_decode(&b, out, e);
    device_close(b.dev);
    config_free(&cfg);
    if (ok && cli->json) return engine_print(out, e);
    if (ok) report_text(out, threads);
    json_decref(out);
    return ok;
}

int cmd_bench(int argc, char **argv) {
    static const struct argp_option options[] = {{"seconds", 's', "X", 0, "Time of one measurement (default 1)", 0},
                                                 {0}};
    static const CliSpec spec = {
        .args = "[ops|train|decode] [CONFIG.yaml]",
        .doc = "Medians of repeated runs: matrix products and memory reads (ops), training steps (train), decoding "
               "(decode), or all three; of the model that CONFIG describes, with random weights.",
        .options = options,
        .take = take,
        .max_args = 2};
    static const char *const names[] = {"ops", "train", "decode"};
    Args a = {.seconds = 1};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    engine_signals();
    for (int i = 0; i < a.nword; i++) {
        int part = 0;
        for (int k = 0; k < 3; k++)
            if (!strcmp(a.word[i], names[k])) part = 1 << k;
        if (part && !a.what && i == 0)
            a.what = part;
        else if (!part && !a.config)
            a.config = a.word[i];
        else {
            err_input(&e, "bench: expected [ops|train|decode] [CONFIG.yaml], got '%.100s'", a.word[i]);
            return cli_fail(&e);
        }
    }
    if (!a.what) a.what = BENCH_ALL;
    return bench_run(&a, &cli, &e) ? 0 : cli_fail(&e);
}
