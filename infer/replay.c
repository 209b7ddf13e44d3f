#include "replay.h"

bool replay_requests(PolicyCfg *p, const Tokenizer *t, Err *e) {
    static const char *const repeat[REQUESTS] = {
        [REQUEST_FIRST] = "\n\nRepeat the previous context exactly.",
        [REQUEST_NEXT] = "\n\nRepeat the part of the previous context exactly, starting with",
        [REQUEST_END] = "\n",
    };
    static const char *const catalyst[REQUESTS] = {"\n\nSummarize the critical points of the previous context.\n"};
    const char *const *words = policy_whom(p) == ASK_PROMPT ? catalyst : repeat;
    for (int i = 0; i < REQUESTS && words[i]; i++) {
        Ids ids = {0};
        bool ok = tokenizer_encode(t, words[i], strlen(words[i]), ENCODE_LATER | ENCODE_JOINED, &ids, e);
        if (ok && ids.n > REQUEST_MOST)
            ok = err_input(e, "--policy %s: its request has %zu tokens, expected at most %d; use another policy",
                           p->of->name, (size_t)ids.n, REQUEST_MOST);
        for (int k = 0; ok && k < (int)ids.n; k++) p->request[i].tok[k] = ids.id[k];
        p->request[i].n = ok ? (int)ids.n : 0;
        ids_free(&ids);
        if (!ok) return false;
    }
    return true;
}

/* The arrays of a pass of one sequence, and what is fed in it. */
typedef struct {
    int *of, *pos, *first, *feed;
    uint64_t id;
} Replaying;
/* A chunk of the context, its tokens lo..hi-1, behind its request. Returns how many tokens that is. */
static int replay_chunk(const PolicyCfg *p, const int *context, int lo, int hi, int *out) {
    const PolicyAsked *ask = &p->request[lo ? REQUEST_NEXT : REQUEST_FIRST], *end = &p->request[REQUEST_END];
    int n = 0;
    for (int i = 0; i < ask->n; i++) out[n++] = ask->tok[i];
    for (int i = imax(0, lo - REPLAY_NAMED); i < lo && ask->n; i++) out[n++] = context[i];
    for (int i = 0; i < end->n; i++) out[n++] = end->tok[i];
    for (int i = lo; i < hi; i++) out[n++] = context[i];
    return n;
}
static bool replay_pass(Session *s, Replaying *x, int from, int n, const int *tok, Err *e) {
    const int off[] = {0, n};
    for (int i = 0; i < n; i++) x->of[i] = 0, x->pos[i] = from + i, x->first[i] = -1;
    x->id = (uint64_t)s->cache.spare;
    const Batch b = {1, n, off, &s->cache.spare, x->of, x->pos, x->first, &x->id, true, NULL};
    return model_extend(s->model, session_workspace(s), &s->cache, &b, tok, (RowList){0, x->of}, ABSENT, e);
}
static int replay_rows_most(const Session *s) { return imin(s->opts.chunk, REPLAY_ROWS); }
static Replaying replay_arrays(const Session *s, int seq) {
    const size_t rows = (size_t)replay_rows_most(s),
                 most = (size_t)policy_replay_tokens(s->model->opts.policy, s->next[seq]);
    Replaying x = {.of = xcalloc(3 * rows + most, sizeof(int))};
    x.pos = x.of + rows, x.first = x.pos + rows, x.feed = x.first + rows;
    return x;
}
/* Feeds a copy of the sequence the first `all` tokens of x->feed, whose queries judge the rows at lo..hi-1. */
static bool replay_feed(Session *s, Replaying *x, int seq, int all, int lo, int hi, Err *e) {
    const int n = s->next[seq];
    bool ok = true;
    kv_replay_begin(&s->cache, seq, n);
    for (int at = 0, m; ok && at < all; at += m) {
        m = imin(replay_rows_most(s), all - at);
        if ((ok = replay_pass(s, x, n + at, m, x->feed + at, e)))
            model_replayed(session_workspace(s), &s->cache, n + at, m, lo, hi);
    }
    if (!ok) kv_replay_drop(&s->cache);
    return ok;
}
static bool replay_prompt(Session *s, int seq, Err *e) {
    const PolicyAsked *prompt = &s->model->opts.policy->request[REQUEST_FIRST];
    Replaying x = replay_arrays(s, seq);
    memcpy(x.feed, prompt->tok, (size_t)prompt->n * sizeof *x.feed);
    const bool ok = replay_feed(s, &x, seq, prompt->n, 0, s->next[seq], e);
    free(x.of);
    return ok;
}
bool session_replay(Session *s, int seq, Err *e) {
    const PolicyCfg *p = s->model->opts.policy;
    const int n = s->next[seq];
    if (!policy_replays(p, n) || p->every) return true;
    if (policy_whom(p) == ASK_PROMPT) return replay_prompt(s, seq, e);
    Replaying x = replay_arrays(s, seq);
    bool ok = true;
    for (int lo = 0, hi; ok && lo < n; lo = hi) {
        hi = lo + imin(n - lo, p->chunk);
        ok = replay_feed(s, &x, seq, replay_chunk(p, session_fed(s, seq), lo, hi, x.feed), lo, hi, e);
    }
    free(x.of);
    return ok;
}
bool session_prompt_asked(Session *s, int seq, Err *e) {
    const PolicyCfg *p = s->model->opts.policy;
    const int n = s->next[seq];
    if (!policy_replays(p, n) || !p->every || n % p->every) return true;
    if (!replay_prompt(s, seq, e)) return false;
    model_prompt_asked(session_workspace(s), &s->cache, seq, n);
    return true;
}
