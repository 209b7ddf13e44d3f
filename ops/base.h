/* base.h: errors, checks and counter-based random numbers; nearly every file includes it. It is the lowest layer and
 * knows nothing of models.
 *
 * There are two kinds of failure, with one convention each:
 * - Bad input, or a run-time failure (disk, memory, network): the function returns false and fills an Err, which says
 *   what, where, expected, got, what to do.
 * - A mistake of our own: CHECK prints file:line, the broken condition and its values, and aborts. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_RUNTIME = 1, EXIT_INPUT = 2, EXIT_DIVERGED = 3, EXIT_SIGNAL = 130 };

/* One line of at most 300 characters, and the exit status that goes with it. Must be zeroed before use. */
typedef struct {
    /* 0: no error. EXIT_INPUT: the user's input cannot be used. EXIT_RUNTIME: a run-time failure (disk, memory,
     * network).
     * EXIT_DIVERGED: the loss or the gradient of a training became NaN or infinite, and would again after a restart.
     * Only a rank started by `launch` exits with it; any other process exits with EXIT_RUNTIME. */
    int status;
    char msg[301];
} Err;

/* Fill `e` and return false, so that a caller can write `return err_input(e, ...)`. `e` may be NULL. Control
 * characters in the message (from a file) are replaced by '?'. A longer message is cut with "...". */
bool err_input(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool err_runtime(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool err_diverged(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same from errno of the last call: "<what> <path>: <strerror>". ENOENT, ENOTDIR, EISDIR and EACCES are the user's
 * errors (EXIT_INPUT); every other errno is EXIT_RUNTIME. */
bool err_errno(Err *e, const char *what, const char *path);

#define CHECK(cond, ...)                                                      \
    do {                                                                      \
        if (!(cond)) check_failed(__FILE__, __LINE__, #cond, "" __VA_ARGS__); \
    } while (0)
_Noreturn void check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Memory for the program's own bookkeeping, never for a training step. It is zeroed and never NULL: when memory runs
 * out, these print one line and exit with 1. */
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n, size_t size);
char *xstrdup(const char *s);
char *xformat(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* malloc'ed string */

static inline int imin(int a, int b) { return a < b ? a : b; }
static inline int imax(int a, int b) { return a > b ? a : b; }
static inline size_t zmin(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t zmax(size_t a, size_t b) { return a > b ? a : b; }

/* ---- random numbers: a pure function of key and counter, so that no state needs to be saved -------------------------
 * rng_mix folds one more word into a key (splitmix64's finaliser). A stream is a key; a draw is a key and a counter. */
static inline uint64_t
rng_finalise(uint64_t x) { /* splitmix64's output: Steele, Lea, Flood 2014; Stafford's variant 13 */
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
static inline uint64_t rng_mix(uint64_t key, uint64_t word) { /* inline: dropout draws millions, in vectors */
    return rng_finalise(rng_finalise(key + 0x9E3779B97F4A7C15u) + word + 0x9E3779B97F4A7C15u);
}
uint64_t rng_name(uint64_t key, const char *name);  /* a key for a named thing (a tensor, a stream) */
double rng_uniform(uint64_t key, uint64_t counter); /* in (0,1), 53 bits */
double rng_normal(uint64_t key, uint64_t counter);  /* N(0,1), Box-Muller */
/* The i-th element of a fixed pseudo-random permutation of 0..n-1 chosen by key (4-round Feistel, cycle-walking).
 * Needs no memory and no state. Must be called with 0 <= i < n. */
uint64_t rng_permute(uint64_t key, uint64_t i, uint64_t n);

double now_seconds(void); /* monotonic clock */
