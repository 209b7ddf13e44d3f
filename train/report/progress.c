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

static void progress_duration(char buf[32], double s) {
    int64_t t = (int64_t)fmin(s, 1e9) + (s > 0);
    if (t < 60)
        snprintf(buf, 32, "%llds", (long long)t);
    else if (t < 3600)
        snprintf(buf, 32, "%lldm%02llds", (long long)(t / 60), (long long)(t % 60));
    else
        snprintf(buf, 32, "%lldh%02lldm", (long long)(t / 3600), (long long)(t / 60 % 60));
}

static int progress_columns(FILE *out) {
    struct winsize w;
    return !ioctl(fileno(out), TIOCGWINSZ, &w) && w.ws_col > 1 ? w.ws_col - 1 : 79;
}

const char *progress_number(char out[32], double v, int least) {
    double a = fabs(v);
    if (a > 0 && a < 1e-5)
        snprintf(out, 32, "%.3e", v);
    else
        snprintf(out, 32, "%.*f", a > 0 && a < 1 ? imax(least, 3 - (int)floor(log10(a))) : least, v);
    return out;
}

void progress_line(const Progress *p, const Shown *s, double eta, int width, char out[PROGRESS_LINE]) {
    /* In the order of the line; `leaves`: on a narrow terminal the highest is dropped first, 0 stays. */
    enum { STEP, OF, STAGE, LOSS, VAL, CR, LR, NORM, SKIPPED, SPEED, MFU, ETA, FIELDS };
    static const int leaves[FIELDS] = {[STEP] = 1, [OF] = 2,    [STAGE] = 5,   [LOSS] = 3,  [VAL] = 4, [CR] = 7,
                                       [LR] = 9,   [NORM] = 10, [SKIPPED] = 8, [SPEED] = 6, [MFU] = 11};
    char f[FIELDS][80] = {{0}}, number[32];
    snprintf(f[STEP], 80, "step %lld", (long long)s->step);
    snprintf(f[OF], 80, "/%lld", (long long)p->total);
    if (s->stage) snprintf(f[STAGE], 80, " %s", s->stage);
    snprintf(f[LOSS], 80, "  loss %s", progress_number(number, s->loss, 4));
    if (s->has_val) snprintf(f[VAL], 80, "  val %s", progress_number(number, s->val_loss, 4));
    if (s->reports) snprintf(f[CR], 80, "  cr %.2f", s->cr);
    snprintf(f[LR], 80, "  lr %.2e", s->lr);
    snprintf(f[NORM], 80, "  norm %s", progress_number(number, s->grad_norm, 2));
    if (s->skipped) snprintf(f[SKIPPED], 80, "  skipped %lld", (long long)s->skipped);
    snprintf(f[SPEED], 80, "  %.0f tok/s", s->tok_s);
    if (s->mfu >= 0 && s->mfu <= 1) snprintf(f[MFU], 80, "  mfu %.1f%%", 100 * s->mfu);
    snprintf(f[ETA], 80, "  ETA ");
    progress_duration(f[ETA] + 6, eta);
    for (int goes = FIELDS; goes >= 1; goes--) {
        size_t n = 0;
        for (int i = 0; i < FIELDS; i++) n += strlen(f[i]);
        if (width <= 0 || n <= (size_t)width) break;
        for (int i = 0; i < FIELDS; i++)
            if (leaves[i] == goes) *f[i] = 0;
    }
    *out = 0;
    for (int i = 0; i < FIELDS; i++) strcat(out, *out ? f[i] : f[i] + strspn(f[i], " "));
    if (width > 0 && strlen(out) > (size_t)width) out[width] = 0;
}

static void live_line(Progress *p, const char *line) {
    fprintf(p->out, p->live ? "\r%s\x1b[K" : "%s\n", line);
    fflush(p->out);
    p->open = p->live;
    p->shown = now_seconds();
}

void progress_step(Progress *p, const Shown *s, bool log) {
    double now = now_seconds();
    if (p->quiet || (p->live ? now - p->shown < 0.1 && s->step < p->total : !log)) return;
    char line[PROGRESS_LINE];
    progress_line(p, s, progress_eta(p, s->step), p->live ? progress_columns(p->out) : 0, line);
    live_line(p, line);
}

void progress_first(Progress *p, int micro, int of) {
    if (p->quiet || !p->out) return;
    if (micro && now_seconds() - p->shown < (p->live ? 0.2 : 10)) return;
    char line[64] = "first step ...";
    if (micro) snprintf(line, sizeof line, "first step: micro-batch %d of %d ...", micro + 1, of);
    live_line(p, line);
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
