/* open.c: the CUDA backend as a Device: opening it, its memory as regions, copies to and from the host. */
#include "ops/device.h"
#include "ops/cuda/cuda.h"
#include "fused.h"
#include "ops/cuda/marks.h"
#include "ops/cuda/sample.h"
#include "ops/cuda/comm_stream.h"
#include "table.h"

static void *open_take(const Memory *m, size_t n) { return cuda_take(((Device *)m->ctx)->cuda, n, false); }
static void *take_mapped(const Memory *m, size_t n) { return cuda_take(((Device *)m->ctx)->cuda, n, true); }
static void open_give(const Memory *m, void *p) { cuda_give(((Device *)m->ctx)->cuda, p); }
static void give_mapped(const Memory *m, void *p) { cuda_give_mapped(((Device *)m->ctx)->cuda, p); }
static void open_poison(const Memory *m, void *p, size_t n) {
    if (n) cuda_poison(((Device *)m->ctx)->cuda, p, n);
}
/* Wait first: the poison must not overwrite what the host writes next. */
static void poison_mapped(const Memory *m, void *p, size_t n) {
    cuda_sync(((Device *)m->ctx)->cuda);
    memset(p, 0xFF, n);
}
static void open_note(const Memory *m, void *p, size_t n, const char *name) {
    cuda_note(((Device *)m->ctx)->cuda, p, n, name);
}
static void open_unnote(const Memory *m, void *p, size_t n) { cuda_unnote(((Device *)m->ctx)->cuda, p, n); }

/* KVSMITH_CUDA_CHECK is the only environment variable that the backend reads itself. It helps to find faults, in any
 * command and any test, and changes no result. */
static bool open_checks(bool *on, Err *e) {
    const char *said = getenv("KVSMITH_CUDA_CHECK");
    *on = said && !strcmp(said, "1");
    return !said || !*said || *on || !strcmp(said, "0") ||
           err_input(e, "KVSMITH_CUDA_CHECK: expected 1 or 0, got %.40s", said);
}
static bool cuda_device_open(Device *d, int number, Err *e) {
    char why[200] = "";
    bool check;
    if (!open_checks(&check, e)) return false;
    d->cuda = cuda_start(number, why);
    if (!d->cuda) return err_runtime(e, "device cuda: %s", why);
    cuda_check(d->cuda, check);
    d->logits = (int64_t)1 << 26;
    d->own = *cuda_ops();
    d->ops = &d->own;
    d->isa = cuda_name(d->cuda);
    d->home[0] = (Memory){open_take, open_give, open_poison, open_note, open_unnote, d};
    d->home[1] = (Memory){take_mapped, give_mapped, poison_mapped, open_note, open_unnote, d};
    return true;
}
static void cuda_device_close(Device *d) {
    cuda_sync(d->cuda);
    fused_close(d->fused);
    cuda_stop(d->cuda);
}
static void cuda_device_attention(Device *d, AttentionBy by) {
    cuda_sync(d->cuda);
    fused_close(d->fused);
    d->fused = by >= ATTENTION_CUDNN ? fused_open(d->cuda, by == ATTENTION_CUDNN_UNORDERED) : NULL;
}
static void cuda_device_sync(Device *d) { cuda_sync(d->cuda); }
static const Memory *cuda_device_memory(Device *d, bool host_too) { return &d->home[host_too]; }
static void cuda_device_write(Device *d, void *to, const void *from, size_t n) { cuda_upload(d->cuda, to, from, n); }
static void cuda_device_read(Device *d, void *to, const void *from, size_t n) { cuda_download(d->cuda, to, from, n); }
static void cuda_device_copy(Device *d, void *to, const void *from, size_t n) { cuda_copy(d->cuda, to, from, n); }
static void cuda_device_zero(Device *d, void *p, size_t n) {
    if (n) cuda_fill(d->cuda, p, 0, n);
}
static void cuda_device_facts(Device *d, DeviceSee *see, void *ctx) { cuda_facts(d->cuda, see, ctx); }
static double cuda_device_seconds(Device *d, void (*work)(void *), void *ctx) {
    return cuda_seconds(d->cuda, work, ctx);
}
static bool cuda_device_graphs(Device *d) { return !cuda_checks(d->cuda); }
static void cuda_device_graph_free(Device *d, CudaGraph *g) { cuda_graph_free(d->cuda, g); }
static bool cuda_device_graph_run(Device *d, CudaGraph *g, void (*work)(void *), void *ctx) {
    bool replayed = cuda_graph_replayed(g) > 0;
    cuda_graph_begin(d->cuda, g);
    work(ctx);
    cuda_graph_end(d->cuda);
    return replayed;
}
static CudaWords *cuda_device_words_open(Device *d, int room) { return cuda_words_open(d->cuda, room); }
static void cuda_device_words_close(Device *d, CudaWords *w) { cuda_words_close(d->cuda, w); }
static uint32_t *cuda_device_words_begin(Device *d, CudaWords *w) { return cuda_words_begin(d->cuda, w); }
static void cuda_device_words_end(Device *d, CudaWords *w, int n, void *to, void *mem) {
    cuda_words_end(d->cuda, w, n, to, mem);
}
static bool cuda_device_tuning(Device *d, Tuning *read, const char *path) {
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
static int cuda_device_tune(Device *d, double seconds, Tuning *out) {
    snprintf(out->device, sizeof out->device, "%.63s", cuda_name(d->cuda));
    out->processors = cuda_processors(d->cuda);
    out->library = cuda_library(d->cuda);
    out->product = xcalloc(TUNING_MAX, sizeof *out->product);
    return out->n = cuda_tune(d->cuda, seconds, out->product, TUNING_MAX);
}

static size_t open_aligned(size_t n) { return (n + 15) & ~(size_t)15; }
static size_t cuda_device_sample_bytes(int n, int V) {
    size_t N = (size_t)n, all = N * (size_t)V;
    return open_aligned(N * sizeof(SampleRow)) + open_aligned(N * sizeof(Sampled)) +
           open_aligned(all * sizeof(double)) + all * sizeof(int);
}
_Static_assert(sizeof(SampleRow) == 56 && sizeof(Sampled) == 12, "as sample.cu has them");
static void cuda_device_sample(Device *d, int n, int V, const SampleRow *rows, const real *logits, unsigned char *seen,
                               void *mem, Sampled *out) {
    size_t N = (size_t)n, all = N * (size_t)V;
    char *at = mem, *drawn = at + open_aligned(N * sizeof *rows), *p = drawn + open_aligned(N * sizeof *out),
         *id = p + open_aligned(all * sizeof(double));
    cuda_upload(d->cuda, at, rows, N * sizeof *rows);
    cuda_sample(d->cuda, n, V, (SampleRow *)at, logits, seen, (double *)p, (int *)id, (Sampled *)drawn);
    cuda_download(d->cuda, out, drawn, N * sizeof *out);
}

static void cuda_device_cast_to_bf16(Device *d, uint16_t *to, const real *from, size_t n) {
    cuda_cast_to_bf16(d->cuda, n, to, from);
}
static void cuda_device_cast_from_bf16(Device *d, real *to, const uint16_t *from, size_t n, bool add) {
    cuda_cast_from_bf16(d->cuda, n, to, from, add);
}
static bool cuda_device_bf16(Device *d, bool on, Err *e) {
    (void)e;
    d->products_bf16 = on, d->least = BF16_LEAST;
    return true;
}
static bool cuda_device_bf16_pays(Device *d) {
    (void)d;
    return true;
}

const Backend cuda_backend = {
    .close = cuda_device_close,
    .sync = cuda_device_sync,
    .memory = cuda_device_memory,
    .write = cuda_device_write,
    .read = cuda_device_read,
    .copy = cuda_device_copy,
    .zero = cuda_device_zero,
    .seconds = cuda_device_seconds,
    .facts = cuda_device_facts,
    .bf16 = cuda_device_bf16,
    .bf16_pays = cuda_device_bf16_pays,
    .ops = &cuda_table,
    .open = cuda_device_open,
    .gpus = cuda_count,
    .attention = cuda_device_attention,
    .tuning = cuda_device_tuning,
    .tune = cuda_device_tune,
    .graphs = cuda_device_graphs,
    .graph_make = cuda_graph_new,
    .graph_free = cuda_device_graph_free,
    .graph_run = cuda_device_graph_run,
    .words_open = cuda_device_words_open,
    .words_close = cuda_device_words_close,
    .words_begin = cuda_device_words_begin,
    .words_end = cuda_device_words_end,
    .cast_to_bf16 = cuda_device_cast_to_bf16,
    .cast_from_bf16 = cuda_device_cast_from_bf16,
    .sample_bytes = cuda_device_sample_bytes,
    .sample = cuda_device_sample,
    .marks = {cuda_marks_new, cuda_marks_free, cuda_marks_add, cuda_marks_count, cuda_marks_read},
    .comm_stream = &cuda_comm_stream,
};
