/* test_cuda_decode.c: a batch that gets smaller one by one on a device, which fills its steps up to few sizes: what the
 * living sequences see, how many passes are recorded, and that those who fill up leave nothing behind. */
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"
#include "infer/sampler.h"
#include "infer/session.h"
#include "ops/graph.h"

enum { SEQS = 11, SHORTEST = 3, ROOM = SHORTEST + SEQS + 6, VOCAB = 11, CHECKED = 2 };
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
} Side;
static void side_open(Side *d, const Animal *a, bool plain) {
    Err e = {0};
    *d = (Side){0};
    cr_assert(model_cfg_from_json(&d->cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(d->cfg.vocab == VOCAB && device_open(&d->dev, "cuda", 1, &e), "%s", e.msg);
    cr_assert(model_open(&d->m, d->dev, &d->cfg, (ModelOpts){.poison = true}, &e), "%s: %s", a->name, e.msg);
    model_init(&d->m, 7);
    SessionOpts o = {.nseq = SEQS, .max_tokens = ROOM, .chunk = 64, .page_rows = 4, .document = -1, .plain = plain};
    cr_assert(session_open(&d->s, &d->m, o, &e) && session_draws(&d->s) && session_draw_open(&d->s, &e), "%s", e.msg);
    session_close(&d->s); /* twice: nothing of the first is left */
    cr_assert(session_open(&d->s, &d->m, o, &e) && session_draw_open(&d->s, &e), "%s", e.msg);
}
static void side_close(Side *d) {
    session_close(&d->s);
    zoo_close(&d->cfg, &d->m, NULL, d->dev);
}
typedef struct {
    int token[SEQS][ROOM];            /* drawn */
    real last[CHECKED * SEQS][VOCAB]; /* logits of a row behind the last token of each, and of another text then */
    long begun, replayed;
    bool invariant; /* on a device whose sums of a row have one order */
} Said;
/* Sequence s draws SHORTEST + s tokens with a penalty; `told`: they are fed as they were drawn elsewhere, without a
 * draw, so that no step is filled up. */
static void texts(Said *out, const Animal *a, bool plain, const Said *told) {
    static const int prompt[] = {3, 1, 4, 1, 5};
    Side d;
    Err e = {0};
    side_open(&d, a, plain);
    Sampler how = sampler_default();
    how.repetition_penalty = 1.3;
    memset(out, 0, sizeof *out);
    out->invariant = rig_invariant(d.dev);
    for (int done = 0, alive = SEQS; alive; done++) {
        Feed f[SEQS];
        SampleRow rows[SEQS];
        Sampled got[SEQS];
        int seq[SEQS], n = 0;
        for (int s = 0; s < SEQS; s++) {
            if (done >= SHORTEST + s) continue;
            f[n] = done ? (Feed){s, 1, &out->token[s][done - 1]} : (Feed){s, 1 + s % 5, prompt};
            rows[n] = sampler_row(&how, (uint64_t)s, (uint64_t)done);
            seq[n++] = s;
            unsigned char seen[VOCAB] = {0};
            for (int i = 0; i < f[n - 1].n; i++) seen[prompt[i]] = 1;
            if (!done) session_seen(&d.s, s, seen);
        }
        if (told)
            cr_assert(session_extend(&d.s, n, f, WANT_LAST, ABSENT, &e), "%s", e.msg);
        else
            cr_assert(session_draw(&d.s, n, f, rows, got, &e), "%s", e.msg);
        for (int i = 0; i < n; i++) {
            int s = seq[i], *t = &out->token[s][done];
            cr_assert(sampler_drawn(told ? &(Sampled){.token = told->token[s][done]} : &got[i], VOCAB, t, &e), "%s",
                      e.msg);
            if (done + 1 < SHORTEST + s) continue;
            const Feed end = {s, 1, t}, other = {s, 3, prompt};
            cr_assert(session_extend(&d.s, 1, &end, WANT_LAST, TENSOR(out->last[CHECKED * s], REAL, 1, VOCAB), &e));
            session_reset(&d.s, s);
            cr_assert(
                session_extend(&d.s, 1, &other, WANT_LAST, TENSOR(out->last[CHECKED * s + 1], REAL, 1, VOCAB), &e));
            session_reset(&d.s, s);
            alive--;
        }
    }
    out->begun = graphs_begun(d.s.cache.graphs), out->replayed = graphs_replayed(d.s.cache.graphs);
    for (int s = 0; s < SEQS; s++) cr_assert(session_length(&d.s, s) == 0);
    for (int l = 0; l < d.m.L; l++)
        if (d.m.layer[l].owner) cr_assert_eq(kv_pages(kv_slot(&d.s.cache, l)), 0, "%s: pages are left", a->name);
    side_close(&d);
}
/* Steps of 11 to 1 sequences are of 11, 8, 4, 2 and 1; and one recording is of the rows behind each text. */
Test(cuda_decode, a_batch_that_gets_smaller, .timeout = 300) {
    static const char *const names[] = {"gqa",         "dmc", "gdn, levels", "kda and nope attention",
                                        "kda, levels", "mla", "mla, evicts", "window with sinks"};
    enum { SIZES = 5 };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        static Said plain, graph, alone;
        const Animal *a = &zoo[zoo_find(names[i])];
        texts(&plain, a, true, NULL), texts(&graph, a, false, NULL), texts(&alone, a, true, &graph);
        CHECK_BYTES(a->name, graph.token, plain.token, sizeof plain.token);
        CHECK_BYTES(a->name, graph.last, plain.last, sizeof plain.last);
        /* Of other numbers of rows. */
        if (alone.invariant)
            CHECK_BYTES(a->name, graph.last, alone.last, sizeof alone.last);
        else
            CHECK_RMS(a->name, &graph.last[0][0], &alone.last[0][0], CHECKED * SEQS * VOCAB, 1e-5);
        for (int s = 0; s < SEQS; s++)
            CHECK_BYTES("a text of its own", graph.last[2 * s + 1], graph.last[1], sizeof graph.last[1]);
        cr_assert(plain.begun == 0 && graph.begun == SIZES + 1, "%s: %ld recordings", a->name, graph.begun);
        /* of each the first two are not replays: four steps are of 11, four of 8, two of 4, one of 2 and of 1 */
        cr_assert(graph.replayed == 2 + 2 + SEQS - 2, "%s: %ld replays", a->name, graph.replayed);
    }
}
/* What is never recorded is not filled up: experts draw what they draw without. */
Test(cuda_decode, experts_are_not_filled_up, .timeout = 300) {
    static Said graph, plain;
    const Animal *a = &zoo[zoo_find("mixture, softmax")];
    texts(&graph, a, false, NULL), texts(&plain, a, true, &graph);
    CHECK_BYTES(a->name, graph.last, plain.last, sizeof plain.last);
    cr_assert(graph.begun == 0, "%ld recordings", graph.begun);
}
