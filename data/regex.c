/* regex.c: one pass over a pattern, with a recursion for groups and one for classes. */
#include "regex.h"

enum { DEPTH_MAX = 100 };
typedef struct {
    const char *pattern, *p, *where;
    PatternKind kind;
    Buf *out;
    bool fold; /* inside (?i: */
    Err *e;
} Regex;

static bool regex_no(const Regex *r, const char *what) {
    return err_input(r->e, "%s: the pattern '%.60s' has %.60s, which is not supported", r->where, r->pattern, what);
}
static void regex_put(Regex *r, const char *s) { buf_put(r->out, s, strlen(s)); }
/* Put `head` before the output from `at` on, and `tail` after it. */
static void regex_wrap(Regex *r, size_t at, const char *head, const char *tail) {
    size_t n = strlen(head), len = r->out->n - at;
    buf_put(r->out, head, n);
    memmove(r->out->at + at + n, r->out->at + at, len);
    memcpy(r->out->at + at, head, n);
    regex_put(r, tail);
}
static bool regex_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool regex_digit(char c) { return c >= '0' && c <= '9'; }

/* ---- properties and escapes -------------------------------------------------------------------------------------- */

/* \p{Name} or \P{Name}; p is after the P. */
static bool regex_property(Regex *r, char which) {
    static const char categories[] =
        " C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S "
        "Sc Sk Sm So Z Zl Zp Zs ";
    static const char *const plain[] = {"Any", "Alphabetic", "White_Space", "Uppercase", "Lowercase", NULL};
    char name[48], text[80];
    bool negative = which == 'P';
    if (*r->p != '{') {
        if (r->kind == PATTERN_ONIGURUMA || !regex_letter(*r->p)) return regex_no(r, "\\p without braces");
        snprintf(name, sizeof name, "%c", *r->p++);
    } else {
        const char *end = strchr(++r->p, '}');
        if (*r->p == '^') negative = !negative, r->p++;
        if (!end || end - r->p >= (ptrdiff_t)sizeof name || end == r->p) return regex_no(r, "a malformed property");
        snprintf(name, sizeof name, "%.*s", (int)(end - r->p), r->p);
        r->p = end + 1;
        for (const char *c = name; *c; c++)
            if (!regex_letter(*c) && *c != '_') return regex_no(r, "a malformed property");
    }
    snprintf(text, sizeof text, " %s ", name);
    bool own = strstr(categories, text) != NULL;
    for (int i = 0; plain[i]; i++) own |= !strcmp(name, plain[i]);
    snprintf(text, sizeof text, "\\%c{%s%s}", negative ? 'P' : 'p', own ? "" : "sc:", name);
    regex_put(r, text);
    return true;
}

/* n hex digits at s as a number; -1: they are not. */
static long regex_hex(const char *s, int n) {
    char text[9] = "", *end;
    for (int i = 0; i < n && s[i]; i++) text[i] = s[i];
    long v = strtol(text, &end, 16);
    return end == text + n && text[0] != '-' && text[0] != '+' && text[0] != ' ' ? v : -1;
}

/* \x{H...}, \xHH, \uHHHH as \x{H}; p is at the x or u. */
static bool regex_code(Regex *r) {
    char text[24];
    int n = *r->p == 'u' ? 4 : 2, brace = r->p[1] == '{';
    const char *end = brace ? strchr(r->p, '}') : NULL;
    if (brace && end) n = (int)(end - r->p) - 2;
    long v = (brace && !end) || n < 1 || n > 6 ? -1 : regex_hex(r->p + 1 + brace, n);
    /* in Oniguruma \x80 to \xFF are bytes of UTF-8 */
    if (v < 0 || v > 0x10FFFF || (*r->p == 'x' && !brace && v > 0x7F && r->kind == PATTERN_ONIGURUMA))
        return regex_no(r, "a character code of unknown meaning");
    r->p += 1 + 2 * brace + n;
    snprintf(text, sizeof text, "\\x{%lX}", (unsigned long)v);
    regex_put(r, text);
    return true;
}

#define WORD        "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_JOINED WORD "\\x{200C}\\x{200D}"
/* An escape; p is at the backslash. *nested: inside a class, what was put is a class of its own. */
static bool regex_escape(Regex *r, bool in_class, bool *nested) {
    char c = *++r->p, text[64];
    const char *word = r->kind == PATTERN_ONIGURUMA ? WORD : WORD_JOINED;
    *nested = false;
    switch (c) {
    case 'p':
    case 'P': r->p++; return regex_property(r, c);
    case 'x':
    case 'u': return regex_code(r);
    case 's': regex_put(r, "\\p{White_Space}"); break;
    case 'S': regex_put(r, "\\P{White_Space}"); break;
    case 'd': regex_put(r, "\\p{Nd}"); break;
    case 'D': regex_put(r, "\\P{Nd}"); break;
    case 'w':
        snprintf(text, sizeof text, in_class ? "%s" : "[%s]", word);
        regex_put(r, text);
        break;
    case 'W':
        snprintf(text, sizeof text, "[^%s]", word);
        regex_put(r, text);
        *nested = true;
        break;
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a': regex_put(r, (char[]){'\\', c, 0}); break;
    case 'v': regex_put(r, "\\x0B"); break; /* PCRE2's \v is a class */
    case 'A':
    case 'z':
        if (in_class) return regex_no(r, "an anchor in a class");
        regex_put(r, (char[]){'\\', c, 0});
        break;
    default:
        if (c && !regex_letter(c) && !regex_digit(c) && (unsigned char)c < 0x80) {
            regex_put(r, (char[]){'\\', c, 0});
            break;
        }
        snprintf(text, sizeof text, "\\%c", c && (unsigned char)c < 0x80 ? c : ' ');
        return regex_no(r, text);
    }
    r->p++;
    return true;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static bool regex_class(Regex *r, int depth);

/* One side of &&: everything up to && or the end of the class, as one expression. *plain: it is a class [...]. */
static bool regex_operand(Regex *r, int depth, bool *plain) {
    Buf simple = {0}, nested = {0}, *out = r->out;
    bool ok = true;
    while (ok && *r->p && *r->p != ']' && !(r->p[0] == '&' && r->p[1] == '&')) {
        bool apart = false;
        Buf one = {0};
        r->out = &one;
        if (r->p[0] == '[' && r->p[1] == ':') {
            ok = regex_no(r, "a POSIX class");
        } else if (*r->p == '[') {
            ok = regex_class(r, depth + 1);
            apart = true;
        } else if (*r->p == '\\') {
            ok = regex_escape(r, true, &apart);
        } else if (r->kind == PATTERN_RUST && (!strncmp(r->p, "--", 2) || !strncmp(r->p, "~~", 2))) {
            ok = regex_no(r, "a difference of classes");
        } else {
            if (*r->p == '^') regex_put(r, "\\");
            buf_put(&one, r->p++, 1);
        }
        if (apart && nested.n) buf_put(&nested, "|", 1);
        buf_put(apart ? &nested : &simple, one.at, one.n);
        buf_free(&one);
    }
    r->out = out;
    if (ok && !simple.n && !nested.n) ok = regex_no(r, "an empty class");
    if (ok) {
        *plain = !nested.n;
        if (nested.n) regex_put(r, "(?:");
        if (simple.n) {
            regex_put(r, "[");
            buf_put(out, simple.at, simple.n);
            regex_put(r, "]");
        }
        if (simple.n && nested.n) regex_put(r, "|");
        buf_put(out, nested.at, nested.n);
        if (nested.n) regex_put(r, ")");
    }
    buf_free(&simple), buf_free(&nested);
    return ok;
}

/* A class as one atom; p is at its bracket. */
static bool regex_class(Regex *r, int depth) {
    if (depth > DEPTH_MAX) return regex_no(r, "classes nested too deep");
    size_t at = r->out->n;
    bool plain, negative = *++r->p == '^', several = false;
    if (negative) r->p++;
    for (;;) {
        size_t from = r->out->n;
        if (!regex_operand(r, depth, &plain)) return false;
        if (*r->p != '&') break;
        r->p += 2;
        several = true;
        regex_wrap(r, from, "(?=", ")");
    }
    if (*r->p != ']') return regex_no(r, "a class without an end");
    r->p++;
    if (several) regex_wrap(r, at, "(?:", ")");
    if (!negative) return true;
    if (plain && !several) {
        regex_put(r, "^"); /* room for it; then [^ */
        memmove(r->out->at + at + 2, r->out->at + at + 1, r->out->n - at - 2);
        r->out->at[at + 1] = '^';
    } else {
        regex_wrap(r, at, "(?:(?!", ")(?s:.))");
    }
    return true;
}

/* ---- groups and repetition --------------------------------------------------------------------------------------- */

/* {n}, {n,}, {n,m} or {,m} at p; false: a brace that is a character. */
static bool regex_counted(const char *p, int *len, bool *comma) {
    int low = 0, high = 0, n = 0;
    sscanf(p, "{%*[0-9]%n", &low);
    n = low ? low : 1;
    *comma = p[n] == ',';
    if (*comma) {
        n++;
        sscanf(p + n, "%*[0-9]%n", &high);
        n += high;
    }
    *len = n + 1;
    return p[n] == '}' && (low || high);
}

/* The repetitions after the atom that begins at `at` in the output. */
static bool regex_repeat(Regex *r, size_t at) {
    int len;
    bool comma;
    for (;;) {
        if (*r->p && strchr("*+?", *r->p)) {
            buf_put(r->out, r->p++, 1);
            if (*r->p == '?' || *r->p == '+') buf_put(r->out, r->p++, 1);
        } else if (*r->p == '{' && regex_counted(r->p, &len, &comma)) {
            if (r->p[1] == ',') return regex_no(r, "a repetition without its least number");
            buf_put(r->out, r->p, (size_t)len);
            r->p += len;
            if (*r->p == '?') {
                if (!comma) return regex_no(r, "{n}?, which libraries read in different ways,");
                buf_put(r->out, r->p++, 1);
            } else if (*r->p == '+' && r->kind == PATTERN_ONIGURUMA) {
                regex_wrap(r, at, "(?:", ")"); /* any number of repetitions; elsewhere it is possessive */
                continue;
            } else if (*r->p == '+') {
                buf_put(r->out, r->p++, 1);
            }
        } else {
            return true;
        }
    }
}

/* Libraries differ about letters that together are one folded character. */
static bool regex_folds(const Regex *r, const char *p) {
    static const char *const pair[] = {"ss", "st", "ff", "fi", "fl"};
    if (!r->fold) return false;
    for (int i = 0; i < 5; i++)
        if (!strncasecmp(p, pair[i], 2)) return true;
    return false;
}

/* Everything up to the end of the group that p is in. */
static bool regex_group(Regex *r, int depth) {
    static const char *const opener[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:", NULL};
    if (depth > DEPTH_MAX) return regex_no(r, "groups nested too deep");
    while (*r->p && *r->p != ')') {
        size_t at = r->out->n;
        bool ok = true, nested, rust = r->kind == PATTERN_RUST;
        if (*r->p == '(') {
            bool fold = r->fold;
            const char *open = r->p[1] == '?' ? NULL : "(";
            if (!strncmp(r->p, "(?i)", 4) && r->p == r->pattern) {
                regex_put(r, "(?i)");
                r->p += 4;
                r->fold = true;
                continue;
            }
            for (int i = 0; !open && opener[i]; i++)
                if (!strncmp(r->p, opener[i], strlen(opener[i]))) open = opener[i];
            if (!open || r->p[1] == '*') return regex_no(r, "a group of unknown kind");
            if (strchr(open, 'i')) r->fold = !strchr(open, '-');
            regex_put(r, open);
            r->p += strlen(open);
            ok = regex_group(r, depth + 1);
            if (ok && *r->p != ')') return regex_no(r, "a group without an end");
            regex_put(r, ")");
            r->p++;
            r->fold = fold;
        } else if (*r->p == '[') {
            ok = regex_class(r, 0);
        } else if (*r->p == '\\') {
            ok = regex_escape(r, false, &nested);
        } else if (*r->p == '^' || *r->p == '$') { /* of a line, of the text */
            regex_put(r, *r->p == '^' ? (rust ? "\\A" : "(?m:^)") : rust ? "\\z" : "(?m:$)");
            r->p++;
        } else if (*r->p == '|') {
            buf_put(r->out, r->p++, 1);
            continue;
        } else if (strchr("*+?", *r->p)) {
            return regex_no(r, "a repetition of nothing");
        } else if (regex_folds(r, r->p)) {
            return regex_no(r, "letters without case that fold to one character");
        } else {
            if (*r->p == '{') regex_put(r, "\\");
            do buf_put(r->out, r->p++, 1);
            while (((unsigned char)*r->p & 0xC0) == 0x80);
        }
        if (!ok || !regex_repeat(r, at)) return false;
    }
    return true;
}

bool regex_translate(const char *pattern, PatternKind kind, const char *where, Buf *out, Err *e) {
    Regex r = {.pattern = pattern, .p = pattern, .where = where, .kind = kind, .out = out, .e = e};
    if (!regex_group(&r, 0)) return false;
    if (*r.p) return regex_no(&r, "a closing bracket without a group");
    buf_put(out, "", 1);
    return true;
}
