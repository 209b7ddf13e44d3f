/* arena.h: one region of memory per lifetime, measured before it is placed; and the stack of a pass's scratch.
 *
 * An arena with base NULL measures: takes return NULL and only `used` and `peak` move. The same code run again after
 * arena_open finds exactly the bytes that were measured. Every take is aligned to 64 bytes and followed by 64 guard
 * bytes; a guard that changed is found when its take is released or the arena closed, and CHECK names the take. With
 * `poison` fresh and released memory is filled with NaN, so that a read of what nobody wrote shows in any result. */
#pragma once
#include "tensor.h"

/* Where a region lies when not in the host's memory: what a device does for it, in the order of the device's work. Its
 * bytes have no guards, since the host cannot see them; a tool that checks bounds is told of every take instead. */
typedef struct Memory Memory;
struct Memory {
    void *(*take)(const Memory *, size_t bytes); /* NULL: the device has no such memory */
    void (*give)(const Memory *, void *p);
    void (*poison)(const Memory *, void *p, size_t bytes);                 /* NaN */
    void (*note)(const Memory *, void *p, size_t bytes, const char *name); /* handed out */
    void (*unnote)(const Memory *, void *p, size_t bytes);                 /* and all of this taken back */
    void *ctx;
};

typedef struct {
    size_t end; /* offset of the guard */
    char name[48];
} Take;
typedef struct {
    const char *name;
    const Memory *home; /* NULL: the host's memory */
    char *base;
    size_t size, used, peak;
    char peak_at[48]; /* the take that made the peak */
    bool poison;
    size_t poisoned; /* bytes from the base on that are, or were and are somebody's: well ahead of `used` */
    int ntake, most;
    Take *take; /* `most` entries; grows, so that scratch, whose marks and releases come and go, soon grows no more */
} Arena;
typedef struct {
    size_t used;
    int ntake;
} Mark;

/* Map `size` bytes (zero is fine). poison: fill with NaN. False (EXIT_WORLD) when the system has no such memory. */
bool arena_open(Arena *, const char *name, size_t size, bool poison, Err *);
/* The same in the memory of a device; home NULL: arena_open. What lies there is not zero without being written. */
bool arena_open_at(Arena *, const Memory *home, const char *name, size_t size, bool poison, Err *);
void arena_close(Arena *); /* checks every guard, gives the memory back */
void *arena_take(Arena *, size_t bytes, const char *name);
Tensor arena_tensor(Arena *, const char *name, Dtype dtype, int rank, const int n[]);
Mark arena_mark(const Arena *);
void arena_release(Arena *, Mark); /* checks the guards of what is released */
void arena_guards(const Arena *);  /* checks all */
/* Visitor that takes memory for every field from `a` (or measures). */
Fields arena_placer(Arena *a);
Fields fields_zero(void); /* visitor that writes zeros */
