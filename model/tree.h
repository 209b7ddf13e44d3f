/* tree.h: a small tree of maps, lists and scalars, as YAML and JSON both write them, with the lines they stood on.
 *
 * What is refused, so that a file means what it seems to mean: more than TREE_BYTES, TREE_NODES or TREE_DEPTH, NUL
 * bytes, text that is not UTF-8, and in YAML aliases, anchors, tags, directives and a second document; duplicate keys
 * in both. All failures are EXIT_INPUT with "<where>:<line>: ..." but for a lack of memory. */
#pragma once
#include "../ops/base.h"

enum { TREE_BYTES = 1 << 20, TREE_NODES = 10000, TREE_DEPTH = 32 };
typedef enum { NODE_SCALAR, NODE_LIST, NODE_MAP } NodeType;
typedef struct Node {
    NodeType type;
    bool quoted;       /* a scalar in quotes, a block scalar, a JSON string: never a number, true, false or null */
    int line;          /* from 1; 0 where lines mean nothing (JSON, the command line) */
    const char *where; /* the caller's name of the source; not owned */
    char *key;         /* its name in the map that holds it; NULL in a list and at the root */
    char *text;        /* of a scalar, without NUL; never NULL there */
    int n, cap;
    struct Node **kid; /* of a list or map, in the order of the source */
} Node;

/* Parse text[0..n). `where` names the source in messages and must outlive the tree. NULL: refused, `e` says why.
 * An empty YAML document is the scalar null. */
Node *tree_yaml(const char *text, size_t n, const char *where, Err *);
Node *tree_json(const char *text, size_t n, const char *where, Err *);
Node *tree_yaml_file(const char *path, Err *);
void tree_free(Node *); /* NULL is fine */

const Node *tree_get(const Node *map, const char *key); /* NULL: no such key, or not a map */
bool node_null(const Node *);                           /* the unquoted scalars null, ~ and nothing at all */
const char *node_type(const Node *);                    /* "text", "a plain value", "null", "a list", "a map" */

Node *tree_copy(const Node *); /* the copy of a map's entry has its key */
/* Put `value` (taken, also when refused) at "a.b.c" below root in place of what is there; maps on the way are made, a
 * number steps into a list that is there. Refusals name the place of `here`, where nodes made stand. */
bool tree_put(Node *root, const char *path, Node *value, const Node *here, Err *);
/* Take out root's section.name; nothing where there is none. */
void tree_remove(Node *root, const char *section, const char *name);
/* Apply "a.b.c=value" by tree_put; value is read as YAML. Nodes made have `where` "command line". */
bool tree_override(Node *root, const char *assignment, Err *);

/* Refuse a node: "<where>:<line>: <path>: <message>", long names shortened in the middle so that the message stays.
 * Returns false. */
bool node_refuse(const Node *, const char *path, Err *, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
