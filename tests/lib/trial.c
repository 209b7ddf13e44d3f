/* trial.c: trainers inside a test's process. */
#include "trial.h"
#include "check.h"

bool trial_trainer(Trainer *t, Config *cfg, int k, bool dry, Err *e) {
    TrainRun *run = xcalloc(1, sizeof *run);
    train_run_begin(run, cfg);
    bool ok = trainer_open(t, run, k, dry, e);
    if (!ok) free(run);
    return ok;
}
void trial_trainer_close(Trainer *t) {
    TrainRun *run = t->run;
    trainer_close(t);
    for (int peaks = 0; peaks < 2; peaks++) regions_free(&run->most[peaks]);
    free(run);
    *t = (Trainer){0};
}

void trial_config(Config *cfg, const char *yaml, int n, const char *const over[]) {
    char *text = check_path("text.txt"), *dir = check_path("run"), *all = xformat(yaml, dir, text);
    char body[1200];
    for (size_t i = 0; i < sizeof body; i++) body[i] = (char)("etaoin shrdlu\n"[rng_mix(7, i) % 14]);
    check_write(text, body, sizeof body);
    Err e = {0};
    cr_assert(config_parse(cfg, all, strlen(all), "yaml", n, (char *const *)over, &e), "%s", e.msg);
    free(all), free(text), free(dir);
}

Trainer *trial_open(Config *cfg, const char *yaml, int n, const char *const over[]) {
    Trainer *t = xcalloc(1, sizeof *t);
    Err e = {0};
    trial_config(cfg, yaml, n, over);
    cr_assert(trial_trainer(t, cfg, 0, false, &e), "%s", e.msg);
    model_init(&t->model, 3);
    return t;
}

void trial_close(Trainer *t, Config *cfg) {
    trial_trainer_close(t);
    free(t);
    config_free(cfg);
}
