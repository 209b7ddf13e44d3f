/* params.c: pairing the fields of weights and gradients. */
#include "params.h"

static void params_see(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Params *s = f->ctx;
    char a[64], b[64];
    if (s->role == PARAM_WEIGHT) {
        if (s->n == s->cap) s->p = xrealloc(s->p, (size_t)(s->cap = s->cap ? 2 * s->cap : 64), sizeof *s->p);
        s->p[s->n] = (Param){.flags = flags, .lr_scale = 1, .whole = tensor_count(*t)};
        snprintf(s->p[s->n].name, sizeof s->p->name, "%s", path);
        s->n++;
    }
    while (s->role == PARAM_GRAD && s->at < s->n && strcmp(s->p[s->at].name, path) && s->p[s->at].frozen) s->at++;
    CHECK(s->at < s->n, "%s: one field more than there are weights", path);
    Param *p = &s->p[s->at++];
    CHECK(!strcmp(p->name, path), "%s where the weights have %s", path, p->name);
    p->t[s->role] = *t;
    CHECK(!strcmp(tensor_shape(*t, a), tensor_shape(p->t[0], b)), "%s: %s, its weight %s", path, a, b);
}

Fields params_visitor(Params *s, ParamRole role) {
    s->role = (int)role;
    s->at = 0;
    if (role == PARAM_WEIGHT) s->n = 0;
    return (Fields){.see = params_see, .ctx = s};
}

bool param_decays(const Param *p) {
    return p->t[PARAM_WEIGHT].rank >= 2 && !(p->flags & (FIELD_NODECAY | FIELD_BALANCE));
}

double param_decay(const Param *p, double dflt) { return !param_decays(p) ? 0 : p->own_decay ? p->decay : dflt; }

void params_check(const Params *s) {
    for (int i = 0; i < s->n; i++)
        for (int role = 0; role < PARAM_ROLES; role++) {
            const Param *p = &s->p[i];
            if (role == PARAM_GRAD && p->frozen) continue; /* matrices have none */
            CHECK(present(p->t[role]), "%s: role %d was not visited", p->name, role);
        }
}

Rounding param_rounding(const Param *p, uint64_t seed, int64_t t) {
    return (Rounding){.key = rng_name(rng_mix(rng_name(seed, "rounding of moments"), (uint64_t)t), p->name),
                      .at = p->at};
}

Param param_range(const Param *p, size_t from, size_t n) {
    Param q = *p;
    CHECK(from + n <= tensor_count(p->t[0]) && n <= INT32_MAX, "%s: %zu elements from %zu", p->name, n, from);
    q.at = p->at + from;
    q.flags |= FIELD_TABLE | (param_decays(p) ? 0 : FIELD_NODECAY);
    for (int role = 0; role < PARAM_ROLES; role++) {
        const Tensor *t = &p->t[role];
        char *at = t->p ? (char *)t->p + from * dtype_size(t->dtype) : NULL;
        if (present(*t)) q.t[role] = TENSOR(at, t->dtype, 1, (int)n);
    }
    for (int k = 0; k < STATES_MAX; k++)
        if (present(p->state[k].t)) q.state[k].t = TENSOR(NULL, p->state[k].t.dtype, 1, (int)n);
    return q;
}

void params_free(Params *s) {
    free(s->p);
    *s = (Params){0};
}
