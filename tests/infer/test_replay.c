/* test_replay.c: contexts that a policy feeds a second time: the rows that stay against kvpress (golden/kvzip.txt, by
 * golden/make_kvzip.py), the requests in words, what a replay may not change. */
#include "infer/engine.h"
#include "infer/replay.h"
#include "layers/cache/slot.h"
#include "model/files/hf.h"
#include "tests/lib/check.h"

enum { CONTEXT = 64 };
static void opened(const char *dir, PolicyCfg *p, ModelCfg *cfg, Device **dev, Model *m) {
    Err e = {0};
    char *path = xformat("tests/golden/%s", dir);
    cr_assert(hf_config_read(path, cfg, &e), "%s", e.msg);
    cr_assert(device_open(dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(model_open(m, *dev, cfg, (ModelOpts){.policy = p}, &e), "%s", e.msg);
    cr_assert(hf_load(path, m, &e), "%s", e.msg);
    free(path);
}
static void closed(ModelCfg *cfg, Device *dev, Model *m) {
    model_close(m);
    device_close(dev);
    model_cfg_free(cfg);
}
static void tokens(int n, int vocab, int *tok) {
    int64_t x = 12345;
    for (int i = 0; i < n; i++) x = (x * 1103515245 + 12345) % (1ll << 31), tok[i] = (int)(x / 65536 % vocab);
}
static PolicyCfg policy(int rows, int sinks, int chunk) {
    PolicyCfg p;
    Err e = {0};
    char *spec = xformat("kvzip:budget=%d,sinks=%d,chunk=%d", rows, sinks, chunk);
    cr_assert(policy_parse(spec, &p, &e), "%s", e.msg);
    p.request[REQUEST_FIRST] = (PolicyAsked){5, {5, 3, 7, 1, 6}};
    p.request[REQUEST_NEXT] = (PolicyAsked){3, {4, 4, 9}};
    p.request[REQUEST_END] = (PolicyAsked){1, {2}};
    free(spec);
    return p;
}
static uint64_t shown(const Session *s, int slot, int lane) {
    const Lanes *t = kv_lanes(kv_slot(&s->cache, slot));
    uint64_t set = 0;
    for (int r = t->lo[lane]; r < t->hi[lane]; r++)
        set |= 1ull << t->pos[t->table[lane * t->maxpages + r / t->P % t->maxpages] * t->P + r % t->P];
    return set;
}

Test(replay, kvzip_keeps_what_kvpress_keeps, .timeout = 60) {
    FILE *f = fopen("tests/golden/kvzip.txt", "r");
    char dir[64];
    int n, rows, sinks, lanes, cases = 0, uneven = 0;
    cr_assert(f);
    while (fscanf(f, "%63s %d %d %d %d", dir, &n, &rows, &sinks, &lanes) == 5) {
        PolicyCfg p = policy(rows, sinks, 2048);
        ModelCfg cfg;
        Device *dev;
        Model m;
        Session s;
        Err e = {0};
        int tok[CONTEXT], at = 0;
        opened(dir, &p, &cfg, &dev, &m);
        cr_assert(n <= CONTEXT);
        tokens(n, cfg.vocab, tok);
        cr_assert(session_open(&s, &m, (SessionOpts){.nseq = 1, .max_tokens = n, .chunk = 16, .document = -1}, &e));
        cr_assert(session_extend(&s, 1, &(Feed){0, n, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
        cr_assert(session_prompt_ends(&s, 0, &e), "%s", e.msg);
        for (int l = 0; l < m.L; l++)
            for (int h = 0; h < kv_lanes(kv_slot(&s.cache, l))->s.lanes; h++, at++) {
                unsigned long long want, got = shown(&s, l, h);
                cr_assert(fscanf(f, "%llx", &want) == 1 && got == want, "%s, %d tokens, layer %d lane %d: %llx, %llx",
                          dir, n, l, h, got, want);
                uneven += __builtin_popcountll(got) != rows;
            }
        cr_assert_eq(at, lanes);
        cases++;
        session_close(&s);
        closed(&cfg, dev, &m);
    }
    fclose(f);
    cr_assert(cases == 6 && uneven >= 8, "%d cases, %d lanes of other lengths than the mean", cases, uneven);
}

/* A later chunk is fed to the context alone, behind its own request: as if it were the only one. */
Test(replay, chunks_do_not_see_each_other, .timeout = 60) {
    enum { N = 40, PART = 15, MOST = 4 + REPLAY_NAMED + PART };
    PolicyCfg p = policy(12, 2, PART);
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s[2];
    Err e = {0};
    int tok[N], compared = 0;
    opened("llama/llama3-untied", &p, &cfg, &dev, &m);
    tokens(N, cfg.vocab, tok);
    for (int i = 0; i < 2; i++) {
        cr_assert(session_open(&s[i], &m, (SessionOpts){.nseq = 1, .max_tokens = N, .document = -1}, &e));
        cr_assert(session_extend(&s[i], 1, &(Feed){0, N, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    }
    cr_assert(session_replay(&s[0], 0, &e), "%s", e.msg);
    for (int lo = 0; lo < N; lo += PART) {
        const int hi = imin(N, lo + PART);
        int again[MOST], n = 0, pos[MOST], first[MOST], of[MOST] = {0};
        for (int i = 0; i < (lo ? 3 : 5); i++) again[n++] = lo ? (int[]){4, 4, 9}[i] : (int[]){5, 3, 7, 1, 6}[i];
        for (int i = lo - 8; i < lo && lo; i++) again[n++] = tok[i];
        again[n++] = 2;
        for (int i = lo; i < hi; i++) again[n++] = tok[i];
        for (int i = 0; i < n; i++) pos[i] = N + i, first[i] = -1;
        const Batch b = {1, n, (int[]){0, n}, &s[1].cache.spare, of, pos, first, &(uint64_t){1}, true, NULL};
        kv_replay_begin(&s[1].cache, 0, N);
        cr_assert(model_extend(&m, &s[1].own, &s[1].cache, &b, again, (RowList){0, of}, ABSENT, &e), "%s", e.msg);
        model_replayed(&s[1].own, &s[1].cache, N, n, lo, hi);
        for (int lane = 0; lane < 4; lane++)
            for (int j = lo; j < hi; j++, compared++) {
                const real want = replay_score(&s[1].cache, lane, j), got = replay_score(&s[0].cache, lane, j);
                cr_assert(want > 0 && want == got, "lane %d, row %d: %g, %g alone", lane, j, (double)got, (double)want);
            }
        kv_replay_drop(&s[1].cache);
    }
    cr_assert_eq(compared, 4 * N);
    for (int i = 0; i < 2; i++) session_close(&s[i]);
    closed(&cfg, dev, &m);
}

/* ---- a prompt of the policy's own --------------------------------------------------------------------------------*/

static PolicyCfg parsed(const char *spec, int n, const int *prompt) {
    PolicyCfg p;
    Err e = {0};
    cr_assert(policy_parse(spec, &p, &e), "%s", e.msg);
    p.request[REQUEST_FIRST].n = n;
    for (int i = 0; i < n; i++) p.request[REQUEST_FIRST].tok[i] = prompt[i];
    return p;
}
/* The rows that each lane of a session over `m` shows after n tokens, fed `piece` at a time. Returns the lanes. */
static int shown_after(const Model *m, const int *tok, int n, int piece, int chunk, bool ends, uint64_t *set,
                       real *logits) {
    Session s;
    Err e = {0};
    int lanes = 0;
    cr_assert(session_open(&s, m, (SessionOpts){.nseq = 1, .max_tokens = n, .chunk = chunk, .document = -1}, &e), "%s",
              e.msg);
    for (int at = 0; at < n; at += piece)
        cr_assert(session_extend(&s, 1, &(Feed){0, imin(piece, n - at), tok + at}, WANT_LAST,
                                 TENSOR(logits, REAL, 1, m->cfg.vocab), &e),
                  "%s", e.msg);
    if (ends) cr_assert(session_prompt_ends(&s, 0, &e), "%s", e.msg);
    cr_assert(session_length(&s, 0) == n && !s.cache.replay);
    for (int l = 0; l < m->L; l++)
        for (int h = 0; h < kv_lanes(kv_slot(&s.cache, l))->s.lanes; h++) set[lanes++] = shown(&s, l, h);
    session_close(&s);
    return lanes;
}
/* A prompt that is the text's own next W tokens asks what snapkv's window asks W tokens later. snapkv's budgets, each
 * one row larger, give the order of the rows. */
Test(replay, a_prompt_asks_as_the_next_rows_would, .timeout = 60) {
    enum { N = 40, W = 6, ROWS = 14, LANES = 16 };
    ModelCfg cfg;
    Device *dev;
    Model m;
    uint64_t got[LANES], want[LANES], seen[LANES] = {0};
    int tok[N + W], compared = 0;
    PolicyCfg p;
    tokens(N + W, 112, tok);
    for (int every = 0; every < 2; every++) {
        real logits[112];
        char spec[100];
        snprintf(spec, sizeof spec, "infinipot:budget=%d,window=1,sinks=2,every=%d,share=0,catalyst=1", ROWS,
                 every * N);
        p = parsed(spec, W, tok + N);
        opened("recall", &p, &cfg, &dev, &m);
        const int lanes = shown_after(&m, tok, N, N, 16, !every, got, logits);
        closed(&cfg, dev, &m);
        for (int i = 0; i < lanes; i++) want[i] = 1 | 2 | 1ull << (N - 1), seen[i] = 0;
        for (int rows = 1; rows <= ROWS; rows++) {
            uint64_t set[LANES];
            snprintf(spec, sizeof spec, "snapkv:budget=%d,window=%d,sinks=2,every=0,pool=1", W + 2 + rows, W);
            p = parsed(spec, 0, NULL);
            opened("recall", &p, &cfg, &dev, &m);
            cr_assert_eq(shown_after(&m, tok, N + W, N + W, 64, true, set, logits), lanes);
            closed(&cfg, dev, &m);
            for (int i = 0; i < lanes; i++) {
                const uint64_t old = set[i] & ((1ull << N) - 1), fresh = old & ~seen[i] & ~(uint64_t)3;
                cr_assert(__builtin_popcountll(fresh) == 1, "lane %d: %llx after %llx", i, (unsigned long long)old,
                          (unsigned long long)seen[i]);
                if (__builtin_popcountll(want[i]) < ROWS) want[i] |= fresh;
                seen[i] = old;
            }
        }
        for (int i = 0; i < lanes; i++, compared++)
            cr_assert(got[i] == want[i], "every %d, lane %d: %llx, expected %llx", every * N, i,
                      (unsigned long long)got[i], (unsigned long long)want[i]);
    }
    cr_assert(compared == 16, "%d lanes", compared);
}
/* However the text is cut, the same rows stay and the next token is the same; another prompt keeps others. */
Test(replay, a_prompt_is_fed_in_any_cut, .timeout = 60) {
    enum { N = 62, LANES = 16 };
    static const char spec[] = "infinipot:budget=12,window=2,sinks=1,every=20,catalyst=1,share=0.4";
    static const int piece[] = {N, N, 1, 7}, chunk[] = {64, 3, 64, 16},
                     prompt[2][5] = {{5, 3, 7, 1, 6}, {9, 9, 8, 2, 4}};
    ModelCfg cfg;
    Device *dev;
    Model m;
    int tok[N], others = 0;
    uint64_t want[LANES] = {0}, got[LANES];
    real first[112], logits[112];
    tokens(N, 112, tok);
    for (int way = 0; way < 5; way++) {
        PolicyCfg p = parsed(spec, 5, prompt[way == 4]);
        opened("recall", &p, &cfg, &dev, &m);
        const int lanes = shown_after(&m, tok, N, piece[way % 4], chunk[way % 4], true, way ? got : want, logits);
        closed(&cfg, dev, &m);
        if (!way) memcpy(first, logits, sizeof first);
        for (int i = 0; i < lanes && way; i++) {
            cr_assert(__builtin_popcountll(got[i]) == 12 + N % 20);
            others += got[i] != want[i];
            cr_assert(way == 4 || got[i] == want[i], "way %d, lane %d: %llx, %llx at once", way, i,
                      (unsigned long long)got[i], (unsigned long long)want[i]);
        }
        if (way && way < 4) CHECK_RMS("logits", logits, first, 112, REAL == F64 ? 1e-9 : 1e-4);
    }
    cr_assert(others > 0, "another prompt keeps the same rows");
}
Test(replay, a_prompt_needs_words) {
    PolicyCfg p = parsed("infinipot:catalyst=1", 0, NULL);
    const Tokenizer t = tokenizer_byte();
    const char *want = "\n\nSummarize the critical points of the previous context.\n";
    ModelCfg cfg;
    Device *dev;
    Model m;
    Err e = {0};
    cr_assert(hf_config_read("tests/golden/recall", &cfg, &e) && device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(!model_open(&m, dev, &cfg, (ModelOpts){.policy = &p, .dry = true}, &e) && e.status == EXIT_INPUT);
    cr_assert(strstr(e.msg, "--policy infinipot: catalyst: its prompt has words"), "%s", e.msg);
    e = (Err){0};
    cr_assert(replay_requests(&p, &t, &e), "%s", e.msg);
    cr_assert(p.request[REQUEST_FIRST].n == (int)strlen(want) && policy_replay_tokens(&p, 9) == (int)strlen(want));
    for (int k = 0; want[k]; k++) cr_assert_eq(p.request[REQUEST_FIRST].tok[k], want[k]);
    device_close(dev);
    model_cfg_free(&cfg);
}

/* Other sequences, their pages and what is fed later do not notice; the spare sequence is empty again. */
Test(replay, nothing_else_changes, .timeout = 60) {
    enum { N = 40 };
    PolicyCfg p = policy(12, 2, 9);
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
    Err e = {0};
    int tok[N + 1];
    opened("llama/bias", &p, &cfg, &dev, &m);
    tokens(N + 1, cfg.vocab, tok);
    real *logits[2] = {xcalloc((size_t)cfg.vocab, sizeof(real)), xcalloc((size_t)cfg.vocab, sizeof(real))};
    cr_assert(session_open(&s, &m, (SessionOpts){.nseq = 2, .max_tokens = N + 1, .document = -1}, &e));
    for (int ends = 0; ends < 2; ends++) { /* sequence 1 continues from the rows that 0 gives up */
        session_reset(&s, 0);
        cr_assert(session_extend(&s, 1, &(Feed){0, N, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
        session_fork(&s, 0, 1);
        const int pages = kv_pages(kv_slot(&s.cache, 0));
        if (ends) cr_assert(session_prompt_ends(&s, 0, &e), "%s", e.msg);
        cr_assert(kv_pages(kv_slot(&s.cache, 0)) <= pages + 2, "%d pages, %d before", kv_pages(kv_slot(&s.cache, 0)),
                  pages); /* of 0's two lanes the pages that it wrote to are its own now */
        cr_assert(session_extend(&s, 1, &(Feed){1, 1, tok + N}, WANT_LAST, TENSOR(logits[ends], REAL, 1, cfg.vocab),
                                 &e),
                  "%s", e.msg);
    }
    CHECK_BYTES("logits", logits[1], logits[0], (size_t)cfg.vocab * sizeof(real));
    cr_assert(session_length(&s, 0) == N && !s.cache.replay);
    const Lanes *t = kv_lanes(kv_slot(&s.cache, 0));
    for (int h = 0; h < t->s.lanes; h++) cr_assert_eq(t->hi[s.cache.spare * t->s.lanes + h], 0);
    free(logits[0]), free(logits[1]);
    session_close(&s);
    closed(&cfg, dev, &m);
}

/* A model with a table of positions has none for the second feeding of a long prompt: one line, and the sequence is
 * empty; the next one works. */
Test(replay, positions_that_a_model_lacks, .timeout = 60) {
    PolicyCfg p = policy(4, 1, 2048);
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
    Err e = {0};
    int tok[CONTEXT];
    opened("families/gpt2", &p, &cfg, &dev, &m);
    const int n = cfg.max_positions - 8;
    cr_assert(n > 6 && n <= CONTEXT, "%d positions", cfg.max_positions);
    tokens(n, cfg.vocab, tok);
    cr_assert(session_open(&s, &m, (SessionOpts){.nseq = 1, .max_tokens = n, .document = -1}, &e), "%s", e.msg);
    cr_assert(session_extend(&s, 1, &(Feed){0, n, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    cr_assert(!session_prompt_ends(&s, 0, &e) && e.status == EXIT_INPUT && strstr(e.msg, "positions"), "%s", e.msg);
    cr_assert(session_length(&s, 0) == 0 && !s.cache.replay);
    e = (Err){0};
    cr_assert(session_extend(&s, 1, &(Feed){0, 6, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    if (2 * 6 + 6 <= cfg.max_positions) cr_assert(session_prompt_ends(&s, 0, &e), "%s", e.msg);
    session_close(&s);
    closed(&cfg, dev, &m);
}

/* The same for a prompt of the policy's own, in the middle of a call: its sequences start anew. */
Test(replay, positions_that_a_prompt_lacks, .timeout = 60) {
    static const int prompt[] = {5, 3, 7, 1, 6};
    PolicyCfg p = parsed("infinipot:budget=4,window=1,every=8,catalyst=1", 5, prompt);
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
    Err e = {0};
    int tok[CONTEXT];
    opened("families/gpt2", &p, &cfg, &dev, &m);
    const int n = cfg.max_positions / 8 * 8;
    cr_assert(n + 5 > cfg.max_positions && n > 16 && n <= CONTEXT, "%d positions", cfg.max_positions);
    tokens(n, cfg.vocab, tok);
    cr_assert(session_open(&s, &m, (SessionOpts){.nseq = 1, .max_tokens = n, .document = -1}, &e), "%s", e.msg);
    cr_assert(session_extend(&s, 1, &(Feed){0, n - 1, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    cr_assert(!session_extend(&s, 1, &(Feed){0, 1, tok + n - 1}, WANT_LAST, ABSENT, &e) && e.status == EXIT_INPUT);
    cr_assert(strstr(e.msg, "positions") && session_length(&s, 0) == 0 && !s.cache.replay, "%s", e.msg);
    e = (Err){0};
    cr_assert(session_extend(&s, 1, &(Feed){0, 9, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    session_close(&s);
    closed(&cfg, dev, &m);
}

Test(replay, requests_are_words_of_the_tokenizer) {
    PolicyCfg p = policy(4, 1, 2048);
    const Tokenizer t = tokenizer_byte();
    Err e = {0};
    static const char *const want[REQUESTS] = {"\n\nRepeat the previous context exactly.",
                                               "\n\nRepeat the part of the previous context exactly, starting with",
                                               "\n"};
    cr_assert(replay_requests(&p, &t, &e), "%s", e.msg);
    for (int i = 0; i < REQUESTS; i++) {
        cr_assert_eq(p.request[i].n, (int)strlen(want[i]));
        for (int k = 0; want[i][k]; k++) cr_assert_eq(p.request[i].tok[k], want[i][k]);
    }
    cr_assert_eq(policy_replay_tokens(&p, 100), p.request[REQUEST_NEXT].n + REPLAY_NAMED + 1 + 100);
}
