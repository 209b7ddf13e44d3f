#include "replay.h"
#include "ops/graph.h"
#include "ops/host.h"

/* One pass: rows of at most `chunk` tokens, cut from the feeds in their order. The arrays of the Batch live in one
 * block of Session.rows: tok, pos, first, of, want (chunk each), off (nseq+1), seq and rest (nseq each). */
typedef struct {
    int *tok, *pos, *first, *of, *want, *off, *seq, *rest;
    int N, B, nwant;
} Pass;

static Pass pass_make(const Session *s) {
    int c = s->opts.chunk, *p = s->rows;
    return (Pass){.tok = p,
                  .pos = p + c,
                  .first = p + 2 * c,
                  .of = p + 3 * c,
                  .want = p + 4 * c,
                  .off = p + 5 * c,
                  .seq = p + 5 * c + s->opts.nseq + 1,
                  .rest = p + 5 * c + 2 * s->opts.nseq + 1};
}

static int session_places(const Session *s) { return s->opts.nseq + s->opts.spare; }
static void session_place_check(const Session *s, int seq) {
    CHECK(seq >= 0 && seq < session_places(s), "sequence %d of %d", seq, session_places(s));
}
static Workspace *work_of(Session *s) { return session_workspace(s); }
bool session_open(Session *s, const Model *m, SessionOpts o, Err *e) {
    if (o.chunk == 0) o.chunk = CHUNK_ROWS;
    CHECK(o.nseq >= 1 && o.spare >= 0 && o.chunk >= 1 && o.max_tokens >= 1, "nseq %d+%d chunk %d max_tokens %d", o.nseq,
          o.spare, o.chunk, o.max_tokens);
    CHECK(!o.work || !o.dev || o.dev == o.work->dev, "a workspace of another device");
    *s = (Session){.model = m, .opts = o};
    if (!model_cache_open(m, &s->cache, session_places(s), o.max_tokens, o.chunk, o.page_rows, false, e)) return false;
    if (!o.work) workspace_empty(&s->own, m, o.dev ? o.dev : m->dev);
    if (!model_extend_reserve(m, work_of(s), &s->cache, o.chunk, o.want_all ? o.chunk : imin(o.nseq, o.chunk),
                              imin(o.nseq, o.chunk), e)) {
        kv_close(&s->cache);
        workspace_close(&s->own);
        return false;
    }
    if (!o.plain && device_apart(m->dev) && !kv_disk(&s->cache).slots) s->cache.graphs = graphs_open(m->dev);
    marks_open(&s->marks, &s->cache, o.document == -1 ? o.marks : 0);
    s->next = xcalloc((size_t)session_places(s), sizeof(int));
    s->rows = xcalloc(5 * (size_t)o.chunk + 3 * (size_t)o.nseq + 1, sizeof(int));
    s->id = xcalloc((size_t)o.nseq, sizeof(uint64_t));
    if (s->cache.spare >= 0 && policy_whom(m->opts.policy) == ASK_REPLAY)
        s->fed = xcalloc((size_t)session_places(s) * (size_t)o.max_tokens, sizeof(int));
    return true;
}

void session_close(Session *s) {
    if (!s->model) return;
    graphs_close(s->cache.graphs);
    arena_close(&s->draw);
    marks_close(&s->marks);
    kv_close(&s->cache);
    workspace_close(&s->own);
    free(s->next);
    free(s->rows);
    free(s->fed);
    free(s->id);
    free(s->draws);
    free(s->drawn);
    *s = (Session){0};
}

void session_reset(Session *s, int seq) {
    session_place_check(s, seq);
    kv_drop(&s->cache, seq);
    marks_drop(&s->marks, seq, 0);
    s->next[seq] = 0;
}

void session_fork(Session *s, int from, int to) {
    session_place_check(s, from), session_place_check(s, to);
    kv_fork(&s->cache, from, to);
    marks_drop(&s->marks, to, 0);
    s->next[to] = s->next[from];
    if (s->fed) memcpy(session_fed(s, to), session_fed(s, from), (size_t)s->next[from] * sizeof(int));
}

int session_rewind(Session *s, int seq, int to) {
    session_place_check(s, seq);
    CHECK(to >= 0 && to <= s->next[seq], "%d tokens of %d", to, s->next[seq]);
    if (to == s->next[seq]) return to;
    int at = kv_rewind(&s->cache, seq, to, NULL);
    if (!at && to) at = marks_rewind(&s->marks, &s->cache, seq, to);
    if (!at) session_reset(s, seq);
    marks_drop(&s->marks, seq, at);
    return s->next[seq] = at;
}

void session_mark(Session *s, int seq) {
    session_place_check(s, seq);
    marks_add(&s->marks, &s->cache, seq, s->next[seq]);
}
/* After a pass: see session.h. */
static void pass_mark(Session *s, const Pass *p) {
    for (int b = 0; s->marks.most && b < p->B; b++)
        if (p->off[b + 1] - p->off[b] > 1 || s->next[p->seq[b]] % s->opts.chunk == 0) session_mark(s, p->seq[b]);
}

bool session_prompt_ends(Session *s, int seq, Err *e) {
    session_place_check(s, seq);
    if (!session_replay(s, seq, e)) {
        session_reset(s, seq);
        return false;
    }
    model_prompt_ends(work_of(s), &s->cache, seq, s->next[seq]);
    if (kv_sound(&s->cache, e)) return true;
    session_reset(s, seq);
    return false;
}

int session_length(const Session *s, int seq) { return s->next[seq]; }
size_t session_bytes(const Session *s, int seq) { return kv_bytes(&s->cache, seq); }
KvDisk session_disk(const Session *s) { return kv_disk(&s->cache); }
size_t session_resident(const Session *s) { return kv_resident(&s->cache, s->next); }

static bool feeds_fit(const Session *s, int B, const Feed *f, Err *e) {
    int V = s->model->cfg.vocab;
    for (int b = 0; b < B; b++) {
        CHECK(f[b].seq >= 0 && f[b].seq < session_places(s) && f[b].n >= 1, "feed %d: sequence %d of %d, %d tokens", b,
              f[b].seq, session_places(s), f[b].n);
        for (int a = 0; a < b; a++) CHECK(f[a].seq != f[b].seq, "sequence %d twice in one call", f[b].seq);
        int64_t len = s->next[f[b].seq];
        for (int i = 0; i < f[b].n; i++) {
            int t = f[b].tok[i];
            if (t < 0 || t >= V)
                return err_input(e, "token %d at position %d: expected an id below the vocabulary of %d", t, i, V);
            len = t == s->opts.document ? 1 : len + 1;
            if (len > s->opts.max_tokens)
                return err_input(e,
                                 "a text is longer than the context of %d tokens: shorten it or give a larger context",
                                 s->opts.max_tokens);
        }
    }
    return true;
}

/* Append up to `room` tokens of f from token `at` as the pass's next sequence, none beyond a length at which the cache
 * evicts rows; returns how many. */
static int pass_add(Pass *p, const Session *s, const Feed *f, int at, int room, int *next) {
    const int every = policy_cut(s->model->opts.policy), page = kv_cut(&s->cache, f->seq);
    int n = imin(f->n - at, room), b = p->B++, start = -1;
    p->off[b] = p->N;
    p->seq[b] = f->seq;
    for (int i = 0; i < n; i++) {
        int r = p->N + i, t = f->tok[at + i];
        if (*next == 0 || t == s->opts.document) {
            *next = 0;
            start = r;
        }
        if (s->fed) session_fed(s, f->seq)[*next] = t;
        p->tok[r] = t;
        p->pos[r] = (*next)++;
        p->first[r] = start;
        p->of[r] = b;
        if ((every && *next % every == 0) || (page && *next % page == 0)) n = i + 1;
    }
    p->N += n;
    p->off[b + 1] = p->N;
    p->rest[b] = f->n - at - n;
    return n;
}

/* ---- few sizes of a step of decoding --------------------------------------------------------------------------------
 */
static int session_filled(int n) {
    enum { EVERY = 8 };
    int power = 1;
    while (power < n && power < EVERY) power *= 2;
    return n <= EVERY ? power : (n + EVERY - 1) / EVERY * EVERY;
}
/* Adds empty sequences, which have no row in this pass, until the step has one of those sizes; returns their number.
 * None if passes are not replayed anyway. */
static int pass_fill(Pass *p, const Session *s) {
    const int zero = 0, n = imin(session_filled(p->B), imin(s->opts.nseq, s->opts.chunk)) - p->B;
    const PolicyCfg *policy = s->model->opts.policy;
    int fresh = 0;
    for (int i = 0; i < s->opts.nseq; i++) fresh += s->next[i] == 0;
    if (p->N != p->B || p->nwant != p->N || fresh < n) return 0;
    if (model_varying(s->model) >= 0 || (policy && policy->read)) return 0;
    for (int i = 0, left = n; left > 0; i++) {
        int next = 0;
        if (s->next[i]) continue;
        p->want[p->nwant++] = p->N;
        pass_add(p, s, &(Feed){i, 1, &zero}, 0, 1, &next);
        left--;
    }
    return n;
}

/* Draws of the rows that a call wants. */
typedef struct {
    Session *s;
    SampleRow *rows;
    Sampled *out;
} Draws;
static void see_draw(void *ctx, Tensor logits) {
    Draws *d = ctx;
    device_sample(d->s->model->dev, logits.n[0], logits.n[1], d->rows, R(logits), d->s->seen, d->s->drawing, d->out);
}

/* What cannot be undone in part: the sequences of a call start anew. Returns false. */
static bool feeds_undone(Session *s, int B, const Feed *f) {
    for (int i = 0; i < B; i++) session_reset(s, f[i].seq);
    return false;
}
static bool extend(Session *s, int B, const Feed *f, Want want, Tensor logits, const Draws *draws, Err *e) {
    const bool some = draws || present(logits);
    CHECK(want == WANT_LAST || s->opts.want_all, "opened for last rows only");
    if (!feeds_fit(s, B, f, e)) return false;
    int V = s->model->cfg.vocab, done = 0; /* done: rows of logits written */
    s->read = 0;
    for (int b = 0, at = 0; b < B;) {
        Pass p = pass_make(s);
        bool history = false;
        int b0 = b;
        for (int room = s->opts.chunk; b < B && room > 0;) {
            int *next = &s->next[f[b].seq], row = p.N, n;
            n = pass_add(&p, s, &f[b], at, room, next);
            history |= p.first[row] < 0;
            at += n;
            room -= n;
            bool last = at == f[b].n;
            for (int i = row; i < p.N && some; i++)
                if (want == WANT_ALL || (last && i == p.N - 1)) p.want[p.nwant++] = i;
            if (!last) break;
            b++;
            at = 0;
        }
        /* not with sequences that this call has yet to come to, whose penalties are said already */
        const int fill = draws && b0 == 0 && b == B ? pass_fill(&p, s) : 0, own = p.nwant - fill;
        for (int i = 0; i < p.B; i++) s->id[i] = (uint64_t)p.seq[i];
        Batch batch = {p.B, p.N, p.off, p.seq, p.of, p.pos, p.first, s->id, history, p.rest};
        Tensor out = ABSENT;
        Draws now = {s, s->draws, s->drawn};
        for (int i = 0; i < p.nwant && draws; i++)
            s->draws[i] = i < own ? draws->rows[done + i] : (SampleRow){.penalty = 1, .top_p = 1, .slot = p.seq[i]};
        if (p.nwant && !draws) out = TENSOR(R(logits) + (size_t)done * (size_t)V, REAL, p.nwant, V);
        const RowList rows = {p.nwant, p.want};
        if (!(draws ? model_extend_seen(s->model, work_of(s), &s->cache, &batch, p.tok, rows, see_draw, &now, 1, e)
                    : model_extend(s->model, work_of(s), &s->cache, &batch, p.tok, rows, out, e))) {
            return feeds_undone(s, B, f);
        }
        s->read += kv_read(&s->cache);
        for (int i = 0; i < p.B - fill; i++)
            if (p.off[i + 1] > p.off[i] && !session_prompt_asked(s, p.seq[i], e)) return feeds_undone(s, B, f);
        pass_mark(s, &p);
        for (int i = 0; i < own && draws; i++) draws->out[done + i] = s->drawn[i];
        for (int i = p.B - fill; i < p.B; i++) session_reset(s, p.seq[i]);
        done += own;
        CHECK(b > b0 || p.N == s->opts.chunk || policy_any(s->model->opts.policy) || s->cache.block,
              "a pass of %d rows", p.N);
    }
    if (present(logits))
        CHECK(done == logits.n[0] && logits.n[1] == V, "logits for %d rows, got (%d,%d)", done, logits.n[0],
              logits.n[1]);
    return true;
}

bool session_extend(Session *s, int B, const Feed *f, Want want, Tensor logits, Err *e) {
    return extend(s, B, f, want, logits, NULL, e);
}

bool session_draws(const Session *s) { return REAL == F32 && device_apart(s->model->dev); }
static void draw_place(Session *s) {
    size_t V = (size_t)s->model->cfg.vocab;
    int rows = imin(s->opts.nseq, s->opts.chunk);
    s->seen = arena_take(&s->draw, (size_t)s->opts.nseq * V, "tokens seen");
    s->drawing = arena_take(&s->draw, device_sample_bytes(rows, (int)V), "weights of tokens");
}
bool session_draw_open(Session *s, Err *e) {
    Device *d = s->model->dev;
    CHECK(session_draws(s), "no device draws");
    if (s->draw.base) return true;
    s->draw.name = "tokens to draw from";
    draw_place(s);
    if (!arena_open_at(&s->draw, device_memory(d, false), s->draw.name, s->draw.peak, false, e)) return false;
    draw_place(s);
    s->draws = xcalloc((size_t)s->opts.nseq, sizeof *s->draws);
    s->drawn = xcalloc((size_t)s->opts.nseq, sizeof *s->drawn);
    device_zero(d, s->seen, (size_t)s->opts.nseq * (size_t)s->model->cfg.vocab);
    return true;
}
void session_seen(Session *s, int seq, const unsigned char *seen) {
    size_t V = (size_t)s->model->cfg.vocab;
    device_write(s->model->dev, s->seen + (size_t)seq * V, seen, V);
}
bool session_draw(Session *s, int B, const Feed *f, SampleRow *rows, Sampled *out, Err *e) {
    const Draws d = {s, rows, out};
    CHECK(s->draw.base, "not opened for drawing");
    for (int b = 0; b < B; b++) rows[b].slot = f[b].seq;
    return extend(s, B, f, WANT_LAST, ABSENT, &d, e);
}
