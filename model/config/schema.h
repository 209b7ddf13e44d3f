/* schema.h: reads, writes and documents settings by their Key tables (ops/key.h). config.c and the commands with
 * KEY=VALUE words call it.
 *
 * Numbers are written -12, 0.5, 1e-3, 10_000, 10k, 1.5M, 2G. An integer may have an exponent or a suffix if its value
 * is exactly whole: 1e4 and 2.5k are integers, 1.0 and 1e-3 are not. Leading zeros, hexadecimal, NaN, infinities and
 * quoted numbers are refused. Only true and false are booleans. */
#pragma once
#include "ops/key.h"
#include "tree.h"

/* Read `map` (null means an empty map) into the struct `cfg` that `keys` describes; missing keys get their default.
 * False: an unknown, missing or unusable key; the message gives source, line, dotted name and the nearest name.
 * - `path` is the dotted name of the map, "" at the root.
 * - `also`: a key that the caller reads itself, or NULL. The caller also reads KEY_OTHER keys. */
bool schema_read(const Key *keys, const Node *map, const char *path, const char *also, void *cfg, Err *);
/* Read one value by one key, e.g. an element of a list that the caller walks itself. */
bool schema_value(const Key *key, const Node *x, const char *path, void *member, Err *);
/* Fill the error for `name`, the key or the text of x, which is in neither `keys` nor `names` (NULL-ended; both may be
 * NULL). Returns false. */
bool schema_unknown(const Node *x, const char *path, const char *name, const Key *keys, const char *const *names,
                    Err *);
/* A number in the spelling of settings and options. */
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

/* ---- writing: YAML in blocks, YAML in flow style inside lists and where asked, or JSON -------------------------- */
typedef struct {
    FILE *f;
    bool json;
    int depth;  /* of blocks */
    int flow;   /* nested flow maps and lists; JSON is all flow */
    bool first; /* no comma before the next entry */
    bool named; /* a name was written, its value comes next */
} Writer;
void write_name(Writer *, const char *name); /* the name of the next value; begins a map's entry */
void write_item(Writer *);                   /* begins a list's entry */
void write_map(Writer *, bool flow);         /* { ; a block map must not be empty */
void write_map_end(Writer *);
void write_list(Writer *);
void write_list_end(Writer *);
void write_text(Writer *, const char *);
void write_raw(Writer *, const char *); /* a value that is already formatted */
void write_number(Writer *, double);    /* shortest form that reads back to the same bits */
void write_int(Writer *, int64_t);
/* A node of YAML in one line. Text is quoted if it could be read as something else between braces. */
void write_node(Writer *, const Node *);
/* Write every key except KEY_OTHER ones, as entries of the open map. */
void schema_write(Writer *, const Key *keys, const void *cfg);

/* Describe every key under `prefix` ("train."), with tables below tables: "name  type and range  default  meaning", or
 * as rows of a Markdown table. */
void schema_document(FILE *, const Key *keys, const char *prefix, bool markdown);
