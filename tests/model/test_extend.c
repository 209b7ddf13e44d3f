/* test_extend.c: a pass over history equals the parallel form, however it is cut: every split, ragged batches, chosen
 * rows, verification, forks; and what the cache then holds. */
#include "tests/lib/zoo.h"

enum { VOCAB_MAX = 16, SCHEDULES = 40 };

typedef struct {
    ModelCfg cfg;
    Model m;
    Workspace work;
    Device *dev;
    Pass whole;
    Cache cache;
    real want[ZOO_ROWS * VOCAB_MAX]; /* logits of the whole pass */
    /* per layer with a cache: what the whole pass, cut nowhere, makes: keys, values, and 1 where a row evicts the one
     * before it; (N,lanes,width) */
    real *k[LAYERS_MAX], *v[LAYERS_MAX], *evicted[LAYERS_MAX];
    double tol, ktol[LAYERS_MAX], vtol[LAYERS_MAX]; /* of rounding (check_rounding): of want, k, v */
} Case;

static int everything[ZOO_ROWS];
static RowList rows_all(int n) {
    for (int i = 0; i < n; i++) everything[i] = i;
    return (RowList){n, everything};
}
static void extend(Case *c, const Pass *p, RowList want, real *logits) {
    Err e = {0};
    cr_assert(model_extend(&c->m, &c->work, &c->cache, &p->b, p->tok, want, TENSOR(logits, REAL, want.n, c->cfg.vocab),
                           &e),
              "%s", e.msg);
}
static real *copy_of(Tensor t) {
    return present(t) ? memcpy(xcalloc(tensor_count(t), sizeof(real)), t.p, tensor_bytes(t)) : NULL;
}
/* The whole pass again with nudged weights, which are then as before. */
static double tensor_rounding(const real *a, Tensor nudged) {
    return REAL == F64 ? 1e-12 : check_rounding(CHECK_VIEW(a), CHECK_VIEW(R(nudged)), tensor_count(nudged));
}
static void case_rounding(Case *c) {
    Err e = {0};
    real nudged[ZOO_ROWS * VOCAB_MAX];
    void *weights = memcpy(xcalloc(1, c->m.aw.size), c->m.aw.base, c->m.aw.size);
    Tensor logits = TENSOR(nudged, REAL, c->whole.b.N, c->cfg.vocab);
    model_nudge(&c->m);
    cr_assert(model_verify(&c->m, &c->work, &c->cache, &c->whole.b, c->whole.tok, rows_all(c->whole.b.N), logits, &e),
              "%s", e.msg);
    c->tol = tensor_rounding(c->want, logits);
    for (int l = 0; l < c->m.L; l++) {
        if (c->k[l]) c->ktol[l] = tensor_rounding(c->k[l], c->work.kv[l].k);
        if (c->v[l]) c->vtol[l] = tensor_rounding(c->v[l], c->work.kv[l].v);
    }
    model_commit(&c->m, &c->work, &c->cache, &c->whole.b, (int[ZOO_SEQS]){0});
    memcpy(c->m.aw.base, weights, c->m.aw.size);
    free(weights);
}
static void open_case(Case *c, int i, int page_rows) {
    Err e = {0};
    *c = (Case){0};
    zoo_open(&zoo[i], &c->cfg, &c->m, &c->work, &c->dev, (ModelOpts){.max_rows = ZOO_ROWS, .max_samples = ZOO_SEQS});
    zoo_whole(&c->whole, c->cfg.vocab);
    cr_assert(model_cache_open(&c->m, &c->cache, ZOO_SEQS + 3, ZOO_ROWS, ZOO_ROWS, page_rows, false, &e), "%s", e.msg);
    cr_assert(model_extend_reserve(&c->m, &c->work, &c->cache, ZOO_ROWS, ZOO_ROWS, ZOO_SEQS, &e), "%s", e.msg);
    cr_assert(model_verify(&c->m, &c->work, &c->cache, &c->whole.b, c->whole.tok, rows_all(c->whole.b.N),
                           TENSOR(c->want, REAL, c->whole.b.N, c->cfg.vocab), &e),
              "%s", e.msg);
    for (int l = 0; l < c->m.L; l++)
        if (c->m.layer[l].owner)
            c->k[l] = copy_of(c->work.kv[l].k), c->v[l] = copy_of(c->work.kv[l].v),
            c->evicted[l] = copy_of(c->work.kv[l].evicted);
    model_commit(&c->m, &c->work, &c->cache, &c->whole.b, (int[ZOO_SEQS]){0});
    case_rounding(c);
}
static void close_case(Case *c) {
    for (int s = 0; s < ZOO_SEQS + 3; s++) kv_drop(&c->cache, s);
    for (int l = 0; l < c->m.L; l++)
        if (c->m.layer[l].owner)
            cr_assert_eq(kv_pages(kv_slot(&c->cache, l)), 0, "%d pages were not given back",
                         kv_pages(kv_slot(&c->cache, l)));
    for (int l = 0; l < c->m.L; l++) free(c->k[l]), free(c->v[l]), free(c->evicted[l]);
    kv_close(&c->cache);
    zoo_close(&c->cfg, &c->m, &c->work, c->dev);
}
/* Logits of the pass' wanted rows are those of the rows map[want] of the whole. */
static void compare(const Case *c, const char *what, const int *map, RowList want, const real *logits) {
    size_t V = (size_t)c->cfg.vocab;
    for (int k = 0; k < want.n; k++)
        CHECK_CLOSE(what, logits + (size_t)k * V, c->want + (size_t)map[want.idx[k]] * V, V, c->tol);
}

Test(extend, a_whole_pass_is_forward, .timeout = 60) {
    for (int i = 0; i < zoo_count(); i++) {
        Case c;
        open_case(&c, i, 0);
        real nll[ZOO_ROWS], got[ZOO_ROWS];
        int V = c.cfg.vocab;
        model_loss(&c.m, &c.work, &c.whole.b, c.whole.tok, c.whole.tgt, nll);
        for (int r = 0; r < c.whole.b.N; r++) {
            double sum = 0;
            for (int v = 0; v < V; v++) sum += exp((double)c.want[r * V + v]);
            got[r] = c.whole.tgt[r] < 0 ? 0 : (real)(log(sum) - (double)c.want[r * V + c.whole.tgt[r]]);
        }
        CHECK_CLOSE(zoo[i].name, got, nll, (size_t)c.whole.b.N, 2 * c.tol); /* of two logits */
        close_case(&c);
    }
}

/* All ways to cut each of the three sequences (224 in all), for pages of 1, 3, 4 and 64 rows. */
Test(extend, every_split, .timeout = 300) {
    static const int pages[] = {1, 3, 4, 64};
    for (int i = 0; i < zoo_count(); i++) {
        Case c;
        open_case(&c, i, pages[i % 4]);
        for (int s = 0; s < ZOO_SEQS; s++) {
            int n = c.whole.off[s + 1] - c.whole.off[s];
            for (int cuts = 0; cuts < 1 << (n - 1); cuts++) {
                char what[96];
                if (!check_sampled(i + cuts)) continue;
                snprintf(what, sizeof what, "%s, sequence %d, cuts %x", zoo[i].name, s, (unsigned)cuts);
                for (int at = 0, len; at < n; at += len) {
                    Pass p;
                    int from[ZOO_SEQS] = {0}, count[ZOO_SEQS] = {0}, map[ZOO_ROWS];
                    real logits[ZOO_ROWS * VOCAB_MAX];
                    for (len = 1; at + len < n && !(cuts >> (at + len - 1) & 1);) len++;
                    from[s] = at, count[s] = len;
                    zoo_part(&p, &c.whole, from, count, map);
                    extend(&c, &p, rows_all(p.b.N), logits);
                    compare(&c, what, map, rows_all(p.b.N), logits);
                }
                kv_drop(&c.cache, s);
            }
        }
        close_case(&c);
    }
}

/* Whether a query at position `next` of the sequence whose newest row is `last` sees row r of layer l, lane h. */
static bool needed(const Case *c, int l, int h, int r, int last) {
    const KvShape *s = &c->m.layer[l].rows;
    int age = c->whole.pos[last] + 1 - c->whole.pos[r];
    if (c->whole.first[r] != c->whole.first[last]) return false;
    if (s->evicts && r < last && c->evicted[l][(r + 1) * s->lanes + h] != 0 && age > s->delay) return false;
    return !s->window || age < s->window || c->whole.pos[r] < s->sinks;
}
/* What a lane must hold after the first rows of a sequence: those that a later query can see, by the decisions and with
 * the keys and values of the pass that was not cut. */
static void check_lane(const Case *c, int l, int s, int h, int done, const char *what) {
    const Slot *slot = kv_slot(&c->cache, l);
    const Lanes *t = kv_lanes(slot);
    int want = 0, K = t->s.lanes, lane = s * K + h, last = done ? c->whole.off[s] + done - 1 : -1;
    for (int r = c->whole.off[s]; r <= last; r++) want += needed(c, l, h, r, last);
    int have = kv_rows(slot, s, h);
    cr_assert_eq(have, want, "%s: layer %d sequence %d lane %d holds %d rows, %d are visible to a later query", what, l,
                 s, h, have, want);
    for (int row = t->lo[lane]; row < t->hi[lane]; row++) {
        size_t page = (size_t)t->table[lane * t->maxpages + row / t->P % t->maxpages], P = (size_t)t->P,
               at = (size_t)(row % t->P), Dk = (size_t)t->s.kdim, Dv = (size_t)t->s.vdim;
        int r = c->whole.first[last] + t->pos[page * P + at];
        const real *key = R(t->data) + page * P * row_bytes(&t->s) / sizeof(real), *value = key + P * Dk;
        cr_assert(r <= last && needed(c, l, h, r, last), "%s: layer %d lane %d keeps position %d", what, l, h,
                  t->pos[page * P + at]);
        CHECK_CLOSE(what, key + at * Dk, c->k[l] + (size_t)(r * K + h) * Dk, Dk, c->ktol[l]);
        if (!t->s.alias) CHECK_CLOSE(what, value + at * Dv, c->v[l] + (size_t)(r * K + h) * Dv, Dv, c->vtol[l]);
    }
}
static void check_lanes(const Case *c, const int done[ZOO_SEQS], const char *what) {
    for (int l = 0; l < c->m.L; l++)
        for (int s = 0; s < ZOO_SEQS && c->m.layer[l].owner; s++)
            for (int h = 0; h < c->m.layer[l].rows.lanes; h++) check_lane(c, l, s, h, done[s], what);
}

/* Ragged batches with idle sequences; all, last or no rows wanted (early exit); lanes checked after every pass. */
Test(extend, ragged_batches_and_wanted_rows, .timeout = 300) {
    for (int i = 0; i < zoo_count(); i++) {
        Case c;
        open_case(&c, i, 1 + i % 4);
        uint64_t key = rng_mix(11, (uint64_t)i), draw = 0;
        for (int k = 0; k < SCHEDULES; k++) {
            int done[ZOO_SEQS] = {0};
            for (int left = c.whole.b.N; left;) {
                Pass p;
                int count[ZOO_SEQS], map[ZOO_ROWS], rows[ZOO_ROWS], total = 0;
                real logits[ZOO_ROWS * VOCAB_MAX];
                char what[96];
                snprintf(what, sizeof what, "%s, schedule %d", zoo[i].name, k);
                for (int s = 0; s < ZOO_SEQS; s++) {
                    int rest = c.whole.off[s + 1] - c.whole.off[s] - done[s];
                    count[s] = (int)(rng_mix(key, draw++) % (uint64_t)(rest + 1));
                    total += count[s];
                }
                if (!total) continue;
                zoo_part(&p, &c.whole, done, count, map);
                RowList want = {0, rows};
                for (int r = 0; r < p.b.N; r++) {
                    bool last = r + 1 == p.off[p.of[r] + 1];
                    if (k % 4 == 0 || (k % 4 == 1 && last) || (k % 4 == 2 && rng_mix(key, draw++) % 2))
                        rows[want.n++] = r;
                }
                extend(&c, &p, want, logits);
                compare(&c, what, map, want, logits);
                for (int s = 0; s < ZOO_SEQS; s++) done[s] += count[s];
                check_lanes(&c, done, what);
                left -= total;
            }
            for (int s = 0; s < ZOO_SEQS; s++) kv_drop(&c.cache, s);
        }
        close_case(&c);
    }
}

/* Draft rows, verify them, accept a prefix (wrong tokens behind it), go on: equals plain decoding. */
Test(extend, verify_and_accept_is_decode, .timeout = 300) {
    for (int i = 0; i < zoo_count(); i++) {
        Case c;
        open_case(&c, i, 3);
        uint64_t key = rng_mix(13, (uint64_t)i), draw = 0;
        for (int k = 0; k < SCHEDULES / 2; k++) {
            int done[ZOO_SEQS] = {0};
            if (!check_sampled(i + k)) continue;
            for (int guard = 0; guard < 200; guard++) {
                Pass p;
                Err e = {0};
                int count[ZOO_SEQS], accept[ZOO_SEQS], map[ZOO_ROWS], total = 0;
                real logits[ZOO_ROWS * VOCAB_MAX];
                for (int s = 0; s < ZOO_SEQS; s++) {
                    int rest = c.whole.off[s + 1] - c.whole.off[s] - done[s];
                    count[s] = imin(rest, (int)(rng_mix(key, draw++) % 6));
                    accept[s] = count[s] ? (int)(rng_mix(key, draw++) % (uint64_t)(count[s] + 1)) : 0;
                    total += rest;
                }
                if (!total) break;
                zoo_part(&p, &c.whole, done, count, map);
                RowList want = rows_all(p.b.N);
                for (int r = 0; r < p.b.N; r++)
                    if (r - p.off[p.of[r]] >= accept[p.of[r]])
                        p.tok[r] = (p.tok[r] + 1) % c.cfg.vocab; /* what a wrong draft holds */
                cr_assert(model_verify(&c.m, &c.work, &c.cache, &p.b, p.tok, want,
                                       TENSOR(logits, REAL, want.n, c.cfg.vocab), &e),
                          "%s", e.msg);
                for (int r = 0; r < p.b.N; r++) {
                    int one[] = {r};
                    if (r - p.off[p.of[r]] < accept[p.of[r]])
                        compare(&c, zoo[i].name, map, (RowList){1, one}, logits + r * c.cfg.vocab);
                }
                model_commit(&c.m, &c.work, &c.cache, &p.b, accept);
                for (int s = 0; s < ZOO_SEQS; s++) done[s] += accept[s];
                check_lanes(&c, done, zoo[i].name);
            }
            for (int s = 0; s < ZOO_SEQS; s++) kv_drop(&c.cache, s);
        }
        close_case(&c);
    }
}

/* Three continuations forked from a common prefix, decoded row by row in turn with their parent: each goes on as if it
 * were alone. Children 1 and 2 take other tokens, so that a page shared too long would show. */
static void check_fork(Case *c, const char *what, int s, int cut) {
    Pass p;
    int from[ZOO_SEQS] = {0}, count[ZOO_SEQS] = {0}, map[ZOO_ROWS], n = c->whole.off[s + 1] - c->whole.off[s];
    real logits[ZOO_ROWS * VOCAB_MAX];
    count[s] = cut;
    zoo_part(&p, &c->whole, from, count, map);
    extend(c, &p, rows_all(p.b.N), logits);
    for (int child = 0; child < 3; child++) kv_fork(&c->cache, s, ZOO_SEQS + child);
    for (int at = cut; at < n; at++)
        for (int child = -1; child < 3; child++) {
            from[s] = at, count[s] = 1;
            zoo_part(&p, &c->whole, from, count, map);
            p.seq[s] = child < 0 ? s : ZOO_SEQS + child;
            if (child > 0) p.tok[0] = (p.tok[0] + child) % c->cfg.vocab;
            extend(c, &p, rows_all(1), logits);
            if (child <= 0) compare(c, what, map, rows_all(1), logits);
        }
    for (int q = 0; q < ZOO_SEQS + 3; q++) kv_drop(&c->cache, q);
}
Test(extend, fork_is_replay, .timeout = 120) {
    for (int i = 0; i < zoo_count(); i++) {
        Case c;
        open_case(&c, i, 4);
        for (int s = 0; s < ZOO_SEQS; s++)
            for (int cut = 1; cut < c.whole.off[s + 1] - c.whole.off[s]; cut++) check_fork(&c, zoo[i].name, s, cut);
        close_case(&c);
    }
}

/* A position past the cache's length is refused and changes nothing. */
Test(extend, too_long_is_refused) {
    Case c;
    Err e = {0};
    open_case(&c, 0, 4);
    Pass p;
    int from[ZOO_SEQS] = {0}, count[ZOO_SEQS] = {2, 0, 0};
    real logits[ZOO_ROWS * VOCAB_MAX];
    zoo_part(&p, &c.whole, from, count, NULL);
    extend(&c, &p, rows_all(2), logits);
    from[0] = 2, count[0] = 1;
    zoo_part(&p, &c.whole, from, count, NULL);
    p.pos[0] = ZOO_ROWS;
    cr_assert(
        !model_extend(&c.m, &c.work, &c.cache, &p.b, p.tok, rows_all(1), TENSOR(logits, REAL, 1, c.cfg.vocab), &e));
    cr_assert_eq(e.status, EXIT_INPUT);
    cr_assert_eq(kv_rows(kv_slot(&c.cache, 0), 0, 0), 2);
    p.pos[0] = 2, p.tok[0] = c.cfg.vocab;
    cr_assert(
        !model_extend(&c.m, &c.work, &c.cache, &p.b, p.tok, rows_all(1), TENSOR(logits, REAL, 1, c.cfg.vocab), &e));
    cr_assert_eq(e.status, EXIT_INPUT);
    close_case(&c);
}
