#include "generate.h"
#include "prefix.h"
#include <omp.h>

const char *finish_name(Finish f) {
    static const char *const names[] = {"length", "eos", "stop", "context"};
    return names[f];
}

/* One place of the session: the prompt that holds it, or none. */
typedef struct {
    int which; /* -1: free */
    int last;  /* the newest token, not fed yet */
    size_t shown;
    unsigned char *seen; /* (V) tokens of prompt and output */
} Place;
typedef struct {
    Session *s;
    const Tokenizer *tk;
    const GenOpts *o;
    Generation *g;
    Place *place;
    Feed *feed;
    Candidate *cand;     /* (threads,V) */
    int threads, *token; /* (places) drawn for each feed */
    Err *why;            /* (places) */
    real *logits;        /* NULL where the device draws: */
    SampleRow *rows;     /* (places) */
    Sampled *drawn;      /* (places) */
} Work;

static bool generate_show(Work *w, Place *p, bool end, Err *e) {
    Text *t = &w->g[p->which].text;
    size_t final = end ? t->n : text_final(t), from = p->shown;
    p->shown = final;
    return !w->o->show || final == from || w->o->show(w->o->ctx, p->which, t->bytes + from, final - from, e);
}

static bool generate_finish(Work *w, int at, Finish why, Err *e) {
    Place *p = &w->place[at];
    Generation *g = &w->g[p->which];
    g->finish = why;
    g->cache_bytes = session_bytes(w->s, at);
    bool ok = generate_show(w, p, true, e) && (!w->o->done || w->o->done(w->o->ctx, w->s, p->which, at, e));
    session_reset(w->s, at);
    p->which = -1;
    return ok;
}

/* The next token of each of n feeds; the sequences share the threads. */
static bool generate_draw(Work *w, int n, Err *e) {
    size_t V = (size_t)w->s->model->cfg.vocab;
    int bad = -1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(w->threads) if (n > 1)
    for (int i = 0; i < n; i++) {
        const Place *p = &w->place[w->feed[i].seq];
        w->why[i] = (Err){0};
        sampler_pick(&w->o->sampler, w->logits + (size_t)i * V, (int)V, p->seen, (uint64_t)p->which,
                     w->o->drawn + (uint64_t)w->g[p->which].n, w->cand + (size_t)omp_get_thread_num() * V, &w->token[i],
                     &w->why[i]);
    }
    for (int i = n - 1; i >= 0; i--)
        if (w->why[i].status) bad = i;
    if (bad >= 0 && e) *e = w->why[bad];
    return bad < 0;
}

/* The session's call and the draws in one. */
static bool draw_there(Work *w, int n, Err *e) {
    for (int i = 0; i < n; i++) {
        int which = w->place[w->feed[i].seq].which;
        w->rows[i] = sampler_row(&w->o->sampler, (uint64_t)which, w->o->drawn + (uint64_t)w->g[which].n);
    }
    if (!session_draw(w->s, n, w->feed, w->rows, w->drawn, e)) return false;
    for (int i = 0; i < n; i++)
        if (!sampler_drawn(&w->drawn[i], w->s->model->cfg.vocab, &w->token[i], e)) return false;
    return true;
}

/* The prompt at place `at` has a new token. */
static bool generate_take(Work *w, int at, int t, Err *e) {
    Place *p = &w->place[at];
    Generation *g = &w->g[p->which];
    if ((g->n & (g->n - 1)) == 0)
        g->tok = xrealloc(g->tok, 2 * (size_t)imax(g->n, 1), sizeof(int)); /* full at powers of 2 */
    g->tok[g->n++] = p->last = t;
    p->seen[t] = 1;
    for (int i = 0; i < w->o->neos; i++)
        if (t == w->o->eos[i]) return generate_finish(w, at, FINISH_EOS, e);
    if (t < w->tk->vocab && !tokenizer_special(w->tk, t)) { /* nor are ids that pad the vocabulary text */
        size_t n;
        const char *piece = tokenizer_decode(w->tk, t, &n);
        if (text_push(&g->text, piece, n)) return generate_finish(w, at, FINISH_STOP, e);
    }
    if (!generate_show(w, p, false, e)) return false;
    if (g->n == w->o->max_new) return generate_finish(w, at, FINISH_LENGTH, e);
    /* the token must have room as the next row */
    if (session_length(w->s, at) >= w->s->opts.max_tokens) return generate_finish(w, at, FINISH_CONTEXT, e);
    return true;
}

/* One call of the session for `n` feeds, then a token for each. */
static bool generate_advance(Work *w, int n, bool prefill, Err *e) {
    int V = w->s->model->cfg.vocab;
    double start = now_seconds();
    bool ok;
    if (w->rows)
        ok = draw_there(w, n, e);
    else
        ok = session_extend(w->s, n, w->feed, WANT_LAST, TENSOR(w->logits, REAL, n, V), e) &&
             (!w->o->max_new || generate_draw(w, n, e));
    for (int i = 0; ok && prefill && !w->o->resumes && i < n; i++) ok = session_prompt_ends(w->s, w->feed[i].seq, e);
    int *which = xcalloc((size_t)n, sizeof *which);
    for (int i = 0; ok && i < n; i++) {
        int at = w->feed[i].seq;
        which[i] = w->place[at].which;
        ok = w->o->max_new ? generate_take(w, at, w->token[i], e) : generate_finish(w, at, FINISH_LENGTH, e);
    }
    double took = now_seconds() - start;
    for (int i = 0; ok && i < n; i++) *(prefill ? &w->g[which[i]].prefill_s : &w->g[which[i]].decode_s) += took;
    free(which);
    return ok;
}

/* The next prompt begins at place `at`: the feed of what no prefix of it holds. */
static bool generate_begin(Work *w, int at, Prefixes *x, Feed *feed, Err *e) {
    const int V = w->s->model->cfg.vocab;
    const double start = now_seconds();
    Place *p = &w->place[at];
    int which = 0, have = w->o->held, computed = 0;
    if (have)
        x->at++;
    else if (!prefixes_next(x, w->s, at, &which, &have, &computed, e))
        return false;
    Generation *g = &w->g[which];
    *p = (Place){.which = which, .seen = p->seen};
    memset(p->seen, 0, (size_t)V);
    for (int i = 0; i < g->nprompt; i++)
        if (g->prompt[i] >= 0 && g->prompt[i] < V) p->seen[g->prompt[i]] = 1;
    if (w->rows) session_seen(w->s, at, p->seen);
    *feed = (Feed){at, g->nprompt - have, g->prompt + have};
    g->cached = have - computed;
    g->prefill_s += now_seconds() - start;
    return true;
}
static bool run(Work *w, Prefixes *x, Err *e) {
    int nplace = w->s->opts.nseq;
    for (;;) {
        int nfeed = 0;
        for (int at = 0; at < nplace && x->at < x->n; at++)
            if (w->place[at].which < 0 && !generate_begin(w, at, x, &w->feed[nfeed++], e)) return false;
        bool prefill = nfeed > 0;
        for (int at = 0; at < nplace && !prefill; at++)
            if (w->place[at].which >= 0) w->feed[nfeed++] = (Feed){at, 1, &w->place[at].last};
        if (nfeed == 0) return true;
        if (!generate_advance(w, nfeed, prefill, e)) return false;
    }
}

int generate_spare(int n, const Generation *g) {
    PrefixText *text = xcalloc((size_t)n, sizeof *text);
    for (int k = 0; k < n; k++) text[k] = (PrefixText){g[k].nprompt, g[k].prompt};
    const int depth = prefixes_depth(text, n);
    free(text);
    return depth;
}

bool generate(Session *s, const Tokenizer *tk, const GenOpts *o, int n, Generation *g, Err *e) {
    size_t V = (size_t)s->model->cfg.vocab, places = (size_t)s->opts.nseq;
    CHECK(n >= 1 && o->max_new >= 0, "%d prompts, %d new tokens", n, o->max_new);
    CHECK(!o->held || (n == 1 && o->held < g->nprompt && session_length(s, 0) <= o->held), "%d tokens held", o->held);
    for (int k = 0; k < n; k++) {
        CHECK(g[k].nprompt >= 1, "prompt %d is empty", k);
        g[k].text = (Text){.nstop = o->nstop, .stop = o->stop};
    }
    Work w = {.s = s, .tk = tk, .o = o, .g = g};
    Prefixes x;
    PrefixText *text = xcalloc((size_t)n, sizeof *text);
    bool ok = false;
    w.place = xcalloc(places, sizeof *w.place);
    w.feed = xcalloc(places, sizeof *w.feed);
    w.threads = imin((int)places, device_threads(s->model->dev));
    w.token = xcalloc(places, sizeof *w.token);
    if (o->max_new && session_draws(s)) {
        if (!session_draw_open(s, e)) goto done;
        w.rows = xcalloc(places, sizeof *w.rows);
        w.drawn = xcalloc(places, sizeof *w.drawn);
    } else {
        w.cand = xcalloc((size_t)w.threads * V, sizeof *w.cand);
        w.why = xcalloc(places, sizeof *w.why);
        w.logits = xcalloc(places * V, sizeof *w.logits);
    }
    for (size_t i = 0; i < places; i++) w.place[i] = (Place){.which = -1, .seen = xcalloc(V, 1)};
    for (int k = 0; k < n; k++) text[k] = (PrefixText){g[k].nprompt, g[k].prompt};
    prefixes_open(&x, text, n, s->opts.spare, o->apart);
    ok = run(&w, &x, e);
    prefixes_close(&x);
    for (int i = 0; i < s->opts.nseq + s->opts.spare; i++) session_reset(s, i);
    for (size_t i = 0; i < places; i++) free(w.place[i].seen);
done:
    free(text);
    free(w.rows);
    free(w.drawn);
    free(w.place);
    free(w.feed);
    free(w.cand);
    free(w.token);
    free(w.why);
    free(w.logits);
    return ok;
}

void generation_free(Generation *g) {
    free(g->tok);
    text_free(&g->text);
    g->tok = NULL;
}
