/* words.cu: writes changed words to the device: their indices and values in one copy, and a kernel that puts each in
 * its place. Several pinned buffers take turns, so that the host can gather the next words while a copy of the last
 * ones is pending. */
#include "kernel.h"
#include <stdio.h>
#include <stdlib.h>

enum { TURNS = 2 };
struct CudaWords {
    int turn;
    uint32_t *here[TURNS];
    cudaEvent_t copied[TURNS]; /* here[] may be written again */
};

extern "C" CudaWords *cuda_words_open(Cuda *, int room) {
    CudaWords *w = new CudaWords();
    for (int i = 0; i < TURNS; i++) {
        cuda_must(cudaMallocHost(&w->here[i], (size_t)room * sizeof(uint2)), "pinned memory");
        cuda_must(cudaEventCreateWithFlags(&w->copied[i], cudaEventDisableTiming), "an event");
    }
    return w;
}
extern "C" void cuda_words_close(Cuda *c, CudaWords *w) {
    if (!w) return;
    cuda_sync(c);
    for (int i = 0; i < TURNS; i++) {
        cuda_must(cudaFreeHost(w->here[i]), "giving memory back");
        cuda_must(cudaEventDestroy(w->copied[i]), "an event");
    }
    delete w;
}
extern "C" uint32_t *cuda_words_begin(Cuda *, CudaWords *w) {
    w->turn = (w->turn + 1) % TURNS;
    cuda_must(cudaEventSynchronize(w->copied[w->turn]), "waiting for a copy");
    return w->here[w->turn];
}
/* No word is there twice. */
__global__ void words(size_t n, uint32_t *to, const uint2 *pairs) {
    EACH(i, n) {
        uint2 w = load_vec<uint2>(pairs + i);
        to[w.x] = w.y;
    }
}
extern "C" void cuda_words_end(Cuda *c, CudaWords *w, int n, void *to, void *mem) {
    if (c->graph) { /* a replay would write the words of its capture, which differ the next time */
        fprintf(stderr, "kvsmith: words.cu: words go over while work is recorded\n");
        abort();
    }
    cuda_must(cudaMemcpyAsync(mem, w->here[w->turn], (size_t)n * sizeof(uint2), cudaMemcpyHostToDevice, c->stream),
              "copying to the device");
    cuda_must(cudaEventRecord(w->copied[w->turn], c->stream), "an event");
    LAUNCH_EACH(c, words, (size_t)n, (uint32_t *)to, (const uint2 *)mem);
}
