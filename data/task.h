/* task.h: synthetic tasks: made-up sequences with answers that follow from what stood before, to see what a mixer can
 * hold and find again.
 *
 * A sample is one document of T tokens with a target for some rows: tgt[i] is the id to be predicted at row i, from the
 * tokens 0..i, and -1 where nothing is asked. It is a pure function of (settings, stream, seed, number): nothing is
 * remembered, so a run resumes by its step alone. The streams share no key. Every sample asks at least once.
 *
 * An id is a number below `vocab`; a model of a task has no other text and no tokenizer. Beside each table in task.c
 * stands how its samples look. Sources: MQAR is that of Zoology (arXiv:2312.04927, HazyResearch/zoology
 * zoology/data/multiquery_ar.py); palindrome and stack those of Kimi Linear (arXiv:2510.26692, section 5.1), whose
 * vocabulary and counts are not published: those here are ours, as are copy, induction and needle. */
#pragma once
#include "../ops/key.h"

enum { TASK_LEN_MAX = 1 << 20, TASK_VOCAB_MAX = 1 << 20, TASK_NAME_MAX = 32 };
/* Raised when a version makes other samples of the same settings. */
enum { TASK_FORMAT = 1 };

typedef struct Task Task;
/* Settings of all tasks; each reads those that its table names. */
typedef struct {
    const Task *kind; /* NULL: no task */
    int T;            /* tokens of a sample; its own key only where no data.seq_len is */
    int vocab;        /* ids, those with a meaning included */
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
    /* Settings that disagree with each other or with T: the message names the key and what would do. */
    bool (*check)(const TaskCfg *, Err *);
    /* tok is 0 and tgt -1 before; work: `work` bytes */
    void (*sample)(const TaskCfg *, uint64_t key, int *tok, int *tgt, void *work);
    size_t (*work)(const TaskCfg *); /* NULL: none */
};
extern const Task *const tasks[]; /* NULL-ended */
const Task *task_find(const char *name);

typedef enum { TASK_TRAIN, TASK_VAL, TASK_TEST } TaskStream;
/* Sample `number` of a stream into tok and tgt, T each. The settings have passed `check`; work: task_work bytes. */
void task_sample(const TaskCfg *, TaskStream, uint64_t seed, uint64_t number, int *tok, int *tgt, void *work);
size_t task_work(const TaskCfg *);
/* Of the settings and TASK_FORMAT: other samples give another number. */
uint64_t task_hash(const TaskCfg *);
