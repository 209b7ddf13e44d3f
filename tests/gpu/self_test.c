/* self_test.c: the suites of ops and of whole models, which simt-test runs on the emulation, here on the device: every
 * op beside a wide reference, every mixer beside the CPU's and the double build's gradients, field by field. What each
 * comparison found is kept, not only whether it held. And compute-sanitizer, where it is. */
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"

/* CHECK_LOG of tests/check.h: the worst of each test and field, as error, bound, place, numbers, comparisons. */
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
/* Criterion's report, whose messages are not escaped, by lines. */
static void count(const char *path, int n[3], json_t *failed) {
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
            if (s == 1) json_array_append_new(failed, json_string(name));
        }
    free(line);
    fclose(f);
}
void suite_run(Check *c, const char *name, const char *filter, double limit) {
    if (!case_begin(c, name)) return;
    char *log = xformat("%s/self-test.log", c->out), *report = xformat("%s/self-test.json", c->out);
    /* Each has a context of its own on the device, of some hundred MB. */
    char *jobs = xformat("-j%d", imax(1, imin(12, (int)sysconf(_SC_NPROCESSORS_ONLN))));
    char *to = xformat("--json=%s", report), *oracle = xformat("%s/oracle.bin", c->root);
    unlink(log), unlink(report);
    setenv("CHECK_LOG", log, 1);
    if (access(oracle, R_OK) == 0) setenv("CHECK_ORACLE", oracle, 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    Child r =
        CHILD(c, case_seconds(c, limit), c->tests, "--filter", filter, jobs, "--timeout", "200", "--color=never", to);
    unsetenv("CHECK_LOG"), unsetenv("OMP_NUM_THREADS");
    int n[3] = {0};
    json_t *failed = json_array(), *fields = worst_of(log);
    count(report, n, failed);
    bool ok = r.status == 0 && n[0] > 0 && n[1] == 0;
    if (!ok) case_log(c, name, r.err);
    char *names = json_dumps(failed, JSON_COMPACT);
    json_t *data =
        json_pack("{s:i, s:i, s:o, s:o}", "tests", n[0] + n[1], "failed", n[1], "failing", failed, "fields", fields);
    case_end(c, ok ? CASE_OK : CASE_FAILED, data, "%d tests passed, %d failed %s%s%s", n[0], n[1], n[1] ? names : "",
             r.status ? "; " : "", r.status ? child_line(&r) : "");
    free(names), free(log), free(report), free(to), free(oracle), free(jobs);
    child_free(&r);
}
void part_self_test(Check *c) {
    if (c->quick) {
        suite_run(c, "device", "cuda/@(says_what_it_is|regions_lie_on_the_device)", 60);
        suite_run(c, "ops", "ops/@(add|rope|embed|zero)", 60);
        suite_run(c, "activations in bf16", "acts/@(rotation|roundings)", 60);
        suite_run(c, "models with them", "cuda_acts_model/what_is_kept_how", 60);
        return;
    }
    suite_run(c, "device", "cuda/*", 120);
    /* By letters, so that a run that is cut off has less to do again. */
    suite_run(c, "ops a", "ops/a*", 200);
    suite_run(c, "ops b to k", "ops/@([b-k])*", 200);
    suite_run(c, "ops l to r", "ops/@([l-r])*", 200);
    suite_run(c, "ops s to z", "ops/@([s-z])*", 200);
    suite_run(c, "sums over rows", "ops_reduce/*", 200);
    suite_run(c, "copies in bf16", "cuda_half/*", 200);
    suite_run(c, "products of the 124M model", "cuda_products/*", 200);
    suite_run(c, "products and attention in bf16", "cuda_bf16/*", 300);
    suite_run(c, "decoding attention", "cuda_lanes/*", 300);
    suite_run(c, "activations in bf16", "acts/*", 200);
    suite_run(c, "models with them", "cuda_acts_model/*", 300);
    suite_run(c, "models in bf16", "cuda_bf16_model/*", 300);
    suite_run(c, "models", "cuda_model/*", 300);
    suite_run(c, "chunks", "cuda_delta/*", 300);
    suite_run(c, "double", "cuda_double/*", 300);
    suite_run(c, "runs", "cuda_run/*", 300);
    suite_run(c, "graphs", "cuda_graph/*", 200);
    suite_run(c, "batches that get smaller", "cuda_decode/*", 200);
    suite_run(c, "drawing", "cuda_sample/*", 100);
}

/* ---- compute-sanitizer ---------------------------------------------------------------------------------------------
 */
static char *sanitizer(void) {
    const char *homes[] = {getenv("CUDA_HOME"), "/usr/local/cuda"};
    char *path = xformat("%s", getenv("PATH") ? getenv("PATH") : ""), *rest = path, *found = NULL;
    for (char *dir; !found && (dir = strsep(&rest, ":"));) {
        char *at = xformat("%s/compute-sanitizer", dir);
        if (access(at, X_OK) == 0)
            found = at;
        else
            free(at);
    }
    for (int h = 0; h < 4 && !found; h++) {
        if (!homes[h / 2]) continue;
        char *at =
            xformat("%s/%s", homes[h / 2], h % 2 ? "compute-sanitizer/compute-sanitizer" : "bin/compute-sanitizer");
        if (access(at, X_OK) == 0)
            found = at;
        else
            free(at);
    }
    free(path);
    return found;
}
void part_sanitizer(Check *c) {
    static const char *const tools[] = {"memcheck", "racecheck", "initcheck", "synccheck"};
    /* Every tool watches the first three, whose kernels are most of those that share memory between threads: attention,
     * recurrences by chunks with a decay per channel and per head. The others add few, for memcheck alone. */
    enum { BY_ALL = 3 };
    static const char *const models[] = {"gqa", "kda", "mamba2", "mla", "moe", "gated_retention", "yoco", "dms"};
    char *tool = sanitizer();
    for (int t = 0; t < 4; t++) {
        int nmodels = c->quick ? 1 : t ? BY_ALL : (int)(sizeof models / sizeof *models);
        for (int m = 0; m < nmodels; m++) {
            char name[64];
            snprintf(name, sizeof name, "%s, tiny-%s", tools[t], models[m]);
            if (!case_begin(c, name)) continue;
            if (!tool) {
                case_end(c, CASE_SKIPPED, NULL, "compute-sanitizer is neither in PATH nor below CUDA_HOME");
                continue;
            }
            char *config = xformat("configs/tiny-%s.yaml", models[m]), *dir = xformat("run.dir=%s/sanitizer", c->out);
            char *rm = xformat("%s/sanitizer", c->out);
            Child gone = CHILD(c, 30, "rm", "-rf", rm);
            child_free(&gone);
            const char *argv[32] = {tool, "--tool", tools[t], "--error-exitcode", "97", "--print-limit", "10"};
            int k = 7;
            /* The library finds out by calls that fail what a device and its driver can do. */
            if (!strcmp(tools[t], "memcheck")) argv[k++] = "--report-api-errors", argv[k++] = "no";
            const char *const run[] = {c->program, "train", config, "-q", "--device", "cuda", dir,
                                       /* a sequence of as many rows goes by chunks */
                                       c->quick ? "data.seq_len=32" : "data.seq_len=64", "train.steps=1",
                                       "optim.warmup=1", "train.batch=1", "train.micro_batch=1", "train.eval_every=1",
                                       "train.eval_tokens=64", "train.sample_every=1", "train.sample_prompt=the",
                                       "train.sample_tokens=4"};
            for (size_t i = 0; i < sizeof run / sizeof *run; i++) argv[k++] = run[i];
            /* It knows nothing of bulk copies to memory (2025.3), by which the library's kernels for bf16 on Hopper
             * store; those for f32 have none. */
            if (!strcmp(tools[t], "initcheck")) argv[k++] = "train.dtype=f32";
            Child r = child_run(c, case_seconds(c, 100), argv);
            bool refused = r.status == 2 && strstr(r.err, "does not have");
            bool tool_fails = r.status > 0 && (strstr(r.out, "not supported") || strstr(r.err, "not supported"));
            if (r.status && !refused) case_log(c, name, *r.out ? r.out : r.err);
            case_end(c,
                     r.status == 0                               ? CASE_OK
                     : refused || (tool_fails && r.status != 97) ? CASE_SKIPPED
                                                                 : CASE_FAILED,
                     NULL, "%s",
                     r.status == 97 ? "findings, see log.txt"
                     : r.status     ? child_line(&r)
                                    : "");
            child_free(&r);
            free(config), free(dir), free(rm);
        }
    }
    free(tool);
}
