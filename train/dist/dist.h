/* dist.h: data-parallel training: decides which rank computes, sums, keeps and steps what. The steppers, the loop and
 * the saver call it; a single rank takes the same path with nothing to send.
 *
 * Rank r of W computes the micro-batches r, r + W, ... of a step. Their gradients are summed over the ranks unit by
 * unit (UnitHooks) while the backward pass continues with the next unit, and every rank has the same weights after
 * every step.
 *
 *   stage 0  every rank sums all gradients (a reduce of each unit) and steps all weights
 *   stage 1  every rank keeps the optimizer's state of 1/W of each unit and steps its weights: reduce-scatter, step,
 *            gather (ZeRO-1, arXiv:1910.02054, 5.1); the gather of a unit runs at the same time as the next step's
 *            forward of the unit before
 *   stage 2  also the gradients of that part alone: those of a whole unit exist while its backward and its
 *            reduce-scatter run, which happens for every micro-batch (ZeRO-2, 5.2)
 *
 * A micro-batch's gradient of a unit is complete before it is added to the sum of the step, so one rank with W
 * micro-batches and W ranks with one each add the same values in the same order. With several per rank the order
 * differs (on a rank first, then over ranks; stage 2: over ranks first).
 *
 * Layout of a unit between ranks (stages 1 and 2): its tensors one after the other, each padded to 256 elements, cut
 * into W parts of equal length, padded to 256: any number of parameters, any W. Weights whose optimizer steps them
 * whole (Optimizer.whole) are not cut: each has one owner, the next one by size going to the rank that owns least so
 * far; they are reduced whole after the parts, and sent by their owner. The norm of the gradient is the sum over
 * tensors of sums over blocks of 65,536 of each (Ops.sumsq), of which ranks compute branches: the same bits whatever W
 * and stage. */
#pragma once
#include "model/workspace.h"
#include "optim/clip.h"
#include "optim/state.h"
#include "train/comm/comm.h"
#include "train/regions.h"

/* What a micro-batch leaves besides its gradient; sums over them are taken in their order, whatever rank computed
 * them. */
enum {
    PART_NLL,
    PART_MERGED,
    PART_DECIDED,
    PART_STAT_LOSS,
    PART_KL,
    PART_RKL,
    PART_ATTENTION,
    PART_HIDDEN,
    PART_TOKENS,
    PART_RIGHT,
    PART_WHOLE,
    PARTS
};

typedef struct {
    int first, n; /* of Dist.all */
    size_t part, flat,
        whole;     /* elements: of one rank's part, of all parts without the final padding, of matrices with an owner */
    int own, nown; /* of Dist.own */
} DistUnit;
typedef struct {
    size_t at; /* first element in the unit's exchange */
    int owner; /* rank; -1: cut into parts; -2: nothing to do (the tensor is frozen) */
} DistPlace;
typedef struct Dist {
    Comm *comm;        /* NULL: alone */
    struct Device *at; /* the device of buf and all tensors of the model; NULL: host memory */
    int world, rank, stage;
    bool bf16;     /* gradients are sent in bf16 */
    int micros;    /* micro-batches of this rank in a step */
    bool in_place; /* their gradients add up in place, as a GPU's backward leaves them: a rank that sends none */
    Model *m;
    Workspace *work;
    Params all;            /* the model's tensors, as its units have them */
    const Params *trained; /* the trainer's own list */
    int nunit;
    DistUnit *unit;
    DistPlace *place;               /* (all->n) */
    Params own;                     /* what this rank steps: whole tensors, or ranges of them; in the order of `all` */
    int *of;                        /* (own.n) number in `all` */
    Arena grads, state[STATES_MAX]; /* of own, where they are not the model's and the trainer's */
    Arena units;                    /* gradients of a unit before they are complete */
    Arena wire;                     /* what travels: */
    real *buf;                      /* a unit */
    Arena sums;                     /* on a GPU: the part in host memory: */
    double *norm;                   /* (world, norms) branches of blocks, */
    size_t norms, *cursor;          /* the most of a rank; (world) */
    double *part;                   /* (world, micros, PARTS) */
    UnitHooks hooks;
    Mark mark[2];
    int micro;          /* of the step */
    int busy, micro_of; /* the unit whose gradients are being sent, -1; their micro-batch */
    int known;          /* units whose weights every rank has; below nunit, unit `known` is being sent */
    char name[3][64];
    Err err; /* of an exchange inside of a pass */
} Dist;

/* For a model opened for it, and the workspace of its training passes, whose units get hooks: dist_without_grads lists
 * what must not be in its regions. micros: of all ranks, a multiple of their number. Measures if the model is dry.
 * `trained`, which may be filled later, and the model must outlive it; gradients and states start at zero. comm NULL or
 * of one rank: stage counts as 0. */
bool dist_open(Dist *, Model *, Workspace *, const Params *trained, const OptimCfg *, Comm *, const DistCfg *,
               int micros, Err *);
/* Call when `trained` is filled: its rates of a tensor apply to ranges of it. With several ranks EXIT_INPUT if it has
 * something else than tensors of the model, whose gradients no rank sends. */
bool dist_adopt(Dist *, Err *);
void dist_close(Dist *);
void dist_params(Params *, Model *); /* all of the model's tensors, in the order of its units, without states */
bool dist_without_grads(const Comm *, const DistCfg *); /* ModelOpts.without_grads */
/* Checks that the step's batch is a whole number of micro-batches for every rank: EXIT_INPUT otherwise. */
bool dist_divides(const Comm *, int batch, int micro_batch, Err *);
static inline int dist_world(const Comm *c) { return c ? c->world : 1; }
static inline int dist_rank(const Comm *c) { return c ? c->rank : 0; }
/* What a rank sends in one step, counted for a ring (comm_bytes), and how many messages of them follow each other (W -
 * 1 a round): for gradients, with the norm and the losses, and for weights. Comparisons by checksum and the flags of
 * the loop are not counted. */
typedef struct {
    size_t gradients, weights; /* bytes */
    int64_t gradient_hops, weight_hops, calls;
} DistTraffic;
DistTraffic dist_traffic(const Dist *);
void dist_regions(const Dist *, Regions *);

/* ---- a step ---- */
void dist_begin(Dist *);              /* sets the gradients of the step to zero */
void dist_micro(Dist *, int micro);   /* before model_train of this rank's micro-th micro-batch */
bool dist_gradients(Dist *, Err *);   /* after the last: completes the sums */
double *dist_part(Dist *, int micro); /* (PARTS) of this rank's micro-batch, to be filled */
/* Sends all parts to all; sum (PARTS), in the order of micro-batches, of which there are n in all (n <= world x
 * micros). */
bool dist_sums(Dist *, const char *name, int n, double sum[PARTS], Err *);
/* Stages 1 and 2: the gradient's norm, from every rank's part. */
bool dist_norm(Dist *, Run *, double *norm, Err *);
/* Stages 1 and 2: optimizer_step on this rank's part. Every rank's weights are then sent to all, a unit at a time,
 * during the forward pass of the next step, which waits for the weights of a unit before it reads them. */
bool dist_step(Dist *, Run *, const OptimizerCfg *, double lr, double gscale, int64_t t, Err *);
/* optimizer_exchange, after optimizer_begin if no step was made, on the part that this rank steps; at stages 1 and 2
 * every rank's weights are then sent to all. All ranks. */
bool dist_exchange(Dist *, Run *, bool begin, Err *);
/* Waits for the weights of the last step. Call before reading weights other than in the next step's pass. All ranks. */
bool dist_weights(Dist *, Err *);
/* Mixer.stage_end on the optimizer's states, which are shared among ranks or in `trained`. */
void dist_stage_end(Dist *);

/* ---- what ranks agree on ---- */
/* flag[i]: is it set on any rank? *first, unless NULL: rank 0's value, which is finite. */
bool dist_any(Dist *, const char *name, bool *flag, int n, double *first, Err *);
/* Checks that weights (and at stage 0 the optimizer's states) are the same bits on every rank: EXIT_RUNTIME names the
 * ranks that differ from the majority. */
bool dist_check(Dist *, int64_t step, Err *);
/* The same for the initial weights, whose files may differ: EXIT_INPUT. */
bool dist_start(Dist *, Err *);
/* EXIT_INPUT: a rank runs with another `what` ("settings", "data") than rank 0. */
bool dist_same(Comm *, const char *what, uint64_t hash, Err *);
/* Sends rank 0's bytes to all. */
bool dist_tell(Comm *, const char *name, void *p, size_t bytes, Err *);
/* Gathers n words of every rank: all (world, n). */
bool dist_words(Comm *, const char *name, const uint64_t *mine, int n, uint64_t *all, Err *);
/* Agree on success: *ok becomes true if all ranks' are, and `e` the line of the first that failed, with its name.
 * False: the ranks could not be asked. A single rank does nothing. */
bool dist_all(Comm *, const char *name, bool *ok, Err *why, Err *e);
/* The same where the run ends otherwise: false on every rank with the same line, which rank 0 prints. */
bool dist_agreed(Comm *, const char *name, bool ok, Err *e);
