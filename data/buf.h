/* buf.h: bytes that grow at their end. Readers and writers of text in data/ collect what they make in one. */
#pragma once
#include "ops/base.h"

typedef struct {
    char *at;
    size_t n, cap;
} Buf; /* {0} is empty */
/* Append n bytes; ends the program where memory lacks, as xrealloc does. */
void buf_put(Buf *, const char *s, size_t n);
void buf_free(Buf *);
