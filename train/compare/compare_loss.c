/* compare_loss.c: see compare_loss.h. */
#include "compare_loss.h"
#include "data/loader.h"
#include "infer/engine.h"
#include "infer/eval/task_run.h"
#include "infer/session.h"
#include "model/config/data_spec.h"
#include "ops/file.h"

enum { LOGITS_MAX = 1 << 24 }; /* logits that are kept at once, unless one window has more */

typedef struct {
    const Compare *c;
    Tokenizer tk;
    Stream text;
    Loader loader;
    int context, each; /* each: windows at once */
    uint64_t windows, hash;
    Pairs counts;
    double *nll;
    real *logits; /* (each context, vocab) */
    Feed *feed;
} Sample;

/* ---- the sample ----------------------------------------------------------------------------------------------------
 */

static bool sample_fill(Sample *s, uint64_t at, int *n, Err *e) {
    *n = (int)zmin((size_t)(s->windows - at), (size_t)s->each);
    return loader_val(&s->loader, &s->text.val, s->tk.eot, s->c->measure.loss_tokens, at, *n, e);
}

/* Counts, in the training text, the pairs that the sample has. */
static bool sample_count(Sample *s, Err *e) {
    int n;
    pairs_open(&s->counts, (size_t)s->windows * (size_t)s->context);
    s->hash = 0xcbf29ce484222325u;
    for (uint64_t at = 0; at < s->windows; at += (uint64_t)n) {
        if (!sample_fill(s, at, &n, e)) return false;
        for (int i = 0; i < s->loader.batch.N; i++) {
            pairs_add(&s->counts, s->loader.tok[i], s->loader.tgt[i]);
            s->hash = (s->hash ^ (uint64_t)(s->loader.tok[i] + 1)) * 0x100000001b3u;
        }
    }
    for (int k = 0; k < s->text.train.n; k++) pairs_count(&s->counts, &s->text.train.part[k]);
    return true;
}

static bool sample_open(Sample *s, const Compare *c, Err *e) {
    const DataCfg *d = &c->row[0].cfg.data;
    DataSpec spec;
    *s = (Sample){.c = c, .context = c->measure.loss_context ? c->measure.loss_context : d->seq_len};
    const int V = c->row[0].cfg.model.vocab;
    s->each = imax(1, LOGITS_MAX / V / s->context);
    if (!data_tokenizer(d, &s->tk, e)) return false;
    data_spec(d, &spec);
    if (!stream_open(&s->text, &spec.spec, &s->tk, e)) {
        tokenizer_close(&s->tk);
        return false;
    }
    s->windows = loader_val_windows(&s->text.val, s->context, c->measure.loss_tokens);
    s->each = (int)zmin((size_t)s->each, (size_t)s->windows);
    if (!loader_open(&s->loader, s->each, s->context, false, e)) {
        stream_close(&s->text);
        tokenizer_close(&s->tk);
        return false;
    }
    const size_t rows = (size_t)s->each * (size_t)s->context;
    s->nll = xcalloc(rows, sizeof *s->nll);
    s->logits = xcalloc(rows * (size_t)V, sizeof *s->logits);
    s->feed = xcalloc((size_t)s->each, sizeof *s->feed);
    return sample_count(s, e);
}
static void sample_close(Sample *s) {
    loader_close(&s->loader);
    stream_close(&s->text);
    tokenizer_close(&s->tk);
    pairs_close(&s->counts);
    free(s->nll), free(s->logits), free(s->feed);
}

/* ---- one model -----------------------------------------------------------------------------------------------------
 */

/* Splits the losses of the windows of the last fill, whose logits are there. */
static void windows_split(Sample *s, int n, int V, LossSplit *out) {
    const Batch *b = &s->loader.batch;
    for (int i = 0; i < b->N; i++) s->nll[i] = logits_nll(s->logits + (size_t)i * (size_t)V, V, s->loader.tgt[i], NULL);
    for (int q = 0, at = 0; q < n; at += s->feed[q++].n)
        loss_split_add(out, &s->counts, s->c->measure.common, s->feed[q].n, s->loader.tok + at, s->loader.tgt + at,
                       b->pos + at, s->nll + at);
}

static bool model_split(Sample *s, Engine *en, LossSplit *out, Err *e) {
    Session t;
    const int V = en->cfg.vocab;
    const SessionOpts o = {.nseq = s->each, .max_tokens = s->context, .document = s->tk.eot, .want_all = true};
    if (!session_open(&t, &en->model, o, e)) return false;
    bool ok = true;
    int n;
    *out = (LossSplit){0};
    for (uint64_t at = 0; ok && at < s->windows; at += (uint64_t)n) {
        ok = sample_fill(s, at, &n, e);
        const Batch *b = &s->loader.batch;
        for (int q = 0; ok && q < n; q++) { /* a sample is a sequence of the batch, and one here */
            s->feed[q] = (Feed){q, b->off[q + 1] - b->off[q], s->loader.tok + b->off[q]};
            session_reset(&t, q);
        }
        ok = ok && session_extend(&t, n, s->feed, WANT_ALL, TENSOR(s->logits, REAL, b->N, V), e);
        if (ok) windows_split(s, n, V, out);
    }
    session_close(&t);
    if (ok && !isfinite(out->all.nll)) ok = err_runtime(e, "the loss is %g", out->all.nll);
    return ok;
}

/* ---- on disk -------------------------------------------------------------------------------------------------------
 */

static json_t *sum_json(const LossSum *s) { return json_pack("[I, f]", (json_int_t)s->n, s->nll); }
static bool sum_read(const json_t *j, LossSum *s) {
    const json_t *n = json_array_get(j, 0), *nll = json_array_get(j, 1);
    if (!json_is_integer(n) || !json_is_number(nll)) return false;
    *s = (LossSum){json_integer_value(n), json_number_value(nll)};
    return true;
}
/* All sums in one list, as LossSplit has them. */
enum { SUMS = sizeof(LossSplit) / sizeof(LossSum) };
static json_t *split_json(const LossSplit *s) {
    json_t *list = json_array();
    json_array_append_new(list, sum_json(&s->all));
    for (int b = 0; b < LOSS_BUCKETS; b++) json_array_append_new(list, sum_json(&s->bucket[b]));
    for (int k = 0; k < LOSS_KINDS; k++) json_array_append_new(list, sum_json(&s->kind[k]));
    return list;
}
static bool split_read(const json_t *j, LossSplit *s) {
    bool ok = json_array_size(j) == SUMS && sum_read(json_array_get(j, 0), &s->all);
    for (int b = 0; b < LOSS_BUCKETS; b++) ok = ok && sum_read(json_array_get(j, (size_t)b + 1), &s->bucket[b]);
    for (int k = 0; k < LOSS_KINDS; k++)
        ok = ok && sum_read(json_array_get(j, (size_t)k + 1 + LOSS_BUCKETS), &s->kind[k]);
    return ok;
}

/* One run, unless `runs` has it with the same loss. */
static bool run_split(Sample *s, int row, const RunRecord *r, const Cli *cli, json_t *runs, bool *made, LossSplit *out,
                      Err *e) {
    char *folder = compare_folder(s->c, &s->c->row[row], r->lr, r->seed, -1), *model = xformat("%s/last", folder);
    json_t *old = json_object_get(runs, folder);
    bool ok = true;
    *made = !json_is_number(json_object_get(old, "val_loss")) ||
            json_number_value(json_object_get(old, "val_loss")) != r->val_loss ||
            !split_read(json_object_get(old, "sums"), out);
    if (*made) {
        Engine en;
        ok = engine_open(&en, model, cli, e);
        if (ok) {
            ok = model_split(s, &en, out, e);
            engine_close(&en);
        }
        if (ok)
            json_object_set_new(runs, folder,
                                json_pack("{s:f, s:o}", "val_loss", r->val_loss, "sums", split_json(out)));
    }
    free(folder), free(model);
    return ok;
}

bool compare_losses(const Compare *c, RowResult *all, const Cli *cli, Err *e) {
    if (!c->measure.loss_tokens) return true;
    Sample s;
    Err ignored = {0};
    bool ok = sample_open(&s, c, e);
    if (!ok && !s.nll) return false;
    char *path = xformat("%s/losses.json", c->dir), hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s.hash);
    json_t *old = json_read(path, &ignored),
           *of = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:I}", "version", KVSMITH_VERSION, "dtype",
                           dtype_name(c->dtype), "text_hash", c->text_hash, "sample", hash, "context", s.context,
                           "loss_tokens", (json_int_t)c->measure.loss_tokens, "common", (json_int_t)c->measure.common),
           *runs = old && json_equal(json_object_get(old, "of"), of) ? json_incref(json_object_get(old, "runs"))
                                                                     : json_object();
    Cli own = *cli;
    own.threads = c->threads, own.isa = c->isa;
    for (int i = 0; ok && i < c->nrows; i++)
        for (int k = 0; ok && k < c->seeds.n; k++) {
            bool made;
            if (all[i].run[k].state != RUN_FINISHED) continue;
            ok = run_split(&s, i, &all[i].run[k], &own, runs, &made, &all[i].split[k], e);
            if (!ok || !made) continue;
            json_t *j = json_pack("{s:O, s:O}", "of", of, "runs", runs);
            ok = json_write(path, j, e);
            json_decref(j);
        }
    json_decref(old), json_decref(of), json_decref(runs);
    free(path);
    sample_close(&s);
    return ok;
}

/* ---- the table -----------------------------------------------------------------------------------------------------
 */

/* Mean and deviation, over the runs, of the mean loss of the sums at `at` of a LossSplit; null without tokens. */
static json_t *part_json(const Compare *c, const RowResult *r, size_t at) {
    double x[SEEDS_MAX] = {0};
    int64_t tokens = 0;
    int n = 0;
    for (int k = 0; k < c->seeds.n; k++) {
        const LossSum *s = (const LossSum *)((const char *)&r->split[k] + at);
        if (r->run[k].state != RUN_FINISHED || !s->n) continue;
        tokens = s->n, x[n++] = s->nll / (double)s->n;
    }
    const Spread s = compare_spread(n, x);
    if (!n) return json_null();
    return json_pack("{s:I, s:f, s:o}", "tokens", (json_int_t)tokens, "loss", s.mean, "sd", engine_number(s.sd));
}

void compare_losses_json(const Compare *c, const RowResult *r, json_t *row) {
    if (!c->measure.loss_tokens || r->best < 0) return;
    json_t *j = json_object(), *list = json_array();
    json_object_set_new(j, "all", part_json(c, r, offsetof(LossSplit, all)));
    json_object_set_new(j, "ar_hits", part_json(c, r, offsetof(LossSplit, kind[LOSS_HIT])));
    json_object_set_new(j, "first", part_json(c, r, offsetof(LossSplit, kind[LOSS_FIRST])));
    json_object_set_new(j, "common", part_json(c, r, offsetof(LossSplit, kind[LOSS_COMMON])));
    for (int b = 0; b < LOSS_BUCKETS; b++) {
        json_t *x = part_json(c, r, offsetof(LossSplit, bucket) + (size_t)b * sizeof(LossSum));
        if (json_is_object(x)) {
            json_object_set_new(x, "upto", json_integer((json_int_t)1 << 2 * b));
            json_array_append(list, x);
        }
        json_decref(x);
    }
    json_object_set_new(j, "positions", list);
    json_object_set_new(row, "losses", j);
}

static void loss_cell(FILE *f, const json_t *x) {
    const json_t *sd = json_object_get(x, "sd");
    if (!json_is_object(x))
        fputs(" - |", f);
    else if (json_is_number(sd))
        fprintf(f, " %.4f ± %.4f |", json_number_value(json_object_get(x, "loss")), json_number_value(sd));
    else
        fprintf(f, " %.4f |", json_number_value(json_object_get(x, "loss")));
}

static const char *const kinds[] = {"ar_hits", "first", "common"};
static void losses_heads(FILE *f, const json_t *first) {
    static const char *const titles[] = {"AR hits", "first occurrences", "common pairs"};
    const json_t *x, *list = json_object_get(first, "positions");
    const double all = json_number_value(json_object_get(json_object_get(first, "all"), "tokens"));
    json_int_t from = 1;
    size_t i;
    fputs("| row | all |", f);
    for (int k = 0; k < 3; k++)
        fprintf(f, " %s, %.1f %% |", titles[k],
                100 * json_number_value(json_object_get(json_object_get(first, kinds[k]), "tokens")) / all);
    json_array_foreach(list, i, x) {
        json_int_t upto = json_integer_value(json_object_get(x, "upto"));
        fprintf(f, from == upto ? " token %lld |" : " tokens %lld to %lld |", (long long)from, (long long)upto);
        from = upto + 1;
    }
    fputs("\n|---|---:|---:|---:|---:|", f);
    for (size_t k = 0; k < json_array_size(list); k++) fputs("---:|", f);
    fputc('\n', f);
}

void compare_losses_table(FILE *f, const json_t *r) {
    const json_t *x, *y, *first = NULL, *m = json_object_get(r, "measure");
    size_t i, k;
    json_array_foreach(json_object_get(r, "rows"), i, x) if (!first) first = json_object_get(x, "losses");
    if (!first) return;
    fputs("\nWhere the loss is, nats per token.\n\n", f);
    losses_heads(f, first);
    json_array_foreach(json_object_get(r, "rows"), i, x) {
        const json_t *j = json_object_get(x, "losses");
        if (!j) continue;
        fprintf(f, "| %s |", json_string_value(json_object_get(x, "name")));
        loss_cell(f, json_object_get(j, "all"));
        for (int c = 0; c < 3; c++) loss_cell(f, json_object_get(j, kinds[c]));
        json_array_foreach(json_object_get(j, "positions"), k, y) loss_cell(f, y);
        fputc('\n', f);
    }
    fprintf(
        f,
        "\nThe first %lld tokens of the validation text, in windows, by the last checkpoint of every run and through "
        "its cache; mean ± sd over the seeds. An AR hit (associative recall, arXiv:2312.04927) completes a pair of "
        "tokens that occurred earlier in the same document of the window, and at most %lld times in the training "
        "text; pairs that occur there more often are common; the others are first occurrences. Percentages are "
        "shares of the tokens. Tokens 5 to 16, say, are predicted from 5 to 16 tokens.\n",
        (long long)json_integer_value(json_object_get(json_object_get(first, "all"), "tokens")),
        (long long)json_integer_value(json_object_get(m, "common")));
}
