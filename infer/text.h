/* text.h: the text of a generation while it grows: decides which bytes may be shown already, and where a stop string
 * ends it. generate.c appends the bytes of every token.
 *
 * Bytes arrive in pieces that may cut characters. The shown part is a prefix that can no longer change: the beginning
 * of a stop string or of a UTF-8 character is held back until it is known to be more. A stop string may span pieces; it
 * is never part of the text. */
#pragma once
#include "ops/base.h"

typedef struct {
    int nstop;
    const char *const *stop; /* not empty strings */
    char *bytes;             /* the text so far; not NUL-ended, may hold any byte */
    size_t n, cap;
    bool stopped; /* a stop string was found: the text is final */
} Text;

/* Append. True if a stop string is complete: the text then ends before it, and later pieces are ignored. Of several
 * that end at the same byte the longest counts. */
bool text_push(Text *, const void *bytes, size_t n);
/* Bytes from the start that are final. */
size_t text_final(const Text *);
void text_free(Text *);

/* Bytes at the end that begin an incomplete UTF-8 character: 0 to 3. */
size_t utf8_open(const char *s, size_t n);
/* A malloc'ed copy in which every maximal part that is not UTF-8 is U+FFFD (the Unicode Standard, 3.9, "best
 * practice"). *m: its bytes. A NUL follows. */
char *utf8_clean(const char *s, size_t n, size_t *m);
