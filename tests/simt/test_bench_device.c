/* test_bench_device.c: `bench` on the emulated device. Times say nothing here; that the right things are timed, once
 * and without help from the host, can be seen. */
#include <jansson.h>
#include "ops/host.h"
#include "ops/profile.h"
#include "tests/lib/check.h"

#define NUM(j, name) json_number_value(json_object_get(j, name))
static const char small[] =
    "model: {d_model: 64, layers: 2, kinds: {a: {mixer: gqa, heads: 4, kv_heads: 2, head_dim: 16}},\n"
    "        ffn: {kind: swiglu, hidden: 96}, vocab: 64}\ndata: {seq_len: 16}\ntrain: {micro_batch: 1}\n";
static char *config(void) {
    char *yaml = check_path("c.yaml");
    check_write(yaml, small, sizeof small - 1);
    return yaml;
}
static json_t *object(Ran r) {
    cr_assert(r.status == 0, "%d %s", r.status, r.err);
    json_t *j = json_loads(r.out, 0, NULL);
    cr_assert(j, "%.300s", r.out);
    free(r.out), free(r.err);
    return j;
}
#define BENCH(...) object(RUN("bench", __VA_ARGS__, "--device", "cuda", "--json", "-s", "0.01"))

/* Ops follow each other without a wait, and what is between them is a share of its own. */
Test(bench_device, ops_are_timed_by_the_devices_clock) {
    Device *dev;
    Err e = {0};
    cr_assert(device_open(&dev, "cuda", 1, &e), "%s", e.msg);
    Arena mem = {0}, scratch = {0};
    const Memory *home = device_memory(dev, false);
    cr_assert(arena_open_at(&mem, home, "rows", 1 << 16, true, &e) &&
              arena_open_at(&scratch, home, "scratch", 1 << 16, true, &e));
    Tensor x = arena_tensor(&mem, "x", REAL, 2, (int[]){4, 32}), y = arena_tensor(&mem, "y", REAL, 2, (int[]){4, 32});
    device_zero(dev, x.p, tensor_bytes(x)), device_zero(dev, y.p, tensor_bytes(y));
    Profile *s = profile_begin(dev);
    Run r = run_make(dev, &scratch);
    double start = now_seconds();
    for (int i = 0; i < 3; i++) r.ops->add(&r, y, x);
    r.ops->zero(&r, y);
    Share out[PROFILE_MAX];
    int n = profile_read(s, out);
    double took = now_seconds() - start, sum = 0;
    int adds = 0, zeros = 0, between = 0;
    for (int i = 0; i < n; i++) {
        adds += !strcmp(out[i].op, "add") ? (int)out[i].calls : 0;
        zeros += !strcmp(out[i].op, "zero") ? (int)out[i].calls : 0;
        between += !strcmp(out[i].op, PROFILE_BETWEEN) ? (int)out[i].calls : 0;
        cr_assert(out[i].seconds >= 0);
        sum += out[i].seconds;
    }
    cr_assert(n == 3 && adds == 3 && zeros == 1 && between == 3, "%d: %d, %d, %d", n, adds, zeros, between);
    cr_assert(sum > 0 && sum <= took, "%g s of %g", sum, took);
    profile_clear(s);
    cr_assert_eq(profile_read(s, out), 0);
    profile_end(s);
    arena_close(&scratch), arena_close(&mem);
    device_close(dev);
}
Test(bench_device, limits, .timeout = 60) {
    json_t *j = BENCH("limits", "--dtype", "bf16", "--rows", "64"), *l = json_object_get(j, "launches");
    cr_assert(NUM(j, "gemm_peak_gflops") > 0 && NUM(json_object_get(j, "read"), "gb_per_s") > 0);
    cr_assert(NUM(l, "kernels") == 100 && NUM(l, "graph_s") > 0 && NUM(l, "apart_s") > 0 && NUM(l, "graph_host_s") > 0);
    json_decref(j);
}
/* With and without graphs, tokens drawn on the device or logits brought to the host. */
Test(bench_device, decoding, .timeout = 100) {
    char *yaml = config();
    json_t *j = BENCH("decode", yaml, "--dtype", "bf16", "--fill", "--prompt", "70", "--batch", "1,2", "--graph",
                      "both"),
           *list = json_object_get(j, "decode"), *x;
    size_t i;
    cr_assert(json_array_size(list) == 4);
    json_array_foreach(list, i, x) {
        const bool graph = i % 2 == 0;
        cr_assert(json_is_true(json_object_get(x, "graph")) == graph && (NUM(x, "replayed") > 0) == graph);
        cr_assert_str_eq(json_string_value(json_object_get(x, "draw")), "greedy");
        cr_assert((json_object_get(x, "shares") != NULL) == !graph, "the profile is taken once");
    }
    json_decref(j);
    j = BENCH("decode", yaml, "--prompt", "5", "--batch", "1", "--draw", "host");
    x = json_array_get(json_object_get(j, "decode"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(x, "draw")), "host");
    cr_assert(NUM(x, "prefill_tok_s") > 0);
    json_decref(j);
    j = BENCH("decode", yaml, "--prompt", "5", "--batch", "1", "--draw", "top_k");
    x = json_array_get(json_object_get(j, "decode"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(x, "draw")), "top_k");
    json_decref(j);
    /* steps of a policy that selects rows come op by op */
    j = BENCH("decode", yaml, "--prompt", "70", "--batch", "1", "--policy", "quest:reads=0.25");
    x = json_array_get(json_object_get(j, "decode"), 0);
    cr_assert(json_is_false(json_object_get(x, "graph")) && NUM(x, "replayed") == 0);
    json_decref(j);
}
/* Arrays that layers have in bf16 are, so that no call packs them, and their bytes are counted so. */
static const json_t *row(const json_t *list, const char *op) {
    json_t *x;
    size_t i;
    json_array_foreach(list, i, x) if (!strcmp(json_string_value(json_object_get(x, "op")), op)) return x;
    cr_assert(false, "no %s", op);
    return NULL;
}
Test(bench_device, ops_in_bf16_hold_bf16, .timeout = 200) {
    enum { ARRAY = 8 * 768 }; /* values of one array */
    static const struct {
        const char *list, *op;
        double bytes; /* of each value of an array */
        bool half;
    } want[] = {{"elementwise", "swiglu", 3 * 2, true},
                {"elementwise", "swiglu_backward", 5 * 2, true}, /* gradients are written, not added to */
                {"elementwise", "rmsnorm", 2 + 4, true},         /* of the stream, which is f32 */
                {"elementwise", "adamw", 7 * 4, false},
                {"heavy", "attend", 4 * 2, true},
                {"heavy", "embed_backward", 3 * 4, false}};
    json_t *j = BENCH("ops", "--rows", "8", "--dtype", "bf16");
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const json_t *x = row(json_object_get(j, want[i].list), want[i].op);
        cr_assert(NUM(x, "bytes") == want[i].bytes * ARRAY, "%s: %g bytes", want[i].op, NUM(x, "bytes"));
        cr_assert_str_eq(json_string_value(json_object_get(x, "dtype")), want[i].half ? "BF16" : "F32");
    }
    json_decref(j);
}

/* Rows with the host: a step reads the pages of those before it and writes its own, of each layer, by arithmetic; what
 * a simulated bus would make it wait. */
Test(bench_device, rows_with_the_host_are_counted_by_step, .timeout = 60) {
    enum { LAYERS = 6, PROMPT = 64, ROW = 2 * 2 * 16 * sizeof(real) };
    char *yaml = config(), limit[32];
    Ran r = RUN("bench", "decode", yaml, "model.layers=6", "--device", "cuda", "-s", "0.01", "--fill", "--prompt", "64",
                "--batch", "1", "--cache-memory", "1000");
    const char *at = strstr(r.err, "needs ");
    size_t least = 0;
    cr_assert(r.status == EXIT_INPUT && at && sscanf(at, "needs %zu bytes", &least) == 1, "%d %s", r.status, r.err);
    snprintf(limit, sizeof limit, "%zu", least);
    json_t *j = BENCH("decode", yaml, "model.layers=6", "--fill", "--prompt", "64", "--batch", "1", "--cache-memory",
                      limit, "--bus", "0.001"),
           *x = json_array_get(json_object_get(j, "decode"), 0), *host = json_object_get(x, "host"),
           *bus = json_object_get(x, "simulated");
    const double steps = NUM(host, "steps"), layers = NUM(host, "layers");
    double read = 0;
    for (int i = 0; i < (int)steps; i++) read += (PROMPT + i + 63) / 64 * 64;
    cr_assert(layers == LAYERS && NUM(host, "of") == LAYERS && NUM(host, "memory_bytes") <= (double)least &&
                  NUM(host, "host_bytes") >= LAYERS * PROMPT * (double)ROW && steps >= 1,
              "%g layers, %g steps", layers, steps);
    cr_assert(fabs(NUM(host, "read_bytes") - read / steps * LAYERS * ROW) < 1 &&
                  NUM(host, "written_bytes") == LAYERS * ROW,
              "%g bytes read, %g written in each of %g steps", NUM(host, "read_bytes"), NUM(host, "written_bytes"),
              steps);
    cr_assert(!json_is_true(json_object_get(x, "graph")) && !json_object_get(x, "disk"));
    const double each = NUM(host, "read_bytes") / LAYERS / 1e6,
                 want = each + (LAYERS - 1) * fmax(0, each - NUM(bus, "compute_s") / LAYERS);
    cr_assert(NUM(bus, "bus_gb_per_s") == 0.001 && fabs(NUM(bus, "waited_s") - want) <= 1e-9 * want &&
                  fabs(NUM(bus, "copies_s") - LAYERS * each) <= 1e-9 * LAYERS * each,
              "waits %g s, expected %g", NUM(bus, "waited_s"), want);
    json_decref(j);
    free(r.out), free(r.err), free(yaml);
}
