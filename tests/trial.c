/* trial.c: trainers inside a test's process. */
#include "trial.h"
#include "check.h"

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
    cr_assert(trainer_open(t, cfg, false, &e), "%s", e.msg);
    model_init(&t->model, 3);
    return t;
}

void trial_close(Trainer *t, Config *cfg) {
    trainer_close(t);
    free(t);
    config_free(cfg);
}
