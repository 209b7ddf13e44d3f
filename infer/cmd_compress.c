/* kvsmith compress: shortens a prompt by what a model finds predictable in it (compress.h). */
#include "compress.h"
#include "engine.h"
#include "text.h"

int cmd_compress(int argc, char **argv);

typedef struct {
    const char *model, *prompt_file, *question, *statement;
    int64_t segment, context, chunk;
    CompressOpts o;
} Args;
enum { OPT_RATE = 0x100, OPT_COARSE, OPT_SLOPE, OPT_SEGMENT, OPT_IN_ORDER, OPT_STATEMENT, OPT_CONTEXT, OPT_CHUNK };
static const struct argp_option options[] = {
    {"prompt-file", 'p', "FILE", 0, "The text, its passages divided by empty lines; -: standard input (required)", 0},
    {"rate", OPT_RATE, "X", 0, "Share of the text's tokens that stays (default 0.5)", 0},
    {"question", 'Q', "TEXT", 0,
     "What the prompt asks: passages and tokens that it makes more probable, or that make it so, stay, and it follows "
     "the text (LongLLMLingua; default: none, LLMLingua)",
     0},
    {"statement", OPT_STATEMENT, "TEXT", 0,
     "Follows the question where passages are ranked (default: We can get the answer to this question in the given "
     "documents.)",
     0},
    {"coarse", OPT_COARSE, "X", 0, "Passages of the lowest ranks are left out beyond X times the budget (default 2)",
     0},
    {"slope", OPT_SLOPE, "X", 0,
     "With a question: the first passage keeps X more of its tokens than the mean, the last X less (default 0.25)", 0},
    {"segment", OPT_SEGMENT, "N", 0, "Tokens that are scored at a time (default 200)", 0},
    {"in-order", OPT_IN_ORDER, 0, 0, "With a question: passages keep their order instead of that of their ranks", 0},
    {"context", OPT_CONTEXT, "N", 0, "Tokens that the model sees at most (default: the model's positions)", 0},
    {"chunk", OPT_CHUNK, "N", 0, "Rows of one pass (default 512)", 0},
    {0}};
static bool cmd_compress_take(void *ctx, int key, const char *arg, Err *e) {
    Args *a = ctx;
    switch (key) {
    case CLI_ARG: a->model = arg; return true;
    case 'p': a->prompt_file = arg; return true;
    case 'Q': a->question = arg; return *arg || err_input(e, "--question: expected a text, got an empty one");
    case OPT_STATEMENT: a->statement = arg; return true;
    case OPT_RATE: return cli_real(arg, "--rate", 1e-3, 1, &a->o.rate, e);
    case OPT_COARSE: return cli_real(arg, "--coarse", 1, 1e9, &a->o.coarse, e);
    case OPT_SLOPE: return cli_real(arg, "--slope", 0, 1, &a->o.slope, e);
    case OPT_SEGMENT: return cli_int(arg, "--segment", 1, 1 << 20, &a->segment, e);
    case OPT_IN_ORDER: a->o.in_order = true; return true;
    case OPT_CONTEXT: return cli_int(arg, "--context", 2, 1 << 22, &a->context, e);
    case OPT_CHUNK: return cli_int(arg, "--chunk", 1, 1 << 20, &a->chunk, e);
    }
    CHECK(false, "option %d", key);
    return false;
}

/* ---- the text as passages ----------------------------------------------------------------------------------------*/

typedef struct {
    int n;
    Passage *p;
    Ids *ids;
    int *order, left;
} Passages;
static bool passages_add(Passages *x, const Tokenizer *t, const char *text, size_t n, Err *e) {
    if ((x->n & (x->n - 1)) == 0) {
        const size_t cap = 2 * zmax(1, (size_t)x->n);
        x->p = xrealloc(x->p, cap, sizeof *x->p), x->ids = xrealloc(x->ids, cap, sizeof *x->ids);
    }
    Ids *ids = &x->ids[x->n];
    *ids = (Ids){0};
    x->p[x->n++] = (Passage){.n = 0};
    if (!tokenizer_encode(t, text, n, 0, ids, e)) return false;
    x->p[x->n - 1] = (Passage){.tok = ids->id, .n = (int)ids->n, .keep = xcalloc(ids->n + 1, sizeof(bool))};
    return true;
}
/* Blank lines divide; they belong to no passage. */
static bool passages_cut(Passages *x, const Tokenizer *t, const char *text, size_t n, Err *e) {
    size_t from = 0, end = 0; /* of the passage so far, without the end of its last line */
    for (size_t at = 0; at <= n;) {
        const char *eol = at < n ? memchr(text + at, '\n', n - at) : NULL;
        const size_t to = eol ? (size_t)(eol - text) : n;
        size_t blank = at;
        while (blank < to && strchr(" \t\r", text[blank]) && text[blank]) blank++;
        if (blank == to) {
            if (end > from && !passages_add(x, t, text + from, end - from, e)) return false;
            from = end = to + 1;
        } else
            end = to;
        at = to + 1;
    }
    return !(end > from) || passages_add(x, t, text + from, end - from, e);
}
static void passages_free(Passages *x) {
    for (int i = 0; i < x->n; i++) ids_free(&x->ids[i]), free(x->p[i].keep);
    free(x->p), free(x->ids), free(x->order);
}

/* ---- results -----------------------------------------------------------------------------------------------------*/

/* What stays of a passage, as text that is UTF-8. */
static char *passage_text(const Tokenizer *t, const Passage *p, size_t *n) {
    Text out = {0};
    for (int i = 0, first = 1; i < p->n; i++) {
        size_t m;
        if (!p->keep[i]) continue;
        const char *piece = tokenizer_decode(t, p->tok[i], &m);
        const bool blank = first && t->strip && m && *piece == ' ';
        text_push(&out, piece + blank, m - blank);
        first = 0;
    }
    char *clean = utf8_clean(out.bytes ? out.bytes : "", out.n, n);
    text_free(&out);
    return clean;
}
static char *compressed_text(const Passages *x, const Args *a, const Tokenizer *t, size_t *n) {
    char *all = NULL;
    FILE *f = open_memstream(&all, n);
    CHECK(f, "no memory for a text");
    bool any = false;
    for (int i = 0; i < x->left; i++) {
        size_t m;
        if (!x->p[x->order[i]].kept) continue;
        char *text = passage_text(t, &x->p[x->order[i]], &m);
        if (any) fputs("\n\n", f);
        fwrite(text, 1, m, f);
        free(text);
        any = true;
    }
    if (a->question) fprintf(f, "%s%s", any ? "\n\n" : "", a->question);
    fclose(f);
    return all;
}
static bool cmd_compress_report(const Passages *x, const Args *a, const Cli *cli, const Tokenizer *t, const char *whole,
                                size_t nwhole, Err *e) {
    size_t n;
    int before = 0, after = 0;
    for (int i = 0; i < x->n; i++) before += x->p[i].n, after += x->p[i].kept;
    char *text = a->o.rate == 1 && !a->question ? NULL : compressed_text(x, a, t, &n);
    const char *out = text ? text : whole; /* all of it is the text as it was, byte for byte */
    bool ok;
    if (!text) n = nwhole;
    if (cli->json) {
        json_t *list = json_array();
        for (int i = 0; i < x->n; i++) {
            json_t *tokens = json_array();
            for (int k = 0; k < x->p[i].n; k++)
                if (x->p[i].keep[k]) json_array_append_new(tokens, json_integer(x->p[i].tok[k]));
            json_array_append_new(list, json_pack("{s:i, s:o, s:i, s:o}", "rank", x->p[i].rank, "score",
                                                  engine_number(x->p[i].score), "tokens", x->p[i].n, "kept", tokens));
        }
        json_t *order = json_array();
        for (int i = 0; i < x->left; i++) json_array_append_new(order, json_integer(x->order[i]));
        size_t m;
        char *clean = utf8_clean(out, n, &m);
        ok = engine_print(json_pack("{s:s%, s:i, s:i, s:o, s:o}", "text", clean, m, "tokens", before, "kept", after,
                                    "order", order, "passages", list),
                          e);
        free(clean);
    } else {
        ok = (fwrite(out, 1, n, stdout) == n && (!text || puts("") >= 0) && !fflush(stdout)) ||
             err_runtime(e, "standard output: it cannot be written");
        if (ok && !cli->quiet) fprintf(stderr, "%d of %d tokens in %d of %d passages\n", after, before, x->left, x->n);
    }
    free(text);
    return ok;
}

static bool compress_run(Args *a, const Cli *cli, Err *e) {
    Engine en;
    Session s;
    Passages x = {0};
    Ids asked = {0};
    char *text = NULL;
    size_t n = 0;
    if (!engine_open(&en, a->model, cli, e)) return false;
    const Tokenizer *t = &en.tokenizer;
    const int context = a->context ? (int)a->context : en.cfg.max_positions;
    bool ok =
        engine_text(&en, e) && engine_slurp(a->prompt_file, "prompt", &text, &n, e) && passages_cut(&x, t, text, n, e);
    if (ok && !x.n) ok = err_input(e, "%s: the prompt is empty; expected a text", a->prompt_file);
    if (ok && a->question) {
        ok = tokenizer_encode(t, a->question, strlen(a->question), 0, &asked, e);
        a->o.nquestion = (int)asked.n;
        if (ok && *a->statement) {
            char *line = xformat(" %s", a->statement);
            ok = tokenizer_encode(t, line, strlen(line), ENCODE_LATER | ENCODE_JOINED, &asked, e);
            free(line);
        }
    }
    if (ok) {
        a->o.question = asked.id, a->o.nasked = (int)asked.n;
        a->o.start = t->bos >= 0 ? t->bos : t->eot;
        x.order = xcalloc((size_t)x.n, sizeof *x.order);
        engine_plan(&en, context, cli->quiet);
        if ((ok = session_open(&s, &en.model, compress_session(&a->o, context, (int)a->chunk), e))) {
            ok = compress(&s, &a->o, x.n, x.p, x.order, &x.left, e) && cmd_compress_report(&x, a, cli, t, text, n, e);
            session_close(&s);
        }
    }
    passages_free(&x);
    ids_free(&asked);
    free(text);
    engine_close(&en);
    return ok;
}

int cmd_compress(int argc, char **argv) {
    static const CliSpec spec = {
        .args = "MODEL",
        .doc =
            "Prints a shorter form of a prompt: the passages and tokens that MODEL finds least predictable, or, with "
            "--question, most tied to the question. MODEL may be small, and another one than the prompt is for. "
            "Methods: LLMLingua (arXiv:2310.05736), LongLLMLingua (arXiv:2310.06839).",
        .options = options,
        .take = cmd_compress_take,
        .min_args = 1,
        .max_args = 1,
        .tuning = true,
        .adapter = true};
    Args a = {.segment = 200,
              .chunk = CHUNK_ROWS,
              .statement = "We can get the answer to this question in the given documents.",
              .o = {.rate = 0.5, .coarse = 2, .slope = 0.25}};
    Cli cli;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, &a, argc, argv, &status)) return status;
    engine_signals();
    if (!a.prompt_file) {
        err_input(&e, "compress: expected --prompt-file FILE; see kvsmith compress --help");
        return cli_fail(&e);
    }
    a.o.segment = (int)a.segment;
    return compress_run(&a, &cli, &e) ? 0 : cli_fail(&e);
}
