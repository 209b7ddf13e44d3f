#include "eval_task.h"
#include "../data/loader.h"
#include "../ops/file.h"
#include "session.h"

typedef struct {
    int64_t samples, seed;
} Wanted;
#define AT(member) offsetof(Wanted, member)
static const Key want_keys[] = {{"samples", KEY_LONG, AT(samples), "1000", 1, 1e9, "number of samples", 0, 0},
                                {"seed", KEY_LONG, AT(seed), "1", 0, 9e15, "which samples", 0, 0},
                                {0}};
#undef AT

typedef struct {
    int64_t answers, right, whole;
    double nll; /* sum */
} Sum;

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

/* ---- in parallel ----------------------------------------------------------------------------------------------------
 */

static void in_parallel(Engine *en, Loader *l, const Wanted *want, Sum *sum) {
    size_t rows = (size_t)l->max_samples * (size_t)l->seq_len;
    real *nll = xcalloc(rows, sizeof *nll);
    int *hit = xcalloc(rows, sizeof *hit);
    for (int64_t at = 0; at < want->samples; at += l->max_samples) {
        int b = (int)(want->samples - at < l->max_samples ? want->samples - at : l->max_samples);
        loader_task(l, TASK_TEST, (uint64_t)want->seed, (uint64_t)at, b);
        model_score(&en->model, &l->batch, l->tok, l->tgt, nll, hit);
        for (int s = 0; s < b; s++) {
            bool all = true;
            for (int i = l->batch.off[s]; i < l->batch.off[s + 1]; i++) {
                if (l->tgt[i] < 0) continue;
                sum->answers++;
                sum->nll += (double)nll[i];
                sum->right += hit[i];
                all &= hit[i] != 0;
            }
            sum->whole += all;
        }
    }
    free(nll);
    free(hit);
}

/* ---- through the cache ----------------------------------------------------------------------------------------------
 */

typedef struct {
    Session s;
    Feed *feed;
    int *at;      /* (samples) tokens fed */
    bool *all;    /* (samples) every answer so far was right */
    real *logits; /* (samples, V) */
} Work;

/* The samples in the loader, every one fed up to its next question, until none has one left. */
static bool decode_batch(Work *w, const Loader *l, Sum *sum, Err *e) {
    int T = l->seq_len, V = w->s.model->cfg.vocab, b = l->batch.B;
    for (int q = 0; q < b; q++) session_reset(&w->s, q), w->at[q] = 0, w->all[q] = true;
    for (;;) {
        int B = 0;
        for (int q = 0; q < b; q++) {
            const int *tgt = l->tgt + (size_t)q * (size_t)T;
            int row = w->at[q];
            while (row < T && tgt[row] < 0) row++;
            if (row == T) continue;
            w->feed[B++] = (Feed){q, row + 1 - w->at[q], l->tok + (size_t)q * (size_t)T + w->at[q]};
            w->at[q] = row + 1;
        }
        if (!B) break;
        if (!session_extend(&w->s, B, w->feed, WANT_LAST, TENSOR(w->logits, REAL, B, V), e)) return false;
        for (int i = 0; i < B; i++) {
            int q = w->feed[i].seq;
            bool hit;
            sum->nll += logits_nll(w->logits + (size_t)i * (size_t)V, V,
                                   l->tgt[(size_t)q * (size_t)T + (size_t)w->at[q] - 1], &hit);
            sum->answers++;
            sum->right += hit;
            w->all[q] &= hit;
        }
    }
    for (int q = 0; q < b; q++) sum->whole += w->all[q];
    return true;
}

static bool through_cache(Engine *en, Loader *l, const Wanted *want, int chunk, Sum *sum, Err *e) {
    SessionOpts o = {.nseq = l->max_samples,
                     .max_tokens = l->seq_len,
                     .chunk = imax(chunk, l->max_samples),
                     .document = -1};
    size_t n = (size_t)o.nseq;
    Work w = {.feed = NULL};
    bool ok = session_open(&w.s, &en->model, o, e);
    if (!ok) return false;
    w.feed = xcalloc(n, sizeof *w.feed);
    w.at = xcalloc(n, sizeof *w.at);
    w.all = xcalloc(n, sizeof *w.all);
    w.logits = xcalloc(n * (size_t)en->cfg.vocab, sizeof *w.logits);
    for (int64_t at = 0; ok && at < want->samples; at += o.nseq) {
        loader_task(l, TASK_TEST, (uint64_t)want->seed, (uint64_t)at,
                    (int)(want->samples - at < o.nseq ? want->samples - at : o.nseq));
        ok = decode_batch(&w, l, sum, e);
    }
    free(w.feed), free(w.at), free(w.all), free(w.logits);
    session_close(&w.s);
    return ok;
}

/* ---- the command ----------------------------------------------------------------------------------------------------
 */

static bool report(const EvalTask *a, const TaskCfg *c, const Wanted *want, const Sum *s, const Cli *cli, Err *e) {
    double accuracy = (double)s->right / (double)s->answers, whole = (double)s->whole / (double)want->samples,
           nll = s->nll / (double)s->answers;
    char *settings = task_cfg_json(c);
    if (cli->json) {
        json_t *own = json_parse(settings, strlen(settings), "settings", NULL, e);
        free(settings);
        return engine_print(json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:s, s:I, s:o}", "task", c->kind->name, "samples",
                                      (json_int_t)want->samples, "answers", (json_int_t)s->answers, "accuracy",
                                      accuracy, "sample_accuracy", whole, "nll", nll, "form",
                                      a->decode ? "decode" : "parallel", "seed", (json_int_t)want->seed, "settings",
                                      own),
                            e);
    }
    printf("%s: accuracy %.2f %% of %lld answers; %.2f %% of %lld samples have every answer right   nll %.6f "
           "nats/answer\n%s\n",
           c->kind->name, 100 * accuracy, (long long)s->answers, 100 * whole, (long long)want->samples, nll, settings);
    free(settings);
    return true;
}

static bool settings(const EvalTask *a, const Engine *en, TaskCfg *c, Wanted *want, Err *e) {
    const char *name = a->name ? a->name : en->task.kind ? en->task.kind->name : NULL;
    if (!name) return err_input(e, "eval: %.150s was not trained on a task; expected MODEL ppl or MODEL TASK", en->dir);
    if (!en->task.kind && !a->force)
        return err_input(e,
                         "eval %s: %.120s was not trained on a task, to it these ids mean something else; expected "
                         "MODEL ppl --data FILE, or --force to score it all the same",
                         name, en->dir);
    if (!task_cfg_words(c, name, &en->task, en->cfg.max_positions, want_keys, want, a->nword, a->word, e)) return false;
    if (c->vocab > en->cfg.vocab)
        return err_input(e, "eval %s: vocab %d, but the model has %d ids; give vocab=N of at most that", name, c->vocab,
                         en->cfg.vocab);
    return (int64_t)a->batch * c->T <= 1 << 24 ||
           err_input(e, "eval %s: %d samples of T=%d at once are more than %d rows; give a smaller --batch", name,
                     a->batch, c->T, 1 << 24);
}

bool eval_task(const EvalTask *a, const Cli *cli, Err *e) {
    Engine en;
    TaskCfg c;
    Wanted want;
    Loader l;
    Sum sum = {0};
    if (!engine_read(&en, a->model, cli, e)) return false;
    if (!settings(a, &en, &c, &want, e)) {
        engine_close(&en);
        return false;
    }
    int b = (int)(want.samples < a->batch ? want.samples : a->batch);
    ModelOpts o = {0};
    if (!a->decode) o = (ModelOpts){.max_rows = b * c.T, .max_samples = b};
    if (!engine_load(&en, engine_narrow(cli, o), e)) return false;
    engine_plan(&en, c.T, cli->quiet);
    bool ok = loader_open_task(&l, &c, b, false, e);
    if (ok) {
        if (a->decode)
            ok = through_cache(&en, &l, &want, a->chunk, &sum, e);
        else
            in_parallel(&en, &l, &want, &sum);
        loader_close(&l);
    }
    if (ok && !isfinite(sum.nll)) ok = err_world(e, "the model's loss is %g: its numbers are damaged", sum.nll);
    ok = ok && report(a, &c, &want, &sum, cli, e);
    engine_close(&en);
    return ok;
}
