/* test_gpu_check.c: gpu-check (tests/gpu) rehearsed on the emulation: what it writes, how it goes on after it was cut
 * off, and that a part which hangs or has no device takes nothing from the others. */
#include "tests/lib/check.h"
#include <jansson.h>
#include <libgen.h>
#include <sys/stat.h>

static char *beside(const char *name) { /* the program lies in BUILD/simt, gpu-check in BUILD/gpu */
    const char *program = getenv("KVSMITH");
    char *path = xformat("%s", program ? program : KVSMITH_PATH);
    char *all = xformat("%s/%s", dirname(path), name);
    free(path);
    return all;
}
static Ran gpu_check(const char *program, const char *out, const char *a, const char *b, const char *c) {
    char *run = beside("../gpu/run"), *tests = beside("tests-f32");
    const char *argv[] = {run,   "--root", ".", "--quick", "--program", program, "--tests",
                          tests, "--out",  out, a,         b,           c,       NULL};
    Ran r = check_run_argv(argv);
    free(run), free(tests);
    return r;
}
/* Lines of the journal: of each part how many cases are in each state, and what its sum says. */
typedef struct {
    int lines, ok, failed, skipped, sums, left;
    json_t *last; /* the last case */
} Journal;
static Journal journal(const char *out, const char *part) {
    char *path = xformat("%s/gpu-check.jsonl", out), *all = check_read(path, NULL), *rest = all;
    Journal k = {.last = NULL};
    for (char *line; (line = strsep(&rest, "\n")) && *line; k.lines++) {
        json_t *j = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        cr_assert(j, "no JSON: %.200s", line);
        const char *state = json_string_value(json_object_get(j, "state"));
        cr_assert(json_string_value(json_object_get(j, "part")), "%.200s", line);
        if (strcmp(part, json_string_value(json_object_get(j, "part")))) {
        } else if (state) {
            k.ok += !strcmp(state, "ok"), k.failed += !strcmp(state, "failed"), k.skipped += !strcmp(state, "skipped");
            json_decref(k.last);
            k.last = json_incref(j);
        } else {
            k.sums++;
            k.left = (int)json_integer_value(json_object_get(j, "left"));
        }
        json_decref(j);
    }
    free(all), free(path);
    return k;
}

/* A token that is no tie is a failure that names it. In place of the program: the program, whose third token on the
 * device is another. */
Test(gpu_check, another_token_is_no_tie, .timeout = 200) {
    char *program = beside("kvsmith"), *wrong = check_path("wrong"), *out = check_path("out");
    char *script = xformat("#!/bin/sh\ncase \"$*\" in\ngenerate*\"--device cuda\"*) '%s' \"$@\" | "
                           "sed -E 's/(\"tokens\": *\\[[0-9]+, *[0-9]+, *)[0-9]+/\\10/' ;;\n*) exec '%s' \"$@\" ;;\n"
                           "esac\n",
                           program, program);
    check_write(wrong, script, strlen(script));
    cr_assert(chmod(wrong, 0755) == 0);
    Ran r = gpu_check(wrong, out, "train", NULL, NULL);
    cr_assert(r.status == 1 && strstr(r.out, "text: token 2 differs, by ") && !strstr(r.out, "by inf"), "%d %s%s",
              r.status, r.out, r.err);
    Journal k = journal(out, "train");
    cr_assert(k.failed == 2 && k.ok == 3, "%d failed, %d ok", k.failed, k.ok); /* it, and its configuration */
    json_decref(k.last);
    free(r.out), free(r.err), free(program), free(wrong), free(out), free(script);
}

static const char *const parts[] = {"props", "limits",  "smoke", "first",      "self-test",
                                    "train", "nccl",    "cudnn", "tune",       "ops",
                                    "bench", "profile", "peers", "slow-tests", "sanitizer"};
enum { PARTS = sizeof parts / sizeof *parts };
Test(gpu_check, every_part_is_rehearsed, .timeout = 400) {
    char *program = beside("kvsmith"), *out = check_path("out"), *tool = check_path("compute-sanitizer"),
         *ncu = check_path("ncu");
    /* In place of the tool: what it would watch is run, so that its arguments hold. */
    static const char script[] =
        "#!/bin/sh\n[ \"$1$3$5\" = --tool--error-exitcode--print-limit ] || exit 9\ntool=$2\nshift 6\n"
        "if [ $tool = memcheck ]; then [ \"$1$2\" = --report-api-errorsno ] || exit 9; shift 2; fi\n"
        "case $tool,$* in initcheck,*train.dtype=f32*) ;; initcheck*|*train.dtype*) exit 9 ;; esac\nexec \"$@\"\n";
    check_write(tool, script, sizeof script - 1);
    /* In place of the profiler: a table that names what was asked for. */
    static const char profiler[] =
        "#!/bin/sh\n[ \"$1$2\" = --clock-controlnone ] || exit 9\n"
        "case \"$*\" in *' bench train '*) echo gpu__time_duration.sum,1 ;; *) exit 9 ;; esac\n";
    check_write(ncu, profiler, sizeof profiler - 1);
    cr_assert(chmod(tool, 0755) == 0 && chmod(ncu, 0755) == 0);
    char *path = xformat("%s:%s", check_dir(), getenv("PATH"));
    setenv("PATH", path, 1);
    Ran r = gpu_check(program, out, "all", "--python", "no-python-here");
    cr_assert(r.status == 0, "%d %s%s", r.status, r.out, r.err);
    for (size_t i = 0; i < PARTS; i++) {
        Journal k = journal(out, parts[i]);
        /* peers are not there, and no test ran out of its time */
        const bool idle = !strcmp(parts[i], "peers") || !strcmp(parts[i], "slow-tests");
        cr_assert(k.failed == 0 && k.sums == 1 && k.left == 0 && (k.ok > 0) != idle, "%s: %d %d %d", parts[i], k.ok,
                  k.failed, k.skipped);
        json_decref(k.last);
    }
    free(r.out), free(r.err);
    /* What stands there is not done again. */
    Journal before = journal(out, "train");
    r = gpu_check(program, out, "train", NULL, NULL);
    Journal after = journal(out, "train");
    cr_assert(r.status == 0 && after.lines == before.lines - PARTS + 1 && after.ok == before.ok, "%d: %d, %d", r.status,
              before.lines, after.lines);
    json_decref(before.last), json_decref(after.last);
    free(r.out), free(r.err), free(program), free(out), free(tool), free(ncu), free(path);
}
/* A line that was cut off goes, what stands before it stays. */
Test(gpu_check, goes_on_where_it_was_cut_off, .timeout = 100) {
    char *program = beside("kvsmith"), *out = check_path("out"), *path = xformat("%s/gpu-check.jsonl", out);
    static const char cut[] =
        "{\"part\":\"props\",\"case\":\"device\",\"state\":\"ok\",\"seconds\":1,\"data\":{\"mark\":7}}\n"
        "{\"part\":\"props\",\"case\":\"program\",\"state\":\"o";
    cr_assert(mkdir(out, 0777) == 0);
    check_write(path, cut, sizeof cut - 1);
    Ran r = gpu_check(program, out, "props", NULL, NULL);
    char *all = check_read(path, NULL);
    Journal k = journal(out, "props");
    cr_assert(r.status == 0 && strstr(all, "\"mark\":7") && k.ok + k.skipped == 9 && k.sums == 1, "%d %s", r.status,
              all);
    json_decref(k.last);
    free(r.out), free(r.err), free(all);
    r = gpu_check(program, out, "props", "--again", NULL);
    all = check_read(path, NULL);
    cr_assert(r.status == 0 && !strstr(all, "\"mark\":7"), "%s", all);
    free(r.out), free(r.err), free(all), free(path), free(out), free(program);
}
/* No time: everything is left, status 1, and the next call does it. */
Test(gpu_check, says_what_it_had_no_time_for) {
    char *program = beside("kvsmith"), *out = check_path("out");
    Ran r = gpu_check(program, out, "props", "--total", "0.000001");
    Journal k = journal(out, "props");
    cr_assert(r.status == 1 && k.left == 9 && k.ok == 0, "%d %d", r.status, k.left);
    free(r.out), free(r.err), free(out), free(program);
}
/* What is killed because the time of all parts ends has not failed: the next call runs it, and what was not begun. One
 * that is the first of its call had all that there is, as below. */
Test(gpu_check, a_case_cut_off_by_the_end_is_left, .timeout = 100) {
    char *program = beside("kvsmith"), *real = realpath(program, NULL), *out = check_path("out"),
         *fake = check_path("fake"),
         *script = xformat("#!/bin/sh\n[ \"$1$2\" != benchdecode ] || sleep 1000\nexec %s \"$@\"\n", real);
    check_write(fake, script, strlen(script));
    cr_assert(chmod(fake, 0755) == 0);
    char *total = xformat("%g", 4 * check_slow()); /* the first case ends within it, the second does not */
    Ran r = gpu_check(fake, out, "bench", "--total", total);
    free(total);
    Journal k = journal(out, "bench");
    cr_assert(r.status == 1 && k.ok == 1 && k.failed == 0 && k.left == 1 &&
                  strstr(r.out, "left bench/decode 124m, bf16: "),
              "%d: %d, %d, %d left: %s%s", r.status, k.ok, k.failed, k.left, r.out, r.err);
    json_decref(k.last);
    free(r.out), free(r.err);
    r = gpu_check(program, out, "bench", "--python", "no-python-here");
    k = journal(out, "bench");
    cr_assert(r.status == 0 && k.ok == 2 && k.skipped == 0 && k.failed == 0 && k.left == 0, "%d: %d, %d: %s%s",
              r.status, k.ok, k.failed, r.out, r.err);
    json_decref(k.last);
    free(r.out), free(r.err), free(out), free(fake), free(script), free(real), free(program);
}
/* Without a device every part says so in a line, nothing is run, the next call tries again. */
Test(gpu_check, says_that_there_is_no_device, .timeout = 60) {
    char *program = beside("kvsmith"), *out = check_path("out");
    setenv("SIMT_DRIVER", "0", 1);
    Ran r = gpu_check(program, out, "all", NULL, NULL);
    unsetenv("SIMT_DRIVER");
    int lines = 0;
    for (char *p = r.out; (p = strstr(p, "no device: status 1: kvsmith: device cuda: no NVIDIA driver")); p++) lines++;
    Journal k = journal(out, "self-test");
    cr_assert(r.status == 1 && lines == PARTS && k.lines == PARTS && k.left == 1 && k.ok + k.failed == 0, "%d %s",
              r.status, r.out);
    free(r.out), free(r.err), free(out), free(program);
}
/* A program that hangs in one command and dies in another: each is a line of its own, the rest goes on. */
Test(gpu_check, a_hanging_program_is_one_failed_case, .timeout = 100) {
    char *program = beside("kvsmith"), *real = realpath(program, NULL), *out = check_path("out"),
         *fake = check_path("fake");
    char *script =
        xformat("#!/bin/sh\ncase \"$1\" in train) sleep 1000 ;; bench) kill -9 $$ ;; esac\nexec %s \"$@\"\n", real);
    check_write(fake, script, strlen(script));
    cr_assert(chmod(fake, 0755) == 0);
    Ran r = gpu_check(fake, out, "train", "--seconds", "0.5");
    Journal k = journal(out, "train");
    const char *why = json_string_value(json_object_get(k.last, "why"));
    cr_assert(r.status == 1 && k.failed >= 1 && why && strstr(why, "ran out of time"), "%d %s", r.status, r.out);
    json_decref(k.last);
    free(r.out), free(r.err);
    r = gpu_check(fake, out, "bench", "--python", "no-python-here");
    k = journal(out, "bench");
    cr_assert(r.status == 1 && k.failed == 2 && k.skipped == 0 && journal(out, "train").failed >= 1, "%d %s", r.status,
              r.out);
    json_decref(k.last);
    free(r.out), free(r.err), free(out), free(fake), free(script), free(real), free(program);
}
Test(gpu_check, bad_words_are_refused) {
    char *program = beside("kvsmith"), *out = check_path("out");
    Ran r = gpu_check(program, out, "selftest", NULL, NULL);
    cr_assert(r.status == 2 && strstr(r.err, "no such part") && !check_exists(out), "%d %s", r.status, r.err);
    free(r.out), free(r.err), free(out), free(program);
}
