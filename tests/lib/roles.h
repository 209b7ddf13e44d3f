/* roles.h: what ops.def declares about an op's arguments, as data, and a table of ops that records the arguments of
 * calls and checks them. test_ops_ref.c tries every declared form. */
#pragma once
#include "rig.h"

enum {
    ROLE_NONE = 0,
    ROLE_IN = 1,
    ROLE_OUT = 2,
    ROLE_ADD = 4,
    ROLE_INOUT = 8,
    ROLE_OPTIONAL = 16,
    ROLE_OVERWRITE = 32,
    ROLE_BF16 = 64,
    ROLE_ALIKE = 128,
    ROLE_WEIGHT = 256,
    ROLE_MOMENT = 512
};
enum { ROLE_ARGS = 12 };
typedef struct {
    const char *op;
    struct {
        const char *name; /* NULL after the last */
        unsigned roles;
    } arg[ROLE_ARGS + 1];
} OpRoles;
const OpRoles *op_roles(int *n);

/* A table that watches every call and then makes it by `under`. Process-wide, as what it has seen is. */
const Ops *roles_table(const Ops *under);
/* The first call that did what ops.def does not allow: a BF16 tensor where none may be, ALIKE tensors of two types, an
 * absent one that is not OPTIONAL. "": none. */
const char *roles_broken(void);
void roles_forget(void);
/* A table of ops that do nothing. */
extern const Ops roles_nothing;
