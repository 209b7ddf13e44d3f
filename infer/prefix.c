#include "prefix.h"

/* Tokens that two texts have in common, without the last of either: it is fed for its logits. */
static int prefix_common(const PrefixText *a, const PrefixText *b) {
    const int most = imin(a->n, b->n) - 1;
    int n = 0;
    while (n < most && a->tok[n] == b->tok[n]) n++;
    return n;
}
static int prefix_order(const void *a, const void *b, void *ctx) {
    const PrefixText *text = ctx, *x = &text[*(const int *)a], *y = &text[*(const int *)b];
    for (int i = 0; i < x->n && i < y->n; i++)
        if (x->tok[i] != y->tok[i]) return x->tok[i] < y->tok[i] ? -1 : 1;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return *(const int *)a - *(const int *)b;
}

void prefixes_open(Prefixes *p, const PrefixText *text, int n, int spare, bool apart) {
    const size_t places = (size_t)n + 1;
    *p = (Prefixes){.text = text, .n = n, .most = imin(spare, PREFIX_DEPTH), .apart = apart};
    p->order = xcalloc(places, sizeof(int)), p->same = xcalloc(places, sizeof(int));
    p->less = xcalloc(places, sizeof(int));
    for (int i = 0; i < n; i++) p->order[i] = i;
    if (!p->most) return; /* in their own order */
    qsort_r(p->order, (size_t)n, sizeof *p->order, prefix_order, (void *)text);
    for (int i = 1; i < n; i++) p->same[i] = prefix_common(&text[p->order[i - 1]], &text[p->order[i]]);
    /* place n, and 0, have nothing in common with the text before */
    for (int i = n - 1; i >= 0; i--)
        for (p->less[i] = i + 1; p->less[i] < n && p->same[p->less[i]] >= p->same[i];) p->less[i] = p->less[p->less[i]];
}
void prefixes_close(Prefixes *p) {
    free(p->order), free(p->same), free(p->less);
    *p = (Prefixes){0};
}

/* The prefixes of the text at place `at`: those of the text before that it has, and those that it has in common with
 * texts after it. Returns how many of the former. */
static int prefixes_walk(Prefixes *p) {
    const int at = p->at++;
    int kept;
    while (p->depth && p->len[p->depth - 1] > p->same[at]) p->depth--;
    kept = p->depth;
    while (p->depth < p->most) { /* the shortest that is long enough, then on from there */
        const int least = (p->depth ? p->len[p->depth - 1] : 0) + PREFIX_LEAST;
        int found = 0;
        for (int i = at + 1; i < p->n && p->same[i] >= least; i = p->less[i]) found = p->same[i];
        if (!found) break;
        p->len[p->depth++] = found;
    }
    return kept;
}
int prefixes_depth(const PrefixText *text, int n) {
    Prefixes p;
    int most = 0;
    prefixes_open(&p, text, n, PREFIX_DEPTH, false);
    while (p.at < n) {
        prefixes_walk(&p);
        most = imax(most, p.depth);
    }
    prefixes_close(&p);
    return most;
}

bool prefixes_next(Prefixes *p, Session *s, int seq, int *which, int *have, int *computed, Err *e) {
    CHECK(p->at < p->n && p->most <= s->opts.spare, "text %d of %d, %d prefixes in %d places", p->at, p->n, p->most,
          s->opts.spare);
    const int kept = p->apart ? (prefixes_walk(p), 0) : prefixes_walk(p);
    const PrefixText *text = &p->text[p->order[p->at - 1]];
    *which = p->order[p->at - 1];
    *have = p->depth ? p->len[p->depth - 1] : 0;
    *computed = *have - (kept ? p->len[kept - 1] : 0);
    session_reset(s, seq);
    for (int i = kept; i < p->depth; i++) {
        const int to = p->apart ? seq : s->opts.nseq + i, from = i ? p->len[i - 1] : 0;
        if (!p->apart) session_reset(s, to);
        if (!p->apart && i) session_fork(s, to - 1, to);
        if (!session_extend(s, 1, &(Feed){to, p->len[i] - from, text->tok + from}, WANT_LAST, ABSENT, e)) return false;
    }
    if (!p->apart && p->depth) session_fork(s, s->opts.nseq + p->depth - 1, seq);
    return true;
}
