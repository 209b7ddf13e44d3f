/* test_tuning.c: the file of measured choices: what is written is read back, what cannot be is refused with its line.
 */
#include "ops/ops.h"
#include "ops/tuning.h"
#include "tests/lib/check.h"

static const char head[] = "kvsmith tuning 2\ndevice some device\nprocessors 132\nlibrary 130100\n";
static const char one[] = "product 4 5 6 7 8 9 3 16 16 4 1 2 3 4 5 6 7 ffffffffffffffff 2.5e-05 1e-05\n";

Test(tuning, reads_what_it_writes) {
    Tuning t = {.device = "some device", .processors = 132, .n = 2, .library = 130100}, got;
    TunedProduct p[2] = {
        {.shape = {4, 5, 6, 7, 8, 9}, .flags = 11, .align = {4, 2, 16}, .word = {1, 0, UINT64_MAX}, .best = 1e-5},
        {.shape = {1, 1, 1, 1, 1, INT32_MAX}, .align = {16, 16, 16}, .first = 0.5}};
    Err e = {0};
    t.product = p;
    char *text = tuning_text(&t);
    cr_assert(tuning_parse(&got, text, strlen(text), "file", &e), "%s", e.msg);
    cr_assert(got.n == 2 && got.processors == 132 && got.library == 130100 && !strcmp(got.device, "some device"));
    CHECK_BYTES("products", got.product, p, sizeof p);
    tuning_free(&got);
    /* every cut is noticed */
    for (size_t n = 0; n < strlen(text); n++) {
        e = (Err){0};
        cr_assert(!tuning_parse(&got, text, n, "file", &e) && e.status == EXIT_INPUT && !got.product, "%zu bytes", n);
    }
    free(text);
}
Test(tuning, what_cannot_be_is_refused) {
    static const struct {
        const char *text, *said;
    } bad[] = {{"", "line 1: expected 'kvsmith tuning 2'"},
               {"kvsmith tuning 1\n", "line 1: expected 'kvsmith tuning 2'"},
               {"kvsmith tuning 2\nname x\n", "line 2: expected 'device NAME'"},
               {"kvsmith tuning 2\ndevice x\nprocessors many\n", "line 3: expected 'processors N'"},
               {"kvsmith tuning 2\ndevice x\nprocessors 1\nlibrary -1\n", "line 4: expected 'library N'"},
               {"HEAD", "line 5: expected a product or the end; the file is cut short"},
               {"HEADprodukt 1\n", "line 5: expected 'product ...'"},
               {"HEADproduct 0 5 6 7 8 9 3 16 16 4 1 2 3 4 5 6 7 8 1 1\n", "line 5: expected 'product' with 10 sizes"},
               {"HEADproduct 1 5 6 7 8 9 32 16 16 16 1 2 3 4 5 6 7 8 1 1\n",
                "line 5: expected 'product' with 10 sizes"},
               {"HEADproduct 1 5 6 7 8 9 3 16 0 4 1 2 3 4 5 6 7 8 1 1\n", "line 5: expected 'product' with 10 sizes"},
               {"HEADproduct 1 5 6 7 8 99999999999 3 4 4 4 1 2 3 4 5 6 7 8 1 1\n", "10 sizes, 8 words and 2 times"},
               {"HEADproduct 1 5 6 7 8 9 3 4 4 4 1 2 3 4 5 6 7 g 1 1\n", "10 sizes, 8 words and 2 times"},
               {"HEADproduct 1 5 6 7 8 9 3 4 4 4 1 2 3 4 5 6 7 8 1 nan\n", "10 sizes, 8 words and 2 times"},
               {"HEADproduct 1 5 6 7 8 9 3 4 4 4 1 2 3 4 5 6 7 8 1 1 1\n", "10 sizes, 8 words and 2 times"},
               {"HEADONEend 2\n", "line 6: expected 'end' with the number of products"},
               {"HEADONEend 1\nmore\n", "line 6: expected 'end' with the number of products, and nothing after it"},
               {"HEADONEend one\n", "line 6: expected 'end'"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *rest = bad[i].text;
        bool h = !strncmp(rest, "HEAD", 4), o = h && !strncmp(rest + 4, "ONE", 3);
        char *text = xformat("%s%s%s", h ? head : "", o ? one : "", rest + (h ? 4 : 0) + (o ? 3 : 0));
        Tuning t;
        Err e = {0};
        cr_assert(!tuning_parse(&t, text, strlen(text), "f.txt", &e), "%zu is taken", i);
        cr_assert(e.status == EXIT_INPUT && strstr(e.msg, bad[i].said) && strstr(e.msg, "f.txt: ") && !t.product,
                  "%zu: %s", i, e.msg);
        free(text);
    }
}
/* A device name as long as its place, a line longer than any. */
Test(tuning, lengths_are_bounded) {
    Tuning t;
    Err e = {0};
    char name[700];
    memset(name, 'n', sizeof name - 1), name[sizeof name - 1] = 0;
    for (int n = 60; n < 699; n += 1 + 300 * (n > 70)) {
        char *text = xformat("kvsmith tuning 2\ndevice %.*s\nprocessors 1\nlibrary 1\nend 0\n", n, name);
        e = (Err){0};
        bool ok = tuning_parse(&t, text, strlen(text), "f", &e);
        cr_assert(ok == (n < 64), "%d letters: %s", n, e.msg);
        if (ok) tuning_free(&t);
        free(text);
    }
}
Test(tuning, is_for_a_device) {
    Device *d;
    Tuning t;
    Err e = {0};
    cr_assert(device_open(&d, "cpu", 1, &e));
    cr_assert(!device_tuning(d, "file", &e) && e.status == EXIT_INPUT && strstr(e.msg, "only a GPU uses it"), "%s",
              e.msg);
    e = (Err){0};
    cr_assert(!device_tune(d, 0.1, NULL, &t, &e) && e.status == EXIT_INPUT, "%s", e.msg);
    device_close(d);
}
