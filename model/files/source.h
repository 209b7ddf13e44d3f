/* source.h: handles `init_from`, the model that a run starts from: takes settings from it, and finds the settings that
 * differ. config.c calls source_lay while it reads settings; train calls source_compare once it knows that the tensors
 * fit. */
#pragma once
#include "model/config/config.h"

/* True if `model` defines a model by itself: it gives d_model, layers and a feed-forward part; `model` may be NULL. */
bool source_complete(const Node *model);
/* Replace the model in the settings `root` by that of the directory or run folder `dir`, overlaid with the keys that
 * `root` gives: maps key by key, anything else as a whole. A kind with another mixer keeps the settings that both
 * mixers have. EXIT_INPUT, with "init_from: ..." or the key's own place: `dir` holds no model, or no pattern names a
 * new kind. */
bool source_lay(Node *root, const char *dir, Err *);
/* `dir`, or the checkpoint of the run folder `dir`, holds a tokenizer (tokenizer_file of data/tokenizer.h). */
bool source_has_tokenizer(const char *dir, Err *); /* false with `e` filled: it could not be determined */

/* Compare `now` with the model of the directory `dir`, layer by layer, in the settings that both layouts have. It does
 * not read tensors: hf_check must have passed, so every difference is one that no tensor shows.
 * - `change` must name every difference, by its path or by consecutive parts of the path (rope.theta, rope, window).
 *   EXIT_INPUT names the first that is missing.
 * - For a layer with another mixer only the rotation must be named, because other names may mean other things there.
 * - Rotations are equal if they turn every pair alike.
 *
 * It prints differences, other mixers and max_positions on `notes` (NULL: nowhere), one line each, at most
 * SOURCE_LINES. */
enum { SOURCE_LINES = 12 };
bool source_compare(const ModelCfg *now, const char *dir, const Texts *change, FILE *notes, Err *);
