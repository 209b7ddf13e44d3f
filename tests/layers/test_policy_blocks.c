/* test_policy_blocks.c: policies of the cache over codecs that store rows together: what test_policy_model.c asks of
 * every policy, over texts of several blocks; what blocks of rows that stay hold, and their bytes. */
#include "infer/session.h"
#include "layers/cache/codec.h"
#include "model/cost.h"
#include "tests/lib/check.h"
#include "tests/lib/zoo.h"

enum { T = 290, PROMPT = 201, BLOCK = 64, LANES_MOST = 24, GONE = -1 };
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
    PolicyCfg p;
} ModelCase;
/* Those that choose once where a prompt ends, those that choose again and again, those that select what is read. */
static const char *const once[] = {"h2o:budget=0.3,window=9,sinks=2,every=0",
                                   "snapkv:budget=0.4,window=8,every=0,pool=3",
                                   "knorm:budget=0.35,window=5,sinks=3,every=0",
                                   "random:budget=0.64,window=5,sinks=3,every=0",
                                   "vatp:budget=0.3,window=9,sinks=2,every=0",
                                   "expected:budget=0.4,window=3,sinks=4,every=0,queries=16",
                                   "qhitter:budget=0.3,every=0",
                                   "snapkv:budget=0.4,window=8,every=0,pool=3+pyramidkv:share=3+adakv",
                                   "h2o:budget=0.7,window=9,every=0+quest:reads=100,recent=64,page=64"};
static const char *const often[] = {"h2o:budget=0.3,window=9,sinks=2,every=64",
                                    "knorm:budget=0.4,window=8,every=50",
                                    "window:window=40,sinks=3,every=7",
                                    "random:budget=0.3,window=8,every=100",
                                    "tova:budget=0.3,every=33",
                                    "morphkv:budget=0.4,window=4,every=64+adakv",
                                    "knorm:budget=0.6,window=8,every=50+hybrid:reads=90,recent=64,page=64"};
static const char *const reads[] = {"quest:reads=80,recent=64,page=64", "hybrid:reads=0.4,recent=64,page=64",
                                    "shadowkv:reads=70,recent=64,page=64,uneven=1",
                                    "infinigen:reads=100,recent=64,page=64",
                                    "tailorkv:reads=90,recent=64,page=64,coded=0"};
#define COUNT(x) ((int)(sizeof(x) / sizeof *(x)))
static const char *policy_text(int k) {
    if (k < COUNT(once)) return once[k];
    k -= COUNT(once);
    if (k < COUNT(often)) return often[k];
    k -= COUNT(often);
    return k < COUNT(reads) ? reads[k] : NULL;
}
static const RowCodec *codec_of(int k) { return (const RowCodec *[]){&codec_kivi2, &codec_kivi4, &codec_kivi3}[k % 3]; }
static bool open_case(ModelCase *c, const Animal *a, const char *spec, const RowCodec *codec) {
    Err e = {0};
    *c = (ModelCase){.dev = NULL};
    cr_assert(policy_parse(spec, &c->p, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&c->cfg, a->json, strlen(a->json), a->name, &e), "%s", e.msg);
    cr_assert(device_open(&c->dev, "cpu", 1, &e), "%s", e.msg);
    if (!model_open(&c->m, c->dev, &c->cfg, (ModelOpts){.policy = &c->p, .codec = codec, .poison = true}, &e)) {
        cr_assert(e.status == EXIT_INPUT && (strstr(e.msg, "no layer of this model") || strstr(e.msg, "one by one") ||
                                             strstr(e.msg, "it needs queries")),
                  "%s", e.msg);
        device_close(c->dev), model_cfg_free(&c->cfg);
        return false;
    }
    model_init(&c->m, 7);
    if (present(c->m.w.positions) && c->cfg.max_positions < T) {
        zoo_close(&c->cfg, &c->m, NULL, c->dev);
        return false;
    }
    return true;
}
static void close_case(ModelCase *c) { zoo_close(&c->cfg, &c->m, NULL, c->dev); }
static void tokens(int *tok, int V, uint64_t seed) {
    for (int i = 0; i < T; i++) tok[i] = (int)(rng_uniform(rng_mix(seed, 5), (uint64_t)i) * V);
}
static void open_session(Session *s, ModelCase *c, int chunk) {
    Err e = {0};
    SessionOpts o = {.nseq = 2, .max_tokens = T, .chunk = chunk, .document = -1, .want_all = true};
    cr_assert(session_open(s, &c->m, o, &e), "%s", e.msg);
}
static void feed(Session *s, int seq, int n, const int *tok, real *logits) {
    Err e = {0};
    cr_assert(session_extend(s, 1, &(Feed){seq, n, tok}, WANT_ALL, TENSOR(logits, REAL, n, s->model->cfg.vocab), &e),
              "%s", e.msg);
}
static void prompt_ends(Session *s, int seq) {
    Err e = {0};
    cr_assert(session_prompt_ends(s, seq, &e), "%s", e.msg);
}
/* What a sequence shows: positions of all lanes of all slots one after the other. */
typedef struct {
    real *logits; /* (T,V) */
    bool set[LANES_MOST][T];
    int lanes;
    size_t bytes;
} Result;
static int page_at(const Lanes *t, int lane, int row) {
    return t->table[lane * t->maxpages + row / t->P % t->maxpages];
}
static void shown(const Session *s, int seq, Result *r) {
    memset(r->set, 0, sizeof r->set);
    r->lanes = 0;
    for (int l = 0; l < s->model->L; l++) {
        const Lanes *t = kv_lanes(kv_slot(&s->cache, l));
        for (int h = 0; h < t->s.lanes; h++, r->lanes++)
            for (int row = t->lo[seq * t->s.lanes + h]; row < t->hi[seq * t->s.lanes + h]; row++) {
                const int pos = t->pos[page_at(t, seq * t->s.lanes + h, row) * t->P + row % t->P];
                cr_assert(r->lanes < LANES_MOST && pos >= GONE && pos < T);
                if (pos == GONE) continue;
                cr_assert(!r->set[r->lanes][pos], "position %d twice", pos);
                r->set[r->lanes][pos] = true;
            }
    }
}
static void result_of(Result *r, const Session *s, int seq) {
    shown(s, seq, r);
    r->bytes = session_bytes(s, seq);
}
static Result *result_new(int V) {
    Result *r = xcalloc(1, sizeof *r);
    r->logits = xcalloc((size_t)(T * V), sizeof(real));
    return r;
}
static void result_free(Result *r) { free(r->logits), free(r); }
static double distance(const real *a, const real *b, size_t n) {
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) off += pow((double)a[i] - (double)b[i], 2), size += pow((double)b[i], 2);
    return sqrt(off / size);
}
/* The prompt in pieces, by passes of `chunk` rows; then `step` tokens at a time. */
static void pieces(ModelCase *c, const int *tok, int piece, int chunk, int step, Result *r) {
    Session s;
    open_session(&s, c, chunk);
    for (int at = 0, n; at < T; at += n) {
        n = at < PROMPT ? imin(piece, PROMPT - at) : imin(step, T - at);
        feed(&s, 0, n, tok + at, r->logits + at * c->cfg.vocab);
        if (session_length(&s, 0) == PROMPT) prompt_ends(&s, 0);
    }
    result_of(r, &s, 0);
    session_close(&s);
}
/* A prefix that two sequences share, of which one continues; a fork while tokens are generated. */
static void forks(ModelCase *c, const int *tok, Result *r) {
    enum { SHARED = 100, LATER = PROMPT + 41 };
    Session s;
    const int V = c->cfg.vocab;
    int other[T];
    tokens(other, V, 99);
    open_session(&s, c, 64);
    feed(&s, 0, SHARED, tok, r->logits);
    session_fork(&s, 0, 1);
    feed(&s, 0, 60, other, r->logits + SHARED * V);
    prompt_ends(&s, 0); /* rows of shared blocks leave the other sequence alone */
    feed(&s, 1, PROMPT - SHARED, tok + SHARED, r->logits + SHARED * V);
    prompt_ends(&s, 1);
    feed(&s, 1, LATER - PROMPT, tok + PROMPT, r->logits + PROMPT * V);
    session_fork(&s, 1, 0);
    feed(&s, 1, 44, other, r->logits + LATER * V);
    feed(&s, 0, T - LATER, tok + LATER, r->logits + LATER * V);
    result_of(r, &s, 0);
    session_close(&s);
}
static bool rounding_turns(const char *json) { return strstr(json, "\"moe\"") || strstr(json, "\"rope\":\"none\""); }

/* A budget that is never reached: the passes of the codec alone, bit for bit. */
Test(policy_blocks, a_full_budget_is_the_codec_alone, .timeout = 300) {
    static const char *const full[] = {"h2o:budget=1000,every=0",
                                       "h2o:budget=1000,every=64",
                                       "knorm:budget=1000,every=7",
                                       "snapkv:budget=1000,every=0+adakv",
                                       "tova:budget=1000,every=100",
                                       "qhitter:budget=1000,every=0",
                                       "fastgen:share=1,every=0",
                                       "quest:reads=1000,recent=64,page=64",
                                       "infinigen:reads=1000,below=1e9,recent=64,page=64",
                                       "window:window=1000,every=5+shadowkv:reads=1000,recent=64,page=64"};
    int tried = 0;
    for (int k = 0; k < COUNT(full); k++)
        for (int i = k % 4; i < zoo_count(); i += 4) {
            ModelCase c, plain;
            int tok[T];
            if (!open_case(&c, &zoo[i], full[k], codec_of(i))) continue;
            cr_assert(open_case(&plain, &zoo[i], "none", codec_of(i)));
            const int V = c.cfg.vocab, cut = policy_cut(&c.p);
            Result *a = result_new(V), *b = result_new(V);
            tokens(tok, V, (uint64_t)i);
            pieces(&c, tok, T, 64, 1, a);
            pieces(&plain, tok, cut ? cut : T, 64, 1, b);
            CHECK_BYTES(full[k], a->logits, b->logits, (size_t)(T * V) * sizeof(real));
            for (int l = 0; l < c.m.L; l++)
                if (c.m.layer[l].owner)
                    b->bytes +=
                        T * policy_row_bytes(&c.p, &c.m.layer[l].rows) + policy_state_bytes(&c.p, &c.m.layer[l].rows);
            cr_assert(a->bytes == b->bytes && !memcmp(a->set, b->set, sizeof a->set), "%s, %s: %zu and %zu bytes",
                      zoo[i].name, full[k], a->bytes, b->bytes);
            tried++;
            result_free(a), result_free(b);
            close_case(&c), close_case(&plain);
        }
    cr_assert(tried > 40, "%d models", tried);
}

/* What is kept, and what it looks like, is a function of the tokens and of where the prompt ends. In f32 a rounding
 * turns a code or a choice: there rows are compared under policies that do not look at them. */
Test(policy_blocks, cuts_and_forks_change_nothing, .timeout = 600) {
    int tried = 0;
    double worst = 0;
    for (int k = 0; policy_text(k); k++)
        for (int i = k % 5; i < zoo_count(); i += REAL == F64 ? 10 : 15) {
            const bool blind = strstr(policy_text(k), "random") == policy_text(k) ||
                               strstr(policy_text(k), "window") == policy_text(k);
            ModelCase c, plain;
            if ((REAL == F32 && !blind) || rounding_turns(zoo[i].json)) continue;
            if (!open_case(&c, &zoo[i], policy_text(k), codec_of(k))) continue;
            const int V = c.cfg.vocab;
            const size_t n = (size_t)(T * V);
            Result *want = result_new(V), *got = result_new(V);
            int tok[T];
            tokens(tok, V, (uint64_t)i);
            pieces(&c, tok, T, T, 1, want);
            cr_assert(open_case(&plain, &zoo[i], "none", codec_of(k)));
            pieces(&plain, tok, T, T, 1, got);
            cr_assert(distance(got->logits, want->logits, n) > 1e-6, "%s, %s: nothing is left out", zoo[i].name,
                      policy_text(k));
            close_case(&plain);
            for (int how = 0; how < 4; how++) {
                if (how < 3) pieces(&c, tok, (int[]){1, 30, 77}[how], (int[]){1, 25, 64}[how], 1 + how * 5, got);
                if (how == 3) forks(&c, tok, got);
                const double off = distance(got->logits, want->logits, n);
                worst = fmax(worst, off);
                cr_assert(off <= (REAL == F64 ? 1e-9 : 2e-3) && got->bytes == want->bytes &&
                              !memcmp(got->set, want->set, sizeof got->set),
                          "%s, %s, way %d: %.3g, %zu and %zu bytes", zoo[i].name, policy_text(k), how, off, got->bytes,
                          want->bytes);
            }
            tried++;
            result_free(want), result_free(got);
            close_case(&c);
        }
    fprintf(stderr, "policy_blocks: cuts differ by %.3g at most, %d models\n", worst, tried);
    cr_assert(tried >= (REAL == F64 ? 50 : 4), "%d models", tried);
}

/* Bytes of a lane by its tables: blocks that it names, rows that wait in pages. */
static size_t lane_bytes(const Lanes *t, int lane) {
    size_t bytes = 0;
    for (int row = t->lo[lane]; row < t->hi[lane]; row++) {
        if (page_at(t, lane, row) < t->npages)
            bytes += row_bytes(&t->s);
        else if (row % t->P == 0)
            bytes += block_bytes(&t->s);
    }
    return bytes;
}
/* Rows that left never come back; bytes reported are those that are there and those of the cost model. */
Test(policy_blocks, rows_that_left_stay_away, .timeout = 300) {
    static const char *const names[] = {"gqa", "mla", "shared by pairs (CLA)", "publisher and readers (YOCO)"};
    int left = 0, exact = 0, marked = 0;
    CacheCost *cost = xcalloc(1, sizeof *cost);
    for (int k = 0; policy_text(k); k++)
        for (int i = 0; i < COUNT(names); i++) {
            ModelCase c;
            Session s;
            int tok[T], fed = 0;
            if (!open_case(&c, &zoo[zoo_find(names[i])], policy_text(k), codec_of(k))) continue;
            const int V = c.cfg.vocab;
            Result *before = result_new(V), *now = result_new(V);
            tokens(tok, V, 3);
            open_session(&s, &c, 64);
            while (fed < T) {
                const int n = fed ? 1 : PROMPT;
                feed(&s, 0, n, tok + fed, now->logits);
                fed += n;
                if (fed == PROMPT) prompt_ends(&s, 0);
                shown(&s, 0, now);
                size_t bytes = 0;
                for (int l = 0, at = 0; l < c.m.L; l++) {
                    const Lanes *t = kv_lanes(kv_slot(&s.cache, l));
                    const KvShape *shape = &c.m.layer[l].rows;
                    if (c.m.layer[l].owner) bytes += policy_state_bytes(&c.p, shape);
                    for (int h = 0; h < t->s.lanes; h++, at++) {
                        int rows = 0;
                        for (int j = 0; j < fed; j++) {
                            const bool was = before->set[at][j] || j >= fed - n;
                            cr_assert(was || !now->set[at][j], "%s: position %d comes back", policy_text(k), j);
                            left += was && !now->set[at][j], rows += now->set[at][j];
                        }
                        if (t->s.codec != codec_of(k) || !t->nblocks) continue;
                        cr_assert(kv_rows(kv_slot(&s.cache, l), 0, h) == rows || t->s.window);
                        marked += !t->s.window && t->hi[h] - t->lo[h] > rows;
                        bytes += lane_bytes(t, h);
                        bytes += (size_t)rows * policy_row_bytes(&c.p, shape) / (size_t)t->s.lanes;
                    }
                }
                memcpy(before->set, now->set, sizeof now->set);
                bool windows = strstr(zoo[zoo_find(names[i])].json, "window") != NULL;
                cr_assert(windows || session_bytes(&s, 0) == bytes, "%s, %s, %d tokens: %zu bytes, %zu are there",
                          names[i], policy_text(k), fed, session_bytes(&s, 0), bytes);
                cr_assert(session_resident(&s) == session_bytes(&s, 0), "%s: %zu resident, %zu reported",
                          policy_text(k), session_resident(&s), session_bytes(&s, 0));
                const bool later = policy_every(&c.p) || !policy_acts(&c.p), due = later || fed == PROMPT;
                cost_cache(&c.m, later ? fed : PROMPT, cost);
                const size_t says = cost->bytes_at_context, has = session_bytes(&s, 0);
                cr_assert(!due || says == has || (cost->at_most && has < says),
                          "%s, %s, %d tokens: %zu bytes, the cost model says %zu", names[i], policy_text(k), fed, has,
                          says);
                exact += due && says == has;
            }
            session_close(&s);
            result_free(before), result_free(now);
            close_case(&c);
        }
    cr_assert(left > 1000 && exact > 300 && marked > 100, "%d rows left, %d times exact, %d lanes with marks", left,
              exact, marked);
    free(cost);
}

/* Where a prompt ends the rows that stay become blocks of 64 of them, oldest first, from what was computed. The first
 * layer's rows do not depend on what attention saw, so those of a cache in `real`s are what they are made of. */
Test(policy_blocks, rows_that_stay_are_stored_anew, .timeout = 100) {
    int blocks = 0, fewer = 0;
    for (int k = 0; k < COUNT(once) - 2; k++) {
        ModelCase c, plain;
        Session s, d;
        int tok[T];
        const RowCodec *codec = codec_of(k);
        cr_assert(open_case(&c, &zoo[zoo_find("gqa")], once[k], codec));
        cr_assert(open_case(&plain, &zoo[zoo_find("gqa")], "none", NULL));
        real *logits = xcalloc((size_t)(T * c.cfg.vocab), sizeof *logits);
        tokens(tok, c.cfg.vocab, (uint64_t)k);
        open_session(&s, &c, 64), open_session(&d, &plain, 64);
        feed(&s, 0, PROMPT, tok, logits), feed(&d, 0, PROMPT, tok, logits);
        prompt_ends(&s, 0);
        const Lanes *t = kv_lanes(kv_slot(&s.cache, 0)), *all = kv_lanes(kv_slot(&d.cache, 0));
        const int D = t->s.kdim, DV = t->s.vdim;
        for (int h = 0; h < t->s.lanes; h++) {
            const int n = t->hi[h] - t->lo[h];
            real key[BLOCK * 8], value[BLOCK * 8];
            char want[4096];
            int was = -1;
            fewer += n < PROMPT;
            cr_assert(D <= 8 && DV <= 8 && block_bytes(&t->s) <= sizeof want && t->lo[h] == 0);
            for (int row = 0; row < n; row++) {
                const int page = page_at(t, h, row), pos = t->pos[page * BLOCK + row % BLOCK], j = row % BLOCK;
                const real *own = R(all->data) + (size_t)(page_at(all, h, pos) * BLOCK * (D + DV));
                cr_assert(pos > was && (page >= t->npages) == (row / BLOCK < n / BLOCK), "row %d", row);
                was = pos;
                for (int q = 0; q < D; q++) key[q * BLOCK + j] = own[pos % BLOCK * D + q];
                for (int q = 0; q < DV; q++) value[j * DV + q] = own[BLOCK * D + pos % BLOCK * DV + q];
                if (j < BLOCK - 1 || page < t->npages) continue;
                char *at = want;
                for (int q = 0; q < D; q++, at += codec->piece_bytes(codec, BLOCK))
                    codec->piece_encode(codec, at, key + q * BLOCK, BLOCK);
                for (int q = 0; q < BLOCK; q++, at += codec->piece_bytes(codec, DV))
                    codec->piece_encode(codec, at, value + q * DV, DV);
                CHECK_BYTES(once[k], lanes_block(t, page), want, block_bytes(&t->s));
                blocks++;
            }
        }
        session_close(&s), session_close(&d);
        free(logits);
        close_case(&c), close_case(&plain);
    }
    cr_assert(blocks >= 8 && fewer == 2 * (COUNT(once) - 2), "%d blocks, %d lanes", blocks, fewer);
}

#ifndef KV_DOUBLE /* bytes, which double counts by the same rule, in three times the time */
/* What is resident after a long prompt at a budget of a quarter, with what a policy keeps for itself: at most 0.27 of
 * all rows by the same codec, but for the page in which the newest rows of a lane wait for a block to be full. 2048
 * rows, as all lanes have under `random`, leave none to wait. */
Test(policy_blocks, a_quarter_is_a_quarter, .timeout = 200) {
    enum { LONG = 8192 };
    static const char json[] =
        "{\"d_model\":16,\"layers\":2,\"vocab\":32,\"max_positions\":8192,\"kinds\":{\"a\":{\"mixer\":\"gqa\","
        "\"heads\":2,\"kv_heads\":2,\"head_dim\":64}},\"pattern\":[\"a\",\"a\"],"
        "\"ffn\":{\"kind\":\"swiglu\",\"hidden\":16}}";
    static const char *const specs[] = {"none",
                                        "snapkv:budget=0.25,window=8,every=0",
                                        "random:budget=0.25,every=0",
                                        "tova:budget=0.25,every=0",
                                        "pyramidkv:budget=0.25,window=8,every=0",
                                        "adakv:budget=0.25,window=8,every=0"};
    int *tok = xcalloc(LONG, sizeof *tok);
    for (int i = 0; i < LONG; i++) tok[i] = (int)(rng_uniform(5, (uint64_t)i) * 32);
    for (int k = 0; k < (REAL == F64 ? 1 : 3); k++) { /* bytes are no arithmetic: one codec in double */
        size_t dense = 0;
        for (int i = 0; i < COUNT(specs); i++) {
            const Animal a = {"long", json};
            ModelCase c;
            Session s;
            Err e = {0};
            cr_assert(open_case(&c, &a, specs[i], codec_of(k)));
            cr_assert(session_open(&s, &c.m, (SessionOpts){.nseq = 1, .max_tokens = LONG, .document = -1}, &e), "%s",
                      e.msg);
            cr_assert(session_extend(&s, 1, &(Feed){0, LONG, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
            prompt_ends(&s, 0);
            size_t bytes = 0, pages_bytes = 0, most = 0; /* most: a page for each lane */
            for (int l = 0; l < c.m.L; l++) {
                const Slot *slot = kv_slot(&s.cache, l);
                const Lanes *t = kv_lanes(slot);
                int pages = 0; /* in use: of rows that wait, one for each lane at most */
                for (int h = 0; h < 2; h++) pages += t->hi[h] > t->lo[h] && page_at(t, h, t->hi[h] - 1) < t->npages;
                pages_bytes += (size_t)pages * BLOCK * row_bytes(&t->s), most += 2 * BLOCK * row_bytes(&t->s);
                bytes += (size_t)pages * BLOCK * row_bytes(&t->s) +
                         (size_t)(kv_pages(slot) - pages) * block_bytes(&t->s) +
                         policy_state_bytes(&c.p, &c.m.layer[l].rows) +
                         (size_t)kv_rows(slot, 0, 0) * policy_row_bytes(&c.p, &c.m.layer[l].rows);
            }
            if (!i) dense = session_bytes(&s, 0);
            const double share = (double)bytes / (double)dense, reported = (double)session_bytes(&s, 0);
            fprintf(stderr, "policy_blocks: %s, %s: %.4f resident, %.4f reported\n", codec_of(k)->name, specs[i], share,
                    reported / (double)dense);
            cr_assert(reported <= (double)bytes, "%s: %.0f bytes reported, %zu are there", specs[i], reported, bytes);
            cr_assert(!i || (double)(bytes - pages_bytes) <= 0.27 * (double)dense, "%s, %s: %.4f", codec_of(k)->name,
                      specs[i], share);
            cr_assert(pages_bytes <= most, "%s: %zu bytes of rows that wait", specs[i], pages_bytes);
            cr_assert(strcmp(specs[i], "random:budget=0.25,every=0") || share <= 0.27, "%.4f", share);
            session_close(&s);
            close_case(&c);
        }
    }
    free(tok);
}
#endif

Test(policy_blocks, what_does_not_go_with_blocks_is_said) {
    static const struct {
        const char *policy, *line;
        const RowCodec *codec;
    } pair[] = {{"kvzip:budget=0.5", "it judges rows by tokens that it feeds itself", &codec_kivi2},
                {"quest", "page: --cache-dtype kivi4 stores 64 rows in a block", &codec_kivi4},
                {"h2o+infinigen:recent=64", "expected page=64, got 1", &codec_kivi3},
                {"h2o", "--cache-dtype kvquant2:turned=yes turns the rows of a block as neighbours", &codec_kvquant2}};
    for (int k = 0; k < COUNT(pair); k++) {
        const Animal *a = &zoo[zoo_find("gqa")];
        ModelCase c = {.dev = NULL};
        Err e = {0};
        cr_assert(policy_parse(pair[k].policy, &c.p, &e), "%s", e.msg);
        cr_assert(model_cfg_from_json(&c.cfg, a->json, strlen(a->json), a->name, &e), "%s", e.msg);
        cr_assert(device_open(&c.dev, "cpu", 1, &e), "%s", e.msg);
        cr_assert(!model_open(&c.m, c.dev, &c.cfg, (ModelOpts){.policy = &c.p, .codec = pair[k].codec}, &e) &&
                      e.status == EXIT_INPUT && strstr(e.msg, pair[k].line),
                  "%s: %s", pair[k].policy, e.msg);
        device_close(c.dev), model_cfg_free(&c.cfg);
    }
}
