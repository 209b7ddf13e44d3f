/* paths.h: finds the files that a path argument of the user names: a file, a pattern ("data/[a-m]*.txt") or a folder.
 * Training data and the `data` commands call it. */
#pragma once
#include "ops/base.h"

enum { FILES_MAX = 65536 };
typedef struct {
    int n;
    char **path;
} Paths;

/* Append the files that `word` names, in the order of strcmp:
 * - a pattern, with * ? or [ in it and no file of that very name: the files that match (glob(3)), no folders;
 * - a folder: the files in it named .txt, .jsonl, .txt.gz, .jsonl.gz, .txt.zst or .jsonl.zst, without subfolders;
 * - anything else: the word itself, whether it exists or not.
 *
 * EXIT_INPUT: a pattern or a folder that names no file, more than FILES_MAX in all. `key` ("data.train") begins the
 * message. */
bool paths_add(Paths *, const char *word, const char *key, Err *);
void paths_free(Paths *);
