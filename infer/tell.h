/* tell.h: shows the progress of long work over bytes: a line on standard error, renewed on a terminal, every ten
 * seconds elsewhere; nothing in the first second. The `data` commands and `eval` call it. */
#pragma once
#include "ops/base.h"

typedef struct {
    const char *what; /* "tokenising" */
    double start, shown;
    bool live, open;
} Tell;
Tell tell_begin(const char *what);
void tell(void *tell, size_t bytes, size_t of);
void tell_end(Tell *);
