/* fibre.cpp: threads as fibres, the order in which they run, barriers. */
#include "core.h"
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#ifndef __x86_64__
    #include <ucontext.h>
#endif

Core core;

uint64_t draw() { /* splitmix64 */
    uint64_t x = (core.draws += 0x9E3779B97F4A7C15u) + core.seed * 0xD1B54A32D192ED03u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}
void simt_seed(uint64_t seed) {
    core.seed = seed;
    core.draws = 0;
}

/* ---- switching ---- */
static void enter() {
    core.launch->call.run(core.launch->call.args);
    Thread *t = core.now;
    if (!t->copies.empty())
        report(SIMT_EARLY, t->copies[0].pc, 0, "ends with %zu cp.async that it never waited for", t->copies.size());
    t->copies.clear();
    t->state = DONE;
    core.ended[t->warp] |= 1u << t->id % WARP;
    core.live--;
    wait_here(DONE);
    abort();
}
#ifdef __x86_64__
/* The System V ABI's callee-saved registers; a kernel does not change the floating-point modes. */
extern "C" void simt_switch(void **from, void *to);
asm(R"(
    .text
    .globl simt_switch
    .type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simt_switch, .-simt_switch
)");
static void fibre_make(Thread *t) {
    void **sp = (void **)t->here;
    *--sp = nullptr; /* where `enter` would return to: keeps the stack aligned as behind a call */
    *--sp = (void *)enter;
    t->sp = sp - 6;
}
static void go(Thread *t) { simt_switch(&core.host_sp, t->sp); }
static void back(Thread *t) { simt_switch(&t->sp, core.host_sp); }
#else
static ucontext_t host_context, contexts[THREADS_MAX];
static void fibre_make(Thread *t) {
    ucontext_t *c = &contexts[t->id];
    getcontext(c);
    c->uc_stack.ss_sp = t->stack;
    c->uc_stack.ss_size = (size_t)((char *)t->here - t->stack);
    c->uc_link = nullptr;
    makecontext(c, enter, 0);
}
static void go(Thread *t) { swapcontext(&host_context, &contexts[t->id]); }
static void back(Thread *t) { swapcontext(&contexts[t->id], &host_context); }
#endif

static void step(Thread *t) {
    core.now = t;
    go(t);
    core.now = nullptr;
}
void wait_here(State s) {
    Thread *t = core.now;
    t->state = s;
    core.asleep[t->warp] |= 1u << t->id % WARP;
    back(t);
}
const SimtHere *simt_here() { return core.now->here; }

static void stack_make(Thread *t) {
    if (t->stack) return;
    /* The page below ends a kernel that outgrows its stack. */
    char *p =
        (char *)mmap(nullptr, STACK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, 4096, PROT_NONE)) {
        fprintf(stderr, "simt: no memory for the stacks of %d threads\n", core.threads);
        exit(1);
    }
    t->stack = p + 4096;
    t->here = (SimtHere *)(t->stack + STACK - ((sizeof(SimtHere) + 63) & ~(size_t)63));
}

/* ---- barriers ---- */
/* All that wait at barrier b go on. */
static void release(int b) {
    Barrier *bar = &core.barrier[b];
    if (b == 0) order_all();
    for (int id : bar->waiting) {
        core.thread[id].state = READY;
        core.asleep[id / WARP] &= ~(1u << id % WARP);
        if (b) order_leave(bar, &core.thread[id]);
    }
    *bar = {};
}
static void arrive(int b, int expected, bool wait, const char *file, int line) {
    Thread *t = core.now;
    Barrier *bar = &core.barrier[b];
    if (bar->arrived == 0) {
        bar->expected = expected;
        bar->file = file;
        bar->line = line;
    } else if (b == 0 && (bar->file != file || bar->line != line)) {
        report(SIMT_DIVERGENT, nullptr, (uintptr_t)line, "is at the barrier of %s:%d while others wait at %s:%d", file,
               line, bar->file, bar->line);
        bar->file = file, bar->line = line;
    } else if (bar->expected != expected)
        report(SIMT_DIVERGENT, nullptr, (uintptr_t)line, "names %d threads at barrier %d, others %d", expected, b,
               bar->expected);
    bar->arrived++;
    if (b) order_arrive(bar, t);
    if (wait) bar->waiting.push_back(t->id);
    t->file = file, t->line = line;
    bool last = bar->arrived == bar->expected;
    if (last) release(b);
    if (wait && !last) wait_here(AT_BARRIER);
}
void __syncthreads(SIMT_AT_DEF) { arrive(0, core.threads, true, file, line); }
void simt_bar_sync(int id, int threads, SIMT_AT_DEF) {
    if (id < 0 || id >= BARRIERS || threads <= 0 || threads % WARP || threads > core.threads)
        report(SIMT_DIVERGENT, nullptr, (uintptr_t)line, "barrier %d of %d threads: expected 0..15, whole warps of %d",
               id, threads, core.threads);
    else
        arrive(id, threads, true, file, line);
}
void simt_bar_arrive(int id, int threads, SIMT_AT_DEF) {
    if (id <= 0 || id >= BARRIERS || threads <= 0 || threads % WARP || threads > core.threads)
        report(SIMT_DIVERGENT, nullptr, (uintptr_t)line, "barrier %d of %d threads: expected 1..15, whole warps of %d",
               id, threads, core.threads);
    else
        arrive(id, threads, false, file, line);
}
void __threadfence() {}
void __threadfence_block() {}

/* ---- a block ---- */
/* Nobody can run. Threads that ended while others wait for all is the common case, and named as such; the barrier then
 * opens, so that the rest of the kernel is seen, too. */
static bool unlock() {
    for (int b = 0; b < BARRIERS; b++) {
        Barrier *bar = &core.barrier[b];
        if (!bar->arrived) continue;
        if (bar->waiting.empty()) continue;
        core.now = &core.thread[bar->waiting[0]];
        if (b == 0 && bar->arrived == core.live && core.live < core.threads) {
            report(SIMT_DIVERGENT, nullptr, (uintptr_t)bar->line,
                   "waits at the barrier of %s:%d, but %d threads of the block have ended", bar->file, bar->line,
                   core.threads - core.live);
            core.now = nullptr;
            release(0);
            return true;
        }
        core.now = nullptr;
    }
    for (int i = 0; i < core.threads; i++) {
        Thread *t = &core.thread[i];
        if (t->state == DONE) continue;
        core.now = t;
        const char *file = t->state == AT_WARP ? t->call.file : t->file;
        int line = t->state == AT_WARP ? t->call.line : t->line;
        report(SIMT_DEADLOCK, nullptr, (uintptr_t)line, "waits for ever at the %s of %s:%d; %d threads are left",
               t->state == AT_WARP ? "warp collective" : "barrier", file, line, core.live);
        core.now = nullptr;
        break;
    }
    core.abandoned = true;
    return false;
}

static void shuffle(int *v, int n) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(draw() % (uint64_t)(i + 1)), x = v[i];
        v[i] = v[j], v[j] = x;
    }
}
static void order_of(int *v, int n) {
    for (int i = 0; i < n; i++) v[i] = core.seed == 1 ? n - 1 - i : i;
    if (core.seed > 1) shuffle(v, n);
}

static void run_block() {
    int warp[WARPS_MAX], lane[WARP];
    const Launch *l = core.launch;
    for (int i = 0; i < core.threads; i++) {
        Thread *t = &core.thread[i];
        stack_make(t);
        unsigned u = (unsigned)i;
        *t->here = {{u % l->block.x, u / l->block.x % l->block.y, u / l->block.x / l->block.y},
                    core.block,
                    l->block,
                    l->grid};
        t->id = i, t->warp = i / WARP;
        t->state = READY;
        t->segment = 0, t->clock = 1, t->row_epoch = 0;
        t->group = 0;
        t->copies.clear();
        fibre_make(t);
    }
    for (Barrier &b : core.barrier) b = {};
    for (int w = 0; w < core.warps; w++) {
        int lanes = core.threads - w * WARP;
        core.waiting[w] = 0, core.asleep[w] = core.ended[w] = lanes < WARP ? ~0u << lanes : 0;
    }
    core.live = core.threads;
    order_block();
    shadow_block();
    while (core.live && !core.abandoned) {
        bool moved = false;
        order_of(warp, core.warps);
        for (int w = 0; w < core.warps && !core.abandoned; w++) {
            /* A warp may run ahead as far as it gets, or keep step with the others. */
            bool ahead = core.seed < 2 || draw() % 2, again;
            do {
                again = false;
                if (core.asleep[warp[w]] == ~0u) break;
                order_of(lane, WARP);
                for (int k = 0; k < WARP && !core.abandoned; k++) {
                    if (core.asleep[warp[w]] >> lane[k] & 1) continue;
                    step(&core.thread[warp[w] * WARP + lane[k]]);
                    moved = again = true;
                }
            } while (again && ahead && !core.abandoned);
        }
        if (!moved && core.live && !unlock()) break;
    }
    for (int i = 0; i < core.threads; i++) core.thread[i].copies.clear();
}

void run_kernel(const Launch *l) {
    core.launch = l;
    core.threads = (int)(l->block.x * l->block.y * l->block.z);
    core.warps = (core.threads + WARP - 1) / WARP;
    core.abandoned = false;
    size_t blocks = (size_t)l->grid.x * l->grid.y * l->grid.z;
    order_launch();
    estimate_launch(l);
    size_t start = core.seed > 1 ? (size_t)(draw() % blocks) : 0;
    for (size_t i = 0; i < blocks && !core.abandoned; i++) {
        size_t b = core.seed == 1 ? blocks - 1 - i : (i + start) % blocks;
        core.block = {(unsigned)(b % l->grid.x), (unsigned)(b / l->grid.x % l->grid.y),
                      (unsigned)(b / l->grid.x / l->grid.y)};
        estimate_block(i);
        run_block();
        estimate_block_end();
    }
    report_end_of_launch();
    core.launch = nullptr;
}
