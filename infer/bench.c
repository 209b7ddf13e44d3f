#include "bench.h"

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

Timing bench_time(void (*work)(void *), void *ctx, double seconds) {
    double t[BENCH_RUNS_MAX], start;
    int n = 0;
    work(ctx);
    start = now_seconds();
    while (n < BENCH_RUNS_MAX && (n < BENCH_RUNS_MIN || now_seconds() - start < seconds)) {
        double t0 = now_seconds();
        work(ctx);
        t[n++] = now_seconds() - t0;
    }
    qsort(t, (size_t)n, sizeof *t, by_value);
    return (Timing){.median = 0.5 * (t[n / 2] + t[(n - 1) / 2]), .best = t[0], .runs = n};
}

typedef struct {
    Run run;
    Tensor y, x, w;
} Linear;
static void linear_once(void *ctx) {
    Linear *l = ctx;
    l->run.ops->linear(&l->run, l->y, l->x, l->w, ABSENT);
}
static void linear_place(Linear *l, Arena *a, int N, int O, int I) {
    l->y = arena_tensor(a, "y", REAL, 2, (int[]){N, O});
    l->x = arena_tensor(a, "x", REAL, 2, (int[]){N, I});
    l->w = arena_tensor(a, "w", REAL, 2, (int[]){O, I});
}

bool bench_gemm(Device *dev, int N, int O, int I, double seconds, Gemm *g, Err *e) {
    Arena data = {0}, scratch = {0};
    Linear l = {.run = run_make(dev, &scratch)};
    linear_place(&l, &data, N, O, I);
    linear_once(&l); /* measures its scratch */
    if (!arena_open(&data, "bench", data.peak, false, e)) return false;
    if (!arena_open(&scratch, "bench scratch", scratch.peak, false, e)) {
        arena_close(&data);
        return false;
    }
    linear_place(&l, &data, N, O, I);
    for (size_t i = 0; i < tensor_count(l.x); i++) R(l.x)[i] = (real)(rng_uniform(1, i) - 0.5);
    for (size_t i = 0; i < tensor_count(l.w); i++) R(l.w)[i] = (real)(rng_uniform(2, i) - 0.5);
    *g = (Gemm){.N = N, .O = O, .I = I, .time = bench_time(linear_once, &l, seconds)};
    g->gflops = 2e-9 * N * O * I / g->time.median;
    arena_close(&scratch);
    arena_close(&data);
    return true;
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

bool bench_read(Device *dev, size_t bytes, double seconds, double *bytes_per_s, Err *e) {
    Arena a = {0};
    bytes = (bytes + (1u << 20) - 1) >> 20 << 20;
    if (!arena_open(&a, "bench read", bytes + 128, false, e)) return false;
    uint64_t *p = arena_take(&a, bytes, "buffer");
    for (size_t i = 0; i < bytes / 8; i++) p[i] = i; /* written once: an untouched page is one shared page of zeros */
    Read r = {.p = p, .n = bytes / 8, .threads = device_threads(dev)};
    Timing t = bench_time(read_once, &r, seconds);
    uint64_t want = (uint64_t)(t.runs + 1) * (bytes / 8 * (bytes / 8 - 1) / 2);
    CHECK(r.sum == want, "sum of the buffer");
    *bytes_per_s = (double)bytes / t.median;
    arena_close(&a);
    return true;
}
