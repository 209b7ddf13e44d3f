/* comm_stream.c: see comm_stream.h; over the calls of CUDA's backend. */
#include "comm_stream.h"
#include "device.h"

#define CUDA (cuda_backend.comm_stream)

enum { WAITS = 2048 }; /* whose moments are kept before they are read */
struct CommStream {
    struct CudaCommStream *cuda;
    Device *dev; /* of comm_stream_open_at, or NULL */
    struct CudaMarks *marks;
    double waited; /* as far as moments were read */
};

bool comm_stream_open(int number, int need, CommStream **out, Err *e) {
    char why[200] = "";
    int devices = 0;
    if (!backend_of_cuda())
        return err_input(
            e, "device cuda: this program was built without CUDA; set run.device=cpu, or build with `make cuda`");
    struct CudaCommStream *c = CUDA->start(number, &devices, why);
    if (c && devices < need) {
        CUDA->stop(c);
        c = NULL;
        *why = 0;
    }
    if (!c && devices && devices < need)
        return err_runtime(e,
                           "device cuda: %d ranks on this host, but this rank sees %d GPU%s; each rank uses the GPU "
                           "with its index on the host; start fewer ranks, or make all GPUs visible to each",
                           need, devices, devices == 1 ? "" : "s");
    if (!c) return err_runtime(e, "device cuda: %s", why);
    *out = xcalloc(1, sizeof **out);
    (*out)->cuda = c;
    return true;
}
bool comm_stream_open_at(Device *d, CommStream **out, Err *e) {
    CHECK(d->cuda, "a device without a second queue");
    if (!comm_stream_open(-1, 1, out, e)) return false;
    (*out)->dev = d, (*out)->marks = cuda_backend.marks.make(d->cuda);
    return true;
}
void comm_stream_close(CommStream *s) {
    if (!s) return;
    if (s->marks) cuda_backend.marks.free(s->marks);
    CUDA->stop(s->cuda);
    free(s);
}
void *comm_stream_native(CommStream *s) { return CUDA->stream(s->cuda); }
void *comm_stream_take(CommStream *s, size_t n) {
    (void)s;
    return CUDA->take(n);
}
void comm_stream_give(CommStream *s, void *p) {
    (void)s;
    CUDA->give(p);
}
bool comm_stream_follow(CommStream *s, Device *d) { return CUDA->follow(s->cuda, d->cuda); }
bool comm_stream_upload(CommStream *s, void *to, const void *from, size_t n) {
    return CUDA->upload(s->cuda, to, from, n);
}
bool comm_stream_download(CommStream *s, void *to, const void *from, size_t n) {
    return CUDA->download(s->cuda, to, from, n);
}
bool comm_stream_mark(CommStream *s, int slot) { return CUDA->mark(s->cuda, slot); }
int comm_stream_done(CommStream *s, int slot) { return CUDA->done(s->cuda, slot); }
static void comm_stream_clock(CommStream *s) {
    const int n = cuda_backend.marks.count(s->marks);
    double *seconds = xcalloc((size_t)n + 1, sizeof *seconds);
    cuda_backend.marks.read(s->marks, seconds);
    for (int i = 0; i + 1 < n; i += 2) s->waited += seconds[i];
    free(seconds);
}
bool comm_stream_lead(CommStream *s, int slot) {
    if (cuda_backend.marks.count(s->marks) == 2 * WAITS) comm_stream_clock(s);
    cuda_backend.marks.add(s->marks);
    const bool ok = CUDA->lead(s->cuda, s->dev->cuda, slot);
    cuda_backend.marks.add(s->marks);
    return ok;
}
double comm_stream_waited(CommStream *s) {
    comm_stream_clock(s);
    return s->waited;
}
const char *comm_stream_why(const CommStream *s) { return CUDA->why(s->cuda); }
const char *comm_stream_library(void) { return backend_of_cuda() ? CUDA->library() : ""; }
