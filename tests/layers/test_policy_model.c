/* test_policy_model.c: what every policy of the cache owes, by one driver over the table of policies: models are fed a
 * prompt and single tokens in every cut. */
#include "infer/session.h"
#include "layers/cache/codec.h"
#include "layers/gqa/gqa.h"
#include "model/cost.h"
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"

enum { T = 40, PROMPT = 22, EVERY = 4, LANES_MOST = 16 };
typedef struct {
    ModelCfg cfg;
    Device *dev;
    Model m;
} ModelCase;

/* Every policy alone, then lists of them; of a list the first chooses the rows. */
static const char *const stacks[] = {"knorm+adakv",
                                     "h2o+pyramidkv",
                                     "snapkv+pyramidkv+adakv",
                                     "pyramidkv+adakv",
                                     "tova+pyramidkv",
                                     "morphkv+adakv",
                                     "expected+pyramidkv+adakv",
                                     "rocketkv+adakv",
                                     "h2o+quest",
                                     "rocketkv+quest",
                                     "kvzip+quest",
                                     "knorm+adakv+quest",
                                     "rocketkv+hybrid",
                                     "snapkv+hybrid",
                                     "h2o+shadowkv",
                                     "knorm+adakv+shadowkv",
                                     "snapkv+infinigen",
                                     "snapkv+tailorkv",
                                     "infinipot+pyramidkv",
                                     "qhitter+pyramidkv"};
enum { STACKS = sizeof stacks / sizeof *stacks };
static const char *policy_text(int k) {
    int n = 0;
    while (policy_at(n)) n++;
    return k < n ? policy_at(k)->name : k < n + STACKS ? stacks[k - n] : NULL;
}
static const Policy *policy_named(const char *name, size_t n) {
    for (int i = 0; policy_at(i); i++)
        if (strlen(policy_at(i)->name) == n && !strncmp(policy_at(i)->name, name, n)) return policy_at(i);
    cr_assert(false, "%s", name);
    return NULL;
}
/* Settings under which rows leave soon; `full`: none ever does. */
static PolicyCfg settings(const char *text, bool full, int every) {
    char spec[500];
    int n = 0;
    PolicyCfg p;
    Err e = {0};
    for (const char *name = text; *name; name += strcspn(name, "+"), name += *name == '+') {
        const Policy *of = policy_named(name, strcspn(name, "+"));
        bool budget = false;
        int shared = 0;
        const Key *k;
        for (; of->keys[shared].name; shared++) budget |= !strcmp(of->keys[shared].name, "budget");
        n += snprintf(spec + n, sizeof spec - (size_t)n, "%s%s", n ? "+" : "", of->name);
        for (int i = name == text ? 0 : shared, set = 0; (k = policy_key(of, i)); i++) {
            const char *value = NULL, *when = every == EVERY ? "4" : "0";
            if (!strcmp(k->name, "every")) value = when;
            if (!strcmp(k->name, "budget")) value = full ? "1000" : "0.4";
            if (!strcmp(k->name, "window")) value = full && !budget ? "1000" : "3";
            if (!strcmp(k->name, "sinks")) value = "1";
            if (!strcmp(k->name, "pool")) value = "3";
            if (!strcmp(k->name, "queries")) value = of == &policy_tova ? "1" : "4";
            if (!strcmp(k->name, "share") && of == &policy_simlayerkv) value = "0.3";
            if (!strcmp(k->name, "share") && of == &policy_pyramidkv) value = "3";
            if (!strcmp(k->name, "share") && of == &policy_fastgen) value = full ? "1" : "0.6";
            if (!strcmp(k->name, "ahead")) value = "8";
            if (!strcmp(k->name, "chunk")) value = "9";
            if (!strcmp(k->name, "reads")) value = full ? "1000" : "8";
            if (!strcmp(k->name, "recent") || !strcmp(k->name, "page")) value = "5";
            if (!strcmp(k->name, "uneven")) value = "1";
            if (!strcmp(k->name, "coded")) value = full ? "0" : "1";
            if (!strcmp(k->name, "below")) value = full ? "1e9" : "0.5";
            if (value) n += snprintf(spec + n, sizeof spec - (size_t)n, "%c%s=%s", set++ ? ',' : ':', k->name, value);
        }
    }
    cr_assert(every == 0 || every == EVERY);
    cr_assert(policy_parse(spec, &p, &e), "%s: %s", spec, e.msg);
    return p;
}
static bool open_case(ModelCase *c, int i, const PolicyCfg *p) {
    Err e = {0};
    *c = (ModelCase){0};
    cr_assert(model_cfg_from_json(&c->cfg, zoo[i].json, strlen(zoo[i].json), zoo[i].name, &e), "%s", e.msg);
    cr_assert(device_open(&c->dev, "cpu", 1, &e), "%s", e.msg);
    if (!model_open(&c->m, c->dev, &c->cfg, (ModelOpts){.policy = p, .poison = true}, &e)) {
        const bool rows = strstr(e.msg, "no layer of this model stores a row per token"),
                   asks = strstr(e.msg, "it needs queries of ordinary attention") &&
                          (p->of->ask.whom != ASK_NOBODY || (p->read && p->read->guesses)),
                   guesses = strstr(e.msg, "no layer of this model can be guessed") && p->read && p->read->guesses;
        cr_assert(e.status == EXIT_INPUT && (rows || asks || guesses), "%s", e.msg);
        device_close(c->dev);
        model_cfg_free(&c->cfg);
        return false;
    }
    model_init(&c->m, 7);
    return true;
}
static void close_case(ModelCase *c) { zoo_close(&c->cfg, &c->m, NULL, c->dev); }
static void tokens(int *tok, int V, uint64_t seed) {
    for (int i = 0; i < T; i++) tok[i] = (int)(rng_uniform(rng_mix(seed, 5), (uint64_t)i) * V);
}
static void open_session(Session *s, ModelCase *c, int chunk) {
    Err e = {0};
    SessionOpts o = {.nseq = 2, .max_tokens = T, .chunk = chunk, .page_rows = 5, .document = -1, .want_all = true};
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
/* Positions that the lanes of sequence seq show, as bits, of all slots one after the other. */
static int shown(const Session *s, int seq, uint64_t set[]) {
    int n = 0;
    for (int l = 0; l < s->model->L; l++) {
        const Lanes *t = kv_lanes(kv_slot(&s->cache, l));
        for (int h = 0; h < t->s.lanes; h++, n++) {
            const int lane = seq * t->s.lanes + h;
            cr_assert(n < LANES_MOST);
            set[n] = 0;
            for (int r = t->lo[lane]; r < t->hi[lane]; r++)
                set[n] |= 1ull << t->pos[t->table[lane * t->maxpages + r / t->P % t->maxpages] * t->P + r % t->P];
        }
    }
    return n;
}
typedef struct {
    real *logits; /* (T,V) */
    uint64_t set[LANES_MOST];
    size_t bytes;
} Result;
static Result result_new(int V) { return (Result){.logits = xcalloc((size_t)(T * V), sizeof(real))}; }
static void result_of(Result *r, const Session *s, int seq) {
    shown(s, seq, r->set);
    r->bytes = session_bytes(s, seq);
}
static double distance(const real *a, const real *b, size_t n) {
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) off += pow((double)a[i] - (double)b[i], 2), size += pow((double)b[i], 2);
    return sqrt(off / size);
}
/* The prompt in pieces, by passes of `chunk` rows; then single tokens. */
static void pieces(ModelCase *c, const int *tok, int piece, int chunk, Result *r) {
    Session s;
    open_session(&s, c, chunk);
    for (int at = 0; at < T; at += at < PROMPT ? imin(piece, PROMPT - at) : 1) {
        feed(&s, 0, at < PROMPT ? imin(piece, PROMPT - at) : 1, tok + at, r->logits + at * c->cfg.vocab);
        if (session_length(&s, 0) == PROMPT) prompt_ends(&s, 0);
    }
    result_of(r, &s, 0);
    session_close(&s);
}
/* A prefix that two sequences share, of which one continues; a fork while tokens are generated. */
static void forks(ModelCase *c, const int *tok, Result *r) {
    Session s;
    const int V = c->cfg.vocab;
    int other[T];
    tokens(other, V, 99);
    open_session(&s, c, 16);
    feed(&s, 0, 10, tok, r->logits);
    session_fork(&s, 0, 1);
    feed(&s, 0, 9, other, r->logits + 10 * V);
    prompt_ends(&s, 0); /* rows of shared pages leave the other sequence alone */
    feed(&s, 1, PROMPT - 10, tok + 10, r->logits + 10 * V);
    prompt_ends(&s, 1);
    feed(&s, 1, 7, tok + PROMPT, r->logits + PROMPT * V);
    session_fork(&s, 1, 0);
    feed(&s, 1, 5, other, r->logits + (PROMPT + 7) * V);
    feed(&s, 0, T - PROMPT - 7, tok + PROMPT + 7, r->logits + (PROMPT + 7) * V);
    result_of(r, &s, 0);
    session_close(&s);
}
/* Tokens after the prompt are guessed three at a time: the last of them wrongly, and beyond where rows are evicted. */
static void guesses(ModelCase *c, const int *tok, Result *r) {
    Session s;
    const int V = c->cfg.vocab;
    Err e = {0};
    open_session(&s, c, 16);
    feed(&s, 0, PROMPT, tok, r->logits);
    prompt_ends(&s, 0);
    for (int at = PROMPT; at < T;) {
        enum { N = 3 };
        const int of[N] = {0}, pos[N] = {at, at + 1, at + 2}, first[N] = {-1, -1, -1}, off[] = {0, N}, seq = 0,
                  all[N] = {0, 1, 2};
        const uint64_t id = 0;
        const Batch b = {1, N, off, &seq, of, pos, first, &id, true, NULL};
        const int accept = imin(2, imin(T - at, EVERY - at % EVERY));
        int guess[N];
        real logits[N * 64];
        cr_assert(V <= 64);
        if (at + N > T) { /* no room for a guess */
            feed(&s, 0, T - at, tok + at, r->logits + at * V);
            break;
        }
        for (int i = 0; i < N; i++) guess[i] = i < accept ? tok[at + i] : (tok[at + i] + 1) % V;
        cr_assert(model_verify(&c->m, &s.own, &s.cache, &b, guess, (RowList){N, all}, TENSOR(logits, REAL, N, V), &e),
                  "%s", e.msg);
        model_commit(&c->m, &s.own, &s.cache, &b, &accept);
        memcpy(r->logits + at * V, logits, (size_t)(accept * V) * sizeof(real));
        s.next[0] = at += accept;
    }
    result_of(r, &s, 0);
    session_close(&s);
}
/* Choices that a rounding may turn: experts, decisions; without positions equal tokens have equal keys; and behind
 * QK-norm, whose factors begin as ones, all keys have one norm. */
static bool rounding_turns(const Animal *a, const PolicyCfg *p) {
    const char *json = a->json;
    return strstr(json, "\"moe\"") || zoo_decides(a) || strstr(json, "\"rope\":\"none\"") ||
           (p->of == &policy_knorm && strstr(json, "\"qk_norm\":true"));
}

/* Statistics of scores without their cap would be others: such layers are not asked. */
Test(policy_model, capped_scores_are_not_asked) {
    static const char *const caps[] = {"0", "20"};
    for (int k = 0; k < 2; k++) {
        char *text =
            xformat("{\"d_model\":8,\"layers\":2,\"vocab\":5,\"max_positions\":8,\"kinds\":{\"a\":{\"mixer\":\"gqa\","
                    "\"heads\":2,\"soft_cap\":%s}},\"pattern\":[\"a\"],\"ffn\":{\"kind\":\"swiglu\",\"hidden\":4}}",
                    caps[k]);
        for (int i = 0; policy_text(i); i++) {
            const PolicyCfg p = settings(policy_text(i), false, EVERY);
            ModelCfg cfg;
            Model m;
            Device *dev;
            Err e = {0};
            cr_assert(device_open(&dev, "cpu", 1, &e) && model_cfg_from_json(&cfg, text, strlen(text), "capped", &e),
                      "%s", e.msg);
            const bool ok = model_open(&m, dev, &cfg, (ModelOpts){.policy = &p, .dry = true}, &e);
            cr_expect_eq(ok, k == 0 || (p.of->ask.whom == ASK_NOBODY && !(p.read && p.read->guesses)), "%s, cap %s: %s",
                         policy_text(i), caps[k], e.msg);
            if (ok)
                model_close(&m);
            else
                cr_expect(strstr(e.msg, "it needs queries of ordinary attention"), "%s", e.msg);
            model_cfg_free(&cfg);
            device_close(dev);
        }
        free(text);
    }
}

/* A budget that is never reached: the passes of a dense cache, bit for bit. */
Test(policy_model, a_full_budget_is_the_dense_cache, .timeout = 300) {
    int tried = 0, refused = 0;
    for (int k = 0; policy_text(k); k++)
        for (int i = k % 5; i < zoo_count(); i += 5) {
            ModelCase c, dense;
            const int every = (k + i) % 2 ? EVERY : 0;
            PolicyCfg p = settings(policy_text(k), true, every);
            if (p.of == &policy_simlayerkv) p.share = 1.5;
            if (!open_case(&c, i, &p)) {
                refused++;
                continue;
            }
            const int V = c.cfg.vocab, cut = policy_cut(&p), chunk = cut && cut < T ? cut : T;
            int tok[T];
            Result a = result_new(V), b = result_new(V);
            tokens(tok, V, (uint64_t)i);
            cr_assert(open_case(&dense, i, NULL));
            pieces(&c, tok, T, T, &a);
            pieces(&dense, tok, chunk, chunk, &b);
            CHECK_BYTES(zoo[i].name, a.logits, b.logits, (size_t)(T * V) * sizeof(real));
            for (int l = 0; l < c.m.L; l++)
                if (c.m.layer[l].owner)
                    b.bytes +=
                        T * policy_row_bytes(&p, &c.m.layer[l].rows) + policy_state_bytes(&p, &c.m.layer[l].rows);
            cr_assert(a.bytes == b.bytes && !memcmp(a.set, b.set, sizeof a.set), "%s, %s: %zu and %zu bytes",
                      zoo[i].name, policy_text(k), a.bytes, b.bytes);
            tried++;
            free(a.logits), free(b.logits);
            close_case(&c), close_case(&dense);
        }
    cr_assert(tried > 40 && refused > 10, "%d models, %d refused", tried, refused);
}

/* What is kept is a function of the tokens: a prompt at once, in pieces, token after token, small passes, shared
 * prefixes, wrong guesses. In f32 a rounding may turn a choice: models are few, and their cuts may differ by a
 * thousandth. */
Test(policy_model, cuts_forks_and_guesses_change_nothing, .timeout = 400) {
    const double bound = REAL == F64 ? 1e-9 : 1e-3;
    int tried = 0;
    for (int k = 0; policy_text(k); k++)
        for (int i = 0; i < zoo_count(); i += REAL == F64 ? 3 : 11) {
            ModelCase c, dense;
            const int every = (k + i) % 2 ? EVERY : 0;
            PolicyCfg p = settings(policy_text(k), false, every);
            if (REAL == F32) p.coded = 0; /* a rounding turns a code */
            if (rounding_turns(&zoo[i], &p) || !open_case(&c, i, &p)) continue;
            const int V = c.cfg.vocab;
            const size_t n = (size_t)(T * V);
            Result want = result_new(V), got = result_new(V);
            int tok[T];
            tokens(tok, V, (uint64_t)i);
            pieces(&c, tok, T, T, &want);
            if (!p.of->varies) {
                cr_assert(open_case(&dense, i, NULL));
                pieces(&dense, tok, T, T, &got);
                close_case(&dense);
                cr_assert(distance(got.logits, want.logits, n) > 1e-6, "%s, %s: nothing is evicted", zoo[i].name,
                          policy_text(k));
            }
            for (int how = 0; how < 5; how++) {
                if (how < 3)
                    pieces(&c, tok, (int[]){1, 6, PROMPT}[how], (int[]){1, 4, 7}[how],
                           &got); /* the last ends in a pass of one row */
                if (how == 3) forks(&c, tok, &got);
                if (how == 4) guesses(&c, tok, &got);
                const double off = distance(got.logits, want.logits, n);
                cr_assert(off <= bound && got.bytes == want.bytes && !memcmp(got.set, want.set, sizeof got.set),
                          "%s, %s, every %d, way %d: %.3g, %zu and %zu bytes", zoo[i].name, policy_text(k), every, how,
                          off, got.bytes, want.bytes);
            }
            tried++;
            free(want.logits), free(got.logits);
            close_case(&c);
        }
    cr_assert(tried >= (REAL == F64 ? 40 : 12), "%d models", tried);
}

/* The key of a position as it is stored; NULL: the lane does not show it. */
static const char *key_at(const Slot *slot, int lane, int pos) {
    const Lanes *t = kv_lanes(slot);
    for (int r = t->lo[lane]; r < t->hi[lane]; r++) {
        const int page = t->table[lane * t->maxpages + r / t->P % t->maxpages], at = page * t->P + r % t->P;
        if (t->pos[at] != pos) continue;
        return (const char *)t->data.p + (size_t)page * (size_t)t->P * row_bytes(&t->s) +
               (size_t)(r % t->P) * key_bytes(&t->s);
    }
    return NULL;
}
/* Rows that left never come back, those that stay keep position and numbers; what is reported is what is there. */
Test(policy_model, rows_that_left_stay_away, .timeout = 200) {
    static const char *const names[] = {"gqa", "mla", "mla, shared latents", "owner after readers"};
    enum { ROW = 256 };
    int left = 0, checked = 0;
    char(*was)[T][ROW] = xcalloc(LANES_MOST, sizeof *was);
    CacheCost *cost = xcalloc(1, sizeof *cost);
    for (int k = 0; policy_text(k); k++)
        for (int i = 0; i < 8; i++) {
            ModelCase c;
            Session s;
            int tok[T], fed = 0;
            uint64_t before[LANES_MOST] = {0}, now[LANES_MOST];
            const PolicyCfg p = settings(policy_text(k), false, i % 2 ? EVERY : 0);
            if (!open_case(&c, zoo_find(names[i / 2]), &p)) continue;
            real *logits = xcalloc((size_t)(T * c.cfg.vocab), sizeof *logits);
            tokens(tok, c.cfg.vocab, 3);
            open_session(&s, &c, 16);
            while (fed < T) {
                const int n = fed ? 1 : PROMPT;
                feed(&s, 0, n, tok + fed, logits);
                fed += n;
                if (fed == PROMPT) prompt_ends(&s, 0);
                const int lanes = shown(&s, 0, now);
                size_t bytes = 0;
                for (int l = 0, at = 0; l < c.m.L; l++) {
                    const Slot *slot = kv_slot(&s.cache, l);
                    const KvShape *shape = &kv_lanes(slot)->s;
                    const size_t key = key_bytes(shape);
                    cr_assert(key <= ROW);
                    if (c.m.layer[l].owner) bytes += policy_state_bytes(&p, &c.m.layer[l].rows);
                    for (int h = 0; h < shape->lanes; h++, at++) {
                        const uint64_t fresh = fed == n ? ~0ull : 1ull << (fed - 1);
                        cr_assert(!(now[at] & ~(before[at] | fresh)), "%s: rows come back", policy_text(k));
                        left += __builtin_popcountll((before[at] | fresh) & ~now[at] & ((1ull << fed) - 1));
                        bytes += (size_t)__builtin_popcountll(now[at]) * row_bytes(shape);
                        if (c.m.layer[l].owner && h == 0)
                            for (int r = 0; r < shape->lanes; r++)
                                bytes += (size_t)kv_rows(slot, 0, r) *
                                         (policy_row_bytes(&p, &c.m.layer[l].rows) / (size_t)shape->lanes);
                        for (int j = 0; j < fed; j++) {
                            const char *row = key_at(slot, h, j);
                            cr_assert((row != NULL) == (now[at] >> j & 1));
                            if (!row) continue;
                            cr_assert(!(before[at] >> j & 1) || !memcmp(was[at][j], row, key), "%s: row %d has changed",
                                      policy_text(k), j);
                            memcpy(was[at][j], row, key);
                            checked++;
                        }
                        before[at] = now[at];
                    }
                }
                cr_assert(lanes && session_bytes(&s, 0) == bytes, "%s: %zu bytes, %zu are there", policy_text(k),
                          session_bytes(&s, 0), bytes);
                const bool often = policy_every(&p) || !policy_acts(&p); /* else one eviction, after the prompt */
                cost_cache(&c.m, often ? fed : PROMPT, cost);
                const bool same = cost->bytes_at_context == bytes, due = often || fed == PROMPT;
                cr_assert(!due || same || (p.of->varies && cost->at_most && bytes < cost->bytes_at_context),
                          "%s, %s, %d tokens: %zu bytes, the cost model says %zu", names[i / 2], policy_text(k), fed,
                          bytes, cost->bytes_at_context);
            }
            session_close(&s);
            free(logits);
            close_case(&c);
        }
    cr_assert(left > 1000 && checked > 10000, "%d rows left, %d checked", left, checked);
    free(was), free(cost);
}

#ifndef KV_DOUBLE /* bytes, which double counts by the same rule, in three times the time */
/* What is resident after a long prompt at a budget of a quarter, the slack of pages and what a policy keeps for itself
 * included: at most 0.27 of the dense cache. Not those that keep more by their own rule. */
Test(policy_model, a_quarter_is_a_quarter, .timeout = 200) {
    enum { LONG = 4000 };
    static const char json[] =
        "{\"d_model\":16,\"layers\":2,\"vocab\":32,\"max_positions\":8192,\"kinds\":{\"a\":{\"mixer\":\"gqa\","
        "\"heads\":2,\"kv_heads\":2,\"head_dim\":64}},\"pattern\":[\"a\",\"a\"],"
        "\"ffn\":{\"kind\":\"swiglu\",\"hidden\":16}}";
    int *tok = xcalloc(LONG, sizeof *tok), tried = 0;
    for (int i = 0; i < LONG; i++) tok[i] = (int)(rng_uniform(5, (uint64_t)i) * 32);
    size_t dense = 0;
    for (int k = -1; k < 0 || policy_text(k); k++) {
        const Policy *of = k < 0 ? NULL : policy_at(k);
        char spec[100] = "none";
        PolicyCfg p;
        ModelCase c = {0};
        Session s;
        Err e = {0};
        bool budget = !of, every = false;
        for (int i = 0; of && policy_key(of, i); i++)
            budget |= !strcmp(policy_key(of, i)->name, "budget"), every |= !strcmp(policy_key(of, i)->name, "every");
        if (!budget || (k >= 0 && !of) || of == &policy_rocketkv) continue;
        if (of) snprintf(spec, sizeof spec, "%s:budget=0.25%s", of->name, every ? ",every=0" : "");
        if (of == &policy_scissorhands) strcat(spec, ",queries=64");
        if (of == &policy_expected) strcat(spec, ",queries=64");
        cr_assert(policy_parse(spec, &p, &e), "%s", e.msg);
        cr_assert(model_cfg_from_json(&c.cfg, json, sizeof json - 1, "long", &e), "%s", e.msg);
        cr_assert(device_open(&c.dev, "cpu", 1, &e), "%s", e.msg);
        cr_assert(model_open(&c.m, c.dev, &c.cfg, (ModelOpts){.policy = &p}, &e), "%s", e.msg);
        model_init(&c.m, 7);
        cr_assert(session_open(&s, &c.m, (SessionOpts){.nseq = 1, .max_tokens = LONG, .document = -1}, &e), "%s",
                  e.msg);
        cr_assert(session_extend(&s, 1, &(Feed){0, LONG, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
        prompt_ends(&s, 0);
        size_t bytes = 0;
        for (int l = 0; l < c.m.L; l++) {
            const Lanes *t = kv_lanes(kv_slot(&s.cache, l));
            bytes += (size_t)kv_pages(kv_slot(&s.cache, l)) * (size_t)t->P *
                         (row_bytes(&t->s) + policy_row_bytes(&p, &t->s) / (size_t)t->s.lanes) +
                     policy_state_bytes(&p, &c.m.layer[l].rows);
        }
        if (!of) dense = session_bytes(&s, 0); /* its rows, without slack */
        cr_assert(!of || (double)bytes <= 0.27 * (double)dense, "%s: %zu bytes are resident, %.4f of %zu", spec, bytes,
                  (double)bytes / (double)dense, dense);
        cr_assert(!of || bytes >= session_bytes(&s, 0), "%s: %zu bytes, %zu reported", spec, bytes,
                  session_bytes(&s, 0));
        tried++;
        session_close(&s);
        close_case(&c);
    }
    free(tok);
    cr_assert(tried >= 14, "%d policies", tried);
}
#endif

/* Policies by what they ask for, and mixers by what they have: each pair works or is refused by one line. */
Test(policy_model, each_policy_on_each_mixer) {
    static const struct {
        const char *name;
        bool rows, asks, values; /* a row of every token, whose queries are asked, whose values have a norm */
    } mixer[] = {{"mha", 1, 1, 1},
                 {"gqa", 1, 1, 1},
                 {"mqa", 1, 1, 1},
                 {"window with sinks", 0, 0, 0},
                 {"mla", 1, 1, 0},
                 {"mla, shared latents", 1, 1, 0},
                 {"shared by pairs (CLA)", 1, 1, 1},
                 {"publisher and readers (YOCO)", 1, 1, 1},
                 {"dmc", 0, 0, 0},
                 {"kda", 0, 0, 0},
                 {"kda and nope attention", 1, 1, 1},
                 {"mamba2", 0, 0, 0}};
    int works = 0, refused = 0;
    for (int k = 0; policy_text(k); k++)
        for (size_t i = 0; i < sizeof mixer / sizeof *mixer; i++) {
            const PolicyCfg p = settings(policy_text(k), false, EVERY);
            const bool asks = p.of->ask.whom != ASK_NOBODY,
                       values =
                           p.of->ask.value != COL_PLAIN || p.of->needs & NEED_VALUES || (p.read && p.read->guesses),
                       want = mixer[i].rows && (mixer[i].asks || !asks) && (mixer[i].values || !values);
            ModelCase c;
            const bool ok = open_case(&c, zoo_find(mixer[i].name), &p); /* looks at the line of a refusal */
            cr_expect_eq(ok, want, "%s on %s", policy_text(k), mixer[i].name);
            works += ok, refused += !ok;
            if (ok) close_case(&c);
        }
    cr_assert(works > 100 && refused > 80, "%d pairs work, %d are refused", works, refused);
}

/* Values that are part of the key have no norm of their own. */
Test(policy_model, what_a_policy_lacks_is_said) {
    const PolicyCfg p = settings("vatp", false, EVERY);
    ModelCfg cfg;
    Model m;
    Device *dev;
    Err e = {0};
    const Animal *a = &zoo[zoo_find("mla")];
    cr_assert(model_cfg_from_json(&cfg, a->json, strlen(a->json), a->name, &e), "%s", e.msg);
    cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(!model_open(&m, dev, &cfg, (ModelOpts){.policy = &p}, &e) && e.status == EXIT_INPUT);
    cr_assert(strstr(e.msg, "--policy vatp: it needs queries of ordinary attention and values next to keys"), "%s",
              e.msg);
    device_close(dev);
    model_cfg_free(&cfg);
}

/* Layers that add nothing leave the stream as it is, so a guess from the layer before is the query itself: reading by
 * guesses is reading by queries, bit for bit. Here layer 2 alone adds something; a layer after it is guessed while it
 * reads its own guess. In a model whose layers all add something the two differ. */
static const char *const turned[] = {"\"rope\":\"default\"", "\"rope\":\"default\",\"qk_norm\":true,\"out_gate\":true",
                                     "\"rope\":\"default\",\"qk_norm_wide\":true,\"qkv_bias\":true"};
static void guess_case(ModelCase *c, int i, bool adds, const Policy *read, Result *r, const int *tok) {
    char *text =
        xformat("{\"d_model\":16,\"layers\":4,\"vocab\":32,\"max_positions\":64,\"kinds\":{\"a\":{\"mixer\":\"gqa\","
                "\"heads\":4,\"kv_heads\":2,\"head_dim\":8,%s}},\"pattern\":[\"a\"],\"ffn\":{\"kind\":\"none\"}}",
                turned[i]);
    Err e = {0};
    PolicyCfg p = settings("infinigen", false, 0);
    if (read) p.of = p.read = read;
    *c = (ModelCase){0};
    cr_assert(model_cfg_from_json(&c->cfg, text, strlen(text), "guessed", &e), "%s", e.msg);
    cr_assert(device_open(&c->dev, "cpu", 1, &e), "%s", e.msg);
    cr_assert(model_open(&c->m, c->dev, &c->cfg, (ModelOpts){.policy = &p, .poison = true}, &e), "%s", e.msg);
    model_init(&c->m, 7);
    for (int l = 0; l < 4; l += l == 1 ? 2 : 1) {
        const Tensor wo = ((const GqaW *)c->m.w.layer[l].mix)->wo;
        for (int k = 0; k < wo.n[0] * wo.n[1]; k++) R(wo)[k] *= (real)(adds ? 20 : 0);
    }
    pieces(c, tok, T, T, r);
    close_case(c);
    free(text);
}
Test(policy_model, a_guess_is_the_next_layers_query) {
    Policy own = policy_infinigen;
    int tok[T];
    own.guesses = false;
    tokens(tok, 32, 3);
    for (int i = 0; i < 3; i++) {
        Result got = result_new(32), want = result_new(32);
        ModelCase c;
        guess_case(&c, i, false, NULL, &got, tok), guess_case(&c, i, false, &own, &want, tok);
        CHECK_BYTES(turned[i], got.logits, want.logits, (size_t)(T * 32) * sizeof(real));
        guess_case(&c, i, true, NULL, &got, tok), guess_case(&c, i, true, &own, &want, tok);
        cr_assert(distance(got.logits, want.logits, T * 32) > 1e-6, "%s: not guessed", turned[i]);
        free(got.logits), free(want.logits);
    }
}
