/* compare_controls.c: the controls of rows that start from another row and change its layout: the same source, trained
 * on for the same steps at the same rates, as it is. What a row loses against its control is the price of the layout;
 * against the source it would be mixed with what the further steps and the teacher bring. */
#include "model/config/schema.h"
#include "ops/oom.h"
#include "compare.h"

/* ---- what a row sets -----------------------------------------------------------------------------------------------
 */

static bool key_below(const char *key, const char *section) {
    size_t n = strlen(section);
    return !strncmp(key, section, n) && (!key[n] || key[n] == '.');
}
/* A setting of the layout, or of a loss that only the layout has. */
static bool sets_layout(const Node *x) {
    return key_below(x->key, "model") || key_below(x->key, "train.compression") ||
           (!strcmp(x->key, "train") && tree_get(x, "compression"));
}
static bool row_changes(const CompareRow *r) {
    bool changes = r->convert;
    for (int k = 0; r->set && k < r->set->n; k++) changes |= sets_layout(r->set->kid[k]);
    return changes && r->source >= 0;
}

typedef enum {
    SET_ALL,
    SET_UNTAUGHT,
    SET_TEACHER
} Part; /* of `set`: what a control has; without a teacher; only its */
static bool set_has(const CompareRow *r, const Node *x, Part part) {
    const bool teacher = key_below(x->key, "teacher");
    if (part == SET_TEACHER) return teacher;
    /* stages are those of the layout, and the schedules of a row's stages are their own */
    if (sets_layout(x) || !strcmp(x->key, "stages") || (teacher && part == SET_UNTAUGHT)) return false;
    return !(tree_get(r->set, "stages") && !strcmp(x->key, "optim.schedule"));
}
static void set_write(Writer *w, const CompareRow *r, Part part) {
    write_map(w, true);
    for (int k = 0; r->set && k < r->set->n; k++) {
        if (!set_has(r, r->set->kid[k], part)) continue;
        write_name(w, r->set->kid[k]->key);
        write_node(w, r->set->kid[k]);
    }
    write_map_end(w);
}
static bool same_set(const CompareRow *a, const CompareRow *b, Part part) {
    char *text[2];
    for (int i = 0; i < 2; i++) {
        size_t n;
        Writer w = {.f = oom_stream(&text[i], &n)};
        set_write(&w, i ? b : a, part);
        fclose(w.f);
    }
    bool same = !strcmp(text[0], text[1]);
    free(text[0]), free(text[1]);
    return same;
}

/* ---- one control for many rows -------------------------------------------------------------------------------------
 */

typedef struct {
    const CompareRow *of; /* the first row that it serves, whose settings it has */
    int learns;           /* -1: no teacher */
    CompareRow at;        /* its marks alone */
} Control;

static bool same_rates(const CompareRow *a, const CompareRow *b) {
    return a->lrs.n == b->lrs.n && !memcmp(a->lrs.v, b->lrs.v, (size_t)a->lrs.n * sizeof *a->lrs.v);
}
/* `r` was measured where `of` is. */
static bool marks_cover(const CompareRow *r, const CompareRow *of) {
    if (!r->marks.n || !of->marks.n) return r->marks.n == of->marks.n && r->steps == of->steps;
    bool all = r->mark_decay == of->mark_decay;
    for (int m = 0; m < of->marks.n; m++) {
        bool found = false;
        for (int k = 0; k < r->marks.n; k++) found |= r->marks.v[k] == of->marks.v[m];
        all = all && found;
    }
    return all;
}

/* Adds the marks of `of` to those of `at`. False, with `at` unchanged: they do not fit into one chain of runs. */
static bool marks_join(const Compare *c, CompareRow *at, const CompareRow *of) {
    if (marks_cover(at, of)) return true;
    bool percent = of->cfg.optim.warmup.unit == LENGTH_PERCENT && of->cfg.optim.warmup.n > 0;
    if (!at->marks.n || !of->marks.n || at->mark_decay != of->mark_decay || percent) return false;
    CompareRow both = *at;
    for (int m = 0; m < of->marks.n; m++) {
        double v = of->marks.v[m];
        int to = 0;
        while (to < both.marks.n && both.marks.v[to] < v) to++;
        if (to < both.marks.n && both.marks.v[to] == v) continue;
        if (both.marks.n == MARKS_MAX) return false;
        memmove(both.marks.v + to + 1, both.marks.v + to, (size_t)(both.marks.n - to) * sizeof *both.marks.v);
        both.marks.v[to] = v, both.marks.n++;
    }
    if (compare_marks_place(c, &both) >= 0) return false;
    *at = both;
    return true;
}

/* A row of the configuration that is a control of `r` already. -1: none. */
static int control_written(const Compare *c, int n, const CompareRow *r, int learns) {
    for (int i = 0; i < n; i++) {
        const CompareRow *x = &c->row[i];
        if (x->source == r->source && !row_changes(x) && x->learns == learns && same_rates(x, r) && marks_cover(x, r) &&
            (learns < 0 || same_set(x, r, SET_TEACHER)))
            return i;
    }
    return -1;
}

/* The index, among the controls, of that of `r`; it is added unless there is one. */
static int control_made(const Compare *c, Control *list, int *n, const CompareRow *r, int learns) {
    const Part part = learns < 0 ? SET_UNTAUGHT : SET_ALL;
    for (int i = 0; i < *n; i++)
        if (list[i].of->source == r->source && list[i].learns == learns && same_rates(list[i].of, r) &&
            same_set(list[i].of, r, part) && marks_join(c, &list[i].at, r))
            return i;
    CHECK(*n < 2 * ROWS_COMPARED_MAX, "%d controls", *n);
    list[*n] = (Control){.of = r, .learns = learns};
    list[*n].at = (CompareRow){.source = r->source, .marks = r->marks, .mark_decay = r->mark_decay, .steps = r->steps};
    return (*n)++;
}

/* ---- as rows -------------------------------------------------------------------------------------------------------
 */

static void control_name(const Compare *c, const Control *list, int at, char name[64]) {
    const char *kd = list[at].learns < 0 ? "" : "-kd", *source = c->row[list[at].of->source].name;
    int same = 1; /* controls before it that differ in nothing that a name shows */
    for (int i = 0; i < at; i++)
        same += list[i].of->source == list[at].of->source && (list[i].learns < 0) == (list[at].learns < 0);
    for (bool taken = true; taken; same++) {
        char number[16] = "";
        if (same > 1) snprintf(number, sizeof number, "-%d", same);
        snprintf(name, 64, "%.30s-on%s%s", source, kd, number);
        taken = false;
        for (int i = 0; i < c->nrows; i++) taken |= !strcmp(c->row[i].name, name);
    }
}

static void numbers_write(Writer *w, const char *name, const Numbers *x) {
    write_name(w, name);
    write_list(w);
    for (int i = 0; i < x->n; i++) write_item(w), write_number(w, x->v[i]);
    write_list_end(w);
}
static void control_write(const Compare *c, Writer *w, const Control *list, int at) {
    const Control *x = &list[at];
    char name[64];
    control_name(c, list, at, name);
    write_item(w);
    write_map(w, true);
    write_name(w, "name"), write_text(w, name);
    write_name(w, "from"), write_text(w, x->of->from);
    if (x->learns >= 0) write_name(w, "teacher"), write_text(w, c->row[x->learns].name);
    numbers_write(w, "lrs", &x->of->lrs);
    if (x->at.marks.n) {
        numbers_write(w, "marks", &x->at.marks);
        write_name(w, "decay"), write_number(w, x->at.mark_decay);
    } else if (x->of->tokens) {
        write_name(w, "tokens"), write_int(w, x->of->tokens);
    }
    write_name(w, "set");
    set_write(w, x->of, x->learns < 0 ? SET_UNTAUGHT : SET_ALL);
    write_map_end(w);
}

bool compare_controls(Compare *c, Node **out, Err *e) {
    Control *list = xcalloc(2 * ROWS_COMPARED_MAX, sizeof *list);
    int n = 0, rows = c->nrows;
    bool ok = true;
    for (int i = 0; i < rows; i++) c->row[i].reference = -1;
    for (int i = 0; i < rows; i++) {
        CompareRow *r = &c->row[i];
        for (int learns = -1; row_changes(r); learns = r->learns) {
            int at = control_written(c, rows, r, learns);
            if (at < 0 && c->controls) at = rows + control_made(c, list, &n, r, learns);
            if (learns == r->learns) r->reference = at;
            if (learns == r->learns) break;
        }
    }
    if (rows + n > ROWS_COMPARED_MAX)
        ok = err_input(e, "rows: %d rows and their %d controls, at most %d in all; drop rows or set controls=false",
                       rows, n, ROWS_COMPARED_MAX);
    *out = NULL;
    if (ok && n) {
        char *text = NULL;
        size_t size;
        Writer w = {.f = oom_stream(&text, &size)};
        write_list(&w);
        for (int i = 0; i < n; i++) control_write(c, &w, list, i);
        write_list_end(&w);
        fclose(w.f);
        *out = tree_yaml(text, size, "a control", e);
        ok = *out != NULL;
        free(text);
    }
    free(list);
    return ok;
}
