/* text_check.h: checks that a file is text. Every reader of plain text or JSONL passes its bytes through here, so that
 * a program, a Parquet table or text in another encoding is refused and never trained on. */
#pragma once
#include "ops/base.h"

/* The state of a check over the bytes of one file, which arrive in pieces. */
typedef struct {
    const char *name; /* of the file, for messages */
    /* the setting that switches the check off, "data.encoding=bytes"; "": there is none. NULL: any bytes are text */
    const char *lift;
    size_t at;               /* bytes seen */
    int more;                /* bytes that the last character still needs */
    size_t begin;            /* where that character begins */
    unsigned char low, high; /* bounds of its next byte */
} TextCheck;

/* Check the next n bytes. EXIT_INPUT:
 * - the file begins like another kind of file (Parquet, Arrow, ZIP, PDF, SQLite, gzip, xz, UTF-16, ...); the first
 *   call must have its first bytes;
 * - a byte is NUL;
 * - the bytes are not UTF-8 (no overlong forms, no surrogates, nothing past U+10FFFF). */
bool text_check(TextCheck *, const void *p, size_t n, Err *);
/* The file ends here. EXIT_INPUT: it ends inside a character. */
bool text_check_end(const TextCheck *, Err *);
