/* test_zipcache.c: ZipCache: bytes of blocks whose salient rows and codes golden/make_zipcache.py found by the rules
 * alone, how far a number may be off, numbers that are not finite, settings, and what refuses the codec. */
#include <math.h>
#include "infer/session.h"
#include "layers/cache/cache.h"
#include "layers/cache/codec.h"
#include "layers/cache/saved.h"
#include "ops/salient.h"
#include "tests/lib/block_model.h"
#include "tests/lib/rig.h"
#include "tests/lib/zoo.h"

enum { ROWS = 64, BLOCKS = 2, D_MOST = 6, DV_MOST = 12, HEADS_MOST = 4, LANES_MOST = 2 };
static real drawn(uint32_t which, uint32_t lane, uint32_t row, uint32_t k) {
    uint32_t x = (((which * 8 + lane) * 256 + row) * 32 + k) * 2654435761u + 12345u;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13;
    return (real)(float)((x / 4294967296.0 - 0.5) * 4);
}

/* ---- golden bytes ------------------------------------------------------------------------------------------------*/

static const KvShape shapes[] = {{.lanes = 2, .heads = 4, .kdim = 5, .vdim = 12},
                                 {.lanes = 1, .heads = 3, .kdim = 6, .vdim = 4, .alias = true}};
/* Rows at..at+n-1 of a document with their queries. */
static void golden_pass(Rig *g, Cache *c, const KvShape *s, int at, int n) {
    int off[2] = {0, n}, seq = 1, of[ROWS] = {0}, pos[ROWS], first[ROWS], idx[ROWS];
    uint64_t id = 0;
    Err e = {0};
    for (int i = 0; i < n; i++) pos[i] = at + i, first[i] = at ? -1 : 0, idx[i] = i;
    const Batch b = {1, n, off, &seq, of, pos, first, &id, at > 0, NULL};
    Mark mark = arena_mark(&g->mem);
    const int K = s->lanes, D = s->kdim, Dv = s->vdim, H = s->heads;
    Kv kv = {.s = *s, .k = EMPTY(g, "k", n, K, D), .v = s->alias ? ABSENT : EMPTY(g, "v", n, K, Dv)};
    const Probe p = {{n, idx}, EMPTY(g, "q", n, H, D), EMPTY(g, "lse", n, H)};
    for (int i = 0; i < n; i++) {
        const uint32_t row = (uint32_t)(at + i);
        for (int h = 0; h < K; h++)
            for (int k = 0; k < D; k++)
                R(kv.k)[(i * K + h) * D + k] = (k == 1 ? 4 : 1) * drawn(0, (uint32_t)h, row, (uint32_t)k);
        for (int h = 0; h < K && !s->alias; h++)
            for (int k = 0; k < Dv; k++)
                R(kv.v)[(i * K + h) * Dv + k] = (k == 3 ? 21 : 1) * drawn(1, (uint32_t)h, row, (uint32_t)k);
        for (int h = 0; h < H; h++) {
            R(p.lse)[i * H + h] = (real)((float)drawn(3, (uint32_t)h, row, 0) + 4);
            for (int k = 0; k < D; k++) R(p.q)[(i * H + h) * D + k] = drawn(2, (uint32_t)h, row, (uint32_t)k);
        }
    }
    g->run.batch = &b;
    cr_assert(kv_begin(c, &b, &e), "%s", e.msg);
    rig_use(g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1);
    CALL(g, (kv_append(&g->run, kv_slot(c, 0), &kv, NULL), 0));
    CALL(g, (kv_ask(&g->run, kv_slot(c, 0), &p, 0, NULL), 0));
    kv_end(c, &b, NULL);
    arena_release(&g->mem, mark);
}
static void golden_open(Cache *c, Rig *g, const KvShape *s) {
    Err e = {0};
    rig_open(g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1, 1 << 20);
    cr_assert(kv_open(c, s, 1, 2, BLOCKS * ROWS + 10, ROWS, 0, true, false, &e), "%s", e.msg);
    for (int at = 0, n; at < BLOCKS * ROWS; at += n) {
        n = imin(ROWS - at % ROWS, 1 + at % 23);
        golden_pass(g, c, s, at, n);
    }
}
static void golden_compare(const Cache *c, const char *how, int lane, int block, const char *hex) {
    const Lanes *t = kv_lanes(kv_slot(c, 0));
    const int page = t->table[(t->s.lanes + lane) * t->maxpages + block];
    const size_t bytes = block_bytes(&t->s);
    cr_assert(page >= t->npages && strlen(hex) == 2 * bytes, "%s, lane %d: %zu bytes, expected %zu", how, lane, bytes,
              strlen(hex) / 2);
    const unsigned char *have = (const unsigned char *)lanes_block(t, page);
    for (size_t i = 0; i < bytes; i++) {
        unsigned want;
        cr_assert(sscanf(hex + 2 * i, "%2x", &want) == 1 && have[i] == want,
                  "%s, lane %d, block %d: byte %zu of %zu is %02x, not %.2s", how, lane, block, i, bytes, have[i],
                  hex + 2 * i);
    }
}
Test(zipcache, has_the_golden_bytes) {
    FILE *f = fopen("tests/golden/zipcache.txt", "r");
    static char how[80], hex[8000];
    char open[100] = "";
    int shape, lane, block, lines = 0;
    Cache c = {0};
    Rig g;
    RowCodec codec;
    cr_assert(f, "tests/golden/zipcache.txt");
    for (; fscanf(f, "%79s %d %d %d %7999s", how, &shape, &lane, &block, hex) == 5; lines++) {
        char own[100], text[100];
        snprintf(own, sizeof own, "%s %d", how, shape);
        snprintf(text, sizeof text, "zipcache:%s", how);
        if (strcmp(own, open)) {
            if (*open) kv_close(&c), rig_close(&g);
            codec = block_codec(text);
            KvShape s = shapes[shape];
            s.codec = &codec;
            golden_open(&c, &g, &s);
            snprintf(open, sizeof open, "%s", own);
        }
        golden_compare(&c, own, lane, block, hex);
    }
    kv_close(&c), rig_close(&g);
    fclose(f);
    cr_assert(lines == 36, "%d lines", lines);
}

/* ---- numbers -----------------------------------------------------------------------------------------------------*/

typedef struct {
    real keys[D_MOST * ROWS], values[ROWS * DV_MOST], score[ROWS], k[D_MOST * ROWS], v[ROWS * DV_MOST];
} Coded;
static void coded(const RowCodec *c, Coded *x, int D, int Dv) {
    char *block = xcalloc(c->block_bytes(c, D, Dv), 1);
    c->block_encode(c, block, x->keys, x->values, D, Dv, x->score);
    c->block_decode(c, x->k, x->v, block, NULL, D, Dv);
    free(block);
}
static Coded *coded_drawn(uint32_t draw) {
    Coded *x = xcalloc(1, sizeof *x);
    for (uint32_t j = 0; j < ROWS; j++) {
        for (uint32_t k = 0; k < D_MOST; k++) x->keys[k * ROWS + j] = drawn(4, k, j, draw) + (k == 2 ? 30 : 0);
        for (uint32_t k = 0; k < DV_MOST; k++)
            x->values[j * DV_MOST + k] = drawn(5, k % 8, j, draw + k / 8) * (k == 5 ? 300 : 1);
        x->score[j] = drawn(6, 0, j, draw);
    }
    return x;
}
static bool salient_row(const Coded *x, int j, int n) {
    int before = 0;
    for (int i = 0; i < ROWS; i++) before += x->score[i] > x->score[j] || (x->score[i] == x->score[j] && i < j);
    return before < n;
}
/* Half a step of the scale, which is rounded up to 8 bits, of keys by element and kind of row, of values by row, times
 * the element's own scale; the row with the fewer bits reaches more than the salient ones' bound, or bits are not
 * used. */
Test(zipcache, no_number_is_off_by_more_than_its_bits_allow) {
    double worst = 0;
    int beyond = 0;
    for (uint32_t draw = 0; draw < 20; draw++) {
        const RowCodec c = block_codec(draw % 2 ? "zipcache:share=0.5" : "zipcache:bits=3,share=0.25");
        Coded *x = coded_drawn(draw);
        const int D = D_MOST, Dv = DV_MOST, n = draw % 2 ? 32 : 16;
        coded(&c, x, D, Dv);
        for (int j = 0; j < ROWS; j++) {
            const bool stays = salient_row(x, j, n);
            const double top = (1 << (stays ? 4 : c.bits)) - 1, allowed = (0.5 + top / 128) * (1 + 1.0 / 128);
            for (int k = 0; k < D; k++) {
                double least = INFINITY, most = -INFINITY;
                for (int i = 0; i < ROWS; i++)
                    if (salient_row(x, i, n) == stays)
                        least = fmin(least, x->keys[k * ROWS + i]), most = fmax(most, x->keys[k * ROWS + i]);
                const double off = fabs((double)(x->k[k * ROWS + j] - x->keys[k * ROWS + j])) / ((most - least) / top);
                worst = fmax(worst, off / allowed);
                cr_assert(off <= allowed, "draw %u: key %d of row %d is off by %.3g steps", draw, k, j, off);
            }
            double least = INFINITY, most = -INFINITY, scale[DV_MOST];
            for (int k = 0; k < Dv; k++) {
                double large = 0;
                for (int i = 0; i < ROWS; i++) large = fmax(large, fabs((double)x->values[i * Dv + k]));
                scale[k] = sqrt(large);
                least = fmin(least, x->values[j * Dv + k] / scale[k]);
                most = fmax(most, x->values[j * Dv + k] / scale[k]);
            }
            for (int k = 0; k < Dv; k++) { /* the scale of an element is rounded, too: least and most are not exact */
                const double off = fabs((double)(x->v[j * Dv + k] - x->values[j * Dv + k])),
                             step = scale[k] * (most - least) / top;
                cr_assert(off <= allowed * 1.02 * step, "draw %u: value %d of row %d is off by %.3g steps", draw, k, j,
                          off / step);
                beyond += !stays && off > 0.6 * scale[k] * (most - least) / 15;
            }
        }
        free(x);
    }
    cr_assert(worst > 0.5 && beyond > 1000, "at most %.3g of the bound, %d numbers beyond that of 4 bits", worst,
              beyond);
}
/* A row of large values in one element costs the others nothing: that is what the element's scale is for. */
Test(zipcache, an_element_larger_than_the_others_costs_them_little) {
    const RowCodec c = block_codec("zipcache:share=1");
    double error[2] = {0};
    for (int large = 0; large < 2; large++) {
        Coded *x = coded_drawn(1);
        for (int j = 0; j < ROWS; j++)
            x->values[j * DV_MOST + 5] = (real)((large ? 300 : 1) * (double)drawn(5, 5, (uint32_t)j, 1));
        coded(&c, x, D_MOST, DV_MOST);
        for (int i = 0; i < ROWS * DV_MOST; i++)
            if (i % DV_MOST != 5) error[large] += pow((double)(x->v[i] - x->values[i]), 2);
        free(x);
    }
    /* by one scale for each row alone the others would lose all: the factor would be near (300 / 2)^2 */
    cr_assert(error[1] < 2000 * error[0] && error[1] > error[0], "%.3g, without it %.3g", error[1], error[0]);
}
Test(zipcache, what_is_not_finite_does_not_come_back_finite) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++)
        for (int row = 0; row < ROWS; row += 9) {
            const RowCodec c = block_codec("zipcache");
            Coded *x = coded_drawn(2);
            x->keys[3 * ROWS + row] = x->values[row * DV_MOST + 4] = (real)bad[i];
            coded(&c, x, D_MOST, DV_MOST);
            cr_assert(!isfinite((double)x->k[3 * ROWS + row]) && !isfinite((double)x->v[row * DV_MOST + 4]),
                      "%g in row %d", (double)bad[i], row);
            for (int j = 0; j < ROWS; j++)
                for (int k = 0; k < DV_MOST; k++)
                    cr_assert(j == row || isfinite((double)x->v[j * DV_MOST + k]), "row %d with %d", j, row);
            free(x);
        }
    const RowCodec c = block_codec("zipcache");
    Coded *x = xcalloc(1, sizeof *x); /* zeros, and scores that are no numbers */
    for (int j = 0; j < ROWS; j++) x->score[j] = (real)NAN;
    coded(&c, x, D_MOST, DV_MOST);
    for (int i = 0; i < ROWS * D_MOST; i++) cr_assert(x->k[i] == 0);
    for (int i = 0; i < ROWS * DV_MOST; i++) cr_assert(x->v[i] == 0);
    free(x);
}
/* A block of a damaged file, whose mask names too few or too many rows, is read inside of its bytes. */
Test(zipcache, every_row_has_a_place_whatever_the_mask) {
    const RowCodec c = block_codec("zipcache");
    const SalientShape s = salient_shape(&c, 4, 4);
    static const uint32_t masks[][2] = {{0, 0}, {~0u, ~0u}, {0, ~0u}, {~0u, 0}, {1, 1}, {0x55555555u, 0x55555555u}};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        uint8_t place[ROWS];
        uint64_t met = 0;
        salient_places(&s, masks[i], place);
        for (int j = 0; j < ROWS; j++) {
            cr_assert(place[j] < ROWS, "mask %zu: row %d has place %d", i, j, place[j]);
            met |= (uint64_t)1 << place[j];
        }
        cr_assert(met == ~(uint64_t)0, "mask %zu: places %llx", i, (unsigned long long)met);
    }
}

/* ---- models ------------------------------------------------------------------------------------------------------*/

/* A session asks its queries: without them every row would be scored alike, and the first ones be salient. */
Test(zipcache, salient_rows_come_from_the_queries_of_a_session, .timeout = 60) {
    static const char *const names[] = {"gqa", "mla", "yoco"};
    int lanes = 0, other = 0, models = 0;
    for (int i = 0; i < zoo_count(); i++) {
        bool named = false;
        for (int k = 0; k < 3; k++) named |= !strncmp(zoo[i].name, names[k], strlen(names[k]));
        if (!named || zoo_decides(&zoo[i]) || strstr(zoo[i].json, "\"window\"") || strstr(zoo[i].json, "soft_cap"))
            continue;
        const RowCodec codec = block_codec("zipcache:share=0.5");
        ModelCfg cfg;
        Device *dev;
        Model m;
        Session s;
        Err e = {0};
        int tok[2 * ROWS];
        zoo_open(&zoo[i], &cfg, &m, NULL, &dev, (ModelOpts){.codec = &codec, .poison = true});
        cr_assert(session_open(&s, &m, (SessionOpts){.nseq = 1, .max_tokens = 200, .chunk = 200, .document = -1}, &e));
        for (int t = 0; t < 2 * ROWS; t++) tok[t] = (int)(rng_uniform(9, (uint64_t)t) * cfg.vocab);
        cr_assert(session_extend(&s, 1, &(Feed){0, 2 * ROWS, tok}, WANT_LAST, ABSENT, &e), "%s", e.msg);
        for (int l = 0; l < m.L; l++) {
            const Lanes *t = kv_lanes(kv_slot(&s.cache, l));
            for (int h = 0; m.layer[l].owner && h < t->s.lanes; h++)
                for (int b = 0; b < 2; b++, lanes++) {
                    uint32_t mask[2];
                    memcpy(mask, lanes_block(t, t->table[h * t->maxpages + b]), sizeof mask);
                    cr_assert(__builtin_popcount(mask[0]) + __builtin_popcount(mask[1]) == 32);
                    other += mask[1] != 0;
                }
        }
        models++;
        session_close(&s);
        zoo_close(&cfg, &m, NULL, dev);
    }
    cr_assert(models >= 3 && lanes > 10 && other == lanes, "%d models, %d of %d blocks", models, other, lanes);
}
/* What is kept of queries comes back with a sequence: a block that is half full when it is saved becomes the same one.
 * It goes to a sequence of other tokens, whose queries are others. */
Test(zipcache, queries_are_restored_with_their_sequence, .timeout = 60) {
    enum { HALF = ROWS + 40, ALL = 2 * ROWS };
    const RowCodec codec = block_codec("zipcache:share=0.5,probes=64");
    ModelCfg cfg;
    Device *dev;
    Model m;
    Session s;
    KvParts parts;
    Err e = {0};
    int tok[2][ALL], differ = 0;
    zoo_open(&zoo[zoo_find("gqa")], &cfg, &m, NULL, &dev, (ModelOpts){.codec = &codec, .poison = true});
    cr_assert(session_open(&s, &m, (SessionOpts){.nseq = 2, .max_tokens = 200, .chunk = 200, .document = -1}, &e));
    for (int q = 0; q < 2; q++) {
        for (int t = 0; t < ALL; t++) tok[q][t] = (int)(rng_uniform((uint64_t)q, (uint64_t)t) * cfg.vocab);
        cr_assert(session_extend(&s, 1, &(Feed){q, HALF, tok[q]}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    }
    cr_assert(kv_save(&s.cache, 0, &parts, &e) && kv_restore(&s.cache, 1, HALF, &parts, &e), "%s", e.msg);
    kv_parts_free(&parts);
    for (int q = 0; q < 2; q++)
        for (int t = HALF; t < ALL; t++)
            cr_assert(session_extend(&s, 1, &(Feed){q, 1, tok[0] + t}, WANT_LAST, ABSENT, &e), "%s", e.msg);
    for (int l = 0; l < m.L; l++) {
        const Lanes *t = kv_lanes(kv_slot(&s.cache, l));
        for (int h = 0; m.layer[l].owner && h < t->s.lanes; h++) {
            const int *table = t->table + h * t->maxpages, *other = table + t->s.lanes * t->maxpages;
            CHECK_BYTES("a block closed after it was restored", (char *)lanes_block(t, other[1]),
                        (char *)lanes_block(t, table[1]), block_bytes(&t->s));
            differ += memcmp(lanes_block(t, table[0]), lanes_block(t, table[1]), block_bytes(&t->s)) != 0;
        }
    }
    cr_assert(differ > 0);
    session_close(&s);
    zoo_close(&cfg, &m, NULL, dev);
}
Test(zipcache, refusals) {
    block_refused(zoo_find("window"), "zipcache", "none", "it asks queries that see all rows, and layer 0 has none");
    for (int k = 0; policy_at(k); k++) {
        PolicyCfg p;
        Err e = {0};
        if (!policy_parse(policy_at(k)->name, &p, &e) || !policy_acts(&p) || policy_feeds(&p)) continue;
        block_refused(0, "zipcache", policy_at(k)->name, "whose attention --cache-dtype zipcache orders in blocks");
    }
    block_refused(0, "zipcache", "quest", "expected page=64, got 16");
}

Test(zipcache, settings) {
    char text[CODEC_TEXT_MAX];
    RowCodec c = block_codec("zipcache:share=0.25,bits=3,probes=16,salient_bits=4");
    codec_settings(&c, ',', text);
    cr_assert_str_eq(text, "bits=3,salient_bits=4,share=0.25,probes=16");
    c = block_codec("zipcache");
    codec_settings(&c, ' ', text);
    cr_assert_str_eq(text, "bits=2 salient_bits=4 share=0.6 probes=8");
    block_parse_fails("zipcache:bits=4", "--cache-dtype zipcache: expected more salient_bits than bits, got 4 and 4");
#define KNOWN "--cache-dtype zipcache: expected bits=2..4, salient_bits=2..4, probes=1..64, share=0..1, got "
    static const char *const wrong[] = {"bits=5",    "bits=2.5", "probes=0", "probes=65", "share=1.5", "share=-1",
                                        "share=nan", "share=",   "share",    "group=32",  "rotate=no", "bits=3x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char whole[60], says[200];
        snprintf(whole, sizeof whole, "zipcache:%s", wrong[i]);
        snprintf(says, sizeof says, KNOWN "'%s'", wrong[i]);
        block_parse_fails(whole, says);
    }
    RowCodec other;
    Err e = {0};
    cr_assert(!codec_parse("kivi4:share=0.5", &other, &e));
}
