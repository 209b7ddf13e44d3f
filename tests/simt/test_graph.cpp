/* test_graph.cpp: recordings (ops/cuda/kernels/graph.cu) and what the emulation finds of graphs: each by a planted
 * mistake. */
#include "ops/cuda/cuda.h"
#include "tests/simt/include/cublasLt.h"
#include "kernels.h"
#include <criterion/criterion.h>
#include <cstdlib>

enum { N = 256 };
static Cuda *start() {
    char why[200];
    Cuda *c = cuda_start(0, why);
    cr_assert(c, "%s", why);
    return c;
}
/* x = numbers, y = a x + y, and the host looks at y in the middle; what the host gives is another in every run. */
struct Work {
    Cuda *c;
    float *x, *y, seen[N];
};
static void run(Work *w, CudaGraph *g, float first, float a) {
    float numbers[N];
    for (int i = 0; i < N; i++) numbers[i] = first + (float)i;
    if (g) cuda_graph_begin(w->c, g);
    cuda_upload(w->c, w->x, numbers, sizeof numbers);
    for (float &v : numbers) v = NAN; /* the host's memory is somebody else's again */
    cuda_axpby(w->c, N, w->y, a, w->x, 1);
    cuda_download(w->c, w->seen, w->y, sizeof w->seen);
    cuda_axpby(w->c, N, w->y, w->seen[0], w->x, 0); /* by what was just seen */
    cuda_add(w->c, N, w->y, w->x, false, false);
    if (g) cuda_graph_end(w->c);
}
static void open_work(Work *w) {
    w->c = start();
    w->x = (float *)cuda_take(w->c, N * sizeof(float), false);
    w->y = (float *)cuda_take(w->c, N * sizeof(float), false);
    cuda_fill(w->c, w->y, 0, N * sizeof(float));
}
static void close_work(Work *w) {
    cuda_give(w->c, w->x);
    cuda_give(w->c, w->y);
    cuda_stop(w->c);
}
Test(graph, replays_are_what_they_would_be_without) {
    for (uint64_t seed = 0; seed < 6; seed++) {
        Work w[2];
        float end[2][N];
        simt_seed(seed);
        for (int k = 0; k < 2; k++) {
            open_work(&w[k]);
            CudaGraph *g = k ? cuda_graph_new() : nullptr;
            for (int i = 0; i < 7; i++) {
                run(&w[k], g, (float)(3 * i), 0.5f + (float)i);
                if (g) cr_assert(cuda_graph_replayed(g) == (i ? 2 : 0), "%d: %d", i, cuda_graph_replayed(g));
            }
            cuda_download(w[k].c, end[k], w[k].y, sizeof end[k]);
            cuda_graph_free(w[k].c, g);
            close_work(&w[k]);
        }
        cr_assert(!memcmp(w[0].seen, w[1].seen, sizeof w[0].seen) && !memcmp(end[0], end[1], sizeof end[0]),
                  "seed %d: %g and %g", (int)seed, end[0][5], end[1][5]);
    }
}
/* One that changes is found where it is gone through again, whatever it would have computed. */
static const char *retraced(int what) {
    static char text[320];
    Work w;
    const SimtReport *r;
    open_work(&w);
    CudaGraph *g = cuda_graph_new();
    simt_collect(true);
    for (int i = 0; i < 3; i++) {
        bool last = i == 2;
        cuda_graph_begin(w.c, g);
        cuda_fill(w.c, w.x, 0, N * sizeof(float));
        cuda_swiglu(w.c, last && what == 1 ? N / 2 : N, w.y, last && what == 2 ? w.y : w.x, w.x, false);
        cuda_sigmoid(w.c, N, w.y, w.x, last && what == 3 ? 3 : 2);
        if (!last || what != 4) cuda_elu1(w.c, N, w.y, w.x, false);
        if (last && what == 5) cuda_elu1(w.c, N, w.y, w.x, false);
        cuda_graph_end(w.c);
    }
    int n = simt_reports(&r);
    cr_assert(n <= 1 && (!n || r->fault == SIMT_HOST), "%d reports", n);
    snprintf(text, sizeof text, "%s", n ? r->text : "");
    simt_forget();
    cuda_graph_free(w.c, g);
    close_work(&w);
    simt_collect(false);
    return text;
}
Test(graph, another_launch_than_captured_is_found) {
    static const char *const said[] = {"",
                                       "kernel (swiglu<float, 1>) is not launched as it was captured (another",
                                       "kernel (swiglu<float, 1>) is",
                                       "kernel sigmoid is not launched as it was captured (another argument)",
                                       "kernel (elu1<float, 1>), which was captured, is not launched again",
                                       "kernel (elu1<float, 1>) is not launched as it was captured (it was not)"};
    for (int what = 0; what < 6; what++) {
        if (!simt_comparable && what >= 1 && what <= 3) continue;
        const char *text = retraced(what);
        cr_assert(what ? strstr(text, said[what]) != nullptr : !*text, "%d: %s", what, text);
    }
}

/* ---- products: their algorithms are chosen before a capture -------------------------------------------------------
 */
enum { SIDE = 8, SHAPES = 512 /* of linear.cu */ };
struct Desk {
    Cuda *c;
    float *a, *y; /* ones; results of up to two products of SIDE columns */
};
static void open_desk(Desk *d) {
    float ones[SIDE * (SHAPES + 200)];
    for (float &v : ones) v = 1;
    d->c = start();
    d->a = (float *)cuda_take(d->c, sizeof ones, false);
    d->y = (float *)cuda_take(d->c, 2 * sizeof ones, false);
    cuda_upload(d->c, d->a, ones, sizeof ones);
    cuda_sync(d->c);
}
static void close_desk(Desk *d) {
    cuda_give(d->c, d->a);
    cuda_give(d->c, d->y);
    cuda_stop(d->c);
}
/* Rows of ones by a square of ones: every result is SIDE. */
static void product(Desk *d, int rows, bool add, float *y) {
    cuda_gemm(d->c, {rows, SIDE, SIDE, SIDE, SIDE, SIDE, false, false, add, false, false}, y, d->a, d->a);
}
static bool all_are(Desk *d, const float *y, int rows, float want) {
    float got[SIDE * (SHAPES + 200)];
    cuda_download(d->c, got, y, (size_t)(rows * SIDE) * sizeof *got);
    for (int i = 0; i < rows * SIDE; i++)
        if (got[i] != want) return false;
    return true;
}
/* Of more shapes than the table holds the one whose last use is longest ago goes. */
Test(graph, the_products_last_used_keep_their_algorithms) {
    Desk d;
    open_desk(&d);
    product(&d, 1, false, d.y);
    for (int rows = 2; rows <= SHAPES + 100; rows++) {
        unsigned long before = simt_choices();
        product(&d, rows, false, d.y);
        cr_assert(simt_choices() == before + 1, "%d rows", rows);
        product(&d, 1, false, d.y);
        cr_assert(simt_choices() == before + 1, "the product of one row is forgotten at %d", rows);
        if (rows % 50 == 0) cr_assert(all_are(&d, d.y + SIDE, rows - 1, SIDE), "%d rows", rows);
    }
    unsigned long before = simt_choices();
    for (int rows = SHAPES + 100; rows > 102; rows--) product(&d, rows, false, d.y); /* SHAPES with the one of a row */
    cr_assert(simt_choices() == before, "%lu of those last used are forgotten", simt_choices() - before);
    product(&d, 50, false, d.y);
    cr_assert(simt_choices() == before + 1, "the table grows without end");
    close_desk(&d);
}
/* What a recording's first run chose its capture finds, whatever was multiplied in between, and however many shapes it
 * has; once it is captured, they may go. */
Test(graph, a_recording_keeps_its_algorithms_until_it_is_captured) {
    Desk d;
    open_desk(&d);
    CudaGraph *g = cuda_graph_new();
    unsigned long before = 0;
    for (int k = 0; k < 3; k++) {
        before = simt_choices();
        cuda_graph_begin(d.c, g);
        for (int rows = 1; rows <= SHAPES + 20; rows++) product(&d, rows, false, d.y);
        cuda_graph_end(d.c);
        cr_assert(simt_choices() - before == (k ? 0 : SHAPES + 20), "run %d: %lu", k, simt_choices() - before);
        cr_assert(all_are(&d, d.y, SHAPES + 20, SIDE), "run %d", k);
        for (int rows = 1; rows <= SHAPES + 20; rows++) product(&d, rows, true, d.y); /* others */
    }
    cr_assert(cuda_graph_replayed(g) == 1);
    before = simt_choices();
    for (int rows = 1; rows <= SHAPES + 20; rows++) product(&d, rows, true, d.y);
    cr_assert(simt_choices() == before, "they fit: %lu", simt_choices() - before);
    product(&d, 3, false, d.y);
    cr_assert(simt_choices() == before + 1, "it is still held");
    cuda_graph_free(d.c, g);
    close_desk(&d);
}
/* A product that the first run did not ask for: the capture is given up, nothing is done twice or left out, and the
 * next run is captured. */
Test(graph, a_capture_that_needs_an_algorithm_is_given_up) {
    for (int waits = 0; waits < 2; waits++) {
        Desk d;
        open_desk(&d);
        CudaGraph *g = cuda_graph_new();
        float *z = d.y + SIDE * SIDE, *other = z + 2 * SIDE; /* what the host gives in each half; another result */
        cuda_fill(d.c, d.y, 0, SIDE * SIDE * sizeof(float));
        for (int k = 0; k < 5; k++) {
            float given[SIDE], got[2 * SIDE];
            unsigned long before = simt_choices();
            for (float &v : given) v = (float)k;
            cuda_graph_begin(d.c, g);
            product(&d, SIDE, true, d.y);
            cuda_upload(d.c, z, given, sizeof given);
            if (waits) cuda_sync(d.c);
            cuda_axpby(d.c, SIDE, z, (float)k, d.a, 1);
            product(&d, k ? 3 : 5, false, other);
            cuda_upload(d.c, z + SIDE, given, sizeof given);
            cuda_axpby(d.c, SIDE, z + SIDE, (float)k, d.a, 1);
            product(&d, SIDE, true, d.y);
            cuda_graph_end(d.c);
            cr_assert(simt_choices() - before == (k == 0 ? 2 : k == 1), "run %d: %lu", k, simt_choices() - before);
            cr_assert(cuda_graph_replayed(g) == (k < 2 ? 0 : 1 + waits), "run %d: %d", k, cuda_graph_replayed(g));
            cr_assert(all_are(&d, d.y, SIDE, (float)(2 * SIDE * (k + 1))) && all_are(&d, other, 3, SIDE), "run %d", k);
            cuda_download(d.c, got, z, sizeof got);
            for (int i = 0; i < 2 * SIDE; i++) cr_assert(got[i] == (float)(2 * k), "run %d: %g", k, got[i]);
        }
        cuda_graph_free(d.c, g);
        close_desk(&d);
    }
}

/* ---- the runtime's own --------------------------------------------------------------------------------------------
 */
struct Place {
    cudaStream_t q;
    float *a, *out, *pinned;
};
static void open_place(Place *p) {
    simt_collect(true);
    simt_forget();
    cudaStreamCreateWithFlags(&p->q, cudaStreamNonBlocking);
    cudaMalloc(&p->a, N * sizeof(float));
    cudaMalloc(&p->out, N * sizeof(float));
    cudaMallocHost(&p->pinned, N * sizeof(float));
    for (int i = 0; i < N; i++) p->pinned[i] = 1;
    cudaMemset(p->a, 0, N * sizeof(float));
    cudaMemset(p->out, 0, N * sizeof(float));
}
enum Planted {
    GIVEN_BACK,
    GIVEN_BACK_AND_TAKEN,
    PINNED_GIVEN_BACK,
    COPY_GIVEN_BACK,
    PLAIN_MEMORY,
    STREAM_0,
    WAITS,
    TAKES,
    TAKES_PINNED,
    CHOOSES
};
static cublasStatus_t choose() { /* an algorithm for a product of 8 by 8 */
    cublasLtHandle_t h;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t x;
    cublasLtMatmulPreference_t p;
    cublasLtMatmulHeuristicResult_t r;
    int n;
    cublasLtCreate(&h);
    cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&x, CUDA_R_32F, 8, 8, 8);
    cublasLtMatmulPreferenceCreate(&p);
    cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(h, op, x, x, x, x, p, 1, &r, &n);
    cublasLtMatmulPreferenceDestroy(p), cublasLtMatrixLayoutDestroy(x), cublasLtMatmulDescDestroy(op);
    cublasLtDestroy(h);
    return s;
}
static const char *found(Planted what) {
    static char text[320];
    Place p;
    cudaGraph_t g;
    cudaGraphExec_t x;
    const SimtReport *r;
    float plain[4] = {1, 2, 3, 4}, *other = nullptr;
    open_place(&p);
    cudaStreamBeginCapture(p.q, cudaStreamCaptureModeThreadLocal);
    if (what == PLAIN_MEMORY)
        cudaMemcpyAsync(p.a, plain, sizeof plain, cudaMemcpyHostToDevice, p.q);
    else
        cudaMemcpyAsync(p.a, p.pinned, N * sizeof(float), cudaMemcpyHostToDevice, p.q);
    if (what == STREAM_0) cudaMemsetAsync(p.a, 0, 4, nullptr);
    if (what == WAITS) cudaStreamSynchronize(p.q);
    if (what == TAKES) cudaMalloc(&other, 64);
    if (what == TAKES_PINNED) cr_assert(cudaMallocHost(&other, 64) == cudaErrorStreamCaptureUnsupported && !other);
    if (what == CHOOSES) cr_assert(choose() == CUBLAS_STATUS_INTERNAL_ERROR);
    if (what == COPY_GIVEN_BACK)
        cudaMemcpyAsync(p.out, p.a, N * sizeof(float), cudaMemcpyDeviceToDevice, p.q);
    else
        kernel_sum_blocks(p.q, p.a, p.out, 1, 64, N);
    cudaStreamEndCapture(p.q, &g);
    cudaGraphInstantiate(&x, g, 0);
    cudaGraphDestroy(g);
    cudaGraphLaunch(x, p.q);
    cudaStreamSynchronize(p.q);
    if (what < PLAIN_MEMORY) cr_assert(simt_reports(&r) == 0, "%d, too early: %s", what, r->text);
    if (what == GIVEN_BACK || what == GIVEN_BACK_AND_TAKEN || what == COPY_GIVEN_BACK) cudaFree(p.out), p.out = nullptr;
    if (what == GIVEN_BACK_AND_TAKEN) cudaMalloc(&other, N * sizeof(float));
    if (what == PINNED_GIVEN_BACK) cudaFreeHost(p.pinned), p.pinned = nullptr;
    cudaGraphLaunch(x, p.q);
    cudaStreamSynchronize(p.q);
    int n = simt_reports(&r);
    snprintf(text, sizeof text, "%s", n && r->fault == SIMT_HOST ? r->text : "");
    simt_forget();
    cudaGraphExecDestroy(x);
    cudaStreamDestroy(p.q);
    cudaFree(p.a), cudaFree(p.out), cudaFree(other);
    if (p.pinned) cudaFreeHost(p.pinned);
    cudaGetLastError();
    simt_forget();
    return text;
}
Test(graph, planted_mistakes_are_found) {
    static const struct {
        Planted what;
        const char *said;
    } planted[] = {
        {GIVEN_BACK, "whose kernel sum_blocks was captured with memory that has been given back"},
        {GIVEN_BACK_AND_TAKEN, "whose kernel sum_blocks was captured with memory that has been given back"},
        {PINNED_GIVEN_BACK, "whose copy was captured with memory that has been given back"},
        {COPY_GIVEN_BACK, "whose copy was captured with memory that has been given back"},
        {PLAIN_MEMORY, "a captured copy from memory that is not pinned"},
        {STREAM_0, "work in stream 0 while a stream is captured"},
        {WAITS, "cudaStreamSynchronize while a stream is captured"},
        {TAKES, "cudaMalloc while a stream is captured"},
        {TAKES_PINNED, "cudaMallocHost while a stream is captured"},
        {CHOOSES, "cublasLtMatmulAlgoGetHeuristic while a stream is captured"},
    };
    for (auto &m : planted) {
        const char *text = found(m.what);
        cr_assert(strstr(text, m.said), "%d: %s", m.what, text);
    }
}
