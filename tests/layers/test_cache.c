/* The cache beside a model of it, over drawn schedules of passes, forks and drops. */
#include "tests/lib/cache_model.h"
#include "layers/cache/codec.h"
#include <criterion/redirect.h>
#include <signal.h>

/* ---- schedules ----------------------------------------------------------------------------------------------------
 */
static const int page_rows[] = {1, 3, 4, 64, 5};

/* Slots of every retention, one with rows and a state, one with a state alone or nothing at all. */
static void shapes(Dice *d, KvShape s[PLAIN_SLOTS], bool whole) {
    static const int window[] = {0, 1, 2, 5, 70};
    for (int i = 0; i < PLAIN_SLOTS; i++) {
        int w = whole ? 70 * roll(d, 2) : window[roll(d, 5)];
        s[i] = (KvShape){.lanes = 1 + roll(d, 3),
                         .kdim = 1 + roll(d, 3),
                         .vdim = 1 + roll(d, 4),
                         .window = w,
                         .sinks = w ? roll(d, 2) * 3 : 0};
    }
    if (whole) return; /* a sequence may go back */
    static const int delay[] = {0, 0, 1, 4, 30};
    s[3].window = s[3].sinks = 0;
    s[3].evicts = true, s[3].delay = delay[roll(d, 5)];
    s[3].carry_rows = roll(d, 4), s[3].carry = s[3].carry_rows ? 1 + roll(d, 5) : 0;
    s[1].state = 5;
    s[2] = roll(d, 2) ? (KvShape){.state = 3} : (KvShape){0};
}
static void refuses(Plain *m, Err *e) {
    char *before = xcalloc(m->c.mem.size, 1);
    memcpy(before, m->c.mem.base, m->c.mem.size);
    cr_assert(!plain_begin(m, e) && e->status == EXIT_INPUT, "a pass beyond %d tokens was begun", m->max_tokens);
    cr_assert(strstr(e->msg, "position"), "%s", e->msg);
    cr_assert(!memcmp(before, m->c.mem.base, m->c.mem.size), "a refused pass changed the cache");
    free(before);
}
/* A codec of blocks of few rows, which halves elements of pieces: rows in blocks differ from what was stored. */
static size_t halves_bytes(const RowCodec *c, int width) { return (void)c, (size_t)width * sizeof(real); }
static void halves_encode(const RowCodec *c, void *piece, const real *from, int width) {
    (void)c;
    for (int k = 0; k < width; k++) ((real *)piece)[k] = from[k] / 2;
}
static void halves_decode(const RowCodec *c, real *to, const void *piece, int width) {
    (void)c, memcpy(to, piece, (size_t)width * sizeof(real));
}
static RowCodec halves(int rows) {
    RowCodec c = codec_kivi4;
    c.name = "halves", c.block = rows;
    c.piece_bytes = halves_bytes, c.piece_encode = halves_encode, c.piece_decode = halves_decode;
    return c;
}
/* Two slots whose rows a codec merges, with another one between them. */
static void shapes_paired(KvShape s[PLAIN_SLOTS], const RowCodec *codec, RowCodec pair[2]) {
    pair[0] = codec_paired(codec, PAIR_LOWER), pair[1] = codec_paired(codec, PAIR_UPPER);
    s[0].window = s[0].sinks = 0;
    s[2] = s[0];
    s[0].codec = &pair[0], s[2].codec = &pair[1];
}
static void schedule(const KvTier *tier, int draw, int steps, const RowCodec *codec, int *refused) {
    Dice dice = {rng_mix(0xCAC4E, (uint64_t)draw), 0};
    KvShape s[PLAIN_SLOTS];
    RowCodec pair[2];
    Plain m;
    Rig g;
    shapes(&dice, s, draw % 4 == 3);
    for (int i = 0; codec && i < PLAIN_SLOTS; i++) {
        s[i].codec = codec, s[i].evicts = false;
        if (draw % 4 != 3 && i == 3) s[i].delay = 0;
    }
    const bool pairs = codec && codec->merges;
    if (pairs) shapes_paired(s, codec, pair);
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1, 1 << 20);
    int nseq = 2 + roll(&dice, PLAIN_SEQS - 1), P = page_rows[draw % 5], most = draw % 3 && !pairs ? 9 : 40;
    plain_open_tier(&m, tier, s, PLAIN_SLOTS, nseq, (pairs ? 100 : 20) + roll(&dice, 100), 48, P);
    plain_check(&m, "empty");
    for (int step = 0; step < steps; step++) {
        Mark mark = arena_mark(&g.mem);
        Err e = {0};
        int what = roll(&dice, 10), a = roll(&dice, nseq), b = (a + 1 + roll(&dice, nseq - 1)) % nseq;
        char when[64];
        snprintf(when, sizeof when, "schedule %d step %d", draw, step);
        if (what == 0 && roll(&dice, 2) && plain_length(&m, a))
            plain_saved(&m, a, b);
        else if (what == 0)
            plain_fork(&m, a, b);
        else if (what == 1 && roll(&dice, 2) && plain_length(&m, a))
            plain_rewind(&m, a, roll(&dice, plain_length(&m, a)));
        else if (what == 1)
            plain_drop(&m, a);
        else {
            plain_pass(&m, &g, &dice, roll(&dice, 2) ? 1 : most, roll(&dice, 4) == 0);
            if (m.too_long)
                refuses(&m, &e), ++*refused;
            else {
                cr_assert(plain_begin(&m, &e), "%s: %s", when, e.msg);
                plain_append(&m);
                for (int i = 0; i < m.nslots; i++) /* what is visible has not changed yet, in count or content */
                    for (int q = 0; q < nseq; q++)
                        for (int h = 0; h < s[i].lanes; h++) {
                            int want = 0;
                            for (int j = 0; j < m.h[i][q].n; j++) want += plain_resident(&m, i, q, h, j);
                            cr_assert(kv_rows(kv_slot(&m.c, i), q, h) == want,
                                      "%s: rows are visible before the pass ends", when);
                        }
                plain_end(&m);
            }
        }
        plain_check(&m, when);
        arena_release(&g.mem, mark);
    }
    for (int q = 0; q < nseq; q++) plain_drop(&m, q);
    plain_check(&m, "all dropped");
    for (int i = 0; i < m.nslots; i++)
        cr_assert(kv_pages(kv_slot(&m.c, i)) == 0, "schedule %d: %d pages are lost", draw, kv_pages(kv_slot(&m.c, i)));
    plain_close(&m);
    rig_close(&g);
}
Test(cache, schedules) {
    int refused = 0;
    for (int draw = 0; draw < 120; draw++) schedule(NULL, draw, 150, NULL, &refused);
    cr_assert(refused > 50, "only %d passes were too long", refused);
}
Test(cache, schedules_of_blocks) {
    int refused = 0;
    for (int draw = 0; draw < 60; draw++) {
        const RowCodec codec = halves((int[]){1, 3, 4, 16, 64}[draw % 5]);
        schedule(NULL, draw, 150, draw % 7 ? &codec : draw % 2 ? &codec_kivi2 : &codec_kvquant3, &refused);
    }
    cr_assert(refused > 25, "only %d passes were too long", refused);
}
/* Slots that share what blocks hold: who lets a block go, forks, goes back or is restored does so in both. */
Test(cache, schedules_of_pairs, .timeout = 60) {
    int refused = 0;
    for (int draw = 0; draw < 24; draw++) {
        RowCodec codec = codec_minicache;
        codec.bits = (int[]){16, 8, 4, 32}[draw % 4], codec.share = (double[]){0.1, 0.5, 1, 0, 0.3}[draw % 5];
        schedule(NULL, draw, 150, &codec, &refused);
    }
    cr_assert(refused > 5, "only %d passes were too long", refused);
}
/* The same with the rows of one, two, ... slots on disk. */
Test(cache, schedules_on_disk) {
    int refused = 0;
    for (int draw = 0; draw < 40; draw++) {
        const KvTier tier = {.memory = SIZE_MAX,
                             .dir = check_dir(),
                             .alone = draw & 1,
                             .least = 1 + draw % PLAIN_SLOTS};
        schedule(&tier, draw, 100, NULL, &refused);
    }
    cr_assert(refused > 10, "only %d passes were too long", refused);
}

/* ---- one thing at a time ------------------------------------------------------------------------------------------
 */
typedef struct {
    Rig g;
    Plain m;
} Bench;
static void bench_open(Bench *b, KvShape s, int P) {
    rig_open(&b->g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1, 1 << 20);
    plain_open(&b->m, &s, 1, 3, 100, 40, P);
}
static void bench_close(Bench *b) {
    plain_close(&b->m);
    rig_close(&b->g);
}
/* A pass of n rows of one sequence, of which a new document takes those from `start` on (n: none does). */
static void extend(Bench *b, int seq, int n, int start, int accept, bool end) {
    Plain *m = &b->m;
    Err e = {0};
    Dice dice = {99, m->passes};
    int len = m->h[0][seq].n;
    do plain_pass(m, &b->g, &dice, n, false); /* for its K/V: any pass with rows enough */
    while (m->b.N < n);
    for (int i = 0; i < n; i++) {
        m->of[i] = 0;
        m->first[i] = i >= start ? start : -1;
        m->pos[i] = i >= start ? i - start : len + i;
    }
    m->seq[0] = seq, m->off[0] = 0, m->off[1] = n, m->accept[0] = accept;
    m->b.B = 1, m->b.N = n;
    cr_assert(plain_begin(m, &e), "%s", e.msg);
    plain_append(m);
    if (end) plain_end(m);
}
#define ROWS(b, seq) kv_rows(kv_slot(&(b).m.c, 0), seq, 0)
#define PAGES(b)     kv_pages(kv_slot(&(b).m.c, 0))

Test(cache, window_and_sinks_keep_what_the_next_query_sees) {
    for (int P = 1; P <= 4; P++) {
        Bench b;
        bench_open(&b, (KvShape){.lanes = 1, .kdim = 2, .vdim = 2, .window = 5, .sinks = 3}, P);
        extend(&b, 0, 2, 0, 2, true);
        cr_assert(ROWS(b, 0) == 2);
        for (int n = 2; n < 99; n++) {
            extend(&b, 0, 1, 1, 1, true);
            cr_assert(ROWS(b, 0) == imin(n + 1, 3 + 4), "%d of %d", ROWS(b, 0), n + 1);
            cr_assert(PAGES(b) <= (3 + P - 1) / P + (4 + P - 1) / P + 1, "pages of %d: %d", P, PAGES(b));
        }
        plain_check(&b.m, "99 rows");
        bench_close(&b);
    }
}
Test(cache, fork_shares_until_written) {
    Bench b;
    bench_open(&b, (KvShape){.lanes = 1, .kdim = 2, .vdim = 2, .state = 4}, 4);
    extend(&b, 0, 10, 0, 10, true); /* pages of 4, 4, 2 */
    cr_assert(PAGES(b) == 3);
    plain_fork(&b.m, 0, 1), plain_fork(&b.m, 1, 2);
    cr_assert(PAGES(b) == 3, "a fork copies %d pages", PAGES(b) - 3);
    const int used[] = {1, 1, 1}, two[] = {0, 1, 1};
    cr_assert_eq(kv_resident(&b.m.c, used), (10 * 4 + 3 * 4) * sizeof(real));
    plain_check(&b.m, "forked");
    extend(&b, 1, 1, 1, 1, true); /* into the page that three share */
    cr_assert(PAGES(b) == 4);
    extend(&b, 1, 1, 1, 1, true);
    cr_assert(PAGES(b) == 4, "a page of one's own is copied again");
    cr_assert_eq(kv_resident(&b.m.c, used), ((8 + 2 + 4) * 4 + 3 * 4) * sizeof(real));
    cr_assert_eq(kv_resident(&b.m.c, two), ((8 + 2 + 4) * 4 + 2 * 4) * sizeof(real));
    plain_check(&b.m, "one went on");
    extend(&b, 0, 3, 3, 3, true); /* fills its copy and one page more */
    cr_assert(PAGES(b) == 6);
    plain_check(&b.m, "two went on");
    plain_drop(&b.m, 0);
    plain_check(&b.m, "the source is evicted");
    cr_assert(PAGES(b) == 4 && ROWS(b, 1) == 12 && ROWS(b, 2) == 10);
    plain_drop(&b.m, 1), plain_drop(&b.m, 2);
    cr_assert(PAGES(b) == 0);
    bench_close(&b);
}
Test(cache, rejected_rows_leave_no_trace) {
    Bench b;
    bench_open(&b, (KvShape){.lanes = 2, .kdim = 2, .vdim = 3}, 4);
    extend(&b, 0, 5, 0, 5, true);
    int pages = PAGES(b);
    extend(&b, 0, 20, 20, 0, true);
    cr_assert(PAGES(b) == pages && ROWS(b, 0) == 5);
    extend(&b, 0, 20, 20, 2, true); /* the same positions again */
    cr_assert(ROWS(b, 0) == 7);
    extend(&b, 0, 4, 1, 1, true); /* a new document begins behind what is accepted */
    cr_assert(ROWS(b, 0) == 8);
    plain_check(&b.m, "verified");
    bench_close(&b);
}
Test(cache, a_new_document_drops_the_old_at_the_end) {
    Bench b;
    bench_open(&b, (KvShape){.lanes = 1, .kdim = 2, .vdim = 2}, 4);
    extend(&b, 0, 10, 0, 10, true);
    extend(&b, 0, 6, 2, 6, false);
    plain_check(&b.m, "the old document during the pass"); /* its layers still look at it */
    plain_end(&b.m);
    cr_assert(ROWS(b, 0) == 4, "%d rows", ROWS(b, 0));
    plain_check(&b.m, "the new one");
    bench_close(&b);
}

/* A lane whose every row is looked at after every pass: what the cache has to hold, row by row. */
enum { WALK_LANES = 2, WALK_ROWS = 110 };
typedef struct {
    int pos[WALK_ROWS], n, tail;
    bool gone[WALK_ROWS];
} Walk;
static void walk_pass(Walk *w, const Plain *m, int h, int delay) {
    const real *evicted = R(m->kv[0].evicted);
    const int n = m->b.N, next = m->pos[n - 1] + 1;
    bool tail = w->n && evicted[h] != 0;
    if (tail) w->gone[w->tail] = true;
    for (int j = 0; j < n; j++) {
        const bool gone = j + 1 < n && evicted[(j + 1) * WALK_LANES + h] != 0;
        if (gone && next - m->pos[j] > delay) continue;
        w->pos[w->n] = m->pos[j], w->gone[w->n] = gone, w->tail = w->n++;
    }
    for (int row = 0; row < w->n;) {
        if (!w->gone[row] || next - w->pos[row] <= delay) {
            row++;
            continue;
        }
        if (w->tail == --w->n) w->tail = row;
        w->pos[row] = w->pos[w->n], w->gone[row] = w->gone[w->n];
    }
}
/* The cache looks at no more rows than a pass has tokens, however long the context, and keeps the rows that a walk over
 * all of them keeps, in the same places. */
Test(cache, expiry_does_not_grow_with_context) {
    static const int delays[] = {0, 1, 5, 40, 200};
    for (int i = 0; i < 5; i++) {
        Bench b;
        static Walk w[WALK_LANES];
        int moved = 0;
        memset(w, 0, sizeof w);
        bench_open(&b, (KvShape){.lanes = WALK_LANES, .kdim = 2, .vdim = 2, .evicts = true, .delay = delays[i]}, 4);
        for (int step = 0; b.m.h[0][0].n < 90; step++) {
            const int n = step % 5 ? 1 : 1 + (int)(rng_mix((uint64_t)i, (uint64_t)step) % 9), len = b.m.h[0][0].n;
            Mark mark = arena_mark(&b.g.mem);
            const size_t before = b.m.c.visited;
            extend(&b, 0, n, len ? n : 0, n, true);
            const size_t visited = b.m.c.visited - before;
            cr_assert(visited <= (size_t)(n * WALK_LANES), "%zu rows looked at for %d tokens after %d", visited, n,
                      len);
            for (int h = 0; h < WALK_LANES; h++) {
                const Lanes *t = kv_lanes(kv_slot(&b.m.c, 0));
                walk_pass(&w[h], &b.m, h, delays[i]);
                cr_assert_eq(kv_rows(kv_slot(&b.m.c, 0), 0, h), w[h].n, "delay %d step %d", delays[i], step);
                for (int r = 0; r < w[h].n; r++) {
                    const int row = t->lo[h] + r, page = t->table[h * t->maxpages + row / t->P % t->maxpages];
                    cr_assert_eq(t->pos[page * t->P + row % t->P], w[h].pos[r], "delay %d step %d row %d", delays[i],
                                 step, r);
                    moved += r && w[h].pos[r] < w[h].pos[r - 1];
                }
            }
            plain_check(&b.m, "expired");
            arena_release(&b.g.mem, mark);
            if (step % 7 == 6) { /* a fork continues as its source would */
                plain_fork(&b.m, 0, 1), plain_drop(&b.m, 0), plain_fork(&b.m, 1, 0);
            }
        }
        cr_assert(moved || delays[i] != 5, "no row has moved");
        bench_close(&b);
    }
}
Test(cache, slots_without_rows) {
    Err e = {0};
    Cache c;
    const KvShape s[] = {{0}, {.state = 7}};
    cr_assert(kv_open(&c, s, 2, 2, 100, 10, 0, true, false, &e), "%s", e.msg);
    cr_assert(kv_pages(kv_slot(&c, 0)) == 0 && kv_pages(kv_slot(&c, 1)) == 0);
    cr_assert(!present(kv_state(kv_slot(&c, 0))) && tensor_count(kv_state(kv_slot(&c, 1))) == 14);
    cr_assert(kv_bytes(&c, 0) == 7 * sizeof(real));
    kv_close(&c);
}
Test(cache, too_large_for_this_machine) {
    Err e = {0};
    Cache c;
    const KvShape s = {.lanes = 8, .kdim = 1024, .vdim = 1024};
    cr_assert(kv_open(&c, &s, 1, 512, 1 << 20, 512, 0, false, true, &e));
    size_t least = (size_t)512 * 8 * (1 << 20) * 2048 * sizeof(real); /* more rows than an int counts */
    cr_assert(c.mem.peak > least && c.mem.peak < least / 100 * 101, "planned %zu bytes, expected a little over %zu",
              c.mem.peak, least);
    kv_close(&c);
    cr_assert(!kv_open(&c, &s, 1, 512, 1 << 20, 512, 0, false, false, &e) && e.status == EXIT_RUNTIME &&
                  strstr(e.msg, "cache"),
              "%s", e.msg);
    kv_close(&c);
}
Test(cache, more_pages_than_can_be_counted) {
    Err e = {0};
    Cache c;
    const KvShape s = {.lanes = 64, .kdim = 1, .vdim = 1};
    cr_assert(!kv_open(&c, &s, 1, 4096, 1 << 22, 512, 0, false, true, &e) && e.status == EXIT_RUNTIME &&
                  strstr(e.msg, "out of memory"),
              "%s", e.msg);
}
Test(cache, fields_of_a_pass) {
    Arena m = {.name = "m"};
    Fields f = arena_placer(&m);
    Kv kv = {0}, none = {0};
    kv_fields(&(KvShape){.lanes = 2, .kdim = 3, .vdim = 5, .window = 9}, 7, &kv, &f);
    char a[64], b[64];
    cr_assert(!strcmp(tensor_shape(kv.k, a), "(7,2,3)") && !strcmp(tensor_shape(kv.v, b), "(7,2,5)") &&
                  kv.s.window == 9,
              "%s %s", a, b);
    kv_fields(&(KvShape){.state = 3}, 7, &none, &f);
    cr_assert(!present(none.k) && !present(none.v) && none.s.state == 3);
}
#define ABORTS(name) Test(cache, name, .signal = SIGABRT, .init = cr_redirect_stderr)
static void misuse(int what) {
    Bench b;
    bench_open(&b, (KvShape){.lanes = 1, .kdim = 2, .vdim = 2}, 4);
    if (what == 0) kv_fork(&b.m.c, 1, 1);
    if (what == 1) kv_slot(&b.m.c, 1);
    if (what == 2) kv_slot(&b.m.c, -1);
    if (what == 3) extend(&b, 3, 1, 0, 1, true);
}
ABORTS(fork_onto_itself) { misuse(0); }
ABORTS(slot_past_the_end) { misuse(1); }
ABORTS(slot_below_zero) { misuse(2); }
ABORTS(sequence_past_the_end) { misuse(3); }
