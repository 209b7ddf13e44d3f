/* oom.c: see oom.h. */
#include "oom.h"
#include "base.h"
#include <jansson.h>
#include <unistd.h>

/* _exit: another thread may be in the middle of anything, and what stdio holds back is of a run that failed. */
void oom_exit(const char *why) {
    fprintf(stderr, "kvsmith: %s\n", why ? why : "out of memory");
    _exit(EXIT_WORLD);
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
static ssize_t grow(void *ctx, const char *p, size_t n) {
    Growing *g = ctx;
    if (*g->n + n >= g->room) *g->text = xrealloc(*g->text, g->room = 2 * (*g->n + n) + 64, 1);
    if (n) memcpy(*g->text + *g->n, p, n);
    *g->n += n;
    (*g->text)[*g->n] = 0;
    return (ssize_t)n;
}
static int grown(void *ctx) {
    free(ctx);
    return 0;
}
FILE *oom_stream(char **text, size_t *n) {
    Growing *g = xcalloc(1, sizeof *g);
    *g = (Growing){.text = text, .n = n};
    *text = NULL;
    *n = 0;
    grow(g, NULL, 0);
    return oom_check(fopencookie(g, "w", (cookie_io_functions_t){.write = grow, .close = grown}));
}
