/* test_bus.c: the simulated bus of `bench decode --bus`: cases worked out by hand. */
#include "tests/lib/check.h"
#include "train/bench/bench_bus.h"

static void waits(const char *what, double rate, bool ahead, int n, const double *bytes, const double *compute,
                  double want) {
    const double got = bus_wait(rate, ahead, n, bytes, compute);
    cr_assert(fabs(got - want) <= 1e-12 * fmax(1, want), "%s: %.17g s, expected %.17g", what, got, want);
}
Test(bus, copies_are_hidden_by_what_is_computed_meanwhile) {
    /* 10 bytes a second: copies of 3, 2 and 4 s */
    const double bytes[] = {30, 20, 40};
    /* slow: asks at 1 s, waits until 3; the second is copied from 3 to 5, asked for at 8; the third from 8 to 12, asked
     * for at 18 */
    waits("slow layers", 10, true, 3, bytes, (double[]){1, 5, 10}, 2);
    /* fast: waits 2; the second is asked for at 4, is there at 5; the third at 5.5, is there at 9 */
    waits("fast layers", 10, true, 3, bytes, (double[]){1, 1, 0.5}, 2 + 1 + 3.5);
    waits("a layer that is just as fast", 10, true, 2, bytes, (double[]){3, 2}, 0);
    waits("nothing computed", 10, true, 3, bytes, (double[]){0, 0, 0}, 9);
    waits("nothing ahead", 10, false, 3, bytes, (double[]){1, 5, 10}, 9);
    waits("one slot", 10, true, 1, bytes, (double[]){1}, 2);
    waits("no slot", 10, true, 0, bytes, (double[]){1}, 0);
    waits("no bytes", 10, true, 2, (double[]){0, 0}, (double[]){0, 0}, 0);
}
Test(bus, layers_that_are_alike) {
    /* 4 slots of 2 s each. The first waits 2 s, and each of 1.5 s computes between the other three. */
    const double ahead = bus_wait_alike(10, true, 4, 80, 6), alone = bus_wait_alike(10, false, 4, 80, 6);
    cr_assert(fabs(ahead - (2 + 3 * 0.5)) < 1e-12 && fabs(alone - 8) < 1e-12, "%g and %g", ahead, alone);
    cr_assert(bus_wait_alike(1e9, true, 0, 0, 6) == 0);
}
