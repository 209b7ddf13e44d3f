/* file.h: files as the outside world hands them, and files as we leave them behind.
 *
 * Reading trusts nothing: sizes, nesting and the number of values are bounded before anything is allocated by them.
 * Writing is all or nothing: a temporary name in the same directory, synced, renamed, the directory synced. A file that
 * shrinks while it is mapped is out of scope (the system ends the program). */
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
/* It begins as llama.cpp's models do. */
bool file_is_gguf(const char *path);
/* What stands at `path`, through links. False with `e` clear: nothing (ENOENT, ENOTDIR). False with `e` filled: that
 * could not be found out, which is never the same as nothing. `e` is cleared first. */
bool file_look(const char *path, struct stat *st, Err *e);
/* A regular file exists at DIR/NAME (a link to one counts). False as file_look, so that a caller that goes on without
 * the file returns `!e->status`. */
bool file_exists(const char *dir, const char *name, Err *e);
/* The names in the folder that the descriptor `fd` (which stays open) is of, sorted, without . and ..; `dir` is for the
 * message. An error while they are read is one, never the end of the folder. */
typedef struct {
    int n;
    char **name;
} Names;
bool file_names(Names *, int fd, const char *dir, Err *e);
void names_free(Names *);

/* An object from `n` bytes of JSON: UTF-8, no duplicate key at any level, nothing behind it, at most JSON_BYTES_MAX
 * bytes and JSON_VALUES_MAX values. `where` begins the message. NULL on failure; `why` (may be NULL) then tells the
 * reason. */
json_t *json_parse(const void *p, size_t n, const char *where, enum json_error_code *why, Err *);
/* Those two bounds alone, for who calls the parser himself. */
bool json_bounded(const void *p, size_t n, const char *where, Err *);
json_t *json_read(const char *path, Err *); /* the same from a file */
/* Make the folder `path` and those above it where they are missing, and put their names on disk; `made` (may be NULL):
 * how many at its end, also when it fails. `what` ("run folder") is for the message. */
bool file_folders(const char *path, const char *what, int *made, Err *);

/* Open `name` in the folder `at` (AT_FDCWD: here) for writing in place, with the flags `how`. Not through a link that
 * stands at the name, and only a regular file: a pipe would wait for ever. `say` is its path for the message. -1: `e` is
 * filled, or clear where nothing is there and `how` has no O_CREAT. */
int file_own(int at, const char *name, int how, const char *say, Err *e);
/* Put the entries of the folder that `path` stands in on disk. True where a file system cannot (EINVAL). */
bool file_sync_folder(const char *path, Err *e);

typedef struct {
    int fd;
    char *path, *tmp;
} FileOut;
/* The temporary name of `path` is always the same, and its file is locked (flock) as long as a process writes it. So what
 * a killed process has left there is removed by the next that writes `path`, and of two at once one is refused
 * (EXIT_INPUT). malloc'ed. */
char *file_unfinished(const char *path);
/* Lock `fd`, the file or folder `tmp` on its way to `path`; made: this process has just created it. False with `e` clear:
 * `tmp` is another by now. */
bool file_lock(int fd, bool made, const char *tmp, const char *path, Err *e);
/* `path` still names the open file `fd`. `e` clear: it does not. */
bool file_is(int fd, const char *path, Err *e);
/* Every failure below removes the temporary file and closes `o`; the old file at `path` stays as it was. A directory
 * that is missing or not writable is EXIT_INPUT, what goes wrong later (disk full, quota, device) EXIT_WORLD. */
bool file_begin(FileOut *o, const char *path, Err *);
bool file_put(FileOut *o, const void *p, size_t n, Err *);
/* Sync, close, rename, sync the directory. The lock is held until the name is the file's. EXIT_WORLD as well: a process
 * that the lock does not reach (another host's) has taken the temporary name. */
bool file_commit(FileOut *o, Err *);
void file_drop(FileOut *o); /* give up */
/* All of it for a file that is in memory. */
bool file_write(const char *path, const void *p, size_t n, Err *);
/* `j` indented by 2 with its keys in the given order and a newline at the end. Takes no reference. */
bool json_write(const char *path, json_t *j, Err *);
