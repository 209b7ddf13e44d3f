/* tell.c: see tell.h. */
#include "tell.h"
#include <unistd.h>

Tell tell_begin(const char *what) {
    double now = now_seconds();
    return (Tell){.what = what, .start = now, .shown = now, .live = isatty(STDERR_FILENO)};
}

void tell(void *ctx, size_t bytes, size_t of) {
    Tell *t = ctx;
    double now = now_seconds(), s = now - t->start;
    if (s < 1 || now - t->shown < (t->live ? 0.2 : 10)) return;
    if (!of) { /* a pipe: its size is unknown */
        t->shown = now;
        fprintf(stderr, "%s%s %.1f MB, %.1f MB/s%s", t->live ? "\r" : "", t->what, (double)bytes / 1e6,
                (double)bytes / s / 1e6, t->live ? "\x1b[K" : "\n");
        t->open = t->live;
        return;
    }
    double done = of ? fmin(1, (double)bytes / (double)of) : 1, speed = (double)bytes / s;
    t->shown = now;
    fprintf(stderr, "%s%s %.1f %%, %.1f MB/s, %.0f s left%s", t->live ? "\r" : "", t->what, 100 * done, speed / 1e6,
            speed > 0 && of > bytes ? (double)(of - bytes) / speed : 0, t->live ? "\x1b[K" : "\n");
    t->open = t->live;
}

void tell_end(Tell *t) {
    if (t->open) fputs("\r\x1b[K", stderr);
    t->open = false;
}
