/* test_cudnn.c: what the emulated cuDNN (cudnn.cpp) refuses, each by a mistake planted between sdpa.c and it, as the
 * library refuses it; and what it finds that the library would not notice. */
#include "tests/lib/rig.h"
#include "ops/cuda/host/cudnn_so.h"
#include "ops/cuda/host/fused.h"
#include "ops/cuda/sdpa.h"
#include "ops/cuda/cuda.h"
#include <signal.h>
#include <unistd.h>

static const Cudnn *library(void) {
    const char *where;
    char why[200];
    const Cudnn *f = cudnn_open(&where, why);
    cr_assert(f, "%s", why);
    return f;
}
/* A library that passes calls on, with one mistake in the n-th of a kind. */
typedef enum {
    NOTHING,
    WRONG_TYPE,      /* an attribute of another type */
    WRONG_ATTRIBUTE, /* of another descriptor */
    TOO_MANY,        /* elements */
    NOT_FINALIZED,   /* a tensor is used before */
    ALIGNED_LESS,    /* than a number of the tensor's type */
    NO_SIZE,         /* a size of 0 */
    OTHER_SIZE,      /* that fits no product */
    SAME_ID,         /* of two tensors */
    NO_ID,           /* left out */
    MISSING_UID,     /* in what a plan runs on */
    FEWER_POINTERS,
    CROOKED_POINTER, /* not aligned as said */
    NO_WORKSPACE,
    MISTAKES
} Mistake;
static const char *const said[MISTAKES] = {"",
                                           "another type",
                                           "no attribute",
                                           "number of elements",
                                           "is not finalized",
                                           "alignment or kind",
                                           "sizes of a",
                                           "sizes of a",
                                           "is two",
                                           "is missing",
                                           "has no memory",
                                           "as many pointers",
                                           "less than was said",
                                           "no workspace"};
static struct {
    const Cudnn *real;
    Mistake mistake;
    int tensors, kind[4096];
    CudnnDesc of[4096];
    int n;
} between; /* of one test's process */
static int kind_of(CudnnDesc d) {
    for (int i = between.n; i-- > 0;)
        if (between.of[i] == d) return between.kind[i];
    return -1;
}
static int create(int kind, CudnnDesc *d) {
    int s = between.real->BackendCreateDescriptor(kind, d);
    cr_assert(between.n < 4096);
    between.of[between.n] = *d, between.kind[between.n++] = kind;
    return s;
}
static int finalize(CudnnDesc d) {
    bool tensor = kind_of(d) == DESC_TENSOR;
    if (tensor && ++between.tensors == 2 && between.mistake == NOT_FINALIZED) return CUDNN_OK;
    return between.real->BackendFinalize(d);
}
static int set(CudnnDesc d, int a, int as, int64_t n, const void *from) {
    Mistake m = between.mistake;
    const Cudnn *f = between.real;
    int64_t v[4];
    bool second = kind_of(d) == DESC_TENSOR && between.tensors == 1;
    if (second && a == TENSOR_ID && m == NO_ID) return CUDNN_OK;
    if (second && a == TENSOR_ID && m == SAME_ID) return f->BackendSetAttribute(d, a, as, n, (int64_t[]){1});
    if (second && a == TENSOR_ID && m == WRONG_TYPE) return f->BackendSetAttribute(d, a, AS_POINTER, n, from);
    if (second && a == TENSOR_ID && m == WRONG_ATTRIBUTE) return f->BackendSetAttribute(d, MATMUL_TYPE, as, n, from);
    if (second && a == TENSOR_ALIGNMENT && m == ALIGNED_LESS)
        return f->BackendSetAttribute(d, a, as, n, (int64_t[]){1});
    if (second && a == TENSOR_SIZES && m == TOO_MANY) return f->BackendSetAttribute(d, a, as, 5, (int64_t[5]){1});
    if (second && a == TENSOR_SIZES && (m == NO_SIZE || m == OTHER_SIZE)) {
        memcpy(v, from, sizeof v);
        v[2] = m == NO_SIZE ? 0 : v[2] * 2;
        return f->BackendSetAttribute(d, a, as, n, v);
    }
    if (a == PACK_IDS && m == MISSING_UID) {
        int64_t id[64];
        memcpy(id, from, (size_t)n * sizeof *id);
        id[1] = 77;
        return f->BackendSetAttribute(d, a, as, n, id);
    }
    if (a == PACK_POINTERS && m == FEWER_POINTERS) n--;
    if (a == PACK_POINTERS && m == CROOKED_POINTER) {
        char *p[64];
        memcpy(p, from, (size_t)n * sizeof *p);
        p[1] += 2;
        return f->BackendSetAttribute(d, a, as, n, p);
    }
    if (a == PACK_WORKSPACE && m == NO_WORKSPACE) return f->BackendSetAttribute(d, a, as, n, (void *[]){NULL});
    return f->BackendSetAttribute(d, a, as, n, from);
}
static const SdpaShape shape = {.B = 2, .T = 17, .heads = 4, .lanes = 2, .Dk = 16, .Dv = 16, .window = 5};
/* Tensors of zeros and a run on them. */
typedef struct {
    Rig g;
    SdpaTarget t;
    Sdpa *p;
    SdpaTensors at;
    Tensor work;
    char why[300];
} Bench;
static void bench_open(Bench *b, const Cudnn *f, SdpaKind kind, SdpaShape s) {
    size_t q = (size_t)(s.B * s.T * s.heads) * 16 / 2, k = (size_t)(s.B * s.T * s.lanes) * 16 / 2; /* in f32 */
    *b = (Bench){.t = {.f = f}};
    rig_open(&b->g, rig_first(), 1, (size_t)1 << 20);
    cr_assert_eq(f->Create(&b->t.handle), CUDNN_OK);
    f->SetStream(b->t.handle, cuda_stream(b->g.dev->cuda));
    b->p = sdpa_open(&b->t, kind, s, b->why);
    Tensor all = EMPTY(&b->g, "all", (int)(4 * q + 4 * k)), lse = RANDOM(&b->g, "lse", s.B * s.T * s.heads);
    memset(all.p, 0, tensor_bytes(all));
    real *x = R(all), *y = x + 4 * q;
    b->at = (SdpaTensors){.q = x,
                          .k = y,
                          .v = y + k,
                          .dout = x + q,
                          .o = x + 2 * q,
                          .dq = x + 3 * q,
                          .dk = y + 2 * k,
                          .dv = y + 3 * k,
                          .lse = R(lse)};
    if (b->p) b->work = EMPTY(&b->g, "work", (int)(sdpa_bytes(b->p) / sizeof(real)));
}
static void bench_close(Bench *b) {
    sdpa_close(b->p);
    b->t.f->Destroy(b->t.handle);
    rig_close(&b->g);
}

Test(cudnn, mistakes_are_refused) {
    for (Mistake m = NOTHING; m < MISTAKES; m++) {
        Cudnn f = *library();
        between.real = library(), between.mistake = m, between.tensors = between.n = 0;
        f.BackendCreateDescriptor = create, f.BackendFinalize = finalize, f.BackendSetAttribute = set;
        Bench b;
        bench_open(&b, &f, SDPA_BACKWARD, shape);
        bool ran = b.p && sdpa_run(b.p, &b.at, 1, b.work.p, b.why);
        device_sync(b.g.dev);
        cr_assert(m == NOTHING ? ran : !ran && strstr(b.why, said[m]), "mistake %d: \"%s\", expected \"%s\"", m, b.why,
                  said[m]);
        cr_assert(m == NOTHING || (m >= MISSING_UID) == (b.p != NULL), "mistake %d is found %s", m,
                  b.p ? "late" : "early");
        bench_close(&b);
    }
}
/* Memory that the plan was not promised: what the library would write over is found. */
Test(cudnn, a_small_workspace_is_found, .signal = SIGABRT) {
    Bench b;
    bench_open(&b, library(), SDPA_BACKWARD, shape);
    Tensor less = EMPTY(&b.g, "less", 64);
    bool ran = sdpa_run(b.p, &b.at, 1, less.p, b.why);
    cr_assert(ran, "%s", b.why);
    device_sync(b.g.dev);
    _exit(0); /* not found */
}
/* dq that is summed in any order begins with zeros, or with what lay there. */
Test(cudnn, sums_begin_with_zero) {
    for (int zero = 0; zero < 2; zero++) {
        Bench b;
        size_t at, n;
        bench_open(&b, library(), SDPA_BACKWARD_UNORDERED, shape);
        memset(b.work.p, 0x7F, tensor_bytes(b.work));
        n = sdpa_zero(b.p, &at);
        cr_assert(n >= sizeof(float) * (size_t)(shape.B * shape.T * shape.heads) * 16 && sdpa_unordered(b.p));
        if (zero) memset((char *)b.work.p + at, 0, n);
        cr_assert(sdpa_run(b.p, &b.at, 1, b.work.p, b.why), "%s", b.why);
        device_sync(b.g.dev);
        cr_assert((((const uint16_t *)b.at.dq)[5] == 0) == zero, "dq %04x", ((const uint16_t *)b.at.dq)[5]);
        bench_close(&b);
    }
}
Test(cudnn, shapes_are_refused) {
    SdpaTarget t = {.f = library()};
    char why[300];
    SdpaShape wide = shape, crooked = shape;
    wide.Dk = 264, crooked.Dk = 12;
    t.f->Create(&t.handle);
    cr_assert(!sdpa_open(&t, SDPA_FORWARD, wide, why) && strstr(why, "wider than 256"), "%s", why);
    cr_assert(!sdpa_open(&t, SDPA_FORWARD, crooked, why) && strstr(why, "16 bytes"), "%s", why);
    t.f->Destroy(t.handle);
}
