/* core.h: the emulation's own state; seen by its .cpp files alone. One process, one thread of the system. */
#pragma once
#include "simt.h"
#include <cstdarg>
#include <string>
#include <vector>

enum {
    WARP = 32,
    THREADS_MAX = 1024,
    WARPS_MAX = THREADS_MAX / WARP,
    STACK = 128 << 10,
    SMEM_PLAIN = 48 << 10, /* what a launch gets without cudaFuncSetAttribute */
    SMEM_MAX = 227 << 10,
    BARRIERS = 16
};

/* What a thread of a block waits for, or that it ended. */
enum State { READY, AT_BARRIER, AT_WARP, DONE };
enum CallKind { CALL_SYNC, CALL_SHUFFLE, CALL_BALLOT, CALL_MMA, CALL_LDMATRIX, CALL_MOVMATRIX };
struct Call { /* a lane's deposit at a warp collective */
    CallKind kind;
    unsigned mask;
    int a, b; /* of the kind; equal in all lanes */
    const char *file;
    int line;
    const void *in;
    void *out;
    int arg; /* each lane's own */
    const void *pc;
};
struct Copy { /* cp.async under way */
    uintptr_t to, from;
    int size, valid, group;
    const void *pc;
};
struct Thread {
    void *sp;
    char *stack;
    SimtHere *here; /* at the top of the stack, where the kernel may read it unseen */
    State state;
    int id, warp;
    uint32_t clock;     /* of its synchronisations in this block */
    uint32_t segment;   /* name of what it does between two of them; 0: none yet */
    uint32_t row_epoch; /* known[] of this thread is of this epoch */
    Call call;
    const char *file;
    int line;
    std::vector<Copy> copies;
    int group;
};
struct Barrier {
    int arrived, expected;
    const char *file;
    int line;
    std::vector<int> waiting;
    uint32_t knows[THREADS_MAX]; /* order.cpp: what those that came knew */
};
struct Launch {
    const char *name;
    dim3 grid, block;
    size_t smem;
    SimtCall call;
};

struct Core {
    Thread *now; /* NULL: the host runs */
    void *host_sp;
    const Launch *launch;
    uint3 block;
    int threads, warps, live;
    Thread thread[THREADS_MAX];
    bool abandoned; /* nothing of this launch can go on */
    uint32_t epoch; /* barriers of all threads, in this block */
    bool wide;      /* a named barrier in this epoch: what is known goes beyond the own warp */
    Barrier barrier[BARRIERS];
    unsigned waiting[WARPS_MAX]; /* lanes AT_WARP */
    unsigned asleep[WARPS_MAX];  /* lanes that are not READY */
    unsigned ended[WARPS_MAX];   /* lanes that are DONE, or beyond the block's threads */
    uint64_t seed, draws;
};
extern Core core;
uint64_t draw(); /* the schedule's next random number */

/* fibre.cpp */
void run_kernel(const Launch *);
void wait_here(State); /* the current thread sleeps until another sets it READY */

/* warp.cpp: what the last lane of the mask to arrive does once for all. */
typedef void Together(Call *const lane[WARP], unsigned mask);
void copies_done(Thread *, int group); /* deposits what was issued in groups up to this one */

/* order.cpp: which accesses are ordered. A segment is what one thread does between two of its synchronisations. */
struct Segment {
    uint32_t epoch, clock;
    uint16_t thread, warp;
};
struct Order {
    std::vector<Segment> segments; /* of this launch */
    uint32_t launch_base, block_base, next;
};
extern Order order;
extern uint32_t known[THREADS_MAX][THREADS_MAX];
void order_launch();
void order_block();
void order_begin(Thread *); /* a segment of its own */
static inline uint32_t order_segment(Thread *t) {
    if (!t->segment) order_begin(t);
    return t->segment;
}
static inline bool ordered(uint32_t s, const Thread *t) { /* before what the thread does now */
    if (s < order.launch_base) return true;               /* nobody, or an earlier launch */
    if (s < order.block_base) return false;
    const Segment *x = &order.segments[s - order.launch_base];
    if (x->thread == t->id || x->epoch < core.epoch) return true;
    return t->row_epoch == core.epoch && known[t->id][x->thread] >= x->clock;
}
static inline bool same_warp(uint32_t s, const Thread *t) {
    return s >= order.block_base && order.segments[s - order.launch_base].warp == t->warp;
}
bool order_who(uint32_t segment, unsigned *block, int *thread);
void order_join_lanes(Thread *first, unsigned mask);
void order_arrive(Barrier *, Thread *); /* publishes what the thread did and knows */
void order_leave(const Barrier *, Thread *);
void order_all();

/* shadow.cpp */
enum { ACCESS_READ = 0, ACCESS_WRITE = 1, ACCESS_ATOMIC = 2, ACCESS_QUIET = 4 /* not in the estimates */ };
void observe(const void *p, size_t n, unsigned flags, const void *pc);
void shadow_block(); /* shared memory is to be overwritten */
void shadow_flight(uintptr_t at, int n, bool on);
unsigned char *smem_base();
bool in_smem(uintptr_t a);

/* heap.cpp: device memory. State of each byte, for shadow.cpp. */
enum {
    BYTE_OPEN = 1,
    BYTE_WRITTEN = 2,
    BYTE_FLIGHT = 4,
    BYTE_SHARED_WITH_HOST = 8,
    /* Numbers are mostly accessed whole, so that their bytes have one history. It is kept in one cell, and by bytes
     * only after somebody touched a part. */
    BYTE_PAIR = 16, /* the aligned two bytes have one history: the first byte's cell */
    BYTE_QUAD = 32, /* the aligned four bytes have one: the cell of four */
    BYTE_NEW = 64   /* no history: the cells hold nothing */
};
struct Cell {
    uint32_t writer, reader, other; /* segments; the top bit of writer: by an atomic */
};
struct Heap {
    unsigned char *memory, *state;
    Cell *cells, *quads; /* of each byte, and of each aligned four */
    size_t size;         /* 0: nothing was allocated yet */
};
extern Heap heap;
static inline bool in_heap(uintptr_t a) { return a - (uintptr_t)heap.memory < heap.size; }
bool heap_mapped(uintptr_t a); /* the host's as well */
static inline unsigned char *heap_state(uintptr_t a) { return heap.state + (a - (uintptr_t)heap.memory); }
void *heap_take(size_t bytes, bool host_too);
bool heap_give(void *p);
void heap_note_take(void *p, size_t bytes, const char *name);
void heap_note_close(void *p, size_t bytes);
size_t heap_room();
uint64_t heap_number(uintptr_t a); /* of the allocation that holds it, which no other has or had; 0: none */
/* The allocation, or the named piece of one, that holds `a` or ends nearest before it; false: none. */
bool heap_find(uintptr_t a, char *name, size_t name_size, size_t *offset, size_t *size);
void heap_open(bool on); /* whether the host may touch device memory without a fault of the processor */

/* report.cpp */
void report(SimtFault, const void *pc, uintptr_t at, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void report_end_of_launch();

/* estimate.cpp */
void estimate_launch(const Launch *);
void estimate_block(unsigned long number);
struct Asked {
    double read, written; /* bytes of device memory, by the launch so far */
    bool each;            /* accesses of this block are wanted one by one: */
};
extern Asked asked;
void estimate_access(const Thread *, uintptr_t a, size_t n, bool shared, const void *pc);
void estimate_mma();
void estimate_block_end();
