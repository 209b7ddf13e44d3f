/* loader.c: fills batches with windows of a token stream, conversations or samples of a task. */
#include "loader.h"

/* The loader's arrays, writable for their owner. */
typedef struct {
    int *off, *seq, *of, *pos, *first, *tok, *tgt;
    uint64_t *id;
} Rows;

/* Take (or measure) every array; this is the only place with their sizes. */
static Rows loader_rows_take(Arena *a, int max_samples, int seq_len) {
    size_t B = (size_t)max_samples, N = B * (size_t)seq_len;
    return (Rows){
        .off = arena_take(a, (B + 1) * sizeof(int), "off"),
        .seq = arena_take(a, B * sizeof(int), "seq"),
        .of = arena_take(a, N * sizeof(int), "of"),
        .pos = arena_take(a, N * sizeof(int), "pos"),
        .first = arena_take(a, N * sizeof(int), "first"),
        .tok = arena_take(a, N * sizeof(int), "tok"),
        .tgt = arena_take(a, N * sizeof(int), "tgt"),
        .id = arena_take(a, B * sizeof(uint64_t), "id"),
    };
}

size_t loader_bytes(int max_samples, int seq_len) {
    Arena dry = {0};
    loader_rows_take(&dry, max_samples, seq_len);
    return dry.peak;
}

size_t loader_bytes_task(const TaskCfg *task, int max_samples) {
    Arena dry = {0};
    loader_rows_take(&dry, max_samples, task->T);
    arena_take(&dry, task_work(task), "task");
    return dry.peak;
}

static bool rows_open(Loader *l, size_t bytes, bool poison, Err *e) {
    CHECK(l->max_samples >= 1 && l->seq_len >= 1 && l->max_samples <= INT32_MAX / l->seq_len, "%d samples of %d tokens",
          l->max_samples, l->seq_len);
    if (!arena_open(&l->mem, "batch", bytes, poison, e)) return false;
    Rows r = loader_rows_take(&l->mem, l->max_samples, l->seq_len);
    l->batch = (Batch){.off = r.off, .seq = r.seq, .of = r.of, .pos = r.pos, .first = r.first, .id = r.id};
    l->tok = r.tok;
    l->tgt = r.tgt;
    return true;
}
bool loader_open(Loader *l, int max_samples, int seq_len, bool poison, Err *e) {
    *l = (Loader){.seq_len = seq_len, .max_samples = max_samples};
    return rows_open(l, loader_bytes(max_samples, seq_len), poison, e);
}
bool loader_open_task(Loader *l, const TaskCfg *task, int max_samples, bool poison, Err *e) {
    *l = (Loader){.seq_len = task->T, .max_samples = max_samples, .task = task};
    if (!rows_open(l, loader_bytes_task(task, max_samples), poison, e)) return false;
    l->work = arena_take(&l->mem, task_work(task), "task");
    return true;
}

void loader_close(Loader *l) {
    arena_close(&l->mem);
    *l = (Loader){0};
}

static void loader_start(Loader *l, int b) {
    CHECK(b >= 1 && b <= l->max_samples, "%d samples, room for %d", b, l->max_samples);
    l->batch.B = l->batch.N = 0;
    ((int *)l->batch.off)[0] = 0;
}

/* Other code sees these arrays as const; the memory is ours and writable. */
static Rows rows_own(Loader *l) {
    const Batch *b = &l->batch;
    return (Rows){(int *)b->off,   (int *)b->seq, (int *)b->of,  (int *)b->pos,
                  (int *)b->first, (int *)l->tok, (int *)l->tgt, (uint64_t *)b->id};
}

static bool loader_outside(const Tokens *t, size_t at, int64_t id, int vocab, Err *e) {
    return err_input(
        e, "%s: token %zu is id %lld, expected 0 to %d; the dataset was made with a tokenizer that is not the model's",
        t->name ? t->name : "tokens", t->from + at, (long long)id, vocab - 1);
}

/* Append one sequence: n inputs from t[at], and the n tokens after each. */
static bool loader_add(Loader *l, const Mix *m, int part, int eot, size_t at, int n, uint64_t id, Err *e) {
    const Tokens *t = &m->part[part];
    const int64_t most = m->vocab ? m->vocab : INT32_MAX;
    Batch *b = &l->batch;
    Rows r = rows_own(l);
    CHECK(n >= 1 && at + (size_t)n < t->n, "tokens %zu..%zu of %zu", at, at + (size_t)n, t->n);
    int begin = b->N, first = begin;
    size_t doc = tokens_next_doc(t, at + 1);
    int64_t tok = token_at(t, at), before = -1;
    if (tok < 0 || tok >= most) return loader_outside(t, at, tok, (int)most, e);
    for (int i = 0; i < n; i++) {
        int row = begin + i;
        size_t here = at + (size_t)i;
        int64_t next = token_at(t, here + 1);
        if (next < 0 || next >= most) return loader_outside(t, here + 1, next, (int)most, e);
        if (here == doc) {
            if (before != eot) first = row;
            doc = tokens_next_doc(t, here + 1);
        }
        if (tok == eot) first = row;
        r.tok[row] = (int)tok;
        r.tgt[row] = (int)next;
        r.of[row] = b->B;
        r.first[row] = first;
        r.pos[row] = row - first;
        before = tok, tok = next;
    }
    r.seq[b->B] = b->B;
    r.id[b->B] = id;
    b->N += n;
    r.off[++b->B] = b->N;
    return true;
}

static uint64_t windows(const Tokens *t, int seq_len) { return t->n ? (t->n - 1) / (size_t)seq_len : 0; }
uint64_t loader_windows(const Mix *m, int seq_len) {
    uint64_t W = 0;
    for (int i = 0; i < m->n; i++) W += windows(&m->part[i], seq_len);
    return W;
}

/* The window that sample s reads, and its part. */
static uint64_t loader_pick(const Mix *m, int seq_len, uint64_t seed, uint64_t s, int *part) {
    uint64_t order = rng_name(seed, "data.order"), W;
    *part = 0;
    if (m->blend) {
        blend_at(m->blend, s, part, &s);
        W = windows(&m->part[*part], seq_len);
        CHECK(W > 0, "part %d has no window", *part);
        return rng_permute(rng_mix(rng_mix(order, s / W), (uint64_t)*part + 1), s % W, W);
    }
    W = loader_windows(m, seq_len);
    CHECK(W > 0, "%d parts without a window of %d", m->n, seq_len);
    uint64_t w = rng_permute(rng_mix(order, s / W), s % W, W);
    for (uint64_t own; w >= (own = windows(&m->part[*part], seq_len)); ++*part) w -= own;
    return w;
}

bool loader_train(Loader *l, const Mix *m, int eot, uint64_t seed, uint64_t sample, int b, Err *e) {
    loader_start(l, b);
    for (int i = 0; i < b; i++) {
        int part;
        uint64_t s = sample + (uint64_t)i, w = loader_pick(m, l->seq_len, seed, s, &part);
        if (!loader_add(l, m, part, eot, w * (size_t)l->seq_len, l->seq_len, s, e)) return false;
    }
    return true;
}

/* How many of the at most eval_tokens predictions fall to `part`: those up to and including the part, less those
 * before it. */
static size_t loader_predictions(const Mix *m, int64_t eval_tokens, int part) {
    size_t all = 0, behind = 0, n = 0;
    for (int i = 0; i < m->n; i++) all += m->part[i].n ? m->part[i].n - 1 : 0;
    size_t most = eval_tokens > 0 ? zmin(all, (size_t)eval_tokens) : all, before = 0;
    for (int i = 0; i <= part; i++) {
        before = n;
        behind += m->part[i].n ? m->part[i].n - 1 : 0;
        n = all ? (size_t)((__uint128_t)most * behind / all) : 0;
    }
    return n - before;
}
static uint64_t val_windows(const Mix *m, int seq_len, int64_t eval_tokens, int part) {
    size_t n = loader_predictions(m, eval_tokens, part);
    return n / (size_t)seq_len + (n % (size_t)seq_len > 0);
}
uint64_t loader_val_windows(const Mix *m, int seq_len, int64_t eval_tokens) {
    uint64_t W = 0;
    for (int i = 0; i < m->n; i++) W += val_windows(m, seq_len, eval_tokens, i);
    return W;
}

bool loader_val(Loader *l, const Mix *m, int eot, int64_t eval_tokens, uint64_t window, int b, Err *e) {
    uint64_t W = loader_val_windows(m, l->seq_len, eval_tokens);
    loader_start(l, b);
    CHECK(window < W && (uint64_t)b <= W - window, "windows %llu + %d of %llu", (unsigned long long)window, b,
          (unsigned long long)W);
    for (int i = 0; i < b; i++) {
        int part = 0;
        uint64_t w = window + (uint64_t)i;
        for (uint64_t own; w >= (own = val_windows(m, l->seq_len, eval_tokens, part)); part++) w -= own;
        size_t at = w * (size_t)l->seq_len, n = loader_predictions(m, eval_tokens, part);
        if (!loader_add(l, m, part, eot, at, (int)zmin((size_t)l->seq_len, n - at), window + (uint64_t)i, e))
            return false;
    }
    return true;
}

void loader_task(Loader *l, TaskStream stream, uint64_t seed, uint64_t sample, int b) {
    Batch *batch = &l->batch;
    Rows r = rows_own(l);
    int T = l->seq_len;
    CHECK(l->task, "opened for text");
    loader_start(l, b);
    for (int i = 0; i < b; i++) {
        int begin = batch->N;
        r.id[i] = sample + (uint64_t)i;
        task_sample(l->task, stream, seed, r.id[i], r.tok + begin, r.tgt + begin, l->work);
        for (int k = 0; k < T; k++) r.of[begin + k] = i, r.pos[begin + k] = k, r.first[begin + k] = begin;
        r.seq[i] = i;
        batch->N += T;
        r.off[++batch->B] = batch->N;
    }
}

int64_t loader_task_targets(Loader *l, TaskStream stream, uint64_t seed, uint64_t sample, int b) {
    Rows r = rows_own(l);
    int64_t n = 0;
    CHECK(l->task, "opened for text");
    for (int i = 0; i < b; i++) {
        task_sample(l->task, stream, seed, sample + (uint64_t)i, r.tok, r.tgt, l->work);
        for (int k = 0; k < l->seq_len; k++) n += r.tgt[k] >= 0;
    }
    return n;
}

/* ---- conversations ----------------------------------------------------------------------------------------------- */

/* The window that sample s reads. */
static int sft_window(const Sft *t, uint64_t seed, uint64_t s) {
    uint64_t W = (uint64_t)t->train.pack.n, key = rng_mix(rng_name(seed, "data.order"), s / W);
    return (int)rng_permute(key, s % W, W);
}

/* Append one window. */
static void add_window(Loader *l, const Sft *t, const SftPart *p, int window, uint64_t id) {
    Batch *b = &l->batch;
    Rows r = rows_own(l);
    for (int k = p->pack.first[window]; k < p->pack.first[window + 1]; k++) {
        int n, first = b->N;
        const int *ids = sft_piece(t, p, p->pack.piece[k], &n);
        for (int i = 0; i + 1 < n; i++) {
            int row = b->N++, next = ids[i + 1];
            r.tok[row] = ids[i] & ~CHAT_LEARN;
            r.tgt[row] = next & CHAT_LEARN ? next & ~CHAT_LEARN : -1;
            r.of[row] = b->B;
            r.first[row] = first;
            r.pos[row] = i;
        }
    }
    CHECK(b->N - b->off[b->B] <= l->seq_len, "window %d of %d rows", window, b->N - b->off[b->B]);
    r.seq[b->B] = b->B;
    r.id[b->B] = id;
    r.off[++b->B] = b->N;
}

void loader_sft(Loader *l, const Sft *t, uint64_t seed, uint64_t sample, int b) {
    loader_start(l, b);
    for (uint64_t s = sample; s < sample + (uint64_t)b; s++) add_window(l, t, &t->train, sft_window(t, seed, s), s);
}

int64_t loader_sft_targets(const Sft *t, uint64_t seed, uint64_t sample, int b) {
    const Pack *p = &t->train.pack;
    int64_t sum = 0;
    for (uint64_t s = sample; s < sample + (uint64_t)b; s++)
        for (int w = sft_window(t, seed, s), k = p->first[w], n; k < p->first[w + 1]; k++) {
            const int *ids = sft_piece(t, &t->train, p->piece[k], &n);
            for (int i = 1; i < n; i++) sum += (ids[i] & CHAT_LEARN) != 0;
        }
    return sum;
}

uint64_t loader_sft_val_windows(const Sft *t, int64_t eval_tokens) {
    const Pack *p = &t->val.pack;
    int64_t rows = 0;
    int w = 0;
    for (; w < p->n && (eval_tokens <= 0 || rows < eval_tokens); w++)
        for (int k = p->first[w], n; k < p->first[w + 1]; k++) {
            sft_piece(t, &t->val, p->piece[k], &n);
            rows += n - 1;
        }
    return (uint64_t)w;
}

void loader_sft_val(Loader *l, const Sft *t, uint64_t window, int b) {
    loader_start(l, b);
    CHECK(window + (uint64_t)b <= (uint64_t)t->val.pack.n, "windows %llu + %d of %d", (unsigned long long)window, b,
          t->val.pack.n);
    for (int i = 0; i < b; i++) add_window(l, t, &t->val, (int)window + i, window + (uint64_t)i);
}
