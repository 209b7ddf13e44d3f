#include "feed.h"
#include "infer/tell.h"

static const TaskCfg *task_of(const Trainer *t) { return t->cfg->data.task.kind ? &t->cfg->data.task : NULL; }

bool feed_vocab(Trainer *t, Err *e) {
    ModelCfg *m = &t->cfg->model;
    const TaskCfg *of = task_of(t);
    int ids = of ? of->vocab : t->tok.vocab;
    if (!m->vocab) m->vocab = ids;
    t->run->cfg->model.vocab = m->vocab;
    if (m->vocab >= ids) return true;
    return err_input(e, "model.vocab: %d is less than the %d ids of data.%s", m->vocab, ids, of ? "task" : "tokenizer");
}

bool feed_tokenizer(Trainer *t, Err *e) {
    return task_of(t) ? (t->tok = tokenizer_byte(), true) : data_tokenizer(&t->cfg->data, &t->tok, e);
}

bool feed_passes(const Trainer *t, int64_t samples, Passes *p, Err *e) {
    *p = (Passes){.about = t->dry, .most = t->cfg->optim.schedule_by == SCHEDULE_BY_TIME};
    if (task_of(t)) return true;
    if (feed_is_sft(t)) {
        p->passes = (double)samples / t->windows;
        p->tokens = (double)t->text.tokens;
        p->about = false;
        return true;
    }
    DataSpec s;
    data_spec(&t->cfg->data, &s);
    s.spec.threads = t->dev ? device_threads(t->dev) : 1;
    if (t->dry && !stream_estimate(&s.spec, &t->tok, &p->tokens, &p->bytes, e)) return false;
    if (!t->dry) p->tokens = stream_epoch(&t->text), p->bytes = t->text.nset ? 0 : t->text.bytes;
    p->passes = p->tokens > 0 ? (double)samples * t->cfg->data.seq_len / p->tokens : 0;
    return true;
}
/* 2160511 -> "2.16 million" */
static const char *feed_spoken(double n, char say[32]) {
    static const struct {
        double from;
        const char *name;
    } unit[] = {{1e9, " billion"}, {1e6, " million"}, {0, ""}};
    int i = n >= 1e9 ? 0 : n >= 1e6 ? 1 : 2;
    snprintf(say, 32, i < 2 ? "%.3g%s" : "%.0f%s", i < 2 ? n / unit[i].from : n, unit[i].name);
    return say;
}
void feed_passes_say(const Passes *p, char say[160]) {
    char text[64] = "", tokens[32], bytes[32];
    if (p->bytes) snprintf(text, sizeof text, " (%s bytes of text)", feed_spoken((double)p->bytes, bytes));
    snprintf(say, 160, p->passes < 10 ? "%s%.2g passes over %s tokens%s" : "%s%.0f passes over %s tokens%s",
             p->most    ? "at most "
             : p->about ? "about "
                        : "",
             p->passes, feed_spoken(p->tokens, tokens), text);
}
void feed_warn(const Trainer *t, const Passes *p) {
    int ids = t->tok.vocab, vocab = t->cfg->model.vocab;
    char say[160];
    feed_passes_say(p, say);
    if (p->passes > PASSES_MANY && !p->most)
        fprintf(stderr,
                "kvsmith: warning: %s: after more than %d passes a model mostly memorises the text; give more text or "
                "fewer train.steps\n",
                say, PASSES_MANY);
    if (!task_of(t) && (double)vocab > 1.05 * ids + 64)
        fprintf(stderr,
                "kvsmith: warning: model.vocab is %d, data.tokenizer %.100s has %d ids: the other ids are never "
                "trained; use the model's tokenizer, or leave model.vocab out\n",
                vocab, t->cfg->data.tokenizer, ids);
}

bool feed_unchanged(Trainer *t, Err *e) {
    const char *replaced;
    if (!stream_unchanged(&t->text, &replaced, e)) return false;
    if (replaced && !t->told_replaced)
        progress_say(
            &t->run->progress,
            "%s was replaced; this run continues with the file that it opened and cannot be resumed with the new one",
            replaced);
    t->told_replaced = t->told_replaced || replaced;
    return true;
}

size_t feed_loader_bytes(const Trainer *t) {
    int b = t->cfg->train.micro_batch;
    return task_of(t) ? loader_bytes_task(task_of(t), b) : loader_bytes(b, t->cfg->data.seq_len);
}
bool feed_open_loader(Trainer *t, Err *e) {
    int b = t->cfg->train.micro_batch;
    return task_of(t) ? loader_open_task(&t->loader, task_of(t), b, false, e)
                      : loader_open(&t->loader, b, t->cfg->data.seq_len, false, e);
}

bool feed_validates(const Trainer *t) { return t->cfg->data.task.kind || t->sft.val.n || t->text.val.n; }

/* ---- windows of a text ----------------------------------------------------------------------------------------------
 */

static bool text_open(Trainer *t, Err *e) {
    DataSpec s;
    Tell told = tell_begin("tokenising");
    data_spec(&t->cfg->data, &s);
    s.spec.threads = t->dev ? device_threads(t->dev) : 1;
    s.spec.vocab = t->cfg->model.vocab;
    if (!t->run->cfg->quiet) s.spec.progress = tell, s.spec.progress_ctx = &told;
    bool ok =
        stream_bytes(&s.spec, &t->tok, &t->text_bytes, e) && (t->dry || stream_open(&t->text, &s.spec, &t->tok, e));
    tell_end(&told);
    return ok;
}
static bool text_train(Trainer *t, uint64_t sample, int b, Err *e) {
    return loader_train(&t->loader, &t->text.train, t->tok.eot, (uint64_t)t->cfg->run.seed, sample, b, e);
}
static int64_t text_targets(Trainer *t, uint64_t sample, int b) {
    (void)sample;
    return (int64_t)b * t->cfg->data.seq_len; /* every row has one */
}
static uint64_t text_windows(const Trainer *t) { return loader_windows(&t->text.train, t->cfg->data.seq_len); }
static uint64_t text_val_count(const Trainer *t) {
    return loader_val_windows(&t->text.val, t->cfg->data.seq_len, t->cfg->train.eval_tokens);
}
static bool text_val(Trainer *t, uint64_t at, int b, Err *e) {
    return loader_val(&t->loader, &t->text.val, t->tok.eot, t->cfg->train.eval_tokens, at, b, e);
}
static const Feeder text = {text_open, text_train, text_targets, text_windows, text_val_count, text_val};

/* ---- samples of a task ----------------------------------------------------------------------------------------------
 */

static bool task_open(Trainer *t, Err *e) {
    (void)e;
    t->text.hash = task_hash(&t->cfg->data.task);
    return true;
}
static bool task_train(Trainer *t, uint64_t sample, int b, Err *e) {
    (void)e;
    loader_task(&t->loader, TASK_TRAIN, (uint64_t)t->cfg->run.seed, sample, b);
    return true;
}
static int64_t task_targets(Trainer *t, uint64_t sample, int b) {
    return loader_task_targets(&t->loader, TASK_TRAIN, (uint64_t)t->cfg->run.seed, sample, b);
}
static uint64_t task_windows(const Trainer *t) {
    (void)t;
    return 0;
}
static uint64_t task_val_count(const Trainer *t) { return (uint64_t)t->cfg->data.val_samples; }
static bool task_val(Trainer *t, uint64_t at, int b, Err *e) {
    (void)e;
    loader_task(&t->loader, TASK_VAL, 0, at, b);
    return true;
}
static const Feeder task = {task_open, task_train, task_targets, task_windows, task_val_count, task_val};

const Feeder *feed_by(const DataCfg *d) {
    return d->task.kind ? &task : d->sft.template != CHAT_NONE ? &feed_sft : &text;
}
