/* folder.h: a folder that is whole or absent. Private to convert/. */
#pragma once
#include "../ops/base.h"

/* Nothing stands at `dst`, and the folder that it will stand in is there. */
bool folder_free(const char *dst, Err *);
typedef struct {
    int fd; /* holds the lock */
    char tmp[4200];
} Folder;
/* Make a folder of a temporary name (file_unfinished) beside `dst`, and lock it; what a killed process has left there is
 * removed. EXIT_INPUT: another process is at work there. */
bool folder_begin(const char *dst, Folder *, Err *);
/* Everything of a model directory but its weights and config.json: tokenizer and generation files, byte for byte; the
 * task that the model was trained on. */
bool folder_copy(const char *src, const char *tmp, Err *);
/* ok: sync and rename to `dst`, which fails if something stands there by now; else, and when that fails, remove it.
 * Returns whether `dst` is there. */
bool folder_end(Folder *, const char *dst, bool ok, Err *);
