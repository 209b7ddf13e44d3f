/* test_cuda_run.c: runs of training and of the program on the emulated device beside the CPU's: loss curves,
 * checkpoints that either resumes, text, errors. */
#include "../check.h"
#include "../../ops/file.h"
#include "../../ops/host.h"
#include "../../train/checkpoint.h"
#include "../../train/saver.h"
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
    double loss[STEPS], norm[STEPS], val;
} Curve;
static Trainer *trainer(Config *cfg, const char *device, int n, const char *const over[]) {
    Trainer *t = xcalloc(1, sizeof *t);
    const char *with[8] = {xformat("run.device=%s", device)};
    char *dir = check_path("run"), *all = xformat(yaml, dir, text_file());
    Err e = {0};
    for (int i = 0; i < n; i++) with[i + 1] = over[i];
    cr_assert(config_parse(cfg, all, strlen(all), "yaml", n + 1, (char *const *)with, &e), "%s", e.msg);
    cr_assert(trainer_open(t, cfg, false, &e), "%s", e.msg);
    model_init(&t->model, 3);
    free(all), free(dir);
    return t;
}
static void close_trainer(Trainer *t, Config *cfg) {
    trainer_close(t);
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
    }
    cr_assert(trainer_validate(t, &v, &e) && trainer_finite(t, &e), "%s", e.msg);
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
Test(cuda_run, either_device_goes_on_from_the_others_checkpoint, .timeout = 300) {
    static const char *const devices[] = {"cpu", "cuda"};
    char *cfg = config_file(), *ref = check_path("ref"), *ref_dir = xformat("run.dir=%s", ref);
    free(good(RUN("train", cfg, "-q", "--device", "cpu", "train.steps=4", ref_dir)));
    char *want[] = {xformat("%s/last/model.safetensors", ref), xformat("%s/last/trainer/optimizer.safetensors", ref)};
    for (int k = 0; k < 2; k++) {
        char *dir = check_path(devices[k]), *over = xformat("run.dir=%s", dir);
        const char *async = k ? "train.async_save=true" : "train.async_save=false";
        free(good(RUN("train", cfg, "-q", "--device", devices[k], "train.steps=2", async, over)));
        free(good(RUN("train", cfg, "-q", "--device", devices[!k], "train.steps=4", async, over, "--resume", "auto")));
        char *got[] = {xformat("%s/last/model.safetensors", dir),
                       xformat("%s/last/trainer/optimizer.safetensors", dir)};
        for (int f = 0; f < 2; f++) same_file(got[f], want[f], 1e-4), free(got[f]);
        double a = last_loss(dir), b = last_loss(ref);
        CHECK_RELATIVE("loss of step 4", &a, &b, 1, 1e-4);
        free(dir), free(over);
    }
    free(cfg), free(ref), free(ref_dir), free(want[0]), free(want[1]);
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

/* ---- errors ---------------------------------------------------------------------------------------------------------
 */
Test(cuda_run, what_cannot_be_is_said, .timeout = 60) {
    char *cfg = config_file();
    CHECK_REFUSED(RUN("train", "configs/tiny-dmc.yaml", "--device", "cuda", "--plan"), EXIT_INPUT,
                  "device cuda does not have decisions to merge or evict rows yet, which layer 0 needs (model.kinds.");
    CHECK_REFUSED(RUN("train", "configs/tiny-dms.yaml", "run.device=cuda", "-q"), EXIT_INPUT, "mixer dmc, ffn swiglu");
    CHECK_REFUSED(RUN("train", cfg, "--device", "cuda", "-q", "model.layers=1", "model.ffn.hidden=1000000",
                      "model.d_model=400", "model.kinds.full.heads=2"),
                  EXIT_WORLD, "out of device memory: ");
    char *dir = check_path("run");
    cr_assert(!check_exists(dir), "a run that did not begin left its folder");
    CHECK_REFUSED(RUN("bench", "--device", "cuda"), EXIT_INPUT, "device cuda");
    CHECK_REFUSED(RUN("train", cfg, "--device", "cuda", "-q", "teacher.path=none", "teacher.losses.kl=1"), EXIT_INPUT,
                  "teacher.path: learning from a teacher does not run on emulated device yet");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    CHECK_REFUSED(RUN("train", cfg, "--device", "cuda", "-q"), EXIT_WORLD,
                  "device cuda: no CUDA-capable device is detected");
    CHECK_REFUSED(RUN("generate", "no-such-model", "--device", "cuda", "--prompt", "x"), EXIT_INPUT, "no-such-model");
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("SIMT_MANAGED_ALONE", "1", 1);
    CHECK_REFUSED(RUN("train", cfg, "--device", "cuda", "-q"), EXIT_WORLD,
                  "device cuda: emulated device does not share managed memory with the host");
    unsetenv("SIMT_MANAGED_ALONE");
    Ran r = RUN("train", cfg, "--device", "cuda", "--plan");
    cr_assert(r.status == 0 && strstr(r.out, "weights"), "%d %s%s", r.status, r.out, r.err);
    free(r.out), free(r.err), free(cfg), free(dir);
}
