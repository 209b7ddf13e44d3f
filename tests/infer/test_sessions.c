/* test_sessions.c: several sessions over one model, which none of them changes: side by side in threads, and in turns
 * while one of them holds back what it has computed. Each must get the bits that it gets alone. */
#include "infer/session.h"
#include "tests/lib/speaker.h"
#include <pthread.h>

enum { PROMPT = 13, STEPS = 12, TALKS = 2, PLACES = 257 };

/* A prompt, and greedy decoding after it: tokens, and the logits that each was taken from. */
typedef struct {
    const Model *m;
    pthread_barrier_t *together; /* before every pass; NULL: alone */
    int tok[PROMPT + STEPS];
    real logits[STEPS][PLACES];
    bool ok;
    Err e;
} Talk;

static int best_of(const real *l, int V) {
    int top = 0;
    for (int v = 1; v < V; v++)
        if (l[v] > l[top]) top = v;
    return top;
}
/* A thread of its own, so nothing in it may assert. */
static void *talk(void *ctx) {
    Talk *t = ctx;
    const int V = t->m->cfg.vocab;
    Device *dev = NULL;
    Session s;
    t->ok = device_open(&dev, "cpu", 1, &t->e);
    const SessionOpts o = {
        .nseq = 2, .max_tokens = PROMPT + STEPS, .chunk = 5, .page_rows = 4, .document = -1, .dev = dev};
    t->ok = t->ok && session_open(&s, t->m, o, &t->e);
    const bool open = t->ok;
    for (int k = 0; k < STEPS; k++) {
        const Feed f = {1, k ? 1 : PROMPT, k ? t->tok + PROMPT + k - 1 : t->tok};
        if (t->together) pthread_barrier_wait(t->together);
        t->ok = t->ok && session_extend(&s, 1, &f, WANT_LAST, TENSOR(t->logits[k], REAL, 1, V), &t->e);
        t->tok[PROMPT + k] = t->ok ? best_of(t->logits[k], V) : 0;
    }
    if (open) session_close(&s);
    device_close(dev);
    return NULL;
}
static void talks_same(const char *what, const Talk *a, const Talk *b, int V) {
    cr_assert(a->ok && b->ok, "%s: %s%s", what, a->e.msg, b->e.msg);
    for (int k = 0; k < STEPS; k++) {
        cr_assert_eq(a->tok[PROMPT + k], b->tok[PROMPT + k], "%s: token %d", what, k);
        cr_assert(!memcmp(a->logits[k], b->logits[k], (size_t)V * sizeof(real)), "%s: logits of token %d", what, k);
    }
}
static void side_by_side(const Animal *a, int times) {
    Speaker r;
    Talk *alone = xcalloc(TALKS, sizeof *alone), *with = xcalloc(TALKS, sizeof *with);
    pthread_barrier_t together;
    speaker_open(&r, a, 0);
    cr_assert(r.V <= PLACES && !pthread_barrier_init(&together, NULL, TALKS));
    for (int k = 0; k < TALKS; k++) {
        alone[k].m = &r.m;
        speaker_tokens(&r, alone[k].tok, PROMPT, 31 + (uint64_t)k);
        talk(&alone[k]);
    }
    cr_assert(memcmp(alone[0].logits, alone[1].logits, sizeof alone[0].logits), "%s: both prompts say the same",
              a->name);
    for (int n = 0; n < times; n++) {
        pthread_t thread[TALKS];
        for (int k = 0; k < TALKS; k++) {
            with[k] = (Talk){.m = &r.m, .together = &together};
            memcpy(with[k].tok, alone[k].tok, PROMPT * sizeof(int));
            cr_assert(!pthread_create(&thread[k], NULL, talk, &with[k]));
        }
        for (int k = 0; k < TALKS; k++) pthread_join(thread[k], NULL);
        for (int k = 0; k < TALKS; k++) talks_same(a->name, &alone[k], &with[k], r.V);
    }
    pthread_barrier_destroy(&together);
    speaker_close(&r);
    free(alone);
    free(with);
}
Test(sessions, side_by_side_as_alone, .timeout = 120) {
    for (int i = 0; i < zoo_count(); i++) side_by_side(&zoo[i], 2);
    side_by_side(&speaker_bytes, 10);
}

/* ---- in turns -------------------------------------------------------------------------------------------------------
 */

typedef struct {
    Cache cache;
    Workspace work;
} Place;
static void place_open(Place *p, const Model *m) {
    Err e = {0};
    workspace_empty(&p->work, m, m->dev);
    cr_assert(model_cache_open(m, &p->cache, ZOO_SEQS, ZOO_ROWS, ZOO_ROWS, 4, false, &e) &&
                  model_extend_reserve(m, &p->work, &p->cache, ZOO_ROWS, ZOO_ROWS, ZOO_SEQS, &e),
              "%s", e.msg);
}
static void place_close(Place *p) {
    kv_close(&p->cache);
    workspace_close(&p->work);
}
static const int every[ZOO_ROWS] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                    12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};
static void place_extend(Place *p, const Model *m, const Pass *x, real *logits) {
    Err e = {0};
    cr_assert(model_extend(m, &p->work, &p->cache, &x->b, x->tok, (RowList){x->b.N, every},
                           TENSOR(logits, REAL, x->b.N, m->cfg.vocab), &e),
              "%s", e.msg);
}
/* Between model_verify and model_commit a workspace holds rows and inputs; another one may be used meanwhile. */
static void in_turns(const Animal *a) {
    enum { LOGITS = ZOO_ROWS * PLACES };
    const int none[ZOO_SEQS] = {0}, some[ZOO_SEQS] = {4, 5, 3}, rest[ZOO_SEQS] = {3, 3, 3};
    ModelCfg cfg;
    Model m;
    Device *dev;
    Pass whole, first, second;
    real *want = xcalloc(3 * LOGITS, sizeof *want), *got = want + LOGITS, *other = got + LOGITS;
    zoo_open(a, &cfg, &m, NULL, &dev, (ModelOpts){0});
    zoo_whole(&whole, cfg.vocab);
    zoo_part(&first, &whole, none, some, NULL);
    zoo_part(&second, &whole, some, rest, NULL);
    const size_t rows = (size_t)(second.b.N * cfg.vocab);
    for (int company = 0; company < 2; company++) {
        Place here, there;
        Err e = {0};
        place_open(&here, &m), place_open(&there, &m);
        cr_assert(model_verify(&m, &here.work, &here.cache, &first.b, first.tok, (RowList){first.b.N, every},
                               TENSOR(got, REAL, first.b.N, cfg.vocab), &e),
                  "%s", e.msg);
        if (company) place_extend(&there, &m, &whole, other);
        model_commit(&m, &here.work, &here.cache, &first.b, some);
        place_extend(&here, &m, &second, got);
        if (company)
            cr_assert(!memcmp(got, want, rows * sizeof *got), "%s", a->name);
        else
            memcpy(want, got, rows * sizeof *got);
        place_close(&here), place_close(&there);
    }
    free(want);
    zoo_close(&cfg, &m, NULL, dev);
}
Test(sessions, one_extends_while_another_holds, .timeout = 60) {
    for (int i = 0; i < zoo_count(); i++) in_turns(&zoo[i]);
}
