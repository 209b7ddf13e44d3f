/* base.h: errors, checks, counter-based random numbers. Floor 0: knows nothing of models.
 *
 * Two kinds of failure, one convention each:
 *   bad input or a failing world  -> the function returns false and fills an Err (what, where, expected, got, what to
 * do); our own mistake               -> CHECK prints file:line, the broken condition and its values, and aborts. */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_WORLD = 1, EXIT_INPUT = 2, EXIT_DIVERGED = 3, EXIT_SIGNAL = 130 };

/* One line of at most 300 characters, and the exit status that goes with it. Zero-initialise before use. */
typedef struct {
    /* 0: no error; EXIT_INPUT: what the user gave cannot be used; EXIT_WORLD: the world failed; EXIT_DIVERGED: so it
     * did by a training whose numbers are none, and would again; a launcher's rank says so, others end with
     * EXIT_WORLD */
    int status;
    char msg[301];
} Err;

/* Fill `e` and return false, so that a caller can write `return err_input(e, ...)`. Control characters that reach the
 * message from a file are replaced by '?', a longer message is cut with "...". `e` may be NULL. */
bool err_input(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool err_world(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool err_diverged(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same from errno of the last call: "<what> <path>: <strerror>". ENOENT, ENOTDIR, EISDIR and EACCES are the user's
 * (EXIT_INPUT), everything else is the world's. */
bool err_errno(Err *e, const char *what, const char *path);

#define CHECK(cond, ...)                                                      \
    do {                                                                      \
        if (!(cond)) check_failed(__FILE__, __LINE__, #cond, "" __VA_ARGS__); \
    } while (0)
_Noreturn void check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Memory of the program's own bookkeeping (never of a step): zeroed, never NULL; running out prints one line, exit 1.
 */
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n, size_t size);
char *xstrdup(const char *s);
char *xformat(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* malloc'ed string */

static inline int imin(int a, int b) { return a < b ? a : b; }
static inline int imax(int a, int b) { return a > b ? a : b; }
static inline size_t zmin(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t zmax(size_t a, size_t b) { return a > b ? a : b; }

/* ---- random numbers: a pure function of what is asked for, so that nothing needs to be saved -----------------------
 * rng_mix folds one more word into a key (splitmix64's finaliser); a stream is a key, a draw is a key plus a counter.
 */
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
 * Needs no memory and no state. 0 <= i < n. */
uint64_t rng_permute(uint64_t key, uint64_t i, uint64_t n);

double now_seconds(void); /* monotonic clock */
