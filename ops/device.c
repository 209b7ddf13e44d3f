/* device.c: opens a device with its backend (backend.h); the CPU's backend is here, and isa.c chooses its table. */
#include "device.h"
#include "gpus.h"
#include "comm_stream.h"
#include "file.h"
#include "shadow.h"
#include "isa_table.h"
#include "procs.h"
#include <omp.h>

/* "", or ":3" */
static bool device_numbered(const char *s, int *n) {
    if (!*s) return true;
    if (*s++ != ':' || strspn(s, "0123456789") != strlen(s) || strlen(s) < 1 || strlen(s) > 4) return false;
    *n = atoi(s);
    return true;
}

bool device_isa_there(const char *isa, Err *e) {
    const Isa *found;
    return !strcmp(isa, "auto") || isa_find(isa, &found, e);
}

bool device_bind(char out[DEVICE_NAME_MAX], const char *device, const char *isa, Err *e) {
    bool any = !isa || !strcmp(isa, "auto");
    if (!any && strcmp(device, "cpu") != 0)
        return err_input(e, "isa %.30s: only device cpu has one, but the device is %.10s; leave one of them out", isa,
                         device);
    snprintf(out, DEVICE_NAME_MAX, any ? "%s" : "%s:%s", device, isa);
    return true;
}

/* ---- the CPU ---- */
static void cpu_close(Device *d) { gemm_close(d->gemm); }
static void cpu_sync(Device *d) { (void)d; }
static const Memory *cpu_memory(Device *d, bool host_too) {
    (void)d, (void)host_too;
    return NULL;
}
static void cpu_copy(Device *d, void *to, const void *from, size_t n) {
    (void)d;
    memcpy(to, from, n);
}
static void cpu_zero(Device *d, void *p, size_t n) {
    (void)d;
    memset(p, 0, n);
}
static double cpu_seconds(Device *d, void (*work)(void *), void *ctx) {
    (void)d;
    double from = now_seconds();
    work(ctx);
    return now_seconds() - from;
}
static void cpu_facts(Device *d, DeviceSee *see, void *ctx) {
    see(ctx, "isa", -1, d->isa);
    see(ctx, "threads", d->threads, NULL);
}
static bool cpu_bf16(Device *d, bool on, Err *e) {
    if (on && !d->gemm_bf16) return err_input(e, "dtype bf16: this build computes in double");
    gemm_use(d->gemm, on ? d->gemm_bf16 : NULL, d->threads, BF16_LEAST);
#if defined(__x86_64__) && !defined(KV_DOUBLE)
    d->pairs = on && d->ops == &ops_cpu_avx512bf16; /* without the instruction rounding would only cost */
#endif
    return true;
}
static bool cpu_bf16_pays(Device *d) { return strstr(d->isa, "bf16"); }
static const Backend cpu_backend = {
    .close = cpu_close,
    .sync = cpu_sync,
    .memory = cpu_memory,
    .write = cpu_copy,
    .read = cpu_copy,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .seconds = cpu_seconds,
    .facts = cpu_facts,
    .bf16 = cpu_bf16,
    .bf16_pays = cpu_bf16_pays,
};

/* ---- every device ---- */
bool device_open(Device **out, const char *name, int threads, Err *e) {
    int number = 0;
    const Isa *isa;
    bool cuda = !strncmp(name, "cuda", 4) && device_numbered(name + 4, &number), bound = !strncmp(name, "cpu:", 4);
    if (!cuda && !bound && strcmp(name, "cpu") != 0)
        return err_input(e, "device %s: unknown; this build has: cpu%s", name, cuda_ops() ? ", cuda" : "");
    if (threads < 0 || threads > 1024)
        return err_input(e, "threads %d: expected 1 to 1024, or 0 (OMP_NUM_THREADS, else one per processor)", threads);
    if (cuda && !backend_of_cuda())
        return err_input(
            e, "device cuda: this program was built without CUDA; use --device cpu, or build with `make cuda`");
    if (bound && !strcmp(name, "cpu:auto")) bound = false;
    if (!bound)
        isa = isa_auto(&bound);
    else if (!isa_find(name + 4, &isa, e))
        return false;
    Device *d = xcalloc(1, sizeof *d);
    d->threads = threads ? threads : procs_threads();
    omp_set_dynamic(0);
    omp_set_num_threads(d->threads);
    d->ops = isa->ops, d->isa = isa->label, d->gemm_bf16 = isa->gemm_bf16, d->pair_product = isa->pairs;
    d->backend = cuda ? backend_of_cuda() : &cpu_backend;
    if (!(cuda ? d->backend->open(d, number, e)
               : gemm_bind(bound ? isa->library : LIBRARY_ANY, e) && gemm_open(&d->gemm, e))) {
        free(d);
        return false;
    }
    *out = d;
    return true;
}

void device_close(Device *d) {
    if (!d) return;
    d->backend->close(d);
    tuning_free(&d->tuning);
    free(d->shadows.at);
    free(d);
}

const Ops *device_ops(const Device *d) { return d->ops; }
int device_threads(const Device *d) { return d->threads; }
const char *device_isa(const Device *d) { return d->isa; }
void device_sync(Device *d) { d->backend->sync(d); }
const Memory *device_memory(Device *d, bool host_too) { return d->backend->memory(d, host_too); }
void device_write(Device *d, void *to, const void *from, size_t n) {
    shadow_changed(d, to, n);
    d->backend->write(d, to, from, n);
}
void device_read(Device *d, void *to, const void *from, size_t n) { d->backend->read(d, to, from, n); }
void device_copy(Device *d, void *to, const void *from, size_t n) {
    shadow_changed(d, to, n);
    d->backend->copy(d, to, from, n);
}
void device_zero(Device *d, void *p, size_t n) {
    shadow_changed(d, p, n);
    d->backend->zero(d, p, n);
}
double device_seconds(Device *d, void (*work)(void *), void *ctx) {
    device_sync(d);
    return d->backend->seconds(d, work, ctx);
}
void device_facts(Device *d, DeviceSee *see, void *ctx) { d->backend->facts(d, see, ctx); }
Run run_make(Device *d, Arena *scratch) { return (Run){.ops = d->ops, .dev = d, .scratch = scratch, .host = scratch}; }
bool device_bf16(Device *d, bool on, Err *e) { return d->backend->bf16(d, on, e); }
bool device_bf16_pays(Device *d) { return d->backend->bf16_pays(d); }
bool device_bf16_acts(const Device *d) { return (d->cuda ? d->products_bf16 : d->pairs) && !d->wide; }

/* ---- what a GPU alone has ---- */
bool device_tuning(Device *d, const char *path, Err *e) {
    FileMap f;
    Tuning t;
    Err why = {0};
    if (!d->backend->tuning)
        return err_input(e, "tuning %.150s: only a GPU uses it; leave it out, or use --device cuda", path);
    if (!file_map(&f, path, e)) return false;
    bool ok = tuning_parse(&t, f.p, f.n, path, &why);
    file_unmap(&f);
    tuning_free(&d->tuning);
    if (ok)
        d->backend->tuning(d, &t, path);
    else
        fprintf(stderr, "kvsmith: %s; ignored\n", why.msg);
    return true;
}
bool device_tune(Device *d, double seconds, const char *path, Tuning *out, Err *e) {
    *out = (Tuning){.n = 0};
    if (!d->backend->tune) return err_input(e, "tuning: works on a GPU only; use --device cuda");
    if (!d->backend->tune(d, seconds, out)) {
        tuning_free(out);
        return err_runtime(e, "tuning: no product could be measured");
    }
    char *text = path ? tuning_text(out) : NULL;
    bool ok = !path || file_write(path, text, strlen(text), e);
    free(text);
    if (!ok) tuning_free(out);
    return ok;
}
bool device_attention(Device *d, AttentionBy by, Err *e) {
    bool own = by == ATTENTION_AUTO || by == ATTENTION_OWN;
    if (!d->backend->attention && !own)
        return err_input(e, "attention cudnn: works on a GPU only; leave it out, or use device cuda");
    if (!d->products_bf16 && !own)
        return err_input(e, "attention cudnn: computes in bf16; expected dtype bf16, got f32");
    if (d->backend->attention) d->backend->attention(d, by);
    return true;
}
int device_gpus(char why[200]) {
    *why = 0;
    return backend_of_cuda() ? cuda_backend.gpus(why) : 0;
}
void device_logits(Device *d, int64_t n) { d->logits = n; }
void device_round_to_bf16(Device *d, uint16_t *to, const real *from, size_t n) {
    d->backend->cast_to_bf16(d, to, from, n);
}
void device_cast_from_bf16(Device *d, real *to, const uint16_t *from, size_t n, bool add) {
    d->backend->cast_from_bf16(d, to, from, n, add);
}
size_t device_sample_bytes(int n, int V) { return backend_of_cuda() ? cuda_backend.sample_bytes(n, V) : 0; }
void device_sample(Device *d, int n, int V, const SampleRow *rows, const real *logits, unsigned char *seen, void *mem,
                   Sampled *out) {
    d->backend->sample(d, n, V, rows, logits, seen, mem, out);
}
