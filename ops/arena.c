/* arena.c: regions, guards, poison. */
#include "arena.h"
#include "text.h"
#include <sys/mman.h>

enum { TAKES = 1024, ALIGN = 64, GUARD = 64, GUARD_BYTE = 0xA5, POISON_AHEAD = 1 << 16 };

bool arena_open(Arena *a, const char *name, size_t size, bool poison, Err *e) {
    return arena_open_at(a, NULL, name, size, poison, e);
}
bool arena_open_at(Arena *a, const Memory *home, const char *name, size_t size, bool poison, Err *e) {
    *a = (Arena){.name = name, .home = home, .size = size, .poison = poison};
    size_t room = size ? size : 1;
    /* Mapped, not malloc'ed: zero pages cost nothing until they are touched, and closing gives them back at once. */
    void *p =
        home ? home->take(home, room) : mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char want[24];
    if (home ? !p : p == MAP_FAILED)
        return err_runtime(e, "out of %smemory: %s for %s; a smaller batch or model needs less (kvsmith train --plan)",
                           home ? "device " : "", bytes_text(size, want), name);
    /* Ask for 2 MB pages: access to rows that lie far apart then needs fewer page look-ups. It is only a wish, so the
     * answer does not matter. Tests, which poison, touch little of many regions. */
    if (!home && !poison) (void)madvise(p, room, MADV_HUGEPAGE);
    a->base = p;
    a->take = xcalloc((size_t)(a->most = TAKES), sizeof *a->take);
    if (poison && home) home->poison(home, a->base, size);
    if (home) home->unnote(home, a->base, size);
    return true;
}

void arena_close(Arena *a) {
    if (a->base) {
        arena_guards(a);
        if (a->home)
            a->home->give(a->home, a->base);
        else
            munmap(a->base, a->size ? a->size : 1);
    }
    free(a->take);
    *a = (Arena){.name = a->name};
}

void *arena_take(Arena *a, size_t bytes, const char *name) {
    size_t at = a->used, end = at + bytes;
    CHECK(bytes <= SIZE_MAX / 4, "%s: %zu bytes", name, bytes);
    a->used = ((end + ALIGN - 1) & ~(size_t)(ALIGN - 1)) + GUARD;
    if (a->used > a->peak) {
        a->peak = a->used;
        snprintf(a->peak_at, sizeof a->peak_at, "%s", name);
    }
    if (!a->base) return NULL;
    CHECK(a->used <= a->size, "region %s is full at %s: %zu of %zu bytes", a->name, name, a->used, a->size);
    if (a->ntake == a->most) a->take = xrealloc(a->take, (size_t)(a->most = imax(TAKES, 2 * a->most)), sizeof *a->take);
    /* Poison gradually as memory is taken: a region may be far larger than the part that is ever used. */
    if (a->poison && !a->home && a->used + POISON_AHEAD > a->poisoned && a->poisoned < a->size) {
        size_t to = a->size - a->used > 2 * POISON_AHEAD ? a->used + 2 * POISON_AHEAD : a->size;
        memset(a->base + a->poisoned, 0xFF, to - a->poisoned);
        a->poisoned = to;
    }
    Take *t = &a->take[a->ntake++];
    t->end = end;
    snprintf(t->name, sizeof t->name, "%s", name);
    if (a->home)
        a->home->note(a->home, a->base + at, bytes, name);
    else
        memset(a->base + end, GUARD_BYTE, a->used - end);
    return a->base + at;
}

Tensor arena_tensor(Arena *a, const char *name, Dtype dtype, int rank, const int n[]) {
    Tensor t = tensor_make(NULL, dtype, rank, n);
    t.p = arena_take(a, tensor_bytes(t), name);
    return t;
}

Mark arena_mark(const Arena *a) { return (Mark){a->used, a->ntake}; }

static void guards_from(const Arena *a, int from) {
    for (int i = from; i < a->ntake && !a->home; i++) {
        const unsigned char *g = (const unsigned char *)a->base + a->take[i].end;
        for (int j = 0; j < GUARD; j++)
            CHECK(g[j] == GUARD_BYTE, "region %s: something wrote past the end of %s", a->name, a->take[i].name);
    }
}
void arena_guards(const Arena *a) { guards_from(a, 0); }

void arena_release(Arena *a, Mark m) {
    CHECK(m.used <= a->used && m.ntake <= a->ntake, "region %s: release above the top", a->name);
    if (a->base) {
        guards_from(a, m.ntake);
        size_t n = a->used - m.used;
        if (a->poison && a->home) a->home->poison(a->home, a->base + m.used, n);
        if (a->poison && !a->home) memset(a->base + m.used, 0xFF, n);
        if (a->home) a->home->unnote(a->home, a->base + m.used, n);
    }
    a->used = m.used;
    a->ntake = m.ntake;
}

static void arena_see_place(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)flags;
    t->p = arena_take(f->ctx, tensor_bytes(*t), path);
}
static void arena_see_zero(Fields *f, Tensor *t, const char *path, unsigned flags) {
    (void)f, (void)path, (void)flags;
    memset(t->p, 0, tensor_bytes(*t));
}
Fields arena_placer(Arena *a) { return (Fields){.see = arena_see_place, .ctx = a}; }
Fields fields_zero(void) { return (Fields){.see = arena_see_zero}; }
