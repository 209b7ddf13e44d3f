/* config_steps.c: what a run's settings mean in steps: its stages, their place among the steps, lengths of
 * schedules. */
#include "config.h"

int config_stages(const Config *c) { return c->nstages ? c->nstages : 1; }

void config_dtype(Config *c, int dtype) {
    if (c->train.dtype == DTYPE_AUTO) c->train.dtype = dtype;
    for (int k = 0; k < c->nstages; k++)
        if (c->stage[k].cfg->train.dtype == DTYPE_AUTO) c->stage[k].cfg->train.dtype = dtype;
}
void config_frozen_dtype(Config *c, int dtype) {
    if (c->train.frozen_dtype == DTYPE_AUTO) c->train.frozen_dtype = dtype;
    for (int k = 0; k < c->nstages; k++) c->stage[k].cfg->train.frozen_dtype = c->train.frozen_dtype;
}
void config_save_dtype(Config *c, int dtype) {
    if (c->train.save_dtype == DTYPE_AUTO) c->train.save_dtype = dtype;
    for (int k = 0; k < c->nstages; k++)
        if (c->stage[k].cfg->train.save_dtype == DTYPE_AUTO) c->stage[k].cfg->train.save_dtype = dtype;
}
Stage config_stage(const Config *c, int k) {
    CHECK(k >= 0 && k < config_stages(c), "stage %d of %d", k, config_stages(c));
    if (c->nstages) return c->stage[k];
    return (Stage){.steps = c->train.steps, .cfg = (Config *)c};
}

int config_stage_at(const Config *c, int64_t step) {
    int k = 0;
    while (k + 1 < c->nstages && step > c->stage[k + 1].first) k++;
    return k;
}

void config_position(const Config *c, int64_t step, int64_t *samples, int64_t *tokens) {
    *samples = *tokens = 0;
    for (int k = 0; k <= config_stage_at(c, step); k++) {
        Stage s = config_stage(c, k);
        int64_t done = step - s.first < s.steps ? step - s.first : s.steps;
        *samples += done * s.cfg->train.batch;
        *tokens += done * s.cfg->train.batch * s.cfg->data.seq_len;
    }
}

static int64_t length_steps(Length s, const Config *c) {
    if (s.n == 0) return 0;
    double per = (double)c->train.batch * c->data.seq_len, steps = (double)c->train.steps;
    double n = s.unit == LENGTH_PERCENT  ? floor(s.n * steps / 100 + 0.5)
               : s.unit == LENGTH_TOKENS ? ceil(s.n / per)
                                         : s.n;
    return (int64_t)fmax(1, n);
}
ScheduleSteps config_schedule(const Config *c) {
    const OptimCfg *o = &c->optim;
    int64_t own = length_steps(o->schedule_steps, c);
    return (ScheduleSteps){length_steps(o->warmup, c), own ? own : c->train.steps, length_steps(o->decay_steps, c)};
}
