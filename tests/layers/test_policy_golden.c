/* test_policy_golden.c: the rows that policies keep, and those that a step reads, of drawn keys, values and queries,
 * against golden/policies.txt and golden/reads.txt, which golden/make_policies.py and golden/make_reads.py write by the
 * rules of the papers. */
#include "layers/cache/codec.h"
#include "tests/lib/rig.h"
#include "layers/cache/cache.h"
#include <criterion/redirect.h>
#include <signal.h>

enum { SLOTS = 3, HEADS = 4, LANES = 2, DIM = 8, PROMPT = 48, TOKENS = 60, GROUP = HEADS / LANES };
static real number(int kind, int slot, int token, int head, int dim) {
    uint32_t x = (uint32_t)(((((kind * SLOTS + slot) * 64 + token) * HEADS + head) * DIM + dim)) * 2654435761u + 12345u;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13;
    return (real)(float)((x / 4294967296.0 - 0.5) * 4);
}
typedef struct {
    Rig g;
    Cache c;
    PolicyCfg p;
    int queries;
    uint64_t read[SLOTS][LANES]; /* positions that the newest query read */
    int repeats, lo; /* from this position on the tokens are those from `lo` on, repeated; 0: they are not */
} Bench;
/* A number of the token at a position: repeated ones have others. */
static double drawn(const Bench *b, int kind, int slot, int pos, int head, int dim) {
    const bool again = b->repeats && pos >= b->repeats;
    return (double)number(kind + (again ? 3 : 0), slot, again ? pos - b->repeats + b->lo : pos, head, dim);
}

/* log of the sum over the rows that the lane shows, and those of the pass up to its own. */
static real lse_of(const Bench *b, int seq, int slot, int first, int t, int h) {
    const Lanes *l = kv_lanes(kv_slot(&b->c, slot));
    const int lane = seq * LANES + h / GROUP;
    double sum = 0;
    for (int j = 0; j <= t; j++) {
        bool there = j >= first;
        for (int r = l->lo[lane]; r < l->hi[lane] && !there; r++)
            there = l->pos[l->table[lane * l->maxpages + r / l->P % l->maxpages] * l->P + r % l->P] == j;
        double s = 0;
        for (int d = 0; d < DIM; d++) s += drawn(b, 0, slot, t, h, d) * drawn(b, 1, slot, j, h / GROUP, d);
        if (there) sum += exp(s / sqrt(DIM));
    }
    return (real)log(sum);
}
/* attend_lanes that notes which positions the newest query reads of each lane. */
static void (*attends)(Run *, Tensor, Tensor, Tensor, const Lanes *, const Kv *, AttnSpec, bool);
static uint64_t reads[LANES];
static void attend_noted(Run *r, Tensor o, Tensor lse, Tensor q, const Lanes *l, const Kv *pass, AttnSpec spec,
                         bool merge) {
    for (int h = 0; h < LANES && !measuring(r); h++) {
        const int lane = r->batch->seq[r->batch->B - 1] * LANES + h;
        reads[h] = 0;
        for (int row = l->lo[lane]; row < l->hi[lane]; row++)
            reads[h] |= 1ull << l->pos[l->table[lane * l->maxpages + row / l->P % l->maxpages] * l->P + row % l->P];
    }
    attends(r, o, lse, q, l, pass, spec, merge);
}
static void read_lanes(Bench *b, int slot, const Kv *kv, Tensor q) {
    Rig *g = &b->g;
    const Ops *own = g->run.ops;
    const Mark mark = arena_mark(&g->mem);
    Ops noting = *own;
    Tensor o = EMPTY(g, "o", q.n[0], HEADS, DIM), lse = EMPTY(g, "lse", q.n[0], HEADS);
    const AttnSpec spec = {.heads = HEADS, .scale = 1};
    const int from = g->run.batch->pos[0];
    g->run.guess = slot && b->p.read->guesses ? EMPTY(g, "guess", q.n[0], HEADS, DIM) : ABSENT;
    for (int i = 0; present(g->run.guess) && i < q.n[0] * HEADS * DIM; i++) R(g->run.guess)
    [i] = (real)(drawn(b, 3, slot, from + i / (HEADS * DIM), i / DIM % HEADS, i % DIM) / sqrt(DIM));
    attends = own->attend_lanes, noting.attend_lanes = attend_noted;
    g->run.ops = &noting;
    rig_measure(g);
    kv_attend(&g->run, kv_slot(&b->c, slot), kv, o, lse, q, spec, false);
    rig_place(g);
    kv_attend(&g->run, kv_slot(&b->c, slot), kv, o, lse, q, spec, false);
    rig_done_within(g);
    g->run.ops = own, g->run.guess = ABSENT;
    arena_release(&g->mem, mark);
}
/* The drawn keys and queries are as after this rotation. */
static const Rope turn = {.n = DIM, .factor = 1, .f = {1, 0.1, 0.01, 0.001}};
/* Tokens at positions from..from+n-1 of a sequence, as a model would give them to the cache. */
static void feed_to(Bench *b, int seq, int from, int n) {
    int of[TOKENS] = {0}, pos[TOKENS], first[TOKENS], idx[TOKENS];
    const int off[] = {0, n};
    for (int i = 0; i < n; i++) pos[i] = from + i, first[i] = from ? -1 : 0, idx[i] = i;
    const Batch batch = {
        .B = 1, .N = n, .off = off, .seq = &seq, .of = of, .pos = pos, .first = first, .history = true};
    Rig *g = &b->g;
    Err e = {0};
    g->run.batch = &batch, g->run.in = g->run.out = (RowList){n, idx};
    cr_assert(kv_begin(&b->c, &batch, &e), "%s", e.msg);
    for (int s = 0; s < SLOTS; s++) {
        Mark mark = arena_mark(&g->mem);
        Kv kv = {.s = kv_lanes(kv_slot(&b->c, s))->s};
        kv.k = EMPTY(g, "k", n, LANES, DIM), kv.v = EMPTY(g, "v", n, LANES, DIM);
        const Tensor novelty = EMPTY(g, "novelty", n);
        g->run.novelty = policy_novelty(&b->p) ? novelty : ABSENT;
        for (int i = 0; i < n; i++) R(novelty)[i] = (real)drawn(b, 5, 0, from + i, 0, 0);
        Probe p = {.rows = {n, idx}, .q = EMPTY(g, "q", n, HEADS, DIM), .lse = EMPTY(g, "lse", n, HEADS)};
        for (int i = 0; i < n; i++) {
            for (int h = 0; h < LANES; h++)
                for (int d = 0; d < DIM; d++) {
                    R(kv.k)[(i * LANES + h) * DIM + d] = (real)drawn(b, 1, s, from + i, h, d);
                    R(kv.v)[(i * LANES + h) * DIM + d] = (real)drawn(b, 2, s, from + i, h, d);
                }
            for (int h = 0; h < HEADS; h++) {
                R(p.lse)[i * HEADS + h] = lse_of(b, seq, s, from, from + i, h);
                for (int d = 0; d < DIM; d++)
                    R(p.q)[(i * HEADS + h) * DIM + d] = (real)(drawn(b, 0, s, from + i, h, d) / sqrt(DIM));
            }
        }
        if (b->p.read) {
            read_lanes(b, s, &kv, p.q);
            memcpy(b->read[s], reads, sizeof reads);
        }
        CALL(g, (kv_append(&g->run, kv_slot(&b->c, s), &kv, NULL), 0));
        if (b->queries) CALL(g, (kv_ask(&g->run, kv_slot(&b->c, s), &p, 0, NULL), 0));
        arena_release(&g->mem, mark);
    }
    kv_end(&b->c, &batch, NULL);
}
static void feed(Bench *b, int from, int n) { feed_to(b, 0, from, n); }
/* A prompt that ends at `next` is repeated, as a session does it, by passes of `piece` tokens. */
static void replay(Bench *b, int next, int piece) {
    for (int hi; b->lo < next; b->lo = hi) {
        hi = imin(next, b->lo + b->p.chunk);
        b->repeats = next;
        kv_replay_begin(&b->c, 0, next);
        for (int at = 0, n; at < hi - b->lo; at += n) {
            n = imin(piece, hi - b->lo - at);
            feed_to(b, b->c.spare, next + at, n);
            rig_measure(&b->g);
            kv_policy(&b->g.run, &b->c, b->g.run.batch, NULL);
            rig_place(&b->g);
            kv_replayed(&b->g.run, &b->c, next + at, n, b->lo, hi);
            rig_done_within(&b->g);
        }
    }
    b->repeats = b->lo = 0;
}
static void settle(Bench *b, int from, int n, bool ends) {
    int pos[TOKENS], first[TOKENS];
    const int off[] = {0, n}, seq = 0;
    for (int i = 0; i < n; i++) pos[i] = from + i, first[i] = from ? -1 : 0;
    const Batch batch = {.B = 1, .N = n, .off = off, .seq = &seq, .pos = pos, .first = first, .history = true};
    Rig *g = &b->g;
    rig_measure(g); /* what reads a lane takes what its rows need, at most what was measured */
    kv_policy(&g->run, &b->c, &batch, NULL);
    rig_place(g);
    kv_policy(&g->run, &b->c, &batch, NULL);
    if (ends) kv_prompt_ends(&g->run, &b->c, 0, from + n);
    rig_done_within(g);
}
static void begin(Bench *b, const char *spec, int threads) {
    Err e = {0};
    KvShape s[SLOTS];
    cr_assert(policy_parse(spec, &b->p, &e), "%s", e.msg);
    for (int i = 0; i < SLOTS; i++) {
        s[i] = (KvShape){.lanes = LANES, .kdim = DIM, .vdim = DIM, .heads = HEADS, .codec = policy_codec(&b->p, i)};
        s[i].coded = s[i].codec != NULL;
    }
    b->queries = policy_queries(&b->p);
    rig_open(&b->g, rig_first(), threads, 1 << 18);
    cr_assert(kv_open_policy(&b->c, NULL, &b->p, s, SLOTS, 1, TOKENS, TOKENS, 5, true, false, &e), "%s", e.msg);
    for (int i = 0; i < SLOTS; i++) kv_turns(kv_slot(&b->c, i), &turn);
}
/* The whole text in pieces; a session would cut them where the policy acts. */
static void text(Bench *b, const char *spec, int piece) {
    begin(b, spec, piece < TOKENS ? 1 : 2);
    const int cut = policy_cut(&b->p);
    for (int at = 0, n; at < TOKENS; at += n) {
        n = imin(piece, (at < PROMPT ? PROMPT : TOKENS) - at);
        if (cut) n = imin(n, cut - at % cut);
        feed(b, at, n);
        if (at + n == PROMPT && policy_replays(&b->p, PROMPT)) replay(b, PROMPT, imin(piece, 20));
        settle(b, at, n, at + n == PROMPT);
    }
}
static uint64_t shown(const Bench *b, int slot, int lane) {
    const Lanes *l = kv_lanes(kv_slot(&b->c, slot));
    uint64_t set = 0;
    for (int r = l->lo[lane]; r < l->hi[lane]; r++)
        set |= 1ull << l->pos[l->table[lane * l->maxpages + r / l->P % l->maxpages] * l->P + r % l->P];
    return set;
}
/* Returns the number of texts in a file; `seen`: of which policies. */
static int texts(const char *path, bool seen[64]) {
    FILE *f = fopen(path, "r");
    char spec[200];
    int lines = 0;
    cr_assert(f, "%s", path);
    while (fscanf(f, "%199s", spec) == 1) {
        uint64_t want[SLOTS][LANES] = {{0}};
        for (int i = 0; i < SLOTS * LANES; i++) {
            int s, h, n, pos;
            cr_assert(fscanf(f, "%d %d %d", &s, &h, &n) == 3 && s >= 0 && s < SLOTS && h >= 0 && h < LANES, "%s", spec);
            for (int k = 0; k < n; k++) {
                cr_assert(fscanf(f, "%d", &pos) == 1 && pos >= 0 && pos < TOKENS, "%s", spec);
                want[s][h] |= 1ull << pos;
            }
        }
        for (int piece = 9; piece <= TOKENS; piece += TOKENS - 9) {
            Bench b = {.queries = 0};
            text(&b, spec, piece);
            for (int s = 0; s < SLOTS; s++)
                for (int h = 0; h < LANES; h++)
                    cr_assert(shown(&b, s, h) == want[s][h], "%s, pieces of %d, slot %d lane %d: %llx, expected %llx",
                              spec, piece, s, h, (unsigned long long)shown(&b, s, h), (unsigned long long)want[s][h]);
            for (int i = 0; policy_at(i); i++) seen[i] |= policy_at(i) == b.p.of;
            kv_close(&b.c);
            rig_close(&b.g);
        }
        lines++;
    }
    fclose(f);
    return lines;
}
Test(policy_golden, the_papers_rules, .timeout = 120) {
    bool seen[64] = {0};
    const int lines = texts("tests/golden/policies.txt", seen);
    for (int i = 0; policy_at(i); i++)
        cr_assert(seen[i] || policy_at(i)->role == POLICY_READS, "no golden text of %s", policy_at(i)->name);
    cr_assert(lines >= 50, "%d texts", lines);
}
/* The pages that each query after the prompt reads. */
Test(policy_golden, what_queries_read) {
    FILE *f = fopen("tests/golden/reads.txt", "r");
    bool seen[64] = {0};
    char spec[200];
    int tried = 0, fewer = 0, texts = 0;
    cr_assert(f);
    while (fscanf(f, "%199s", spec) == 1) {
        Bench b = {.queries = 0};
        begin(&b, spec, 1);
        for (int i = 0; policy_at(i); i++) seen[i] |= policy_at(i) == b.p.read;
        feed(&b, 0, PROMPT), settle(&b, 0, PROMPT, true);
        for (int t = PROMPT; t < TOKENS; t++) {
            int at;
            feed(&b, t, 1), settle(&b, t, 1, false);
            cr_assert(fscanf(f, "%d", &at) == 1 && at == t, "%s: token %d", spec, t);
            for (int i = 0; i < SLOTS * LANES; i++) {
                unsigned long long want;
                const unsigned long long got = b.read[i / LANES][i % LANES];
                cr_assert(fscanf(f, "%llx", &want) == 1 && got == want,
                          "%s, token %d, slot %d lane %d: %llx, expected %llx", spec, t, i / LANES, i % LANES, got,
                          want);
                tried++, fewer += want != (1ull << t) - 1;
            }
        }
        kv_close(&b.c);
        rig_close(&b.g);
        texts++;
    }
    fclose(f);
    for (int i = 0; policy_at(i); i++)
        cr_assert(seen[i] || policy_at(i)->role != POLICY_READS, "no golden text of %s", policy_at(i)->name);
    cr_assert(texts == 26 && tried == texts * (TOKENS - PROMPT) * SLOTS * LANES && fewer > tried / 2,
              "%d choices, %d of fewer rows", tried, fewer);
}
/* Where kvpress has the same rule. */
Test(policy_golden, kvpress, .timeout = 60) {
    bool seen[64] = {0};
    cr_assert(texts("tests/golden/kvpress.txt", seen) == 10);
}

/* Rows that a policy keeps of each lane. */
static void kept_by(const char *spec, uint64_t set[SLOTS][LANES]) {
    Bench b = {.queries = 0};
    text(&b, spec, TOKENS);
    for (int s = 0; s < SLOTS; s++)
        for (int h = 0; h < LANES; h++) set[s][h] = shown(&b, s, h);
    kv_close(&b.c);
    rig_close(&b.g);
}
/* Where attention is all that speaks for a row, however much of the budget is attention's by itself. */
Test(policy_golden, qhitter_by_attention_alone_is_h2o, .timeout = 60) {
    static const char *const cut[] = {"budget=17,window=2,sinks=1,every=5", "budget=0.4,window=4,sinks=0,every=0"};
    int differ = 0;
    for (int k = 0; k < 2; k++)
        for (int heavy = 0; heavy < 3; heavy++) {
            char spec[120];
            uint64_t h2o[SLOTS][LANES], alone[SLOTS][LANES], half[SLOTS][LANES];
            snprintf(spec, sizeof spec, "h2o:%s", cut[k]);
            kept_by(spec, h2o);
            snprintf(spec, sizeof spec, "qhitter:%s,share=1,heavy=%g", cut[k], heavy / 2.0);
            kept_by(spec, alone);
            cr_assert(!memcmp(alone, h2o, sizeof h2o), "%s is not h2o", spec);
            snprintf(spec, sizeof spec, "qhitter:%s,share=0.5,heavy=%g", cut[k], heavy / 2.0);
            kept_by(spec, half);
            differ += memcmp(half, h2o, sizeof h2o) != 0;
        }
    cr_assert(differ == 4, "%d of 6 cuts are not h2o's; with all of the budget to attention they are", differ);
}

/* A caller that does not cut its passes loses queries of policies that ask each of them: the cache stops it. */
static void uncut(const char *spec) {
    Bench b = {.queries = 0};
    begin(&b, spec, 1);
    feed(&b, 0, 8), settle(&b, 0, 8, false);
    feed(&b, 8, 6), settle(&b, 8, 6, false);
    feed(&b, 14, 4), settle(&b, 14, 4, false); /* 16 lies inside */
}
Test(policy_golden, a_pass_beyond_an_eviction_h2o, .signal = SIGABRT, .init = cr_redirect_stderr) {
    uncut("h2o:budget=0.5,window=2,every=8");
}
Test(policy_golden, a_pass_beyond_an_eviction_vatp, .signal = SIGABRT, .init = cr_redirect_stderr) {
    uncut("vatp:budget=0.5,window=2,every=8");
}
Test(policy_golden, a_pass_beyond_an_eviction_without_queries) { uncut("knorm:budget=0.5,window=2,sinks=1,every=8"); }
