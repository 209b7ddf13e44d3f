/* test_graph.cpp: recordings (ops/cuda/graph.cu) and what the emulation finds of graphs: each by a planted mistake. */
#include "../../ops/cuda/cuda.h"
#include "include/cuda_runtime.h"
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
    TAKES
};
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
    };
    for (auto &m : planted) {
        const char *text = found(m.what);
        cr_assert(strstr(text, m.said), "%d: %s", m.what, text);
    }
}
