/* open.c: the CUDA backend as a Device: opening it, its memory as regions, copies to and from the host. */
#include "../device.h"
#include "../gpus.h"
#include "cuda.h"
#include "fused.h"
#include "../marks.h"
#include "lacks.h"
#include "marks.h"
#include "sample.h"

static void *take(const Memory *m, size_t n) { return cuda_take(((Device *)m->ctx)->cuda, n, false); }
static void *take_mapped(const Memory *m, size_t n) { return cuda_take(((Device *)m->ctx)->cuda, n, true); }
static void give(const Memory *m, void *p) { cuda_give(((Device *)m->ctx)->cuda, p); }
static void give_mapped(const Memory *m, void *p) { cuda_give_mapped(((Device *)m->ctx)->cuda, p); }
static void poison(const Memory *m, void *p, size_t n) {
    if (n) cuda_poison(((Device *)m->ctx)->cuda, p, n);
}
/* At once: what the host writes next must not be overtaken by the poison. */
static void poison_mapped(const Memory *m, void *p, size_t n) {
    cuda_sync(((Device *)m->ctx)->cuda);
    memset(p, 0xFF, n);
}
static void note(const Memory *m, void *p, size_t n, const char *name) {
    cuda_note(((Device *)m->ctx)->cuda, p, n, name);
}
static void unnote(const Memory *m, void *p, size_t n) { cuda_unnote(((Device *)m->ctx)->cuda, p, n); }

/* The only variable of the environment that the backend reads for itself: it serves whoever looks for a fault, in any
 * command and any test, and changes no result. */
static bool checks(bool *on, Err *e) {
    const char *said = getenv("KVSMITH_CUDA_CHECK");
    *on = said && !strcmp(said, "1");
    return !said || !*said || *on || !strcmp(said, "0") ||
           err_input(e, "KVSMITH_CUDA_CHECK: expected 1 or 0, got %.40s", said);
}
bool cuda_device_open(Device *d, int number, Err *e) {
    char why[200] = "";
    bool check;
    if (!checks(&check, e)) return false;
    d->cuda = cuda_start(number, why);
    if (!d->cuda) return err_world(e, "device cuda: %s", why);
    cuda_check(d->cuda, check);
    d->logits = (int64_t)1 << 26;
    d->own = *cuda_ops();
    cuda_lacks(&d->own);
    d->ops = &d->own;
    d->isa = cuda_name(d->cuda);
    d->home[0] = (Memory){take, give, poison, note, unnote, d};
    d->home[1] = (Memory){take_mapped, give_mapped, poison_mapped, note, unnote, d};
    return true;
}
int device_gpus(char why[200]) { return cuda_count(why); }
void cuda_device_close(Device *d) {
    cuda_sync(d->cuda);
    fused_close(d->fused);
    cuda_stop(d->cuda);
}
void cuda_device_attention(Device *d, AttentionBy by) {
    cuda_sync(d->cuda);
    fused_close(d->fused);
    d->fused = by >= ATTENTION_CUDNN ? fused_open(d->cuda, by == ATTENTION_CUDNN_UNORDERED) : NULL;
}
void cuda_device_sync(Device *d) { cuda_sync(d->cuda); }
const Memory *cuda_device_memory(Device *d, bool host_too) { return &d->home[host_too]; }
void cuda_device_write(Device *d, void *to, const void *from, size_t n) { cuda_upload(d->cuda, to, from, n); }
void cuda_device_read(Device *d, void *to, const void *from, size_t n) { cuda_download(d->cuda, to, from, n); }
void cuda_device_copy(Device *d, void *to, const void *from, size_t n) { cuda_copy(d->cuda, to, from, n); }
void cuda_device_zero(Device *d, void *p, size_t n) {
    if (n) cuda_fill(d->cuda, p, 0, n);
}
void cuda_device_facts(Device *d, DeviceSee *see, void *ctx) { cuda_facts(d->cuda, see, ctx); }
double cuda_device_seconds(Device *d, void (*work)(void *), void *ctx) { return cuda_seconds(d->cuda, work, ctx); }
bool cuda_device_graphs(Device *d) { return !cuda_checks(d->cuda); }
CudaGraph *cuda_device_graph_new(void) { return cuda_graph_new(); }
void cuda_device_graph_free(Device *d, CudaGraph *g) { cuda_graph_free(d->cuda, g); }
bool cuda_device_graph_run(Device *d, CudaGraph *g, void (*work)(void *), void *ctx) {
    bool replayed = cuda_graph_replayed(g) > 0;
    cuda_graph_begin(d->cuda, g);
    work(ctx);
    cuda_graph_end(d->cuda);
    return replayed;
}
CudaWords *cuda_device_words_open(Device *d, int room) { return cuda_words_open(d->cuda, room); }
void cuda_device_words_close(Device *d, CudaWords *w) { cuda_words_close(d->cuda, w); }
uint32_t *cuda_device_words_begin(Device *d, CudaWords *w) { return cuda_words_begin(d->cuda, w); }
void cuda_device_words_end(Device *d, CudaWords *w, int n, void *to, void *mem) {
    cuda_words_end(d->cuda, w, n, to, mem);
}
bool cuda_device_tuning(Device *d, Tuning *read, const char *path) {
    long long library = cuda_library(d->cuda);
    int n = cuda_processors(d->cuda);
    const char *name = cuda_name(d->cuda);
    if (strcmp(read->device, name) || read->processors != n)
        fprintf(stderr, "kvsmith: %.150s: measured on %.63s with %d processors, this is %.63s with %d; ignored\n", path,
                read->device, read->processors, name, n);
    else if (read->library != library)
        fprintf(stderr, "kvsmith: %.150s: measured with cuBLASLt %lld, this is %lld; ignored\n", path, read->library,
                library);
    else {
        d->tuning = *read;
        cuda_tuning(d->cuda, &d->tuning);
        return true;
    }
    tuning_free(read);
    return false;
}
int cuda_device_tune(Device *d, double seconds, Tuning *out) {
    snprintf(out->device, sizeof out->device, "%.63s", cuda_name(d->cuda));
    out->processors = cuda_processors(d->cuda);
    out->library = cuda_library(d->cuda);
    out->product = xcalloc(TUNING_MAX, sizeof *out->product);
    return out->n = cuda_tune(d->cuda, seconds, out->product, TUNING_MAX);
}

static size_t aligned(size_t n) { return (n + 15) & ~(size_t)15; }
size_t device_sample_bytes(int n, int V) {
    size_t N = (size_t)n, all = N * (size_t)V;
    return aligned(N * sizeof(SampleRow)) + aligned(N * sizeof(Sampled)) + aligned(all * sizeof(double)) +
           all * sizeof(int);
}
_Static_assert(sizeof(SampleRow) == 56 && sizeof(Sampled) == 12, "as sample.cu has them");
void device_sample(Device *d, int n, int V, const SampleRow *rows, const real *logits, unsigned char *seen, void *mem,
                   Sampled *out) {
    size_t N = (size_t)n, all = N * (size_t)V;
    char *at = mem, *drawn = at + aligned(N * sizeof *rows), *p = drawn + aligned(N * sizeof *out),
         *id = p + aligned(all * sizeof(double));
    cuda_upload(d->cuda, at, rows, N * sizeof *rows);
    cuda_sample(d->cuda, n, V, (SampleRow *)at, logits, seen, (double *)p, (int *)id, (Sampled *)drawn);
    cuda_download(d->cuda, out, drawn, N * sizeof *out);
}

void device_logits(Device *d, int64_t n) { d->logits = n; }
struct Marks {
    CudaMarks *cuda;
};
Marks *marks_open(Device *d) {
    if (!d->cuda) return NULL;
    Marks *m = xcalloc(1, sizeof *m);
    m->cuda = cuda_marks_new(d->cuda);
    return m;
}
void marks_close(Marks *m) {
    if (!m) return;
    cuda_marks_free(m->cuda);
    free(m);
}
void marks_add(Marks *m) { cuda_marks_add(m->cuda); }
int marks_count(const Marks *m) { return cuda_marks_count(m->cuda); }
void marks_read(Marks *m, double *seconds) { cuda_marks_read(m->cuda, seconds); }
