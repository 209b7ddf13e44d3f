/* ref_call.c: see ref_call.h. */
#include "ref_call.h"

static const double unit = sizeof(real) == 4 ? 0x1p-24 : 0x1p-53;
enum { MET_ABSENT = 1, MET_PRESENT = 2, MET_BF16 = 4, MET_REAL = 8, MET_OVERWRITE = 16, MET_ADD = 32 };
static unsigned met[ROLE_ARGS]; /* one test is one op in one process */

/* ---- the ops' arguments, as ops.def has them ---- */
#define RESULT_void
#define RESULT_double             *result =
#define PASS_ARG(type, name, ...) , a->name
#define DEF(result_, op, flops, ...)                                                  \
    static void op##_made(OpCall *c, void *args) { make_##op(c, args); }              \
    static void op##_called(const Ops *t, Run *r, const void *args, double *result) { \
        const Args_##op *a = args;                                                    \
        (void)result;                                                                 \
        RESULT_##result_ t->op(r OP_EACH(PASS_ARG, __VA_ARGS__));                     \
    }
#include "ops/ops.def"
static const struct {
    const char *op;
    size_t args;
    void (*make)(OpCall *, void *);
    void (*call)(const Ops *, Run *, const void *, double *);
} ops[] = {
#define DEF(result, op, ...) {#op, sizeof(Args_##op), op##_made, op##_called},
#include "ops/ops.def"
};

/* ---- drawing ---- */
int draw_of(OpCall *c, int n) { return roll(&c->dice, imax(1, n)); }
bool coin(OpCall *c) { return draw_of(c, 2); }
double uniform_in(OpCall *c, double from, double to) {
    return from + (to - from) * rng_uniform(c->dice.key, c->dice.n++);
}
void *call_own(OpCall *c, size_t bytes) {
    cr_assert(c->nowned < SLOTS);
    return c->owned[c->nowned++] = xcalloc(bytes + 1, 1);
}
int *call_ints(OpCall *c, int n, int below) {
    int *x = call_own(c, (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++) x[i] = draw_of(c, below);
    return x;
}
Dtype any_dtype(OpCall *c) { return coin(c) ? BF16 : REAL; }

void call_batch(OpCall *c, int B, bool history) {
    Batch *b = &c->batch;
    int n = 0;
    c->history = false;
    for (int s = 0; s < B; s++) {
        int end = s == B - 1 ? c->N : imin(c->N, n + draw_of(c, 2 * c->N / B + 1));
        bool on = history && (s % 2 == 0 || coin(c));
        c->off[s] = n, c->seq[s] = B - s, c->id[s] = (uint64_t)(7 * s + 1);
        for (int begin = n, before = on ? 1 + draw_of(c, imax(9, c->past)) : 0; n < end; n++) {
            if (n > c->off[s] && draw_of(c, 12) == 0) begin = n, on = false, before = 0;
            c->history |= on;
            c->of[n] = s, c->pos[n] = n - begin + before, c->first[n] = on ? -1 : begin;
        }
    }
    c->off[B] = n;
    *b = (Batch){B, c->N, c->off, c->seq, c->of, c->pos, c->first, c->id, c->history, NULL};
    for (int i = 0; i < c->N; i++) c->all[i] = i;
    c->run.batch = b;
    c->run.in = c->run.out = (RowList){c->N, c->all};
}
RowList call_some_rows(OpCall *c) {
    int n = 0;
    for (int i = 0; i < c->N; i++)
        if (draw_of(c, 3) || (i == c->N - 1 && !n)) c->some[n++] = i;
    return (RowList){n, c->some};
}

static unsigned declared(const OpCall *c, const char *name, int *arg) {
    int n;
    const OpRoles *all = op_roles(&n);
    for (int i = 0; all[c->at].arg[i].name; i++)
        if (!strcmp(all[c->at].arg[i].name, name)) {
            *arg = i;
            return all[c->at].arg[i].roles;
        }
    cr_assert_fail("%s has no %s", c->op, name);
    return 0;
}
static bool is_output(unsigned roles) { return roles & (ROLE_OUT | ROLE_ADD | ROLE_INOUT); }

double *call_arg_as(OpCall *c, const char *name, Tensor *at, bool *over, unsigned roles, Dtype dtype, int rank,
                    const int n[]) {
    int arg;
    const unsigned own = declared(c, name, &arg);
    Slot *s = &c->slot[c->nslots++];
    cr_assert(c->nslots < SLOTS);
    *s = (Slot){
        .at = at, .name = name, .roles = roles ? roles : own, .over = over, .as = tensor_make(NULL, dtype, rank, n)};
    s->overwrite = over && coin(c);
    s->moment = s->roles & ROLE_MOMENT && dtype == BF16;
    size_t count = tensor_count(s->as);
    s->before = xcalloc(count + 1, sizeof(double));
    uint64_t key = rng_mix(rng_name(c->dice.key, name), (uint64_t)c->nslots);
    for (size_t i = 0; i < count; i++) s->before[i] = check_normal(key, i);
    *at = tensor_make(s->before, F64, rank, n);
    if (!roles)
        met[arg] |= MET_PRESENT | (dtype == BF16 ? MET_BF16 : MET_REAL) | (s->overwrite ? MET_OVERWRITE : MET_ADD);
    return s->before;
}
double *call_arg(OpCall *c, const char *name, Tensor *at, bool *over, unsigned roles, int rank, const int n[]) {
    int arg;
    const unsigned own = declared(c, name, &arg), of = roles ? roles : own;
    Dtype dtype = REAL;
    if (of & ROLE_OPTIONAL && draw_of(c, 3) == 0) {
        *at = ABSENT;
        if (!roles) met[arg] |= MET_ABSENT;
        return NULL;
    }
    if (of & ROLE_ALIKE) dtype = c->alike;
    if (of & (ROLE_BF16 | ROLE_WEIGHT | ROLE_MOMENT)) dtype = any_dtype(c);
    return call_arg_as(c, name, at, over, roles, dtype, rank, n);
}
Slot *call_slot(OpCall *c, const Tensor *at) {
    for (int i = 0; i < c->nslots; i++)
        if (c->slot[i].at == at) return &c->slot[i];
    return NULL;
}
void call_raw(OpCall *c, void *at, size_t bytes, int kind, bool host) {
    cr_assert(c->nraws < RAWS);
    Raw *w = &c->raw[c->nraws++];
    *w = (Raw){.at = at, .bytes = bytes, .kind = kind, .host = host};
    memcpy(&w->before, at, sizeof w->before); /* the pointer that is there */
}

void call_has(OpCall *c, const char *name) {
    int arg;
    declared(c, name, &arg);
    met[arg] |= MET_PRESENT;
}

static double as_stored(Dtype dtype, double x) {
    return dtype == BF16 ? (double)bf16_to(bf16_from((float)x)) : dtype == REAL ? (double)(real)x : x;
}
void call_settle(OpCall *c) {
    for (int i = 0; i < c->nslots; i++)
        for (size_t k = 0; k < tensor_count(c->slot[i].as); k++)
            c->slot[i].before[k] = as_stored(c->slot[i].as.dtype, c->slot[i].before[k]);
}

/* ---- the reference ---- */
/* Memory whatever it holds before: of an output that is not read. */
static bool is_unread(const Slot *s) { return s->roles & ROLE_OUT || s->overwrite; }
static void fill(const Slot *s, Tensor t, const double *from) {
    for (size_t i = 0; i < tensor_count(t); i++) put(t, (long)i, is_unread(s) ? NAN : from[i]);
}
static void point(const Raw *w, void *p) { memcpy(w->at, &p, sizeof p); }
/* Puts every tensor on memory of type F64 (stored false) or of its own, filled from `from` of its slot. */
static void call_reference(OpCall *c, bool stored, int nudged, uint64_t key, double *results[], void *stores[]) {
    static const double h = 0x1p-30;
    for (int i = 0; i < c->nslots; i++) {
        Slot *s = &c->slot[i];
        size_t n = tensor_count(s->as);
        Tensor t = s->as;
        if (!stored) t.dtype = F64;
        t.p = xcalloc(tensor_bytes(t) + 8, 1);
        double *from = xcalloc(n + 1, sizeof *from);
        for (size_t k = 0; k < n; k++) {
            const uint64_t draw = rng_mix(key, k); /* h times -1.5 to -0.5 or 0.5 to 1.5 */
            const double by = (draw & 1 ? h : -h) * (0.5 + (double)(draw >> 11) * 0x1p-53);
            from[k] = s->before[k] * (i == nudged ? 1 + by : 1);
        }
        fill(s, t, from);
        free(from);
        *s->at = t;
        if (s->over) *s->over = s->overwrite;
    }
    for (int i = 0; i < c->nraws; i++) {
        Raw *w = &c->raw[i];
        void *p = xcalloc(w->bytes + 8, 1);
        memcpy(p, w->before, w->bytes);
        point(w, p);
        if (nudged < 0 && !stored) w->want = p;
    }
    double result = 0;
    ops[c->at].call(&ops_ref, &c->run, c->args, &result);
    if (nudged < 0 && !stored) c->result = result;
    for (int i = 0; i < c->nslots; i++) {
        if (stored)
            stores[i] = c->slot[i].at->p;
        else
            results[i] = c->slot[i].at->p;
    }
    for (int i = 0; i < c->nraws; i++)
        if (nudged >= 0 || stored) {
            void *p;
            memcpy(&p, c->raw[i].at, sizeof p);
            free(p);
        }
}
static void call_wants(OpCall *c) {
    static const double h = 0x1p-30;
    double *moved[SLOTS], *want[SLOTS];
    void *stores[SLOTS];
    Arena made = {.base = (char *)1};
    c->run.scratch = &made; /* not measuring; the reference takes none */
    c->run.ops = &ops_ref;
    call_reference(c, false, -1, 0, want, NULL);
    for (int i = 0; i < c->nslots; i++)
        c->slot[i].want = want[i], c->slot[i].slack = xcalloc(tensor_count(c->slot[i].as) + 1, sizeof(double));
    for (int k = 0; k < NUDGES * c->nslots; k++) {
        if (is_unread(&c->slot[k / NUDGES])) continue;
        call_reference(c, false, k / NUDGES, rng_mix(c->dice.key, (uint64_t)(100 + k)), moved, NULL);
        for (int i = 0; i < c->nslots; i++) {
            Slot *s = &c->slot[i];
            for (size_t e = 0; is_output(s->roles) && e < tensor_count(s->as); e++) {
                double by = (moved[i][e] - s->want[e]) / h;
                if (isfinite(by)) s->slack[e] += by * by;
            }
            free(moved[i]);
        }
    }
    call_reference(c, true, -1, 0, NULL, stores);
    for (int i = 0; i < c->nslots; i++) c->slot[i].stored = stores[i];
}

/* ---- the comparison ---- */
/* Of a BF16 element: half a step of its binade, a whole one where chance rounds; of a double that is rounded to float
 * on the way, a float's as well. */
static double stored_error(const Slot *s, double x) {
    if (s->as.dtype != BF16 || x == 0 || !isfinite(x)) return 0;
    return ldexp(s->moment ? 2 : 1, ilogb(x) - 8) + (sizeof(real) == 8 ? ldexp(1, ilogb(x) - 24) : 0);
}
static double size_at(const Slot *s, size_t i) { return fabs(s->want[i]) + sqrt(s->slack[i]); }
/* Root mean square of the sizes in the row of element i. */
static double row_size(const Slot *s, size_t i) {
    const size_t d = (size_t)s->as.n[s->as.rank - 1], from = i / d * d;
    double sum = 0;
    for (size_t k = from; k < from + d; k++) sum += isfinite(size_at(s, k)) ? size_at(s, k) * size_at(s, k) : 0;
    return sqrt(sum / (double)d);
}
bool call_within(const OpCall *c, const Slot *s, const double *got, Cost cost, Worst *w) {
    const double most = cost.units * unit * sqrt((double)c->terms) * (sizeof(real) == 8 ? 2 : 1),
                 least = sizeof(real) == 8 && s->as.dtype != BF16 ? 1e-300 : 1e-33;
    bool ok = true;
    for (size_t i = 0; i < tensor_count(s->as); i++) {
        const double want = s->want[i], size = size_at(s, i) + (cost.floor > 0 ? cost.floor * row_size(s, i) : 0),
                     bound = most * size + least, off = fabs(got[i] - want) - stored_error(s, want);
        double share = got[i] == want || (s->partial && isnan(want) && isnan(got[i])) ? 0
                       : off > 0 || isnan(off)                                        ? off / bound
                                                                                      : 0;
        if (cost.units == 0 && share > 0) { /* exact: the nearest of its type */
            Tensor t = s->as;
            t.p = s->stored;
            share = got[i] == get(t, (long)i) ? 0 : INFINITY;
        }
        if (isnan(share)) share = INFINITY;
        if (share <= w->share) continue;
        char shape[64];
        w->share = share;
        snprintf(w->where, sizeof w->where, "%s%s%s element %zu of %s: got %.9g, want %.9g, bound %.3g", s->name,
                 s->as.dtype == BF16 ? " (BF16)" : "", s->overwrite ? " (overwritten)" : "", i,
                 tensor_shape(s->as, shape), got[i], want, bound);
        ok &= share <= 1;
    }
    return ok && w->share <= 1;
}

/* ---- the tables ---- */
static void call_place(OpCall *c, Rig *g) {
    for (int i = 0; i < c->nslots; i++) {
        Slot *s = &c->slot[i];
        *s->at = arena_tensor(&g->mem, s->name, s->as.dtype, s->as.rank, s->as.n);
        if (s->over) *s->over = s->overwrite;
        fill(s, *s->at, s->before);
    }
    for (int i = 0; i < c->nraws; i++) {
        Raw *w = &c->raw[i];
        void *p = w->host ? xcalloc(w->bytes + 8, 1) : arena_take(&g->mem, w->bytes, "memory");
        memcpy(p, w->before, w->bytes);
        point(w, p);
    }
    Run r = g->run;
    g->run = c->run;
    g->run.ops = r.ops, g->run.dev = r.dev, g->run.scratch = r.scratch, g->run.host = r.host, g->run.given = r.given;
}
static void *raw_now(const Raw *w) {
    void *p;
    memcpy(&p, w->at, sizeof p);
    return p;
}
/* Whether a mistake in an element, a tenth of the largest at least, is found. */
static void plant(OpCall *c, const Slot *s, double *got, Cost cost, Worst *worst) {
    const size_t n = tensor_count(s->as);
    double most = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(got[i])) most = fmax(most, fabs(got[i]));
    if (most == 0) return;
    size_t at = (size_t)draw_of(c, (int)n);
    while (!(isfinite(got[at]) && fabs(got[at]) >= 0.1 * most)) at = (at + 1) % n;
    Worst own = {0};
    got[at] *= 1 + (s->as.dtype == BF16 ? s->moment ? 2e-2 : 1e-2 : 1e-3);
    worst->planted++;
    if (!call_within(c, s, got, cost, &own))
        worst->found++;
    else
        snprintf(worst->where, sizeof worst->where, "%s: %s element %zu, %.9g: not found", c->op, s->name, at, got[at]);
}
/* One table's results against the reference's. */
static bool call_compare(OpCall *c, double result, Cost cost, bool planted, Worst *worst, char msg[400]) {
    bool ok = true;
    for (int i = 0; i < c->nslots; i++) {
        Slot *s = &c->slot[i];
        const size_t n = tensor_count(s->as);
        double *got = xcalloc(n + 1, sizeof *got);
        for (size_t k = 0; k < n; k++) got[k] = get(*s->at, (long)k);
        if (is_output(s->roles)) {
            ok &= call_within(c, s, got, cost, worst);
            if (planted && ok) plant(c, s, got, cost, worst);
        } else if (memcmp(got, s->before, n * sizeof *got)) {
            worst->share = INFINITY, ok = false;
            snprintf(worst->where, sizeof worst->where, "%s, which is only read, was written to", s->name);
        }
        free(got);
    }
    for (int i = 0; i < c->nraws; i++) {
        const Raw *w = &c->raw[i];
        const void *now = raw_now(w);
        double got = 0, want = 0;
        if (w->kind == RAW_F64) memcpy(&got, now, sizeof got), memcpy(&want, w->want, sizeof want);
        const bool same = w->kind == RAW_F64 ? fabs(got - want) <= 4 * 0x1p-53 * sqrt((double)c->terms) * fabs(want)
                                             : !memcmp(now, w->kind == RAW_IN ? w->before : w->want, w->bytes);
        if (!same) {
            worst->share = INFINITY, ok = false;
            snprintf(worst->where, sizeof worst->where, "memory %d of %zu bytes differs (%.17g, %.17g)", i, w->bytes,
                     got, want);
        }
    }
    if (!(fabs(result - c->result) <= 4 * 0x1p-53 * sqrt((double)c->terms) * fabs(c->result))) {
        worst->share = INFINITY, ok = false;
        snprintf(worst->where, sizeof worst->where, "result %.17g, want %.17g", result, c->result);
    }
    if (!ok) snprintf(msg, 400, "%s", worst->where);
    return ok;
}
static bool call_table(OpCall *c, Table table, int threads, uint64_t *hash, Cost cost, bool planted, Worst *worst,
                       char msg[400]) {
    Rig g;
    double result = 0;
    size_t bytes = 1 << 18; /* tensors with their guards */
    for (int i = 0; i < c->nslots; i++) bytes += tensor_bytes(c->slot[i].as) + 8192;
    for (int i = 0; i < c->nraws; i++) bytes += c->raw[i].bytes + 8192;
    rig_open(&g, table, threads, bytes);
    call_place(c, &g);
    rig_measure(&g);
    ops[c->at].call(g.run.ops, &g.run, c->args, &result);
    rig_place(&g);
    ops[c->at].call(g.run.ops, &g.run, c->args, &result);
    if (c->within)
        rig_done_within(&g);
    else
        rig_done(&g);
    for (int i = 0; i < c->nslots; i++)
        if (is_output(c->slot[i].roles)) rig_result(&g, *c->slot[i].at);
    *hash = g.hash;
    bool ok = call_compare(c, result, cost, planted, worst, msg);
    for (int i = 0; i < c->nraws; i++)
        if (c->raw[i].host) free(raw_now(&c->raw[i]));
    rig_close(&g);
    return ok;
}

static void call_free(OpCall *c) {
    for (int i = 0; i < c->nslots; i++) {
        Slot *s = &c->slot[i];
        free(s->before), free(s->want), free(s->slack), free(s->stored);
    }
    for (int i = 0; i < c->nraws; i++) free(c->raw[i].want);
    for (int i = 0; i < c->nowned; i++) free(c->owned[i]);
    free(c->args);
    free(c);
}
bool call_try(int at, int draw, const int size[2], Cost cost, bool threads_exact, bool planted, Worst *worst,
              char msg[400]) {
    static const int rows[] = {1, 2, 7, 8, 9, 33, 65, 70}, widths[] = {1, 3, 8, 15, 16, 17, 64, 100};
    OpCall *c = xcalloc(1, sizeof *c);
    c->op = ops[at].op, c->at = at, c->draw = draw, c->terms = 1;
    c->dice = (Dice){rng_mix(rng_name(11, c->op), (uint64_t)draw), 0};
    c->large = draw == 0 && !size; /* draw 1 has no rows */
    c->N = c->large ? 150 : draw == 1 ? 0 : rows[draw_of(c, 8)], c->d = c->large ? 300 : widths[draw_of(c, 8)];
    if (size) c->N = size[0], c->d = size[1];
    c->alike = any_dtype(c);
    c->run = (Run){.seed = 3, .step = 5, .layer = 2, .progress = 1};
    call_batch(c, 1 + draw_of(c, 3), false);
    c->args = xcalloc(1, ops[at].args);
    ops[at].make(c, c->args);
    call_settle(c);
    int n;
    const OpRoles *all = op_roles(&n);
    for (int i = 0; all[at].arg[i].name; i++) {
        bool found = false;
        for (int k = 0; k < c->nslots; k++) found |= !strcmp(c->slot[k].name, all[at].arg[i].name);
        if (!found) met[i] |= MET_ABSENT;
    }
    call_wants(c);
    Table tables[TABLES_MAX];
    bool ok = true;
    for (int k = 0, count = rig_tables(tables); ok && k < count; k++) {
        uint64_t alone = 0, hash = 0;
        if (k && k < count - 1 && (draw + k) % 3) continue; /* tables between take a third of the draws */
        for (int threads = 1; ok && threads <= (c->large ? rig_threads() : 1); threads++) {
            ok = call_table(c, tables[k], threads, threads == 1 ? &alone : &hash, cost, planted, worst, msg);
            if (ok && threads > 1 && threads_exact && hash != alone)
                ok = false, snprintf(msg, 400, "%d threads give other bits than one", threads);
        }
        if (!ok) {
            size_t len = strlen(msg);
            snprintf(msg + len, 400 - len, " (%s, draw %d, %d rows, width %d, %ld terms)", tables[k].name, draw, c->N,
                     c->d, c->terms);
        }
    }
    call_free(c);
    return ok;
}
bool call_forms_met(int at, char msg[200]) {
    int n;
    const OpRoles *all = op_roles(&n);
    for (int i = 0; all[at].arg[i].name; i++) {
        const unsigned of = all[at].arg[i].roles;
        const char *form =
            of & ROLE_OPTIONAL && !(met[i] & MET_ABSENT)                                        ? "absent"
            : of && !(met[i] & MET_PRESENT)                                                     ? "present"
            : of & (ROLE_BF16 | ROLE_ALIKE | ROLE_WEIGHT | ROLE_MOMENT) && !(met[i] & MET_BF16) ? "in BF16"
            : of & (ROLE_BF16 | ROLE_ALIKE | ROLE_WEIGHT | ROLE_MOMENT) && !(met[i] & MET_REAL) ? "in REAL"
            : of & ROLE_OVERWRITE && !(met[i] & MET_OVERWRITE)                                  ? "overwritten"
            : of & ROLE_OVERWRITE && !(met[i] & MET_ADD)                                        ? "added to"
                                                                                                : NULL;
        if (form) {
            snprintf(msg, 200, "%s: %s was never %s", all[at].op, all[at].arg[i].name, form);
            return false;
        }
    }
    return true;
}
