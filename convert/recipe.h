/* recipe.h: writes the settings for further training into a conversion's result, as train.yaml. convert_run calls
 * it. */
#pragma once
#include "convert.h"

/* Training in stages that teaches a model of mixer dmc to merge or evict: at learning rate `rate`, up to the
 * compression `target`. steps 0: no such training. */
typedef struct {
    double rate, target;
    int steps;
    bool adapter; /* it alone is trained, and there is no phase zero */
} Retrofit;
/* How the steps of a retrofit are divided: phase zero; soft while the target grows; soft at the target. */
typedef struct {
    int zero, ramp, fix;
} RetrofitSteps;
static inline RetrofitSteps retrofit_steps(int steps, bool adapter) {
    const int zero = adapter ? 0 : (steps + 9) / 10, ramp = steps / 2;
    return (RetrofitSteps){zero, ramp, steps - zero - ramp};
}

/* DIR/train.yaml: starts from its own folder, wherever that is moved, with its tokenizer or task, and also learns from
 * `teacher` (a directory; NULL: none). data.train is left to the user. `m`: the result's settings. The file is complete
 * or absent. */
bool recipe_write(const char *dir, const ModelCfg *m, const char *teacher, const Retrofit *, Err *);
