#include "eval_ppl.h"
#include "data/text.h"
#include "infer/session.h"
#include "task_run.h"

/* Inputs at .. at+n-1 of the stream, of which the first `skip` are context alone: an earlier window scored them. */
typedef struct {
    size_t at;
    int n, skip;
} Window;
/* Window k of `context` inputs at a distance of `stride`. False: there is none. */
static bool window_at(const Tokens *t, size_t k, int context, int stride, Window *w) {
    size_t inputs = t->n - 1, at = k * (size_t)stride, before = k ? (k - 1) * (size_t)stride + (size_t)context : 0;
    if (k && before >= inputs) return false;
    *w = (Window){.at = at, .n = (int)zmin((size_t)context, inputs - at), .skip = k ? (int)(before - at) : 0};
    return true;
}

typedef struct {
    size_t tokens, bytes, same; /* same: the dense cache's likeliest token is the same */
    double nll, kl;             /* sums, nats; kl: KL(dense || this) */
} Score;

/* dense: the logits of a dense cache for the row, or NULL. */
static void score_row(Score *s, const Tokenizer *tk, const real *logits, const real *dense, int V, int target) {
    size_t n = 0;
    bool same = false;
    if (target < tk->vocab && !tokenizer_special(tk, target)) tokenizer_decode(tk, target, &n);
    s->nll += logits_nll(logits, V, target, NULL);
    if (dense) s->kl += logits_kl(dense, logits, V, &same);
    s->same += same;
    s->bytes += n;
    s->tokens++;
}
static void score_add(Score *to, const Score *s) {
    to->tokens += s->tokens, to->bytes += s->bytes, to->same += s->same;
    to->nll += s->nll, to->kl += s->kl;
}

typedef struct {
    Session s, dense; /* dense: open if there is one to compare with */
    bool against;
    const Tokens *stream;
    const Tokenizer *tk;
    int context, stride, chunk, *ids; /* ids: (nseq, context) inputs */
    Window *win;
    Feed *feed;
    real *logits, *other; /* (chunk, V); other: of the dense cache */
    int buckets;
    Score sum;     /* of all, in the order of the text */
    Score *bucket; /* (buckets) of equal parts of the context, by the input's place in its window */
} Work;

/* Feed `n` windows' tokens from..to-1 (cut at each window's end) in pieces that one pass can hold; score them or not.
 */
static bool feed_range(Work *w, int n, bool scored, Err *e) {
    int V = w->s.model->cfg.vocab, step = imax(1, w->chunk / n);
    for (int done = 0;; done += step) {
        int B = 0, rows = 0;
        for (int q = 0; q < n; q++) {
            int from = scored ? w->win[q].skip : 0, to = scored ? w->win[q].n : w->win[q].skip,
                m = imin(step, to - from - done);
            if (m <= 0) continue;
            w->feed[B++] = (Feed){q, m, w->ids + (size_t)q * (size_t)w->context + from + done};
            rows += m;
        }
        if (!B) return true;
        Tensor out = scored ? TENSOR(w->logits, REAL, rows, V) : ABSENT,
               other = scored ? TENSOR(w->other, REAL, rows, V) : ABSENT;
        if (!session_extend(&w->s, B, w->feed, WANT_ALL, out, e)) return false;
        if (w->against && !session_extend(&w->dense, B, w->feed, WANT_ALL, other, e)) return false;
        size_t row = 0;
        for (int b = 0; scored && b < B; b++) {
            const int place = (int)(w->feed[b].tok - (w->ids + (size_t)w->feed[b].seq * (size_t)w->context));
            const size_t first = w->win[w->feed[b].seq].at + (size_t)place;
            for (int i = 0; i < w->feed[b].n; i++, row += (size_t)V) {
                Score one = {0};
                score_row(&one, w->tk, w->logits + row, w->against ? w->other + row : NULL, V,
                          (int)token_at(w->stream, first + (size_t)i + 1));
                score_add(&w->bucket[(int64_t)(place + i) * w->buckets / w->context], &one);
                score_add(&w->sum, &one);
            }
        }
    }
}

static bool ppl_windows(Work *w, int nseq, Err *e) {
    for (size_t k = 0;;) {
        int n = 0;
        for (; n < nseq && window_at(w->stream, k, w->context, w->stride, &w->win[n]); n++, k++) {
            session_reset(&w->s, n);
            if (w->against) session_reset(&w->dense, n);
            for (int i = 0; i < w->win[n].n; i++)
                w->ids[(size_t)n * (size_t)w->context + (size_t)i] = (int)token_at(w->stream, w->win[n].at + (size_t)i);
        }
        if (!n) return true;
        if (!feed_range(w, n, false, e) || !feed_range(w, n, true, e)) return false;
    }
}

static json_t *ppl_json(const Score *s, bool against) {
    const double nll = s->nll / (double)s->tokens;
    json_t *j =
        json_pack("{s:I, s:f, s:o}", "tokens", (json_int_t)s->tokens, "nll", nll, "ppl", engine_number(exp(nll)));
    if (against)
        json_object_update_new(j, json_pack("{s:f, s:f}", "kl", s->kl / (double)s->tokens, "top1",
                                            (double)s->same / (double)s->tokens));
    return j;
}
static void against_print(const Score *s) {
    printf("   KL %.6f nats/token, top-1 agreement %.2f %%", s->kl / (double)s->tokens,
           100 * (double)s->same / (double)s->tokens);
}
/* First input of bucket b. */
static int bucket_at(const Work *w, int b) { return (int)(((int64_t)b * w->context + w->buckets - 1) / w->buckets); }

static bool ppl_report(const Work *w, const Score *s, const Cli *cli, Err *e) {
    const double nll = s->nll / (double)s->tokens, bpb = s->bytes ? s->nll / (log(2) * (double)s->bytes) : NAN;
    if (cli->json) {
        json_t *j =
            json_pack("{s:s, s:I, s:f, s:o, s:o, s:I, s:i, s:i}", "task", "ppl", "tokens", (json_int_t)s->tokens, "nll",
                      nll, "ppl", engine_number(exp(nll)), "bits_per_byte", engine_number(bpb), "bytes",
                      (json_int_t)s->bytes, "context", w->context, "stride", w->stride);
        if (w->against)
            json_object_set_new(j, "against_dense",
                                json_pack("{s:f, s:f}", "kl", s->kl / (double)s->tokens, "top1",
                                          (double)s->same / (double)s->tokens));
        json_t *list = w->buckets > 1 ? json_array() : NULL;
        for (int b = 0; list && b < w->buckets; b++) {
            if (!w->bucket[b].tokens) continue;
            json_t *one = ppl_json(&w->bucket[b], w->against);
            json_object_set_new(one, "from", json_integer(bucket_at(w, b)));
            json_array_append_new(list, one);
        }
        if (list) json_object_set_new(j, "buckets", list);
        return engine_print(j, e);
    }
    printf("ppl %.6g   nll %.6f nats/token   %.6f bits/byte   %zu tokens, %zu bytes, context %d, stride %d\n", exp(nll),
           nll, bpb, s->tokens, s->bytes, w->context, w->stride);
    if (w->against) {
        printf("against the dense cache:");
        against_print(s);
        putchar('\n');
    }
    for (int b = 0; w->buckets > 1 && b < w->buckets; b++) {
        const Score *one = &w->bucket[b];
        if (!one->tokens) continue;
        printf("positions %d to %d: ppl %.6g   nll %.6f nats/token   %zu tokens", bucket_at(w, b),
               bucket_at(w, b + 1) - 1, exp(one->nll / (double)one->tokens), one->nll / (double)one->tokens,
               one->tokens);
        if (w->against) against_print(one);
        putchar('\n');
    }
    return true;
}

/* A set of ids was made elsewhere. */
static bool ids_fit(const Tokens *t, int V, Err *e) {
    for (size_t i = 0; i < t->n; i++) {
        int64_t id = token_at(t, i);
        if (id < 0 || id >= V)
            return err_input(e, "%s: token %zu is id %lld, expected 0 to %d, the model's vocabulary", t->name, i,
                             (long long)id, V - 1);
    }
    return true;
}

static bool ppl_open(const EvalPpl *a, Engine *en, Engine *dense, const Cli *cli, Err *e) {
    int context = a->context ? (int)a->context : en->cfg.max_positions, V = en->cfg.vocab;
    int stride = a->stride ? (int)a->stride : context;
    if (stride > context)
        return err_input(
            e, "eval ppl: --stride %d is more than the context of %d: the tokens between would never be scored", stride,
            context);
    Stream text;
    StreamSpec spec = {.ntrain = 1,
                       .train = &a->data,
                       .key = "--data",
                       .lift = a->bytes ? NULL : "--encoding bytes",
                       .separator = a->separator,
                       .seq_len = 1,
                       .threads = device_threads(en->dev),
                       .vocab = V};
    if (!stream_open(&text, &spec, &en->tokenizer, e)) return false;
    const Tokens *stream = &text.part[0];
    if (text.train.n != 1) {
        int parts = text.train.n;
        stream_close(&text);
        return err_input(e, "--data: %.180s names %d token datasets; give one at a time", a->data, parts);
    }
    if (!ids_fit(stream, V, e)) {
        stream_close(&text);
        return false;
    }
    context = (int)zmin((size_t)context, stream->n - 1);
    stride = imin(stride, context);
    size_t windows = (stream->n - 1 + (size_t)stride - 1) / (size_t)stride;
    int nseq = (int)zmin((size_t)a->batch, windows);
    /* the logits of a pass are the one big thing: 64 MiB of them at most, unless one row of each window is more */
    int chunk = (int)zmin((size_t)a->chunk, zmax((size_t)nseq, (64u << 20) / sizeof(real) / (size_t)V));
    chunk = imax(chunk, nseq);
    SessionOpts o = {
        .nseq = nseq, .max_tokens = context, .chunk = chunk, .document = en->tokenizer.eot, .want_all = true};
    Work w = {.stream = stream, .tk = &en->tokenizer, .context = context, .stride = stride, .chunk = chunk};
    w.against = dense != NULL, w.buckets = imin(imax(1, (int)a->buckets), context);
    engine_plan(en, context, cli->quiet);
    if (dense) engine_plan(dense, context, true);
    bool ok = session_open(&w.s, &en->model, o, e);
    if (ok && dense && !(ok = session_open(&w.dense, &dense->model, o, e))) session_close(&w.s);
    if (ok) {
        w.ids = xcalloc((size_t)nseq * (size_t)context, sizeof *w.ids);
        w.win = xcalloc((size_t)nseq, sizeof *w.win);
        w.feed = xcalloc((size_t)nseq, sizeof *w.feed);
        w.logits = xcalloc((size_t)chunk * (size_t)V, sizeof *w.logits);
        w.bucket = xcalloc((size_t)w.buckets, sizeof *w.bucket);
        if (dense) w.other = xcalloc((size_t)chunk * (size_t)V, sizeof *w.other);
        ok = ppl_windows(&w, nseq, e);
        if (ok && !isfinite(w.sum.nll))
            ok = err_runtime(e, "the model's loss is %g: its weights are damaged", w.sum.nll);
        /* of text that was read here: as many as there are, whatever a token decodes to */
        if (text.bytes) w.sum.bytes = text.bytes;
        ok = ok && ppl_report(&w, &w.sum, cli, e);
        free(w.ids), free(w.win), free(w.feed), free(w.logits), free(w.other), free(w.bucket);
        session_close(&w.s);
        if (dense) session_close(&w.dense);
    }
    stream_close(&text);
    return ok;
}

bool eval_ppl(const EvalPpl *a, const Cli *cli, Err *e) {
    Engine en, dense;
    if (!policy_unprompted(&cli->policy, e) || !engine_open(&en, a->model, cli, e)) return false;
    bool ok = engine_text(&en, e) && (!a->dense || engine_open_dense(&dense, &en, cli, e));
    if (ok) {
        ok = ppl_open(a, &en, a->dense ? &dense : NULL, cli, e);
        if (a->dense) engine_close(&dense);
    }
    engine_close(&en);
    return ok;
}
