/* test_palu.c: rows as coefficients of a calibrated basis, over models of the zoo: what is stored, what is read, how
 * far rows are off, and that a row looks the same to its own pass and to later ones. tests/golden/make_palu.py has the
 * rule once more; test_palu_file.c the file. */
#include <math.h>
#include "infer/calibrate.h"
#include "layers/cache/codec.h"
#include "layers/cache/slot.h"
#include "model/basis.h"
#include "model/cost.h"
#include "tests/lib/palu.h"
#include "tests/lib/rig.h"

enum { T = PALU_TOKENS, CHUNK = 16 };
/* ---- the rule ----------------------------------------------------------------------------------------------------*/

enum {
    ROWS = 24,
    FIRST = 4090,
    LANES = 4,
    TOGETHER = 2,
    KDIM = 6,
    VDIM = 5,
    WIDEST = TOGETHER * KDIM,
    RANK_K = 3,
    RANK_V = 2
};
/* Numbers that make_palu.py draws alike. */
static real drawn(int which, int row, int lane, int k) {
    uint32_t x = (uint32_t)(which * 65536 + row * 64 + lane * 16 + k) * 2654435761u + 12345u;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13;
    return (real)(float)(((double)x / 4294967296.0 - 0.5) * 4 * (1 + k) / (1 + lane));
}
typedef struct {
    int off[2], seq, of[ROWS], pos[ROWS], first[ROWS];
    uint64_t id;
    Batch b;
} Rows;
static void rows_batch(Rows *r) {
    *r = (Rows){.off = {0, ROWS}};
    for (int i = 0; i < ROWS; i++) r->pos[i] = FIRST + i, r->first[i] = -1;
    r->b = (Batch){1, ROWS, r->off, &r->seq, r->of, r->pos, r->first, &r->id, true, NULL};
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
static void near_enough(const char *what, double got, double want, double size) {
    const double bound = (REAL == F64 ? 1e-11 : 4e-6) * size;
    cr_assert(fabs(got - want) <= bound, "%s: %.15g, not %.15g (within %.2g)", what, got, want, bound);
}
/* Rows through kv_settle and kv_append of a cache of this shape. */
static void store(Rig *g, Cache *c, const KvShape *shape, const Rope *rope, Rows *rows, Kv *kv) {
    Err e = {0};
    Fields place = arena_placer(&g->mem);
    static int idx[ROWS];
    for (int i = 0; i < ROWS; i++) idx[i] = i;
    cr_assert(kv_open(c, shape, 1, 1, FIRST + ROWS, ROWS, 16, true, false, &e), "%s", e.msg);
    kv_turns(kv_slot(c, 0), rope);
    kv_pass_fields(shape, ROWS, kv, &place);
    for (int j = 0; j < ROWS; j++)
        for (int h = 0; h < LANES; h++) {
            for (int k = 0; k < KDIM; k++) R(kv->k)[(j * LANES + h) * KDIM + k] = drawn(0, j, h, k);
            for (int k = 0; k < VDIM; k++) R(kv->v)[(j * LANES + h) * VDIM + k] = drawn(1, j, h, k);
        }
    g->run.batch = &rows->b, g->run.in = (RowList){ROWS, idx};
    cr_assert(kv_begin(c, &rows->b, &e), "%s", e.msg);
    rig_use(g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1);
    CALL(g, (kv_settle(&g->run, kv), kv_append(&g->run, kv_slot(c, 0), kv, NULL), 0));
    kv_end(c, &rows->b, NULL);
}
/* The leading directions of both parts of groups of lanes, from the moments of rows that are stored as `real`s. */
static void calibrated(Cache *plain, RowBasis *b, int heads) {
    KvMoments m;
    kv_moments_open(&m, kv_slot(plain, 0), heads);
    kv_moments_add(&m, kv_slot(plain, 0), 0, FIRST, 1);
    cr_assert(m.groups == LANES / heads && m.rows[0] == ROWS && m.rows[m.groups - 1] == ROWS);
    b->lanes = LANES, b->heads = heads;
    for (int i = 0; i < 2; i++) {
        const int w = m.width[i], rank = i ? RANK_V : RANK_K, n = heads * rank * w;
        b->part[i] =
            (PartBasis){.rank = rank, .width = w / heads, .direction = xcalloc((size_t)(m.groups * n), sizeof(real))};
        for (int g = 0; g < m.groups; g++) {
            double a[WIDEST * WIDEST], v[WIDEST * WIDEST], value[WIDEST];
            for (int k = 0; k < w * w; k++) a[k] = m.sum[i][g * w * w + k] / ROWS;
            basis_eigen(w, a, v, value);
            for (int k = 0; k < n; k++) b->part[i].direction[g * n + k] = (real)v[k];
        }
    }
    kv_moments_free(&m);
}
static void compared(FILE *f, const Cache *plain, const Cache *low, const KvShape *shape, const Kv *kv) {
    KvMoments m;
    const Slot *s = kv_slot(low, 0);
    const int heads = shape->basis->heads;
    kv_moments_open(&m, kv_slot(plain, 0), heads);
    kv_moments_add(&m, kv_slot(plain, 0), 0, 0, 2);
    for (int i = 0; i < 2; i++)
        for (int g = 0; g < m.groups; g++) {
            const int w = m.width[i], part = w / heads, rank = i ? RANK_V : RANK_K;
            double a[WIDEST * WIDEST], v[WIDEST * WIDEST], value[WIDEST];
            for (int k = 0; k < w * w; k++) a[k] = m.sum[i][g * w * w + k] / ROWS;
            basis_eigen(w, a, v, value);
            word_is(f, "eigenvalues");
            for (int k = 0; k < w; k++) near_enough("eigenvalue", value[k], number(f), value[0]);
            for (int d = 0; d < w; d++) {
                word_is(f, "direction");
                for (int k = 0; k < w; k++) near_enough("direction", v[d * w + k], number(f), 10);
            }
            for (int j = 0; j < ROWS; j++) {
                word_is(f, "row");
                for (int k = 0; k < heads * rank; k++) {
                    const int h = g * heads + k / rank;
                    const size_t at = slot_place_of(s, h, j);
                    const uint16_t *code =
                        (const void *)((const char *)s->t.data.p + (i ? slot_value(s, at) : slot_key(s, at)));
                    unsigned want;
                    cr_assert(fscanf(f, "%x", &want) == 1 && want == code[k % rank],
                              "part %d, lane %d, row %d: %x, not %x", i, h, j, code[k % rank], want);
                }
                for (int h = g * heads; h < (g + 1) * heads; h++) {
                    real back[KDIM];
                    row_decode(&s->t, back, i, h, j);
                    for (int k = 0; k < part; k++) {
                        const double want = number(f);
                        near_enough("a row that is read", (double)back[k], want, 10);
                        near_enough("a row of the pass", (double)R(i ? kv->v : kv->k)[(j * LANES + h) * part + k], want,
                                    10);
                    }
                }
            }
        }
    kv_moments_free(&m);
}
Test(palu, rows_are_those_of_the_papers_rule) {
    FILE *f = fopen("tests/golden/palu.txt", "r");
    cr_assert(f);
    for (int turn = 0; turn < 2; turn++) {
        Rig g;
        Rows rows;
        Cache plain, low;
        Kv kv, kept;
        RowCodec codec = codec_palu;
        rig_open(&g, rig_first(), 1, 1 << 20);
        rows_batch(&rows);
        word_is(f, "rope");
        Rope rope = {.n = (int)number(f), .at = (int)number(f), .interleaved = number(f) > 0, .factor = 1.3};
        for (int i = 0; i < rope.n / 2; i++) rope.f[i] = pow(1000, -2.0 * i / rope.n);
        const KvShape dense = {.lanes = LANES, .kdim = KDIM, .vdim = VDIM, .codec = &codec_f32};
        store(&g, &plain, &dense, &rope, &rows, &kv);
        for (int heads = 1; heads <= TOGETHER; heads++) {
            RowBasis basis = {0};
            KvShape shape = dense;
            calibrated(&plain, &basis, heads);
            basis_turns(&basis, &rope);
            shape.codec = &codec, shape.basis = &basis;
            cr_assert(row_bytes(&shape) == 8 + 4); /* three and two coefficients in bf16, in whole words */
            store(&g, &low, &shape, &rope, &rows, &kept);
            compared(f, &plain, &low, &shape, &kept);
            kv_close(&low);
            basis_free(&basis);
        }
        kv_close(&plain);
        rig_close(&g);
    }
    RowBasis basis = {0};
    Rope rope = {.n = KDIM};
    for (int i = 0; i < KDIM / 2; i++) rope.f[i] = pow(1000, -2.0 * i / KDIM);
    basis_turns(&basis, &rope);
    for (int n = 0; n < 8; n++) {
        real x[KDIM] = {1, 2, 3, 4, 5, 6};
        word_is(f, "turn");
        const int pos = (int)number(f);
        basis_turn(&basis, x, pos, 1);
        for (int k = 0; k < KDIM; k++) near_enough("a turn", (double)x[k], number(f), REAL == F64 ? 1e4 : 10);
        basis_turn(&basis, x, pos, -1);
        for (int k = 0; k < KDIM; k++) near_enough("turned back", (double)x[k], k + 1, 10);
    }
    basis_free(&basis);
    fclose(f);
}

/* A matrix of known eigenvectors, some eigenvalues equal, some 0, at sizes of heads. */
Test(palu, eigenvectors_are_those_of_the_matrix) {
    for (int n = 1; n <= 96; n = n < 4 ? n + 1 : 2 * n + n % 3) {
        const size_t w = (size_t)n;
        double *a = xcalloc(w * w, sizeof *a), *was = xcalloc(w * w, sizeof *was), *v = xcalloc(w * w, sizeof *v),
               *value = xcalloc(w, sizeof *value), worst = 0, most = 0;
        for (int r = 0; r < imax(1, n / 2); r++) /* of rank n / 2, so that half of the eigenvalues are 0 */
            for (size_t i = 0; i < w; i++)
                for (size_t j = 0; j < w; j++)
                    a[i * w + j] += rng_normal((uint64_t)r, i) * rng_normal((uint64_t)r, j) * pow(0.7, r);
        memcpy(was, a, w * w * sizeof *a);
        basis_eigen(n, a, v, value);
        for (int i = 0; i < n; i++) most = fmax(most, fabs(value[i]));
        for (size_t i = 0; i < w; i++) {
            cr_assert(!i || value[i] <= value[i - 1]);
            cr_assert((int)i < imax(1, n / 2) || fabs(value[i]) < 1e-12 * most, "value %zu of %d: %g", i, n, value[i]);
            for (size_t j = 0; j < w; j++) {
                double dot = 0, x = 0;
                for (size_t k = 0; k < w; k++) dot += v[i * w + k] * v[j * w + k], x += was[j * w + k] * v[i * w + k];
                worst = fmax(worst, fmax(fabs(dot - (i == j)), fabs(x - value[i] * v[i * w + j]) / most));
            }
        }
        cr_assert(worst < 1e-12, "size %d: off by %g", n, worst);
        free(a), free(was), free(v), free(value);
    }
}

/* ---- rows of models ----------------------------------------------------------------------------------------------*/

/* All directions and `real`s: the rows of a dense cache but for rounding. */
Test(palu, all_directions_give_the_dense_cache, .timeout = 120) {
    int models[2] = {0};
    for (int k = 0; k < 2 * zoo_count(); k++) {
        PaluCase c, plain;
        int tok[T];
        const int i = k / 2, heads = 1 + k % 2;
        if (!check_sampled(i) || !palu_open_groups(&c, i, heads, "rank=1,bits=32", (ModelOpts){0})) continue;
        palu_plain(&plain, i, (ModelOpts){0});
        const size_t n = (size_t)(T * c.cfg.vocab);
        real *low = xcalloc(n, sizeof *low), *dense = xcalloc(n, sizeof *dense);
        palu_text(tok, c.cfg.vocab, (uint64_t)i + 50);
        palu_logits(&c, tok, 7, 5, low), palu_logits(&plain, tok, 7, 5, dense);
        const double off = palu_distance(low, dense, n), bound = REAL == F64 ? 1e-12 : 1e-5;
        cr_assert(off <= bound || (palu_decides(i) && REAL == F32), "%s, groups of %d: %.3g from a dense cache",
                  zoo[i].name, heads, off);
        free(low), free(dense);
        palu_close(&c), palu_close(&plain);
        models[heads - 1]++;
    }
    for (int k = 0; k < 2; k++)
        cr_assert(models[k] > (check_sampled(1) ? 20 : 6), "groups of %d: %d models", k + 1, models[k]);
}
/* A plan for longer sequences changes a rotation of type dynamic, and how keys are turned back with it. */
Test(palu, keys_turn_as_the_model_was_planned) {
    static const Animal dynamic = {
        "dynamic rope",
        "{\"d_model\":12,\"vocab\":11,\"max_positions\":16,\"init_std\":0.4,\"layers\":2,\"tied\":true,"
        "\"ffn\":[{\"kind\":\"swiglu\",\"hidden\":10}],\"kinds\":{\"a\":{\"mixer\":\"gqa\",\"heads\":4,"
        "\"kv_heads\":2,\"head_dim\":4,\"rope\":{\"type\":\"dynamic\",\"theta\":100,\"factor\":4}}},\"pattern\":["
        "\"a\"]}"};
    PaluCase c = {.path = check_path("dynamic")};
    Err e = {0};
    double moved = 0;
    cr_assert(palu_calibrate(zoo_find("gqa"), 1, 1, c.path)); /* of the same shape; its directions do not matter */
    c.text = xformat("palu:basis=%s", c.path);
    cr_assert(codec_parse(c.text, &c.codec, &e), "%s", e.msg);
    zoo_open(&dynamic, &c.cfg, &c.m, NULL, &c.dev, (ModelOpts){.codec = &c.codec});
    const Rope *rope = c.m.layer[0].kind->mixer->turns(c.m.layer[0].cfg), before = *rope;
    cr_assert(model_plan(&c.m, T));
    for (int l = 0; l < 2; l++)
        for (int i = 0; i < rope->n / 2; i++) {
            real key[4] = {1, 1, 0, 0}; /* the first elements of two pairs */
            basis_turn(&c.m.basis[l], key, T, 1);
            near_enough("cosine", (double)key[i], cos(T * rope->f[i]), 10);
            near_enough("sine", (double)key[2 + i], sin(T * rope->f[i]), 10);
            moved = fmax(moved, T * fabs(rope->f[i] - before.f[i]));
        }
    cr_assert(moved > 0.1, "angles moved by %g", moved);
    palu_close(&c);
}
/* As test_codec.c has it for codecs without a basis. */
Test(palu, rows_look_the_same_behind_every_cut, .timeout = 300) {
    static const char *const settings[] = {"rank=0.5",         "rank=0.75,value_rank=0.3,bits=8", "rank=0.8,bits=4",
                                           "rank=0.5,bits=32", "rank=0.25,bits=3,group=64",       "rank=0.9,bits=2"};
    for (int k = 0; k < 2 * zoo_count(); k++) {
        PaluCase c, plain;
        int tok[T];
        const int i = k / 2, heads = 1 + k % 2;
        if (!check_sampled(i) || !palu_open_groups(&c, i, heads, settings[i % 6], (ModelOpts){0})) continue;
        palu_plain(&plain, i, (ModelOpts){0});
        const size_t n = (size_t)(T * c.cfg.vocab);
        real *whole = xcalloc(n, sizeof *whole), *cut = xcalloc(n, sizeof *cut);
        palu_text(tok, c.cfg.vocab, (uint64_t)i);
        palu_logits(&plain, tok, T, T, cut), palu_logits(&c, tok, T, T, whole);
        const double apart = palu_distance(whole, cut, n);
        cr_assert(apart > 1e-6, "%s, %s: %.3g from a dense cache", zoo[i].name, settings[i % 6], apart);
        for (int first = 1; first < T; first += 4) {
            palu_logits(&c, tok, first, first % 2 ? 1 : 7, cut);
            const double off = palu_distance(cut, whole, n);
            cr_assert(off <= (REAL == F64 ? 1e-9 : 0.02) || (palu_decides(i) && REAL == F32),
                      "%s, groups of %d, %s, cut at %d: %.3g", zoo[i].name, heads, settings[i % 6], first, off);
        }
        free(whole), free(cut);
        palu_close(&c), palu_close(&plain);
    }
}
/* The mean squared error of the rows of the text of the calibration is the sum of the eigenvalues of the directions
 * that are left out. Rows of layer 0, whose inputs no codec changes, as two caches have them. */
Test(palu, the_error_is_the_sum_of_the_eigenvalues_left_out, .timeout = 120) {
    int groups[2] = {0};
    for (int n = 0; n < 2 * zoo_count(); n++)
        for (int share = 1; share < 4; share++) {
            PaluCase c, plain;
            Session low, dense;
            int tok[T];
            char text[40];
            const int i = n / 2, heads = 1 + n % 2;
            snprintf(text, sizeof text, "rank=%g,bits=32", share * 0.25);
            if (!check_sampled(i) || !palu_open_groups(&c, i, heads, text, (ModelOpts){0})) continue;
            palu_plain(&plain, i, (ModelOpts){0});
            const KvShape *s = &c.m.layer[0].rows;
            palu_session(&low, &c, 1), palu_session(&dense, &plain, 1);
            palu_text(tok, c.cfg.vocab, PALU_SEED(0)); /* the calibration's only text */
            palu_feed(&low, 0, T, tok, NULL), palu_feed(&dense, 0, T, tok, NULL);
            for (int g = 0; basis_layer(&c.m, 0) && !s->window && g < s->lanes / heads; g++)
                for (int v = 0; v < 2; v++) {
                    const int w = v ? s->vdim : s->kdim, rank = c.m.basis[0].part[v].rank;
                    double off = 0, tail = 0, all = 0;
                    for (int j = 0; j < heads * T; j++) {
                        real a[64], b[64];
                        const int h = g * heads + j / T;
                        palu_row(&low, 0, h, v, j % T, a), palu_row(&dense, 0, h, v, j % T, b);
                        for (int k = 0; k < w; k++)
                            off += pow((double)a[k] - (double)b[k], 2) / T, all += pow((double)b[k], 2) / T;
                    }
                    for (int k = heads * rank; k < heads * w; k++) tail += palu_eigenvalue(&c, 0, v, g, k);
                    cr_assert(fabs(off - tail) <= (REAL == F64 ? 1e-12 : 1e-5) * all && tail >= -1e-12 * all,
                              "%s, groups of %d, rank %d of %d: error %.9g, eigenvalues %.9g of %.9g", zoo[i].name,
                              heads, rank, w, off, tail, all);
                    groups[heads - 1]++;
                }
            session_close(&low), session_close(&dense);
            palu_close(&c), palu_close(&plain);
        }
    cr_assert(groups[0] > 100 && groups[1] > (check_sampled(1) ? 50 : 30), "%d lanes, %d groups", groups[0], groups[1]);
}
/* The best directions of a group leave no more of its rows than the best of each lane, at as many coefficients. */
Test(palu, groups_leave_no_more_than_their_lanes) {
    double least = 1;
    for (int i = 0; i < zoo_count(); i++) {
        PaluCase one, two;
        if (!check_sampled(i) || !palu_open_groups(&two, i, 2, "rank=0.5", (ModelOpts){0})) continue;
        cr_assert(palu_open(&one, i, "rank=0.5", (ModelOpts){0}));
        const KvShape *s = &one.m.layer[0].rows; /* of which both read the same rows */
        for (int g = 0; basis_layer(&one.m, 0) && g < s->lanes / 2; g++)
            for (int v = 0; v < 2; v++) {
                const int w = v ? s->vdim : s->kdim, rank = one.m.basis[0].part[v].rank;
                double apart = 0, together = 0, all = 0;
                for (int k = 0; k < 2 * w; k++) {
                    const double group = palu_eigenvalue(&two, 0, v, g, k),
                                 lane = palu_eigenvalue(&one, 0, v, 2 * g + k / w, k % w);
                    together += k < 2 * rank ? 0 : group, apart += k % w < rank ? 0 : lane, all += lane;
                }
                cr_assert(together <= apart + 1e-12 * all, "%s: %.9g left by a group, %.9g by its lanes, of %.9g",
                          zoo[i].name, together, apart, all);
                if (apart > 1e-6 * all) least = fmin(least, together / apart);
            }
        palu_close(&one), palu_close(&two);
    }
    cr_assert(least < 0.9, "no group leaves less than %g of what its lanes leave", least);
}
/* Directions that are rounded along are mixed: they span the same, so that a row is projected to the same one, and the
 * coefficients of the text of the calibration have mean squares closer to each other. */
Test(palu, mixed_directions_span_the_same) {
    double far = 0, near = 0;
    for (int i = 0; i < zoo_count(); i++) {
        PaluCase c, mixed;
        if (!check_sampled(i) || !palu_open(&c, i, "rank=0.75,bits=32", (ModelOpts){0})) continue;
        cr_assert(palu_open(&mixed, i, "rank=0.75,bits=8", (ModelOpts){0}));
        for (int l = 0; l < c.m.L; l++)
            for (int v = 0; basis_layer(&c.m, l) && v < 2; v++) {
                const RowBasis *a = &c.m.basis[l], *b = &mixed.m.basis[l];
                const int w = a->part[v].width, rank = a->part[v].rank, h = a->lanes - 1;
                real x[64], y[64], coef[64], back[2][64];
                for (int k = 0; k < w; k++) x[k] = y[k] = (real)rng_normal(8, (uint64_t)(64 * i + k));
                basis_project(a, coef, x, v, h, 77), basis_expand(a, back[0], coef, v, h, 77);
                basis_project(b, coef, y, v, h, 77), basis_expand(b, back[1], coef, v, h, 77);
                CHECK_RELATIVE(zoo[i].name, back[1], back[0], (size_t)w, REAL == F64 ? 1e-12 : 1e-5);
                double mean[2][2] = {{INFINITY, 0}, {INFINITY, 0}}; /* least and most of plain and mixed ones */
                for (int d = 0; d < rank; d++) {
                    double squares = 0;
                    for (int k = 0; k < rank; k++) {
                        double cosine = 0;
                        for (int n = 0; n < w; n++)
                            cosine += (double)a->part[v].direction[(h * rank + k) * w + n] *
                                      (double)b->part[v].direction[(h * rank + d) * w + n];
                        squares += cosine * cosine * palu_eigenvalue(&c, l, v, h, k);
                    }
                    const double own = palu_eigenvalue(&c, l, v, h, d);
                    mean[0][0] = fmin(mean[0][0], own), mean[0][1] = fmax(mean[0][1], own);
                    mean[1][0] = fmin(mean[1][0], squares), mean[1][1] = fmax(mean[1][1], squares);
                }
                if (rank < 3) continue;
                far += mean[0][1] / mean[0][0] < 1e6 ? log(mean[0][1] / mean[0][0]) : 0;
                near += mean[0][1] / mean[0][0] < 1e6 ? log(mean[1][1] / mean[1][0]) : 0;
            }
        palu_close(&c), palu_close(&mixed);
    }
    cr_assert(far > 0 && near < far / 2, "sizes of coefficients: log ratios %g mixed, %g plain", near, far);
}
/* What is resident is what the cost model says, and by its own count rows of the codec's bytes. */
Test(palu, bytes_are_those_of_the_coefficients, .timeout = 120) {
    for (int k = 0; k < 2 * zoo_count(); k++) {
        static const int bits[] = {32, 16, 8, 4};
        const int i = k / 2, heads = 1 + k % 2;
        PaluCase c;
        Session s;
        Err e = {0};
        int tok[T];
        char text[60];
        size_t rows = 0, mapped;
        snprintf(text, sizeof text, "rank=0.5,value_rank=0.7,bits=%d", bits[i % 4]);
        if (!check_sampled(i) || !palu_open_groups(&c, i, heads, text, (ModelOpts){0})) continue;
        CacheCost *cost = xcalloc(1, sizeof *cost);
        palu_text(tok, c.cfg.vocab, 3);
        palu_session(&s, &c, 1);
        palu_feed(&s, 0, T, tok, NULL);
        cost_cache(&c.m, T, cost);
        cr_assert(session_bytes(&s, 0) == cost->bytes_at_context, "%s: %zu resident, %zu by the cost model",
                  zoo[i].name, session_bytes(&s, 0), cost->bytes_at_context);
        for (int l = 0; l < c.m.L; l++) {
            const KvShape *r = &c.m.layer[l].rows;
            if (!basis_layer(&c.m, l)) continue;
            const int rank[2] = {imax(1, (int)(0.5 * r->kdim + 0.5)), imax(1, (int)(0.7 * r->vdim + 0.5))};
            size_t row = 0;
            for (int v = 0; v < 2; v++)
                row += bits[i % 4] == 32   ? (size_t)rank[v] * sizeof(real)
                       : bits[i % 4] == 16 ? (size_t)(rank[v] + 1) / 2 * 4
                       : bits[i % 4] == 8  ? 4 + (size_t)(rank[v] + 3) / 4 * 4
                                           : 4 + (size_t)(rank[v] + 7) / 8 * 4;
            for (int h = 0; h < r->lanes; h++) rows += row * (size_t)kv_rows(kv_slot(&s.cache, l), 0, h);
            const Lanes *t = kv_lanes(kv_slot(&s.cache, l));
            cr_assert(tensor_bytes(t->data) == row * (size_t)t->P * (size_t)t->npages);
        }
        cr_assert(session_bytes(&s, 0) - cost->state_bytes == rows, "%s", zoo[i].name);
        cr_assert(cost_cache_mapped(&c.m, 1, T, CHUNK, &mapped, &e));
        session_close(&s);
        free(cost);
        palu_close(&c);
    }
}
