/* sdpa.c: builds cuDNN graphs and plans of attention through its C interface, and runs them. */
#include "sdpa.h"
#include "ops/base.h"
#include <float.h>

/* The ids by which the library knows a graph's tensors. */
enum { ID_Q = 1, ID_K, ID_V, ID_O, ID_LSE, ID_DOUT, ID_DQ, ID_DK, ID_DV, ID_FIRST, ID_DELTA, ID_SUM };
enum { ID_SCALE = 20, ID_HIDDEN, ID_ONE, ID_WINDOW, ID_BETWEEN = 100 };
enum { MOST_DESCS = 180, MOST_OPS = 40, MOST_CONFIGS = 8, ALIGNMENT = 16, PIECE = 256 };

struct Sdpa {
    const Cudnn *f;
    void *handle;
    SdpaKind kind;
    SdpaShape s;
    CudnnDesc desc[MOST_DESCS], graph, plan; /* every descriptor made for it, in this order; two of these */
    int n;
    size_t work, delta, sum; /* bytes: of cuDNN's own workspace; of delta; of dq while it is summed */
    bool unordered;
    int engine;
};

const char *cudnn_version(const Cudnn *f, char out[24]) {
    size_t v = f->GetVersion();
    snprintf(out, 24, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return out;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */
typedef struct {
    const Cudnn *f;
    SdpaShape s;
    Sdpa *plan;
    CudnnDesc op[MOST_OPS];
    int ops;
    int64_t between;
    bool ok;
    char *why;
} Making;
static bool sdpa_fails(Making *m, int status, const char *what) {
    if (status == CUDNN_OK || !m->ok) return !m->ok;
    char version[24], last[240] = "";
    m->f->GetLastErrorString(last, sizeof last);
    for (char *c = last; *c; c++)
        if (*c == '\n') *c = ' ';
    snprintf(m->why, 300, "cuDNN %s: %.60s: %.40s (%.150s)", cudnn_version(m->f, version), what,
             m->f->GetErrorString(status), last);
    m->ok = false;
    return true;
}
static CudnnDesc sdpa_make(Making *m, CudnnDescKind kind) {
    CudnnDesc d = NULL;
    if (!m->ok) return NULL;
    CHECK(m->plan->n < MOST_DESCS, "%d descriptors", m->plan->n);
    if (sdpa_fails(m, m->f->BackendCreateDescriptor(kind, &d), "a descriptor")) return NULL;
    return m->plan->desc[m->plan->n++] = d;
}
static void sdpa_set(Making *m, CudnnDesc d, CudnnAttribute a, CudnnAs as, int64_t n, const void *p) {
    char what[40];
    snprintf(what, sizeof what, "attribute %d", a);
    if (m->ok) sdpa_fails(m, m->f->BackendSetAttribute(d, a, as, n, p), what);
}
static void set_desc(Making *m, CudnnDesc d, CudnnAttribute a, CudnnDesc x) { sdpa_set(m, d, a, AS_DESC, 1, &x); }
static void set_int(Making *m, CudnnDesc d, CudnnAttribute a, CudnnAs as, int x) { sdpa_set(m, d, a, as, 1, &x); }
static void set_int64(Making *m, CudnnDesc d, CudnnAttribute a, int64_t x) { sdpa_set(m, d, a, AS_INT64, 1, &x); }
static void sdpa_finish(Making *m, CudnnDesc d, const char *what) {
    if (m->ok) sdpa_fails(m, m->f->BackendFinalize(d), what);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */
typedef struct {
    int64_t n[4], stride[4];
} Form;
/* (B,T,heads,D), seen as (B,heads,T,D). */
static Form sdpa_rows_of(const SdpaShape *s, int64_t heads, int64_t D) {
    int64_t T = s->T;
    return (Form){{s->B, heads, T, D}, {T * heads * D, D, heads * D, 1}};
}
static Form sdpa_turned(Form f) {
    return (Form){{f.n[0], f.n[1], f.n[3], f.n[2]}, {f.stride[0], f.stride[1], f.stride[3], f.stride[2]}};
}
/* Dense in this order. */
static Form sdpa_dense(int64_t a, int64_t b, int64_t c, int64_t d) {
    return (Form){{a, b, c, d}, {b * c * d, c * d, d, 1}};
}
enum { VIRTUAL = 1, BY_VALUE = 2, TILED = 4 };
static CudnnDesc sdpa_tensor(Making *m, int64_t id, int type, Form f, int how) {
    CudnnDesc d = sdpa_make(m, DESC_TENSOR);
    bool yes = true;
    set_int(m, d, TENSOR_TYPE, AS_DATA_TYPE, type);
    sdpa_set(m, d, TENSOR_SIZES, AS_INT64, 4, f.n);
    sdpa_set(m, d, TENSOR_STRIDES, AS_INT64, 4, f.stride);
    set_int64(m, d, TENSOR_ID, id);
    set_int64(m, d, TENSOR_ALIGNMENT, id == ID_LSE || id == ID_FIRST ? 4 : ALIGNMENT);
    if (how & VIRTUAL) sdpa_set(m, d, TENSOR_VIRTUAL, AS_BOOL, 1, &yes);
    if (how & BY_VALUE) sdpa_set(m, d, TENSOR_BY_VALUE, AS_BOOL, 1, &yes);
    if (how & TILED) set_int(m, d, TENSOR_REORDERING, AS_REORDERING, REORDERING_F16X16);
    sdpa_finish(m, d, "a tensor");
    return d;
}
static CudnnDesc sdpa_between(Making *m, int type, Form f) { return sdpa_tensor(m, m->between++, type, f, VIRTUAL); }
static CudnnDesc sdpa_number(Making *m, int64_t id, int type) {
    return sdpa_tensor(m, id, type, sdpa_dense(1, 1, 1, 1), BY_VALUE);
}
/* The shape of scores (f32 unless said), and of one element per row. */
static Form sdpa_square(const SdpaShape *s) { return sdpa_dense(s->B, s->heads, s->T, s->T); }
static Form sdpa_column(const SdpaShape *s) { return sdpa_dense(s->B, s->heads, s->T, 1); }

/* ---- operations -------------------------------------------------------------------------------------------------- */
static void add_op(Making *m, CudnnDesc op, const char *what) {
    sdpa_finish(m, op, what);
    CHECK(m->ops < MOST_OPS, "%d operations", m->ops);
    m->op[m->ops++] = op;
}
/* y = x, x op b, or (select) t ? x : b. */
static CudnnDesc sdpa_pointwise(Making *m, int mode, int type, CudnnDesc x, CudnnDesc b, CudnnDesc t, CudnnDesc y,
                                int axis) {
    CudnnDesc how = sdpa_make(m, DESC_POINTWISE), op;
    set_int(m, how, POINTWISE_MODE, AS_POINTWISE, mode);
    set_int(m, how, POINTWISE_TYPE, AS_DATA_TYPE, type);
    if (mode == DO_INDEX) set_int64(m, how, POINTWISE_AXIS, axis);
    sdpa_finish(m, how, "a pointwise operation");
    op = sdpa_make(m, DESC_DO_POINTWISE);
    set_desc(m, op, DO_POINTWISE_HOW, how);
    set_desc(m, op, DO_POINTWISE_X, x);
    if (b) set_desc(m, op, DO_POINTWISE_B, b);
    if (t) set_desc(m, op, DO_POINTWISE_T, t);
    set_desc(m, op, DO_POINTWISE_Y, y);
    add_op(m, op, "a pointwise operation");
    return y;
}
static CudnnDesc sdpa_each(Making *m, int mode, CudnnDesc x, CudnnDesc b, CudnnDesc y) {
    return sdpa_pointwise(m, mode, TYPE_F32, x, b, NULL, y, 0);
}
static CudnnDesc sdpa_product(Making *m, CudnnDesc a, CudnnDesc b, CudnnDesc c) {
    CudnnDesc how = sdpa_make(m, DESC_MATMUL), op;
    set_int(m, how, MATMUL_TYPE, AS_DATA_TYPE, TYPE_F32);
    sdpa_finish(m, how, "a product");
    op = sdpa_make(m, DESC_DO_MATMUL);
    set_desc(m, op, DO_MATMUL_HOW, how);
    set_desc(m, op, DO_MATMUL_A, a);
    set_desc(m, op, DO_MATMUL_B, b);
    set_desc(m, op, DO_MATMUL_C, c);
    add_op(m, op, "a product");
    return c;
}
static CudnnDesc sdpa_reduce(Making *m, int kind, CudnnDesc x, CudnnDesc y) {
    CudnnDesc how = sdpa_make(m, DESC_REDUCTION), op;
    set_int(m, how, REDUCTION_OP, AS_REDUCTION, kind);
    set_int(m, how, REDUCTION_TYPE, AS_DATA_TYPE, TYPE_F32);
    sdpa_finish(m, how, "a sum");
    op = sdpa_make(m, DESC_DO_REDUCTION);
    set_desc(m, op, DO_REDUCTION_HOW, how);
    set_desc(m, op, DO_REDUCTION_X, x);
    set_desc(m, op, DO_REDUCTION_Y, y);
    add_op(m, op, "a sum");
    return y;
}
static CudnnDesc sdpa_reshape(Making *m, CudnnDesc x, CudnnDesc y) {
    CudnnDesc op = sdpa_make(m, DESC_DO_RESHAPE);
    set_desc(m, op, DO_RESHAPE_X, x);
    set_desc(m, op, DO_RESHAPE_Y, y);
    add_op(m, op, "another view");
    return y;
}

/* ---- the graphs -------------------------------------------------------------------------------------------------- */
static CudnnDesc sdpa_place(Making *m, CudnnDesc s, int axis) {
    return sdpa_pointwise(m, DO_INDEX, TYPE_I32, s, NULL, NULL, sdpa_between(m, TYPE_I32, sdpa_square(&m->s)), axis);
}
static CudnnDesc sdpa_keep(Making *m, CudnnDesc s, CudnnDesc hidden, int compare, CudnnDesc a, CudnnDesc b) {
    CudnnDesc sees =
        sdpa_pointwise(m, compare, TYPE_BOOL, a, b, NULL, sdpa_between(m, TYPE_BOOL, sdpa_square(&m->s)), 0);
    return sdpa_pointwise(m, DO_SELECT, TYPE_F32, s, hidden, sees, sdpa_between(m, TYPE_F32, sdpa_square(&m->s)), 0);
}
/* Every condition has its own index tensors, because the library's engines recognise a mask by this pattern. */
static CudnnDesc sdpa_mask(Making *m, CudnnDesc s) {
    CudnnDesc hidden = sdpa_number(m, ID_HIDDEN, TYPE_F32);
    CudnnDesc row = sdpa_place(m, s, 2), col = sdpa_place(m, s, 3);
    s = sdpa_keep(m, s, hidden, DO_NOT_LESS, row, col);
    if (m->s.window) {
        row = sdpa_place(m, s, 2), col = sdpa_place(m, s, 3);
        CudnnDesc end = sdpa_pointwise(m, DO_ADD, TYPE_I32, col, sdpa_number(m, ID_WINDOW, TYPE_I32), NULL,
                                       sdpa_between(m, TYPE_I32, sdpa_square(&m->s)), 0);
        s = sdpa_keep(m, s, hidden, DO_GREATER, end, row);
    }
    if (m->s.documents) {
        CudnnDesc first = sdpa_tensor(m, ID_FIRST, TYPE_I32, sdpa_dense(m->s.B, 1, m->s.T, 1), 0);
        s = sdpa_keep(m, s, hidden, DO_NOT_LESS, sdpa_place(m, s, 3), first);
    }
    return s;
}
/* lse (B,T,heads) */
static CudnnDesc lse_of(Making *m) { return sdpa_tensor(m, ID_LSE, TYPE_F32, sdpa_rows_of(&m->s, m->s.heads, 1), 0); }
static void forward_graph(Making *m) {
    const SdpaShape *s = &m->s;
    CudnnDesc q = sdpa_tensor(m, ID_Q, TYPE_BF16, sdpa_rows_of(s, s->heads, s->Dk), 0),
              k = sdpa_tensor(m, ID_K, TYPE_BF16, sdpa_turned(sdpa_rows_of(s, s->lanes, s->Dk)), 0),
              v = sdpa_tensor(m, ID_V, TYPE_BF16, sdpa_rows_of(s, s->lanes, s->Dv), 0),
              o = sdpa_tensor(m, ID_O, TYPE_BF16, sdpa_rows_of(s, s->heads, s->Dv), 0), lse = lse_of(m);
    CudnnDesc z = sdpa_product(m, q, k, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    z = sdpa_each(m, DO_MUL, z, sdpa_number(m, ID_SCALE, TYPE_F32), sdpa_between(m, TYPE_F32, sdpa_square(s)));
    z = sdpa_mask(m, z);
    CudnnDesc top = sdpa_reduce(m, REDUCE_MAX, z, sdpa_between(m, TYPE_F32, sdpa_column(s)));
    CudnnDesc less = sdpa_each(m, DO_SUB, z, top, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    CudnnDesc e = sdpa_each(m, DO_EXP, less, NULL, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    CudnnDesc sum = sdpa_reduce(m, REDUCE_SUM, e, sdpa_between(m, TYPE_F32, sdpa_column(s)));
    CudnnDesc log = sdpa_each(m, DO_LOG, sum, NULL, sdpa_between(m, TYPE_F32, sdpa_column(s)));
    sdpa_each(m, DO_ADD, top, log, lse);
    CudnnDesc p = sdpa_each(m, DO_DIV, e, sum, sdpa_between(m, TYPE_BF16, sdpa_square(s)));
    sdpa_product(m, p, v, o);
}
/* y = x^T d, summed over the heads of a lane. */
static void by_keys(Making *m, CudnnDesc x, CudnnDesc d, int D, CudnnDesc y) {
    const SdpaShape *s = &m->s;
    CudnnDesc xt = sdpa_reshape(m, x, sdpa_between(m, TYPE_BF16, sdpa_turned(sdpa_square(s))));
    if (s->heads == s->lanes)
        sdpa_product(m, xt, d, y);
    else
        sdpa_reduce(m, REDUCE_SUM,
                    sdpa_product(m, xt, d, sdpa_between(m, TYPE_BF16, sdpa_dense(s->B, s->heads, s->T, D))), y);
}
static void backward_graph(Making *m, bool unordered) {
    const SdpaShape *s = &m->s;
    Form form_k = sdpa_rows_of(s, s->lanes, s->Dk);
    CudnnDesc q = sdpa_tensor(m, ID_Q, TYPE_BF16, sdpa_rows_of(s, s->heads, s->Dk), 0),
              k = sdpa_tensor(m, ID_K, TYPE_BF16, sdpa_turned(form_k), 0),
              v = sdpa_tensor(m, ID_V, TYPE_BF16, sdpa_turned(sdpa_rows_of(s, s->lanes, s->Dv)), 0),
              o = sdpa_tensor(m, ID_O, TYPE_BF16, sdpa_rows_of(s, s->heads, s->Dv), 0),
              dout = sdpa_tensor(m, ID_DOUT, TYPE_BF16, sdpa_rows_of(s, s->heads, s->Dv), 0), lse = lse_of(m),
              dq = sdpa_tensor(m, ID_DQ, TYPE_BF16, sdpa_rows_of(s, s->heads, s->Dk), 0),
              dk = sdpa_tensor(m, ID_DK, TYPE_BF16, form_k, 0),
              dv = sdpa_tensor(m, ID_DV, TYPE_BF16, sdpa_rows_of(s, s->lanes, s->Dv), 0),
              scale = sdpa_number(m, ID_SCALE, TYPE_F32), one = sdpa_number(m, ID_ONE, TYPE_F32);
    CudnnDesc dots = sdpa_each(m, DO_MUL, dout, o, sdpa_between(m, TYPE_F32, sdpa_rows_of(s, s->heads, s->Dv)));
    CudnnDesc delta = sdpa_each(m, DO_MUL, sdpa_reduce(m, REDUCE_SUM, dots, sdpa_between(m, TYPE_F32, sdpa_column(s))),
                                one, sdpa_tensor(m, ID_DELTA, TYPE_F32, sdpa_column(s), 0));
    CudnnDesc z = sdpa_product(m, q, k, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    z = sdpa_each(m, DO_MUL, z, scale, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    z = sdpa_each(m, DO_SUB, z, lse, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    z = sdpa_mask(m, z);
    CudnnDesc p = sdpa_each(m, DO_EXP, z, NULL, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    by_keys(m, p, dout, s->Dv, dv);
    CudnnDesc ds = sdpa_product(m, dout, v, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    ds = sdpa_each(m, DO_SUB, ds, delta, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    ds = sdpa_each(m, DO_MUL, ds, p, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    ds = sdpa_each(m, DO_MUL, ds, scale, sdpa_between(m, TYPE_F32, sdpa_square(s)));
    by_keys(m, ds, q, s->Dk, dk);
    CudnnDesc rows = sdpa_reshape(m, k, sdpa_between(m, TYPE_BF16, form_k));
    if (unordered) {
        CudnnDesc sum = sdpa_tensor(m, ID_SUM, TYPE_F32, sdpa_dense(s->B, s->heads, s->T, s->Dk), TILED);
        sdpa_each(m, DO_IDENTITY, sdpa_product(m, ds, rows, sum), NULL, dq);
    } else
        sdpa_product(m, ds, rows, dq);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */
/* Read the engine's own notes about a configuration. */
static void ask_engine(Sdpa *p, CudnnDesc config) {
    CudnnDesc engine = NULL;
    int64_t n = 0, index = -1;
    int notes[NOTES];
    if (p->f->BackendCreateDescriptor(DESC_ENGINE, &engine) != CUDNN_OK) return;
    if (p->f->BackendGetAttribute(config, CONFIG_ENGINE, AS_DESC, 1, &n, &engine) == CUDNN_OK) {
        if (p->f->BackendGetAttribute(engine, ENGINE_INDEX, AS_INT64, 1, &n, &index) == CUDNN_OK)
            p->engine = (int)index;
        if (p->f->BackendGetAttribute(engine, ENGINE_NOTES, AS_NOTE, NOTES, &n, notes) == CUDNN_OK)
            for (int64_t i = 0; i < n && i < NOTES; i++) p->unordered |= notes[i] == NOTE_UNORDERED;
    }
    p->f->BackendDestroyDescriptor(engine);
}
/* Build the plan of the first of a heuristic's configurations that has one. */
static bool plan_by(Sdpa *p, Making *m, const SdpaTarget *t, int mode) {
    CudnnDesc h = sdpa_make(m, DESC_HEURISTIC), config[MOST_CONFIGS];
    set_desc(m, h, HEURISTIC_GRAPH, p->graph);
    set_int(m, h, HEURISTIC_MODE, AS_HEURISTIC, mode);
    if (t->device) set_desc(m, h, HEURISTIC_DEVICE, t->device);
    sdpa_finish(m, h, "choosing an engine");
    for (int i = 0; i < MOST_CONFIGS; i++) config[i] = sdpa_make(m, DESC_CONFIG);
    int64_t n = 0, one;
    if (m->ok)
        sdpa_fails(m, m->f->BackendGetAttribute(h, HEURISTIC_RESULTS, AS_DESC, MOST_CONFIGS, &n, config),
                   "choosing an engine");
    if (m->ok && n == 0) sdpa_fails(m, CUDNN_NOT_SUPPORTED, "no engine supports this graph");
    for (int64_t i = 0; i < n && i < MOST_CONFIGS && !p->plan; i++) {
        m->ok = true;
        CudnnDesc plan = sdpa_make(m, DESC_PLAN);
        if (t->device)
            set_desc(m, plan, PLAN_DEVICE, t->device);
        else
            sdpa_set(m, plan, PLAN_HANDLE, AS_HANDLE, 1, &t->handle);
        set_desc(m, plan, PLAN_CONFIG, config[i]);
        sdpa_finish(m, plan, "building a plan");
        int64_t bytes = 0;
        if (m->ok)
            sdpa_fails(m, m->f->BackendGetAttribute(plan, PLAN_WORKSPACE, AS_INT64, 1, &one, &bytes), "its workspace");
        if (!m->ok) continue;
        p->plan = plan, p->work = (size_t)bytes;
        ask_engine(p, config[i]);
    }
    return p->plan;
}
static size_t sdpa_pieces(size_t bytes) { return (bytes + PIECE - 1) / PIECE * PIECE; }
Sdpa *sdpa_open(const SdpaTarget *t, SdpaKind kind, SdpaShape s, char why[300]) {
    CHECK(s.B > 0 && s.T > 0 && s.lanes > 0 && s.heads % s.lanes == 0 && s.Dk > 0 && s.Dv > 0 && s.window >= 0,
          "%d sequences of %d rows, %d heads on %d lanes", s.B, s.T, s.heads, s.lanes);
    if (s.Dk % 8 || s.Dv % 8) {
        snprintf(why, 300, "head widths %d and %d: bf16 rows that do not begin at 16 bytes", s.Dk, s.Dv);
        return NULL;
    }
    Sdpa *p = xcalloc(1, sizeof *p);
    *p = (Sdpa){.f = t->f, .handle = t->handle, .kind = kind, .s = s, .engine = -1};
    Making m = {.f = t->f, .s = s, .plan = p, .ok = true, .why = why, .between = ID_BETWEEN};
    size_t rows = (size_t)s.B * (size_t)s.T * (size_t)s.heads;
    if (kind == SDPA_FORWARD)
        forward_graph(&m);
    else {
        p->unordered = kind == SDPA_BACKWARD_UNORDERED;
        p->delta = sdpa_pieces(rows * sizeof(float));
        if (p->unordered) p->sum = sdpa_pieces(rows * (size_t)s.Dk * sizeof(float));
        backward_graph(&m, p->unordered);
    }
    p->graph = sdpa_make(&m, DESC_GRAPH);
    sdpa_set(&m, p->graph, GRAPH_OPS, AS_DESC, m.ops, m.op);
    if (!t->device) sdpa_set(&m, p->graph, GRAPH_HANDLE, AS_HANDLE, 1, &t->handle);
    sdpa_finish(&m, p->graph, "the graph");
    if (m.ok && !plan_by(p, &m, t, HEURISTIC_A)) {
        char other[300];
        m.ok = true, m.why = other; /* the message of the better engines is reported */
        plan_by(p, &m, t, HEURISTIC_FALLBACK);
    }
    if (p->plan) return p;
    sdpa_close(p);
    return NULL;
}
void sdpa_close(Sdpa *p) {
    if (!p) return;
    while (p->n > 0) p->f->BackendDestroyDescriptor(p->desc[--p->n]);
    free(p);
}
SdpaShape sdpa_shape(const Sdpa *p) { return p->s; }
SdpaKind sdpa_kind(const Sdpa *p) { return p->kind; }
size_t sdpa_bytes(const Sdpa *p) { return sdpa_pieces(p->work) + p->delta + p->sum; }
size_t sdpa_zero(const Sdpa *p, size_t *at) {
    *at = sdpa_pieces(p->work) + p->delta;
    return p->sum;
}
bool sdpa_unordered(const Sdpa *p) { return p->unordered; }
int sdpa_engine(const Sdpa *p) { return p->engine; }

/* ---- running ----------------------------------------------------------------------------------------------------- */
bool sdpa_run(const Sdpa *p, const SdpaTensors *t, float scale, void *workspace, char why[300]) {
    float hidden = -FLT_MAX, one = 1; /* finite: a tile with only hidden scores must have a maximum */
    int32_t window = p->s.window;
    char *delta = (char *)workspace + sdpa_pieces(p->work);
    bool back = p->kind != SDPA_FORWARD;
    const struct {
        int64_t id;
        const void *at;
        bool used;
    } all[] = {{ID_Q, t->q, true},
               {ID_K, t->k, true},
               {ID_V, t->v, true},
               {ID_O, t->o, true},
               {ID_LSE, t->lse, true},
               {ID_SCALE, &scale, true},
               {ID_HIDDEN, &hidden, true},
               {ID_WINDOW, &window, p->s.window > 0},
               {ID_FIRST, t->first, p->s.documents},
               {ID_DOUT, t->dout, back},
               {ID_DQ, t->dq, back},
               {ID_DK, t->dk, back},
               {ID_DV, t->dv, back},
               {ID_ONE, &one, back},
               {ID_DELTA, delta, back},
               {ID_SUM, delta + p->delta, p->sum > 0}};
    enum { ALL = sizeof all / sizeof *all };
    int64_t id[ALL];
    const void *at[ALL];
    int n = 0;
    for (int i = 0; i < ALL; i++)
        if (all[i].used) id[n] = all[i].id, at[n++] = all[i].at;
    CudnnDesc pack = NULL;
    const Cudnn *f = p->f;
    const char *what = "what a plan runs on";
    int s = f->BackendCreateDescriptor(DESC_PACK, &pack);
    if (!s) s = f->BackendSetAttribute(pack, PACK_IDS, AS_INT64, n, id);
    if (!s) s = f->BackendSetAttribute(pack, PACK_POINTERS, AS_POINTER, n, at);
    if (!s) s = f->BackendSetAttribute(pack, PACK_WORKSPACE, AS_POINTER, 1, &workspace);
    if (!s) s = f->BackendFinalize(pack);
    if (!s) what = "running a plan", s = f->BackendExecute(p->handle, p->plan, pack);
    Making m = {.f = f, .ok = true, .why = why};
    sdpa_fails(&m, s, what);
    if (pack) f->BackendDestroyDescriptor(pack);
    return m.ok;
}
