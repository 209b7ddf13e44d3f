/* shadow.cpp: sees every access of a kernel and judges it: bounds, alignment, what was never written, copies under way,
 * races. The compiler's calls come in at the end of this file. */
#include "core.h"

static unsigned char smem[SMEM_MAX + 4096] __attribute__((aligned(1024)));
static unsigned char smem_state[SMEM_MAX + 4096];
static Cell smem_cell[SMEM_MAX + 4096], smem_quad[(SMEM_MAX + 4096) / 4];
static size_t smem_open; /* bytes that the block before had */

unsigned char *smem_base() { return smem; }
bool in_smem(uintptr_t a) { return a - (uintptr_t)smem < sizeof smem; }
void *simt_smem(size_t) { return smem; }

void shadow_block() {
    size_t n = core.launch->smem;
    memset(smem, 0xFF, n); /* NaN */
    memset(smem_state, BYTE_NEW | BYTE_OPEN, n);
    if (smem_open > n) memset(smem_state + n, 0, smem_open - n);
    smem_open = n;
}
void shadow_flight(uintptr_t at, int n, bool on) {
    unsigned char *s = smem_state + (at - (uintptr_t)smem);
    for (int i = 0; i < n; i++) s[i] = (unsigned char)(on ? s[i] | BYTE_FLIGHT : s[i] & ~BYTE_FLIGHT);
}

static const char *doing(unsigned flags) {
    return flags & ACCESS_ATOMIC ? "updates" : flags & ACCESS_WRITE ? "writes" : "reads";
}
/* "byte 12 of shared memory", "byte 12 of x (40 bytes)" */
static const char *place_name(uintptr_t a, char buf[128], uintptr_t *offset) {
    size_t off = a, size = 0;
    char name[64] = "";
    if (in_smem(a)) {
        *offset = a - (uintptr_t)smem;
        snprintf(buf, 128, "byte %zu of shared memory (%zu bytes)", (size_t)*offset, core.launch->smem);
    } else if (in_heap(a) && heap_find(a, name, sizeof name, &off, &size)) {
        *offset = off;
        snprintf(buf, 128, "byte %zu of %s (%zu bytes)", off, name, size);
    } else {
        *offset = a;
        snprintf(buf, 128, "address %#zx", (size_t)a);
    }
    return buf;
}
static void tell(SimtFault f, const void *pc, uintptr_t a, size_t n, unsigned flags, const char *why) {
    char buf[128];
    uintptr_t at;
    place_name(a, buf, &at);
    report(f, pc, at, "%s %zu bytes at %s%s", doing(flags), n, buf, why);
}
static void tell_race(const void *pc, uintptr_t a, size_t n, unsigned flags, uint32_t other, const char *did) {
    unsigned block = 0;
    int thread = 0;
    char why[128] = "";
    if (order_who(other, &block, &thread))
        snprintf(why, sizeof why, ", which thread %d of block %u %s: nothing orders the two", thread, block, did);
    tell(in_smem(a) ? SIMT_RACE_SHARED : SIMT_RACE_GLOBAL, pc, a, n, flags, why);
}

/* Two readers are remembered, of different warps where there are: a reader that what comes later knows of may be
 * forgotten. */
static void note_reader(Cell *c, uint32_t me, const Thread *t) {
    if (ordered(c->reader, t)) {
        c->reader = me;
        return;
    }
    if (ordered(c->other, t) || same_warp(c->reader, t)) {
        if (!same_warp(c->reader, t)) c->other = c->reader;
        c->reader = me;
    } else if (same_warp(c->other, t))
        c->other = me;
}
static const uint32_t ATOMIC = 0x80000000u;

struct Touch {
    const Thread *t;
    uint32_t me; /* its segment */
    uintptr_t a;
    size_t n;
    unsigned flags;
    const void *pc;
};
/* Bytes of one history; false: reported, so that the rest of the access need not be. */
static inline bool touch(const Touch &x, Cell *c, unsigned char *s) {
    const Thread *t = x.t;
    const uint32_t me = x.me;
    const uintptr_t a = x.a;
    const size_t n = x.n;
    const unsigned flags = x.flags;
    const void *pc = x.pc;
    bool write = flags & (ACCESS_WRITE | ACCESS_ATOMIC), reads = !(flags & ACCESS_WRITE);
    uint32_t w = c->writer & ~ATOMIC;
    if (*s & BYTE_FLIGHT) {
        tell(SIMT_EARLY, pc, a, n, flags, ", where a cp.async that was not waited for is to arrive");
        return false;
    }
    if (reads && !(*s & BYTE_WRITTEN)) {
        tell(SIMT_UNWRITTEN, pc, a, n, flags, ", which nobody has written");
        *s |= BYTE_WRITTEN; /* once is enough */
        return false;
    }
    if (!(flags & ACCESS_ATOMIC && c->writer & ATOMIC) && !ordered(w, t)) {
        tell_race(pc, a, n, flags, w, c->writer & ATOMIC ? "updates by an atomic" : "writes");
        c->writer = write ? me | (flags & ACCESS_ATOMIC ? ATOMIC : 0) : c->writer;
        return false;
    }
    if (write) {
        uint32_t r = !ordered(c->reader, t) ? c->reader : !ordered(c->other, t) ? c->other : 0;
        c->writer = me | (flags & ACCESS_ATOMIC ? ATOMIC : 0);
        c->reader = c->other = 0;
        *s |= BYTE_WRITTEN;
        if (r) {
            tell_race(pc, a, n, flags, r, "reads");
            return false;
        }
    } else if (c->reader != me)
        note_reader(c, me, t);
    return true;
}
/* Where a byte's state and histories are. */
struct Place {
    unsigned char *s;
    Cell *c, *quad; /* of the byte, and of the aligned four that hold it */
};
static bool alike(const unsigned char *s, size_t m, unsigned char bit) {
    uint32_t states = 0;
    if (!(s[0] & bit)) return false;
    memcpy(&states, s, m);
    return states == (m == 4 ? s[0] * 0x01010101u : s[0] * 0x0101u);
}
/* The cell of the byte at `a` and of as many of the n - 1 bytes behind it as share it: *m in all. */
static Cell *cell_of(Place x, uintptr_t a, size_t n, size_t *m) {
    unsigned char *s = x.s;
    if (a % 4 == 0 && n >= 4) {
        *m = 4;
        if (alike(s, 4, BYTE_QUAD)) return x.quad;
        if (alike(s, 4, BYTE_NEW)) {
            memset(s, (s[0] & ~BYTE_NEW) | BYTE_QUAD, 4);
            *x.quad = {};
            return x.quad;
        }
    }
    if (*s & BYTE_QUAD) {
        const size_t at = a % 4;
        for (size_t i = 0; i < 4; i++) s[i - at] = (unsigned char)((s[i - at] & ~BYTE_QUAD) | BYTE_PAIR);
        x.c[0 - at] = x.c[2 - at] = *x.quad;
    }
    if (a % 2 == 0 && n >= 2) {
        *m = 2;
        if (alike(s, 2, BYTE_PAIR)) return x.c;
        if (alike(s, 2, BYTE_NEW)) {
            memset(s, (s[0] & ~BYTE_NEW) | BYTE_PAIR, 2);
            *x.c = {};
            return x.c;
        }
    }
    *m = 1;
    if (*s & BYTE_PAIR) {
        const size_t at = a % 2;
        for (size_t i = 0; i < 2; i++) s[i - at] = (unsigned char)(s[i - at] & ~BYTE_PAIR);
        x.c[1 - at] = x.c[0 - at];
    }
    if (*s & BYTE_NEW) *s = (unsigned char)(*s & ~BYTE_NEW), *x.c = {};
    return x.c;
}
/* Aligned bytes that were touched together have one history from then on, if they have. */
static void join(Place x, size_t m) {
    const unsigned char bits = BYTE_PAIR | BYTE_QUAD;
    for (size_t i = 1; i < m; i++) {
        if ((x.s[i] ^ x.s[0]) & ~bits) return;
        if (!(i % 2 && x.s[i] & BYTE_PAIR) && memcmp(&x.c[i], x.c, sizeof *x.c)) return;
    }
    if (m == 4) *x.quad = *x.c;
    memset(x.s, (x.s[0] & ~bits) | (m == 4 ? BYTE_QUAD : BYTE_PAIR), m);
}

extern "C" char __executable_start __attribute__((weak)), data_start __attribute__((weak));
static bool constant(uintptr_t a) { return a >= (uintptr_t)&__executable_start && a < (uintptr_t)&data_start; }
static bool argument(uintptr_t a) {
    uintptr_t p = (uintptr_t)core.launch->call.args;
    return a >= p && a < p + core.launch->call.args_bytes;
}
static void stray(Thread *t, uintptr_t a, size_t n, unsigned flags, const void *pc) {
    for (int i = 0; i < core.threads; i++)
        if (a - (uintptr_t)core.thread[i].stack < STACK) {
            tell(SIMT_OUTSIDE, pc, a, n, flags, ": a local variable of another thread");
            return;
        }
    (void)t;
    tell(SIMT_OUTSIDE, pc, a, n, flags, ": neither device memory, shared memory nor a constant");
}

static inline void count(const Thread *t, uintptr_t a, size_t n, bool write, bool shared, const void *pc) {
    if (!shared) (write ? asked.written : asked.read) += (double)n;
    if (asked.each) estimate_access(t, a, n, shared, pc);
}
static bool all_open(const unsigned char *s, size_t n) {
    uint32_t four;
    for (; n >= 4; n -= 4, s += 4) {
        memcpy(&four, s, 4);
        if ((four & 0x01010101u * BYTE_OPEN) != 0x01010101u * BYTE_OPEN) return false;
    }
    for (; n; n--)
        if (!(*s++ & BYTE_OPEN)) return false;
    return true;
}

void observe(const void *p, size_t n, unsigned flags, const void *pc) {
    Thread *t = core.now;
    uintptr_t a = (uintptr_t)p;
    if (!t) {
        if (in_heap(a) && !(*heap_state(a) & BYTE_SHARED_WITH_HOST))
            tell(SIMT_HOST, pc, a, n, flags, ", device memory, on the host");
        return;
    }
    if (a - (uintptr_t)t->stack < STACK) return;
    bool shared = in_smem(a), write = flags & (ACCESS_WRITE | ACCESS_ATOMIC);
    if (!shared && !in_heap(a)) {
        if (write || !(argument(a) || constant(a))) stray(t, a, n, flags, pc);
        return;
    }
    if (a & (n - 1) && (n & (n - 1)) == 0 && n <= 16) {
        tell(SIMT_MISALIGNED, pc, a, n, flags, ", which is no multiple of their size");
        return;
    }
    const uintptr_t off = a - (uintptr_t)smem;
    const Place at = shared ? Place{smem_state + off, smem_cell + off, smem_quad + off / 4}
                            : Place{heap_state(a), heap.cells + (a - (uintptr_t)heap.memory),
                                    heap.quads + (a - (uintptr_t)heap.memory) / 4};
    unsigned char *s = at.s;
    if (!all_open(s, n)) {
        tell(SIMT_OUTSIDE, pc, a, n, flags, ": outside");
        return;
    }
    if (!(flags & ACCESS_QUIET)) count(t, a, n, write, shared, pc);
    const Touch x = {t, order_segment(t), a, n, flags, pc};
    Cell before = {}, after = {};
    unsigned char state = 0, left = 0;
    bool whole = true;
    for (size_t i = 0, m; i < n; i += m) {
        Cell *c = cell_of({s + i, at.c + i, at.quad + (a % 4 + i) / 4}, a + i, n - i, &m);
        unsigned char now = s[i];
        whole &= m == 4;
        if (i && now == state && !memcmp(c, &before, sizeof before)) { /* of one history as far as here */
            *c = after;
            if (left != state) memset(s + i, left, m);
            continue;
        }
        before = *c, state = now;
        if (!touch(x, c, &now)) { /* reported; once for the whole access */
            memset(s + i, now, m);
            for (size_t k = i + m; k < n && !(state & BYTE_FLIGHT); k++)
                at.c[k] = *c, s[k] = (unsigned char)(now & ~(BYTE_PAIR | BYTE_QUAD));
            return;
        }
        if (now != state) memset(s + i, now, m);
        after = *c, left = now;
    }
    if (whole) return;
    for (size_t i = -a % 4; i + 4 <= n; i += 4)
        if (!(s[i] & BYTE_QUAD)) join({s + i, at.c + i, at.quad + (a % 4 + i) / 4}, 4);
    if (n == 2 && a % 2 == 0 && !(*s & BYTE_PAIR)) join(at, 2);
}

/* The common case of `observe`: whole numbers that were written and accessed so before, with nothing to report.
 * Anything else goes there. */
template <size_t n, bool write> static inline __attribute__((always_inline)) void see(void *p, const void *pc) {
    Thread *t = core.now;
    const uintptr_t a = (uintptr_t)p;
    if (t && a - (uintptr_t)t->stack < STACK) return;
    if (n < 2 || !t || a % n) return observe(p, n, write ? ACCESS_WRITE : ACCESS_READ, pc);
    const uintptr_t in = a - (uintptr_t)smem, out = a - (uintptr_t)heap.memory;
    const bool shared = in < sizeof smem;
    if (!shared && out >= heap.size) return observe(p, n, write ? ACCESS_WRITE : ACCESS_READ, pc);
    const unsigned char *s = shared ? smem_state + in : heap.state + out;
    const size_t unit = n < 4 ? 2 : 4;
    const uint32_t ones = n < 4 ? 0x0101u : 0x01010101u;
    Cell *cell = n < 4    ? (shared ? smem_cell + in : heap.cells + out)
                 : shared ? smem_quad + in / 4
                          : heap.quads + out / 4;
    const uint32_t me = order_segment(t);
    for (size_t i = 0; i < n / unit; i++) {
        uint32_t states = 0;
        memcpy(&states, s + unit * i, unit);
        const Cell c = cell[i];
        bool plain = (states & ~(ones * BYTE_SHARED_WITH_HOST)) ==
                     ones * (BYTE_OPEN | BYTE_WRITTEN | (n < 4 ? BYTE_PAIR : BYTE_QUAD));
        plain = plain && (c.writer == me || ordered(c.writer & ~ATOMIC, t));
        if (write) plain = plain && (c.reader == me || ordered(c.reader, t)) && ordered(c.other, t);
        if (!plain) return observe(p, n, write ? ACCESS_WRITE : ACCESS_READ, pc);
    }
    count(t, a, n, write, shared, pc);
    for (size_t i = 0; i < n / unit; i++)
        if (write)
            cell[i] = {me, 0, 0};
        else if (cell[i].reader != me)
            note_reader(&cell[i], me, t);
}

/* ---- accesses that are one on the device, whatever the compiler makes of the types ---- */
void simt_load(void *out, const void *from, int size) {
    if (size == 8)
        see<8, false>((void *)from, __builtin_return_address(0));
    else if (size == 16)
        see<16, false>((void *)from, __builtin_return_address(0));
    else
        observe(from, (size_t)size, ACCESS_READ, __builtin_return_address(0));
    memcpy(out, from, (size_t)size);
}
void simt_store(void *to, const void *in, int size) {
    if (size == 8)
        see<8, true>(to, __builtin_return_address(0));
    else if (size == 16)
        see<16, true>(to, __builtin_return_address(0));
    else
        observe(to, (size_t)size, ACCESS_WRITE, __builtin_return_address(0));
    memcpy(to, in, (size_t)size);
}

/* ---- cp.async: the bytes are written when they are waited for, and NaN until then ---- */
void simt_cp_async(void *to, const void *from, int size, int valid) {
    const void *pc = __builtin_return_address(0);
    Thread *t = core.now;
    uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
    char buf[128];
    uintptr_t at;
    if (!in_smem(a) || (size != 4 && size != 8 && size != 16) || valid < 0 || valid > size) {
        report(SIMT_OUTSIDE, pc, a, "cp.async of %d (%d valid) bytes to %s: expected 4, 8 or 16 to shared memory", size,
               valid, place_name(a, buf, &at));
        return;
    }
    if (valid && (!in_heap(b) || b % (unsigned)size)) {
        report(in_heap(b) ? SIMT_MISALIGNED : SIMT_OUTSIDE, pc, b, "cp.async of %d bytes from %s", size,
               place_name(b, buf, &at));
        return;
    }
    if (valid) observe(from, (size_t)valid, ACCESS_READ, pc);
    unsigned char *s = smem_state + (a - (uintptr_t)smem);
    observe(to, (size_t)size, ACCESS_WRITE | ACCESS_QUIET, pc);
    for (int i = 0; i < size; i++)
        if (!(s[i] & BYTE_OPEN)) return;
    if (a % (unsigned)size) return;
    memset(to, 0xFF, (size_t)size);
    shadow_flight(a, size, true);
    t->copies.push_back({a, b, size, valid, t->group, pc});
}
void simt_cp_commit() { core.now->group++; }
void copies_done(Thread *t, int group) {
    size_t kept = 0;
    for (Copy &c : t->copies) {
        if (c.group > group) {
            t->copies[kept++] = c;
            continue;
        }
        shadow_flight(c.to, c.size, false);
        observe((void *)c.to, (size_t)c.size, ACCESS_WRITE | ACCESS_QUIET, c.pc);
        memcpy((void *)c.to, (const void *)c.from, (size_t)c.valid);
        memset((char *)c.to + c.valid, 0, (size_t)(c.size - c.valid));
    }
    t->copies.resize(kept);
}
void simt_cp_wait(int groups) { copies_done(core.now, core.now->group - 1 - groups); }

/* ---- atomics ---- */
#define UPDATE(T, name, now)                                               \
    T name(T *p, T v) {                                                    \
        observe(p, sizeof *p, ACCESS_ATOMIC, __builtin_return_address(0)); \
        T old = *p;                                                        \
        *p = now;                                                          \
        return old;                                                        \
    }
UPDATE(float, atomicAdd, old + v)
UPDATE(double, atomicAdd, old + v)
UPDATE(int, atomicAdd, (int)((unsigned)old + (unsigned)v))
UPDATE(unsigned, atomicAdd, old + v)
UPDATE(unsigned long long, atomicAdd, old + v)
UPDATE(int, atomicMax, old > v ? old : v)
UPDATE(unsigned, atomicMax, old > v ? old : v)
UPDATE(int, atomicMin, old < v ? old : v)
UPDATE(unsigned, atomicExch, v)
UPDATE(int, atomicExch, v)
#define SWAP(T)                                                            \
    T atomicCAS(T *p, T want, T v) {                                       \
        observe(p, sizeof *p, ACCESS_ATOMIC, __builtin_return_address(0)); \
        T old = *p;                                                        \
        if (old == want) *p = v;                                           \
        return old;                                                        \
    }
SWAP(int)
SWAP(unsigned)
SWAP(unsigned long long)

/* ---- what the compiler calls; the C interface of the thread sanitizer's runtime (gcc 12, clang 14) ---- */
#define RW(n)                                                                                           \
    void __tsan_read##n(void *p) { see<n, false>(p, __builtin_return_address(0)); }                     \
    void __tsan_write##n(void *p) { see<n, true>(p, __builtin_return_address(0)); }                     \
    void __tsan_unaligned_read##n(void *p) { observe(p, n, ACCESS_READ, __builtin_return_address(0)); } \
    void __tsan_unaligned_write##n(void *p) { observe(p, n, ACCESS_WRITE, __builtin_return_address(0)); }
extern "C" {
RW(1)
RW(2)
RW(4)
RW(8)
RW(16)
void __tsan_read_range(void *p, size_t n) { observe(p, n, ACCESS_READ, __builtin_return_address(0)); }
void __tsan_write_range(void *p, size_t n) { observe(p, n, ACCESS_WRITE, __builtin_return_address(0)); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_read(void *) {}
void __tsan_vptr_update(void **, void *) {}
}
