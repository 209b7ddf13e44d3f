/* tools.c: NVIDIA's own tools around the program, where they are: profiles, and compute-sanitizer. */
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"

/* In PATH, else below CUDA_HOME and /usr/local/cuda in bin/ or `below`/. */
char *tool_find(const char *name, const char *below) {
    const char *homes[] = {getenv("CUDA_HOME"), "/usr/local/cuda"};
    char *path = xformat("%s", getenv("PATH") ? getenv("PATH") : ""), *rest = path, *found = NULL;
    for (char *dir; !found && (dir = strsep(&rest, ":"));) {
        char *at = xformat("%s/%s", dir, name);
        if (access(at, X_OK) == 0)
            found = at;
        else
            free(at);
    }
    for (int h = 0; h < 4 && !found; h++) {
        if (!homes[h / 2]) continue;
        char *at = xformat("%s/%s/%s", homes[h / 2], h % 2 ? below : "bin", name);
        if (access(at, X_OK) == 0)
            found = at;
        else
            free(at);
    }
    free(path);
    return found;
}

/* ---- profiles ---------------------------------------------------------------------------------------------------- */

/* Of the kernels of a few steps: time, bytes of memory, share of the matrix units' time. Clocks are left as they
 * are. */
static void profile(Check *c, const char *tool, const char *name, const char *skip, const char *const run[]) {
    if (!case_begin(c, name)) return;
    if (!tool) {
        case_end(c, CASE_SKIPPED, NULL, "ncu is neither in PATH nor below CUDA_HOME");
        return;
    }
    const char *argv[48] = {tool,
                            "--clock-control",
                            "none",
                            "--csv",
                            "--launch-skip",
                            skip,
                            "--launch-count",
                            c->quick ? "4" : "400",
                            "--metrics",
                            "gpu__time_duration.sum,dram__bytes.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed,"
                            "dram__throughput.avg.pct_of_peak_sustained_elapsed,"
                            "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"};
    int k = 10;
    for (int i = 0; run[i]; i++) argv[k++] = run[i];
    Child r = child_run(c, case_seconds(c, 120), argv);
    char *path = xformat("%s/profile.txt", c->out);
    FILE *f = fopen(path, "a");
    struct stat st = {0};
    enum { MOST = 12 << 20 };
    /* what a run that was cut off has said is worth keeping, too */
    if (f && fstat(fileno(f), &st) == 0 && st.st_size + (off_t)strlen(r.out) < MOST)
        fprintf(f, "==== %s\n%s\n", name, r.out);
    if (f) fclose(f);
    free(path);
    bool table = strstr(r.out, "gpu__time_duration") != NULL;
    if (r.status || !table) case_log(c, name, *r.err ? r.err : r.out);
    case_end(c, table ? CASE_OK : CASE_FAILED, NULL, "%s", r.status || !table ? child_line(&r) : "");
    child_free(&r);
}
void part_profile(Check *c) {
    char *tool = tool_find("ncu", "nsight-compute");
    const char *p = c->program, *cuda = "--device", *s = c->quick ? "0.01" : "0.05";
    if (c->quick) {
        char *small = xformat("%s/small.yaml", c->work);
        profile(c, tool, "kernels of a training step", "0",
                (const char *const[]){p, "bench", "train", small, cuda, "cuda", "--rows", "8", "-s", s, NULL});
        free(small), free(tool);
        return;
    }
    profile(c, tool, "kernels of a training step", "800",
            (const char *const[]){p, "bench", "train", "configs/124m.yaml", "train.micro_batch=16", "run.graph=off",
                                  cuda, "cuda", "--dtype", "bf16", "--rows", "1024", "-s", s, NULL});
    profile(c, tool, "kernels of decoding", "400",
            (const char *const[]){p, "bench", "decode", "tests/gpu/models/8b-4.yaml", cuda, "cuda", "--dtype", "bf16",
                                  "--batch", "1", "--prompt", "2048", "--graph", "off", "-s", s, NULL});
    profile(c, tool, "kernels of Kimi Delta Attention", "0",
            (const char *const[]){p, "bench", "recur", cuda, "cuda", "--dtype", "bf16", "--rule", "kda", "--shape",
                                  "1x8192x96x128", "-s", s, NULL});
    free(tool);
}

/* ---- compute-sanitizer ------------------------------------------------------------------------------------------- */
void part_sanitizer(Check *c) {
    static const char *const tools[] = {"memcheck", "racecheck", "initcheck", "synccheck"};
    /* Every tool watches the first three, whose kernels are most of those that share memory between threads: attention,
     * recurrences by chunks with a decay per channel and per head. The others add few, for memcheck alone. */
    enum { BY_ALL = 3 };
    static const char *const models[] = {"gqa", "kda", "mamba2", "mla", "moe", "gated_retention", "yoco", "dms"};
    char *tool = tool_find("compute-sanitizer", "compute-sanitizer");
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
            char *config = xformat("configs/tiny-%s.yaml", models[m]), *dir = xformat("run.dir=%s/sanitizer", c->work);
            char *rm = xformat("%s/sanitizer", c->work);
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
