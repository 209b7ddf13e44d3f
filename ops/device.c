/* device.c: opens a backend; isa.c knows which table of the CPU it takes. */
#include "device.h"
#include "oom.h"
#include "file.h"
#include "half.h"
#include "isa_table.h"
#include "procs.h"
#include <omp.h>

/* "", or ":3" */
static bool numbered(const char *s, int *n) {
    if (!*s) return true;
    if (*s++ != ':' || strspn(s, "0123456789") != strlen(s) || strlen(s) < 1 || strlen(s) > 4) return false;
    *n = atoi(s);
    return true;
}

bool device_isa_there(const char *isa, Err *e) {
    const Isa *found;
    return isa_find(isa, &found, e);
}

bool device_bind(char out[DEVICE_NAME_MAX], const char *device, const char *isa, Err *e) {
    bool any = !isa || !strcmp(isa, "auto");
    if (!any && strcmp(device, "cpu") != 0)
        return err_input(e, "isa %.30s: is for device cpu, but the device is %.10s; leave one of them out", isa,
                         device);
    snprintf(out, DEVICE_NAME_MAX, any ? "%s" : "%s:%s", device, isa);
    return true;
}

bool device_open(Device **out, const char *name, int threads, Err *e) {
    int number = 0;
    const Isa *isa;
    bool cuda = !strncmp(name, "cuda", 4) && numbered(name + 4, &number), bound = !strncmp(name, "cpu:", 4);
    if (!cuda && !bound && strcmp(name, "cpu") != 0)
        return err_input(e, "device %s: unknown; this build has: cpu%s", name, cuda_ops() ? ", cuda" : "");
    if (threads < 0 || threads > 1024) return err_input(e, "threads %d: expected 0 (all) to 1024", threads);
    if (bound && !strcmp(name, "cpu:auto")) bound = false;
    if (!bound)
        isa = isa_auto(&bound);
    else if (!isa_find(name + 4, &isa, e))
        return false;
    Device *d = xcalloc(1, sizeof *d);
    d->threads = threads ? threads : procs();
    omp_set_dynamic(0);
    omp_set_num_threads(d->threads);
    d->ops = isa->ops, d->isa = isa->label, d->gemm_bf16 = isa->gemm_bf16;
    if (!(cuda ? cuda_device_open(d, number, e)
               : gemm_bind(bound ? isa->library : LIBRARY_ANY, e) && gemm_open(&d->gemm, e))) {
        free(d);
        return false;
    }
    *out = d;
    return true;
}

void device_close(Device *d) {
    if (!d) return;
    if (d->cuda) cuda_device_close(d);
    gemm_close(d->gemm);
    tuning_free(&d->tuning);
    free(d->halves.at);
    free(d);
}

const Ops *device_ops(const Device *d) { return d->ops; }
int device_threads(const Device *d) { return d->threads; }
const char *device_isa(const Device *d) { return d->isa; }
void device_sync(Device *d) {
    if (d->cuda) cuda_device_sync(d);
}
const Memory *device_memory(Device *d, bool host_too) { return d->cuda ? cuda_device_memory(d, host_too) : NULL; }
void device_write(Device *d, void *to, const void *from, size_t n) {
    half_changed(d, to, n);
    if (d->cuda)
        cuda_device_write(d, to, from, n);
    else
        memcpy(to, from, n);
}
void device_read(Device *d, void *to, const void *from, size_t n) {
    if (d->cuda)
        cuda_device_read(d, to, from, n);
    else
        memcpy(to, from, n);
}
void device_copy(Device *d, void *to, const void *from, size_t n) {
    half_changed(d, to, n);
    if (d->cuda)
        cuda_device_copy(d, to, from, n);
    else
        memcpy(to, from, n);
}
void device_zero(Device *d, void *p, size_t n) {
    half_changed(d, p, n);
    if (d->cuda)
        cuda_device_zero(d, p, n);
    else
        memset(p, 0, n);
}
double device_seconds(Device *d, void (*work)(void *), void *ctx) {
    device_sync(d);
    if (d->cuda) return cuda_device_seconds(d, work, ctx);
    double from = now_seconds();
    work(ctx);
    return now_seconds() - from;
}
bool device_tuning(Device *d, const char *path, Err *e) {
    FileMap f;
    Tuning t;
    Err why = {0};
    if (!d->cuda) return err_input(e, "tuning %.150s: is for device cuda; leave it out, or take --device cuda", path);
    if (!file_map(&f, path, e)) return false;
    bool ok = tuning_parse(&t, f.p, f.n, path, &why);
    file_unmap(&f);
    tuning_free(&d->tuning);
    if (ok)
        cuda_device_tuning(d, &t, path);
    else
        fprintf(stderr, "kvsmith: %s; ignored\n", why.msg);
    return true;
}
bool device_tune(Device *d, double seconds, const char *path, Tuning *out, Err *e) {
    *out = (Tuning){.n = 0};
    if (!d->cuda) return err_input(e, "tuning: is for device cuda; take --device cuda");
    if (!cuda_device_tune(d, seconds, out)) {
        tuning_free(out);
        return err_world(e, "tuning: no product could be measured");
    }
    char *text = path ? tuning_text(out) : NULL;
    bool ok = !path || file_write(path, text, strlen(text), e);
    free(text);
    if (!ok) tuning_free(out);
    return ok;
}
void device_facts(Device *d, DeviceSee *see, void *ctx) {
    if (d->cuda) {
        cuda_device_facts(d, see, ctx);
        return;
    }
    see(ctx, "isa", -1, d->isa);
    see(ctx, "threads", d->threads, NULL);
}
Run run_make(Device *d, Arena *scratch) { return (Run){.ops = d->ops, .dev = d, .scratch = scratch, .host = scratch}; }

bool device_bf16(Device *d, bool on, Err *e) {
    if (d->cuda) {
        d->narrow = on, d->least = NARROW_LEAST;
        return true;
    }
    if (on && !d->gemm_bf16) return err_input(e, "dtype bf16: this build computes in double");
    gemm_use(d->gemm, on ? d->gemm_bf16 : NULL, d->threads, NARROW_LEAST);
#if defined(__x86_64__) && !defined(KV_DOUBLE)
    d->pairs = on && d->ops == &ops_cpu_avx512bf16; /* without the instruction rounding would only cost */
#endif
    return true;
}

bool device_half(const Device *d) { return (d->cuda ? d->narrow : d->pairs) && !d->wide; }

bool device_attention(Device *d, AttentionBy by, Err *e) {
    bool own = by == ATTENTION_AUTO || by == ATTENTION_OWN;
    if (!d->cuda && !own) return err_input(e, "attention cudnn: is for device cuda; leave it out, or take device cuda");
    if (!d->narrow && !own) return err_input(e, "attention cudnn: computes in bf16; expected dtype bf16, got f32");
    if (d->cuda) cuda_device_attention(d, by);
    return true;
}

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(KV_DOUBLE)
/* Whether the processor multiplies bf16. */
static bool has_instruction(const Device *d) { return strstr(d->isa, "bf16"); }
#endif
bool device_bf16_pays(Device *d) {
    if (d->cuda) return true;
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(KV_DOUBLE)
    enum { M = 512, N = 512, K = 512, TIMES = 9 };
    if (!has_instruction(d)) return false;
    GemmShape s = {M, N, K, .lda = K, .ldb = K, .ldc = N, .tb = true, .weights = N * K};
    real *x = xcalloc(M * K + N * K + M * N, sizeof *x), *y = x + M * K, *z = y + N * K;
    double best[2] = {1e9, 1e9};
    Arena pad = {0};
    Err e = {0};
    for (int i = -1; i < TIMES; i++) /* in turn, so that a machine that is busy for a while is so for both */
        for (int on = 0; on < 2; on++) {
            gemm_use(d->gemm, on ? d->gemm_bf16 : NULL, d->threads, 0);
            double from = now_seconds();
            gemm(d->gemm, &pad, s, z, x, y);
            if (i >= 0) best[on] = fmin(best[on], now_seconds() - from);
            if (i < 0 && on && !arena_open(&pad, "probe", pad.peak, false, &e)) oom_exit(e.msg);
        }
    arena_close(&pad);
    gemm_use(d->gemm, NULL, 0, 0);
    free(x);
    return best[0] > best[1];
#else
    return false;
#endif
}
