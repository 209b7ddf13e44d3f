/* recipe.h: the settings to go on training with, written into a conversion's result as train.yaml. */
#pragma once
#include "convert.h"

/* DIR/train.yaml: starts from the folder that it lies in, wherever that is moved, with its tokenizer or task, and learns
 * from `teacher` (a directory; NULL: none) as well. data.train is left to the user. `m`: the result's settings. The
 * file is whole or absent. */
bool recipe_write(const char *dir, const ModelCfg *m, const char *teacher, Err *);
