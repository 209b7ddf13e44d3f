/* The comparisons that every other suite relies on must themselves be able to fail. */
#ifndef KV_DOUBLE
    #include "tests/lib/check.h"

Test(check, close_names_the_worst) {
    char m[512];
    float a[] = {1, 2, 3}, b[] = {1, 2.5f, 3};
    cr_assert(check_close(m, "x", CHECK_VIEW(a), CHECK_VIEW(b), 3, 0.5));
    cr_assert(!check_close(m, "x", CHECK_VIEW(a), CHECK_VIEW(b), 3, 0.4));
    cr_assert(strstr(m, "at 1 of 3: got 2, want 2.5"), "%s", m);
}
Test(check, nan_fails_wherever_it_stands) {
    char m[512];
    double good[] = {1, 2, 3}, big[] = {9, 2, 3};
    for (int i = 0; i < 3; i++) {
        double bad[] = {1, 2, 3};
        bad[i] = NAN;
        cr_assert(!check_close(m, "x", CHECK_VIEW(bad), CHECK_VIEW(good), 3, 1e9));
        cr_assert(!check_close(m, "x", CHECK_VIEW(good), CHECK_VIEW(bad), 3, 1e9));
        cr_assert(!check_relative(m, "x", CHECK_VIEW(bad), CHECK_VIEW(big), 3, 1e9));
        cr_assert(!check_rms(m, "x", CHECK_VIEW(bad), CHECK_VIEW(good), 3, 1e9));
        char want[32];
        check_close(m, "x", CHECK_VIEW(bad), CHECK_VIEW(big), 3, 1e9);
        snprintf(want, sizeof want, "nan at %d of 3", i);
        cr_assert(strstr(m, want), "%s", m);
    }
}
Test(check, infinities) {
    char m[512];
    float a[] = {-INFINITY}, b[] = {-INFINITY}, c[] = {INFINITY};
    cr_assert(check_close(m, "x", CHECK_VIEW(a), CHECK_VIEW(b), 1, 0));
    cr_assert(!check_close(m, "x", CHECK_VIEW(a), CHECK_VIEW(c), 1, 1e30));
}
Test(check, relative_and_rms) {
    char m[512];
    float a[] = {100, 1.5f};
    double b[] = {100, 1};
    cr_assert(check_relative(m, "x", CHECK_VIEW(a), CHECK_VIEW(b), 2, 5.1e-3));
    cr_assert(!check_relative(m, "x", CHECK_VIEW(a), CHECK_VIEW(b), 2, 4.9e-3));
    cr_assert(check_rms(m, "x", CHECK_VIEW(a), CHECK_VIEW(b), 2, 5.1e-3));
    cr_assert(!check_rms(m, "x", CHECK_VIEW(a), CHECK_VIEW(b), 2, 4.9e-3));
}
Test(check, tensor_prints_the_index) {
    char m[512];
    float a[24] = {0}, b[24] = {0};
    a[17] = 1; /* (1,1,1) of (2,3,4) */
    Tensor g = TENSOR(a, F32, 2, 3, 4), w = TENSOR(b, F32, 2, 3, 4);
    cr_assert(!check_tensor(m, "x", g, w, 1));
    cr_assert(strstr(m, "at (1,1,1) of 24"), "%s", m);
    cr_assert(check_tensor(m, "x", w, w, 0));
}
Test(check, bytes) {
    char m[512];
    cr_assert(check_bytes(m, "x", "abc", "abd", 2));
    cr_assert(!check_bytes(m, "x", "abc", "abd", 3));
    cr_assert(strstr(m, "byte 2"), "%s", m);
}
Test(check, files) {
    char *p = check_path("a\x01"), *back;
    size_t n;
    cr_assert(check_entries(check_dir()) == 0);
    check_write(p, "x\0y", 3);
    back = check_read(p, &n);
    cr_assert(n == 3 && !memcmp(back, "x\0y", 4));
    cr_assert(check_exists(p) && !check_exists(check_path("b")));
    cr_assert(check_entries(check_dir()) == 1);
}
Test(check, refusals) {
    char m[512], line[400] = "kvsmith: bad\n";
    Ran r = {.status = 2, .out = "", .err = line, .err_n = strlen(line)};
    cr_assert(check_refused(m, r, 2, "bad"));
    cr_assert(!check_refused(m, r, 1, "bad"));
    cr_assert(!check_refused(m, r, 2, "good"));
    r.out_n = 1;
    cr_assert(!check_refused(m, r, 2, "bad"));
    r.out_n = 0, r.err = "a\nb\n", r.err_n = 4;
    cr_assert(!check_refused(m, r, 2, NULL));
    memset(line, 'x', 301), strcpy(line + 301, "\n"), r.err = line, r.err_n = 302;
    cr_assert(!check_refused(m, r, 2, NULL));
    Ran sh = check_run_argv((const char *const[]){"sh", "-c", "echo out; echo err >&2; kill -9 $$", NULL});
    cr_assert(sh.status == 137 && !strcmp(sh.out, "out\n") && !strcmp(sh.err, "err\n"));
}
#endif
