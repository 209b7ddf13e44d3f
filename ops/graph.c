/* graph.c: a cache of captured CUDA graphs by key. */
#include "graph.h"
#include "device.h"

/* So many graphs are kept, and so many passes that ran once and have nothing on the device yet. */
enum { KEPT = 12, ONCE = 52 };
struct Graphs {
    Device *dev;
    int n;
    long replayed, begun;
    struct {
        uint64_t key;
        struct CudaGraph *graph;
        bool once;           /* run once so far */
    } kept[KEPT + ONCE + 1]; /* the last used first */
};

Graphs *graphs_open(Device *dev) {
    if (!dev->backend->graphs || !dev->backend->graphs(dev)) return NULL;
    Graphs *g = xcalloc(1, sizeof *g);
    g->dev = dev;
    return g;
}
void graphs_close(Graphs *g) {
    if (!g) return;
    for (int i = 0; i < g->n; i++) g->dev->backend->graph_free(g->dev, g->kept[i].graph);
    free(g);
}
/* If there are too many passes that ran once, or too many graphs, drop the one whose last use is longest ago. */
static void graph_trim(Graphs *g, bool once) {
    int n = 0, last = 0;
    for (int i = 0; i < g->n; i++)
        if (g->kept[i].once == once) n++, last = i;
    if (n <= (once ? ONCE : KEPT)) return;
    g->dev->backend->graph_free(g->dev, g->kept[last].graph);
    memmove(g->kept + last, g->kept + last + 1, (size_t)(--g->n - last) * sizeof *g->kept);
}
void graphs_run(Graphs *g, uint64_t key, void (*work)(void *), void *ctx) {
    if (!g) {
        work(ctx);
        return;
    }
    int i = 0;
    while (i < g->n && g->kept[i].key != key) i++;
    bool once = i == g->n;
    struct CudaGraph *x = once ? g->dev->backend->graph_make() : g->kept[i].graph;
    g->begun += once;
    g->n += once;
    memmove(g->kept + 1, g->kept, (size_t)i * sizeof *g->kept);
    g->kept[0].key = key, g->kept[0].graph = x, g->kept[0].once = once;
    graph_trim(g, once);
    g->replayed += g->dev->backend->graph_run(g->dev, x, work, ctx);
}
long graphs_replayed(const Graphs *g) { return g ? g->replayed : 0; }
long graphs_begun(const Graphs *g) { return g ? g->begun : 0; }
