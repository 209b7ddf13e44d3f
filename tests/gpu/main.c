/* main.c: run [PART...] [--out DIR] ...: see docs/gpu.md and check.h. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"

static const struct {
    const char *name;
    void (*run)(Check *);
} parts[] = {
    {"props", part_props},
    {"self-test", part_self_test},
    {"train", part_train},
    {"nccl", part_nccl},
    {"ops", part_ops},
    {"cudnn", part_cudnn},
    {"tune", part_tune},
    {"bench", part_bench},
    {"sanitizer", part_sanitizer},
};
enum { PARTS = sizeof parts / sizeof *parts };
static const char *const states[] = {"ok", "failed", "skipped"};

/* ---- the journal ---------------------------------------------------------------------------------------------------
 */
static void append(const char *path, const char *text, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, n) != (ssize_t)n || fsync(fd) != 0) {
        fprintf(stderr, "gpu-check: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    close(fd);
}
static void journal_add(const Check *c, json_t *j) {
    char *text = json_dumps(j, JSON_COMPACT), *line = xformat("%s\n", text ? text : "{}");
    append(c->journal_path, line, strlen(line));
    free(text), free(line);
    json_decref(j);
}
/* Lines of earlier runs. One that was cut off goes; so do those of parts that are to be run again. */
static void journal_read(Check *c, const bool again[PARTS]) {
    FILE *f = fopen(c->journal_path, "r");
    char *line = NULL, *tmp = xformat("%s.tmp", c->journal_path);
    size_t cap = 0;
    c->done = json_object();
    if (!f) {
        free(tmp);
        return;
    }
    unlink(tmp);
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0;) {
        json_t *j = line[n - 1] == '\n' ? json_loads(line, 0, NULL) : NULL;
        const char *part = json_string_value(json_object_get(j, "part"));
        const char *name = json_string_value(json_object_get(j, "case"));
        bool keep = part && name;
        for (int i = 0; keep && i < PARTS; i++) keep = !(again[i] && !strcmp(part, parts[i].name));
        if (keep) {
            char *key = xformat("%s/%s", part, name);
            json_object_set(c->done, key, j);
            free(key);
            append(tmp, line, (size_t)n);
        }
        json_decref(j);
    }
    free(line);
    fclose(f);
    if (access(tmp, F_OK) == 0 ? rename(tmp, c->journal_path) : unlink(c->journal_path)) {
        fprintf(stderr, "gpu-check: %s: %s\n", c->journal_path, strerror(errno));
        exit(1);
    }
    free(tmp);
}

static double end_of(const Check *c) { return fmin(c->part_end, c->all_end); }
bool case_begin(Check *c, const char *name) {
    char *key = xformat("%s/%s", c->part, name);
    json_t *was = json_object_get(c->done, key);
    free(key);
    for (int i = 0; was && i < CASE_STATES; i++)
        if (!strcmp(states[i], json_string_value(json_object_get(was, "state")) ?: "")) c->count[i]++;
    if (was) return false;
    c->alone = !c->name;
    if (now_seconds() + (c->alone ? 0 : c->quick ? 0.1 : 15) >= end_of(c)) {
        c->left++;
        return false;
    }
    c->name = name, c->began = now_seconds();
    c->shortened = c->killed = false;
    return true;
}
double case_seconds(Check *c, double most) {
    double rest = end_of(c) + (c->quick ? 2 : 20) - now_seconds();
    c->shortened = rest < most;
    return fmax(1, fmin(most, rest));
}
void case_end(Check *c, CaseState s, json_t *data, const char *fmt, ...) {
    char why[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (s != CASE_OK && c->killed && !c->alone) {
        c->left++;
        printf("left %s/%s: %s of less than it may take\n", c->part, c->name, why);
        fflush(stdout);
        json_decref(data);
        return;
    }
    c->count[s]++;
    json_t *j = json_pack("{s:s, s:s, s:s, s:f}", "part", c->part, "case", c->name, "state", states[s], "seconds",
                          now_seconds() - c->began);
    json_t *text = json_string(why);
    if (!text) text = json_string("(what it says is no UTF-8)");
    if (*why) json_object_set(j, "why", text);
    json_decref(text);
    if (data) json_object_set_new(j, "data", data);
    if (s != CASE_OK || *why) printf("%s %s/%s%s%s\n", states[s], c->part, c->name, *why ? ": " : "", why);
    fflush(stdout);
    journal_add(c, j);
}
void case_log(const Check *c, const char *what, const char *text) {
    size_t n = strlen(text), from = n > 20000 ? n - 20000 : 0;
    char *all = xformat("==== %s/%s: %s\n%s\n", c->part, c->name, what, text + from);
    append(c->log_path, all, strlen(all));
    free(all);
}

/* ---- parts ---------------------------------------------------------------------------------------------------------
 */
static const char *probe(Check *c) {
    Child r = CHILD(c, 120, c->program, "device", "--device", "cuda", "--json");
    const char *why = r.status ? xformat("%s", child_line(&r)) : NULL;
    child_free(&r);
    return why;
}
static bool run_part(Check *c, int i) {
    double start = now_seconds();
    c->part = parts[i].name;
    c->part_end = start + c->part_seconds;
    memset(c->count, 0, sizeof c->count);
    c->left = 0;
    if (c->device_missing) {
        c->left = 1;
        printf("%s: no device: %s\n", c->part, c->device_missing);
    } else
        parts[i].run(c);
    json_t *j = json_pack("{s:s, s:i, s:i, s:i, s:i, s:f}", "part", c->part, "passed", c->count[CASE_OK], "failed",
                          c->count[CASE_FAILED], "skipped", c->count[CASE_SKIPPED], "left", c->left, "seconds",
                          now_seconds() - start);
    if (c->device_missing) json_object_set_new(j, "why", json_string(c->device_missing));
    journal_add(c, j);
    if (!c->device_missing)
        printf("%s: %d passed, %d failed, %d skipped, %d left, %.0f s\n", c->part, c->count[CASE_OK],
               c->count[CASE_FAILED], c->count[CASE_SKIPPED], c->left, now_seconds() - start);
    fflush(stdout);
    return !c->count[CASE_FAILED] && !c->left;
}

static int usage(const char *what) {
    fprintf(stderr,
            "gpu-check: %s; run [PART...] [--out DIR] [--seconds S] [--total S] [--again] [--quick]"
            " [--program FILE] [--tests FILE] [--root DIR] [--python FILE]; parts:",
            what);
    for (int i = 0; i < PARTS; i++) fprintf(stderr, " %s", parts[i].name);
    fputc('\n', stderr);
    return 2;
}
static char *absolute(const char *path) {
    char buf[PATH_MAX];
    return xformat("%s", realpath(path, buf) ? buf : path);
}
int main(int argc, char **argv) {
    static const struct option options[] = {{"out", 1, 0, 'o'},   {"seconds", 1, 0, 's'}, {"total", 1, 0, 't'},
                                            {"again", 0, 0, 'a'}, {"quick", 0, 0, 'q'},   {"program", 1, 0, 'p'},
                                            {"tests", 1, 0, 'T'}, {"python", 1, 0, 'y'},  {"root", 1, 0, 'r'},
                                            {0, 0, 0, 0}};
    char self[PATH_MAX] = "";
    Check c = {.out = "gpu-check-out", .python = "python3", .part_seconds = 480};
    bool again = false, chosen[PARTS] = {false}, repeat[PARTS], some = false;
    double total = 1e9;
    opterr = 0;
    for (int k; (k = getopt_long(argc, argv, "o:s:t:aq", options, NULL)) != -1;) switch (k) {
        case 'o': c.out = optarg; break;
        case 's': c.part_seconds = atof(optarg); break;
        case 't': total = atof(optarg); break;
        case 'a': again = true; break;
        case 'q': c.quick = true; break;
        case 'p': c.program = optarg; break;
        case 'T': c.tests = optarg; break;
        case 'y': c.python = optarg; break;
        case 'r': c.root = optarg; break;
        default: return usage("an option that is unknown or lacks its value");
        }
    if (!(c.part_seconds > 0) || !(total > 0)) return usage("--seconds and --total: expected seconds");
    for (; optind < argc; optind++) {
        bool known = !strcmp(argv[optind], "all");
        for (int i = 0; i < PARTS; i++)
            if (!strcmp(argv[optind], parts[i].name) || !strcmp(argv[optind], "all")) chosen[i] = known = some = true;
        if (!known) return usage("no such part");
    }
    for (int i = 0; i < PARTS; i++) chosen[i] |= !some, repeat[i] = chosen[i] && again;
    if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return usage("/proc/self/exe cannot be read");
    c.root = c.root ? absolute(c.root) : dirname(self);
    c.program = c.program ? absolute(c.program) : xformat("%s/bin/kvsmith", c.root);
    c.tests = c.tests ? absolute(c.tests) : xformat("%s/bin/tests", c.root);
    if (mkdir(c.out, 0777) && errno != EEXIST) {
        fprintf(stderr, "gpu-check: %s: %s\n", c.out, strerror(errno));
        return 1;
    }
    c.out = absolute(c.out);
    c.journal_path = xformat("%s/gpu-check.jsonl", c.out), c.log_path = xformat("%s/log.txt", c.out);
    c.all_end = now_seconds() + total;
    journal_read(&c, repeat);
    Library libs[LIBRARIES];
    libraries_find(&c, libs);
    c.device_missing = probe(&c);
    bool ok = true;
    for (int i = 0; i < PARTS; i++)
        if (chosen[i]) ok &= run_part(&c, i);
    printf("%s: %s\n", c.journal_path, ok ? "all that was asked for holds" : "not all holds; see above");
    return ok ? 0 : 1;
}
