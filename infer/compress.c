#include "compress.h"
#include "infer/eval/task_run.h"

/* A text that grows, in two of the session's sequences: what stays of it, and a copy that scores what may follow. */
typedef struct {
    Session *s;
    int seq;
    const int *head; /* what comes before it; */
    int nhead, start;
    int *text, n; /* what stays of it */
    real *last;   /* (V) logits after it; of a text without a token: nothing */
} Stream;
enum { SEQUENCES = 4, ROOM = 1 << 24 };

static int stream_fed(const Stream *t) { return session_length(t->s, t->seq); }
static bool stream_feed(Stream *t, int n, const int *tok, Err *e) {
    return !n || session_extend(t->s, 1, &(Feed){t->seq, n, tok}, WANT_LAST,
                                TENSOR(t->last, REAL, 1, t->s->model->cfg.vocab), e);
}
/* From the start: the head, and of the text so far its newest `keep` tokens. */
static bool stream_begin(Stream *t, int keep, Err *e) {
    session_reset(t->s, t->seq);
    keep = imin(keep, t->n);
    return stream_feed(t, t->start >= 0, &t->start, e) && stream_feed(t, t->nhead, t->head, e) &&
           stream_feed(t, keep, t->text + t->n - keep, e);
}
static bool stream_open(Stream *t, Session *s, int seq, int start, int nhead, const int *head, int most, Err *e) {
    *t = (Stream){.s = s, .seq = seq, .head = head, .nhead = nhead, .start = start};
    t->text = xcalloc((size_t)most + 1, sizeof(int));
    t->last = xcalloc((size_t)s->model->cfg.vocab, sizeof(real));
    return stream_begin(t, 0, e);
}
static void stream_close(Stream *t) { free(t->text), free(t->last); }
/* -log p of n tokens after the text, which does not change; of one that nothing comes before: infinite. Of a text that
 * has become too long only its newest part comes before them. */
static bool stream_score(Stream *t, int n, const int *tok, double *nll, Err *e) {
    const int V = t->s->model->cfg.vocab, room = t->s->opts.max_tokens, fixed = (t->start >= 0) + t->nhead;
    bool hit;
    if (stream_fed(t) + n > room) {
        if (fixed + n > room)
            return err_input(e,
                             "%d tokens that are scored after %d do not fit the context of %d; give a larger "
                             "--context or a smaller --segment",
                             n, fixed, room);
        if (!stream_begin(t, (room - fixed - n) / 2, e)) return false;
    }
    session_fork(t->s, t->seq, t->seq + 1);
    nll[0] = stream_fed(t) ? logits_nll(t->last, V, tok[0], &hit) : INFINITY;
    const int piece = imax(1, ROOM / V);
    real *logits = xcalloc((size_t)imin(piece, n) * (size_t)V, sizeof *logits);
    bool ok = true;
    for (int at = 0, m; ok && at < n - 1; at += m) { /* the last one predicts nothing that is asked */
        m = imin(piece, n - 1 - at);
        ok = session_extend(t->s, 1, &(Feed){t->seq + 1, m, tok + at}, WANT_ALL, TENSOR(logits, REAL, m, V), e);
        for (int i = 0; ok && i < m; i++)
            nll[at + i + 1] = logits_nll(logits + (size_t)i * (size_t)V, V, tok[at + i + 1], &hit);
    }
    free(logits);
    session_reset(t->s, t->seq + 1);
    for (int i = stream_fed(t) == 0; ok && i < n; i++)
        if (!isfinite(nll[i])) ok = err_runtime(e, "-log p of a token is %g: the model's weights are damaged", nll[i]);
    return ok;
}
static bool stream_keep(Stream *t, int n, const int *tok, Err *e) {
    memcpy(t->text + t->n, tok, (size_t)n * sizeof *tok);
    t->n += n;
    if (stream_fed(t) + n <= t->s->opts.max_tokens) return stream_feed(t, n, tok, e);
    return stream_begin(t, (t->s->opts.max_tokens - (t->start >= 0) - t->nhead) / 2, e);
}

/* ---- passages ----------------------------------------------------------------------------------------------------*/

static bool passage_score(Session *s, const CompressOpts *o, Passage *p, Err *e) {
    const int room = s->opts.max_tokens - (o->start >= 0), asked = imax(1, o->nasked),
              n = imin(p->n, o->nquestion ? room - asked : room), scored = o->nquestion ? asked : n;
    if (n < 1)
        return err_input(e, "a question of %d tokens leaves no room in the context of %d; give a larger --context",
                         asked, s->opts.max_tokens);
    Stream t;
    double *nll = xcalloc((size_t)scored, sizeof *nll), sum = 0;
    /* with a question the end of the passage comes before it, else its begin is scored */
    bool ok = stream_open(&t, s, 0, o->start, o->nquestion ? n : 0, p->tok + p->n - n, 0, e) &&
              stream_score(&t, scored, o->nquestion ? o->question : p->tok, nll, e);
    int counted = 0;
    for (int i = 0; ok && i < scored; i++)
        if (isfinite(nll[i])) sum += nll[i], counted++;
    p->score = counted ? sum / counted : 0;
    free(nll);
    stream_close(&t);
    return ok;
}
typedef struct {
    double score;
    int at;
} Placed;
static int lowest_first(const void *a, const void *b) {
    const Placed *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? -1 : 1) : x->at - y->at;
}
static int by_place(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
/* Writes ranks; `order` gets the passages that stay, by rank. Returns how many. */
static int passages_left(const CompressOpts *o, int n, Passage *p, double most, int *order) {
    Placed *x = xcalloc((size_t)n, sizeof *x);
    int left = 0;
    for (int i = 0; i < n; i++) x[i] = (Placed){o->nquestion ? p[i].score : -p[i].score, i};
    qsort(x, (size_t)n, sizeof *x, lowest_first);
    double tokens = 0;
    for (int i = 0; i < n; i++) {
        p[x[i].at].rank = i;
        if (left < i || (i && tokens >= most)) continue;
        order[left++] = x[i].at;
        tokens += p[x[i].at].n;
    }
    free(x);
    return left;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------*/

/* Of n tokens the `stay` of highest score, of equal ones older ones. */
static void segment_keep(int n, const double *score, int stay, bool *keep) {
    Placed *x = xcalloc((size_t)n, sizeof *x);
    for (int i = 0; i < n; i++) x[i] = (Placed){-score[i], i};
    qsort(x, (size_t)n, sizeof *x, lowest_first);
    for (int i = 0; i < n; i++) keep[x[i].at] = i < stay;
    free(x);
}
typedef struct {
    Stream plain, asked; /* the text; after the question */
    double *score, *more;
    int *tok;
} Filter;
static bool filter_passage(Filter *f, const CompressOpts *o, Passage *p, double rate, Err *e) {
    p->kept = 0;
    for (int lo = 0, n; lo < p->n; lo += n) {
        n = imin(o->segment, p->n - lo);
        const int stay = imax(0, imin(n, (int)floor(rate * (lo + n) + 0.5) - p->kept));
        if (!stream_score(&f->plain, n, p->tok + lo, f->score, e)) return false;
        if (o->nquestion && !stream_score(&f->asked, n, p->tok + lo, f->more, e)) return false;
        for (int i = 0; i < n && o->nquestion; i++)
            if (isfinite(f->score[i])) f->score[i] -= f->more[i];
        segment_keep(n, f->score, stay, p->keep + lo);
        int m = 0;
        for (int i = 0; i < n; i++)
            if (p->keep[lo + i]) f->tok[m++] = p->tok[lo + i];
        p->kept += m;
        if (!stream_keep(&f->plain, m, f->tok, e)) return false;
        if (o->nquestion && !stream_keep(&f->asked, m, f->tok, e)) return false;
    }
    return true;
}
static bool filter(Session *s, const CompressOpts *o, Passage *p, const int *order, int left, double budget, Err *e) {
    int tokens = 0;
    for (int i = 0; i < left; i++) tokens += p[order[i]].n;
    Filter f = {0};
    const size_t most = (size_t)o->segment;
    f.score = xcalloc(most, sizeof(double)), f.more = xcalloc(most, sizeof(double)), f.tok = xcalloc(most, sizeof(int));
    bool ok = stream_open(&f.plain, s, 0, o->start, 0, NULL, tokens, e) &&
              (!o->nquestion || stream_open(&f.asked, s, 2, o->start, o->nquestion, o->question, tokens, e));
    for (int i = 0; ok && i < left; i++) {
        Passage *x = &p[order[i]];
        double rate = budget / tokens;
        if (o->nquestion) rate += o->slope * (1 - 2.0 * x->rank / left);
        ok = filter_passage(&f, o, x, fmin(1, fmax(0, rate)), e);
    }
    stream_close(&f.plain), stream_close(&f.asked);
    free(f.score), free(f.more), free(f.tok);
    return ok;
}

SessionOpts compress_session(const CompressOpts *o, int max_tokens, int chunk) {
    return (SessionOpts){.nseq = o->nquestion ? SEQUENCES : SEQUENCES / 2,
                         .max_tokens = max_tokens,
                         .chunk = chunk,
                         .document = -1,
                         .want_all = true};
}
bool compress(Session *s, const CompressOpts *o, int n, Passage *p, int *order, int *nleft, Err *e) {
    double all = 0;
    CHECK(n >= 1 && o->rate > 0 && o->rate <= 1 && o->coarse >= 1 && o->segment >= 1 && o->nasked >= o->nquestion,
          "%d passages, rate %g, coarse %g, segments of %d", n, o->rate, o->coarse, o->segment);
    for (int i = 0; i < n; i++) all += p[i].n, p[i].score = NAN, p[i].rank = order[i] = i, p[i].kept = 0;
    *nleft = n;
    for (int i = 0; i < n; i++) memset(p[i].keep, o->rate == 1, (size_t)p[i].n * sizeof *p[i].keep);
    for (int i = 0; i < n && o->rate == 1; i++) p[i].kept = p[i].n;
    if (o->rate == 1) return true;
    const double budget = ceil(o->rate * all - 1e-9);
    for (int i = 0; i < n; i++)
        if (!passage_score(s, o, &p[i], e)) return false;
    *nleft = passages_left(o, n, p, o->coarse * budget, order);
    if (!o->nquestion || o->in_order) qsort(order, (size_t)*nleft, sizeof *order, by_place);
    return filter(s, o, p, order, *nleft, budget, e);
}
