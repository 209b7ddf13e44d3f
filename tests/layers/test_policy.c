/* test_policy.c: policies that evict rows of ordinary attention. A cache is driven by drawn passes beside a list of
 * rows that a second, plain computation of the rule keeps. test_policy_model.c has the models. */
#include "layers/cache/cache.h"
#include "layers/cache/codec.h"
#include "tests/lib/rig.h"

/* ---- the cache beside a list -------------------------------------------------------------------------------------*/
enum { SEQS = 3, LONG = 90, MOST = 24, DK = 5, DV = 3, LANES = 2 };
typedef struct {
    int pos;
    real k[DK], v[DV]; /* as a codec gives them back */
    long double norm;
} Row;
typedef struct {
    int n, next;
    Row row[LONG];
} Lane;
typedef struct {
    PolicyCfg p;
    KvShape shape;
    Cache c;
    Rig g;
    Dice dice;
    Lane lane[SEQS][LANES];
    int evicted, rounds;
} Bench;

/* The rule, by counting for every row those that are better. `wrong`: the largest keys stay. */
static void evict(const PolicyCfg *p, Lane *x, bool wrong) {
    const bool by_norm = !strcmp(p->of->name, "knorm");
    double budget = p->budget > 1 ? p->budget : p->budget * x->next;
    int most = by_norm ? (int)(budget == (int)budget ? budget
                               : p->budget > 1       ? (int)budget
                                                     : (int)budget + 1)
                       : 0,
        own = 0;
    for (int i = 0; i < x->n; i++) own += x->row[i].pos < p->sinks || x->row[i].pos + p->window >= x->next;
    Lane kept = {.next = x->next};
    for (int i = 0; i < x->n; i++) {
        const Row *r = &x->row[i];
        bool stays = r->pos < p->sinks || r->pos + p->window >= x->next;
        int better = 0;
        for (int j = 0; j < x->n; j++) {
            const Row *o = &x->row[j];
            if (o->pos < p->sinks || o->pos + p->window >= x->next) continue;
            const bool less = wrong ? o->norm > r->norm : o->norm < r->norm;
            better += o->norm == r->norm ? o->pos < r->pos : less;
        }
        if (stays || better < most - own) kept.row[kept.n++] = *r;
    }
    *x = kept;
}
static void bench_open(Bench *b, const char *spec, const RowCodec *codec, bool alias, int P, uint64_t draw) {
    Err e = {0};
    *b = (Bench){.dice = {rng_mix(0xE71C7, draw), 0}};
    b->shape = (KvShape){.lanes = LANES, .kdim = DK, .vdim = DV, .alias = alias, .codec = codec};
    cr_assert(policy_parse(spec, &b->p, &e), "%s", e.msg);
    rig_open(&b->g, rig_first(), 1, 1 << 20);
    cr_assert(kv_open_policy(&b->c, NULL, &b->p, &b->shape, 1, SEQS, LONG, MOST, P, true, false, &e), "%s", e.msg);
}
static void bench_close(Bench *b) {
    for (int q = 0; q < SEQS; q++) kv_drop(&b->c, q);
    cr_assert(kv_pages(kv_slot(&b->c, 0)) == 0, "%d pages are lost", kv_pages(kv_slot(&b->c, 0)));
    kv_close(&b->c);
    rig_close(&b->g);
}
static void read_back(const RowCodec *c, real *to, const real *from, int w) {
    char part[256];
    c->encode(c, part, from, w);
    c->decode(c, to, part, w);
}
/* n new rows of a sequence; documents may begin anywhere. Of the last document's rows `accept` are kept. */
static void bench_pass(Bench *b, int q, int n, bool begins) {
    static int of[MOST], pos[MOST], first[MOST];
    const int off[] = {0, n}, next = b->lane[q][0].next,
              start = next + n > LONG ? 0
                      : begins        ? roll(&b->dice, n)
                      : next          ? -1
                                      : 0;
    const int accept = roll(&b->dice, 3) ? n : 1 + roll(&b->dice, n);
    const KvShape *s = &b->shape;
    Err e = {0};
    for (int i = 0; i < n; i++) {
        const bool in = start >= 0 && i >= start;
        first[i] = in ? start : next ? -1 : 0;
        pos[i] = in ? i - start : next + i;
    }
    const Batch batch = {.B = 1, .N = n, .off = off, .seq = &q, .of = of, .pos = pos, .first = first, .history = true};
    Mark mark = arena_mark(&b->g.mem);
    char name[32];
    snprintf(name, sizeof name, "keys %d", b->rounds++);
    Kv kv = {.s = *s};
    kv.k = rig_random(EMPTY(&b->g, name, n, LANES, DK), name);
    if (!s->alias) kv.v = rig_random(EMPTY(&b->g, "values", n, LANES, DV), "values");
    for (int i = 1; i < n; i++) /* now and then a key of before: equal norms */
        if (roll(&b->dice, 4) == 0)
            memcpy(R(kv.k) + i * LANES * DK, R(kv.k) + (i - 1) * LANES * DK, LANES * DK * sizeof(real));
    b->g.run.batch = &batch;
    cr_assert(kv_begin(&b->c, &batch, &e), "%s", e.msg);
    CALL(&b->g, (kv_append(&b->g.run, kv_slot(&b->c, 0), &kv, &accept), 0));
    kv_end(&b->c, &batch, &accept);
    CALL(&b->g, (kv_policy(&b->g.run, &b->c, &batch, &accept), 0));
    const bool fresh = first[accept - 1] >= 0;
    const int from = fresh ? first[accept - 1] : 0;
    for (int h = 0; h < LANES; h++) {
        Lane *x = &b->lane[q][h];
        if (fresh) x->n = x->next = 0;
        const int was = x->next;
        for (int i = from; i < accept; i++) {
            Row *r = &x->row[x->n++];
            const real *k = R(kv.k) + (i * LANES + h) * DK;
            *r = (Row){.pos = pos[i]};
            for (int d = 0; d < DK; d++) r->norm += (long double)k[d] * (long double)k[d];
            read_back(s->codec ? s->codec : &codec_f32, r->k, k, DK);
            if (!s->alias) read_back(s->codec ? s->codec : &codec_f32, r->v, R(kv.v) + (i * LANES + h) * DV, DV);
        }
        x->next = pos[accept - 1] + 1;
        const int had = x->n;
        if (x->next / b->p.every > was / b->p.every) evict(&b->p, x, false);
        b->evicted += had - x->n;
    }
    arena_release(&b->g.mem, mark);
}
/* Every lane of the cache holds the list's rows, once each, with their positions and numbers, in as many bytes. */
static bool bench_holds(const Bench *b, bool wrong) {
    const KvShape *s = &b->shape;
    const Slot *slot = kv_slot(&b->c, 0);
    const Lanes *t = kv_lanes(slot);
    const RowCodec *c = s->codec ? s->codec : &codec_f32;
    const size_t kb = c->bytes(c, DK), vb = s->alias ? 0 : c->bytes(c, DV);
    bool same = true;
    for (int q = 0; q < SEQS; q++) {
        size_t bytes = 0;
        for (int h = 0; h < LANES; h++) {
            Lane x = b->lane[q][h];
            if (wrong && x.next) evict(&(PolicyCfg){.of = b->p.of, .budget = 3, .window = 1, .every = 1}, &x, true);
            bool seen[LONG] = {0};
            const int lane = q * LANES + h, n = kv_rows(slot, q, h);
            same &= n == x.n && n == t->hi[lane] - t->lo[lane];
            bytes += (size_t)n * (kb + vb + (b->p.of->score ? sizeof(real) : 0));
            for (int r = t->lo[lane]; r < t->hi[lane]; r++) {
                const int page = t->table[lane * t->maxpages + r / t->P % t->maxpages], at = r % t->P;
                const char *data = (const char *)t->data.p + (size_t)page * (size_t)t->P * (kb + vb);
                real k[DK], v[DV] = {0};
                c->decode(c, k, data + (size_t)at * kb, DK);
                if (vb) c->decode(c, v, data + (size_t)t->P * kb + (size_t)at * vb, DV);
                int j = 0;
                while (j < x.n && x.row[j].pos != t->pos[page * t->P + at]) j++;
                same &= j < x.n && !seen[j] && !memcmp(k, x.row[j].k, sizeof k) &&
                        (!vb || !memcmp(v, x.row[j].v, sizeof v));
                if (j < x.n) seen[j] = true;
            }
        }
        same &= kv_bytes(&b->c, q) == bytes;
    }
    return same;
}
Test(policy, the_cache_keeps_what_the_rule_says, .timeout = 120) {
    static const char *const spec[] = {"knorm:budget=0.5,window=4,sinks=2,every=4",
                                       "knorm:budget=12,window=5,sinks=0,every=1",
                                       "knorm:budget=0.25,window=1,sinks=3,every=8", "window:window=6,sinks=2,every=3",
                                       "knorm:budget=80,window=2,sinks=1,every=2"};
    int evicted = 0, noticed = 0;
    for (int draw = 0; draw < 40; draw++) {
        Bench b;
        bench_open(&b, spec[draw % 5], codec_at(draw % 4), draw % 3 == 0, (int[]){1, 3, 4, 64}[draw / 5 % 4],
                   (uint64_t)draw);
        for (int step = 0; step < 30; step++) {
            const int q = roll(&b.dice, SEQS), to = (q + 1) % SEQS, what = roll(&b.dice, 12);
            if (what == 0) {
                kv_fork(&b.c, q, to);
                memcpy(b.lane[to], b.lane[q], sizeof b.lane[q]);
            } else if (what == 1) {
                kv_drop(&b.c, q);
                memset(b.lane[q], 0, sizeof b.lane[q]);
            } else {
                const int n = what < 6 ? 1 : 1 + roll(&b.dice, MOST);
                const bool full = b.lane[q][0].next + n > LONG;
                bench_pass(&b, q, n, full || what == 11);
            }
            cr_assert(bench_holds(&b, false), "draw %d, step %d: %s", draw, step, spec[draw % 5]);
            noticed += !bench_holds(&b, true);
        }
        evicted += b.evicted;
        bench_close(&b);
    }
    cr_assert(evicted > 1000 && noticed > 400, "%d rows evicted, %d times another rule was noticed", evicted, noticed);
}

/* A reader with a window on lanes whose rows are not all there sees by position, not by place: after each pass a query
 * on sequence 0 beside sums over the list. */
static void window_read(Bench *b, int window, int *tried) {
    const int off[] = {0, 1}, seq = 0, of = 0, pos = b->lane[0][0].next, first = -1, out = 0;
    const Batch batch = {
        .B = 1, .N = 1, .off = off, .seq = &seq, .of = &of, .pos = &pos, .first = &first, .history = true};
    const AttnSpec spec = {.heads = LANES, .window = window, .scale = (real)0.7};
    Mark mark = arena_mark(&b->g.mem);
    Tensor q = RANDOM(&b->g, "q", 1, LANES, DK), o = EMPTY(&b->g, "o", 1, LANES, DV),
           lse = EMPTY(&b->g, "lse", 1, LANES);
    Kv none = {.s = b->shape};
    Err e = {0};
    cr_assert(kv_begin(&b->c, &batch, &e), "%s", e.msg);
    b->g.run.batch = &batch;
    b->g.run.in = b->g.run.out = (RowList){1, &out};
    CALL(&b->g, (kv_attend(&b->g.run, kv_slot(&b->c, 0), &none, o, lse, q, spec, false), 0));
    kv_end(&b->c, &batch, (int[]){0});
    for (int h = 0; h < LANES; h++) {
        const Lane *x = &b->lane[0][h];
        double sum = 0, want[DV] = {0}, got[DV];
        for (int i = 0; i < x->n; i++) {
            double s = 0;
            for (int d = 0; d < DK; d++) s += (double)R(q)[h * DK + d] * (double)x->row[i].k[d];
            const double p = pos - x->row[i].pos < window ? exp((double)spec.scale * s) : 0;
            sum += p;
            for (int d = 0; d < DV; d++) want[d] += p * (double)x->row[i].v[d];
        }
        for (int d = 0; d < DV; d++) want[d] /= sum, got[d] = (double)R(o)[h * DV + d];
        CHECK_RMS("o", got, want, DV, 1e-4);
        ++*tried;
    }
    arena_release(&b->g.mem, mark);
}
Test(policy, a_window_looks_at_positions) {
    int tried = 0;
    for (int draw = 0; draw < 8; draw++) {
        Bench b;
        bench_open(&b, "knorm:budget=0.4,window=2,sinks=2,every=4", NULL, false, 4, (uint64_t)(100 + draw));
        while (b.lane[0][0].next < 70) {
            bench_pass(&b, 0, 1 + roll(&b.dice, 6), false);
            window_read(&b, 3 + draw * 5, &tried);
        }
        bench_close(&b);
    }
    cr_assert(tried > 200, "%d lanes", tried);
}

static PolicyCfg parsed(const char *spec) {
    PolicyCfg p;
    Err e = {0};
    cr_assert(policy_parse(spec, &p, &e), "%s: %s", spec, e.msg);
    return p;
}
/* Whatever the length, a slot of pyramidkv has room for window and sinks, and slots have the mean of the budget. */
Test(policy, sinks_of_a_pyramid) {
    enum { SLOTS = 5 };
    const PolicyCfg p = parsed("pyramidkv:budget=0.3,window=4,sinks=9,share=4");
    int falling = 0;
    for (int n = 1; n < 400; n++) {
        int sum = 0, rows[SLOTS];
        for (int i = 0; i < SLOTS; i++) {
            sum += rows[i] = policy_resident(&p, n, i, SLOTS);
            cr_assert(rows[i] >= imin(n, p.window + p.sinks), "slot %d at %d: %d rows", i, n, rows[i]);
            cr_assert(!i || rows[i] <= rows[i - 1]);
        }
        falling += rows[0] > rows[SLOTS - 1];
        cr_assert(abs(sum - SLOTS * policy_rows(&p, n)) <= SLOTS, "at %d: %d rows", n, sum);
    }
    cr_assert(falling > 0 && falling < 399, "%d lengths", falling); /* both sides of the bound */
}
/* ---- words -------------------------------------------------------------------------------------------------------*/
Test(policy, words_that_are_refused) {
    static const struct {
        const char *spec, *part;
    } wrong[] = {
        {"knrom", "--policy: expected none, window, random, knorm, h2o, "},
        {"knrom", ", got 'knrom'"},
        {"", "--policy: expected none, window, random, "},
        {"none:budget=1", "--policy: expected none, window, random, "},
        {"knorm+none", "--policy: none goes with no other policy"},
        {"none+knorm", "--policy: none goes with no other policy"},
        {"knorm+", "got ''"},
        {"adakv+fastgen", "--policy: adakv cannot divide the rows of fastgen: each lane has a rule of its own"},
        {"rocketkv+pyramidkv", "--policy: pyramidkv cannot divide the rows of rocketkv: it has a rule of its own"},
        {"hashevict:bits=25", "--policy hashevict: bits: expected a whole number from 1 to 24, got '25'"},
        {"infinipot+adakv", "--policy: adakv cannot divide the rows of infinipot: a share of each lane's rows"},
        {"tailorkv:bits=5", "--policy tailorkv: bits: expected a whole number from 2 to 4, got '5'"},
        {"tailorkv:coded=0.5", "--policy tailorkv: coded: expected a whole number from 0"},
        {"infinipot:budget=20",
         "--policy infinipot: budget: expected at least the 32 rows of window and sinks, got 20"},
        {"quest:recent=8", "--policy quest: recent: expected at least the 16 rows of a page, got 8"},
        {"quest:budget=0.5", "--policy quest: expected reads, recent or page=NUMBER, got 'budget'"},
        {"knorm+h2o", "--policy: knorm and h2o decide the same, which rows stay; leave one of them out"},
        {"adakv+knorm+adakv", "--policy adakv: it was given before; leave one out"},
        {"tova+adakv", "--policy: adakv cannot divide the rows of tova: all lanes keep the same rows"},
        {"adakv+nacl", "--policy: adakv cannot divide the rows of nacl: what it draws"},
        {"pyramidkv+window", "--policy: pyramidkv cannot divide the rows of window: it keeps no budget of rows"},
        {"simlayerkv+adakv", "--policy: adakv cannot divide the rows of simlayerkv: it keeps or evicts for a whole"},
        {"adakv:budget=0.2+knorm", "--policy adakv: budget: knorm chooses the rows; adakv has share alone here"},
        {"pyramidkv+adakv:window=8", "--policy adakv: window: pyramidkv chooses the rows; adakv has share alone here"},
        {"adakv:share=2+knorm", "--policy adakv: share: expected a number from 0 to 1, got '2'"},
        {"knorm+adakv+pyramidkv+knorm+adakv+knorm+knorm+knorm+knorm", "--policy"},
        {"knorm:budget=0", "--policy knorm: budget: expected a number from 0.001 to 1e+09, got '0'"},
        {"knorm:budget=x", "got 'x'"},
        {"knorm:budget=nan", "got 'nan'"},
        {"knorm:budgt=0.5", "--policy knorm: expected budget, window, sinks or every=NUMBER, got 'budgt'"},
        {"knorm:budget", "got 'budget'"},
        {"knorm:", "got ''"},
        {"knorm:window=2.5", "--policy knorm: window: expected a whole number from 1 to 1e+09, got '2.5'"},
        {"knorm:every=-1", "--policy knorm: every: expected a whole number"},
        {"h2o:every=5000", "--policy h2o: every: expected a whole number from 0 to 4096, got '5000'"},
        {"snapkv:pool=4", "--policy snapkv: pool: expected an odd number, got 4"},
        {"snapkv:window=5000", "--policy snapkv: window: expected a whole number from 1 to 4096, got '5000'"},
        {"pyramidkv:share=0", "--policy pyramidkv: share: expected a number from 1 to 1e+06, got '0'"},
        {"knorm:budget=10,window=16",
         "--policy knorm: budget: expected at least the 20 rows of window and sinks, got 10"},
        {"window:budget=0.5", "--policy window: expected window, sinks or every=NUMBER, got 'budget'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        PolicyCfg p;
        Err e = {0};
        cr_assert(!policy_parse(wrong[i].spec, &p, &e) && e.status == EXIT_INPUT, "%s", wrong[i].spec);
        cr_assert(strstr(e.msg, wrong[i].part), "%s: %s", wrong[i].spec, e.msg);
    }
    PolicyCfg p = parsed("knorm:window=7,every=9");
    cr_assert(p.of == &policy_knorm && p.budget == 0.5 && p.window == 7 && p.sinks == 4 && p.every == 9);
    /* the order of a list means nothing */
    const PolicyCfg a = parsed("adakv:share=0.3+snapkv:budget=0.25,window=8+pyramidkv"),
                    b = parsed("pyramidkv+snapkv:budget=0.25,window=8+adakv:share=0.3");
    cr_assert(!memcmp(&a, &b, sizeof a));
    cr_assert(a.of == &policy_snapkv && a.layers == &policy_pyramidkv && a.lanes == &policy_adakv);
    cr_assert(a.budget == 0.25 && a.window == 8 && a.slope == 20 && a.even == 0.3);
    cr_assert(parsed("adakv+pyramidkv").of == &policy_pyramidkv && parsed("adakv").layers == NULL);
    const PolicyCfg q = parsed("quest:page=8+snapkv:budget=0.3");
    cr_assert(q.of == &policy_snapkv && q.read == &policy_quest && q.page == 8 && q.reads == 0.25 && policy_acts(&q));
    cr_assert(!policy_acts(&(PolicyCfg){.of = &policy_quest, .read = &policy_quest}) && policy_any(&q));
    cr_assert(parsed("none").of == NULL && parsed("window").of == &policy_window);
    for (int i = 0; policy_at(i); i++) cr_assert(parsed(policy_at(i)->name).of == policy_at(i));
}
