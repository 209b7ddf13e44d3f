/* kvsmith bench: the machine's limits, and how near a training step and decoding come to them, all in one run.
 *
 * Peak: the best median of square-ish matrix products through Ops.linear. Bandwidth: a read of as many bytes as a
 * decoding step reads. Percentages are of these, never of a data sheet. On a device that computes in bf16 everything
 * that layers keep in bf16 is bf16 here, too: products, ops and recurrences pack nothing while they are timed. */
#include <errno.h>
#include "bench_bus.h"
#include "bench_train.h"
#include "bench_decode.h"
#include "bench_ops.h"
#include "bench_recur.h"
#include "infer/engine.h"
#include "model/config/data_spec.h"
#include "ops/gpus.h"
#include "ops/host.h"
#include "ops/tuning.h"

#define NUMBER(obj, name) json_number_value(json_object_get(obj, name))
#define WHOLE(obj, name)  (int)json_integer_value(json_object_get(obj, name))

int cmd_bench(int argc, char **argv), cmd_bench_comm(int argc, char **argv);

enum {
    BENCH_OPS = 1,
    BENCH_TRAIN = 2,
    BENCH_DECODE = 4,
    BENCH_PREFILL = 8,
    BENCH_RECUR = 16,
    BENCH_TUNE = 32,
    BENCH_LIMITS = 64,
    BENCH_ALL = 15
};
enum {
    OPT_BATCH = 0x100,
    OPT_PROMPT,
    OPT_CHUNK,
    OPT_ROWS,
    OPT_ATTENTION,
    OPT_FILL,
    OPT_GRAPH,
    OPT_DRAW,
    OPT_LOGITS,
    OPT_RULE,
    OPT_SHAPE,
    OPT_BUS,
    BATCHES_MAX = 8,
    SETTINGS_MAX = 32
};
typedef enum { PASSES_BY_GRAPH, PASSES_APART, PASSES_BOTH } PassesBy;
typedef struct {
    double seconds, bus; /* bus: GB/s, 0: not given */
    int what;
    const char *config;
    int64_t prompt, chunk, rows, logits; /* 0: not given */
    int nbatch, batch[BATCHES_MAX];
    AttentionBy attention;
    bool fill;
    PassesBy passes;
    DrawBy draw;
    int nrule;
    RecurRule rule[RULES];
    RecurShape shape; /* B 0: not given */
    int nset;
    char *set[SETTINGS_MAX];
} Args;

/* Comma-separated: calls `one` with each word. */
static bool cmd_bench_list_of(void *ctx, const char *arg, bool (*one)(Args *, const char *word, Err *), Err *e) {
    char *copy = xformat("%s", arg), *rest = copy;
    bool ok = true;
    for (char *word; ok && (word = strsep(&rest, ","));) ok = one(ctx, word, e);
    free(copy);
    return ok;
}
static bool take_batch(Args *a, const char *word, Err *e) {
    int64_t n;
    if (a->nbatch == BATCHES_MAX) return err_input(e, "--batch: expected at most %d values", BATCHES_MAX);
    if (!cli_int(word, "--batch", 1, 4096, &n, e)) return false;
    a->batch[a->nbatch++] = (int)n;
    return true;
}
static bool take_rule(Args *a, const char *word, Err *e) {
    if (a->nrule == RULES || !recur_rule_read(word, &a->rule[a->nrule]))
        return err_input(e,
                         "--rule: expected kda, gdn, deltanet, gla, retention, linear, mamba2, gdn2 or "
                         "comba, got '%.60s'",
                         word);
    a->nrule++;
    return true;
}
/* `arg` is one of n names; its number. */
static bool take_name(const char *option, const char *arg, int n, const char *const names[], int *out, Err *e) {
    for (*out = 0; *out < n; ++*out)
        if (!strcmp(arg, names[*out])) return true;
    return err_input(e, "%s: expected %s, %s or %s, got '%.60s'", option, names[0], names[1], names[2], arg);
}

static bool cmd_bench_take(void *ctx, int key, const char *arg, Err *e) {
    static const char *const whose[] = {"own", "cudnn", "cudnn_unordered"}, *const graphs[] = {"auto", "off", "both"},
                             *const draws[] = {"greedy", "top_k", "host"};
    Args *a = ctx;
    int at;
    switch (key) {
    case OPT_BATCH: return cmd_bench_list_of(a, arg, take_batch, e);
    case OPT_RULE: return cmd_bench_list_of(a, arg, take_rule, e);
    case OPT_PROMPT: return cli_int(arg, "--prompt", 1, 1 << 20, &a->prompt, e);
    case OPT_CHUNK: return cli_int(arg, "--chunk", 1, 1 << 16, &a->chunk, e);
    case OPT_ROWS: return cli_int(arg, "--rows", 8, 1 << 20, &a->rows, e);
    case OPT_LOGITS: return cli_int(arg, "--logits", 1 << 10, 1LL << 34, &a->logits, e);
    case OPT_SHAPE:
        return recur_shape_read(arg, &a->shape) ||
               err_input(e, "--shape: expected sequences x rows x heads x dim as in 1x8192x96x128, got '%.60s'", arg);
    case OPT_FILL: return a->fill = true;
    case OPT_GRAPH:
        if (!take_name("--graph", arg, 3, graphs, &at, e)) return false;
        a->passes = (PassesBy)at;
        return true;
    case OPT_DRAW:
        if (!take_name("--draw", arg, 3, draws, &at, e)) return false;
        a->draw = (DrawBy)at;
        return true;
    case OPT_ATTENTION:
        if (!take_name("--attention", arg, 3, whose, &at, e)) return false;
        a->attention = at == 0 ? ATTENTION_OWN : at == 1 ? ATTENTION_CUDNN : ATTENTION_CUDNN_UNORDERED;
        return true;
    case OPT_BUS: return cli_real(arg, "--bus", 1e-3, 1e5, &a->bus, e);
    case 's': return cli_real(arg, "--seconds", 0.01, 60, &a->seconds, e);
    }
    CHECK(key == CLI_ARG, "option %d", key);
    if (strchr(arg, '=')) {
        if (a->nset == SETTINGS_MAX) return err_input(e, "more than %d key=value words", SETTINGS_MAX);
        a->set[a->nset++] = (char *)(uintptr_t)arg;
        return true;
    }
    static const struct {
        const char *word;
        int what;
    } names[] = {{"ops", BENCH_OPS},     {"train", BENCH_TRAIN}, {"decode", BENCH_DECODE}, {"prefill", BENCH_PREFILL},
                 {"recur", BENCH_RECUR}, {"tune", BENCH_TUNE},   {"limits", BENCH_LIMITS}};
    int what = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(arg, names[i].word)) what = names[i].what;
    if (what && !a->what && !a->config) {
        a->what = what;
        return true;
    }
    if (what || a->config)
        return err_input(
            e,
            "bench: expected [ops|train|decode|prefill|recur|tune|limits] [CONFIG.yaml] [KEY=VALUE...], got '%.100s'",
            arg);
    a->config = arg;
    return true;
}

/* The default configuration: about 10 million parameters, a third of MHA's cache. */
static const char standard[] =
    "model: {d_model: 384, layers: 6, kinds: {full: {mixer: gqa, heads: 6, kv_heads: 2, head_dim: 64}},\n"
    "        ffn: {kind: swiglu, hidden: 1024}}\n"
    "data: {seq_len: 256}\n"
    "train: {micro_batch: 8}\n";

typedef struct {
    Device *dev;
    Config *cfg;
    double seconds, peak; /* peak: GFLOP/s */
    const Args *args;
    ModelOpts how; /* of models that are not trained */
} Bench;

/* --rows makes all sides smaller: what an emulated device can be asked for. */
static bool bench_gemms(Bench *b, json_t *out, Err *e) {
    static const int cpu[][3] = {
        {1024, 1024, 1024}, {2048, 1024, 1024}, {1024, 2048, 2048}, {2048, 2048, 1024}, {2048, 2048, 2048}};
    static const int cuda[][3] = {
        {2048, 2048, 1024}, {2048, 4096, 1024}, {4096, 4096, 1024}, {4096, 4096, 4096}, {8192, 8192, 8192}};
    const bool apart = device_apart(b->dev);
    const int(*shape)[3] = apart ? cuda : cpu, most = b->args->rows ? (int)b->args->rows : 1 << 20;
    json_t *list = json_array();
    /* on a device the largest alone makes the peak */
    for (size_t i = apart && !(b->args->what & BENCH_OPS) ? 4 : 0; i < 5; i++) {
        Gemm g;
        if (!bench_gemm(b->dev, imin(most, shape[i][0]), imin(most, shape[i][1]), imin(most, shape[i][2]), b->seconds,
                        &g, e)) {
            json_decref(list);
            return false;
        }
        b->peak = fmax(b->peak, g.gflops);
        json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:f, s:i}", "n", g.N, "o", g.O, "i", g.I, "gflops",
                                              g.gflops, "runs", g.time.runs));
    }
    json_object_set_new(out, "gemm", list);
    json_object_set_new(out, "gemm_peak_gflops", json_real(b->peak));
    return true;
}
/* The limits of this device for any program: copies inside its memory, the best product, kernels that do nothing. */
static bool bench_limits(Bench *b, json_t *out, Err *e) {
    const size_t bytes = b->args->rows ? (size_t)b->args->rows << 15 : (size_t)1 << (device_apart(b->dev) ? 31 : 29);
    double read;
    Launches l;
    if (!bench_gemms(b, out, e) || !bench_read(b->dev, bytes, b->seconds, &read, e)) return false;
    json_object_set_new(out, "read", json_pack("{s:I, s:f}", "bytes", (json_int_t)bytes, "gb_per_s", read / 1e9));
    if (!device_apart(b->dev)) return true;
    if (!bench_launches(b->dev, 0.2 * b->seconds, &l, e)) return false;
    json_object_set_new(out, "launches",
                        json_pack("{s:i, s:f, s:f, s:f}", "kernels", l.nodes, "graph_s", l.graph.median, "apart_s",
                                  l.apart.median, "graph_host_s", l.host));
    return true;
}
static json_t *op_times(const OpTime *t, int n, double peak) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *j = json_pack("{s:s, s:s, s:f, s:f, s:i, s:f}", "op", t[i].name, "dtype", dtype_name(t[i].dtype),
                              "bytes", t[i].bytes, "seconds", t[i].time.median, "runs", t[i].time.runs,
                              "percent_of_bandwidth", t[i].percent);
        if (t[i].flops > 0) {
            json_object_set_new(j, "flops", json_real(t[i].flops));
            json_object_set_new(j, "percent_of_peak", json_real(1e-7 * t[i].flops / t[i].time.median / peak));
        }
        json_array_append_new(list, j);
    }
    return list;
}
static bool bench_ops(Bench *b, json_t *out, Err *e) {
    double read;
    const int rows = b->args->rows ? (int)b->args->rows : BENCH_ROWS;
    size_t bytes = b->args->rows ? imin(BENCH_ROWS, rows) * ((size_t)1 << 15) : (size_t)1 << 29;
    OpTime t[OP_TIMES_MAX];
    int n;
    if (!bench_read(b->dev, bytes, b->seconds, &read, e)) return false;
    json_object_set_new(out, "read", json_pack("{s:I, s:f}", "bytes", (json_int_t)bytes, "gb_per_s", read / 1e9));
    if (!bench_elementwise(b->dev, rows, 0.2 * b->seconds, read, t, &n, e)) return false;
    json_object_set_new(out, "elementwise", op_times(t, n, b->peak));
    /* the CPU's follow from its training steps, and need long */
    if (device_apart(b->dev)) {
        if (!bench_heavy(b->dev, rows, 0.2 * b->seconds, read, t, &n, e)) return false;
        json_object_set_new(out, "heavy", op_times(t, n, b->peak));
    }
    return true;
}

static json_t *cmd_bench_shares(const Share *op, int n, double peak) {
    json_t *list = json_array();
    double all = 0;
    for (int i = 0; i < n; i++) all += op[i].seconds;
    for (int i = 0; i < n; i++) {
        json_t *j = json_pack("{s:s, s:I, s:f, s:f}", "op", op[i].op, "calls", (json_int_t)op[i].calls, "seconds",
                              op[i].seconds, "percent", 100 * op[i].seconds / all);
        if (op[i].flops > 0 && peak > 0) /* `decode` alone measures none */
            json_object_set_new(j, "percent_of_peak", json_real(1e-7 * op[i].flops / op[i].seconds / peak));
        json_array_append_new(list, j);
    }
    return list;
}
static bool bench_train(Bench *b, json_t *out, Err *e) {
    int B = b->cfg->train.micro_batch, T = b->cfg->data.seq_len;
    const bool teaches = !device_apart(b->dev); /* as in training */
    Timing t, taught;
    Cost c;
    if (!bench_step(b->dev, b->cfg, b->seconds, &t, &c, e) ||
        (teaches && !bench_distill(b->dev, b->cfg, b->seconds, &taught, e)))
        return false;
    Share op[PROFILE_MAX];
    int n;
    if (!bench_profile(b->dev, b->cfg, b->seconds, op, &n, e)) return false;
    json_object_set_new(out, "shares", cmd_bench_shares(op, n, b->peak));
    double profile = 0;
    for (int i = 0; i < n; i++) profile += op[i].seconds;
    double tok_s = B * T / t.median;
    json_object_set_new(out, "train",
                        json_pack("{s:I, s:i, s:i, s:f, s:f, s:i, s:f, s:f, s:s, s:f}", "params", (json_int_t)c.params,
                                  "rows", B * T, "seq_len", T, "step_s", t.median, "profile_s", profile, "runs", t.runs,
                                  "tok_s", tok_s, "flops_per_token", c.itemised, "formula",
                                  "6 N_matmul + 3 x attention, causal, windows exact", "percent_of_peak",
                                  100 * tok_s * c.itemised / (b->peak * 1e9)));
    if (teaches)
        json_object_set_new(out, "distill",
                            json_pack("{s:s, s:f, s:i, s:f, s:f}", "teacher", "of the same shape, lm and kl", "step_s",
                                      taught.median, "runs", taught.runs, "tok_s", B * T / taught.median,
                                      "of_plain_step", taught.median / t.median));
    return true;
}

/* ---- decoding: one token for each of B sequences with half a context behind them
 * -------------------------------------- */
typedef struct {
    Decode d;
    bool ok;
    Err *e;
} Once;

static bool extend_profile(Bench *b, Decode *d, json_t *of, Err *e) {
    Share op[PROFILE_MAX];
    int n;
    if (!decode_profile(d, 0.5 * b->seconds, op, &n, e)) return false;
    json_object_set_new(of, "shares", cmd_bench_shares(op, n, b->peak));
    return true;
}

static void decode_once(void *ctx) {
    Once *o = ctx;
    o->ok = o->ok && decode_step(&o->d, o->e);
}

/* Room for the measured steps: fewer for large batches, whose cache would need gigabytes. */
static int measured_steps(int B) { return imax(64, imin(BENCH_RUNS_MAX, 4096 / B)); }

/* What a step moved, in the mean of so many, with the settings that matter. */
static json_t *disk_json(const Bench *b, KvDisk before, KvDisk after, int steps) {
    after.read -= before.read, after.late -= before.late;
    after.written -= before.written, after.waited -= before.waited;
    json_t *j = engine_disk(&after, imax(1, steps));
    json_object_set_new(j, "prefetch", json_boolean(!b->how.tier->alone));
    json_object_set_new(j, "steps", json_integer(steps));
    return j;
}
/* What such a step would wait for its rows over a bus of --bus GB/s: see bench_bus.h. The layers are taken to be
 * alike, and to compute what a step needs without its waits. */
static json_t *bus_json(const Bench *b, const json_t *disk, double step) {
    const bool ahead = !b->how.tier->alone;
    const double rate = 1e9 * b->args->bus, bytes = NUMBER(disk, "read_bytes"),
                 late = ahead ? NUMBER(disk, "late_bytes") : 0, compute = fmax(0, step - NUMBER(disk, "waited_s")),
                 wait = bus_wait_alike(rate, ahead, WHOLE(disk, "layers"), bytes - late, compute) + late / rate;
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "bus_gb_per_s", b->args->bus, "compute_s", compute, "copies_s",
                     bytes / rate, "waited_s", wait, "step_s", compute + wait);
}
/* Times steps from the sequences' current state; prefill 0: their cache was filled without. NULL: see `e`. */
static json_t *decode_steps(Bench *b, Model *m, Once *o, double prefill, Err *e) {
    static const char *const draws[] = {"greedy", "top_k", "host"};
    const DecodeOpts *how = &o->d.o;
    long before = decode_replayed(&o->d);
    const KvDisk disk = session_disk(&o->d.s);
    const int from = session_length(&o->d.s, 0);
    double read;
    Timing t = bench_some(b->dev, decode_once, o, b->seconds, measured_steps(how->B));
    const long replayed = decode_replayed(&o->d) - before; /* none where a policy selects rows: they come op by op */
    const bool selects = o->d.s.cache.policy.read;
    const int now = session_length(&o->d.s, 0);
    size_t bytes = (selects ? kv_read(&o->d.s.cache) : 0) +
                   cost_model(m, 1).matmul * (m->opts.bf16_weights ? sizeof(uint16_t) : sizeof(real));
    for (int i = 0; i < how->B; i++)
        bytes += selects ? 0 : session_bytes(&o->d.s, i); /* at the end: a little more than the median step's */
    if (!o->ok || !bench_read(b->dev, bytes, b->seconds, &read, e)) return NULL;
    json_t *x = json_pack("{s:i, s:i, s:b, s:b, s:I, s:s, s:f, s:i, s:f, s:I, s:f, s:f}", "batch", how->B, "prompt",
                          how->prompt, "filled", how->fill, "graph", replayed > 0, "replayed", (json_int_t)replayed,
                          "draw", o->d.draws ? draws[how->draw] : "host", "step_s", t.median, "runs", t.runs, "tok_s",
                          how->B / t.median, "bytes_read", (json_int_t)bytes, "read_gb_per_s", read / 1e9,
                          "percent_of_bandwidth", 100 * (double)bytes / read / t.median);
    if (prefill > 0) json_object_set_new(x, "prefill_tok_s", json_real(how->B * how->prompt / prefill));
    if (!disk.of) return x;
    json_t *moved = disk_json(b, disk, session_disk(&o->d.s), now - from);
    if (b->args->bus > 0 && disk.slots) json_object_set_new(x, "simulated", bus_json(b, moved, t.median));
    json_object_set_new(x, engine_disk_name(&disk), moved);
    return x;
}
/* One cache for all: by graphs, launched kernel by kernel, and once op by op. */
static bool decode_at(Bench *b, Model *m, int B, json_t *list, Err *e) {
    const bool both = b->args->passes == PASSES_BOTH && device_apart(b->dev);
    const DecodeOpts how = {.B = B,
                            .prompt = b->args->prompt ? (int)b->args->prompt : imax(1, b->cfg->data.seq_len / 2),
                            .room = (both + 2) * (measured_steps(B) + 1),
                            .chunk = (int)b->args->chunk,
                            .fill = b->args->fill,
                            .draw = b->args->draw};
    Once o = {.ok = true, .e = e};
    double prefill = 0;
    json_t *x = NULL;
    if (!decode_open(&o.d, m, how, e)) return false;
    bool ok = how.fill ? decode_fill(&o.d, e) : decode_prefill(&o.d, &prefill, e);
    for (int k = 0; ok && k < 1 + both; k++) {
        decode_plain(&o.d, k || b->args->passes == PASSES_APART);
        if ((ok = (x = decode_steps(b, m, &o, prefill, e)) != NULL)) json_array_append_new(list, x);
    }
    ok = ok && extend_profile(b, &o.d, x, e);
    decode_close(&o.d);
    return ok;
}

static bool bench_decode(Bench *b, json_t *out, Err *e) {
    Model m;
    if (!model_open(&m, b->dev, &b->cfg->model, b->how, e)) return false;
    model_init(&m, 1);
    json_t *list = json_array();
    bool ok = true;
    static const int batch[] = {1, 8, 16, 64};
    const int n = b->args->nbatch ? b->args->nbatch : 4, *of = b->args->nbatch ? b->args->batch : batch;
    for (int i = 0; ok && i < n; i++) ok = decode_at(b, &m, of[i], list, e);
    json_object_set_new(out, "decode", list);
    model_close(&m);
    return ok;
}

/* ---- prefill: prompts of B sequences through a fresh cache --------------------------------------------------------
 */
static void prefill_once(void *ctx) {
    Once *o = ctx;
    double s;
    o->ok = o->ok && decode_prefill(&o->d, &s, o->e);
}
static bool prefill_at(Bench *b, Model *m, int B, json_t *list, Err *e) {
    int n = b->args->prompt ? (int)b->args->prompt : b->cfg->data.seq_len;
    Once o = {.ok = true, .e = e};
    const DecodeOpts how = {.B = B, .prompt = n, .chunk = (int)b->args->chunk, .draw = b->args->draw};
    if (!decode_open(&o.d, m, how, e)) return false;
    Timing t = bench_whole(b->dev, prefill_once, &o, b->seconds);
    double flops = cost_prefill(m, n), tok_s = B * n / t.median;
    int chunk = o.d.s.opts.chunk;
    if (!o.ok) {
        decode_close(&o.d);
        return false;
    }
    json_t *x = json_pack("{s:i, s:i, s:i, s:f, s:i, s:f, s:f, s:s, s:f}", "batch", B, "prompt", n, "chunk", chunk,
                          "pass_s", t.median, "runs", t.runs, "tok_s", tok_s, "flops_per_token", flops, "formula",
                          "2 N_matmul + attention, causal, of the layers below the last", "percent_of_peak",
                          100 * tok_s * flops / (b->peak * 1e9));
    json_array_append_new(list, x);
    bool ok = extend_profile(b, &o.d, x, e);
    decode_close(&o.d);
    return ok;
}
static bool bench_prefill(Bench *b, json_t *out, Err *e) {
    Model m;
    if (!model_open(&m, b->dev, &b->cfg->model, b->how, e)) return false;
    model_init(&m, 1);
    json_t *list = json_array();
    static const int batch[] = {1, 8};
    const int n = b->args->nbatch ? b->args->nbatch : 2, *of = b->args->nbatch ? b->args->batch : batch;
    bool ok = true;
    for (int i = 0; ok && i < n; i++) ok = prefill_at(b, &m, of[i], list, e);
    json_object_set_new(out, "prefill", list);
    model_close(&m);
    return ok;
}
static bool recur_at(Bench *b, RecurRule rule, RecurShape n, json_t *list, Err *e) {
    Timing forward, both;
    if (!bench_recur(b->dev, rule, n, b->seconds, &forward, &both, e)) return false;
    json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:i}", "rule", recur_rules[rule],
                                          "batch", n.B, "rows", n.T, "heads", n.H, "dim", n.D, "forward_s",
                                          forward.median, "forward_backward_s", both.median, "runs", both.runs));
    return true;
}
/* The rules and the shape that were asked for; else all rules, and the delta rule with a decay per channel at more
 * shapes. */
static bool bench_recurrences(Bench *b, json_t *out, Err *e) {
    static const RecurShape shape[] = {{4, 1024, 4, 64}, {1, 4096, 4, 64}, {1, 4096, 8, 128}};
    const Args *a = b->args;
    const int shapes = a->shape.B ? 1 : 3;
    json_t *list = json_array();
    bool ok = true;
    for (int s = 0; ok && s < shapes; s++)
        for (int i = 0; ok && i < (a->nrule ? a->nrule : s ? RULE_KDA + 1 : RULES); i++)
            ok = recur_at(b, a->nrule ? a->rule[i] : (RecurRule)i, a->shape.B ? a->shape : shape[s], list, e);
    json_object_set_new(out, "recur", list);
    return ok;
}

/* Every product of a training step, a prompt and decoding, with the algorithms that the device's library has for it. */
static bool bench_tune(Bench *b, const char *path, json_t *out, Err *e) {
    Timing t;
    Cost c;
    Tuning found;
    json_t *list = json_array(), *none = json_object();
    const double little = 1e-3;
    double seconds = b->seconds;
    bool ok = bench_step(b->dev, b->cfg, little, &t, &c, e);
    b->seconds = little;
    ok = ok && bench_decode(b, none, e) && device_tune(b->dev, seconds, path, &found, e);
    b->seconds = seconds;
    json_decref(none);
    for (int i = 0; ok && i < found.n; i++) {
        const TunedProduct *p = &found.product[i];
        json_array_append_new(list,
                              json_pack("{s:[i,i,i], s:i, s:[i,i,i], s:f, s:f, s:f}", "product", p->shape[0],
                                        p->shape[1], p->shape[2], "flags", (int)p->flags, "align", (int)p->align[0],
                                        (int)p->align[1], (int)p->align[2], "first_s", p->first, "best_s", p->best,
                                        "gflops", 2e-9 * p->shape[0] * (double)p->shape[1] * p->shape[2] / p->best));
    }
    if (ok) {
        json_object_set_new(out, "file", json_string(path));
        json_object_set_new(out, "library", json_integer(found.library));
        tuning_free(&found);
    }
    json_object_set_new(out, "tuned", list);
    return ok;
}

/* Prints shares of at least this percentage. */
static void report_profile(const json_t *of, double least) {
    json_t *x;
    size_t i;
    json_array_foreach(json_object_get(of, "shares"), i, x) {
        if (NUMBER(x, "percent") < least) break;
        printf("share   %-22s %5.1f%%  %9.3f ms in %d calls", json_string_value(json_object_get(x, "op")),
               NUMBER(x, "percent"), 1e3 * NUMBER(x, "seconds"), WHOLE(x, "calls"));
        if (json_object_get(x, "percent_of_peak")) printf(", %.1f%% of the GEMM peak", NUMBER(x, "percent_of_peak"));
        putchar('\n');
    }
}
static void report_disk(const json_t *decode, const char *name) {
    const json_t *x = json_object_get(decode, name);
    if (x)
        printf("%s    rows of %d of %d layers; a step reads %.0f bytes, %.0f of them not ahead, writes %.0f and waits "
               "%.3f ms for them\n",
               name, WHOLE(x, "layers"), WHOLE(x, "of"), NUMBER(x, "read_bytes"), NUMBER(x, "late_bytes"),
               NUMBER(x, "written_bytes"), 1e3 * NUMBER(x, "waited_s"));
}
static void report_bus(const json_t *x) {
    if (x)
        printf("bus     simulated, at %.4g GB/s: a step computes for %.3f ms, copies need %.3f ms, it would wait %.3f "
               "ms\n",
               NUMBER(x, "bus_gb_per_s"), 1e3 * NUMBER(x, "compute_s"), 1e3 * NUMBER(x, "copies_s"),
               1e3 * NUMBER(x, "waited_s"));
}
static void cmd_bench_report_text(json_t *j, int threads) {
    json_t *x;
    size_t i;
    printf("%s, %d threads\n", json_string_value(json_object_get(j, "isa")), threads);
    json_array_foreach(json_object_get(j, "gemm"), i, x)
        printf("gemm    %5d x %5d x %5d  %9.1f GFLOP/s\n", WHOLE(x, "n"), WHOLE(x, "o"), WHOLE(x, "i"),
               NUMBER(x, "gflops"));
    if ((x = json_object_get(j, "read"))) printf("read    %.1f GB/s\n", NUMBER(x, "gb_per_s"));
    if ((x = json_object_get(j, "launches")))
        printf("graph   %d empty kernels: %.2f us each replayed, %.2f us each launched one by one\n",
               WHOLE(x, "kernels"), 1e6 * NUMBER(x, "graph_s") / WHOLE(x, "kernels"),
               1e6 * NUMBER(x, "apart_s") / WHOLE(x, "kernels"));
    json_array_foreach(json_object_get(j, "elementwise"), i, x)
        printf("op      %-22s %8.3f ms  %6.1f%% of a read\n", json_string_value(json_object_get(x, "op")),
               1e3 * NUMBER(x, "seconds"), NUMBER(x, "percent_of_bandwidth"));
    json_array_foreach(json_object_get(j, "heavy"), i, x)
        printf("op      %-28s %8.3f ms  %6.1f%% of a read  %6.1f%% of the GEMM peak\n",
               json_string_value(json_object_get(x, "op")), 1e3 * NUMBER(x, "seconds"),
               NUMBER(x, "percent_of_bandwidth"), NUMBER(x, "percent_of_peak"));
    if ((x = json_object_get(j, "train")))
        printf("train   %.0f tokens/s, %d rows a step, %.1f%% of the GEMM peak of %.1f GFLOP/s\n", NUMBER(x, "tok_s"),
               WHOLE(x, "rows"), NUMBER(x, "percent_of_peak"), NUMBER(j, "gemm_peak_gflops"));
    report_profile(j, 0);
    if ((x = json_object_get(j, "distill")))
        printf("distill %.0f tokens/s from a teacher of the same shape, %.2f of a plain step's time\n",
               NUMBER(x, "tok_s"), NUMBER(x, "of_plain_step"));
    const double least = 1;
    json_array_foreach(json_object_get(j, "decode"), i, x) {
        printf("decode  %.1f tokens/s, batch %d, %.1f%% of a read of the same bytes at %.1f GB/s; %s",
               NUMBER(x, "tok_s"), WHOLE(x, "batch"), NUMBER(x, "percent_of_bandwidth"), NUMBER(x, "read_gb_per_s"),
               json_is_true(json_object_get(x, "graph")) ? "by graph; " : "");
        if (json_is_true(json_object_get(x, "filled")))
            printf("%d drawn rows before it\n", WHOLE(x, "prompt"));
        else
            printf("prefill %.0f tokens/s\n", NUMBER(x, "prefill_tok_s"));
        report_disk(x, "disk"), report_disk(x, "host");
        report_bus(json_object_get(x, "simulated"));
        report_profile(x, least);
    }
    json_array_foreach(json_object_get(j, "prefill"), i, x) {
        printf("prefill %.0f tokens/s, batch %d of %d tokens, %.1f%% of the GEMM peak of %.1f GFLOP/s\n",
               NUMBER(x, "tok_s"), WHOLE(x, "batch"), WHOLE(x, "prompt"), NUMBER(x, "percent_of_peak"),
               NUMBER(j, "gemm_peak_gflops"));
        report_profile(x, least);
    }
    json_array_foreach(json_object_get(j, "tuned"), i, x) {
        json_t *s = json_object_get(x, "product");
        printf("tuned   %6d x %6d x %6d  %10.2f us, the library's own choice %10.2f us\n",
               (int)json_integer_value(json_array_get(s, 0)), (int)json_integer_value(json_array_get(s, 1)),
               (int)json_integer_value(json_array_get(s, 2)), 1e6 * NUMBER(x, "best_s"), 1e6 * NUMBER(x, "first_s"));
    }
    json_array_foreach(json_object_get(j, "recur"), i, x)
        printf("recur   %-9s %d x %d rows, %d heads of %d: forward %.2f ms, with backward %.2f ms\n",
               json_string_value(json_object_get(x, "rule")), WHOLE(x, "batch"), WHOLE(x, "rows"), WHOLE(x, "heads"),
               WHOLE(x, "dim"), 1e3 * NUMBER(x, "forward_s"), 1e3 * NUMBER(x, "forward_backward_s"));
}

static bool bench_run(const Args *a, const Cli *cli, Err *e) {
    Config cfg;
    Bench b = {.cfg = &cfg, .seconds = a->seconds, .args = a, .how = engine_bf16(cli, (ModelOpts){0})};
    bool ok = a->config ? config_read(&cfg, a->config, a->nset, a->set, e)
                        : config_parse(&cfg, standard, sizeof standard - 1, "standard", a->nset, a->set, e);
    if (!ok) return false;
    Tokenizer tk = {0};
    if (!cfg.model.vocab && data_tokenizer(&cfg.data, &tk, e)) cfg.model.vocab = tk.vocab;
    tokenizer_close(&tk);
    Cli own = *cli;
    if (a->what == BENCH_TUNE) own.tuning = NULL; /* it is written */
    if (a->what == BENCH_TUNE && !cli->tuning) {
        config_free(&cfg);
        return err_input(e, "bench tune: expected --tuning FILE, the file to write");
    }
    ok = cfg.model.vocab && engine_device(&b.dev, &own, e);
    if (ok && !device_attention(b.dev, a->attention, e)) {
        ok = false;
        device_close(b.dev);
    }
    if (ok && a->what == BENCH_TUNE && !device_apart(b.dev)) {
        ok = err_input(e, "bench tune: works on a GPU only; use --device cuda");
        device_close(b.dev);
    }
    if (!ok) {
        config_free(&cfg);
        return false;
    }
    if (a->logits) device_logits(b.dev, a->logits);
    int threads = device_threads(b.dev);
    json_t *out = json_pack("{s:s, s:s, s:i, s:s}", "device", device_ops(b.dev)->name, "isa", device_isa(b.dev),
                            "threads", threads, "dtype", cli->bf16 ? "BF16" : dtype_name(REAL));
    /* training is measured against the products' peak, so that belongs to it */
    if (a->what & (BENCH_OPS | BENCH_TRAIN | BENCH_PREFILL)) ok = bench_gemms(&b, out, e);
    if (ok && a->what & BENCH_OPS) ok = bench_ops(&b, out, e);
    if (ok && a->what & BENCH_TRAIN) ok = bench_train(&b, out, e);
    if (ok && a->what & BENCH_DECODE) ok = bench_decode(&b, out, e);
    if (ok && a->what & BENCH_PREFILL) ok = bench_prefill(&b, out, e);
    if (ok && a->what & BENCH_TUNE) ok = bench_tune(&b, cli->tuning, out, e);
    if (ok && a->what & BENCH_RECUR) ok = bench_recurrences(&b, out, e);
    if (ok && a->what & BENCH_LIMITS) ok = bench_limits(&b, out, e);
    device_close(b.dev);
    config_free(&cfg);
    if (ok && cli->json) return engine_print(out, e);
    if (ok) cmd_bench_report_text(out, threads);
    json_decref(out);
    return ok;
}

int cmd_bench(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "comm")) return cmd_bench_comm(argc, argv); /* has options of its own */
    static const struct argp_option options[] = {
        {"seconds", 's', "X", 0, "Time of one measurement (default 1)", 0},
        {"batch", OPT_BATCH, "N,...", 0, "decode, prefill: sequences at once (default 1,8,16,64; 1,8)", 0},
        {"prompt", OPT_PROMPT, "N", 0,
         "decode: tokens before decoding (default half of data.seq_len); prefill: tokens of a prompt (default "
         "data.seq_len)",
         0},
        {"fill", OPT_FILL, 0, 0,
         "decode: fill the cache with random rows instead of computing the prompt, which is slow", 0},
        {"graph", OPT_GRAPH, "NAME", 0,
         "decode on a GPU: steps replayed as CUDA graphs (auto), launched kernel by kernel (off), or both", 0},
        {"draw", OPT_DRAW, "NAME", 0,
         "decode on a GPU: tokens sampled on the GPU, greedy (default) or top_k (50 tokens, 0.95 of the probability); "
         "host: all logits are copied to the host",
         0},
        {"bus", OPT_BUS, "GB/S", 0,
         "decode with --cache-memory: print what a step would wait for its rows if a bus of that rate brought them; "
         "simulated, nothing is slowed down",
         0},
        {"chunk", OPT_CHUNK, "N", 0, "prefill: rows of one pass (default 512)", 0},
        {"rows", OPT_ROWS, "N", 0, "ops: rows of the arrays (default 16384), and the longest side of a product", 0},
        {"rule", OPT_RULE, "NAME,...", 0, "recur: kda, gdn, deltanet, gla, retention, linear, mamba2, gdn2, comba", 0},
        {"shape", OPT_SHAPE, "BxTxHxD", 0, "recur: sequences, rows of each, heads, width of a head", 0},
        {"logits", OPT_LOGITS, "N", 0,
         "train on a GPU: logits computed at once, about (default 67108864, which is 2^26)", 0},
        {"attention", OPT_ATTENTION, "WHOSE", 0, "train on a GPU in bf16: own, cudnn, cudnn_unordered (default own)",
         0},
        {0}};
    static const CliSpec spec = {
        .args = "[ops|train|decode|prefill|recur|tune|limits] [CONFIG.yaml] [KEY=VALUE...]",
        .doc = "Prints medians of repeated runs of the model that CONFIG describes, with random weights. ops: matrix "
               "products, memory reads and ops bound by memory; train: training steps, plain and with a teacher, and "
               "each op's share of a step; decode: decoding; prefill: prompts. Without a name: these four. recur: the "
               "recurrences of linear attention alone, in shapes of their own (--shape). tune: tries a GPU's "
               "algorithms for every matrix product of the model and writes the fastest to --tuning FILE, which the "
               "other commands then read. limits: the best matrix product, copies and, on a GPU, the cost of launches. "
               "KEY=VALUE are settings as for kvsmith train.",
        .options = options,
        .take = cmd_bench_take,
        .cache = true,
        .tier = true,
        .tuning = true,
        .settings = true,
        .max_args = -1};
    Args a = {.seconds = 1};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    engine_signals();
    if (!a.what) a.what = BENCH_ALL;
    if (a.bus > 0 && !cli.tier.memory) {
        err_input(&e, "bench: --bus is for rows that a limit keeps out of memory: give --cache-memory BYTES, too");
        return cli_fail(&e);
    }
    return bench_run(&a, &cli, &e) ? 0 : cli_fail(&e);
}
