/* jsonl.c: reads JSON objects line by line from a mapped file. */
#include "jsonl.h"

static void jsonl_begin(Jsonl *l, const char *name) {
    *l = (Jsonl){.at = 0};
    snprintf(l->name, sizeof l->name, "%s", name);
    snprintf(l->where, sizeof l->where, "%s", l->name);
}

bool jsonl_open(Jsonl *l, const char *path, Err *e) {
    jsonl_begin(l, path);
    return file_map(&l->map, path, e);
}
void jsonl_close(Jsonl *l) { file_unmap(&l->map); }

Jsonl jsonl_memory(const void *p, size_t n, const char *name) {
    Jsonl l;
    jsonl_begin(&l, name);
    l.map = (FileMap){p, n};
    return l;
}

static bool jsonl_blank(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r') return false;
    return true;
}

bool jsonl_next(Jsonl *l, json_t **j, Err *e) {
    *j = NULL;
    while (l->at < l->map.n) {
        const unsigned char *p = l->map.p + l->at, *end = memchr(p, '\n', l->map.n - l->at);
        size_t n = end ? (size_t)(end - p) : l->map.n - l->at;
        l->at += n + (end != NULL);
        l->line++;
        if (jsonl_blank(p, n)) continue;
        snprintf(l->where, sizeof l->where, "%s:%lld", l->name, (long long)l->line);
        *j = json_parse(p, n, l->where, NULL, e);
        return *j != NULL;
    }
    return true;
}

const char *json_kind(const json_t *j) {
    if (!j) return "nothing";
    switch (json_typeof(j)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a text";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_NULL: return "null";
    default: return "true or false";
    }
}
