/* runtime.cpp: streams, events, graphs, memory. Nothing runs before somebody waits for it; then streams take turns as
 * the seed draws them, so that what only happened to be in order on one device is not on this one. */
#include "core.h"
#include "tests/simt/include/cuda_runtime.h"
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unistd.h>

/* ---- work ---- */
struct Mark { /* one recording of an event */
    bool done;
    double at;
};
struct Task {
    std::function<void()> run;
    std::shared_ptr<Mark> waits;    /* not before this is done */
    std::function<bool()> can = {}; /* nor before this says so: what it waits for is outside of the process */
};
/* What a captured piece of work was given: an allocation by its number, or pinned memory by where it begins. */
struct Held {
    uintptr_t at;
    uint64_t number; /* of heap_number; 0: pinned */
};
struct Node {
    Task task;
    std::vector<int> after;
    std::string name;
    std::vector<Held> held;
    std::shared_ptr<Launch> launch; /* of a kernel */
};
struct SimtGraph {
    std::vector<Node> nodes;
    int users; /* graph and executable share it */
};
struct SimtStream {
    std::deque<Task> queue;
    SimtGraph *capture; /* records instead of running */
    std::vector<int> last;
    bool origin;
};
struct SimtEvent {
    std::shared_ptr<Mark> mark;
    SimtGraph *capture; /* recorded while this was captured, behind these nodes */
    std::vector<int> nodes;
};
static std::vector<SimtStream *> streams; /* in the order of their making, so that a seed means one order */
static std::map<const void *, int> smem_limit;
static std::map<uintptr_t, size_t> pinned_size;
static cudaError_t last_error, broken; /* broken: what a kernel did to the device, which every later wait reports */

static cudaError_t fail(cudaError_t e) { return last_error = e; }
static double seconds() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool ready(const SimtStream *s) {
    if (s->queue.empty()) return false;
    const Task &t = s->queue.front();
    return (!t.waits || t.waits->done) && (!t.can || t.can());
}
static bool outside() { /* something may still come from other processes */
    for (SimtStream *s : streams)
        if (!s->queue.empty() && s->queue.front().can) return true;
    return false;
}
static bool step() { /* one task of one stream; false: none can run */
    std::vector<SimtStream *> can;
    for (SimtStream *s : streams)
        if (ready(s)) can.push_back(s);
    if (can.empty()) return false;
    SimtStream *s = core.seed == 0 ? can.front() : core.seed == 1 ? can.back() : can[draw() % can.size()];
    Task t = s->queue.front();
    s->queue.pop_front();
    if (t.run) t.run();
    return true;
}
/* Runs what is queued until `done`. Device memory is open to the host's hands, which do the work, only meanwhile. */
static void until(const std::function<bool()> &done) {
    if (done()) return;
    heap_open(true);
    do {
        if (!step()) {
            if (outside()) {
                usleep(50);
                continue;
            }
            report(SIMT_HOST, nullptr, 0, "streams wait for each other for ever");
            break;
        }
    } while (!done());
    heap_open(false);
}
static void drain() {
    until([] {
        for (SimtStream *s : streams)
            if (!s->queue.empty()) return false;
        return true;
    });
}
static bool capturing() {
    for (SimtStream *s : streams)
        if (s->capture) return true;
    return false;
}
/* What waits for the device may not be asked for while a graph is recorded. */
bool simt_forbidden(const char *what) {
    if (!capturing()) return false;
    report(SIMT_HOST, nullptr, 0, "%s while a stream is captured", what);
    fail(cudaErrorStreamCaptureUnsupported);
    return true;
}
static bool is_pinned(const void *p);
static uintptr_t pinned_begin(const void *p);
static void hold(Node *n, uintptr_t a) {
    uint64_t number = heap_number(a);
    if (number)
        n->held.push_back({a, number});
    else if (is_pinned((const void *)a))
        n->held.push_back({pinned_begin((const void *)a), 0});
}
/* A graph that is replayed uses what it was captured with: whoever gave that back since is found here, before its
 * memory is somebody else's. */
static bool still_there(const Node &n) {
    for (const Held &h : n.held) {
        if (h.number ? heap_number(h.at) == h.number : pinned_size.count(h.at)) continue;
        report(SIMT_HOST, nullptr, 0, "a graph is replayed whose %s was captured with memory that has been given back",
               n.name.c_str());
        return false;
    }
    return true;
}
static void push(cudaStream_t s, Task t, const Node &about = Node()) {
    if (!s) {
        if (simt_forbidden("work in stream 0")) return;
        drain();
        heap_open(true);
        if (t.run) t.run();
        heap_open(false);
    } else if (s->capture) {
        s->capture->nodes.push_back(about);
        s->capture->nodes.back().task = t, s->capture->nodes.back().after = s->last;
        s->last = {(int)s->capture->nodes.size() - 1};
    } else
        s->queue.push_back(t);
}

/* ---- kernels ---- */
/* SIMT_FAULT=launch:NAME:N: launch N (1: the first, which may be left out) of the kernels whose names contain NAME is
 * refused, as by a device with too few registers for it. run:NAME:N: it is accepted, and fails while it runs. An empty
 * NAME counts all launches. */
static bool planted(const char *kind, const char *kernel) {
    static long counted;
    const char *said = getenv("SIMT_FAULT");
    size_t n = strlen(kind);
    if (!said || strncmp(said, kind, n) || said[n] != ':') return false;
    const char *name = said + n + 1, *end = strchr(name, ':');
    std::string part = end ? std::string(name, end) : std::string(name);
    return strstr(kernel, part.c_str()) && ++counted == (end ? atol(end + 1) : 1);
}
static unsigned long most_threads(const char *kernel) { /* as LAUNCH has it: name, or (name<..>) */
    static const struct {
        const char *kernel;
        unsigned long threads;
    } large[] = {
#define LARGE_BLOCK(kernel, threads) {#kernel, threads},
#include "blocks.h"
    };
    kernel += *kernel == '(';
    for (auto &x : large)
        if (!strncmp(kernel, x.kernel, strlen(x.kernel)) && !isalnum((unsigned char)kernel[strlen(x.kernel)]) &&
            kernel[strlen(x.kernel)] != '_')
            return x.threads;
    return 256;
}
static const char *refused(const Launch *l, char why[160]) {
    unsigned long n = (unsigned long)l->block.x * l->block.y * l->block.z;
    int limit = SMEM_PLAIN;
    auto it = smem_limit.find(l->call.kernel);
    if (it != smem_limit.end()) limit = it->second;
    if (n < 1 || n > THREADS_MAX || l->block.z > 64)
        snprintf(why, 160, "blocks of (%u,%u,%u) threads: expected 1 to 1024, z to 64", l->block.x, l->block.y,
                 l->block.z);
    else if (n > most_threads(l->name))
        snprintf(why, 160, "blocks of %lu threads: expected at most %lu, or a line in tests/simt/blocks.h", n,
                 most_threads(l->name));
    else if (!l->grid.x || !l->grid.y || !l->grid.z || l->grid.x > 0x7FFFFFFF || l->grid.y > 65535 || l->grid.z > 65535)
        snprintf(why, 160, "a grid of (%u,%u,%u) blocks: expected 1 to 2^31-1, 65535, 65535", l->grid.x, l->grid.y,
                 l->grid.z);
    else if (l->smem > (size_t)limit)
        snprintf(why, 160, "%zu bytes of shared memory, allowed are %d (48 KB; to 227 KB by cudaFuncSetAttribute)",
                 l->smem, limit);
    else
        return nullptr;
    return why;
}
static struct {
    SimtGraph *graph; /* NULL: none */
    size_t next;
} again;
static bool same(const Launch *a, const Launch *b) {
    return a->call.kernel == b->call.kernel && !memcmp(&a->grid, &b->grid, sizeof a->grid) &&
           !memcmp(&a->block, &b->block, sizeof a->block) && a->smem == b->smem &&
           a->call.said_bytes == b->call.said_bytes &&
           (!simt_comparable || !memcmp(a->call.said, b->call.said, a->call.said_bytes));
}
static const Launch *next_launch() {
    while (again.next < again.graph->nodes.size())
        if (const Launch *l = again.graph->nodes[again.next++].launch.get()) return l;
    return nullptr;
}
static void retrace(const Launch *l) {
    if (!again.graph) return;
    const Launch *was = next_launch();
    if (was && same(was, l)) return;
    report(SIMT_HOST, nullptr, 0, "kernel %s is not launched as it was captured (%s): a replay would do something else",
           l->name,
           !was                                           ? "it was not"
           : was->call.kernel != l->call.kernel           ? was->name
           : memcmp(&was->grid, &l->grid, sizeof l->grid) ? "another grid"
                                                          : "another argument");
}
void simt_retrace(cudaGraphExec_t x) {
    const Launch *left = again.graph ? next_launch() : nullptr;
    if (left) report(SIMT_HOST, nullptr, 0, "kernel %s, which was captured, is not launched again", left->name);
    again.graph = x, again.next = 0;
}
void simt_launch(const char *name, dim3 grid, dim3 block, size_t smem, cudaStream_t s, SimtCall call) {
    std::shared_ptr<Launch> l(new Launch{name, grid, block, smem, call}, [](Launch *x) {
        x->call.drop(x->call.args);
        delete x;
    });
    char why[160];
    if (refused(l.get(), why)) {
        report(SIMT_LAUNCH, nullptr, 0, "kernel %s: %s", name, why);
        fail(cudaErrorInvalidConfiguration);
        return;
    }
    if (s && planted("launch", name)) {
        fail(cudaErrorLaunchOutOfResources);
        return;
    }
    Node about = Node();
    if (!s) { /* nothing runs without a stream: see simt_retrace */
        retrace(l.get());
        return;
    }
    if (s->capture) {
        for (size_t i = 0; i + sizeof(uintptr_t) <= call.said_bytes; i += sizeof(uintptr_t)) {
            uintptr_t a;
            memcpy(&a, (const char *)call.said + i, sizeof a);
            if (in_heap(a)) hold(&about, a);
        }
        about.name = std::string("kernel ") + name;
        about.launch = l;
    }
    bool breaks = s && planted("run", name);
    push(s,
         {[l, breaks] {
              if (breaks) broken = last_error = cudaErrorIllegalAddress;
              if (broken == cudaSuccess) run_kernel(l.get());
          },
          nullptr},
         about);
}
cudaError_t simt_func_attribute(const void *kernel, cudaFuncAttribute, int v) {
    if (v < 0 || v > SMEM_MAX) return fail(cudaErrorInvalidValue);
    smem_limit[kernel] = v;
    return cudaSuccess;
}

/* ---- memory ---- */
cudaError_t simt_malloc(void **p, size_t n) {
    if (simt_forbidden("cudaMalloc")) return cudaErrorStreamCaptureUnsupported;
    *p = n ? heap_take(n, false) : nullptr;
    return *p || !n ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t simt_host_alloc(void **p, size_t n, unsigned flags) {
    if (!(flags & cudaHostAllocMapped)) return simt_malloc_host(p, n);
    if (simt_forbidden("cudaHostAlloc")) return cudaErrorStreamCaptureUnsupported;
    *p = n ? heap_take(n, true) : nullptr;
    return *p || !n ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *p) {
    if (!p) return cudaSuccess;
    if (heap_mapped((uintptr_t)p)) return fail(cudaErrorInvalidValue);
    if (simt_forbidden("cudaFree")) return cudaErrorStreamCaptureUnsupported;
    drain();
    return heap_give(p) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t simt_malloc_host(void **p, size_t n) {
    if (simt_forbidden("cudaMallocHost")) return cudaErrorStreamCaptureUnsupported;
    if (!(*p = malloc(n ? n : 1))) return fail(cudaErrorMemoryAllocation);
    memset(*p, 0xFF, n);
    pinned_size[(uintptr_t)*p] = n;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    if (p && simt_forbidden("cudaFreeHost")) return cudaErrorStreamCaptureUnsupported;
    if (heap_mapped((uintptr_t)p)) {
        drain();
        return heap_give(p) ? cudaSuccess : fail(cudaErrorInvalidValue);
    }
    if (p && !pinned_size.erase((uintptr_t)p)) return fail(cudaErrorInvalidValue);
    free(p);
    return cudaSuccess;
}
static uintptr_t pinned_begin(const void *p) { /* 0: it is not */
    auto it = pinned_size.upper_bound((uintptr_t)p);
    if (it == pinned_size.begin()) return 0;
    it--;
    return (uintptr_t)p < it->first + it->second ? it->first : 0;
}
static bool is_pinned(const void *p) { return pinned_begin(p) != 0; }
/* A copy, or the filling of memory. */
static Node node_of(const char *name, const void *to, const void *from) {
    Node n = Node();
    n.name = name;
    hold(&n, (uintptr_t)to);
    if (from) hold(&n, (uintptr_t)from);
    return n;
}
cudaError_t cudaMemGetInfo(size_t *room, size_t *total) {
    *room = heap_room();
    *total = (size_t)80 << 30;
    return cudaSuccess;
}

/* Bounds and what was written, of copies and of libraries; races are the kernels' business. */
void simt_library_touches(const void *p, size_t n, bool write) {
    uintptr_t a = (uintptr_t)p;
    char name[64];
    size_t offset, size;
    if (!in_heap(a)) return;
    unsigned char *s = heap_state(a), all = BYTE_OPEN | BYTE_WRITTEN;
    for (size_t i = 0; i < n; i++) all &= s[i];
    if (all == (BYTE_OPEN | BYTE_WRITTEN)) return; /* allowed, and nothing new */
    for (size_t i = 0; i < n; i++) {
        if (!(s[i] & BYTE_OPEN) || (!write && !(s[i] & BYTE_WRITTEN))) {
            bool outside = !(s[i] & BYTE_OPEN);
            if (!heap_find(a + i, name, sizeof name, &offset, &size))
                snprintf(name, sizeof name, "nothing"), offset = size = 0;
            report(outside ? SIMT_OUTSIDE : SIMT_UNWRITTEN, nullptr, offset,
                   "a copy or library call %s byte %zu of %s (%zu bytes)%s", write ? "writes" : "reads", offset, name,
                   size, outside ? ": outside" : ", which nobody has written");
            return;
        }
    }
    if (write)
        for (size_t i = 0; i < n; i++) s[i] |= BYTE_WRITTEN;
}
void estimate_others(double bytes); /* estimate.cpp */
static void move(void *to, const void *from, size_t n) {
    estimate_others((double)n * (in_heap((uintptr_t)from) + in_heap((uintptr_t)to)));
    bool inside = in_heap((uintptr_t)from) && in_heap((uintptr_t)to);
    simt_library_touches(to, n, true);
    if (inside) { /* what nobody has written stays so */
        unsigned char *a = heap_state((uintptr_t)to);
        const unsigned char *b = heap_state((uintptr_t)from);
        for (size_t i = 0; i < n; i++)
            if (!(b[i] & BYTE_WRITTEN)) a[i] &= (unsigned char)~BYTE_WRITTEN;
        for (size_t i = 0; i < n; i++)
            if (!(b[i] & BYTE_OPEN)) {
                simt_library_touches(from, n, false);
                break;
            }
    } else
        simt_library_touches(from, n, false);
    memmove(to, from, n);
}
static unsigned long uploads, upload_bytes;
unsigned long simt_uploads() { return uploads; }
unsigned long simt_upload_bytes() { return upload_bytes; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t s) {
    if (!n) return cudaSuccess;
    if (!in_heap((uintptr_t)from) && in_heap((uintptr_t)to)) uploads++, upload_bytes += n;
    if (!in_heap((uintptr_t)from) && !is_pinned(from)) {
        /* Pageable memory is read before the call returns. A graph would read it again, when it may be gone. */
        if (s && s->capture) report(SIMT_HOST, nullptr, 0, "a captured copy from memory that is not pinned");
        auto bytes = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + n);
        push(s, {[to, bytes] { move(to, bytes->data(), bytes->size()); }, nullptr});
        return cudaSuccess;
    }
    push(s, {[to, from, n] { move(to, from, n); }, nullptr}, node_of("copy", to, from));
    if (!in_heap((uintptr_t)to) && !is_pinned(to) && s && !s->capture) cudaStreamSynchronize(s);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind k) {
    if (simt_forbidden("cudaMemcpy")) return cudaErrorStreamCaptureUnsupported;
    return cudaMemcpyAsync(to, from, n, k, nullptr);
}
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) {
    if (!n) return cudaSuccess;
    push(s,
         {[p, v, n] {
              simt_library_touches(p, n, true);
              estimate_others((double)n);
              memset(p, v, n);
          },
          nullptr},
         node_of("filling of memory", p, nullptr));
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int v, size_t n) { return cudaMemsetAsync(p, v, n, nullptr); }

void simt_enqueue(cudaStream_t s, void (*run)(void *), void *arg, void (*drop)(void *)) {
    std::shared_ptr<void> a(arg, drop);
    push(s, {[a, run] { run(a.get()); }, nullptr});
}

void simt_enqueue_when(cudaStream_t s, bool (*can)(void *), void (*run)(void *), void *arg, void (*drop)(void *)) {
    std::shared_ptr<void> a(arg, drop);
    if (s && s->capture) /* a graph's node waits where it stands */
        push(s, {[a, can, run] {
                     while (!can(a.get())) usleep(50);
                     run(a.get());
                 },
                 nullptr, nullptr});
    else
        push(s, {[a, run] { run(a.get()); }, nullptr, [a, can] { return can(a.get()); }});
}

void simt_note_take(cudaStream_t s, void *p, size_t n, const char *name) {
    if (!in_heap((uintptr_t)p)) return;
    std::string copy = name;
    push(s, {[p, n, copy] { heap_note_take(p, n, copy.c_str()); }, nullptr});
}
void simt_note_close(cudaStream_t s, void *p, size_t n) {
    if (in_heap((uintptr_t)p)) push(s, {[p, n] { heap_note_close(p, n); }, nullptr});
}

/* ---- streams and events ---- */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) {
    streams.push_back(*s = new SimtStream());
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (simt_forbidden("cudaStreamSynchronize")) return cudaErrorStreamCaptureUnsupported;
    if (!s)
        drain();
    else
        until([s] { return s->queue.empty(); });
    return broken;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    auto it = std::find(streams.begin(), streams.end(), s);
    if (it == streams.end()) return fail(cudaErrorInvalidResourceHandle);
    cudaStreamSynchronize(s);
    streams.erase(it);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaStreamSynchronize(nullptr); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
    *e = new SimtEvent();
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    e->capture = s ? s->capture : nullptr;
    if (e->capture) {
        e->nodes = s->last;
        return cudaSuccess;
    }
    std::shared_ptr<Mark> m = e->mark = std::make_shared<Mark>();
    push(s, {[m] { m->done = true, m->at = seconds(); }, nullptr});
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    if (e->capture) { /* the waiting stream joins the capture */
        if (s->capture && s->capture != e->capture) return fail(cudaErrorStreamCaptureUnsupported);
        s->capture = e->capture;
        s->last.insert(s->last.end(), e->nodes.begin(), e->nodes.end());
    } else if (e->mark) /* an event that was never recorded is no obstacle */
        push(s, {nullptr, e->mark});
    return cudaSuccess;
}
/* A device goes on by itself while the host asks; this one does a little whenever it is asked. */
cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (!e->mark || e->mark->done) return cudaSuccess;
    if (!capturing()) {
        heap_open(true);
        for (uint64_t n = 1 + draw() % 4; n && step(); n--) {}
        heap_open(false);
    }
    return e->mark->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (simt_forbidden("cudaEventSynchronize")) return cudaErrorStreamCaptureUnsupported;
    until([e] { return !e->mark || e->mark->done; });
    return broken;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (!from->mark || !to->mark) return fail(cudaErrorInvalidResourceHandle);
    if (!from->mark->done || !to->mark->done) return fail(cudaErrorNotReady);
    *ms = (float)((to->mark->at - from->mark->at) * 1e3);
    return cudaSuccess;
}

/* ---- graphs ---- */
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    if (!s || s->capture) return fail(cudaErrorStreamCaptureUnsupported);
    s->capture = new SimtGraph();
    s->capture->users = 1;
    s->origin = true;
    s->last.clear();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    if (!s || !s->capture || !s->origin) return fail(cudaErrorStreamCaptureUnsupported);
    *g = s->capture;
    /* Streams that joined must have been waited for: each of their last nodes has a successor, or is ours. */
    std::set<int> followed(s->last.begin(), s->last.end());
    for (Node &n : (*g)->nodes) followed.insert(n.after.begin(), n.after.end());
    bool loose = false;
    for (SimtStream *o : streams)
        if (o->capture == *g) {
            for (int n : o->last) loose |= o != s && !followed.count(n);
            o->capture = nullptr;
            o->last.clear();
        }
    s->origin = false;
    if (!loose) return cudaSuccess;
    report(SIMT_HOST, nullptr, 0, "a captured stream ends without the stream that began the capture waiting for it");
    return fail(cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long) {
    g->users++;
    *x = g;
    return cudaSuccess;
}
/* Nodes in any order that keeps their dependencies. */
static void replay(SimtGraph *g) {
    size_t n = g->nodes.size();
    std::vector<size_t> waits(n), can;
    std::vector<std::vector<size_t>> behind(n);
    for (const Node &x : g->nodes)
        if (!still_there(x)) return;
    for (size_t i = 0; i < n; i++) {
        waits[i] = g->nodes[i].after.size();
        for (int a : g->nodes[i].after) behind[(size_t)a].push_back(i);
        if (!waits[i]) can.push_back(i);
    }
    while (!can.empty()) {
        size_t k = core.seed == 0 ? 0 : core.seed == 1 ? can.size() - 1 : draw() % can.size(), i = can[k];
        can.erase(can.begin() + (long)k);
        if (g->nodes[i].task.run) g->nodes[i].task.run();
        for (size_t b : behind[i])
            if (--waits[b] == 0) can.insert(std::lower_bound(can.begin(), can.end(), b), b);
    }
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *to, size_t *n) {
    if (to) return fail(cudaErrorInvalidValue);
    *n = g->nodes.size();
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    if (--g->users == 0) delete g;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) {
    x->users++;
    std::shared_ptr<SimtGraph> g(x, [](SimtGraph *p) { cudaGraphDestroy(p); });
    push(s, {[g] { replay(g.get()); }, nullptr});
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) { return cudaGraphDestroy(x); }

/* ---- the device ---- */
const char *cudaGetErrorString(cudaError_t e) {
    static const char *const text[] = {"no error",
                                       "invalid argument",
                                       "out of memory",
                                       "invalid configuration argument",
                                       "invalid resource handle",
                                       "device not ready",
                                       "no CUDA-capable device is detected",
                                       "operation not permitted when stream is capturing",
                                       "capturing stream has unjoined work",
                                       "too many resources requested for launch",
                                       "an illegal memory access was encountered"};
    return text[e];
}
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
    cudaError_t e = last_error;
    last_error = broken;
    return e;
}
/* As the runtime takes it: an empty list of devices hides them all. */
enum { DEVICES = 8 };
cudaError_t cudaGetDeviceCount(int *n) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *n = visible ? *visible != 0 : (int)DEVICES;
    for (; visible && *visible; visible++) *n += *visible == ',';
    return *n ? cudaSuccess : fail(cudaErrorNoDevice);
}
/* Each device is the whole of its process's: there is one memory, and a number that says which one it is. */
static int device;
cudaError_t cudaSetDevice(int d) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || d < 0 || d >= n) return fail(cudaErrorInvalidValue);
    device = d;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *d) {
    *d = device;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v) {
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) { /* 0: none is installed */
    const char *said = getenv("SIMT_DRIVER");
    return said ? (*v = atoi(said), cudaSuccess) : cudaRuntimeGetVersion(v);
}
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int d) { /* in the order of cudaDeviceAttr */
    static const int h100[] = {2147483647, 65535,   65535, 1024,     1024, 64,          65536, 132, WARP, SMEM_PLAIN,
                               SMEM_MAX,   233472,  1024,  65536,    32,   THREADS_MAX, 2048,  0,   0,    1,
                               1980000,    2619000, 5120,  52428800, 1,    1,           9,     0};
    if (d < 0 || d >= DEVICES || a < 0 || (size_t)a >= sizeof h100 / sizeof *h100) return fail(cudaErrorInvalidValue);
    *v = h100[a];
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d) { /* the numbers of an H100 SXM */
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || d < 0 || d >= n) return fail(cudaErrorInvalidValue);
    *p = {};
    snprintf(p->name, sizeof p->name, "emulated device");
    p->totalGlobalMem = (size_t)80 << 30;
    p->sharedMemPerBlock = SMEM_PLAIN;
    p->sharedMemPerBlockOptin = SMEM_MAX;
    p->major = 9;
    p->multiProcessorCount = 132;
    p->maxThreadsPerBlock = THREADS_MAX;
    p->warpSize = WARP;
    return cudaSuccess;
}
