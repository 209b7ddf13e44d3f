#include "choices.h"
#include "choice_set.h"
#include "infer/prefix.h"
#include "task_run.h"

/* ---- the prefix -----------------------------------------------------------------------------------------------------
 */

/* The token that tokenizer_config.json calls `key`; -1: none. */
static int named_token(const json_t *config, const char *key, const Tokenizer *t) {
    const json_t *x = json_object_get(config, key);
    if (json_is_object(x)) x = json_object_get(x, "content");
    return json_is_string(x) ? tokenizer_find(t, json_string_value(x)) : -1;
}
/* The prefix that tokenizer_config.json names, if it exists. The file's model_max_length is often 10^30, which no
 * integer of C holds, so integers are read as reals. */
static bool names_read(ChoiceRule *c, const Engine *en, Err *e) {
    FileMap m;
    json_error_t why;
    if (!file_exists(en->dir, "tokenizer_config.json", e)) return !e->status;
    char *path = xformat("%s/tokenizer_config.json", en->dir);
    bool ok = file_map(&m, path, e);
    if (ok && !(ok = json_bounded(m.p, m.n, path, e))) file_unmap(&m);
    if (ok) {
        json_t *j = json_loadb(m.n ? (const char *)m.p : "", m.n, JSON_DECODE_INT_AS_REAL, &why);
        c->prefix = named_token(j, "bos_token", c->t);
        if (c->prefix < 0) c->prefix = named_token(j, "eos_token", c->t);
        ok = json_is_object(j) || err_input(e, "%.200s: expected a JSON object of the tokenizer's settings", path);
        json_decref(j);
        file_unmap(&m);
    }
    free(path);
    return ok;
}

static bool rule_make(ChoiceRule *r, const Engine *en, int context, Err *e) {
    *r = (ChoiceRule){&en->tokenizer, -1, context};
    if (!names_read(r, en, e)) return false;
    if (r->prefix < 0) r->prefix = r->t->bos >= 0 ? r->t->bos : r->t->eot;
    return true;
}

static bool read_items(ChoiceSet *s, const ChoiceRule *r, const char *path, int64_t limit, Err *e) {
    Jsonl l;
    if (!jsonl_open(&l, path, e)) return false;
    bool ok = choice_set_read(s, r, &l, limit, e);
    jsonl_close(&l);
    return ok;
}

/* ---- the model ------------------------------------------------------------------------------------------------------
 */

typedef struct {
    Session s;
    int batch, chunk, V;
    Feed *feed;   /* (batch) */
    Group **held; /* (batch) whose contexts sequences hold */
    Ask **open;   /* (batch) whose continuations are being fed */
    real *logits; /* (chunk, V) */
} Work;

static void choices_score(Ask *k, const real *logits, int V, int id) {
    bool hit;
    k->ll -= logits_nll(logits, V, id, &hit);
    k->greedy &= hit;
}

/* The first ids of all continuations of the next groups, whose contexts sequences 0..b-1 then hold: w->held. Returns b;
 * 0: a failure. */
static int choices_contexts(Work *w, ChoiceSet *s, Prefixes *x, Err *e) {
    int b = 0;
    for (; b < w->batch && x->at < x->n; b++) {
        int which, have, computed;
        if (!prefixes_next(x, &w->s, b, &which, &have, &computed, e)) return 0;
        w->held[b] = &s->group[which];
        w->feed[b] = (Feed){b, x->text[which].n - have, x->text[which].tok + have};
    }
    if (!session_extend(&w->s, b, w->feed, WANT_LAST, TENSOR(w->logits, REAL, b, w->V), e)) return 0;
    for (int i = 0; i < b; i++)
        if (!session_prompt_ends(&w->s, i, e)) return 0;
    for (int i = 0; i < b; i++)
        for (int a = 0; a < w->held[i]->n; a++) {
            Ask *k = &s->ask[w->held[i]->first + a];
            choices_score(k, w->logits + (size_t)i * (size_t)w->V, w->V, k->id[k->n - k->cont]);
        }
    return b;
}

/* The other ids of the n continuations in w->open, each in its own sequence after its context, in pieces that fit one
 * pass. */
static bool choices_continuations(Work *w, int n, Err *e) {
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
                choices_score(w->open[w->feed[b].seq - w->batch], row, w->V, w->feed[b].tok[i + 1]);
    }
}

static bool choices_run(Work *w, ChoiceSet *s, Prefixes *x, Err *e) {
    while (x->at < x->n) {
        int b = choices_contexts(w, s, x, e), n = 0;
        if (!b) return false;
        for (int i = 0; i < b; i++)
            for (int a = 0; a < w->held[i]->n; a++) {
                Ask *k = &s->ask[w->held[i]->first + a];
                if (k->cont == 1) continue;
                session_fork(&w->s, i, w->batch + n);
                w->open[n++] = k;
                if (n < w->batch) continue;
                if (!choices_continuations(w, n, e)) return false;
                n = 0;
            }
        if (n && !choices_continuations(w, n, e)) return false;
    }
    return true;
}

static bool choices_measure(Engine *en, ChoiceSet *s, const Choices *c, Err *e) {
    Work w = {.batch = (int)(s->ngroup < c->batch ? s->ngroup : c->batch), .V = en->cfg.vocab};
    /* the logits of a pass are the one big thing: 64 MiB of them, unless one row of each sequence is more */
    size_t rows = zmax((size_t)w.batch, (64u << 20) / sizeof(real) / (size_t)w.V);
    w.chunk = imax((int)zmin((size_t)c->chunk, rows), w.batch);
    const int n = (int)s->ngroup;
    PrefixText *text = xcalloc((size_t)n, sizeof *text);
    for (int i = 0; i < n; i++) {
        const Ask *k = &s->ask[s->group[i].first];
        text[i] = (PrefixText){k->n - k->cont, k->id};
    }
    SessionOpts o = {.nseq = 2 * w.batch,
                     .spare = prefixes_depth(text, n),
                     .max_tokens = s->longest,
                     .chunk = w.chunk,
                     .document = -1,
                     .want_all = true};
    if (!session_open(&w.s, &en->model, o, e)) {
        free(text);
        return false;
    }
    Prefixes x;
    prefixes_open(&x, text, n, o.spare, false);
    w.held = xcalloc((size_t)w.batch, sizeof(Group *));
    w.feed = xcalloc((size_t)w.batch, sizeof *w.feed);
    w.open = xcalloc((size_t)w.batch, sizeof *w.open);
    w.logits = xcalloc((size_t)w.chunk * (size_t)w.V, sizeof *w.logits);
    bool ok = choices_run(&w, s, &x, e);
    prefixes_close(&x);
    free(w.feed), free(w.held), free(w.open), free(w.logits), free(text);
    session_close(&w.s);
    for (int64_t i = 0; ok && i < s->nask; i++)
        if (!isfinite(s->ask[i].ll))
            ok = err_runtime(e, "a log-likelihood is %g: the model's weights are damaged", s->ask[i].ll);
    return ok;
}

/* ---- the verdict ----------------------------------------------------------------------------------------------------
 */

static void choices_choose(const ChoiceSet *s, Item *t) {
    const Ask *k = s->ask + t->first;
    t->choice = t->choice_norm = 0;
    for (int i = 1; i < t->n; i++) {
        if (k[i].ll > k[t->choice].ll) t->choice = i;
        if (k[i].ll / k[i].len > k[t->choice_norm].ll / k[t->choice_norm].len) t->choice_norm = i;
    }
}

static json_t *item_json(const ChoiceSet *s, const Item *t) {
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
static double choices_deviation(double part, double n) { return n > 1 ? sqrt(part * (1 - part) / (n - 1)) : NAN; }

static bool choices_report(ChoiceSet *s, const Choices *c, int context, const Cli *cli, Err *e) {
    double n = (double)s->nitem, acc = 0, norm = 0;
    json_t *items = json_array();
    for (int64_t i = 0; i < s->nitem; i++) {
        Item *t = &s->item[i];
        choices_choose(s, t);
        acc += t->choice == t->gold;
        norm += t->choice_norm == t->gold;
        if (c->items) json_array_append_new(items, item_json(s, t));
    }
    acc /= n, norm /= n;
    if (!cli->json) {
        json_decref(items);
        printf("acc %.4f", acc);
        if (s->nitem > 1) printf(" ± %.4f", choices_deviation(acc, n));
        printf("   acc_norm %.4f", norm);
        if (s->nitem > 1) printf(" ± %.4f", choices_deviation(norm, n));
        printf("   %lld items, %lld continuations, context %d", (long long)s->nitem, (long long)s->nask, context);
        if (s->cut) printf(", %lld cut on the left", (long long)s->cut);
        putchar('\n');
        return true;
    }
    json_t *j = json_pack("{s:s, s:I, s:f, s:o, s:f, s:o, s:I, s:I, s:i}", "task", "choices", "n", (json_int_t)s->nitem,
                          "acc", acc, "acc_stderr", engine_number(choices_deviation(acc, n)), "acc_norm", norm,
                          "acc_norm_stderr", engine_number(choices_deviation(norm, n)), "continuations",
                          (json_int_t)s->nask, "truncated", (json_int_t)s->cut, "context", context);
    if (c->items && j)
        json_object_set_new(j, "items", items);
    else
        json_decref(items);
    return engine_print(j, e);
}

bool eval_choices(const Choices *c, const Cli *cli, Err *e) {
    Engine en;
    ChoiceRule rule;
    ChoiceSet set = {0};
    if (c->items && !cli->json) return err_input(e, "eval choices: --per-item needs --json");
    if (!engine_read(&en, c->model, cli, e)) return false;
    int context = c->context ? (int)c->context : en.cfg.max_positions;
    bool ok = engine_text(&en, e) && rule_make(&rule, &en, context, e) && read_items(&set, &rule, c->data, c->limit, e);
    if (!ok)
        engine_close(&en);
    else if ((ok = engine_load(&en, engine_bf16(cli, (ModelOpts){0}), e))) {
        engine_plan(&en, set.longest, cli->quiet);
        ok = choices_measure(&en, &set, c, e) && choices_report(&set, c, context, cli, e);
        engine_close(&en);
    }
    choice_set_free(&set);
    return ok;
}
