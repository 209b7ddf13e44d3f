/* task_cfg.h: reads and writes a task's settings: in a configuration, and in the config.json of a model trained on the
 * task. config.c, checkpoints and `eval` call it. */
#pragma once
#include "data/task.h"
#include "schema.h"

/* Read {name: TASK, its settings}, or a bare name, at `path`, for samples of T tokens. EXIT_INPUT: an unknown name or
 * key, settings that disagree with each other or with T. */
bool task_cfg_read(TaskCfg *, const Node *, const char *path, int T, Err *);
/* The same with T among the settings, as task_cfg_write writes it. */
bool task_cfg_read_whole(TaskCfg *, const Node *, const char *path, Err *);
/* Write as entries of the open map: name, T if wanted, settings. */
void task_cfg_write(Writer *, const TaskCfg *, bool with_T);

/* The settings with T, as the malloc'ed text of a JSON object. */
char *task_cfg_json(const TaskCfg *);

/* Load and save the key "kvsmith_task" of DIR/config.json, which other readers of a model ignore. Absent: kind NULL. */
bool task_cfg_load(TaskCfg *, const char *dir, Err *);
bool task_cfg_save(const TaskCfg *, const char *dir, Err *);

/* The settings of the task `name` from key=value words. They start from `base` if it is of that kind, else (or if it
 * is NULL) from the defaults and T. Words that are keys of `more` go into `cfg` instead. */
bool task_cfg_words(TaskCfg *, const char *name, const TaskCfg *base, int T, const Key *more, void *cfg, int nword,
                    char *const word[], Err *);
