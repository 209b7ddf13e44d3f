/* test_cuda_double.c: a training step of the small models on the device beside the double build's, by field: what the
 * CPU's f32 and the device's could have in common is found here. CHECK_ORACLE names the file (tests/oracle). */
#include "tests/oracle/oracle.h"
#include "tests/lib/rig.h"
#include <libgen.h>

static FILE *oracle(void) {
    const char *path = getenv("CHECK_ORACLE"), *program = getenv("KVSMITH");
    char *copy = xformat("%s", program ? program : KVSMITH_PATH);
    char *beside = xformat("%s/../gpu/oracle.bin", dirname(copy));
    FILE *f = fopen(path ? path : beside, "rb");
    cr_assert(f, "%s: cannot be read; make gpu-bundle writes it", path ? path : beside);
    free(copy), free(beside);
    return f;
}
/* Rounding of a step in f32: 2e-5 on the CPU where recurrences magnify it. Where a row or an expert is chosen the
 * choice itself may fall differently in double: such models are held to the CPU's f32 alone (cuda_model). */
static const double tol = 1e-4;
static bool chooses(const Animal *a) { return zoo_decides(a) || strstr(a->json, "\"moe\""); }

Test(cuda_double, gradients_are_the_double_builds, .timeout = 300) {
    FILE *f = oracle();
    int ran = 0;
    bool emulated = false;
    for (int i = 0; i < zoo_count(); i++) {
        char name[ORACLE_NAME], msg[512];
        int64_t n;
        Oracle k;
        Err e = {0};
        cr_assert(fread(name, 1, sizeof name, f) == sizeof name && fread(&n, sizeof n, 1, f) == 1 && n > 0 &&
                      n < 1 << 20 && !strcmp(name, zoo[i].name),
                  "the file is not of these models: %.60s", name);
        double *want = xcalloc((size_t)n, sizeof *want);
        cr_assert(fread(want, sizeof *want, (size_t)n, f) == (size_t)n, "the file is cut short");
        if (i == 0) {
            Device *d;
            cr_assert(device_open(&d, "cuda", 1, &e), "%s", e.msg);
            emulated = rig_emulated(d);
            device_close(d);
        }
        /* Emulation is slow: some; a device: all. */
        if (!chooses(&zoo[i]) && (!emulated || i % 9 == 1) && oracle_step(&k, &zoo[i], "cuda", &e)) {
            cr_assert((size_t)n == k.n, "%s: %zu numbers, want %lld", zoo[i].name, k.n, (long long)n);
            for (int j = 0; j < k.fields; j++) {
                const double *x = want + k.field[j].at, *y = k.v + k.field[j].at;
                double norm = 0;
                for (size_t q = 0; q < k.field[j].n; q++) norm += x[q] * x[q];
                char *what = xformat("%s: %s", zoo[i].name, k.field[j].path);
                bool ok = norm > 1e-20 ? check_rms(msg, what, CHECK_VIEW(y), CHECK_VIEW(x), k.field[j].n, tol)
                                       : check_close(msg, what, CHECK_VIEW(y), CHECK_VIEW(x), k.field[j].n, 1e-6);
                cr_assert(ok, "%s", msg);
                free(what);
            }
            free(k.v);
            ran++;
        }
        free(want);
    }
    cr_assert(ran >= (emulated ? 5 : 40), "%d models", ran);
    fclose(f);
}
