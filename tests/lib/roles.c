/* roles.c: see roles.h. */
#include "roles.h"

/* ---- ops.def as data ---- */
#define ROLE_1(a)                           ROLE_##a
#define ROLE_2(a, ...)                      ROLE_##a | ROLE_1(__VA_ARGS__)
#define ROLE_3(a, ...)                      ROLE_##a | ROLE_2(__VA_ARGS__)
#define ROLE_4(a, ...)                      ROLE_##a | ROLE_3(__VA_ARGS__)
#define ROLE_5(a, ...)                      ROLE_##a | ROLE_4(__VA_ARGS__)
#define ROLE_COUNTED(a, b, c, d, e, n, ...) n
#define ROLES(...)                          ROLE_COUNTED(__VA_ARGS__, ROLE_5, ROLE_4, ROLE_3, ROLE_2, ROLE_1, )(__VA_ARGS__)
#define ARG_ROLES(type, name, ...)          {#name, ROLES(__VA_ARGS__)},
enum {
#define DEF(result, op, ...) AT_##op,
#include "ops/ops.def"
    OPS
};
static const OpRoles roles[OPS] = {
#define DEF(result, op, flops, ...) {#op, {OP_EACH(ARG_ROLES, __VA_ARGS__)}},
#include "ops/ops.def"
};
const OpRoles *op_roles(int *n) {
    *n = OPS;
    return roles;
}

/* ---- what calls bring ---- */
static char broken[200];
static int alike; /* type of the ALIKE tensors that the call has shown so far; NONE_YET */
enum { NONE_YET = -1 };
const char *roles_broken(void) { return broken; }
void roles_forget(void) { *broken = 0; }
static void breaks(int op, int at, const char *what) {
    if (!*broken) snprintf(broken, sizeof broken, "%s: %s %s", roles[op].op, roles[op].arg[at].name, what);
}
static void see_tensor(int op, int at, Tensor t) {
    const unsigned of = roles[op].arg[at].roles;
    if (!present(t)) {
        if (!(of & ROLE_OPTIONAL)) breaks(op, at, "is absent");
        return;
    }
    if (t.dtype == BF16 && !(of & (ROLE_BF16 | ROLE_ALIKE | ROLE_WEIGHT | ROLE_MOMENT))) breaks(op, at, "is BF16");
    if (of & ROLE_ALIKE) {
        if (alike != NONE_YET && alike != (int)t.dtype) breaks(op, at, "is of another type than those before it");
        alike = (int)t.dtype;
    }
}
static void see_into(int op, int at, Into x) { see_tensor(op, at, x.t); }
static void see_present(int op, int at, Tensor t) {
    if (present(t)) see_tensor(op, at, t);
}
static void see_kv(int op, int at, const Kv *kv) { see_present(op, at, kv->k), see_present(op, at, kv->v); }
static void see_recur(int op, int at, const Recur *x) {
    see_present(op, at, x->q), see_present(op, at, x->k), see_present(op, at, x->v), see_present(op, at, x->e);
}
static void see_kv_into(int op, int at, const KvInto *x) { see_kv(op, at, &x->kv); }
static void see_recur_into(int op, int at, const RecurInto *x) {
    see_present(op, at, x->q.t), see_present(op, at, x->k.t), see_present(op, at, x->v.t), see_present(op, at, x->e.t);
}
static void see_recur_itself(int op, int at, Recur x) { see_recur(op, at, &x); }
static void see_projection(int op, int at, const Projection *p) {
    if (roles[op].arg[at].roles != ROLE_IN) see_present(op, at, p->y); /* else its w alone is read */
}
static void see_nothing(int op, int at, ...) { (void)op, (void)at; }
#define SEE(type, name, ...) \
    _Generic((name), Tensor                                                              \
             : see_tensor, Into                                                          \
             : see_into, const KvInto *                                                  \
             : see_kv_into, const RecurInto *                                            \
             : see_recur_into, Kv *                                                      \
             : see_kv, const Kv *                                                        \
             : see_kv, Recur                                                             \
             : see_recur_itself, const Recur *                                           \
             : see_recur, const Projection *                                             \
             : see_projection, default                                                   \
             : see_nothing)(role_op_, role_arg_++, name);

typedef struct {
    Ops table; /* first: Run.ops points here */
    const Ops *under;
} Noting;
#define KEEP_void
#define KEEP_double double result_ =
#define GIVE_void
#define GIVE_double return result_;
#define DEF(result, op, flops, ...)                                        \
    static result op##_noted(Run *r OP_EACH(OP_PARAM, __VA_ARGS__)) {      \
        const int role_op_ = AT_##op;                                      \
        int role_arg_ = 0;                                                 \
        const Ops *under_ = ((const Noting *)(const void *)r->ops)->under; \
        alike = NONE_YET;                                                  \
        OP_EACH(SEE, __VA_ARGS__)                                          \
        KEEP_##result under_->op(r OP_EACH(OP_ARG, __VA_ARGS__));          \
        GIVE_##result                                                      \
    }
#include "ops/ops.def"
static Noting noting = {.table = {
#define DEF(result, op, ...) .op = op##_noted,
#include "ops/ops.def"
                        }};
const Ops *roles_table(const Ops *under) {
    noting.table.name = under->name;
    if (under != &noting.table) noting.under = under;
    return &noting.table;
}

#define UNUSED(type, name, ...) (void)name;
#define NIL_void
#define NIL_double return 0;
#define DEF(result, op, flops, ...)                                     \
    static result op##_nothing(Run *r OP_EACH(OP_PARAM, __VA_ARGS__)) { \
        (void)r;                                                        \
        OP_EACH(UNUSED, __VA_ARGS__)                                    \
        NIL_##result                                                    \
    }
#include "ops/ops.def"
const Ops roles_nothing = {
    .name = "cpu",
#define DEF(result, op, ...) .op = op##_nothing,
#include "ops/ops.def"
};
