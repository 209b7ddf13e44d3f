#include "bench.h"
#include "ops/graph.h"
#include "ops/shadow.h"
#include "ops/host.h"

static int bench_by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static Timing bench_timing(double *t, int n) {
    qsort(t, (size_t)n, sizeof *t, bench_by_value);
    return (Timing){.median = 0.5 * (t[n / 2] + t[(n - 1) / 2]), .best = t[0], .runs = n};
}

typedef struct {
    void (*work)(void *);
    void *ctx;
    int times;
} Repeat;
static void bench_repeat(void *ctx) {
    Repeat *r = ctx;
    for (int i = 0; i < r->times; i++) r->work(r->ctx);
}
Timing bench_time(Device *dev, void (*work)(void *), void *ctx, double seconds) {
    double t[BENCH_RUNS_MAX];
    int n = 0;
    Repeat r = {work, ctx, 1};
    work(ctx);
    if (device_apart(dev)) {
        double once = device_seconds(dev, bench_repeat, &r);
        if (once < 1e-3) r.times = imin(100, (int)(1e-3 / fmax(once, 1e-5)) + 1);
    }
    double start = now_seconds();
    while (n < BENCH_RUNS_MAX && (n < BENCH_RUNS_MIN || now_seconds() - start < seconds))
        t[n++] = device_seconds(dev, bench_repeat, &r) / r.times;
    return bench_timing(t, n);
}
Timing bench_whole(Device *dev, void (*work)(void *), void *ctx, double seconds) {
    return bench_some(dev, work, ctx, seconds, BENCH_RUNS_MAX);
}
Timing bench_some(Device *dev, void (*work)(void *), void *ctx, double seconds, int most) {
    CHECK(most >= BENCH_RUNS_MIN && most <= BENCH_RUNS_MAX, "at most %d runs", most);
    double t[BENCH_RUNS_MAX];
    int n = 0;
    work(ctx);
    device_sync(dev);
    double start = now_seconds();
    while (n < most && (n < BENCH_RUNS_MIN || now_seconds() - start < seconds)) {
        double from = now_seconds();
        work(ctx);
        device_sync(dev);
        t[n++] = now_seconds() - from;
    }
    return bench_timing(t, n);
}

void bench_fill(Device *dev, Tensor t, uint64_t key, double low, double high) {
    Tensor view = view_open(dev, t, false);
    size_t n = tensor_count(t);
    real *x = t.dtype == BF16 ? NULL : R(view);
    uint16_t *rounded = view.p;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        double v = low + (high - low) * rng_uniform(key, i);
        if (x)
            x[i] = (real)v;
        else
            rounded[i] = bf16_from((float)v);
    }
    view_close(dev, t, view, true);
}
bool bench_bf16(Device *dev) { return device_apart(dev) && device_bf16_acts(dev); }

typedef struct {
    Run run;
    Tensor y, x, w, copy; /* copy: of w in bf16 */
} Linear;
static void linear_once(void *ctx) {
    Linear *l = ctx;
    l->run.ops->linear(&l->run, l->y, l->x, l->w, ABSENT);
}
static void linear_place(Linear *l, Arena *a, int N, int O, int I) {
    const bool is_bf16 = bench_bf16(l->run.dev);
    l->y = arena_tensor(a, "y", is_bf16 ? BF16 : REAL, 2, (int[]){N, O});
    l->x = arena_tensor(a, "x", is_bf16 ? BF16 : REAL, 2, (int[]){N, I});
    l->w = arena_tensor(a, "w", REAL, 2, (int[]){O, I});
    if (!is_bf16 || !shadow_wanted(l->run.dev, l->w, 0)) return;
    l->copy = arena_tensor(a, "copy of w", BF16, 2, (int[]){O, I});
    l->w.has_shadow = true;
}

bool bench_gemm(Device *dev, int N, int O, int I, double seconds, Gemm *g, Err *e) {
    Arena data = {0}, scratch = {0};
    Linear l = {.run = run_make(dev, &scratch)};
    linear_place(&l, &data, N, O, I);
    linear_once(&l); /* measures its scratch */
    const Memory *home = device_memory(dev, false);
    if (!arena_open_at(&data, home, "bench", data.peak, false, e)) return false;
    if (!arena_open_at(&scratch, home, "bench scratch", scratch.peak, false, e)) {
        arena_close(&data);
        return false;
    }
    linear_place(&l, &data, N, O, I);
    bench_fill(dev, l.x, 1, -0.5, 0.5);
    bench_fill(dev, l.w, 2, -0.5, 0.5);
    if (l.w.has_shadow) shadow_keep(dev, l.w, l.copy), shadow_refresh(dev);
    *g = (Gemm){.N = N, .O = O, .I = I, .time = bench_time(dev, linear_once, &l, seconds)};
    g->gflops = 2e-9 * (double)N * O * I / g->time.median;
    if (l.w.has_shadow) shadow_drop(dev, l.w.p, tensor_bytes(l.w));
    arena_close(&scratch);
    arena_close(&data);
    return true;
}

enum { NODES = 100 };
typedef struct {
    Run run;
    Tensor x;
    Graphs *graphs;
} Empty;
/* Each adds a handful of values to others. */
static void bench_nodes(void *ctx) {
    Empty *x = ctx;
    for (int i = 0; i < NODES; i++) x->run.ops->add(&x->run, tensor_part(x->x, 0, 1), tensor_part(x->x, 1, 1));
}
static void nodes_once(void *ctx) {
    Empty *x = ctx;
    graphs_run(x->graphs, 1, bench_nodes, x);
}
bool bench_launches(Device *dev, double seconds, Launches *l, Err *e) {
    Arena data = {.name = "bench launches"}, scratch = {.name = "scratch of launches"};
    Empty x = {.run = run_make(dev, &scratch)};
    x.x = arena_tensor(&data, "x", REAL, 2, (int[]){2, 32});
    bench_nodes(&x);
    const Memory *home = device_memory(dev, false);
    bool ok = arena_open_at(&data, home, data.name, data.peak, false, e) &&
              arena_open_at(&scratch, home, scratch.name, scratch.peak, false, e);
    if (ok) {
        x.x = arena_tensor(&data, "x", REAL, 2, (int[]){2, 32});
        device_zero(dev, x.x.p, tensor_bytes(x.x));
        *l = (Launches){.nodes = NODES, .apart = bench_time(dev, bench_nodes, &x, seconds)};
        x.graphs = graphs_open(dev);
        nodes_once(&x), nodes_once(&x); /* as it comes, captured */
        l->graph = bench_time(dev, nodes_once, &x, seconds);
        l->host = bench_whole(dev, nodes_once, &x, seconds).median;
        graphs_close(x.graphs);
    }
    arena_close(&scratch);
    arena_close(&data);
    return ok;
}

typedef struct {
    const uint64_t *p;
    size_t n;
    int threads;
    uint64_t sum;
} Read;
static void read_once(void *ctx) {
    Read *r = ctx;
    const uint64_t *p = r->p;
    uint64_t sum = 0;
#pragma omp parallel for simd num_threads(r->threads) reduction(+ : sum) schedule(static)
    for (size_t i = 0; i < r->n; i++) sum += p[i];
    r->sum += sum; /* used, so that the loop is not optimised away */
}

typedef struct {
    Device *dev;
    char *to, *from;
    size_t n;
} Copy;
static void copy_once(void *ctx) {
    Copy *c = ctx;
    device_copy(c->dev, c->to, c->from, c->n);
}
static bool bench_copy(Device *dev, size_t bytes, double seconds, double *bytes_per_s, Err *e) {
    Arena a = {0};
    const size_t most = (size_t)1 << 31; /* far beyond every cache: more would only need longer to draw */
    size_t n = (bytes < most ? bytes : most) / 2;
    if (!arena_open_at(&a, device_memory(dev, false), "bench copy", 2 * n + 256, false, e)) return false;
    Copy c = {.dev = dev, .n = n};
    c.to = arena_take(&a, n, "copy"), c.from = arena_take(&a, n, "buffer");
    bench_fill(dev, TENSOR(c.from, F32, (int)(n / sizeof(float))), 1, -1, 1);
    *bytes_per_s = (double)(2 * n) / bench_time(dev, copy_once, &c, seconds).median;
    arena_close(&a);
    return true;
}

bool bench_read(Device *dev, size_t bytes, double seconds, double *bytes_per_s, Err *e) {
    Arena a = {0};
    bytes = (bytes + (1u << 20) - 1) >> 20 << 20;
    if (device_apart(dev)) return bench_copy(dev, bytes, seconds, bytes_per_s, e);
    if (!arena_open(&a, "bench read", bytes + 128, false, e)) return false;
    uint64_t *p = arena_take(&a, bytes, "buffer");
    for (size_t i = 0; i < bytes / 8; i++) p[i] = i; /* written once: an untouched page is one shared page of zeros */
    Read r = {.p = p, .n = bytes / 8, .threads = device_threads(dev)};
    Timing t = bench_time(dev, read_once, &r, seconds);
    uint64_t want = (uint64_t)(t.runs + 1) * (bytes / 8 * (bytes / 8 - 1) / 2);
    CHECK(r.sum == want, "sum of the buffer");
    *bytes_per_s = (double)bytes / t.median;
    arena_close(&a);
    return true;
}
