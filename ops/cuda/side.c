/* side.c: ops/side.h over the device's own calls. */
#include "../side.h"
#include "../device.h"
#include "cuda.h"

struct Side {
    CudaSide *cuda;
};

bool side_open(int number, int need, Side **out, Err *e) {
    char why[200] = "";
    int devices = 0;
    CudaSide *c = cuda_side_start(number, &devices, why);
    if (c && devices < need) {
        cuda_side_stop(c);
        c = NULL;
        *why = 0;
    }
    if (!c && devices && devices < need)
        return err_world(e,
                         "device cuda: %d ranks on this host, this one sees %d device%s: each rank takes the device of "
                         "its number on the host; start fewer, or let each see all of them",
                         need, devices, devices == 1 ? "" : "s");
    if (!c) return err_world(e, "device cuda: %s", why);
    *out = xcalloc(1, sizeof **out);
    (*out)->cuda = c;
    return true;
}
void side_close(Side *s) {
    if (!s) return;
    cuda_side_stop(s->cuda);
    free(s);
}
void *side_stream(Side *s) { return cuda_side_stream(s->cuda); }
void *side_take(Side *s, size_t n) {
    (void)s;
    return cuda_side_take(n);
}
void side_give(Side *s, void *p) {
    (void)s;
    cuda_side_give(p);
}
bool side_follow(Side *s, Device *d) { return cuda_side_follow(s->cuda, d->cuda); }
bool side_upload(Side *s, void *to, const void *from, size_t n) { return cuda_side_upload(s->cuda, to, from, n); }
bool side_download(Side *s, void *to, const void *from, size_t n) { return cuda_side_download(s->cuda, to, from, n); }
bool side_mark(Side *s, int slot) { return cuda_side_mark(s->cuda, slot); }
int side_done(Side *s, int slot) { return cuda_side_done(s->cuda, slot); }
const char *side_why(const Side *s) { return cuda_side_why(s->cuda); }
const char *side_library(void) { return cuda_side_library(); }
void device_halve(Device *d, uint16_t *to, const real *from, size_t n) { cuda_halve(d->cuda, n, to, from); }
void device_unhalve(Device *d, real *to, const uint16_t *from, size_t n, bool add) {
    cuda_unhalve(d->cuda, n, to, from, add);
}
