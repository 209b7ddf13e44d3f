/* Sessions, generation and the cost model, on every animal of the zoo. */
#include "infer/generate.h"
#include "model/cost.h"
#include "tests/lib/speaker.h"

static const double TOL = sizeof(real) == 8 ? 1e-10 : 1e-4;

static void open_session(Session *s, Speaker *r, SessionOpts o) {
    Err e = {0};
    cr_assert(session_open(s, &r->m, o, &e), "%s", e.msg);
}
static void extend(Session *s, int B, const Feed *f, Want want, Tensor logits) {
    Err e = {0};
    cr_assert(session_extend(s, B, f, want, logits, &e), "%s", e.msg);
}
static real *numbers(size_t n) { return xcalloc(n, sizeof(real)); }

Test(session, logits_of_every_row_are_those_of_the_training_forward) {
    enum { T = 60 };
    for (int i = 0; i < zoo_count(); i++) {
        Speaker r;
        speaker_open(&r, &zoo[i], T);
        int tok[T], tgt[T], V = r.V;
        real nll[T], got[T], want[T], *logits = numbers((size_t)(T * V));
        speaker_tokens(&r, tok, T, 7 + (uint64_t)i);
        speaker_tokens(&r, tgt, T, 70 + (uint64_t)i);
        speaker_nll(&r, 1, T, tok, tgt, r.document, nll);
        static const int chunks[] = {1, 3, 16, 0};
        for (int c = 0; c < 4; c++) {
            Session s;
            open_session(&s, &r,
                         (SessionOpts){.nseq = 2,
                                       .max_tokens = T,
                                       .chunk = chunks[c],
                                       .page_rows = 4,
                                       .document = r.document,
                                       .want_all = true});
            for (int at = 0, n = 1; at < T; at += n, n = imin(2 * n + 1, T - at)) /* pieces of 1, 3, 7, 15, ... */
                extend(&s, 1, &(Feed){1, n, tok + at}, WANT_ALL, TENSOR(logits + at * V, REAL, n, V));
            for (int k = 0; k < T; k++) got[k] = (real)log_softmax(logits + k * V, V, tgt[k]), want[k] = -nll[k];
            CHECK_RELATIVE(zoo[i].name, got, want, T, TOL);
            session_close(&s);
        }
        free(logits);
        speaker_close(&r);
    }
}

Test(session, chunks_and_company_change_nothing) {
    enum { B = 5, PLACES = 7, LONG = 50 };
    static const int len[B] = {1, 50, 13, 2, 41}, chunks[] = {1, 2, 7, 64, 256};
    for (int i = 0; i < zoo_count(); i++) {
        Speaker r;
        Session s;
        speaker_open(&r, &zoo[i], 0);
        int tok[B][LONG], V = r.V;
        real *alone = numbers((size_t)(B * V)), *got = numbers((size_t)(B * V));
        CacheCost *c = xcalloc(1, sizeof *c); /* an empty place has no rows; its states and carried rows are there */
        cost_cache(&r.m, 0, c);
        for (int b = 0; b < B; b++) {
            speaker_tokens(&r, tok[b], LONG, 100 + (uint64_t)b);
            open_session(&s, &r, (SessionOpts){.nseq = 1, .max_tokens = LONG, .chunk = LONG, .document = r.document});
            extend(&s, 1, &(Feed){0, len[b], tok[b]}, WANT_LAST, TENSOR(alone + b * V, REAL, 1, V));
            session_close(&s);
        }
        for (int k = 0; k < 5; k++) {
            Feed f[B];
            if (!check_sampled(i + k)) continue;
            open_session(&s, &r,
                         (SessionOpts){.nseq = PLACES,
                                       .max_tokens = LONG,
                                       .chunk = chunks[k],
                                       .page_rows = 3,
                                       .document = r.document});
            for (int b = 0; b < B; b++) f[b] = (Feed){(3 * b + 2) % PLACES, len[b], tok[b]};
            for (int again = 0; again < 2; again++) { /* the second time in places that others used before */
                extend(&s, B, f, WANT_LAST, TENSOR(got, REAL, B, V));
                CHECK_RELATIVE(zoo[i].name, got, alone, (size_t)(B * V), TOL);
                for (int b = 0; b < B; b++) {
                    session_reset(&s, f[b].seq);
                    cr_assert(session_length(&s, f[b].seq) == 0 && session_bytes(&s, f[b].seq) == c->state_bytes);
                    f[b].seq = (f[b].seq + 1) % PLACES;
                }
            }
            session_close(&s);
        }
        free(alone), free(got), free(c);
        speaker_close(&r);
    }
}

Test(session, refuses_before_anything_changes) {
    Speaker r;
    Session s;
    Err e = {0};
    speaker_open(&r, &speaker_bytes, 0);
    int tok[20] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, bad[2] = {1, 257}, restart[3] = {256, 9, 9}, V = r.V;
    real a[257], b[257];
    open_session(&s, &r, (SessionOpts){.nseq = 2, .max_tokens = 12, .chunk = 4, .document = 256});
    extend(&s, 1, &(Feed){0, 10, tok}, WANT_LAST, ABSENT);
    Feed two[] = {{1, 3, tok}, {0, 3, tok}};
    cr_assert(!session_extend(&s, 2, two, WANT_LAST, ABSENT, &e) && e.status == EXIT_INPUT &&
                  strstr(e.msg, "12 tokens"),
              "%s", e.msg);
    cr_assert(session_length(&s, 0) == 10 && session_length(&s, 1) == 0);
    e = (Err){0};
    cr_assert(!session_extend(&s, 1, &(Feed){0, 2, bad}, WANT_LAST, ABSENT, &e) && e.status == EXIT_INPUT &&
                  strstr(e.msg, "257"),
              "%s", e.msg);
    extend(&s, 1, &(Feed){0, 2, tok + 10}, WANT_LAST, TENSOR(a, REAL, 1, V));
    extend(&s, 1, &(Feed){1, 12, tok}, WANT_LAST, TENSOR(b, REAL, 1, V));
    CHECK_RELATIVE("after a refusal", a, b, 257, TOL);
    /* full, but a new document gives the room back */
    cr_assert(!session_extend(&s, 1, &(Feed){1, 1, tok}, WANT_LAST, ABSENT, &e));
    extend(&s, 1, &(Feed){1, 3, restart}, WANT_LAST, TENSOR(a, REAL, 1, V));
    cr_assert(session_length(&s, 1) == 3);
    session_reset(&s, 0);
    extend(&s, 1, &(Feed){0, 3, restart}, WANT_LAST, TENSOR(b, REAL, 1, V));
    CHECK_RELATIVE("a document that follows another", a, b, 257, TOL);
    session_close(&s);
    speaker_close(&r);
}

/* ---- generation ----------------------------------------------------------------------------------------------------
 */
static void run(Speaker *r, int nseq, int chunk, int max_tokens, const GenOpts *o, int n, Generation *g) {
    Session s;
    Err e = {0};
    open_session(&s, r, (SessionOpts){.nseq = nseq, .max_tokens = max_tokens, .chunk = chunk, .document = r->document});
    cr_assert(generate(&s, &r->tk, o, n, g, &e), "%s", e.msg);
    session_close(&s);
}

Test(session, greedy_is_the_argmax_of_the_training_forward) {
    enum { NEW = 16, PROMPT = 6 };
    int distinct = 0;
    for (int a = 0; a < zoo_count(); a++) {
        Speaker r;
        speaker_open(&r, &zoo[a], 11 * (NEW + PROMPT));
        int tok[PROMPT + NEW], V = r.V, used[11] = {0};
        speaker_tokens(&r, tok, PROMPT, (uint64_t)a);
        Generation g = {.prompt = tok, .nprompt = PROMPT};
        GenOpts o = {.sampler = sampler_default(), .max_new = NEW};
        o.sampler.temperature = 0;
        run(&r, 1, 4, 64, &o, 1, &g);
        cr_assert(V == 11 && g.n == NEW && g.finish == FINISH_LENGTH);
        for (int i = 0; i < NEW; i++) tok[PROMPT + i] = g.tok[i], distinct += !used[g.tok[i]]++;
        for (int i = 0; i < NEW; i++) { /* each candidate v is the target of the last row of its own copy */
            int n = PROMPT + i, in[11 * (NEW + PROMPT)], tgt[11 * (NEW + PROMPT)];
            real nll[11 * (NEW + PROMPT)];
            for (int k = 0; k < V * n; k++) in[k] = tok[k % n], tgt[k] = k % n == n - 1 ? k / n : -1;
            speaker_nll(&r, V, n, in, tgt, r.document, nll);
            double mine = nll[g.tok[i] * n + n - 1], least = INFINITY;
            for (int v = 0; v < V; v++) least = fmin(least, (double)nll[v * n + n - 1]);
            cr_assert(mine <= least + 1e-5, "%s token %d: %d has nll %g, the best %g", zoo[a].name, i, g.tok[i], mine,
                      least);
        }
        generation_free(&g);
        speaker_close(&r);
    }
    cr_assert(distinct > zoo_count() + 8, "only %d distinct tokens in all: the models say nothing", distinct);
}

Test(session, repetition_penalty_counts_prompt_and_output_once) {
    enum { NEW = 20, PROMPT = 5, V = 257 };
    Speaker r;
    Session s;
    speaker_open(&r, &speaker_bytes, 0);
    int tok[PROMPT + NEW] = {256, 'x', 'y', 'x', 'x'}, changed = 0;
    Generation g = {.prompt = tok, .nprompt = PROMPT};
    GenOpts o = {.sampler = sampler_default(), .max_new = NEW};
    o.sampler.temperature = 0, o.sampler.repetition_penalty = 1.7;
    run(&r, 1, 0, 160, &o, 1, &g);
    open_session(&s, &r, (SessionOpts){.nseq = 1, .max_tokens = 160, .document = 256});
    for (int i = 0; i < NEW; i++) {
        real l[V];
        double best = -INFINITY, plain = -INFINITY, mine = 0;
        session_reset(&s, 0);
        extend(&s, 1, &(Feed){0, PROMPT + i, tok}, WANT_LAST, TENSOR(l, REAL, 1, V));
        for (int v = 0; v < V; v++) {
            bool met = false;
            for (int k = 0; k < PROMPT + i; k++) met |= tok[k] == v;
            double x = (double)l[v];
            plain = fmax(plain, x);
            if (met) x = x > 0 ? x / 1.7 : x * 1.7;
            best = fmax(best, x);
            if (v == g.tok[i]) mine = x;
        }
        cr_assert(mine >= best - 1e-4, "token %d: %g, the best %g", i, mine, best);
        changed += (double)l[g.tok[i]] < plain - 1e-3;
        tok[PROMPT + i] = g.tok[i];
    }
    cr_assert(changed > 2, "the penalty changed %d of %d tokens", changed, NEW);
    session_close(&s);
    generation_free(&g);
    speaker_close(&r);
}

Test(session, results_do_not_depend_on_who_shares_the_batch) {
    enum { N = 7 };
    Speaker r;
    speaker_open(&r, &speaker_bytes, 0);
    int prompt[N][30], ended = 0;
    Generation a[N], b[N];
    GenOpts o = {.sampler = sampler_default(), .max_new = 30, .neos = 3, .eos = (int[]){256, 7, 40}};
    for (int k = 0; k < N; k++) {
        speaker_tokens(&r, prompt[k], 30, 500 + (uint64_t)k);
        a[k] = b[k] = (Generation){.prompt = prompt[k], .nprompt = 1 + 4 * k};
    }
    run(&r, 1, 0, 64, &o, N, a);
    run(&r, 3, 5, 64, &o, N, b);
    for (int k = 0; k < N; k++) {
        cr_assert(a[k].n == b[k].n && !memcmp(a[k].tok, b[k].tok, (size_t)a[k].n * sizeof(int)), "prompt %d", k);
        cr_assert(a[k].finish == b[k].finish && a[k].cache_bytes == b[k].cache_bytes && a[k].cache_bytes > 0);
        ended += a[k].finish == FINISH_EOS;
        for (int j = 0; j < k; j++)
            cr_assert(a[k].n != a[j].n || memcmp(a[k].tok, a[j].tok, (size_t)a[k].n * sizeof(int)), "%d and %d", j, k);
    }
    cr_assert(ended > 0 && ended < N, "%d of %d end early: places are never handed on, or always", ended, N);
    for (int k = 0; k < N; k++) generation_free(&a[k]), generation_free(&b[k]);
    speaker_close(&r);
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
    Speaker r;
    speaker_open(&r, &speaker_bytes, 0);
    int prompt[] = {256, 'a', 'b'};
    Generation whole = {.prompt = prompt, .nprompt = 3}, g = whole;
    Shown shown = {.n = 0};
    GenOpts o = {.sampler = sampler_default(), .max_new = NEW, .show = collect, .ctx = &shown};
    run(&r, 1, 0, 160, &o, 1, &whole);
    size_t n = whole.text.n;
    cr_assert(whole.n == NEW && n > 40 && shown.n == n && !memcmp(shown.text, whole.text.bytes, n) && shown.calls > 10);
    /* a stop string of three tokens, and one that only begins */
    char stop[4] = {0}, half[4] = {0};
    size_t at = 20;
    while (memchr(whole.text.bytes + at - 10, 0, 13)) at++; /* stop strings end at a NUL */
    memcpy(stop, whole.text.bytes + at, 3);
    memcpy(half, whole.text.bytes + at - 10, 2), half[2] = '\1';
    cr_assert(n >= at + 3 && !memmem(whole.text.bytes, n, half, 3));
    const char *stops[] = {half, stop}, *found = memmem(whole.text.bytes, n, stop, 3);
    o.nstop = 2, o.stop = stops, shown = (Shown){.n = 0};
    run(&r, 1, 0, 160, &o, 1, &g);
    cr_assert(g.finish == FINISH_STOP && g.text.n == (size_t)(found - whole.text.bytes), "ends at %zu", g.text.n);
    cr_assert(shown.n == g.text.n && !memcmp(shown.text, whole.text.bytes, shown.n) &&
              !memcmp(g.tok, whole.tok, (size_t)g.n * sizeof(int)));
    generation_free(&g);
    /* a token that ends the text is among the tokens, not in the text */
    int eos = whole.tok[17], first = 0, texts = 0;
    while (whole.tok[first] != eos) texts += whole.tok[first++] != 256;
    o.nstop = 0, o.neos = 1, o.eos = &eos;
    g = (Generation){.prompt = prompt, .nprompt = 3};
    run(&r, 1, 0, 160, &o, 1, &g);
    cr_assert(g.finish == FINISH_EOS && g.n == first + 1 && g.tok[first] == eos && g.text.n == (size_t)texts);
    generation_free(&g);
    /* the context: 10 tokens are fed, one more is drawn from the last of them */
    o.neos = 0;
    g = (Generation){.prompt = prompt, .nprompt = 3};
    for (int i = 0; i < 8; i++) cr_assert(whole.tok[i] != 256, "token %d starts a document: take another seed", i);
    run(&r, 1, 0, 10, &o, 1, &g);
    cr_assert(g.finish == FINISH_CONTEXT && g.n == 8, "%s after %d", finish_name(g.finish), g.n);
    generation_free(&g);
    o.max_new = 0;
    g = (Generation){.prompt = prompt, .nprompt = 3};
    run(&r, 1, 0, 10, &o, 1, &g);
    cr_assert(g.finish == FINISH_LENGTH && g.n == 0 && g.text.n == 0 && g.cache_bytes > 0);
    generation_free(&g);
    generation_free(&whole);
    speaker_close(&r);
}

/* ---- cost ----------------------------------------------------------------------------------------------------------
 */
Test(session, cost_of_parameters_and_flops) {
    /* zoo[0] by hand: d 12, L 2, H 3, G 3, D 4, F 10, V 11, tied */
    Speaker r;
    speaker_open(&r, &zoo[0], 0);
    size_t layer = 2 * 12 + 4 * 12 * 12 + 3 * 12 * 10, n = 11 * 12 + 2 * layer + 12, mat = 11 * 12 + 2 * (layer - 24);
    int C = 100;
    Cost c = cost_model(&r.m, C);
    cr_assert(c.params == n && c.matmul == mat && c.embedding == 11 * 12, "%zu %zu", c.params, c.matmul);
    double attention = 2 * 4.0 * 3 * 4; /* per visible position: scores and values of two layers */
    cr_assert(fabs(c.forward - (2.0 * (double)mat + attention * (C + 1) / 2)) < 1e-9 * c.forward, "%g", c.forward);
    cr_assert(c.itemised == 3 * c.forward && c.all_half == 6.0 * (double)n + 6.0 * 2 * 12 * C);
    cr_assert(c.matmul_full == 6.0 * (double)mat + 12.0 * 2 * 3 * 4 * C, "%g", c.matmul_full);
    speaker_close(&r);
    for (int i = 0; i < zoo_count(); i++) {
        speaker_open(&r, &zoo[i], 0);
        c = cost_model(&r.m, 9000); /* more tokens than parts of the mean */
        double sum = 0;
        for (int t = 1; t <= 9000; t++)
            for (int l = 0; l < r.m.L; l++) sum += r.m.layer[l].kind->mixer->flops(r.m.layer[l].cfg, t) / 9000;
        double want = 2.0 * (double)c.matmul + sum;
        cr_assert(fabs(c.forward - want) <= 1e-6 * want, "%s: %g, by hand %g", zoo[i].name, c.forward, want);
        cr_assert(c.params == model_params(&r.m) && c.matmul + (r.cfg.tied ? 0 : c.embedding) < c.params);
        speaker_close(&r);
    }
}

Test(session, cost_of_the_cache_is_what_is_resident) {
    enum { LONG = 150 };
    for (int i = 0; i < zoo_count(); i++) {
        Speaker r;
        Session s;
        Err e = {0};
        CacheCost *c = xcalloc(1, sizeof *c);
        int tok[LONG] = {0};
        size_t mapped;
        bool evicts = false; /* what is kept depends on the tokens: the cost model names the most */
        speaker_open(&r, &zoo[i], 0);
        for (int l = 0; l < r.m.L; l++) evicts |= r.m.layer[l].rows.evicts;
        open_session(&s, &r,
                     (SessionOpts){.nseq = 2, .max_tokens = LONG, .chunk = 11, .page_rows = 4, .document = r.document});
        for (int n = 1, at = 0; at < LONG; at += n, n = imin(n + 2, LONG - at)) {
            extend(&s, 1, &(Feed){1, n, tok + at}, WANT_LAST, ABSENT);
            cost_cache(&r.m, at + n, c);
            cr_assert(c->at_most == evicts);
            cr_assert(evicts ? session_bytes(&s, 1) <= c->bytes_at_context
                             : session_bytes(&s, 1) == c->bytes_at_context,
                      "%s at %d tokens: %zu bytes resident, %zu by the cost model", zoo[i].name, at + n,
                      session_bytes(&s, 1), c->bytes_at_context);
            size_t mha = 2 * sizeof(real) * 12 * (size_t)(r.m.L * (at + n));
            size_t grown = c->bytes_at_context - c->state_bytes;
            cr_assert(c->mha_bytes_at_context == mha && (i ? grown <= mha : grown == mha));
        }
        session_close(&s);
        cr_assert(cost_cache_mapped(&r.m, 2, LONG, 11, &mapped, &e));
        Cache cache;
        cr_assert(model_cache_open(&r.m, &cache, 2, LONG, 11, 0, false, &e));
        cr_assert(cache.mem.size == mapped && cache.mem.used == mapped, "%zu measured, %zu mapped, %zu used", mapped,
                  cache.mem.size, cache.mem.used);
        kv_close(&cache);
        free(c);
        speaker_close(&r);
    }
}

Test(session, cost_of_a_step_is_what_is_mapped) {
    for (int i = 0; i < zoo_count(); i++) {
        Speaker r;
        Err e = {0};
        Model m;
        Workspace work;
        StepMemory dry, wet;
        ModelOpts o = {.train = true, .max_rows = 50, .max_samples = 3, .recompute = i % 3 - 1};
        speaker_open(&r, &zoo[i], 0);
        cr_assert(cost_step(r.dev, &r.cfg, o, &dry, &e), "%s", e.msg);
        cr_assert(zoo_model(&m, &work, r.dev, &r.cfg, o, &e), "%s", e.msg);
        wet = cost_regions(&m, &work);
        cr_assert(!memcmp(&dry, &wet, sizeof dry), "%s: %zu bytes measured, %zu mapped", zoo[i].name, dry.total,
                  wet.total);
        cr_assert(dry.total == m.aw.size + m.ag.size + dry.moment1 + dry.moment2 + work.keep.size + work.scratch.size);
        cr_assert(dry.weights >= model_params(&m) * sizeof(real) && dry.gradients == dry.weights &&
                  dry.moment1 == dry.gradients && dry.moment2 == dry.gradients && dry.saved > 0 && dry.scratch > 0);
        workspace_close(&work);
        model_close(&m);
        speaker_close(&r);
    }
}
