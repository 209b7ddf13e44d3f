/* report.cpp: what was found. Without simt_collect the findings of a launch are printed behind it and end the program,
 * so that no run with one can pass for good. */
#include "core.h"
#include <cstdlib>
#include <unistd.h>

static const char *const names[SIMT_FAULTS] = {"race in shared memory",
                                               "race in device memory",
                                               "divergence",
                                               "deadlock",
                                               "out of bounds",
                                               "read before written",
                                               "misaligned",
                                               "early",
                                               "launch",
                                               "host"};
struct Found {
    SimtReport r;
    const void *pc;
    bool placed; /* the line of the source is in the text */
};
static std::vector<Found> found;
static std::vector<SimtReport> shown;
static size_t printed;
static bool collecting;
enum { MOST = 64 }; /* different ones */

void simt_collect(bool on) { collecting = on; }
void simt_forget() {
    found.clear();
    printed = 0;
}

void report(SimtFault f, const void *pc, uintptr_t at, const char *fmt, ...) {
    const char *kernel = core.launch ? core.launch->name : "";
    char text[sizeof found[0].r.text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* One place of the program in one kernel: in the machine's code, or by the line that the barrier gave. */
    for (Found &x : found)
        if (x.r.fault == f && x.pc == pc && !strncmp(x.r.kernel, kernel, sizeof x.r.kernel - 1) &&
            (pc || (core.launch ? x.r.at == at : !strcmp(x.r.text, text)))) {
            x.r.times++;
            return;
        }
    if (found.size() >= MOST) return;
    Found x = {};
    x.pc = pc;
    x.r.fault = f;
    x.r.at = at;
    x.r.times = 1;
    snprintf(x.r.kernel, sizeof x.r.kernel, "%s", kernel);
    if (core.now) x.r.block = core.now->here->block, x.r.thread = core.now->here->thread;
    memcpy(x.r.text, text, sizeof text);
    found.push_back(x);
    if (!core.launch) report_end_of_launch();
}

/* The source line of a return address, by binutils; nothing where they are missing. Of code that was inlined: the
 * innermost line and the kernel's own. */
extern "C" char __executable_start __attribute__((weak));
static void append(SimtReport *r, const char *before, const char *line) {
    size_t at = strlen(r->text), n = strcspn(line, " \n");
    const char *tail = n > 60 ? line + n - 60 : line;
    snprintf(r->text + at, sizeof r->text - at, "%s%.*s", before, (int)(n - (size_t)(tail - line)), tail);
}
static void place(Found *x) {
    x->placed = true;
    if (!x->pc) return;
    char exe[256], cmd[512], first[256] = "", last[256] = "";
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return;
    exe[n] = 0;
    size_t pc = (size_t)x->pc - 1, base = (size_t)&__executable_start;
    bool fixed = base < 0x1000000; /* linked to an address of its own, which debug information already counts from */
    snprintf(cmd, sizeof cmd, "addr2line -i -e '%s' %#zx 2>/dev/null", exe, fixed ? pc : pc - base);
    FILE *p = popen(cmd, "r");
    if (!p) return;
    while (fgets(last, sizeof last, p))
        if (!*first) strcpy(first, last);
    pclose(p);
    if (!*first || *first == '?') return;
    append(&x->r, " [", first);
    if (strcmp(first, last)) append(&x->r, ", from ", last);
    append(&x->r, "", "]");
}
void report_end_of_launch() {
    if (collecting || printed == found.size()) return;
    for (; printed < found.size(); printed++) {
        Found *x = &found[printed];
        if (!x->placed) place(x);
        const SimtReport *r = &x->r;
        fprintf(stderr, "simt: %s: ", names[r->fault]);
        if (*r->kernel)
            fprintf(stderr, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u): ", r->kernel, r->block.x, r->block.y,
                    r->block.z, r->thread.x, r->thread.y, r->thread.z);
        fprintf(stderr, "%s; %ld times\n", r->text, r->times);
    }
    abort();
}
int simt_reports(const SimtReport **list) {
    shown.clear();
    for (Found &x : found) {
        if (!x.placed && shown.size() < 8) place(&x);
        shown.push_back(x.r);
    }
    *list = shown.data();
    return (int)shown.size();
}
