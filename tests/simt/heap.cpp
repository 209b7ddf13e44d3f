/* heap.cpp: device memory: one reserved range with, beside each byte, its state and who touched it last. The second
 * part is mapped memory, which the host may touch too: tests do. Between allocations lie gaps that belong to
 * nobody. */
#include "core.h"
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

static const size_t DEVICE = (size_t)3 << 30, MAPPED = (size_t)1 << 30, GAP = 4096, PAGE = 4096;

struct Piece {
    size_t size;
    std::string name;
    uint64_t number;
};
Heap heap;
static std::map<uintptr_t, Piece> blocks, pieces;
static uint64_t allocations;
static size_t at_device, at_mapped = DEVICE, taken;
static bool opened;

/* The processor's own check of memory that the tracer does not see: the host's code, wild pointers. */
static void fault(int sig, siginfo_t *info, void *) {
    uintptr_t a = (uintptr_t)info->si_addr;
    char name[64] = "device memory";
    size_t offset = 0, size = 0;
    if (in_heap(a) && !core.now) {
        heap_find(a, name, sizeof name, &offset, &size);
        fprintf(stderr, "simt: the host touches device memory: byte %zu of %s (%zu bytes)\n", offset, name, size);
    } else if (core.now) {
        const SimtHere *h = core.now->here;
        report_end_of_launch();
        fprintf(stderr, "simt: kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s at %p\n", core.launch->name,
                h->block.x, h->block.y, h->block.z, h->thread.x, h->thread.y, h->thread.z,
                a + PAGE >= (uintptr_t)core.now->stack - PAGE && a < (uintptr_t)core.now->stack ? "its stack is full"
                                                                                                : "no memory is there",
                info->si_addr);
    }
    signal(sig, SIG_DFL);
    raise(sig);
}

static void *reserve(size_t n) {
    void *p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "simt: cannot reserve %zu bytes of addresses\n", n);
        exit(1);
    }
    return p;
}
static void start() {
    if (heap.memory) return;
    size_t all = DEVICE + MAPPED;
    heap.memory = (unsigned char *)reserve(all);
    heap.state = (unsigned char *)reserve(all);
    heap.cells = (Cell *)reserve(all * sizeof(Cell));
    heap.quads = (Cell *)reserve(all / 4 * sizeof(Cell));
    heap.size = all;
    mprotect(heap.memory, DEVICE, PROT_NONE);
    static char other_stack[64 << 10];
    stack_t s = {};
    s.ss_sp = other_stack, s.ss_size = sizeof other_stack;
    sigaltstack(&s, nullptr);
    struct sigaction act = {};
    act.sa_sigaction = fault;
    act.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &act, nullptr);
    sigaction(SIGBUS, &act, nullptr);
}

bool heap_mapped(uintptr_t a) { return in_heap(a) && a - (uintptr_t)heap.memory >= DEVICE; }
size_t heap_room() { return DEVICE - taken; }
void heap_open(bool on) {
    start();
    if (on != opened) mprotect(heap.memory, DEVICE, on ? PROT_READ | PROT_WRITE : PROT_NONE);
    opened = on;
}

static bool place(size_t room, size_t *from, size_t lo, size_t hi) {
    /* Behind the newest allocation first, so that what was given back stays unused, and its use visible, for long. */
    for (int round = 0; round < 2; round++) {
        size_t at = round ? lo : std::max(*from, lo);
        auto it = blocks.lower_bound((uintptr_t)heap.memory + at);
        if (it != blocks.begin()) {
            auto before = std::prev(it);
            at = std::max(at, before->first - (uintptr_t)heap.memory + before->second.size + GAP);
        }
        for (at = (at + PAGE - 1) & ~(PAGE - 1);; it++) {
            size_t end = it == blocks.end() ? hi : std::min(hi, it->first - (uintptr_t)heap.memory);
            if (at + room <= end) {
                *from = at;
                return true;
            }
            if (it == blocks.end() || end == hi) break;
            at = (it->first - (uintptr_t)heap.memory + it->second.size + GAP + PAGE - 1) & ~(PAGE - 1);
        }
    }
    return false;
}
void *heap_take(size_t bytes, bool host_too) {
    start();
    size_t room = (std::max(bytes, (size_t)1) + GAP + PAGE - 1) & ~(PAGE - 1);
    size_t *at = host_too ? &at_mapped : &at_device;
    if (bytes > DEVICE || !place(room, at, host_too ? DEVICE : 0, host_too ? DEVICE + MAPPED : DEVICE)) return nullptr;
    unsigned char *p = heap.memory + *at;
    bool was = opened;
    heap_open(true);
    memset(p, 0xFF, std::min(bytes, (size_t)1 << 20)); /* NaN; of more, pages would be made only for that */
    heap_open(was);
    memset(heap.state + *at, BYTE_NEW | BYTE_OPEN | (host_too ? BYTE_WRITTEN | BYTE_SHARED_WITH_HOST : 0), bytes);
    blocks[(uintptr_t)p] = {bytes, host_too ? "an allocation of mapped memory" : "an allocation", ++allocations};
    *at += room;
    taken += host_too ? 0 : room;
    return p;
}
static void forget(uintptr_t a, size_t n) {
    pieces.erase(pieces.lower_bound(a), pieces.lower_bound(a + std::max(n, (size_t)1)));
}
bool heap_give(void *p) {
    auto it = blocks.find((uintptr_t)p);
    if (it == blocks.end()) return false;
    size_t from = it->first - (uintptr_t)heap.memory, n = it->second.size, room = (n + GAP + PAGE - 1) & ~(PAGE - 1);
    bool device = from < DEVICE;
    memset(heap.state + from, 0, n);
    madvise(heap.memory + from, room, MADV_DONTNEED);
    madvise((void *)(heap.cells + from), room * sizeof(Cell), MADV_DONTNEED);
    madvise((void *)(heap.quads + from / 4), room / 4 * sizeof(Cell), MADV_DONTNEED);
    forget(it->first, n);
    taken -= device ? room : 0;
    blocks.erase(it);
    return true;
}

/* A region that places things by itself says so: what it has not handed out is nobody's. */
void heap_note_take(void *p, size_t bytes, const char *name) {
    uintptr_t a = (uintptr_t)p;
    if (!in_heap(a)) return;
    if (a - (uintptr_t)heap.memory >= DEVICE) { /* the host may have written it already */
        memset(heap_state(a), BYTE_NEW | BYTE_OPEN | BYTE_WRITTEN | BYTE_SHARED_WITH_HOST, bytes);
    } else {
        memset(heap_state(a), BYTE_NEW | BYTE_OPEN, bytes);
        memset(p, 0xFF, bytes);
    }
    pieces[a] = {bytes, name, 0};
}
void heap_note_close(void *p, size_t bytes) {
    uintptr_t a = (uintptr_t)p;
    if (!in_heap(a)) return;
    memset(heap_state(a), 0, bytes);
    forget(a, bytes);
}
static bool find(const std::map<uintptr_t, Piece> &m, uintptr_t a, uintptr_t floor, char *name, size_t name_size,
                 size_t *offset, size_t *size) {
    auto it = m.upper_bound(a);
    if (it == m.begin()) return false;
    it--;
    if (it->first < floor) return false;
    snprintf(name, name_size, "%s", it->second.name.c_str());
    *offset = a - it->first;
    *size = it->second.size;
    return true;
}
uint64_t heap_number(uintptr_t a) {
    auto it = blocks.upper_bound(a);
    if (it == blocks.begin()) return 0;
    it--;
    return a < it->first + it->second.size ? it->second.number : 0;
}
bool heap_find(uintptr_t a, char *name, size_t name_size, size_t *offset, size_t *size) {
    if (!find(blocks, a, 0, name, name_size, offset, size)) return false;
    uintptr_t block = a - *offset;
    if (*offset < *size) find(pieces, a, block, name, name_size, offset, size);
    return true;
}
