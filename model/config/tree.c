/* tree.c: parses YAML (libyaml) and JSON (jansson) into trees, and changes trees by paths and overrides. */
#include "tree.h"
#include "ops/file.h"
#include "ops/oom.h"
#include <ctype.h>
#include <jansson.h>
#include <stdarg.h>
#include <yaml.h>

static Node *node_new(NodeType type, const char *where, int line) {
    Node *x = xcalloc(1, sizeof *x);
    x->type = type, x->where = where, x->line = line;
    return x;
}

void tree_free(Node *x) {
    if (!x) return;
    for (int i = 0; i < x->n; i++) tree_free(x->kid[i]);
    free(x->kid);
    free(x->key);
    free(x->text);
    free(x);
}

static void node_append(Node *parent, Node *x) {
    if (parent->n == parent->cap) {
        parent->cap = parent->cap ? 2 * parent->cap : 4;
        parent->kid = xrealloc(parent->kid, (size_t)parent->cap, sizeof *parent->kid);
    }
    parent->kid[parent->n++] = x;
}

static int find_kid(const Node *map, const char *key) {
    if (map->type == NODE_MAP)
        for (int i = 0; i < map->n; i++)
            if (!strcmp(map->kid[i]->key, key)) return i;
    return -1;
}

const Node *tree_get(const Node *map, const char *key) {
    int i = find_kid(map, key);
    return i < 0 ? NULL : map->kid[i];
}

bool node_null(const Node *x) {
    return x->type == NODE_SCALAR && !x->quoted && (!*x->text || !strcmp(x->text, "~") || !strcmp(x->text, "null"));
}

const char *node_type(const Node *x) {
    if (x->type == NODE_LIST) return "a list";
    if (x->type == NODE_MAP) return "a map";
    return node_null(x) ? "null" : x->quoted ? "text" : "a plain value";
}

static const char command_line[] = "command line"; /* it has no line numbers */

/* The message must fit 300 characters, so names that users choose are shortened first. */
static void tree_shorten(char out[96], const char *s) {
    size_t n = strlen(s);
    if (n < 96)
        memcpy(out, s, n + 1);
    else
        snprintf(out, 96, "%.40s...%s", s, s + n - 50);
}

bool node_refuse(const Node *x, const char *path, Err *e, const char *fmt, ...) {
    char where[96], at[96], msg[512], line[16] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    tree_shorten(where, x->where);
    tree_shorten(at, path);
    if (x->line > 0 && x->where != command_line) snprintf(line, sizeof line, ":%d", x->line);
    return err_input(e, "%s%s: %s%s%s", where, line, at, *at ? ": " : "", msg);
}

/* ---- what no format may contain ---------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 sequence at s, or 0: overlong forms, surrogates and values above U+10FFFF are not UTF-8. */
static size_t utf8_length(const unsigned char *s, size_t n) {
    if (s[0] < 0x80) return 1;
    size_t k = s[0] >= 0xC2 && s[0] <= 0xDF ? 2 : (s[0] & 0xF0) == 0xE0 ? 3 : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4 : 0;
    if (!k || k > n) return 0;
    for (size_t i = 1; i < k; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F)) return 0;
    if ((s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F)) return 0;
    return k;
}

static int line_at(const char *text, size_t n, size_t at) {
    int line = 1;
    for (size_t i = 0; i < zmin(n, at); i++) line += text[i] == '\n';
    return line;
}

static bool text_fit(const char *text, size_t n, const char *where, Err *e) {
    Node at = {.where = where};
    if (n > TREE_BYTES) return node_refuse(&at, "", e, "%zu bytes; expected at most %d", n, TREE_BYTES);
    for (size_t i = 0; i < n;) {
        size_t k = utf8_length((const unsigned char *)text + i, n - i);
        if (!k || !text[i]) {
            at.line = line_at(text, n, i);
            return node_refuse(&at, "", e, "byte %zu is %s; expected UTF-8 text", i, k ? "NUL" : "not UTF-8");
        }
        i += k;
    }
    return true;
}

/* ---- YAML -------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *where;
    Node *root, *open[TREE_DEPTH];
    int depth, nodes, documents;
    char *key; /* already read; its value follows */
    Err *e;
} Builder;

static bool tree_refuse(const Builder *b, size_t line, const char *what) {
    Node at = {.where = b->where, .line = (int)line + 1};
    return node_refuse(&at, "", b->e, "%s", what);
}

/* Put a node in its place, and take it over even on failure. A scalar may turn out to be a key. */
static bool tree_place(Builder *b, Node *x) {
    size_t line = (size_t)x->line - 1;
    Node *up = b->depth ? b->open[b->depth - 1] : NULL;
    if (++b->nodes > TREE_NODES) {
        tree_free(x);
        return tree_refuse(b, line, "too many values");
    }
    if (!up) {
        b->root = x;
    } else if (up->type == NODE_LIST) {
        node_append(up, x);
    } else if (b->key) {
        x->key = b->key, b->key = NULL;
        node_append(up, x);
    } else {
        bool plain = x->type == NODE_SCALAR, twice = plain && find_kid(up, x->text) >= 0;
        if (plain && !twice) b->key = xstrdup(x->text);
        if (twice) node_refuse(x, x->text, b->e, "duplicate key");
        tree_free(x);
        return twice ? false : plain ? true : tree_refuse(b, line, "a key must be a single word, not a list or a map");
    }
    if (x->type == NODE_SCALAR) return true;
    if (b->depth == TREE_DEPTH) return tree_refuse(b, line, "nested too deeply");
    b->open[b->depth++] = x;
    return true;
}

static bool tree_see(Builder *b, const yaml_event_t *v) {
    size_t line = v->start_mark.line;
    bool seq = v->type == YAML_SEQUENCE_START_EVENT, map = v->type == YAML_MAPPING_START_EVENT;
    if (v->type == YAML_ALIAS_EVENT)
        return tree_refuse(b, line, "aliases (*name) are not allowed; write the value out");
    if (v->type == YAML_DOCUMENT_START_EVENT) {
        if (b->documents++) return tree_refuse(b, line, "a second document begins; expected one document");
        if (v->data.document_start.version_directive ||
            v->data.document_start.tag_directives.start != v->data.document_start.tag_directives.end)
            return tree_refuse(b, line, "directives (%...) are not allowed");
    }
    if (v->type == YAML_SEQUENCE_END_EVENT || v->type == YAML_MAPPING_END_EVENT) b->depth--;
    if (v->type != YAML_SCALAR_EVENT && !seq && !map) return true;
    const yaml_char_t *anchor = seq   ? v->data.sequence_start.anchor
                                : map ? v->data.mapping_start.anchor
                                      : v->data.scalar.anchor;
    const yaml_char_t *tag = seq ? v->data.sequence_start.tag : map ? v->data.mapping_start.tag : v->data.scalar.tag;
    if (anchor) return tree_refuse(b, line, "anchors (&name) are not allowed; write the value out");
    if (tag) return tree_refuse(b, line, "tags (!name) are not allowed");
    Node *x = node_new(seq ? NODE_LIST : map ? NODE_MAP : NODE_SCALAR, b->where, (int)line + 1);
    if (x->type == NODE_SCALAR) {
        const char *s = (const char *)v->data.scalar.value;
        x->quoted = v->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        x->text = xstrdup(s);
        if (strlen(s) != v->data.scalar.length) { /* the escape \0 in double quotes */
            tree_free(x);
            return tree_refuse(b, line, "text contains a NUL byte");
        }
    }
    return tree_place(b, x);
}

/* The two typos that libyaml's own message does not show, in the line where it gave up or the one before. */
static const char *tree_slip(const char *text, size_t n, int line) {
    const char *end = text + n, *at = text, *before = text;
    for (int i = 1; i < line && at < end; i++) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        if (!next) break;
        before = at, at = next + 1;
    }
    for (int i = 0; i < 2; i++) {
        const char *s = i ? before : at;
        while (s < end && *s == ' ') s++;
        if (s < end && *s == '\t') return "; a tab is here; YAML indents with spaces only";
        while (s < end && (isalnum((unsigned char)*s) || *s == '_' || *s == '.')) s++;
        if (s + 1 < end && *s == ':' && !isspace((unsigned char)s[1])) return "; a space must follow the ':' of a key";
    }
    return "";
}
/* Advice that libyaml's message does not give. */
static const char *tree_hint(const yaml_parser_t *p, const char *text, size_t n, int line) {
    if (p->context && strstr(p->context, "an alias")) return "; quote a pattern that begins with *";
    return tree_slip(text, n, line);
}

Node *tree_yaml(const char *text, size_t n, const char *where, Err *e) {
    if (!text_fit(text, n, where, e)) return NULL;
    if (!text) text = ""; /* mapping an empty file gives NULL */
    if (n >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) text += 3, n -= 3;
    yaml_parser_t p;
    yaml_event_t v;
    if (!yaml_parser_initialize(&p)) oom_exit(NULL);
    yaml_parser_set_encoding(&p, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&p, (const unsigned char *)text, n);
    Builder b = {.where = where, .e = e};
    bool ok = true;
    for (bool end = false; ok && !end;) {
        if (!yaml_parser_parse(&p, &v)) {
            Node at = {.where = where, .line = (int)p.problem_mark.line + 1};
            if (p.error == YAML_READER_ERROR) at.line = line_at(text, n, p.problem_offset);
            if (p.error == YAML_MEMORY_ERROR) oom_exit(NULL);
            ok = node_refuse(&at, "", e, "broken YAML: %s%s%s%s", p.context ? p.context : "", p.context ? ", " : "",
                             p.problem ? p.problem : "cannot be read", tree_hint(&p, text, n, at.line));
            break;
        }
        ok = tree_see(&b, &v);
        end = v.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&v);
    }
    yaml_parser_delete(&p);
    free(b.key);
    if (!ok) {
        tree_free(b.root);
        return NULL;
    }
    if (!b.root) b.root = node_new(NODE_SCALAR, where, 1), b.root->text = xstrdup("");
    return b.root;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static Node *from_json(const json_t *j, const char *where, int depth, int *nodes, Err *e) {
    Node *x = node_new(NODE_SCALAR, where, 0), *kid = NULL;
    char buf[40];
    if (depth > TREE_DEPTH || ++*nodes > TREE_NODES) {
        node_refuse(x, "", e, depth > TREE_DEPTH ? "nested too deeply" : "too many values");
        tree_free(x);
        return NULL;
    }
    if (json_is_object(j) || json_is_array(j)) {
        const char *key;
        json_t *v;
        size_t i;
        x->type = json_is_object(j) ? NODE_MAP : NODE_LIST;
        bool ok = true;
        json_object_foreach((json_t *)j, key, v) {
            if (!(ok = (kid = from_json(v, where, depth + 1, nodes, e)) != NULL)) break;
            kid->key = xstrdup(key);
            node_append(x, kid);
        }
        json_array_foreach(j, i, v) {
            if (!(ok = (kid = from_json(v, where, depth + 1, nodes, e)) != NULL)) break;
            node_append(x, kid);
        }
        if (ok) return x;
        tree_free(x);
        return NULL;
    }
    if (json_is_real(j)) { /* keeps its point: 1.0 is not an integer in YAML either */
        snprintf(buf, sizeof buf, "%.17g", json_real_value(j));
        if (!strpbrk(buf, ".e")) strcat(buf, ".0");
    } else if (json_is_integer(j)) {
        snprintf(buf, sizeof buf, "%" JSON_INTEGER_FORMAT, json_integer_value(j));
    } else {
        snprintf(buf, sizeof buf, "%s", json_is_true(j) ? "true" : json_is_false(j) ? "false" : "null");
    }
    x->quoted = json_is_string(j);
    x->text = xstrdup(x->quoted ? json_string_value(j) : buf);
    return x;
}

Node *tree_json(const char *text, size_t n, const char *where, Err *e) {
    if (!text_fit(text, n, where, e)) return NULL;
    if (!text) text = "";
    json_error_t je;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (!j) {
        Node at = {.where = where, .line = je.line};
        if (json_error_code(&je) == json_error_out_of_memory)
            err_runtime(e, "%s: out of memory while reading JSON", where);
        else
            node_refuse(&at, "", e, "broken JSON: %s", je.text);
        return NULL;
    }
    int nodes = 0;
    Node *x = from_json(j, where, 1, &nodes, e);
    json_decref(j);
    return x;
}

/* ---- files and overrides ----------------------------------------------------------------------------------------- */

Node *tree_yaml_file(const char *path, Err *e) {
    FileMap m;
    if (!file_map(&m, path, e)) return NULL;
    if (m.n >= 4 && !memcmp(m.p, "GGUF", 4)) {
        err_input(e, "%.150s: is a GGUF file; expected settings, or the Hugging Face directory that it was made from",
                  path);
        file_unmap(&m);
        return NULL;
    }
    Node *x = tree_yaml((const char *)m.p, m.n, path, e);
    file_unmap(&m);
    return x;
}

/* The place that one step of a path names; maps grow, lists do not. NULL: there is no such place. */
static Node **tree_step(Node *at, const char *name) {
    int i = find_kid(at, name);
    if (at->type == NODE_LIST) {
        char *end;
        long k = strtol(name, &end, 10);
        if (*name < '0' || *name > '9' || *end || k >= at->n) return NULL;
        i = (int)k;
    } else if (i < 0) {
        Node *x = node_new(NODE_SCALAR, at->where, 0);
        x->key = xstrdup(name), x->text = xstrdup("");
        node_append(at, x);
        i = at->n - 1;
    }
    return &at->kid[i];
}

Node *tree_copy(const Node *x) {
    Node *y = node_new(x->type, x->where, x->line);
    y->quoted = x->quoted;
    if (x->key) y->key = xstrdup(x->key);
    if (x->text) y->text = xstrdup(x->text);
    for (int i = 0; i < x->n; i++) node_append(y, tree_copy(x->kid[i]));
    return y;
}

bool tree_put(Node *root, const char *where, Node *value, const Node *here, Err *e) {
    char path[201], done[201] = "";
    Node *at = root;
    snprintf(path, sizeof path, "%s", where);
    bool ok = strlen(where) < sizeof path;
    if (!ok) node_refuse(here, "", e, "the key '%.80s...' is too long", where);
    for (char *name = path, *next; ok && name; name = next) {
        if ((next = strchr(name, '.'))) *next++ = 0;
        Node **slot = *name && at->type != NODE_SCALAR ? tree_step(at, name) : NULL;
        if (!*name)
            ok = node_refuse(here, "", e, "an empty name in the key '%.80s'", where);
        else if (!slot)
            ok = node_refuse(here, done, e, "is %s here and has no '%s'; write the whole value instead", node_type(at),
                             name);
        if (!ok) break;
        at = *slot;
        if (*done) strcat(done, ".");
        strcat(done, name);
        if (!next) {
            free(value->key);
            value->key = at->key, at->key = NULL;
            tree_free(at);
            *slot = value;
        } else if (node_null(at)) { /* "model:" with nothing after it */
            at->type = NODE_MAP, at->where = here->where;
            free(at->text);
            at->text = NULL;
        }
    }
    if (!ok) tree_free(value);
    return ok;
}

void tree_remove(Node *root, const char *section, const char *name) {
    int i = *section ? find_kid(root, section) : -1;
    Node *map = !*section ? root : i < 0 ? NULL : root->kid[i];
    int k = map ? find_kid(map, name) : -1;
    if (k < 0) return;
    tree_free(map->kid[k]);
    memmove(map->kid + k, map->kid + k + 1, (size_t)(--map->n - k) * sizeof *map->kid);
}

bool tree_override(Node *root, const char *assignment, Err *e) {
    Node here = {.where = command_line};
    const char *eq = strchr(assignment, '=');
    if (!eq || eq == assignment) return node_refuse(&here, "", e, "expected key=value, got '%.80s'", assignment);
    if (eq - assignment > 200) return node_refuse(&here, "", e, "the key of '%.80s...' is too long", assignment);
    char path[201];
    snprintf(path, sizeof path, "%.*s", (int)(eq - assignment), assignment);
    Err why = {0};
    Node *value = tree_yaml(eq + 1, strlen(eq + 1), command_line, &why);
    if (!value && why.status == EXIT_RUNTIME) return err_runtime(e, "%s", why.msg);
    if (!value) return node_refuse(&here, path, e, "%s", why.msg + strlen("command line: "));
    return tree_put(root, path, value, &here, e);
}
