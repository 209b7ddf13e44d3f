/* check.h: gpu-check, the program that finds out on a device what emulation cannot: docs/gpu.md.
 *
 * A part is a list of cases. Every case that ends adds one line of JSON to DIR/gpu-check.jsonl, in one write, so that
 * what a run that was cut off has found stays; a case that stands there is not run again. Cases run as processes with a
 * time limit: one that crashes, hangs or is killed is a line like any other, unless it was killed for the end of the
 * time that is left to all, which says nothing about it. */
#pragma once
#include <jansson.h>
#include "ops/base.h"

typedef enum { CASE_OK, CASE_FAILED, CASE_SKIPPED, CASE_STATES } CaseState;

typedef struct {
    const char *root, *out, *work; /* the bundle; where results go; where runs and other files of no use lie */
    const char *self, *program, *tests, *python;
    const char *only;                          /* part train, in a process of its own: this configuration alone */
    char *journal_path, *log_path, *libraries; /* libraries: for LD_LIBRARY_PATH */
    bool quick;                                /* as little as shows that a case works: for the emulation */
    double part_seconds, part_end, all_end;    /* now_seconds() at which no case is begun; the shorter counts */
    double limit;                              /* most seconds of a case; 0: as each has it */
    json_t *done;                              /* "part/case": the line of the journal, of this run, too */
    const char *device_missing;                /* why there is no device; NULL: there is one */
    /* of the part under way */
    const char *part;
    int count[CASE_STATES], left;
    const char *name; /* of the case under way; NULL: none was begun yet */
    double began;
    bool alone;             /* it is the first: no later run would have more time for it */
    bool shortened, killed; /* the next process has less time than its case asked for; one was killed for that */
} Check;

/* True: run the case now and end it by case_end. False: it stands in the journal already, or there is hardly any time
 * left for it, which counts it among those left. */
bool case_begin(Check *, const char *name);
json_t *case_of(const Check *, const char *part, const char *name); /* its line; NULL: it has not ended. Borrowed */
/* A line that is no case: what somebody who reads the journal wants to know. `data` is taken. */
/* DIR/figures.txt: every figure with what was expected of it, made anew from the journal. */
void figures_write(const Check *);
double case_seconds(Check *, double most); /* the time the next process of it may take */
/* data: taken; NULL: none. The rest says why, for what is not ok. A failure of what was killed before it had all the
 * time that it asked for is left to the next run. */
void case_end(Check *, CaseState, json_t *data, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Text into DIR/log.txt, headed by part and case; nothing once that has LOG_MOST bytes. */
enum { LOG_MOST = 12 << 20, RESULT_MOST = 16 << 20 };
void case_log(const Check *, const char *what, const char *text);

/* ---- processes ---- */
typedef struct {
    int status; /* exit status; 128 + signal; -1: it ran out of time, -2: it cannot be started */
    double seconds;
    char *out, *err; /* at most a few MB of each */
} Child;
/* argv NULL-ended, in the bundle's folder, with nothing on stdin; killed with all that it started after `limit`. */
Child child_run(Check *, double limit, const char *const argv[]);
#define CHILD(c, limit, ...) child_run(c, limit, (const char *const[]){__VA_ARGS__, NULL})
void child_free(Child *);
const char *child_line(const Child *); /* one line that says how it failed, in static memory */
/* stdout as a JSON object, or NULL. */
json_t *child_json(const Child *);
/* Runs the program and ends the case as failed, or as skipped where it says that the device does not have something
 * yet, unless it succeeds. */
bool program_ran(Check *, const char *what, const Child *);
/* Many processes, `most` side by side, each a case of its own name with a limit of its own: one that hangs costs its
 * own time and nothing of the others. A job whose case stands in the journal, or for which no time is left, is not
 * begun. */
typedef struct {
    char *name, *argv[24]; /* argv NULL-ended */
    double limit;
    void *ctx;
} Job;
/* `ended` ends the case (case_end). */
void jobs_run(Check *, int most, int n, Job *, void (*ended)(Check *, Job *, Child *));

/* ---- parts ---- */
enum { ONLY_LEFT = 3 }; /* status of a run of one configuration that had no time for some of its cases */
void part_props(Check *), part_limits(Check *), part_smoke(Check *), part_first(Check *), part_self_test(Check *),
    part_train(Check *), part_nccl(Check *), part_cudnn(Check *), part_tune(Check *), part_ops(Check *),
    part_bench(Check *), part_profile(Check *), part_peers(Check *), part_slow_tests(Check *), part_sanitizer(Check *);
/* Tests of the runner (suites.c) that any of the NULL-ended patterns names, each a case "suite/test" that holds or
 * skips itself, most of them within `limit` seconds. checked: every launch is looked at (KVSMITH_CUDA_CHECK). */
void tests_run(Check *, const char *const patterns[], double limit, bool checked);
/* The program's JSON as the case's data, next to what was expected. In a rehearsal the command is run with little of
 * everything, and the files that it names must be there. */
void measured(Check *, const char *name, double limit, const char *const argv[]);
#define MEASURED(c, name, limit, ...) measured(c, name, limit, (const char *const[]){(c)->program, __VA_ARGS__, NULL})
/* Processes that may use the device at once: 1 where it serves one at a time. */
int side_by_side(const Check *);
/* What was expected (estimates.c): adds "expected" to the data of a case; figures of it as lines of text. */
void estimates_add(const char *name, json_t *data);
void estimates_print(FILE *, const char *name, const json_t *data);
/* Looks for CUDA's libraries and fills c->libraries. */
typedef struct {
    const char *name, *file, *use;
    char *at; /* NULL: not found */
} Library;
enum { LIBRARIES = 3 };
void libraries_find(Check *, Library out[LIBRARIES]);
char *tool_find(const char *name, const char *below_home); /* in PATH, or there below CUDA_HOME; NULL */
