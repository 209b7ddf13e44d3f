/* config_keys.h: the tables of a run's settings, shared by config.c, which reads them, and config_text.c, which writes,
 * compares and describes them. */
#pragma once
#include "config.h"
#include "schema.h"

enum { VOCAB_MAX = 1 << 24, POSITIONS_MAX = 1 << 24 };
enum { ROWS_MAX = 1 << 24 }; /* of a micro-batch: an int counts them, and rows x widths must stay far from 2^63 */
extern const Key run_keys[], model_keys[], path_keys[], data_keys[], train_keys[], optim_keys[], stage_keys[],
    teacher_keys[], group_keys[], lora_keys[], dist_keys[], config_keys[];

/* `stages`: names and lengths, and train.steps, which is theirs; then, when all else of c is read, their settings. */
bool stages_list(Config *, Node *root, Err *);
bool stages_build(Config *, const Node *root, Err *);
/* The list as it is written, without what follows from the rest. */
void stages_write(Writer *, const Config *);

/* Defaults that follow from other settings (optim.warmup, train.micro_batch, optim.min_lr), where `root` does not give
 * them: c->follows says which. train.steps is known by then. */
void defaults_follow(Config *c, const Node *root);
/* Take out of a tree of c's resolved settings what follows, so that it may follow from other settings there. */
void defaults_leave(const Config *c, Node *root);
/* What follows in a stage and is not as in the run, as entries `optim.warmup: 5` of the map that is open. */
void defaults_write(const Config *stage, const Config *run, Writer *);
/* Was section.name written? */
bool config_given(const Node *root, const char *section, const char *name);
