/* ids.h: checks that two models mean the same tokens by their ids. Training calls it for init_from and for the
 * teacher. */
#pragma once
#include "data/tokenizer.h"
#include "model/config/config.h"

/* True if ids of the model directory mean what the ids of `to` and of the tokenizer mean; tok NULL: ids are a task's.
 * EXIT_INPUT otherwise. */
bool ids_fit(const char *dir, const ModelCfg *to, const Tokenizer *tok, Err *);
