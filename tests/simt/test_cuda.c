/* test_cuda.c: the CUDA backend as a device: opening, memory, and a chain of ops trained beside the CPU's. What single
 * ops compute is tested by the suites of ops, which this runner has, too. */
#include "tests/lib/rig.h"
#include "ops/cuda/known_gaps.h"
#include <criterion/redirect.h>
#include <signal.h>

Test(cuda, says_what_it_is) {
    Device *d;
    Err e = {0};
    cr_assert(device_open(&d, "cuda", 1, &e), "%s", e.msg);
    cr_assert(*device_isa(d) && !strcmp(device_ops(d)->name, "cuda"));
    cr_assert(device_ops(d)->linear == cuda_ops()->linear && device_memory(d, false) && device_memory(d, true));
    cr_assert(device_bf16(d, true, &e) && device_bf16(d, false, &e));
    cr_assert(device_bf16_pays(d)); /* what `auto` is */
    device_close(d);
    /* the CPU is what it was */
    cr_assert(device_open(&d, "cpu", 1, &e) && !strcmp(device_ops(d)->name, "cpu") && !device_memory(d, false));
    device_close(d);
    cr_assert(!device_open(&d, "gpu", 1, &e) && e.status == EXIT_INPUT && strstr(e.msg, "this build has: cpu, cuda"));
    e = (Err){0};
    cr_assert(!device_open(&d, "cuda", -1, &e) && e.status == EXIT_INPUT && strstr(e.msg, "threads"));
}

/* A device is there for who asks for it by name; nobody gets it by default. */
Test(cuda, the_program_has_it_by_name_alone) {
    const char *const names[] = {"auto", "cpu"};
    for (int i = 0; i < 2; i++) {
        Ran r = RUN("device", "--json", "--device", names[i]);
        cr_assert(r.status == 0 && strstr(r.out, "\"device\":\"cpu\""), "%d: %s%s", r.status, r.out, r.err);
        free(r.out), free(r.err);
    }
}

/* Reasons are given, once each, and for ops that exist. */
Test(cuda, known_gaps_are_in_order) {
    for (const CudaGap *l = cuda_slow(); l->op; l++) {
        cr_assert(strlen(l->why) > 5 && l->at >= offsetof(Ops, linear) && l->at < sizeof(Ops), "%s", l->op);
        for (const CudaGap *m = cuda_slow(); m < l; m++) cr_assert(m->at != l->at, "%s is listed twice", l->op);
    }
}

Test(cuda, regions_lie_on_the_device) {
    Device *d;
    Err e = {0};
    Arena a, measured = {0};
    float in[10], out[10] = {0};
    cr_assert(device_open(&d, "cuda", 1, &e), "%s", e.msg);
    for (int i = 0; i < 10; i++) in[i] = (float)i;
    arena_take(&measured, sizeof in, "x");
    cr_assert(arena_open_at(&a, device_memory(d, false), "region", measured.peak, true, &e), "%s", e.msg);
    Mark mark = arena_mark(&a);
    for (int k = 0; k < 3; k++) {
        void *p = arena_take(&a, sizeof in, "x");
        device_write(d, p, in, sizeof in);
        in[0] = -1; /* free at once */
        device_read(d, out, p, sizeof out);
        cr_assert(out[0] == 0 && out[9] == 9, "%g %g", (double)out[0], (double)out[9]);
        in[0] = 0;
        arena_release(&a, mark);
    }
    arena_close(&a);
    cr_assert(!arena_open_at(&a, device_memory(d, false), "weights", (size_t)1 << 45, false, &e));
    cr_assert(e.status == EXIT_RUNTIME && strstr(e.msg, "out of device memory: 32.0 TiB for weights"), "%s", e.msg);
    device_close(d);
}
/* The host's pointer into the device is caught, and so is an op that is given what lies with the host. */
Test(cuda, the_host_does_not_read_a_region, .init = cr_redirect_stderr, .signal = SIGSEGV) {
    Device *d;
    Err e = {0};
    Arena a;
    cr_assert(device_open(&d, "cuda", 1, &e) && arena_open_at(&a, device_memory(d, false), "region", 4096, true, &e));
    Tensor x = arena_tensor(&a, "x", F32, 1, (int[]){8});
    device_sync(d);
    R(x)[0] = 1;
}
/* Suite `emulated`: what only tests/simt finds, or can be told to do. A driver may well let kernels read the host. */
Test(emulated, an_op_does_not_read_the_host, .init = cr_redirect_stderr, .signal = SIGABRT) {
    Device *d;
    Err e = {0};
    Arena scratch;
    float y[8] = {0}, x[8] = {0};
    cr_assert(device_open(&d, "cuda", 1, &e) &&
              arena_open_at(&scratch, device_memory(d, false), "scratch", 4096, true, &e));
    Run r = run_make(d, &scratch);
    r.ops->add(&r, TENSOR(y, F32, 8), TENSOR(x, F32, 8));
    device_sync(d);
}

/* ---- a small model of what is there: embedding, norm, SwiGLU block with a residual, head; trained on both devices */
enum { N = 24, D = 32, F = 48, V = 40, STEPS = 50 };
typedef struct { /* fields by name: weights, then what is saved and the gradients */
    Tensor table, gain, gate_w, up_w, down_w, head;
} Weights;
typedef struct {
    Tensor x, normed, rstd, gate, up, act, y, nll;
    Tensor dx, dnormed, dgate, dup, dact, dy, g;
} Acts;
typedef struct {
    Device *dev;
    Arena mem, scratch;
    Weights w, dw, m, v;
    Acts a;
    Tensor square; /* of the gradients' norm */
} Side;

static void declare_weights(Fields *f, Weights *w) {
    field(f, &w->table, "embed.weight", 0, V, D);
    field(f, &w->gain, "norm.weight", FIELD_ONES, D);
    field(f, &w->gate_w, "gate_proj.weight", 0, F, D);
    field(f, &w->up_w, "up_proj.weight", 0, F, D);
    field(f, &w->down_w, "down_proj.weight", 0, D, F);
    field(f, &w->head, "lm_head.weight", 0, V, D);
}
static void declare_acts(Fields *f, Acts *a) {
    field(f, &a->x, "x", 0, N, D);
    field(f, &a->normed, "normed", 0, N, D);
    field(f, &a->rstd, "rstd", 0, N);
    field(f, &a->gate, "gate", 0, N, F);
    field(f, &a->up, "up", 0, N, F);
    field(f, &a->act, "act", 0, N, F);
    field(f, &a->y, "y", 0, N, D);
    field(f, &a->nll, "nll", 0, N);
    field(f, &a->dx, "dx", 0, N, D);
    field(f, &a->dnormed, "dnormed", 0, N, D);
    field(f, &a->dgate, "dgate", 0, N, F);
    field(f, &a->dup, "dup", 0, N, F);
    field(f, &a->dact, "dact", 0, N, F);
    field(f, &a->dy, "dy", 0, N, D);
    field(f, &a->g, "g", 0, N);
}
static void place(Side *s, Arena *to) {
    Fields f = arena_placer(to);
    Weights *all[] = {&s->w, &s->dw, &s->m, &s->v};
    for (int i = 0; i < 4; i++) declare_weights(&f, all[i]);
    declare_acts(&f, &s->a);
    s->square = arena_tensor(to, "square", F64, 1, (const int[]){1});
}
static void see_start(Fields *f, Tensor *t, const char *path, unsigned flags) {
    Device *dev = f->ctx;
    size_t n = tensor_count(*t);
    float *x = xcalloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = flags & FIELD_ONES ? 1 : (float)(0.2 * rng_normal(rng_name(3, path), i));
    device_write(dev, t->p, x, n * sizeof *x);
    free(x);
}
static void see_zero(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)path, (void)flags;
    Run *r = f->ctx;
    r->ops->zero(r, *t);
}
static void clear(Run *r, Weights *w) {
    Fields f = {.see = see_zero, .ctx = r};
    declare_weights(&f, w);
}
/* Passes are made twice: measured, then run. Returns the mean loss. */
static double train_step(Side *s, Run *r, const int *tok, const int *tgt, int t) {
    const Ops *o = r->ops;
    Weights *w = &s->w, *dw = &s->dw;
    Acts *a = &s->a;
    if (!measuring(r)) clear(r, dw);
    Tensor zeros[] = {a->dx, a->dnormed, a->dgate, a->dup, a->dact, a->dy};
    for (int i = 0; i < 6; i++) o->zero(r, zeros[i]);
    o->embed(r, a->x, w->table, tok, 1);
    o->rmsnorm(r, a->normed, a->rstd, a->x, w->gain, 1e-5);
    o->linear(r, a->gate, a->normed, w->gate_w, ABSENT);
    o->linear(r, a->up, a->normed, w->up_w, ABSENT);
    o->swiglu(r, a->act, a->gate, a->up);
    o->linear(r, a->y, a->act, w->down_w, ABSENT);
    o->add(r, a->y, a->x);
    o->linear_xent(r, a->nll, NULL, add_to(a->dy), dw->head, a->y, w->head, LOGITS_PLAIN, tgt, a->g.p);
    o->linear_backward(r, add_to(a->dact), dw->down_w, ABSENT, a->dy, a->act, w->down_w);
    o->swiglu_backward(r, ABSENT, add_to(a->dgate), add_to(a->dup), a->dact, a->gate, a->up);
    o->linear_backward(r, add_to(a->dnormed), dw->gate_w, ABSENT, a->dgate, a->normed, w->gate_w);
    o->linear_backward(r, add_to(a->dnormed), dw->up_w, ABSENT, a->dup, a->normed, w->up_w);
    o->add(r, a->dx, a->dy);
    o->rmsnorm_backward(r, add_to(a->dx), dw->gain, a->dnormed, a->x, w->gain, a->rstd);
    o->embed_backward(r, dw->table, a->dx, tok, 1);
    Tensor *W = (Tensor *)w, *G = (Tensor *)dw, *M = (Tensor *)&s->m, *U = (Tensor *)&s->v;
    enum { TENSORS = sizeof *w / sizeof *W };
    AdamwStep step[TENSORS];
    o->sumsqs_there(r, s->square.p, false, TENSORS, G);
    for (int i = 0; i < TENSORS; i++)
        step[i] = (AdamwStep){W[i], G[i], M[i], U[i], 3e-3, 0.9, 0.95, 1e-8, 0.1, 1, t, {0}, s->square.p, .most = 1};
    o->adamw(r, TENSORS, step);
    float nll[N];
    double sum = 0;
    if (measuring(r)) return 0;
    device_read(s->dev, nll, a->nll.p, sizeof nll);
    for (int i = 0; i < N; i++) sum += (double)nll[i];
    return sum / N;
}
static void train(Side *s, const char *device, int steps, double *loss) {
    Err e = {0};
    Arena dry = {0};
    int tok[N], tgt[N];
    float g[N];
    *s = (Side){0};
    for (int i = 0; i < N; i++) tok[i] = i * 7 % V, tgt[i] = i % 5 == 4 ? -1 : (i * 7 + 3) % V, g[i] = 1.0f / N;
    cr_assert(device_open(&s->dev, device, 1, &e), "%s", e.msg);
    const Memory *home = device_memory(s->dev, false);
    place(s, &dry);
    cr_assert(arena_open_at(&s->mem, home, "model", dry.peak, true, &e), "%s", e.msg);
    place(s, &s->mem);
    Run r = run_make(s->dev, &s->scratch);
    train_step(s, &r, tok, tgt, 1);
    cr_assert(arena_open_at(&s->scratch, home, "scratch", s->scratch.peak, true, &e), "%s", e.msg);
    Fields start = {.see = see_start, .ctx = s->dev};
    declare_weights(&start, &s->w);
    clear(&r, &s->m), clear(&r, &s->v);
    device_write(s->dev, s->a.g.p, g, sizeof g);
    for (int t = 1; t <= steps; t++) loss[t - 1] = train_step(s, &r, tok, tgt, t);
}
typedef struct {
    Side *cuda;
    const Tensor *at; /* the CPU's, in the order of the declaration */
    double tol;
} Compare;
static void see_same(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    Compare *c = f->ctx;
    size_t n = tensor_count(*t);
    float *x = xcalloc(n, sizeof *x);
    device_read(c->cuda->dev, x, t->p, n * sizeof *x);
    CHECK_RMS(path, x, (const float *)c->at->p, n, c->tol);
    c->at++;
    free(x);
}
static void same(Side *cuda, void (*declare)(Fields *, Weights *), Weights *of, const Weights *want, double tol) {
    Compare c = {cuda, (const Tensor *)want, tol};
    Fields f = {.see = see_same, .ctx = &c};
    declare(&f, of);
}
static void side_close(Side *s) {
    arena_close(&s->scratch);
    arena_close(&s->mem);
    device_close(s->dev);
}
/* One step, field by field. */
Test(cuda, a_chain_of_ops_computes_what_the_cpu_does) {
    double loss[2];
    Side cpu, cuda;
    train(&cpu, "cpu", 1, &loss[0]);
    train(&cuda, "cuda", 1, &loss[1]);
    Compare c = {&cuda, (const Tensor *)&cpu.a, 1e-5};
    Fields f = {.see = see_same, .ctx = &c};
    declare_acts(&f, &cuda.a);
    same(&cuda, declare_weights, &cuda.dw, &cpu.dw, 1e-5);
    same(&cuda, declare_weights, &cuda.m, &cpu.m, 1e-5);
    same(&cuda, declare_weights, &cuda.v, &cpu.v, 1e-5);
    same(&cuda, declare_weights, &cuda.w, &cpu.w, 1e-5);
    side_close(&cpu);
    side_close(&cuda);
}
Test(cuda, a_chain_of_ops_has_the_loss_curve_of_the_cpu, .timeout = 120) {
    double want[STEPS], got[STEPS];
    Side cpu, cuda;
    train(&cpu, "cpu", STEPS, want);
    train(&cuda, "cuda", STEPS, got);
    cr_assert(want[STEPS - 1] < 0.5 * want[0], "the loss does not fall: %g to %g", want[0], want[STEPS - 1]);
    CHECK_RELATIVE("loss", got, want, STEPS, 1e-5);
    same(&cuda, declare_weights, &cuda.w, &cpu.w, 1e-4);
    side_close(&cpu);
    side_close(&cuda);
}
