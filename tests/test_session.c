/* Sessions, generation and the cost model, on small random models of every kind of layer map. Forward passes of
 * training are the reference: they share no code with the cache. */
#include "../infer/generate.h"
#include "../model/cost.h"
#include "zoo.h"

static const double TOL = sizeof(real) == 8 ? 1e-10 : 1e-4;
/* Text needs all bytes; the animals of the zoo have fewer ids. */
static const Animal speaker = {
    "speaker", "{\"d_model\":32,\"vocab\":257,\"max_positions\":160,\"init_std\":0.3,\"layers\":2,\"tied\":false,\"ffn\":[{\"kind\":\"swiglu\","
               "\"hidden\":40}],\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":8}},\"pattern\":[\"a\"]}"};

typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Tokenizer tk;
    int V, document;
} Rig;

static void rig_open(Rig *r, const Animal *a, int rows) {
    r->tk = tokenizer_byte();
    zoo_open(a, &r->cfg, &r->m, &r->dev, (ModelOpts){.max_rows = rows, .max_samples = rows});
    r->V = r->cfg.vocab;
    r->document = r->V - 1;
}
static void rig_close(Rig *r) { zoo_close(&r->cfg, &r->m, r->dev); }
static void open_session(Session *s, Rig *r, SessionOpts o) {
    Err e = {0};
    cr_assert(session_open(s, &r->m, o, &e), "%s", e.msg);
}

/* Tokens of a text with documents in it, by seed. */
static void random_tokens(int *tok, int n, uint64_t seed) {
    for (int i = 0; i < n; i++)
        tok[i] = rng_uniform(seed, (uint64_t)i) < 0.06 ? 256 : (int)(rng_uniform(seed, 1000 + (uint64_t)i) * 256);
}

/* -log p(tgt[i] | tok[..i]) of B texts of n tokens each by the training forward; every text begins a document. */
static void reference_nll(Rig *r, int B, int n, const int *tok, const int *tgt, int document, real *nll) {
    int N = B * n, *block = xcalloc(4 * (size_t)N + (size_t)B + 1, sizeof(int));
    int *of = block, *pos = block + N, *first = block + 2 * N, *off = block + 4 * N;
    uint64_t *id = xcalloc((size_t)B, sizeof *id);
    for (int i = 0; i < N; i++) {
        bool start = i % n == 0 || tok[i] == document;
        of[i] = i / n;
        first[i] = start ? i : first[i - 1];
        pos[i] = i - first[i];
    }
    for (int b = 0; b <= B; b++) off[b] = b * n;
    Batch batch = {.B = B, .N = N, .off = off, .seq = of, .of = of, .pos = pos, .first = first, .id = id};
    model_loss(&r->m, &batch, tok, tgt, nll);
    free(block);
    free(id);
}

static double log_softmax(const real *l, int V, int t) {
    double top = -INFINITY, sum = 0;
    for (int v = 0; v < V; v++) top = fmax(top, (double)l[v]);
    for (int v = 0; v < V; v++) sum += exp((double)l[v] - top);
    return (double)l[t] - top - log(sum);
}

Test(session, logits_of_every_row_are_those_of_the_training_forward) {
    enum { T = 60, V = 257 };
    for (int map = 0; map < MAPS; map++) {
        Rig r;
        rig_open(&r, map, T);
        static const int chunks[] = {1, 3, 16, 0};
        for (int c = 0; c < 4; c++) {
            Session s;
            open_session(&s, &r,
                         (SessionOpts){.nseq = 2,
                                       .max_tokens = T,
                                       .chunk = chunks[c],
                                       .page_rows = 4,
                                       .document = 256,
                                       .want_all = true});
            int tok[T], tgt[T];
            real nll[T], *logits = xcalloc((size_t)T * V, sizeof(real));
            random_tokens(tok, T, 7 + (uint64_t)map);
            random_tokens(tgt, T, 70 + (uint64_t)map);
            reference_nll(&r, 1, T, tok, tgt, 256, nll);
            Err e = {0};
            for (int at = 0, n = 1; at < T; at += n, n = imin(2 * n + 1, T - at)) /* pieces of 1, 3, 7, 15, ... */
                cr_assert(session_extend(&s, 1, &(Feed){1, n, tok + at}, WANT_ALL,
                                         TENSOR(logits + (size_t)at * V, REAL, n, V), &e),
                          "%s", e.msg);
            real got[T], want[T];
            for (int i = 0; i < T; i++)
                got[i] = (real)log_softmax(logits + (size_t)i * V, V, tgt[i]), want[i] = -nll[i];
            CHECK_RELATIVE(maps[map], got, want, T, TOL);
            free(logits);
            session_close(&s);
        }
        rig_close(&r);
    }
}

Test(session, chunks_and_company_change_nothing) {
    enum { B = 5, V = 257, LONG = 70 };
    for (int map = 0; map < MAPS; map++) {
        Rig r;
        rig_open(&r, map, 0);
        static const int len[B] = {1, 70, 13, 2, 41}, chunks[] = {1, 2, 7, 64, 256};
        int tok[B][LONG];
        real *alone = xcalloc((size_t)B * V, sizeof(real)), *got = xcalloc((size_t)B * V, sizeof(real));
        Err e = {0};
        Session s;
        for (int b = 0; b < B; b++) {
            random_tokens(tok[b], LONG, 100 + (uint64_t)b);
            open_session(&s, &r, (SessionOpts){.nseq = 1, .max_tokens = LONG, .chunk = LONG, .document = 256});
            cr_assert(session_extend(&s, 1, &(Feed){0, len[b], tok[b]}, WANT_LAST,
                                     TENSOR(alone + (size_t)b * V, REAL, 1, V), &e),
                      "%s", e.msg);
            session_close(&s);
        }
        for (int c = 0; c < 5; c++) {
            open_session(
                &s, &r,
                (SessionOpts){.nseq = B + 2, .max_tokens = LONG, .chunk = chunks[c], .page_rows = 3, .document = 256});
            Feed f[B];
            for (int b = 0; b < B; b++) f[b] = (Feed){(3 * b + 2) % (B + 2), len[b], tok[b]};
            for (int again = 0; again < 2; again++) { /* the second time in places that others used before */
                cr_assert(session_extend(&s, B, f, WANT_LAST, TENSOR(got, REAL, B, V), &e), "%s", e.msg);
                CHECK_RELATIVE(maps[map], got, alone, (size_t)B * V, TOL);
                for (int b = 0; b < B; b++) {
                    session_reset(&s, f[b].seq);
                    cr_assert(session_length(&s, f[b].seq) == 0);
                    f[b].seq = (f[b].seq + 1) % (B + 2);
                }
            }
            session_close(&s);
        }
        free(alone), free(got);
        rig_close(&r);
    }
}

Test(session, refuses_before_anything_changes) {
    enum { V = 257 };
    Rig r;
    rig_open(&r, 0, 0);
    Session s;
    Err e = {0};
    int tok[20] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, bad[2] = {1, 257},
        restart[4] = {9, 256, 9, 9};
    real a[V], b[V];
    open_session(&s, &r, (SessionOpts){.nseq = 2, .max_tokens = 12, .chunk = 4, .document = 256});
    cr_assert(session_extend(&s, 1, &(Feed){0, 10, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    Feed two[] = {{1, 3, tok}, {0, 3, tok}};
    cr_assert(!session_extend(&s, 2, two, WANT_LAST, ABSENT, &e) && e.status == EXIT_INPUT &&
                  strstr(e.msg, "12 tokens"),
              "%s", e.msg);
    cr_assert(session_length(&s, 0) == 10 && session_length(&s, 1) == 0);
    e = (Err){0};
    cr_assert(!session_extend(&s, 1, &(Feed){0, 2, bad}, WANT_LAST, ABSENT, &e) && e.status == EXIT_INPUT &&
                  strstr(e.msg, "257"),
              "%s", e.msg);
    cr_assert(session_extend(&s, 1, &(Feed){0, 2, tok + 10}, WANT_LAST, TENSOR(a, REAL, 1, V), &e), "%s", e.msg);
    session_reset(&s, 1);
    cr_assert(session_extend(&s, 1, &(Feed){1, 12, tok}, WANT_LAST, TENSOR(b, REAL, 1, V), &e), "%s", e.msg);
    CHECK_RELATIVE("after a refusal", a, b, V, TOL);
    /* full, but a new document gives the room back */
    cr_assert(!session_extend(&s, 1, &(Feed){1, 1, tok}, WANT_LAST, ABSENT, &e));
    cr_assert(session_extend(&s, 1, &(Feed){1, 3, restart + 1}, WANT_LAST, TENSOR(a, REAL, 1, V), &e), "%s", e.msg);
    cr_assert(session_length(&s, 1) == 3);
    session_reset(&s, 0);
    cr_assert(session_extend(&s, 1, &(Feed){0, 3, restart + 1}, WANT_LAST, TENSOR(b, REAL, 1, V), &e), "%s", e.msg);
    CHECK_RELATIVE("a document that follows another", a, b, V, TOL);
    session_close(&s);
    rig_close(&r);
}

/* ---- generation ----------------------------------------------------------------------------------------------------
 */
static void run(Rig *r, int nseq, int chunk, int max_tokens, const GenOpts *o, int n, Generation *g) {
    Session s;
    Err e = {0};
    open_session(&s, r, (SessionOpts){.nseq = nseq, .max_tokens = max_tokens, .chunk = chunk, .document = 256});
    cr_assert(generate(&s, &r->tk, o, n, g, &e), "%s", e.msg);
    session_close(&s);
}

Test(session, greedy_is_the_argmax_of_the_training_forward) {
    enum { NEW = 24, PROMPT = 6, V = 257, STEP = 3 };
    for (int map = 0; map < MAPS; map++) {
        Rig r;
        rig_open(&r, map, V * (NEW + PROMPT));
        int tok[PROMPT + NEW] = {256, 'T', 'h', 'e', ' ', 'x'};
        Generation g = {.prompt = tok, .nprompt = PROMPT};
        GenOpts o = {.sampler = sampler_default(), .max_new = NEW};
        o.sampler.temperature = 0;
        run(&r, 1, 4, POSITIONS, &o, 1, &g);
        cr_assert(g.n == NEW && g.finish == FINISH_LENGTH);
        for (int i = 0; i < NEW; i++) tok[PROMPT + i] = g.tok[i];
        for (int i = 0; i < NEW; i += STEP) { /* each candidate v as the target of the last row of its own copy */
            int n = PROMPT + i, *in = xcalloc((size_t)(V * n), sizeof(int)),
                *tgt = xcalloc((size_t)(V * n), sizeof(int));
            real *nll = xcalloc((size_t)(V * n), sizeof(real));
            for (int k = 0; k < V * n; k++) in[k] = tok[k % n], tgt[k] = k % n == n - 1 ? k / n : -1;
            reference_nll(&r, V, n, in, tgt, 256, nll);
            double mine = nll[g.tok[i] * n + n - 1], least = INFINITY;
            for (int v = 0; v < V; v++) least = fmin(least, (double)nll[v * n + n - 1]);
            cr_assert(mine <= least + 1e-4, "map %d token %d: %d has nll %g, the best %g", map, i, g.tok[i], mine,
                      least);
            free(in), free(tgt), free(nll);
        }
        generation_free(&g);
        rig_close(&r);
    }
}

Test(session, results_do_not_depend_on_who_shares_the_batch) {
    enum { N = 7 };
    Rig r;
    rig_open(&r, 2, 0);
    int prompt[N][30];
    Generation a[N], b[N];
    GenOpts o = {.sampler = sampler_default(), .max_new = 30, .neos = 1, .eos = (int[]){256}};
    for (int k = 0; k < N; k++) {
        random_tokens(prompt[k], 30, 500 + (uint64_t)k);
        a[k] = b[k] = (Generation){.prompt = prompt[k], .nprompt = 1 + 4 * k};
    }
    run(&r, 1, 0, POSITIONS, &o, N, a);
    run(&r, 3, 5, POSITIONS, &o, N, b);
    int eos = 0;
    for (int k = 0; k < N; k++) {
        cr_assert(a[k].n == b[k].n && !memcmp(a[k].tok, b[k].tok, (size_t)a[k].n * sizeof(int)), "prompt %d", k);
        cr_assert(a[k].finish == b[k].finish && a[k].cache_bytes == b[k].cache_bytes && a[k].cache_bytes > 0);
        eos += a[k].finish == FINISH_EOS;
        for (int j = 0; j < k; j++)
            cr_assert(a[k].n != a[j].n || memcmp(a[k].tok, a[j].tok, (size_t)a[k].n * sizeof(int)), "prompts %d and %d",
                      j, k);
    }
    for (int k = 0; k < N; k++) generation_free(&a[k]), generation_free(&b[k]);
    rig_close(&r);
}

typedef struct {
    char text[4096];
    size_t n;
    int calls;
} Shown;
static bool collect(void *ctx, int which, const char *text, size_t n, Err *e) {
    Shown *s = ctx;
    (void)which, (void)e;
    memcpy(s->text + s->n, text, n);
    s->n += n;
    s->calls++;
    return true;
}

Test(session, ends) {
    enum { NEW = 60 };
    Rig r;
    rig_open(&r, 1, 0);
    int prompt[] = {256, 'a', 'b'};
    Generation whole = {.prompt = prompt, .nprompt = 3}, g;
    Shown shown = {.n = 0};
    GenOpts o = {.sampler = sampler_default(), .max_new = NEW, .show = collect, .ctx = &shown};
    run(&r, 1, 0, POSITIONS, &o, 1, &whole);
    size_t n = whole.text.n;
    cr_assert(whole.n == NEW && n > 40 && shown.n == n && !memcmp(shown.text, whole.text.bytes, n) && shown.calls > 10);
    /* a stop string of three tokens, and one that only begins */
    char stop[4] = {0}, half[4] = {0};
    size_t at = 20;
    while (memchr(whole.text.bytes + at, 0, 4)) at++; /* stop strings end at a NUL */
    memcpy(stop, whole.text.bytes + at, 3);
    memcpy(half, whole.text.bytes + at - 10, 2), half[2] = '\1';
    const char *stops[] = {half, stop};
    const char *found = memmem(whole.text.bytes, n, stop, 3);
    o.nstop = 2, o.stop = stops, shown = (Shown){.n = 0};
    g = (Generation){.prompt = prompt, .nprompt = 3};
    run(&r, 1, 0, POSITIONS, &o, 1, &g);
    cr_assert(g.finish == FINISH_STOP && g.text.n == (size_t)(found - whole.text.bytes), "ends at %zu of %zu", g.text.n,
              n);
    cr_assert(shown.n == g.text.n && !memcmp(shown.text, whole.text.bytes, shown.n) &&
              !memcmp(g.tok, whole.tok, (size_t)g.n * sizeof(int)));
    generation_free(&g);
    /* an end-of-text token is among the tokens, not in the text */
    int eos = whole.tok[17], first = 0;
    while (whole.tok[first] != eos) first++;
    o.nstop = 0, o.neos = 1, o.eos = &eos;
    g = (Generation){.prompt = prompt, .nprompt = 3};
    run(&r, 1, 0, POSITIONS, &o, 1, &g);
    cr_assert(g.finish == FINISH_EOS && g.n == first + 1 && g.tok[first] == eos && g.text.n <= (size_t)first);
    generation_free(&g);
    /* the context: prompt and new tokens that were fed; one more is drawn from the last */
    o.neos = 0;
    g = (Generation){.prompt = prompt, .nprompt = 3};
    run(&r, 1, 0, 10, &o, 1, &g);
    bool restarts = false;
    for (int i = 0; i < NEW; i++) restarts |= whole.tok[i] == 256;
    cr_assert(restarts || (g.finish == FINISH_CONTEXT && g.n == 8), "%s after %d", finish_name(g.finish), g.n);
    generation_free(&g);
    o.max_new = 0;
    g = (Generation){.prompt = prompt, .nprompt = 3};
    run(&r, 1, 0, 10, &o, 1, &g);
    cr_assert(g.finish == FINISH_LENGTH && g.n == 0 && g.text.n == 0 && g.cache_bytes > 0);
    generation_free(&g);
    generation_free(&whole);
    rig_close(&r);
}

/* ---- cost ----------------------------------------------------------------------------------------------------------
 */
Test(session, cost_of_parameters_and_flops) {
    /* by hand: d 32, L 2, H 4, G 4, D 8, F 48, V 257, tied */
    Rig r;
    rig_open(&r, 0, 0);
    size_t layer = 2 * 32 + 4 * 32 * 32 + 3 * 32 * 48, n = 257 * 32 + 2 * layer + 32, mat = 257 * 32 + 2 * (layer - 64);
    int C = 100;
    Cost c = cost_model(&r.m, C);
    cr_assert(c.params == n && c.params == model_params(&r.m) && c.matmul == mat && c.embedding == 257 * 32, "%zu %zu",
              c.params, c.matmul);
    double attention = 2 * 4.0 * 4 * 8; /* per visible position: scores and values of two layers */
    cr_assert(fabs(c.forward - (2.0 * (double)mat + attention * (C + 1) / 2)) < 1e-6 * c.forward, "%g", c.forward);
    cr_assert(c.itemised == 3 * c.forward);
    cr_assert(c.all_half == 6.0 * (double)n + 6.0 * 2 * 32 * C);
    cr_assert(c.matmul_full == 6.0 * (double)mat + 12.0 * 2 * 4 * 8 * C, "%g", c.matmul_full);
    rig_close(&r);
    for (int map = 0; map < MAPS; map++) {
        rig_open(&r, map, 0);
        c = cost_model(&r.m, 9000); /* more tokens than parts of the mean */
        double sum = 0;
        for (int t = 1; t <= 9000; t++)
            for (int l = 0; l < r.m.L; l++) sum += r.m.layer[l].kind->mixer->flops(r.m.layer[l].cfg, t) / 9000;
        double want = 2.0 * (double)c.matmul + sum;
        cr_assert(fabs(c.forward - want) <= 1e-6 * want, "map %d: %g, by hand %g", map, c.forward, want);
        cr_assert(c.params == model_params(&r.m) && c.matmul + (r.cfg.model.tied ? 0 : c.embedding) < c.params);
        rig_close(&r);
    }
}

Test(session, cost_of_the_cache_is_what_is_resident) {
    enum { LONG = 150 };
    for (int map = 0; map < MAPS; map++) {
        Rig r;
        rig_open(&r, map, 0);
        Session s;
        Err e = {0};
        int tok[LONG];
        for (int i = 0; i < LONG; i++) tok[i] = i % 256;
        open_session(&s, &r,
                     (SessionOpts){.nseq = 2, .max_tokens = LONG, .chunk = 11, .page_rows = 4, .document = 256});
        for (int n = 1, at = 0; at < LONG; at += n, n = imin(n + 2, LONG - at)) {
            CacheCost c;
            cr_assert(session_extend(&s, 1, &(Feed){1, n, tok + at}, WANT_LAST, ABSENT, &e), "%s", e.msg);
            cost_cache(&r.m, at + n, &c);
            cr_assert(session_bytes(&s, 1) == c.bytes_at_context,
                      "map %d at %d tokens: %zu bytes resident, %zu by the cost model", map, at + n,
                      session_bytes(&s, 1), c.bytes_at_context);
            cr_assert(map >= 2 ||
                      c.bytes_at_context == c.mha_bytes_at_context); /* map 1: 2 lanes of 16 are d_model, too */
            cr_assert(map < 2 || c.bytes_at_context < c.mha_bytes_at_context);
        }
        size_t mapped;
        cr_assert(cost_cache_mapped(&r.m, 2, LONG, 11, &mapped, &e));
        Cache cache;
        cr_assert(model_cache_open(&r.m, &cache, 2, LONG, 11, 0, false, &e));
        cr_assert(cache.mem.size == mapped && cache.mem.used == mapped, "%zu measured, %zu mapped, %zu used", mapped,
                  cache.mem.size, cache.mem.used);
        kv_close(&cache);
        session_close(&s);
        rig_close(&r);
    }
}

Test(session, cost_of_a_step_is_what_is_mapped) {
    for (int map = 0; map < MAPS; map++) {
        Rig r;
        rig_open(&r, map, 0);
        Err e = {0};
        Model m;
        StepMemory dry, wet;
        ModelOpts o = {.train = true, .max_rows = 50, .max_samples = 3, .recompute = map % 2};
        cr_assert(cost_step(r.dev, &r.cfg.model, o, &dry, &e), "%s", e.msg);
        cr_assert(model_open(&m, r.dev, &r.cfg.model, o, &e), "%s", e.msg);
        wet = cost_regions(&m);
        cr_assert(!memcmp(&dry, &wet, sizeof dry) &&
                  dry.total == m.aw.size + m.ag.size + m.am.size + m.av.size + m.keep.size + m.scratch.size);
        cr_assert(dry.weights >= model_params(&m) * sizeof(real) && dry.gradients == dry.weights && dry.saved > 0 &&
                  dry.scratch > 0);
        model_close(&m);
        rig_close(&r);
    }
}
