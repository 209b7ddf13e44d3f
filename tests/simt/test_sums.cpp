/* test_sums.cpp: sums as matrix units make them (sums.cpp), and the tests whose bounds have to hold with them, too. */
#include "ops/cuda/cuda.h"
#include "tests/simt/include/cuda_runtime.h"
#include <criterion/criterion.h>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

Test(truncated_sums, terms_are_cut_off_at_the_largest) {
    static const struct {
        float c;
        double first, other; /* 15 of these */
        float truncated;
    } sums[] = {
        {1, 0, -0x1.8p-24, 1},                   /* each less than the last bit of 1 */
        {1, 0, -0x1.8p-23, 1 - 15 * 0x1p-23f},   /* a half of it is cut off, of every term */
        {0, 0x1.fffffep23, 1, 0x1.00000ep24},    /* 2^24 + 14, as the last bit has no room any more */
        {-0x1.8p-24f, 1, 0, 1},                  /* the sum so far is a term as others are */
        {3, -3, 0x1p-30, 0},                     /* nothing comes back of what was cut off */
        {0, 0, 0, 0},                            /* of nothing */
        {INFINITY, 1, 1, INFINITY},              /* as f32 has it */
        {0x1.fffffep127f, 0x1p127, 0, INFINITY}, /* beyond f32 */
    };
    for (auto &s : sums) {
        double product[16] = {s.first};
        for (int k = 1; k < 16; k++) product[k] = s.other;
        float got = simt_truncated_sum(s.c, product, 16);
        cr_assert(got == s.truncated, "%a + %a + 15 x %a: %a, not %a", (double)s.c, s.first, s.other, (double)got,
                  (double)s.truncated);
    }
}
/* A product of the library, by either: 1 less 31 times 1.5 x 2^-24, which are all cut off, or none. In f32 nothing
 * is. */
Test(truncated_sums, products_in_bf16_have_them) {
    enum { K = 32 };
    char why[200];
    Cuda *c = cuda_start(0, why);
    cr_assert(c, "%s", why);
    float *x = (float *)cuda_take(c, (3 * K + 1) * sizeof(float), false), a[2 * K], got;
    uint16_t *half = (uint16_t *)(x + 2 * K);
    for (int k = 0; k < K; k++) a[k] = k ? -0x1.8p-12f : 1, a[K + k] = k ? 0x1p-12f : 1;
    cuda_upload(c, x, a, sizeof a);
    cuda_cast_to_bf16(c, 2 * K, half, x);
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++)
        for (int truncated = 0; truncated < 2; truncated++) {
            simt_truncate(truncated);
            cuda_gemm(c, {1, 1, K, K, 1, 1, false, false, false, is_bf16 != 0, false}, x + 3 * K,
                      is_bf16 ? (void *)half : x, is_bf16 ? (void *)(half + K) : x + K);
            cuda_download(c, &got, x + 3 * K, sizeof got);
            cr_assert(is_bf16 && truncated ? got == 1 : got < 1 && got > 1 - 0x1p-17f, "bf16 %d, truncated %d: %a",
                      is_bf16, truncated, (double)got);
        }
    cuda_give(c, x);
    cuda_stop(c);
}

/* These tests again, in this program, with truncated sums; with rounded ones they are run by themselves. They are the
 * cheap ones that have most of the ways in which sums are made: products with results of either type, the loss,
 * attention and its gradients, a recurrence by chunks. */
static void again(const char *filter) {
    char exe[512];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    cr_assert(n > 0);
    exe[n] = 0;
    /* BXFI_MAP is set where a test runs this: the runner would take itself for that test. */
    std::string all =
        std::string("SIMT_SUMS=truncated env -u BXFI_MAP '") + exe + "' -j1 --filter '" + filter + "' 2>&1";
    FILE *p = popen(all.c_str(), "r");
    cr_assert(p);
    std::string said;
    for (char buf[512]; fgets(buf, sizeof buf, p);) said += buf;
    int status = pclose(p);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0 && said.find("Tested: 0") == std::string::npos, "%s: %s",
              filter, said.c_str());
}
Test(truncated_sums, products, .timeout = 120) {
    again("@(cuda_products/results*|cuda_bf16/@(products_round*|loss_of*|attention_of_extremes)|acts/"
          "@(products|losses))");
}
Test(truncated_sums, attention, .timeout = 250) { again("cuda_bf16/attention_of_rounded_rows"); }
Test(truncated_sums, recurrences, .timeout = 250) { again("cuda_delta/every_rule"); }
Test(truncated_sums, models, .timeout = 250) { again("cuda_bf16_model/a_run_has_the_cpus_losses"); }
