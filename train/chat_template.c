#include "chat_template.h"

enum { TEMPLATE_MAX = 16 << 20 };

static bool chat_template_small(const FileMap *m, const char *path, Err *e) {
    return m->n <= TEMPLATE_MAX || err_input(e, "%.200s: %zu bytes, expected at most %d", path, m->n, TEMPLATE_MAX);
}

static bool read_jinja(ChatTemplate *c, const char *path, Err *e) {
    FileMap m;
    if (!file_map(&m, path, e)) return false;
    bool ok = chat_template_small(&m, path, e);
    if (ok) {
        c->jinja = xcalloc(m.n + 1, 1);
        c->n = m.n;
        if (m.n) memcpy(c->jinja, m.p, m.n);
    }
    file_unmap(&m);
    return ok;
}

/* Reads integers as reals: model_max_length is often 10^30. */
static bool read_config(ChatTemplate *c, const char *path, Err *e) {
    FileMap m;
    json_error_t why;
    if (!file_map(&m, path, e)) return false;
    bool ok = chat_template_small(&m, path, e) && json_bounded(m.p, m.n, path, e);
    if (ok) {
        json_t *j = json_loadb(m.n ? (const char *)m.p : "", m.n, JSON_DECODE_INT_AS_REAL, &why);
        ok = json_is_object(j) || err_input(e, "%.200s: expected a JSON object of the tokenizer's settings", path);
        c->value = json_incref(json_object_get(j, "chat_template"));
        json_decref(j);
    }
    file_unmap(&m);
    return ok;
}

bool chat_template_read(ChatTemplate *c, const char *dir, Err *e) {
    char *jinja = xformat("%s/chat_template.jinja", dir), *config = xformat("%s/tokenizer_config.json", dir);
    *c = (ChatTemplate){.n = 0};
    bool ok = (file_exists(dir, "chat_template.jinja", e) ? read_jinja(c, jinja, e) : !e->status) &&
              (file_exists(dir, "tokenizer_config.json", e) ? read_config(c, config, e) : !e->status);
    if (!ok) chat_template_free(c);
    free(jinja);
    free(config);
    return ok;
}

/* If both files have a template, readers use the Jinja file's. */
bool chat_template_differs(const ChatTemplate *c, const char *jinja) {
    const char *value = json_string_value(c->value);
    const size_t n = strlen(jinja);
    return c->jinja ? c->n != n || memcmp(c->jinja, jinja, n) : c->value && (!value || strcmp(value, jinja));
}
ChatTemplate chat_template_of(const char *jinja) {
    return (ChatTemplate){xstrdup(jinja), strlen(jinja), json_string(jinja)};
}

void chat_template_free(ChatTemplate *c) {
    free(c->jinja);
    json_decref(c->value);
    *c = (ChatTemplate){.n = 0};
}

char *chat_template_config(const ChatTemplate *c, char *config) {
    if (!c->value) return config;
    json_t *j = json_loads(config, 0, NULL);
    CHECK(j && !json_object_set(j, "chat_template", c->value), "%s", config);
    char *dump = json_dumps(j, JSON_INDENT(2)), *text = xformat("%s\n", dump);
    json_decref(j);
    free(dump);
    free(config);
    return text;
}

bool chat_template_write(const ChatTemplate *c, const char *dir, Err *e) {
    if (!c->jinja) return true;
    char *path = xformat("%s/chat_template.jinja", dir);
    bool ok = file_write(path, c->jinja, c->n, e);
    free(path);
    return ok;
}
