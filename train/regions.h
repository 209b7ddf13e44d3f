/* regions.h: the list of a run's memory by lifetime, for --plan, for the check that the run fits into memory, and for
 * its final report.
 *
 * Each owner of an arena lists it by name (model, losses, dist, lora, teacher, saver: NAME_regions); trainer_regions
 * calls all of them, in the order in which regions are printed. Bytes listed under a name that exists already are added
 * to it: of the moments, for instance, either the model or the ranks' part has any. */
#pragma once
#include "ops/arena.h"
#include "ops/ops.h"

typedef struct {
    char name[48]; /* spaces as _ */
    size_t bytes;  /* guards included */
} Region;
typedef struct {
    bool peaks, apart; /* see regions_begin */
    int n, cap;
    Region *region;
    size_t total, host; /* host: the part of the total in this machine's memory, not in a GPU's */
} Regions;

/* An empty list. peaks: list mapped arenas with their highest use so far, else with their size; arenas that are not
 * mapped, as a dry trainer's, are always listed with what they would need. dev: where arenas are unless REGION_HOST. */
void regions_begin(Regions *, Device *dev, bool peaks);
enum {
    REGION_IF_ANY = 1, /* left out when it has no bytes */
    REGION_HOST = 2    /* in host memory, whatever the device */
};
void regions_add(Regions *, const char *name, const Arena *, unsigned flags);
void regions_bytes(Regions *, const char *name, size_t bytes, unsigned flags);
void regions_copy(Regions *to, const Regions *from); /* replaces *to */
void regions_free(Regions *);
