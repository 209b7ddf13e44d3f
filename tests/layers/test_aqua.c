/* test_aqua.c: rows as residuals of what the layer below predicts: what is stored and read of drawn rows, against
 * tests/golden/make_aqua.py; over models of the zoo, what the fit must be, that a row looks the same to its own pass
 * and to later ones, and bytes. test_aqua_file.c has what else a cache does, and the file. */
#include <math.h>
#include "infer/basis_file.h"
#include "layers/cache/aqua.h"
#include "layers/cache/codec.h"
#include "layers/cache/slot.h"
#include "model/cost.h"
#include "tests/lib/aqua.h"
#include "tests/lib/rig.h"

enum { T = PALU_TOKENS };

/* ---- the rule ----------------------------------------------------------------------------------------------------*/

enum { ROWS = 40, FIRST = 4090, LANES = 2, SLOTS = 3, KDIM = 8, VDIM = 4, K = LANES * KDIM, V = LANES * VDIM };
enum { BLOCKS_ROWS = 140, BLOCKS_FIRST = 4096, MOST = BLOCKS_ROWS }; /* of rows in blocks */
static real drawn(int which, int row, int column) {
    uint32_t x = (uint32_t)(which * 65536 + row * 256 + column) * 2654435761u + 12345u;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13;
    return (real)(float)((double)x / 4294967296.0 - 0.5);
}
static real *drawn_table(int which, int rows, int columns, real by) {
    real *x = xcalloc((size_t)(rows * columns), sizeof *x);
    for (int i = 0; i < rows * columns; i++) x[i] = by * drawn(which, i / columns, i % columns);
    return x;
}
static double number(FILE *f) {
    double x;
    cr_assert(fscanf(f, "%lf", &x) == 1);
    return x;
}
static void word_is(FILE *f, const char *want) {
    char word[20];
    cr_assert(fscanf(f, "%19s", word) == 1 && !strcmp(word, want), "%s, not %s", word, want);
}
/* A cache of three slots whose rows are those of make_aqua.py, and one that is no number. */
typedef struct {
    Rig g;
    Cache c;
    RowCodec codec;
    RowBasis basis[SLOTS];
    KvShape shape[SLOTS];
    Kv kv[SLOTS];
    int first, rows;         /* position of the first row; rows */
    int idx[MOST], seq, nan; /* nan: the row whose first key of the first slot is none; -1: none is */
} Bench;
/* rows ROWS: those of make_aqua.py. recent: rows of a block, or 0. */
static void bench_open(Bench *b, int bits, bool pairs, int rows, int recent, const Rope *rope) {
    Err e = {0};
    *b = (Bench){.codec = codec_aqua, .first = rows == ROWS ? FIRST : BLOCKS_FIRST, .rows = rows, .nan = -1};
    codec_aqua_recent(&b->codec, recent);
    b->codec.bits = bits, b->codec.pairs = pairs;
    rig_open(&b->g, rig_first(), 1, 1 << 20);
    rig_use(&b->g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1);
    for (int s = 0; s < SLOTS; s++) {
        RowBasis *x = &b->basis[s];
        x->lanes = LANES, x->below = s ? &b->basis[s - 1] : NULL;
        x->part[0] = (PartBasis){.rank = KDIM, .width = KDIM, .inputs = s ? K : 0};
        x->part[1] = (PartBasis){.rank = VDIM, .width = VDIM, .inputs = s ? K + V : K};
        x->part[0].weight = s ? drawn_table(10 * s + 2, K, K, 0.5) : NULL;
        x->part[1].weight = drawn_table(10 * s + 3, V, s ? K + V : K, 0.5);
        x->part[0].bias = drawn_table(10 * s + 4, 1, K, 1), x->part[1].bias = drawn_table(10 * s + 5, 1, V, 1);
        basis_turns(x, rope);
        b->shape[s] = (KvShape){.lanes = LANES, .kdim = KDIM, .vdim = VDIM, .codec = &b->codec, .basis = x};
    }
    for (int i = 0; i < MOST; i++) b->idx[i] = i;
    cr_assert(kv_open(&b->c, b->shape, SLOTS, 1, b->first + rows + 1, rows, 16, true, false, &e), "%s", e.msg);
}
static void bench_close(Bench *b) {
    kv_close(&b->c);
    for (int s = 0; s < SLOTS; s++) basis_free(&b->basis[s]);
    rig_close(&b->g);
}
/* Rows from..to-1 in a pass; their keys and values as they are settled to back[s][i] (rows,LANES,width). With to =
 * rows + 1 the pass reads what was stored, to `back`, of all rows. */
static void bench_pass(Bench *b, int from, int to, real *back[SLOTS][2]) {
    Err e = {0};
    Run *r = &b->g.run;
    const int n = to - from, off[2] = {0, n};
    int of[MOST] = {0}, pos[MOST], first[MOST];
    const uint64_t id = 0;
    for (int i = 0; i < n; i++) pos[i] = b->first + from + i, first[i] = -1;
    const Batch batch = {1, n, off, &b->seq, of, pos, first, &id, true, NULL};
    const Mark mark = arena_mark(&b->g.mem);
    Fields place = arena_placer(&b->g.mem);
    r->batch = &batch, r->in = r->out = (RowList){n, b->idx};
    for (int i = 0; i < 2; i++) field(&place, &r->below[i], "below", 0, n, LANES, i ? VDIM : KDIM);
    cr_assert(kv_begin(&b->c, &batch, &e), "%s", e.msg);
    for (int s = 0; s < SLOTS; s++) {
        Kv *kv = &b->kv[s];
        kv_pass_fields(&b->shape[s], n, kv, &place);
        for (int j = 0; j < n; j++) {
            for (int k = 0; k < K; k++) R(kv->k)[j * K + k] = 4 * drawn(10 * s, from + j, k);
            for (int k = 0; k < V; k++) R(kv->v)[j * V + k] = 4 * drawn(10 * s + 1, from + j, k);
            if (from + j == b->nan && !s) R(kv->k)[j * K] = (real)NAN;
        }
        CALL(&b->g, (kv_settle(r, kv), 0));
        if (to <= b->rows) {
            memcpy(back[s][0] + from * K, R(kv->k), (size_t)(n * K) * sizeof(real));
            memcpy(back[s][1] + from * V, R(kv->v), (size_t)(n * V) * sizeof(real));
            CALL(&b->g, (kv_append(r, kv_slot(&b->c, s), kv, NULL), 0));
            continue;
        }
        const Lanes *t = NULL;
        CALL(&b->g, (t = chain_lanes(r, kv_slot(&b->c, s)), 0));
        for (int h = 0; h < LANES; h++)
            for (int j = 0; j < b->rows; j++) {
                const size_t page = (size_t)t->table[h * t->maxpages + j / t->P];
                const real *in = R(t->data) + page * (size_t)(t->P * (KDIM + VDIM));
                cr_assert(t->pos[page * (size_t)t->P + (size_t)(j % t->P)] == b->first + j);
                memcpy(back[s][0] + (j * LANES + h) * KDIM, in + j % t->P * KDIM, KDIM * sizeof(real));
                memcpy(back[s][1] + (j * LANES + h) * VDIM, in + t->P * KDIM + j % t->P * VDIM, VDIM * sizeof(real));
            }
    }
    if (to <= b->rows) {
        kv_end(&b->c, &batch, NULL);
        rig_measure(&b->g), kv_policy(r, &b->c, &batch, NULL);
        rig_place(&b->g), kv_policy(r, &b->c, &batch, NULL);
        rig_done_within(&b->g); /* few passes fill a block */
    }
    arena_release(&b->g.mem, mark);
}
static void backs_take(real *back[SLOTS][2]) {
    for (int s = 0; s < SLOTS; s++)
        for (int i = 0; i < 2; i++) back[s][i] = xcalloc((size_t)(MOST * (i ? V : K)), sizeof(real));
}
static void backs_free(real *back[SLOTS][2]) {
    for (int s = 0; s < SLOTS; s++)
        for (int i = 0; i < 2; i++) free(back[s][i]);
}
static void compared(FILE *f, const Bench *b, real *back[SLOTS][2]) {
    double worst = 0;
    for (int s = 0; s < SLOTS; s++)
        for (int j = 0; j < ROWS; j++)
            for (int h = 0; h < LANES; h++)
                for (int i = 0; i < 2; i++) {
                    const int w = i ? VDIM : KDIM;
                    const Slot *slot = kv_slot(&b->c, s);
                    const size_t at = slot_place_of(slot, h, j),
                                 bytes = i ? value_bytes(&slot->t.s) : key_bytes(&slot->t.s);
                    const unsigned char *code =
                        (const unsigned char *)slot->t.data.p + (i ? slot_value(slot, at) : slot_key(slot, at));
                    char hex[80], want[80];
                    word_is(f, "row");
                    for (size_t k = 0; k < bytes; k++) snprintf(hex + 2 * k, 3, "%02x", code[k]);
                    cr_assert(fscanf(f, "%79s", want) == 1 && !strcmp(want, hex),
                              "%d bits, slot %d, part %d, lane %d, row %d: %s, not %s", b->codec.bits, s, i, h, j, hex,
                              want);
                    for (int k = 0; k < w; k++) {
                        const double x = number(f), off = fabs((double)back[s][i][(j * LANES + h) * w + k] - x);
                        worst = fmax(worst, off);
                        cr_assert(off <= (REAL == F64 ? 1e-10 : 2e-5), "slot %d, part %d, row %d: off by %g", s, i, j,
                                  off);
                    }
                }
    printf("%d bits%s: rows off by %.2g at most\n", b->codec.bits, b->codec.pairs ? " in pairs" : "", worst);
}
/* As they are settled in one pass, in two, and as they are read from the cache: the same bits. */
Test(aqua, rows_are_those_of_the_papers_rule) {
    FILE *f = fopen("tests/golden/aqua.txt", "r");
    cr_assert(f);
    for (int turn = 0; turn < 6; turn++) {
        Bench b;
        real *whole[SLOTS][2], *back[SLOTS][2];
        word_is(f, "case");
        const int bits = (int)number(f);
        const bool pairs = number(f) > 0;
        Rope rope = {.n = (int)number(f), .at = (int)number(f), .interleaved = number(f) > 0, .factor = 1};
        for (int i = 0; i < rope.n / 2; i++) rope.f[i] = pow(1000, -2.0 * i / rope.n);
        backs_take(whole), backs_take(back);
        bench_open(&b, bits, pairs, ROWS, 0, &rope);
        bench_pass(&b, 0, ROWS, whole);
        compared(f, &b, whole);
        bench_pass(&b, ROWS, ROWS + 1, back);
        for (int s = 0; s < SLOTS; s++)
            for (int i = 0; i < 2; i++)
                CHECK_BYTES("read from the cache", back[s][i], whole[s][i],
                            (size_t)(ROWS * (i ? V : K)) * sizeof(real));
        bench_close(&b);
        bench_open(&b, bits, pairs, ROWS, 0, &rope);
        bench_pass(&b, 0, 23, back), bench_pass(&b, 23, 24, back), bench_pass(&b, 24, ROWS, back);
        for (int s = 0; s < SLOTS; s++)
            for (int i = 0; i < 2; i++)
                CHECK_BYTES("in pieces", back[s][i], whole[s][i], (size_t)(ROWS * (i ? V : K)) * sizeof(real));
        bench_close(&b);
        backs_free(whole), backs_free(back);
    }
    fclose(f);
}
/* What is no number stays none, in its row and the rows above it alone. */
static void no_number(bool pairs) {
    Bench b;
    real *sound[SLOTS][2], *back[SLOTS][2], *read[SLOTS][2];
    Rope rope = {.n = KDIM, .factor = 1};
    for (int i = 0; i < KDIM / 2; i++) rope.f[i] = 0.1 * i;
    backs_take(sound), backs_take(back), backs_take(read);
    bench_open(&b, 2, pairs, ROWS, 0, &rope);
    bench_pass(&b, 0, ROWS, sound);
    bench_close(&b);
    bench_open(&b, 2, pairs, ROWS, 0, &rope);
    b.nan = 17;
    bench_pass(&b, 0, ROWS, back), bench_pass(&b, ROWS, ROWS + 1, read);
    for (int s = 0; s < SLOTS; s++)
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < ROWS; j++) {
                const int w = i ? V : K;
                const real *x = back[s][i] + j * w, *y = read[s][i] + j * w;
                bool finite = true;
                for (int k = 0; k < w; k++) finite &= isfinite((double)x[k]) && isfinite((double)y[k]);
                cr_assert(finite == (j != b.nan), "slot %d, row %d", s, j);
                if (finite) CHECK_BYTES("other rows", x, sound[s][i] + j * w, (size_t)w * sizeof *x);
                if (finite) CHECK_BYTES("other rows, read", y, x, (size_t)w * sizeof *x);
            }
    bench_close(&b);
    backs_free(sound), backs_free(back), backs_free(read);
}
Test(aqua, a_row_that_is_no_number_stays_alone) {
    for (int pairs = 0; pairs < 2; pairs++) no_number(pairs);
}

/* The codes of a part of row j in a block. */
static const char *block_code(const Bench *b, int s, int i, int h, int j, size_t keys, size_t each) {
    const Lanes *t = kv_lanes(kv_slot(&b->c, s));
    const int page = t->table[h * t->maxpages + j / t->P];
    cr_assert(page >= t->npages, "slot %d, row %d is in no block", s, j);
    return lanes_block(t, page) + (i ? (size_t)t->P * keys : 0) + (size_t)(j % t->P) * each;
}
/* Rows that fill a block have the codes and the elements that they have one by one; those that wait, and a pass's own,
 * are as they were computed; whatever the passes are. One row is no number. */
Test(aqua, blocks_have_the_codes_of_single_rows) {
    static const int recent[] = {64, 64, 128}, step[] = {64, 7, 50};
    Rope rope = {.n = KDIM, .factor = 1};
    for (int i = 0; i < KDIM / 2; i++) rope.f[i] = 0.3 / (1 + i);
    for (int how = 0; how < 3; how++) {
        Bench one, b;
        real *single[SLOTS][2], *own[SLOTS][2], *read[SLOTS][2];
        const int P = recent[how], coded = MOST / P * P;
        backs_take(single), backs_take(own), backs_take(read);
        bench_open(&one, 2 + how, how != 1, MOST, 0, &rope), bench_open(&b, 2 + how, how != 1, MOST, P, &rope);
        one.nan = b.nan = 17;
        bench_pass(&one, 0, MOST, single);
        for (int at = 0, end; at < MOST; at = end) {
            end = imin(imin(at + step[how], MOST), (at / P + 1) * P);
            bench_pass(&b, at, end, own);
        }
        bench_pass(&b, MOST, MOST + 1, read);
        for (int s = 0; s < SLOTS; s++)
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < MOST; j++) {
                    const int width = i ? VDIM : KDIM, all = LANES * width;
                    const real *got = read[s][i] + j * all, *want = (j < coded ? single : own)[s][i] + j * all;
                    for (int k = 0; k < all; k++)
                        cr_assert((j == 17 && (k == 0 || s)) || own[s][i][j * all + k] == 4 * drawn(10 * s + i, j, k),
                                  "slot %d, part %d, row %d: not as computed", s, i, j);
                    if (j == 17) {
                        cr_assert(isnan((double)got[0]), "slot %d, part %d: the row that is no number is %g", s, i,
                                  (double)got[0]);
                        continue;
                    }
                    CHECK_BYTES("rows of blocks", got, want, (size_t)all * sizeof *got);
                    for (int h = 0; h < LANES && j < coded; h++) {
                        const Slot *slot = kv_slot(&one.c, s);
                        const size_t at = slot_place_of(slot, h, j), keys = key_bytes(&slot->t.s),
                                     each = i ? value_bytes(&slot->t.s) : keys;
                        CHECK_BYTES("codes of blocks", block_code(&b, s, i, h, j, keys, each),
                                    (const char *)slot->t.data.p + (i ? slot_value(slot, at) : slot_key(slot, at)),
                                    each);
                    }
                }
        bench_close(&one), bench_close(&b);
        backs_free(single), backs_free(own), backs_free(read);
    }
}

/* ---- models ------------------------------------------------------------------------------------------------------*/

/* As test_palu.c has it. A code that turns over by a rounding of what made the row moves a row of 2 bits
 * far, and those above it: in f32 the bound is wide, and the rule above has the same bits. */
Test(aqua, rows_look_the_same_behind_every_cut, .timeout = 300) {
    static const char *const settings[] = {"bits=4,pairs=no", "bits=3,group=64", "bits=2", "bits=2,pairs=no"};
    int models = 0;
    for (int i = 0; i < zoo_count(); i++) {
        PaluCase c, plain;
        int tok[T];
        if (!check_sampled(i) || !aqua_open(&c, i, settings[i % 4], (ModelOpts){0})) continue;
        palu_plain(&plain, i, (ModelOpts){0});
        const size_t n = (size_t)(T * c.cfg.vocab);
        real *whole = xcalloc(n, sizeof *whole), *cut = xcalloc(n, sizeof *cut);
        palu_text(tok, c.cfg.vocab, (uint64_t)i);
        palu_logits(&plain, tok, T, T, cut), palu_logits(&c, tok, T, T, whole);
        const double apart = palu_distance(whole, cut, n);
        cr_assert(apart > 1e-6 && apart < 1, "%s, %s: %.3g from a dense cache", zoo[i].name, settings[i % 4], apart);
        double worst = 0;
        for (int first = 1; first < T; first += 4) {
            palu_logits(&c, tok, first, first % 2 ? 1 : 7, cut);
            worst = fmax(worst, palu_distance(cut, whole, n));
        }
        cr_assert(worst <= (REAL == F64 ? 1e-9 : 0.15) || (palu_decides(i) && REAL == F32), "%s, %s: %.3g", zoo[i].name,
                  settings[i % 4], worst);
        free(whole), free(cut);
        palu_close(&c), palu_close(&plain);
        models++;
    }
    cr_assert(models > (check_sampled(1) ? 15 : 4), "%d models", models);
}

/* Rows of a slot, keys turned back and values, of a session over a dense cache. */
static void dense_rows(const Session *s, int layer, real *keys, real *values) {
    cr_assert(kv_rows_turned_back(kv_slot(&s->cache, layer), 0, keys, values) == T);
}
/* A tensor of the file, (rows, columns), as doubles. */
static double *tensor_of(const St *st, int layer, bool value, const char *what, size_t n) {
    char name[BASIS_NAME];
    Err e = {0};
    basis_name(name, layer, value, what);
    const StEntry *x = st_find(st, name);
    cr_assert(x && x->bytes == n * sizeof(float), "%s", name);
    double *to = xcalloc(n, sizeof *to);
    for (size_t i = 0; i < n; i++) to[i] = (double)((const float *)x->p)[i];
    (void)e;
    return to;
}
/* The matrix W and the mean b that predict y (n,O) from x (n,I) are those of least squares with a ridge: sum over rows
 * of y - W x - b is 0, and that of (y - W x - b) x^T, over n, is 1e-4 of the mean variance of x times W. */
static void stationary(const char *what, const real *x, size_t I, const real *y, size_t O, size_t n, const double *W,
                       const double *b) {
    double *mean = xcalloc(I, sizeof *mean), *off = xcalloc(n * O, sizeof *off), trace = 0, worst = 0, most = 0;
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < I; i++) mean[i] += (double)x[j * I + i] / (double)n;
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < I; i++) trace += pow((double)x[j * I + i] - mean[i], 2) / (double)n;
        for (size_t o = 0; o < O; o++) {
            off[j * O + o] = (double)y[j * O + o] - b[o];
            for (size_t i = 0; i < I; i++) off[j * O + o] -= W[o * I + i] * (double)x[j * I + i];
            most = fmax(most, fabs((double)y[j * O + o]));
        }
    }
    for (size_t o = 0; o < O; o++) {
        double sum = 0;
        for (size_t j = 0; j < n; j++) sum += off[j * O + o] / (double)n;
        worst = fmax(worst, fabs(sum) / most);
        for (size_t i = 0; i < I; i++) {
            double slope = -1e-4 * trace / (double)I * W[o * I + i];
            for (size_t j = 0; j < n; j++) slope += off[j * O + o] * ((double)x[j * I + i] - mean[i]) / (double)n;
            worst = fmax(worst, fabs(slope) / (most * sqrt(trace / (double)I)));
        }
    }
    cr_assert(worst < 2e-6, "%s: %g from the minimum", what, worst); /* weights are floats */
    free(mean), free(off);
}
/* Layers 0 and 1, whose rows below are known: those of layer 0 as they are read back. */
Test(aqua, matrices_are_those_of_least_squares) {
    static const char *const names[] = {"gqa", "qk norm", "interleaved rope"};
    for (int a = 0; a < 3; a++) {
        const int animal = zoo_find(names[a]);
        PaluCase plain, own;
        Session s;
        St st;
        Err e = {0};
        int tok[T];
        char *path = check_path("fit");
        double left[2 * LAYERS_MAX];
        cr_assert(aqua_calibrate(animal, 1, "bits=3", path, left));
        aqua_open_file(&own, animal, "bits=3", path, (ModelOpts){0});
        palu_plain(&plain, animal, (ModelOpts){0});
        palu_text(tok, plain.cfg.vocab, PALU_SEED(0));
        palu_session(&s, &plain, 1);
        palu_feed(&s, 0, T, tok, NULL);
        cr_assert(st_open(&st, path, &e), "%s", e.msg);
        const KvShape *k = &plain.m.layer[0].rows;
        const size_t kw = (size_t)(k->lanes * k->kdim), vw = (size_t)(k->lanes * k->vdim);
        real *keys[2], *values[2], *back = xcalloc(T * kw, sizeof *back), code[BASIS_WIDEST];
        for (int l = 0; l < 2; l++) {
            keys[l] = xcalloc(T * kw, sizeof(real)), values[l] = xcalloc(T * vw, sizeof(real));
            dense_rows(&s, l, keys[l], values[l]);
        }
        double *bk = tensor_of(&st, 0, false, "mean", kw), *bv = tensor_of(&st, 0, true, "mean", vw),
               *wv = tensor_of(&st, 0, true, "predictor", kw * vw), *b1 = tensor_of(&st, 1, false, "mean", kw),
               *w1 = tensor_of(&st, 1, false, "predictor", kw * kw);
        for (size_t i = 0; i < kw; i++) {
            double mean = 0;
            for (size_t j = 0; j < T; j++) mean += (double)keys[0][j * kw + i] / T;
            cr_assert(fabs(mean - bk[i]) < 1e-6, "mean %g, not %g", bk[i], mean);
        }
        for (size_t j = 0; j < T; j++)
            for (size_t h = 0; h < (size_t)k->lanes; h++) {
                real *row = back + j * kw + h * (size_t)k->kdim;
                for (int i = 0; i < k->kdim; i++)
                    row[i] =
                        keys[0][j * kw + h * (size_t)k->kdim + (size_t)i] - (real)bk[h * (size_t)k->kdim + (size_t)i];
                aqua_recode(&own.codec, row, code, k->kdim);
                for (int i = 0; i < k->kdim; i++) row[i] += (real)bk[h * (size_t)k->kdim + (size_t)i];
            }
        stationary(names[a], back, kw, values[0], vw, T, wv, bv);
        stationary(names[a], back, kw, keys[1], kw, T, w1, b1);
        for (int l = 0; l < plain.m.L; l++)
            cr_assert(fabs(left[2 * l] - (l == 0)) < (l ? 1 : 1e-6) && left[2 * l + 1] > 0 && left[2 * l + 1] < 1,
                      "%s, layer %d: %g of the keys' variance is left, %g of the values'", names[a], l, left[2 * l],
                      left[2 * l + 1]);
        free(bk), free(bv), free(wv), free(b1), free(w1), free(back);
        for (int l = 0; l < 2; l++) free(keys[l]), free(values[l]);
        st_close(&st), session_close(&s);
        palu_close(&plain), palu_close(&own);
        free(path);
    }
}
static float no_prediction(const char *name, size_t i, float x) {
    (void)name, (void)i, (void)x;
    return 0;
}
/* A prediction of 0 leaves the row itself: keys before their rotation and values, mixed and in packed codes or those of
 * pairs. Of layer 0, whose rows no codec has changed, the same bytes as codec_packed_encode or codec_pairs_encode
 * gives. */
Test(aqua, without_a_prediction_rows_are_plain_codes) {
    const int animal = zoo_find("gqa");
    for (int how = 0; how < 6; how++) {
        const int bits = 2 + how / 2;
        const bool pairs = how % 2;
        PaluCase plain, own;
        Session dense, low;
        int tok[T];
        char settings[40], *path = check_path("some"), *none = check_path("none");
        snprintf(settings, sizeof settings, "bits=%d,pairs=%s", bits, pairs ? "yes" : "no");
        cr_assert(aqua_calibrate(animal, 1, settings, path, NULL));
        aqua_change(path, none, no_prediction);
        aqua_open_file(&own, animal, settings, none, (ModelOpts){0});
        palu_plain(&plain, animal, (ModelOpts){0});
        palu_text(tok, plain.cfg.vocab, 8);
        palu_session(&dense, &plain, 1), palu_session(&low, &own, 1);
        palu_feed(&dense, 0, T, tok, NULL), palu_feed(&low, 0, T, tok, NULL);
        const Slot *s = kv_slot(&low.cache, 0);
        const KvShape *k = &s->t.s;
        real *rows[2] = {xcalloc((size_t)(T * k->lanes * k->kdim), sizeof(real)),
                         xcalloc((size_t)(T * k->lanes * k->vdim), sizeof(real))};
        dense_rows(&dense, 0, rows[0], rows[1]);
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < T; j++)
                for (int h = 0; h < k->lanes; h++) {
                    const int w = i ? k->vdim : k->kdim, piece = w & -w;
                    const real *row = rows[i] + (j * k->lanes + h) * w;
                    const size_t at = slot_place_of(s, h, j), bytes = own.codec.bytes(&own.codec, w);
                    const uint64_t minus = pairs ? rng_mix(0xA90A, 0) : 0;
                    real mixed[64];
                    unsigned char want[64];
                    for (int n = 0; n < w; n++) { /* a row of the Hadamard matrix: signs by the common bits */
                        double sum = 0;
                        for (int m = n / piece * piece; m < n / piece * piece + piece; m++)
                            sum +=
                                ((__builtin_popcountll((unsigned)(m % piece & n % piece)) + (minus >> m & 1)) % 2 ? -1
                                                                                                                  : 1) *
                                (double)row[m];
                        mixed[n] = (real)(sum / sqrt(piece));
                    }
                    (pairs ? codec_pairs_encode : codec_packed_encode)(&own.codec, want, mixed, w);
                    cr_assert(bytes <= sizeof want);
                    CHECK_BYTES("codes", (const char *)s->t.data.p + (i ? slot_value(s, at) : slot_key(s, at)), want,
                                bytes);
                }
        free(rows[0]), free(rows[1]);
        session_close(&dense), session_close(&low);
        palu_close(&plain), palu_close(&own);
        free(path), free(none);
    }
}
/* What is resident is what the cost model says, and by its own count: codes of each layer, `real`s of one. */
Test(aqua, bytes_are_those_of_residuals_and_one_layer, .timeout = 120) {
    int models = 0;
    for (int i = 0; i < zoo_count(); i++) {
        PaluCase c;
        Session s;
        int tok[T];
        char text[40];
        const int bits = 2 + i % 3;
        const bool pairs = i % 2;
        size_t rows = 0, once = 0, mapped;
        Err e = {0};
        snprintf(text, sizeof text, "bits=%d,pairs=%s", bits, pairs ? "yes" : "no");
        if (!check_sampled(i) || !aqua_open(&c, i, text, (ModelOpts){0})) continue;
        CacheCost *cost = xcalloc(1, sizeof *cost);
        palu_text(tok, c.cfg.vocab, 3);
        palu_session(&s, &c, 2);
        palu_feed(&s, 0, T, tok, NULL);
        cost_cache(&c.m, T, cost);
        cr_assert(session_bytes(&s, 0) == cost->bytes_at_context, "%s: %zu resident, %zu by the cost model",
                  zoo[i].name, session_bytes(&s, 0), cost->bytes_at_context);
        for (int l = 0; l < c.m.L; l++) {
            const KvShape *r = &c.m.layer[l].rows;
            if (!basis_layer(&c.m, l)) continue;
            for (int v = 0; v < 2; v++) {
                const int w = v ? r->vdim : r->kdim, low = bits == 3 ? 2 : bits;
                cr_assert(w <= 32);
                const int words = pairs ? ((w + 1) / 2 * 2 * bits + 31) / 32 : (w * low + 31) / 32 + (bits == 3);
                rows += (size_t)(T * r->lanes * 4) * (size_t)(1 + words);
            }
            once = (size_t)(T * r->lanes * (r->kdim + r->vdim)) * sizeof(real);
        }
        cr_assert(session_bytes(&s, 0) - cost->state_bytes == rows + once, "%s", zoo[i].name);
        cr_assert(cost_cache_mapped(&c.m, 1, T, T, &mapped, &e) && mapped >= rows + once, "%s: %zu bytes", zoo[i].name,
                  mapped);
        session_fork(&s, 0, 1); /* codes are shared, what is read is not */
        const int both[2] = {1, 1};
        cr_assert(kv_resident(&s.cache, both) == rows + 2 * once + 2 * cost->state_bytes, "%s: %zu bytes of two",
                  zoo[i].name, kv_resident(&s.cache, both));
        session_close(&s);
        free(cost);
        palu_close(&c);
        models++;
    }
    cr_assert(models > (check_sampled(1) ? 15 : 4), "%d models", models);
}
