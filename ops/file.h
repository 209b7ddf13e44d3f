/* file.h: files as the outside world hands them, and files as we leave them behind.
 *
 * Reading trusts nothing: sizes, nesting and the number of values are bounded before anything is allocated by them.
 * Writing is all or nothing: a temporary name in the same directory, synced, renamed, the directory synced. A file that
 * shrinks while it is mapped is out of scope (the system ends the program). */
#pragma once
#include "base.h"
#include <jansson.h>

enum { JSON_BYTES_MAX = 100000000, JSON_VALUES_MAX = 2 << 20 };

typedef struct {
    const unsigned char *p; /* NULL when n is 0 */
    size_t n;
} FileMap;
/* Map a regular file read-only. Anything else (directory, pipe, device) is EXIT_INPUT. */
bool file_map(FileMap *, const char *path, Err *);
void file_unmap(FileMap *);
/* It begins as llama.cpp's models do. */
bool file_is_gguf(const char *path);
/* A regular file exists at DIR/NAME (a link to one counts). */
bool file_exists(const char *dir, const char *name);

/* An object from `n` bytes of JSON: UTF-8, no duplicate key at any level, nothing behind it, at most JSON_BYTES_MAX
 * bytes and JSON_VALUES_MAX values. `where` begins the message. NULL on failure; `why` (may be NULL) then tells the
 * reason. */
json_t *json_parse(const void *p, size_t n, const char *where, enum json_error_code *why, Err *);
/* Those two bounds alone, for who calls the parser himself. */
bool json_bounded(const void *p, size_t n, const char *where, Err *);
json_t *json_read(const char *path, Err *); /* the same from a file */
/* Make the folder `path` and those above it where they are missing; `made` (may be NULL): how many at its end,
 * also when it fails. `what`
 * ("run folder") is for the message. */
bool file_folders(const char *path, const char *what, int *made, Err *);

typedef struct {
    int fd;
    char *path, *tmp;
} FileOut;
/* Every failure below removes the temporary file and closes `o`; the old file at `path` stays as it was. A directory
 * that is missing or not writable is EXIT_INPUT, what goes wrong later (disk full, quota, device) EXIT_WORLD. */
bool file_begin(FileOut *o, const char *path, Err *);
bool file_put(FileOut *o, const void *p, size_t n, Err *);
bool file_commit(FileOut *o, Err *); /* sync, close, rename, sync the directory */
void file_drop(FileOut *o);          /* give up */
/* All of it for a file that is in memory. */
bool file_write(const char *path, const void *p, size_t n, Err *);
/* `j` indented by 2 with its keys in the given order and a newline at the end. Takes no reference. */
bool json_write(const char *path, json_t *j, Err *);
