/* tuning.c: parses and writes the file of measured product choices. */
#include "tuning.h"

/* Reads lines: the next line without its newline, copied; false at the end, and for a line that is too long or has no
 * end. */
typedef struct {
    const char *p, *end;
    int line;
    char text[512];
} Lines;
static bool tuning_next(Lines *l) {
    const char *nl = l->p < l->end ? memchr(l->p, '\n', (size_t)(l->end - l->p)) : NULL;
    l->line++;
    if (!nl || (size_t)(nl - l->p) >= sizeof l->text || memchr(l->p, 0, (size_t)(nl - l->p))) return false;
    memcpy(l->text, l->p, (size_t)(nl - l->p));
    l->text[nl - l->p] = 0;
    l->p = nl + 1;
    return true;
}
static bool tuning_wrong(Tuning *t, const Lines *l, const char *where, const char *expected, Err *e) {
    tuning_free(t);
    return err_input(e, "%.150s: line %d: expected %s; measure again (kvsmith bench tune)", where, l->line, expected);
}
/* Read an integer that fills the whole word, and advance to the text after it. */
static bool tuning_number(char **rest, int base, double most, uint64_t *out) {
    char *word = strsep(rest, " "), *end;
    if (!word || !*word || strspn(word, "0123456789abcdef") != strlen(word) || strlen(word) > 16) return false;
    *out = strtoull(word, &end, base);
    return !*end && (double)*out <= most;
}
static bool tuning_seconds(char **rest, double *out) {
    char *word = strsep(rest, " "), *end;
    if (!word || !*word || strspn(word, "0123456789.e+-") != strlen(word)) return false;
    *out = strtod(word, &end);
    return !*end && *out >= 0 && *out < 1e6;
}
static bool tuning_product(TunedProduct *p, char *text) {
    char *rest = text;
    uint64_t v;
    *p = (TunedProduct){.flags = 0};
    for (int i = 0; i < 6; i++) {
        if (!tuning_number(&rest, 10, INT32_MAX, &v) || v == 0) return false;
        p->shape[i] = (int)v;
    }
    if (!tuning_number(&rest, 10, 31, &v)) return false;
    p->flags = (unsigned)v;
    for (int i = 0; i < 3; i++) {
        if (!tuning_number(&rest, 10, 256, &v) || v == 0) return false;
        p->align[i] = (unsigned)v;
    }
    for (int i = 0; i < TUNING_WORDS; i++)
        if (!tuning_number(&rest, 16, 18446744073709551615.0, &p->word[i])) return false;
    return tuning_seconds(&rest, &p->first) && tuning_seconds(&rest, &p->best) && !rest;
}

bool tuning_parse(Tuning *t, const void *bytes, size_t n, const char *where, Err *e) {
    Lines l = {.p = bytes, .end = (const char *)bytes + n};
    uint64_t v;
    char *rest;
    *t = (Tuning){.n = 0};
    if (!tuning_next(&l) || strcmp(l.text, "kvsmith tuning 2"))
        return tuning_wrong(t, &l, where, "'kvsmith tuning 2'", e);
    if (!tuning_next(&l) || strncmp(l.text, "device ", 7) || strlen(l.text) - 7 >= sizeof t->device)
        return tuning_wrong(t, &l, where, "'device NAME'", e);
    strcpy(t->device, l.text + 7);
    if (!tuning_next(&l) || strncmp(l.text, "processors ", 11) || !tuning_number(&(char *){l.text + 11}, 10, 1e6, &v))
        return tuning_wrong(t, &l, where, "'processors N'", e);
    t->processors = (int)v;
    if (!tuning_next(&l) || strncmp(l.text, "library ", 8) || !tuning_number(&(char *){l.text + 8}, 10, 1e12, &v))
        return tuning_wrong(t, &l, where, "'library N'", e);
    t->library = (long long)v;
    for (;;) {
        if (!tuning_next(&l)) return tuning_wrong(t, &l, where, "a product or the end; the file is cut short", e);
        if (!strncmp(l.text, "end ", 4)) break;
        if (strncmp(l.text, "product ", 8) || t->n == TUNING_MAX) return tuning_wrong(t, &l, where, "'product ...'", e);
        t->product = xrealloc(t->product, (size_t)t->n + 1, sizeof *t->product);
        if (!tuning_product(&t->product[t->n], l.text + 8))
            return tuning_wrong(t, &l, where, "'product' with 10 sizes, 8 words and 2 times", e);
        t->n++;
    }
    rest = l.text + 4;
    if (!tuning_number(&rest, 10, TUNING_MAX, &v) || rest || (int)v != t->n || l.p != l.end)
        return tuning_wrong(t, &l, where, "'end' with the number of products, and nothing after it", e);
    return true;
}

char *tuning_text(const Tuning *t) {
    char *all =
        xformat("kvsmith tuning 2\ndevice %s\nprocessors %d\nlibrary %lld\n", t->device, t->processors, t->library);
    for (int i = 0; i < t->n; i++) {
        const TunedProduct *p = &t->product[i];
        const int *s = p->shape;
        const uint64_t *w = p->word;
        char *more =
            xformat("%sproduct %d %d %d %d %d %d %u %u %u %u %llx %llx %llx %llx %llx %llx %llx %llx %.6e %.6e\n", all,
                    s[0], s[1], s[2], s[3], s[4], s[5], p->flags, p->align[0], p->align[1], p->align[2],
                    (unsigned long long)w[0], (unsigned long long)w[1], (unsigned long long)w[2],
                    (unsigned long long)w[3], (unsigned long long)w[4], (unsigned long long)w[5],
                    (unsigned long long)w[6], (unsigned long long)w[7], p->first, p->best);
        free(all);
        all = more;
    }
    char *ended = xformat("%send %d\n", all, t->n);
    free(all);
    return ended;
}
void tuning_free(Tuning *t) {
    free(t->product);
    *t = (Tuning){.n = 0};
}
