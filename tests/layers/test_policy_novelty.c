/* test_policy_novelty.c: how novel each token was to the rows before it (infinipot), compared with the logits that the
 * same passes gave; where the novel rows have no share, the choice is snapkv's. */
#include "infer/session.h"
#include "layers/cache/slot.h"
#include "tests/lib/rig.h"
#include "tests/lib/speaker.h"

enum { T = 40, PROMPT = 22, DOCUMENT = 3 };
static const double BOUND = REAL == F64 ? 1e-9 : 1e-5;
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
    PolicyCfg p;
    int V, start; /* the index of the document's first token */
    int tok[2][T];
    real *logits[2]; /* (T,V) of each sequence */
} ModelCase;

static bool open_case(ModelCase *c, const Animal *a, const char *spec, int chunk) {
    Err e = {0};
    *c = (ModelCase){.start = 0};
    cr_assert(policy_parse(spec, &c->p, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&c->cfg, a->json, strlen(a->json), a->name, &e), "%s", e.msg);
    cr_assert(device_open(&c->dev, "cpu", 1, &e), "%s", e.msg);
    if (!model_open(&c->m, c->dev, &c->cfg, (ModelOpts){.policy = &c->p, .poison = true}, &e)) {
        cr_assert(e.status == EXIT_INPUT, "%s", e.msg);
        device_close(c->dev);
        model_cfg_free(&c->cfg);
        return false;
    }
    model_init(&c->m, 7);
    c->V = c->cfg.vocab;
    for (int q = 0; q < 2; q++) {
        c->logits[q] = xcalloc((size_t)(T * c->V), sizeof(real));
        for (int i = 0; i < T; i++) {
            const int t = (int)(rng_uniform(rng_mix(11, (uint64_t)q), (uint64_t)i) * c->V);
            c->tok[q][i] = t == DOCUMENT ? DOCUMENT + 1 : t;
        }
    }
    const SessionOpts o = {
        .nseq = 2, .max_tokens = T, .chunk = chunk, .page_rows = 5, .document = DOCUMENT, .want_all = true};
    cr_assert(session_open(&c->s, &c->m, o, &e), "%s", e.msg);
    return true;
}
static void close_case(ModelCase *c) {
    free(c->logits[0]), free(c->logits[1]);
    session_close(&c->s);
    zoo_close(&c->cfg, &c->m, NULL, c->dev);
}
/* Tokens at..at+n-1 of the sequences that `which` names by bits, in one call. */
static void feed(ModelCase *c, int which, int at, int n) {
    const size_t V = (size_t)c->V;
    Feed f[2];
    int B = 0;
    Err e = {0};
    for (int q = 0; q < 2; q++)
        if (which >> q & 1) f[B++] = (Feed){q, n, c->tok[q] + at};
    real *out = xcalloc((size_t)(B * n) * V, sizeof *out);
    cr_assert(session_extend(&c->s, B, f, WANT_ALL, TENSOR(out, REAL, B * n, c->V), &e), "%s", e.msg);
    for (int b = 0; b < B; b++)
        memcpy(c->logits[f[b].seq] + (size_t)at * V, out + (size_t)(b * n) * V, (size_t)n * V * sizeof *out);
    free(out);
}
/* What the slots keep of sequence `seq`, of rows that are there. Returns how many rows were compared. */
static int compare(const ModelCase *c, int seq, const char *name, double *worst, int *other) {
    int n = 0;
    for (int l = 0; l < c->m.L; l++) {
        const Slot *s = kv_slot(&c->s.cache, l);
        const Lanes *t = &s->t;
        for (int lane = seq * t->s.lanes; s->chosen && lane < (seq + 1) * t->s.lanes; lane++)
            for (int r = t->lo[lane]; r < t->hi[lane]; r++, n++) {
                const size_t at = slot_place_of(s, lane, r);
                const int i = c->start + t->pos[at], to = c->tok[seq][i];
                const real *before = c->logits[seq] + (size_t)(i - 1) * (size_t)c->V;
                const double got = (double)R(s->score)[at], want = t->pos[at] ? -log_softmax(before, c->V, to) : 0,
                             off = fabs(got - want) / (1 + fabs(want));
                cr_assert(off <= BOUND, "%s: sequence %d, layer %d, token %d: %.9g, %.9g by its logits", name, seq, l,
                          i, got, want);
                *worst = fmax(*worst, off);
                if (t->pos[at]) *other += fabs(got + log_softmax(before + c->V, c->V, to)) > 1e-3; /* the next row's */
            }
    }
    return n;
}
/* Three tokens at a time, of which two are accepted. */
static void verified(ModelCase *c, int at) {
    enum { N = 3 };
    const int of[N] = {0}, pos[N] = {at, at + 1, at + 2}, first[N] = {-1, -1, -1}, off[] = {0, N}, seq = 0,
              all[N] = {0, 1, 2}, accept = 2;
    const uint64_t id = 0;
    const Batch b = {1, N, off, &seq, of, pos, first, &id, true, NULL};
    Err e = {0};
    int guess[N] = {c->tok[0][at], c->tok[0][at + 1], (c->tok[0][at + 2] + 1) % c->V};
    real *out = xcalloc((size_t)(N * c->V), sizeof *out);
    cr_assert(model_verify(&c->m, &c->s.own, &c->s.cache, &b, guess, (RowList){N, all}, TENSOR(out, REAL, N, c->V), &e),
              "%s", e.msg);
    model_commit(&c->m, &c->s.own, &c->s.cache, &b, &accept);
    memcpy(c->logits[0] + (size_t)(at * c->V), out, (size_t)(accept * c->V) * sizeof *out);
    c->s.next[0] = at + accept;
    free(out);
}
/* One way of feeding; returns which sequences were fed. */
static int feed_way(ModelCase *c, int way) {
    static const int piece[] = {T, 1, 6};
    if (way < 3) { /* both sequences together */
        for (int at = 0; at < T; at += imin(piece[way], T - at)) feed(c, 3, at, imin(piece[way], T - at));
        return 3;
    }
    if (way == 3) { /* a fork, each of which continues in its own way */
        memcpy(c->tok[1], c->tok[0], 13 * sizeof(int));
        feed(c, 1, 0, 13);
        session_fork(&c->s, 0, 1);
        memcpy(c->logits[1], c->logits[0], (size_t)(13 * c->V) * sizeof(real));
        feed(c, 2, 13, T - 13);
        feed(c, 1, 13, 1), feed(c, 1, 14, T - 14);
        return 3;
    }
    if (way == 4) { /* guesses */
        feed(c, 1, 0, PROMPT);
        for (int at = PROMPT; at + 3 <= T; at += 2) verified(c, at);
        return 1;
    }
    c->tok[0][c->start = 9] = DOCUMENT; /* a document begins inside a pass */
    for (int at = 0; at < T; at += imin(7, T - at)) feed(c, 1, at, imin(7, T - at));
    return 1;
}
Test(policy_novelty, tokens_are_as_novel_as_the_logits_say, .timeout = 200) {
    static const char *const specs[] = {"infinipot:budget=1000,every=8",
                                        "infinipot:budget=0.5,window=2,sinks=1,every=2,share=0.5"};
    double worst = 0;
    int compared = 0, tried = 0, other = 0;
    for (int i = 0; i < zoo_count(); i += 2)
        for (int way = 0; way < 6; way++) {
            ModelCase c;
            if (strstr(zoo[i].json, "\"max_positions\":24") || !open_case(&c, &zoo[i], specs[(i / 2 + way) % 2], 16))
                continue;
            const int fed = feed_way(&c, way);
            for (int q = 0; q < 2; q++)
                if (fed >> q & 1) compared += compare(&c, q, zoo[i].name, &worst, &other);
            tried++;
            close_case(&c);
        }
    check_log("novelty of tokens", worst, BOUND, 0, (size_t)compared);
    cr_assert(tried > 40 && compared > 5000 && other > compared / 2, "%d cases, %d rows, %d unlike the next row's",
              tried, compared, other);
}
/* Without a share for novel tokens, what is left is snapkv without neighbours, each time. */
Test(policy_novelty, without_a_share_it_is_snapkv, .timeout = 100) {
    static const char *const names[] = {"gqa", "mla", "nope", "shared by pairs (CLA)", "owner after readers"};
    int evicted = 0, differ = 0;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        ModelCase a, b, half;
        const Animal *x = &zoo[zoo_find(names[k])];
        cr_assert(open_case(&a, x, "infinipot:budget=9,window=3,sinks=1,every=5,share=0", 16));
        cr_assert(open_case(&b, x, "snapkv:budget=9,window=3,sinks=1,every=5,pool=1", 16));
        cr_assert(open_case(&half, x, "infinipot:budget=9,window=3,sinks=1,every=5,share=1", 16));
        feed(&a, 1, 0, PROMPT), feed(&b, 1, 0, PROMPT), feed(&half, 1, 0, PROMPT);
        for (int at = PROMPT; at < T; at++) feed(&a, 1, at, 1), feed(&b, 1, at, 1), feed(&half, 1, at, 1);
        const size_t n = (size_t)(T * a.V) * sizeof(real);
        CHECK_BYTES(names[k], a.logits[0], b.logits[0], n);
        differ += memcmp(a.logits[0], half.logits[0], n) != 0;
        for (int l = 0; l < a.m.L; l++) {
            const Lanes *t = kv_lanes(kv_slot(&a.s.cache, l)), *u = kv_lanes(kv_slot(&b.s.cache, l));
            for (int h = 0; h < t->s.lanes; h++) {
                cr_assert_eq(t->hi[h], u->hi[h]);
                evicted += T - t->hi[h] + t->lo[h];
            }
        }
        close_case(&a), close_case(&b), close_case(&half);
    }
    cr_assert(evicted > 200 && differ == sizeof names / sizeof *names, "%d rows evicted, %d models", evicted, differ);
}
