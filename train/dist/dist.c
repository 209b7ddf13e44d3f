/* dist.c: the layout between ranks and the memory for it. */
#include "dist_in.h"
#include "ops/host.h"

enum { ALIGNED = 256 };

bool dist_without_grads(const Comm *c, const DistCfg *cfg) { return comm_live(c) && cfg->stage >= 2; }

bool dist_divides(const Comm *c, int batch, int micro_batch, Err *e) {
    int W = dist_world(c), micros = batch / micro_batch;
    if (micros % W == 0) return true;
    int64_t each = (int64_t)micro_batch * W, more = (batch + each - 1) / each * each;
    if (batch % W == 0)
        return err_input(e,
                         "train.micro_batch: %d micro-batches of %d cannot be divided evenly among %d ranks; use a "
                         "divisor of %d, or train.batch=%lld",
                         micros, micro_batch, W, batch / W, (long long)more);
    return err_input(
        e, "train.batch: %d micro-batches of %d cannot be divided evenly among %d ranks; use train.batch=%lld", micros,
        micro_batch, W, (long long)more);
}

/* ---- layout ---------------------------------------------------------------------------------------------------------
 */

void dist_params(Params *p, Model *m) {
    Fields w = params_visitor(p, PARAM_WEIGHT);
    model_fields(m, &m->w, &w);
    for (int i = 0; m->opts.trained && i < p->n; i++)
        p->p[i].frozen = !m->opts.trained(m->opts.trained_ctx, p->p[i].name);
    Fields g = params_visitor(p, PARAM_GRAD);
    model_fields(m, &m->g, &g);
}

static size_t dist_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static void dist_see_count(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)t, (void)path, (void)flags;
    ++*(int *)f->ctx;
}

/* Weights with an owner, by size: each goes to the rank that has least. */
static void own_matrices(Dist *d) {
    int n = d->all.n, *order = xcalloc((size_t)n, sizeof *order), m = 0;
    size_t *load = xcalloc((size_t)d->world, sizeof *load);
    for (int i = 0; i < n; i++) {
        const Param *p = &d->all.p[i];
        if (d->place[i].owner == DIST_NONE || !p->by->whole) continue;
        int k = m++;
        for (; k > 0 && tensor_count(p->t[0]) > tensor_count(d->all.p[order[k - 1]].t[0]); k--) order[k] = order[k - 1];
        order[k] = i;
    }
    for (int k = 0; k < m; k++) {
        int least = 0;
        for (int r = 1; r < d->world; r++)
            if (load[r] < load[least]) least = r;
        d->place[order[k]].owner = least;
        load[least] += tensor_count(d->all.p[order[k]].t[0]);
    }
    free(order);
    free(load);
}

static void dist_layout(Dist *d) {
    int at = 0;
    size_t align = d->stage ? ALIGNED : 1;
    for (int i = 0; i < d->all.n; i++) d->place[i].owner = d->all.p[i].frozen ? DIST_NONE : DIST_CUT;
    if (d->stage) own_matrices(d);
    for (int k = 0; k < d->nunit; k++) {
        DistUnit *u = &d->unit[k];
        Weights w = d->m->w;
        Fields count = {.see = dist_see_count, .ctx = &u->n};
        model_unit_fields(d->m, k, &w, &count);
        u->first = at;
        at += u->n;
        for (int i = u->first; i < at; i++)
            if (d->place[i].owner == DIST_CUT) {
                d->place[i].at = u->flat;
                u->flat += dist_up(tensor_count(d->all.p[i].t[0]), align);
            }
        u->part = d->stage ? dist_up((u->flat + (size_t)d->world - 1) / (size_t)d->world, ALIGNED) : u->flat;
        for (int i = u->first; i < at; i++)
            if (d->place[i].owner >= 0) {
                d->place[i].at = u->part * (size_t)d->world + u->whole;
                u->whole += tensor_count(d->all.p[i].t[0]);
            }
    }
    CHECK(at == d->all.n, "%d fields in units, %d in all", at, d->all.n);
}

/* Collects the part of a unit that rank r steps. */
typedef void See(void *ctx, int i, size_t from, size_t n);
static void dist_ranges(const Dist *d, int r, int unit, See *see, void *ctx) {
    const DistUnit *u = &d->unit[unit];
    for (int i = u->first; i < u->first + u->n; i++) {
        size_t n = tensor_count(d->all.p[i].t[0]), at = d->place[i].at, from = at, to = at + n;
        if (d->place[i].owner == DIST_NONE || (d->place[i].owner >= 0 && d->place[i].owner != r)) continue;
        if (d->stage && d->place[i].owner == DIST_CUT) {
            from = zmax(from, u->part * (size_t)r);
            to = zmin(to, u->part * ((size_t)r + 1));
        }
        if (from < to) see(ctx, i, from - at, to - from);
    }
}

static void keep_range(void *ctx, int i, size_t from, size_t n) {
    enum { MOST = 1 << 30 };
    Dist *d = ctx;
    const Param *p = &d->all.p[i];
    bool all = n == tensor_count(p->t[0]);
    for (size_t k = 0; k < n; k += all ? n : MOST) {
        if (d->own.n == d->own.cap) {
            d->own.cap = d->own.cap ? 2 * d->own.cap : 64;
            d->own.p = xrealloc(d->own.p, (size_t)d->own.cap, sizeof *d->own.p);
            d->of = xrealloc(d->of, (size_t)d->own.cap, sizeof *d->of);
        }
        d->of[d->own.n] = i;
        d->own.p[d->own.n++] = all ? *p : param_range(p, from + k, zmin(MOST, n - k));
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------------------
 */

typedef struct {
    const Dist *d;
    Arena *grads, *state; /* (STATES_MAX) */
} Place;
static void place_range(void *ctx, int i, size_t from, size_t n) {
    const Place *x = ctx;
    const Param *p = &x->d->all.p[i];
    const Tensor g = p->t[PARAM_GRAD];
    (void)from;
    if (x->d->stage >= 2 && present(g)) arena_take(x->grads, n * dtype_size(g.dtype), p->name);
    for (int k = 0; k < STATES_MAX; k++)
        if (present(p->state[k].t)) arena_take(&x->state[k], n * dtype_size(p->state[k].t.dtype), p->name);
}
/* Every rank maps what the one with most needs, so that all have the same. */
static void measure_own(Dist *d) {
    for (int r = 0; d->stage && r < d->world; r++) {
        Arena grads = {0}, state[STATES_MAX] = {{0}};
        Place x = {d, &grads, state};
        for (int k = 0; k < d->nunit; k++) dist_ranges(d, r, k, place_range, &x);
        d->grads.peak = zmax(d->grads.peak, grads.peak);
        for (int k = 0; k < STATES_MAX; k++) d->state[k].peak = zmax(d->state[k].peak, state[k].peak);
    }
}
static void place_own(Dist *d) {
    for (int k = 0; d->stage >= 2 && k < d->own.n; k++) {
        Tensor *t = &d->own.p[k].t[PARAM_GRAD];
        if (!present(*t)) continue;
        t->p = arena_take(&d->grads, tensor_bytes(*t), d->own.p[k].name);
        device_zero(d->m->dev, t->p, tensor_bytes(*t));
    }
}

/* The gradients that are not yet complete: of one unit, and of a tied embedding. */
static bool ends_stages(const Dist *d, int unit) {
    return unit > 0 && unit <= d->m->L && d->m->layer[unit - 1].kind->mixer->stage_end;
}
static void see_take(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    arena_take(f->ctx, tensor_bytes(*t), path);
}
static void measure_units(Dist *d) {
    bool staged = d->stage >= 2 || (d->micros > 1 && !d->in_place), early = staged && d->m->cfg.tied;
    Fields f = {.see = see_take, .ctx = &d->units};
    if (early) model_unit_fields(d->m, 0, &d->m->g, &f);
    for (int u = d->nunit - 1; u >= early; u--) {
        if (!staged && !(d->stage && ends_stages(d, u))) continue;
        Mark mark = arena_mark(&d->units);
        model_unit_fields(d->m, u, &d->m->g, &f);
        arena_release(&d->units, mark);
    }
    arena_release(&d->units, (Mark){0});
}

static void place_wire(Dist *d) {
    size_t most = 0, W = (size_t)d->world;
    Arena *host = d->at ? &d->sums : &d->wire;
    for (int k = 0; k < d->nunit && d->comm; k++)
        most = zmax(most, d->unit[k].part * (d->stage ? W : 1) + d->unit[k].whole);
    if (d->comm) d->buf = arena_take(&d->wire, most * sizeof *d->buf, "exchange");
    /* The padding between tensors is sent, too. */
    if (d->at && d->buf) device_zero(d->at, d->buf, most * sizeof *d->buf);
    if (d->stage) d->norm = arena_take(host, W * d->norms * sizeof *d->norm, "norms");
    d->part = arena_take(host, W * (size_t)d->micros * PARTS * sizeof *d->part, "losses");
}

bool dist_open(Dist *d, Model *m, Workspace *work, const Params *trained, const OptimCfg *optim, Comm *comm,
               const DistCfg *cfg, int micros, Err *e) {
    int W = dist_world(comm);
    bool dry = m->opts.dry, apart = device_apart(m->dev);
    comm = comm_live(comm) ? comm : NULL;
    *d = (Dist){.comm = comm,
                .at = apart ? m->dev : NULL,
                .world = W,
                .rank = dist_rank(comm),
                .stage = comm ? cfg->stage : 0,
                .bf16 = cfg->reduce == REDUCE_BF16,
                .micros = micros / W,
                .in_place = apart && !comm,
                .m = m,
                .work = work,
                .trained = trained,
                .busy = -1,
                .grads.name = "gradients",
                .units.name = "gradients of a unit",
                .wire.name = "exchange",
                .sums.name = "losses and norms"};
    CHECK(!comm || comm->device == apart, "%s", device_isa(m->dev));
    CHECK(micros % W == 0 && m->opts.without_grads == dist_without_grads(comm, cfg), "%d micro-batches, %d ranks",
          micros, W);
    dist_params(&d->all, m);
    optimizer_declare(&d->all, optim);
    d->nunit = d->known = model_units(m);
    d->unit = xcalloc((size_t)d->nunit, sizeof *d->unit);
    d->place = xcalloc((size_t)d->all.n, sizeof *d->place);
    d->cursor = xcalloc((size_t)W, sizeof *d->cursor);
    dist_layout(d);
    for (int k = 0; k < d->nunit; k++) {
        d->unit[k].own = d->own.n;
        dist_ranges(d, d->rank, k, keep_range, d);
        d->unit[k].nown = d->own.n - d->unit[k].own;
    }
    if (d->stage) d->norms = dist_count_branches(d);
    measure_own(d);
    measure_units(d);
    place_wire(d);
    dist_hook(d);
    if (d->stage && !states_open(&d->own, d->state, optimizer_of(optim), m->dev, m->opts.poison, dry, e)) {
        dist_close(d);
        return false;
    }
    if (dry) return true;
    Arena *a[] = {&d->grads, &d->units, &d->wire, &d->sums};
    for (size_t i = 0; i < sizeof a / sizeof *a; i++)
        if (!arena_open_at(a[i], a[i] == &d->sums ? NULL : device_memory(m->dev, false), a[i]->name, a[i]->peak,
                           m->opts.poison, e)) {
            dist_close(d);
            return false;
        }
    place_own(d);
    place_wire(d);
    return true;
}

static const Param *dist_named(const Params *s, const char *name) {
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->p[i].name, name)) return &s->p[i];
    return NULL;
}
bool dist_adopt(Dist *d, Err *e) {
    for (int i = 0; d->comm && i < d->trained->n; i++)
        if (!dist_named(&d->all, d->trained->p[i].name))
            return err_input(e, "%s is not a tensor of the model, and several ranks train only those; use one rank",
                             d->trained->p[i].name);
    for (int k = 0; d->stage && k < d->own.n; k++) {
        Param *own = &d->own.p[k], q;
        const Param *p = dist_named(d->trained, own->name);
        CHECK(p, "%s has states and is not trained", own->name);
        q = *p;
        q.flags = own->flags;
        q.at = own->at;
        memcpy(q.t, own->t, sizeof q.t);
        memcpy(q.state, own->state, sizeof q.state);
        *own = q;
    }
    return true;
}

void dist_close(Dist *d) {
    Arena *a[] = {&d->grads, &d->units, &d->wire, &d->sums};
    for (size_t i = 0; i < sizeof a / sizeof *a; i++) arena_close(a[i]);
    states_close(d->state);
    if (d->m) d->work->units = NULL;
    params_free(&d->own);
    params_free(&d->all);
    free(d->of);
    free(d->unit);
    free(d->place);
    free(d->cursor);
    *d = (Dist){0};
}

void dist_regions(const Dist *d, Regions *r) {
    regions_add(r, "gradients", &d->grads, REGION_IF_ANY);
    regions_add(r, "exchange", &d->wire, 0);
    regions_add(r, "losses_and_norms", &d->sums, REGION_IF_ANY | REGION_HOST);
    regions_add(r, "unit_gradients", &d->units, REGION_IF_ANY);
}

static void dist_count(DistTraffic *t, const Dist *d, bool weights, CommKind kind, size_t n, Dtype dtype,
                       int64_t times) {
    CommCall c = {.kind = kind, .count = n, .dtype = dtype};
    if (!n) return;
    size_t bytes = comm_bytes(&c, d->world) * (size_t)times;
    int64_t hops = (int64_t)(d->world - 1) * (kind == COMM_REDUCE ? 2 : 1) * times;
    *(weights ? &t->weights : &t->gradients) += bytes;
    *(weights ? &t->weight_hops : &t->gradient_hops) += hops;
    t->calls += times;
}
DistTraffic dist_traffic(const Dist *d) {
    DistTraffic t = {0};
    Dtype wire = d->bf16 ? BF16 : REAL;
    int64_t times = d->stage >= 2 ? d->micros : 1;
    if (!d->comm) return t;
    for (int k = 0; k < d->nunit; k++) {
        const DistUnit *u = &d->unit[k];
        dist_count(&t, d, false, d->stage ? COMM_REDUCE_SCATTER : COMM_REDUCE, u->part, wire, times);
        dist_count(&t, d, false, COMM_REDUCE, u->whole, wire, times);
        if (d->stage) dist_count(&t, d, true, COMM_GATHER, u->part, REAL, 1);
        for (int i = u->first; i < u->first + u->n; i++)
            if (d->place[i].owner >= 0)
                dist_count(&t, d, true, COMM_BROADCAST, tensor_count(d->all.p[i].t[0]), REAL, 1);
    }
    dist_count(&t, d, false, COMM_GATHER, (size_t)d->micros * PARTS, F64, 1);
    dist_count(&t, d, false, COMM_GATHER, d->norms, F64, 1);
    return t;
}
