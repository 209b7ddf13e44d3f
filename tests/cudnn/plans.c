/* plans.c: DEVICE.json REFUSED CONFIG...: what cuDNN makes of the attention of every configuration, without a device: a
 * plan forward and backward for each shape of a training pass, for the device that the file describes; and for each
 * that the suites draw, which on a device expect that it is served. Prints the workspaces, and fails where one is
 * beyond its bound, or where what is refused is not what REFUSED says. As many processes as processors build them. */
#include "model/workspace.h"
#include "ops/cuda/sdpa.h"
#include "ops/device.h"
#include "ops/file.h"
#include "shapes.h"
#include <errno.h>
#include <sys/wait.h>

enum { SHAPES = 64, LINE = 600 };
typedef struct {
    SdpaShape s;
    int sinks;
    bool biased, drawn; /* drawn: in the suites, which take unordered sums with documents, too */
    char configs[200];
} Seen;
static struct {
    const Ops *real;
    const char *config;
    int n;
    Seen seen[SHAPES];
} all; /* of this program, which does one thing */

static void remember(Seen x) {
    int i = 0;
    if (x.s.window >= x.s.T) x.s.window = 0;
    while (i < all.n && (memcmp(&all.seen[i].s, &x.s, sizeof x.s) != 0 || all.seen[i].sinks != x.sinks ||
                         all.seen[i].biased != x.biased || all.seen[i].drawn != x.drawn))
        i++;
    CHECK(i < SHAPES, "more than %d shapes", SHAPES);
    if (i == all.n) all.seen[all.n++] = x;
    char *to = all.seen[i].configs;
    size_t used = strlen(to);
    if (!strstr(to, all.config)) snprintf(to + used, sizeof all.seen[i].configs - used, " %s", all.config);
}
static void attend(Run *r, Tensor o, Tensor lse, Tensor q, const Kv *kv, AttnSpec spec, bool merge) {
    int B = r->batch->B, T = r->batch->N / B;
    if (r->mode & RUN_TRAIN)
        remember((Seen){.s = {.B = B,
                              .T = T,
                              .heads = spec.heads,
                              .lanes = kv->s.lanes,
                              .Dk = kv->s.kdim,
                              .Dv = kv->s.vdim,
                              .window = spec.window},
                        .sinks = spec.sinks,
                        .biased = kv->s.evicts});
    all.real->attend(r, o, lse, q, kv, spec, merge);
}
/* Every stage of a run: its length of samples may be its own. */
static bool see_config(Device *d, const char *path) {
    Config c;
    Err e = {0};
    if (!config_read(&c, path, 0, NULL, &e)) {
        if (strstr(e.msg, "???")) return true; /* it asks for what only its user knows */
        fprintf(stderr, "cudnn-check: %s\n", e.msg);
        return false;
    }
    const char *name = strrchr(path, '/');
    all.config = name ? name + 1 : path;
    for (int k = 0; k < config_stages(&c); k++) {
        Stage s = config_stage(&c, k);
        ModelCfg model = s.cfg->model;
        Model m;
        Workspace work;
        if (!model.vocab) model.vocab = 256; /* the file's own: no matter here */
        ModelOpts o = {.train = true,
                       .dry = true,
                       .max_rows = s.cfg->train.micro_batch * s.cfg->data.seq_len,
                       .max_samples = s.cfg->train.micro_batch};
        if (!model_open(&m, d, &model, o, &e) || !workspace_open(&work, &m, &e)) {
            fprintf(stderr, "cudnn-check: %s: %s\n", path, e.msg);
            return false;
        }
        workspace_close(&work);
        model_close(&m);
    }
    config_free(&c);
    return true;
}

/* ---- plans ----------------------------------------------------------------------------------------------------------
 */
static double mib(size_t bytes) { return (double)bytes / 0x1p20; }
/* Bytes beyond which something else is done than was thought: delta, f32 dq where its order is any, whole heads of dk
 * and dv in bf16 where heads share a lane; with an order ds in bf16 in place of dq; rows by 128. */
static size_t bound(SdpaKind kind, const SdpaShape *s) {
    size_t T = ((size_t)s->T + 127) / 128 * 128, rows = (size_t)s->B * (size_t)s->heads * T, small = (size_t)1 << 20;
    if (kind == SDPA_FORWARD) return small;
    size_t heads = s->heads == s->lanes ? 0 : rows * (size_t)(s->Dk + s->Dv) * 2;
    return small + rows * 8 + heads + rows * (kind == SDPA_BACKWARD ? 2 * T : 4 * (size_t)s->Dk);
}
static const char *const kinds[] = {"forward", "backward", "backward-unordered"};
typedef struct {
    FILE *refused; /* as it should be, line by line */
    int plans, refusals, failures;
} Check;
static void describe(char *to, size_t n, const Seen *x) {
    const SdpaShape *s = &x->s;
    snprintf(to, n, "%dx%d rows, %d heads on %d, %d and %d numbers, window %d%s%s", s->B, s->T, s->heads, s->lanes,
             s->Dk, s->Dv, s->window, x->sinks ? ", sinks" : "", x->biased ? ", biased keys" : "");
}
/* The next line of the list must be this one. */
static void refuse(Check *c, const char *line) {
    char want[LINE] = "";
    do
        if (!fgets(want, sizeof want, c->refused)) *want = 0;
    while (*want == '#');
    want[strcspn(want, "\n")] = 0;
    c->refusals++;
    if (!strcmp(want, line)) return;
    printf("not ok: refused: %s\n     the list has: %s\n", line, *want ? want : "nothing more");
    c->failures++;
}
/* Writes a line to `out`: PLANNED, NOT_OK, or REFUSED with what the list has to have. False: refused. */
#define PLANNED "plan: "
#define NOT_OK  "not ok: "
#define REFUSED "refused: "
static bool plan(FILE *out, const SdpaTarget *t, const Seen *x, SdpaKind kind, bool documents) {
    char why[300] = "", name[200];
    SdpaShape s = x->s;
    s.documents = documents;
    describe(name, sizeof name, x);
    double from = now_seconds();
    Sdpa *p = sdpa_open(t, kind, s, why);
    if (!p) {
        const char *reason = strstr(why, ": "); /* follows the version */
        fprintf(out, REFUSED "%s: %s%s: %s\n", name, kinds[kind], documents ? " with documents" : "",
                strncmp(why, "cuDNN", 5) || !reason ? why : reason + 2);
        return false;
    }
    bool much = sdpa_bytes(p) > bound(kind, &s);
    fprintf(out, PLANNED "%s: %s%s: %.2f MiB, engine %d, %.1f s\n", name, kinds[kind],
            documents ? " with documents" : "", mib(sdpa_bytes(p)), sdpa_engine(p), now_seconds() - from);
    if (much) fprintf(out, NOT_OK "%s: %s: its workspace is beyond its bound\n", name, kinds[kind]);
    if (kind == SDPA_BACKWARD && sdpa_unordered(p)) fprintf(out, NOT_OK "%s: its sums have no order\n", name);
    sdpa_close(p);
    return true;
}
/* All plans of a shape, after a line with the configurations that have it. */
static void plan_shape(FILE *out, const SdpaTarget *t, const Seen *x) {
    fprintf(out, "#%s\n", x->configs);
    if (x->sinks || x->biased) {
        char name[200];
        describe(name, sizeof name, x);
        fprintf(out, REFUSED "%s: its graphs have no such mask\n", name);
        return;
    }
    bool served = plan(out, t, x, SDPA_FORWARD, false);
    for (SdpaKind k = SDPA_BACKWARD; served && k <= SDPA_BACKWARD_UNORDERED; k++) plan(out, t, x, k, false);
    SdpaKind last = x->drawn ? SDPA_BACKWARD_UNORDERED : SDPA_BACKWARD;
    for (SdpaKind k = SDPA_FORWARD; served && k <= last; k++) plan(out, t, x, k, true);
}

/* ---- workers: a plan keeps one processor busy ---------------------------------------------------------------------
 */
enum { WORKERS = 16 };
typedef struct {
    FILE *out;
    pid_t pid;
} Worker;
/* Worker w of n plans every n-th shape. */
static int work(FILE *out, const Cudnn *f, const FileMap *json, const char *device, int w, int n) {
    SdpaTarget t = {.f = f};
    int s = f->BackendCreateDescriptor(DESC_DEVICE, &t.device);
    if (!s) s = f->BackendSetAttribute(t.device, DEVICE_JSON, AS_CHAR, (int64_t)json->n, json->p);
    if (!s) s = f->BackendFinalize(t.device);
    if (s) {
        char last[300] = "";
        f->GetLastErrorString(last, sizeof last);
        fprintf(stderr, "cudnn-check: %s: %s (%s)\n", device, f->GetErrorString(s), last);
        return EXIT_RUNTIME;
    }
    for (int i = w; i < all.n; i += n) plan_shape(out, &t, &all.seen[i]);
    f->BackendDestroyDescriptor(t.device);
    return fflush(out) ? EXIT_RUNTIME : 0;
}
static int workers_run(Worker *at, const Cudnn *f, const FileMap *json, const char *device) {
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    n = n < 1 ? 1 : n > WORKERS ? WORKERS : n;
    fflush(stdout);
    for (int w = 0; w < n; w++) {
        CHECK((at[w].out = tmpfile()) && (at[w].pid = fork()) >= 0, "worker %d: %s", w, strerror(errno));
        if (!at[w].pid) _exit(work(at[w].out, f, json, device, w, n));
    }
    return n;
}
static void workers_wait(Check *c, Worker *at, int n) {
    for (int w = 0; w < n; w++) {
        int status;
        CHECK(waitpid(at[w].pid, &status, 0) == at[w].pid, "worker %d: %s", w, strerror(errno));
        if (status) printf(NOT_OK "worker %d of %d ended with status 0x%x\n", w, n, (unsigned)status), c->failures++;
        rewind(at[w].out);
    }
}
/* Prints what a worker wrote of its next shape, and counts it; the list of refusals is in the order of shapes. */
static void report(Check *c, FILE *in, const Seen *x) {
    char line[LINE], want[LINE];
    snprintf(want, sizeof want, "#%s\n", x->configs);
    if (!fgets(line, sizeof line, in) || strcmp(line, want)) {
        printf(NOT_OK "no plans for a shape of%s\n", x->configs), c->failures++;
        return;
    }
    fputs(line, stdout);
    long next = ftell(in);
    while (fgets(line, sizeof line, in) && *line != '#') {
        next = ftell(in);
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, REFUSED, strlen(REFUSED))) {
            refuse(c, line + strlen(REFUSED));
            continue;
        }
        puts(line);
        if (!strncmp(line, PLANNED, strlen(PLANNED)))
            c->plans++;
        else
            c->failures++;
    }
    fseek(in, next, SEEK_SET);
}
int main(int argc, char **argv) {
    const char *where;
    char why[200], version[24];
    Err e = {0};
    FileMap json;
    Device *d;
    Check c = {0};
    if (argc < 4) {
        fprintf(stderr, "use: plans DEVICE.json REFUSED CONFIG...\n");
        return EXIT_INPUT;
    }
    const Cudnn *f = cudnn_open(&where, why);
    if (!f) {
        printf("skipped: %s\n", why);
        return 0;
    }
    if (!device_open(&d, "cpu", 1, &e) || !file_map(&json, argv[1], &e) || !(c.refused = fopen(argv[2], "r"))) {
        fprintf(stderr, "cudnn-check: %s\n", e.status ? e.msg : argv[2]);
        return EXIT_INPUT;
    }
    all.real = d->ops;
    d->own = *d->ops;
    d->own.attend = attend;
    d->ops = &d->own;
    for (int i = 3; i < argc; i++)
        if (!see_config(d, argv[i])) return EXIT_INPUT;
    all.config = "the suites' draws";
    for (int k = 0; k < FUSED_DRAWS; k++) {
        Seen x = {.s = fused_shape(k), .drawn = true};
        x.s.documents = false; /* every shape is asked for with them and without, as a run does while it measures */
        remember(x);
    }
    printf("cuDNN %s, %s: %d shapes of attention\n", cudnn_version(f, version), where, all.n);
    Worker at[WORKERS];
    int n = workers_run(at, f, &json, argv[1]);
    workers_wait(&c, at, n);
    for (int i = 0; i < all.n; i++) report(&c, at[i % n].out, &all.seen[i]);
    char rest[LINE];
    while (fgets(rest, sizeof rest, c.refused))
        if (*rest != '#' && *rest != '\n') printf("not ok: the list has, too: %s", rest), c.failures++;
    fclose(c.refused);
    file_unmap(&json);
    device_close(d);
    printf("%d plans, %d refusals as listed, %d failures\n", c.plans, c.refusals, c.failures);
    return c.failures || !c.plans ? EXIT_RUNTIME : 0;
}
