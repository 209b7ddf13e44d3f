/* pretoken.c: the cut of text into pieces by PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "pretoken.h"
#include <pcre2.h>
#include <utf8proc.h>
#include "ops/oom.h"
#include "regex.h"

const char PATTERN_GPT2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char PATTERN_LLAMA3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                              "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char PATTERN_QWEN2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                             "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static size_t ascii_bytes(const char *s, size_t n) {
    size_t i = 0;
    while (i < n && (unsigned char)s[i] < 0x80) i++;
    return i;
}
size_t utf8_bytes(const char *s, size_t n) {
    for (size_t i = 0;;) {
        i += ascii_bytes(s + i, n - i);
        utf8proc_int32_t c;
        utf8proc_ssize_t k =
            i < n ? utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)zmin(n - i, 4), &c) : 0;
        if (k <= 0) return i;
        i += (size_t)k;
    }
}
struct Cutter {
    pcre2_code *code;
};
struct CutState {
    const pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    const char *s; /* the text of the last call; its bytes up to `good` are UTF-8 */
    size_t n, good;
    size_t from, to; /* a match that was found but not yet reached; none: to 0 */
    bool matched, failed;
};

Cutter *cutter_open(const char *pattern, PatternKind kind, const char *where, Err *e) {
    Buf own = {0};
    int code = 0;
    size_t at = 0;
    Cutter *c = NULL;
    if (regex_translate(pattern, kind, where, &own, e)) {
        pcre2_compile_context *context = pcre2_compile_context_create(NULL);
        oom_check(context);
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        c = xcalloc(1, sizeof *c);
        c->code = pcre2_compile((PCRE2_SPTR)own.at, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, context);
        pcre2_compile_context_free(context);
        if (!c->code && code == PCRE2_ERROR_HEAP_FAILED) oom_exit(NULL);
        if (!c->code) {
            char why[128] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            err_input(e, "%s: cannot compile the pattern '%.80s': %.100s", where, pattern, why);
            free(c);
            c = NULL;
        } else {
            pcre2_jit_compile(c->code, PCRE2_JIT_COMPLETE); /* without JIT matching is slower, with the same results */
        }
    }
    buf_free(&own);
    return c;
}
void cutter_close(Cutter *c) {
    if (c) pcre2_code_free(c->code);
    free(c);
}
bool cutter_empty(const Cutter *c) {
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(c->code, NULL);
    oom_check(m);
    int k = pcre2_match(c->code, (PCRE2_SPTR) "", 0, 0, 0, m, NULL);
    pcre2_match_data_free(m);
    return k >= 0;
}
/* Limits of one match. A run of blanks costs some steps for each of its bytes. */
enum { STEPS_MAX = 100000000, HEAP_KIB_MAX = 1 << 20 };
CutState *cut_state(const Cutter *c) {
    CutState *s = xcalloc(1, sizeof *s);
    s->code = c->code;
    s->match = pcre2_match_data_create_from_pattern(c->code, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(1 << 15, 1 << 25, NULL); /* NULL without a JIT compiler */
    oom_check(s->match), oom_check(s->context);
    pcre2_set_match_limit(s->context, STEPS_MAX); /* a hostile pattern would run for ever */
    pcre2_set_depth_limit(s->context, STEPS_MAX);
    pcre2_set_heap_limit(s->context, HEAP_KIB_MAX);
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}
void cut_state_free(CutState *s) {
    if (!s) return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    if (s->stack) pcre2_jit_stack_free(s->stack);
    free(s);
}

/* The next match at `at` or later in n bytes of UTF-8; false: none. */
static bool pretoken_match(CutState *c, const char *s, size_t n, size_t at, size_t *from, size_t *to) {
    while (at < n) {
        int k = pcre2_match(c->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, c->match, c->context);
        if (k == PCRE2_ERROR_JIT_STACKLIMIT)
            k = pcre2_match(c->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, c->match, c->context);
        if (k == PCRE2_ERROR_NOMEMORY) oom_exit(NULL);
        c->failed = k <= 0 && k != PCRE2_ERROR_NOMATCH;
        if (k <= 0) return false;
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(c->match);
        *from = v[0], *to = v[1];
        if (*to > *from) return true;
        for (at = *to + 1; at < n && ((unsigned char)s[at] & 0xC0) == 0x80;) at++; /* an empty match cuts nothing */
    }
    return false;
}

size_t cut_next(CutState *c, const char *s, size_t n, size_t from) {
    c->matched = false;
    if (c->s != s || c->n != n || from == 0) c->s = s, c->n = n, c->good = 0, c->to = 0;
    if (from == 0) c->failed = false;
    if (from >= c->good) {
        size_t k = utf8_bytes(s + from, n - from);
        while (k == 0 && ++from < n && !utf8_bytes(s + from, zmin(4, n - from))) continue;
        if (k == 0) return from;
        c->good = from + k;
        c->to = 0;
    }
    if (c->to && c->from == from) { /* the stretch before this match was returned last time */
        size_t to = c->to;
        c->to = 0;
        c->matched = true;
        return to;
    }
    if (!pretoken_match(c, s, c->good, from, &c->from, &c->to)) return c->good;
    if (c->from > from) return c->from;
    size_t to = c->to;
    c->to = 0;
    c->matched = true;
    return to;
}
bool cut_matched(const CutState *c) { return c->matched; }
bool cut_failed(const CutState *c) { return c->failed; }
