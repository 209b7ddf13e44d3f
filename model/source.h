/* source.h: the model that a run starts from (`init_from`): settings taken from it, and what deviates from it.
 *
 * config.c calls source_lay while it reads settings; train calls source_compare when it knows that the tensors fit. */
#pragma once
#include "config.h"

/* A model that stands by itself names its d_model, its layers and its feed-forward part; `model` may be NULL. */
bool source_complete(const Node *model);
/* Replace the model of the settings `root` by that of the directory or run folder `dir` with the keys that `root` gives
 * laid over it: maps key by key, anything else in place of what is there. A kind with another mixer keeps the settings
 * that both mixers have. EXIT_INPUT with "init_from: ..." or the key's own place: `dir` holds no model; a new kind that
 * no pattern names. */
bool source_lay(Node *root, const char *dir, Err *);
/* `dir`, or the checkpoint of the run folder `dir`, holds a tokenizer.json. */
bool source_has_tokenizer(const char *dir, Err *); /* false with `e` filled: that could not be found out */

/* Compare `now` with the model of the directory `dir`, layer by layer, in settings that both layouts have. Tensors are
 * not looked at: hf_check must have passed, so every difference is one that no tensor shows.
 *
 * A difference must be named in `change`, by its path or by a run of the path's parts (rope.theta, rope, window);
 * EXIT_INPUT names the first that is not. Of a layer with another mixer only the rotation must be named, as other names
 * may mean other things there. Rotations are equal when they turn every pair alike.
 *
 * Written to `notes` (NULL: nowhere), one line each, at most SOURCE_LINES: differences, other mixers, max_positions. */
enum { SOURCE_LINES = 12 };
bool source_compare(const ModelCfg *now, const char *dir, const Texts *change, FILE *notes, Err *);
