#include "feed.h"
#include "../infer/tell.h"

static const TaskCfg *task_of(const Trainer *t) { return t->cfg->data.task.kind ? &t->cfg->data.task : NULL; }

bool feed_vocab(Trainer *t, Err *e) {
    ModelCfg *m = &t->cfg->model;
    const TaskCfg *task = task_of(t);
    int ids = task ? task->vocab : t->tok.vocab;
    if (!m->vocab) m->vocab = ids;
    t->run->model.vocab = m->vocab;
    if (m->vocab >= ids) return true;
    return err_input(e, "model.vocab: %d is less than the %d ids of data.%s", m->vocab, ids,
                     task ? "task" : "tokenizer");
}

bool feed_tokenizer(Trainer *t, Err *e) {
    return task_of(t) ? (t->tok = tokenizer_byte(), true) : data_tokenizer(&t->cfg->data, &t->tok, e);
}

bool feed_open_text(Trainer *t, Err *e) {
    const DataCfg *d = &t->cfg->data;
    if (task_of(t)) {
        t->text.hash = task_hash(&d->task);
        return true;
    }
    if (feed_is_sft(t)) return feed_open_sft(t, e);
    DataSpec s;
    Tell told = tell_begin("tokenising");
    data_spec(d, &s);
    s.spec.threads = t->dev ? device_threads(t->dev) : 1;
    s.spec.vocab = t->cfg->model.vocab;
    if (!t->run->quiet) s.spec.progress = tell, s.spec.progress_ctx = &told;
    bool ok =
        stream_bytes(&s.spec, &t->tok, &t->text_bytes, e) && (t->dry || stream_open(&t->text, &s.spec, &t->tok, e));
    tell_end(&told);
    return ok;
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
static const char *spoken(double n, char say[32]) {
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
    if (p->bytes) snprintf(text, sizeof text, " (%s bytes of text)", spoken((double)p->bytes, bytes));
    snprintf(say, 160, p->passes < 10 ? "%s%.2g passes over %s tokens%s" : "%s%.0f passes over %s tokens%s",
             p->most    ? "at most "
             : p->about ? "about "
                        : "",
             p->passes, spoken(p->tokens, tokens), text);
}
void feed_warn(const Trainer *t, const Passes *p) {
    int ids = t->tok.vocab, vocab = t->cfg->model.vocab;
    char say[160];
    feed_passes_say(p, say);
    if (p->passes > PASSES_MANY && !p->most)
        fprintf(stderr,
                "kvsmith: warning: %s: more than %d mostly learn it by heart; give more text or fewer train.steps\n",
                say, PASSES_MANY);
    if (!task_of(t) && (double)vocab > 1.05 * ids + 64)
        fprintf(
            stderr,
            "kvsmith: warning: model.vocab is %d, data.tokenizer %.100s has %d ids: the others are never trained; name "
            "the tokenizer that the model is for, or leave model.vocab out\n",
            vocab, t->cfg->data.tokenizer, ids);
}

bool feed_unchanged(Trainer *t, Err *e) {
    const char *replaced;
    if (!stream_unchanged(&t->text, &replaced, e)) return false;
    if (replaced && !t->told_replaced)
        progress_say(&t->progress,
                     "%s names another file by now; the run goes on with the one that it opened, and could not be "
                     "resumed with the new one",
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

bool feed_train(Trainer *t, uint64_t sample, int b, Err *e) {
    uint64_t seed = (uint64_t)t->cfg->run.seed;
    if (task_of(t)) return loader_task(&t->loader, TASK_TRAIN, seed, sample, b), true;
    if (feed_is_sft(t)) return loader_sft(&t->loader, &t->sft, seed, sample, b), true;
    return loader_train(&t->loader, &t->text.train, t->tok.eot, seed, sample, b, e);
}

uint64_t feed_windows(const Trainer *t) {
    if (task_of(t)) return 0;
    return feed_is_sft(t) ? (uint64_t)t->sft.train.pack.n : loader_windows(&t->text.train, t->cfg->data.seq_len);
}

int64_t feed_targets(Trainer *t, uint64_t sample, int b) {
    uint64_t seed = (uint64_t)t->cfg->run.seed;
    if (task_of(t)) return loader_task_targets(&t->loader, TASK_TRAIN, seed, sample, b);
    if (feed_is_sft(t)) return loader_sft_targets(&t->sft, seed, sample, b);
    return (int64_t)b * t->cfg->data.seq_len; /* every row of a text has one */
}

bool feed_validates(const Trainer *t) { return t->cfg->data.task.kind || t->sft.val.n || t->text.val.n; }
uint64_t feed_val_count(const Trainer *t) {
    if (task_of(t)) return (uint64_t)t->cfg->data.val_samples;
    if (feed_is_sft(t)) return loader_sft_val_windows(&t->sft, t->cfg->train.eval_tokens);
    return loader_val_windows(&t->text.val, t->cfg->data.seq_len, t->cfg->train.eval_tokens);
}
bool feed_val(Trainer *t, uint64_t at, int b, Err *e) {
    if (task_of(t)) return loader_task(&t->loader, TASK_VAL, 0, at, b), true;
    if (feed_is_sft(t)) return loader_sft_val(&t->loader, &t->sft, at, b), true;
    return loader_val(&t->loader, &t->text.val, t->tok.eot, t->cfg->train.eval_tokens, at, b, e);
}
