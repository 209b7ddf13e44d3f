/* feed_sft.c: conversations as a trainer's source. */
#include "feed.h"

bool feed_is_sft(const Trainer *t) { return t->cfg->data.sft.template != CHAT_NONE; }

/* Their size is known when they are read. */
static bool sft_feed_open(Trainer *t, Err *e) {
    const DataCfg *d = &t->cfg->data;
    const char *train[PATHS_MAX];
    for (int i = 0; i < d->ntrain; i++) train[i] = d->train[i].path;
    SftSpec spec = {d->ntrain, train, d->val, d->val_fraction, d->seq_len, d->sft};
    if (t->cfg->train.sample_every && !*t->cfg->train.sample_prompt && t->tok.bos < 0 && t->tok.eot < 0)
        return err_input(e, "train.sample_prompt: the tokenizer has no token that starts a text; give a prompt");
    if (!sft_open(&t->sft, &spec, &t->tok, e)) return false;
    t->text_bytes = t->sft.bytes;
    t->text.hash = t->sft.hash;
    t->text.tokens = t->sft.at[t->sft.train.n];
    t->windows = t->sft.train.pack.n;
    if (t->dry) sft_close(&t->sft);
    return true;
}

bool feed_prompt(const Trainer *t, const char *text, Ids *out, Err *e) {
    bool sft = feed_is_sft(t);
    ids_push(out, sft && t->tok.bos >= 0 ? t->tok.bos : t->tok.eot);
    if (!tokenizer_encode(&t->tok, text, strlen(text), sft ? ENCODE_SPECIAL : 0, out, e)) return false;
    if (sft && (out->id[0] < 0 || (out->n > 1 && tokenizer_special(&t->tok, out->id[1]))))
        memmove(out->id, out->id + 1, --out->n * sizeof *out->id);
    return true;
}

int feed_ends(const Trainer *t, int end[2]) {
    int n = 0, stop = chat_stop(&t->tok, t->cfg->data.sft.template);
    if (t->tok.eot >= 0) end[n++] = t->tok.eot;
    if (stop >= 0) end[n++] = stop;
    return n;
}

void feed_close_text(Trainer *t) {
    stream_close(&t->text);
    sft_close(&t->sft);
}

char *feed_jinja(const Trainer *t) { return feed_is_sft(t) ? chat_jinja(&t->tok, t->cfg->data.sft.template) : NULL; }

void feed_say(Trainer *t) {
    const Sft *s = &t->sft;
    const SftPart *p = &s->train;
    char lost[128] = "", plain[128] = "";
    if (!feed_is_sft(t)) return;
    if (s->cut + s->dropped)
        snprintf(lost, sizeof lost, "; too long: %lld were cut, %lld dropped", (long long)s->cut,
                 (long long)s->dropped);
    if (*s->plain)
        snprintf(plain, sizeof plain, "; %s is not a token of the tokenizer: markers are plain text", s->plain);
    progress_say(&t->run->progress,
                 "%d conversations in %d windows (%.1f %% full, %.1f %% of it learned), %d for validation%s%s", p->n,
                 p->pack.n, 100 * (double)p->rows / ((double)p->pack.n * t->cfg->data.seq_len),
                 100 * (double)p->targets / (double)p->rows, s->val.n, lost, plain);
    char *jinja = feed_jinja(t);
    if (chat_template_differs(&t->run->chat, jinja))
        progress_say(&t->run->progress,
                     "chat template: checkpoints get that of data.sft, %s, instead of the source's, which differs",
                     chat_templates[t->cfg->data.sft.template]);
    free(jinja);
}

static bool sft_feed_train(Trainer *t, uint64_t sample, int b, Err *e) {
    (void)e;
    loader_sft(&t->loader, &t->sft, (uint64_t)t->cfg->run.seed, sample, b);
    return true;
}
static int64_t sft_feed_targets(Trainer *t, uint64_t sample, int b) {
    return loader_sft_targets(&t->sft, (uint64_t)t->cfg->run.seed, sample, b);
}
static uint64_t sft_feed_windows(const Trainer *t) { return (uint64_t)t->sft.train.pack.n; }
static uint64_t sft_feed_val_count(const Trainer *t) {
    return loader_sft_val_windows(&t->sft, t->cfg->train.eval_tokens);
}
static bool sft_feed_val(Trainer *t, uint64_t at, int b, Err *e) {
    (void)e;
    loader_sft_val(&t->loader, &t->sft, at, b);
    return true;
}
const Feeder feed_sft = {sft_feed_open,    sft_feed_train,     sft_feed_targets,
                         sft_feed_windows, sft_feed_val_count, sft_feed_val};
