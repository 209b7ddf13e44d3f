/* text_check.h: is it text? Whatever reads a file as plain text or JSONL passes its bytes through here, so that a
 * program, a Parquet table or a text in another encoding is refused and never trained on. */
#pragma once
#include "../ops/base.h"

/* The state of a check over the bytes of one file, given in pieces. */
typedef struct {
    const char *name; /* of the file, for messages */
    const char *lift; /* the setting that switches the check off, "data.encoding=bytes"; "": there is none. NULL: any
                         bytes are text */
    size_t at;        /* bytes seen */
    int more;         /* bytes that the character at the end still needs */
    size_t begin;     /* where that character begins */
    unsigned char low, high; /* bounds of its next byte */
} TextCheck;

/* The next n bytes. EXIT_INPUT: the file begins as another kind of file does (the first call sees its first bytes:
 * Parquet, Arrow, ZIP, PDF, SQLite, gzip, xz, UTF-16, ...), a byte is NUL, or the bytes are not UTF-8 (no overlong
 * forms, no surrogates, nothing past U+10FFFF). */
bool text_check(TextCheck *, const void *p, size_t n, Err *);
/* The file ends here. EXIT_INPUT: inside a character. */
bool text_check_end(const TextCheck *, Err *);
