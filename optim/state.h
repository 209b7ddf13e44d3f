/* state.h: memory for the optimizer's states of a list of parameters: a region for each state, and copies in host
 * memory from which checkpoints are written asynchronously. The owners of a list call it: the trainer, the ranks'
 * shared part, benchmarks. */
#pragma once
#include "optimizer.h"

/* The name in --plan of the region of the k-th state; NULL: neither the optimizer nor AdamW, if that steps the rest,
 * has one. */
const char *states_memory(const Optimizer *, int k);
/* Allocates all first states, then all second ones, ... from a region each, or measures them. */
void states_place(Params *, Arena mem[STATES_MAX]);
/* Measures the regions, whose peak may already be larger, and, unless dry, maps them and fills the states with
 * zeros. */
bool states_open(Params *, Arena mem[STATES_MAX], const Optimizer *, Device *, bool poison, bool dry, Err *);
void states_close(Arena mem[STATES_MAX]);

/* A copy of the states of a list at one moment. */
typedef struct {
    Arena mem; /* exactly the bytes of the list's regions */
    Params p;  /* the list, with states in mem */
} StateCopy;
bool state_copy_open(StateCopy *, const Params *, const Arena mem[STATES_MAX], bool dry, Err *);
void state_copy_take(StateCopy *, const Params *, const Arena mem[STATES_MAX], Device *);
void state_copy_close(StateCopy *);
