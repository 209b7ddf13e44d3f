/* dist_step.c: gradients, their norm, and the step, between ranks. */
#include "dist_in.h"
#include "ops/host.h"
#include "ops/comm_stream.h"

void dist_copy(const Dist *d, real *to, const real *from, size_t n) {
    enum { MOST = 1 << 30 };
    Run r = run_make(d->m->dev, &d->work->scratch);
    for (size_t at = 0; at < n; at += MOST) {
        size_t k = zmin(MOST, n - at);
        r.ops->copy(&r, dist_run(to + at, REAL, k), dist_run((void *)(from + at), REAL, k));
    }
}
static void dist_step_sum(const Dist *d, real *to, const real *from, size_t n) {
    Run r = run_make(d->m->dev, &d->work->scratch);
    r.ops->add(&r, dist_run(to, REAL, n), dist_run((void *)from, REAL, n));
}

/* ---- gradients of a unit --------------------------------------------------------------------------------------------
 */

typedef struct {
    Dist *d;
    int i; /* for all: the fields of a unit come in its order, without those that have no gradient */
} Walk;
static int walk_to(Walk *x, const char *path) {
    while (strcmp(x->d->all.p[x->i].name, path)) CHECK(++x->i < x->d->all.n, "%s", path);
    return x->i++;
}

/* Resident sums are added to, or written by the first micro-batch itself. */
static bool dist_step_staged(const Dist *d) { return !d->in_place && (d->stage >= 2 || d->micro > 0); }
static bool dist_step_last(const Dist *d) { return d->micro + 1 == d->micros; }

static void see_pack(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Walk *x = f->ctx;
    const Dist *d = x->d;
    const DistPlace *at = &d->place[walk_to(x, path)];
    (void)flags;
    if (at->owner == DIST_NONE) return;
    if (!d->bf16) {
        dist_copy(d, d->buf + at->at, R(*t), tensor_count(*t));
        return;
    }
    uint16_t *to = (uint16_t *)d->buf + at->at;
    const real *from = R(*t);
    if (d->at) {
        device_round_to_bf16(d->at, to, from, tensor_count(*t));
        return;
    }
    for (size_t k = 0, n = tensor_count(*t); k < n; k++) to[k] = bf16_from((float)from[k]);
}
static void see_add(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Walk *x = f->ctx;
    const Param *p = &x->d->all.p[walk_to(x, path)];
    Run r = run_make(x->d->m->dev, &x->d->work->scratch);
    (void)flags;
    if (present(*t)) r.ops->add(&r, p->t[PARAM_GRAD], *t);
}
static void see_home(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Walk *x = f->ctx;
    (void)flags;
    t->p = x->d->all.p[walk_to(x, path)].t[PARAM_GRAD].p;
}
static void dist_step_visit(Dist *d, int unit, void (*see)(Fields *, Tensor *, const char *, unsigned)) {
    Walk x = {d, d->unit[unit].first};
    Fields f = {.see = see, .ctx = &x};
    model_unit_fields(d->m, unit, &d->m->g, &f);
}

/* The exchange under way is over: what of it is this rank's is put where it belongs. */
static bool dist_step_finish(Dist *d, Err *e) {
    if (d->busy < 0) return true;
    const DistUnit *u = &d->unit[d->busy];
    d->busy = -1;
    if (!comm_wait(d->comm, e)) return false;
    for (int k = u->own; k < u->own + u->nown; k++) {
        Tensor g = d->own.p[k].t[PARAM_GRAD];
        size_t at = dist_at(d, k), n = tensor_count(g);
        bool more = d->stage >= 2 && d->micro_of > 0;
        if (d->bf16) {
            const uint16_t *from = (const uint16_t *)d->buf + at;
            if (d->at) device_cast_from_bf16(d->at, R(g), from, n, more);
            for (size_t i = 0; i < n && !d->at; i++) R(g)[i] = (real)bf16_to(from[i]) + (more ? R(g)[i] : 0);
        } else if (more) {
            dist_step_sum(d, R(g), d->buf + at, n);
        } else {
            dist_copy(d, R(g), d->buf + at, n);
        }
    }
    return true;
}

/* One exchange is under way at most: it runs while the next unit's backward does, and ends before that is packed. */
static bool dist_step_exchange(Dist *d, int unit, Err *e) {
    const DistUnit *u = &d->unit[unit];
    Dtype wire = d->bf16 ? BF16 : REAL;
    char title[24];
    if (!dist_step_finish(d, e)) return false;
    dist_step_visit(d, unit, see_pack);
    dist_title(d, unit, title);
    snprintf(d->name[0], sizeof d->name[0], "gradients of %s", title);
    snprintf(d->name[1], sizeof d->name[1], "gradients of matrices of %s", title);
    CommCall parts = {.kind = d->stage ? COMM_REDUCE_SCATTER : COMM_REDUCE,
                      .name = d->name[0],
                      .buf = d->buf,
                      .count = u->part,
                      .dtype = wire,
                      .at = d->at};
    CommCall whole = {.kind = COMM_REDUCE,
                      .name = d->name[1],
                      .buf = (char *)d->buf + u->part * (size_t)d->world * dtype_size(wire),
                      .count = u->whole,
                      .dtype = wire,
                      .at = d->at};
    d->busy = unit;
    d->micro_of = d->micro;
    return (!u->part || comm_start(d->comm, parts, e)) && (!u->whole || comm_start(d->comm, whole, e));
}

static void dist_step_begin(void *ctx, int unit) {
    Dist *d = ctx;
    if (!dist_step_staged(d)) return;
    d->mark[unit == 0] = arena_mark(&d->units);
    Fields place = arena_placer(&d->units), zero = fields_zero_at(d->m->dev);
    model_unit_fields(d->m, unit, &d->m->g, &place);
    model_unit_fields(d->m, unit, &d->m->g, &zero);
}
static void dist_step_done(void *ctx, int unit) {
    Dist *d = ctx;
    bool ok = !d->err.status;
    if (d->stage >= 2) {
        ok = ok && dist_step_exchange(d, unit, &d->err);
        dist_step_visit(d, unit, see_home);
        arena_release(&d->units, d->mark[unit == 0]);
        return;
    }
    if (dist_step_staged(d)) {
        dist_step_visit(d, unit, see_add);
        dist_step_visit(d, unit, see_home);
        arena_release(&d->units, d->mark[unit == 0]);
    }
    if (ok && d->comm && dist_step_last(d)) dist_step_exchange(d, unit, &d->err);
}
void dist_begin(Dist *d) {
    d->err = (Err){0};
    if (d->stage < 2) model_zero_grad(d->m);
}
void dist_micro(Dist *d, int micro) {
    CHECK(micro >= 0 && micro < d->micros, "micro-batch %d of %d", micro, d->micros);
    d->micro = micro;
}
bool dist_gradients(Dist *d, Err *e) {
    if (!d->err.status && dist_step_finish(d, &d->err)) return true;
    *e = d->err;
    return false;
}

/* ---- sums over micro-batches ----------------------------------------------------------------------------------------
 */

double *dist_part(Dist *d, int micro) {
    return d->part + ((size_t)d->rank * (size_t)d->micros + (size_t)micro) * PARTS;
}

bool dist_sums(Dist *d, const char *name, int n, double sum[PARTS], Err *e) {
    size_t W = (size_t)d->world, each = (size_t)d->micros;
    CommCall c = {.kind = COMM_GATHER, .name = name, .buf = d->part, .count = each * PARTS, .dtype = F64};
    CHECK(n >= 0 && (size_t)n <= W * each, "%d micro-batches of %zu", n, W * each);
    if (!comm_do(d->comm, c, e)) return false;
    for (size_t k = 0; k < (size_t)n; k++)
        for (int i = 0; i < PARTS; i++) sum[i] += d->part[(k % W * each + k / W) * PARTS + (size_t)i];
    return true;
}

/* ---- the norm -------------------------------------------------------------------------------------------------------
 */

enum { BLOCK = 65536, LEAF = 256 };
typedef struct Sweep Sweep;
struct Sweep {
    Dist *d;
    Run *run;
    double (*branch)(Sweep *, const DistUnit *, int rank, int i, size_t from, size_t n);
};

/* The tree of Ops.sumsq from above, down to what one rank has. */
static double dist_step_tree(Sweep *s, const DistUnit *u, int i, size_t from, size_t n) {
    const DistPlace *at = &s->d->place[i];
    int a = at->owner >= 0 ? at->owner : (int)((at->at + from) / u->part),
        b = at->owner >= 0 ? at->owner : (int)((at->at + from + n - 1) / u->part);
    if (a == b) return s->branch(s, u, a, i, from, n);
    size_t half = LEAF;
    while (2 * half < n) half *= 2;
    double left = dist_step_tree(s, u, i, from, half);
    return left + dist_step_tree(s, u, i, from + half, n - half);
}
static double dist_step_sweep(Sweep *s) {
    const Dist *d = s->d;
    double all = 0;
    memset(d->cursor, 0, (size_t)d->world * sizeof *d->cursor);
    for (int k = 0; k < d->nunit; k++) {
        const DistUnit *u = &d->unit[k];
        for (int i = u->first; i < u->first + u->n; i++) {
            const Param *p = &d->all.p[i];
            size_t n = tensor_count(p->t[PARAM_WEIGHT]);
            double one = 0;
            if (d->place[i].owner == DIST_NONE || p->flags & FIELD_BALANCE) continue;
            for (size_t from = 0; from < n; from += BLOCK) one += dist_step_tree(s, u, i, from, zmin(BLOCK, n - from));
            all += one;
        }
    }
    return all;
}

static double count_branch(Sweep *s, const DistUnit *u, int rank, int i, size_t from, size_t n) {
    (void)u, (void)i, (void)from, (void)n;
    s->d->cursor[rank]++;
    return 0;
}
static double make_branch(Sweep *s, const DistUnit *u, int rank, int i, size_t from, size_t n) {
    Dist *d = s->d;
    if (rank != d->rank) return 0;
    int k = u->own;
    while (d->of[k] != i || from < d->own.p[k].at || from >= d->own.p[k].at + tensor_count(d->own.p[k].t[0])) k++;
    Tensor g = d->own.p[k].t[PARAM_GRAD];
    d->norm[(size_t)rank * d->norms + d->cursor[rank]++] =
        s->run->ops->sumsq(s->run, dist_run(R(g) + (from - d->own.p[k].at), REAL, n));
    return 0;
}
static double known_branch(Sweep *s, const DistUnit *u, int rank, int i, size_t from, size_t n) {
    (void)u, (void)i, (void)from, (void)n;
    return s->d->norm[(size_t)rank * s->d->norms + s->d->cursor[rank]++];
}

size_t dist_count_branches(Dist *d) {
    Sweep s = {d, NULL, count_branch};
    size_t most = 0;
    dist_step_sweep(&s);
    for (int r = 0; r < d->world; r++) most = zmax(most, d->cursor[r]);
    return most;
}

bool dist_norm(Dist *d, Run *r, double *norm, Err *e) {
    CHECK(d->stage, "every rank has all gradients");
    Sweep make = {d, r, make_branch}, known = {d, r, known_branch};
    dist_step_sweep(&make);
    CommCall c = {.kind = COMM_GATHER, .name = "the norm", .buf = d->norm, .count = d->norms, .dtype = F64};
    if (!comm_do(d->comm, c, e)) return false;
    *norm = sqrt(dist_step_sweep(&known));
    return true;
}

/* ---- the step -------------------------------------------------------------------------------------------------------
 */

/* Starts to send this rank's part of the next unit to all. At most one is being sent. */
static bool dist_step_send(Dist *d, Err *e) {
    const DistUnit *u = &d->unit[d->known];
    char title[24];
    for (int i = u->own; i < u->own + u->nown; i++)
        dist_copy(d, d->buf + dist_at(d, i), R(d->own.p[i].t[PARAM_WEIGHT]), tensor_count(d->own.p[i].t[0]));
    dist_title(d, d->known, title);
    snprintf(d->name[2], sizeof d->name[2], "weights of %s", title);
    CommCall parts = {
        .kind = COMM_GATHER, .name = d->name[2], .buf = d->buf, .count = u->part, .dtype = REAL, .at = d->at};
    if (u->part && !comm_start(d->comm, parts, e)) return false;
    for (int i = u->first; i < u->first + u->n; i++) {
        CommCall one = {.kind = COMM_BROADCAST,
                        .name = d->all.p[i].name,
                        .buf = d->buf + d->place[i].at,
                        .count = tensor_count(d->all.p[i].t[0]),
                        .dtype = REAL,
                        .root = d->place[i].owner,
                        .at = d->at};
        if (d->place[i].owner >= 0 && !comm_start(d->comm, one, e)) return false;
    }
    return true;
}
/* This unit has arrived, and the next one is sent. */
static bool dist_step_receive(Dist *d, Err *e) {
    const DistUnit *u = &d->unit[d->known];
    if (!comm_wait(d->comm, e)) return false;
    for (int i = u->first; i < u->first + u->n; i++)
        if (d->place[i].owner != DIST_NONE) {
            Tensor w = d->all.p[i].t[PARAM_WEIGHT];
            dist_copy(d, R(w), d->buf + d->place[i].at, tensor_count(w));
        }
    return ++d->known == d->nunit || dist_step_send(d, e);
}

/* A forward pass waits for the weights that it is about to read; those of the next unit are sent at the same time. */
static void dist_step_need(void *ctx, int unit) {
    Dist *d = ctx;
    bool ok = !d->err.status;
    while (ok && d->known <= unit) ok = dist_step_receive(d, &d->err);
}
bool dist_weights(Dist *d, Err *e) {
    while (d->known < d->nunit)
        if (!dist_step_receive(d, e)) return false;
    return true;
}

bool dist_step(Dist *d, Run *r, const OptimizerCfg *cfg, double lr, double gscale, int64_t t, Err *e) {
    CHECK(d->stage && d->known == d->nunit && d->busy < 0, "unit %d is under way", d->known);
    for (int k = 0; k < d->nunit; k++) {
        const DistUnit *u = &d->unit[k];
        const Params own = {.n = u->nown, .p = d->own.p + u->own};
        optimizer_step(r, &own, cfg, lr, gscale, t);
        if (k) continue;
        d->known = 0;
        if (!dist_step_send(d, e)) return false;
    }
    return true;
}

bool dist_exchange(Dist *d, Run *r, bool begin, Err *e) {
    if (!dist_weights(d, e)) return false;
    const Params *own = d->stage ? &d->own : d->trained;
    if (begin) optimizer_begin(r, own);
    optimizer_exchange(r, own);
    if (!d->stage) return true;
    d->known = 0;
    return dist_step_send(d, e) && dist_weights(d, e);
}

void dist_hook(Dist *d) {
    d->hooks = (UnitHooks){dist_step_need, dist_step_begin, dist_step_done, d};
    if (d->comm || (d->micros > 1 && !d->in_place)) d->work->units = &d->hooks;
}
