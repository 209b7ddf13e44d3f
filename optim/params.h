/* params.h: a list of all weights with their gradients and the optimizer's states, collected by visitors. The trainer
 * makes one when it opens a stage; the optimizer and clipping work on it.
 *
 * A model's weights and gradients are two structs of one declaration. Visiting each with the visitor of its role pairs
 * them by order and checks that names and shapes agree:
 *     Params p = {0};
 *     for (int role = 0; role < PARAM_ROLES; role++) { Fields f = params_visitor(&p, role); model_fields(m, ..., &f); }
 *     optimizer_declare(&p, settings);
 * It owns no tensor memory; p stays valid while the regions exist. */
#pragma once
#include "ops/ops.h"

typedef enum { PARAM_WEIGHT, PARAM_GRAD, PARAM_ROLES } ParamRole;
/* Tensors that an optimizer may keep of one weight (optimizer.h). */
enum { STATES_MAX = 4 };
typedef struct {
    char name[24]; /* as the optimizer declares it; in a checkpoint NAME.<name of the weight> */
    Tensor t;      /* ABSENT: there is none */
} ParamState;
typedef struct {
    char name[192];
    unsigned flags;  /* FIELD_* */
    bool frozen;     /* not trained: no state, no step, no part in the norm; gradients may omit it */
    double lr_scale; /* factor of the learning rate; 1 unless set */
    bool own_decay;  /* `decay` is its weight decay, where it decays at all, not the optimizer's */
    double decay;
    int64_t since; /* steps of the run before it was trained, 0 unless set: what the optimizer counts begins there */
    Tensor t[PARAM_ROLES];      /* one shape; ABSENT where a role was not visited */
    const struct Optimizer *by; /* who steps it; NULL: frozen, or nothing is declared */
    ParamState state[STATES_MAX];
    size_t at, whole; /* of a range: its first number's place in the tensor; else 0; the tensor's numbers */
} Param;
typedef struct {
    int n, cap;
    Param *p;     /* in order of declaration */
    int role, at; /* of the visit under way */
} Params;

/* The key of a tensor's stochastic rounding in the t-th step: of seed, step and name, so that resuming, threads and
 * sharding change nothing. */
Rounding param_rounding(const Param *, uint64_t seed, int64_t t);
/* Weights come first; gradients that meet another name, shape or number of tensors are our own mistake (CHECK). */
Fields params_visitor(Params *, ParamRole);
/* Numbers from..from+n-1 of p, weight and gradient, as a parameter of their own that elementwise steps may be taken on:
 * who steps it, decay and rounding are as in the whole. Its states get their dtype and n numbers, without memory.
 * n < 2^31. */
Param param_range(const Param *p, size_t from, size_t n);
/* Weight decay is for matrices: rank >= 2 and neither FIELD_NODECAY nor FIELD_BALANCE. */
bool param_decays(const Param *);
/* Its weight decay: its own or `dflt`, 0 where it does not decay. */
double param_decay(const Param *, double dflt);
/* Both roles were visited in full. */
void params_check(const Params *);
void params_free(Params *);
