/* cudnn.cpp: the entry points of cuDNN that ops/cuda uses, over plain loops: a graph of operations is described as to
 * the library, and evaluated operation by operation, tensor by tensor, when its plan is run: operands of products in
 * bf16, everything else in f32, what lies between only as exact as its type.
 *
 * What the library refuses is refused here, with its status: attributes that a descriptor does not have, of another
 * type or number, or set too late; descriptors that are used before they are finalized; tensors that do not fit each
 * other, one number for two tensors, a tensor between operations that nothing makes or two make; rows in bf16 that do
 * not begin at 16 bytes, heads wider than 256 numbers; pointers that are missing or aligned less than was said. What it
 * would not notice is: a workspace that is smaller than the plan said, memory nobody wrote, sums that do not begin with
 * zero. Every one is proven in test_cudnn.c. */
#include "ops/cuda/host/cudnn_so.h"
#include "tests/simt/include/cuda_runtime.h"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

enum { BAD = 2000, BAD_NULL = 2002, BAD_ALIGNMENT = 2004, BAD_LATE = 2006 };
struct Desc;
typedef std::shared_ptr<Desc> Ref;
struct Value {
    int as;
    std::vector<int64_t> n; /* numbers and enumerators */
    std::vector<Ref> desc;  /* as they were */
    std::vector<void *> p;  /* pointers */
};
struct Plan;
struct Desc {
    int kind;
    bool ready;
    std::map<int, Value> set;
    std::shared_ptr<Plan> plan;
    int64_t one(int a, int64_t otherwise = 0) const {
        auto it = set.find(a);
        return it == set.end() || it->second.n.empty() ? otherwise : it->second.n[0];
    }
    Ref ref(int a) const {
        auto it = set.find(a);
        return it == set.end() || it->second.desc.empty() ? nullptr : it->second.desc[0];
    }
    const Value *all(int a) const {
        auto it = set.find(a);
        return it == set.end() ? nullptr : &it->second;
    }
};
struct Handle {
    cudaStream_t stream;
};
static std::string last;
static int refuse(int status, const std::string &why) {
    last = why;
    return status;
}

/* ---- attributes ----------------------------------------------------------------------------------------------------
 */
struct Known {
    int kind, attribute, as, least, most; /* least 0: may be left out */
};
static const Known known[] = {
    {DESC_POINTWISE, POINTWISE_MODE, AS_POINTWISE, 1, 1},
    {DESC_POINTWISE, POINTWISE_TYPE, AS_DATA_TYPE, 1, 1},
    {DESC_POINTWISE, POINTWISE_AXIS, AS_INT64, 0, 1},
    {DESC_MATMUL, MATMUL_TYPE, AS_DATA_TYPE, 1, 1},
    {DESC_REDUCTION, REDUCTION_OP, AS_REDUCTION, 1, 1},
    {DESC_REDUCTION, REDUCTION_TYPE, AS_DATA_TYPE, 1, 1},
    {DESC_TENSOR, TENSOR_ALIGNMENT, AS_INT64, 1, 1},
    {DESC_TENSOR, TENSOR_TYPE, AS_DATA_TYPE, 1, 1},
    {DESC_TENSOR, TENSOR_SIZES, AS_INT64, 4, 4},
    {DESC_TENSOR, TENSOR_STRIDES, AS_INT64, 4, 4},
    {DESC_TENSOR, TENSOR_ID, AS_INT64, 1, 1},
    {DESC_TENSOR, TENSOR_VIRTUAL, AS_BOOL, 0, 1},
    {DESC_TENSOR, TENSOR_BY_VALUE, AS_BOOL, 0, 1},
    {DESC_TENSOR, TENSOR_REORDERING, AS_REORDERING, 0, 1},
    {DESC_DO_POINTWISE, DO_POINTWISE_HOW, AS_DESC, 1, 1},
    {DESC_DO_POINTWISE, DO_POINTWISE_X, AS_DESC, 1, 1},
    {DESC_DO_POINTWISE, DO_POINTWISE_B, AS_DESC, 0, 1},
    {DESC_DO_POINTWISE, DO_POINTWISE_T, AS_DESC, 0, 1},
    {DESC_DO_POINTWISE, DO_POINTWISE_Y, AS_DESC, 1, 1},
    {DESC_DO_MATMUL, DO_MATMUL_HOW, AS_DESC, 1, 1},
    {DESC_DO_MATMUL, DO_MATMUL_A, AS_DESC, 1, 1},
    {DESC_DO_MATMUL, DO_MATMUL_B, AS_DESC, 1, 1},
    {DESC_DO_MATMUL, DO_MATMUL_C, AS_DESC, 1, 1},
    {DESC_DO_REDUCTION, DO_REDUCTION_HOW, AS_DESC, 1, 1},
    {DESC_DO_REDUCTION, DO_REDUCTION_X, AS_DESC, 1, 1},
    {DESC_DO_REDUCTION, DO_REDUCTION_Y, AS_DESC, 1, 1},
    {DESC_DO_RESHAPE, DO_RESHAPE_X, AS_DESC, 1, 1},
    {DESC_DO_RESHAPE, DO_RESHAPE_Y, AS_DESC, 1, 1},
    {DESC_GRAPH, GRAPH_HANDLE, AS_HANDLE, 1, 1},
    {DESC_GRAPH, GRAPH_OPS, AS_DESC, 1, 64},
    {DESC_HEURISTIC, HEURISTIC_MODE, AS_HEURISTIC, 1, 1},
    {DESC_HEURISTIC, HEURISTIC_GRAPH, AS_DESC, 1, 1},
    {DESC_PLAN, PLAN_HANDLE, AS_HANDLE, 1, 1},
    {DESC_PLAN, PLAN_CONFIG, AS_DESC, 1, 1},
    {DESC_PACK, PACK_IDS, AS_INT64, 1, 64},
    {DESC_PACK, PACK_POINTERS, AS_POINTER, 1, 64},
    {DESC_PACK, PACK_WORKSPACE, AS_POINTER, 1, 1},
};
static size_t size_of(int as) {
    switch (as) {
    case AS_BOOL: return sizeof(bool);
    case AS_INT64: return sizeof(int64_t);
    case AS_HANDLE:
    case AS_POINTER:
    case AS_DESC: return sizeof(void *);
    default: return sizeof(int);
    }
}
static Ref held(CudnnDesc d) { return d ? *(Ref *)d : nullptr; }
static int create(int kind, CudnnDesc *d) {
    bool made = kind == DESC_CONFIG || kind == DESC_ENGINE;
    for (const Known &k : known) made |= k.kind == kind;
    if (!d || !made) return refuse(CUDNN_NOT_SUPPORTED, "no descriptor of kind " + std::to_string(kind));
    *d = new Ref(new Desc{kind, false, {}, nullptr});
    return CUDNN_OK;
}
static int destroy(CudnnDesc d) {
    delete (Ref *)d;
    return CUDNN_OK;
}
static int set_attribute(CudnnDesc d, int attribute, int as, int64_t n, const void *from) {
    Ref x = held(d);
    if (!x || !from) return refuse(BAD_NULL, "nothing to set");
    std::string what = "attribute " + std::to_string(attribute) + " of kind " + std::to_string(x->kind);
    if (x->ready) return refuse(BAD_LATE, what + " is set behind its end");
    for (const Known &k : known) {
        if (k.kind != x->kind || k.attribute != attribute) continue;
        if (k.as != as) return refuse(BAD, what + " is of another type");
        if (n < 1 || n < k.least || n > k.most) return refuse(BAD, what + " has another number of elements");
        Value v{as, {}, {}, {}};
        for (int64_t i = 0; i < n; i++) {
            const char *at = (const char *)from + (size_t)i * size_of(as);
            if (as == AS_DESC) {
                Ref r = held(*(const CudnnDesc *)at);
                if (!r || !r->ready) return refuse(BAD, what + " is not finalized");
                v.desc.push_back(r);
            } else if (as == AS_HANDLE || as == AS_POINTER)
                v.p.push_back(*(void *const *)at);
            else
                v.n.push_back(as == AS_INT64  ? *(const int64_t *)at
                              : as == AS_BOOL ? *(const bool *)at
                                              : *(const int *)at);
        }
        x->set[attribute] = v;
        return CUDNN_OK;
    }
    return refuse(BAD, "there is no " + what);
}

/* ---- tensors and operations ----------------------------------------------------------------------------------------
 */
struct Tensor {
    int64_t id, n[4], stride[4], alignment;
    int type;
    bool between, by_value, tiled;
    size_t each() const { return type == TYPE_BF16 ? 2 : type == TYPE_BOOL ? 1 : 4; }
    int64_t span() const { /* numbers from the first to behind the last */
        int64_t s = 1;
        for (int k = 0; k < 4; k++) s += (n[k] - 1) * stride[k];
        return s;
    }
};
static Tensor tensor_of(const Desc *d) {
    Tensor t = {d->one(TENSOR_ID),
                {},
                {},
                d->one(TENSOR_ALIGNMENT),
                (int)d->one(TENSOR_TYPE),
                d->one(TENSOR_VIRTUAL) != 0,
                d->one(TENSOR_BY_VALUE) != 0,
                d->one(TENSOR_REORDERING) == REORDERING_F16X16};
    for (int k = 0; k < 4; k++)
        t.n[k] = d->all(TENSOR_SIZES)->n[(size_t)k], t.stride[k] = d->all(TENSOR_STRIDES)->n[(size_t)k];
    return t;
}
static bool alike(const Tensor &a, const Tensor &b) {
    return a.type == b.type && a.between == b.between && a.by_value == b.by_value && !memcmp(a.n, b.n, sizeof a.n) &&
           !memcmp(a.stride, b.stride, sizeof a.stride);
}
struct Op {
    int kind, how; /* kind of descriptor; operation, of numbers or of sums */
    int axis;
    int64_t x, b, t, y; /* numbers of tensors; -1: none */
};
struct Plan {
    std::map<int64_t, Tensor> tensor;
    std::vector<Op> op;
    size_t workspace;
    bool loose;
};
static int64_t id_of(const Ref &r) { return r ? r->one(TENSOR_ID) : -1; }
static Op op_of(const Desc *d) {
    switch (d->kind) {
    case DESC_DO_POINTWISE: {
        Ref how = d->ref(DO_POINTWISE_HOW);
        return {d->kind,
                (int)how->one(POINTWISE_MODE),
                (int)how->one(POINTWISE_AXIS, -1),
                id_of(d->ref(DO_POINTWISE_X)),
                id_of(d->ref(DO_POINTWISE_B)),
                id_of(d->ref(DO_POINTWISE_T)),
                id_of(d->ref(DO_POINTWISE_Y))};
    }
    case DESC_DO_MATMUL:
        return {d->kind, 0, 0, id_of(d->ref(DO_MATMUL_A)), id_of(d->ref(DO_MATMUL_B)), -1, id_of(d->ref(DO_MATMUL_C))};
    case DESC_DO_REDUCTION:
        return {d->kind,
                (int)d->ref(DO_REDUCTION_HOW)->one(REDUCTION_OP),
                0,
                id_of(d->ref(DO_REDUCTION_X)),
                -1,
                -1,
                id_of(d->ref(DO_REDUCTION_Y))};
    default: return {d->kind, 0, 0, id_of(d->ref(DO_RESHAPE_X)), -1, -1, id_of(d->ref(DO_RESHAPE_Y))};
    }
}
/* y's sizes are x's, or 1 in x: one number for all. */
static bool spreads(const Tensor &x, const Tensor &y) {
    for (int k = 0; k < 4; k++)
        if (x.n[k] != y.n[k] && x.n[k] != 1) return false;
    return true;
}
static const char *misfit(const Plan &p, const Op &o) {
    const Tensor &x = p.tensor.at(o.x), &y = p.tensor.at(o.y);
    if (o.kind == DESC_DO_MATMUL) {
        const Tensor &b = p.tensor.at(o.b);
        bool ok = x.n[0] == y.n[0] && b.n[0] == y.n[0] && x.n[1] == y.n[1] && b.n[1] > 0 && y.n[1] % b.n[1] == 0 &&
                  x.n[2] == y.n[2] && x.n[3] == b.n[2] && b.n[3] == y.n[3];
        return ok ? nullptr : "sizes of a product";
    }
    if (o.kind == DESC_DO_REDUCTION) {
        for (int k = 0; k < 4; k++)
            if (x.n[k] % y.n[k] || (k != 1 && y.n[k] != 1 && y.n[k] != x.n[k])) return "sizes of a sum";
        return nullptr;
    }
    if (o.kind == DESC_DO_RESHAPE) return x.span() == y.span() ? nullptr : "sizes of a view";
    bool two = o.how == DO_ADD || o.how == DO_MUL || o.how == DO_DIV || o.how == DO_SUB || o.how == DO_GREATER ||
               o.how == DO_NOT_LESS,
         one = o.how == DO_EXP || o.how == DO_LOG || o.how == DO_IDENTITY || o.how == DO_INDEX,
         select = o.how == DO_SELECT;
    if (!two && !one && !select) return "an operation that it does not have";
    if ((o.b >= 0) != (two || select) || (o.t >= 0) != select) return "operands of an operation";
    if (o.how == DO_INDEX && (o.axis < 0 || o.axis > 3)) return "an axis";
    if (select && p.tensor.at(o.t).type != TYPE_BOOL) return "a condition that is none";
    for (int64_t id : {o.x, o.b, o.t})
        if (id >= 0 && !spreads(p.tensor.at(id), y)) return "sizes of an operation";
    return nullptr;
}
static int graph_of(Desc *d) {
    auto p = std::make_shared<Plan>();
    std::map<int64_t, int> made;
    for (const Ref &r : d->all(GRAPH_OPS)->desc) {
        for (const auto &a : r->set) {
            for (const Ref &t : a.second.desc) {
                if (t->kind != DESC_TENSOR) continue;
                Tensor x = tensor_of(t.get());
                auto was = p->tensor.find(x.id);
                if (was != p->tensor.end() && !alike(was->second, x))
                    return refuse(BAD, "tensor " + std::to_string(x.id) + " is two");
                p->tensor[x.id] = x;
            }
        }
        Op o = op_of(r.get());
        if (made[o.y]++) return refuse(BAD, "tensor " + std::to_string(o.y) + " is made twice");
        p->op.push_back(o);
    }
    for (size_t i = 0; i < p->op.size(); i++) {
        const Op &o = p->op[i];
        const char *no = misfit(*p, o);
        if (no) return refuse(BAD, std::string(no) + " (operation " + std::to_string(i) + ")");
        for (int64_t id : {o.x, o.b, o.t})
            if (id >= 0 && p->tensor[id].between && !made[id])
                return refuse(BAD, "tensor " + std::to_string(id) + " is made by nothing");
    }
    d->plan = p;
    return CUDNN_OK;
}
/* What its engines of attention take. */
static int engine_for(Plan *p) {
    size_t products = 0, scores = 0, rows = 0;
    for (const Op &o : p->op) products += o.kind == DESC_DO_MATMUL;
    if (products != 2 && products != 5) return refuse(CUDNN_NOT_SUPPORTED, "no attention");
    for (const auto &i : p->tensor) {
        const Tensor &t = i.second;
        if (t.between || t.by_value) continue;
        p->loose |= t.tiled;
        if (t.type != TYPE_BF16) continue;
        int64_t width = t.stride[3] == 1 ? t.n[3] : t.n[2];
        if (width > 256) return refuse(CUDNN_NOT_SUPPORTED, "heads wider than 256");
        for (int k = 0; k < 4; k++)
            if (t.stride[k] != 1 && t.stride[k] * 2 % t.alignment)
                return refuse(CUDNN_NOT_SUPPORTED, "rows that do not begin at 16 bytes");
    }
    for (const Op &o : p->op) {
        const Tensor &y = p->tensor[o.y];
        if (o.kind == DESC_DO_MATMUL && !scores)
            scores = (size_t)(y.n[0] * y.n[1] * y.n[2] * y.n[3]), rows = (size_t)(y.n[0] * y.n[1] * y.n[2]);
    }
    p->workspace = products == 2 ? 0 : p->loose ? rows * 4 + 512 : scores * 2 + 512;
    return CUDNN_OK;
}
static int finalize(CudnnDesc d) {
    Ref x = held(d);
    if (!x) return refuse(BAD_NULL, "no descriptor");
    if (x->ready) return refuse(BAD_LATE, "finalized twice");
    for (const Known &k : known)
        if (k.kind == x->kind && k.least > 0 && !x->set.count(k.attribute))
            return refuse(BAD, "attribute " + std::to_string(k.attribute) + " is missing");
    int s = CUDNN_OK;
    if (x->kind == DESC_TENSOR) {
        Tensor t = tensor_of(x.get());
        for (int k = 0; k < 4; k++)
            if (t.n[k] < 1 || t.stride[k] < 1) s = refuse(BAD, "sizes of a tensor");
        if (t.alignment < (int64_t)t.each() || (t.alignment & (t.alignment - 1)) || (t.between && t.by_value))
            s = refuse(BAD, "a tensor's alignment or kind");
        if (t.by_value && t.span() != 1) s = refuse(BAD, "a number that is many");
    }
    if (x->kind == DESC_GRAPH) s = graph_of(x.get());
    if (x->kind == DESC_HEURISTIC) s = engine_for((x->plan = x->ref(HEURISTIC_GRAPH)->plan).get());
    if (x->kind == DESC_PLAN && !(x->plan = x->ref(PLAN_CONFIG)->plan)) s = refuse(BAD, "no engine");
    if (x->kind == DESC_PACK && x->all(PACK_IDS)->n.size() != x->all(PACK_POINTERS)->p.size())
        s = refuse(BAD, "not as many pointers as tensors");
    x->ready = s == CUDNN_OK;
    return s;
}
static int get_attribute(CudnnDesc d, int attribute, int as, int64_t room, int64_t *n, void *to) {
    Ref x = held(d);
    if (!x || !x->ready) return refuse(BAD, "asked before its end");
    *n = 1;
    if (x->kind == DESC_HEURISTIC && attribute == HEURISTIC_RESULTS && as == AS_DESC && room >= 1) {
        Ref c = held(*(CudnnDesc *)to);
        c->plan = x->plan, c->ready = true;
    } else if (x->kind == DESC_CONFIG && attribute == CONFIG_ENGINE && as == AS_DESC) {
        Ref e = held(*(CudnnDesc *)to);
        e->plan = x->plan, e->ready = true;
    } else if (x->kind == DESC_ENGINE && attribute == ENGINE_INDEX && as == AS_INT64)
        *(int64_t *)to = x->plan->op.size() > 20 ? 6 : 2;
    else if (x->kind == DESC_ENGINE && attribute == ENGINE_NOTES && as == AS_NOTE && room >= 1)
        *n = x->plan->loose, *(int *)to = NOTE_UNORDERED;
    else if (x->kind == DESC_PLAN && attribute == PLAN_WORKSPACE && as == AS_INT64)
        *(int64_t *)to = (int64_t)x->plan->workspace;
    else
        return refuse(BAD, "nothing to ask for");
    return CUDNN_OK;
}

/* ---- evaluation ----------------------------------------------------------------------------------------------------
 * A tensor's numbers lie as its strides say, in a copy. */
struct Job {
    std::shared_ptr<Plan> plan;
    std::map<int64_t, char *> at;
    std::map<int64_t, float> value;
    void *space;
};
static float rounded(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f) return f;
    u += 0x7FFF + (u >> 16 & 1);
    u &= 0xFFFF0000u;
    memcpy(&f, &u, 4);
    return f;
}
typedef std::vector<float> Numbers;
struct View;
struct Space {
    Job *job;
    std::map<int64_t, Numbers> at;
    const Tensor &tensor(int64_t id) { return job->plan->tensor[id]; }
    Numbers &read(int64_t id);
    View view(int64_t id);
    void write(int64_t id);
};
template <class F> static void cells(const Tensor &t, F f) {
    for (int64_t a = 0; a < t.n[0]; a++)
        for (int64_t b = 0; b < t.n[1]; b++)
            for (int64_t c = 0; c < t.n[2]; c++)
                for (int64_t d = 0; d < t.n[3]; d++) f(a, b, c, d);
}
Numbers &Space::read(int64_t id) {
    auto it = at.find(id);
    if (it != at.end()) return it->second;
    const Tensor &t = tensor(id);
    Numbers &x = at[id];
    x.assign((size_t)t.span(), 0);
    if (t.by_value) x[0] = job->value[id];
    if (t.by_value || t.between) return x;
    const char *from = job->at[id];
    cells(t, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
        int64_t i = a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3];
        const char *p = from + (size_t)i * t.each();
        simt_library_touches(p, t.each(), false);
        uint32_t u = 0;
        if (t.type == TYPE_BF16)
            u = (uint32_t) * (const uint16_t *)p << 16, memcpy(&x[(size_t)i], &u, 4);
        else
            x[(size_t)i] = t.type == TYPE_I32 ? (float)*(const int32_t *)p : *(const float *)p;
    });
    return x;
}
/* Indices beyond a size are of the one number that stands for all. */
struct View {
    const Tensor *t;
    float *p;
    float &operator()(int64_t a, int64_t b, int64_t c, int64_t d) const {
        const int64_t *n = t->n, *w = t->stride;
        return p[(n[0] > 1 ? a : 0) * w[0] + (n[1] > 1 ? b : 0) * w[1] + (n[2] > 1 ? c : 0) * w[2] +
                 (n[3] > 1 ? d : 0) * w[3]];
    }
};
View Space::view(int64_t id) { return {&tensor(id), read(id).data()}; }
void Space::write(int64_t id) {
    const Tensor &t = tensor(id);
    Numbers &x = at[id];
    if (t.type == TYPE_BF16)
        for (float &f : x) f = rounded(f);
    if (t.between) return;
    cells(t, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
        int64_t i = a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3];
        char *p = job->at[id] + (size_t)i * t.each();
        simt_library_touches(p, t.each(), true);
        uint32_t u;
        memcpy(&u, &x[(size_t)i], 4);
        if (t.type == TYPE_BF16)
            *(uint16_t *)p = (uint16_t)(u >> 16);
        else
            memcpy(p, &u, 4);
    });
}
static float pointwise(int how, float x, float b, float t, int64_t index) {
    switch (how) {
    case DO_ADD: return x + b;
    case DO_MUL: return x * b;
    case DO_DIV: return x / b;
    case DO_SUB: return x - b;
    case DO_EXP: return expf(x);
    case DO_LOG: return logf(x);
    case DO_GREATER: return x > b;
    case DO_NOT_LESS: return x >= b;
    case DO_INDEX: return (float)index;
    case DO_SELECT: return t != 0 ? x : b;
    default: return x;
    }
}
static void evaluate(Space &s, const Op &o) {
    const Tensor &y = s.tensor(o.y), &x = s.tensor(o.x);
    for (int64_t id : {o.x, o.b, o.t})
        if (id >= 0) s.read(id);
    if (y.tiled) /* what is summed here begins with what was there */
        s.read(o.y);
    else
        s.at[o.y].assign((size_t)y.span(), 0);
    if (o.kind == DESC_DO_RESHAPE) s.at[o.y] = s.at[o.x];
    const View vx = s.view(o.x), vy = s.view(o.y);
    if (o.kind == DESC_DO_REDUCTION) {
        std::vector<double> sum((size_t)y.span(), o.how == REDUCE_MAX ? -INFINITY : 0);
        int64_t group = x.n[1] / y.n[1];
        cells(x, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
            double &to = sum[(size_t)(&vy(a, b / group, c, d) - vy.p)], v = (double)vx(a, b, c, d);
            to = o.how == REDUCE_MAX ? fmax(to, v) : to + v;
        });
        for (size_t i = 0; i < sum.size(); i++) vy.p[i] = (float)sum[i];
    }
    if (o.kind == DESC_DO_POINTWISE) {
        const View vb = s.view(o.b >= 0 ? o.b : o.x), vt = s.view(o.t >= 0 ? o.t : o.x);
        cells(y, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
            int64_t place[] = {a, b, c, d};
            vy(a, b, c, d) =
                pointwise(o.how, vx(a, b, c, d), vb(a, b, c, d), vt(a, b, c, d), o.how == DO_INDEX ? place[o.axis] : 0);
        });
    }
    if (o.kind == DESC_DO_MATMUL) {
        const View vb = s.view(o.b);
        int64_t group = y.n[1] / vb.t->n[1];
        cells(y, [&](int64_t a, int64_t b, int64_t c, int64_t d) {
            double sum = 0;
            for (int64_t k = 0; k < x.n[3]; k++)
                sum += (double)rounded(vx(a, b, c, k)) * (double)rounded(vb(a, b / group, k, d));
            vy(a, b, c, d) += (float)sum;
        });
    }
    s.write(o.y);
}
static void work(void *arg) {
    Job *j = (Job *)arg;
    if (j->plan->workspace) { /* what it is told is its own it uses */
        simt_library_touches(j->space, j->plan->workspace, true);
        memset(j->space, 0xFF, j->plan->workspace);
    }
    Space s{j, {}};
    for (const Op &o : j->plan->op) evaluate(s, o);
}
static int execute(void *handle, CudnnDesc plan, CudnnDesc pack) {
    Ref p = held(plan), v = held(pack);
    if (!handle || !p || !v || p->kind != DESC_PLAN || v->kind != DESC_PACK || !p->ready || !v->ready)
        return refuse(BAD, "a plan or what it runs on is not finalized");
    Job *j = new Job{p->plan, {}, {}, v->all(PACK_WORKSPACE)->p[0]};
    const std::vector<int64_t> &ids = v->all(PACK_IDS)->n;
    int status = CUDNN_OK;
    for (const auto &i : p->plan->tensor) {
        const Tensor &t = i.second;
        if (t.between) continue;
        char *at = nullptr;
        for (size_t k = 0; k < ids.size(); k++)
            if (ids[k] == t.id) at = (char *)v->all(PACK_POINTERS)->p[k];
        if (!at)
            status = refuse(BAD_NULL, "tensor " + std::to_string(t.id) + " has no memory");
        else if (t.by_value) /* of the host, and read now */
            j->value[t.id] = t.type == TYPE_I32 ? (float)*(int32_t *)at : *(float *)at;
        else if ((uintptr_t)at % (uintptr_t)t.alignment)
            status = refuse(BAD_ALIGNMENT, "tensor " + std::to_string(t.id) + " is aligned less than was said");
        else
            j->at[t.id] = at;
    }
    if (p->plan->workspace && !j->space) status = refuse(BAD_NULL, "no workspace");
    if (status == CUDNN_OK)
        simt_enqueue(((Handle *)handle)->stream, work, j, [](void *x) { delete (Job *)x; });
    else
        delete j;
    return status;
}

/* ---- the library ----------------------------------------------------------------------------------------------------
 */
static size_t version() {
    const char *said = getenv("SIMT_CUDNN");
    return said ? (size_t)atol(said) : 91900;
}
static const char *text(int s) {
    return s == CUDNN_OK              ? "CUDNN_STATUS_SUCCESS"
           : s >= CUDNN_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                      : "CUDNN_STATUS_BAD_PARAM";
}
static void last_text(char *to, size_t n) { snprintf(to, n, "%s", last.c_str()); }
static int open_handle(void **h) {
    *h = new Handle{nullptr};
    return CUDNN_OK;
}
static int close_handle(void *h) {
    delete (Handle *)h;
    return CUDNN_OK;
}
static int use_stream(void *h, void *s) {
    ((Handle *)h)->stream = (cudaStream_t)s;
    return CUDNN_OK;
}
static const Cudnn table = {version, text,    last_text, open_handle,   close_handle,  use_stream,
                            create,  destroy, finalize,  set_attribute, get_attribute, execute};
const Cudnn *cudnn_open(const char **where, char why[200]) {
    *where = "tests/simt/cudnn.cpp";
    if (getenv("SIMT_NO_CUDNN"))
        snprintf(why, 200, "libcudnn.so.9 is not found; name its folder in CUDNN_HOME");
    else if (version() < CUDNN_LEAST)
        snprintf(why, 200, "%s is version %zu.%zu.%zu; 9.8 or later is needed", *where, version() / 10000,
                 version() / 100 % 100, version() % 100);
    else
        return &table;
    return nullptr;
}
