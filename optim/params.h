/* params.h: every weight beside its gradient and its two moments, collected by visitors.
 *
 * A model's weights, gradients, first and second moments are four structs of one declaration. Visiting each with the
 * visitor of its role pairs them by order and checks that names and shapes agree:
 *     Params p = {0};
 *     for (int role = 0; role < PARAM_ROLES; role++) { Fields f = params_visitor(&p, role); model_fields(m, ..., &f); }
 * No memory of numbers is owned; p stays valid while the four regions stand. */
#pragma once
#include "../ops/tensor.h"

typedef enum { PARAM_WEIGHT, PARAM_GRAD, PARAM_M, PARAM_V, PARAM_ROLES } ParamRole;
typedef struct {
    char name[192];
    unsigned flags;        /* FIELD_* */
    Tensor t[PARAM_ROLES]; /* one shape; ABSENT where a role was not visited */
} Param;
typedef struct {
    int n, cap;
    Param *p;     /* in order of declaration */
    int role, at; /* of the visit under way */
} Params;

/* Weights come first; a later role that meets another name, shape or number of tensors is our own mistake (CHECK). */
Fields params_visitor(Params *, ParamRole);
/* Weight decay is for matrices: rank >= 2 and neither FIELD_NODECAY nor FIELD_BALANCE. */
bool param_decays(const Param *);
/* All roles were visited in full. */
void params_check(const Params *);
void params_free(Params *);
