/* arena.h: an arena is one region of memory per lifetime, and a stack: arena_take hands out bytes, arena_release takes
 * the top back. A caller runs its code twice: once to measure the bytes, then, after arena_open, to use them.
 *
 * - An arena with base NULL measures: takes return NULL, and only `used` and `peak` move. The same code run again
 *   after arena_open must take exactly the measured bytes.
 * - Every take is aligned to 64 bytes and followed by 64 guard bytes. A guard that changed is found when its take is
 *   released or the arena is closed; CHECK names the take.
 * - With `poison`, new and released memory is filled with NaN, so a read of an unwritten value shows in any result. */
#pragma once
#include "tensor.h"

/* The functions of a device whose memory holds a region, run in the order of the device's other work. Such a region
 * has no guards, because the host cannot see its bytes. Instead, `note` and `unnote` report every take to a tool that
 * checks bounds. */
typedef struct Memory Memory;
struct Memory {
    void *(*take)(const Memory *, size_t bytes); /* NULL: the device has no such memory */
    void (*give)(const Memory *, void *p);
    void (*poison)(const Memory *, void *p, size_t bytes);                 /* fills with NaN */
    void (*note)(const Memory *, void *p, size_t bytes, const char *name); /* called for every take */
    void (*unnote)(const Memory *, void *p, size_t bytes); /* called for the whole range when it is released */
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
    size_t poisoned; /* bytes from the base that were filled with NaN or handed out; well ahead of `used` */
    int ntake, most;
    /* `most` entries; it grows on demand, so scratch, which is marked and released often, soon stops growing it */
    Take *take;
} Arena;
typedef struct {
    size_t used;
    int ntake;
} Mark;

/* Map `size` bytes (zero is fine). poison: fill with NaN. False (EXIT_RUNTIME) when the system has no such memory. */
bool arena_open(Arena *, const char *name, size_t size, bool poison, Err *);
/* The same in a device's memory; with home NULL it is arena_open. Device memory does not start as zeros. */
bool arena_open_at(Arena *, const Memory *home, const char *name, size_t size, bool poison, Err *);
void arena_close(Arena *); /* checks every guard, gives the memory back */
void *arena_take(Arena *, size_t bytes, const char *name);
Tensor arena_tensor(Arena *, const char *name, Dtype dtype, int rank, const int n[]);
Mark arena_mark(const Arena *);
void arena_release(Arena *, Mark); /* checks the guards of what is released */
void arena_guards(const Arena *);  /* checks all */
/* Visitor that takes memory for every field from `a` (or measures it). */
Fields arena_placer(Arena *a);
Fields fields_zero(void); /* visitor that writes zeros */
