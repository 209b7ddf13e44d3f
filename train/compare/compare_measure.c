/* compare_measure.c: measures memory and time of the best run of every row, all rows together. */
#include "model/config/data_spec.h"
#include "ops/file.h"
#include "train/bench/bench_decode.h"
#include "infer/engine.h"
#include "model/cost.h"
#include "train/bench/bench_train.h"
#include "compare_measure.h"

typedef struct {
    int row;
    Engine en;
    bool open;
    size_t cache;              /* bytes after measure.context tokens */
    size_t at[CONTEXTS_MAX];   /* bytes at measure.contexts */
    int counted[CONTEXTS_MAX]; /* after so many tokens, 0: by formula, as no row is merged or evicted */
    Decode d[BATCHES_MAX];
    double *prefill[BATCHES_MAX], *decode[BATCHES_MAX]; /* (repeats) seconds */
    double train;                                       /* tokens/s of a training step */
} Subject;

/* Tokens of the validation text without ends of documents: caches that depend on what is read read the same. */
enum { READING_MAX = 1 << 26 };
typedef struct {
    int n, *id;
} Reading;
static bool reading_open(const Compare *c, Reading *out, Err *e) {
    const DataCfg *d = &c->row[0].cfg.data;
    DataSpec spec;
    Tokenizer tk;
    Stream text;
    if (!data_tokenizer(d, &tk, e)) return false;
    data_spec(d, &spec);
    bool ok = stream_open(&text, &spec.spec, &tk, e);
    int eot = tk.eot, vocab = c->row[0].cfg.model.vocab;
    tokenizer_close(&tk);
    if (!ok) return false;
    *out = (Reading){.n = 0};
    size_t n = 0;
    for (int k = 0; k < text.val.n; k++) n += text.val.part[k].n;
    out->id = xcalloc(zmin(n, READING_MAX), sizeof(int));
    for (int k = 0; k < text.val.n; k++)
        for (size_t i = 0; i < text.val.part[k].n && out->n < READING_MAX; i++) {
            int64_t id = token_at(&text.val.part[k], i);
            if (id != eot && id >= 0 && id < vocab) out->id[out->n++] = (int)id;
        }
    stream_close(&text);
    if (out->n) return true;
    free(out->id);
    return err_input(e, "data.val: the validation text has only end-of-text tokens");
}
static void read_on(const Reading *r, size_t from, int n, int *tok) {
    for (int i = 0; i < n; i++) tok[i] = r->id[(from + (size_t)i) % (size_t)r->n];
}

static bool cache_count(const Reading *text, const Model *m, int n, size_t *bytes, Err *e) {
    Session t;
    int *tok = xcalloc((size_t)n, sizeof *tok);
    SessionOpts o = {.nseq = 1, .max_tokens = n, .document = -1};
    bool ok = session_open(&t, m, o, e);
    if (ok) {
        read_on(text, 0, n, tok);
        ok = session_extend(&t, 1, &(Feed){0, n, tok}, WANT_LAST, ABSENT, e);
        *bytes = session_bytes(&t, 0);
        session_close(&t);
    }
    free(tok);
    return ok;
}

/* Bytes at every one of measure.contexts. Where rows are merged or evicted they are counted, at most as far as the text
 * and the model's positions reach; beyond that the same part of the rows stays. */
static bool cache_contexts(const Compare *c, const Reading *text, Subject *s, Err *e) {
    const Model *m = &s->en.model;
    CacheCost *cost = xcalloc(1, sizeof *cost);
    const int most = imin(text->n, m->cfg.max_positions);
    size_t bytes = 0;
    bool ok = true;
    for (int k = 0, last = 0; ok && k < c->measure.contexts.n; k++) {
        const int context = c->measure.contexts.v[k], n = imin(context, most);
        cost_cache(m, context, cost);
        s->at[k] = cost->bytes_at_context;
        if (!cost->at_most) continue;
        if (n != last) ok = cache_count(text, m, n, &bytes, e);
        last = s->counted[k] = n;
        const double all = (double)(cost->bytes_at_context - cost->state_bytes);
        cost_cache(m, n, cost);
        const double rows = (double)(bytes - cost->state_bytes),
                     rows_most = (double)(cost->bytes_at_context - cost->state_bytes);
        s->at[k] = n == context ? bytes : cost->state_bytes + (size_t)(rows / rows_most * all + 0.5);
    }
    free(cost);
    return ok;
}

static bool subject_open(const Compare *c, const RowResult *r, const Reading *text, const Cli *cli, Subject *s,
                         Err *e) {
    char *folder = compare_best(c, s->row, r), *model = xformat("%s/last", folder);
    bool ok = s->open = engine_open(&s->en, model, cli, e);
    free(folder);
    free(model);
    ok = ok && cache_count(text, &s->en.model, c->measure.context, &s->cache, e) && cache_contexts(c, text, s, e);
    for (int b = 0; ok && b < c->measure.batches.n; b++) {
        int B = c->measure.batches.v[b], each = c->measure.prompt + c->measure.decode;
        const DecodeOpts o = {.B = B, .prompt = c->measure.prompt, .room = c->measure.decode};
        ok = decode_open(&s->d[b], &s->en.model, o, e);
        if (ok) read_on(text, 0, B * each, s->d[b].tok);
        s->prefill[b] = xcalloc((size_t)c->measure.repeats, sizeof(double));
        s->decode[b] = xcalloc((size_t)c->measure.repeats, sizeof(double));
    }
    return ok;
}
static void subject_close(Subject *s) {
    for (int b = 0; b < BATCHES_MAX; b++) {
        decode_close(&s->d[b]);
        free(s->prefill[b]);
        free(s->decode[b]);
    }
    if (s->open) engine_close(&s->en);
}

/* One timing of everything; the first, `at` -1, only warms up. */
static bool compare_measure_once(const Compare *c, Subject *s, int at, Err *e) {
    for (int b = 0; b < c->measure.batches.n; b++) {
        double prefill;
        bool ok = decode_prefill(&s->d[b], &prefill, e);
        double start = now_seconds();
        for (int i = 0; ok && i < c->measure.decode; i++) ok = decode_step(&s->d[b], e);
        if (!ok) return false;
        if (at < 0) continue;
        s->prefill[b][at] = prefill;
        s->decode[b][at] = now_seconds() - start;
    }
    return true;
}

/* Steps of training on a device of their own, set as for the runs; what a run itself took depends on its company. */
static bool steps_time(const Compare *c, Subject *s, int n, const Cli *cli, Err *e) {
    Cli own = *cli;
    Device *dev;
    own.bf16 = c->dtype == BF16;
    own.codec = &codec_f32;
    if (!engine_device(&dev, &own, e)) return false;
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        const Config *cfg = &c->row[s[i].row].cfg;
        Timing t;
        Cost cost;
        ok = bench_step(dev, cfg, 0.2 * c->measure.repeats, &t, &cost, e);
        s[i].train = ok ? cfg->train.micro_batch * cfg->data.seq_len / t.median : 0;
    }
    device_close(dev);
    return ok;
}

static int compare_measure_by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double compare_measure_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare_measure_by_value);
    return 0.5 * (x[n / 2] + x[(n - 1) / 2]);
}

static json_t *subject_json(const Compare *c, Subject *s) {
    int n = c->measure.repeats;
    json_t *list = json_array();
    for (int b = 0; b < c->measure.batches.n; b++) {
        int B = c->measure.batches.v[b];
        double *p = s->prefill[b], *d = s->decode[b], prefill = compare_measure_median(p, n),
               decode = compare_measure_median(d, n); /* sorts */
        json_array_append_new(list, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "batch", B, "prefill_tok_s",
                                              B * c->measure.prompt / prefill, "decode_tok_s",
                                              B * c->measure.decode / decode, "prefill_s_min", p[0], "prefill_s_max",
                                              p[n - 1], "decode_s_min", d[0], "decode_s_max", d[n - 1]));
    }
    json_t *at = json_array(), *counted = json_array();
    for (int k = 0; k < c->measure.contexts.n; k++) {
        json_array_append_new(at, json_integer((json_int_t)s->at[k]));
        json_array_append_new(counted, s->counted[k] ? json_integer(s->counted[k]) : json_null());
    }
    return json_pack("{s:s, s:I, s:o, s:o, s:f, s:o}", "name", c->row[s->row].name, "cache_measured",
                     (json_int_t)s->cache, "cache_at", at, "cache_counted", counted, "step_tok_s", s->train, "speed",
                     list);
}

enum { FIGURES = 3 }; /* counts up when a row gets another figure */
/* Everything that a measurement depends on and that can be named; FIGURES, too. */
static json_t *key_make(const Compare *c, const RowResult *all) {
    json_t *j = compare_json(c, all, NULL), *runs = json_array();
    json_t *key = json_object();
    static const char *const names[] = {"version", "machine", "threads", "isa", "dtype", "measure", "text_hash"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        json_object_set(key, names[i], json_object_get(j, names[i]));
    static const char *const of_losses[] = {"loss_tokens", "loss_context", "common"}; /* see compare_loss.h */
    for (size_t i = 0; i < sizeof of_losses / sizeof *of_losses; i++)
        json_object_del(json_object_get(key, "measure"), of_losses[i]);
    for (int i = 0; i < c->nrows; i++) {
        if (all[i].best < 0) continue;
        char *folder = compare_best(c, i, &all[i]);
        json_array_append_new(runs,
                              json_pack("{s:s, s:f}", "run", folder, "val_loss", all[i].run[all[i].best].val_loss));
        free(folder);
    }
    json_object_set_new(key, "runs", runs);
    json_object_set_new(key, "figures", json_integer(FIGURES));
    json_decref(j);
    return key;
}

json_t *compare_measure(const Compare *c, const RowResult *all, bool again, const Cli *cli, Err *e) {
    char *path = xformat("%s/speed.json", c->dir);
    Err ignored = {0};
    json_t *key = key_make(c, all), *old = json_read(path, &ignored), *out = NULL;
    if (old && !again && json_equal(json_object_get(old, "of"), key)) {
        json_decref(key);
        free(path);
        return old;
    }
    json_decref(old);
    Cli own = *cli;
    own.threads = c->threads, own.isa = c->isa;
    Subject *s = xcalloc((size_t)c->nrows, sizeof *s);
    Reading text;
    int n = 0;
    bool ok = reading_open(c, &text, e), read = ok;
    for (int i = 0; ok && i < c->nrows; i++) {
        if (all[i].best < 0) continue;
        s[n].row = i;
        ok = subject_open(c, &all[i], &text, &own, &s[n], e);
        n++;
    }
    for (int at = -1; ok && at < c->measure.repeats; at++)
        for (int i = 0; ok && i < n; i++) ok = compare_measure_once(c, &s[i], at, e);
    ok = ok && steps_time(c, s, n, &own, e);
    if (ok) {
        json_t *rows = json_array();
        for (int i = 0; i < n; i++) json_array_append_new(rows, subject_json(c, &s[i]));
        out = json_pack("{s:O, s:o}", "of", key, "rows", rows);
        if (n && !json_write(path, out, e)) {
            json_decref(out);
            out = NULL;
        }
    }
    for (int i = 0; i < n; i++) subject_close(&s[i]);
    if (read) free(text.id);
    free(s);
    json_decref(key);
    free(path);
    return out;
}
