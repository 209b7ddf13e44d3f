#include "regions.h"
#include "ops/host.h"

void regions_begin(Regions *r, Device *dev, bool peaks) { *r = (Regions){.peaks = peaks, .apart = device_apart(dev)}; }

void regions_bytes(Regions *r, const char *of, size_t bytes, unsigned flags) {
    char name[sizeof r->region->name];
    int i = 0;
    if (!bytes && flags & REGION_IF_ANY) return;
    CHECK(strlen(of) < sizeof name, "%s", of);
    for (i = 0; of[i]; i++) name[i] = of[i] == ' ' ? '_' : of[i];
    name[i] = 0;
    for (i = 0; i < r->n && strcmp(r->region[i].name, name);) i++;
    if (i == r->n) {
        if (r->n == r->cap) r->region = xrealloc(r->region, (size_t)(r->cap = 2 * r->cap + 16), sizeof *r->region);
        r->region[r->n] = (Region){0};
        strcpy(r->region[r->n++].name, name);
    }
    r->region[i].bytes += bytes;
    r->total += bytes;
    if (!r->apart || flags & REGION_HOST) r->host += bytes;
}

void regions_add(Regions *r, const char *name, const Arena *a, unsigned flags) {
    regions_bytes(r, name, a->base && !r->peaks ? a->size : a->peak, flags);
}

void regions_copy(Regions *to, const Regions *from) {
    free(to->region);
    *to = *from;
    to->cap = from->n;
    to->region = xcalloc((size_t)from->n + 1, sizeof *to->region);
    if (from->n) memcpy(to->region, from->region, (size_t)from->n * sizeof *to->region);
}

void regions_free(Regions *r) {
    free(r->region);
    *r = (Regions){0};
}
