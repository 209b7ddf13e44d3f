/* tree.h: a tree of maps, lists and scalars with line numbers, parsed from YAML or JSON. The readers of settings build
 * one from every file and command line.
 *
 * Refused, so that a file means what it seems to mean: more than TREE_BYTES, TREE_NODES or TREE_DEPTH; NUL bytes; text
 * that is not UTF-8; duplicate keys; and in YAML aliases, anchors, tags, directives and a second document. All
 * failures are EXIT_INPUT with "<where>:<line>: ...", except running out of memory. */
#pragma once
#include "ops/base.h"

enum { TREE_BYTES = 1 << 20, TREE_NODES = 10000, TREE_DEPTH = 32 };
typedef enum { NODE_SCALAR, NODE_LIST, NODE_MAP } NodeType;
typedef struct Node {
    NodeType type;
    bool quoted;       /* a quoted scalar, a block scalar or a JSON string: never a number, true, false or null */
    int line;          /* from 1; 0 for sources without lines (JSON, the command line) */
    const char *where; /* the caller's name of the source; not owned */
    char *key;         /* its name in the map that holds it; NULL in a list and at the root */
    char *text;        /* of a scalar, without NUL; never NULL there */
    int n, cap;
    struct Node **kid; /* of a list or map, in the order of the source */
} Node;

/* Parse text[0..n). `where` names the source in messages and must outlive the tree. NULL: refused, `e` has the reason.
 * An empty YAML document is the scalar null. */
Node *tree_yaml(const char *text, size_t n, const char *where, Err *);
Node *tree_json(const char *text, size_t n, const char *where, Err *);
Node *tree_yaml_file(const char *path, Err *);
void tree_free(Node *); /* NULL is fine */

const Node *tree_get(const Node *map, const char *key); /* NULL: no such key, or not a map */
bool node_null(const Node *);                           /* the unquoted scalars null, ~ and the empty one */
const char *node_type(const Node *);                    /* "text", "a plain value", "null", "a list", "a map" */

Node *tree_copy(const Node *); /* the copy of a map's entry has its key */
/* Put `value` at "a.b.c" below root, replacing what is there. It takes `value` over, also on failure. Missing maps on
 * the way are created; a number steps into an existing list. Errors name the place of `here`, and created nodes get
 * it. */
bool tree_put(Node *root, const char *path, Node *value, const Node *here, Err *);
/* Remove section.name from root, or name if section is ""; does nothing if it is not there. */
void tree_remove(Node *root, const char *section, const char *name);
/* Apply "a.b.c=value" with tree_put; value is parsed as YAML. Created nodes have `where` "command line". */
bool tree_override(Node *root, const char *assignment, Err *);

/* Refuse a node: "<where>:<line>: <path>: <message>". Long names are shortened in the middle so that the message
 * stays. Returns false. */
bool node_refuse(const Node *, const char *path, Err *, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
