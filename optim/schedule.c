/* schedule.c: learning rates. */
#include "schedule.h"

static double schedule_warm(const ScheduleCfg *c, double t) { return c->lr * (t + 1) / (double)(c->warmup + 1); }

static double schedule_cosine(const ScheduleCfg *c, double t) {
    if (t < (double)c->warmup) return schedule_warm(c, t);
    if (t >= (double)c->steps) return c->min_lr;
    double done = (t - (double)c->warmup) / (double)(c->steps - c->warmup);
    return c->min_lr + (c->lr - c->min_lr) * (1 + cos(M_PI * done)) / 2;
}

static double schedule_constant(const ScheduleCfg *c, double t) {
    return t < (double)c->warmup ? schedule_warm(c, t) : c->lr;
}

static double schedule_linear(const ScheduleCfg *c, double t) {
    if (t < (double)c->warmup) return schedule_warm(c, t);
    if (t >= (double)c->steps) return c->min_lr;
    return c->min_lr + (c->lr - c->min_lr) * ((double)c->steps - t) / (double)(c->steps - c->warmup);
}

static double schedule_wsd(const ScheduleCfg *c, double t) {
    if (t < (double)c->warmup) return schedule_warm(c, t);
    if (t >= (double)c->steps) return c->min_lr;
    if (t < (double)(c->steps - c->decay)) return c->lr;
    return c->min_lr + (c->lr - c->min_lr) * ((double)c->steps - t) / (double)c->decay;
}

const Schedule schedules[SCHEDULES] = {
    {"cosine", schedule_cosine},
    {"constant", schedule_constant},
    {"linear", schedule_linear},
    {"wsd", schedule_wsd},
};

const Schedule *schedule_find(const char *name) {
    for (int i = 0; i < SCHEDULES; i++)
        if (!strcmp(schedules[i].name, name)) return &schedules[i];
    return NULL;
}

double schedule_share(double elapsed, double began, double most) {
    if (elapsed >= most) return 1; /* also for a stage that began after the end */
    return fmax(0, (elapsed - began) / (most - began));
}

double schedule_position(const ScheduleCfg *c, int64_t done, double share) {
    return fmax((double)done, share * (double)c->steps);
}
