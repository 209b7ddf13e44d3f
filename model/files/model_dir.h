/* model_dir.h: finds the directory with the files of a model. Commands, training and settings call it with what the
 * user wrote. */
#pragma once
#include "ops/base.h"

/* Find the directory of a model that the user named: `path` itself if it holds config.json, else the checkpoint that a
 * run folder's `best` points to, else `last`. The link is read once, so that a checkpoint written meanwhile cannot mix
 * in. For an adapter directory (peft.h) it is the base's directory; a caller that reads the weights there must pass
 * peft_path(path) to hf_load_with. */
bool model_dir_resolve(const char *path, char out[4096], Err *);
