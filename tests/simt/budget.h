/* budget.h: what a kernel may ask of memory; of two tables, one for each file that makes the launches. */
#pragma once
#include <criterion/criterion.h>
#include "ops/cuda/cuda.h"
#include "tests/simt/include/cuda_runtime.h"

struct Budget {
    const char *kernel = nullptr; /* nullptr: the end */
    double read = 0, written = 0; /* bytes per number of the largest operand, at most */
    double sectors = 1;           /* of the least */
    double n = 0;                 /* numbers of that operand; 0: as many as the table says */
    double waves = 1.05;          /* of the least */
};
extern const Budget budgets[], budgets_along[];
extern const char *const budgets_flash[]; /* names of those with a table of their own */

/* Every line against what was launched so far; one that asks for far less is not up to date. */
static inline void budgets_hold(const Budget *all, double numbers) {
    for (const Budget *w = all; w->kernel; w++) {
        const SimtEstimate *e = simt_estimate(w->kernel);
        cr_assert(e, "%s was not launched", w->kernel);
        double count = w->n > 0 ? w->n : numbers, waves = w->waves;
        cr_expect(e->read / count <= w->read && e->read / count >= 0.8 * w->read - 0.1,
                  "%s reads %g bytes a number, budget %g", w->kernel, e->read / count, w->read);
        cr_expect(e->written / count <= w->written && e->written / count >= 0.8 * w->written - 0.1,
                  "%s writes %g bytes a number, budget %g", w->kernel, e->written / count, w->written);
        cr_expect(e->sectors <= w->sectors * e->least_sectors, "%s: %g times the least sectors, budget %g", w->kernel,
                  e->sectors / e->least_sectors, w->sectors);
        cr_expect(e->waves <= waves * e->least_waves, "%s: conflict factor %g, budget %g", w->kernel,
                  e->waves / e->least_waves, waves);
    }
}
