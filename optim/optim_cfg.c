/* optim_cfg.c: the tables of optim.* and optim.groups. */
#include "optim_cfg.h"
#include "optimizer.h"

static const char *const states[] = {"f32", "bf16", NULL},
                         *const schedules[] = {"cosine", "constant", "linear", "wsd", NULL},
                         *const schedule_bys[] = {"steps", "time", NULL};

#define AT(member) offsetof(OptimCfg, member)
const Key optim_keys[] = {
    {"kind", KEY_CHOICE, AT(kind), "adamw", 0, 0,
     "optimizer; muon: Muon for the matrices of hidden layers, AdamW for everything else; lion: sign of a running "
     "mean, one state; schedule_free: AdamW whose model is the mean of its iterates, needs schedule constant",
     optimizer_names, 0},
    {"state_dtype", KEY_CHOICE, AT(state_dtype), "f32", 0, 0,
     "dtype of the optimizer's moments; bf16: half the bytes, with stochastic rounding", states, 0},
    {"muon_momentum", KEY_FLOAT, AT(muon_momentum), "0.95", 0, 0.9999999, "Muon's momentum", 0, 0},
    {"muon_nesterov", KEY_BOOL, AT(muon_nesterov), "true", 0, 0, "muon: use Nesterov momentum", 0, 0},
    {"muon_steps", KEY_INT, AT(muon_steps), "5", 1, 20, "muon: steps of the Newton-Schulz iteration", 0, 0},
    {"muon_scale", KEY_FLOAT, AT(muon_scale), "0.2", 1e-6, 1e3,
     "muon: size of an update, times sqrt(max(rows, columns)); 0.2 matches AdamW's", 0, 0},
    {"lr", KEY_FLOAT, AT(lr), "1e-3", 0, 100, "highest learning rate", 0, 0},
    {"min_lr", KEY_FLOAT, AT(min_lr), "1e-4", 0, 100,
     "learning rate at the end of cosine, linear and wsd. Default: lr / 10", 0, 0},
    {"weight_decay", KEY_FLOAT, AT(weight_decay), "0.1", 0, 100,
     "decoupled weight decay of matrices, times the learning rate", 0, 0},
    {"clip", KEY_FLOAT, AT(clip), "1.0", 0, 1e9,
     "largest norm of the gradient, larger ones are scaled down; 0: no limit", 0, 0},
    {"beta1", KEY_FLOAT, AT(beta1), "0.9", 0, 0.9999999,
     "decay of the mean of gradients; lion: its weight in a step; schedule_free: weight of the mean of iterates", 0, 0},
    {"beta2", KEY_FLOAT, AT(beta2), "0.95", 0, 0.9999999,
     "decay of the mean of squared gradients; lion: of the mean of gradients. Default: 0.95, lion 0.99, schedule_free "
     "0.999",
     0, 0},
    {"eps", KEY_FLOAT, AT(eps), "1e-8", 1e-20, 1, "added to the square root of the second moment", 0, 0},
    {"balance_rate", KEY_FLOAT, AT(balance_rate), "1e-3", 0, 1,
     "step of the balancing biases of moe routers (bias_balance), up or down; 0: they do not change", 0, 0},
    {"warmup", KEY_LENGTH, AT(warmup), "100", 0, 1e12,
     "linear growth of the learning rate; N%: of the run or stage. Default: 100 steps, at most a tenth of them all", 0,
     0},
    {"schedule_steps", KEY_LENGTH, AT(schedule_steps), "0", 0, 1e12,
     "length of cosine, linear and wsd; 0: the whole run or stage", 0, 0},
    {"schedule_by", KEY_CHOICE, AT(schedule_by), "steps", 0, 0,
     "progress of the schedule; time: the larger of the fraction of train.max_seconds and of the steps done, so that a "
     "run that the time limit ends has decayed to min_lr; such a run is not repeatable, with steps it is the same to "
     "the bit",
     schedule_bys, 0},
    {"decay_steps", KEY_LENGTH, AT(decay_steps), "0", 0, 1e12, "length of wsd's decay, at the end of schedule_steps", 0,
     0},
    {"groups", KEY_OTHER, 0, "", 0, 0, "list of tensors with their own rates; the first match counts: see below", 0, 0},
    {"schedule", KEY_CHOICE, AT(schedule), "cosine", 0, 0, "learning rate after warmup", schedules, 0},
    {0}};
#undef AT
#define AT(member) offsetof(OptimGroup, member)
const Key group_keys[] = {{"match", KEY_TEXT, AT(match), NULL, 0, 0, "glob of tensors' names", 0, 0},
                          {"lr_scale", KEY_FLOAT, AT(lr_scale), "1", 0, 1e4, "factor of the learning rate", 0, 0},
                          {"weight_decay", KEY_FLOAT, AT(weight_decay), "optim.weight_decay", 0, 100, "of its matrices",
                           0, 0},
                          {0}};
#undef AT
