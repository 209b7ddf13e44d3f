/* none.c: what a program without the CUDA backend has in its place. It lies in the library, where a program that brings
 * the backend's own objects (table.c, open.c) has no need to look for these names. */
#include "../device.h"
#include "../gpus.h"
#include "../marks.h"
#include "../sample.h"
#include "../side.h"

const Ops *cuda_ops(void) { return NULL; }
bool cuda_device_open(Device *d, int number, Err *e) {
    (void)d, (void)number;
    return err_input(e,
                     "device cuda: this program was built without CUDA; take --device cpu, or build with `make cuda`");
}
int device_gpus(char why[200]) {
    *why = 0;
    return 0;
}
void cuda_device_close(Device *d) { (void)d; }
void cuda_device_sync(Device *d) { (void)d; }
const Memory *cuda_device_memory(Device *d, bool host_too) {
    (void)d, (void)host_too;
    return NULL;
}
void cuda_device_write(Device *d, void *to, const void *from, size_t n) { (void)d, (void)to, (void)from, (void)n; }
void cuda_device_read(Device *d, void *to, const void *from, size_t n) { (void)d, (void)to, (void)from, (void)n; }
void cuda_device_copy(Device *d, void *to, const void *from, size_t n) { (void)d, (void)to, (void)from, (void)n; }
void cuda_device_zero(Device *d, void *p, size_t n) { (void)d, (void)p, (void)n; }
void cuda_device_facts(Device *d, DeviceSee *see, void *ctx) { (void)d, (void)see, (void)ctx; }
double cuda_device_seconds(Device *d, void (*work)(void *), void *ctx) {
    (void)d, (void)work, (void)ctx;
    return 0;
}
bool cuda_device_graphs(Device *d) {
    (void)d;
    return false;
}
struct CudaGraph *cuda_device_graph_new(void) {
    return NULL;
}
void cuda_device_graph_free(Device *d, struct CudaGraph *g) { (void)d, (void)g; }
bool cuda_device_graph_run(Device *d, struct CudaGraph *g, void (*work)(void *), void *ctx) {
    (void)d, (void)g, (void)work, (void)ctx;
    return false;
}
struct CudaWords *cuda_device_words_open(Device *d, int room) {
    (void)d, (void)room;
    return NULL;
}
void cuda_device_words_close(Device *d, struct CudaWords *w) { (void)d, (void)w; }
uint32_t *cuda_device_words_begin(Device *d, struct CudaWords *w) {
    (void)d, (void)w;
    return NULL;
}
void cuda_device_words_end(Device *d, struct CudaWords *w, int n, void *to, void *mem) {
    (void)d, (void)w, (void)n, (void)to, (void)mem;
}
bool cuda_device_tuning(Device *d, Tuning *read, const char *path) {
    (void)d, (void)read, (void)path;
    return false;
}
int cuda_device_tune(Device *d, double seconds, Tuning *out) {
    (void)d, (void)seconds, (void)out;
    return 0;
}
void cuda_device_attention(Device *d, AttentionBy by) { (void)d, (void)by; }
void device_logits(Device *d, int64_t n) { (void)d, (void)n; }
Marks *marks_open(Device *d) {
    (void)d;
    return NULL;
}
void marks_close(Marks *m) { (void)m; }
void marks_add(Marks *m) { (void)m; }
int marks_count(const Marks *m) {
    (void)m;
    return 0;
}
void marks_read(Marks *m, double *seconds) { (void)m, (void)seconds; }
bool side_open(int number, int need, Side **out, Err *e) {
    (void)number, (void)need, (void)out;
    return err_input(
        e, "device cuda: this program was built without CUDA; take run.device=cpu, or build with `make cuda`");
}
void side_close(Side *s) { (void)s; }
void *side_stream(Side *s) {
    (void)s;
    return NULL;
}
void *side_take(Side *s, size_t n) {
    (void)s, (void)n;
    return NULL;
}
void side_give(Side *s, void *p) { (void)s, (void)p; }
bool side_follow(Side *s, Device *d) {
    (void)s, (void)d;
    return false;
}
bool side_upload(Side *s, void *to, const void *from, size_t n) {
    (void)s, (void)to, (void)from, (void)n;
    return false;
}
bool side_download(Side *s, void *to, const void *from, size_t n) {
    (void)s, (void)to, (void)from, (void)n;
    return false;
}
bool side_mark(Side *s, int slot) {
    (void)s, (void)slot;
    return false;
}
int side_done(Side *s, int slot) {
    (void)s, (void)slot;
    return -1;
}
const char *side_why(const Side *s) {
    (void)s;
    return "";
}
const char *side_library(void) { return ""; }
void device_halve(Device *d, uint16_t *to, const real *from, size_t n) { (void)d, (void)to, (void)from, (void)n; }
void device_unhalve(Device *d, real *to, const uint16_t *from, size_t n, bool add) {
    (void)d, (void)to, (void)from, (void)n, (void)add;
}
size_t device_sample_bytes(int n, int V) {
    (void)n, (void)V;
    return 0;
}
void device_sample(Device *d, int n, int V, const SampleRow *rows, const real *logits, unsigned char *seen, void *mem,
                   Sampled *out) {
    (void)d, (void)n, (void)V, (void)rows, (void)logits, (void)seen, (void)mem, (void)out;
}
