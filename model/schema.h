/* schema.h: settings read, written and described by their Key tables (ops/key.h).
 *
 * Numbers are written -12, 0.5, 1e-3, 10_000, 10k, 1.5M, 2G. A whole number may have an exponent or a suffix as long as
 * its value is exactly whole: 1e4 and 2.5k are, 1.0 and 1e-3 are not. Leading zeros, hexadecimal, NaN, infinities and
 * numbers in quotes are refused. true and false alone are booleans. */
#pragma once
#include "../ops/key.h"
#include "tree.h"

/* Read `map` (null stands for an empty map) into the struct `cfg` that `keys` describes; missing keys take their
 * default. `path` is the dotted name of the map, "" at the root. `also`: a key that the caller reads himself, or NULL;
 * so are KEY_OTHER ones. False: an unknown, missing or unusable key; the message gives source, line, dotted name, the
 * nearest name. */
bool schema_read(const Key *keys, const Node *map, const char *path, const char *also, void *cfg, Err *);
/* One value against one key, e.g. an element of a list that the caller walks himself. */
bool schema_value(const Key *key, const Node *x, const char *path, void *member, Err *);
/* The error for `name`, the key or the text of x, that is none of the keys' nor of `names` (NULL-ended; both may be
 * NULL). Returns false. */
bool schema_unknown(const Node *x, const char *path, const char *name, const Key *keys, const char *const *names,
                    Err *);
/* A number as a setting or an option may be written. */
typedef struct {
    double f;
    int64_t i;  /* when whole */
    bool whole; /* exactly whole, within int64_t, and not written with a bare point as 1.0 is */
    bool fits;  /* f is finite, and 0 only where 0 was written */
} Number;
enum { NUMBER_MAX = 400 };
bool number_parse(const char *text, Number *); /* false: no number */
/* Edits (insert, delete, replace, swap neighbours) between two names; INT_MAX when one is longer than 48 bytes. */
int name_distance(const char *a, const char *b);
/* "a" + "." + "b" into buf; returns buf. */
const char *schema_join(char buf[256], const char *path, const char *name);

/* ---- writing: YAML in blocks, YAML in flow style inside lists and where asked, or JSON
 * ------------------------------- */
typedef struct {
    FILE *f;
    bool json;
    int depth;  /* of blocks */
    int flow;   /* nested flow maps and lists; JSON is all flow */
    bool first; /* no comma before the next entry */
    bool named; /* a name was written, its value comes next */
} Writer;
void write_name(Writer *, const char *name); /* of the next value; a map's entry begins */
void write_item(Writer *);                   /* a list's entry begins */
void write_map(Writer *, bool flow);         /* { ; a block map must not be empty */
void write_map_end(Writer *);
void write_list(Writer *);
void write_list_end(Writer *);
void write_text(Writer *, const char *);
void write_raw(Writer *, const char *); /* a value that is written already */
void write_number(Writer *, double);    /* shortest form that reads back to the same bits */
void write_int(Writer *, int64_t);
/* Every key but KEY_OTHER ones, as entries of the map that is open. */
void schema_write(Writer *, const Key *keys, const void *cfg);

/* Describe every key under `prefix` ("train."), tables below tables: "name  type and range  default  meaning"; or rows
 * of a Markdown table. */
void schema_document(FILE *, const Key *keys, const char *prefix, bool markdown);
