/* test_minicache.c: rows of two layers that are merged (minicache): bytes that golden/make_minicache.py found by the
 * rule alone, what is lossless, numbers that are not finite, damaged blocks; models under every cut, their bytes, forks
 * and sequences that go back; settings, and what refuses the codec. */
#include <math.h>
#include "layers/cache/codec.h"
#include "model/cost.h"
#include "ops/merged.h"
#include "tests/lib/block_model.h"
#include "tests/lib/rig.h"

enum { ROWS = MERGED_ROWS, D_MOST = 24, T = BLOCK_TOKENS, CHUNK = BLOCK_CHUNK };
static float drawn(uint32_t which, uint32_t lane, uint32_t row, uint32_t k) {
    uint32_t x = (((which * 8 + lane) * 256 + row) * 32 + k) * 2654435761u + 12345u;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13;
    return (float)((x / 4294967296.0 - 0.5) * 4);
}
/* Keys (0) or values (1) of both layers: the upper one's resemble the lower one's more or less from row to row. */
static void rows_drawn(real *const x[2], uint32_t which, uint32_t lane, int width) {
    static const float other[] = {0.125f, 0.25f, 0.5f, 1};
    for (uint32_t j = 0; j < ROWS; j++)
        for (uint32_t k = 0; k < (uint32_t)width; k++) {
            const float a = drawn(4 * which, lane, j, k), b = drawn(4 * which + 1, lane, j, k);
            real *lower = &x[0][j * (uint32_t)width + k], *upper = &x[1][j * (uint32_t)width + k];
            *lower = (real)a, *upper = (real)(0.5f * a + other[j % 4] * b);
            if (j == 9) *upper = (real)a;
            if (j == 11) *upper = (real)(-a / 2);
            if (j == 5 || j == 20) *lower = 0;
            if (j == 20) *upper = 0;
        }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------*/

/* Rows of both layers, and what their blocks give back; keys (ROWS,D), values (ROWS,Dv). */
typedef struct {
    int D, Dv;
    real *x[2][2], *back[2][2]; /* by layer; keys, values */
    char *block[2];
    real *mem;
} Merged;
static Merged merged_new(int D, int Dv) {
    Merged m = {.D = D, .Dv = Dv};
    const size_t each = (size_t)ROWS * (size_t)(D + Dv + 1);
    m.mem = xcalloc(4 * each, sizeof *m.mem);
    for (size_t of = 0; of < 2; of++) {
        m.x[of][0] = m.mem + of * each, m.x[of][1] = m.x[of][0] + ROWS * D;
        m.back[of][0] = m.mem + (2 + of) * each, m.back[of][1] = m.back[of][0] + ROWS * D;
    }
    return m;
}
static void merged_draw(Merged *m, uint32_t lane) {
    rows_drawn((real *[]){m->x[0][0], m->x[1][0]}, 0, lane, m->D);
    rows_drawn((real *[]){m->x[0][1], m->x[1][1]}, 1, lane, m->Dv);
}
static void merged_free(Merged *m) { free(m->mem), free(m->block[0]), free(m->block[1]); }
static void merged_read(Merged *m, const RowCodec *c) {
    for (int of = 0; of < 2; of++) {
        const RowCodec own = codec_paired(c, of ? PAIR_UPPER : PAIR_LOWER);
        real *keys = xcalloc((size_t)(ROWS * m->D), sizeof *keys);
        own.block_decode(&own, keys, m->back[of][1], m->block[of], m->block[0], m->D, m->Dv);
        for (int j = 0; j < ROWS; j++)
            for (int k = 0; k < m->D; k++) m->back[of][0][j * m->D + k] = keys[k * ROWS + j];
        free(keys);
    }
}
static void merged_store(Merged *m, const RowCodec *c) {
    for (int of = 0; of < 2; of++) {
        const RowCodec own = codec_paired(c, of ? PAIR_UPPER : PAIR_LOWER);
        free(m->block[of]);
        m->block[of] = xcalloc(own.block_bytes(&own, m->D, m->Dv) + 1, 1);
    }
    c->pair_encode(c, (void *[]){m->block[0], m->block[1]}, (const real *[]){m->x[0][0], m->x[1][0]},
                   (const real *[]){m->x[0][1], m->x[1][1]}, m->D, m->Dv);
    merged_read(m, c);
}
static void golden_compare(const char *how, int of, const char *have, size_t bytes, const char *hex) {
    if (!strcmp(hex, "-")) hex = "";
    cr_assert(strlen(hex) == 2 * bytes, "%s, layer %d: %zu bytes, expected %zu", how, of, bytes, strlen(hex) / 2);
    for (size_t i = 0; i < bytes; i++) {
        unsigned want;
        cr_assert(sscanf(hex + 2 * i, "%2x", &want) == 1 && (unsigned char)have[i] == want,
                  "%s, layer %d: byte %zu of %zu is %02x, not %.2s", how, of, i, bytes, (unsigned char)have[i],
                  hex + 2 * i);
    }
}
Test(minicache, has_the_golden_bytes) {
    static const int shapes[][2] = {{5, 12}, {6, 0}};
    static char how[80], hex[2][20000];
    int shape, lane, block, lines = 0, compared = 0;
    FILE *f = fopen("tests/golden/minicache.txt", "r");
    cr_assert(f, "tests/golden/minicache.txt");
    for (; fscanf(f, "%79s %d %d %d %19999s %19999s", how, &shape, &lane, &block, hex[0], hex[1]) == 6; lines++) {
        char text[100];
        snprintf(text, sizeof text, "minicache:%s", how);
        const RowCodec c = block_codec(text);
        if (c.bits == 32 && sizeof(real) == 8) continue; /* the vectors are those of f32 */
        Merged m = merged_new(shapes[shape][0], shapes[shape][1]);
        merged_draw(&m, (uint32_t)lane);
        merged_store(&m, &c);
        for (int of = 0; of < 2; of++) {
            const RowCodec own = codec_paired(&c, of ? PAIR_UPPER : PAIR_LOWER);
            golden_compare(how, of, m.block[of], own.block_bytes(&own, m.D, m.Dv), hex[of]);
        }
        merged_free(&m);
        compared++;
    }
    fclose(f);
    cr_assert(lines == 27 && compared >= 15, "%d lines, %d compared", lines, compared);
}
/* The largest distance of a row from what its block gives back, in norms of the row. */
static double worst_row(const Merged *m, int of, int part) {
    const int width = part ? m->Dv : m->D;
    double worst = 0;
    for (int j = 0; j < ROWS; j++) {
        double off = 0, size = 0;
        for (int k = 0; k < width; k++) {
            const double x = (double)m->x[of][part][j * width + k], y = (double)m->back[of][part][j * width + k];
            off += (x - y) * (x - y), size += x * x;
        }
        if (size > 0) worst = fmax(worst, sqrt(off / size));
        cr_assert(size > 0 || off == 0, "row %d of zeros", j);
    }
    return worst;
}
/* Rows that point the same way in both layers, whatever their lengths, come back as their codes have them. */
Test(minicache, equal_directions_are_lossless) {
    static const int bits[] = {32, 16, 8, 4};
    const double bound[] = {REAL == F64 ? 1e-12 : 1e-6, 0.008, 0.03, 0.3};
    for (int b = 0; b < 4; b++)
        for (int draw = 0; draw < 10; draw++) {
            char text[60];
            snprintf(text, sizeof text, "minicache:bits=%d,apart=%g,t=%g", bits[b], draw % 3 * 0.2, draw * 0.1);
            const RowCodec c = block_codec(text);
            Merged m = merged_new(D_MOST, draw % 2 ? 13 : D_MOST);
            merged_draw(&m, (uint32_t)draw % 8);
            for (int part = 0; part < 2; part++)
                for (int i = 0, w = part ? m.Dv : m.D; i < ROWS * w; i++)
                    m.x[1][part][i] = m.x[0][part][i] * (real)(draw < 5 ? 1 : 1 + i / w % 7 * 0.37);
            merged_store(&m, &c);
            for (int of = 0; of < 2; of++)
                for (int part = 0; part < 2; part++)
                    cr_assert(worst_row(&m, of, part) <= bound[b], "%s, draw %d: layer %d part %d is off by %.3g", text,
                              draw, of, part, worst_row(&m, of, part));
            merged_free(&m);
        }
}
Test(minicache, rows_apart_are_as_they_were) {
    for (uint32_t draw = 0; draw < 8; draw++) {
        const RowCodec all = block_codec("minicache:apart=1,bits=32");
        Merged m = merged_new(D_MOST, 11);
        merged_draw(&m, draw);
        merged_store(&m, &all);
        for (int of = 0; of < 2; of++) {
            CHECK_BYTES("keys", (char *)m.back[of][0], (char *)m.x[of][0], (size_t)(ROWS * m.D) * sizeof(real));
            CHECK_BYTES("values", (char *)m.back[of][1], (char *)m.x[of][1], (size_t)(ROWS * m.Dv) * sizeof(real));
        }
        merged_free(&m);
    }
}
/* With t 0 the lower layer's rows come back whatever the upper one's are, with t 1 the upper one's; between them a row
 * of each layer is as far from its own direction as t says, by the angle of both. */
Test(minicache, directions_lie_between_both_layers) {
    static const double t[] = {0, 0.25, 0.6, 1};
    double worst = 0;
    for (int i = 0; i < 4; i++) {
        char text[60];
        snprintf(text, sizeof text, "minicache:bits=32,apart=0,t=%g", t[i]);
        const RowCodec c = block_codec(text);
        Merged m = merged_new(D_MOST, D_MOST);
        merged_draw(&m, 3);
        merged_store(&m, &c);
        for (int part = 0; part < 2; part++)
            for (int j = 0; j < ROWS; j++) {
                double dot[3] = {0}, size[3] = {0}; /* of both rows; of each with what its layer reads */
                for (int k = 0; k < D_MOST; k++) {
                    const int at = j * D_MOST + k;
                    const double a = (double)m.x[0][part][at], b = (double)m.x[1][part][at],
                                 e = (double)m.back[0][part][at];
                    dot[0] += a * b, dot[1] += a * e;
                    size[0] += a * a, size[1] += b * b, size[2] += e * e;
                }
                if (size[0] == 0 || size[1] == 0 || j == 11) continue; /* 11: opposite directions */
                const double angle = acos(fmin(1, fmax(-1, dot[0] / sqrt(size[0] * size[1])))),
                             from = acos(fmin(1, dot[1] / sqrt(size[0] * size[2])));
                worst = fmax(worst, fabs(from - t[i] * angle));
                cr_assert(fabs(from - t[i] * angle) < 1e-3, "t %g, row %d: %g of an angle of %g", t[i], j, from, angle);
                cr_assert(fabs(sqrt(size[2] / size[0]) - 1) < 1e-5, "t %g, row %d: norm %g of %g", t[i], j,
                          sqrt(size[2]), sqrt(size[0]));
            }
        merged_free(&m);
    }
    fprintf(stderr, "minicache: angles are off by %.3g at most\n", worst);
}
/* Rows with the largest angles stay apart, the same number in each block; more of them never make a row worse. */
Test(minicache, rows_that_differ_most_stay_apart) {
    const RowCodec c = block_codec("minicache:bits=32,apart=0.25");
    Merged m = merged_new(D_MOST, D_MOST);
    merged_draw(&m, 2);
    merged_store(&m, &c);
    for (int part = 0; part < 2; part++) {
        double apart = 2, merged = -2; /* the largest cosine of a row apart, the smallest of a merged one */
        int n = 0;
        for (int j = 0; j < ROWS; j++) {
            double dot = 0, size[2] = {0};
            for (int k = 0; k < D_MOST; k++) {
                const double a = (double)m.x[0][part][j * D_MOST + k], b = (double)m.x[1][part][j * D_MOST + k];
                dot += a * b, size[0] += a * a, size[1] += b * b;
            }
            const double cosine = size[0] > 0 && size[1] > 0 ? dot / sqrt(size[0] * size[1]) : 1;
            const MergedShape s = merged_shape(&c, D_MOST, D_MOST);
            uint32_t mask[2];
            memcpy(mask, m.block[0] + s.part[part].mask, sizeof mask);
            const bool is = mask[j / 32] >> j % 32 & 1;
            n += is;
            if (is) merged = fmax(merged, cosine);
            if (!is) apart = fmin(apart, cosine);
        }
        cr_assert(n == 16 && merged < apart, "part %d: %d rows apart, cosines up to %g; merged from %g on", part, n,
                  merged, apart);
    }
    merged_free(&m);
}
Test(minicache, what_is_not_finite_does_not_come_back_finite) {
    static const char *const settings[] = {"bits=16", "bits=8,apart=0", "bits=4", "bits=32,apart=0"};
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 12; i++) {
        char text[60];
        snprintf(text, sizeof text, "minicache:%s", settings[i % 4]);
        const RowCodec c = block_codec(text);
        for (int of = 0; of < 2; of++) {
            Merged m = merged_new(D_MOST, D_MOST);
            merged_draw(&m, 1);
            m.x[of][0][7 * D_MOST + 3] = m.x[of][1][30 * D_MOST + 4] = (real)bad[i / 4];
            merged_store(&m, &c);
            cr_assert(!isfinite((double)m.back[of][0][7 * D_MOST + 3]) &&
                          !isfinite((double)m.back[of][1][30 * D_MOST + 4]),
                      "%s: %g came back as %g and %g", text, bad[i / 4], (double)m.back[of][0][7 * D_MOST + 3],
                      (double)m.back[of][1][30 * D_MOST + 4]);
            for (int j = 0; j < ROWS * D_MOST; j++) /* the row stays apart, if any does */
                cr_assert(j / D_MOST == 30 || isfinite((double)m.back[of][1][j]), "%s: row %d with 30", text,
                          j / D_MOST);
            merged_free(&m);
        }
    }
}
/* Blocks of a damaged file: masks that name too few or too many rows, norms and codes of any bits. They are read inside
 * of their bytes (a sanitizer says whether they are), and every row has a place. */
Test(minicache, damaged_blocks_are_read_inside_of_their_bytes) {
    static const char *const settings[] = {"bits=16", "bits=8,apart=0.5", "bits=4,apart=0", "bits=32,apart=1"};
    for (int i = 0; i < 40; i++) {
        char text[60];
        snprintf(text, sizeof text, "minicache:%s", settings[i % 4]);
        const RowCodec c = block_codec(text);
        const MergedShape s = merged_shape(&c, 7, 5);
        Merged m = merged_new(7, 5);
        merged_draw(&m, 1);
        merged_store(&m, &c);
        for (int of = 0; of < 2; of++)
            for (size_t k = 0; k < s.bytes[of]; k++)
                m.block[of][k] = i < 4 ? -1 : i < 8 ? 0 : (char)rng_mix((uint64_t)i, k);
        for (int part = 0; part < 2; part++) {
            uint8_t place[ROWS];
            uint64_t met = 0;
            merged_places(&s, &s.part[part], m.block[0], place);
            for (int j = 0; j < ROWS; j++) {
                cr_assert(place[j] < ROWS, "row %d has place %d", j, place[j]);
                met |= (uint64_t)1 << place[j];
            }
            cr_assert(met == ~(uint64_t)0, "%s, part %d: places %llx", text, part, (unsigned long long)met);
        }
        merged_read(&m, &c);
        merged_free(&m);
    }
}

/* ---- models ------------------------------------------------------------------------------------------------------*/

/* False: the model has no two layers to merge, or evicts rows; the message says so. codec NULL: rows as computed. */
static bool case_open(BlockCase *c, int i, const char *codec, const char *policy) {
    Err e = {0};
    *c = (BlockCase){0};
    if (codec) c->codec = block_codec(codec);
    if (policy) cr_assert(policy_parse(policy, &c->policy, &e), "%s", e.msg);
    cr_assert(model_cfg_from_json(&c->cfg, zoo[i].json, strlen(zoo[i].json), zoo[i].name, &e), "%s", e.msg);
    cr_assert(device_open(&c->dev, "cpu", 1, &e), "%s", e.msg);
    if (model_open(&c->m, c->dev, &c->cfg,
                   (ModelOpts){.codec = codec ? &c->codec : NULL, .policy = policy ? &c->policy : NULL, .poison = true},
                   &e)) {
        model_init(&c->m, 7);
        return true;
    }
    cr_assert(e.status == EXIT_INPUT && (strstr(e.msg, "there is nothing to merge") || strstr(e.msg, "one by one")),
              "%s: %s", zoo[i].name, e.msg);
    device_close(c->dev), model_cfg_free(&c->cfg);
    return false;
}
/* Layers of random weights have rows that do not resemble each other, so what merging costs here has no meaning; that
 * it is the same behind every cut has. All rows apart and as computed give the logits of a dense cache. */
Test(minicache, rows_look_the_same_behind_every_cut, .timeout = 300) {
    static const char *const settings[] = {"from=0,bits=16,apart=0.3", "from=0,bits=8", "from=0.3,bits=4,apart=0.5",
                                           "from=0,bits=32,apart=1", "from=0,bits=32"};
    static const int first[] = {1, 63, 64, 65, 130}, piece[] = {1, 150, 7, 64, 19};
    int models = 0, rounded = 0;
    double worst = 0, worst_exact = 0;
    for (int i = 0; i < zoo_count(); i++) {
        BlockCase c, plain;
        int tok[T];
        char text[60];
        const bool exact = i % 5 == 3;
        snprintf(text, sizeof text, "minicache:%s", settings[i % 5]);
        if (!check_sampled(i) || !case_open(&c, i, text, NULL)) continue;
        cr_assert(case_open(&plain, i, NULL, NULL));
        const size_t V = (size_t)c.cfg.vocab, n = T * V, before = ROWS * V;
        real *whole = xcalloc(n, sizeof *whole), *cut = xcalloc(n, sizeof *cut), *wide = xcalloc(n, sizeof *wide);
        block_text(tok, c.cfg.vocab, (uint64_t)i);
        block_logits(&c, tok, T, T, whole), block_logits(&plain, tok, T, T, wide);
        cr_assert(block_decides(i) || block_distance(whole, wide, before) < (REAL == F64 ? 1e-12 : 1e-5),
                  "%s, %s: the first block is read in codes", text, zoo[i].name);
        const double apart = block_distance(whole + before, wide + before, n - before);
        if (exact) worst_exact = fmax(worst_exact, block_decides(i) ? 0 : apart);
        cr_assert(!exact || block_decides(i) || apart < (REAL == F64 ? 1e-12 : 1e-5), "%s, %s: %.3g from a dense cache",
                  text, zoo[i].name, apart);
        rounded += !exact && apart > 1e-4;
        for (int j = 0; j < 5; j++) {
            block_logits(&c, tok, first[j], piece[j], cut);
            const double off = block_distance(cut, whole, n);
            if (!block_decides(i)) worst = fmax(worst, off);
            cr_assert(off <= (REAL == F64         ? 1e-9
                              : c.codec.bits < 16 ? 0.3
                                                  : 0.01) ||
                          (block_decides(i) && REAL == F32),
                      "%s, %s, cut at %d: %.3g", text, zoo[i].name, first[j], off);
        }
        models++;
        free(whole), free(cut), free(wide);
        block_close(&c), block_close(&plain);
    }
    cr_assert(models > 10 && rounded > 6, "%d models, %d of them rounded", models, rounded);
    fprintf(stderr, "minicache: cuts differ by %.3g at most, all rows apart by %.3g from a dense cache\n", worst,
            worst_exact);
}

/* Bytes of a part of n elements in so many bits, by their own count. */
static size_t bits_bytes(int bits, int n) {
    size_t groups = 0;
    if (bits == 32) return (size_t)n * sizeof(real);
    if (bits == 16) return (size_t)(n + 1) / 2 * 4;
    if (bits == 8) return 4 + (size_t)(n + 3) / 4 * 4;
    for (int left = n; left > 0; left -= 32) groups += 4 + (size_t)((4 * imin(left, 32) + 31) / 32) * 4;
    return groups;
}
static size_t block_of(const RowCodec *c, const KvShape *s) {
    const int D = s->kdim, Dv = s->alias ? 0 : s->vdim, apart = (int)(c->share * 64 + 0.5), near = 64 - apart;
    const size_t part = Dv ? 2 : 1,
                 norms = part * (c->bits == 32 ? (size_t)near * sizeof(real) : (size_t)(near + 1) / 2 * 4);
    size_t directions = (near ? (size_t)D * bits_bytes(c->bits, 64) : 0),
           alone = (size_t)apart * bits_bytes(imax(8, c->bits), D);
    if (Dv)
        directions += (size_t)near * bits_bytes(c->bits, Dv), alone += (size_t)apart * bits_bytes(imax(8, c->bits), Dv);
    if (!s->codec->pair) return (size_t)D * bits_bytes(c->bits, 64) + (Dv ? 64 * bits_bytes(c->bits, Dv) : 0);
    return norms + alone + (s->codec->pair == PAIR_LOWER ? 8 * part + directions : 0);
}
/* What is resident is what the cost model says, and blocks and waiting rows by their own count; a pass reads these and
 * what upper layers read of lower ones' blocks. */
Test(minicache, bytes_are_those_of_blocks_and_rows_that_wait, .timeout = 120) {
    static const int bits[] = {16, 8, 4, 32};
    int pairs = 0, less = 0;
    for (int i = 0; i < zoo_count(); i++) {
        CacheCost *cost = xcalloc(1, sizeof *cost);
        BlockCase c;
        Session s;
        Err e = {0};
        int tok[T];
        char text[60];
        size_t rows = 0, dense = 0, shared = 0, mapped;
        snprintf(text, sizeof text, "minicache:from=0,apart=%g,bits=%d", i % 3 * 0.25, bits[i % 4]);
        if (!case_open(&c, i, text, NULL)) {
            free(cost);
            continue;
        }
        block_text(tok, c.cfg.vocab, 3);
        block_session(&s, &c, 2);
        block_feed(&s, 0, T, tok, NULL);
        cost_cache(&c.m, T, cost);
        const size_t have = session_bytes(&s, 0);
        bool windows = false;
        for (int l = 0; l < c.m.L; l++) {
            const KvShape *k = &c.m.layer[l].rows;
            const size_t row = (size_t)(k->kdim + (k->alias ? 0 : k->vdim)) * sizeof(real);
            if (!c.m.layer[l].owner || !k->lanes) continue;
            windows |= k->window > 0;
            rows += (size_t)k->lanes * (2 * block_of(&c.codec, k) + T % 64 * row),
                dense += (size_t)(k->lanes * T) * row;
            pairs += k->codec->pair == PAIR_UPPER;
            if (k->codec->pair != PAIR_UPPER) continue;
            KvShape lower = *k;
            RowCodec low = codec_paired(&c.codec, PAIR_LOWER);
            lower.codec = &low;
            shared += 2 * (size_t)k->lanes * (block_of(&c.codec, &lower) - block_of(&c.codec, k));
        }
        cr_assert(have == cost->bytes_at_context && (windows || have == rows + cost->state_bytes),
                  "%s, %s: %zu resident, %zu by the cost model, %zu counted", text, zoo[i].name, have,
                  cost->bytes_at_context, rows + cost->state_bytes);
        less += rows < dense;
        session_fork(&s, 0, 1);
        cr_assert(session_resident(&s) == have + cost->state_bytes, "%s, %s: a fork has blocks of its own", text,
                  zoo[i].name);
        bool own = true; /* every layer has rows of its own, and all of its queries see them */
        for (int l = 0; l < c.m.L; l++)
            own &= c.m.layer[l].owner && !c.m.layer[l].rows.state && c.m.layer[l].rows.lanes;
        session_close(&s);
        if (own && !windows) {
            block_session(&s, &c, 1);
            block_feed(&s, 0, T - 1, tok, NULL);
            const size_t before = session_bytes(&s, 0);
            real *logits = xcalloc((size_t)c.cfg.vocab, sizeof *logits);
            block_feed(&s, 0, 1, tok + T - 1, logits);
            free(logits);
            cr_assert(s.read == before + shared, "%s, %s: %zu bytes read, %zu resident and %zu shared", text,
                      zoo[i].name, s.read, before, shared);
            session_close(&s);
        }
        cr_assert(cost_cache_mapped(&c.m, 1, T, CHUNK, &mapped, &e));
        Cache cache;
        cr_assert(model_cache_open(&c.m, &cache, 1, T, CHUNK, 0, false, &e));
        cr_assert(cache.mem.size == mapped && cache.mem.used == mapped);
        kv_close(&cache);
        free(cost);
        block_close(&c);
    }
    cr_assert(pairs > 15 && less > 5, "%d pairs, %d models with fewer bytes", pairs, less);
}
/* A sequence goes back into its newest block, or to the end of one before it, and a fork continues apart: both as a
 * sequence of the same tokens that never did. Several sequences are in one pass. */
Test(minicache, sequences_fork_and_go_back, .timeout = 120) {
    int went = 0;
    for (int i = 0; i < zoo_count(); i++) {
        BlockCase c;
        Session s;
        int tok[T], other[T];
        Err e = {0};
        if (!check_sampled(i) || !case_open(&c, i, i % 2 ? "minicache:from=0,bits=8" : "minicache:from=0,bits=4", NULL))
            continue;
        block_text(tok, c.cfg.vocab, 1), block_text(other, c.cfg.vocab, 2);
        const size_t V = (size_t)c.cfg.vocab;
        real *back = xcalloc(2 * T * V, sizeof *back), *fresh = back + T * V;
        for (int to = 20; to < 140; to += 40) {
            block_session(&s, &c, 3);
            went += block_back(&c, &s, i, to, tok, other, back, fresh) > 0;
            session_close(&s);
            block_session(&s, &c, 3); /* three at once */
            Feed three[] = {{0, T, tok}, {1, T, other}, {2, 70, tok + 3}};
            cr_assert(session_extend(&s, 3, three, WANT_LAST, TENSOR(back, REAL, 3, c.cfg.vocab), &e), "%s", e.msg);
            const double off = block_distance(back + V, fresh + (T - 1) * V, V);
            cr_assert(off <= (REAL == F64 ? 1e-9 : 0.1) || block_decides(i), "%s, one of three: %.3g", zoo[i].name,
                      off);
            session_close(&s);
        }
        free(back);
        block_close(&c);
    }
    cr_assert(went > 15, "%d times", went);
}
/* A policy that selects what a step reads decodes the keys of both layers for itself: reading all is no policy. */
Test(minicache, policies_select_among_merged_blocks, .timeout = 60) {
    static const char *const policies[] = {"quest:reads=1000,recent=64,page=64", "quest:reads=64,recent=64,page=64"};
    const int i = zoo_find("gqa");
    real *logits[3];
    size_t read[3];
    for (int k = 0; k < 3; k++) {
        BlockCase c;
        Session s;
        Err e = {0};
        int tok[T];
        cr_assert(case_open(&c, i, "minicache:from=0,bits=8", k ? policies[k - 1] : NULL));
        block_text(tok, c.cfg.vocab, 3);
        logits[k] = xcalloc((size_t)c.cfg.vocab, sizeof(real));
        block_session(&s, &c, 1);
        block_feed(&s, 0, T - 1, tok, NULL);
        cr_assert(session_prompt_ends(&s, 0, &e), "%s", e.msg);
        block_feed(&s, 0, 1, tok + T - 1, logits[k]);
        read[k] = s.read;
        session_close(&s);
        block_close(&c);
    }
    const size_t V = 11;
    cr_assert(block_distance(logits[1], logits[0], V) < (REAL == F64 ? 1e-12 : 1e-5) && read[1] == read[0],
              "all pages: %.3g, %zu bytes of %zu", block_distance(logits[1], logits[0], V), read[1], read[0]);
    cr_assert(block_distance(logits[2], logits[0], V) > 1e-4 && read[2] < read[0], "one page: %.3g, %zu bytes of %zu",
              block_distance(logits[2], logits[0], V), read[2], read[0]);
    for (int k = 0; k < 3; k++) free(logits[k]);
}

/* ---- refusals ----------------------------------------------------------------------------------------------------*/

Test(minicache, refusals) {
    const int gqa = zoo_find("gqa");
    block_refused(gqa, "minicache:from=1", "none", "from layer 2 of 2 on no two layers keep all rows in one shape");
    block_refused(zoo_find("window"), "minicache:from=0", "none", "there is nothing to merge");
    block_refused(zoo_find("dms"), "minicache:from=0", "none", "layer 0 merges or evicts rows one by one");
    int policies = 0;
    for (int k = 0; policy_at(k); k++) {
        PolicyCfg p;
        Err e = {0};
        if (!policy_parse(policy_at(k)->name, &p, &e) || !policy_acts(&p) || policy_feeds(&p)) continue;
        block_refused(gqa, "minicache:from=0", policy_at(k)->name, "merges rows that two layers have");
        policies++;
    }
    cr_assert(policies > 10, "%d policies", policies);
    block_refused(gqa, "minicache:from=0", "kvzip", "judges rows by tokens that it feeds itself");
    block_refused(gqa, "minicache:from=0", "quest", "expected page=64, got 16");
}
Test(minicache, settings) {
    char text[CODEC_TEXT_MAX];
    RowCodec c = block_codec("minicache:bits=4,apart=0.25,t=0.5,group=64,from=0.75");
    codec_settings(&c, ',', text);
    cr_assert_str_eq(text, "group=64,from=0.75,t=0.5,apart=0.25,bits=4");
    c = block_codec("minicache");
    codec_settings(&c, ' ', text);
    cr_assert_str_eq(text, "group=32 from=0.5 t=0.6 apart=0.1 bits=16");
    static const char *const wrong[] = {"bits=2",   "bits=3",     "bits=5",   "bits=64", "bits=",      "bits",
                                        "from=1.1", "from=-0.1",  "from=nan", "t=2",     "t=inf",      "t=0.5x",
                                        "apart=",   "apart=1.01", "share=1",  "rank=1",  "rotate=yes", "apart=yes",
                                        "group=16", "=1",         "tt=1",     "f=1",     "bits=8 "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char whole[60], says[200];
        snprintf(whole, sizeof whole, "minicache:%s", wrong[i]);
        snprintf(says, sizeof says,
                 "--cache-dtype minicache: expected from=0..1, t=0..1, apart=0..1, bits=32|16|8|4, group=32|64, got "
                 "'%s'",
                 wrong[i]);
        block_parse_fails(whole, says);
    }
    RowCodec other;
    Err e = {0};
    cr_assert(!codec_parse("kivi4:from=0.5", &other, &e) && !codec_parse("palu:apart=0.5", &other, &e));
}
