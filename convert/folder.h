/* folder.h: makes a folder that is complete or absent. convert_run writes the result in one. Private to convert/. */
#pragma once
#include "ops/base.h"

/* Checks that nothing exists at `dst`, and that its parent folder exists. */
bool folder_free(const char *dst, Err *);
typedef struct {
    int fd; /* holds the lock */
    char tmp[4200];
} Folder;
/* Makes a folder with a temporary name (file_unfinished) next to `dst`, and locks it; removes what a killed process
 * left there. EXIT_INPUT: another process is working there. */
bool folder_begin(const char *dst, Folder *, Err *);
/* Copies everything of a model directory except its weights and config.json: tokenizer and generation files, byte for
 * byte; the task on which the model was trained. */
bool folder_copy(const char *src, const char *tmp, Err *);
/* ok: sync and rename to `dst`, which fails if that exists by now; otherwise, or if that fails, remove it. Returns
 * whether `dst` was made. */
bool folder_end(Folder *, const char *dst, bool ok, Err *);
