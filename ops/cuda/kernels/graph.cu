/* graph.cu: captures work as CUDA graphs and replays them, see cuda.h. Facts from the CUDA C++ Programming Guide,
 * "CUDA Graphs": while a stream is captured, nothing may be allocated or waited for. A copy reads its source when it
 * is replayed, so unpinned host memory is no valid source.
 *
 * The first run is not captured: it loads kernels and chooses the products' algorithms, which are held until the
 * second run is captured. A graph that is never used again needs no memory: the first run counts its inputs, and the
 * second makes room for them. */
#include "kernel.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum Stage { FIRST, CAPTURE, REPLAY };
enum { TURNS = 2 };
struct GraphPiece {
    cudaGraphExec_t exec; /* NULL: no work was added */
    size_t to;            /* where this piece's inputs end */
};
struct CudaGraph {
    Stage stage;
    size_t bytes; /* bytes of inputs in a run, as the first run counted them */
    char *there, *here[TURNS];
    cudaEvent_t copied[TURNS]; /* here[] may be written again */
    int turn, n, room;
    GraphPiece *piece;
    /* state of a run: */
    size_t from, at; /* end of earlier pieces' inputs, and of those so far */
    int next;
    bool open; /* calls are captured, or only walked through */
    bool cut;  /* the capture was interrupted */
    /* until it is captured: */
    int **held, holds, hold_room;
};

static void mistake(const char *what) {
    fprintf(stderr, "kvsmith: graph.cu: a capture %s\n", what);
    abort();
}
static size_t padded(size_t n) { return (n + 15) & ~(size_t)15; }

void graph_hold(Cuda *c, int *holds) {
    CudaGraph *g = c->graph;
    if (!g || g->stage != FIRST) return;
    for (int i = 0; i < g->holds; i++)
        if (g->held[i] == holds) return;
    if (g->holds == g->hold_room) {
        g->hold_room = g->hold_room ? 2 * g->hold_room : 32;
        g->held = static_cast<int **>(realloc(g->held, (size_t)g->hold_room * sizeof *g->held));
        if (!g->held) cuda_must(cudaErrorMemoryAllocation, "a graph");
    }
    g->held[g->holds++] = holds;
    ++*holds;
}
static void let_go(CudaGraph *g) {
    for (int i = 0; i < g->holds; i++) --*g->held[i];
    free(g->held);
    g->held = nullptr;
    g->holds = g->hold_room = 0;
}
static void forget_pieces(CudaGraph *g) { /* no piece may be running */
    for (int i = 0; i < g->n; i++)
        if (g->piece[i].exec) cuda_must(cudaGraphExecDestroy(g->piece[i].exec), "freeing a graph");
    g->n = 0;
}

extern "C" CudaGraph *cuda_graph_new(void) { return new CudaGraph(); }
extern "C" void cuda_graph_free(Cuda *c, CudaGraph *g) {
    if (!g) return;
    if (g == c->graph) mistake("is freed while it is under way");
    if (g->there) cuda_sync(c); /* a graph that ran only once left nothing running */
    forget_pieces(g);
    let_go(g);
    for (int i = 0; i < TURNS && g->there; i++) {
        cuda_must(cudaFreeHost(g->here[i]), "giving memory back");
        cuda_must(cudaEventDestroy(g->copied[i]), "an event");
    }
    if (g->there) cuda_give(c, g->there);
    free(g->piece);
    delete g;
}
extern "C" int cuda_graph_replayed(const CudaGraph *g) { return g->stage == REPLAY ? g->n : 0; }

/* Space for `n` bytes of input from the host. */
static size_t give(CudaGraph *g, const void *from, size_t n) {
    size_t at = g->at;
    g->at += padded(n);
    if (g->stage == FIRST) return at;
    if (g->at > g->bytes) mistake("is given more than the last time");
    memcpy(g->here[g->turn] + at, from, n);
    return at;
}
bool graph_upload(Cuda *c, void *to, const void *from, size_t n) {
    CudaGraph *g = c->graph;
    if (!g) return false;
    size_t at = give(g, from, n);
    if (g->stage == CAPTURE)
        cuda_must(cudaMemcpyAsync(to, g->there + at, n, cudaMemcpyDeviceToDevice, c->stream), "copying to the device");
    return g->stage != FIRST;
}
extern "C" const void *cuda_value(Cuda *c, const void *value, size_t n) {
    CudaGraph *g = c->graph;
    if (!g) return nullptr;
    size_t at = give(g, value, n);
    return g->stage == FIRST ? nullptr : g->there + at;
}

static void open_piece(Cuda *c) {
    CudaGraph *g = c->graph;
    if (g->stage == CAPTURE)
        cuda_must(cudaStreamBeginCapture(c->own, cudaStreamCaptureModeThreadLocal), "capturing work");
    if (g->stage == REPLAY) {
        if (g->next == g->n) mistake("waits more often than the last time");
        c->stream.stream = nullptr;
        PTX_FORM(simt_retrace(g->piece[g->next].exec), (void)0);
    }
    g->open = true;
}
static void capture_piece(Cuda *c) {
    CudaGraph *g = c->graph;
    cudaGraph_t graph;
    size_t nodes = 0;
    cuda_must(cudaStreamEndCapture(c->own, &graph), "capturing work");
    cuda_must(cudaGraphGetNodes(graph, nullptr, &nodes), "a graph");
    if (g->n == g->room) {
        g->room = g->room ? 2 * g->room : 4;
        g->piece = static_cast<GraphPiece *>(realloc(g->piece, (size_t)g->room * sizeof *g->piece));
        if (!g->piece) cuda_must(cudaErrorMemoryAllocation, "a graph");
    }
    GraphPiece *p = &g->piece[g->n++];
    *p = {nullptr, g->at};
    if (nodes) cuda_must(cudaGraphInstantiate(&p->exec, graph, 0), "making a graph");
    cuda_must(cudaGraphDestroy(graph), "a graph");
}
/* Execute the work added since open_piece, after one copy of its inputs. */
static void close_piece(Cuda *c) {
    CudaGraph *g = c->graph;
    if (g->stage == CAPTURE) capture_piece(c);
    PTX_FORM(simt_retrace(nullptr), (void)0);
    c->stream.stream = c->own;
    GraphPiece *p = &g->piece[g->next++];
    if (p->to != g->at) mistake("is given another amount than the last time");
    if (g->at > g->from)
        cuda_must(cudaMemcpyAsync(g->there + g->from, g->here[g->turn] + g->from, g->at - g->from,
                                  cudaMemcpyHostToDevice, c->own),
                  "copying to the device");
    g->from = g->at;
    if (p->exec) cuda_must(cudaGraphLaunch(p->exec, c->own), "launching a graph");
    g->open = false;
}
void graph_pause(Cuda *c) {
    if (c->graph && c->graph->open) close_piece(c);
}
void graph_resume(Cuda *c) {
    if (c->graph && c->graph->stage != FIRST) open_piece(c);
}
void graph_interrupt(Cuda *c) {
    CudaGraph *g = c->graph;
    if (!g || g->stage != CAPTURE) return;
    if (g->open) close_piece(c);
    g->stage = FIRST;
    g->cut = true;
}

/* Take room for the inputs that the first run counted; false: out of memory. */
static bool rooms(Cuda *c, CudaGraph *g) {
    size_t n = g->bytes ? g->bytes : 16;
    void *p = cuda_take(c, n, false);
    if (!p) return false;
    for (int i = 0; i < TURNS; i++) {
        cuda_must(cudaMallocHost(&g->here[i], n), "pinned memory");
        cuda_must(cudaEventCreateWithFlags(&g->copied[i], cudaEventDisableTiming), "an event");
    }
    g->there = static_cast<char *>(p);
    return true;
}
extern "C" void cuda_graph_begin(Cuda *c, CudaGraph *g) {
    if (c->graph) mistake("begins inside of another");
    c->graph = g;
    g->from = g->at = 0, g->next = 0;
    if (g->stage == CAPTURE && !g->there && !rooms(c, g)) g->stage = FIRST; /* run directly, as before */
    if (g->stage == FIRST) return;
    g->turn = (g->turn + 1) % TURNS;
    cuda_must(cudaEventSynchronize(g->copied[g->turn]), "waiting for a copy"); /* of the run before the last */
    open_piece(c);
}
extern "C" void cuda_graph_end(Cuda *c) {
    CudaGraph *g = c->graph;
    if (!g) mistake("ends that never began");
    if (g->stage == FIRST) {
        c->graph = nullptr;
        if (g->there && g->at != g->bytes) mistake("is given another amount than the last time");
        if (g->cut) {
            cuda_must(cudaStreamSynchronize(c->own), "waiting for the device");
            forget_pieces(g);
        }
        g->cut = false;
        g->bytes = g->at;
        if (!c->stream.check) g->stage = CAPTURE;
        return;
    }
    close_piece(c);
    if (g->at != g->bytes || g->next != g->n) mistake("is another than the last time");
    cuda_must(cudaEventRecord(g->copied[g->turn], c->own), "an event");
    if (g->stage == CAPTURE) let_go(g);
    g->stage = REPLAY;
    c->graph = nullptr;
}
