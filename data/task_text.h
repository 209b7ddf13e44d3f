/* task_text.h: tasks of text, whose answers lie far back: needles in a haystack, passkey, variable tracking, common
 * and frequent words, repeating. The program's commands reach them through the table of task.h; `eval` also spells
 * their samples for a model that has a tokenizer.
 *
 * - An id is a piece of text: a phrase of the template, a digit, or a made-up word of two syllables. A small model is
 *   trained on the ids (data.task); any other model reads the text that they spell.
 * - A sample is context, question, prefix and answers. Policies that compress a cache where a prompt ends can do it
 *   after the question (they know what will be asked) or before it (they do not).
 * - The templates and rules are those of RULER (arXiv:2404.06654), Needle in a Haystack (G. Kamradt) and passkey
 *   (arXiv:2305.16300), but samples are drawn by our own generator, words are made up, haystacks are sentences of noise
 *   or random words instead of essays, and answers have an order. Scores are shaped like RULER's and are not
 *   RULER's. */
#pragma once
#include "task.h"

extern const Task task_niah, task_niah_multikey, task_niah_multivalue, task_niah_multiquery, task_passkey, task_vt,
    task_cwe, task_fwe, task_repeat, task_recall;
enum { HAY_NOISE, HAY_WORDS, HAY_NEEDLES };
enum { TASK_DIGITS_MAX = 16 };

/* Rows where the first question begins, and the first prefix of an answer. */
typedef struct {
    int question, prefix;
} TaskParts;
TaskParts task_parts(const TaskCfg *, const int *tok);

/* The text of ids[from..to), malloc'ed; `ids` begins at the sample's first row (the id after row T-1 is its target). */
char *task_spell(const TaskCfg *, const int *ids, int from, int to);
/* The settings with the fewest ids that the task accepts, of at most `most`: T of them; 0: even `most` are too few. */
int task_text_least(const TaskCfg *, int most);
