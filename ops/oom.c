/* oom.c: prints the line and ends the program when memory for bookkeeping runs out. */
#include "oom.h"
#include "base.h"
#include <jansson.h>
#include <unistd.h>

/* _exit: another thread may be in any state, and buffered output belongs to a run that failed. */
void oom_exit(const char *why) {
    fprintf(stderr, "kvsmith: %s\n", why ? why : "out of memory");
    _exit(EXIT_RUNTIME);
}
void *oom_check(void *p) {
    if (!p) oom_exit(NULL);
    return p;
}

static void *json_memory(size_t n) { return oom_check(malloc(n ? n : 1)); }
void oom_guard_json(void) { json_set_alloc_funcs(json_memory, free); }

typedef struct {
    char **text;
    size_t *n, room;
} Growing;
static ssize_t oom_grow(void *ctx, const char *p, size_t n) {
    Growing *g = ctx;
    if (*g->n + n >= g->room) *g->text = oom_check(realloc(*g->text, g->room = 2 * (*g->n + n) + 64));
    if (n) memcpy(*g->text + *g->n, p, n);
    *g->n += n;
    (*g->text)[*g->n] = 0;
    return (ssize_t)n;
}
static int oom_grown(void *ctx) {
    free(ctx);
    return 0;
}
FILE *oom_stream(char **text, size_t *n) {
    Growing *g = oom_check(calloc(1, sizeof *g));
    *g = (Growing){.text = text, .n = n};
    *text = NULL;
    *n = 0;
    oom_grow(g, NULL, 0);
    return oom_check(fopencookie(g, "w", (cookie_io_functions_t){.write = oom_grow, .close = oom_grown}));
}
