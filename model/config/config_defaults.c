/* config_defaults.c: derives defaults from what the user wrote, so that train.steps=50, train.batch=4 or optim.lr=3e-5
 * are complete settings. A value that the user wrote is never changed. */
#include "config_keys.h"

enum { FOLLOW_WARMUP, FOLLOW_MICRO, FOLLOW_MIN_LR, FOLLOWERS };
static const struct {
    const char *section, *name;
} followers[FOLLOWERS] = {[FOLLOW_WARMUP] = {"optim", "warmup"},
                          [FOLLOW_MICRO] = {"train", "micro_batch"},
                          [FOLLOW_MIN_LR] = {"optim", "min_lr"}};
static bool config_defaults_follows(const Config *c, int i) { return c->follows >> i & 1; }

bool config_given(const Node *root, const char *section, const char *name) {
    const Node *s = tree_get(root, section);
    return s && tree_get(s, name);
}

/* The table's default is the maximum. Warmup leaves nine tenths of the schedule to the rest, and wsd its decay. */
static void warmup_follows(Config *c) {
    ScheduleSteps len = config_schedule(c);
    const bool falls = c->optim.schedule != SCHEDULE_CONSTANT;
    int64_t end = falls ? len.steps : c->train.steps, most = end / 10;
    if (c->optim.schedule == SCHEDULE_WSD && most > end - len.decay) most = end - len.decay;
    if (most < 0) most = 0;
    if (len.warmup > most) c->optim.warmup = (Length){(double)most, LENGTH_STEPS};
}
/* Choose the largest divisor of batch that gives every rank equally many micro-batches. It is 1 if batch cannot be
 * divided evenly; the code that knows the ranks refuses that. */
static void micro_follows(TrainCfg *t, int most, int world) {
    for (t->micro_batch = imin(most, t->batch); t->micro_batch > 1; t->micro_batch--)
        if (t->batch % ((int64_t)t->micro_batch * world) == 0) return;
}
static int micro_most(void) {
    for (const Key *k = train_keys;; k++)
        if (!strcmp(k->name, followers[FOLLOW_MICRO].name)) return atoi(k->dflt);
}

/* A tenth of lr, with the digits that people write: 3e-4 for 3e-3. A constant rate has no final value. */
static void min_lr_follows(OptimCfg *o) {
    char text[40];
    if (o->schedule == SCHEDULE_CONSTANT) return;
    snprintf(text, sizeof text, "%.12g", o->lr / 10);
    o->min_lr = strtod(text, NULL);
}

void defaults_follow(Config *c, const Node *root) {
    for (int i = 0; i < FOLLOWERS; i++)
        if (!config_given(root, followers[i].section, followers[i].name)) c->follows |= 1u << i;
    if (config_defaults_follows(c, FOLLOW_WARMUP)) warmup_follows(c);
    if (config_defaults_follows(c, FOLLOW_MICRO)) micro_follows(&c->train, micro_most(), 1);
    if (config_defaults_follows(c, FOLLOW_MIN_LR)) min_lr_follows(&c->optim);
}

void defaults_leave(const Config *c, Node *root) {
    for (int i = 0; i < FOLLOWERS; i++)
        if (config_defaults_follows(c, i)) tree_remove(root, followers[i].section, followers[i].name);
}

void defaults_write(const Config *c, const Config *run, Writer *w) {
    const OptimCfg *o = &c->optim, *was = &run->optim;
    if (config_defaults_follows(c, FOLLOW_WARMUP) &&
        (o->warmup.n != was->warmup.n || o->warmup.unit != was->warmup.unit))
        write_name(w, "optim.warmup"), write_number(w, o->warmup.n);
    if (config_defaults_follows(c, FOLLOW_MICRO) && c->train.micro_batch != run->train.micro_batch)
        write_name(w, "train.micro_batch"), write_int(w, c->train.micro_batch);
    if (config_defaults_follows(c, FOLLOW_MIN_LR) && o->min_lr != was->min_lr)
        write_name(w, "optim.min_lr"), write_number(w, o->min_lr);
}

void config_ranks(Config *c, int world) {
    if (config_defaults_follows(c, FOLLOW_MICRO)) micro_follows(&c->train, micro_most(), world);
    for (int k = 0; k < c->nstages; k++) config_ranks(c->stage[k].cfg, world);
}

void config_adopt(Config *now, const Config *saved) {
    if (config_defaults_follows(now, FOLLOW_WARMUP)) now->optim.warmup = saved->optim.warmup;
    if (config_defaults_follows(now, FOLLOW_MICRO)) now->train.micro_batch = saved->train.micro_batch;
    if (config_defaults_follows(now, FOLLOW_MIN_LR)) now->optim.min_lr = saved->optim.min_lr;
    for (int k = 0; k < now->nstages && k < saved->nstages; k++) config_adopt(now->stage[k].cfg, saved->stage[k].cfg);
}
