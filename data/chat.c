/* chat.c: the templates, the encoding of conversations by them, and the templates as Jinja. */
#include "chat.h"
#include "jsonl.h"
#include "white.h"

enum { SYSTEM, USER, ASSISTANT, ROLES };
static const char *const role_names[ROLES] = {"system", "user", "assistant"}, *const shared_names[ROLES] = {
                                                                                  "system", "human",
                                                                                  "gpt"}; /* ShareGPT's */

/* A message is head, text, stop, tail. For the assistant, text and stop are learned. */
typedef struct {
    const char *head, *stop, *tail;
} Around;
typedef struct {
    const char *begin; /* a marker at the very beginning, or the tokenizer's beginning-of-text; NULL: nothing */
    Around role[ROLES];
    bool strip;            /* white space around a text is removed */
    bool ends;             /* end-of-text replaces the last answer's stop: it also ends the document */
    const char *input;     /* between an instruction and its input */
    const char *system[2]; /* used if no system message begins the conversation: without and with an input */
} Template;

#define ALPACA     "Below is an instruction that describes a task"
#define ALPACA_END " Write a response that appropriately completes the request.\n\n"
const char *const chat_templates[] = {"none", "chatml", "llama3", "alpaca", "plain", NULL};
static const Template templates[] = {
    [CHAT_CHATML] = {.role = {{"<|im_start|>system\n", "<|im_end|>", "\n"},
                              {"<|im_start|>user\n", "<|im_end|>", "\n"},
                              {"<|im_start|>assistant\n", "<|im_end|>", "\n"}},
                     .input = "\n"},
    [CHAT_LLAMA3] = {.begin = "<|begin_of_text|>",
                     .role = {{"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>", ""},
                              {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", ""},
                              {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", ""}},
                     .strip = true,
                     .input = "\n"},
    [CHAT_ALPACA] = {.role = {{"", "", "\n\n"}, {"### Instruction:\n", "", "\n\n"}, {"### Response:\n", "\n\n", ""}},
                     .ends = true,
                     .input = "\n\n### Input:\n",
                     .system = {ALPACA "." ALPACA_END,
                                ALPACA ", paired with an input that provides further context." ALPACA_END}},
    [CHAT_PLAIN] = {.role = {{"", "", "\n\n"}, {"User:\n", "", "\n\n"}, {"Assistant:\n", "\n\n", ""}},
                    .ends = true,
                    .input = "\n"},
};

void chat_open(Chat *c, const Tokenizer *t, int template, bool all) {
    CHECK(template > CHAT_NONE && template <= CHAT_PLAIN, "template %d", template);
    *c = (Chat){.t = t, .enc = encoder_open(t), .template = template, .all = all};
}
void chat_close(Chat *c) {
    encoder_close(c->enc);
    buf_free(&c->text);
    buf_free(&c->join);
    *c = (Chat){0};
}

int chat_stop(const Tokenizer *t, int template) {
    const char *stop = template == CHAT_NONE ? "" : templates[template].role[ASSISTANT].stop;
    return *stop == '<' ? tokenizer_find(t, stop) : -1;
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

/* The text collected in c->text, which is not encoded yet. */
typedef struct {
    Chat *c;
    Ids *out;
    bool learn;
    unsigned how; /* ENCODE_LATER, ENCODE_JOINED: what comes before it */
    bool ok;
    Err *e;
} Run;

static void put_id(Run *r, int id, bool learn) { ids_push(r->out, learn ? id | CHAT_LEARN : id); }

/* Encode the collected text; later text is another text of the same stretch. */
static void chat_flush(Run *r) {
    Buf *b = &r->c->text;
    if (!b->n || !r->ok) return;
    size_t from = r->out->n;
    r->ok = encoder_run(r->c->enc, b->at, b->n, r->how, r->out, r->e);
    for (size_t i = from; r->learn && i < r->out->n; i++) r->out->id[i] |= CHAT_LEARN;
    r->how = ENCODE_LATER | ENCODE_JOINED;
    b->n = 0;
}
static void put_text(Run *r, const char *s, size_t n, bool learn) {
    if (learn != r->learn) chat_flush(r);
    r->learn = learn;
    buf_put(&r->c->text, s, n);
}
static void put_marker(Run *r, const char *s, size_t n, bool learn) {
    char name[64];
    CHECK(n < sizeof name, "%.*s", (int)n, s);
    memcpy(name, s, n);
    name[n] = 0;
    int id = tokenizer_find(r->c->t, name);
    chat_flush(r);
    if (id >= 0) {
        put_id(r, id, learn);
        r->how = ENCODE_LATER;
        return;
    }
    if (!r->c->plain) r->c->plain = s, r->c->nplain = (int)n;
    put_text(r, s, n, learn);
    chat_flush(r); /* its ids do not depend on its neighbours */
}
/* Append a template's text with its markers. */
static void chat_put(Run *r, const char *s, bool learn) {
    for (const char *from, *to; *s; s = to) {
        from = strstr(s, "<|");
        to = from ? strstr(from, "|>") + 2 : s + strlen(s);
        if (!from) from = to;
        put_text(r, s, (size_t)(from - s), learn);
        if (from < to) put_marker(r, from, (size_t)(to - from), learn);
    }
}

typedef struct {
    int role;
    bool learn; /* a text of the assistant */
    const char *text;
    size_t n;
} Turn;

static void put_turn(Run *r, const Template *t, Turn m, bool last) {
    bool all = r->c->all, learn = all || (m.role == ASSISTANT && m.learn);
    const Around *a = &t->role[m.role];
    if (t->strip) {
        size_t skip = white_begin(m.text, m.n);
        m.text += skip;
        m.n = white_end(m.text, m.n - skip);
    }
    chat_put(r, a->head, all);
    if (m.role == ASSISTANT) chat_flush(r);
    put_text(r, m.text, m.n, learn);
    if (last && m.role == ASSISTANT && t->ends && r->c->t->eot >= 0) {
        chat_flush(r);
        put_id(r, r->c->t->eot, learn);
        return;
    }
    chat_put(r, a->stop, learn);
    chat_put(r, a->tail, all);
}

/* Put the beginning of a text before the ids from `start` on, unless they already have one. */
static void chat_begin(const Tokenizer *t, Ids *out, size_t start) {
    int id = t->bos >= 0 ? t->bos : t->eot;
    if (id < 0 || (out->n > start && tokenizer_special(t, out->id[start] & ~CHAT_LEARN))) return;
    ids_push(out, id);
    memmove(out->id + start + 1, out->id + start, (out->n - start - 1) * sizeof *out->id);
    out->id[start] = id;
}

static bool encode(Chat *c, const Turn *m, size_t n, int input, const char *where, Ids *out, Err *e) {
    const Template *t = &templates[c->template];
    Err why = {0};
    Run r = {.c = c, .out = out, .ok = true, .e = &why};
    size_t start = out->n;
    c->text.n = 0;
    if (t->begin) {
        int id = tokenizer_find(c->t, t->begin);
        if (id < 0) id = c->t->bos;
        if (id >= 0) put_id(&r, id, false), r.how = ENCODE_LATER;
    }
    if (t->system[0] && m->role != SYSTEM) chat_put(&r, t->system[input], c->all);
    for (size_t i = 0; i < n; i++) put_turn(&r, t, m[i], i == n - 1);
    chat_flush(&r);
    if (!r.ok) return err_input(e, "%s: %.100s", where, why.msg);
    chat_begin(c->t, out, start);
    out->id[start] &= ~CHAT_LEARN;
    return true;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool chat_text_of(const json_t *j, const char *key, const char *where, Turn *t, Err *e) {
    const json_t *x = json_object_get(j, key);
    if (!json_is_string(x)) return err_input(e, "%s: \"%s\": expected a text, found %s", where, key, json_kind(x));
    t->text = json_string_value(x);
    t->n = json_string_length(x);
    return true;
}
static bool chat_absent(const json_t *x) { return !x || json_is_null(x) || (json_is_array(x) && !json_array_size(x)); }

/* A message in the common form, {"role", "content"}, or in ShareGPT's, {"from", "value"}. */
static bool turn_read(const json_t *j, const char *list, size_t i, const char *where, Turn *t, Err *e) {
    char at[256];
    snprintf(at, sizeof at, "%s: %s.%zu", where, list, i);
    if (!json_is_object(j)) return err_input(e, "%s: expected an object, found %s", at, json_kind(j));
    bool shared = json_object_get(j, "from") != NULL;
    const json_t *role = json_object_get(j, shared ? "from" : "role"), *weight = json_object_get(j, "weight");
    const char *name = json_string_value(role);
    *t = (Turn){.role = ROLES, .learn = true};
    for (int k = 0; name && k < ROLES; k++)
        if (!strcmp(name, role_names[k]) || (shared && !strcmp(name, shared_names[k]))) t->role = k;
    if (t->role == ROLES)
        return err_input(e, "%s: \"%s\": expected %s, found %s%.40s", at, shared ? "from" : "role",
                         shared ? "system, human or gpt" : "system, user or assistant", name ? "" : json_kind(role),
                         name ? name : "");
    if (!chat_absent(json_object_get(j, "tool_calls")))
        return err_input(e, "%s: \"tool_calls\": no built-in template supports them; write them into \"content\"", at);
    if (weight && !json_is_null(weight)) {
        if (!json_is_number(weight) || (json_number_value(weight) != 0 && json_number_value(weight) != 1))
            return err_input(e, "%s: \"weight\": expected 0 or 1", at);
        t->learn = json_number_value(weight) == 1;
    }
    return chat_text_of(j, shared ? "value" : "content", at, t, e);
}

/* `key`: the name of the list. */
static bool chat_messages(Chat *c, const json_t *j, const char *key, const char *where, Ids *out, Err *e) {
    const json_t *list = json_object_get(j, key), *system = json_object_get(j, "system");
    size_t n = json_array_size(list), learned = 0, first = 0;
    if (!json_is_array(list) || !n)
        return err_input(e, "%s: \"%s\": expected a list of at least one, found %s", where, key,
                         json_is_array(list) ? "an empty one" : json_kind(list));
    Turn *turn = xcalloc(n + 1, sizeof *turn);
    bool ok = true;
    if (json_string_length(system) || !(chat_absent(system) || json_is_string(system))) { /* next to the list */
        turn[0].role = SYSTEM;
        ok = chat_text_of(j, "system", where, &turn[first++], e);
    }
    for (size_t i = 0; ok && i < n; i++) {
        ok = turn_read(json_array_get(list, i), key, i, where, &turn[first + i], e);
        learned += turn[first + i].role == ASSISTANT && turn[first + i].learn;
    }
    if (ok && !learned && !c->all)
        ok =
            err_input(e, "%s: \"%s\": expected at least one message of the assistant to learn, found none", where, key);
    ok = ok && encode(c, turn, first + n, 0, where, out, e);
    free(turn);
    return ok;
}

static bool instruction(Chat *c, const json_t *j, const char *where, Ids *out, Err *e) {
    Turn turn[2] = {{.role = USER}, {.role = ASSISTANT, .learn = true}}, input = {.n = 0};
    if (!chat_text_of(j, "instruction", where, &turn[0], e) || !chat_text_of(j, "output", where, &turn[1], e))
        return false;
    if (!chat_absent(json_object_get(j, "input")) && !chat_text_of(j, "input", where, &input, e)) return false;
    if (input.n) {
        const char *between = templates[c->template].input;
        c->join.n = 0;
        buf_put(&c->join, turn[0].text, turn[0].n);
        buf_put(&c->join, between, strlen(between));
        buf_put(&c->join, input.text, input.n);
        turn[0].text = c->join.at, turn[0].n = c->join.n;
    }
    return encode(c, turn, 2, input.n > 0, where, out, e);
}

bool chat_encode(Chat *c, const json_t *j, const char *where, Ids *out, Err *e) {
    if (!chat_absent(json_object_get(j, "tools")))
        return err_input(e, "%s: \"tools\": no built-in template supports them; write them into a system message",
                         where);
    if (json_object_get(j, "messages")) return chat_messages(c, j, "messages", where, out, e);
    if (json_object_get(j, "conversations")) return chat_messages(c, j, "conversations", where, out, e);
    if (json_object_get(j, "instruction")) return instruction(c, j, where, out, e);
    return err_input(e,
                     "%s: expected {\"messages\": [...]}, {\"conversations\": [...]} or {\"instruction\": TEXT, "
                     "\"output\": TEXT}, found none of them",
                     where);
}

/* ---- as Jinja ---------------------------------------------------------------------------------------------------- */

static void jinja_put(Buf *b, const char *s) { buf_put(b, s, strlen(s)); }
static void jinja_text(Buf *b, const char *s) {
    jinja_put(b, "'");
    for (; *s; s++)
        if (*s == '\n')
            jinja_put(b, "\\n");
        else if (*s == '\'' || *s == '\\')
            buf_put(b, "\\", 1), buf_put(b, s, 1);
        else
            buf_put(b, s, 1);
    jinja_put(b, "'");
}

/* True if a conversation by the template begins with a special token that was not put before it. */
static bool begins_special(const Tokenizer *t, const Template *p) {
    const char *head = p->role[USER].head, *end = strstr(head, "|>");
    char name[64];
    if (strncmp(head, "<|", 2) || !end) return false;
    snprintf(name, sizeof name, "%.*s", (int)(end + 2 - head), head);
    int id = tokenizer_find(t, name);
    return id >= 0 && tokenizer_special(t, id);
}

char *chat_jinja(const Tokenizer *t, int template) {
    const Template *p = &templates[template];
    Buf b = {0};
    CHECK(template > CHAT_NONE && template <= CHAT_PLAIN, "template %d", template);
    if (p->begin && tokenizer_find(t, p->begin) >= 0) {
        jinja_put(&b, "{{ ");
        jinja_text(&b, p->begin);
        jinja_put(&b, " }}");
    } else if (p->begin ? t->bos >= 0 || !begins_special(t, p) : !begins_special(t, p)) {
        if (t->bos >= 0 || t->eot >= 0) jinja_put(&b, "{{ bos_token }}");
    }
    if (p->system[0]) {
        jinja_put(&b, "{% if messages[0]['role'] != 'system' %}{% if ");
        jinja_text(&b, p->input);
        jinja_put(&b, " in messages[0]['content'] %}{{ ");
        jinja_text(&b, p->system[1]);
        jinja_put(&b, " }}{% else %}{{ ");
        jinja_text(&b, p->system[0]);
        jinja_put(&b, " }}{% endif %}{% endif %}");
    }
    jinja_put(&b, "{% for message in messages %}");
    for (int r = 0; r < ROLES; r++) {
        const Around *a = &p->role[r];
        const bool ends = r == ASSISTANT && p->ends && t->eot >= 0;
        jinja_put(&b, r ? "{% elif message['role'] == '" : "{% if message['role'] == '");
        jinja_put(&b, role_names[r]);
        jinja_put(&b, "' %}{{ ");
        jinja_text(&b, a->head);
        jinja_put(&b, p->strip ? " + message['content'] | trim" : " + message['content']");
        if (ends) jinja_put(&b, " }}{% if loop.last %}{{ eos_token }}{% else %}{{ ''");
        if (*a->stop) jinja_put(&b, " + "), jinja_text(&b, a->stop);
        if (*a->tail) jinja_put(&b, " + "), jinja_text(&b, a->tail);
        jinja_put(&b, ends ? " }}{% endif %}" : " }}");
    }
    jinja_put(&b, "{% else %}{{ raise_exception('expected role system, user or assistant') }}{% endif %}{% endfor %}"
                  "{% if add_generation_prompt %}{{ ");
    jinja_text(&b, p->role[ASSISTANT].head);
    jinja_put(&b, " }}{% endif %}");
    buf_put(&b, "", 1);
    char *text = xstrdup(b.at);
    buf_free(&b);
    return text;
}
