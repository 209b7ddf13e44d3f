/* watch.c: see watch.h. */
#include "watch.h"

size_t watch_bytes(const char *path, const char *name) {
    FILE *f = fopen(path, "re");
    char line[256];
    size_t n = strlen(name), found = 0;
    while (f && !found && fgets(line, sizeof line, f))
        if (!strncmp(line, name, n)) found = strtoull(line + n, NULL, 10) * (n ? 1024 : 1);
    if (f) fclose(f);
    return found;
}

void watch_memory(Trainer *t) {
    t->run->peak_anon = zmax(t->run->peak_anon, watch_bytes("/proc/self/status", "RssAnon:"));
}

bool watch_finite(Trainer *t, Err *e) {
    Run run = run_make(t->dev, &t->work.scratch);
    const Params *all = t->stepper->params;
    for (int i = 0; i < all->n; i++) {
        const Param *p = &all->p[i];
        if (!p->frozen && !isfinite(run.ops->sumsq(&run, p->t[PARAM_WEIGHT])))
            return err_diverged(e, "training diverged: %s is not finite after step %lld", p->name,
                                (long long)t->run->state.step);
    }
    return true;
}
