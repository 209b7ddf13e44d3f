/* How far one row of logits is from another. */
#include "infer/eval/task_run.h"
#include "tests/lib/check.h"

Test(against, divergence_of_known_rows) {
    bool same;
    const real even[] = {0, 0}, quarter[] = {1, 1 + (real)1.0986122886681098}, shifted[] = {7, 7};
    double want = 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75), got = logits_kl(even, quarter, 2, &same);
    CHECK_CLOSE("KL(even || 1:3)", &got, &want, 1, 1e-6);
    cr_assert(!same, "the first of two equal logits is the likeliest");
    want = 0.25 * log(0.25 / 0.5) + 0.75 * log(0.75 / 0.5), got = logits_kl(quarter, even, 2, &same);
    CHECK_CLOSE("KL(1:3 || even)", &got, &want, 1, 1e-6);
    got = logits_kl(even, shifted, 2, &same);
    cr_assert(got < 1e-12 && same, "a constant added to all logits: %g", got);
    const real far[] = {200, -200, 0}, none[] = {0, 0, 0};
    want = log(3), got = logits_kl(far, none, 3, &same);
    CHECK_CLOSE("KL(certain || even)", &got, &want, 1, 1e-6);
    cr_assert(same);
}

/* The standard error of a mean, by its definition. */
Test(against, standard_error) {
    TaskScore s = {.samples = 4, .part = 1 + 0.5 + 0 + 0.5, .square = 1 + 0.25 + 0 + 0.25}, sum = {0};
    double want = sqrt((0.25 + 0 + 0.25 + 0) / 3 / 4), got = task_stderr(&s);
    CHECK_CLOSE("standard error", &got, &want, 1, 1e-12);
    task_score_add(&sum, &s), task_score_add(&sum, &s);
    want = sqrt(1.0 / 7 / 8), got = task_stderr(&sum);
    CHECK_CLOSE("of twice as many", &got, &want, 1, 1e-12);
    cr_assert(isnan(task_stderr(&(TaskScore){.samples = 1, .part = 1, .square = 1})));
}
