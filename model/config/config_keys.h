/* config_keys.h: the key tables of a run's settings. config.c reads settings by them, config_text.c writes, compares
 * and documents them. Private to model/. */
#pragma once
#include "config.h"
#include "schema.h"

enum { VOCAB_MAX = 1 << 24, POSITIONS_MAX = 1 << 24 };
enum { ROWS_MAX = 1 << 24 }; /* of a micro-batch: an int counts them, and rows x widths must stay far from 2^63 */
extern const Key run_keys[], model_keys[], train_keys[], stage_keys[], teacher_keys[], lora_keys[], dist_keys[],
    config_keys[]; /* and those of optim/optim_cfg.h and data/data_cfg.h */

/* Reads the map of a model. `positions`: max_positions if the map does not give it. */
bool model_cfg_read(ModelCfg *, const Node *map, const char *path, int positions, Err *);

/* stages_list reads the names and lengths of `stages`, and sets train.steps to their sum. stages_build reads their
 * settings by `read`, which is config_tree; call it after everything else of c was read. */
typedef bool ConfigReader(Config *, Node *root, int noverride, char *const override[], Err *);
bool stages_list(Config *, Node *root, Err *);
bool stages_build(Config *, const Node *root, ConfigReader *read, Err *);

/* Fill the defaults that depend on other settings (optim.warmup, train.micro_batch, optim.min_lr) if `root` does not
 * give them; c->follows records which. train.steps must be known. */
void defaults_follow(Config *c, const Node *root);
/* Remove those defaults from a tree of c's resolved settings, so that they can be derived again from other settings
 * there. */
void defaults_leave(const Config *c, Node *root);
/* Write a stage's derived defaults that differ from the run's, as entries `optim.warmup: 5` of the open map. */
void defaults_write(const Config *stage, const Config *run, Writer *);
/* True if the user wrote section.name. */
bool config_given(const Node *root, const char *section, const char *name);
