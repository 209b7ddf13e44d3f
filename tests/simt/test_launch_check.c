/* test_launch_check.c: a kernel that the device refuses, or that fails while it runs: the line that ends the program
 * has the kernel's name where KVSMITH_CUDA_CHECK is set. */
#include "tests/lib/check.h"

/* Steps of training on the emulated device, in which it fails as `fault` says (SIMT_FAULT in README.md). */
static Ran train(const char *run, const char *fault, const char *check) {
    char *dir = check_path(run), *key = xformat("run.dir=%s", dir), *text = check_path("text.txt"),
         *data = xformat("data.train=%s", text);
    char body[2000];
    memset(body, 'a', sizeof body);
    check_write(text, body, sizeof body);
    if (fault) setenv("SIMT_FAULT", fault, 1);
    if (check) setenv("KVSMITH_CUDA_CHECK", check, 1);
    Ran r = RUN("train", "configs/tiny-gqa.yaml", key, data, "run.device=cuda", "run.threads=1", "train.steps=4",
                "train.batch=1", "train.micro_batch=1", "data.seq_len=8", "train.eval_every=0", "train.save_every=0",
                "data.val_fraction=0", "optim.warmup=1", "train.dtype=f32");
    unsetenv("SIMT_FAULT"), unsetenv("KVSMITH_CUDA_CHECK");
    free(dir), free(key), free(text), free(data);
    return r;
}
/* The last line begins with `with`, and `without` is no part of it. */
static void ends(const char *run, const char *fault, const char *check, const char *with, const char *without) {
    Ran r = train(run, fault, check);
    const char *last = strstr(r.err, "kvsmith: device cuda: "), *end = last ? strchr(last, '\n') : NULL;
    cr_assert(r.status == EXIT_RUNTIME && end && !end[1] && end - last <= 300, "%s: %d %s", fault, r.status, r.err);
    cr_assert(!strncmp(strchr(last + 9, ':') + 2, with, strlen(with)) && !(without && strstr(last, without)), "%s: %s",
              fault, r.err);
    free(r.out), free(r.err);
}
Test(emulated, a_kernel_that_fails_is_named, .timeout = 120) {
    ends("a", "launch:swiglu_backward:2", "1",
         "kernel (swiglu_backward<T, W>), grid (3,1,1), block (256,1,1), 0 bytes of shared memory: too many resources "
         "requested for launch\n",
         NULL);
    ends("b", "run:adamw", "1", "kernel adamw<float>, grid (", NULL);
    /* Without the check it is found by the next wait, and has no name. */
    ends("c", "launch:adamw", NULL, "launching a kernel: too many resources requested for launch\n", NULL);
    ends("d", "run:adamw", "0", "waiting for the device: an illegal memory access was encountered\n", NULL);
}
Test(emulated, checks_change_no_result, .timeout = 120) {
    double loss[2];
    for (int k = 0; k < 2; k++) {
        const char *run = k ? "with" : "without";
        Ran r = train(run, NULL, k ? "1" : "");
        char *all = xformat("%s%s", r.out, r.err), *dir = check_path(run), *file = xformat("%s/metrics.jsonl", dir),
             *lines = check_read(file, NULL), *last = NULL;
        for (char *at = lines; (at = strstr(at, "\"loss\":")); last = at += 7) {}
        cr_assert(r.status == 0 && last, "%d %s", r.status, r.err);
        cr_assert(strstr(all, k ? "launched one by one: KVSMITH_CUDA_CHECK is set\n" : "replayed as CUDA graphs\n"),
                  "%s", all);
        loss[k] = strtod(last, NULL);
        free(r.out), free(r.err), free(all), free(dir), free(file), free(lines);
    }
    cr_assert(loss[0] == loss[1] && loss[0] > 0, "%.9g and %.9g", loss[0], loss[1]);
    CHECK_REFUSED(train("refused", NULL, "yes"), EXIT_INPUT, "KVSMITH_CUDA_CHECK: expected 1 or 0, got yes");
}
