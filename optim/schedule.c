/* schedule.c: learning rates. */
#include "schedule.h"

static double warm(const ScheduleCfg *c, int64_t t) { return c->lr * (double)(t + 1) / (double)(c->warmup + 1); }

static double cosine(const ScheduleCfg *c, int64_t t) {
    if (t < c->warmup) return warm(c, t);
    if (t >= c->steps) return c->min_lr;
    double done = (double)(t - c->warmup) / (double)(c->steps - c->warmup);
    return c->min_lr + (c->lr - c->min_lr) * (1 + cos(M_PI * done)) / 2;
}

static double constant(const ScheduleCfg *c, int64_t t) { return t < c->warmup ? warm(c, t) : c->lr; }

static double linear(const ScheduleCfg *c, int64_t t) {
    if (t < c->warmup) return warm(c, t);
    if (t >= c->steps) return c->min_lr;
    return c->min_lr + (c->lr - c->min_lr) * (double)(c->steps - t) / (double)(c->steps - c->warmup);
}

static double wsd(const ScheduleCfg *c, int64_t t) {
    if (t < c->warmup) return warm(c, t);
    if (t >= c->steps) return c->min_lr;
    if (t < c->steps - c->decay) return c->lr;
    return c->min_lr + (c->lr - c->min_lr) * (double)(c->steps - t) / (double)c->decay;
}

const Schedule schedules[SCHEDULES] = {
    {"cosine", cosine},
    {"constant", constant},
    {"linear", linear},
    {"wsd", wsd},
};

const Schedule *schedule_find(const char *name) {
    for (int i = 0; i < SCHEDULES; i++)
        if (!strcmp(schedules[i].name, name)) return &schedules[i];
    return NULL;
}
