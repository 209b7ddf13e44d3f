/* test_cuda_tables.c: the device's copy of the cache's tables: over drawn passes, forks and drops it is what the host
 * has, where a kernel looks; and a step brings over the words that it changed, not the context. */
#include "tests/lib/cache_model.h"
#include "infer/session.h"
#include "ops/graph.h"
#include "ops/host.h"
#include "tests/lib/zoo.h"
#include <criterion/redirect.h>
#include <setjmp.h>
#include <signal.h>

/* ---- the copy is the host's ------------------------------------------------------------------------------------ */
/* Words of n bytes each that differ. */
static int differ(Device *d, const void *host, const void *there, size_t i, size_t n, size_t each) {
    char got[256];
    int bad = 0;
    for (size_t from = 0; from < n * each; from += sizeof got) {
        size_t some = zmin(sizeof got, n * each - from);
        device_read(d, got, (const char *)there + i * each + from, some);
        for (size_t k = 0; k < some; k++) bad += got[k] != ((const char *)host)[i * each + from + k];
    }
    return bad;
}
/* Of what a kernel reads: lengths of all lanes, and for each visible row its page, position and whether it is
 * evicted. */
static int tables_differ(Device *d, const Slot *s) {
    const Lanes *t = kv_lanes(s), *c = kv_lanes_there(s);
    size_t n = (size_t)t->nseq * (size_t)t->s.lanes, one = sizeof(int);
    int bad =
        differ(d, t->s0, c->s0, 0, n, one) + differ(d, t->lo, c->lo, 0, n, one) + differ(d, t->hi, c->hi, 0, n, one);
    if (t->s.evicts) bad += differ(d, t->tail, c->tail, 0, n, one);
    for (size_t l = 0; l < n; l++)
        for (int row = imin(t->s0[l], t->lo[l]); row < t->hi[l]; row++) {
            if (row >= t->s0[l] + t->s.sinks && row < t->lo[l]) continue;
            size_t e = l * (size_t)t->maxpages + (size_t)(row / t->P % t->maxpages),
                   at = (size_t)t->table[e] * (size_t)t->P + (size_t)(row % t->P);
            if (t->table[e] < 0 || differ(d, t->table, c->table, e, 1, one)) {
                bad++;
                continue;
            }
            bad += differ(d, t->pos, c->pos, at, 1, one);
            if (t->s.evicts) bad += differ(d, t->evicted, c->evicted, at, 1, sizeof *t->evicted);
        }
    return bad;
}
/* A word that the host changes without a word about it is found, whichever table it stands in. */
static int planted(Device *d, const Slot *s, int lane) {
    const Lanes *t = kv_lanes(s);
    int row = t->hi[lane] - 1, *table = &t->table[lane * t->maxpages + row / t->P % t->maxpages],
        *const word[] = {&t->s0[lane],
                         &t->lo[lane],
                         &t->hi[lane],
                         table,
                         &t->pos[*table * t->P + row % t->P],
                         t->tail ? &t->tail[lane] : NULL};
    int n = 0;
    for (size_t i = 0; i < sizeof word / sizeof *word; i++) {
        if (!word[i]) continue;
        int was = *word[i];
        *word[i] = word[i] == &t->hi[lane] ? was - 1 : was + 1;
        cr_assert(tables_differ(d, s) > 0, "word %zu that was not brought over goes unnoticed", i);
        *word[i] = was;
        n++;
    }
    if (t->evicted) {
        bool *gone = &t->evicted[*table * t->P + row % t->P];
        *gone ^= 1;
        cr_assert(tables_differ(d, s) > 0, "a row that evicted goes unnoticed");
        *gone ^= 1;
        n++;
    }
    cr_assert(tables_differ(d, s) == 0);
    return n;
}
static void append(Rig *g, Cache *c, Plain *m) {
    Err e = {0};
    for (int i = 0; i < m->nslots; i++) {
        Arena host = {.name = "host"};
        g->scratch = (Arena){.name = "scratch"};
        g->run.host = &host;
        kv_append(&g->run, kv_slot(c, i), &m->kv[i], m->accept);
        cr_assert(arena_open_at(&g->scratch, device_memory(g->dev, false), "scratch", g->scratch.peak, true, &e) &&
                      arena_open(&host, "host", host.peak, true, &e),
                  "%s", e.msg);
        kv_append(&g->run, kv_slot(c, i), &m->kv[i], m->accept);
        arena_close(&g->scratch), arena_close(&host);
        g->run.host = g->run.scratch;
    }
}
enum { SLOTS = 4, SEQS = 3, ROOM = 60, ROWS = 40, PASSES = 30, DRAWS = 4 };
Test(cuda_lanes, a_device_sees_what_the_host_wrote, .timeout = 300) {
    static const int page_rows[DRAWS] = {1, 3, 4, 16};
    const KvShape s[SLOTS] = {
        {.lanes = 2, .kdim = 3, .vdim = 2},
        {.lanes = 1, .kdim = 2, .vdim = 1, .window = 7, .sinks = 3},
        {.lanes = 2, .kdim = 2, .vdim = 2, .evicts = true},
        {.lanes = 1, .kdim = 2, .vdim = 2, .evicts = true, .delay = 4, .carry = 2, .carry_rows = 3}};
    int rows = 0, found = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        Dice dice = {rng_mix(0x7AB1E5, (uint64_t)draw), 0};
        Rig g;
        Plain m;
        Cache c;
        Err e = {0};
        rig_open(&g, rig_first(), 1, (size_t)4 << 20);
        plain_open(&m, s, SLOTS, SEQS, ROOM, ROWS, page_rows[draw]);
        cr_assert(kv_open_at(&c, g.dev, s, SLOTS, SEQS, ROOM, ROWS, page_rows[draw], true, false, &e), "%s", e.msg);
        for (int pass = 0; pass < PASSES; pass++) {
            Mark mark = arena_mark(&g.mem);
            int one = roll(&dice, SEQS), other = (one + 1 + roll(&dice, SEQS - 1)) % SEQS, what = roll(&dice, 6);
            if (what == 0) plain_fork(&m, one, other), kv_fork(&c, one, other);
            if (what == 1) plain_drop(&m, one), kv_drop(&c, one);
            plain_pass(&m, &g, &dice, pass % 4 ? 2 : 12, false);
            cr_assert(plain_begin(&m, &e) && kv_begin(&c, &m.b, &e), "%s", e.msg);
            for (int i = 0; i < SLOTS; i++) {
                const Lanes *t = kv_lanes(kv_slot(&c, i)), *cpu = kv_lanes(kv_slot(&m.c, i));
                size_t n = (size_t)(t->nseq * t->s.lanes);
                CHECK_BYTES("lengths, on either side", t->hi, cpu->hi, n * sizeof(int));
                CHECK_BYTES("tables, on either side", t->table, cpu->table, n * (size_t)t->maxpages * sizeof(int));
                cr_assert_eq(tables_differ(g.dev, kv_slot(&c, i)), 0, "draw %d, pass %d, slot %d", draw, pass, i);
                for (size_t l = 0; l < n; l++) rows += t->hi[l] - t->lo[l];
                if (pass == PASSES / 2 && t->hi[0] > t->lo[0]) found += planted(g.dev, kv_slot(&c, i), 0);
            }
            plain_append(&m), append(&g, &c, &m);
            plain_end(&m), kv_end(&c, &m.b, m.accept);
            arena_release(&g.mem, mark);
        }
        kv_close(&c);
        plain_close(&m);
        rig_close(&g);
    }
    cr_assert(rows > 1000 && found > 20, "%d rows, %d planted words", rows, found);
}

/* More words than one copy takes, bytes inside of words, and flush upon flush that nobody waits for: each device sees
 * what was there when it was asked for. */
Test(cuda_lanes, words_go_over_as_they_were, .timeout = 60) {
    enum { WORDS = 200000, TIMES = 7 };
    static uint32_t host[WORDS], want[TIMES][WORDS], got[WORDS];
    const size_t bytes = sizeof host;
    Device *d;
    Err e = {0};
    Arena a;
    DirtyCopy *m;
    Dice dice = {11, 0};
    cr_assert(device_open(&d, "cuda", 1, &e), "%s", e.msg);
    cr_assert(arena_open_at(&a, device_memory(d, false), "words", 10 * bytes + 4096, true, &e), "%s", e.msg);
    char *there = arena_take(&a, bytes, "there"), *mem = arena_take(&a, dirty_copy_bytes(bytes), "under way"),
         *seen[TIMES];
    cr_assert(dirty_copy_bytes(bytes) < 2 * bytes && dirty_copy_open(&m, d, host, there, bytes, mem, &e), "%s", e.msg);
    for (int k = 0; k < TIMES; k++) {
        for (int i = 0; i < (k ? 3000 : WORDS); i++) {
            int w = k ? roll(&dice, WORDS) : i;
            unsigned char *p = (unsigned char *)&host[w];
            if (k % 2) {
                p += roll(&dice, 3);
                p[0]++, p[1]--;
                dirty_copy_changed(m, p, 2);
            } else {
                host[w] += (uint32_t)i + 1;
                dirty_copy_changed(m, p, 4);
            }
        }
        cr_assert(dirty_copy_behind(m));
        dirty_copy_flush(m);
        cr_assert(!dirty_copy_behind(m));
        memcpy(want[k], host, bytes);
        device_copy(d, seen[k] = arena_take(&a, bytes, "seen"), there, bytes);
        memset(host, 0xEE, bytes); /* it is the host's own again */
        memcpy(host, want[k], bytes);
    }
    for (int k = 0; k < TIMES; k++) {
        device_read(d, got, seen[k], bytes);
        CHECK_BYTES("words of a time", got, want[k], bytes);
    }
    dirty_copy_close(m);
    arena_close(&a);
    device_close(d);
}

/* Rows are looked at before kv_begin has brought over where they lie. */
static void looks(Rig *g, Cache *c, const Kv *kv) {
    kv_attend(&g->run, kv_slot(c, 0), kv, ABSENT, ABSENT, ABSENT, (AttnSpec){.heads = 1, .scale = 1}, false);
}
static sigjmp_buf refused;
static void aborted(int signal) {
    (void)signal;
    siglongjmp(refused, 1);
}
Test(cuda_lanes, what_was_not_brought_over_is_not_read, .init = cr_redirect_stderr) {
    const KvShape s = {.lanes = 1, .kdim = 2, .vdim = 2};
    Rig g;
    Cache c;
    Err e = {0};
    Arena a;
    int zero = 0, off[] = {0, 0};
    Batch b = {.B = 1, .off = off, .seq = &zero, .of = &zero, .pos = &zero, .first = &zero};
    rig_open(&g, rig_first(), 1, 1 << 16);
    cr_assert(kv_open_at(&c, g.dev, &s, 1, 1, 8, 8, 4, true, false, &e) && kv_begin(&c, &b, &e), "%s", e.msg);
    cr_assert(arena_open_at(&a, device_memory(g.dev, false), "scratch", 1 << 12, true, &e), "%s", e.msg);
    g.run.scratch = g.run.host = &a;
    looks(&g, &c, &(Kv){.s = s}); /* of no row */
    kv_lanes(kv_slot(&c, 0))->hi[0] = 1;
    cr_assert(!dirty_copy_behind(c.mirror));
    kv_drop(&c, 0);
    cr_assert(dirty_copy_behind(c.mirror));
    signal(SIGABRT, aborted); /* from here on; what came before returns */
    if (!sigsetjmp(refused, 1)) {
        looks(&g, &c, &(Kv){.s = s});
        cr_assert_fail("rows were looked at where the device has not seen that they moved");
    }
    signal(SIGABRT, SIG_DFL);
}

/* ---- what goes over
 * ------------------------------------------------------------------------------------------------- */
unsigned long simt_uploads(void) __attribute__((weak));
unsigned long simt_upload_bytes(void) __attribute__((weak));
typedef struct {
    unsigned long copies, bytes;
} Went;
static Went went(void) { return (Went){simt_uploads(), simt_upload_bytes()}; }
/* What one step of decoding brings over behind a context of so many tokens; replayed: by a recording. */
static Went step_of(const char *name, int context, bool plain, int *lanes) {
    enum { B = 2, VOCAB = 11 };
    const Animal *a = &zoo[zoo_find(name)];
    ModelCfg cfg;
    Device *dev = NULL;
    Model m;
    Session s;
    Err e = {0};
    real logits[B * VOCAB];
    cr_assert(model_cfg_from_json(&cfg, a->json, strlen(a->json), a->name, &e), "%s: %s", a->name, e.msg);
    cr_assert(device_open(&dev, "cuda", 1, &e) && model_open(&m, dev, &cfg, (ModelOpts){.poison = true}, &e), "%s",
              e.msg);
    model_init(&m, 7);
    SessionOpts o = {.nseq = B, .max_tokens = 400, .chunk = 64, .page_rows = 64, .document = -1, .plain = plain};
    cr_assert(cfg.vocab == VOCAB && session_open(&s, &m, o, &e), "%s", e.msg);
    int *tok = xcalloc((size_t)context, sizeof *tok);
    for (int i = 0; i < context; i++) tok[i] = i % VOCAB;
    Feed f[B] = {{0, context, tok}, {1, context, tok}};
    Went before = {0}, after = {0};
    for (int step = 0; step < 5; step++) {
        before = went();
        cr_assert(session_extend(&s, B, f, WANT_LAST, TENSOR(logits, REAL, B, VOCAB), &e), "%s", e.msg);
        after = went();
        f[0].n = f[1].n = 1;
    }
    *lanes = 0;
    for (int l = 0; l < m.L; l++) *lanes += B * (m.layer[l].owner ? m.layer[l].rows.lanes : 0);
    cr_assert((graphs_replayed(s.cache.graphs) > 0) == !plain);
    free(tok);
    session_close(&s);
    zoo_close(&cfg, &m, NULL, dev);
    return (Went){after.copies - before.copies, after.bytes - before.bytes};
}
/* A word of a lane is a position, its length, and where it has a window the begin of that; with its number 8 bytes.
 * What a step brings over besides (ids, places, where rows go) is the same for all contexts. */
Test(cuda_lanes, a_step_brings_over_what_it_changed, .timeout = 300) {
    if (!simt_upload_bytes) cr_skip("a device counts no copies");
    static const char *const names[] = {"gqa", "mla", "window with sinks"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int plain = 0; plain < 2; plain++) {
            int lanes = 0;
            Went near = step_of(names[i], 20, plain, &lanes), far = step_of(names[i], 340, plain, &lanes);
            cr_assert(far.bytes == near.bytes && far.copies == near.copies,
                      "%s: %lu bytes in %lu copies behind 20 tokens, %lu in %lu behind 340", names[i], near.bytes,
                      near.copies, far.bytes, far.copies);
            cr_assert(lanes > 0 && (plain || near.copies == 3), "%s: %lu copies", names[i], near.copies);
        }
}
/* The tables alone, to the word. */
Test(cuda_lanes, tables_go_over_by_words, .timeout = 60) {
    if (!simt_upload_bytes) cr_skip("a device counts no copies");
    enum { N = 3 };
    const KvShape s[] = {{.lanes = 2, .kdim = 2, .vdim = 2}, {.lanes = 3, .kdim = 2, .vdim = 2, .window = 9}};
    Device *dev;
    Cache c;
    Err e = {0};
    int tok = 0, from = 40, seq[N], off[N + 1], of[N * 40], pos[N * 40], first[N * 40];
    cr_assert(device_open(&dev, "cuda", 1, &e) && kv_open_at(&c, dev, s, 2, N, 60, N * 40, 64, true, false, &e), "%s",
              e.msg);
    for (int pass = 0; pass < 4; pass++) { /* a prompt, then steps */
        int n = pass ? 1 : from;
        Batch b = {
            .B = N, .N = N * n, .off = off, .seq = seq, .of = of, .pos = pos, .first = first, .history = pass > 0};
        for (int q = 0; q < N; q++) {
            seq[q] = q, off[q] = q * n, off[q + 1] = (q + 1) * n;
            for (int i = 0; i < n; i++)
                of[q * n + i] = q, pos[q * n + i] = tok + i, first[q * n + i] = pass ? -1 : q * n;
        }
        Went before = went();
        cr_assert(kv_begin(&c, &b, &e), "%s", e.msg);
        Went after = went();
        /* lengths as they are opened, and a page for each lane; then the prompt's rows, and of a window its begin */
        int lanes = N * 5, windows = N * 3,
            words = pass == 0   ? 3 * lanes + lanes
                    : pass == 1 ? lanes * from + lanes + windows
                                : 2 * lanes + windows;
        cr_assert(after.copies - before.copies == 1 && after.bytes - before.bytes == 8 * (unsigned long)words,
                  "pass %d: %lu bytes in %lu copies, of %d words", pass, after.bytes - before.bytes,
                  after.copies - before.copies, words);
        Arena mem = {0}, scratch = {0}, host = {0};
        for (int measure = 1; measure >= 0; measure--) {
            Run r = run_make(dev, &scratch);
            r.host = &host, r.batch = &b;
            for (int i = 0; i < 2; i++) {
                Mark mark = arena_mark(&mem);
                Kv kv = {.s = s[i],
                         .k = arena_tensor(&mem, "k", REAL, 3, (int[]){b.N, s[i].lanes, 2}),
                         .v = arena_tensor(&mem, "v", REAL, 3, (int[]){b.N, s[i].lanes, 2})};
                if (!measure)
                    device_zero(dev, kv.k.p, tensor_bytes(kv.k)), device_zero(dev, kv.v.p, tensor_bytes(kv.v));
                kv_append(&r, kv_slot(&c, i), &kv, NULL);
                arena_release(&mem, mark);
            }
            if (measure)
                cr_assert(arena_open_at(&mem, device_memory(dev, false), "rows", mem.peak, false, &e) &&
                          arena_open_at(&scratch, device_memory(dev, false), "scratch", scratch.peak, false, &e) &&
                          arena_open(&host, "host", host.peak, false, &e));
        }
        kv_end(&c, &b, NULL);
        tok += n;
        arena_close(&mem), arena_close(&scratch), arena_close(&host);
    }
    kv_close(&c);
    device_close(dev);
}
