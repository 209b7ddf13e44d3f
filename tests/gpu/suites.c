/* suites.c: the suites of ops and of whole models, which simt-test runs on the emulation, here on the device: every op
 * beside a wide reference, every mixer beside the CPU's and the double build's gradients, field by field. Every test is
 * a process and a case of its own, with its own limit; what each comparison found is kept, not only whether it held. */
#include <ctype.h>
#include <fnmatch.h>
#include <unistd.h>
#include "check.h"

/* CHECK_LOG of tests/lib/check.h: the worst of each test and field, as error, bound, place, numbers, comparisons. */
static json_t *worst_of(const char *path) {
    FILE *f = fopen(path, "r");
    json_t *all = json_object();
    char *line = NULL;
    size_t cap = 0;
    if (!f) return all;
    while (getline(&line, &cap, f) > 0) {
        char *rest = line, *test = strsep(&rest, "\t"), *what = strsep(&rest, "\t");
        double error, bound;
        long long at, n;
        if (!rest || sscanf(rest, "%lg %lg %lld %lld", &error, &bound, &at, &n) != 4) continue;
        char *key = xformat("%s: %s", test, what);
        json_t *was = json_object_get(all, key);
        double times = was ? json_number_value(json_array_get(was, 4)) + 1 : 1,
               ratio = bound > 0 ? error / bound : error;
        double old = was ? json_number_value(json_array_get(was, 5)) : -1;
        if (!isfinite(ratio)) error = 1e300, ratio = 1e300; /* JSON has no infinities */
        if (ratio > old)
            json_object_set_new(all, key,
                                json_pack("[f,f,I,I,f,f]", error, bound, (json_int_t)at, (json_int_t)n, times, ratio));
        else
            json_array_set_new(was, 4, json_real(times));
        free(key);
    }
    free(line);
    fclose(f);
    return all;
}
/* Criterion's report, whose messages are not escaped, by lines: tests that passed, failed, were skipped. */
static void count(const char *path, int n[3]) {
    FILE *f = fopen(path, "r");
    char *line = NULL, name[200] = "", state[40];
    size_t cap = 0;
    if (!f) return;
    while (getline(&line, &cap, f) > 0)
        if (sscanf(line, "          \"name\": \"%199[^\"]", name) == 1 && strstr(line, "          \"name\"") == line) {
        } else if (strstr(line, "          \"status\"") == line &&
                   sscanf(line, " \"status\": \"%39[^\"]", state) == 1) {
            int s = !strcmp(state, "PASSED") ? 0 : !strcmp(state, "SKIPPED") ? 2 : 1;
            n[s]++;
        }
    free(line);
    fclose(f);
}

/* ---- the tests that there are ----------------------------------------------------------------------------------- */
typedef struct {
    int n, cap;
    char **name; /* "suite/test" */
} Names;
static void names_add(Names *x, char *name) {
    if (x->n == x->cap) x->name = xrealloc(x->name, (size_t)(x->cap = 2 * x->cap + 64), sizeof *x->name);
    x->name[x->n++] = name;
}
/* The runner prints "suite: 3 tests", then a line for each behind a line drawing. */
static Names names_of(Check *c) {
    Names all = {0};
    char suite[200] = "";
    Child r = CHILD(c, 60, c->tests, "--list");
    for (char *rest = r.out, *line; (line = strsep(&rest, "\n"));) {
        char *colon = strchr(line, ':'), *name = line;
        while (*name && !isalnum((unsigned char)*name) && *name != '_') name++;
        if (name == line && colon && strstr(colon, " test"))
            snprintf(suite, sizeof suite, "%.*s", (int)(colon - line), line);
        else if (*name && name != line)
            names_add(&all, xformat("%s/%.*s", suite, (int)strcspn(name, " \t("), name));
    }
    child_free(&r);
    return all;
}

int side_by_side(const Check *c) {
    /* Each process has a context of its own on the device, of some hundred MB. */
    json_t *device = json_object_get(case_of(c, "props", "device"), "data"),
           *bytes = json_object_get(device, "totalGlobalMem");
    const char *modes =
        json_string_value(json_object_get(json_object_get(case_of(c, "props", "modes"), "data"), "nvidia-smi"));
    if (modes && (strstr(modes, "Exclusive") || strstr(modes, "Prohibited"))) return 1; /* one process at a time */
    int most = imax(1, imin(12, (int)sysconf(_SC_NPROCESSORS_ONLN)));
    if (bytes) most = imax(1, imin(most, (int)(json_integer_value(bytes) >> 30)));
    return most;
}

typedef struct {
    char *log, *report;
    const char *test;
    bool checked;
} Files;
static bool ran_out(const json_t *line) {
    const char *why = json_string_value(json_object_get(line, "why"));
    return why && strstr(why, "ran out of time");
}
static void test_ended(Check *c, Job *j, Child *r) {
    Files *f = j->ctx;
    int n[3] = {0};
    json_t *fields = worst_of(f->log);
    count(f->report, n);
    bool ok = r->status == 0 && n[0] > 0 && n[1] == 0, skipped = r->status == 0 && n[2] > 0 && n[0] == 0;
    if (!ok && !skipped) case_log(c, j->name, *r->err ? r->err : r->out);
    case_end(c,
             ok        ? CASE_OK
             : skipped ? CASE_SKIPPED
                       : CASE_FAILED,
             json_pack("{s:o}", "fields", fields), "%s%s", ok || skipped ? "" : child_line(r),
             skipped ? "the test skips itself" : "");
    unlink(f->log), unlink(f->report);
}
/* Asked once more, with every launch looked at: which kernel it was, if it was one. */
static void again_ended(Check *c, Job *j, Child *r) {
    const Files *f = j->ctx;
    case_log(c, "again, every launch checked", *r->err ? r->err : r->out);
    case_end(c, CASE_SKIPPED, NULL, "again with every launch checked: %s", r->status ? child_line(r) : "it holds");
    unlink(f->log), unlink(f->report);
}
static Job job_of(Check *c, const char *test, const char *label, double limit, bool checked) {
    char *oracle = xformat("%s/oracle.bin", c->root), *file = xformat("%s", label);
    for (char *p = file; *p; p++)
        if (!isalnum((unsigned char)*p)) *p = '-';
    Files *f = xcalloc(1, sizeof *f);
    *f = (Files){xformat("%s/%s.log", c->work, file), xformat("%s/%s.json", c->work, file), test, checked};
    unlink(f->log), unlink(f->report);
    Job j = {.name = xformat("%s", label), .limit = limit, .ctx = f};
    int k = 0;
    j.argv[k++] = xformat("env");
    j.argv[k++] = xformat("CHECK_LOG=%s", f->log);
    if (access(oracle, R_OK) == 0) j.argv[k++] = xformat("CHECK_ORACLE=%s", oracle);
    j.argv[k++] = xformat("OMP_NUM_THREADS=1");
    if (checked) j.argv[k++] = xformat("KVSMITH_CUDA_CHECK=1");
    j.argv[k++] = xformat("%s", c->tests);
    j.argv[k++] = xformat("--filter"), j.argv[k++] = xformat("%s", test);
    j.argv[k++] = xformat("-j1"), j.argv[k++] = xformat("--color=never");
    j.argv[k++] = xformat("--json=%s", f->report);
    free(oracle), free(file);
    return j;
}
static void job_free(Job *j) {
    Files *f = j->ctx;
    for (int i = 0; j->argv[i]; i++) free(j->argv[i]);
    free(f->log), free(f->report), free(f), free(j->name);
}
void tests_run(Check *c, const char *const patterns[], double limit, bool checked) {
    Names all = names_of(c);
    Job *job = xcalloc((size_t)all.n + 1, sizeof *job);
    bool *taken = xcalloc((size_t)all.n + 1, sizeof *taken);
    int n = 0;
    for (int p = 0; patterns[p]; p++) {
        int before = n;
        for (int i = 0; i < all.n; i++)
            if (!taken[i] && fnmatch(patterns[p], all.name[i], FNM_EXTMATCH) == 0)
                taken[i] = true, job[n++] = job_of(c, all.name[i], all.name[i], limit, checked);
        if (n > before || !case_begin(c, patterns[p])) continue;
        case_end(c, CASE_FAILED, NULL, "no test of this name in %s", c->tests);
    }
    jobs_run(c, side_by_side(c), n, job, test_ended);
    enum { AGAIN_MOST = 24 };
    Job *again = xcalloc(AGAIN_MOST, sizeof *again);
    int m = 0;
    for (int i = 0; i < n && m < AGAIN_MOST && !checked; i++) {
        const json_t *line = case_of(c, c->part, job[i].name);
        if (!line || strcmp(json_string_value(json_object_get(line, "state")), "failed") || ran_out(line)) continue;
        char *label = xformat("%s, checked", job[i].name);
        again[m++] = job_of(c, job[i].name, label, limit, true);
        free(label);
    }
    jobs_run(c, side_by_side(c), m, again, again_ended);
    for (int i = 0; i < m; i++) job_free(&again[i]);
    for (int i = 0; i < n; i++) job_free(&job[i]);
    for (int i = 0; i < all.n; i++) free(all.name[i]);
    free(again), free(job), free(taken), free(all.name);
}

/* ---- parts ------------------------------------------------------------------------------------------------------ */
enum { LIMIT = 20, LIMIT_SLOW = 150 };
/* The kernels that a device most likely runs in another way than the emulation, each launch looked at; then, as nothing
 * is replayed while launches are, graphs. */
void part_smoke(Check *c) {
    static const char *const quick[] = {"ref/add", "cuda/says_what_it_is", NULL},
                             *const full[] = {"cuda/*",
                                              "@(ops|ref)/@(attend*|linear*|recur*)",
                                              "cuda_products/*",
                                              "cuda_bf16/@(attention*|gradients*)",
                                              "cuda_delta/every_rule*",
                                              "cuda_lanes/*",
                                              NULL},
                             *const graphs[] = {"cuda_graph/*", NULL};
    tests_run(c, c->quick ? quick : full, LIMIT, true);
    if (!c->quick) tests_run(c, graphs, LIMIT, false);
}
void part_self_test(Check *c) {
    static const char *const quick[] = {"cuda/@(says_what_it_is|regions_lie_on_the_device)",
                                        "ref/@(add|rope|embed|zero)", "acts/@(rotation|roundings)",
                                        "cuda_acts_model/what_is_kept_how", NULL},
                             *const full[] = {"cuda/*",
                                              "ops/*",
                                              "ref/*",
                                              "ops_reduce/*",
                                              "cuda_shadow/*",
                                              "cuda_products/*",
                                              "cuda_bf16/*",
                                              "cuda_lanes/*",
                                              "cuda_cache/*",
                                              "cuda_tier/*",
                                              "cuda_reads/*",
                                              "acts/*",
                                              "cuda_acts_model/*",
                                              "cuda_bf16_model/*",
                                              "cuda_model/*",
                                              "cuda_delta/*",
                                              "cuda_double/*",
                                              "cuda_run/*",
                                              "cuda_graph/*",
                                              "cuda_decode/*",
                                              "cuda_sample/*",
                                              NULL};
    tests_run(c, c->quick ? quick : full, c->quick ? 60 : LIMIT, false);
}
/* Tests that ran out of their time among all others: once more, with much of it, when nothing else waits. */
void part_slow_tests(Check *c) {
    static const char part[] = "self-test/";
    Names late = {0};
    const char *key;
    json_t *line;
    json_object_foreach(c->done, key, line) {
        size_t skip = strlen(part);
        if (!strncmp(key, part, skip) && ran_out(line) && !strstr(key, ", checked"))
            names_add(&late, xformat("%s", key + skip));
    }
    Job *job = xcalloc((size_t)late.n + 1, sizeof *job);
    for (int i = 0; i < late.n; i++) job[i] = job_of(c, late.name[i], late.name[i], c->quick ? 60 : LIMIT_SLOW, false);
    jobs_run(c, side_by_side(c), late.n, job, test_ended);
    for (int i = 0; i < late.n; i++) job_free(&job[i]), free(late.name[i]);
    free(job), free(late.name);
}
