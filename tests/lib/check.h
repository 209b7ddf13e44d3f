/* check.h: what the test suites share: comparisons that name the worst entry, temporary directories, running the
 * program.
 *
 * Comparisons fail on NaN (they ask !(error <= bound)), count equal infinities as equal, and print the worst entry with
 * both values. With CHECK_VERBOSE=1 in the environment they print it when they hold, too. With CHECK_LOG=FILE each adds
 * a line to it: test, what was compared, error, bound, place of the worst entry, number of entries, between tabs. */
#pragma once
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include "ops/tensor.h"

/* ---- comparisons ----------------------------------------------------------------------------------------------------
 */
typedef struct {
    const void *p;
    Dtype dtype; /* F32 or F64 */
} CheckView;
#define CHECK_VIEW(a) ((CheckView){(a), _Generic(*(a), float : F32, double : F64)})

/* Worst |got - want| over n values: fills msg, true when <= tol. */
bool check_close(char msg[512], const char *what, CheckView got, CheckView want, size_t n, double tol);
/* The same with the bound tol * max|want|. */
bool check_relative(char msg[512], const char *what, CheckView got, CheckView want, size_t n, double tol);
/* sqrt(sum (got-want)^2 / sum want^2) <= tol. */
bool check_rms(char msg[512], const char *what, CheckView got, CheckView want, size_t n, double tol);
/* Tensors of one shape, F32 or F64: as check_relative; the index is printed as (i,j,k). */
bool check_tensor(char msg[512], const char *what, Tensor got, Tensor want, double tol);

/* The bound on |x - y| of two computations of n values that differ by rounding alone: 16 times the measured effect of
 * rounding. `nudged` is the computation of `a` again from inputs or weights that were moved by up to one rounding
 * (model_nudge). All its roundings then fall differently, so |nudged - a| is one draw of an error and x - y is another,
 * whatever the depth, the widths and the instruction set. It counts as at least one rounding of max|a|, and the bound
 * is at most 1e-3 max|a|, so that mistakes are seen when a choice was close. */
double check_rounding(CheckView a, CheckView nudged, size_t n);

void check_log(const char *what, double error, double bound, size_t where, size_t n);
#define CHECK_WITH_(call)            \
    do {                             \
        char msg_[512];              \
        cr_assert(call, "%s", msg_); \
    } while (0)
#define CHECK_CLOSE(what, got, want, n, tol) \
    CHECK_WITH_(check_close(msg_, what, CHECK_VIEW(got), CHECK_VIEW(want), n, tol))
#define CHECK_RELATIVE(what, got, want, n, tol) \
    CHECK_WITH_(check_relative(msg_, what, CHECK_VIEW(got), CHECK_VIEW(want), n, tol))
#define CHECK_RMS(what, got, want, n, tol) CHECK_WITH_(check_rms(msg_, what, CHECK_VIEW(got), CHECK_VIEW(want), n, tol))
#define CHECK_TENSOR(what, got, want, tol) CHECK_WITH_(check_tensor(msg_, what, got, want, tol))
/* Bytes equal; names the first that differs. */
bool check_bytes(char msg[512], const char *what, const void *got, const void *want, size_t n);
#define CHECK_BYTES(what, got, want, n) CHECK_WITH_(check_bytes(msg_, what, got, want, n))

/* In place: rounds a tensor of `real`s to bf16 values. */
void check_as_bf16(Tensor);

/* Input i of stream `key`: nearly normal (mean 0, variance 1), without logarithm and cosine, which were up to half of
 * the time of a test of products. A sum 0.8 a + 0.6 b of two of 4,096 normal values, which rng_mix(key, i) chooses. */
double check_normal(uint64_t key, uint64_t i);

/* Factor by which work may be slower than on an idle machine of ordinary speed: at least 1. tests/run.sh measures it
 * when it starts and passes it on as TEST_SLOW; a build with sanitizers counts four times. Every deadline of a test is
 * a number of seconds for that ordinary machine times this; the timeouts of Criterion are multiplied before the first
 * test runs. In shell tests: `patience` (cases.sh). */
double check_slow(void);
/* Is case i of very many of one kind made? Under the address sanitizer every third is, elsewhere all are: a wrong
 * access is the same in the next case, and such loops are the longest there. */
bool check_sampled(int i);

/* ---- files ----------------------------------------------------------------------------------------------------------
 */
/* A new empty directory, removed when the test's process ends (and by the runner if that one crashed). */
const char *check_dir(void);
/* A malloc'ed path below it. */
char *check_path(const char *name);
void check_write(const char *path, const void *bytes, size_t n);
char *check_read(const char *path, size_t *n); /* malloc'ed, with a NUL after the end; n may be NULL; missing: fails */
bool check_exists(const char *path);
int check_entries(const char *dir); /* number of names in a directory, . and .. not counted */

/* ---- running the program
 * ---------------------------------------------------------------------------------------------- */
typedef struct {
    int status; /* exit status; 128 + signal when it was killed */
    char *out, *err;
    size_t out_n, err_n;
} Ran;
/* Run argv (NULL-ended; argv[0] "kvsmith": the program just built) with nothing on stdin and wait. */
Ran check_run_argv(const char *const argv[]);
#define RUN(...) check_run_argv((const char *const[]){"kvsmith", __VA_ARGS__, NULL})
/* Holds the run to the rule of errors: this status, nothing on stdout, one line of at most 300 characters on stderr
 * that contains `part` (NULL: anything). */
bool check_refused(char msg[512], Ran, int status, const char *part);
#define CHECK_REFUSED(ran, status, part) CHECK_WITH_(check_refused(msg_, ran, status, part))
