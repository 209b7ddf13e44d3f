/* order.cpp: happens-before inside a launch.
 *
 * What a thread does between two of its synchronisations is a segment, and has a number. A barrier of the whole block
 * orders everything, so an epoch counts those; inside an epoch known[u][v] is the clock of thread v up to which u knows
 * what v did. Warp synchronisation and named barriers join the rows of those that meet. Shuffles, votes and mma order
 * no memory, as on the device. Blocks of a launch are never ordered: what one writes another may not touch. */
#include "core.h"
#include <algorithm>
#include <cstdlib>

Order order = {{}, 1, 1, 1};
uint32_t known[THREADS_MAX][THREADS_MAX];
static std::vector<uint32_t> starts; /* first segment of each block that ran, in the order of running */
static std::vector<uint3> blocks;

void order_launch() {
    order.launch_base = order.next;
    order.segments.clear();
    starts.clear();
    blocks.clear();
}
void order_block() {
    order.block_base = order.next;
    starts.push_back(order.next);
    blocks.push_back(core.block);
    core.epoch = 1;
    core.wide = false;
}
void order_begin(Thread *t) {
    if (order.next == 0x7FFFFFFF) {
        fprintf(stderr, "simt: too much work for one process: 2^31 segments\n");
        exit(1);
    }
    t->segment = order.next++;
    order.segments.push_back({core.epoch, t->clock, (uint16_t)t->id, (uint16_t)t->warp});
}
static uint32_t *row(Thread *t) {
    if (t->row_epoch != core.epoch) {
        memset(known[t->id], 0, (size_t)core.threads * sizeof known[0][0]);
        t->row_epoch = core.epoch;
    }
    return known[t->id];
}
bool order_who(uint32_t s, unsigned *block, int *thread) {
    if (s < order.launch_base) return false;
    *thread = order.segments[s - order.launch_base].thread;
    size_t i = (size_t)(std::upper_bound(starts.begin(), starts.end(), s) - starts.begin()) - 1;
    uint3 b = blocks[i];
    *block = b.x + core.launch->grid.x * (b.y + core.launch->grid.y * b.z);
    return true;
}

/* Everybody learns what anybody knows, and what each has done itself; columns from..to-1. */
static void join(Thread *const *t, int n, int from, int to) {
    static uint32_t all[THREADS_MAX];
    memset(all + from, 0, (size_t)(to - from) * sizeof *all);
    for (int i = 0; i < n; i++) {
        const uint32_t *r = row(t[i]);
        for (int c = from; c < to; c++) all[c] = std::max(all[c], r[c]);
    }
    for (int i = 0; i < n; i++) all[t[i]->id] = std::max(all[t[i]->id], t[i]->clock);
    for (int i = 0; i < n; i++) {
        memcpy(row(t[i]) + from, all + from, (size_t)(to - from) * sizeof *all);
        t[i]->clock++;
        t[i]->segment = 0;
    }
}
void order_join_lanes(Thread *first, unsigned mask) {
    Thread *t[WARP];
    int n = 0, at = first->id;
    for (int i = 0; i < WARP; i++)
        if (mask >> i & 1) t[n++] = first + i;
    if (core.wide)
        join(t, n, 0, core.threads);
    else
        join(t, n, at, std::min(at + WARP, core.threads));
}
/* A named barrier: what a thread does behind arriving without waiting is not published, and it learns nothing. */
void order_arrive(Barrier *b, Thread *t) {
    const uint32_t *r = row(t);
    core.wide = true;
    for (int c = 0; c < core.threads; c++) b->knows[c] = std::max(b->knows[c], r[c]);
    b->knows[t->id] = t->clock++;
    t->segment = 0;
}
void order_leave(const Barrier *b, Thread *t) {
    uint32_t *r = row(t);
    for (int c = 0; c < core.threads; c++) r[c] = std::max(r[c], b->knows[c]);
}
void order_all() {
    core.epoch++;
    core.wide = false;
    for (int i = 0; i < core.threads; i++) core.thread[i].clock++, core.thread[i].segment = 0;
}
