/* test_regions.c: the list of a run's memory: what is added under one name, what is left out, whose memory it is. */
#include "ops/host.h"
#include "train/regions.h"
#include "tests/lib/check.h"

Test(regions, bytes_of_one_name_are_added) {
    enum { MANY = 100 };
    static const char *const names[] = {"weights", "gradients"};
    Arena mapped = {0}, measured = {.peak = 1000};
    Regions r, copy = {0};
    Err e = {0};
    cr_assert(arena_open(&mapped, "mapped", 4096, false, &e), "%s", e.msg);
    arena_take(&mapped, 100, "a part");
    for (int peaks = 0; peaks < 2; peaks++) {
        const size_t have = peaks ? mapped.peak : mapped.size;
        cr_assert(mapped.peak && mapped.peak < mapped.size);
        regions_begin(&r, NULL, peaks);
        regions_add(&r, names[0], &mapped, 0);
        regions_add(&r, names[1], &measured, REGION_IF_ANY);
        regions_add(&r, names[0], &measured, REGION_HOST);
        regions_bytes(&r, "nothing", 0, REGION_IF_ANY);
        regions_bytes(&r, "empty", 0, 0);
        cr_assert(r.n == 3 && r.total == have + 2000 && r.host == r.total, "%d regions, %zu of %zu bytes", r.n, r.host,
                  r.total);
        cr_assert(r.region[0].bytes == have + 1000 && r.region[1].bytes == 1000 && r.region[2].bytes == 0);
        for (int i = 0; i < 2; i++) cr_assert_str_eq(r.region[i].name, names[i]);
        regions_copy(&copy, &r);
        regions_free(&r);
        cr_assert(copy.n == 3 && copy.total == have + 2000 && copy.region[0].bytes == have + 1000);
    }
    /* As many as anybody has; a copy is a list of its own. */
    char name[MANY][16];
    for (int i = 0; i < MANY; i++) {
        snprintf(name[i], sizeof name[i], "r%d", i);
        regions_bytes(&copy, name[i], (size_t)i, 0);
    }
    cr_assert(copy.n == 3 + MANY && copy.region[MANY + 2].bytes == MANY - 1);
    regions_free(&copy);
    arena_close(&mapped);
}

/* A trainer on a device has these too, see simt/test_cuda_run.c. */
Test(regions, on_a_device_the_host_has_what_says_so) {
    Arena a = {.peak = 64};
    Regions r;
    regions_begin(&r, NULL, false);
    r.apart = true;
    regions_add(&r, "there", &a, 0);
    regions_add(&r, "here", &a, REGION_HOST);
    cr_assert(r.total == 128 && r.host == 64, "%zu of %zu", r.host, r.total);
    regions_free(&r);
}
