/* test_cuda_delta.c: the recurrence by chunks, with operands in bf16, on the CUDA backend, against the reference in wide
 * numbers on the same inputs. */
#include "../recur_ref.h"

static void narrow_open(Rig *g, size_t mem) {
    Err e = {0};
    rig_open(g, rig_first(), 1, mem);
    cr_assert(device_bf16(g->dev, true, &e), "%s", e.msg);
}
static void narrow_close(Rig *g) {
    Err e = {0};
    device_bf16(g->dev, false, &e);
    rig_close(g);
}
static void tell(const char *what, const Scene *c) {
    Rig g;
    double err[RECUR_RESULTS];
    Worst at[RECUR_RESULTS];
    narrow_open(&g, (size_t)256 << 20);
    recur_apart(&g, c, c, err, at);
    fprintf(stderr, "%s:", what);
    for (int i = 0; i < RECUR_RESULTS; i++) fprintf(stderr, " %s %.2g", recur_results[i], err[i]);
    fprintf(stderr, "\n");
    narrow_close(&g);
}
Test(cuda_delta, every_rule, .timeout = 600) {
    for (int k = 0; k < 12; k++) {
        char what[96];
        bool delta = k & 1;
        int gwidth = (int[]){0, 1, 20}[k / 2 % 3];
        Scene *c = recur_case(3, (int[]){0, 145, 70}, (int[]){64, 1, 25, 15, 130}, 5, 1, k < 6 ? 1 : 2, 20, 9, gwidth,
                              delta, true);
        snprintf(what, sizeof what, "delta %d, decay %d, %d value heads", delta, gwidth, c->HV);
        tell(what, c);
        recur_case_free(c);
    }
}
