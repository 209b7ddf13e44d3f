/* dist.h: data parallel training: which rank computes, sums, keeps and steps what.
 *
 * Of the micro-batches of a step rank r of W takes r, r + W, ...; their gradients are summed over the ranks unit by
 * unit (UnitHooks) while the backward pass goes on with the next unit, and every rank has the same weights after every
 * step.
 *
 *   stage 0  every rank sums all gradients (a reduce of each unit) and steps all weights
 *   stage 1  every rank keeps the moments of 1/W of each unit and steps its weights: reduce-scatter, step, gather
 *            (ZeRO-1, arXiv:1910.02054, 5.1); the gather of a unit runs beside the next step's forward of the one
 *            before
 *   stage 2  also the gradients of that part alone: those of a whole unit exist while its backward and its
 *            reduce-scatter run, which happens for every micro-batch (ZeRO-2, 5.2)
 *
 * A micro-batch's gradient of a unit is complete before it is added to the sum of the step, so that one rank with W
 * micro-batches and W ranks with one each add the same numbers in the same order. With more of them on a rank the order
 * is another (on a rank first, then over ranks; stage 2: over ranks first).
 *
 * Layout of a unit between ranks (stages 1 and 2): its tensors one after the other, each padded to 256 numbers, cut
 * into W parts of equal length, padded to 256: any number of parameters, any W. Matrices that Muon steps are not cut:
 * each has one owner, the next one by size going to the rank that owns least so far; they are reduced whole behind the
 * parts, and sent by their owner. The norm of the gradient is the sum over tensors of sums over blocks of 65,536 of
 * each (Ops.sumsq), of which ranks compute branches: the same bits whatever W and stage. */
#pragma once
#include "../model/model.h"
#include "../optim/clip.h"
#include "../optim/step.h"
#include "comm.h"

/* What a micro-batch leaves beside its gradient; sums over them are taken in their order, on whatever rank they were.
 */
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
    int first, n;             /* of Dist.all */
    size_t part, flat, whole; /* numbers: of one rank's part, of all parts without the padding behind, of matrices
                                 with an owner */
    int own, nown;            /* of Dist.own */
} DistUnit;
typedef struct {
    size_t at; /* first number in the unit's exchange */
    int owner; /* rank; -1: cut into parts; -2: nothing is to be done (no moments: the tensor is frozen) */
} DistPlace;
typedef struct Dist {
    Comm *comm;        /* NULL: alone */
    struct Device *at; /* where buf and all numbers of the model lie; NULL: with the host */
    int world, rank, stage;
    bool bf16;  /* gradients travel so */
    int micros; /* micro-batches of this rank in a step */
    bool
        in_place; /* their gradients add up where they lie, as a device's backward makes them: a rank that sends none */
    Model *m;
    Params all;            /* the model's tensors, as its units have them */
    const Params *trained; /* the trainer's own list: what one rank, or stage 0, clips and steps */
    int nunit;
    DistUnit *unit;
    DistPlace *place;           /* (all->n) */
    Params own;                 /* what this rank steps: tensors, or ranges of them; in the order of `all` */
    int *of;                    /* (own.n) number in `all` */
    Arena grads, first, second; /* of own, where they are not the model's */
    Arena units;                /* gradients of a unit before they are complete */
    Arena wire;                 /* what travels: */
    real *buf;                  /* a unit */
    Arena sums;                 /* of a device: what of it is the host's: */
    double *norm;               /* (world, norms) branches of blocks, */
    size_t norms, *cursor;      /* the most of a rank; (world) */
    double *part;               /* (world, micros, PARTS) */
    UnitHooks hooks;
    Mark mark[2];
    int micro;          /* of the step */
    int busy, micro_of; /* the unit whose gradients are under way, -1; their micro-batch */
    int known;          /* units whose weights every rank has; below nunit those of that one are under way */
    char name[3][64];
    Err err; /* of an exchange inside of a pass */
} Dist;

/* Of a model opened for it: what dist_without says must not be in its regions. micros: of all ranks, a multiple of
 * their number. Measures where the model is dry. `trained`, which may be filled later, and the
 * model must outlive it; gradients and moments start at
 * zero. comm NULL or of one rank: stage counts as 0. */
bool dist_open(Dist *, Model *, const Params *trained, const OptimizerCfg *, Comm *, const DistCfg *, int micros,
               Err *);
/* `trained` is filled: what it says of a tensor beside its numbers (rates) holds for ranges of it. Several ranks:
 * EXIT_INPUT where it has something else than tensors of the model, whose gradients no rank sends. */
bool dist_adopt(Dist *, Err *);
void dist_close(Dist *);
void dist_params(Params *, Model *);                  /* all of the model's tensors, in the order of its units */
unsigned dist_without(const Comm *, const DistCfg *); /* ModelOpts.without */
/* The step's batch is a whole number of micro-batches for every rank: EXIT_INPUT otherwise. */
bool dist_divides(const Comm *, int batch, int micro_batch, Err *);
static inline int dist_world(const Comm *c) { return c ? c->world : 1; }
static inline int dist_rank(const Comm *c) { return c ? c->rank : 0; }
/* What a rank sends in one step, by the theory of rings (comm_bytes), and how many messages of them follow on each
 * other (W - 1 a round): for gradients, with the norm and the losses, and for weights. Comparisons by checksum and the
 * flags of the loop are left out. */
typedef struct {
    size_t gradients, weights; /* bytes */
    int64_t gradient_hops, weight_hops, calls;
} DistTraffic;
DistTraffic dist_traffic(const Dist *);

/* ---- a step ---- */
void dist_begin(Dist *);              /* gradients of the step are zero */
void dist_micro(Dist *, int micro);   /* before model_train of this rank's micro-th micro-batch */
bool dist_gradients(Dist *, Err *);   /* behind the last: the sums are complete */
double *dist_part(Dist *, int micro); /* (PARTS) of this rank's micro-batch, to be filled */
/* All parts are known to all; sum (PARTS), in the order of micro-batches, of which there are n in all (n <= what fits:
 * world x micros). */
bool dist_sums(Dist *, const char *name, int n, double sum[PARTS], Err *);
bool dist_clip(Dist *, Run *, double max_norm, Clip *, Err *);
/* optimizer_step on this rank's own. At stages 1 and 2 everybody's weights then travel to everybody, a unit at a time,
 * beside the forward pass of the next step, which waits for those of a unit before it reads them. */
bool dist_step(Dist *, Run *, const OptimizerCfg *, double lr, double gscale, int64_t t, Err *);
/* The weights of the last step are here: whoever reads them otherwise than by the next step's pass asks before. All
 * ranks. */
bool dist_weights(Dist *, Err *);
/* Mixer.stage_end on moments that are not in the model's regions. */
void dist_stage_end(Dist *);

/* ---- what ranks agree on ---- */
/* flag[i]: whether it is set on any rank. *first, unless NULL: rank 0's, which is finite. */
bool dist_any(Dist *, const char *name, bool *flag, int n, double *first, Err *);
/* Weights (and at stage 0 moments) are the same bits on every rank: EXIT_WORLD names those that differ from the most.
 */
bool dist_check(Dist *, int64_t step, Err *);
/* The same of what they begin with, whose files may differ: EXIT_INPUT. */
bool dist_start(Dist *, Err *);
/* EXIT_INPUT: a rank runs with another `what` ("settings", "data") than rank 0. */
bool dist_same(Comm *, const char *what, uint64_t hash, Err *);
/* Rank 0's bytes to all. */
bool dist_tell(Comm *, const char *name, void *p, size_t bytes, Err *);
/* n words of every rank: all (world, n). */
bool dist_words(Comm *, const char *name, const uint64_t *mine, int n, uint64_t *all, Err *);
/* Whether all ranks are well: *ok becomes that of all of them, and why the line of the first that is not, with its
 * name. False: they could not be asked. Alone: nothing is to be done. */
bool dist_all(Comm *, const char *name, bool *ok, Err *why, Err *e);
/* The same where the run ends otherwise: false on every rank with the same line, which is rank 0's to say. */
bool dist_agreed(Comm *, const char *name, bool ok, Err *e);

/* ---- moments put aside ----------------------------------------------------------------------------------------------
 * What this rank steps, at stages 1 and 2, as it is at one moment. */
typedef struct {
    Arena mem;
    Params own; /* as Dist.own, with these moments */
} DistAside;
bool dist_aside_open(DistAside *, const Dist *, bool dry, Err *);
void dist_aside_take(DistAside *, const Dist *);
void dist_aside_close(DistAside *);
