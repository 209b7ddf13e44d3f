/* profile.c: see profile.h. The device's table of ops is replaced by one whose entries time those of the first. */
#include "profile.h"
#include "device.h"

/* Op i is entry i of the table. Entry 0 is the table's name: it counts the time between ops. */
enum { BETWEEN = 0, MARKS_MOST = 8192 };
_Static_assert(offsetof(Ops, name) == 0, "the first entry is no op");
struct Profile {
    Ops table; /* first: Run.ops points here */
    const Ops *under;
    Device *dev;
    double inside;           /* of the host's clock: seconds of ops called by the one that runs */
    struct CudaMarks *marks; /* of a device; NULL: by the host's clock */
    int running;             /* of a device: the op that asks */
    int *after;              /* of each mark: the op that asked from there on */
    int room;
    Share of[PROFILE_MAX];
};

static void profile_mark(Profile *s, int op) {
    const BackendMarks *m = &s->dev->backend->marks;
    int n = m->count(s->marks);
    if (n == s->room) s->after = xrealloc(s->after, (size_t)(s->room = 2 * s->room + 256), sizeof *s->after);
    s->after[n] = s->running = op;
    m->add(s->marks);
}
/* Times between marks go to the op that asked meanwhile. */
static void profile_fold(Profile *s) {
    const BackendMarks *m = &s->dev->backend->marks;
    int n = s->marks ? m->count(s->marks) : 0;
    if (!n) return;
    double *t = xcalloc((size_t)n, sizeof *t);
    m->read(s->marks, t);
    for (int i = 0; i + 1 < n; i++) {
        Share *x = &s->of[s->after[i]];
        if (s->after[i] == BETWEEN) x->op = PROFILE_BETWEEN, x->calls++;
        x->seconds += t[i];
    }
    free(t);
}

/* For one call: when it began, and the time that ops around it had spent in others. */
typedef struct {
    Profile *of;
    double start, inside;
    int outer;
} Call;
static Call call_begin(const Run *r, size_t at) {
    Profile *s = (Profile *)(uintptr_t)r->ops;
    Call c = {s, 0, s->inside, s->running};
    if (s->marks) {
        if (!measuring(r)) profile_mark(s, (int)(at / sizeof(void *)));
        return c;
    }
    c.start = now_seconds();
    s->inside = 0;
    return c;
}
static void call_end(const Run *r, Call c, size_t at, const char *op, double flops) {
    Profile *s = c.of;
    double took = s->marks ? 0 : now_seconds() - c.start;
    Share *x = &s->of[at / sizeof(void *)];
    if (!measuring(r)) {
        x->op = op;
        x->calls++;
        x->seconds += took - (s->marks ? 0 : s->inside);
        x->flops += flops;
    }
    if (!s->marks)
        s->inside = c.inside + took;
    else if (!measuring(r)) {
        profile_mark(s, c.outer);
        if (c.outer == BETWEEN && s->dev->backend->marks.count(s->marks) > MARKS_MOST) profile_fold(s);
    }
}

/* ---- FLOPs of products, as ops.def counts them
 * ----------------------------------------------------------------------------------------- */
static double product(Tensor x, Tensor w) { return 2.0 * (double)tensor_rows(x, w.n[1]).n[0] * w.n[0] * w.n[1]; }
static double products(int n, const Projection *p, Tensor x) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += product(x, p[i].w);
    return sum;
}
static double products_back(Into dx, int n, const Projection *d, Tensor x, const Projection *p) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (present(dx.t) + present(d[i].w)) * product(x, p[i].w);
    return sum;
}
static double grouped(Tensor x, const Tensor *w) { return 2.0 * x.n[0] * w[0].n[0] * w[0].n[1]; }

/* ---- the table ------------------------------------------------------------------------------------------------- */
#define KEEP_void
#define KEEP_double double result =
#define GIVE_void
#define GIVE_double return result;
#define DEF(type, op, flops, ...)                                       \
    static type op##_timed(Run *r OP_EACH(OP_PARAM, __VA_ARGS__)) {     \
        Call call = call_begin(r, offsetof(Ops, op));                   \
        KEEP_##type call.of->under->op(r OP_EACH(OP_ARG, __VA_ARGS__)); \
        call_end(r, call, offsetof(Ops, op), #op, flops);               \
        GIVE_##type                                                     \
    }
#include "ops.def"

static const Ops timed = {
#define DEF(type, op, ...) .op = op##_timed,
#include "ops.def"
};

Profile *profile_begin(Device *d) {
    Profile *s = xcalloc(1, sizeof *s);
    s->table = timed;
    s->table.name = d->ops->name;
    s->under = d->ops;
    s->dev = d;
    if (d->backend->marks.make) s->marks = d->backend->marks.make(d->cuda);
    d->ops = &s->table;
    return s;
}
void profile_clear(Profile *s) {
    profile_fold(s);
    memset(s->of, 0, sizeof s->of);
}

static int by_seconds(const void *a, const void *b) {
    double x = ((const Share *)a)->seconds, y = ((const Share *)b)->seconds;
    return (x < y) - (x > y);
}
int profile_read(Profile *s, Share *out) {
    int n = 0;
    profile_fold(s);
    for (int i = 0; i < PROFILE_MAX; i++)
        if (s->of[i].calls) out[n++] = s->of[i];
    qsort(out, (size_t)n, sizeof *out, by_seconds);
    return n;
}
void profile_end(Profile *s) {
    CHECK(s->dev->ops == &s->table, "the ops of a device were replaced while they were timed");
    s->dev->ops = s->under;
    if (s->marks) s->dev->backend->marks.free(s->marks);
    free(s->after);
    free(s);
}
