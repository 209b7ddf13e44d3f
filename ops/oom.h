/* oom.h: ends the program with one line on stderr and EXIT_RUNTIME when a library finds no memory for bookkeeping, as
 * xcalloc does. For calls of libc, jansson and PCRE2 that would otherwise return NULL or silently lose a part. */
#pragma once
#include <stdio.h>

/* Returns `p`; ends the program if it is NULL. */
void *oom_check(void *p);
/* Ends the program; `why` (may be NULL) is the line to print. */
_Noreturn void oom_exit(const char *why);
/* Makes jansson end the program in the same way where it would silently lose a key of an object. main calls it once. */
void oom_guard_json(void);
/* open_memstream that ends the program when memory runs out: never NULL, and fclose never fails. After fflush or
 * fclose, *text (malloc'ed, ends with NUL) holds the *n printed bytes. */
FILE *oom_stream(char **text, size_t *n);
