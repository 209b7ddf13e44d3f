/* Decisions about rows of the cache and their backward, the rows of weights and the columns of heads that they are
 * taken from. Batches of several sequences and documents are drawn; every bound is also held against a mistake. */
#include "rig.h"

enum { SEQS = 3 };
typedef struct {
    int off[SEQS + 1], *of, *pos, *first, G;
    uint64_t id[SEQS];
} Drawn;
static void draw(Drawn *p, Rig *g, int N, int d, bool whole) {
    Dice dice = {rng_mix((uint64_t)N, (uint64_t)d), 0};
    *p = (Drawn){.off = {0, N / 4, N / 4 + N / 3, N}, .G = 1 + d % 5, .id = {7, 3, 900}};
    p->of = xcalloc((size_t)N + 1, sizeof(int)), p->pos = xcalloc((size_t)N + 1, sizeof(int));
    p->first = xcalloc((size_t)N + 1, sizeof(int));
    for (int s = 0; s < SEQS; s++)
        for (int i = p->off[s]; i < p->off[s + 1]; i++) {
            bool opens = i == p->off[s], start = opens ? whole || roll(&dice, 2) : roll(&dice, 5) == 0;
            p->of[i] = s;
            p->first[i] = start ? i : opens ? -1 : p->first[i - 1];
            p->pos[i] = start ? 0 : opens ? 4 : p->pos[i - 1] + 1;
        }
    g->batch = (Batch){.B = SEQS, .N = N, .off = p->off, .of = p->of, .pos = p->pos, .first = p->first, .id = p->id};
    g->run.seed = 4, g->run.step = (uint64_t)d, g->run.layer = 2;
    static const unsigned modes[] = {0, RUN_TRAIN, RUN_TRAIN | RUN_STILL, RUN_TRAIN | RUN_SMOOTH};
    g->run.mode = modes[(N + d) % 4];
}
static void done(Drawn *p) { free(p->of), free(p->pos), free(p->first); }
static wide logistic(wide x) { return 1 / (1 + expl(-x)); }
static Tensor as_is(Rig *g, const char *name, int n, int G, real scale, real shift) {
    Tensor t = RANDOM(g, name, n, G);
    for (size_t i = 0; i < tensor_count(t); i++) R(t)[i] = scale * R(t)[i] + shift;
    return t;
}
static wide logit(const Rig *g, Tensor u, int i, int h, Decide d) {
    double chance = 0.5;
    if (g->run.mode & RUN_TRAIN && !(g->run.mode & RUN_STILL))
        chance = rng_uniform(noise_row(&g->run, noise_key(&g->run, NOISE_DECISION), i), (uint64_t)h);
    return ((wide)d.gain * R(u)[i * u.n[1] + h] - (wide)d.offset + logl((wide)chance / (1 - (wide)chance))) /
           (wide)d.temperature;
}

void case_decide(Rig *g, int N, int d) {
    Drawn p;
    draw(&p, g, N, d, false);
    const int G = p.G, merges = d % 2, size = N * G;
    const Decide how = {1.5, 0.25, d > 10 ? 0.5 : 2, 1.0 / 128, 2};
    const bool train = g->run.mode & RUN_TRAIN, counts = N % 2;
    Tensor u = RANDOM(g, "u", N, (1 + merges) * G), alpha = EMPTY(g, "alpha", N, G), bias = EMPTY(g, "bias", N, G),
           gone = d % 3 ? EMPTY(g, "gone", N, G) : ABSENT, omega = merges ? EMPTY(g, "omega", N, G) : ABSENT,
           stat = EMPTY(g, "statistics", SEQS, STATS, 2);
    Ref *ra = refs((size_t)size), *rb = refs((size_t)size), *rg = refs((size_t)size), *ro = refs((size_t)size),
        *rs = refs((size_t)SEQS * STATS * 2), *late = refs((size_t)size);
    for (int s = 0; s < SEQS * STATS * 2; s++) R(stat)[s] = (real)s, rs[s] = (Ref){s, (wide)s * s, 1};
    g->run.stat = counts ? stat : ABSENT;
    for (int i = 0; i < N; i++)
        for (int h = 0; h < G; h++) {
            int at = i * G + h, s = p.of[i];
            bool begins = p.first[i] == i;
            wide l = logit(g, u, i, h, how);
            ref_add(&ra[at], begins ? 0 : train ? logistic(l) : l > 0);
            ref_add(&rg[at], !begins && l > 0);
            wide mask = train ? -log1pl(expl(l)) : l > 0 ? -INFINITY : 0;
            if (!begins && i > p.off[s]) rb[at - G] = (Ref){mask, mask * mask, 1};
            late[at] = (Ref){mask, mask * mask + 1e-12L, 1};
            if (merges) ref_add(&ro[at], logistic(R(u)[i * 2 * G + G + h] + (wide)how.offset) + (wide)how.eps);
            wide counted = g->run.mode & RUN_SMOOTH ? ra[at].want : rg[at].want;
            if (counts) ref_add(&rs[s * STATS * 2 + STAT_MERGED * 2], counted);
            if (counts) ref_add(&rs[s * STATS * 2 + STAT_MERGED * 2 + 1], 1);
        }
    OP(g, decide, alpha, omega, bias, gone, u, how);
    CHECK_REF(g, "decide", "alpha", alpha, ra);
    CHECK_REF(g, "decide", "bias", bias, rb);
    if (present(gone)) CHECK_REF(g, "decide", "gone", gone, rg);
    if (merges) CHECK_REF(g, "decide", "omega", omega, ro);
    CHECK_REF(g, "decide", "statistics", stat, rs);
    if (N > 8 && train) CHECK_MISSED("decide", "a mask on the row that decides", bias, late);
    free(ra), free(rb), free(rg), free(ro), free(rs), free(late);
    done(&p);
}
OP_TEST(decide, EXACT)

void case_decide_backward(Rig *g, int N, int d) {
    Drawn p;
    draw(&p, g, N, d, true);
    const int G = p.G, merges = d % 2;
    const Decide how = {d > 10 ? 100 : 1, 5, 0.5, 1.0 / 128, 1 + d % 3};
    Tensor alpha = as_is(g, "alpha", N, G, (real)0.1, (real)0.5), omega = as_is(g, "omega", N, G, (real)0.1, (real)0.6),
           du = RANDOM(g, "du", N, G), dm = RANDOM(g, "dm", N, G), da = RANDOM(g, "da", N, G),
           domega = RANDOM(g, "domega", N, G), dbias = RANDOM(g, "dbias", N, G),
           dstat = RANDOM(g, "dstat", SEQS, STATS);
    Ref *ru = refs_of(du), *rm = refs_of(dm), *own = refs_of(du);
    g->run.dstat = N % 2 ? dstat : ABSENT;
    for (int i = 0; i < N; i++)
        for (int h = 0; h < G; h++) {
            int at = i * G + h;
            wide a = R(alpha)[at], f = (wide)how.gain / (wide)how.temperature, asked = merges ? R(da)[at] : 0,
                 o = R(omega)[at] - (wide)how.eps;
            if (present(g->run.dstat)) asked += R(dstat)[p.of[i] * STATS + STAT_MERGED];
            if (p.first[i] == i) R(alpha)[at] = 0;
            for (int wrong = 0; wrong < 2 && p.first[i] != i; wrong++) {
                ref_add(wrong ? &own[at] : &ru[at], f * asked * a * (1 - a));
                ref_add(wrong ? &own[at] : &ru[at], -f * a * R(dbias)[wrong ? at : at - G]);
            }
            ref_add(&rm[at], R(domega)[at] * o * (1 - o) / how.group);
        }
    OP(g, decide_backward, du, merges ? dm : ABSENT, merges ? da : ABSENT, merges ? domega : ABSENT, dbias, alpha,
       merges ? omega : ABSENT, how);
    CHECK_REF(g, "decide_backward", "du", du, ru);
    if (merges) CHECK_REF(g, "decide_backward", "dm", dm, rm);
    if (N > 8) CHECK_MISSED("decide_backward", "the mask of the row that decides", du, own);
    free(ru), free(rm), free(own);
    done(&p);
}
OP_TEST(decide_backward, EXACT)

void case_mean_rows(Rig *g, int N, int d) {
    const int each = 1 + N % 5, k = 1 + d % 4, at = each - 1, n = imin(N, 9);
    for (int narrow = 0; narrow < 2; narrow++)
        for (int column = 0; column < 2; column++) {
            Mark mark = arena_mark(&g->mem);
            int width = column ? 1 : d;
            Tensor w = RANDOM(g, "w", n * k * each, width), y = EMPTY(g, "y", n, width), used = w;
            Ref *want = refs((size_t)(n * width)), *next = refs((size_t)(n * width));
            if (narrow) {
                used = arena_tensor(&g->mem, "narrow", BF16, 2, w.n);
                for (size_t i = 0; i < tensor_count(w); i++) {
                    ((uint16_t *)used.p)[i] = bf16_from((float)R(w)[i]);
                    R(w)[i] = bf16_to(((uint16_t *)used.p)[i]);
                }
            }
            for (int i = 0; i < n * width; i++)
                for (int j = 0; j < k; j++) {
                    int row = (i / width * k + j) * each + at;
                    ref_add(&want[i], (wide)R(w)[row * width + i % width] / k);
                    ref_add(&next[i], (wide)R(w)[imax(0, row - 1) * width + i % width] / k);
                }
            if (column) y = TENSOR(y.p, REAL, n), used = TENSOR(used.p, used.dtype, used.n[0]);
            OP(g, mean_rows, y, used, each, at, k);
            CHECK_REF(g, "mean_rows", "y", y, want);
            if (n > 1 && width > 1) CHECK_MISSED("mean_rows", "the row before", y, next);
            free(want), free(next);
            arena_release(&g->mem, mark);
        }
}
OP_TEST(mean_rows, EXACT)

void case_scale_column(Rig *g, int N, int d) {
    Tensor x = RANDOM(g, "x", N, 2, d);
    Ref *want = refs_of(x);
    int c = N % d;
    for (int i = 0; i < 2 * N; i++) want[i * d + c].want *= (wide)(real)0.7;
    OP(g, scale_column, x, c, 0.7);
    CHECK_REF(g, "scale_column", "x", x, want);
    free(want);
}
OP_TEST(scale_column, EXACT)
