/* test_blocks.c: codecs that store rows together, under the models of the zoo: what rows look like behind every cut,
 * bytes, forks, sequences that go back, and what refuses them. */
#include "layers/cache/codec.h"
#include "model/cost.h"
#include "tests/lib/block_model.h"
#include "tests/lib/rig.h"

enum { T = BLOCK_TOKENS, CHUNK = BLOCK_CHUNK };
static bool evicts(int i) { return zoo_decides(&zoo[i]) && !strstr(zoo[i].json, "\"phase\":\"zero\""); }
/* A model with rows whose queries this codec cannot ask; or a codec that merges rows, which test_minicache.c has. */
static bool unasked(int i, const RowCodec *c) {
    return c->merges || (c->salient_bits && (strstr(zoo[i].json, "\"window\"") || strstr(zoo[i].json, "\"soft_cap\"") ||
                                             zoo_decides(&zoo[i])));
}
static void open_case(BlockCase *c, int i, const RowCodec *codec) {
    *c = (BlockCase){0};
    zoo_open(&zoo[i], &c->cfg, &c->m, NULL, &c->dev, (ModelOpts){.codec = codec});
}
/* Of the logits that rows as computed give, relative. */
static double most_apart(const RowCodec *c) { return c->bits == 4 ? 0.4 : c->bits == 3 ? 0.7 : 1.3; }

/* The first 64 rows see rows as they were computed, so nothing is different; later ones see the first through the
 * codec. In double all cuts agree to the last digits; in f32 a sum that falls on the other side of a rounding changes a
 * code. */
Test(blocks, rows_look_the_same_behind_every_cut, .timeout = 600) {
    int rounded = 0;
    double worst = 0;
    for (int k = 0; codec_at(k); k++)
        for (int i = k % 3; i < zoo_count() && codec_at(k)->block; i += 3) {
            const RowCodec *codec = codec_at(k);
            static const int first[] = {1, 63, 64, 65, 130}, piece[] = {1, 150, 7, 64, 19};
            BlockCase c, plain;
            int tok[T];
            if (evicts(i) || unasked(i, codec)) continue;
            open_case(&c, i, codec);
            open_case(&plain, i, NULL);
            const size_t V = (size_t)c.cfg.vocab, n = T * V, before = (size_t)codec->block * V;
            real *whole = xcalloc(n, sizeof *whole), *cut = xcalloc(n, sizeof *cut), *wide = xcalloc(n, sizeof *wide);
            block_text(tok, c.cfg.vocab, (uint64_t)i);
            block_logits(&c, tok, T, T, whole);
            block_logits(&plain, tok, T, T, wide);
            cr_assert(block_decides(i) || block_distance(whole, wide, before) < (REAL == F64 ? 1e-12 : 1e-5),
                      "%s, %s: the first block is read in codes", codec->name, zoo[i].name);
            const double apart = block_distance(whole + before, wide + before, n - before);
            cr_assert(block_decides(i) || apart < most_apart(codec), "%s, %s: %.3g from a wide cache", codec->name,
                      zoo[i].name, apart);
            rounded += apart > 1e-5;
            for (int j = 0; j < 5; j++) {
                block_logits(&c, tok, first[j], piece[j], cut);
                const double off = block_distance(cut, whole, n);
                if (!block_decides(i)) worst = fmax(worst, off);
                cr_assert(off <= (REAL == F64 ? 1e-9 : most_apart(codec) / 2) || (block_decides(i) && REAL == F32),
                          "%s, %s, cut at %d: %.3g", codec->name, zoo[i].name, first[j], off);
            }
            free(whole), free(cut), free(wide);
            block_close(&c), block_close(&plain);
        }
    cr_assert(rounded > zoo_count() / 2, "%d models were rounded", rounded);
    fprintf(stderr, "blocks: cuts differ by %.3g at most\n", worst);
}

/* Bytes of n numbers: a head for each group, and whole words of codes; of codes of 3 bits two words apart. */
static size_t piece(const RowCodec *c, int n) {
    size_t bytes = 0;
    for (int left = n; left > 0; left -= c->group) {
        const int k = imin(left, c->group);
        bytes += c->apart ? 8 : 4;
        bytes += c->bits == 3 ? 4 * (size_t)((2 * k + 31) / 32 + (k + 31) / 32) : 4 * (size_t)((c->bits * k + 31) / 32);
    }
    return bytes;
}
/* Bytes of a group of codes with its head. */
static size_t group(int bits, int n) { return n ? 4 + 4 * (size_t)((n * bits + 31) / 32) : 0; }
/* Of a block of a codec: 38 rows of 64 have 4 bits, the others 2, where some are salient. */
static size_t block_of(const RowCodec *c, const KvShape *s) {
    const int D = s->kdim, Dv = s->alias ? 0 : s->vdim;
    if (!c->salient_bits) return (size_t)D * piece(c, 64) + (Dv ? 64 * piece(c, Dv) : 0);
    return 8 + (size_t)D * (group(4, 38) + group(2, 26)) + 4 * (size_t)((Dv + 1) / 2) + 38 * group(4, Dv) +
           26 * group(2, Dv);
}
/* Bytes that a lane of n rows has, of which those of a window stay. */
static size_t bytes_of(const RowCodec *c, const KvShape *s, int n) {
    const int lo = s->window ? imax(0, n - (s->window - 1)) : 0, sinks = imin(s->sinks, lo);
    const size_t block = block_of(c, s);
    size_t rows = 0, blocks = 0;
    for (int from = 0; from < n; from += 64) {
        int held = 0;
        for (int j = from; j < imin(n, from + 64); j++) held += j >= lo || j < sinks;
        if (from + 64 > n)
            rows += (size_t)held;
        else
            blocks += held > 0;
    }
    return blocks * block + rows * (size_t)(s->kdim + (s->alias ? 0 : s->vdim)) * sizeof(real);
}
Test(blocks, bytes_are_those_of_blocks_and_rows_that_wait, .timeout = 300) {
    for (int k = 0; codec_at(k); k++)
        for (int i = k % 2; i < zoo_count() && codec_at(k)->block; i += 2) {
            const RowCodec *codec = codec_at(k);
            CacheCost *cost = xcalloc(1, sizeof *cost);
            BlockCase c;
            Session s;
            Err e = {0};
            int tok[T];
            if (evicts(i) || unasked(i, codec)) continue;
            open_case(&c, i, codec);
            block_text(tok, c.cfg.vocab, 3);
            block_session(&s, &c, 2);
            block_feed(&s, 0, T, tok, NULL);
            cost_cache(&c.m, T, cost);
            const size_t have = session_bytes(&s, 0);
            size_t rows = 0, mapped;
            for (int l = 0; l < c.m.L; l++)
                if (c.m.layer[l].owner && c.m.layer[l].rows.lanes)
                    rows += (size_t)c.m.layer[l].rows.lanes * bytes_of(codec, &c.m.layer[l].rows, T);
            cr_assert(have == cost->bytes_at_context && have == rows + cost->state_bytes,
                      "%s, %s: %zu resident, %zu by the cost model, %zu counted", codec->name, zoo[i].name, have,
                      cost->bytes_at_context, rows + cost->state_bytes);
            session_fork(&s, 0, 1);
            cr_assert(session_resident(&s) == have + cost->state_bytes, "%s, %s: a fork has blocks of its own",
                      codec->name, zoo[i].name);
            session_close(&s);
            cr_assert(cost_cache_mapped(&c.m, 1, T, CHUNK, &mapped, &e));
            Cache cache;
            cr_assert(model_cache_open(&c.m, &cache, 1, T, CHUNK, 0, false, &e));
            cr_assert(cache.mem.size == mapped && cache.mem.used == mapped);
            kv_close(&cache);
            free(cost);
            block_close(&c);
        }
}

/* A sequence goes back into its newest block, or to the end of one before it, and a fork continues apart: both as a
 * sequence of the same tokens that never did. */
Test(blocks, sequences_fork_and_go_back, .timeout = 300) {
    int went = 0;
    for (int i = 0; i < zoo_count(); i += 2) {
        BlockCase c;
        Session s;
        int tok[T], other[T];
        const RowCodec *codec = (const RowCodec *[]){&codec_kvquant4, &codec_kivi4, &codec_zipcache}[i / 2 % 3];
        if (evicts(i)) continue;
        open_case(&c, i, unasked(i, codec) ? &codec_kivi4 : codec);
        block_text(tok, c.cfg.vocab, 1), block_text(other, c.cfg.vocab, 2);
        const size_t V = (size_t)c.cfg.vocab;
        real *back = xcalloc(T * V, sizeof *back), *fresh = xcalloc(T * V, sizeof *fresh);
        for (int to = 0; to < 140; to += to == 60 ? 4 : 20) {
            block_session(&s, &c, 3);
            went += block_back(&c, &s, i, to, tok, other, back, fresh) > 0;
            session_close(&s);
        }
        free(back), free(fresh);
        block_close(&c);
    }
    cr_assert(went > 50, "%d times", went);
}

/* ---- golden bytes ------------------------------------------------------------------------------------------------*/

static real golden_element(int which, int j, int k) {
    uint32_t x = (uint32_t)(which * 4096 + j * 64 + k) * 2654435761u + 12345u;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13;
    const double y = (x / 4294967296.0 - 0.5) * 4;
    return (real)(float)(which == 0 && k == 1 ? 20 + 9 * y : y);
}
/* A cache that is fed the golden rows, in pieces, has the bytes that golden/make_codecs.py writes by the rules
 * alone. */
static void golden_block(const RowCodec *codec, const char *hex) {
    enum { KEYS = 3, VALUES = 40, ROWS = 64 };
    const KvShape shape = {.lanes = 1, .kdim = KEYS, .vdim = VALUES, .codec = codec};
    Cache c;
    Rig g;
    Err e = {0};
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1, 1 << 20);
    cr_assert(kv_open(&c, &shape, 1, 1, 100, ROWS, 0, true, false, &e), "%s", e.msg);
    kv_turns(kv_slot(&c, 0), &(Rope){.n = 2, .factor = 1, .f = {0.3}});
    for (int at = 0, n; at < ROWS; at += n) {
        n = imin(ROWS - at, 1 + at % 23);
        int off[2] = {0, n}, seq = 0, of[ROWS] = {0}, pos[ROWS], first[ROWS];
        uint64_t id = 0;
        for (int i = 0; i < n; i++) pos[i] = at + i, first[i] = at ? -1 : 0;
        const Batch b = {1, n, off, &seq, of, pos, first, &id, at > 0, NULL};
        Mark mark = arena_mark(&g.mem);
        Kv kv = {.s = shape, .k = EMPTY(&g, "k", n, 1, KEYS), .v = EMPTY(&g, "v", n, 1, VALUES)};
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < KEYS; k++) R(kv.k)[i * KEYS + k] = golden_element(0, at + i, k);
            for (int k = 0; k < VALUES; k++) R(kv.v)[i * VALUES + k] = golden_element(1, at + i, k);
        }
        g.run.batch = &b;
        cr_assert(kv_begin(&c, &b, &e), "%s", e.msg);
        rig_use(&g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1);
        CALL(&g, (kv_append(&g.run, kv_slot(&c, 0), &kv, NULL), 0));
        kv_end(&c, &b, NULL);
        arena_release(&g.mem, mark);
    }
    const Lanes *t = kv_lanes(kv_slot(&c, 0));
    const size_t bytes = block_bytes(&shape);
    cr_assert(t->table[0] >= t->npages && strlen(hex) == 2 * bytes, "%s: %zu bytes", codec->name, bytes);
    const unsigned char *have = (const unsigned char *)lanes_block(t, t->table[0]);
    for (size_t i = 0; i < bytes; i++) {
        unsigned want;
        cr_assert(sscanf(hex + 2 * i, "%2x", &want) == 1 && have[i] == want, "%s: byte %zu is %02x, not %.2s",
                  codec->name, i, have[i], hex + 2 * i);
    }
    kv_close(&c);
    rig_close(&g);
}
Test(blocks, have_the_golden_bytes) {
    FILE *f = fopen("tests/golden/blocks.txt", "r");
    static char name[40], hex[8000];
    int lines = 0;
    Err e = {0};
    cr_assert(f, "tests/golden/blocks.txt");
    for (; fscanf(f, "%39s %7999s", name, hex) == 2; lines++) {
        RowCodec codec;
        cr_assert(codec_parse(name, &codec, &e), "%s", e.msg);
        golden_block(&codec, hex);
    }
    fclose(f);
    cr_assert(lines == 30, "%d lines", lines);
}

Test(blocks, are_refused_where_rows_leave_one_by_one) {
    int refused = 0;
    for (int i = 0; i < zoo_count(); i++) {
        ModelCfg cfg;
        Device *dev;
        Model m;
        Err e = {0};
        if (!evicts(i)) continue;
        cr_assert(model_cfg_from_json(&cfg, zoo[i].json, strlen(zoo[i].json), zoo[i].name, &e), "%s", e.msg);
        cr_assert(device_open(&dev, "cpu", 1, &e), "%s", e.msg);
        cr_assert(!model_open(&m, dev, &cfg, (ModelOpts){.codec = &codec_kivi2}, &e) && e.status == EXIT_INPUT &&
                      strstr(e.msg, "stores 64 together"),
                  "%s: %s", zoo[i].name, e.msg);
        refused++;
        device_close(dev), model_cfg_free(&cfg);
    }
    cr_assert(refused > 1);
}
