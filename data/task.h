/* task.h: synthetic tasks: generated sequences whose answers follow from earlier tokens, which show what a mixer can
 * store and find again. Training (data.task) and `eval` draw samples from them.
 *
 * - A sample is one document of T tokens with a target for some rows: tgt[i] is the id to predict at row i from the
 *   tokens 0..i, or -1 if nothing is asked. Every sample asks at least once.
 * - A sample is a pure function of (settings, stream, seed, number) without state, so a run resumes from its step
 *   alone. The streams share no key.
 * - An id is an integer below `vocab`. A model of a task has no text and no tokenizer. task.c describes each task's
 *   samples next to its table.
 *
 * Tasks of text have ids that stand for pieces of text, so that models with a tokenizer can be asked too.
 *
 * Sources: MQAR is that of Zoology (arXiv:2312.04927, HazyResearch/zoology zoology/data/multiquery_ar.py); palindrome
 * and stack those of Kimi Linear (arXiv:2510.26692, section 5.1), whose vocabulary and counts are not published. Those
 * here are ours, as are copy, induction and needle. */
#pragma once
#include "ops/key.h"

enum { TASK_LEN_MAX = 1 << 20, TASK_VOCAB_MAX = 1 << 20, TASK_NAME_MAX = 32 };
/* Must be raised when a version makes other samples from the same settings. */
enum { TASK_FORMAT = 1 };

typedef struct Task Task;
/* Settings of all tasks; each task reads those that its table names. */
typedef struct {
    const Task *kind; /* NULL: no task */
    int T;            /* tokens of a sample; its own key only if there is no data.seq_len */
    int vocab;        /* ids, including those with a meaning */
    /* tasks of text (task_text.h) */
    int keys, values, queries, hay, digits, rounds; /* niah */
    int hops, chains;                               /* vt */
    int common, times;                              /* cwe */
    int items;                                      /* repeat */
    int pairs;
    double power;
    bool noise; /* mqar */
    int stacks;
    double pop;            /* stack */
    int bigrams, distance; /* induction */
    int needles, length;   /* needle */
    double depth_min, depth_max;
} TaskCfg;

struct Task {
    const char *name, *about;
    const Key *keys; /* of TaskCfg */
    /* Check that the settings agree with each other and with T; the message must name the key and a value that would
     * work. */
    bool (*check)(const TaskCfg *, Err *);
    /* tok is 0 and tgt -1 when it is called; work: `work` bytes */
    void (*sample)(const TaskCfg *, uint64_t key, int *tok, int *tgt, void *work);
    size_t (*work)(const TaskCfg *); /* NULL: none */
    bool text;                       /* its ids are pieces of text (task_text.h) */
};
extern const Task *const tasks[]; /* NULL-ended */
const Task *task_find(const char *name);

typedef enum { TASK_TRAIN, TASK_VAL, TASK_TEST } TaskStream;
/* Write sample `number` of a stream into tok and tgt, T each. The settings must have passed `check`; work: task_work
 * bytes. */
void task_sample(const TaskCfg *, TaskStream, uint64_t seed, uint64_t number, int *tok, int *tgt, void *work);
size_t task_work(const TaskCfg *);
/* A hash of the settings and TASK_FORMAT: other samples give another hash. */
uint64_t task_hash(const TaskCfg *);
