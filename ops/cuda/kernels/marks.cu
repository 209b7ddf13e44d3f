/* marks.cu: BackendMarks (ops/backend.h) by events of the computing stream. */
#include "kernel.h"
#include "ops/cuda/marks.h"
#include <stdio.h>
#include <stdlib.h>

struct CudaMarks {
    Cuda *cuda;
    cudaEvent_t *event; /* created so far; they are reused */
    int n, made, room;
};
extern "C" CudaMarks *cuda_marks_new(Cuda *c) {
    CudaMarks *m = new CudaMarks();
    m->cuda = c;
    return m;
}
extern "C" void cuda_marks_free(CudaMarks *m) {
    for (int i = 0; i < m->made; i++) cudaEventDestroy(m->event[i]);
    free(m->event);
    delete m;
}
extern "C" void cuda_marks_add(CudaMarks *m) {
    if (m->n == m->made) {
        if (m->made == m->room) {
            m->room = 2 * m->room + 256;
            m->event = (cudaEvent_t *)realloc(m->event, (size_t)m->room * sizeof *m->event);
            if (!m->event) {
                fprintf(stderr, "kvsmith: out of memory for %d events\n", m->room);
                exit(1);
            }
        }
        cuda_must(cudaEventCreate(&m->event[m->made]), "an event");
        m->made++;
    }
    cuda_must(cudaEventRecord(m->event[m->n++], m->cuda->own), "an event");
}
extern "C" int cuda_marks_count(const CudaMarks *m) { return m->n; }
extern "C" void cuda_marks_read(CudaMarks *m, double *seconds) {
    cuda_sync(m->cuda);
    for (int i = 0; i + 1 < m->n; i++) {
        float ms = 0;
        cuda_must(cudaEventElapsedTime(&ms, m->event[i], m->event[i + 1]), "reading the device's clock");
        seconds[i] = (double)ms * 1e-3;
    }
    m->n = 0;
}
