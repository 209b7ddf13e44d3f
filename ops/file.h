/* file.h: reading files from outside, and writing our own. Every module that touches the disk calls it.
 *
 * - Reading trusts nothing: sizes, nesting and the number of values are bounded before they decide any allocation.
 * - Writing is all or nothing: write a temporary name in the same directory, sync it, rename it, sync the directory.
 * - A file that shrinks while it is mapped is not handled here: the system ends the program. */
#pragma once
#include "base.h"
#include <jansson.h>
#include <sys/stat.h>

enum { JSON_BYTES_MAX = 100000000, JSON_VALUES_MAX = 2 << 20 };

typedef struct {
    const unsigned char *p; /* NULL when n is 0 */
    size_t n;
} FileMap;
/* Map a regular file read-only. Anything else (directory, pipe, device) is EXIT_INPUT. */
bool file_map(FileMap *, const char *path, Err *);
void file_unmap(FileMap *);
/* The file begins like a GGUF file of llama.cpp. */
bool file_is_gguf(const char *path);
/* stat of `path`, through links. `e` is cleared first. False with `e` clear: nothing is there (ENOENT, ENOTDIR). False
 * with `e` filled: stat failed, which never means that nothing is there. */
bool file_look(const char *path, struct stat *st, Err *e);
/* A regular file, or a link to one, exists at DIR/NAME. Returns false like file_look; a caller that continues without
 * the file must return `!e->status`. */
bool file_exists(const char *dir, const char *name, Err *e);
/* The names in the folder open as descriptor `fd`, sorted, without . and ..; `dir` is for the message. `fd` stays
 * open. An error while reading is reported, never taken for the end of the folder. */
typedef struct {
    int n;
    char **name;
} Names;
bool file_names(Names *, int fd, const char *dir, Err *e);
void names_free(Names *);

/* Parse an object from `n` bytes of JSON. NULL on failure; `why` (may be NULL) then holds the reason.
 * - It must be UTF-8, without duplicate keys at any level, and nothing may follow the object.
 * - It may have at most JSON_BYTES_MAX bytes and JSON_VALUES_MAX values. `where` begins the message. */
json_t *json_parse(const void *p, size_t n, const char *where, enum json_error_code *why, Err *);
/* Check those two bounds alone, for callers that run the parser themselves. */
bool json_bounded(const void *p, size_t n, const char *where, Err *);
/* The same from a file. Infinity, -Infinity and NaN, which Python writes but JSON does not have, are read as texts. */
json_t *json_read(const char *path, Err *);
/* Make the folder `path` and its missing parents, and sync their names to disk. `made` (may be NULL) receives how many
 * folders at the end of `path` are new, also on failure. `what` ("run folder") is for the message. */
bool file_folders(const char *path, const char *what, int *made, Err *);

/* Open `name` in the folder `at` (AT_FDCWD: the current one) for writing in place, with the flags `how`. It must be a
 * regular file and not a link: a pipe would block for ever. `say` is its path for the message. Returns -1 with `e`
 * filled, or with `e` clear if nothing is there and `how` has no O_CREAT. */
int file_own(int at, const char *name, int how, const char *say, Err *e);
/* A new file in the folder `dir`, to read and write, that has no name: it is gone when its descriptor is closed, also
 * if the process is killed. Returns the descriptor, or -1. */
int file_unnamed(const char *dir, Err *e);
/* Sync the entries of the folder that holds `path`. Also true if the file system cannot sync folders (EINVAL). */
bool file_sync_folder(const char *path, Err *e);

typedef struct {
    int fd;
    bool fresh; /* set after file_begin: file_commit refuses (EXIT_INPUT) a path where something stands by then */
    char *path, *tmp;
} FileOut;
/* The temporary name used while `path` is written, malloc'ed. It is always the same, and its file is locked (flock)
 * while a process writes it. So the next writer of `path` removes what a killed process left there, and of two writers
 * at the same time one is refused (EXIT_INPUT). */
char *file_unfinished(const char *path);
/* Lock `fd`, which is the file or folder `tmp` that will become `path`. made: this process has just created it. False
 * with `e` clear: `tmp` is now another file. */
bool file_lock(int fd, bool made, const char *tmp, const char *path, Err *e);
/* `path` still names the open file `fd`. `e` clear: it does not. */
bool file_is(int fd, const char *path, Err *e);
/* Begin writing `path`. If this or a later call fails, it removes the temporary file and closes `o`; the old file at
 * `path` stays. A directory that is missing or not writable is EXIT_INPUT; later failures (disk full, quota, device)
 * are EXIT_RUNTIME. */
bool file_begin(FileOut *o, const char *path, Err *);
bool file_put(FileOut *o, const void *p, size_t n, Err *);
/* Sync, close, rename, and sync the directory. The lock is held until the rename is done. EXIT_RUNTIME also if another
 * process took the temporary name; the lock may not reach other hosts. */
bool file_commit(FileOut *o, Err *);
void file_drop(FileOut *o); /* give up */
/* Rename a finished file or folder to `to`, which must not exist: EXIT_INPUT if it does by now. */
bool file_rename_new(const char *tmp, const char *to, Err *);
/* All of this for a file that is in memory. */
bool file_write(const char *path, const void *p, size_t n, Err *);
/* Write `j`, indented by 2, with its keys in the given order and a newline at the end. Takes no reference. */
bool json_write(const char *path, json_t *j, Err *);
