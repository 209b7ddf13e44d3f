/* ids.h: whether two models mean the same by their ids. */
#pragma once
#include "../data/tokenizer.h"
#include "../model/config.h"

/* The ids of the model directory mean what those of `to` and of the tokenizer mean; tok NULL: ids are a task's. */
bool ids_fit(const char *dir, const ModelCfg *to, const Tokenizer *tok, Err *);
