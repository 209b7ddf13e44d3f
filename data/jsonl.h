/* jsonl.h: a file with one JSON object a line, as data sets come. Blank lines are passed over; a line may end in \r\n.
 * What is read of a line is bounded as in ops/file.h. */
#pragma once
#include "../ops/file.h"

typedef struct {
    FileMap map;
    size_t at;
    int64_t line;    /* of the object last read, from 1 */
    char name[160];  /* of the file, cut */
    char where[192]; /* "NAME:LINE", for messages */
} Jsonl;

/* EXIT_INPUT: no such file, or one that is not regular. */
bool jsonl_open(Jsonl *, const char *path, Err *);
void jsonl_close(Jsonl *);
/* The same over bytes in memory, which stay the caller's; not to be closed. */
Jsonl jsonl_memory(const void *p, size_t n, const char *name);
/* The next object, to be released by json_decref; *j NULL: there is none. False (EXIT_INPUT): a line that is no JSON
 * object, one that is not UTF-8, one that is too long. */
bool jsonl_next(Jsonl *, json_t **j, Err *);
/* What a value is, for "expected ..., found %s": "a text", "a number", "nothing" (NULL)... */
const char *json_kind(const json_t *);
