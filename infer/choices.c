#include "choices.h"
#include "../data/jsonl.h"
#include "../data/white.h"
#include "eval_task.h"
#include "session.h"

typedef struct {
    int *id;     /* (n) context and continuation, as they are used; the context has at least one */
    int n, cont; /* cont: of the continuation, >= 1 */
    double len;  /* characters that its ll is divided by */
    double ll;
    bool greedy; /* every id of it is the likeliest where it stands */
} Ask;
typedef struct {
    int64_t first; /* of its asks */
    int n, gold, choice, choice_norm;
} Item;
/* Asks that follow each other with the same ids before their continuations. */
typedef struct {
    int64_t first;
    int n;
} Group;
typedef struct {
    Ask *ask;
    Item *item;
    Group *group;
    int64_t nask, nitem, ngroup, ask_cap, item_cap, cut; /* cut: asks whose context lost ids at its beginning */
    int longest;                                         /* inputs of an ask, at most */
} Set;

static void set_free(Set *s) {
    for (int64_t i = 0; i < s->nask; i++) free(s->ask[i].id);
    free(s->ask), free(s->item), free(s->group);
}
#define ROOM(p, n, cap) ((n) < (cap) ? (p) : xrealloc(p, (size_t)((cap) = 2 * (cap) + 16), sizeof *(p)))

/* ---- ids ------------------------------------------------------------------------------------------------------------
 */

typedef struct {
    const Tokenizer *t;
    Encoder *enc;
    int prefix; /* -1: none is known */
    const char *name;
    size_t name_n; /* the prefix token as text */
    int context;
} Coder;

/* The token that tokenizer_config.json calls `key`; -1: none. */
static int named_token(const json_t *config, const char *key, const Tokenizer *t) {
    const json_t *x = json_object_get(config, key);
    if (json_is_object(x)) x = json_object_get(x, "content");
    return json_is_string(x) ? tokenizer_find(t, json_string_value(x)) : -1;
}
/* The prefix that tokenizer_config.json names, if it is there. The file's model_max_length is often 10^30: no integer
 * of C, so whole numbers are read as real ones. */
static bool names_read(Coder *c, const Engine *en, Err *e) {
    FileMap m;
    json_error_t why;
    if (!file_exists(en->dir, "tokenizer_config.json")) return true;
    char *path = xformat("%s/tokenizer_config.json", en->dir);
    bool ok = file_map(&m, path, e);
    if (ok) {
        json_t *j =
            m.n <= JSON_BYTES_MAX ? json_loadb(m.n ? (const char *)m.p : "", m.n, JSON_DECODE_INT_AS_REAL, &why) : NULL;
        c->prefix = named_token(j, "bos_token", c->t);
        if (c->prefix < 0) c->prefix = named_token(j, "eos_token", c->t);
        ok = json_is_object(j) || err_input(e, "%.200s: expected a JSON object of the tokenizer's settings", path);
        json_decref(j);
        file_unmap(&m);
    }
    free(path);
    return ok;
}

static bool coder_open(Coder *c, const Engine *en, int context, Err *e) {
    *c = (Coder){.t = &en->tokenizer, .prefix = -1, .name = "", .context = context};
    if (!names_read(c, en, e)) return false;
    if (c->prefix < 0) c->prefix = c->t->bos >= 0 ? c->t->bos : c->t->eot;
    if (c->prefix >= 0) c->name = tokenizer_decode(c->t, c->prefix, &c->name_n);
    c->enc = encoder_open(c->t);
    return true;
}

static bool encode(const Coder *c, const char *s, size_t n, Ids *out, Err *e) {
    bool begun = c->name_n && n >= c->name_n && !memcmp(s, c->name, c->name_n);
    return encoder_run(c->enc, s, n, begun ? ENCODE_SPECIAL : ENCODE_SPECIAL | ENCODE_TEMPLATE, out, e);
}

/* Ids of the context, which is the first nctx of the n bytes, and of the continuation behind it. */
static bool split(const Coder *c, const char *text, size_t nctx, size_t n, Ids *ctx, Ids *cont, Err *e) {
    if (nctx) {
        Ids whole = {0};
        bool ok = encode(c, text, white_end(text, nctx), ctx, e) && encode(c, text, n, &whole, e);
        for (size_t i = ctx->n; ok && i < whole.n; i++) ids_push(cont, whole.id[i]);
        ids_free(&whole);
        if (!ok || ctx->n) return ok;
        cont->n = 0;
    }
    /* the harness leaves a context of white space alone without any id and stops */
    if (!encoder_run(c->enc, text, n, ENCODE_SPECIAL, cont, e)) return false;
    if (cont->n && cont->id[0] == c->prefix) {
        ids_push(ctx, c->prefix);
        memmove(cont->id, cont->id + 1, --cont->n * sizeof *cont->id);
    } else if (c->prefix >= 0) {
        ids_push(ctx, c->prefix);
    }
    return true;
}

static double characters(const char *s, size_t n) {
    size_t chars = 0;
    for (size_t i = n && *s == ' '; i < n; i++) chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return (double)chars;
}

static bool ask_add(Set *s, const Coder *c, const json_t *ctx, const json_t *cont, int number, const char *where,
                    Err *e) {
    size_t nctx = json_string_length(ctx), ncont = json_string_length(cont), n = nctx + ncont;
    char *text = xcalloc(n + 1, 1);
    memcpy(text, json_string_value(ctx), nctx);
    memcpy(text + nctx, json_string_value(cont), ncont);
    Ids a = {0}, b = {0};
    Err why = {0};
    bool ok = split(c, text, nctx, n, &a, &b, &why);
    free(text);
    if (!ok)
        err_input(e, "%s: %.100s", where, why.msg);
    else if (!a.n)
        ok = err_input(e, "%s: the context is empty, and the tokenizer has no token that begins a text", where);
    else if (!b.n)
        ok =
            err_input(e, "%s: cont %d: expected a continuation with tokens of its own behind the context's, found none",
                      where, number);
    else if (b.n > (size_t)c->context)
        ok = err_input(e, "%s: cont %d: %zu tokens, expected at most the context, %d", where, number, b.n, c->context);
    if (ok) {
        size_t keep = zmin(a.n, (size_t)c->context + 1 - b.n);
        s->cut += keep < a.n;
        Ask k = {.n = (int)(keep + b.n), .cont = (int)b.n, .greedy = true};
        k.len = characters(json_string_value(cont), ncont);
        k.id = xcalloc((size_t)k.n, sizeof *k.id);
        memcpy(k.id, a.id + a.n - keep, keep * sizeof *k.id);
        memcpy(k.id + keep, b.id, b.n * sizeof *k.id);
        s->ask = ROOM(s->ask, s->nask, s->ask_cap);
        s->ask[s->nask++] = k;
        s->longest = imax(s->longest, k.n - 1);
    }
    ids_free(&a);
    ids_free(&b);
    return ok;
}

static bool item_add(Set *s, const Coder *c, const json_t *j, const char *where, Err *e) {
    const json_t *ctx = json_object_get(j, "ctx"), *cont = json_object_get(j, "cont"),
                 *gold = json_object_get(j, "gold");
    size_t n = json_array_size(cont);
    if (!json_is_string(ctx)) return err_input(e, "%s: \"ctx\": expected a text, found %s", where, json_kind(ctx));
    if (!json_is_array(cont) || !n)
        return err_input(e, "%s: \"cont\": expected a list of at least one text, found %s", where,
                         json_is_array(cont) ? "an empty one" : json_kind(cont));
    if (!json_is_integer(gold) || json_integer_value(gold) < 0 || json_integer_value(gold) >= (json_int_t)n)
        return err_input(e, "%s: \"gold\": expected a whole number from 0 to %zu, which of \"cont\" is right", where,
                         n - 1);
    s->item = ROOM(s->item, s->nitem, s->item_cap);
    s->item[s->nitem++] = (Item){.first = s->nask, .n = (int)n, .gold = (int)json_integer_value(gold)};
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(cont, i);
        if (!json_is_string(x)) return err_input(e, "%s: cont %zu: expected a text, found %s", where, i, json_kind(x));
        if (!ask_add(s, c, ctx, x, (int)i, where, e)) return false;
    }
    return true;
}

static bool set_read(Set *s, const Coder *c, const char *path, int64_t limit, Err *e) {
    Jsonl l;
    json_t *j;
    if (!jsonl_open(&l, path, e)) return false;
    bool ok = true;
    while (ok && (!limit || s->nitem < limit) && (ok = jsonl_next(&l, &j, e)) && j) {
        ok = item_add(s, c, j, l.where, e);
        json_decref(j);
    }
    jsonl_close(&l);
    if (ok && !s->nitem)
        ok = err_input(e, "%.200s: no item in it; expected lines {\"ctx\": TEXT, \"cont\": [TEXT, ...], \"gold\": N}",
                       path);
    if (!ok) return false;
    s->group = xcalloc((size_t)s->nask, sizeof *s->group);
    for (int64_t i = 0; i < s->nask; i++) {
        const Ask *k = &s->ask[i], *was = k - 1;
        int n = k->n - k->cont;
        if (i && n == was->n - was->cont && !memcmp(k->id, was->id, (size_t)n * sizeof *k->id))
            s->group[s->ngroup - 1].n++;
        else
            s->group[s->ngroup++] = (Group){i, 1};
    }
    return true;
}

/* ---- the model ------------------------------------------------------------------------------------------------------
 */

typedef struct {
    Session s;
    int batch, chunk, V;
    Feed *feed;   /* (batch) */
    Ask **open;   /* (batch) whose continuations are being fed */
    real *logits; /* (chunk, V) */
} Work;

static void score(Ask *k, const real *logits, int V, int id) {
    bool hit;
    k->ll -= logits_nll(logits, V, id, &hit);
    k->greedy &= hit;
}

/* The first ids of all continuations of b groups, whose contexts sequences 0..b-1 then hold. */
static bool contexts(Work *w, Set *s, const Group *g, int b, Err *e) {
    for (int i = 0; i < b; i++) {
        const Ask *k = &s->ask[g[i].first];
        session_reset(&w->s, i);
        w->feed[i] = (Feed){i, k->n - k->cont, k->id};
    }
    if (!session_extend(&w->s, b, w->feed, WANT_LAST, TENSOR(w->logits, REAL, b, w->V), e)) return false;
    for (int i = 0; i < b; i++)
        for (int a = 0; a < g[i].n; a++) {
            Ask *k = &s->ask[g[i].first + a];
            score(k, w->logits + (size_t)i * (size_t)w->V, w->V, k->id[k->n - k->cont]);
        }
    return true;
}

/* The other ids of the n continuations in w->open, each in its own sequence behind its context, in pieces that one pass
 * can hold. */
static bool continuations(Work *w, int n, Err *e) {
    int step = imax(1, w->chunk / n);
    for (int done = 0;; done += step) {
        int B = 0, rows = 0;
        for (int q = 0; q < n; q++) {
            const Ask *k = w->open[q];
            int m = imin(step, k->cont - 1 - done);
            if (m <= 0) continue;
            w->feed[B++] = (Feed){w->batch + q, m, k->id + k->n - k->cont + done};
            rows += m;
        }
        if (!B) return true;
        if (!session_extend(&w->s, B, w->feed, WANT_ALL, TENSOR(w->logits, REAL, rows, w->V), e)) return false;
        const real *row = w->logits;
        for (int b = 0; b < B; b++)
            for (int i = 0; i < w->feed[b].n; i++, row += w->V)
                score(w->open[w->feed[b].seq - w->batch], row, w->V, w->feed[b].tok[i + 1]);
    }
}

static bool run(Work *w, Set *s, Err *e) {
    for (int64_t at = 0; at < s->ngroup; at += w->batch) {
        int b = (int)(s->ngroup - at < w->batch ? s->ngroup - at : w->batch), n = 0;
        if (!contexts(w, s, s->group + at, b, e)) return false;
        for (int i = 0; i < b; i++)
            for (int a = 0; a < s->group[at + i].n; a++) {
                Ask *k = &s->ask[s->group[at + i].first + a];
                if (k->cont == 1) continue;
                session_fork(&w->s, i, w->batch + n);
                w->open[n++] = k;
                if (n < w->batch) continue;
                if (!continuations(w, n, e)) return false;
                n = 0;
            }
        if (n && !continuations(w, n, e)) return false;
    }
    return true;
}

static bool measure(Engine *en, Set *s, const Choices *c, Err *e) {
    Work w = {.batch = (int)(s->ngroup < c->batch ? s->ngroup : c->batch), .V = en->cfg.vocab};
    /* the logits of a pass are the one big thing: 64 MiB of them, unless one row of each sequence is more */
    size_t rows = zmax((size_t)w.batch, (64u << 20) / sizeof(real) / (size_t)w.V);
    w.chunk = imax((int)zmin((size_t)c->chunk, rows), w.batch);
    SessionOpts o = {.nseq = 2 * w.batch, .max_tokens = s->longest, .chunk = w.chunk, .document = -1, .want_all = true};
    if (!session_open(&w.s, &en->model, o, e)) return false;
    w.feed = xcalloc((size_t)w.batch, sizeof *w.feed);
    w.open = xcalloc((size_t)w.batch, sizeof *w.open);
    w.logits = xcalloc((size_t)w.chunk * (size_t)w.V, sizeof *w.logits);
    bool ok = run(&w, s, e);
    free(w.feed), free(w.open), free(w.logits);
    session_close(&w.s);
    for (int64_t i = 0; ok && i < s->nask; i++)
        if (!isfinite(s->ask[i].ll))
            ok = err_world(e, "a log-likelihood is %g: the model's numbers are damaged", s->ask[i].ll);
    return ok;
}

/* ---- the verdict ----------------------------------------------------------------------------------------------------
 */

static void choose(const Set *s, Item *t) {
    const Ask *k = s->ask + t->first;
    t->choice = t->choice_norm = 0;
    for (int i = 1; i < t->n; i++) {
        if (k[i].ll > k[t->choice].ll) t->choice = i;
        if (k[i].ll / k[i].len > k[t->choice_norm].ll / k[t->choice_norm].len) t->choice_norm = i;
    }
}

static json_t *item_json(const Set *s, const Item *t) {
    json_t *ll = json_array(), *greedy = json_array(), *tokens = json_array();
    for (int i = 0; i < t->n; i++) {
        const Ask *k = &s->ask[t->first + i];
        json_array_append_new(ll, json_real(k->ll));
        json_array_append_new(greedy, json_boolean(k->greedy));
        json_array_append_new(tokens, json_integer(k->cont));
    }
    return json_pack("{s:i, s:i, s:i, s:o, s:o, s:o}", "gold", t->gold, "choice", t->choice, "choice_norm",
                     t->choice_norm, "ll", ll, "greedy", greedy, "tokens", tokens);
}

/* Standard error of a part of n items: their values are 0 and 1. One item has none. */
static double deviation(double part, double n) { return n > 1 ? sqrt(part * (1 - part) / (n - 1)) : NAN; }

static bool report(Set *s, const Choices *c, int context, const Cli *cli, Err *e) {
    double n = (double)s->nitem, acc = 0, norm = 0;
    json_t *items = json_array();
    for (int64_t i = 0; i < s->nitem; i++) {
        Item *t = &s->item[i];
        choose(s, t);
        acc += t->choice == t->gold;
        norm += t->choice_norm == t->gold;
        if (c->items) json_array_append_new(items, item_json(s, t));
    }
    acc /= n, norm /= n;
    if (!cli->json) {
        json_decref(items);
        printf("acc %.4f ± %.4f   acc_norm %.4f ± %.4f   %lld items, %lld continuations, context %d", acc,
               deviation(acc, n), norm, deviation(norm, n), (long long)s->nitem, (long long)s->nask, context);
        if (s->cut) printf(", %lld cut on the left", (long long)s->cut);
        putchar('\n');
        return true;
    }
    json_t *j = json_pack("{s:s, s:I, s:f, s:o, s:f, s:o, s:I, s:I, s:i}", "task", "choices", "n", (json_int_t)s->nitem,
                          "acc", acc, "acc_stderr", engine_number(deviation(acc, n)), "acc_norm", norm,
                          "acc_norm_stderr", engine_number(deviation(norm, n)), "continuations", (json_int_t)s->nask,
                          "truncated", (json_int_t)s->cut, "context", context);
    if (c->items && j)
        json_object_set_new(j, "items", items);
    else
        json_decref(items);
    return engine_print(j, e);
}

bool eval_choices(const Choices *c, const Cli *cli, Err *e) {
    Engine en;
    Coder coder;
    Set set = {0};
    if (c->items && !cli->json) return err_input(e, "eval choices: --per-item is of --json");
    if (!engine_read(&en, c->model, cli, e)) return false;
    int context = c->context ? (int)c->context : en.cfg.max_positions;
    bool ok = engine_text(&en, e) && coder_open(&coder, &en, context, e);
    if (ok) {
        ok = set_read(&set, &coder, c->data, c->limit, e);
        encoder_close(coder.enc);
    }
    if (!ok)
        engine_close(&en);
    else if ((ok = engine_load(&en, (ModelOpts){0}, e))) {
        ok = measure(&en, &set, c, e) && report(&set, c, context, cli, e);
        engine_close(&en);
    }
    set_free(&set);
    return ok;
}
