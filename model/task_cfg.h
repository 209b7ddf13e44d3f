/* task_cfg.h: a task's settings as text: in a configuration, and in config.json of a model that was trained on it. */
#pragma once
#include "../data/task.h"
#include "schema.h"

/* Read {name: TASK, its settings}, or a bare name, found at `path`, for samples of T tokens. Refused (EXIT_INPUT): an
 * unknown name or key, settings that disagree with each other or with T. */
bool task_cfg_read(TaskCfg *, const Node *, const char *path, int T, Err *);
/* The same with T among the settings: what task_cfg_write wrote with it. */
bool task_cfg_read_whole(TaskCfg *, const Node *, const char *path, Err *);
/* As entries of the map that is open: name, T where wanted, settings. */
void task_cfg_write(Writer *, const TaskCfg *, bool with_T);

/* With T, as one JSON object's malloc'ed text. */
char *task_cfg_json(const TaskCfg *);

/* Key "kvsmith_task" of DIR/config.json, which other readers of a model pass over. Absent: kind NULL. */
bool task_cfg_load(TaskCfg *, const char *dir, Err *);
bool task_cfg_save(const TaskCfg *, const char *dir, Err *);

/* The settings of the task called `name` that key=value words give: over those of `base` where it is of that kind, over
 * the defaults and T where it is not, or NULL. Words that are keys of `more` go into `cfg` instead. */
bool task_cfg_words(TaskCfg *, const char *name, const TaskCfg *base, int T, const Key *more, void *cfg, int nword,
                    char *const word[], Err *);
