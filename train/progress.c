#include "progress.h"
#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>

void progress_open(Progress *p, const Cli *cli, int64_t first, int64_t total, double max_seconds) {
    FILE *out = cli->json ? stderr : stdout;
    *p = (Progress){.out = out,
                    .quiet = cli->quiet,
                    .live = isatty(fileno(out)),
                    .first = first,
                    .total = total,
                    .start = now_seconds(),
                    .max_seconds = max_seconds};
}

double progress_eta(const Progress *p, int64_t step) {
    double spent = now_seconds() - p->start;
    if (step <= p->first) return 0;
    double left = spent / (double)(step - p->first) * (double)(p->total - step);
    return p->max_seconds > 0 ? fmin(left, fmax(0, p->max_seconds - spent)) : left;
}

static void duration(char buf[32], double s) {
    int64_t t = (int64_t)fmin(s, 1e9) + (s > 0);
    if (t < 60)
        snprintf(buf, 32, "%llds", (long long)t);
    else if (t < 3600)
        snprintf(buf, 32, "%lldm%02llds", (long long)(t / 60), (long long)(t % 60));
    else
        snprintf(buf, 32, "%lldh%02lldm", (long long)(t / 3600), (long long)(t / 60 % 60));
}

static int columns(FILE *out) {
    struct winsize w;
    return !ioctl(fileno(out), TIOCGWINSZ, &w) && w.ws_col > 1 ? w.ws_col - 1 : 79;
}

void progress_step(Progress *p, const Shown *s, bool log) {
    double now = now_seconds();
    if (p->quiet || (p->live ? now - p->shown < 0.1 && s->step < p->total : !log)) return;
    char line[360], val[32] = "", cr[32] = "", skipped[48] = "", eta[32];
    duration(eta, progress_eta(p, s->step));
    if (s->has_val) snprintf(val, sizeof val, "  val %.4f", s->val_loss);
    if (s->reports) snprintf(cr, sizeof cr, "  cr %.2f", s->cr);
    if (s->skipped) snprintf(skipped, sizeof skipped, "  skipped %lld", (long long)s->skipped);
    snprintf(line, sizeof line, "step %lld/%lld%s%s  loss %.4f%s%s  lr %.2e  norm %.2f%s  %.0f tok/s  ETA %s",
             (long long)s->step, (long long)p->total, s->stage ? " " : "", s->stage ? s->stage : "", s->loss, val, cr,
             s->lr, s->grad_norm, skipped, s->tok_s, eta);
    if (p->live)
        fprintf(p->out, "\r%.*s\x1b[K", columns(p->out), line);
    else
        fprintf(p->out, "%s\n", line);
    fflush(p->out);
    p->open = p->live;
    p->shown = now;
}

void progress_say(Progress *p, const char *fmt, ...) {
    if (p->quiet) return;
    if (p->open) fputs("\r\x1b[K", p->out);
    p->open = false;
    va_list v;
    va_start(v, fmt);
    vfprintf(p->out, fmt, v);
    va_end(v);
    fputc('\n', p->out);
    fflush(p->out);
}

void progress_warn(Progress *p, const char *fmt, ...) {
    char line[400];
    va_list v;
    va_start(v, fmt);
    vsnprintf(line, sizeof line, fmt, v);
    va_end(v);
    if (p->open) fputs("\r\x1b[K", p->out), fflush(p->out);
    p->open = false;
    fprintf(stderr, "kvsmith: %s\n", line);
}

void progress_close(Progress *p) {
    if (p->open) fputc('\n', p->out);
    p->open = false;
    if (p->out) fflush(p->out);
}
