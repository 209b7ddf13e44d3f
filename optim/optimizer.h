/* optimizer.h: an Optimizer is an entry of the table from which optim.kind chooses. Training calls optimizer_step for
 * every step.
 *
 * An optimizer is one file with an `Optimizer`, and one line in optimizers.c. It declares with state_field what it
 * keeps of a weight; memory, checkpoints, shards between ranks, bf16 and adapters are visitors over these declarations
 * (state.h; train/), so nothing else knows what an optimizer keeps. See docs/add-an-optimizer.md. */
#pragma once
#include "optim_cfg.h"
#include "params.h"

typedef struct {
    const OptimCfg *set; /* optim.kind, rates of decay, ... */
    uint64_t seed;       /* seed of the rounding of states that are BF16 */
    int64_t skipped;     /* skipped steps of the run: Param.since counts them, t does not */
    /* Without Optimizer.scale_by_host: the square of the gradients' norm on the device (clip_there), by which they are
     * clipped to `most` as in clip_norm; if it is not finite nothing is changed. NULL: only gscale scales. */
    const double *square;
    double most;
    double share; /* Optimizer.weight of this step, and its sum up to this step */
} OptimizerCfg;

/* One step of one parameter: the parameter's t-th, t >= 1, with gradients read times gscale and not changed. */
typedef struct {
    const Param *p;
    double lr, gscale;
    int64_t t;
} ParamStep;

enum { APPLY_MAX = 256 }; /* parameters in one call of Optimizer.apply */
typedef struct Optimizer {
    const char *name;               /* as in optim.kind */
    const char *memory[STATES_MAX]; /* names of the regions of its states in --plan, in order; NULL: no more */
    double beta1, beta2;            /* defaults of optim.beta1 and beta2; 0: those of the table of settings */
    /* Between ranks: a weight is stepped whole, by the rank that owns it. Otherwise ranks step any ranges of it. */
    bool whole;
    bool scale_by_host; /* only gscale scales gradients: OptimizerCfg.square is NULL */
    /* The weights that it steps; AdamW steps the others, and always those of FIELD_BALANCE. NULL: all. */
    bool (*takes)(Tensor weight, unsigned flags);
    /* Declares the states of a weight: state_field of s[0], s[1], ... */
    void (*state)(Fields *, Tensor s[STATES_MAX], Tensor weight);
    /* One step of n parameters, n <= APPLY_MAX. While measuring, tensors need only shapes. */
    void (*apply)(Run *, const OptimizerCfg *, int n, const ParamStep *);
    /* For an optimizer that steps other weights than those that are evaluated and saved: */
    bool own_schedule; /* it needs optim.schedule constant and a run without stages */
    unsigned begins;   /* bit k: state k is the weight before the first step; others begin at zero */
    int other;         /* 1 + the state that holds the weights' other form (optimizer_exchange); 0: there is one form */
    /* Weight of the t-th step in a mean over steps; OptimizerCfg.share is its fraction. NULL: no such mean. */
    double (*weight)(const OptimCfg *, double lr, int64_t t);
} Optimizer;

extern const Optimizer *const optimizers[]; /* NULL-ended, by OptimCfg.kind */
extern const char *const optimizer_names[]; /* their names, NULL-ended: the choices of optim.kind */
extern const Optimizer adamw_optimizer;     /* steps the weights that others leave */
const Optimizer *optimizer_of(const OptimCfg *);

/* Optimizer.state: a tensor of the weight's shape, BF16 under optim.state_dtype bf16 unless flags have FIELD_F32. */
static inline void state_field(Fields *f, Tensor *t, const char *name, unsigned flags, Tensor weight) {
    field_declare(f, t, name, flags, weight.rank, weight.n);
}

/* The optimizer of each parameter that is not frozen, and its states without memory. */
void optimizer_declare(Params *, const OptimCfg *);
/* The t-th step, t >= 1, at learning rate lr times each parameter's lr_scale; gradients are read times gscale and not
 * changed. A parameter that is trained only since a later step counts t + skipped - since. While measuring, tensors of
 * the parameters need only shapes. */
void optimizer_step(Run *, const Params *, const OptimizerCfg *, double lr, double gscale, int64_t t);
/* Call before the first step, with the run's initial weights: sets the states of Optimizer.begins. */
void optimizer_begin(Run *, const Params *);
/* Exchanges the form of weights in which they are evaluated and saved with the form in which steps are made, or back,
 * by Optimizer.other. Parameters with one form do not change. */
void optimizer_exchange(Run *, const Params *);
