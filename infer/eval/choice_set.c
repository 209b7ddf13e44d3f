/* choice_set.c: texts to contexts and continuations. */
#include "choice_set.h"
#include "data/white.h"

#define ROOM(p, n, cap) ((n) < (cap) ? (p) : xrealloc(p, (size_t)((cap) = 2 * (cap) + 16), sizeof *(p)))

void choice_set_free(ChoiceSet *s) {
    for (int64_t i = 0; i < s->nask; i++) free(s->ask[i].id);
    free(s->ask), free(s->item), free(s->group);
}

typedef struct {
    const ChoiceRule *rule;
    Encoder *enc;
    const char *name; /* the prefix as text */
    size_t name_n;
} Coder;
static bool choice_set_encode(const Coder *c, const char *s, size_t n, Ids *out, Err *e) {
    bool begun = c->name_n && n >= c->name_n && !memcmp(s, c->name, c->name_n);
    return encoder_run(c->enc, s, n, begun ? ENCODE_SPECIAL : ENCODE_SPECIAL | ENCODE_TEMPLATE, out, e);
}

/* Ids of the context, which is the first nctx of the n bytes, and of the continuation after it. */
static bool choice_set_split(const Coder *c, const char *text, size_t nctx, size_t n, Ids *ctx, Ids *cont, Err *e) {
    if (nctx) {
        Ids whole = {0};
        bool ok = choice_set_encode(c, text, white_end(text, nctx), ctx, e) && choice_set_encode(c, text, n, &whole, e);
        for (size_t i = ctx->n; ok && i < whole.n; i++) ids_push(cont, whole.id[i]);
        ids_free(&whole);
        if (!ok || ctx->n) return ok;
        cont->n = 0;
    }
    /* the harness leaves a context of white space alone without any id and stops */
    if (!encoder_run(c->enc, text, n, ENCODE_SPECIAL, cont, e)) return false;
    if (cont->n && cont->id[0] == c->rule->prefix) {
        ids_push(ctx, c->rule->prefix);
        memmove(cont->id, cont->id + 1, --cont->n * sizeof *cont->id);
    } else if (c->rule->prefix >= 0) {
        ids_push(ctx, c->rule->prefix);
    }
    return true;
}

static double choice_set_characters(const char *s, size_t n) {
    size_t chars = 0;
    for (size_t i = n && *s == ' '; i < n; i++) chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return (double)chars;
}

static bool ask_add(ChoiceSet *s, const Coder *c, const json_t *ctx, const json_t *cont, int number, const char *where,
                    Err *e) {
    size_t nctx = json_string_length(ctx), ncont = json_string_length(cont), n = nctx + ncont;
    char *text = xcalloc(n + 1, 1);
    memcpy(text, json_string_value(ctx), nctx);
    memcpy(text + nctx, json_string_value(cont), ncont);
    Ids a = {0}, b = {0};
    Err why = {0};
    bool ok = choice_set_split(c, text, nctx, n, &a, &b, &why);
    free(text);
    if (!ok)
        err_input(e, "%s: %.100s", where, why.msg);
    else if (!a.n)
        ok = err_input(e, "%s: the context is empty, and the tokenizer has no token that starts a text", where);
    else if (!b.n)
        ok = err_input(e, "%s: cont %d: expected a continuation with tokens after the context's, found none", where,
                       number);
    else if (b.n > (size_t)c->rule->context)
        ok = err_input(e, "%s: cont %d: %zu tokens, expected at most the context of %d", where, number, b.n,
                       c->rule->context);
    if (ok) {
        size_t keep = zmin(a.n, (size_t)c->rule->context + 1 - b.n);
        s->cut += keep < a.n;
        Ask k = {.n = (int)(keep + b.n), .cont = (int)b.n, .greedy = true};
        k.len = choice_set_characters(json_string_value(cont), ncont);
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

static bool item_add(ChoiceSet *s, const Coder *c, const json_t *j, const char *where, Err *e) {
    const json_t *ctx = json_object_get(j, "ctx"), *cont = json_object_get(j, "cont"),
                 *gold = json_object_get(j, "gold");
    size_t n = json_array_size(cont);
    if (!json_is_string(ctx)) return err_input(e, "%s: \"ctx\": expected a text, found %s", where, json_kind(ctx));
    if (!json_is_array(cont) || !n)
        return err_input(e, "%s: \"cont\": expected a list of at least one text, found %s", where,
                         json_is_array(cont) ? "an empty one" : json_kind(cont));
    if (!json_is_integer(gold) || json_integer_value(gold) < 0 || json_integer_value(gold) >= (json_int_t)n)
        return err_input(e, "%s: \"gold\": expected a whole number from 0 to %zu, the index of the right \"cont\"",
                         where, n - 1);
    s->item = ROOM(s->item, s->nitem, s->item_cap);
    s->item[s->nitem++] = (Item){.first = s->nask, .n = (int)n, .gold = (int)json_integer_value(gold)};
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(cont, i);
        if (!json_is_string(x)) return err_input(e, "%s: cont %zu: expected a text, found %s", where, i, json_kind(x));
        if (!ask_add(s, c, ctx, x, (int)i, where, e)) return false;
    }
    return true;
}

bool choice_set_read(ChoiceSet *s, const ChoiceRule *rule, Jsonl *l, int64_t limit, Err *e) {
    Coder coder = {.rule = rule, .enc = encoder_open(rule->t)}, *c = &coder;
    json_t *j;
    bool ok = true;
    if (rule->prefix >= 0) coder.name = tokenizer_decode(rule->t, rule->prefix, &coder.name_n);
    while (ok && (!limit || s->nitem < limit) && (ok = jsonl_next(l, &j, e)) && j) {
        ok = item_add(s, c, j, l->where, e);
        json_decref(j);
    }
    encoder_close(coder.enc);
    if (ok && !s->nitem)
        ok = err_input(e, "%.200s: no item in it; expected lines {\"ctx\": TEXT, \"cont\": [TEXT, ...], \"gold\": N}",
                       l->name);
    if (!ok) return false;
    s->group = xcalloc((size_t)s->nask, sizeof *s->group);
    for (int64_t i = 0; i < s->nask; i++) {
        const Ask *k = &s->ask[i], *was = i ? k - 1 : k;
        int n = k->n - k->cont;
        if (i && n == was->n - was->cont && !memcmp(k->id, was->id, (size_t)n * sizeof *k->id))
            s->group[s->ngroup - 1].n++;
        else
            s->group[s->ngroup++] = (Group){i, 1};
    }
    return true;
}
