#include "task_run.h"
#include "data/task_text.h"
#include "infer/session.h"

bool task_spelled(const Engine *en, const Task *kind) { return kind->text && en->text && !en->task.kind; }

double task_stderr(const TaskScore *s) {
    const double n = (double)s->samples, mean = s->part / n;
    return s->samples > 1 ? sqrt(fmax(0, s->square / n - mean * mean) / (n - 1)) : NAN;
}
void task_score_add(TaskScore *to, const TaskScore *s) {
    to->samples += s->samples, to->answers += s->answers, to->right += s->right, to->whole += s->whole;
    to->nll += s->nll, to->part += s->part, to->square += s->square, to->bytes += s->bytes;
    to->read += s->read, to->rows += s->rows, to->prompt += s->prompt, to->prompt_s += s->prompt_s,
        to->decode_s += s->decode_s;
}

double logits_nll(const real *logits, int V, int target, bool *hit) {
    double top = logits[0], sum = 0;
    int first = 0;
    /* not fmax: gcc 12 for aarch64 fails to compile that reduction */
    for (int v = 1; v < V; v++)
        if (logits[v] > top) top = logits[v], first = v;
    for (int v = 0; v < V; v++) sum += exp((double)logits[v] - top);
    if (hit) *hit = first == target && isfinite(sum);
    return log(sum) + top - (double)logits[target];
}
double logits_kl(const real *p, const real *q, int V, bool *same) {
    double top[2] = {p[0], q[0]}, sum[2] = {0, 0}, kl = 0;
    int first[2] = {0, 0};
    for (int v = 1; v < V; v++) {
        if (p[v] > top[0]) top[0] = p[v], first[0] = v;
        if (q[v] > top[1]) top[1] = q[v], first[1] = v;
    }
    for (int v = 0; v < V; v++) sum[0] += exp(p[v] - top[0]), sum[1] += exp(q[v] - top[1]);
    const double lp = top[0] + log(sum[0]), lq = top[1] + log(sum[1]);
    for (int v = 0; v < V; v++) kl += exp(p[v] - lp) * ((p[v] - lp) - (q[v] - lq));
    *same = first[0] == first[1];
    return fmax(0, kl);
}

bool engine_open_dense(Engine *en, const Engine *of, const Cli *cli, Err *e) {
    Cli plain = *cli;
    plain.policy = (PolicyCfg){0}, plain.codec = NULL, plain.adapter = of->adapter;
    if (!engine_read(en, of->dir, &plain, e)) return false;
    ModelOpts o = engine_bf16(&plain, (ModelOpts){0});
    o.policy = NULL; /* `plain` does not outlive this call */
    if (o.tier) o.tier = &cli->tier;
    return engine_load(en, o, e);
}

/* ---- samples -----------------------------------------------------------------------------------------------------*/

typedef struct {
    const TaskCfg *c;
    const TaskHow *how;
    const Tokenizer *t; /* NULL: ids */
    int pieces;         /* of a sample whose text is tokenized; 0: not known yet */
    int *tok, *tgt;     /* (batch, T) */
    int *end;           /* (batch) row at which the prompt ends */
    int *ids, *want;    /* (T + 1) of a sample in pieces */
    void *work;
} Samples;

static int first_asked(const int *tgt, int T) {
    int i = 0;
    while (i < T && tgt[i] < 0) i++;
    return i;
}
/* Appends the ids of a piece of text. */
static bool sample_text(const Samples *s, const TaskCfg *c, int from, int to, Ids *out, Err *e) {
    char *text = task_spell(c, s->ids, from, to);
    const bool ok = tokenizer_encode(s->t, text, strlen(text), from ? ENCODE_LATER | ENCODE_JOINED : 0, out, e);
    free(text);
    return ok;
}
/* The tokens of sample `number` in `pieces` pieces; those that are answers are marked in s->want, which must hold them.
 * *n > T + 1: it is too long, and nothing is written. */
static bool sample_tokens(Samples *s, int64_t number, int pieces, int q, int *n, Err *e) {
    const int T = s->c->T;
    TaskCfg c = *s->c;
    c.T = pieces;
    task_sample(&c, TASK_TEST, (uint64_t)s->how->seed, (uint64_t)number, s->ids, s->want, s->work);
    const TaskParts parts = task_parts(&c, s->ids);
    const int first = first_asked(s->want, pieces) + 1;
    int at[] = {0, parts.question, parts.prefix, first};
    int *tok = s->tok + (size_t)q * (size_t)T, *tgt = s->tgt + (size_t)q * (size_t)T, end = 0;
    s->ids[pieces] = s->want[pieces - 1];
    Ids out = {0};
    bool ok = true;
    if (s->t->bos >= 0) ids_push(&out, s->t->bos);
    for (int k = 0; ok && k < 3; k++) {
        if (k == (s->how->agnostic ? 1 : 2)) end = (int)out.n;
        ok = sample_text(s, &c, at[k], at[k + 1], &out, e);
    }
    for (int i = 0; i < T; i++) tgt[i] = -1;
    for (int from = first, to; ok && from <= pieces; from = to) {
        const bool asked = s->want[from - 1] >= 0;
        const size_t begin = out.n;
        for (to = from; to <= pieces && (s->want[to - 1] >= 0) == asked; to++) {}
        ok = sample_text(s, &c, from, to, &out, e);
        for (size_t i = begin; ok && asked && i < out.n && i <= (size_t)T; i++) tgt[i - 1] = out.id[i];
    }
    *n = (int)zmin(out.n, INT32_MAX);
    for (int i = 0; i < T; i++) tok[i] = i < *n ? out.id[i] : 0;
    s->end[q] = end;
    ids_free(&out);
    return ok;
}
/* The most pieces whose text fits. */
static bool sample_fit(Samples *s, int64_t number, int q, Err *e) {
    const int T = s->c->T, least = task_text_least(s->c, T);
    int n = 0;
    if (!least) return s->c->kind->check(s->c, e) && err_input(e, "%s: no sample has %d tokens", s->c->kind->name, T);
    for (int low = least, high = T + 1; low < high;) {
        const int mid = low + (high - low) / 2;
        if (!sample_tokens(s, number, mid, q, &n, e)) return false;
        if (n <= T + 1)
            low = s->pieces = mid, low++;
        else
            high = mid;
    }
    return s->pieces || err_input(e,
                                  "%s: the text of the shortest sample has more than the %d tokens of T; give a "
                                  "larger T, or smaller settings",
                                  s->c->kind->name, T);
}
static bool sample_make(Samples *s, int64_t number, int q, Err *e) {
    const int T = s->c->T;
    int *tok = s->tok + (size_t)q * (size_t)T, *tgt = s->tgt + (size_t)q * (size_t)T, n = 0;
    if (!s->t) {
        task_sample(s->c, TASK_TEST, (uint64_t)s->how->seed, (uint64_t)number, tok, tgt, s->work);
        s->end[q] = first_asked(tgt, T) + 1;
        if (!s->c->kind->text) return true;
        const TaskParts p = task_parts(s->c, tok);
        s->end[q] = s->how->agnostic ? p.question : p.prefix;
        return true;
    }
    if (!s->pieces && !sample_fit(s, number, q, e)) return false;
    for (int pieces = s->pieces, least = task_text_least(s->c, T);;
         pieces = imax(least, pieces - imax(1, pieces / 50))) {
        if (!sample_tokens(s, number, pieces, q, &n, e)) return false;
        if (n <= T + 1) return true;
        if (pieces == least)
            return err_input(e, "%s: the text of a shortest sample has %d tokens, but T is %d; give a larger T",
                             s->c->kind->name, n - 1, T);
    }
}

/* ---- passes ------------------------------------------------------------------------------------------------------*/

typedef struct {
    Session s;
    TaskScore *score;
    real *logits; /* (batch, V) */
} Side;
typedef struct {
    Samples from;
    Side side[2]; /* the cache; the dense one */
    int sides, *at, *right, *asked;
    Feed *feed;
} Work;

/* Feeds the pieces to one side; at the row where a sample's prompt ends its policy may act. */
static bool side_feed(Work *w, Side *d, int B, Err *e) {
    const int V = d->s.model->cfg.vocab;
    const bool selects = d->s.cache.policy.read;
    bool prompt = true;
    for (int i = 0; i < B; i++) {
        const int q = w->feed[i].seq, at = w->at[q] - w->feed[i].n;
        if (at < w->from.end[q]) continue;
        prompt = false;
        for (int k = 0; k < w->feed[i].n && !selects; k++) d->score->read += (double)session_bytes(&d->s, q);
        d->score->rows += w->feed[i].n;
    }
    const double start = now_seconds();
    if (!session_extend(&d->s, B, w->feed, WANT_LAST, TENSOR(d->logits, REAL, B, V), e)) return false;
    if (selects && !prompt) d->score->read += (double)d->s.read;
    for (int i = 0; i < B; i++) {
        const int q = w->feed[i].seq;
        if (w->at[q] != w->from.end[q]) continue;
        if (!session_prompt_ends(&d->s, q, e)) return false;
        d->score->bytes += (double)session_bytes(&d->s, q);
        d->score->prompt += w->from.end[q];
    }
    *(prompt ? &d->score->prompt_s : &d->score->decode_s) += now_seconds() - start;
    return true;
}
/* The samples, each fed up to the end of its prompt and then to its next question, until none has one left. */
static bool batch_run(Work *w, int b, TaskAgainst *against, Err *e) {
    const int T = w->from.c->T, V = w->side[0].s.model->cfg.vocab;
    for (int q = 0; q < b; q++) w->at[q] = w->right[q] = w->asked[q] = 0;
    for (int k = 0; k < w->sides; k++)
        for (int q = 0; q < b; q++) session_reset(&w->side[k].s, q);
    for (;;) {
        int B = 0;
        for (int q = 0; q < b; q++) {
            const int *tgt = w->from.tgt + (size_t)q * (size_t)T, from = w->at[q];
            int to = from + first_asked(tgt + from, T - from) + 1;
            if (to > T) continue;
            if (from < w->from.end[q]) to = imin(to, w->from.end[q]);
            w->feed[B++] = (Feed){q, to - from, w->from.tok + (size_t)q * (size_t)T + from};
            w->at[q] = to;
        }
        if (!B) break;
        for (int k = 0; k < w->sides; k++)
            if (!side_feed(w, &w->side[k], B, e)) return false;
        for (int i = 0; i < B; i++) {
            const int q = w->feed[i].seq, target = w->from.tgt[(size_t)q * (size_t)T + (size_t)w->at[q] - 1];
            if (target < 0) continue;
            bool hit = false;
            const real *logits[2] = {w->side[0].logits + (size_t)i * (size_t)V,
                                     w->sides > 1 ? w->side[1].logits + (size_t)i * (size_t)V : NULL};
            for (int k = w->sides - 1; k >= 0; k--) {
                w->side[k].score->nll += logits_nll(logits[k], V, target, &hit);
                w->side[k].score->answers++;
                w->side[k].score->right += hit;
            }
            w->right[q] += hit, w->asked[q]++;
            if (w->sides == 1) continue;
            against->kl += logits_kl(logits[1], logits[0], V, &hit);
            against->same += hit;
            against->answers++;
        }
    }
    for (int q = 0; q < b; q++) {
        const double part = (double)w->right[q] / w->asked[q];
        w->side[0].score->whole += w->right[q] == w->asked[q];
        w->side[0].score->part += part;
        w->side[0].score->square += part * part;
        for (int k = 0; k < w->sides; k++) w->side[k].score->samples++;
    }
    return true;
}

bool task_run(Engine *en, Engine *dense, const TaskCfg *c, const TaskHow *how, TaskScore *score, TaskAgainst *against,
              Err *e) {
    const size_t b = (size_t)(how->samples < how->batch ? how->samples : how->batch), T = (size_t)c->T;
    const SessionOpts o = {.nseq = (int)b, .max_tokens = c->T, .chunk = imax(how->chunk, (int)b), .document = -1};
    Work w = {.from = {.c = c, .how = how, .t = task_spelled(en, c->kind) ? &en->tokenizer : NULL},
              .sides = dense ? 2 : 1};
    Engine *const engine[] = {en, dense};
    TaskScore *const to[] = {score, dense ? &against->dense : NULL};
    bool ok = true;
    int open = 0;
    while (ok && open < w.sides) {
        Side *d = &w.side[open];
        if (!(ok = session_open(&d->s, &engine[open]->model, o, e))) break;
        d->score = to[open++];
        d->logits = xcalloc(b * (size_t)en->cfg.vocab, sizeof *d->logits);
    }
    w.feed = xcalloc(b, sizeof *w.feed);
    w.at = xcalloc(b, sizeof *w.at), w.right = xcalloc(b, sizeof *w.right), w.asked = xcalloc(b, sizeof *w.asked);
    w.from.tok = xcalloc(b * T, sizeof(int)), w.from.tgt = xcalloc(b * T, sizeof(int));
    w.from.end = xcalloc(b, sizeof(int));
    w.from.ids = xcalloc(T + 1, sizeof(int)), w.from.want = xcalloc(T + 1, sizeof(int));
    w.from.work = xcalloc(task_work(c) + 1, 1);
    for (int64_t at = 0; ok && at < how->samples; at += (int64_t)b) {
        const int n = (int)(how->samples - at < (int64_t)b ? how->samples - at : (int64_t)b);
        for (int q = 0; ok && q < n; q++) ok = sample_make(&w.from, at + q, q, e);
        ok = ok && batch_run(&w, n, against, e);
    }
    free(w.feed), free(w.at), free(w.right), free(w.asked);
    free(w.from.tok), free(w.from.tgt), free(w.from.end), free(w.from.ids), free(w.from.want), free(w.from.work);
    while (open--) free(w.side[open].logits), session_close(&w.side[open].s);
    return ok;
}
