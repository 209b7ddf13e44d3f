/* key.h: a table of Keys describes a struct of settings: each setting's name, type, range, default and meaning, in one
 * place. Mixers and the model declare tables next to their structs; model/config/schema.h reads YAML and JSON by them,
 * prints them resolved, and documents them.
 *
 * An array of Key ends with an entry without a name. */
#pragma once
#include "tensor.h"

typedef enum {
    KEY_INT,   /* int */
    KEY_LONG,  /* int64_t */
    KEY_FLOAT, /* double */
    KEY_BOOL,  /* bool */
    KEY_TEXT,  /* char[KEY_TEXT_MAX], UTF-8, no control characters but newline and tab; the default "" prints as null */
    KEY_CHOICE,  /* int: index into `choices` */
    KEY_TABLE,   /* nested struct described by `sub`; a lone scalar is the value of its first key: `rope: none` */
    KEY_NUMBERS, /* Numbers: a list of numbers */
    KEY_INTS,    /* Ints: a list of integers */
    KEY_TEXTS,   /* Texts: a list of texts; a lone one means a list of it */
    KEY_LENGTH,  /* Length: a length of training */
    KEY_OTHER    /* read and written by its owner's own code; the table holds its name and meaning */
} KeyType;
enum { KEY_TEXT_MAX = 1024, KEY_LIST_MAX = 256 };
typedef struct {
    int n;
    double v[KEY_LIST_MAX];
} Numbers;
typedef struct {
    int n, v[KEY_LIST_MAX];
} Ints;
enum { KEY_TEXTS_MAX = 64, KEY_SHORT_MAX = 192 };
typedef struct {
    int n;
    char v[KEY_TEXTS_MAX][KEY_SHORT_MAX]; /* none is empty */
} Texts;

/* A length of training: `200` steps; `10%` of the steps of the run or stage; `2e6tok`, `500ktok`, `2Mtok`, `1.5Gtok`
 * tokens read. */
typedef enum { LENGTH_STEPS, LENGTH_PERCENT, LENGTH_TOKENS } LengthUnit;
typedef struct {
    double n; /* steps and tokens are whole; 0 is 0 in any unit */
    LengthUnit unit;
} Length;

typedef struct Key {
    const char *name;
    KeyType type;
    size_t at;                  /* offsetof the member */
    const char *dflt;           /* as it would be written in YAML; NULL = required; "" = empty text, list or table */
    double min, max;            /* inclusive, for numbers */
    const char *meaning;        /* one line, units included */
    const char *const *choices; /* KEY_CHOICE: NULL-ended */
    const struct Key *sub;      /* KEY_TABLE */
} Key;
