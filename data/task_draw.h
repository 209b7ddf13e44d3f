/* task_draw.h: random choices for the generators of tasks (task.c, task_text.c). */
#pragma once
#include "ops/base.h"

typedef struct {
    uint64_t key, n;
} Draw;
static inline Draw draw_make(uint64_t key, const char *name) { return (Draw){rng_name(key, name), 0}; }
/* A draw from 0..n-1. The bias of the remainder is below n / 2^64. */
static inline int task_below(Draw *d, int n) { return (int)(rng_mix(d->key, d->n++) % (uint64_t)n); }
static inline double task_unit(Draw *d) { return rng_uniform(d->key, d->n++); }

/* Put the first `count` of a random order of list[0..n) in front. (rng_permute would need no list, but is only nearly
 * uniform on so few elements.) */
void task_shuffle(Draw *, int *list, int n, int count);
/* The same for the numbers first .. first + n - 1; list receives all n. */
void task_deal(Draw *, int *list, int first, int n, int count);
/* Starts of `count` pieces of `len` cells that do not overlap, among `cells` cells from `begin` on, ascending; each
 * placement is as likely as any other. */
void task_scatter(Draw *, int begin, int cells, int len, int count, int *start);
