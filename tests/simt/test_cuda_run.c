/* test_cuda_run.c: runs of training and of the program on the emulated device beside the CPU's: loss curves,
 * checkpoints that either resumes, text, errors. */
#include "tests/lib/check.h"
#include "tests/lib/trial.h"
#include "ops/file.h"
#include "ops/host.h"
#include "train/save/checkpoint.h"
#include "train/save/saver.h"
#include "train/report/watch.h"
#include <jansson.h>

/* A text of lines that repeat, so that its loss falls far in few steps. */
static const char *text_file(void) {
    static char path[512];
    char body[4000], *p = check_path("text.txt");
    for (size_t i = 0; i < sizeof body; i++) body[i] = "the cache keeps the keys\nand the values stay\n"[i % 45];
    check_write(p, body, sizeof body);
    snprintf(path, sizeof path, "%s", p);
    free(p);
    return path;
}
static const char yaml[] =
    "run: {dir: '%s', seed: 3, threads: 1}\n"
    "model:\n"
    "  d_model: 16\n"
    "  layers: 2\n"
    "  max_positions: 48\n"
    "  kinds: {full: {mixer: gqa, heads: 4, kv_heads: 2, head_dim: 8}}\n"
    "  ffn: {kind: swiglu, hidden: 24}\n"
    "data: {train: '%s', val_fraction: 0.1, seq_len: 16}\n"
    "train: {dtype: f32, steps: 50, batch: 2, micro_batch: 2, eval_every: 25, eval_tokens: 64, save_every: 2,\n"
    "        log_every: 1, keep_last: 9}\n"
    "optim: {lr: 0.02, min_lr: 0.002, warmup: 5, clip: 0.5, weight_decay: 0.1, schedule_steps: 50}\n";

/* ---- curves ---------------------------------------------------------------------------------------------------------
 */
enum { STEPS = 50 };
typedef struct {
    double loss[STEPS], norm[STEPS], val, part[STEPS][4]; /* of a teacher */
} Curve;
static Trainer *trainer(Config *cfg, const char *device, int n, const char *const over[]) {
    Trainer *t = xcalloc(1, sizeof *t);
    const char *with[8] = {xformat("run.device=%s", device)};
    char *dir = check_path("run"), *all = xformat(yaml, dir, text_file());
    Err e = {0};
    for (int i = 0; i < n; i++) with[i + 1] = over[i];
    cr_assert(config_parse(cfg, all, strlen(all), "yaml", n + 1, (char *const *)with, &e), "%s", e.msg);
    cr_assert(trial_trainer(t, cfg, 0, false, &e), "%s", e.msg);
    model_init(&t->model, 3);
    free(all), free(dir);
    return t;
}
static void close_trainer(Trainer *t, Config *cfg) {
    trial_trainer_close(t);
    free(t);
    config_free(cfg);
}
static void curve(Curve *c, const char *device, int steps, int n, const char *const over[]) {
    Config cfg;
    Err e = {0};
    TrainRecord r;
    ValRecord v;
    Trainer *t = trainer(&cfg, device, n, over);
    for (int k = 0; k < steps; k++) {
        cr_assert(trainer_step(t, &r, &e), "%s", e.msg);
        c->loss[k] = r.loss, c->norm[k] = r.grad_norm;
        const double part[] = {r.parts.kl, r.parts.rkl, r.parts.attention, r.parts.hidden};
        memcpy(c->part[k], part, sizeof part);
    }
    cr_assert(trainer_validate(t, &v, &e) && watch_finite(t, &e), "%s", e.msg);
    c->val = v.loss;
    close_trainer(t, &cfg);
}
static void same_curve(int steps, int n, const char *const over[], double tol) {
    Curve cpu, cuda;
    curve(&cpu, "cpu", steps, n, over);
    curve(&cuda, "cuda", steps, n, over);
    CHECK_RELATIVE("loss", cuda.loss, cpu.loss, (size_t)steps, tol);
    CHECK_RELATIVE("gradient norm", cuda.norm, cpu.norm, (size_t)steps, 10 * tol);
    CHECK_RELATIVE("validation loss", &cuda.val, &cpu.val, 1, tol);
    for (int i = 0; cpu.part[0][0] != 0 && i < 4; i++)
        for (int k = 0; k < steps; k++) CHECK_RELATIVE("part", &cuda.part[k][i], &cpu.part[k][i], 1, tol);
    if (steps == STEPS)
        cr_assert(cpu.loss[STEPS - 1] < 0.5 * cpu.loss[0], "the loss does not fall: %g to %g", cpu.loss[0],
                  cpu.loss[STEPS - 1]);
}
/* Forward, backward, clipping, AdamW. */
Test(cuda_run, fifty_steps_have_the_cpus_losses, .timeout = 300) { same_curve(STEPS, 0, NULL, 1e-4); }
Test(cuda_run, muon_with_bf16_moments_dropout_and_recomputation, .timeout = 120) {
    const char *const over[] = {"optim.kind=muon", "optim.state_dtype=bf16", "train.dropout=0.1", "train.recompute=1",
                                "train.micro_batch=1"};
    same_curve(4, 5, over, 1e-4);
}

/* Every optimizer of the table, by the device's kernels. */
Test(cuda_run, every_optimizer, .timeout = 300) {
    for (int k = 0; optimizers[k]; k++) {
        char *kind = xformat("optim.kind=%s", optimizer_names[k]);
        const char *const over[] = {kind, "optim.schedule=constant", "optim.state_dtype=bf16"};
        same_curve(3, 3, over, 1e-4);
        free(kind);
    }
}

/* A run on a device needs of the host what lies there: a model that no host holds may be trained on a device that holds
 * it, whatever a machine whose memory grows says is free. */
Test(cuda_run, memory_of_the_device_is_not_the_hosts, .timeout = 60) {
    static const char *const devices[] = {"run.device=cpu", "run.device=cuda"};
    for (int k = 0; k < 2; k++) {
        char *dir = check_path("run"), *all = xformat(yaml, dir, text_file());
        const char *const with[] = {devices[k], "model.d_model=32768", "model.ffn.hidden=65536", "model.layers=256"};
        Config cfg;
        Regions r;
        Err e = {0};
        Trainer *t = xcalloc(1, sizeof *t);
        cr_assert(config_parse(&cfg, all, strlen(all), "yaml", 4, (char *const *)with, &e), "%s", e.msg);
        cr_assert(trial_trainer(t, &cfg, 0, true, &e), "%s", e.msg);
        trainer_regions(t, false, &r);
        cr_assert(r.total > (size_t)1 << 44 && (k ? r.host < (size_t)1 << 30 : r.host == r.total), "%zu of %zu bytes",
                  r.host, r.total);
        cr_assert(trainer_fits(t, &e) == (k == 1), "%s", e.msg);
        cr_assert(k || strstr(e.msg, "the run needs "), "%s", e.msg);
        regions_free(&r);
        trial_trainer_close(t);
        free(t), free(all), free(dir);
        config_free(&cfg);
    }
}

/* ---- the program ----------------------------------------------------------------------------------------------------
 */
static char *config_file(void) {
    char *p = check_path("run.yaml"), *dir = check_path("run"), *all = xformat(yaml, dir, text_file());
    check_write(p, all, strlen(all));
    free(all), free(dir);
    return p;
}
static char *good(Ran r) {
    cr_assert(r.status == 0, "%d: %s", r.status, r.err);
    free(r.err);
    return r.out;
}
static float *numbers_of(const char *path, size_t *n) { /* of a safetensors file */
    size_t bytes;
    uint64_t head;
    char *all = check_read(path, &bytes);
    memcpy(&head, all, sizeof head);
    *n = (bytes - 8 - head) / sizeof(float);
    cr_assert(*n > 100);
    memmove(all, all + 8 + head, *n * sizeof(float));
    return (float *)all;
}
static void same_file(const char *a, const char *b, double tol) {
    size_t na, nb;
    float *x = numbers_of(a, &na), *y = numbers_of(b, &nb);
    cr_assert(na == nb, "%s: %zu numbers, %s: %zu", a, na, b, nb);
    CHECK_RMS(a, x, y, na, tol);
    free(x), free(y);
}
static double last_loss(const char *dir) {
    char *p = xformat("%s/metrics.jsonl", dir), *all = check_read(p, NULL), *at = all, *found = NULL;
    while ((at = strstr(at, "\"loss\":"))) found = at, at++;
    cr_assert(found, "no loss in %s", p);
    double loss = strtod(found + 7, NULL);
    free(all), free(p);
    return loss;
}

/* Four steps on one device; two on the other and two on this one, saved by the loop and by a thread. */
static void goes_on(const char *with, const char *from, const char *third) {
    static const char *const devices[] = {"cpu", "cuda"};
    char *cfg = config_file(), *ref = check_path("ref"), *ref_dir = xformat("run.dir=%s", ref);
    free(good(RUN("train", cfg, "-q", "--device", "cpu", "train.steps=4", ref_dir, with, from)));
    const int files = *third ? 3 : 2;
    char *want[] = {xformat("%s/last/model.safetensors", ref), xformat("%s/last/trainer/optimizer.safetensors", ref),
                    xformat("%s/last/%s", ref, third)};
    for (int k = 0; k < 2; k++) {
        char *dir = check_path(devices[k]), *over = xformat("run.dir=%s", dir);
        const char *async = k ? "train.async_save=true" : "train.async_save=false";
        free(good(RUN("train", cfg, "-q", "--device", devices[k], "train.steps=2", async, over, with, from)));
        free(good(RUN("train", cfg, "-q", "--device", devices[!k], "train.steps=4", async, over, with, from, "--resume",
                      "auto")));
        char *got[] = {xformat("%s/last/model.safetensors", dir), xformat("%s/last/trainer/optimizer.safetensors", dir),
                       xformat("%s/last/%s", dir, third)};
        for (int f = 0; f < files; f++) same_file(got[f], want[f], 1e-4);
        for (int f = 0; f < 3; f++) free(got[f]);
        double a = last_loss(dir), b = last_loss(ref);
        CHECK_RELATIVE("loss of step 4", &a, &b, 1, 1e-4);
        free(dir), free(over);
    }
    free(cfg), free(ref), free(ref_dir);
    for (int f = 0; f < 3; f++) free(want[f]);
}
Test(cuda_run, either_device_goes_on_from_the_others_checkpoint, .timeout = 300) {
    goes_on("train.steps=4", "train.log_every=1", "");
}
/* A model of three steps to begin with or to learn from. */
static char *master(void) {
    char *cfg = config_file(), *dir = check_path("master"), *over = xformat("run.dir=%s", dir);
    free(good(RUN("train", cfg, "-q", "--device", "cpu", "train.steps=3", over, "run.seed=9")));
    char *last = xformat("%s/last", dir);
    free(cfg), free(dir), free(over);
    return last;
}
Test(cuda_run, adapters_go_on_from_the_others_checkpoint, .timeout = 300) {
    char *dir = master(), *from = xformat("init_from=%s", dir);
    goes_on("lora={rank: 2, alpha: 6}", from, "trainer/lora.safetensors");
    free(dir), free(from);
}
/* All losses at once; the student is of another kind, its teacher's weights lie on the device as well. */
Test(cuda_run, a_teachers_losses_are_the_cpus, .timeout = 300) {
    char *dir = master(), *path = xformat("teacher.path=%s", dir);
    const char *const over[] = {path, "teacher.losses={lm: 0.5, kl: 1, rkl: 0.3, attention: 0.4, hidden: 0.2}",
                                "teacher.temperature=2", "model.kinds.full.kv_heads=1", "train.recompute=1"};
    same_curve(5, 5, over, 1e-4);
    goes_on(path, over[1], "");
    free(dir), free(path);
}

/* Every number of a name in a run's records, in order. Returns how many. */
static int recorded(const char *dir, const char *name, double to[64]) {
    char *p = xformat("%s/metrics.jsonl", dir), *all = check_read(p, NULL), *key = xformat("\"%s\":", name), *at = all;
    int n = 0;
    while ((at = strstr(at, key)) && n < 64) to[n++] = strtod(at += strlen(key), NULL);
    free(all), free(p), free(key);
    return n;
}
static void same_checkpoint(const char *a, const char *b) {
    static const char *const files[] = {"model.safetensors", "trainer/optimizer.safetensors"};
    for (int f = 0; f < 2; f++) {
        char *x = xformat("%s/%s", a, files[f]), *y = xformat("%s/%s", b, files[f]);
        same_file(x, y, 1e-4);
        free(x), free(y);
    }
}
/* A retrofit in three stages on both devices, and once more from the CPU's checkpoint in the second stage and from the
 * device's: what hard decisions kept, losses, weights, moments; then text over a cache whose rows leave. */
static void stages_are_the_cpus(const char *kind) {
    static const char *const devices[] = {"cpu", "cuda"};
    char *cfg = check_path("stages.yaml"), *dir[4];
    double cr[4][64], loss[4][64];
    int n[4], losses[4];
    char *body = xformat(
        "run: {dir: none, seed: 3, threads: 1}\n"
        "model:\n"
        "  d_model: 16\n"
        "  layers: 2\n"
        "  max_positions: 64\n"
        "  kinds: {full: {mixer: dmc, heads: 4, kv_heads: 2, head_dim: 8, phase: zero, %s}}\n"
        "  ffn: {kind: swiglu, hidden: 24}\n"
        "data: {train: '%s', val_fraction: 0.1, seq_len: 16}\n"
        "train: {dtype: f32, batch: 2, micro_batch: 2, eval_every: 0, save_every: 3, log_every: 1, keep_last: 9}\n"
        "optim: {lr: 0.02, warmup: 0, schedule: constant}\n"
        "stages:\n"
        "  - {name: zero, steps: 2}\n"
        "  - name: retrofit\n"
        "    steps: 3\n"
        "    set: {model.kinds.full.phase: soft, train.compression: {target: 2, ramp: true}}\n"
        "  - {name: fix, steps: 2, set: {model.kinds.full.phase: soft, train.compression: {target: 2}}}\n",
        kind, text_file());
    check_write(cfg, body, strlen(body));
    for (int k = 0; k < 4; k++) {
        char *name = xformat("stages%d", k), *other = k < 2 ? NULL : xformat("%s/step-000003", dir[k == 2]);
        dir[k] = check_path(name);
        char *over = xformat("run.dir=%s", dir[k]);
        if (k < 2)
            free(good(RUN("train", cfg, "-q", "--device", devices[k], over)));
        else
            free(good(RUN("train", cfg, "-q", "--device", devices[k == 3], over, "--resume", other)));
        n[k] = recorded(dir[k], "cr", cr[k]), losses[k] = recorded(dir[k], "loss", loss[k]);
        free(name), free(over), free(other);
    }
    cr_assert(losses[0] == 7 && n[0] >= 5 && cr[0][n[0] - 1] > 1, "%d losses, %d ratios", losses[0], n[0]);
    for (int k = 1; k < 4; k++) {
        int less = k == 1 ? 0 : 3, few = imin(n[k], n[0]);
        cr_assert(losses[k] == losses[0] - less && few >= 4, "%d losses, %d ratios", losses[k], n[k]);
        CHECK_BYTES("hard decisions", cr[k] + n[k] - few, cr[0] + n[0] - few, (size_t)few * sizeof(double));
        CHECK_RELATIVE("loss", loss[k], loss[0] + less, (size_t)losses[k], 1e-5);
        char *want = xformat("%s/last", dir[0]), *got = xformat("%s/last", dir[k]);
        same_checkpoint(got, want);
        free(want), free(got);
    }
    Ran said[2];
    char *model = xformat("%s/last", dir[0]);
    for (int k = 0; k < 2; k++)
        said[k] = RUN("generate", model, "--device", devices[k], "--prompt", "the cache keeps ", "--temperature", "0",
                      "--max-new", "30", "--threads", "1");
    for (int k = 0; k < 2; k++) cr_assert(said[k].status == 0, "%s", said[k].err);
    cr_assert(!strcmp(said[0].out, said[1].out), "%s\nand\n%s", said[0].out, said[1].out);
    char *kept[2] = {strstr(said[0].err, "cache "), strstr(said[1].err, "cache ")};
    cr_assert(kept[0] && kept[1] && !strcmp(kept[0], kept[1]), "%s and %s", said[0].err, said[1].err);
    cr_assert(strtod(kept[0] + 6, NULL) < 0.95 * 46 * 4 * 64, "no row left: %s", kept[0]);
    for (int k = 0; k < 2; k++) free(said[k].out), free(said[k].err);
    for (int k = 0; k < 4; k++) free(dir[k]);
    free(cfg), free(body), free(model);
}
Test(cuda_run, dmc_in_three_stages, .timeout = 300) { stages_are_the_cpus("offset: 0, window: 4"); }
Test(cuda_run, dms_in_three_stages, .timeout = 300) {
    stages_are_the_cpus("action: evict, delay: 3, gain: 10, offset: 1");
}

/* The whole way: trained on the device with samples, then text, logits and perplexity, on both. */
Test(cuda_run, text_logits_and_perplexity_are_the_cpus, .timeout = 300) {
    char *cfg = config_file(), *dir = check_path("run"), *best = xformat("%s/last", dir);
    free(good(RUN("train", cfg, "-q", "--device", "cuda", "train.steps=8", "train.sample_every=4",
                  "train.sample_prompt=the", "train.sample_tokens=4")));
    char *samples = xformat("%s/samples.txt", dir), *said = check_read(samples, NULL);
    cr_assert(strstr(said, "the"), "%s", said);
    char *out[2], *ids = check_path("ids.txt"), *file[2] = {check_path("a"), check_path("b")};
    const char *lines = "5 17 100 3 3 9 200 4 8 1\n12 13 14 15 7 7 2 90 1 6\n";
    check_write(ids, lines, strlen(lines));
    static const char *const devices[] = {"cpu", "cuda"};
    for (int k = 0; k < 2; k++)
        out[k] = good(RUN("generate", best, "--device", devices[k], "--prompt", "the cache ", "--temperature", "0",
                          "--max-new", "24", "--threads", "1"));
    cr_assert(strlen(out[0]) > 12 && !strcmp(out[0], out[1]), "%s\nand\n%s", out[0], out[1]);
    free(out[0]), free(out[1]);
    for (int k = 0; k < 2; k++)
        free(good(RUN("logits", best, "--device", devices[k], "--tokens", ids, "--out", file[k], "--chunk", "4")));
    same_file(file[1], file[0], 1e-5);
    double nll[2];
    char *some = check_path("some.txt");
    check_write(some, "the keys stay\nand the cache keeps the values, and the keys\n", 57);
    for (int k = 0; k < 2; k++) {
        out[k] = good(RUN("eval", best, "ppl", "--data", some, "--context", "20", "--device", devices[k], "--json"));
        json_t *j = json_loads(out[k], 0, NULL);
        nll[k] = json_number_value(json_object_get(j, "nll"));
        json_decref(j), free(out[k]);
    }
    cr_assert(nll[0] > 0.1);
    CHECK_RELATIVE("nll", &nll[1], &nll[0], 1, 1e-5);
    free(cfg), free(dir), free(best), free(samples), free(said), free(ids), free(some), free(file[0]), free(file[1]);
}

/* `auto` is bf16 there, said as the run begins and kept with its checkpoint, the same in every run; who asks for f32 by
 * name gets it. */
Test(cuda_run, auto_is_bf16, .timeout = 120) {
    static const struct {
        const char *setting, *option, *said, *kept;
    } how[] = {{"train.dtype=auto", NULL, ", matrix products in bf16)", "dtype: bf16"},
               {"train.dtype=bf16", NULL, ", matrix products in bf16)", "dtype: bf16"},
               {"train.dtype=auto", "f32", ", f32)", "dtype: f32"}};
    char *cfg = config_file();
    double loss[3];
    for (int k = 0; k < 3; k++) {
        char *name = xformat("auto%d", k), *dir = check_path(name), *over = xformat("run.dir=%s", dir);
        Ran r = RUN("train", cfg, "--device", "cuda", "train.steps=2", "model.d_model=64", "model.ffn.hidden=64", over,
                    how[k].setting, how[k].option ? "--dtype" : NULL, how[k].option);
        cr_assert(r.status == 0 && (strstr(r.out, how[k].said) || strstr(r.err, how[k].said)), "%d %s%s", r.status,
                  r.out, r.err);
        char *path = xformat("%s/config.yaml", dir), *kept = check_read(path, NULL);
        cr_assert(strstr(kept, how[k].kept), "%s", kept);
        loss[k] = last_loss(dir);
        free(r.out), free(r.err), free(name), free(dir), free(over), free(path), free(kept);
    }
    cr_assert(loss[0] == loss[1] && loss[0] != loss[2] && fabs(loss[0] - loss[2]) < 0.1, "%.9g, %.9g and %.9g", loss[0],
              loss[1], loss[2]);
    free(cfg);
}

/* ---- errors ---------------------------------------------------------------------------------------------------------
 */
Test(cuda_run, what_cannot_be_is_said, .timeout = 60) {
    char *cfg = config_file();
    CHECK_REFUSED(
        RUN("train", "configs/tiny-kda.yaml", "--device", "cuda", "--plan", "model.kinds.kda.head_dim=300"), EXIT_INPUT,
        "device cuda does not have recurrences of keys wider than 256 yet, which layer 0 needs (model.kinds.");
    CHECK_REFUSED(RUN("train", cfg, "--device", "cuda", "-q", "model.layers=1", "model.ffn.hidden=1000000",
                      "model.d_model=8192", "model.kinds.full.heads=2"),
                  EXIT_RUNTIME, "out of device memory: ");
    char *dir = check_path("run");
    cr_assert(!check_exists(dir), "a run that did not begin left its folder");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    CHECK_REFUSED(RUN("train", cfg, "--device", "cuda", "-q"), EXIT_RUNTIME,
                  "device cuda: no CUDA-capable device is detected");
    CHECK_REFUSED(RUN("generate", "no-such-model", "--device", "cuda", "--prompt", "x"), EXIT_INPUT, "no-such-model");
    unsetenv("CUDA_VISIBLE_DEVICES");
    Ran r = RUN("train", cfg, "--device", "cuda", "--plan");
    cr_assert(r.status == 0 && strstr(r.out, "weights"), "%d %s%s", r.status, r.out, r.err);
    free(r.out), free(r.err), free(cfg), free(dir);
}
/* A machine without a driver, with one that is too old, without cuBLASLt. */
Test(emulated, what_the_machine_lacks_is_said, .timeout = 60) {
    char *cfg = config_file(), *dir = check_path("run");
    static const struct {
        const char *name, *value, *said;
    } lack[] = {{"SIMT_DRIVER", "0", "device cuda: no NVIDIA driver is installed (libcuda.so.1 is not found)"},
                {"SIMT_DRIVER", "12080", "device cuda: the driver serves CUDA 12.8; expected 13.0 or later"},
                {"SIMT_NO_CUBLASLT", "1", "device cuda: libcublasLt.so.13 is not found; name its folder in"}};
    for (size_t i = 0; i < sizeof lack / sizeof *lack; i++) {
        setenv(lack[i].name, lack[i].value, 1);
        CHECK_REFUSED(RUN("train", cfg, "--device", "cuda", "-q"), EXIT_RUNTIME, lack[i].said);
        CHECK_REFUSED(RUN("device", "--device", "cuda"), EXIT_RUNTIME, lack[i].said);
        CHECK_REFUSED(RUN("bench", "ops", "--device", "cuda"), EXIT_RUNTIME, lack[i].said);
        unsetenv(lack[i].name);
        cr_assert(!check_exists(dir), "a run that did not begin left its folder");
    }
    free(cfg), free(dir);
}
Test(cuda_run, says_what_the_device_is) {
    char *out = good(RUN("device", "--device", "cuda", "--json"));
    json_t *j = json_loads(out, 0, NULL);
    cr_assert(j, "%s", out);
    static const char *const numbers[] = {"deviceVer",     "driverVer",           "runtimeVer",
                                          "cublasLtVer",   "multiProcessorCount", "totalGlobalMem",
                                          "freeGlobalMem", "l2CacheSize",         "warpSize"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cr_assert(json_integer_value(json_object_get(j, numbers[i])) > 0, "%s in %s", numbers[i], out);
    cr_assert(json_array_size(json_object_get(j, "maxGridSize")) == 3, "%s", out);
    cr_assert(json_string_value(json_object_get(j, "deviceName")) != NULL, "%s", out);
    json_decref(j), free(out);
    out = good(RUN("device"));
    cr_assert(strstr(out, "isa ") && strstr(out, "threads "), "%s", out);
    free(out);
}
/* auto never means the emulated device, and says why a GPU is not used where one could be. */
Test(emulated, auto_is_the_processor) {
    Ran r = RUN("device", "--device", "auto");
    cr_assert(r.status == 0 && strstr(r.out, "isa ") && !*r.err, "%d %s%s", r.status, r.out, r.err);
    free(r.out), free(r.err);
    setenv("SIMT_DRIVER", "0", 1);
    r = RUN("device");
    unsetenv("SIMT_DRIVER");
    cr_assert(r.status == 0 && strstr(r.out, "isa "), "%d %s%s", r.status, r.out, r.err);
    cr_assert_str_eq(r.err, "no GPU is used: no NVIDIA driver is installed (libcuda.so.1 is not found)\n");
    free(r.out), free(r.err);
}
/* Ops are in the rehearsal of gpu-check (test_gpu_check.c). */
Test(cuda_run, bench_times_the_device, .timeout = 120) {
    char *out;
    char *cfg = config_file();
    out = good(RUN("bench", "train", cfg, "--device", "cuda", "--rows", "8", "-s", "0.01", "--json"));
    cr_assert(strstr(out, "\"tok_s\""), "%s", out);
    free(out);
    out = good(RUN("bench", "decode", cfg, "--device", "cuda", "--batch", "2", "-s", "0.01", "--json"));
    cr_assert(strstr(out, "\"percent_of_bandwidth\""), "%s", out);
    free(out), free(cfg);
}
/* Products are tried, the choice is kept in a file; a file that says nothing of this device is ignored with a line. */
Test(cuda_run, choices_of_products_are_measured_and_kept, .timeout = 200) {
    char *cfg = config_file(), *file = check_path("tuning.txt"), *with = xformat("--tuning=%s", file), *key;
    size_t n;
    char *out = good(RUN("bench", "tune", cfg, "--device", "cuda", "--batch", "1", "-s", "0.01", with, "--json"));
    json_t *j = json_loads(out, 0, NULL), *list = json_object_get(j, "tuned"), *x;
    size_t i, faster = 0;
    cr_assert(j && json_array_size(list) > 5, "%s", out);
    json_array_foreach(list, i, x) {
        double best = json_number_value(json_object_get(x, "best_s"));
        cr_assert(best > 0 && best <= json_number_value(json_object_get(x, "first_s")), "%s", out);
        faster += best < 0.8 * json_number_value(json_object_get(x, "first_s"));
    }
    json_decref(j), free(out);
    char *text = check_read(file, &n);
    cr_assert(!strncmp(text, "kvsmith tuning 2\ndevice ", 24), "%s", text);
    /* the emulated library's first choice is its slowest one for small products */
    cr_assert(faster > 0 || !strstr(text, "device emulated device\n"), "nothing is faster: %s", text);
    static const char quiet[] = "";
    Ran r = RUN("bench", "decode", cfg, "--device", "cuda", "--batch", "1", "-s", "0.01", with);
    cr_assert(r.status == 0 && !strcmp(r.err, quiet), "%d %s", r.status, r.err);
    free(r.out), free(r.err);
    key = xformat("run.tuning=%s", file);
    r = RUN("train", cfg, "-q", "--device", "cuda", "train.steps=2", "optim.schedule_steps=50", key);
    cr_assert(r.status == 0 && !strstr(r.err, "ignored"), "%d %s", r.status, r.err);
    free(r.out), free(r.err);
    const struct {
        const char *text, *said;
    } bad[] = {{"kvsmith tuning 2\ndevice another\nprocessors 7\nlibrary 1\nend 0\n",
                "measured on another with 7 processors"},
               {"kvsmith tuning 1\n", "line 1: expected 'kvsmith tuning 2'"},
               {"", "line 1: expected"},
               {NULL, "the file is cut short"}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        check_write(file, bad[k].text ? bad[k].text : text, bad[k].text ? strlen(bad[k].text) : n - 8);
        r = RUN("bench", "decode", cfg, "--device", "cuda", "--batch", "1", "-s", "0.01", with);
        cr_assert(r.status == 0 && strstr(r.err, bad[k].said) && strstr(r.err, "; ignored\n") &&
                      strchr(r.err, '\n')[1] == 0,
                  "%zu: %d %s", k, r.status, r.err);
        free(r.out), free(r.err);
    }
    CHECK_REFUSED(RUN("bench", "decode", cfg, "--device", "cpu", with), EXIT_INPUT, "only a GPU uses it");
    CHECK_REFUSED(RUN("bench", "tune", cfg, with), EXIT_INPUT, "bench tune: works on a GPU only");
    CHECK_REFUSED(RUN("bench", "tune", cfg, "--device", "cuda"), EXIT_INPUT, "expected --tuning FILE");
    CHECK_REFUSED(RUN("bench", "decode", cfg, "--device", "cuda", "--tuning", "/nowhere/t"), EXIT_INPUT, "/nowhere/t");
    free(text), free(key), free(with), free(file), free(cfg);
}
Test(emulated, choices_of_another_library_are_ignored, .timeout = 100) {
    char *cfg = config_file(), *file = check_path("tuning.txt"), *with = xformat("--tuning=%s", file);
    const char *text = "kvsmith tuning 2\ndevice emulated device\nprocessors 132\nlibrary 130000\nend 0\n";
    check_write(file, text, strlen(text));
    setenv("SIMT_CUBLASLT", "130100", 1);
    Ran r = RUN("bench", "decode", cfg, "--device", "cuda", "--batch", "1", "-s", "0.01", with);
    cr_assert(r.status == 0 && strstr(r.err, "measured with cuBLASLt 130000, this is 130100; ignored"), "%s", r.err);
    unsetenv("SIMT_CUBLASLT");
    free(r.out), free(r.err), free(with), free(file), free(cfg);
}
