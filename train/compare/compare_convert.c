/* compare_convert.c: rows that start from a conversion of another row's model, and the marks at which they are
 * measured. The conversion itself is `kvsmith convert` in a child process. */
#include <errno.h>
#include <ftw.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "model/config/schema.h"
#include "ops/file.h"
#include "compare.h"
#include "compare_child.h"

enum { ARGS_MAX = WORDS_MAX + 24 };

/* ---- settings ------------------------------------------------------------------------------------------------------
 */

/* Writes key=value as convert reads it: a scalar, or a list of them. */
static bool compare_convert_word_of(const Node *x, const char *path, char **word, Err *e) {
    char text[512] = "";
    size_t n = 0;
    if (x->type == NODE_MAP) return node_refuse(x, path, e, "convert: %.40s: expected a value, got a map", x->key);
    for (int i = 0; x->type == NODE_LIST && i < x->n; i++) {
        if (x->kid[i]->type != NODE_SCALAR || n + strlen(x->kid[i]->text) + 4 > sizeof text)
            return node_refuse(x, path, e, "convert: %.40s: expected a short list of values", x->key);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? ", " : "", x->kid[i]->text);
    }
    *word = x->type == NODE_LIST ? xformat("%s=[%s]", x->key, text) : xformat("%s=%s", x->key, x->text);
    return true;
}

bool compare_convert_read(const Compare *c, CompareRow *r, const Node *row, const char *path, Err *e) {
    const Node *map = tree_get(row, "convert"), *train = tree_get(c->base, "data");
    if (!map || node_null(map)) return true;
    if (map->type != NODE_MAP)
        return node_refuse(map, path, e, "convert: expected a map {to: LAYOUT, ...}, got %s", node_type(map));
    if (r->source < 0) return node_refuse(map, path, e, "convert: needs from, the row whose model is converted");
    for (int i = 0; i < map->n; i++) {
        const Node *x = map->kid[i];
        const struct {
            const char *name;
            char *to;
            size_t n;
        } own[] = {{"to", r->to, sizeof r->to},
                   {"calib", r->calib, sizeof r->calib},
                   {"calib_tokens", r->calib_tokens, sizeof r->calib_tokens}};
        bool taken = false;
        for (size_t k = 0; k < sizeof own / sizeof *own; k++) {
            if (strcmp(x->key, own[k].name)) continue;
            if (x->type != NODE_SCALAR || !*x->text || strlen(x->text) >= own[k].n)
                return node_refuse(x, path, e, "convert: %s: expected a short text", x->key);
            memcpy(own[k].to, x->text, strlen(x->text) + 1);
            taken = true;
        }
        if (taken) continue;
        if (r->nword == WORDS_MAX) return node_refuse(x, path, e, "convert: more than %d settings", WORDS_MAX);
        if (!compare_convert_word_of(x, path, &r->word[r->nword], e)) return false;
        r->nword++;
    }
    if (!*r->to) return node_refuse(map, path, e, "convert: to: required, but not given: the layout");
    r->convert = map;
    train = train ? tree_get(train, "train") : NULL;
    if (train && train->type == NODE_LIST && train->n) train = train->kid[0];
    if (train && train->type == NODE_MAP) train = tree_get(train, "path");
    if (!*r->calib && train && train->type == NODE_SCALAR && strlen(train->text) < sizeof r->calib)
        memcpy(r->calib, train->text, strlen(train->text) + 1);
    return true;
}

int compare_marks_place(const Compare *c, CompareRow *r) {
    const CompareRow *root = &c->row[r->source];
    while (root->source >= 0) root = &c->row[root->source];
    for (int m = 0; m < r->marks.n; m++) {
        int64_t n = (int64_t)fmax(1, floor(r->marks.v[m] / 100 * (double)root->steps + 0.5));
        int64_t decay = (int64_t)fmax(1, floor(r->mark_decay / 100 * (double)n + 0.5));
        r->mark_steps[m] = n;
        r->mark_hold[m] = n - decay;
        bool apart =
            !m || (n > r->mark_steps[m - 1] && (r->mark_hold[m] > r->mark_hold[m - 1] || !r->mark_hold[m - 1]));
        if (!apart) return m;
    }
    return -1;
}

bool compare_marks_read(const Compare *c, CompareRow *r, const Node *row, const char *path, Err *e) {
    const Node *at = tree_get(row, "marks");
    if (r->source < 0)
        return node_refuse(at, path, e, "marks: needs from, the row whose steps the percentages refer to");
    if (r->tokens) return node_refuse(at, path, e, "marks and tokens both set the length of training; give one");
    if (r->marks.n > MARKS_MAX)
        return node_refuse(at, path, e, "marks: expected at most %d numbers, got %d", MARKS_MAX, r->marks.n);
    if (r->lrs.n != 1)
        return node_refuse(at, path, e, "marks: a row with marks has one learning rate; give it lrs of one number");
    const int m = compare_marks_place(c, r);
    const CompareRow *root = &c->row[r->source];
    while (root->source >= 0) root = &c->row[root->source];
    if (m >= 0)
        return node_refuse(at, path, e,
                           "marks: expected each mark to be at least one step after the last; of the %lld steps of "
                           "%s, %g %% and %g %% are %lld and %lld",
                           (long long)root->steps, root->name, r->marks.v[m - 1], r->marks.v[m],
                           (long long)r->mark_steps[m - 1], (long long)r->mark_steps[m]);
    r->steps = r->mark_steps[r->marks.n - 1];
    return true;
}

/* kvsmith convert [--calib ..] .. -- words */
static int compare_convert_arguments(const CompareRow *r, char *argv[ARGS_MAX]) {
    int n = 0;
    argv[n++] = "kvsmith", argv[n++] = "convert", argv[n++] = "--json";
    argv[n++] = "--to", argv[n++] = (char *)r->to;
    if (*r->calib) argv[n++] = "--calib", argv[n++] = (char *)r->calib;
    if (*r->calib_tokens) argv[n++] = "--calib-tokens", argv[n++] = (char *)r->calib_tokens;
    return n;
}
static int compare_convert_words(const CompareRow *r, char *argv[ARGS_MAX], int n) {
    for (int i = 0; i < r->nword; i++) argv[n++] = r->word[i];
    argv[n] = NULL;
    return n;
}

Node *compare_convert_plan(const CompareRow *r, const Config *from, const char *path, Err *e) {
    char *argv[ARGS_MAX], *text = config_text(from), name[64];
    int n = compare_convert_arguments(r, argv), status = 0,
        fd = memfd_create("settings", 0); /* the child inherits it */
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    bool ok = fd >= 0 && TEMP_FAILURE_RETRY(write(fd, text, strlen(text))) == (ssize_t)strlen(text);
    free(text);
    if (!ok) {
        if (fd >= 0) close(fd);
        err_runtime(e, "the settings of row %s cannot be passed to kvsmith convert", r->name);
        return NULL;
    }
    argv[n++] = "--plan", argv[n++] = "--", argv[n++] = name;
    compare_convert_words(r, argv, n);
    Err why = {0};
    char *said = child_output(argv, &status, &why);
    close(fd);
    if (!said && status) exit(status); /* nothing has begun */
    if (!said && why.status == EXIT_INPUT) node_refuse(r->convert, path, e, "convert: %s", why.msg);
    if (!said && why.status != EXIT_INPUT) err_runtime(e, "%s", why.msg);
    Node *all = said ? tree_json(said, strlen(said), "what kvsmith convert says", e) : NULL,
         *model = all && tree_get(all, "model") ? tree_copy(tree_get(all, "model")) : NULL;
    if (said && !model && !e->status) err_runtime(e, "kvsmith convert --plan printed no model");
    tree_free(all);
    free(said);
    return model;
}

/* ---- the conversion ------------------------------------------------------------------------------------------------
 */

char *compare_converted(const Compare *c, const CompareRow *r, int64_t seed) {
    return xformat("%s/%s/converted-seed-%lld", c->dir, r->name, (long long)seed);
}

static char *record_path(const Compare *c, const CompareRow *r, int64_t seed) {
    return xformat("%s/%s/converted-seed-%lld.json", c->dir, r->name, (long long)seed);
}
json_t *compare_convert_record(const Compare *c, const CompareRow *r, int64_t seed) {
    Err ignored = {0};
    char *path = record_path(c, r, seed);
    json_t *j = r->convert ? json_read(path, &ignored) : NULL;
    free(path);
    return j;
}

static int unlink_entry(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

/* The inputs of the conversion, to decide whether an existing one was made from them. */
static json_t *made_of(const Compare *c, const CompareRow *r, const char *src) {
    char *argv[ARGS_MAX];
    int n = compare_convert_words(r, argv, compare_convert_arguments(r, argv));
    json_t *list = json_array();
    for (int i = 2; i < n; i++) json_array_append_new(list, json_string(argv[i]));
    return json_pack("{s:s, s:s, s:o}", "src", src, "text_hash", c->text_hash, "arguments", list);
}

bool compare_convert(const Compare *c, const CompareRow *r, int64_t seed, const char *run, int *status, Err *e) {
    char *dst = compare_converted(c, r, seed), *path = record_path(c, r, seed), *src = xformat("%s/last", run),
         *folder = xformat("%s/%s", c->dir, r->name), *argv[ARGS_MAX];
    json_t *of = made_of(c, r, src), *old = compare_convert_record(c, r, seed);
    bool ok = true, there = old && file_exists(dst, "config.json", e);
    struct stat st;
    ok = !e->status;
    *status = 0;
    if (ok && there && !json_equal(json_object_get(old, "of"), of))
        ok = err_input(
            e, "%.150s was converted with other settings or from another run; remove %.60s or choose another dir", dst,
            r->name);
    if (ok && !there) {
        char threads[16];
        int n = compare_convert_arguments(r, argv);
        snprintf(threads, sizeof threads, "%d", c->threads);
        argv[n++] = "--threads", argv[n++] = threads, argv[n++] = "--isa", argv[n++] = (char *)c->isa;
        argv[n++] = "--", argv[n++] = src, argv[n++] = dst;
        compare_convert_words(r, argv, n);
        /* one without a record: the process was killed after it, before its output was kept */
        ok = file_folders(folder, "folder", NULL, e);
        if (ok && file_look(dst, &st, e) && nftw(dst, unlink_entry, 16, FTW_DEPTH | FTW_PHYS))
            ok = err_runtime(e, "cannot remove %.200s", dst);
        ok = ok && !e->status;
        char *said = ok ? child_output(argv, status, e) : NULL;
        if (ok && !*status) ok = said != NULL;
        if (said) {
            json_t *report = json_parse(said, strlen(said), "what kvsmith convert says", NULL, e),
                   *j = report ? json_pack("{s:O, s:o}", "of", of, "report", report) : NULL;
            ok = j && json_write(path, j, e);
            json_decref(j);
        }
        free(said);
    }
    json_decref(of);
    json_decref(old);
    free(dst), free(path), free(src), free(folder);
    return ok;
}
