/* extend.c: a pass over history: prefill, a chunk of it, verification and decoding are all this. */
#include "act.h"
#include "../ops/graph.h"
#include "../ops/host.h"

bool model_cache_open(const Model *m, Cache *c, int nseq, int max_tokens, int max_rows, int page_rows, bool dry,
                      Err *e) {
    KvShape *slots = xcalloc((size_t)m->L, sizeof *slots);
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].owner) slots[l] = m->layer[l].rows;
    bool ok = kv_open_at(c, m->dev, slots, m->L, nseq, max_tokens, max_rows, page_rows, m->opts.poison, dry, e);
    free(slots);
    return ok;
}

/* The norm before layer l's mixer, or that behind the last layer, of so many rows: to where a mixer's input is held, or
 * to the beginning of `room`. */
static Norm norm_before(const Model *m, int l, int rows, Tensor room, Tensor rstd) {
    bool held = l < m->L && present(m->inputs[l]);
    Tensor w = l < m->L ? m->w.layer[l].norm1 : m->w.norm, b = l < m->L ? m->w.layer[l].bias1 : m->w.norm_bias;
    return (Norm){held ? m->inputs[l] : TENSOR(room.p, REAL, rows, m->cfg.d_model), TENSOR(rstd.p, REAL, rows), w, b};
}
/* y (out.n, d) = block(x (in.n, d)), of which xn is normed, and the norm that reads y. */
static void layer_extend(Model *m, Run *r, const Cache *c, int l, Tensor x, Tensor xn, Tensor y, Norm next) {
    const Layer *L = &m->layer[l];
    const LayerWeights *w = &m->w.layer[l];
    int d = m->cfg.d_model, M = r->out.n;
    Mark mark = arena_mark(r->scratch);
    Fields place = arena_placer(r->scratch);
    Tensor mid = SCRATCH(r, "mid", M, d);
    r->layer = l;
    L->kind->mixer->extend(r, L->cfg, w->mix, xn, &m->kv[L->kv_from], kv_slot(c, L->kv_from),
                           L->publisher ? ABSENT : mid);
    r->ops->gather(r, y, x, r->in, r->out); /* the stream goes on for the wanted rows */
    if (!L->publisher) {
        Act *a = &m->act[l];
        const Norm second = {SCRATCH(r, "xn2", M, d), SCRATCH(r, "rstd2", M), w->norm2, w->bias2};
        L->ffn->ffn->saved(L->fcfg, M, a->ffn, &place);
        if (m->cfg.parallel) {
            model_norm(m, r, second, y);
            r->ops->add(r, mid, y);
        } else {
            model_add_norm(m, r, second, mid, y);
        }
        L->ffn->ffn->forward(r, L->fcfg, w->ffn, second.y, a->ffn, y);
        model_add_norm(m, r, next, y, mid);
    } else {
        model_norm(m, r, next, y);
    }
    arena_release(r->scratch, mark);
}

static bool has_state(const Model *m, int l) { return m->layer[l].owner && m->layer[l].rows.state; }

/* On a device, what the layers decide about rows lies in one piece, which the host reads by one copy. */
static void gone_together(Model *m, Run *r, int N) {
    int lanes = 0;
    m->gone = ABSENT;
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].owner && m->layer[l].rows.retire) lanes += m->layer[l].rows.lanes;
    if (!lanes || !device_apart(m->dev)) return;
    m->gone = SCRATCH(r, "rows that retire", lanes, N);
    for (int l = 0, at = 0; l < m->L; l++) {
        if (!m->layer[l].owner || !m->layer[l].rows.retire) continue;
        m->kv[l].gone.p = tensor_part(m->gone, at, m->layer[l].rows.lanes).p;
        at += m->layer[l].rows.lanes;
    }
}

/* Where logits go: to the host's `to`, or shown where they are. */
typedef struct {
    Tensor to;
    LogitsSee *see;
    void *ctx;
    uint64_t key;
} Logits;
/* Everything up to the logits; the rows of the pass stay in m->kv and, under RUN_HOLD, the inputs of mixers with a
 * state in m->inputs, in scratch that the caller gives back. */
static void pass(Model *m, Run *r, const Cache *c, const int *tok, Pick want, Logits logits) {
    int N = r->batch->N, d = m->cfg.d_model;
    const size_t one = sizeof(int), rows = (size_t)N * one;
    run_give(r, 3,
             (const Given[]){{m->idx, rows},
                             {tok, rows},
                             {want.idx == m->idx ? NULL : want.idx, (size_t)want.n * one}});
    Fields place = arena_placer(r->scratch);
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].owner) kv_pass_fields(&m->layer[l].rows, N, &m->kv[l], &place);
    gone_together(m, r, N);
    for (int l = 0; l < m->L; l++) {
        m->inputs[l] = ABSENT;
        if (r->mode & RUN_HOLD && has_state(m, l)) m->inputs[l] = SCRATCH(r, "held input", N, d);
    }
    Mark mark = arena_mark(r->scratch);
    Tensor x = SCRATCH(r, "x", N, d), y = SCRATCH(r, "y", N, d), room = SCRATCH(r, "normed", N, d),
           rstd = SCRATCH(r, "rstd", N);
    r->in = r->out = (Pick){N, m->idx};
    sums_need(m, r, 0);
    model_embed(m, r, x, tok);
    Norm norm = norm_before(m, 0, N, room, rstd);
    model_norm(m, r, norm, x);
    for (int l = 0; l < m->L; l++) {
        if (l >= m->last_writer) r->out = want; /* nothing above needs the rows that nobody asked for */
        Tensor to = TENSOR(y.p, REAL, r->out.n, d), xn = norm.y;
        norm = norm_before(m, l + 1, r->out.n, room, rstd);
        sums_need(m, r, l + 1);
        layer_extend(m, r, c, l, TENSOR(x.p, REAL, r->in.n, d), xn, to, norm);
        y = x, x = to;
        r->in = r->out;
    }
    const Tensor xf = norm.y;
    const Tensor to = logits.to;
    CHECK(want.n == 0 || logits.see || (to.n[0] == want.n && to.n[1] == m->cfg.vocab), "logits (%d,%d)", to.n[0],
          to.n[1]);
    bool apart = want.n && (logits.see || device_apart(m->dev));
    Tensor out = apart ? SCRATCH(r, "logits", want.n, m->cfg.vocab) : to;
    sums_need(m, r, m->L + 1);
    if (want.n) r->ops->linear(r, out, xf, m->cfg.tied ? m->w.embed : m->w.head, ABSENT);
    sums_rest(m);
    if (want.n && logits.see)
        logits.see(logits.ctx, out);
    else if (apart && !measuring(r))
        device_read(m->dev, to.p, out.p, tensor_bytes(out)); /* waits: the host samples */
    arena_release(r->scratch, mark);
}

/* The accepted rows of a batch as a batch; its arrays live in the host's scratch. */
static Batch accepted(Run *r, const int *accept, int *row) {
    const Batch *b = r->batch;
    int *mem = arena_take(r->host, ((size_t)b->B + 1 + 3 * (size_t)b->N) * sizeof *mem, "accepted rows");
    int *off = mem, *of = off + b->B + 1, *pos = of + b->N, *first = pos + b->N;
    Batch a = {.B = b->B, .N = b->N, .off = off, .seq = b->seq, .of = of, .pos = pos, .first = first, .id = b->id};
    a.history = true;
    if (measuring(r)) return a;
    a.N = 0, a.history = false;
    for (int s = 0; s < b->B; s++) {
        off[s] = a.N;
        int end = accept ? b->off[s] + accept[s] : b->off[s + 1];
        for (int i = b->off[s]; i < end; i++) {
            row[a.N] = i, of[a.N] = s, pos[a.N] = b->pos[i];
            first[a.N] = b->first[i] < 0 ? -1 : b->first[i] - b->off[s] + off[s];
            a.history |= first[a.N++] < 0;
        }
    }
    off[b->B] = a.N;
    return a;
}

/* States take in the rows of m->inputs that were accepted: extend once more, for them alone. */
static void replay(Model *m, const Cache *c, Run r, const int *accept) {
    RunMark mark = run_mark(&r);
    int *row = arena_take(r.host, (size_t)r.batch->N * sizeof *row, "accepted"), d = m->cfg.d_model;
    Batch a = accepted(&r, accept, row);
    Pick all = {r.batch->N, m->idx}, some = {a.N, row};
    r.batch = &a;
    r.mode &= ~(unsigned)RUN_HOLD;
    run_give(&r, 1, &(Given){m->idx, (size_t)a.N * sizeof *m->idx});
    for (int l = 0; a.N && l < m->L; l++) {
        if (!has_state(m, l)) continue;
        Mark inner = arena_mark(r.scratch);
        Fields place = arena_placer(r.scratch);
        sums_need(m, &r, l + 1);
        Tensor x = SCRATCH(&r, "accepted input", a.N, d), y = SCRATCH(&r, "unread", a.N, d);
        Kv rows = {0};
        kv_pass_fields(&m->layer[l].rows, a.N, &rows, &place);
        r.ops->gather(&r, x, m->inputs[l], all, some);
        r.layer = l;
        r.in = r.out = (Pick){a.N, m->idx};
        m->layer[l].kind->mixer->extend(&r, m->layer[l].cfg, m->w.layer[l].mix, x, &rows, kv_slot(c, l), y);
        arena_release(r.scratch, inner);
    }
    sums_rest(m);
    run_release(&r, mark);
}

/* What may be refused; then a Run of the pass. */
static bool begin(Model *m, Cache *c, const Batch *b, const int *tok, Pick want, unsigned mode, Run *r, Err *e) {
    CHECK(b->N <= m->extend_rows && want.n <= b->N, "%d rows, %d wanted; reserved for %d", b->N, want.n,
          m->extend_rows);
    for (int i = 0; i < b->N; i++)
        if (tok[i] < 0 || tok[i] >= m->cfg.vocab)
            return err_input(e, "token %d: id %d is outside the vocabulary of %d", i, tok[i], m->cfg.vocab);
    for (int i = 0; i < b->N && present(m->w.positions); i++)
        if (b->pos[i] >= m->cfg.max_positions)
            return err_input(e,
                             "token %d: position %d is beyond the %d that the model has learned; shorten the context",
                             i, b->pos[i], m->cfg.max_positions);
    if (!kv_begin(c, b, e)) return false;
    *r = model_run(m);
    r->batch = b;
    r->mode = mode;
    r->progress = 1;
    m->held = arena_mark(&m->scratch);
    return true;
}
bool model_verify(Model *m, Cache *c, const Batch *b, const int *tok, Pick want, Tensor logits, Err *e) {
    Run r;
    if (!begin(m, c, b, tok, want, RUN_HOLD, &r, e)) return false;
    pass(m, &r, c, tok, want, (Logits){.to = logits});
    return true;
}
static void append(Model *m, const Cache *c, Run r, const int *accept) {
    RunMark mark = run_mark(&r);
    Tensor gone = present(m->gone) ? host_view(&r, m->gone, true) : ABSENT; /* waits */
    for (int l = 0, at = 0; l < m->L; l++) {
        if (!m->layer[l].owner) continue;
        Kv rows = m->kv[l];
        if (present(gone) && rows.s.retire) {
            rows.gone.p = tensor_part(gone, at, rows.s.lanes).p;
            at += rows.s.lanes;
        }
        kv_append(&r, kv_slot(c, l), &rows, accept);
    }
    run_release(&r, mark);
}
static void settle(Model *m, Cache *c, const Batch *b, const int *accept) {
    kv_end(c, b, accept);
    arena_release(&m->scratch, m->held);
}
void model_commit(Model *m, Cache *c, const Batch *b, const int *accept) {
    Run r = model_run(m);
    r.batch = b;
    replay(m, c, r, accept);
    append(m, c, r, accept);
    settle(m, c, b, accept);
}

int model_varying(const Model *m) {
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].ffn->ffn->varies) return l;
    return -1;
}
typedef struct {
    Model *m;
    Cache *c;
    Run r;
    const int *tok;
    Pick want;
    Logits logits;
} Extend;
static void extend_work(void *ctx) {
    Extend *x = ctx;
    Run r = x->r, end = model_run(x->m);
    pass(x->m, &r, x->c, x->tok, x->want, x->logits);
    end.batch = r.batch;
    append(x->m, x->c, end, NULL);
}
/* Steps of decoding are alike: a row of each sequence, all wanted. What they launch hangs on the numbers of those, on
 * whether any has a history, and on nothing that grows: lengths and tables lie where kernels read them. Pages are
 * found before, and rows that retire leave behind it. */
static bool alike(const Model *m, const Batch *b, Pick want) {
    return b->N == b->B && want.n == b->N && model_varying(m) < 0;
}
static bool extend(Extend *x, const Batch *b, Err *e) {
    if (!begin(x->m, x->c, b, x->tok, x->want, 0, &x->r, e)) return false;
    uint64_t key = rng_mix(rng_mix(x->logits.key, (uint64_t)b->B), (uint64_t)b->history);
    graphs_run(alike(x->m, b, x->want) ? x->c->graphs : NULL, key, extend_work, x);
    settle(x->m, x->c, b, NULL);
    return true;
}
bool model_extend(Model *m, Cache *c, const Batch *b, const int *tok, Pick want, Tensor logits, Err *e) {
    Extend x = {.m = m, .c = c, .tok = tok, .want = want, .logits = {.to = logits}};
    return extend(&x, b, e);
}
bool model_extend_seen(Model *m, Cache *c, const Batch *b, const int *tok, Pick want, LogitsSee *see, void *ctx,
                       uint64_t key, Err *e) {
    Extend x = {.m = m, .c = c, .tok = tok, .want = want, .logits = {.see = see, .ctx = ctx, .key = key}};
    return extend(&x, b, e);
}

bool model_extend_reserve(Model *m, Cache *c, int max_rows, int max_want, int max_seqs, Err *e) {
    int N = max_rows, B = imin(max_seqs, N);
    if (N > m->extend_rows) {
        m->idx = xrealloc(m->idx, (size_t)imax(N, m->opts.max_rows), sizeof *m->idx);
        for (int i = 0; i < imax(N, m->opts.max_rows); i++) m->idx[i] = i;
        m->extend_rows = N;
    }
    int *zeros = xcalloc((size_t)N + 1, sizeof *zeros);
    Batch b = {.B = B, .N = N, .off = zeros, .seq = zeros, .of = zeros, .pos = zeros, .first = zeros, .history = true};
    Arena dry = {.name = "scratch"}, host = {.name = "scratch of the host"};
    Run r = run_make(m->dev, &dry);
    if (device_apart(m->dev)) r.host = &host;
    r.batch = &b;
    r.mode = RUN_HOLD;
    pass(m, &r, c, zeros, (Pick){imin(max_want, N), m->idx},
         (Logits){.to = TENSOR(NULL, REAL, imin(max_want, N), m->cfg.vocab)});
    replay(m, c, r, NULL);
    append(m, c, r, NULL);
    free(zeros);
    if (!model_able(m, e)) return false;
    if (m->opts.dry) {
        m->scratch.peak = zmax(m->scratch.peak, dry.peak);
        return true;
    }
    if (dry.peak <= m->scratch.size && host.peak <= m->host.size && m->scratch.base) return true;
    CHECK(m->scratch.used == 0, "a pass is under way");
    dry.peak = zmax(dry.peak, m->scratch.size), host.peak = zmax(host.peak, m->host.size);
    arena_close(&m->scratch);
    arena_close(&m->host);
    return model_scratch_open(m, dry.peak, host.peak, e);
}
