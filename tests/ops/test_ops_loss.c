/* The head with cross-entropy, sums of squares, and the matrix product itself: see rig.h. */
#include "tests/lib/rig.h"
#include "ops/gemm.h"
#include <criterion/redirect.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- cross-entropy ------------------------------------------------------------------------------------------------
 */
typedef struct {
    Ref *nll, *dx, *dw;
} Xent;
/* A logit of a product, and the derivative by it. */
static wide logit_of(wide s, LogitMap m, wide *slope) {
    wide z = rig_cap(m.scale * s, m.cap, slope);
    *slope *= m.scale;
    return z;
}
/* fault 1: the target's own term of the gradient is missing; 2: g is ignored; 3: so is the map's slope. */
static Xent xent_ref(Tensor x, Tensor w, LogitMap map, const int *tgt, const real *g, Tensor dx, Tensor dw, int fault) {
    int N = x.n[0], d = x.n[1], V = w.n[0];
    Xent r = {refs((size_t)N), refs_of(dx), refs_of(dw)};
    wide *l = xcalloc((size_t)V, sizeof *l), *slope = xcalloc((size_t)V, sizeof *slope);
    for (int i = 0; i < N; i++) {
        wide top = -INFINITY, sum = 0, norm = 0;
        if (tgt[i] < 0) continue;
        for (int v = 0; v < V; v++) {
            wide s = 0, q = 0;
            for (int k = 0; k < d; k++) {
                wide t = (wide)R(x)[i * d + k] * R(w)[v * d + k];
                s += t, q += t * t;
            }
            l[v] = logit_of(s, map, &slope[v]);
            if (!logits_plain(map)) q = q * slope[v] * slope[v] + 16 * (l[v] * l[v] + map.scale * map.scale);
            if (fault == 3) slope[v] = 1;
            top = l[v] > top ? l[v] : top;
            norm = q > norm ? q : norm;
        }
        for (int v = 0; v < V; v++) sum += wide_exp(l[v] - top);
        /* of the size of the logits that it is the difference of */
        r.nll[i] = (Ref){wide_log(sum) + top - l[tgt[i]], norm + 1 + top * top, d};
        for (int v = 0; v < V && present(dx); v++) {
            wide t = slope[v] * (fault == 2 ? 1 : g[i]), p = t * wide_exp(l[v] - top) / sum,
                 one = fault != 1 && v == tgt[i] ? t : 0,
                 bend = 4 * map.scale * g[i] * ((v == tgt[i]) + wide_exp(l[v] - top) / sum),
                 off = map.cap == 0 ? 0 : bend * bend;
            for (int k = 0; k < d; k++) {
                Ref *a = &r.dx[i * d + k], *b = &r.dw[v * d + k];
                ref_term(a, p * R(w)[v * d + k]), ref_term(a, -one * R(w)[v * d + k]);
                ref_term(b, p * R(x)[i * d + k]), ref_term(b, -one * R(x)[i * d + k]);
                /* p errs by as much as its logit does */
                a->square += (p * p * norm + off) * R(w)[v * d + k] * R(w)[v * d + k];
                b->square += (p * p * norm + off) * R(x)[i * d + k] * R(x)[i * d + k];
            }
        }
    }
    free(l), free(slope);
    return r;
}
/* The first id of the largest logit of every row; -1 where rounding may choose another. */
static int *largest(Tensor x, Tensor w, LogitMap map) {
    int N = x.n[0], d = x.n[1], V = w.n[0], *best = xcalloc((size_t)N + 1, sizeof *best);
    for (int i = 0; i < N; i++) {
        wide top = -INFINITY, second = -INFINITY;
        for (int v = 0; v < V; v++) {
            wide s = 0, slope;
            for (int k = 0; k < d; k++) s += (wide)R(x)[i * d + k] * R(w)[v * d + k];
            s = logit_of(s, map, &slope);
            if (s > top)
                second = top, top = s, best[i] = v;
            else if (s > second)
                second = s;
        }
        if (!(top - second > 1e-3L * (1 + wide_fabs(top)))) best[i] = -1;
    }
    return best;
}
static void xent_free(Xent r) { free(r.nll), free(r.dx), free(r.dw); }
static void xent(Rig *g, int N, int d, int V, real scale, LogitMap map) {
    Mark mark = arena_mark(&g->mem);
    Dice dice = {rng_mix((uint64_t)V, (uint64_t)N), 0};
    Tensor x = RANDOM(g, "x", N, d), w = RANDOM(g, "w", V, d), nll = EMPTY(g, "nll", N), G = RANDOM(g, "g", N);
    Tensor dx = RANDOM(g, "dx", N, d), dw = RANDOM(g, "dw", V, d);
    int *tgt = xcalloc((size_t)N + 1, sizeof *tgt), *hit = xcalloc((size_t)N + 1, sizeof *hit);
    for (size_t i = 0; i < tensor_count(w); i++) R(w)[i] *= scale / (real)sqrt(d);
    int *top = largest(x, w, map);
    for (int i = 0; i < N; i++) tgt[i] = i % 9 == 5 ? -1 : i % 3 == 1 && top[i] >= 0 ? top[i] : roll(&dice, V);
    memset(hit, 0x55, ((size_t)N + 1) * sizeof *hit);
    Xent want = xent_ref(x, w, map, tgt, R(G), dx, dw, 0);
    bool small = (long)N * V * d < 30000;
    Xent untold = small ? xent_ref(x, w, map, tgt, R(G), dx, dw, 1) : (Xent){0},
         plain = small ? xent_ref(x, w, map, tgt, R(G), dx, dw, 2) : (Xent){0},
         flat = small ? xent_ref(x, w, map, tgt, R(G), dx, dw, 3) : (Xent){0};
    OP(g, linear_xent, nll, hit, NOWHERE, ABSENT, x, w, map, tgt, NULL);
    CHECK_REF(g, "linear_xent", "nll alone", nll, want.nll);
    for (int i = 0; i < N; i++)
        cr_assert(top[i] < 0 ? tgt[i] >= 0 || !hit[i] : hit[i] == (tgt[i] == top[i]),
                  "%s row %d of %d: target %d, largest logit %d, hit %d", g->table, i, N, tgt[i], top[i], hit[i]);
    cr_assert_eq(hit[N], 0x55555555);
    memset(nll.p, 0xFF, tensor_bytes(nll));
    OP(g, linear_xent, nll, NULL, add_to(dx), dw, x, w, map, tgt, R(G));
    CHECK_REF(g, "linear_xent", "nll", nll, want.nll);
    CHECK_REF(g, "linear_xent", "dx", dx, want.dx);
    CHECK_REF(g, "linear_xent", "dw", dw, want.dw);
    for (int i = 0; i < N; i++)
        cr_assert(tgt[i] >= 0 || R(nll)[i] == 0, "row %d has no target and nll %g", i, (double)R(nll)[i]);
    if (N && V > 1 && small && (map.cap == 0 || scale < 4)) { /* else slopes are 0 */
        CHECK_MISSED("linear_xent", "a gradient without the target", dx, untold.dx);
        CHECK_MISSED("linear_xent", "a gradient without g", dw, plain.dw);
        if (map.cap > 0 && scale < 4)
            CHECK_MISSED("linear_xent", "a gradient without the slope of the cap", dx, flat.dx);
    }
    xent_free(want), xent_free(untold), xent_free(plain), xent_free(flat);
    free(tgt), free(hit), free(top);
    arena_release(&g->mem, mark);
}
void case_linear_xent(Rig *g, int N, int d) {
    static const LogitMap maps[] = {{1, 0}, {0.3, 0}, {0.7, 4}};
    for (int k = 0; k < 3; k++) {
        const real scale = d == 16 ? 40 : 2;                                         /* 40: logits of 100 and more */
        if (d > 100 && rig_threads() == 3 && k != g->run.dev->threads % 3) continue; /* the reference is slow */
        xent(g, N, d, d > 100 ? 257 : N % 2 ? 3 : 17, scale, maps[k]);
    }
    if (d == 1) xent(g, N, d, 1, 2, LOGITS_PLAIN);
}
OP_TEST(linear_xent, 0, 40)
void case_map_logits(Rig *g, int N, int d) {
    static const LogitMap maps[] = {{0.3, 0}, {0.7, 4}, {1, 0.01}, {1, 1e5}};
    for (int k = 0; k < 4; k++) {
        Mark mark = arena_mark(&g->mem);
        Tensor x = RANDOM(g, "x", N, d);
        Ref *want = refs((size_t)(N * d)), *other = refs((size_t)(N * d));
        for (int i = 0; i < N * d; i++) {
            wide slope, z;
            R(x)[i] *= i % 3 ? 30 : (real)0.01;
            z = logit_of(R(x)[i], maps[k], &slope);
            want[i] = (Ref){z, z * z, 1},
            other[i] = (Ref){maps[k].scale * R(x)[i] * (maps[k].cap > 0 ? 1 : 2), z * z, 1};
        }
        OP_WITHIN(g, map_logits, x, maps[k]);
        CHECK_REF(g, "map_logits", "logits", x, want);
        if (N * d > 40 && k < 3) CHECK_MISSED("map_logits", "logits without the map", x, other);
        free(want), free(other);
        arena_release(&g->mem, mark);
    }
}
OP_TEST(map_logits, EXACT, 8)
Test(ops, linear_xent_in_chunks) {
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        int N = (int[]){2049, 1025,
                        1023}[k % 3]; /* on a CPU 1,024 rows at this vocabulary: 2 x 1,024 + 1; 1,024 + 1; 1,023 */
        Rig g;
        rig_open(&g, tables[k], 2, (size_t)8 << 20);
        g.dev->logits = 1 << 20;
        xent(&g, N, 3, 2053, 2, (LogitMap){1, k % 2 ? 3 : 0});
        rig_close(&g);
    }
}
/* Of equal logits the first counts; a row with a NaN has no largest. */
Test(ops, linear_xent_hits_ties_and_nan) {
    enum { N = 40, V = 7 };
    Table tables[TABLES_MAX];
    for (int k = 0, n = rig_tables(tables); k < n; k++) {
        Rig g;
        rig_open(&g, tables[k], 1, 1 << 18);
        Tensor x = RANDOM(&g, "x", N, 1), w = EMPTY(&g, "w", V, 1), nll = EMPTY(&g, "nll", N);
        int tgt[N], hit[N];
        for (int v = 0; v < V; v++) R(w)[v] = v == 2 || v == 5 ? 1 : v == 6 ? -1 : 0;
        for (int i = 0; i < N; i++) tgt[i] = i % (V + 1) - 1, R(x)[i] = (real[]){1, -1, 0, (real)NAN}[i % 4];
        OP(&g, linear_xent, nll, hit, NOWHERE, ABSENT, x, w, LOGITS_PLAIN, tgt, NULL);
        for (int i = 0; i < N; i++) {
            int want = tgt[i] == (int[]){2, 6, 0, -2}[i % 4];
            cr_assert_eq(hit[i], want, "%s row %d: target %d, hit %d", tables[k].name, i, tgt[i], hit[i]);
        }
        rig_close(&g);
    }
}
Test(ops, linear_xent_refuses_a_target_outside, .signal = SIGABRT, .init = cr_redirect_stderr) {
    Rig g;
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1, 1 << 16);
    Tensor x = RANDOM(&g, "x", 1, 4), w = RANDOM(&g, "w", 3, 4), nll = EMPTY(&g, "nll", 1);
    OP(&g, linear_xent, nll, NULL, NOWHERE, ABSENT, x, w, LOGITS_PLAIN, (int[]){3}, NULL);
}

/* ---- norms ---------------------------------------------------------------------------------------------------------
 */
void case_sumsq(Rig *g, int N, int d) {
    Tensor x = N == 150 && d > 100 ? RANDOM(g, "long", 3, 100001) : RANDOM(g, "x", N, d);
    long double want = 0; /* wider than the op's double, in both builds */
    double got = 0;
    for (size_t i = 0; i < tensor_count(x); i++) want += (long double)R(x)[i] * R(x)[i];
    CALL(g, got = g->run.ops->sumsq(&g->run, x));
    /* summed in double whatever the type */
    cr_assert(wide_fabs(got - want) <=
                  rig_limit("sumsq") * 0x1p-53 * wide_sqrt((long double)imax(1, (int)tensor_count(x))) * want,
              "%s sumsq of %zu: got %.17g, want %.17Lg", g->table, tensor_count(x), got, want);
    rig_result(g, TENSOR(&got, F64, 1));
    /* A branch of the tree has the same bits by itself: of blocks in order, and of what is in one. */
    size_t n = tensor_count(x), block = zmin(n, 65536), half = 256;
    double part[2] = {0}, first = 0;
    while (2 * half < block) half *= 2;
    if (block <= half) return;
    CALL(g, first = g->run.ops->sumsq(&g->run, TENSOR(R(x), REAL, (int)block)));
    CALL(g, part[0] = g->run.ops->sumsq(&g->run, TENSOR(R(x), REAL, (int)half)));
    CALL(g, part[1] = g->run.ops->sumsq(&g->run, TENSOR(R(x) + half, REAL, (int)(block - half))));
    cr_assert(first == part[0] + part[1], "%s: %zu numbers: %.17g, cut behind %zu %.17g", g->table, block, first, half,
              part[0] + part[1]);
    for (size_t at = block; at < n; at += block) {
        CALL(g, part[0] = g->run.ops->sumsq(&g->run, TENSOR(R(x) + at, REAL, (int)zmin(block, n - at))));
        first += part[0];
    }
    cr_assert(got == first, "%s: %zu numbers: %.17g, block by block %.17g", g->table, n, got, first);
}
OP_TEST(sumsq, EXACT, 8)
void case_normalise(Rig *g, int N, int d) {
    Tensor x = N == 150 && d > 100 ? RANDOM(g, "long", 3, 100001) : RANDOM(g, "x", N, d);
    Ref *want = refs_of(x);
    wide norm = 0;
    for (size_t i = 0; i < tensor_count(x); i++) norm += (wide)R(x)[i] * R(x)[i];
    norm = wide_sqrt((long double)norm) + (wide)0.25;
    for (size_t i = 0; i < tensor_count(x); i++) want[i].want /= norm, want[i].square /= norm * norm;
    OP(g, normalise, x, 0.25);
    CHECK_REF(g, "normalise", "x", x, want);
    free(want);
}
OP_TEST(normalise, EXACT, 4)
void case_sumsqs(Rig *g, int N, int d) {
    Tensor x[300];
    const int n =
        N % 2 ? 300 : N % 9; /* more than fit into one copy of a table, some of them empty; and few, or none */
    wide want = 0;
    double got = 0;
    size_t count = 0;
    for (int i = 0; i < n; i++) {
        x[i] = i % 7 == 3 ? ABSENT : RANDOM(g, "x", 1 + i % 3, i == 5 && d > 100 ? 66000 : 1 + d % 16);
        for (size_t k = 0; k < tensor_count(x[i]); k++) want += (wide)R(x[i])[k] * R(x[i])[k];
        count += tensor_count(x[i]);
    }
    CALL(g, got = g->run.ops->sumsqs(&g->run, 0, n, x));
    cr_assert(wide_fabs(got - want) <= rig_limit("sumsqs") * 0x1p-53 * wide_sqrt((wide)imax(1, (int)count)) * want,
              "%s sumsqs of %zu: got %.17g, want %.17Lg", g->table, count, got, want);
    rig_result(g, TENSOR(&got, F64, 1));
}
OP_TEST(sumsqs, EXACT, 8)
/* In one call, and in two of which the second goes on: sumsqs' bits. */
void case_sumsqs_there(Rig *g, int N, int d) {
    Tensor x[9], sum = arena_tensor(&g->mem, "sum", F64, 1, (const int[]){1});
    double want = 0;
    for (int i = 0; i < 9; i++)
        x[i] = i == 3 ? ABSENT : i == 5 ? RANDOM(g, "x", 1 + N % 2, 66001) : RANDOM(g, "x", N, 1 + (d + i) % 100);
    CALL(g, want = g->run.ops->sumsqs(&g->run, 0, 9, x));
    for (int cut = 0; cut <= 9; cut += 3) {
        const Tensor *rest = x + cut;
        CALL(g, g->run.ops->sumsqs_there(&g->run, sum.p, false, cut, x));
        CALL(g, g->run.ops->sumsqs_there(&g->run, sum.p, true, 9 - cut, rest));
        cr_assert(*(double *)sum.p == want, "%s: cut at %d: %.17g instead of %.17g", g->table, cut, *(double *)sum.p,
                  want);
    }
    rig_result(g, sum);
}
OP_TEST(sumsqs_there, EXACT, 0)
Test(ops, sumsq_of_nothing) {
    Rig g;
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1, 0);
    cr_assert(g.run.ops->sumsq(&g.run, ABSENT) == 0);
    rig_close(&g);
}

OP_CASE(gemm, NULL, 6); /* no op: what products are made of */
/* ---- matrix product -----------------------------------------------------------------------------------------------
 */
static void product(Rig *g, GemmShape s) {
    Mark mark = arena_mark(&g->mem);
    Tensor A = RANDOM(g, "A", s.ta ? s.K : s.M, s.lda), B = RANDOM(g, "B", s.tb ? s.N : s.K, s.ldb),
           C = RANDOM(g, "C", s.M, s.ldc);
    Ref *want = refs_of(C); /* what lies between the rows stays */
    for (int i = 0; i < s.M; i++)
        for (int j = 0; j < s.N; j++) {
            Ref *r = &want[i * s.ldc + j];
            if (!s.accumulate) *r = (Ref){0};
            for (int k = 0; k < s.K; k++)
                ref_term(r,
                         (wide)R(A)[s.ta ? k * s.lda + i : i * s.lda + k] * R(B)[s.tb ? j * s.ldb + k : k * s.ldb + j]);
        }
    CALL(g, (gemm(g->dev->gemm, &g->scratch, s, R(C), R(A), R(B)), 0));
    CHECK_REF(g, "gemm", "C", C, want);
    free(want);
    arena_release(&g->mem, mark);
}
#ifndef KV_DOUBLE /* whose loop makes a team of threads first */
/* A product that needs no scratchpad maps nothing, however full the region is: there is no memory left to map here. */
Test(ops, gemm_on_a_full_region) {
    Rig g;
    struct rlimit none = {1, 1};
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline, NULL}, 1, (size_t)2 << 20);
    GemmShape s = {.M = 16, .N = 16, .K = 16, .lda = 16, .ldb = 16, .ldc = 16};
    Tensor A = RANDOM(&g, "A", 16, 16), B = RANDOM(&g, "B", 16, 16), C = RANDOM(&g, "C", 16, 16),
           D = RANDOM(&g, "D", 16, 16);
    Arena needs = {0}, full, room;
    Err e = {0};
    gemm(g.dev->gemm, &needs, s, R(C), R(A), R(B));
    cr_assert(arena_open(&full, "full", 0, false, &e), "%s", e.msg);
    /* The library makes a kernel at its first execution: the parent's, which has memory. */
    cr_assert(arena_open(&room, "room", needs.peak + 64, false, &e), "%s", e.msg);
    gemm(g.dev->gemm, &room, s, R(C), R(A), R(B));
    pid_t pid = fork();
    if (!pid) {
        if (setrlimit(RLIMIT_AS, &none)) _exit(2);
        if (needs.peak <= 64) gemm(g.dev->gemm, &full, s, R(D), R(A), R(B)); /* a guard, and nothing before it */
        _exit(needs.peak <= 64 && memcmp(C.p, D.p, tensor_bytes(C)) ? 1 : 0);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid && status == 0, "status %x", (unsigned)status);
    arena_close(&room);
    arena_close(&full);
    rig_close(&g);
}
#endif
Test(ops, gemm) {
    Rig g;
    rig_open(&g, (Table){"baseline", &ops_cpu_baseline, NULL}, 2, (size_t)2 << 20);
    const int sizes[] = {1, 3, 16, 65};
    for (int i = 0; i < 4 * 4 * 4 * 8; i++) { /* 512 shapes; every transpose, with rows wider than they need be */
        GemmShape s = {.M = sizes[i & 3],
                       .N = sizes[i >> 2 & 3],
                       .K = sizes[i >> 4 & 3],
                       .ta = i & 64,
                       .tb = i & 128,
                       .accumulate = i & 256};
        int wider = i % 5 ? 0 : 3;
        s.lda = (s.ta ? s.M : s.K) + wider, s.ldb = (s.tb ? s.K : s.N) + wider, s.ldc = s.N + wider;
        product(&g, s);
    }
    /* More shapes than are remembered, then the first and the last again. */
    for (int M = 1; M <= 600; M += M == 20 ? 561 : 1) product(&g, (GemmShape){M, 5, 7, .lda = 7, .ldb = 5, .ldc = 5});
    product(&g, (GemmShape){1, 1, 1, .lda = 1, .ldb = 1, .ldc = 1});
    product(&g, (GemmShape){600, 5, 7, .lda = 7, .ldb = 5, .ldc = 5});
    product(&g, (GemmShape){0, 5, 7, .lda = 7, .ldb = 5, .ldc = 5});
    product(&g, (GemmShape){5, 0, 7, .lda = 7, .ldb = 1, .ldc = 1});
    product(&g, (GemmShape){4, 5, 0, .lda = 4, .ldb = 5, .ldc = 5, .ta = true, .accumulate = true});
    rig_close(&g);
}
