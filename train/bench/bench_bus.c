/* bench_bus.c: see bench_bus.h. */
#include "bench_bus.h"

double bus_wait(double rate, bool ahead, int n, const double *bytes, const double *compute) {
    CHECK(rate > 0, "a bus of %g bytes a second", rate);
    double now = 0, waited = 0, from = 0; /* from: when the bus may begin with slot k */
    for (int k = 0; k < n; k++) {
        now += compute[k];
        const double there = (ahead ? from : now) + bytes[k] / rate, wait = fmax(0, there - now);
        now += wait, waited += wait;
        from = now;
    }
    return waited;
}
double bus_wait_alike(double rate, bool ahead, int n, double bytes, double compute) {
    double *each = xcalloc(2 * (size_t)n + 1, sizeof *each), *time = each + n, waited;
    for (int k = 0; k < n; k++) each[k] = bytes / n, time[k] = k ? compute / n : 0;
    waited = bus_wait(rate, ahead, n, each, time);
    free(each);
    return waited;
}
