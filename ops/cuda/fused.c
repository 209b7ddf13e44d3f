/* fused.c: see fused.h. cuDNN reads and writes rows of bf16 where they lie. Rows of f32 are rounded to bf16 into
 * scratch first, as for our own kernels, and results widened from there; so are gradients that are added to. lse is
 * written and read where it is. */
#include "fused.h"
#include "sdpa.h"
#include "table.h"

enum { WHY = 300 };
/* Beyond this a backward pass that keeps its order, whose workspace grows with the square of T, is left to our own. */
static const size_t most_workspace = (size_t)1 << 30;

typedef struct {
    SdpaKind kind;
    SdpaShape shape;
    Sdpa *plan; /* NULL: refused */
    bool ran;
} Planned;
struct Fused {
    SdpaTarget target;
    Cuda *cuda;
    bool unordered;
    int n;
    Planned *plan; /* (n) */
};

Fused *fused_open(Cuda *c, bool unordered) {
    const char *where;
    char why[200], version[24];
    const Cudnn *f = cudnn_open(&where, why);
    void *handle = NULL;
    int s = CUDNN_OK;
    if (f) s = f->Create(&handle);
    if (f && s == CUDNN_OK) s = f->SetStream(handle, cuda_stream(c));
    if (f && s != CUDNN_OK) snprintf(why, sizeof why, "%.100s: %.80s", where, f->GetErrorString(s));
    if (!f || s != CUDNN_OK) {
        if (handle) f->Destroy(handle);
        fprintf(stderr, "kvsmith: attention by cuDNN: %s; by our own kernels instead\n", why);
        return NULL;
    }
    fprintf(stderr, "kvsmith: attention by cuDNN %s (%s) where it has a plan\n", cudnn_version(f, version), where);
    Fused *x = xcalloc(1, sizeof *x);
    *x = (Fused){.target = {.f = f, .handle = handle}, .cuda = c, .unordered = unordered};
    return x;
}
void fused_close(Fused *x) {
    if (!x) return;
    for (int i = 0; i < x->n; i++) sdpa_close(x->plan[i].plan);
    x->target.f->Destroy(x->target.handle);
    free(x->plan);
    free(x);
}
void fused_count(const Fused *x, int *plans, int *ran) {
    *plans = *ran = 0;
    for (int i = 0; x && i < x->n; i++) *plans += x->plan[i].plan != NULL, *ran += x->plan[i].ran;
}

/* ---- plans ----------------------------------------------------------------------------------------------------------
 */
static bool same(const SdpaShape *a, const SdpaShape *b) {
    return a->B == b->B && a->T == b->T && a->heads == b->heads && a->lanes == b->lanes && a->Dk == b->Dk &&
           a->Dv == b->Dv && a->window == b->window && a->documents == b->documents;
}
static Planned *find(Fused *x, SdpaKind kind, SdpaShape s) {
    for (int i = 0; i < x->n; i++)
        if (x->plan[i].kind == kind && same(&x->plan[i].shape, &s)) return &x->plan[i];
    return NULL;
}
/* Builds what is not there; NULL: there is none. */
static Sdpa *planned(Fused *x, SdpaKind kind, SdpaShape s) {
    char why[WHY] = "";
    Planned *p = find(x, kind, s);
    if (p) return p->plan;
    x->plan = xrealloc(x->plan, (size_t)x->n + 1, sizeof *x->plan);
    p = &x->plan[x->n++];
    *p = (Planned){.kind = kind, .shape = s, .plan = sdpa_open(&x->target, kind, s, why)};
    if (p->plan && kind == SDPA_BACKWARD) {
        bool much = sdpa_bytes(p->plan) > most_workspace, loose = sdpa_unordered(p->plan);
        if (much)
            snprintf(why, WHY, "an ordered backward pass takes %.0f MiB of workspace",
                     (double)sdpa_bytes(p->plan) / 0x1p20);
        else if (loose)
            snprintf(why, WHY, "no backward pass whose sums have an order");
        if (much || loose) sdpa_close(p->plan), p->plan = NULL;
    }
    if (!p->plan)
        fprintf(stderr,
                "kvsmith: attention %s of %dx%d rows, %d heads on %d, %d and %d numbers: by our own kernels: %s\n",
                kind == SDPA_FORWARD ? "forward" : "backward", s.B, s.T, s.heads, s.lanes, s.Dk, s.Dv, why);
    return p->plan;
}
/* False: cuDNN has no graph for it whatever the size. */
static bool shape_of(const Run *r, const Kv *kv, Look look, SdpaShape *s) {
    const Batch *b = r->batch;
    if (!(r->mode & RUN_TRAIN) || !r->dev->narrow || kv->s.alias || kv->s.retire || present(kv->bias) || look.sinks ||
        r->out.n != b->N || b->B < 1 || b->N < 1 || b->N % b->B)
        return false;
    int T = b->N / b->B;
    *s = (SdpaShape){.B = b->B,
                     .T = T,
                     .heads = look.heads,
                     .lanes = kv->s.lanes,
                     .Dk = kv->s.kdim,
                     .Dv = kv->s.vdim,
                     .window = look.window < T ? look.window : 0};
    return true;
}
/* The batch is of sequences of T rows, and none continues an earlier pass; whether documents begin inside of them. */
static bool even(const Batch *b, int T, bool *documents) {
    *documents = false;
    for (int s = 0; s < b->B; s++) {
        if (b->off[s] != s * T) return false;
        for (int i = b->off[s]; i < b->off[s] + T; i++) {
            if (b->first[i] < 0) return false;
            *documents |= b->first[i] > s * T;
        }
    }
    return true;
}

/* ---- operands -------------------------------------------------------------------------------------------------------
 */
/* Those that are packed, together. */
typedef struct {
    int n;
    CudaPack p[5];
} Packs;
static void *input(Run *r, Packs *all, Tensor t, const char *name) {
    int D = last(t);
    if (t.dtype == BF16) return t.p;
    void *to = arena_take(r->scratch, tensor_count(t) * sizeof(uint16_t), name);
    CudaPack p = {
        .rows = (int)(tensor_count(t) / (size_t)D), .lanes = 1, .group = 1, .D = D, .ld = D, .to = D, .y = to};
    if (!measuring(r)) p.x = R(t), all->p[all->n++] = p;
    return to;
}
static void pack(Run *r, const Packs *all) {
    for (int i = 0; i < all->n; i += 3) cuda_pack(C(r), imin(3, all->n - i), all->p + i);
}
/* Where a result is written, over what is there: its tensor, or scratch. */
static void *output(Run *r, Tensor t, bool over, const char *name) {
    bool there = t.dtype == BF16 && over;
    return there ? t.p : arena_take(r->scratch, tensor_count(t) * sizeof(uint16_t), name);
}
static void deliver(Run *r, Tensor t, bool over, void *from) {
    if (t.dtype == BF16 && !over)
        cuda_add(C(r), tensor_count(t), t.p, from, true, true);
    else if (t.dtype != BF16)
        cuda_unhalve(C(r), tensor_count(t), R(t), from, !over);
}
static void *workspace(Run *r, const Sdpa *p) {
    enum { PIECE = 256 };
    uintptr_t at = (uintptr_t)arena_take(r->scratch, sdpa_bytes(p) + PIECE, "cuDNN's workspace");
    return (void *)((at + PIECE - 1) / PIECE * PIECE);
}
static const int *places(Run *r, const SdpaShape *s) {
    const int *first = upload_ints(r, r->batch->first, r->batch->N, "documents");
    int *own = arena_take(r->scratch, (size_t)s->B * (size_t)s->T * sizeof *own, "documents in their sequences");
    if (!measuring(r)) cuda_places(C(r), s->B * s->T, s->T, own, first);
    return own;
}
static void run(Run *r, Planned *p, const SdpaTensors *t, Look look, void *work) {
    char why[WHY];
    size_t at, zeros = sdpa_zero(p->plan, &at);
    if (zeros) cuda_fill(C(r), (char *)work + at, 0, zeros);
    if (cuda_asks(C(r)) && !sdpa_run(p->plan, t, (float)look.scale, work, why)) {
        fprintf(stderr, "kvsmith: device cuda: attention: %s\n", why);
        exit(EXIT_WORLD);
    }
    cuda_checked(C(r), "attention by cuDNN");
    p->ran = true;
}
/* The plan to run, with the one of batches with documents built beside it while measuring. */
static Planned *plan_of(Fused *x, Run *r, SdpaKind kind, const Kv *kv, Look look) {
    SdpaShape s;
    if (!x || !shape_of(r, kv, look, &s)) return NULL;
    if (measuring(r)) {
        for (int k = 0; k < 2; k++) {
            s.documents = k;
            if (!planned(x, SDPA_FORWARD, s) || !planned(x, kind, s)) break;
        }
        s.documents = false;
    } else if (!even(r->batch, s.T, &s.documents))
        return NULL;
    /* A backward pass reads o as the forward pass of such a plan left it, in bf16. */
    Planned *p = find(x, kind, s), *before = find(x, SDPA_FORWARD, s);
    return p && p->plan && before && before->plan ? p : NULL;
}
static void forward(Run *r, Planned *p, Tensor o, Tensor lse, Tensor q, const Kv *kv, Look look) {
    Mark mark = arena_mark(r->scratch);
    Packs in = {0};
    void *bq = input(r, &in, q, "queries in bf16"), *bk = input(r, &in, kv->k, "keys in bf16"),
         *bv = input(r, &in, kv->v, "values in bf16"), *bo = output(r, o, true, "results in bf16");
    const int *first = p->shape.documents ? places(r, &p->shape) : NULL;
    void *work = workspace(r, p->plan);
    if (!measuring(r)) {
        pack(r, &in);
        run(r, p, &(SdpaTensors){.q = bq, .k = bk, .v = bv, .o = bo, .lse = R(lse), .first = first}, look, work);
        deliver(r, o, true, bo);
    }
    arena_release(r->scratch, mark);
}
/* While measuring both plans of a shape take their scratch, one after the other. */
static bool both(Fused *x, Run *r, Planned **p, int k) {
    SdpaShape s = (*p)->shape;
    if (!measuring(r) || k) return false;
    s.documents = true;
    *p = find(x, (*p)->kind, s);
    return *p && (*p)->plan;
}
bool fused_attend(Fused *x, Run *r, Tensor o, Tensor lse, Tensor q, const Kv *kv, Look look) {
    Planned *p = plan_of(x, r, SDPA_FORWARD, kv, look);
    if (!p) return false;
    int k = 0;
    do forward(r, p, o, lse, q, kv, look);
    while (both(x, r, &p, k++));
    return !measuring(r);
}
static void backward(Run *r, Planned *p, Tensor dq, Kv *dkv, Tensor dout, Tensor q, const Kv *kv, Look look, Tensor o,
                     Tensor lse) {
    Mark mark = arena_mark(r->scratch);
    Packs in = {0};
    void *bq = input(r, &in, q, "queries in bf16"), *bk = input(r, &in, kv->k, "keys in bf16"),
         *bv = input(r, &in, kv->v, "values in bf16"), *bo = input(r, &in, o, "results in bf16"),
         *bg = input(r, &in, dout, "gradients in bf16"), *gq = output(r, dq, dq.fresh, "d queries in bf16"),
         *gk = output(r, dkv->k, dkv->k.fresh, "d keys in bf16"),
         *gv = output(r, dkv->v, dkv->v.fresh, "d values in bf16");
    const int *first = p->shape.documents ? places(r, &p->shape) : NULL;
    void *work = workspace(r, p->plan);
    if (!measuring(r)) {
        pack(r, &in);
        run(r, p,
            &(SdpaTensors){.q = bq,
                           .k = bk,
                           .v = bv,
                           .o = bo,
                           .lse = R(lse),
                           .first = first,
                           .dout = bg,
                           .dq = gq,
                           .dk = gk,
                           .dv = gv},
            look, work);
        deliver(r, dq, dq.fresh, gq);
        deliver(r, dkv->k, dkv->k.fresh, gk);
        deliver(r, dkv->v, dkv->v.fresh, gv);
    }
    arena_release(r->scratch, mark);
}
bool fused_attend_backward(Fused *x, Run *r, Tensor dq, Kv *dkv, Tensor dout, Tensor q, const Kv *kv, Look look,
                           Tensor o, Tensor lse) {
    Planned *p = plan_of(x, r, x && x->unordered ? SDPA_BACKWARD_UNORDERED : SDPA_BACKWARD, kv, look);
    if (!p) return false;
    int k = 0;
    do backward(r, p, dq, dkv, dout, q, kv, look, o, lse);
    while (both(x, r, &p, k++));
    return !measuring(r);
}
