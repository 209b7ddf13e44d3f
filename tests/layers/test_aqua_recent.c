/* test_aqua_recent.c: the codec aqua where rows wait for a block (`recent`), over models of the zoo: what a query sees
 * behind every cut, bytes, sequences that fork, go back, are fed together and guess; refusals. test_aqua.c has the
 * codes. */
#include "layers/cache/aqua.h"
#include "layers/cache/codec.h"
#include "model/basis.h"
#include "model/cost.h"
#include "tests/lib/aqua.h"
#include "tests/lib/rig.h"

enum { T = 150, CHUNK = 40 };
static void text_drawn(int tok[T], int vocab, uint64_t seed) {
    for (int i = 0; i < T; i++) tok[i] = (int)(rng_uniform(rng_mix(seed, 5), (uint64_t)i) * vocab);
}
static void open_session(Session *s, PaluCase *c, int nseq) {
    Err e = {0};
    const SessionOpts o = {.nseq = nseq, .max_tokens = T, .chunk = CHUNK * nseq, .document = -1, .want_all = true};
    cr_assert(session_open(s, &c->m, o, &e), "%s", e.msg);
}
/* Logits of every row of a text: `first` tokens, then the rest in pieces of so many. */
static void logits_of(PaluCase *c, const int *tok, int first, int piece, real *logits) {
    Session s;
    open_session(&s, c, 1);
    for (int at = 0, n; at < T; at += n) {
        n = imin(at ? piece : first, T - at);
        palu_feed(&s, 0, n, tok + at, logits + (size_t)at * (size_t)c->cfg.vocab);
    }
    session_close(&s);
}
/* The rows of the first block are seen as they were computed. Later ones are nearer to a dense cache than where no row
 * waits. */
Test(aqua_recent, rows_look_the_same_behind_every_cut, .timeout = 300) {
    static const char *const settings[] = {"bits=2,recent=64", "bits=3,recent=64,pairs=no", "bits=4,recent=128"};
    static const int first[] = {1, 63, 64, 65, 130}, piece[] = {1, 150, 7, 64, 19};
    int models = 0, nearer = 0;
    for (int i = 0; i < zoo_count(); i++) {
        PaluCase c, plain;
        int tok[T];
        const char *how = settings[i % 3];
        if (!check_sampled(i) || !aqua_open(&c, i, how, (ModelOpts){0})) continue;
        palu_plain(&plain, i, (ModelOpts){0});
        const size_t V = (size_t)c.cfg.vocab, n = T * V, before = (size_t)c.codec.block * V;
        real *whole = xcalloc(n, sizeof *whole), *cut = xcalloc(n, sizeof *cut), *wide = xcalloc(n, sizeof *wide);
        text_drawn(tok, c.cfg.vocab, (uint64_t)i);
        logits_of(&c, tok, T, T, whole), logits_of(&plain, tok, T, T, wide);
        cr_assert(palu_decides(i) || palu_distance(whole, wide, before) < (REAL == F64 ? 1e-12 : 1e-5),
                  "%s, %s: the first block is read in codes", how, zoo[i].name);
        const double apart = palu_distance(whole + before, wide + before, n - before);
        cr_assert(apart > 1e-7 && apart < 1, "%s, %s: %.3g from a dense cache", how, zoo[i].name, apart);
        for (int j = 0; j < 5; j++) {
            logits_of(&c, tok, first[j], piece[j], cut);
            const double off = palu_distance(cut, whole, n);
            cr_assert(off <= (REAL == F64 ? 1e-9 : 0.15) || (palu_decides(i) && REAL == F32), "%s, %s, %d and %d: %.3g",
                      how, zoo[i].name, first[j], piece[j], off);
        }
        RowCodec own = c.codec; /* the same matrices, no row waits */
        codec_aqua_recent(&c.codec, 0);
        PaluCase alone = {.codec = c.codec};
        zoo_open(&zoo[i], &alone.cfg, &alone.m, NULL, &alone.dev, (ModelOpts){.codec = &alone.codec});
        logits_of(&alone, tok, T, T, cut);
        nearer += apart < palu_distance(cut + before, wide + before, n - before);
        zoo_close(&alone.cfg, &alone.m, NULL, alone.dev);
        c.codec = own;
        free(whole), free(cut), free(wide);
        palu_close(&c), palu_close(&plain);
        models++;
    }
    cr_assert(models > (check_sampled(1) ? 15 : 4) && nearer > models * 3 / 4, "%d of %d models", nearer, models);
}
/* What is resident is what the cost model says, and by its own count: codes of whole blocks, rows that wait, and one
 * layer as `real`s. */
Test(aqua_recent, bytes_are_those_of_blocks_and_rows_that_wait, .timeout = 120) {
    int models = 0;
    for (int i = 0; i < zoo_count(); i++) {
        PaluCase c;
        Session s;
        int tok[T];
        const int P = i % 2 ? 64 : 128;
        char text[40];
        Err e = {0};
        size_t mapped;
        snprintf(text, sizeof text, "bits=%d,recent=%d", 2 + i % 3, P);
        if (!check_sampled(i) || !aqua_open(&c, i, text, (ModelOpts){0})) continue;
        CacheCost *cost = xcalloc(1, sizeof *cost);
        text_drawn(tok, c.cfg.vocab, 3);
        open_session(&s, &c, 1);
        for (int at = 0, n; at < T; at += n) {
            size_t rows = 0, once = 0;
            n = imin(at < 60 ? 60 : at < 64 ? 4 : 29, T - at);
            palu_feed(&s, 0, n, tok + at, NULL);
            const int have = at + n, blocks = have / P;
            cost_cache(&c.m, have, cost);
            for (int l = 0; l < c.m.L; l++) {
                const KvShape *r = &c.m.layer[l].rows;
                if (!basis_layer(&c.m, l)) continue;
                const size_t row = codec_pairs_bytes(&c.codec, r->kdim) + codec_pairs_bytes(&c.codec, r->vdim),
                             wide = (size_t)(r->kdim + r->vdim) * sizeof(real);
                rows += (size_t)r->lanes * ((size_t)(blocks * P) * row + (size_t)(have - blocks * P) * wide);
                once = (size_t)(have * r->lanes) * wide;
            }
            cr_assert(session_bytes(&s, 0) == cost->bytes_at_context &&
                          rows + once == session_bytes(&s, 0) - cost->state_bytes,
                      "%s, %d tokens: %zu resident, %zu by the cost model, %zu by count", zoo[i].name, have,
                      session_bytes(&s, 0), cost->bytes_at_context, rows + once + cost->state_bytes);
        }
        cr_assert(cost_cache_mapped(&c.m, 1, T, CHUNK, &mapped, &e) && mapped >= session_bytes(&s, 0), "%s",
                  zoo[i].name);
        session_close(&s);
        free(cost);
        palu_close(&c);
        models++;
    }
    cr_assert(models > (check_sampled(1) ? 15 : 4), "%d models", models);
}
/* Forks share blocks, sequences are fed together, guesses are taken back, sequences go back: as one that is fed
 * alone. */
Test(aqua_recent, forks_batches_and_guesses_change_nothing, .timeout = 200) {
    int models = 0;
    for (int i = 0; i < zoo_count(); i++) {
        PaluCase c;
        Session s;
        Err e = {0};
        int tok[T], other[T];
        if (!check_sampled(i) || !aqua_open(&c, i, "bits=3,recent=64", (ModelOpts){0})) continue;
        const int vocab = c.cfg.vocab;
        const size_t V = (size_t)vocab, n = T * V;
        const bool wavers = palu_decides(i) && REAL == F32;
        const double bound = wavers ? INFINITY : REAL == F64 ? 1e-9 : 0.15;
        real *alone = xcalloc(n, sizeof *alone), *x = xcalloc(n, sizeof *x), *y = xcalloc(n, sizeof *y);
        text_drawn(tok, vocab, 4), text_drawn(other, vocab, 5);
        open_session(&s, &c, 3);
        palu_feed(&s, 0, 70, tok, alone);
        for (int t = 70; t < T; t++) palu_feed(&s, 0, 1, tok + t, alone + (size_t)t * V);
        session_close(&s);

        open_session(&s, &c, 3);
        palu_feed(&s, 0, 70, tok, x);
        session_fork(&s, 0, 1);
        palu_feed(&s, 0, 70, other, y); /* fills a block that the fork does not have */
        for (int t = 70; t < T; t++) palu_feed(&s, 1, 1, tok + t, x + (size_t)t * V);
        CHECK_BYTES(zoo[i].name, x, alone, n * sizeof *x);
        session_fork(&s, 1, 2); /* whose block becomes full at once with that of another */
        session_close(&s);

        open_session(&s, &c, 2); /* another sequence in every pass, longer by four */
        palu_feed(&s, 1, 4, other, NULL);
        for (int t = 0; t < T - 4; t++) {
            const Feed both[2] = {{1, 1, other + 4 + t}, {0, 1, tok + t}};
            cr_assert(session_extend(&s, 2, both, WANT_ALL, TENSOR(y, REAL, 2, vocab), &e), "%s", e.msg);
            memcpy(x + (size_t)t * V, y + V, V * sizeof *x);
        }
        session_close(&s);
        double off = palu_distance(x, alone, (T - 4) * V);
        cr_assert(off <= bound, "%s: %.3g with another sequence", zoo[i].name, off);

        open_session(&s, &c, 1);
        palu_feed(&s, 0, 11, tok, x);
        palu_wrong_guess(&s, &c, tok, x);
        for (int t = 12; t < T; t++) palu_feed(&s, 0, 1, tok + t, x + (size_t)t * V);
        off = palu_distance(x, alone, n);
        cr_assert(off <= bound, "%s: %.3g after a wrong guess", zoo[i].name, off);
        for (int to = 140; to > 0; to -= 40) { /* inside of the newest block, and to the beginning of another */
            const int at = session_rewind(&s, 0, to);
            cr_assert(at == 0 || at == (to < 128 ? to / 64 * 64 : to), "%s: back to %d, not %d", zoo[i].name, at, to);
            models += at > 0;
            for (int t = at; t < T; t++) palu_feed(&s, 0, 1, tok + t, x + (size_t)t * V);
            off = palu_distance(x, alone, n);
            cr_assert(off <= bound, "%s: %.3g after going back to %d", zoo[i].name, off, at);
        }
        session_close(&s);
        free(alone), free(x), free(y);
        palu_close(&c);
    }
    cr_assert(models > (check_sampled(1) ? 16 : 4), "%d sequences went back", models);
}
