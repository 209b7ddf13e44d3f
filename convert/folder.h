/* folder.h: a folder that is whole or absent. Private to convert/. */
#pragma once
#include "../ops/base.h"

/* Nothing stands at `dst`, and the folder that it will stand in is there. */
bool folder_free(const char *dst, Err *);
/* Make a folder of a temporary name beside `dst`. */
bool folder_begin(const char *dst, char tmp[4200], Err *);
/* Everything of a model directory but its weights and config.json: tokenizer and generation files, byte for byte; the
 * task that the model was trained on. */
bool folder_copy(const char *src, const char *tmp, Err *);
/* ok: sync and rename to `dst`, which fails if something stands there by now; else, and when that fails, remove it.
 * Returns whether `dst` is there. */
bool folder_end(const char *tmp, const char *dst, bool ok, Err *);
