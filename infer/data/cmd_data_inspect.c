/* kvsmith data inspect: what a set of token ids holds; every number in it is looked at. */
#include "data/indexed.h"
#include "cmd_data.h"
#include "infer/engine.h"
#include "infer/text.h"

enum { BINS = 48, FIRST_MAX = 64 };
typedef struct {
    Inputs in;
    const char *tokenizer, *eot;
    int64_t first;
} Args;
enum { OPT_TOKENIZER = 0x100, OPT_EOT, OPT_FIRST };

static bool cmd_data_inspect_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    switch (key) {
    case CLI_ARG: return inputs_add(&a->in, arg, e);
    case OPT_TOKENIZER: a->tokenizer = arg; return true;
    case OPT_EOT: a->eot = arg; return true;
    case OPT_FIRST: return cli_int(arg, "--first", 0, FIRST_MAX, &a->first, e);
    }
    CHECK(false, "option %d", key);
    return false;
}

typedef struct {
    Set set;
    int64_t documents, shortest, longest; /* documents -1: not known */
    int64_t bin[BINS];                    /* documents of 2^i to 2^(i+1) - 1 tokens; of none: empty */
    int64_t empty, eots, low, high;
} Seen;

static void see_document(Seen *s, int64_t n) {
    int i = 0;
    s->shortest = s->documents ? (n < s->shortest ? n : s->shortest) : n;
    s->longest = s->documents ? (n > s->longest ? n : s->longest) : n;
    s->documents++;
    while (i + 1 < BINS && n >> (i + 1)) i++;
    if (n)
        s->bin[i]++;
    else
        s->empty++;
}

/* Ids, and documents if they can be separated: by the index, else by end-of-text, which is before each document or, if
 * the last id is one and the first is not, after each. */
static bool cmd_data_inspect_scan(Seen *s, const Tokenizer *t, Err *e) {
    const Tokens *all = &s->set.all;
    int eot = t ? t->eot : -1;
    int64_t begin = 0;
    bool behind = all->n && token_at(all, all->n - 1) == eot && token_at(all, 0) != eot;
    s->low = INT64_MAX, s->high = INT64_MIN;
    for (size_t i = 0; i < all->n; i++) {
        int64_t id = token_at(all, i);
        s->low = id < s->low ? id : s->low;
        s->high = id > s->high ? id : s->high;
        if (id < 0 || (t && id >= t->vocab))
            return err_input(e, "%s: token %zu is id %lld, expected 0 to %d", all->name, i, (long long)id,
                             t ? t->vocab - 1 : INT32_MAX);
        if (eot < 0 || id != eot) continue;
        s->eots++;
        int64_t border = (int64_t)i + behind;
        if (!all->docs && border > begin) see_document(s, border - begin);
        begin = border;
    }
    if (all->docs)
        for (size_t d = 0; d < all->docs->ndoc; d++)
            see_document(s, (int64_t)(docs_start(all->docs, d + 1) - docs_start(all->docs, d)));
    else if (eot >= 0 && !behind)
        see_document(s, (int64_t)all->n - begin);
    if (!all->docs && eot < 0) s->documents = -1;
    return true;
}

static char *first_text(const Seen *s, const Tokenizer *t, int64_t first, size_t *n) {
    Text text = {0};
    for (size_t i = 0; t && i < zmin((size_t)first, s->set.all.n); i++) {
        size_t k;
        const char *piece = tokenizer_decode(t, (int)token_at(&s->set.all, i), &k);
        text_push(&text, piece, k);
    }
    char *clean = utf8_clean(text.bytes, text.n, n);
    text_free(&text);
    return clean;
}

static json_t *seen_json(const Seen *s, const Tokenizer *t, int64_t first) {
    const Tokens *all = &s->set.all;
    json_t *lengths = json_array(), *ids = json_array();
    size_t n;
    char *text = first_text(s, t, first, &n);
    if (s->empty)
        json_array_append_new(lengths,
                              json_pack("{s:i, s:i, s:I}", "from", 0, "to", 0, "documents", (json_int_t)s->empty));
    for (int i = 0; i < BINS; i++)
        if (s->bin[i])
            json_array_append_new(lengths, json_pack("{s:I, s:I, s:I}", "from", (json_int_t)1 << i, "to",
                                                     ((json_int_t)2 << i) - 1, "documents", (json_int_t)s->bin[i]));
    for (size_t i = 0; i < zmin((size_t)first, all->n); i++) json_array_append_new(ids, json_integer(token_at(all, i)));
    json_t *j = json_pack("{s:s, s:s, s:s, s:I, s:o, s:o, s:I, s:I, s:o}", "path", s->set.path, "kind",
                          set_kind_name(s->set.kind), "dtype", id_name(all->type), "tokens", (json_int_t)all->n,
                          "documents", s->documents < 0 ? json_null() : json_integer(s->documents), "lengths", lengths,
                          "lowest_id", (json_int_t)s->low, "highest_id", (json_int_t)s->high, "first", ids);
    if (j && t) {
        json_object_set_new(j, "end_of_text", json_integer(s->eots));
        json_object_set_new(j, "text", json_stringn(text, n));
    }
    free(text);
    return j;
}

static void seen_print(const Seen *s, const Tokenizer *t, int64_t first) {
    const Tokens *all = &s->set.all;
    printf("%s: %s, %s, %zu tokens, ids %lld to %lld\n", s->set.path, set_kind_name(s->set.kind), id_name(all->type),
           all->n, (long long)s->low, (long long)s->high);
    if (s->documents < 0) {
        printf("  documents are unknown without --tokenizer, which names the token that separates them\n");
    } else {
        printf("  %lld documents of %lld to %lld tokens, mean %.1f", (long long)s->documents, (long long)s->shortest,
               (long long)s->longest, s->documents ? (double)all->n / (double)s->documents : 0.0);
        if (t) printf(", %lld end-of-text", (long long)s->eots);
        printf("\n");
        if (s->empty) printf("  %12s %12s  %lld\n", "", "0", (long long)s->empty);
        for (int i = 0; i < BINS; i++)
            if (s->bin[i])
                printf("  %12lld to %9lld  %lld\n", (long long)1 << i, ((long long)2 << i) - 1, (long long)s->bin[i]);
    }
    if (!first) return;
    printf("  first");
    for (size_t i = 0; i < zmin((size_t)first, all->n); i++) printf(" %lld", (long long)token_at(all, i));
    printf("\n");
    size_t n;
    char *text = first_text(s, t, first, &n);
    for (size_t i = 0; i < n; i++) /* what a terminal would obey is not shown */
        if ((unsigned char)text[i] < 32 || text[i] == 127) text[i] = text[i] == '\n' || text[i] == '\t' ? ' ' : '?';
    if (t) printf("  text  %.*s\n", (int)n, text);
    free(text);
}

static bool inspect_one(const char *path, const Args *a, const Tokenizer *t, json_t *list, Err *e) {
    Seen s = {0};
    SetKind kind;
    if (!set_kind(path, &kind, e)) return false;
    if (kind == SET_TEXT)
        return err_input(e, "%s: expected a Megatron dataset (.bin with .idx) or an llm.c .bin, found text", path);
    if (!set_open(&s.set, path, kind, e)) return false;
    bool ok = cmd_data_inspect_scan(&s, t, e);
    if (ok && list)
        ok = !json_array_append_new(list, seen_json(&s, t, a->first)) ||
             err_runtime(e, "%s: the result cannot be written as JSON", path);
    else if (ok)
        seen_print(&s, t, a->first);
    set_close(&s.set);
    return ok;
}

static bool cmd_data_inspect_inspect(const Args *a, const Cli *cli, Err *e) {
    Tokenizer t = {0};
    if (a->eot && !a->tokenizer) return err_input(e, "--eot-token: needs --tokenizer, whose token it names");
    if (a->tokenizer && !tokenizer_open(&t, a->tokenizer, a->eot, e)) return false;
    json_t *list = cli->json ? json_array() : NULL;
    bool ok = true;
    for (int i = 0; ok && i < a->in.file.n; i++)
        ok = inspect_one(a->in.file.path[i], a, a->tokenizer ? &t : NULL, list, e);
    tokenizer_close(&t);
    if (ok && list) return engine_print(json_pack("{s:o}", "files", list), e);
    json_decref(list);
    return ok;
}

int data_inspect(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"tokenizer", OPT_TOKENIZER, "T", 0, "Decode the first tokens and check all ids against its vocabulary", 0},
        {"eot-token", OPT_EOT, "NAME", 0, "The token between documents, by name or id (default: the tokenizer's)", 0},
        {"first", OPT_FIRST, "N", 0, "Print the first N tokens (default 16)", 0},
        {0}};
    static const CliSpec spec = {.args = "FILE...",
                                 .doc = "Checks token datasets, every id and index included, and prints their format, "
                                        "integer type, documents, tokens and lengths of documents.",
                                 .options = options,
                                 .take = cmd_data_inspect_take,
                                 .min_args = 1,
                                 .max_args = FILES_MAX};
    Args a = {.first = 16};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    engine_signals();
    bool ok = cmd_data_inspect_inspect(&a, &cli, &e);
    inputs_free(&a.in);
    return ok ? 0 : data_fail(&e);
}
