/* fused.c: attention by cuDNN: keeps the plans, and prepares operands. cuDNN reads and writes bf16 rows in place. f32
 * rows are first rounded to bf16 in scratch, as for our own kernels, and results are expanded from there, as are
 * gradients that are added to. lse is read and written in place. */
#include "fused.h"
#include "ops/cuda/sdpa.h"
#include "table.h"

enum { WHY = 300 };
/* A larger workspace makes a backward pass use our own kernels. The workspace of cuDNN's ordered backward grows with
 * the square of T. */
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
        fprintf(stderr, "kvsmith: attention by cuDNN: %s; own kernels are used instead\n", why);
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

/* ---- plans ------------------------------------------------------------------------------------------------------- */
static bool fused_same(const SdpaShape *a, const SdpaShape *b) {
    return a->B == b->B && a->T == b->T && a->heads == b->heads && a->lanes == b->lanes && a->Dk == b->Dk &&
           a->Dv == b->Dv && a->window == b->window && a->documents == b->documents;
}
static Planned *fused_find(Fused *x, SdpaKind kind, SdpaShape s) {
    for (int i = 0; i < x->n; i++)
        if (x->plan[i].kind == kind && fused_same(&x->plan[i].shape, &s)) return &x->plan[i];
    return NULL;
}
/* Find or build a plan; NULL: there is none. */
static Sdpa *fused_planned(Fused *x, SdpaKind kind, SdpaShape s) {
    char why[WHY] = "";
    Planned *p = fused_find(x, kind, s);
    if (p) return p->plan;
    x->plan = xrealloc(x->plan, (size_t)x->n + 1, sizeof *x->plan);
    p = &x->plan[x->n++];
    *p = (Planned){.kind = kind, .shape = s, .plan = sdpa_open(&x->target, kind, s, why)};
    if (p->plan && kind == SDPA_BACKWARD) {
        bool much = sdpa_bytes(p->plan) > most_workspace, loose = sdpa_unordered(p->plan);
        if (much)
            snprintf(why, WHY, "an ordered backward pass needs %.0f MiB of workspace",
                     (double)sdpa_bytes(p->plan) / 0x1p20);
        else if (loose)
            snprintf(why, WHY, "no deterministic backward pass");
        if (much || loose) sdpa_close(p->plan), p->plan = NULL;
    }
    if (!p->plan)
        fprintf(stderr,
                "kvsmith: attention %s of %dx%d rows, %d heads on %d, widths %d and %d: own kernels, because %s\n",
                kind == SDPA_FORWARD ? "forward" : "backward", s.B, s.T, s.heads, s.lanes, s.Dk, s.Dv, why);
    return p->plan;
}
/* The shape of the call; false: cuDNN has no graph for this kind of attention in any size. */
static bool shape_of(const Run *r, const Kv *kv, AttnSpec spec, SdpaShape *s) {
    const Batch *b = r->batch;
    if (!(r->mode & RUN_TRAIN) || !r->dev->products_bf16 || kv->s.alias || kv->s.evicts || present(kv->bias) ||
        spec.sinks || spec.cap > 0 || r->out.n != b->N || b->B < 1 || b->N < 1 || b->N % b->B)
        return false;
    int T = b->N / b->B;
    *s = (SdpaShape){.B = b->B,
                     .T = T,
                     .heads = spec.heads,
                     .lanes = kv->s.lanes,
                     .Dk = kv->s.kdim,
                     .Dv = kv->s.vdim,
                     .window = spec.window < T ? spec.window : 0};
    return true;
}
/* True if the batch has sequences of T rows, none of which continues an earlier pass. documents: whether documents
 * begin inside them. */
static bool fused_even(const Batch *b, int T, bool *documents) {
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

/* ---- operands ---------------------------------------------------------------------------------------------------- */
/* Operands that are packed together. */
typedef struct {
    int n;
    CudaPack p[5];
} Packs;
static void *fused_input(Run *r, Packs *all, Tensor t, const char *name) {
    int D = check_last(t);
    if (t.dtype == BF16) return t.p;
    void *to = arena_take(r->scratch, tensor_count(t) * sizeof(uint16_t), name);
    CudaPack p = {
        .rows = (int)(tensor_count(t) / (size_t)D), .lanes = 1, .group = 1, .D = D, .ld = D, .to = D, .y = to};
    if (!measuring(r)) p.x = R(t), all->p[all->n++] = p;
    return to;
}
static void fused_pack(Run *r, const Packs *all) {
    for (int i = 0; i < all->n; i += 3) cuda_pack(C(r), imin(3, all->n - i), all->p + i);
}
/* The place where a result is written (overwriting): its tensor, or scratch. */
static void *fused_output(Run *r, Tensor t, bool over, const char *name) {
    bool there = t.dtype == BF16 && over;
    return there ? t.p : arena_take(r->scratch, tensor_count(t) * sizeof(uint16_t), name);
}
static void fused_deliver(Run *r, Tensor t, bool over, void *from) {
    if (t.dtype == BF16 && !over)
        cuda_add(C(r), tensor_count(t), t.p, from, true, true);
    else if (t.dtype != BF16)
        cuda_cast_from_bf16(C(r), tensor_count(t), R(t), from, !over);
}
static void *fused_workspace(Run *r, const Sdpa *p) {
    enum { PIECE = 256 };
    uintptr_t at = (uintptr_t)arena_take(r->scratch, sdpa_bytes(p) + PIECE, "cuDNN's workspace");
    return (void *)((at + PIECE - 1) / PIECE * PIECE);
}
static const int *fused_places(Run *r, const SdpaShape *s) {
    const int *first = upload_ints(r, r->batch->first, r->batch->N, "documents");
    int *own = arena_take(r->scratch, (size_t)s->B * (size_t)s->T * sizeof *own, "documents in their sequences");
    if (!measuring(r)) cuda_places(C(r), s->B * s->T, s->T, own, first);
    return own;
}
static void fused_run(Run *r, Planned *p, const SdpaTensors *t, AttnSpec spec, void *work) {
    char why[WHY];
    size_t at, zeros = sdpa_zero(p->plan, &at);
    if (zeros) cuda_fill(C(r), (char *)work + at, 0, zeros);
    if (cuda_asks(C(r)) && !sdpa_run(p->plan, t, (float)spec.scale, work, why)) {
        fprintf(stderr, "kvsmith: device cuda: attention: %s\n", why);
        exit(EXIT_RUNTIME);
    }
    cuda_checked(C(r), "attention by cuDNN");
    p->ran = true;
}
/* The plan to run. While measuring, the plan for batches with documents is built too. */
static Planned *plan_of(Fused *x, Run *r, SdpaKind kind, const Kv *kv, AttnSpec spec) {
    SdpaShape s;
    if (!x || !shape_of(r, kv, spec, &s)) return NULL;
    if (measuring(r)) {
        for (int k = 0; k < 2; k++) {
            s.documents = k;
            if (!fused_planned(x, SDPA_FORWARD, s) || !fused_planned(x, kind, s)) break;
        }
        s.documents = false;
    } else if (!fused_even(r->batch, s.T, &s.documents))
        return NULL;
    /* A backward pass reads o in bf16, as the forward pass of such a plan left it. */
    Planned *p = fused_find(x, kind, s), *before = fused_find(x, SDPA_FORWARD, s);
    return p && p->plan && before && before->plan ? p : NULL;
}
static void fused_forward(Run *r, Planned *p, Tensor o, Tensor lse, Tensor q, const Kv *kv, AttnSpec spec) {
    Mark mark = arena_mark(r->scratch);
    Packs in = {0};
    void *bq = fused_input(r, &in, q, "queries in bf16"), *bk = fused_input(r, &in, kv->k, "keys in bf16"),
         *bv = fused_input(r, &in, kv->v, "values in bf16"), *bo = fused_output(r, o, true, "results in bf16");
    const int *first = p->shape.documents ? fused_places(r, &p->shape) : NULL;
    void *work = fused_workspace(r, p->plan);
    if (!measuring(r)) {
        fused_pack(r, &in);
        fused_run(r, p, &(SdpaTensors){.q = bq, .k = bk, .v = bv, .o = bo, .lse = R(lse), .first = first}, spec, work);
        fused_deliver(r, o, true, bo);
    }
    arena_release(r->scratch, mark);
}
/* While measuring, both plans of a shape reserve their scratch, one after the other. */
static bool fused_both(Fused *x, Run *r, Planned **p, int k) {
    SdpaShape s = (*p)->shape;
    if (!measuring(r) || k) return false;
    s.documents = true;
    *p = fused_find(x, (*p)->kind, s);
    return *p && (*p)->plan;
}
bool fused_attend(Fused *x, Run *r, Tensor o, Tensor lse, Tensor q, const Kv *kv, AttnSpec spec) {
    Planned *p = plan_of(x, r, SDPA_FORWARD, kv, spec);
    if (!p) return false;
    int k = 0;
    do fused_forward(r, p, o, lse, q, kv, spec);
    while (fused_both(x, r, &p, k++));
    return !measuring(r);
}
static void fused_backward(Run *r, Planned *p, Into dq, const KvInto *dkv, Tensor dout, Tensor q, const Kv *kv,
                           AttnSpec spec, Tensor o, Tensor lse) {
    Mark mark = arena_mark(r->scratch);
    Packs in = {0};
    void *bq = fused_input(r, &in, q, "queries in bf16"), *bk = fused_input(r, &in, kv->k, "keys in bf16"),
         *bv = fused_input(r, &in, kv->v, "values in bf16"), *bo = fused_input(r, &in, o, "results in bf16"),
         *bg = fused_input(r, &in, dout, "gradients in bf16"),
         *gq = fused_output(r, dq.t, dq.overwrite, "d queries in bf16"),
         *gk = fused_output(r, dkv->kv.k, dkv->overwrite, "d keys in bf16"),
         *gv = fused_output(r, dkv->kv.v, dkv->overwrite, "d values in bf16");
    const int *first = p->shape.documents ? fused_places(r, &p->shape) : NULL;
    void *work = fused_workspace(r, p->plan);
    if (!measuring(r)) {
        fused_pack(r, &in);
        fused_run(r, p,
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
                  spec, work);
        fused_deliver(r, dq.t, dq.overwrite, gq);
        fused_deliver(r, dkv->kv.k, dkv->overwrite, gk);
        fused_deliver(r, dkv->kv.v, dkv->overwrite, gv);
    }
    arena_release(r->scratch, mark);
}
bool fused_attend_backward(Fused *x, Run *r, Into dq, const KvInto *dkv, Tensor dout, Tensor q, const Kv *kv,
                           AttnSpec spec, Tensor o, Tensor lse) {
    Planned *p = plan_of(x, r, x && x->unordered ? SDPA_BACKWARD_UNORDERED : SDPA_BACKWARD, kv, spec);
    if (!p) return false;
    int k = 0;
    do fused_backward(r, p, dq, dkv, dout, q, kv, spec, o, lse);
    while (fused_both(x, r, &p, k++));
    return !measuring(r);
}
