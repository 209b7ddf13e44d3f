/* schema.c: reads values of settings by their keys, finds near names, writes YAML and JSON, and documents keys. */
#include "schema.h"
#include "hints.h"
#include <ctype.h>
#include <errno.h>
#include <limits.h>

const char *schema_join(char buf[256], const char *path, const char *name) {
    snprintf(buf, 256, "%.120s%s%.120s", path, *path ? "." : "", name);
    return buf;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

bool schema_unknown(const Node *x, const char *path, const char *name, const Key *keys, const char *const *names,
                    Err *e) {
    const char *best = NULL;
    int least = 1 + (int)strlen(name) / 2;
    char known[160] = "";
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; pass ? names && names[i] : keys && keys[i].name; i++) {
            const char *s = pass ? names[i] : keys[i].name;
            int d = name_distance(name, s);
            if (d < least) least = d, best = s;
            size_t n = strlen(known);
            if (n + strlen(s) + 3 < sizeof known) snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", s);
        }
    }
    char what[64] = "unknown key"; /* the path ends with a key; a value is not part of it */
    if (name != x->key)
        snprintf(what, sizeof what, strlen(name) > 40 ? "unknown name '%.40s...'" : "unknown name '%s'", name);
    const char *dot = strrchr(path, '.'); /* a key is named in full, a value as the user wrote it */
    int above = name == x->key && dot && !strcmp(dot + 1, name) && dot - path < 100 ? (int)(dot - path) + 1 : 0;
    if (best) return node_refuse(x, path, e, "%s; did you mean %.*s%s?", what, above, path, best);
    return node_refuse(x, path, e, "%s; known: %s", what, known);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Append the digits of s without `_`, which may be between two of them, to out. NULL: none, or no room. */
static const char *schema_digits(const char *s, bool gaps, char out[NUMBER_MAX], int *n) {
    if (!isdigit((unsigned char)*s)) return NULL;
    for (; isdigit((unsigned char)*s) || (gaps && *s == '_' && isdigit((unsigned char)s[1])); s++) {
        if (*s == '_') continue;
        if (*n == NUMBER_MAX - 24) return NULL;
        out[(*n)++] = *s;
    }
    return s;
}
/* digits 10^exponent as an integer, exactly. */
static bool schema_integral(const char *digit, int n, long exponent, bool minus, int64_t *out) {
    uint64_t v = 0, most = (uint64_t)INT64_MAX + minus;
    while (n > 0 && digit[n - 1] == '0') n--, exponent++;
    if (n > 0 && exponent < 0) return false;
    for (long i = 0; i < n + (n ? exponent : 0); i++) {
        unsigned next = i < n ? (unsigned)(digit[i] - '0') : 0;
        if (v > (most - next) / 10) return false;
        v = 10 * v + next;
    }
    *out = minus ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}
bool number_parse(const char *s, Number *out) {
    char text[NUMBER_MAX];
    int n = 0;
    long shift = 0, e = 0;
    const bool minus = *s == '-';
    if (minus) s++;
    if (*s == '0' && (isdigit((unsigned char)s[1]) || s[1] == '_')) return false;
    if (!(s = schema_digits(s, true, text, &n))) return false;
    const bool point = *s == '.';
    if (point) {
        int before = n;
        if (!(s = schema_digits(s + 1, false, text, &n))) return false;
        shift = before - n;
    }
    const bool scaled = *s != 0;
    if (*s == 'e' || *s == 'E') {
        char *end;
        s += s[1] == '+' ? 2 : 1;
        if (!isdigit((unsigned char)s[*s == '-'])) return false;
        e = strtol(s, &end, 10); /* a long that overflows is LONG_MAX */
        s = end;
        if (e > 9999) e = 9999;
        if (e < -9999) e = -9999;
    } else if (*s) {
        e = *s == 'k' ? 3 : *s == 'M' ? 6 : *s == 'G' ? 9 : 0;
        if (!e) return false;
        s++;
    }
    if (*s) return false;
    out->whole = (!point || scaled) && schema_integral(text, n, shift + e, minus, &out->i);
    text[n] = 0;
    const bool zero = !text[strspn(text, "0")];
    snprintf(text + n, sizeof text - (size_t)n, "e%ld", shift + e);
    out->f = minus ? -strtod(text, NULL) : strtod(text, NULL);
    out->fits = isfinite(out->f) && (out->f != 0 || zero);
    return true;
}

static void number_text(char buf[40], double v) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buf, 40, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) return;
    }
}

static bool schema_ranged(const Key *k) { return k->min != 0 || k->max != 0; }
static const char *range_text(const Key *k, char buf[96]) {
    char lo[40], hi[40];
    number_text(lo, k->min);
    number_text(hi, k->max);
    *buf = 0;
    if (schema_ranged(k)) snprintf(buf, 96, " from %s to %s", lo, hi);
    return buf;
}

/* Describe what was found, in a form that fits a message. */
static const char *schema_found(const Node *x, char buf[64]) {
    if (x->type != NODE_SCALAR || node_null(x))
        snprintf(buf, 64, "%s", node_type(x));
    else
        snprintf(buf, 64, strlen(x->text) > 40 ? "%s%.40s...%s" : "%s%s%s", x->quoted ? "\"" : "", x->text,
                 x->quoted ? "\"" : "");
    return buf;
}

static const char unquote[] = "; write the number without quotes";

static bool read_number(const Key *k, bool integer, const Node *x, const char *path, double *f, int64_t *i, Err *e) {
    char got[64], range[96];
    Number v = {0};
    bool scalar = x->type == NODE_SCALAR, form = scalar && number_parse(x->text, &v);
    bool ok = form && !x->quoted && v.fits && (!integer || v.whole) &&
              (!integer || k->type == KEY_LONG || (v.i >= INT_MIN && v.i <= INT_MAX)) &&
              (!schema_ranged(k) || (v.f >= k->min && v.f <= k->max));
    if (ok) return *f = v.f, *i = v.whole ? v.i : 0, true;
    return node_refuse(x, path, e, "expected a %s%s, got %s%s", integer ? "whole number" : "number",
                       range_text(k, range), schema_found(x, got), form && x->quoted ? unquote : "");
}

static bool read_text(const Node *x, const char *path, char *out, Err *e) {
    char got[64];
    if (x->type != NODE_SCALAR) return node_refuse(x, path, e, "expected text, got %s", schema_found(x, got));
    const char *s = node_null(x) ? "" : x->text;
    if (strlen(s) >= KEY_TEXT_MAX) return node_refuse(x, path, e, "text is longer than %d bytes", KEY_TEXT_MAX - 1);
    for (const char *p = s; *p; p++)
        if (((unsigned char)*p < 32 && *p != '\n' && *p != '\t') || *p == 127)
            return node_refuse(x, path, e, "text contains the control character %d", *p);
    strcpy(out, s);
    return true;
}

static bool read_choice(const Key *k, const Node *x, const char *path, int *out, Err *e) {
    char names[160] = "", got[64];
    for (int i = 0; k->choices[i]; i++) {
        if (x->type == NODE_SCALAR && !strcmp(x->text, k->choices[i])) return *out = i, true;
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", k->choices[i]);
    }
    return node_refuse(x, path, e, "expected one of %s, got %s", names, schema_found(x, got));
}

static bool read_list(const Key *k, const Node *x, const char *path, void *out, Err *e) {
    char at[256], index[16], got[64];
    Numbers *numbers = out;
    Ints *ints = out;
    bool integer = k->type == KEY_INTS;
    int n = node_null(x) ? 0 : x->n;
    if (x->type != NODE_LIST && !node_null(x))
        return node_refuse(x, path, e, "expected a list of numbers, got %s", schema_found(x, got));
    if (n > KEY_LIST_MAX) return node_refuse(x, path, e, "%d numbers; at most %d are allowed", n, KEY_LIST_MAX);
    for (int i = 0; i < n; i++) {
        double f;
        int64_t v;
        snprintf(index, sizeof index, "%d", i);
        if (!read_number(k, integer, x->kid[i], schema_join(at, path, index), &f, &v, e)) return false;
        if (integer)
            ints->v[i] = (int)v;
        else
            numbers->v[i] = f;
    }
    if (integer)
        ints->n = n;
    else
        numbers->n = n;
    return true;
}

static bool read_texts(const Node *x, const char *path, Texts *out, Err *e) {
    char at[256], index[16], text[KEY_TEXT_MAX];
    bool list = x->type == NODE_LIST;
    int n = list ? x->n : node_null(x) ? 0 : 1;
    if (x->type == NODE_MAP) return node_refuse(x, path, e, "expected a list of texts, got a map");
    if (n > KEY_TEXTS_MAX) return node_refuse(x, path, e, "%d texts; at most %d are allowed", n, KEY_TEXTS_MAX);
    out->n = 0;
    for (int i = 0; i < n; i++) {
        const Node *y = list ? x->kid[i] : x;
        snprintf(index, sizeof index, "%d", i);
        schema_join(at, path, index);
        if (!read_text(y, list ? at : path, text, e)) return false;
        if (!*text || strlen(text) >= KEY_SHORT_MAX)
            return node_refuse(y, list ? at : path, e, "expected text of 1 to %d bytes, got %zu", KEY_SHORT_MAX - 1,
                               strlen(text));
        strcpy(out->v[out->n++], text);
    }
    return true;
}

/* Read a number followed by nothing, % or tok. */
static bool read_length(const Key *k, const Node *x, const char *path, Length *out, Err *e) {
    char text[40] = "", got[64];
    Number v = {0};
    LengthUnit unit = LENGTH_STEPS;
    bool ok = x->type == NODE_SCALAR && strlen(x->text) < sizeof text;
    if (ok) snprintf(text, sizeof text, "%s", x->text);
    size_t n = strlen(text);
    if (n >= 1 && text[n - 1] == '%') unit = LENGTH_PERCENT, text[n - 1] = 0;
    if (n >= 3 && !strcmp(text + n - 3, "tok")) unit = LENGTH_TOKENS, text[n - 3] = 0;
    ok = ok && *text != '-' && number_parse(text, &v) && v.fits;
    const bool quoted = ok && unit == LENGTH_STEPS && x->quoted;
    ok = ok && !quoted && (unit == LENGTH_PERCENT ? v.f <= 1e4 : v.whole) &&
         v.f <= (unit == LENGTH_STEPS ? k->max : 1e15);
    if (!ok)
        return node_refuse(x, path, e, "expected steps, a percentage or tokens (200, 10%%, 2Mtok), got %s%s",
                           schema_found(x, got), quoted ? unquote : "");
    *out = (Length){v.f, unit};
    return true;
}
static void length_text(const Length *s, char buf[48]) {
    char number[40];
    number_text(number, s->n);
    if (s->unit == LENGTH_PERCENT)
        snprintf(buf, 48, "%s%%", number);
    else
        snprintf(buf, 48, "%.0f%s", s->n, s->unit == LENGTH_TOKENS ? "tok" : "");
}

bool schema_value(const Key *k, const Node *x, const char *path, void *out, Err *e) {
    char got[64];
    double f;
    int64_t i;
    switch (k->type) {
    case KEY_INT:
        if (!read_number(k, true, x, path, &f, &i, e)) return false;
        *(int *)out = (int)i;
        return true;
    case KEY_LONG:
        if (!read_number(k, true, x, path, &f, &i, e)) return false;
        *(int64_t *)out = i;
        return true;
    case KEY_FLOAT: return read_number(k, false, x, path, out, &i, e);
    case KEY_BOOL: {
        bool yes = x->type == NODE_SCALAR && !x->quoted && !strcmp(x->text, "true");
        if (!yes && (x->type != NODE_SCALAR || x->quoted || strcmp(x->text, "false")))
            return node_refuse(x, path, e, "expected true or false, got %s", schema_found(x, got));
        *(bool *)out = yes;
        return true;
    }
    case KEY_TEXT: return read_text(x, path, out, e);
    case KEY_CHOICE: return read_choice(k, x, path, out, e);
    case KEY_NUMBERS:
    case KEY_INTS: return read_list(k, x, path, out, e);
    case KEY_TEXTS: return read_texts(x, path, out, e);
    case KEY_LENGTH: return read_length(k, x, path, out, e);
    case KEY_TABLE:
        if (x->type == NODE_SCALAR && !node_null(x)) { /* a lone scalar is the value of the first key */
            Node kid = *x, *kids[] = {&kid};
            Node map = {.type = NODE_MAP, .line = x->line, .where = x->where, .n = 1, .kid = kids};
            kid.key = (char *)k->sub->name;
            return schema_read(k->sub, &map, path, NULL, out, e);
        }
        return schema_read(k->sub, x, path, NULL, out, e);
    case KEY_OTHER: break;
    }
    CHECK(false, "key %s has no reader", k->name);
    return false;
}

/* A default is written in the user's spelling and parsed in the same way, so that it cannot be a value that a user
 * could not give. */
static bool use_default(const Key *k, const Node *map, const char *path, void *out, Err *e) {
    if (!k->dflt) return node_refuse(map, path, e, "required, but not given: %s", k->meaning);
    if (k->type == KEY_TABLE && !*k->dflt) {
        Node none = {.type = NODE_MAP, .line = map->line, .where = map->where};
        return schema_read(k->sub, &none, path, NULL, out, e);
    }
    Node *x = tree_yaml(k->dflt, strlen(k->dflt), k->name, e);
    CHECK(x, "default of %s", k->name);
    x->where = map->where, x->line = map->line;
    bool ok = schema_value(k, x, path, out, e);
    tree_free(x);
    return ok;
}

bool schema_read(const Key *keys, const Node *map, const char *path, const char *also, void *cfg, Err *e) {
    char at[256], got[64];
    const char *const names[] = {also, NULL};
    if (map->type != NODE_MAP && !node_null(map))
        return node_refuse(map, path, e, "expected a map of settings, got %s", schema_found(map, got));
    for (int i = 0; i < map->n; i++) {
        const Key *k = keys;
        while (k->name && strcmp(k->name, map->kid[i]->key)) k++;
        if (k->name || (also && !strcmp(also, map->kid[i]->key))) continue;
        const Node *x = map->kid[i];
        char hint[HINT_MAX];
        schema_join(at, path, x->key);
        if (strchr(x->key, ':')) return node_refuse(x, at, e, "unknown key; a space must follow the ':'");
        if (hint_key(x->key, at, keys, hint)) return node_refuse(x, at, e, "unknown key; %s", hint);
        return schema_unknown(x, at, x->key, keys, names, e);
    }
    for (const Key *k = keys; k->name; k++) {
        if (k->type == KEY_OTHER) continue;
        const Node *x = tree_get(map, k->name);
        void *out = (char *)cfg + k->at;
        schema_join(at, path, k->name);
        if (x ? !schema_value(k, x, at, out, e) : !use_default(k, map, at, out, e)) return false;
    }
    return true;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void schema_entry(Writer *w) {
    if (w->flow || w->json) {
        if (!w->first) fputs(", ", w->f);
    } else {
        if (!w->first) fputc('\n', w->f);
        fprintf(w->f, "%*s", 2 * w->depth, "");
    }
    w->first = false;
}
void write_item(Writer *w) { schema_entry(w); }
void write_name(Writer *w, const char *name) {
    schema_entry(w);
    if (w->json)
        write_text(w, name);
    else
        fputs(name, w->f);
    fputc(':', w->f);
    w->named = true;
}
/* A value follows on the line of its name, unless it is a block map. */
static FILE *value(Writer *w) {
    if (w->named) fputc(' ', w->f);
    w->named = false;
    return w->f;
}
void write_map(Writer *w, bool flow) {
    if (flow || w->flow || w->json) {
        w->flow++;
        fputc('{', value(w));
    } else {
        w->depth++;
        w->named = false;
        fputc('\n', w->f);
    }
    w->first = true;
}
void write_map_end(Writer *w) {
    if (w->flow) {
        w->flow--;
        fputc('}', w->f);
    } else {
        w->depth--;
    }
    w->first = false;
}
void write_list(Writer *w) {
    w->flow++;
    fputc('[', value(w));
    w->first = true;
}
void write_list_end(Writer *w) {
    w->flow--;
    fputc(']', w->f);
    w->first = false;
}

/* True for text that every YAML reader takes as text without quotes. */
static bool schema_plain(const char *s) {
    static const char *const taken[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n", NULL};
    for (int i = 0; taken[i]; i++)
        if (!strcasecmp(s, taken[i])) return false;
    if (!isalpha((unsigned char)*s) && *s != '/' && strncmp(s, "./", 2) && strncmp(s, "../", 3)) return false;
    return s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-")] == 0;
}

void write_text(Writer *w, const char *s) {
    value(w);
    if (!w->json && !*s) {
        fputs("null", w->f);
        return;
    }
    if (!w->json && schema_plain(s)) {
        fputs(s, w->f);
        return;
    }
    fputc('"', w->f);
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        if (*p == '"' || *p == '\\') {
            fprintf(w->f, "\\%c", *p++);
        } else if (*p < 32 || *p == 127) {
            if (*p == '\n' || *p == '\t')
                fprintf(w->f, "\\%c", *p == '\n' ? 'n' : 't');
            else
                fprintf(w->f, "\\u%04X", *p);
            p++;
        } else {
            /* characters that YAML treats as line breaks or refuses raw: C1 controls, U+2028, U+2029, U+FEFF, ... */
            int len = *p < 0x80 ? 1 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : 4;
            unsigned c = len == 2 ? (p[0] & 31u) << 6 | (p[1] & 63u)
                                  : (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2 < len ? 2 : 0] & 63u);
            bool odd =
                (len == 2 && c <= 0xA0) || (len == 3 && (c == 0x2028 || c == 0x2029 || c == 0xFEFF || c >= 0xFFFE));
            if (odd)
                fprintf(w->f, "\\u%04X", c);
            else
                fwrite(p, 1, (size_t)len, w->f);
            p += len;
        }
    }
    fputc('"', w->f);
}
void write_number(Writer *w, double v) {
    char buf[40];
    number_text(buf, v);
    fputs(buf, value(w));
}
void write_raw(Writer *w, const char *s) { fputs(s, value(w)); }
void write_int(Writer *w, int64_t v) { fprintf(value(w), "%lld", (long long)v); }

void write_node(Writer *w, const Node *x) {
    if (x->type == NODE_MAP) {
        write_map(w, true);
        for (int i = 0; i < x->n; i++) write_name(w, x->kid[i]->key), write_node(w, x->kid[i]);
        write_map_end(w);
    } else if (x->type == NODE_LIST) {
        write_list(w);
        for (int i = 0; i < x->n; i++) write_item(w), write_node(w, x->kid[i]);
        write_list_end(w);
    } else {
        const char *s = node_null(x) ? "" : x->text;
        bool plain =
            *s && !x->quoted && !s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-%")];
        plain ? write_raw(w, s) : write_text(w, s);
    }
}

void schema_write(Writer *w, const Key *keys, const void *cfg) {
    for (const Key *k = keys; k->name; k++) {
        const void *p = (const char *)cfg + k->at;
        char length[48];
        if (k->type == KEY_OTHER) continue;
        write_name(w, k->name);
        switch (k->type) {
        case KEY_INT: write_int(w, *(const int *)p); break;
        case KEY_LONG: write_int(w, *(const int64_t *)p); break;
        case KEY_FLOAT: write_number(w, *(const double *)p); break;
        case KEY_BOOL: fputs(*(const bool *)p ? "true" : "false", value(w)); break;
        case KEY_TEXT: write_text(w, p); break;
        case KEY_CHOICE: write_text(w, k->choices[*(const int *)p]); break;
        case KEY_TABLE:
            write_map(w, false);
            schema_write(w, k->sub, p);
            write_map_end(w);
            break;
        case KEY_NUMBERS:
            write_list(w);
            for (int i = 0; i < ((const Numbers *)p)->n; i++)
                write_item(w), write_number(w, ((const Numbers *)p)->v[i]);
            write_list_end(w);
            break;
        case KEY_INTS:
            write_list(w);
            for (int i = 0; i < ((const Ints *)p)->n; i++) write_item(w), write_int(w, ((const Ints *)p)->v[i]);
            write_list_end(w);
            break;
        case KEY_TEXTS:
            write_list(w);
            for (int i = 0; i < ((const Texts *)p)->n; i++) write_item(w), write_text(w, ((const Texts *)p)->v[i]);
            write_list_end(w);
            break;
        case KEY_LENGTH:
            length_text(p, length);
            w->json && ((const Length *)p)->unit ? write_text(w, length) : write_raw(w, length);
            break;
        case KEY_OTHER: break;
        }
    }
}

/* ---- describing -------------------------------------------------------------------------------------------------- */

static void type_text(const Key *k, char buf[256]) {
    static const char *const names[] = {[KEY_INT] = "whole number",
                                        [KEY_LONG] = "whole number",
                                        [KEY_FLOAT] = "number",
                                        [KEY_BOOL] = "true or false",
                                        [KEY_TEXT] = "text",
                                        [KEY_CHOICE] = "",
                                        [KEY_TABLE] = "map",
                                        [KEY_NUMBERS] = "list of numbers",
                                        [KEY_INTS] = "list of whole numbers",
                                        [KEY_TEXTS] = "list of texts",
                                        [KEY_LENGTH] = "steps, N%, or N, Nk, NM, NG followed by tok",
                                        [KEY_OTHER] = "map or list"};
    char range[96];
    snprintf(buf, 256, "%s%s", names[k->type],
             k->type == KEY_OTHER || k->type == KEY_LENGTH ? "" : range_text(k, range));
    if (k->type == KEY_CHOICE)
        for (int i = 0; k->choices[i]; i++) {
            size_t n = strlen(buf);
            snprintf(buf + n, 256 - n, "%s%s", n ? ", " : "", k->choices[i]);
        }
}

void schema_document(FILE *f, const Key *keys, const char *prefix, bool markdown) {
    for (const Key *k = keys; k->name; k++) {
        char type[256], name[256];
        snprintf(name, sizeof name, "%s%s", prefix, k->name);
        type_text(k, type);
        const char *dflt = !k->dflt ? "required" : *k->dflt ? k->dflt : k->type == KEY_TABLE ? "as below" : "none";
        if (markdown)
            fprintf(f, "| `%s` | %s | %s%s%s | %s |\n", name, type, k->dflt && *k->dflt ? "`" : "", dflt,
                    k->dflt && *k->dflt ? "`" : "", k->meaning);
        else
            fprintf(f, "  %-40s %s\n  %-40s   %s; default %s\n", name, k->meaning, "", type, dflt);
        if (k->type == KEY_TABLE) {
            char sub[256];
            snprintf(sub, sizeof sub, "%.250s.", name);
            schema_document(f, k->sub, sub, markdown);
        }
    }
}
