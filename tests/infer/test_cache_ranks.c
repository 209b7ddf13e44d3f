/* test_cache_ranks.c: rows of a cache divided among ranks that are threads: the logits of one rank, the same bits on
 * all, rows and bytes by arithmetic, ranks that die or feed something else, and what is refused. */
#include "infer/saved.h"
#include "layers/cache/codec.h"
#include "ops/profile.h"
#include "tests/lib/speaker.h"
#include "train/comm/cache_ranks.h"
#include "train/comm/comm_threads.h"

enum { T = 64, PAGE = 5, CHUNK = 7, LONG = 36, SEQS = 3, MOST = 4, STORY = 290 };
static const double NEAR = REAL == F64 ? 1e-12 : 1e-5;

/* A model for inference with a session over it, of one rank (comm NULL) or several. */
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
    KvRanks ranks;
} Rank;
/* A thread each: those of all ranks would wait for each other's processors. */
static void rank_model(Rank *x, const Animal *a, ModelOpts opts) {
    Err e = {0};
    *x = (Rank){0};
    opts.poison = true;
    cr_assert(model_cfg_from_json(&x->cfg, a->json, strlen(a->json), a->name, &e) && device_open(&x->dev, "cpu", 1, &e),
              "%s: %s", a->name, e.msg);
    cr_assert(model_open(&x->m, x->dev, &x->cfg, opts, &e), "%s: %s", a->name, e.msg);
    model_init(&x->m, 7);
}
static bool rank_open(Rank *x, const Animal *a, const RowCodec *codec, Comm *c, bool prompts, SessionOpts o, Err *e) {
    rank_model(x, a, (ModelOpts){.codec = codec});
    if (c) x->ranks = cache_ranks(c, prompts), x->m.opts.ranks = &x->ranks;
    if (session_open(&x->s, &x->m, o, e)) return true;
    zoo_close(&x->cfg, &x->m, NULL, x->dev);
    return false;
}
static void rank_close(Rank *x) {
    session_close(&x->s);
    zoo_close(&x->cfg, &x->m, NULL, x->dev);
}
static SessionOpts plain_opts(int document, int chunk) {
    return (SessionOpts){
        .nseq = SEQS, .max_tokens = T, .chunk = chunk, .page_rows = PAGE, .document = document, .want_all = true};
}

/* ---- logits ------------------------------------------------------------------------------------------------------*/

/* Prompts of unequal lengths, one of them shorter than there are ranks, steps of a batch, forks, sequences that go back
 * and begin again. All logits go to `out`, one row after the other; returns how many, -1 after an error. */
typedef struct {
    Session *s;
    real *out;
    int n;
    bool ok;
    Err *e;
} Story;
static void feed(Story *t, int B, const Feed *f) {
    const int V = t->s->model->cfg.vocab;
    int rows = 0;
    for (int b = 0; b < B; b++) rows += f[b].n;
    t->ok =
        t->ok && session_extend(t->s, B, f, WANT_ALL, TENSOR(t->out + (size_t)t->n * (size_t)V, REAL, rows, V), t->e);
    t->n += rows;
}
#define FEED(t, B, ...) feed(t, B, (const Feed[]){__VA_ARGS__})
static void back(Story *t, int seq, int to) {
    if (session_length(t->s, seq) > to) session_rewind(t->s, seq, to);
}
static int story(Session *s, real *out, Err *e) {
    Story t = {s, out, 0, true, e};
    int tok[320];
    for (int i = 0; i < 320; i++) tok[i] = (int)(rng_uniform(11, (uint64_t)i) * s->model->cfg.vocab);
    FEED(&t, 1, {0, 17, tok});
    FEED(&t, 2, {1, 1, tok + 20}, {2, 2, tok + 22});
    for (int i = 0; i < 6; i++) FEED(&t, 3, {0, 1, tok + 30 + i}, {1, 1, tok + 40 + i}, {2, 1, tok + 50 + i});
    session_fork(s, 0, 1);
    FEED(&t, 3, {2, 9, tok + 60}, {0, 1, tok + 70}, {1, 8, tok + 71});
    back(&t, 1, 12);
    FEED(&t, 2, {1, 3, tok + 80}, {2, 1, tok + 84});
    back(&t, 0, 1);
    FEED(&t, 1, {0, 6, tok + 90});
    session_fork(s, 2, 0);
    session_reset(s, 2);
    FEED(&t, 3, {2, 2, tok + 100}, {0, 4, tok + 104}, {1, 1, tok + 110});
    for (int i = 0; i < 5; i++) FEED(&t, 3, {0, 1, tok + 120 + i}, {1, 1, tok + 130 + i}, {2, 1, tok + 140 + i});
    FEED(&t, 1, {1, 19, tok + 150});
    FEED(&t, 3, {2, 35, tok + 170}, {0, 30, tok + 210}, {1, 20, tok + 240}); /* passes that `prompts` divides */
    session_reset(s, 0);
    FEED(&t, 1, {0, 40, tok + 260});
    cr_assert(t.n <= STORY, "%d rows", t.n);
    return t.ok ? t.n : -1;
}

typedef struct {
    const Animal *animal;
    const RowCodec *codec;
    int document;
    bool prompts;
    int rows[MOST];
    size_t sent[MOST];
    real *out[MOST];
} Told;
static bool tell(Comm *c, void *ctx, Err *e) {
    Told *t = ctx;
    Rank x;
    if (!rank_open(&x, t->animal, t->codec, c, t->prompts, plain_opts(t->document, t->prompts ? LONG : CHUNK), e))
        return false;
    t->rows[c->rank] = story(&x.s, t->out[c->rank], e);
    rank_close(&x);
    t->sent[c->rank] = c->sent;
    return t->rows[c->rank] >= 0;
}
/* Compares W ranks with one. Returns the worst difference, in parts of the largest logit. */
static double same_story(const Animal *a, const RowCodec *codec, int document, int W, bool prompts) {
    Rank one;
    Err e[MOST] = {{0}};
    Told t = {.animal = a, .codec = codec, .document = document, .prompts = prompts};
    cr_assert(rank_open(&one, a, codec, NULL, false, plain_opts(document, CHUNK), e), "%s: %s", a->name, e->msg);
    const size_t V = (size_t)one.cfg.vocab, most = STORY * V;
    real *want = xcalloc(most, sizeof *want);
    for (int r = 0; r < W; r++) t.out[r] = xcalloc(most, sizeof(real));
    const int n = story(&one.s, want, e);
    cr_assert(n > 200, "%s: %d rows, %s", a->name, n, e->msg);
    const bool ok = comm_threads_run(W, 60, NULL, 0, tell, &t, e);
    for (int r = 0; r < W && !ok; r++) cr_assert(!e[r].status, "%s, %d ranks, rank %d: %s", a->name, W, r, e[r].msg);
    double worst = 0, top = 0;
    size_t at = 0;
    for (size_t i = 0; i < (size_t)n * V; i++) {
        const double d = fabs((double)(t.out[0][i] - want[i]));
        top = fmax(top, fabs((double)want[i]));
        if (!(d <= worst)) worst = d, at = i;
    }
    cr_assert(worst <= NEAR * top, "%s, %d ranks: row %zu, token %zu: %g, one rank has %g (largest %g)", a->name, W,
              at / V, at % V, (double)t.out[0][at], (double)want[at], top);
    for (int r = 1; r < W; r++) {
        char what[120];
        snprintf(what, sizeof what, "%s, rank %d of %d", a->name, r, W);
        cr_assert(t.rows[r] == n && t.sent[r] == t.sent[0] && t.sent[r] > 0, "%s: %d rows, %zu bytes", what, t.rows[r],
                  t.sent[r]);
        CHECK_BYTES(what, t.out[r], t.out[0], (size_t)n * V * sizeof(real));
    }
    for (int r = 0; r < W; r++) free(t.out[r]);
    free(want);
    rank_close(&one);
    return worst / top;
}

/* Whether rows of this model are divided, by its settings: some layer keeps all of its own. */
static bool divides(const Animal *a, bool *evicts, bool *state) {
    Rank x;
    bool any = false;
    rank_model(&x, a, (ModelOpts){0});
    *evicts = *state = false;
    for (int l = 0; l < x.m.L; l++) {
        const Layer *y = &x.m.layer[l];
        if (!y->owner) continue;
        *evicts |= y->rows.evicts;
        *state |= y->rows.state > 0;
        any |= y->rows.lanes && !y->rows.window;
    }
    zoo_close(&x.cfg, &x.m, NULL, x.dev);
    return any;
}
static bool opens(Comm *c, void *ctx, Err *e) {
    const Told *t = ctx;
    Rank x;
    if (!rank_open(&x, t->animal, t->codec, c, t->prompts, plain_opts(-1, CHUNK), e)) return false;
    rank_close(&x);
    return true;
}
/* EXIT_INPUT on both ranks. */
static void refuses(const Animal *a, bool prompts, const char *part) {
    Told t = {.animal = a, .prompts = prompts};
    Err e[2] = {{0}};
    cr_assert(!comm_threads_run(2, 20, NULL, 0, opens, &t, e), "%s was divided", a->name);
    for (int r = 0; r < 2; r++)
        cr_assert(e[r].status == EXIT_INPUT && strstr(e[r].msg, part), "%s: %s", a->name, e[r].msg);
}
static void every_model(bool prompts) {
    int told = 0, refused = 0;
    double worst = 0;
    const char *who = "";
    for (int i = 0; i < zoo_count(); i++) {
        bool evicts, state;
        const bool any = divides(&zoo[i], &evicts, &state);
        if (!any || evicts || (state && prompts)) {
            refuses(&zoo[i], prompts,
                    evicts             ? "merge or evict rows (dmc, dms)"
                    : state && prompts ? "have a state (kda, mamba2, ...)"
                                       : "no layer of this model keeps all rows");
            refused++;
            continue;
        }
        const double d = same_story(&zoo[i], NULL, -1, 2 + i % 3, prompts);
        if (!(d <= worst)) worst = d, who = zoo[i].name;
        told++;
    }
    cr_assert(told > 40 && refused > 20, "%d told, %d refused", told, refused);
    cr_log_info("%d models, worst %g (%s); %d refused", told, worst, who, refused);
}
Test(cache_ranks, every_model_that_keeps_rows, .timeout = 300) { every_model(false); }
Test(cache_ranks, prompts_of_every_model, .timeout = 300) { every_model(true); }
static const char *const plain[] = {"mha", "gqa", "mqa", "mla", "publisher and readers (YOCO)"};
Test(cache_ranks, two_three_and_four, .timeout = 120) {
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        for (int W = 2; W <= 4; W++)
            for (int prompts = 0; prompts < 2; prompts++) same_story(&zoo[zoo_find(plain[i])], NULL, -1, W, prompts);
}
/* A text of several documents: what a rank has is a matter of positions in them. */
Test(cache_ranks, documents, .timeout = 120) {
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        for (int prompts = 0; prompts < 2; prompts++)
            same_story(&zoo[zoo_find(plain[i])], NULL, 3, 2 + (int)i % 3, prompts);
}

/* One layer, so that what is stored has the same bits on one rank: of a second one roundings could differ. */
#define LONE(mixer)                                                                                     \
    "{\"d_model\":64,\"vocab\":11,\"max_positions\":64,\"init_std\":0.2,\"ffn\":[{\"kind\":\"swiglu\"," \
    "\"hidden\":10}],\"layers\":1,\"tied\":true,\"kinds\":{\"a\":{" mixer "}},\"pattern\":[\"a\"]}"
static const Animal lone[] = {
    {"a layer of gqa", LONE("\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":64")},
    {"a layer of mla", LONE("\"mixer\":\"mla\",\"heads\":3,\"kv_rank\":56,\"nope_dim\":4,\"rope_dim\":8,\"v_dim\":4")}};
Test(cache_ranks, codecs, .timeout = 120) {
    static const char *const names[] = {"bf16", "int8", "fp8", "int4", "int2:group=64"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (int a = 0; a < 2; a++) {
            RowCodec codec;
            Err e = {0};
            cr_assert(codec_parse(names[k], &codec, &e), "%s", e.msg);
            same_story(&lone[a], &codec, -1, 3, k % 2);
        }
}

/* ---- rows and bytes ----------------------------------------------------------------------------------------------*/

/* Layers a, a, w, r: the last reads the rows of the second with a window of its own; w keeps a window. */
static const Animal four = {
    "four layers",
    "{\"d_model\":12,\"vocab\":11,\"max_positions\":8192,\"init_std\":0.4,\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}]"
    ","
    "\"layers\":4,\"tied\":true,\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":6},\"w\":{"
    "\"mixer\":\"gqa\",\"heads\":4,\"kv_heads\":2,\"head_dim\":6,\"window\":9},\"r\":{\"mixer\":\"gqa\",\"heads\":6,"
    "\"kv_heads\":2,\"head_dim\":6,\"window\":4}},\"pattern\":[\"a\",\"a\",\"w\",\"r\"],\"kv_from\":{\"3\":1}}"};
typedef struct {
    bool prompts;
    size_t sent[MOST][3], bytes[MOST][2], memory[MOST];
    int rows[MOST][T], window[MOST][T];
} Counted;
static bool count(Comm *c, void *ctx, Err *e) {
    Counted *n = ctx;
    Rank x;
    SessionOpts o = plain_opts(-1, CHUNK);
    o.max_tokens = 8192;
    if (!rank_open(&x, &four, NULL, c, n->prompts, o, e)) return false;
    const int r = c->rank;
    int tok[T];
    real logits[11];
    for (int i = 0; i < T; i++) tok[i] = i % 11;
    bool ok = session_extend(&x.s, 1, &(Feed){1, 17, tok}, WANT_LAST, TENSOR(logits, REAL, 1, 11), e);
    n->sent[r][0] = c->sent;
    ok = ok && session_extend(&x.s, 2, (Feed[]){{0, 2, tok}, {1, 1, tok}}, WANT_LAST, ABSENT, e);
    n->sent[r][1] = c->sent;
    for (int i = 0; ok && i < T; i++) {
        n->rows[r][i] = kv_rows(kv_slot(&x.s.cache, 1), 2, 1), n->window[r][i] = kv_rows(kv_slot(&x.s.cache, 2), 2, 0);
        ok = session_extend(&x.s, 1, &(Feed){2, 1, tok + i}, WANT_LAST, TENSOR(logits, REAL, 1, 11), e);
    }
    n->sent[r][2] = c->sent;
    n->bytes[r][0] = session_bytes(&x.s, 2), n->bytes[r][1] = session_resident(&x.s);
    n->memory[r] = session_disk(&x.s).memory;
    rank_close(&x);
    return ok;
}
/* Bytes that a rank sends to gather parts of n reals, with the 8 of what it was fed. */
static size_t gather(int W, int n) { return (size_t)(W - 1) * ((size_t)n * sizeof(real) + 8); }
/* Of a pass with a history: `all` rows in the layers up to the last that stores, `last` of them in the others. */
static size_t gathered(int W, int all, int last) {
    const int heads[] = {4, 4, 6}; /* of the layers that read divided rows; the window's rows are whole */
    size_t n = 0;
    for (int i = 0; i < 3; i++) {
        const int M = i < 2 ? all : last;
        if (M) n += gather(W, M * heads[i] * (6 + 1));
    }
    return n;
}
Test(cache_ranks, rows_and_bytes) {
    for (int W = 2; W <= MOST; W++) {
        Counted *n = xcalloc(1, sizeof *n);
        Err e[MOST] = {{0}};
        cr_assert(comm_threads_run(W, 60, NULL, 0, count, n, e), "%s", e[0].msg);
        /* passes of 7, 7 and 3 rows, of which the first has no history; then rows of a sequence that begins and a step:
         * no logits, so the last layer has no row; then steps, of which the first begins a sequence */
        const size_t prompt = gathered(W, 7, 0) + gathered(W, 3, 1), mixed = prompt + gathered(W, 3, 0),
                     steps = mixed + (T - 1) * gathered(W, 1, 1);
        size_t rows = 0;
        for (int r = 0; r < W; r++) {
            cr_assert(n->sent[r][0] == prompt && n->sent[r][1] == mixed && n->sent[r][2] == steps,
                      "%d ranks: %zu, %zu and %zu bytes; expected %zu, %zu and %zu", W, n->sent[r][0], n->sent[r][1],
                      n->sent[r][2], prompt, mixed, steps);
            for (int i = 0; i < T; i++) {
                int held = 0;
                for (int p = 0; p < i; p++) held += p % W == r;
                cr_assert(n->rows[r][i] == held && n->window[r][i] == imin(i, 8),
                          "rank %d of %d, %d tokens: %d rows, %d", r, W, i, n->rows[r][i], n->window[r][i]);
            }
            int held = 0, all[3] = {2, 18, T};
            for (int q = 0; q < 3; q++)
                for (int p = 0; p < all[q]; p++) held += p % W == r;
            const size_t row = 2 * 2 * 6 * sizeof(real), /* lanes, key and value, width */
                seen = 2 * (size_t)held * row + (2 + 8 + 8) * row;
            cr_assert(n->bytes[r][1] == seen, "rank %d of %d: %zu bytes, expected %zu", r, W, n->bytes[r][1], seen);
            rows += n->bytes[r][0] - 8 * row;
            /* Memory: of 8192 rows in 128 pages of a lane each, about 1/W, and a few pages for those of a pass. */
            const size_t page = (size_t)PAGE * row / 2;
            cr_assert(n->memory[r] < (size_t)SEQS * 2 * 2 * (8192 / PAGE / (size_t)W + 8) * (page * 5 / 4) + (64 << 10),
                      "rank %d of %d: %zu bytes of memory", r, W, n->memory[r]);
        }
        cr_assert(rows == 2 * T * 2 * 2 * 6 * sizeof(real), "all ranks together: %zu bytes of rows", rows);
        free(n);
    }
}

/* FLOPs of the matrices of one layer for a row: queries, keys, values, output, feed-forward part. */
static const double MATRICES = 2 * (12 * 24 + 2 * 12 * 12 + 24 * 12 + 3 * 12 * 10);
/* The borders by the rule, of rows that see so many of the pass: `at` (W+1). Returns the rows of the largest part. */
static int borders(int W, int N, const int *sees, int *at) {
    double all[2 * LONG] = {0};
    int most = 0;
    for (int i = 0; i < N; i++) /* 3 layers, attention of 4 heads of 6; one has a window of 9 */
        all[i + 1] = all[i] + 3 * MATRICES + 4 * 4 * 6 * (2 * sees[i] + imin(sees[i], 9));
    for (int w = 0; w <= W; w++) {
        at[w] = 0;
        while (all[at[w]] < all[N] / W * w * (1 - 1e-12)) at[w]++;
        if (w) most = imax(most, at[w] - at[w - 1]);
    }
    return most;
}
typedef struct {
    size_t sent[MOST][3];
    int rows[MOST], at[MOST][MOST + 1];
    double flops[MOST]; /* of the matrix products of the first pass */
} Divided;
static double flops_of(Profile *p) {
    Share share[PROFILE_MAX];
    double n = 0;
    for (int i = profile_read(p, share); i-- > 0;) n += share[i].flops;
    return n;
}
static bool count_prompts(Comm *c, void *ctx, Err *e) {
    Divided *n = ctx;
    Rank x;
    int tok[2 * T];
    real logits[2 * 11];
    for (int i = 0; i < 2 * T; i++) tok[i] = i % 11;
    SessionOpts o = plain_opts(-1, LONG);
    o.max_tokens = 2 * T;
    if (!rank_open(&x, &four, NULL, c, true, o, e)) return false;
    Profile *p = profile_begin(x.dev);
    bool ok = session_extend(&x.s, 1, &(Feed){1, LONG, tok}, WANT_LAST, ABSENT, e);
    n->sent[c->rank][0] = c->sent;
    n->flops[c->rank] = flops_of(p);
    profile_end(p);
    memcpy(n->at[c->rank], x.s.cache.ranks->at, (size_t)(c->world + 1) * sizeof(int));
    ok = ok && session_extend(&x.s, 1, &(Feed){1, 14, tok}, WANT_LAST, TENSOR(logits, REAL, 1, 11), e);
    n->sent[c->rank][1] = c->sent;
    ok = ok &&
         session_extend(&x.s, 2, (Feed[]){{0, 2, tok}, {1, LONG - 2, tok}}, WANT_LAST, TENSOR(logits, REAL, 2, 11), e);
    n->sent[c->rank][2] = c->sent;
    n->rows[c->rank] = kv_rows(kv_slot(&x.s.cache, 1), 1, 1);
    rank_close(&x);
    return ok;
}
/* A prompt's pass of 36 rows, without a history, then one that is too short to be divided, then one of two sequences
 * with a history and the logits of the rows 1 and 35. */
Test(cache_ranks, bytes_of_a_prompt) {
    for (int W = 2; W <= MOST; W++) {
        Divided n = {0};
        Err e[MOST] = {{0}};
        int sees[LONG], at[MOST + 1], most;
        cr_assert(comm_threads_run(W, 60, NULL, 0, count_prompts, &n, e), "%s", e[0].msg);
        for (int i = 0; i < LONG; i++) sees[i] = i + 1;
        most = borders(W, LONG, sees, at);
        cr_assert(most > LONG / W && at[1] == most && at[W] == LONG, "%d ranks: the first part has %d rows", W, at[1]);
        for (int r = 0; r < W; r++) CHECK_BYTES("borders", n.at[r], at, (size_t)(W + 1) * sizeof(int));
        const size_t first = 3 * 2 * gather(W, most * 2 * 6), second = first + (W > 1 ? gathered(W, 14, 1) : 0);
        for (int i = 0; i < LONG; i++) sees[i] = i < 2 ? i + 1 : i - 1;
        most = borders(W, LONG, sees, at);
        const size_t third = second + 3 * 2 * gather(W, most * 2 * 6) + 2 * gather(W, most * 4 * 6) +
                             2 * gather(W, LONG * 4 * 7) + gather(W, 6 * 6) + gather(W, 2 * 6 * 7) + gather(W, 12);
        for (int r = 0; r < W; r++) {
            int held = 0;
            for (int p = 0; p < LONG + 14 + LONG - 2; p++) held += p % W == r;
            cr_assert(n.sent[r][0] == first && n.sent[r][1] == second && n.sent[r][2] == third,
                      "%d ranks: %zu, %zu and %zu bytes; expected %zu, %zu and %zu", W, n.sent[r][0], n.sent[r][1],
                      n.sent[r][2], first, second, third);
            /* each rank computes its own rows, and no other; no logits are wanted, so the last layer makes keys and
             * values alone */
            cr_assert(n.flops[r] == (n.at[r][r + 1] - n.at[r][r]) * (2 * MATRICES + 2.0 * 2 * 12 * 12),
                      "rank %d of %d: %g FLOPs", r, W, n.flops[r]);
            cr_assert(n.rows[r] == held, "rank %d of %d: %d rows, expected %d", r, W, n.rows[r], held);
        }
    }
}
/* No part costs more than its share by more than its last row; every rank has a row. */
Test(cache_ranks, parts_cost_alike) {
    enum { N = 500 };
    for (int W = 2; W <= 40; W++)
        for (int steep = 0; steep < 4; steep++) {
            RowRanks *k = row_ranks_open(&(KvRanks){.world = W, .prompts = true}, N);
            double most = 0;
            for (int i = 0; i < N; i++) {
                const double c = steep == 3 ? (i == 7 ? 1e9 : 1) : 1 + steep * steep * i;
                k->cost[i + 1] = k->cost[i] + c;
                most = fmax(most, c);
            }
            row_ranks_divide(k, N);
            cr_assert(k->at[0] == 0 && k->at[W] == N);
            for (int w = 0; w < W; w++) {
                const double part = k->cost[k->at[w + 1]] - k->cost[k->at[w]];
                cr_assert(k->at[w + 1] > k->at[w] && part <= k->cost[N] / W + most,
                          "part %d of %d: rows %d to %d cost %g", w, W, k->at[w], k->at[w + 1] - 1, part);
                if (steep == 1 || steep == 2)
                    cr_assert(!w || k->at[w + 1] - k->at[w] <= k->at[w] - k->at[w - 1] + 1, "part %d of %d is longer",
                              w, W);
            }
            row_ranks_close(k);
        }
}

/* ---- failures ----------------------------------------------------------------------------------------------------*/

typedef struct {
    int planted; /* rank that feeds another token, -1: none */
    bool prompts;
    Err second[MOST];
    int left[MOST];
} Fails;
static bool fails(Comm *c, void *ctx, Err *e) {
    Fails *f = ctx;
    Rank x;
    int tok[T];
    for (int i = 0; i < T; i++) tok[i] = i % 11;
    if (!rank_open(&x, &zoo[zoo_find("gqa")], NULL, c, f->prompts, plain_opts(-1, LONG), e)) return false;
    if (f->prompts && c->rank == f->planted) tok[30] = 0;
    bool ok = session_extend(&x.s, 1, &(Feed){0, f->prompts ? LONG : 7, tok}, WANT_LAST, ABSENT, e);
    for (int i = 7; ok && i < 40 && !f->prompts; i++) {
        if (i == 20 && c->rank == f->planted) tok[i]++;
        ok = session_extend(&x.s, 1, &(Feed){0, 1, tok + i}, WANT_LAST, ABSENT, e);
    }
    f->left[c->rank] = session_length(&x.s, 0);
    if (!ok) session_extend(&x.s, 1, &(Feed){0, 1, tok}, WANT_LAST, ABSENT, &f->second[c->rank]);
    rank_close(&x);
    return ok;
}
Test(cache_ranks, a_rank_that_dies_ends_the_others, .timeout = 60) {
    Fails f = {.planted = -1};
    Err e[3] = {{0}};
    const CommFault fault = {.kind = FAULT_DIE, .rank = 1, .call = 9};
    cr_assert(!comm_threads_run(3, 1, &fault, 1, fails, &f, e));
    for (int r = 0; r < 3; r += 2) {
        cr_assert(e[r].status == EXIT_RUNTIME && strstr(e[r].msg, "\"partial attention\"") &&
                      strstr(e[r].msg, "rank 1"),
                  "rank %d: %s", r, e[r].msg);
        cr_assert(f.left[r] == 0 && f.second[r].status == EXIT_RUNTIME && !strcmp(f.second[r].msg, e[r].msg),
                  "rank %d: %d tokens left; then '%s'", r, f.left[r], f.second[r].msg);
    }
}
Test(cache_ranks, other_tokens_are_found, .timeout = 60) {
    for (int i = 0; i < 6; i++) {
        const int planted = i / 2;
        Fails f = {.planted = planted, .prompts = i % 2};
        Err e[3] = {{0}};
        char part[80];
        snprintf(part, sizeof part, "rank %d was fed other tokens than rank 0", planted ? planted : 1);
        cr_assert(!comm_threads_run(3, 20, NULL, 0, fails, &f, e));
        for (int r = 0; r < 3; r++)
            cr_assert(e[r].status == EXIT_RUNTIME && strstr(e[r].msg, part) && f.left[r] == 0, "rank %d: %s", r,
                      e[r].msg);
    }
}

/* ---- refusals ----------------------------------------------------------------------------------------------------*/

static bool never(void *ctx, const char *name, real *buf, size_t count, Err *e) {
    (void)ctx, (void)name, (void)buf, (void)count;
    return err_runtime(e, "never called");
}
static const KvRanks two = {.world = 2, .gather = never};
Test(cache_ranks, what_does_not_compose_is_refused) {
    static const struct {
        const char *policy, *codec, *part;
        bool tier;
    } how[] = {{"h2o:budget=0.5,window=3,every=4", NULL, "a policy chooses among all rows", false},
               {"quest:reads=6,recent=4,page=3", NULL, "a policy chooses among all rows", false},
               {NULL, "kivi4", "--cache-dtype kivi4 stores rows of neighbours in blocks", false},
               {NULL, NULL, "leave out it or --cache-memory", true}};
    const KvTier tier = {.memory = (size_t)1 << 40, .dir = "."};
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        PolicyCfg policy = {0};
        RowCodec codec;
        ModelCfg cfg;
        Model m;
        Device *dev;
        Session s;
        Err e = {0};
        if (how[i].policy) cr_assert(policy_parse(how[i].policy, &policy, &e), "%s", e.msg);
        if (how[i].codec) cr_assert(codec_parse(how[i].codec, &codec, &e), "%s", e.msg);
        zoo_open(&lone[0], &cfg, &m, NULL, &dev,
                 (ModelOpts){.codec = how[i].codec ? &codec : NULL,
                             .policy = how[i].policy ? &policy : NULL,
                             .tier = how[i].tier ? &tier : NULL,
                             .ranks = &two});
        cr_assert(!session_open(&s, &m, plain_opts(-1, CHUNK), &e) && e.status == EXIT_INPUT &&
                      strstr(e.msg, how[i].part),
                  "%s", e.msg);
        zoo_close(&cfg, &m, NULL, dev);
    }
}
Test(cache_ranks, a_part_of_the_rows_is_not_saved) {
    Rank x;
    KvParts parts;
    Err e = {0};
    rank_model(&x, &lone[0], (ModelOpts){.ranks = &two});
    cr_assert(session_open(&x.s, &x.m, plain_opts(-1, CHUNK), &e), "%s", e.msg);
    cr_assert(session_extend(&x.s, 1, &(Feed){0, 5, (int[]){1, 2, 3, 4, 5}}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    cr_assert(!kv_save(&x.s.cache, 0, &parts, &e) && e.status == EXIT_INPUT, "%s", e.msg);
    rank_close(&x);
}
