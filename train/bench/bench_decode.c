/* bench_decode.c: prompts and decoding of one model: see bench_decode.h. */
#include "bench_decode.h"
#include "bench.h"
#include "ops/graph.h"
#include "ops/host.h"

/* Touches the pages of a new arena: otherwise the system would clear them during the measured steps, two megabytes for
 * a row of a few hundred bytes, for a cache far larger than these steps fill. */
static void bench_decode_touch(const Arena *a) {
    volatile char *p = a->base;
    for (size_t i = 0; !a->home && i < a->size; i += 4096) p[i] = p[i];
}

bool decode_open(Decode *d, Model *m, DecodeOpts o, Err *e) {
    const int B = o.B, V = m->cfg.vocab;
    CHECK(B >= 1 && o.prompt >= 1 && o.room >= 0, "batch %d, prompt %d, room %d", B, o.prompt, o.room);
    *d = (Decode){.o = o};
    SessionOpts s = {.nseq = B, .max_tokens = o.prompt + o.room, .chunk = o.chunk, .document = -1};
    if (!session_open(&d->s, m, s, e)) return false;
    bench_decode_touch(&d->s.cache.mem);
    size_t n = (size_t)B * (size_t)(o.prompt + o.room);
    d->tok = xcalloc(n, sizeof *d->tok);
    for (size_t i = 0; i < n; i++) d->tok[i] = (int)(rng_uniform(3, i) * V);
    d->feed = xcalloc((size_t)B, sizeof *d->feed);
    d->rows = xcalloc((size_t)B, sizeof *d->rows);
    d->drawn = xcalloc((size_t)B, sizeof *d->drawn);
    if (o.draw != DRAW_HOST && session_draws(&d->s)) {
        d->draws = true;
        if (session_draw_open(&d->s, e)) return true;
        decode_close(d);
        return false;
    }
    d->logits = TENSOR(xcalloc((size_t)B * (size_t)V, sizeof(real)), REAL, B, V);
    return true;
}

void decode_close(Decode *d) {
    decode_plain(d, false);
    session_close(&d->s);
    free(d->tok);
    free(d->feed);
    free(d->rows);
    free(d->drawn);
    free(d->logits.p);
    *d = (Decode){0};
}

static bool bench_decode_feed(Decode *d, int from, int n, Err *e) {
    for (int b = 0; b < d->o.B; b++)
        d->feed[b] = (Feed){b, n, d->tok + (size_t)b * (size_t)(d->o.prompt + d->o.room) + from};
    return session_extend(&d->s, d->o.B, d->feed, WANT_LAST, d->logits, e);
}
/* The same with a token drawn for each sequence, as `generate` does it: the tokens come to the host, no logits. */
static bool feed_and_draw(Decode *d, int from, int n, Err *e) {
    const bool top = d->o.draw == DRAW_TOP_K;
    for (int b = 0; b < d->o.B; b++) {
        d->feed[b] = (Feed){b, n, d->tok + (size_t)b * (size_t)(d->o.prompt + d->o.room) + from};
        d->rows[b] = (SampleRow){.key = 7,
                                 .draw = (uint64_t)from * (uint64_t)d->o.B + (uint64_t)b,
                                 .temperature = top ? 0.8 : 0,
                                 .penalty = 1,
                                 .top_p = top ? 0.95 : 1,
                                 .top_k = top ? 50 : 0};
    }
    return session_draw(&d->s, d->o.B, d->feed, d->rows, d->drawn, e);
}

bool decode_prefill(Decode *d, double *seconds, Err *e) {
    for (int b = 0; b < d->o.B; b++) session_reset(&d->s, b);
    double start = now_seconds();
    bool ok = (d->draws ? feed_and_draw : bench_decode_feed)(d, 0, d->o.prompt, e);
    for (int b = 0; ok && b < d->o.B; b++) ok = session_prompt_ends(&d->s, b, e);
    *seconds = now_seconds() - start;
    return ok;
}

bool decode_step(Decode *d, Err *e) {
    return (d->draws ? feed_and_draw : bench_decode_feed)(d, session_length(&d->s, 0), 1, e);
}
long decode_replayed(const Decode *d) { return graphs_replayed(d->s.cache.graphs); }

/* ---- a history without its computation ---------------------------------------------------------------------------*/

/* Drawn keys and values, in the shape of the rows that a slot stores. */
static Kv drawn_rows(Arena *a, const KvShape *s, int N) {
    Kv kv = {.s = *s};
    kv.k = arena_tensor(a, "keys", REAL, 3, (int[]){N, s->lanes, s->kdim});
    if (!s->alias) kv.v = arena_tensor(a, "values", REAL, 3, (int[]){N, s->lanes, s->vdim});
    if (s->carry_rows) kv.carry = arena_tensor(a, "carried", REAL, 3, (int[]){N, s->lanes, s->carry});
    return kv;
}
typedef struct {
    Arena rows, scratch, host;
    Run run;
    Kv *kv; /* of each slot */
    int *off, *seq, *of, *pos, *first;
    uint64_t id;
    Batch batch;
} Fill;
static void bench_decode_rows_place(Fill *f, const Cache *c, int N) {
    for (int i = 0; i < c->nslots; i++)
        if (kv_lanes(kv_slot(c, i))->s.lanes) f->kv[i] = drawn_rows(&f->rows, &kv_lanes(kv_slot(c, i))->s, N);
}
/* As many of them as the pass has rows: the last pass of a prompt may have fewer. */
static void bench_decode_append(Fill *f, const Cache *c) {
    for (int i = 0; i < c->nslots; i++) {
        Kv kv = f->kv[i];
        Tensor *const all[] = {&kv.k, &kv.v, &kv.carry};
        for (int k = 0; k < 3; k++)
            if (present(*all[k])) all[k]->n[0] = f->batch.N;
        if (kv_lanes(kv_slot(c, i))->s.lanes) kv_append(&f->run, kv_slot(c, i), &kv, NULL);
    }
}
static bool fill_open(Fill *f, Device *dev, Cache *c, int N, Err *e) {
    const Memory *home = device_memory(dev, false);
    f->rows.name = "drawn rows", f->scratch.name = "scratch of drawn rows", f->host.name = "places of drawn rows";
    f->run = run_make(dev, &f->scratch);
    f->run.host = &f->host;
    f->run.batch = &f->batch;
    bench_decode_rows_place(f, c, N);
    bench_decode_append(f, c); /* measures */
    if (!arena_open_at(&f->rows, home, f->rows.name, f->rows.peak, false, e) ||
        !arena_open_at(&f->scratch, home, f->scratch.name, f->scratch.peak, false, e) ||
        !arena_open(&f->host, f->host.name, f->host.peak, false, e))
        return false;
    bench_decode_rows_place(f, c, N);
    for (int i = 0; i < c->nslots; i++) {
        Tensor *const all[] = {&f->kv[i].k, &f->kv[i].v, &f->kv[i].carry};
        for (int k = 0; k < 3; k++)
            if (present(*all[k])) bench_fill(dev, *all[k], (uint64_t)(16 * i + k), -1, 1);
        Tensor state = kv_state(kv_slot(c, i));
        if (present(state)) bench_fill(dev, state, (uint64_t)(16 * i + 3), -0.1, 0.1);
    }
    return true;
}
/* `n` rows of sequence b from position `from` on. */
static bool fill_some(Fill *f, Cache *c, int b, int from, int n, Err *e) {
    f->off[1] = n, f->seq[0] = b;
    for (int i = 0; i < n; i++) f->pos[i] = from + i, f->first[i] = from ? -1 : 0;
    f->batch.N = n, f->batch.history = from > 0;
    if (!kv_begin(c, &f->batch, e)) return false;
    bench_decode_append(f, c);
    kv_end(c, &f->batch, NULL);
    kv_policy(&f->run, c, &f->batch, NULL);
    return true;
}
bool decode_fill(Decode *d, Err *e) {
    Cache *c = &d->s.cache;
    const int N = imin(c->block ? c->block : d->s.opts.chunk, d->o.prompt); /* a pass ends with a block */
    for (int i = 0; i < c->nslots; i++)
        if (kv_lanes(kv_slot(c, i))->s.evicts)
            return err_input(e, "--fill: a layer of this model decides which rows to keep; leave --fill out");
    if (policy_queries(&c->policy))
        return err_input(e, "--fill: --policy %s asks queries, and drawn rows have none; leave one of the two out",
                         c->policy.of->name);
    for (int i = 0; i < c->nslots; i++)
        if (salient_queries(&kv_lanes(kv_slot(c, i))->s))
            return err_input(e, "--fill: --cache-dtype %s asks queries, and drawn rows have none; leave --fill out",
                             kv_lanes(kv_slot(c, i))->s.codec->name);
    for (int i = 0; i < c->nslots; i++)
        if (kv_lanes(kv_slot(c, i))->s.basis)
            return err_input(e,
                             "--fill: --cache-dtype %s stores what calibrated matrices make of rows, which drawn rows "
                             "are not; leave --fill out",
                             kv_lanes(kv_slot(c, i))->s.codec->name);
    int *ints = xcalloc(3 * (size_t)N + 3, sizeof *ints);
    Fill f = {.kv = xcalloc((size_t)c->nslots, sizeof *f.kv), .off = ints, .seq = ints + 2};
    f.of = ints + 3, f.pos = f.of + N, f.first = f.pos + N;
    f.off[1] = N;
    f.batch = (Batch){1, N, f.off, f.seq, f.of, f.pos, f.first, &f.id, true, NULL};
    bool ok = fill_open(&f, d->s.model->dev, c, N, e);
    for (int b = 0; ok && b < d->o.B; b++) {
        session_reset(&d->s, b);
        for (int at = 0; ok && at < d->o.prompt; at += N) ok = fill_some(&f, c, b, at, imin(N, d->o.prompt - at), e);
        if (ok) kv_prompt_ends(&f.run, c, b, d->o.prompt);
        if (ok) d->s.next[b] = d->o.prompt;
    }
    ok = ok && kv_sound(c, e);
    device_sync(d->s.model->dev);
    arena_close(&f.rows), arena_close(&f.scratch), arena_close(&f.host);
    free(ints), free(f.kv);
    return ok;
}

int profile_mean(Profile *profile, int steps, Share *out) {
    int n = profile_read(profile, out);
    profile_end(profile);
    for (int i = 0; i < n; i++) out[i].calls /= steps, out[i].seconds /= steps, out[i].flops /= steps;
    return n;
}
void decode_plain(Decode *d, bool on) {
    if (on == d->plain) return;
    struct Graphs *now = d->s.cache.graphs;
    d->s.cache.graphs = d->aside, d->aside = now, d->plain = on;
}
bool decode_profile(Decode *d, double seconds, Share *out, int *n, Err *e) {
    double unread;
    if (!d->o.room && !decode_prefill(d, &unread, e)) return false;
    const bool plain = d->plain;
    decode_plain(d, true); /* what is captured cannot be timed op by op */
    Profile *profile = profile_begin(d->s.model->dev);
    bool ok = true;
    int times = 0;
    for (double start = now_seconds(); ok && (!times || now_seconds() - start < seconds); times++) {
        if (d->o.room && session_length(&d->s, 0) == d->o.prompt + d->o.room) break;
        ok = d->o.room ? decode_step(d, e) : decode_prefill(d, &unread, e);
    }
    *n = profile_mean(profile, times, out);
    decode_plain(d, plain);
    return ok;
}
