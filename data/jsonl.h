/* jsonl.h: reads a file with one JSON object per line. Readers of conversations and of evaluation data call jsonl_next
 * until no object is left. Blank lines are skipped; a line may end in \r\n. Lines are bounded as in ops/file.h. */
#pragma once
#include "ops/file.h"

typedef struct {
    FileMap map;
    size_t at;
    int64_t line;    /* of the object last read, from 1 */
    char name[160];  /* the file's name, shortened */
    char where[192]; /* "NAME:LINE", for messages */
} Jsonl;

/* EXIT_INPUT: no such file, or one that is not regular. */
bool jsonl_open(Jsonl *, const char *path, Err *);
void jsonl_close(Jsonl *);
/* The same for bytes in memory, which stay the caller's. Must not be closed. */
Jsonl jsonl_memory(const void *p, size_t n, const char *name);
/* The next object, which the caller must release with json_decref; *j NULL: there is none. False (EXIT_INPUT): a line
 * that is not a JSON object, not UTF-8, or too long. */
bool jsonl_next(Jsonl *, json_t **j, Err *);
/* The kind of a value, for "expected ..., found %s": "a text", "a number", "nothing" (NULL)... */
const char *json_kind(const json_t *);
