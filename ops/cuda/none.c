/* none.c: what a program without the CUDA backend has in its place. It lies in the library, where a program that brings
 * the backend's own objects (table.c, open.c) has no need to look for these names. */
#include "../device.h"

const Ops *cuda_ops(void) { return NULL; }
bool cuda_device_open(Device *d, Err *e) {
    (void)d;
    return err_input(e,
                     "device cuda: this program was built without CUDA; take --device cpu, or build with `make cuda`");
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
bool cuda_device_tuning(Device *d, Tuning *read, const char *path) {
    (void)d, (void)read, (void)path;
    return false;
}
int cuda_device_tune(Device *d, double seconds, Tuning *out) {
    (void)d, (void)seconds, (void)out;
    return 0;
}
