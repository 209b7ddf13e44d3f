/* check.h: gpu-check, the program that finds out on a device what emulation cannot: docs/gpu.md.
 *
 * A part is a list of cases. Every case that ends adds one line of JSON to DIR/gpu-check.jsonl, in one write, so that
 * what a run that was cut off has found stays; a case that stands there is not run again. Cases run as processes with a
 * time limit: one that crashes, hangs or is killed is a line like any other, unless it was killed for the end of the
 * time that is left to all, which says nothing about it. */
#pragma once
#include <jansson.h>
#include "../../ops/base.h"

typedef enum { CASE_OK, CASE_FAILED, CASE_SKIPPED, CASE_STATES } CaseState;

typedef struct {
    const char *root, *out; /* the bundle; where results go */
    const char *program, *tests, *python;
    char *journal_path, *log_path, *libraries; /* libraries: for LD_LIBRARY_PATH */
    bool quick;                                /* as little as shows that a case works: for the emulation */
    double part_seconds, part_end, all_end;    /* now_seconds() at which no case is begun; the shorter counts */
    json_t *done;                              /* "part/case": the line of the journal */
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
double case_seconds(Check *, double most); /* the time the next process of it may take */
/* data: taken; NULL: none. The rest says why, for what is not ok. A failure of what was killed before it had all the
 * time that it asked for is left to the next run. */
void case_end(Check *, CaseState, json_t *data, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Text into DIR/log.txt, headed by part and case. */
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

/* ---- parts ---- */
void part_props(Check *), part_self_test(Check *), part_train(Check *), part_sanitizer(Check *), part_nccl(Check *),
    part_ops(Check *), part_cudnn(Check *), part_tune(Check *), part_bench(Check *);
/* A case: tests of the runner that the filter names, each of which holds or skips itself. */
void suite_run(Check *, const char *name, const char *filter, double limit);
/* Looks for CUDA's libraries and fills c->libraries. */
typedef struct {
    const char *name, *file, *use;
    char *at; /* NULL: not found */
} Library;
enum { LIBRARIES = 3 };
void libraries_find(Check *, Library out[LIBRARIES]);
