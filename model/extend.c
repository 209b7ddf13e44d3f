/* extend.c: a pass over history: prefill, a chunk of it, verification and decoding are all this. */
#include "block.h"
#include "divide.h"
#include "ops/graph.h"
#include "ops/host.h"
#include "ops/salient.h"

bool model_cache_open(const Model *m, Cache *c, int nseq, int max_tokens, int max_rows, int page_rows, bool dry,
                      Err *e) {
    KvShape *slots = xcalloc((size_t)m->L, sizeof *slots);
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].owner) slots[l] = m->layer[l].rows;
    bool ok = kv_open_ranks(c, m->dev, m->opts.policy, m->opts.tier, m->opts.ranks, slots, m->L, nseq, max_tokens,
                            max_rows, page_rows, m->opts.poison, dry, e);
    free(slots);
    int *order = xcalloc((size_t)m->L, sizeof *order), n = 0;
    for (int l = 0; l < m->L; l++)
        if (!m->layer[l].publisher) order[n++] = m->layer[l].kv_from;
    if (ok) kv_order(c, n, order);
    free(order);
    if (ok) model_divide_open(m, c);
    for (int l = 0; ok && l < m->L; l++) {
        const Mixer *of = m->layer[l].kind->mixer;
        if (m->layer[l].owner && of->turns) kv_turns(kv_slot(c, l), of->turns(m->layer[l].cfg));
    }
    return ok;
}

/* The norm that reads the stream of so many rows before layer l, or before the head: to where a mixer's input is held,
 * or to the beginning of `room`. */
static Norm norm_before(const Model *m, Workspace *ws, int l, int rows, Tensor room, Tensor rstd) {
    bool held = l < m->L && present(ws->inputs[l]);
    return block_norm(m, l, held ? ws->inputs[l] : TENSOR(room.p, REAL, rows, m->cfg.d_model),
                      TENSOR(rstd.p, REAL, rows));
}
static bool extend_has_state(const Model *m, int l) { return m->layer[l].owner && m->layer[l].rows.state; }

/* On a device, what the layers decide about rows lies in one piece, which the host reads by one copy. */
static void evicted_together(const Model *m, Workspace *ws, Run *r, int N) {
    int lanes = 0;
    ws->evicted = ABSENT;
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].owner && m->layer[l].rows.evicts) lanes += m->layer[l].rows.lanes;
    if (!lanes || !device_apart(ws->dev)) return;
    ws->evicted = SCRATCH(r, "rows that evict", lanes, N);
    for (int l = 0, at = 0; l < m->L; l++) {
        if (!m->layer[l].owner || !m->layer[l].rows.evicts) continue;
        ws->kv[l].evicted.p = tensor_part(ws->evicted, at, m->layer[l].rows.lanes).p;
        at += m->layer[l].rows.lanes;
    }
}

/* Rows of the batch whose queries a policy may come to ask: the newest of each sequence, all where any of them may be
 * the last that is accepted; or the probes of a codec. Then these and the wanted ones, in order. A policy that asks
 * where a prompt ends has no use for queries that later passes are sure to follow by as many. */
static RowList extend_asked(const Workspace *ws, const Run *r, const RowCodec *probes, const PolicyCfg *p) {
    const Batch *b = r->batch;
    const int newest = policy_queries(p), *rest = policy_asks_last(p) ? b->rest : NULL;
    int n = 0;
    if (measuring(r)) return (RowList){b->N, ws->asked};
    for (int i = 0; probes && i < b->N; i++)
        if (salient_probe(probes, b->pos[i]) >= 0) ws->asked[n++] = i;
    if (probes) return (RowList){n, ws->asked};
    for (int q = 0; q < b->B; q++)
        for (int i = r->mode & RUN_HOLD ? b->off[q]
                                        : imax(b->off[q], b->off[q + 1] - imax(0, newest - (rest ? rest[q] : 0)));
             i < b->off[q + 1]; i++)
            ws->asked[n++] = i;
    return (RowList){n, ws->asked};
}
static RowList extend_looked(const Workspace *ws, const Run *r, RowList asked, RowList want) {
    int n = 0;
    if (measuring(r)) return (RowList){ws->dry_looked, ws->looked};
    for (int i = 0, j = 0; i < asked.n || j < want.n;) {
        const int a = i < asked.n ? asked.idx[i] : INT32_MAX, w = j < want.n ? want.idx[j] : INT32_MAX;
        ws->looked[n++] = imin(a, w);
        i += a <= w, j += w <= a;
    }
    return (RowList){n, ws->looked};
}
/* Memory for the queries of layers that are asked. Returns the rows that layers up to the last of them run for: all,
 * where the head reads them all. */
static RowList extend_ask(const Model *m, const Workspace *ws, Run *r, const Cache *c, RowList want) {
    const PolicyCfg *p = m->opts.policy;
    if (m->last_asked < 0) return want;
    const bool replays = policy_feeds(p);
    const RowList all = {r->batch->N, ws->idx};
    for (int l = 0; l < m->L; l++) ws->probe[l] = (Probe){0};
    if (replays && !c->replay && !measuring(r)) return policy_novelty(p) ? all : want;
    const RowCodec *codec = m->opts.codec, *probes = codec && codec->salient_bits ? codec : NULL;
    RowList asked = extend_asked(ws, r, probes, p);
    if (replays) asked.n = imin(asked.n, REPLAY_ROWS);
    for (int l = 0; l < m->L; l++) {
        const Layer *y = &m->layer[l];
        const KvShape *s = &m->layer[y->kv_from].rows;
        ws->probe[l] = (Probe){.rows = asked};
        if (!y->heads || !(probes ? s->codec == probes : policy_suits(p, s))) continue;
        ws->probe[l].q = SCRATCH(r, "queries asked", asked.n, y->heads, s->kdim);
        ws->probe[l].lse = SCRATCH(r, "lse of queries asked", asked.n, y->heads);
    }
    return policy_novelty(p) ? all : extend_looked(ws, r, asked, want);
}

/* ---- how novel tokens are ---------------------------------------------------------------------------------------- */

/* The slot that remembers the newest rows before the head; NULL: no policy asks for novelty. */
static const Slot *extend_last(const Model *m, const Cache *c) {
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].owner && m->layer[l].rows.last) return kv_slot(c, l);
    return NULL;
}
/* Memory for the novelty of a pass's tokens. The first token of a document has no target: its novelty is 0. */
static void extend_novelty_begin(const Model *m, Workspace *ws, Run *r, const int *tok) {
    const Batch *b = r->batch;
    ws->novelty = ws->xf = ABSENT;
    if (!policy_novelty(m->opts.policy)) return;
    for (int i = 0; i < b->N; i++) ws->target[i] = b->first[i] == i ? -1 : tok[i];
    ws->novelty = SCRATCH(r, "novelty of tokens", b->N);
    ws->xf = SCRATCH(r, "rows before the head", b->N, m->cfg.d_model);
}
/* xf (N,d): the rows before the head. The row before a token is the pass's, or for the first token of a sequence in the
 * pass the one that its slot remembers. */
static void extend_novelty(const Model *m, Workspace *ws, Run *r, const Cache *c, Tensor xf) {
    const Batch *b = r->batch;
    const int d = m->cfg.d_model;
    const size_t bytes = (size_t)b->N * sizeof(size_t), w = (size_t)d;
    if (!present(ws->novelty)) return;
    const RunMark mark = run_mark(r);
    const Tensor before = SCRATCH(r, "rows before tokens", b->N, d);
    size_t *to = arena_take(r->host, bytes, "places"), *from = arena_take(r->host, bytes, "rows"),
           *first_to = arena_take(r->host, bytes, "places of first tokens"),
           *first_from = arena_take(r->host, bytes, "rows of sequences");
    int n = measuring(r) ? b->N : 0, firsts = measuring(r) ? b->B : 0;
    for (size_t i = 0; i < (size_t)b->N && !measuring(r); i++) {
        const int q = b->of[i];
        if ((int)i == b->off[q])
            first_to[firsts] = i * w, first_from[firsts++] = (size_t)b->seq[q] * w;
        else
            to[n] = i * w, from[n++] = (i - 1) * w;
    }
    r->ops->copy(r, ws->xf, xf);
    r->ops->move(r, before, to, xf, from, n, d);
    r->ops->move(r, before, first_to, kv_last(extend_last(m, c)), first_from, firsts, d);
    r->ops->linear_xent(r, ws->novelty, NULL, NOWHERE, ABSENT, before, m->cfg.tied ? m->w.embed : m->w.head,
                        model_logits(m), ws->target, NULL);
    run_release(r, mark);
}
/* The rows before the head of each sequence's newest accepted token. */
static void extend_novelty_end(const Model *m, const Workspace *ws, Run *r, const Cache *c, const int *accept) {
    const Batch *b = r->batch;
    const size_t bytes = (size_t)b->B * sizeof(size_t), w = (size_t)m->cfg.d_model;
    if (!present(ws->xf)) return;
    size_t *to = arena_take(r->host, bytes, "places of newest rows"), *from = arena_take(r->host, bytes, "newest rows");
    int n = measuring(r) ? b->B : 0;
    for (int q = 0; q < b->B && !measuring(r); q++) {
        const int end = accept ? b->off[q] + accept[q] : b->off[q + 1];
        if (end > b->off[q]) to[n] = (size_t)b->seq[q] * w, from[n++] = (size_t)(end - 1) * w;
    }
    r->ops->move(r, kv_last(extend_last(m, c)), to, ws->xf, from, n, m->cfg.d_model);
}

/* Rows of layer l's output. */
static RowList extend_rows(const Model *m, const Workspace *ws, int N, int l, RowList looked, RowList want) {
    /* no layer above needs the rows that were not requested */
    return l < m->last_writer ? (RowList){N, ws->idx} : l <= m->last_asked ? looked : want;
}
/* Guesses the queries of layer l in its rows `out` from the input xn of the mixer before it, into `room`. Absent: no
 * policy selects by them, or none of the pass's rows comes after its prompt. */
static Tensor extend_guess(const Model *m, const Workspace *ws, const Run *r, const Cache *c, int l, Tensor xn,
                           RowList out, Tensor room) {
    Run v = *r;
    if (!model_guesses(m, l) || !(measuring(r) || kv_selects(c, r->batch))) return ABSENT;
    const Layer *y = &m->layer[l];
    const Tensor q = TENSOR(room.p, REAL, out.n, y->heads, m->layer[y->kv_from].rows.kdim);
    v.layer = l, v.out = out;
    sums_need(m, &v, l + 1);
    const AttnSpec spec = y->kind->mixer->queries(&v, y->cfg, m->w.layer[l].mix, xn, &ws->kv[y->kv_from], q);
    kv_expect(&v, kv_slot(c, y->kv_from), q, spec);
    return q;
}
/* Elements of the largest guess of one row. */
static int guess_width(const Model *m) {
    int most = 0;
    for (int l = 0; l < m->L; l++)
        if (model_guesses(m, l)) most = imax(most, m->layer[l].heads * m->layer[m->layer[l].kv_from].rows.kdim);
    return most;
}

/* Where logits go: to the host's `to`, or to a function on the device. */
typedef struct {
    Tensor to;
    LogitsSee *see;
    void *ctx;
    uint64_t key;
} Logits;
/* Everything up to the logits; the rows of the pass stay in ws->kv and, under RUN_HOLD, the inputs of mixers with a
 * state in ws->inputs, in scratch that the caller gives back. */
static void extend_pass(const Model *m, Workspace *ws, Run *r, const Cache *c, const int *tok, RowList want,
                        Logits logits) {
    int N = r->batch->N, d = m->cfg.d_model;
    const size_t one = sizeof(int), rows = (size_t)N * one;
    extend_novelty_begin(m, ws, r, tok);
    run_give(r, 4,
             (const Given[]){{ws->idx, rows},
                             {tok, rows},
                             {want.idx == ws->idx ? NULL : want.idx, (size_t)want.n * one},
                             {present(ws->novelty) ? ws->target : NULL, rows}});
    Fields place = arena_placer(r->scratch);
    for (int l = 0; l < m->L; l++)
        if (m->layer[l].owner) kv_pass_fields(&m->layer[l].rows, N, &ws->kv[l], &place);
    block_below_fields(m, N, r, &place);
    evicted_together(m, ws, r, N);
    const RowList looked = extend_ask(m, ws, r, c, want);
    for (int l = 0; l < m->L; l++) {
        ws->inputs[l] = ABSENT;
        if (r->mode & RUN_HOLD && extend_has_state(m, l)) ws->inputs[l] = SCRATCH(r, "held input", N, d);
    }
    Mark mark = arena_mark(r->scratch);
    Tensor x = SCRATCH(r, "x", N, d), y = SCRATCH(r, "y", N, d), room = SCRATCH(r, "normed", N, d),
           rstd = SCRATCH(r, "rstd", N);
    const int guessed = guess_width(m);
    Tensor guess = ABSENT, guesses[2] = {ABSENT, ABSENT}; /* a layer reads one while it writes the next layer's */
    for (int i = 0; i < 2 && guessed; i++) guesses[i] = SCRATCH(r, "guessed queries", N, guessed);
    r->share = measuring(r) ? model_shares(c) : r->share;
    r->in = r->out = row_ranks_out(r, (RowList){N, ws->idx});
    const int own = r->in.n ? r->in.idx[0] : 0; /* the first row that this rank makes */
    sums_need(m, r, 0);
    x = TENSOR(x.p, REAL, r->in.n, d);
    model_embed(m, r, x, tok + own, r->batch->pos + own);
    Norm norm = norm_before(m, ws, 0, r->in.n, room, rstd);
    model_norm(m, r, norm, x);
    for (int l = 0; l < m->L; l++) {
        r->out = row_ranks_out(r, extend_rows(m, ws, N, l, looked, want));
        r->probe = ws->probe[l], r->guess = guess;
        Tensor to = TENSOR(y.p, REAL, r->out.n, d), xn = norm.y;
        norm = norm_before(m, ws, l + 1, r->out.n, room, rstd);
        sums_need(m, r, l + 1);
        guess = extend_guess(m, ws, r, c, l + 1, xn, extend_rows(m, ws, N, l + 1, looked, want), guesses[l % 2]);
        block_extend(m, ws, r, c, l, TENSOR(x.p, REAL, r->in.n, d), xn, to, norm);
        y = x, x = to;
        r->in = r->out;
    }
    r->probe = (Probe){0}, r->guess = ABSENT;
    Tensor xf = row_ranks_join(r, norm.y);
    r->share = NULL;
    if (m->last_asked == m->L - 1) { /* not before the last layer could rows be left out */
        xf = SCRATCH(r, "wanted rows", want.n, d);
        r->ops->gather(r, xf, norm.y, r->out, want);
    }
    const Tensor to = logits.to;
    CHECK(want.n == 0 || logits.see || (to.n[0] == want.n && to.n[1] == m->cfg.vocab), "logits (%d,%d)", to.n[0],
          to.n[1]);
    bool apart = want.n && (logits.see || device_apart(ws->dev));
    Tensor out = apart ? SCRATCH(r, "logits", want.n, m->cfg.vocab) : to;
    sums_need(m, r, m->L + 1);
    extend_novelty(m, ws, r, c, norm.y);
    if (want.n) head_logits(m, r, out, xf, m->cfg.tied ? m->w.embed : m->w.head);
    sums_rest(m);
    if (want.n && logits.see)
        logits.see(logits.ctx, out);
    else if (apart && !measuring(r))
        device_read(ws->dev, to.p, out.p, tensor_bytes(out)); /* waits: the host samples */
    arena_release(r->scratch, mark);
}

/* The accepted rows of a batch as a batch; its arrays live in the host's scratch. */
static Batch extend_accepted(Run *r, const int *accept, int *row) {
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

/* States include the accepted rows of ws->inputs: runs extend again, for them alone. */
static void extend_replay(const Model *m, Workspace *ws, const Cache *c, Run r, const int *accept) {
    RunMark mark = run_mark(&r);
    int *row = arena_take(r.host, (size_t)r.batch->N * sizeof *row, "accepted"), d = m->cfg.d_model;
    Batch a = extend_accepted(&r, accept, row);
    RowList all = {r.batch->N, ws->idx}, some = {a.N, row};
    r.batch = &a;
    r.mode &= ~(unsigned)RUN_HOLD;
    run_give(&r, 1, &(Given){ws->idx, (size_t)a.N * sizeof *ws->idx});
    for (int l = 0; a.N && l < m->L; l++) {
        if (!extend_has_state(m, l)) continue;
        Mark inner = arena_mark(r.scratch);
        Fields place = arena_placer(r.scratch);
        sums_need(m, &r, l + 1);
        Tensor x = SCRATCH(&r, "accepted input", a.N, d), y = SCRATCH(&r, "unread", a.N, d);
        Kv rows = {0};
        kv_pass_fields(&m->layer[l].rows, a.N, &rows, &place);
        r.ops->gather(&r, x, ws->inputs[l], all, some);
        r.layer = l;
        r.in = r.out = (RowList){a.N, ws->idx};
        m->layer[l].kind->mixer->extend(&r, m->layer[l].cfg, m->w.layer[l].mix, x, &rows, kv_slot(c, l), y);
        arena_release(r.scratch, inner);
    }
    sums_rest(m);
    run_release(&r, mark);
}

/* Checks that can refuse; then makes a Run of the pass. */
static bool extend_begin(const Model *m, Workspace *ws, Cache *c, const Batch *b, const int *tok, RowList want,
                         unsigned mode, Run *r, Err *e) {
    CHECK(b->N <= ws->extend_rows && want.n <= b->N, "%d rows, %d wanted; reserved for %d", b->N, want.n,
          ws->extend_rows);
    for (int i = 0; i < b->N; i++)
        if (tok[i] < 0 || tok[i] >= m->cfg.vocab)
            return err_input(e, "token %d: id %d is outside the vocabulary of %d", i, tok[i], m->cfg.vocab);
    for (int i = 0; i < b->N && present(m->w.positions); i++)
        if (b->pos[i] >= m->cfg.max_positions)
            return err_input(e,
                             "token %d: position %d is beyond the %d positions that the model has; shorten the context",
                             i, b->pos[i], m->cfg.max_positions);
    if (!kv_begin(c, b, e)) return false;
    kv_feed(c, b, tok);
    *r = workspace_run(ws);
    r->batch = b;
    r->mode = mode;
    if (!(mode & RUN_HOLD)) r->share = model_divide(m, c, b);
    r->progress = 1;
    ws->held = arena_mark(&ws->scratch);
    return true;
}
bool model_verify(const Model *m, Workspace *ws, Cache *c, const Batch *b, const int *tok, RowList want, Tensor logits,
                  Err *e) {
    Run r;
    if (!extend_begin(m, ws, c, b, tok, want, RUN_HOLD, &r, e)) return false;
    extend_pass(m, ws, &r, c, tok, want, (Logits){.to = logits});
    if (kv_sound(c, e)) return true;
    arena_release(&ws->scratch, ws->held);
    return false;
}
static void extend_append(const Model *m, Workspace *ws, const Cache *c, Run r, const int *accept) {
    RunMark mark = run_mark(&r);
    r.novelty = ws->novelty;
    Tensor evicted = present(ws->evicted) ? host_view(&r, ws->evicted, true) : ABSENT; /* waits */
    for (int l = 0, at = 0; l < m->L; l++) {
        if (!m->layer[l].owner) continue;
        Kv rows = ws->kv[l];
        if (present(evicted) && rows.s.evicts) {
            rows.evicted.p = tensor_part(evicted, at, rows.s.lanes).p;
            at += rows.s.lanes;
        }
        kv_append(&r, kv_slot(c, l), &rows, accept);
    }
    for (int l = 0; l <= m->last_asked; l++)
        if (present(ws->probe[l].q))
            kv_ask(&r, kv_slot(c, m->layer[l].kv_from), &ws->probe[l], m->layer[l].heads_at, accept);
    extend_novelty_end(m, ws, &r, c, accept);
    run_release(&r, mark);
}
static void extend_settle(Workspace *ws, Cache *c, const Batch *b, const int *accept) {
    Run r = workspace_run(ws);
    r.batch = b;
    kv_end(c, b, accept);
    kv_policy(&r, c, b, accept);
    arena_release(&ws->scratch, ws->held);
}
void model_commit(const Model *m, Workspace *ws, Cache *c, const Batch *b, const int *accept) {
    Run r = workspace_run(ws);
    r.batch = b;
    extend_replay(m, ws, c, r, accept);
    extend_append(m, ws, c, r, accept);
    extend_settle(ws, c, b, accept);
}

typedef struct {
    const Model *m;
    Workspace *ws;
    Cache *c;
    Run r;
    const int *tok;
    RowList want;
    Logits logits;
} Extend;
static void extend_work(void *ctx) {
    Extend *x = ctx;
    Run r = x->r, end = workspace_run(x->ws);
    extend_pass(x->m, x->ws, &r, x->c, x->tok, x->want, x->logits);
    end.batch = r.batch;
    extend_append(x->m, x->ws, x->c, end, NULL);
}
/* Decoding steps are alike: a row of each sequence, all wanted. Their launches depend on the number of rows and of
 * wanted rows and on whether any sequence has a history, and on nothing that grows: kernels read lengths and tables.
 * Pages are found before the pass, and rows are evicted after it. */
static bool extend_alike(const Model *m, const Batch *b, RowList want) {
    return b->N == b->B && want.n == b->N && model_varying(m) < 0;
}
static bool extend(Extend *x, const Batch *b, Err *e) {
    if (!extend_begin(x->m, x->ws, x->c, b, x->tok, x->want, 0, &x->r, e)) return false;
    uint64_t key = rng_mix(rng_mix(x->logits.key, (uint64_t)b->B), (uint64_t)b->history);
    const bool alike = extend_alike(x->m, b, x->want) && !kv_selects(x->c, b); /* or the host reads as pages fill */
    graphs_run(alike ? x->c->graphs : NULL, key, extend_work, x);
    extend_settle(x->ws, x->c, b, NULL);
    return kv_sound(x->c, e);
}
bool model_extend(const Model *m, Workspace *ws, Cache *c, const Batch *b, const int *tok, RowList want, Tensor logits,
                  Err *e) {
    Extend x = {.m = m, .ws = ws, .c = c, .tok = tok, .want = want, .logits = {.to = logits}};
    return extend(&x, b, e);
}
bool model_extend_seen(const Model *m, Workspace *ws, Cache *c, const Batch *b, const int *tok, RowList want,
                       LogitsSee *see, void *ctx, uint64_t key, Err *e) {
    Extend x = {.m = m, .ws = ws, .c = c, .tok = tok, .want = want, .logits = {.see = see, .ctx = ctx, .key = key}};
    return extend(&x, b, e);
}

void model_replayed(Workspace *ws, Cache *c, int from, int n, int lo, int hi) {
    Run r = workspace_run(ws);
    kv_replayed(&r, c, from, n, lo, hi);
}
void model_prompt_ends(Workspace *ws, Cache *c, int seq, int next) {
    Run r = workspace_run(ws);
    kv_prompt_ends(&r, c, seq, next);
}

void model_prompt_asked(Workspace *ws, Cache *c, int seq, int next) {
    Run r = workspace_run(ws);
    kv_prompt_asked(&r, c, seq, next);
}

bool model_extend_reserve(const Model *m, Workspace *ws, Cache *c, int max_rows, int max_want, int max_seqs, Err *e) {
    int N = max_rows, B = imin(max_seqs, N), most = imin(max_want, N);
    if (N > ws->extend_rows) {
        ws->idx = xrealloc(ws->idx, (size_t)imax(N, m->opts.max_rows), sizeof *ws->idx);
        for (int i = 0; i < imax(N, m->opts.max_rows); i++) ws->idx[i] = i;
        ws->asked = xrealloc(ws->asked, (size_t)N, sizeof *ws->asked);
        ws->looked = xrealloc(ws->looked, (size_t)N, sizeof *ws->looked);
        ws->target = xrealloc(ws->target, (size_t)N, sizeof *ws->target);
        ws->extend_rows = N;
    }
    int *zeros = xcalloc((size_t)N + 1, sizeof *zeros);
    Batch b = {.B = B, .N = N, .off = zeros, .seq = zeros, .of = zeros, .pos = zeros, .first = zeros, .history = true};
    Arena dry = {.name = "scratch"}, host = {.name = "scratch of the host"};
    Run r = run_make(ws->dev, &dry);
    if (device_apart(ws->dev)) r.host = &host;
    r.batch = &b;
    r.mode = RUN_HOLD;
    /* Layers copy the rows that are wanted unless all are: a pass in which not all are may need more. */
    const RunMark begin = run_mark(&r);
    for (int less = most == N || m->last_asked >= 0; less >= 0; less--) {
        const int wanted = most == N ? most - less : most;
        run_release(&r, begin);
        ws->dry_looked = imax(wanted, N - less);
        extend_pass(m, ws, &r, c, zeros, (RowList){wanted, ws->idx},
                    (Logits){.to = TENSOR(NULL, REAL, wanted, m->cfg.vocab)});
    }
    extend_replay(m, ws, c, r, NULL);
    extend_append(m, ws, c, r, NULL);
    kv_policy(&r, c, &b, NULL);
    free(zeros);
    if (!workspace_able(m, ws, e)) return false;
    if (m->opts.dry) {
        ws->scratch.peak = zmax(ws->scratch.peak, dry.peak);
        return true;
    }
    if (dry.peak <= ws->scratch.size && host.peak <= ws->host.size && ws->scratch.base) return true;
    CHECK(ws->scratch.used == 0, "a pass is under way");
    dry.peak = zmax(dry.peak, ws->scratch.size), host.peak = zmax(host.peak, ws->host.size);
    arena_close(&ws->scratch);
    arena_close(&ws->host);
    return workspace_scratch(m, ws, dry.peak, host.peak, e);
}
