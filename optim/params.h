/* params.h: every weight beside its gradient and its two moments, collected by visitors.
 *
 * A model's weights, gradients, first and second moments are four structs of one declaration. Visiting each with the
 * visitor of its role pairs them by order and checks that names and shapes agree:
 *     Params p = {0};
 *     for (int role = 0; role < PARAM_ROLES; role++) { Fields f = params_visitor(&p, role); model_fields(m, ..., &f); }
 * Moments may be narrower than weights (BF16). No memory of numbers is owned; p stays valid while the four regions
 * stand. */
#pragma once
#include "../ops/ops.h"

typedef enum { PARAM_WEIGHT, PARAM_GRAD, PARAM_M, PARAM_V, PARAM_ROLES } ParamRole;
typedef struct {
    char name[192];
    unsigned flags;  /* FIELD_* */
    bool frozen;     /* not trained: no moments, no step, no part in the norm; gradients may leave it out */
    double lr_scale; /* factor of the learning rate; 1 unless set */
    bool own_decay;  /* `decay` is its weight decay, where it decays at all, not the optimizer's */
    double decay;
    int64_t since; /* steps of the run before it was trained, 0 unless set: what the optimizer counts begins there */
    Tensor t[PARAM_ROLES]; /* one shape; ABSENT where a role was not visited */
    size_t at;             /* of a range: its first number's place in the tensor; else 0 */
} Param;
typedef struct {
    int n, cap;
    Param *p;     /* in order of declaration */
    int role, at; /* of the visit under way */
} Params;

/* The key of a tensor's stochastic rounding in the t-th step: of seed, step and name, so that resuming, threads and
 * sharding change nothing. */
Rounding param_rounding(const Param *, uint64_t seed, int64_t t);
/* Weights come first; a later role that meets another name, shape or number of tensors is our own mistake (CHECK).
 * Moments may leave tensors out. */
Fields params_visitor(Params *, ParamRole);
/* Numbers from..from+n-1 of p, weight and gradient, as a parameter of their own that elementwise steps may be taken on:
 * decay and rounding are as in the whole. Moments that p has get their dtype and n numbers, without memory. n < 2^31.
 */
Param param_range(const Param *p, size_t from, size_t n);
/* Weight decay is for matrices: rank >= 2 and neither FIELD_NODECAY nor FIELD_BALANCE. */
bool param_decays(const Param *);
/* All roles were visited in full; second moments only where `second` wants them (NULL: everywhere). */
void params_check(const Params *, bool (*second)(Tensor weight, unsigned flags));
void params_free(Params *);
