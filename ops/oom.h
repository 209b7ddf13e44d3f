/* oom.h: what happens when a library finds no memory for bookkeeping: the program ends as in xcalloc, with one line on
 * stderr and EXIT_WORLD. For calls of libc, jansson and PCRE2 that would return NULL, or lose a part without a word. */
#pragma once
#include <stdio.h>

/* `p`, which is not NULL: else the program ends. */
void *oom_check(void *p);
/* Ends the program; `why` (may be NULL) is the line. */
_Noreturn void oom_exit(const char *why);
/* Let jansson end the program likewise, where it would lose a key of an object without a word. Once, at the start. */
void oom_guard_json(void);
/* open_memstream without its silence: what is printed is at *text (malloc'ed, ends with NUL) with *n bytes after fflush
 * or fclose. Never NULL, and fclose never fails. */
FILE *oom_stream(char **text, size_t *n);
