/* main.c: run [PART...] [--out DIR] ...: see docs/gpu.md and check.h. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"

static const struct {
    const char *name;
    void (*run)(Check *);
} parts[] = {
    /* the first half hour: what every later decision hangs on comes first */
    {"props", part_props},
    {"limits", part_limits},
    {"smoke", part_smoke},
    {"first", part_first},
    /* then all that has to be right */
    {"self-test", part_self_test},
    {"train", part_train},
    {"nccl", part_nccl},
    {"cudnn", part_cudnn},
    /* then the rest of what is fast */
    {"tune", part_tune},
    {"ops", part_ops},
    {"bench", part_bench},
    {"profile", part_profile},
    {"peers", part_peers},
    {"slow-tests", part_slow_tests},
    {"sanitizer", part_sanitizer},
};
enum { PARTS = sizeof parts / sizeof *parts };
static const char *const states[] = {"ok", "failed", "skipped"};

/* ---- the journal ---------------------------------------------------------------------------------------------------
 */
static size_t size_of(const char *path) {
    struct stat st;
    return stat(path, &st) ? 0 : (size_t)st.st_size;
}
static void append(const char *path, const char *text, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, n) != (ssize_t)n || fsync(fd) != 0) {
        fprintf(stderr, "gpu-check: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    close(fd);
}
/* Keeps below what leaves a machine: of a line that would pass it the data goes, which the log has no place for
 * either. */
static void journal_add(const Check *c, json_t *j) {
    for (int k = 0; k < 2; k++) {
        char *text = json_dumps(j, JSON_COMPACT), *line = xformat("%s\n", text ? text : "{}");
        bool fits = size_of(c->journal_path) + strlen(line) < RESULT_MOST - (k ? 0 : 1 << 20);
        if (fits) append(c->journal_path, line, strlen(line));
        free(text), free(line);
        if (fits) break;
        json_object_del(j, "data");
    }
    json_decref(j);
}
static char *key_of(const char *part, const char *name) { return xformat("%s/%s", part, name); }
json_t *case_of(const Check *c, const char *part, const char *name) {
    char *key = key_of(part, name);
    json_t *j = json_object_get(c->done, key);
    free(key);
    return j;
}
/* Lines of earlier runs. One that was cut off goes; so do those of parts that are to be run again, and of parts whose
 * failed cases are, those. */
static void journal_read(Check *c, const bool again[PARTS], const bool retry[PARTS]) {
    FILE *f = fopen(c->journal_path, "r");
    char *line = NULL, *tmp = xformat("%s.tmp", c->journal_path);
    size_t cap = 0;
    c->done = json_object();
    if (!f) {
        free(tmp);
        return;
    }
    if (!c->only) unlink(tmp);
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0;) {
        json_t *j = line[n - 1] == '\n' ? json_loads(line, 0, NULL) : NULL;
        const char *part = json_string_value(json_object_get(j, "part"));
        const char *name = json_string_value(json_object_get(j, "case"));
        bool keep = part && (name || json_object_get(j, "note"));
        const bool failed = !strcmp(json_string_value(json_object_get(j, "state")) ?: "", "failed");
        for (int i = 0; keep && i < PARTS; i++)
            keep = !((again[i] || (retry[i] && failed)) && !strcmp(part, parts[i].name));
        if (keep) {
            char *key = name ? key_of(part, name) : NULL;
            if (key) json_object_set(c->done, key, j);
            free(key);
            if (!c->only) append(tmp, line, (size_t)n);
        }
        json_decref(j);
    }
    free(line);
    fclose(f);
    if (c->only) { /* others write to it */
        free(tmp);
        return;
    }
    if (access(tmp, F_OK) == 0 ? rename(tmp, c->journal_path) : unlink(c->journal_path)) {
        fprintf(stderr, "gpu-check: %s: %s\n", c->journal_path, strerror(errno));
        exit(1);
    }
    free(tmp);
}

static double end_of(const Check *c) { return fmin(c->part_end, c->all_end); }
bool case_begin(Check *c, const char *name) {
    json_t *was = case_of(c, c->part, name);
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
    if (c->limit > 0) most = fmin(most, c->limit);
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
    char *key = key_of(c->part, c->name);
    json_object_set(c->done, key, j);
    free(key);
    journal_add(c, j);
}
void figures_write(const Check *c) {
    char *path = xformat("%s/figures.txt", c->out), *tmp = xformat("%s.tmp", path);
    FILE *f = fopen(tmp, "w");
    const char *key;
    json_t *j;
    if (f) {
        fprintf(f, "%-52s %-34s %12s %12s  %s\n", "case", "figure", "measured", "expected",
                "measured by expected; why so");
        json_object_foreach(c->done, key, j)
            estimates_print(f, json_string_value(json_object_get(j, "case")), json_object_get(j, "data"));
        if (fclose(f) || rename(tmp, path)) fprintf(stderr, "gpu-check: %s: %s\n", path, strerror(errno));
    }
    free(path), free(tmp);
}
void case_log(const Check *c, const char *what, const char *text) {
    size_t n = strlen(text), from = n > 20000 ? n - 20000 : 0;
    char *all = xformat("==== %s/%s: %s\n%s\n", c->part, c->name, what, text + from);
    if (size_of(c->log_path) + strlen(all) < LOG_MOST) append(c->log_path, all, strlen(all));
    free(all);
}

/* Clocks, temperature and power, once a second, for as long as this program runs: what a slow figure is looked up
 * in. */
static void clocks_log(const Check *c) {
    char *path = xformat("%s/clocks.csv", c->out);
    pid_t parent = getpid();
    if (size_of(path) < 4 << 20 && fork() == 0) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666), null = open("/dev/null", O_RDWR);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent && fd >= 0 && dup2(null, 0) == 0 && dup2(fd, 1) == 1 && dup2(null, 2) == 2)
            execlp("nvidia-smi", "nvidia-smi",
                   "--query-gpu=timestamp,clocks.sm,clocks.mem,temperature.gpu,power.draw,utilization.gpu,"
                   "memory.used,clocks_event_reasons.active",
                   "--format=csv,noheader", "-lms", "1000", (char *)NULL);
        _exit(127);
    }
    free(path);
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
    figures_write(c);
    if (!c->device_missing)
        printf("%s: %d passed, %d failed, %d skipped, %d left, %.0f s\n", c->part, c->count[CASE_OK],
               c->count[CASE_FAILED], c->count[CASE_SKIPPED], c->left, now_seconds() - start);
    fflush(stdout);
    return !c->count[CASE_FAILED] && !c->left;
}

static int usage(const char *what) {
    fprintf(stderr,
            "gpu-check: %s; run [PART...] [--out DIR] [--work DIR] [--seconds S] [--total S] [--limit S] [--again] "
            "[--retry] [--quick]"
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
    static const struct option options[] = {{"out", 1, 0, 'o'},   {"work", 1, 0, 'w'},    {"seconds", 1, 0, 's'},
                                            {"total", 1, 0, 't'}, {"end", 1, 0, 'e'},     {"limit", 1, 0, 'l'},
                                            {"again", 0, 0, 'a'}, {"retry", 0, 0, 'R'},   {"quick", 0, 0, 'q'},
                                            {"only", 1, 0, 'O'},  {"program", 1, 0, 'p'}, {"tests", 1, 0, 'T'},
                                            {"root", 1, 0, 'r'},  {"python", 1, 0, 'y'},  {0, 0, 0, 0}};
    char self[PATH_MAX] = "";
    Check c = {.out = "gpu-check-out", .python = "python3", .part_seconds = 480};
    bool again = false, retry = false, chosen[PARTS] = {false}, repeat[PARTS], fails[PARTS], some = false;
    double total = 1e9, end = 0;
    opterr = 0;
    for (int k; (k = getopt_long(argc, argv, "o:s:t:aq", options, NULL)) != -1;) switch (k) {
        case 'o': c.out = optarg; break;
        case 's': c.part_seconds = atof(optarg); break;
        case 't': total = atof(optarg); break;
        case 'e': end = atof(optarg); break;
        case 'a': again = true; break;
        case 'q': c.quick = true; break;
        case 'w': c.work = optarg; break;
        case 'l': c.limit = atof(optarg); break;
        case 'O': c.only = optarg; break;
        case 'R': retry = true; break;
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
    for (int i = 0; i < PARTS; i++) {
        chosen[i] |= !some;
        repeat[i] = chosen[i] && again, fails[i] = chosen[i] && retry;
    }
    if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return usage("/proc/self/exe cannot be read");
    c.self = xformat("%s", self); /* dirname writes to its argument */
    c.root = c.root ? absolute(c.root) : dirname(self);
    c.program = c.program ? absolute(c.program) : xformat("%s/bin/kvsmith", c.root);
    c.tests = c.tests ? absolute(c.tests) : xformat("%s/bin/tests", c.root);
    c.work = c.work ? c.work : xformat("%s/work", c.out);
    const char *const folders[] = {c.out, c.work};
    for (int i = 0; i < 2; i++)
        if (mkdir(folders[i], 0777) && errno != EEXIST) {
            fprintf(stderr, "gpu-check: %s: %s\n", folders[i], strerror(errno));
            return 1;
        }
    c.out = absolute(c.out), c.work = absolute(c.work);
    c.journal_path = xformat("%s/gpu-check.jsonl", c.out), c.log_path = xformat("%s/log.txt", c.out);
    c.all_end = end > 0 ? end : now_seconds() + total;
    journal_read(&c, repeat, fails);
    if (c.only) {
        c.part = "train", c.part_end = c.all_end, c.libraries = getenv("LD_LIBRARY_PATH");
        part_train(&c);
        return c.count[CASE_FAILED] ? 1 : c.left ? ONLY_LEFT : 0;
    }
    Library libs[LIBRARIES];
    libraries_find(&c, libs);
    c.device_missing = probe(&c);
    if (!c.device_missing && !c.quick) clocks_log(&c);
    bool ok = true;
    for (int i = 0; i < PARTS; i++)
        if (chosen[i]) ok &= run_part(&c, i);
    printf("%s: %s\n", c.journal_path, ok ? "all that was asked for holds" : "not all holds; see above");
    return ok ? 0 : 1;
}
