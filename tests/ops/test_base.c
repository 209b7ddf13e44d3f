/* Floor 0: errors, memory, random numbers, shapes. */
#include "tests/lib/check.h"
#include "ops/text.h"
#include "ops/arena.h"
#include <criterion/redirect.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- errors -------------------------------------------------------------------------------------------------------
 */
Test(base, err_fills_one_line) {
    Err e = {0};
    cr_assert(!err_input(&e, "%s: expected %d", "key", 3));
    cr_assert(e.status == EXIT_INPUT && !strcmp(e.msg, "key: expected 3"), "%d %s", e.status, e.msg);
    cr_assert(!err_runtime(&e, "disk"));
    cr_assert(e.status == EXIT_RUNTIME && !strcmp(e.msg, "disk"));
    cr_assert(!err_input(NULL, "nobody listens %d", 1));
    cr_assert(!err_runtime(NULL, "nobody listens"));
}
Test(base, err_is_cut_at_300) {
    char long_text[700];
    for (int n = 295; n <= 600; n++) {
        memset(long_text, 'x', (size_t)n);
        long_text[n] = 0;
        Err e = {0};
        err_input(&e, "%s", long_text);
        int want = n <= 300 ? n : 300;
        cr_assert((int)strlen(e.msg) == want, "%d characters became %zu", n, strlen(e.msg));
        cr_assert(!strcmp(e.msg + want - 3, n <= 300 ? "xxx" : "..."), "%d: ends in %s", n, e.msg + want - 3);
    }
}
Test(base, err_has_no_control_characters) {
    for (int c = 1; c < 256; c++) {
        Err e = {0};
        err_input(&e, "a%cb", c);
        bool control = c < 32 || c == 127;
        cr_assert((unsigned char)e.msg[1] == (control ? '?' : c) && e.msg[0] == 'a' && e.msg[2] == 'b', "%d: %s", c,
                  e.msg);
    }
}
Test(base, err_errno_knows_whose_fault) {
    const int users[] = {ENOENT, ENOTDIR, EISDIR, EACCES}, worlds[] = {ENOSPC, EIO, ENOMEM, EDQUOT};
    for (int i = 0; i < 4; i++) {
        Err a = {0}, b = {0};
        errno = users[i];
        cr_assert(!err_errno(&a, "open", "/x") && a.status == EXIT_INPUT, "%s", a.msg);
        cr_assert(strstr(a.msg, "open /x: "), "%s", a.msg);
        errno = worlds[i];
        cr_assert(!err_errno(&b, "write", "/x") && b.status == EXIT_RUNTIME, "%s", b.msg);
    }
}
Test(base, check_names_place_and_values) {
    FILE *f = tmpfile();
    fflush(stderr);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(fileno(f), 2);
        int n = 5;
        CHECK(n == 4, "n %d", n);
        _exit(0);
    }
    char line[512] = "";
    int st;
    cr_assert(waitpid(pid, &st, 0) == pid);
    cr_assert((st & 0x7f) == SIGABRT, "status %x", st);
    rewind(f);
    cr_assert(fgets(line, sizeof line, f));
    cr_assert(strstr(line, "test_base.c:") && strstr(line, "n == 4") && strstr(line, "n 5"), "%s", line);
}

/* ---- memory -------------------------------------------------------------------------------------------------------
 */
static bool all_ones(const void *p, size_t n) {
    const unsigned char *c = p;
    for (size_t i = 0; i < n; i++)
        if (c[i] != 0xFF) return false;
    return true;
}
static void takes(Arena *a, const size_t n[], int k, void *out[]) {
    for (int i = 0; i < k; i++) out[i] = arena_take(a, n[i], "thing");
}
Test(base, arena_measures_what_it_places) {
    const size_t n[] = {0, 1, 63, 64, 65, 1000, 4096};
    void *at[7];
    Err e = {0};
    Arena m = {.name = "m"}, a;
    takes(&m, n, 7, at);
    for (int i = 0; i < 7; i++) cr_assert_null(at[i]);
    cr_assert(arena_open(&a, "a", m.peak, true, &e), "%s", e.msg);
    takes(&a, n, 7, at);
    cr_assert(a.used == m.used && a.peak == m.peak, "%zu %zu, measured %zu %zu", a.used, a.peak, m.used, m.peak);
    for (int i = 0; i < 7; i++) {
        cr_assert((uintptr_t)at[i] % 64 == 0, "take %d at %p", i, at[i]);
        cr_assert(all_ones(at[i], n[i]), "take %d is not poisoned", i);
        memset(at[i], i, n[i]); /* every byte is ours and nobody else's */
    }
    for (int i = 0; i < 7; i++)
        for (size_t j = 0; j < n[i]; j++) cr_assert(((char *)at[i])[j] == i, "take %d overlaps another", i);
    arena_guards(&a);
    arena_close(&a);
    cr_assert_null(a.base);
}
Test(base, arena_is_a_stack_with_a_named_peak) {
    Err e = {0};
    Arena a;
    cr_assert(arena_open(&a, "a", 4096, true, &e));
    arena_take(&a, 64, "low");
    Mark mark = arena_mark(&a);
    char *p = arena_take(&a, 1000, "high");
    memset(p, 0, 1000);
    size_t peak = a.used;
    arena_release(&a, mark);
    cr_assert(a.used == mark.used && a.peak == peak && !strcmp(a.peak_at, "high"), "%zu %zu %s", a.used, a.peak,
              a.peak_at);
    cr_assert(all_ones(p, 1000), "released memory is not poisoned");
    cr_assert(arena_take(&a, 8, "again") == (void *)p);
    cr_assert(a.peak == peak && !strcmp(a.peak_at, "high"));
    arena_close(&a);
}
Test(base, arena_poison_reads_as_nan) {
    Err e = {0};
    Arena a;
    cr_assert(arena_open(&a, "a", 4096, true, &e));
    Tensor f = arena_tensor(&a, "f", F32, 1, (int[]){5}), d = arena_tensor(&a, "d", F64, 2, (int[]){2, 3});
    for (int i = 0; i < 5; i++) cr_assert(isnan(((float *)f.p)[i]));
    for (int i = 0; i < 6; i++) cr_assert(isnan(((double *)d.p)[i]));
    arena_close(&a);
}
/* Each way to hurt a guard, and each place where it is looked at. */
static void hurt(int where, int offset) {
    Err e = {0};
    Arena a;
    cr_assert(arena_open(&a, "a", 4096, false, &e));
    Mark mark = arena_mark(&a);
    char *p = arena_take(&a, 100, "victim");
    arena_take(&a, 100, "neighbour");
    p[100 + offset] ^= 1;
    if (where == 0) arena_release(&a, mark);
    if (where == 1) arena_guards(&a);
    if (where == 2) arena_close(&a);
}
Test(base, guard_first_byte_release, .signal = SIGABRT, .init = cr_redirect_stderr) { hurt(0, 0); }
Test(base, guard_last_byte_release, .signal = SIGABRT, .init = cr_redirect_stderr) { hurt(0, 63); }
Test(base, guard_at_guards, .signal = SIGABRT, .init = cr_redirect_stderr) { hurt(1, 5); }
Test(base, guard_at_close, .signal = SIGABRT, .init = cr_redirect_stderr) { hurt(2, 0); }
Test(base, arena_full, .signal = SIGABRT, .init = cr_redirect_stderr) {
    Arena a;
    cr_assert(arena_open(&a, "a", 256, false, NULL));
    arena_take(&a, 257 - 64, "too much");
}
Test(base, arena_take_of_absurd_size, .signal = SIGABRT, .init = cr_redirect_stderr) {
    Arena a = {0};
    arena_take(&a, SIZE_MAX - 8, "absurd");
}
Test(base, arena_release_above_the_top, .signal = SIGABRT, .init = cr_redirect_stderr) {
    Arena a;
    cr_assert(arena_open(&a, "a", 256, false, NULL));
    arena_take(&a, 8, "x");
    Mark mark = arena_mark(&a);
    arena_release(&a, (Mark){0});
    arena_release(&a, mark);
}
Test(base, arena_of_more_than_there_is) {
    Err e = {0};
    Arena a;
    cr_assert(!arena_open(&a, "weights", SIZE_MAX / 4, false, &e));
    cr_assert(e.status == EXIT_RUNTIME && strstr(e.msg, "weights") && strstr(e.msg, "4.0 EiB"), "%s", e.msg);
}
Test(base, arena_of_nothing) {
    Err e = {0};
    Arena a;
    cr_assert(arena_open(&a, "none", 0, true, &e));
    arena_guards(&a);
    arena_close(&a);
}

/* ---- tensors and fields -------------------------------------------------------------------------------------------
 */
Test(base, tensor_shapes) {
    char s[64];
    const int big = INT32_MAX;
    Tensor t = TENSOR(NULL, F32, 2, 3, 4);
    cr_assert(tensor_count(t) == 24 && tensor_bytes(t) == 96 && present(t) && !strcmp(tensor_shape(t, s), "(2,3,4)"));
    cr_assert(tensor_bytes(TENSOR(NULL, BF16, 5)) == 10 && tensor_bytes(TENSOR(NULL, F16, 5)) == 10);
    cr_assert(tensor_bytes(TENSOR(NULL, F64, 5)) == 40);
    cr_assert(tensor_count(TENSOR(NULL, F32, 4, 0, 7)) == 0 && present(TENSOR(NULL, F32, 4, 0, 7)));
    cr_assert(tensor_count(ABSENT) == 0 && tensor_bytes(ABSENT) == 0 && !present(ABSENT));
    cr_assert(tensor_count(TENSOR(NULL, F32, big, 4)) == (size_t)big * 4, "counts are not 32 bits wide");
    cr_assert(!strcmp(tensor_shape(TENSOR(NULL, F32, big, big, big, big), s),
                      "(2147483647,2147483647,2147483647,2147483647)"));
    Tensor r = tensor_rows(t, 8);
    cr_assert(r.rank == 2 && r.n[0] == 3 && r.n[1] == 8 && r.dtype == F32);
    cr_assert(!strcmp(dtype_name(F64), "F64") && !strcmp(dtype_name(F32), "F32") && !strcmp(dtype_name(BF16), "BF16") &&
              !strcmp(dtype_name(F16), "F16"));
    cr_assert(dtype_size(REAL) == sizeof(real));
}
Test(base, tensor_negative_size, .signal = SIGABRT, .init = cr_redirect_stderr) { TENSOR(NULL, F32, 2, -1); }
Test(base, tensor_rank_5, .signal = SIGABRT, .init = cr_redirect_stderr) { TENSOR(NULL, F32, 1, 1, 1, 1, 1); }
Test(base, tensor_uneven_rows, .signal = SIGABRT, .init = cr_redirect_stderr) {
    tensor_rows(TENSOR(NULL, F32, 2, 3), 4);
}
Test(base, tensor_of_another_type, .signal = SIGABRT, .init = cr_redirect_stderr) { R(TENSOR(NULL, BF16, 2)); }

typedef struct {
    Tensor a, b;
} Two;
static void two(Two *t, Fields *f) {
    field(f, &t->a, "a.weight", FIELD_RESIDUAL, 3, 4);
    field(f, &t->b, "b.bias", FIELD_ZEROS | FIELD_NODECAY, 5);
}
static void note(Fields *f, Tensor *t, const char *path, unsigned flags) {
    char s[64], *log = f->ctx;
    snprintf(log + strlen(log), 256 - strlen(log), "%s %s %u;", path, tensor_shape(*t, s), flags);
}
Test(base, fields_are_declared_once_and_visited) {
    char log[256] = "";
    Two t = {0};
    Fields f = {.see = note, .ctx = log, .scope = "model.layers.3."};
    two(&t, &f);
    cr_assert(!strcmp(log, "model.layers.3.a.weight (3,4) 8;model.layers.3.b.bias (5) 6;"), "%s", log);
    Arena m = {.name = "m"}, a;
    Fields measure = arena_placer(&m);
    two(&t, &measure);
    cr_assert_null(t.a.p);
    cr_assert(arena_open(&a, "a", m.peak, true, NULL));
    Fields place = arena_placer(&a), zero = fields_zero();
    two(&t, &place);
    cr_assert(t.a.dtype == REAL && t.a.p && t.b.p && a.used == m.peak);
    cr_assert(isnan(R(t.a)[11]) && isnan(R(t.b)[4]));
    two(&t, &zero);
    for (int i = 0; i < 12; i++) cr_assert(R(t.a)[i] == 0);
    for (int i = 0; i < 5; i++) cr_assert(R(t.b)[i] == 0);
    arena_close(&a);
}

/* ---- random numbers -----------------------------------------------------------------------------------------------
 */
/* Runs are repeated from their seed alone, so the numbers may never change: splitmix64's first output for state 0 is
 * published (0xE220A8397B1DCDAF), the others were computed from the formula by another program. */
Test(base, rng_is_what_it_was) {
    cr_assert_eq(rng_mix(0, 0), UINT64_C(0xa706dd2f4d197e6f));
    cr_assert_eq(rng_mix(1, 2), UINT64_C(0xbcd9dbb49673066b));
    cr_assert_eq(rng_mix(UINT64_MAX, UINT64_C(0x123456789abcdef)), UINT64_C(0x2e3330848685d45a));
    cr_assert_eq(rng_name(7, "wq"), UINT64_C(0xe396a91188d5395e));
    cr_assert(rng_name(0, "ab") != rng_name(rng_name(0, "a"), "b"), "names run into each other");
    cr_assert(rng_name(0, "") != rng_name(0, "a") && rng_name(0, "") != 0);
}
enum { DRAWS = 200000 };
Test(base, rng_uniform_is_uniform) {
    for (uint64_t key = 0; key < 3; key++) {
        double sum = 0, square = 0, lag = 0, last = 0.5;
        int bin[64] = {0};
        for (uint64_t i = 0; i < DRAWS; i++) {
            double u = rng_uniform(key, i);
            cr_assert(u > 0 && u < 1, "%g", u);
            sum += u - 0.5, square += (u - 0.5) * (u - 0.5), lag += (u - 0.5) * (last - 0.5);
            bin[(int)(u * 64)]++;
            last = u;
        }
        double chi = 0, want = DRAWS / 64.0;
        for (int i = 0; i < 64; i++) chi += (bin[i] - want) * (bin[i] - want) / want;
        cr_assert(fabs(sum / DRAWS) < 5 * sqrt(1 / 12.0 / DRAWS), "mean %g", sum / DRAWS);
        cr_assert(fabs(square / DRAWS - 1 / 12.0) < 5 * sqrt(1 / 180.0 / DRAWS), "variance %g", square / DRAWS);
        cr_assert(fabs(lag / DRAWS) < 5 / 12.0 / sqrt(DRAWS), "correlation %g", lag / DRAWS);
        cr_assert(chi > 20 && chi < 130, "chi square of 63 degrees: %g", chi);
    }
}
Test(base, rng_normal_is_normal) {
    double m[5] = {0}, tail = 0, across = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double x = rng_normal(42, i), p = 1;
        for (int k = 1; k <= 4; k++) m[k] += p *= x;
        tail += fabs(x) > 3;
        across += x * rng_normal(43, i);
    }
    const double want[5] = {1, 0, 1, 0, 3}, var[5] = {0, 1, 2, 15, 96};
    for (int k = 1; k <= 4; k++)
        cr_assert(fabs(m[k] / DRAWS - want[k]) < 5 * sqrt(var[k] / DRAWS), "moment %d: %g", k, m[k] / DRAWS);
    cr_assert(fabs(tail / DRAWS - 0.0026998) < 5 * sqrt(0.0027 / DRAWS), "beyond 3: %g", tail / DRAWS);
    cr_assert(fabs(across / DRAWS) < 5 / sqrt(DRAWS), "streams of two keys correlate: %g", across / DRAWS);
}
Test(base, rng_permute_is_a_permutation) {
    char *seen = xcalloc(70000, 1);
    const uint64_t more[] = {1000, 1024, 1025, 4096, 65537};
    for (uint64_t c = 1; c <= 305; c++) {
        uint64_t n = c <= 300 ? c : more[c - 301];
        memset(seen, 0, n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = rng_permute(c * 77, i, n);
            cr_assert(at < n && !seen[at], "n %lu: %lu twice or outside", (unsigned long)n, (unsigned long)at);
            seen[at] = 1;
        }
    }
    free(seen);
}
Test(base, rng_permute_mixes) {
    enum { N = 100, KEYS = 20000 };
    static int at[N];
    double fixed = 0, ordered = 0;
    for (uint64_t key = 0; key < KEYS; key++) {
        at[rng_permute(key, 0, N)]++;
        for (uint64_t i = 0; i < N; i++) fixed += rng_permute(key, i, N) == i;
        ordered += rng_permute(key, 10, N) < rng_permute(key, 11, N);
    }
    double chi = 0;
    for (int i = 0; i < N; i++) chi += (at[i] - KEYS / (double)N) * (at[i] - KEYS / (double)N) / (KEYS / (double)N);
    cr_assert(chi > 45 && chi < 180, "where element 0 goes: chi square of 99 degrees %g", chi);
    cr_assert(fabs(fixed / KEYS - 1) < 0.05, "%g fixed points a permutation, expected 1", fixed / KEYS);
    cr_assert(fabs(ordered / KEYS - 0.5) < 0.02, "neighbours keep their order %g of the time", ordered / KEYS);
}
Test(base, rng_permute_of_huge_ranges) {
    const uint64_t n[] = {(UINT64_C(1) << 40) + 3, (UINT64_C(1) << 63) + 1, UINT64_MAX};
    for (int c = 0; c < 3; c++) {
        uint64_t got[300];
        for (uint64_t i = 0; i < 300; i++) {
            got[i] = rng_permute(9, n[c] - 1 - i, n[c]);
            cr_assert(got[i] < n[c]);
            for (uint64_t j = 0; j < i; j++) cr_assert(got[i] != got[j]);
        }
    }
}
Test(base, rng_permute_outside, .signal = SIGABRT, .init = cr_redirect_stderr) { rng_permute(1, 5, 5); }

Test(base, bytes_are_said_as_people_read_them) {
    static const struct {
        size_t n;
        const char *says;
    } t[] = {{0, "0 bytes"},
             {1023, "1023 bytes"},
             {1024, "1.0 KiB"},
             {1048575, "1.0 MiB"},
             {1572864, "1.5 MiB"},
             {40293764992, "37.5 GiB"},
             {(size_t)1 << 40, "1.0 TiB"},
             {SIZE_MAX, "16.0 EiB"}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char out[24];
        cr_assert_str_eq(bytes_text(t[i].n, out), t[i].says);
    }
}

Test(base, names_of_the_hub_are_told_from_paths) {
    static const char *const hub[] = {"gpt2", "openai-community/gpt2", "meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5-0.5B"},
                             *const not_hub[] = {"/gpt2",          "./gpt2",      "../x",       "a/b/c", "x/",
                                                 "text.txt",       "a/m.gguf",    "tests/none", "~/x",   "a b",
                                                 "tokenizer.json", "runs/x.yaml", "run$x",      ""};
    char out[200];
    for (size_t i = 0; i < sizeof hub / sizeof *hub; i++)
        cr_assert(strstr(hub_text(hub[i], "F", out), "hf download "), "%s: '%s'", hub[i], out);
    for (size_t i = 0; i < sizeof not_hub / sizeof *not_hub; i++)
        cr_assert(!*hub_text(not_hub[i], "", out), "%s: '%s'", not_hub[i], out);
    cr_assert_str_eq(hub_text("gpt2", "tokenizer.json", out),
                     "; a path is expected, nothing is downloaded: hf download openai-community/gpt2 tokenizer.json "
                     "--local-dir DIR");
}
